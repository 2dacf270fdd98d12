//! How an item waits for another one: somebody has to run that, if need be the waiter.
//!
//! Elsewhere a wait is that of the event. An item has a worker, which others may need, and a place under
//! the limit of its queue. So it sees to it that what it waits for can go on, before it sleeps and when
//! it is woken for that: the rules are those of `take_back.rs`, and `../pool/README.md` says who wakes it
//! (Want, Call). What nobody tells it, such as an item that moves to another queue meanwhile, it sees
//! now and then; and where its wait can't end, that too (`stuck/mod.rs`).

pub(crate) mod block;
pub(crate) mod messages;
mod stack;
pub(crate) mod stuck;
pub(crate) mod take_back;

use std::panic::Location;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use corewise_sync::{Completion, Parker, context};

use crate::pwq::Pwq;
use crate::pwq::queue_core::QueueCore;
use crate::task::running::{self, Running};
use crate::task::vtable::Lent;
use crate::wait::stuck::{Listed, long_waits};
use crate::wait::take_back::{
    Role, homes, in_need, is_called_for, lend, run_awaited, take_back, take_back_in_need,
};

/// How long a waiter sleeps before others see it wait.
const LIST_AFTER: Duration = Duration::from_millis(10);
/// How long a waiter sleeps then before it looks around for the first time; then twice as long each time,
/// up to the most. Not where its item is held back: others may come to wait for that limit again and again.
const LOOK_AFTER: Duration = Duration::from_secs(1);
const LOOK_AT_LEAST: Duration = Duration::from_secs(64);
/// A timer may fire so much late.
const LATE: Duration = Duration::from_millis(1);

/// Whether an item runs on the calling thread.
pub(crate) fn is_here() -> bool {
    running::any_here(|_| true)
}

/// Waits for the event that the end of the item's instance completes. May block.
///
/// # Panics
/// As [`take_back`]; and where it is found that the wait can't end.
#[track_caller]
pub(crate) fn wait(item: Lent<'_>, over: &Completion, role: Role) {
    // In an atomic section nothing may be run: that wait is reported as it is.
    if !is_here() || context::in_atomic_section() {
        return over.wait();
    }
    if over.spin() {
        return;
    }
    let look_after = look_after();
    let mut patience = look_after.unwrap_or(LOOK_AFTER).min(LIST_AFTER);
    let parker = Parker::new();
    let mut long = Long::default();
    loop {
        // Until it is anywhere nobody can be told of it.
        let soon = item.is_on_its_way().then(|| {
            let timer = item.fires_in();
            timer.unwrap_or_default().saturating_add(LATE)
        });
        let limit = soon.map_or(patience, |soon| soon.min(patience));
        let unknown = soon.is_some();
        let slept = || sleep(item, over, role, &parker, (limit, unknown), &long);
        match context::blocking("a wait for a work item", slept) {
            Slept::Over => return,
            Slept::Called => {
                if !take_back(item, role) {
                    take_back_in_need(item, role);
                }
                continue;
            }
            Slept::Long { .. } if limit < patience => {}
            Slept::Long { helps } => {
                let Some(look_after) = look_after else { continue };
                long.looks = long.listed.is_some() || item.is_held();
                let soonest = if item.is_held() { patience } else { look_after };
                patience = (patience * 2).clamp(soonest, LOOK_AT_LEAST);
                long.listed.get_or_insert_with(|| {
                    let does = (helps, role == Role::Part);
                    long_waits().add(item, over, does, parker.unparker())
                });
            }
            Slept::InVain => {
                long = Long::default();
                if !lend(item) {
                    messages::in_vain(item);
                }
            }
        }
        take_back(item, role);
    }
}

/// Waits for the event of a flush of the queue. Where no worker can come for what it waits for, the caller
/// runs that, as a rescuer would, as far as there is a stack. May block.
///
/// Nobody calls it for that: it looks when it begins to block, since it may be the last one who does, and
/// later each time that it has waited for as long again.
///
/// # Panics
/// Where it is found that the wait can't end. `location` is told as its place.
pub(crate) fn wait_for_queue(queue: &Arc<QueueCore>, over: &Completion, location: &Location<'_>) {
    if !is_here() || context::in_atomic_section() {
        return over.wait();
    }
    if over.spin() {
        return;
    }
    let look_after = look_after();
    let mut patience = LATE;
    let parker = Parker::new();
    let mut long = Long::default();
    loop {
        let slept = || sleep_beside(queue, over, &parker, patience, &long);
        match context::blocking("a wait for a workqueue", slept) {
            Slept::Over => return,
            Slept::Called => {
                // Who is on the list sleeps.
                long = Long::default();
                run_awaited(queue, over);
                patience = LATE;
            }
            Slept::Long { .. } => {
                patience = (patience * 2).min(LOOK_AT_LEAST);
                let Some(look_after) = look_after else { continue };
                long.looks = patience > look_after;
                if long.listed.is_none() && (long.looks || patience > LIST_AFTER) {
                    let waker = parker.unparker();
                    long.listed = Some(long_waits().add_flush(queue, over, waker));
                }
            }
            Slept::InVain => {
                long = Long::default();
                if !run_awaited(queue, over) {
                    messages::flush_in_vain(queue, location);
                }
            }
        }
    }
}

/// After how long a wait of the current item looks around; `None` where no pools know of that.
fn look_after() -> Option<Duration> {
    let keeper = running::current(|running| {
        let ticket = running.and_then(Running::ticket)?;
        Some(Arc::clone(&Pwq::of(ticket).group.keeper))
    });
    let stall = keeper?.stall_after();
    Some(stall.map_or(LOOK_AFTER, |stall| stall.min(LOOK_AFTER)))
}

/// A wait that lasts for long.
#[derive(Default)]
struct Long<'a> {
    listed: Option<Listed<'a>>,
    /// It looks around before it sleeps.
    looks: bool,
}

impl Long<'_> {
    fn look(&self) {
        self.listed.iter().filter(|_| self.looks).for_each(Listed::look);
    }

    fn ends(&self) -> bool {
        self.listed.as_ref().is_some_and(Listed::ends)
    }
}

/// Why a sleeper woke.
enum Slept {
    /// What it waited for is over.
    Over,
    /// It had better run that.
    Called,
    /// It has slept for as long as it wanted.
    Long {
        /// It would have run what it waited for.
        helps: bool,
    },
    /// What it waits for can't end.
    InVain,
}

/// The caller's pool takes it for blocked meanwhile. `unknown`: what it waits for is on its way, so that
/// nobody knows yet whether it would run that.
fn sleep(
    item: Lent<'_>,
    over: &Completion,
    role: Role,
    parker: &Parker,
    (limit, unknown): (Duration, bool),
    long: &Long<'_>,
) -> Slept {
    let waker = parker.waker();
    let mut cx = Context::from_waker(&waker);
    let home = in_need(item, role);
    // Want.
    let wanted = home.as_ref().map(|(group, pool)| group.want(*pool, item, parker.unparker()));
    let helps = wanted.is_some() || unknown;
    long.listed.iter().for_each(|listed| listed.helps(helps));
    long.look();
    loop {
        if over.poll_complete(&mut cx) == Poll::Ready(()) {
            return Slept::Over;
        }
        if wanted.as_ref().is_some_and(|wanted| wanted.is_called_for()) {
            return Slept::Called;
        }
        if long.ends() {
            return Slept::InVain;
        }
        if !parker.park_timeout(limit) {
            return Slept::Long { helps };
        }
        if let Some(wanted) = &wanted
            && !over.is_complete()
            && !wanted.is_called_for()
        {
            wanted.declines();
        }
    }
}

/// The same of one who flushes a queue.
fn sleep_beside(
    queue: &QueueCore,
    over: &Completion,
    parker: &Parker,
    limit: Duration,
    long: &Long<'_>,
) -> Slept {
    let waker = parker.waker();
    let mut cx = Context::from_waker(&waker);
    // Once, so that what the others are told is what it does: it depends on how deep this is.
    let homes = homes(queue);
    long.listed.iter().for_each(|listed| listed.helps_in(&homes));
    long.look();
    loop {
        if over.poll_complete(&mut cx) == Poll::Ready(()) {
            return Slept::Over;
        }
        if is_called_for(queue, &homes, over) {
            return Slept::Called;
        }
        if long.ends() {
            return Slept::InVain;
        }
        if !parker.park_timeout(limit) {
            return Slept::Long { helps: false };
        }
    }
}
