//! A look at the pools that have more work than they can take, now and then while there are any. It
//! finds workers that keep their core from others, queues that need rescue, and stalled pools.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem;
use std::panic::Location;
use std::sync::{Arc, Weak};
use std::time::Duration;

use corewise_sync::sys::{self, CpuTime, Reading, Tid};

use super::Settings;
use super::policy::{
    self, LookResult, Pace, Progress, REMIND_EVERY, RETRY_AFTER, Sample, Standstill, TICK, Verdict,
    WorkerHistory, worth_a_report,
};
use crate::pool::exemption::Exemption;
use crate::pool::group::Group;
use crate::pool::worker::Worker;
use crate::task::running::RunSnapshot;

/// Maximum of threads whose files stay open, and their maximum share of the process's file limit.
/// With two files a thread they take 64 of 1,024 files. To open, read and close the files of
/// another thread costs a look some 15 us more.
const KEPT_OPEN: (u64, u64) = (128, 32);

/// The memory between looks.
pub(super) struct Watch {
    /// The pools that are examined.
    groups: Vec<Watched>,
    /// Time before which no look takes place.
    next: Duration,
    pace: Pace,
    /// Time before which no follower is reminded of the machine.
    remind: Duration,
    /// The last look found nothing.
    quiet: bool,
    looker: PoolScan,
}

struct Watched {
    group: Weak<Group>,
    /// The pools that were stuck at the last look, by number.
    pools: HashMap<usize, StarvedPool>,
}

/// A pool that has work and no worker for it.
struct StarvedPool {
    progress: Progress,
    ended: Standstill,
    /// The workers, by number.
    workers: HashMap<u32, WorkerHistory>,
}

/// A finding of a look.
pub(super) enum Finding {
    /// A worker was exempt, so that other work may start.
    Caught { shown: RunSnapshot, why: Exemption, hits: Option<u64> },
    /// The pool's work has no worker, and no thread can be made.
    Mayday { group: Arc<Group>, pool: usize },
    /// The pool makes no progress.
    Stalled { group: Arc<Group>, pool: usize, since: Duration },
}

impl Watch {
    pub(super) fn new(times: ThreadTimes) -> Watch {
        let (next, pace, remind) = (Duration::ZERO, Pace::NEW, Duration::ZERO);
        let looker = PoolScan { times, ..PoolScan::default() };
        Watch { groups: Vec::new(), next, pace, remind, quiet: false, looker }
    }

    pub(super) fn add(&mut self, group: &Arc<Group>) {
        self.groups.retain(|watched| watched.group.strong_count() > 0);
        self.groups.push(Watched { group: Arc::downgrade(group), pools: HashMap::new() });
    }

    /// Returns true if any pools are left.
    pub(super) fn any_left(&self) -> bool {
        self.groups.iter().any(|watched| watched.group.strong_count() > 0)
    }

    /// Returns true if any pool has work and no worker for it.
    pub(super) fn anything(&self) -> bool {
        let groups = self.groups.iter().filter_map(|watched| watched.group.upgrade());
        groups.into_iter().any(|group| (0..group.pools.len()).any(|pool| group.is_stuck(pool)))
    }

    /// Looks, if it is time. Returns its findings, and the time of the next look. Returns `None` if
    /// no pool needs a look any more.
    pub(super) fn look(
        &mut self,
        now: Duration,
        settings: &Settings,
    ) -> (Vec<Finding>, Option<Duration>) {
        if now < self.next {
            return (Vec::new(), Some(self.next));
        }
        let most = tick(settings);
        self.pace.begin(now, most);
        let mut any = false;
        for watched in &mut self.groups {
            let Some(group) = watched.group.upgrade() else { continue };
            for pool in 0..group.pools.len() {
                any |= self.looker.look((now, settings), &group, pool, &mut watched.pools);
            }
        }
        let (found, met) = (mem::take(&mut self.looker.found), mem::take(&mut self.looker.met));
        if any && now >= self.remind {
            self.remind = now + REMIND_EVERY;
            settings.reminder.iter().for_each(|follower| follower.ring());
        }
        // A storm of pushes meets a saturated pool at every other item: the alarm isn't lowered at
        // the first quiet look, or each of them would raise it again.
        let over = !any && self.quiet;
        self.quiet = !any && !over;
        if over {
            self.pace.rest(now);
        }
        self.next = now + self.pace.after(met, most);
        (found, (!over).then_some(self.next))
    }
}

/// Returns the longest distance between looks.
fn tick(settings: &Settings) -> Duration {
    match settings.cpu_intensive_after {
        Duration::ZERO => TICK,
        threshold => threshold.clamp(Duration::from_millis(1), TICK),
    }
}

/// The looker, its knowledge, and its findings of the present look.
#[derive(Default)]
struct PoolScan {
    hogs: LongFunctions,
    times: ThreadTimes,
    found: Vec<Finding>,
    met: LookResult,
}

impl PoolScan {
    /// Inspects one pool, and remembers its state if the pool is stuck. Returns whether it is.
    fn look(
        &mut self,
        (now, settings): (Duration, &Settings),
        group: &Arc<Group>,
        pool: usize,
        stuck: &mut HashMap<usize, StarvedPool>,
    ) -> bool {
        let Some(look) = group.look(pool) else {
            stuck.remove(&pool);
            return false;
        };
        self.met = self.met.max(LookResult::Busy);
        let Settings { cpu_intensive_after, stall_after, .. } = *settings;
        let cpus = group.pools[pool].spec.cpus.len();
        let cpu_intensive_after = policy::intensive_after(cpu_intensive_after, look.base < cpus);
        let items = group.pools[pool].ran().0;
        let StarvedPool { progress, ended, workers } =
            stuck.entry(pool).or_insert_with(|| StarvedPool {
                progress: Progress::first(now, look.taken),
                ended: Standstill::first(now, items),
                workers: HashMap::new(),
            });

        let mut before = mem::take(workers);
        let mut sleepers = Vec::new();
        let mut computing = 0;
        for (worker, shown) in look.at_work {
            let thread = self.times.read(&worker);
            let sample = Sample { at: now, instance: shown.instance, thread };
            let mut seen =
                before.remove(&worker.id).unwrap_or_else(|| WorkerHistory::first(sample));
            let verdict = seen.look(sample, cpu_intensive_after);
            if thread.is_some_and(|thread| thread.asleep) && !cpu_intensive_after.is_zero() {
                self.met = self.met.max(LookResult::Sleeper);
            } else {
                computing += 1;
            }
            workers.insert(worker.id, seen);
            match verdict {
                Verdict::Fine => {}
                Verdict::CpuIntensive => self.catch(group, &worker, shown, Exemption::Intensive),
                Verdict::Blocks(time) => sleepers.push((time, worker, shown)),
            }
        }
        let nothing_ended = ended.look(now, items);
        let asleep = &look.found_asleep;
        self.let_others_start(group, sleepers, nothing_ended, asleep, (computing, look.base));

        if look.refused.is_some_and(|when| now.saturating_sub(when) >= RETRY_AFTER) {
            group.retry(pool);
        }
        let (mayday, stalled) = progress.look(now, look.taken, look.helpless, stall_after);
        if mayday {
            self.found.push(Finding::Mayday { group: Arc::clone(group), pool });
        }
        if let Some(since) = stalled {
            self.found.push(Finding::Stalled { group: Arc::clone(group), pool, since });
        }
        true
    }

    /// Lets others start in the place of workers that sleep undeclared, if that is worth a thread.
    /// `sleepers` has the length of each one's sleep. Others already start beside the workers that
    /// were `found_asleep` earlier, and beside those that compute.
    fn let_others_start(
        &mut self,
        group: &Arc<Group>,
        mut sleepers: Vec<(Duration, Arc<Worker>, RunSnapshot)>,
        nothing_ended: Duration,
        found_asleep: &[Arc<Worker>],
        (computing, base): (usize, usize),
    ) {
        let replaces = |slept, more, computing| {
            policy::replaces(slept, nothing_ended, found_asleep.len() + more, (computing, base))
        };
        sleepers.retain(|(slept, ..)| replaces(*slept, 0, computing));
        if sleepers.is_empty() {
            return;
        }
        let awake = found_asleep.iter().filter(|worker| {
            // If that can't be known, it counts as asleep, as before.
            self.times.read(worker).is_some_and(|thread| !thread.asleep)
        });
        let computing = computing + awake.count();
        sleepers.sort_by_key(|(slept, ..)| std::cmp::Reverse(*slept));
        for (more, (slept, worker, shown)) in sleepers.into_iter().enumerate() {
            if replaces(slept, more, computing) {
                self.catch(group, &worker, shown, Exemption::Asleep);
            }
        }
    }

    /// Exempts a worker that was caught: other work may start.
    fn catch(
        &mut self,
        group: &Arc<Group>,
        worker: &Arc<Worker>,
        shown: RunSnapshot,
        why: Exemption,
    ) {
        if !group.exempt(worker, shown.instance, why) {
            return;
        }
        if why == Exemption::Asleep {
            self.met = LookResult::Blocker;
        }
        let hits = self.hogs.caught((shown.label.name)(), shown.label.site, why);
        self.found.push(Finding::Caught { shown, why, hits });
    }
}

/// Number of functions that are remembered: the kernel's `WCI_MAX_ENTS`. Later ones are counted in
/// their queue and not reported.
const FUNCTIONS: usize = 128;

/// The name of a function, the place where it was queued, and how it keeps its core.
type Function = (&'static str, &'static Location<'static>, Exemption);

/// Number of times that each function was caught.
#[derive(Debug, Default)]
struct LongFunctions {
    hits: HashMap<Function, u64>,
}

impl LongFunctions {
    /// Counts that it was caught once more. Returns how often so far, if that is worth a report.
    fn caught(
        &mut self,
        name: &'static str,
        site: &'static Location<'static>,
        why: Exemption,
    ) -> Option<u64> {
        let full = self.hits.len() == FUNCTIONS;
        let hits = match self.hits.entry((name, site, why)) {
            Entry::Vacant(_) if full => return None,
            entry => entry.or_default(),
        };
        *hits += 1;
        worth_a_report(*hits).then_some(*hits)
    }
}

#[cfg(test)]
pub(super) type ByHand = Box<dyn FnMut(&Worker) -> Option<Reading> + Send>;

/// The source of the figures of workers' threads: `/proc`. Its files stay open between looks if the
/// process has files to spare.
pub(super) struct ThreadTimes {
    /// The files of a thread, beside its number.
    open: Vec<(u32, CpuTime)>,
    /// Maximum of threads whose files stay open.
    most: usize,
    /// The entry that is checked next for a thread that has ended.
    hand: usize,
    /// Figures of a test, in place of the system's.
    #[cfg(test)]
    by_hand: Option<ByHand>,
}

impl Default for ThreadTimes {
    fn default() -> Self {
        let most = KEPT_OPEN.0.min(sys::limits().files / KEPT_OPEN.1) as usize;
        ThreadTimes {
            open: Vec::new(),
            most,
            hand: 0,
            #[cfg(test)]
            by_hand: None,
        }
    }
}

impl ThreadTimes {
    #[cfg(test)]
    pub(super) fn by_hand(read: ByHand) -> ThreadTimes {
        ThreadTimes { by_hand: Some(read), ..ThreadTimes::default() }
    }

    fn read(&mut self, worker: &Worker) -> Option<Reading> {
        #[cfg(test)]
        if let Some(read) = &mut self.by_hand {
            return read(worker);
        }
        self.of(worker.tid()?)
    }

    fn of(&mut self, tid: u32) -> Option<Reading> {
        if let Some(at) = self.open.iter().position(|(known, _)| *known == tid) {
            let reading = self.open[at].1.read();
            if reading.is_some() {
                return reading;
            }
            // The number has been given to another thread.
            drop(self.open.swap_remove(at));
        }
        let time = CpuTime::of(Tid::from_number(tid)).ok()?;
        let reading = time.read();
        if self.open.len() < self.most {
            self.open.push((tid, time));
        } else if !self.open.is_empty() {
            self.hand = (self.hand + 1) % self.open.len();
            let place = &mut self.open[self.hand];
            if place.1.read().is_none() {
                *place = (tid, time);
            }
        }
        reading
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "no /proc")]
    fn the_files_of_so_many_threads_stay_open_and_those_of_ended_threads_make_room() {
        if !sys::KERNEL_THREADS {
            return;
        }
        let mut times = ThreadTimes { most: 2, ..ThreadTimes::default() };
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let ended = std::thread::spawn(move || {
            tell.send(Tid::current().number()).unwrap();
            let _ = wait.recv();
        });
        let (other, own) = (told.recv().unwrap(), Tid::current().number());
        let kept =
            |times: &ThreadTimes| -> Vec<u32> { times.open.iter().map(|(tid, _)| *tid).collect() };
        assert!(times.of(other).is_some() && times.of(std::process::id()).is_some());
        assert!(times.of(own).is_some(), "without a place its files are opened each time");
        assert_eq!(kept(&times), [other, std::process::id()]);
        drop(go);
        ended.join().unwrap();
        // A thread ends a moment after it was joined.
        while !kept(&times).contains(&own) {
            assert!(times.of(own).is_some());
        }
        assert_eq!(kept(&times), [own, std::process::id()]);
        assert!(ThreadTimes::default().most <= 128);
    }

    #[test]
    fn automatic_cpu_intensive_is_reported_from_the_fourth_hit_with_doubling_back_off() {
        let mut hogs = LongFunctions::default();
        let here = Location::caller();
        let mut caught = |name| hogs.caught(name, here, Exemption::Intensive);
        let reports: Vec<u64> = (0..40).filter_map(|_| caught("f")).collect();
        assert_eq!(reports, [4, 8, 16, 32]);
        assert_eq!(caught("g"), None, "each function has its own count");
    }

    #[test]
    fn automatic_cpu_intensive_tracks_128_functions() {
        let mut hogs = LongFunctions::default();
        let names: Vec<&'static str> =
            (0..130).map(|n| &*Box::leak(format!("f{n}").into_boxed_str())).collect();
        for _ in 0..4 {
            for name in &names {
                let here = Location::caller();
                let reported = hogs.caught(name, here, Exemption::Asleep).is_some();
                let tracked = names[..128].contains(name);
                assert!(tracked || !reported, "{name} came too late");
            }
        }
        assert_eq!(hogs.hits.len(), 128);
        assert!(hogs.hits.iter().all(|(_, hits)| *hits == 4));
    }
}
