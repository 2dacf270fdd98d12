//! A slot for each thread that uses an object. Only that thread writes to it.
//!
//! A thread takes a slot at its first use of the object, and gives it back when it ends, for the
//! next thread. Each thread keeps a list of its slots, and in front of it a small table without a
//! destructor, in which the object's address is looked up. That is a load and a comparison, even in
//! the destructors of a thread that ends.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::ptr;
use std::sync::{Arc, Weak};

use crate::facade::backend::per_thread;
use crate::facade::lock::Mutex;

/// The data of one thread.
pub(crate) trait Slot: Default + Send + Sync + 'static {
    /// Returns true if another thread may take it, now that its own has ended.
    fn is_free(&self) -> bool;
}

/// All slots of one object, which is identified by its address. It is aligned, so that addresses
/// differ in their upper bits. Slots live as long as it does, and are never freed before.
#[repr(align(128))]
pub(crate) struct Slots<S> {
    /// L: is the lock; guards the lists. Taken by a thread that gets or gives back a slot, and by
    /// readers of all.
    lists: Mutex<Lists<S>>,
}

struct Lists<S> {
    /// Every slot that was ever made.
    all: Vec<Arc<S>>,
    /// Slots that no thread has.
    free: Vec<Arc<S>>,
}

impl<S: Slot> Slots<S> {
    pub(crate) fn new() -> Slots<S> {
        Slots { lists: Mutex::new(Lists { all: Vec::new(), free: Vec::new() }) }
    }

    /// Takes a slot that no other thread has.
    pub(crate) fn take(&self) -> Arc<S> {
        let mut lists = self.lists.lock();
        lists.free.pop().unwrap_or_else(|| {
            let slot = Arc::new(S::default());
            lists.all.push(Arc::clone(&slot));
            slot
        })
    }

    /// Gives back a slot that its thread no longer needs.
    pub(crate) fn give_back(&self, slot: Arc<S>) {
        if slot.is_free() {
            self.lists.lock().free.push(slot);
        }
    }

    /// Gives back a slot like [`Slots::give_back`], found by its address.
    pub(crate) fn give_back_at(&self, slot: &S) {
        let mut lists = self.lists.lock();
        let found = lists.all.iter().find(|there| ptr::eq(Arc::as_ptr(there), slot)).cloned();
        lists.free.extend(found);
    }

    /// Calls `f` with all slots.
    pub(crate) fn look<R>(&self, f: impl FnOnce(&[Arc<S>]) -> R) -> R {
        f(&self.lists.lock().all)
    }
}

/// Number of objects that a thread may use in turns before it has to search its list.
const CACHED: usize = 32;

/// An entry of the table: the object, and its slot.
type CacheEntry = Cell<(*const (), *const ())>;

per_thread! {
    static TABLE: [CacheEntry; CACHED] = [const { Cell::new((ptr::null(), ptr::null())) }; CACHED];
    static LIST: ThreadSlots = ThreadSlots(RefCell::new(Vec::new()));
}

/// A thread's slots.
struct ThreadSlots(RefCell<Vec<ThreadSlot>>);

struct ThreadSlot {
    /// Weak: a thread keeps no object alive. This keeps the address from being reused, though, so
    /// that the table can be searched by address.
    slots: Weak<dyn Owner>,
    slot: Arc<dyn Any + Send + Sync>,
}

/// The [`Slots`] of any type.
trait Owner: Send + Sync {
    fn take_back(&self, slot: Arc<dyn Any + Send + Sync>);
}

impl<S: Slot> Owner for Slots<S> {
    fn take_back(&self, slot: Arc<dyn Any + Send + Sync>) {
        if let Ok(slot) = slot.downcast::<S>() {
            self.give_back(slot);
        }
    }
}

fn position(slots: *const ()) -> usize {
    (slots.addr() / 128) % CACHED
}

/// Returns the calling thread's slot, which lives as long as `slots`. `None`: the thread is about
/// to end, and can have no slot any more.
#[inline]
pub(crate) fn own<S: Slot>(slots: &Arc<Slots<S>>) -> Option<&S> {
    let asked: *const () = Arc::as_ptr(slots).cast();
    let near = TABLE.try_with(|table| table[position(asked)].get());
    match near {
        // SAFETY: the entry was made for these very slots. The list has a `Weak` of those it was
        // made for, so no others can have the address since, and clears the entry before it lets
        // go. So it is of their kind. They live, since the caller has them, and keep the slot as
        // long.
        Ok((whose, slot)) if whose == asked => Some(unsafe { &*slot.cast::<S>() }),
        _ => look_up(slots),
    }
}

/// Calls `f` with the calling thread's slot, if it has one. Takes none.
pub(crate) fn if_any<S: Slot, R>(slots: &Arc<Slots<S>>, f: impl FnOnce(&S) -> R) -> Option<R> {
    let asked: *const () = Arc::as_ptr(slots).cast();
    LIST.try_with(|list| {
        let places = list.0.try_borrow().ok()?;
        let place = places.iter().find(|place| place.slots.as_ptr().cast() == asked)?;
        place.slot.downcast_ref().map(f)
    })
    .ok()
    .flatten()
}

#[cold]
fn look_up<S: Slot>(slots: &Arc<Slots<S>>) -> Option<&S> {
    let asked: *const () = Arc::as_ptr(slots).cast();
    let found = LIST.try_with(|list| {
        let mut places = list.0.try_borrow_mut().ok()?;
        let slot: *const () = match places.iter().find(|p| p.slots.as_ptr().cast() == asked) {
            Some(place) => Arc::as_ptr(&place.slot).cast(),
            None => {
                places.retain(|place| place.slots.strong_count() != 0 || !place.forget());
                let slot = slots.take();
                let found = Arc::as_ptr(&slot).cast();
                let weak = Arc::downgrade(slots);
                places.push(ThreadSlot { slots: weak, slot });
                found
            }
        };
        // Without the table it is slower, and right.
        let _ = TABLE.try_with(|table| table[position(asked)].set((asked, slot)));
        Some(slot)
    });
    // SAFETY: the slot was taken from these slots, so it is of their kind, and they live and keep
    // it.
    found.ok().flatten().map(|slot| unsafe { &*slot.cast::<S>() })
}

impl ThreadSlot {
    /// Clears the table's entry: afterwards the `Weak` may be dropped. Always returns true.
    fn forget(&self) -> bool {
        let whose: *const () = self.slots.as_ptr().cast();
        let _ = TABLE.try_with(|table| {
            let near = &table[position(whose)];
            if near.get().0 == whose {
                near.set((ptr::null(), ptr::null()));
            }
        });
        true
    }
}

impl Drop for ThreadSlots {
    fn drop(&mut self) {
        for place in self.0.get_mut().drain(..) {
            place.forget();
            if let Some(slots) = place.slots.upgrade() {
                slots.take_back(place.slot);
            }
        }
    }
}
