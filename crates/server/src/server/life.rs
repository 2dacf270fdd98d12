//! The life of a server: bring-up, clients, shutdown.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use corewise::device::{
    BringUp, BringUpOptions, DeviceReport, Event, Pending, PendingState, ProbeOutcome,
    ShutdownOptions,
};
use corewise::nbd::{self, Endpoint, Listener};
use corewise::timeline::{Timeline, duration};
use corewise::topology::Machine;

use super::prepared::{Components, Monitoring, PreparedServer, failed};
use crate::answers::{self, Control, ServerView};
use crate::cleanup::Cleanup;
use crate::control::health::SocketUse;
use crate::drivers::Volume;
use crate::error::Error;
use crate::handle;
use crate::manifest::{LeftOut, Manifest, Problem, Subject, export_name};
use crate::observer::ShownExport;
use crate::observer::{ClientLimits, Phase, Ready};
use crate::plan::{self, Plan};
use crate::report::Report;
use crate::service::Service;

/// The number of exports that drain at a time: half of the workers that a pool may have, since they
/// wait for work that needs workers, too.
const MOST_HELPERS: usize = 128;

/// The result of a shutdown.
struct ShutdownResult {
    timeline: Timeline,
    /// True if callbacks hang and were abandoned.
    hangs: bool,
}

/// The parts of a server from its first socket on.
pub(super) struct RunningServer {
    pub(super) running: Components,
    pub(super) monitoring: Monitoring,
    pub(super) endpoints: Vec<Endpoint>,
    service: Option<Service>,
    /// Timeline of the bring-up.
    times: Timeline,
    /// True if all of the manifest is up.
    complete: bool,
    _cleaner: Cleaner,
}

/// A guard that cleans up at the end of its scope, however that is reached.
struct Cleaner {
    cleanup: Arc<Cleanup>,
    report: Report,
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        for (path, error) in self.cleanup.run() {
            self.report.warning(format_args!("cannot remove {}: {error}", path.display()));
        }
    }
}

impl PreparedServer {
    /// Brings the server up, from the first socket to the first client.
    pub(super) fn up(mut self) -> Result<(PreparedServer, RunningServer), Error> {
        let (cleanup, report) = (Arc::clone(&self.cleanup), self.report.clone());
        let cleaner = Cleaner { cleanup, report };
        // Problems were reported already; from now on only the result at the end matters.
        let mut complete = self.left_out.is_empty();
        let machine =
            Machine::live().map_err(|error| failed("read this machine's topology", &error))?;
        complete &= self.look_for_nodes(&machine)?;
        let running = self.build(machine)?;
        let listeners = self.bind(&mut complete)?;
        // The control socket stays until the end, so that a shutdown that hangs can be examined,
        // too.
        let about = Arc::new(ServerView {
            pools: running.pools.0.clone(),
            manager: Arc::clone(&running.manager),
            disks: Arc::clone(&running.disks),
            manifest: self.label.clone(),
            live: Arc::clone(&running.live),
            since: Instant::now(),
        });
        let theirs = Arc::downgrade(&about);
        let text =
            move || theirs.upgrade().map(|about| answers::metrics(&about)).unwrap_or_default();
        // Nothing has set it before.
        let _ = running.live.metrics_text.set(Arc::new(text));
        let ticks = running.tick();
        let control = self.answer(&about, &mut complete)?;
        if let Some(control) = &control {
            let path = control.path().to_path_buf();
            running.live.status.socket(SocketUse::Control, path);
        }
        let monitoring = Monitoring { control, about, _ticks: ticks };
        self.measure(&running.live, &mut complete)?;

        let plan = Plan::new(&self.manifest);
        self.report.begin(&self.label, plan.decls.len());
        let up = self.bring_up(&running, &plan)?;
        let lacking = running.live.missing.lacking(&self.manifest, &up);
        self.tell_failures(&up, &lacking, &plan);
        complete &= up.is_complete() && lacking.is_empty();
        self.left_out.extend(not_up(&up, &lacking, &plan));
        running.live.status.followed(self.left_out.iter().map(named).collect(), Vec::new());
        let interrupted = self.report.observer.interruption();
        let times = up.timeline();
        let nothing = up.bound().all(|device| lacking.contains_key(&device.name));
        if interrupted.is_some() || nothing || !(complete || self.keep_going) {
            return Err(self.give_up(running, monitoring, &times, interrupted));
        }
        self.report.bring_up(&times);
        self.tell_notes(&running);
        self.report.made(self.cleanup.keep_files());
        if self.keep_going {
            self.report.left_out(&self.left_out);
        }

        let has = self.has(&up, &lacking);
        let accepted = self.accept(&running, listeners);
        let mut up = RunningServer {
            running,
            monitoring,
            endpoints: Vec::new(),
            service: None,
            times,
            complete,
            _cleaner: cleaner,
        };
        match accepted {
            Ok(endpoints) => {
                up.running.live.status.serves(&endpoints);
                self.ready(&up.running, &endpoints, up.monitoring.control.as_ref());
                up.endpoints = endpoints;
                up.service = Some(up.running.service(&up.monitoring.about));
                up.running.live.begin(has);
                up.complete &= self.report.observer.keep_timelines(&[&up.times]);
                Ok((self, up))
            }
            Err(error) => {
                self.report.error(format_args!("{error}"));
                up.complete = false;
                self.down(up, "cannot accept clients");
                Err(Error::reported())
            }
        }
    }

    /// Takes the server down, from the announcement to the last flush.
    pub(super) fn down(&self, up: RunningServer, why: &str) -> bool {
        let RunningServer { running, monitoring, service, times, mut complete, _cleaner, .. } = up;
        running.live.end();
        self.report.stopping(why);
        if let Some(service) = &service {
            service.stopping(why);
        }
        let ShutdownResult { timeline: down, hangs } = self.shut_down(&running, &mut complete);
        running.live.status.log_handshakes(running.server.handshakes());
        self.report.shutdown(&down);
        running.known.keep(&[&times, &down]);
        complete &= self.report.observer.keep_timelines(&[&times, &down]);
        let took = down.makespan();
        match hangs {
            false => self.report.done(complete, &format!("all devices are down after {took}.")),
            true => self.report.done(false, &format!("given up after {took}.")),
        }
        self.leave(running, monitoring, hangs);
        complete
    }

    /// Ends the sockets of the server, and its threads, unless these hang or the process ends.
    fn leave(&self, running: Components, monitoring: Monitoring, hangs: bool) {
        // The listener is dropped outside the lock. The drop waits for its thread, which may be
        // about to take that lock.
        let metrics = running.live.metrics.lock().take();
        drop((metrics, monitoring));
        if hangs || self.ends_process {
            std::mem::forget(running);
        }
    }

    /// Returns the part of the manifest that came up.
    fn has(&self, up: &BringUp, lacking: &BTreeMap<String, String>) -> Manifest {
        let mut has = self.written.clone();
        has.retain(|name| {
            let device = up.device(name);
            device.is_some_and(|one| one.outcome == ProbeOutcome::Bound)
                && !lacking.contains_key(name)
        });
        has
    }

    fn bring_up(&self, running: &Components, plan: &Plan) -> Result<BringUp, Error> {
        let report = self.report.clone();
        let decls = plan.decls.clone();
        let observer = move |event: &Event<'_>| {
            report.observer.device(event);
            if let Event::Overdue { device, after, .. } = event {
                report.overdue("bring-up", device, *after, &plan::needing(device, &decls));
            }
        };
        let options = BringUpOptions::new()
            .keep_going(self.keep_going)
            .on_hang(self.manifest.server.on_hang)
            .cancel(self.cancel.clone())
            .observer(Arc::new(observer));
        let manager = Arc::clone(&running.manager);
        let blocker = move || {
            let pending = manager.pending();
            // The device being probed holds up the rest.
            let is_probed = |one: &&Pending| matches!(one.state, PendingState::Probing { .. });
            let first = pending.iter().find(is_probed).or(pending.first());
            first.map(|one| format!("waiting for {one}"))
        };
        let observer = &self.report.observer;
        observer.phase_begins(Phase::BringUp, plan.decls.len(), Box::new(blocker));
        let up = running.manager.bring_up(plan.decls.clone(), &options);
        observer.phase_ends();
        up.map_err(|error| Error::new(error.to_string()))
    }

    /// Reports each device that failed by itself.
    fn tell_failures(&self, up: &BringUp, lacking: &BTreeMap<String, String>, plan: &Plan) {
        for (device, message) in plan.failures(up, lacking) {
            match plan.origin(&device) {
                Some((subject, place)) => {
                    let problem = Problem::new(*place, subject.clone(), message);
                    self.report.problem(&self.label, &problem);
                }
                None => self.report.error(format_args!("{device}: {message}")),
            }
        }
    }

    fn tell_notes(&self, running: &Components) {
        for note in running.notes.take() {
            self.report.warning(format_args!("{note}"));
        }
    }

    /// Accepts clients.
    fn accept(
        &self,
        running: &Components,
        listeners: Vec<Listener>,
    ) -> Result<Vec<Endpoint>, nbd::Error> {
        listeners.into_iter().map(|listener| running.server.listen(listener)).collect()
    }

    fn ready(&self, running: &Components, endpoints: &[Endpoint], control: Option<&Control>) {
        let tls = self.manifest.server.tls();
        let knows_clients = tls.is_some_and(|tls| tls.required && tls.client_ca.is_some());
        for endpoint in endpoints.iter().filter(|_| !knows_clients) {
            if let Endpoint::Tcp(address) = endpoint {
                if !address.ip().is_loopback() {
                    self.report.warning(format_args!(
                        "{address} is open to other machines, which may read and write: clients \
                         need no certificate. To require one, set tls_client_ca in the manifest"
                    ));
                }
            }
        }
        // Exports in the manifest's order, rather than that in which they came up.
        let shown = running.shown.lock().clone();
        let mut shown: HashMap<String, ShownExport> =
            shown.into_iter().map(|shown| (shown.name.clone(), shown)).collect();
        let exports = self.manifest.exports.iter();
        let exports: Vec<ShownExport> =
            exports.filter_map(|export| shown.remove(&export.name)).collect();
        if let Some(shortfall) = &self.shortfall {
            tracing::warn!("{shortfall}");
        }
        if let Some(warning) = &self.too_much_memory {
            tracing::warn!("{warning}");
        }
        let clients = ClientLimits { options: &self.options, tls, shortfall: self.shortfall };
        // The lock isn't held: an observer may wait for the reader of its stdout.
        let metrics = running.live.metrics.lock().as_ref().map(|one| one.address().to_owned());
        let (control, metrics) = (control.map(Control::path), metrics.as_deref());
        self.report.ready(Ready { endpoints, exports: &exports, clients, control, metrics });
    }

    /// Takes a server down that served no client, and removes the files it created.
    fn give_up(
        &self,
        running: Components,
        monitoring: Monitoring,
        up: &Timeline,
        signal: Option<&'static str>,
    ) -> Error {
        if let Some(name) = signal {
            self.report.error(format_args!("{name} during bring-up: no volume was served"));
        }
        let ShutdownResult { timeline: down, hangs } = self.shut_down(&running, &mut false);
        self.report.observer.keep_timelines(&[up, &down]);
        // People have the problem's message; more lines would hide it.
        let report = Report { quiet: true, ..self.report.clone() };
        report.bring_up(up);
        report.shutdown(&down);
        report.done(false, "");
        self.leave(running, monitoring, hangs);
        Error::reported()
    }

    /// Drains exports and flushes volumes, each after its consumers.
    fn shut_down(&self, running: &Components, complete: &mut bool) -> ShutdownResult {
        running.server.close();
        let devices = running.manager.devices();
        // The volumes learn of the end before the first one is flushed.
        let volumes = devices.iter().filter_map(|info| running.manager.bound::<Volume>(&info.name));
        volumes.for_each(|volume| volume.server_ends());
        running.live.front_ends.server_ends();
        let devices = devices.len();
        let manager = Arc::clone(&running.manager);
        let blocker = move || handle::blocker(&manager.remaining());
        let observer = &self.report.observer;
        observer.phase_begins(Phase::Shutdown, devices, Box::new(blocker));
        let down = running.manager.shutdown(&self.shutdown_options(running));
        observer.phase_ends();
        let down = match down {
            Ok(down) => down,
            Err(error) => {
                self.report.error(format_args!("shutdown: {error}"));
                *complete = false;
                return ShutdownResult { timeline: Timeline::new("shutdown"), hangs: false };
            }
        };
        self.tell_notes(running);
        for failed in &down.failed {
            self.report.error(format_args!("shutdown of {}: {}", failed.device, failed.error));
        }
        *complete &= down.is_clean() && !running.live.is_unclean();
        let hangs = !down.remaining.is_empty();
        if hangs {
            let left = handle::waiting(&down.remaining);
            let (said, took) = (if down.gave_up { "given up" } else { "left" }, down.elapsed);
            let took = duration(took);
            self.report.error(format_args!("shutdown {said} after {took}, not shut down: {left}"));
        } else {
            // A client that has not chosen an export yet is on no export's list, and has nothing to
            // flush.
            let _ = running.server.drain(Duration::ZERO);
            self.tell_notes(running);
        }
        ShutdownResult { timeline: down.timeline(), hangs }
    }

    fn shutdown_options(&self, running: &Components) -> ShutdownOptions {
        let report = self.report.clone();
        let manager = Arc::clone(&running.manager);
        let observer = move |event: &Event<'_>| {
            report.observer.device(event);
            if let Event::Overdue { device, after, .. } = event {
                let held_up = handle::held_up_by(device, &manager.remaining());
                report.overdue("shutdown", device, *after, &held_up);
            }
        };
        let settings = running.live.settings.now();
        let usual = ShutdownOptions::new();
        // An export's callback may block for as long as its clients may drain, so this many run in
        // parallel.
        let helpers = usual.max_helpers.max(running.server.exports().len().min(MOST_HELPERS));
        usual
            .max_helpers(helpers)
            .observer(Arc::new(observer))
            .timeout(settings.shutdown_timeout)
            .on_hang(settings.on_hang)
            .history(running.known.history())
    }
}

/// Returns the name of a device or export that was left out, and the reason.
fn named(LeftOut { subject, why }: &LeftOut) -> (String, String) {
    let name = match subject {
        Subject::Device(Ok(name)) => name.clone(),
        Subject::Export(Ok(name)) => export_name(name),
        Subject::Manifest | Subject::Server | Subject::Device(Err(_)) | Subject::Export(Err(_)) => {
            subject.to_string()
        }
    };
    (name, why.clone())
}

/// Returns the devices and exports that did not come up, and the reasons.
fn not_up(up: &BringUp, lacking: &BTreeMap<String, String>, plan: &Plan) -> Vec<LeftOut> {
    let is_out = |device: &&DeviceReport| {
        device.outcome != ProbeOutcome::Bound || lacking.contains_key(&device.name)
    };
    let devices = up.devices().iter().filter(is_out).map(|device| {
        let subject = match plan.origin(&device.name) {
            Some((subject, _)) => subject.clone(),
            None => Subject::Device(Ok(device.name.clone())),
        };
        let why = match &device.outcome {
            ProbeOutcome::Skipped { culprit } => plan::not_up_below(culprit),
            ProbeOutcome::Deferred { reason } => {
                format!("the driver deferred the device: {reason}")
            }
            ProbeOutcome::Cancelled => "the bring-up was cancelled".to_string(),
            _ => "the device failed".to_string(),
        };
        LeftOut { subject, why }
    });
    devices.collect()
}
