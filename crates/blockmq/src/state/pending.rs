//! A request on its way to the driver and back: the box that carries it, which is used again and
//! again.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use corewise_sync::hint;
use corewise_sync::inbox::{HasLink, Link};
use corewise_sync::time::Stamp;

use crate::admission::usage::Generation;
use crate::request::error::IoError;
use crate::state::core::Core;
use crate::state::core::Hctx;
use crate::state::request::Request;
use crate::stats::weight;

/// The reason why a request comes back from the driver.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// The request has ended.
    Ended(Result<(), IoError>),
    /// The request goes to the driver once more.
    Requeue,
}

/// A request inside a queue. Between two requests a box lies in the [cache](crate::percpu::cache)
/// of its CPU. A box keeps its queue's core alive all the time, so a request costs neither an
/// allocation nor a reference count.
pub struct Pending {
    pub(crate) link: Link,
    /// The request; `None` in the cache.
    pub(crate) rq: Option<Request>,
    pub(crate) core: Arc<Core>,
    /// The CPU slot whose cache the box is from. The request came through that slot, and is counted
    /// out there.
    pub(crate) slot: usize,
    /// The hardware queue that the request is in, from the insert on.
    pub(crate) hctx: usize,
    /// The request's tag, while the driver has it.
    pub(crate) tag: u32,
    /// The driver's own value beside the request, while that lies in an inbox or a list of the
    /// driver's.
    pub(crate) owner: Option<Arc<dyn Any + Send + Sync>>,
    /// The reason why the request comes back from the driver, once it does.
    pub(crate) verdict: Option<Verdict>,
    /// Number of requests for which this one stands in the histograms; 0: it isn't timed.
    pub(crate) weight: u32,
    /// The time of submission, if the request is timed.
    pub(crate) begun: Stamp,
    /// The time at which the driver got the request, if it is timed. Not later than `begun` if no
    /// driver has had it.
    pub(crate) started: Stamp,
    /// Number of requests that the box has carried before.
    pub(crate) uses: u32,
    /// True if the box goes back to the cache.
    pub(crate) cached: bool,
    /// True if the request is counted in by itself. A request that the queue makes for one inside
    /// is not.
    pub(crate) counted: bool,
    /// The generation in which the request was counted in.
    pub(crate) generation: Generation,
    /// True if the request is durable only after a flush, which the queue sends.
    pub(crate) post_flush: bool,
    /// True while the device below has the request in place of the driver: it has no tag.
    pub(crate) is_below: bool,
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

/// The reason why the expectations below hold.
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
            is_below: false,
        });
        this.clock_in();
        this
    }

    /// Fills a box from the cache with the next request.
    pub(crate) fn refill(&mut self, rq: Request) {
        self.rq = Some(rq);
        hint::writes(&self.rq);
        (self.counted, self.post_flush) = (true, false);
        self.uses = self.uses.wrapping_add(1);
        self.clock_in();
    }

    /// Marks the request as the queue's own, made for a request that is inside.
    pub(crate) fn uncounted(mut self: Box<Self>) -> Box<Self> {
        self.counted = false;
        self
    }

    /// Returns true if the queue made the request itself.
    pub(crate) fn is_internal(&self) -> bool {
        !self.counted
    }

    /// Records the time of submission, if the request is timed.
    #[inline]
    fn clock_in(&mut self) {
        self.weight = weight(self.core.iostats, self.uses);
        if self.weight != 0 {
            self.begun = Stamp::precise();
            self.started = self.begun;
        }
    }

    /// Prepares the request for the driver, which gets it through `hctx`, under this tag.
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

    /// Prepares the request for the device below, which gets it without a tag.
    #[inline]
    pub(crate) fn leave_for_below(&mut self) {
        self.is_below = true;
        hint::reads(&self.rq);
        if self.weight != 0 {
            self.started = Stamp::precise();
        }
    }

    /// Undoes `begin`: the driver gave the request back at once. Its tag is still its own.
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
}
