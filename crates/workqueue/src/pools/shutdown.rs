//! The end of the pools: its waits, and its report if they take long.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corewise_sync::sys::Tid;
use corewise_sync::{context, hint, time};

use super::WorkerPools;
use crate::error::quietly;
use crate::pool::ending::WaitResult;
use crate::pool::group::Group;
use crate::pool::spawn::Limit;
use crate::pool::worker::Worker;
use crate::task::running;
use crate::task::running::RunSnapshot;
use crate::timekeeper::rescuer::Rescuer;
use crate::timekeeper::stall::ItemReport;

/// The rest of a shutdown whose time ran out: the pools aren't shut down. See
/// [`WorkerPools::shutdown_timeout`]. [`Display`](fmt::Display) writes it as some lines of text.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Unfinished {
    /// Time that the shutdown waited.
    pub waited: Duration,
    /// Items that run, the longest first.
    pub running: Vec<StillRunning>,
    /// Number of items that wait for a worker, or for the one before them in an ordered or limited
    /// queue.
    pub waiting: u64,
    /// Threads beside the pools that haven't ended: the timekeeper's (`cw-time`), rescuers'
    /// (`cw-r-` and the queue's name) with their items, `cw-follow`.
    pub threads: Vec<String>,
}

/// An item that hasn't ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StillRunning {
    /// Its queue and function, and its thread.
    pub item: ItemReport,
    /// Lower bound of the time that the instance has run: since its blocking region began, or since
    /// the shutdown was asked for. Zero if the instance began later and isn't in a region.
    pub for_at_least: Duration,
}

impl fmt::Display for StillRunning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.item.fmt(f)?;
        match self.for_at_least {
            Duration::ZERO => Ok(()),
            time => write!(f, ", for at least {time:.1?}"),
        }
    }
}

impl fmt::Display for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unfinished { waited, running, waiting, threads } = self;
        let (running_items, n) = (running.len(), threads.len());
        let first = match (running_items, *waiting, n) {
            (1.., ..) => "the running items must return first",
            (0, 1.., _) => "a worker has to take what waits, and run it",
            (0, 0, 1..) => "these threads must end first",
            (0, 0, 0) => "the last workers are about to leave, which takes a moment",
        };
        write!(
            f,
            "the worker pools are not shut down after {waited:.1?}: items: {running_items} running, \
             {waiting} waiting; other threads left: {n}; {first}"
        )?;
        running.iter().try_for_each(|item| write!(f, "\n  {item}"))?;
        threads.iter().try_for_each(|thread| write!(f, "\n  {thread}"))
    }
}

impl std::error::Error for Unfinished {}

/// A worker: of which group, of which of its pools, and its number.
type Key = (usize, usize, u32);

/// The instances that ran when a shutdown was asked for.
type RunningBefore = HashMap<Key, u64>;

impl WorkerPools {
    /// Takes no more work, lets the workers run what is queued, and waits until all have left and
    /// their threads have ended. A work item may call it. It then doesn't wait for its own worker,
    /// nor for one whose item has called it too, nor for the threads beside the pools (the
    /// timekeeper's, the rescuers', `cw-follow`). These end by themselves. Several threads may call
    /// it at once, and each of them waits; one of them joins the threads.
    ///
    /// Later queueing is refused: `queue` returns
    /// [`QueueError::Closed`](crate::QueueError::Closed), and a spawned closure ends as cancelled.
    /// The calling thread drops spawned futures that wait to be woken, which end as cancelled too.
    /// A held item may be let through only afterwards, by a thread that still cancels the item
    /// before it: that item ends as cancelled. So nothing runs once this has returned, unless a
    /// work item called it. May block.
    ///
    /// It waits for ever for an item that never returns, and for the items behind it. Each time
    /// that [`stall_after`](crate::PoolsBuilder::stall_after) has passed, it logs the items that
    /// are left. [`WorkerPools::shutdown_timeout`] has a limit.
    #[track_caller]
    pub fn shutdown(&self) {
        // In a model no time passes.
        let stall_after = self.inner.keeper.stall_after();
        let patience = stall_after.filter(|_| !hint::IN_MODEL);
        let began = time::now();
        while let Err(left) = self.end(began, patience, true) {
            quietly(|| tracing::warn!("{left}"));
        }
    }

    /// Shuts the pools down as [`WorkerPools::shutdown`] does, but waits at most `timeout`. If the
    /// pools end in time, the call returns as that does, but doesn't wait for the destructors of
    /// thread-local values of workers that have left.
    ///
    /// Otherwise the pools stay closed. Their workers finish the queued items and then leave, and
    /// either call may be made again. So a program may end although an item hangs: a callback of a
    /// device, say, that a shutdown of devices has skipped. May block.
    ///
    /// # Errors
    /// [`Unfinished`] names the rest when the time is up.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use corewise_topology::Machine;
    /// # use corewise_workqueue::{WorkerPools, Workqueue};
    /// # let pools = WorkerPools::new(&Machine::live()?);
    /// # let queue = Workqueue::builder("backup").build(&pools)?;
    /// drop(queue.spawn(|| println!("quick")));
    /// if let Err(left) = pools.shutdown_timeout(Duration::from_secs(60)) {
    ///     eprintln!("{left}");
    ///     std::process::exit(1);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn shutdown_timeout(&self, timeout: Duration) -> Result<(), Unfinished> {
        self.end(time::now(), Some(timeout), false)
    }

    /// Shuts down, and waits up to the limit. `began` is the time of the first request for it.
    #[track_caller]
    fn end(
        &self,
        began: Instant,
        timeout: Option<Duration>,
        joins: bool,
    ) -> Result<(), Unfinished> {
        let groups = self.inner.close();
        self.inner.keeper.cancel_if(|_| true);
        let asked = time::now();
        let until = timeout.and_then(|timeout| asked.checked_add(timeout));
        let before: RunningBefore = match until {
            Some(_) => running(&groups).map(|(key, _, shown)| (key, shown.instance)).collect(),
            None => RunningBefore::new(),
        };
        let limit = Limit { until, joins };
        let ended = context::blocking("WorkerPools::shutdown", || self.end_all(&groups, limit));
        ended.map_err(|threads| {
            let now = time::now();
            let (waited, seen) = (now.duration_since(began), now.duration_since(asked));
            self.unfinished(&groups, &before, (waited, seen), threads)
        })
    }

    /// Waits for all workers and threads. Returns an error with the threads beside the pools that
    /// haven't ended.
    fn end_all(&self, groups: &[Arc<Group>], limit: Limit) -> Result<(), Vec<String>> {
        let own = groups.iter().find(|group| group.enter_join());
        // Workers that leave may make one in another pool, so this waits until one look finds that
        // all have left.
        let wait = || {
            loop {
                let left = groups.iter().map(|group| group.wait_left(own.is_some(), limit.until));
                match left.max() {
                    Some(WaitResult::Long) => {}
                    Some(WaitResult::InVain) => return Err(Vec::new()),
                    Some(WaitResult::Not) | None => return Ok(()),
                }
            }
        };
        let left = wait();
        if let Some(own) = own {
            own.exit_join();
        }
        left?;
        let queues = self.queues();
        let rescuers = || queues.iter().filter_map(|queue| queue.rescuer());
        let by_item = own.is_some() || running::current(|job| job.is_some());
        if !by_item {
            // Their last items may let held ones through, and these are run.
            late(rescuers().map(|rescuer| rescuer.end(limit)))?;
            // Seal, and look again: an item that had just got a worker ends before this returns.
            groups.iter().for_each(|group| group.seal());
            wait()?;
        }
        if limit.joins {
            groups.iter().for_each(|group| group.join_ending());
        }
        let follower = self.inner.follower.as_ref();
        if by_item {
            // One of them may have called this too, and wait for the worker that runs this item.
            // They end by themselves.
            rescuers().for_each(Rescuer::stop);
            follower.into_iter().for_each(|follower| follower.stop());
            return Ok(());
        }
        let ends = [self.inner.keeper.end(limit), follower.map_or(Ok(()), |f| f.end(limit))];
        late(ends.into_iter())
    }

    /// Returns the rest after this time; running items count from the first look.
    fn unfinished(
        &self,
        groups: &[Arc<Group>],
        before: &RunningBefore,
        (waited, seen): (Duration, Duration),
        threads: Vec<String>,
    ) -> Unfinished {
        let queues = self.queues();
        let name = |id| self.inner.keeper.name_of(id);
        let own = Tid::current().number();
        let (mut running, mut here) = (Vec::new(), 0);
        for (key, worker, shown) in self::running(groups) {
            if worker.tid() == Some(own) {
                here = 1;
                continue;
            }
            let same = before.get(&key) == Some(&shown.instance);
            let seen = if same { seen } else { Duration::ZERO };
            running.push(StillRunning {
                item: ItemReport::of(&worker, shown.label, name),
                for_at_least: seen.max(groups[key.0].blocked_for(&worker).unwrap_or_default()),
            });
        }
        running.sort_by_key(|item| std::cmp::Reverse(item.for_at_least));
        let open: u64 = queues.iter().map(|queue| queue.in_flight()).sum();
        let by_rescuers = queues.iter().filter_map(|queue| queue.rescuer()?.runs());
        let waiting = open.saturating_sub((running.len() + here + by_rescuers.count()) as u64);
        Unfinished { waited, running, waiting, threads }
    }
}

/// Returns the running instances.
fn running(groups: &[Arc<Group>]) -> impl Iterator<Item = (Key, Arc<Worker>, RunSnapshot)> {
    let pools = groups.iter().enumerate().flat_map(|(at, group)| {
        (0..group.pools.len()).map(move |pool| (at, pool, group.running(pool)))
    });
    pools.flat_map(|(at, pool, running)| {
        running.into_iter().map(move |(worker, shown)| ((at, pool, worker.id), worker, shown))
    })
}

/// Returns the threads that haven't ended in time as an error, if there are any.
fn late(ends: impl Iterator<Item = Result<(), String>>) -> Result<(), Vec<String>> {
    let late: Vec<String> = ends.filter_map(Result::err).collect();
    if late.is_empty() { Ok(()) } else { Err(late) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timekeeper::stall::Activity;

    #[test]
    fn what_is_left_says_what_has_to_happen_first_and_names_no_item_where_none_is_left() {
        let left = |waiting, threads: &[&str]| {
            let threads = threads.iter().map(|&name| name.to_owned()).collect();
            let left = Unfinished { waited: Duration::ZERO, running: Vec::new(), waiting, threads };
            let text = left.to_string();
            text.rsplit_once("; ").map(|(_, first)| first.to_owned())
        };
        let says = |text: &str| Some(text.to_owned());
        assert_eq!(left(0, &[]), says("the last workers are about to leave, which takes a moment"));
        assert_eq!(left(0, &["cw-time"]), says("these threads must end first\n  cw-time"));
        assert_eq!(left(3, &[]), says("a worker has to take what waits, and run it"));
    }

    #[test]
    fn an_item_that_was_just_seen_to_run_is_shown_without_a_time() {
        let (site, queue) = (std::panic::Location::caller(), String::from("q"));
        let item =
            ItemReport { queue, function: "f", site, thread: None, doing: Activity::Running };
        let at_least = |for_at_least| StillRunning { item: item.clone(), for_at_least }.to_string();
        assert_eq!(at_least(Duration::ZERO), item.to_string());
        assert!(at_least(Duration::from_secs(2)).ends_with("runs, for at least 2.0s"));
    }
}
