//! Every driver and some stacks of them against a plain model in memory, with seeded random
//! requests.
#![cfg(not(loom))]

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::common::mirrors::unrecorded;
use crate::common::{Held, Rig, Rng, STALL, submit};
use bytes::BytesMut;
use corewise_blockmq::{
    BlockDevice, BlockDeviceExt, Completed, Driver, IoError, IoErrorKind, Op, Request,
};
use corewise_drivers::{
    Delay, Delays, Fault, Faulty, FileDriver, FileOptions, IoPath, Memory, Mirror, MirrorLeg,
    MirrorOptions, Null, StackError, Stripe,
};

const SIZE: u64 = 1 << 20;
const BLOCK: u64 = 512;

/// The content that the device must have: `None` if a discard left it open.
struct Model(Vec<Option<u8>>);

impl Model {
    fn new(size: u64) -> Self {
        Self(vec![Some(0); size as usize])
    }

    fn set(&mut self, offset: u64, data: impl ExactSizeIterator<Item = Option<u8>>) {
        let at = offset as usize;
        let range = at..at + data.len();
        for (byte, new) in self.0[range].iter_mut().zip(data) {
            *byte = new;
        }
    }

    #[track_caller]
    fn check(&self, offset: u64, data: &[u8]) {
        for (i, &byte) in data.iter().enumerate() {
            let at = offset as usize + i;
            if let Some(want) = self.0[at] {
                assert_eq!(byte, want, "byte {at}");
            }
        }
    }
}

fn range(rng: &mut Rng, size: u64) -> (u64, u64) {
    let blocks = size / BLOCK;
    let first = rng.below(blocks);
    let most = if rng.below(4) == 0 { blocks } else { 32 };
    let n = 1 + rng.below(most.min(blocks - first));
    (first * BLOCK, n * BLOCK)
}

/// Sends one request at a time: each read sees exactly what was written before.
fn agrees_with_the_model(device: &dyn BlockDevice, seed: u64, rounds: usize) -> Model {
    let g = device.geometry();
    let mut model = Model::new(g.size);
    let mut rng = Rng::new(seed);
    for _ in 0..rounds {
        let (offset, len) = range(&mut rng, g.size);
        let fua = rng.below(8) == 0;
        let with = |rq: Request| if fua { rq.fua() } else { rq };
        match rng.below(20) {
            0..=5 => {
                let data = device.read_at(offset, len as usize).unwrap();
                assert_eq!(data.len() as u64, len);
                model.check(offset, &data);
            }
            6..=10 => {
                let data: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
                model.set(offset, data.iter().map(|&b| Some(b)));
                device.execute(with(Request::write(offset, data))).result.unwrap();
            }
            11 | 12 => {
                model.set(offset, (0..len as usize).map(|_| Some(0)));
                let rq = Request::write_zeroes(offset, len);
                let rq = if rng.below(2) == 0 { rq.no_unmap() } else { rq };
                let fast = g.can_fast_zero && rng.below(4) == 0;
                let rq = if fast { rq.fast() } else { rq };
                match device.execute(with(rq)).result {
                    // It is unspecified what is zeroed then, of a stripe for instance: so all is.
                    Err(error) if fast && error.kind() == IoErrorKind::NotSupported => {
                        device.write_zeroes(offset, len).unwrap();
                    }
                    result => result.unwrap(),
                }
            }
            13 => {
                model.set(offset, (0..len as usize).map(|_| None));
                device.execute(with(Request::discard(offset, len))).result.unwrap();
            }
            14 => device.flush().unwrap(),
            15 if g.can_prefetch => {
                device.execute(Request::prefetch(offset, len)).result.unwrap();
            }
            15..=18 => {
                let most = 1 + rng.below(6) as u32;
                let extents = device.extents_of(offset, len, most).unwrap();
                let found: Vec<_> = extents.iter().collect();
                assert!(!found.is_empty() && found.len() <= most as usize, "{found:?}");
                assert!(found.windows(2).all(|two| two[0].kind != two[1].kind), "{found:?}");
                let mut at = offset;
                for extent in &found {
                    let known = &model.0[at as usize..][..extent.len as usize];
                    let zero = known.iter().all(|byte| matches!(byte, Some(0) | None));
                    assert!(zero || !extent.kind.is_zero(), "{extent:?} at {at}");
                    at += extent.len;
                }
                assert!(at > offset && at <= offset + len, "{found:?}");
            }
            // A read behind a header keeps the header.
            _ => {
                let head = BytesMut::from(&b"header"[..]);
                let rq = Request::read_into(offset, len as usize, head);
                let data = device.execute(rq).into_data().unwrap();
                assert_eq!(&data[..6], b"header");
                assert_eq!(data.len() as u64, 6 + len);
                model.check(offset, &data[6..]);
            }
        }
    }
    let all = device.read_at(0, g.size as usize).unwrap();
    model.check(0, &all);
    model
}

/// Sends many requests at once on ranges that don't overlap: none sees another's bytes.
fn keeps_requests_in_flight_apart(device: &dyn BlockDevice, seed: u64) {
    let size = device.geometry().size;
    const PIECE: u64 = 3 * BLOCK;
    let pieces: Vec<u64> = (0..size / PIECE).map(|p| p * PIECE).collect();
    let mut rng = Rng::new(seed);
    let fill: Vec<u8> = pieces.iter().map(|_| rng.next() as u8).collect();
    let (tx, rx) = mpsc::channel::<Completed>();
    let send = |rq: Request| {
        let tx = tx.clone();
        rq.on_complete(move |done| tx.send(done).unwrap())
    };
    let writes = pieces
        .iter()
        .zip(&fill)
        .map(|(&at, &byte)| send(Request::write(at, vec![byte; PIECE as usize])));
    device.submit_batch(&mut writes.into_iter());
    for _ in &pieces {
        rx.recv_timeout(STALL).unwrap().result.unwrap();
    }
    for &at in &pieces {
        device.submit(send(Request::read(at, PIECE as usize)));
    }
    for _ in &pieces {
        let done = rx.recv_timeout(STALL).unwrap();
        let want = fill[(done.offset / PIECE) as usize];
        assert!(done.into_data().unwrap().iter().all(|&b| b == want));
    }
}

fn check(rig: &Rig, driver: impl Driver, seed: u64) -> Model {
    let queue = rig.queue(driver);
    keeps_requests_in_flight_apart(&*queue, seed);
    queue.write_zeroes(0, queue.geometry().size).unwrap();
    let model = agrees_with_the_model(&*queue, seed, 300);
    queue.drain();
    let stats = queue.stats();
    assert!(stats.iter().all(|s| s.in_flight == 0 && s.completed == s.dispatched), "{stats:?}");
    model
}

fn file(rig: &Rig, path: &Path, size: u64, io: IoPath) -> FileDriver {
    FileDriver::open(FileOptions::new(path).size(size).io(io), &rig.wq).unwrap()
}

fn memory(rig: &Rig, size: u64) -> Arc<dyn BlockDevice> {
    rig.queue(Memory::new(size).unwrap())
}

#[test]
fn memory_agrees_with_the_model() {
    check(&Rig::live(), Memory::new(SIZE).unwrap(), 1);
}

#[test]
fn a_file_agrees_with_the_model_by_each_io_path_and_so_does_what_is_in_it() {
    let rig = Rig::live();
    let dir = tempfile::tempdir().unwrap();
    for (seed, io) in [(2, IoPath::Uring), (3, IoPath::Threads)] {
        let path = dir.path().join(format!("{io:?}"));
        let options = FileOptions::new(&path).size(SIZE).io(io).queues(2).depth(16);
        let driver = match FileDriver::open(options, &rig.wq) {
            Ok(driver) => driver,
            // The one thing that may be missing here; everything else is a failure.
            Err(error) if io == IoPath::Uring && error.to_string().contains("io_uring") => {
                println!("skipped: {error}");
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        let model = check(&rig, driver, seed);
        let content = std::fs::read(&path).unwrap();
        model.check(0, &content);
        assert_eq!(content.len() as u64, SIZE, "no write made the file longer");
    }
}

#[test]
fn stripes_agree_with_the_model_for_every_number_of_children_and_chunk() {
    let rig = Rig::live();
    for (children, chunk) in [(1, 512), (2, 4096), (3, 1536), (5, 512)] {
        let legs = (0..children).map(|_| memory(&rig, SIZE / 4)).collect();
        let stripe = Stripe::new(legs, chunk).unwrap();
        assert_eq!(
            stripe.info().geometry.size,
            SIZE / 4 / u64::from(chunk) * u64::from(chunk) * children
        );
        check(&rig, stripe, 5 + children);
    }
}

#[test]
fn a_mirror_agrees_with_the_model_and_its_legs_agree_with_each_other() {
    let rig = Rig::live();
    let legs: Vec<_> = (0..3).map(|_| memory(&rig, SIZE)).collect();
    let model = check(&rig, unrecorded(&rig, legs.clone()), 20);
    for leg in legs {
        model.check(0, &leg.read_at(0, SIZE as usize).unwrap());
    }
}

#[test]
fn injectors_that_let_everything_pass_agree_with_the_model() {
    let rig = Rig::live();
    let never = Fault::new().on(&[Op::Read]).after(u64::MAX);
    check(&rig, Faulty::new(memory(&rig, SIZE), vec![never], 0), 41);
    let us = Duration::from_micros;
    let delays =
        Delays { read: us(5), write: us(20), flush: us(50), jitter: us(30), ..Delays::default() };
    check(&rig, Delay::new(memory(&rig, SIZE), delays, &rig.wq), 42);
}

#[test]
fn a_stripe_waits_for_all_its_parts_and_tells_the_first_error_in_its_order() {
    let rig = Rig::live();
    let legs: Vec<_> = (0..3).map(|_| Held::default()).collect();
    let children = legs.iter().map(|leg| rig.queue(leg.clone()) as Arc<dyn BlockDevice>).collect();
    let queue = rig.queue(Stripe::new(children, 4096).unwrap());
    let requests: [fn() -> Request; 4] = [
        Request::flush,
        || Request::write(0, vec![1; 3 * 4096]).fua(),
        || Request::discard(0, 3 * 4096),
        || Request::write_zeroes(0, 3 * 4096).no_unmap(),
    ];
    for make in requests {
        let flags = make().flags();
        let done = submit(&*queue, make());
        for leg in &legs {
            let held = leg.requests.lock();
            assert_eq!(held.len(), 1, "every child has its part");
            assert_eq!(held[0].flags(), flags);
        }
        // The last child is the first to answer, and each errs.
        for (n, leg) in legs.iter().enumerate().rev() {
            assert!(done.try_recv().is_err(), "a part is still on its way");
            leg.finish_one(Err(IoError::from_errno(100 + n as i32)));
        }
        let told = done.try_recv().unwrap().result.unwrap_err();
        assert_eq!(told.kind(), IoErrorKind::Io(100));
        let done = submit(&*queue, make());
        legs.iter().for_each(|leg| leg.finish_one(Ok(())));
        done.try_recv().unwrap().result.unwrap();
    }
}

#[test]
fn a_stripe_of_mirrors_over_files_agrees_with_the_model() {
    let rig = Rig::live();
    let dir = tempfile::tempdir().unwrap();
    let mirrors = (0..2)
        .map(|m| {
            let legs = (0..2)
                .map(|l| {
                    let io = if l == 0 { IoPath::Auto } else { IoPath::Threads };
                    let path = dir.path().join(format!("{m}-{l}"));
                    rig.queue(file(&rig, &path, SIZE / 4, io)) as Arc<dyn BlockDevice>
                })
                .collect();
            rig.queue(unrecorded(&rig, legs)) as Arc<dyn BlockDevice>
        })
        .collect();
    check(&rig, Stripe::new(mirrors, 4096).unwrap(), 30);
    for m in 0..2 {
        let read = |l| std::fs::read(dir.path().join(format!("{m}-{l}"))).unwrap();
        assert!(read(0) == read(1), "the legs of mirror {m} differ");
    }
}

#[test]
fn null_reads_zeroes_and_forgets_writes() {
    let rig = Rig::live();
    let queue = rig.queue(Null::new(SIZE + 100));
    assert_eq!(queue.geometry().size, SIZE);
    queue.write_at(0, vec![7; 512]).unwrap();
    assert!(queue.read_at(0, 4096).unwrap().iter().all(|&b| b == 0));
    queue.flush().unwrap();
}

#[test]
fn a_large_memory_device_costs_only_what_is_in_it() {
    let rig = Rig::live();
    let queue = rig.queue(Memory::new(1 << 40).unwrap());
    let far = (1 << 40) - 4096;
    queue.write_at(far, vec![7; 4096]).unwrap();
    assert!(queue.read_at(far, 4096).unwrap().iter().all(|&b| b == 7));
    // All of it at once: possible only if nothing is touched page by page.
    queue.discard(0, 1 << 40).unwrap();
    assert!(queue.read_at(far, 4096).unwrap().iter().all(|&b| b == 0));
}

#[test]
fn a_partial_page_of_a_discard_leaves_its_neighbours_alone() {
    let rig = Rig::live();
    let queue = rig.queue(Memory::new(64 << 10).unwrap());
    queue.write_at(0, vec![7; 64 << 10]).unwrap();
    queue.discard(512, (64 << 10) - 1024).unwrap();
    let data = queue.read_at(0, 64 << 10).unwrap();
    assert!(
        data[..512].iter().all(|&b| b == 7) && data[data.len() - 512..].iter().all(|&b| b == 7)
    );
    assert!(data[512..data.len() - 512].iter().all(|&b| b == 0));
}

#[test]
fn stacks_that_cannot_work_are_refused_with_the_reason() {
    let rig = Rig::live();
    let message =
        |r: Result<Stripe, StackError>| r.err().map(|e| e.to_string()).unwrap_or_default();
    assert!(message(Stripe::new(Vec::new(), 4096)).contains("at least one child"));
    assert!(message(Stripe::new(vec![memory(&rig, SIZE)], 1000)).contains("multiple of 512"));
    assert!(message(Stripe::new(vec![memory(&rig, SIZE)], 0)).contains("multiple of 512"));
    assert!(message(Stripe::new(vec![memory(&rig, 512)], 4096)).contains("less than one chunk"));
    let nobody: [MirrorLeg; 0] = [];
    assert!(Mirror::open(nobody, MirrorOptions::default(), &rig.wq).is_err());
}
