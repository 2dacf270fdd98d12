//! The life of a server: sockets, bring-up, clients, shutdown.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use corewise::device::{
    BringUp, BringUpOptions, DeviceManager, DeviceReport, Event, Pending, PendingState,
    ProbeOutcome, ShutdownOptions,
};
use corewise::drivers::FileRings;
use corewise::nbd::{self, Endpoint, Listener};
use corewise::sync::Mutex;
use corewise::sync::atomic::AtomicBool;
use corewise::timeline::{Timeline, duration};
use corewise::topology::Machine;
use corewise::workqueue::{Ticker, WorkerPools, Workqueue};

use super::calls::Calls;
use super::cleanup::Cleanup;
use super::control::{self, About, Control};
use super::drivers::{ExportDriver, House, Missing, Notes, Shown, Volume, VolumeDriver};
use super::known::Known;
use super::live::Live;
use super::plan::{self, Plan};
use super::progress::Progress;
use super::report::{ClientLimits, Report};
use super::room::{Cut, Room};
use super::service::{self, Service};
use super::settings::{Asked, Settings};
use super::spare_thread::no_thread;
use super::status::ServerStatus;
use super::stop::{self, Stop};
use super::{NOWHERE, listen, tell, tls};
use crate::control::disks::Disks;
use crate::control::health::SocketUse;
use crate::control::place;
use crate::exit::Failure;
use crate::manifest::{LeftOut, Manifest, Place, Problem, Subject, export_name};
use crate::screen::{self, Bars};
use crate::timeline::{self, TimelineFile};

/// A server that was checked and not begun.
pub(crate) struct Server {
    pub(crate) report: Report,
    pub(crate) keep_going: bool,
    pub(crate) duration: Option<Duration>,
    /// Whether there is to be a control socket.
    pub(crate) control: bool,
    pub(crate) timeline: Option<TimelineFile>,
    /// How messages call the manifest.
    pub(crate) label: String,
    /// The manifest's file, where it can be read again.
    pub(crate) source: Option<PathBuf>,
    /// As it is written, without what the command line says instead.
    pub(crate) written: Manifest,
    pub(crate) manifest: Manifest,
    /// What the command line says of that.
    pub(crate) asked: Asked,
    /// Whether clients come by a Unix socket, which alone says which user they are.
    pub(crate) has_unix: bool,
    /// Sockets that listen already; with any, no other is bound.
    pub(crate) passed: Vec<Listener>,
    /// What the manifest asks for and can't have.
    pub(crate) left_out: Vec<LeftOut>,
    /// What clients may have.
    pub(crate) options: nbd::Options,
    /// The reason for which there is room for fewer clients than were asked for.
    pub(crate) cut: Option<Cut>,
    /// A warning: clients may take more memory than the process may use.
    pub(crate) too_much_memory: Option<String>,
    pub(crate) room: Room,
    /// Bytes for clients if the manifest says nothing.
    pub(crate) usual_memory: u64,
    pub(crate) cleanup: Arc<Cleanup>,
    pub(crate) stop: Stop,
    pub(crate) bars: Bars,
}

/// What a running server consists of.
struct Running {
    manager: Arc<DeviceManager>,
    pools: WorkerPools,
    workqueue: Workqueue,
    server: Arc<nbd::Server>,
    /// L: is the lock; guards the exports that are up.
    shown: Arc<Mutex<Vec<Shown>>>,
    disks: Arc<Disks>,
    notes: Arc<Notes>,
    known: Known,
    live: Arc<Live>,
}

/// How often volumes and exports are looked at.
const TICK: Duration = Duration::from_secs(1);

impl Running {
    /// Has a work item of the volumes look at them and at the exports now and then. It ends when
    /// that is dropped.
    fn tick(&self) -> Option<Ticker> {
        let (live, disks) = (Arc::downgrade(&self.live), Arc::downgrade(&self.disks));
        let tick = move || {
            if let (Some(live), Some(disks)) = (live.upgrade(), disks.upgrade()) {
                live.status.tick(&disks, &live.server);
            }
        };
        let ticks = self.workqueue.every(TICK, tick);
        if let Err(error) = &ticks {
            tracing::warn!(%error, "no timer: latencies of the last minute and ages of requests are not known");
        }
        ticks.ok()
    }

    /// Tells the service manager, where there is one, that the server is up, and goes on to tell it how it is.
    fn service(&self, about: &Arc<About>) -> Service {
        let (server, about) = (Arc::clone(&self.server), Arc::clone(about));
        let status = move || service::status(&server.exports(), &control::health(&about));
        let manager = Arc::clone(&self.manager);
        Service::start(&self.workqueue, Arc::clone(&self.live.settings), status, move || {
            manager.remaining().len()
        })
    }
}

fn failed(what: &str, error: &dyn std::fmt::Display) -> Failure {
    Failure::new(format!("cannot {what}: {error}"))
}

/// Exports that drain at a time: half of the workers that a pool may have, since what they wait for needs workers, too.
const MOST_HELPERS: usize = 128;

/// What a shutdown came to.
struct Down {
    timeline: Timeline,
    /// Callbacks hang that nobody waits for any more.
    hangs: bool,
}

impl Server {
    /// From the first socket to the last flush.
    pub(crate) fn run(mut self) -> Result<(), Failure> {
        // Problems were told already; what matters now is the exit code at the end.
        let mut complete = self.left_out.is_empty();
        let machine =
            Machine::live().map_err(|error| failed("read this machine's topology", &error))?;
        complete &= self.look_for_nodes(&machine)?;
        let running = self.build(machine)?;
        let listeners = self.bind(&mut complete)?;
        // Until the end, so that a shutdown that hangs can be looked at, too.
        let about = Arc::new(About {
            pools: running.pools.clone(),
            manager: Arc::clone(&running.manager),
            disks: Arc::clone(&running.disks),
            manifest: self.label.clone(),
            live: Arc::clone(&running.live),
            since: Instant::now(),
        });
        // It is empty.
        let _ = running.live.about.set(Arc::downgrade(&about));
        let _ticks = running.tick();
        let control = self.answer(&about, &mut complete)?;
        if let Some(control) = &control {
            let path = control.path().to_path_buf();
            running.live.status.socket(SocketUse::Control, path);
        }
        self.measure(&running.live, &mut complete)?;

        let plan = Plan::new(&self.manifest);
        self.report.begin(&self.label, plan.decls.len());
        let up = self.bring_up(&running, &plan)?;
        let lacking = running.live.missing.lacking(&self.manifest, &up);
        self.tell_failures(&up, &lacking, &plan);
        complete &= up.is_complete() && lacking.is_empty();
        self.left_out.extend(not_up(&up, &lacking, &plan));
        running.live.status.followed(self.left_out.iter().map(named).collect());
        let interrupted = self.stop.came();
        let times = up.timeline();
        let nothing = up.bound().all(|device| lacking.contains_key(&device.name));
        if interrupted.is_some() || nothing || !(complete || self.keep_going) {
            return self.give_up(running, &times, interrupted);
        }
        self.report.bring_up(&times);
        self.tell_notes(&running);
        self.report.made(self.cleanup.keep_files());
        if self.keep_going {
            self.report.left_out(&self.left_out);
        }

        let mut service = None;
        let why = match self.accept(&running, listeners) {
            Ok(endpoints) => {
                running.live.status.serves(&endpoints);
                self.ready(&running, &endpoints, control.as_ref());
                service = Some(running.service(&about));
                running.live.begin(self.has(&up, &lacking));
                self.write_timelines(&[&times], &mut complete);
                self.stop.wait(self.duration)
            }
            Err(error) => {
                screen::error(format_args!("{error}"));
                complete = false;
                "cannot accept clients".to_string()
            }
        };
        running.live.end();
        self.report.stopping(&why);
        if let Some(service) = &service {
            service.stopping(&why);
        }
        let Down { timeline: down, hangs } = self.shut_down(&running, &mut complete);
        running.live.status.log_handshakes(running.server.handshakes());
        self.report.shutdown(&down);
        running.known.keep(&[&times, &down]);
        self.write_timelines(&[&times, &down], &mut complete);
        let took = down.makespan();
        match hangs {
            false => self.report.done(complete, &format!("all devices are down after {took}.")),
            true => self.report.done(false, &format!("given up after {took}.")),
        }
        leave(running, control);
        if complete { Ok(()) } else { Err(Failure::Said) }
    }

    /// What the server has: of what the manifest asks for, what came up.
    fn has(&self, up: &BringUp, lacking: &BTreeMap<String, String>) -> Manifest {
        let mut has = self.written.clone();
        has.retain(|name| {
            let device = up.device(name);
            device.is_some_and(|one| one.outcome == ProbeOutcome::Bound)
                && !lacking.contains_key(name)
        });
        has
    }

    /// Looks whether the NUMA nodes are there that devices are to be near to. With `--keep-going` such a device has no
    /// preference; whether there was none.
    fn look_for_nodes(&mut self, machine: &Machine) -> Result<bool, Failure> {
        let topology = machine.topology();
        let is_there = |node: u32| topology.node(node).is_some();
        let mut missing = false;
        for device in &mut self.manifest.devices {
            let Some(at) = device.node.take_if(|at| !is_there(at.value)) else { continue };
            missing = true;
            let known: Vec<_> =
                topology.nodes().iter().map(|known| known.node.to_string()).collect();
            let message = format!("this machine has no NUMA node {}", at.value);
            let help = format!("leave 'node' out, or name one of: {}", known.join(", "));
            let subject = Subject::Device(Ok(device.name.clone()));
            tell(&self.label, &Problem::new(at.place, subject, message).help(help));
        }
        if missing && !self.keep_going { Err(Failure::Said) } else { Ok(!missing) }
    }

    fn build(&mut self, machine: Machine) -> Result<Running, Failure> {
        let devices = self.manifest.devices.iter();
        self.room.reserve(&self.options, devices).map_err(Failure::new)?;
        let server = tls::server(self.options, self.manifest.server.tls.as_ref());
        let (server, seen) = server.map_err(|problem| {
            tell(&self.label, &problem);
            Failure::Said
        })?;
        let pools = WorkerPools::builder(&machine).follow(true).build();
        let workqueue = Workqueue::builder("volumes")
            // Two clock readings an item are nothing beside its IO; `corewise dump` shows the sum.
            .timed(true)
            // For block devices only.
            .lowest()
            .build(&pools)
            .map_err(|error| failed("make a workqueue", &error))?;
        let manager =
            DeviceManager::new(&pools).map_err(|error| failed("make a device manager", &error))?;
        let manager = Arc::new(manager);
        let server = Arc::new(server);
        let told = self.report.clone();
        server.observe(move |event| told.client(event));
        let notes = Arc::new(Notes::default());
        let cleanup = Arc::clone(&self.cleanup);
        let report = self.report.clone();
        let disks = Arc::new(Disks::default());
        let calls = Arc::new(Calls::default());
        calls
            .start_for(&self.manifest, &machine)
            .map_err(|error| failed("start call targets", &error))?;
        let missing = Arc::new(Missing::default());
        missing.expect(&self.manifest, &self.manifest);
        let house = House {
            rings: FileRings::new(&machine),
            files: Arc::default(),
            machine: machine.clone(),
            workqueue: workqueue.clone(),
            calls: Arc::clone(&calls),
            cleanup: Arc::clone(&cleanup),
            notes: Arc::clone(&notes),
            report: report.clone(),
            disks: Arc::clone(&disks),
            missing: Arc::clone(&missing),
        };
        let settings = Arc::new(Settings::new(self.asked, &self.manifest.server));
        let status = ServerStatus::default();
        status.shows(seen.as_ref().and_then(tls::Seen::validity));
        let exports =
            ExportDriver::new(Arc::clone(&server), Arc::clone(&settings), Arc::clone(&notes));
        let shown = exports.shown();
        manager
            .register(Arc::new(exports))
            .and_then(|()| {
                VolumeDriver::all(&house).try_for_each(|driver| manager.register(Arc::new(driver)))
            })
            .map_err(|error| failed("register the drivers", &error))?;
        let live = Arc::new(Live {
            manager: Arc::clone(&manager),
            server: Arc::clone(&server),
            machine,
            calls,
            missing,
            shown: Arc::clone(&shown),
            cleanup,
            notes: Arc::clone(&notes),
            report,
            settings,
            status,
            most_clients: self.options.max_connections,
            room: self.room,
            usual_memory: self.usual_memory,
            has_unix: self.has_unix,
            metrics: Mutex::default(),
            about: OnceLock::new(),
            source: self.source.clone(),
            cancel: self.stop.cancel(),
            seen: Mutex::new(seen),
            has: Mutex::new(None),
            hiding: Mutex::default(),
            written: Mutex::default(),
            stuck: Mutex::default(),
            follows: AtomicBool::new(false),
            missed: Mutex::default(),
            snapshots: Mutex::default(),
            unclean: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        });
        self.stop.manages(&manager, &live);
        let known = Known::load(self.manifest.server.state.as_deref());
        Ok(Running { manager, pools, workqueue, server, shown, disks, notes, known, live })
    }

    /// Binds what can be bound. Without `--keep-going` that has to be all.
    fn bind(&mut self, complete: &mut bool) -> Result<Vec<Listener>, Failure> {
        if !self.passed.is_empty() {
            return Ok(std::mem::take(&mut self.passed));
        }
        let server = &self.manifest.server;
        let unix =
            server.unix.as_ref().map(|at| (listen::unix(&at.value, &self.cleanup), at.place));
        let tcp = server.tcp.as_ref().map(|at| (listen::tcp(&at.value), at.place));
        let mut listeners = Vec::new();
        for (bound, place) in unix.into_iter().chain(tcp) {
            match bound {
                Ok(listener) => listeners.push(listener),
                Err(reason) => {
                    *complete = false;
                    self.tell_unbound(place, &reason);
                }
            }
        }
        if listeners.is_empty() || !(*complete || self.keep_going) {
            return Err(Failure::Said);
        }
        Ok(listeners)
    }

    /// Answers who looks on. Without it the server does all the same; but a place that somebody has
    /// asked for has to be had.
    fn answer(&self, about: &Arc<About>, complete: &mut bool) -> Result<Option<Control>, Failure> {
        if !self.control {
            return Ok(None);
        }
        // A killed process can't clean up.
        place::servers(&place::folders());
        let place = self.manifest.server.control.as_ref();
        let bound = match place {
            Some(at) => control::bind_at(&at.value, &self.cleanup),
            None => control::bind(&self.cleanup),
        };
        let started = bound.and_then(|bound| {
            Control::start(bound, Arc::clone(about))
                .map_err(|error| format!("the control socket: {}", no_thread(&error)))
        });
        match (started, place) {
            (Ok(control), _) => Ok(Some(control)),
            (Err(reason), Some(at)) => {
                *complete = false;
                self.tell_unbound(at.place, &reason);
                if self.keep_going { Ok(None) } else { Err(Failure::Said) }
            }
            (Err(reason), None) => {
                screen::warning(format_args!("no control socket for `corewise dump`: {reason}"));
                Ok(None)
            }
        }
    }

    /// Lets Prometheus ask, where the manifest says so.
    fn measure(&self, live: &Live, complete: &mut bool) -> Result<(), Failure> {
        let Some(at) = &self.manifest.server.metrics else { return Ok(()) };
        match live.measured_at(&at.value) {
            Ok(metrics) => *live.metrics.lock() = Some(metrics),
            Err(reason) => {
                *complete = false;
                self.tell_unbound(at.place, &reason);
                if !self.keep_going {
                    return Err(Failure::Said);
                }
            }
        }
        Ok(())
    }

    fn tell_unbound(&self, place: Place, reason: &str) {
        let message = format!("cannot listen on {reason}");
        if place == NOWHERE {
            screen::error(format_args!("{message}"));
        } else {
            tell(&self.label, &Problem::new(place, Subject::Server, message));
        }
    }

    fn bring_up(&self, running: &Running, plan: &Plan) -> Result<BringUp, Failure> {
        let progress = Progress::new(&self.bars, "Bring-up", plan.decls.len(), !self.report.json);
        let (observed, report) = (progress.clone(), self.report.clone());
        let decls = plan.decls.clone();
        let observer = move |event: &Event<'_>| {
            observed.tell(event);
            if let Event::Overdue { device, after, .. } = event {
                let held_up = plan::needing(device, &decls);
                report.overdue("bring-up", device, *after, &held_up, &|warning| {
                    observed.warn(warning)
                });
            }
        };
        let options = BringUpOptions::new()
            .keep_going(self.keep_going)
            .on_hang(self.manifest.server.on_hang)
            .cancel(self.stop.cancel())
            .observer(Arc::new(observer));
        let manager = Arc::clone(&running.manager);
        let waiting = progress.waiting(move || {
            let pending = manager.pending();
            // The device being probed holds up the rest.
            let is_probed = |one: &&Pending| matches!(one.state, PendingState::Probing { .. });
            let first = pending.iter().find(is_probed).or(pending.first());
            first.map(|one| format!("waiting for {one}"))
        });
        let up = running.manager.bring_up(plan.decls.clone(), &options);
        drop(waiting);
        progress.end();
        up.map_err(|error| Failure::new(error.to_string()))
    }

    /// One message for each device that failed by itself.
    fn tell_failures(&self, up: &BringUp, lacking: &BTreeMap<String, String>, plan: &Plan) {
        for (device, message) in plan.failures(up, lacking) {
            match plan.origin(&device) {
                Some((subject, place)) => {
                    tell(&self.label, &Problem::new(*place, subject.clone(), message));
                }
                None => screen::error(format_args!("{device}: {message}")),
            }
        }
    }

    fn tell_notes(&self, running: &Running) {
        for note in running.notes.take() {
            screen::warning(format_args!("{note}"));
        }
    }

    /// Lets clients in.
    fn accept(
        &self,
        running: &Running,
        listeners: Vec<Listener>,
    ) -> Result<Vec<Endpoint>, nbd::Error> {
        listeners.into_iter().map(|listener| running.server.listen(listener)).collect()
    }

    fn ready(&self, running: &Running, endpoints: &[Endpoint], control: Option<&Control>) {
        let tls = self.manifest.server.tls.as_ref();
        let knows_clients = tls.is_some_and(|tls| tls.required && tls.client_ca.is_some());
        for endpoint in endpoints.iter().filter(|_| !knows_clients) {
            if let Endpoint::Tcp(address) = endpoint {
                if !address.ip().is_loopback() {
                    screen::warning(format_args!(
                        "{address} is open to other machines, which may read and write: clients \
                         need no certificate (tls_client_ca in the manifest)"
                    ));
                }
            }
        }
        // In the manifest's order, and not in that in which they came up.
        let shown = running.shown.lock().clone();
        let mut shown: HashMap<String, Shown> =
            shown.into_iter().map(|shown| (shown.name.clone(), shown)).collect();
        let exports = self.manifest.exports.iter();
        let exports: Vec<Shown> = exports.filter_map(|export| shown.remove(&export.name)).collect();
        if let Some(cut) = &self.cut {
            tracing::warn!("{cut}");
        }
        if let Some(warning) = &self.too_much_memory {
            tracing::warn!("{warning}");
        }
        let clients = ClientLimits { options: &self.options, tls, cut: self.cut };
        // Not under the lock: a reader of stdout may be waited for.
        let metrics = running.live.metrics.lock().as_ref().map(|one| one.address().to_owned());
        let (control, metrics) = (control.map(Control::path), metrics.as_deref());
        self.report.ready(endpoints, &exports, clients, control, metrics);
    }

    /// Nothing was served: what came up goes down, and the files that were made are not kept.
    fn give_up(
        &self,
        running: Running,
        up: &Timeline,
        signal: Option<&'static str>,
    ) -> Result<(), Failure> {
        if let Some(name) = signal {
            screen::error(format_args!("{name} during bring-up: no volume was served"));
        }
        let mut complete = false;
        let Down { timeline: down, .. } = self.shut_down(&running, &mut complete);
        self.write_timelines(&[up, &down], &mut complete);
        // People have been told what is wrong; more would hide it.
        let report = Report { quiet: true, ..self.report.clone() };
        report.bring_up(up);
        report.shutdown(&down);
        report.done(false, "");
        leave(running, None);
        Err(Failure::Said)
    }

    /// Exports drain, volumes flush, each after those that need it.
    fn shut_down(&self, running: &Running, complete: &mut bool) -> Down {
        running.server.close();
        let devices = running.manager.devices();
        // Before the first of them is flushed.
        let volumes = devices.iter().filter_map(|info| running.manager.bound::<Volume>(&info.name));
        volumes.for_each(|volume| volume.server_ends());
        let devices = devices.len();
        let progress = Progress::new(&self.bars, "Shutdown", devices, !self.report.json);
        let manager = Arc::clone(&running.manager);
        let waiting = progress.waiting(move || stop::blocker(&manager.remaining()));
        let down = running.manager.shutdown(&self.shutdown_options(running, &progress));
        drop(waiting);
        progress.end();
        let down = match down {
            Ok(down) => down,
            Err(error) => {
                screen::error(format_args!("shutdown: {error}"));
                *complete = false;
                return Down { timeline: Timeline::new("shutdown"), hangs: false };
            }
        };
        self.tell_notes(running);
        for (device, message) in &down.failed {
            screen::error(format_args!("shutdown of {device}: {message}"));
        }
        *complete &= down.is_clean() && !running.live.is_unclean();
        let hangs = !down.remaining.is_empty();
        if hangs {
            let left = stop::waiting(&down.remaining);
            let (said, took) = (if down.gave_up { "given up" } else { "left" }, down.elapsed);
            let took = duration(took);
            screen::error(format_args!("shutdown {said} after {took}, not shut down: {left}"));
        } else {
            // A client that has not chosen an export yet is on nobody's list. Nothing is left that could be flushed.
            let _ = running.server.drain(Duration::ZERO);
            self.tell_notes(running);
        }
        Down { timeline: down.timeline(), hangs }
    }

    fn shutdown_options(&self, running: &Running, progress: &Progress) -> ShutdownOptions {
        let (progress, report) = (progress.clone(), self.report.clone());
        let manager = Arc::clone(&running.manager);
        let observer = move |event: &Event<'_>| {
            progress.tell(event);
            if let Event::Overdue { device, after, .. } = event {
                let held_up = stop::held_up_by(device, &manager.remaining());
                report.overdue("shutdown", device, *after, &held_up, &|warning| {
                    progress.warn(warning)
                });
            }
        };
        let settings = running.live.settings.now();
        let usual = ShutdownOptions::new();
        // An export's callback may block for as long as its clients may drain; so many of them do so side by side.
        let helpers = usual.max_helpers.max(running.server.exports().len().min(MOST_HELPERS));
        usual
            .max_helpers(helpers)
            .observer(Arc::new(observer))
            .timeout(settings.shutdown_timeout)
            .on_hang(settings.on_hang)
            .history(running.known.history())
    }

    fn write_timelines(&self, timelines: &[&Timeline], complete: &mut bool) {
        let Some(file) = &self.timeline else { return };
        let title = format!("corewise up {}", self.label);
        let about = timeline::file::About { title: &title, facts: &[] };
        if let Err(failure) = timeline::file::write(file, about, timelines) {
            *complete = false;
            failure.say();
        }
    }
}

/// Ends what others see of the server. Its threads have nothing left to do, or hang, and the end of the process takes them: to join one
/// after the other would take as many turns of the scheduler.
fn leave(running: Running, control: Option<Control>) {
    // Not under the lock: its thread, which is waited for, may be about to take it.
    let metrics = running.live.metrics.lock().take();
    drop((control, metrics));
    std::mem::forget(running);
}

/// What was left out, by its name, and why.
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

/// What did not come up, and why.
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
            ProbeOutcome::Skipped { culprit } => format!("it needs '{culprit}'"),
            ProbeOutcome::Deferred { reason } => format!("it was deferred: {reason}"),
            ProbeOutcome::Cancelled => "its bring-up was cancelled".to_string(),
            _ => "it failed".to_string(),
        };
        LeftOut { subject, why }
    });
    devices.collect()
}
