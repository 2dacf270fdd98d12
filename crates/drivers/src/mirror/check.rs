//! The check of a mirror: region by region, the legs in sync are read and compared. The resync's
//! item does it when nothing is left to be resynced. A step of it holds the same lock of its
//! region, so that no write is in progress there. A difference, or a place that can't be read, is
//! only reported, or, with `repair`, marked stale: then the resync makes it alike.

use std::ops::Range;
use std::time::Duration;

use corewise_blockmq::{BlockDeviceExt, IoError};
use corewise_sync::time::{Stamp, wall};

use super::keeper::Keeper;
use super::legs::{EVENTS, each};
use super::record::LastCheck;
use super::{MirrorEvent, MirrorState};

/// Largest number of places that are reported one by one; all are counted.
const MOST_PLACES: usize = 64;

/// The progress or the result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MirrorCheck {
    /// True while it runs. Else it is over, or was [stopped](super::Mirror::stop_check) before all
    /// was checked.
    pub running: bool,
    /// True if its findings are repaired.
    pub repair: bool,
    /// Bytes of the mirror that were looked at.
    pub checked: u64,
    /// Bytes of the mirror.
    pub size: u64,
    /// Its duration so far.
    pub took: Duration,
    /// Bytes, of all legs together, that differ from the first leg in sync that could be read
    /// there.
    pub differ: u64,
    /// Bytes, of all legs together, that could not be read.
    pub unreadable: u64,
    /// Bytes of the mirror that no leg could read.
    pub lost: u64,
    /// Bytes of `differ` and `unreadable` that were repaired.
    pub repaired: u64,
    /// The first 64 places found.
    pub places: Vec<MirrorPlace>,
}

/// The last check of a mirror that came to its end. If the mirror keeps a record, it may be one
/// before a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MirrorChecked {
    /// Time of its end, since 1970, to a second.
    pub ended: Duration,
    /// Its duration.
    pub took: Duration,
    /// Bytes that differed, as in [`MirrorCheck`]; the fields below too.
    pub differ: u64,
    /// Bytes that could not be read.
    pub unreadable: u64,
    /// Bytes that no leg could read.
    pub lost: u64,
    /// Bytes that were repaired.
    pub repaired: u64,
}

/// A place where a leg of a mirror was wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MirrorPlace {
    /// Number of the leg.
    pub leg: usize,
    /// Bytes of the mirror.
    pub range: Range<u64>,
    /// The leg that it differs from, and is repaired from; `None` if no leg could be read.
    pub from: Option<usize>,
    /// The reason why it can't be read; `None`: it differs.
    pub error: Option<IoError>,
}

/// A check, as the resync's item has it.
#[derive(Default)]
pub(super) struct Check {
    /// The region that is examined next.
    at: usize,
    pub(super) rate: u64,
    /// Number of the check: one may be stopped, and the next one begun, during a step.
    id: u64,
    /// True if the next region is due.
    due: bool,
    /// The report; `None`: there was no check yet.
    pub(super) report: Option<MirrorCheck>,
    began: Stamp,
    /// The last check that came to its end, for the record.
    pub(super) last: LastCheck,
    /// True if the record lacks that check.
    unrecorded: bool,
}

impl Check {
    /// Creates the state of a mirror whose record has this check.
    pub(super) fn new(last: LastCheck) -> Check {
        Check { last, ..Check::default() }
    }

    /// Takes the check that the record lacks, if any.
    pub(super) fn take_unrecorded(&mut self) -> Option<LastCheck> {
        std::mem::take(&mut self.unrecorded).then_some(self.last)
    }

    /// Returns the last check that came to its end.
    pub(super) fn last(&self) -> Option<MirrorChecked> {
        let LastCheck { since, took, differ, unreadable, lost, repaired } = self.last;
        (took != 0).then(|| MirrorChecked {
            ended: Duration::from_secs(since),
            took: Duration::from_millis(took.into()),
            differ,
            unreadable,
            lost,
            repaired,
        })
    }

    /// Ends the check, since all was checked.
    fn complete(&mut self) -> Option<MirrorCheck> {
        let report = self.end()?;
        let took = u32::try_from(report.took.as_millis()).unwrap_or(u32::MAX).max(1);
        let MirrorCheck { differ, unreadable, lost, repaired, .. } = report;
        let since = wall().as_secs();
        self.last = LastCheck { since, took, differ, unreadable, lost, repaired };
        self.unrecorded = true;
        Some(report)
    }

    /// Begins a check; false if one is running.
    pub(super) fn begin(&mut self, rate: u64, repair: bool, size: u64) -> bool {
        if self.is_running() {
            return false;
        }
        let report = MirrorCheck { running: true, repair, size, ..MirrorCheck::default() };
        (self.at, self.rate, self.id, self.due) = (0, rate, self.id + 1, true);
        (self.report, self.began) = (Some(report), Stamp::precise());
        true
    }

    pub(super) fn is_running(&self) -> bool {
        self.report.as_ref().is_some_and(|report| report.running)
    }

    /// Ends the check, and returns its report if it was running.
    pub(super) fn end(&mut self) -> Option<MirrorCheck> {
        let report = self.report.as_mut().filter(|report| report.running)?;
        report.running = false;
        report.took = Stamp::precise().since(self.began);
        Some(report.clone())
    }
}

impl Check {
    /// Notes the findings of check `id` in a region of this many bytes; returns true if they are to
    /// be repaired.
    fn note(&mut self, id: u64, region: usize, bytes: u64, found: &[MirrorPlace]) -> bool {
        let Some(report) = self.report.as_mut().filter(|r| r.running && self.id == id) else {
            return false;
        };
        (self.at, self.due) = (region + 1, false);
        report.checked += bytes;
        report.took = Stamp::precise().since(self.began);
        let mut nowhere: Vec<&Range<u64>> =
            found.iter().filter(|place| place.from.is_none()).map(|place| &place.range).collect();
        // A place has a line for each leg.
        nowhere.dedup();
        report.lost += nowhere.into_iter().map(|range| range.end - range.start).sum::<u64>();
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

impl MirrorState {
    /// Returns the region that a check wants next.
    pub(super) fn next_to_check(&self, keeper: &Keeper) -> Option<usize> {
        let mut check = keeper.check.lock();
        if !check.is_running() || !check.due {
            return None;
        }
        let at = check.at;
        if at < keeper.regions.len() {
            return Some(at);
        }
        let ended = check.complete();
        drop(check);
        ended.into_iter().for_each(|report| self.tell_checked(keeper, report));
        None
    }

    /// Makes the next region due, whose time has come. A kick of the resync doesn't wait for that.
    pub(super) fn check_on(keeper: &Keeper) {
        keeper.check.lock().due = true;
        keeper.kick_resync();
    }

    /// Reports a check that is over.
    pub(super) fn tell_checked(&self, keeper: &Keeper, report: MirrorCheck) {
        let MirrorCheck { checked, differ, unreadable, repaired, .. } = report;
        match differ + unreadable {
            0 => tracing::info!(
                checked,
                "the check of a mirror has ended: all legs have the same content"
            ),
            _ => tracing::error!(
                target: EVENTS,
                checked,
                differ,
                unreadable,
                repaired,
                "the check of a mirror has found bytes that differ or can't be read"
            ),
        }
        keeper.note(MirrorEvent::CheckEnded { check: report });
        keeper.kick();
    }

    /// Compares the legs in a region, which is locked, and makes them alike there if the check
    /// repairs. Returns the region's size, and true if it made them alike.
    pub(super) fn check_region(&self, keeper: &Keeper, region: usize) -> (u64, bool) {
        let check = keeper.check.lock();
        let (id, runs) = (check.id, check.is_running());
        drop(check);
        if !runs {
            // The check was stopped during the wait for the last writer.
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

    /// Makes the legs alike in a region with these findings; returns true if they are alike then.
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
            // Legs that were dropped instead aren't counted.
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

/// Returns where they differ, in whole blocks; adjacent blocks are joined.
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
    fn a_check_that_was_stopped_is_not_the_last_one() {
        let began = LastCheck { since: 7, ..LastCheck::default() };
        let mut check = Check::new(began);
        assert!(check.begin(1, false, 512) && check.end().is_some());
        assert_eq!((check.last(), check.take_unrecorded(), check.last.since), (None, None, 7));
        let places: Vec<MirrorPlace> = [0, 1]
            .map(|leg| MirrorPlace {
                leg,
                range: 0..512,
                from: None,
                error: Some(IoError::from_errno(5)),
            })
            .into();
        assert!(check.begin(1, false, 512) && !check.note(2, 0, 512, &places));
        assert!(check.complete().is_some());
        let last = check.last().unwrap();
        assert_eq!((last.unreadable, last.lost, last.differ), (1024, 512, 0));
        assert!(last.ended > Duration::from_secs(7) && last.took > Duration::ZERO);
        assert_eq!(check.take_unrecorded().unwrap().unreadable, 1024);
        assert_eq!(check.take_unrecorded(), None, "once");
        assert!(
            check.begin(1, false, 512) && check.last() == Some(last),
            "while the next one runs"
        );
    }

    #[test]
    fn a_second_check_waits_for_the_end_of_the_first() {
        let mut check = Check::default();
        assert!(check.end().is_none() && check.begin(1, true, 512) && !check.begin(1, false, 512));
        assert!(check.end().unwrap().repair && check.end().is_none() && check.begin(1, false, 512));
    }
}
