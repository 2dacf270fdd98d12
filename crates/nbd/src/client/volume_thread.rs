//! The thread of a remote volume. It alone owns the connections and the requests, so none of them
//! needs a lock.
//!
//! A round: *Admit* submitted requests, *Expire* late ones, *Connect* or *Send*, then *Wait* for
//! the first event, and *Receive*. All connections belong to one set (README.md): if one breaks,
//! the others end too, and their requests wait for the next set.

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

use super::client_handshake::{RemoteAgreement, Replies};
use super::replies::{ReplyParser, RequestOutcome};
use super::stream::{self, HandshakeWait, ROOM, Stream, clear, in_words, not_yet};
use super::table::Durable;
use super::table::Table;
use super::{DOWN, RECONNECTING, RemoteEvent, RemoteOptions, VolumeShared, policy};
use crate::deadline::timespec;
use crate::wire::{Command, CommandFlags, REQUEST_LEN, Request, TransmissionFlags};

/// Largest number of pieces that are sent together.
const MOST_PIECES: usize = 64;
/// Largest number of reads from one connection in a round, so that the others get their turn.
const MOST_READS: usize = 8;

/// One connection after its handshake.
pub(super) struct Connection {
    stream: Stream,
    /// Received bytes that aren't parsed yet.
    bytes: BytesMut,
    parser: ReplyParser,
    /// Requests to send, in this order.
    out: VecDeque<usize>,
    /// Bytes of the first of them that have been sent.
    gone: u64,
    /// Number of requests on their way on this connection.
    load: usize,
    /// True if TLS may hold more received bytes, which the socket doesn't report.
    more: bool,
}

/// Makes as many connections as are wanted and allowed. With `before`, the export has to be one
/// that this device, with the agreement of its last connections, can continue with.
pub(super) fn begin(
    shared: &VolumeShared,
    before: Option<(&Geometry, &RemoteAgreement)>,
    clock: &mut PausableClock,
) -> Result<(Vec<Connection>, RemoteAgreement), String> {
    // One deadline for all connections: requests aren't served meanwhile.
    let deadline = clock.now() + shared.options.connect_timeout;
    let (first, agreed) = dial(shared, deadline, clock)?;
    if let Some((device, before)) = before {
        // The check and the change are under one lock, so that the device doesn't meanwhile grow to
        // a size that the server no longer has.
        let mut sizes = shared.sizes.lock();
        let device = Geometry { size: sizes.device, ..*device };
        sizes.export = policy::still(&device, before, &agreed)?;
    }
    let mut connections = vec![first];
    if agreed.summary.flags.contains(TransmissionFlags::CAN_MULTI_CONN) {
        for _ in 1..shared.options.connections {
            match dial(shared, deadline, clock) {
                Ok((more, theirs)) if theirs.is_like(&agreed) => connections.push(more),
                // The server may accept fewer connections, or answer too late.
                _ => break,
            }
        }
    }
    Ok((connections, agreed))
}

fn dial(
    shared: &VolumeShared,
    deadline: Instant,
    clock: &mut PausableClock,
) -> Result<(Connection, RemoteAgreement), String> {
    let clock = RefCell::new(clock);
    let wait = HandshakeWait { deadline, clock, wake: &shared.wake, stop: &shared.stop };
    let (stream, bytes, agreed) = stream::open(&shared.options, &wait, Replies::Structured)?;
    let changes = shared.options.checkpoint.is_some();
    let parser = ReplyParser::new(agreed.structured, agreed.allocation, changes);
    Ok((
        Connection { stream, bytes, parser, out: VecDeque::new(), gone: 0, load: 0, more: false },
        agreed,
    ))
}

/// Starts the thread.
pub(super) fn start(
    shared: Arc<VolumeShared>,
    connections: Vec<Connection>,
    agreed: RemoteAgreement,
    device: Geometry,
    mut clock: PausableClock,
) -> io::Result<thread::JoinHandle<()>> {
    let mut volume = VolumeThread {
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
        volume.connected(connections);
        volume.run();
    })
}

struct VolumeThread {
    shared: Arc<VolumeShared>,
    device: Geometry,
    agreed: RemoteAgreement,
    /// Connections in the order of their making: flushes go to the first.
    connections: Vec<Connection>,
    table: Table,
    durable: Durable,
    /// Ended requests that aren't handled yet.
    ends: Vec<RequestOutcome>,
    /// Clock of all times here. It stands still while this process does, so a pause makes no reply
    /// late.
    clock: PausableClock,
    /// Time at which the connections were made or lost.
    since: Instant,
    /// Number of failed attempts in a row.
    failures: u32,
    /// True if the connections have answered a request.
    useful: bool,
    /// Time of the next attempt; `None` while there are connections.
    next_try: Option<Instant>,
    /// True if requests no longer wait for a connection.
    down: bool,
    /// True if a request timed out and no connection has been made since.
    mute: bool,
    /// True if the server is shutting down: nothing more is sent to it.
    closing: bool,
}

impl VolumeThread {
    fn run(&mut self) {
        let shared = Arc::clone(&self.shared);
        loop {
            self.admit();
            // Relaxed: the write to the eventfd makes this loop look again.
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
                    // Waits inside it cleared the eventfd: the inbox has to be emptied before the
                    // thread sleeps.
                    continue;
                }
                Some(_) => {}
                None => self.send(),
            }
            self.wait();
        }
    }

    /// Takes the submitted requests.
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

    /// Fails the requests that are late, after it has received all replies that have come.
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
                // Its reply may still come, and could be taken for another's.
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

    /// Stops requests from waiting for a connection.
    fn go_down(&mut self, why: String) {
        self.down = true;
        self.shared.state.store(DOWN, Ordering::Relaxed);
        self.tell(&RemoteEvent::Down { why });
        while let Some(slot) = self.table.first() {
            let rq = self.table.remove(slot);
            self.complete(rq, Err(self.is_down()));
        }
    }

    /// Fails all requests and stops connecting: the server didn't answer in time, and the volume is
    /// being closed.
    fn give_up(&mut self) {
        if !self.down {
            self.broke("a request could not be sent in time");
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
        // No request was sent yet, so a reply belongs to none.
        if self.connections.iter().any(|connection| !connection.bytes.is_empty()) {
            self.broke("the remote server sent an answer before any request");
        }
    }

    /// Ends all connections after an error. Requests on their way wait for the next ones.
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
                // The result came before all bytes of the request had been sent.
                Some(result) => often.push((slot, result)),
                None if self.table.requeue(slot) => {}
                None => {
                    let why = format!(
                        "every connection that carried this request broke; the last error: {why}"
                    );
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

    /// Sends the requests that may be sent.
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

    /// Returns the result of a request that isn't sent to the server.
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
            // The server may return older data. Another copy, as on a mirror's other leg, is right.
            Op::Read if self.durable.is_doubtful(range) => {
                let why = "a connection was lost, and an acknowledged change here may be lost \
                           with it. The next flush reports this";
                Some(Err(IoError::with(IoErrorKind::Io(EIO), why)))
            }
            // Bytes of unknown state count as data.
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
                    ends.push(RequestOutcome::Answered(slot, result));
                }
            }
        }
    }

    /// Waits for the first of: new requests, replies, room to send, the deadline of a request or of
    /// an attempt.
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
                // A caller could do nothing about the error. The pause keeps this from becoming a
                // busy loop.
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
            self.broke("the remote server is shutting down");
        }
    }

    /// Receives replies on all connections, up to a limit. Returns false if they broke.
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

    /// Receives and parses the bytes of a connection.
    fn receive(&mut self, on: usize) -> Result<(), String> {
        let Self { connections, table, ends, .. } = self;
        // Another connection may have ended them all.
        let Some(connection) = connections.get_mut(on) else { return Ok(()) };
        let Connection { stream, bytes, parser, more, .. } = connection;
        *more = false;
        for _ in 0..MOST_READS {
            let straight = match parser.straight().filter(|_| bytes.is_empty()) {
                Some((slot, left)) => {
                    let received = stream.receive_read(&mut table.get_mut(slot).rq, *left as usize);
                    received.map(|received| received.inspect(|(came, _)| *left -= *came as u64))
                }
                None => None,
            };
            let received = straight.unwrap_or_else(|| {
                bytes.reserve(ROOM);
                let room = parser.room().min(bytes.capacity() - bytes.len());
                stream.receive(bytes, room).map(|came| (came, room))
            });
            let (came, room) = match received {
                Ok((0, _)) => return Err("the remote server hung up".to_owned()),
                Ok(came) => came,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(in_words(&error)),
            };
            parser.take(bytes, table, on, ends).map_err(|broken| {
                format!("the remote server violates the NBD protocol: {}", broken.0)
            })?;
            if came < room && !stream.may_have_more() {
                return Ok(());
            }
        }
        *more = true;
        Ok(())
    }

    /// Handles ended requests, in order.
    fn end_all(&mut self) {
        let mut ends = std::mem::take(&mut self.ends);
        let mut over = false;
        for end in ends.drain(..) {
            match end {
                RequestOutcome::Answered(slot, result) => self.end(slot, result),
                RequestOutcome::Refused(slot) => {
                    self.closing = true;
                    if self.table.get(slot).leaving {
                        // All requests go back to the queue, this one too.
                        over = true;
                        continue;
                    }
                    self.unload(slot);
                    if !self.table.requeue(slot) {
                        let rq = self.table.remove(slot);
                        let why = "the remote server is shutting down";
                        self.complete(rq, Err(IoError::with(IoErrorKind::Gone, why)));
                    }
                }
            }
        }
        self.ends = ends;
        if over {
            self.broke("the remote server is shutting down");
        }
    }

    /// Counts a request as no longer on its way on its connection.
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

    /// Completes a request on this thread. The submitter may submit more, through the inbox.
    fn complete(&mut self, rq: Started, result: Result<(), IoError>) {
        if rq.op() == Op::Flush && result.is_err() {
            // From now on no client takes earlier changes for durable.
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

    /// Ends the connections in the protocol's way.
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
