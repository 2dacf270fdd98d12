//! Volumes that are encrypted, and stores whose owner changes what lies there.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use super::faulty::{FAILS, Faulty, Puts, by_chance, judged};
use super::{
    BLOCKS, SEALED, in_memory, key, open, open_as, passes, read, request, store_of, tuning, write,
};
use crate::format::{BLOCK, Changes, HEAD, Head, Kind, names, seal};
use crate::log::{NotOpen, OpenRequest};
use crate::volume::{Fault, Volume};

async fn open_with(
    inner: &Arc<dyn ObjectStore>,
    request: OpenRequest,
) -> Result<Arc<Volume>, NotOpen> {
    Volume::open(store_of(inner), request, tuning()).await
}

/// Returns all objects by name.
async fn objects(inner: &Arc<dyn ObjectStore>) -> Vec<(String, Bytes)> {
    let store = store_of(inner);
    let mut all = Vec::new();
    for folder in ["log", "seg", "map", "try"] {
        for name in store.list(folder).await.unwrap() {
            let name = format!("{folder}/{name}");
            let bytes = store.get(&name, None).await.unwrap();
            all.push((name, bytes));
        }
    }
    all
}

/// Creates a store with an object of each kind: two openings, data, a map, a record behind it, and
/// a close.
async fn of_each_kind(sealed: u128) -> Arc<dyn ObjectStore> {
    let inner = in_memory();
    let compressed = 2 | sealed;
    let mut tuning = tuning();
    (tuning.compaction.few, tuning.compaction.slack) = (100, 100 * BLOCK);
    let volume = open_as(&inner, compressed, tuning).await.unwrap();
    write(&volume, 8, 4, 6).await.unwrap();
    volume.flush().await.unwrap();
    for n in 1..6 {
        write(&volume, u64::from(n), 2, n).await.unwrap();
        volume.flush().await.unwrap();
    }
    passes(Duration::from_secs(10)).await;
    volume.close().await.unwrap();
    inner
}

#[tokio::test(start_paused = true)]
async fn a_wrong_key_is_told_at_opening_and_its_server_writes_nothing() {
    let sealed = of_each_kind(SEALED).await;
    let plain = of_each_kind(0).await;
    let other = OpenRequest { key: Some(key("8")), ..request(9) };
    let tries = [
        (&sealed, other.clone(), "with another key"),
        (&sealed, request(9), "no key was given"),
        (&plain, other, "isn't encrypted"),
    ];
    for (inner, request, said) in tries {
        let before = objects(inner).await;
        let store = store_of(inner);
        let found = Volume::open(Arc::clone(&store), request, tuning()).await;
        let Err(NotOpen::Key(why)) = found else { panic!("{found:?}") };
        assert!(why.contains(said), "{why}");
        assert_eq!(store.usage().puts, 0);
        assert!(objects(inner).await == before);
    }
    let volume = open(&sealed, 9 | SEALED).await.unwrap();
    assert_eq!(read(&volume, 0, 8).await.unwrap(), [0, 1, 2, 3, 4, 5, 5, 0]);
}

#[tokio::test(start_paused = true)]
async fn of_two_servers_that_make_a_volume_at_once_the_second_takes_the_first_ones_key() {
    for seed in 0..40 {
        let inner = in_memory();
        let mut random = fastrand::Rng::with_seed(seed);
        let servers = [1, 2].map(|nonce| {
            let store = judged(&inner, by_chance(random.fork(), &FAILS[..1], 3));
            tokio::spawn(async move { open(&store, nonce | SEALED).await.map(drop) })
        });
        for server in servers {
            server.await.unwrap().unwrap();
        }
        let volume = open(&inner, 3 | SEALED).await.unwrap();
        write(&volume, 0, 1, 7).await.unwrap();
        volume.flush().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_store_of_an_encrypted_volume_has_neither_its_data_nor_its_host() {
    for (sealed, there) in [(0, true), (SEALED, false)] {
        let inner = in_memory();
        let named = OpenRequest { host: "a-secret-host".into(), ..request(sealed) };
        let volume = open_with(&inner, named).await.unwrap();
        write(&volume, 0, 3, u32::from_le_bytes(*b"abcd")).await.unwrap();
        volume.close().await.unwrap();
        let all = objects(&inner).await;
        let has = |text: &[u8]| {
            all.iter().any(|(_, bytes)| bytes.windows(text.len()).any(|found| found == text))
        };
        assert_eq!((has(b"abcdabcdabcd"), has(b"a-secret-host")), (there, there));
    }
}

/// Reads a volume of which an object was exchanged. Returns true if it was read, and asserts that
/// it was unchanged then.
async fn reads_right(
    all: &[(String, Bytes)],
    name: &str,
    bytes: Bytes,
    sealed: u128,
    right: &[u32],
) -> bool {
    let inner = in_memory();
    let store = store_of(&inner);
    for (named, found) in all {
        let found = if named == name { &bytes } else { found };
        store.put(named, std::slice::from_ref(found), false).await.unwrap();
    }
    let volume = match open(&inner, 9 | sealed).await {
        Ok(volume) => volume,
        Err(NotOpen::Damaged(_) | NotOpen::Key(_)) => return false,
        Err(other) => panic!("{name}: {other:?}"),
    };
    match read(&volume, 0, 12).await {
        Ok(found) => assert_eq!(found, right, "{name}"),
        Err(Fault::Damaged(_)) => return false,
        Err(other) => panic!("{name}: {other:?}"),
    }
    true
}

/// Corrects the checksums of an object that is read as a whole.
fn summed(bytes: &[u8]) -> Bytes {
    let mut all = bytes.to_vec();
    // Behind the body of a record lies its data.
    let body = u64::from_le_bytes(all[HEAD - 16..HEAD - 8].try_into().unwrap());
    let end = all.len().min(HEAD.saturating_add(body as usize));
    let sum = crc32fast::hash(&all[HEAD..end]);
    all[HEAD - 8..HEAD - 4].copy_from_slice(&sum.to_le_bytes());
    let sum = crc32fast::hash(&all[..HEAD - 4]);
    all[HEAD - 4..HEAD].copy_from_slice(&sum.to_le_bytes());
    all.into()
}

#[tokio::test(start_paused = true)]
async fn a_changed_byte_of_any_object_is_an_error_and_never_other_data() {
    let right = [0, 1, 2, 3, 4, 5, 5, 0, 6, 6, 6, 6];
    for sealed in [0, SEALED] {
        let inner = of_each_kind(sealed).await;
        let all = objects(&inner).await;
        let kinds: Vec<Kind> =
            all.iter().map(|(_, bytes)| Head::decode(bytes).unwrap().kind).collect();
        for kind in [Kind::Open, Kind::Commit, Kind::Close, Kind::Map, Kind::Segment] {
            assert!(kinds.contains(&kind), "there is no {kind:?}");
        }
        let has_data = |(_, bytes): &(String, Bytes)| {
            let head = Head::decode(bytes).unwrap();
            head.kind == Kind::Commit && head.end() < bytes.len() as u64
        };
        assert!(all.iter().any(has_data), "there is no record with data");
        let long = std::env::var_os("COREWISE_LONG").is_some();
        let mut random = fastrand::Rng::with_seed(5);
        let (mut errors, mut tries) = (0, 0);
        for (name, bytes) in &all {
            let whole = !name.starts_with("seg");
            let mut at = 0;
            while at < bytes.len() {
                let mut changed = bytes.to_vec();
                changed[at] ^= 1 << random.u8(0..8);
                tries += 1;
                let read = reads_right(&all, name, changed.clone().into(), sealed, &right).await;
                errors += usize::from(!read);
                if sealed != 0 && whole {
                    let changed = summed(&changed);
                    reads_right(&all, name, changed, sealed, &right).await;
                }
                at += if long { 1 } else { random.usize(1..12) };
            }
        }
        // The head of a segment is for people, and some records precede the map.
        assert!(errors * 2 > tries, "{errors} of {tries}");
    }
}

#[tokio::test(start_paused = true)]
async fn sealed_objects_do_not_stand_in_for_each_other() {
    let right = [0, 1, 2, 3, 4, 5, 5, 0, 6, 6, 6, 6];
    let (all, others) =
        (objects(&of_each_kind(SEALED).await).await, objects(&of_each_kind(SEALED).await).await);
    for (name, bytes) in &all {
        for (other, found) in all.iter().chain(&others) {
            if found != bytes && name.split_once('/').unwrap().0 == other.split_once('/').unwrap().0
            {
                let opened = reads_right(&all, name, found.clone(), SEALED, &right).await;
                let head = Head::decode(bytes).unwrap();
                // A first record of another volume has another key; records in front of the map
                // aren't read.
                assert!(!opened || head.seq > 1, "{other} in the place of {name}");
            }
        }
    }
}

/// Returns each nonce of the bytes that came to the store, with the bytes.
fn nonces(puts: &Puts) -> HashMap<Vec<u8>, Vec<Bytes>> {
    let puts = puts.lock();
    let mut all: HashMap<Vec<u8>, Vec<Bytes>> = HashMap::new();
    let mut add = |nonce: &[u8], bytes: Bytes| {
        let seen = all.entry(nonce.to_vec()).or_default();
        if !seen.contains(&bytes) {
            seen.push(bytes);
        }
    };
    let first = puts.iter().filter(|(name, _)| name.ends_with(&names::record(1)));
    let firsts: Vec<&Bytes> = first.map(|(_, bytes)| bytes).collect();
    for (_, bytes) in puts.iter() {
        let Ok((head, body)) = Head::split(bytes) else { continue };
        assert!(head.sealed);
        let behind = if head.kind == Kind::Open && head.seq == 1 {
            add(&body[..24], body.slice(24..seal::WRAPPED));
            seal::WRAPPED
        } else {
            0
        };
        add(&body[behind..behind + 24], body.slice(behind + 24..));
        if head.kind != Kind::Commit {
            continue;
        }
        let asked = OpenRequest { key: Some(key("7")), ..request(0) };
        let codecs = firsts.iter().filter_map(|first| asked.codec(Some(first)).ok());
        let opened = codecs.into_iter().find_map(|codec| codec.split(bytes).ok());
        let changes = Changes::decode(&opened.expect("by one of the keys").1).unwrap();
        let segment = match changes.in_record {
            true => names::record(head.seq),
            false => names::segment(head.seq, head.epoch),
        };
        let is_it = |found: &Bytes| found == bytes || !changes.in_record;
        let all_of = puts.iter().filter(|(name, found)| name.ends_with(&segment) && is_it(found));
        for (_, bytes) in all_of {
            for place in changes.entries.iter().filter_map(|entry| entry.place) {
                let frame = bytes.slice(place.at as usize..(place.at + place.stored) as usize);
                let nonce = [&changes.id.to_le_bytes()[..], &u64::from(place.at).to_le_bytes()];
                add(&nonce.concat(), frame);
            }
        }
    }
    all
}

#[tokio::test(start_paused = true)]
async fn no_nonce_comes_twice_in_fights_over_failures_and_in_a_copy_that_goes_on() {
    for seed in 0..6 {
        let inner = in_memory();
        let mut random = fastrand::Rng::with_seed(seed);
        let mut over = |inner: &Arc<dyn ObjectStore>, puts: &Puts| -> Arc<dyn ObjectStore> {
            let mut faulty = Faulty::new(inner, Box::new(by_chance(random.fork(), FAILS, 50)));
            faulty.puts = Some(Arc::clone(puts));
            Arc::new(faulty)
        };
        let (puts, copied) = (Puts::default(), Puts::default());
        let work = async |store: Arc<dyn ObjectStore>, nonce: u128| {
            let Ok(volume) = open(&store, nonce | SEALED).await else { return };
            for n in 0..20 {
                let done = write(&volume, u64::from(n) % BLOCKS, 3, n + 1).await;
                if done.is_err() || n % 3 == 0 && volume.flush().await.is_err() {
                    return;
                }
            }
        };
        let first = (over(&inner, &puts), over(&inner, &puts));
        futures_util::future::join(work(first.0, 1), work(first.1, 2)).await;
        // A copy of the bucket, with the same key, is used beside the volume.
        let copy = in_memory();
        for (name, bytes) in objects(&inner).await {
            copy.put(&Path::from(format!("a/volume/{name}")), bytes.into()).await.unwrap();
        }
        let (here, there) = (over(&inner, &puts), over(&copy, &copied));
        futures_util::future::join(work(here, 3), work(there, 3)).await;
        let is_first = |(name, _): &&(String, Bytes)| name.ends_with(&names::record(1));
        let firsts: Vec<_> = puts.lock().iter().filter(is_first).cloned().collect();
        copied.lock().extend(firsts);
        let mut all = nonces(&puts);
        assert!(all.len() > 60, "{}", all.len());
        for (nonce, bytes) in nonces(&copied) {
            let seen = all.entry(nonce).or_default();
            seen.extend(
                bytes.into_iter().filter(|bytes| !seen.contains(bytes)).collect::<Vec<_>>(),
            );
        }
        let twice = all.values().filter(|bytes| bytes.len() > 1).count();
        assert_eq!(twice, 0, "seed {seed}");
    }
}
