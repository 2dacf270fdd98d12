//! A connection whose handshake is over, for a program that hands its socket to another client,
//! such as Linux's.

use std::cell::RefCell;
use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::OwnedFd;

use bytes::{Buf, BytesMut};
use corewise_sync::atomic::AtomicBool;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};

use super::client_handshake::{RemoteAgreement, Replies};
use super::stream::{self, HandshakeWait, ROOM, Stream, clock, not_yet, send};
use super::{RemoteError, RemoteOptions};
use crate::wire::TransmissionFlags;

/// Abilities that Linux's client learns from the first connection alone, and relies on later.
const RELIED_ON: u16 = TransmissionFlags::SEND_FLUSH.0
    | TransmissionFlags::SEND_FUA.0
    | TransmissionFlags::SEND_TRIM.0
    | TransmissionFlags::SEND_WRITE_ZEROES.0
    | TransmissionFlags::CAN_MULTI_CONN.0;

/// A connection to an export after its handshake, with simple replies alone.
///
/// ```no_run
/// use corewise_nbd::{RemoteOptions, RemoteSession};
///
/// let options = RemoteOptions::new("nbd://localhost/disk".parse()?);
/// let session = RemoteSession::open(&options)?;
/// println!("{} bytes", session.size());
/// let (socket, _) = session.into_socket()?; // speaks NBD's transmission phase
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RemoteSession {
    stream: Stream,
    agreed: RemoteAgreement,
}

impl RemoteSession {
    /// Connects, and chooses the export. Blocks for up to [`RemoteOptions::connect_timeout`], and
    /// while a name is resolved.
    ///
    /// # Errors
    /// If the server can't be reached, has no such export, or violates the protocol.
    pub fn open(options: &RemoteOptions) -> Result<RemoteSession, RemoteError> {
        options.verify()?;
        let failed = |why: String| RemoteError(format!("{}: {why}", options.uri));
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = eventfd(0, flags).map_err(|error| failed(format!("no eventfd: {error}")))?;
        let (stop, mut clock) = (AtomicBool::new(false), clock(options));
        let deadline = clock.now() + options.connect_timeout;
        let clock = RefCell::new(&mut clock);
        let wait = HandshakeWait { deadline, clock, wake: &wake, stop: &stop };
        let (stream, ahead, agreed) =
            stream::open(options, &wait, Replies::Simple).map_err(&failed)?;
        if !ahead.is_empty() {
            return Err(failed("the remote server sent an answer before any request".to_owned()));
        }
        Ok(RemoteSession { stream, agreed })
    }

    /// Returns the size of the export, in bytes.
    pub fn size(&self) -> u64 {
        self.agreed.summary.size
    }

    /// Returns the smallest block that the server reads and writes, in bytes.
    pub fn block_size(&self) -> u32 {
        self.agreed.sizes.minimum
    }

    /// Returns the largest payload of a request that the server takes, in bytes.
    pub fn largest_payload(&self) -> u32 {
        self.agreed.sizes.maximum
    }

    /// Returns the transmission flags of the export, as the protocol has them.
    pub fn flags(&self) -> u16 {
        self.agreed.summary.flags.0
    }

    /// Returns true if a client that relies on these transmission flags, of an earlier connection,
    /// can use this one, too.
    pub fn supports(&self, flags: u16) -> bool {
        let lost = flags & RELIED_ON & !self.flags();
        lost == 0 && (flags & TransmissionFlags::READ_ONLY.0 != 0 || !self.read_only())
    }

    /// Returns true if a flush on one connection covers all of them.
    pub fn can_multi_conn(&self) -> bool {
        self.agreed.summary.flags.contains(TransmissionFlags::CAN_MULTI_CONN)
    }

    /// Returns true if the export refuses changes.
    pub fn read_only(&self) -> bool {
        self.agreed.summary.flags.contains(TransmissionFlags::READ_ONLY)
    }

    /// Returns the socket. If the connection uses TLS, the socket is one end of a pair. The proxy
    /// then has to [run](RemoteProxy::run) on a thread as long as the socket is used.
    ///
    /// # Errors
    /// If the system has no more sockets.
    pub fn into_socket(self) -> io::Result<(OwnedFd, Option<RemoteProxy>)> {
        let stream = match self.stream.into_plain() {
            Ok(socket) => return Ok((socket, None)),
            Err(stream) => stream,
        };
        let flags = SocketFlags::CLOEXEC;
        let (theirs, plain) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        Ok((theirs, Some(RemoteProxy { stream, plain })))
    }
}

/// The encryption of a connection whose socket another client has.
pub struct RemoteProxy {
    stream: Stream,
    plain: OwnedFd,
}

impl RemoteProxy {
    /// Encrypts and decrypts until either side ends. Blocks as long as the connection lasts.
    ///
    /// # Errors
    /// If the connection breaks, or the server violates TLS.
    pub fn run(mut self) -> io::Result<()> {
        let (mut out, mut back) = (BytesMut::with_capacity(ROOM), BytesMut::with_capacity(ROOM));
        // True if TLS may hold decrypted bytes, which the socket doesn't report.
        let mut more = false;
        loop {
            if more && back.is_empty() {
                more = match self.receive(&mut back)? {
                    Some(more) => more,
                    None => return Ok(()),
                };
            }
            let mut server = self.stream.interest();
            // The room bounds the cost of a side that doesn't read.
            server.set(PollFlags::IN, back.is_empty());
            server.set(PollFlags::OUT, server.contains(PollFlags::OUT) || !out.is_empty());
            let mut client = PollFlags::empty();
            client.set(PollFlags::IN, out.is_empty());
            client.set(PollFlags::OUT, !back.is_empty());
            let mut both =
                [PollFd::new(&self.stream.socket, server), PollFd::new(&self.plain, client)];
            match poll(&mut both, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let [server, client] = both.map(|one| !one.revents().is_empty());
            if client && out.is_empty() && !receive_plain(&self.plain, &mut out)? {
                return Ok(());
            }
            if server && back.is_empty() {
                more = match self.receive(&mut back)? {
                    Some(more) => more,
                    None => return Ok(()),
                };
            }
            self.stream.push().or_else(not_yet)?;
            if !out.is_empty() {
                match self.stream.send(&[IoSlice::new(&out)]) {
                    Ok(n) => out.advance(n),
                    Err(error) => not_yet(error)?,
                }
            }
            if !back.is_empty() {
                match send(&self.plain, &[IoSlice::new(&back)]) {
                    Ok(n) => back.advance(n),
                    Err(error) => not_yet(error)?,
                }
            }
        }
    }

    /// Receives into the empty `back`. Returns whether TLS may hold more, or `None` at the end of
    /// the stream.
    fn receive(&mut self, back: &mut BytesMut) -> io::Result<Option<bool>> {
        back.reserve(ROOM);
        while back.len() < ROOM {
            match self.stream.receive(back, ROOM) {
                // The next call reports the end.
                Ok(0) => return Ok((!back.is_empty()).then_some(true)),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Some(false)),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(true))
    }
}

/// Receives bytes of the other client. Returns false if it ended.
fn receive_plain(plain: &OwnedFd, out: &mut BytesMut) -> io::Result<bool> {
    out.resize(ROOM, 0);
    let received = recv(plain, &mut out[..], RecvFlags::DONTWAIT);
    let length = received.as_ref().map_or(0, |(_, length)| *length);
    out.truncate(length);
    match received {
        Ok(_) => Ok(length > 0),
        Err(Errno::INTR | Errno::AGAIN) => Ok(true),
        Err(error) => Err(error.into()),
    }
}
