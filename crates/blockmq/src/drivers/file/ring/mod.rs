//! File I/O through io_uring: one ring for each hardware queue, and one thread for each ring.
//!
//! The thread is the only one that touches the ring, so the ring needs no lock, and the kernel can leave
//! what completes to be done by that thread when it asks (`SINGLE_ISSUER`, `DEFER_TASKRUN`): nobody is
//! interrupted, and what a submitting thread began isn't cancelled when that thread ends.
//!
//! | | the runner of the hardware queue | the ring's thread |
//! |---|---|---|
//! | does | pushes requests to the inbox; rings the bell at the end of the pass | takes the inbox, makes entries, submits them all and waits for a completion in one system call, completes |
//!
//! A completion often brings a new request. It is dispatched on the ring's thread itself and lies in the
//! inbox before the thread looks there again: no bell, no system call of its own. So a full queue costs one
//! `io_uring_enter` for each batch of completions, and nothing else.
//!
//! The bell is the protocol of [`crate::bell`]; it wakes the thread through an `eventfd` that the ring
//! polls. A ring at rest sleeps in the kernel.
//!
//! A request that is late ([`Driver::timeout`](crate::Driver::timeout)) is called off by the ring's thread too
//! ([`cancel`]). A request that the kernel has not begun, or can interrupt, ends; one that a disk has goes on.
//!
//! There is no [`Driver::poll`](crate::Driver::poll): the kernel does what is left of a completion when the ring's
//! thread asks for it, so nobody else would find anything. A thread that polls a ring for its own requests has to own it.
//!
//! A device may ask that the thread looks for completions for a while before it sleeps
//! ([`busy_poll`](FileOptions::busy_poll)): the kernel says in the ring's flags when it has some to hand over
//! (`TASKRUN_FLAG`), so that looking costs no system call. It is not asleep then, and nobody rings.
//!
//! # Memory
//! A request's memory stays where it is from its entry to its completion: the slot of its tag owns the
//! request, which owns the buffers, and the kernel is done with all of them before the thread ends.
//! Buffers of a pool that the device was told of are registered with the ring (`READ_FIXED`, `WRITE_FIXED`), so
//! their pages aren't looked up and pinned for each request. A file that goes past the page cache wants
//! aligned memory: what isn't goes through its slot's piece of a registered buffer, or through memory of its
//! own where it is larger; that is one copy.

mod cancel;
mod memory;
mod reactor;
#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::inbox::Inbox;
use corewise_sync::sys::Tid;
use corewise_sync::thread::{Builder, JoinHandle, current};
use corewise_sync::{CachePadded, Completion, Mutex};
use corewise_topology::pin_thread;
use rustix::event::{EventfdFlags, eventfd};

use super::options::FileOptions;
use super::threads::Plain;
use crate::bell::Bell;
use crate::driver::{Dispatch, Queued, Started};
use crate::timeout::{TimedOut, TimerReturn};
use cancel::Ask;
use reactor::Reactor;

/// The rings of a file device.
pub(super) struct Rings {
    rings: Vec<Owned>,
    #[cfg(test)]
    plain: Plain,
}

/// What a ring shows of itself to other threads.
struct Port {
    inbox: Inbox<Queued>,
    /// Late requests that are to be called off.
    asks: Inbox<Box<Ask>>,
    bell: Bell,
    /// The wire of the bell.
    wire: OwnedFd,
    /// A: set once, when the device is dropped; Release and Acquire.
    end: AtomicBool,
}

struct Owned {
    port: Arc<CachePadded<Port>>,
    tid: Tid,
    thread: Option<JoinHandle<()>>,
}

impl Rings {
    /// Sets up the rings and their threads. Blocks.
    ///
    /// # Errors
    /// Where the kernel refuses: it is too old, or a policy forbids io_uring.
    pub(super) fn new(plain: &Plain, options: &FileOptions) -> io::Result<Self> {
        let rings = (0..options.queues)
            .map(|i| Owned::spawn(i, plain.clone(), options.clone()))
            .collect::<Result<_, _>>();
        Ok(Self {
            rings: rings?,
            #[cfg(test)]
            plain: plain.clone(),
        })
    }

    #[cfg(test)]
    pub(super) fn store(&self) -> &super::store::Store {
        self.plain.store()
    }

    pub(super) fn len(&self) -> usize {
        self.rings.len()
    }

    /// Lets a ring's thread run where its requests come from, as a device's interrupts do: what a
    /// completion submits then goes to the same ring.
    pub(super) fn mapped(&self, hctx: usize, cpus: &[u32]) {
        let cpus = cpus.iter().copied().collect();
        // The thread lives: it is joined by the drop.
        if let Some(ring) = self.rings.get(hctx) {
            if let Err(error) = pin_thread(ring.tid, &cpus) {
                tracing::info!(%error, hctx, "a ring's thread could not be pinned; it runs on any CPU");
            }
        }
    }

    /// Called by the runner.
    pub(super) fn queue(&self, hctx: usize, rq: Started) -> Dispatch {
        self.rings[hctx].port.inbox.push(Queued(rq));
        Dispatch::Started
    }

    /// Has the kernel stop a late request, if it can. Blocks.
    pub(super) fn call_off(&self, late: &TimedOut<'_>) -> TimerReturn {
        self.rings[late.hctx()].port.call_off(late)
    }

    /// Called by the runner, behind what it queued.
    pub(super) fn commit(&self, hctx: usize) {
        let port = &self.rings[hctx].port;
        if port.bell.must_ring() {
            port.ring();
        }
    }
}

impl Port {
    /// Whether nothing waits for the ring's thread.
    fn is_empty(&self) -> bool {
        self.inbox.is_empty() && self.asks.is_empty()
    }

    fn new() -> io::Result<Self> {
        Ok(Self {
            inbox: Inbox::new(),
            asks: Inbox::new(),
            bell: Bell::new(),
            wire: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            end: AtomicBool::new(false),
        })
    }

    /// Wakes the ring's thread.
    fn ring(&self) {
        loop {
            match rustix::io::write(&self.wire, &1u64.to_ne_bytes()) {
                Err(rustix::io::Errno::INTR) => {}
                // It can't fail otherwise but for a counter that is full after 2^64 rings.
                Ok(_) | Err(_) => return,
            }
        }
    }
}

impl Owned {
    fn spawn(i: usize, plain: Plain, options: FileOptions) -> io::Result<Self> {
        let port = Arc::new(CachePadded::new(Port::new()?));
        let theirs = Arc::clone(&port);
        let told = Arc::new((Completion::new(), Mutex::new(None)));
        let tell = Arc::clone(&told);
        // The ring belongs to the thread that makes it.
        let thread = Builder::new().name(format!("cw-ring/{i}")).spawn(move || {
            let (made, reactor) = match Reactor::new(theirs, plain, &options) {
                Ok(reactor) => (Ok(Tid::current()), Some(reactor)),
                Err(error) => (Err(error), None),
            };
            *tell.1.lock() = Some(made);
            tell.0.complete();
            drop(tell);
            if let Some(reactor) = reactor {
                reactor.run();
            }
        })?;
        told.0.wait();
        match told.1.lock().take() {
            Some(Ok(tid)) => Ok(Self { port, tid, thread: Some(thread) }),
            Some(Err(error)) => Err(error),
            None => Err(io::Error::other("a ring's thread ended before it reported its start")),
        }
    }
}

impl Drop for Owned {
    /// Ends the thread. Nothing is in flight: each request in a slot keeps its queue, and with it the
    /// driver, alive.
    fn drop(&mut self) {
        self.port.end.store(true, Ordering::Release);
        self.port.ring();
        if let Some(thread) = self.thread.take() {
            // The last request's completion may drop the driver on the thread itself.
            if thread.thread().id() != current().id() && thread.join().is_err() {
                tracing::error!("a ring's thread panicked");
            }
        }
    }
}
