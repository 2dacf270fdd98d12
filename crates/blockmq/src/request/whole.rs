//! A request that others do in parts: on several devices, or in several steps.
//!
//! The kernel splits a `bio` into clones that share its list of segments and complete their parent when
//! the last of them is done; this is the same. Nothing is copied: a part is a window onto the memory of
//! its whole. Whoever drops the last handle or part completes the whole; there is no count but that of the
//! `Arc`.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use corewise_sync::SpinLock;
use corewise_sync::atomic::{AtomicU64, Ordering};

use super::inline_fn::InlineFn;
use super::segments::Table;
use super::{End, Op, Request, caught};
use crate::driver::Started;
use crate::error::IoError;

/// A request that others do in parts.
///
/// It completes when this handle, its clones and all its parts are gone: with success, or with the error
/// of the part that comes first in the order of the device, which says the failed range in the device's own
/// terms.
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
pub struct Whole(Arc<Inner>);

pub(crate) struct Inner {
    /// Taken out when the last handle goes.
    held: Option<Held>,
    then: Option<InlineFn<(Held, Result<(), IoError>)>>,
    /// L: is the lock, taken by failed parts only; guards the error to tell, and its place.
    error: SpinLock<Option<(Place, IoError)>>,
    /// A: parts made so far. Relaxed: a count.
    made: AtomicU64,
    /// A: where the next part of a read may begin: the windows of reads never overlap. Relaxed: a
    /// window's memory is reached by way of the part alone.
    claimed: AtomicU64,
    /// A: bytes that parts of a read have filled. Relaxed: read by the last owner of the `Arc`, whose
    /// count orders it.
    filled: AtomicU64,
}

/// The request that is done in parts, back in the hands of who decides its end: see [`Whole::with`].
/// Dropped, it completes as gone. Reach its fields through [`Request`]'s methods.
#[derive(Debug)]
pub struct Held(Holder);

#[derive(Debug)]
enum Holder {
    Request(Request),
    Started(Started),
}

/// Where an error begins on the whole's device, and whose it is of several that begin there.
type Place = (u64, u64);

impl Held {
    /// Finishes the request: as [`Request::complete`], or [`Started::complete`].
    pub fn complete(self, result: Result<(), IoError>) {
        match self.0 {
            Holder::Request(rq) => rq.complete(result),
            Holder::Started(rq) => rq.complete(result),
        }
    }
}

impl From<Request> for Held {
    fn from(rq: Request) -> Self {
        Held(Holder::Request(rq))
    }
}

impl From<Started> for Held {
    fn from(rq: Started) -> Self {
        Held(Holder::Started(rq))
    }
}

impl Deref for Held {
    type Target = Request;

    fn deref(&self) -> &Request {
        match &self.0 {
            Holder::Request(rq) => rq,
            Holder::Started(rq) => rq,
        }
    }
}

impl DerefMut for Held {
    fn deref_mut(&mut self) -> &mut Request {
        match &mut self.0 {
            Holder::Request(rq) => rq,
            Holder::Started(rq) => rq,
        }
    }
}

impl Whole {
    /// Makes a request to be done in parts: a [`Request`] or a [`Started`]. It allocates once.
    pub fn new(rq: impl Into<Held>) -> Self {
        Self::make(rq.into(), None)
    }

    /// As [`Whole::new`]; when all parts are gone, `last` decides how the request ends. It is called on
    /// the thread that drops the last part, perhaps in an atomic section: it must not block. It is handed
    /// what the request would have ended with. A panic in it is caught; the request then ends as gone.
    pub fn with(
        rq: impl Into<Held>,
        last: impl FnOnce(Held, Result<(), IoError>) + Send + 'static,
    ) -> Self {
        Self::make(rq.into(), Some(InlineFn::new(move |(rq, result)| last(rq, result))))
    }

    fn make(mut rq: Held, then: Option<InlineFn<(Held, Result<(), IoError>)>>) -> Self {
        // A buffer without the room that the read wants gives parts without memory: they fail.
        let error = rq.prepare().err().map(|error| ((rq.offset(), 0), error));
        Self(Arc::new(Inner {
            held: Some(rq),
            then,
            error: SpinLock::new(error),
            made: AtomicU64::new(0),
            claimed: AtomicU64::new(0),
            filled: AtomicU64::new(0),
        }))
    }

    /// The request: what it asks for. Its bytes are reached through the parts.
    pub fn request(&self) -> &Request {
        self.0.rq()
    }

    /// The part that does bytes `at` to `at + len` of the request, at byte `offset` of whatever device
    /// it is submitted to, with the same operation and flags. Where it fails, the request fails.
    ///
    /// # Panics
    /// Where the part reaches beyond the request, or a read's part begins before the end of one that was
    /// made earlier: two devices must never fill the same memory.
    pub fn part(&self, at: u64, len: u64, offset: u64) -> Request {
        self.claim(at, len);
        Inner::part(&self.0, self.0.window(at, len, false), offset, None)
    }

    /// As [`Whole::part`]; `then` decides what the part's end means, and a failure on which it doesn't call
    /// [`PartDone::record`] is nobody's. It is called as a completion function is.
    ///
    /// # Panics
    /// As [`Whole::part`].
    pub fn part_with(
        &self,
        at: u64,
        len: u64,
        offset: u64,
        then: impl FnOnce(PartDone) + Send + 'static,
    ) -> Request {
        self.claim(at, len);
        let window = self.0.window(at, len, false);
        Inner::part(&self.0, window, offset, Some(InlineFn::new(then)))
    }

    /// A part of a flush, discard or write-zeroes whose range on its device stands for bytes that are
    /// scattered over the request, as on a stripe: where it fails, the request's whole range counts as
    /// failed.
    ///
    /// # Panics
    /// For a read or a write: such a part has no bytes.
    pub fn scattered_part(&self, offset: u64, len: u64) -> Request {
        assert!(!self.request().op().has_bytes(), "a part of a read or write lies in one piece");
        Inner::part(&self.0, self.0.window(0, len, true), offset, None)
    }

    fn claim(&self, at: u64, len: u64) {
        let rq = self.request();
        let end = at.checked_add(len).filter(|&end| end <= rq.len());
        let end = end.expect("a part lies within its request");
        if rq.op() == Op::Read {
            let before = self.0.claimed.fetch_max(end, Ordering::Relaxed);
            assert!(at >= before || len == 0, "the parts of a read are made in ascending order");
        }
    }
}

impl fmt::Debug for Whole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Whole").field(&self.0.held).finish()
    }
}

/// Which bytes of its whole a part does.
#[derive(Clone, Copy, Debug)]
struct Window {
    at: u64,
    len: u64,
    /// How many parts were made before it.
    order: u64,
    /// The window says nothing about the whole's bytes.
    spread: bool,
}

impl Inner {
    fn rq(&self) -> &Request {
        self.held.as_ref().expect("taken out only when the last handle goes")
    }

    fn window(&self, at: u64, len: u64, spread: bool) -> Window {
        Window { at, len, order: self.made.fetch_add(1, Ordering::Relaxed), spread }
    }

    fn part(
        this: &Arc<Self>,
        window: Window,
        offset: u64,
        then: Option<InlineFn<PartDone>>,
    ) -> Request {
        let rq = this.rq();
        let (table, skip) = if rq.op().has_bytes() {
            (Table::Theirs(NonNull::from(rq.segs())), rq.skip + window.at)
        } else {
            (Table::None, 0)
        };
        let mut part = Request::bare(rq.op(), rq.flags(), offset, window.len);
        part.table = table;
        part.skip = skip;
        part.end = End::Part(Part { whole: Arc::clone(this), window, then });
        part
    }

    fn fail(&self, order: u64, error: IoError) {
        let place = (error.range().map_or(self.rq().offset(), |range| range.start), order);
        let mut first = self.error.lock();
        if first.as_ref().is_none_or(|(first, _)| place < *first) {
            *first = Some((place, error));
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let Some(mut rq) = self.held.take() else { return };
        let result = match self.error.lock().take() {
            Some((_, error)) => Err(error),
            None => Ok(()),
        };
        rq.filled = self.filled.load(Ordering::Relaxed);
        let Some(then) = self.then.take() else { return rq.complete(result) };
        if caught(move || then.call((rq, result))).is_none() {
            tracing::error!("the function that ends a request which was done in parts panicked");
        }
    }
}

/// What a part is to its whole: how it ends.
pub(crate) struct Part {
    whole: Arc<Inner>,
    window: Window,
    then: Option<InlineFn<PartDone>>,
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Part").field(&self.window).finish()
    }
}

impl Part {
    /// The part at `offset` of its device ended like this. A failure says its range.
    pub(super) fn end(self, offset: u64, result: Result<(), IoError>) {
        let Part { whole, window, then } = self;
        let rq = whole.rq();
        let result = result.map_err(|error| match error.range() {
            Some(range) if !window.spread && !rq.is_empty() => {
                let first = rq.offset() + window.at;
                let within = |at: u64| first + at.saturating_sub(offset).min(window.len);
                let range = within(range.start)..within(range.end);
                error.at(range)
            }
            _ if rq.is_empty() => error,
            _ => error.at(rq.offset()..rq.offset() + rq.len()),
        });
        let done = PartDone { whole, window, result: Some(result) };
        match then {
            Some(then) => then.call(done),
            None => done.record(),
        }
    }
}

/// How a part of a [`Whole`] ended.
pub struct PartDone {
    whole: Arc<Inner>,
    window: Window,
    /// Taken by `again`: then this part's end says nothing.
    result: Option<Result<(), IoError>>,
}

impl PartDone {
    /// Success, or why not, and for which bytes of the whole's device.
    pub fn result(&self) -> Result<(), &IoError> {
        match &self.result {
            Some(Err(error)) => Err(error),
            Some(Ok(())) | None => Ok(()),
        }
    }

    /// The whole, to make more parts of it.
    pub fn whole(&self) -> Whole {
        Whole(Arc::clone(&self.whole))
    }

    /// Has the whole fail where this part failed.
    pub fn record(mut self) {
        match self.result.take() {
            Some(Err(error)) => self.whole.fail(self.window.order, error),
            ok => self.result = ok, // counted in the drop
        }
    }

    /// Has the whole fail with this error, whatever became of this part.
    pub fn fail(mut self, error: IoError) {
        self.result = None;
        self.whole.fail(self.window.order, error);
    }

    /// The same part once more, at byte `offset` of whatever device it is submitted to now. How it ended
    /// this time says nothing any more.
    pub fn again(mut self, offset: u64) -> Request {
        self.result = None;
        Inner::part(&self.whole, self.window, offset, None)
    }

    /// As [`PartDone::again`], with a function as for [`Whole::part_with`].
    pub fn again_with(
        mut self,
        offset: u64,
        then: impl FnOnce(PartDone) + Send + 'static,
    ) -> Request {
        self.result = None;
        Inner::part(&self.whole, self.window, offset, Some(InlineFn::new(then)))
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
            Some(Ok(())) => {
                self.whole.filled.fetch_add(self.window.len, Ordering::Relaxed);
            }
            // Who was to decide what the failure means didn't get there.
            Some(Err(error)) if std::thread::panicking() => {
                self.whole.fail(self.window.order, error)
            }
            Some(Err(_)) | None => {}
        }
    }
}
