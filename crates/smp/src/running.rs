//! What a target runs, for those who look at it from outside: the watchdog and the dump.
//!
//! Written by the target alone, with plain stores. A reader that meets it in the middle of a change
//! looks again (a sequence lock); nobody waits for a reader.

use corewise_topology::CpuId;
use std::fmt;
use std::panic::Location;
use std::ptr;
use std::time::Duration;

use corewise_sync::atomic::Ordering;
use corewise_sync::atomic::aside::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, fence};
use corewise_sync::time::Stamp;
use corewise_sync::{hint, text};

/// How often a reader looks before it takes it that calls come and go faster than it can look.
const LOOKS: usize = 8;

/// What a call says of itself. All of it lives forever.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Label {
    /// Gives the name of its function.
    pub(crate) name: fn() -> &'static str,
    /// Where it was made.
    pub(crate) site: &'static Location<'static>,
    /// The CPU on which it was made, where that is known.
    pub(crate) source: Option<CpuId>,
    /// The address of its cell, where that stays its own while it runs; else 0.
    pub(crate) call: usize,
}

/// What a target runs, as it was read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shown {
    pub(crate) label: Label,
    /// When it began: to the tick only, mostly.
    pub(crate) since: Stamp,
}

/// The place where a target says what it runs.
#[derive(Debug)]
pub(crate) struct Running {
    /// A: odd while the fields below change.
    turn: AtomicU32,
    /// A: the CPU of the caller, or `u32::MAX`.
    source: AtomicU32,
    /// A: a `fn() -> &'static str`, or null while nothing runs.
    name: AtomicPtr<()>,
    /// A: a `&'static Location`, or null before the first.
    site: AtomicPtr<Location<'static>>,
    /// A: the address of the call's cell, or 0.
    call: AtomicUsize,
    /// A: a stamp.
    since: AtomicU64,
}

impl Running {
    pub(crate) fn new() -> Self {
        Running {
            turn: AtomicU32::new(0),
            source: AtomicU32::new(u32::MAX),
            name: AtomicPtr::new(ptr::null_mut()),
            site: AtomicPtr::new(ptr::null_mut()),
            call: AtomicUsize::new(0),
            since: AtomicU64::new(0),
        }
    }

    /// A call starts. Only the target itself calls it.
    #[inline]
    pub(crate) fn starts(&self, shown: Shown) {
        let Shown { label, since } = shown;
        let turn = self.turn.load(Ordering::Relaxed);
        self.turn.store(turn.wrapping_add(1), Ordering::Relaxed);
        // Release: a thread that reads one of the stores below, and then fences, sees the odd turn.
        fence(Ordering::Release);
        self.name.store(label.name as *mut (), Ordering::Relaxed);
        self.site.store(ptr::from_ref(label.site).cast_mut(), Ordering::Relaxed);
        self.source.store(label.source.map_or(u32::MAX, CpuId::number), Ordering::Relaxed);
        self.call.store(label.call, Ordering::Relaxed);
        self.since.store(since.nanos(), Ordering::Relaxed);
        // Release pairs with the Acquire in `read`: with this turn comes all of the above.
        self.turn.store(turn.wrapping_add(2), Ordering::Release);
    }

    /// It is over, and another one goes on that had called it in place. Only the target itself calls it.
    #[inline]
    pub(crate) fn ends(&self, outer: Option<Shown>) {
        match outer {
            None => self.name.store(ptr::null_mut(), Ordering::Relaxed),
            Some(outer) => self.starts(outer),
        }
    }

    /// What runs, for the target itself.
    #[inline]
    pub(crate) fn own(&self) -> Option<Shown> {
        if self.name.load(Ordering::Relaxed).is_null() { None } else { self.read() }
    }

    /// What runs (a moment ago). `None` where nothing does, or it changes all the time.
    pub(crate) fn read(&self) -> Option<Shown> {
        for _ in 0..LOOKS {
            let turn = self.turn.load(Ordering::Acquire);
            let name = self.name.load(Ordering::Relaxed);
            let site = self.site.load(Ordering::Relaxed);
            let source = self.source.load(Ordering::Relaxed);
            let call = self.call.load(Ordering::Relaxed);
            let since = self.since.load(Ordering::Relaxed);
            // Acquire pairs with the Release fence in `starts`.
            fence(Ordering::Acquire);
            if turn % 2 != 0 || self.turn.load(Ordering::Relaxed) != turn {
                hint::spin_loop();
                continue;
            }
            if name.is_null() || site.is_null() {
                return None;
            }
            // SAFETY: not null, and only `starts` stores others: pointers of `&'static Location`s.
            let site: &'static Location<'static> = unsafe { &*site };
            // SAFETY: not null, so it is what `starts` stored: a pointer of just this type.
            let name = unsafe { std::mem::transmute::<*mut (), fn() -> &'static str>(name) };
            let source = (source != u32::MAX).then_some(CpuId::new(source));
            let since = Stamp::from_nanos(since);
            return Some(Shown { label: Label { name, site, source, call }, since });
        }
        None
    }
}

/// What a call target runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunningCall {
    /// The name of the function, as the compiler has it.
    pub function: &'static str,
    /// Where it was called.
    pub site: &'static Location<'static>,
    /// The CPU on which that was, where it is known.
    pub source: Option<CpuId>,
    /// For how long it has run: to some milliseconds.
    pub since: Duration,
}

impl RunningCall {
    pub(crate) fn of(shown: Shown) -> RunningCall {
        RunningCall {
            function: (shown.label.name)(),
            site: shown.label.site,
            source: shown.label.source,
            since: Stamp::precise().since(shown.since),
        }
    }
}

impl fmt::Display for RunningCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RunningCall { function, site, source, since } = self;
        let function = text::name(function);
        write!(f, "{function}, called at {site}")?;
        if let Some(source) = source {
            write!(f, " on CPU {source}")?;
        }
        write!(f, ", for {since:.1?}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn shown(number: u32) -> Shown {
        let name: fn() -> &'static str = if number % 2 == 0 { || "even" } else { || "odd" };
        let label =
            Label { name, site: Location::caller(), source: Some(CpuId::new(number)), call: 0 };
        Shown { label, since: Stamp::from_nanos(number.into()) }
    }

    #[test]
    fn the_running_call_is_shown_until_it_ends_and_then_its_caller_in_place() {
        let running = Running::new();
        assert!(running.read().is_none() && running.own().is_none());
        running.starts(shown(6));
        let outer = running.own();
        running.starts(shown(7));
        let seen = running.read().expect("it runs");
        assert_eq!(
            ((seen.label.name)(), seen.label.source, seen.since.nanos()),
            ("odd", Some(CpuId::new(7)), 7)
        );
        assert_eq!(seen.label.site.file(), file!());
        running.ends(outer);
        assert_eq!(running.read().and_then(|seen| seen.label.source), Some(CpuId::new(6)));
        running.ends(None);
        assert!(running.read().is_none());
    }

    #[test]
    fn a_reader_never_mixes_two_calls() {
        let running = Arc::new(Running::new());
        let target = {
            let running = Arc::clone(&running);
            std::thread::spawn(move || {
                for number in 0..20_000 {
                    running.starts(shown(number));
                }
                running.ends(None);
            })
        };
        while !target.is_finished() {
            if let Some(seen) = running.read() {
                let number = seen.label.source.expect("it is always known here").number();
                assert_eq!(seen.since.nanos(), number.into());
                assert_eq!((seen.label.name)() == "odd", number % 2 == 1);
            }
        }
        target.join().expect("no panic");
    }
}
