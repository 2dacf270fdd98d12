//! The end of the control socket that asks.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use corewise::timeline::{duration, markup};
use corewise_server::control::place::{Found, look};
use corewise_server::control::{Question, VERSION, Who};
use serde_json::Value;

use crate::exit::Failure;
use crate::screen;

/// A server that hasn't answered by then hangs.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest answer. That of a server with 512 CPUs and a hundred queues has some megabytes.
const LONGEST_ANSWER: u64 = 256 << 20;

/// A connection to a server.
pub(crate) struct Client {
    stream: BufReader<UnixStream>,
    /// How messages call the server.
    name: String,
    /// Whether it waits for longer than [`PATIENCE`].
    patient: bool,
}

impl Client {
    pub(crate) fn connect(path: PathBuf, name: String) -> Result<Client, Failure> {
        let failed = |why: String| Failure::new(format!("cannot ask {name}: {why}"));
        let stream = match look(&path) {
            Found::Live(stream) => stream,
            Found::Busy => return Err(failed("it is too busy to answer; try again".to_string())),
            Found::Stale => {
                return Err(failed("no process listens on its socket; it was killed".into()));
            }
            Found::Other(error) if error.kind() == ErrorKind::NotFound => {
                return Err(failed(format!("the socket {} does not exist", path.display())));
            }
            Found::Other(error) => return Err(failed(error.to_string())),
        };
        let set = stream.set_read_timeout(Some(PATIENCE));
        set.and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
            .map_err(|error| failed(error.to_string()))?;
        Ok(Client { stream: BufReader::new(stream), name, patient: false })
    }

    /// Asks for something that takes as long as it takes, and says so where that is long.
    pub(crate) fn ask_for_long(&mut self, question: &Question) -> Result<Value, Failure> {
        self.patient = true;
        self.ask(question)
    }

    /// Hears from now on of what happens, and asks no more.
    pub(crate) fn listen(&mut self) -> Result<(), Failure> {
        self.ask(&Question { ask: "events".to_string(), ..Question::dump() }).map(drop)
    }

    /// What happens next, a line of JSON. Waits for it.
    pub(crate) fn next_event(&mut self) -> Result<String, Failure> {
        let failed = |why: String| Failure::new(format!("{}: {why}", self.name));
        let set = self.stream.get_ref().set_read_timeout(None);
        set.map_err(|error| failed(error.to_string()))?;
        let mut line = String::new();
        match (&mut self.stream).take(LONGEST_ANSWER).read_line(&mut line) {
            Ok(_) if line.ends_with('\n') => Ok(line.trim_end().to_string()),
            Ok(_) => Err(failed("it has ended".to_string())),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                Err(failed("it has ended".to_string()))
            }
            Err(error) => Err(failed(error.to_string())),
        }
    }

    /// Asks and waits for the answer. An answer that says why there is none is a failure.
    pub(crate) fn ask(&mut self, question: &Question) -> Result<Value, Failure> {
        let failed = |why: String| Failure::new(format!("{}: {why}", self.name));
        let mut line = serde_json::to_vec(question).map_err(|error| failed(error.to_string()))?;
        line.push(b'\n');
        let words = |error: std::io::Error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                failed(format!("no answer within {}", duration(PATIENCE)))
            }
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => failed("it has ended".into()),
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
            let message = "is still at it; Ctrl-C ends this wait, and not the change";
            screen::warning(format_args!("{name} {message}"));
        }
        if answer.last() != Some(&b'\n') {
            let why = if answer.is_empty() { "it has ended" } else { "it cut its answer short" };
            return Err(failed(why.to_string()));
        }
        let answer: Value = serde_json::from_slice(&answer)
            .map_err(|error| failed(format!("its answer is not JSON: {error}")))?;
        // First: a server of another version may say that it is one.
        if let Some(error) = answer.get("error").and_then(Value::as_str) {
            let lines: Vec<String> = error.lines().map(printable).collect();
            return Err(failed(lines.join("\n")));
        }
        let spoken = who(&answer).corewise;
        if spoken != VERSION {
            return Err(failed(format!(
                "it speaks protocol version {spoken}, and this program version {VERSION}"
            )));
        }
        Ok(answer)
    }
}

/// The server that has answered.
pub(crate) fn who(answer: &Value) -> Who {
    serde_json::from_value(answer.clone()).unwrap_or_default()
}

/// A server in a line.
pub(crate) fn introduction(who: &Who) -> String {
    let up = duration(Duration::try_from_secs_f64(who.up_seconds).unwrap_or_default());
    let (version, manifest) = (printable(&who.version), printable(&who.manifest));
    format!("corewise {version}, process {}, {manifest}, up for {up}", who.pid)
}

/// What the server at `path` says of itself.
pub(crate) fn introduce(pid: u32, path: &Path) -> String {
    let hello = Question { ask: "hello".to_string(), ..Question::dump() };
    let answer = Client::connect(path.to_path_buf(), format!("process {pid}"))
        .and_then(|mut client| client.ask(&hello));
    match answer {
        Ok(answer) => {
            let who = who(&answer);
            let up = duration(Duration::try_from_secs_f64(who.up_seconds).unwrap_or_default());
            format!("{}, up for {up}", printable(&who.manifest))
        }
        Err(_) => "does not answer".to_string(),
    }
}

/// Nothing that a server says moves the cursor.
pub(crate) fn printable(text: &str) -> String {
    markup::printable(text).into_owned()
}
