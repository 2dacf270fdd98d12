//! Which slot the calling thread has in which epochs.
//!
//! Each thread keeps a list of its slots, which gives them back when it ends, and in front of it a small
//! table without a destructor, which a section looks into: it is a load and a compare, also in the destructors
//! of a thread that ends.

use std::cell::{Cell, RefCell};
use std::ptr;
use std::sync::{Arc, Weak};

use super::slot::{Slot, Slots};
use crate::per_thread;

/// How many epochs a thread may use in turns before it has to look into its list.
const NEAR: usize = 8;

/// An entry of the table: whose slot, and which.
type Near = Cell<(*const Slots, *const Slot)>;

per_thread! {
    static TABLE: [Near; NEAR] = [const { Cell::new((ptr::null(), ptr::null())) }; NEAR];
    static LIST: List = List(RefCell::new(Vec::new()));
}

/// A thread's slots.
struct List(RefCell<Vec<Place>>);

struct Place {
    /// Weak: a thread keeps no epochs alive. It keeps the address from being used for others, though,
    /// so that the table can be asked by address.
    slots: Weak<Slots>,
    slot: Arc<Slot>,
}

fn position(slots: *const Slots) -> usize {
    (slots.addr() / align_of::<Slots>()) % NEAR
}

/// The calling thread's slot in these epochs: it lives as long as they do. `None`: the thread is about to end, and
/// can have none any more.
#[inline]
pub(super) fn own(slots: &Arc<Slots>) -> Option<&Slot> {
    let asked = Arc::as_ptr(slots);
    let near = TABLE.try_with(|table| table[position(asked)].get());
    match near {
        // SAFETY: the entry was made for these very epochs: the list has a `Weak` of those it was made
        // for, so that no others can have got the address since, and clears the entry before it lets go.
        // They live, since the caller has them, and keep the slot as long.
        Ok((whose, slot)) if whose == asked => Some(unsafe { &*slot }),
        _ => look_up(slots),
    }
}

/// Whether the calling thread is inside a section of these epochs. Takes no slot.
pub(super) fn is_inside(slots: &Arc<Slots>) -> bool {
    let asked = Arc::as_ptr(slots);
    let inside = |list: &List| {
        let places = list.0.try_borrow().ok()?;
        Some(places.iter().find(|place| place.slots.as_ptr() == asked)?.slot.is_inside())
    };
    LIST.try_with(inside).ok().flatten().unwrap_or(false)
}

#[cold]
fn look_up(slots: &Arc<Slots>) -> Option<&Slot> {
    let found = LIST.try_with(|list| {
        let mut places = list.0.try_borrow_mut().ok()?;
        let asked = Arc::as_ptr(slots);
        let slot = match places.iter().find(|place| place.slots.as_ptr() == asked) {
            Some(place) => Arc::as_ptr(&place.slot),
            None => {
                places.retain(|place| place.slots.strong_count() != 0 || !place.forget());
                let slot = slots.take();
                let found = Arc::as_ptr(&slot);
                places.push(Place { slots: Arc::downgrade(slots), slot });
                found
            }
        };
        // Without the table it is slower, and right.
        let _ = TABLE.try_with(|table| table[position(asked)].set((asked, slot)));
        Some(slot)
    });
    // SAFETY: the slot was taken from these epochs, which live and keep it.
    found.ok().flatten().map(|slot| unsafe { &*slot })
}

impl Place {
    /// Clears the table's entry: afterwards the `Weak` may go. Always true.
    fn forget(&self) -> bool {
        let whose = self.slots.as_ptr();
        let _ = TABLE.try_with(|table| {
            let near = &table[position(whose)];
            if near.get().0 == whose {
                near.set((ptr::null(), ptr::null()));
            }
        });
        true
    }
}

impl Drop for List {
    fn drop(&mut self) {
        for place in self.0.get_mut().drain(..) {
            place.forget();
            if let Some(slots) = place.slots.upgrade() {
                slots.give_back(place.slot);
            }
        }
    }
}
