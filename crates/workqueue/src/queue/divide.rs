//! Collections that several threads can work through: slices, their chunks, vectors, arrays and
//! ranges.

use std::marker::PhantomData;
use std::mem;
use std::ops::{Range, RangeInclusive};
use std::ptr::{self, NonNull};
use std::slice;

use sealed::{Part, Store};

/// Items that several threads can divide among them: a slice, its [`iter`](slice::iter) or
/// [`iter_mut`](slice::iter_mut), its [`chunks`](slice::chunks) and their like, a vector, an array,
/// or a range of integers. Let other iterators [`collect`](Iterator::collect) into a vector first.
///
/// It can't be implemented elsewhere.
pub trait Divisible {
    /// An item.
    type Item: Send;
    /// The owner of the elements while they are divided.
    #[doc(hidden)]
    type Store: Store<Item = Self::Item>;
    #[doc(hidden)]
    fn store(self) -> Self::Store;
}

pub(super) mod sealed {
    /// Items that haven't begun.
    pub trait Store {
        type Item;
        type Part<'a>: Part<Item = Self::Item>
        where
            Self: 'a;
        /// Returns an iterator over all of them.
        fn part(&mut self) -> Self::Part<'_>;
    }

    /// Some of the items, in their order. The drop of the iterator drops the rest.
    pub trait Part: Send {
        type Item;
        fn count(&self) -> usize;
        fn take_next(&mut self) -> Option<Self::Item>;
        /// Keeps the first `at` items, and returns the others.
        fn split_off(&mut self, at: usize) -> Self;
    }
}

/// A part of the elements of a vector, which it owns.
pub struct VectorPart<'a, T> {
    next: NonNull<T>,
    len: usize,
    vector: PhantomData<&'a mut Vec<T>>,
}

// SAFETY: it owns its elements, and shares nothing.
unsafe impl<T: Send> Send for VectorPart<'_, T> {}

impl<T: Send> Part for VectorPart<'_, T> {
    type Item = T;

    fn count(&self) -> usize {
        self.len
    }

    #[inline]
    fn take_next(&mut self) -> Option<T> {
        self.len = self.len.checked_sub(1)?;
        let next = self.next;
        // SAFETY: there was one more element. The pointer moves on to the next one, or to the end.
        unsafe {
            self.next = next.add(1);
            Some(next.read())
        }
    }

    fn split_off(&mut self, at: usize) -> Self {
        let len = self.len - at;
        self.len = at;
        // SAFETY: there are this many elements.
        VectorPart { next: unsafe { self.next.add(at) }, len, vector: PhantomData }
    }
}

impl<T> Drop for VectorPart<'_, T> {
    fn drop(&mut self) {
        let rest = ptr::slice_from_raw_parts_mut(self.next.as_ptr(), mem::take(&mut self.len));
        // SAFETY: they are its own.
        unsafe { ptr::drop_in_place(rest) };
    }
}

impl<T: Send> Store for Vec<T> {
    type Item = T;
    type Part<'a>
        = VectorPart<'a, T>
    where
        T: 'a;

    fn part(&mut self) -> VectorPart<'_, T> {
        let len = self.len();
        // SAFETY: the vector is empty from here on, and its elements are the part's.
        let next = unsafe {
            self.set_len(0);
            NonNull::new_unchecked(self.as_mut_ptr())
        };
        VectorPart { next, len, vector: PhantomData }
    }
}

impl<T: Send> Divisible for Vec<T> {
    type Item = T;
    type Store = Vec<T>;

    fn store(self) -> Vec<T> {
        self
    }
}

/// Items that are collected into a vector first.
macro_rules! collected {
    ($($(#[$of:meta])* [$($parameter:tt)*] $type:ty;)*) => {$(
        impl<$($parameter)*> Divisible for $type {
            type Item = <$type as IntoIterator>::Item;
            type Store = Vec<Self::Item>;

            fn store(self) -> Self::Store {
                self.into_iter().collect()
            }
        }
    )*};
}

collected! {
    [T: Send, const N: usize] [T; N];
    ['a, T: Sync] slice::Chunks<'a, T>;
    ['a, T: Sync] slice::ChunksExact<'a, T>;
    ['a, T: Sync] slice::RChunks<'a, T>;
    ['a, T: Sync] slice::Windows<'a, T>;
    ['a, T: Send] slice::ChunksMut<'a, T>;
    ['a, T: Send] slice::ChunksExactMut<'a, T>;
    ['a, T: Send] slice::RChunksMut<'a, T>;
}

impl<'s, T: Sync> Part for slice::Iter<'s, T> {
    type Item = &'s T;

    fn count(&self) -> usize {
        self.len()
    }

    #[inline]
    fn take_next(&mut self) -> Option<&'s T> {
        self.next()
    }

    fn split_off(&mut self, at: usize) -> Self {
        let (first, others) = self.as_slice().split_at(at);
        *self = first.iter();
        others.iter()
    }
}

impl<'s, T: Send> Part for slice::IterMut<'s, T> {
    type Item = &'s mut T;

    fn count(&self) -> usize {
        self.len()
    }

    #[inline]
    fn take_next(&mut self) -> Option<&'s mut T> {
        self.next()
    }

    fn split_off(&mut self, at: usize) -> Self {
        let (first, others) = mem::take(self).into_slice().split_at_mut(at);
        *self = first.iter_mut();
        others.iter_mut()
    }
}

/// A part that isn't divided any further.
pub struct Undivided<P>(Option<P>);

impl<P: Part> Store for Undivided<P> {
    type Item = P::Item;
    type Part<'a>
        = P
    where
        P: 'a;

    fn part(&mut self) -> P {
        self.0.take().expect("it is handed out once")
    }
}

macro_rules! whole {
    ($([$($parameter:tt)*] $type:ty, $part:ty, $of:expr;)*) => {$(
        impl<$($parameter)*> Divisible for $type {
            type Item = <$part as Part>::Item;
            type Store = Undivided<$part>;

            fn store(self) -> Self::Store {
                let of: fn($type) -> $part = $of;
                Undivided(Some(of(self)))
            }
        }
    )*};
}

whole! {
    ['a, T: Sync] &'a [T], slice::Iter<'a, T>, <[T]>::iter;
    ['a, T: Sync] &'a Vec<T>, slice::Iter<'a, T>, |vector| vector.iter();
    ['a, T: Sync] slice::Iter<'a, T>, slice::Iter<'a, T>, |all| all;
    ['a, T: Send] &'a mut [T], slice::IterMut<'a, T>, <[T]>::iter_mut;
    ['a, T: Send] &'a mut Vec<T>, slice::IterMut<'a, T>, |vector| vector.iter_mut();
    ['a, T: Send] slice::IterMut<'a, T>, slice::IterMut<'a, T>, |all| all;
}

macro_rules! ranges {
    ($($integer:ty)*) => {$(
        impl Part for Range<$integer> {
            type Item = $integer;

            fn count(&self) -> usize {
                self.size_hint().0
            }

            #[inline]
            fn take_next(&mut self) -> Option<$integer> {
                self.next()
            }

            fn split_off(&mut self, at: usize) -> Self {
                // `at` is at most the count, so it fits, and an overflow in between is undone.
                let middle = self.start.wrapping_add(at as $integer);
                let others = middle..self.end;
                self.end = middle;
                others
            }
        }

        whole! {
            [] Range<$integer>, Range<$integer>, |range| range;
        }

        collected! {
            [] RangeInclusive<$integer>;
        }
    )*};
}

ranges! { u8 u16 u32 u64 usize i8 i16 i32 i64 isize }

#[cfg(test)]
mod tests {
    use super::*;

    fn all<P: Part>(mut part: P) -> Vec<P::Item> {
        std::iter::from_fn(|| part.take_next()).collect()
    }

    #[test]
    fn a_part_keeps_its_first_items_and_gives_the_others() {
        fn halves<D: Divisible>(items: D) -> (Vec<D::Item>, Vec<D::Item>) {
            let mut store = items.store();
            let mut part = store.part();
            let others = part.split_off(part.count() / 2);
            (all(part), all(others))
        }
        assert_eq!(halves(vec![1, 2, 3, 4, 5]), (vec![1, 2], vec![3, 4, 5]));
        assert_eq!(halves([1, 2, 3]), (vec![1], vec![2, 3]));
        assert_eq!(halves(&[1, 2, 3][..]), (vec![&1], vec![&2, &3]));
        assert_eq!(halves(&mut [1, 2, 3][..]), (vec![&mut 1], vec![&mut 2, &mut 3]));
        assert_eq!(halves(-100..100_i8).1, (0..100).collect::<Vec<i8>>());
        assert_eq!(halves(0..=3_u64), (vec![0, 1], vec![2, 3]));
        assert_eq!(halves([1, 2, 3, 4, 5].chunks(2)), (vec![&[1, 2][..]], vec![&[3, 4][..], &[5]]));
        assert_eq!(halves(0..0_u32), (vec![], vec![]));
    }

    #[test]
    fn what_nobody_has_taken_is_dropped_once() {
        let item = std::rc::Rc::new(());
        struct Of(#[expect(dead_code)] std::rc::Rc<()>);
        // SAFETY: it stays on this thread.
        unsafe impl Send for Of {}
        let mut items: Vec<_> = (0..8).map(|_| Of(std::rc::Rc::clone(&item))).collect();
        let mut part = items.part();
        let others = part.split_off(5);
        drop(part.take_next());
        drop(part);
        assert_eq!(std::rc::Rc::strong_count(&item), 4);
        drop(others);
        assert_eq!((std::rc::Rc::strong_count(&item), items.len()), (1, 0));
    }
}
