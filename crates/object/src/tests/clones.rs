//! A clone begins with the content of its snapshot, and keeps it, whatever happens to its parent: a
//! snapshot under a clone is never deleted.

use std::sync::Arc;
use std::time::Duration;

use corewise_sync::Mutex;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use super::crashes::until;
use super::faulty::{FAILS, FaultOutcome, but_for, by_chance, judged};
use super::{
    BLOCKS, SEALED, in_memory, open, open_as, passes, read, request, run, sealed_by, tuning, write,
};
use crate::format::{Chunk, names};
use crate::log::clone::{self, CloneMark};
use crate::log::{CloneSource, NotOpen, OpenRequest};
use crate::store::Store;
use crate::volume::{Fault, Tuning, Volume};

/// Location of the volume that `open` opens.
const PARENT: &str = "a/volume";

fn from(parent: &str, snapshot: &str) -> Option<CloneSource> {
    Some(CloneSource { parent: parent.into(), snapshot: snapshot.into() })
}

async fn open_at(
    inner: &Arc<dyn ObjectStore>,
    place: &str,
    nonce: u128,
    from: Option<CloneSource>,
) -> Result<Arc<Volume>, NotOpen> {
    let store = Store::new(Arc::clone(inner), Path::from(place));
    let request = OpenRequest { size: None, from, ..request(nonce) };
    Volume::open(Arc::new(store), request, tuning()).await
}

async fn all(volume: &Arc<Volume>) -> Vec<u32> {
    read(volume, 0, BLOCKS).await.unwrap()
}

/// Writes some blocks, of which two lie in their record, and takes a snapshot `s`.
async fn begins_with(parent: &Arc<Volume>) {
    super::write_all(parent, 0, 24, 7).await;
    parent.flush().await.unwrap();
    write(parent, 20, 2, 7).await.unwrap();
    parent.snapshot(Some("s".into())).await.unwrap();
    let in_record =
        parent.state.read().map.segments.iter().filter(|(_, one)| one.in_record).count();
    assert_eq!(in_record, 1);
}

/// Overwrites everything, so that no earlier data is needed.
async fn overwrite(volume: &Arc<Volume>, what: u32) {
    super::write_all(volume, 0, BLOCKS, what).await;
    volume.flush().await.unwrap();
    passes(Duration::from_secs(60)).await;
}

async fn clone_and_parent_go_their_ways(sealed: u128) {
    let inner = in_memory();
    let parent = super::open_as(&inner, 1 | sealed, tuning()).await.unwrap();
    begins_with(&parent).await;
    let mut model = vec![0; BLOCKS as usize];
    model[..24].fill(7);
    write(&parent, 0, 1, 8).await.unwrap();

    let clone = open_at(&inner, "b#", 2 | sealed, from(PARENT, "s")).await.unwrap();
    assert_eq!(all(&clone).await, model);
    assert_eq!(read(&parent, 0, 2).await.unwrap(), [8, 7], "it is served on");
    assert_eq!(clone.state.read().map.segments.space().stored, 0);
    let shared = clone.state.read().map.segments.space().shared;
    assert!(shared > 0);
    write(&clone, 1, 1, 9).await.unwrap();
    model[1] = 9;
    overwrite(&parent, 10).await;
    assert_eq!(parent.snapshots().await.unwrap()[0].clones, ["b%23"]);
    let refused = parent.delete_snapshot("s".into()).await;
    assert!(
        matches!(refused, Err(Fault::Refused(why)) if why.contains("has clones") && why.ends_with("b%23"))
    );
    assert_eq!(parent.store.list("gone").await.unwrap(), [""; 0]);

    // It has no map of its own at first, and gets one later.
    clone.flush().await.unwrap();
    let clone = open_at(&inner, "b#", 4 | sealed, from(PARENT, "s")).await.unwrap();
    assert_eq!(all(&clone).await, model);
    for what in 20..30 {
        write(&clone, u64::from(what), 1, what).await.unwrap();
        model[what as usize] = what;
        clone.flush().await.unwrap();
    }
    assert!(clone.state.read().map.segments.space().shared <= shared);
    let snapshot = clone.snapshot(Some("t".into())).await.unwrap();
    assert_eq!(snapshot.clones, [""; 0]);
    let clone = open_at(&inner, "b#", 6 | sealed, None).await.unwrap();
    assert_eq!(all(&clone).await, model);
    assert!(!clone.store.list("map").await.unwrap().is_empty());

    // A clone of the clone, which has data of both.
    let second = open_at(&inner, "c", 8 | sealed, from("b%23", "t")).await.unwrap();
    overwrite(&clone, 11).await;
    let refused = parent.delete_snapshot("s".into()).await;
    assert!(matches!(refused, Err(Fault::Refused(_))), "the clone's own snapshot needs it");
    assert_eq!(all(&second).await, model);
    overwrite(&second, 12).await;
    // It needs nothing of its parent any more, which then needs nothing of its own.
    clone.delete_snapshot("t".into()).await.unwrap();
    overwrite(&clone, 13).await;
    parent.delete_snapshot("s".into()).await.unwrap();
    passes(Duration::from_secs(60)).await;
    assert_eq!(parent.store.list("clones").await.unwrap(), [""; 0]);
    assert_eq!(parent.state.read().map.segments.space().snapshots, 0);
    for (place, what) in [("b#", 13), ("c", 12)] {
        let volume = open_at(&inner, place, 10 | sealed, None).await.unwrap();
        assert_eq!(all(&volume).await, [what; BLOCKS as usize]);
    }
    assert_eq!(all(&parent).await, [10; BLOCKS as usize]);
}

#[test]
fn a_clone_begins_with_its_snapshot_goes_its_own_way_and_leaves_its_parent_when_it_needs_nothing_of_it()
 {
    run(clone_and_parent_go_their_ways(0));
    run(clone_and_parent_go_their_ways(SEALED));
}

#[tokio::test(start_paused = true)]
async fn a_clone_is_listed_once_and_one_that_is_not_there_is_not() {
    let inner = in_memory();
    let parent = open(&inner, 1).await.unwrap();
    begins_with(&parent).await;
    let clones = async || parent.snapshots().await.unwrap().remove(0).clones;
    // Its maker is lost behind Mark, twice; then another is faster.
    for nonce in [2, 4] {
        let store = Store::new(Arc::clone(&inner), Path::from("b"));
        let request = OpenRequest { size: None, ..request(nonce) };
        clone::begin(&store, &request, &from(PARENT, "s").unwrap()).await.unwrap();
    }
    assert_eq!(clones().await, [""; 0]);
    let clone = open_at(&inner, "b", 6, from(PARENT, "s")).await.unwrap();
    assert_eq!(parent.store.list("clones").await.unwrap().len(), 3);
    assert_eq!(clones().await, ["b"]);
    overwrite(&clone, 9).await;
    assert_eq!(clones().await, [""; 0]);
    parent.delete_snapshot("s".into()).await.unwrap();
    assert_eq!(parent.store.list("clones").await.unwrap(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn what_can_not_be_a_clone_is_refused_and_nothing_is_written() {
    let inner = in_memory();
    let parent = open(&inner, 1 | SEALED).await.unwrap();
    parent.snapshot(Some("s".into())).await.unwrap();
    let origin = async |place, nonce, from| match open_at(&inner, place, nonce, from).await {
        Err(NotOpen::Origin(why)) => why,
        other => panic!("{other:?}"),
    };
    let why = origin("b", 2 | SEALED, from(PARENT, "t")).await;
    assert!(why.contains("no snapshot 't'"), "{why}");
    let why = origin("b", 2 | SEALED, from("d", "s")).await;
    assert!(why.contains("d: there is no volume"), "{why}");
    let without_key = open_at(&inner, "b", 2, from(PARENT, "s")).await;
    assert!(matches!(without_key, Err(NotOpen::Key(_))), "{without_key:?}");
    let store = Arc::new(Store::new(Arc::clone(&inner), Path::from("b")));
    let request = |nonce| OpenRequest {
        size: Some(4096),
        from: from(PARENT, "s"),
        ..request(nonce | SEALED)
    };
    let shorter = Volume::open(Arc::clone(&store), request(3), tuning()).await;
    assert!(matches!(shorter, Err(NotOpen::Size { .. })), "{shorter:?}");
    for folder in ["log", "seg", "map", "try"] {
        assert_eq!(store.list(folder).await.unwrap(), [""; 0]);
    }
    assert_eq!(parent.store.list("clones").await.unwrap(), [""; 0]);
    // The volume exists.
    let why = origin(PARENT, 2 | SEALED, from("b", "s")).await;
    assert!(why.contains("is not a clone"), "{why}");
    drop(open_at(&inner, "b", 2 | SEALED, from(PARENT, "s")).await.unwrap());
    let why = origin("b", 4 | SEALED, from(PARENT, "t")).await;
    assert!(why.contains("a clone of the snapshot 's' of a/volume"), "{why}");
    let shorter = Volume::open(store, request(5), tuning()).await;
    assert!(matches!(shorter, Err(NotOpen::Size { .. })), "{shorter:?}");
}

#[tokio::test(start_paused = true)]
async fn a_clone_leaves_its_parent_with_the_record_since_which_it_needs_nothing_of_it() {
    let inner = in_memory();
    let parent = open(&inner, 1).await.unwrap();
    super::write_all(&parent, 0, 24, 7).await;
    parent.snapshot(Some("s".into())).await.unwrap();
    let clone = open_at(&inner, "b", 2, from(PARENT, "s")).await.unwrap();
    clone.change(1, BLOCKS - 1, Chunk::Zero).await.unwrap();
    clone.flush().await.unwrap();
    passes(Duration::from_secs(60)).await;
    assert_eq!(parent.snapshots().await.unwrap()[0].clones, ["b"]);
    clone.change(0, 1, Chunk::Zero).await.unwrap();
    clone.flush().await.unwrap();
    passes(Duration::from_secs(60)).await;
    assert_eq!(parent.snapshots().await.unwrap()[0].clones, [""; 0]);
    parent.delete_snapshot("s".into()).await.unwrap();
    let clone = open_at(&inner, "b", 4, None).await.unwrap();
    assert_eq!(all(&clone).await, [0; BLOCKS as usize]);
}

#[tokio::test(start_paused = true)]
async fn a_clones_mark_that_is_damaged_keeps_its_snapshot_and_no_other_from_being_listed_and_deleted()
 {
    let inner = in_memory();
    let parent = open(&inner, 1).await.unwrap();
    let number = parent.snapshot(Some("s".into())).await.unwrap().number;
    parent.snapshot(Some("t".into())).await.unwrap();
    let mark = CloneMark { snapshot: number, nonce: 7 };
    parent.store.put(&mark.name(), &[vec![7; 100].into()], true).await.unwrap();
    let all = parent.snapshots().await.unwrap();
    assert!(all[0].clones[0].contains(&mark.name()), "{all:?}");
    assert_eq!(all[1].clones, [""; 0]);
    let refused = parent.delete_snapshot("s".into()).await;
    assert!(matches!(refused, Err(Fault::Damaged(_))), "{refused:?}");
    parent.delete_snapshot("t".into()).await.unwrap();
}

/// Checks, without faults, that either the clone and the snapshot exist, or no clone does, after a
/// clone was made, its snapshot deleted, or both at once.
async fn clone_or_none(inner: &Arc<dyn ObjectStore>, sealed: u128, was_made: bool, when: &str) {
    let mut parent = open(inner, 50 | sealed).await.unwrap();
    overwrite(&parent, 8).await;
    let there = !parent.snapshots().await.unwrap().is_empty();
    let clone = open_at(inner, "b", 52 | sealed, None).await;
    match (&clone, there) {
        (Ok(clone), true) => assert_eq!(all(clone).await[..24], [7; 24], "{when}"),
        (Ok(_), false) => panic!("{when}: a clone without its snapshot"),
        (Err(NotOpen::NoVolume | NotOpen::Origin(_)), _) => {
            assert!(!was_made, "{when}: it was made, and isn't there: {clone:?}");
        }
        (Err(why), _) => panic!("{when}: {why:?}"),
    }
    // The snapshot can be deleted now, unless the clone exists, however far the deletion had come.
    let deleted = match there {
        true => parent.delete_snapshot("s".into()).await.map(drop),
        false => Ok(()),
    };
    assert_eq!(deleted.is_ok(), clone.is_err(), "{when}: {deleted:?}");
    if clone.is_err() {
        passes(Duration::from_secs(60)).await;
        // The announcement of an earlier writer is deleted at the opening after the one that
        // deleted the map.
        parent = open(inner, 54 | sealed).await.unwrap();
        passes(Duration::from_secs(60)).await;
        for folder in ["clones", "gone", "snap"] {
            let left = parent.store.list(folder).await.unwrap();
            assert_eq!(left, [""; 0], "{when}: {folder}");
        }
        assert_eq!(parent.state.read().map.segments.space().snapshots, 0);
    }
    assert_eq!(all(&parent).await, [8; BLOCKS as usize], "{when}");
}

/// Creates a volume with a snapshot `s`, closed.
async fn parent(inner: &Arc<dyn ObjectStore>, sealed: u128) {
    let parent = super::open_as(inner, 1 | sealed, tuning()).await.unwrap();
    begins_with(&parent).await;
    parent.close().await.unwrap();
}

#[test]
fn wherever_the_machine_is_lost_while_a_clone_is_made_it_is_whole_or_not_there() {
    let long = std::env::var_os("COREWISE_LONG").is_some();
    for (last, seed) in
        [(FaultOutcome::Done, 1), (FaultOutcome::Unsaid, 2), (FaultOutcome::Refused, 3)]
    {
        let mut made = false;
        let mut at = 1;
        while !made {
            let inner = in_memory();
            let sealed = sealed_by(seed + at);
            run(parent(&inner, sealed));
            let store = until(&inner, at, last);
            // The runtime ends with all of its tasks, as the machine does.
            made = run(async {
                let clone = open_at(&store, "b", 2 | sealed, from(PARENT, "s")).await;
                let hangs = tokio::time::timeout(Duration::from_secs(1), passes(Duration::ZERO));
                hangs.await.unwrap();
                clone.is_ok()
            });
            let when = format!("lost at {at} ({last:?})");
            run(clone_or_none(&inner, sealed, false, &when));
            at += if long { 1 } else { 3 };
        }
        assert!(at > 30, "only {at} requests");
    }
}

#[test]
fn wherever_the_machine_is_lost_while_a_snapshot_is_deleted_a_clone_of_it_is_whole_or_not_there() {
    let long = std::env::var_os("COREWISE_LONG").is_some();
    for (last, seed) in
        [(FaultOutcome::Done, 1), (FaultOutcome::Unsaid, 2), (FaultOutcome::Refused, 3)]
    {
        let mut deleted = false;
        let mut at = 28;
        while !deleted {
            let inner = in_memory();
            let sealed = sealed_by(seed + at);
            run(parent(&inner, sealed));
            let store = until(&inner, at, last);
            deleted = run(async {
                let Ok(parent) = open(&store, 2 | sealed).await else { return false };
                parent.delete_snapshot("s".into()).await.is_ok()
            });
            let made = run(async {
                let clone = open_at(&inner, "b", 4 | sealed, from(PARENT, "s")).await;
                clone.is_ok()
            });
            let when = format!("lost at {at} ({last:?}), cloned: {made}");
            run(clone_or_none(&inner, sealed, false, &when));
            at += if long { 1 } else { 2 };
        }
    }
}

/// Races a server that makes a clone, another one that makes the same, one that deletes its
/// snapshot, and one that fences that one and deletes it, too.
fn race(seed: u64) -> (bool, bool) {
    run(async {
        let sealed = sealed_by(seed);
        let inner = in_memory();
        parent(&inner, sealed).await;
        let mut random = fastrand::Rng::with_seed(seed);
        let mut faulty = || judged(&inner, by_chance(random.fork(), FAILS, 60));
        let (first, second, one, other) = (faulty(), faulty(), faulty(), faulty());
        let making = async |store, nonce, wait| {
            passes(Duration::from_millis(wait)).await;
            open_at(&store, "b", nonce | sealed, from(PARENT, "s")).await.ok()
        };
        let deleting = async |store, nonce, wait, then| {
            passes(Duration::from_millis(wait)).await;
            let Ok(parent) = open(&store, nonce | sealed).await else { return false };
            passes(Duration::from_millis(then)).await;
            parent.delete_snapshot("s".into()).await.is_ok()
        };
        let mut wait = |most| random.u64(0..most);
        let (clone, again, gone, also) = tokio::join!(
            making(first, 2, wait(1500)),
            making(second, 4, wait(3000)),
            deleting(one, 6, wait(500), wait(900)),
            deleting(other, 8, wait(3000), wait(500)),
        );
        let (made, deleted) = (clone.is_some() || again.is_some(), gone || also);
        let when = format!("seed {seed}, made {made}, deleted {deleted}");
        assert!(!(made && deleted), "{when}");
        drop((clone, again));
        clone_or_none(&inner, sealed, made, &when).await;
        (made, deleted)
    })
}

#[test]
fn of_a_clone_and_the_deletion_of_its_snapshot_at_most_one_comes_about() {
    let long = std::env::var_os("COREWISE_LONG").is_some();
    let seeds = if long { 4000 } else { 60 };
    let (mut clones, mut deletions) = (0, 0);
    for (made, deleted) in (0..seeds).map(race) {
        (clones, deletions) = (clones + u64::from(made), deletions + u64::from(deleted));
    }
    assert!(clones > seeds / 8 && deletions > seeds / 8, "{clones}, {deletions} of {seeds}");
}

#[tokio::test(start_paused = true)]
async fn a_late_request_that_withdraws_an_announcement_does_nothing_to_the_next_one() {
    let inner = in_memory();
    parent(&inner, 0).await;
    let (second, mut first) = (Duration::from_secs(1), true);
    let judge = move |request: &str| match request {
        _ if request.starts_with("delete a/volume/gone/") && std::mem::take(&mut first) => {
            (FaultOutcome::Late, 5 * second)
        }
        // This leaves time before the snapshot is dropped.
        _ if request.starts_with("put a/volume/log/") => (FaultOutcome::Done, 10 * second),
        _ => (FaultOutcome::Done, Duration::ZERO),
    };
    let store = judged(&inner, judge);
    let deleter = open(&store, 2).await.unwrap();
    drop(open_at(&inner, "b", 4, from(PARENT, "s")).await.unwrap());
    let refused = deleter.delete_snapshot("s".into()).await;
    assert!(matches!(refused, Err(Fault::Refused(_))), "{refused:?}");
    // The clone is given up, and the next attempt continues until its record.
    inner.delete(&Path::from(format!("b/{}", names::record(1)))).await.unwrap();
    let deleting = tokio::spawn(async move { deleter.delete_snapshot("s".into()).await });
    passes(6 * second).await;
    let made = open_at(&inner, "c", 6, from(PARENT, "s")).await;
    assert!(matches!(&made, Err(NotOpen::Origin(why)) if why.contains("is being deleted")));
    assert!(deleting.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_clone_that_looked_before_the_announcement_was_there_is_found_by_the_deletion() {
    let inner = in_memory();
    parent(&inner, 0).await;
    let takes = (FaultOutcome::Done, Duration::from_secs(5));
    let deleter = open(&but_for(&inner, "put a/volume/gone/", move || takes), 2).await.unwrap();
    let deleting = tokio::spawn(async move { deleter.delete_snapshot("s".into()).await });
    passes(Duration::from_secs(2)).await;
    let clone = open_at(&inner, "b", 4, from(PARENT, "s")).await.unwrap();
    let refused = deleting.await.unwrap();
    assert!(matches!(refused, Err(Fault::Refused(_))), "{refused:?}");
    assert_eq!(all(&clone).await[..24], [7; 24]);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_fenced_takes_back_no_announcement_of_the_next_one() {
    let inner = in_memory();
    parent(&inner, 0).await;
    let second = Duration::from_secs(1);
    // It gives up after 15 seconds, and withdraws its announcement.
    let fails = but_for(&inner, "list a/volume/clones", || (FaultOutcome::Refused, Duration::ZERO));
    let first = Tuning { patience: 15 * second, ..tuning() };
    let first = open_as(&fails, 2, first).await.unwrap();
    tokio::spawn(async move { first.delete_snapshot("s".into()).await });
    passes(second).await;
    // Ten seconds for its first record, and as much until it drops the snapshot.
    let slow = but_for(&inner, "put a/volume/log/", move || (FaultOutcome::Done, 10 * second));
    let next = open(&slow, 4).await.unwrap();
    let deleting = tokio::spawn(async move { next.delete_snapshot("s".into()).await });
    passes(6 * second).await;
    let made = open_at(&inner, "b", 6, from(PARENT, "s")).await;
    assert!(matches!(made, Err(NotOpen::Origin(_))), "{made:?}");
    assert!(deleting.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_clone_that_needs_no_data_of_its_parent_and_has_no_map_yet_does_not_leave() {
    let inner = in_memory();
    parent(&inner, 0).await;
    let without = but_for(&inner, "put b/map/", || (FaultOutcome::Refused, Duration::ZERO));
    for nonce in [2, 4] {
        let store = Arc::new(Store::new(Arc::clone(&without), Path::from("b")));
        let request = OpenRequest { size: None, from: from(PARENT, "s"), ..request(nonce) };
        let clone = Volume::open(store, request, Tuning { few: 1000, ..tuning() }).await.unwrap();
        overwrite(&clone, 9).await;
    }
    let parent = open(&inner, 6).await.unwrap();
    let refused = parent.delete_snapshot("s".into()).await;
    assert!(matches!(refused, Err(Fault::Refused(_))), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn an_announcement_stays_as_long_as_the_map_of_a_snapshot_that_was_dropped() {
    let inner = in_memory();
    parent(&inner, 0).await;
    // A server that has read the snapshot, and leaves its mark when all is over.
    let fate = Arc::new(Mutex::new(FaultOutcome::Refused));
    let theirs = Arc::clone(&fate);
    let store = but_for(&inner, "put a/volume/clones/", move || (*theirs.lock(), Duration::ZERO));
    let making = async move { open_at(&store, "b", 2, from(PARENT, "s")).await.map(drop) };
    let making = tokio::spawn(making);
    passes(Duration::from_secs(1)).await;
    // Neither the server that drops the snapshot nor the next one can delete its map.
    let patience = Duration::from_secs(20);
    let store =
        but_for(&inner, "delete a/volume/snap/", || (FaultOutcome::Refused, Duration::ZERO));
    for nonce in [4, 6] {
        let server = open_as(&store, nonce, Tuning { patience, ..tuning() }).await.unwrap();
        let _ = server.delete_snapshot("s".into()).await;
        assert!(server.state.read().map.snapshots.is_empty());
        passes(2 * patience).await;
    }
    *fate.lock() = FaultOutcome::Done;
    let made = making.await.unwrap();
    assert!(
        matches!(&made, Err(NotOpen::Origin(why)) if why.contains("is being deleted")),
        "{made:?}"
    );
}

/// A volume of a family: its location, its content, and the content of each of its snapshots.
struct FamilyMember {
    place: String,
    volume: Arc<Volume>,
    holds: Vec<u32>,
    snapshots: Vec<(String, Vec<u32>)>,
}

/// Runs random operations on volumes, their snapshots, clones of these, and so on.
async fn family(seed: u64, store: &Arc<dyn ObjectStore>) {
    let sealed = sealed_by(seed);
    let mut random = fastrand::Rng::with_seed(seed);
    let mut nonce = 2;
    let volume = open(store, sealed).await.unwrap();
    let holds = vec![0; BLOCKS as usize];
    let mut all_of =
        vec![FamilyMember { place: PARENT.into(), volume, holds, snapshots: Vec::new() }];
    for step in 1..160_u32 {
        nonce += 2;
        let n = random.usize(0..all_of.len());
        let many = all_of.len();
        let one = &mut all_of[n];
        let start = random.u64(0..BLOCKS);
        let len = random.u64(1..=(BLOCKS - start).min(20));
        let range = start as usize..(start + len) as usize;
        match random.u8(0..16) {
            0 => {
                let name = format!("s{step}");
                one.volume.snapshot(Some(name.clone())).await.unwrap();
                one.snapshots.push((name, one.holds.clone()));
            }
            1 | 2 if !one.snapshots.is_empty() => {
                let which = random.usize(0..one.snapshots.len());
                let name = one.snapshots[which].0.clone();
                match one.volume.delete_snapshot(name).await {
                    Ok(_) => drop(one.snapshots.remove(which)),
                    Err(Fault::Refused(why)) => assert!(why.contains("has clones"), "{why}"),
                    Err(other) => panic!("seed {seed}: {other:?}"),
                }
            }
            3 | 4 if !one.snapshots.is_empty() && many < 5 => {
                let (name, holds) = one.snapshots[random.usize(0..one.snapshots.len())].clone();
                let place = format!("clone{step}");
                let of = from(&one.place, &name);
                let volume = open_at(store, &place, nonce | sealed, of).await.unwrap();
                all_of.push(FamilyMember { place, volume, holds, snapshots: Vec::new() });
            }
            5 => {
                if random.bool() {
                    one.volume.close().await.unwrap();
                } else {
                    one.volume.flush().await.unwrap();
                }
                one.volume = open_at(store, &one.place, nonce | sealed, None).await.unwrap();
            }
            6 => passes(Duration::from_secs(random.u64(0..20))).await,
            7 | 8 => {
                let found = read(&one.volume, start, len).await.unwrap();
                assert_eq!(found, one.holds[range], "seed {seed}, step {step}: {}", one.place);
            }
            9 => {
                one.volume.change(start, len, Chunk::Zero).await.unwrap();
                one.holds[range].fill(0);
            }
            _ => {
                write(&one.volume, start, len, step).await.unwrap();
                one.holds[range].fill(step);
            }
        }
    }
    for one in &all_of {
        let found = all(&one.volume).await;
        assert_eq!(found, one.holds, "seed {seed}: {}", one.place);
        for (name, holds) in &one.snapshots {
            nonce += 2;
            let place = format!("last{nonce}");
            let clone = open_at(store, &place, nonce | sealed, from(&one.place, name)).await;
            let found = all(&clone.unwrap()).await;
            assert_eq!(found, *holds, "seed {seed}: {} of {}", name, one.place);
        }
    }
}

#[test]
fn a_family_of_volumes_and_clones_agrees_with_a_model() {
    let long = std::env::var_os("COREWISE_LONG").is_some();
    for seed in 0..if long { 600 } else { 12 } {
        let inner = in_memory();
        let fates = if seed % 3 == 0 { FAILS } else { &FAILS[..1] };
        let store = judged(&inner, by_chance(fastrand::Rng::with_seed(seed), fates, 0));
        run(family(seed, &store));
    }
}
