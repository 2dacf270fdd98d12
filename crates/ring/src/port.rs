//! The part of a ring's thread that other threads reach.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::{fmt, io, ptr};

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::{Bell, CachePadded, Mutex};
use rustix::event::{EventfdFlags, eventfd};

use crate::RingUser;

thread_local! {
    /// Address of the port of the ring that this thread serves.
    static SERVED: Cell<*const RingPort> = const { Cell::new(ptr::null()) };
}

/// The port of a ring's thread.
pub struct RingPort {
    /// A: true if `new_users` may have some; Release and Acquire.
    has_new_users: AtomicBool,
    /// L: is the lock, a leaf; guards users that the thread hasn't adopted yet. `None` once it
    /// adopts no more.
    new_users: Mutex<Option<Vec<Box<dyn RingUser>>>>,
    pub(crate) bell: Bell,
    /// The wire of the bell.
    pub(crate) wire: OwnedFd,
    /// A: true once the thread has to end; Release and Acquire.
    pub(crate) end: AtomicBool,
    /// A: true if no other thread takes over the users at the thread's end. Relaxed: ordered by
    /// `end`.
    pub(crate) unjoined: AtomicBool,
}

impl RingPort {
    pub(crate) fn new() -> io::Result<Arc<CachePadded<RingPort>>> {
        Ok(Arc::new(CachePadded::new(RingPort {
            has_new_users: AtomicBool::new(false),
            new_users: Mutex::new(Some(Vec::new())),
            bell: Bell::new(),
            wire: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            end: AtomicBool::new(false),
            unjoined: AtomicBool::new(false),
        })))
    }

    /// Wakes the thread if it may be asleep (Ask). The caller has put something into a user's inbox
    /// before, by a `SeqCst` operation. Any context.
    #[inline]
    pub fn wake(&self) {
        if self.bell.must_ring() {
            self.ring();
        }
    }

    /// Writes to the wire.
    pub(crate) fn ring(&self) {
        // The only failure is a counter that is full after 2^64 rings.
        while let Err(rustix::io::Errno::INTR) = rustix::io::write(&self.wire, &1u64.to_ne_bytes())
        {
        }
    }

    /// Returns true if the calling thread serves this ring.
    #[inline]
    pub fn is_here(&self) -> bool {
        ptr::eq(SERVED.get(), self)
    }

    /// Records that the calling thread serves this ring.
    pub(crate) fn serve_here(&self) {
        SERVED.set(self);
    }

    /// Gives the ring a further user, which stays until the thread ends. The user is dropped if the
    /// thread has ended.
    pub fn add(&self, user: Box<dyn RingUser>) {
        match &mut *self.new_users.lock() {
            Some(users) => users.push(user),
            None => return,
        }
        self.has_new_users.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub(crate) fn has_new_users(&self) -> bool {
        self.has_new_users.load(Ordering::SeqCst)
    }

    /// Takes the users that have come.
    pub(crate) fn new_users(&self) -> Vec<Box<dyn RingUser>> {
        if !self.has_new_users.load(Ordering::Relaxed) {
            return Vec::new();
        }
        // A user that comes between these two is taken now, and its mark costs one more round.
        self.has_new_users.store(false, Ordering::SeqCst);
        self.new_users.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Drops the users that the thread hasn't adopted, and all that come.
    pub(crate) fn close(&self) {
        let users = self.new_users.lock().take();
        drop(users);
    }
}

impl fmt::Debug for RingPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingPort").field("bell", &self.bell).finish_non_exhaustive()
    }
}
