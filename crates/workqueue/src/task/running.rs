//! An instance that has been started: its run, what surrounds that, and its end.
//!
//! Around each run are its `tracing` span, the record of the thread's running instance, and the
//! check that it left nothing behind. The record is of the innermost instance, if a waiter runs one
//! inside another. Without a subscriber that wants the span this costs one load of `tracing`'s
//! global level when an item is spawned and one when it runs. The check reads two thread-locals
//! before and after.
//!
//! A worker publishes its running instance for the watchdog and the dump. It writes once an item,
//! with plain stores on a cache line of its own, which no other thread writes. A reader that meets
//! a change in progress reads again (a sequence lock). The worker doesn't wait for readers, and
//! reads no clock.

use std::any::Any;
use std::cell::Cell;
use std::marker::PhantomData;
use std::mem;
use std::panic::{self, AssertUnwindSafe, Location};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use corewise_sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};
use corewise_sync::context::{Leak, Standing};
use corewise_sync::{Completion, hint, per_thread, text, thread, time};
use tracing::{Level, Span};

use crate::error::{quietly, shielded};
use crate::task::claim::Claimed;
use crate::task::header::{self, Header, ItemRef, Job, Table, log_panic};
use crate::task::state::{FinishResult, Snapshot, WorkState};
use crate::task::ticket::{DeferredEnds, Event, MaybeTicket, Ticket};

per_thread! {
    static CURRENT: Cell<*const Running> = Cell::new(ptr::null());
}

/// The spans' target and level: what a subscriber has to let through to see them.
macro_rules! wanted {
    () => {
        tracing::span_enabled!(target: "corewise_workqueue", Level::TRACE)
    };
}

/// The span that a closure or future was spawned in. Holding it keeps it open.
pub(crate) struct Spawner(Option<Box<Span>>);

impl Spawner {
    /// Returns the calling thread's span, if a subscriber wants it.
    #[inline]
    pub(crate) fn current() -> Spawner {
        if wanted!() { Spawner::look() } else { Spawner(None) }
    }

    #[cold]
    fn look() -> Spawner {
        let span = Span::current();
        Spawner((!span.is_none()).then(|| Box::new(span)))
    }

    pub(crate) fn span(&self) -> Option<&Span> {
        self.0.as_deref()
    }
}

/// An instance that has been started.
pub(crate) struct Running {
    item: ItemRef,
    /// The item's table.
    pub(crate) table: &'static Table,
    pub(crate) job: Job,
    /// The instance that waits for this one, further up the same stack.
    pub(crate) outer: Cell<*const Running>,
    /// The lane in which it offers its forks.
    pub(crate) forks: Cell<ForksTo>,
}

/// The place where an instance offers its forks: addresses that only the forks' owner dereferences.
#[derive(Clone, Copy)]
pub(crate) struct ForksTo {
    /// Its queue; null until it forks, and if it offers nothing.
    pub(crate) queue: *const (),
    /// The lane of its worker.
    pub(crate) lane: *const (),
}

impl ForksTo {
    const NOBODY: ForksTo = ForksTo { queue: ptr::null(), lane: ptr::null() };
}

impl Running {
    #[inline]
    pub(crate) fn new(item: ItemRef, job: Job) -> Running {
        hint::reads(&item.header().table);
        let (outer, forks) = (Cell::new(ptr::null()), Cell::new(ForksTo::NOBODY));
        Running { table: item.header().table, item, job, outer, forks }
    }

    /// Returns true if this item runs. An item that is alone never counts: its memory may be
    /// another's by now.
    pub(crate) fn is(&self, item: &Header) -> bool {
        !self.table.alone && ptr::eq(self.item.pointer().as_ptr(), item)
    }

    /// Returns its header, by a pointer to all of the item.
    pub(crate) fn pointer(&self) -> NonNull<Header> {
        self.item.pointer()
    }

    /// Returns its header if the item may have waiters.
    pub(crate) fn known(&self) -> Option<NonNull<Header>> {
        (!self.table.alone).then(|| self.item.pointer())
    }

    /// Returns the header of the run of a stolen fork.
    pub(crate) fn stolen(&self) -> Option<NonNull<Header>> {
        self.table.stolen.then(|| self.item.pointer())
    }

    /// Returns the ticket that counts it in the queue it was queued on.
    #[inline]
    pub(crate) fn ticket(&self) -> Option<&Ticket> {
        self.job.ticket.as_ref()
    }

    /// Returns the description of it that is shown while it runs.
    #[inline]
    pub(crate) fn label(&self) -> Label {
        self.job.label(self.table)
    }

    /// Returns the name of the user's function, for reports.
    pub(crate) fn name(&self) -> &'static str {
        (self.table.name)()
    }

    /// Counts that the instance runs away from its home pod.
    pub(crate) fn overflowed(&self) {
        self.note(Event::Overflowed);
    }

    fn note(&self, what: Event) {
        self.ticket().into_iter().for_each(|ticket| ticket.note(what));
    }

    /// Runs the instance, and each one that is handed over meanwhile, showing each. Never unwinds.
    /// Returns how many instances ran. `carry` is the worker's, and is empty or of the same pair. A
    /// worker's loop calls this by reference, so that nothing is copied; the caller drops the rest.
    #[inline(always)]
    pub(crate) fn run(&mut self, shown: &Publication, carry: Option<&DeferredEnds>) -> u64 {
        self.run_only(shown);
        // One that is alone is used up.
        let mut last = false;
        if !self.table.alone {
            // Finish in the common case: no thread waits or looks, and nothing was handed over.
            let Some(is_last) = self.item.header().state.finish_quickly() else {
                // An instance handed over may be of another queue.
                carry.inspect(|carry| carry.stops());
                return self.finish_slowly(shown);
            };
            last = is_last;
        }
        shown.ends();
        // SAFETY: the instance is over, and doesn't touch the item again.
        self.table.give_up(unsafe { self.take_hold() }, last);
        // Last: after a flush of the queue the instance is over in every respect.
        let ticket = self.job.ticket.take();
        if let Some(carry) = carry {
            carry.ends(ticket);
        }
        1
    }

    /// Takes the hold out.¶# Safety¶The item isn't touched by way of this any more.
    #[inline]
    unsafe fn take_hold(&mut self) -> ItemRef {
        // SAFETY: the hold is the instance's, and given up here once.
        unsafe { ItemRef::kept(self.item.pointer()) }
    }

    /// Finishes `run`, once the instance has run.
    #[cold]
    fn finish_slowly(&mut self, shown: &Publication) -> u64 {
        let job = Job { ticket: self.job.ticket.take(), site: self.job.site };
        // SAFETY: the caller drops the rest.
        let item = unsafe { self.take_hold() };
        let (mut running, mut ran) = (Running::new(item, job), 1);
        loop {
            // This comes before the end of this instance, which may let others through: no thread
            // should wait for the claim meanwhile.
            let next = running.finish(true, shown, |next| next.map(Claimed::restart));
            let Some(next) = next else { return ran };
            running = next;
            running.run_only(shown);
            ran += 1;
        }
    }

    /// Runs the instance on the stack of a waiter. Never unwinds. If an instance was handed over
    /// meanwhile, it is the caller's, and `then` is called with it; after that, this instance gives
    /// its holds up.
    pub(crate) fn run_once(mut self, shown: &Publication, then: impl FnOnce(Option<Claimed>)) {
        if self.table.alone {
            // Its run uses it up, and ends it.
            self.run(shown, None);
            return then(None);
        }
        self.run_only(shown);
        self.finish(false, shown, then);
    }

    /// Runs the instance, and doesn't end it.
    #[inline(always)]
    fn run_only(&self, shown: &Publication) {
        shown.starts(self.label());
        let timed = self.ticket().is_some_and(|ticket| ticket.home().timed);
        let ran = if timed { self.run_timed() } else { self.call() };
        if let Err(payload) = ran {
            self.panicked(payload);
        }
    }

    /// Counts how long that takes.
    #[cold]
    fn run_timed(&self) -> thread::Result<()> {
        let began = time::now();
        let ran = self.call();
        self.note(Event::Took(time::now().duration_since(began)));
        ran
    }

    #[cold]
    fn panicked(&self, payload: Box<dyn Any + Send>) {
        shielded("dropping the panic payload of a work item", || {
            if self.table.alone {
                log_panic(self.name(), payload);
            } else {
                self.item.panicked(payload);
            }
        });
    }

    /// Ends the instance, which has run. `then` is called with the instance that was handed over,
    /// before this one gives its holds up.
    fn finish<R>(
        self,
        stays: bool,
        shown: &Publication,
        then: impl FnOnce(Option<Claimed>) -> R,
    ) -> R {
        let Running { item, table, job, .. } = self;
        let (FinishResult { again, last }, ended) = item.finish(stays);
        // From here on the item may be gone, unless the next instance is the caller's.
        header::wake(ended);
        if !(again && stays) {
            shown.ends();
        }
        let next = again.then(|| Claimed(item.pointer()));
        let then = then(next);
        table.give_up(item, last);
        // Last: after a flush of the queue the instance is over in every respect.
        drop(job.ticket);
        then
    }

    /// Calls the user's function, once. An error is what it panicked with. Anything that it left
    /// behind is reported, and the thread's standing restored.
    #[inline(always)]
    fn call(&self) -> thread::Result<()> {
        let standing = Standing::now();
        let _current = enter(self);
        // The subscriber's code is in here too: if it panics, that is the item's panic.
        let result = panic::catch_unwind(AssertUnwindSafe(|| {
            // The subscriber may panic before the call.
            let unused = UncalledInstance(self);
            if wanted!() {
                return self.call_in_span(unused);
            }
            mem::forget(unused);
            // SAFETY: the instance has been started, and this is its run. If the item is alone, it
            // exists until now, and no thread touches it after.
            unsafe { self.item.run(self.table) }
        }));
        if let Some(leak) = standing.restore() {
            self.report(leak);
        }
        result
    }

    #[cold]
    fn report(&self, leak: Leak) {
        quietly(|| {
            tracing::error!(
                target: "corewise_workqueue",
                queue = self.job.queue_name(),
                function = %text::name(self.name()),
                site = %self.job.site,
                "a work item changed its thread's context, which is reset now: {leak}"
            );
        });
    }

    #[cold]
    fn call_in_span(&self, unused: UncalledInstance<'_>) {
        // Kept open: the item may be gone when it has run.
        let spawner = self.item.spawner().cloned();
        let parent = spawner.as_ref().and_then(Span::id);
        let span = tracing::trace_span!(
            target: "corewise_workqueue",
            parent: parent,
            "run",
            queue = self.job.queue_name(),
            function = %text::name(self.name()),
            site = %self.job.site,
        );
        span.in_scope(|| {
            mem::forget(unused);
            // SAFETY: as in `call`.
            unsafe { self.item.run(self.table) }
        });
    }
}

/// A closure of a scope that an item has opened. It runs once, inside that item or a helper.
pub(crate) struct ScopePart {
    item: ItemRef,
    site: &'static Location<'static>,
}

impl ScopePart {
    /// Makes a part of an item that lives in an `Arc`, and whose state word is unused.
    pub(crate) fn new(item: ItemRef, site: &'static Location<'static>) -> ScopePart {
        ScopePart { item, site }
    }

    /// Runs the part inside the item that runs on the calling thread. If `forks`, it offers forks
    /// in that item's lane. Never unwinds. The caller [shows](show_again) the outer item again.
    pub(crate) fn run(self, shown: &Publication, forks: bool) {
        let (ticket, outer) = current(|outer| {
            let outer = outer.expect("a part runs inside of an item");
            // SAFETY: it is forgotten below, while the outer item still has its own.
            let ticket = outer.ticket().map(|ticket| unsafe { Ticket::new(ticket.spot()) });
            (ticket, outer.forks.get())
        });
        let ticket = ticket.map_or(MaybeTicket::none(), MaybeTicket::from);
        let table = self.item.header().table;
        let mut running = Running::new(self.item, Job { ticket, site: self.site });
        if forks {
            running.forks.set(outer);
        }
        running.run_only(shown);
        shown.ends();
        mem::forget(running.job.ticket.take());
        // SAFETY: the part is over, and `running` is not used again.
        table.give_up(unsafe { running.take_hold() }, true);
    }
}

/// An instance whose function wasn't called yet. Dropped if a panic comes before the call.
struct UncalledInstance<'a>(&'a Running);

impl Drop for UncalledInstance<'_> {
    #[cold]
    fn drop(&mut self) {
        let Running { item, table, .. } = self.0;
        if table.alone {
            // SAFETY: it wasn't used up, and isn't touched any more.
            let item = unsafe { ItemRef::kept(item.pointer()) };
            table.give_up(item, true);
        }
    }
}

/// Marks the instance as running on this thread until the guard is dropped.
#[inline]
fn enter(running: &Running) -> Guard<'_> {
    let outer = CURRENT.with(|c| c.replace(running));
    running.outer.set(outer);
    Guard { outer, running: PhantomData }
}

/// Restores what ran before. Borrows its instance, and belongs to its thread (it holds a pointer,
/// so it isn't `Send`). It stays in the frame that made it, is not forgotten, and guards end in
/// reverse order.
struct Guard<'a> {
    outer: *const Running,
    running: PhantomData<&'a Running>,
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        CURRENT.with(|c| c.set(self.outer));
    }
}

/// Shows the instance that runs on this thread again, after one that ran inside it has ended.
pub(crate) fn show_again(shown: &Publication) {
    current(|outer| {
        if let Some(running) = outer {
            shown.starts(running.label());
        }
    });
}

/// Calls `see` with the instance that runs on this thread; `None` off the workers, and between
/// items.
pub(crate) fn current<R>(see: impl FnOnce(Option<&Running>) -> R) -> R {
    // On a thread that is about to end nothing runs.
    let running = CURRENT.try_with(Cell::get).unwrap_or(ptr::null());
    // SAFETY: if it isn't null, a guard on this thread borrows the instance, and is alive: it would
    // have put the former pointer back else. `see` runs inside that guard's frame, so it is
    // outlived.
    see(unsafe { running.as_ref() })
}

/// Returns true if any instance that runs on this thread's stack is `wanted`: the innermost, which
/// is shown first, or those that wait for it further up.
pub(crate) fn any_here(mut wanted: impl FnMut(&Running) -> bool) -> bool {
    let mut next = CURRENT.try_with(Cell::get).unwrap_or(ptr::null());
    // SAFETY: as in `current`; what an instance runs inside of outlives it.
    while let Some(running) = unsafe { next.as_ref() } {
        if wanted(running) {
            return true;
        }
        next = running.outer.get();
    }
    false
}

impl ItemRef {
    /// Carries out Finish: the running instance is over. Returns also the waiters to notify.
    pub(crate) fn finish(&self, stays: bool) -> (FinishResult, Vec<Arc<Completion>>) {
        self.end(true, |state, now| state.finish(now, stays))
    }

    /// Carries out Cancel: the claimed instance is over. Returns whether the caller frees the item,
    /// and the waiters to notify. If an earlier instance runs, its end notifies them.
    pub(crate) fn cancel(&self) -> (bool, Vec<Arc<Completion>>) {
        self.end(false, WorkState::cancel)
    }

    /// `end` is tried with the word as it is once no thread looks and the waiters are collected.
    /// `ran`: it is the running instance that ends.
    fn end<R>(
        &self,
        ran: bool,
        end: impl Fn(&WorkState, Snapshot) -> Option<R>,
    ) -> (R, Vec<Arc<Completion>>) {
        let state = &self.header().state;
        let mut ended = Vec::new();
        loop {
            state.outwait_lookers();
            let mut now = state.snapshot();
            if now.has_flushers() && (ran || !now.running()) {
                // Collect.
                let aside = self.lent().aside().expect("the waiter has found it");
                now = aside.flushers.collect(state, ran, &mut ended);
            }
            if let Some(end) = end(state, now) {
                return (end, ended);
            }
        }
    }
}

/// The description of an item. All of it lives forever.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Label {
    /// Gives the name of its function.
    pub(crate) name: fn() -> &'static str,
    /// The place where it was queued.
    pub(crate) site: &'static Location<'static>,
    /// Number of its queue; 0 if it has none.
    pub(crate) queue: u64,
}

/// A worker's running instance, as it was read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunSnapshot {
    pub(crate) label: Label,
    /// Number of the instance, among all that the worker has started.
    pub(crate) instance: u64,
}

/// The place where a worker publishes its running instance.
#[derive(Debug)]
pub(crate) struct Publication {
    /// A: twice the instances started, and odd while the fields below change.
    turn: AtomicU64,
    /// A: a `&'static Location`, or null while nothing runs.
    site: AtomicPtr<Location<'static>>,
    /// A: a `fn() -> &'static str`, or null before the first.
    name: AtomicPtr<()>,
    /// A: the queue's number.
    queue: AtomicU64,
}

impl Publication {
    pub(crate) fn new() -> Self {
        Publication {
            turn: AtomicU64::new(0),
            site: AtomicPtr::new(ptr::null_mut()),
            name: AtomicPtr::new(ptr::null_mut()),
            queue: AtomicU64::new(0),
        }
    }

    /// Publishes that an instance starts. Only the worker itself calls it.
    #[inline]
    pub(crate) fn starts(&self, label: Label) {
        let turn = self.turn.load(Ordering::Relaxed);
        self.turn.store(turn.wrapping_add(1), Ordering::Relaxed);
        // Release: a thread that reads one of the stores below, and then fences, sees the odd turn.
        fence(Ordering::Release);
        self.site.store(ptr::from_ref(label.site).cast_mut(), Ordering::Relaxed);
        self.name.store(label.name as *mut (), Ordering::Relaxed);
        self.queue.store(label.queue, Ordering::Relaxed);
        // Release pairs with the Acquire in `read`: with this turn comes all of the above.
        self.turn.store(turn.wrapping_add(2), Ordering::Release);
    }

    /// Returns how many instances were started. Only the worker itself calls it.
    pub(crate) fn started(&self) -> u64 {
        self.turn.load(Ordering::Relaxed) / 2
    }

    /// Publishes that the instance is over. Only the worker itself calls it.
    #[inline]
    pub(crate) fn ends(&self) {
        self.site.store(ptr::null_mut(), Ordering::Relaxed);
    }

    /// Returns the instance that ran a moment ago. Returns `None` if there was none, or if it
    /// changes all the time.
    pub(crate) fn read(&self) -> Option<RunSnapshot> {
        for _ in 0..8 {
            let turn = self.turn.load(Ordering::Acquire);
            let site = self.site.load(Ordering::Relaxed);
            let name = self.name.load(Ordering::Relaxed);
            let queue = self.queue.load(Ordering::Relaxed);
            // Acquire pairs with the Release fence in `starts`.
            fence(Ordering::Acquire);
            if turn % 2 != 0 || self.turn.load(Ordering::Relaxed) != turn {
                corewise_sync::hint::spin_loop();
                continue;
            }
            if site.is_null() || name.is_null() {
                return None;
            }
            // SAFETY: not null, and only `starts` stores others: pointers of `&'static Location`s.
            let site: &'static Location<'static> = unsafe { &*site };
            // SAFETY: not null, so it is what `starts` stored: a pointer of just this type.
            let name = unsafe { std::mem::transmute::<*mut (), fn() -> &'static str>(name) };
            return Some(RunSnapshot { label: Label { name, site, queue }, instance: turn / 2 });
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::panic::Location;

    use super::*;
    use crate::handle::work::Work;
    use crate::task::claim::Container;
    use crate::task::header::Queued;
    use crate::task::ticket::MaybeTicket;

    #[test]
    fn without_a_subscriber_nothing_is_kept_of_the_spawner_s_span() {
        let _span = tracing::error_span!("spawner").entered();
        assert!(Spawner::current().span().is_none());
        assert_eq!(size_of::<Spawner>(), size_of::<usize>());
    }

    fn pend(work: &Work, place: Container) -> Queued {
        assert!(work.header().state.pend().is_ok());
        work.header().set_place(place);
        let item = work.hold();
        // SAFETY: `pend` succeeded just now.
        unsafe { Queued::new(item, Job { ticket: MaybeTicket::none(), site: Location::caller() }) }
    }

    fn until_flushers_are(work: &Work, n: usize) {
        while work.aside().flushers.len() != n {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_cancelled_instance_ends_no_flush_that_waits_for_the_running_one() {
        let work = Work::new(|| ());
        let mut first = pend(&work, Container::Listed).start().expect("nobody runs it");
        std::thread::scope(|scope| {
            let mut flushes = vec![scope.spawn(|| work.flush())];
            until_flushers_are(&work, 1);
            let second = pend(&work, Container::Held);
            flushes.push(scope.spawn(|| work.flush()));
            until_flushers_are(&work, 2);
            drop(second);
            assert_eq!(work.aside().flushers.len(), 2, "the first instance still runs");
            first.run(&Publication::new(), None);
            assert!(flushes.into_iter().all(|flush| flush.join().unwrap()));
        });
        assert!(!work.flush(), "nothing is left to wait for");
    }

    #[test]
    fn a_flush_waits_for_what_runs_and_not_for_a_delay() {
        let work = Work::new(|| ());
        let mut first = pend(&work, Container::Listed).start().expect("nobody runs it");
        let delayed = pend(&work, Container::Timer);
        std::thread::scope(|scope| {
            let flush = scope.spawn(|| work.flush());
            until_flushers_are(&work, 1);
            first.run(&Publication::new(), None);
            assert!(flush.join().unwrap());
        });
        assert!(work.is_pending() && !work.flush(), "its delay isn't over");
        drop(delayed);
    }
}

#[cfg(test)]
mod publication_tests {
    use super::*;
    use std::sync::Arc;

    fn label(queue: u64) -> Label {
        Label { name: std::any::type_name::<u8>, site: Location::caller(), queue }
    }

    #[test]
    fn a_running_item_is_shown_until_it_ends() {
        let shown = Publication::new();
        assert!(shown.read().is_none());
        shown.starts(label(7));
        let seen = shown.read().expect("it runs");
        assert_eq!(((seen.label.name)(), seen.label.queue, seen.instance), ("u8", 7, 1));
        assert_eq!(seen.label.site.file(), file!());
        shown.ends();
        assert!(shown.read().is_none());
        shown.starts(label(8));
        assert_eq!(shown.read().map(|seen| seen.instance), Some(2));
    }

    #[test]
    fn a_reader_never_mixes_two_instances() {
        let shown = Arc::new(Publication::new());
        let worker = {
            let shown = Arc::clone(&shown);
            std::thread::spawn(move || {
                let names: [fn() -> &'static str; 2] = [|| "even", || "odd"];
                for n in 1..20_000_u64 {
                    let name = names[usize::from(n % 2 == 1)];
                    shown.starts(Label { name, ..label(n) });
                }
                shown.ends();
            })
        };
        while !worker.is_finished() {
            if let Some(seen) = shown.read() {
                assert_eq!(seen.label.queue, seen.instance);
                assert_eq!((seen.label.name)() == "odd", seen.instance % 2 == 1);
            }
        }
        worker.join().unwrap();
    }
}
