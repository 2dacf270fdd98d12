//! The reusable work item.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use corewise_sync::Mutex;

use crate::claim::Claimed;
use crate::error::panic_message;
use crate::item::{Header, Queued};
use crate::table::{Item, ItemRef, Table};
use crate::take_back::take_back;
use crate::timekeeper::delayed::Armed;
use crate::waits;

/// A function that can be queued again and again without allocating: the kernel's `work_struct`.
///
/// * While it is pending, queueing it again does nothing and says so: any number of triggers before
///   the run become one run that sees all of them.
/// * The pending mark is cleared just before the function starts, so queueing it during its own run
///   is accepted, and it runs once more after.
/// * It never runs on two workers at once, whichever queues it is queued on.
///
/// Cloning makes another handle of the same item. The item may be dropped by its own function.
///
/// ```
/// use corewise_topology::Machine;
/// use corewise_workqueue::{Work, WorkerPools, Workqueue};
///
/// let pools = WorkerPools::new(&Machine::live()?);
/// let queue = Workqueue::builder("flush").build(&pools)?;
/// let work = Work::new(|| println!("flushed"));
/// assert!(queue.queue(&work));
/// work.flush();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Work {
    pub(crate) inner: Arc<WorkItem>,
}

// As for `Workqueue`.
impl std::panic::UnwindSafe for Work {}
impl std::panic::RefUnwindSafe for Work {}

#[repr(C)]
pub(crate) struct WorkItem {
    pub(crate) header: Header,
    /// L: is the lock; guards where its timer is, which says nothing once that has fired. Taken last.
    pub(crate) timer: Mutex<Option<Armed>>,
    function: Box<dyn Fn() + Send + Sync>,
}

impl Work {
    /// An item that runs `function`. The function runs on a worker thread of the queue, or on the
    /// thread that [flushes](Work::flush) it, and is dropped where the last handle is: on that
    /// thread, if that is while it runs. It may block,
    /// best inside [`blocking`](corewise_sync::context::blocking). If it panics, the panic is
    /// logged and the item, its worker and its queue go on.
    pub fn new<C: Fn() + Send + Sync + 'static>(function: C) -> Work {
        let header = Header::new(Table::counted::<WorkItem, C>());
        let function = Box::new(function);
        Work { inner: Arc::new(WorkItem { header, timer: Mutex::new(None), function }) }
    }

    /// Whether it is queued and has not started (a moment ago). It may be running as well.
    pub fn is_pending(&self) -> bool {
        self.inner.header.state.snapshot().pending()
    }

    /// Whether a worker runs it (a moment ago).
    pub fn is_running(&self) -> bool {
        self.inner.header.state.snapshot().running()
    }

    /// Waits until the instance that was queued last has run: true if it had to wait. Instances
    /// queued later aren't waited for. May block; on a worker the pool starts other work
    /// meanwhile. An item that still waits for a worker may be run by this call, as with
    /// [`JoinHandle::join`](crate::JoinHandle::join).
    ///
    /// Called from the item's own function it never returns: it waits for itself. That is reported.
    #[track_caller]
    pub fn flush(&self) -> bool {
        waits::for_item(&self.inner.header, "Work::flush");
        take_back(&self.inner.header) || self.inner.header.flush()
    }

    /// A hold on the item, for the queue.
    #[inline]
    pub(crate) fn hold(&self) -> ItemRef {
        ItemRef::counted(Arc::clone(&self.inner))
    }

    #[track_caller]
    fn wait(&self, what: &'static str) -> bool {
        waits::for_item(&self.inner.header, what);
        self.inner.header.flush()
    }
}

impl Work {
    /// Takes the pending instance back: it won't run, and those who flush it are told. True where
    /// there was one. An instance that runs goes on: see [`Work::cancel_sync`].
    ///
    /// Any context: it waits for no work, only, yielding, for others' short steps with the same item
    /// (a call of `queue` that is under way).
    pub fn cancel(&self) -> bool {
        self.inner.header.claim().map(Claimed::cancel).is_some()
    }

    /// Takes the pending instance back and waits until the running one, if any, is over. While it
    /// waits the item is disabled, so it ends also where the item queues itself. True where an
    /// instance was pending. May block; on a worker the pool starts other work meanwhile.
    ///
    /// The item itself must not call it: it would wait for its own end, for ever. That is reported.
    /// Neither may what the item waits for.
    #[track_caller]
    pub fn cancel_sync(&self) -> bool {
        let disabled = self.count_up();
        let was_pending = self.cancel();
        self.wait("Work::cancel_sync");
        if disabled {
            self.enable();
        }
        was_pending
    }

    /// Takes the pending instance back, and has every later queueing refused, until the item has been
    /// enabled as often as it was disabled. An attempt to queue it meanwhile returns false and
    /// leaves no trace. True where an instance was pending. Any context, as [`Work::cancel`].
    ///
    /// The depth goes to 65 535; beyond that it isn't counted, which is logged.
    pub fn disable(&self) -> bool {
        self.count_up();
        self.cancel()
    }

    /// As [`Work::disable`]; then waits until the running instance, if any, is over. May block. Not
    /// from the item itself.
    #[track_caller]
    pub fn disable_sync(&self) -> bool {
        let was_pending = self.disable();
        self.wait("Work::disable_sync");
        was_pending
    }

    /// Takes one [`Work::disable`] back: true where the item can be queued now. What was refused or
    /// cancelled meanwhile isn't made up for. Any context.
    ///
    /// More often than it was disabled: that is logged, and changes nothing.
    pub fn enable(&self) -> bool {
        self.inner.header.state.enable().unwrap_or_else(|| {
            tracing::warn!(
                item = self.inner.header.name(),
                "a work item was enabled more often than it was disabled"
            );
            0
        }) == 0
    }

    /// Whether queueing it is refused (a moment ago).
    pub fn is_disabled(&self) -> bool {
        self.inner.header.state.snapshot().depth() > 0
    }

    /// Counts a disable; false where the counter is full.
    fn count_up(&self) -> bool {
        let counted = self.inner.header.state.disable().is_some();
        if !counted {
            tracing::warn!(
                item = self.inner.header.name(),
                "a work item is disabled 65535 times over; one more isn't counted"
            );
        }
        counted
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Work").field(&self.inner.header.state).finish()
    }
}

// SAFETY: `repr(C)`; the header comes first, and is made in `Work::new` only.
unsafe impl Item for WorkItem {
    fn run(&self) {
        (self.function)();
    }

    fn unshelve(&self) -> Option<Queued> {
        let armed = self.timer.lock().take();
        armed?.disarm()
    }

    fn panicked(&self, payload: Box<dyn Any + Send>) {
        tracing::error!(
            item = self.header.name(),
            message = panic_message(payload.as_ref()),
            "a work item panicked"
        );
    }
}
