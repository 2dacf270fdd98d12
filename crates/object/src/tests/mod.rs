//! Whole volumes over stores that fail, crash and are shared, in virtual time, against plain
//! models.

mod caches;
mod clones;
mod compaction;
mod crashes;
mod disk;
mod faults;
mod faulty;
mod fights;
mod flush_damage;
mod flush_faults;
mod folders;
mod full;
mod history;
mod host_cache;
mod large;
mod local;
mod mounts;
mod overlaps;
mod records;
mod seals;
mod snapshots;
mod suspends;

use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::format::{BLOCK, Chunk, Compression, ObjectKey, names};
use crate::log::{self, NotOpen, OpenRequest};
use crate::store::Store;
use crate::volume::policy::Compaction;
use crate::volume::{Fault, Part, Tuning, Volume};

/// Blocks of the volumes.
const BLOCKS: u64 = 64;

/// Returns a tuning with small batches, the smallest of which lie in their records, and a whole map
/// every few records, so that everything happens in a short run.
fn tuning() -> Tuning {
    Tuning {
        batch: 6,
        inline: 3,
        dirty: 32,
        age: Duration::from_secs(1),
        patience: Duration::from_secs(100),
        cache: 0,
        few: 4,
        compaction: Compaction { slack: 3 * BLOCK, few: 4, segment: 24, rate: 1 << 20 },
    }
}

/// Bit in the nonces of openings that have a key.
const SEALED: u128 = 1 << 120;

/// Returns the sealing bit of a seed's nonces: every second volume is encrypted.
fn sealed_by(seed: u64) -> u128 {
    if seed % 2 == 1 { SEALED } else { 0 }
}

fn key(digit: &str) -> ObjectKey {
    ObjectKey::from_hex(&digit.repeat(64)).unwrap()
}

/// Creates a request with this nonce. Every second one compresses.
fn request(nonce: u128) -> OpenRequest {
    // Sealing a block takes long without optimization, and these shrink to nothing.
    let compressed = nonce & (SEALED | 2) != 0;
    OpenRequest {
        device: None,
        size: Some(BLOCKS * BLOCK),
        lease: Duration::from_secs(2),
        host: "test".into(),
        nonce,
        flushes: None,
        accept_lost: None,
        patience: Some(Duration::from_secs(200)),
        key: (nonce & SEALED != 0).then(|| key("7")),
        from: None,
        clock: suspends::clock,
        compression: [Compression::None, Compression::Lz4][usize::from(compressed)],
    }
}

fn in_memory() -> Arc<dyn ObjectStore> {
    Arc::new(InMemory::new())
}

/// Returns the objects of the volume that `open` opens.
fn store_of(inner: &Arc<dyn ObjectStore>) -> Arc<Store> {
    Arc::new(Store::new(Arc::clone(inner), Path::from("a/volume")))
}

/// Runs a machine in virtual time. Its runtime ends with all of its tasks.
fn run<T>(future: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().unwrap().block_on(future)
}

async fn open_as(
    inner: &Arc<dyn ObjectStore>,
    nonce: u128,
    tuning: Tuning,
) -> Result<Arc<Volume>, NotOpen> {
    Volume::open(store_of(inner), request(nonce), tuning).await
}

/// Opens a volume of which a server has flushes in a file, and gives these up.
async fn open_giving_up(inner: &Arc<dyn ObjectStore>, nonce: u128) -> Arc<Volume> {
    let store = store_of(inner);
    let seen = log::see(&store, &request(nonce)).await.unwrap().unwrap();
    let request =
        OpenRequest { accept_lost: seen.unfinished.map(|before| before.id()), ..request(nonce) };
    Volume::open(store, request, tuning()).await.unwrap()
}

/// Opens a volume. By the nonce, the smallest batches lie in their records, all of them do, or
/// none.
async fn open(inner: &Arc<dyn ObjectStore>, nonce: u128) -> Result<Arc<Volume>, NotOpen> {
    let cache = [0, 64 << 10, 2 << 20][(nonce % 3) as usize];
    let inline = [3, 64, 0][(nonce / 2 % 3) as usize];
    open_as(inner, nonce, Tuning { cache, inline, ..tuning() }).await
}

/// Returns the bytes of all objects in the store that exist for their data, and of those that are
/// needed. A record exists for its data if it lies in front of the newest map.
async fn stored(volume: &Volume) -> (u64, u64) {
    let segments = volume.store.list("seg").await.unwrap();
    let mut names: Vec<String> = segments.iter().map(|name| format!("seg/{name}")).collect();
    let records = volume.store.list("log").await.unwrap();
    let needed = {
        let state = volume.state.read();
        let segments = &state.map.segments;
        let has_data = |seq| segments.needed(seq).is_some_and(|segment| segment.in_record);
        let records = records.iter().map(|name| name.parse().unwrap());
        let records = records
            .filter(|seq| has_data(*seq) || *seq < state.mapped && !state.epochs.contains(seq));
        names.extend(records.map(names::record));
        let live = segments.iter().map(|(_, segment)| segment);
        let all = live.chain(segments.kept().map(|(_, kept)| &kept.segment));
        all.filter(|segment| segment.home == 0).map(|segment| segment.bytes).sum()
    };
    let mut bytes = 0;
    for name in names {
        bytes += volume.store.size(&name).await.unwrap();
    }
    (bytes, needed)
}

/// Deletes all objects of a store.
async fn wipe(inner: &Arc<dyn ObjectStore>) {
    for one in inner.list(None).try_collect::<Vec<_>>().await.unwrap() {
        inner.delete(&one.location).await.unwrap();
    }
}

/// Returns the objects with data that the map points to.
fn lies_in(volume: &Volume) -> Vec<String> {
    volume.state.read().map.segments.iter().map(|(_, segment)| segment.name()).collect()
}

/// Copies the objects of one store into another one.
async fn copy(from: &Arc<dyn ObjectStore>, to: &Arc<dyn ObjectStore>) {
    for one in from.list(None).try_collect::<Vec<_>>().await.unwrap() {
        let bytes = from.get(&one.location).await.unwrap().bytes().await.unwrap();
        to.put(&one.location, bytes.into()).await.unwrap();
    }
}

/// Waits until `time` of virtual time has passed: no real time does.
async fn passes(time: Duration) {
    tokio::time::sleep_until(tokio::time::Instant::now() + time).await;
}

/// Writes blocks that all hold `what`.
async fn write(volume: &Arc<Volume>, start: u64, len: u64, what: u32) -> Result<(), Fault> {
    let mut data = vec![0; (len * BLOCK) as usize];
    data.chunks_exact_mut(4).for_each(|word| word.copy_from_slice(&what.to_le_bytes()));
    let chunk = Chunk::Data(data.into());
    // Like the driver, half of the writes first try without waiting.
    if what % 2 == 1 && volume.change_at_once(start, len, || chunk.clone()) {
        return Ok(());
    }
    volume.change(start, len, chunk).await
}

/// Writes a range by requests that fit what may wait for the store.
async fn write_all(volume: &Arc<Volume>, start: u64, len: u64, what: u32) {
    for at in (start..start + len).step_by(6) {
        write(volume, at, 6.min(start + len - at), what).await.unwrap();
    }
}

/// Returns the content of the blocks of a range: 0 is zero.
async fn read(volume: &Arc<Volume>, start: u64, len: u64) -> Result<Vec<u32>, Fault> {
    let mut said = Vec::new();
    let at_once = if start % 2 == 1 { volume.read_at_once(start, len) } else { None };
    let parts = match at_once {
        Some(parts) => parts,
        None => volume.read(start, len).await?,
    };
    for part in parts {
        match part {
            Part::Zero(blocks) => said.extend((0..blocks).map(|_| 0)),
            Part::Data(data) => said.extend(data.chunks_exact(BLOCK as usize).map(|block| {
                let what = u32::from_le_bytes(block[..4].try_into().unwrap());
                assert!(block.chunks_exact(4).all(|word| word == what.to_le_bytes()), "torn");
                what
            })),
        }
    }
    assert_eq!(said.len() as u64, len);
    Ok(said)
}
