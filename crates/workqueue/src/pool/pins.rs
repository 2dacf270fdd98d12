//! Which CPUs the workers of a pool run on, and the threads that have to be told when that changes.
//!
//! `following.md` has the steps by name.

use corewise_sync::Mutex;
use corewise_topology::{CpuSet, Tid, TopologyError, pin_thread};

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

/// A thread that couldn't be pinned.
pub(super) struct Refused {
    cpus: CpuSet,
    error: TopologyError,
}

impl Refused {
    /// With no lock held: a subscriber is the user's code.
    pub(super) fn log(self) {
        let Refused { cpus, error } = self;
        tracing::warn!(%cpus, %error, "a worker could not be pinned to its pod; it runs anywhere");
    }
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
            let refused = {
                let mut inner = self.pins.lock();
                inner.threads.push(thread);
                inner.pin(thread)
            };
            refused.into_iter().for_each(Refused::log);
        }
        Arrived { pins: self, thread }
    }

    /// Pin: these are the CPUs from now on, for the threads that are there and those to come.
    ///
    /// From the outside, since a thread that runs a long item or is parked wouldn't do it itself. Also
    /// where the CPUs are the same as before: the kernel gives a thread whose last CPU went offline,
    /// and on older kernels each thread of a cpuset that was written, a mask of its own choice, and
    /// doesn't take it back.
    ///
    /// The threads that couldn't be, to be logged by the caller, who holds locks.
    pub(super) fn set(&self, cpus: CpuSet) -> Vec<Refused> {
        let mut inner = self.pins.lock();
        inner.cpus = cpus;
        inner.pin_all()
    }

    /// Pins the threads again to what they were pinned to.
    pub(super) fn again(&self) {
        let refused = self.pins.lock().pin_all();
        refused.into_iter().for_each(Refused::log);
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
    fn pin_all(&self) -> Vec<Refused> {
        self.threads.iter().filter_map(|&thread| self.pin(thread)).collect()
    }

    fn pin(&self, thread: Tid) -> Option<Refused> {
        let error = pin_thread(thread, &self.cpus).err()?;
        Some(Refused { cpus: self.cpus.clone(), error })
    }
}

impl Drop for Arrived<'_> {
    fn drop(&mut self) {
        if let Some(thread) = self.thread {
            self.pins.pins.lock().threads.retain(|other| *other != thread);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::{Arc, mpsc};

    use tracing::{Event, Subscriber};
    use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

    use super::*;

    /// Looks at the pins in each event.
    struct Looks(Arc<Pins>, mpsc::Sender<CpuSet>);

    impl<S: Subscriber> Layer<S> for Looks {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            self.1.send(self.0.cpus()).expect("the test listens");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "it doesn't know the system call")]
    fn a_subscriber_may_look_at_the_pins_of_a_worker_that_could_not_be_pinned() {
        let no_such_cpu = CpuSet::from_iter([1023]);
        let pins = Arc::new(Pins::new(no_such_cpu.clone(), true));
        let (tell, told) = mpsc::channel();
        let subscriber = tracing_subscriber::registry().with(Looks(Arc::clone(&pins), tell));
        tracing::subscriber::with_default(subscriber, || {
            let _arrived = pins.arrive();
            pins.again();
            pins.set(no_such_cpu.clone()).into_iter().for_each(Refused::log);
        });
        assert_eq!(told.iter().collect::<Vec<_>>(), vec![no_such_cpu; 3]);
    }
}
