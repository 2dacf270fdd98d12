//! `corewise up`: brings devices up in parallel, serves them, and shuts them down in the order of
//! their dependencies.
//!
//! Everything is checked before anything is touched; then sockets are bound, devices come up,
//! clients are let in. The way back is the reverse, wherever it begins.

mod address_space;
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
mod new_parts;
mod parent;
mod plan;
mod progress;
mod reach;
mod report;
mod room;
mod serve;
mod service;
mod settings;
mod signals;
mod source;
mod spare_thread;
mod status;
mod stop;
mod tls;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use corewise::nbd::{self, Listener};

use crate::args;
use crate::control::place;
use crate::exit::Failure;
use crate::log;
use crate::manifest::{self, At, Manifest, Place, Problem, Resolved};
use crate::screen::{self, Bars};
use crate::timeline;
use cleanup::Cleanup;
use events::Events;
use parent::Parent;
use report::Report;
use room::Room;
use settings::Asked;
use source::Source;
use stop::Stop;

/// A place for what comes from the command line, and so from no line of the manifest.
const NOWHERE: Place = Place { line: 0, column: 0 };

/// Runs a server to its end, and takes away what it made.
pub(crate) fn run(args: args::Up, bars: Bars) -> Result<(), Failure> {
    // Before there are threads.
    nbd::limit_heap();
    // Before anything else is opened.
    let passed = service::passed(&args)?;
    let parent = args.exit_with_parent.then(Parent::find).transpose()?;
    let source = match &args.manifest {
        Some(path) => Source::read(path)?,
        None => Source::built_in(),
    };
    // Not before: a user that types a manifest on a terminal may want to stop that, and has nothing to
    // clean up. Not later: from here on there is.
    let cleanup = Arc::new(Cleanup::default());
    let stop = Stop::watch(Arc::clone(&cleanup), bars.clone(), source.file.is_some(), parent)
        .map_err(|error| Failure::new(format!("cannot handle signals: {error}")))?;
    // Also where there is a bug in what follows.
    let cleaner = Cleaner(Arc::clone(&cleanup));
    limits::raise_open_files();
    let room = Room::now();
    let outcome = match prepare(args, source, passed, room, stop, cleanup, bars) {
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
    room: Room,
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
    // The built-in manifest has one of its own.
    let built_in = source.base.is_none() && passed.is_empty();
    let has_unix = built_in || reach::has_unix(&manifest.server, &args, &passed);
    let mut left_out = left_out;
    if !has_unix && !reach::checked(&mut manifest, &source.label, args.keep_going, &mut left_out) {
        return Err(Failure::Said);
    }
    if args.check {
        return check::check(&manifest, &source.label).map(|()| None);
    }
    let written = manifest.clone();
    override_addresses(&mut manifest, &args, !passed.is_empty(), built_in, &mut scratch)?;
    let events =
        Events::new().map_err(|error| Failure::new(format!("cannot make an eventfd: {error}")))?;
    let usual_memory = limits::usual_memory();
    let server = &manifest.server;
    let options = limits::of_clients(&server.clients, usual_memory, server.tls.is_some());
    let room = room.with_tls(server.tls.is_some());
    let (options, cut) = room.share(options, manifest.devices.iter()).map_err(Failure::new)?;
    let quiet = service::is_client(&passed);
    let too_much_memory = limits::too_much(&options, server.tls.is_some());
    let report = Report { json: args.json, quiet, events: Arc::new(events) };
    let theirs = report.clone();
    log::also(move |line| theirs.logged(line));
    let (shutdown_timeout, on_hang) = (args.shutdown_timeout, args.on_hang);
    Ok(Some(serve::Server {
        asked: Asked { shutdown_timeout, on_hang },
        has_unix,
        options,
        cut,
        too_much_memory,
        room,
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
    built_in: bool,
    scratch: &mut Scratch<'_>,
) -> Result<(), Failure> {
    let server = &mut manifest.server;
    if let Some(path) = &args.socket {
        server.unix = Some(At::new(socket("--socket", path)?, NOWHERE));
    }
    if let Some(address) = &args.tcp {
        server.tcp = Some(At::new(address.clone(), NOWHERE));
    }
    if let Some(path) = &args.control {
        server.control = Some(At::new(socket("--control", path)?, NOWHERE));
    }
    if let Some(path) = &args.state {
        let path = std::path::absolute(path)
            .map_err(|error| Failure::new(format!("--state {}: {error}", path.display())))?;
        server.state = Some(path);
    }
    server.on_hang = args.on_hang.unwrap_or(server.on_hang);
    if passed {
        (server.unix, server.tcp) = (None, None);
    } else if server.unix.is_none() && (built_in || server.tcp.is_none()) {
        server.unix = Some(At::new(scratch.socket()?, NOWHERE));
    }
    Ok(())
}

/// The path of a socket that a flag says.
fn socket(flag: &str, path: &Path) -> Result<PathBuf, Failure> {
    let absolute = std::path::absolute(path)
        .map_err(|error| Failure::new(format!("{flag} {}: {error}", path.display())))?;
    match manifest::too_long(&absolute) {
        None => Ok(absolute),
        Some(why) => Err(Failure::new(format!("{flag}: {why}"))
            .help("choose a folder with a shorter path, such as /run or /tmp")),
    }
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
        let path = self.make(&std::env::temp_dir())?;
        self.path = Some(path.clone());
        Ok(path)
    }

    /// Where a socket of our own is: in that folder, or, where that has too long a path for one, in
    /// another one.
    fn socket(&mut self) -> Result<PathBuf, Failure> {
        let in_folder = |folder: &Path| folder.join("nbd.sock");
        // As long as the folder that is made.
        let usual = in_folder(&std::env::temp_dir().join("corewise-XXXXXX"));
        match manifest::too_long(&usual) {
            None => Ok(in_folder(&self.folder()?)),
            Some(_) => Ok(in_folder(&self.make(Path::new(place::SHORT))?)),
        }
    }

    /// Makes a folder in that one, to be removed at the end.
    fn make(&self, within: &Path) -> Result<PathBuf, Failure> {
        let made = tempfile::Builder::new().prefix("corewise-").tempdir_in(within);
        let folder = made.map_err(|error| {
            let within = within.display();
            Failure::new(format!("cannot make a temporary folder in {within}: {error}"))
                .help("TMPDIR sets the folder for temporary folders, --socket the path of a socket")
        })?;
        self.cleanup.folder(folder.path());
        Ok(folder.keep())
    }
}
