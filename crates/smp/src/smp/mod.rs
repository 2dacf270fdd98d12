//! The handle: call one CPU, many, or all; take CPUs out and in; shut down.

mod control;

use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::{Mutex, context};
use corewise_topology::{CpuId, CpuSet, Machine, current_cpu};

use crate::call::Call;
use crate::cells::{self, Casting, Message, Pools, Sending};
use crate::error::{CallError, SkipReason};
use crate::many::{ManyCall, Reach, Skipped};
use crate::policy::{self, Delivery};
use crate::priority::{self, Priority};
use crate::spin;
use crate::stats::CallStats;
use crate::target::{CallTarget, Target};
use crate::watch::{OnStall, Watch};
use control::Control;

pub use control::{Followed, Leaving};

/// The call targets of a machine's CPUs. Clone it freely; when the last clone is dropped the
/// targets run what they have accepted, and end.
///
/// That last drop waits for the targets' threads, inside a blocking region. In an atomic section (a
/// handler that owned the last clone) it doesn't wait: the threads then end by themselves.
#[derive(Clone)]
pub struct Smp {
    pub(crate) shared: Arc<Shared>,
}

/// What the clones of a handle share. The targets' threads don't hold it, so they don't keep it
/// alive.
pub(crate) struct Shared {
    /// I: the machine.
    pub(crate) machine: Machine,
    /// I: one target per CPU of the topology, in CPU order.
    pub(crate) targets: Box<[Arc<Target>]>,
    /// I: position in `targets` by CPU number.
    index: Box<[Option<u32>]>,
    /// The calls' cells, one pool per CPU that calls.
    pub(crate) pools: Arc<Pools>,
    /// I: who looks after waits that take long.
    pub(crate) watch: Arc<Watch>,
    /// I: what the handle was built with.
    pub(crate) settings: Settings,
    /// A: it was said that the priority was refused. Relaxed: it orders nothing.
    refusal_told: AtomicBool,
    /// L: is the lock; guards who runs each target. Only its holder opens a target. Never taken by
    /// a call.
    pub(crate) control: Mutex<Control>,
}

/// Fixed when the handle is built.
#[derive(Clone)]
pub(crate) struct Settings {
    /// What the targets' threads are to have.
    pub(crate) priority: Priority,
    /// Waits that take longer are reported.
    pub(crate) watchdog: Option<Duration>,
    pub(crate) on_stall: Option<Arc<OnStall>>,
}

impl Settings {
    pub(crate) fn new() -> Settings {
        Settings { priority: Priority::Plain, watchdog: Some(policy::STALL_AFTER), on_stall: None }
    }
}

impl Shared {
    pub(crate) fn target(&self, cpu: CpuId) -> Option<&Arc<Target>> {
        self.targets.get(self.position(cpu)?)
    }

    /// Where in `targets` a CPU's target is.
    pub(crate) fn position(&self, cpu: CpuId) -> Option<usize> {
        self.index.get(cpu.index()).copied()?.map(|position| position as usize)
    }

    /// A target's thread got this priority: if it isn't what was wanted, says so, the first time.
    /// Not under a lock of ours: a subscriber is user code.
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
    /// One target per CPU, all offline.
    pub(crate) fn unopened(machine: &Machine, settings: Settings) -> (Smp, Vec<CallTarget>) {
        let cpus: Vec<CpuId> = machine.topology().cpu_set().iter().collect();
        let spins = spin::policy::targets_spin(machine.is_synthetic(), cpus.len());
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
            watch,
            pools,
            settings,
            refusal_told: AtomicBool::new(false),
            control: Mutex::new(control),
        };
        (Smp { shared: Arc::new(shared) }, owners)
    }

    /// The machine whose CPUs are called.
    pub fn machine(&self) -> &Machine {
        &self.shared.machine
    }

    /// The CPUs that accept calls just now.
    pub fn online(&self) -> CpuSet {
        let targets = self.shared.targets.iter();
        targets.filter(|t| t.state().snapshot().is_online()).map(|t| t.cpu).collect()
    }

    /// Runs `f` on `cpu`, ahead of the calls there that nobody waits for. The answer is waited for
    /// with [`Call::wait`], or awaited.
    ///
    /// `f` runs on the target's thread, inside an atomic section: it must be short and must not
    /// block. Calls of one caller to one CPU run in the caller's order, within those waited for
    /// and within those not. The caller's earlier writes are visible in `f`. A caller that is
    /// that CPU's target (`f` of another call, calling its own CPU) runs `f` at once.
    ///
    /// Never blocks: any context. The CPU can't leave between the check that it is online and the push,
    /// which are one step. Nothing is allocated for an `f` of up to 80 bytes and a value of up to 64; larger
    /// ones are boxed. Only where more calls are under way than ever before from the caller's CPU, more
    /// room is made, under a lock that no other caller needs.
    ///
    /// # Errors
    /// The CPU isn't online, or the handle is shut down; `f` is given back.
    #[track_caller]
    pub fn call<F, R>(&self, cpu: CpuId, f: F) -> Result<Call<R>, CallError<F>>
    where
        F: FnOnce() -> R + Send + 'static,
        R: Send + 'static,
    {
        self.call_from(Location::caller(), cpu, f)
    }

    /// [`Smp::call`], for a caller elsewhere.
    pub(crate) fn call_from<F, R>(
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
        match policy::delivery(target.is_run_by_this_thread(), true) {
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
                // A handler of a CPU that is leaving is refused too. Where the CPU leaves just now
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

    /// Runs `f` on `cpu`; nobody waits. As [`Smp::call`] otherwise, but always through the queue: a
    /// handler that calls its own CPU this way returns first.
    ///
    /// A panic of `f` is logged and counted.
    ///
    /// # Errors
    /// As [`Smp::call`].
    #[track_caller]
    pub fn call_nowait<F>(&self, cpu: CpuId, f: F) -> Result<(), CallError<F>>
    where
        F: FnOnce() + Send + 'static,
    {
        self.forget_from(Location::caller(), cpu, f)
    }

    /// [`Smp::call_nowait`], for a caller elsewhere.
    pub(crate) fn forget_from<F>(
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
        let message = cells::forgotten(&self.shared.pools, source(), site, cpu, f);
        target.deliver(message).map_err(|(reason, message)| {
            // SAFETY: the message was made of `f` above.
            let f = unsafe { cells::take_function(message) };
            CallError::new(cpu, reason, f)
        })
    }

    /// Runs `f` on every CPU of the set that is online, each with its own number, all at once. CPUs
    /// that aren't online are skipped, and [`ManyCall::reach`] says which: the function doesn't
    /// run there and nobody waits for them.
    ///
    /// The caller's own CPU is a CPU like any other: if it is in the set, `f` runs there too, on
    /// its call target (the kernel's `smp_call_function_many` leaves it out, its `on_each_cpu`
    /// does not). That the caller happens to run there now means nothing once it may be moved.
    /// Only where the caller is that CPU's target is `f` run in place, after the other CPUs
    /// have been told.
    ///
    /// Contexts and ordering are those of [`Smp::call`]. `f` is dropped by the side that lets go of the
    /// call last: the caller or one of the targets, inside its handler.
    #[track_caller]
    pub fn call_many<F, R>(&self, cpus: &CpuSet, f: F) -> ManyCall<R>
    where
        F: Fn(CpuId) -> R + Send + Sync + 'static,
        R: Send + 'static,
    {
        self.send_many(Location::caller(), cpus.len(), cpus.iter(), |_| true, f)
    }

    /// [`Smp::call_many`] for those CPUs of the set for which `wanted` says yes. It is asked once
    /// for each CPU that is online, in CPU order, in the calling thread, right before the push to
    /// that CPU: so it sees what is true then, not when the set was made. A CPU that it doesn't
    /// want is neither reached nor skipped, and nobody waits for it.
    ///
    /// `wanted` may be slow, or panic: it holds up nobody but its caller. After a panic the CPUs
    /// that were told before still run `f`, but for the caller's own where it is that CPU's target: that
    /// one comes last.
    ///
    /// The kernel's `on_each_cpu_cond_mask`.
    #[track_caller]
    pub fn call_many_if<F, R>(
        &self,
        cpus: &CpuSet,
        wanted: impl FnMut(CpuId) -> bool,
        f: F,
    ) -> ManyCall<R>
    where
        F: Fn(CpuId) -> R + Send + Sync + 'static,
        R: Send + 'static,
    {
        self.send_many(Location::caller(), cpus.len(), cpus.iter(), wanted, f)
    }

    /// [`Smp::call_many`] for all CPUs of the topology: those that aren't online are skipped and
    /// named. The caller's own is among them (the kernel's `on_each_cpu`).
    #[track_caller]
    pub fn call_all<F, R>(&self, f: F) -> ManyCall<R>
    where
        F: Fn(CpuId) -> R + Send + Sync + 'static,
        R: Send + 'static,
    {
        self.send_many(Location::caller(), self.shared.targets.len(), self.every_cpu(), |_| true, f)
    }

    /// As [`Smp::call_many`], but nobody waits. Panics of `f` are logged and counted.
    #[track_caller]
    pub fn call_many_nowait<F>(&self, cpus: &CpuSet, f: F) -> Reach
    where
        F: Fn(CpuId) + Send + Sync + 'static,
    {
        self.cast(Location::caller(), cpus, f)
    }

    /// Every CPU's counters, in CPU order.
    pub fn stats(&self) -> Vec<CallStats> {
        self.shared.targets.iter().map(|target| target.stats.snapshot(target.cpu)).collect()
    }

    /// One CPU's counters; `None` where the topology has no such CPU.
    pub fn cpu_stats(&self, cpu: CpuId) -> Option<CallStats> {
        self.shared.target(cpu).map(|target| target.stats.snapshot(cpu))
    }

    /// Accepts no more calls, for good. Calls accepted before still run, then the CPUs leave, which
    /// can be waited for. Doesn't block itself; any context.
    pub fn shutdown(&self) -> Leaving {
        let targets = self.shared.targets.iter();
        Leaving::new(targets.filter_map(|target| target.close(true)).collect())
    }

    fn every_cpu(&self) -> impl Iterator<Item = CpuId> {
        self.shared.targets.iter().map(|target| target.cpu)
    }

    fn send_many<F, R>(
        &self,
        site: &'static Location<'static>,
        len: usize,
        candidates: impl Iterator<Item = CpuId>,
        mut wanted: impl FnMut(CpuId) -> bool,
        f: F,
    ) -> ManyCall<R>
    where
        F: Fn(CpuId) -> R + Send + Sync + 'static,
        R: Send + 'static,
    {
        let pools = &self.shared.pools;
        let mut sending = Sending::new(pools, source(), site, candidates_of(len), f);
        let mut here = None;
        let mut skipped = Vec::new();
        for cpu in candidates {
            let found = match self.shared.target(cpu).ok_or(SkipReason::NotOnline).and_then(open) {
                Err(reason) => Err(reason),
                Ok(_) if !wanted(cpu) => continue,
                Ok(target) => match policy::delivery(target.is_run_by_this_thread(), true) {
                    Delivery::Inline => {
                        target.state().hint_refusal().map_or(Ok(()), Err).map(|()| {
                            here = Some((target, sending.share(pools, cpu)));
                        })
                    }
                    Delivery::Queue => target
                        .push(sending.share(pools, cpu))
                        .map(|asleep| sending.pushed(cpu, asleep))
                        .map_err(|(reason, share)| {
                            sending.take_back(share);
                            reason
                        }),
                },
            };
            if let Err(reason) = found {
                skipped.push(Skipped { cpu, reason });
            }
        }
        if let Some((target, share)) = here {
            sending.wake_all();
            run_here(target, share);
        }
        ManyCall::new(sending.finish(), skipped)
    }

    fn cast<F>(&self, site: &'static Location<'static>, cpus: &CpuSet, f: F) -> Reach
    where
        F: Fn(CpuId) + Send + Sync + 'static,
    {
        let pools = &self.shared.pools;
        let mut casting = Casting::new(pools, source(), site, candidates_of(cpus.len()), f);
        let mut reach = Reach::default();
        for cpu in cpus {
            let found = match self.shared.target(cpu).ok_or(SkipReason::NotOnline).and_then(open) {
                Err(reason) => Err(reason),
                Ok(target) => target
                    .push(casting.share(pools, cpu))
                    .map(|asleep| casting.pushed(cpu, asleep))
                    .map_err(|(reason, share)| {
                        casting.take_back(share);
                        reason
                    }),
            };
            match found {
                Ok(()) => {
                    reach.reached.insert(cpu);
                }
                Err(reason) => reach.skipped.push(Skipped { cpu, reason }),
            }
        }
        reach
    }
}

/// The CPU whose pool the calling thread takes a cell from: the one that it is on. If that is out of date a
/// moment later, nothing is wrong but the name in a report.
#[inline]
fn source() -> CpuId {
    current_cpu().unwrap_or(CpuId::new(0))
}

/// As the cells count them.
fn candidates_of(len: usize) -> u32 {
    u32::try_from(len).expect("a set of CPUs has fewer than 2^32")
}

/// Step Look, where the caller's condition is asked between it and Push.
fn open(target: &Arc<Target>) -> Result<&Arc<Target>, SkipReason> {
    target.state().hint_refusal().map_or(Ok(target), Err)
}

/// Runs a call in this thread, which is the target's.
fn run_here(target: &Target, message: Message) {
    target.stats.inline();
    target.run_one(message);
}

impl Drop for Shared {
    fn drop(&mut self) {
        for target in &self.targets {
            // Nobody can wait for the event: there is no handle left.
            drop(target.close(true));
        }
        let threads = self.control.lock().take_threads();
        if !threads.is_empty() && !context::in_atomic_section() {
            context::blocking("Smp::drop", || threads.join());
        }
        // Until then somebody may wait.
        self.watch.stop();
    }
}

impl fmt::Debug for Smp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Smp").field("targets", &self.shared.targets).finish_non_exhaustive()
    }
}
