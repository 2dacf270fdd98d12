//! Replies in the form that a client has chosen, and the sending end of a connection.
//!
//! The holder of the flush right owns the [`SocketSink`]. It sends replies in order, many in one
//! call, and the rest of a half-sent one.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use corewise_blockmq::{Extent, ExtentKind, IoError};
use corewise_sync::Parker;
use corewise_sync::inbox::{Batch, HasLink, Link};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use crate::client_log::{ClientFacts, ClientLog, LineKind, tell};
use crate::connection::Connection;
use crate::deadline::Deadline;
use crate::load::{Charge, Settlement};
use crate::policy;
use crate::reply::{Patience, SendOutcome, Sink};
use crate::tls::Channel;
use crate::wire::{
    Command, EXTENDED_CHUNK_LEN, Form, ReplyError, ReplyFlags, SIMPLE_REPLY_LEN, STATE_HOLE,
    STATE_ZERO, SimpleReply, StatusExtent, Tag, encode_block_status, encode_data, encode_done,
    encode_error, encode_hole,
};

/// Largest number of replies that one system call sends. It is far below the kernel's limit of
/// 1,024, and enough to make the call cheap.
const PER_CALL: usize = 128;
/// Number of replies that fit into the short list of a call.
const FEW: usize = 8;

/// Largest reply whose memory is used again, in bytes: a read of a page, with its head.
pub(super) const SPARE: usize = 4096 + 64;
/// Least reply whose memory is kept: smaller blocks are cheap to allocate.
const SPARE_MIN: usize = 1 << 10;
/// Largest number of kept memory blocks.
const SPARES: usize = 32;

/// One reply that is ready to be sent, or a chunk of one.
pub(crate) struct Reply {
    link: Link,
    body: Body,
    /// Charge and statistics to settle when it has left; `None` if more of its reply follows.
    due: Option<Settlement>,
    /// Time since which it waits for its client to take earlier ones, by the connection's clock; 0
    /// if it doesn't.
    waits: u64,
}

pub(super) enum Body {
    Head([u8; SIMPLE_REPLY_LEN]),
    /// An extended head without further data.
    Long([u8; EXTENDED_CHUNK_LEN]),
    /// A head and its data, in one piece.
    Message(BytesMut),
}

impl Reply {
    /// Creates a reply, or the last chunk of one.
    pub(super) fn new(body: Body, due: Settlement) -> Box<Reply> {
        Box::new(Reply { link: Link::new(), body, due: Some(due), waits: 0 })
    }

    /// Creates chunks of a reply that continues.
    pub(super) fn more(chunks: BytesMut) -> Box<Reply> {
        Box::new(Reply { link: Link::new(), body: Body::Message(chunks), due: None, waits: 0 })
    }

    /// Returns its length in bytes.
    pub(super) fn len(&self) -> usize {
        self.bytes().len()
    }

    fn bytes(&self) -> &[u8] {
        match &self.body {
            Body::Head(bytes) => bytes,
            Body::Long(bytes) => bytes,
            Body::Message(bytes) => bytes,
        }
    }
}

// SAFETY: always the same field of the same value.
unsafe impl HasLink for Reply {
    fn link(&self) -> &Link {
        &self.link
    }
}

/// The socket, and the replies that couldn't be sent yet.
pub(crate) struct SocketSink {
    connection: Arc<Connection>,
    log: Arc<ClientLog>,
    waiting: VecDeque<Box<Reply>>,
    /// TLS channel through which replies are sent, if there is one.
    channel: Option<Arc<Channel>>,
    /// Bytes of replies that the channel has encrypted and that haven't left.
    encrypted: usize,
    /// Bytes of the first waiting reply that have been sent.
    sent_of_first: usize,
    /// Timeout of a reply.
    timeout: Duration,
    /// Deadline of the first waiting reply, once a thread waits for it.
    deadline: Option<Deadline>,
    /// True if the connection shows that replies wait.
    shows: bool,
    /// True if the socket failed: replies are dropped from now on.
    broken: bool,
    /// Memory of replies that were sent.
    spares: Vec<BytesMut>,
    /// Parker of the writer thread, until that is started.
    pub(super) writer_parker: Option<Parker>,
}

impl SocketSink {
    pub(crate) fn new(
        connection: Arc<Connection>,
        log: Arc<ClientLog>,
        timeout: Duration,
        writer_parker: Parker,
        channel: Option<Arc<Channel>>,
    ) -> SocketSink {
        SocketSink {
            channel,
            encrypted: 0,
            connection,
            log,
            timeout,
            deadline: None,
            shows: false,
            waiting: VecDeque::new(),
            sent_of_first: 0,
            broken: false,
            spares: Vec::new(),
            writer_parker: Some(writer_parker),
        }
    }

    /// Gives the connection up, since its replies can't be sent. The reader stops too, however many
    /// bytes are left to read.
    pub(super) fn give_up(&mut self, why: impl FnOnce() -> String) {
        self.broken = true;
        self.connection.cut(why);
    }

    fn send_some(&mut self) -> Result<usize, Errno> {
        // A few replies need no long list, which would be built again each time.
        if self.waiting.len() <= FEW {
            self.send_up_to::<FEW>()
        } else {
            self.send_up_to::<PER_CALL>()
        }
    }

    fn send_up_to<const MOST: usize>(&mut self) -> Result<usize, Errno> {
        let mut slices = [IoSlice::new(&[]); MOST];
        let mut count = 0;
        for (slot, reply) in slices.iter_mut().zip(&self.waiting) {
            let from = if count == 0 { self.sent_of_first } else { 0 };
            *slot = IoSlice::new(&reply.bytes()[from..]);
            count += 1;
        }
        let slices = &slices[..count];
        if let Some(channel) = &self.channel {
            return channel.send(&self.connection, &mut self.encrypted, slices);
        }
        sendmsg(
            &self.connection.socket,
            slices,
            &mut SendAncillaryBuffer::default(),
            SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
        )
    }

    /// Returns memory of a sent reply for a reply of `length` bytes.
    pub(super) fn spare(&mut self, length: usize) -> Option<BytesMut> {
        // A block that is too small is freed: from now on replies are larger.
        self.spares.pop().filter(|spare| spare.capacity() >= length)
    }

    fn keep(&mut self, reply: Reply) {
        if let Body::Message(mut message) = reply.body {
            if (SPARE_MIN..=SPARE).contains(&message.capacity()) && self.spares.len() < SPARES {
                message.clear();
                self.spares.push(message);
            }
        }
    }

    /// Removes sent bytes from the queue, and settles replies that left.
    fn sent(&mut self, bytes: usize) {
        let mut of_first = self.sent_of_first + bytes;
        let (mut requests, mut cost, mut now) = (0, Charge::NONE, None);
        while let Some(first) = self.waiting.front() {
            let len = first.bytes().len();
            if of_first < len {
                break;
            }
            of_first -= len;
            if let Some(due) = &first.due {
                let now = *now.get_or_insert_with(|| self.connection.clock());
                due.count(&self.connection.counts, now);
                self.connection.arrivals.leave(due.cost.slot);
                cost += due.cost.charge;
                requests += 1;
            }
            if let Some(reply) = self.waiting.pop_front() {
                self.keep(*reply);
            }
            if let Some(deadline) = self.deadline.take() {
                self.exclude(deadline.paused());
            }
        }
        self.sent_of_first = of_first;
        self.connection.settle(requests, cost);
    }

    /// Records since when each reply waits, and shows it: the socket is full.
    fn note_full(&mut self) {
        let now = self.connection.clock().max(1);
        for reply in self.waiting.iter_mut().rev().take_while(|reply| reply.waits == 0) {
            reply.waits = now;
        }
        let (since, bytes) = self.waiting_replies();
        self.connection.untaken.wait(since, bytes);
        self.shows = true;
    }

    /// Subtracts a pause of this process from the waiting times of replies.
    fn exclude(&mut self, paused: Duration) {
        if paused.is_zero() {
            return;
        }
        let paused = u64::try_from(paused.as_nanos()).unwrap_or(u64::MAX);
        let now = self.connection.clock().max(1);
        for reply in self.waiting.iter_mut().filter(|reply| reply.waits != 0) {
            reply.waits = reply.waits.saturating_add(paused).min(now);
        }
    }

    /// Returns the time since which the first reply waits, and the bytes of all waiting replies.
    fn waiting_replies(&self) -> (u64, u64) {
        let all: usize = self.waiting.iter().map(|reply| reply.len()).sum();
        let since = self.waiting.front().map_or(0, |reply| reply.waits);
        (since, all.saturating_sub(self.sent_of_first) as u64)
    }

    /// Returns the deadline of the first waiting reply.
    fn deadline(&mut self) -> &mut Deadline {
        let first = self.waiting.front().map_or(0, |reply| reply.len());
        let time = policy::time_for(self.timeout, first as u64);
        self.deadline.get_or_insert_with(|| Deadline::after(time))
    }

    /// Returns the length of the next wait for room; zero if the client is late.
    pub(super) fn time_left(&mut self) -> Duration {
        self.deadline().wait()
    }

    /// Waits for room in the socket. A client that takes a byte now and then gets no more time for
    /// a reply than one that takes nothing. Blocks.
    fn wait(&mut self) {
        let connection = Arc::clone(&self.connection);
        match connection.wait_for_space(self.deadline()) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::TimedOut => self.too_late(),
            Err(error) => self.give_up(|| format!("the client's socket failed: {error}")),
        }
    }

    /// Gives up a client that hasn't taken its reply in time.
    pub(super) fn too_late(&mut self) {
        let (since, bytes) = self.connection.untaken.read().unwrap_or_default();
        let paused = self.deadline().paused();
        let oldest = policy::rounded(self.connection.since(since).saturating_sub(paused));
        let (log, timeout) = (Arc::clone(&self.log), self.timeout);
        // Debug: lengths of time.
        let why = format!(
            "the client did not read its replies: {bytes} bytes wait, and the oldest reply for \
             {oldest:?} (reply_timeout: {timeout:?})"
        );
        log.tell(LineKind::Slow, |ClientFacts { client, peer, export }| {
            let why = why.clone();
            move |left_out: Option<u64>| {
                // Debug: lengths of time.
                tracing::warn!(client, %peer, export, bytes, ?oldest, ?timeout, left_out, "closed: {why}");
            }
        });
        self.give_up(|| why);
    }

    fn drop_all(&mut self) {
        let (mut requests, mut cost) = (0, Charge::NONE);
        for due in self.waiting.drain(..).filter_map(|reply| reply.due) {
            requests += 1;
            self.connection.arrivals.leave(due.cost.slot);
            cost += due.cost.charge;
        }
        (self.sent_of_first, self.encrypted) = (0, 0);
        self.connection.settle(requests, cost);
    }
}

impl Sink for SocketSink {
    type Reply = Box<Reply>;

    fn send(&mut self, batch: Batch<Box<Reply>>, patience: Patience) -> SendOutcome {
        self.waiting.extend(batch);
        while !self.waiting.is_empty() {
            if self.broken {
                self.drop_all();
                break;
            }
            match self.send_some() {
                Ok(bytes) => self.sent(bytes),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.note_full();
                    match patience {
                        Patience::None => return SendOutcome::Full,
                        Patience::Unlimited => self.wait(),
                    }
                }
                Err(error) => {
                    tell(|| {
                        tracing::debug!(client = self.log.client, peer = %self.log.who, %error,
                            "cannot send replies: the client is gone");
                    });
                    self.give_up(|| format!("the client's socket failed: {error}"));
                }
            }
        }
        if self.shows {
            self.connection.untaken.none();
            self.shows = false;
        }
        SendOutcome::All
    }
}

/// Largest number of extents in one `BLOCK_STATUS` reply: 16 KiB of them.
pub(super) const EXTENTS: u32 = 1024;

impl Form {
    /// Returns the length of the reply to a read of `length` bytes.
    pub(super) fn read_len(self, length: u32) -> usize {
        let head = if self.has_chunks() { self.data_chunk_len() } else { SIMPLE_REPLY_LEN };
        head + length as usize
    }

    /// Creates the head of a successful read of `length` bytes, with room for them after it. Uses
    /// `spare`, if there is one.
    pub(super) fn read(self, tag: Tag, length: u32, spare: Option<BytesMut>) -> BytesMut {
        let mut message = spare.unwrap_or_else(|| BytesMut::with_capacity(self.read_len(length)));
        match self.has_chunks() {
            true => encode_data(&mut message, self, ReplyFlags::DONE, tag, tag.offset, length),
            false => message.extend_from_slice(&SimpleReply::new(tag.cookie, Ok(())).encode()),
        }
        message
    }

    /// Creates the reply to a successful request without data: a simple reply, or an extended one.
    pub(super) fn done(self, tag: Tag) -> Body {
        match self {
            Form::Simple | Form::Structured => {
                Body::Head(SimpleReply::new(tag.cookie, Ok(())).encode())
            }
            Form::Extended => self.end(tag),
        }
    }

    /// Creates the reply to a request that didn't reach the device.
    pub(super) fn unseen(self, command: Command, tag: Tag, result: Result<(), ReplyError>) -> Body {
        match result {
            Ok(()) if self.has_chunks() && command == Command::READ => self.end(tag),
            Ok(()) => self.done(tag),
            Err(error) => self.refused(tag, error, error.message(), None),
        }
    }

    /// Creates the reply to a request that the device failed.
    pub(super) fn failed(self, tag: Tag, error: &IoError) -> Body {
        let (message, offset) = (error.to_string(), error.range().map(|range| range.start));
        self.refused(tag, ReplyError::from_errno(error.errno()), &message, offset)
    }

    /// Creates the reply for a panic while the reply was made.
    pub(super) fn broken(self, tag: Tag) -> Body {
        self.refused(tag, ReplyError::Io, "the server failed to answer", None)
    }

    pub(super) fn refused(
        self,
        tag: Tag,
        error: ReplyError,
        message: &str,
        offset: Option<u64>,
    ) -> Body {
        if !self.has_chunks() {
            return Body::Head(SimpleReply::new(tag.cookie, Err(error)).encode());
        }
        let mut out = BytesMut::new();
        encode_error(&mut out, self, ReplyFlags::DONE, tag, error, message, offset);
        Body::Message(out)
    }

    /// Creates the head of a chunk of `length` bytes of data, with room for them after it.
    pub(super) fn data(self, flags: ReplyFlags, tag: Tag, offset: u64, length: u32) -> BytesMut {
        let mut message = BytesMut::with_capacity(self.data_chunk_len() + length as usize);
        encode_data(&mut message, self, flags, tag, offset, length);
        message
    }

    /// Creates the last chunk of a reply whose other chunks have been posted.
    pub(super) fn end(self, tag: Tag) -> Body {
        if self == Form::Extended {
            let mut head = [0; EXTENDED_CHUNK_LEN];
            encode_done(&mut &mut head[..], self, tag);
            return Body::Long(head);
        }
        let mut out = BytesMut::with_capacity(self.chunk_len());
        encode_done(&mut out, self, tag);
        Body::Message(out)
    }

    /// Creates chunks for holes; the last one ends the reply if `ends` is true.
    pub(super) fn holes(self, tag: Tag, holes: &[(u64, u32)], ends: bool) -> BytesMut {
        let mut out = BytesMut::with_capacity(holes.len() * (self.data_chunk_len() + 4));
        for (n, (offset, length)) in holes.iter().enumerate() {
            let last = ends && n + 1 == holes.len();
            let flags = ReplyFlags::empty().with_if(last, ReplyFlags::DONE);
            encode_hole(&mut out, self, flags, tag, *offset, *length);
        }
        out
    }

    /// Creates a chunk that reports a failure, in a reply that continues.
    pub(super) fn failure(self, tag: Tag, error: &IoError, offset: u64) -> BytesMut {
        let at = error.range().map_or(offset, |range| range.start);
        let mut out = BytesMut::new();
        let code = ReplyError::from_errno(error.errno());
        let flags = ReplyFlags::empty();
        encode_error(&mut out, self, flags, tag, code, &error.to_string(), Some(at));
        out
    }

    /// Creates the reply to `BLOCK_STATUS`: a chunk for each context, of which there is one at
    /// least.
    pub(super) fn status(self, tag: Tag, contexts: &[(u32, Vec<StatusExtent>)]) -> Body {
        let mut out = BytesMut::new();
        for (n, (id, extents)) in contexts.iter().enumerate() {
            let last = n + 1 == contexts.len();
            let flags = ReplyFlags::empty().with_if(last, ReplyFlags::DONE);
            encode_block_status(&mut out, self, flags, tag, *id, extents);
        }
        Body::Message(out)
    }
}

/// Returns an extent as `base:allocation` shows it.
pub(super) fn status_of(extent: Extent) -> StatusExtent {
    let flags = match extent.kind {
        ExtentKind::Data => 0,
        ExtentKind::Zero => STATE_ZERO,
        ExtentKind::Hole => STATE_HOLE | STATE_ZERO,
    };
    StatusExtent { length: extent.len, flags }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use corewise_sync::inbox::Inbox;

    use super::*;
    use crate::load::{ArrivalSlot, Budget, Cost};
    use crate::memory::Pool;

    fn sink() -> (SocketSink, UnixStream) {
        let (ours, client) = UnixStream::pair().unwrap();
        let (pool, log) = (Arc::new(Pool::new(1 << 20)), ClientLog::of_test(1));
        let (connection, _) =
            Connection::new(log.clone(), ours.into(), Budget::default(), 0, pool, None);
        let (connection, log) = (Arc::new(connection), Arc::new(log));
        (SocketSink::new(connection, log, Duration::MAX, Parker::new(), None), client)
    }

    #[test]
    fn the_time_for_which_the_server_was_stopped_is_none_that_replies_have_waited() {
        let (mut sink, _client) = sink();
        for waits in [1, 0] {
            let mut reply = Reply::more(BytesMut::zeroed(8));
            reply.waits = waits;
            sink.waiting.push_back(reply);
        }
        sink.exclude(Duration::from_nanos(5));
        assert_eq!(sink.waiting_replies(), (6, 16));
        sink.exclude(Duration::MAX);
        let (since, _) = sink.waiting_replies();
        assert!((7..=sink.connection.clock()).contains(&since), "it waits since now");
        assert_eq!(sink.waiting[1].waits, 0, "it has not begun to wait");
    }

    #[test]
    fn the_memory_of_small_replies_is_that_of_later_ones_and_only_so_much_is_kept() {
        let (mut sink, mut client) = sink();
        let connection = Arc::clone(&sink.connection);
        let mut send = |sink: &mut SocketSink, message: BytesMut| {
            connection.load.admit(Charge::NONE);
            let (inbox, len) = (Inbox::new(), message.len());
            let cost = Cost { charge: Charge::NONE, came: 0, slot: ArrivalSlot::NONE };
            inbox.push(Reply::new(Body::Message(message), cost.due(None, Some(0))));
            assert_eq!(sink.send(inbox.take(), Patience::None), SendOutcome::All);
            client.read_exact(&mut vec![0; len]).unwrap();
        };
        for len in [100, SPARE + 1] {
            send(&mut sink, BytesMut::zeroed(len));
            assert!(sink.spare(len).is_none(), "one of {len} bytes isn't kept");
        }
        for _ in 0..2 * SPARES {
            send(&mut sink, BytesMut::zeroed(SPARE_MIN));
        }
        assert_eq!(sink.spares.len(), SPARES);
        assert!(sink.spare(SPARE).is_none(), "too small, it goes");
        assert_eq!(sink.spares.len(), SPARES - 1);
        let message = BytesMut::zeroed(SPARE);
        let address = message.as_ptr();
        send(&mut sink, message);
        let again = sink.spare(SPARE).unwrap();
        assert!(again.is_empty() && again.as_ptr() == address);
    }
}
