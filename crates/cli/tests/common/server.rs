//! A `corewise up` that runs while a test talks to it. The end of the test kills it by its id.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{COREWISE, Folder, Ran};

/// Longest wait of a test: nothing here takes long, so a longer wait would never end.
const PATIENCE: Duration = Duration::from_secs(300);

/// A running server.
pub struct Server {
    child: Child,
    command: String,
    cwd: PathBuf,
    /// Lines of stdout that weren't read.
    lines: Receiver<String>,
    /// Lines of stdout that were read.
    stdout: String,
    stderr: Option<JoinHandle<String>>,
    /// The `ready` event of a server that was started with `--json`.
    pub ready: Value,
}

impl Server {
    /// Starts `corewise up --json ARGS` in `folder` and waits until it is ready.
    pub fn start(folder: &Folder, args: &[&str]) -> Server {
        // Tests under nohup, as in some CI, would pass an ignored SIGHUP on.
        Server::start_with_hangup(folder, "--default-signal=HUP", args)
    }

    /// Starts a server for which `env` has set the treatment of SIGHUP.
    pub fn start_with_hangup(folder: &Folder, hangup: &str, args: &[&str]) -> Server {
        let mut command = folder.command("env");
        command.args([hangup, COREWISE, "up", "--json"]).args(args);
        let mut server = Server::spawn(command);
        server.wait_ready();
        server
    }

    /// Starts a command without waiting for anything.
    pub fn spawn(mut command: Command) -> Server {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let cwd = command.get_current_dir().map(PathBuf::from).unwrap_or_default();
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let stdout = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        let mut stderr = child.stderr.take().expect("stderr is a pipe");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let stderr = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = stderr.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        Server {
            child,
            command: format!("{command:?}"),
            cwd,
            lines,
            stdout: String::new(),
            stderr: Some(stderr),
            ready: Value::Null,
        }
    }

    /// Waits for a line of stdout for which `wanted` returns true.
    #[track_caller]
    pub fn wait_line(&mut self, what: &str, mut wanted: impl FnMut(&str) -> bool) -> String {
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => {
                    self.stdout.push_str(&line);
                    self.stdout.push('\n');
                    if wanted(&line) {
                        return line;
                    }
                }
                Err(_) => {
                    let _ = self.child.kill();
                    panic!("{what} did not come\n{}", self.collect());
                }
            }
        }
    }

    /// Returns true if there is a line that no test has waited for.
    pub fn has_line(&mut self) -> bool {
        let line = self.lines.try_recv();
        line.map(|line| self.stdout.push_str(&format!("{line}\n"))).is_ok()
    }

    /// Waits for an event of `--json`.
    #[track_caller]
    pub fn wait_event(&mut self, name: &str) -> Value {
        let start = format!("{{\"event\":\"{name}\"");
        let line = self.wait_line(&format!("the event {name}"), |line| line.starts_with(&start));
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// Waits for an event of a mirror, unless it has already happened.
    #[track_caller]
    pub fn wait_mirror(&mut self, what: &str) -> Value {
        let wanted = |line: &str| {
            line.starts_with("{\"event\":\"mirror\"")
                && serde_json::from_str(line).is_ok_and(|event: Value| event["what"] == what)
        };
        let before = self.stdout.lines().find(|line| wanted(line)).map(str::to_string);
        let line = before.unwrap_or_else(|| self.wait_line(&format!("mirror {what}"), wanted));
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    #[track_caller]
    fn wait_ready(&mut self) {
        self.ready = self.wait_event("ready");
    }

    /// Returns the Unix socket of the server.
    pub fn socket(&self) -> PathBuf {
        let socket = self.ready["unix"].as_str();
        PathBuf::from(socket.unwrap_or_else(|| panic!("no Unix socket: {}", self.ready)))
    }

    /// Returns the control socket of the server.
    pub fn control(&self) -> PathBuf {
        let control = self.ready["control"].as_str();
        PathBuf::from(control.unwrap_or_else(|| panic!("no control socket: {}", self.ready)))
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the TCP address of the server.
    pub fn tcp(&self) -> String {
        let address = self.ready["tcp"].as_str();
        address.unwrap_or_else(|| panic!("no TCP address: {}", self.ready)).to_string()
    }

    /// Returns the URI of an export over the Unix socket.
    pub fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket().display())
    }

    /// Returns the URI of an export over TCP.
    pub fn tcp_uri(&self, export: &str) -> String {
        format!("nbd://{}/{export}", self.tcp())
    }

    /// Closes stdout: its next line, and all further ones, have no reader.
    pub fn close_stdout(&mut self) {
        let (_, nothing) = channel();
        // The reading thread ends at the first line that it can't deliver.
        self.lines = nothing;
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("the server is our child and was not waited for");
    }

    /// Sends a signal repeatedly until the server is gone: one that follows another soon doesn't
    /// count.
    pub fn insist(&mut self, signal: Signal) {
        while self.child.try_wait().expect("a child can be waited for").is_none() {
            self.signal(signal);
            std::thread::yield_now();
        }
    }

    /// Kills the server with `kill -9` and waits until it is gone.
    pub fn kill(mut self) {
        self.signal(Signal::KILL);
        self.child.wait().expect("a child can be waited for");
    }

    /// Waits until it ends by itself.
    #[track_caller]
    pub fn wait(mut self) -> Ran {
        // Stdout ends with the server.
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => {
                    self.stdout.push_str(&line);
                    self.stdout.push('\n');
                }
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return self.collect(),
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    let _ = self.child.kill();
                    panic!("it did not end\n{}", self.collect());
                }
            }
        }
    }

    /// Sends SIGTERM and waits for the end.
    #[track_caller]
    pub fn stop(self) -> Ran {
        self.signal(Signal::TERM);
        self.wait()
    }

    fn collect(&mut self) -> Ran {
        let status = self.child.wait().expect("a child can be waited for");
        for line in self.lines.try_iter() {
            self.stdout.push_str(&line);
            self.stdout.push('\n');
        }
        let stderr = self.stderr.take().map(|thread| thread.join().unwrap_or_default());
        Ran {
            command: self.command.clone(),
            cwd: self.cwd.clone(),
            code: status.code(),
            stdout: std::mem::take(&mut self.stdout),
            stderr: stderr.unwrap_or_default(),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // After `wait` the server is gone. std remembers that and sends nothing to an id that is
        // used anew.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
