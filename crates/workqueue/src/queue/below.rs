//! The queue below a queue: for layers whose work the queue's items wait for.

use crate::attributes::Attributes;
use crate::error::BuildError;
use crate::queue::Workqueue;
use crate::queue::builder::QueueBuilder;

impl Workqueue {
    /// The queue below this one, made when it is first asked for: for a layer whose work this queue's items may
    /// wait for, such as a block device. (The kernel's block layer has a queue of its own for that, `kblockd`.)
    ///
    /// It has the same pools, and this queue's kind and attributes, also as they change; but it isn't ordered,
    /// has no `max_active`. So this queue may be drained, destroyed, or full of items that wait: what they wait for goes on. It takes work until the pools are shut down, also while
    /// somebody drains it. Its name is this one's with `/below` behind. Where this queue has a rescuer, it has
    /// one of its own. The queue below the queue below is itself, as that of
    /// a queue that is the [`lowest`](QueueBuilder::lowest).
    ///
    /// May block the first time. After [`WorkerPools::shutdown`](crate::WorkerPools::shutdown) it is a queue that takes
    /// nothing, as this one.
    #[must_use]
    pub fn below(&self) -> Workqueue {
        if self.shared().traits.is_below {
            return self.clone();
        }
        if let Some(below) = &*self.inner.below.lock() {
            return below.clone();
        }
        // With no lock held: making a queue may come to the user's spawn handler.
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
        // They may have changed while it was made.
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

    /// Has the queue below get the attributes, if there is one.
    pub(crate) fn tell_below(&self) {
        let below = self.inner.below.lock();
        if let Some(below) = &*below {
            // Read under the lock, so that the last one to come here tells the latest.
            let attributes = Attributes { max_active: 0, ..self.attributes() };
            if let Err(error) = below.set_attributes(&attributes) {
                if !matches!(error, BuildError::Fixed { .. } | BuildError::ShutDown { .. }) {
                    tracing::warn!(queue = self.name(), %error, "the queue below keeps its attributes");
                }
            }
        }
    }
}
