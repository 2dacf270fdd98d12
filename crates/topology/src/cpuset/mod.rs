//! A set of CPU numbers, as a bitmap.

mod words;

use std::fmt;
use words::Words;

/// A set of CPU numbers.
///
/// It is a bitmap that grows as needed, so it suits 512 CPUs as well as 2; up to CPU 127 it
/// allocates nothing. Equal sets are equal values, whatever order they were built in.
/// [`Display`](fmt::Display) writes the kernel's list format (`0-3,8`), and
/// [`FromStr`](std::str::FromStr) parses it.
///
/// ```
/// use corewise_topology::{CpuId, CpuSet};
///
/// let set: CpuSet = "0-3,8".parse()?;
/// assert_eq!(set.len(), 5);
/// assert!(set.contains(CpuId::new(8)));
/// assert_eq!(set.intersection(&CpuSet::full(3)).to_string(), "0-2");
/// # Ok::<(), corewise_topology::TopologyError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct CpuSet {
    // The last word is never zero: that makes the derived Eq and Hash those of the set.
    words: Words,
}

const BITS: u32 = u64::BITS;

impl CpuSet {
    /// Highest CPU number that a set can hold: that of the largest machine that a Linux kernel can
    /// be built for. It keeps a typing error in a list from using up the memory.
    pub const MAX_CPU: u32 = 8_191;

    /// Creates the empty set.
    pub fn new() -> CpuSet {
        CpuSet::default()
    }

    /// Creates the set of the CPUs `0..n`.
    ///
    /// # Panics
    /// If `n` is above [`CpuSet::MAX_CPU`] + 1.
    pub fn full(n: u32) -> CpuSet {
        (0..n).map(CpuId::new).collect()
    }

    /// Adds a CPU. Returns true if it was not in the set before.
    ///
    /// # Panics
    /// If `cpu` is above [`CpuSet::MAX_CPU`].
    pub fn insert(&mut self, cpu: CpuId) -> bool {
        assert!(
            cpu.number() <= Self::MAX_CPU,
            "CPU {cpu} exceeds the highest number, {}",
            Self::MAX_CPU
        );
        let (word, bit) = place(cpu.number());
        if self.words.len() <= word {
            self.words.grow(word + 1);
        }
        let new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        new
    }

    /// Adds all CPUs of a range, word by word, so that a list of many wide ranges is parsed
    /// quickly.
    pub(crate) fn insert_range(&mut self, first: u32, last: u32) {
        debug_assert!(first <= last && last <= Self::MAX_CPU);
        let ((from, _), (to, _)) = (place(first), place(last));
        if self.words.len() <= to {
            self.words.grow(to + 1);
        }
        for (word, bits) in self.words.iter_mut().enumerate().take(to + 1).skip(from) {
            let low = if word == from { u64::MAX << (first % BITS) } else { u64::MAX };
            let high = if word == to { u64::MAX >> (BITS - 1 - last % BITS) } else { u64::MAX };
            *bits |= low & high;
        }
    }

    /// Removes a CPU. Returns true if it was in the set before.
    pub fn remove(&mut self, cpu: CpuId) -> bool {
        let (word, bit) = place(cpu.number());
        let Some(held) = self.words.get_mut(word) else { return false };
        let had = *held & bit != 0;
        *held &= !bit;
        self.trim();
        had
    }

    /// Returns true if the CPU is in the set. Any number is allowed.
    pub fn contains(&self, cpu: CpuId) -> bool {
        let (word, bit) = place(cpu.number());
        self.words.get(word).is_some_and(|held| held & bit != 0)
    }

    /// Returns the number of CPUs in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns true if no CPU is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Returns the lowest CPU of the set.
    pub fn first(&self) -> Option<CpuId> {
        self.iter().next()
    }

    /// Returns the highest CPU of the set.
    pub fn last(&self) -> Option<CpuId> {
        let word = self.words.last()?;
        let number = (self.words.len() as u32 - 1) * BITS + (BITS - 1 - word.leading_zeros());
        Some(CpuId::new(number))
    }

    /// Returns the CPUs in rising order.
    pub fn iter(&self) -> Iter<'_> {
        Iter { words: &self.words, index: 0, rest: self.words.first().copied().unwrap_or(0) }
    }

    /// Returns the CPUs that are in either set.
    pub fn union(&self, other: &CpuSet) -> CpuSet {
        let (long, short) =
            if self.words.len() >= other.words.len() { (self, other) } else { (other, self) };
        let mut words = long.words.clone();
        for (word, more) in words.iter_mut().zip(short.words.iter()) {
            *word |= more;
        }
        CpuSet { words }
    }

    /// Returns the CPUs that are in both sets.
    pub fn intersection(&self, other: &CpuSet) -> CpuSet {
        let words = self.words.iter().zip(other.words.iter()).map(|(a, b)| a & b).collect();
        let mut set = CpuSet { words };
        set.trim();
        set
    }

    /// Returns the CPUs of this set that are not in the other one.
    pub fn difference(&self, other: &CpuSet) -> CpuSet {
        let mut set = self.clone();
        for (word, less) in set.words.iter_mut().zip(other.words.iter()) {
            *word &= !less;
        }
        set.trim();
        set
    }

    /// Returns true if each CPU of this set is in the other one. The empty set is a subset of any.
    pub fn is_subset(&self, other: &CpuSet) -> bool {
        self.words.len() <= other.words.len()
            && self.words.iter().zip(other.words.iter()).all(|(a, b)| a & !b == 0)
    }

    /// Returns true if some CPU is in both sets. Allocates nothing.
    pub fn intersects(&self, other: &CpuSet) -> bool {
        self.words.iter().zip(other.words.iter()).any(|(a, b)| a & b != 0)
    }

    fn trim(&mut self) {
        self.words.trim();
    }
}

fn place(cpu: u32) -> (usize, u64) {
    ((cpu / BITS) as usize, 1 << (cpu % BITS))
}

/// The CPUs of a [`CpuSet`] in rising order.
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    words: &'a [u64],
    index: usize,
    rest: u64,
}

impl Iterator for Iter<'_> {
    type Item = CpuId;

    fn next(&mut self) -> Option<CpuId> {
        while self.rest == 0 {
            self.index += 1;
            self.rest = *self.words.get(self.index)?;
        }
        let bit = self.rest.trailing_zeros();
        self.rest &= self.rest - 1;
        Some(CpuId::new(self.index as u32 * BITS + bit))
    }
}

impl<'a> IntoIterator for &'a CpuSet {
    type Item = CpuId;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl Extend<CpuId> for CpuSet {
    /// Adds the CPUs.
    ///
    /// # Panics
    /// If a CPU is above [`CpuSet::MAX_CPU`].
    fn extend<I: IntoIterator<Item = CpuId>>(&mut self, cpus: I) {
        for cpu in cpus {
            self.insert(cpu);
        }
    }
}

impl FromIterator<CpuId> for CpuSet {
    /// Creates the set of the CPUs.
    ///
    /// # Panics
    /// If a CPU is above [`CpuSet::MAX_CPU`].
    fn from_iter<I: IntoIterator<Item = CpuId>>(cpus: I) -> CpuSet {
        let mut set = CpuSet::new();
        set.extend(cpus);
        set
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CpuSet({self})")
    }
}

/// A CPU, by its number in the kernel.
///
/// It has a type of its own, so that the compiler distinguishes a CPU from a pod, a node, a cache
/// or a hardware queue. All of these have numbers too. [`Display`](fmt::Display) writes the plain
/// number. There are no other conversions from and to numbers, and it is as small and as fast as a
/// `u32`.
///
/// A machine may lack the CPU: [`Topology::cpu`](crate::Topology::cpu) tells.
///
/// ```
/// use corewise_topology::{CpuId, CpuSet};
///
/// let cpus = CpuSet::full(4);
/// assert!(cpus.contains(CpuId::new(3)));
/// assert_eq!(cpus.last(), Some(CpuId::new(3)));
/// assert_eq!(format!("cpu{}", CpuId::new(3)), "cpu3");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuId(u32);

impl CpuId {
    /// Returns the CPU with this number.
    #[inline]
    #[must_use]
    pub const fn new(number: u32) -> CpuId {
        CpuId(number)
    }

    /// Returns the kernel's number of this CPU.
    #[inline]
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// Returns the same number, as an index into a table by CPU.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The plain number is written, with the width and the fill that the format asks for.
impl fmt::Display for CpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_added_at_once_is_the_same_as_one_by_one() {
        for first in 0..140 {
            for last in first..200 {
                let mut set = CpuSet::from_iter([70, 199].map(CpuId::new));
                set.insert_range(first, last);
                let wanted: CpuSet = (first..=last).chain([70, 199]).map(CpuId::new).collect();
                assert_eq!(set, wanted, "{first}-{last}");
            }
        }
    }
}
