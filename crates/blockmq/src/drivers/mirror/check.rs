//! The check of a mirror: region by region, the legs in sync are read and compared. The resync's item does it when nothing is
//! left to be resynced, and a step of it holds the same lock of its region, so that no write is in the middle there. A difference, or a
//! place that can't be read, is only told, or, where that is asked for, called stale: then the resync makes it alike.

use std::ops::Range;

use super::keeper::Keeper;
use super::legs::each;
use super::{Inner, MirrorEvent};
use crate::device::BlockDeviceExt;
use crate::error::IoError;

/// Most places that are told one by one; all are counted.
const MOST_PLACES: usize = 64;

/// How a check goes, or went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MirrorCheck {
    /// It goes on. Else it is over, or was [stopped](super::Mirror::stop_check) before all was checked.
    pub running: bool,
    /// Whether what it finds is repaired.
    pub repair: bool,
    /// Bytes of the mirror that were looked at.
    pub checked: u64,
    /// Bytes of the mirror.
    pub size: u64,
    /// Bytes, of all legs together, that differ from the first leg in sync that could be read there.
    pub differ: u64,
    /// Bytes, of all legs together, that could not be read.
    pub unreadable: u64,
    /// Bytes of `differ` and `unreadable` that were repaired.
    pub repaired: u64,
    /// Where the first 64 of them are.
    pub places: Vec<MirrorPlace>,
}

/// A place where a leg of a mirror wasn't as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MirrorPlace {
    /// Which leg.
    pub leg: usize,
    /// Bytes of the mirror.
    pub range: Range<u64>,
    /// The leg that it differs from, and is repaired from; `None` where no leg could be read.
    pub from: Option<usize>,
    /// Why it can't be read; `None`: it differs.
    pub error: Option<IoError>,
}

/// A check, as the resync's item has it.
#[derive(Default)]
pub(super) struct Check {
    /// The region that is looked at next.
    at: usize,
    pub(super) rate: u64,
    /// Which check it is: one may be stopped, and the next one begun, while a step is in the middle.
    id: u64,
    /// It may look at it by now.
    due: bool,
    /// `None`: there was none yet.
    pub(super) report: Option<MirrorCheck>,
}

impl Check {
    /// False where one goes on.
    pub(super) fn begin(&mut self, rate: u64, repair: bool, size: u64) -> bool {
        if self.is_running() {
            return false;
        }
        let report = MirrorCheck { running: true, repair, size, ..MirrorCheck::default() };
        *self = Check { at: 0, rate, id: self.id + 1, due: true, report: Some(report) };
        true
    }

    pub(super) fn is_running(&self) -> bool {
        self.report.as_ref().is_some_and(|report| report.running)
    }

    /// Ends it; what it has found, where it was going on.
    pub(super) fn end(&mut self) -> Option<MirrorCheck> {
        let report = self.report.as_mut().filter(|report| report.running)?;
        report.running = false;
        Some(report.clone())
    }
}

impl Check {
    /// Check `id` has looked at a region of so many bytes; whether what was found there is to be repaired.
    fn note(&mut self, id: u64, region: usize, bytes: u64, found: &[MirrorPlace]) -> bool {
        let Some(report) = self.report.as_mut().filter(|r| r.running && self.id == id) else {
            return false;
        };
        (self.at, self.due) = (region + 1, false);
        report.checked += bytes;
        for place in found {
            let len = place.range.end - place.range.start;
            match place.error {
                Some(_) => report.unreadable += len,
                None => report.differ += len,
            }
        }
        let room = MOST_PLACES - report.places.len();
        report.places.extend(found.iter().take(room).cloned());
        report.repair && !found.is_empty()
    }
}

impl Inner {
    /// The region that a check wants next.
    pub(super) fn next_to_check(&self, keeper: &Keeper) -> Option<usize> {
        let mut check = keeper.check.lock();
        if !check.is_running() || !check.due {
            return None;
        }
        let at = check.at;
        if at < keeper.regions.len() {
            return Some(at);
        }
        let ended = check.end();
        drop(check);
        ended.into_iter().for_each(|report| self.tell_checked(keeper, report));
        None
    }

    /// The time for the next region has come. A kick of the resync doesn't wait for that.
    pub(super) fn check_on(keeper: &Keeper) {
        keeper.check.lock().due = true;
        keeper.kick_resync();
    }

    /// A check is over.
    pub(super) fn tell_checked(&self, keeper: &Keeper, report: MirrorCheck) {
        let MirrorCheck { checked, differ, unreadable, repaired, .. } = report;
        match differ + unreadable {
            0 => tracing::info!(checked, "a mirror was checked: its legs are alike"),
            _ => tracing::error!(
                checked,
                differ,
                unreadable,
                repaired,
                "a mirror was checked: its legs weren't alike"
            ),
        }
        keeper.note(MirrorEvent::CheckEnded { check: report });
        keeper.kick();
    }

    /// Compares the legs in a region, which is locked, and makes them alike there where that is asked for: how large it is, and
    /// whether it made them alike.
    pub(super) fn check_region(&self, keeper: &Keeper, region: usize) -> (u64, bool) {
        let check = keeper.check.lock();
        let (id, runs) = (check.id, check.is_running());
        drop(check);
        if !runs {
            // Stopped, while the last writer was waited for.
            return (0, false);
        }
        let (whole, size) = self.pieces(keeper, region);
        let mut found = Vec::new();
        let mut at = whole.start;
        while at < whole.end {
            let len = size.min(whole.end - at);
            self.check_piece(at, len as usize, &mut found);
            at += len;
        }
        let repair = keeper.check.lock().note(id, region, whole.end - whole.start, &found);
        let alike = repair && self.repair(keeper, id, region, &found);
        (whole.end - whole.start, alike)
    }

    /// Makes the legs alike in a region where this was found; whether they are.
    fn repair(&self, keeper: &Keeper, id: u64, region: usize, found: &[MirrorPlace]) -> bool {
        if self.legs.states.active().count_ones() == 1 {
            return false;
        }
        for place in found {
            let Some(error) = &place.error else { continue };
            if !self.legs.forgive(place.leg) {
                self.drop_leg(place.leg, error);
            }
        }
        // Reads go to one leg until they are alike.
        keeper.regions.mark_stale(region);
        let (_, alike) = self.copy_region(keeper, region);
        if alike {
            // Not those that were dropped instead.
            let kept = self.legs.states.in_sync();
            let kept = found.iter().filter(|place| kept & 1 << place.leg != 0);
            let bytes: u64 = kept.map(|place| place.range.end - place.range.start).sum();
            let mut check = keeper.check.lock();
            let same = check.id == id;
            if let Some(report) = check.report.as_mut().filter(|_| same) {
                report.repaired += bytes;
            }
        }
        alike
    }

    fn check_piece(&self, at: u64, len: usize, found: &mut Vec<MirrorPlace>) {
        let legs = self.legs.states.in_sync();
        let read: Vec<_> = each(legs).map(|n| (n, self.legs.device(n).read_at(at, len))).collect();
        let from = read.iter().find_map(|(n, read)| Some((*n, read.as_ref().ok()?)));
        let source = from.map(|(n, _)| n);
        for (leg, read) in &read {
            // One that was dropped meanwhile is resynced when it comes back.
            if self.legs.states.in_sync() & 1 << leg == 0 {
                continue;
            }
            let place = |range, error| MirrorPlace { leg: *leg, range, from: source, error };
            match (read, from) {
                (Err(error), _) => {
                    found.push(place(at..at + len as u64, Some(error.clone())));
                }
                (Ok(theirs), Some((_, ours))) if theirs[..] != ours[..] => {
                    let block = self.geometry.block_size as usize;
                    let ranges = differences(ours, theirs, block);
                    found.extend(
                        ranges.map(|r| place(at + r.start as u64..at + r.end as u64, None)),
                    );
                }
                (Ok(_), _) => {}
            }
        }
    }
}

/// Where they differ, in whole blocks; blocks that follow each other are one.
fn differences(a: &[u8], b: &[u8], block: usize) -> impl Iterator<Item = Range<usize>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (n, (a, b)) in a.chunks(block).zip(b.chunks(block)).enumerate() {
        let start = n * block;
        match ranges.last_mut() {
            _ if a == b => {}
            Some(last) if last.end == start => last.end += a.len(),
            _ => ranges.push(start..start + a.len()),
        }
    }
    ranges.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_differ_and_follow_each_other_are_one_place() {
        let (a, mut b) = ([0; 4096], [0; 4096]);
        b[600] = 1;
        b[1024] = 1;
        b[4095] = 1;
        assert!(differences(&a, &b, 512).eq([512..1536, 3584..4096]));
        assert_eq!(differences(&a, &a, 512).count(), 0);
    }

    #[test]
    fn a_second_check_waits_for_the_end_of_the_first() {
        let mut check = Check::default();
        assert!(check.end().is_none() && check.begin(1, true, 512) && !check.begin(1, false, 512));
        assert!(check.end().unwrap().repair && check.end().is_none() && check.begin(1, false, 512));
    }
}
