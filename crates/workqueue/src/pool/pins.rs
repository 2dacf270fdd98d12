//! Which CPUs the workers of a pool run on, and the threads that have to be told when that changes.
//!
//! `following.md` has the steps by name.

use corewise_sync::Mutex;
use corewise_topology::{CpuSet, Tid, pin_thread};

/// Where the threads of a pool are pinned.
pub(super) struct Pins {
    /// I: whether threads are pinned at all: not those of a synthetic machine.
    pinned: bool,
    /// L: is the lock; guards where they run and which threads they are, and is held while one of
    /// them is pinned: so a thread is pinned to what was set last, and none that has ended. Nothing
    /// else is locked under it.
    pins: Mutex<Inner>,
}

struct Inner {
    cpus: CpuSet,
    threads: Vec<Tid>,
}

/// A worker's thread, for as long as it is to be pinned.
pub(super) struct Arrived<'a> {
    pins: &'a Pins,
    thread: Option<Tid>,
}

impl Pins {
    pub(super) fn new(cpus: CpuSet, pinned: bool) -> Pins {
        Pins { pinned, pins: Mutex::new(Inner { cpus, threads: Vec::new() }) }
    }

    /// Arrive: pins the calling thread, a worker of the pool, now and at each change until the guard
    /// is dropped, at its end.
    pub(super) fn arrive(&self) -> Arrived<'_> {
        let thread = self.pinned.then(Tid::current);
        if let Some(thread) = thread {
            let mut inner = self.pins.lock();
            inner.threads.push(thread);
            pin(thread, &inner.cpus);
        }
        Arrived { pins: self, thread }
    }

    /// Pin: these are the CPUs from now on, for the threads that are there and those to come.
    ///
    /// From the outside, since a thread that runs a long item or is parked wouldn't do it itself. Also
    /// where the CPUs are the same as before: the kernel gives a thread whose last CPU went offline,
    /// and on older kernels each thread of a cpuset that was written, a mask of its own choice, and
    /// doesn't take it back.
    pub(super) fn set(&self, cpus: CpuSet) {
        let mut inner = self.pins.lock();
        inner.cpus = cpus;
        inner.pin_all();
    }

    /// Pins the threads again to what they were pinned to.
    pub(super) fn again(&self) {
        self.pins.lock().pin_all();
    }

    /// Whether the threads are on the CPUs that they are said to be on.
    pub(super) fn are_real(&self) -> bool {
        self.pinned
    }

    /// Where the workers run now.
    pub(super) fn cpus(&self) -> CpuSet {
        self.pins.lock().cpus.clone()
    }
}

impl Inner {
    fn pin_all(&self) {
        for &thread in &self.threads {
            pin(thread, &self.cpus);
        }
    }
}

impl Drop for Arrived<'_> {
    fn drop(&mut self) {
        if let Some(thread) = self.thread {
            self.pins.pins.lock().threads.retain(|other| *other != thread);
        }
    }
}

fn pin(thread: Tid, cpus: &CpuSet) {
    if let Err(error) = pin_thread(thread, cpus) {
        tracing::warn!(%cpus, %error, "a worker could not be pinned to its pod; it runs anywhere");
    }
}
