//! CPUs that come and go: the thread that runs each target, and the slow path that changes it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use corewise_sync::atomic::Ordering;
use corewise_sync::{Completion, context};
use corewise_topology::{CpuId, CpuSet};

use super::{Settings, Shared, Smp};
use crate::error::{StartError, StartErrorKind};
use crate::priority::Priority;
use crate::target::CallTarget;
use crate::target_state::OpenResult;
use crate::threads;

/// The threads of the targets. Guarded by `Shared::control`.
pub(crate) struct Control {
    /// Slots in the order of `Shared::targets`.
    slots: Vec<ThreadSlot>,
    /// The machine's epoch that was followed last.
    epoch: u64,
}

/// The thread of one target.
enum ThreadSlot {
    /// The holder of the `CallTarget`.
    Stepped,
    /// The target has no thread: the CPU is offline.
    Vacant(CallTarget),
    /// A thread of ours. It ends when the CPU has left, and gives the owner side back.
    Thread(threads::TargetThread),
}

/// Threads to be joined after the lock was released.
pub(crate) struct Threads {
    threads: Vec<threads::TargetThread>,
}

impl Threads {
    pub(crate) fn is_empty(&self) -> bool {
        self.threads.is_empty()
    }

    pub(crate) fn join(self) {
        for thread in self.threads {
            drop(thread.join());
        }
    }
}

impl Control {
    pub(crate) fn stepped(targets: usize, epoch: u64) -> Self {
        Control { slots: (0..targets).map(|_| ThreadSlot::Stepped).collect(), epoch }
    }

    pub(crate) fn take_threads(&mut self) -> Threads {
        Threads {
            threads: self
                .slots
                .drain(..)
                .filter_map(|slot| match slot {
                    ThreadSlot::Thread(thread) => Some(thread),
                    ThreadSlot::Stepped | ThreadSlot::Vacant(_) => None,
                })
                .collect(),
        }
    }
}

/// The CPUs on their way out. Each runs its accepted calls; then it is offline for calls. Dropping
/// this doesn't wait.
#[must_use = "the CPUs leave in any case, but may still be running calls"]
pub struct Leaving {
    events: Vec<Arc<Completion>>,
}

impl Leaving {
    pub(crate) fn new(events: Vec<Arc<Completion>>) -> Self {
        Leaving { events }
    }

    /// Returns true if all have left.
    pub fn is_complete(&self) -> bool {
        self.events.iter().all(|event| event.is_complete())
    }

    /// Waits until all have left. The writes of their last calls are visible after. May block, as
    /// [`Call::wait`](crate::Call::wait) may. A target that is stepped by hand has to be stepped
    /// elsewhere.
    ///
    /// # Panics
    /// Panics inside an atomic section, unless all have left: a function on a call target would
    /// wait for its own end.
    #[track_caller]
    pub fn wait(&self) {
        assert!(
            self.is_complete() || !context::in_atomic_section(),
            "Leaving::wait inside an atomic section (a function on a call target) would wait for itself; the CPUs leave in any \
             case: drop this, or wait elsewhere"
        );
        for event in &self.events {
            event.wait();
        }
    }
}

impl Future for Leaving {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        for event in &self.events {
            if event.poll_complete(cx).is_pending() {
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    }
}

impl fmt::Debug for Leaving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaving").field("complete", &self.is_complete()).finish_non_exhaustive()
    }
}

/// The changes of one step that followed the machine.
#[derive(Debug)]
#[must_use = "the CPUs that leave may still be running calls, and some may have failed to start"]
#[non_exhaustive]
pub struct Followed {
    /// The machine's epoch that the call targets now match.
    pub epoch: u64,
    /// CPUs that accept calls now and didn't before.
    pub joined: CpuSet,
    /// CPUs that accept no more calls.
    pub left: CpuSet,
    /// Handle to wait until those have run their accepted calls.
    pub leaving: Leaving,
    /// CPUs that are online but whose target couldn't be started. The next call tries them again.
    pub failed: Vec<StartError>,
}

impl Smp {
    /// Takes a CPU out: from now on calls to it are refused. Those it has accepted still run, and
    /// their waiters end. A CPU that isn't online has left already. Doesn't block itself; any
    /// context.
    ///
    /// This concerns only calls: the machine's mask is set with
    /// [`Machine::set_online`](corewise_topology::Machine::set_online), which
    /// [`Smp::follow_machine`] follows.
    pub fn cpu_offline(&self, cpu: CpuId) -> Leaving {
        let event = self.shared.target(cpu).and_then(|target| target.close(false));
        Leaving::new(event.into_iter().collect())
    }

    /// Takes a CPU in: starts its target's thread (unless the targets are stepped), pins it there
    /// (unless the machine is synthetic), and accepts calls. A CPU that is online already is left
    /// as it is.
    ///
    /// Blocks: it waits for the thread, and for the CPU's last leave to be over if it isn't. A
    /// stepped target that is still leaving has to be stepped elsewhere.
    ///
    /// # Errors
    /// An error if the topology has no such CPU, the handle is shut down, the stepped target was
    /// dropped, or its thread couldn't be started or pinned.
    pub fn cpu_online(&self, cpu: CpuId) -> Result<(), StartError> {
        context::might_block("Smp::cpu_online");
        let Some(position) = self.shared.position(cpu) else {
            return Err(StartError::new(cpu, StartErrorKind::UnknownCpu));
        };
        let target = &self.shared.targets[position];
        loop {
            let mut control = self.shared.control.lock();
            let state = target.state().snapshot();
            if state.is_online() {
                return Ok(());
            }
            if state.is_closing() {
                drop(control);
                if let Some(event) = target.closing() {
                    event.wait();
                }
                continue;
            }
            if state.is_stopped() {
                return Err(StartError::new(cpu, StartErrorKind::ShuttingDown));
            }
            // The lock is held while the thread starts: two that bring the same CPU in don't both
            // start one. Calls don't take this lock.
            let granted = control.start_thread(position, cpu, &self.shared)?;
            let opened = target.open();
            drop(control);
            granted.inspect(|&granted| self.shared.granted(granted));
            return match opened {
                OpenResult::Now | OpenResult::Already => Ok(()),
                OpenResult::Stopped => Err(StartError::new(cpu, StartErrorKind::ShuttingDown)),
                OpenResult::Abandoned => Err(StartError::new(cpu, StartErrorKind::Abandoned)),
                // Only `open` makes a target online, and that is done under the lock that we hold.
                OpenResult::StillClosing => {
                    unreachable!("an offline target opened without the control lock")
                }
            };
        }
    }

    /// Makes the call targets match the machine's online mask, if its epoch has changed since the
    /// last time, or a target found that the process had lost its CPU. Call it after the mask
    /// changed, or have the machine call it; calls themselves never read the machine.
    ///
    /// ```
    /// # let machine = corewise_topology::Machine::synthetic("core:4 pu:1")?;
    /// # let smp = corewise_smp::Smp::new(&machine).expect("four threads");
    /// let follows = smp.clone();
    /// let _subscription = machine.on_change(move |_| drop(follows.follow_machine()));
    /// let cpu = corewise_topology::CpuId::new(2);
    /// machine.set_online(cpu, false)?;
    /// assert!(!smp.online().contains(cpu));
    /// # Ok::<(), corewise_topology::TopologyError>(())
    /// ```
    ///
    /// Leaving CPUs are closed first, without waiting for them; joining CPUs are started, which
    /// blocks as [`Smp::cpu_online`] does. A CPU that was taken out with [`Smp::cpu_offline`]
    /// alone comes back if the machine has it online.
    pub fn follow_machine(&self) -> Followed {
        let mut followed = Followed {
            epoch: 0,
            joined: CpuSet::new(),
            left: CpuSet::new(),
            leaving: Leaving::new(Vec::new()),
            failed: Vec::new(),
        };
        let now = || self.machine().read(|masks| (masks.epoch, masks.online.clone()));
        let (mut epoch, mut wanted) = now();
        followed.epoch = epoch;
        let lost = || self.shared.targets.iter().any(|target| target.lost.load(Ordering::Relaxed));
        if self.shared.control.lock().epoch == epoch && !lost() {
            return followed;
        }
        loop {
            followed.failed.clear();
            self.match_targets(&wanted, &mut followed);
            // Bringing a CPU in takes its time. If the mask has changed meanwhile, this step is out
            // of date, and may undo another thread's later step. So the step is repeated, whichever
            // epoch was followed last.
            if self.machine().epoch() == epoch {
                if followed.failed.is_empty() {
                    let mut control = self.shared.control.lock();
                    control.epoch = control.epoch.max(epoch);
                }
                return followed;
            }
            (epoch, wanted) = now();
            followed.epoch = epoch;
        }
    }

    /// Takes CPUs out and in until the wanted ones are online.
    fn match_targets(&self, wanted: &CpuSet, followed: &mut Followed) {
        let have = self.online();
        for cpu in &have.difference(wanted) {
            followed.leaving.events.append(&mut self.cpu_offline(cpu).events);
            if !followed.joined.remove(cpu) {
                followed.left.insert(cpu);
            }
        }
        for cpu in &wanted.difference(&have) {
            match self.cpu_online(cpu) {
                Ok(()) => {
                    if !followed.left.remove(cpu) {
                        followed.joined.insert(cpu);
                    }
                }
                Err(error) => followed.failed.push(error),
            }
        }
    }
}

impl Control {
    /// Starts a thread of ours for the target, unless another thread steps it. The CPU is offline.
    /// The priority that the thread got is for [`Shared::granted`], without the lock.
    fn start_thread(
        &mut self,
        position: usize,
        cpu: CpuId,
        shared: &Shared,
    ) -> Result<Option<Priority>, StartError> {
        let owner = match std::mem::replace(&mut self.slots[position], ThreadSlot::Stepped) {
            ThreadSlot::Stepped => return Ok(None),
            ThreadSlot::Vacant(owner) => owner,
            // The CPU is offline, so the thread's loop has returned: this join is short.
            ThreadSlot::Thread(thread) => match thread.join() {
                Some(owner) => owner,
                // It panicked, which dropped its owner side: `open` will say that it is abandoned.
                None => return Ok(None),
            },
        };
        let starting =
            threads::TargetThread::start(owner, &shared.machine, shared.settings.priority);
        match starting.and_then(threads::StartingThread::finish) {
            Ok(thread) => {
                let granted = thread.granted;
                self.slots[position] = ThreadSlot::Thread(thread);
                Ok(Some(granted))
            }
            Err(failed) => {
                if let Some(owner) = failed.owner {
                    self.slots[position] = ThreadSlot::Vacant(owner);
                }
                Err(StartError::new(cpu, failed.kind))
            }
        }
    }
}

impl Smp {
    /// Starts a handle like [`Smp::new`](crate::Smp::new), with settings.
    pub(crate) fn start(
        machine: &corewise_topology::Machine,
        settings: Settings,
    ) -> Result<Smp, StartError> {
        let (smp, owners) = Smp::unopened(machine, settings);
        let priority = smp.shared.settings.priority;
        let online = machine.online();
        let mut starting = Vec::new();
        let mut granted = None;
        {
            let mut control = smp.shared.control.lock();
            for (position, owner) in owners.into_iter().enumerate() {
                let cpu = owner.cpu();
                if online.contains(cpu) {
                    let thread = threads::TargetThread::start(owner, machine, priority);
                    let thread = thread.map_err(|failed| StartError::new(cpu, failed.kind))?;
                    starting.push((position, cpu, thread));
                } else {
                    control.slots[position] = ThreadSlot::Vacant(owner);
                }
            }
            for (position, cpu, thread) in starting {
                let thread = thread.finish();
                let thread = thread.map_err(|failed| StartError::new(cpu, failed.kind))?;
                granted = Some(thread.granted).filter(|&granted| granted != priority).or(granted);
                control.slots[position] = ThreadSlot::Thread(thread);
            }
        }
        for cpu in &online {
            if let Some(target) = smp.shared.target(cpu) {
                // A target that was just made can always be opened.
                let _ = target.open();
            }
        }
        granted.inspect(|&granted| smp.shared.granted(granted));
        Ok(smp)
    }
}
