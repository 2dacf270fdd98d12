//! One queue of a disk: the state of its tags, from the kernel's answers to the next entries.
//!
//! The kernel owns a tag until it delivers a request, and the queue owns it until its answer. A tag
//! is in one state:
//!
//! | state | owner | what ends it |
//! |---|---|---|
//! | `Kernel` | the kernel | a request: `Device`, or `Held` if the disk is left; an error: `Dead` |
//! | `Device` | the device | the request's end: it is answered, and the tag is the kernel's again |
//! | `Held` | nobody | the end of the server: the kernel delivers the request to the next one |
//! | `Dead` | nobody | nothing: the kernel delivers no further request |
//!
//! Nothing here makes a system call: the ring's thread passes what the kernel says, and takes the
//! entries. So each order of events can be tested without a kernel. Steps and races: `README.md`
//! beside this file.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::{Duration, Instant};

use corewise_blockmq::{AlignedBuf, Buffer, BufferMemory, Completed, Flags, Payload, Request};
use corewise_export::{Counts, Feed, Next};
use corewise_sync::atomic::{Ordering, aside};
use corewise_sync::inbox::{HasLink, Link};
use corewise_sync::panics::caught;
use corewise_sync::{Completion, Mutex};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::abi::{Descriptor, op};

/// Largest read or write in bytes of a disk that this process makes.
pub(crate) const MOST_BYTES: u32 = 128 << 10;
/// Number of requests that a queue has at once.
pub(crate) const DEPTH: u16 = 128;
/// Time without a request after which the memory of tags is given back.
const REST: Duration = Duration::from_secs(1);
/// Size of a sector.
const SECTOR: u64 = 512;
/// Alignment of the memory of requests: a page, as files that go past the page cache want it.
const ALIGN: usize = 4096;

/// The place where a completion leaves its result for the ring's thread.
pub(crate) struct Slot {
    link: Link,
    /// Number of the queue among those of its thread.
    pub(crate) queue: u32,
    pub(crate) tag: u16,
    /// L: is the lock, a leaf; guards the result, from the end of the request until its answer.
    done: Mutex<Option<Completed>>,
}

// SAFETY: always the same field of the same value.
unsafe impl HasLink for Slot {
    fn link(&self) -> &Link {
        &self.link
    }
}

/// A receiver of slots whose request has ended. Called on any thread, in an atomic section.
pub(crate) type Deliver = Arc<dyn Fn(Arc<Slot>) + Send + Sync>;

/// The part of a queue that other threads read.
#[derive(Default)]
pub(crate) struct QueueFacts {
    pub(crate) counts: Counts,
    /// A: requests that the server has. Written by the ring's thread alone. Relaxed: only shown.
    pub(crate) in_flight: aside::AtomicU64,
    /// Done once every tag is dead or held, and the thread has let the queue go; or once the thread
    /// has ended.
    pub(crate) gone: Completion,
    /// Done once the device has no request of a queue that is being left or is gone.
    pub(crate) quiet: Completion,
}

impl QueueFacts {
    /// Returns true if the kernel has given up the queue. The queue of a thread that has panicked
    /// is gone, and not quiet.
    pub(crate) fn was_given_up(&self) -> bool {
        self.gone.is_complete() && self.quiet.is_complete()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TagState {
    Kernel,
    Device,
    Held,
    Dead,
}

/// The part of a tag that its requests need. A queue at rest has none.
struct Tag {
    /// Memory of its requests; `None` while a request has it.
    buffer: Option<AlignedBuf>,
    /// Address of that memory, for the kernel.
    address: u64,
    /// Place of its results.
    slot: Arc<Slot>,
    /// Arrival of its request.
    came: Instant,
}

/// An answer of a tag: bytes that were done, or a negative error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) tag: u16,
    pub(crate) result: i32,
    pub(crate) address: u64,
}

pub(crate) struct Queue {
    /// Number among the queues of its thread.
    number: u32,
    feed: Feed,
    memory: TagMemory,
    states: Box<[TagState]>,
    /// Tags, each made with its first request.
    tags: Box<[Option<Box<Tag>>]>,
    deliver: Deliver,
    facts: Arc<QueueFacts>,
    /// Number of tags in each state that isn't `Kernel`.
    in_device: usize,
    held: usize,
    dead: usize,
    leaving: bool,
    /// True if the feed has got requests since it was last submitted.
    fed: bool,
    /// When the feed has to be submitted again.
    next: Next,
    /// True if there were requests since memory was last given back.
    used: bool,
    /// Time from which that memory is given back, unless further requests come.
    rests: Instant,
}

impl Queue {
    /// Creates a queue with the tags that `memory` is for, all of them the kernel's. `number` is
    /// its number among the queues of its thread.
    pub(crate) fn new(
        number: u32,
        memory: TagMemory,
        feed: Feed,
        deliver: Deliver,
        facts: Arc<QueueFacts>,
        now: Instant,
    ) -> Queue {
        let depth = usize::from(memory.depth);
        Queue {
            number,
            feed,
            memory,
            states: vec![TagState::Kernel; depth].into(),
            tags: (0..depth).map(|_| None).collect(),
            deliver,
            facts,
            in_device: 0,
            held: 0,
            dead: 0,
            leaving: false,
            fed: false,
            next: Next::Idle,
            used: false,
            rests: now,
        }
    }

    /// Returns the memory of each tag, with which its first request is fetched.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = (u16, u64)> {
        (0..self.memory.depth).map(|tag| (tag, self.memory.address(tag)))
    }

    /// Takes a request that the kernel delivers for a tag. Returns an answer if it doesn't go to
    /// the device.
    pub(crate) fn delivered(
        &mut self,
        tag: u16,
        descriptor: Descriptor,
        now: Instant,
    ) -> Option<Answer> {
        let state = self.states.get_mut(usize::from(tag))?;
        if *state != TagState::Kernel {
            tracing::error!(tag, "ublk delivered a request for a tag that it doesn't own");
            return None;
        }
        if self.leaving {
            *state = TagState::Held;
            self.held += 1;
            return None;
        }
        self.used = true;
        let (memory, number) = (&self.memory, self.number);
        let at = self.tags[usize::from(tag)].get_or_insert_with(|| {
            let (link, done) = (Link::new(), Mutex::new(None));
            let slot = Arc::new(Slot { link, queue: number, tag, done });
            let address = memory.address(tag);
            // SAFETY: a buffer of this place goes with its tag, and the tag is new.
            let buffer = Some(unsafe { memory.buffer(tag) });
            Box::new(Tag { buffer, address, slot, came: now })
        });
        at.came = now;
        let address = at.address;
        let rq = match request(&descriptor, &mut at.buffer) {
            Ok(rq) => rq,
            Err(errno) => return Some(Answer { tag, result: -errno, address }),
        };
        let is_durable = descriptor.is_fua() && rq.op().is_change();
        let rq = if is_durable { self.feed.client().durable(rq) } else { rq };
        *state = TagState::Device;
        self.in_device += 1;
        self.fed = true;
        let (slot, deliver) = (Arc::clone(&at.slot), Arc::clone(&self.deliver));
        let push = || {
            self.feed.push(rq, move |done| {
                *slot.done.lock() = Some(done);
                deliver(slot);
            });
        };
        // The request ends all the same.
        caught(push).unwrap_or_else(|| tracing::error!("a device panicked in a submission"));
        self.show();
        None
    }

    /// Records that the kernel delivers no further request for a tag.
    pub(crate) fn died(&mut self, tag: u16) {
        let Some(state) = self.states.get_mut(usize::from(tag)) else { return };
        if *state == TagState::Kernel {
            *state = TagState::Dead;
            self.dead += 1;
        }
    }

    /// Takes the result of a request, and returns the answer. The tag is the kernel's then.
    pub(crate) fn ended(&mut self, tag: u16, now: Instant) -> Option<Answer> {
        let at = self.tags.get_mut(usize::from(tag))?.as_mut()?;
        let done = at.slot.done.lock().take()?;
        let (op, len) = (done.op, done.len);
        let mut result = match &done.result {
            Ok(()) if op.has_bytes() => len as i32,
            Ok(()) => 0,
            Err(error) => -error.errno().saturating_abs().max(1),
        };
        match done.payload {
            Payload::One(Buffer::Aligned(buffer)) => at.buffer = Some(buffer),
            // The kernel takes the bytes of a read from the address that the answer has, and writes
            // those of the tag's next request there: no device may have lost that memory.
            _ if op.has_bytes() => {
                at.buffer = Some(AlignedBuf::zeroed(self.memory.most as usize, ALIGN));
                result = -libc::EIO;
            }
            _ => {}
        }
        if let Some(buffer) = &mut at.buffer {
            at.address = address(buffer);
        }
        self.states[usize::from(tag)] = TagState::Kernel;
        self.in_device -= 1;
        self.rests = now + REST;
        let bytes = (result >= 0).then_some(len);
        self.facts.counts.ended(op, bytes, now.saturating_duration_since(at.came));
        let answer = Answer { tag, result, address: at.address };
        self.show();
        Some(answer)
    }

    fn show(&self) {
        self.facts.in_flight.store(self.in_device as u64, Ordering::Relaxed);
    }

    /// Submits what may go to the device, if there is anything new or its time has come. If the
    /// device panics, the requests that were on their way fail, and the next ones are submitted.
    pub(crate) fn submit(&mut self, woken: bool, now: Instant) {
        let is_due = match self.next {
            Next::Idle => false,
            Next::At(moment) => moment <= now,
            Next::Woken => woken,
        };
        if self.fed || is_due {
            self.fed = false;
            self.next = loop {
                match caught(|| self.feed.submit()) {
                    Some(next) => break next,
                    // Each panic ends the requests that it met, so the loop ends.
                    None => tracing::error!("a device panicked in a submission"),
                }
            };
        }
    }

    /// Returns true if requests wait for their turn or a limit.
    pub(crate) fn is_waiting(&self) -> bool {
        self.next.is_waiting()
    }

    /// Returns true if the thread has to look at the queue again, though it gets no request.
    pub(crate) fn is_active(&self) -> bool {
        self.is_waiting() || self.used
    }

    /// Gives memory back that no request has needed for a while.
    pub(crate) fn rest(&mut self, now: Instant) {
        if !self.used || self.in_device > 0 || now < self.rests {
            return;
        }
        self.used = false;
        for (number, at) in (0..).zip(&mut self.tags) {
            // One that has lost its place keeps its memory, of which the kernel knows.
            let place = self.memory.address(number);
            at.take_if(|at| at.buffer.is_some() && at.address == place);
        }
        // SAFETY: no tag's memory holds bytes that matter: the device has no request, and the
        // kernel writes those of a new one in calls of this thread, which has taken all that these
        // calls delivered.
        unsafe { self.memory.forget() };
    }

    /// Returns the moment at which memory is to be given back.
    pub(crate) fn rests_at(&self) -> Option<Instant> {
        (self.used && self.in_device == 0).then_some(self.rests)
    }

    /// Returns the moment at which requests may pass a limit.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.next {
            Next::At(moment) => Some(moment),
            Next::Idle | Next::Woken => None,
        }
    }

    /// Takes no further requests: the kernel keeps them for the next server.
    pub(crate) fn leave(&mut self) {
        self.leaving = true;
    }

    /// Returns true if the queue is being left, and the device has none of its requests.
    pub(crate) fn is_quiet(&self) -> bool {
        self.leaving && self.in_device == 0
    }

    /// Returns true if neither the kernel nor the device will come back to any tag.
    pub(crate) fn is_gone(&self) -> bool {
        self.dead + self.held == self.states.len()
    }

    /// Returns what other threads read.
    pub(crate) fn facts(&self) -> &Arc<QueueFacts> {
        &self.facts
    }
}

/// Returns the address of a tag's memory, all of which the kernel reads and writes. The bytes stay
/// there, though the buffer holds none from then on.
fn address(buffer: &mut AlignedBuf) -> u64 {
    buffer.clear();
    buffer.spare_capacity_mut().as_mut_ptr().expose_provenance() as u64
}

/// The memory of a queue's requests, with a place for each tag. A page is taken once it is used.
pub(crate) struct TagMemory {
    /// Address of the first place.
    base: u64,
    depth: u16,
    /// Number of bytes of a place: those of the largest request.
    most: u32,
    buffers: BufferMemory,
}

struct Mapping {
    base: u64,
    length: usize,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let base = ptr::with_exposed_provenance_mut(self.base as usize);
        // SAFETY: mapped by `TagMemory::map`, and no buffer is left there.
        let _ = unsafe { munmap(base, self.length) };
    }
}

impl TagMemory {
    /// Maps the memory of `depth` tags. Fails if the process may have no more memory.
    pub(crate) fn map(depth: u16, most: u32) -> io::Result<TagMemory> {
        let length = usize::from(depth) * most as usize;
        let (prot, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping, which nothing else names.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), length, prot, flags) }?;
        // Most of a huge page would never be used.
        // SAFETY: advice that changes no content. A kernel without huge pages refuses it.
        let _ = unsafe { madvise(base, length, Advice::LinuxNoHugepage) };
        let base = base.expose_provenance() as u64;
        let buffers = BufferMemory::new(most as usize, ALIGN, Box::new(Mapping { base, length }));
        Ok(TagMemory { base, depth, most, buffers })
    }

    /// Returns the address of a tag's place.
    fn address(&self, tag: u16) -> u64 {
        self.base + u64::from(tag) * u64::from(self.most)
    }

    /// Returns the buffer of a tag's place.
    ///
    /// # Safety
    /// The tag is below the depth, and has no other buffer of its place.
    unsafe fn buffer(&self, tag: u16) -> AlignedBuf {
        let place = ptr::with_exposed_provenance_mut(self.address(tag) as usize);
        let place = NonNull::new(place).expect("no mapping begins at 0");
        // SAFETY: the place lies in the mapping, which the buffers own. Each is at a multiple of a
        // page, and has one buffer: the caller says so.
        unsafe { self.buffers.buffer(place) }
    }

    /// Gives the pages back. They read as zeroes from then on.
    ///
    /// # Safety
    /// Nobody needs the bytes, and the kernel writes none meanwhile.
    unsafe fn forget(&self) {
        let base = ptr::with_exposed_provenance_mut(self.base as usize);
        let length = usize::from(self.depth) * self.most as usize;
        // SAFETY: it is the whole mapping, and the caller answers for its bytes.
        let _ = unsafe { madvise(base, length, Advice::LinuxDontNeed) };
    }
}

/// Makes the request of a descriptor, with the tag's memory if it has bytes. Fails with an error
/// number.
fn request(descriptor: &Descriptor, buffer: &mut Option<AlignedBuf>) -> Result<Request, i32> {
    if descriptor.op() == op::FLUSH {
        // Its place means nothing.
        return Ok(Request::flush());
    }
    let offset = descriptor.first_sector.checked_mul(SECTOR).ok_or(libc::EINVAL)?;
    let len = u64::from(descriptor.sectors) * SECTOR;
    offset.checked_add(len).ok_or(libc::EINVAL)?;
    let mut memory = || {
        let memory = buffer.take().ok_or(libc::EIO)?;
        if len > memory.capacity() as u64 {
            *buffer = Some(memory);
            return Err(libc::EINVAL);
        }
        Ok(memory)
    };
    Ok(match descriptor.op() {
        op::READ => Request::read_into(offset, len as usize, memory()?),
        op::WRITE => {
            let mut data = memory()?;
            // SAFETY: the memory was zeroed when it was allocated, the kernel has written the
            // request's bytes, and they are at most the capacity.
            unsafe { data.set_len(len as usize) };
            Request::write(offset, data)
        }
        op::DISCARD => Request::discard(offset, len),
        op::WRITE_ZEROES => {
            let flags = Flags { no_unmap: descriptor.is_no_unmap(), ..Flags::default() };
            Request::write_zeroes(offset, len).with_flags(flags)
        }
        _ => return Err(libc::EOPNOTSUPP),
    })
}

#[cfg(test)]
mod tests;
