//! Decides which span ran inside which other one, and which ran beside others: a pure function from
//! times and names to indexes.
//!
//! A log names the thread of an init call, and seldom that of a probe. Otherwise only time tells: a
//! span that ran inside another one on the same thread lies within its time. The reverse does not
//! hold, since threads run in parallel. Each of these speaks against it:
//!
//! * two probes that overlap in part ran on two threads. The same goes, as far as one can tell, for
//!   all that hang together by such overlaps. None of them is inside another, unless its name says
//!   so;
//! * a probe that ends after the init call in which it began has left that call's thread;
//! * a device that was put off before is probed again by the driver core's own worker;
//! * two devices of one driver, or two on different buses of one PCI segment, do not register each
//!   other (the virtual functions of a PCI device are on its own bus);
//! * where several init calls ran at that time, the one whose module or function is named like the
//!   driver is meant; where none is, nobody knows.
//!
//! Only two lines that name the same thread prove nesting: a thread runs one thing at a time,
//! whatever speaks against it. A nesting that follows from time alone is likely, and marked as
//! unproven.

use crate::message::names;

/// Longest list of spans that is searched for one span. No machine runs more probes at once, and
/// the list bounds the time for a log that claims so.
const AT_ONCE: usize = 512;

/// Facts about a span. Times are in nanoseconds.
#[derive(Clone, Debug)]
pub(crate) struct NestingItem<'a> {
    pub kind: NestingKind,
    pub start: u64,
    pub end: u64,
    pub thread: Option<u32>,
    /// Device of a probe or fixup; function of an init call.
    pub name: &'a str,
    /// Driver of a probe; module of an init call.
    pub owner: Option<&'a str>,
    /// True for a probe of a device that was deferred before.
    pub retry: bool,
    /// True if the log says that it ran asynchronously.
    pub asynchronous: bool,
    /// Unit to which the stamps are truncated, if that exceeds the tolerance. Within the unit, the
    /// order is unknown.
    pub unit: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NestingKind {
    Initcall,
    Probe,
    Fixup,
}

/// Decisions about a span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Placement {
    pub inside: Option<usize>,
    pub asynchronous: bool,
    /// True if it lies within several init calls, and nothing tells which one ran it.
    pub ambiguous: bool,
    /// True if no line names its thread. It may have run beside the span that it is inside of, or
    /// inside one that it seems to have run beside.
    pub unproven: bool,
    /// True if truncated stamps leave open whether an init call ran it.
    unsure: bool,
}

/// Decides for all spans. They must come by start, the longer first if starts are equal.
pub(crate) fn decide(items: &[NestingItem<'_>]) -> Vec<Placement> {
    let mut places = vec![Placement::default(); items.len()];
    let calls = within_calls(items, &mut places);
    let groups = groups(items, &calls, &mut places);
    within_probes(items, &calls, &groups, &mut places);
    for i in 0..items.len() {
        if let Some(outer) = places[i].inside {
            let thread = items[i].thread.filter(|_| items[i].thread == items[outer].thread);
            places[i].unproven = thread.is_none();
        }
    }
    places
}

/// Returns true if `inner` may have begun within `outer`. A start that was computed from a printed
/// duration may be late by the time of printing, and by the truncated part of a microsecond.
fn begins_within(outer: &NestingItem<'_>, inner: &NestingItem<'_>) -> bool {
    const LATE: u64 = 20_000;
    outer.start <= inner.start.saturating_add(LATE)
        && outer.end.saturating_sub(inner.start) >= (inner.end - inner.start) / 2
        && outer.end > inner.start
}

fn holds(outer: &NestingItem<'_>, inner: &NestingItem<'_>) -> bool {
    begins_within(outer, inner)
        && inner.end.saturating_add(inner.unit) <= outer.end
        && (inner.unit == 0 || outer.start.saturating_add(inner.unit) <= inner.start)
}

/// Returns true if truncated stamps leave open whether `outer` ran `inner`.
fn may_hold(outer: &NestingItem<'_>, inner: &NestingItem<'_>) -> bool {
    outer.start < inner.start.saturating_add(inner.unit)
        && inner.end < outer.end.saturating_add(inner.unit)
        && inner.unit > 0
}

/// Removes from `active` the spans that have ended at `now`.
fn retire(active: &mut Vec<usize>, items: &[NestingItem<'_>], now: u64) {
    active.retain(|&i| items[i].end > now);
    if active.len() > AT_ONCE {
        active.remove(0);
    }
}

/// Returns for each probe and fixup the init call that it ran in.
fn within_calls(items: &[NestingItem<'_>], places: &mut [Placement]) -> Vec<Option<usize>> {
    let mut calls = vec![None; items.len()];
    let mut active: Vec<usize> = Vec::new();
    // Starts of probes are computed, so they may lie before the start of the surrounding call.
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by_key(|&i| (items[i].start.saturating_add(late(&items[i])), i));
    for i in order {
        let item = &items[i];
        retire(&mut active, items, item.start);
        if item.kind == NestingKind::Initcall {
            active.push(i);
            continue;
        }
        let begun = |a: &usize| items[*a].start <= item.start.saturating_add(late(item));
        let mut open: Vec<usize> = active.iter().copied().filter(begun).collect();
        places[i].unproven = thread_unknown(item) && open.iter().any(|&a| holds(&items[a], item));
        if item.thread.is_some() {
            open.retain(|&a| items[a].thread == item.thread);
        } else if item.asynchronous {
            open.clear();
        } else if item.retry {
            open.retain(|&a| items[a].name == DEFERRED || belongs(&items[a], item));
        } else if open.len() > 1 {
            let own: Vec<usize> =
                open.iter().copied().filter(|&a| belongs(&items[a], item)).collect();
            if own.len() == 1 || !open.iter().any(|&a| holds(&items[a], item)) {
                open = own;
            } else {
                places[i].ambiguous = true;
                open.clear();
            }
        }
        let around: Vec<usize> = open.iter().copied().filter(|&a| holds(&items[a], item)).collect();
        if around.is_empty()
            && item.kind == NestingKind::Probe
            && !places[i].ambiguous
            && !item.retry
        {
            // The probe began in one or more init calls, and ended later.
            let left = |a: &usize| {
                let over = items[*a].end;
                item.start.saturating_add(item.unit) <= over
                    && over.saturating_add(item.unit) <= item.end
            };
            places[i].unsure = active.iter().any(|&a| may_hold(&items[a], item));
            places[i].asynchronous =
                !places[i].unsure && active.iter().any(|a| begun(a) && left(a));
        }
        if let [call] = around[..] {
            calls[i] = Some(call);
            places[i].inside = Some(call);
        }
    }
    calls
}

/// Returns true if nothing tells the thread of a probe. A worker of the driver core retries a
/// deferred probe.
fn thread_unknown(item: &NestingItem<'_>) -> bool {
    item.kind == NestingKind::Probe && item.thread.is_none() && !item.asynchronous && !item.retry
}

fn late(item: &NestingItem<'_>) -> u64 {
    if item.kind == NestingKind::Initcall { 0 } else { 20_000.min(item.end - item.start) }
}

/// The init call that waits until the deferred probes were tried again.
pub(crate) const DEFERRED: &str = "deferred_probe_initcall";

/// Returns true if an init call is, by its name, that of a probe's driver.
fn belongs(call: &NestingItem<'_>, probe: &NestingItem<'_>) -> bool {
    probe.owner.is_some_and(|driver| {
        names::starts_with(call.name, driver)
            || call
                .owner
                .is_some_and(|m| names::starts_with(m, driver) || names::starts_with(driver, m))
    })
}

/// Groups the probes that overlap in part, and marks them as asynchronous.
fn groups(
    items: &[NestingItem<'_>],
    calls: &[Option<usize>],
    places: &mut [Placement],
) -> Vec<usize> {
    let mut groups: Vec<usize> = (0..items.len()).collect();
    let mut active: Vec<usize> = Vec::new();
    for (i, item) in items.iter().enumerate().filter(|(_, item)| item.kind == NestingKind::Probe) {
        retire(&mut active, items, item.start);
        for &a in &active {
            let before = |one: u64, other: u64| one.saturating_add(item.unit) <= other;
            let crosses = items[a].end < item.end
                && before(items[a].start, item.start)
                && before(items[a].end, item.end)
                && !begins_late(&items[a], item);
            // Two init calls on two threads explain the overlap.
            let explained = calls[a].is_some() && calls[i].is_some() && calls[a] != calls[i];
            if !crosses || explained {
                continue;
            }
            let (x, y) = (root(&mut groups, a), root(&mut groups, i));
            groups[x.max(y)] = x.min(y);
            apart(a, i, calls, places);
        }
        active.push(i);
    }
    for i in 0..groups.len() {
        groups[i] = root(&mut groups, i);
    }
    groups
}

/// Marks two spans that ran at once on two threads as asynchronous. If only one of them ran in an
/// init call, marks the other one alone.
fn apart(a: usize, b: usize, calls: &[Option<usize>], places: &mut [Placement]) {
    // One of them is already known to run beside the rest, which is enough.
    if places[a].asynchronous || places[b].asynchronous {
        return;
    }
    let within = [a, b].map(|i| calls[i].is_some() || places[i].unsure);
    let both = within[0] == within[1];
    for (i, other) in [(a, within[1]), (b, within[0])] {
        places[i].asynchronous |= !places[i].unsure && (both || other);
    }
}

/// Returns true if `item` seems to begin before `before` ends only because its start is inexact.
fn begins_late(before: &NestingItem<'_>, item: &NestingItem<'_>) -> bool {
    before.end - item.start < 20_000.min((item.end - item.start) / 2).max(item.unit)
}

fn root(groups: &mut [usize], mut i: usize) -> usize {
    while groups[i] != i {
        groups[i] = groups[groups[i]];
        i = groups[i];
    }
    i
}

/// Puts probes inside the innermost probe that may have run them.
fn within_probes(
    items: &[NestingItem<'_>],
    calls: &[Option<usize>],
    groups: &[usize],
    places: &mut [Placement],
) {
    let mut active: Vec<usize> = Vec::new();
    let mut order: Vec<usize> =
        (0..items.len()).filter(|&i| items[i].kind != NestingKind::Initcall).collect();
    // A span that begins within the tolerance before its parent still comes after it.
    order.sort_by_key(|&i| {
        (items[i].start.saturating_add(late(&items[i])), std::cmp::Reverse(items[i].end), i)
    });
    for i in order {
        let item = &items[i];
        retire(&mut active, items, item.start);
        let fits = |&a: &usize| {
            a != i
                && holds(&items[a], item)
                && items[a].end - items[a].start >= item.end - item.start
                && (calls[i].is_none() || calls[i] == calls[a])
                && match items[a].thread.zip(item.thread) {
                    Some((one, other)) => one == other,
                    None => {
                        (!item.retry || items[a].retry)
                            && !item.asynchronous
                            && (named_after(&items[a], item)
                                || !places[i].asynchronous && groups[a] != groups[i])
                            && related(&items[a], item)
                    }
                }
        };
        let inside =
            active.iter().copied().filter(fits).min_by_key(|&a| items[a].end - items[a].start);
        if let Some(outer) = inside {
            places[i].inside = Some(outer);
            places[i].asynchronous = false;
            places[i].ambiguous = false;
        }
        // A span that contains this one in time only ran beside it.
        let outer: Vec<usize> = chain(i, places).collect();
        for &a in &active {
            if calls[a] == calls[i] && holds(&items[a], item) && !outer.contains(&a) {
                apart(a, i, calls, places);
                let may = thread_unknown(&items[i]) && related(&items[a], item);
                places[i].unproven |= may && items[a].thread.is_none();
            }
        }
        if item.kind == NestingKind::Probe {
            active.push(i);
        }
    }
}

/// Returns the spans around `i`, beginning with `i` itself.
fn chain(i: usize, places: &[Placement]) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(i), |&i| places[i].inside).take(64)
}

/// Returns true if the name of `inner` says that it is part of `outer`.
fn named_after(outer: &NestingItem<'_>, inner: &NestingItem<'_>) -> bool {
    let parents = std::iter::successors(names::parent(inner.name), |name| names::parent(name));
    parents.take(16).any(|parent| parent == outer.name)
}

/// Returns true if a probe of `outer` may have registered `inner`.
fn related(outer: &NestingItem<'_>, inner: &NestingItem<'_>) -> bool {
    if outer.name == inner.name {
        return false;
    }
    if let (Some((segment, bus)), Some((other, its))) =
        (names::pci(outer.name), names::pci(inner.name))
    {
        return segment != other || bus == its;
    }
    outer.owner.is_none() || outer.owner != inner.owner || inner.name.starts_with(outer.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns probes by device, driver, start and end in milliseconds.
    fn probes(
        spans: &[(&'static str, Option<&'static str>, u64, u64)],
    ) -> Vec<NestingItem<'static>> {
        let item = |&(name, owner, start, end): &_| NestingItem {
            kind: NestingKind::Probe,
            start: start * 1_000_000,
            end: end * 1_000_000,
            thread: None,
            name,
            owner,
            retry: false,
            asynchronous: false,
            unit: 0,
        };
        spans.iter().map(item).collect()
    }

    fn call(
        name: &'static str,
        module: Option<&'static str>,
        pid: u32,
        at: (u64, u64),
    ) -> NestingItem<'static> {
        let mut items = probes(&[(name, module, at.0, at.1)]);
        items[0].kind = NestingKind::Initcall;
        items[0].thread = Some(pid);
        items.remove(0)
    }

    /// Returns for each span the name of the one around it, and true if it is asynchronous.
    fn decided(
        items: &mut [NestingItem<'static>],
    ) -> Vec<(&'static str, Option<&'static str>, bool)> {
        items.sort_by_key(|i| (i.start, std::cmp::Reverse(i.end)));
        let places = decide(items);
        let name = |i: usize| items[i].name;
        let found = places.iter().enumerate();
        found.map(|(i, p)| (name(i), p.inside.map(name), p.asynchronous)).collect()
    }

    type Probe = (&'static str, Option<&'static str>, u64, u64);
    type Call = (&'static str, Option<&'static str>, u32, (u64, u64));
    type Decided = (&'static str, Option<&'static str>, bool);
    type Case = (&'static str, &'static [Probe], Option<Call>, &'static [Decided]);

    #[test]
    fn probes_are_placed_by_their_times_names_and_drivers() {
        let cases: [Case; 8] = [
            (
                "inside the innermost",
                &[
                    ("0000:00:15.0", Some("intel-lpss"), 0, 20),
                    ("idma64.0", Some("idma64"), 2, 3),
                    ("i2c_designware.0", Some("i2c_designware"), 4, 19),
                    ("spd5118", None, 5, 6),
                ],
                None,
                &[
                    ("0000:00:15.0", None, false),
                    ("idma64.0", Some("0000:00:15.0"), false),
                    ("i2c_designware.0", Some("0000:00:15.0"), false),
                    ("spd5118", Some("i2c_designware.0"), false),
                ],
            ),
            (
                "those that overlap in part ran beside each other",
                &[("a", None, 0, 10), ("b", None, 5, 15), ("c", None, 16, 17)],
                None,
                &[("a", None, true), ("b", None, true), ("c", None, false)],
            ),
            (
                // c lies within b, and would be inside if a did not show that more than one
                // thread ran.
                "within a crowd, inside none of it",
                &[("a", None, 0, 20), ("b", None, 5, 30), ("c", None, 6, 28)],
                None,
                &[("a", None, true), ("b", None, true), ("c", None, false)],
            ),
            (
                "a name that says whose part it is outweighs a crowd",
                &[("usb1", None, 0, 20), ("x", None, 5, 30), ("1-0:1.0", None, 3, 18)],
                None,
                &[("usb1", None, true), ("1-0:1.0", Some("usb1"), false), ("x", None, true)],
            ),
            (
                "two disks of one driver",
                &[("0000:01:00.0", Some("nvme"), 0, 20), ("0000:02:00.0", Some("nvme"), 1, 10)],
                None,
                &[("0000:01:00.0", None, true), ("0000:02:00.0", None, true)],
            ),
            (
                "a virtual function",
                &[("0000:01:00.0", Some("mlx5"), 0, 20), ("0000:01:00.1", Some("mlx5"), 5, 9)],
                None,
                &[("0000:01:00.0", None, false), ("0000:01:00.1", Some("0000:01:00.0"), false)],
            ),
            (
                "inside the only init call that it can be in",
                &[("reg-dummy", None, 2, 3)],
                Some(("regulator_init", None, 1, (1, 5))),
                &[("regulator_init", None, false), ("reg-dummy", Some("regulator_init"), false)],
            ),
            (
                "one that outlives its init call is asynchronous",
                &[("0000:01:00.0", Some("nvme"), 2, 90)],
                Some(("nvme_init", Some("nvme"), 206, (1, 5))),
                &[("nvme_init", None, false), ("0000:01:00.0", None, true)],
            ),
        ];
        for (what, spans, outer, expected) in cases {
            let mut items = probes(spans);
            items.extend(outer.map(|(name, module, pid, at)| call(name, module, pid, at)));
            assert_eq!(decided(&mut items), expected, "{what}");
        }
    }

    #[test]
    fn of_several_init_calls_the_drivers_own_is_meant() {
        let mut items =
            probes(&[("0000:00:15.0", Some("intel-lpss"), 2, 3), ("other", None, 3, 4)]);
        items.push(call("intel_lpss_pci_driver_init", Some("intel_lpss_pci"), 153, (1, 5)));
        items.push(call("drm_core_init", Some("drm"), 161, (1, 6)));
        let places = {
            items.sort_by_key(|i| (i.start, std::cmp::Reverse(i.end)));
            decide(&items)
        };
        let found: Vec<_> =
            items.iter().zip(&places).map(|(i, p)| (i.name, p.inside, p.ambiguous)).collect();
        assert_eq!(found[2], ("0000:00:15.0", Some(1), false));
        assert_eq!(found[3], ("other", None, true));
    }

    #[test]
    fn a_thread_that_is_named_settles_it() {
        let mut items = probes(&[("a", None, 2, 3)]);
        items[0].thread = Some(7);
        items.push(call("x_init", None, 1, (1, 5)));
        items.push(call("y_init", None, 7, (1, 6)));
        assert_eq!(decided(&mut items)[2], ("a", Some("y_init"), false));
    }

    #[test]
    fn a_device_that_was_put_off_is_probed_again_by_the_driver_cores_worker() {
        let mut items = probes(&[("leds", None, 2, 3), ("mmc", None, 12, 13)]);
        items[0].retry = true;
        items[1].retry = true;
        items.push(call("whatever_init", None, 1, (1, 5)));
        items.push(call(DEFERRED, None, 1, (11, 15)));
        let found = decided(&mut items);
        assert_eq!(found[1], ("leds", None, false));
        assert_eq!(found[3], ("mmc", Some(DEFERRED), false));
    }

    #[test]
    fn a_million_overlaps_do_not_take_for_ever() {
        let mut items = Vec::new();
        for i in 0..20_000u64 {
            let mut item = probes(&[("a", None, 0, 0)]).remove(0);
            (item.start, item.end) = (i * 1000, (i + 20_000) * 1000);
            items.push(item);
        }
        assert_eq!(decide(&items).len(), items.len());
    }
}
