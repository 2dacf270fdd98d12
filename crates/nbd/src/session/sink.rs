//! The sending end of a connection: replies in order, many in one call, and the rest of a half-sent
//! one. Owned by the holder of the flush right.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use corewise_sync::inbox::{Batch, HasLink, Link};
use corewise_sync::{Parker, time};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use crate::connection::Connection;
use crate::export::tell;
use crate::load::Charge;
use crate::policy;
use crate::reply::{Patience, Sent, Sink};
use crate::tls::Channel;
use crate::wire::{EXTENDED_CHUNK_LEN, SIMPLE_REPLY_LEN};

/// Replies that one system call sends at most. Far below the kernel's limit of 1,024, and enough to
/// make the call cheap.
const PER_CALL: usize = 128;

/// One reply, ready to be sent, or a chunk of one.
pub(crate) struct Reply {
    link: Link,
    body: Body,
    /// What the request was admitted with; `None` where more of its reply follows.
    cost: Option<Charge>,
}

pub(super) enum Body {
    Head([u8; SIMPLE_REPLY_LEN]),
    /// The extended head of a reply that has nothing else to say.
    Long([u8; EXTENDED_CHUNK_LEN]),
    /// Head and what follows it, in one piece.
    Message(BytesMut),
}

impl Reply {
    /// A reply, or the last chunk of one.
    pub(super) fn new(body: Body, cost: Charge) -> Box<Reply> {
        Box::new(Reply { link: Link::new(), body, cost: Some(cost) })
    }

    /// Chunks of a reply that goes on.
    pub(super) fn more(chunks: BytesMut) -> Box<Reply> {
        Box::new(Reply { link: Link::new(), body: Body::Message(chunks), cost: None })
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

/// The socket, and what couldn't be sent yet.
pub(crate) struct SocketSink {
    connection: Arc<Connection>,
    waiting: VecDeque<Box<Reply>>,
    /// Through which replies go, where there is TLS,
    channel: Option<Arc<Channel>>,
    /// and how many bytes of them it has encrypted that haven't left.
    encrypted: usize,
    /// Bytes of the first waiting reply that are sent already.
    sent_of_first: usize,
    /// How long the client may take to take a reply.
    timeout: Duration,
    /// Since when the first waiting reply has been waited for, by a thread that may wait.
    since: Option<Instant>,
    /// The socket failed: replies are dropped from now on.
    broken: bool,
    /// The parker of the writer thread until that is started.
    pub(super) writer_parker: Option<Parker>,
}

impl SocketSink {
    pub(crate) fn new(
        connection: Arc<Connection>,
        timeout: Duration,
        writer_parker: Parker,
        channel: Option<Arc<Channel>>,
    ) -> SocketSink {
        SocketSink {
            channel,
            encrypted: 0,
            connection,
            timeout,
            since: None,
            waiting: VecDeque::new(),
            sent_of_first: 0,
            broken: false,
            writer_parker: Some(writer_parker),
        }
    }

    /// Gives the connection up, since its replies can't be sent; the reader stops too, however much
    /// it has left to read.
    pub(super) fn give_up(&mut self) {
        self.broken = true;
        self.connection.cut();
    }

    fn send_some(&mut self) -> Result<usize, Errno> {
        let mut slices = [IoSlice::new(&[]); PER_CALL];
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

    /// Takes what was sent off the queue, and off what is owed.
    fn sent(&mut self, bytes: usize) {
        let mut of_first = self.sent_of_first + bytes;
        let (mut requests, mut cost) = (0, Charge::NONE);
        while let Some(first) = self.waiting.front() {
            let len = first.bytes().len();
            if of_first < len {
                break;
            }
            of_first -= len;
            if let Some(owed) = first.cost {
                cost += owed;
                requests += 1;
            }
            self.waiting.pop_front();
            self.since = None;
        }
        self.sent_of_first = of_first;
        self.connection.settle(requests, cost);
    }

    /// Waits for room in the socket. A client that takes a byte now and then holds a reply no longer than one that takes
    /// nothing. Blocks.
    fn wait(&mut self) {
        let since = *self.since.get_or_insert_with(time::now);
        let first = self.waiting.front().map_or(0, |reply| reply.bytes().len());
        let deadline = policy::after(since, policy::time_for(self.timeout, first as u64));
        if let Err(error) = self.connection.wait_for_space(deadline) {
            tell(|| {
                tracing::info!(client = self.connection.id, %error, bytes = first,
                    timeout = ?self.timeout, "closed: the client does not take its replies");
            });
            self.give_up();
        }
    }

    fn drop_all(&mut self) {
        let (mut requests, mut cost) = (0, Charge::NONE);
        for owed in self.waiting.drain(..).filter_map(|reply| reply.cost) {
            requests += 1;
            cost += owed;
        }
        (self.sent_of_first, self.encrypted) = (0, 0);
        self.connection.settle(requests, cost);
    }
}

impl Sink for SocketSink {
    type Reply = Box<Reply>;

    fn send(&mut self, batch: Batch<Box<Reply>>, patience: Patience) -> Sent {
        self.waiting.extend(batch);
        while !self.waiting.is_empty() {
            if self.broken {
                self.drop_all();
                break;
            }
            match self.send_some() {
                Ok(bytes) => self.sent(bytes),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if patience == Patience::None => return Sent::Full,
                Err(Errno::AGAIN) => self.wait(),
                Err(error) => {
                    tell(|| {
                        tracing::debug!(client = self.connection.id, %error,
                            "cannot send replies: the client is gone");
                    });
                    self.give_up();
                }
            }
        }
        Sent::All
    }
}
