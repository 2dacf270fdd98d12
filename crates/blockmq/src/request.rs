//! Requests: what is asked of a block device, and the completion that answers it exactly once.
//!
//! A [`Request`] owns its buffer and its completion. Whoever holds it must finish it with
//! [`Request::complete`]; dropping it instead completes it with [`IoErrorKind::Gone`], so that
//! nobody ever waits for something that can't come.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::{Bytes, BytesMut};
use corewise_sync::context::AtomicSection;
use corewise_sync::panics;

use crate::error::{IoError, IoErrorKind, errno};

/// Calls a stranger's code: `None` where it panicked. What it panicked with is the stranger's too, and
/// may panic once more when it is dropped.
pub(crate) fn caught<R>(f: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(f)).map_err(panics::discard).ok()
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Append `len` bytes from `offset` to the request's buffer.
    Read,
    /// Store the request's bytes at `offset`.
    Write,
    /// Make every write that **completed** before this request was submitted survive a crash.
    Flush,
    /// The range's content is no longer needed; it may read as anything until written again.
    Discard,
    /// The range reads as zeroes afterwards.
    WriteZeroes,
}

impl Op {
    /// True for operations that change the device's content.
    pub const fn is_change(self) -> bool {
        matches!(self, Op::Write | Op::Discard | Op::WriteZeroes)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Discard => "discard",
            Op::WriteZeroes => "write-zeroes",
        })
    }
}

/// Modifiers of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Force unit access: this change itself is durable when the request completes.
    pub fua: bool,
    /// `WriteZeroes` only: the range must stay allocated (no hole may be punched).
    pub no_unmap: bool,
}

/// The bytes that travel with a request.
#[derive(Debug, Default)]
pub enum Payload {
    /// No bytes (flush, discard, write-zeroes).
    #[default]
    None,
    /// What to write: exactly `len` bytes.
    Write(Bytes),
    /// Where to read to. The device **appends** `len` bytes; bytes that were there stay in front,
    /// so a caller may put a reply header there first.
    Read(BytesMut),
}

/// How a request ended, and its buffer back.
#[derive(Debug)]
pub struct Completed {
    /// What was asked.
    pub op: Op,
    /// The request's offset in bytes.
    pub offset: u64,
    /// The request's length in bytes.
    pub len: u64,
    /// Success, or why not.
    pub result: Result<(), IoError>,
    /// The request's bytes. After a failed read the buffer holds only what it held at submission.
    pub payload: Payload,
}

impl Completed {
    /// The buffer of a read (with what it held before the read in front), or the error.
    /// Other operations give an empty buffer.
    pub fn into_data(self) -> Result<BytesMut, IoError> {
        self.result?;
        Ok(match self.payload {
            Payload::Read(data) => data,
            Payload::None | Payload::Write(_) => BytesMut::new(),
        })
    }
}

type OnComplete = Box<dyn FnOnce(Completed) + Send>;

/// One request to a block device.
///
/// ```
/// use corewise_blockmq::Request;
/// use bytes::Bytes;
/// let rq = Request::write(4096, Bytes::from_static(&[7; 512]))
///     .fua()
///     .on_complete(|done| assert!(done.result.is_err()));
/// drop(rq); // nobody took it: it completes with an error, not with silence
/// ```
pub struct Request {
    op: Op,
    flags: Flags,
    offset: u64,
    len: u64,
    /// Length that a read's buffer had when the request was made.
    head: usize,
    payload: Payload,
    on_complete: Option<OnComplete>,
}

impl Request {
    fn new(op: Op, offset: u64, len: u64, payload: Payload) -> Self {
        let head = match &payload {
            Payload::Read(buffer) => buffer.len(),
            Payload::None | Payload::Write(_) => 0,
        };
        Self { op, flags: Flags::default(), offset, len, head, payload, on_complete: None }
    }

    /// Reads `len` bytes at byte `offset` into a fresh buffer.
    pub fn read(offset: u64, len: usize) -> Self {
        // The buffer is allocated at submission, after the range has been checked: a length that
        // comes from a client must not make us allocate before it is known to be sane.
        Self::new(Op::Read, offset, len as u64, Payload::Read(BytesMut::new()))
    }

    /// Reads `len` bytes at byte `offset`, appended to `buffer` (its present bytes stay in front).
    pub fn read_into(offset: u64, len: usize, buffer: BytesMut) -> Self {
        Self::new(Op::Read, offset, len as u64, Payload::Read(buffer))
    }

    /// Writes `data` at byte `offset`.
    pub fn write(offset: u64, data: Bytes) -> Self {
        Self::new(Op::Write, offset, data.len() as u64, Payload::Write(data))
    }

    /// Makes every write that completed before this submission durable.
    pub fn flush() -> Self {
        Self::new(Op::Flush, 0, 0, Payload::None)
    }

    /// Says that `len` bytes at byte `offset` are no longer needed.
    pub fn discard(offset: u64, len: u64) -> Self {
        Self::new(Op::Discard, offset, len, Payload::None)
    }

    /// Makes `len` bytes at byte `offset` read as zeroes.
    pub fn write_zeroes(offset: u64, len: u64) -> Self {
        Self::new(Op::WriteZeroes, offset, len, Payload::None)
    }

    /// Asks that this change itself be durable when it completes.
    #[must_use]
    pub fn fua(mut self) -> Self {
        self.flags.fua = true;
        self
    }

    /// Asks a `write_zeroes` to keep the range allocated.
    #[must_use]
    pub fn no_unmap(mut self) -> Self {
        self.flags.no_unmap = true;
        self
    }

    /// Sets all flags at once.
    #[must_use]
    pub fn with_flags(mut self, flags: Flags) -> Self {
        self.flags = flags;
        self
    }

    /// Sets the function that is told how the request ended; a second call replaces the first.
    ///
    /// It is called exactly once, on whichever thread finishes the request: the submitter itself
    /// (before `submit` returns, for a memory device), a driver's reaper thread, or a workqueue
    /// worker. It runs, and is dropped, inside an atomic section: it must not block. It may
    /// submit further requests. A panic in it is caught and logged.
    #[must_use]
    pub fn on_complete(mut self, f: impl FnOnce(Completed) + Send + 'static) -> Self {
        self.on_complete = Some(Box::new(f));
        self
    }

    /// What is asked.
    pub fn op(&self) -> Op {
        self.op
    }

    /// The modifiers.
    pub fn flags(&self) -> Flags {
        self.flags
    }

    /// First byte of the range (0 for a flush).
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Length of the range in bytes (0 for a flush).
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True when the range is empty: a flush, or a transfer of nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The request's bytes.
    pub fn payload(&self) -> &Payload {
        &self.payload
    }

    /// What a write stores; empty for other operations.
    pub fn data(&self) -> &[u8] {
        match &self.payload {
            Payload::Write(data) => data,
            Payload::None | Payload::Read(_) => &[],
        }
    }

    /// The buffer to which a device appends what it read; `None` for other operations.
    pub fn buffer(&mut self) -> Option<&mut BytesMut> {
        match &mut self.payload {
            Payload::Read(buffer) => Some(buffer),
            Payload::None | Payload::Write(_) => None,
        }
    }

    /// Bytes that a read has appended so far.
    pub fn filled(&self) -> usize {
        match &self.payload {
            Payload::Read(buffer) => buffer.len().saturating_sub(self.head),
            Payload::None | Payload::Write(_) => 0,
        }
    }

    /// Takes the bytes out, for a driver that hands them on; put a read's buffer back with
    /// [`Request::set_payload`] before completing.
    pub fn take_payload(&mut self) -> Payload {
        std::mem::take(&mut self.payload)
    }

    /// Puts bytes back that were taken with [`Request::take_payload`].
    pub fn set_payload(&mut self, payload: Payload) {
        self.payload = payload;
    }

    /// Finishes the request: calls its completion function, now, on this thread, inside an atomic
    /// section.
    ///
    /// A read that claims success without having appended `len` bytes is turned into an I/O
    /// error: a client must never be sent bytes that nobody read.
    pub fn complete(mut self, result: Result<(), IoError>) {
        self.finish(result);
    }

    /// As [`Request::complete`], in place; a second call does nothing.
    pub(crate) fn finish(&mut self, mut result: Result<(), IoError>) {
        let Some(on_complete) = self.on_complete.take() else { return };
        let filled = self.filled() as u64;
        if result.is_ok() && self.op == Op::Read && filled != self.len {
            result = Err(IoError::with(
                IoErrorKind::Io(errno::EIO),
                format!("the driver filled {filled} of the {} bytes to read", self.len),
            ));
        }
        if result.is_err()
            && let Payload::Read(buffer) = &mut self.payload
        {
            buffer.truncate(self.head);
        }
        let done = Completed {
            op: self.op,
            offset: self.offset,
            len: self.len,
            result,
            payload: std::mem::take(&mut self.payload),
        };
        let _section = AtomicSection::enter("completion of a block request");
        // The function is a stranger's: its panic must not take a reaper or a worker along.
        if caught(move || on_complete(done)).is_none() {
            tracing::error!(op = %self.op, offset = self.offset, "a completion function panicked");
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.finish(Err(IoError::new(IoErrorKind::Gone)));
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("op", &self.op)
            .field("offset", &self.offset)
            .field("len", &self.len)
            .field("flags", &self.flags)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn watched(rq: Request) -> (Request, mpsc::Receiver<Completed>) {
        let (tx, rx) = mpsc::channel();
        (rq.on_complete(move |done| tx.send(done).unwrap()), rx)
    }

    #[test]
    fn a_dropped_request_completes_with_gone() {
        let (rq, done) = watched(Request::flush());
        drop(rq);
        assert_eq!(done.recv().unwrap().result.unwrap_err().kind(), IoErrorKind::Gone);
        assert!(done.recv().is_err(), "the function is called once");
    }

    #[test]
    fn a_read_that_filled_too_little_is_an_error_and_keeps_only_its_head() {
        let mut head = BytesMut::new();
        head.extend_from_slice(b"head");
        let (mut rq, done) = watched(Request::read_into(0, 512, head));
        rq.buffer().unwrap().extend_from_slice(&[1; 511]);
        rq.complete(Ok(()));
        let done = done.recv().unwrap();
        assert_eq!(done.result.unwrap_err().kind(), IoErrorKind::Io(5));
        match done.payload {
            Payload::Read(buffer) => assert_eq!(&buffer[..], b"head"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_read_appends_behind_what_the_buffer_held() {
        let mut head = BytesMut::new();
        head.extend_from_slice(b"head");
        let (mut rq, done) = watched(Request::read_into(0, 4, head));
        rq.buffer().unwrap().extend_from_slice(b"data");
        rq.complete(Ok(()));
        assert_eq!(&done.recv().unwrap().into_data().unwrap()[..], b"headdata");
    }

    #[test]
    fn a_panic_in_the_completion_function_stays_there() {
        Request::flush().on_complete(|_| panic!("on purpose")).complete(Ok(()));
    }

    #[test]
    fn the_completion_function_runs_inside_an_atomic_section() {
        let (tx, rx) = mpsc::channel();
        Request::flush()
            .on_complete(move |_| tx.send(corewise_sync::context::in_atomic_section()).unwrap())
            .complete(Ok(()));
        assert!(rx.recv().unwrap());
        assert!(!corewise_sync::context::in_atomic_section());
    }
}
