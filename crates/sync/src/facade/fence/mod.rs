//! Fences: the full fence as a type parameter, and the asymmetric pair for two sides that run with
//! different frequency.
//!
//! "Publish, full fence, check" is the one pattern under all of Corewise's protocols: two sides
//! each store to their own word and then load the other's. Without a StoreLoad fence on *both*
//! sides each may read the old value (store buffering), and a wake-up or a request is lost. No
//! release/acquire pair gives that order, not even on x86.
//!
//! If one side runs a million times a second and the other rarely, the pair is [`light`] and
//! [`heavy`]: the frequent side pays nothing measurable, the rare one a system call. `README.md`
//! beside this file argues why that is enough.
//!
//! A protocol type takes its fences as a [`FencePolicy`] or an [`AsymmetricPolicy`]. So its loom
//! test can build the very same code without one of them (`NoFence`, `NoLight`, `NoHeavy`, which
//! exist only under `--cfg loom`) and prove that the model then fails.

#[allow(unused_imports, unreachable_pub, reason = "only loom has any")]
pub use crate::facade::backend::weakened::*;

use crate::facade::atomic::{self, Ordering};
use crate::facade::backend::{SEQ_CST_IS_WEAK, pair as imp};

/// The implementation of the fence between a protocol's publish and its check.
pub trait FencePolicy: Send + Sync + 'static {
    /// Orders every earlier access of this thread before every later one, in one order that all
    /// threads agree on.
    fn full();

    /// Issues nothing, as the language already orders the accesses. They are a `SeqCst`
    /// read-modify-write (or store) before a `SeqCst` load. The other side's accesses are `SeqCst`
    /// too, or separated by a [`full`](FencePolicy::full) fence. Loom takes `SeqCst` accesses for
    /// weaker ones, and so gets a fence.
    fn implied();
}

/// A sequentially consistent fence: what product code uses.
#[derive(Debug, Clone, Copy, Default)]
pub struct FullFence;

impl FencePolicy for FullFence {
    #[inline]
    fn full() {
        atomic::fence(Ordering::SeqCst);
    }

    #[inline]
    fn implied() {
        if SEQ_CST_IS_WEAK {
            atomic::fence(Ordering::SeqCst);
        }
    }
}

/// The fences of the two sides of an asymmetric pair, as a type parameter of the protocols that use
/// one.
pub trait AsymmetricPolicy: Send + Sync + 'static {
    /// Issues the frequent side's fence. See [`light`].
    fn light();

    /// Issues the rare side's fence. See [`heavy`].
    fn heavy();

    /// Prepares the light side to become cheap soon; for constructors of protocol types. Doesn't
    /// wait. See [`prepare_soon`].
    fn prepare() {}
}

/// [`light`] and [`heavy`]: what product code uses.
#[derive(Debug, Clone, Copy, Default)]
pub struct Asymmetric;

impl AsymmetricPolicy for Asymmetric {
    #[inline]
    fn light() {
        light();
    }

    fn heavy() {
        heavy();
    }

    fn prepare() {
        prepare_soon();
    }
}

/// The implementation of the asymmetric fences in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceKind {
    /// The heavy side has the kernel put a fence into every running thread of the process
    /// (`membarrier`, private expedited); the light side is a compiler barrier.
    Membarrier,
    /// The system doesn't have that call, or refuses it: both sides are full fences.
    FullFences,
}

/// Issues the fence of the frequent side: between its publish and its check, if the other side has
/// [`heavy`]. It is a compiler barrier and one load that is always cached. It is a full fence if
/// the system doesn't have `membarrier`, and until the process is registered for it
/// ([`prepare_soon`]). Two light sides are **not** ordered against each other. Never blocks; any
/// context.
///
/// ```
/// use corewise_sync::atomic::{AtomicBool, Ordering::Relaxed};
/// use corewise_sync::fence;
///
/// static CLOSED: AtomicBool = AtomicBool::new(false);
/// static INSIDE: AtomicBool = AtomicBool::new(false);
///
/// // Often: go in, and look whether that is allowed.
/// let enter = || {
///     INSIDE.store(true, Relaxed);
///     fence::light();
///     !CLOSED.load(Relaxed)
/// };
/// // Now and then: close, and look whether somebody is inside.
/// let close = || {
///     CLOSED.store(true, Relaxed);
///     fence::heavy();
///     INSIDE.load(Relaxed)
/// };
/// // Whatever threads they run on: never is one inside whom the other doesn't see.
/// assert!(enter() || !close());
/// ```
///
/// The idea of the pair is that of Linux's `smp_mb` against `membarrier(2)`, known from liburcu and
/// from folly's `AsymmetricMemoryBarrier` (C++ proposal P1202).
#[inline]
pub fn light() {
    imp::light();
}

/// Issues the fence of the rare side: as if each thread of the process, including the caller,
/// issued a full fence at some point during this call. Any context; doesn't wait for other threads
/// to be scheduled.
///
/// It costs the caller a system call, 1 to 10 microseconds (more on large machines), and disturbs
/// each CPU that runs a thread of this process at that moment with one interrupt. Other CPUs aren't
/// touched. Until the process is registered with the kernel it is a full fence of the caller's, as
/// every light side's is then. The first call has a thread register it, as [`prepare_soon`] does,
/// and doesn't wait for it.
pub fn heavy() {
    imp::heavy();
}

/// Registers the process with the kernel, unless that has been done, and returns the implementation
/// that is used from now on. After the registration, [`light`] is cheap.
///
/// The first call takes some microseconds if the process has one thread. Otherwise it waits for all
/// CPUs inside the kernel: some 10 to 50 milliseconds. So call it before threads are started, or
/// leave it to [`prepare_soon`].
pub fn prepare() -> FenceKind {
    imp::prepare()
}

/// Prepares without waiting: unless the process is registered, starts a thread (`cw-fence`) that
/// registers it, and ends. Until then [`light`] is a full fence. The types that use the pair call
/// this when they are created. Any context.
pub fn prepare_soon() {
    imp::prepare_soon();
}

/// Returns the present implementation. `None`: that isn't decided yet, and each fence is a full
/// one. Makes no system call.
pub fn kind() -> Option<FenceKind> {
    imp::kind()
}

/// Pretends, for tests, that the system refuses `membarrier` from now on: for good, and for the
/// whole process. If the pair was in use already, it is as if a sandbox had been entered since.
#[doc(hidden)]
pub fn refuse_membarrier() {
    imp::refuse();
}

/// Delays, for tests, a registration that hasn't been requested yet, until this is called with
/// `false`.
#[doc(hidden)]
pub fn hold_registration(held: bool) {
    imp::hold(held);
}

#[doc(hidden)]
/// The word in which a process remembers the result of its registration. `README.md` beside this
/// file has the ways and their changes, and argues why a heavy side needn't wait for the first
/// change.
pub mod fence_state {
    use crate::facade::atomic::{AtomicU8, Ordering};
    use crate::facade::backend::constructor;

    /// Value of an undecided process: the light side is a full fence, so that any result is right.
    const UNKNOWN: u8 = 0;
    /// Registered: the light side is a compiler barrier.
    const MEMBARRIER: u8 = 1;
    /// Registered once, and refused since. Some light sides may not know yet.
    const SETTLING: u8 = 2;
    /// Both sides are full fences. Final.
    const FULL_FENCES: u8 = 3;

    /// Knowledge at a moment.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum KnownKind {
        /// The process is undecided.
        Nothing,
        /// The kernel has registered the process.
        Membarrier,
        /// The kernel had registered the process, and refuses its barrier now. The change isn't
        /// over yet.
        Settling,
        /// Both sides are full fences.
        FullFences,
    }

    /// UNKNOWN → MEMBARRIER → SETTLING → FULL_FENCES, or UNKNOWN → FULL_FENCES.
    #[derive(Debug, Default)]
    pub struct FenceState {
        /// A: the way. Its first change is ordered behind each *StillUnknown* before it.
        word: AtomicU8,
    }

    impl FenceState {
        constructor! {
            /// Creates an undecided state.
            pub fn new() -> Self {
                Self { word: AtomicU8::new(UNKNOWN) }
            }
        }

        /// Returns true if the light side's fence may be the compiler's alone (*ReadKind*).
        #[inline]
        pub fn is_membarrier(&self) -> bool {
            // Acquire: pairs with the Release of StillUnknown, which Decide carries on.
            self.word.load(Ordering::Acquire) == MEMBARRIER
        }

        /// Returns the present knowledge. It orders nothing: a full fence is right beside every
        /// way, and the thread that makes a change checks again.
        pub fn known(&self) -> KnownKind {
            match self.word.load(Ordering::Relaxed) {
                UNKNOWN => KnownKind::Nothing,
                MEMBARRIER => KnownKind::Membarrier,
                SETTLING => KnownKind::Settling,
                _ => KnownKind::FullFences,
            }
        }

        /// Returns true if the process is still undecided, so that a heavy side's own full fence
        /// before this was enough (*StillUnknown*).
        pub fn is_still_unknown(&self) -> bool {
            // A write of the present value, so that Decide reads it. Release, pairs with ReadKind:
            // Announce comes before each light side that reads MEMBARRIER. A load would order
            // nothing.
            let (release, not_yet) = (Ordering::Release, Ordering::Relaxed);
            self.word.compare_exchange(UNKNOWN, UNKNOWN, release, not_yet).is_ok()
        }

        /// Records the kernel's answer (*Decide*). If two threads have asked, it told both the
        /// same, and the first counts.
        pub fn decide(&self, registered: bool) {
            let way = if registered { MEMBARRIER } else { FULL_FENCES };
            // Relaxed: it publishes nothing of its own, and as a read-modify-write it carries on
            // what StillUnknown released.
            let _ = self.word.compare_exchange(UNKNOWN, way, Ordering::Relaxed, Ordering::Relaxed);
        }

        /// Records that the kernel refuses what it had granted. Returns true for the first call.
        pub fn lose(&self) -> bool {
            let (from, to) = (MEMBARRIER, SETTLING);
            self.word.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        }

        /// Records that no light side acts upon MEMBARRIER any more.
        pub fn settle(&self) {
            self.word.store(FULL_FENCES, Ordering::SeqCst);
        }
    }
}
