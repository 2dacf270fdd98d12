//! `corewise up`: brings devices up in parallel, serves them, and shuts them down in the order of
//! their dependencies.
//!
//! Everything is checked before anything is touched; then sockets are bound, devices come up,
//! clients are let in. The way back is the reverse, wherever it begins.

mod calls;
mod check;
mod cleanup;
mod control;
mod descriptors;
mod drivers;
mod events;
mod known;
mod limits;
mod listen;
mod listener_thread;
mod live;
mod metrics;
mod plan;
mod progress;
mod reach;
mod report;
mod serve;
mod service;
mod settings;
mod signals;
mod source;
mod status;
mod stop;
mod tls;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use corewise::nbd::Listener;

use crate::args;
use crate::exit::Failure;
use crate::log;
use crate::manifest::{self, At, Manifest, Place, Problem, Resolved};
use crate::screen::{self, Bars};
use crate::timeline;
use cleanup::Cleanup;
use descriptors::Descriptors;
use events::Events;
use report::Report;
use settings::Asked;
use source::Source;
use stop::Stop;

/// A place for what comes from the command line, and so from no line of the manifest.
const NOWHERE: Place = Place { line: 0, column: 0 };

/// Runs a server to its end, and takes away what it made.
pub(crate) fn run(args: args::Up, bars: Bars) -> Result<(), Failure> {
    // Before anything else is opened.
    let passed = service::passed(&args)?;
    let source = match &args.manifest {
        Some(path) => Source::read(path)?,
        None => Source::built_in(),
    };
    // Not before: a user that types a manifest on a terminal may want to stop that, and has nothing to
    // clean up. Not later: from here on there is.
    let cleanup = Arc::new(Cleanup::default());
    let stop = Stop::watch(Arc::clone(&cleanup), bars.clone(), source.file.is_some())
        .map_err(|error| Failure::new(format!("cannot handle signals: {error}")))?;
    // Also where there is a bug in what follows.
    let cleaner = Cleaner(Arc::clone(&cleanup));
    limits::raise_open_files();
    let files = Descriptors::now();
    let outcome = match prepare(args, source, passed, files, stop, cleanup, bars) {
        Ok(Some(server)) => server.run(),
        Ok(None) => Ok(()),
        Err(failure) => Err(failure),
    };
    drop(cleaner);
    outcome
}

/// Cleans up at the end of its scope, however that is reached.
struct Cleaner(Arc<Cleanup>);

impl Drop for Cleaner {
    fn drop(&mut self) {
        for (path, error) in self.0.run() {
            screen::warning(format_args!("cannot remove {}: {error}", path.display()));
        }
    }
}

/// Everything that can be checked without touching anything. `None`: that was all that was wanted.
fn prepare(
    args: args::Up,
    source: Source,
    passed: Vec<Listener>,
    files: Descriptors,
    stop: Stop,
    cleanup: Arc<Cleanup>,
    bars: Bars,
) -> Result<Option<serve::Server>, Failure> {
    if let Some(file) = &args.timeline {
        timeline::file::check(file)?;
    }
    let mut scratch = Scratch::new(&cleanup);
    let base = match &source.base {
        Some(base) => base.clone(),
        None => scratch.folder()?,
    };
    let Resolved { mut manifest, problems, left_out, fatal } = manifest::read(&source.text, &base);
    for problem in &problems {
        tell(&source.label, problem);
    }
    if fatal || (!args.keep_going && !problems.is_empty()) {
        return Err(Failure::Said);
    }
    if manifest.devices.is_empty() {
        return Err(Failure::new("no device is left to bring up"));
    }
    let has_unix = reach::has_unix(&manifest.server, &args, &passed);
    let mut left_out = left_out;
    if !has_unix && !reach::checked(&mut manifest, &source.label, args.keep_going, &mut left_out) {
        return Err(Failure::Said);
    }
    if args.check {
        return check::check(&manifest, &source.label).map(|()| None);
    }
    let written = manifest.clone();
    override_addresses(&mut manifest, &args, !passed.is_empty(), &mut scratch)?;
    let events =
        Events::new().map_err(|error| Failure::new(format!("cannot make an eventfd: {error}")))?;
    let usual_memory = limits::usual_memory();
    let server = &manifest.server;
    let options = limits::of_clients(&server.clients, usual_memory, server.tls.is_some());
    let shared = files.share(options, manifest.devices.iter());
    let (options, cut) = shared.map_err(|why| Failure::new(why.to_string()))?;
    let quiet = service::is_client(&passed);
    let report = Report { json: args.json, quiet, events: Arc::new(events) };
    let theirs = report.clone();
    log::also(move |line| theirs.logged(line));
    let (shutdown_timeout, on_hang) = (args.shutdown_timeout, args.on_hang);
    Ok(Some(serve::Server {
        asked: Asked { shutdown_timeout, on_hang },
        has_unix,
        options,
        cut,
        files,
        usual_memory,
        report,
        passed,
        keep_going: args.keep_going,
        duration: args.duration,
        control: !args.no_control,
        timeline: args.timeline,
        label: source.label,
        source: source.file,
        written,
        manifest,
        left_out,
        cleanup,
        stop,
        bars,
    }))
}

/// Says what is wrong, on stderr.
fn tell(label: &str, problem: &Problem) {
    screen::error(format_args!("{}", problem.display(label)));
}

/// The command line's word, or sockets that were passed, go before the manifest's. With none of them, a Unix socket of our own.
fn override_addresses(
    manifest: &mut Manifest,
    args: &args::Up,
    passed: bool,
    scratch: &mut Scratch<'_>,
) -> Result<(), Failure> {
    let server = &mut manifest.server;
    if let Some(path) = &args.socket {
        let path = std::path::absolute(path)
            .map_err(|error| Failure::new(format!("--socket {}: {error}", path.display())))?;
        server.unix = Some(At::new(path, NOWHERE));
    }
    if let Some(address) = &args.tcp {
        server.tcp = Some(At::new(address.clone(), NOWHERE));
    }
    if let Some(path) = &args.control {
        let path = std::path::absolute(path)
            .map_err(|error| Failure::new(format!("--control {}: {error}", path.display())))?;
        server.control = Some(At::new(path, NOWHERE));
    }
    if let Some(path) = &args.state {
        let path = std::path::absolute(path)
            .map_err(|error| Failure::new(format!("--state {}: {error}", path.display())))?;
        server.state = Some(path);
    }
    server.on_hang = args.on_hang.unwrap_or(server.on_hang);
    if passed {
        (server.unix, server.tcp) = (None, None);
    } else if server.unix.is_none() && server.tcp.is_none() {
        server.unix = Some(At::new(scratch.folder()?.join("nbd.sock"), NOWHERE));
    }
    Ok(())
}

/// The temporary folder, made when it is first asked for.
struct Scratch<'c> {
    cleanup: &'c Cleanup,
    path: Option<PathBuf>,
}

impl<'c> Scratch<'c> {
    fn new(cleanup: &'c Cleanup) -> Scratch<'c> {
        Scratch { cleanup, path: None }
    }

    /// Readable for its owner alone: a process that can reach a socket in it may use it.
    fn folder(&mut self) -> Result<PathBuf, Failure> {
        if let Some(path) = &self.path {
            return Ok(path.clone());
        }
        let folder = tempfile::Builder::new().prefix("corewise-").tempdir().map_err(|error| {
            Failure::new(format!("cannot make a temporary folder: {error}"))
                .help("TMPDIR sets the folder for temporary folders")
        })?;
        let path: &Path = folder.path();
        self.cleanup.folder(path);
        let path = folder.keep();
        self.path = Some(path.clone());
        Ok(path)
    }
}
