//! The client of the control socket: finds the server, sends a question, and prints the answer.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use corewise::timeline::{duration, markup};
use corewise_server::control::place::{self, SocketState, probe};
use corewise_server::control::{Question, ServerInfo, VERSION};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::args::ServerArgs;
use crate::exit::Failure;
use crate::{escape, screen};

/// Longest wait for an answer: a server that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest answer, in bytes. A server with 512 CPUs and a hundred queues answers some megabytes.
const LONGEST_ANSWER: u64 = 256 << 20;

/// A connection to a server.
pub(crate) struct Client {
    stream: BufReader<UnixStream>,
    /// Path of the server's socket.
    path: PathBuf,
    /// Name of the server in messages.
    name: String,
    /// True if the client waits longer than [`PATIENCE`].
    patient: bool,
}

impl Client {
    /// Connects to the server that these flags name.
    pub(crate) fn find(server: &ServerArgs) -> Result<Client, Failure> {
        let (path, name) = find(server)?;
        Client::connect(path, name)
    }

    /// Connects to all servers of this user that answer.
    pub(crate) fn all() -> Vec<Client> {
        let servers = place::servers(&place::folders()).into_iter();
        let connect = |(pid, path)| Client::connect(path, format!("process {pid}")).ok();
        servers.filter_map(connect).collect()
    }

    /// Opens one more connection to the same server.
    pub(crate) fn another(&self) -> Result<Client, Failure> {
        Client::connect(self.path.clone(), self.name.clone())
    }

    fn connect(path: PathBuf, name: String) -> Result<Client, Failure> {
        let failed = |why: String| Failure::new(format!("cannot reach {name}: {why}"));
        let stream = match probe(&path) {
            SocketState::Live(stream) => stream,
            SocketState::Busy => {
                return Err(failed("the server is too busy to answer; try again".to_string()));
            }
            SocketState::Stale => {
                return Err(failed(
                    "the server was killed: no process listens on the socket. Start the server again".into(),
                ));
            }
            SocketState::Other(error) if error.kind() == ErrorKind::NotFound => {
                return Err(failed(format!("the socket {} does not exist", path.display())));
            }
            SocketState::Other(error) => return Err(failed(error.to_string())),
        };
        let set = stream.set_read_timeout(Some(PATIENCE));
        set.and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
            .map_err(|error| failed(error.to_string()))?;
        Ok(Client { stream: BufReader::new(stream), path, name, patient: false })
    }

    /// Sends a question with an answer that may take any time, and tells the user if it takes long.
    pub(crate) fn ask_for_long(&mut self, question: &Question) -> Result<Value, Failure> {
        self.patient = true;
        self.ask(question)
    }

    /// Subscribes to events. The connection takes no more questions.
    pub(crate) fn listen(&mut self) -> Result<(), Failure> {
        self.ask(&Question::new("events")).map(drop)
    }

    /// Returns the next event, a line of JSON. Waits for it.
    pub(crate) fn next_event(&mut self) -> Result<String, Failure> {
        let failed = |why: String| Failure::new(format!("{}: {why}", self.name));
        let set = self.stream.get_ref().set_read_timeout(None);
        set.map_err(|error| failed(error.to_string()))?;
        let mut line = String::new();
        match (&mut self.stream).take(LONGEST_ANSWER).read_line(&mut line) {
            Ok(_) if line.ends_with('\n') => Ok(line.trim_end().to_string()),
            Ok(_) => Err(failed("the server has ended".to_string())),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                Err(failed("the server has ended".to_string()))
            }
            Err(error) => Err(failed(error.to_string())),
        }
    }

    /// Sends a question and waits for the answer. An answer with an error is a failure.
    pub(crate) fn ask(&mut self, question: &Question) -> Result<Value, Failure> {
        let failed = |why: String| Failure::new(format!("{}: {why}", self.name));
        let mut line = serde_json::to_vec(question).map_err(|error| failed(error.to_string()))?;
        line.push(b'\n');
        let words = |error: std::io::Error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                failed(format!("no answer within {}", duration(PATIENCE)))
            }
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
                failed("the server has ended".into())
            }
            _ => failed(error.to_string()),
        };
        self.stream.get_mut().write_all(&line).map_err(words)?;
        let mut answer = Vec::new();
        while let Err(error) =
            (&mut self.stream).take(LONGEST_ANSWER).read_until(b'\n', &mut answer)
        {
            if !(self.patient
                && matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
            {
                return Err(words(error));
            }
            let name = &self.name;
            let message = "is still working on the change; Ctrl-C ends only the wait";
            screen::warning(format_args!("{name} {message}"));
        }
        if answer.last() != Some(&b'\n') {
            let why = if answer.is_empty() {
                "the server has ended"
            } else {
                "the server sent only a part of its answer"
            };
            return Err(failed(why.to_string()));
        }
        let answer: Value = serde_json::from_slice(&answer)
            .map_err(|error| failed(format!("the server's answer is not JSON: {error}")))?;
        // Checked first: a server of another version may report that as an error.
        if let Some(error) = answer.get("error").and_then(Value::as_str) {
            let lines: Vec<String> = error.lines().map(printable).collect();
            return Err(failed(lines.join("\n")));
        }
        let spoken = who(&answer).corewise;
        if spoken != VERSION {
            return Err(failed(format!(
                "the server speaks protocol version {spoken}, and this program version {VERSION}; \
                 use the `corewise` that runs the server"
            )));
        }
        Ok(answer)
    }
}

/// Returns the server's information from an answer.
pub(crate) fn who(answer: &Value) -> ServerInfo {
    serde_json::from_value(answer.clone()).unwrap_or_default()
}

/// Returns one line about a server.
pub(crate) fn introduction(who: &ServerInfo) -> String {
    let up = duration(Duration::try_from_secs_f64(who.up_seconds).unwrap_or_default());
    let (version, manifest) = (printable(&who.version), printable(&who.manifest));
    format!("corewise {version}, process {}, {manifest}, up for {up}", who.pid)
}

/// Returns one line about the server with the socket `path`.
fn introduce(pid: u32, path: &Path) -> String {
    let answer = Client::connect(path.to_path_buf(), format!("process {pid}"))
        .and_then(|mut client| client.ask(&Question::new("hello")));
    match answer {
        Ok(answer) => {
            let who = who(&answer);
            let up = duration(Duration::try_from_secs_f64(who.up_seconds).unwrap_or_default());
            format!("{}, up for {up}", printable(&who.manifest))
        }
        Err(_) => "does not answer".to_string(),
    }
}

/// Returns a server's text without characters that would move the cursor.
pub(crate) fn printable(text: &str) -> String {
    markup::printable(text).into_owned()
}

/// Reads the part of an answer under `key`.
pub(crate) fn part<T: DeserializeOwned>(answer: &Value, key: &str) -> Result<T, Failure> {
    serde_json::from_value(answer[key].clone())
        .map_err(|error| Failure::new(format!("the answer has no valid '{key}': {error}")))
}

/// Prints an answer on stdout, as one JSON document or as `text` writes it.
pub(crate) fn print(
    answer: &Value,
    json: bool,
    text: impl FnOnce(&mut dyn Write) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    match json {
        true => writeln!(out, "{}", escape::pretty(answer)?)?,
        false => text(&mut out)?,
    }
    Ok(out.flush()?)
}

/// Writes lines from the server.
pub(crate) fn write_lines(out: &mut dyn Write, lines: &str) -> Result<(), Failure> {
    for line in lines.lines() {
        writeln!(out, "{}", printable(line))?;
    }
    Ok(())
}

/// Returns the socket of the server that the flags name, and the server's name in messages.
fn find(args: &ServerArgs) -> Result<(PathBuf, String), Failure> {
    if let Some(path) = &args.control {
        return Ok((path.clone(), format!("the server at {}", path.display())));
    }
    let folders = place::folders();
    let servers = place::servers(&folders);
    let looked: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    let looked = looked.join(" and ");
    if let Some(pid) = args.pid {
        let found = servers.into_iter().find(|(known, _)| *known == pid);
        let Some((_, path)) = found else {
            return Err(Failure::new(format!("process {pid} has no control socket in {looked}"))
                .help("use --control PATH for a server of another user or in another place"));
        };
        return Ok((path, format!("process {pid}")));
    }
    match &servers[..] {
        [] => Err(Failure::new(format!("found no running `corewise up` in {looked}"))
            .help("use --control PATH for a server of another user or in another place")),
        [(pid, path)] => Ok((path.clone(), format!("process {pid}"))),
        several => {
            let mut lines = format!("{} servers run; choose one with --pid", several.len());
            for (pid, path) in several {
                lines.push_str(&format!("\n  --pid {pid:<8} {}", introduce(*pid, path)));
            }
            Err(Failure::new(lines))
        }
    }
}
