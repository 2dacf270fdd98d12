//! The life of a server: sockets, bring-up, clients, shutdown.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use corewise::device::{
    BringUp, BringUpOptions, Cancel, DeviceManager, DeviceReport, Event, HangPolicy, Pending,
    PendingState, ProbeOutcome, ShutdownOptions,
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
use super::drivers::{ExportDriver, House, Missing, Notes, Volume, VolumeDriver};
use super::error::Error;
use super::events::Events;
use super::handle::{self, Handle};
use super::known::Known;
use super::live::Live;
use super::observer::{ClientLimits, Observer, Phase, Ready};
use super::plan::{self, Plan};
use super::report::Report;
use super::room::{Cut, Room};
use super::service::{self, Service};
use super::settings::{Asked, Settings};
use super::shown::Shown;
use super::spare_thread::no_thread;
use super::status::ServerStatus;
use super::{limits, listen, tls};
use crate::control::disks::Disks;
use crate::control::health::SocketUse;
use crate::control::place;
use crate::manifest::{self, LeftOut, Manifest, Place, Problem, Subject, export_name};

/// What a program says of a server beside its manifest.
#[derive(Debug)]
pub(crate) struct Options {
    /// What counts in place of the manifest's `[server]`.
    pub(crate) server: Option<manifest::Server>,
    /// How messages call the manifest.
    pub(crate) label: String,
    /// The manifest's file, where it can be read again.
    pub(crate) source: Option<PathBuf>,
    /// What the manifest asks for and can't have, as was told. With any of it the server is incomplete.
    pub(crate) left_out: Vec<LeftOut>,
    /// Sockets that listen already; with any, no other is bound.
    pub(crate) passed: Vec<Listener>,
    /// Serve the devices that come up, even if others fail.
    pub(crate) keep_going: bool,
    /// Answer on a control socket: that of the manifest, or else one in the usual place.
    pub(crate) control: bool,
    /// Tell the service manager that NOTIFY_SOCKET names how the server is.
    pub(crate) service_manager: bool,
    /// The process ends with the server, and its threads with that: joined one after the other, they
    /// would take as many turns of the scheduler.
    pub(crate) ends_process: bool,
    /// The deadline of the whole shutdown, in place of the manifest's, also of one that is read again.
    pub(crate) shutdown_timeout: Option<Duration>,
    /// What is done about devices that hang, in place of what the manifest says, also one that is read again.
    pub(crate) on_hang: Option<HangPolicy>,
    /// What the process may have.
    pub(crate) room: Room,
    /// What is removed at the end.
    pub(crate) cleanup: Arc<Cleanup>,
    /// Cancels the bring-up, and the bring-ups of changes.
    pub(crate) cancel: Cancel,
    pub(crate) observer: Arc<dyn Observer>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            server: None,
            label: "the manifest".to_string(),
            source: None,
            left_out: Vec::new(),
            passed: Vec::new(),
            keep_going: false,
            control: false,
            service_manager: false,
            ends_process: false,
            shutdown_timeout: None,
            on_hang: None,
            room: Room::now(),
            cleanup: Arc::default(),
            cancel: Cancel::new(),
            observer: Arc::new(()),
        }
    }
}

/// A server that was checked and not begun.
struct Prepared {
    report: Report,
    keep_going: bool,
    /// Whether there is to be a control socket.
    control: bool,
    ends_process: bool,
    /// How messages call the manifest.
    label: String,
    /// The manifest's file, where it can be read again.
    source: Option<PathBuf>,
    /// As it is written, without what the program says instead.
    written: Manifest,
    manifest: Manifest,
    /// What the program says of that.
    asked: Asked,
    /// Whether clients come by a Unix socket, which alone says which user they are.
    has_unix: bool,
    /// Sockets that listen already; with any, no other is bound.
    passed: Vec<Listener>,
    /// What the manifest asks for and can't have.
    left_out: Vec<LeftOut>,
    /// What clients may have.
    options: nbd::Options,
    /// The reason for which there is room for fewer clients than were asked for.
    cut: Option<Cut>,
    /// A warning: clients may take more memory than the process may use.
    too_much_memory: Option<String>,
    room: Room,
    /// Bytes for clients if the manifest says nothing.
    usual_memory: u64,
    cleanup: Arc<Cleanup>,
    cancel: Cancel,
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

fn failed(what: &str, error: &dyn std::fmt::Display) -> Error {
    Error::new(format!("cannot {what}: {error}"))
}

/// Exports that drain at a time: half of the workers that a pool may have, since what they wait for needs workers, too.
const MOST_HELPERS: usize = 128;

/// What a shutdown came to.
struct Down {
    timeline: Timeline,
    /// Callbacks hang that nobody waits for any more.
    hangs: bool,
}

/// A server that serves. Dropping it takes it down, as [`down`](Server::down) does.
pub(crate) struct Server {
    prepared: Prepared,
    /// `None`: it is down.
    up: Option<Up>,
}

/// What there is of a server from its first socket on.
struct Up {
    running: Running,
    about: Arc<About>,
    control: Option<Control>,
    service: Option<Service>,
    /// The bring-up.
    times: Timeline,
    /// Whether all of the manifest is there.
    complete: bool,
    _ticks: Option<Ticker>,
    _cleaner: Cleaner,
}

/// Cleans up at the end of its scope, however that is reached.
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

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("manifest", &self.prepared.label).finish_non_exhaustive()
    }
}

impl Server {
    /// Brings a manifest up: from the first socket to the first client.
    ///
    /// Nothing is left of a server that doesn't come up.
    ///
    /// # Errors
    /// A device, a socket or something else that the manifest asks for can't be had, and
    /// `keep_going` isn't set; or nothing of it came up.
    pub(crate) fn up(manifest: Manifest, options: Options) -> Result<Server, Error> {
        Prepared::new(manifest, options)?.up()
    }

    /// Takes it down: exports drain, volumes flush, each after those that need it. `why` is the
    /// reason, which is told. Returns whether all of the manifest came up and went down in order.
    pub(crate) fn down(mut self, why: &str) -> bool {
        self.up.take().is_some_and(|up| self.prepared.down(up, why))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(up) = self.up.take() {
            self.prepared.down(up, "nobody needs it any more");
        }
    }
}

impl Prepared {
    /// Looks whether clients have room, and opens nothing but what tells of events.
    fn new(manifest: Manifest, options: Options) -> Result<Prepared, Error> {
        let written = manifest.clone();
        let mut manifest = manifest;
        if let Some(server) = options.server {
            manifest.server = server;
        }
        let events = Events::new()
            .map_err(|error| Error::new(format!("cannot make an eventfd: {error}")))?;
        let usual_memory = limits::usual_memory();
        let server = &manifest.server;
        let of_clients = limits::of_clients(&server.clients, usual_memory, server.tls.is_some());
        let room = options.room.with_tls(server.tls.is_some());
        let (of_clients, cut) =
            room.share(of_clients, manifest.devices.iter()).map_err(Error::new)?;
        let too_much_memory = limits::too_much(&of_clients, server.tls.is_some());
        let is_unix = |one: &Listener| matches!(one.endpoint(), Endpoint::Unix(_));
        let has_unix = match options.passed.is_empty() {
            true => server.unix.is_some(),
            false => options.passed.iter().any(is_unix),
        };
        Ok(Prepared {
            report: Report { observer: options.observer, quiet: false, events: Arc::new(events) },
            keep_going: options.keep_going,
            control: options.control,
            ends_process: options.ends_process,
            label: options.label,
            source: options.source,
            written,
            asked: Asked {
                shutdown_timeout: options.shutdown_timeout,
                on_hang: options.on_hang,
                service_manager: options.service_manager,
            },
            has_unix,
            passed: options.passed,
            left_out: options.left_out,
            options: of_clients,
            cut,
            too_much_memory,
            room,
            usual_memory,
            cleanup: options.cleanup,
            cancel: options.cancel,
            manifest,
        })
    }

    /// From the first socket to the first client.
    fn up(mut self) -> Result<Server, Error> {
        let (cleanup, report) = (Arc::clone(&self.cleanup), self.report.clone());
        let cleaner = Cleaner { cleanup, report };
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
        let ticks = running.tick();
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
        let interrupted = self.report.observer.interruption();
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

        let has = self.has(&up, &lacking);
        let accepted = self.accept(&running, listeners);
        let mut up = Up {
            running,
            about,
            control,
            service: None,
            times,
            complete,
            _ticks: ticks,
            _cleaner: cleaner,
        };
        match accepted {
            Ok(endpoints) => {
                up.running.live.status.serves(&endpoints);
                self.ready(&up.running, &endpoints, up.control.as_ref());
                up.service = Some(up.running.service(&up.about));
                up.running.live.begin(has);
                up.complete &= self.report.observer.keep_timelines(&[&up.times]);
                Ok(Server { prepared: self, up: Some(up) })
            }
            Err(error) => {
                self.report.error(format_args!("{error}"));
                up.complete = false;
                self.down(up, "cannot accept clients");
                Err(Error::Told)
            }
        }
    }

    /// From the word that the end begins to the last flush.
    fn down(&self, up: Up, why: &str) -> bool {
        let Up {
            running,
            about: _about,
            control,
            service,
            times,
            mut complete,
            _ticks,
            _cleaner,
            ..
        } = up;
        running.live.end();
        self.report.stopping(why);
        if let Some(service) = &service {
            service.stopping(why);
        }
        let Down { timeline: down, hangs } = self.shut_down(&running, &mut complete);
        running.live.status.log_handshakes(running.server.handshakes());
        self.report.shutdown(&down);
        running.known.keep(&[&times, &down]);
        complete &= self.report.observer.keep_timelines(&[&times, &down]);
        let took = down.makespan();
        match hangs {
            false => self.report.done(complete, &format!("all devices are down after {took}.")),
            true => self.report.done(false, &format!("given up after {took}.")),
        }
        self.leave(running, control, hangs);
        complete
    }

    /// Ends what others see of the server, and its threads, unless these hang or the process ends.
    fn leave(&self, running: Running, control: Option<Control>, hangs: bool) {
        // Not under the lock: its thread, which is waited for, may be about to take it.
        let metrics = running.live.metrics.lock().take();
        drop((control, metrics));
        if hangs || self.ends_process {
            std::mem::forget(running);
        }
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
    fn look_for_nodes(&mut self, machine: &Machine) -> Result<bool, Error> {
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
            self.report.problem(&self.label, &Problem::new(at.place, subject, message).help(help));
        }
        if missing && !self.keep_going { Err(Error::Told) } else { Ok(!missing) }
    }

    fn build(&mut self, machine: Machine) -> Result<Running, Error> {
        let devices = self.manifest.devices.iter();
        self.room.reserve(&self.options, devices).map_err(Error::new)?;
        let server = tls::server(self.options, self.manifest.server.tls.as_ref());
        let (server, seen) = server.map_err(|problem| {
            self.report.problem(&self.label, &problem);
            Error::Told
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
            cancel: self.cancel.clone(),
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
        self.report.observer.begins(&Handle::new(&manager, &live));
        let state = self.manifest.server.state.as_deref();
        let known = Known::load(state, self.report.clone());
        Ok(Running { manager, pools, workqueue, server, shown, disks, notes, known, live })
    }

    /// Binds what can be bound. Without `--keep-going` that has to be all.
    fn bind(&mut self, complete: &mut bool) -> Result<Vec<Listener>, Error> {
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
            return Err(Error::Told);
        }
        Ok(listeners)
    }

    /// Answers who looks on. Without it the server does all the same; but a place that somebody has
    /// asked for has to be had.
    fn answer(&self, about: &Arc<About>, complete: &mut bool) -> Result<Option<Control>, Error> {
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
                if self.keep_going { Ok(None) } else { Err(Error::Told) }
            }
            (Err(reason), None) => {
                self.report
                    .warning(format_args!("no control socket for `corewise dump`: {reason}"));
                Ok(None)
            }
        }
    }

    /// Lets Prometheus ask, where the manifest says so.
    fn measure(&self, live: &Live, complete: &mut bool) -> Result<(), Error> {
        let Some(at) = &self.manifest.server.metrics else { return Ok(()) };
        match live.measured_at(&at.value) {
            Ok(metrics) => *live.metrics.lock() = Some(metrics),
            Err(reason) => {
                *complete = false;
                self.tell_unbound(at.place, &reason);
                if !self.keep_going {
                    return Err(Error::Told);
                }
            }
        }
        Ok(())
    }

    fn tell_unbound(&self, place: Place, reason: &str) {
        let message = format!("cannot listen on {reason}");
        if place == Place::default() {
            self.report.error(format_args!("{message}"));
        } else {
            self.report.problem(&self.label, &Problem::new(place, Subject::Server, message));
        }
    }

    fn bring_up(&self, running: &Running, plan: &Plan) -> Result<BringUp, Error> {
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

    /// One message for each device that failed by itself.
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

    fn tell_notes(&self, running: &Running) {
        for note in running.notes.take() {
            self.report.warning(format_args!("{note}"));
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
                    self.report.warning(format_args!(
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
        self.report.ready(Ready { endpoints, exports: &exports, clients, control, metrics });
    }

    /// Nothing was served: what came up goes down, and the files that were made are not kept.
    fn give_up(
        &self,
        running: Running,
        up: &Timeline,
        signal: Option<&'static str>,
    ) -> Result<Server, Error> {
        if let Some(name) = signal {
            self.report.error(format_args!("{name} during bring-up: no volume was served"));
        }
        let Down { timeline: down, hangs } = self.shut_down(&running, &mut false);
        self.report.observer.keep_timelines(&[up, &down]);
        // People have been told what is wrong; more would hide it.
        let report = Report { quiet: true, ..self.report.clone() };
        report.bring_up(up);
        report.shutdown(&down);
        report.done(false, "");
        self.leave(running, None, hangs);
        Err(Error::Told)
    }

    /// Exports drain, volumes flush, each after those that need it.
    fn shut_down(&self, running: &Running, complete: &mut bool) -> Down {
        running.server.close();
        let devices = running.manager.devices();
        // Before the first of them is flushed.
        let volumes = devices.iter().filter_map(|info| running.manager.bound::<Volume>(&info.name));
        volumes.for_each(|volume| volume.server_ends());
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
                return Down { timeline: Timeline::new("shutdown"), hangs: false };
            }
        };
        self.tell_notes(running);
        for (device, message) in &down.failed {
            self.report.error(format_args!("shutdown of {device}: {message}"));
        }
        *complete &= down.is_clean() && !running.live.is_unclean();
        let hangs = !down.remaining.is_empty();
        if hangs {
            let left = handle::waiting(&down.remaining);
            let (said, took) = (if down.gave_up { "given up" } else { "left" }, down.elapsed);
            let took = duration(took);
            self.report.error(format_args!("shutdown {said} after {took}, not shut down: {left}"));
        } else {
            // A client that has not chosen an export yet is on nobody's list. Nothing is left that could be flushed.
            let _ = running.server.drain(Duration::ZERO);
            self.tell_notes(running);
        }
        Down { timeline: down.timeline(), hangs }
    }

    fn shutdown_options(&self, running: &Running) -> ShutdownOptions {
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
        // An export's callback may block for as long as its clients may drain; so many of them do so side by side.
        let helpers = usual.max_helpers.max(running.server.exports().len().min(MOST_HELPERS));
        usual
            .max_helpers(helpers)
            .observer(Arc::new(observer))
            .timeout(settings.shutdown_timeout)
            .on_hang(settings.on_hang)
            .history(running.known.history())
    }
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
