//! The bytes that a client has sent and nobody has understood yet, in a buffer of which writes get slices.
//!
//! A slice keeps its whole buffer. So a client could have each of its requests keep one: a few bytes to be written, and a bufferful of
//! something else behind them. Here one earlier buffer may be kept like that, beside the present one. While it is, small
//! payloads are copied; a large one may have a slice, since it [is charged](charge) for all of the buffer.

use std::ops::{Deref, DerefMut};

use bytes::{Bytes, BytesMut};

/// Size of a buffer, in bytes: about what a Unix socket holds.
const RECEIVE: usize = 256 << 10;
/// Size of the first buffer, which the handshake has left. A client that never fills it needs no other, and it stays in a
/// core's cache.
const FIRST: usize = crate::negotiate::RECEIVE;
/// A buffer with less room than this is renewed,
const RECEIVE_MIN: usize = 32 << 10;
/// and the first one with less than this.
const FIRST_MIN: usize = 16 << 10;
/// A payload of so many bytes is charged for all of its buffer.
const LARGE: usize = 64 << 10;

/// How many bytes of memory the payload of a write takes.
pub(super) fn charge(length: u64) -> u64 {
    if length >= LARGE as u64 { length.max(RECEIVE as u64) } else { length }
}

pub(super) struct Received {
    buffer: BytesMut,
    /// The size of the next one, and the least room in this one.
    sizes: (usize, usize),
    /// Small slices of it have been taken.
    sliced: bool,
    /// An earlier buffer, of which there are small slices.
    kept: Option<Bytes>,
}

impl Received {
    pub(super) fn new(buffer: BytesMut) -> Received {
        Received { buffer, sizes: (FIRST, FIRST_MIN), sliced: false, kept: None }
    }

    /// Sees to it that there is room to receive into.
    pub(super) fn make_room(&mut self) {
        let room = self.buffer.capacity() - self.buffer.len();
        if room == 0 {
            self.sizes = (RECEIVE, RECEIVE_MIN);
        }
        let (size, least) = self.sizes;
        if room >= least {
            return;
        }
        let sliced = std::mem::take(&mut self.sliced);
        if self.buffer.try_reclaim(size) {
            return;
        }
        let mut new = BytesMut::with_capacity(size);
        new.extend_from_slice(&self.buffer);
        let old = std::mem::replace(&mut self.buffer, new).freeze();
        // None was kept when it was sliced.
        if sliced {
            self.kept = Some(old);
        }
    }

    fn is_one_kept(&mut self) -> bool {
        self.kept.take_if(|kept| kept.is_unique());
        self.kept.is_some()
    }

    /// The next `length` bytes, which are there, for a request of its own.
    pub(super) fn take(&mut self, length: usize) -> Bytes {
        let slice = self.buffer.split_to(length);
        if length < LARGE {
            if self.is_one_kept() {
                return Bytes::copy_from_slice(&slice);
            }
            self.sliced = true;
        }
        slice.freeze()
    }
}

impl Deref for Received {
    type Target = BytesMut;

    fn deref(&self) -> &BytesMut {
        &self.buffer
    }
}

impl DerefMut for Received {
    fn deref_mut(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills the buffer, and takes a payload of so many bytes from each bufferful.
    fn fill(received: &mut Received, payload: usize) -> Bytes {
        let room = received.capacity() - received.len();
        let old = received.len() + room;
        received.resize(old, 7);
        let taken = received.take(payload);
        let rest = received.len();
        let _ = received.split_to(rest);
        received.make_room();
        taken
    }

    #[test]
    fn one_earlier_buffer_is_kept_by_small_payloads_and_no_more() {
        let mut received = Received::new(BytesMut::new());
        received.make_room();
        let first = fill(&mut received, 512);
        assert!(!first.is_unique(), "a slice of a buffer that is kept");
        let second = fill(&mut received, 512);
        assert!(second.is_unique(), "a copy");
        let large = fill(&mut received, LARGE);
        assert!(large.is_unique() && large.len() == LARGE, "its buffer is its own");
        drop(first);
        let third = fill(&mut received, 512);
        assert!(!third.is_unique(), "a slice again, since the first has gone");
        assert!([&second, &large, &third].iter().all(|bytes| bytes.iter().all(|byte| *byte == 7)));
    }

    #[test]
    fn a_client_keeps_the_small_buffer_of_its_handshake_until_it_fills_it() {
        let mut received = Received::new(BytesMut::with_capacity(FIRST));
        let first = received.as_ptr().addr();
        for _ in 0..FIRST {
            received.make_room();
            received.extend_from_slice(&[7; 28]);
            let _ = received.split_to(28);
        }
        assert!((first..first + FIRST).contains(&received.as_ptr().addr()));
        let room = received.capacity() - received.len();
        received.resize(room, 7);
        received.make_room();
        assert!(received.capacity() >= RECEIVE);
        assert_eq!(received.len(), room);
    }

    #[test]
    fn a_payload_that_may_keep_a_buffer_alone_is_charged_for_it() {
        assert_eq!(charge(4096), 4096);
        assert_eq!(charge(LARGE as u64), RECEIVE as u64);
        assert_eq!(charge(1 << 20), 1 << 20);
    }
}
