//! Atomics whose accesses are charged by the last owner of their line.

use std::fmt;
use std::panic::Location;
use std::sync::atomic as real;
pub(crate) use std::sync::atomic::Ordering;

use corewise_sim::{Access, access, loaded};

/// Issues a fence: only a `SeqCst` one costs anything on the simulated machines.
pub fn fence(order: Ordering) {
    if order == Ordering::SeqCst {
        corewise_sim::fence();
    }
    real::fence(order);
}

/// Returns the cost of a store: a `SeqCst` store is a locked exchange.
fn stored(order: Ordering) -> Access {
    if order == Ordering::SeqCst { Access::Locked } else { Access::Store }
}

/// A value that may be a pointer.
trait Pointing {
    fn address(&self) -> Option<usize> {
        None
    }
}

impl Pointing for u8 {}
impl Pointing for u16 {}
impl Pointing for u32 {}
impl Pointing for bool {}

impl Pointing for u64 {
    fn address(&self) -> Option<usize> {
        usize::try_from(*self).ok()
    }
}

impl Pointing for usize {
    fn address(&self) -> Option<usize> {
        Some(*self)
    }
}

impl<T> Pointing for *mut T {
    fn address(&self) -> Option<usize> {
        Some(self.addr())
    }
}

/// Tells the machine what was read.
#[inline]
fn read<V: Pointing>(value: V) -> V {
    if let Some(address) = value.address() {
        loaded(address);
    }
    value
}

macro_rules! atomic {
    ($name:ident $(<$generic:ident>)?, $value:ty, {$($more:tt)*}) => {
        /// The standard library's type, in the simulator.
        #[repr(transparent)]
        pub struct $name $(<$generic>)? (real::$name $(<$generic>)?);

        impl $(<$generic>)? $name $(<$generic>)? {
            /// Creates a word with this value.
            pub const fn new(value: $value) -> Self {
                Self(real::$name::new(value))
            }

            #[track_caller]
            fn charge(&self, kind: Access) {
                access(std::ptr::from_ref(self).addr(), kind, Location::caller());
            }

            /// Returns the word itself, after charging an access from `site`.
            #[allow(dead_code, reason = "not of every type")]
            pub(super) fn charged(
                &self,
                kind: Access,
                site: &'static Location<'static>,
            ) -> &real::$name $(<$generic>)? {
                access(std::ptr::from_ref(self).addr(), kind, site);
                &self.0
            }

            /// Reads the value.
            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                self.charge(Access::Load);
                read(self.0.load(order))
            }

            /// Writes the value.
            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                self.charge(stored(order));
                self.0.store(value, order);
            }

            /// Writes a value, and returns the old one.
            #[track_caller]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                self.charge(Access::Locked);
                read(self.0.swap(value, order))
            }

            /// Writes a value if the old one is `current`.
            ///
            /// # Errors
            /// The old value, if it is another one.
            #[track_caller]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.charge(Access::Locked);
                self.0.compare_exchange(current, new, success, failure)
            }

            /// Exchanges like `compare_exchange`; it never fails without a reason here.
            ///
            /// # Errors
            /// The old value, if it is another one.
            #[track_caller]
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }

            /// Writes the value that `f` returns for the old one, in a loop of exchanges.
            ///
            /// # Errors
            /// The old value, if `f` returned `None` for it.
            #[track_caller]
            pub fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                mut f: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut seen = self.load(failure);
                while let Some(next) = f(seen) {
                    match self.compare_exchange_weak(seen, next, success, failure) {
                        Ok(before) => return Ok(before),
                        Err(now) => seen = now,
                    }
                }
                Err(seen)
            }

            /// Returns the value: no other thread has it.
            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }

            /// Returns the value.
            pub fn into_inner(self) -> $value {
                self.0.into_inner()
            }

            /// Returns its address.
            pub const fn as_ptr(&self) -> *mut $value {
                self.0.as_ptr()
            }

            $($more)*
        }

        impl $(<$generic>)? fmt::Debug for $name $(<$generic>)? {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl $(<$generic>)? Default for $name $(<$generic>)? {
            fn default() -> Self {
                Self(real::$name::default())
            }
        }

        impl $(<$generic>)? From<$value> for $name $(<$generic>)? {
            fn from(value: $value) -> Self {
                Self::new(value)
            }
        }
    };
}

macro_rules! locked {
    ($value:ty: $($name:ident)*) => {
        $(
            /// Performs the standard library's operation, in one locked step.
            #[track_caller]
            pub fn $name(&self, value: $value, order: Ordering) -> $value {
                self.charge(Access::Locked);
                self.0.$name(value, order)
            }
        )*
    };
}

macro_rules! number {
    ($name:ident, $value:ty) => {
        atomic!($name, $value, {
            locked! { $value:
                fetch_add fetch_sub fetch_and fetch_nand fetch_or fetch_xor fetch_max fetch_min
            }
        });
    };
}

number!(AtomicU8, u8);
number!(AtomicU16, u16);
number!(AtomicU32, u32);
number!(AtomicU64, u64);
number!(AtomicUsize, usize);
atomic!(AtomicBool, bool, {
    locked! { bool: fetch_and fetch_nand fetch_or fetch_xor }
});
atomic!(AtomicPtr<T>, *mut T, {});
