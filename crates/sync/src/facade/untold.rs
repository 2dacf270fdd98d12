//! What only the simulated machine wants to know: nothing elsewhere.

/// See [`hint::reads`](crate::hint::reads).
#[inline(always)]
pub fn reads<T: ?Sized>(_shared: &T) {}

/// See [`hint::writes`](crate::hint::writes).
#[inline(always)]
pub fn writes<T: ?Sized>(_shared: &T) {}

/// See [`hint::computed`](crate::hint::computed).
#[inline(always)]
pub fn computed(_time: std::time::Duration) {}
