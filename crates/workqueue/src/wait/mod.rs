//! How an item waits for another one: somebody has to run that, if need be the waiter.
//!
//! Elsewhere a wait is that of the event. An item has a worker, which others may need, and a place under
//! the limit of its queue. So it sees to it that what it waits for can go on, before it sleeps and when
//! it is woken for that: the rules are those of `take_back.rs`, and `../pool/README.md` says who wakes it
//! (Want, Call). A change that nobody tells it, such as an item that moves to another queue meanwhile, it sees
//! now and then; and where its wait can't end, that too (`stuck/mod.rs`).

pub(crate) mod messages;
pub(crate) mod policy;
pub(crate) mod stuck;
pub(crate) mod take_back;

use std::panic::Location;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use corewise_sync::{Completion, Parker, context};

use crate::fork::lane::Lane;
use crate::fork::record::Fork;
use crate::pool::group::Group;
use crate::pwq::Pwq;
use crate::pwq::queue_core::QueueCore;
use crate::task::running::{self, Running};
use crate::task::vtable::Lent;
use crate::wait::stuck::{Listed, Needs, PoolKey, long_waits};
use crate::wait::take_back::{
    Role, home, homes, in_need, is_called_for, lend, run_awaited, take_back, take_back_in_need,
};

/// How long a waiter sleeps before others see it wait.
const LIST_AFTER: Duration = Duration::from_millis(10);
/// How long a waiter has slept when it looks around for the first time, and how long it sleeps in between at most.
/// It sleeps twice as long each time. Where its item is held back it looks each time, and sleeps no longer than this, since
/// others may come to wait for that limit again and again.
const LOOK_AFTER: Duration = Duration::from_secs(1);
const LOOK_AT_LEAST: Duration = Duration::from_secs(64);
/// A timer may fire so much late.
const LATE: Duration = Duration::from_millis(1);

/// What an item waits for.
#[derive(Clone, Copy)]
pub(crate) enum Target<'a> {
    Item(Lent<'a>, Role),
    /// A flush that was called there. Where no worker can come for what it waits for, the caller runs that, as a
    /// rescuer would, as far as there is a stack. Nobody calls it for that: it looks when it begins to block, since
    /// it may be the last one who does, and later each time that it has waited for as long again.
    Queue(&'a Arc<QueueCore>, &'a Location<'a>),
}

/// Whether an item runs on the calling thread.
pub(crate) fn is_here() -> bool {
    running::any_here(|_| true)
}

/// Waits for the event that the end of the item's instance completes: see [`Target::wait`].
#[track_caller]
pub(crate) fn wait(item: Lent<'_>, over: &Completion, role: Role) {
    Target::Item(item, role).wait(over);
}

/// Waits, as the owner of this lane, until the thief of a fork is done with it. Others see it wait
/// if it does for long. The caller's pool takes it for blocked meanwhile.
pub(crate) fn for_thief(lane: &Lane, fork: &Fork) {
    if lane.wait_for(fork, Some(LIST_AFTER)) {
        return;
    }
    let listed = long_waits().add_fork(fork);
    if listed.may_keep_a_place() {
        listed.look();
    }
    lane.wait_for(fork, None);
}

impl<'a> Target<'a> {
    /// Waits for the event. May block.
    ///
    /// # Panics
    /// As [`take_back`]; and where it is found that the wait can't end: a flush at its location.
    #[track_caller]
    pub(crate) fn wait(self, over: &'a Completion) {
        if !is_here() {
            return over.wait();
        }
        context::might_block("a wait for work");
        if over.spin() {
            return;
        }
        let (look_after, parker) = (look_after(), Parker::new());
        let begins_with = match self {
            Target::Item(..) => look_after.unwrap_or(LIST_AFTER).min(LIST_AFTER),
            // Nobody calls it.
            Target::Queue(..) => LATE,
        };
        let mut long = Long::new(begins_with);
        loop {
            let limit = self.arrives_in().map_or(long.patience, |soon| soon.min(long.patience));
            let slept = || self.sleep(over, &parker, limit, &long);
            match context::blocking_reported(slept) {
                Slept::Over => return,
                Slept::Called => {
                    if let Target::Queue(..) = self {
                        // A thread that is on the list sleeps.
                        long = Long::new(begins_with);
                    }
                    self.help(over);
                    continue;
                }
                Slept::Long if limit < long.patience => {}
                Slept::Long => {
                    let list = || long_waits().add(self, over, parker.unparker());
                    let held = matches!(self, Target::Item(item, _) if item.is_held());
                    long.lasted(held, look_after, list);
                }
                Slept::InVain => match long.listed.as_ref().and_then(Listed::needs) {
                    Some(needs) => self.is_given_up(over, needs, || long = Long::new(begins_with)),
                    // It looks again soon.
                    None => long.patience = begins_with,
                },
            }
            if let Target::Item(item, role) = self {
                take_back(item, role);
            }
        }
    }

    /// Until it is anywhere nobody can be told of it.
    fn arrives_in(self) -> Option<Duration> {
        match self {
            Target::Item(item, _) if item.is_on_its_way() => {
                Some(item.fires_in().unwrap_or_default().saturating_add(LATE))
            }
            _ => None,
        }
    }

    /// No worker can come for what it waits for.
    #[track_caller]
    fn help(self, over: &Completion) {
        match self {
            Target::Item(item, role) => {
                if !take_back(item, role) {
                    take_back_in_need(item, role);
                }
            }
            Target::Queue(queue, _) => {
                run_awaited(queue, over);
            }
        }
    }

    /// It needs that, which couldn't come about a moment ago. Until it has `left` the list nobody else of its circle is
    /// given up.
    #[track_caller]
    fn is_given_up(self, over: &Completion, needs: Needs, left: impl FnOnce()) {
        match self {
            Target::Item(item, _) if needs == Needs::Place => {
                // Where somebody else has let it through meanwhile the wait goes on as well.
                lend(item);
                left();
            }
            Target::Item(item, _) => {
                left();
                messages::in_vain(item, needs);
            }
            Target::Queue(queue, location) => {
                left();
                if !run_awaited(queue, over) && !over.is_complete() {
                    messages::flush_in_vain(queue, location);
                }
            }
        }
    }

    /// The caller's pool takes it for blocked meanwhile.
    fn sleep(self, over: &Completion, parker: &Parker, limit: Duration, long: &Long<'_>) -> Slept {
        match self {
            Target::Item(item, role) => {
                // Nobody knows yet where it would be run.
                let unknown = item.is_on_its_way();
                let lies = if long.listed.is_some() { home(item) } else { None };
                let home = in_need(item, role);
                // Want.
                let wanted =
                    home.as_ref().map(|(group, pool)| group.want(*pool, item, parker.unparker()));
                long.begins(if unknown { None } else { Some(home.as_slice()) }, lies);
                long.park(over, parker, limit, |woken| {
                    let Some(wanted) = &wanted else { return false };
                    let called = wanted.is_called_for();
                    if woken && !called {
                        wanted.declines();
                    }
                    called
                })
            }
            Target::Queue(queue, _) => {
                // Once, so that what the others are told is what it does: it depends on how deep this is.
                let homes = homes(queue);
                long.begins(Some(&homes), None);
                long.park(over, parker, limit, |_| is_called_for(queue, &homes, over))
            }
        }
    }
}

/// After how long a wait of the current item looks around; `None` where no pools know of that.
fn look_after() -> Option<Duration> {
    let stall = running::current(|running| {
        let ticket = running.and_then(Running::ticket)?;
        Some(Pwq::of(ticket).shared.pools.keeper().stall_after())
    })?;
    Some(stall.map_or(LOOK_AFTER, |stall| stall.min(LOOK_AFTER)))
}

/// A wait that may last for long.
struct Long<'a> {
    /// How long it sleeps next.
    patience: Duration,
    listed: Option<Listed<'a>>,
    /// What it waits for was held back.
    held: bool,
    /// It looks around before it sleeps.
    looks: bool,
}

/// Why a sleeper woke.
enum Slept {
    /// What it waited for is over.
    Over,
    /// It had better run that.
    Called,
    /// It has slept for as long as it wanted.
    Long,
    /// It was found that what it waits for can't end.
    InVain,
}

impl<'a> Long<'a> {
    fn new(patience: Duration) -> Self {
        Long { patience, listed: None, held: false, looks: false }
    }

    /// It has slept for so long; `held`: what it waits for is held back.
    fn lasted(
        &mut self,
        held: bool,
        look_after: Option<Duration>,
        list: impl FnOnce() -> Listed<'a>,
    ) {
        self.patience = (self.patience * 2).min(if held { LOOK_AFTER } else { LOOK_AT_LEAST });
        self.held = held;
        let Some(look_after) = look_after else { return };
        self.looks = held || self.patience > look_after;
        if self.listed.is_none() && (self.looks || self.patience > LIST_AFTER) {
            let listed = list();
            self.looks |= listed.may_keep_a_place();
            self.listed = Some(listed);
        }
    }

    /// It is about to sleep, and would run what it waits for in these pools; `None`: that isn't known. `home`: where its
    /// item was.
    fn begins(&self, helps: Option<&[(Arc<Group>, usize)]>, home: Option<PoolKey>) {
        let Some(listed) = &self.listed else { return };
        listed.helps(helps, home, self.held);
        if self.looks {
            listed.look();
        }
    }

    /// Sleeps. `called`: whether it had better run what it waits for; it is told whether somebody woke it.
    fn park(
        &self,
        over: &Completion,
        parker: &Parker,
        limit: Duration,
        called: impl Fn(bool) -> bool,
    ) -> Slept {
        let waker = parker.waker();
        let mut cx = Context::from_waker(&waker);
        let mut woken = false;
        loop {
            if over.poll_complete(&mut cx) == Poll::Ready(()) {
                return Slept::Over;
            }
            if called(woken) {
                return Slept::Called;
            }
            if self.listed.as_ref().is_some_and(Listed::ends) {
                return Slept::InVain;
            }
            if !parker.park_timeout(limit) {
                return Slept::Long;
            }
            woken = true;
        }
    }
}
