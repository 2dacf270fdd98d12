//! Tests of the threads over files that answer a ring's commands at once: `/dev/null` with success,
//! as if the kernel delivered a request, and `/dev/zero` with an error, as if it gave up the tag.
//!
//! The descriptors of requests are in memory that the test writes. So a thread gets its requests as
//! fast as it answers them, until its queue is left.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{self, Receiver, Sender};
use std::task::Waker;
use std::thread::{self, ThreadId};
use std::time::Duration;

use corewise_blockmq::{Geometry, IoError, Op, Request};
use corewise_export::{Client, Feed, Limiter, Peer, Rate, SharedDevice};
use corewise_ring::Rings;
use io_uring::IoUring;
use rustix::fs::{MemfdFlags, memfd_create};

use super::*;
use crate::abi::op;
use crate::queue::TagMemory;
use crate::tests::{ChannelDevice, Ram};

/// More than any machine needs for any of these steps.
const LONG: Duration = Duration::from_secs(120);
const DELIVERS: &str = "/dev/null";
const GIVES_UP: &str = "/dev/zero";

/// A ring's thread, and ublk's port on it.
struct RingThread {
    port: Arc<Port>,
    _rings: Arc<Rings>,
}

/// Starts a thread; `None` where there is no `io_uring`, or `/dev/null` takes no commands.
fn start() -> Option<RingThread> {
    let probe = || -> io::Result<i32> {
        let (mut ring, null) = (IoUring::new(8)?, file(DELIVERS));
        let entry = opcode::UringCmd16::new(types::Fd(null.as_raw_fd()), FETCH_REQ).build();
        // SAFETY: the command names no memory, and the file is open until it has ended.
        unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
        ring.submit_and_wait(1)?;
        ring.completion().next().map(|done| done.result()).ok_or(io::ErrorKind::Other.into())
    };
    match probe() {
        Ok(0) => {
            let rings = Rings::own(1).expect("the probe got a ring");
            let port = rings.ports().map(Port::open).next().expect("one");
            Some(RingThread { port, _rings: rings })
        }
        other => {
            println!("skipped: no commands of io_uring here: {other:?}");
            None
        }
    }
}

fn file(path: &str) -> OwnedFd {
    OpenOptions::new().read(true).write(true).open(path).unwrap().into()
}

/// Returns the descriptor of an operation on `sectors` sectors.
fn descriptor(op: u8, first_sector: u64, sectors: u32) -> Descriptor {
    Descriptor { op_and_flags: op.into(), sectors, first_sector, address: 0 }
}

/// Makes the descriptors of a queue, one a tag.
fn descriptors(all: &[Descriptor]) -> Descriptors {
    let file = File::from(memfd_create("ublk-test", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(size_of_val(all).next_multiple_of(1 << 16) as u64).unwrap();
    for (tag, descriptor) in all.iter().enumerate() {
        let Descriptor { op_and_flags, sectors, first_sector, address } = descriptor;
        let words = [u64::from(*sectors) << 32 | u64::from(*op_and_flags), *first_sector, *address];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        file.write_all_at(&bytes, (tag * bytes.len()) as u64).unwrap();
    }
    Descriptors::map(&file.into(), 0, all.len() as u16).unwrap()
}

/// A queue as its owner has it.
struct Owned {
    facts: Arc<QueueFacts>,
    served: Arc<Served>,
    /// The thread that has freed the queue.
    freed: Receiver<ThreadId>,
}

/// A part of a queue that reports the thread on which it is dropped.
struct Dropped(Sender<ThreadId>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.send(thread::current().id());
    }
}

impl Owned {
    fn answered(&self) -> u64 {
        let traffic = self.facts.counts.read();
        Op::ALL.iter().map(|&op| traffic.of(op).requests).sum()
    }

    fn is_gone(&self) -> bool {
        self.facts.gone.wait_timeout(LONG)
    }

    /// Leaves the queue, and returns true once it is gone.
    fn leave(&self, thread: &RingThread) -> bool {
        thread.port.leave(self.served.number().expect("it has a number"), &self.facts);
        self.facts.quiet.wait_timeout(LONG) && self.is_gone()
    }
}

fn serve(
    thread: &RingThread,
    shared: &Arc<SharedDevice>,
    path: &str,
    all: &[Descriptor],
    rate: Rate,
) -> Owned {
    let (facts, served) = (Arc::<QueueFacts>::default(), Arc::<Served>::default());
    let port = Arc::clone(&thread.port);
    let client = Client::new(shared, Peer::Kernel.into(), Waker::from(Arc::clone(&port)));
    let feed = Feed::new(Arc::new(client), Limiter::new(rate).map(Arc::new).into_iter().collect());
    let (theirs, depth) = (Arc::clone(&facts), all.len() as u16);
    let (tx, freed) = mpsc::channel();
    let dropped = Dropped(tx);
    let make = move |number| {
        let deliver = Arc::new(move |slot| {
            let _ = &dropped;
            port.deliver(slot);
        });
        let memory = TagMemory::map(depth, 128 << 10).unwrap();
        Queue::new(number, memory, feed, deliver, theirs, time::now())
    };
    thread.port.serve(NewQueue {
        make: Box::new(make),
        file: Arc::new(file(path)),
        id: 0,
        descriptors: descriptors(all),
        served: ServedSender(Arc::clone(&served)),
    });
    Owned { facts, served, freed }
}

/// A device that gives its requests to the test.
fn given() -> (Arc<SharedDevice>, Receiver<Request>) {
    let (to, requests) = mpsc::channel();
    let device = ChannelDevice { geometry: Geometry::new(1 << 40), to };
    (SharedDevice::new(Arc::new(device)), requests)
}

/// Takes the next request that a device was given.
fn next(requests: &Receiver<Request>) -> Request {
    requests.recv_timeout(LONG).expect("the device gets a request")
}

fn writes(depth: usize, sectors: u32) -> Vec<Descriptor> {
    (0..depth as u64).map(|tag| descriptor(op::WRITE, tag * 256, sectors)).collect()
}

#[test]
fn a_thread_ends_with_and_without_queues() {
    let Some(idle) = start() else { return };
    drop(idle);
    let Some(thread) = start() else { return };
    let (shared, _requests) = given();
    let owned = serve(&thread, &shared, GIVES_UP, &writes(4, 8), Rate::default());
    assert!(owned.is_gone());
    let ram = Ram::new(16 << 20);
    let shared = SharedDevice::new(ram.device());
    let owned = serve(&thread, &shared, DELIVERS, &writes(4, 8), Rate::default());
    assert_eq!(owned.served.number(), Some(0));
    // It ends though its queue gets and answers requests. The kernel has the queue's memory until
    // then.
    assert!(owned.freed.try_recv().is_err());
    drop(thread);
    assert_eq!(owned.freed.recv(), Ok(thread::current().id()));
    assert!(!owned.facts.gone.is_complete());
    drop(shared);
    ram.end();
}

#[test]
fn a_queue_whose_tags_the_kernel_gives_up_is_gone() {
    let Some(thread) = start() else { return };
    let (shared, requests) = given();
    let queues = [1, 128, 1]
        .map(|depth| serve(&thread, &shared, GIVES_UP, &writes(depth, 8), Rate::default()));
    assert!(queues.iter().all(Owned::is_gone));
    assert!(queues.iter().all(|owned| owned.facts.was_given_up() && owned.answered() == 0));
    // An order for a queue that is gone is none.
    assert!(queues.iter().all(|owned| owned.leave(&thread)));
    assert!(requests.try_recv().is_err());
}

#[test]
fn more_entries_and_completions_than_the_ring_has_room_for_are_taken() {
    let Some(thread) = start() else { return };
    let ram = Ram::new(16 << 20);
    let shared = SharedDevice::new(ram.device());
    let flushes = vec![descriptor(op::FLUSH, u64::MAX, 0); MAX_DEPTH as usize];
    let dead = [(); 2].map(|()| serve(&thread, &shared, GIVES_UP, &flushes, Rate::default()));
    let live = [(); 2].map(|()| serve(&thread, &shared, DELIVERS, &flushes, Rate::default()));
    assert!(dead.iter().all(Owned::is_gone));
    while live.iter().any(|owned| owned.answered() <= MAX_DEPTH) {
        thread::yield_now();
    }
    assert!(live.iter().all(|owned| owned.leave(&thread)));
    drop((thread, shared));
    ram.end();
}

#[test]
fn requests_are_answered_until_their_queue_is_left() {
    let Some(thread) = start() else { return };
    let ram = Ram::new(16 << 20);
    let (other, other_thread) = ChannelDevice::on_a_thread(ram.device());
    // On the spot, and on another thread.
    for device in [ram.device(), other] {
        let shared = SharedDevice::new(device);
        let mut all = writes(16, 8);
        all.extend((0..16).map(|tag| descriptor(op::READ, tag * 256, 8)));
        all.extend([descriptor(op::FLUSH, u64::MAX, 0), descriptor(op::WRITE_ZEROES, 0, 1 << 12)]);
        let queues = [(); 3].map(|()| serve(&thread, &shared, DELIVERS, &all, Rate::default()));
        while queues.iter().any(|owned| owned.answered() < 1000) {
            thread::yield_now();
        }
        for owned in &queues {
            assert!(owned.leave(&thread));
            assert_eq!(owned.facts.in_flight.load(Ordering::Relaxed), 0);
            let traffic = owned.facts.counts.read();
            assert!(Op::ALL.iter().all(|&op| traffic.of(op).errors == 0));
        }
        let answered = queues.each_ref().map(Owned::answered);
        let later = serve(&thread, &shared, GIVES_UP, &all, Rate::default());
        assert_eq!(later.served.number(), Some(0), "the place of the first is free");
        assert!(later.is_gone());
        assert_eq!(answered, queues.each_ref().map(Owned::answered), "none after its end");
    }
    drop(thread);
    other_thread.join().unwrap();
    ram.end();
}

#[test]
fn a_queue_is_not_left_by_the_order_for_the_one_whose_number_it_got() {
    let Some(thread) = start() else { return };
    let (shared, requests) = given();
    let first = serve(&thread, &shared, GIVES_UP, &writes(2, 8), Rate::default());
    assert!(first.is_gone());
    let second = serve(&thread, &shared, DELIVERS, &writes(1, 8), Rate::default());
    assert_eq!(second.served.number(), first.served.number());
    let rq = next(&requests);
    assert!(first.leave(&thread));
    // Orders are taken in their order.
    assert!(serve(&thread, &shared, GIVES_UP, &writes(2, 8), Rate::default()).is_gone());
    rq.complete(Ok(()));
    let rq = next(&requests);
    thread.port.leave(second.served.number().unwrap(), &second.facts);
    assert!(!second.facts.quiet.is_complete(), "the device has a request");
    rq.complete(Ok(()));
    assert!(second.leave(&thread));
    assert!(requests.try_recv().is_err());
}

#[test]
fn a_thread_wakes_for_the_time_of_a_limit() {
    let Some(thread) = start() else { return };
    let ram = Ram::new(16 << 20);
    let shared = SharedDevice::new(ram.device());
    let rate = Rate { requests: Some(2000), bytes: None };
    let owned = serve(&thread, &shared, DELIVERS, &writes(4, 8), rate);
    // A second's worth passes at once.
    while owned.answered() < 2100 {
        thread::yield_now();
    }
    assert!(owned.leave(&thread));
    drop((thread, shared));
    ram.end();
}

#[test]
fn a_thread_wakes_for_the_turn_of_a_queue() {
    let Some(thread) = start() else { return };
    let (shared, requests) = given();
    // Two queues with more than the places of the device each.
    let queues =
        [(); 2].map(|()| serve(&thread, &shared, DELIVERS, &writes(40, 256), Rate::default()));
    let mut has = Vec::new();
    for _ in 0..4000 {
        has.extend(requests.try_iter());
        assert!(has.len() <= 34, "{} of 128 KiB", has.len());
        // If two turns are free, one of the two queues gets one.
        match has.len() > 24 {
            true => has.remove(0).complete(Ok(())),
            false => has.push(next(&requests)),
        }
    }
    for owned in &queues {
        thread.port.leave(owned.served.number().unwrap(), &owned.facts);
    }
    has.into_iter().for_each(|rq| rq.complete(Ok(())));
    while !queues.iter().all(|owned| owned.facts.quiet.is_complete()) {
        match requests.try_recv() {
            Ok(rq) => rq.complete(Ok(())),
            Err(_) => thread::yield_now(),
        }
    }
    assert!(queues.iter().all(Owned::is_gone));
}

#[test]
fn a_thread_may_end_while_the_device_has_requests() {
    let Some(thread) = start() else { return };
    let (shared, requests) = given();
    let owned = serve(&thread, &shared, DELIVERS, &writes(40, 256), Rate::default());
    let has: Vec<_> = (0..16).map(|_| next(&requests)).collect();
    drop(thread);
    // The memory of these requests stays until their end.
    for rq in has.into_iter().chain(requests.try_iter()) {
        let mut bytes = vec![1; rq.len() as usize];
        assert_eq!(rq.copy_to(&mut bytes), 128 << 10);
        assert!(bytes.iter().all(|&byte| byte == 0));
        rq.complete(Ok::<(), IoError>(()));
    }
    assert!(requests.try_recv().is_err());
    assert!(!owned.facts.gone.is_complete() && !owned.facts.quiet.is_complete());
}

#[test]
fn requests_without_sense_are_refused_again_and_again() {
    let Some(thread) = start() else { return };
    let ram = Ram::new(16 << 20);
    let shared = SharedDevice::new(ram.device());
    for seed in 0..4 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let word = |rng: &mut fastrand::Rng| rng.u64(..) >> rng.u32(..64);
        let mut nonsense = || Descriptor {
            op_and_flags: rng.u32(..) & [!0, 0xff00_0007][rng.usize(..2)],
            // At most 2 GiB, whose pieces are soon refused.
            sectors: word(&mut rng) as u32 >> 10,
            first_sector: word(&mut rng),
            address: rng.u64(..),
        };
        let all: Vec<_> = (0..64).map(|_| nonsense()).collect();
        let nonsense = serve(&thread, &shared, DELIVERS, &all, Rate::default());
        let beside = serve(&thread, &shared, DELIVERS, &writes(2, 8), Rate::default());
        while beside.answered() < 50 {
            thread::yield_now();
        }
        assert!([nonsense, beside].iter().all(|owned| owned.leave(&thread)));
    }
    drop((thread, shared));
    ram.end();
}

#[test]
fn a_thread_that_panics_lets_nobody_wait() {
    let Some(thread) = start() else { return };
    let (shared, requests) = given();
    let owned = serve(&thread, &shared, DELIVERS, &writes(1, 8), Rate::default());
    let rq = next(&requests);
    let broken = Arc::<Served>::default();
    thread.port.serve(NewQueue {
        make: Box::new(|_| panic!("on purpose")),
        file: Arc::new(file(DELIVERS)),
        id: 0,
        descriptors: descriptors(&writes(1, 8)),
        served: ServedSender(Arc::clone(&broken)),
    });
    assert_eq!(broken.number(), None);
    assert!(owned.is_gone());
    assert!(!owned.facts.was_given_up(), "its request isn't answered");
    let later = serve(&thread, &shared, DELIVERS, &writes(1, 8), Rate::default());
    assert_eq!(later.served.number(), None);
    thread.port.leave(0, &owned.facts);
    rq.complete(Ok(()));
    assert!(owned.freed.try_recv().is_err(), "a thread that panics ends, too, before that");
    drop(thread);
    assert_eq!(owned.freed.recv(), Ok(thread::current().id()));
}
