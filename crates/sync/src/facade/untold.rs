//! Hints that only the simulated machine uses: they do nothing elsewhere.

/// Does nothing. See [`hint::reads`](crate::hint::reads).
#[inline(always)]
pub fn reads<T: ?Sized>(_shared: &T) {}

/// Does nothing. See [`hint::writes`](crate::hint::writes).
#[inline(always)]
pub fn writes<T: ?Sized>(_shared: &T) {}

/// Does nothing. See [`hint::computed`](crate::hint::computed).
#[inline(always)]
pub fn computed(_time: std::time::Duration) {}
