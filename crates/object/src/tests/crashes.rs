//! A volume that loses its machine at each request to the store.

use std::sync::Arc;
use std::time::Duration;

use object_store::ObjectStore;
use object_store::memory::InMemory;

use super::faulty::{FaultOutcome, Faulty};
use super::{BLOCKS, open, passes, read, sealed_by, stored, tuning, write};
use crate::format::Chunk;
use crate::volume::{Fault, Tuning, Volume};

/// Lets `left` requests through. The next one is performed or not, and neither it nor a later one
/// is ever answered.
pub(super) fn until(
    inner: &Arc<dyn ObjectStore>,
    mut left: u64,
    last: FaultOutcome,
) -> Arc<dyn ObjectStore> {
    let judge = move |_: &str| {
        let fate = match left {
            0 => FaultOutcome::Hangs,
            1 => last,
            _ => FaultOutcome::Done,
        };
        left = left.saturating_sub(1);
        (fate, Duration::ZERO)
    };
    Arc::new(Faulty::new(inner, Box::new(judge)))
}

/// Content of the volume after each change, and the number of changes before the last flush.
struct History {
    states: Vec<Vec<u32>>,
    flushed: usize,
    /// Segments that compaction wrote.
    moved: u64,
    /// Segments at the end of lives that lay in their records, and those that didn't.
    kinds: [usize; 2],
}

/// Works until the machine is lost. True: everything was done.
async fn work(
    inner: &Arc<dyn ObjectStore>,
    nonce: u128,
    history: &mut History,
    random: &mut fastrand::Rng,
) -> bool {
    let Ok(volume) = open(inner, nonce).await else { return false };
    let done = work_on(&volume, history, random).await;
    history.moved += volume.moves.usage().puts;
    for (_, segment) in volume.state.read().map.segments.iter() {
        history.kinds[usize::from(!segment.in_record)] += 1;
    }
    done
}

async fn work_on(volume: &Arc<Volume>, history: &mut History, random: &mut fastrand::Rng) -> bool {
    for n in 0..60 {
        let start = random.u64(0..BLOCKS);
        let len = random.u64(1..=(BLOCKS - start).min(9));
        let range = start as usize..(start + len) as usize;
        let mut state = history.states.last().cloned().unwrap_or_default();
        let what = random.u32(1..);
        let done = match random.u8(0..8) {
            0 => {
                state[range].fill(0);
                volume.change(start, len, Chunk::Zero).await
            }
            1 if n % 2 == 0 => {
                if volume.flush().await.is_err() {
                    return false;
                }
                history.flushed = history.states.len() - 1;
                continue;
            }
            // Compaction progresses meanwhile.
            2 if n % 2 == 0 => {
                passes(Duration::from_millis(random.u64(0..200))).await;
                continue;
            }
            2 => match read(volume, start, len).await {
                Ok(found) => {
                    assert_eq!(found, state[range]);
                    continue;
                }
                Err(Fault::Damaged(why)) => panic!("{why}"),
                Err(_) => return false,
            },
            _ => {
                state[range].fill(what);
                write(volume, start, len, what).await
            }
        };
        // It may exist although no answer came.
        history.states.push(state);
        if done.is_err() {
            return false;
        }
    }
    if let Err(why) = volume.close().await {
        assert!(!matches!(why, Fault::Damaged(_)));
        return false;
    }
    history.flushed = history.states.len() - 1;
    true
}

/// Runs once: the machine is lost at request `at` of each of its lives. Returns whether that
/// request came.
fn lose_it_at(at: u64, last: FaultOutcome, seed: u64, history: &mut History) -> bool {
    let inner: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let mut random = fastrand::Rng::with_seed(seed);
    (history.states, history.flushed) = (vec![vec![0; BLOCKS as usize]], 0);
    let mut lost = false;
    let sealed = sealed_by(seed);
    for life in 0..3 {
        let store = until(&inner, at, last);
        // The runtime ends with all of its tasks, as the machine does.
        run(async {
            lost |= !work(&store, (life * 2) | sealed, history, &mut random).await;
        });
        let found = run(async {
            let volume = open(&inner, (life * 2 + 1) | sealed).await.unwrap();
            let found = read(&volume, 0, BLOCKS).await.unwrap();
            passes(Duration::from_secs(30)).await;
            let (bytes, needed) = stored(&volume).await;
            assert_eq!(bytes, needed, "lost at {at} ({last:?}, seed {seed}, life {life})");
            volume.close().await.unwrap();
            found
        });
        let at_least = history.flushed;
        let kept = history.states.iter().rposition(|state| *state == found);
        assert!(
            kept.is_some_and(|kept| kept >= at_least),
            "lost at {at} ({last:?}, seed {seed}, life {life}): kept {kept:?}, flushed {at_least}"
        );
        (history.states, history.flushed) = (vec![found], 0);
    }
    lost
}

pub(super) fn run<T>(future: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().unwrap().block_on(future)
}

#[test]
fn whenever_the_machine_is_lost_flushed_writes_are_there_and_the_others_are_a_prefix() {
    for (last, seed) in
        [(FaultOutcome::Done, 1), (FaultOutcome::Unsaid, 2), (FaultOutcome::Refused, 3)]
    {
        let long = std::env::var_os("COREWISE_LONG").is_some();
        let mut at = 1;
        let mut history = History { states: Vec::new(), flushed: 0, moved: 0, kinds: [0; 2] };
        while lose_it_at(at, last, seed + at, &mut history) {
            at += if long { 1 } else { 8 };
        }
        let History { moved, kinds, .. } = history;
        assert!(at > 60 && moved > 20, "only {at} requests, {moved} moves");
        assert!(kinds.iter().all(|kind| *kind > 20), "in records and not: {kinds:?}");
    }
}

#[test]
fn the_log_and_the_segments_do_not_pile_up() {
    let pile = async |inline| {
        let inner: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let tuning = Tuning { inline, ..tuning() };
        let volume = super::open_as(&inner, 1, tuning).await.unwrap();
        for n in 1..200 {
            write(&volume, u64::from(n) % 4, 1, n).await.unwrap();
            volume.flush().await.unwrap();
        }
        passes(Duration::from_secs(60)).await;
        let store = &volume.store;
        let count = async |folder| store.list(folder).await.unwrap().len();
        assert!(count("seg").await <= 4, "{}", count("seg").await);
        let with_data = if inline == 0 { 0 } else { 4 };
        assert!(count("log").await <= 8 + with_data, "{}", count("log").await);
        assert_eq!(count("map").await, 1);
        assert_eq!(count("try").await, 0);
        assert_eq!(read(&volume, 0, 4).await.unwrap(), [196, 197, 198, 199]);
    };
    run(pile(0));
    run(pile(3));
}
