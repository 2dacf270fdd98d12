//! Look-ahead of a core: it fetches the next lines while it waits for others.
//!
//! A core takes up instructions until its reorder buffer is full, and fetches each line as soon as
//! its address is known. So misses overlap, with three exceptions:
//!
//! - an address that was read from a line which isn't here yet: a list costs one miss after the
//!   other;
//! - an instruction for which the buffer has no room;
//! - a barrier: a system call, a full fence, the end of a waiting loop.
//!
//! This is the interval model of processor simulators (Sniper).

use std::collections::VecDeque;

/// Bytes behind a pointer within which an access touches the pointer's target.
const REACH: usize = 512;
/// Number of pointers that are remembered.
const POINTERS: usize = 8;
/// Shortest wait that counts, in nanoseconds.
const NONE: f64 = 0.5;

/// The look-ahead of one CPU.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Time of instructions so far, without waits.
    worked: f64,
    /// Waits in the window: the begin by `worked`, and the length.
    waits: VecDeque<(f64, f64)>,
    /// Sum of these waits.
    waited: f64,
    /// Earliest time of a fetch.
    from: f64,
    /// Pointers that were read from absent lines, and the arrival of these lines.
    pointers: [(usize, f64); POINTERS],
    next: usize,
    /// Arrival of the last access's line, if the access waited.
    arrived: Option<f64>,
    /// True after a pause in a waiting loop.
    pauses: bool,
}

impl Ahead {
    /// Forbids fetches before `time`.
    pub(super) fn from(&mut self, time: f64) {
        self.from = self.from.max(time);
        self.waits.clear();
        self.waited = 0.0;
    }

    /// Adds the time of instructions.
    pub(super) fn worked(&mut self, time: f64) {
        self.worked += time;
    }

    /// Notes the pause of a waiting loop.
    pub(super) fn waits(&mut self) {
        self.pauses = true;
    }

    /// Returns the time at which a line that is needed at `now` was fetched.
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

    /// Adds an access that took `time` itself, waited for `wait`, and is done at `until`.
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

    /// Notes the value that the last access read.
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

    /// Returns the time of `count` misses of 100 ns each. In a `list`, each address was read from
    /// the previous line.
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
