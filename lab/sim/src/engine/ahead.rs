//! How far a core looks ahead: lines that it needs soon are on their way while it waits for others.
//!
//! A core takes up instructions until its reorder buffer is full, and asks for each line as soon as
//! its address is known. So misses overlap, but for three things: an address that was read from a
//! line which isn't here yet (a list is followed one miss after the other), instructions farther
//! ahead than the buffer has room, and what nothing passes (a call of the system, a full fence, the
//! end of a loop that waited). This is the interval model of processor simulators (Sniper).

use std::collections::VecDeque;

/// Bytes from a pointer within which an access is to what it points to.
const REACH: usize = 512;
/// Pointers that are remembered.
const POINTERS: usize = 8;
/// A wait shorter than this is none, in nanoseconds.
const NONE: f64 = 0.5;

/// The look-ahead of one CPU.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Time of instructions so far, without waits.
    worked: f64,
    /// Waits in the window: when by `worked`, and how long.
    waits: VecDeque<(f64, f64)>,
    /// Their sum.
    waited: f64,
    /// Nothing is asked for before.
    from: f64,
    /// Pointers read from lines that weren't here, and when they were.
    pointers: [(usize, f64); POINTERS],
    next: usize,
    /// When the line of the last access was here, if it was waited for.
    arrived: Option<f64>,
    /// The last thing was a pause in a loop that waits.
    pauses: bool,
}

impl Ahead {
    /// Nothing that follows is asked for before `time`.
    pub(super) fn from(&mut self, time: f64) {
        self.from = self.from.max(time);
        self.waits.clear();
        self.waited = 0.0;
    }

    /// Instructions took so long.
    pub(super) fn worked(&mut self, time: f64) {
        self.worked += time;
    }

    /// A loop waits.
    pub(super) fn waits(&mut self) {
        self.pauses = true;
    }

    /// When a line that is needed at `now` was asked for.
    pub(super) fn issued(&mut self, now: f64, window: f64, address: usize) -> f64 {
        while let Some((at, wait)) = self.waits.front() {
            if *at >= self.worked - window {
                break;
            }
            self.waited -= wait;
            self.waits.pop_front();
        }
        let mut issued = (now - window - self.waited).max(self.from);
        for (pointer, known) in &self.pointers {
            if address.wrapping_sub(*pointer) < REACH {
                issued = issued.max(*known);
            }
        }
        issued.min(now)
    }

    /// An access that took `time` itself and waited for `wait` is done `until` then.
    pub(super) fn accessed(&mut self, time: f64, wait: f64, until: f64) {
        self.worked += time;
        self.arrived = (wait > NONE).then_some(until);
        if wait > NONE {
            self.waits.push_back((self.worked, wait));
            self.waited += wait;
            if self.pauses {
                self.from(until);
            }
        }
        self.pauses = false;
    }

    /// The last access read this.
    pub(super) fn loaded(&mut self, value: usize) {
        let Some(at) = self.arrived.take() else { return };
        // Words have tags above and below their pointers.
        let pointer = value & 0xffff_ffff_ffff & !0x3f;
        if pointer > 0xffff {
            self.pointers[self.next] = (pointer, at);
            self.next = (self.next + 1) % POINTERS;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: f64 = 40.0;

    /// The time of so many misses of 100 ns each, at addresses that `next` gives: whether each was
    /// read in the line before.
    fn misses(count: usize, work: f64, list: bool) -> f64 {
        let (mut ahead, mut now) = (Ahead::default(), 0.0);
        for number in 0..count {
            let address = 0x10_0000 + number * 4096;
            now += work;
            ahead.worked(work);
            let issued = ahead.issued(now, WINDOW, address);
            let until = now.max(issued + 100.0);
            ahead.accessed(0.0, until - now, until);
            now = until;
            if list {
                ahead.loaded(address + 4096 + 1);
            }
        }
        now
    }

    #[test]
    fn misses_overlap_as_far_as_the_window_reaches() {
        let array = misses(100, 4.0, false);
        assert!((1000.0..1600.0).contains(&array), "ten at once: {array}");
        let far = misses(100, 50.0, false);
        assert!(far > 9_000.0, "the next one is out of sight: {far}");
    }

    #[test]
    fn a_list_costs_a_miss_each() {
        let list = misses(100, 4.0, true);
        assert!(list > 9_900.0, "{list}");
    }

    #[test]
    fn nothing_is_asked_for_before_a_barrier_or_the_end_of_a_wait() {
        let mut ahead = Ahead::default();
        ahead.from(1000.0);
        assert_eq!(ahead.issued(1001.0, WINDOW, 0x20_0000), 1000.0);
        ahead.waits();
        ahead.accessed(1.0, 100.0, 1200.0);
        assert_eq!(ahead.issued(1201.0, WINDOW, 0x30_0000), 1200.0);
    }
}
