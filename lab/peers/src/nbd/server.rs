//! The servers: the arguments with which each serves the same volumes, and its use of CPU and
//! memory meanwhile.

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

/// The served volumes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Volume<'a> {
    /// A number of bytes of memory.
    Memory(u64),
    /// A file, opened past the page cache if the flag is true.
    File(&'a Path, bool),
    /// A number of files of a folder, named by [`name`].
    Files(&'a Path, u32),
    /// A number of volumes of [`SMALL`] bytes, which take 50 ms for each request.
    Slow(u32),
}

/// The address of a server.
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

/// Returns the name of an export, which is also its file's.
pub(super) fn name(number: u32) -> String {
    format!("d{number}")
}

/// The server that serves several clients only as a daemon.
const NBD_SERVER: &str = "nbd-server";
/// Shell script that runs the server, and kills it once the input ends or a signal comes. So the
/// server ends when the [`Server`] is dropped, and also when its run is killed.
const WATCHED: &str = "trap : INT TERM HUP; \"$@\" || exit; \
                       until id=$(cat \"$5\") && [ \"$id\" ]; do sleep 0.01; done 2>/dev/null; \
                       read line; kill -KILL \"$id\"";

/// Time that a server may take to begin.
const BEGIN: Duration = Duration::from_secs(8);

/// Time that a server may take to end.
const END: Duration = Duration::from_secs(5);

/// A running server. Dropping it kills the server.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    /// The process of the server, which may be a daemon that the child has started.
    id: u32,
    address: Address,
    /// The folder of its socket, its manifest and its output.
    folder: TempDir,
}

impl Server {
    /// Starts the server of this name, and doesn't wait until it is ready.
    pub(super) fn start(
        runtime: &str,
        volume: Volume<'_>,
        tcp: bool,
        files: &Files,
    ) -> Result<Server, String> {
        let folder = tempfile::tempdir_in(files.work()).map_err(text)?;
        // The port is free, but another process may take it before the server, and then the run
        // fails.
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

    /// Waits until the server serves its first export.
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

    /// Connects a client of each of these exports, by the server's Unix socket.
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

    /// Returns the CPU time so far in ticks of the kernel, including the processes for clients, and
    /// the number of threads.
    pub(super) fn usage(&self) -> (u64, u64) {
        let stats = self.family().into_iter().filter_map(|process| process.stat().ok());
        stats.fold((0, 0), |(ticks, threads), stat| {
            // The first process's own ticks include its children's for which it has waited.
            let is_first = stat.pid.unsigned_abs() == self.id;
            let children = if is_first { stat.cutime + stat.cstime } else { 0 };
            let own = stat.utime + stat.stime + children.unsigned_abs();
            (ticks + own, threads + stat.num_threads.unsigned_abs())
        })
    }

    /// Returns the bytes of memory. Bytes that its processes share count once.
    pub(super) fn memory(&self) -> u64 {
        let of = |process: Process| {
            let all = process.smaps_rollup().ok()?.memory_map_rollup;
            all.0.first()?.extension.map.get("Pss").copied()
        };
        self.family().into_iter().filter_map(of).sum()
    }

    /// Returns the server and its children: nbd-server has one for each client.
    fn family(&self) -> Vec<Process> {
        let children = process(self.id).and_then(|own| own.task_main_thread()?.children());
        let all = std::iter::once(self.id).chain(children.unwrap_or_default());
        all.filter_map(|id| process(id).ok()).collect()
    }

    /// Returns the CPU time in nanoseconds since this number of ticks, once the clients are gone.
    pub(super) fn cpu_since(&self, ticks: u64) -> f64 {
        let began = Instant::now();
        while self.family().len() > 1 && began.elapsed() < Duration::from_secs(1) {
            sleep(Duration::from_millis(1));
        }
        let per_second = procfs::ticks_per_second() as f64;
        (self.usage().0 - ticks) as f64 * 1e9 / per_second
    }

    /// Stops the server, and returns the time from SIGTERM to its end.
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
        // The server may have ended. A daemon that hasn't is ended by its watcher, whose input
        // ends.
        if self.id == self.child.id() {
            let _ = self.child.kill();
        }
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Raises the limit of open files, which servers inherit: a thousand files and connections are
/// more than usual.
fn raise_files() {
    let limit = getrlimit(Resource::Nofile);
    // If the process may not, servers report what they lack.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Returns the program and its arguments: the fastest configuration that its manual names.
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
    // The arguments for a socket, and for an address and the port behind it.
    let by = |unix: &str, tcp: &str, behind: &str| match address {
        Address::Unix(socket) => format!("{unix}{}", at(socket)),
        Address::Tcp(port) => format!("{tcp}127.0.0.1{behind}{port}"),
    };
    let own = || programs::beside("corewise").map(|path| at(&path));
    let path = if program == "corewise" { own()? } else { program.to_owned() };
    let mut words = vec![path];
    // Each line is one word.
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
            // The threads of each client. With a thousand clients of one request, one is enough.
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
        // It has no iothread: with one, Debian 12's version aborts when a client closes. Its main
        // loop is as good as one.
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
