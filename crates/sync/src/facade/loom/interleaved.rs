//! Atomics of which loom tries every order of accesses.
//!
//! Loom remembers one access of an object, the last. So where one thread loads a word, and another loads it and then
//! writes it, the second load hides the first: the write before the first load is never tried. Here each access is announced
//! by a write to a word beside, which every thread writes and nobody reads; loads still see all old values that they may.
//! It multiplies schedules, so it happens only in models that ask for it, by [`every_order`](super::testing::every_order).

use std::sync::atomic::{AtomicBool, Ordering};

use loom::sync::atomic as usual;

/// A: whether accesses are announced. Of the process: the models of one file all ask, or none.
pub(super) static ASKED: AtomicBool = AtomicBool::new(false);

macro_rules! interleaved {
    ($name:ident $(<$generic:ident>)?, $value:ty) => {
        /// As the standard library's, what of it is in use.
        pub(crate) struct $name $(<$generic>)? {
            /// A: as its user says.
            word: usual::$name $(<$generic>)?,
            /// A: orders nothing.
            announced: usual::AtomicU8,
        }

        impl $(<$generic>)? $name $(<$generic>)? {
            pub(crate) fn new(value: $value) -> Self {
                Self { word: usual::$name::new(value), announced: usual::AtomicU8::new(0) }
            }

            fn announced(&self) -> &usual::$name $(<$generic>)? {
                if ASKED.load(Ordering::Relaxed) {
                    self.announced.fetch_add(0, Ordering::Relaxed);
                }
                &self.word
            }

            #[track_caller]
            pub(crate) fn load(&self, order: Ordering) -> $value {
                self.announced().load(order)
            }

            #[track_caller]
            pub(crate) fn store(&self, value: $value, order: Ordering) {
                self.announced().store(value, order);
            }

            #[track_caller]
            pub(crate) fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.announced().compare_exchange(current, new, success, failure)
            }
        }
    };
}

interleaved!(AtomicU64, u64);
interleaved!(AtomicPtr<T>, *mut T);
