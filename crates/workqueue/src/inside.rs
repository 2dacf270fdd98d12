//! How an item waits for another one: somebody has to run that, if need be the waiter.
//!
//! Elsewhere a wait is that of the event. An item has a worker, which others may need, and a place under
//! the limit of its queue. So it sees to it that what it waits for can go on, before it sleeps and when
//! it is woken for that: the rules are those of `take_back.rs`, and `pool/README.md` says who wakes it
//! (Want, Call). What nobody tells it, such as an item that moves to another queue meanwhile, it sees
//! now and then; and where its wait can't end, that too (`stuck.rs`).

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use corewise_sync::{Completion, Parker, context};

use crate::current;
use crate::item::Running;
use crate::stuck::{Listed, long_waits};
use crate::table::Lent;
use crate::take_back::{Role, in_need, lend, take_back, take_back_in_need};
use crate::waits;
use crate::work::Aside;

/// How long a waiter sleeps before it looks around for the first time; then twice as long each time, up
/// to the most.
const LOOK_AFTER: Duration = Duration::from_secs(1);
const LOOK_AT_LEAST: Duration = Duration::from_secs(64);
/// A timer may fire so much late.
const LATE: Duration = Duration::from_millis(1);

/// Whether an item runs on the calling thread.
pub(crate) fn is_here() -> bool {
    current::any(|_| true)
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
    let keeper = current::with(|running| {
        running.and_then(Running::ticket).map(|ticket| Arc::clone(&ticket.link.group.keeper))
    });
    let stall = keeper.as_ref().and_then(|keeper| keeper.stall_after());
    let mut patience = stall.map_or(LOOK_AFTER, |stall| stall.min(LOOK_AFTER));
    let parker = Parker::new();
    let mut long = None;
    loop {
        // Until it is anywhere nobody can be told of it.
        let soon = item.is_on_its_way().then(|| {
            let timer = item.aside().and_then(Aside::fires_in);
            timer.unwrap_or_default().saturating_add(LATE)
        });
        let limit = soon.map_or(patience, |soon| soon.min(patience));
        let unknown = soon.is_some();
        let slept = || sleep(item, over, role, &parker, (limit, unknown), long.as_ref());
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
                patience = (patience * 2).min(LOOK_AT_LEAST);
                if keeper.is_some() && long.is_none() {
                    let stays = role == Role::Part;
                    long = Some(long_waits().add(item, helps, stays, parker.unparker()));
                }
            }
            Slept::InVain => {
                long = None;
                if !lend(item) {
                    waits::in_vain(item);
                }
            }
        }
        take_back(item, role);
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
    long: Option<&Listed<'_>>,
) -> Slept {
    let waker = parker.waker();
    let mut cx = Context::from_waker(&waker);
    let home = in_need(item, role);
    // Want.
    let wanted = home.as_ref().map(|(group, pool)| group.want(*pool, item, parker.unparker()));
    let helps = wanted.is_some() || unknown;
    long.inspect(|long| long.look(helps));
    loop {
        if over.poll_complete(&mut cx) == Poll::Ready(()) {
            return Slept::Over;
        }
        if wanted.as_ref().is_some_and(|wanted| wanted.is_called_for()) {
            return Slept::Called;
        }
        if long.is_some_and(Listed::ends) {
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
