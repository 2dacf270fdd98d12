//! What a worker runs, for those who look at it from outside: the watchdog and the dump.
//!
//! It is written once an item, by the worker alone, with plain stores on a cache line of its own. A
//! reader that meets it in the middle of a change looks again (a sequence lock); nobody waits for a
//! reader, and no clock is read.

use std::panic::Location;
use std::ptr;

use corewise_sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};

/// What an item says of itself. All of it lives forever.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Label {
    /// Gives the name of its function.
    pub(crate) name: fn() -> &'static str,
    /// Where it was queued.
    pub(crate) site: &'static Location<'static>,
    /// Number of its queue; 0 where it has none.
    pub(crate) queue: u64,
}

/// What a worker runs, as it was read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shown {
    pub(crate) label: Label,
    /// Which instance this is, of all that the worker has started.
    pub(crate) instance: u64,
}

/// The place where a worker says what it runs.
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

    /// An instance starts. Only the worker itself calls it.
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

    /// How many instances were started. Asked by the worker itself.
    pub(crate) fn started(&self) -> u64 {
        self.turn.load(Ordering::Relaxed) / 2
    }

    /// It is over. Only the worker itself calls it.
    #[inline]
    pub(crate) fn ends(&self) {
        self.site.store(ptr::null_mut(), Ordering::Relaxed);
    }

    /// What runs (a moment ago). `None` where nothing does, or it changes all the time.
    pub(crate) fn read(&self) -> Option<Shown> {
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
            return Some(Shown { label: Label { name, site, queue }, instance: turn / 2 });
        }
        None
    }
}

#[cfg(test)]
mod tests {
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
