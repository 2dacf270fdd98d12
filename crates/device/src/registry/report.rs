//! Options and result of a bring-up.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use corewise_timeline::{SpanKind, Timeline};

use super::bring_up::FinishedBringUp;
use super::info::ProbeRecord;
use crate::event::{Cancel, Observer};
use crate::graph::DeviceId;
use crate::info::{ProbeCost, ProbeOutcome};
use crate::record;
use crate::shutdown::HangPolicy;

/// Options of a bring-up. The default: side by side, as far as devices don't need each other; stop
/// at the first failure.
#[derive(Clone)]
#[non_exhaustive]
pub struct BringUpOptions {
    /// True to go on when a device fails or its declaration is at fault: everything that doesn't
    /// need it comes up.
    pub keep_going: bool,
    /// True (the default) if drivers of the default [probe type](crate::ProbeType) probe
    /// asynchronously, side by side. False: one by one, as in Linux.
    pub asynchronous: bool,
    /// Switch that stops the start of further probes. Probes that run are waited for.
    pub cancel: Cancel,
    /// Observer that gets an event for each device, for progress bars.
    pub observer: Option<Observer>,
    /// Deadline of a probe, for devices that have none of their own. Past it, a probe is named
    /// ([`Event::Overdue`](crate::Event::Overdue), the log,
    /// [`DeviceManager::pending`](crate::DeviceManager::pending)). `None`: no limit, and no timer
    /// runs.
    pub device_timeout: Option<Duration>,
    /// Deadline of the whole bring-up. Past it, whatever is being probed is named, and unless the
    /// policy is to wait, the rest is left as it is.
    pub timeout: Option<Duration>,
    /// Policy for a probe that is past its deadline, once everything that doesn't need it is
    /// settled. Unless it is to be waited for, it counts as failed: those that need it are skipped
    /// (`Skip`) or cancelled (`GiveUp`). The probe itself goes on; what it brings up late is up
    /// after all, and so are then those that wait for it. A synchronous driver that has not
    /// returned holds the calling thread itself: it is named too, but has to be waited for.
    pub on_hang: HangPolicy,
}

impl Default for BringUpOptions {
    fn default() -> BringUpOptions {
        BringUpOptions {
            keep_going: false,
            asynchronous: true,
            cancel: Cancel::new(),
            observer: None,
            device_timeout: None,
            timeout: None,
            on_hang: HangPolicy::default(),
        }
    }
}

impl BringUpOptions {
    /// Returns the defaults.
    pub fn new() -> BringUpOptions {
        BringUpOptions::default()
    }

    /// Sets whether to go on when a device fails.
    #[must_use]
    pub fn keep_going(mut self, yes: bool) -> BringUpOptions {
        self.keep_going = yes;
        self
    }

    /// Sets whether drivers of the default type probe asynchronously.
    #[must_use]
    pub fn asynchronous(mut self, yes: bool) -> BringUpOptions {
        self.asynchronous = yes;
        self
    }

    /// Sets the switch that cancels.
    #[must_use]
    pub fn cancel(mut self, cancel: Cancel) -> BringUpOptions {
        self.cancel = cancel;
        self
    }

    /// Sets the observer.
    #[must_use]
    pub fn observer(mut self, observer: Observer) -> BringUpOptions {
        self.observer = Some(observer);
        self
    }

    /// Sets the deadline of a probe, past which it is named.
    #[must_use]
    pub fn device_timeout(mut self, timeout: Option<Duration>) -> BringUpOptions {
        self.device_timeout = timeout;
        self
    }

    /// Sets the deadline of the whole bring-up.
    #[must_use]
    pub fn timeout(mut self, timeout: Option<Duration>) -> BringUpOptions {
        self.timeout = timeout;
        self
    }

    /// Sets the policy for a probe that is past its deadline.
    #[must_use]
    pub fn on_hang(mut self, policy: HangPolicy) -> BringUpOptions {
        self.on_hang = policy;
        self
    }
}

impl fmt::Debug for BringUpOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BringUpOptions")
            .field("keep_going", &self.keep_going)
            .field("asynchronous", &self.asynchronous)
            .field("cancel", &self.cancel)
            .field("device_timeout", &self.device_timeout)
            .field("timeout", &self.timeout)
            .field("on_hang", &self.on_hang)
            .finish_non_exhaustive()
    }
}

/// The result of a bring-up: one outcome per declaration, and when everything happened. The reports
/// on single devices are made when they are first asked for, so that a caller that doesn't read
/// them never waits for that.
#[must_use = "it says which devices did not come up"]
#[derive(Clone)]
pub struct BringUp {
    /// I: shared by copies.
    finished: Arc<FinishedBringUp>,
    /// A: created when it is first asked for.
    devices: OnceLock<Vec<DeviceReport>>,
    /// The device whose failure stopped the rest (never with `keep_going`).
    pub stopped_by: Option<String>,
    /// True if the bring-up was cancelled.
    pub cancelled: bool,
    /// The devices that were past their deadline, whatever became of them.
    pub overdue: Vec<String>,
    /// True if the rest was left as it was, because of those.
    pub gave_up: bool,
}

/// The outcome of one device.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceReport {
    /// Its name.
    pub name: String,
    /// The name of the driver that was called for it, else of the one that it names; may be empty.
    pub driver: String,
    /// Outcome.
    pub outcome: ProbeOutcome,
    /// Cost of its probes. Its times count from the creation of the manager.
    pub cost: ProbeCost,
}

impl BringUp {
    pub(crate) fn new(finished: FinishedBringUp, cancelled: bool) -> BringUp {
        let graph = &finished.graph;
        let name = |place| graph.name(DeviceId(place)).to_string();
        let stopped_by = finished.stopped_by.map(name);
        let overdue = finished.overdue.iter().map(|&place| name(place)).collect();
        let gave_up = finished.gave_up;
        let (finished, devices) = (Arc::new(finished), OnceLock::new());
        BringUp { finished, devices, stopped_by, cancelled, overdue, gave_up }
    }

    /// Returns the report of each device, in the order of the declarations.
    pub fn devices(&self) -> &[DeviceReport] {
        self.devices.get_or_init(|| {
            let graph = &self.finished.graph;
            let report = |(id, (outcome, called)): (DeviceId, &(ProbeOutcome, ProbeRecord))| {
                let decl = graph.decl(id);
                let driver = called.driver.as_deref().unwrap_or(&decl.driver).to_string();
                let (name, outcome) = (decl.name.clone(), outcome.clone());
                DeviceReport { name, driver, outcome, cost: called.cost() }
            };
            graph.ids().zip(&self.finished.devices).map(report).collect()
        })
    }

    /// Returns a timeline with a span for each device and an edge for each dependency. It is made
    /// when asked for.
    pub fn timeline(&self) -> Timeline {
        let FinishedBringUp { graph, devices, records, .. } = &*self.finished;
        let driver = |id: DeviceId| {
            let called = devices[id.index()].1.driver.as_ref().map(ToString::to_string);
            called.or_else(|| record::named_driver(graph, id))
        };
        record::timeline("bring-up", SpanKind::Probe, graph, records, driver)
    }

    /// Returns true if every device is up.
    pub fn is_complete(&self) -> bool {
        self.finished.devices.iter().all(|(outcome, _)| *outcome == ProbeOutcome::Bound)
    }

    /// Returns the devices that are up.
    pub fn bound(&self) -> impl Iterator<Item = &DeviceReport> {
        self.devices().iter().filter(|d| d.outcome == ProbeOutcome::Bound)
    }

    /// Returns the devices that are not up, for whatever reason, in the order of the declarations.
    pub fn not_bound(&self) -> impl Iterator<Item = &DeviceReport> {
        self.devices().iter().filter(|d| d.outcome != ProbeOutcome::Bound)
    }

    /// Returns the device of that name.
    pub fn device(&self, name: &str) -> Option<&DeviceReport> {
        self.devices().get(self.finished.graph.find(name)?.index())
    }
}

impl fmt::Debug for BringUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BringUp")
            .field("devices", &self.devices())
            .field("stopped_by", &self.stopped_by)
            .field("cancelled", &self.cancelled)
            .field("overdue", &self.overdue)
            .field("gave_up", &self.gave_up)
            .finish_non_exhaustive()
    }
}
