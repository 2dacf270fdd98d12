//! Run a function on one CPU, on many, or on all; wait without holding the core.
//!
//! Each CPU of a [`Machine`](corewise_topology::Machine) has a *call target*: a pinned thread that
//! is parked while there is nothing to do, and a queue. A call is a push onto that queue and, if
//! the queue was empty, one wake-up. The target core's other work doesn't matter.
//!
//! ```
//! use corewise_smp::{AllCpus, Smp};
//! use corewise_topology::{CpuId, Machine};
//!
//! let machine = Machine::synthetic("numa:1 l3:1 core:4 pu:1")?;
//! let smp = Smp::new(&machine)?;
//!
//! let sum = smp.call(CpuId::new(2), || 40 + 2)?.wait()?;
//! assert_eq!(sum, 42);
//!
//! let tens = smp.call_each(AllCpus, |cpu| cpu.number() * 10).wait().into_values()?;
//! assert_eq!(tens[3], (CpuId::new(3), 30));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is owed
//! * **No waiter holds a core.** The wait set and the completion belong to the call. A waiter spins
//!   for no longer than a wake-up costs and then parks in a blocking region; as a future it holds
//!   nothing.
//! * **Every accepted call runs**, exactly once, on the requested CPU, also if that CPU is just
//!   leaving. A call that can't be accepted is refused at once and its function given back. Nothing
//!   is lost silently. The process may lose the CPU itself: a cpuset or `taskset --all-tasks`
//!   narrows its threads, or the system takes the CPU offline. The target sees that at its next
//!   call, logs it (`tracing`, at `warn`), and is offline for calls from then on. Calls that it had
//!   accepted run in its thread, elsewhere.
//! * **Nothing locks or spins between choosing the target and pushing**, and the target can't be
//!   declared dead in between (`src/README.md` proves it).
//! * **Awaited calls run first**; within those, and within the others, one caller's calls to one
//!   CPU run in the caller's order.
//! * Writes before the call are visible in the function; writes of the function are visible after
//!   the wait.
//! * Functions run in an atomic section: they must be short, and one that blocks is reported with
//!   both sites. A panic affects its caller alone, which gets it.
//! * **A long wait is explained**: past five seconds ([`SmpBuilder::watchdog`]) a thread's or a
//!   future's wait is reported with source, function and site. For each CPU that hasn't answered,
//!   the report says whether its target runs the call, runs others before it, or never saw it.
//!   [`Smp::dump`] shows each target's present call and counters at any moment, with histograms of
//!   delivery and of handlers.
//! * **Targets run ahead of ordinary work** on their CPUs if the program asks for that
//!   ([`SmpBuilder::priority`]) and the process may have it. If it may not, that is logged once.
//!
//! # Beside calls
//! [`PerCpu`] is a variable with a value for each CPU.
//!
//! # What isn't
//! Two handlers on two CPUs that wait for each other never end, as in the kernel; waiting in a
//! handler is reported. A CPU that comes online while a call to all is being sent may be missed. On
//! a synthetic machine the threads aren't pinned: "CPU 3" is then a name.
//!
//! The behaviour follows Linux's `smp_call_function*` as of 7.3 (with its preemptible wait), except
//! where that has known weaknesses: no descriptor is shared between calls, and waiters park instead
//! of spinning.

// The crates above this one are then not compiled at all, so the message names them too.
#[cfg(not(target_os = "linux"))]
compile_error!(
    "calls to CPUs, and all that stands on them (corewise-smp, corewise-blockmq, corewise-nbd, the program), need Linux, \
    which pins threads to CPUs. Other systems have work and devices: take corewise-workqueue and corewise-device, or corewise with \
    `default-features = false, features = [\"device\", \"timeline\", \"workqueue\"]`"
);

mod call;
mod cells;
mod dump;
mod error;
#[doc(hidden)]
pub mod model;
mod percpu;
mod priority;
mod run;
mod sleepers;
mod smp;
mod spin;
mod stats;
mod target;
mod target_state;
mod threads;
mod watch;

pub use crate::call::{ManyAnswers, ManyCall, Reach, Skipped, Values, ValuesIter};
pub use crate::smp::SmpBuilder;
pub use crate::stats::RunningCall;
pub use call::Call;
pub use corewise_sync::panics::PanicPayload;
pub use corewise_sync::time::Latencies;
pub use dump::{CpuDump, Dump, OutstandingCall};
pub use error::{CallError, CallFailed, RunError, SkipReason, StartError};
pub use percpu::PerCpu;
pub use priority::Priority;
pub use smp::{AllCpus, AnyOf, Detached, Filter, Followed, Leaving, SingleTarget, Smp, Targets};
pub use stats::CallStats;
pub use target_state::CpuState;

pub use watch::{CallStall, MissingAnswer, Progress, ThreadState, Waiter};

/// The README's example, as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub mod readme {}
