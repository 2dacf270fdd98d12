//! The watchdog's report: a pool whose work doesn't get on.

use std::fmt;
use std::panic::Location;
use std::time::Duration;

use corewise_sync::text;

use crate::pool::exemption::Exemption;
use crate::pool::group::Group;
use crate::pool::worker::Worker;
use crate::report::PoolReport;
use crate::task::running::Label;

/// Number of waiting items that a report names.
const WAITING: usize = 8;

/// A pool that has had work waiting for a long time, and of which no worker took anything.
/// [`Display`](fmt::Display) writes it as some lines of text.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StallReport {
    /// Time in which nothing was taken.
    pub stalled_for: Duration,
    /// The pool.
    pub pool: PoolReport,
    /// Items that its workers run.
    pub running: Vec<ItemReport>,
    /// The items that have waited longest, eight at the most.
    pub waiting: Vec<ItemReport>,
}

/// An item that a worker runs, or that waits for one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ItemReport {
    /// The name of its queue; empty if the queue is gone.
    pub queue: String,
    /// Its function: the name that the compiler gives it.
    pub function: &'static str,
    /// Place where it was queued.
    pub site: &'static Location<'static>,
    /// The kernel's number of the worker's thread, for a debugger or `/proc`.
    pub thread: Option<u32>,
    /// Activity of the item, as far as that is known.
    pub doing: Activity,
}

/// The activity of an item, as far as the pool knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activity {
    /// The item waits for a worker.
    Waiting,
    /// The item runs, and holds a core.
    Running,
    /// The item is inside a blocking region, as it has said.
    Blocked,
    /// The item sleeps, and hadn't said so; found by the watchdog.
    BlockedUntold,
    /// The item computes for long: its queue says so, or the watchdog has found it.
    CpuIntensive,
}

impl Activity {
    pub(crate) fn of(worker: &Worker) -> Activity {
        if worker.is_exempt(Exemption::Region) {
            Activity::Blocked
        } else if worker.is_exempt(Exemption::Asleep) {
            Activity::BlockedUntold
        } else if worker.is_exempt(Exemption::Intensive) {
            Activity::CpuIntensive
        } else {
            Activity::Running
        }
    }
}

impl ItemReport {
    /// Describes what a worker runs; `queue` gives a queue's name by its number.
    pub(crate) fn of(
        worker: &Worker,
        label: Label,
        queue: impl FnOnce(u64) -> String,
    ) -> ItemReport {
        let (thread, doing) = (worker.tid(), Activity::of(worker));
        ItemReport { thread, doing, ..Self::waiting(label, queue) }
    }

    /// Describes what waits.
    fn waiting(label: Label, queue: impl FnOnce(u64) -> String) -> ItemReport {
        ItemReport {
            queue: queue(label.queue),
            function: (label.name)(),
            site: label.site,
            thread: None,
            doing: Activity::Waiting,
        }
    }
}

impl StallReport {
    pub(crate) fn of(
        group: &Group,
        pool: usize,
        stalled_for: Duration,
        name: impl Fn(u64) -> String,
    ) -> StallReport {
        StallReport {
            stalled_for,
            pool: group.report(pool),
            running: (group.running(pool).iter())
                .map(|(worker, shown)| ItemReport::of(worker, shown.label, &name))
                .collect(),
            waiting: (group.waiting_items(pool, WAITING).into_iter())
                .map(|label| ItemReport::waiting(label, &name))
                .collect(),
        }
    }
}

impl fmt::Display for ItemReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ItemReport { queue, site, .. } = self;
        let function = text::name(self.function);
        let doing = match self.doing {
            Activity::Waiting => "waits",
            Activity::Running => "runs",
            Activity::Blocked => "is blocked",
            Activity::BlockedUntold => "is blocked without having said so",
            Activity::CpuIntensive => "computes",
        };
        write!(f, "{function}, queued on '{queue}' at {site}, {doing}")?;
        match self.thread {
            Some(thread) => write!(f, " (thread {thread})"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for StallReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PoolReport { scope, pod, cpus, workers, idle, blocked, waiting, .. } = &self.pool;
        write!(
            f,
            "the pool of pod {pod} of scope {scope} (CPUs {cpus}) has taken no work for \
             {:.1?}; {waiting} items wait; {workers} workers, of which {idle} idle and {blocked} \
             blocked",
            self.stalled_for
        )?;
        let items = self.running.iter().chain(&self.waiting);
        items.into_iter().try_for_each(|item| write!(f, "\n  {item}"))
    }
}
