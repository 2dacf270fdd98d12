//! The timekeeper: it fires timers, and inspects pools now and then. Read `README.md` beside this
//! file first: it has the steps by name.
//!
//! Lock order: `watch`, then a pool's lock; `state` is taken last. Users' code is called under
//! none, and a subscriber of `tracing` is the user's.
//!
//! Pools and their timekeeper know of a queue only what [`Registered`] has: they lie below it.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::heap::Heap;
use corewise_sync::{CachePadded, CleanAt, Mutex, MutexGuard, hint, text, time};
use delayed::Delayed;
use policy::RETRY_AFTER;
use watch::{Finding, ThreadTimes, Watch};

use crate::error::{quietly, shielded};
use crate::pool::alarm::{Alarm, Keeper, PoolKeeper};
use crate::pool::exemption::Exemption;
use crate::pool::group::Group;
use crate::pool::spawn::{self, Limit, ServiceThread};
use crate::report::{Counters, QueueDump};
use crate::timekeeper::follow::Reminder;
use crate::timekeeper::rescuer::Rescuer;
use crate::timekeeper::stall::StallReport;

pub(crate) mod delayed;
#[cfg_attr(not(target_os = "linux"), path = "unfollowed.rs")]
pub(crate) mod follow;
mod policy;
pub(crate) mod rescuer;
pub(crate) mod stall;
#[cfg(test)]
mod stepped;
#[cfg(test)]
mod stepped_delayed;
#[cfg(test)]
mod stepped_rescue;
mod watch;

#[cfg(test)]
use corewise_sync::atomic::AtomicU64;

/// Time that a pool with work waiting may make no progress before that is reported.
pub const DEFAULT_STALL_AFTER: Duration = Duration::from_secs(30);
/// Time that an item may compute without a pause before other work may start beside it: the
/// kernel's `cpu_intensive_thresh_us`.
pub const DEFAULT_CPU_INTENSIVE_AFTER: Duration = Duration::from_millis(10);

/// The settings that users choose.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) stall_after: Duration,
    pub(crate) cpu_intensive_after: Duration,
    pub(crate) on_stall: Option<Arc<OnStall>>,
    /// The bell that rings each second in which work has to wait: the machine's limits may have
    /// changed.
    pub(crate) reminder: Option<Arc<Reminder>>,
}

type OnStall = dyn Fn(&StallReport) + Send + Sync;

impl Default for Settings {
    fn default() -> Self {
        Settings {
            stall_after: DEFAULT_STALL_AFTER,
            cpu_intensive_after: DEFAULT_CPU_INTENSIVE_AFTER,
            on_stall: None,
            reminder: None,
        }
    }
}

/// The clock, which tells the time since the pools were made.
enum Clock {
    Real(Instant),
    /// A: driven by hand, in nanoseconds.
    #[cfg(test)]
    ByHand(AtomicU64),
}

impl Clock {
    fn now(&self) -> Duration {
        match self {
            Clock::Real(origin) => time::now().saturating_duration_since(*origin),
            #[cfg(test)]
            Clock::ByHand(now) => Duration::from_nanos(now.load(Ordering::Relaxed)),
        }
    }
}

/// The timekeeper of some worker pools.
pub(crate) struct Timekeeper {
    alarm: Arc<CachePadded<Alarm>>,
    /// I: real, or driven by hand.
    clock: Clock,
    /// I: no thread is made: a test does its work by hand.
    by_hand: bool,
    settings: Settings,
    /// A: true if any queue has, or had, a rescuer.
    calls: AtomicBool,
    /// L: is the lock; guards the list of the queues. Not taken together with others.
    pub(crate) queues: Mutex<Queues>,
    /// L: is the lock; guards the memory between looks at the pools.
    watch: Mutex<Watch>,
    /// I: niceness of the thread that made the pools.
    niceness: i32,
    /// L: is the lock; guards the thread, and its work.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The thread, once it was needed.
    thread: Option<Arc<ServiceThread>>,
    /// True if the thread has to end, or has ended, if there was one.
    over: bool,
    /// The pools were closed: no more timers.
    closed: bool,
    /// Time when the system refused a thread, if it did.
    refused: Option<Duration>,
    timers: Heap<Delayed>,
}

impl Timekeeper {
    /// Starts no thread: the first that needs it does. (A model of every schedule has a model of
    /// its own for it.)
    pub(crate) fn new(settings: Settings) -> Arc<Timekeeper> {
        Self::with(settings, Clock::Real(time::now()), hint::EVERY_SCHEDULE)
    }

    /// Creates one without a thread, and with a clock that stands still until it is
    /// [advanced](Self::advance).
    #[cfg(test)]
    pub(crate) fn by_hand(settings: Settings) -> Arc<Timekeeper> {
        Self::with(settings, Clock::ByHand(AtomicU64::new(0)), true)
    }

    /// Creates one without a thread, and with made-up figures of the workers' threads.
    #[cfg(test)]
    pub(crate) fn with_times(settings: Settings, times: watch::ByHand) -> Arc<Timekeeper> {
        let keeper = Self::by_hand(settings);
        *keeper.watch.lock() = Watch::new(ThreadTimes::by_hand(times));
        keeper
    }

    /// Moves the clock that is driven by hand, and does the work that is due then. Returns whether
    /// there is work later.
    #[cfg(test)]
    pub(crate) fn advance(self: &Arc<Self>, by: Duration) -> bool {
        if let Clock::ByHand(now) = &self.clock {
            let by = u64::try_from(by.as_nanos()).expect("a test's time");
            now.fetch_add(by, Ordering::Relaxed);
        }
        loop {
            let now = self.now();
            match self.tick(now) {
                Some(next) if next <= now => {}
                next => return next.is_some(),
            }
        }
    }

    fn with(settings: Settings, clock: Clock, by_hand: bool) -> Arc<Timekeeper> {
        Arc::new(Timekeeper {
            alarm: Arc::new(CachePadded::new(Alarm::new())),
            clock,
            by_hand,
            settings,
            calls: AtomicBool::new(false),
            niceness: spawn::niceness(),
            queues: Mutex::default(),
            watch: Mutex::new(Watch::new(ThreadTimes::default())),
            state: Mutex::default(),
        })
    }

    /// Adds pools to look at when they have more work than they can take.
    pub(crate) fn look_after(&self, group: &Arc<Group>) {
        self.watch.lock().add(group);
    }

    fn queue(&self, id: u64) -> Option<Arc<dyn Registered>> {
        self.queues.lock().get(id)
    }

    /// Returns the name of the queue with this number; empty if it is gone.
    pub(crate) fn name_of(&self, queue: u64) -> String {
        self.queue(queue).map_or_else(String::new, |queue| queue.name().to_owned())
    }

    /// Returns the time after which work without progress is reported, if ever.
    pub(crate) fn stall_after(&self) -> Option<Duration> {
        Some(self.settings.stall_after).filter(|after| !after.is_zero())
    }

    /// Returns the timekeeper as pools know it.
    pub(crate) fn of_pools(self: &Arc<Self>) -> Keeper {
        Keeper { alarm: Arc::clone(&self.alarm), keeper: Arc::clone(self) as _ }
    }

    /// Returns the state if the thread exists; makes the thread if need be. With `for_timers`, only
    /// if the pools aren't closed either, which ends timers. It logs a failure to make the thread
    /// with no lock held.
    fn staffed(self: &Arc<Self>, for_timers: bool) -> Option<MutexGuard<'_, State>> {
        let mut state = self.state.lock();
        if state.over || for_timers && state.closed {
            return None;
        }
        if self.by_hand || state.thread.is_some() {
            return Some(state);
        }
        if state.refused.is_some_and(|when| !self.may_retry(when)) {
            return None;
        }
        let its = Arc::clone(self);
        let run = move || {
            spawn::run_anywhere(its.niceness);
            spawn::wake_on_time();
            its.run();
        };
        match ServiceThread::spawn("cw-time".into(), run) {
            Ok(thread) => {
                state.thread = Some(Arc::new(thread));
                Some(state)
            }
            Err(error) => {
                state.refused = Some(self.now());
                drop(state);
                quietly(|| {
                    tracing::error!(
                        %error,
                        "cannot start the timekeeper's thread: stuck work is not noticed"
                    );
                });
                None
            }
        }
    }

    /// Runs the thread's body.
    fn run(self: Arc<Self>) {
        loop {
            let now = self.clock.now();
            let mut next = None;
            // The code in there catches the panics of users' code; one of ours must not end it.
            shielded("the timekeeper", || next = self.tick(now));
            if self.is_over() {
                return;
            }
            self.alarm.rest(next.map(|at| at.saturating_sub(now)));
        }
    }

    fn is_over(&self) -> bool {
        let State { over, closed, .. } = *self.state.lock();
        over || closed && !self.watch.lock().any_left()
    }

    /// Does the work that is due. Returns the time of the next work.
    pub(crate) fn tick(self: &Arc<Self>, now: Duration) -> Option<Duration> {
        self.fire(now);
        let look = if self.alarm.is_raised() { self.look(now) } else { None };
        let timer = self.state.lock().timers.first();
        look.into_iter().chain(timer).min()
    }

    /// Inspects the pools. Returns the time of the next look, if there is one.
    fn look(&self, now: Duration) -> Option<Duration> {
        let (found, next) = {
            let mut watch = self.watch.lock();
            let (found, next) = watch.look(now, &self.settings);
            // Lower and Relook.
            let again = next.is_none() && !self.alarm.lower(|| watch.anything());
            (found, if again { Some(now) } else { next })
        };
        for found in found {
            self.tell(found);
        }
        next
    }

    /// Passes on the findings of a look.
    fn tell(&self, found: Finding) {
        match found {
            Finding::Caught { shown, why, hits } => {
                let queue = self.queue(shown.label.queue);
                if let Some(counters) = queue.as_ref().map(|queue| queue.counters()) {
                    let counter = match why {
                        Exemption::Asleep => &counters.blocked_untold,
                        _ => &counters.cpu_intensive,
                    };
                    counter.fetch_add(1, Ordering::Relaxed);
                }
                let Some(hits) = hits else { return };
                let name = queue.as_ref().map_or("", |queue| queue.name());
                let (function, site) = (text::name((shown.label.name)()), shown.label.site);
                let said = match why {
                    Exemption::Asleep => {
                        "blocks without saying so: wrap the blocking call in `blocking`"
                    }
                    _ => "computes for long: say so with `context::long_running`",
                };
                // This is for the author of the item, not for an operator.
                tracing::debug!(queue = name, %function, %site, hits, "a work item {said}");
            }
            Finding::Mayday { group, pool } => {
                let queues = group.waiting_queues(pool).into_iter().filter_map(|id| self.queue(id));
                queues.for_each(|queue| Rescuer::call(&queue, &group, pool));
            }
            Finding::Stalled { group, pool, since } => {
                let report = StallReport::of(&group, pool, since, |id| self.name_of(id));
                tracing::error!("a worker pool is stalled: {report}");
                if let Some(callback) = &self.settings.on_stall {
                    shielded("the callback for stalls", || callback(&report));
                }
            }
        }
    }

    /// Prepares for calls of a rescuer.
    ///
    /// # Errors
    /// No thread can be made that would call it.
    pub(crate) fn will_call(self: &Arc<Self>) -> io::Result<()> {
        // Relaxed: a pool that misses it makes a thread now, and is examined once that has failed.
        self.calls.store(true, Ordering::Relaxed);
        let closed = self.state.lock().closed;
        if closed || self.staffed(false).is_some() {
            return Ok(());
        }
        Err(io::Error::other("cannot start the timekeeper's thread, which calls the rescuer"))
    }

    /// Refuses further timers; the thread ends once the pools are gone.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.alarm.ring();
    }

    /// Ends the thread, and waits for it, unless it is the calling one; returns its name if the
    /// time is up first. May block.
    pub(crate) fn end(&self, limit: Limit) -> Result<(), String> {
        let thread = {
            let mut state = self.state.lock();
            state.over = true;
            state.thread.clone()
        };
        self.alarm.ring();
        thread.map_or(Ok(()), |thread| thread.wait(limit))
    }
}

impl PoolKeeper for Timekeeper {
    #[cold]
    fn wake(self: Arc<Self>) {
        if self.staffed(false).is_some() {
            self.alarm.ring();
        } else {
            // The next one that asks tries again.
            self.alarm.lower(|| false);
        }
    }

    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn may_retry(&self, refused: Duration) -> bool {
        self.now().saturating_sub(refused) >= RETRY_AFTER
    }

    fn has_rescuers(&self) -> bool {
        self.calls.load(Ordering::Relaxed)
    }

    fn group_gone(&self) {
        if self.state.lock().closed {
            self.alarm.ring();
        }
    }
}

/// The questions that a queue answers from below.
pub(crate) trait Registered: Send + Sync {
    /// Returns its number in its worker pools, never used again; not 0.
    fn id(&self) -> u64;
    /// Returns the name for reports.
    fn name(&self) -> &str;
    /// Returns the rescuer that runs its work if no worker can.
    fn rescuer(&self) -> Option<&Rescuer>;
    /// Returns the counters of the timekeeper and the rescuer.
    fn counters(&self) -> &Counters;
    /// Number of instances in flight a moment ago.
    fn in_flight(&self) -> u64;
    /// Divides the same maximum anew, if other CPUs can be used now: then `settle` has to follow.
    fn divide_again(&self);
    /// Refuses all further items. Held instances will still be let through: `settle` has to follow.
    fn close(&self);
    /// Lets instances through after one of these steps. No lock is held: this may have to make
    /// threads.
    fn settle(&self);
    /// Cancels the futures that wait to be woken: the queue takes nothing any more.
    fn cancel_waiting(&self);
    /// Describes it. `pool` numbers its pools: by the group's key, and the place in there.
    fn dump(&self, pool: &dyn Fn(usize, usize) -> Option<usize>) -> QueueDump;
}

/// The queues of some worker pools.
#[derive(Default)]
pub(crate) struct Queues {
    /// All queues, by number. Those that are gone are taken out now and then.
    all: BTreeMap<u64, Weak<dyn Registered>>,
    clean_at: CleanAt,
    pub(crate) closed: bool,
}

impl Queues {
    pub(crate) fn add(&mut self, queue: &Arc<dyn Registered>) {
        let clean = |all: &mut BTreeMap<_, Weak<dyn Registered>>| {
            all.retain(|_, one| one.strong_count() > 0)
        };
        self.clean_at.before_one_more(&mut self.all, BTreeMap::len, clean);
        self.all.insert(queue.id(), Arc::downgrade(queue));
    }

    /// Returns the queue with this number. The returned handle may be the last one: don't drop it
    /// under the lock.
    pub(crate) fn get(&self, id: u64) -> Option<Arc<dyn Registered>> {
        self.all.get(&id)?.upgrade()
    }

    /// Returns the existing queues, in the order of their numbers; as [`Queues::get`].
    pub(crate) fn alive(&self) -> Vec<Arc<dyn Registered>> {
        self.all.values().filter_map(Weak::upgrade).collect()
    }
}
