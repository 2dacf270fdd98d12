//! Flushes in a file: the machine is lost at each write and sync of it, the file fails, is full,
//! and is late.

use std::sync::Arc;
use std::time::Duration;

use corewise_sync::Mutex;
use object_store::ObjectStore;

use super::disk::{Disk, Loss};
use super::faulty::{FaultOutcome, adjustable, judged};
use super::history::{History, Rates};
use super::{
    BLOCKS, in_memory, open_as, open_giving_up, read, request, run, sealed_by, store_of, tuning,
    write,
};
use crate::local::FlushFile;
use crate::log::NotOpen;
use crate::volume::opening;
use crate::volume::{Fault, Tuning, Volume};

pub(super) async fn open_with(
    inner: &Arc<dyn ObjectStore>,
    disk: &Arc<Disk>,
    nonce: u128,
    tuning: Tuning,
) -> Result<Arc<Volume>, NotOpen> {
    opening::open(Arc::clone(disk) as _, store_of(inner), request(nonce), tuning).await
}

async fn open_file(
    inner: &Arc<dyn ObjectStore>,
    path: &std::path::Path,
    nonce: u128,
) -> Result<Arc<Volume>, NotOpen> {
    let file = Arc::new(FlushFile::open(path).unwrap());
    opening::open(file, store_of(inner), request(nonce), tuning()).await
}

/// Runs once: the machine is lost at `at` in each of its lives, and soon again while its remains
/// are put into the store. Returns whether that point came.
fn lose_it_at(at: Loss, seed: u64) -> bool {
    let inner = in_memory();
    let mut random = fastrand::Rng::with_seed(seed);
    let sealed = sealed_by(seed >> 32);
    let mut history = History::default();
    let mut disk = Arc::new(Disk::default());
    let mut lost = false;
    for life in 0..3u128 {
        let store = disk.lose(&inner, at);
        // With the longer age the head is renewed before the store has it all.
        let age = Duration::from_secs(if life == 1 { 5 } else { 1 });
        let tuning = Tuning { age, ..tuning() };
        let rates = Rates { flushes: 4, pause: 900 };
        run(async {
            lost |= match open_with(&store, &disk, sealed | life << 2, tuning).await {
                Ok(volume) => !history.work(&volume, &mut random, rates).await,
                Err(_) => true,
            };
        });
        disk = disk.after(&mut random);
        for soon in 1..3 {
            let soon_at = match random.bool() {
                true => Loss::File(random.u64(1..4)),
                false => Loss::Store(random.u64(8..40)),
            };
            let store = disk.lose(&inner, soon_at);
            run(async { drop(open_with(&store, &disk, sealed | life << 2 | soon, tuning).await) });
            disk = disk.after(&mut random);
        }
        let found = run(async {
            let opened = open_with(&inner, &disk, sealed | life << 2 | 3, tuning).await;
            let volume = opened.unwrap_or_else(|why| panic!("{at:?}, seed {seed}: {why:?}"));
            let found = read(&volume, 0, BLOCKS).await.unwrap();
            volume.close().await.unwrap();
            found
        });
        history.goes_on_from(found, &format!("lost at {at:?}, seed {seed}, life {life}"));
    }
    lost
}

#[test]
fn whenever_the_machine_is_lost_what_was_flushed_into_the_file_is_there_and_the_rest_is_a_prefix() {
    let long = std::env::var_os("COREWISE_LONG").is_some();
    for seed in 0..if long { 40 } else { 2 } {
        let mut at = 1;
        while lose_it_at(Loss::File(at), seed << 32 | at) {
            at += if long { 1 } else { 3 };
        }
        assert!(at > 15, "only {at} operations");
        let mut at = 1;
        while lose_it_at(Loss::Store(at), seed << 32 | at) {
            at += if long { 1 } else { 20 };
        }
        assert!(at > 40, "only {at} requests");
    }
}

/// Creates a volume whose machine was lost after one flush into its file, of which the store has
/// nothing.
fn left(inner: &Arc<dyn ObjectStore>) -> Arc<Disk> {
    let disk = Arc::new(Disk::default());
    run(async {
        let volume = open_with(inner, &disk, 1, tuning()).await.unwrap();
        write(&volume, 0, 2, 1).await.unwrap();
        volume.flush_to_store().await.unwrap();
        write(&volume, 1, 2, 2).await.unwrap();
        volume.flush().await.unwrap();
        // The store got no request for it.
        write(&volume, 5, 1, 3).await.unwrap();
    });
    disk.after(&mut fastrand::Rng::with_seed(1))
}

#[test]
fn a_file_is_never_put_over_what_another_server_wrote() {
    let inner = in_memory();
    let disk = left(&inner);
    run(async {
        let other = open_giving_up(&inner, 2).await;
        let Err(NotOpen::Local(why)) = open_with(&inner, &disk, 3, tuning()).await else {
            panic!("it was opened")
        };
        assert!(why.contains("1 changes (8192 bytes)") && why.contains("delete the file"), "{why}");
        // No server was fenced for it.
        write(&other, 0, 1, 9).await.unwrap();
        other.flush().await.unwrap();
    });
    // It isn't put into another volume, either.
    run(async {
        let other = in_memory();
        let refused = open_with(&other, &disk, 3, tuning()).await;
        let says = |changes: &String| changes == "1 change";
        let is = matches!(&refused, Err(NotOpen::NoVolumeOfFile { changes, .. }) if says(changes));
        assert!(is, "{refused:?}");
        drop(open_as(&other, 4, tuning()).await.unwrap());
        let refused = open_with(&other, &disk, 3, tuning()).await;
        let is = matches!(&refused, Err(NotOpen::Local(why)) if why.contains("1 change of another volume"));
        assert!(is, "{refused:?}");
    });
}

#[test]
fn a_file_that_is_something_else_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("letter");
    std::fs::write(&path, "Dear reader").unwrap();
    let refused = run(open_file(&in_memory(), &path, 1)).unwrap_err();
    assert!(
        matches!(&refused, NotOpen::Local(why) if why.contains("not a flush file")),
        "{refused:?}"
    );
    assert_eq!(std::fs::read(&path).unwrap(), b"Dear reader");
    let path = folder.path().join("new");
    let opened = FlushFile::open(&path).unwrap();
    let refused = FlushFile::open(&path).unwrap_err().to_string();
    assert!(refused.contains("another server has the file"), "{refused}");
    drop(opened);
    assert!(!path.exists(), "no volume was opened with it");
}

/// Changes a byte of the disk.
fn flip(disk: &Disk, at: usize) {
    disk.state.lock().now[at] ^= 1;
}

#[test]
fn a_file_whose_newest_head_is_damaged_is_not_taken_for_an_older_one() {
    for rounds in 1..6 {
        let inner = in_memory();
        let disk = Arc::new(Disk::default());
        let head = |slot: usize| disk.state.lock().now[slot * 4096 + 8];
        run(async {
            let volume = open_with(&inner, &disk, 1, tuning()).await.unwrap();
            let mut n = 0;
            // Each round writes a new head, and a little more behind it.
            while head(0).max(head(1)) <= 1 + rounds {
                n += 1;
                write(&volume, 0, 6, n).await.unwrap();
                volume.flush().await.unwrap();
                volume.flush_to_store().await.unwrap();
            }
            for n in 0..rounds {
                write(&volume, 8 + u64::from(n), 1, 7).await.unwrap();
                volume.flush().await.unwrap();
            }
        });
        let newest = usize::from(head(1) > head(0));
        let disk = disk.after(&mut fastrand::Rng::with_seed(1));
        flip(&disk, newest * 4096 + 20);
        run(async {
            match open_with(&inner, &disk, 2, tuning()).await {
                Ok(volume) => assert_eq!(read(&volume, 8, 1).await.unwrap(), [7]),
                Err(NotOpen::Local(why)) => assert!(why.contains("damaged"), "{why}"),
                Err(other) => panic!("{other:?}"),
            }
        });
    }
}

#[test]
fn a_file_whose_changes_are_in_the_store_is_begun_anew_though_another_server_came_between() {
    let inner = in_memory();
    let disk = Arc::new(Disk::default());
    run(async {
        let volume = open_with(&inner, &disk, 1, tuning()).await.unwrap();
        write(&volume, 0, 1, 1).await.unwrap();
        volume.flush().await.unwrap();
        volume.close().await.unwrap();
        let other = super::open(&inner, 2).await.unwrap();
        write(&other, 0, 1, 2).await.unwrap();
        other.close().await.unwrap();
        let volume = open_with(&inner, &disk, 3, tuning()).await.unwrap();
        assert_eq!(read(&volume, 0, 1).await.unwrap(), [2]);
    });
}

#[test]
fn a_file_that_fails_has_flushes_wait_for_the_store() {
    let inner = in_memory();
    let disk = Arc::new(Disk::default());
    run(async {
        let volume = open_with(&inner, &disk, 1, tuning()).await.unwrap();
        write(&volume, 0, 1, 1).await.unwrap();
        volume.flush().await.unwrap();
        disk.state.lock().fails = true;
        write(&volume, 1, 1, 2).await.unwrap();
        volume.flush().await.unwrap();
        let other = open_giving_up(&inner, 2).await;
        assert_eq!(read(&other, 0, 2).await.unwrap(), [1, 2]);
    });
}

#[test]
fn a_volume_that_is_closed_while_the_store_is_gone_leaves_all_in_the_file() {
    let inner = in_memory();
    let disk = Arc::new(Disk::default());
    let (failing, fate) = adjustable(&inner);
    run(async {
        let volume = open_with(&failing, &disk, 1, tuning()).await.unwrap();
        fate.lock().0 = FaultOutcome::Refused;
        write(&volume, 0, 2, 7).await.unwrap();
        let closed = volume.close().await;
        assert!(
            matches!(&closed, Err(Fault::Store(why)) if why.ends_with("; the flush file has all flushed writes: start the server again with it")),
            "{closed:?}"
        );
    });
    let disk = disk.after(&mut fastrand::Rng::with_seed(1));
    run(async {
        let volume = open_with(&inner, &disk, 2, tuning()).await.unwrap();
        assert_eq!(read(&volume, 0, 2).await.unwrap(), [7, 7]);
    });
}

#[test]
fn a_volume_that_is_not_closed_says_what_became_of_recent_writes() {
    let inner = in_memory();
    let is_refused = Arc::new(Mutex::new("nothing"));
    let theirs = Arc::clone(&is_refused);
    let judge = move |what: &str| {
        let fate =
            if what.contains(*theirs.lock()) { FaultOutcome::Refused } else { FaultOutcome::Done };
        (fate, Duration::ZERO)
    };
    let failing = judged(&inner, judge);
    run(async {
        let volume = super::open(&failing, 1).await.unwrap();
        *is_refused.lock() = "";
        write(&volume, 0, 2, 7).await.unwrap();
        let Err(Fault::Store(why)) = volume.close().await else { panic!("it was closed") };
        assert!(why.ends_with("; recent writes may be lost"), "{why}");
        // Only the record of the end is missing.
        *is_refused.lock() = "nothing";
        volume.flush().await.unwrap();
        *is_refused.lock() = "put";
        let Err(Fault::Store(why)) = volume.close().await else { panic!("it was closed") };
        assert!(why.contains("the store has all writes"), "{why}");
    });
}

#[test]
fn the_file_is_used_round_and_round_and_never_over_what_the_store_lacks() {
    let inner = in_memory();
    let disk = Arc::new(Disk::default());
    let size = opening::ring(&tuning());
    run(async {
        let volume = open_with(&inner, &disk, 1, tuning()).await.unwrap();
        for n in 1..2000 {
            write(&volume, u64::from(n) % 60, 4, n).await.unwrap();
            volume.flush().await.unwrap();
        }
        // Without the file, two requests each would be needed.
        assert!(volume.store.usage().puts < 3000, "{:?}", volume.store.usage());
    });
    let disk = disk.after(&mut fastrand::Rng::with_seed(1));
    assert!(disk.state.lock().now.len() as u64 <= size + 8192);
    run(async {
        let volume = open_with(&inner, &disk, 2, tuning()).await.unwrap();
        assert_eq!(read(&volume, 19, 4).await.unwrap(), [1999; 4]);
    });
}
