//! `corewise attach` and `corewise detach`: an export as a disk of this machine, by Linux's client.
//!
//! The kernel has the sockets and speaks NBD's transmission phase. This process makes the
//! connections, replaces each one that dies, and encrypts those that use TLS.

mod connections;
mod detach;
mod devices;
mod list;
mod netlink;

use std::io::{IsTerminal, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant, SystemTime};

use corewise::nbd::wire::TransmissionFlags;
use corewise::nbd::{RemoteOptions, RemoteSession, Uri};
use corewise::sync::Parker;
use corewise_server::block_use::is_in_use;
use corewise_server::{become_io_flusher, units};
use rustix::io::Errno;

use crate::args;
use crate::exit::Failure;
use crate::up::signals;
use crate::{screen, tls_files};
use connections::ConnectionState;
use devices::{Device, Ownership, SECTOR, limit_requests};
use netlink::{DeadLinks, KernelClient, KernelError, NewDevice};

pub(crate) use detach::detach;

/// Pause after the first failed attempt to connect; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// Time between two checks whether the device was detached: the kernel doesn't announce it.
const LOOK: Duration = Duration::from_secs(3);
/// Seconds that requests wait for a connection, unless the user says else: a hundred years.
const FOREVER: u64 = 100 * 366 * 24 * 3600;
/// Largest text that the kernel keeps for a device: it shows it on a page of memory.
const LONGEST_URI: usize = 3000;
/// Block sizes that the kernel's client has.
const BLOCK_SIZES: std::ops::RangeInclusive<u32> = 512..=4096;

/// Something that happens while a device is attached.
enum Happening {
    /// A connection of the device died.
    Dead,
    /// Events of connections that died may be lost.
    Lost,
    /// A signal asks for the end.
    Stop,
}

/// An attached device, and the options of its connections.
struct Attached<'a> {
    kernel: KernelClient,
    uri: &'a Uri,
    options: RemoteOptions,
    index: u32,
    /// Size in bytes that the kernel knows.
    size: u64,
    /// Transmission flags that the kernel knows.
    flags: u16,
    /// Size of the device's blocks in bytes.
    block: u32,
    /// Text that distinguishes this attachment from others: the export, and a mark.
    backend: String,
    /// Number of connections that the kernel has for it.
    connections: u16,
    /// Number of connections that are dead, as far as is known.
    dead: u16,
    /// State of the connections that `attach --list` shows.
    shown: ConnectionState,
    /// True once the kernel has said that it has no such device.
    is_gone: bool,
    /// Held as long as this process replaces the device's connections.
    _ownership: Ownership,
}

pub(crate) fn attach(args: &args::Attach) -> Result<(), Failure> {
    let uri = match &args.uri {
        Some(uri) if !args.list => uri,
        _ => return list::list(args.json),
    };
    if args.daemon {
        return in_the_background();
    }
    if uri.to_string().len() > LONGEST_URI {
        return Err(Failure::new(format!("the URI is longer than {LONGEST_URI} bytes")));
    }
    if args.in_background {
        // A hang-up of the terminal, or Ctrl-C there, is for other processes.
        let _ = rustix::process::setsid();
    }
    // Its threads for TLS carry the writes of the disk.
    become_io_flusher();
    let options = options(args, uri)?;
    let kernel = KernelClient::open().map_err(|error| refused("attach", &error))?;
    let (tell, happenings) = channel();
    let dead = kernel.dead_links().map_err(|error| refused("attach", &error))?;
    let (in_background, stop) = (args.in_background, tell.clone());
    signals::watch(move || in_background, move |_| _ = stop.send(Happening::Stop))
        .map_err(|error| Failure::new(format!("cannot wait for signals: {error}")))?;
    // Ctrl-C is for people; a service manager has its own way.
    if std::io::stderr().is_terminal() {
        tracing::info!("Ctrl-C detaches the device");
    }
    let attached = match args.device.and_then(Device::of) {
        Some(device) => take_over(kernel, uri, options, &device, args)?,
        None => begin(kernel, uri, options, args)?,
    };
    let index = attached.index;
    std::thread::Builder::new()
        .name("dead-links".to_string())
        .spawn(move || watch_links(dead, index, &tell))
        .map_err(|error| Failure::new(format!("cannot start a thread: {error}")))?;
    let _ = std::io::stdout().flush();
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    if args.in_background {
        // The process that waited for the first line is gone, and so may be the terminal.
        let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null");
        if let Ok(null) = null {
            let _ = rustix::stdio::dup2_stdout(&null);
            let _ = rustix::stdio::dup2_stderr(&null);
        }
    }
    attached.keep(&happenings)
}

/// Prints a line. A reader that has gone doesn't matter: the device does.
fn say(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Starts the same command without `--daemon`, and returns once its device is attached.
fn in_the_background() -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::new(format!("cannot start the daemon: {error}"));
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != "--daemon");
    let mut child = Command::new(std::env::current_exe().map_err(failed)?)
        .args(arguments)
        .arg("--in-background")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let mut first = String::new();
    if let Some(stdout) = child.stdout.take() {
        let read = std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut first);
        read.map_err(failed)?;
    }
    if first.is_empty() {
        // The other process has printed the reason.
        let _ = child.wait();
        return Err(Failure::Reported);
    }
    print!("{first}");
    Ok(())
}

fn options(args: &args::Attach, uri: &Uri) -> Result<RemoteOptions, Failure> {
    tls_files::read(&args.tls, RemoteOptions::new(uri.clone()).timeout(args.timeout))
}

/// Connects, and has the kernel make a device of the export.
fn begin<'a>(
    kernel: KernelClient,
    uri: &'a Uri,
    options: RemoteOptions,
    args: &args::Attach,
) -> Result<Attached<'a>, Failure> {
    let open = || RemoteSession::open(&options).map_err(|error| Failure::new(error.to_string()));
    let first = open()?;
    let (size, read_only) = (sectors(first.size()), args.read_only || first.read_only());
    let refuses = if read_only { TransmissionFlags::READ_ONLY.0 } else { 0 };
    let flags = first.flags() | refuses;
    let block = first.block_size().max(*BLOCK_SIZES.start());
    if !BLOCK_SIZES.contains(&block) || !block.is_power_of_two() {
        return Err(Failure::new(format!(
            "{uri}: the export has blocks of {block} bytes, but Linux's client takes blocks of \
             512 to 4096"
        )));
    }
    if size > i64::MAX as u64 {
        return Err(Failure::new(format!(
            "{uri}: the export has {size} bytes, and a disk of Linux at most 8 EiB"
        )));
    }
    if size < u64::from(block) {
        return Err(Failure::new(format!(
            "{uri}: the export has {size} bytes, less than one block of {block}"
        )));
    }
    let wanted = if first.can_multi_conn() { args.connections } else { 1 };
    let mut sessions = vec![first];
    while sessions.len() < usize::from(wanted) {
        // The server may allow fewer.
        let Ok(more) = open() else { break };
        if (sectors(more.size()), more.flags()) != (size, sessions[0].flags()) {
            return Err(Failure::new(format!(
                "{uri}: the export changed between two connections; try again"
            )));
        }
        sessions.push(more);
    }
    let (connections, largest) = (sessions.len(), sessions[0].largest_payload());
    if largest < *BLOCK_SIZES.end() {
        return Err(Failure::new(format!(
            "{uri}: the server takes at most {largest} bytes a request, and Linux's client needs 4096"
        )));
    }
    // The lock is taken before the kernel has the device, so that no other process takes it over.
    let ownership = args.device.map(own).transpose()?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let backend = format!("{uri} {}-{}", std::process::id(), now.as_nanos());
    let sockets = sessions.into_iter().map(socket).collect::<Result<Vec<_>, _>>()?;
    let device = NewDevice {
        index: args.device,
        size,
        block_size: u64::from(block),
        flags: u64::from(flags),
        timeout: args.timeout.as_secs(),
        dead_timeout: args.wait.map_or(FOREVER, |wait| wait.as_secs()),
        backend: &backend,
    };
    let index = kernel.attach(&device, &sockets).map_err(|error| refused("attach", &error))?;
    // Without the text, no connection could be replaced.
    if Device::of(index).is_some_and(|now| now.backend.is_none()) {
        let _ = kernel.detach(index);
        return Err(Failure::new("this kernel's NBD client is too old: Linux 5.14 is needed"));
    }
    let ownership = match ownership {
        Some(ownership) => ownership,
        None => own(index)?,
    };
    let several = if connections == 1 { "connection" } else { "connections" };
    let writes = if read_only { ", read-only" } else { "" };
    let (path, size_text) = (devices::path(index), units::size(size));
    if let Err(error) = limit_requests(index, largest) {
        screen::warning(format_args!(
            "{path}: the size of requests can't be limited to {largest} bytes: {error}"
        ));
    }
    say(format_args!("attached {path}: {size_text}{writes}, {connections} {several} to {uri}"));
    Ok(Attached {
        kernel,
        uri,
        options,
        index,
        size,
        flags,
        block,
        backend,
        connections: connections as u16,
        dead: 0,
        shown: ConnectionState::default(),
        is_gone: false,
        _ownership: ownership,
    })
}

/// Takes the lock of the process that replaces a device's connections. If the device was detached
/// just now, that process hasn't noticed yet.
fn own(index: u32) -> Result<Ownership, Failure> {
    let deadline = Instant::now() + 2 * LOOK;
    let mut taken = Ownership::take(index);
    while taken.is_err() && Device::of(index).is_none() && Instant::now() < deadline {
        Parker::new().park_timeout(FIRST_PAUSE);
        taken = Ownership::take(index);
    }
    taken.map_err(|why| {
        Failure::new(format!("{} is attached already: {why}", devices::path(index)))
            .help("leave the device out to attach another one")
    })
}

/// Continues with a device that an earlier process attached, and that has lost its connections or
/// will lose them. All of them count as dead: the kernel takes those that it needs.
fn take_over<'a>(
    kernel: KernelClient,
    uri: &'a Uri,
    options: RemoteOptions,
    device: &Device,
    args: &args::Attach,
) -> Result<Attached<'a>, Failure> {
    let path = devices::path(device.index);
    let Some(backend) =
        device.backend.clone().filter(|_| device.export.as_deref() == Some(&*uri.to_string()))
    else {
        let what = device.export.as_deref().unwrap_or("another export");
        return Err(Failure::new(format!("{path} is attached to {what}"))
            .help(format!("'corewise detach {path}' first, or leave the device out")));
    };
    if args.read_only && !device.read_only {
        let message = format!("{path} was attached for changes, and stays so");
        return Err(Failure::new(message).help("leave --read-only out, or detach it first"));
    }
    let ownership = own(device.index)?;
    say(format_args!("took over {path}: {}", units::size(device.size)));
    Ok(Attached {
        kernel,
        uri,
        options,
        index: device.index,
        size: device.size,
        flags: device.flags,
        block: device.block_size,
        backend,
        connections: device.connections,
        dead: device.connections,
        shown: ConnectionState::default(),
        is_gone: false,
        _ownership: ownership,
    })
}

/// Rounds a size down to the sectors in which the kernel counts.
fn sectors(size: u64) -> u64 {
    size - size % SECTOR
}

/// Returns the socket for the kernel. If the connection uses TLS, a thread encrypts it.
fn socket(session: RemoteSession) -> Result<OwnedFd, Failure> {
    let failed =
        |error: std::io::Error| Failure::new(format!("cannot hand on a connection: {error}"));
    let (socket, proxy) = session.into_socket().map_err(failed)?;
    if let Some(proxy) = proxy {
        let run = move || {
            if let Err(error) = proxy.run() {
                tracing::warn!(%error, "a connection in TLS ended");
            }
        };
        std::thread::Builder::new().name("tls".to_string()).spawn(run).map_err(failed)?;
    }
    Ok(socket)
}

impl Attached<'_> {
    /// Replaces connections until the device is detached, or a signal comes.
    fn keep(mut self, happenings: &Receiver<Happening>) -> Result<(), Failure> {
        loop {
            if self.dead > 0 && !self.reconnect(happenings) {
                return self.end();
            }
            if !self.is_attached() {
                say(format_args!("{} was detached", devices::path(self.index)));
                return Ok(());
            }
            self.show(None);
            if !self.wait(happenings, LOOK) {
                return self.end();
            }
        }
    }

    /// Waits for something to happen. Returns false if a signal came.
    fn wait(&mut self, happenings: &Receiver<Happening>, time: Duration) -> bool {
        match happenings.recv_timeout(time) {
            Ok(Happening::Dead) => self.dead = self.connections.min(self.dead + 1),
            // The kernel takes as many as it needs.
            Ok(Happening::Lost) => self.dead = self.connections,
            Ok(Happening::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
            Err(RecvTimeoutError::Timeout) => {}
        }
        true
    }

    /// Records the state of the connections for `attach --list`, if it has changed.
    fn show(&mut self, error: Option<&str>) {
        let state = self.shown.next(self.connections, self.dead, error, SystemTime::now());
        if state != self.shown {
            if let Err(error) = state.write(self.index) {
                tracing::debug!(error, "the state of the connections isn't recorded");
            }
            self.shown = state;
        }
    }

    /// Returns true as long as the device is the one that this process attached or took over.
    fn is_attached(&self) -> bool {
        let now = Device::of(self.index).and_then(|now| now.backend);
        !self.is_gone && now.as_ref() == Some(&self.backend)
    }

    /// Replaces the dead connections, however long that takes. Returns false if a signal came.
    fn reconnect(&mut self, happenings: &Receiver<Happening>) -> bool {
        let path = devices::path(self.index);
        let (mut pause, mut warned) = (FIRST_PAUSE, None);
        while self.dead > 0 && self.is_attached() {
            self.show(warned.as_deref());
            let begun = Instant::now();
            let session = RemoteSession::open(&self.options).map_err(|error| error.to_string());
            let failure = match session.and_then(|session| self.replace(session)) {
                Ok(true) => {
                    tracing::info!(device = path, "a connection was replaced");
                    self.dead -= 1;
                    None
                }
                Ok(false) => {
                    self.is_gone = true;
                    return true;
                }
                Err(why) => Some(why),
            };
            if failure.is_none() && self.dead > 0 {
                continue;
            }
            if let Some(why) = failure.as_ref().filter(|_| failure != warned) {
                screen::warning(format_args!("{path}: {why}; trying again"));
            }
            warned = failure;
            // The pause follows a success, too, so a server that closes each connection isn't
            // stormed.
            let rest = pause.saturating_sub(begun.elapsed());
            if !self.wait(happenings, rest) {
                return false;
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        true
    }

    /// Gives the kernel this connection in place of a dead one. If none is dead, the kernel closes
    /// it. Returns false if the kernel has no such device any more.
    fn replace(&mut self, session: RemoteSession) -> Result<bool, String> {
        let size = sectors(session.size());
        if size > i64::MAX as u64 {
            return Err(format!("the export has {size} bytes, more than a disk of Linux has"));
        }
        if size < self.size {
            return Err(format!(
                "the export has {} now, and the device {}: a device in use can't become smaller",
                units::size(size),
                units::size(self.size)
            ));
        }
        if session.block_size() > self.block {
            return Err(format!(
                "the export has blocks of {} bytes now, and the device of {}",
                session.block_size(),
                self.block
            ));
        }
        if !session.supports(self.flags) {
            return Err(
                "the export no longer supports all that the device was attached with".to_string()
            );
        }
        let socket = socket(session).map_err(|failure| failure.words())?;
        let grown = (size > self.size).then_some(size);
        match self.kernel.replace(self.index, &socket, grown, &self.backend) {
            Ok(()) => {}
            Err(KernelError::Errno(Errno::INVAL | Errno::NODEV)) => return Ok(false),
            Err(error) => return Err(words(&error)),
        }
        if grown.is_some() {
            let (path, before) = (devices::path(self.index), units::size(self.size));
            say(format_args!("{path} grew from {before} to {}", units::size(size)));
        }
        self.size = size;
        Ok(true)
    }

    /// Detaches the device, unless it is in use.
    fn end(self) -> Result<(), Failure> {
        let path = devices::path(self.index);
        if !self.is_attached() {
            say(format_args!("{path} was detached"));
            return Ok(());
        }
        if is_in_use(&format!("nbd{}", self.index)) {
            screen::warning(format_args!("{path} is in use, so it stays attached"));
            screen::help(format_args!(
                "'corewise attach {} {path}' takes over its connections; unmount it, then \
                 'corewise detach {path}'",
                self.uri
            ));
            return Ok(());
        }
        match self.kernel.detach(self.index) {
            Ok(()) => say(format_args!("detached {path}")),
            // Another process was faster.
            Err(KernelError::Errno(Errno::INVAL | Errno::NOENT)) => {}
            Err(error) => return Err(refused("detach", &error)),
        }
        Ok(())
    }
}

/// Reports the connections of a device that die, until nobody listens.
fn watch_links(mut dead: DeadLinks, index: u32, tell: &Sender<Happening>) {
    loop {
        let happening = match dead.next() {
            Ok(device) if device == index => Happening::Dead,
            Ok(_) => continue,
            Err(error) => {
                let why = words(&error);
                tracing::warn!(why, "events of dead connections may be lost; all are replaced");
                while let Err(error) = dead.reopen() {
                    tracing::debug!(why = words(&error), "subscribing again");
                    Parker::new().park_timeout(LONGEST_PAUSE);
                }
                Happening::Lost
            }
        };
        if tell.send(happening).is_err() {
            return;
        }
    }
}

fn words(error: &KernelError) -> String {
    match error {
        KernelError::NoClient => "the kernel has no NBD client".to_string(),
        KernelError::Errno(error) => format!("the kernel refuses this: {error}"),
        KernelError::Protocol(why) => format!("cannot talk to the kernel's NBD client: {why}"),
    }
}

/// Returns the failure of a command, with its remedy.
fn refused(verb: &str, error: &KernelError) -> Failure {
    let failure = Failure::new(format!("cannot {verb}: {}", words(error)));
    match error {
        KernelError::NoClient => failure.help("load it: modprobe nbd"),
        KernelError::Errno(Errno::PERM | Errno::ACCESS) => {
            failure.help("run it as root, or with CAP_SYS_ADMIN")
        }
        KernelError::Errno(Errno::BUSY) => {
            failure.help("another process has the device: 'corewise attach --list' shows which")
        }
        KernelError::Errno(Errno::NOENT | Errno::INVAL) if verb == "detach" => {
            failure.help("'corewise attach --list' shows the devices that are attached")
        }
        _ => failure,
    }
}
