//! Random devices, in random order, with every step of everybody interleaved at random. After each
//! step all counts have to equal their definitions, and in the end nobody is left behind.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use super::devices::{DeviceKey, Devices, Link, Phase};
use super::devices_state::NextStep;
use super::leave::{LeaveStep, LeaveWalk};
use super::matching::Candidate;
use super::stepped::{Stepped, TestDevice, decl, driver};
use crate::bound::Bound;
use crate::decl::DeviceDecl;
use crate::error::ProbeError;
use crate::graph::DeviceId;
use crate::shutdown::HangPolicy;
use fastrand::Rng;
use std::collections::HashMap;
use std::sync::Arc;

/// Compares the counts with their definitions.
fn check(devices: &Devices, walks: usize) {
    let mut active = 0;
    for slot in devices.slots.iter().filter(|s| s.decl.is_some()) {
        let unmet = slot.needs.iter().filter(|l| {
            let up = l.device().is_some_and(|to| devices.is_up(to));
            !l.waived && !up
        });
        assert_eq!(slot.unmet as usize, unmet.count(), "unmet of {}", slot.name());
        active += usize::from(slot.is_in_progress());
        if walks == 0 {
            assert!(!matches!(slot.phase, Phase::Leaving | Phase::Unbinding), "{}", slot.name());
            assert!(!slot.is_wanted_down() && !slot.stays_down, "{}", slot.name());
        }
        if matches!(slot.phase, Phase::Waiting) && walks == 0 && !slot.candidates.is_empty() {
            assert!(slot.unmet > 0, "{} waits for nothing", slot.name());
        }
    }
    assert_eq!(devices.active, active);
    for index in (0u32..).take(devices.slots.len()).filter(|&i| devices.slot(i).in_turn) {
        assert!(devices.is_unsettled(index), "{} waits for no turn", devices.slot(index).name());
    }
    if let Some(bring_up) = &devices.bring_up {
        let its = devices.slots.iter().filter(|s| s.in_bring_up.is_some());
        let active = its.clone().filter(|s| s.is_in_progress()).count();
        assert_eq!(bring_up.active, active, "of the bring-up");
        let turns = its.filter(|s| s.in_turn && matches!(s.phase, Phase::Ready)).count();
        assert_eq!(bring_up.ready_turns, turns, "ready turns");
        for index in (0u32..).take(devices.slots.len()).filter(|&i| devices.is_unsettled(i)) {
            let needs = devices.slot(index).needs.iter().filter_map(Link::device);
            let open = needs.filter(|&to| devices.is_unsettled(to)).count();
            assert_eq!(devices.slot(index).open as usize, open, "open of a device");
        }
    }
}

/// Checks that bound objects are given by device of the graph, whatever came and went since the
/// graph was made.
fn check_order(devices: &mut Devices) {
    let (graph, bound) = (devices.graph(), devices.bound_objects());
    assert_eq!((graph.len(), bound.len()), (devices.len(), devices.len()));
    let place = |id: DeviceId| devices.find(graph.name(id)).unwrap().index as usize;
    let places: Vec<usize> = graph.ids().map(place).collect();
    assert!(places.iter().is_sorted_by_key(|&i| devices.slots[i].registration));
    for (place, object) in places.into_iter().zip(&bound) {
        let pointer = |object: &Option<Arc<dyn Bound>>| object.as_ref().map(Arc::as_ptr);
        assert!(
            pointer(&devices.bound[place]) == pointer(object),
            "{}",
            devices.slots[place].name()
        );
    }
}

/// Returns the devices that are being probed.
fn probing(devices: &Devices) -> Vec<String> {
    let its = devices.slots.iter().filter(|s| matches!(s.phase, Phase::Probing(_)));
    its.map(|s| s.name().to_string()).collect()
}

/// Ends a probe with a random result.
fn end(s: &mut Stepped, name: &str, rng: &mut Rng, calm: bool) {
    let result = match rng.usize(..if calm { 1 } else { 8 }) {
        0..=4 => Ok(Arc::new(TestDevice) as Arc<dyn Bound>),
        5 => Err(ProbeError::failed("at random")),
        6 => Err(ProbeError::defer("at random")),
        _ => Err(ProbeError::no_device("at random")),
    };
    if s.end_with(name, result) == NextStep::Again {
        s.mine.push(name.to_string());
    }
}

/// Makes one step of a prober of what was handed out: the queue, the adder, the late worker.
fn somebody(s: &mut Stepped, rng: &mut Rng, calm: bool) -> bool {
    let running = probing(&s.devices);
    let names: Vec<String> = s.queue.iter().chain(&s.mine).cloned().collect();
    match rng.usize(..3) {
        0 if !running.is_empty() => {
            end(s, &running[rng.usize(..running.len())], rng, calm);
            true
        }
        1 if !names.is_empty() => {
            let name = &names[rng.usize(..names.len())];
            s.queue.retain(|n| n != name);
            s.mine.retain(|n| n != name);
            if s.devices.find(name).is_some() {
                s.begin(name);
            }
            true
        }
        2 if s.devices.late_worker => {
            if let Some(name) = s.late() {
                s.begin(&name);
            }
            true
        }
        _ => !running.is_empty() || !names.is_empty() || s.devices.late_worker,
    }
}

fn random_decl(i: usize, rng: &mut Rng) -> DeviceDecl {
    let mut device = decl(&format!("d{i}"), &[]);
    for _ in 0..rng.usize(..3) {
        let need = format!("d{}", rng.usize(..20));
        device = match rng.usize(..5) {
            0 => device.optional_supplier(need),
            1 if device.parent.is_none() => device.parent(need),
            _ => device.supplier(need),
        };
    }
    device
}

#[test]
fn stepped_random_devices_come_and_go_and_all_counts_stay_right() {
    for seed in 1..400 {
        let mut rng = Rng::with_seed(seed * 7919);
        let mut s = Stepped::new();
        let candidates = |rng: &mut Rng| {
            let all = [("s", false), ("a", true), ("b", true)].map(|(name, asynchronous)| {
                Candidate { driver: driver(name), asynchronous, asked: false }
            });
            let from = rng.usize(..3);
            all[from..=from + rng.usize(..3 - from)].to_vec()
        };
        let mut walks: Vec<(LeaveWalk, Option<DeviceKey>)> = Vec::new();
        for step in 0..250 {
            let name = format!("d{}", rng.usize(..20));
            match rng.usize(..12) {
                0..=2 => {
                    let decl = random_decl(rng.usize(..20), &mut rng);
                    let refused = !s.devices.refuse(&Arc::new(decl.clone())).is_empty();
                    if s.devices.find(&decl.name).is_none() {
                        let new = HashMap::from([(decl.name.as_str(), &decl)]);
                        let circle = s.devices.path_back(&decl.name, &new).is_some();
                        assert_eq!(refused, circle, "{decl:?}");
                    }
                    if !refused {
                        let candidates = candidates(&mut rng);
                        s.add(decl, candidates);
                    }
                }
                3 if walks.len() < 3 => {
                    if let Some(key) = s.devices.find(&name) {
                        let device = s.devices.instance(key);
                        walks.push((LeaveWalk::new(device, rng.usize(..2) == 0), None));
                    }
                }
                4 => {
                    let other = format!("d{}", rng.usize(..20));
                    if let (Some(a), Some(b)) = (s.devices.find(&name), s.devices.find(&other)) {
                        match rng.usize(..3) {
                            0 => {
                                s.step(|devices, now, fx| devices.unlink(a, &other, now, fx));
                            }
                            _ => drop(s.devices.link(a, b)),
                        }
                    }
                }
                5 => {
                    if let Some(key) = s.devices.find(&name) {
                        s.step(|devices, now, fx| devices.rebind(key, now, fx));
                    }
                }
                6 if !walks.is_empty() => {
                    let at = rng.usize(..walks.len());
                    walk_on(&mut s, &mut walks, at);
                }
                7 if step == 200 => {
                    s.step(|devices, now, fx| devices.expire(now, fx));
                }
                _ => {
                    somebody(&mut s, &mut rng, false);
                }
            }
            check(&s.devices, walks.len());
            if rng.usize(..4) == 0 {
                check_order(&mut s.devices);
            }
        }
        // Now everybody gets to an end.
        for _ in 0..20_000 {
            if !walks.is_empty() {
                let at = rng.usize(..walks.len());
                walk_on(&mut s, &mut walks, at);
            }
            if !somebody(&mut s, &mut rng, true) && walks.is_empty() {
                break;
            }
            check(&s.devices, walks.len());
        }
        assert!(walks.is_empty() && s.devices.is_quiet(), "seed {seed} comes to no end");
        let graph = s.devices.graph();
        assert_eq!(graph.order().len(), s.devices.len());
        assert!(graph.edges().all(|(device, need, _)| graph.rank(need) < graph.rank(device)));
    }
}

/// Makes one step of one walk.
fn walk_on(s: &mut Stepped, walks: &mut Vec<(LeaveWalk, Option<DeviceKey>)>, at: usize) {
    let (walk, calling) = &mut walks[at];
    if let Some(key) = calling.take() {
        s.unbound(key);
        return;
    }
    match s.leave_step(walk) {
        LeaveStep::Unbind { key, .. } => *calling = Some(key),
        LeaveStep::Wait => {}
        LeaveStep::Done => drop(walks.remove(at)),
    }
}

#[test]
fn stepped_random_bring_ups_end_and_everybody_has_an_outcome() {
    for seed in 1..400 {
        let mut rng = Rng::with_seed(seed * 104_729);
        let mut s = Stepped::new();
        s.on_hang = [HangPolicy::Skip, HangPolicy::GiveUp][rng.usize(..2)];
        let n = 1 + rng.usize(..20);
        let mut decls: Vec<DeviceDecl> = Vec::new();
        for i in 0..n {
            // Mostly without circles; a circle gets rejected.
            let needs: Vec<String> =
                (0..rng.usize(..3)).map(|_| format!("d{}", rng.usize(..i + 2))).collect();
            let needs: Vec<&str> = needs.iter().map(String::as_str).collect();
            decls.push(decl(&format!("d{i}"), &needs));
        }
        let sync: Vec<String> =
            (0..n).filter(|_| rng.usize(..3) == 0).map(|i| format!("d{i}")).collect();
        let sync: Vec<&str> = sync.iter().map(String::as_str).collect();
        let keep_going = rng.usize(..4) > 0;
        s.again(decls, &sync, keep_going);
        let mut mine: Option<String> = None;
        let mut walks: Vec<(LeaveWalk, Option<DeviceKey>)> = Vec::new();
        let mut steps = 0;
        loop {
            steps += 1;
            assert!(steps < 20_000, "seed {seed} comes to no end");
            check(&s.devices, walks.len());
            match rng.usize(..46) {
                0 => s.cancel.cancel(),
                1 => {
                    s.step(|devices, now, fx| {
                        devices.limit_all();
                        let (named, _) = devices.overdue(now, fx);
                        devices.told(named.iter().filter(|n| n.in_bring_up.is_some()).count());
                    });
                }
                2..=4 => {
                    let (a, b) = (format!("d{}", rng.usize(..n)), format!("d{}", rng.usize(..n)));
                    let keys = s.devices.find(&a).zip(s.devices.find(&b));
                    if let Some((from, to)) = keys {
                        if rng.usize(..2) == 0 {
                            s.step(|devices, now, fx| devices.unlink(from, &b, now, fx));
                        } else {
                            s.devices.link(from, to);
                        }
                    }
                }
                40..=41 => {
                    if let Some(key) = s.devices.find(&format!("d{}", rng.usize(..n))) {
                        s.step(|devices, now, fx| devices.rebind(key, now, fx));
                    }
                }
                42 if walks.len() < 2 && steps < 300 => {
                    if let Some(key) = s.devices.find(&format!("d{}", rng.usize(..n))) {
                        let device = s.devices.instance(key);
                        walks.push((LeaveWalk::new(device, rng.usize(..2) == 0), None));
                    }
                }
                43..=45 if !walks.is_empty() => {
                    let at = rng.usize(..walks.len());
                    walk_on(&mut s, &mut walks, at);
                }
                5..=20 if mine.is_none() => match s.caller().as_str() {
                    "Done" => break,
                    "Wait" => {}
                    name => {
                        s.begin(name);
                        mine = Some(name.to_string()).filter(|n| probing(&s.devices).contains(n));
                    }
                },
                _ => {
                    somebody(&mut s, &mut rng, steps > 300);
                    mine = mine.filter(|n| probing(&s.devices).contains(n));
                }
            }
        }
        check_order(&mut s.devices);
        let finished = s.finish();
        assert_eq!(finished.devices.len(), n);
        assert_eq!(finished.records.len(), n);
        for _ in 0..10_000 {
            if !walks.is_empty() {
                let at = rng.usize(..walks.len());
                walk_on(&mut s, &mut walks, at);
            }
            if !somebody(&mut s, &mut rng, true) && walks.is_empty() {
                break;
            }
            check(&s.devices, walks.len());
        }
        assert!(walks.is_empty() && s.devices.is_quiet(), "seed {seed}: somebody is left behind");
    }
}
