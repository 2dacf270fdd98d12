//! ublk on a ring's thread: queues of many disks, whose requests and answers share the thread's
//! system calls.
//!
//! The kernel hands the requests of a queue to the thread that fetched them first, so a queue has
//! one thread for its whole life. That thread belongs to a ring of `corewise-ring`, which the file
//! driver may share. It makes one system call for all that it has: it passes the answers on, and
//! waits for the next requests. A request that the device completes on the spot is answered in the
//! same call as its neighbours.
//!
//! A completion on another thread leaves its [slot](crate::queue::Slot) in the inbox of the
//! [port](Port), and wakes the thread. So do the clients' wakers and orders. Steps and races:
//! `README.md` beside this file.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::task::Wake;
use std::time::Instant;
use std::{io, mem, ptr};

use corewise_ring::{Entries, RingPort, RingUser};
use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::inbox::Inbox;
use corewise_sync::{CachePadded, Completion, Mutex, time};
use io_uring::{opcode, squeue, types};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::abi::{COMMIT_AND_FETCH_REQ, Descriptor, FETCH_REQ, IoCommand, MAX_DEPTH};
use crate::queue::{Answer, Queue, QueueFacts, Slot};

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

/// The part of ublk on a ring's thread that other threads reach.
pub(crate) struct Port {
    inbox: Inbox<Arc<Slot>>,
    /// L: is the lock, a leaf; guards the orders. `None` once the thread takes no more.
    orders: Mutex<Option<Vec<Order>>>,
    /// A: true if there may be orders; Release and Acquire.
    ordered: AtomicBool,
    /// A: true if a client may have its turn. Publish of the bell's protocol: `SeqCst`.
    woken: AtomicBool,
    ring: Arc<CachePadded<RingPort>>,
}

impl Port {
    /// Makes ublk a user of a ring.
    pub(crate) fn open(ring: &Arc<CachePadded<RingPort>>) -> Arc<Port> {
        let port = Arc::new(Port {
            inbox: Inbox::new(),
            orders: Mutex::new(Some(Vec::new())),
            ordered: AtomicBool::new(false),
            woken: AtomicBool::new(false),
            ring: Arc::clone(ring),
        });
        ring.add(Box::new(Server::new(Arc::clone(&port))));
        port
    }

    fn has_work(&self) -> bool {
        !self.inbox.is_empty()
            || self.ordered.load(Ordering::SeqCst)
            || self.woken.load(Ordering::SeqCst)
    }

    /// Hands a slot over whose request has ended. Any context.
    pub(crate) fn deliver(&self, slot: Arc<Slot>) {
        self.inbox.push(slot);
        self.ring.wake();
    }

    /// Gives the thread an order. One that comes after its end is dropped.
    fn order(&self, order: Order) {
        match &mut *self.orders.lock() {
            Some(orders) => orders.push(order),
            None => return,
        }
        self.ordered.store(true, Ordering::SeqCst);
        self.ring.wake();
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
        self.ring.wake();
    }
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
    fn entry(&self, code: u32, answer: Answer) -> squeue::Entry {
        let Answer { tag, result, address } = answer;
        let command = IoCommand { queue: self.id, tag, result, address };
        opcode::UringCmd16::new(types::Fd(self.file.as_raw_fd()), code).cmd(command.bytes()).build()
    }
}

/// Returns the number of a tag's entries.
fn mark(number: u32, tag: u16) -> u64 {
    u64::from(number) << 16 | u64::from(tag)
}

/// ublk's part of a ring's thread.
struct Server {
    port: Arc<Port>,
    places: Vec<Option<Place>>,
    /// Numbers of queues that have got requests, or wait for their turn or a limit.
    active: Vec<u32>,
    /// Entries of the next call, each with its number.
    entries: Vec<(u64, squeue::Entry)>,
    /// Arrival of the requests that have come since the last call.
    arrival: Option<Instant>,
}

impl RingUser for Server {
    fn completed(&mut self, number: u64, result: i32, _ring: &mut Entries<'_, '_>) {
        let (number, tag) = ((number >> 16) as u32, number as u16);
        let now = *self.arrival.get_or_insert_with(time::now);
        let Some(place) = self.place(number) else { return };
        if result != 0 {
            if result != -libc::ENODEV {
                tracing::warn!(tag, result, "ublk gave up a tag of a disk");
            }
            place.queue.died(tag);
            self.active.push(number);
            return;
        }
        let Some(descriptor) = place.descriptors.read(tag) else { return };
        if let Some(answer) = place.queue.delivered(tag, descriptor, now) {
            let entry = place.entry(COMMIT_AND_FETCH_REQ, answer);
            self.entries.push((mark(number, tag), entry));
        }
        if self.active.last() != Some(&number) {
            self.active.push(number);
        }
    }

    fn settle(&mut self, ring: &mut Entries<'_, '_>) {
        let port = Arc::clone(&self.port);
        let came = self.arrival.take();
        let woken = port.woken.load(Ordering::Relaxed) && port.woken.swap(false, Ordering::SeqCst);
        if self.active.is_empty() && !port.has_work() && !woken {
            return;
        }
        let now = came.unwrap_or_else(time::now);
        self.submit(woken, now);
        // Requests that the device completed on the spot are in the inbox now.
        self.answer(time::now());
        self.look_after(now, ring.has_overflow());
        for (number, entry) in self.entries.drain(..) {
            // SAFETY: the tag's memory and the file belong to the place, which stays until the
            // kernel has given each tag back, or the thread, in whose calls alone the kernel uses
            // the memory, has ended.
            unsafe { ring.push_or_wait(&entry, number) };
        }
    }

    fn has_work(&self) -> bool {
        self.port.has_work()
    }

    fn deadline(&self) -> Option<Instant> {
        let Server { places, active, .. } = self;
        let of = |number: &u32| {
            let queue = &places.get(*number as usize)?.as_ref()?.queue;
            queue.deadline().into_iter().chain(queue.rests_at()).min()
        };
        active.iter().filter_map(of).min()
    }

    fn is_in_use(&self) -> bool {
        self.places.iter().any(Option::is_some)
    }

    /// The kernel gives a queue's requests to the next server.
    fn may_be_cut_off(&self) -> bool {
        true
    }

    fn panicked(&mut self) {
        self.port.close();
        tracing::error!("ublk has panicked; the disks of this ring have no server any more");
        self.places.iter().flatten().for_each(|place| place.queue.facts().gone.complete());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.port.close();
    }
}

impl Server {
    fn new(port: Arc<Port>) -> Server {
        let (places, active, entries) = (Vec::new(), Vec::new(), Vec::new());
        Server { port, places, active, entries, arrival: None }
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
            self.entries.push((mark(number as u32, tag), place.entry(FETCH_REQ, first)));
        }
        self.places[number] = Some(place);
        served.send(number as u32);
    }

    fn submit(&mut self, woken: bool, now: Instant) {
        for i in 0..self.active.len() {
            let number = self.active[i];
            if let Some(place) = self.place(number) {
                place.queue.submit(woken, now);
            }
        }
    }

    /// Takes orders, and answers what has ended.
    fn answer(&mut self, now: Instant) {
        let port = Arc::clone(&self.port);
        let slots = port.inbox.take();
        // An order that came before a request ended holds for its answer, too.
        self.take_orders();
        for slot in slots {
            let Some(place) = self.place(slot.queue) else { continue };
            if let Some(answer) = place.queue.ended(slot.tag, now) {
                let entry = place.entry(COMMIT_AND_FETCH_REQ, answer);
                self.entries.push((mark(slot.queue, slot.tag), entry));
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
}

fn place_is_ending(places: &[Option<Place>], number: u32) -> bool {
    let place = places.get(number as usize).and_then(Option::as_ref);
    place.is_some_and(|place| place.queue.is_quiet() || place.queue.is_gone())
}

#[cfg(test)]
mod tests;
