//! Fences: the full fence as a type parameter, and the asymmetric pair for sides that aren't equally
//! often run.
//!
//! "Publish, full fence, check" is the one pattern under all of Corewise's protocols: two sides
//! each store to their own word and then load the other's. Without a StoreLoad fence on *both*
//! sides each may read the old value (store buffering), and a wake-up or a request is lost. No
//! release/acquire pair gives that order, not even on x86.
//!
//! Where one side runs a million times a second and the other now and then, the pair is [`light`] and
//! [`heavy`]: the frequent side pays nothing that can be measured, the rare one a system call.
//! `README.md` beside this file argues why that is enough.
//!
//! A protocol type takes its fences as a [`FencePolicy`] or an [`AsymmetricPolicy`], so that its
//! loom test can build the very same code without one of them (`NoFence`, `NoLight`, `NoHeavy`, there
//! under `--cfg loom` only) and prove that the model then fails.

mod asymmetric;

pub use asymmetric::{Asymmetric, AsymmetricPolicy, Way, heavy, light, prepare, refuse_membarrier};
#[cfg(loom)]
pub use asymmetric::{NoHeavy, NoLight};

/// How a protocol issues the fence between its publish and its check.
pub trait FencePolicy: Send + Sync + 'static {
    /// Orders every earlier access of this thread before every later one, in one order that all
    /// threads agree on.
    fn full();

    /// The fence between a `SeqCst` read-modify-write (or store) and a `SeqCst` load, where the other
    /// side's accesses are `SeqCst` too, or separated by a [`full`](FencePolicy::full) fence: the
    /// language orders them by itself, and nothing is issued. Loom takes `SeqCst` accesses for weaker
    /// ones, and so gets a fence.
    fn implied();
}

/// A sequentially consistent fence: what product code uses.
#[derive(Debug, Clone, Copy, Default)]
pub struct FullFence;

impl FencePolicy for FullFence {
    #[inline]
    fn full() {
        full();
    }

    #[inline]
    fn implied() {
        #[cfg(loom)]
        full();
    }
}

/// No fence at all: only for models that have to fail.
#[cfg(loom)]
#[derive(Debug, Clone, Copy, Default)]
pub struct NoFence;

#[cfg(loom)]
impl FencePolicy for NoFence {
    fn full() {}
    fn implied() {}
}

/// A full fence. On x86-64 by a locked instruction on the stack, as compilers and kernels do: the
/// `mfence` that the standard fence becomes orders more kinds of memory than there are here, and takes
/// four times as long.
#[inline]
fn full() {
    #[cfg(all(target_arch = "x86_64", not(any(loom, shuttle, miri))))]
    // SAFETY: it adds no bit to the word at the top of this thread's own stack, which nobody else reads
    // or writes: nothing changes. It touches nothing below the stack pointer. The compiler takes it for
    // an access to all memory, and moves none across.
    unsafe {
        std::arch::asm!("lock or dword ptr [rsp], 0", options(nostack));
    }
    #[cfg(not(all(target_arch = "x86_64", not(any(loom, shuttle, miri)))))]
    crate::atomic::fence(crate::atomic::Ordering::SeqCst);
}
