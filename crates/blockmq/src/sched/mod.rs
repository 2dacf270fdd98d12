//! I/O schedulers: in which order what waits for a tag gets one.
//!
//! A scheduler is plain code that the runner of one hardware queue owns: it has no lock and knows no thread. The
//! runner feeds it from the software queues, and asks it for a request when it has a tag for one, so that the
//! scheduler decides as late as it can. A request on the dispatch list (one that the driver gave back, a flush)
//! doesn't pass through it, and goes first (rule 18).
//!
//! `none` is no scheduler: requests go in the order in which their CPUs' software queues are emptied.

pub(crate) mod deadline;
mod sorted;

use corewise_sync::time::Stamp;

pub use deadline::Deadline;
use deadline::DeadlineScheduler;

/// Which scheduler a queue has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum IoScheduler {
    /// None: for devices that do as well in any order.
    #[default]
    None,
    /// By place on the device, in batches, with a time after which a request goes first: for devices that seek, and
    /// where writes mustn't hold up reads.
    Deadline(Deadline),
}

impl IoScheduler {
    /// Its name, the kernel's without the `mq-`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Deadline(_) => "deadline",
        }
    }

    /// A scheduler without requests.
    pub(crate) fn make<R: Item + Send + 'static>(&self) -> Option<Box<dyn Scheduler<R>>> {
        match self {
            Self::None => None,
            Self::Deadline(tuning) => Some(Box::new(DeadlineScheduler::new(*tuning))),
        }
    }
}

/// What a scheduler knows of a request.
pub(crate) trait Item: Sized {
    /// It reads; else it changes something.
    fn is_read(&self) -> bool;
    /// First byte on the device.
    fn start(&self) -> u64;
    /// The byte behind its last one.
    fn end(&self) -> u64;
    /// Takes a request in that touches this one at one of its ends, or gives it back where the two can't be one.
    fn merge(&mut self, other: Self) -> Result<(), Self>;
}

/// The order of what waits in a hardware queue.
pub(crate) trait Scheduler<R>: Send {
    /// Takes a request in, or merges it with one that waits. The clock may be coarse.
    fn insert(&mut self, rq: R, now: Stamp);
    /// The request to be dispatched next; `None` only where none waits.
    fn next(&mut self, now: Stamp) -> Option<R>;
    /// How many wait; merged ones are one.
    fn len(&self) -> usize;
}

#[cfg(test)]
mod tests;
