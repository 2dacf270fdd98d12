//! I/O schedulers: the order in which requests that wait for a tag get one.
//!
//! A scheduler is plain code that the runner of one hardware queue owns: it has no lock and knows
//! no thread. The runner feeds it from the software queues, and asks it for a request when it has a
//! tag for one, so the scheduler decides as late as it can. A request on the dispatch list (one
//! that the driver gave back, a flush) bypasses it, and goes first (rule 18).
//!
//! `none` is no scheduler: requests go in the order in which their CPUs' software queues are
//! emptied.

use std::time::Duration;

use corewise_sync::time::Stamp;

use sorted::{Handle, Sorted};

mod sorted;

/// The scheduler of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum IoScheduler {
    /// The absence of a scheduler: for devices that do as well in any order.
    #[default]
    None,
    /// An order by place on the device, in batches, with a time after which a request goes first:
    /// for devices that seek, and where writes mustn't hold up reads.
    Deadline(Deadline),
}

impl IoScheduler {
    /// Returns its name, the kernel's without the `mq-`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Deadline(_) => "deadline",
        }
    }

    /// Creates a scheduler without requests.
    pub(crate) fn make<R: Item + Send + 'static>(&self) -> Option<Box<dyn Scheduler<R>>> {
        match self {
            Self::None => None,
            Self::Deadline(tuning) => Some(Box::new(DeadlineScheduler::new(*tuning))),
        }
    }
}

/// A request, as a scheduler knows it.
pub(crate) trait Item: Sized {
    /// Returns true if it reads; else it changes something.
    fn is_read(&self) -> bool;
    /// Returns the first byte on the device.
    fn start(&self) -> u64;
    /// Returns the byte behind its last one.
    fn end(&self) -> u64;
    /// Takes a request in that touches this one at one of its ends, or gives it back if the two
    /// can't be one.
    fn merge(&mut self, other: Self) -> Result<(), Self>;
}

/// The order of the requests that wait in a hardware queue.
pub(crate) trait Scheduler<R>: Send {
    /// Takes a request in, or merges it with one that waits. The clock may be coarse.
    fn insert(&mut self, rq: R, now: Stamp);
    /// Takes out the request to be dispatched next; `None` only if none waits.
    fn next(&mut self, now: Stamp) -> Option<R>;
    /// Returns how many wait; merged ones are one.
    fn len(&self) -> usize;
}

#[cfg(test)]
mod tests;

// The `deadline` scheduler: by place on the device, in batches, reads first, and no request
// waits for ever.
//
// The kernel's `mq-deadline` decides in these steps, and so does this, for one class of priority.
// Requests of a direction go in the order of their offsets, `fifo_batch` at a time. When a batch is
// over, reads come before writes, but writes are passed over `writes_starved` times at most. The
// batch begins with the oldest request of its direction if that one's time is up, else where the
// last batch of that direction ended.
//
// **No request starves.** Let k requests of a direction be at least as old as one whose time is up.
// Each batch of that direction begins with one of them, and one of `writes_starved + 1` batches in
// a row is of that direction. So it is dispatched after at most
// `fifo_batch * (1 + k * (writes_starved + 1))` others, whatever else comes.
//
// Unlike in the kernel, each hardware queue has a scheduler of its own. Its runner alone touches
// the scheduler, so there is no lock. The kernel has one for the whole device, behind one lock. A
// device that gains by an order has one hardware queue. `writes_starved` is at least 1: the kernel
// takes 0, and then writes starve reads.
//
// Two keys of the kernel's have no counterpart. `prio_aging_expire` lets a lower class of I/O
// priority go in the end, and requests have no classes here. `async_depth`: in the kernel, a
// request holds a tag of the scheduler from its allocation on. So writers could take them all, and
// readers not even get in. Here, a request that waits for the scheduler holds no tag, and any
// number may wait.

/// The parameters of the `deadline` scheduler; the defaults are the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline {
    /// Time after which a waiting read goes before nearer ones. 500 ms.
    pub read_expire: Duration,
    /// Time after which a waiting change goes before nearer ones. 5 s.
    pub write_expire: Duration,
    /// Number of batches of reads that may be preferred in a row while writes wait; at least 1. 2.
    pub writes_starved: u32,
    /// Number of requests of a batch; at least 1. 16.
    pub fifo_batch: u32,
    /// True if a request may be merged in front of one that waits, too, and not only behind one.
    /// True.
    pub front_merges: bool,
}

impl Default for Deadline {
    fn default() -> Self {
        Self {
            read_expire: Duration::from_millis(500),
            write_expire: Duration::from_secs(5),
            writes_starved: 2,
            fifo_batch: 16,
            front_merges: true,
        }
    }
}

/// The reads or the changes.
struct Direction<R> {
    queued: Sorted<SchedEntry<R>>,
    expire: Duration,
    /// The start of the last request of this direction.
    latest: u64,
}

struct SchedEntry<R> {
    rq: R,
    deadline: Stamp,
}

/// The requests that wait, and the state of the batch.
pub(crate) struct DeadlineScheduler<R> {
    tuning: Deadline,
    reads: Direction<R>,
    writes: Direction<R>,
    /// True if the batch is of reads.
    batch_reads: bool,
    /// Number of requests of the batch that were dispatched.
    batching: u32,
    /// Number of batches of reads that were preferred since the last one of writes.
    starved: u32,
}

impl<R: Item> DeadlineScheduler<R> {
    pub(crate) fn new(tuning: Deadline) -> Self {
        let direction = |expire| Direction { queued: Sorted::new(), expire, latest: 0 };
        let tuning = Deadline {
            writes_starved: tuning.writes_starved.max(1),
            fifo_batch: tuning.fifo_batch.max(1),
            ..tuning
        };
        Self {
            reads: direction(tuning.read_expire),
            writes: direction(tuning.write_expire),
            batch_reads: true,
            batching: tuning.fifo_batch, // over
            starved: 0,
            tuning,
        }
    }

    fn direction(&mut self, reads: bool) -> &mut Direction<R> {
        if reads { &mut self.reads } else { &mut self.writes }
    }

    /// Begins a batch: sets its direction, and returns its first request.
    fn begin_batch(&mut self, now: Stamp) -> Option<Handle> {
        let (reads, writes) = (!self.reads.queued.is_empty(), !self.writes.queued.is_empty());
        let take_reads = match (reads, writes) {
            (false, false) => return None,
            (true, false) => true,
            (false, true) => false,
            (true, true) => {
                self.starved += 1;
                self.starved <= self.tuning.writes_starved
            }
        };
        if !take_reads {
            self.starved = 0;
        }
        self.batch_reads = take_reads;
        self.batching = 0;
        let direction = self.direction(take_reads);
        let oldest = direction.queued.oldest()?;
        let expired = direction.queued.get(oldest).deadline <= now;
        if expired { Some(oldest) } else { direction.next().or(Some(oldest)) }
    }
}

impl<R: Item> Direction<R> {
    /// Returns the next one by place.
    fn next(&self) -> Option<Handle> {
        self.queued.at_or_after(self.latest)
    }

    /// Joins a request to one that waits and that it touches; gives it back if there is none.
    fn merge(&mut self, rq: R, front: bool) -> Result<(), R> {
        let (start, end) = (rq.start(), rq.end());
        let mut rq = rq;
        if let Some(at) = self.queued.before(start) {
            if self.queued.get(at).rq.end() == start {
                match self.queued.get_mut(at).rq.merge(rq) {
                    Ok(()) => {
                        self.close_gap(at);
                        return Ok(());
                    }
                    Err(back) => rq = back,
                }
            }
        }
        if front {
            if let Some(at) = self.queued.at_or_after(end) {
                if self.queued.get(at).rq.start() == end {
                    self.queued.get_mut(at).rq.merge(rq)?;
                    self.queued.rekey(at, start);
                    return Ok(());
                }
            }
        }
        Err(rq)
    }

    /// Merges a request that has grown at its end with the next one, if they touch now: the two
    /// become one, as old as the older.
    fn close_gap(&mut self, at: Handle) {
        let end = self.queued.get(at).rq.end();
        let Some(next) = self.queued.at_or_after(end) else { return };
        if next == at || self.queued.get(next).rq.start() != end {
            return;
        }
        // The older one's place by age stays, and by its age it has the earlier deadline.
        let (one, other) = (self.queued.get(at).deadline, self.queued.get(next).deadline);
        let (stays, goes) = if one <= other { (at, next) } else { (next, at) };
        let start = self.queued.get(at).rq.start();
        let SchedEntry { rq, deadline } = self.queued.lift(goes);
        match self.queued.get_mut(stays).rq.merge(rq) {
            Ok(()) => {
                self.queued.forget(goes);
                self.queued.rekey(stays, start);
            }
            // The two don't go together after all, and nothing has changed.
            Err(rq) => self.queued.put_back(goes, SchedEntry { rq, deadline }),
        }
    }
}

impl<R: Item + Send> Scheduler<R> for DeadlineScheduler<R> {
    fn insert(&mut self, rq: R, now: Stamp) {
        let front = self.tuning.front_merges;
        let direction = self.direction(rq.is_read());
        if let Err(rq) = direction.merge(rq, front) {
            let deadline = now.plus(direction.expire);
            direction.queued.insert(rq.start(), SchedEntry { rq, deadline });
        }
    }

    fn next(&mut self, now: Stamp) -> Option<R> {
        let goes_on = self.batching < self.tuning.fifo_batch;
        let next = if goes_on { self.direction(self.batch_reads).next() } else { None };
        let at = next.or_else(|| self.begin_batch(now))?;
        self.batching += 1;
        let direction = self.direction(self.batch_reads);
        let rq = direction.queued.remove(at).rq;
        direction.latest = rq.start();
        Some(rq)
    }

    fn len(&self) -> usize {
        self.reads.queued.len() + self.writes.queued.len()
    }
}
