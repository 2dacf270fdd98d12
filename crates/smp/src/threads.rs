//! The threads that run call targets: start, pin, raise, run, end.

use std::sync::Arc;

use corewise_sync::sys::Tid;
use corewise_sync::thread::{Builder, JoinHandle};
use corewise_sync::{Completion, Mutex};
use corewise_topology::{CpuSet, Machine};

use crate::error::StartErrorKind;
use crate::priority::{self, Priority};
use crate::target::{CallTarget, ThreadInfo};

/// A thread that runs a target. It gives the owner side back when it ends.
pub(crate) struct TargetThread {
    handle: JoinHandle<CallTarget>,
    /// The priority that it got.
    pub(crate) granted: Priority,
}

/// A thread that hasn't reported yet whether it is where it belongs.
pub(crate) struct StartingThread {
    handle: JoinHandle<CallTarget>,
    report: Arc<Report>,
}

/// The report of a new thread to the one that started it.
struct Report {
    /// L: is the lock; guards the priority that the thread got, or the reason why it couldn't be
    /// pinned.
    outcome: Mutex<Option<Result<Priority, String>>>,
    told: Completion,
}

/// The failure to start a thread.
pub(crate) struct StartFailed {
    /// The owner side, if it came back.
    pub(crate) owner: Option<CallTarget>,
    pub(crate) kind: StartErrorKind,
}

impl TargetThread {
    /// Starts a thread for the target, and doesn't wait for it.
    pub(crate) fn start(
        owner: CallTarget,
        machine: &Machine,
        priority: Priority,
    ) -> Result<StartingThread, StartFailed> {
        // The kernel shows 15 characters of a name.
        let builder = Builder::new().name(format!("cw-call/{}", owner.cpu()));
        TargetThread::start_with(builder, owner, machine, priority)
    }

    fn start_with(
        builder: Builder,
        owner: CallTarget,
        machine: &Machine,
        priority: Priority,
    ) -> Result<StartingThread, StartFailed> {
        let report = Arc::new(Report { outcome: Mutex::new(None), told: Completion::new() });
        let told = Arc::clone(&report);
        let machine = machine.clone();
        // If the spawn fails, the closure is dropped. The owner side must not go with it: that
        // would take the CPU out for good if threads are scarce for a moment.
        let shared = Arc::new(Mutex::new(Some(owner)));
        let its = Arc::clone(&shared);
        let spawned = builder.spawn(move || {
            let owner = its.lock().take();
            main(owner.expect("it is put there before, and taken here"), &machine, priority, &told)
        });
        match spawned {
            Ok(handle) => Ok(StartingThread { handle, report }),
            Err(error) => {
                Err(StartFailed { owner: shared.lock().take(), kind: StartErrorKind::Spawn(error) })
            }
        }
    }

    /// Waits until the thread has ended. Returns `None` if it panicked.
    pub(crate) fn join(self) -> Option<CallTarget> {
        self.handle.join().ok()
    }
}

impl StartingThread {
    /// Waits until the thread is where it belongs.
    pub(crate) fn finish(self) -> Result<TargetThread, StartFailed> {
        self.report.told.wait();
        let outcome = self.report.outcome.lock().take();
        match outcome.expect("it is put there before the event that was waited for") {
            Ok(granted) => Ok(TargetThread { handle: self.handle, granted }),
            Err(why) => {
                Err(StartFailed { owner: self.handle.join().ok(), kind: StartErrorKind::Pin(why) })
            }
        }
    }
}

/// Runs the thread.
fn main(
    mut owner: CallTarget,
    machine: &Machine,
    priority: Priority,
    report: &Report,
) -> CallTarget {
    let pinned = machine.pin_current_thread(&CpuSet::from_iter([owner.cpu()]));
    let (pinned, outcome) = match pinned {
        // Its priority is raised last: before it is on its CPU, it would hold up others.
        Ok(pinned) => (pinned, Ok(priority::apply(priority))),
        Err(error) => (false, Err(error.to_string())),
    };
    let granted = outcome.as_ref().ok().copied();
    let thread = Tid::current();
    owner.set_own_thread(granted.map(|granted| ThreadInfo { granted, thread }));
    *report.outcome.lock() = Some(outcome);
    report.told.complete();
    if granted.is_some() {
        owner.set_pinned(pinned);
        owner.run();
        owner.set_pinned(false);
        owner.set_own_thread(None);
    }
    owner
}

#[cfg(test)]
mod tests {
    use corewise_topology::CpuId;

    use super::*;
    use crate::model;
    use crate::smp::Smp;
    use crate::target::Step;

    #[test]
    fn where_no_thread_can_be_had_the_owner_side_is_given_back() {
        let machine = Machine::synthetic("core:1 pu:1").expect("a valid description");
        let (smp, mut owners) = model::stepped(Smp::builder(&machine));
        let owner = owners.pop().expect("one CPU has one target");
        // The stack is larger than the address space.
        let builder = Builder::new().stack_size(1 << 60);
        let Err(failed) = TargetThread::start_with(builder, owner, &machine, Priority::Plain)
        else {
            panic!("a thread with a stack of 2^60 bytes");
        };
        assert!(matches!(failed.kind, StartErrorKind::Spawn(_)));
        let mut owner = failed.owner.expect("nobody else has it");
        let call = smp.call(CpuId::new(0), || 1).expect("the CPU is online, not abandoned");
        assert_eq!(owner.step(), Step::Ran(1));
        assert_eq!(call.wait().expect("it ran"), 1);
    }
}
