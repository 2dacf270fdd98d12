//! A request that others do in parts: on several devices, or in several steps.
//!
//! The kernel splits a `bio` into clones that share its list of segments and complete their parent
//! when the last of them is done; this is the same. Nothing is copied: a part is a window onto the
//! memory of its whole. The thread that drops the last handle or part completes the whole; there is
//! no count but that of the `Arc`.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::{fmt, mem};

use corewise_sync::SpinLock;
use corewise_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use corewise_sync::panics::caught;

use crate::request::error::{IoError, IoErrorKind};
use crate::request::table::{InlineFn, Seg, Table};
use crate::request::{Extents, FoundExtents, Op, Payload};
use crate::state::driver::Started;
use crate::state::pending::{Pending, Verdict};
use crate::state::request::{Completion, Request};

/// A request that others do in parts.
///
/// It completes when this handle, its clones and all its parts are gone. It succeeds, or fails with
/// the error of the part that comes first in the order of the device. That error has the failed
/// range in the device's own terms.
///
/// ```
/// use corewise_blockmq::{BlockDevice, Request, Whole};
///
/// /// Writes the first half to one device, and the second one to another.
/// fn halves(rq: Request, devices: [&dyn BlockDevice; 2]) {
///     let whole = Whole::new(rq);
///     let half = whole.request().len() / 2;
///     devices[0].submit(whole.part(0, half, 0));
///     devices[1].submit(whole.part(half, half, 0));
/// }
/// ```
#[derive(Clone)]
pub struct Whole(Arc<WholeState>);

pub(crate) struct WholeState {
    /// The request; taken out when the last handle goes.
    held: Option<HeldRequest>,
    /// The joined memory list of a request that others were merged into.
    flat: Option<Box<[Seg]>>,
    then: Option<InlineFn<(HeldRequest, Result<(), IoError>)>>,
    /// L: is the lock, taken by failed parts only; guards the error to tell, and its place.
    error: SpinLock<Option<(ErrorOrder, IoError)>>,
    /// L: is the lock, taken by parts of a request for extents; guards what those have found.
    found: SpinLock<FoundExtents>,
    /// A: number of parts made so far. Relaxed: a count.
    made: AtomicU32,
    /// A: the byte at which the next part of a read may begin: the windows of reads never overlap.
    /// Relaxed: a window's memory is reached by way of the part alone.
    claimed: AtomicU64,
    /// A: the first byte of a read that no part has filled: a part failed there, or none was made.
    /// The number of filled bytes would not tell where. Relaxed: read by the last owner of the
    /// `Arc`, whose count orders it.
    hole: AtomicU64,
}

/// The request that is done in parts, given back to the code that decides its end: see
/// [`Whole::with`]. Dropped, it completes as gone. Its fields are reached through [`Request`]'s
/// methods.
#[derive(Debug)]
pub struct HeldRequest(HeldAs);

#[derive(Debug)]
enum HeldAs {
    Request(Request),
    Started(Started),
    PendingWhole(PendingWhole),
}

/// A request that a queue does in parts: counted in, without a tag.
#[derive(Debug)]
struct PendingWhole(Option<Box<Pending>>);

impl PendingWhole {
    fn end(&mut self, result: Result<(), IoError>) {
        if let Some(pending) = self.0.take() {
            pending.end(result);
        }
    }
}

impl Drop for PendingWhole {
    fn drop(&mut self) {
        self.end(Err(IoError::new(IoErrorKind::Gone)));
    }
}

/// The place of an error on the whole's device, and the number of its part among several errors at
/// one place.
type ErrorOrder = (u64, u32);

impl HeldRequest {
    /// Finishes the request, as [`Request::complete`] or [`Started::complete`] do.
    pub fn complete(self, result: Result<(), IoError>) {
        match self.0 {
            HeldAs::Request(rq) => rq.complete(result),
            HeldAs::Started(rq) => rq.complete(result),
            HeldAs::PendingWhole(mut rq) => rq.end(result),
        }
    }

    /// Wraps a request that its queue does in parts.
    pub(crate) fn queued(pending: Box<Pending>) -> Self {
        HeldRequest(HeldAs::PendingWhole(PendingWhole(Some(pending))))
    }

    pub(super) fn rq_mut(&mut self) -> &mut Request {
        match &mut self.0 {
            HeldAs::Request(rq) => rq,
            HeldAs::Started(rq) => rq.rq_mut(),
            HeldAs::PendingWhole(rq) => rq.0.as_mut().expect(ENDED_LAST).rq_mut(),
        }
    }
}

/// The reason why the expectations below hold.
const ENDED_LAST: &str = "only complete and the drop end it, and nobody has it behind those";

impl From<Request> for HeldRequest {
    fn from(rq: Request) -> Self {
        HeldRequest(HeldAs::Request(rq))
    }
}

impl From<Started> for HeldRequest {
    fn from(rq: Started) -> Self {
        HeldRequest(HeldAs::Started(rq))
    }
}

impl Deref for HeldRequest {
    type Target = Request;

    fn deref(&self) -> &Request {
        match &self.0 {
            HeldAs::Request(rq) => rq,
            HeldAs::Started(rq) => rq,
            HeldAs::PendingWhole(rq) => rq.0.as_ref().expect(ENDED_LAST).rq(),
        }
    }
}

impl Whole {
    /// Makes a request to be done in parts: a [`Request`] or a [`Started`]. It allocates once.
    pub fn new(rq: impl Into<HeldRequest>) -> Self {
        Self::make(rq.into(), None)
    }

    /// Makes a whole whose end `last` decides, once all parts are gone. `last` is called on the
    /// thread that drops the last part, perhaps in an atomic section: it must not block. Its
    /// argument is the result with which the request would have ended. A panic in it is caught; the
    /// request then ends as gone.
    ///
    /// The [filled](Request::filled) bytes of a read are then counted up to the first byte that no
    /// part has filled, whatever later parts have filled. So `last` may fill the rest itself. It
    /// may also change the filled bytes in place ([`HeldRequest::filled_mut`]), as a filter does
    /// that decompresses, decrypts or checks them.
    pub fn with(
        rq: impl Into<HeldRequest>,
        last: impl FnOnce(HeldRequest, Result<(), IoError>) + Send + 'static,
    ) -> Self {
        Self::make(rq.into(), Some(InlineFn::new(move |(rq, result)| last(rq, result))))
    }

    fn make(
        mut rq: HeldRequest,
        then: Option<InlineFn<(HeldRequest, Result<(), IoError>)>>,
    ) -> Self {
        // A buffer without the room that the read wants gives parts without memory: they fail.
        let error = rq.rq_mut().prepare(1).err().map(|error| ((rq.offset(), 0), error));
        let flat = rq.is_merged().then(|| rq.segments_behind(0).map(Seg::from).collect());
        Self(Arc::new(WholeState {
            held: Some(rq),
            flat,
            then,
            error: SpinLock::new(error),
            found: SpinLock::new(FoundExtents::default()),
            made: AtomicU32::new(0),
            claimed: AtomicU64::new(0),
            hole: AtomicU64::new(u64::MAX),
        }))
    }

    /// Returns the request. Its bytes are reached through the parts.
    pub fn request(&self) -> &Request {
        self.0.rq()
    }

    /// Makes the part that does bytes `at` to `at + len` of the request. The part begins at byte
    /// `offset` of the device that it is submitted to, and has the same operation and flags. If it
    /// fails, the request fails.
    ///
    /// If a read is [filled](Request::filled) partly, the parts do the rest, or all of it once
    /// more.
    ///
    /// # Panics
    /// If the part reaches beyond the request, or a read's part begins before the end of one that
    /// was made earlier: two devices must never fill the same memory.
    pub fn part(&self, at: u64, len: u64, offset: u64) -> Request {
        self.claim(at, len);
        WholeState::part(&self.0, self.0.window(at, false), len, offset, None)
    }

    /// Makes a part as [`Whole::part`] does; `then` decides what the part's end means. If `then`
    /// doesn't call [`PartDone::record`] on a failure, the failure counts for nothing. `then` is
    /// called as a completion function is.
    ///
    /// # Panics
    /// See [`Whole::part`].
    pub fn part_with(
        &self,
        at: u64,
        len: u64,
        offset: u64,
        then: impl FnOnce(PartDone) + Send + 'static,
    ) -> Request {
        self.claim(at, len);
        let window = self.0.window(at, false);
        WholeState::part(&self.0, window, len, offset, Some(InlineFn::new(then)))
    }

    /// Makes a part of a flush, discard or write-zeroes whose range stands for bytes that are
    /// scattered over the request, as on a stripe. If the part fails, the request's whole range
    /// counts as failed.
    ///
    /// # Panics
    /// If the request is a read or a write: such a part has no bytes.
    pub fn scattered_part(&self, offset: u64, len: u64) -> Request {
        assert!(!self.request().op().has_bytes(), "a part of a read or write lies in one piece");
        WholeState::part(&self.0, self.0.window(0, true), len, offset, None)
    }

    /// Makes a part as [`Whole::part_with`] does, for bytes that [`Whole::claim`] has claimed.
    pub(crate) fn claimed_part(
        &self,
        at: u64,
        len: u64,
        then: impl FnOnce(PartDone) + Send + 'static,
    ) -> Request {
        let (window, offset) = (self.0.window(at, false), self.request().offset() + at);
        WholeState::part(&self.0, window, len, offset, Some(InlineFn::new(then)))
    }

    /// Fails the request with this error in the bytes from `at` on, of which no part was made.
    pub(crate) fn fail_rest(&self, at: u64, error: IoError) {
        let rq = self.request();
        let error = error.at(rq.offset() + at..rq.offset() + rq.len());
        self.0.fail(u32::MAX, error);
    }

    /// Claims the bytes of a part.
    ///
    /// # Panics
    /// As [`Whole::part`]; then nothing is claimed.
    pub(crate) fn claim(&self, at: u64, len: u64) {
        let (inner, rq) = (&self.0, self.request());
        let end = at.checked_add(len).filter(|&end| end <= rq.len());
        let end = end.expect("a part lies within its request");
        if rq.op() != Op::Read || len == 0 {
            return;
        }
        let next = |claimed| (at >= claimed).then_some(end);
        let claimed = inner.claimed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        let before = claimed.expect("the parts of a read are made in ascending order");
        // Bytes that no part will fill, except those that were filled before.
        let unasked = before.max(rq.filled());
        if unasked < at {
            inner.hole.fetch_min(unasked, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for Whole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Whole").field(&self.0.held).finish()
    }
}

/// The function that decides about the end of a part.
type PartFn = InlineFn<PartDone, 2>;

/// The window of a part: the bytes of the whole that it does.
#[derive(Clone, Copy, Debug)]
struct Window {
    at: u64,
    /// Number of parts that were made before it; of the first few billion.
    order: u32,
    /// True if the window says nothing about the whole's bytes.
    spread: bool,
}

impl WholeState {
    fn rq(&self) -> &Request {
        self.held.as_ref().expect("taken out only when the last handle goes")
    }

    fn window(&self, at: u64, spread: bool) -> Window {
        Window { at, order: self.made.fetch_add(1, Ordering::Relaxed), spread }
    }

    fn part(
        this: &Arc<Self>,
        window: Window,
        len: u64,
        offset: u64,
        then: Option<PartFn>,
    ) -> Request {
        let rq = this.rq();
        let (table, skip) = match &this.flat {
            _ if !rq.op().has_bytes() => (Table::None, 0),
            Some(flat) => (Table::Theirs(NonNull::from(&**flat)), window.at),
            None => (Table::Theirs(NonNull::from(rq.segs())), rq.skip + window.at),
        };
        let mut part = Request::bare(rq.op(), rq.flags(), offset, len);
        if let Some(extents) = rq.extents() {
            part.payload = Payload::Extents(Extents::new(extents.most()));
        }
        part.quiet = rq.quiet;
        part.table = table;
        part.skip = skip;
        part.end = Completion::Part(Part { whole: Arc::clone(this), window, then });
        part
    }

    /// Records that the part of this window has not filled all its bytes.
    fn leave_hole(&self, window: Window) {
        self.hole.fetch_min(window.at, Ordering::Relaxed);
    }

    fn fail(&self, order: u32, error: IoError) {
        let place = (error.range().map_or(self.rq().offset(), |range| range.start), order);
        let mut first = self.error.lock();
        if first.as_ref().is_none_or(|(first, _)| place < *first) {
            *first = Some((place, error));
        }
    }
}

impl Drop for WholeState {
    fn drop(&mut self) {
        let Some(mut rq) = self.held.take() else { return };
        let result = match self.error.lock().take() {
            Some((_, error)) => Err(error),
            None => Ok(()),
        };
        if rq.op() == Op::Read {
            let asked = self.claimed.load(Ordering::Relaxed).max(rq.filled());
            rq.rq_mut().filled = asked.min(self.hole.load(Ordering::Relaxed));
        }
        if rq.op() == Op::Extents {
            let found = mem::take(&mut *self.found.lock());
            let reached = rq.extents().map_or(0, Extents::covered);
            found.put_into(reached, |extent| rq.put_extent(extent));
        }
        let Some(then) = self.then.take() else { return rq.complete(result) };
        if caught(move || then.call((rq, result))).is_none() {
            tracing::error!("the completion function of a request in parts panicked");
        }
    }
}

/// The tie of a part to its whole, which decides how the part ends.
pub(crate) struct Part {
    whole: Arc<WholeState>,
    window: Window,
    then: Option<PartFn>,
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Part").field(&self.window).finish()
    }
}

impl Part {
    /// Ends the part of `len` bytes at `offset` of its device with this result. A failure says its
    /// range.
    pub(super) fn end(
        self,
        offset: u64,
        len: u64,
        result: Result<(), IoError>,
        found: Option<Extents>,
    ) {
        let Part { whole, window, then } = self;
        if let (Some(found), Ok(())) = (found, &result) {
            whole.found.lock().add(window.at, found);
        }
        let rq = whole.rq();
        let result = result.map_err(|error| match error.range() {
            Some(range) if !window.spread && !rq.is_empty() => {
                // Saturating: a request that no queue has seen may reach beyond all offsets.
                let first = rq.offset().saturating_add(window.at);
                let within = |at: u64| first.saturating_add(at.saturating_sub(offset).min(len));
                let range = within(range.start)..within(range.end);
                error.at(range)
            }
            _ if rq.is_empty() => error,
            _ => error.at(rq.offset()..rq.offset().saturating_add(rq.len())),
        });
        let done = PartDone { whole, window, len, result: Some(result) };
        match then {
            Some(then) => then.call(done),
            None => done.record(),
        }
    }
}

/// The end of a part of a [`Whole`].
pub struct PartDone {
    whole: Arc<WholeState>,
    window: Window,
    len: u64,
    /// The part's result. `again` takes it: this end then counts for nothing.
    result: Option<Result<(), IoError>>,
}

impl PartDone {
    /// Returns success, or the error with the failed bytes of the whole's device.
    pub fn result(&self) -> Result<(), &IoError> {
        match &self.result {
            Some(Err(error)) => Err(error),
            Some(Ok(())) | None => Ok(()),
        }
    }

    /// Returns the whole, for more parts of it.
    pub fn whole(&self) -> Whole {
        Whole(Arc::clone(&self.whole))
    }

    /// Makes the whole fail where this part failed.
    pub fn record(mut self) {
        if let Some(Err(error)) = self.result.take() {
            self.whole.leave_hole(self.window);
            self.whole.fail(self.window.order, error);
        }
    }

    /// Makes the whole fail with this error, whatever the result of this part.
    pub fn fail(mut self, error: IoError) {
        if let Some(Err(_)) = self.result.take() {
            self.whole.leave_hole(self.window);
        }
        self.whole.fail(self.window.order, error);
    }

    /// Makes the same part once more, at byte `offset` of the device that it is submitted to now,
    /// with a function as for [`Whole::part_with`]. The result of this part then counts for
    /// nothing.
    pub fn again_with(
        mut self,
        offset: u64,
        then: impl FnOnce(PartDone) + Send + 'static,
    ) -> Request {
        self.result = None;
        WholeState::part(&self.whole, self.window, self.len, offset, Some(InlineFn::new(then)))
    }
}

impl fmt::Debug for PartDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartDone")
            .field("window", &self.window)
            .field("result", &self.result)
            .finish_non_exhaustive()
    }
}

impl Drop for PartDone {
    fn drop(&mut self) {
        match self.result.take() {
            Some(Ok(())) | None => {}
            Some(Err(error)) => {
                self.whole.leave_hole(self.window);
                // The function that decides what the failure means wasn't reached.
                if std::thread::panicking() {
                    self.whole.fail(self.window.order, error);
                }
            }
        }
    }
}

// A request that another device does as it is, at another place. (Linux: `bio_set_dev` and
// `submit_bio_noacct` of a bio-based driver, and `blk_partition_remap`.)
//
// The request stays inside its queue, counted in, without a tag. Its box is the listener of the
// request that the device below gets, whose memory list is the box's own: nothing is allocated or
// copied. `../README.md` argues it.

/// The tie of a request on the device below to the one that it does. It owns that one's box, as a
/// plain pointer: the memory list of the request below points into the box.
#[derive(Debug)]
pub(crate) struct Remapped {
    /// The box; `None` once the request has ended.
    pending: Option<NonNull<Pending>>,
}

// SAFETY: it owns the box, which is Send, and gives nobody else the pointer.
unsafe impl Send for Remapped {}
// SAFETY: a shared reference gives no access to the box.
unsafe impl Sync for Remapped {}

impl Request {
    /// Makes the request that the device below gets for `pending`, at byte `offset` there.
    #[inline]
    pub(crate) fn remapped(mut pending: Box<Pending>, offset: u64) -> Request {
        pending.leave_for_below();
        let pending = NonNull::from(Box::leak(pending));
        // SAFETY: the box lives until the request made here has ended, which then owns it.
        let rq = unsafe { pending.as_ref() }.rq();
        let mut below = Request::bare(rq.op, rq.flags, offset, rq.len);
        below.quiet = rq.quiet;
        if rq.op.has_bytes() {
            (below.table, below.skip) = (Table::Theirs(NonNull::from(rq.segs())), rq.skip);
        }
        below.end = Completion::Remapped(Remapped { pending: Some(pending) });
        below
    }
}

impl Remapped {
    /// Ends the request with the result of the one below, whose first byte is at `offset` there. An
    /// error's range is moved to the request's own place. A second call does nothing.
    pub(super) fn end(&mut self, offset: u64, result: Result<(), IoError>) {
        let Some(pending) = self.pending.take() else { return };
        // SAFETY: the pointer is that of the leaked box, and is used no more: the request below has
        // given up its memory list.
        let mut pending = unsafe { Box::from_raw(pending.as_ptr()) };
        let rq = pending.rq_mut();
        let result = result.map_err(|error| match error.range() {
            Some(range) => {
                let (first, len) = (rq.offset, rq.len);
                let within = |at: u64| first.saturating_add(at.saturating_sub(offset).min(len));
                let range = within(range.start)..within(range.end);
                error.at(range)
            }
            None => error,
        });
        if result.is_ok() && rq.op == Op::Read {
            // The request below had all of its bytes filled: it would have failed otherwise.
            rq.filled = rq.len;
        }
        pending.verdict = Some(Verdict::Ended(result));
        pending.settle();
    }
}

impl Drop for Remapped {
    fn drop(&mut self) {
        self.end(0, Err(IoError::new(IoErrorKind::Gone)));
    }
}
