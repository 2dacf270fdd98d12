//! Looking at calls that somebody waits for: who hasn't answered, and why.

use std::collections::HashMap;
use std::ptr;
use std::time::Duration;

use corewise_sync::sys::{RunState, Tid, run_state};
use corewise_sync::time::Stamp;

use super::stall::{CallStall, Missing, Progress, ThreadState, Waiter};
use super::watching::Watch;
use crate::cells::{Cell, Outstanding, Phase, Pools};
use crate::policy;
use crate::running::{RunningCall, Shown};
use crate::target_state::CpuState;

/// What the thread remembers between looks.
pub(super) struct Lookout {
    limit: Duration,
    /// By the cell's address: the calls that were reported.
    told: HashMap<usize, Told>,
}

/// A call that was reported.
struct Told {
    /// Which life of its cell it is.
    life: u32,
    times: u32,
    /// It was met at this look.
    met: bool,
}

impl Lookout {
    pub(super) fn new(limit: Duration) -> Self {
        Lookout { limit, told: HashMap::new() }
    }

    /// Looks at all cells: reports that are due, and when to look next; `None` where nobody awaits any.
    pub(super) fn look(
        &mut self,
        watch: &Watch,
        pools: &Pools,
    ) -> (Vec<CallStall>, Option<Duration>) {
        let now = Stamp::precise();
        let (mut reports, mut next) = (Vec::new(), None);
        pools.for_each(|cell| {
            let Some(awaited) = awaited(cell) else { return };
            let waited = now.since(awaited.queued.stamp().unwrap_or(now));
            let known = self.told.get(&ptr::from_ref(cell).addr());
            let mut told = known.filter(|told| told.life == awaited.life).map_or(0, |t| t.times);
            if waited >= policy::next_report(self.limit, told) {
                reports.extend(report_on(watch, cell, Waiter::Future, waited));
                // One report, however many were missed.
                while waited >= policy::next_report(self.limit, told) {
                    told += 1;
                }
                let told = Told { life: awaited.life, times: told, met: true };
                self.told.insert(ptr::from_ref(cell).addr(), told);
            } else if told > 0 {
                let known = self.told.get_mut(&ptr::from_ref(cell).addr());
                known.into_iter().for_each(|told| told.met = true);
            }
            // A thread that begins to wait after this look is late no sooner than the limit from now.
            let left = policy::next_report(self.limit, told).saturating_sub(waited);
            next = Some(next.unwrap_or(self.limit).min(left));
        });
        self.told.retain(|_, told| std::mem::take(&mut told.met));
        (reports, next)
    }
}

/// The call that a cell is, where somebody awaits it.
fn awaited(cell: &Cell) -> Option<Outstanding> {
    let call = cell.diagnosis.read().filter(|call| call.queued.is_awaited())?;
    (!cell.signal().is_complete() && cell.diagnosis.life() == call.life).then_some(call)
}

/// Whether anybody awaits a call.
pub(super) fn any_awaited(pools: &Pools) -> bool {
    let mut any = false;
    pools.for_each(|cell| any |= awaited(cell).is_some());
    any
}

/// The report on a call; `None` where it has ended meanwhile.
pub(super) fn report_on(
    watch: &Watch,
    cell: &Cell,
    waiter: Waiter,
    waited: Duration,
) -> Option<CallStall> {
    let call = cell.diagnosis.read()?;
    let mut missing = Vec::new();
    if call.phase == Phase::Head {
        cell.for_each_share(|share, call| missing.extend(missing_on(watch, share, call)));
        missing.sort_by_key(|missing| missing.cpu);
    } else {
        missing.extend(missing_on(watch, cell, &call));
    }
    // The reading, whole or not: it was still this call.
    (cell.diagnosis.life() == call.life).then_some(CallStall {
        waited,
        waiter,
        function: call.name,
        site: call.site,
        source: Some(call.source),
        missing,
    })
}

/// Wakes the targets that have never seen the call.
pub(super) fn wake_again(watch: &Watch, cell: &Cell) {
    let Some(call) = cell.diagnosis.read() else { return };
    if call.phase == Phase::Head {
        cell.for_each_share(|share, call| wake_unseen(watch, share, call));
    } else {
        wake_unseen(watch, cell, &call);
    }
}

fn wake_unseen(watch: &Watch, cell: &Cell, call: &Outstanding) {
    let Some(target) = watch.target(call.target) else { return };
    if progress(cell, call, target.stats.running()) == Progress::Unseen {
        target.wake_again();
    }
}

/// How far a call, or a share of one, has come on its target.
fn missing_on(watch: &Watch, cell: &Cell, call: &Outstanding) -> Option<Missing> {
    let target = watch.target(call.target)?;
    let running = target.stats.running();
    let progress = progress(cell, call, running);
    if progress == Progress::Unseen {
        // As the kernel sends its interrupt once more.
        target.wake_again();
    }
    Some(Missing {
        cpu: call.target,
        progress,
        state: CpuState::of(target.state().snapshot()),
        running: running.map(RunningCall::of),
        thread: target.seated().and_then(|seat| thread_state(seat.thread)),
    })
}

/// How far a call has come on a target that runs this.
pub(super) fn progress(cell: &Cell, call: &Outstanding, running: Option<Shown>) -> Progress {
    match call.phase {
        _ if running.is_some_and(|shown| shown.label.call == ptr::from_ref(cell).addr()) => {
            Progress::Running
        }
        Phase::Taken => Progress::Before,
        _ => Progress::Unseen,
    }
}

/// What the kernel says of a thread of this process; `None` where it says nothing.
fn thread_state(thread: Tid) -> Option<ThreadState> {
    Some(match run_state(thread)? {
        RunState::Ready => ThreadState::Ready,
        RunState::Stopped => ThreadState::Stopped,
        RunState::Asleep => ThreadState::Asleep,
    })
}
