//! A server before its bring-up: its checks, its parts and its sockets.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use corewise::device::{Cancel, DeviceManager};
use corewise::drivers::FileRings;
use corewise::nbd::{self, Endpoint, Listener};
use corewise::ring::RingSet;
use corewise::sync::Mutex;
use corewise::sync::atomic::AtomicBool;
use corewise::topology::Machine;
use corewise::workqueue::{Ticker, WorkerPools, Workqueue};

use super::Options;
use crate::answers::{self, Control, ServerView};
use crate::check::missing_nodes;
use crate::cleanup::Cleanup;
use crate::control::disks::Disks;
use crate::control::place;
use crate::drivers::CallTargets;
#[cfg(feature = "crypt")]
use crate::drivers::Secrets;
use crate::drivers::{
    ExportDriver, FrontEnds, ImageExports, MissingParts, VolumeContext, VolumeDriver, Warnings,
};
use crate::error::Error;
use crate::events::Events;
use crate::handle::Handle;
use crate::history::ShutdownHistory;
use crate::live::Live;
use crate::manifest::{LeftOut, Manifest, Position, Problem, Subject};
use crate::observer::ShownExport;
use crate::observer::{Observer, PanicCatcher};
use crate::process_limits::{ClientShortfall, ProcessLimits};
use crate::report::Report;
use crate::service::{self, Service};
use crate::settings::{Overrides, Settings};
use crate::status::ServerStatus;
use crate::threads::no_thread;
use crate::{listen, process_limits, tls};

/// A server that was checked and not begun.
pub(super) struct PreparedServer {
    pub(super) report: Report,
    pub(super) keep_going: bool,
    /// True if the server gets a control socket.
    pub(super) control: bool,
    pub(super) ends_process: bool,
    /// Name of the manifest in messages.
    pub(super) label: String,
    /// File of the manifest, if it can be read again.
    pub(super) source: Option<PathBuf>,
    /// Manifest as it is written, without the program's overrides.
    pub(super) written: Manifest,
    pub(super) manifest: Manifest,
    /// Overrides of the program.
    pub(super) asked: Overrides,
    /// True if there is a Unix socket for clients; no other socket shows their users.
    pub(super) has_unix: bool,
    /// Sockets that listen already. With any, no other is bound.
    pub(super) passed: Vec<Listener>,
    /// Devices and exports of the manifest that can't come up.
    pub(super) left_out: Vec<LeftOut>,
    /// Limits of clients.
    pub(super) options: nbd::Options,
    /// Reason why fewer clients fit than the manifest sets.
    pub(super) shortfall: Option<ClientShortfall>,
    /// Warning that clients may take more memory than the process may use.
    pub(super) too_much_memory: Option<String>,
    pub(super) limits: ProcessLimits,
    /// Memory for clients by default, in bytes.
    pub(super) usual_memory: u64,
    /// Keys of encrypted devices.
    #[cfg(feature = "crypt")]
    pub(super) secrets: Arc<Secrets>,
    pub(super) cleanup: Arc<Cleanup>,
    pub(super) cancel: Cancel,
}

/// The parts of a running server.
pub(super) struct Components {
    pub(super) manager: Arc<DeviceManager>,
    pub(super) workqueue: Workqueue,
    pub(super) server: Arc<nbd::Server>,
    /// L: is the lock; guards the exports that are up.
    pub(super) shown: Arc<Mutex<Vec<ShownExport>>>,
    pub(super) disks: Arc<Disks>,
    pub(super) notes: Arc<Warnings>,
    pub(super) known: ShutdownHistory,
    pub(super) live: Arc<Live>,
    /// Worker pools, dropped last, since the other parts need their threads.
    pub(super) pools: OwnPools,
}

/// The monitors of a running server, which end before it.
pub(super) struct Monitoring {
    pub(super) control: Option<Control>,
    pub(super) about: Arc<ServerView>,
    pub(super) _ticks: Option<Ticker>,
}

/// The pools that end with the server.
pub(super) struct OwnPools(pub(super) WorkerPools);

impl Drop for OwnPools {
    fn drop(&mut self) {
        self.0.shutdown();
    }
}

/// The time between two checks of volumes and exports.
const TICK: Duration = Duration::from_secs(1);

impl Components {
    /// Starts a work item of the volumes that checks them and the exports once in a while. It ends
    /// when the ticker is dropped.
    pub(super) fn tick(&self) -> Option<Ticker> {
        let (live, disks) = (Arc::downgrade(&self.live), Arc::downgrade(&self.disks));
        let tick = move || {
            if let (Some(live), Some(disks)) = (live.upgrade(), disks.upgrade()) {
                live.status.tick(&disks, &live.exports(), live.server.handshakes());
                if live.status.has_begun() && !live.has_ended() {
                    live.front_ends.tick();
                }
            }
        };
        let ticks = self.workqueue.every(TICK, tick);
        if let Err(error) = &ticks {
            tracing::warn!(%error, "no timer: latencies of the last minute and ages of requests are not known");
        }
        ticks.ok()
    }

    /// Tells the service manager, if there is one, that the server is up, and keeps it informed of
    /// the status.
    pub(super) fn service(&self, about: &Arc<ServerView>) -> Service {
        let (live, about) = (Arc::clone(&self.live), Arc::clone(about));
        let status = move || service::status(&live.exports(), &answers::health(&about));
        let manager = Arc::clone(&self.manager);
        Service::start(&self.workqueue, Arc::clone(&self.live.settings), status, move || {
            manager.remaining().len()
        })
    }
}

pub(super) fn failed(what: &str, error: &dyn std::fmt::Display) -> Error {
    Error::new(format!("cannot {what}: {error}"))
}

impl PreparedServer {
    /// Checks that clients have room. Opens nothing but the channel for events.
    pub(super) fn new(manifest: Manifest, options: Options) -> Result<PreparedServer, Error> {
        let written = manifest.clone();
        let mut manifest = manifest;
        if let Some(server) = options.server {
            manifest.server = server;
        }
        let events = Events::new()
            .map_err(|error| Error::new(format!("cannot make an eventfd: {error}")))?;
        let usual_memory = process_limits::usual_memory();
        let server = &manifest.server;
        let of_clients = process_limits::client_options(server, usual_memory);
        let limits = options.limits.with_tls(server.tls().is_some());
        let guests = process_limits::guests(&manifest.exports);
        let (of_clients, shortfall) =
            limits.share(of_clients, manifest.devices.iter(), guests).map_err(Error::new)?;
        let too_much_memory = process_limits::too_much(&of_clients, server.tls().is_some());
        let is_unix = |one: &Listener| matches!(one.endpoint(), Endpoint::Unix(_));
        let has_unix = match options.passed.is_empty() {
            true => server.unix.is_some(),
            false => options.passed.iter().any(is_unix),
        };
        let observer: Arc<dyn Observer> = Arc::new(PanicCatcher(options.observer));
        Ok(PreparedServer {
            report: Report { observer, quiet: false, events: Arc::new(events) },
            keep_going: options.keep_going,
            control: options.control,
            ends_process: options.ends_process,
            label: options.label,
            source: options.source,
            written,
            asked: Overrides {
                shutdown_timeout: options.shutdown_timeout,
                on_hang: options.on_hang,
                service_manager: options.service_manager,
            },
            has_unix,
            passed: options.passed,
            left_out: options.left_out,
            options: of_clients,
            shortfall,
            too_much_memory,
            limits,
            usual_memory,
            #[cfg(feature = "crypt")]
            secrets: Arc::new(Secrets::new(options.secrets)),
            cleanup: Cleanup::part_of(&options.cleanup),
            cancel: options.cancel,
            manifest,
        })
    }

    /// Checks that the NUMA nodes in the manifest's devices exist. With `keep_going`, a device
    /// without its node has no preference. Returns true if all nodes exist.
    pub(super) fn look_for_nodes(&mut self, machine: &Machine) -> Result<bool, Error> {
        let topology = machine.topology();
        let problems = missing_nodes(&self.manifest.devices, topology);
        for problem in &problems {
            self.report.problem(&self.label, problem);
        }
        for device in &mut self.manifest.devices {
            device.tuning.node.take_if(|at| topology.node(at.value).is_none());
        }
        let missing = !problems.is_empty();
        if missing && !self.keep_going { Err(Error::reported()) } else { Ok(!missing) }
    }

    pub(super) fn build(&mut self, machine: Machine) -> Result<Components, Error> {
        let devices = self.manifest.devices.iter();
        self.limits.reserve(&self.options, devices).map_err(Error::new)?;
        let server = tls::server(self.options, self.manifest.server.tls());
        let (server, seen) = server.map_err(|problem| {
            self.report.problem(&self.label, &problem);
            Error::reported()
        })?;
        let pools = WorkerPools::builder(&machine).follow(true).build();
        let workqueue = Workqueue::builder("volumes")
            // Two clock readings an item are little beside its IO; `corewise dump` shows the sum.
            .timed(true)
            // Only block devices use this queue.
            .lowest(true)
            // Memory is written back through these volumes, so a flush must end even if no thread
            // can be created.
            .rescuer(true)
            .build(&pools)
            .map_err(|error| failed("make a workqueue", &error))?;
        let manager =
            DeviceManager::new(&pools).map_err(|error| failed("make a device manager", &error))?;
        let manager = Arc::new(manager);
        let server = Arc::new(server);
        let told = self.report.clone();
        server.observe(move |event| told.client(event));
        let notes = Arc::new(Warnings::default());
        let cleanup = Arc::clone(&self.cleanup);
        let report = self.report.clone();
        let disks = Arc::new(Disks::default());
        let calls = Arc::new(CallTargets::default());
        calls
            .start_for(&self.manifest, &machine)
            .map_err(|error| failed("start call targets", &error))?;
        let missing = Arc::new(MissingParts::default());
        missing.expect(&self.manifest, &self.manifest);
        // Files and disks share them: a disk's request reaches its file without another thread.
        let rings = RingSet::new(&machine);
        let context = VolumeContext {
            rings: FileRings::on(&rings),
            files: Arc::default(),
            machine: machine.clone(),
            workqueue: workqueue.clone(),
            calls: Arc::clone(&calls),
            cleanup: Arc::clone(&cleanup),
            notes: Arc::clone(&notes),
            report: report.clone(),
            disks: Arc::clone(&disks),
            missing: Arc::clone(&missing),
            #[cfg(feature = "crypt")]
            secrets: Arc::clone(&self.secrets),
        };
        let settings = Arc::new(Settings::new(self.asked, &self.manifest.server));
        let status = ServerStatus::default();
        status.shows(seen.as_ref().and_then(tls::ShownFiles::validity));
        let place = self.source.as_deref().map(|path| {
            let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
            path.display().to_string()
        });
        let place = place.unwrap_or_else(|| self.label.clone());
        let front_ends = FrontEnds::new(
            &rings,
            place,
            Arc::clone(&server),
            Arc::clone(&self.cleanup),
            report.clone(),
        );
        front_ends.expect(&self.manifest.exports);
        let front_ends = Arc::new(front_ends);
        let images = Arc::new(ImageExports::new(Arc::clone(&server), Arc::clone(&notes)));
        let exports = ExportDriver::new(
            Arc::clone(&server),
            Arc::clone(&settings),
            Arc::clone(&notes),
            Arc::clone(&front_ends),
            Arc::clone(&images),
        );
        let shown = exports.shown();
        manager
            .register(Arc::new(exports))
            .and_then(|()| {
                VolumeDriver::all(&context)
                    .try_for_each(|driver| manager.register(Arc::new(driver)))
            })
            .map_err(|error| failed("register the drivers", &error))?;
        let live = Arc::new(Live {
            manager: Arc::clone(&manager),
            server: Arc::clone(&server),
            front_ends,
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
            limits: self.limits,
            usual_memory: self.usual_memory,
            has_unix: self.has_unix,
            metrics: Mutex::default(),
            metrics_text: OnceLock::new(),
            source: self.source.clone(),
            cancel: self.cancel.clone(),
            seen: Mutex::new(seen),
            has: Mutex::new(None),
            doing: Mutex::default(),
            hiding: Mutex::default(),
            written: Mutex::default(),
            stuck: Mutex::default(),
            follows: AtomicBool::new(false),
            missed: Mutex::default(),
            images,
            #[cfg(feature = "crypt")]
            secrets: Arc::clone(&self.secrets),
            snapshots: Mutex::default(),
            unclean: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        });
        self.report.observer.begins(&Handle::new(&manager, &live));
        let state = self.manifest.server.state.as_deref();
        let known = ShutdownHistory::load(state, self.report.clone());
        let pools = OwnPools(pools);
        Ok(Components { manager, workqueue, server, shown, disks, notes, known, live, pools })
    }

    /// Binds the sockets. Without `keep_going`, each of them is required.
    pub(super) fn bind(&mut self, complete: &mut bool) -> Result<Vec<Listener>, Error> {
        if !self.passed.is_empty() {
            return Ok(std::mem::take(&mut self.passed));
        }
        let server = &self.manifest.server;
        let unix =
            server.unix.as_ref().map(|at| (listen::unix(&at.value, &self.cleanup), at.place));
        let tcp = server.tcp.as_ref().map(|at| (listen::tcp(&at.value), at.place));
        if unix.is_none() && tcp.is_none() {
            let message = "the server has no place to listen at";
            return Err(Error::new(message).with_help("give [server] a 'unix' or a 'tcp'"));
        }
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
            return Err(Error::reported());
        }
        Ok(listeners)
    }

    /// Starts to answer on the control socket. The server runs without it, too; but a path that the
    /// user has set must be available.
    pub(super) fn answer(
        &self,
        about: &Arc<ServerView>,
        complete: &mut bool,
    ) -> Result<Option<Control>, Error> {
        if !self.control {
            return Ok(None);
        }
        // A killed process can't clean up.
        place::servers(&place::folders());
        let place = self.manifest.server.control.as_ref();
        let bound = match place {
            Some(at) => answers::bind_at(&at.value, &self.cleanup),
            None => answers::bind(&self.cleanup),
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
                if self.keep_going { Ok(None) } else { Err(Error::reported()) }
            }
            (Err(reason), None) => {
                self.report
                    .warning(format_args!("no control socket for `corewise dump`: {reason}"));
                Ok(None)
            }
        }
    }

    /// Starts to answer Prometheus, if the manifest says so.
    pub(super) fn measure(&self, live: &Live, complete: &mut bool) -> Result<(), Error> {
        let Some(at) = &self.manifest.server.metrics else { return Ok(()) };
        match live.measured_at(&at.value) {
            Ok(metrics) => *live.metrics.lock() = Some(metrics),
            Err(reason) => {
                *complete = false;
                self.tell_unbound(at.place, &reason);
                if !self.keep_going {
                    return Err(Error::reported());
                }
            }
        }
        Ok(())
    }

    pub(super) fn tell_unbound(&self, place: Position, reason: &str) {
        let message = format!("cannot listen on {reason}");
        if place == Position::default() {
            self.report.error(format_args!("{message}"));
        } else {
            self.report.problem(&self.label, &Problem::new(place, Subject::Server, message));
        }
    }
}
