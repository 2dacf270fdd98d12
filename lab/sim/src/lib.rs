//! A machine of many cores in virtual time: the third backend of `corewise-sync`'s facade.
//!
//! Code that takes its atomics, locks, threads and clock from the facade runs here unchanged if it
//! is built with `--cfg sim`. Its threads are coroutines on one OS thread. Each virtual CPU has a
//! clock, and the thread on the CPU with the earliest clock runs. [`Costs`] has the cost of each
//! step. The cost of an access depends on the CPU that had the cache line last. That of a wake-up
//! depends on the time for which its CPU was idle. The same seed gives the same run.
//!
//! ```
//! use std::time::Duration;
//! use corewise_sim::{Costs, Machine, run, thread};
//!
//! let outcome = run(Machine::flat(4), Costs::sapphire_rapids_16(), 1, || {
//!     let sleeper = thread::spawn(|| thread::sleep(Duration::from_secs(3600)));
//!     sleeper.join().is_ok()
//! });
//! assert!(outcome.value);
//! assert!(outcome.time >= Duration::from_secs(3600), "of virtual time");
//! ```
//!
//! # What it can't tell
//! The model has no memory bandwidth, size of caches or frequency. It has no SMT siblings that
//! share a core's units, and only the simplest prefetcher. Reference counts of `Arc` and data
//! behind plain pointers are charged for only if the code says so ([`touch`]). The time of the
//! instructions between two accesses is one number, [`Costs::around`].
//!
//! Memory is sequentially consistent here: loom checks code that depends on a weaker order.

mod calls;
mod costs;
mod engine;
mod lines;
mod local;
mod machine;
mod memory;
mod report;
mod task;
pub mod thread;

pub use calls::{
    Timer, access, affinity, allocated, burn, coarse_now, current, current_cpu, description, fence,
    freed, futex_wait, futex_wake, has_real_time, is_ordinary, is_simulated, loaded, lock_waited,
    mark, membarrier, moment, name_of, now, prefetch, process_time, reading, run_delay,
    set_affinity, set_policy, spin_loop, stack, thread_time, threads, touch, wake_on_time,
};
pub use costs::{AfterIdle, ByDistance, Costs};
pub use lines::Access;
pub use local::{AccessError, LocalKey};
pub use machine::{Distance, Machine, Mask, Place};
pub use report::{Site, SiteCount, Tally, from_root};
pub use task::{Policy, Tid, Woken};

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

/// Result of a simulation.
#[derive(Debug)]
pub struct Outcome<T> {
    /// The value that the first thread's code returned.
    pub value: T,
    /// Virtual time from begin to end.
    pub time: Duration,
    /// Counts of the whole run.
    pub tally: Tally,
    /// Time and counts of the longest interval between two [marks](mark): the first and second, the
    /// third and fourth and so on.
    pub between: Option<(Duration, Tally)>,
    /// Cache lines that were touched.
    pub lines: usize,
}

/// Runs `root` as the first thread of a machine, on its CPU 0, until it ends. Threads that are left
/// then leak, with all that they own.
///
/// # Panics
/// If the first thread panicked, or no thread can ever continue and the first one hasn't ended.
pub fn run<T: 'static>(
    machine: Machine,
    costs: Costs,
    seed: u64,
    root: impl FnOnce() -> T + 'static,
) -> Outcome<T> {
    let mut sim = engine::Sim::new(machine, costs, seed);
    let value = Rc::new(RefCell::new(None));
    let result = Rc::clone(&value);
    let whole = move || {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(root));
        let time = now();
        *result.borrow_mut() = Some((outcome, time));
    };
    let first = sim.spawn(Some("main".into()), |tid| calls::body(tid, whole));
    let ended = calls::drive(&mut sim, first);
    for thread in &mut sim.threads {
        if let Some(body) = &mut thread.body {
            // SAFETY: all values of the stack are leaked with it. No code uses them again, since
            // the simulation is over.
            unsafe { body.force_reset() };
        }
    }
    if let Err(stuck) = ended {
        panic!("the simulated machine stands still: {stuck}");
    }
    let taken = value.borrow_mut().take();
    let Some((outcome, time)) = taken else { unreachable!("it ran to its end") };
    match outcome {
        Ok(value) => Outcome {
            value,
            time: Duration::from_nanos(time),
            between: longest(&sim.marks),
            tally: sim.tally.clone(),
            lines: sim.lines.len(),
        },
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

fn longest(marks: &[(f64, Tally)]) -> Option<(Duration, Tally)> {
    let spans = marks.chunks_exact(2).map(|pair| (pair[1].0 - pair[0].0, &pair[0].1, &pair[1].1));
    let (time, from, to) = spans.max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some((Duration::from_nanos(time as u64), to.since(from)))
}

/// The README's example, as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}
