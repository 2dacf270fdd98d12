//! A store without room: writes are refused before it is full, and trims and deletions continue.

use std::sync::Arc;
use std::time::Duration;

use corewise_sync::Mutex;
use futures_util::stream::TryStreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore};

use super::faulty::{FaultOutcome, Faulty};
use super::{in_memory, passes, read, request, tuning, write};
use crate::format::{BLOCK, Chunk};
use crate::log::OpenRequest;
use crate::store::{Measure, Store, StoreRoom};
use crate::volume::{Fault, Tuning, Volume};

const MIB: u64 = 1 << 20;
/// Bytes of a store that has a reserve.
const TOTAL: u64 = 64 * MIB;

/// A store with limited room, of which others may take some.
#[derive(Debug)]
struct Disk {
    inner: Arc<dyn ObjectStore>,
    /// L: is the lock; guards the bytes that others have taken.
    others: Mutex<u64>,
}

impl Disk {
    fn new() -> Arc<Self> {
        Arc::new(Self { inner: in_memory(), others: Mutex::default() })
    }

    /// Gives others all of it but `bytes`.
    fn leave(&self, bytes: u64) {
        let mut others = self.others.lock();
        *others = 0;
        *others = TOTAL - self.used() - bytes;
    }

    fn give_back(&self) {
        *self.others.lock() = 0;
    }

    /// Returns the bytes of objects. A store in memory never waits.
    fn used(&self) -> u64 {
        let all = self.inner.list(None).try_collect::<Vec<ObjectMeta>>();
        let all = futures_util::FutureExt::now_or_never(all).unwrap().unwrap();
        all.iter().map(|one| one.size).sum()
    }

    fn free(&self) -> u64 {
        TOTAL.saturating_sub(self.used() + *self.others.lock())
    }
}

impl Measure for Disk {
    fn room(&self) -> Option<StoreRoom> {
        Some(StoreRoom { total: TOTAL, free: self.free() })
    }
}

/// Blocks of the volumes: four times as many as there is room for.
const BLOCKS: u64 = 4 * TOTAL / BLOCK;
/// Blocks of a write.
const WRITE: u64 = MIB / BLOCK;

async fn open(disk: &Arc<Disk>, nonce: u128, inline: u64) -> Arc<Volume> {
    let judge = Box::new(|_: &str| (FaultOutcome::Done, Duration::ZERO));
    let mut faulty = Faulty::new(&disk.inner, judge);
    let room = Arc::clone(disk);
    faulty.fits = Some(Arc::new(move |bytes| bytes <= room.free()));
    let store = Store::new(Arc::new(faulty), Path::from("a")).measured(Arc::clone(disk) as _);
    let patience = Duration::from_secs(10);
    // Only lack of room makes a map due.
    let tuning = Tuning { batch: 256, inline, dirty: 4096, few: 10_000, patience, ..tuning() };
    // Blocks with one repeated word would be compressed.
    let compression = crate::Compression::None;
    let request = OpenRequest { size: Some(BLOCKS * BLOCK), compression, ..request(nonce) };
    Volume::open(Arc::new(store), request, tuning).await.unwrap()
}

/// Writes until there is no room. Returns the megabytes that it took.
async fn fill(volume: &Arc<Volume>) -> u64 {
    for n in 0.. {
        match write(volume, n * WRITE, WRITE, n as u32 + 1).await {
            Ok(()) => {}
            Err(Fault::Full(why)) => {
                assert!(why.contains("bytes are free"), "{why}");
                return n;
            }
            other => panic!("{other:?}"),
        }
    }
    unreachable!("it has no end")
}

async fn trim(volume: &Arc<Volume>, from: u64, to: u64) {
    volume.change(from * WRITE, (to - from) * WRITE, Chunk::Zero).await.unwrap();
    volume.flush().await.unwrap();
    // The deletions complete meanwhile.
    passes(Duration::from_secs(30)).await;
}

/// Limits that put data into segments, and into records.
const INLINE: [u64; 2] = [0, 256];

#[tokio::test(start_paused = true)]
async fn writes_are_refused_while_there_is_room_for_all_that_was_taken_and_trims_make_room_again() {
    for inline in INLINE {
        let disk = Disk::new();
        let volume = open(&disk, 1, inline).await;
        let took = fill(&volume).await;
        // An eighth is kept, and the reserve.
        assert!((48..=55).contains(&took), "{took}");
        assert!(volume.condition().is_some_and(|why| why.starts_with("the object store is full")));
        volume.flush().await.unwrap();
        trim(&volume, 0, 16).await;
        let again = fill(&volume).await;
        assert!((12..=16).contains(&again), "{again}, of 16 that were trimmed");
        volume.flush().await.unwrap();
        trim(&volume, 20, took).await;
        write(&volume, 0, WRITE, 99).await.unwrap();
        assert_eq!(volume.condition(), None);
        volume.close().await.unwrap();
        let volume = open(&disk, 3, inline).await;
        assert_eq!(read(&volume, 0, WRITE).await.unwrap(), [99; WRITE as usize]);
        assert_eq!(read(&volume, 18 * WRITE, 1).await.unwrap(), [19]);
        assert_eq!(read(&volume, 21 * WRITE, 1).await.unwrap(), [0]);
    }
}

#[tokio::test(start_paused = true)]
async fn trims_and_deletions_go_on_where_others_have_taken_all_of_the_room() {
    for inline in INLINE {
        let disk = Disk::new();
        let volume = open(&disk, 1, inline).await;
        for n in 0..8 {
            write(&volume, n * WRITE, WRITE, 7).await.unwrap();
        }
        volume.snapshot(Some("s".into())).await.unwrap();
        passes(Duration::from_secs(10)).await;
        disk.leave(0);
        // The next server finds it, too.
        volume.close().await.unwrap();
        let volume = open(&disk, 3, inline).await;
        assert!(matches!(write(&volume, 0, 1, 8).await, Err(Fault::Full(_))));
        assert!(disk.used() >= 8 * MIB);
        trim(&volume, 0, 8).await;
        volume.delete_snapshot("s".into()).await.unwrap();
        passes(Duration::from_secs(60)).await;
        // The reserve exists again.
        assert!((MIB..MIB + MIB / 8).contains(&disk.used()), "{}", disk.used());
        disk.give_back();
        write(&volume, 0, 1, 9).await.unwrap();
        volume.flush().await.unwrap();
        assert_eq!(read(&volume, 0, 2).await.unwrap(), [9, 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_has_room_again_is_full_no_more_though_nobody_writes() {
    for inline in INLINE {
        let disk = Disk::new();
        open(&disk, 1, inline).await.close().await.unwrap();
        disk.leave(2 * MIB);
        let volume = open(&disk, 3, inline).await;
        assert!(matches!(write(&volume, 0, 1, 8).await, Err(Fault::Full(_))));
        passes(Duration::from_secs(30)).await;
        assert!(volume.refusal().is_some_and(|refusal| refusal.why.contains("bytes are free")));
        disk.give_back();
        passes(Duration::from_secs(2)).await;
        assert_eq!(volume.refusal(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_flush_says_that_the_store_is_full_and_loses_nothing() {
    let disk = Disk::new();
    let volume = open(&disk, 1, 0).await;
    write(&volume, 0, WRITE, 7).await.unwrap();
    // Others are faster, and take the reserve's room, too.
    disk.leave(0);
    let failed = volume.flush().await;
    assert!(matches!(&failed, Err(Fault::Full(why)) if why.contains("in time")), "{failed:?}");
    assert!(matches!(write(&volume, 0, 1, 8).await, Err(Fault::Full(_))));
    disk.give_back();
    passes(Duration::from_secs(10)).await;
    volume.flush().await.unwrap();
    write(&volume, 1, 1, 8).await.unwrap();
    assert_eq!(read(&volume, 0, 3).await.unwrap(), [7, 8, 7]);
}
