//! A closure that runs once and has no handle: the cheapest way to have something run.
//!
//! Nobody but the pool knows such an item: it can't be claimed, flushed or queued again, so it is
//! pending from its making to its end, and its state word is never changed on the way through a pool.

use std::any::Any;
use std::mem::ManuallyDrop;
use std::panic::Location;
use std::ptr::NonNull;

use corewise_sync::cell::UnsafeCell;
use tracing::Span;

use crate::around::Spawner;
use crate::error::panic_message;
use crate::item::Header;
use crate::links::Place;
use crate::queue::Workqueue;
use crate::table::{Item, ItemRef, Table};

impl Workqueue {
    /// Runs a closure on the queue, once, and forgets it: as [`Workqueue::spawn`], for less, where
    /// nobody wants to wait for it. One allocation, which is freed by the worker.
    ///
    /// The closure runs on a worker thread of the queue, near the CPU that this is called on, and is
    /// dropped there. If it panics, that is logged. [`Workqueue::flush`] waits for it. Also from
    /// inside items. Any context, as [`Workqueue::queue`].
    ///
    /// # Errors
    /// The closure, where the queue doesn't take it: it is being drained, it was destroyed, or the
    /// pools were shut down. Where that happens after the call, while the closure waits for a worker,
    /// it is dropped without having run, by whoever ends the queue.
    ///
    /// ```
    /// # use corewise_topology::Machine;
    /// # use corewise_workqueue::{WorkerPools, Workqueue};
    /// # let pools = WorkerPools::new(&Machine::live()?);
    /// let queue = Workqueue::builder("log").build(&pools)?;
    /// let taken = queue.execute(|| println!("written in a while"));
    /// assert!(taken.is_ok());
    /// queue.flush();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    #[inline]
    pub fn execute<C: FnOnce() + Send + 'static>(&self, closure: C) -> Result<(), C> {
        self.execute_at(Place::Here, closure, Location::caller())
    }

    /// As [`Workqueue::execute`], on the pod of `cpu`; see [`Workqueue::queue_on`].
    ///
    /// # Errors
    /// As [`Workqueue::execute`].
    #[track_caller]
    pub fn execute_on<C>(&self, cpu: u32, closure: C) -> Result<(), C>
    where
        C: FnOnce() + Send + 'static,
    {
        self.execute_at(Place::Cpu(cpu), closure, Location::caller())
    }

    /// As [`Workqueue::execute`], on a pod of `node`; see [`Workqueue::queue_node`].
    ///
    /// # Errors
    /// As [`Workqueue::execute`].
    #[track_caller]
    pub fn execute_node<C>(&self, node: Option<u32>, closure: C) -> Result<(), C>
    where
        C: FnOnce() + Send + 'static,
    {
        self.execute_at(Place::Node(node), closure, Location::caller())
    }

    fn execute_at<C: FnOnce() + Send + 'static>(
        &self,
        place: Place,
        closure: C,
        site: &'static Location<'static>,
    ) -> Result<(), C> {
        let once = Box::new(Once {
            header: Header::alone(Table::kept::<Once<C>, C>()),
            // Before the closure: a subscriber that panics in there leaves that to be dropped as ever.
            spawner: Spawner::current(),
            closure: UnsafeCell::new(ManuallyDrop::new(closure)),
        });
        let once = NonNull::from(Box::leak(once));
        // SAFETY: it was made pending, and is handed over.
        let item = unsafe { ItemRef::kept(once.cast()) };
        self.submit_new(place, item, site).map_err(|_| {
            // SAFETY: it came back, so that nobody else has it; it was leaked above.
            let once = unsafe { Box::from_raw(once.as_ptr()) };
            // SAFETY: it hasn't run, and won't.
            unsafe { once.take() }
        })
    }
}

#[repr(C)]
struct Once<C> {
    header: Header,
    spawner: Spawner,
    /// P: belongs to who starts the item, or drops it; gone where the state says that it was taken.
    closure: UnsafeCell<ManuallyDrop<C>>,
}

impl<C> Once<C> {
    /// Takes the closure out.
    ///
    /// # Safety
    /// The caller has the item alone, and takes it once.
    unsafe fn take(&self) -> C {
        self.header.state.take_alone();
        // SAFETY: as the caller says.
        self.closure.with_mut(|closure| unsafe { ManuallyDrop::take(&mut *closure) })
    }
}

impl<C> Drop for Once<C> {
    fn drop(&mut self) {
        if !self.header.state.snapshot().running() {
            // SAFETY: it wasn't taken.
            drop(unsafe { self.take() });
        }
    }
}

// SAFETY: the closure is touched by who runs the item, once, or has all of it; `C: Send` is enough for
// that. The other fields are `Sync`.
unsafe impl<C: Send> Sync for Once<C> {}

// SAFETY: `repr(C)`; the header comes first, and is made in `execute_at` only.
unsafe impl<C: FnOnce() + Send> Item for Once<C> {
    fn run(&self) {
        // SAFETY: only who has started the item runs it, and it is started once.
        let closure = unsafe { self.take() };
        closure();
    }

    fn panicked(&self, payload: Box<dyn Any + Send>) {
        tracing::error!(
            item = self.header.name(),
            message = panic_message(payload.as_ref()),
            "a work item panicked"
        );
    }

    fn spawner(&self) -> Option<&Span> {
        self.spawner.span()
    }
}
