//! Functions for code that runs on the machine: memory, time, sleep, CPUs.
//!
//! Outside of a simulation each of them does nothing, or the nearest to that.

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
    /// Machine that this OS thread simulates.
    static MACHINE: Cell<*mut Sim> = const { Cell::new(std::ptr::null_mut()) };
    /// True while the simulator's own code runs. Its allocations cost nothing.
    static WITHIN: Cell<bool> = const { Cell::new(false) };
}

/// Calls `f` with the machine. Returns `None` outside of a simulation.
#[inline]
pub(crate) fn engine<R>(f: impl FnOnce(&mut Sim) -> R) -> Option<R> {
    let sim = MACHINE.get();
    if sim.is_null() || WITHIN.get() {
        return None;
    }
    WITHIN.set(true);
    // SAFETY: `drive` has set the pointer, and its caller keeps the machine until `drive` returns.
    // `WITHIN` was false, so there is no other reference. All users on this thread are this
    // function and `drive`, which has none while a coroutine runs.
    let result = f(unsafe { &mut *sim });
    WITHIN.set(false);
    Some(result)
}

/// Calls `f`, whose allocations cost nothing.
pub(crate) fn in_engine<R>(f: impl FnOnce() -> R) -> R {
    let before = WITHIN.replace(true);
    let result = f();
    WITHIN.set(before);
    result
}

/// Runs the machine until its first thread has ended.
///
/// # Errors
/// No thread can ever continue, and the first one hasn't ended. The text names the threads that are
/// left.
pub(crate) fn drive(sim: &mut Sim, root: Tid) -> Result<(), String> {
    let sim: *mut Sim = sim;
    let outer = MACHINE.replace(sim);
    let within = WITHIN.replace(true);
    let outcome = loop {
        // SAFETY: the pointer is the caller's exclusive reference, which is used in no other way
        // until this function ends. No coroutine runs now.
        let this = unsafe { &mut *sim };
        let Some(tid) = this.pick() else {
            break Err(this.stuck());
        };
        let body: *mut Body = match &mut this.threads[tid.index()].body {
            Some(body) => &mut **body,
            None => unreachable!("a thread that runs has a body"),
        };
        WITHIN.set(false);
        // SAFETY: the body is boxed, so it stays in place when threads are added. Only this loop
        // drops it, below.
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

/// Lets other threads go first, until it is this thread's turn.
fn suspend() {
    let yielder = engine(|sim| {
        let tid = sim.current().expect("a simulated thread runs");
        sim.threads[tid.index()].yielder
    });
    if let Some(yielder) = yielder {
        // SAFETY: the running coroutine has set the pointer at its begin, and keeps the yielder
        // alive.
        unsafe { &*yielder }.suspend(());
    }
}

/// Waits until no other thread has earlier work.
#[inline]
fn turn() {
    if engine(|sim| sim.is_over()).unwrap_or(false) {
        suspend();
    }
}

/// Returns true in the code of a simulated thread.
pub fn is_simulated() -> bool {
    !MACHINE.get().is_null() && !WITHIN.get()
}

/// Charges for an access to the line of `address`, from a place in the code.
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

/// Notes the value that the previous access read. If it is a pointer, its target can't be fetched
/// earlier.
#[inline]
pub fn loaded(value: usize) {
    engine(|sim| sim.loaded(value));
}

/// Charges for an access to shared data that isn't atomic, line by line.
#[track_caller]
pub fn touch(address: usize, bytes: usize, kind: Access) {
    let site = Location::caller();
    for at in lines_of(address, bytes) {
        turn();
        engine(|sim| sim.access(at, kind, site));
    }
}

/// Prefetches a line.
pub fn prefetch(address: usize, kind: Access) {
    turn();
    engine(|sim| sim.prefetch(address, kind));
}

/// Executes a full fence.
pub fn fence() {
    turn();
    engine(Sim::fence);
}

/// Executes a process-wide barrier of the system.
pub fn membarrier() {
    turn();
    engine(Sim::membarrier);
}

/// Executes a spin hint.
pub fn spin_loop() {
    turn();
    engine(Sim::pause);
}

/// Returns the time for [`lock_waited`], at no cost. 0 outside of a simulation.
pub fn moment() -> f64 {
    engine(|sim| sim.now()).unwrap_or(0.0)
}

/// Counts this thread's wait for a lock, which began at `since`.
pub fn lock_waited(since: f64) {
    engine(|sim| sim.tally.lock_waits += sim.now() - since);
}

/// Computes for some nanoseconds, and touches no memory.
pub fn burn(nanos: f64) {
    turn();
    engine(|sim| sim.spend(nanos));
    turn();
}

/// Returns the nanoseconds since the machine began. 0 outside of a simulation.
pub fn now() -> u64 {
    turn();
    let now = engine(|sim| {
        let time = sim.costs.clock;
        sim.spend(time);
        sim.now() as u64
    });
    now.unwrap_or(0)
}

/// Returns the time of the last tick of 4 ms. The read takes a few nanoseconds; compare [`now`].
pub fn coarse_now() -> u64 {
    turn();
    let now = engine(|sim| {
        let time = sim.costs.hit * 4.0;
        sim.work(time);
        sim.now() as u64 / 4_000_000 * 4_000_000
    });
    now.unwrap_or(0)
}

/// Returns the CPU time of this thread, in nanoseconds.
pub fn thread_time() -> u64 {
    turn();
    engine(|sim| {
        let time = sim.costs.syscall;
        sim.spend(time);
        sim.ran() as u64
    })
    .unwrap_or(0)
}

/// Returns the CPU time of all threads, in nanoseconds.
pub fn process_time() -> u64 {
    turn();
    engine(|sim| sim.busy() as u64).unwrap_or(0)
}

/// Returns the CPU on which this thread runs. `None` outside of a simulation.
pub fn current_cpu() -> Option<usize> {
    turn();
    engine(|sim| {
        let time = sim.costs.hit;
        sim.work(time);
        sim.cpu()
    })
}

/// Returns this thread.
pub fn current() -> Option<Tid> {
    engine(|sim| sim.current()).flatten()
}

/// Returns the name of a thread.
pub fn name_of(tid: Tid) -> Option<Arc<str>> {
    engine(|sim| sim.threads[tid.index()].name.clone()).flatten()
}

/// Returns the CPUs on which a thread may run. `None` outside of a simulation.
pub fn affinity(tid: Tid) -> Option<Mask> {
    engine(|sim| sim.threads[tid.index()].affinity)
}

/// Returns the description of the machine.
pub fn description() -> Option<String> {
    engine(|sim| sim.machine.description()).flatten()
}

/// Sets the CPUs on which a thread may run. Returns false if the machine has none of them.
pub fn set_affinity(tid: Tid, mask: Mask) -> bool {
    turn();
    let set = engine(|sim| sim.set_affinity(tid, mask)).unwrap_or(false);
    turn();
    set
}

/// Sets this thread's policy. Returns false if the machine doesn't permit it.
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

/// Returns true if this thread has no real-time priority. False outside of a simulation.
pub fn is_ordinary() -> bool {
    turn();
    engine(|sim| {
        let time = sim.costs.syscall;
        sim.spend(time);
        sim.current().is_some_and(|tid| sim.threads[tid.index()].policy == Policy::Normal)
    })
    .unwrap_or(false)
}

/// Returns true if threads may have real-time priorities.
pub fn has_real_time() -> bool {
    engine(|sim| sim.machine.has_real_time()).unwrap_or(false)
}

/// Makes the timers of this thread punctual, and those of threads that it starts later.
pub fn wake_on_time() {
    engine(|sim| {
        let time = sim.costs.syscall;
        sim.spend(time);
        if let Some(tid) = sim.current() {
            sim.threads[tid.index()].on_time = true;
        }
    });
}

/// Lets other threads that wait for this CPU run.
pub(crate) fn yield_now() {
    turn();
    engine(Sim::yield_now);
    turn();
}

/// Sleeps for some nanoseconds.
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

/// Sleeps on the word at `address` if `is_expected`, until it is woken or `timeout` (in
/// nanoseconds) is over. Returns `None` if the word had another value.
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

/// Wakes at most `most` threads that sleep on the word. Returns their number.
pub fn futex_wake(address: usize, most: usize) -> usize {
    turn();
    engine(|sim| sim.wake(address, most)).unwrap_or(0)
}

/// Returns the lowest address and the bytes of this thread's stack. `None` outside of a simulation.
pub fn stack() -> Option<(usize, usize)> {
    engine(|sim| Some(sim.threads[sim.current()?.index()].stack)).flatten()
}

/// Returns the CPU time of a thread in nanoseconds, and true if it sleeps. `None` after its end.
pub fn reading(tid: Tid) -> Option<(u64, bool)> {
    turn();
    engine(|sim| {
        let time = sim.costs.syscall * 4.0;
        sim.spend(time);
        sim.reading(tid).map(|(ran, asleep)| (ran as u64, asleep))
    })
    .flatten()
}

/// Returns the nanoseconds for which this thread was runnable and waited for a CPU.
pub fn run_delay() -> u64 {
    turn();
    engine(|sim| {
        let time = sim.costs.syscall * 4.0;
        sim.spend(time);
        sim.current().map_or(0, |tid| sim.threads[tid.index()].waited as u64)
    })
    .unwrap_or(0)
}

/// Returns the number of threads.
pub fn threads() -> usize {
    engine(|sim| sim.threads()).unwrap_or(0)
}

/// A timer of the system. One thread sets it, another one waits for it.
#[derive(Debug)]
pub struct Timer(usize);

impl Timer {
    /// Creates a timer that isn't set. Returns `None` outside of a simulation.
    pub fn new() -> Option<Timer> {
        engine(Sim::make_timer).map(Timer)
    }

    /// Sets the timer to go off once, after some nanoseconds. `None` stops it.
    pub fn set(&self, after: Option<u64>) {
        turn();
        engine(|sim| sim.set_timer(self.0, after));
    }

    /// Sleeps until the timer has gone off since the last wait.
    pub fn wait(&self) {
        turn();
        if engine(|sim| sim.await_timer(self.0)) == Some(false) {
            suspend();
            engine(|sim| sim.forget_timer(self.0));
        }
    }
}

/// Charges for an allocation, which its caller fills. The global allocator calls this.
#[track_caller]
pub fn allocated(address: usize, bytes: usize) {
    let site = Location::caller();
    engine(|sim| sim.allocated(address, bytes, site));
}

/// Charges for a block that is freed. The allocator writes its link into the block.
#[track_caller]
pub fn freed(address: usize) {
    let site = Location::caller();
    engine(|sim| sim.freed(address, site));
}

/// Marks a moment, and returns the number of voluntary switches until then.
/// [`Outcome::between`](crate::Outcome) has the counts between two marks.
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

/// Bytes of a thread's stack. Only the used part takes memory.
const STACK: usize = 1 << 20;

/// Creates the coroutine of a thread.
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
