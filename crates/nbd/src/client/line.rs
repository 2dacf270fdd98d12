//! The thread of a remote volume: it alone has the connections and the requests, so nothing of
//! theirs is locked.
//!
//! A round: *Admit* what was submitted, *Expire* what is late, *Connect* or *Send*, then *Wait* for
//! whatever comes first, and *Receive*. All connections are of one time (README.md): where one
//! breaks the others end too, and what they had on their way waits for the next ones.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use corewise_blockmq::{Geometry, IoError, IoErrorKind, Op, Started};
use corewise_sync::atomic::Ordering;
use corewise_sync::time::PausableClock;
use corewise_sync::{panics, thread};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::answers::{AnswerOutcome, Answers};
use super::shake::{self, RemoteAgreement};
use super::stream::{HandshakeStream, HandshakeWait, ROOM, Stream, clear, not_yet};
use super::table::Durable;
use super::table::Table;
use super::{DOWN, RECONNECTING, RemoteEvent, RemoteOptions, VolumeShared, policy};
use crate::deadline::timespec;
use crate::wire::{Command, CommandFlags, REQUEST_LEN, Request, TransmissionFlags};

/// Pieces that are sent together, at most.
const MOST_PIECES: usize = 64;
/// How often a connection is read in a round, at most: the others come too.
const MOST_READS: usize = 8;

/// One connection, behind its handshake.
pub(super) struct Connection {
    stream: Stream,
    /// What came and wasn't looked at yet.
    bytes: BytesMut,
    answers: Answers,
    /// What is to be sent, in this order.
    out: VecDeque<usize>,
    /// So many bytes of the first have left.
    gone: u64,
    /// How many requests are on their way here.
    load: usize,
    /// More may be there already, of which the socket knows nothing: TLS has it.
    more: bool,
}

/// Connects, as often as is asked for and allowed; with `before`, to an export that this device,
/// which was told that, can go on with.
pub(super) fn begin(
    shared: &VolumeShared,
    before: Option<(&Geometry, &RemoteAgreement)>,
    clock: &mut PausableClock,
) -> Result<(Vec<Connection>, RemoteAgreement), String> {
    // One for all: nobody looks at the requests meanwhile.
    let deadline = clock.now() + shared.options.connect_timeout;
    let (first, agreed) = dial(shared, deadline, clock)?;
    if let Some((device, before)) = before {
        // Together, so that it doesn't grow in between to what is there no more.
        let mut sizes = shared.sizes.lock();
        let device = Geometry { size: sizes.device, ..*device };
        sizes.export = policy::still(&device, before, &agreed)?;
    }
    let mut connections = vec![first];
    if agreed.summary.flags.contains(TransmissionFlags::CAN_MULTI_CONN) {
        for _ in 1..shared.options.connections {
            match dial(shared, deadline, clock) {
                Ok((more, theirs)) if theirs.is_like(&agreed) => connections.push(more),
                // As many as it lets in, in time.
                _ => break,
            }
        }
    }
    Ok((connections, agreed))
}

/// The clock by which the other side has to be in time.
pub(super) fn clock(options: &RemoteOptions) -> PausableClock {
    PausableClock::for_timeout(options.timeout.min(options.connect_timeout))
}

fn dial(
    shared: &VolumeShared,
    deadline: Instant,
    clock: &mut PausableClock,
) -> Result<(Connection, RemoteAgreement), String> {
    let options = &shared.options;
    let uri = &options.uri;
    let clock = RefCell::new(clock);
    let wait = HandshakeWait { deadline, clock, wake: &shared.wake, stop: &shared.stop };
    let stream = Stream::connect(&uri.address, options, &wait)
        .map_err(|error| format!("cannot connect: {}", in_words(&error)))?;
    let mut wire = HandshakeStream { stream, wait: &wait, ahead: BytesMut::new() };
    let padded = shake::greet(&mut wire).map_err(|why| why.to_string())?;
    if let (true, Some(tls), Some(name)) = (uri.tls(), &options.tls, uri.hostname()) {
        shake::start_tls(&mut wire).map_err(|why| why.to_string())?;
        if !wire.ahead.is_empty() {
            return Err("it sent something before its TLS began".to_owned());
        }
        wire.stream = wire
            .stream
            .secure(tls, name, &wait)
            .map_err(|error| format!("no TLS: {}", in_words(&error)))?;
    }
    let agreed = shake::choose(&mut wire, uri.export(), padded).map_err(|why| why.to_string())?;
    let answers = Answers::new(agreed.structured, agreed.allocation);
    let HandshakeStream { stream, ahead: bytes, .. } = wire;
    Ok((
        Connection { stream, bytes, answers, out: VecDeque::new(), gone: 0, load: 0, more: false },
        agreed,
    ))
}

fn in_words(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::TimedOut => "it did not answer in time".to_owned(),
        ErrorKind::UnexpectedEof => "it hung up".to_owned(),
        _ => error.to_string(),
    }
}

/// Starts the thread.
pub(super) fn start(
    shared: Arc<VolumeShared>,
    connections: Vec<Connection>,
    agreed: RemoteAgreement,
    device: Geometry,
    mut clock: PausableClock,
) -> io::Result<thread::JoinHandle<()>> {
    let mut line = VolumeThread {
        since: clock.now(),
        clock,
        shared,
        device,
        agreed,
        connections: Vec::new(),
        table: Table::default(),
        durable: Durable::default(),
        ends: Vec::new(),
        failures: 0,
        useful: false,
        next_try: None,
        down: false,
        mute: false,
        closing: false,
    };
    thread::Builder::new().name("nbd-remote".to_owned()).spawn(move || {
        line.connected(connections);
        line.run();
    })
}

struct VolumeThread {
    shared: Arc<VolumeShared>,
    device: Geometry,
    agreed: RemoteAgreement,
    /// The first one is the one that was there first: flushes go there.
    connections: Vec<Connection>,
    table: Table,
    durable: Durable,
    /// What has ended and wasn't looked at yet.
    ends: Vec<AnswerOutcome>,
    /// The clock of all times here. It stands still while this process does, so no answer is late
    /// for a pause.
    clock: PausableClock,
    /// When the connections came, or were lost.
    since: Instant,
    /// Attempts in a row that came to nothing.
    failures: u32,
    /// The connections have answered a request.
    useful: bool,
    /// When the next attempt is due; `None` while there are connections.
    next_try: Option<Instant>,
    /// Requests don't wait for a connection any more.
    down: bool,
    /// A request's time is over, and nobody has connected since.
    mute: bool,
    /// The other side is shutting down: nothing more is sent there.
    closing: bool,
}

impl VolumeThread {
    fn run(&mut self) {
        let shared = Arc::clone(&self.shared);
        loop {
            self.admit();
            // Relaxed: the ring behind it makes us look.
            if shared.stop.load(Ordering::Relaxed) && self.table.is_empty() {
                return self.bye();
            }
            self.expire();
            // Relaxed: as above.
            if shared.ending.load(Ordering::Relaxed) && (self.mute || self.down) {
                self.give_up();
            }
            match self.next_try {
                Some(due) if due <= self.clock.now() => {
                    self.connect();
                    // Its waits took rings: what was rung for is to be taken before anybody sleeps.
                    continue;
                }
                Some(_) => {}
                None => self.send(),
            }
            self.wait();
        }
    }

    /// Takes what was submitted.
    fn admit(&mut self) {
        let shared = Arc::clone(&self.shared);
        let batch = shared.fresh.take();
        if batch.is_empty() {
            return;
        }
        let deadline = self.clock.now() + shared.options.timeout;
        for fresh in batch {
            if self.down {
                self.complete(fresh.rq, Err(self.is_down()));
            } else {
                self.table.add(fresh.rq, deadline);
            }
        }
    }

    fn is_down(&self) -> IoError {
        let why =
            format!("no connection to {}: {}", self.shared.options.uri, *self.shared.why.lock());
        IoError::with(IoErrorKind::TimedOut, why)
    }

    /// Fails the requests that are late, after it has received what has come.
    fn expire(&mut self) {
        if self.table.late(self.clock.now()).is_none() || !self.receive_from_all() {
            return;
        }
        while let Some(slot) = self.table.late(self.clock.now()) {
            self.mute = true;
            let on = self.table.get(slot).on;
            let (rq, time) = (self.table.remove(slot), self.shared.options.timeout);
            let words = match on {
                // Debug: a length of time.
                Some(_) => format!("no answer within {time:?}"),
                // Debug: a length of time.
                None => format!("no connection within {time:?}: {}", *self.shared.why.lock()),
            };
            if on.is_some() {
                // Its answer may come yet, and would be anybody's.
                // Debug: a length of time.
                self.broke(&format!("a request was not answered within {time:?}"));
            }
            self.complete(rq, Err(IoError::with(IoErrorKind::TimedOut, words)));
        }
    }

    /// Attempts to connect.
    fn connect(&mut self) {
        let shared = Arc::clone(&self.shared);
        match begin(&shared, Some((&self.device, &self.agreed)), &mut self.clock) {
            Ok((connections, agreed)) => {
                let event = RemoteEvent::Back {
                    after: self.clock.now().saturating_duration_since(self.since),
                    connections: connections.len(),
                };
                self.agreed = agreed;
                self.connected(connections);
                if self.next_try.is_none() {
                    self.tell(&event);
                }
            }
            Err(why) => {
                let now = self.clock.now();
                self.failures = self.failures.saturating_add(1);
                self.next_try = Some(now + policy::pause(self.failures, shared.options.timeout));
                *shared.why.lock() = why.clone();
                let waited = now.saturating_duration_since(self.since);
                if !self.down && waited >= shared.options.timeout {
                    self.go_down(why);
                }
            }
        }
    }

    /// Requests stop waiting for a connection.
    fn go_down(&mut self, why: String) {
        self.down = true;
        self.shared.state.store(DOWN, Ordering::Relaxed);
        self.tell(&RemoteEvent::Down { why });
        while let Some(slot) = self.table.first() {
            let rq = self.table.remove(slot);
            self.complete(rq, Err(self.is_down()));
        }
    }

    /// The other side didn't answer in time, and there is no more time: no connection is sought any
    /// more.
    fn give_up(&mut self) {
        if !self.down {
            self.broke("a request was not sent in its time");
            let why = self.shared.why.lock().clone();
            self.go_down(why);
        }
        self.next_try = None;
    }

    fn connected(&mut self, connections: Vec<Connection>) {
        self.since = self.clock.now();
        (self.next_try, self.down, self.mute) = (None, false, false);
        (self.closing, self.useful) = (false, false);
        self.shared.state.store(connections.len() as u32, Ordering::Relaxed);
        self.connections = connections;
        // Nothing was asked yet: what came all the same is none of ours.
        if self.connections.iter().any(|connection| !connection.bytes.is_empty()) {
            self.broke("it answered before it was asked");
        }
    }

    /// The connections are no good any more: all of them end, and what was on its way waits for the
    /// next ones.
    fn broke(&mut self, why: &str) {
        if self.connections.is_empty() {
            return;
        }
        self.connections.clear();
        let now = self.clock.now();
        let lasted = now.saturating_duration_since(self.since);
        self.failures = policy::failures(self.failures, lasted, self.useful);
        let shared = Arc::clone(&self.shared);
        let pause = policy::pause(self.failures, shared.options.timeout);
        (self.since, self.next_try) = (now, Some(now + pause));
        shared.state.store(RECONNECTING, Ordering::Relaxed);
        *shared.why.lock() = why.to_owned();
        let unflushed = self.durable.broke();
        let sent = self.table.sent();
        let requests = sent.len();
        shared.losses.fetch_add(1, Ordering::Relaxed);
        shared.repeated.fetch_add(requests as u64, Ordering::Relaxed);
        let mut often = Vec::new();
        for slot in sent {
            match self.table.get_mut(slot).answer.take() {
                // It was said before all its bytes had left.
                Some(result) => often.push((slot, result)),
                None if self.table.back_to_line(slot) => {}
                None => {
                    let why = format!("each connection on which it was sent broke; now: {why}");
                    often.push((slot, Err(IoError::with(IoErrorKind::Io(EIO), why))));
                }
            }
        }
        self.tell(&RemoteEvent::Lost { why: why.to_owned(), requests, unflushed });
        for (slot, result) in often {
            let rq = self.table.remove(slot);
            self.complete(rq, result);
        }
    }

    /// Sends what may be sent.
    fn send(&mut self) {
        let (mut from, mut waiting) = (0, Vec::new());
        while !self.closing {
            let Some((n, slot)) = self.table.next(from, &mut waiting) else { break };
            from = n;
            let entry = self.table.get(slot);
            let (op, range) = (entry.rq.op(), entry.range());
            if let Some(result) = self.without_asking(op, &range) {
                let rq = self.table.remove(slot);
                self.complete(rq, result);
                continue;
            }
            let loads = self.connections.iter().enumerate();
            let least = loads.min_by_key(|(_, connection)| connection.load).map(|(on, _)| on);
            let on = if op == Op::Flush { 0 } else { least.unwrap_or(0) };
            let Some(connection) = self.connections.get_mut(on) else { return };
            let slot = self.table.send(n, on);
            connection.load += 1;
            connection.out.push_back(slot);
            let covered = self.durable.covered();
            let entry = self.table.get_mut(slot);
            entry.covers = covered;
            entry.head = policy::head(&entry.rq, entry.cookie, range, self.device.block_size);
        }
        for on in 0..self.connections.len() {
            let sent = self.pump(on);
            self.end_all();
            if let Err(error) = sent {
                return self.broke(&in_words(&error));
            }
        }
    }

    /// How a request ends that the other side isn't asked about.
    fn without_asking(&mut self, op: Op, range: &Range<u64>) -> Option<Result<(), IoError>> {
        match op {
            Op::Flush if self.durable.tell() => {
                self.shared.unflushed.fetch_add(1, Ordering::Relaxed);
                let why =
                    "a connection was lost, and changes before this flush may be lost with it";
                Some(Err(IoError::with(IoErrorKind::Io(EIO), why)))
            }
            Op::Flush if !self.agreed.summary.flags.contains(TransmissionFlags::SEND_FLUSH) => {
                self.durable.flushed(self.durable.covered());
                Some(Ok(()))
            }
            // The other side may have what was there before: a copy elsewhere, as a mirror's other
            // leg, is right.
            Op::Read if self.durable.is_doubtful(range) => {
                let why = "a connection was lost, and a change that was acknowledged here may be lost with it: no flush has told that yet";
                Some(Err(IoError::with(IoErrorKind::Io(EIO), why)))
            }
            // Bytes of which nothing is known are data.
            Op::Extents if self.agreed.allocation.is_none() || self.durable.is_doubtful(range) => {
                Some(Ok(()))
            }
            Op::Read
            | Op::Write
            | Op::Flush
            | Op::Discard
            | Op::WriteZeroes
            | Op::Extents
            | Op::Prefetch => None,
            _ => Some(Err(IoError::new(IoErrorKind::NotSupported))),
        }
    }

    /// Sends as much as the socket takes.
    fn pump(&mut self, on: usize) -> io::Result<()> {
        let Self { table, connections, ends, .. } = self;
        let Some(connection) = connections.get_mut(on) else { return Ok(()) };
        loop {
            let sent = {
                let mut pieces = [IoSlice::new(&[]); MOST_PIECES];
                let mut n = 0;
                let mut skip = connection.gone;
                for &slot in &connection.out {
                    let entry = table.get(slot);
                    let payload = (entry.payload() > 0).then(|| entry.rq.chunks());
                    let all = std::iter::once(&entry.head[..]).chain(payload.into_iter().flatten());
                    for piece in all {
                        let here = skip.min(piece.len() as u64);
                        skip -= here;
                        let rest = &piece[here as usize..];
                        if !rest.is_empty() && n < MOST_PIECES {
                            pieces[n] = IoSlice::new(rest);
                            n += 1;
                        }
                    }
                    if n == MOST_PIECES {
                        break;
                    }
                }
                if n == 0 {
                    return connection.stream.push().or_else(not_yet);
                }
                match connection.stream.send(&pieces[..n]) {
                    Ok(sent) => sent as u64,
                    Err(error) => return not_yet(error),
                }
            };
            connection.gone += sent;
            while let Some(&slot) = connection.out.front() {
                let entry = table.get_mut(slot);
                let whole = REQUEST_LEN as u64 + entry.payload();
                if connection.gone < whole {
                    break;
                }
                connection.gone -= whole;
                connection.out.pop_front();
                entry.leaving = false;
                if let Some(result) = entry.answer.take() {
                    ends.push(AnswerOutcome::Answered(slot, result));
                }
            }
        }
    }

    /// Waits for what comes first: requests, answers, room to send, the time of a request or of an
    /// attempt.
    fn wait(&mut self) {
        let due = [self.table.deadline(), self.next_try].into_iter().flatten().min();
        let more = self.connections.iter().any(|connection| connection.more);
        let now = self.clock.now();
        let due = if more { Some(now) } else { due };
        let wait = |due: Instant| due.saturating_duration_since(now).min(self.clock.slice());
        let wait = due.map(|due| timespec(wait(due)));
        let mut ready = [PollFlags::empty(); policy::MOST_CONNECTIONS];
        {
            let mut all = Vec::with_capacity(1 + self.connections.len());
            all.push(PollFd::new(&self.shared.wake, PollFlags::IN));
            for connection in &self.connections {
                let mut what = connection.stream.interest();
                if !connection.out.is_empty() {
                    what |= PollFlags::OUT;
                }
                all.push(PollFd::new(&connection.stream.socket, what));
            }
            match poll(&mut all, wait.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                // Nothing that a caller could do; it must not become a busy loop.
                Err(error) => {
                    tracing::error!(%error, "the thread of a remote volume cannot wait");
                    thread::sleep(Duration::from_millis(10));
                    return;
                }
            }
            for ((ready, polled), connection) in
                ready.iter_mut().zip(&all[1..]).zip(&self.connections)
            {
                *ready = polled.revents();
                if connection.more {
                    *ready |= PollFlags::IN;
                }
            }
            if !all[0].revents().is_empty() {
                clear(&self.shared.wake);
            }
        }
        for (on, _) in ready.iter().enumerate().filter(|(_, ready)| !ready.is_empty()) {
            let received = self.receive(on);
            self.end_all();
            if let Err(why) = received {
                return self.broke(&why);
            }
        }
        if self.closing && self.table.on_their_way == 0 {
            self.broke("the other side is shutting down");
        }
    }

    /// Receives what has come on all connections, up to a limit. False if they broke.
    fn receive_from_all(&mut self) -> bool {
        for on in 0..self.connections.len() {
            let received = self.receive(on);
            self.end_all();
            if let Err(why) = received {
                self.broke(&why);
                return false;
            }
        }
        true
    }

    /// Takes what has come on a connection.
    fn receive(&mut self, on: usize) -> Result<(), String> {
        let Self { connections, table, ends, .. } = self;
        // Another one may have ended them all.
        let Some(connection) = connections.get_mut(on) else { return Ok(()) };
        let Connection { stream, bytes, answers, more, .. } = connection;
        *more = false;
        for _ in 0..MOST_READS {
            let straight = match answers.straight().filter(|_| bytes.is_empty()) {
                Some((slot, left)) => {
                    let received = stream.receive_read(&mut table.get_mut(slot).rq, *left as usize);
                    received.map(|received| received.inspect(|(came, _)| *left -= *came as u64))
                }
                None => None,
            };
            let received = straight.unwrap_or_else(|| {
                bytes.reserve(ROOM);
                let room = answers.room().min(bytes.capacity() - bytes.len());
                stream.receive(bytes, room).map(|came| (came, room))
            });
            let (came, room) = match received {
                Ok((0, _)) => return Err("the other side hung up".to_owned()),
                Ok(came) => came,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(in_words(&error)),
            };
            answers
                .take(bytes, table, on, ends)
                .map_err(|broken| format!("the other side is out of order: {}", broken.0))?;
            if came < room && !stream.may_have_more() {
                return Ok(());
            }
        }
        *more = true;
        Ok(())
    }

    /// Looks at what has ended, in its order.
    fn end_all(&mut self) {
        let mut ends = std::mem::take(&mut self.ends);
        let mut over = false;
        for end in ends.drain(..) {
            match end {
                AnswerOutcome::Answered(slot, result) => self.end(slot, result),
                AnswerOutcome::Refused(slot) => {
                    self.closing = true;
                    if self.table.get(slot).leaving {
                        // It goes back to the line with all others.
                        over = true;
                        continue;
                    }
                    self.unload(slot);
                    if !self.table.back_to_line(slot) {
                        let rq = self.table.remove(slot);
                        let why = "the other side is shutting down";
                        self.complete(rq, Err(IoError::with(IoErrorKind::Gone, why)));
                    }
                }
            }
        }
        self.ends = ends;
        if over {
            self.broke("the other side is shutting down");
        }
    }

    /// One less is on its way on its connection.
    fn unload(&mut self, slot: usize) {
        let on = self.table.get(slot).on;
        if let Some(connection) = on.and_then(|on| self.connections.get_mut(on)) {
            connection.load -= 1;
        }
    }

    fn end(&mut self, slot: usize, result: Result<(), IoError>) {
        let can_fua = self.device.can_fua;
        self.useful = true;
        let entry = self.table.get_mut(slot);
        if entry.leaving {
            entry.answer = Some(result);
            return;
        }
        if result.is_ok() {
            let op = entry.rq.op();
            if op.is_change() {
                self.durable.change(&entry.range(), entry.rq.flags().fua && can_fua);
            } else if op == Op::Flush {
                self.durable.flushed(entry.covers);
            }
        }
        self.unload(slot);
        let rq = self.table.remove(slot);
        self.complete(rq, result);
    }

    /// Tells the submitter, on this thread: that may submit more, which comes by the inbox.
    fn complete(&mut self, rq: Started, result: Result<(), IoError>) {
        if rq.op() == Op::Flush && result.is_err() {
            // For any reason: nobody takes earlier changes for durable.
            self.durable.tell();
        }
        rq.complete(result);
    }

    fn tell(&self, event: &RemoteEvent) {
        let RemoteOptions { uri, name, .. } = &self.shared.options;
        let device = name.as_deref();
        match event {
            RemoteEvent::Lost { why, requests, unflushed } => tracing::warn!(
                device, %uri, why, requests, unflushed,
                "the connections of a remote volume are lost; requests wait for new ones"
            ),
            RemoteEvent::Back { after, connections } => {
                // Debug: a length of time.
                tracing::info!(device, %uri, ?after, connections, "a remote volume is connected again");
            }
            RemoteEvent::Down { why } => {
                tracing::error!(device, %uri, why, "a remote volume is down: its requests fail at once");
            }
        }
        if let Some(observer) = &self.shared.options.observer {
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| observer(event))) {
                panics::discard(panic);
                tracing::error!("the observer of a remote volume panicked");
            }
        }
    }

    /// Takes leave.
    fn bye(&mut self) {
        let (flags, command) = (CommandFlags::empty(), Command::DISC);
        let bye = Request { flags, command, cookie: 0, offset: 0, length: 0 }.encode();
        for connection in &mut self.connections {
            // The end of the stream says the same.
            let _ = connection.stream.send(&[IoSlice::new(&bye)]);
        }
    }
}

const EIO: i32 = 5;
