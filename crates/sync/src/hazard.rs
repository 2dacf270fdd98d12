//! Hazard pointers: an object stays while a thread uses it, without a reference count.
//!
//! A thread may hand over the reference that keeps an object, and continue to use the object. For
//! example, an instance may be over before its queuer is back from the push, and with it everything
//! that kept the pools. So the thread Protects the object first: it writes the address to a slot of
//! its own, a plain store. [`Hazards::retire`] reads the slots (Look), and keeps protected objects
//! in limbo until another one is retired, or until the [`Hazards`] are dropped.
//!
//! No fence is needed. Until the hand-over, a reference of the user's own keeps the object, and the
//! caller of `retire` has seen the end of that reference. So the caller sees what the user wrote
//! before the hand-over, including the slot, or that the slot was emptied afterwards: then the user
//! is done.
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

/// The slots of the threads that use objects retired here, and the objects in limbo.
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

/// The slot of a thread, on cache lines of its own: two threads that shared one would both write to
/// it with each item.
struct Slot {
    /// A: the protected address, or null; written by its thread.
    what: AtomicPtr<()>,
    /// A: its thread has ended. Relaxed, as it only shortens a list.
    over: AtomicBool,
}

/// A thread's cached slot, and the list that has it.
#[derive(Clone, Copy)]
struct ThreadEntry {
    hazards: *const Hazards,
    slot: *const CachePadded<Slot>,
}

const NOBODY: ThreadEntry = ThreadEntry { hazards: ptr::null(), slot: ptr::null() };

/// A thread's slot, and the lists that have it. Their addresses aren't reused meanwhile.
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
    /// Returns the calling thread's hazard pointer. Takes a short lock on a thread's first call.
    ///
    /// # Safety
    /// It must not be used after the thread ends, by the destructor of a thread-local say.
    #[inline(always)]
    pub unsafe fn own(self: &Arc<Self>) -> Hazard {
        let known = KNOWN.try_with(Cell::get).unwrap_or(NOBODY);
        let is_known = ptr::eq(known.hazards, Arc::as_ptr(self));
        Hazard(if is_known { known.slot } else { self.find() })
    }

    /// Returns the thread's slot, and adds it to the list if necessary; null if the thread is
    /// ending.
    #[cold]
    fn find(self: &Arc<Self>) -> *const CachePadded<Slot> {
        let found = OWN.try_with(|own| {
            // No user code runs in here.
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

    /// Drops `what` once no thread protects it: now, or with an object that is retired later, on
    /// that thread. The reference that kept it for its users must be gone, and the caller must have
    /// seen that. Takes a short lock.
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
        // Dropped outside the lock: it may be the last reference.
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

/// The hazard pointer of its thread; null if the thread is ending.
#[derive(Clone, Copy, Debug)]
pub struct Hazard(*const CachePadded<Slot>);

impl Hazard {
    /// Calls `hand_over`, during which `what` stays, even if it is retired. Another reference has
    /// to keep it until `hand_over` gives that up. In a nested `protect` of the thread, it is
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
                // Protect. Release, as at the end of a use. A thread that finds this in the slot,
                // and not the earlier null, sees by it that the thread's last use is over.
                slot.what.store(Arc::as_ptr(what).cast_mut().cast(), Ordering::Release);
                Until::Protected(Protected(slot))
            }
            // The thread is ending, or is in a push already that has called a user's function.
            None => Until::Counted { _kept: Arc::clone(what) },
        };
        hand_over(what)
    }
}

/// The means by which an object is kept during a use.
enum Until<'a, T> {
    Protected(#[expect(dead_code, reason = "it is there to be dropped")] Protected<'a>),
    Counted { _kept: Arc<T> },
}

/// Empties the slot of its thread.
struct Protected<'a>(&'a Slot);

impl Drop for Protected<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: a thread that finds it empty sees that the use is over.
        self.0.what.store(ptr::null_mut(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Copies a reference without counting it, as a thread does that copies what an instance keeps.
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
