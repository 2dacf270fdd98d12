//! Hazard pointers: what a thread is in the middle of using stays, without a reference count.
//!
//! A thread hands over what keeps an object, and goes on using that: an instance that was pushed
//! may be over before its queuer is back from the push, and with it all that kept the pools. So it
//! Protects the object before: it writes the address to a slot of its own, a plain store.
//! [`Hazards::retire`] looks at the slots (Look), and keeps what is protected in limbo until
//! something else is retired, or until the [`Hazards`] are dropped.
//!
//! No fence is needed. Until the hand-over something of the user's own keeps the object, and the
//! caller of `retire` has seen the end of that. So it sees what the user wrote before the
//! hand-over, the slot too, or that the slot was emptied after: then the user is through.
//!
//! Models: `tests/loom/hazard.rs`.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::{Arc, Weak};

use crossbeam_utils::CachePadded;

use crate::facade::atomic::{AtomicBool, AtomicPtr, Ordering};
use crate::facade::backend::per_thread;
use crate::facade::lock::Mutex;

/// The slots of the threads that use what is retired here, and what is in limbo.
#[derive(Default)]
pub struct Hazards {
    /// L: is the lock; guards the lists.
    lists: Mutex<Lists>,
}

#[derive(Default)]
struct Lists {
    threads: Vec<Arc<CachePadded<Slot>>>,
    limbo: Vec<Arc<dyn Any + Send + Sync>>,
}

/// The slot of a thread, on lines of its own: two that share one write to it with each item. (A
/// storm of which the producer's and the taker's do, on 16 simulated CPUs: 5.3 M/s for 17;
/// caa68eb.)
struct Slot {
    /// A: what it protects, or null; written by its thread.
    what: AtomicPtr<()>,
    /// A: its thread has ended; only a list is shortened by it, so Relaxed.
    over: AtomicBool,
}

/// What a thread knows without a look: whose list it is on, and its slot.
#[derive(Clone, Copy)]
struct ThreadEntry {
    hazards: *const Hazards,
    slot: *const CachePadded<Slot>,
}

const NOBODY: ThreadEntry = ThreadEntry { hazards: ptr::null(), slot: ptr::null() };

/// A thread's slot, and whose lists it is on. The addresses of those aren't used again meanwhile.
struct OwnSlot {
    slot: Option<Arc<CachePadded<Slot>>>,
    listed: Vec<Weak<Hazards>>,
}

impl Drop for OwnSlot {
    fn drop(&mut self) {
        let _ = KNOWN.try_with(|known| known.set(NOBODY));
        if let Some(slot) = &self.slot {
            slot.over.store(true, Ordering::Relaxed);
        }
    }
}

per_thread! {
    static KNOWN: Cell<ThreadEntry> = Cell::new(NOBODY);
    static OWN: RefCell<OwnSlot> = RefCell::new(OwnSlot { slot: None, listed: Vec::new() });
}

impl Hazards {
    /// The calling thread's. Takes a short lock the first time that a thread asks.
    ///
    /// # Safety
    /// It isn't used any more once the thread ends, by the destructor of a thread-local say.
    #[inline(always)]
    pub unsafe fn own(self: &Arc<Self>) -> Hazard {
        let known = KNOWN.try_with(Cell::get).unwrap_or(NOBODY);
        let is_known = ptr::eq(known.hazards, Arc::as_ptr(self));
        Hazard(if is_known { known.slot } else { self.find() })
    }

    /// The thread's slot, after a look whether it is on the list; null where the thread ends.
    #[cold]
    fn find(self: &Arc<Self>) -> *const CachePadded<Slot> {
        let found = OWN.try_with(|own| {
            // No user's code is in here.
            let OwnSlot { slot, listed } = &mut *own.borrow_mut();
            let slot = slot.get_or_insert_with(|| {
                let (what, over) = (AtomicPtr::new(ptr::null_mut()), AtomicBool::new(false));
                Arc::new(CachePadded::new(Slot { what, over }))
            });
            if listed.iter().all(|hazards| !ptr::eq(hazards.as_ptr(), Arc::as_ptr(self))) {
                listed.retain(|hazards| hazards.strong_count() > 0);
                listed.push(Arc::downgrade(self));
                let threads = &mut self.lists.lock().threads;
                threads.retain(|thread| !thread.over.load(Ordering::Relaxed));
                threads.push(Arc::clone(slot));
            }
            Arc::as_ptr(slot)
        });
        let Ok(slot) = found else { return ptr::null() };
        let _ = KNOWN.try_with(|known| known.set(ThreadEntry { hazards: Arc::as_ptr(self), slot }));
        slot
    }

    /// Drops `what` once nobody protects it: now, or with something that is retired later, on that
    /// thread. A tie that kept it for its users is over, and the caller has seen that. Takes a
    /// short lock.
    pub fn retire(&self, what: Arc<dyn Any + Send + Sync>) {
        let mut free = Vec::new();
        {
            let Lists { threads, limbo } = &mut *self.lists.lock();
            limbo.push(what);
            // Look. Acquire pairs with the Release of the thread that empties a slot, or fills it
            // anew.
            let protected = |what: &Arc<dyn Any + Send + Sync>| {
                let what: *const () = Arc::as_ptr(what).cast();
                threads.iter().any(|slot| ptr::eq(slot.what.load(Ordering::Acquire), what))
            };
            limbo.retain(|what| {
                let stays = protected(what);
                if !stays {
                    free.push(Arc::clone(what));
                }
                stays
            });
        }
        // Outside the lock: it may be the last that anybody has.
        drop(free);
    }
}

impl fmt::Debug for Hazards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lists = self.lists.lock();
        let sizes = (lists.threads.len(), lists.limbo.len());
        f.debug_struct("Hazards").field("threads", &sizes.0).field("limbo", &sizes.1).finish()
    }
}

/// The hazard pointer of the thread that has this; null where the thread ends.
#[derive(Clone, Copy, Debug)]
pub struct Hazard(*const CachePadded<Slot>);

impl Hazard {
    /// Calls `hand_over`, during which `what` stays, also when it is retired. Something else has to
    /// keep it until `hand_over` gives that up. Inside of another `protect` of the thread it is
    /// counted instead.
    #[inline(always)]
    pub fn protect<T, R>(
        self,
        what: &ManuallyDrop<Arc<T>>,
        hand_over: impl FnOnce(&Arc<T>) -> R,
    ) -> R {
        // SAFETY: null, or the thread's own, which is there until the thread ends (`own`); a
        // pointer keeps this from being sent to another.
        let free = unsafe { self.0.as_ref() }.filter(|s| s.what.load(Ordering::Relaxed).is_null());
        let _until = match free {
            Some(slot) => {
                // Protect. Release, as where it ends: who finds this in the slot, and not the null
                // before, sees by it that the thread's last use is over.
                slot.what.store(Arc::as_ptr(what).cast_mut().cast(), Ordering::Release);
                Until::Protected(Protected(slot))
            }
            // The thread ends, or is in a push already, which has come to a user's function.
            None => Until::Counted { _kept: Arc::clone(what) },
        };
        hand_over(what)
    }
}

/// What keeps something during a use.
enum Until<'a, T> {
    Protected(#[expect(dead_code, reason = "it is there to be dropped")] Protected<'a>),
    Counted { _kept: Arc<T> },
}

/// Empties the slot of its thread.
struct Protected<'a>(&'a Slot);

impl Drop for Protected<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: who finds it empty sees that the use is over.
        self.0.what.store(ptr::null_mut(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a thread that copies what an instance keeps.
    fn uncounted<T>(what: &Arc<T>) -> ManuallyDrop<Arc<T>> {
        // SAFETY: the copy isn't dropped.
        ManuallyDrop::new(unsafe { ptr::read(what) })
    }

    fn own(hazards: &Arc<Hazards>) -> Hazard {
        // SAFETY: no test keeps it.
        unsafe { hazards.own() }
    }

    #[test]
    fn each_thread_has_a_line_for_its_slot() {
        let hazards = Arc::new(Hazards::default());
        let slot = || own(&hazards).0.addr();
        let on_a_thread = |_| std::thread::scope(|scope| scope.spawn(slot).join()).unwrap();
        let slots: Vec<usize> = (0..64).map(on_a_thread).collect();
        let line = align_of::<CachePadded<u8>>();
        assert!(slots.iter().all(|slot| slot % line == 0), "{slots:x?}");
    }

    #[test]
    fn a_protected_object_stays_until_the_next_is_retired() {
        let hazards = Arc::new(Hazards::default());
        let what = Arc::new(1);
        let seen = Arc::downgrade(&what);
        let copy = uncounted(&what);
        own(&hazards).protect(&copy, |_| {
            hazards.retire(what);
            assert_eq!(seen.strong_count(), 1);
        });
        hazards.retire(Arc::new(2));
        assert_eq!(seen.strong_count(), 0);
        assert!(hazards.lists.lock().limbo.is_empty());
    }

    #[test]
    fn a_push_inside_a_push_protects_both() {
        let hazards = Arc::new(Hazards::default());
        let (outer, inner) = (Arc::new(1), Arc::new(2));
        let seen = [Arc::downgrade(&outer), Arc::downgrade(&inner)];
        let copies = [uncounted(&outer), uncounted(&inner)];
        own(&hazards).protect(&copies[0], |_| {
            own(&hazards).protect(&copies[1], |_| {
                hazards.retire(outer);
                hazards.retire(inner);
                assert!(seen.iter().all(|what| what.strong_count() == 1));
            });
            assert_eq!(seen[1].strong_count(), 0);
        });
    }

    #[test]
    fn a_thread_is_on_the_list_of_each_once_until_it_ends() {
        let many = [(); 2].map(|()| Arc::new(Hazards::default()));
        let threads = |n: usize| many[n].lists.lock().threads.len();
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                for n in [0, 1, 0, 1] {
                    own(&many[n]).protect(&ManuallyDrop::new(Arc::new(())), |_| ());
                }
                assert_eq!((threads(0), threads(1)), (1, 1));
            });
            thread.join().unwrap();
        });
        own(&many[0]).protect(&ManuallyDrop::new(Arc::new(())), |_| ());
        assert_eq!(threads(0), 1, "the ended one has left it");
    }
}
