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
#[doc(hidden)]
pub mod way_state;

#[allow(unused_imports, unreachable_pub, reason = "only loom has any")]
pub use crate::facade::backend::weakened::*;
pub use asymmetric::{
    Asymmetric, AsymmetricPolicy, Way, heavy, hold_registration, light, prepare, prepare_soon,
    refuse_membarrier, way,
};

use crate::facade::atomic::{self, Ordering};
use crate::facade::backend::SEQ_CST_IS_WEAK;

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
        atomic::fence(Ordering::SeqCst);
    }

    #[inline]
    fn implied() {
        if SEQ_CST_IS_WEAK {
            atomic::fence(Ordering::SeqCst);
        }
    }
}
