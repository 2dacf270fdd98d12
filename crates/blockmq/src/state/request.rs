//! Requests to a block device, and the completion that answers each exactly once.
//!
//! A [`Request`] owns its buffers and its completion. Its holder must finish it with
//! [`Request::complete`]. Dropping it instead completes it with [`IoErrorKind::Gone`], so that no
//! caller waits for ever.

use std::{fmt, mem};

use bytes::BytesMut;
use corewise_sync::context::AtomicSection;
use corewise_sync::list::List;
use corewise_sync::panics::caught;

use crate::nest;
use crate::request::error::{IoError, IoErrorKind, errno};
use crate::request::table::{InlineFn, Seg, Table};
use crate::request::{Buffer, Extents, Flags, Op, Payload};
use crate::state::pending::Pending;
use crate::state::whole::{Part, Remapped};

/// The result of a request, and its buffers back.
#[must_use = "its `result` says whether the request succeeded"]
#[derive(Debug)]
#[non_exhaustive]
pub struct Completed {
    /// The request's operation.
    pub op: Op,
    /// The request's offset in bytes.
    pub offset: u64,
    /// The request's length in bytes.
    pub len: u64,
    /// Success, or the error. The [range](IoError::range) of an error is within the request's.
    pub result: Result<(), IoError>,
    /// The request's buffers. After a failed read they hold only their bytes of the submission.
    pub payload: Payload,
}

impl Completed {
    /// Returns the bytes of a read (behind what its buffer held before the read), or the error. If
    /// they lie in several buffers, or in one that isn't a `BytesMut`, they are copied together.
    /// Other operations give an empty buffer.
    pub fn into_data(self) -> Result<BytesMut, IoError> {
        self.result?;
        if self.op != Op::Read {
            return Ok(BytesMut::new());
        }
        Ok(match self.payload {
            Payload::One(Buffer::BytesMut(data)) => data,
            several => several.buffers().iter().fold(BytesMut::new(), |mut data, buffer| {
                data.extend_from_slice(buffer.as_slice());
                data
            }),
        })
    }
}

impl Completed {
    /// Returns the extents that a request for them has found, or the error. Other operations give
    /// none.
    pub fn into_extents(self) -> Result<Extents, IoError> {
        self.result?;
        match self.payload {
            Payload::Extents(extents) => Ok(extents),
            _ => Ok(Extents::default()),
        }
    }
}

/// The listener to a request's end.
#[derive(Debug)]
pub(super) enum Completion {
    /// The state without a listener: there is none, or it has been called.
    None,
    Call(InlineFn<Completed>),
    /// The request of which this one is a part.
    Part(Part),
    /// The request on the device above that this one does.
    Remapped(Remapped),
}

/// One request to a block device.
pub struct Request {
    pub(super) op: Op,
    pub(super) flags: Flags,
    pub(super) offset: u64,
    /// Number of the request's own bytes, without those of requests merged into it.
    pub(super) own: u64,
    pub(super) payload: Payload,
    /// The memory of the buffers: what they hold for a write, the room behind that for a read.
    pub(super) table: Table,
    /// Number of bytes of the table in front of the request's own: a part may begin anywhere in its
    /// whole's.
    pub(super) skip: u64,
    /// True once the table's memory is there.
    pub(super) ready: bool,
    /// Number of bytes that a read has filled so far, of all `len` bytes.
    pub(super) filled: u64,
    pub(super) end: Completion,
    /// True if no request may be merged with this one.
    pub(super) no_merge: bool,
    /// True if the submitter reports a failure of this request.
    pub(super) quiet: bool,
    /// Requests that were merged into this one, which lie behind it in this order.
    pub(super) tail: List<Box<Pending>>,
    /// Number of bytes of this request and those merged into it.
    pub(super) len: u64,
    /// Number of pieces of memory that they count as, if requests were merged.
    pub(super) pieces: u32,
}

impl Request {
    /// Creates a request without bytes and without a listener.
    pub(super) fn bare(op: Op, flags: Flags, offset: u64, len: u64) -> Self {
        Self {
            op,
            flags,
            offset,
            own: len,
            payload: Payload::None,
            table: Table::None,
            skip: 0,
            ready: true,
            filled: 0,
            end: Completion::None,
            no_merge: false,
            quiet: false,
            tail: List::new(),
            len,
            pieces: 0,
        }
    }

    pub(super) fn new(op: Op, offset: u64, len: u64) -> Self {
        Self::bare(op, Flags::default(), offset, len)
    }

    /// Reads `len` bytes at byte `offset` into a fresh buffer.
    pub fn read(offset: u64, len: usize) -> Self {
        // The buffer is allocated at submission, after the check of the range: the length may come
        // from a client, which must not make the server allocate too much.
        Self::read_into(offset, len, BytesMut::new())
    }

    /// Reads `len` bytes at byte `offset`, appended to `buffer` (its present bytes stay in front).
    /// A `BytesMut` without the room gets it at submission; any other buffer without room fails the
    /// request as invalid.
    pub fn read_into(offset: u64, len: usize, buffer: impl Into<Buffer>) -> Self {
        let mut rq = Self::new(Op::Read, offset, len as u64);
        rq.payload = Payload::One(buffer.into());
        rq.table = Table::One(Seg::dangling(len));
        rq.ready = false;
        rq
    }

    /// Scatters a read at byte `offset` over several buffers. Each gets the given number of bytes
    /// appended, as by [`Request::read_into`].
    pub fn read_vectored(offset: u64, buffers: impl IntoIterator<Item = (Buffer, usize)>) -> Self {
        let (buffers, segs): (Vec<_>, Vec<_>) =
            buffers.into_iter().map(|(buffer, len)| (buffer, Seg::dangling(len))).unzip();
        // If the sum of the lengths is beyond any memory, the submission refuses the request.
        let len = segs.iter().fold(0u64, |len, seg| len.saturating_add(seg.len as u64));
        let mut rq = Self::new(Op::Read, offset, len);
        rq.payload = Payload::Many(buffers);
        rq.table = Table::Many(segs.into());
        rq.ready = false;
        rq
    }

    /// Writes the bytes of `data` at byte `offset`.
    pub fn write(offset: u64, data: impl Into<Buffer>) -> Self {
        let data = data.into();
        let mut rq = Self::new(Op::Write, offset, data.len() as u64);
        rq.table = Table::One(Seg::of(data.as_slice()));
        rq.payload = Payload::One(data);
        rq
    }

    /// Gathers a write at byte `offset` from several buffers, in their order.
    pub fn write_vectored(offset: u64, data: Vec<Buffer>) -> Self {
        let len = data.iter().map(|buffer| buffer.len() as u64).sum();
        let mut rq = Self::new(Op::Write, offset, len);
        rq.table = Table::Many(data.iter().map(|buffer| Seg::of(buffer.as_slice())).collect());
        rq.payload = Payload::Many(data);
        rq
    }

    /// Makes every write that completed before this submission durable.
    pub fn flush() -> Self {
        Self::new(Op::Flush, 0, 0)
    }

    /// Discards `len` bytes at byte `offset`, which are no longer needed.
    pub fn discard(offset: u64, len: u64) -> Self {
        Self::new(Op::Discard, offset, len)
    }

    /// Makes `len` bytes at byte `offset` read as zeroes.
    pub fn write_zeroes(offset: u64, len: u64) -> Self {
        Self::new(Op::WriteZeroes, offset, len)
    }

    /// Announces that `len` bytes at byte `offset` are about to be read.
    pub fn prefetch(offset: u64, len: u64) -> Self {
        Self::new(Op::Prefetch, offset, len)
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

    /// Asks a `write_zeroes` to fail as [not supported](IoErrorKind::NotSupported) rather than take
    /// as long as a write.
    #[must_use]
    pub fn fast(mut self) -> Self {
        self.flags.fast = true;
        self
    }

    /// Marks a request whose submitter reports its failure, so that queues don't log that (Linux's
    /// `BIO_QUIET`). Its parts on other devices are quiet, too: [`IoError::device_below`] names the
    /// one that failed.
    #[must_use]
    pub fn quiet(self) -> Self {
        self.with_quiet(true)
    }

    /// Sets whether the submitter reports a failure of this request: see [`Request::quiet`]. A part
    /// of a [`Whole`](crate::Whole) inherits that from its whole, unless this sets it.
    #[must_use]
    #[inline]
    pub fn with_quiet(mut self, quiet: bool) -> Self {
        self.quiet = quiet;
        self
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Sets all flags at once.
    #[must_use]
    pub fn with_flags(mut self, flags: Flags) -> Self {
        self.flags = flags;
        self
    }

    /// Sets the function that gets the request's result; a second call replaces the first.
    ///
    /// The function is called exactly once, on the thread that finishes the request. That is the
    /// submitter itself (before `submit` returns, for a memory device), a driver's reaper thread,
    /// or a workqueue worker. It runs, and is dropped, inside an atomic section: it must not block.
    /// It may submit further requests. A panic in it is caught and logged.
    ///
    /// A closure of up to six words is stored in the request; a larger one is boxed.
    ///
    /// # Panics
    /// If the request is a part of a [`Whole`](crate::Whole): its end goes to the whole.
    #[must_use]
    pub fn on_complete(mut self, f: impl FnOnce(Completed) + Send + 'static) -> Self {
        assert!(
            !matches!(self.end, Completion::Part(_) | Completion::Remapped(_)),
            "a part of a request tells its whole how it ended"
        );
        self.end = Completion::Call(InlineFn::new(f));
        self
    }

    /// Returns the operation.
    #[inline]
    pub fn op(&self) -> Op {
        self.op
    }

    /// Returns the modifiers.
    #[inline]
    pub fn flags(&self) -> Flags {
        self.flags
    }

    /// Returns the first byte of the range (0 for a flush).
    #[inline]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the length of the range in bytes (0 for a flush). In a driver, it includes the
    /// requests that were merged into this one.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if the range is empty: a flush, or a transfer of nothing.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gets the memory of a read, aligned to `align` if allocated. The queue has done so before a
    /// driver sees the request.
    #[inline]
    pub(crate) fn prepare(&mut self, align: usize) -> Result<(), IoError> {
        if self.ready {
            return Ok(());
        }
        for (buffer, seg) in self.payload.buffers_mut().iter_mut().zip(self.table.segs_mut()) {
            let Some(room) = buffer.room(seg.len, align) else {
                return Err(IoError::with(
                    IoErrorKind::InvalidInput,
                    format!("the buffer of a read lacks room for {} bytes", seg.len),
                ));
            };
            *seg = Seg::of_room(room);
        }
        self.ready = true;
        Ok(())
    }

    /// Returns the list of the request's memory; empty if that isn't there.
    #[inline]
    pub(super) fn segs(&self) -> &[Seg] {
        if self.ready { self.table.segs() } else { &[] }
    }

    /// Finishes the request: calls its completion function, now, on this thread, inside an atomic
    /// section.
    ///
    /// If a read claims success without having filled `len` bytes, it becomes an I/O error: no
    /// client may get bytes that were never read. An error without a range is taken to mean the
    /// whole request.
    ///
    /// Deep in nested completion functions, the call may come a moment later: on this thread too,
    /// before the outermost of them returns to its caller.
    pub fn complete(mut self, result: Result<(), IoError>) {
        nest::end(move || self.finish(result));
    }

    /// Drops the memory of a request without a listener. The memory may be of a foreign type, whose
    /// destructor may panic.
    fn drop_memory(&mut self) {
        let (payload, table) =
            (mem::take(&mut self.payload), mem::replace(&mut self.table, Table::None));
        let _section = AtomicSection::enter("completion of a block request");
        if caught(|| drop((payload, table))).is_none() {
            tracing::error!(op = %self.op, offset = self.offset, "the memory of a request panicked when it was dropped");
        }
    }

    /// Finishes the request in place, as [`Request::complete`] does; a second call does nothing.
    pub(crate) fn finish(&mut self, mut result: Result<(), IoError>) {
        let end = match mem::replace(&mut self.end, Completion::None) {
            Completion::None => return self.drop_memory(),
            end => end,
        };
        if result.is_ok() && self.op == Op::Read && self.filled != self.own {
            result = Err(IoError::with(
                IoErrorKind::Io(errno::EIO),
                format!("the driver filled {} of the {} bytes to read", self.filled, self.own),
            ));
        }
        let result = result.map_err(|error| match error.range() {
            None if self.own != 0 => error.at(self.offset..self.offset.saturating_add(self.own)),
            _ => error,
        });
        let (op, offset, len) = (self.op, self.offset, self.own);
        // No code reaches the memory through this request any more.
        let table = mem::replace(&mut self.table, Table::None);
        let mut payload = mem::take(&mut self.payload);
        if result.is_ok() && op == Op::Read {
            for (buffer, seg) in payload.buffers_mut().iter_mut().zip(table.segs()) {
                // SAFETY: all bytes of the read are filled, and the pieces of the list are the
                // rooms of the buffers, in order. (A part has no buffers of its own.)
                unsafe { buffer.grow(seg.len) };
            }
        }
        let mut found = None;
        if let Payload::Extents(extents) = &mut payload {
            match &result {
                Ok(()) => extents.finish(len),
                Err(_) => extents.clear(),
            }
            if matches!(end, Completion::Part(_)) {
                found = Some(mem::take(extents));
            }
        }
        let _section = AtomicSection::enter("completion of a block request");
        // The function is foreign code: its panic must not end a reaper or a worker.
        let told = match end {
            Completion::None => Some(()),
            Completion::Call(f) => {
                caught(|| f.call(Completed { op, offset, len, result, payload }))
            }
            Completion::Part(part) => caught(|| part.end(offset, len, result, found)),
            Completion::Remapped(mut above) => caught(|| above.end(offset, result)),
        };
        if told.is_none() {
            tracing::error!(%op, offset, "a completion function panicked");
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !matches!(self.end, Completion::None) {
            let this = Self::bare(self.op, self.flags, self.offset, self.own);
            mem::replace(self, this).complete(Err(IoError::new(IoErrorKind::Gone)));
        }
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
    fn a_request_fits_four_cache_lines_since_it_is_moved_into_its_box() {
        assert!(size_of::<Request>() <= 256, "{}", size_of::<Request>());
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
        assert_eq!(rq.put(&[1; 511]), 511);
        rq.complete(Ok(()));
        let done = done.recv().unwrap();
        assert_eq!(done.result.unwrap_err().kind(), IoErrorKind::Io(5));
        match done.payload {
            Payload::One(buffer) => assert_eq!(buffer.as_slice(), b"head"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_read_appends_behind_what_the_buffer_held() {
        let mut head = BytesMut::new();
        head.extend_from_slice(b"head");
        let (mut rq, done) = watched(Request::read_into(0, 4, head));
        assert_eq!(rq.put(b"data and more"), 4);
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
