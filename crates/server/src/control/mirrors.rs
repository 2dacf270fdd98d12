//! Mirrors as JSON and as text, and the actions on a mirror. The names in the JSON are a promise;
//! `docs/control.md` explains each.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use corewise::drivers::{LegState, Mirror, MirrorCheck, MirrorChecked};
use corewise::sync::Mutex;
use serde::{Deserialize, Serialize};

use super::served;
use crate::units;

/// The state of a mirror.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MirrorReport {
    /// True if it keeps a record of the legs in sync, and of the blocks that the others lack.
    pub(crate) bitmap: bool,
    /// Legs, in order.
    pub legs: Vec<Leg>,
    /// Bytes left to resync.
    pub to_resync: u64,
    pub(crate) resynced: u64,
    /// Bytes that a crash would have resynced.
    pub dirty: u64,
    /// The running check, or the last one since the server has the mirror.
    pub check: Option<Check>,
    /// The last check that was completed, also before a restart.
    pub(crate) checked: Option<CheckResult>,
    /// Schedule of its checks, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) schedule: Option<Schedule>,
}

/// The schedule of a mirror's checks, in seconds. `since` and `due` count from 1970.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Schedule {
    pub(crate) every_seconds: f64,
    /// End of the last check, or begin of the mirror's record.
    pub(crate) since: f64,
    pub(crate) due: f64,
}

impl Schedule {
    pub(super) fn of(name: &str, mirror: &Mirror, every: Option<Duration>) -> Option<Schedule> {
        let every = every?;
        let since = mirror.status().unchecked_since.as_secs_f64();
        let due = due(name, since, every);
        Some(Schedule { every_seconds: every.as_secs_f64(), since, due })
    }
}

/// A completed check. Sizes are bytes, times are seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CheckResult {
    /// End of the check, since 1970.
    pub(crate) ended: f64,
    pub(crate) took_seconds: f64,
    pub(crate) differ: u64,
    pub(crate) unreadable: u64,
    pub(crate) lost: u64,
    pub(crate) repaired: u64,
}

impl From<&MirrorChecked> for CheckResult {
    fn from(checked: &MirrorChecked) -> CheckResult {
        CheckResult {
            ended: checked.ended.as_secs_f64(),
            took_seconds: checked.took.as_secs_f64(),
            differ: checked.differ,
            unreadable: checked.unreadable,
            lost: checked.lost,
            repaired: checked.repaired,
        }
    }
}

/// A check of a mirror. Sizes are bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Check {
    pub(crate) running: bool,
    pub(crate) repair: bool,
    pub(crate) checked: u64,
    pub(crate) size: u64,
    /// Time that it took so far.
    pub(crate) took_seconds: f64,
    pub(crate) differ: u64,
    pub(crate) unreadable: u64,
    /// Bytes that no leg can read.
    pub(crate) lost: u64,
    pub(crate) repaired: u64,
    /// Places of the first faults.
    pub(crate) places: Vec<CheckedPlace>,
}

/// A place with a fault on a leg.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct CheckedPlace {
    pub(crate) leg: String,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// Leg that it differs from, and is repaired from.
    pub(crate) from: Option<String>,
    /// Reason why it can't be read.
    pub(crate) error: Option<String>,
}

impl Check {
    pub(crate) fn new(check: &MirrorCheck, over: &[String]) -> Check {
        // A leg that was removed meanwhile has no name any more.
        let name = |leg: usize| over.get(leg).filter(|name| !name.is_empty()).cloned();
        let places = check.places.iter().map(|place| CheckedPlace {
            leg: name(place.leg).unwrap_or_else(|| "a former leg".to_string()),
            offset: place.range.start,
            bytes: place.range.end - place.range.start,
            from: place.from.and_then(name),
            error: place.error.as_ref().map(ToString::to_string),
        });
        Check {
            running: check.running,
            repair: check.repair,
            checked: check.checked,
            size: check.size,
            took_seconds: check.took.as_secs_f64(),
            differ: check.differ,
            unreadable: check.unreadable,
            lost: check.lost,
            repaired: check.repaired,
            places: places.collect(),
        }
    }

    /// Returns the number of wrong bytes that aren't repaired.
    pub fn wrong(&self) -> u64 {
        (self.differ + self.unreadable).saturating_sub(self.repaired)
    }

    fn text(&self, out: &mut String) {
        let Check { checked, size, differ, unreadable, repaired, .. } = self;
        let state = match (self.running, checked < size) {
            (true, _) => "check: running",
            (false, true) => "check: stopped",
            (false, false) => "check: done",
        };
        let _ = writeln!(
            out,
            "  {state}, {checked} of {size} bytes compared, {differ} differ, {unreadable} can't be \
             read, {repaired} repaired"
        );
        for CheckedPlace { leg, offset, bytes, from, error } in &self.places {
            let what = match (error, from) {
                (Some(error), _) => format!("can't be read: {error}"),
                (None, Some(from)) => format!("differs from {from}"),
                (None, None) => "differs".to_string(),
            };
            let _ = writeln!(out, "    {leg}: {bytes} bytes at {offset}: {what}");
        }
    }
}

impl CheckResult {
    fn text(&self, out: &mut String) {
        let CheckResult { ended, took_seconds, differ, unreadable, repaired, .. } = self;
        let (ended, took) = (units::moment(*ended), served::seconds(*took_seconds));
        let _ = writeln!(
            out,
            "  last check: ended {ended} after {took}, {differ} bytes differed, {unreadable} couldn't \
             be read, {repaired} repaired"
        );
    }
}

/// The bytes that a check has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CheckFindings {
    pub(crate) differ: u64,
    pub(crate) unreadable: u64,
    pub(crate) lost: u64,
    pub(crate) repaired: u64,
}

impl CheckFindings {
    /// Returns the number of wrong bytes that aren't repaired.
    pub(crate) fn wrong(&self) -> u64 {
        (self.differ + self.unreadable).saturating_sub(self.repaired)
    }
}

/// Returns the command that retries a leg which is out.
pub(crate) fn take_back_todo(mirror: &str, leg: &str) -> String {
    format!("corewise mirror {mirror} --take-back={leg}")
}

/// A leg of a mirror.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Leg {
    /// Device of the leg.
    pub name: String,
    /// State of the leg in the mirror.
    pub state: LegStatus,
    /// Reason why it is out.
    pub why: Option<String>,
}

/// The state of a leg.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LegStatus {
    /// The leg has all data.
    InSync,
    /// The leg is being resynced.
    Resyncing,
    /// The leg is out, and being retried.
    Returning,
    /// The mirror does without the leg.
    #[default]
    #[serde(other)]
    Out,
}

impl From<LegState> for LegStatus {
    fn from(leg: LegState) -> LegStatus {
        match leg {
            LegState::InSync => LegStatus::InSync,
            LegState::Resyncing => LegStatus::Resyncing,
            LegState::Returning => LegStatus::Returning,
            _ => LegStatus::Out,
        }
    }
}

impl From<LegStatus> for LegState {
    fn from(state: LegStatus) -> LegState {
        match state {
            LegStatus::InSync => LegState::InSync,
            LegStatus::Resyncing => LegState::Resyncing,
            LegStatus::Returning => LegState::Returning,
            LegStatus::Out => LegState::Out,
        }
    }
}

impl MirrorReport {
    /// Returns the state of a mirror. `over` has the names of its legs.
    pub(super) fn new(mirror: &Mirror, over: &[String]) -> MirrorReport {
        let status = mirror.status();
        let leg = |(n, name): (usize, &String)| Leg {
            name: name.clone(),
            state: status.legs.get(n).copied().unwrap_or(LegState::Out).into(),
            why: mirror.why_out(n),
        };
        MirrorReport {
            bitmap: mirror.has_record(),
            legs: over.iter().enumerate().filter(|(_, name)| !name.is_empty()).map(leg).collect(),
            to_resync: status.to_resync,
            resynced: status.resynced,
            dirty: status.dirty,
            check: status.check.as_ref().map(|check| Check::new(check, over)),
            checked: status.checked.as_ref().map(CheckResult::from),
            schedule: None,
        }
    }

    /// Returns true if a leg is on its way back, or a check is running.
    pub fn is_busy(&self) -> bool {
        let busy = |leg: &Leg| matches!(leg.state, LegStatus::Resyncing | LegStatus::Returning);
        let checks = self.check.as_ref().is_some_and(|check| check.running);
        checks || self.to_resync != 0 || self.legs.iter().any(busy)
    }

    /// Returns a line for each leg of the mirror `mirror`, and lines about checks.
    pub fn text(&self, mirror: &str) -> String {
        let widest = self.legs.iter().map(|leg| leg.name.chars().count()).max().unwrap_or(0);
        let mut out = String::new();
        for leg in &self.legs {
            // The driver's own words.
            let (name, state) = (&leg.name, LegState::from(leg.state));
            let why = leg.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            let todo = match leg.state {
                LegStatus::Out => {
                    format!("; once the leg's disk works: {}", take_back_todo(mirror, name))
                }
                _ => String::new(),
            };
            let _ = writeln!(out, "  {name:<widest$}  {state}{why}{todo}");
        }
        self.check.iter().for_each(|check| check.text(&mut out));
        // If the last check ended since the server has the mirror, the lines above show the rest of
        // it.
        if let Some(checked) = &self.checked {
            checked.text(&mut out);
        }
        if let Some(Schedule { every_seconds, due, .. }) = &self.schedule {
            let every = served::seconds(*every_seconds);
            let _ = writeln!(out, "  next check: due {}, one each {every}", units::moment(*due));
        }
        out
    }

    /// Returns the findings of the last check that counts. This is the check since the server has
    /// the mirror, if it found anything or was completed; else the one before.
    pub(crate) fn found(&self) -> Option<CheckFindings> {
        let of = |differ, unreadable, lost, repaired| CheckFindings {
            differ,
            unreadable,
            lost,
            repaired,
        };
        let now = self.check.as_ref().filter(|check| {
            check.differ + check.unreadable != 0 || (!check.running && check.checked >= check.size)
        });
        let now = now.map(|c| of(c.differ, c.unreadable, c.lost, c.repaired));
        now.or_else(|| {
            self.checked.as_ref().map(|c| of(c.differ, c.unreadable, c.lost, c.repaired))
        })
    }
}

/// Returns the names of a mirror's legs by number. A leg that was removed has an empty name.
pub(crate) fn names(mirror: &Mirror) -> Vec<String> {
    (0..mirror.legs()).map(|n| mirror.leg_name(n).unwrap_or_default()).collect()
}

/// Begins a check of the mirror, or stops it.
pub(super) fn check(disk: &str, mirror: &Mirror, how: &CheckOptions) -> Result<(), String> {
    if how.stop {
        let stopped = mirror.stop_check();
        return stopped.then_some(()).ok_or_else(|| format!("no check of '{disk}' is running"));
    }
    let began = mirror.check(how.rate, how.repair);
    began
        .then_some(())
        .ok_or_else(|| format!("a check of '{disk}' is running already; --stop ends that check"))
}

/// The options of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckOptions {
    /// Highest rate in bytes per second.
    pub rate: Option<u64>,
    /// True to make legs that differ alike.
    pub repair: bool,
    /// True to stop the running check instead.
    pub stop: bool,
}

/// Retries the legs of the mirror that are out: all, or this one. Returns their names, or the
/// reason why there is none.
pub(super) fn take_back(
    disk: &str,
    mirror: &Mirror,
    over: &[String],
    leg: Option<&str>,
) -> Result<Vec<String>, String> {
    let over_now = || over.iter().enumerate().filter(|(_, name)| !name.is_empty());
    if let Some(leg) = leg.filter(|leg| !over_now().any(|(_, name)| name == leg)) {
        let legs = over_now().map(|(_, name)| name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(format!("'{leg}' is not a leg of '{disk}'; the legs are: {legs}"));
    }
    let wanted = over_now().filter(|(_, name)| leg.is_none_or(|leg| leg == *name));
    let back: Vec<String> =
        wanted.filter(|(n, _)| mirror.take_back(*n)).map(|(_, name)| name.clone()).collect();
    match (back.is_empty(), leg) {
        (false, _) => Ok(back),
        (true, Some(leg)) => Err(format!("the leg '{leg}' of '{disk}' is not out")),
        (true, None) => Err(format!("no leg of '{disk}' is out")),
    }
}

/// The share of its period by which a check may come early. Mirrors whose last checks ended
/// together drift apart by that, also those of several servers.
const EARLY: f64 = 1.0 / 8.0;
/// The share of its period after which a check that couldn't begin is overdue.
const LATE: f64 = 1.0 / 8.0;

/// Returns the time at which the next check of `mirror` is due: at most `every` after `since`.
pub(crate) fn due(mirror: &str, since: f64, every: Duration) -> f64 {
    let mut hasher = DefaultHasher::new();
    (mirror, since.to_bits()).hash(&mut hasher);
    let share = hasher.finish() as f64 / u64::MAX as f64;
    since + every.as_secs_f64() * (1.0 - EARLY * share)
}

/// Returns true if a check should long have begun. The caller knows that none is running.
pub(crate) fn is_overdue(since: f64, every: f64, now: f64) -> bool {
    now > since + every * (1.0 + LATE)
}

/// The time between the checks of a mirror.
#[derive(Debug, Default)]
pub(crate) struct CheckSchedule {
    /// L: is the lock, held for a moment, a leaf; guards that time. `None`: it is never checked by
    /// itself.
    every: Mutex<Option<Duration>>,
}

impl CheckSchedule {
    pub(crate) fn set(&self, every: Option<Duration>) {
        *self.every.lock() = every;
    }

    pub(crate) fn every(&self) -> Option<Duration> {
        *self.every.lock()
    }
}

/// A mirror that has a schedule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScheduledMirror {
    pub(crate) since: f64,
    pub(crate) due: f64,
    /// True if all its legs are in sync. Otherwise there is less to compare.
    pub(crate) is_whole: bool,
}

/// Returns the mirror to check now: the one that is due for longest. The caller asks only while no
/// mirror is being checked.
pub(crate) fn next(mirrors: &[ScheduledMirror], now: f64) -> Option<usize> {
    // If the clock was set back, the time since the last check is unknown.
    let is_due = |one: &ScheduledMirror| one.is_whole && (one.due <= now || one.since > now + 60.0);
    let due = mirrors.iter().enumerate().filter(|(_, one)| is_due(one));
    due.min_by(|(_, one), (_, other)| one.due.total_cmp(&other.due)).map(|(n, _)| n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leg_is_told_with_its_state_and_why_it_is_out() {
        let leg = |name: &str, state, why: Option<&str>| Leg {
            name: name.to_string(),
            state,
            why: why.map(str::to_string),
        };
        let legs = vec![
            leg("a", LegStatus::InSync, None),
            leg("long", LegStatus::Out, Some("no such file")),
        ];
        let mirror = MirrorReport { legs, ..MirrorReport::default() };
        let todo = "once the leg's disk works: corewise mirror m --take-back=long";
        let text = format!("  a     in sync\n  long  out: no such file; {todo}\n");
        assert_eq!(mirror.text("m"), text);
        assert!(!mirror.is_busy());
        assert!(MirrorReport { to_resync: 1, ..mirror }.is_busy());
        let json = serde_json::to_string(&LegStatus::InSync).unwrap();
        assert_eq!(json, "\"in_sync\"");
        assert_eq!(serde_json::from_str::<LegStatus>("\"burning\"").unwrap(), LegStatus::Out);
    }

    const DAY: f64 = 86_400.0;
    const WEEK: Duration = Duration::from_secs(7 * 86_400);

    #[test]
    fn checks_of_mirrors_that_were_checked_together_are_due_apart_and_none_is_late() {
        let now = 1_800_000_000.0;
        let due: Vec<f64> = (0..1000).map(|n| due(&format!("m{n}"), now, WEEK) - now).collect();
        assert!(due.iter().all(|due| (7.0 * DAY * 7.0 / 8.0..=7.0 * DAY).contains(due)));
        // Roughly a tenth of them is due in each tenth of the time.
        for tenth in 0..10 {
            let begin = 7.0 * DAY * (7.0 / 8.0 + f64::from(tenth) / 80.0);
            let there =
                due.iter().filter(|d| (begin..begin + 7.0 * DAY / 80.0).contains(d)).count();
            assert!((60..140).contains(&there), "{there} in tenth {tenth}");
        }
        assert_eq!(super::due("m", now, WEEK), super::due("m", now, WEEK), "also after a restart");
    }

    #[test]
    fn the_one_that_is_due_for_longest_comes_first_and_one_that_lacks_a_leg_waits() {
        let at = |due, is_whole| ScheduledMirror { since: 0.0, due, is_whole };
        assert_eq!(next(&[at(10.0, true), at(5.0, true), at(7.0, true)], 20.0), Some(1));
        assert_eq!(next(&[at(10.0, true), at(5.0, false), at(7.0, true)], 20.0), Some(2));
        assert_eq!(next(&[at(21.0, true), at(5.0, false)], 20.0), None);
        assert_eq!(next(&[], 20.0), None);
        let ahead = ScheduledMirror { since: 1e9, due: 2e9, is_whole: true };
        assert_eq!(next(&[ahead], 20.0), Some(0), "the clock was set back");
    }

    #[test]
    fn a_check_is_overdue_when_its_period_and_an_eighth_of_it_have_passed() {
        assert!(!is_overdue(100.0, 80.0, 189.0));
        assert!(is_overdue(100.0, 80.0, 191.0));
    }
}
