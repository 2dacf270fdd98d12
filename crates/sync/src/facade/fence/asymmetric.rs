//! The asymmetric pair: a fence that costs its frequent side nothing, and the rare side a system call.
//! The protocol, its named steps and its argument stand in `README.md` beside this file.

use crate::facade::backend::pair as imp;

/// How the two sides of an asymmetric pair are fenced, as a type parameter of the protocols that use
/// one.
pub trait AsymmetricPolicy: Send + Sync + 'static {
    /// The frequent side's fence. See [`light`].
    fn light();

    /// The rare side's fence. See [`heavy`].
    fn heavy();

    /// For constructors of protocol types, so that the light side is soon cheap. Doesn't wait. See
    /// [`prepare_soon`].
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

/// How the asymmetric fences of this process work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The heavy side has the kernel put a fence into every running thread of the process
    /// (`membarrier`, private expedited); the light side is a compiler barrier.
    Membarrier,
    /// The system has no such call, or refuses it: both sides are full fences.
    FullFences,
}

/// The fence of the frequent side: between its publish and its check, where the other side has
/// [`heavy`]. A compiler barrier and one load that is always cached; a full fence where the system
/// doesn't have `membarrier`, and until the process is registered for it ([`prepare_soon`]). Two light sides
/// are **not** ordered against each other. Never blocks; any context.
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

/// The fence of the rare side: as if each thread of the process issued a full fence at some point
/// during this call, the caller too. Any context; doesn't wait for other threads to be scheduled.
///
/// It costs the caller a system call, 1 to 10 microseconds (more on large machines), and disturbs each
/// CPU that runs a thread of this process at that moment with one interrupt; CPUs that run something
/// else aren't touched. Until the process is registered with the kernel it is a full fence of the caller's, as every
/// light side's is then; the first call has a thread register it, as [`prepare_soon`] does, and doesn't wait for it.
pub fn heavy() {
    imp::heavy();
}

/// Registers the process with the kernel, where nobody has yet, and says how the fences work from now
/// on. Once that is done, by anybody, [`light`] is cheap.
///
/// The first call takes some microseconds where the process has one thread, else it waits for all CPUs
/// inside the kernel: some 10 to 50 milliseconds. So it is best called before threads are started, or left to
/// [`prepare_soon`].
pub fn prepare() -> Way {
    imp::prepare()
}

/// As [`prepare`], but doesn't wait: where nobody has registered the process, a thread (`cw-fence`) is started
/// that does, and ends. Until then [`light`] is a full fence. The types that use the pair call it where they
/// are made. Any context.
pub fn prepare_soon() {
    imp::prepare_soon();
}

/// How the fences work at this moment; `None` where that isn't decided yet, and each is a full fence. Asks
/// nobody.
pub fn way() -> Option<Way> {
    imp::way()
}

/// For tests: from now on pretends that the system refuses `membarrier`. For good, and for the whole
/// process; where the pair was in use already, it is as if a sandbox had been entered since.
#[doc(hidden)]
pub fn refuse_membarrier() {
    imp::refuse();
}

/// For tests: a registration that nobody has asked for yet takes until this is called with `false`.
#[doc(hidden)]
pub fn hold_registration(held: bool) {
    imp::hold(held);
}
