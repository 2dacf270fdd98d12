//! The asymmetric fences over the system's barrier: the one thing of a process that is asked of the
//! kernel once. The steps stand in `../fence/README.md`.

use std::time::Duration;

use super::ParkerToken;
use crate::facade::atomic::{AtomicBool, Ordering, compiler_fence, fence};
use crate::facade::backend::clock;
use crate::facade::backend::system::barrier as call;
use crate::facade::fence::FenceKind;
use crate::facade::fence::fence_state::{FenceState, KnownKind};
use crate::facade::thread;

// Process-wide, since the registration is: it is the kernel's state of this address space, which
// is remembered here. Nobody's behaviour depends on the thread that set it.
static STATE: FenceState = FenceState::new();
/// A: somebody has started the thread that registers.
static ASKED: AtomicBool = AtomicBool::new(false);
/// A: the tests' switch. Read by the rare side only.
static REFUSED: AtomicBool = AtomicBool::new(false);
/// A: the tests' switch: as if the kernel took its time to register. Release in the test, Acquire
/// in the registering thread.
static HELD: AtomicBool = AtomicBool::new(false);

/// How long a light side that read MEMBARRIER may have its stores still unseen: store buffers drain
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
    // HeavyFence. The kernel's is one for the caller too, but it returns early where it has no
    // other thread to tell; this one is also the compiler's.
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
    // Nobody joins it: it does one system call.
    let thread = thread::Builder::new().name("cw-fence".to_owned());
    if let Err(error) = thread.spawn(settled) {
        // Both sides stay full fences, until somebody asks who gets a thread.
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

/// The way, decided if it wasn't; not in between.
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

/// What worked before is refused now: somebody has entered a sandbox. From now on the light sides
/// are full fences; those that weren't are waited for, by time, as there is nothing else left.
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
