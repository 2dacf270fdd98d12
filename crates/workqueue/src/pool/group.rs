//! The pools of one set of attributes, and every transition of theirs: push, take, idle, block,
//! leave.
//!
//! Each transition changes the counts under the pool's lock and ends in [`Group::settle`], the one
//! place that publishes, fences, re-checks and decides. Its decision is carried out after the lock
//! is released.
//!
//! The file also has the reports of what pools do and have done.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use corewise_sync::fence::{FencePolicy, FullFence};
use corewise_sync::{CachePadded, Mutex, thread};
use corewise_topology::{AffinityScope, CpuSet, current_cpu};

use crate::attributes::{PoolKey, QueueKind};
use crate::pool::alarm::Keeper;
use crate::pool::cpu_list::Reading;
use crate::pool::pins::Pinning;
use crate::pool::policy::{self, Idle};
use crate::pool::spawn::Spawner;
use crate::pool::worker::{self, Batch, Stream, Threads, Worker};
use crate::pool::{Action, Pool, PoolSpec, PoolState, PoolStats};
use crate::report::PoolReport;
use crate::task::header::Queued;
use crate::task::running::Running;

/// The result of one step of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The worker ran an item, or should look again: step again.
    Again,
    /// The worker is on the idle list: park. `surplus`: it may leave after a while.
    Park {
        /// More workers are idle than the pod needs.
        surplus: bool,
    },
    /// The worker has left the pool: end the thread.
    Exit,
}

/// The settings that the pools of a group have in common.
pub(crate) struct Setup {
    pub(crate) scope: AffinityScope,
    pub(crate) soft: bool,
    /// Number of workers that may hold a core at once, whatever the machine's CPU quota.
    pub(crate) concurrency: Option<usize>,
    pub(crate) pinning: Pinning,
    pub(crate) idle: Idle,
    pub(crate) idle_timeout: Duration,
    pub(crate) spawner: Spawner,
    pub(crate) threads: Arc<Threads>,
    pub(crate) keeper: Keeper,
    /// The niceness that 0 stands for: that of the pools' maker.
    pub(crate) niceness: i32,
}

/// The pools of one set of attributes, one a pod.
pub(crate) struct Group<F: FencePolicy = FullFence> {
    /// I: in pod order.
    pub(crate) pools: Box<[Pool<F>]>,
    /// I: true if work may run outside its pod while that is saturated and another isn't.
    pub(crate) soft: bool,
    /// I: the scope that the pods come from.
    pub(crate) scope: AffinityScope,
    /// I: the kind of queues that they serve.
    pub(crate) kind: QueueKind,
    /// I: the CPUs in the queues' attributes; `None`: those for general work.
    pub(super) cpus: Option<CpuSet>,
    /// I: maximum of workers that hold a core at once, in all pools together; `None`: the machine's
    /// CPU quota decides.
    pub(super) concurrency: Option<usize>,
    /// I: the niceness in the queues' attributes.
    pub(crate) nice: i32,
    /// I: the niceness of the workers' threads.
    pub(super) thread_nice: i32,
    /// A: true once a refused niceness was logged. Relaxed: one report more does no harm.
    pub(super) nice_refused: AtomicBool,
    /// I: the policy of workers before they sleep.
    pub(super) idle: Idle,
    /// I: how long a surplus worker stays idle before it leaves.
    pub(crate) idle_timeout: Duration,
    /// I: the maker of the workers' threads.
    pub(super) spawner: Spawner,
    /// I: the number of threads in all pools.
    pub(super) threads: Arc<Threads>,
    /// I: the keeper of pools that have more work than they can take.
    pub(crate) keeper: Keeper,
    /// A: a bit a pool, set if its word has WAKE. Written under that pool's lock. A push on a
    /// saturated pod learns from one load that all others are saturated too.
    wakeable: Box<[CachePadded<AtomicU64>]>,
    /// A: true once the thread that shut the pools down has seen all workers leave: none is made
    /// any more. That thread sets it with no lock, and then examines each pool under the pool's
    /// lock; it is read under that lock.
    pub(super) sealed: AtomicBool,
    /// L: is the lock; guards the machine's epoch that the pools have followed last, and is held
    /// while they do: a pool's own locks are taken under it.
    pub(super) followed: Mutex<u64>,
}

impl<F: FencePolicy> Drop for Group<F> {
    fn drop(&mut self) {
        self.keeper.group_gone();
    }
}

impl<F: FencePolicy> Group<F> {
    pub(crate) fn new(setup: Setup, specs: Vec<PoolSpec>) -> Self {
        let Setup { scope, soft, concurrency, pinning, idle, idle_timeout, .. } = setup;
        let Setup { spawner, threads, keeper, niceness, .. } = setup;
        let words = specs.len().div_ceil(64);
        let group = Group {
            pools: specs.into_iter().map(|spec| Pool::new(spec, pinning)).collect(),
            soft,
            scope,
            kind: QueueKind::Unbound,
            cpus: None,
            concurrency,
            nice: 0,
            thread_nice: niceness,
            nice_refused: AtomicBool::new(false),
            idle,
            idle_timeout,
            spawner,
            threads,
            keeper,
            wakeable: (0..words).map(|_| CachePadded::new(AtomicU64::new(0))).collect(),
            sealed: AtomicBool::new(false),
            followed: Mutex::new(0),
        };
        for (index, pool) in group.pools.iter().enumerate() {
            group.mark_wakeable(index, pool.reading().may_help());
        }
        group
    }

    /// Returns the same pools for queues of this key.
    pub(crate) fn of_key(mut self, key: &PoolKey) -> Self {
        (self.kind, self.nice, self.cpus) = (key.kind, key.nice, key.cpus.clone());
        if key.nice != 0 {
            self.thread_nice = key.nice;
        }
        self
    }

    /// Queues on a pool, on the list of the CPU that it is queued from: see [`Pool::list_of`].
    /// Lock-free unless a worker has to be woken.
    pub(crate) fn push(self: &Arc<Self>, index: usize, list: u32, queued: Queued) {
        self.push_to(&self.pools[index], index, list, queued);
    }

    /// Pushes an item as [`Group::push`] does, for a caller that knows the pool, which is the
    /// group's with this number.
    #[inline(always)]
    pub(crate) fn push_to(
        self: &Arc<Self>,
        pool: &Pool<F>,
        index: usize,
        list: u32,
        queued: Queued,
    ) {
        let reading = pool.append(list, queued);
        self.has_pushed(index, reading);
    }

    /// Ends a push with this result of its Check.
    #[inline(always)]
    pub(crate) fn has_pushed(self: &Arc<Self>, index: usize, reading: Reading) {
        if reading.concerns_pusher() {
            self.see_to(index, reading);
        }
    }

    /// Acts on the result of Check: an item was left in a pool, and a full fence came between.
    #[inline(never)]
    fn see_to(self: &Arc<Self>, index: usize, reading: Reading) {
        if reading.wake() || reading.closed() || reading.wanted() {
            self.push_slow(index);
        } else if reading.searching() {
            self.leave_to_searcher(index);
        } else if reading.saturated() || reading.enough() {
            self.no_room(index);
        }
    }

    /// Handles Overdue: names another searcher, if one is due.
    fn leave_to_searcher(self: &Arc<Self>, index: usize) {
        let pool = &self.pools[index];
        if !policy::is_overdue(pool.left_to_searcher.one_more()) {
            return;
        }
        let action = {
            let mut inner = pool.inner.lock();
            match inner.counts.may_hurry() && pool.has_waiting() {
                true => self.recruit(index, &mut inner),
                false => Action::None,
            }
        };
        self.perform(index, action);
    }

    /// Queues an item that was accepted earlier and held back until now. A closed pool whose
    /// workers have left gets another worker for it. Once the pool is sealed, the item is
    /// cancelled.
    pub(crate) fn push_held(self: &Arc<Self>, index: usize, list: u32, queued: Queued) {
        if !self.pools[index].reading().closed() {
            return self.push(index, list, queued);
        }
        let pool = &self.pools[index];
        let action = {
            let mut inner = pool.inner.lock();
            // Under the lock, so that no thread refuses it in between.
            let _ = pool.append(list, queued);
            if inner.counts.total == 0 && !self.is_sealed() {
                self.recruit(index, &mut inner)
            } else {
                self.settle(index, &mut inner, false)
            }
        };
        self.perform(index, action);
    }

    /// Handles a pod that can't take its work now: another pod may take it, and the timekeeper
    /// watches it. The caller has issued a full fence between leaving the work, or publishing the
    /// word, and this.
    #[inline]
    fn no_room(self: &Arc<Self>, index: usize) {
        self.keeper.ask();
        if !self.pools[index].reading().saturated() {
            return;
        }
        self.overflow_if_any(index);
    }

    /// Wakes a worker of another pod, if work may leave this one, and another has room.
    #[inline]
    pub(super) fn overflow_if_any(self: &Arc<Self>, index: usize) {
        // If every pod is saturated, the most common case here, one load for 64 pods shows it.
        // SeqCst: pairs with `publish`.
        if self.soft && self.wakeable.iter().any(|word| word.load(Ordering::SeqCst) != 0) {
            self.overflow(index);
        }
    }

    /// Returns true if another pod has room for work that may leave this one.
    #[inline]
    pub(super) fn others_have_room(&self, index: usize) -> bool {
        self.soft
            && self.pools[index].reading().saturated()
            && self.wakeable.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    #[cold]
    pub(super) fn push_slow(self: &Arc<Self>, index: usize) {
        let action = {
            let mut inner = self.pools[index].inner.lock();
            self.settle(index, &mut inner, false)
        };
        self.perform(index, action);
    }

    /// Takes one bounded step of a worker: takes an item and runs it. Returns false if there is
    /// none: the worker may search for a while longer, and goes idle.
    #[inline(always)]
    pub(crate) fn works(self: &Arc<Self>, me: &Arc<Worker>) -> bool {
        let pool = &self.pools[me.pool];
        // Gate.
        let reading = pool.reading();
        let shut = reading.crowded() || me.has_item_exemptions();
        // The item is from its own CPU: so the worker touches neither the pool's lock nor a line
        // that others write, unless something changes.
        if !shut {
            // A call of its own, so that the instance is run in place: a copy would wait for its
            // own stores.
            if let Some(running) = &mut pool.start_of_batch(me) {
                self.carries_out(me, running, false);
                return true;
            }
            if self.begins_batch(me) {
                return true;
            }
        }
        self.looks_further(me, shut, reading.aside())
    }

    /// Takes a step as [`works`](Group::works) does, if the batch of `me` is used up.
    #[inline(never)]
    fn begins_batch(self: &Arc<Self>, me: &Arc<Worker>) -> bool {
        let Some(running) = &mut self.pools[me.pool].start_batch(me) else { return false };
        self.carries_out(me, running, false);
        true
    }

    /// Takes the rest of a step: at the gate that is `shut`, or if the worker's own CPU had no
    /// item. A worker of a pod that stands `aside` takes no work of others.
    #[inline(never)]
    fn looks_further(self: &Arc<Self>, me: &Arc<Worker>, shut: bool, aside: bool) -> bool {
        let pool = &self.pools[me.pool];
        if shut {
            // CountOut.
            me.carry.stops();
            if !self.may_take(me) {
                return false;
            }
        }
        // The item is of the own pod or, if work may leave its pod, of a saturated one.
        let (mut running, taken_over) = match pool.start_anywhere(me, shut) {
            Some(running) => (Some(running), false),
            None => {
                me.carry.stops();
                (if aside { None } else { self.rob_others(me) }, true)
            }
        };
        if let Some(running) = &mut running {
            self.carries_out(me, running, taken_over);
            return true;
        }
        if !aside && self.steals(me) {
            return true;
        }
        if me.pauses() {
            thread::yield_now();
            return true;
        }
        false
    }

    /// Runs the item that `me` has taken, from its own pod or from another.
    #[inline(always)]
    fn carries_out(self: &Arc<Self>, me: &Worker, running: &mut Running, taken_over: bool) {
        me.carry.starts(running.ticket());
        self.took(me);
        if taken_over {
            running.overflowed();
        }
        if running.table.block {
            return self.opens(me, running, taken_over);
        }
        let ran = self.run(me, running);
        me.ran.count(ran, u64::from(taken_over));
        if ran > 1 || !running.forks.get().lane.is_null() {
            self.runs_spawned(me);
        }
    }

    /// Takes the slow way through the gate: the last item of `me` was exempt, or there are more
    /// workers than cores. Returns true if it may take another item.
    #[cold]
    fn may_take(self: &Arc<Self>, me: &Worker) -> bool {
        let (may, action) = {
            let mut inner = self.pools[me.pool].inner.lock();
            me.item_is_over(&mut inner.counts);
            let surplus = inner.counts.has_too_many() && me.is_taker();
            if surplus {
                me.counts_as_taker(&mut inner.counts, false);
            }
            let may = inner.counts.may_take() && !surplus;
            (may, self.settle(me.pool, &mut inner, false))
        };
        self.pools[me.pool].pins.come_back(&me.own_cpu);
        self.perform(me.pool, action);
        may
    }

    /// Notes that `me` has found an item. If it was the searcher, or something else needs
    /// attention, this is a transition.
    #[inline(always)]
    fn took(self: &Arc<Self>, me: &Worker) {
        let (searched, tells) = (me.is_searching(), me.batch.with(|batch| batch.tells));
        if searched || tells || self.pools[me.pool].reading().concerns_taker() {
            self.took_slowly(me);
        }
    }

    /// `me` has stolen a fork.
    pub(super) fn has_stolen(self: &Arc<Self>, me: &Worker) {
        if me.is_searching() || self.pools[me.pool].reading().concerns_taker() {
            self.took_slowly(me);
        }
    }

    /// Ends its time as a searcher; another worker may have to become one.
    #[cold]
    fn took_slowly(self: &Arc<Self>, me: &Worker) {
        let action = {
            let mut inner = self.pools[me.pool].inner.lock();
            me.stop_searching(&mut inner.counts);
            if let Some(each) = me.batch.with(|batch| batch.tells.then(|| batch.tell())) {
                self.learns(me, &mut inner, each);
            }
            // The timekeeper retries too, but only if work waits, and if there is a timekeeper.
            if inner.refused.is_some_and(|when| self.keeper.may_retry(when)) {
                inner.refused = None;
            }
            self.settle(me.pool, &mut inner, true)
        };
        self.perform(me.pool, action);
    }

    /// Learns whether a worker runs one tiny item after the other, as it says.
    fn learns(&self, me: &Worker, inner: &mut PoolState, stream: Option<Stream>) {
        let PoolState { counts, least, in_use: (in_use, told), .. } = inner;
        if counts.base <= worker::ALWAYS {
            return;
        }
        me.counts_as_taker(counts, stream.is_some());
        let Some(Stream { each, waiting }) = stream else { return };
        *least = worker::least(*least, each);
        let now = if *told == 0 { self.pools[me.pool].lists.in_use() } else { *in_use };
        *in_use = now.max(1);
        *told = (*told + 1) % worker::COUNT;
        let most = worker::most_takers(*in_use, *least).min(counts.base);
        let one_more = worker::piles_up(waiting) && counts.takers < most;
        counts.enough = counts.enough.max(counts.takers + usize::from(one_more)).min(most);
    }

    /// Takes and starts an item of another pod, if that one is saturated.
    fn rob_others(&self, me: &Worker) -> Option<Running> {
        if !self.soft {
            return None;
        }
        self.pools[me.pool].spec.near.iter().find_map(|&other| {
            if !self.needs_help(other) {
                return None;
            }
            let pool = &self.pools[other];
            pool.start_for(me).or_else(|| {
                pool.outwait_a_while();
                None
            })
        })
    }

    /// Returns true if a pod has work and can't take it (a moment ago).
    fn needs_help(&self, index: usize) -> bool {
        let pool = &self.pools[index];
        pool.reading().saturated() && pool.has_waiting()
    }

    /// Returns true if a pod that this one may help needs it (a moment ago).
    pub(super) fn others_need_help(&self, index: usize) -> bool {
        self.soft && self.pools[index].spec.near.iter().any(|&other| self.needs_help(other))
    }

    /// Begins Search, since there is nothing to take: the worker will look out for a while. It is
    /// the searcher, so pushes take no lock of the pool and wake no worker. Returns false if
    /// another worker is the searcher, or if this one isn't to take anything.
    pub(crate) fn begin_search(&self, me: &Worker) -> bool {
        let mut inner = self.pools[me.pool].inner.lock();
        me.item_is_over(&mut inner.counts);
        let counts = &inner.counts;
        let others = counts.searching && !me.is_searching();
        let others_do = counts.has_enough() && !(counts.takers == 1 && me.is_taker());
        if inner.closing || others || !counts.may_take() || others_do {
            return false;
        }
        if me.begin_searching(&mut inner.counts) {
            self.pools[me.pool].left_to_searcher.begin();
            self.publish(me.pool, &inner);
        }
        true
    }

    /// Returns true if the searcher has something to look at, here or in another pod (a moment
    /// ago).
    pub(super) fn calls_searcher(&self, index: usize) -> bool {
        let reading = self.pools[index].reading();
        reading.closed() || reading.crowded() || !reading.aside() && self.others_need_help(index)
    }

    /// Puts a worker without work onto the idle list, or out of the pool.
    pub(crate) fn go_idle(self: &Arc<Self>, me: &Arc<Worker>) -> Step {
        let pool = &self.pools[me.pool];
        me.batch.with(Batch::rests);
        let mut inner = pool.inner.lock();
        // The timekeeper may just have exempted the worker for an item that was over.
        me.item_is_over(&mut inner.counts);
        if me.is_taker() {
            // It found nothing, so the other takers keep up.
            me.counts_as_taker(&mut inner.counts, false);
            inner.counts.enough = inner.counts.takers;
            if inner.counts.takers == 0 {
                inner.least = u64::MAX;
            }
        }
        if inner.counts.may_take() && !inner.counts.has_enough() && pool.has_waiting() {
            // Fewer workers take than the word says: if this one blocks in its next item, another
            // has to be named.
            self.publish(me.pool, &inner);
            drop(inner);
            pool.outwait_a_while();
            return Step::Again;
        }
        me.stop_searching(&mut inner.counts);
        // Nothing for me: either nothing is left, or the pod's cores are taken by others, which see
        // to it.
        if inner.closing {
            return self.leave(me, inner);
        }
        inner.idle.push(Arc::clone(me));
        inner.counts.idle += 1;
        if inner.counts.searching {
            // The one that searches may be kept from its CPU, and now there is another to call.
            pool.left_to_searcher.begin();
        }
        // Publish and Recheck.
        match self.settle(me.pool, &mut inner, false) {
            // Last in, first out: it is me. Work came between, here or in another pod; I am the
            // searcher.
            Action::Wake(woken, _) => {
                debug_assert!(Arc::ptr_eq(&woken, me));
                me.take_wake();
                drop(inner);
                pool.outwait_a_while();
                Step::Again
            }
            action @ (Action::NoRoom | Action::Call(_)) => {
                let surplus = inner.counts.surplus();
                drop(inner);
                self.perform(me.pool, action);
                Step::Park { surplus }
            }
            // The pool isn't empty, so nothing is made or refused: I am on its idle list.
            Action::Make | Action::Refuse | Action::None => {
                Step::Park { surplus: inner.counts.surplus() }
            }
        }
    }

    /// Removes a surplus worker whose idle time ran out from the pool, unless it was woken
    /// meanwhile.
    pub(crate) fn idle_timed_out(self: &Arc<Self>, me: &Arc<Worker>) -> Step {
        let mut inner = self.pools[me.pool].inner.lock();
        match inner.idle.iter().position(|w| Arc::ptr_eq(w, me)) {
            Some(position) if inner.counts.surplus() => {
                inner.idle.remove(position);
                inner.counts.idle -= 1;
                self.leave(me, inner)
            }
            // Or another thread took it off the list, and has left or will leave the token.
            _ => Step::Park { surplus: false },
        }
    }

    /// Carries out Publish of the counts. Returns true, too, if a worker may be woken for others
    /// now and might not before. A change is a SeqCst read-modify-write, and so a full fence before
    /// the SeqCst loads that follow; no change needs none (`README.md`).
    pub(crate) fn publish(&self, index: usize, inner: &PoolState) -> (Reading, bool) {
        let reading = inner.reading();
        let old = self.pools[index].word.publish(reading);
        if old != reading {
            if old.may_help() != reading.may_help() {
                self.mark_wakeable(index, reading.may_help());
            }
            // Pairs with the one in `push`.
            F::implied();
        }
        (reading, reading.may_help() && !old.may_help())
    }

    fn mark_wakeable(&self, index: usize, wakeable: bool) {
        if !self.soft {
            // Work leaves no pod, so no worker looks: the pods write no line in common.
            return;
        }
        let (word, bit) = (&self.wakeable[index / 64], 1 << (index % 64));
        if wakeable {
            word.fetch_or(bit, Ordering::SeqCst);
        } else {
            word.fetch_and(!bit, Ordering::SeqCst);
        }
    }

    /// Ends every transition: Publish, Recheck, and its consequences. `spare`: the caller won't
    /// serve the pool for a while, so another worker has to be there.
    pub(super) fn settle(&self, index: usize, inner: &mut PoolState, spare: bool) -> Action {
        let pool = &self.pools[index];
        if inner.closing && inner.counts.total == 0 {
            // A push that isn't seen here reads CLOSED, and comes here too.
            self.publish(index, inner);
            return if pool.has_waiting() { Action::Refuse } else { Action::None };
        }
        // Publish.
        let (reading, has_room) = self.publish(index, inner);
        // Recheck.
        let pending = pool.has_waiting();
        if reading.wake() && (pending || self.needs_thief(index, &inner.counts))
            || spare && inner.counts().wants_spare()
            // Until now a push on a saturated pod found no room here: look for its work.
            || has_room && self.others_need_help(index)
        {
            return self.recruit(index, inner);
        }
        if !pending || !reading.saturated() && !reading.enough() {
            return Action::None;
        }
        if !inner.wants.is_empty() {
            // A pending item that is just being appended has no place yet.
            pool.outwait();
        }
        inner.call().map_or(Action::NoRoom, Action::Call)
    }

    /// Picks a searcher: an idle worker, or one to be made. Needs no fence and no re-check after:
    /// the searcher looks for itself, under the lock.
    pub(super) fn recruit(&self, index: usize, inner: &mut PoolState) -> Action {
        if !mem::replace(&mut inner.counts.searching, true) {
            self.pools[index].left_to_searcher.begin();
        }
        let here = current_cpu();
        let action = match inner.choose(here, &self.pools[index].lists, &self.pools[index].pins) {
            Some((worker, moves_to)) => {
                inner.counts.idle -= 1;
                worker.wake_up(here);
                PoolStats::count(&self.pools[index].stats.wakeups, 1);
                Action::Wake(worker, moves_to)
            }
            None => {
                inner.counts.total += 1;
                Action::Make
            }
        };
        self.publish(index, inner);
        action
    }

    /// Carries out the decision of `settle`; the pool's lock is free.
    pub(super) fn perform(self: &Arc<Self>, index: usize, action: Action) {
        match action {
            Action::None => {}
            Action::Wake(worker, moves_to) => {
                if let Some(cpu) = moves_to {
                    self.pools[index].pins.move_in(&worker.own_cpu, cpu);
                }
                worker.unpark();
            }
            Action::Make => self.make_worker(index),
            Action::NoRoom => self.no_room(index),
            Action::Refuse => self.refuse(index),
            Action::Call(waiter) => {
                waiter.unpark();
                self.no_room(index);
            }
        }
    }

    /// Wakes a worker of the nearest pod that has room; it will look around and find our work.
    #[cold]
    fn overflow(self: &Arc<Self>, index: usize) {
        for &other in &self.pools[index].spec.near {
            let pool = &self.pools[other];
            if !pool.reading().may_help() {
                continue;
            }
            let action = {
                let mut inner = pool.inner.lock();
                // The workers there may be busy with tiny items.
                inner.counts.enough = 0;
                if !inner.counts().wake_on_push() {
                    self.publish(other, &inner);
                    continue;
                }
                self.recruit(other, &mut inner)
            };
            self.perform(other, action);
            return;
        }
    }

    /// Runs an instance. The thread has the pod's placement token.
    #[inline(always)]
    fn run(&self, me: &Worker, running: &mut Running) -> u64 {
        running.run(&me.shown, Some(&me.carry))
    }
}

impl Group {
    /// Returns the reports of all its pools.
    pub(crate) fn reports(&self) -> Vec<PoolReport> {
        (0..self.pools.len()).map(|pool| self.report(pool)).collect()
    }

    /// Returns the report of one of them.
    pub(crate) fn report(&self, pool: usize) -> PoolReport {
        let pool = &self.pools[pool];
        let (workers, idle, blocked, waiting) = pool.sizes();
        let (ran, taken_over) = pool.ran();
        let stats = &pool.stats;
        PoolReport {
            scope: self.scope,
            strict: !self.soft,
            pod: pool.spec.pod,
            node: pool.spec.node,
            cpus: pool.cpus(),
            away: pool.reading().away(),
            concurrency: pool.concurrency(),
            workers,
            idle,
            blocked,
            waiting,
            ran,
            taken_over,
            wakeups: stats.wakeups.load(Ordering::Relaxed),
            threads_made: stats.threads_made.load(Ordering::Relaxed),
            caught: stats.caught.load(Ordering::Relaxed),
        }
    }
}

impl<F: FencePolicy> Pool<F> {
    /// Returns the items that its workers have run, and of those the ones taken over from a
    /// saturated pod.
    pub(crate) fn ran(&self) -> (u64, u64) {
        // Under the lock: a worker is counted in one place or the other.
        let inner = self.inner.lock();
        let of_workers = inner.workers.values().map(|member| member.worker.ran.read());
        of_workers.fold(self.stats.former.read(), |sum, ran| (sum.0 + ran.0, sum.1 + ran.1))
    }
}
