//! The end of the control socket that answers: one thread, for as long as the server runs.
//!
//! It is no part of the server's work and can't hold it up: it sleeps in `poll` until somebody asks,
//! answers at most a hundred times a second, and waits for nothing that the server does. Clients
//! can't hurt it: there are at most [`CLIENTS`] of them, a newcomer takes the place of the one that
//! has been quiet for longest, a question has a longest length, and a client that doesn't take its answer
//! isn't read from. Only this user, and root, are let in.

mod bound;
mod last_events;

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use corewise::device::DeviceManager;
use corewise::workqueue::WorkerPools;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;

use crate::control::devices::{self, Device};
use crate::control::disks::{self, Disks};
use crate::control::document::Document;
use crate::control::health::{Facts, Health, ServerFacts};
use crate::control::mirrors::MirrorOf;
use crate::control::queues;
use crate::control::served::{self, Export};
use crate::control::{Answer, LONGEST_QUESTION, Question, VERSION, Who, matches};
use crate::events::Listening;
use crate::listener_thread::ListenerThread;
use crate::live::{Live, Wish, snapshots};
use crate::spare_thread::{SpareThread, no_thread};

pub(crate) use bound::{Bound, bind, bind_at};

/// Clients at once.
const CLIENTS: usize = 16;
/// Between two answers; also how long nobody is let in after that failed.
const PAUSE: Duration = Duration::from_millis(10);
/// Between two looks at the mirrors for those that listen.
const LOOK: Duration = Duration::from_millis(500);
/// How long a client may take to take the answer about a change.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a server tells about itself.
pub(crate) struct About {
    pub(crate) pools: WorkerPools,
    pub(crate) manager: Arc<DeviceManager>,
    pub(crate) disks: Arc<Disks>,
    pub(crate) manifest: String,
    pub(crate) live: Arc<Live>,
    pub(crate) since: Instant,
}

/// The thread that answers. Dropping it ends the thread and waits for that, a moment.
#[derive(Debug)]
pub(crate) struct Control {
    _thread: ListenerThread,
    path: PathBuf,
}

impl Control {
    /// Where it listens.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Answers from now on.
    pub(crate) fn start(bound: Bound, about: Arc<About>) -> io::Result<Control> {
        bound.listener.set_nonblocking(true)?;
        let spare = SpareThread::start("change")?;
        let thread = ListenerThread::start("control", move |stopped| {
            let mut serving = Serving {
                listener: bound.listener,
                stopped,
                about,
                spare,
                clients: Vec::new(),
                closed_until: None,
                next_answer: Instant::now(),
                next_look: Instant::now(),
                mirrors: Vec::new(),
            };
            if let Err(error) = serving.run() {
                tracing::warn!(%error, "the control socket stopped answering");
            }
            last_events::send(serving.clients, last_events::AT_MOST);
        })?;
        Ok(Control { _thread: thread, path: bound.path })
    }
}

struct Serving {
    listener: UnixListener,
    stopped: UnixStream,
    about: Arc<About>,
    /// The thread for changes if no other can be started.
    spare: SpareThread,
    clients: Vec<Client>,
    /// Nobody is let in before.
    closed_until: Option<Instant>,
    /// Nobody is answered before.
    next_answer: Instant,
    /// The mirrors aren't looked at before,
    next_look: Instant,
    /// and they were like this the last time.
    mirrors: Vec<(String, MirrorOf)>,
}

struct Client {
    stream: UnixStream,
    /// Up to [`LONGEST_QUESTION`] bytes, and what came with their end.
    input: Vec<u8>,
    output: Vec<u8>,
    /// It will ask no more.
    ended: bool,
    /// When it came, or was answered last.
    heard: Instant,
    /// It asks no more, and hears of what happens.
    listens: Option<Listening>,
}

/// What is to become of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Then {
    Keep,
    Close,
    /// It was answered: the others first.
    Last,
    /// It wants something changed, which takes its time: a thread of its own does that, and answers.
    Change(Box<Question>),
}

impl Serving {
    fn run(&mut self) -> io::Result<()> {
        loop {
            let Some(ready) = self.wait()? else { return Ok(()) };
            self.look_at_mirrors();
            let mut ready = ready.into_iter();
            if ready.next() == Some(true) {
                self.let_in();
            }
            // A client that came just now has not been waited for; it is asked next time.
            let (mut now, mut index) = (ready.collect::<Vec<_>>().into_iter(), 0);
            while index < self.clients.len() {
                match self.attend(index, now.next().unwrap_or(false)) {
                    Then::Keep => index += 1,
                    Then::Close => drop(self.clients.remove(index)),
                    // One after the other, also where one has many questions.
                    Then::Last => self.clients[index..].rotate_left(1),
                    Then::Change(question) => {
                        let client = self.clients.remove(index);
                        change(&self.about, &self.spare, client.stream, *question);
                    }
                }
            }
        }
    }

    /// Sleeps until there is something to do: whether somebody wants in, and which clients can be
    /// read from or written to. `None`: it is over.
    fn wait(&self) -> io::Result<Option<Vec<bool>>> {
        let now = Instant::now();
        let open = self.closed_until.is_none_or(|until| until <= now);
        let events = &self.about.live.report.events;
        let mut polled = vec![
            PollFd::new(&self.stopped, PollFlags::IN),
            PollFd::from_borrowed_fd(events.wake(), PollFlags::IN),
        ];
        let mut places = Vec::new();
        let mut until = if open { None } else { self.closed_until };
        if events.are_heard() {
            until = Some(until.map_or(self.next_look, |until| until.min(self.next_look)));
        }
        if open {
            polled.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        for client in &self.clients {
            let flags = match (client.output.is_empty(), client.question().is_some()) {
                // It has said all, and may still take what there is to hear: the system tells when it has gone.
                (true, _) if client.listens.is_some() && client.ended => PollFlags::empty(),
                (true, _) if client.listens.is_some() => PollFlags::IN,
                (false, _) => PollFlags::OUT,
                (true, false) => PollFlags::IN,
                // It is our turn, and not to be told of again and again.
                (true, true) => {
                    until = Some(until.map_or(self.next_answer, |u| u.min(self.next_answer)));
                    places.push(None);
                    continue;
                }
            };
            places.push(Some(polled.len()));
            polled.push(PollFd::from_borrowed_fd(client.stream.as_fd(), flags));
        }
        let timeout = until.map(|until| {
            let left = until.saturating_duration_since(now);
            Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ }
        });
        match poll(&mut polled, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready = |at: usize| !polled[at].revents().is_empty();
        if ready(0) {
            return Ok(None);
        }
        if ready(1) {
            events.awake();
        }
        let clients = places.into_iter().map(|at| at.is_none_or(ready));
        Ok(Some(std::iter::once(open && ready(2)).chain(clients).collect()))
    }

    fn let_in(&mut self) {
        self.closed_until = None;
        let stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => {
                // Out of file descriptors, most likely: one of ours helps, and the server's own
                // clients come first.
                tracing::debug!(%error, "cannot accept a control client");
                self.drop_quietest();
                self.closed_until = Some(Instant::now() + PAUSE);
                return;
            }
        };
        if !is_trusted(&stream) || stream.set_nonblocking(true).is_err() {
            return;
        }
        let asking = self.clients.iter().filter(|client| client.listens.is_none()).count();
        if asking >= CLIENTS {
            self.drop_quietest();
        }
        self.clients.push(Client {
            stream,
            input: Vec::new(),
            output: Vec::new(),
            ended: false,
            heard: Instant::now(),
            listens: None,
        });
    }

    fn drop_quietest(&mut self) {
        let asks = |index: &usize| self.clients[*index].listens.is_none();
        let quietest =
            (0..self.clients.len()).filter(asks).min_by_key(|&index| self.clients[index].heard);
        if let Some(index) = quietest {
            self.clients.remove(index);
        }
    }

    /// Does what can be done for a client without waiting.
    fn attend(&mut self, index: usize, ready: bool) -> Then {
        let client = &mut self.clients[index];
        if client.listens.is_some() {
            return client.listen(ready);
        }
        let reads = ready && client.output.is_empty() && client.question().is_none();
        if reads && client.read().is_err() {
            return Then::Close;
        }
        let mut then = Then::Keep;
        if client.output.is_empty() {
            if let Some(end) = client.question() {
                if self.next_answer <= Instant::now() {
                    let question: Vec<u8> = client.input.drain(..end).collect();
                    // The rest of one that was too long is no question.
                    client.ended |= question.last() != Some(&b'\n');
                    client.heard = Instant::now();
                    if let Some(question) = wants_change(&question) {
                        self.next_answer = Instant::now() + PAUSE;
                        return Then::Change(Box::new(question));
                    }
                    let output = match asks(&question).as_deref() {
                        Some("events") => self.begin_to_listen(index),
                        Some("mirrors") => self.mirrors_now(),
                        _ => line(&self.about, &question),
                    };
                    self.clients[index].output = output;
                    self.next_answer = Instant::now() + PAUSE;
                    then = Then::Last;
                }
            }
        }
        let client = &mut self.clients[index];
        if client.write().is_err() {
            return Then::Close;
        }
        if client.listens.is_some() {
            return then;
        }
        let over = client.output.is_empty() && client.question().is_none();
        if over && client.ended { Then::Close } else { then }
    }
}

impl Serving {
    /// The client hears from now on of what happens; the answer.
    fn begin_to_listen(&mut self, index: usize) -> Vec<u8> {
        let events = Arc::clone(&self.about.live.report.events);
        // So that the first change that it hears of is one, and others miss none.
        self.next_look = Instant::now();
        match events.are_heard() {
            true => self.look_at_mirrors(),
            false => self.mirrors = disks::each_mirror(&self.about.disks.mirrors()),
        }
        let place = Listening::new(events);
        let answer = answered(&self.about, || match &place {
            Some(_) => Ok(Answer::default()),
            None => Err("too many listen already; end one of them".to_string()),
        });
        self.clients[index].listens = place;
        answer
    }

    /// Answers with the mirrors. A client that listens and goes by this answer hears of each change
    /// behind it, also where that undoes a change in front of it.
    fn mirrors_now(&mut self) -> Vec<u8> {
        let disks = self.about.disks.mirrors();
        self.tell_mirrors(disks::each_mirror(&disks));
        answered(&self.about, || Ok(Answer { disks: Some(disks), ..Answer::default() }))
    }

    /// Looks at the mirrors, where anybody listens and it is time.
    fn look_at_mirrors(&mut self) {
        if self.about.live.report.events.are_heard() && self.next_look <= Instant::now() {
            self.tell_mirrors(disks::each_mirror(&self.about.disks.mirrors()));
            self.next_look = Instant::now() + LOOK;
        }
    }

    /// Tells those that listen of mirrors that are otherwise than before.
    fn tell_mirrors(&mut self, now: Vec<(String, MirrorOf)>) {
        for (device, mirror) in now.iter().filter(|mirror| !self.mirrors.contains(mirror)) {
            let report = &self.about.live.report;
            report.publish("mirror_state", json!({"device": device, "mirror": mirror}));
        }
        self.mirrors = now;
    }
}

impl Client {
    /// Takes what there is to hear, and sends what can be sent without waiting.
    fn listen(&mut self, ready: bool) -> Then {
        if ready && self.output.is_empty() {
            match self.stream.read(&mut [0; 64]) {
                // Gone, or it has only said that it says no more.
                Ok(0) if self.ended => return Then::Close,
                Ok(0) => self.ended = true,
                Ok(_) => {}
                Err(error) if is_later(&error) => {}
                Err(_) => return Then::Close,
            }
        }
        if self.send_events().is_ok() { Then::Keep } else { Then::Close }
    }

    /// Sends the events up to now, as far as can be done without waiting: `output` is what is left.
    fn send_events(&mut self) -> io::Result<()> {
        loop {
            if let (true, Some(listening)) = (self.output.is_empty(), &self.listens) {
                listening.take(&mut self.output);
            }
            if self.output.is_empty() {
                return Ok(());
            }
            self.write()?;
            if !self.output.is_empty() {
                return Ok(());
            }
        }
    }

    /// Where the first question ends, its newline included. One that is too long, or the last thing
    /// that it says, needs none.
    fn question(&self) -> Option<usize> {
        let end = self.input.iter().position(|&byte| byte == b'\n').map(|at| at + 1);
        let all = self.input.len();
        let over = all >= LONGEST_QUESTION || self.ended && all > 0;
        end.or(over.then_some(all))
    }

    fn read(&mut self) -> io::Result<()> {
        let mut room = [0; LONGEST_QUESTION];
        let free = LONGEST_QUESTION - self.input.len().min(LONGEST_QUESTION);
        match self.stream.read(&mut room[..free]) {
            Ok(0) => self.ended = true,
            Ok(n) => self.input.extend_from_slice(&room[..n]),
            Err(error) if is_later(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn write(&mut self) -> io::Result<()> {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(n) => drop(self.output.drain(..n)),
                Err(error) if is_later(&error) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Whether the other end is this user, or root. The socket's mode says the same, but for the moment
/// in which it is made.
fn is_trusted(stream: &UnixStream) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(stream);
    peer.is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid())
}

/// A question that wants something changed, or has a store asked.
fn wants_change(question: &[u8]) -> Option<Question> {
    let question: Question = serde_json::from_slice(question).ok()?;
    let wants = Wish::of(&question).is_some() || snapshots::wish(&question).is_some();
    (wants && question.corewise == VERSION).then_some(question)
}

/// What a question asks, where it is one.
fn asks(question: &[u8]) -> Option<String> {
    let question: Question = serde_json::from_slice(question).ok()?;
    (question.corewise == VERSION).then_some(question.ask)
}

/// Makes a change on a thread, which then answers. It makes no more of them than one at a time; the others end at once.
fn change(about: &Arc<About>, spare: &SpareThread, stream: UnixStream, question: Question) {
    // A client whose thread can't be started gets an answer, too.
    let stream = Arc::new(stream);
    let (about, theirs) = (Arc::clone(about), (Arc::clone(about), Arc::clone(&stream)));
    let run = move || {
        let (about, stream) = theirs;
        let answer = answered(&about, || {
            if let Some(wish) = snapshots::wish(&question) {
                let (volume, wish) = wish?;
                let snapshots = Some(about.live.snapshots(&volume, &wish)?);
                return Ok(Answer { snapshots, ..Answer::default() });
            }
            let wish = Wish::of(&question).ok_or("it is not about a change")??;
            let mode = question.mode.unwrap_or_default();
            let changed = about.live.change(wish, mode, question.dry_run)?;
            Ok(Answer { changed: Some(changed), ..Answer::default() })
        });
        // A client that doesn't wait for its answer has been served all the same.
        let _ = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
            .and_then(|()| (&*stream).write_all(&answer));
    };
    if let Err(error) = spare.run("change", run) {
        let why = format!("nothing was changed: {}", no_thread(&error));
        tracing::warn!("a change was asked for, and {why}");
        // It has room for that, as nothing else was sent.
        let _ = (&*stream).write_all(&answered(&about, || Err(why)));
    }
}

/// The answer to a question, as a line.
fn line(about: &About, question: &[u8]) -> Vec<u8> {
    answered(about, || answer(about, question))
}

fn who(about: &About) -> Who {
    Who {
        corewise: VERSION,
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_string(),
        manifest: about.manifest.clone(),
        up_seconds: about.since.elapsed().as_secs_f64(),
    }
}

fn answered(about: &About, answer: impl FnOnce() -> Result<Answer, String>) -> Vec<u8> {
    // A bug in here is no business of the server's.
    let answered = catch_unwind(AssertUnwindSafe(answer));
    let answered = answered.unwrap_or_else(|_| Err("this is a bug in corewise".to_string()));
    let answer = match answered {
        Ok(answer) => Answer { who: who(about), ..answer },
        Err(error) => Answer { who: who(about), error: Some(error), ..Answer::default() },
    };
    let mut line = serde_json::to_vec(&answer).unwrap_or_else(|_| b"{}".to_vec());
    line.push(b'\n');
    line
}

fn answer(about: &About, question: &[u8]) -> Result<Answer, String> {
    if question.len() >= LONGEST_QUESTION && question.last() != Some(&b'\n') {
        return Err(format!("a question must be one line of at most {LONGEST_QUESTION} bytes"));
    }
    let question: Question = serde_json::from_slice(question).map_err(|error| {
        format!(
            "not a question: {error}; write {{\"corewise\":{VERSION},\"ask\":\"dump\"}}, for \
                 example"
        )
    })?;
    if question.corewise != VERSION {
        let theirs = question.corewise;
        return Err(format!("this server speaks version {VERSION}, not version {theirs}"));
    }
    match question.ask.as_str() {
        "hello" => Ok(Answer::default()),
        "dump" => dump(about, &question),
        "health" => {
            let health = Some(health(about));
            Ok(Answer { health, ..Answer::default() })
        }
        "take_back" => take_back(about, &question),
        "check" => check(about, &question),
        "clients" => {
            let clients = Some(served::clients(&about.live.server));
            Ok(Answer { clients, ..Answer::default() })
        }
        "disconnect" => disconnect(about, &question),
        other => Err(format!(
            "there is no question '{other}'; ask hello, dump, health, clients, disconnect, events, mirrors, take_back, check, replace, add_leg, remove_leg, snapshot, snapshots, delete_snapshot, add, remove, grow or reload"
        )),
    }
}

/// A worker of the volumes does it.
fn take_back(about: &About, question: &Question) -> Result<Answer, String> {
    let disk = question.disk.as_deref().ok_or("'take_back' needs a 'disk'")?;
    let taken_back = about.disks.take_back(disk, question.leg.as_deref())?;
    Ok(Answer { taken_back: Some(taken_back), ..Answer::default() })
}

/// As `take_back`.
fn check(about: &About, question: &Question) -> Result<Answer, String> {
    let disk = question.disk.as_deref().ok_or("'check' needs a 'disk'")?;
    about.disks.check(disk, &question.check.clone().unwrap_or_default())?;
    Ok(Answer::default())
}

fn disconnect(about: &About, question: &Question) -> Result<Answer, String> {
    let id = question.client.ok_or("'disconnect' needs a 'client', its number")?;
    let server = &about.live.server;
    let client = server.clients().into_iter().find(|client| client.id == id);
    // It may leave by itself meanwhile.
    match client.filter(|_| server.disconnect(id)) {
        Some(client) => {
            let disconnected = Some(served::Client::new(&client));
            Ok(Answer { disconnected, ..Answer::default() })
        }
        None => Err(format!("there is no client {id}; `corewise clients` lists them")),
    }
}

fn exports(about: &About) -> Vec<Export> {
    let shown = about.live.shown.lock().clone();
    let of = |name: &str| Some(shown.iter().find(|shown| shown.name == name)?.device.clone());
    let exports = about.live.server.exports();
    let mut exports: Vec<Export> =
        exports.iter().map(|export| Export::new(export, of(&export.name))).collect();
    about.live.status.recent_exports.lock().fill(&mut exports);
    exports
}

/// Everything there is to tell, as metrics.
pub(crate) fn metrics(about: &About) -> String {
    crate::control::metrics::text(&Answer { who: who(about), ..whole(about) })
}

/// How the server is.
pub(crate) fn health(about: &About) -> Health {
    all_but_pools(about).health.unwrap_or_default()
}

/// Everything there is to tell, but for the text.
fn whole(about: &About) -> Answer {
    Answer { dump: Some(Document::from(&about.pools.dump())), ..all_but_pools(about) }
}

/// What the server knows of itself.
fn facts(live: &Live, devices: &[Device]) -> ServerFacts {
    let stuck = live.stuck.lock().clone();
    let metrics = live.metrics.lock().as_ref().and_then(|one| one.path().map(Path::to_path_buf));
    let (ended, unread) = (live.has_ended(), live.report.observer.unread());
    live.status.facts(ended, &stuck, devices, &live.cleanup, metrics.as_deref(), unread)
}

fn all_but_pools(about: &About) -> Answer {
    let server = &about.live.server;
    let (devices, disks, exports) =
        (devices::all(&about.manager), about.disks.all(), exports(about));
    let facts = facts(&about.live, &devices);
    let health =
        Health::of(&Facts { devices: &devices, disks: &disks, exports: &exports, server: &facts });
    Answer {
        health: Some(health),
        devices: Some(devices),
        disks: Some(disks),
        exports: Some(exports),
        clients: Some(served::clients(server)),
        handshakes: Some(server.handshakes().into()),
        memory: Some(server.memory().into()),
        ..Answer::default()
    }
}

fn dump(about: &About, question: &Question) -> Result<Answer, String> {
    let mut dump = about.pools.dump();
    for pattern in &question.queues {
        if !dump.queues.iter().any(|queue| matches(pattern, &queue.name)) {
            let mut names: Vec<&str> = dump.queues.iter().map(|q| q.name.as_str()).collect();
            names.dedup();
            let names = names.join(", ");
            return Err(format!("there is no queue '{pattern}'; the queues are: {names}"));
        }
    }
    if !question.queues.is_empty() {
        dump.retain_queues(|name| question.queues.iter().any(|pattern| matches(pattern, name)));
    }
    // A client that asks for some queues wants these.
    let rest = match question.queues.is_empty() {
        true => all_but_pools(about),
        false => Answer::default(),
    };
    let text = question.text.map(|width| {
        let devices =
            rest.devices.as_deref().map(|all| devices::text(all, width)).unwrap_or_default();
        let disks = rest.disks.as_deref().map(|all| disks::text(all, width)).unwrap_or_default();
        let served = match (&rest.exports, &rest.clients) {
            (Some(exports), Some(clients)) => served::text(exports, clients, width),
            _ => String::new(),
        };
        // First, since it is what most look for.
        let health = rest.health.as_ref().map(Health::section).unwrap_or_default();
        format!("{health}{}{devices}{disks}{served}", queues::text(&dump, width))
    });
    Ok(Answer { dump: Some(Document::from(&dump)), text, ..rest })
}
