//! A server before its bring-up: what it needs is looked for, made and bound.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use corewise::device::{Cancel, DeviceManager};
use corewise::drivers::FileRings;
use corewise::nbd::{self, Endpoint, Listener};
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
use crate::drivers::{ExportDriver, MissingParts, VolumeContext, VolumeDriver, Warnings};
use crate::error::Error;
use crate::events::Events;
use crate::handle::Handle;
use crate::history::ShutdownHistory;
use crate::live::Live;
use crate::manifest::{LeftOut, Manifest, Position, Problem, Subject};
use crate::observer::Shown;
use crate::observer::{Caught, Observer};
use crate::report::Report;
use crate::room::{Cut, Room};
use crate::service::{self, Service};
use crate::settings::{Overrides, Settings};
use crate::status::ServerStatus;
use crate::threads::no_thread;
use crate::{listen, room, tls};

/// A server that was checked and not begun.
pub(super) struct PreparedServer {
    pub(super) report: Report,
    pub(super) keep_going: bool,
    /// Whether there is to be a control socket.
    pub(super) control: bool,
    pub(super) ends_process: bool,
    /// How messages call the manifest.
    pub(super) label: String,
    /// The manifest's file, where it can be read again.
    pub(super) source: Option<PathBuf>,
    /// As it is written, without what the program says instead.
    pub(super) written: Manifest,
    pub(super) manifest: Manifest,
    /// What the program says of that.
    pub(super) asked: Overrides,
    /// Whether clients come by a Unix socket, which alone says which user they are.
    pub(super) has_unix: bool,
    /// Sockets that listen already; with any, no other is bound.
    pub(super) passed: Vec<Listener>,
    /// What the manifest asks for and can't have.
    pub(super) left_out: Vec<LeftOut>,
    /// What clients may have.
    pub(super) options: nbd::Options,
    /// The reason for which there is room for fewer clients than were asked for.
    pub(super) cut: Option<Cut>,
    /// A warning: clients may take more memory than the process may use.
    pub(super) too_much_memory: Option<String>,
    pub(super) room: Room,
    /// Bytes for clients if the manifest says nothing.
    pub(super) usual_memory: u64,
    pub(super) cleanup: Arc<Cleanup>,
    pub(super) cancel: Cancel,
}

/// What a running server consists of.
pub(super) struct Components {
    pub(super) manager: Arc<DeviceManager>,
    pub(super) workqueue: Workqueue,
    pub(super) server: Arc<nbd::Server>,
    /// L: is the lock; guards the exports that are up.
    pub(super) shown: Arc<Mutex<Vec<Shown>>>,
    pub(super) disks: Arc<Disks>,
    pub(super) notes: Arc<Warnings>,
    pub(super) known: ShutdownHistory,
    pub(super) live: Arc<Live>,
    /// The last one, since the others' work needs their threads.
    pub(super) pools: OwnPools,
}

/// What looks at a running server; it ends before that.
pub(super) struct Monitoring {
    pub(super) control: Option<Control>,
    pub(super) about: Arc<ServerView>,
    pub(super) _ticks: Option<Ticker>,
}

/// Pools that end with the server.
pub(super) struct OwnPools(pub(super) WorkerPools);

impl Drop for OwnPools {
    fn drop(&mut self) {
        self.0.shutdown();
    }
}

/// How often volumes and exports are looked at.
const TICK: Duration = Duration::from_secs(1);

impl Components {
    /// Has a work item of the volumes look at them and at the exports now and then. It ends when
    /// that is dropped.
    pub(super) fn tick(&self) -> Option<Ticker> {
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

    /// Tells the service manager, where there is one, that the server is up, and goes on to tell it
    /// how it is.
    pub(super) fn service(&self, about: &Arc<ServerView>) -> Service {
        let (server, about) = (Arc::clone(&self.server), Arc::clone(about));
        let status = move || service::status(&server.exports(), &answers::health(&about));
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
    /// Looks whether clients have room, and opens nothing but what tells of events.
    pub(super) fn new(manifest: Manifest, options: Options) -> Result<PreparedServer, Error> {
        let written = manifest.clone();
        let mut manifest = manifest;
        if let Some(server) = options.server {
            manifest.server = server;
        }
        let events = Events::new()
            .map_err(|error| Error::new(format!("cannot make an eventfd: {error}")))?;
        let usual_memory = room::usual_memory();
        let server = &manifest.server;
        let of_clients = room::of_clients(server, usual_memory);
        let room = options.room.with_tls(server.tls().is_some());
        let (of_clients, cut) =
            room.share(of_clients, manifest.devices.iter()).map_err(Error::new)?;
        let too_much_memory = room::too_much(&of_clients, server.tls().is_some());
        let is_unix = |one: &Listener| matches!(one.endpoint(), Endpoint::Unix(_));
        let has_unix = match options.passed.is_empty() {
            true => server.unix.is_some(),
            false => options.passed.iter().any(is_unix),
        };
        let observer: Arc<dyn Observer> = Arc::new(Caught(options.observer));
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
            cut,
            too_much_memory,
            room,
            usual_memory,
            cleanup: Cleanup::part_of(&options.cleanup),
            cancel: options.cancel,
            manifest,
        })
    }

    /// Looks whether the NUMA nodes are there that devices are to be near to. With `keep_going`
    /// such a device has no preference; whether there was none.
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
        self.room.reserve(&self.options, devices).map_err(Error::new)?;
        let server = tls::server(self.options, self.manifest.server.tls());
        let (server, seen) = server.map_err(|problem| {
            self.report.problem(&self.label, &problem);
            Error::reported()
        })?;
        let pools = WorkerPools::builder(&machine).follow(true).build();
        let workqueue = Workqueue::builder("volumes")
            // Two clock readings an item are nothing beside its IO; `corewise dump` shows the sum.
            .timed(true)
            // For block devices only.
            .lowest(true)
            // Memory is written back through these volumes: a flush ends even if no thread can be
            // made.
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
        let context = VolumeContext {
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
        status.shows(seen.as_ref().and_then(tls::ShownFiles::validity));
        let exports =
            ExportDriver::new(Arc::clone(&server), Arc::clone(&settings), Arc::clone(&notes));
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
            metrics_text: OnceLock::new(),
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
        let known = ShutdownHistory::load(state, self.report.clone());
        let pools = OwnPools(pools);
        Ok(Components { manager, workqueue, server, shown, disks, notes, known, live, pools })
    }

    /// Binds what can be bound. Without `keep_going` that has to be all.
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

    /// Answers who looks on. Without it the server does all the same; but a place that somebody has
    /// asked for has to be had.
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

    /// Lets Prometheus ask, where the manifest says so.
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
