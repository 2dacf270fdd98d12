//! The asymmetric pair: a fence that costs its frequent side nothing, and the rare side a system call.
//! The protocol, its named steps and its argument stand in `README.md` beside this file.

#[cfg(any(loom, shuttle))]
use crate::atomic::{Ordering, fence};
#[cfg(not(any(loom, shuttle)))]
use system as imp;

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
/// doesn't have `membarrier`, and until somebody has called [`prepare`] or [`heavy`]. Two light sides
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
    #[cfg(not(any(loom, shuttle)))]
    imp::light();
    #[cfg(any(loom, shuttle))]
    fence(Ordering::SeqCst);
}

/// The fence of the rare side: as if each thread of the process issued a full fence at some point
/// during this call, the caller too. Any context; doesn't wait for other threads to be scheduled.
///
/// It costs the caller a system call, 1 to 10 microseconds (more on large machines), and disturbs each
/// CPU that runs a thread of this process at that moment with one interrupt; CPUs that run something
/// else aren't touched. The first call of a process registers with the kernel, as [`prepare`] does.
pub fn heavy() {
    #[cfg(not(any(loom, shuttle)))]
    imp::heavy();
    #[cfg(any(loom, shuttle))]
    fence(Ordering::SeqCst);
}

/// Registers the process with the kernel, where nobody has yet, and says how the fences work from now
/// on. Once that is done, by anybody, [`light`] is cheap.
///
/// The first call takes some microseconds where the process has one thread, else it waits for all CPUs
/// inside the kernel: some 10 to 50 milliseconds. So it is best called before threads are started, or left to
/// [`prepare_soon`].
pub fn prepare() -> Way {
    #[cfg(not(any(loom, shuttle)))]
    return imp::prepare();
    #[cfg(any(loom, shuttle))]
    Way::FullFences
}

/// As [`prepare`], but doesn't wait: where nobody has registered the process, a thread (`cw-fence`) is started
/// that does, and ends. Until then [`light`] is a full fence. The types that use the pair call it where they
/// are made. Any context.
pub fn prepare_soon() {
    #[cfg(not(any(loom, shuttle)))]
    imp::prepare_soon();
}

/// How the fences work at this moment; `None` where that isn't decided yet, and each is a full fence. Asks
/// nobody.
pub fn way() -> Option<Way> {
    #[cfg(not(any(loom, shuttle)))]
    return imp::way();
    #[cfg(any(loom, shuttle))]
    Some(Way::FullFences)
}

/// For tests: from now on pretends that the system refuses `membarrier`. For good, and for the whole
/// process; where the pair was in use already, it is as if a sandbox had been entered since.
#[doc(hidden)]
pub fn refuse_membarrier() {
    #[cfg(not(any(loom, shuttle)))]
    imp::refuse();
}

#[cfg(not(any(loom, shuttle)))]
mod system {
    //! The one thing of a process that is asked of the kernel once.

    use std::time::Duration;

    use super::Way;
    use crate::atomic::{AtomicBool, AtomicU8, Ordering, compiler_fence, fence};
    use crate::{Parker, thread, time};

    /// Nobody has asked yet: the light side is a full fence, so that whatever comes of it is right.
    const UNKNOWN: u8 = 0;
    /// Registered: the light side is a compiler barrier.
    const MEMBARRIER: u8 = 1;
    /// Registered once, and refused since; some light sides may not know yet.
    const SETTLING: u8 = 2;
    /// Both sides are full fences. Final.
    const FULL_FENCES: u8 = 3;

    // Process-wide, since the registration is: it is the kernel's state of this address space, which
    // is remembered here. Nobody's behaviour depends on who set it.
    /// UNKNOWN → MEMBARRIER → SETTLING → FULL_FENCES, or UNKNOWN → FULL_FENCES. Relaxed: a light side that
    /// reads an old UNKNOWN is stronger than needed, one that reads an old MEMBARRIER is what SETTLING
    /// waits for.
    static WAY: AtomicU8 = AtomicU8::new(UNKNOWN);
    /// Somebody has started the thread that registers.
    static ASKED: AtomicBool = AtomicBool::new(false);
    /// The tests' switch. Read by the rare side only.
    static REFUSED: AtomicBool = AtomicBool::new(false);

    /// How long a light side that read MEMBARRIER may have its stores still unseen: store buffers drain
    /// within microseconds, and whoever is preempted meanwhile has had a full fence.
    const SETTLE: Duration = Duration::from_millis(10);

    #[inline]
    pub(super) fn light() {
        // LightFence.
        if WAY.load(Ordering::Relaxed) == MEMBARRIER {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    pub(super) fn heavy() {
        // HeavyFence. The kernel's is one for the caller too, but it returns early where it has no
        // other thread to tell; this one is also the compiler's.
        fence(Ordering::SeqCst);
        match settled() {
            Way::FullFences => {}
            Way::Membarrier => {
                if !barrier() {
                    settle();
                }
                fence(Ordering::SeqCst);
            }
        }
    }

    pub(super) fn prepare() -> Way {
        settled()
    }

    pub(super) fn prepare_soon() {
        if WAY.load(Ordering::Relaxed) != UNKNOWN || ASKED.swap(true, Ordering::Relaxed) {
            return;
        }
        if !call::WAITS {
            settled();
            return;
        }
        // Nobody joins it: it does one system call. Where there is no thread to be had, that is left to the
        // first heavy side.
        let thread = thread::Builder::new().name("cw-fence".to_owned());
        if let Err(error) = thread.spawn(settled) {
            tracing::debug!(%error, "no thread to register for membarrier");
        }
    }

    pub(super) fn way() -> Option<Way> {
        match WAY.load(Ordering::Relaxed) {
            UNKNOWN => None,
            MEMBARRIER => Some(Way::Membarrier),
            _ => Some(Way::FullFences),
        }
    }

    pub(super) fn refuse() {
        REFUSED.store(true, Ordering::Relaxed);
    }

    /// The way, decided if it wasn't; not in between.
    fn settled() -> Way {
        match WAY.load(Ordering::Relaxed) {
            MEMBARRIER => Way::Membarrier,
            FULL_FENCES => Way::FullFences,
            UNKNOWN => decide(),
            _ => {
                settle();
                Way::FullFences
            }
        }
    }

    #[cold]
    fn decide() -> Way {
        let way = if register() { MEMBARRIER } else { FULL_FENCES };
        // Two may get here: the kernel gives both the same answer, and the first counts.
        let _ = WAY.compare_exchange(UNKNOWN, way, Ordering::Relaxed, Ordering::Relaxed);
        if way == FULL_FENCES {
            tracing::info!("no membarrier: both sides of asymmetric fences are full fences");
        }
        settled()
    }

    /// What worked before is refused now: somebody has entered a sandbox. From now on the light sides are
    /// full fences; those that weren't are waited for, by time, as there is nothing else left.
    #[cold]
    fn settle() {
        let (from, to) = (MEMBARRIER, SETTLING);
        if WAY.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            tracing::warn!(
                "membarrier is refused now, and wasn't before: asymmetric fences cost more"
            );
        }
        let (parker, begun) = (Parker::new(), time::now());
        while let Some(left) = SETTLE.checked_sub(begun.elapsed()) {
            parker.park_timeout(left);
        }
        WAY.store(FULL_FENCES, Ordering::SeqCst);
    }

    fn register() -> bool {
        !REFUSED.load(Ordering::Relaxed) && call::register()
    }

    fn barrier() -> bool {
        !REFUSED.load(Ordering::Relaxed) && call::barrier()
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    mod call {
        use rustix::thread::{MembarrierCommand, membarrier};

        /// Registering may wait.
        pub(super) const WAITS: bool = true;

        pub(super) fn register() -> bool {
            membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
        }

        pub(super) fn barrier() -> bool {
            membarrier(MembarrierCommand::PrivateExpedited).is_ok()
        }
    }

    #[cfg(not(all(target_os = "linux", not(miri))))]
    mod call {
        pub(super) const WAITS: bool = false;

        pub(super) fn register() -> bool {
            false
        }

        pub(super) fn barrier() -> bool {
            false
        }
    }
}

/// Without the frequent side's fence: only for models that have to fail.
#[cfg(loom)]
#[derive(Debug, Clone, Copy, Default)]
pub struct NoLight;

#[cfg(loom)]
impl AsymmetricPolicy for NoLight {
    fn light() {}

    fn heavy() {
        heavy();
    }
}

/// Without the rare side's fence: only for models that have to fail.
#[cfg(loom)]
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHeavy;

#[cfg(loom)]
impl AsymmetricPolicy for NoHeavy {
    fn light() {
        light();
    }

    fn heavy() {}
}
