//! Control of a queue as a whole while work flows: other attributes, another maximum, draining, the
//! end and its listeners. Also the queue below a queue.

use std::panic::Location;
use std::sync::{Arc, Weak};
use std::{fmt, mem};

use crate::attributes::{Attributes, MAX_ACTIVE_LIMIT, PoolKey, QueueKind};
use crate::error::{BuildError, shielded};
use crate::pwq::queue_core::QueueCore;
use crate::pwq::table::Plan;
use crate::pwq::waiting::{WaiterKey, Waits};
use crate::queue::Workqueue;
use crate::queue::builder::QueueBuilder;
use crate::timekeeper::Registered;
use crate::wait::{Target, messages};

impl Workqueue {
    /// Waits for all items that were queued before the call. May block.
    #[track_caller]
    pub(super) fn flush_all(&self) {
        let (shared, location) = (self.shared(), Location::caller());
        shared.colours.flush_by(|event| Target::Queue(shared, location).wait(event));
    }

    /// Returns the queue's kind.
    pub fn kind(&self) -> QueueKind {
        self.shared().traits.kind
    }

    /// Returns the queue's attributes. To change them, modify the copy and pass it to
    /// [`Workqueue::set_attributes`]. Takes a short lock.
    pub fn attributes(&self) -> Attributes {
        self.shared().attributes.lock().clone()
    }

    /// Changes the attributes while work flows: all of them or, on an error, none. Items queued
    /// from then on go to the new pools; those queued before run where they are, under the old
    /// attributes. Nothing is lost and nothing runs twice; an ordered queue keeps its order.
    ///
    /// Everything is prepared first: new pools get a first worker for each pod. So the call may
    /// block, though not on the queue's work: an item may call it.
    ///
    /// # Errors
    /// [`BuildError::Fixed`] for a bound queue, whose attributes don't change (but see
    /// [`Workqueue::set_max_active`]); [`BuildError::Conflict`] for a maximum above 1 on an ordered
    /// queue; else as [`QueueBuilder::build`](crate::QueueBuilder::build). The queue is then as it
    /// was.
    pub fn set_attributes(&self, attributes: &Attributes) -> Result<(), BuildError> {
        let shared = self.shared();
        if shared.traits.kind.per_cpu() {
            let (queue, kind) = (shared.name.clone(), shared.traits.kind.name());
            return Err(BuildError::Fixed { queue, kind });
        }
        self.takes_max_active(attributes.max_active)?;
        let asked = attributes.max_active;
        let attributes = attributes.clone().in_range();
        // Prepare: with no lock held, since this may call the user's spawn handler.
        let key = PoolKey::of(shared.traits.kind, &attributes);
        let lease = shared.pools.lease(&shared.name, key.clone())?;
        // Commit: from here on nothing fails.
        let mut current = shared.attributes.lock();
        if key != PoolKey::of(shared.traits.kind, &current) {
            // A queuer that has Entered an old pwq queues on the old pools, which that pwq keeps
            // open.
            self.table().replace(Plan::new(&shared.pools, &lease));
        }
        *current = attributes;
        shared.divide(&current);
        drop(current);
        drop(lease);
        shared.settle();
        shared.warn_of_cut(asked);
        self.tell_below();
        // The former pools may have belonged to this queue alone.
        shared.pools.reap();
        Ok(())
    }

    /// Changes how many instances may be active at once; see
    /// [`QueueBuilder::max_active`](crate::QueueBuilder::max_active). If the maximum rises,
    /// instances that are held back start at once. If it falls, active instances continue. If a
    /// queue without a limit gets one, the limit counts the instances that are queued from then on.
    /// It works on bound queues too. Takes short locks.
    ///
    /// # Errors
    /// [`BuildError::Conflict`] on an ordered queue, but for 0 and 1.
    pub fn set_max_active(&self, max_active: usize) -> Result<(), BuildError> {
        let shared = self.shared();
        self.takes_max_active(max_active)?;
        let mut current = shared.attributes.lock();
        current.max_active = max_active.min(MAX_ACTIVE_LIMIT);
        shared.divide(&current);
        drop(current);
        shared.settle();
        shared.warn_of_cut(max_active);
        Ok(())
    }

    fn takes_max_active(&self, max_active: usize) -> Result<(), BuildError> {
        let kind = self.kind();
        if max_active <= kind.most_active() {
            return Ok(());
        }
        let (queue, with) = (self.name().to_owned(), kind.name());
        Err(BuildError::Conflict { queue, asked: "max_active", with })
    }

    /// Waits until the queue is empty, and meanwhile accepts only items that its own running items
    /// queue: chains of work come to their end, others are refused, with a warning. Afterwards it
    /// accepts everything again. If chains don't end it warns after 10 rounds, and after each 100.
    ///
    /// It doesn't wait for delayed items whose time hasn't come; if that comes meanwhile, the queue
    /// refuses them. May block. It doesn't affect the queue [`below`](Workqueue::below), on which
    /// block devices run.
    ///
    /// # Panics
    /// See [`Workqueue::flush`].
    #[track_caller]
    pub fn drain(&self) {
        let shared = self.shared();
        messages::for_queue(shared, "Workqueue::drain");
        let _draining = self.begin_drain();
        self.drain_rounds();
    }

    /// Refuses all items but those that the queue's own items queue, until the returned guard is
    /// dropped.
    fn begin_drain(&self) -> Draining<'_> {
        let mut drains = self.inner.drains.lock();
        *drains += 1;
        self.shared().limiter.slots().for_each(|slot| slot.set_draining(true));
        Draining(self)
    }

    /// Drains the queue, and accepts nothing from then on: `queue` returns
    /// [`QueueError::Closed`](crate::QueueError::Closed), a spawned closure is cancelled. Other
    /// handles of the queue remain valid. Dropping the last handle without it leaves queued work to
    /// run.
    ///
    /// Delayed items whose time hasn't come are cancelled, and their waiters wake. (The kernel
    /// leaves them to the caller.) So are spawned futures that wait to be woken: the calling thread
    /// drops them. May block, like [`Workqueue::drain`].
    ///
    /// # Panics
    /// See [`Workqueue::flush`].
    #[track_caller]
    pub fn destroy(&self) {
        let shared = self.shared();
        messages::for_queue(shared, "Workqueue::destroy");
        let draining = self.begin_drain();
        self.drain_rounds();
        // It goes from draining to closed.
        mem::forget(draining);
        shared.close();
        // This comes after the close: a thread that sets a timer checks for that afterwards.
        shared.pools.keeper().cancel_of(shared.id);
        shared.settle();
        shared.cancel_waiting();
        // Instances slipped in with a chain that ended at the last moment.
        self.drain_rounds();
    }

    /// Instances that were let through to a pool and weren't over a moment ago: `max_active` limits
    /// these.
    pub fn active(&self) -> u64 {
        self.shared().active()
    }

    /// Instances that were held back a moment ago: by `max_active`, or by the order of an ordered
    /// queue.
    pub fn held(&self) -> u64 {
        self.shared().limiter.slots().map(|slot| slot.sizes().2 as u64).sum()
    }

    #[track_caller]
    fn drain_rounds(&self) {
        let shared = self.shared();
        let mut rounds = 0_u32;
        loop {
            self.flush_all();
            if shared.is_empty() {
                return;
            }
            rounds += 1;
            if rounds == 10 || rounds % 100 == 0 {
                tracing::warn!(
                    queue = shared.name,
                    rounds,
                    "a drain doesn't end: the queue's items keep queueing more on it"
                );
            }
        }
    }
}

/// A drain that is under way. It ends when this is dropped, even if the wait is given up.
struct Draining<'a>(&'a Workqueue);

impl Drop for Draining<'_> {
    fn drop(&mut self) {
        let mut drains = self.0.inner.drains.lock();
        *drains -= 1;
        if *drains == 0 {
            self.0.shared().limiter.slots().for_each(|slot| slot.set_draining(false));
        }
    }
}

impl Workqueue {
    /// Returns the queue below this one, for a layer whose work this queue's items may wait for,
    /// such as a block device. The first call creates it. (The kernel's block layer has a queue of
    /// its own for that, `kblockd`.)
    ///
    /// The queue below has the same pools, and this queue's kind and attributes, also as they
    /// change. But it isn't ordered and has no `max_active`. So if this queue is drained,
    /// destroyed, or full of items that wait, the work that they wait for still proceeds. The queue
    /// below takes work until the pools are shut down, even while it is drained. Its name is this
    /// queue's with `/below` appended. If this queue has a rescuer, the queue below has one of its
    /// own. A queue below is its own queue below, and so is a [`lowest`](QueueBuilder::lowest)
    /// queue.
    ///
    /// The first call may block. After [`WorkerPools::shutdown`](crate::WorkerPools::shutdown), the
    /// returned queue takes nothing, like this one.
    #[must_use]
    pub fn below(&self) -> Workqueue {
        if self.shared().traits.is_below {
            return self.clone();
        }
        if let Some(below) = &*self.inner.below.lock() {
            return below.clone();
        }
        // No lock is held: making a queue may call the user's spawn handler.
        let made = match self.make_below() {
            Ok(made) => made,
            Err(error) => {
                if !matches!(error, BuildError::ShutDown { .. }) {
                    tracing::warn!(queue = self.name(), %error, "cannot create the queue below: \
                                                                 this queue takes its place");
                }
                return self.clone();
            }
        };
        let below = self.inner.below.lock().get_or_insert(made).clone();
        // The attributes may have changed while the queue was made.
        self.tell_below();
        below
    }

    fn make_below(&self) -> Result<Workqueue, BuildError> {
        let (shared, pools) = (self.shared(), &self.shared().pools);
        let mut builder = QueueBuilder::below(shared, self.attributes());
        builder.clone().build(pools).or_else(|error| match error {
            BuildError::Threads { .. } if shared.rescuer.is_some() => {
                tracing::warn!(queue = shared.name, %error, "the queue below has no rescuer");
                builder.rescuer = false;
                builder.build(pools)
            }
            error => Err(error),
        })
    }

    /// Passes the attributes on to the queue below, if there is one.
    pub(crate) fn tell_below(&self) {
        let below = self.inner.below.lock();
        if let Some(below) = &*below {
            // The attributes are read under the lock, so that the last thread here passes on the
            // latest.
            let attributes = Attributes { max_active: 0, ..self.attributes() };
            if let Err(error) = below.set_attributes(&attributes) {
                if !matches!(error, BuildError::Fixed { .. } | BuildError::ShutDown { .. }) {
                    tracing::warn!(queue = self.name(), %error, "the queue below keeps its attributes");
                }
            }
        }
    }
}

/// A listener for the end of a queue, active until it is dropped: see [`Workqueue::on_end`].
#[must_use = "dropping it has nobody told"]
pub struct EndNotice {
    queue: Weak<QueueCore>,
    seat: Option<WaiterKey>,
    /// The list has a weak reference to it.
    _told: Arc<dyn Waits>,
}

struct EndListener<F>(F);

impl<F: Fn() + Send + Sync> Waits for EndListener<F> {
    fn shut(&self) -> bool {
        true
    }

    fn stop(&self) {
        (self.0)();
    }
}

impl Workqueue {
    /// Calls `told` once the queue takes nothing any more, because it was destroyed or its pools
    /// were shut down. From then on the queue refuses all items. This is for code that has promised
    /// to do something on the queue, and then has to do without it.
    ///
    /// `told` is called once, with no lock held, by the thread that ends the queue or drops the
    /// last handle of the pools, before that thread waits for the workers. If the queue has ended
    /// already, this thread calls `told` at once. A panic in `told` is logged. Once the notice was
    /// dropped, `told` isn't called, though it may still be running then.
    pub fn on_end(&self, told: impl Fn() + Send + Sync + 'static) -> EndNotice {
        let told = Arc::new(EndListener(told));
        let list: Weak<dyn Waits> = Arc::downgrade(&told) as _;
        let seat = self.shared().waiting.sit(0, list).ok();
        if seat.is_none() {
            shielded("a callback at the end of a queue", || told.stop());
        }
        EndNotice { queue: Arc::downgrade(self.shared()), seat, _told: told }
    }
}

impl Drop for EndNotice {
    fn drop(&mut self) {
        if let (Some(queue), Some(seat)) = (self.queue.upgrade(), self.seat.take()) {
            drop(queue.waiting.leave(seat));
        }
    }
}

impl fmt::Debug for EndNotice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EndNotice").field("told", &self.seat.is_none()).finish_non_exhaustive()
    }
}
