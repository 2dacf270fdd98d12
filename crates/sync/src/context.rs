//! The execution context of a thread: whether it may block here, which observer learns of that, and
//! where the running task was placed.
//!
//! * An **atomic section** is a stretch in which the thread must not block: a call handler, a
//!   completion handler, a dispatch. It maps the kernel's "interrupts off" to user space.
//!   [`might_block`] reports a call that may block inside one, with both sites: always counted, and
//!   in builds with debug assertions also logged and kept (the kernel's `might_sleep`).
//! * A **blocking region** ([`blocking`]) is the opposite: the thread announces that it is about to
//!   block, so that its worker pool starts other work meanwhile.
//! * The **placement token** ([`Placement`]) records where the running task was placed, so that it
//!   isn't placed a second time. "Am I on some worker?" is the wrong question: a worker of another
//!   kind proves nothing about placement.
//!
//! * [`Standing`] is the thread's whole context: taken before foreign code is called and compared
//!   afterwards, it finds what that code left behind.
//!
//! Everything here is per thread: no function blocks, and each guard belongs to the thread that
//! made it.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;
use std::ptr;
use std::rc::Rc;

use crate::facade::backend::per_thread;

per_thread! {
    static SECTION: Cell<Option<Site>> = Cell::new(None);
    static VIOLATIONS: Cell<u64> = Cell::new(0);
    static LAST: Cell<Option<Violation>> = Cell::new(None);
    static OBSERVER: RefCell<Option<Rc<dyn BlockingObserver>>> = RefCell::new(None);
    static BLOCKING: Cell<u32> = Cell::new(0);
    /// O: the function to call before the thread blocks.
    static BEFORE: Cell<Option<fn()>> = Cell::new(None);
    /// O: the way in which the thread defers work; 0: it doesn't.
    static PUTS_OFF: Cell<u32> = Cell::new(0);
    /// O: the nesting depth of parts that may take long.
    static LONG: Cell<u32> = Cell::new(0);
    static PLACEMENT: Cell<Option<Placement>> = Cell::new(None);
}

/// A place in the source, and the operation there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// The operation, in a word or two: `"call handler"`, `"Completion::wait"`.
    pub what: &'static str,
    /// Its place.
    pub location: &'static Location<'static>,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.what, self.location)
    }
}

/// A call that may block, made inside an atomic section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Violation {
    /// The call that may block.
    pub blocked: Site,
    /// The innermost atomic section around it.
    pub section: Site,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} may block inside the atomic section {}", self.blocked, self.section)
    }
}

/// A stretch in which this thread must not block; ends when dropped. Sections nest: the guard made
/// last is dropped first (as with the other guards here; each restores what it found).
#[derive(Debug)]
#[must_use = "the section ends when the guard is dropped"]
pub struct AtomicSection {
    outer: Option<Site>,
    not_send: PhantomData<*const ()>,
}

impl AtomicSection {
    /// Enters a section; `what` and the caller's location name it in reports.
    #[track_caller]
    pub fn enter(what: &'static str) -> AtomicSection {
        AtomicSection::enter_for(Site { what, location: Location::caller() })
    }

    /// Enters a section, for a loop that runs items of others: `site` names one of the items, and
    /// the place where it was passed in.
    pub fn enter_for(site: Site) -> AtomicSection {
        AtomicSection { outer: SECTION.with(|s| s.replace(Some(site))), not_send: PhantomData }
    }
}

impl Drop for AtomicSection {
    fn drop(&mut self) {
        SECTION.with(|s| s.set(self.outer));
    }
}

/// Returns true if this thread is inside an atomic section.
pub fn in_atomic_section() -> bool {
    SECTION.with(|s| s.get().is_some())
}

/// Returns true if this thread is in no atomic section and [defers nothing](puts_off).
#[inline]
pub fn is_plain() -> bool {
    !in_atomic_section() && puts_off() == 0
}

/// Announces that the caller may block. Inside an atomic section this is a [`Violation`]: it is
/// counted, and with debug assertions also logged (`tracing::error!`) and kept for
/// [`take_violation`]. It never panics: the caller continues, and blocks.
#[track_caller]
pub fn might_block(what: &'static str) {
    if let Some(section) = SECTION.with(Cell::get) {
        report(Violation { blocked: Site { what, location: Location::caller() }, section });
    }
}

#[cold]
fn report(violation: Violation) {
    VIOLATIONS.with(|n| n.set(n.get() + 1));
    if cfg!(debug_assertions) {
        LAST.with(|last| last.set(Some(violation)));
        tracing::error!("{violation}");
    }
}

/// Returns the number of this thread's violations.
pub fn violations() -> u64 {
    VIOLATIONS.with(Cell::get)
}

/// Takes this thread's last violation. Kept only in builds with debug assertions.
pub fn take_violation() -> Option<Violation> {
    LAST.with(Cell::take)
}

/// An observer of a thread that is about to block and that continues: by it, a worker pool learns
/// that it may start other work. The calls come in pairs and don't nest.
pub trait BlockingObserver {
    /// Handles a thread that is about to block.
    fn begin(&self);
    /// Handles a thread that continues.
    fn end(&self);
    /// Handles a thread that begins something long, of which it isn't known whether it computes or
    /// sleeps. A wait inside is reported as everywhere, so the regions nest. By default like
    /// [`begin`](BlockingObserver::begin).
    fn begin_long(&self) {
        self.begin();
    }
    /// Handles the end of something long.
    fn end_long(&self) {
        self.end();
    }
}

/// Makes `observer` this thread's observer until the guard is dropped. For worker loops. A thread
/// that is ending, whose thread-locals are being destroyed, can't have an observer.
pub fn observe(observer: Rc<dyn BlockingObserver>) -> ObserverGuard {
    let outer = OBSERVER.try_with(|o| o.borrow_mut().replace(observer)).ok().flatten();
    ObserverGuard { outer, not_send: PhantomData }
}

/// Restores the thread's former observer when dropped.
#[must_use = "the observer is removed when the guard is dropped"]
pub struct ObserverGuard {
    outer: Option<Rc<dyn BlockingObserver>>,
    not_send: PhantomData<*const ()>,
}

impl fmt::Debug for ObserverGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ObserverGuard")
    }
}

impl Drop for ObserverGuard {
    fn drop(&mut self) {
        let outer = self.outer.take();
        // Dropped after the borrow: an observer's destructor may access the observer.
        drop(OBSERVER.try_with(|o| std::mem::replace(&mut *o.borrow_mut(), outer)));
    }
}

/// Runs `f`, which is expected to block, on this thread: files, sockets, a `Mutex` that is held for
/// long, a call into another library. On a worker, the pool learns of the beginning, so that it can
/// start other work, and of the end. Regions nest, and only the outermost one is reported.
/// Elsewhere it just runs `f`. The waits of Corewise do this by themselves. Nothing moves to
/// another thread (unlike with tokio's `block_in_place`), so thread-locals and the placement stay.
/// Inside an atomic section this is a violation with the name `what`, as with [`might_block`], and
/// `f` runs all the same.
#[track_caller]
pub fn blocking<R>(what: &'static str, f: impl FnOnce() -> R) -> R {
    might_block(what);
    blocking_reported(f)
}

/// Runs `f` like [`blocking`], for a caller that has called [`might_block`] already: one wait is
/// one violation.
pub fn blocking_reported<R>(f: impl FnOnce() -> R) -> R {
    let _region = Region::enter();
    f()
}

/// Runs `f`, which may compute or sleep for long, on this thread. On a worker the pool learns of
/// it, so that others start beside it; blocking calls inside are reported to it, too, if they
/// announce themselves. Inside a blocking region or another one of these it just runs `f`. Inside
/// an atomic section this is a violation, as with [`might_block`]. The kernel's counterpart is a
/// work item of a queue that is `WQ_CPU_INTENSIVE`.
#[track_caller]
pub fn long_running<R>(what: &'static str, f: impl FnOnce() -> R) -> R {
    might_block(what);
    let _long = Long::enter();
    f()
}

struct Long {
    told: Option<Rc<dyn BlockingObserver>>,
}

impl Long {
    fn enter() -> Long {
        let depth = LONG.with(|d| d.replace(d.get() + 1));
        let told = if depth == 0 && !is_blocking() { observer() } else { None };
        if let Some(observer) = &told {
            observer.begin_long();
        }
        Long { told }
    }
}

impl Drop for Long {
    fn drop(&mut self) {
        LONG.with(|d| d.set(d.get() - 1));
        if let Some(observer) = &self.told {
            observer.end_long();
        }
    }
}

/// Returns true if this thread is inside a blocking region: its pool, if it has one, counts it as
/// blocked.
pub fn is_blocking() -> bool {
    BLOCKING.with(|depth| depth.get() > 0)
}

/// Returns true if this thread has an observer: a pool that could start other work while it blocks.
pub fn is_observed() -> bool {
    OBSERVER.try_with(|o| o.borrow().is_some()).unwrap_or(false)
}

/// Sets the function that is called once, on this thread, when it next enters a blocking region;
/// `None` removes it. It is for deferred work that others may wait for, as the kernel's plug is.
/// There is one such function. If `f` sets another one, that is called too before the thread
/// blocks.
pub fn before_blocking(f: Option<fn()>) {
    BEFORE.with(|before| before.set(f));
}

/// Returns how this thread defers work, for which [`before_blocking`] is: a word of the crate that
/// does so, which counts its guards in it; 0 if the thread defers nothing.
#[inline]
pub fn puts_off() -> u32 {
    PUTS_OFF.with(Cell::get)
}

/// Sets the value of [`puts_off`], and returns the old one.
#[inline]
pub fn set_puts_off(word: u32) -> u32 {
    PUTS_OFF.with(|puts_off| puts_off.replace(word))
}

/// Runs `f`, which may be foreign, as on a thread that [defers nothing](puts_off). All deferred
/// work of this thread is done before: `f` may wait for it.
pub fn at_once<R>(f: impl FnOnce() -> R) -> R {
    struct Restore(u32);
    impl Drop for Restore {
        fn drop(&mut self) {
            set_puts_off(self.0);
        }
    }
    let _restore = Restore(set_puts_off(0));
    do_before();
    f()
}

fn do_before() {
    // Its work may defer more.
    while let Some(before) = BEFORE.with(Cell::take) {
        before();
    }
}

struct Region {
    told: Option<Rc<dyn BlockingObserver>>,
}

impl Region {
    fn enter() -> Region {
        // At once: work that it begins may begin more when it ends, and so on for ever.
        if BEFORE.with(Cell::get).is_some() {
            at_once(|| ());
        }
        let depth = BLOCKING.with(|d| d.replace(d.get() + 1));
        let told = if depth == 0 { observer() } else { None };
        if let Some(observer) = &told {
            observer.begin();
        }
        Region { told }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        BLOCKING.with(|d| d.set(d.get() - 1));
        if let Some(observer) = &self.told {
            observer.end();
        }
    }
}

/// The place where the running task was put. Code that would place it again sees the token and runs
/// inline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Placement {
    /// The NUMA node, if it is known.
    pub node: Option<u32>,
    /// The pod of its worker pool, in the numbering of that pool's affinity scope.
    pub pod: Option<u32>,
}

impl Placement {
    /// Returns the token of the task that runs on this thread; `None`: it wasn't placed.
    pub fn current() -> Option<Placement> {
        PLACEMENT.with(Cell::get)
    }

    /// Makes this the token of the code that runs on this thread, until the guard is dropped.
    pub fn enter(self) -> PlacementGuard {
        PlacementGuard { outer: PLACEMENT.with(|p| p.replace(Some(self))), not_send: PhantomData }
    }
}

/// Restores the former token when dropped.
#[derive(Debug)]
#[must_use = "the token is removed when the guard is dropped"]
pub struct PlacementGuard {
    outer: Option<Placement>,
    not_send: PhantomData<*const ()>,
}

impl Drop for PlacementGuard {
    fn drop(&mut self) {
        PLACEMENT.with(|p| p.set(self.outer));
    }
}

/// Context of a thread: its atomic section, its nesting depth of blocking regions, and whether it
/// defers work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Standing {
    section: Option<Site>,
    blocking: u32,
    puts_off: u32,
}

/// Context that a call left behind: a guard that it forgot (`std::mem::forget`) or kept alive
/// somewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leak {
    /// The atomic section that it left the thread in.
    pub section: Option<Site>,
    /// Number of blocking regions that it entered and didn't leave. Negative: it left regions that
    /// it hadn't entered.
    pub blocking: i64,
    /// True if it left the thread deferring work, or with fewer deferring guards than before: a
    /// plug of a block queue was not dropped. The work is done now.
    pub puts_off: bool,
}

impl Standing {
    /// Returns the calling thread's context. Cheap: three thread-local reads.
    #[inline]
    pub fn now() -> Standing {
        Standing {
            section: SECTION.with(Cell::get),
            blocking: BLOCKING.with(Cell::get),
            puts_off: puts_off(),
        }
    }

    /// Compares this with the calling thread's context, restores this one if they differ, and
    /// returns the difference. If the thread no longer blocks, the worker pool learns of it.
    #[inline]
    pub fn restore(self) -> Option<Leak> {
        let now = Standing::now();
        if now.is(self) { None } else { Some(self.restore_from(now)) }
    }

    /// Returns true if both are the same, by address: equal texts in two places aren't compared.
    #[inline]
    fn is(self, other: Standing) -> bool {
        let place = |site: Site| (site.what.as_ptr(), ptr::from_ref(site.location));
        self.section.map(place) == other.section.map(place)
            && (self.blocking, self.puts_off) == (other.blocking, other.puts_off)
    }

    #[cold]
    fn restore_from(self, now: Standing) -> Leak {
        SECTION.with(|s| s.set(self.section));
        BLOCKING.with(|d| d.set(self.blocking));
        if self.blocking == 0 && now.blocking > 0 {
            if let Some(observer) = observer() {
                observer.end();
            }
        }
        set_puts_off(self.puts_off);
        if self.puts_off == 0 {
            do_before();
        }
        Leak {
            section: if now.section == self.section { None } else { now.section },
            blocking: i64::from(now.blocking) - i64::from(self.blocking),
            puts_off: now.puts_off != self.puts_off,
        }
    }
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.section, self.blocking) {
            (None, 0) if self.puts_off => return f.write_str("a plug was not dropped"),
            (Some(section), 0) => write!(f, "the atomic section '{section}' was not left"),
            (None, 0) => f.write_str("an atomic section around it was ended"),
            (Some(section), n) => {
                write!(f, "the atomic section '{section}' and {n} blocking regions were not left")
            }
            (None, n) => write!(f, "{n} blocking regions were not left"),
        }?;
        f.write_str(if self.puts_off { ", a plug was not dropped" } else { "" })
    }
}

/// Returns this thread's observer. A thread that is about to end may have dropped its slot already;
/// it has none then.
fn observer() -> Option<Rc<dyn BlockingObserver>> {
    OBSERVER.try_with(|o| o.borrow().clone()).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Log(RefCell<Vec<&'static str>>);

    impl BlockingObserver for Log {
        fn begin(&self) {
            self.0.borrow_mut().push("begin");
        }
        fn end(&self) {
            self.0.borrow_mut().push("end");
        }
        fn begin_long(&self) {
            self.0.borrow_mut().push("begin long");
        }
        fn end_long(&self) {
            self.0.borrow_mut().push("end long");
        }
    }

    #[test]
    fn a_long_running_part_is_reported_once_and_so_is_a_blocking_region_inside() {
        let log = Rc::new(Log(RefCell::default()));
        let _observed = observe(log.clone());
        long_running("outer", || {
            long_running("inner", || blocking("a read", || long_running("in a region", || ())));
        });
        assert_eq!(*log.0.borrow(), ["begin long", "begin", "end", "end long"]);
        let panicked = std::panic::catch_unwind(|| long_running("one that panics", || panic!("x")));
        assert!(panicked.is_err());
        assert_eq!(log.0.borrow()[4..], ["begin long", "end long"]);
    }

    #[test]
    fn context_that_a_call_left_behind_is_named_and_restored() {
        let before = Standing::now();
        assert_eq!(before.restore(), None, "nothing was left");
        std::mem::forget(AtomicSection::enter("forgotten"));
        let leak = before.restore().expect("a section was left behind");
        assert_eq!(leak.section.map(|site| site.what), Some("forgotten"));
        assert!(leak.to_string().contains("'forgotten at "), "{leak}");
        assert!(!in_atomic_section());
    }

    #[test]
    fn a_blocking_region_left_behind_is_ended_for_the_pool_too() {
        let log = Rc::new(Log(RefCell::default()));
        let _observed = observe(log.clone());
        let before = Standing::now();
        std::mem::forget(Region::enter());
        let leak = before.restore().expect("a region was left behind");
        assert_eq!((leak.section, leak.blocking), (None, 1));
        blocking("a later one", || ());
        assert_eq!(*log.0.borrow(), ["begin", "end", "begin", "end"]);
    }

    #[test]
    fn a_section_around_the_call_is_the_caller_s_own_and_stays() {
        let section = AtomicSection::enter("outer");
        let before = Standing::now();
        drop(AtomicSection::enter("inner"));
        assert_eq!(before.restore(), None);
        assert!(in_atomic_section());
        drop(section);
    }

    #[test]
    fn blocking_inside_an_atomic_section_is_reported_with_both_sites() {
        let before = violations();
        {
            let _outer = AtomicSection::enter("outer");
            let _inner = AtomicSection::enter("call handler");
            might_block("lock");
        }
        assert_eq!(violations(), before + 1);
        if cfg!(debug_assertions) {
            let violation = take_violation().unwrap();
            assert_eq!(violation.blocked.what, "lock");
            assert_eq!(violation.section.what, "call handler");
            assert!(violation.to_string().contains("context.rs"));
        }
    }

    #[test]
    fn outside_a_section_nothing_is_reported() {
        drop(AtomicSection::enter("over"));
        might_block("lock");
        assert!(!in_atomic_section());
        assert_eq!(violations(), 0);
        assert_eq!(take_violation(), None);
    }

    #[test]
    fn only_the_outermost_blocking_region_tells_the_observer_also_when_it_panics() {
        let log = Rc::new(Log(RefCell::default()));
        let guard = observe(log.clone());
        assert!(is_observed());
        blocking("outer", || blocking("inner", || ()));
        let panicked = std::panic::catch_unwind(|| blocking("dies", || panic!("on purpose")));
        assert!(panicked.is_err());
        drop(guard);
        blocking("unobserved", || ());
        assert_eq!(*log.0.borrow(), ["begin", "end", "begin", "end"]);
    }

    #[test]
    fn deferred_actions_are_done_once_before_the_thread_blocks() {
        per_thread! {
            static DONE: Cell<u32> = Cell::new(0);
        }
        let put_off = || before_blocking(Some(|| DONE.with(|done| done.set(done.get() + 1))));
        put_off();
        assert_eq!(DONE.with(Cell::get), 0);
        blocking("outer", || assert_eq!(DONE.with(Cell::get), 1));
        blocking("another", || blocking("inner", || ()));
        assert_eq!(DONE.with(Cell::get), 1);
        put_off();
        before_blocking(None);
        blocking("taken back", || ());
        assert_eq!(DONE.with(Cell::get), 1);
    }

    #[test]
    fn what_a_deferred_action_puts_off_again_and_again_keeps_no_thread_from_blocking() {
        fn again() {
            if puts_off() != 0 {
                before_blocking(Some(again));
            }
        }
        set_puts_off(2);
        before_blocking(Some(again));
        blocking("a region", || assert_eq!(puts_off(), 2));
        assert_eq!(at_once(puts_off), 0);
        let panicked = std::panic::catch_unwind(|| at_once(|| panic!("on purpose")));
        assert!(panicked.is_err());
        assert_eq!(set_puts_off(0), 2);
    }

    #[test]
    fn a_call_that_goes_on_putting_things_off_is_found_and_they_are_done() {
        per_thread! {
            static DONE: Cell<u32> = Cell::new(0);
        }
        let before = Standing::now();
        set_puts_off(2);
        before_blocking(Some(|| DONE.with(|done| done.set(done.get() + 1))));
        let leak = before.restore().expect("it puts things off");
        assert_eq!(leak.to_string(), "a plug was not dropped");
        assert_eq!((DONE.with(Cell::get), puts_off()), (1, 0));
    }

    #[test]
    fn an_observer_may_block_while_it_is_dropped() {
        struct Blocks;
        impl BlockingObserver for Blocks {
            fn begin(&self) {}
            fn end(&self) {}
        }
        impl Drop for Blocks {
            fn drop(&mut self) {
                blocking("drop", || ());
            }
        }
        drop(observe(Rc::new(Blocks)));
    }

    #[test]
    fn a_destructor_of_a_thread_that_ends_may_block() {
        struct Blocks;
        impl Drop for Blocks {
            fn drop(&mut self) {
                blocking("drop", || ());
            }
        }
        std::thread_local! {
            static AT_THREAD_END: RefCell<Option<Blocks>> = const { RefCell::new(None) };
        }
        let thread = std::thread::spawn(|| {
            AT_THREAD_END.with(|slot| *slot.borrow_mut() = Some(Blocks));
            // This makes the observer's slot the younger one, so that it is dropped first.
            blocking("test", || ());
        });
        thread.join().unwrap();
    }

    #[test]
    fn the_placement_token_is_scoped() {
        assert_eq!(Placement::current(), None);
        let here = Placement { node: Some(1), pod: Some(3) };
        {
            let _outer = here.enter();
            {
                let _inner = Placement { node: Some(0), pod: None }.enter();
                assert_eq!(Placement::current().and_then(|p| p.node), Some(0));
            }
            assert_eq!(Placement::current(), Some(here));
        }
        assert_eq!(Placement::current(), None);
    }
}
