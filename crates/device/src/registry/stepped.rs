//! Helpers of the stepped tests: a registry without threads, whose steps are named by device.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use super::bring_up::{BringUpPlan, CallerStep, FinishedBringUp};
use super::devices::{DeviceKey, Devices, DueProbe, Effects, Phase};
use super::devices_state::NextStep;
use super::leave::{LeaveStep, LeaveWalk};
use super::matching::{Candidate, RegisteredDriver};
use crate::bound::Bound;
use crate::decl::DeviceDecl;
use crate::driver::Driver;
use crate::error::ProbeError;
use crate::event::Cancel;
use crate::record::Site;
use crate::shutdown::HangPolicy;
use corewise_sync::thread::current;
use std::sync::Arc;
use std::time::Duration;

pub(super) struct TestDevice;
impl Bound for TestDevice {}

/// A driver that is never called: the tests supply the results of its probes.
struct ByHand(&'static str);
impl Driver for ByHand {
    fn name(&self) -> &str {
        self.0
    }
}

pub(super) fn driver(name: &'static str) -> Arc<RegisteredDriver> {
    let driver = Arc::new(ByHand(name));
    Arc::new(RegisteredDriver::new(driver))
}

pub(super) fn decl(name: &str, needs: &[&str]) -> DeviceDecl {
    needs.iter().fold(DeviceDecl::new(name, "d"), |d, n| d.supplier(*n))
}

pub(super) struct Stepped {
    pub(super) devices: Devices,
    pub(super) cancel: Cancel,
    pub(super) on_hang: HangPolicy,
    now: Duration,
    /// Devices that were to be queued and that the test has not taken.
    pub(super) queue: Vec<String>,
    /// Devices that the thread that made a step is to probe itself.
    pub(super) mine: Vec<String>,
    pub(super) late_worker_wanted: usize,
    finished: Vec<(String, &'static str)>,
}

impl Stepped {
    pub(super) fn new() -> Stepped {
        Stepped {
            devices: Devices::new(),
            cancel: Cancel::new(),
            on_hang: HangPolicy::WaitOn,
            now: Duration::ZERO,
            queue: Vec::new(),
            mine: Vec::new(),
            late_worker_wanted: 0,
            finished: Vec::new(),
        }
    }

    pub(super) fn bring_up(decls: Vec<DeviceDecl>, sync: &[&str], keep_going: bool) -> Stepped {
        let mut stepped = Stepped::new();
        stepped.again(decls, sync, keep_going);
        stepped
    }

    /// Begins another bring-up.
    pub(super) fn again(&mut self, decls: Vec<DeviceDecl>, sync: &[&str], keep_going: bool) {
        let decls: Vec<Arc<DeviceDecl>> = decls.into_iter().map(Arc::new).collect();
        let (graph, faults) = self.devices.admit(&decls, &|_, _| None);
        let driver = driver("d");
        let candidate = |decl: &Arc<DeviceDecl>| {
            let asynchronous = !sync.contains(&decl.name.as_str());
            vec![Candidate { driver: driver.clone(), asynchronous, asked: false }]
        };
        let candidates = decls.iter().map(candidate).collect();
        let options = BringUpPlan {
            keep_going,
            cancel: self.cancel.clone(),
            // The outcomes are reported to the test.
            observed: true,
            helps: false,
            device_timeout: None,
            timeout: None,
            on_hang: self.on_hang,
        };
        let graph = Arc::new(graph);
        self.step(|devices, now, fx| {
            devices.begin_bring_up(graph, &faults, candidates, options, now, fx);
        });
    }

    pub(super) fn step<R>(
        &mut self,
        f: impl FnOnce(&mut Devices, Duration, &mut Effects) -> R,
    ) -> R {
        let mut fx = Effects::default();
        let result = f(&mut self.devices, self.now, &mut fx);
        self.now += Duration::from_millis(1);
        let name = |due: &DueProbe| self.devices.decl(due.key).unwrap().name.clone();
        self.queue.extend(fx.queue.iter().map(|(due, _)| name(due)));
        self.mine.extend(fx.mine.iter().map(name));
        self.late_worker_wanted += usize::from(fx.late_worker.is_some());
        self.finished.extend(fx.finished.iter().map(|(d, o, _)| (d.name.clone(), o.as_str())));
        if !fx.finished.is_empty() {
            self.devices.told(fx.finished.len());
        }
        result
    }

    pub(super) fn key(&self, name: &str) -> DeviceKey {
        self.devices.find(name).unwrap()
    }

    /// Adds a device, in the name of this thread.
    pub(super) fn add(&mut self, decl: DeviceDecl, candidates: Vec<Candidate>) -> DeviceKey {
        let me = current().id();
        self.step(|devices, now, fx| devices.add(Arc::new(decl), candidates, me, now, fx))
    }

    /// Starts a device; returns the names of what it needs, if it is to be probed.
    pub(super) fn begin(&mut self, name: &str) -> Option<Vec<String>> {
        let key = self.key(name);
        self.queue.retain(|n| n != name);
        self.mine.retain(|n| n != name);
        let site = Site { worker: "w".into(), cpu: None };
        let me = current().id();
        let begun = self.step(|devices, now, fx| devices.begin(key, &site, me, now, fx))?;
        Some(begun.needs.into_iter().map(|(name, _)| name).collect())
    }

    pub(super) fn end_with(
        &mut self,
        name: &str,
        result: Result<Arc<dyn Bound>, ProbeError>,
    ) -> NextStep {
        let key = self.key(name);
        self.step(|devices, now, fx| devices.end(key, result, now, now, true, fx))
    }

    pub(super) fn end(&mut self, name: &str, ok: bool) {
        let result: Result<Arc<dyn Bound>, _> =
            if ok { Ok(Arc::new(TestDevice)) } else { Err(ProbeError::failed("on purpose")) };
        self.end_with(name, result);
    }

    pub(super) fn defer(&mut self, name: &str) {
        self.end_with(name, Err(ProbeError::defer("on purpose")));
    }

    pub(super) fn probe(&mut self, name: &str) {
        assert!(self.begin(name).is_some(), "{name} is not to be probed");
        self.end(name, true);
    }

    /// Marks a probe that was begun as overdue and named, as a timer does.
    pub(super) fn name_overdue(&mut self, name: &str) {
        self.find_overdue(name);
        self.devices.told(1);
    }

    /// Marks a probe as overdue, before the observer gets the report.
    pub(super) fn find_overdue(&mut self, name: &str) {
        self.step(|devices, now, fx| {
            devices.limit_all();
            let (named, next) = devices.overdue(now, fx);
            let names: Vec<&str> = named.iter().map(|n| n.decl.name.as_str()).collect();
            assert_eq!((names, next), (vec![name], None));
        });
    }

    /// Ends a probe that was begun before.
    pub(super) fn probe_late(&mut self, name: &str) {
        self.end(name, true);
    }

    pub(super) fn caller(&mut self) -> String {
        loop {
            let (step, idle) = self.step(|devices, now, fx| {
                let step = devices.caller_step(now, fx);
                (step, fx.is_empty())
            });
            match step {
                CallerStep::Run(due) => return self.devices.decl(due.key).unwrap().name.clone(),
                CallerStep::Wait if !idle => {}
                // Debug: for the tests that step.
                step => return format!("{step:?}"),
            }
        }
    }

    /// Returns the late worker's next device.
    pub(super) fn late(&mut self) -> Option<String> {
        loop {
            let next = |devices: &mut Devices, now, fx: &mut Effects| {
                devices.next_late(devices.late_number, now, fx)
            };
            // A device that has gone since is passed over, as Begin does.
            let due = self.step(next)?;
            if let Some(decl) = self.devices.decl(due.key) {
                return Some(decl.name.clone());
            }
        }
    }

    /// Creates a walk that begins now.
    pub(super) fn leave(&self, root: &str, remove: bool) -> LeaveWalk {
        LeaveWalk::new(self.devices.instance(self.key(root)), remove)
    }

    /// Makes the next step of a walk. Checks the rule: no callback begins while another device uses
    /// the device, unless each of the two needs the other.
    pub(super) fn leave_step(&mut self, walk: &mut LeaveWalk) -> LeaveStep {
        let step = self.step(|devices, now, fx| devices.leave_step(walk, now, fx));
        if let LeaveStep::Unbind { key, decl, .. } = &step {
            for &feed in &self.devices.slot(key.index).feeds {
                let slot = self.devices.slot(feed);
                let uses = matches!(
                    slot.phase,
                    Phase::Probing(_) | Phase::Bound | Phase::Leaving | Phase::Unbinding
                );
                let circle = uses && self.devices.needs_indirectly(key.index, feed);
                assert!(!uses || circle, "{} goes before its consumer {}", decl.name, slot.name());
            }
        }
        step
    }

    pub(super) fn unbound(&mut self, key: DeviceKey) {
        self.step(|devices, now, fx| devices.unbound(key, now, fx));
    }

    /// Returns all that a walk calls back, in order.
    pub(super) fn walk(&mut self, root: &str, remove: bool) -> Vec<String> {
        let mut walk = self.leave(root, remove);
        self.walk_on(&mut walk)
    }

    /// Returns all that a walk still calls back, in order.
    pub(super) fn walk_on(&mut self, walk: &mut LeaveWalk) -> Vec<String> {
        let mut order = Vec::new();
        loop {
            match self.leave_step(walk) {
                LeaveStep::Unbind { key, decl, .. } => {
                    order.push(decl.name.clone());
                    self.unbound(key);
                }
                LeaveStep::Wait => panic!("it waits, after {order:?}"),
                LeaveStep::Done => return order,
            }
        }
    }

    pub(super) fn outcome(&mut self, name: &str) -> &'static str {
        let of = |(n, _): &&(String, _)| n == name;
        self.finished.iter().find(of).map_or("open", |(_, outcome)| outcome)
    }

    pub(super) fn finish(&mut self) -> FinishedBringUp {
        self.devices.finish_bring_up().unwrap()
    }

    pub(super) fn state(&self, name: &str) -> &'static str {
        self.devices.state(self.key(name)).unwrap().as_str()
    }
}
