//! Keeps a group of pools there for a thread that is in the middle of a push, without a reference
//! count.
//!
//! Once an instance is pushed it may be over before its queuer comes back from the push, and with it
//! all that kept the pools. So a queuer Covers the group before: it writes the group's address to a
//! cell of its thread, a plain store. Who gives a group up looks at the cells (Look), and keeps what
//! is covered in limbo until somebody gives up another, or the pools end.
//!
//! No fence is needed. Until the push the queuer's own instance keeps the group; who gives it up has
//! seen that one over (`README.md`), and so sees what the queuer wrote before the push, the cell too, or
//! that it was emptied after: then the queuer is through.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::{Arc, Weak};

use corewise_sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use corewise_sync::{Mutex, per_thread};

/// The cells of the threads that push to the pools of a machine, and what is in limbo.
#[derive(Default)]
pub(crate) struct Covers {
    /// L: is the lock; guards the lists.
    lists: Mutex<Lists>,
}

#[derive(Default)]
struct Lists {
    threads: Vec<Arc<Cover>>,
    limbo: Vec<Arc<dyn Any + Send + Sync>>,
}

/// The cell of a thread.
struct Cover {
    /// A: what it covers, or null; written by its thread.
    what: AtomicPtr<()>,
    /// A: its thread has ended; only a list is shortened by it, so Relaxed.
    over: AtomicBool,
}

/// What a thread knows without a look: whose list it is on, and its cell.
#[derive(Clone, Copy)]
struct Known {
    covers: *const Covers,
    cover: *const Cover,
}

const NOBODY: Known = Known { covers: ptr::null(), cover: ptr::null() };

/// A thread's cell, and whose lists it is on. The addresses of those aren't used again meanwhile.
struct Own {
    cover: Option<Arc<Cover>>,
    listed: Vec<Weak<Covers>>,
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = KNOWN.try_with(|known| known.set(NOBODY));
        if let Some(cover) = &self.cover {
            cover.over.store(true, Ordering::Relaxed);
        }
    }
}

per_thread! {
    static KNOWN: Cell<Known> = Cell::new(NOBODY);
    static OWN: RefCell<Own> = RefCell::new(Own { cover: None, listed: Vec::new() });
}

impl Covers {
    /// The calling thread's cell.
    #[inline(always)]
    pub(crate) fn mine(self: &Arc<Self>) -> Mine {
        let known = KNOWN.try_with(Cell::get).unwrap_or(NOBODY);
        let cover =
            if ptr::eq(known.covers, Arc::as_ptr(self)) { known.cover } else { self.find() };
        Mine(cover)
    }

    /// The thread's cell, after a look whether it is on the list; null where the thread ends.
    #[cold]
    fn find(self: &Arc<Self>) -> *const Cover {
        let found = OWN.try_with(|own| {
            // No user's code is in here.
            let Own { cover, listed } = &mut *own.borrow_mut();
            let cover = cover.get_or_insert_with(|| {
                let (what, over) = (AtomicPtr::new(ptr::null_mut()), AtomicBool::new(false));
                Arc::new(Cover { what, over })
            });
            if listed.iter().all(|covers| !ptr::eq(covers.as_ptr(), Arc::as_ptr(self))) {
                listed.retain(|covers| covers.strong_count() > 0);
                listed.push(Arc::downgrade(self));
                let threads = &mut self.lists.lock().threads;
                threads.retain(|thread| !thread.over.load(Ordering::Relaxed));
                threads.push(Arc::clone(cover));
            }
            Arc::as_ptr(cover)
        });
        let Ok(cover) = found else { return ptr::null() };
        let _ = KNOWN.try_with(|known| known.set(Known { covers: Arc::as_ptr(self), cover }));
        cover
    }

    /// Gives `what` up: drops it once nobody covers it.
    pub(crate) fn give_up(&self, what: Arc<dyn Any + Send + Sync>) {
        let free: Vec<_> = {
            let Lists { threads, limbo } = &mut *self.lists.lock();
            limbo.push(what);
            // Look. Acquire pairs with the Release of who empties a cell, or fills it anew.
            let covered = |what: &Arc<dyn Any + Send + Sync>| {
                let what: *const () = Arc::as_ptr(what).cast();
                threads.iter().any(|cover| ptr::eq(cover.what.load(Ordering::Acquire), what))
            };
            limbo.extract_if(.., |what| !covered(what)).collect()
        };
        // Outside the lock: it may be the last that anybody has.
        drop(free);
    }
}

/// The cell of the thread that has this; null where the thread ends.
#[derive(Clone, Copy)]
pub(crate) struct Mine(*const Cover);

impl Mine {
    /// Calls `push`, during which `what` stays, whoever gives it up. What the caller keeps it by until
    /// then has to last until `push` hands that over.
    #[inline(always)]
    pub(crate) fn during<T, R>(
        self,
        what: &ManuallyDrop<Arc<T>>,
        push: impl FnOnce(&Arc<T>) -> R,
    ) -> R {
        // SAFETY: null, or the thread's own, which is there until the thread ends; a pointer keeps this
        // from being sent to another.
        let free = unsafe { self.0.as_ref() }.filter(|c| c.what.load(Ordering::Relaxed).is_null());
        let _until = match free {
            Some(cover) => {
                // Cover. Release, as where it ends: who finds this in the cell, and not the null before,
                // sees by it that the thread's last push is over.
                cover.what.store(Arc::as_ptr(what).cast_mut().cast(), Ordering::Release);
                Until::Covered(Covered(cover))
            }
            // The thread ends, or is in a push already, which has come to a spawn handler.
            None => Until::Counted { _kept: Arc::clone(what) },
        };
        push(what)
    }
}

/// What keeps something during a push.
enum Until<'a, T> {
    Covered(#[expect(dead_code, reason = "it is there to be dropped")] Covered<'a>),
    Counted { _kept: Arc<T> },
}

/// Ends the cover of its thread.
struct Covered<'a>(&'a Cover);

impl Drop for Covered<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: who finds it empty sees that the push is over.
        self.0.what.store(ptr::null_mut(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As who copies what an instance keeps.
    fn uncounted<T>(what: &Arc<T>) -> ManuallyDrop<Arc<T>> {
        // SAFETY: the copy isn't dropped.
        ManuallyDrop::new(unsafe { ptr::read(what) })
    }

    #[test]
    fn what_is_covered_stays_until_the_next_is_given_up() {
        let covers = Arc::new(Covers::default());
        let what = Arc::new(1);
        let seen = Arc::downgrade(&what);
        let copy = uncounted(&what);
        covers.mine().during(&copy, |_| {
            covers.give_up(what);
            assert_eq!(seen.strong_count(), 1);
        });
        covers.give_up(Arc::new(2));
        assert_eq!(seen.strong_count(), 0);
        assert!(covers.lists.lock().limbo.is_empty());
    }

    #[test]
    fn a_push_inside_a_push_covers_both() {
        let covers = Arc::new(Covers::default());
        let (outer, inner) = (Arc::new(1), Arc::new(2));
        let seen = [Arc::downgrade(&outer), Arc::downgrade(&inner)];
        let copies = [uncounted(&outer), uncounted(&inner)];
        covers.mine().during(&copies[0], |_| {
            covers.mine().during(&copies[1], |_| {
                covers.give_up(outer);
                covers.give_up(inner);
                assert!(seen.iter().all(|what| what.strong_count() == 1));
            });
            assert_eq!(seen[1].strong_count(), 0);
        });
    }

    #[test]
    fn a_thread_is_on_the_list_of_each_once_until_it_ends() {
        let many = [(); 2].map(|()| Arc::new(Covers::default()));
        let threads = |n: usize| many[n].lists.lock().threads.len();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                for n in [0, 1, 0, 1] {
                    many[n].mine().during(&ManuallyDrop::new(Arc::new(())), |_| ());
                }
                assert_eq!((threads(0), threads(1)), (1, 1));
            });
            thread.join().unwrap();
        });
        many[0].mine().during(&ManuallyDrop::new(Arc::new(())), |_| ());
        assert_eq!(threads(0), 1, "the ended one has left it");
    }
}
