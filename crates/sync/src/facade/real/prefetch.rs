//! Prefetches.

/// See [`hint::prefetch`](crate::hint::prefetch).
#[inline(always)]
pub fn prefetch<T>(shared: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let at = shared.cast::<i8>();
        // SAFETY: a prefetch of any address is harmless.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(at);
            _mm_prefetch::<_MM_HINT_T0>(at.wrapping_add(64));
        }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = shared;
}

/// See [`hint::prefetch_to_write`](crate::hint::prefetch_to_write).
#[inline(always)]
pub fn prefetch_to_write<T>(shared: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: as above; a processor that doesn't know this one does nothing.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(shared.cast::<i8>()) };
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = shared;
}
