//! The threads that serve disks: each has a ring, and queues of many disks on it.
//!
//! The kernel hands the requests of a queue to the thread that fetched them first, so a queue has
//! one thread for its whole life. A thread makes one system call for all that it has: it passes the
//! answers on, and waits for the next requests. A request that the device completes on the spot is
//! answered in the same call as its neighbours.
//!
//! A completion on another thread leaves its [slot](crate::queue::Slot) in the thread's inbox, and
//! rings the [bell](corewise_sync::Bell), which wakes a sleeping thread through an `eventfd` that
//! the ring polls. So do the clients' wakers and orders. A thread at rest sleeps in the kernel.
//! Steps and races: `README.md` beside this file.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::task::Wake;
use std::time::{Duration, Instant};
use std::{io, mem, ptr};

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::inbox::Inbox;
use corewise_sync::panics::caught;
use corewise_sync::sys::Tid;
use corewise_sync::thread::{Builder, JoinHandle};
use corewise_sync::{Bell, Completion, Mutex, Parker, time};
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{
    CompletionQueue, IoUring, SubmissionQueue, Submitter, cqueue, opcode, squeue, types,
};
use rustix::event::{EventfdFlags, eventfd};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::abi::{COMMIT_AND_FETCH_REQ, Descriptor, FETCH_REQ, IoCommand, MAX_DEPTH};
use crate::queue::{Answer, Queue, QueueFacts, Slot};

/// Number of the completions of the bell.
const BELL: u64 = u64::MAX;
/// Number of entries that the ring has room for before it has to submit some.
const ENTRIES: u32 = 512;
/// Number of completions that the ring has room for. The kernel keeps the rest.
const COMPLETIONS: u32 = 4096;
/// Pause between two tries if the kernel accepts no entries.
const FULL_PAUSE: Duration = Duration::from_millis(3);
/// `POLLIN`.
const READABLE: u32 = 1;

/// The descriptors of a queue's requests, which the kernel writes.
pub(crate) struct Descriptors {
    base: *mut Descriptor,
    bytes: usize,
    depth: u16,
}

// SAFETY: the mapping is the kernel's to write, and any thread's to read.
unsafe impl Send for Descriptors {}

impl Descriptors {
    /// Maps the descriptors of queue `queue`, with `depth` tags.
    pub(crate) fn map(file: &OwnedFd, queue: u16, depth: u16) -> io::Result<Descriptors> {
        let (size, page) = (size_of::<Descriptor>() as u64, rustix::param::page_size() as u64);
        let bytes = (size * u64::from(depth)).next_multiple_of(page);
        let at = u64::from(queue) * (MAX_DEPTH * size).next_multiple_of(page);
        // SAFETY: a new mapping of a file, which nothing else names.
        let base = unsafe {
            let (prot, flags) = (ProtFlags::READ, MapFlags::SHARED | MapFlags::POPULATE);
            mmap(ptr::null_mut(), bytes as usize, prot, flags, file, at)?
        };
        Ok(Descriptors { base: base.cast(), bytes: bytes as usize, depth })
    }

    /// Returns the descriptor of a tag whose request has been delivered.
    fn read(&self, tag: u16) -> Option<Descriptor> {
        // SAFETY: the tag is one of the mapped ones. The kernel wrote its descriptor before it
        // delivered the request, and writes it again only after the answer; any bytes are one.
        (tag < self.depth).then(|| unsafe { self.base.add(tag.into()).read_volatile() })
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and nothing names it any more.
        let _ = unsafe { munmap(self.base.cast(), self.bytes) };
    }
}

/// A queue on its way to its thread.
pub(crate) struct NewQueue {
    /// Makes the queue, from its number on the thread.
    pub(crate) make: Box<dyn FnOnce(u32) -> Queue + Send>,
    /// The disk's character device.
    pub(crate) file: Arc<OwnedFd>,
    /// Number of the queue on its disk.
    pub(crate) id: u16,
    pub(crate) descriptors: Descriptors,
    pub(crate) served: ServedSender,
}

/// The number of a queue on its thread, once it has one.
#[derive(Default)]
pub(crate) struct Served {
    /// L: is the lock, a leaf; guards the number.
    number: Mutex<Option<u32>>,
    /// Done once the queue has a number, or its thread has ended.
    done: Completion,
}

impl Served {
    /// Waits for the queue's number: `None` if its thread has ended. Blocks for a moment.
    pub(crate) fn number(&self) -> Option<u32> {
        self.done.wait();
        *self.number.lock()
    }
}

/// The sender of a queue's number, which says also that there will be none: when it is dropped.
pub(crate) struct ServedSender(pub(crate) Arc<Served>);

impl ServedSender {
    fn send(self, number: u32) {
        *self.0.number.lock() = Some(number);
    }
}

impl Drop for ServedSender {
    fn drop(&mut self) {
        self.0.done.complete();
    }
}

/// A message to a thread.
enum Order {
    Serve(NewQueue),
    /// Leaves the requests of a queue to the next server: its number, and the facts by which it is
    /// known. The number is another queue's once the kernel has given up all tags of this one.
    Leave(u32, Arc<QueueFacts>),
}

/// The part of a thread that other threads reach.
pub(crate) struct Port {
    inbox: Inbox<Arc<Slot>>,
    /// L: is the lock, a leaf; guards the orders. `None` once the thread takes no more.
    orders: Mutex<Option<Vec<Order>>>,
    /// A: true if there may be orders; Release and Acquire.
    ordered: AtomicBool,
    /// A: true if a client may have its turn. Publish of the bell's protocol: `SeqCst`.
    woken: AtomicBool,
    bell: Bell,
    wire: OwnedFd,
    /// A: true once the thread has to end; Release and Acquire.
    end: AtomicBool,
}

impl Port {
    fn new() -> io::Result<Port> {
        Ok(Port {
            inbox: Inbox::new(),
            orders: Mutex::new(Some(Vec::new())),
            ordered: AtomicBool::new(false),
            woken: AtomicBool::new(false),
            bell: Bell::new(),
            wire: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            end: AtomicBool::new(false),
        })
    }

    fn is_empty(&self) -> bool {
        self.inbox.is_empty()
            && !self.ordered.load(Ordering::SeqCst)
            && !self.woken.load(Ordering::SeqCst)
            && !self.end.load(Ordering::SeqCst)
    }

    fn ring(&self) {
        if self.bell.must_ring() {
            // The only failure is a counter that is full after 2^64 rings.
            while let Err(rustix::io::Errno::INTR) =
                rustix::io::write(&self.wire, &1u64.to_ne_bytes())
            {}
        }
    }

    /// Hands a slot over whose request has ended. Any context.
    pub(crate) fn deliver(&self, slot: Arc<Slot>) {
        self.inbox.push(slot);
        self.ring();
    }

    /// Gives the thread an order. One that comes after its end is dropped.
    fn order(&self, order: Order) {
        match &mut *self.orders.lock() {
            Some(orders) => orders.push(order),
            None => return,
        }
        self.ordered.store(true, Ordering::SeqCst);
        self.ring();
    }

    /// Drops the orders that the thread hasn't taken, and all that come.
    fn close(&self) {
        let orders = self.orders.lock().take();
        drop(orders);
    }

    pub(crate) fn serve(&self, queue: NewQueue) {
        self.order(Order::Serve(queue));
    }

    pub(crate) fn leave(&self, number: u32, facts: &Arc<QueueFacts>) {
        self.order(Order::Leave(number, Arc::clone(facts)));
    }
}

/// Wakes the thread of a client whose turn has come.
impl Wake for Port {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        self.ring();
    }
}

/// A thread with its ring.
pub(crate) struct RingThread {
    pub(crate) port: Arc<Port>,
    pub(crate) tid: Tid,
    thread: Option<JoinHandle<Vec<Option<Place>>>>,
}

impl RingThread {
    /// Starts thread `i`. Blocks until it has its ring.
    pub(crate) fn spawn(i: usize) -> io::Result<RingThread> {
        let port = Arc::new(Port::new()?);
        let theirs = Arc::clone(&port);
        let told = Arc::new((Completion::new(), Mutex::new(None)));
        let tell = Arc::clone(&told);
        let thread = Builder::new().name(format!("cw-ublk/{i}")).spawn(move || {
            // The ring belongs to the thread that makes it.
            let ring = ring();
            let made = match &ring {
                Ok(_) => Ok(Tid::current()),
                Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
            };
            *tell.1.lock() = Some(made);
            tell.0.complete();
            ring.map_or_else(|_| Vec::new(), |ring| serve(theirs, ring))
        })?;
        told.0.wait();
        let made = told.1.lock().take();
        match made {
            Some(Ok(tid)) => Ok(RingThread { port, tid, thread: Some(thread) }),
            Some(Err(error)) => Err(error),
            None => Err(io::Error::other("the thread ended before it had a ring")),
        }
    }
}

impl Drop for RingThread {
    /// Ends the thread, and with its ring what the kernel fetches for queues that were left.
    fn drop(&mut self) {
        self.port.end.store(true, Ordering::SeqCst);
        self.port.ring();
        // The kernel may use the tags' memory in any call of the thread, up to its last one.
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(places)) => drop(places),
            Some(Err(_)) => tracing::error!("a thread of ublk panicked at its end"),
            None => {}
        }
    }
}

fn ring() -> io::Result<IoUring> {
    let mut ours = IoUring::builder();
    ours.dontfork().setup_submit_all().setup_single_issuer().setup_defer_taskrun();
    ours.setup_cqsize(COMPLETIONS).build(ENTRIES)
}

/// A queue on its thread.
struct Place {
    queue: Queue,
    file: Arc<OwnedFd>,
    id: u16,
    descriptors: Descriptors,
}

impl Place {
    /// Makes the entry that fetches a tag's next request, with the answer of the last one.
    fn entry(&self, number: u32, code: u32, answer: Answer) -> squeue::Entry {
        let Answer { tag, result, address } = answer;
        let command = IoCommand { queue: self.id, tag, result, address };
        opcode::UringCmd16::new(types::Fd(self.file.as_raw_fd()), code)
            .cmd(command.bytes())
            .build()
            .user_data(u64::from(number) << 16 | u64::from(tag))
    }
}

struct Server {
    port: Arc<Port>,
    places: Vec<Option<Place>>,
    /// Numbers of queues that have got requests, or wait for their turn or a limit.
    active: Vec<u32>,
    /// Entries that the ring had no room for.
    queued: Vec<squeue::Entry>,
    /// True if the kernel no longer polls the bell's wire.
    deaf: bool,
    batch: Vec<(u64, i32, u32)>,
}

/// Serves the ring until the port ends, and returns the queues whose memory the kernel may have
/// until this thread ends.
fn serve(port: Arc<Port>, mut ring: IoUring) -> Vec<Option<Place>> {
    let (mut submitter, mut sq, mut cq) = ring.split();
    // This saves the kernel a look-up in each call; it may not support it.
    let _ = submitter.register_ring_fd();
    // Nothing drops it on this thread, not even a panic.
    let mut server = mem::ManuallyDrop::new(Server {
        port: Arc::clone(&port),
        places: Vec::new(),
        active: Vec::new(),
        queued: Vec::new(),
        deaf: true,
        batch: Vec::new(),
    });
    let ended = caught(|| server.run(&submitter, &mut sq, &mut cq));
    port.close();
    if ended.is_none() {
        tracing::error!("a thread of ublk panicked; its disks have no server any more");
        server.places.iter().flatten().for_each(|place| place.queue.facts().gone.complete());
    }
    mem::ManuallyDrop::into_inner(server).places
}

impl Server {
    fn run(
        &mut self,
        submitter: &Submitter<'_>,
        sq: &mut SubmissionQueue<'_>,
        cq: &mut CompletionQueue<'_>,
    ) {
        let port = Arc::clone(&self.port);
        loop {
            let now = time::now();
            self.take_orders();
            self.reap(cq, now);
            let woken =
                port.woken.load(Ordering::Relaxed) && port.woken.swap(false, Ordering::SeqCst);
            self.submit(woken, now);
            // Requests that the device completed on the spot are in the inbox now.
            self.answer(time::now());
            self.look_after(now, sq.cq_overflow());
            for entry in mem::take(&mut self.queued) {
                self.push(entry, sq, submitter);
            }
            if port.end.load(Ordering::Acquire) {
                return;
            }
            if self.deaf {
                self.listen(sq);
            }
            port.bell.doze();
            // Only what the kernel has can wake the thread.
            let wait = port.is_empty() && self.queued.is_empty() && !self.deaf;
            sq.sync();
            let result = match (wait, self.deadline()) {
                (true, Some(until)) => {
                    let left = until.saturating_duration_since(time::now());
                    let left = Timespec::new().sec(left.as_secs()).nsec(left.subsec_nanos());
                    submitter.submit_with_args(1, &SubmitArgs::new().timespec(&left))
                }
                (true, None) => submitter.submit_and_wait(1),
                (false, _) => submitter.submit(),
            };
            port.bell.awake();
            match result {
                Err(error) if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::ETIME)) => {
                    // The kernel is short of memory, or wants completions taken first.
                    tracing::warn!(%error, "io_uring accepts no entries now; trying again");
                    Parker::new().park_timeout(FULL_PAUSE);
                }
                _ => {}
            }
        }
    }

    fn listen(&mut self, sq: &mut SubmissionQueue<'_>) {
        let wire = types::Fd(self.port.wire.as_raw_fd());
        let poll = opcode::PollAdd::new(wire, READABLE).multi(true).build().user_data(BELL);
        // SAFETY: the entry names no memory, and the wire lives as long as the port.
        self.deaf = unsafe { sq.push(&poll) }.is_err();
    }

    /// Adds an entry, and submits what is there if there is no room.
    fn push(
        &mut self,
        entry: squeue::Entry,
        sq: &mut SubmissionQueue<'_>,
        submitter: &Submitter<'_>,
    ) {
        for _ in 0..2 {
            // SAFETY: the tag's memory and the file belong to the place, which stays until the
            // kernel has given each tag back, or this thread, in whose calls alone the kernel uses
            // the memory, has ended.
            if unsafe { sq.push(&entry) }.is_ok() {
                return;
            }
            sq.sync();
            let _ = submitter.submit();
            sq.sync();
        }
        self.queued.push(entry);
    }

    fn take_orders(&mut self) {
        if !self.port.ordered.load(Ordering::Relaxed) {
            return;
        }
        self.port.ordered.store(false, Ordering::SeqCst);
        let orders = self.port.orders.lock().as_mut().map(mem::take);
        for order in orders.into_iter().flatten() {
            match order {
                Order::Serve(new) => self.add(new),
                Order::Leave(number, facts) => {
                    let place = self.place(number);
                    if let Some(place) = place.filter(|it| Arc::ptr_eq(it.queue.facts(), &facts)) {
                        place.queue.leave();
                        self.active.push(number);
                    }
                }
            }
        }
    }

    fn place(&mut self, number: u32) -> Option<&mut Place> {
        self.places.get_mut(number as usize)?.as_mut()
    }

    fn add(&mut self, new: NewQueue) {
        let NewQueue { make, file, id, descriptors, served } = new;
        let free = self.places.iter().position(Option::is_none);
        let number = free.unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        let place = Place { queue: make(number as u32), file, id, descriptors };
        for (tag, address) in place.queue.addresses() {
            let first = Answer { tag, result: 0, address };
            self.queued.push(place.entry(number as u32, FETCH_REQ, first));
        }
        self.places[number] = Some(place);
        served.send(number as u32);
    }

    /// Takes what the kernel has delivered.
    fn reap(&mut self, cq: &mut CompletionQueue<'_>, now: Instant) {
        cq.sync();
        self.batch.extend(cq.by_ref().map(|e| (e.user_data(), e.result(), e.flags())));
        cq.sync();
        let mut batch = mem::take(&mut self.batch);
        for (number, result, flags) in batch.drain(..) {
            if number == BELL {
                self.deaf |= !cqueue::more(flags);
                continue;
            }
            let (number, tag) = ((number >> 16) as u32, number as u16);
            let Some(place) = self.place(number) else { continue };
            if result != 0 {
                if result != -libc::ENODEV {
                    tracing::warn!(tag, result, "ublk gave up a tag of a disk");
                }
                place.queue.died(tag);
                self.active.push(number);
                continue;
            }
            let Some(descriptor) = place.descriptors.read(tag) else { continue };
            if let Some(answer) = place.queue.delivered(tag, descriptor, now) {
                let entry = place.entry(number, COMMIT_AND_FETCH_REQ, answer);
                self.queued.push(entry);
            }
            if self.active.last() != Some(&number) {
                self.active.push(number);
            }
        }
        self.batch = batch;
    }

    fn submit(&mut self, woken: bool, now: Instant) {
        for i in 0..self.active.len() {
            let number = self.active[i];
            if let Some(place) = self.place(number) {
                place.queue.submit(woken, now);
            }
        }
    }

    /// Answers what has ended.
    fn answer(&mut self, now: Instant) {
        let port = Arc::clone(&self.port);
        for slot in port.inbox.take() {
            let Some(place) = self.place(slot.queue) else { continue };
            if let Some(answer) = place.queue.ended(slot.tag, now) {
                let entry = place.entry(slot.queue, COMMIT_AND_FETCH_REQ, answer);
                self.queued.push(entry);
            }
            if place_is_ending(&self.places, slot.queue) {
                self.active.push(slot.queue);
            }
        }
    }

    /// Forgets queues that are gone, and keeps those active that wait for something.
    /// A queue whose requests may lie in the kernel (`overflows`) keeps its memory.
    fn look_after(&mut self, now: Instant, overflows: bool) {
        let mut active = mem::take(&mut self.active);
        active.sort_unstable();
        active.dedup();
        active.retain(|&number| {
            let Some(place) = self.place(number) else { return false };
            if place.queue.is_quiet() {
                place.queue.facts().quiet.complete();
            }
            if place.queue.is_gone() {
                let facts = Arc::clone(place.queue.facts());
                self.places[number as usize] = None;
                facts.quiet.complete();
                facts.gone.complete();
                return false;
            }
            if !overflows {
                place.queue.rest(now);
            }
            place.queue.is_active()
        });
        self.active = active;
    }

    fn deadline(&mut self) -> Option<Instant> {
        let Server { places, active, .. } = self;
        let of = |number: &u32| {
            let queue = &places.get(*number as usize)?.as_ref()?.queue;
            queue.deadline().into_iter().chain(queue.rests_at()).min()
        };
        active.iter().filter_map(of).min()
    }
}

fn place_is_ending(places: &[Option<Place>], number: u32) -> bool {
    let place = places.get(number as usize).and_then(Option::as_ref);
    place.is_some_and(|place| place.queue.is_quiet() || place.queue.is_gone())
}

#[cfg(test)]
mod tests;
