//! Plain data that several CPUs touch: charged for where the code says so.

use corewise_sim::{Access, touch};

/// See [`hint::reads`](crate::hint::reads).
#[track_caller]
pub fn reads<T: ?Sized>(shared: &T) {
    touch(std::ptr::from_ref(shared).addr(), size_of_val(shared), Access::Load);
}

/// See [`hint::writes`](crate::hint::writes).
#[track_caller]
pub fn writes<T: ?Sized>(shared: &T) {
    touch(std::ptr::from_ref(shared).addr(), size_of_val(shared), Access::Store);
}

/// See [`hint::prefetch`](crate::hint::prefetch).
pub fn prefetch<T>(shared: *const T) {
    corewise_sim::prefetch(shared.addr());
    corewise_sim::prefetch(shared.addr() + 64);
}
