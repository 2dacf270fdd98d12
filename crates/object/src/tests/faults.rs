//! A volume whose store fails by chance, lies, and is slow; and stores that are unfit.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicU32, Ordering};
use futures_util::{StreamExt, TryStreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::time::Instant;

use super::faulty::{Creation, FaultOutcome, Faulty, adjustable, but_for, by_chance, judged};
use super::{
    BLOCKS, in_memory, lies_in, open, open_as, passes, read, sealed_by, store_of, tuning, wipe,
    write,
};
use crate::format::{Chunk, names};
use crate::log::NotOpen;
use crate::volume::{Fault, Tuning};
use crate::volume::{ObjectEvent, Observer};

/// Works at random on a volume over `store`, and compares it with a model; then without the faults.
async fn agrees(store: &Arc<dyn ObjectStore>, inner: &Arc<dyn ObjectStore>, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut model = vec![0; BLOCKS as usize];
    for life in 0..3 {
        let volume = open(store, life | sealed_by(seed)).await.unwrap();
        for what in 1..80 {
            let start = random.u64(0..BLOCKS);
            let len = random.u64(1..=(BLOCKS - start).min(9));
            let range = start as usize..(start + len) as usize;
            match random.u8(0..8) {
                0 => {
                    volume.change(start, len, Chunk::Zero).await.unwrap();
                    model[range].fill(0);
                }
                1 => volume.flush().await.unwrap(),
                2 | 3 => assert_eq!(read(&volume, start, len).await.unwrap(), model[range]),
                _ => {
                    write(&volume, start, len, what).await.unwrap();
                    model[range].fill(what);
                }
            }
        }
        volume.flush().await.unwrap();
    }
    let volume = open(inner, 100 | sealed_by(seed)).await.unwrap();
    assert_eq!(read(&volume, 0, BLOCKS).await.unwrap(), model);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_lies_or_is_slow_is_asked_again_not_believed_and_waited_for() {
    use FaultOutcome::{Done, Forgotten, Refused, Unsaid};
    let cases: [(&'static [FaultOutcome], u64); 3] =
        [(&[Done, Refused], 0), (&[Done, Done, Unsaid, Forgotten], 5), (&[Done], 1000)];
    for (fates, most) in cases {
        for seed in 0..8 {
            let inner = in_memory();
            let store = judged(&inner, by_chance(fastrand::Rng::with_seed(seed), fates, most));
            agrees(&store, &inner, seed).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_creates_what_is_there_is_refused() {
    for creation in [Creation::Always, Creation::Racing] {
        let mut random = fastrand::Rng::with_seed(1);
        let judge = move |_: &str| (FaultOutcome::Done, Duration::from_millis(random.u64(1..5)));
        let mut faulty = Faulty::new(&in_memory(), Box::new(judge));
        faulty.creation = creation;
        let store: Arc<dyn ObjectStore> = Arc::new(faulty);
        assert!(matches!(open(&store, 1).await, Err(NotOpen::Unfit(_))), "{creation:?}");
        assert!(store.list(None).next().await.is_none(), "it leaves nothing behind");
    }
}

#[tokio::test(start_paused = true)]
async fn a_race_for_one_object_is_held_where_a_volume_is_made_and_at_no_later_start() {
    let store = in_memory();
    let puts = async |nonce| {
        let volume = open(&store, nonce).await.unwrap();
        let puts = volume.store.usage().puts;
        volume.close().await.unwrap();
        puts
    };
    let made = puts(1).await;
    assert_eq!((made - puts(2).await, puts(3).await), (7, 3), "one creator of eight");
}

#[tokio::test(start_paused = true)]
async fn a_flush_that_fails_loses_nothing() {
    let inner = in_memory();
    let (store, fate) = adjustable(&inner);
    let volume = open(&store, 1).await.unwrap();
    write(&volume, 0, 4, 7).await.unwrap();
    fate.lock().0 = FaultOutcome::Refused;
    let Err(Fault::Store(why)) = volume.flush().await else { panic!("it was flushed") };
    assert!(why.contains("in time: ") && why.contains("on purpose"), "{why}: and why that is");
    assert!(matches!(read(&volume, 0, 4).await, Err(Fault::Store(_))), "who has it isn't known");
    fate.lock().0 = FaultOutcome::Done;
    volume.flush().await.unwrap();
    assert_eq!(read(&volume, 0, 4).await.unwrap(), [7; 4]);
    let volume = open(&inner, 2).await.unwrap();
    assert_eq!(read(&volume, 0, 4).await.unwrap(), [7; 4]);
}

#[tokio::test(start_paused = true)]
async fn no_flush_waits_for_the_whole_map_and_no_record_is_deleted_before_it_is_there() {
    let inner = in_memory();
    let takes = Duration::from_secs(10);
    let store = but_for(&inner, "put a/volume/map/", move || (FaultOutcome::Done, takes));
    let volume = open(&store, 1).await.unwrap();
    let began = Instant::now();
    for n in 1..20 {
        write(&volume, u64::from(n) % 4, 1, n).await.unwrap();
        volume.flush().await.unwrap();
    }
    assert_eq!(began.elapsed(), Duration::ZERO, "a flush waited");
    let count = async |folder| volume.store.list(folder).await.unwrap().len();
    assert_eq!((count("map").await, count("log").await), (0, 20));
    passes(takes * 2).await;
    // The map is of one of these records. That record, all behind it, and the first one stay.
    assert_eq!(count("map").await, 1);
    assert!((2..20).contains(&count("log").await));
    let volume = open(&inner, 2).await.unwrap();
    assert_eq!(read(&volume, 0, 4).await.unwrap(), [16, 17, 18, 19]);
}

#[tokio::test(start_paused = true)]
async fn a_request_fails_within_the_patience_whatever_the_store_does() {
    let seconds = Duration::from_secs;
    let patience = seconds(100);
    let fates = [
        (FaultOutcome::Refused, seconds(0)),
        (FaultOutcome::Refused, seconds(14)),
        (FaultOutcome::Hangs, seconds(0)),
    ];
    for (fate, takes) in fates {
        let inner = in_memory();
        let away = Arc::new(Mutex::new((FaultOutcome::Done, Duration::ZERO)));
        let asked = Arc::new(AtomicU32::new(0));
        let (theirs, all) = (Arc::clone(&away), Arc::clone(&asked));
        let store = judged(&inner, move |_: &str| {
            all.fetch_add(1, Ordering::Relaxed);
            *theirs.lock()
        });
        // This one has no cache.
        let volume = open(&store, 3).await.unwrap();
        write(&volume, 0, 4, 7).await.unwrap();
        volume.flush().await.unwrap();
        *away.lock() = (fate, takes);
        let (began, before) = (Instant::now(), asked.load(Ordering::Relaxed));
        let Err(Fault::Store(why)) = read(&volume, 0, 4).await else { panic!("it was read") };
        assert!(why.contains("on purpose") || why.contains("no answer in 15s"), "{why}");
        let tries = asked.load(Ordering::Relaxed) - before;
        assert!((6..=100).contains(&tries), "{fate:?}: {tries} tries");
        assert!(began.elapsed() <= patience, "a read: {fate:?}: {:?}", began.elapsed());
        // The same holds if it has the blocks, and has to check which server has the volume.
        write(&volume, 0, 4, 8).await.unwrap();
        let began = Instant::now();
        assert!(matches!(read(&volume, 0, 4).await, Err(Fault::Store(_))));
        assert!(began.elapsed() <= patience, "a look: {fate:?}: {:?}", began.elapsed());
        let began = Instant::now();
        assert!(matches!(volume.flush().await, Err(Fault::Store(_))));
        assert!(began.elapsed() <= patience, "a flush: {fate:?}: {:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_that_come_slowly_are_waited_for_and_a_silence_among_them_is_not() {
    let inner = in_memory();
    let volume = open(&inner, 3).await.unwrap();
    write(&volume, 0, 4, 7).await.unwrap();
    volume.close().await.unwrap();
    let data = lies_in(&volume).remove(0);
    for (drip, name) in [(10, "slow"), (20, "silent")] {
        let judge = by_chance(fastrand::Rng::new(), &[FaultOutcome::Done], 0);
        let mut faulty = Faulty::new(&inner, Box::new(judge));
        faulty.drip = Duration::from_secs(drip);
        let store = store_of(&(Arc::new(faulty) as _));
        let got = store.get(&data, None).await;
        // Four parts take 40 seconds, and 15 seconds without one are too long.
        assert_eq!(got.is_ok(), drip < 15, "{name}: {got:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_connection_hangs_is_made_again_while_its_reader_waits() {
    let inner = in_memory();
    let next = Arc::new(Mutex::new(FaultOutcome::Done));
    let theirs = Arc::clone(&next);
    let once = move |_: &str| std::mem::replace(&mut *theirs.lock(), FaultOutcome::Done);
    let store = judged(&inner, move |request: &str| (once(request), Duration::ZERO));
    let volume = open(&store, 3).await.unwrap();
    write(&volume, 0, 4, 7).await.unwrap();
    volume.flush().await.unwrap();
    *next.lock() = FaultOutcome::Hangs;
    assert_eq!(read(&volume, 0, 4).await.unwrap(), [7; 4]);
}

#[tokio::test(start_paused = true)]
async fn names_that_come_slowly_are_waited_for_and_a_silence_among_them_is_not() {
    for (between, comes) in [(Duration::from_secs(2), true), (Duration::from_secs(200), false)] {
        let inner = InMemory::new();
        for n in 0..50 {
            inner.put(&Path::from(format!("a/volume/try/{n}")), "".into()).await.unwrap();
        }
        let slow = ThrottleConfig { wait_list_per_entry: between, ..Default::default() };
        let inner: Arc<dyn ObjectStore> = Arc::new(ThrottledStore::new(inner, slow));
        let listed = store_of(&inner).list("try").await;
        assert_eq!(listed.map(|names| names.len()).ok(), comes.then_some(50));
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_that_was_missing_once_is_told_once_and_until_the_volume_is_opened_again() {
    let inner = in_memory();
    let volume = open_as(&inner, 1, Tuning { inline: 0, ..tuning() }).await.unwrap();
    let (tell, told) = channel();
    volume.observe(Observer::new(move |event| tell.send(event.clone()).unwrap()));
    write(&volume, 0, 4, 7).await.unwrap();
    volume.flush().await.unwrap();
    write(&volume, 4, 4, 8).await.unwrap();
    volume.flush().await.unwrap();
    let names = lies_in(&volume);
    let was = volume.store.get(&names[0], None).await.unwrap();
    for name in &names {
        volume.store.delete(name).await.unwrap();
    }
    assert_eq!(volume.damage(), None);
    assert!(matches!(volume.read(0, 4).await, Err(Fault::Damaged(_))));
    assert!(matches!(volume.read(4, 4).await, Err(Fault::Damaged(_))));
    volume.store.put(&names[0], &[was], false).await.unwrap();
    assert_eq!(read(&volume, 0, 4).await.unwrap(), [7; 4]);
    let why = format!("{} is missing", names[0]);
    assert_eq!(volume.damage(), Some(why.clone()));
    assert_eq!(volume.condition(), Some(format!("data is missing or damaged: {why}")));
    assert!(!volume.has_ended() && !volume.is_fenced());
    let events: Vec<ObjectEvent> = told.try_iter().collect();
    assert_eq!(events, [ObjectEvent::Damaged { why }]);
    // Another server may well delete what this one asks for.
    let other = open_as(&inner, 3, tuning()).await.unwrap();
    assert!(matches!(volume.read(4, 4).await, Err(Fault::Fenced(_))));
    assert!(volume.is_fenced());
    assert_eq!(other.damage(), None, "nobody has asked for it");
}

#[tokio::test(start_paused = true)]
async fn what_a_fenced_server_misses_is_no_damage() {
    let inner = in_memory();
    let volume = open_as(&inner, 1, Tuning { inline: 0, ..tuning() }).await.unwrap();
    write(&volume, 0, 4, 7).await.unwrap();
    volume.flush().await.unwrap();
    let name = lies_in(&volume).remove(0);
    let _other = open_as(&inner, 3, tuning()).await.unwrap();
    volume.store.delete(&name).await.unwrap();
    assert!(matches!(volume.read(0, 4).await, Err(Fault::Fenced(_))));
    assert_eq!(volume.damage(), None);
}

#[tokio::test(start_paused = true)]
async fn a_record_that_is_missing_is_found_when_the_volume_is_opened() {
    let inner = in_memory();
    let volume = open(&inner, 1).await.unwrap();
    for n in 0..2 {
        write(&volume, n, 1, 7).await.unwrap();
        volume.flush().await.unwrap();
    }
    volume.store.delete(&names::record(2)).await.unwrap();
    let Err(NotOpen::Damaged(why)) = open(&inner, 2).await else { panic!("it was opened") };
    assert!(why.contains("record 2"), "{why}");
}

/// Mixes two volumes whose records have the same numbers: returns what the first becomes with some
/// of the second one's objects.
async fn mixed(foreign: impl Fn(&str) -> bool) -> Result<Vec<u32>, NotOpen> {
    let mine = in_memory();
    let other = in_memory();
    for (store, nonce, what) in [(&mine, 2, 7), (&other, 4, 8)] {
        let volume = open(store, nonce).await.unwrap();
        for _ in 0..6 {
            write(&volume, 0, 4, what).await.unwrap();
            volume.flush().await.unwrap();
        }
    }
    let names: Vec<_> = other.list(None).try_collect().await.unwrap();
    for name in names.into_iter().map(|found| found.location) {
        if foreign(name.as_ref()) {
            let bytes = other.get(&name).await.unwrap().bytes().await.unwrap();
            mine.put(&name, bytes.into()).await.unwrap();
        }
    }
    let volume = open(&mine, 6).await?;
    Ok(read(&volume, 0, 4).await.unwrap())
}

#[tokio::test(start_paused = true)]
async fn records_and_maps_of_another_volume_are_refused() {
    assert_eq!(mixed(|_| false).await, Ok(vec![7; 4]));
    for folder in ["log/00000000000000000007", "map/"] {
        let with_data = mixed(|name| name.contains(folder) || name.contains("seg/")).await;
        for opened in [with_data, mixed(|name| name.contains(folder)).await] {
            let Err(NotOpen::Damaged(why)) = opened else { panic!("{folder}: {opened:?}") };
            assert!(why.contains("belong to another volume?"), "{why}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_segment_that_is_empty_or_cut_off_is_an_error_at_once_and_not_when_patience_is_over() {
    for (inline, len) in [(0, 0), (0, 70), (4, 0), (4, 70)] {
        let inner = in_memory();
        let volume = open_as(&inner, 3, Tuning { inline, ..tuning() }).await.unwrap();
        write(&volume, 0, 4, 1).await.unwrap();
        volume.flush().await.unwrap();
        let name = lies_in(&volume).remove(0);
        let whole = volume.store.get(&name, None).await.unwrap();
        volume.store.put(&name, &[whole.slice(..len)], false).await.unwrap();
        let began = tokio::time::Instant::now();
        let found = read(&volume, 0, 4).await;
        assert!(
            matches!(&found, Err(Fault::Damaged(why)) if why.contains("too short")),
            "{found:?}"
        );
        assert_eq!(began.elapsed(), Duration::ZERO, "it waited");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_lost_what_was_written_answers_no_flush_once_a_lease_is_over() {
    let inner = in_memory();
    let volume = open(&inner, 3).await.unwrap();
    let flushed = async |what| {
        write(&volume, 0, 4, what).await?;
        volume.flush().await
    };
    flushed(1).await.unwrap();
    passes(Duration::from_secs(3)).await;
    flushed(2).await.unwrap();
    wipe(&inner).await;
    passes(Duration::from_secs(3)).await;
    let failed = flushed(3).await;
    assert!(
        matches!(&failed, Err(Fault::Damaged(why)) if why.contains("older state")),
        "{failed:?}"
    );
    assert_eq!(volume.state.read().dead.clone(), failed.err());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_lost_what_was_written_is_found_out_within_a_lease_however_often_is_flushed() {
    // Once with many maps, and once with none.
    for few in [4, 1000] {
        let inner = in_memory();
        let volume = open_as(&inner, 3, Tuning { few, ..tuning() }).await.unwrap();
        let flushed = async |what| {
            write(&volume, 0, 4, what).await?;
            volume.flush().await?;
            super::passes(Duration::from_millis(100)).await;
            Ok::<(), Fault>(())
        };
        for what in 0..100 {
            flushed(what).await.unwrap();
        }
        wipe(&inner).await;
        let lost = Instant::now();
        let failed = loop {
            if let Err(fault) = flushed(100).await {
                break fault;
            }
            assert!(lost.elapsed() < Duration::from_secs(3), "the lease is 2 seconds");
        };
        assert!(
            matches!(&failed, Fault::Damaged(why) if why.contains("older state")),
            "{failed:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_whose_uploads_or_records_panic_ends_and_nobody_waits_for_ever() {
    for request in ["put a/volume/seg", "put a/volume/log"] {
        let inner = in_memory();
        let is_bad = Arc::new(AtomicU32::new(0));
        let theirs = Arc::clone(&is_bad);
        let store = but_for(&inner, request, move || {
            assert_eq!(theirs.load(Ordering::Relaxed), 0, "on purpose");
            (FaultOutcome::Done, Duration::ZERO)
        });
        let volume = open_as(&store, 1, Tuning { inline: 0, ..tuning() }).await.unwrap();
        write(&volume, 0, 8, 1).await.unwrap();
        volume.flush().await.unwrap();
        is_bad.store(1, Ordering::Relaxed);
        write(&volume, 0, 8, 2).await.unwrap();
        let begun = Instant::now();
        let Err(Fault::Store(why)) = volume.flush().await else { panic!("{request}") };
        assert!(why.contains("a bug in corewise"), "{why}");
        assert!(begun.elapsed() < tuning().patience, "{request}: it waited for nothing");
        assert!(volume.has_ended() && write(&volume, 0, 1, 3).await.is_err());
        assert!(volume.close().await.is_err());
    }
}
