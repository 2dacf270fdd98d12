//! The record that a queue with timeouts keeps of the requests in its driver.

use std::fmt;
use std::time::Duration;

use corewise_sync::atomic::AtomicU64;
use corewise_workqueue::{Work, Workqueue};

use crate::admission::tag_state::{TagState, Watch};
use crate::request::Op;

/// The driver's answer about a late request: [`Driver::timeout`](crate::Driver::timeout). (Linux:
/// `blk_eh_timer_return`.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum TimerReturn {
    /// The driver has completed the request, or will. It doesn't hear of this request again.
    Done,
    /// The request gets the same time once more.
    ResetTimer,
}

/// A request that the driver has had for too long, named by its hardware queue and tag: the driver
/// has the request itself. Until the callback returns, no other request gets the tag, even if this
/// one completes meanwhile.
#[derive(Clone, Copy)]
pub struct TimedOut<'a> {
    pub(crate) queue: &'a str,
    pub(crate) which: LateOne,
    pub(crate) op: Op,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) waited: Duration,
}

/// The name of a late request, as plain values. Any thread may look for the request while its tag
/// is held.
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
    /// Returns plain values that name the request.
    pub fn which(&self) -> LateOne {
        self.which
    }

    /// Returns the index of its hardware queue.
    pub fn hctx(&self) -> usize {
        self.which.hctx
    }

    /// Returns its tag; see [`Started::tag`](crate::Started::tag).
    pub fn tag(&self) -> u32 {
        self.which.tag
    }

    /// Returns its operation.
    pub fn op(&self) -> Op {
        self.op
    }

    /// Returns the first byte of its range.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the length of its range in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true for a flush.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the time that the driver has had the request, to a timer tick.
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

/// A tag's state, and the operation and range of its request. The driver has the request itself.
#[repr(align(64))]
pub(crate) struct TagSlot<T> {
    pub(crate) state: TagState<T>,
    /// A: written before `state` says that the driver has the request, read while it is held.
    /// Relaxed: `state` orders them. The operation's index is in the low bits. (A length is below
    /// 2^61: devices are.)
    pub(crate) op_len: AtomicU64,
    /// A: as `op_len`.
    pub(crate) offset: AtomicU64,
    /// A: the time at which the driver got the request, as `op_len`.
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
    /// The timer's workqueue and item; `None` if a test steps the queue.
    pub(crate) timer: Option<(Workqueue, Work)>,
}
