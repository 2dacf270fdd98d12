//! The CPUs that the workers of a pool run on, and the threads that are pinned anew when these
//! change.
//!
//! `following.md` has the steps by name.

use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use corewise_sync::sys::Tid;
use corewise_topology::{CpuId, CpuSet, TopologyError, current_cpu, pin_thread};

use crate::error::quietly;
use crate::pool::policy;

/// The rule by which the threads of pools are pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pinning {
    /// Nowhere: the machine is synthetic.
    Nowhere,
    /// The first on each CPU of the pod to that one, the others to all.
    Cpu,
}

/// The CPU that a worker owns, if any: the worker is pinned to that alone. It gets a CPU when it
/// arrives, by Move and by Settle, and gives it up by Roam; see `README.md`.
#[derive(Debug)]
pub(super) struct OwnCpu {
    /// A: the CPU's number, or `NO_CPU`. Set under the lock of `Pins`; a hint for the choice of a
    /// worker, so Relaxed.
    cpu: AtomicU32,
    /// A: true if the CPU went to another worker, and the thread is still pinned to it. Set under
    /// the lock of `Pins`; the thread looks now and then, so Relaxed.
    left: AtomicBool,
    /// A: true if the worker gave its CPU up since others keep it from that; it gets none until it
    /// settles. Written under the lock of `Pins`; the worker looks now and then, so Relaxed.
    roams: AtomicBool,
}

const NO_CPU: u32 = u32::MAX;

impl OwnCpu {
    pub(super) fn none() -> OwnCpu {
        OwnCpu {
            cpu: AtomicU32::new(NO_CPU),
            left: AtomicBool::new(false),
            roams: AtomicBool::new(false),
        }
    }

    pub(super) fn get(&self) -> Option<CpuId> {
        Some(self.cpu.load(Ordering::Relaxed)).filter(|cpu| *cpu != NO_CPU).map(CpuId::new)
    }

    pub(super) fn is(&self, cpu: CpuId) -> bool {
        self.get() == Some(cpu)
    }

    /// Makes the thread roam, under the lock of `Pins`.
    fn give_up(&self) {
        self.set(None);
        self.roams.store(true, Ordering::Relaxed);
    }

    /// Returns true if it roamed a moment ago.
    pub(super) fn roams(&self) -> bool {
        self.roams.load(Ordering::Relaxed)
    }

    fn set(&self, cpu: Option<CpuId>) {
        self.roams.store(false, Ordering::Relaxed);
        self.cpu.store(cpu.map_or(NO_CPU, CpuId::number), Ordering::Relaxed);
    }
}

/// The pinning of a pool's threads.
pub(super) struct Pins {
    /// I: how threads are pinned, if at all.
    pinning: Pinning,
    /// L: is the lock; guards the threads and their CPUs, and is held while one of them is pinned.
    /// So a thread is pinned to the CPUs that were set last, and a thread that has ended never.
    /// Nothing else is locked under it.
    pins: Mutex<PinState>,
    /// A: time of the timekeeper when the last stream of tiny items ended, in nanoseconds. A hint:
    /// Relaxed.
    streamed: AtomicU64,
}

struct PinState {
    cpus: CpuSet,
    /// Each CPU has at most one thread that is pinned to it alone, and has one if there are enough.
    alone: bool,
    threads: Vec<Thread>,
}

#[derive(Clone)]
struct Thread {
    tid: Tid,
    own: Arc<OwnCpu>,
}

/// A worker's thread, for as long as it is to be pinned.
pub(super) struct PinnedThread<'a> {
    pins: &'a Pins,
    thread: Option<Tid>,
}

/// A thread that couldn't be pinned.
pub(super) struct PinError {
    cpus: CpuSet,
    error: TopologyError,
}

impl PinError {
    /// Logs the errors, with no lock held: a subscriber is the user's code.
    pub(super) fn log(self) {
        let PinError { cpus, error } = self;
        tracing::warn!(%cpus, %error, "a worker could not be pinned to its pod; it runs on any CPU");
    }
}

impl Pins {
    pub(super) fn new(cpus: CpuSet, pinning: Pinning) -> Pins {
        let inner = PinState { cpus, alone: pinning == Pinning::Cpu, threads: Vec::new() };
        Pins { pinning, pins: Mutex::new(inner), streamed: AtomicU64::new(0) }
    }

    /// Carries out Arrive: pins the calling thread, a worker of the pool, now and at each change
    /// until the guard is dropped, at its end. It gets this CPU for its own, if that is free.
    pub(super) fn arrive(&self, own: &Arc<OwnCpu>, cpu: Option<CpuId>) -> PinnedThread<'_> {
        let thread = (self.pinning != Pinning::Nowhere).then(Tid::current);
        if let Some(tid) = thread {
            let thread = Thread { tid, own: Arc::clone(own) };
            let refused = {
                let mut inner = self.pins.lock();
                if inner.any_roams() {
                    thread.own.give_up();
                } else {
                    thread.own.set(inner.free().find(|free| Some(*free) == cpu));
                }
                inner.threads.push(thread.clone());
                inner.hand_out();
                inner.pin(&thread)
            };
            refused.into_iter().for_each(PinError::log);
        }
        PinnedThread { pins: self, thread }
    }

    /// Carries out Pin: these are the CPUs from now on, for the existing threads and later ones.
    /// `away`: they are borrowed, and no worker owns one of them.
    ///
    /// The caller pins them, since a thread that runs a long item or is parked wouldn't do it
    /// itself. It does so even if the CPUs are the same as before. If the last CPU of a thread goes
    /// offline, the kernel gives the thread a mask of its own choice, and doesn't take it back.
    /// Older kernels do so with each thread of a cpuset that was written.
    ///
    /// Returns the threads that couldn't be pinned, to be logged by the caller, which holds locks.
    pub(super) fn set(&self, cpus: CpuSet, away: bool) -> Vec<PinError> {
        let mut inner = self.pins.lock();
        inner.cpus = cpus;
        inner.alone = self.pinning == Pinning::Cpu && !away;
        inner.hand_out();
        inner.pin_all()
    }

    /// Carries out Move: this thread owns that CPU now. The last owner sleeps there, and wakes up
    /// there, where its timer is: waking another CPU costs this one more. That thread comes back by
    /// itself. Does nothing if the CPU isn't one of ours, or no worker may own it.
    pub(super) fn move_in(&self, own: &Arc<OwnCpu>, cpu: CpuId) {
        let refused: Vec<PinError> = {
            let mut inner = self.pins.lock();
            inner.hand_over(own, cpu).iter().filter_map(|thread| inner.pin(thread)).collect()
        };
        // The waker of a worker may have started an item, and has to continue.
        refused.into_iter().for_each(|refused| quietly(|| refused.log()));
    }

    /// Returns a CPU of these that no thread owned a moment ago.
    pub(super) fn free(&self, of_these: impl Fn(CpuId) -> bool) -> Option<CpuId> {
        self.pins.lock().free().find(|&cpu| of_these(cpu))
    }

    /// Carries out Come back: the calling thread, whose CPU went to another while it slept, may use
    /// all now.
    #[inline]
    pub(super) fn come_back(&self, own: &OwnCpu) {
        if own.left.load(Ordering::Relaxed) {
            self.renew(own);
        }
    }

    /// Carries out Lend: calls `f`, which makes a thread for `cpus`, while the calling thread may
    /// use these, too. A thread inherits the CPUs of its maker. Below a maker that is pinned to a
    /// single CPU it would wait there until the maker sleeps.
    pub(super) fn lend<R>(&self, own: &OwnCpu, cpus: &CpuSet, f: impl FnOnce() -> R) -> R {
        self.come_back(own);
        let lent = self.are_real() && {
            let inner = self.pins.lock();
            let thread = inner.threads.iter().find(|thread| ptr::eq(&*thread.own, own));
            thread.is_some_and(|thread| inner.widen(thread, cpus))
        };
        let made = f();
        if lent {
            // The CPUs that were set last may have changed meanwhile.
            self.renew(own);
        }
        made
    }

    /// Pins the calling thread to its present CPUs.
    #[cold]
    fn renew(&self, own: &OwnCpu) {
        let refused = {
            let inner = self.pins.lock();
            let thread = inner.threads.iter().find(|thread| ptr::eq(&*thread.own, own));
            thread.and_then(|thread| inner.pin(thread))
        };
        // It may be within an item.
        refused.into_iter().for_each(|refused| quietly(|| refused.log()));
    }

    /// Notes that a stream has ended at this moment.
    pub(super) fn has_streamed(&self, now: Duration) {
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.streamed.store(now, Ordering::Relaxed);
    }

    /// Notes that a thread was kept from its CPU, and carries out Roam, if that helps.
    pub(super) fn was_late(&self, now: Duration) {
        let streamed = Duration::from_nanos(self.streamed.load(Ordering::Relaxed));
        let cpus = self.pins.lock().cpus.len();
        if policy::roams(cpus, now.saturating_sub(streamed)) {
            self.roam();
        }
    }

    /// Carries out Roam: all threads give their CPUs up, and may use all now.
    fn roam(&self) {
        let refused = {
            let inner = self.pins.lock();
            inner.threads.iter().for_each(|thread| thread.own.give_up());
            inner.pin_all()
        };
        refused.into_iter().for_each(PinError::log);
    }

    /// Carries out Settle: the calling thread, which roams, owns the CPU that it is on, if no other
    /// does.
    pub(super) fn settle(&self, own: &OwnCpu) {
        let Some(cpu) = current_cpu() else { return };
        let free = {
            let inner = self.pins.lock();
            let free = inner.free().any(|free| free == cpu);
            if free {
                own.set(Some(cpu));
            }
            free
        };
        if free {
            self.renew(own);
        }
    }

    /// Pins the threads again to the CPUs that they were pinned to.
    pub(super) fn again(&self) {
        let refused = self.pins.lock().pin_all();
        refused.into_iter().for_each(PinError::log);
    }

    /// Returns true if the threads are on the CPUs that they are said to be on.
    pub(super) fn are_real(&self) -> bool {
        self.pinning != Pinning::Nowhere
    }

    /// Returns where the workers run now.
    pub(super) fn cpus(&self) -> CpuSet {
        self.pins.lock().cpus.clone()
    }
}

impl PinState {
    fn any_roams(&self) -> bool {
        self.threads.iter().any(|thread| thread.own.roams())
    }

    /// Returns the CPUs that no thread owns.
    fn free(&self) -> impl Iterator<Item = CpuId> {
        let taken = |cpu| self.threads.iter().any(|thread| thread.own.is(cpu));
        self.cpus.iter().filter(move |&cpu| self.alone && !taken(cpu))
    }

    /// Takes CPUs back that are none of ours any more, and hands out those that are free. The
    /// threads that got one are to be pinned.
    fn hand_out(&mut self) -> Vec<Thread> {
        let keeps = |cpu| self.alone && self.cpus.contains(cpu);
        for thread in &self.threads {
            if thread.own.get().is_some_and(|cpu| !keeps(cpu)) {
                thread.own.set(None);
            }
        }
        let free: Vec<CpuId> = self.free().collect();
        let without = self.threads.iter().filter(|thread| {
            let own = &thread.own;
            own.get().is_none() && !own.roams()
        });
        let give = |(thread, cpu): (&Thread, CpuId)| {
            thread.own.set(Some(cpu));
            thread.clone()
        };
        without.zip(free).map(give).collect()
    }

    /// Gives a CPU another owner, and returns the threads that are to be pinned.
    fn hand_over(&mut self, to: &Arc<OwnCpu>, cpu: CpuId) -> Vec<Thread> {
        let heir = self.threads.iter().find(|thread| Arc::ptr_eq(&thread.own, to));
        let Some(heir) = heir.filter(|_| self.alone && self.cpus.contains(cpu)).cloned() else {
            return Vec::new();
        };
        let owner = self.threads.iter().find(|thread| thread.own.is(cpu));
        if let Some(owner) = owner.filter(|owner| !Arc::ptr_eq(&owner.own, to)) {
            owner.own.set(None);
            owner.own.left.store(true, Ordering::Relaxed);
        }
        heir.own.set(Some(cpu));
        let mut changed = vec![heir];
        // The heir may have had another, and the owner may get that.
        for thread in self.hand_out() {
            changed.retain(|other| !Arc::ptr_eq(&other.own, &thread.own));
            changed.push(thread);
        }
        changed
    }

    fn pin_all(&self) -> Vec<PinError> {
        self.threads.iter().filter_map(|thread| self.pin(thread)).collect()
    }

    fn pin(&self, thread: &Thread) -> Option<PinError> {
        thread.own.left.store(false, Ordering::Relaxed);
        let cpus = self.cpus_of(thread);
        let error = pin_thread(thread.tid, &cpus).err()?;
        Some(PinError { cpus, error })
    }

    fn cpus_of(&self, thread: &Thread) -> CpuSet {
        thread.own.get().map_or_else(|| self.cpus.clone(), |cpu| CpuSet::from_iter([cpu]))
    }

    /// Lets the thread use these CPUs, too; returns whether it couldn't before, and now can.
    fn widen(&self, thread: &Thread, cpus: &CpuSet) -> bool {
        let own = self.cpus_of(thread);
        !cpus.is_subset(&own) && pin_thread(thread.tid, &own.union(cpus)).is_ok()
    }
}

impl Drop for PinnedThread<'_> {
    fn drop(&mut self) {
        let Some(tid) = self.thread else { return };
        let refused: Vec<PinError> = {
            let mut inner = self.pins.pins.lock();
            inner.threads.retain(|other| other.tid != tid);
            inner.hand_out().iter().filter_map(|thread| inner.pin(thread)).collect()
        };
        refused.into_iter().for_each(PinError::log);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use tracing::{Event, Subscriber};
    use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

    use super::*;

    /// Looks at the pins in each event.
    struct PinProbe(Arc<Pins>, mpsc::Sender<CpuSet>);

    impl<S: Subscriber> Layer<S> for PinProbe {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            self.1.send(self.0.cpus()).expect("the test listens");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "it doesn't know the system call")]
    fn a_subscriber_may_look_at_the_pins_of_a_worker_that_could_not_be_pinned() {
        let no_such_cpu = CpuSet::from_iter([CpuId::new(1023)]);
        let pins = Arc::new(Pins::new(no_such_cpu.clone(), Pinning::Cpu));
        let (tell, told) = mpsc::channel();
        let subscriber = tracing_subscriber::registry().with(PinProbe(Arc::clone(&pins), tell));
        tracing::subscriber::with_default(subscriber, || {
            let _arrived = pins.arrive(&Arc::new(OwnCpu::none()), None);
            pins.again();
            pins.set(no_such_cpu.clone(), false).into_iter().for_each(PinError::log);
        });
        assert_eq!(told.iter().collect::<Vec<_>>(), vec![no_such_cpu; 3]);
    }

    /// Pins that pin no thread, and the CPUs that threads have alone.
    fn on(cpus: &str, threads: usize) -> (Pins, Vec<Arc<OwnCpu>>) {
        let pins = Pins::new(cpus.parse().expect("a list of CPUs"), Pinning::Cpu);
        let own: Vec<_> = (0..threads).map(|_| Arc::new(OwnCpu::none())).collect();
        {
            let mut inner = pins.pins.lock();
            let thread = |own: &Arc<OwnCpu>| Thread { tid: Tid::current(), own: Arc::clone(own) };
            inner.threads.extend(own.iter().map(thread));
            inner.hand_out();
        }
        (pins, own)
    }

    fn own(own: &[Arc<OwnCpu>]) -> Vec<Option<u32>> {
        own.iter().map(|own| own.get().map(CpuId::number)).collect()
    }

    #[test]
    #[cfg_attr(miri, ignore = "it doesn't know the system call")]
    fn a_thread_that_a_pinned_worker_makes_may_begin_on_all_its_cpus_and_the_worker_stays_pinned() {
        if !corewise_sync::sys::KERNEL_THREADS {
            // No thread can be pinned.
            return;
        }
        fn may_use() -> Option<CpuSet> {
            corewise_sync::sys::affinity(None).map(|mask| mask.iter().map(CpuId::new).collect())
        }
        let before = may_use().expect("Linux tells");
        let pins = Pins::new(before.clone(), Pinning::Cpu);
        let own = Arc::new(OwnCpu::none());
        let _arrived = pins.arrive(&own, current_cpu());
        let alone = CpuSet::from_iter([own.get().expect("one is free")]);
        assert_eq!(may_use(), Some(alone.clone()));
        let made = pins.lend(&own, &before, || std::thread::spawn(may_use).join());
        assert_eq!(made.expect("it doesn't panic"), Some(before.clone()));
        assert_eq!(may_use(), Some(alone.clone()));
        // Its CPU, and each other one, was given to others while it slept there.
        let others: Vec<_> = before.iter().map(|_| Arc::new(OwnCpu::none())).collect();
        {
            let mut inner = pins.pins.lock();
            let thread = |own: &Arc<OwnCpu>| Thread { tid: Tid::current(), own: Arc::clone(own) };
            inner.threads.extend(others.iter().map(thread));
            inner.hand_out();
            let heir = others.iter().find(|other| other.get().is_none()).expect("one is without");
            inner.hand_over(heir, alone.first().expect("it is one CPU"));
        }
        assert_eq!((own.get(), may_use()), (None, Some(alone)));
        let made = pins.lend(&own, &before, || std::thread::spawn(may_use).join());
        assert_eq!(made.expect("it doesn't panic"), Some(before.clone()));
        assert_eq!(may_use(), Some(before), "it has come back");
    }

    #[test]
    #[cfg_attr(miri, ignore = "it doesn't know the system call")]
    fn each_cpu_has_one_thread_alone_and_the_others_may_use_all() {
        let (pins, threads) = on("4-5", 3);
        assert_eq!(own(&threads), [Some(4), Some(5), None]);
        let mut inner = pins.pins.lock();
        inner.threads.remove(0);
        inner.hand_out();
        assert_eq!(own(&threads[1..]), [Some(5), Some(4)], "one leaves, another gets its CPU");
    }

    #[test]
    #[cfg_attr(miri, ignore = "it doesn't know the system call")]
    fn a_worker_that_moves_in_has_the_cpu_alone_and_the_owner_gets_a_free_one() {
        let (pins, threads) = on("4-5", 3);
        let mut inner = pins.pins.lock();
        assert_eq!(inner.hand_over(&threads[2], CpuId::new(4)).len(), 1);
        assert_eq!(own(&threads), [None, Some(5), Some(4)]);
        let left = |at: usize| threads[at].left.load(Ordering::Relaxed);
        assert!(left(0) && !left(1) && !left(2), "the owner is pinned there until it comes back");
        assert_eq!(inner.hand_over(&threads[1], CpuId::new(4)).len(), 2);
        assert_eq!(own(&threads), [Some(5), Some(4), None], "the first one without gets it");
        assert_eq!(inner.hand_over(&threads[1], CpuId::new(4)).len(), 1, "it has it already");
        assert_eq!(inner.hand_over(&threads[2], CpuId::new(9)).len(), 0, "none of ours");
        assert_eq!(
            inner.hand_over(&Arc::new(OwnCpu::none()), CpuId::new(4)).len(),
            0,
            "it has left"
        );
        inner.alone = false;
        assert_eq!(inner.hand_over(&threads[2], CpuId::new(4)).len(), 0, "nobody's alone");
        assert_eq!(own(&threads), [Some(5), Some(4), None]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "it doesn't know the system call")]
    fn a_roaming_worker_gets_no_cpu_until_it_settles_or_moves_in() {
        if !corewise_sync::sys::KERNEL_THREADS {
            // No thread can be pinned.
            return;
        }
        let here = current_cpu().expect("a test's thread is on a CPU");
        let (pins, threads) = on(&format!("{here},1000"), 2);
        let mine = &threads[0];
        pins.roam();
        assert!(threads.iter().all(|own| own.roams() && own.get().is_none()));
        assert!(pins.pins.lock().hand_out().is_empty());
        // The test may be on any CPU by now.
        corewise_topology::pin_current_thread(&CpuSet::from_iter([here])).expect("it is on it");
        pins.settle(mine);
        assert!(mine.is(here) && !mine.roams());
        let third = Arc::new(OwnCpu::none());
        let _arrived = pins.arrive(&third, Some(CpuId::new(1000)));
        assert!(third.roams(), "as long as any does");
        pins.roam();
        corewise_topology::pin_current_thread(&CpuSet::from_iter([here])).expect("it is on it");
        pins.settle(&third);
        assert!(third.is(here));
        pins.settle(mine);
        assert!(mine.roams(), "it isn't free any more");
        pins.pins.lock().hand_over(mine, CpuId::new(1000));
        assert!(mine.is(CpuId::new(1000)) && !mine.roams());
    }

    #[test]
    #[cfg_attr(miri, ignore = "it doesn't know the system call")]
    fn a_cpu_that_goes_is_nobodys_and_borrowed_ones_are_too() {
        let (pins, threads) = on("4-5", 2);
        let mut inner = pins.pins.lock();
        inner.cpus = "5-6".parse().expect("a list of CPUs");
        inner.hand_out();
        assert_eq!(own(&threads), [Some(6), Some(5)]);
        inner.alone = false;
        inner.hand_out();
        assert_eq!(own(&threads), [None, None]);
    }
}
