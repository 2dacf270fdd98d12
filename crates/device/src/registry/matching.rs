//! Drivers, and the choice of those that may have a device.

use std::fmt;
use std::sync::Arc;

use corewise_sync::{Mutex, text};

use crate::decl::{DeviceDecl, ProbeType};
use crate::driver::Driver;
use crate::error::{ProbeErrorKind, caught};

/// A driver, with its name and probe type as they were when it was registered.
pub(crate) struct RegisteredDriver {
    /// L: is the lock; guards the driver, which is there until a shutdown releases it.
    driver: Mutex<Option<Arc<dyn Driver>>>,
    /// The name, shared with the reports of bring-ups.
    pub name: Arc<str>,
    pub probe_type: ProbeType,
}

impl fmt::Debug for RegisteredDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registered").field(&self.name).finish()
    }
}

/// A driver that may have a device, and how it would probe it.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub driver: Arc<RegisteredDriver>,
    pub asynchronous: bool,
    /// True if it was asked in this round, or is not to be.
    pub asked: bool,
}

/// The registered drivers. A copy is cheap, and its version tells whether it is still current.
#[derive(Clone, Default)]
pub(crate) struct Drivers {
    pub list: Arc<Vec<Arc<RegisteredDriver>>>,
    pub version: u64,
}

impl Drivers {
    pub(crate) fn find(&self, name: &str) -> Option<&Arc<RegisteredDriver>> {
        self.list.iter().find(|d| *d.name == *name)
    }

    /// Adds one.
    pub(crate) fn add(&mut self, driver: Arc<RegisteredDriver>) {
        let mut list = (*self.list).clone();
        list.push(driver);
        *self = Drivers { list: Arc::new(list), version: self.version + 1 };
    }

    /// Takes one out.
    pub(crate) fn remove(&mut self, name: &str) -> Option<Arc<RegisteredDriver>> {
        let mut list = (*self.list).clone();
        let place = list.iter().position(|d| *d.name == *name)?;
        let driver = list.remove(place);
        *self = Drivers { list: Arc::new(list), version: self.version + 1 };
        Some(driver)
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.list.iter().map(|d| d.name.to_string()).collect();
        names.sort_unstable();
        names
    }

    /// Returns the drivers that may have the device: synchronous ones first, each kind in
    /// registration order. Asks the drivers, so not under a lock.
    pub(crate) fn candidates(&self, decl: &DeviceDecl, asked: bool) -> Vec<Candidate> {
        let may = self.list.iter().filter(|driver| driver.matches(decl));
        let mut candidates: Vec<Candidate> = may.map(|d| d.candidate(decl, asked)).collect();
        candidates.sort_by_key(|c| c.asynchronous);
        candidates
    }
}

impl RegisteredDriver {
    pub(crate) fn new(driver: Arc<dyn Driver>) -> RegisteredDriver {
        let (name, probe_type) = (Arc::from(driver.name()), driver.probe_type());
        RegisteredDriver { driver: Mutex::new(Some(driver)), name, probe_type }
    }

    /// Returns the driver; `None` once it was released.
    pub(crate) fn driver(&self) -> Option<Arc<dyn Driver>> {
        self.driver.lock().clone()
    }

    /// Takes the driver out, for the caller to drop without a lock: the last step of a shutdown,
    /// which needs the driver no more.
    pub(crate) fn let_go(&self) -> Option<Arc<dyn Driver>> {
        self.driver.lock().take()
    }

    /// Returns true if the driver may have the device. A driver that panics when asked may not, nor
    /// one that was released.
    pub(crate) fn matches(&self, decl: &DeviceDecl) -> bool {
        let Some(driver) = self.driver() else { return false };
        caught(move || driver.matches(decl)).unwrap_or_else(|message| {
            tracing::error!(driver = %text::name(&self.name), message, "a driver's match function panicked");
            false
        })
    }

    pub(crate) fn candidate(self: &Arc<Self>, decl: &DeviceDecl, asked: bool) -> Candidate {
        let asynchronous = probes_async(self.probe_type, decl.probe_type, asked);
        Candidate { driver: self.clone(), asynchronous, asked: false }
    }
}

// The registry's decisions: pure functions over plain values.

/// Returns whether a device probes asynchronously (rule 1.2.1), by the driver's type, the
/// declaration's, and the default for those that don't care. Asked once per device and driver.
pub(crate) fn probes_async(driver: ProbeType, decl: Option<ProbeType>, asked: bool) -> bool {
    match (driver, decl) {
        (ProbeType::ForceSynchronous, _) | (_, Some(ProbeType::ForceSynchronous)) => false,
        (_, Some(ProbeType::PreferAsynchronous)) => true,
        (_, Some(ProbeType::Default)) | (ProbeType::Default, None) => asked,
        (ProbeType::PreferAsynchronous, None) => true,
    }
}

/// The consequence of one call of one driver for a device (rule 1.2.16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The device is up.
    Bind,
    /// The device goes on the deferred list. Other drivers are not asked: this one matches, and
    /// will be there.
    Defer,
    /// Candidate that is asked next.
    AskNext(usize),
    /// The device stays without a driver.
    GiveUp,
}

/// Returns the consequence of a driver's result for its device; `next` is the first candidate that
/// was not asked. As in Linux a failure, too, lets the next driver try.
pub(crate) fn verdict(error: Option<ProbeErrorKind>, next: Option<usize>) -> Verdict {
    match (error, next) {
        (None, _) => Verdict::Bind,
        (Some(ProbeErrorKind::Deferred), _) => Verdict::Defer,
        (Some(_), Some(next)) => Verdict::AskNext(next),
        (Some(_), None) => Verdict::GiveUp,
    }
}

/// The action of the caller of a bring-up when nothing of it can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StuckAction {
    /// Something outside the bring-up is in progress that one of its devices waits for.
    Wait,
    /// Deferral begins: what was deferred is tried again.
    BeginDeferral,
    /// Unsettled devices are settled as they are: nothing more will come up.
    Conclude,
}

/// Returns the action when none of a bring-up's devices is ready or being probed, and some are not
/// settled (rule 1.2.15: deferral begins only when all have been tried once).
pub(crate) fn stuck(
    others_in_progress: bool,
    retrying: bool,
    deferral_enabled: bool,
) -> StuckAction {
    if others_in_progress || retrying {
        StuckAction::Wait
    } else if deferral_enabled {
        StuckAction::Conclude
    } else {
        StuckAction::BeginDeferral
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ProbeErrorKind::{Deferred, Failed, NoDevice, Panicked};

    #[test]
    fn rule_1_2_16_what_a_result_means() {
        assert_eq!(verdict(None, Some(3)), Verdict::Bind);
        assert_eq!(verdict(Some(Deferred), Some(3)), Verdict::Defer);
        for error in [NoDevice, Failed, Panicked] {
            assert_eq!(verdict(Some(error), Some(1)), Verdict::AskNext(1));
            assert_eq!(verdict(Some(error), None), Verdict::GiveUp);
        }
    }

    #[test]
    fn deferral_begins_when_nothing_else_can_run_and_once() {
        assert_eq!(stuck(true, false, false), StuckAction::Wait);
        assert_eq!(stuck(false, true, true), StuckAction::Wait);
        assert_eq!(stuck(false, false, false), StuckAction::BeginDeferral);
        assert_eq!(stuck(false, false, true), StuckAction::Conclude);
    }

    #[test]
    fn rule_1_2_1_force_synchronous_is_never_overridden() {
        use ProbeType::{Default, ForceSynchronous, PreferAsynchronous};
        assert!(!probes_async(ForceSynchronous, Some(PreferAsynchronous), true));
        assert!(!probes_async(PreferAsynchronous, Some(ForceSynchronous), true));
        assert!(probes_async(Default, Some(PreferAsynchronous), false));
        assert!(probes_async(PreferAsynchronous, None, false));
    }

    #[test]
    fn rule_1_2_1_the_default_type_is_asynchronous_only_where_asked() {
        use ProbeType::{Default, PreferAsynchronous};
        for asked in [true, false] {
            assert_eq!(probes_async(Default, None, asked), asked);
            assert_eq!(probes_async(PreferAsynchronous, Some(Default), asked), asked);
        }
    }
}
