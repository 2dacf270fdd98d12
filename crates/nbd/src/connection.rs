//! One accepted connection: the socket, and the handles by which others (drain, eviction, the reply
//! path) act on it.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use corewise_sync::Parker;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};

use crate::load::{Budget, Load, Snapshot};

/// A connected stream socket and what is owed on it. Shared by the reader thread, completions, the
/// writer thread and the server.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Unique in its server, in the order of arrival.
    pub(crate) id: u64,
    /// In blocking mode; a thread that must not block says so with each call.
    pub(crate) socket: OwnedFd,
    pub(crate) load: Load,
}

impl Connection {
    pub(crate) fn new(id: u64, socket: OwnedFd, budget: Budget) -> (Connection, Parker) {
        let (load, parker) = Load::new(budget);
        (Connection { id, socket, load }, parker)
    }

    /// Receives what is there, at least one byte, behind what `buffer` holds; 0 at the end of the
    /// stream. Blocks.
    pub(crate) fn receive(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        self.receive_with(buffer, usize::MAX, RecvFlags::empty())
    }

    /// Receives exactly `len` bytes behind what `buffer` holds, or fewer where the stream ends.
    /// Blocks. The buffer has room.
    pub(crate) fn receive_exact(&self, buffer: &mut BytesMut, len: usize) -> io::Result<usize> {
        let mut got = 0;
        while got < len {
            match self.receive_with(buffer, len - got, RecvFlags::WAITALL)? {
                0 => break,
                n => got += n,
            }
        }
        Ok(got)
    }

    fn receive_with(
        &self,
        buffer: &mut BytesMut,
        limit: usize,
        flags: RecvFlags,
    ) -> io::Result<usize> {
        let spare = buffer.spare_capacity_mut();
        let room = spare.len().min(limit);
        loop {
            match recv(&self.socket, &mut spare[..room], flags) {
                Ok(((filled, _), _)) => {
                    let got = filled.len();
                    let len = buffer.len() + got;
                    // SAFETY: the call initialized the first `got` bytes of the spare capacity.
                    unsafe { buffer.set_len(len) };
                    return Ok(got);
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// As [`Connection::receive`], until the deadline: `TimedOut` after it.
    pub(crate) fn receive_until(
        &self,
        buffer: &mut BytesMut,
        deadline: Instant,
    ) -> io::Result<usize> {
        self.wait_until(PollFlags::IN, deadline)?;
        self.receive(buffer)
    }

    /// Sends everything, until the deadline: `TimedOut` after it.
    pub(crate) fn send_until(&self, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            match send(&self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::AGAIN) => self.wait_until(PollFlags::OUT, deadline)?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn wait_until(&self, what: PollFlags, deadline: Instant) -> io::Result<()> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match poll(&mut [PollFd::new(&self.socket, what)], Some(&timespec(left))) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// New requests are refused from now on; at once, or when the last reply has left, the reader
    /// sees the end of the stream.
    pub(crate) fn drain(&self) -> Snapshot {
        let was = self.load.drain();
        if was.requests == 0 {
            self.stop_reading();
        }
        was
    }

    /// The reader gets what has arrived already, then the end of the stream. Never blocks.
    pub(crate) fn stop_reading(&self) {
        // Fails only where the peer is gone, and then the reader sees that by itself.
        let _ = shutdown(&self.socket, Shutdown::Read);
    }

    /// Ends the connection now: wakes any thread that reads, sends, or waits for room. Replies owed at
    /// that moment.
    pub(crate) fn cut(&self) -> Snapshot {
        let was = self.load.cut();
        self.close();
        was
    }

    /// Ends the stream in both directions; what was sent still arrives.
    pub(crate) fn close(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
    }

    /// Replies were sent or dropped for good. Any context; never blocks.
    pub(crate) fn settle(&self, requests: u32, bytes: u64) {
        if requests > 0 && self.load.settle(requests, bytes) {
            self.stop_reading();
        }
    }
}

/// A duration as the kernel takes it.
pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}
