//! How call targets are made: their priority, and the watch over waits.

use std::fmt;
use std::{sync::Arc, time::Duration};

use corewise_topology::Machine;

use crate::error::StartError;
use crate::priority::Priority;
use crate::smp::{Settings, Smp};
use crate::target::CallTarget;
use crate::watch::CallStall;

/// What call targets are made with; [`Smp::builder`] begins one.
///
/// ```
/// use corewise_smp::{AllCpus, Priority, Smp};
/// use corewise_topology::Machine;
///
/// let machine = Machine::live()?;
/// let smp = Smp::builder(&machine).priority(Priority::Nice(-5)).build()?;
/// assert_eq!(smp.call_each(AllCpus, |_| ()).wait().into_values()?.len(), machine.online().len());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a builder builds nothing until it is told to"]
#[derive(Clone)]
pub struct SmpBuilder {
    machine: Machine,
    settings: Settings,
}

impl Smp {
    /// Begins a handle that differs from what [`Smp::new`] makes.
    pub fn builder(machine: &Machine) -> SmpBuilder {
        SmpBuilder { machine: machine.clone(), settings: Settings::new() }
    }

    /// Call targets without threads: the holder of the [`CallTarget`]s steps them, or runs each in
    /// a thread that it owns. One per CPU of the topology, in CPU order; those of online CPUs
    /// accept calls at once. Nothing is pinned, and no priority is changed.
    pub fn stepped(machine: &Machine) -> (Smp, Vec<CallTarget>) {
        Smp::builder(machine).stepped()
    }
}

impl Smp {
    /// Call targets with a thread each, for the machine's online CPUs. A thread is pinned to its
    /// CPU (unless the machine is synthetic), parks while it has nothing to run, and lives for as long
    /// as its CPU is online. It runs at the ordinary [priority](SmpBuilder::priority) unless the
    /// builder was told otherwise.
    ///
    /// The threads are started here and not at the first call, so that a call never waits for a
    /// thread and can't fail for want of one: delivery is a push and at most one wake-up. CPUs
    /// that are offline get none until [`Smp::cpu_online`]. Blocks until all are pinned.
    ///
    /// # Errors
    /// A thread couldn't be started or pinned; those that were are ended.
    pub fn new(machine: &Machine) -> Result<Smp, StartError> {
        Smp::builder(machine).build()
    }
}

impl SmpBuilder {
    /// The priority of the targets' threads: by default [`Priority::Plain`]. With
    /// [`Priority::OF_INTERRUPT_THREADS`] a call gets in ahead of ordinary work on a busy CPU; on a
    /// synthetic machine, whose CPUs are only names, that would hold up the real ones.
    ///
    /// Where the process may not have it, the threads get the nearest that it may: a lower one of
    /// the same kind, then a niceness, then none. That is said once for each handle (`tracing`, at
    /// `info`), with how to permit it. A thread or process that a handler starts doesn't inherit
    /// it.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.settings.priority = priority.in_range();
        self
    }

    /// After how long a wait for a call is reported, of a thread or of a future: five seconds where
    /// nobody says else; `None`: never. Less than a millisecond is taken for one.
    ///
    /// The report is logged (`tracing`, at `warn`), kept for [`Smp::dump`](crate::Smp::dump), and given
    /// to [`on_stall`](SmpBuilder::on_stall). It is made again after twice that time, four times, and
    /// so on. Nothing polls for it: a thread's own sleep has a timeout; futures have one thread that
    /// sleeps while none waits.
    pub fn watchdog(mut self, limit: Option<Duration>) -> Self {
        self.settings.watchdog = limit;
        self
    }

    /// What is called with the report of each wait that takes long, beside the log. It runs on the
    /// thread that waits, before it waits on; where a future waits, on the watching thread. A panic of
    /// it is ignored. It is dropped by the thread that lets go of the handle and its calls last.
    pub fn on_stall(mut self, callback: impl Fn(&CallStall) + Send + Sync + 'static) -> Self {
        self.settings.on_stall = Some(Arc::new(callback));
        self
    }

    /// As [`Smp::new`], with these settings.
    ///
    /// # Errors
    /// Those of [`Smp::new`].
    pub fn build(self) -> Result<Smp, StartError> {
        Smp::start(&self.machine, self.settings)
    }

    /// As [`Smp::stepped`], with these settings. The priority plays no part.
    pub fn stepped(self) -> (Smp, Vec<CallTarget>) {
        let (smp, owners) = Smp::unopened(&self.machine, self.settings);
        for cpu in &smp.shared.machine.online() {
            if let Some(target) = smp.shared.target(cpu) {
                // A target that was made just now can always be opened.
                let _ = target.open();
            }
        }
        (smp, owners)
    }
}

impl fmt::Debug for SmpBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SmpBuilder")
            .field("priority", &self.settings.priority)
            .finish_non_exhaustive()
    }
}
