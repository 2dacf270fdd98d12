//! How init calls and probes ended.

use super::policy::Rules;
use crate::facts::records::Probe;
use corewise_timeline::Outcome;

/// How a probe ended.
pub(crate) fn outcome(probe: &Probe, rules: &Rules) -> Outcome {
    match probe.result {
        517 => Outcome::Deferred(why(probe, "the driver asked for it")),
        -517 => Outcome::Deferred(why(probe, "a supplier was not ready")),
        0 if rules.one_is_bound => match &probe.said {
            Some(said) => ended_with(probe, said.error),
            None => Outcome::Skipped(NOT_BOUND.to_owned()),
        },
        1 if rules.one_is_bound => Outcome::Ok,
        0 => match &probe.said {
            Some(said) if said.by_core => ended_with(probe, said.error),
            _ => Outcome::Ok,
        },
        result => ended_with(probe, -result.saturating_abs()),
    }
}

/// What is known of a probe that did not bind its device, and printed no error.
pub(crate) const NOT_BOUND: &str = "not bound, and no line says why";

fn ended_with(probe: &Probe, error: i64) -> Outcome {
    match error {
        -517 => Outcome::Deferred(why(probe, "the driver asked for it")),
        // Quiet in the kernel too: the driver does not want the device, and another one may.
        -6 | -19 => Outcome::Skipped(self::error(error)),
        error => Outcome::Failed(self::error(error)),
    }
}

fn why(probe: &Probe, otherwise: &str) -> String {
    probe.reason.clone().unwrap_or_else(|| otherwise.to_owned())
}

/// An error as the kernel's sources name it.
pub(crate) fn error(result: i64) -> String {
    const NAMES: [(i64, &str); 16] = [
        (-1, "EPERM"),
        (-2, "ENOENT"),
        (-5, "EIO"),
        (-6, "ENXIO: no such device or address"),
        (-11, "EAGAIN"),
        (-12, "ENOMEM"),
        (-13, "EACCES"),
        (-14, "EFAULT"),
        (-16, "EBUSY"),
        (-17, "EEXIST"),
        (-19, "ENODEV: no such device"),
        (-22, "EINVAL"),
        (-38, "ENOSYS"),
        (-95, "EOPNOTSUPP"),
        (-110, "ETIMEDOUT"),
        (-524, "ENOTSUPP"),
    ];
    match NAMES.iter().find(|(number, _)| *number == result) {
        Some((_, name)) => (*name).to_owned(),
        None => format!("error {result}"),
    }
}
