//! Extents: the bytes of a range that are allocated, and those that are known to read as zeroes.
//!
//! An answer is a snapshot: a change in flight at the same time is in it or not. A driver claims
//! nothing that it doesn't know: bytes of unknown content count as data, and a driver that can't
//! answer has only such bytes.

/// The content of an extent, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExtentKind {
    /// Data, or unknown content.
    Data,
    /// Zeroes that have their space.
    Zero,
    /// Zeroes without space: a write there may find that none is left.
    Hole,
}

impl ExtentKind {
    /// Returns true if it reads as zeroes.
    pub const fn is_zero(self) -> bool {
        matches!(self, ExtentKind::Zero | ExtentKind::Hole)
    }
}

/// A stretch of a device of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes, not 0.
    pub len: u64,
    /// Kind of its content.
    pub kind: ExtentKind,
}

/// The extents of a range, one after the other from its first byte on. They may end before the
/// range does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extents {
    /// Largest number of extents.
    most: u32,
    /// True once an extent was refused: later ones have no place here.
    closed: bool,
    /// Each extent's end and kind.
    list: Vec<(u64, ExtentKind)>,
}

impl Extents {
    pub(crate) fn new(most: u32) -> Self {
        Self { most: most.max(1), closed: false, list: Vec::new() }
    }

    /// Iterates in the order of the device; neighbours differ in their kind.
    pub fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        let mut from = 0;
        self.list.iter().map(move |&(end, kind)| {
            let len = end - std::mem::replace(&mut from, end);
            Extent { len, kind }
        })
    }

    /// Returns how many there may be.
    pub fn most(&self) -> u32 {
        self.most
    }

    /// Returns how many bytes they cover.
    pub fn covered(&self) -> u64 {
        self.list.last().map_or(0, |(end, _)| *end)
    }

    /// Adds an extent after the others, in a range of `len` bytes; returns true if there is use for
    /// another one.
    pub(crate) fn push(&mut self, extent: Extent, len: u64) -> bool {
        let covered = self.covered();
        let end = covered.saturating_add(extent.len).min(len);
        if self.closed {
            return false;
        }
        if end > covered {
            let full = self.list.len() as u64 >= u64::from(self.most);
            match self.list.last_mut() {
                Some((last, kind)) if *kind == extent.kind => *last = end,
                _ if full => {
                    self.closed = true;
                    return false;
                }
                _ => self.list.push((end, extent.kind)),
            }
        }
        // This is true also if no more fit: the next one may be of the last one's kind.
        end < len
    }

    /// Completes the answer to a request of `len` bytes that ended well.
    pub(crate) fn finish(&mut self, len: u64) {
        if self.list.is_empty() {
            self.push(Extent { len, kind: ExtentKind::Data }, len);
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.most);
    }
}

/// The extents that the parts of a request have found, each with its start in the whole.
#[derive(Debug, Default)]
pub(crate) struct FoundExtents(Vec<(u64, Extents)>);

impl FoundExtents {
    pub(crate) fn add(&mut self, at: u64, extents: Extents) {
        self.0.push((at, extents));
    }

    /// Passes the extents without a gap from byte `reached` on to `put`, until that returns false.
    pub(crate) fn put_into(mut self, mut reached: u64, mut put: impl FnMut(Extent) -> bool) {
        self.0.sort_unstable_by_key(|(at, _)| *at);
        for (at, extents) in self.0 {
            if at != reached {
                return;
            }
            for extent in extents.iter() {
                reached += extent.len;
                if !put(extent) {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::request::Request;

    const DATA: ExtentKind = ExtentKind::Data;
    const HOLE: ExtentKind = ExtentKind::Hole;

    fn put(rq: &mut Request, len: u64, kind: ExtentKind) -> bool {
        rq.put_extent(Extent { len, kind })
    }

    fn list(rq: &Request) -> Vec<(u64, ExtentKind)> {
        rq.extents().unwrap().iter().map(|e| (e.len, e.kind)).collect()
    }

    #[test]
    fn extents_of_one_kind_become_one_and_what_is_behind_the_range_is_cut_off() {
        let mut rq = Request::extents_of(4096, 1000, 8);
        assert!(put(&mut rq, 100, HOLE) && put(&mut rq, 0, DATA) && put(&mut rq, 100, HOLE));
        assert!(put(&mut rq, 300, DATA));
        assert!(!put(&mut rq, u64::MAX, HOLE) && !put(&mut rq, 1, DATA));
        assert_eq!(list(&rq), [(200, HOLE), (300, DATA), (500, HOLE)]);
        assert!(!Request::read(0, 512).put_extent(Extent { len: 1, kind: DATA }));
    }

    #[test]
    fn no_more_extents_are_taken_than_were_asked_for_but_the_last_one_may_grow() {
        let mut rq = Request::extents_of(0, 1000, 2);
        assert!(put(&mut rq, 1, HOLE) && put(&mut rq, 1, DATA) && put(&mut rq, 1, DATA));
        assert!(
            !put(&mut rq, 1, HOLE) && !put(&mut rq, 1, DATA),
            "nothing behind what was refused"
        );
        assert_eq!(list(&rq), [(1, HOLE), (2, DATA)]);
        let mut rq = Request::extents_of(0, 1000, 0);
        assert!(put(&mut rq, 1, HOLE) && !put(&mut rq, 1, DATA), "one is always taken");
    }

    #[test]
    fn what_parts_have_found_counts_up_to_the_first_gap() {
        let part = |len, kinds: &[(u64, ExtentKind)]| {
            let mut rq = Request::extents_of(0, len, 8);
            kinds.iter().for_each(|&(len, kind)| _ = put(&mut rq, len, kind));
            rq.extents().unwrap().clone()
        };
        let mut found = FoundExtents::default();
        found.add(512, part(512, &[(100, HOLE), (100, DATA)]));
        found.add(0, part(512, &[(12, DATA), (500, HOLE)]));
        found.add(1024, part(512, &[(512, HOLE)]));
        let mut rq = Request::extents_of(0, 4096, 8);
        found.put_into(0, |extent| rq.put_extent(extent));
        assert_eq!(list(&rq), [(12, DATA), (600, HOLE), (100, DATA)]);
    }
}
