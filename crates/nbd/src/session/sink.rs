//! The sending end of a connection: replies in order, many in one call, and the rest of a half-sent
//! one. Owned by the holder of the flush right.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::Arc;

use bytes::BytesMut;
use corewise_sync::Parker;
use corewise_sync::inbox::{Batch, HasLink, Link};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use crate::connection::Connection;
use crate::export::tell;
use crate::reply::{Patience, Sent, Sink};
use crate::wire::{SIMPLE_REPLY_LEN, SimpleReply};

/// Replies that one system call sends at most. Far below the kernel's limit of 1,024, and enough to
/// make the call cheap.
const PER_CALL: usize = 128;

/// One reply, ready to be sent.
pub(crate) struct Reply {
    link: Link,
    body: Body,
    /// What the request was admitted with.
    cost: u64,
}

enum Body {
    Head([u8; SIMPLE_REPLY_LEN]),
    /// Head and payload, in one piece.
    Message(BytesMut),
}

impl Reply {
    pub(crate) fn head(reply: SimpleReply, cost: u64) -> Box<Reply> {
        Box::new(Reply { link: Link::new(), body: Body::Head(reply.encode()), cost })
    }

    pub(crate) fn message(message: BytesMut, cost: u64) -> Box<Reply> {
        Box::new(Reply { link: Link::new(), body: Body::Message(message), cost })
    }

    fn bytes(&self) -> &[u8] {
        match &self.body {
            Body::Head(bytes) => bytes,
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
    /// Bytes of the first waiting reply that are sent already.
    sent_of_first: usize,
    /// The socket failed: replies are dropped from now on.
    broken: bool,
    /// The parker of the writer thread until that is started.
    pub(super) writer_parker: Option<Parker>,
}

impl SocketSink {
    pub(crate) fn new(connection: Arc<Connection>, writer_parker: Parker) -> SocketSink {
        SocketSink {
            connection,
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

    fn send_some(&mut self, flags: SendFlags) -> Result<usize, Errno> {
        let mut slices = [IoSlice::new(&[]); PER_CALL];
        let mut count = 0;
        for (slot, reply) in slices.iter_mut().zip(&self.waiting) {
            let from = if count == 0 { self.sent_of_first } else { 0 };
            *slot = IoSlice::new(&reply.bytes()[from..]);
            count += 1;
        }
        sendmsg(
            &self.connection.socket,
            &slices[..count],
            &mut SendAncillaryBuffer::default(),
            flags | SendFlags::NOSIGNAL,
        )
    }

    /// Takes what was sent off the queue, and off what is owed.
    fn sent(&mut self, bytes: usize) {
        let mut of_first = self.sent_of_first + bytes;
        let (mut requests, mut cost) = (0, 0);
        while let Some(first) = self.waiting.front() {
            let len = first.bytes().len();
            if of_first < len {
                break;
            }
            of_first -= len;
            cost += first.cost;
            requests += 1;
            self.waiting.pop_front();
        }
        self.sent_of_first = of_first;
        self.connection.settle(requests, cost);
    }

    fn drop_all(&mut self) {
        let (mut requests, mut cost) = (0, 0);
        for reply in self.waiting.drain(..) {
            requests += 1;
            cost += reply.cost;
        }
        self.sent_of_first = 0;
        self.connection.settle(requests, cost);
    }
}

impl Sink for SocketSink {
    type Reply = Box<Reply>;

    fn send(&mut self, batch: Batch<Box<Reply>>, patience: Patience) -> Sent {
        self.waiting.extend(batch);
        let flags = match patience {
            Patience::None => SendFlags::DONTWAIT,
            Patience::Unlimited => SendFlags::empty(),
        };
        while !self.waiting.is_empty() {
            if self.broken {
                self.drop_all();
                break;
            }
            match self.send_some(flags) {
                Ok(bytes) => self.sent(bytes),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if patience == Patience::None => return Sent::Full,
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
