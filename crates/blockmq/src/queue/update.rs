//! Changes of a queue that need it to stand still: frozen, and with no dispatch in progress.

use super::Queue;
use crate::percpu::map::HwQueues;
use crate::request::device::refuse_in_atomic_section;
use crate::request::error::IoError;
use crate::sched::IoScheduler;

/// Undoes something when dropped, also where a panic passes by.
struct Undo<F: FnMut()>(F);

impl<F: FnMut()> Drop for Undo<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl Queue {
    /// Calls `f` while nothing is in the queue, nothing comes in, and nobody looks at what only a dispatch may look
    /// at: freezes, quiesces, calls it, unquiesces and unfreezes. Requests that are submitted meanwhile wait outside.
    ///
    /// Blocks as [`Queue::freeze`] does: while somebody else keeps the queue quiesced with requests in it, until that
    /// is over.
    ///
    /// # Panics
    /// Inside an atomic section, where it might wait for itself. A panic of `f` passes through; the queue goes on.
    #[track_caller]
    pub fn hold_still<R>(&self, f: impl FnOnce() -> R) -> R {
        refuse_in_atomic_section("hold_still", "start_freeze");
        // Freeze first: while it waits, what is inside has to be dispatched.
        self.freeze();
        let _unfreeze = Undo(|| self.thaw());
        self.quiesce();
        let _unquiesce = Undo(|| drop(self.unquiesce()));
        f()
    }

    /// Changes which CPUs share a hardware queue, and how many there are, while requests flow; the driver is asked
    /// anew for how many it [has room](crate::Driver::hw_queues). Returns how many there are now. Those that are
    /// no longer used stay as they are, without requests, for the next change. (The kernel's
    /// `blk_mq_update_nr_hw_queues`.)
    ///
    /// Blocks as [`Queue::hold_still`].
    ///
    /// # Panics
    /// As [`Queue::hold_still`].
    #[track_caller]
    pub fn update_hw_queues(&self, how: impl Into<HwQueues>) -> usize {
        refuse_in_atomic_section("update_hw_queues", "start_freeze");
        let core = &self.core;
        // The driver's own code, so before anything is held.
        let room = core.driver.hw_queues().clamp(1, core.layout.map.slots());
        let first = core.layout.map.divide(how.into(), room);
        self.hold_still(|| {
            let _changing = core.layout.changing.lock();
            core.make_hctxs(first.len());
            core.layout.replace(&first);
            core.settle();
        });
        core.tell_mapped();
        first.len()
    }

    /// Makes the device longer while requests flow: to `size` bytes, or, where that is `None`, to what its medium has by now.
    /// Returns the new size, which [`geometry`](crate::BlockDevice::geometry) has from then on. Devices that were built
    /// over it know the old one. May block.
    ///
    /// # Errors
    /// Those of [`Driver::grow`](crate::Driver::grow): it isn't longer then.
    pub fn grow(&self, size: Option<u64>) -> Result<u64, IoError> {
        corewise_sync::context::might_block("Queue::grow");
        self.core.grow(size)
    }

    /// In which order requests that wait for a tag get one.
    pub fn scheduler(&self) -> IoScheduler {
        *self.core.scheduler.lock()
    }

    /// Gives every hardware queue another scheduler, while requests flow. (The kernel's `elevator_switch`.)
    ///
    /// Blocks as [`Queue::hold_still`].
    ///
    /// # Panics
    /// As [`Queue::hold_still`].
    #[track_caller]
    pub fn set_scheduler(&self, scheduler: IoScheduler) {
        refuse_in_atomic_section("set_scheduler", "start_freeze");
        self.hold_still(|| {
            // Held to the end: two who do this at the same time both hold the queue still.
            let mut now = self.core.scheduler.lock();
            *now = scheduler;
            for hctx in self.core.hctxs() {
                // SAFETY: the queue is frozen and quiesced, and both have been waited for.
                unsafe { hctx.set_scheduler(scheduler) };
            }
        });
    }
}
