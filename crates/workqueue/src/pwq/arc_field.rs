//! A part of what an `Arc` keeps, one load away: in straight paths, where the way to it is long.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// Derefs to the part, and keeps the whole.
pub(crate) struct ArcField<W, T> {
    part: NonNull<T>,
    _whole: Arc<W>,
}

// SAFETY: it stands for an `Arc` of the whole, and a reference to a `T`.
unsafe impl<W: Send + Sync, T: Sync> Send for ArcField<W, T> {}
// SAFETY: as above.
unsafe impl<W: Send + Sync, T: Sync> Sync for ArcField<W, T> {}

impl<W, T> ArcField<W, T> {
    /// What `find` finds in the whole.
    pub(crate) fn of(whole: &Arc<W>, find: impl FnOnce(&W) -> &T) -> Self {
        ArcField { part: NonNull::from(find(whole)), _whole: Arc::clone(whole) }
    }
}

impl<W, T> Deref for ArcField<W, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: `find` works for any life of the whole, so the part lives for as long as that, which
        // is kept, and is shared until then.
        unsafe { self.part.as_ref() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_keeps_the_whole() {
        let whole = Arc::new([Box::new(1), Box::new(2)]);
        let part = ArcField::of(&whole, |all| &*all[1]);
        let seen = Arc::downgrade(&whole);
        drop(whole);
        assert_eq!((*part, seen.strong_count()), (2, 1));
        drop(part);
        assert_eq!(seen.strong_count(), 0);
    }
}
