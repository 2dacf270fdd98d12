//! The drivers of devices: by the lines that name them, and by what probes ran inside of.

use crate::facts::Facts;
use crate::message::{names, split_head};
use corewise_timeline::{Driver, Outcome, Span, SpanId, SpanKind, Timeline};
use std::collections::{BTreeMap, HashSet};

/// The drivers of devices, by the devices' names.
pub(crate) type Drivers = BTreeMap<String, Driver>;

/// Whether `driver` says more than what is `known`: that is nothing, or only likely while this is
/// proven.
pub(crate) fn is_surer(driver: &Driver, known: Option<&Driver>) -> bool {
    known.is_none_or(|known| known.is_inferred() && !driver.is_inferred())
}

/// Notes `driver` as a device's, unless what is known is as sure.
pub(crate) fn learn(drivers: &mut Drivers, device: &str, driver: &Driver) {
    if is_surer(driver, drivers.get(device)) {
        drivers.insert(device.to_owned(), driver.clone());
    }
}

/// Sets the driver of `device` where `drivers` has a surer one than is known.
pub(crate) fn set(known: &mut Option<Driver>, device: &str, drivers: &Drivers) {
    if let Some(driver) = drivers.get(device).filter(|driver| is_surer(driver, known.as_ref())) {
        *known = Some(driver.clone());
    }
}

/// The driver of each device, from the best line there is.
pub(crate) fn of(facts: &mut Facts) -> Drivers {
    let told = facts.drivers.drain();
    let mut drivers: Drivers = told.map(|(device, driver)| (device, driver.into())).collect();
    let known: HashSet<&str> = facts.probes.iter().map(|p| p.device.as_str()).collect();
    for shutdown in &facts.shutdowns {
        let Some((driver, device)) = head(&shutdown.head, &known) else { continue };
        if !names::is_bus(driver) {
            learn(&mut drivers, device, &Driver::from(driver));
        }
    }
    drivers
}

/// The probes right inside an init call, with what that registered: a module, as a rule, is the
/// driver, and `NAME_driver_init` registers `NAME`. Only where no line says better.
pub(crate) fn registered(boot: &Timeline) -> Vec<(SpanId, Driver)> {
    let mut found = Vec::new();
    let probe = |s: &Span| s.kind == SpanKind::Probe && s.driver.is_none();
    for (id, span) in boot.iter().filter(|(_, span)| probe(span)) {
        let Some(call) = span.nested_in.map(|outer| boot.span(outer)) else { continue };
        if call.kind != SpanKind::Initcall {
            continue;
        }
        let name = call.name.split(' ').next().unwrap_or_default();
        let built_in = ["_driver_init", "_drv_init"].into_iter().find_map(|e| name.strip_suffix(e));
        if let Some(driver) = call.driver.as_ref().map(Driver::name).or(built_in) {
            let inferred = span.may_be_nested;
            found.push((id, if inferred { Driver::inferred(driver) } else { driver.into() }));
        }
    }
    found
}

/// Says the driver of each device that has none yet, or a less sure one.
pub(crate) fn set_drivers(timeline: &mut Timeline, drivers: &Drivers) {
    // Another driver than the one that took the device may have failed.
    let other = |s: &Span| {
        s.driver.is_some() && matches!(s.outcome, Outcome::Failed(_) | Outcome::Skipped(_))
    };
    for span in timeline.spans_mut() {
        if span.kind != SpanKind::Initcall && !other(span) {
            set(&mut span.driver, &span.name, drivers);
        }
    }
    for u in timeline.unplaced_mut() {
        if u.kind != SpanKind::Initcall {
            set(&mut u.driver, &u.name, drivers);
        }
    }
}

/// Driver and device of a shutdown line. A device that was probed in this log settles where the
/// blank is.
pub(crate) fn head<'a>(head: &'a str, known: &HashSet<&str>) -> Option<(&'a str, &'a str)> {
    let blanks = head.match_indices(' ').map(|(at, _)| (&head[..at], &head[at + 1..]));
    blanks.clone().find(|(_, device)| known.contains(device)).or_else(|| split_head(head))
}
