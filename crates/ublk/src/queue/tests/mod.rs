//! Tests of a queue, whose kernel is the test: it writes and reads the memory of tags, and knows
//! which tags are its own.

use std::iter;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{self, Receiver, Sender};
use std::task::{Wake, Waker};
use std::thread;

use corewise_blockmq::{BlockDevice, Geometry, IoError, IoErrorKind, Op};
use corewise_export::{Client, Limiter, Peer, Rate, SharedDevice};
use corewise_sync::time;

use super::*;
use crate::tests::{ChannelDevice, Keeper, PanickingDevice, Ram};

mod commands;
mod devices;
mod orders;

const FUA: u32 = 1 << 21;
const NO_UNMAP: u32 = 1 << 23;
const EIO: i32 = -libc::EIO;
const EINVAL: i32 = -libc::EINVAL;

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A queue and its kernel.
struct Kernel {
    queue: Queue,
    addresses: Vec<u64>,
    /// Slots whose request has ended, in this order.
    ended: Receiver<Arc<Slot>>,
    facts: Arc<QueueFacts>,
    wakes: Arc<Wakes>,
}

impl Kernel {
    fn new(shared: &Arc<SharedDevice>, depth: u16, most: u32, rate: Rate) -> Kernel {
        let (wakes, facts) = (Arc::<Wakes>::default(), Arc::<QueueFacts>::default());
        let (tx, ended): (Sender<Arc<Slot>>, _) = mpsc::channel();
        let client = Client::new(shared, Peer::Kernel.into(), Waker::from(Arc::clone(&wakes)));
        let limiters = Limiter::new(rate).map(Arc::new).into_iter().collect();
        let feed = Feed::new(Arc::new(client), limiters);
        // A queue that is dropped ends requests that nobody waits for.
        let deliver = Arc::new(move |slot| _ = tx.send(slot));
        let theirs = Arc::clone(&facts);
        let memory = TagMemory::map(depth, most).unwrap();
        let queue = Queue::new(7, memory, feed, deliver, theirs, time::now());
        let addresses = queue.addresses().map(|(_, address)| address).collect();
        Kernel { queue, addresses, ended, facts, wakes }
    }

    fn over(device: Arc<dyn BlockDevice>, depth: u16) -> Kernel {
        Kernel::new(&SharedDevice::new(device), depth, MOST_BYTES, Rate::default())
    }

    fn memory(&self, tag: u16) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.addresses[usize::from(tag)] as usize)
    }

    /// Writes the memory of a tag, as the kernel does before it delivers a write.
    fn fill(&self, tag: u16, bytes: &[u8]) {
        assert!(bytes.len() <= MOST_BYTES as usize);
        // SAFETY: the memory is as large as the largest request, and the tag is the kernel's.
        unsafe { self.memory(tag).copy_from(bytes.as_ptr(), bytes.len()) };
    }

    /// Reads the memory of a tag, as the kernel does once a read has been answered.
    fn bytes(&self, tag: u16, len: usize) -> Vec<u8> {
        assert!(len <= MOST_BYTES as usize);
        let mut bytes = vec![0; len];
        // SAFETY: as in `fill`; the queue's memory was zeroed.
        unsafe { self.memory(tag).copy_to(bytes.as_mut_ptr(), len) };
        bytes
    }

    /// Delivers a request, and returns the result if the queue answers at once.
    fn deliver(&mut self, tag: u16, op: u8, flags: u32, sector: u64, sectors: u32) -> Option<i32> {
        let op_and_flags = u32::from(op) | flags;
        let descriptor = Descriptor { op_and_flags, sectors, first_sector: sector, address: 0 };
        let answer = self.queue.delivered(tag, descriptor, time::now())?;
        Some(self.take(answer))
    }

    /// Takes an answer. The kernel uses the address that comes with it.
    fn take(&mut self, answer: Answer) -> i32 {
        self.addresses[usize::from(answer.tag)] = answer.address;
        answer.result
    }

    /// Takes an answer for each slot that was delivered so far: the tag and the result.
    fn answers(&mut self) -> Vec<(u16, i32)> {
        let slots: Vec<_> = self.ended.try_iter().collect();
        slots.into_iter().filter_map(|slot| self.answer(&slot)).collect()
    }

    fn answer(&mut self, slot: &Slot) -> Option<(u16, i32)> {
        assert_eq!(slot.queue, 7, "the number that it was made with");
        let answer = self.queue.ended(slot.tag, time::now())?;
        assert_eq!(answer.tag, slot.tag);
        Some((answer.tag, self.take(answer)))
    }

    /// Waits for an answer that comes from another thread.
    fn wait(&mut self) -> (u16, i32) {
        let slot = self.ended.recv().expect("the request ends");
        self.answer(&slot).expect("it has a result")
    }

    fn submit(&mut self) {
        self.queue.submit(false, time::now());
    }

    /// Delivers a request, submits it, and returns its answer, which comes on the spot.
    fn run(&mut self, tag: u16, op: u8, flags: u32, sector: u64, sectors: u32) -> i32 {
        if let Some(result) = self.deliver(tag, op, flags, sector, sectors) {
            return result;
        }
        self.submit();
        let answers = self.answers();
        assert_eq!((answers.len(), answers[0].0), (1, tag), "{answers:?}");
        answers[0].1
    }

    fn in_flight(&self) -> u64 {
        self.facts.in_flight.load(Ordering::Relaxed)
    }

    fn requests(&self) -> [u64; 2] {
        let traffic = self.facts.counts.read();
        let of = |count: fn(&corewise_blockmq::OpStats) -> u64| {
            Op::ALL.iter().map(|&op| count(traffic.of(op))).sum()
        };
        [of(|op| op.requests), of(|op| op.errors)]
    }
}
