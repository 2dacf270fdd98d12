//! The list of the pieces of memory of a request.

use std::fmt;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::NonNull;

/// A piece of memory, without its owner: an entry of the kernel's `bio_vec`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seg {
    pub(crate) base: NonNull<u8>,
    pub(crate) len: usize,
}

// SAFETY: a number and an address. Code that follows the address argues for itself.
unsafe impl Send for Seg {}
// SAFETY: as above.
unsafe impl Sync for Seg {}

impl Seg {
    /// Creates a piece whose memory isn't there yet.
    pub(crate) fn dangling(len: usize) -> Self {
        Self { base: NonNull::dangling(), len }
    }

    /// Creates a piece of bytes to read from; the pointer must not be written through.
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self { base: NonNull::from(bytes).cast(), len: bytes.len() }
    }

    /// Creates a piece of bytes to write to.
    pub(crate) fn of_room(room: &mut [MaybeUninit<u8>]) -> Self {
        Self { len: room.len(), base: NonNull::from(room).cast() }
    }
}

/// The place of the list of a request's pieces.
#[derive(Debug)]
pub(crate) enum Table {
    /// The table of a request without bytes.
    None,
    One(Seg),
    Many(Box<[Seg]>),
    /// The list of the request of which this one is a part. The list stays where it is, and its
    /// memory alive, as long as the part isn't finished.
    Theirs(NonNull<[Seg]>),
}

// SAFETY: the list behind `Theirs` is immutable while a part refers to it, and what is in it is
// Send and Sync.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Table {
    #[inline]
    pub(crate) fn segs(&self) -> &[Seg] {
        match self {
            Table::None => &[],
            Table::One(seg) => std::slice::from_ref(seg),
            Table::Many(segs) => segs,
            // SAFETY: the part that has this table isn't finished, else the table would be `None`;
            // so the whole, which owns the list and doesn't change it meanwhile, is alive.
            Table::Theirs(segs) => unsafe { segs.as_ref() },
        }
    }

    pub(crate) fn segs_mut(&mut self) -> &mut [Seg] {
        match self {
            Table::None | Table::Theirs(_) => &mut [],
            Table::One(seg) => std::slice::from_mut(seg),
            Table::Many(segs) => segs,
        }
    }
}

/// Returns the next of `left` bytes that lie in `segs` behind the first `skip`.
#[inline]
pub(crate) fn next_piece(segs: &mut &[Seg], skip: &mut u64, left: &mut u64) -> Option<Seg> {
    while *left != 0 {
        let (seg, rest) = segs.split_first()?;
        *segs = rest;
        let gone = (*skip).min(seg.len as u64);
        *skip -= gone;
        let len = (seg.len as u64 - gone).min(*left);
        if len != 0 {
            *left -= len;
            // SAFETY: `gone` is at most the length of the piece, which is one allocation.
            let base = unsafe { seg.base.add(gone as usize) };
            return Some(Seg { base, len: len as usize });
        }
    }
    None
}

// A function that is called once, stored in place: the receiver of a request's end.

/// A `Box<dyn FnOnce(A) + Send>` without the box, for closures of up to `WORDS` words: by default
/// an `Arc` or two, a cookie and a length. A larger one is boxed.
pub(crate) struct InlineFn<A: 'static, const WORDS: usize = 6> {
    /// The room of a closure of the type that `table` was made for.
    space: MaybeUninit<[usize; WORDS]>,
    table: &'static FnTable<A>,
}

/// The functions of a closure whose type is erased.
struct FnTable<A> {
    /// Moves the closure out of the space and calls it.
    call: unsafe fn(*mut u8, A),
    /// Drops the closure in place.
    drop: unsafe fn(*mut u8),
}

/// Makes the table of a closure type.
struct TableOf<A, F>(PhantomData<(A, F)>);

impl<A: 'static, F: FnOnce(A) + Send + 'static> TableOf<A, F> {
    const TABLE: FnTable<A> = FnTable { call: Self::call, drop: Self::drop };

    /// Calls the closure, and drops it.
    ///
    /// # Safety
    /// `space` holds an `F`, which the caller gives up.
    unsafe fn call(space: *mut u8, a: A) {
        // SAFETY: the caller says that it is an F, aligned since only such are stored, and ours.
        let f = unsafe { space.cast::<F>().read() };
        f(a);
    }

    /// Drops the closure without a call.
    ///
    /// # Safety
    /// The obligations are those of `call`.
    unsafe fn drop(space: *mut u8) {
        // SAFETY: as in `call`.
        unsafe { space.cast::<F>().drop_in_place() };
    }
}

// SAFETY: only closures that are Send are stored.
unsafe impl<A, const WORDS: usize> Send for InlineFn<A, WORDS> {}
// SAFETY: a shared reference gives no access to the closure.
unsafe impl<A, const WORDS: usize> Sync for InlineFn<A, WORDS> {}

impl<A: 'static, const WORDS: usize> InlineFn<A, WORDS> {
    pub(crate) fn new<F: FnOnce(A) + Send + 'static>(f: F) -> Self {
        if size_of::<F>() <= size_of::<[usize; WORDS]>() && align_of::<F>() <= align_of::<usize>() {
            Self::in_place(f)
        } else {
            let f = Box::new(f);
            Self::in_place(f)
        }
    }

    fn in_place<F: FnOnce(A) + Send + 'static>(f: F) -> Self {
        let mut space = MaybeUninit::<[usize; WORDS]>::uninit();
        assert!(size_of::<F>() <= size_of_val(&space) && align_of::<F>() <= align_of::<usize>());
        // SAFETY: the space is large enough and aligned, as just asserted; it holds nothing yet.
        unsafe { space.as_mut_ptr().cast::<F>().write(f) };
        Self { space, table: &TableOf::<A, F>::TABLE }
    }

    /// Calls the function, and drops it.
    pub(crate) fn call(self, a: A) {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the space holds the closure that the table was made for; `this` isn't dropped, so
        // it is moved out once.
        unsafe { (this.table.call)(this.space.as_mut_ptr().cast(), a) };
    }
}

impl<A, const WORDS: usize> Drop for InlineFn<A, WORDS> {
    fn drop(&mut self) {
        // SAFETY: the space holds the closure that the table was made for: `call` forgets `self`.
        unsafe { (self.table.drop)(self.space.as_mut_ptr().cast()) };
    }
}

impl<A, const WORDS: usize> fmt::Debug for InlineFn<A, WORDS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InlineFn")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_window_of_a_list_gives_the_bytes_in_their_order() {
        let bytes: Vec<u8> = (0..20).collect();
        let segs: Vec<Seg> =
            [0..3, 3..3, 3..4, 4..15, 15..20].into_iter().map(|r| Seg::of(&bytes[r])).collect();
        for skip in 0..=20 {
            for len in 0..=22 {
                let (mut rest, mut gone, mut left) = (&segs[..], skip as u64, len as u64);
                let mut got: Vec<u8> = Vec::new();
                while let Some(seg) = next_piece(&mut rest, &mut gone, &mut left) {
                    // SAFETY: the pieces lie in `bytes`, which lives.
                    got.extend(unsafe { std::slice::from_raw_parts(seg.base.as_ptr(), seg.len) });
                }
                assert_eq!(got, bytes[skip..20.min(skip + len)]);
            }
        }
    }
}

#[cfg(test)]
mod inline_fn_tests {
    use std::sync::Arc;

    use super::*;

    fn dropped_once_whether_called_or_not<const N: usize>() {
        let witness = Arc::new(());
        let (tx, rx) = std::sync::mpsc::channel();
        for call in [true, false] {
            let (theirs, tx, ballast) = (Arc::clone(&witness), tx.clone(), [7u8; N]);
            let f = InlineFn::<u32>::new(move |a| {
                let _theirs = theirs;
                tx.send((a, ballast.iter().map(|&b| u32::from(b)).sum::<u32>())).unwrap();
            });
            assert_eq!(Arc::strong_count(&witness), 2);
            if call {
                f.call(5);
                assert_eq!(rx.recv().unwrap(), (5, 7 * N as u32));
            } else {
                drop(f);
            }
            assert_eq!(Arc::strong_count(&witness), 1);
        }
    }

    #[test]
    fn a_closure_is_called_or_dropped_once_in_place_and_in_a_box() {
        dropped_once_whether_called_or_not::<0>();
        dropped_once_whether_called_or_not::<24>();
        dropped_once_whether_called_or_not::<25>();
        dropped_once_whether_called_or_not::<400>();
    }

    #[test]
    fn a_closure_that_wants_more_alignment_than_a_word_is_boxed() {
        #[repr(align(64))]
        struct Aligned(u8);
        let aligned = Aligned(3);
        let (tx, rx) = std::sync::mpsc::channel();
        InlineFn::<()>::new(move |()| {
            let at = &raw const aligned;
            tx.send((at.addr() % 64, aligned.0)).unwrap();
        })
        .call(());
        assert_eq!(rx.recv().unwrap(), (0, 3));
    }
}
