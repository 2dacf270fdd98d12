//! Loom's atomics; for models that request it, every order of their accesses.
//!
//! Loom remembers one access of an object, the last. Suppose that one thread only loads a word, and
//! another loads it and then writes it. The second load then hides the first: the write before the
//! first load may never be tried. In a model that requests it
//! ([`every_order`](super::testing::every_order)), each access is announced by a write to a
//! neighbouring word, which no thread reads. Loads still see all old values that they may. This
//! multiplies schedules.

use std::cell::Cell;
use std::fmt;
use std::ops::Deref;
use std::sync::atomic::Ordering;

use ::loom::sync::atomic as usual;
pub use ::loom::sync::atomic::fence;

std::thread_local! {
    /// True if accesses are announced. Loom runs all threads of a model on the requesting thread,
    /// beside which other models may run.
    pub(super) static ASKED: Cell<bool> = const { Cell::new(false) };
}

macro_rules! announced {
    ($($name:ident $(<$generic:ident>)?: $value:ty),*) => {
        $(
            /// The standard library's type, in loom.
            pub struct $name $(<$generic>)? {
                /// A: as its user says.
                word: usual::$name $(<$generic>)?,
                /// A: orders nothing.
                beside: Option<usual::AtomicU8>,
            }

            impl $(<$generic>)? $name $(<$generic>)? {
                /// Creates a word with this value.
                #[track_caller]
                pub fn new(value: $value) -> Self {
                    Self::from(usual::$name::new(value))
                }

                /// Returns the value.
                #[track_caller]
                pub fn into_inner(self) -> $value {
                    self.word.into_inner()
                }
            }

            impl $(<$generic>)? From<usual::$name $(<$generic>)?> for $name $(<$generic>)? {
                #[track_caller]
                fn from(word: usual::$name $(<$generic>)?) -> Self {
                    let asked = ASKED.get();
                    $name { word, beside: asked.then(usual::AtomicU8::default) }
                }
            }

            impl $(<$generic>)? Default for $name $(<$generic>)? {
                #[track_caller]
                fn default() -> Self {
                    Self::from(usual::$name::default())
                }
            }

            /// The dereference with which each access begins.
            impl $(<$generic>)? Deref for $name $(<$generic>)? {
                type Target = usual::$name $(<$generic>)?;

                #[track_caller]
                fn deref(&self) -> &Self::Target {
                    if let Some(beside) = &self.beside {
                        beside.fetch_add(0, Ordering::Relaxed);
                    }
                    &self.word
                }
            }

            impl $(<$generic>)? fmt::Debug for $name $(<$generic>)? {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    self.word.fmt(f)
                }
            }
        )*
    };
}

announced! {
    AtomicBool: bool,
    AtomicPtr<T>: *mut T,
    AtomicU8: u8,
    AtomicU16: u16,
    AtomicU32: u32,
    AtomicU64: u64,
    AtomicUsize: usize
}
