//! Dependency counters: one atomic decrement decides which device is ready, so that no thread
//! waits.
//!
//! The protocol, its races and its proof stand in `README.md` beside this file; the steps named
//! there (Seed, Release, Settle) are the names used in the comments here.

use corewise_sync::atomic::{AtomicU32, Ordering};

/// One counter of unfinished dependencies per device.
///
/// Devices are plain indices here: the type knows nothing of graphs, so that it can be
/// model-checked alone (`tests/loom/counters.rs`). No method blocks. None allocates, except that
/// [`Counters::finish`] grows the caller's stack.
#[derive(Debug)]
pub struct Counters {
    cells: Box<[Counter]>,
}

#[derive(Debug)]
struct Counter {
    /// A: unfinished dependencies, plus one until the seeder has passed.
    left: AtomicU32,
}

/// Result of taking one dependency away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a device that became ready has to be settled, or those behind it wait for ever"]
pub enum Release {
    /// Something that the device depends on is unfinished.
    Waiting,
    /// The last dependency is gone. Exactly one caller gets this, and has to settle the device.
    Ready,
}

/// The caller's decision about a device that was released, see [`Counters::finish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The device is to be run; its runner calls [`Counters::finish`] for it later.
    Queued,
    /// The device is finished on the spot (there is nothing to call): its consumers are released
    /// too.
    Done,
}

impl Counters {
    /// Creates counters for devices with the given numbers of dependencies. None is released before
    /// it was seeded, see [`Counters::seed`].
    pub fn new(dependencies: impl IntoIterator<Item = u32>) -> Counters {
        let counter = |n: u32| Counter {
            // The seeder's own count: without it a device could be seen at zero twice, by the
            // seeder's scan and by the last dependency (README.md, "Seeded twice").
            left: AtomicU32::new(n + 1),
        };
        Counters { cells: dependencies.into_iter().map(counter).collect() }
    }

    /// Takes away the count that the starter holds on each device (step Seed). Called once per
    /// device by the thread that starts the run, in any order, also while devices seeded before are
    /// finishing.
    pub fn seed(&self, device: u32) -> Release {
        self.release(device)
    }

    /// Finishes `device` and, without recursion, every device that thereby has nothing left to wait
    /// for and that `settle` finishes on the spot.
    ///
    /// `feeds(d)` returns the devices that depend on `d`. `settle(released)` is called once for
    /// each device released here, on this thread, and returns what became of it. `stack` is scratch
    /// space: it is left empty, and reusing it saves the allocation.
    pub fn finish<'g, D: Copy + Into<u32> + 'g>(
        &self,
        device: u32,
        stack: &mut Vec<u32>,
        feeds: impl Fn(u32) -> &'g [D],
        mut settle: impl FnMut(u32) -> Settled,
    ) {
        stack.push(device);
        while let Some(device) = stack.pop() {
            for &dependent in feeds(device) {
                let dependent = dependent.into();
                if self.release(dependent) == Release::Ready && settle(dependent) == Settled::Done {
                    stack.push(dependent);
                }
            }
        }
    }

    /// Takes one count away (step Release).
    fn release(&self, device: u32) -> Release {
        let counter = &self.cells[device as usize];
        // Release: what this dependency did (its callback, say) comes before the decrement.
        // Acquire: the last one sees what all the others did. Partner: this same line
        // on the threads that finish the other dependencies.
        match counter.left.fetch_sub(1, Ordering::AcqRel) {
            1 => Release::Ready,
            before => {
                debug_assert!(before != 0, "device {device} was released more often than it waits");
                Release::Waiting
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]
mod tests {
    use super::*;

    /// Returns the feeds of each device; `needs[i]` lists what i depends on.
    fn reverse(needs: &[&[u32]]) -> Vec<Vec<u32>> {
        let mut feeds = vec![Vec::new(); needs.len()];
        for (i, mine) in (0u32..).zip(needs) {
            for &n in *mine {
                feeds[n as usize].push(i);
            }
        }
        feeds
    }

    fn counters(needs: &[&[u32]]) -> Counters {
        Counters::new(needs.iter().map(|n| u32::try_from(n.len()).unwrap()))
    }

    #[test]
    fn stepped_diamond_is_released_by_its_last_side() {
        let needs: [&[u32]; 4] = [&[], &[0], &[0], &[1, 2]];
        let (c, feeds) = (counters(&needs), reverse(&needs));
        let seeded: Vec<Release> = (0..4).map(|d| c.seed(d)).collect();
        assert_eq!(seeded, [Release::Ready, Release::Waiting, Release::Waiting, Release::Waiting]);
        let finish = |device| {
            let mut released: Vec<u32> = Vec::new();
            let of = |d: u32| feeds[d as usize].as_slice();
            c.finish(device, &mut Vec::new(), of, |d| {
                released.push(d);
                Settled::Queued
            });
            released
        };
        assert_eq!(finish(0), [1, 2]);
        assert!(finish(2).is_empty());
        assert_eq!(finish(1), [3]);
    }

    #[test]
    fn a_device_seeded_late_is_released_by_its_seed() {
        let c = counters(&[&[], &[0]]);
        assert_eq!(c.seed(0), Release::Ready);
        let feeds: [&[u32]; 2] = [&[1], &[]];
        c.finish(0, &mut Vec::new(), |d| feeds[d as usize], |_| Settled::Queued);
        assert_eq!(c.seed(1), Release::Ready);
    }

    #[test]
    fn a_chain_of_a_hundred_thousand_that_finish_on_the_spot_needs_no_stack() {
        let n = 100_000u32;
        let c = Counters::new((0..n).map(|i| u32::from(i > 0)));
        for d in 0..n {
            let _ = c.seed(d);
        }
        let next: Vec<u32> = (1..=n).collect();
        let mut stack = Vec::new();
        let mut count = 0;
        let of = |d: u32| if d + 1 < n { &next[d as usize..=d as usize] } else { &[] };
        c.finish(0, &mut stack, of, |_| {
            count += 1;
            Settled::Done
        });
        assert_eq!(count, n - 1);
        assert!(stack.is_empty() && stack.capacity() < 16);
    }
}
