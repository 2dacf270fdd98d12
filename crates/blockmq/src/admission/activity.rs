//! Whether a hardware queue still has a CPU: the mark that it has none, and the wait until its requests are done.

use std::marker::PhantomData;

use corewise_sync::atomic::{AtomicBool, Ordering, fence};
use corewise_sync::fence::{Asymmetric, AsymmetricPolicy};

use crate::admission::wait_queue::WaitQueue;

/// The mark of a hardware queue that lost its last CPU. `../hotplug/README.md` has the protocol.
#[derive(Debug)]
pub struct Activity<F: AsymmetricPolicy = Asymmetric> {
    /// A: it has no CPU. Stores are ordered by the fences named where they are.
    inactive: AtomicBool,
    /// Those who wait for the tags.
    done: WaitQueue,
    fence: PhantomData<F>,
}

impl<F: AsymmetricPolicy> Default for Activity<F> {
    fn default() -> Self {
        Self::new()
    }
}

impl<F: AsymmetricPolicy> Activity<F> {
    /// It has a CPU.
    pub fn new() -> Self {
        F::prepare();
        Self { inactive: AtomicBool::new(false), done: WaitQueue::new(), fence: PhantomData }
    }

    /// Its last CPU left. Never blocks; a caller that needs to know that none of its requests is in the driver any more
    /// calls [`Activity::wait`].
    pub fn deactivate(&self) {
        self.inactive.store(true, Ordering::Release); // Leave
        // LeaveFence, pairs with TagFence (the runner sees the mark, or we see its tag) and with DoneFence (the
        // completion sees the mark, or we see the tag free).
        F::heavy();
    }

    /// A CPU came back. True where it had none: the caller then runs the hardware queue if something is pending.
    #[must_use = "true obliges the caller to look at what is pending"]
    pub fn activate(&self) -> bool {
        self.inactive.swap(false, Ordering::AcqRel)
    }

    /// It has no CPU, a moment ago.
    #[inline]
    pub fn is_inactive(&self) -> bool {
        self.inactive.load(Ordering::Acquire)
    }

    /// For a runner that has just taken a tag: must it give the tag back, because the hardware queue has no CPU any
    /// more?
    #[inline]
    pub fn is_inactive_behind_tag(&self) -> bool {
        F::light(); // TagFence, pairs with LeaveFence
        self.is_inactive()
    }

    /// For a thread that has just freed a tag: tells those who wait, if there may be any.
    #[inline]
    pub fn tag_freed(&self) {
        F::light(); // DoneFence, pairs with LeaveFence
        if self.is_inactive() {
            self.done.tell();
        }
    }

    /// Blocks until `in_use` (how many tags are in use) says 0, or the hardware queue has a CPU again. True where
    /// nothing is in use: what completions did is visible then.
    pub fn wait(&self, in_use: impl Fn() -> u32) -> bool {
        self.done.wait(|| {
            if in_use() == 0 {
                // Acquire: with the Release of each free.
                fence(Ordering::Acquire);
                return Some(true);
            }
            (!self.is_inactive()).then_some(false)
        })
    }

    /// Has those look again who wait, behind an [`Activity::activate`].
    pub fn give_up_waiting(&self) {
        self.done.tell();
    }
}
