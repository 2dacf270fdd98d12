//! A ring: one queue of a guest's disk, and the thread that serves it.
//!
//! The thread owns everything of its ring. The session changes the ring by commands, which the
//! thread executes between two passes. The device ends requests on any thread: the end goes to the
//! ring's inbox, and the ring's thread copies the bytes and tells the guest. So no thread of the
//! device touches guest memory, whose pages may be slow to come.
//!
//! A pass takes what has ended, executes commands, takes new requests from the available ring,
//! submits pieces as the memory allows, and notifies the guest once. `README.md` beside this file
//! has the life of a request and the reasons why none is lost.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corewise_blockmq::{Completed, IoErrorKind, Op, Request};
use corewise_export::Next;
use corewise_sync::atomic::{Ordering, fence};
use corewise_sync::{Mutex, time};
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use virtio_bindings::virtio_ring::VRING_AVAIL_F_NO_INTERRUPT;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress};

use self::handle::IdleSignal;
use buffers::Buffers;
use chain::{BadChain, RawRequest, Status, copy_payload};
use event::Event;
use work::{ID_BYTES, Kind, Piece, RANGE_BYTES, Work};

use crate::config::{EVENT_IDX, FLUSH, RANGES, SECTOR};
use crate::faults::{MemoryLoss, watch};
use crate::inflight::{InflightRegion, InflightRing};
use crate::memory::GuestRam;
use crate::port::Port;
use crate::shared::{DiskShared, RingCounters};
use crate::waker::ThreadWaker;

mod buffers;
mod chain;
#[allow(unsafe_code, reason = "requests of an io_uring")]
mod event;
pub(crate) mod handle;
mod work;

/// Most entries of a ring.
pub(crate) const MOST_ENTRIES: u16 = 1024;
/// Largest number of chains that one pass takes, so that ends and commands have their turn.
const BATCH: usize = 64;

/// A change of a ring that the session has its thread make.
type Command = Box<dyn FnOnce(&mut Ring) + Send>;

/// The side of a ring that other threads reach.
pub(crate) struct RingShared {
    waker: Arc<ThreadWaker>,
    /// L: is the lock, held for a moment; guards what has come for the ring's thread.
    inbox: Mutex<Inbox>,
}

#[derive(Default)]
struct Inbox {
    ended: Vec<Ended>,
    commands: Vec<Command>,
    /// True once the thread takes nothing more.
    closed: bool,
}

/// A piece that the device has ended.
struct Ended {
    head: u16,
    completed: Completed,
}

/// A request in flight.
struct Chain {
    raw: RawRequest,
    work: Work,
    /// Time at which it was taken.
    came: Instant,
    /// Number of pieces in the device.
    open: u32,
    /// The status, once it is an error.
    failed: Option<Status>,
    durability: Durability,
}

/// The way in which a change becomes durable.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Durability {
    /// By the guest's next flush.
    Later,
    /// By itself.
    Fua,
    /// By a flush that comes behind it.
    Flush,
    /// By a flush that is in the device.
    Flushing,
}

/// Addresses of a ring's three parts, in the frontend's address space.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RingAddresses {
    pub(crate) descriptors: u64,
    pub(crate) available: u64,
    pub(crate) used: u64,
}

/// One queue of a guest's disk. Its thread alone has it.
pub(crate) struct Ring {
    index: usize,
    disk: Arc<DiskShared>,
    shared: Arc<RingShared>,
    epoll: OwnedFd,
    port: Port,
    /// The frontend's connection.
    connection: Arc<OwnedFd>,

    ram: Arc<GuestRam>,
    loss: Arc<MemoryLoss>,
    queue: Queue,
    addresses: Option<RingAddresses>,
    /// The place in the available ring at which the frontend says to begin.
    base: u16,
    features: u64,
    region: Option<InflightRegion>,
    /// True if a loss of a former server is known to the client.
    knows_loss: bool,
    record: Option<InflightRing>,
    kick: Option<File>,
    call: Option<Event>,
    error: Option<File>,

    started: bool,
    enabled: bool,
    /// The reason why the ring takes nothing more until it is started anew.
    broken: Option<String>,
    /// True once the frontend has left: nothing is answered any more.
    abandoned: bool,
    /// True if a request of the guest got no answer.
    unanswered: bool,

    /// The requests in flight, by their heads.
    chains: Vec<Option<Box<Chain>>>,
    in_flight: usize,
    /// Number of pieces in the device.
    open: usize,
    /// Bytes in flight that no budget has.
    beyond: u64,
    buffers: Buffers,
    /// Requests with pieces that aren't in the device yet, in order.
    waiting: VecDeque<u16>,
    /// Requests that an earlier server has left, in order.
    left: VecDeque<u16>,
    /// True if the guest has to learn of used entries.
    unnotified: bool,
    /// Signalled once nothing is in flight.
    idle: Vec<IdleSignal>,
    ends: bool,
}

impl Ring {
    fn geometry_align(&self) -> usize {
        self.disk.geometry().memory_alignment.max(1) as usize
    }

    fn counters(&self) -> &RingCounters {
        &self.disk.counters[self.index]
    }

    /// Returns true if requests are taken.
    fn runs(&self) -> bool {
        self.started
            && self.enabled
            && self.broken.is_none()
            && !self.abandoned
            && !self.disk.is_closing()
    }

    /// Serves the ring until its end.
    fn run(mut self) {
        self.watch();
        let mut events = Vec::with_capacity(4);
        loop {
            self.shared.waker.begin();
            let (more, next) = self.pass();
            if self.ends && self.in_flight == 0 {
                break;
            }
            let looked = more || !self.expects_kick();
            self.check_memory();
            if looked || !self.shared.waker.may_sleep() {
                continue;
            }
            events.clear();
            let timeout = match next {
                Next::At(at) => Some(until(at)),
                Next::Idle | Next::Woken => None,
            };
            let waited = epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            );
            match waited {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    // The descriptor is ours and open.
                    tracing::error!(%error, "cannot wait for a ring");
                    break;
                }
            }
        }
        self.port.leave(!self.unanswered);
    }

    /// Has this thread survive faults of the memory that it accesses.
    fn watch(&self) {
        let region = self.region.as_ref().map(InflightRegion::mapping);
        let record = self.record.as_ref().map(InflightRing::mapping);
        watch(self.ram.mappings().chain(region).chain(record).map(Arc::clone).collect());
    }

    /// Ends the connection if memory of the frontend is lost. From then on nothing is answered, and
    /// nothing that was read is believed.
    fn check_memory(&mut self) {
        if self.loss.has_happened() && !self.abandoned {
            self.abandoned = true;
            let _ = shutdown(&*self.connection, Shutdown::Both);
        }
    }

    /// Makes one pass. Returns true if there is more to do at once, and when to make the next one.
    fn pass(&mut self) -> (bool, Next) {
        let (ended, commands) = {
            let mut inbox = self.shared.inbox.lock();
            (std::mem::take(&mut inbox.ended), std::mem::take(&mut inbox.commands))
        };
        for Ended { head, completed } in ended {
            self.piece_ended(head, completed);
        }
        for command in commands {
            command(self);
        }
        let more = self.runs() && self.take_requests();
        self.submit_pieces();
        let next = self.port.submit();
        self.notify();
        if self.in_flight == 0 {
            self.idle.clear();
        }
        (more, next)
    }

    /// Asks the guest for a kick. Returns false if it has made requests available meanwhile.
    fn expects_kick(&mut self) -> bool {
        // With requests that wait for memory, the end of a request is the next event.
        if !self.runs() || !self.waiting.is_empty() {
            return true;
        }
        match self.queue.enable_notification(self.ram.map_ref()) {
            Ok(more) => !more,
            Err(error) => {
                self.break_down(&error.to_string());
                true
            }
        }
    }

    /// Takes requests from the available ring. Returns true if it may have more.
    fn take_requests(&mut self) -> bool {
        for _ in 0..BATCH {
            // The pieces in front come first, and bound what is taken.
            if !self.waiting.is_empty() {
                self.submit_pieces();
                if !self.waiting.is_empty() {
                    return false;
                }
            }
            if let Some(head) = self.left.pop_front() {
                self.begin(head, false);
            } else {
                let ram = Arc::clone(&self.ram);
                let next = match self.queue.iter(ram.map_ref()) {
                    Ok(mut available) => available.next().map(|chain| chain.head_index()),
                    Err(error) => return self.break_down(&error.to_string()),
                };
                let Some(head) = next else { return false };
                self.begin(head, true);
            }
            if self.broken.is_some() {
                return false;
            }
        }
        true
    }

    /// Begins the request whose chain is at `head`. `is_new` is false if an earlier server has
    /// recorded it.
    fn begin(&mut self, head: u16, is_new: bool) {
        match self.chains.get(usize::from(head)) {
            Some(None) => {}
            Some(Some(_)) => {
                self.break_down("the guest made a chain available that is in flight");
                return;
            }
            None => {
                self.break_down("the guest made a chain available that its ring doesn't have");
                return;
            }
        }
        if let Some(record) = self.record.as_mut().filter(|_| is_new) {
            record.begin(head);
        }
        let table = GuestAddress(self.queue.desc_table());
        let raw = match chain::read(&self.ram, table, self.queue.size(), head) {
            Ok(raw) => raw,
            Err(BadChain::Unanswerable(why)) => {
                self.fault(why);
                RingCounters::add(&self.counters().faults, 1);
                self.used(head, 0);
                return;
            }
            Err(BadChain::Refused(status, why)) => {
                self.fault(why);
                RingCounters::add(&self.counters().faults, 1);
                self.write_status(status, Status::Failed);
                self.used(head, 0);
                return;
            }
        };
        match self.plan(&raw) {
            Ok(Some(work)) => {
                let durability = self.durability(work.op());
                let came = time::now();
                let chain = Chain { raw, work, came, open: 0, failed: None, durability };
                self.chains[usize::from(head)] = Some(Box::new(chain));
                self.in_flight += 1;
                self.count_in_flight();
                self.waiting.push_back(head);
            }
            Ok(None) => self.answer(head, &raw, None, Status::Ok),
            Err((status, why)) => {
                self.fault(why);
                self.answer(head, &raw, None, status);
            }
        }
    }

    /// Judges a request. Returns `None` if it is answered without the device.
    fn plan(&self, raw: &RawRequest) -> Result<Option<Work>, work::Refusal> {
        let geometry = self.disk.geometry();
        let op = match work::kind(raw, &geometry, self.disk.options.read_only)? {
            Kind::Io(op) => op,
            Kind::Id => {
                let mut id = [0; ID_BYTES];
                let serial = self.disk.options.serial.as_deref().unwrap_or(self.disk.name());
                let len = serial.len().min(ID_BYTES);
                id[..len].copy_from_slice(&serial.as_bytes()[..len]);
                let room = usize::try_from(chain::total(&raw.input)).unwrap_or(usize::MAX);
                let id = &id[..room.min(ID_BYTES)];
                return match chain::copy_in(&self.ram, &raw.input, 0, id) {
                    true => Ok(None),
                    false => Err((Status::Failed, "guest memory is gone")),
                };
            }
        };
        let mut data = Vec::new();
        if matches!(op, Op::Discard | Op::WriteZeroes) {
            let most = RANGES as usize * RANGE_BYTES + 1;
            let len = usize::try_from(chain::total(&raw.output)).unwrap_or(most);
            data.resize(len.min(most), 0);
            if !chain::copy_out(&self.ram, &raw.output, 0, &mut data) {
                return Err((Status::Failed, "guest memory is gone"));
            }
        }
        Work::of(op, raw, &data, &geometry).map(Some)
    }

    /// Returns how a change of this kind becomes durable. A guest without flushes counts on each
    /// change once it is answered.
    fn durability(&self, op: Op) -> Durability {
        let geometry = self.disk.geometry();
        match self.features & FLUSH != 0 || !geometry.can_flush || !op.is_change() {
            true => Durability::Later,
            false if geometry.can_fua => Durability::Fua,
            false => Durability::Flush,
        }
    }

    /// Gives pieces of the waiting requests to the device, as far as the memory goes.
    fn submit_pieces(&mut self) {
        while let Some(&head) = self.waiting.front() {
            let Some(chain) = self.chains[usize::from(head)].as_mut() else {
                self.waiting.pop_front();
                continue;
            };
            let Some(piece) = chain.work.peek() else {
                self.waiting.pop_front();
                self.settle(head);
                continue;
            };
            if self.abandoned {
                chain.work.give_up();
                continue;
            }
            if !self.take_memory(piece.bytes()) {
                return;
            }
            match self.request(head, piece) {
                Some(rq) => {
                    // The bytes that were read may be zeroes.
                    self.check_memory();
                    match self.abandoned {
                        true => self.give_memory(piece.bytes()),
                        false => self.push(head, rq),
                    }
                }
                None => {
                    self.give_memory(piece.bytes());
                    self.fault("guest memory is gone");
                    if let Some(chain) = self.chains[usize::from(head)].as_mut() {
                        chain.failed = Some(Status::Failed);
                        chain.work.give_up();
                    }
                }
            }
        }
    }

    /// Takes memory for a piece. Returns false if there isn't as much, and a piece is in the device
    /// whose end is the next event. Without one nothing would wake the ring, so it goes beyond.
    fn take_memory(&mut self, bytes: u64) -> bool {
        let has = self.disk.memory.take(bytes);
        if !has && self.open == 0 {
            self.beyond += bytes;
        }
        has || self.open == 0
    }

    fn give_memory(&mut self, bytes: u64) {
        let beyond = bytes.min(self.beyond);
        self.beyond -= beyond;
        self.disk.memory.give(bytes - beyond);
    }

    /// Makes the request of a piece, and takes it off the work. `None` if the guest's memory is
    /// gone.
    fn request(&mut self, head: u16, piece: Piece) -> Option<Request> {
        let align = self.geometry_align();
        let chain = self.chains[usize::from(head)].as_mut()?;
        let (offset, len) = (piece.range.offset, piece.range.len);
        let rq = match piece.op {
            Op::Read => {
                let buffer = self.buffers.empty(len as usize, align);
                Request::read_into(offset, len as usize, buffer)
            }
            Op::Write => {
                let mut buffer = self.buffers.full(len as usize, align);
                let whole = chain::copy_out(&self.ram, &chain.raw.output, piece.skip, &mut buffer);
                whole.then(|| Request::write(offset, buffer))?
            }
            Op::Discard => Request::discard(offset, len),
            Op::WriteZeroes if piece.range.no_unmap => {
                Request::write_zeroes(offset, len).no_unmap()
            }
            Op::WriteZeroes => Request::write_zeroes(offset, len),
            _ => Request::flush(),
        };
        chain.work.advance();
        Some(if chain.durability == Durability::Fua { rq.fua() } else { rq })
    }

    fn push(&mut self, head: u16, rq: Request) {
        if let Some(chain) = self.chains[usize::from(head)].as_mut() {
            chain.open += 1;
        }
        self.open += 1;
        let shared = Arc::clone(&self.shared);
        self.port.push(rq, move |completed| {
            shared.inbox.lock().ended.push(Ended { head, completed });
            shared.waker.notify();
        });
    }

    /// Records the end of a piece.
    fn piece_ended(&mut self, head: u16, completed: Completed) {
        self.open = self.open.saturating_sub(1);
        if completed.op.has_bytes() {
            self.give_memory(completed.len);
        }
        let Some(chain) = self.chains.get_mut(usize::from(head)).and_then(Option::as_mut) else {
            return;
        };
        chain.open = chain.open.saturating_sub(1);
        match completed.result {
            Ok(()) => {
                let first = chain.raw.sector.wrapping_mul(SECTOR);
                let skip = completed.offset.wrapping_sub(first);
                let is_read = completed.op == Op::Read && !self.abandoned;
                if is_read && !copy_payload(&self.ram, &chain.raw, skip, &completed.payload) {
                    chain.failed = Some(Status::Failed);
                }
                self.buffers.keep(completed.payload);
            }
            Err(error) => {
                let status = match error.kind() {
                    IoErrorKind::NotSupported => Status::Unsupported,
                    _ => Status::Failed,
                };
                chain.failed.get_or_insert(status);
                if !error.is_logged() {
                    let (op, offset) = (completed.op, completed.offset);
                    self.disk.failure(self.index, op, offset, &error);
                }
            }
        }
        if chain.failed.is_some() {
            chain.work.give_up();
        }
        self.settle(head);
    }

    /// Answers a request if its last piece has ended.
    fn settle(&mut self, head: u16) {
        let place = &mut self.chains[usize::from(head)];
        let Some(chain) = place.as_mut() else { return };
        if chain.open > 0 || chain.work.peek().is_some() {
            return;
        }
        if chain.durability == Durability::Flush && chain.failed.is_none() && !self.abandoned {
            chain.durability = Durability::Flushing;
            self.push(head, Request::flush());
            return;
        }
        let Some(chain) = place.take() else { return };
        self.in_flight -= 1;
        self.count_in_flight();
        if self.abandoned {
            self.unanswered = true;
        } else {
            let status = chain.failed.unwrap_or(Status::Ok);
            self.answer(head, &chain.raw, Some((chain.work.op(), chain.came)), status);
        }
    }

    fn count_in_flight(&self) {
        self.counters().in_flight.store(self.in_flight as u64, Ordering::Relaxed);
    }

    /// Tells the guest how its request ended. `of` is its operation and the time at which it was
    /// taken, if it has one.
    fn answer(&mut self, head: u16, raw: &RawRequest, of: Option<(Op, Instant)>, status: Status) {
        let input = chain::total(&raw.input);
        match of {
            Some((op, came)) => {
                let moved = match op {
                    Op::Read => input,
                    Op::Write => chain::total(&raw.output),
                    _ => 0,
                };
                let took = time::now().saturating_duration_since(came);
                let done = (status == Status::Ok).then_some(moved);
                self.counters().counts.ended(op, done, took);
            }
            None if status != Status::Ok => RingCounters::add(&self.counters().faults, 1),
            None => {}
        }
        self.write_status(raw.status, status);
        // The number counts the writable bytes that are surely written, from the first one on.
        let written = match status {
            Status::Ok => u32::try_from(input + 1).unwrap_or(u32::MAX),
            _ => u32::from(input == 0),
        };
        self.used(head, written);
    }

    fn write_status(&mut self, at: GuestAddress, status: Status) {
        // Bytes may have gone into memory that the guest doesn't have.
        self.check_memory();
        if !self.abandoned && self.ram.map_ref().write_obj(status as u8, at).is_err() {
            self.fault("guest memory is gone");
        }
    }

    /// Gives a chain back to the guest.
    fn used(&mut self, head: u16, written: u32) {
        // So may the status.
        self.check_memory();
        if self.abandoned {
            self.unanswered = true;
            return;
        }
        if let Some(record) = &self.record {
            record.before_used(head);
        }
        if let Err(error) = self.queue.add_used(self.ram.map_ref(), head, written) {
            self.break_down(&error.to_string());
            return;
        }
        if let Some(record) = &self.record {
            record.after_used(head, self.queue.next_used());
        }
        self.unnotified = true;
    }

    /// Notifies the guest of used entries, if it wants that.
    fn notify(&mut self) {
        if !std::mem::take(&mut self.unnotified) {
            return;
        }
        let wanted = if self.features & EVENT_IDX != 0 {
            self.queue.needs_notification(self.ram.map_ref()).unwrap_or(true)
        } else {
            // The used index is written before the flag is read. Partner: the driver writes the
            // flag, and then reads the index.
            fence(Ordering::SeqCst);
            let at = GuestAddress(self.queue.avail_ring());
            let flags = self.ram.map_ref().load::<u16>(at, Ordering::Relaxed);
            flags.map_or(true, |f| u32::from(u16::from_le(f)) & VRING_AVAIL_F_NO_INTERRUPT == 0)
        };
        if wanted {
            self.interrupt();
        }
    }

    fn interrupt(&mut self) {
        RingCounters::add(&self.counters().interrupts, 1);
        if let Some(call) = &mut self.call {
            call.signal();
        }
    }

    /// Makes the ring take nothing more, and tells the frontend. Returns false.
    fn break_down(&mut self, why: &str) -> bool {
        if self.broken.is_none() {
            self.fault(why);
            self.broken = Some(why.to_owned());
            // Few rings break down, so none keeps this event ready.
            let error = self.error.as_ref().and_then(|error| error.try_clone().ok());
            if let Some(Ok(mut error)) = error.map(Event::new) {
                error.signal();
            }
        }
        false
    }

    fn fault(&self, why: &str) {
        // Zeroes in the place of lost memory are no fault of the guest.
        if self.loss.has_happened() {
            return;
        }
        self.disk.fault("a guest's request isn't served", Some(self.index), why);
    }
}

fn until(at: Instant) -> Timespec {
    let left: Duration = at.saturating_duration_since(time::now());
    Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    }
}
