//! The listener of the metrics: as much of HTTP/1.1 as a scraper of Prometheus needs, on one
//! thread, if the manifest asks for it.
//!
//! Scrapers can't hurt the server. There are at most [`SCRAPERS`] at a time, and each has
//! [`PATIENCE`] to ask and to take its answer. The metrics are rebuilt at most ten times a second.
//! Scrapers can't hurt each other, either: a new one replaces the one that has been silent for
//! longest. It waits in the system's queue only if all others are being answered.

use std::fmt::Write as _;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use corewise::sync::time::PausableClock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::cleanup::Cleanup;
use crate::listen;
use crate::manifest::MetricsAt;
use crate::report::Report;
use crate::threads::ListenerThread;

/// Most connections at a time.
const SCRAPERS: usize = 8;
/// Time that a scraper has in all.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest head of a request, in bytes.
const LONGEST_HEAD: usize = 8 << 10;
/// Greatest age of the metrics in an answer.
const FRESH: Duration = Duration::from_millis(100);
/// Pause after a failed accept.
const PAUSE: Duration = Duration::from_millis(100);

/// A listening socket that no thread answers yet.
#[derive(Debug)]
pub(crate) struct BoundMetrics {
    listener: Listener,
    /// Address in words.
    address: String,
    socket: Option<OwnSocket>,
}

/// A Unix socket, which is removed when this is dropped.
#[derive(Debug)]
struct OwnSocket {
    path: PathBuf,
    cleanup: Arc<Cleanup>,
}

impl Drop for OwnSocket {
    fn drop(&mut self) {
        // An error means that another program has removed the socket, or that the folder is
        // read-only. No process listens there.
        let _ = self.cleanup.remove_socket(&self.path);
    }
}

#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        }
    }
}

/// Binds the socket.
pub(crate) fn bind(
    at: &MetricsAt,
    cleanup: &Arc<Cleanup>,
    report: &Report,
) -> Result<BoundMetrics, String> {
    match at {
        MetricsAt::Tcp(address) => {
            let bound = TcpListener::bind(listen::host_and_port(address)).and_then(|listener| {
                let address = listener.local_addr()?;
                Ok((listener, address))
            });
            let (listener, address) = bound.map_err(|error| format!("{address}: {error}"))?;
            warn_of(address, report);
            let address = address.to_string().replace('%', "%25");
            let address = format!("http://{address}/metrics");
            Ok(BoundMetrics { listener: Listener::Tcp(listener), address, socket: None })
        }
        MetricsAt::Unix(path) => {
            listen::unix_for_owner(path, cleanup).map(|listener| BoundMetrics {
                listener: Listener::Unix(listener),
                address: path.display().to_string(),
                socket: Some(OwnSocket { path: path.clone(), cleanup: Arc::clone(cleanup) }),
            })
        }
    }
}

fn warn_of(address: SocketAddr, report: &Report) {
    if !address.ip().is_loopback() {
        report.warning(format_args!(
            "{address} shows metrics to other machines: the names of exports and the activity of \
             clients"
        ));
    }
}

/// A function that returns the text of metrics.
pub(crate) type MetricsText = Arc<dyn Fn() -> String + Send + Sync>;

/// The thread that answers. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct MetricsListener {
    _thread: ListenerThread,
    address: String,
    /// The Unix socket, dropped after the thread, which ends first.
    socket: Option<OwnSocket>,
}

impl MetricsListener {
    /// Returns the path of a Unix socket.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.socket.as_ref().map(|socket| &*socket.path)
    }

    /// Returns the address in words.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Starts to answer with the result of `text`.
    pub(crate) fn start(
        bound: BoundMetrics,
        text: impl Fn() -> String + Send + 'static,
    ) -> io::Result<MetricsListener> {
        match &bound.listener {
            Listener::Tcp(listener) => listener.set_nonblocking(true)?,
            Listener::Unix(listener) => listener.set_nonblocking(true)?,
        }
        let thread = ListenerThread::start("metrics", move |stopped| {
            let mut serving = MetricsLoop {
                listener: bound.listener,
                stopped,
                text: Box::new(text),
                made: None,
                scrapers: Vec::new(),
                closed_until: None,
                clock: PausableClock::for_timeout(PATIENCE),
            };
            if let Err(error) = serving.run() {
                tracing::warn!(%error, "the metrics listener has stopped");
            }
        })?;
        Ok(MetricsListener { _thread: thread, address: bound.address, socket: bound.socket })
    }
}

struct MetricsLoop {
    listener: Listener,
    stopped: UnixStream,
    text: Box<dyn Fn() -> String + Send>,
    /// Last text, and its time.
    made: Option<(Instant, Arc<str>)>,
    scrapers: Vec<Scraper>,
    /// Time until which no connection is accepted.
    closed_until: Option<Instant>,
    /// Clock for deadlines of scrapers.
    clock: PausableClock,
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => (&*stream).read(bytes),
            Stream::Unix(stream) => (&*stream).read(bytes),
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => (&*stream).write(bytes),
            Stream::Unix(stream) => (&*stream).write(bytes),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

struct Scraper {
    stream: Stream,
    head: Vec<u8>,
    /// Answer, once the scraper has asked, and the bytes of it already sent.
    answer: Option<(Vec<u8>, usize)>,
    until: Instant,
}

impl MetricsLoop {
    fn run(&mut self) -> io::Result<()> {
        loop {
            let now = self.clock.now();
            let open = (self.scrapers.len() < SCRAPERS || self.most_silent().is_some())
                && self.closed_until.is_none_or(|until| until <= now);
            let listen = if open { PollFlags::IN } else { PollFlags::empty() };
            let mut polled = vec![
                PollFd::new(&self.stopped, PollFlags::IN),
                PollFd::from_borrowed_fd(self.listener.as_fd(), listen),
            ];
            for scraper in &self.scrapers {
                let flags = if scraper.answer.is_some() { PollFlags::OUT } else { PollFlags::IN };
                polled.push(PollFd::from_borrowed_fd(scraper.stream.as_fd(), flags));
            }
            let times = self.scrapers.iter().map(|scraper| scraper.until);
            let until = times.chain(self.closed_until.filter(|_| !open)).min();
            let timeout = until.map(|until| {
                // This is a nanosecond more, so that the time is over by then.
                let left = until.saturating_duration_since(now) + Duration::from_nanos(1);
                let left = left.min(self.clock.slice());
                Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ }
            });
            match poll(&mut polled, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
            if ready[0] {
                return Ok(());
            }
            let mut each = ready[2..].iter().copied();
            let made = &mut self.made;
            let text = &self.text;
            self.scrapers.retain_mut(|scraper| {
                !each.next().unwrap_or(false) || scraper.attend(|| fresh(made, text))
            });
            // Each scraper that is out of time was polled once more.
            self.scrapers.retain(|scraper| scraper.until > now);
            // If scrapers being answered hold all places, the new one waits.
            if ready[1] && (self.scrapers.len() < SCRAPERS || self.most_silent().is_some()) {
                self.let_in();
            }
        }
    }

    /// Returns the oldest of the scrapers that haven't asked yet.
    fn most_silent(&self) -> Option<usize> {
        self.scrapers.iter().position(|scraper| scraper.answer.is_none())
    }

    fn let_in(&mut self) {
        self.closed_until = None;
        let accepted = match &self.listener {
            Listener::Tcp(listener) => listener
                .accept()
                .and_then(|(stream, _)| stream.set_nonblocking(true).map(|()| Stream::Tcp(stream))),
            Listener::Unix(listener) => listener.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(true).map(|()| Stream::Unix(stream))
            }),
        };
        match accepted {
            Ok(stream) => {
                let until = self.clock.now() + PATIENCE;
                let mut new = Scraper { stream, head: Vec::new(), answer: None, until };
                let (made, text) = (&mut self.made, &self.text);
                // The new one is attended at once, as most have asked by now: a later one can't
                // take its place first.
                if !new.attend(|| fresh(made, text)) {
                    return;
                }
                if self.scrapers.len() >= SCRAPERS {
                    match self.most_silent() {
                        Some(quiet) => drop(self.scrapers.remove(quiet)),
                        None => return,
                    }
                }
                self.scrapers.push(new);
            }
            Err(error) if is_later(&error) => {}
            Err(error) => {
                tracing::debug!(%error, "cannot accept a scraper");
                self.closed_until = Some(self.clock.now() + PAUSE);
            }
        }
    }
}

/// Returns the metrics, rebuilt unless they are fresh.
fn fresh(made: &mut Option<(Instant, Arc<str>)>, text: &dyn Fn() -> String) -> Arc<str> {
    if let Some((at, text)) = made.as_ref().filter(|(at, _)| at.elapsed() < FRESH) {
        let _ = at;
        return Arc::clone(text);
    }
    // A panic here must not end the server.
    let new: Arc<str> = catch_unwind(AssertUnwindSafe(text)).unwrap_or_default().into();
    *made = Some((Instant::now(), Arc::clone(&new)));
    new
}

impl Scraper {
    /// Does the next steps without waiting. Returns false at the end of the connection.
    fn attend(&mut self, text: impl FnOnce() -> Arc<str>) -> bool {
        if self.answer.is_none() {
            let mut room = [0; 1024];
            match self.stream.read(&mut room) {
                Ok(0) => return false,
                Ok(n) => self.head.extend_from_slice(&room[..n]),
                Err(error) if is_later(&error) => return true,
                Err(_) => return false,
            }
            match answer(&self.head, text) {
                Some(answer) => self.answer = Some((answer, 0)),
                None => return true,
            }
        }
        let Some((answer, sent)) = &mut self.answer else { return false };
        while *sent < answer.len() {
            match self.stream.write(&answer[*sent..]) {
                Ok(n) => *sent += n,
                Err(error) if is_later(&error) => return true,
                Err(_) => return false,
            }
        }
        false
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Returns the answer to a request, or `None` if its head is incomplete.
fn answer(head: &[u8], text: impl FnOnce() -> Arc<str>) -> Option<Vec<u8>> {
    let whole =
        head.windows(4).any(|end| end == b"\r\n\r\n") || head.windows(2).any(|end| end == b"\n\n");
    if !whole && head.len() < LONGEST_HEAD {
        return None;
    }
    let line = head.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (method, target, version) = (words.next(), words.next(), words.next());
    let path = target.map(|target| target.split('?').next().unwrap_or_default());
    let is_http = version.is_some_and(|version| version.starts_with("HTTP/1.")) && whole;
    let (status, body): (&str, Arc<str>) = match (method, path) {
        _ if !is_http => ("400 Bad Request", "this is not HTTP/1.1\n".into()),
        (Some("GET" | "HEAD"), Some("/metrics")) => ("200 OK", text()),
        (Some("GET" | "HEAD"), _) => ("404 Not Found", "ask for /metrics\n".into()),
        _ => ("405 Method Not Allowed", "ask with GET\n".into()),
    };
    let mut out = String::new();
    let _ = write!(
        out,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    if method != Some("HEAD") {
        out.push_str(&body);
    }
    Some(out.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(head: &str) -> Option<String> {
        let text = || "corewise_clients 0\n".into();
        answer(head.as_bytes(), text).map(|answer| String::from_utf8(answer).unwrap())
    }

    #[test]
    fn metrics_are_given_to_those_that_ask_for_them_and_others_are_told() {
        let got = said("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        assert!(got.starts_with("HTTP/1.1 200 OK\r\n"), "{got}");
        assert!(got.contains("\r\nContent-Length: 19\r\n"), "{got}");
        assert!(got.ends_with("\r\n\r\ncorewise_clients 0\n"), "{got}");
        let head = said("HEAD /metrics?x=1 HTTP/1.0\r\n\r\n").unwrap();
        assert!(head.contains("Content-Length: 19") && head.ends_with("\r\n\r\n"), "{head}");
        assert!(said("GET / HTTP/1.1\r\n\r\n").unwrap().starts_with("HTTP/1.1 404 "));
        assert!(said("POST /metrics HTTP/1.1\r\n\r\n").unwrap().starts_with("HTTP/1.1 405 "));
        assert!(said("NBDMAGIC\r\n\r\n").unwrap().starts_with("HTTP/1.1 400 "));
        assert_eq!(said("GET /metrics HTTP/1.1\r\n"), None, "more has to come");
        let long = format!("GET /metrics HTTP/1.1\r\nX: {}", "y".repeat(LONGEST_HEAD));
        assert!(said(&long).unwrap().starts_with("HTTP/1.1 400 "));
    }
}
