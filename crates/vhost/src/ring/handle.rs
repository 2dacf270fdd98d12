//! The session's side of a ring: the thread's start and end, and the commands.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use corewise_export::Identity;
use corewise_sync::panics::caught;
use corewise_sync::{Completion, Mutex, sys, thread};
use rustix::event::epoll;
use rustix::net::{Shutdown, shutdown};
use virtio_queue::{Queue, QueueT};

use super::buffers::Buffers;
use super::event::{Event, clear};
use super::{Inbox, MOST_ENTRIES, Ring, RingAddresses, RingShared};
use crate::config::EVENT_IDX;
use crate::error::Error;
use crate::faults::MemoryLoss;
use crate::inflight::InflightRegion;
use crate::memory::GuestRam;
use crate::port::Port;
use crate::shared::DiskShared;
use crate::waker::ThreadWaker;

/// Bytes of a ring thread's stack.
const STACK: usize = 512 << 10;

/// A ring, as its session has it.
pub(crate) struct RingHandle {
    shared: Arc<RingShared>,
    /// Signalled once the thread has ended.
    ended: Arc<Completion>,
}

/// The state of the session that a new ring begins with.
pub(crate) struct RingStart {
    /// The frontend's connection, which ends with a thread that panics.
    pub(crate) connection: Arc<OwnedFd>,
    pub(crate) who: Identity,
    pub(crate) ram: Arc<GuestRam>,
    pub(crate) loss: Arc<MemoryLoss>,
    pub(crate) features: u64,
    pub(crate) region: Option<InflightRegion>,
    pub(crate) enabled: bool,
}

impl RingHandle {
    /// Starts the thread of a ring.
    pub(crate) fn start(
        disk: &Arc<DiskShared>,
        index: usize,
        start: RingStart,
    ) -> Result<Self, Error> {
        let waker = ThreadWaker::new().map_err(Error::resource("an eventfd for a ring"))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(Error::resource("an epoll descriptor for a ring"))?;
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, &*waker, epoll::EventData::new_u64(0), edges)
            .map_err(Error::resource("an epoll entry for a ring"))?;
        let queue = Queue::new(MOST_ENTRIES).map_err(|error| Error::Unfit(error.to_string()))?;
        let shared = Arc::new(RingShared { waker, inbox: Mutex::new(Inbox::default()) });
        let ring = Ring {
            index,
            disk: Arc::clone(disk),
            shared: Arc::clone(&shared),
            epoll,
            port: Port::new(disk, start.who, Arc::clone(&shared.waker).into()),
            connection: Arc::clone(&start.connection),
            ram: start.ram,
            loss: start.loss,
            queue,
            addresses: None,
            base: 0,
            features: start.features,
            region: start.region,
            knows_loss: false,
            record: None,
            kick: None,
            call: None,
            error: None,
            started: false,
            enabled: start.enabled,
            broken: None,
            abandoned: false,
            unanswered: false,
            chains: Vec::new(),
            in_flight: 0,
            open: 0,
            beyond: 0,
            buffers: Buffers::default(),
            waiting: VecDeque::new(),
            left: VecDeque::new(),
            unnotified: false,
            idle: Vec::new(),
            ends: false,
        };
        let ended = Arc::new(Completion::new());
        let guard = EndGuard(Arc::clone(&shared), Arc::clone(&ended));
        let connection = start.connection;
        let run = move || {
            let _guard = guard;
            if caught(|| ring.run()).is_none() {
                tracing::error!(index, "the thread of a vhost-user ring panicked");
                let _ = shutdown(&*connection, Shutdown::Both);
            }
        };
        sys::room_for_stack(STACK).map_err(Error::resource("memory for a thread"))?;
        thread::Builder::new()
            .name(format!("vhost-{index}"))
            .stack_size(STACK)
            .spawn(run)
            .map_err(Error::resource("a thread for a ring"))?;
        Ok(Self { shared, ended })
    }

    /// Has the ring's thread make a change, and waits for it. `None` if the thread has ended.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Ring) -> T + Send + 'static,
    ) -> Option<T> {
        let call = Arc::new(Call { done: Completion::new(), result: Mutex::new(None) });
        let theirs = CallGuard(Arc::clone(&call));
        self.post(move |ring| {
            *theirs.0.result.lock() = Some(f(ring));
            drop(theirs);
        });
        call.done.wait();
        call.result.lock().take()
    }

    /// Has the ring's thread make a change, soon. If the thread has ended, the change is dropped.
    pub(crate) fn post(&self, f: impl FnOnce(&mut Ring) + Send + 'static) {
        let command = {
            let mut inbox = self.shared.inbox.lock();
            match inbox.closed {
                true => Some(f),
                false => {
                    inbox.commands.push(Box::new(f));
                    None
                }
            }
        };
        drop(command);
        self.shared.waker.notify();
    }

    /// Ends the ring once nothing is in flight. Its guest gets no more answers: once the event that
    /// is returned has come, nobody accesses guest memory for this ring.
    pub(crate) fn abandon(&self) -> Arc<Completion> {
        let (signal, done) = IdleSignal::new();
        self.post(move |ring| {
            ring.abandoned = true;
            ring.ends = true;
            drop(signal);
        });
        done
    }

    /// Returns the event of the thread's end.
    pub(crate) fn ended(&self) -> &Completion {
        &self.ended
    }
}

/// Signals an event when it is dropped, by a command or with it: that nothing is in flight, or that
/// a command is done.
pub(crate) struct IdleSignal(Arc<Completion>);

impl IdleSignal {
    /// Creates the signal, and the event to wait for.
    pub(crate) fn new() -> (IdleSignal, Arc<Completion>) {
        let idle = Arc::new(Completion::new());
        (IdleSignal(Arc::clone(&idle)), idle)
    }
}

impl Drop for IdleSignal {
    fn drop(&mut self) {
        self.0.complete();
    }
}

/// Ends the waits for a ring's thread when that ends, however it does.
struct EndGuard(Arc<RingShared>, Arc<Completion>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        let inbox = {
            let mut inbox = self.0.inbox.lock();
            let ended = std::mem::take(&mut inbox.ended);
            inbox.closed = true;
            (ended, std::mem::take(&mut inbox.commands))
        };
        drop(inbox);
        self.1.complete();
    }
}

/// The place where a command leaves its result for the thread that waits for it.
struct Call<T> {
    done: Completion,
    /// L: is the lock; guards the result, once there is one.
    result: Mutex<Option<T>>,
}

/// Ends the wait for a command when that is dropped, executed or not.
struct CallGuard<T>(Arc<Call<T>>);

impl<T> Drop for CallGuard<T> {
    fn drop(&mut self) {
        self.0.done.complete();
    }
}

/// The changes that a session makes. They run on the ring's thread.
impl Ring {
    pub(crate) fn set_size(&mut self, size: u32) -> Result<(), String> {
        if self.started {
            return Err("the size of a running ring can't change".to_owned());
        }
        let size = u16::try_from(size).unwrap_or(0);
        self.queue.try_set_size(size).map_err(|_| {
            format!("a ring has a power of two of entries, at most {MOST_ENTRIES}, not {size}")
        })
    }

    pub(crate) fn set_addresses(&mut self, addresses: RingAddresses) -> Result<(), String> {
        self.addresses = Some(addresses);
        if self.started { self.translate() } else { Ok(()) }
    }

    pub(crate) fn set_base(&mut self, base: u32) -> Result<(), String> {
        self.base = u16::try_from(base)
            .map_err(|_| format!("a ring can't begin at {base}, beyond its index's 16 bits"))?;
        Ok(())
    }

    pub(crate) fn set_features(&mut self, features: u64) {
        self.features = features;
        self.queue.set_event_idx(features & EVENT_IDX != 0);
    }

    pub(crate) fn set_enabled(&mut self, enabled: bool) {
        self.enabled = enabled;
    }

    pub(crate) fn set_region(&mut self, region: Option<InflightRegion>) {
        self.region = region;
        self.watch();
    }

    pub(crate) fn set_ram(&mut self, ram: Arc<GuestRam>) -> Result<(), String> {
        self.ram = ram;
        self.watch();
        if !self.started {
            return Ok(());
        }
        self.translate().inspect_err(|why| {
            self.break_down(why);
        })
    }

    /// Sets the event by which the guest tells of requests, and starts the ring.
    pub(crate) fn set_kick(&mut self, kick: File) -> Result<(), String> {
        let edges = epoll::EventFlags::IN | epoll::EventFlags::ET;
        if let Some(former) = self.kick.take() {
            let _ = epoll::delete(&self.epoll, &former);
        }
        epoll::add(&self.epoll, &kick, epoll::EventData::new_u64(1), edges)
            .map_err(|error| format!("cannot wait for the kicks of a ring: {error}"))?;
        self.kick = Some(kick);
        if self.started { Ok(()) } else { self.start_ring() }
    }

    /// Sets the event of interrupts. One between the former event and this one isn't lost.
    pub(crate) fn set_call(&mut self, call: Option<File>) -> Result<(), String> {
        self.call = call.map(Event::new).transpose()?;
        if self.started {
            self.interrupt();
        }
        Ok(())
    }

    pub(crate) fn set_error(&mut self, error: Option<File>) {
        self.error = error;
    }

    /// Takes the ring's addresses in guest memory.
    fn translate(&mut self) -> Result<(), String> {
        let of = self.addresses.ok_or("a ring was started without addresses")?;
        let place = |user| {
            self.ram
                .translate(user)
                .ok_or_else(|| format!("a ring is at {user:#x}, outside of guest memory"))
        };
        let (descriptors, available, used) =
            (place(of.descriptors)?, place(of.available)?, place(of.used)?);
        let wrong = |error: virtio_queue::Error| error.to_string();
        self.queue.try_set_desc_table_address(descriptors).map_err(wrong)?;
        self.queue.try_set_avail_ring_address(available).map_err(wrong)?;
        self.queue.try_set_used_ring_address(used).map_err(wrong)?;
        let queue = &mut self.queue;
        let ready = queue.ready();
        queue.set_ready(true);
        let valid = queue.is_valid(self.ram.map_ref());
        queue.set_ready(ready);
        if valid { Ok(()) } else { Err("a ring isn't wholly in guest memory".to_owned()) }
    }

    fn start_ring(&mut self) -> Result<(), String> {
        self.translate()?;
        let size = self.queue.size();
        let used = self
            .queue
            .used_idx(self.ram.map_ref(), corewise_sync::atomic::Ordering::Acquire)
            .map_err(|error| error.to_string())?
            .0;
        self.record = match &self.region {
            None => None,
            Some(region) => Some(
                region
                    .ring(self.index, size)
                    .ok_or("the record of requests in flight has no room for this ring")?,
            ),
        };
        self.watch();
        if self.region.as_ref().is_some_and(InflightRegion::is_after_loss) && !self.knows_loss {
            self.knows_loss = true;
            self.port.owe_a_failure();
        }
        self.left = VecDeque::new();
        let mut next = self.base;
        if let Some(record) = &mut self.record {
            let left = record.recover(used)?;
            next = used.wrapping_add(left.heads.len() as u16);
            if !left.heads.is_empty() {
                tracing::info!(
                    disk = self.disk.name(),
                    ring = self.index,
                    requests = left.heads.len(),
                    "requests that were in flight are executed again"
                );
            }
            self.left = left.heads.into();
        }
        self.chains.clear();
        self.chains.resize_with(usize::from(size), || None);
        self.queue.set_next_avail(next);
        self.queue.set_next_used(used);
        self.queue.set_event_idx(self.features & EVENT_IDX != 0);
        self.queue.set_ready(true);
        self.broken = None;
        self.started = true;
        // The guest may have missed an interrupt of an earlier server.
        self.interrupt();
        Ok(())
    }

    /// Makes the ring take nothing more. `idle` is signalled once nothing is in flight.
    pub(crate) fn stop_ring(&mut self, idle: IdleSignal) {
        self.started = false;
        self.idle.push(idle);
    }

    /// Has `idle` signalled once nothing is in flight.
    pub(crate) fn when_idle(&mut self, idle: IdleSignal) {
        self.idle.push(idle);
    }

    /// Forgets the events of a stopped ring, and returns its place in the available ring.
    pub(crate) fn take_base(&mut self) -> u16 {
        if let Some(kick) = self.kick.take() {
            let _ = epoll::delete(&self.epoll, kick.as_fd());
            // The thread never reads it; an event that is left would be taken for a kick later.
            clear(&kick);
        }
        self.call = None;
        self.base = self.queue.next_avail();
        self.queue.set_ready(false);
        self.base
    }

    /// Resets a stopped ring.
    pub(crate) fn reset(&mut self) {
        self.enabled = false;
        self.base = 0;
        self.left.clear();
    }
}
