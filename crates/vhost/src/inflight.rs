//! The record of requests in flight, in memory that the frontend keeps: it survives this process.
//!
//! Its layout and its steps are those of the section "Inflight I/O tracking" of the vhost-user
//! specification, for split rings. The frontend can write to it, so nothing in it is believed:
//! each value is read once, and a value that is out of range is an error of this ring alone.
//!
//! A request is recorded before anything is done for it, in the order of the available ring
//! ([`InflightRing::begin`]). Its end is recorded around the change of the used ring's index
//! ([`InflightRing::before_used`], [`InflightRing::after_used`]). A crash between the two leaves
//! `used_idx` behind the ring's index by one, and the head of that request in `last_batch_head`.

use std::fs::File;
use std::sync::Arc;

use corewise_sync::atomic::{Ordering, fence};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use vm_memory::Bytes;

use crate::faults::{Mapping, MemoryLoss};

/// Bytes in front of the entries: features, version, number of entries, head of the last batch,
/// used index.
const HEAD: usize = 16;
/// The features of the first ring have the mark of a server that lost nothing, if any.
const CLEAN_AT: usize = 0;
const CLEAN: u64 = 1;
const VERSION_AT: usize = 8;
const ENTRIES_AT: usize = 10;
const LAST_BATCH_AT: usize = 12;
const USED_AT: usize = 14;
/// Bytes of an entry: one of the flag, five of padding, two of the next head, eight of the counter.
const ENTRY: usize = 16;
const NEXT_AT: usize = 6;
const COUNTER_AT: usize = 8;

const VERSION: u16 = 1;

/// The record's name in errors.
const RECORD: &str = "the record of requests in flight";

/// Returns the bytes that the record of one ring takes.
fn ring_size(queue_size: u16) -> usize {
    (HEAD + ENTRY * usize::from(queue_size)).next_multiple_of(64)
}

/// The records of all rings of a frontend.
#[derive(Debug, Clone)]
pub(crate) struct InflightRegion {
    mapping: Arc<Mapping>,
    rings: u16,
    queue_size: u16,
    /// True if changes that a former server answered may be lost.
    after_loss: bool,
}

impl InflightRegion {
    /// Creates an empty record, and the memory for it, which the frontend keeps. Returns its size
    /// too.
    pub(crate) fn create(
        rings: u16,
        queue_size: u16,
        loss: &Arc<MemoryLoss>,
    ) -> Result<(Self, File, u64), String> {
        let size = usize::from(rings) * ring_size(queue_size);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let words = |error| format!("cannot make memory for requests in flight: {error}");
        let file = memfd_create("corewise-inflight", flags).map_err(words)?;
        ftruncate(&file, size as u64).map_err(words)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&file, seals).map_err(words)?;
        let file = File::from(file);
        let theirs = file.try_clone().map_err(|error| error.to_string())?;
        Ok((Self::map(file, 0, size as u64, rings, queue_size, loss)?, theirs, size as u64))
    }

    /// Maps a record that a frontend has kept.
    pub(crate) fn map(
        file: File,
        offset: u64,
        size: u64,
        rings: u16,
        queue_size: u16,
        loss: &Arc<MemoryLoss>,
    ) -> Result<Self, String> {
        let needed = u64::from(rings) * ring_size(queue_size) as u64;
        if size < needed {
            return Err(format!(
                "{RECORD} has {size} bytes, and {rings} rings of \
                 {queue_size} need {needed}"
            ));
        }
        let mapping = Mapping::new(RECORD, file, offset, size, 0, loss)?;
        Ok(Self { mapping, rings, queue_size, after_loss: false })
    }

    /// Returns its mapping.
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Records that the server ends, and that all changes it answered are durable.
    pub(crate) fn mark_clean(&self) {
        if self.rings > 0 {
            let slice = self.mapping.bytes();
            slice.store(CLEAN.to_le(), CLEAN_AT, Ordering::Release).expect(MAPPED);
        }
    }

    /// Returns true if a former server has lost nothing, and removes its mark.
    pub(crate) fn take_mark(&self) -> bool {
        let slice = self.mapping.bytes();
        let has = self.rings > 0
            && slice
                .load::<u64>(CLEAN_AT, Ordering::Acquire)
                .is_ok_and(|word| u64::from_le(word) == CLEAN);
        if has {
            slice.store(0_u64, CLEAN_AT, Ordering::Release).expect(MAPPED);
        }
        has
    }

    /// Records that changes that a former server answered may be lost.
    pub(crate) fn set_after_loss(&mut self) {
        self.after_loss = true;
    }

    /// Returns true if changes that a former server answered may be lost.
    pub(crate) fn is_after_loss(&self) -> bool {
        self.after_loss
    }

    /// Returns the record of one ring, if it is there and has that size.
    pub(crate) fn ring(&self, index: usize, size: u16) -> Option<InflightRing> {
        let is_there = index < usize::from(self.rings) && size <= self.queue_size;
        let at = index * ring_size(self.queue_size);
        is_there.then(|| InflightRing { mapping: Arc::clone(&self.mapping), at, size, counter: 0 })
    }
}

/// The record of one ring. The ring's thread alone uses it.
#[derive(Debug)]
pub(crate) struct InflightRing {
    mapping: Arc<Mapping>,
    at: usize,
    size: u16,
    /// Number of the next request.
    counter: u64,
}

/// The requests that an earlier server has left.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LeftRequests {
    /// The heads, in the order in which they were begun.
    pub(crate) heads: Vec<u16>,
}

/// The mapping is long enough and its fields are aligned, so no access fails.
const MAPPED: &str = "the record of a ring lies inside its mapping";

impl InflightRing {
    /// Returns the mapping of its region.
    pub(crate) fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    fn load(&self, at: usize) -> u16 {
        let slice = self.mapping.bytes();
        slice.load::<u16>(self.at + at, Ordering::Acquire).map_or(0, u16::from_le)
    }

    fn store(&self, at: usize, value: u16) {
        let slice = self.mapping.bytes();
        slice.store(value.to_le(), self.at + at, Ordering::Release).expect(MAPPED);
    }

    fn entry(head: u16) -> usize {
        HEAD + ENTRY * usize::from(head)
    }

    fn is_begun(&self, head: u16) -> bool {
        let slice = self.mapping.bytes();
        slice.load::<u8>(self.at + Self::entry(head), Ordering::Acquire).is_ok_and(|flag| flag == 1)
    }

    fn mark(&self, head: u16, begun: bool) {
        let slice = self.mapping.bytes();
        let at = self.at + Self::entry(head);
        slice.store(u8::from(begun), at, Ordering::Release).expect(MAPPED);
    }

    /// Reads what an earlier server has left of a ring whose used index is `used`, and corrects the
    /// entry of a request whose end was being recorded. A fresh record is made valid.
    ///
    /// # Errors
    /// If this is the record of another kind of ring.
    pub(crate) fn recover(&mut self, used: u16) -> Result<LeftRequests, String> {
        if self.load(VERSION_AT) == 0 {
            self.store(ENTRIES_AT, self.size);
            self.store(LAST_BATCH_AT, 0);
            self.store(USED_AT, used);
            self.store(VERSION_AT, VERSION);
            return Ok(LeftRequests { heads: Vec::new() });
        }
        let (version, entries) = (self.load(VERSION_AT), self.load(ENTRIES_AT));
        if version != VERSION || entries != self.size {
            return Err(format!(
                "the record of requests in flight has version {version} and {entries} entries, \
                 not version {VERSION} and {}",
                self.size
            ));
        }
        // The last batch was one request, or several of another server. It is as long as the used
        // index is behind.
        let behind = used.wrapping_sub(self.load(USED_AT)).min(self.size);
        let mut head = self.load(LAST_BATCH_AT);
        for _ in 0..behind {
            if head >= self.size {
                break;
            }
            self.mark(head, false);
            head = self.load(Self::entry(head) + NEXT_AT);
        }
        self.store(USED_AT, used);
        let slice = self.mapping.bytes();
        let mut left: Vec<(u64, u16)> = (0..self.size)
            .filter(|head| self.is_begun(*head))
            .map(|head| {
                let at = self.at + Self::entry(head) + COUNTER_AT;
                (slice.load::<u64>(at, Ordering::Acquire).map_or(0, u64::from_le), head)
            })
            .collect();
        left.sort_unstable();
        // Only the order of the numbers matters.
        self.counter = left.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        Ok(LeftRequests { heads: left.into_iter().map(|(_, head)| head).collect() })
    }

    /// Records a request before anything is done for it.
    pub(crate) fn begin(&mut self, head: u16) {
        let slice = self.mapping.bytes();
        let at = self.at + Self::entry(head) + COUNTER_AT;
        slice.store(self.counter.to_le(), at, Ordering::Release).expect(MAPPED);
        self.counter = self.counter.wrapping_add(1);
        self.mark(head, true);
    }

    /// Records that the used ring's index is about to count the end of this request.
    pub(crate) fn before_used(&self, head: u16) {
        self.store(Self::entry(head) + NEXT_AT, self.load(LAST_BATCH_AT));
        self.store(LAST_BATCH_AT, head);
        // A killed process has done its stores in program order; the fence keeps the compiler from
        // moving the used ring's index in front of them.
        fence(Ordering::SeqCst);
    }

    /// Records that the used ring's index, now `used`, counts it.
    pub(crate) fn after_used(&self, head: u16, used: u16) {
        fence(Ordering::SeqCst);
        self.mark(head, false);
        self.store(USED_AT, used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(size: u16) -> (InflightRegion, InflightRing) {
        let (region, _, bytes) = InflightRegion::create(2, size, &Arc::default()).unwrap();
        assert_eq!(bytes % 64, 0);
        let ring = region.ring(1, size).unwrap();
        (region, ring)
    }

    fn heads(ring: &mut InflightRing, used: u16) -> Vec<u16> {
        ring.recover(used).unwrap().heads
    }

    #[test]
    fn what_was_begun_and_has_not_ended_is_left_in_its_order() {
        let (region, mut ring) = ring(8);
        assert!(heads(&mut ring, 5).is_empty());
        for head in [3, 7, 0, 1] {
            ring.begin(head);
        }
        ring.before_used(7);
        ring.after_used(7, 6);
        let mut next = region.ring(1, 8).unwrap();
        assert_eq!(heads(&mut next, 6), [3, 0, 1]);
        next.begin(2);
        assert_eq!(heads(&mut region.ring(1, 8).unwrap(), 6), [3, 0, 1, 2]);
        assert!(heads(&mut region.ring(0, 8).unwrap(), 9).is_empty(), "the other ring");
    }

    #[test]
    fn a_crash_between_the_two_records_of_an_end_answers_neither_twice_nor_never() {
        let (region, mut ring) = ring(8);
        heads(&mut ring, 0);
        ring.begin(4);
        ring.begin(2);
        // Killed before the used ring counted it: it is executed again.
        ring.before_used(4);
        assert_eq!(heads(&mut region.ring(1, 8).unwrap(), 0), [4, 2]);
        // Killed after the used ring counted it, before that was recorded.
        ring.before_used(2);
        assert_eq!(heads(&mut region.ring(1, 8).unwrap(), 1), [4]);
        assert_eq!(heads(&mut region.ring(1, 8).unwrap(), 1), [4], "and for ever");
    }

    #[test]
    fn numbers_that_a_frontend_made_up_lead_nowhere() {
        let (region, mut ring) = ring(4);
        heads(&mut ring, 0);
        for head in 0..4 {
            ring.begin(head);
        }
        ring.store(LAST_BATCH_AT, 9);
        assert_eq!(heads(&mut region.ring(1, 4).unwrap(), 60_000).len(), 4);
        ring.store(LAST_BATCH_AT, 1);
        ring.store(InflightRing::entry(1) + NEXT_AT, 1);
        assert_eq!(heads(&mut region.ring(1, 4).unwrap(), 7).len(), 3, "a loop ends");
        ring.store(ENTRIES_AT, 5);
        assert!(region.ring(1, 4).unwrap().recover(0).is_err());
        ring.store(VERSION_AT, 2);
        assert!(region.ring(1, 4).unwrap().recover(0).is_err());
        assert!(region.ring(2, 4).is_none() && region.ring(0, 8).is_none());
    }
}
