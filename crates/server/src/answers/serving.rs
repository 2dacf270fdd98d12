//! The thread of the control socket, which accepts clients, reads questions and writes answers.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;

use super::bound::BoundControl;
use super::{ServerView, answer_change, answered, asked_word, line, wants_change};
use crate::control::disks;
use crate::control::mirrors::MirrorReport;
use crate::control::{Answer, LONGEST_QUESTION, Question};
use crate::events::ListenerSlot;
use crate::threads::{ListenerThread, SpareThread};

/// Limit of clients at a time.
pub(super) const CLIENTS: usize = 16;
/// Time between two answers, and between two tries to accept after one failed.
const PAUSE: Duration = Duration::from_millis(10);
/// Time between two checks of the mirrors for listening clients.
const LOOK: Duration = Duration::from_millis(500);
/// Time that the end of the server gives listening clients to take their last events.
const END_WAIT: Duration = Duration::from_secs(2);

/// The thread that answers. Dropping it ends the thread and waits a moment for that.
#[derive(Debug)]
pub(crate) struct Control {
    _thread: ListenerThread,
    path: PathBuf,
}

impl Control {
    /// Returns the path on which it listens.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Starts the thread.
    pub(crate) fn start(bound: BoundControl, view: Arc<ServerView>) -> io::Result<Control> {
        bound.listener.set_nonblocking(true)?;
        let spare = SpareThread::start("change")?;
        let thread = ListenerThread::start("control", move |stopped| {
            let mut serving = ControlLoop {
                listener: bound.listener,
                stopped,
                view,
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
            send_last_events(serving.clients, END_WAIT);
        })?;
        Ok(Control { _thread: thread, path: bound.path })
    }
}

struct ControlLoop {
    listener: UnixListener,
    stopped: UnixStream,
    view: Arc<ServerView>,
    /// Thread for changes if no other can be started.
    spare: SpareThread,
    clients: Vec<ControlClient>,
    /// Time until which no connection is accepted.
    closed_until: Option<Instant>,
    /// Time until which no client is answered.
    next_answer: Instant,
    /// Time until which the mirrors aren't checked.
    next_look: Instant,
    /// Mirrors as they were at the last check.
    mirrors: Vec<(String, MirrorReport)>,
}

struct ControlClient {
    stream: UnixStream,
    /// Up to [`LONGEST_QUESTION`] bytes, and the bytes that were read together with the last of
    /// them.
    input: Vec<u8>,
    output: Vec<u8>,
    /// True if the client will ask no more.
    ended: bool,
    /// Time at which the client came, or was last answered.
    heard: Instant,
    /// Events for a client that listens, which asks no more.
    listens: Option<ListenerSlot>,
}

/// The next step with a client.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ClientAction {
    Keep,
    Close,
    /// The client was answered, so the others come first.
    Last,
    /// The client wants a change, which takes time. A thread of its own makes it and answers.
    Change(Box<Question>),
}

impl ControlLoop {
    fn run(&mut self) -> io::Result<()> {
        loop {
            let Some(ready) = self.wait()? else { return Ok(()) };
            self.look_at_mirrors();
            let mut ready = ready.into_iter();
            if ready.next() == Some(true) {
                self.let_in();
            }
            // A client accepted just now was not polled. Its turn is the next round.
            let (mut now, mut index) = (ready.collect::<Vec<_>>().into_iter(), 0);
            while index < self.clients.len() {
                match self.attend(index, now.next().unwrap_or(false)) {
                    ClientAction::Keep => index += 1,
                    ClientAction::Close => drop(self.clients.remove(index)),
                    // Clients take turns, even if one has many questions.
                    ClientAction::Last => self.clients[index..].rotate_left(1),
                    ClientAction::Change(question) => {
                        let client = self.clients.remove(index);
                        answer_change(&self.view, &self.spare, client.stream, *question);
                    }
                }
            }
        }
    }

    /// Sleeps until there is something to do. Returns `None` at the end, else flags: for the
    /// listener, true if a client wants in, then for each client, true if it is ready.
    fn wait(&self) -> io::Result<Option<Vec<bool>>> {
        let now = Instant::now();
        let open = self.closed_until.is_none_or(|until| until <= now);
        let events = &self.view.live.report.events;
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
                // The client has sent everything and may still take events. `poll` reports when it
                // has gone.
                (true, _) if client.listens.is_some() && client.ended => PollFlags::empty(),
                (true, _) if client.listens.is_some() => PollFlags::IN,
                (false, _) => PollFlags::OUT,
                (true, false) => PollFlags::IN,
                // The server has to act next, so the client isn't polled until it may answer.
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
            events.clear_wake();
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
                // Most likely no file descriptor is free. Closing a control client frees one, since
                // the server's own clients come first.
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
        self.clients.push(ControlClient {
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

    /// Does the next steps with a client, without waiting.
    fn attend(&mut self, index: usize, ready: bool) -> ClientAction {
        let client = &mut self.clients[index];
        if client.listens.is_some() {
            return client.listen(ready);
        }
        let reads = ready && client.output.is_empty() && client.question().is_none();
        if reads && client.read().is_err() {
            return ClientAction::Close;
        }
        let mut then = ClientAction::Keep;
        if client.output.is_empty() {
            if let Some(end) = client.question() {
                if self.next_answer <= Instant::now() {
                    let question: Vec<u8> = client.input.drain(..end).collect();
                    // The rest of a question that was too long is no question.
                    client.ended |= question.last() != Some(&b'\n');
                    client.heard = Instant::now();
                    if let Some(question) = wants_change(&question) {
                        self.next_answer = Instant::now() + PAUSE;
                        return ClientAction::Change(Box::new(question));
                    }
                    let output = match asked_word(&question).as_deref() {
                        Some("events") => self.begin_to_listen(index),
                        Some("mirrors") => self.mirrors_now(),
                        _ => line(&self.view, &question),
                    };
                    self.clients[index].output = output;
                    self.next_answer = Instant::now() + PAUSE;
                    then = ClientAction::Last;
                }
            }
        }
        let client = &mut self.clients[index];
        if client.write().is_err() {
            return ClientAction::Close;
        }
        if client.listens.is_some() {
            return then;
        }
        let over = client.output.is_empty() && client.question().is_none();
        if over && client.ended { ClientAction::Close } else { then }
    }
}

impl ControlLoop {
    /// Makes the client a listener. Returns the answer.
    fn begin_to_listen(&mut self, index: usize) -> Vec<u8> {
        let events = Arc::clone(&self.view.live.report.events);
        // The mirrors are checked first. So the client hears of no earlier change, and other
        // listeners miss none.
        self.next_look = Instant::now();
        match events.are_heard() {
            true => self.look_at_mirrors(),
            false => self.mirrors = disks::each_mirror(&self.view.disks.mirrors()),
        }
        let place = ListenerSlot::new(events);
        let answer = answered(&self.view, || match &place {
            Some(_) => Ok(Answer::default()),
            None => Err("too many listen already; end one of them".to_string()),
        });
        self.clients[index].listens = place;
        answer
    }

    /// Answers with the mirrors. A listening client that starts from this answer gets each later
    /// change, even one that undoes an earlier change.
    fn mirrors_now(&mut self) -> Vec<u8> {
        let disks = self.view.disks.mirrors();
        self.tell_mirrors(disks::each_mirror(&disks));
        answered(&self.view, || Ok(Answer { disks: Some(disks), ..Answer::default() }))
    }

    /// Checks the mirrors if a client listens and it is time.
    fn look_at_mirrors(&mut self) {
        if self.view.live.report.events.are_heard() && self.next_look <= Instant::now() {
            self.tell_mirrors(disks::each_mirror(&self.view.disks.mirrors()));
            self.next_look = Instant::now() + LOOK;
        }
    }

    /// Tells listening clients of mirrors that have changed.
    fn tell_mirrors(&mut self, now: Vec<(String, MirrorReport)>) {
        for (device, mirror) in now.iter().filter(|mirror| !self.mirrors.contains(mirror)) {
            let report = &self.view.live.report;
            report.publish("mirror_state", json!({"device": device, "mirror": mirror}));
        }
        self.mirrors = now;
    }
}

impl ControlClient {
    /// Takes the events due, and sends as many as possible without waiting.
    fn listen(&mut self, ready: bool) -> ClientAction {
        if ready && self.output.is_empty() {
            match self.stream.read(&mut [0; 64]) {
                // The client has gone, or has only closed its sending side.
                Ok(0) if self.ended => return ClientAction::Close,
                Ok(0) => self.ended = true,
                Ok(_) => {}
                Err(error) if is_later(&error) => {}
                Err(_) => return ClientAction::Close,
            }
        }
        if self.send_events().is_ok() { ClientAction::Keep } else { ClientAction::Close }
    }

    /// Sends the events up to now without waiting. The rest stays in `output`.
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

    /// Returns the end of the first question, its newline included. A question that is too long, or
    /// the last before the end of input, needs no newline.
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

/// Returns true if the other end is this user or root. The socket's mode says the same, except for
/// a moment during its creation.
fn is_trusted(stream: &UnixStream) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(stream);
    peer.is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid())
}

/// Sends listening clients the events up to now. Waits at most `at_most` until they have taken
/// them.
fn send_last_events(mut clients: Vec<ControlClient>, at_most: Duration) {
    let until = Instant::now() + at_most;
    loop {
        clients.retain_mut(|client| {
            let sent = client.listens.is_some() && client.send_events().is_ok();
            sent && !client.output.is_empty()
        });
        let left = until.saturating_duration_since(Instant::now());
        if clients.is_empty() || left.is_zero() {
            return;
        }
        let mut polled: Vec<PollFd<'_>> = (clients.iter())
            .map(|client| PollFd::from_borrowed_fd(client.stream.as_fd(), PollFlags::OUT))
            .collect();
        let timeout = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use super::*;
    use crate::events::Events;

    #[test]
    fn the_end_waits_until_listeners_have_all_events_but_not_for_one_that_takes_nothing() {
        let events = Arc::new(Events::new().unwrap());
        let listener = || {
            let (stream, theirs) = UnixStream::pair().unwrap();
            stream.set_nonblocking(true).unwrap();
            let listens = ListenerSlot::new(Arc::clone(&events));
            let (input, output, heard) = (Vec::new(), Vec::new(), Instant::now());
            (ControlClient { stream, input, output, ended: false, heard, listens }, theirs)
        };
        let read = |mut stream: UnixStream| {
            let mut read = String::new();
            stream.read_to_string(&mut read).unwrap();
            read
        };
        let ((quick, its), (stuck, unread)) = (listener(), listener());
        // The lines are more than a socket holds.
        let lines: String = (0..1000).map(|n| format!("{n:1000}\n")).collect();
        lines.split_inclusive('\n').for_each(|line| events.tell(line));
        send_last_events(vec![stuck], Duration::from_millis(1));
        let part = read(unread);
        assert!(lines.starts_with(&part) && part.len() < lines.len(), "{}", part.len());
        let reader = std::thread::spawn(move || read(its));
        send_last_events(vec![quick], Duration::from_secs(600));
        assert!(reader.join().unwrap() == lines);
    }
}
