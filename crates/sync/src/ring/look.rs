//! A look at the items of a ring that takes none, or one of them.

use std::ptr::{self, NonNull};

use super::{HELD, Ring};
use crate::atomic::Ordering;
use crate::fence::FencePolicy;
use crate::spin;

/// What becomes of an item that was looked at, and of the look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// It stays; the next one, please.
    Next,
    /// It is taken, and the look ends.
    Take,
    /// It stays, and the look ends.
    Stop,
}

impl<T, F: FencePolicy> Ring<T, F> {
    /// Shows `see` each item, oldest first, reserved or not, and gives out the one that it says [`Look::Take`] of. While
    /// `see` has an item nobody takes it, so it may be read there and isn't freed; takers of just that one wait. So
    /// `see` is short, calls no user code and takes nothing from this ring. An item that comes or
    /// goes meanwhile may be shown, or not, or twice.
    /// Waits, as [`outwait`](Ring::outwait) does, where somebody else looks at the same item.
    pub fn look(&self, mut see: impl FnMut(NonNull<T>) -> Look) -> Option<NonNull<T>> {
        // Relaxed: below any value that was ever written here nothing lies.
        let from = self.not_gone_round(self.takers.low.load(Ordering::Relaxed));
        // Acquire pairs with Publish: the cells below are filled.
        let to = self.appenders.tail.load(Ordering::Acquire) >> 1;
        for at in from..to {
            let Some(held) = self.hold(at) else { continue };
            match see(held.item) {
                Look::Next => {}
                Look::Take => return Some(held.take()),
                Look::Stop => return None,
            }
        }
        None
    }

    /// Hold: keeps others from taking what lies at this position.
    fn hold(&self, at: u64) -> Option<Held<'_, T, F>> {
        let mut tries = 0;
        loop {
            let there = self.cell(at).load(Ordering::Relaxed);
            let item = NonNull::new(there)?;
            let held = there.map_addr(|address| address | HELD);
            // Acquire pairs with Fill: the item is seen as it was appended.
            let (success, failure) = (Ordering::Acquire, Ordering::Relaxed);
            if there == held {
                spin::outwait(tries);
            } else if self.cell(at).compare_exchange(there, held, success, failure).is_ok() {
                return Some(Held { ring: self, at, item });
            }
            tries = tries.saturating_add(1);
        }
    }
}

/// An item that somebody looks at.
struct Held<'a, T, F: FencePolicy> {
    ring: &'a Ring<T, F>,
    at: u64,
    item: NonNull<T>,
}

impl<T, F: FencePolicy> Held<'_, T, F> {
    /// TakeHeld.
    fn take(self) -> NonNull<T> {
        let item = self.item;
        // A store: while it is held nobody else writes the cell.
        self.ring.cell(self.at).store(ptr::null_mut(), Ordering::Relaxed);
        std::mem::forget(self);
        item
    }
}

impl<T, F: FencePolicy> Drop for Held<'_, T, F> {
    /// LetBe; also where the look panics.
    fn drop(&mut self) {
        // Release pairs with the Acquire of Take and Find: they free the item after it was read. A store, as above.
        self.ring.cell(self.at).store(self.item.as_ptr(), Ordering::Release);
    }
}
