//! The registry's decisions: pure functions over plain values.

use crate::decl::ProbeType;
use crate::error::ProbeErrorKind;

/// Whether a device probes asynchronously (rule 1.2.1): the driver's type, the declaration's, and
/// whether those are asked to that don't care. Asked once per device and driver.
pub(crate) fn probes_async(driver: ProbeType, decl: Option<ProbeType>, asked: bool) -> bool {
    match (driver, decl) {
        (ProbeType::ForceSynchronous, _) | (_, Some(ProbeType::ForceSynchronous)) => false,
        (_, Some(ProbeType::PreferAsynchronous)) => true,
        (_, Some(ProbeType::Default)) | (ProbeType::Default, None) => asked,
        (ProbeType::PreferAsynchronous, None) => true,
    }
}

/// What becomes of a device after one call of one driver (rule 1.2.16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is up.
    Bind,
    /// It goes on the deferred list. Other drivers are not asked: this one matches, and will be there.
    Defer,
    /// That candidate is asked.
    AskNext(usize),
    /// It stays without a driver.
    GiveUp,
}

/// What becomes of a device whose driver gave this result; `next` is the first candidate that was
/// not asked. As in Linux a failure, too, lets the next driver try its luck.
pub(crate) fn verdict(error: Option<ProbeErrorKind>, next: Option<usize>) -> Verdict {
    match (error, next) {
        (None, _) => Verdict::Bind,
        (Some(ProbeErrorKind::Deferred), _) => Verdict::Defer,
        (Some(_), Some(next)) => Verdict::AskNext(next),
        (Some(_), None) => Verdict::GiveUp,
    }
}

/// What the caller of a bring-up does when nothing of it can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stuck {
    /// Something outside the bring-up is in progress that one of its devices waits for.
    Wait,
    /// Deferral begins: what was deferred is tried again.
    BeginDeferral,
    /// Nothing more will come up: what is not settled is settled as it is.
    Conclude,
}

/// What to do when none of a bring-up's devices is ready or being probed, and some are not settled
/// (rule 1.2.15: deferral begins only when all have been tried once).
pub(crate) fn stuck(others_in_progress: bool, retrying: bool, deferral_enabled: bool) -> Stuck {
    if others_in_progress || retrying {
        Stuck::Wait
    } else if deferral_enabled {
        Stuck::Conclude
    } else {
        Stuck::BeginDeferral
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
        assert_eq!(stuck(true, false, false), Stuck::Wait);
        assert_eq!(stuck(false, true, true), Stuck::Wait);
        assert_eq!(stuck(false, false, false), Stuck::BeginDeferral);
        assert_eq!(stuck(false, false, true), Stuck::Conclude);
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
