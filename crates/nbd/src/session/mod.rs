//! The transmission phase of one connection: its reader, its replies, and its end.
//!
//! * The **reader** (the connection's thread) receives large pieces, judges each request, and
//!   submits a whole batch to the device. It never waits while it holds the flush right or
//!   unsubmitted requests. If it owes nothing, it [may poll](poller) before it sleeps.
//! * **Completions** make replies and post them on the [reply path](crate::reply); they never
//!   block.
//! * The **writer** thread is started when the socket is full for the first time. It takes over the
//!   flush right and blocks instead. If it can't be started, the server's **shared writer** thread
//!   sends for it.
//!
//! At the end, the reader stops (end of the stream, `DISC`, garbage, drain) and waits until every
//! reply has been sent or dropped. If the server drains and this client has written, it flushes the
//! device. Then it closes the socket. So when a client sees the end of a drained connection, its
//! answered writes are durable. The exceptions are a failed flush, and a connection that the
//! deadline cut. The log reports a failed flush; the protocol has no way to. A client that must
//! know sends its own `FLUSH` and waits for the reply.

mod reader;
mod receive;
mod sink;
mod sparse;
mod unaligned;
mod writer;

pub(crate) use receive::PollPermits;
pub(crate) use receive::{Deadlines, SessionEnd};
pub(crate) use writer::STACK;
pub(crate) use writer::SharedWriter;

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::BytesMut;
use corewise_blockmq::{
    BlockDevice, Buffer, Completed, Extent, IoError, IoErrorKind, Payload, Request,
};
use corewise_export::{Client, InDevice, Limiter, SharedDevice};
use corewise_sync::{Parker, behind_burst, panics, text};

use crate::client_log::{ClientFacts, ClientLog, LineKind};
use crate::connection::Connection;
use crate::export::{AllocationDepth, Checkpoints, Export, WriteRefusal};
use crate::handshake::Contexts;
use crate::handshake::{ALLOCATION_CONTEXT, DEPTH_CONTEXT};
use crate::load::Charge;
use crate::load::{Cost, Settlement};
use crate::policy::Limits;
use crate::reply::{Patience, PostOutcome, ReplyPath, Right, RunOutcome};
use crate::tls::Incoming;
use crate::wire::{Form, ReplyError, STATE_DIRTY, StatusExtent, Tag};

use reader::Reader;
use sink::{Body, Reply, SocketSink};
use sparse::HoleProbe;
use writer::Writer;

/// Number of rounds in which a completion thread sends replies that arrive meanwhile, before it
/// hands them to the writer.
const COMPLETION_ROUNDS: u32 = 16;

/// State that the threads of one connection share.
pub(crate) struct Session {
    connection: Arc<Connection>,
    /// Limits of the export and of the connection.
    limiters: Vec<Arc<Limiter>>,
    client: Client,
    refusal: Arc<WriteRefusal>,
    log: Arc<ClientLog>,
    path: ReplyPath<SocketSink>,
    writer: Writer,
    /// Writer for a connection that can't get one of its own; `None` in models.
    shared_writer: Option<Arc<SharedWriter>>,
    poll_permits: Arc<PollPermits>,
    deadlines: Deadlines,
    form: Form,
    /// Metadata contexts that the client has chosen.
    contexts: Contexts,
    checkpoints: Option<Arc<dyn Checkpoints>>,
    depth: Option<Arc<dyn AllocationDepth>>,
    /// The decision which reads ask for holes first.
    hole_probe: HoleProbe,
}

impl Session {
    /// Runs the transmission phase on the calling thread until it is over; blocks. `received` holds
    /// bytes that the client sent after its handshake. With TLS, further bytes come from
    /// `incoming`.
    pub(crate) fn run(
        (connection, log, shared_writer, poll_permits): (
            Arc<Connection>,
            Arc<ClientLog>,
            Option<Arc<SharedWriter>>,
            Arc<PollPermits>,
        ),
        parker: &Parker,
        export: &Export,
        (limits, contexts): (Limits, Contexts),
        deadlines: Deadlines,
        received: BytesMut,
        incoming: Option<Incoming>,
    ) -> SessionEnd {
        let channel = incoming.as_ref().map(|incoming| Arc::clone(incoming.channel()));
        let (writer, writer_parker) = Writer::new();
        let waker = connection.load.unparker().waker();
        let client = Client::new(&export.shared, log.who.clone(), waker);
        let session = Arc::new(Session {
            path: ReplyPath::new(SocketSink::new(
                Arc::clone(&connection),
                Arc::clone(&log),
                deadlines.reply,
                writer_parker,
                channel.clone(),
            )),
            deadlines,
            limiters: Limiter::new(export.client_rate)
                .map(Arc::new)
                .into_iter()
                .chain(export.limiter.clone())
                .collect(),
            client,
            refusal: Arc::clone(&export.refusal),
            connection,
            log,
            writer,
            shared_writer,
            poll_permits,
            form: limits.form,
            contexts,
            checkpoints: export.checkpoints.clone(),
            depth: export.depth.clone(),
            hole_probe: HoleProbe::default(),
        });
        let _stop = StopWriterGuard(&session);
        let mut leave = LeaveGuard { session: &session, clean: false };
        let mut reader = Reader::new(&session, parker, limits, received, incoming);
        let end = reader.run();
        let wrote = reader.wrote();
        drop(reader);
        // The client has read all that it wanted to, and said so.
        let took_all = session.connection.load.snapshot().requests == 0
            && matches!(end, SessionEnd::Disconnected | SessionEnd::StreamEnded);
        session.connection.load.wait_for_zero(parker);
        if wrote && session.connection.load.snapshot().draining {
            session.flush_device(parker);
        }
        leave.clean = took_all && !session.connection.load.snapshot().cut;
        if let Some(channel) = channel {
            channel.close(&session.connection);
        }
        end
    }

    /// Makes the answered changes of this client durable. The flush counts as a request, so the end
    /// waits for it as for one.
    fn flush_device(self: &Arc<Self>, parker: &Parker) {
        self.connection.load.admit(Charge::NONE);
        let session = Arc::clone(self);
        self.device().submit(Request::flush().quiet().on_complete(move |done| {
            let Session { connection, log, client, .. } = &*session;
            if let Err(error) = done.result {
                let what = LineKind::Failed(ReplyError::from_errno(error.errno()));
                log.tell(what, |ClientFacts { client, peer, export }| {
                    let (device, error) = (session.device().name().to_owned(), error.clone());
                    move |left_out: Option<u64>| {
                        tracing::error!(client, %peer, export, device, %error, left_out,
                            "the flush of a drained connection failed");
                    }
                });
            } else {
                client.all_is_durable();
            }
            connection.settle(1, Charge::NONE);
        }));
        self.connection.load.wait_for_zero(parker);
    }

    fn device(&self) -> &Arc<dyn BlockDevice> {
        self.client.device()
    }

    fn shared(&self) -> &Arc<SharedDevice> {
        self.client.shared()
    }

    /// Handles the completion of a request. Runs in an atomic section, on any thread.
    ///
    /// `fast` is true if the request should fail when it isn't faster than a write. Such a failure
    /// is an ordinary reply.
    fn completed(
        self: &Arc<Self>,
        tag: Tag,
        cost: Cost,
        in_device: InDevice,
        fast: bool,
        mut done: Completed,
    ) {
        self.client.ended(in_device, &mut done);
        let payload = mem::take(&mut done.payload);
        let due = cost.due(Some(done.op), done.result.is_ok().then_some(done.len));
        self.answer(tag, due, || match (&done.result, payload) {
            // The head has been in front of the data since the request was made.
            (Ok(()), Payload::One(Buffer::BytesMut(message))) => Body::Message(message),
            (Ok(()), Payload::Extents(extents)) => {
                self.status(tag, done.len, extents.most(), extents.iter())
            }
            (Ok(()), _) => self.form.done(tag),
            (Err(error), _) => {
                if !fast || error.kind() != IoErrorKind::NotSupported {
                    self.tell_failure(&done, error);
                }
                self.form.failed(tag, error)
            }
        });
    }

    /// Makes the reply to a `BLOCK_STATUS` of `length` bytes: at most `most` extents of each chosen
    /// context.
    fn status(
        &self,
        tag: Tag,
        length: u64,
        most: u32,
        allocation: impl Iterator<Item = Extent>,
    ) -> Body {
        let mut all = Vec::new();
        if self.contexts.allocation {
            all.push((ALLOCATION_CONTEXT, allocation.map(sink::status_of).collect()));
        }
        if self.contexts.depth {
            let depth = self.depth.as_ref();
            let depths = depth.and_then(|depth| depth.depths(tag.offset, length, most as usize));
            let Some(depths) = depths else {
                let why = "it isn't known which layer has these bytes";
                return self.form.refused(tag, ReplyError::Io, why, None);
            };
            let extent = |(length, flags): (u64, u32)| StatusExtent { length, flags };
            all.push((DEPTH_CONTEXT, depths.into_iter().map(extent).collect()));
        }
        for (id, name) in (ALLOCATION_CONTEXT + 1..).zip(&self.contexts.dirty) {
            let checkpoints = self.checkpoints.as_ref();
            let changed =
                checkpoints.and_then(|all| all.changed(name, tag.offset, length, most as usize));
            let Some(changed) = changed else {
                let why = format!("the checkpoint '{name}' was deleted");
                return self.form.refused(tag, ReplyError::Inval, &why, None);
            };
            let extent = |(length, changed): (u64, bool)| StatusExtent {
                length,
                flags: if changed { STATE_DIRTY } else { 0 },
            };
            all.push((id, changed.into_iter().map(extent).collect()));
        }
        self.form.status(tag, &all)
    }

    /// Posts the reply to a request. If making it panics, posts a failure.
    fn answer(self: &Arc<Self>, tag: Tag, due: Settlement, make: impl FnOnce() -> Body) {
        self.post(match self.sound(tag, make) {
            Some(body) => Reply::new(body, due),
            None => Reply::new(self.form.broken(tag), due.failed()),
        });
    }

    /// Makes a part of a reply. A panic in it is a fault of the server. The log reports it, and no
    /// client has to wait for its timeout.
    #[cfg_attr(not(test), expect(unused_variables, reason = "a test has it panic by the cookie"))]
    fn sound<T>(&self, tag: Tag, make: impl FnOnce() -> T) -> Option<T> {
        let made = catch_unwind(AssertUnwindSafe(|| {
            #[cfg(test)]
            assert_ne!(tag.cookie, tests::PANICS, "on purpose");
            make()
        }));
        made.map_err(|panic| {
            let log = &self.log;
            log.tell(LineKind::Ours, |ClientFacts { client, peer, export }| {
                let panic = text::message(panics::message(&*panic)).to_string();
                move |left_out: Option<u64>| {
                    tracing::error!(client, %peer, export, left_out, panic,
                        "answering a request panicked: it fails");
                }
            });
            panics::discard(panic);
        })
        .ok()
    }

    /// Logs that the device has failed a client's request.
    fn tell_failure(&self, done: &Completed, error: &IoError) {
        let Session { connection, .. } = self;
        let nobody_waits = || connection.load.snapshot().cut || connection.has_left(done.op);
        // The reader gave the request up for that reason: it never reached the device.
        if error.kind() == IoErrorKind::Gone && nobody_waits() {
            return;
        }
        let log = &self.log;
        let what = LineKind::Failed(ReplyError::from_errno(error.errno()));
        log.tell(what, |ClientFacts { client, peer, export }| {
            let (device, error) = (self.device().name().to_owned(), error.clone());
            let (request, offset, len) = (done.op, done.offset, done.len);
            move |left_out: Option<u64>| {
                let below = error.device_below(&device);
                // If the device has logged the error, its text is there.
                let words = (!error.is_logged()).then(|| error.to_string());
                tracing::warn!(client, %peer, export, device, below, %request, offset, len,
                    errno = error.errno(), error = words, left_out, "a client's request failed");
            }
        });
    }

    /// Posts a reply of a completion, and sends it unless another thread does.
    fn post(self: &Arc<Self>, reply: Box<Reply>) {
        let len = reply.len();
        let posted = self.path.post(reply);
        if matches!(posted, PostOutcome::Left) {
            self.connection.untaken.posted(len);
        }
        if let PostOutcome::YouSend(right) = posted {
            // Replies that are posted meanwhile are sent together with it.
            right.give_up();
            let session = Arc::clone(self);
            behind_burst(move || {
                // SAFETY: this thread gave the right up just before, for this call, which is the
                // only one.
                let right = unsafe { session.path.take_over() };
                session.connection.guard(|| session.send(right, COMPLETION_ROUNDS));
            });
        }
    }

    /// Sends posted replies without blocking. The writer thread gets those that can't be sent now.
    fn send(self: &Arc<Self>, right: Right<'_, SocketSink>, rounds: u32) {
        if let RunOutcome::HandOver(right) = right.run(Patience::None, rounds) {
            writer::hand_over(self, right);
        }
    }
}

/// A guard that ends the writer thread when the reader is done, also by a panic.
struct StopWriterGuard<'a>(&'a Session);

impl Drop for StopWriterGuard<'_> {
    fn drop(&mut self) {
        self.0.writer.stop();
    }
}

/// A guard that records which losses the client knows of when the reader is done, also by a panic.
struct LeaveGuard<'a> {
    session: &'a Session,
    /// True if the client has taken all its replies.
    clean: bool,
}

impl Drop for LeaveGuard<'_> {
    fn drop(&mut self) {
        self.session.client.leave(self.clean);
    }
}

#[cfg(test)]
mod tests;
