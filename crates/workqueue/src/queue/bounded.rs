//! Closures of which a queue takes so many at once, and gives the others back.

use crate::attributes::At;
use crate::error::{QueueError, Refused};
use crate::handle::join::{JoinHandle, Task};
use crate::pwq::room::Permit;
use crate::queue::Workqueue;

impl Workqueue {
    /// As [`Workqueue::spawn`], where the queue has room: what it doesn't take comes back. So the queue of a server that
    /// gets more than it can do doesn't grow; it says so, to those who ask.
    ///
    /// A queue has room for as many closures as its [`capacity`](crate::QueueBuilder::capacity) says, waiting or running,
    /// or for any number. The place of a closure is free again when it has run, or was cancelled and dropped: before its
    /// handle says so. Any context, as [`Workqueue::queue`]; where the queue has a capacity, all callers change one number.
    ///
    /// # Errors
    /// The closure, as it was, with [`QueueError::Full`], or with [`QueueError::Draining`] or [`QueueError::Closed`].
    ///
    /// ```
    /// # use corewise_topology::Machine;
    /// # use corewise_workqueue::{WorkerPools, Workqueue};
    /// use corewise_workqueue::QueueError;
    /// # let pools = WorkerPools::new(&Machine::live()?);
    /// let queue = Workqueue::builder("thumbnails").max_active(2).capacity(100).build(&pools)?;
    /// match queue.try_spawn(|| println!("made in a while")) {
    ///     Ok(job) => job.join()?,
    ///     Err(refused) if refused.error == QueueError::Full => eprintln!("come again later"),
    ///     Err(refused) => return Err(refused.error.into()),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn try_spawn<T, C>(&self, closure: C) -> Result<JoinHandle<T>, Refused<C>>
    where
        C: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let permit = match &self.inner.table.shared().room {
            None => None,
            Some(room) => match room.enter() {
                None => {
                    // Gone is another error than full.
                    let closed = self.inner.table.check_at_once(false).err();
                    return Err(Refused { closure, error: closed.unwrap_or(QueueError::Full) });
                }
                permit => permit,
            },
        };
        let (item, handle) = Task::make(closure, permit);
        match self.submit_new(At::Here, item) {
            Ok(()) => Ok(handle),
            Err((item, error)) => {
                // SAFETY: it was made just now, with this closure and permit, and comes back: nobody else has it.
                let closure = unsafe { Task::<C, T, Option<Permit>>::unmake(item, handle) };
                Err(Refused { closure, error })
            }
        }
    }
}
