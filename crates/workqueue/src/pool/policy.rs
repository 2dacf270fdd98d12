//! The decisions of a pool, as pure functions of plain numbers: which worker wakes, when a thread
//! is made, when work may leave its pod. The mechanism (`pool/`) asks; nothing here touches a
//! thread.

use std::time::Duration;

use corewise_sync::Proof;
use corewise_topology::{CpuSet, Masks};

/// The counts that a pool's decisions depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    /// Worker threads, of any state, including one that is being made.
    pub(crate) total: usize,
    /// Parked, waiting for work.
    pub(crate) idle: usize,
    /// Inside a blocking region: they hold no core.
    pub(crate) blocked: usize,
    /// Runs an item that isn't counted: of a CPU-intensive queue, or caught by the timekeeper.
    pub(crate) intensive: usize,
    /// True if a worker was woken (or made) for work and hasn't taken any yet. At most one at a
    /// time (more if it is overdue): it wakes the next one itself if there is more.
    pub(crate) searching: bool,
    /// Number of workers that may hold a core at once: the CPUs of the pod.
    pub(crate) base: usize,
    /// Maximum of threads.
    pub(crate) max: usize,
    /// Number of active workers that are known to run one tiny item after the other.
    pub(crate) takers: usize,
    /// Number of takers that keep up with the queuers; more would only hinder each other. 0: not
    /// known.
    pub(crate) enough: usize,
}

impl Counts {
    /// Workers that hold a core, or are about to.
    pub(crate) fn active(&self) -> usize {
        self.total - self.idle - self.blocked - self.intensive
    }

    /// Returns whether a push should wake (or make) a worker of this pool. Every push asks this,
    /// through the published word.
    pub(crate) fn wake_on_push(&self) -> bool {
        !self.has_enough() && self.may_wake()
    }

    /// Returns true if a worker could be woken (or made).
    fn may_wake(&self) -> bool {
        !self.searching && self.has_core() && (self.idle > 0 || self.total < self.max)
    }

    /// Returns true if the workers that take from a stream of tiny items keep up with it, so that
    /// what waits is left to them. This holds until they report otherwise, or are found in a long
    /// item.
    pub(crate) fn has_enough(&self) -> bool {
        self.enough > 0 && self.takers >= self.enough
    }

    /// Returns true if there are more takers than needed: they hinder each other.
    pub(crate) fn has_too_many(&self) -> bool {
        self.enough > 0 && self.takers > self.enough
    }

    /// Returns true if the pod can't take more work now, so that it may overflow to another. A pod
    /// with a searching worker isn't saturated: that one is on its way.
    pub(crate) fn saturated(&self) -> bool {
        !self.searching && !self.may_wake()
    }

    /// Returns true if a core is free, and no worker can come for it. A thread that waits for an
    /// item of this pool should run the item then.
    pub(crate) fn is_short(&self) -> bool {
        self.saturated() && self.has_core()
    }

    /// Returns true if an active worker may take an item. It may not if others have taken all of
    /// the pod's cores. That happens after a blocking region ended while its replacement runs: one
    /// of them goes idle.
    pub(crate) fn may_take(&self) -> bool {
        self.active() <= self.base
    }

    /// Returns true if one more worker would have a core.
    pub(crate) fn has_core(&self) -> bool {
        self.active() < self.base
    }

    /// Returns true if a worker that starts an item, or is about to block, should make a spare
    /// worker first. This is the kernel's manager rule: no push ever has to make one (but the very
    /// first).
    pub(crate) fn wants_spare(&self) -> bool {
        self.idle == 0 && !self.searching && self.has_core() && self.total < self.max
    }

    /// Returns true if another searcher may be named for the work that waits, although one is on
    /// its way, and [overdue](is_overdue). That one may come from a CPU that has yet to wake up, or
    /// wait there behind another thread.
    pub(crate) fn may_hurry(&self) -> bool {
        self.searching && self.idle > 0 && self.has_core()
    }

    /// Returns true if an idle worker is more than the pod's cores need, so that it may leave after
    /// a while.
    pub(crate) fn surplus(&self) -> bool {
        self.total - self.blocked - self.intensive > self.base && self.idle > 1
    }
}

/// Returns true if a searcher is overdue, given the number of pushes that were left to it: another
/// one is named then, if there is an idle one. This happens each time that the pushes have doubled.
/// So nothing waits for a searcher that waits for its CPU, and a storm of pushes names few. Without
/// the rule, the latency on busy CPUs would be more than ten times as long.
pub(crate) fn is_overdue(pushes: u32) -> bool {
    pushes > 1 && pushes.is_power_of_two()
}

/// Returns true if a worker was kept from its CPU for too long, given the time since it was woken
/// or last looked out for work.
pub(crate) fn is_late(late: Duration) -> bool {
    late > LATE
}

/// Mostly a CPU of a virtual machine wakes up from deep sleep within this time; a slice behind
/// another thread is longer.
const LATE: Duration = Duration::from_millis(1);

/// Returns true if the workers of a pool give up their own CPUs, after one of the pool's CPUs had a
/// late worker, this long after the last [stream](is_stream). Never with two CPUs, where a worker
/// would wait on the other too, away from the cache lines that it knows. Nor amid streams: there
/// the thread that queues on a worker's CPU keeps the worker off it. Without the rule, a ping-pong
/// on busy CPUs would be hundreds of times slower. Without own CPUs, latency and throughput on two
/// CPUs would suffer.
pub(crate) fn roams(cpus: usize, streamed: Duration) -> bool {
    cpus > 2 && streamed >= Duration::from_millis(10)
}

/// Returns true if a worker that has roamed for this long gets its own CPU again. After a stream
/// its cache lines are worth finding again, and others leave it that CPU. Also, a disturbance
/// doesn't last for ever.
pub(crate) fn settles(streamed: bool, roamed: Duration) -> bool {
    streamed || roamed >= Duration::from_secs(1)
}

/// Returns true if this many items in a row, which took this time, were many and tiny.
pub(crate) fn is_stream(items: u64, took: Duration) -> bool {
    items >= TURN_ITEMS && took.as_micros() < u128::from(items) * 10
}

/// Number of workers that each pool may have beyond those that may hold a core, however many
/// threads the others have. So a few items that wait for others of their pool never keep it from
/// these.
const SPARE_WORKERS: usize = 8;

/// Returns true if one more thread may be made, given the number of `threads`, of `most`, for a
/// pool that then has `workers`, `base` of which may hold a core.
pub(crate) fn may_have_thread(threads: usize, most: usize, workers: usize, base: usize) -> bool {
    threads < most || workers <= base.saturating_add(SPARE_WORKERS)
}

/// Returns how many workers of a pool may wait for each other's forks in one chain, and let a thief
/// take one more. The pool may have `most` workers on this many CPUs. The others are for other
/// items.
pub(crate) fn longest_chain(most: usize, cpus: usize) -> usize {
    (most / 16).max(cpus)
}

/// The machine's CPUs that the pools of some queues are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WantedCpus<'a> {
    /// The CPUs for general work.
    Housekeeping,
    /// An explicit set, isolated or not.
    These(&'a CpuSet),
    /// Each CPU, isolated or not: bound work runs where it was queued.
    Own,
}

/// The CPUs that the workers of a pool run on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PoolHome {
    pub(crate) cpus: CpuSet,
    /// True if these are not CPUs of the pod, since it has no usable one.
    pub(crate) away: bool,
}

/// Returns where the workers of a pod run, as the machine is now: on the pod's CPUs that can be
/// used and are wanted. A pod that has none of these borrows from all that are wanted. Queues whose
/// CPUs are all gone, and bound work whose CPU is gone, borrow from the CPUs for general work.
/// These are the kernel's rules (`wq_calc_pod_cpumask`, `unbind_workers`).
pub(crate) fn home(pod: &CpuSet, wants: WantedCpus<'_>, masks: &Masks) -> PoolHome {
    let (wanted, otherwise) = match wants {
        WantedCpus::Housekeeping => (masks.housekeeping.clone(), None),
        WantedCpus::These(cpus) => (cpus.intersection(&masks.online), None),
        WantedCpus::Own => (masks.online.clone(), Some(&masks.housekeeping)),
    };
    let own = pod.intersection(&wanted);
    if !own.is_empty() {
        return PoolHome { cpus: own, away: false };
    }
    let elsewhere = match otherwise {
        Some(cpus) => cpus.clone(),
        None if wanted.is_empty() => masks.housekeeping.clone(),
        None => wanted,
    };
    PoolHome { cpus: elsewhere, away: true }
}

/// Returns how many workers of a pod may hold a core at once: as many as it has CPUs. If it borrows
/// CPUs: no more than the pod would have, and at least one.
pub(crate) fn base(pod: &CpuSet, home: &PoolHome) -> usize {
    pod.len().min(home.cpus.len()).max(1)
}

/// Returns how many workers of each pod may hold a core at once if the pods together keep to a
/// `limit`: a CPU quota, or what the user says. `pods` has the number of each without a limit
/// ([`base`]).
///
/// Each gets its share by its CPUs: together just the limit, and at least one, since what is
/// rounded off one pod goes to another. A pod that gets none still runs work that is for it alone,
/// one item at a time; but work that may run anywhere is for the others.
pub(crate) fn shares(limit: Option<usize>, pods: &[usize]) -> Vec<usize> {
    let total: usize = pods.iter().sum();
    let Some(limit) = limit.map(|limit| limit.max(1)).filter(|limit| *limit < total) else {
        return pods.to_vec();
    };
    let mut before = 0;
    let share = pods.iter().map(|pod| {
        let from = before * limit / total;
        before += pod;
        before * limit / total - from
    });
    share.collect()
}

/// Number of items for which a worker serves the list of its CPU and, if these are long, the time.
/// Then it checks whether another list is left alone. The line that it reads for that is written
/// with each item there.
pub(crate) const TURN_ITEMS: u64 = 64;
pub(crate) const TURN: Duration = Duration::from_millis(1);

/// Number of short items after which the worker reads the clock again: items may have become long.
/// A reading after each item would cost latency.
pub(crate) const LOOK_ITEMS: u64 = TURN_ITEMS / 2;

/// Returns true if this many items, which took this time, are short: a turn may have its maximum of
/// items.
pub(crate) fn are_short(items: u64, took: Duration) -> bool {
    items > 0 && took.as_nanos() < TURN.as_nanos() * u128::from(items) / u128::from(TURN_ITEMS)
}

/// Returns true if the turn is over after this many items, which took this time.
pub(crate) fn turn_is_over(items: u64, took: Duration) -> bool {
    items >= TURN_ITEMS || items > 0 && took >= TURN
}

/// Time that a worker spins if it has reason to. It is about the cost of waking two halted CPUs:
/// that of the waiter for its item and, from there, its own.
const SPIN: Duration = Duration::from_micros(100);
/// Longest sleep that would have been no sleep for a worker that spins: the time until it was
/// woken, and as much again until it ran.
const SHORT_SLEEP: Duration = Duration::from_micros(100);
/// Longest run until the next pause that is better handed to a worker that spins on another CPU
/// than to one that sleeps on this. The waiter's CPU isn't halted meanwhile.
const SHORT_RUN: Duration = Duration::from_micros(10);

/// The end of an idle time of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdleEnd {
    /// The worker found work while it spun.
    Spun,
    /// The worker was woken, this long after it ran out of work. `spun`: it had spun in vain
    /// before.
    Slept { for_so_long: Duration, spun: bool, from_here: bool },
}

/// The habit of a worker to spin before it sleeps: only while that pays. Without spinning, a hot
/// ping-pong would be several times slower; if the worker always spun, mixed work would take more
/// than twice the CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Habit(Proof);

impl Habit {
    pub(crate) const NEW: Habit = Habit(Proof::NEW);

    /// Returns how long the worker spins now.
    pub(crate) fn budget(self, idle: Idle) -> Duration {
        match idle {
            Idle::Sleep => Duration::ZERO,
            Idle::Hybrid if self.0.is_given() => SPIN,
            Idle::Hybrid => Duration::ZERO,
            Idle::Busy(time) => time,
        }
    }

    /// Learns from the last idle time. A worker woken from its own CPU (`from_here`) could not have
    /// spun there at that time.
    pub(crate) fn learn(&mut self, end: IdleEnd) {
        match end {
            IdleEnd::Spun => self.0.tried(true),
            IdleEnd::Slept { spun: true, .. } => self.0.tried(false),
            IdleEnd::Slept { for_so_long, from_here, .. } => {
                self.0.slept(!from_here && for_so_long <= SHORT_SLEEP);
            }
        }
    }
}

/// The habit of a worker whose work comes from its own CPU to yield once before it sleeps. The
/// queuing thread then continues without a system call to wake the worker, and the items that are
/// queued meanwhile are one batch. The worker yields only while that pays; else it would wait for
/// the CPU while its work waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shares(Proof);

impl Shares {
    pub(crate) const NEW: Shares = Shares(Proof::NEW);

    pub(crate) fn pays(self) -> bool {
        self.0.is_given()
    }

    /// Learns from a sleep of this length.
    pub(crate) fn slept(&mut self, for_so_long: Duration, from_here: bool) {
        self.0.slept(from_here && for_so_long <= SHORT_SLEEP);
    }

    /// Learns whether a yield paid.
    pub(crate) fn learn(&mut self, well: bool) {
        self.0.tried(well);
    }
}

/// Returns true if it paid to make way for this long, given the run time of the work that was
/// queued meanwhile.
pub(crate) fn made_way_well(waited: Duration, run: Duration) -> bool {
    waited <= SHORT_SLEEP || run >= waited / 8
}

/// Returns true if a worker that spins is the one to be given work, given the time of its last run.
/// Both extremes cost: if any spinning worker were given work, latency; if none were, throughput.
pub(crate) fn is_quick(run: Duration) -> bool {
    run <= SHORT_RUN
}

/// Returns true if a worker that finds nothing yields its CPU and looks again before it goes idle.
/// If it has run one item after the other, the thread that queues them may be waiting for this very
/// CPU. If the worker parked instead, the next push would wake it, and it would take the CPU from
/// the queuer for each item.
pub(crate) fn yields_before_idle(streak: u64, yields: u32) -> bool {
    streak >= STREAM && yields < 3
}

/// Number of items one after the other that make a stream.
const STREAM: u64 = 16;

/// The habit of a worker in the middle of a stream to make way (yield once) before it takes items
/// that were queued on another CPU. It yields if the last yield brought an item of its own CPU.
/// After each yield in vain, the worker omits twice as many yields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct YieldHabit {
    /// Number of yields that it omits now.
    not_now: u8,
    /// Number of yields that it omits after the next yield in vain.
    patience: u8,
}

impl YieldHabit {
    pub(crate) const NEW: YieldHabit = YieldHabit { not_now: 0, patience: 0 };

    pub(crate) fn makes_way(&mut self, streak: u64) -> bool {
        let now = self.not_now == 0;
        self.not_now = self.not_now.saturating_sub(1);
        now && streak >= STREAM
    }

    /// Learns whether a yield paid.
    pub(crate) fn learn(&mut self, well: bool) {
        self.patience = if well { 0 } else { self.patience.saturating_mul(2) | 1 };
        self.not_now = self.patience;
    }

    /// Returns the habit in one word.
    pub(crate) fn to_bits(self) -> u32 {
        u32::from_be_bytes([0, 0, self.not_now, self.patience])
    }

    pub(crate) fn from_bits(bits: u32) -> YieldHabit {
        let [_, _, not_now, patience] = bits.to_be_bytes();
        YieldHabit { not_now, patience }
    }
}

/// The policy of a worker without work before it sleeps: see
/// [`PoolsBuilder::idle`](crate::PoolsBuilder::idle).
///
/// To wake a thread that sleeps costs a system call and some 4 us on the same CPU. On another CPU,
/// in a virtual machine whose CPU was halted meanwhile, it costs 25 to 50 us. A worker that looks
/// out for work itself (it spins) takes it in less than a microsecond, and keeps a CPU busy
/// meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Idle {
    /// The worker sleeps at once. It burns nothing, and each hand-over costs a wake-up.
    Sleep,
    /// The worker spins for at most 100 us, about the cost of two threads waking each other. It
    /// spins only while that pays: after work has come to it twice within 100 us, each time from
    /// another CPU. Once it has spun in vain, it wants more such proof, twice as much each time. It
    /// stops at once if other threads want its CPU. The cost: 100 us of CPU each time that a row of
    /// such hand-overs ends. At rest it costs nothing.
    ///
    /// If work comes to it from its own CPU, within 100 us and again and again, it yields once
    /// before it sleeps. Items that are queued while the other threads of that CPU run then need no
    /// system call to wake the worker, and run in one go when those threads wait. If they don't
    /// wait, such work may wait for the CPU for some ms; each time that this happens, the worker
    /// wants twice as much proof as before.
    #[default]
    Hybrid,
    /// The worker spins for this long each time that it runs out of work. For machines, or sets of
    /// CPUs, that have nothing else to do: each worker burns a CPU for that time. It too gives way
    /// to other threads.
    Busy(Duration),
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewise_topology::Machine;

    fn set(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    /// Returns 8 CPUs; 6 and 7 are isolated, `offline` are offline.
    fn masks(offline: &str) -> Masks {
        let machine = Machine::synthetic("core:8 pu:1").unwrap();
        machine.set_isolated(&set("6-7"));
        for cpu in &set(offline) {
            machine.set_online(cpu, false).unwrap();
        }
        machine.masks()
    }

    #[test]
    fn workers_run_on_the_usable_cpus_of_their_pod_or_on_all_that_are_wanted() {
        let these = set("2,4-7");
        for (pod, wants, offline, cpus, away) in [
            ("0-3", WantedCpus::Housekeeping, "", "0-3", false),
            ("0-3", WantedCpus::Housekeeping, "1-2", "0,3", false),
            ("0-3", WantedCpus::Housekeeping, "0-3", "4-5", true),
            ("4-7", WantedCpus::Housekeeping, "", "4-5", false),
            ("6-7", WantedCpus::Housekeeping, "", "0-5", true),
            ("4-7", WantedCpus::These(&these), "", "4-7", false),
            ("0-3", WantedCpus::These(&these), "2", "4-7", true),
            ("0-3", WantedCpus::These(&these), "2,4-7", "0-1,3", true),
            ("6", WantedCpus::Own, "", "6", false),
            ("1", WantedCpus::Own, "1", "0,2-5", true),
        ] {
            let found = home(&set(pod), wants, &masks(offline));
            let wanted = PoolHome { cpus: set(cpus), away };
            assert_eq!(found, wanted, "{pod} {wants:?} without {offline}");
        }
    }

    #[test]
    fn a_pod_that_borrows_cpus_takes_no_more_of_them_than_it_had() {
        let home = |cpus| PoolHome { cpus: set(cpus), away: true };
        assert_eq!(base(&set("0-3"), &home("4-63")), 4);
        assert_eq!(base(&set("0-3"), &home("5")), 1);
        assert_eq!(base(&set("0-3"), &home("")), 1);
    }

    #[test]
    fn a_turn_is_over_after_many_items_or_a_long_one_and_never_before_the_first() {
        for (items, took, over) in [
            (0, Duration::ZERO, false),
            (0, Duration::from_secs(1), false),
            (1, TURN / 2, false),
            (1, TURN, true),
            (63, TURN / 2, false),
            (64, Duration::ZERO, true),
        ] {
            assert_eq!(turn_is_over(items, took), over, "{items} items in {took:?}");
        }
    }

    #[test]
    fn items_are_short_of_which_a_turn_has_room_for_all() {
        for (items, took, short) in [
            (0, Duration::ZERO, false),
            (1, TURN / 128, true),
            (1, TURN / 32, false),
            (8, TURN / 16, true),
            (8, TURN / 4, false),
        ] {
            assert_eq!(are_short(items, took), short, "{items} items in {took:?}");
        }
    }

    #[test]
    fn pods_share_a_limit_by_their_cpus() {
        for (limit, pods, wanted) in [
            (None, &[4, 4][..], &[4, 4][..]),
            (Some(8), &[4, 4], &[4, 4]),
            (Some(99), &[4, 4], &[4, 4]),
            (Some(1), &[2], &[1]),
            (Some(3), &[8], &[3]),
            (Some(2), &[4, 4, 4, 4], &[0, 1, 0, 1]),
            (Some(6), &[4, 4, 4, 4], &[1, 2, 1, 2]),
            (Some(8), &[4, 4, 4, 4], &[2, 2, 2, 2]),
            (Some(5), &[1, 9], &[0, 5]),
            (Some(3), &[1; 6], &[0, 1, 0, 1, 0, 1]),
            (Some(0), &[2, 2], &[0, 1]),
        ] {
            assert_eq!(shares(limit, pods), wanted, "{limit:?} of {pods:?}");
        }
        let many: Vec<usize> = (0..200).map(|n| 1 + n * 7 % 13).collect();
        let total: usize = many.iter().sum();
        for limit in 1..=total {
            let shares = shares(Some(limit), &many);
            assert!(shares.iter().zip(&many).all(|(share, pod)| share <= pod));
            assert_eq!(shares.iter().sum::<usize>(), limit);
        }
    }

    fn counts(total: usize, idle: usize, blocked: usize) -> Counts {
        Counts { total, idle, blocked, base: 2, max: 4, ..Counts::default() }
    }

    #[test]
    fn a_pool_is_short_where_a_core_is_free_and_no_worker_can_come() {
        assert!(counts(4, 0, 3).is_short());
        assert!(!counts(4, 0, 2).is_short(), "both cores are taken");
        assert!(!counts(4, 1, 3).is_short(), "one is idle");
        assert!(!counts(3, 0, 3).is_short(), "one can be made");
        assert!(!Counts { searching: true, ..counts(4, 0, 3) }.is_short(), "one is on its way");
    }

    #[test]
    fn a_cold_pool_makes_its_first_worker_on_the_first_push() {
        assert!(counts(0, 0, 0).wake_on_push());
    }

    #[test]
    fn a_worker_in_the_middle_of_a_stream_yields_a_few_times_before_it_goes_idle() {
        assert!(yields_before_idle(16, 0) && yields_before_idle(1_000, 2));
        assert!(!yields_before_idle(1_000, 3) && !yields_before_idle(15, 0));
    }

    #[test]
    fn a_worker_makes_way_again_and_again_where_that_brings_work_and_ever_less_where_it_does_not() {
        let mut yield_habit = YieldHabit::NEW;
        assert!(!yield_habit.makes_way(15), "no stream");
        for _ in 0..10 {
            assert!(yield_habit.makes_way(16));
            yield_habit.learn(true);
        }
        let mut between = Vec::new();
        for _ in 0..10 {
            let mut not = 0;
            while !yield_habit.makes_way(16) {
                not += 1;
            }
            between.push(not);
            yield_habit.learn(false);
            assert_eq!(YieldHabit::from_bits(yield_habit.to_bits()), yield_habit);
        }
        assert_eq!(between, [0, 1, 3, 7, 15, 31, 63, 127, 255, 255]);
    }

    #[test]
    fn one_searcher_at_a_time() {
        let searching = Counts { searching: true, ..counts(1, 0, 0) };
        assert!(!searching.wake_on_push());
        assert!(!searching.saturated(), "its searcher will see to it");
        assert!(!searching.wants_spare());
    }

    #[test]
    fn workers_roam_of_which_one_was_kept_from_its_cpu_where_another_may_be_free() {
        let ms = Duration::from_millis;
        assert!(is_late(LATE + Duration::from_nanos(1)) && !is_late(LATE));
        assert!(roams(3, ms(10)) && !roams(2, ms(10)) && !roams(3, ms(9)));
        assert!(settles(true, ms(0)) && !settles(false, ms(999)) && settles(false, ms(1000)));
        assert!(is_stream(1000, ms(9)) && !is_stream(1000, ms(10)) && !is_stream(63, ms(0)));
    }

    #[test]
    fn a_searcher_is_overdue_each_time_that_what_is_left_to_it_has_doubled() {
        let overdue: Vec<u32> = (0..=20).filter(|pushes| is_overdue(*pushes)).collect();
        assert_eq!(overdue, [2, 4, 8, 16]);
    }

    #[test]
    fn a_pool_whose_cores_are_all_taken_is_saturated_even_with_idle_workers() {
        let full = counts(3, 1, 0);
        assert!(!full.wake_on_push());
        assert!(full.saturated());
    }

    #[test]
    fn a_blocked_worker_makes_room_for_another() {
        assert!(counts(2, 0, 1).wants_spare());
        assert!(counts(3, 1, 1).wake_on_push());
    }

    #[test]
    fn an_overdue_searcher_gets_another_beside_it_where_one_is_idle_and_has_a_core() {
        let searching = |total, idle| Counts { searching: true, ..counts(total, idle, 1) };
        assert!(searching(3, 1).may_hurry());
        assert!(!searching(2, 0).may_hurry(), "there is nobody");
        assert!(!searching(4, 1).may_hurry(), "the other core is taken too");
        assert!(!counts(3, 1, 1).may_hurry(), "nobody searches: as everywhere");
    }

    #[test]
    fn a_pool_has_some_threads_whatever_the_others_have_and_more_where_there_is_room() {
        assert!(may_have_thread(511, 512, 100, 4) && !may_have_thread(512, 512, 100, 4));
        assert!(may_have_thread(900, 512, 12, 4) && !may_have_thread(900, 512, 13, 4));
        assert!(may_have_thread(0, 0, 1, 1));
    }

    #[test]
    fn nothing_is_made_beyond_the_maximum() {
        assert!(!counts(4, 0, 4).wants_spare());
        assert!(!counts(4, 0, 4).wake_on_push());
        assert!(counts(4, 0, 4).saturated(), "so its work may go elsewhere");
    }

    #[test]
    fn after_a_blocking_region_the_surplus_worker_takes_nothing() {
        assert!(!counts(3, 0, 0).may_take());
        assert!(counts(2, 0, 0).may_take());
    }

    #[test]
    fn an_idle_worker_leaves_only_while_another_stays_idle_and_the_cores_are_covered() {
        assert!(counts(4, 2, 0).surplus());
        assert!(!counts(4, 1, 0).surplus());
        assert!(!counts(4, 2, 2).surplus());
    }

    fn slept(us: u64) -> IdleEnd {
        let for_so_long = Duration::from_micros(us);
        IdleEnd::Slept { for_so_long, spun: false, from_here: false }
    }

    fn spins(habit: Habit) -> bool {
        !habit.budget(Idle::Hybrid).is_zero()
    }

    #[test]
    fn a_worker_spins_after_two_short_sleeps_and_as_long_as_that_pays() {
        let mut habit = Habit::NEW;
        assert!(!spins(habit));
        habit.learn(slept(60));
        assert!(!spins(habit));
        habit.learn(slept(60));
        assert!(spins(habit));
        for _ in 0..10 {
            habit.learn(IdleEnd::Spun);
            assert!(spins(habit));
        }
    }

    #[test]
    fn a_worker_does_not_spin_where_sleeps_are_long_or_its_own_cpu_wakes_it() {
        let mut habit = Habit::NEW;
        for us in [60, 600, 60, 600] {
            habit.learn(slept(us));
            assert!(!spins(habit));
        }
        let for_so_long = Duration::from_micros(4);
        for _ in 0..10 {
            habit.learn(IdleEnd::Slept { for_so_long, spun: false, from_here: true });
            assert!(!spins(habit));
        }
    }

    #[test]
    fn each_spin_in_vain_doubles_the_proof_that_is_wanted_until_one_pays() {
        let for_so_long = Duration::from_micros(600);
        let mut habit = Habit::NEW;
        let mut proofs = Vec::new();
        for _ in 0..9 {
            let mut proof = 0;
            while !spins(habit) {
                habit.learn(slept(60));
                proof += 1;
            }
            proofs.push(proof);
            habit.learn(IdleEnd::Slept { for_so_long, spun: true, from_here: false });
        }
        assert_eq!(proofs, [2, 4, 8, 16, 32, 64, 128, 256, 256]);
        habit.learn(IdleEnd::Spun);
        assert!(spins(habit));
    }

    #[test]
    fn the_idle_modes_sleep_and_busy_never_spin_and_always_spin() {
        let time = Duration::from_millis(3);
        let mut sure = Habit::NEW;
        (0..9).for_each(|_| sure.learn(slept(60)));
        assert_eq!(sure.budget(Idle::Sleep), Duration::ZERO);
        assert_eq!(Habit::NEW.budget(Idle::Busy(time)), time);
    }

    #[test]
    fn a_worker_makes_way_once_its_own_cpu_has_woken_it_soon_twice() {
        let soon = Duration::from_micros(4);
        let mut shares = Shares::NEW;
        shares.slept(soon, true);
        shares.slept(soon, false);
        assert!(!shares.pays(), "another CPU did");
        shares.slept(soon, true);
        shares.slept(Duration::from_micros(600), true);
        assert!(!shares.pays(), "not soon");
        shares.slept(soon, true);
        shares.slept(soon, true);
        assert!(shares.pays());
        shares.learn(true);
        assert!(shares.pays());
        shares.learn(false);
        (0..3).for_each(|_| shares.slept(soon, true));
        assert!(!shares.pays());
        shares.slept(soon, true);
        assert!(shares.pays(), "twice the proof");
    }

    #[test]
    fn to_make_way_is_well_where_work_came_soon_or_much_of_it() {
        let us = Duration::from_micros;
        assert!(made_way_well(us(3), us(1)));
        assert!(made_way_well(us(3000), us(500)));
        assert!(!made_way_well(us(3000), us(1)), "one item waited for the CPU");
    }
}
