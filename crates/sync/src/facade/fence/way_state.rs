//! The one word in which a process remembers what came of its registration: `README.md` beside this file has the
//! ways, their changes, and why a heavy side needn't wait for the first change.

use crate::facade::atomic::{AtomicU8, Ordering};
use crate::facade::backend::constructor;

/// Nobody has decided: the light side is a full fence, so that whatever comes of it is right.
const UNKNOWN: u8 = 0;
/// Registered: the light side is a compiler barrier.
const MEMBARRIER: u8 = 1;
/// Registered once, and refused since; some light sides may not know yet.
const SETTLING: u8 = 2;
/// Both sides are full fences. Final.
const FULL_FENCES: u8 = 3;

/// What is known at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// Nobody has decided.
    Nothing,
    /// The kernel has registered the process.
    Membarrier,
    /// It had, and refuses its barrier now; not over yet.
    Settling,
    /// No barrier.
    FullFences,
}

/// UNKNOWN → MEMBARRIER → SETTLING → FULL_FENCES, or UNKNOWN → FULL_FENCES.
#[derive(Debug, Default)]
pub struct WayState {
    /// A: the way. Its first change is ordered behind each *StillUnknown* before it.
    word: AtomicU8,
}

impl WayState {
    constructor! {
        /// Nothing is known.
        pub fn new() -> Self {
            Self { word: AtomicU8::new(UNKNOWN) }
        }
    }

    /// *ReadWay*, of the light side: whether its fence may be the compiler's alone.
    #[inline]
    pub fn is_membarrier(&self) -> bool {
        // Acquire: pairs with the Release of StillUnknown, which Decide carries on.
        self.word.load(Ordering::Acquire) == MEMBARRIER
    }

    /// What is known. Orders nothing: a full fence is right beside every way, and what changes once is looked
    /// at again by the thread that changes it.
    pub fn known(&self) -> Known {
        match self.word.load(Ordering::Relaxed) {
            UNKNOWN => Known::Nothing,
            MEMBARRIER => Known::Membarrier,
            SETTLING => Known::Settling,
            _ => Known::FullFences,
        }
    }

    /// *StillUnknown*, of a heavy side behind its own full fence: whether that was enough, since nobody has decided.
    pub fn is_still_unknown(&self) -> bool {
        // A write of what is there, so that Decide reads it. Release, pairs with ReadWay: Announce comes before
        // each light side that reads MEMBARRIER. A load would order nothing.
        let (release, not_yet) = (Ordering::Release, Ordering::Relaxed);
        self.word.compare_exchange(UNKNOWN, UNKNOWN, release, not_yet).is_ok()
    }

    /// *Decide*: the kernel has answered. Where two have asked it told both the same, and the first counts.
    pub fn decide(&self, registered: bool) {
        let way = if registered { MEMBARRIER } else { FULL_FENCES };
        // Relaxed: it publishes nothing of its own, and as a read-modify-write it carries on what StillUnknown released.
        let _ = self.word.compare_exchange(UNKNOWN, way, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The kernel refuses what it had granted. Whether this is the first to know.
    pub fn lose(&self) -> bool {
        let (from, to) = (MEMBARRIER, SETTLING);
        self.word.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// No light side acts upon MEMBARRIER any more.
    pub fn settle(&self) {
        self.word.store(FULL_FENCES, Ordering::SeqCst);
    }
}
