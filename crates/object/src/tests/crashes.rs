//! A volume that loses its machine at each request to the store.

use std::sync::Arc;
use std::time::Duration;

use object_store::ObjectStore;

use super::faulty::{FaultOutcome, judged};
use super::history::{History, Rates};
use super::{BLOCKS, in_memory, open, passes, read, run, sealed_by, stored, tuning, write};
use crate::volume::Tuning;

/// Lets `left` requests through. The next one is performed or not, and neither it nor a later one
/// is ever answered.
pub(super) fn until(
    inner: &Arc<dyn ObjectStore>,
    mut left: u64,
    last: FaultOutcome,
) -> Arc<dyn ObjectStore> {
    judged(inner, move |_: &str| {
        let fate = match left {
            0 => FaultOutcome::Hangs,
            1 => last,
            _ => FaultOutcome::Done,
        };
        left = left.saturating_sub(1);
        (fate, Duration::ZERO)
    })
}

#[derive(Default)]
struct Lives {
    history: History,
    /// Segments that compaction wrote.
    moved: u64,
    /// Segments at the end of lives that lay in their records, and those that didn't.
    kinds: [usize; 2],
}

/// Works until the machine is lost. True: everything was done.
async fn work(
    inner: &Arc<dyn ObjectStore>,
    nonce: u128,
    lives: &mut Lives,
    random: &mut fastrand::Rng,
) -> bool {
    let Ok(volume) = open(inner, nonce).await else { return false };
    let done = lives.history.work(&volume, random, Rates { flushes: 1, pause: 200 }).await;
    lives.moved += volume.moves.usage().puts;
    for (_, segment) in volume.state.read().map.segments.iter() {
        lives.kinds[usize::from(!segment.in_record)] += 1;
    }
    done
}

/// Runs once: the machine is lost at request `at` of each of its lives. Returns whether that
/// request came.
fn lose_it_at(at: u64, last: FaultOutcome, seed: u64, lives: &mut Lives) -> bool {
    let inner = in_memory();
    let mut random = fastrand::Rng::with_seed(seed);
    lives.history = History::default();
    let mut lost = false;
    let sealed = sealed_by(seed);
    for life in 0..3 {
        let when = format!("lost at {at} ({last:?}, seed {seed}, life {life})");
        let store = until(&inner, at, last);
        run(async {
            lost |= !work(&store, (life * 2) | sealed, lives, &mut random).await;
        });
        let found = run(async {
            let volume = open(&inner, (life * 2 + 1) | sealed).await.unwrap();
            let found = read(&volume, 0, BLOCKS).await.unwrap();
            passes(Duration::from_secs(30)).await;
            let (bytes, needed) = stored(&volume).await;
            assert_eq!(bytes, needed, "{when}");
            volume.close().await.unwrap();
            found
        });
        lives.history.goes_on_from(found, &when);
    }
    lost
}

#[test]
fn whenever_the_machine_is_lost_flushed_writes_are_there_and_the_others_are_a_prefix() {
    for (last, seed) in
        [(FaultOutcome::Done, 1), (FaultOutcome::Unsaid, 2), (FaultOutcome::Refused, 3)]
    {
        let long = std::env::var_os("COREWISE_LONG").is_some();
        let mut at = 1;
        let mut lives = Lives::default();
        while lose_it_at(at, last, seed + at, &mut lives) {
            at += if long { 1 } else { 8 };
        }
        let Lives { moved, kinds, .. } = lives;
        assert!(at > 60 && moved > 20, "only {at} requests, {moved} moves");
        assert!(kinds.iter().all(|kind| *kind > 20), "in records and not: {kinds:?}");
    }
}

#[test]
fn the_log_and_the_segments_do_not_pile_up() {
    let pile = async |inline| {
        let inner = in_memory();
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
