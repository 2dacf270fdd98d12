//! Segments of which little is in use are compacted, and nothing is lost or undone by that.

use std::sync::Arc;
use std::time::Duration;

use object_store::ObjectStore;

use super::faulty::{FaultOutcome, SharedOutcome, adjustable, but_for};
use super::{BLOCKS, in_memory, open, passes, read, write, write_all};
use crate::format::{BLOCK, Chunk};
use crate::volume::{Fault, Tuning, Volume, policy};

/// Returns the bytes of all objects that exist in the store for their data.
async fn stored(volume: &Volume) -> u64 {
    super::stored(volume).await.0
}

#[tokio::test(start_paused = true)]
async fn garbage_stays_a_share_of_what_is_in_use() {
    let inner = in_memory();
    let volume = open(&inner, 1).await.unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    let mut model = vec![0; BLOCKS as usize];
    for what in 1..600 {
        // Some blocks are written once, and stay in segments of which all else is dead.
        let block = random.u64(0..if what < 200 { BLOCKS } else { BLOCKS / 2 });
        write(&volume, block, 1, what).await.unwrap();
        model[block as usize] = what;
        passes(Duration::from_millis(100)).await;
    }
    volume.flush().await.unwrap();
    passes(Duration::from_secs(60)).await;
    let sum = volume.state.read().map.segments.sum();
    let allowed = policy::garbage_allowed(sum, volume.tuning.compaction);
    assert!(sum.garbage() <= allowed, "{sum:?}");
    assert_eq!(stored(&volume).await, sum.stored);
    assert_eq!(sum.live, model.iter().filter(|what| **what != 0).count() as u64);
    let (moves, all) = (volume.moves.usage(), volume.store.usage());
    assert!(moves.puts > 10 && moves.deletes > 10 && moves.lists == 0, "{moves:?}");
    assert!(moves.puts < all.puts, "it moves more than was written: {moves:?}, {all:?}");
    assert_eq!(read(&volume, 0, BLOCKS).await.unwrap(), model);
    let volume = open(&inner, 2).await.unwrap();
    assert_eq!(read(&volume, 0, BLOCKS).await.unwrap(), model);
}

#[tokio::test(start_paused = true)]
async fn small_segments_become_few_and_neighbours_in_them_one_piece() {
    for inline in [0, 3] {
        let inner = in_memory();
        let tuning = Tuning { inline, ..super::tuning() };
        let volume = super::open_as(&inner, 1, tuning).await.unwrap();
        for block in (0..60).rev() {
            write(&volume, block, 1, block as u32 + 1).await.unwrap();
            volume.flush().await.unwrap();
        }
        passes(Duration::from_secs(60)).await;
        let (segments, pieces) = {
            let state = volume.state.read();
            (state.map.segments.iter().count(), state.map.places.len())
        };
        assert!(segments <= 4 + 4 * 60 / 24 && pieces <= segments, "{segments}, {pieces}");
        assert!(volume.store.list("seg").await.unwrap().len() <= segments);
        let (bytes, needed) = super::stored(&volume).await;
        assert_eq!(bytes, needed);
        let all: Vec<u32> = (1..=60).collect();
        assert_eq!(read(&volume, 0, 60).await.unwrap(), all);
    }
}

#[tokio::test(start_paused = true)]
async fn a_trim_gives_space_back_also_of_segments_that_are_in_use() {
    let inner = in_memory();
    let volume = open(&inner, 1).await.unwrap();
    write_all(&volume, 0, BLOCKS, 7).await;
    volume.flush().await.unwrap();
    let before = stored(&volume).await;
    for block in 0..BLOCKS {
        if block % 4 != 0 {
            volume.change(block, 1, Chunk::Zero).await.unwrap();
        }
    }
    volume.flush().await.unwrap();
    passes(Duration::from_secs(60)).await;
    let after = stored(&volume).await;
    assert!(after < before / 2, "{before}, {after}");
    volume.change(0, BLOCKS, Chunk::Zero).await.unwrap();
    volume.flush().await.unwrap();
    passes(Duration::from_secs(60)).await;
    assert_eq!(stored(&volume).await, 0);
}

/// Returns a store, the latency of its requests, and a volume with 36 blocks that are in the store.
async fn full() -> (Arc<dyn ObjectStore>, SharedOutcome, Arc<Volume>) {
    let inner = in_memory();
    let (store, takes) = adjustable(&inner);
    let volume = open(&store, 1).await.unwrap();
    write_all(&volume, 0, 36, 7).await;
    volume.flush().await.unwrap();
    (inner, takes, volume)
}

#[tokio::test(start_paused = true)]
async fn a_write_that_comes_while_its_block_is_moved_stays() {
    for wait in 0..60 {
        let (inner, takes, volume) = full().await;
        takes.lock().1 = Duration::from_millis(10);
        leave_a_third(&volume).await;
        passes(Duration::from_millis(wait)).await;
        write(&volume, 16, 1, 8).await.unwrap();
        volume.flush().await.unwrap();
        passes(Duration::from_secs(20)).await;
        assert!(volume.moves.usage().puts > 0);
        let expected = [0, 0, 0, 0, 8, 7];
        assert_eq!(read(&volume, 12, 6).await.unwrap(), expected, "after {wait} ms");
        let volume = open(&inner, 2).await.unwrap();
        assert_eq!(read(&volume, 12, 6).await.unwrap(), expected, "after {wait} ms");
    }
}

/// Keeps a third of six full segments.
async fn leave_a_third(volume: &Arc<Volume>) {
    for start in (0..36).step_by(6) {
        volume.change(start, 4, Chunk::Zero).await.unwrap();
    }
    volume.flush().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_read_under_way_of_a_segment_that_is_moved_and_deleted_looks_again() {
    let (_, takes, volume) = full().await;
    let before = volume.store.list("seg").await.unwrap();
    takes.lock().1 = Duration::from_millis(500);
    let reader = Arc::clone(&volume);
    let reading = tokio::spawn(async move { read(&reader, 4, 2).await });
    passes(Duration::from_millis(1)).await;
    takes.lock().1 = Duration::ZERO;
    leave_a_third(&volume).await;
    passes(Duration::from_millis(400)).await;
    let after = volume.store.list("seg").await.unwrap();
    assert!(after.iter().all(|name| !before.contains(name)), "{before:?}, {after:?}");
    assert_eq!(reading.await.unwrap(), Ok(vec![7; 2]));
}

#[tokio::test(start_paused = true)]
async fn a_segment_that_is_damaged_stays_and_the_others_are_gathered() {
    let inner = in_memory();
    let (store, takes) = adjustable(&inner);
    let volume = open(&store, 1).await.unwrap();
    for start in [0, 6, 12] {
        write(&volume, start, 6, 7).await.unwrap();
    }
    volume.flush().await.unwrap();
    let name = format!("seg/{}", volume.store.list("seg").await.unwrap()[1]);
    let mut bytes = volume.store.get(&name, None).await.unwrap().to_vec();
    bytes[(5 * BLOCK) as usize] ^= 1;
    volume.store.put(&name, &[bytes.into()], false).await.unwrap();
    takes.lock().1 = Duration::from_millis(1);
    for start in [0, 6, 12] {
        volume.change(start, 3, Chunk::Zero).await.unwrap();
    }
    volume.flush().await.unwrap();
    passes(Duration::from_secs(60)).await;
    assert!(volume.store.size(&name).await.is_ok());
    assert_eq!(volume.store.list("seg").await.unwrap().len(), 2);
    assert_eq!(read(&volume, 3, 3).await.unwrap(), [7; 3]);
    assert_eq!(read(&volume, 15, 3).await.unwrap(), [7; 3]);
    assert!(matches!(read(&volume, 9, 3).await, Err(Fault::Damaged(_))));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_failed_for_long_delays_compaction_and_does_not_end_it() {
    let inner = in_memory();
    let (store, fate) = adjustable(&inner);
    fate.lock().1 = Duration::from_millis(10);
    let volume = open(&store, 1).await.unwrap();
    write_all(&volume, 0, 36, 7).await;
    volume.flush().await.unwrap();
    leave_a_third(&volume).await;
    fate.lock().0 = FaultOutcome::Refused;
    // It is longer than the patience of a read.
    passes(3 * volume.tuning.patience).await;
    assert!(volume.moves.usage().failures > 10);
    fate.lock().0 = FaultOutcome::Done;
    passes(Duration::from_secs(60)).await;
    assert_eq!(volume.state.read().map.segments.sum().live, 12);
    assert!(stored(&volume).await < 18 * BLOCK);
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_closed_in_order_also_amid_a_move() {
    for wait in (0..60).step_by(3) {
        let (inner, takes, volume) = full().await;
        takes.lock().1 = Duration::from_millis(10);
        // There isn't enough garbage to make a write wait.
        for start in (0..36).step_by(6) {
            volume.change(start, 3, Chunk::Zero).await.unwrap();
        }
        volume.flush().await.unwrap();
        passes(Duration::from_millis(wait)).await;
        // This makes the flush take its time.
        write(&volume, 40, 1, 8).await.unwrap();
        assert_eq!(volume.close().await, Ok(()), "after {wait} ms");
        let next = open(&inner, 2).await.unwrap();
        assert_eq!(read(&next, 4, 2).await.unwrap(), [7; 2]);
    }
}

/// Creates a volume with half of 36 blocks, in six segments: an amount of garbage that is moved at
/// a pace.
async fn half(store: &Arc<dyn ObjectStore>) -> Arc<Volume> {
    let volume = open(store, 1).await.unwrap();
    write_all(&volume, 0, 36, 7).await;
    volume.flush().await.unwrap();
    for start in (0..36).step_by(6) {
        volume.change(start, 3, Chunk::Zero).await.unwrap();
    }
    volume.flush().await.unwrap();
    volume
}

#[tokio::test(start_paused = true)]
async fn what_is_moved_is_moved_at_a_pace() {
    let volume = half(&in_memory()).await;
    let began = tokio::time::Instant::now();
    let mut blocks = 0;
    for segments in 1..3 {
        while volume.moves.usage().puts < segments {
            passes(Duration::from_millis(1)).await;
        }
        let least = policy::pace(blocks * BLOCK, volume.tuning.compaction, (0, 0));
        assert!(began.elapsed() >= least, "{segments}: {:?}", began.elapsed());
        blocks += 6;
    }
}

#[tokio::test(start_paused = true)]
async fn no_flush_waits_for_the_upload_of_what_is_moved() {
    let inner = in_memory();
    let takes = (FaultOutcome::Done, Duration::from_secs(10));
    let volume = half(&but_for(&inner, "put a/volume/seg/09", move || takes)).await;
    passes(Duration::from_millis(1)).await;
    assert_eq!(volume.moves.usage().puts, 1, "its number is 2⁶³ and a little");
    let began = tokio::time::Instant::now();
    write(&volume, 40, 1, 8).await.unwrap();
    volume.flush().await.unwrap();
    assert_eq!(began.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_move_changes_neither_the_size_nor_how_many_changes_there_were() {
    let inner = in_memory();
    let volume = half(&inner).await;
    volume.grow(2 * BLOCKS * BLOCK).await.unwrap();
    // One write isn't in the store when something is moved.
    write(&volume, 40, 1, 8).await.unwrap();
    passes(volume.tuning.age / 2).await;
    assert!(volume.moves.usage().puts > 0);
    let request = crate::log::OpenRequest { size: None, ..super::request(2) };
    let next = Volume::open(super::store_of(&inner), request, super::tuning()).await.unwrap();
    assert_eq!((next.opening.size, next.opening.through), (2 * BLOCKS * BLOCK, 12));
}

#[tokio::test(start_paused = true)]
async fn a_write_waits_a_second_at_most_where_compaction_is_far_behind() {
    let (_, takes, volume) = full().await;
    for start in (0..36).step_by(6) {
        volume.change(start, 5, Chunk::Zero).await.unwrap();
    }
    takes.lock().1 = Duration::from_secs(10);
    volume.flush().await.unwrap();
    let began = tokio::time::Instant::now();
    write(&volume, 40, 1, 8).await.unwrap();
    let waited = began.elapsed();
    let most = Duration::from_secs(1);
    assert!(most / 2 < waited && waited <= most + most / 10, "it waited {waited:?}");
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_where_all_the_garbage_lies_in_segments_that_cannot_be_read() {
    let store = in_memory();
    let volume = open(&store, 1).await.unwrap();
    for start in (0..36).step_by(6) {
        write(&volume, start, 6, 7).await.unwrap();
    }
    volume.flush().await.unwrap();
    for number in volume.store.list("seg").await.unwrap() {
        let name = format!("seg/{number}");
        let mut bytes = volume.store.get(&name, None).await.unwrap().to_vec();
        bytes[BLOCK as usize] ^= 1;
        volume.store.put(&name, &[bytes.into()], false).await.unwrap();
    }
    for start in (0..36).step_by(6) {
        volume.change(start, 5, Chunk::Zero).await.unwrap();
    }
    volume.flush().await.unwrap();
    passes(Duration::from_secs(60)).await;
    let began = tokio::time::Instant::now();
    for start in 40..50 {
        write(&volume, start, 1, 8).await.unwrap();
        volume.flush().await.unwrap();
        passes(Duration::from_millis(1)).await;
    }
    let waited = began.elapsed();
    assert!(waited < Duration::from_secs(1), "it waited {waited:?}");
}
