//! What code that runs on the machine calls: memory, time, sleep, its CPU.
//!
//! Outside of a simulation each of these does nothing, or what is nearest to that.

use std::cell::Cell;
use std::panic::Location;
use std::sync::Arc;

use corosensei::stack::{DefaultStack, Stack as _};
use corosensei::{Coroutine, Yielder};

use crate::engine::Sim;
use crate::lines::Access;
use crate::machine::Mask;
use crate::task::{Body, Policy, Tid, Woken};

std::thread_local! {
    /// The machine that this OS thread simulates.
    static MACHINE: Cell<*mut Sim> = const { Cell::new(std::ptr::null_mut()) };
    /// Its own code runs, whose allocations nobody pays for.
    static WITHIN: Cell<bool> = const { Cell::new(false) };
}

/// Calls `f` with the machine: `None` outside of a simulation.
#[inline]
pub(crate) fn engine<R>(f: impl FnOnce(&mut Sim) -> R) -> Option<R> {
    let sim = MACHINE.get();
    if sim.is_null() || WITHIN.get() {
        return None;
    }
    WITHIN.set(true);
    // SAFETY: set by `enter`, whose caller keeps the machine until `leave`. `WITHIN` was false, so
    // nobody else has a reference: all users of it on this thread are in this function and in
    // `drive`, which has none while a coroutine runs.
    let result = f(unsafe { &mut *sim });
    WITHIN.set(false);
    Some(result)
}

/// Calls `f`, and nobody pays for what it allocates.
pub(crate) fn in_engine<R>(f: impl FnOnce() -> R) -> R {
    let before = WITHIN.replace(true);
    let result = f();
    WITHIN.set(before);
    result
}

/// Runs the machine until its first thread has ended.
///
/// # Errors
/// No thread can ever go on and the first one hasn't ended: those that are left.
pub(crate) fn drive(sim: &mut Sim, root: Tid) -> Result<(), String> {
    let sim: *mut Sim = sim;
    let outer = MACHINE.replace(sim);
    let within = WITHIN.replace(true);
    let outcome = loop {
        // SAFETY: the caller's exclusive reference, used in no other way until this function ends;
        // no coroutine runs now.
        let this = unsafe { &mut *sim };
        let Some(tid) = this.pick() else {
            break Err(this.stuck());
        };
        let body: *mut Body = match &mut this.threads[tid.index()].body {
            Some(body) => &mut **body,
            None => unreachable!("a thread that runs has a body"),
        };
        WITHIN.set(false);
        // SAFETY: boxed, so that it stays where it is when threads are added; only this loop takes
        // it away, below.
        let ended = unsafe { &mut *body }.resume(()).as_return().is_some();
        WITHIN.set(true);
        if ended {
            // SAFETY: as above.
            let this = unsafe { &mut *sim };
            this.threads[tid.index()].body = None;
            if tid == root {
                break Ok(());
            }
        }
    };
    MACHINE.set(outer);
    WITHIN.set(within);
    outcome
}

/// Lets others go first, until it is this thread's turn.
fn suspend() {
    let yielder = engine(|sim| {
        let tid = sim.current().expect("a simulated thread runs");
        sim.threads[tid.index()].yielder
    });
    if let Some(yielder) = yielder {
        // SAFETY: set by the coroutine that runs, at its begin; it lives as long as that.
        unsafe { &*yielder }.suspend(());
    }
}

/// Waits until nobody else has anything to do before.
#[inline]
fn turn() {
    if engine(|sim| sim.is_over()).unwrap_or(false) {
        suspend();
    }
}

/// Is this the code of a simulated thread?
pub fn is_simulated() -> bool {
    !MACHINE.get().is_null() && !WITHIN.get()
}

/// An access to the line of `address`, from a place in the code.
#[inline]
pub fn access(address: usize, kind: Access, site: &'static Location<'static>) {
    turn();
    engine(|sim| sim.access(address, kind, site));
}

/// Returns an address in each line that some bytes lie in.
pub(crate) fn lines_of(address: usize, bytes: usize) -> impl Iterator<Item = usize> {
    let end = address + bytes;
    let lines = (address & !63..end).step_by(64);
    lines.map(move |line| line.max(address)).filter(move |at| *at < end)
}

/// The access before read this value: where it is a pointer, what it points to can't be asked for
/// earlier.
#[inline]
pub fn loaded(value: usize) {
    engine(|sim| sim.loaded(value));
}

/// An access to shared data that isn't atomic: each of its lines is charged for.
#[track_caller]
pub fn touch(address: usize, bytes: usize, kind: Access) {
    let site = Location::caller();
    for at in lines_of(address, bytes) {
        turn();
        engine(|sim| sim.access(at, kind, site));
    }
}

/// Asks for a line that is needed soon.
pub fn prefetch(address: usize, kind: Access) {
    turn();
    engine(|sim| sim.prefetch(address, kind));
}

/// A full fence.
pub fn fence() {
    turn();
    engine(Sim::fence);
}

/// A process-wide barrier by the system.
pub fn membarrier() {
    turn();
    engine(Sim::membarrier);
}

/// A spin hint.
pub fn spin_loop() {
    turn();
    engine(Sim::pause);
}

/// The moment, for [`lock_waited`]: costs nothing. 0 outside of a simulation.
pub fn moment() -> f64 {
    engine(|sim| sim.now()).unwrap_or(0.0)
}

/// This thread has waited for a lock since then.
pub fn lock_waited(since: f64) {
    engine(|sim| sim.tally.lock_waits += sim.now() - since);
}

/// Computes for so long, in nanoseconds, and touches nothing.
pub fn burn(nanos: f64) {
    turn();
    engine(|sim| sim.spend(nanos));
    turn();
}

/// Nanoseconds since the machine began. 0 outside of a simulation.
pub fn now() -> u64 {
    turn();
    let now = engine(|sim| {
        let time = sim.costs.clock;
        sim.spend(time);
        sim.now() as u64
    });
    now.unwrap_or(0)
}

/// As [`now`], by a clock that is read in a few nanoseconds and shows the last tick of 4 ms.
pub fn coarse_now() -> u64 {
    turn();
    let now = engine(|sim| {
        let time = sim.costs.hit * 4.0;
        sim.work(time);
        sim.now() as u64 / 4_000_000 * 4_000_000
    });
    now.unwrap_or(0)
}

/// CPU time of this thread, in nanoseconds.
pub fn thread_time() -> u64 {
    turn();
    engine(|sim| {
        let time = sim.costs.syscall;
        sim.spend(time);
        sim.ran() as u64
    })
    .unwrap_or(0)
}

/// CPU time of all threads, in nanoseconds.
pub fn process_time() -> u64 {
    turn();
    engine(|sim| sim.busy() as u64).unwrap_or(0)
}

/// The CPU on which this thread runs: `None` outside of a simulation.
pub fn current_cpu() -> Option<usize> {
    turn();
    engine(|sim| {
        let time = sim.costs.hit;
        sim.work(time);
        sim.cpu()
    })
}

/// This thread.
pub fn current() -> Option<Tid> {
    engine(|sim| sim.current()).flatten()
}

/// The name of a thread.
pub fn name_of(tid: Tid) -> Option<Arc<str>> {
    engine(|sim| sim.threads[tid.index()].name.clone()).flatten()
}

/// The CPUs on which a thread may run; of all that there are outside of a simulation.
pub fn affinity(tid: Tid) -> Option<Mask> {
    engine(|sim| sim.threads[tid.index()].affinity)
}

/// The description that the machine was given.
pub fn description() -> Option<String> {
    engine(|sim| sim.machine.description()).flatten()
}

/// Says where a thread may run. False where that leaves it nowhere.
pub fn set_affinity(tid: Tid, mask: Mask) -> bool {
    turn();
    let set = engine(|sim| sim.set_affinity(tid, mask)).unwrap_or(false);
    turn();
    set
}

/// Says how this thread is scheduled. False where the machine doesn't permit it.
pub fn set_policy(policy: Policy) -> bool {
    turn();
    let set = engine(|sim| {
        let may = policy == Policy::Normal || sim.machine.has_real_time();
        if may {
            sim.set_policy(policy);
        }
        may
    });
    turn();
    set.unwrap_or(false)
}

/// Whether this thread has no real-time priority. False outside of a simulation.
pub fn is_ordinary() -> bool {
    turn();
    engine(|sim| {
        let time = sim.costs.syscall;
        sim.spend(time);
        sim.current().is_some_and(|tid| sim.threads[tid.index()].policy == Policy::Normal)
    })
    .unwrap_or(false)
}

/// Whether threads may have real-time priorities.
pub fn has_real_time() -> bool {
    engine(|sim| sim.machine.has_real_time()).unwrap_or(false)
}

/// Timers of this thread aren't late from now on, nor those of threads that it starts later.
pub fn wake_on_time() {
    engine(|sim| {
        let time = sim.costs.syscall;
        sim.spend(time);
        if let Some(tid) = sim.current() {
            sim.threads[tid.index()].on_time = true;
        }
    });
}

/// Lets others that wait for this CPU run.
pub(crate) fn yield_now() {
    turn();
    engine(Sim::yield_now);
    turn();
}

/// Sleeps for so many nanoseconds.
pub(crate) fn sleep(nanos: u64) {
    turn();
    let slept = engine(|sim| {
        let time = sim.costs.syscall;
        sim.spend(time);
        let until = sim.now() + nanos as f64;
        sim.fall_asleep(0, Some(until));
    });
    if slept.is_some() {
        suspend();
    }
}

/// Sleeps on the word at `address` where `is_expected`, until it is woken or `timeout` (in
/// nanoseconds) is over. `None` where the word had another value.
pub fn futex_wait(
    address: usize,
    is_expected: impl FnOnce() -> bool,
    timeout: Option<u64>,
) -> Option<Woken> {
    turn();
    if !is_simulated() {
        return None;
    }
    engine(|sim| {
        let time = sim.costs.syscall;
        sim.spend(time);
    });
    turn();
    if !is_expected() {
        return None;
    }
    engine(|sim| {
        let until = timeout.map(|nanos| sim.now() + nanos as f64);
        sim.fall_asleep(address, until);
    });
    suspend();
    engine(|sim| {
        let tid = sim.current().expect("a simulated thread runs");
        sim.threads[tid.index()].woken
    })
}

/// Wakes at most so many of those that sleep on the word: how many that were.
pub fn futex_wake(address: usize, most: usize) -> usize {
    turn();
    engine(|sim| sim.wake(address, most)).unwrap_or(0)
}

/// The stack of this thread: its lowest address, and how many bytes it has. `None` outside of a
/// simulation.
pub fn stack() -> Option<(usize, usize)> {
    engine(|sim| Some(sim.threads[sim.current()?.index()].stack)).flatten()
}

/// CPU time of a thread in nanoseconds, and whether it sleeps: `None` where it has ended.
pub fn reading(tid: Tid) -> Option<(u64, bool)> {
    turn();
    engine(|sim| {
        let time = sim.costs.syscall * 4.0;
        sim.spend(time);
        sim.reading(tid).map(|(ran, asleep)| (ran as u64, asleep))
    })
    .flatten()
}

/// For how long this thread could have run and waited for a CPU, in nanoseconds.
pub fn run_delay() -> u64 {
    turn();
    engine(|sim| {
        let time = sim.costs.syscall * 4.0;
        sim.spend(time);
        sim.current().map_or(0, |tid| sim.threads[tid.index()].waited as u64)
    })
    .unwrap_or(0)
}

/// How many threads there are.
pub fn threads() -> usize {
    engine(|sim| sim.threads()).unwrap_or(0)
}

/// A timer of the system, which is set by one thread while another one waits for it.
#[derive(Debug)]
pub struct Timer(usize);

impl Timer {
    /// One that isn't set: `None` outside of a simulation.
    pub fn new() -> Option<Timer> {
        engine(Sim::make_timer).map(Timer)
    }

    /// Sets it to go off once, after so many nanoseconds; `None`: never.
    pub fn set(&self, after: Option<u64>) {
        turn();
        engine(|sim| sim.set_timer(self.0, after));
    }

    /// Sleeps until it has gone off since the last time.
    pub fn wait(&self) {
        turn();
        if engine(|sim| sim.await_timer(self.0)) == Some(false) {
            suspend();
            engine(|sim| sim.forget_timer(self.0));
        }
    }
}

/// An allocation was made: a global allocator says so. The caller of the allocator fills it.
#[track_caller]
pub fn allocated(address: usize, bytes: usize) {
    let site = Location::caller();
    engine(|sim| sim.allocated(address, bytes, site));
}

/// An allocation was given back: the allocator writes its link into it.
#[track_caller]
pub fn freed(address: usize) {
    let site = Location::caller();
    engine(|sim| sim.freed(address, site));
}

/// Marks a moment: how many voluntary switches there were until then.
/// [`Outcome::between`](crate::Outcome) has what was counted between two of them.
pub fn mark() -> u64 {
    turn();
    engine(|sim| {
        let now = sim.now();
        sim.marks.push((now, sim.tally.clone()));
        sim.tally.switches - sim.tally.preemptions
    })
    .unwrap_or(0)
}

/// Starts a thread.
pub(crate) fn spawn(name: Option<Arc<str>>, run: impl FnOnce() + 'static) -> Option<Tid> {
    turn();
    let tid = engine(|sim| {
        let time = sim.costs.spawn;
        sim.spend(time);
        sim.spawn(name, |tid| body(tid, run))
    });
    turn();
    tid
}

/// Waits until a thread has ended.
pub(crate) fn join(tid: Tid) {
    turn();
    if engine(|sim| sim.join(tid)) == Some(false) {
        suspend();
    }
}

/// Bytes of a thread's stack: only what is used takes memory.
const STACK: usize = 1 << 20;

/// The coroutine of a thread.
pub(crate) fn body(tid: Tid, run: impl FnOnce() + 'static) -> Box<Body> {
    let stack = DefaultStack::new(STACK).expect("address space for a stack");
    let (lowest, highest) = (stack.limit().get(), stack.base().get());
    Box::new(Coroutine::with_stack(stack, move |yielder: &Yielder<(), ()>, ()| {
        engine(|sim| {
            sim.threads[tid.index()].yielder = yielder;
            sim.threads[tid.index()].stack = (lowest, highest - lowest);
        });
        run();
        crate::local::drop_all();
        turn();
        engine(Sim::end);
    }))
}
