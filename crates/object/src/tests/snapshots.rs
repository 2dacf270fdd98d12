//! A snapshot has what was written before it, and keeps it until it is deleted, despite later
//! writes, moves, losses and fights.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use object_store::ObjectStore;

use super::crashes::until;
use super::faulty::{FaultOutcome, adjustable, by_chance, judged};
use super::{BLOCKS, in_memory, open, passes, read, run, sealed_by, store_of, stored, write};
use crate::format::{BLOCK, Chunk, FrameAddress, Map, WholeMap, names};
use crate::volume::{Fault, Volume};

fn name(of: &str) -> Option<String> {
    Some(of.to_owned())
}

/// Returns the content of a snapshot's blocks.
pub(super) async fn held(volume: &Volume, inner: &Arc<dyn ObjectStore>, number: u64) -> Vec<u32> {
    let taken = volume.state.read().map.snapshots[&number].clone();
    let store = store_of(inner);
    let object = store.get(&names::snapshot(number, taken.epoch), None).await.unwrap();
    let whole = WholeMap::decode(&volume.codec.split(&object).unwrap().1).unwrap();
    assert!(whole.snapshots.is_empty() && whole.segments.iter().all(|one| one.died == 0));
    let map = Map::of(&whole);
    let mut said = Vec::new();
    for (start, len, place) in map.places.parts(0, BLOCKS) {
        let Some(place) = place else {
            said.extend((0..len).map(|_| 0));
            continue;
        };
        let segment = map.segments.get(place.segment).unwrap();
        let name = segment.name();
        let range = u64::from(place.at)..u64::from(place.at + place.stored);
        let frame = store.get(&name, Some(range)).await;
        let frame = frame.unwrap_or_else(|why| panic!("snapshot {number}: {name}: {why:?}"));
        let start = start - u64::from(place.skip);
        let data = volume.codec.data(&FrameAddress { id: segment.id, at: place.at, start }, &frame);
        let blocks = data.unwrap();
        let blocks = blocks.chunks_exact(BLOCK as usize).skip(place.skip as usize);
        said.extend(
            blocks.take(len as usize).map(|of| u32::from_le_bytes(of[..4].try_into().unwrap())),
        );
    }
    said
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_has_what_was_written_before_it_and_keeps_it_until_it_is_deleted() {
    let inner = in_memory();
    let volume = open(&inner, 1).await.unwrap();
    write(&volume, 0, 6, 7).await.unwrap();
    // Nothing was flushed.
    let first = volume.snapshot(name("first")).await.unwrap();
    assert_eq!((&*first.name, first.size), ("first", BLOCKS * BLOCK));
    let mut model = vec![0; BLOCKS as usize];
    model[..6].fill(7);
    for what in 8..60 {
        write(&volume, u64::from(what % 7), 1, what).await.unwrap();
        volume.flush().await.unwrap();
    }
    let second = volume.snapshot(None).await.unwrap();
    assert_eq!(second.name, second.number.to_string());
    let all = vec![first.clone(), second.clone()];
    assert_eq!(volume.snapshots().await.unwrap(), all);
    let refused = volume.snapshot(name("first")).await;
    assert!(matches!(refused, Err(Fault::Refused(why)) if why.contains("'first'")));
    passes(Duration::from_secs(60)).await;
    volume.close().await.unwrap();

    let volume = open(&inner, 2).await.unwrap();
    assert_eq!(volume.snapshots().await.unwrap(), all);
    volume.change(0, BLOCKS, Chunk::Zero).await.unwrap();
    volume.flush().await.unwrap();
    passes(Duration::from_secs(60)).await;
    assert_eq!(held(&volume, &inner, first.number).await, model);
    let (bytes, needed) = stored(&volume).await;
    assert!(bytes == needed && bytes > 0, "{bytes}, {needed}");
    volume.delete_snapshot("first".into()).await.unwrap();
    volume.delete_snapshot(second.name).await.unwrap();
    passes(Duration::from_secs(60)).await;
    assert_eq!(stored(&volume).await, (0, 0));
    assert_eq!(volume.store.list("snap").await.unwrap(), [""; 0]);
    let refused = volume.delete_snapshot("first".into()).await;
    assert!(matches!(refused, Err(Fault::Refused(why)) if why.contains("no snapshot 'first'")));
    assert_eq!(volume.snapshots().await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_waits_for_a_snapshot_until_its_time_is_over_is_not_done_later() {
    let inner = in_memory();
    let (store, fate) = adjustable(&inner);
    let volume = open(&store, 1).await.unwrap();
    volume.snapshot(name("first")).await.unwrap();
    fate.lock().0 = FaultOutcome::Refused;
    let taken = volume.snapshot(name("second")).await;
    assert!(matches!(&taken, Err(Fault::Store(why)) if why.contains("continues")), "{taken:?}");
    let deleted = volume.delete_snapshot("first".into()).await;
    assert!(matches!(&deleted, Err(Fault::Store(why)) if why.contains("nothing")), "{deleted:?}");
    fate.lock().0 = FaultOutcome::Done;
    passes(Duration::from_secs(60)).await;
    let all = volume.snapshots().await.unwrap();
    let all: Vec<_> = all.iter().map(|one| &*one.name).collect();
    assert_eq!(all, ["first", "second"]);
}

#[tokio::test(start_paused = true)]
async fn what_a_snapshot_needs_is_not_moved_and_is_no_garbage_until_it_is_deleted() {
    let inner = in_memory();
    let volume = open(&inner, 1).await.unwrap();
    for start in (0..BLOCKS - 4).step_by(6) {
        write(&volume, start, 6, 7).await.unwrap();
    }
    let snapshot = volume.snapshot(None).await.unwrap();
    for block in 0..BLOCKS {
        if block % 6 != 0 {
            volume.change(block, 1, Chunk::Zero).await.unwrap();
        }
    }
    volume.flush().await.unwrap();
    passes(Duration::from_secs(60)).await;
    assert_eq!(volume.moves.usage().puts, 0);
    // Other garbage is collected. The snapshot's data stays where it is, though less of it is in
    // use.
    let held = || {
        let state = volume.state.read();
        let all = state.map.segments.iter().map(|(_, segment)| segment.born);
        all.filter(|born| *born <= snapshot.number).count()
    };
    let before = held();
    for start in (1..BLOCKS - 6).step_by(6) {
        write(&volume, start, 5, 8).await.unwrap();
        volume.flush().await.unwrap();
        volume.change(start, 4, Chunk::Zero).await.unwrap();
    }
    volume.flush().await.unwrap();
    passes(Duration::from_secs(60)).await;
    let moved = volume.moves.usage().puts;
    assert!(moved > 0 && before > 0);
    assert_eq!(held(), before);
    volume.delete_snapshot(snapshot.name).await.unwrap();
    passes(Duration::from_secs(60)).await;
    assert!(volume.moves.usage().puts > moved);
    assert_eq!(read(&volume, 0, 7).await.unwrap(), [7, 0, 0, 0, 0, 8, 7]);
}

/// History of a volume, and the snapshots that it must have.
#[derive(Default)]
struct History {
    changes: super::history::History,
    /// Content of each requested snapshot, and whether it has to exist (`None`: unknown).
    snapshots: BTreeMap<String, (Vec<u32>, Option<bool>)>,
}

/// Works at random, until the machine is lost or the work is done. Returns true if it is done.
async fn work(volume: &Arc<Volume>, history: &mut History, random: &mut fastrand::Rng) -> bool {
    for _ in 0..50 {
        let start = random.u64(0..BLOCKS);
        let len = random.u64(1..=(BLOCKS - start).min(9));
        let range = start as usize..(start + len) as usize;
        let mut state = history.changes.now();
        let what = random.u32(1..);
        let done = match random.u8(0..12) {
            0 => {
                state[range].fill(0);
                volume.change(start, len, Chunk::Zero).await
            }
            1 => {
                passes(Duration::from_millis(random.u64(0..500))).await;
                continue;
            }
            2 => {
                let name = format!("s{}", history.snapshots.len());
                history.snapshots.insert(name.clone(), (state, None));
                let done = volume.snapshot(Some(name.clone())).await;
                if done.is_err() {
                    return false;
                }
                history.snapshots.get_mut(&name).unwrap().1 = Some(true);
                history.changes.is_flushed();
                continue;
            }
            3 if !history.snapshots.is_empty() => {
                let n = random.usize(0..history.snapshots.len());
                let (name, (_, there)) = history.snapshots.iter_mut().nth(n).unwrap();
                let was = there.take();
                match volume.delete_snapshot(name.clone()).await {
                    Ok(_) => assert_ne!(was, Some(false), "{name} was deleted twice"),
                    Err(Fault::Refused(why)) => assert_ne!(was, Some(true), "{name}: {why}"),
                    Err(_) => return false,
                }
                *there = Some(false);
                continue;
            }
            _ => {
                state[range].fill(what);
                write(volume, start, len, what).await
            }
        };
        history.changes.states.push(state);
        if done.is_err() {
            return false;
        }
    }
    if volume.close().await.is_err() {
        return false;
    }
    history.changes.is_flushed();
    true
}

/// Opens the volume on a store without faults, and compares it.
async fn agrees(inner: &Arc<dyn ObjectStore>, nonce: u128, history: &mut History, when: &str) {
    let volume = open(inner, nonce).await.unwrap();
    let found = read(&volume, 0, BLOCKS).await.unwrap();
    history.changes.goes_on_from(found, when);
    let there = volume.snapshots().await.unwrap();
    for snapshot in &there {
        let (holds, must) = &history.snapshots[&snapshot.name];
        assert_ne!(*must, Some(false), "{when}: {} was deleted", snapshot.name);
        let found = held(&volume, inner, snapshot.number).await;
        assert_eq!(found, *holds, "{when}: {}", snapshot.name);
    }
    for (name, (_, must)) in &mut history.snapshots {
        let found = there.iter().any(|snapshot| snapshot.name == *name);
        assert!(found || *must != Some(true), "{when}: {name} isn't there");
        *must = Some(found);
    }
    passes(Duration::from_secs(30)).await;
    let (bytes, needed) = stored(&volume).await;
    assert_eq!(bytes, needed, "{when}: something is left over");
    let maps = volume.store.list("snap").await.unwrap();
    assert_eq!(maps.len(), there.len(), "{when}: {maps:?}");
    volume.close().await.unwrap();
}

/// Loses the machine at request `at` of each of three lives. Returns whether that request came.
fn lose_it_at(at: u64, last: FaultOutcome, seed: u64) -> bool {
    let inner = in_memory();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut history = History::default();
    let mut lost = false;
    for life in 0..3 {
        let store = until(&inner, at, last);
        run(async {
            let opened = open(&store, (life * 2) | sealed_by(seed)).await;
            let Ok(volume) = opened else { return lost = true };
            lost |= !work(&volume, &mut history, &mut random).await;
        });
        let when = format!("lost at {at} ({last:?}, seed {seed}, life {life})");
        run(agrees(&inner, (life * 2 + 1) | sealed_by(seed), &mut history, &when));
    }
    lost
}

#[test]
fn whenever_the_machine_is_lost_the_snapshots_are_there_or_not_and_hold_what_they_held() {
    let long = std::env::var_os("COREWISE_LONG").is_some();
    for (last, seed) in
        [(FaultOutcome::Done, 1), (FaultOutcome::Unsaid, 2), (FaultOutcome::Refused, 3)]
    {
        let mut at = 18;
        while lose_it_at(at, last, seed + at) {
            at += if long { 1 } else { 9 };
        }
        assert!(at > 100, "only {at} requests");
    }
}

#[test]
fn snapshots_agree_with_a_model_over_a_store_that_fails_lies_and_is_slow() {
    let long = std::env::var_os("COREWISE_LONG").is_some();
    let fates = &[
        FaultOutcome::Done,
        FaultOutcome::Done,
        FaultOutcome::Unsaid,
        FaultOutcome::Forgotten,
        FaultOutcome::Refused,
    ];
    for seed in 0..if long { 400 } else { 8 } {
        let inner = in_memory();
        let mut random = fastrand::Rng::with_seed(seed);
        let mut history = History::default();
        let store = judged(&inner, by_chance(random.fork(), fates, 9));
        for life in 0..3 {
            let (working, looking) =
                ((life * 2) | sealed_by(seed), (life * 2 + 1) | sealed_by(seed));
            run(async {
                let volume = open(&store, working).await.unwrap();
                assert!(work(&volume, &mut history, &mut random).await, "seed {seed}");
            });
            run(agrees(&inner, looking, &mut history, &format!("seed {seed}, life {life}")));
        }
    }
}
