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

/// Why a request comes back from the driver.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// It has ended.
    Ended(Result<(), IoError>),
    /// It is to go to the driver once more.
    Requeue,
}

/// A request inside a queue. Boxes lie in the [cache](crate::percpu::cache) of their CPU between
/// two requests, and keep their queue's core alive all the time: so a request costs neither an
/// allocation nor a reference count.
pub struct Pending {
    pub(crate) link: Link,
    /// What is asked; `None` in the cache.
    pub(crate) rq: Option<Request>,
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
    pub(crate) uses: u32,
    /// It goes back to the cache.
    pub(crate) cached: bool,
    /// It is counted in by itself; what the queue makes for a request that is inside is not.
    pub(crate) counted: bool,
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
}
