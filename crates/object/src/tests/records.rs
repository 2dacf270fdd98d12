//! Data that lies in its record: few requests, and a record that stays exactly as long as its data
//! is needed.

use std::sync::Arc;
use std::time::Duration;

use super::faulty::{FaultOutcome, adjustable, judged};
use super::{
    in_memory, lies_in, open, open_as, passes, read, request, store_of, stored, tuning, write,
};
use crate::format::{BLOCK, Chunk, Compression, Kind, Writer, names};
use crate::log::OpenRequest;
use crate::volume::{Fault, Tuning, Volume};

/// Returns a tuning in which no map is written and nothing is compacted.
fn quiet() -> Tuning {
    let mut tuning = Tuning { few: 1000, ..tuning() };
    tuning.compaction.few = 1000;
    tuning
}

async fn put(volume: &Arc<Volume>, start: u64, len: u64, what: u32) {
    write(volume, start, len, what).await.unwrap();
    volume.flush().await.unwrap();
}

/// Creates the record of a server that opened the volume by an old list, and found that it did.
async fn stray(volume: &Volume, seq: u64) {
    let by = Writer { epoch: seq, nonce: 9 };
    let (_, object) = volume.codec().object(Kind::Open, (seq, by), &volume.opening.encode());
    volume.store.put(&names::record(seq), &[object], true).await.unwrap();
}

async fn records(volume: &Volume) -> Vec<u64> {
    let names = volume.store.list("log").await.unwrap();
    names.iter().map(|name| name.parse().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_small_flush_makes_two_requests_and_a_larger_one_four() {
    let inner = in_memory();
    let volume = open_as(&inner, 1, quiet()).await.unwrap();
    let mut found = Vec::new();
    for (start, len) in [(0, 1), (1, 3), (4, 4)] {
        let before = volume.store.usage();
        put(&volume, start, len, 7).await;
        let after = volume.store.usage();
        assert_eq!((after.lists, after.deletes), (before.lists, before.deletes));
        found.push((after.puts - before.puts, after.gets - before.gets));
    }
    assert_eq!(found, [(1, 1), (1, 1), (2, 2)]);
    assert_eq!(read(&volume, 0, 9).await.unwrap(), [7, 7, 7, 7, 7, 7, 7, 7, 0]);
}

#[tokio::test(start_paused = true)]
async fn an_opening_fetches_the_body_of_each_record_and_little_of_its_data() {
    let inner = in_memory();
    let blocks = 8192;
    let open = async |nonce| {
        let size = Some(blocks * BLOCK);
        let request = OpenRequest { size, compression: Compression::None, ..request(nonce) };
        let tuning = Tuning { batch: 4096, inline: 64, dirty: 16384, ..quiet() };
        Volume::open(store_of(&inner), request, tuning).await.unwrap()
    };
    drop(open(1).await);
    let volume = open(4).await;
    // It has read one record.
    let before = volume.store.usage();
    for what in 1..=10 {
        put(&volume, u64::from(what) * 64, 64, what).await;
    }
    // It is more than the first fetch gets.
    for block in (1000..5000).step_by(2) {
        write(&volume, block, 1, 8).await.unwrap();
    }
    volume.change(5000, 8, Chunk::Zero).await.unwrap();
    volume.close().await.unwrap();
    let data = lies_in(&volume);
    assert_eq!(data.iter().filter(|name| name.starts_with("log/")).count(), 10);
    let there = records(&volume).await.len() as u64;
    let volume = open(5).await;
    let after = volume.store.usage();
    assert_eq!(after.gets - before.gets, there, "each by one request, but for the long one's two");
    let bytes = after.received - before.received;
    assert!(bytes < 10 * (65 << 10) + 2100 * 36, "{bytes} of {}", 10 * 64 * BLOCK);
    for what in 1..=10 {
        assert_eq!(read(&volume, u64::from(what) * 64, 2).await.unwrap(), [what; 2]);
    }
    assert_eq!(read(&volume, 4996, 4).await.unwrap(), [8, 0, 8, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_record_stays_while_it_has_data_that_is_needed_and_goes_when_that_is_dead() {
    let inner = in_memory();
    let mut tuning = tuning();
    tuning.compaction.few = 1000;
    let volume = open_as(&inner, 1, tuning).await.unwrap();
    put(&volume, 0, 2, 7).await;
    let old = lies_in(&volume).remove(0);
    // Many maps, the record of each of which stays.
    for what in 8..40 {
        put(&volume, 10 + u64::from(what % 2), 1, what).await;
        passes(Duration::from_secs(1)).await;
        let mapped = volume.state.read().mapped;
        let there = records(&volume).await;
        assert!(mapped == 0 || there.contains(&mapped), "{mapped}, {there:?}");
        assert!((mapped + 1..there[there.len() - 1]).all(|seq| there.contains(&seq)), "a gap");
        let (bytes, needed) = stored(&volume).await;
        assert_eq!(bytes, needed);
    }
    assert!(volume.state.read().mapped > 20 && volume.store.size(&old).await.is_ok());
    volume.close().await.unwrap();
    let volume = open_as(&inner, 4, tuning).await.unwrap();
    passes(Duration::from_secs(1)).await;
    assert_eq!(read(&volume, 0, 2).await.unwrap(), [7; 2]);
    put(&volume, 0, 1, 8).await;
    passes(Duration::from_secs(1)).await;
    assert!(volume.store.size(&old).await.is_ok(), "half of it is in use");
    put(&volume, 1, 1, 8).await;
    passes(Duration::from_secs(1)).await;
    assert!(volume.store.size(&old).await.is_err(), "it is dead, in front of the map");
}

#[tokio::test(start_paused = true)]
async fn a_record_behind_the_map_stays_when_its_data_is_dead() {
    let inner = in_memory();
    let volume = open_as(&inner, 1, quiet()).await.unwrap();
    for what in 1..9 {
        put(&volume, 3, 2, what).await;
    }
    passes(Duration::from_secs(1)).await;
    assert_eq!(records(&volume).await, (1..=9).collect::<Vec<_>>());
    let volume = open_as(&inner, 2, quiet()).await.unwrap();
    assert_eq!(read(&volume, 2, 4).await.unwrap(), [0, 8, 8, 0]);
}

#[tokio::test(start_paused = true)]
async fn what_a_snapshot_has_in_records_stays_until_the_snapshot_is_deleted() {
    let inner = in_memory();
    let volume = open_as(&inner, 1, tuning()).await.unwrap();
    put(&volume, 0, 2, 7).await;
    let old = lies_in(&volume).remove(0);
    let taken = volume.snapshot(None).await.unwrap();
    for what in 8..30 {
        put(&volume, 0, 2, what).await;
    }
    passes(Duration::from_secs(1)).await;
    let volume = open_as(&inner, 4, tuning()).await.unwrap();
    passes(Duration::from_secs(1)).await;
    assert!(volume.state.read().mapped > taken.number);
    assert_eq!(super::snapshots::held(&volume, &inner, taken.number).await[..3], [7, 7, 0]);
    volume.delete_snapshot(taken.name).await.unwrap();
    passes(Duration::from_secs(1)).await;
    assert!(volume.store.size(&old).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_flush_whose_record_lacks_a_part_of_its_data_is_not_answered() {
    let inner = in_memory();
    let (store, fate) = adjustable(&inner);
    let volume = open_as(&store, 1, quiet()).await.unwrap();
    write(&volume, 0, 1, 7).await.unwrap();
    fate.lock().0 = FaultOutcome::Cut;
    let flushed = volume.flush().await;
    assert!(matches!(flushed, Err(Fault::Store(_))), "{flushed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_read_under_way_of_a_record_that_is_deleted_and_in_whose_place_another_one_comes_looks_again()
 {
    let inner = in_memory();
    let (store, takes) = adjustable(&inner);
    let volume = open_as(&store, 1, tuning()).await.unwrap();
    put(&volume, 0, 2, 7).await;
    let old = lies_in(&volume).remove(0);
    takes.lock().1 = Duration::from_secs(5);
    let reader = Arc::clone(&volume);
    let reading = tokio::spawn(async move { read(&reader, 0, 2).await });
    passes(Duration::from_millis(1)).await;
    takes.lock().1 = Duration::ZERO;
    for what in 8..30 {
        put(&volume, 0, 2, what).await;
    }
    passes(Duration::from_secs(1)).await;
    assert!(volume.store.size(&old).await.is_err());
    stray(&volume, 2).await;
    assert_eq!(reading.await.unwrap(), Ok(vec![29; 2]));
    let next = open(&inner, 6).await.unwrap();
    passes(Duration::from_secs(1)).await;
    assert!(next.store.size(&old).await.is_err(), "it is cleared away");
}

#[tokio::test(start_paused = true)]
async fn an_opening_that_comes_upon_a_record_in_a_place_that_was_cleared_meanwhile_begins_anew() {
    let inner = in_memory();
    let mut tuning = Tuning { few: 8, ..tuning() };
    tuning.compaction.few = 1000;
    let volume = open_as(&inner, 1, tuning).await.unwrap();
    let judge = |_: &str| (FaultOutcome::Done, Duration::from_millis(900));
    let slow = judged(&inner, judge);
    let opening = tokio::spawn(async move { open(&slow, 2).await });
    for what in 1..150 {
        // Every third one has data that is needed for good.
        let block = if what % 3 == 0 { 2 + what / 3 } else { what % 2 };
        put(&volume, block.into(), 1, what).await;
        passes(Duration::from_millis(300)).await;
        let there = records(&volume).await;
        let mapped = volume.state.read().mapped;
        for seq in (1..mapped).filter(|seq| !there.contains(seq)) {
            stray(&volume, seq).await;
        }
    }
    let next = opening.await.unwrap().unwrap();
    assert_eq!(read(&next, 0, 4).await.unwrap(), [148, 149, 0, 3]);
}
