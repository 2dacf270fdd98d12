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
    corewise_sim::prefetch(shared.addr(), Access::Load);
    corewise_sim::prefetch(shared.addr() + 64, Access::Load);
}

/// See [`hint::prefetch_to_write`](crate::hint::prefetch_to_write).
pub fn prefetch_to_write<T>(shared: *const T) {
    corewise_sim::prefetch(shared.addr(), Access::Store);
}
