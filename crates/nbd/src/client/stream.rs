//! The bytes of a connection: a socket that never blocks, with TLS on it if the URI asks for it. It
//! also has the waits of a handshake.

use std::cell::RefCell;
use std::io::{self, ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::time::Instant;

use bytes::BytesMut;
use corewise_blockmq::Started;
use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::time::PausableClock;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, connect, recv, sendmsg, socket_with, sockopt,
};

use super::RemoteOptions;
use super::client_handshake::{self, RemoteAgreement, Replies, Wire};
use super::tls::{RemoteTls, RemoteTlsStream};
use super::uri::Address;
use crate::deadline::timespec;

/// Room for received bytes.
pub(super) const ROOM: usize = 256 << 10;

/// The limit of a handshake's waits, and the event that ends them early.
pub(super) struct HandshakeWait<'a> {
    /// Time, by `clock`, at which waiting ends.
    pub(super) deadline: Instant,
    /// Clock that stands still while this process does, so that a pause doesn't make the server
    /// late.
    pub(super) clock: RefCell<&'a mut PausableClock>,
    /// Eventfd that is readable when `stop` may have changed.
    pub(super) wake: &'a OwnedFd,
    pub(super) stop: &'a AtomicBool,
}

/// Returns the clock that measures the server's timeouts.
pub(super) fn clock(options: &RemoteOptions) -> PausableClock {
    PausableClock::for_timeout(options.timeout.min(options.connect_timeout))
}

impl HandshakeWait<'_> {
    fn wait(&self, socket: &OwnedFd, what: PollFlags) -> io::Result<()> {
        loop {
            // Relaxed: the flag carries no data, and the later write to the eventfd makes this
            // thread check again.
            if self.stop.load(Ordering::Relaxed) {
                return Err(io::Error::other("the volume is closed"));
            }
            let mut clock = self.clock.borrow_mut();
            let left = self.deadline.saturating_duration_since(clock.now());
            let wait = left.min(clock.slice());
            drop(clock);
            let mut both = [PollFd::new(socket, what), PollFd::new(self.wake, PollFlags::IN)];
            match poll(&mut both, Some(&timespec(wait))) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if !both[0].revents().is_empty() {
                return Ok(());
            }
            // The socket was polled without waiting.
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            clear(self.wake);
        }
    }
}

/// Clears an eventfd.
pub(super) fn clear(wake: &OwnedFd) {
    // Fails only if it was clear.
    let _ = rustix::io::read(wake, &mut [0; 8]);
}

/// The bytes of one connection.
pub(super) struct Stream {
    pub(super) socket: OwnedFd,
    tls: Option<RemoteTlsStream>,
}

impl Stream {
    /// Connects within the time of `wait`. A name is resolved first, for as long as the system
    /// takes.
    pub(super) fn connect(
        address: &Address,
        options: &RemoteOptions,
        wait: &HandshakeWait<'_>,
    ) -> io::Result<Stream> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let stream = |socket| Stream { socket, tls: None };
        match address {
            Address::Unix(path) => {
                let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
                connect(&socket, &SocketAddrUnix::new(path)?)?;
                Ok(stream(socket))
            }
            Address::Tcp(host, port) => {
                let mut why = io::Error::new(ErrorKind::NotFound, "the host name has no address");
                let look_up = || (host.as_str(), *port).to_socket_addrs();
                let found = wait.clock.borrow_mut().working(look_up);
                for address in found? {
                    match tcp(&address, flags, wait) {
                        Ok(socket) => {
                            // These options only help to notice sooner that the server is gone.
                            let silence = options.timeout / 2;
                            let _ = sockopt::set_tcp_nodelay(&socket, true);
                            let _ = sockopt::set_socket_keepalive(&socket, true);
                            let _ = sockopt::set_tcp_keepidle(&socket, silence);
                            let _ = sockopt::set_tcp_keepintvl(&socket, silence);
                            let most = silence.as_millis().try_into().unwrap_or(u32::MAX);
                            let _ = sockopt::set_tcp_user_timeout(&socket, most);
                            return Ok(stream(socket));
                        }
                        Err(error) => why = error,
                    }
                }
                Err(why)
            }
        }
    }

    /// Does the TLS handshake.
    pub(super) fn secure(
        self,
        tls: &RemoteTls,
        hostname: &str,
        wait: &HandshakeWait<'_>,
    ) -> io::Result<Stream> {
        let mut stream = Stream { tls: Some(tls.dial(hostname)?), ..self };
        loop {
            let Some(tls) = &mut stream.tls else { return Ok(stream) };
            match tls.shake(&stream.socket) {
                Ok(()) => return Ok(stream),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let what = stream.interest();
                    wait.wait(&stream.socket, what)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the socket, or itself if the connection uses TLS.
    pub(super) fn into_plain(self) -> Result<OwnedFd, Stream> {
        match self.tls {
            None => Ok(self.socket),
            Some(_) => Err(self),
        }
    }

    /// Returns the events of the socket that it waits for, beside room for its owner's bytes.
    pub(super) fn interest(&self) -> PollFlags {
        match &self.tls {
            Some(tls) if tls.has_to_send() => PollFlags::IN | PollFlags::OUT,
            _ => PollFlags::IN,
        }
    }

    /// Receives up to `most` bytes into the room that follows the contents of `bytes`; TLS may use
    /// all of the room. Returns 0 at the end of the stream. Doesn't wait: `WouldBlock`.
    pub(super) fn receive(&mut self, bytes: &mut BytesMut, most: usize) -> io::Result<usize> {
        match &mut self.tls {
            Some(tls) => tls.receive(&self.socket, bytes),
            None => {
                let room = bytes.spare_capacity_mut();
                let most = most.min(room.len());
                let len = receive(&self.socket, &mut room[..most])?;
                // SAFETY: the call initialized the first `len` bytes of the spare capacity.
                unsafe { bytes.set_len(bytes.len() + len) };
                Ok(len)
            }
        }
    }

    /// Receives up to `most` bytes, which all belong to a read, straight into the request. Returns
    /// `None` if they have to be decrypted. Otherwise as [`Stream::receive`].
    pub(super) fn receive_read(
        &self,
        rq: &mut Started,
        most: usize,
    ) -> Option<io::Result<(usize, usize)>> {
        if self.tls.is_some() {
            return None;
        }
        let room = rq.rooms().find(|room| !room.is_empty())?;
        let most = most.min(room.len());
        let received = receive(&self.socket, &mut room[..most]);
        // SAFETY: the call initialized `n` bytes of the first room that has any.
        Some(received.inspect(|n| unsafe { rq.advance(*n as u64) }).map(|n| (n, most)))
    }

    /// Returns true if more bytes may be there, although the last receive didn't fill its room.
    pub(super) fn may_have_more(&self) -> bool {
        self.tls.is_some()
    }

    /// Sends as many bytes of `pieces` as the socket takes, and returns their number. Doesn't wait:
    /// `WouldBlock`.
    pub(super) fn send(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
        match &mut self.tls {
            Some(tls) => tls.send(&self.socket, pieces),
            None => send(&self.socket, pieces),
        }
    }

    /// Sends bytes that TLS has kept back.
    pub(super) fn push(&mut self) -> io::Result<()> {
        match &mut self.tls {
            Some(tls) => tls.push(&self.socket),
            None => Ok(()),
        }
    }
}

fn tcp(address: &SocketAddr, flags: SocketFlags, wait: &HandshakeWait<'_>) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match connect(&socket, address) {
        Ok(()) => {}
        Err(Errno::INPROGRESS) => {
            wait.wait(&socket, PollFlags::OUT)?;
            sockopt::socket_error(&socket)??;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(socket)
}

/// Receives into the beginning of `room`, and returns the number of bytes.
fn receive(socket: &OwnedFd, room: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
    loop {
        match recv(socket, &mut *room, RecvFlags::DONTWAIT) {
            Ok(((filled, _), _)) => return Ok(filled.len()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends on a socket as [`Stream::send`] does.
pub(super) fn send(socket: &OwnedFd, pieces: &[IoSlice<'_>]) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        match sendmsg(socket, pieces, &mut SendAncillaryBuffer::default(), flags) {
            Err(Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}

/// A stream during its handshake: its owner waits.
struct HandshakeStream<'a, 'c> {
    stream: Stream,
    wait: &'a HandshakeWait<'c>,
    /// Received bytes that weren't asked for yet.
    ahead: BytesMut,
}

impl Wire for HandshakeStream<'_, '_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        while self.ahead.len() < bytes.len() {
            self.ahead.reserve(ROOM);
            match self.stream.receive(&mut self.ahead, ROOM) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.wait.wait(&self.stream.socket, self.stream.interest())?;
                    self.stream.push().or_else(not_yet)?;
                }
                Err(error) => return Err(error),
            }
        }
        bytes.copy_from_slice(&self.ahead.split_to(bytes.len()));
        Ok(())
    }

    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.stream.send(&[IoSlice::new(bytes)]) {
                Ok(n) => bytes = &bytes[n..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.wait.wait(&self.stream.socket, PollFlags::OUT)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Makes a connection to the export of `options`: socket, TLS and handshake. Returns the bytes
/// that came after the handshake, too.
pub(super) fn open(
    options: &RemoteOptions,
    wait: &HandshakeWait<'_>,
    replies: Replies,
) -> Result<(Stream, BytesMut, RemoteAgreement), String> {
    let uri = &options.uri;
    let stream = Stream::connect(&uri.address, options, wait)
        .map_err(|error| format!("cannot connect: {}", in_words(&error)))?;
    let mut wire = HandshakeStream { stream, wait, ahead: BytesMut::new() };
    let padded = client_handshake::greet(&mut wire).map_err(|why| why.to_string())?;
    if let (true, Some(tls), Some(name)) = (uri.tls(), &options.tls, uri.hostname()) {
        client_handshake::start_tls(&mut wire).map_err(|why| why.to_string())?;
        if !wire.ahead.is_empty() {
            return Err("the remote server sent data before TLS began".to_owned());
        }
        wire.stream = wire
            .stream
            .secure(tls, name, wait)
            .map_err(|error| format!("no TLS: {}", in_words(&error)))?;
    }
    let checkpoint = options.checkpoint.as_deref();
    let agreed = client_handshake::choose(&mut wire, uri.export(), padded, replies, checkpoint);
    let agreed = agreed.map_err(|why| why.to_string())?;
    let HandshakeStream { stream, ahead, .. } = wire;
    Ok((stream, ahead, agreed))
}

/// Returns the error of a connection in words.
pub(super) fn in_words(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::TimedOut => "the remote server did not answer in time".to_owned(),
        ErrorKind::UnexpectedEof => "the remote server hung up".to_owned(),
        _ => error.to_string(),
    }
}

/// Turns `WouldBlock` into success: the bytes are sent later.
pub(super) fn not_yet(error: io::Error) -> io::Result<()> {
    if error.kind() == ErrorKind::WouldBlock { Ok(()) } else { Err(error) }
}
