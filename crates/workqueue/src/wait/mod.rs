//! The wait of an item for another one: some thread has to run that, if need be the waiter.
//!
//! Outside of items a wait is that of the event. An item has a worker, which others may need, and a
//! place under the limit of its queue. So before it sleeps, and when it is woken for that, it makes
//! sure that the awaited item can proceed. The rules are those of [`take_back`], and
//! `../pool/README.md` says which thread wakes it (Want, Call). Some changes wake no waiter, such
//! as a move of the item to another queue: the waiter looks around for these now and then. It finds
//! a wait that can't end in the same way (`stuck/mod.rs`).
//!
//! *Taking an item back*: if the awaited item is still in its pool's list, and its placement allows
//! that, the waiter runs it itself. It then needn't sleep until a worker has run it.
//!
//! This saves two wake-ups, and lets a chain of items that wait for each other proceed with few
//! threads. A waiter never runs an item that it doesn't wait for: an unrelated item could wait for
//! something further down on the same stack. The decision is [`TakeBackCase`]. The claim is that of
//! `../task/state.md`, so an item that is taken back runs once, although others want it. If the
//! item is queued again while it runs here, that instance goes back to its pool: the waiter doesn't
//! wait for it.

use std::cell::Cell;
use std::panic::Location;
use std::ptr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use corewise_sync::atomic::Ordering;
use corewise_sync::{Completion, Parker, context, per_thread, text};
use corewise_topology::current_cpu;

use crate::attributes::QueueKind;
use crate::fork;
use crate::fork::lane::Lane;
use crate::fork::record::Fork;
use crate::pool::current_worker;
use crate::pool::group::Group;
use crate::pwq::limit::LimitSlot;
use crate::pwq::queue_core::QueueCore;
use crate::pwq::{self, Pwq};
use crate::task::header::{Job, LentItem, Queued};
use crate::task::running::{self, Running, ScopePart};
use crate::task::ticket::Ticket;
use crate::wait::policy::TakeBackCase;
use crate::wait::stuck::{ListedWait, Need, PoolKey, long_waits};

pub(crate) mod messages;
pub(crate) mod policy;
pub(crate) mod stuck;

/// Time that a waiter sleeps before it joins the list of long waits.
const LIST_AFTER: Duration = Duration::from_millis(10);
/// Time that a waiter sleeps before it looks around for the first time. Each later sleep is twice
/// as long. If its item is held back, it looks around after each sleep, and sleeps no longer than
/// this, since others may come to wait for that limit again and again.
const LOOK_AFTER: Duration = Duration::from_secs(1);
const LOOK_AT_LEAST: Duration = Duration::from_secs(64);
/// Latest firing of a timer after its time.
const LATE: Duration = Duration::from_millis(1);

/// The target of an item's wait.
#[derive(Clone, Copy)]
pub(crate) enum Target<'a> {
    Item(LentItem<'a>, Role),
    /// A flush that was called there. If no worker can come for the flushed items, the caller runs
    /// them, as a rescuer would, as far as there is a stack. No thread calls it for that. It looks
    /// when it begins to block, since it may be the last to block, and later each time its wait has
    /// doubled.
    Queue(&'a Arc<QueueCore>, &'a Location<'a>),
}

/// Returns true if an item runs on the calling thread.
pub(crate) fn is_here() -> bool {
    running::any_here(|_| true)
}

/// Waits for the event that the end of the item's instance completes: see [`Target::wait`].
#[track_caller]
pub(crate) fn wait(item: LentItem<'_>, over: &Completion, role: Role) {
    Target::Item(item, role).wait(over);
}

/// Waits, as the owner of this lane, until the thief of a fork has finished. A long wait joins the
/// list. The caller's pool takes the caller for blocked meanwhile.
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
    /// See [`take_back`]. Also if the wait turns out never to end; a flush panics at its location.
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
        let mut long = LongWait::new(begins_with);
        loop {
            let limit = self.arrives_in().map_or(long.patience, |soon| soon.min(long.patience));
            let slept = || self.sleep(over, &parker, limit, &long);
            match context::blocking_reported(slept) {
                WakeCause::Over => return,
                WakeCause::Called => {
                    if let Target::Queue(..) = self {
                        // A thread that is on the list sleeps.
                        long = LongWait::new(begins_with);
                    }
                    self.help(over);
                    continue;
                }
                WakeCause::Long if limit < long.patience => {}
                WakeCause::Long => {
                    let list = || long_waits().add(self, over, parker.unparker());
                    let held = matches!(self, Target::Item(item, _) if item.is_held());
                    long.lasted(held, look_after, list);
                }
                WakeCause::InVain => match long.listed.as_ref().and_then(ListedWait::needs) {
                    Some(needs) => {
                        self.is_given_up(over, needs, || long = LongWait::new(begins_with))
                    }
                    // It looks again soon.
                    None => long.patience = begins_with,
                },
            }
            if let Target::Item(item, role) = self {
                take_back(item, role);
            }
        }
    }

    /// Returns the time until the instance arrives anywhere; until then no pool can be told about
    /// the waiter.
    fn arrives_in(self) -> Option<Duration> {
        match self {
            Target::Item(item, _) if item.is_on_its_way() => {
                Some(item.fires_in().unwrap_or_default().saturating_add(LATE))
            }
            _ => None,
        }
    }

    /// Helps with what it waits for, since no worker can come for that.
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

    /// Gives the wait up: its need couldn't come about a moment ago. Until it has `left` the list,
    /// no other wait of its circle is given up.
    #[track_caller]
    fn is_given_up(self, over: &Completion, needs: Need, left: impl FnOnce()) {
        match self {
            Target::Item(item, _) if needs == Need::Place => {
                // If another thread has let it through meanwhile, the wait continues as well.
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

    /// Sleeps; the caller's pool takes it for blocked meanwhile.
    fn sleep(
        self,
        over: &Completion,
        parker: &Parker,
        limit: Duration,
        long: &LongWait<'_>,
    ) -> WakeCause {
        match self {
            Target::Item(item, role) => {
                // The place where it would run isn't known yet.
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
                // The decision is made once, so that the waiter does what it has announced: it
                // depends on the depth here.
                let homes = homes(queue);
                long.begins(Some(&homes), None);
                long.park(over, parker, limit, |_| is_called_for(queue, &homes, over))
            }
        }
    }
}

/// Returns the time after which a wait of the current item looks around; `None` if no pools set
/// one.
fn look_after() -> Option<Duration> {
    let stall = running::current(|running| {
        let ticket = running.and_then(Running::ticket)?;
        Some(Pwq::of(ticket).shared.pools.keeper().stall_after())
    })?;
    Some(stall.map_or(LOOK_AFTER, |stall| stall.min(LOOK_AFTER)))
}

/// A wait that may last for long.
struct LongWait<'a> {
    /// Length of its next sleep.
    patience: Duration,
    listed: Option<ListedWait<'a>>,
    /// True if what it waits for was held back.
    held: bool,
    /// True if it looks around before it sleeps.
    looks: bool,
}

/// The reason why a sleeper woke.
enum WakeCause {
    /// The awaited event is over.
    Over,
    /// The sleeper should run the awaited item.
    Called,
    /// The sleeper has slept for as long as it wanted.
    Long,
    /// A look found that the sleeper's wait can't end.
    InVain,
}

impl<'a> LongWait<'a> {
    fn new(patience: Duration) -> Self {
        LongWait { patience, listed: None, held: false, looks: false }
    }

    /// Handles a sleep of this length; `held`: what it waits for is held back.
    fn lasted(
        &mut self,
        held: bool,
        look_after: Option<Duration>,
        list: impl FnOnce() -> ListedWait<'a>,
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

    /// Records that the waiter is about to sleep, and would run the awaited item in these pools
    /// (`None`: not known). `home` is where its item was.
    fn begins(&self, helps: Option<&[(Arc<Group>, usize)]>, home: Option<PoolKey>) {
        let Some(listed) = &self.listed else { return };
        listed.helps(helps, home, self.held);
        if self.looks {
            listed.look();
        }
    }

    /// Sleeps. `called` decides whether the waiter should run the awaited item; its argument says
    /// whether another thread woke the waiter.
    fn park(
        &self,
        over: &Completion,
        parker: &Parker,
        limit: Duration,
        called: impl Fn(bool) -> bool,
    ) -> WakeCause {
        let waker = parker.waker();
        let mut cx = Context::from_waker(&waker);
        let mut woken = false;
        loop {
            if over.poll_complete(&mut cx) == Poll::Ready(()) {
                return WakeCause::Over;
            }
            if called(woken) {
                return WakeCause::Called;
            }
            if self.listed.as_ref().is_some_and(ListedWait::ends) {
                return WakeCause::InVain;
            }
            if !parker.park_timeout(limit) {
                return WakeCause::Long;
            }
            woken = true;
        }
    }
}

per_thread! {
    /// Number of items that were taken back that run on this thread's stack.
    static DEPTH: Cell<u32> = Cell::new(0);
}

/// The role of an instance for its waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Another item.
    Waits,
    /// A part of the item that runs here, a closure of its scope: it has no order.
    Part,
    /// The instance was cancelled, and isn't to be run.
    Ends,
}

/// Runs the pending instance of the item that the caller is about to wait for, if that is allowed.
/// Returns true if it ran: it is over now.
///
/// # Panics
/// If the caller's item is of an ordered queue, and the instance can't start before that is over.
#[track_caller]
pub(crate) fn take_back(item: LentItem<'_>, role: Role) -> bool {
    role != Role::Ends && (listed(item) || in_place(item, role))
}

/// Returns where the pending instance lies, if the caller would run it while no worker can come for
/// it.
pub(crate) fn in_need(item: LentItem<'_>, role: Role) -> Option<(Arc<Group>, usize)> {
    let waiter = needy();
    if role == Role::Ends || !waiter.waiter_may() {
        return None;
    }
    let home = item.look(|job| {
        let ticket = job.ticket.as_ref().filter(|ticket| at(waiter, ticket).allowed())?;
        let pwq = Pwq::of(ticket);
        Some((Arc::clone(&pwq.group), pwq.pool))
    });
    home.flatten()
}

/// Returns the pool that the pending instance is for.
pub(crate) fn home(item: LentItem<'_>) -> Option<PoolKey> {
    let pool = |pwq: &Pwq| (current_worker::key(&pwq.group), pwq.pool);
    item.look(|job| job.ticket.as_ref().map(Pwq::of).map(pool)).flatten()
}

/// Returns true if the caller is where an instance may run for which no worker can come.
pub(crate) fn is_placed(ticket: &Ticket) -> bool {
    at(needy(), ticket).placed()
}

/// Takes an instance back as [`take_back`] does, if no worker could come for it while the caller
/// was blocked. Then the depth and the place of the caller don't matter, as long as there is a
/// stack.
pub(crate) fn take_back_in_need(item: LentItem<'_>, role: Role) -> bool {
    let waiter = needy();
    let may = role != Role::Ends && waiter.waiter_may();
    may && take_back_if(item, |job| allowed(waiter, job))
}

/// Returns the pools with instances of a queue that the caller would run, if no worker can come for
/// them.
pub(crate) fn homes(queue: &QueueCore) -> Vec<(Arc<Group>, usize)> {
    let waiter = needy();
    let mut homes = Vec::new();
    if waiter.waiter_may() {
        queue.colours.each(|pwq_slot, pwq| {
            if pwq_slot.tally.in_flight() > 0 && of_pwq(waiter, pwq).allowed() {
                homes.push((Arc::clone(&pwq.group), pwq.pool));
            }
        });
    }
    homes
}

/// Returns true if the caller should run an item that the flush of a queue with this event waits
/// for, in one of its `homes`.
pub(crate) fn is_called_for(
    queue: &QueueCore,
    homes: &[(Arc<Group>, usize)],
    over: &Completion,
) -> bool {
    let awaited = if homes.is_empty() { None } else { queue.colours.awaited_by(over) };
    awaited.is_some_and(|awaited| {
        homes.iter().any(|(group, pool)| group.calls_for(*pool, queue.id, awaited))
    })
}

/// Runs one instance that the flush of a queue with this event waits for, if no worker could come
/// for it while the caller was blocked. Returns false if there is none, or it may not.
pub(crate) fn run_awaited(queue: &QueueCore, over: &Completion) -> bool {
    let homes = homes(queue);
    let Some(awaited) = queue.colours.awaited_by(over).filter(|awaited| !awaited.any) else {
        return false;
    };
    let mut taken = homes.iter().map(|(group, pool)| group.take_awaited(*pool, queue.id, awaited));
    taken.find_map(|taken| taken).map(run).is_some()
}

/// Returns true if it lies in the list of its pool.
fn listed(item: LentItem<'_>) -> bool {
    let waiter = waiter();
    if !waiter.waiter_may() {
        return false;
    }
    let mut unsafe_wait = None;
    let ran = take_back_if(item, |job| {
        let allowed = allowed(waiter, job);
        if !allowed {
            unsafe_wait = messages::for_instance(job, item.table);
        }
        allowed
    });
    if let Some((queue, of)) = unsafe_wait {
        messages::without_rescuer(
            format_args!("an item of queue '{queue}'"),
            format_args!("{} queued at {}", text::name((of.name)()), of.site),
        );
    }
    ran
}

/// Runs an instance that is held back in the place of an item on this stack, which has a place
/// under the same limit. That place might be the very one that the instance needs, and isn't used
/// while the item waits. The instance runs here or, if that isn't allowed, on a worker of its pool,
/// to which the place is lent. Returns true if it ran: it is over now.
///
/// # Panics
/// If that would break the order of an ordered queue, and it is no part.
#[track_caller]
fn in_place(item: LentItem<'_>, role: Role) -> bool {
    if !item.is_held() {
        return false;
    }
    let waiter = waiter();
    let found = item.look(|job| {
        let pwq = job.ticket.as_ref().map(Pwq::of).filter(|pwq| has_place_here(&pwq.slot))?;
        let here = of_pwq(waiter, pwq).allowed_in_place();
        let ordered = pwq.shared.traits.kind == QueueKind::Ordered;
        let queue = || Arc::clone(&pwq.shared);
        Some((here, ordered.then(|| (queue(), job.label(item.table)))))
    });
    let Some((here, ordered)) = found.flatten() else { return false };
    if let Some((queue, label)) = ordered {
        if role != Role::Part {
            messages::for_order(item, &queue, label);
        }
    }
    let Some(claimed) = item.claim() else { return false };
    if !here {
        pwq::let_through(claimed);
        return false;
    }
    claimed.run().map(run).is_some()
}

/// Lets a held instance through if all holders of its places wait, directly or not, for this wait.
/// Returns false if it isn't held, or if an order forbids it.
pub(crate) fn lend(item: LentItem<'_>) -> bool {
    let shared = item.look(|job| {
        let ticket = job.ticket.as_ref().filter(|_| item.is_held())?;
        Some(Arc::clone(&Pwq::of(ticket).shared))
    });
    let Some(queue) = shared.flatten() else { return false };
    if queue.traits.kind == QueueKind::Ordered && queue.before(item) > 0 {
        return false;
    }
    item.claim().map(pwq::let_through).is_some()
}

/// Returns true if an item on this stack has a place in this slot.
fn has_place_here(slot: &LimitSlot<Queued>) -> bool {
    let same = |other: &Ticket| ptr::eq(&*Pwq::of(other).slot, slot);
    running::any_here(|running| running.ticket().is_some_and(same))
}

/// Returns whether a waiter runs the parts of its scope that no thread has begun.
pub(crate) fn may_run_parts() -> bool {
    waiter().waiter_may()
}

/// Returns whether a waiter runs the one part that it waits for. It needn't be as free as for all
/// parts: a helper might begin with others, or get no worker while the waiter waits.
pub(crate) fn may_run_part() -> bool {
    needy().waiter_may()
}

/// Runs a part on the stack of a waiter that [may](may_run_part).
pub(crate) fn run_part(part: ScopePart, forks: bool) {
    context::at_once(|| {
        let depth = DEPTH.with(|depth| depth.replace(depth.get() + 1));
        current_worker::with_shown(|shown| {
            part.run(shown, forks);
            running::show_again(shown);
        });
        DEPTH.with(|cell| cell.set(depth));
    });
}

/// Returns the facts that are known without the item.
fn waiter() -> TakeBackCase {
    let depth = DEPTH.with(Cell::get);
    TakeBackCase {
        atomic: context::in_atomic_section(),
        blocking: context::is_blocking(),
        depth,
        // At the top of the stack the waiter starts without such state, as a worker does for its
        // next item.
        stack: if depth > 0 { fork::left() } else { None },
        ..TakeBackCase::default()
    }
}

/// Returns the same of a waiter for whom no worker can come.
fn needy() -> TakeBackCase {
    TakeBackCase { need: true, stack: fork::left(), ..waiter() }
}

/// Takes an instance back: the part that a model checks. `wanted`: see [`LentItem::claim_if`].
pub(crate) fn take_back_if(item: LentItem<'_>, wanted: impl FnOnce(&Job) -> bool) -> bool {
    let Some(running) = item.claim_if(wanted).and_then(|claimed| claimed.run()) else {
        return false;
    };
    run(running);
    true
}

fn allowed(waiter: TakeBackCase, job: &Job) -> bool {
    job.ticket.as_ref().is_some_and(|ticket| at(waiter, ticket).allowed())
}

/// Adds what the ticket says.
fn at(waiter: TakeBackCase, ticket: &Ticket) -> TakeBackCase {
    of_pwq(waiter, Pwq::of(ticket))
}

fn of_pwq(waiter: TakeBackCase, pwq: &Pwq) -> TakeBackCase {
    let (group, pool) = (&pwq.group, pwq.pool);
    TakeBackCase {
        own_pool: current_worker::is_of(group, pool),
        near: current_cpu().is_some_and(|cpu| group.pools[pool].has_cpu(cpu)),
        only_own: !group.soft || group.nice != 0,
        ..waiter
    }
}

/// Runs a started instance on the waiter's stack, as a worker of its pool would: work that the
/// waiter puts off doesn't affect it.
fn run(running: Running) {
    context::at_once(|| run_here(running));
}

fn run_here(running: Running) {
    let depth = DEPTH.with(|depth| depth.replace(depth.get() + 1));
    let _placed = running.ticket().map(Pwq::of).map(|pwq| {
        pwq.counters.taken_back.fetch_add(1, Ordering::Relaxed);
        pwq.group.pools[pwq.pool].placement().enter()
    });
    current_worker::with_shown(|shown| {
        running.run_once(shown, |next| {
            // The waiting items continue.
            running::show_again(shown);
            DEPTH.with(|cell| cell.set(depth));
            next.into_iter().for_each(pwq::requeue);
        });
    });
}
