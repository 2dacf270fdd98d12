//! What a queue with timeouts knows of the requests that its driver has.

use std::fmt;
use std::time::Duration;

use corewise_sync::atomic::AtomicU64;
use corewise_workqueue::{Work, Workqueue};

use crate::admission::tag_state::{TagState, Watch};
use crate::request::Op;

/// What a driver says of a request whose time is up: [`Driver::timeout`](crate::Driver::timeout).
/// (Linux: `blk_eh_timer_return`.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum TimerReturn {
    /// The driver has completed it, or will: it isn't told of this request again.
    Done,
    /// The request gets the same time once more.
    ResetTimer,
}

/// A request that the driver has had for too long. It is named by its hardware queue and tag: the
/// driver has the request itself. Until the callback returns, no other request gets the tag, even
/// where this one completes meanwhile.
#[derive(Clone, Copy)]
pub struct TimedOut<'a> {
    pub(crate) queue: &'a str,
    pub(crate) which: LateOne,
    pub(crate) op: Op,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) waited: Duration,
}

/// Which request is late, as plain values: it may be asked for on another thread, as long as its
/// tag is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LateOne {
    /// The address of its queue's core, which each of the queue's requests keeps alive.
    pub(crate) core: usize,
    pub(crate) hctx: usize,
    pub(crate) tag: u32,
}

impl LateOne {
    pub(crate) fn of(core: usize, hctx: usize, tag: u32) -> Self {
        Self { core, hctx, tag }
    }
}

impl TimedOut<'_> {
    /// Names the request by plain values.
    pub fn which(&self) -> LateOne {
        self.which
    }

    /// Index of its hardware queue.
    pub fn hctx(&self) -> usize {
        self.which.hctx
    }

    /// Its tag; see [`Started::tag`](crate::Started::tag).
    pub fn tag(&self) -> u32 {
        self.which.tag
    }

    /// What it asks for.
    pub fn op(&self) -> Op {
        self.op
    }

    /// First byte of its range.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Length of its range in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True for a flush.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// For how long the driver has had it, to a timer tick.
    pub fn waited(&self) -> Duration {
        self.waited
    }
}

impl fmt::Debug for TimedOut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for TimedOut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TimedOut { queue: name, which, op, offset, len, waited } = self;
        let LateOne { hctx, tag, .. } = which;
        write!(
            f,
            "{name}: {op} of {len} bytes at {offset} (hardware queue {hctx}, tag {tag}) has been in \
             the driver for {waited:.1?}"
        )
    }
}

/// A tag's state, and what its request asks for: the request itself is the driver's.
#[repr(align(64))]
pub(crate) struct TagSlot<T> {
    pub(crate) state: TagState<T>,
    /// A: written before `state` says that the driver has the request, read while it is held.
    /// Relaxed: `state` orders them. The operation's index is in the low bits. (A length is below
    /// 2^61: devices are.)
    pub(crate) op_len: AtomicU64,
    /// A: as `op_len`.
    pub(crate) offset: AtomicU64,
    /// A: as `op_len`; when the driver got it.
    pub(crate) since: AtomicU64,
}

impl<T> Default for TagSlot<T> {
    fn default() -> Self {
        Self {
            state: TagState::new(),
            op_len: AtomicU64::new(0),
            offset: AtomicU64::new(0),
            since: AtomicU64::new(0),
        }
    }
}

/// The timeouts of a queue.
pub(crate) struct Timeouts {
    pub(crate) after: Duration,
    pub(crate) watch: Watch,
    /// `None` where a test steps the queue.
    pub(crate) timer: Option<(Workqueue, Work)>,
}
