//! The handle: how it is built; call one CPU, or several; take CPUs out and in; shut down.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use control::Control;
use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::{Mutex, context};
use corewise_topology::{CpuId, CpuSet, Machine, current_cpu};

use crate::call::Call;
use crate::call::{ManyCall, Reach, Skipped};
use crate::cells::{self, DetachedSending, Message, Pools, Sending};
use crate::error::{CallError, SkipReason, StartError};
use crate::priority::{self, Priority};
use crate::spin;
use crate::stats::CallStats;
use crate::target::{CallTarget, Target};
use crate::watch::{self, CallStall, OnStall, Watch};

mod control;
mod targets;

pub use control::{Followed, Leaving};
pub use targets::{AllCpus, AnyOf, Filter, SingleTarget, Targets};

/// The way in which a call reaches its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Delivery {
    /// Through the target's queue.
    Queue,
    /// The calling thread runs it at once: it is the target.
    Inline,
}

/// Returns the delivery of a call.
///
/// In place only if the caller *is* the target, in one of its handlers, and wants the value:
/// through the queue it would wait for itself. It isn't enough that the calling thread happens to
/// be on the right CPU: it could be moved, and would run beside the target's handlers, which never
/// overlap. A call without waiting is always queued, so that a handler that calls its own CPU again
/// returns first.
fn delivery(caller_is_target: bool, waited_for: bool) -> Delivery {
    if caller_is_target && waited_for { Delivery::Inline } else { Delivery::Queue }
}

/// The call targets of a machine's CPUs. Clone it freely; when the last clone is dropped, the
/// targets run their accepted calls, and end.
///
/// That last drop waits for the targets' threads, inside a blocking region. In an atomic section (a
/// handler that owned the last clone) it doesn't wait: the threads then end by themselves.
#[derive(Clone)]
pub struct Smp {
    pub(crate) shared: Arc<Shared>,
}

/// The state that the clones of a handle share. The targets' threads don't hold it, so they don't
/// keep it alive.
pub(crate) struct Shared {
    /// I: the machine.
    pub(crate) machine: Machine,
    /// I: one target per CPU of the topology, in CPU order.
    pub(crate) targets: Box<[Arc<Target>]>,
    /// I: position in `targets` by CPU number.
    index: Box<[Option<u32>]>,
    /// I: the CPUs of the targets.
    every: CpuSet,
    /// The calls' cells, one pool per CPU that calls.
    pub(crate) pools: Arc<Pools>,
    /// I: the watch over waits that take long.
    pub(crate) watch: Arc<Watch>,
    /// I: the settings with which the handle was built.
    pub(crate) settings: Settings,
    /// A: true once it was logged that the priority was refused. Relaxed: it orders nothing.
    refusal_told: AtomicBool,
    /// L: is the lock; guards the threads that run targets. Only its holder opens a target. A call
    /// never takes it.
    pub(crate) control: Mutex<Control>,
}

/// Settings that are fixed when the handle is built.
#[derive(Clone)]
pub(crate) struct Settings {
    /// Priority of the targets' threads.
    pub(crate) priority: Priority,
    /// Time after which a wait is reported.
    pub(crate) watchdog: Option<Duration>,
    pub(crate) on_stall: Option<Arc<OnStall>>,
}

impl Settings {
    pub(crate) fn new() -> Settings {
        Settings { priority: Priority::Plain, watchdog: Some(watch::STALL_AFTER), on_stall: None }
    }
}

impl Shared {
    pub(crate) fn target(&self, cpu: CpuId) -> Option<&Arc<Target>> {
        self.targets.get(self.position(cpu)?)
    }

    /// Returns a CPU's position in `targets`.
    pub(crate) fn position(&self, cpu: CpuId) -> Option<usize> {
        self.index.get(cpu.index()).copied()?.map(|position| position as usize)
    }

    /// Logs, the first time, that a target's thread got another priority than was wanted. The
    /// caller holds no lock of ours: a subscriber is user code.
    pub(crate) fn granted(&self, granted: Priority) {
        let wanted = self.settings.priority;
        if granted == wanted || self.refusal_told.swap(true, Ordering::Relaxed) {
            return;
        }
        tracing::info!(
            %wanted, %granted,
            "call targets run at a lower priority than requested, so calls to busy CPUs may take \
             longer; to permit the priority, {}",
            priority::how_to_permit(wanted)
        );
    }
}

impl Smp {
    /// Creates one target per CPU, all offline.
    pub(crate) fn unopened(machine: &Machine, settings: Settings) -> (Smp, Vec<CallTarget>) {
        let cpus: Vec<CpuId> = machine.topology().cpu_set().iter().collect();
        let spins = spin::targets_spin(machine.is_synthetic(), cpus.len());
        let (targets, owners): (Vec<_>, Vec<_>) =
            cpus.iter().map(|&cpu| Target::new(cpu, spins)).unzip();
        let mut index = vec![None; cpus.last().map_or(0, |&last| last.index() + 1)];
        for (position, &cpu) in (0u32..).zip(&cpus) {
            index[cpu.index()] = Some(position);
        }
        let control = Control::stepped(targets.len(), machine.epoch());
        let targets: Box<[Arc<Target>]> = targets.into();
        let (limit, on_stall) = (settings.watchdog, settings.on_stall.clone());
        let (watch, pools) = Watch::new(limit, on_stall, targets.clone());
        let shared = Shared {
            machine: machine.clone(),
            targets,
            index: index.into(),
            every: cpus.into_iter().collect(),
            watch,
            pools,
            settings,
            refusal_told: AtomicBool::new(false),
            control: Mutex::new(control),
        };
        (Smp { shared: Arc::new(shared) }, owners)
    }

    /// Returns the machine whose CPUs are called.
    pub fn machine(&self) -> &Machine {
        &self.shared.machine
    }

    /// Returns the CPUs that accept calls just now.
    pub fn online(&self) -> CpuSet {
        let targets = self.shared.targets.iter();
        targets.filter(|t| t.state().snapshot().is_online()).map(|t| t.cpu).collect()
    }

    /// Runs `f` on one CPU, ahead of the unawaited calls there. [`Call::wait`] waits for the
    /// answer, or the call is awaited. The target is a [`CpuId`], or [`AnyOf`] a set.
    ///
    /// `f` runs on the target's thread, inside an atomic section: it must be short and must not
    /// block. Calls of one caller to one CPU run in the caller's order, within awaited ones and
    /// within unawaited ones. The caller's earlier writes are visible in `f`. A caller that is that
    /// CPU's target (`f` of another call, calling its own CPU) runs `f` at once.
    ///
    /// Never blocks: any context. The CPU can't leave between the check that it is online and the
    /// push, which are one step. Nothing is allocated for an `f` of up to 80 bytes and a value of
    /// up to 64; larger ones are boxed. Only if more calls are under way than ever before from the
    /// caller's CPU, more room is made, under a lock that no other caller needs.
    ///
    /// # Errors
    /// An error if the CPU isn't online, or the handle is shut down; `f` is given back.
    #[doc(alias = "smp_call_function_single")]
    #[track_caller]
    pub fn call<F, R>(&self, target: impl SingleTarget, f: F) -> Result<Call<R>, CallError<F>>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        let site = Location::caller();
        target.deliver(self, f, |cpu, f| self.send(site, cpu, f))
    }

    /// Runs `f` on each online CPU of several, each with its own number, all at once. CPUs that
    /// aren't online are skipped, and [`ManyCall::reach`] names them: the function doesn't run
    /// there and the call doesn't wait for them. The targets are a `&CpuSet` or [`AllCpus`], and
    /// [`Targets::filter`] leaves some of them out.
    ///
    /// The caller's own CPU is a CPU like any other. If it is in the set, `f` runs there too, on
    /// its call target. The kernel's `smp_call_function_many` leaves it out, its `on_each_cpu` does
    /// not. The caller's present CPU has no meaning once the caller may be moved. Only if the
    /// caller is that CPU's target, `f` is run in place, after the pushes to the other CPUs.
    ///
    /// Contexts and ordering are those of [`Smp::call`]. The side that releases the call last drops
    /// `f`: the caller or one of the targets, inside its handler.
    #[doc(alias = "smp_call_function_many")]
    #[track_caller]
    pub fn call_each<F, R>(&self, targets: impl Targets, f: F) -> ManyCall<R>
    where
        F: Fn(CpuId) -> R + Send + Sync + 'static,
        R: Send + 'static,
    {
        self.send_each(Location::caller(), targets, f)
    }

    /// Returns the handle for calls without a waiter: `smp.detached().call(cpu, f)`.
    #[inline]
    pub fn detached(&self) -> Detached<'_> {
        Detached { smp: self }
    }

    fn send<F, R>(
        &self,
        site: &'static Location<'static>,
        cpu: CpuId,
        f: F,
    ) -> Result<Call<R>, CallError<F>>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        let Some(target) = self.shared.target(cpu) else {
            return Err(CallError::NotOnline { cpu, f });
        };
        match delivery(target.is_run_by_this_thread(), true) {
            Delivery::Queue => {
                let pools = &self.shared.pools;
                let (message, waiting) = cells::call(pools, source(), site, cpu, f);
                match target.deliver(message) {
                    Ok(()) => Ok(Call::sent(cpu, waiting)),
                    Err((reason, message)) => {
                        // SAFETY: both sides of the call that was made of `f` above.
                        let f = unsafe { cells::take_back(message, waiting) };
                        Err(CallError::new(cpu, reason, f))
                    }
                }
            }
            Delivery::Inline => {
                // A handler of a CPU that is leaving is refused too. If the CPU leaves just now,
                // either answer is right: it can't be declared dead before this handler returns.
                if let Some(reason) = target.state().hint_refusal() {
                    return Err(CallError::new(cpu, reason, f));
                }
                let pools = &self.shared.pools;
                let (message, waiting) = cells::call(pools, source(), site, cpu, f);
                run_here(target, message);
                // SAFETY: it has just been run in this thread, which completes it.
                Ok(Call::here(cpu, unsafe { waiting.into_answer() }))
            }
        }
    }

    fn send_detached<F>(
        &self,
        site: &'static Location<'static>,
        cpu: CpuId,
        f: F,
    ) -> Result<(), CallError<F>>
    where
        F: FnOnce() + Send + 'static,
    {
        let Some(target) = self.shared.target(cpu) else {
            return Err(CallError::NotOnline { cpu, f });
        };
        let message = cells::detached(&self.shared.pools, source(), site, cpu, f);
        target.deliver(message).map_err(|(reason, message)| {
            // SAFETY: the message was made of `f` above.
            let f = unsafe { cells::take_function(message) };
            CallError::new(cpu, reason, f)
        })
    }

    /// Returns every CPU's counters, in CPU order.
    pub fn stats(&self) -> Vec<CallStats> {
        self.shared.targets.iter().map(|target| target.stats.snapshot(target.cpu)).collect()
    }

    /// Returns one CPU's counters; `None` if the topology has no such CPU.
    pub fn cpu_stats(&self, cpu: CpuId) -> Option<CallStats> {
        self.shared.target(cpu).map(|target| target.stats.snapshot(cpu))
    }

    /// Accepts no more calls, for good. Calls accepted before still run, then the CPUs leave, which
    /// can be waited for. Doesn't block itself; any context.
    pub fn shutdown(&self) -> Leaving {
        let targets = self.shared.targets.iter();
        Leaving::new(targets.filter_map(|target| target.close(true)).collect())
    }

    fn send_each<F, R>(
        &self,
        site: &'static Location<'static>,
        targets: impl Targets,
        f: F,
    ) -> ManyCall<R>
    where
        F: Fn(CpuId) -> R + Send + Sync + 'static,
        R: Send + 'static,
    {
        let pools = &self.shared.pools;
        let mut sending = Sending::new(pools, source(), site, self.count(&targets), f);
        let mut here = None;
        let skipped = self.push_each(targets, |cpu, target| {
            match delivery(target.is_run_by_this_thread(), true) {
                Delivery::Inline => target.state().hint_refusal().map_or(Ok(()), Err).map(|()| {
                    here = Some((target, sending.share(pools, cpu)));
                }),
                Delivery::Queue => target
                    .push(sending.share(pools, cpu))
                    .map(|asleep| sending.pushed(cpu, asleep))
                    .map_err(|(reason, share)| {
                        sending.take_back(share);
                        reason
                    }),
            }
        });
        if let Some((target, share)) = here {
            sending.wake_all();
            run_here(target, share);
        }
        ManyCall::new(sending.finish(), skipped)
    }

    fn send_each_detached<F>(
        &self,
        site: &'static Location<'static>,
        targets: impl Targets,
        f: F,
    ) -> Reach
    where
        F: Fn(CpuId) + Send + Sync + 'static,
    {
        let pools = &self.shared.pools;
        let mut casting = DetachedSending::new(pools, source(), site, self.count(&targets), f);
        let mut reached = CpuSet::new();
        let skipped = self.push_each(targets, |cpu, target| {
            target
                .push(casting.share(pools, cpu))
                .map(|asleep| {
                    casting.pushed(cpu, asleep);
                    reached.insert(cpu);
                })
                .map_err(|(reason, share)| {
                    casting.take_back(share);
                    reason
                })
        });
        Reach { reached, skipped }
    }

    /// Returns the number of candidates, as the cells count them.
    fn count(&self, targets: &impl Targets) -> u32 {
        let len = targets.candidates(&self.shared.every).len();
        u32::try_from(len).expect("a set of CPUs has fewer than 2^32")
    }

    /// Pushes to each candidate that is open and wanted, in CPU order. Returns those that refused.
    fn push_each<'a>(
        &'a self,
        mut targets: impl Targets,
        mut push: impl FnMut(CpuId, &'a Target) -> Result<(), SkipReason>,
    ) -> Vec<Skipped> {
        let mut skipped = Vec::new();
        for cpu in targets.candidates(&self.shared.every) {
            // Step Look; the caller's condition is asked between it and Push.
            let open = self
                .shared
                .target(cpu)
                .ok_or(SkipReason::NotOnline)
                .and_then(|target| target.state().hint_refusal().map_or(Ok(target), Err));
            let pushed = match open {
                Ok(_) if !targets.wants(cpu) => continue,
                Ok(target) => push(cpu, target),
                Err(reason) => Err(reason),
            };
            if let Err(reason) = pushed {
                skipped.push(Skipped { cpu, reason });
            }
        }
        skipped
    }
}

/// Calls without a waiter, of [`Smp::detached`]. They run after the awaited ones.
///
/// They always go through the queue: a handler that calls its own CPU this way returns first. A
/// panic of the function is logged and counted. The rest is as for [`Smp::call`] and
/// [`Smp::call_each`].
///
/// ```
/// # use corewise_topology::{CpuId, Machine};
/// # let smp = corewise_smp::Smp::new(&Machine::synthetic("core:2 pu:1")?)?;
/// let (sender, receiver) = std::sync::mpsc::channel();
/// smp.detached().call(CpuId::new(1), move || sender.send("from CPU 1").unwrap())?;
/// assert_eq!(receiver.recv()?, "from CPU 1");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy)]
#[must_use = "it calls nobody by itself"]
pub struct Detached<'a> {
    smp: &'a Smp,
}

impl Detached<'_> {
    /// Runs `f` on one CPU; no thread waits.
    ///
    /// # Errors
    /// The errors of [`Smp::call`].
    #[track_caller]
    pub fn call<F>(&self, target: impl SingleTarget, f: F) -> Result<(), CallError<F>>
    where
        F: FnOnce() + Send + 'static,
    {
        let site = Location::caller();
        target.deliver(self.smp, f, |cpu, f| self.smp.send_detached(site, cpu, f))
    }

    /// Runs `f` on each online CPU of several; no thread waits.
    #[track_caller]
    pub fn call_each<F>(&self, targets: impl Targets, f: F) -> Reach
    where
        F: Fn(CpuId) + Send + Sync + 'static,
    {
        self.smp.send_each_detached(Location::caller(), targets, f)
    }
}

/// Returns the CPU whose pool the calling thread takes a cell from: the one that it is on. If that
/// is out of date a moment later, only the name in a report is wrong.
#[inline]
fn source() -> CpuId {
    current_cpu().unwrap_or(CpuId::new(0))
}

/// Runs a call in this thread, which is the target's.
fn run_here(target: &Target, message: Message) {
    target.stats.inline();
    target.run_one(message);
}

impl Drop for Shared {
    fn drop(&mut self) {
        for target in &self.targets {
            // No thread can wait for the event: there is no handle left.
            drop(target.close(true));
        }
        let threads = self.control.lock().take_threads();
        if !threads.is_empty() && !context::in_atomic_section() {
            context::blocking("Smp::drop", || threads.join());
        }
        // Until then a thread may wait.
        self.watch.stop();
    }
}

impl fmt::Debug for Smp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Smp").field("targets", &self.shared.targets).finish_non_exhaustive()
    }
}

/// A builder of call targets; [`Smp::builder`] begins one.
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
    pub(crate) machine: Machine,
    pub(crate) settings: Settings,
}

impl Smp {
    /// Begins a handle with other settings than [`Smp::new`].
    pub fn builder(machine: &Machine) -> SmpBuilder {
        SmpBuilder { machine: machine.clone(), settings: Settings::new() }
    }
}

impl Smp {
    /// Creates call targets with a thread each, for the machine's online CPUs. A thread is pinned
    /// to its CPU (unless the machine is synthetic), parks while it has nothing to run, and lives
    /// for as long as its CPU is online. It runs at the ordinary [priority](SmpBuilder::priority)
    /// unless the builder sets another.
    ///
    /// The threads are started here and not at the first call. So a call never waits for a thread
    /// and can't fail for want of one: delivery is a push and at most one wake-up. CPUs that are
    /// offline get none until [`Smp::cpu_online`]. Blocks until all are pinned.
    ///
    /// # Errors
    /// An error if a thread couldn't be started or pinned; threads that were started end.
    pub fn new(machine: &Machine) -> Result<Smp, StartError> {
        Smp::builder(machine).build()
    }
}

impl SmpBuilder {
    /// Sets the priority of the targets' threads: by default [`Priority::Plain`]. With
    /// [`Priority::OF_INTERRUPT_THREADS`] a call gets in ahead of ordinary work on a busy CPU; on a
    /// synthetic machine, whose CPUs are only names, that would hold up the real ones.
    ///
    /// If the process may not have it, the threads get the nearest that it may: a lower one of the
    /// same kind, then a niceness, then none. That is logged once for each handle (`tracing`, at
    /// `info`), with advice how to permit it. A thread or process that a handler starts doesn't
    /// inherit it.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.settings.priority = priority.in_range();
        self
    }

    /// Sets the time after which a wait for a call is reported, of a thread or of a future. The
    /// default is five seconds; `None`: never. Less than a millisecond is taken for one.
    ///
    /// The report is logged (`tracing`, at `warn`), kept for [`Smp::dump`](crate::Smp::dump), and
    /// given to [`on_stall`](SmpBuilder::on_stall). It is made again after twice that time, four
    /// times, and so on. Nothing polls for it: a thread's own sleep has a timeout; futures have one
    /// thread that sleeps while none waits.
    pub fn watchdog(mut self, limit: Option<Duration>) -> Self {
        self.settings.watchdog = limit;
        self
    }

    /// Sets a callback that gets the report of each long wait, beside the log. It runs on the
    /// waiting thread, before that waits on; if a future waits, on the watching thread. Its panic
    /// is ignored. It is dropped by the thread that releases the handle and its calls last.
    pub fn on_stall(mut self, callback: impl Fn(&CallStall) + Send + Sync + 'static) -> Self {
        self.settings.on_stall = Some(Arc::new(callback));
        self
    }

    /// Builds the handle like [`Smp::new`], with these settings.
    ///
    /// # Errors
    /// The errors of [`Smp::new`].
    pub fn build(self) -> Result<Smp, StartError> {
        Smp::start(&self.machine, self.settings)
    }
}

impl fmt::Debug for SmpBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SmpBuilder")
            .field("priority", &self.settings.priority)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_target_itself_runs_in_place_and_only_what_it_waits_for() {
        assert_eq!(delivery(true, true), Delivery::Inline);
        assert_eq!(delivery(true, false), Delivery::Queue);
        assert_eq!(delivery(false, true), Delivery::Queue);
        assert_eq!(delivery(false, false), Delivery::Queue);
    }
}
