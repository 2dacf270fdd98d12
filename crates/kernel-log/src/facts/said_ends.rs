//! How probes ended, by the lines within them: kernels before 5.14 print 0 at the end of each probe
//! that did not bind its device, whatever the reason.

use crate::message::{DeferralSource, Took, version};
use crate::stamp::Stamp;
use std::collections::HashMap;

/// The end of a probe, by a line within it.
#[derive(Clone, Debug)]
pub(crate) struct SaidEnd {
    pub driver: Option<String>,
    /// A negative number; -517 is a deferral.
    pub error: i64,
    /// Whether the driver core says so, which knows what the probe returned.
    pub by_core: bool,
    stamp: Option<Stamp>,
}

/// The longest tick of a clock, in nanoseconds: a printed duration may be that much too short.
const TICK: u64 = 10_000_000;

impl SaidEnd {
    /// Whether the line is of the probe with this end, by the time between the two.
    fn is_of(&self, driver: Option<&str>, took: Took, ended: Option<Stamp>) -> bool {
        let same = self.driver.as_deref().zip(driver).is_none_or(|(one, other)| one == other);
        let both = self.stamp.zip(ended).filter(|(said, ended)| !said.coarse && !ended.coarse);
        let took = u64::try_from(took.time.as_nanos()).unwrap_or(u64::MAX);
        let within = |(said, ended): (Stamp, Stamp)| {
            let latest = said.ns.saturating_add(said.unit).saturating_add(TICK);
            latest >= ended.ns.saturating_sub(took)
        };
        same && both.is_none_or(within)
    }
}

/// The lines within probes that say how those end.
#[derive(Clone, Debug, Default)]
pub(crate) struct SaidEnds {
    /// By device, since its last probe ended.
    open: HashMap<String, SaidEnd>,
    /// Those of probes whose last line never came, with their devices.
    without_end: Vec<(String, SaidEnd)>,
}

impl SaidEnds {
    /// The driver core says that a probe failed.
    pub(crate) fn failed(&mut self, device: &str, driver: &str, error: i64, stamp: Option<Stamp>) {
        let driver = Some(driver.to_owned());
        self.say(device, SaidEnd { driver, error, by_core: true, stamp });
    }

    /// Somebody says that a device is put off.
    pub(crate) fn put_off(
        &mut self,
        device: &str,
        driver: Option<&str>,
        said_by: DeferralSource,
        stamp: Option<Stamp>,
    ) {
        if said_by != DeferralSource::WaitingList {
            let by_core = said_by == DeferralSource::ProbeEnd;
            let driver = driver.map(str::to_owned);
            self.say(device, SaidEnd { driver, error: -517, by_core, stamp });
        }
    }

    fn say(&mut self, device: &str, said: SaidEnd) {
        // The driver core knows better than a driver how the same probe ends.
        let before = match self.open.get(device) {
            Some(before) if before.by_core && !said.by_core => return,
            _ => self.open.insert(device.to_owned(), said),
        };
        if let Some(before) = before.filter(|before| before.by_core) {
            self.without_end.push((device.to_owned(), before));
        }
    }

    /// The last line of a probe, which has this result: what was said of its end, where that line
    /// doesn't say it.
    pub(crate) fn end(
        &mut self,
        device: &str,
        driver: Option<&str>,
        result: i64,
        took: Took,
        ended: Option<Stamp>,
        kernel: Option<&str>,
    ) -> Option<SaidEnd> {
        let said = self.open.remove(device)?;
        // Since 5.14 a probe prints its error, and 0 for a device that was bound.
        let prints_errors = || kernel.and_then(version).is_some_and(|version| version >= (5, 14));
        let bound = result == 1 || result == 0 && prints_errors();
        if bound || !said.is_of(driver, took, ended) {
            if said.by_core {
                self.without_end.push((device.to_owned(), said));
            }
            return None;
        }
        Some(said).filter(|_| result == 0)
    }

    /// The failures and deferrals of probes whose last line isn't in the log.
    pub(crate) fn without_end(&self) -> impl Iterator<Item = (&str, &SaidEnd)> {
        let open = self.open.iter().filter(|(_, said)| said.by_core);
        let open = open.map(|(device, said)| (device.as_str(), said));
        let all = self.without_end.iter().map(|(device, said)| (device.as_str(), said)).chain(open);
        all.filter(|(_, said)| !matches!(said.error, -6 | -19))
    }
}
