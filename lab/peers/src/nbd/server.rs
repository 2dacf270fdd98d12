//! The servers: how each is told to serve the same, and what it takes meanwhile.

use std::fmt::Write;
use std::fs::{self, File};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use procfs::ProcResult;
use procfs::process::Process;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use tempfile::TempDir;

use super::client::{Client, clients, leave};
use super::files::Files;
use super::text;
use crate::programs;

/// What is served.
#[derive(Debug, Clone, Copy)]
pub(super) enum Volume<'a> {
    /// So many bytes of memory.
    Memory(u64),
    /// A file; past the page cache where that is true.
    File(&'a Path, bool),
    /// So many files of a folder, [`name`]d one by one.
    Files(&'a Path, u32),
    /// So many volumes of [`SMALL`] bytes, each of which takes 50 ms for each request.
    Slow(u32),
}

/// Where a server listens.
#[derive(Debug)]
enum Address {
    Unix(PathBuf),
    /// A port of this machine.
    Tcp(u16),
}

/// Bytes of one of many volumes.
pub(super) const SMALL: u64 = 1 << 20;

const SLOW: &str = "read_delay = '50ms'\nwrite_delay = '50ms'\nflush_delay = '50ms'";
const SLOW_NBDKIT: &str = "rdelay=50ms\nwdelay=50ms";

/// The name of an export, and of its file.
pub(super) fn name(number: u32) -> String {
    format!("d{number}")
}

/// Only a daemon serves several clients.
const NBD_SERVER: &str = "nbd-server";
/// Runs it, and kills it once the input ends or a signal comes: when it is dropped, and also when
/// its run is killed.
const WATCHED: &str = "trap : INT TERM HUP; \"$@\" || exit; \
                       until id=$(cat \"$5\") && [ \"$id\" ]; do sleep 0.01; done 2>/dev/null; \
                       read line; kill -KILL \"$id\"";

/// How long a server may take to begin.
const BEGIN: Duration = Duration::from_secs(8);

/// How long it may take to end.
const END: Duration = Duration::from_secs(5);

/// A server that runs; dropped it is killed.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    /// Of the server, which may be a daemon that the child has started.
    id: u32,
    address: Address,
    /// Its socket, its manifest, and what it says.
    folder: TempDir,
}

impl Server {
    /// Starts the server that is called so, which isn't ready then.
    pub(super) fn start(
        runtime: &str,
        volume: Volume<'_>,
        tcp: bool,
        files: &Files,
    ) -> Result<Server, String> {
        let folder = tempfile::tempdir_in(files.work()).map_err(text)?;
        // Asked for and given back: somebody may take it, and then the run fails.
        let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
        let port = port.map_err(text)?.port();
        let socket = folder.path().join("s");
        let address = if tcp { Address::Tcp(port) } else { Address::Unix(socket) };
        let arguments = arguments(runtime, volume, &address, port, folder.path())?;
        let said = folder.path().join("said");
        let to = File::create(&said).map_err(text)?;
        raise_files();
        // The server of a run that is killed ends with it.
        let guard: &[&str] = if runtime.starts_with(NBD_SERVER) {
            &["sh", "-c", WATCHED, "sh"]
        } else {
            &["setpriv", "--pdeathsig", "KILL", "--"]
        };
        let mut command = Command::new(guard[0]);
        command.args(&guard[1..]).args(arguments).stdin(Stdio::piped());
        command.stdout(to.try_clone().map_err(text)?).stderr(to);
        let child = command.spawn().map_err(|error| format!("{}: {error}", guard[0]))?;
        Ok(Server { id: child.id(), child, address, folder })
    }

    /// Waits until it serves its first export.
    pub(super) fn wait(&mut self) -> Result<(), String> {
        let (began, name) = (Instant::now(), [name(0)]);
        let ready = || match &self.address {
            Address::Unix(path) => clients(path, &name).and_then(leave),
            Address::Tcp(port) => TcpStream::connect(("127.0.0.1", *port)).map(drop),
        };
        while ready().is_err() {
            if self.child.try_wait().is_ok_and(|end| end.is_some()) || began.elapsed() > BEGIN {
                let said = fs::read_to_string(self.folder.path().join("said")).unwrap_or_default();
                return Err(format!("the server didn't begin: {}", said.trim()));
            }
            sleep(Duration::from_micros(200));
        }
        if let Ok(id) = fs::read_to_string(self.folder.path().join("id")) {
            self.id = id.trim().parse().map_err(text)?;
        }
        Ok(())
    }

    /// Clients by its Unix socket that have been let in, one of each of these exports.
    pub(super) fn clients(&self, names: &[String]) -> Result<Vec<Client>, String> {
        let Address::Unix(path) = &self.address else { return Err("it has no socket".to_owned()) };
        clients(path, names).map_err(text)
    }

    pub(super) fn uri(&self) -> String {
        match &self.address {
            Address::Unix(socket) => format!("nbd+unix:///d0?socket={}", socket.display()),
            Address::Tcp(port) => format!("nbd://127.0.0.1:{port}/d0"),
        }
    }

    /// CPU time so far in ticks of the kernel, with that of the processes it had for its clients;
    /// and its threads.
    pub(super) fn usage(&self) -> (u64, u64) {
        let stats = self.family().into_iter().filter_map(|process| process.stat().ok());
        stats.fold((0, 0), |(ticks, threads), stat| {
            // Of the first those of children that it has waited for, too.
            let is_first = stat.pid.unsigned_abs() == self.id;
            let children = if is_first { stat.cutime + stat.cstime } else { 0 };
            let own = stat.utime + stat.stime + children.unsigned_abs();
            (ticks + own, threads + stat.num_threads.unsigned_abs())
        })
    }

    /// Bytes; those that its processes share count once.
    pub(super) fn memory(&self) -> u64 {
        let of = |process: Process| {
            let all = process.smaps_rollup().ok()?.memory_map_rollup;
            all.0.first()?.extension.map.get("Pss").copied()
        };
        self.family().into_iter().filter_map(of).sum()
    }

    /// The server and its children, one for each client of nbd-server.
    fn family(&self) -> Vec<Process> {
        let children = process(self.id).and_then(|own| own.task_main_thread()?.children());
        let all = std::iter::once(self.id).chain(children.unwrap_or_default());
        all.filter_map(|id| process(id).ok()).collect()
    }

    /// CPU time in nanoseconds since so many ticks, once it is rid of its clients.
    pub(super) fn cpu_since(&self, ticks: u64) -> f64 {
        let began = Instant::now();
        while self.family().len() > 1 && began.elapsed() < Duration::from_secs(1) {
            sleep(Duration::from_millis(1));
        }
        let per_second = procfs::ticks_per_second() as f64;
        (self.usage().0 - ticks) as f64 * 1e9 / per_second
    }

    /// From SIGTERM to its end.
    pub(super) fn stop(&mut self) -> Result<Duration, String> {
        let began = Instant::now();
        let id = Pid::from_raw(self.id as i32).ok_or("it has no number")?;
        kill_process(id, Signal::TERM).map_err(text)?;
        while process(self.id).and_then(|own| own.stat()).is_ok_and(|stat| stat.state != 'Z') {
            if began.elapsed() > END {
                return Err(format!("it is still there {} s after SIGTERM", END.as_secs()));
            }
            sleep(Duration::from_micros(200));
        }
        let took = began.elapsed();
        self.id = self.child.id();
        Ok(took)
    }
}

fn process(id: u32) -> ProcResult<Process> {
    Process::new(id.try_into().unwrap_or(0))
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended. A daemon that hasn't is ended by its watcher, whose input ends.
        if self.id == self.child.id() {
            let _ = self.child.kill();
        }
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// A thousand files and connections are more than the usual limit; servers inherit it.
fn raise_files() {
    let limit = getrlimit(Resource::Nofile);
    // Where it may not be, servers say what they lack.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// The program and its arguments: the best way that its manual names.
fn arguments(
    runtime: &str,
    volume: Volume<'_>,
    address: &Address,
    port: u16,
    folder: &Path,
) -> Result<Vec<String>, String> {
    let at = |path: &Path| path.display().to_string();
    let (program, variant) = match runtime.rsplit_once('-') {
        Some((program, variant @ ("t4" | "threads" | "native" | "splice"))) => (program, variant),
        _ => (runtime, ""),
    };
    let file = |number: u32| match volume {
        Volume::File(path, _) => at(path),
        Volume::Files(folder, _) => at(&folder.join(name(number))),
        _ => String::new(),
    };
    let count = if let Volume::Files(_, count) | Volume::Slow(count) = volume { count } else { 1 };
    let direct = matches!(volume, Volume::File(_, true));
    let aio = if variant.is_empty() { "io_uring" } else { variant };
    let write = |name: &str, content: String| {
        let path = folder.join(name);
        fs::write(&path, content).map_err(text)?;
        Ok::<String, String>(at(&path))
    };
    // How each is told a socket, and how an address and, behind it, a port.
    let by = |unix: &str, tcp: &str, behind: &str| match address {
        Address::Unix(socket) => format!("{unix}{}", at(socket)),
        Address::Tcp(port) => format!("{tcp}127.0.0.1{behind}{port}"),
    };
    let own = || programs::beside("corewise").map(|path| at(&path));
    let path = if program == "corewise" { own()? } else { program.to_owned() };
    let mut words = vec![path];
    // A word a line.
    let mut add = |lines: String| words.extend(lines.lines().map(str::to_owned));
    match program {
        "corewise" => {
            let listen = by("unix = '", "tcp = '", ":");
            let mut text = format!("[server]\n{listen}'\ncontrol = '{}'\n", at(&folder.join("c")));
            let io = if variant == "threads" { "io = 'threads'" } else { "" };
            for number in 0..count {
                let name = name(number);
                let file = file(number);
                let device = match volume {
                    Volume::Memory(size) => format!("driver = 'memory'\nsize = {size}"),
                    Volume::Slow(_) => format!("driver = 'delay'\nover = ['m{name}']\n{SLOW}"),
                    _ => format!("driver = 'file'\npath = '{file}'\ndirect = {direct}\n{io}"),
                };
                if let Volume::Slow(_) = volume {
                    let memory = format!("name = 'm{name}'\ndriver = 'memory'\nsize = {SMALL}");
                    let _ = writeln!(text, "[[device]]\n{memory}");
                }
                let export = format!("[[export]]\ndevice = '{name}'");
                let _ = writeln!(text, "[[device]]\nname = '{name}'\n{device}\n{export}");
            }
            add(format!("up\n{}", write("up.toml", text)?));
        }
        "nbdkit" => {
            // So many for each client: where there are a thousand clients of one request, one.
            let one = if variant == "t4" { 4 } else { 16 };
            let threads = if count > 1 { 1 } else { one };
            add(format!("--foreground\n--threads\n{threads}"));
            add(by("--unix\n", "--ipaddr\n", "\n--port\n"));
            add(match volume {
                Volume::Memory(size) => format!("memory\n{size}"),
                Volume::File(..) => format!("file\n{}", file(0)),
                Volume::Files(folder, _) => format!("file\ndir={}", at(folder)),
                Volume::Slow(_) => format!("--filter=delay\nmemory\n{SMALL}\n{SLOW_NBDKIT}"),
            });
        }
        "qemu-nbd" => {
            let cache = if direct { "none" } else { "writeback" };
            add("--persistent\n--shared=0\n--format=raw\n--export-name=d0".to_owned());
            let listen = by("--socket=", "--bind=", "\n--port=");
            add(format!("--aio={aio}\n--cache={cache}\n{listen}\n{}", file(0)));
        }
        // Without an iothread: with one Debian 12's aborts when a client closes, and one loop is
        // one loop.
        "qemu-storage-daemon" => {
            let listen = by("unix,addr.path=", "inet,addr.host=", ",addr.port=");
            add(format!("--nbd-server\nmax-connections=0,addr.type={listen}"));
            let cache = if direct { "on" } else { "off" };
            for number in 0..count {
                let name = name(number);
                let node = match volume {
                    Volume::Slow(_) => format!("null-co,size={SMALL},latency-ns=50000000"),
                    _ => format!("file,filename={},aio={aio},cache.direct={cache}", file(number)),
                };
                let export =
                    format!("type=nbd,id=e{name},node-name={name},name={name},writable=on");
                add(format!("--blockdev\nnode-name={name},driver={node}\n--export\n{export}"));
            }
        }
        _ => {
            let listen = by("unixsock = ", "# ", " ");
            let mut text = format!("[generic]\nlistenaddr = 127.0.0.1\nport = {port}\n{listen}\n");
            for number in 0..count {
                let (name, file, splice) = (name(number), file(number), variant == "splice");
                let _ = writeln!(text, "[{name}]\nexportname = {file}\nsplice = {splice}");
            }
            let id = at(&folder.join("id"));
            add(format!("-C\n{}\n-p\n{id}", write("config", text)?));
        }
    }
    Ok(words)
}
