//! The reusable work item.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use crate::error::panic_message;
use crate::item::{Header, Item};
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

pub(crate) struct WorkItem {
    header: Header,
    function: Box<dyn Fn() + Send + Sync>,
}

impl Work {
    /// An item that runs `function`. The function runs on a worker thread of the queue, and is
    /// dropped where the last handle is: on the worker, if that is while it runs. It may block,
    /// best inside [`blocking`](corewise_sync::context::blocking). If it panics, the panic is
    /// logged and the item, its worker and its queue go on.
    pub fn new<C: Fn() + Send + Sync + 'static>(function: C) -> Work {
        let (header, function) = (Header::new::<C>(), Box::new(function));
        Work { inner: Arc::new(WorkItem { header, function }) }
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
    /// meanwhile.
    ///
    /// Called from the item's own function it never returns: it waits for itself. That is reported.
    #[track_caller]
    pub fn flush(&self) -> bool {
        waits::for_item(&self.inner.header, "Work::flush");
        self.inner.header.flush()
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Work").field(&self.inner.header.state).finish()
    }
}

impl Item for WorkItem {
    fn header(&self) -> &Header {
        &self.header
    }

    fn run(&self) {
        (self.function)();
    }

    fn cancelled(&self) {}

    fn panicked(&self, payload: Box<dyn Any + Send>) {
        tracing::error!(message = panic_message(payload.as_ref()), "a work item panicked");
    }
}
