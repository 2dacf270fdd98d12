//! Which blocks of a device are being changed, and which changes wait for that to be over. Pure.

use std::ops::RangeInclusive;

/// The blocks that a change touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// By their numbers.
    pub range: RangeInclusive<u64>,
    /// It covers its block in part: nobody else may change that meanwhile.
    pub alone: bool,
}

impl Blocks {
    fn bears(&self, other: &Blocks) -> bool {
        let apart =
            self.range.end() < other.range.start() || other.range.end() < self.range.start();
        apart || !(self.alone || other.alone)
    }
}

#[derive(Debug)]
struct Entry<T> {
    id: u64,
    blocks: Blocks,
    /// The change, where it waits.
    waiting: Option<T>,
}

/// The changes that are under way or wait, in the order in which they came.
#[derive(Debug)]
pub struct Table<T> {
    entries: Vec<Entry<T>>,
    last: u64,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { entries: Vec::new(), last: 0 }
    }
}

impl<T> Table<T> {
    /// Enters a change: under which number, and the change itself where it may begin. Else it waits for each earlier one
    /// that doesn't bear it.
    pub fn enter(&mut self, blocks: Blocks, change: T) -> (u64, Option<T>) {
        self.last += 1;
        let free = self.entries.iter().all(|entry| entry.blocks.bears(&blocks));
        let (waiting, begins) = if free { (None, Some(change)) } else { (Some(change), None) };
        self.entries.push(Entry { id: self.last, blocks, waiting });
        (self.last, begins)
    }

    /// Takes out a change that is over: those that may begin now, in their order.
    pub fn leave(&mut self, id: u64) -> Vec<(u64, T)> {
        let mut begin = Vec::new();
        let Some(at) = self.entries.iter().position(|entry| entry.id == id) else { return begin };
        let gone = self.entries.remove(at);
        for n in at..self.entries.len() {
            let (earlier, rest) = self.entries.split_at_mut(n);
            let entry = &mut rest[0];
            let waited = entry.waiting.is_some() && !entry.blocks.bears(&gone.blocks);
            if waited && earlier.iter().all(|earlier| earlier.blocks.bears(&entry.blocks)) {
                begin.extend(entry.waiting.take().map(|change| (entry.id, change)));
            }
        }
        begin
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(range: RangeInclusive<u64>) -> Blocks {
        Blocks { range, alone: false }
    }

    fn part(block: u64) -> Blocks {
        Blocks { range: block..=block, alone: true }
    }

    #[test]
    fn changes_of_whole_blocks_bear_each_other_and_those_of_a_part_bear_nobody() {
        let mut table = Table::default();
        assert_eq!(table.enter(whole(0..=9), 'a').1, Some('a'));
        assert_eq!(table.enter(whole(5..=5), 'b').1, Some('b'));
        assert_eq!(table.enter(part(10), 'c').1, Some('c'));
        let (_, waits) = table.enter(part(5), 'd');
        assert_eq!(waits, None);
        assert_eq!(table.enter(whole(6..=6), 'e').1, Some('e'), "nothing of it is wanted");
        assert_eq!(table.leave(1), []);
        assert_eq!(table.leave(2), [(4, 'd')], "nobody else has its block");
        assert_eq!(table.enter(part(5), 'f').1, None);
        assert_eq!(table.enter(whole(5..=6), 'g').1, None, "not past the one that waits");
        assert_eq!(table.leave(4), [(6, 'f')]);
        assert_eq!(table.leave(6), [(7, 'g')]);
    }

    #[test]
    fn whatever_comes_and_goes_no_two_that_do_not_bear_each_other_are_under_way() {
        let mut rng = fastrand::Rng::with_seed(7);
        let mut below = |n: u64| rng.u64(..n);
        let mut table = Table::default();
        let mut under_way: Vec<(u64, Blocks)> = Vec::new();
        let mut ended = 0;
        for n in 0..20_000 {
            if below(2) == 0 && table.len() < 30 {
                let first = below(12);
                let blocks =
                    if below(2) == 0 { part(first) } else { whole(first..=first + below(4)) };
                let (id, begins) = table.enter(blocks.clone(), blocks);
                under_way.extend(begins.map(|blocks| (id, blocks)));
            } else if !under_way.is_empty() {
                let (id, _) = under_way.swap_remove(below(under_way.len() as u64) as usize);
                under_way.extend(table.leave(id));
                ended += 1;
            }
            for (at, (_, one)) in under_way.iter().enumerate() {
                assert!(under_way[at + 1..].iter().all(|(_, two)| one.bears(two)), "{n}");
            }
            assert_eq!(under_way.is_empty(), table.is_empty(), "the first one never waits");
        }
        assert!(ended > 5_000);
    }
}
