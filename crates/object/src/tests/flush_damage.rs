//! A flush file that is damaged, cut off, emptied or missing when its volume is opened: all flushed
//! changes are there, or the opening is refused.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use object_store::ObjectStore;
use object_store::memory::InMemory;

use super::disk::{Disk, Loss};
use super::local::open_with;
use super::{in_memory, open_giving_up, passes, read, request, run, store_of, tuning, write};
use crate::format::OpeningId;
use crate::local::{FileHead, Medium};
use crate::log::{self, FlushesMissing, NotOpen, OpenRequest};
use crate::volume::opening;
use crate::volume::{Tuning, Volume};

/// Bytes of a head. Two of them are at the beginning of the file.
const HEAD: usize = 4096;
/// Number of changes that are flushed, each by itself, and that only the file has.
const FLUSHED: u64 = 5;

fn with(store: &InMemory) -> Arc<dyn ObjectStore> {
    Arc::new(store.fork())
}

/// Returns store and disk of a server that was killed after `sessions` orderly sessions and one
/// with changes that only the file has.
fn killed_after(sessions: u128) -> (InMemory, Arc<Disk>) {
    let store = Arc::new(InMemory::new());
    let inner: Arc<dyn ObjectStore> = store.clone();
    let disk = Arc::new(Disk::default());
    run(async {
        for nonce in 0..sessions {
            let volume = open_with(&inner, &disk, 4 * nonce + 4, tuning()).await.unwrap();
            write(&volume, 40, 1, 40).await.unwrap();
            volume.flush().await.unwrap();
            volume.close().await.unwrap();
        }
        let volume = open_with(&inner, &disk, 4 * sessions + 4, tuning()).await.unwrap();
        for n in 0..FLUSHED {
            // Even numbers make it deterministic which thread does it.
            write(&volume, n, 1, 2 * n as u32 + 2).await.unwrap();
            volume.flush().await.unwrap();
        }
    });
    (store.fork(), disk.killed())
}

/// Returns the opening of the server that has flushes in a file and didn't close the volume.
fn unfinished(store: &InMemory) -> OpeningId {
    let store = store_of(&with(store));
    let seen = run(log::see(&store, &request(0))).unwrap().unwrap();
    seen.unfinished.unwrap().id()
}

/// Returns the number of flushed changes that a volume has, from the first one on.
async fn kept(volume: &Arc<Volume>) -> u64 {
    let found = read(volume, 0, FLUSHED).await.unwrap();
    let is_there = |(n, what): &(u32, u32)| *what == 2 * n + 2;
    let kept = (0..).zip(&found).take_while(|(n, what)| is_there(&(*n, **what))).count();
    assert!(found[kept..].iter().all(|what| *what == 0), "no prefix: {found:?}");
    kept as u64
}

/// Copies a disk and damages the copy.
fn damaged(disk: &Disk, damage: impl FnOnce(&mut Vec<u8>)) -> Arc<Disk> {
    let copy = disk.killed();
    damage(&mut copy.state.lock().now);
    copy
}

/// Opens a volume with a disk, and returns how many flushed changes it has then.
fn opened(
    store: &InMemory,
    disk: &Arc<Disk>,
    accept_lost: Option<OpeningId>,
) -> Result<u64, NotOpen> {
    let inner = with(store);
    run(async {
        let store = store_of(&inner);
        let request = OpenRequest { accept_lost, ..request(400) };
        let volume =
            opening::open(Arc::clone(disk) as Arc<dyn Medium>, store, request, tuning()).await?;
        Ok(kept(&volume).await)
    })
}

#[test]
fn either_head_may_be_damaged_at_any_time_and_nothing_is_lost() {
    for sessions in 0..4 {
        let (store, disk) = killed_after(sessions);
        for head in 0..2 {
            // Damage to its magic, its words, its checksum, and all of it.
            for at in [0, 20, 45, 73, 81] {
                let disk = damaged(&disk, |bytes| bytes[head * HEAD + at] ^= 1);
                assert_eq!(opened(&store, &disk, None), Ok(FLUSHED), "{sessions} {head} {at}");
            }
            for byte in [0, 0xff] {
                let disk = damaged(&disk, |bytes| bytes[head * HEAD..][..HEAD].fill(byte));
                assert_eq!(opened(&store, &disk, None), Ok(FLUSHED), "{sessions} {head} {byte}");
            }
        }
    }
}

#[test]
fn a_volume_whose_flushes_were_given_up_is_outdated_until_it_is_changed() {
    let (store, disk) = killed_after(1);
    let last = HEAD * 2 + (FLUSHED as usize - 1) * (4096 + 80) + 99;
    let flipped = damaged(&disk, |bytes| bytes[last] ^= 1);
    for (file, kept_ones) in [(damaged(&disk, Vec::clear), 0), (flipped, FLUSHED - 1)] {
        let (inner, server) = (with(&store), unfinished(&store));
        let open = |file: &Arc<Disk>, nonce, accept_lost| {
            let store = store_of(&inner);
            let request = OpenRequest { accept_lost, ..request(nonce) };
            opening::open(Arc::clone(file) as Arc<dyn Medium>, store, request, tuning())
        };
        let is_outdated = |volume: &Volume| volume.opening.outdated.is_some();
        run(async {
            let volume = open(&file, 400, Some(server)).await.unwrap();
            assert!(is_outdated(&volume));
            assert_eq!(kept(&volume).await, kept_ones);
            volume.close().await.unwrap();
            // The previous opening changed nothing.
            let volume = open(&file, 404, None).await.unwrap();
            assert!(is_outdated(&volume));
            write(&volume, 50, 1, 50).await.unwrap();
            volume.close().await.unwrap();
            let volume = open(&file, 408, Some(server)).await.unwrap();
            assert!(!is_outdated(&volume));
        });
    }
    let inner = with(&store);
    let volume = run(open_with(&inner, &disk, 400, tuning())).unwrap();
    assert!(volume.opening.outdated.is_none(), "nothing is lost");
}

#[test]
fn a_file_without_the_heads_of_the_last_server_is_refused_until_its_flushes_are_given_up() {
    for sessions in 0..3 {
        let (store, disk) = killed_after(sessions);
        let server = unfinished(&store);
        let empty = damaged(&disk, Vec::clear);
        let (zeroed, cut) = (
            damaged(&disk, |bytes| bytes.fill(0)),
            damaged(&disk, |bytes| {
                // A tool may truncate a file and restore its length.
                bytes[20] ^= 1;
                bytes[HEAD..].fill(0);
            }),
        );
        for (disk, words) in [
            (empty, "is new or empty"),
            (zeroed, "is new or empty"),
            (cut, "has two damaged heads"),
            (
                damaged(&disk, |bytes| [20, HEAD + 20].iter().for_each(|at| bytes[*at] ^= 1)),
                "has two damaged heads",
            ),
            (Arc::default(), "is new or empty"),
        ] {
            let before = disk.state.lock().now.clone();
            let refused = opened(&store, &disk, None);
            let Err(NotOpen::FlushesMissing(missing)) = refused else {
                panic!("{sessions} {words}: {refused:?}")
            };
            let found = missing.found.as_deref();
            assert_eq!((missing.id(), found), (server, Some(words)), "{sessions}");
            assert!(disk.state.lock().now == before, "a file that is refused is left alone");
            // The acceptance for another server doesn't count, nor one for a server of the same
            // epoch of a volume that was here before.
            let FlushesMissing { epoch, nonce, .. } = missing;
            for other in [OpeningId::new(epoch + 1, nonce), OpeningId::new(epoch, !nonce)] {
                let other = opened(&store, &disk, Some(other));
                assert!(matches!(other, Err(NotOpen::FlushesMissing(_))), "{other:?}");
            }
            assert_eq!(opened(&store, &disk, Some(server)), Ok(0), "{sessions} {words}");
        }
    }
}

#[test]
fn a_volume_with_flushes_in_a_file_is_not_opened_without_that_file_and_nobody_is_fenced_for_it() {
    let inner = in_memory();
    let disk = Arc::new(Disk::default());
    run(async {
        let volume = open_with(&inner, &disk, 4, tuning()).await.unwrap();
        write(&volume, 0, 1, 2).await.unwrap();
        volume.flush().await.unwrap();
        let refused = super::open(&inner, 6).await.unwrap_err();
        assert!(
            matches!(&refused, NotOpen::FlushesMissing(FlushesMissing { found: None, epoch: 1, host, .. }) if host == "test"),
            "{refused:?}"
        );
        volume.flush().await.unwrap();
        let first = volume.writer();
        volume.close().await.unwrap();
        // A server that is stopped in order leaves everything in the store.
        let volume = super::open(&inner, 8).await.unwrap();
        assert_eq!(kept(&volume).await, 1);
        volume.close().await.unwrap();
        // The number of a server stands for that one alone.
        let _volume = open_with(&inner, &Arc::default(), 10, tuning()).await.unwrap();
        let store = store_of(&inner);
        let request = OpenRequest {
            accept_lost: Some(OpeningId::new(first.epoch, first.nonce)),
            ..request(12)
        };
        let refused = Volume::open(store, request, tuning()).await.unwrap_err();
        assert!(matches!(refused, NotOpen::FlushesMissing(_)), "{refused:?}");
        open_giving_up(&inner, 14).await;
    });
}

#[test]
fn damage_of_what_was_flushed_is_refused_and_the_changes_in_front_of_it_are_kept_where_it_is_given_up()
 {
    let (store, disk) = killed_after(1);
    let server = unfinished(&store);
    // Each entry has a head and a block, the last one, too.
    let entry = 4096 + 80;
    for n in 0..FLUSHED as usize {
        for at in [3, 9, 60, 999] {
            let disk = damaged(&disk, |bytes| bytes[2 * HEAD + n * entry + at] ^= 1);
            let refused = opened(&store, &disk, None);
            assert!(
                matches!(&refused, Err(NotOpen::Local(why)) if why.contains("the file is damaged")),
                "{n} {at}: {refused:?}"
            );
            assert_eq!(opened(&store, &disk, Some(server)), Ok(n as u64), "{n} {at}");
        }
    }
    // No block of the disk takes an entry together with all that proves it.
    for block in 2..2 + FLUSHED as usize {
        let disk = damaged(&disk, |bytes| bytes[block * 4096..][..4096].fill(0));
        let refused = opened(&store, &disk, None);
        assert!(
            matches!(&refused, Err(NotOpen::Local(why)) if why.contains("the file is damaged")),
            "{block}: {refused:?}"
        );
    }
    let disk = damaged(&disk, |bytes| bytes.truncate(2 * HEAD + 4 * entry + 9));
    let before = disk.state.lock().now.clone();
    let refused = opened(&store, &disk, None);
    assert!(
        matches!(&refused, Err(NotOpen::Local(why)) if why.contains("the file was truncated")),
        "{refused:?}"
    );
    assert!(disk.state.lock().now == before, "a file that is refused is left alone");
    assert_eq!(opened(&store, &disk, Some(server)), Ok(4));
}

/// Returns the newest head of a disk's flush file.
fn newest_head(disk: &Disk) -> FileHead {
    let bytes = disk.state.lock().now.clone();
    let heads = bytes.chunks(HEAD).take(2).filter_map(FileHead::decode);
    heads.max_by_key(|head| head.generation).unwrap()
}

#[test]
fn a_file_in_which_all_behind_its_heads_is_zeroed_is_refused() {
    let whole = Arc::new(InMemory::new());
    let inner: Arc<dyn ObjectStore> = whole.clone();
    let disk = Arc::new(Disk::default());
    let (store, disk) = run(async {
        // The store gets nothing by itself.
        let tuning = Tuning { age: Duration::from_secs(10_000), batch: 32, ..tuning() };
        let volume = open_with(&inner, &disk, 4, tuning).await.unwrap();
        for n in 0..FLUSHED {
            write(&volume, n, 1, 2 * n as u32 + 2).await.unwrap();
            volume.flush().await.unwrap();
        }
        while newest_head(&disk).synced < FLUSHED {
            passes(Duration::from_secs(1)).await;
        }
        // The change lies behind those that the head covers.
        write(&volume, FLUSHED, 1, 2).await.unwrap();
        volume.flush().await.unwrap();
        let killed = (whole.fork(), disk.killed());
        volume.flush_to_store().await.unwrap();
        killed
    });
    let server = unfinished(&store);
    assert_eq!(opened(&store, &disk.killed(), None), Ok(FLUSHED), "nothing is wrong with it");
    let entry = 4096 + 80;
    for first in 0..FLUSHED as usize {
        let zeroed = damaged(&disk, |bytes| bytes[2 * HEAD + first * entry..].fill(0));
        let refused = opened(&store, &zeroed, None);
        let words = format!("the changes from {} to {FLUSHED} are missing", first + 1);
        assert!(
            matches!(&refused, Err(NotOpen::Local(why)) if why.contains(&words)),
            "{first}: {refused:?}"
        );
        assert_eq!(opened(&store, &zeroed, Some(server)), Ok(first as u64));
    }
    let last = damaged(&disk, |bytes| bytes[2 * HEAD + FLUSHED as usize * entry..].fill(0));
    assert_eq!(opened(&store, &last, None), Ok(FLUSHED), "of the last one nothing tells");
    // Nothing is missing if the store has it all.
    let zeroed = damaged(&disk, |bytes| bytes[2 * HEAD..].fill(0));
    assert_eq!(opened(&whole, &zeroed, None), Ok(FLUSHED));
}

#[test]
fn a_machine_that_is_lost_while_a_head_is_renewed_loses_nothing() {
    // The store gets nothing by itself.
    let tuning = Tuning { age: Duration::from_secs(10_000), batch: 32, ..tuning() };
    for at in 1.. {
        let inner = Arc::new(InMemory::new());
        let disk = Arc::new(Disk::default());
        let (lossy, mut flushed) = (inner.clone() as Arc<dyn ObjectStore>, 0);
        let lossy = disk.lose(&lossy, Loss::File(at));
        let is_done = run(async {
            let Ok(volume) = open_with(&lossy, &disk, 4, tuning).await else { return false };
            for n in 0..FLUSHED {
                // If the machine is lost, the store is silent, too.
                if write(&volume, n, 1, 2 * n as u32 + 2).await.is_err()
                    || volume.flush().await.is_err()
                {
                    return false;
                }
                flushed = n + 1;
                passes(Duration::from_millis(1100)).await;
            }
            true
        });
        for seed in 0..8 {
            let left = disk.after(&mut Rng::with_seed(seed));
            let found = opened(&inner, &left, None);
            assert!(found.as_ref().is_ok_and(|kept| *kept >= flushed), "{at}, {seed}: {found:?}");
        }
        if is_done && newest_head(&disk).synced == FLUSHED {
            assert!(at > 20, "only {at} operations");
            return;
        }
    }
}

/// The state that an interrupted opening begins with.
#[derive(Clone, Copy, Debug)]
enum Before {
    /// Neither a volume nor a file exists.
    Nothing,
    Closed,
    /// The file has changes that the store lacks.
    Lost,
    /// Another server had the volume since, and closed it.
    Other,
}

impl Before {
    fn make(self) -> (InMemory, Arc<Disk>, u64) {
        let (store, disk) = match self {
            Before::Nothing => return (InMemory::new(), Arc::default(), 0),
            _ => killed_after(1),
        };
        if let Before::Lost = self {
            return (store, disk, FLUSHED);
        }
        let store = Arc::new(store);
        let inner: Arc<dyn ObjectStore> = store.clone();
        run(async {
            open_with(&inner, &disk, 404, tuning()).await.unwrap().close().await.unwrap();
            if let Before::Other = self {
                super::open(&inner, 406).await.unwrap().close().await.unwrap();
            }
        });
        (store.fork(), disk.killed(), FLUSHED)
    }
}

/// Opens a volume on a machine that is lost meanwhile. Returns the disk as it is then, and whether
/// the machine was lost.
fn interrupted(
    store: &Arc<dyn ObjectStore>,
    disk: &Arc<Disk>,
    at: Loss,
    seed: u64,
) -> (Arc<Disk>, bool) {
    let lossy = disk.lose(store, at);
    let lost = run(async {
        let Ok(volume) = open_with(&lossy, disk, 408, tuning()).await else { return true };
        // It is lost at once in any case.
        drop(volume);
        false
    });
    (disk.after(&mut Rng::with_seed(seed)), lost)
}

#[test]
fn an_opening_that_is_interrupted_anywhere_is_never_refused_later() {
    let long = std::env::var_os("COREWISE_LONG").is_some();
    for before in [Before::Nothing, Before::Closed, Before::Lost, Before::Other] {
        let (start, disk, flushed) = before.make();
        for of_store in [false, true] {
            for at in 1.. {
                let loss = if of_store { Loss::Store(at) } else { Loss::File(at) };
                let mut lost = false;
                for seed in 0..if long { 5 } else { 1 } {
                    let store = with(&start);
                    let copy = disk.killed();
                    let (mut left, was_lost) = interrupted(&store, &copy, loss, seed);
                    lost |= was_lost;
                    // The machine is lost again during the next opening.
                    for again in [Loss::File(1 + seed), Loss::Store(at.min(12) + 9 * seed)] {
                        left = interrupted(&store, &left, again, seed + at).0;
                    }
                    // With a damaged head, too, the content is right or refused.
                    for head in (0..2).filter(|_| long || at % 4 == 0) {
                        let fork = with(&start);
                        let (other, _) = interrupted(&fork, &disk.killed(), loss, seed);
                        let other = damaged(&other, |bytes| {
                            if let Some(byte) = bytes.get_mut(head * HEAD + 20) {
                                *byte ^= 1;
                            }
                        });
                        let opened = run(async {
                            let volume = open_with(&fork, &other, 412, tuning()).await.ok()?;
                            Some(kept(&volume).await)
                        });
                        assert!(opened.is_none_or(|kept| kept == flushed), "{before:?} {loss:?}");
                    }
                    let kept = run(async {
                        let volume = open_with(&store, &left, 412, tuning()).await;
                        kept(&volume.unwrap_or_else(|why| panic!("{before:?} {loss:?}: {why:?}")))
                            .await
                    });
                    assert_eq!(kept, flushed, "{before:?} {loss:?}");
                }
                if !lost {
                    assert!(at > 4, "{before:?}: only {at} operations");
                    break;
                }
            }
        }
    }
}
