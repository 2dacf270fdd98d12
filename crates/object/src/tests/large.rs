//! Cost of a volume of very many pieces and segments: to open it, to hold it, and to write its map.

use std::sync::Arc;

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use tokio::time::Instant;

use super::{request, store_of, tuning, write};
use crate::format::{BLOCK, BlockPlace, Changes, Chunk, Kind, MapEntry, names};
use crate::log::OpenRequest;
use crate::volume::policy::{self, Compaction};
use crate::volume::{Tuning, Volume};

/// Compaction with the defaults of `ObjectOptions`.
const COMPACTION: Compaction =
    Compaction { slack: 8 << 20, few: 64, segment: 2048, rate: 16 << 20 };

async fn open(inner: &Arc<dyn ObjectStore>, nonce: u128, blocks: u64) -> Arc<Volume> {
    // Nothing is compacted: the segments are empty files.
    let compaction = Compaction { slack: u64::MAX / 2, few: u64::MAX / 2, ..COMPACTION };
    let tuning = Tuning { batch: 2048, dirty: 16384, few: policy::FEW, compaction, ..tuning() };
    let request = OpenRequest { size: Some(blocks * BLOCK), ..request(nonce) };
    Volume::open(store_of(inner), request, tuning).await.unwrap()
}

/// Makes a volume as if that many single blocks had been written into that many segments.
async fn make(inner: &Arc<dyn ObjectStore>, folder: &std::path::Path, pieces: u64, segments: u64) {
    let volume = open(inner, 0, 2 * pieces).await;
    let map = {
        let mut state = volume.state.write();
        for n in 0..segments {
            let segment = n + 10;
            let entry = |k: u64| {
                let at = k as u32 * 5000 + 64;
                let place = Some(BlockPlace { segment, at, stored: 4112, skip: 0 });
                MapEntry { start: (k * segments + n) * 2, len: 1, place }
            };
            let entries: Vec<_> = (0..pieces / segments).map(entry).collect();
            let bytes = 5000 * entries.len() as u64;
            let changes = Changes { segment, bytes, id: 1, entries, ..Changes::default() };
            state.map.apply(segment, 1, &changes);
        }
        state.map.whole(volume.opening.clone(), vec![1])
    };
    let object = volume.codec.object(Kind::Map, (1, volume.writer), &map.encode()).1;
    volume.store.put(&names::whole_map(1, 1), &[object], false).await.unwrap();
    volume.close().await.unwrap();
    let folder = folder.join("a/volume");
    std::fs::create_dir_all(folder.join("seg")).unwrap();
    for n in 0..segments {
        std::fs::write(folder.join(names::segment(n + 10, 1)), "").unwrap();
    }
}

/// Returns the resident memory of this process in bytes.
fn memory() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

fn took(what: &str, began: Instant) {
    println!("  {what}: {:.1} ms", began.elapsed().as_secs_f64() * 1e3);
}

/// Measures alone in a process, as memory isn't told apart otherwise.
#[test]
#[ignore = "a measurement: build it with --release"]
fn measured_with_100_000_pieces_and_segments() {
    measure(100_000, 100_000);
}

#[test]
#[ignore = "a measurement: build it with --release"]
fn measured_with_1_000_000_pieces_and_segments() {
    measure(1_000_000, 1_000_000);
}

#[test]
#[ignore = "a measurement: build it with --release"]
fn measured_with_1_000_000_pieces_in_1000_segments() {
    measure(1_000_000, 1000);
}

fn measure(pieces: u64, segments: u64) {
    let folder = tempfile::tempdir().unwrap();
    let local = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
    let inner: Arc<dyn ObjectStore> = Arc::new(local);
    let run = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // Another thread does it, which leaves no memory to be reused.
    std::thread::scope(|threads| {
        threads.spawn(|| run().block_on(make(&inner, folder.path(), pieces, segments)));
    });
    run().block_on(look(&inner, pieces, segments));
}

async fn look(inner: &Arc<dyn ObjectStore>, pieces: u64, segments: u64) {
    println!("{pieces} pieces in {segments} segments");
    let (before, began) = (memory(), Instant::now());
    let volume = open(inner, 2, 2 * pieces).await;
    took("to open it", began);
    println!("  memory: {} MiB more", memory().saturating_sub(before) >> 20);

    let began = Instant::now();
    let whole = volume.state.read().map.whole(volume.opening.clone(), vec![1]);
    took("to copy the map, while all wait", began);
    let began = Instant::now();
    let object = volume.codec.object(Kind::Map, (1, volume.writer), &whole.encode()).1;
    took("to encode it", began);
    println!("  {} bytes", object.len());
    let began = Instant::now();
    volume.store.put("map/another", &[object], false).await.unwrap();
    took("to put it", began);
    volume.store.delete("map/another").await.unwrap();
    let began = Instant::now();
    let space = volume.state.read().map.segments.space();
    took("to say what space it takes, while all wait", began);
    assert_eq!(space.segments, segments);
    let began = Instant::now();
    let victims = {
        let state = volume.state.read();
        let segments = &state.map.segments;
        policy::victims(segments.sum(), segments.loose(), COMPACTION, pieces / 64)
    };
    took(&format!("to choose {} segments to gather, while all wait", victims.len()), began);

    // The whole map is written for each 1024 of these.
    let (mut flushes, mut random) = (Vec::new(), fastrand::Rng::with_seed(1));
    for n in 0..2500 {
        let began = Instant::now();
        write(&volume, random.u64(0..2 * pieces), 1, n).await.unwrap();
        volume.flush().await.unwrap();
        flushes.push(began.elapsed());
    }
    flushes.sort_unstable();
    let [.., third, second, last] = flushes[..] else { panic!() };
    println!(
        "  a write and its flush: {:?}; the longest {third:?}, {second:?}, {last:?}",
        flushes[1250]
    );
    let began = Instant::now();
    let snapshot = volume.snapshot(None).await.unwrap();
    took("to take a snapshot", began);
    volume.change(0, 2 * pieces, Chunk::Zero).await.unwrap();
    let began = Instant::now();
    volume.flush().await.unwrap();
    took("to trim all of it, and to flush", began);
    let began = Instant::now();
    volume.delete_snapshot(snapshot.name).await.unwrap();
    took("to delete the snapshot, but for its segments", began);
    volume.close().await.unwrap();
}
