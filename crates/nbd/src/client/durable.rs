//! Which of the changes that were acknowledged are durable, as far as the other side's word goes. Pure.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// Changes that are noted with their places, at most.
const MOST_NOTED: usize = 16 << 10;

/// Changes are counted as they are acknowledged; a flush that succeeds covers those that were counted before it was sent.
#[derive(Debug, Default)]
pub(super) struct Durable {
    /// Changes that were acknowledged, and that don't stand for themselves as those with FUA do.
    acknowledged: u64,
    /// So many of them are durable, or were lost with a connection.
    settled: u64,
    /// Where those lie that aren't settled, each with its number. One that goes on where the last one ended makes that longer, and
    /// so is taken for unsettled with it.
    noted: VecDeque<(u64, Range<u64>)>,
    /// There were too many to note up to this number: they may lie anywhere.
    unnoted: u64,
    /// Some were lost with a connection, and nobody has been told yet.
    lost: bool,
    /// Where those lie, from the start of each to its end. The other side may show there what was before them.
    doubtful: BTreeMap<u64, u64>,
}

impl Durable {
    /// A change was acknowledged, that stands for itself or doesn't.
    pub(super) fn change(&mut self, range: &Range<u64>, durable: bool) {
        self.trust(range);
        if durable {
            return;
        }
        self.acknowledged += 1;
        if let Some((number, last)) = self.noted.back_mut() {
            if last.end == range.start {
                (*number, last.end) = (self.acknowledged, range.end);
                return;
            }
        }
        if self.noted.len() == MOST_NOTED {
            self.noted.clear();
            self.unnoted = self.acknowledged;
        } else {
            self.noted.push_back((self.acknowledged, range.clone()));
        }
    }

    /// What a flush that is sent now will cover.
    pub(super) fn covered(&self) -> u64 {
        self.acknowledged
    }

    /// A flush has succeeded that covers so many, on the connections on which they were acknowledged.
    pub(super) fn flushed(&mut self, covered: u64) {
        self.settled = self.settled.max(covered);
        while self.noted.front().is_some_and(|(number, _)| *number <= self.settled) {
            self.noted.pop_front();
        }
    }

    /// The connections are gone: whether changes may have gone with them.
    pub(super) fn broke(&mut self) -> bool {
        let lost = self.acknowledged > self.settled;
        if self.unnoted > self.settled {
            self.noted.clear();
            self.doubt(0..u64::MAX);
        }
        for (_, range) in std::mem::take(&mut self.noted) {
            self.doubt(range);
        }
        self.settled = self.acknowledged;
        self.lost |= lost;
        lost
    }

    /// Whether a flush has to fail, since changes before it may be lost. The next one needn't, and what is there now is what is
    /// read.
    pub(super) fn tell(&mut self) -> bool {
        self.doubtful.clear();
        std::mem::take(&mut self.lost)
    }

    /// Whether an acknowledged change may be missing there, and nobody has been told yet.
    pub(super) fn is_doubtful(&self, range: &Range<u64>) -> bool {
        let before = self.doubtful.range(..range.end).next_back();
        before.is_some_and(|(_, end)| *end > range.start)
    }

    fn doubt(&mut self, range: Range<u64>) {
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&from, &to)) = self.doubtful.range(..=end).next_back() {
            if to < start {
                break;
            }
            (start, end) = (start.min(from), end.max(to));
            self.doubtful.remove(&from);
        }
        self.doubtful.insert(start, end);
    }

    /// It was written anew.
    fn trust(&mut self, range: &Range<u64>) {
        while let Some((&from, &to)) = self.doubtful.range(..range.end).next_back() {
            if to <= range.start {
                return;
            }
            self.doubtful.remove(&from);
            if to > range.end {
                self.doubtful.insert(range.end, to);
            }
            if from < range.start {
                self.doubtful.insert(from, range.start);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_flush_fails_where_acknowledged_changes_went_with_a_connection() {
        let mut durable = Durable::default();
        durable.change(&(0..512), false);
        assert!(durable.broke() && durable.tell());
        assert!(!durable.tell() && !durable.broke(), "once");
    }

    #[test]
    fn nothing_is_lost_behind_a_flush_and_what_came_after_it_was_sent_is() {
        let mut durable = Durable::default();
        durable.change(&(0..512), false);
        let covered = durable.covered();
        durable.flushed(covered);
        assert!(!durable.broke() && !durable.tell());
        durable.change(&(0..512), false);
        let covered = durable.covered();
        durable.change(&(0..512), false);
        durable.flushed(covered);
        assert!(durable.broke() && durable.tell());
    }

    #[test]
    fn a_second_loss_before_anybody_was_told_is_told_with_the_first() {
        let mut durable = Durable::default();
        durable.change(&(0..512), false);
        assert!(durable.broke());
        assert!(!durable.broke());
        assert!(durable.tell());
        durable.change(&(0..512), false);
        assert!(durable.broke() && durable.tell());
    }

    #[test]
    fn what_was_lost_is_not_read_until_it_was_told_or_written_anew() {
        let mut durable = Durable::default();
        durable.change(&(0..512), false);
        let covered = durable.covered();
        for at in [1024, 1536, 4096] {
            durable.change(&(at..at + 512), false);
        }
        durable.change(&(8192..8704), true);
        durable.flushed(covered);
        assert!(!durable.is_doubtful(&(0..u64::MAX)), "the other side has them");
        assert!(durable.broke());
        let doubtful = |durable: &Durable| -> Vec<u64> {
            (0..20).map(|n| n * 512).filter(|at| durable.is_doubtful(&(*at..at + 512))).collect()
        };
        assert_eq!(doubtful(&durable), [1024, 1536, 4096]);
        assert!(durable.is_doubtful(&(0..1025)) && !durable.is_doubtful(&(2048..4096)));
        durable.change(&(1536..4097), false);
        assert_eq!(doubtful(&durable), [1024, 4096]);
        assert!(durable.broke());
        assert_eq!(doubtful(&durable), (1024..4608).step_by(512).collect::<Vec<_>>());
        durable.change(&(2048..2560), true);
        assert_eq!(doubtful(&durable).len(), 6);
        assert!(durable.tell() && doubtful(&durable).is_empty());
    }

    #[test]
    fn a_flush_covers_no_more_than_was_acknowledged_before_it_where_changes_follow_each_other() {
        let mut durable = Durable::default();
        durable.change(&(0..512), false);
        let covered = durable.covered();
        durable.change(&(512..1024), false);
        durable.flushed(covered);
        assert!(durable.broke() && durable.is_doubtful(&(512..1024)));
    }

    #[test]
    fn changes_that_are_too_many_to_note_may_lie_anywhere() {
        let mut durable = Durable::default();
        for n in 0..=MOST_NOTED as u64 {
            durable.change(&(n * 1024..n * 1024 + 512), false);
        }
        let covered = durable.covered();
        durable.change(&(512..1024), false);
        assert!(durable.noted.len() < 2);
        durable.flushed(covered);
        assert!(durable.broke() && durable.is_doubtful(&(512..1024)));
        assert!(!durable.is_doubtful(&(0..512)), "these were flushed");
        durable.change(&(0..512), false);
        assert!(durable.tell());
        for n in 0..=MOST_NOTED as u64 {
            durable.change(&(n * 1024..n * 1024 + 512), false);
        }
        assert!(durable.broke() && durable.is_doubtful(&(1 << 40..1 << 41)));
    }
}
