//! LUKS2 headers of encrypted devices: new ones, crashes while one is made, damage, and lies.
#![cfg(not(loom))]

use std::sync::Arc;

use crate::common::platters::{Life, Platter, plug};
use crate::common::{Rig, Rng};
use corewise_blockmq::{BlockDevice, BlockDeviceExt, Driver, Queue};
use corewise_drivers::{Crypt, CryptHeader, CryptOptions, Secret, StackError, holds_data};
use corewise_sync::Mutex;

const SIZE: u64 = 24 << 20;
/// Bytes of both copies of a header.
const HEADERS: usize = 32 << 10;
/// Begin of the data.
const DATA: usize = 16 << 20;

type Disk = Arc<Mutex<Platter>>;

fn disk() -> Disk {
    Arc::new(Mutex::new(Platter::new(SIZE, true)))
}

fn secret(text: &str) -> Secret {
    Secret::read(text.as_bytes()).unwrap()
}

fn options(create: bool) -> CryptOptions {
    CryptOptions::new(CryptHeader::Luks2).create(create)
}

fn open(rig: &Rig, disk: &Disk, key: &str, create: bool) -> Result<Crypt, StackError> {
    let below = plug(rig, disk, &Life::new(u64::MAX));
    Crypt::open_cheaply(below, &secret(key), options(create), &rig.wq)
}

fn why(opened: Result<Crypt, StackError>) -> String {
    opened.err().expect("it must be refused").to_string()
}

fn queue(rig: &Rig, crypt: Crypt) -> Arc<Queue> {
    rig.queue(crypt)
}

#[test]
fn a_volume_opens_by_its_passphrase_only_and_a_new_one_hides_no_data() {
    let rig = Rig::live();
    let disk = disk();
    assert!(why(open(&rig, &disk, "a", false)).contains("no LUKS header"));
    let new = open(&rig, &disk, "a", true).unwrap();
    assert!(new.created() && new.data_start() == DATA as u64);
    let new = queue(&rig, new);
    assert_eq!(new.geometry().size, SIZE - DATA as u64);
    // Its ends are zero, so that other programs find nothing there.
    assert_ne!(holds_data(&*new), Some(true));
    assert!(new.read_at(new.geometry().size - (1 << 20), 1 << 20).unwrap().iter().all(|b| *b == 0));
    new.write_at(4096, vec![7; 8192]).unwrap();
    drop(new);
    for create in [false, true] {
        let again = open(&rig, &disk, "a", create).unwrap();
        assert!(!again.created() && again.condition().is_none());
        assert_eq!(queue(&rig, again).read_at(4096, 8192).unwrap(), [7; 8192][..]);
        assert!(why(open(&rig, &disk, "b", create)).contains("wrong key"));
    }
}

#[test]
fn a_new_volume_never_overwrites_other_data() {
    let rig = Rig::live();
    for at in [0, 4096, DATA, SIZE as usize - 512] {
        let disk = disk();
        disk.lock().fill(at, &[1]);
        let before = disk.lock().now.clone();
        let why = why(open(&rig, &disk, "a", true));
        assert!(why.contains("other data"), "{why}");
        assert!(disk.lock().now == before);
    }
    let small = Arc::new(Mutex::new(Platter::new(DATA as u64, true)));
    assert!(why(open(&rig, &small, "a", true)).contains("needs 16 MiB"));
}

#[test]
fn a_crash_while_a_volume_is_made_leaves_that_volume_or_none() {
    let rig = Rig::live();
    let make = |requests: u64, disk: &Disk| {
        let life = Life::new(requests);
        let below = plug(&rig, disk, &life);
        let made = Crypt::open_cheaply(below, &secret("a"), options(true), &rig.wq);
        (made.is_ok(), life.left())
    };
    let (made, left) = make(1 << 20, &disk());
    assert!(made);
    let all = (1 << 20) - left.unwrap();
    let (mut opened, mut refused) = (0, 0);
    // The first requests of all are reads.
    for (requests, seed) in (all - 8..=all).flat_map(|n| [(n, 1), (n, 2)]) {
        let disk = disk();
        let (made, _) = make(requests, &disk);
        assert_eq!(made, requests == all);
        let mut rng = Rng::new(requests * 2 + seed);
        disk.lock().power_failure(|| rng.below(2) == 0);
        match open(&rig, &disk, "a", true) {
            Ok(crypt) => {
                opened += usize::from(!crypt.created());
                let volume = queue(&rig, crypt);
                assert!(volume.read_at(0, 4096).unwrap().iter().all(|byte| *byte == 0));
            }
            Err(error) => {
                assert!(!made, "{error}");
                let error = error.to_string();
                assert!(error.contains("other data") || error.contains("damaged"), "{error}");
                refused += 1;
            }
        }
    }
    assert!(opened > 0 && refused > 0, "{opened} {refused}");
}

#[test]
fn a_damaged_copy_is_told_and_the_other_one_opens_the_volume() {
    let rig = Rig::live();
    let whole = disk();
    drop(open(&rig, &whole, "a", true).unwrap());
    let mut rng = Rng::new(1);
    let damaged = |at: usize, bit: u8| {
        let disk = Arc::new(Mutex::new(whole.lock().clone()));
        let byte = disk.lock().now[at] ^ 1 << bit;
        disk.lock().fill(at, &[byte]);
        disk
    };
    for n in 0..HEADERS as u64 / 1000 {
        let (at, bit) = ((n * 1000 + rng.below(1000)) as usize, rng.below(8) as u8);
        let told = open(&rig, &damaged(at, bit), "a", true).unwrap().condition();
        let copy = if at < HEADERS / 2 { "first" } else { "second" };
        assert!(told.is_some_and(|told| told.contains(copy)), "byte {at}");
    }
    let both = damaged(100, 0);
    both.lock().fill(HEADERS / 2 + 5000, b"xxx");
    assert!(why(open(&rig, &both, "a", true)).contains("damaged"));
    // A damaged key slot opens nothing.
    for at in [HEADERS, HEADERS + 100_000, HEADERS + 255_999] {
        assert!(why(open(&rig, &damaged(at, 3), "a", true)).contains("wrong key"), "byte {at}");
    }
}

#[test]
fn copies_of_two_volumes_and_old_copies_are_told() {
    let rig = Rig::live();
    let (one, other) = (disk(), disk());
    for disk in [&one, &other] {
        drop(open(&rig, disk, "a", true).unwrap());
    }
    let half = HEADERS / 2;
    let copy = other.lock().now[half..HEADERS].to_vec();
    let mixed = Arc::new(Mutex::new(one.lock().clone()));
    mixed.lock().fill(half, &copy);
    assert!(why(open(&rig, &mixed, "a", true)).contains("different volumes"));
    // A copy in another place is none.
    let moved = Arc::new(Mutex::new(one.lock().clone()));
    let second = one.lock().now[half..HEADERS].to_vec();
    moved.lock().fill(0, &[0; HEADERS]);
    moved.lock().fill(1 << 20, &second);
    assert!(why(open(&rig, &moved, "a", true)).contains("another place"));
    // The header of another volume doesn't open this one's data.
    let header = other.lock().now[..DATA].to_vec();
    let foreign = Arc::new(Mutex::new(one.lock().clone()));
    foreign.lock().fill(0, &header);
    let volume = queue(&rig, open(&rig, &foreign, "a", true).unwrap());
    assert!(volume.read_at(0, 4096).unwrap().iter().any(|byte| *byte != 0));
}

/// Changes the text of both copies, and corrects their checksums.
fn rewrite(disk: &Disk, from: &str, to: &str) {
    use sha2::{Digest, Sha256};
    let mut headers = disk.lock().now[..HEADERS].to_vec();
    for copy in headers.chunks_mut(HEADERS / 2) {
        let text = String::from_utf8(copy[4096..].to_vec()).unwrap();
        let text = text.trim_end_matches('\0');
        assert!(text.contains(from), "{from} is not in {text}");
        let text = text.replace(from, to);
        copy[4096..].fill(0);
        copy[4096..4096 + text.len()].copy_from_slice(text.as_bytes());
        copy[448..512].fill(0);
        let sum = Sha256::digest(&*copy);
        copy[448..480].copy_from_slice(&sum);
    }
    disk.lock().fill(0, &headers);
}

#[test]
fn lies_of_a_header_are_refused_before_they_cost_memory_or_time() {
    let rig = Rig::live();
    let whole = disk();
    drop(open(&rig, &whole, "a", true).unwrap());
    for (from, to, says) in [
        ("\"memory\":32", "\"memory\":4294967295", "isn't supported"),
        ("\"memory\":32", "\"memory\":1048577", "isn't supported"),
        ("\"time\":4", "\"time\":4294967295", "isn't supported"),
        ("\"stripes\":4000", "\"stripes\":4294967295", "isn't supported"),
        ("\"stripes\":4000", "\"stripes\":0", "isn't supported"),
        ("\"offset\":\"32768\"", "\"offset\":\"18446744073709551615\"", "isn't supported"),
        ("\"offset\":\"32768\"", "\"offset\":\"0\"", "isn't supported"),
        ("\"size\":\"258048\"", "\"size\":\"18446744073709551615\"", "isn't supported"),
        ("argon2id", "scrypt", "isn't supported"),
        ("\"kdf\"", "\"kdx\"", "isn't supported"),
        ("\"keyslots\":[\"0\"]", "\"keyslots\":[]", "no key slot"),
        ("\"iterations\":1000", "\"iterations\":4294967295", "digest"),
        ("\"segments\":[\"0\"]", "\"segments\":[\"1\"]", "no digest"),
        ("\"size\":\"dynamic\"", "\"size\":\"18446744073709551104\"", "doesn't fit"),
        ("\"size\":\"dynamic\"", "\"size\":\"16777216\"", "doesn't fit"),
        ("\"offset\":\"16777216\"", "\"offset\":\"18446744073709551104\"", "doesn't fit"),
        ("\"offset\":\"16777216\"", "\"offset\":\"16777217\"", "doesn't fit"),
        ("\"offset\":\"16777216\"", "\"offset\":\"x\"", "impossible"),
        ("\"sector_size\":512", "\"sector_size\":0", "impossible"),
        ("\"sector_size\":512", "\"sector_size\":8192", "impossible"),
        ("\"type\":\"crypt\"", "\"type\":\"linear\"", "isn't supported"),
        ("\"iv_tweak\"", "\"integrity\":{},\"iv_tweak\"", "integrity"),
        ("aes-xts-plain64\",\"iv_tweak", "aes-cbc-essiv\",\"iv_tweak", "cryptsetup reencrypt"),
        ("\"keyslots_size\"", "\"requirements\":{\"mandatory\":[\"x\"]},\"keyslots_size\"", "'x'"),
        ("\"tokens\":{}", "\"tokens\":{", "isn't understood"),
    ] {
        let disk = Arc::new(Mutex::new(whole.lock().clone()));
        rewrite(&disk, from, to);
        let why = why(open(&rig, &disk, "a", true));
        assert!(why.contains(says), "{from} -> {to}: {why}");
    }
    // A fixed size is kept.
    let disk = Arc::new(Mutex::new(whole.lock().clone()));
    rewrite(&disk, "\"size\":\"dynamic\"", "\"size\":\"1048576\"");
    let fixed = open(&rig, &disk, "a", false).unwrap();
    assert_eq!(fixed.info().geometry.size, 1 << 20);
    assert!(fixed.grow(None).is_err());
}

#[test]
fn a_header_of_another_version_is_told() {
    let rig = Rig::live();
    let disk = disk();
    disk.lock().fill(0, b"LUKS\xba\xbe\x00\x01");
    assert!(why(open(&rig, &disk, "a", true)).contains("cryptsetup convert"));
    disk.lock().fill(0, b"LUKS\xba\xbe\x00\x03");
    assert!(why(open(&rig, &disk, "a", true)).contains("version is 3"));
}
