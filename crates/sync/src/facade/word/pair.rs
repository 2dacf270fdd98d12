//! The asymmetric fences over the system's barrier, for which a process registers once with the
//! kernel. The steps are in `../fence/README.md`.

use std::time::Duration;

use super::ParkerToken;
use crate::facade::atomic::{AtomicBool, Ordering, compiler_fence, fence};
use crate::facade::backend::clock;
use crate::facade::backend::system::barrier as call;
use crate::facade::fence::FenceKind;
use crate::facade::fence::fence_state::{FenceState, KnownKind};
use crate::facade::thread;

// Process-wide, since the registration is: this caches the kernel's state of the address space. No
// behaviour depends on the thread that set it.
static STATE: FenceState = FenceState::new();
/// A: a thread has started the one that registers.
static ASKED: AtomicBool = AtomicBool::new(false);
/// A: a switch for tests. Read by the rare side only.
static REFUSED: AtomicBool = AtomicBool::new(false);
/// A: a switch for tests: as if the kernel took its time to register. Release in the test, Acquire
/// in the registering thread.
static HELD: AtomicBool = AtomicBool::new(false);

/// Time for which stores of a light side that read MEMBARRIER may be unseen. Store buffers drain
/// within microseconds, and a thread that is preempted meanwhile has had a full fence.
const SETTLE: Duration = Duration::from_millis(10);

#[inline]
pub(crate) fn light() {
    // LightFence.
    if STATE.is_membarrier() {
        compiler_fence(Ordering::SeqCst);
    } else {
        fence(Ordering::SeqCst);
    }
}

pub(crate) fn heavy() {
    // HeavyFence. The kernel's barrier covers the caller too, but returns early if there is no
    // other thread; this fence is also the compiler's.
    fence(Ordering::SeqCst);
    if STATE.known() == KnownKind::Nothing {
        prepare_soon();
        if STATE.is_still_unknown() {
            return;
        }
    }
    match settled() {
        FenceKind::FullFences => {}
        FenceKind::Membarrier => {
            if !barrier() {
                settle();
            }
            fence(Ordering::SeqCst);
        }
    }
}

pub(crate) fn prepare() -> FenceKind {
    settled()
}

pub(crate) fn prepare_soon() {
    if STATE.known() != KnownKind::Nothing || ASKED.swap(true, Ordering::Relaxed) {
        return;
    }
    if !call::WAITS {
        settled();
        return;
    }
    // It isn't joined: it makes one system call.
    let thread = thread::Builder::new().name("cw-fence".to_owned());
    if let Err(error) = thread.spawn(settled) {
        // Both sides stay full fences, until a later call gets a thread.
        ASKED.store(false, Ordering::Relaxed);
        tracing::debug!(%error, "cannot start the thread that registers for membarrier");
    }
}

pub(crate) fn kind() -> Option<FenceKind> {
    match STATE.known() {
        KnownKind::Nothing => None,
        KnownKind::Membarrier => Some(FenceKind::Membarrier),
        KnownKind::Settling | KnownKind::FullFences => Some(FenceKind::FullFences),
    }
}

pub(crate) fn refuse() {
    REFUSED.store(true, Ordering::Relaxed);
}

pub(crate) fn hold(held: bool) {
    HELD.store(held, Ordering::Release);
}

/// Returns the decided way, after deciding if necessary; never an intermediate one.
fn settled() -> FenceKind {
    match STATE.known() {
        KnownKind::Membarrier => FenceKind::Membarrier,
        KnownKind::FullFences => FenceKind::FullFences,
        KnownKind::Nothing => decide(),
        KnownKind::Settling => {
            settle();
            FenceKind::FullFences
        }
    }
}

#[cold]
fn decide() -> FenceKind {
    let registered = register();
    STATE.decide(registered);
    if !registered {
        tracing::info!(
            "the system has no membarrier: both sides of asymmetric fences use full fences"
        );
    }
    settled()
}

/// Handles a barrier that worked before and is refused now: the process has entered a sandbox. From
/// now on the light sides are full fences. Those that weren't are waited for, by time, as nothing
/// else is left.
#[cold]
fn settle() {
    if STATE.lose() {
        tracing::warn!("the system now refuses membarrier: asymmetric fences cost more");
    }
    let (parker, begun) = (ParkerToken::new(), clock::now());
    while let Some(left) = SETTLE.checked_sub(clock::now().duration_since(begun)) {
        parker.park(Some(left));
    }
    STATE.settle();
}

fn register() -> bool {
    while HELD.load(Ordering::Acquire) {
        thread::yield_now();
    }
    !REFUSED.load(Ordering::Relaxed) && call::register()
}

fn barrier() -> bool {
    !REFUSED.load(Ordering::Relaxed) && call::everywhere()
}
