//! The history of a volume whose machine is lost: what has to be there afterwards, and what may be.

use std::sync::Arc;
use std::time::Duration;

use super::{BLOCKS, passes, read, write};
use crate::format::Chunk;
use crate::volume::{Fault, Volume};

/// Content of the volume after each change, and the number of changes before the last flush.
pub(super) struct History {
    pub(super) states: Vec<Vec<u32>>,
    flushed: usize,
}

/// Frequency of a kind of work.
#[derive(Clone, Copy)]
pub(super) struct Rates {
    /// Flushes in 16 steps, 12 at most.
    pub(super) flushes: u8,
    /// Longest pause in milliseconds.
    pub(super) pause: u64,
}

impl Default for History {
    fn default() -> Self {
        Self { states: vec![vec![0; BLOCKS as usize]], flushed: 0 }
    }
}

impl History {
    pub(super) fn now(&self) -> Vec<u32> {
        self.states.last().cloned().unwrap_or_default()
    }

    /// Records that all changes so far are durable.
    pub(super) fn is_flushed(&mut self) {
        self.flushed = self.states.len() - 1;
    }

    /// Checks that the volume has a prefix of the changes with all that were flushed, and begins
    /// anew with it.
    pub(super) fn goes_on_from(&mut self, found: Vec<u32>, when: &str) {
        let kept = self.states.iter().rposition(|state| *state == found);
        let flushed = self.flushed;
        assert!(
            kept.is_some_and(|kept| kept >= flushed),
            "{when}: kept {kept:?}, flushed {flushed}"
        );
        *self = Self { states: vec![found], flushed: 0 };
    }

    /// Works until the machine is lost, and closes the volume. Returns true if all was done.
    pub(super) async fn work(
        &mut self,
        volume: &Arc<Volume>,
        random: &mut fastrand::Rng,
        rates: Rates,
    ) -> bool {
        for _ in 0..60 {
            let start = random.u64(0..BLOCKS);
            let len = random.u64(1..=(BLOCKS - start).min(9));
            let range = start as usize..(start + len) as usize;
            let mut state = self.now();
            let what = random.u32(1..);
            let done = match random.u8(0..16) {
                0 | 1 => {
                    state[range].fill(0);
                    volume.change(start, len, Chunk::Zero).await
                }
                2 => {
                    passes(Duration::from_millis(random.u64(0..rates.pause))).await;
                    continue;
                }
                3 => match read(volume, start, len).await {
                    Ok(found) => {
                        assert_eq!(found, state[range]);
                        continue;
                    }
                    Err(Fault::Damaged(why)) => panic!("{why}"),
                    Err(_) => return false,
                },
                n if n < 4 + rates.flushes => {
                    if volume.flush().await.is_err() {
                        return false;
                    }
                    self.is_flushed();
                    continue;
                }
                _ => {
                    state[range].fill(what);
                    write(volume, start, len, what).await
                }
            };
            // It may exist although no answer came.
            self.states.push(state);
            if done.is_err() {
                return false;
            }
        }
        if let Err(why) = volume.close().await {
            assert!(!matches!(why, Fault::Damaged(_)), "{why}");
            return false;
        }
        self.is_flushed();
        true
    }
}
