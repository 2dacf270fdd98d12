//! A request on its way to the driver and back: the box that carries it, which is used again and again.

use std::any::Any;
use std::fmt;
use std::iter;
use std::sync::Arc;

use corewise_sync::hint;
use corewise_sync::inbox::{HasLink, Link};
use corewise_sync::panics::caught;
use corewise_sync::time::Stamp;

use crate::complete::{Verdict, nest};
use crate::error::IoError;
use crate::flush;
use crate::hctx::Hctx;
use crate::queue::Core;
use crate::request::Request;
use crate::stats::weight;
use crate::usage::Generation;

/// A request inside a queue. Boxes lie in the [cache](crate::cache) of their CPU between two requests, and keep
/// their queue's core alive all the time: so a request costs neither an allocation nor a reference count.
pub struct Pending {
    link: Link,
    /// What is asked; `None` in the cache.
    rq: Option<Request>,
    pub(crate) core: Arc<Core>,
    /// The CPU slot whose cache it is from, through which it came and is counted out.
    pub(crate) slot: usize,
    /// The hardware queue that it is in, from the insert on.
    pub(crate) hctx: usize,
    /// Its tag, while the driver has it.
    pub(crate) tag: u32,
    /// What the driver wants to find with it, while it lies in an inbox or a list of the driver's.
    pub(crate) owner: Option<Arc<dyn Any + Send + Sync>>,
    /// Why it comes back from the driver, when it does.
    pub(crate) verdict: Option<Verdict>,
    /// For how many requests it stands in the histograms; 0: it isn't timed.
    pub(crate) weight: u32,
    /// When it was submitted, where it is timed.
    pub(crate) begun: Stamp,
    /// When the driver got it, where it is timed; not behind `begun` where no driver has had it.
    pub(crate) started: Stamp,
    /// How many requests the box has carried before.
    uses: u32,
    /// It goes back to the cache.
    cached: bool,
    /// It is counted in by itself; what the queue makes for a request that is inside is not.
    counted: bool,
    /// In which generation it was counted in.
    pub(crate) generation: Generation,
    /// It is durable only behind a flush, which the queue sees to.
    pub(crate) post_flush: bool,
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("rq", &self.rq).finish_non_exhaustive()
    }
}

// SAFETY: `link` returns the one field of `self`, which no other value returns.
unsafe impl HasLink for Pending {
    fn link(&self) -> &Link {
        &self.link
    }
}

/// Why the expectations below hold.
const FILLED: &str = "a box holds its request until it goes back to the cache";

impl Pending {
    pub(crate) fn new(core: &Arc<Core>, rq: Request, slot: usize, cached: bool) -> Box<Self> {
        let mut this = Box::new(Self {
            link: Link::new(),
            rq: Some(rq),
            core: Arc::clone(core),
            slot,
            hctx: 0,
            tag: 0,
            owner: None,
            verdict: None,
            weight: 0,
            begun: Stamp::default(),
            started: Stamp::default(),
            uses: 0,
            cached,
            counted: true,
            generation: Generation::default(),
            post_flush: false,
        });
        this.clock_in();
        this
    }

    /// Uses a box from the cache again.
    pub(crate) fn refill(&mut self, rq: Request) {
        self.rq = Some(rq);
        hint::writes(&self.rq);
        (self.counted, self.post_flush) = (true, false);
        self.uses = self.uses.wrapping_add(1);
        self.clock_in();
    }

    /// Says that it is of the queue's own making, for a request that is inside.
    pub(crate) fn uncounted(mut self: Box<Self>) -> Box<Self> {
        self.counted = false;
        self
    }

    /// Whether it is of the queue's own making.
    pub(crate) fn is_internal(&self) -> bool {
        !self.counted
    }

    /// Its time begins, where it is timed.
    #[inline]
    fn clock_in(&mut self) {
        self.weight = weight(self.core.iostats, self.uses);
        if self.weight != 0 {
            self.begun = Stamp::precise();
            self.started = self.begun;
        }
    }

    /// The driver is about to get it, through `hctx`, under this tag.
    #[inline]
    pub(crate) fn begin(&mut self, hctx: &Hctx, tag: u32) {
        self.tag = tag;
        hint::reads(&self.rq);
        if self.weight != 0 {
            self.started = Stamp::precise();
        }
        if let Some(timeouts) = &self.core.timeouts {
            timeouts.start(hctx, tag, self.rq());
        }
    }

    /// The driver gave it back at once. Its tag is still its own.
    pub(crate) fn unbegin(&mut self, hctx: &Hctx) {
        self.started = self.begun;
        if let Some(slot) = hctx.slots.get(self.tag as usize) {
            slot.state.undo();
        }
    }

    #[inline]
    pub(crate) fn rq(&self) -> &Request {
        self.rq.as_ref().expect(FILLED)
    }

    #[inline]
    pub(crate) fn rq_mut(&mut self) -> &mut Request {
        self.rq.as_mut().expect(FILLED)
    }

    /// Ends a request that is inside and has no tag: at once, or when it is durable.
    pub(crate) fn end(self: Box<Self>, result: Result<(), IoError>) {
        if self.post_flush && result.is_ok() {
            let (core, slot) = (Arc::clone(&self.core), self.slot);
            if let Some(hctx) = flush::add(self) {
                core.hctx(hctx).visit(&core, slot, true);
            }
        } else {
            self.end_now(result);
        }
    }

    /// Ends a request that is inside, has no tag and needs no flush any more.
    pub(crate) fn end_now(mut self: Box<Self>, result: Result<(), IoError>) {
        nest::end(move || {
            self.answer(result);
            self.leave();
        });
    }

    /// Finishes a request that is inside and that no driver has: its queue is gone.
    pub(crate) fn abandon(mut self: Box<Self>) {
        let others = self.rq_mut().unmerge();
        for pending in iter::once(self).chain(others) {
            let gone = pending.core.gone();
            // Of a queue that is dropped that is no news.
            let gone = if pending.core.is_dropped() { gone.logged() } else { gone };
            pending.end_now(Err(gone));
        }
    }

    /// Tells the waiter how it ended, and counts it before.
    fn answer(&mut self, result: Result<(), IoError>) {
        self.answer_at(result, None);
    }

    /// As `answer`, with a clock that has just been read.
    pub(crate) fn answer_at(&mut self, result: Result<(), IoError>, now: Option<Stamp>) {
        self.count(result.is_ok(), now);
        hint::writes(&self.rq);
        let result = result.map_err(|error| {
            // Where the queue flushes behind it that flush counts.
            if self.rq().flags().fua {
                self.core.note_loss(self.rq().op(), &error);
            }
            self.log(error)
        });
        self.rq_mut().finish(result);
        // Anything that it still owns goes now, not when the box is used again.
        self.rq = None;
    }

    /// Tells the log why it failed, unless the submitter or the device below does, or there were
    /// too many.
    #[cold]
    fn log(&self, error: IoError) -> IoError {
        if error.is_logged() {
            return error;
        }
        if self.rq().is_quiet() {
            return error.of(&self.core.name);
        }
        let line = || {
            let (device, rq, error) = (self.core.name.clone(), self.rq(), error.clone());
            let (request, offset, len) = (rq.op(), rq.offset(), rq.len());
            move |left_out: Option<u64>| {
                let below = error.device_below(&device);
                tracing::warn!(%device, %request, offset, len, errno = error.errno(), %error, below, left_out, "a request failed");
            }
        };
        // The subscriber is user code: a panic in there keeps no request from its end.
        caught(|| self.core.errors.tell(line));
        error.logged()
    }

    /// Counts it out, and puts the box back. Counting out ends the request's hold on the queue, so the box's
    /// own keeps the core alive behind it.
    pub(crate) fn leave(self: Box<Self>) {
        if self.counted {
            self.core.usage.exit(self.slot, self.generation);
        }
        if !self.cached {
            return;
        }
        let home = self.core.cache.home(self.slot);
        // SAFETY: `home` lies in the core, which the box keeps alive until the push publishes the box; behind
        // that the push touches nothing of it.
        drop(unsafe { home.as_ref() }.push(self));
    }
}
