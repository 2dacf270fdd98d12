//! The reusable work item.

use std::fmt;
use std::mem;
use std::ptr::NonNull;
use std::time::Duration;

use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::{Mutex, hint, thread};

use crate::task::claim::{Claimed, Container};
use crate::task::header::{Flushers, Unsettled};
use crate::task::header::{HandleData, Item, ItemRef, LentItem, Reusable, Runs, TableOf};
use crate::task::header::{Header, Queued};
use crate::task::running;
use crate::task::state::{Seq, Snapshot};
use crate::timekeeper::delayed::TimerHandle;
use crate::wait::{self, messages};
use crate::wait::{Role, take_back};

/// A function that can be queued again and again without allocating: the kernel's `work_struct`.
///
/// * While it is pending, queueing it again does nothing, and the result shows that: any number of
///   triggers before the run become one run that sees all of them.
/// * The pending mark is cleared just before the function starts, so queueing it during its own run
///   is accepted, and it runs once more after.
/// * It never runs on two workers at once, whichever queues it is queued on.
///
/// Cloning makes another handle of the same item. The item may be dropped by its own function.
///
/// ```
/// use corewise_topology::Machine;
/// use corewise_workqueue::{Queued, Work, WorkerPools, Workqueue};
///
/// let pools = WorkerPools::new(&Machine::live()?);
/// let queue = Workqueue::builder("flush").build(&pools)?;
/// let work = Work::new(|| println!("flushed"));
/// queue.queue(&work)?;
/// work.flush();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Work {
    /// The header of a [`WorkItem`], by a pointer to all of it.
    item: NonNull<Header>,
}

// The reason is that of `Workqueue`.
impl std::panic::UnwindSafe for Work {}
impl std::panic::RefUnwindSafe for Work {}

// SAFETY: a handle is a reference to a `WorkItem`, which is `Send + Sync`, as its function is
// `Send`.
unsafe impl Send for Work {}
// SAFETY: as above.
unsafe impl Sync for Work {}

/// The data of a work item beside its header and its function.
#[repr(C)]
struct WorkData {
    aside: HandleData,
    /// L: is the lock; guards the place of its timer, which is void once that has fired. Taken
    /// last.
    timer: Mutex<Option<TimerHandle>>,
}

/// Padding to a line, so that the parts of a small item that an instance touches lie on one: its
/// header, and a function that is a pointer. This holds on x86-64 and aarch64.
#[repr(C, align(64))]
struct WorkItem<C> {
    header: Header,
    /// P: belongs to the thread that has set the state word's `RUNNING`.
    function: UnsafeCell<C>,
    beside: WorkData,
}

// SAFETY: one thread at a time calls the function, which `RUNNING` passes on with acquire and
// release. The thread that frees the item drops the function. So `C: Send` is enough. The other
// fields are `Sync`.
unsafe impl<C: Send> Sync for WorkItem<C> {}

impl Clone for Work {
    #[inline]
    fn clone(&self) -> Self {
        // Relaxed, as in `Arc`: the caller has a handle, so nothing depends on the order.
        let handles = self.aside().handles.fetch_add(1, Ordering::Relaxed);
        // Handles were forgotten until the count is about to wrap: as with `Arc`, only an abort
        // remains.
        if handles > isize::MAX as usize {
            std::process::abort();
        }
        Work { item: self.item }
    }
}

impl Drop for Work {
    #[inline]
    fn drop(&mut self) {
        // AcqRel: the actions of each handle come before Orphan.
        if self.aside().handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.last_handle_is_gone();
        }
    }
}

impl Work {
    /// Creates an item that runs `function`. The function runs on a worker thread of the queue, or
    /// on the thread that [flushes](Work::flush) the item. It is dropped with the last handle: on
    /// that thread, if that happens while it runs. The function may block, best inside
    /// [`blocking`](corewise_sync::context::blocking). If it panics, the panic is logged; the item,
    /// its worker and its queue continue.
    ///
    /// Its runs never overlap, and each sees the writes of the previous runs. So the function may
    /// have state of its own, without a lock. After a panic the next run finds that state as the
    /// panic has left it.
    ///
    /// ```
    /// # use corewise_topology::Machine;
    /// # use corewise_workqueue::{WorkerPools, Workqueue};
    /// use std::sync::mpsc;
    /// use corewise_workqueue::Work;
    /// # let pools = WorkerPools::new(&Machine::live()?);
    /// let queue = Workqueue::builder("batches").build(&pools)?;
    /// let (lines, inbox) = mpsc::channel();
    /// let mut written = 0;
    /// let write = Work::new(move || {
    ///     written += inbox.try_iter().map(|line: String| line.len()).sum::<usize>();
    ///     println!("{written} bytes so far");
    /// });
    /// lines.send("one".to_string())?;
    /// queue.queue(&write)?;
    /// # write.flush();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new<C: FnMut() + Send + 'static>(function: C) -> Work {
        Work::named_for::<C, C>(function)
    }

    /// Creates an item as [`Work::new`] does; reports show the name of an `N`.
    pub(crate) fn named_for<N, C: FnMut() + Send + 'static>(function: C) -> Work {
        let aside = HandleData { handles: AtomicUsize::new(1), flushers: Flushers::default() };
        let beside = WorkData { aside, timer: Mutex::new(None) };
        let header = Header::new(&TableOf::<WorkItem<C>, N>::REUSABLE);
        let function = UnsafeCell::new(function);
        Work {
            item: NonNull::from(Box::leak(Box::new(WorkItem { header, function, beside }))).cast(),
        }
    }

    /// Returns the item whose function calls this. An item that queues itself needs no handle of
    /// its own, and so ends when the last handle elsewhere is gone. Returns `None` if that has
    /// happened, in any other job of a queue, and off a queue's workers.
    ///
    /// ```
    /// # use corewise_topology::Machine;
    /// # use corewise_workqueue::{WorkerPools, Workqueue};
    /// use std::time::Duration;
    /// use corewise_workqueue::Work;
    /// # let pools = WorkerPools::new(&Machine::live()?);
    /// let queue = Workqueue::builder("ticks").build(&pools)?;
    /// let on = queue.clone();
    /// let ticker = Work::new(move || {
    ///     println!("tick");
    ///     // An error: somebody disables it, or ends the queue.
    ///     let _ = Work::current().map(|ticker| on.queue_delayed(&ticker, Duration::from_secs(1)));
    /// });
    /// queue.queue(&ticker)?;
    /// ticker.cancel_sync();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn current() -> Option<Work> {
        running::current(|running| {
            let item = running?.known()?;
            // SAFETY: the instance that runs has a hold, by a pointer to all of the item.
            let handles = &unsafe { LentItem::new(item) }.aside()?.handles;
            // Relaxed, as in `clone`; but if the last is gone there will be no other.
            let more = |handles: usize| (handles > 0).then(|| handles + 1);
            handles.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
            Some(Work { item })
        })
    }

    /// Carries out Orphan: the last handle is gone.
    #[cold]
    fn last_handle_is_gone(&self) {
        let table = self.header().table;
        if self.header().state.orphan() {
            // SAFETY: it was leaked in `new`; there is no handle and no instance, nor will there
            // be.
            unsafe { (table.release)(self.item) };
        }
    }

    #[inline]
    pub(crate) fn header(&self) -> &Header {
        // SAFETY: a handle keeps the item.
        unsafe { self.item.as_ref() }
    }

    #[inline]
    pub(crate) fn aside(&self) -> &HandleData {
        self.lent().aside().expect("it is reusable")
    }

    /// Returns the lock of the item's timer.
    pub(crate) fn timer(&self) -> &Mutex<Option<TimerHandle>> {
        let beside = self.lent().beside().expect("it is reusable").cast::<WorkData>();
        // SAFETY: a work item's aside is the first field of a `WorkData`, which is `repr(C)`; the
        // pointer is one to all of the item, which a handle keeps.
        &unsafe { beside.as_ref() }.timer
    }

    /// Returns true if the item was pending a moment ago: queued and not started. It may run as
    /// well.
    pub fn is_pending(&self) -> bool {
        self.header().state.snapshot().pending()
    }

    /// Returns true if a worker ran the item a moment ago.
    pub fn is_running(&self) -> bool {
        self.header().state.snapshot().running()
    }

    /// Waits until the instance that was queued last has run. Returns true if it had to wait. It
    /// doesn't wait for instances queued later, nor for one whose delay isn't over: then it waits
    /// for the running instance, if there is one. (Linux's `flush_work` does the same; see
    /// [`Work::flush_delayed`].) May block; on a worker the pool starts other work meanwhile. If
    /// the item still waits for a worker, this call may run it, as with
    /// [`JoinHandle::join`](crate::JoinHandle::join).
    ///
    /// # Panics
    /// If the item's own function calls it, or an item that this one waits for on the same stack:
    /// it would wait for itself. Also in an item of an ordered queue, for an item that is queued
    /// there behind others, which come after the waiting item.
    #[track_caller]
    pub fn flush(&self) -> bool {
        messages::for_item(self.header(), "Work::flush");
        take_back(self.lent(), Role::Waits) || self.flush_only(Role::Waits)
    }

    /// Lends the item to a claimant of an instance of it.
    pub(crate) fn lent(&self) -> LentItem<'_> {
        // SAFETY: a handle keeps the item; the pointer is one to all of it.
        unsafe { LentItem::new(self.item) }
    }

    /// Returns the queue's hold on the item, once the caller has made it pending.
    #[inline]
    pub(crate) fn hold(&self) -> ItemRef {
        debug_assert!(self.header().state.snapshot().pending());
        // SAFETY: the caller has made it pending, and queues it.
        unsafe { ItemRef::kept(self.item) }
    }

    /// Takes the pending instance back: it won't run, and its flushers wake. Returns true if there
    /// was one. An instance that runs continues: see [`Work::cancel_sync`].
    ///
    /// Any context: it waits for no work. It only yields while others take short steps with the
    /// same item (a call of `queue` that is under way).
    pub fn cancel(&self) -> bool {
        self.lent().claim().map(Claimed::cancel).is_some()
    }

    /// Takes the pending instance back and waits until the running one, if any, is over. While it
    /// waits, the item is disabled, so the wait ends even if the item queues itself. Returns true
    /// if an instance was pending. May block; on a worker the pool starts other work meanwhile.
    ///
    /// No work that the item waits for may call it either.
    ///
    /// # Panics
    /// If the item itself calls it: it would wait for its own end, for ever.
    #[track_caller]
    pub fn cancel_sync(&self) -> bool {
        messages::for_item(self.header(), "Work::cancel_sync");
        let disabled = self.count_up();
        let was_pending = self.cancel();
        self.flush_only(Role::Ends);
        if disabled {
            self.enable();
        }
        was_pending
    }

    /// Takes the pending instance back, and refuses every later queueing until the item has been
    /// enabled as often as it was disabled. An attempt to queue it meanwhile returns
    /// [`QueueError::Disabled`](crate::QueueError::Disabled) and leaves no trace. Returns true if
    /// an instance was pending. Any context, as [`Work::cancel`].
    ///
    /// The depth goes to 65 535; beyond that it isn't counted, which is logged.
    pub fn disable(&self) -> bool {
        self.count_up();
        self.cancel()
    }

    /// Disables the item as [`Work::disable`] does, then waits until the running instance, if any,
    /// is over. May block. The item itself must not call it.
    #[track_caller]
    pub fn disable_sync(&self) -> bool {
        messages::for_item(self.header(), "Work::disable_sync");
        let was_pending = self.disable();
        self.flush_only(Role::Ends);
        was_pending
    }

    /// Takes one [`Work::disable`] back. Returns true if the item can be queued now. A run that was
    /// refused or cancelled meanwhile isn't made up for. Any context.
    ///
    /// A call too many is logged, and changes nothing.
    pub fn enable(&self) -> bool {
        self.header().state.enable().unwrap_or_else(|| {
            tracing::warn!(
                item = self.header().name(),
                "a work item was enabled more often than it was disabled"
            );
            0
        }) == 0
    }

    /// Returns true if queueing the item was refused a moment ago.
    pub fn is_disabled(&self) -> bool {
        self.header().state.snapshot().depth() > 0
    }

    /// Counts a disable; returns false if the counter is full.
    fn count_up(&self) -> bool {
        let counted = self.header().state.disable().is_some();
        if !counted {
            tracing::warn!(
                item = self.header().name(),
                "a work item is disabled 65535 times; further calls are not counted"
            );
        }
        counted
    }

    /// Flushes the item as [`Work::flush`] does, but doesn't try to run it.
    #[track_caller]
    pub(crate) fn flush_only(&self, role: Role) -> bool {
        self.flush_firing(role, None)
    }

    /// Flushes the item as `flush_only` does. It fires the timer of the instance with the number
    /// `fires`, whenever it finds that set.
    #[track_caller]
    fn flush_firing(&self, role: Role, fires: Option<Seq>) -> bool {
        let header = self.header();
        let on_timer = |now: Snapshot| {
            let fires = fires == Some(now.seq());
            if now.again() || now.claimed() {
                return (now.again() || !fires).then_some(false);
            }
            match header.place(now.seq()) {
                Container::Nowhere => None,
                Container::Timer | Container::Moving if fires => None,
                place => Some(place == Container::Timer),
            }
        };
        loop {
            match self.aside().flushers.join(&header.state, on_timer) {
                Ok(Some(over)) => {
                    wait::wait(self.lent(), &over, role);
                    return true;
                }
                Ok(None) => return false,
                Err(Unsettled) if fires.is_some_and(|seq| self.fire(seq)) => {}
                Err(Unsettled) => thread::yield_now(),
            }
        }
    }

    /// Fires the item's timer if it runs, then [flushes](Work::flush) the item. Returns true if
    /// there was an instance to wait for. If the item sets its timer again meanwhile, the call
    /// doesn't wait for that. May block.
    #[track_caller]
    pub fn flush_delayed(&self) -> bool {
        messages::for_item(self.header(), "Work::flush_delayed");
        let now = self.header().state.snapshot();
        let instance = now.pending().then(|| now.seq());
        let fired = instance.is_some_and(|seq| self.fire(seq));
        // It may have run before the flush looked: this counts as a wait all the same.
        take_back(self.lent(), Role::Waits) || self.flush_firing(Role::Waits, instance) || fired
    }

    /// Fires the timer if it is that of the instance with this number.
    fn fire(&self, seq: Seq) -> bool {
        let header = self.header();
        let now = header.state.snapshot();
        let set = now.pending() && now.seq() == seq && header.place(seq) == Container::Timer;
        let armed = if set { self.timer().lock().take() } else { None };
        armed.map(TimerHandle::fire).is_some()
    }
}

impl fmt::Debug for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Work")
            .field("pending", &self.is_pending())
            .field("running", &self.is_running())
            .field("disabled", &self.is_disabled())
            .finish_non_exhaustive()
    }
}

impl<C: FnMut() + Send> Runs for WorkItem<C> {
    fn run(&self) {
        // SAFETY: the thread that has started the instance runs it, and no other is started before
        // that one's end.
        let call = |function: *mut C| unsafe { (*function)() };
        if hint::IN_MODEL {
            // A checker sees if two threads are in there at once.
            return self.function.with_mut(call);
        }
        // For the simulator: most functions only read their own captures.
        self.function.with(|function| call(function.cast_mut()));
    }
}

// SAFETY: this is its offset.
unsafe impl<C: FnMut() + Send> Reusable for WorkItem<C> {
    const ASIDE: usize = mem::offset_of!(Self, beside);

    fn unshelve(&self) -> Option<Queued> {
        let armed = self.beside.timer.lock().take();
        armed?.disarm()
    }

    fn fires_in(&self) -> Option<Duration> {
        // The lock of the timers comes before this one.
        let armed = self.beside.timer.lock().clone();
        armed?.left()
    }
}

// SAFETY: `repr(C)`; the header comes first, and is made in `Work::new` only.
unsafe impl<C: FnMut() + Send> Item for WorkItem<C> {}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use super::*;

    #[test]
    fn an_item_whose_function_is_two_words_takes_two_lines_and_runs_on_the_first() {
        fn size<C>(_: &C) -> (usize, usize) {
            (size_of::<WorkItem<C>>(), mem::offset_of!(WorkItem<C>, function))
        }
        let (one, other) = (Box::new(1_u64), Box::new(2_u64));
        let function = move || assert!(one < other);
        assert_eq!(size_of_val(&function), 16);
        let (size, offset) = size(&function);
        assert!(size <= 128 && offset <= 56, "{size} bytes, the function at {offset}");
        let work = Work::new(function);
        assert_eq!(work.item.as_ptr() as usize % 64, 0);
    }
}
