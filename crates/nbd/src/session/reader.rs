//! The reading side of a session: bytes to requests, requests to the device, in batches.
//!
//! Rule **nothing held while waiting**: before the reader waits (for bytes, for room) it submits
//! its batch. It also runs the flush right if it has that. Otherwise a completed reply, or a
//! request that could complete, would wait for the client's next byte.

use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use corewise_blockmq::{Flags, Op, Plug, Request as DeviceRequest, Whole};
use corewise_export::turn::{self, Deficit, TurnEntry, Work};
use corewise_export::{blocks, submit_listed};
use corewise_sync::{Parker, time};

use super::receive::Poller;
use super::receive::{Expects, Part, SendTimer, SessionEnd};
use super::receive::{Received, charge};
use super::sink::{EXTENTS, Reply, SPARE, SocketSink};
use super::{Session, sparse, unaligned};
use crate::client_log::{ClientFacts, LineKind};
use crate::load::ArrivalSlot;
use crate::load::Cost;
use crate::policy::{self, Limits, Operation, Verdict, judge};
use crate::reply::{PostOutcome, Right};
use crate::tls::Incoming;
use crate::wire::{
    BadMagic, Command, Form, ReplyError, Request, STATUS_QUERY_LEN, StatusQuery, Tag,
};

/// Places that a batch may take without a turn, if the device completed the last batch on the spot.
const PROMPT: u32 = 2 * turn::QUANTUM;

/// The reader of one session. Lives on the connection's thread.
pub(super) struct Reader<'a> {
    session: &'a Arc<Session>,
    parker: &'a Parker,
    limits: Limits,
    /// Received bytes that aren't parsed yet.
    buffer: Received,
    /// Parsed requests that aren't submitted yet.
    batch: Vec<DeviceRequest>,
    /// The flush right, if a reply of the reader got it. It is run with the batch.
    cork: Option<Right<'a, SocketSink>>,
    /// A refused write whose payload has to be skipped before the reply.
    skipping: Option<SkippedPayload>,
    timer: SendTimer,
    deficit: Deficit,
    /// True if the changes in the batch are listed, and not counted.
    listed: bool,
    /// True once this client has changed blocks in part, so that all clients' changes are listed.
    unaligned: bool,
    /// True if the device had completed all of the last batch when its submission returned.
    prompt: bool,
    wrote: bool,
    /// Arrival time of the last piece, by the connection's clock.
    came: u64,
    /// Slot of the last request's arrival.
    slot: ArrivalSlot,
}

struct SkippedPayload {
    /// Length of the whole payload.
    bytes: usize,
    left: usize,
    reply: Box<Reply>,
}

/// Returns the fields of a request that its reply repeats.
fn tag(request: &Request) -> Tag {
    Tag { cookie: request.cookie, offset: request.offset }
}

/// Returns the device operation of a command.
fn op_of(command: Command) -> Option<Op> {
    Some(match command {
        Command::READ => Op::Read,
        Command::WRITE => Op::Write,
        Command::FLUSH => Op::Flush,
        Command::TRIM => Op::Discard,
        Command::WRITE_ZEROES => Op::WriteZeroes,
        Command::BLOCK_STATUS => Op::Extents,
        Command::CACHE => Op::Prefetch,
        _ => return None,
    })
}

/// The result of parsing.
enum Parsed {
    NeedMore,
    End(SessionEnd),
}

impl<'a> Reader<'a> {
    pub(super) fn new(
        session: &'a Arc<Session>,
        parker: &'a Parker,
        limits: Limits,
        buffer: BytesMut,
        incoming: Option<Incoming>,
    ) -> Reader<'a> {
        let poller = Poller::new(Arc::clone(&session.poll_permits));
        Reader {
            session,
            parker,
            limits,
            buffer: Received::new(buffer),
            batch: Vec::new(),
            cork: None,
            skipping: None,
            timer: SendTimer::new(&session.connection, session.deadlines, incoming, poller),
            deficit: Deficit::default(),
            listed: false,
            unaligned: false,
            prompt: false,
            wrote: false,
            came: session.connection.clock(),
            slot: ArrivalSlot::NONE,
        }
    }

    /// Returns true if this client has changed anything.
    pub(super) fn wrote(&self) -> bool {
        self.wrote
    }

    /// Reads until the stream ends or can't be followed any further. Blocks.
    pub(super) fn run(&mut self) -> SessionEnd {
        let end = loop {
            if let Parsed::End(end) = self.parse() {
                break end;
            }
            self.let_go();
            self.buffer.make_room();
            let expects = match &self.skipping {
                Some(SkippedPayload { bytes, left, .. }) => {
                    Expects::Payload(Part { came: bytes - left, of: *bytes })
                }
                None if self.buffer.is_empty() => Expects::Request,
                None => Expects::Head(Part { came: self.buffer.len(), of: self.head_len() }),
            };
            match self.receive(expects) {
                Ok(0) => break self.end_of_stream(),
                Ok(_) => {}
                Err(end) => break end,
            }
        };
        if let Some(skip) = self.skipping.take() {
            // The payload never came in full; only the refusal is left to send.
            self.post(skip.reply);
        }
        self.let_go();
        end
    }

    fn receive(&mut self, expects: Expects) -> Result<usize, SessionEnd> {
        let connection = &self.session.connection;
        let got = self.timer.receive(connection, &mut self.buffer, None, expects)?;
        self.came = connection.clock();
        Ok(got)
    }

    fn end_of_stream(&self) -> SessionEnd {
        if self.session.connection.load.snapshot().cut {
            SessionEnd::Cut
        } else {
            SessionEnd::StreamEnded
        }
    }

    /// Handles every complete request in the buffer.
    fn parse(&mut self) -> Parsed {
        loop {
            if !self.skip() {
                return Parsed::NeedMore;
            }
            let request = match self.next() {
                Some(Ok(request)) => request,
                Some(Err(error)) => return Parsed::End(SessionEnd::Violation(error.to_string())),
                None => return Parsed::NeedMore,
            };
            let verdict = match judge(&request, &self.limits) {
                Verdict::Submit(operation)
                    if operation.is_change() && self.session.refusal.is_on() =>
                {
                    Verdict::Refuse(ReplyError::Perm)
                }
                verdict => verdict,
            };
            match verdict {
                Verdict::Disconnect => return Parsed::End(SessionEnd::Disconnected),
                Verdict::Hopeless => {
                    let message = format!(
                        "a request with {} bytes behind it, the limit is {}",
                        request.length, self.limits.max_payload
                    );
                    return Parsed::End(SessionEnd::Violation(message));
                }
                Verdict::Submit(_) | Verdict::Done | Verdict::Refuse(_) => {}
            }
            if !self.keep_to_limits(&request, verdict) {
                return Parsed::End(SessionEnd::Cut);
            }
            let bytes = self.memory_of(&request, verdict);
            let Some((cost, draining)) = self.admit(bytes) else {
                return Parsed::End(SessionEnd::Cut);
            };
            let verdict = if draining { Verdict::Refuse(ReplyError::Shutdown) } else { verdict };
            match verdict {
                Verdict::Submit(operation) => match self.submit(&request, operation, cost) {
                    Ok(()) => {}
                    Err(end) => return Parsed::End(end),
                },
                Verdict::Refuse(error) => {
                    if !draining && error != ReplyError::NotSup {
                        self.tell_refusal(&request, error);
                    }
                    self.answer(&request, Err(error), cost);
                }
                Verdict::Done | Verdict::Disconnect | Verdict::Hopeless => {
                    self.answer(&request, Ok(()), cost);
                }
            }
            if self.skipping.is_none() {
                self.timer.whole(&self.session.connection);
            }
        }
    }

    /// Takes the next request out of the buffer, with the query that belongs to it. Returns `None`
    /// if more bytes are needed.
    fn next(&mut self) -> Option<Result<Request, BadMagic>> {
        let form = self.limits.form;
        // A compact request is shorter than an extended one. Its client gets the error now, not
        // after further bytes.
        if let Err(error) = form.check_request(*self.buffer.first_chunk()?) {
            return Some(Err(error));
        }
        let mut used = form.request_len();
        let mut found = match form {
            Form::Simple | Form::Structured => Request::decode(self.buffer.first_chunk()?),
            Form::Extended => Request::decode_extended(self.buffer.first_chunk()?),
        };
        if let Ok(request) = &mut found {
            if policy::has_query(request, &self.limits) {
                let query = self.buffer[used..].first_chunk::<STATUS_QUERY_LEN>()?;
                *request = policy::with_query(request, StatusQuery::decode(query));
                used += STATUS_QUERY_LEN;
            }
        }
        self.buffer.advance(used);
        Some(found)
    }

    /// Returns the length of the head that the buffer begins with, its query included.
    fn head_len(&self) -> usize {
        let form = self.limits.form;
        let query = match self.buffer.first_chunk().map(Request::decode_extended) {
            Some(Ok(request)) if policy::has_query(&request, &self.limits) => STATUS_QUERY_LEN,
            _ => 0,
        };
        form.request_len() + query
    }

    /// Returns the payload's length of a judged request: no more than the largest payload.
    fn payload_len(&self, request: &Request) -> usize {
        request.payload_len(self.limits.form) as usize
    }

    /// Skips a refused payload. Returns false if more of it has to come.
    fn skip(&mut self) -> bool {
        let Some(mut skip) = self.skipping.take() else { return true };
        let here = skip.left.min(self.buffer.len());
        self.buffer.advance(here);
        skip.left -= here;
        if skip.left > 0 {
            self.skipping = Some(skip);
            return false;
        }
        self.post(skip.reply);
        true
    }

    /// Returns the bytes of memory that a request takes.
    fn memory_of(&self, request: &Request, verdict: Verdict) -> u64 {
        let Verdict::Submit(operation) = verdict else { return 0 };
        let Request { offset, length, .. } = *request;
        let shared = self.session.shared();
        let is_unaligned = shared.is_unaligned(offset, length);
        let partial = || match is_unaligned {
            true => blocks::partial_blocks(offset, length, shared.block()) * shared.block(),
            false => 0,
        };
        match operation {
            // The bytes are those of the whole blocks, and of the reply.
            Operation::Read { .. } if is_unaligned => 2 * (length + shared.block()),
            Operation::Read { .. } => length,
            Operation::Write { .. } => charge(length) + partial(),
            Operation::WriteZeroes { .. } => partial(),
            _ => 0,
        }
    }

    /// Waits until the limits let the request pass, or the connection is drained. Returns false if
    /// the connection was cut, or the client has left. Holds nothing meanwhile.
    fn keep_to_limits(&mut self, request: &Request, verdict: Verdict) -> bool {
        let bytes = match verdict {
            Verdict::Submit(Operation::Read { .. }) => request.length,
            _ => request.payload_len(self.limits.form),
        };
        for limiter in &self.session.limiters {
            let now = time::now();
            let wait = limiter.take(now, bytes);
            if wait.is_zero() {
                continue;
            }
            self.let_go();
            let until = policy::after(now, wait);
            let Session { connection, .. } = &**self.session;
            loop {
                let load = connection.load.snapshot();
                let left = until.saturating_duration_since(time::now());
                if load.cut || connection.has_left(Op::Read) {
                    return false;
                }
                if load.draining || left.is_zero() {
                    break;
                }
                self.parker.park_timeout(left);
            }
            self.timer.whole(connection);
        }
        true
    }

    /// Waits for room, and for memory, then counts a request as owed. Also returns true if the
    /// connection is being drained: then no memory is taken. Returns `None` if it was cut.
    fn admit(&mut self, bytes: u64) -> Option<(Cost, bool)> {
        let Session { connection, .. } = &**self.session;
        loop {
            let load = connection.load.snapshot();
            if load.cut {
                return None;
            }
            let bytes = if load.draining { 0 } else { bytes };
            let Some(charge) = connection.load.charge(bytes) else {
                self.let_go();
                connection.load.wait_for_room(self.parker, bytes);
                self.timer.whole(connection);
                continue;
            };
            if charge.pool() > 0 && !connection.pool.try_take(charge.pool()) {
                self.let_go();
                let taken = connection.take_memory(self.parker, charge.pool());
                self.timer.whole(connection);
                if !taken {
                    continue;
                }
            }
            let draining = connection.load.admit(charge).draining;
            self.slot = connection.arrivals.enter(self.slot, self.came);
            return Some((Cost { charge, came: self.came, slot: self.slot }, draining));
        }
    }

    fn tell_refusal(&self, request: &Request, error: ReplyError) {
        let log = &self.session.log;
        log.tell(LineKind::Refused(error), |ClientFacts { client, peer, export }| {
            let Request { command, offset, length, .. } = *request;
            move |left_out: Option<u64>| {
                tracing::warn!(client, %peer, export, request = %command, offset, len = length,
                    errno = error.code(), error = error.message(), left_out,
                    "a client's request was refused");
            }
        });
    }

    /// Replies without the device, once the payload of the request has been skipped.
    fn answer(&mut self, request: &Request, result: Result<(), ReplyError>, cost: Cost) {
        let body = self.session.form.unseen(request.command, tag(request), result);
        let done = result.is_ok().then_some(request.length);
        let due = cost.due(op_of(request.command), done);
        let (reply, left) = (Reply::new(body, due), self.payload_len(request));
        self.skipping = Some(SkippedPayload { bytes: left, left, reply });
    }

    fn submit(
        &mut self,
        request: &Request,
        operation: Operation,
        mut cost: Cost,
    ) -> Result<(), SessionEnd> {
        let (tag, Request { offset, length, .. }) = (tag(request), *request);
        let wants_fua = matches!(
            operation,
            Operation::Write { fua: true }
                | Operation::Trim { fua: true }
                | Operation::WriteZeroes { fua: true, .. }
        );
        let form = self.session.form;
        let is_unaligned = self.session.shared().is_unaligned(offset, length);
        let mut rq = match operation {
            Operation::Read { .. } if is_unaligned => {
                let rq = unaligned::read_around(self.session, tag, length as u32, cost);
                self.push(rq);
                return Ok(());
            }
            Operation::BlockStatus { one } if !self.session.contexts.asks_device() => {
                let most = if one { 1 } else { EXTENTS };
                let due = cost.due(Some(Op::Extents), Some(length));
                let session = Arc::clone(self.session);
                session.answer(tag, due, || session.status(tag, length, most, [].into_iter()));
                return Ok(());
            }
            Operation::BlockStatus { one } if is_unaligned => {
                let most = if one { 1 } else { EXTENTS };
                let rq = unaligned::status_around(self.session, tag, length, most, cost);
                self.push(rq);
                return Ok(());
            }
            // Blocks that the request covers in part would be read and written.
            Operation::WriteZeroes { fast: true, .. } if is_unaligned => {
                self.answer(request, Err(ReplyError::NotSup), cost);
                return Ok(());
            }
            Operation::Read { whole: false } if self.session.hole_probe.asks(length as u32) => {
                let rq = sparse::ask(self.session, tag, length as u32, cost);
                self.batch.push(rq);
                return Ok(());
            }
            Operation::Read { .. } => {
                let spare = self.spare(length as u32);
                let message = form.read(tag, length as u32, spare);
                DeviceRequest::read_into(offset, length as usize, message)
            }
            Operation::BlockStatus { one } => {
                let most = if one { 1 } else { EXTENTS };
                DeviceRequest::extents_of(offset, length, most)
            }
            Operation::Cache => {
                let blocks = blocks::around(offset, length, self.session.shared().block());
                DeviceRequest::prefetch(blocks.start, blocks.end - blocks.start)
            }
            Operation::Write { .. } => match self.payload(length as usize) {
                Ok(payload) => {
                    // The payload was received just now.
                    cost.came = self.came;
                    DeviceRequest::write(offset, payload)
                }
                Err(end) => {
                    self.session.connection.settle(1, cost.charge);
                    return Err(end);
                }
            },
            Operation::Flush => DeviceRequest::flush(),
            Operation::Trim { .. } => {
                let block = self.session.shared().block();
                let Some(blocks) = blocks::inside(offset, length, block) else {
                    self.answer(request, Ok(()), cost);
                    return Ok(());
                };
                DeviceRequest::discard(blocks.start, blocks.end - blocks.start)
            }
            Operation::WriteZeroes { no_hole, fast, .. } => {
                let flags = Flags { no_unmap: no_hole, fast, ..Flags::default() };
                DeviceRequest::write_zeroes(offset, length).with_flags(flags)
            }
        };
        self.wrote |= rq.op().is_change();
        if wants_fua {
            rq = self.session.client.durable(rq);
        }
        let counted = rq.op().is_change() && self.begin_change(&rq);
        let session = Arc::clone(self.session);
        let alone = || session.connection.load.snapshot().requests == 1;
        let (in_device, fast) = (session.client.begin(&rq, counted, alone), rq.flags().fast);
        self.push(
            rq.quiet().on_complete(move |done| session.completed(tag, cost, in_device, fast, done)),
        );
        Ok(())
    }

    /// Returns true if the change is counted, and false if it is listed. Blocks at the client's
    /// first change of a part of a block.
    fn begin_change(&mut self, rq: &DeviceRequest) -> bool {
        if !self.unaligned && self.session.shared().is_unaligned(rq.offset(), rq.len()) {
            self.list();
        }
        let counted = !self.unaligned && self.session.client.changes().begin();
        if self.listed == counted {
            self.let_go();
            self.listed = !counted;
        }
        counted
    }

    /// Makes the changes of all clients listed ones. Waits for the last counted one, or for the end
    /// of the connection.
    fn list(&mut self) {
        self.unaligned = true;
        self.let_go();
        let Session { connection, client, .. } = &**self.session;
        let changes = client.changes();
        changes.list();
        while !changes.are_listed() && !connection.load.snapshot().cut {
            self.parker.park();
        }
    }

    fn push(&mut self, rq: DeviceRequest) {
        let work = self.session.client.work(&rq);
        match self.session.client.goes_in_parts(work, rq.op(), rq.offset(), rq.len()) {
            true => self.submit_in_pieces(rq, work),
            false => self.batch.push(rq),
        }
    }

    /// Sends a long request to the device piece by piece, each by its turn, and waits for all but
    /// the last ones. It ends early if the connection is given up, or the client has left.
    fn submit_in_pieces(&mut self, rq: DeviceRequest, work: Work) {
        let (op, offset, end) = (rq.op(), rq.offset(), rq.offset() + rq.len());
        let (piece, block) = (work.piece(), self.session.shared().block());
        let is_long = rq.len() > piece;
        let whole = Whole::new(rq);
        let mut from = offset;
        while from < end {
            let Session { connection, .. } = &**self.session;
            if connection.load.snapshot().cut || is_long && connection.has_left(op) {
                // Dropping the rest fails the whole.
                drop(whole.part(from - offset, end - from, from));
                return;
            }
            // The device is likely to have a boundary there, too.
            let to = blocks::piece_end(from, end, piece, block);
            let session = Arc::clone(self.session);
            let part = whole.part_with(from - offset, to - from, from, move |done| {
                session.client.left(work, to - from);
                done.record();
            });
            self.batch.push(part);
            if is_long {
                self.let_go();
            }
            from = to;
        }
    }

    /// Returns the next `length` bytes of the stream. A payload that fits into the buffer is taken
    /// from it. A larger one is received into memory of its own, and only the bytes that came with
    /// its head are copied.
    fn payload(&mut self, length: usize) -> Result<Bytes, SessionEnd> {
        while self.buffer.len() < length {
            self.let_go();
            let room = self.buffer.capacity() - self.buffer.len();
            if room < length - self.buffer.len() {
                return self.large_payload(length);
            }
            let part = Part { came: self.buffer.len(), of: length };
            if self.receive(Expects::Payload(part))? == 0 {
                return Err(self.end_of_stream());
            }
        }
        Ok(self.buffer.take(length))
    }

    fn large_payload(&mut self, length: usize) -> Result<Bytes, SessionEnd> {
        let mut payload = BytesMut::with_capacity(length);
        payload.extend_from_slice(&self.buffer);
        self.buffer.clear();
        while payload.len() < length {
            let part = Part { came: payload.len(), of: length };
            let (missing, expects) = (length - payload.len(), Expects::Payload(part));
            let Session { connection, .. } = &**self.session;
            if self.timer.receive(connection, &mut payload, Some(missing), expects)? == 0 {
                return Err(self.end_of_stream());
            }
        }
        self.came = self.session.connection.clock();
        Ok(payload.freeze())
    }

    /// Returns the memory of an earlier reply, for a read of `length` bytes. The sink owns it, so
    /// replies are corked from here on. The reader then parses the bytes that it has, and waits for
    /// none.
    fn spare(&mut self, length: u32) -> Option<BytesMut> {
        let bytes = self.session.form.read_len(length);
        if bytes > SPARE {
            return None;
        }
        if self.cork.is_none() {
            self.cork = self.session.path.cork();
        }
        self.cork.as_mut()?.with_sink(|sink| sink.spare(bytes))
    }

    /// Posts a reply of the reader. If that wins the flush right, the right is run with the batch.
    fn post(&mut self, reply: Box<Reply>) {
        if let PostOutcome::YouSend(right) = self.session.path.post(reply) {
            self.cork = Some(right);
        }
    }

    /// Submits the batch with the replies corked, and sends replies that are ready. Blocks only
    /// while other connections have their turns at the device before this one.
    fn let_go(&mut self) {
        while !self.batch.is_empty() {
            let Some(count) = self.enter() else {
                self.drop_batch();
                break;
            };
            if self.cork.is_none() {
                self.cork = self.session.path.cork();
            }
            let (device, shared) = (self.session.device(), self.session.shared());
            // A client that changes nothing never waits for others' changes.
            let works = self.batch[..count].iter().any(|rq| rq.op().is_change());
            // Devices below get the parts of the batch together.
            let mut submit = |_: &Plug| {
                if self.listed {
                    for rq in self.batch.drain(..count) {
                        match rq.op().is_change() {
                            true => submit_listed(shared, rq),
                            false => device.submit(rq),
                        }
                    }
                } else {
                    device.submit_batch(&mut self.batch.drain(..count));
                }
            };
            if works {
                Plug::working(submit)
            } else {
                submit(&Plug::start())
            }
            self.prompt = self.session.client.turn().is_empty();
        }
        self.send();
    }

    /// Runs the flush right if the reader has it. Doesn't block.
    fn send(&mut self) {
        if let Some(right) = self.cork.take() {
            // The reader submits nothing meanwhile, so the rounds end with the requests in flight.
            self.session.send(right, u32::MAX);
        }
    }

    /// Enters the device with the first requests of the batch, and returns their number. Returns
    /// `None` if the connection was cut before its turn came.
    fn enter(&mut self) -> Option<usize> {
        let turn = self.session.client.turn();
        let places = |rq: &DeviceRequest| self.session.client.work(rq).places(rq.len());
        let demand = self.deficit.demand(self.batch.iter().map(places));
        // A device that completes on the spot has no queue, so it needs no turns.
        if self.prompt && demand.all <= PROMPT {
            turn.force(demand.all);
            return Some(self.batch.len());
        }
        let mut entry = turn.enter(demand);
        if entry == TurnEntry::Queued {
            self.send();
        }
        while entry == TurnEntry::Queued {
            self.parker.park();
            entry = turn.granted();
            if entry == TurnEntry::Queued && self.session.connection.load.snapshot().cut {
                entry = turn.give_up();
                if entry == TurnEntry::Queued {
                    return None;
                }
            }
        }
        let mut left = self.deficit.entered(demand, entry);
        let entering = self.batch.iter().take_while(|rq| {
            let goes = left > 0;
            left = left.saturating_sub(places(rq));
            goes
        });
        Some(entering.count())
    }

    /// Ends the unsubmitted requests. They leave the device without having been there.
    fn drop_batch(&mut self) {
        for rq in self.batch.drain(..) {
            self.session.client.turn().force(self.session.client.work(&rq).places(rq.len()));
        }
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.drop_batch();
    }
}
