//! The asymmetric fences over the system's barrier: the one thing of a process that is asked of the kernel once.
//! The steps stand in `../../fence/README.md`.

use std::time::Duration;

use crate::atomic::{AtomicBool, AtomicU8, Ordering, compiler_fence, fence};
use crate::facade::backend::system::barrier as call;
use crate::fence::Way;
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
pub(crate) fn light() {
    // LightFence.
    if WAY.load(Ordering::Relaxed) == MEMBARRIER {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

pub(crate) fn heavy() {
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

pub(crate) fn prepare() -> Way {
    settled()
}

pub(crate) fn prepare_soon() {
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

pub(crate) fn way() -> Option<Way> {
    match WAY.load(Ordering::Relaxed) {
        UNKNOWN => None,
        MEMBARRIER => Some(Way::Membarrier),
        _ => Some(Way::FullFences),
    }
}

pub(crate) fn refuse() {
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
        tracing::warn!("membarrier is refused now, and wasn't before: asymmetric fences cost more");
    }
    let (parker, begun) = (Parker::new(), time::now());
    while let Some(left) = SETTLE.checked_sub(time::now().duration_since(begun)) {
        parker.park_timeout(left);
    }
    WAY.store(FULL_FENCES, Ordering::SeqCst);
}

fn register() -> bool {
    !REFUSED.load(Ordering::Relaxed) && call::register()
}

fn barrier() -> bool {
    !REFUSED.load(Ordering::Relaxed) && call::everywhere()
}
