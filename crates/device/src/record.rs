//! Records of what happens while devices come up or go down, and the timeline made from them.

use crate::graph::{DeviceId, Graph};
use corewise_sync::time;
use corewise_timeline::{Outcome, Span, SpanId, SpanKind, Timeline};
use corewise_topology::{CpuId, current_cpu};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A clock that counts from the beginning of a bring-up or a shutdown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock(time::now())
    }

    pub(crate) fn now(&self) -> Duration {
        time::now() - self.0
    }
}

/// The thread, CPU and node on which something runs.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub worker: Arc<str>,
    pub cpu: Option<CpuId>,
}

impl Site {
    /// Returns the site of the calling thread. `placed` is the CPU near which the thread was asked
    /// to run: on a synthetic machine only that CPU means something, on a live one the true CPU is
    /// recorded.
    pub(crate) fn here(machine: &corewise_topology::Machine, placed: Option<CpuId>) -> Site {
        let thread = corewise_sync::thread::current();
        let worker = Arc::from(thread.name().unwrap_or("a thread without a name"));
        let cpu = if machine.is_synthetic() { placed } else { current_cpu() };
        Site { worker, cpu }
    }
}

/// One device's part of a bring-up or shutdown. It is smaller and cheaper than a [`Span`]: spans
/// are made on request, not while devices wait.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub device: DeviceId,
    pub queued: Duration,
    pub start: Duration,
    pub end: Duration,
    pub site: Option<Site>,
    pub released_by: Option<DeviceId>,
    pub outcome: Outcome,
    pub no_callback: bool,
}

impl Record {
    /// Creates the record of something that took no time. The caller says whether there was
    /// anything to call.
    pub(crate) fn instant(
        device: DeviceId,
        at: Duration,
        released_by: Option<DeviceId>,
        outcome: Outcome,
        no_callback: bool,
    ) -> Record {
        Record {
            device,
            queued: at,
            start: at,
            end: at,
            site: None,
            released_by,
            outcome,
            no_callback,
        }
    }
}

/// Creates a timeline from the records: a span each, by start, and an edge for each dependency of
/// which both ends were recorded. `driver` names each device's driver, if that is known.
pub(crate) fn timeline(
    name: &str,
    kind: SpanKind,
    graph: &Graph,
    records: &[Record],
    driver: impl Fn(DeviceId) -> Option<String>,
) -> Timeline {
    let mut timeline = Timeline::new(name);
    let mut ids: Vec<Option<SpanId>> = vec![None; graph.len()];
    let mut by_start: Vec<&Record> = records.iter().collect();
    by_start.sort_by_key(|r| (r.start, r.end));
    for record in by_start {
        let mut span = Span::new(graph.name(record.device), kind, record.start, record.end);
        if let Some(site) = &record.site {
            span.worker = site.worker.to_string();
            span.cpu = site.cpu.map(CpuId::number);
        }
        span.node = graph.node(record.device);
        span.queued = record.queued;
        span.outcome = record.outcome.clone();
        span.released_by = record.released_by.map(|d| graph.name(d).to_string());
        span.no_callback = record.no_callback;
        span.driver = driver(record.device).map(Into::into);
        ids[record.device.index()] = Some(timeline.push(span));
    }
    for (device, need, edge) in graph.edges() {
        if let (Some(device), Some(need)) = (ids[device.index()], ids[need.index()]) {
            let (before, after) =
                if kind == SpanKind::Shutdown { (device, need) } else { (need, device) };
            timeline.push_edge(before, after, edge);
        }
    }
    timeline
}

/// Returns the driver that a device's declaration names, if it names one.
pub(crate) fn named_driver(graph: &Graph, device: DeviceId) -> Option<String> {
    Some(graph.decl(device).driver.clone()).filter(|driver| !driver.is_empty())
}
