//! `corewise up`: the flags, the signals and the terminal of a server.
//!
//! All checks come before the first change to the system.

mod progress;
#[cfg(feature = "crypt")]
mod secrets;
pub(crate) mod signals;
mod stop;
mod terminal;
mod text;

use std::io::Write;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use corewise::nbd::{self, Endpoint, Listener};
use corewise::sync::Mutex;
use corewise_server::control::place;
use corewise_server::manifest::{
    self, LeftOut, Located, Manifest, Position, Problem, ResolvedManifest,
};
use corewise_server::units::count;
use corewise_server::{Cleanup, Options, ProcessLimits, Server, Source};
use stop::{Parent, Stop};
use terminal::Terminal;

use crate::exit::Failure;
use crate::streams::Bars;
use crate::{args, screen, timeline};

/// Position of settings from the command line, which stand on no line of the manifest.
const NOWHERE: Position = Position { line: 0, column: 0 };

/// Runs a server to its end, and removes the files that it made.
pub(crate) fn run(args: args::Up, bars: Bars) -> Result<(), Failure> {
    // The heap is limited before there are threads.
    nbd::limit_heap();
    // The passed sockets are taken before anything else is opened.
    let passed = passed(&args)?;
    let parent = args.exit_with_parent.then(Parent::find).transpose()?;
    let source = match &args.manifest {
        Some(path) => Source::read(path)?,
        None => Source::built_in(),
    };
    // This doesn't come earlier: a user who types a manifest on a terminal may interrupt that, and
    // nothing needs cleanup. Nor does it come later: from here on there is something to clean up.
    let cleanup = Arc::new(Cleanup::default());
    let stop = Stop::watch(Arc::clone(&cleanup), bars.clone(), source.file.is_some(), parent)
        .map_err(|error| Failure::new(format!("cannot handle signals: {error}")))?;
    let stop = Arc::new(stop);
    // Cleans up even after a panic in the code below.
    let cleaner = Cleaner(Arc::clone(&cleanup));
    corewise_server::raise_open_files();
    corewise_server::become_io_flusher();
    let limits = ProcessLimits::now();
    let duration = args.duration;
    let outcome = match prepare(args, source, passed, limits, &stop, cleanup, bars) {
        Ok(Some((manifest, options))) => serve(manifest, options, &stop, duration),
        Ok(None) => Ok(()),
        Err(failure) => Err(failure),
    };
    drop(cleaner);
    outcome
}

fn serve(
    manifest: Manifest,
    options: Options,
    stop: &Stop,
    duration: Option<Duration>,
) -> Result<(), Failure> {
    let server = Server::up(manifest, options)?;
    let why = stop.wait(duration);
    if server.down(&why) { Ok(()) } else { Err(Failure::Reported) }
}

/// Cleans up at the end of its scope, after a panic too.
struct Cleaner(Arc<Cleanup>);

impl Drop for Cleaner {
    fn drop(&mut self) {
        for (path, error) in self.0.run() {
            screen::warning(format_args!("cannot remove {}: {error}", path.display()));
        }
    }
}

/// Checks everything that can be checked without a change to the system. Returns `None` if the user
/// wanted the checks alone.
fn prepare(
    args: args::Up,
    source: Source,
    passed: Vec<Listener>,
    limits: ProcessLimits,
    stop: &Arc<Stop>,
    cleanup: Arc<Cleanup>,
    bars: Bars,
) -> Result<Option<(Manifest, Options)>, Failure> {
    if let Some(file) = &args.timeline {
        timeline::check(file)?;
    }
    let mut scratch = Scratch::new(&cleanup);
    let base = match &source.base {
        Some(base) => base.clone(),
        None => scratch.folder()?,
    };
    let ResolvedManifest { mut manifest, problems, mut left_out, fatal } =
        manifest::read(&source.text, &base);
    for problem in &problems {
        tell(&source.label, problem);
    }
    if fatal || (!args.keep_going && !problems.is_empty()) {
        return Err(Failure::Reported);
    }
    if manifest.devices.is_empty() {
        return Err(Failure::new("no device is left to bring up"));
    }
    // The built-in manifest has a socket of its own.
    let built_in = source.base.is_none() && passed.is_empty();
    let has_unix = built_in || has_unix(&manifest.server, &args, &passed);
    if !has_unix && !reachable(&mut manifest, &source.label, args.keep_going, &mut left_out) {
        return Err(Failure::Reported);
    }
    if args.check {
        return check(&manifest, &source.label).map(|()| None);
    }
    let mut server = manifest.server.clone();
    override_addresses(&mut server, &args, !passed.is_empty(), built_in, &mut scratch)?;
    #[cfg(feature = "crypt")]
    let secrets = secrets::of(&manifest)?;
    let terminal = Terminal {
        json: args.json,
        quiet: is_client(&passed),
        label: source.label.clone(),
        timeline: args.timeline,
        stop: Arc::clone(stop),
        bars,
        progress: Mutex::default(),
    };
    let options = Options {
        server: Some(server),
        label: source.label,
        source: source.file,
        left_out,
        passed,
        keep_going: args.keep_going,
        control: !args.no_control,
        service_manager: true,
        ends_process: true,
        shutdown_timeout: args.shutdown_timeout,
        on_hang: args.on_hang,
        limits,
        #[cfg(feature = "crypt")]
        secrets,
        cancel: stop.cancel(),
        observer: Arc::new(terminal),
        cleanup,
    };
    Ok(Some((manifest, options)))
}

/// Prints a problem on stderr.
fn tell(label: &str, problem: &Problem) {
    screen::error(format_args!("{}", problem.display(label)));
}

/// Implements `--check`: prints the problems with the files that the manifest names, or that there
/// are none.
fn check(manifest: &Manifest, label: &str) -> Result<(), Failure> {
    let problems = corewise_server::check(manifest);
    problems.iter().for_each(|problem| tell(label, problem));
    if !problems.is_empty() {
        return Err(Failure::Reported);
    }
    let devices = count(manifest.devices.len() as u64, "device");
    let exports = count(manifest.exports.len() as u64, "export");
    writeln!(anstream::stdout(), "{label}: {devices}, {exports}, no problem found")?;
    writeln!(anstream::stdout(), "{}", corewise_server::front_ends())?;
    Ok(())
}

/// Returns true if clients will have a Unix socket.
fn has_unix(server: &manifest::Server, args: &args::Up, passed: &[Listener]) -> bool {
    if !passed.is_empty() {
        return passed.iter().any(|one| matches!(one.endpoint(), Endpoint::Unix(_)));
    }
    let has_tcp = server.tcp.is_some() || args.tcp.is_some();
    // Without either there is a temporary one.
    server.unix.is_some() || args.socket.is_some() || !has_tcp
}

/// Reports exports that no client could reach. Returns false if the server must not start;
/// otherwise the server leaves these exports out.
fn reachable(
    manifest: &mut Manifest,
    label: &str,
    keep_going: bool,
    left_out: &mut Vec<LeftOut>,
) -> bool {
    let unreachable = corewise_server::unreachable(manifest);
    let all = unreachable.is_empty();
    for (problem, left) in unreachable {
        tell(label, &problem);
        left_out.push(left);
    }
    keep_going || all
}

/// Replaces the manifest's addresses by those of the command line or by sockets that were passed.
/// If there is no address at all, adds a temporary Unix socket.
fn override_addresses(
    server: &mut manifest::Server,
    args: &args::Up,
    passed: bool,
    built_in: bool,
    scratch: &mut Scratch<'_>,
) -> Result<(), Failure> {
    if let Some(path) = &args.socket {
        server.unix = Some(Located::new(socket("--socket", path)?, NOWHERE));
    }
    if let Some(address) = &args.tcp {
        server.tcp = Some(Located::new(address.clone(), NOWHERE));
    }
    if let Some(path) = &args.control {
        server.control = Some(Located::new(socket("--control", path)?, NOWHERE));
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
        server.unix = Some(Located::new(scratch.socket()?, NOWHERE));
    }
    Ok(())
}

/// Returns the socket path of a flag.
fn socket(flag: &str, path: &Path) -> Result<PathBuf, Failure> {
    let absolute = std::path::absolute(path)
        .map_err(|error| Failure::new(format!("{flag} {}: {error}", path.display())))?;
    match manifest::too_long(&absolute) {
        None => Ok(absolute),
        Some(why) => Err(Failure::new(format!("{flag}: {why}"))
            .help("choose a folder with a shorter path, such as /run or /tmp")),
    }
}

/// A temporary folder, made when it is first needed.
struct Scratch<'c> {
    cleanup: &'c Cleanup,
    path: Option<PathBuf>,
}

impl<'c> Scratch<'c> {
    fn new(cleanup: &'c Cleanup) -> Scratch<'c> {
        Scratch { cleanup, path: None }
    }

    /// Makes the folder readable for its owner alone: a process that can reach a socket in it may
    /// use it.
    fn folder(&mut self) -> Result<PathBuf, Failure> {
        if let Some(path) = &self.path {
            return Ok(path.clone());
        }
        let path = self.make(&std::env::temp_dir())?;
        self.path = Some(path.clone());
        Ok(path)
    }

    /// Returns the path of a temporary socket: in that folder, or in another one if the path would
    /// be too long.
    fn socket(&mut self) -> Result<PathBuf, Failure> {
        let in_folder = |folder: &Path| folder.join("nbd.sock");
        // A path of the same length as that of the folder to be made.
        let usual = in_folder(&std::env::temp_dir().join("corewise-XXXXXX"));
        match manifest::too_long(&usual) {
            None => Ok(in_folder(&self.folder()?)),
            Some(_) => Ok(in_folder(&self.make(Path::new(place::SHORT))?)),
        }
    }

    /// Makes a folder in that one; the cleanup removes it.
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

/// Returns the sockets that were passed (LISTEN_FDS), in their order. Must be called at the
/// beginning of the program.
pub(crate) fn passed(args: &args::Up) -> Result<Vec<Listener>, Failure> {
    let wrong = |why: String| Failure::new(format!("cannot use the passed sockets: {why}"));
    let passed = sd_notify::listen_fds().map_err(|error| {
        let found = |name| {
            std::env::var_os(name).unwrap_or_default().to_string_lossy().escape_debug().to_string()
        };
        let (fds, pid) = (found("LISTEN_FDS"), found("LISTEN_PID"));
        wrong(format!("{error}: LISTEN_FDS is '{fds}', and LISTEN_PID '{pid}'")).help(
            "LISTEN_FDS must be the number of passed sockets, which begin at file descriptor 3, \
             and LISTEN_PID the id of this process",
        )
    })?;
    if args.check {
        return Ok(Vec::new());
    }
    if passed.len() > 0 && (args.socket.is_some() || args.tcp.is_some()) {
        return Err(Failure::new(
            "--socket and --tcp say where to listen, but the service manager passed sockets, too",
        )
        .help("leave these flags out, or start the server without LISTEN_FDS"));
    }
    let listeners = passed.map(|fd| {
        // SAFETY: it is open, since `listen_fds` has set its flags just now. No other owner exists:
        // LISTEN_PID names this process, so its starter left these to us. This is called once and
        // first, so nothing of ours was opened before.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        Listener::try_from(socket).map_err(|error| {
            wrong(format!("file descriptor {fd}: {error}")).help(
                "each must be a listening stream socket, Unix or TCP; in a .socket unit, \
                       set ListenStream= and Accept=no",
            )
        })
    });
    listeners.collect()
}

/// Returns true if a client started the server, as libnbd's do, and not a service manager with a
/// journal. Then stdout is the client's.
pub(crate) fn is_client(passed: &[Listener]) -> bool {
    !passed.is_empty() && std::env::var_os("JOURNAL_STREAM").is_none()
}
