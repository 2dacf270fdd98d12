//! `corewise attach` and `corewise detach`: an export as a disk of this machine, by Linux's client.
//!
//! The kernel has the sockets and speaks NBD's transmission phase. This process makes the
//! connections, replaces each one that dies, and encrypts those that use TLS.

mod devices;
mod netlink;

use std::io::{IsTerminal, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use corewise::nbd::{RemoteOptions, RemoteSession, Uri};
use corewise_server::units;
use rustix::io::Errno;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::args;
use crate::exit::Failure;
use crate::screen;
use devices::{Device, SECTOR, is_in_use};
use netlink::{KernelClient, KernelError, NewDevice};

/// Pause after the first failed attempt to connect; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// Time between two looks whether the device was detached, of which the kernel tells nobody.
const LOOK: Duration = Duration::from_secs(10);
/// Seconds that requests wait for a connection, unless the user says else: a hundred years.
const FOREVER: u64 = 100 * 366 * 24 * 3600;
/// Block sizes that the kernel's client has.
const BLOCK_SIZES: std::ops::RangeInclusive<u32> = 512..=4096;
/// Bit of the transmission flags by which an export refuses changes.
const READ_ONLY: u16 = 1 << 1;
/// Bits of the transmission flags that the kernel doesn't learn anew: abilities on which it relies.
const ABILITIES: u16 = 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 8;

/// Something that happens while a device is attached.
enum Happening {
    /// A connection of the device died.
    Dead,
    /// A signal asks for the end.
    Stop,
}

/// An attached device, and what its connections are made with.
struct Attached<'a> {
    kernel: KernelClient,
    uri: &'a Uri,
    options: RemoteOptions,
    index: u32,
    /// Size in bytes that the kernel knows.
    size: u64,
    /// Transmission flags that the kernel knows.
    flags: u16,
}

pub(crate) fn attach(args: &args::Attach) -> Result<(), Failure> {
    let uri = match &args.uri {
        Some(uri) if !args.list => uri,
        _ => return list(args.json),
    };
    if args.daemon {
        return in_the_background();
    }
    let options = options(args, uri)?;
    let kernel = KernelClient::open().map_err(|error| refused("attach", &error))?;
    let (tell, happenings) = channel();
    let mut dead = kernel.dead_links().map_err(|error| refused("attach", &error))?;
    let attached = match args.device.and_then(Device::of) {
        Some(device) => take_over(kernel, uri, options, &device, args.connections)?,
        None => begin(kernel, uri, options, args)?,
    };
    watch_signals(tell.clone())?;
    let index = attached.index;
    std::thread::Builder::new()
        .name("dead-links".to_string())
        .spawn(move || {
            while let Some(device) = dead.next() {
                if device == index && tell.send(Happening::Dead).is_err() {
                    return;
                }
            }
        })
        .map_err(|error| Failure::new(format!("cannot start a thread: {error}")))?;
    attached.keep(&happenings)
}

pub(crate) fn detach(args: &args::Detach) -> Result<(), Failure> {
    let name = devices::path(args.device);
    if Device::of(args.device).is_none() {
        return Err(Failure::new(format!("{name} is not attached"))
            .help("'corewise attach --list' shows the devices that are"));
    }
    let in_use = is_in_use(args.device);
    if in_use && !args.force {
        return Err(Failure::new(format!("{name} is in use")).help(
            "unmount what is on it first; --force detaches it all the same, with I/O errors",
        ));
    }
    let kernel = KernelClient::open().map_err(|error| refused("detach", &error))?;
    kernel.detach(args.device).map_err(|error| refused("detach", &error))?;
    println!("detached {name}");
    Ok(())
}

fn list(json: bool) -> Result<(), Failure> {
    let devices = Device::all();
    if json {
        println!("{}", serde_json::to_string_pretty(&serde_json::json!({ "devices": devices }))?);
    } else if devices.is_empty() {
        println!("no device is attached");
    } else {
        let mut rows = vec![["device", "size", "process", "export"].map(str::to_string)];
        rows.extend(devices.iter().map(Device::row));
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
        let widths = [0, 1, 2].map(|column| width(column).unwrap_or(0));
        for [device, size, process, export] in &rows {
            let [first, second, third] = widths;
            println!("{device:first$}  {size:>second$}  {process:>third$}  {export}");
        }
    }
    Ok(())
}

/// Starts the same command without `--daemon`, and returns once its device is attached.
fn in_the_background() -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::new(format!("cannot start the daemon: {error}"));
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != "--daemon");
    let mut child = Command::new(std::env::current_exe().map_err(failed)?)
        .args(arguments)
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
        // It has said why.
        let _ = child.wait();
        return Err(Failure::Reported);
    }
    print!("{first}");
    Ok(())
}

fn options(args: &args::Attach, uri: &Uri) -> Result<RemoteOptions, Failure> {
    let options = RemoteOptions::new(uri.clone()).timeout(args.timeout);
    let read = |path: &Path| {
        std::fs::read(path)
            .map_err(|error| Failure::new(format!("cannot read '{}': {error}", path.display())))
    };
    let Some(ca) = &args.ca else { return Ok(options) };
    let ca = read(ca)?;
    let pair = args.certificate.as_deref().zip(args.key.as_deref());
    let identity =
        pair.map(|(certificate, key)| Ok::<_, Failure>((read(certificate)?, read(key)?)));
    let identity = identity.transpose()?;
    with_tls(options, &ca, identity.as_ref().map(|(one, other)| (&one[..], &other[..])))
}

#[cfg(feature = "tls")]
fn with_tls(
    options: RemoteOptions,
    ca: &[u8],
    identity: Option<(&[u8], &[u8])>,
) -> Result<RemoteOptions, Failure> {
    let tls = corewise::nbd::RemoteTls::from_pem(ca, identity);
    Ok(options.tls(tls.map_err(|error| Failure::new(error.to_string()))?))
}

#[cfg(not(feature = "tls"))]
fn with_tls(
    _: RemoteOptions,
    _: &[u8],
    _: Option<(&[u8], &[u8])>,
) -> Result<RemoteOptions, Failure> {
    Err(Failure::new("this program was built without TLS"))
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
    let flags = if read_only { first.flags() | READ_ONLY } else { first.flags() };
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
    let connections = sessions.len();
    let sockets = sessions.into_iter().map(socket).collect::<Result<Vec<_>, _>>()?;
    let device = NewDevice {
        index: args.device,
        size,
        block_size: u64::from(block),
        flags: u64::from(flags),
        timeout: args.timeout.as_secs().max(1),
        dead_timeout: args.wait.map_or(FOREVER, |wait| wait.as_secs().max(1)),
        backend: &uri.to_string(),
    };
    let index = kernel.attach(&device, &sockets).map_err(|error| refused("attach", &error))?;
    let several = if connections == 1 { "connection" } else { "connections" };
    let writes = if read_only { ", read-only" } else { "" };
    let (path, size_text) = (devices::path(index), units::size(size));
    println!("attached {path}: {size_text}{writes}, {connections} {several} to {uri}");
    Ok(Attached { kernel, uri, options, index, size, flags })
}

/// Continues with a device that an earlier process attached, and that has lost its connections or
/// will lose them. Makes up to `connections` new ones; the kernel takes as many as are dead.
fn take_over<'a>(
    kernel: KernelClient,
    uri: &'a Uri,
    options: RemoteOptions,
    device: &Device,
    connections: u16,
) -> Result<Attached<'a>, Failure> {
    let path = devices::path(device.index);
    if device.export.as_deref() != Some(&*uri.to_string()) {
        let what = device.export.as_deref().unwrap_or("another export");
        return Err(Failure::new(format!("{path} is attached to {what}"))
            .help(format!("'corewise detach {path}' first, or leave the device out")));
    }
    if device.has_owner() {
        let message = format!("{path} is attached already, by process {}", device.process);
        return Err(Failure::new(message).help("leave the device out to attach another one"));
    }
    let session = RemoteSession::open(&options).map_err(|error| Failure::new(error.to_string()))?;
    let several = if session.can_multi_conn() { connections } else { 1 };
    let (index, size, flags) = (device.index, device.size, session.flags());
    let mut attached = Attached { kernel, uri, options, index, size, flags };
    let mut next = Some(session);
    for _ in 0..several {
        let Some(session) = next.take() else { break };
        attached.replace(session).map_err(|why| Failure::new(format!("{path}: {why}")))?;
        next = RemoteSession::open(&attached.options).ok();
    }
    println!("took over {path}: {}", units::size(attached.size));
    Ok(attached)
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
        let _ = std::io::stdout().flush();
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
        loop {
            match happenings.recv_timeout(LOOK) {
                Ok(Happening::Dead) => {
                    if !self.reconnect(happenings) {
                        return self.end();
                    }
                }
                Ok(Happening::Stop) | Err(RecvTimeoutError::Disconnected) => return self.end(),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if !self.is_attached() {
                println!("{} was detached", devices::path(self.index));
                return Ok(());
            }
        }
    }

    fn is_attached(&self) -> bool {
        let now = Device::of(self.index);
        now.is_some_and(|now| now.export.is_none_or(|export| export == self.uri.to_string()))
    }

    /// Replaces a dead connection, and those that die meanwhile, however long that takes. Returns
    /// false if a signal came.
    fn reconnect(&mut self, happenings: &Receiver<Happening>) -> bool {
        let (mut dead, mut pause, mut told) = (1, FIRST_PAUSE, String::new());
        while dead > 0 && self.is_attached() {
            let session = RemoteSession::open(&self.options).map_err(|error| error.to_string());
            let why = match session.and_then(|session| self.replace(session)) {
                Ok(()) => {
                    tracing::info!(device = devices::path(self.index), "a connection was replaced");
                    (dead, pause, told) = (dead - 1, FIRST_PAUSE, String::new());
                    continue;
                }
                Err(why) => why,
            };
            if why != told {
                screen::warning(format_args!("{}: {why}; trying again", devices::path(self.index)));
                told = why;
            }
            match happenings.recv_timeout(pause) {
                Ok(Happening::Dead) => dead += 1,
                Ok(Happening::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) => pause = (pause * 2).min(LONGEST_PAUSE),
            }
        }
        true
    }

    /// Gives the kernel this connection in place of a dead one. If none is dead, the kernel closes
    /// it.
    fn replace(&mut self, session: RemoteSession) -> Result<(), String> {
        let size = sectors(session.size());
        if size < self.size {
            return Err(format!(
                "the export has {} now, and the device {}: a device in use can't become smaller",
                units::size(size),
                units::size(self.size)
            ));
        }
        let lost = self.flags & ABILITIES & !session.flags();
        if lost != 0 || session.read_only() && self.flags & READ_ONLY == 0 {
            return Err(
                "the export no longer supports all that the device was attached with".to_string()
            );
        }
        let socket = socket(session).map_err(|failure| failure.words())?;
        let grown = (size > self.size).then_some(size);
        let backend = self.uri.to_string();
        let replaced = self.kernel.replace(self.index, &socket, grown, &backend);
        replaced.map_err(|error| words(&error))?;
        if grown.is_some() {
            let (path, before) = (devices::path(self.index), units::size(self.size));
            println!("{path} grew from {before} to {}", units::size(size));
        }
        self.size = size;
        Ok(())
    }

    /// Detaches the device, unless it is in use.
    fn end(self) -> Result<(), Failure> {
        let path = devices::path(self.index);
        if is_in_use(self.index) {
            screen::warning(format_args!("{path} is in use, so it stays attached"));
            screen::help(format_args!(
                "'corewise attach {} {path}' takes over its connections; unmount it, then \
                 'corewise detach {path}'",
                self.uri
            ));
            return Ok(());
        }
        match self.kernel.detach(self.index) {
            Ok(()) => println!("detached {path}"),
            // Another process was faster.
            Err(KernelError::Errno(Errno::INVAL | Errno::NOENT)) => {}
            Err(error) => return Err(refused("detach", &error)),
        }
        Ok(())
    }
}

fn watch_signals(tell: Sender<Happening>) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::new(format!("cannot wait for signals: {error}"));
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
    let run = move || {
        for _ in signals.forever() {
            if tell.send(Happening::Stop).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("signals".to_string()).spawn(run).map_err(failed)?;
    // Ctrl-C is for people; a service manager has its own way.
    if std::io::stderr().is_terminal() {
        tracing::info!("Ctrl-C detaches the device");
    }
    Ok(())
}

fn words(error: &KernelError) -> String {
    match error {
        KernelError::NoClient => "the kernel has no NBD client".to_string(),
        KernelError::Errno(error) => format!("the kernel refuses this: {error}"),
        KernelError::Protocol(why) => format!("cannot talk to the kernel's NBD client: {why}"),
    }
}

/// Returns the failure of a command, with what to do about it.
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
