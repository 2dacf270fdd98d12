//! The thread of the control socket: who is let in, read from, answered and written to.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;

use super::bound::Bound;
use super::{ServerView, answered, asks, change, line, wants_change};
use crate::control::disks;
use crate::control::mirrors::MirrorOf;
use crate::control::{Answer, LONGEST_QUESTION, Question};
use crate::events::Listening;
use crate::threads::{ListenerThread, SpareThread};

/// Clients at once.
pub(super) const CLIENTS: usize = 16;
/// Between two answers; also how long nobody is let in after that failed.
const PAUSE: Duration = Duration::from_millis(10);
/// Between two looks at the mirrors for those that listen.
const LOOK: Duration = Duration::from_millis(500);
/// How long the end of the server waits for those that listen to take their last events.
const END_WAIT: Duration = Duration::from_secs(2);

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
    pub(crate) fn start(bound: Bound, view: Arc<ServerView>) -> io::Result<Control> {
        bound.listener.set_nonblocking(true)?;
        let spare = SpareThread::start("change")?;
        let thread = ListenerThread::start("control", move |stopped| {
            let mut serving = Serving {
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

struct Serving {
    listener: UnixListener,
    stopped: UnixStream,
    view: Arc<ServerView>,
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
enum ClientAction {
    Keep,
    Close,
    /// It was answered: the others first.
    Last,
    /// It wants something changed, which takes its time: a thread of its own does that, and
    /// answers.
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
                    ClientAction::Keep => index += 1,
                    ClientAction::Close => drop(self.clients.remove(index)),
                    // One after the other, also where one has many questions.
                    ClientAction::Last => self.clients[index..].rotate_left(1),
                    ClientAction::Change(question) => {
                        let client = self.clients.remove(index);
                        change(&self.view, &self.spare, client.stream, *question);
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
                // It has said all, and may still take what there is to hear: the system tells when
                // it has gone.
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
                    // The rest of one that was too long is no question.
                    client.ended |= question.last() != Some(&b'\n');
                    client.heard = Instant::now();
                    if let Some(question) = wants_change(&question) {
                        self.next_answer = Instant::now() + PAUSE;
                        return ClientAction::Change(Box::new(question));
                    }
                    let output = match asks(&question).as_deref() {
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

impl Serving {
    /// The client hears from now on of what happens; the answer.
    fn begin_to_listen(&mut self, index: usize) -> Vec<u8> {
        let events = Arc::clone(&self.view.live.report.events);
        // So that the first change that it hears of is one, and others miss none.
        self.next_look = Instant::now();
        match events.are_heard() {
            true => self.look_at_mirrors(),
            false => self.mirrors = disks::each_mirror(&self.view.disks.mirrors()),
        }
        let place = Listening::new(events);
        let answer = answered(&self.view, || match &place {
            Some(_) => Ok(Answer::default()),
            None => Err("too many listen already; end one of them".to_string()),
        });
        self.clients[index].listens = place;
        answer
    }

    /// Answers with the mirrors. A client that listens and goes by this answer hears of each change
    /// behind it, also where that undoes a change in front of it.
    fn mirrors_now(&mut self) -> Vec<u8> {
        let disks = self.view.disks.mirrors();
        self.tell_mirrors(disks::each_mirror(&disks));
        answered(&self.view, || Ok(Answer { disks: Some(disks), ..Answer::default() }))
    }

    /// Looks at the mirrors, where anybody listens and it is time.
    fn look_at_mirrors(&mut self) {
        if self.view.live.report.events.are_heard() && self.next_look <= Instant::now() {
            self.tell_mirrors(disks::each_mirror(&self.view.disks.mirrors()));
            self.next_look = Instant::now() + LOOK;
        }
    }

    /// Tells those that listen of mirrors that are otherwise than before.
    fn tell_mirrors(&mut self, now: Vec<(String, MirrorOf)>) {
        for (device, mirror) in now.iter().filter(|mirror| !self.mirrors.contains(mirror)) {
            let report = &self.view.live.report;
            report.publish("mirror_state", json!({"device": device, "mirror": mirror}));
        }
        self.mirrors = now;
    }
}

impl Client {
    /// Takes what there is to hear, and sends what can be sent without waiting.
    fn listen(&mut self, ready: bool) -> ClientAction {
        if ready && self.output.is_empty() {
            match self.stream.read(&mut [0; 64]) {
                // Gone, or it has only said that it says no more.
                Ok(0) if self.ended => return ClientAction::Close,
                Ok(0) => self.ended = true,
                Ok(_) => {}
                Err(error) if is_later(&error) => {}
                Err(_) => return ClientAction::Close,
            }
        }
        if self.send_events().is_ok() { ClientAction::Keep } else { ClientAction::Close }
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

/// Sends those that listen the events up to now, and waits at most so long until they have taken
/// them.
fn send_last_events(mut clients: Vec<Client>, at_most: Duration) {
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
            let listens = Listening::new(Arc::clone(&events));
            let (input, output, heard) = (Vec::new(), Vec::new(), Instant::now());
            (Client { stream, input, output, ended: false, heard, listens }, theirs)
        };
        let read = |mut stream: UnixStream| {
            let mut read = String::new();
            stream.read_to_string(&mut read).unwrap();
            read
        };
        let ((quick, its), (stuck, unread)) = (listener(), listener());
        // More than a socket holds.
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
