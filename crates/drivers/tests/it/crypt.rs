//! Encrypted devices against a plain model, their memory, and their limits.
#![cfg(not(loom))]

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::common::{Held, Rig, Rng, STALL, submit};
use corewise_blockmq::{
    BlockDevice, BlockDeviceExt, Buffer, ExtentKind, Flags, Geometry, Op, Payload, Queue, Request,
};
use corewise_drivers::{Crypt, CryptHeader, CryptOptions, Fault, Faulty, Memory, Secret};

const SIZE: u64 = 4 << 20;
const BLOCK: u64 = 512;

fn key() -> Secret {
    let bytes: Vec<u8> = (0..64).map(|n| n * 3).collect();
    Secret::read(&bytes[..]).unwrap()
}

fn crypt(rig: &Rig, below: Arc<dyn BlockDevice>, discard: bool) -> Arc<Queue> {
    let options = CryptOptions::new(CryptHeader::None).discard(discard);
    rig.queue(Crypt::open(below, &key(), options, &rig.wq).unwrap())
}

fn memory(rig: &Rig) -> Arc<Queue> {
    rig.named("memory", Memory::new(SIZE).unwrap())
}

/// Cuts bytes into buffers of random lengths, few of which are whole sectors.
fn cut(rng: &mut Rng, bytes: &[u8]) -> Vec<Buffer> {
    let (mut rest, mut buffers) = (bytes, Vec::new());
    while !rest.is_empty() {
        let most = [bytes.len(), 4096, 700][rng.below(3) as usize].min(rest.len());
        let (now, later) = rest.split_at(1 + rng.below(most as u64) as usize);
        buffers.push(Bytes::copy_from_slice(now).into());
        rest = later;
    }
    buffers
}

#[test]
fn an_encrypted_device_has_the_bytes_of_a_plain_one_whatever_the_requests_are() {
    let rig = Rig::live();
    for seed in 0..6 {
        let mut rng = Rng::new(seed);
        let below = memory(&rig);
        let disk = crypt(&rig, below.clone(), false);
        // Bytes that were never written are noise, which is the same each time.
        let mut model = disk.read_at(0, SIZE as usize).unwrap().to_vec();
        assert!(model.iter().filter(|byte| **byte == 0).count() < model.len() / 100);
        for _ in 0..150 {
            let most = [8, 200, 2000][rng.below(3) as usize];
            let len = BLOCK * (1 + rng.below(most));
            let offset = BLOCK * rng.below((SIZE - len) / BLOCK + 1);
            let range = offset as usize..(offset + len) as usize;
            match rng.below(8) {
                0..3 => {
                    let bytes = vec![rng.next() as u8; len as usize];
                    let buffers = cut(&mut rng, &bytes);
                    let flags = Flags { fua: rng.below(2) == 0, ..Flags::default() };
                    let rq = Request::write_vectored(offset, buffers).with_flags(flags);
                    disk.execute(rq).result.unwrap();
                    model[range].copy_from_slice(&bytes);
                }
                3 => {
                    disk.write_zeroes(offset, len).unwrap();
                    model[range].fill(0);
                }
                4 => disk.flush().unwrap(),
                _ => {
                    let mut buffers = Vec::new();
                    let mut left = len;
                    while left != 0 {
                        let n = (1 + rng.below(5000)).min(left);
                        buffers.push((BytesMut::new().into(), n as usize));
                        left -= n;
                    }
                    let done = disk.execute(Request::read_vectored(offset, buffers));
                    assert!(done.into_data().unwrap() == model[range], "seed {seed}");
                }
            }
        }
        assert!(disk.read_at(0, SIZE as usize).unwrap() == model, "seed {seed}");
        let again = crypt(&rig, below.clone(), false);
        assert!(again.read_at(0, SIZE as usize).unwrap() == model, "seed {seed}");
        // Equal sectors are different below.
        let raw = below.read_at(0, SIZE as usize).unwrap();
        let mut sectors: Vec<&[u8]> =
            raw.chunks(512).filter(|s| s.iter().any(|b| *b != 0)).collect();
        let written = sectors.len();
        sectors.sort();
        sectors.dedup();
        assert_eq!(sectors.len(), written, "seed {seed}");
    }
}

#[test]
fn the_memory_of_a_write_stays_as_it_is() {
    let rig = Rig::live();
    let disk = crypt(&rig, memory(&rig), false);
    for len in [512, 64 << 10, 1 << 20] {
        let bytes = Bytes::from(vec![7; len]);
        let done = disk.execute(Request::write(0, bytes.clone()));
        done.result.unwrap();
        let Payload::One(Buffer::Bytes(back)) = done.payload else { panic!("another buffer") };
        assert!(back == bytes && bytes.iter().all(|byte| *byte == 7));
    }
}

#[test]
fn all_counts_as_data_and_discards_pass_only_if_asked_for() {
    let rig = Rig::live();
    let below = memory(&rig);
    for discard in [false, true] {
        let disk = crypt(&rig, below.clone(), discard);
        let extents = disk.extents_of(0, SIZE, 10).unwrap();
        assert!(extents.iter().all(|extent| extent.kind == ExtentKind::Data));
        disk.write_at(0, vec![7; 4096]).unwrap();
        assert_eq!(disk.discard(0, 4096).is_ok(), discard);
        let raw = below.read_at(0, 4096).unwrap();
        assert_eq!(raw.iter().all(|byte| *byte == 0), discard);
        let geometry = disk.geometry();
        assert!(geometry.can_discard == discard && !geometry.can_fast_zero);
        disk.write_zeroes(0, 4096).unwrap();
        assert!(below.read_at(0, 4096).unwrap().iter().any(|byte| *byte != 0));
        assert!(disk.read_at(0, 4096).unwrap().iter().all(|byte| *byte == 0));
    }
}

#[test]
fn an_error_below_names_the_bytes_of_the_encrypted_device() {
    let rig = Rig::live();
    let bad = Fault::new().on(&[Op::Read, Op::Write]).range(8192..8704);
    let below = rig.queue(Faulty::new(memory(&rig), vec![bad], 0));
    let disk = crypt(&rig, below, false);
    for rq in [Request::read(0, 65536), Request::write(8192, vec![1; 512])] {
        let range = rq.offset()..rq.offset() + rq.len();
        let error = disk.execute(rq).result.unwrap_err();
        let found = error.range().unwrap();
        assert!(range.contains(&found.start) && found.end <= range.end, "{found:?}");
    }
    disk.write_at(0, vec![1; 8192]).unwrap();
    assert_eq!(disk.read_at(0, 8192).unwrap(), [1; 8192][..]);
}

#[test]
fn the_copies_of_large_writes_are_bounded_and_each_write_gets_its_turn() {
    let rig = Rig::live();
    let held = Held {
        queues: 4,
        geometry: Some(Geometry { can_flush: false, ..Geometry::new(1 << 30) }),
        ..Held::default()
    };
    let disk = crypt(&rig, rig.queue(held.clone()), false);
    let writes: Vec<_> =
        (0..40).map(|n| submit(&*disk, Request::write(n << 20, vec![7_u8; 1 << 20]))).collect();
    let copies = || held.requests.lock().iter().map(|rq| rq.len()).sum::<u64>();
    let most = 16 << 20;
    while copies() < most {
        std::thread::yield_now();
    }
    // All workers are done, and the other writes wait.
    rig.wq.below().flush();
    assert_eq!(copies(), most);
    let mut done = 0;
    while done != 40 << 20 {
        assert!(copies() <= most);
        let next = held.requests.lock().pop_front();
        match next {
            Some(rq) => {
                done += rq.len();
                rq.complete(Ok(()));
            }
            None => std::thread::yield_now(),
        }
    }
    for write in writes {
        write.recv_timeout(STALL).unwrap().result.unwrap();
    }
}

#[test]
fn without_workers_the_submitter_encrypts() {
    let rig = Rig::live();
    let disk = crypt(&rig, memory(&rig), false);
    rig.pools.shutdown();
    disk.write_at(0, vec![7; 1 << 20]).unwrap();
    assert!(disk.read_at(0, 1 << 20).unwrap().iter().all(|byte| *byte == 7));
}

#[test]
fn a_device_grows_with_the_one_below() {
    let rig = Rig::live();
    let folder = tempfile::tempdir().unwrap();
    let options = corewise_drivers::FileOptions::new(folder.path().join("disk")).size(SIZE);
    let file = rig.queue(corewise_drivers::FileDriver::open(options, &rig.wq).unwrap());
    let disk = crypt(&rig, file.clone(), false);
    disk.write_at(0, vec![7; 512]).unwrap();
    assert!(disk.grow(Some(2 * SIZE)).unwrap_err().to_string().contains("first"));
    file.grow(Some(2 * SIZE)).unwrap();
    assert_eq!(disk.geometry().size, SIZE);
    assert!(disk.grow(Some(SIZE + 100)).is_err());
    assert_eq!(disk.grow(Some(SIZE + 4096)).unwrap(), SIZE + 4096);
    assert_eq!(disk.grow(None).unwrap(), 2 * SIZE);
    disk.write_at(2 * SIZE - 512, vec![8; 512]).unwrap();
    assert_eq!(disk.read_at(0, 512).unwrap(), [7; 512][..]);
    assert_eq!(disk.driver().info().geometry.size, 2 * SIZE);
}

#[test]
fn a_raw_key_is_64_bytes_with_two_halves() {
    let rig = Rig::live();
    for (bytes, why) in [(vec![1; 63], "has 63"), (vec![1; 65], "has 65"), (vec![1; 64], "halves")]
    {
        let secret = Secret::read(&bytes[..]).unwrap();
        let options = CryptOptions::new(CryptHeader::None);
        let error = Crypt::open(memory(&rig), &secret, options, &rig.wq).err().unwrap();
        assert!(error.to_string().contains(why), "{error}");
    }
}
