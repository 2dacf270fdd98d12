//! The ways in which a worker takes its next item, and those in which a particular item leaves a
//! pool: a claimed one, one of a certain queue, all of a pool without workers.
//!
//! `README.md` has the steps (Reserve, Take, Sweep, Refill) and the rules (order, turns).

use std::collections::BTreeSet;

use corewise_sync::fence::FencePolicy;
use corewise_sync::inbox::Node;
use corewise_sync::ring::TakerConflict;
use corewise_sync::thread;
use corewise_topology::current_cpu;

use crate::pool::Pool;
use crate::pool::cpu_list::CpuList;
use crate::pool::group::Group;
use crate::pool::worker::{self, Batch, Worker, share};
use crate::task::claim::Container;
use crate::task::header::{Header, LentItem, Queued};
use crate::task::running::{Label, Running};
use crate::task::ticket::{AwaitedColours, Ticket};

impl<F: FencePolicy> Pool<F> {
    /// Returns the list of the CPU that `me` is on.
    #[inline]
    fn home_of(&self, me: &Worker) -> usize {
        let lists = self.lists.len();
        if lists == 1 {
            return 0;
        }
        current_cpu().map_or(me.id as usize % lists, |cpu| self.lists.of(cpu) as usize)
    }

    /// Takes and starts the next item of the batch of `me`, or else one of the list of its present
    /// CPU, whose lines are here. It takes turns with lists that were left alone, so that none
    /// starves.
    pub(super) fn start_at_home(&self, me: &Worker) -> Option<Running> {
        let running = self.start_of_batch(me);
        if running.is_some() { running } else { self.start_batch(me) }
    }

    /// Starts an item as [`start_at_home`](Pool::start_at_home) does, if the batch of `me` is used
    /// up.
    #[inline(always)]
    pub(super) fn start_batch(&self, me: &Worker) -> Option<Running> {
        let home = self.home_of(me);
        if me.looks_around() {
            if let Some(running) = self.start_by_turns(me, home) {
                return Some(running);
            }
        }
        self.start_at(me, home)
    }

    /// Carries out Take: starts the next item that `me` has reserved.
    #[inline(always)]
    pub(super) fn start_of_batch(&self, me: &Worker) -> Option<Running> {
        me.batch.with(|batch| {
            while let Some(at) = batch.of.next() {
                let list = self.lists.at(batch.list as u32);
                let queued = list.take(at);
                if batch.of.len() == 0 {
                    list.ring.over(&batch.of);
                }
                // An item that runs elsewhere is left to the worker that runs it, a claimed one to
                // its claimant.
                if let Some(running) = queued.and_then(Queued::start) {
                    return Some(running);
                }
            }
            None
        })
    }

    /// Reserves items of this list, and takes and starts the first of them.
    #[inline(always)]
    fn start_at(&self, me: &Worker, at: usize) -> Option<Running> {
        let list = self.lists.at(at as u32);
        loop {
            let reserved = me.batch.with(|batch| {
                batch.learns();
                // A pool of one CPU takes one at a time, so that items start in order.
                let most = if self.lists.len() == 1 { 1 } else { batch.most };
                let mut waits = 0;
                let reserved = list.ring.reserve(|waiting| {
                    waits = waiting;
                    share(waiting, self.reading().workers(), most)
                });
                let reserved = reserved.inspect_err(|TakerConflict| batch.loses())?;
                let some = waits > 0;
                if some {
                    batch.begins(at, reserved, waits);
                }
                Ok::<bool, TakerConflict>(some)
            });
            match reserved {
                Ok(false) => break,
                // It has a taker.
                Err(TakerConflict) if at != self.home_of(me) => return None,
                Ok(true) | Err(TakerConflict) => {}
            }
            if let Some(running) = self.start_of_batch(me) {
                return Some(running);
            }
        }
        if list.overflows() { list.refill() } else { None }
    }

    /// Takes and starts an item of another list, if that has a turn: no item was taken from it
    /// since the last look. Likewise for items that another worker has reserved and not reached
    /// since then.
    #[cold]
    fn start_by_turns(&self, me: &Worker, home: usize) -> Option<Running> {
        let lists = self.lists.len();
        if !me.turn_is_over() {
            let Some(turn) = me.turn() else {
                me.looks_later();
                return None;
            };
            let running = self.start_at(me, turn);
            if running.is_none() {
                me.gives_turn(None);
            }
            return running;
        }
        me.gives_turn(None);
        let look = me.begins_turn();
        if lists == 1 {
            return None;
        }
        // It visits each list twice in a row, its own as well: to remember, and to compare.
        let at = (home + 1 + (look / 2) as usize % lists) % lists;
        let list = self.lists.at(at as u32);
        let left = list.ring.left();
        let [is_left_alone, is_left] = me.saw([list.taken(), left.unwrap_or(u64::MAX)]);
        if look % 2 == 0 {
            return None;
        }
        if is_left && left.is_some() {
            if let Some(running) = self.start_adopted(me, at) {
                return Some(running);
            }
        }
        let running = (is_left_alone && at != home).then(|| self.start_at(me, at)).flatten();
        if running.is_some() {
            me.gives_turn(Some(at));
        }
        running
    }

    /// Carries out Adopt: takes over the rest of a batch whose worker may have lost its CPU.
    #[cold]
    fn start_adopted(&self, me: &Worker, at: usize) -> Option<Running> {
        let of = self.lists.at(at as u32).ring.adopt()?;
        me.batch.with(|batch| batch.adopts(at, of));
        self.start_of_batch(me)
    }

    /// Takes and starts an item of any list; of any other, if there was none at home.
    #[cold]
    pub(super) fn start_anywhere(&self, me: &Worker, home_too: bool) -> Option<Running> {
        let running = if home_too { self.start_at_home(me) } else { None };
        if running.is_some() {
            return running;
        }
        let lists = self.lists.len();
        if lists > 1 && self.lists.any_may_wait() && me.makes_way() {
            // The queuer here may wait for this CPU, and items that are queued elsewhere are for
            // the workers there: if each CPU serves itself, none waits for another one's lines.
            me.carry.stops();
            thread::yield_now();
            let running = self.start_at(me, self.home_of(me));
            me.made_way(running.is_some());
            if running.is_some() {
                return running;
            }
        }
        me.batch.with(Batch::pauses);
        let home = self.home_of(me);
        // Go round the others. If there is a batch for the last one, whose lines are here, continue
        // with that. Otherwise begin with the next one, so that all lists with items are served.
        let last = me.batch.with(|batch| batch.list);
        let first = last + usize::from(self.lists.at(last as u32).ring.len() < worker::BATCH_MOST);
        let mut others = (first..first + lists).map(|at| at % lists).filter(|at| *at != home);
        others.find_map(|at| self.start_at(me, at)).or_else(|| {
            let waits = me.batch.with(Batch::waits_for_others);
            if waits { None } else { self.start_left() }
        })
    }

    /// Carries out Sweep: takes and starts an item that another worker has reserved, and hasn't
    /// taken yet.
    #[cold]
    fn start_left(&self) -> Option<Running> {
        self.lists.iter().find_map(|list| {
            while let Some(queued) = list.sweep() {
                if let Some(running) = queued.start() {
                    return Some(running);
                }
            }
            None
        })
    }

    /// Takes and starts an item for a worker of another pod, which has no other duty here.
    pub(super) fn start_for(&self, me: &Worker) -> Option<Running> {
        let lists = self.lists.len();
        let first = me.id as usize % lists;
        let one =
            (first..first + lists).find_map(|at| self.lists.at((at % lists) as u32).start_one());
        // An item that is reserved and not taken waits as well: a helper that left it would be
        // called again and again.
        one.or_else(|| self.start_left())
    }
}

/// Returns true if a flush of the queue with this number waits for an item, which lies in a list
/// whose lock is held.
fn is_awaited(item: &Header, queue: u64, awaited: AwaitedColours) -> bool {
    // SAFETY: its slot is filled, and a claimant writes it only when the item is out of the list.
    let ticket = unsafe { item.job() }.ticket.as_ref();
    ticket.is_some_and(|ticket| ticket.home().queue == queue && awaited.has(ticket.colour()))
}

/// Number of items of a list that are searched for one that a flush waits for.
const NEAR: usize = 64;

impl<F: FencePolicy> Group<F> {
    /// Takes an item that the caller has claimed out of the list of a pool; returns `None` if it
    /// isn't in there (yet, or any more).
    pub(crate) fn unlist(
        &self,
        index: usize,
        list: u32,
        item: LentItem<'_>,
        place: Container,
    ) -> Option<Queued> {
        let list = self.pools[index].lists.at(list);
        if let Container::Ring(cell) = place {
            // If this succeeds, the item is out, and no other thread has it or gets it. Else its
            // appender hasn't filled the cell yet, or its taker will set `Nowhere`.
            let found = list.ring.take_this(cell, item.pointer());
            // SAFETY: it was in the ring, and is out.
            return found.then(|| unsafe { Queued::from_raw(item.pointer()) });
        }
        let mut overflow = list.lock();
        overflow.drain();
        // SAFETY: an item is made `Listed` under the lock of the list of its link's pool that its
        // ticket names. Its popper starts it, hands it over, puts it into the ring or sets
        // `Nowhere`, under the same lock. It is claimed and wasn't handed over, so a `Listed` one
        // is in the list.
        (item.place(item.state.snapshot().seq()) == Container::Listed)
            .then(|| unsafe { overflow.remove(item.pointer()) })
    }

    /// Takes and starts the oldest item of a queue (of one of the lists), for a thread that runs it
    /// without being a worker of the pool: a rescuer.
    pub(crate) fn take_for(&self, index: usize, queue: u64) -> Option<Running> {
        let is_its = |item: &Header| {
            // SAFETY: the item is held, or in the list whose lock we hold: its slot is filled, and
            // a claimant writes it only when the item is out of here.
            unsafe { item.job() }.label(item.table).queue == queue
        };
        self.pools[index].lists.iter().find_map(|list| list.start_first(usize::MAX, is_its))
    }

    /// Shows each item that waits in a pool with its ticket, and whether it is one of those that
    /// [`Group::take_awaited`] looks at.
    pub(crate) fn see_waiting(&self, index: usize, mut see: impl FnMut(&Header, &Ticket, bool)) {
        for list in self.pools[index].lists.iter() {
            let mut at = 0;
            list.see(|item| {
                // SAFETY: as in `take_for`.
                if let Some(ticket) = unsafe { item.job() }.ticket.as_ref() {
                    see(item, ticket, at < NEAR);
                }
                at += 1;
                true
            });
        }
    }

    /// Returns true if [`Group::take_awaited`] finds an item, and no worker can come for it.
    pub(crate) fn calls_for(&self, index: usize, queue: u64, awaited: AwaitedColours) -> bool {
        let found = |list: &CpuList<F>| {
            let (mut found, mut seen) = (false, 0);
            list.see(|item| {
                seen += 1;
                found = is_awaited(item, queue, awaited);
                !found && seen < NEAR
            });
            found
        };
        !awaited.any && self.is_short(index) && self.pools[index].lists.iter().any(found)
    }

    /// Takes and starts an item that a flush of the queue waits for, for the flusher. Only the
    /// oldest of each list are examined, so that all of them take no longer than there are items.
    pub(crate) fn take_awaited(
        &self,
        index: usize,
        queue: u64,
        awaited: AwaitedColours,
    ) -> Option<Running> {
        let is_its = |item: &Header| is_awaited(item, queue, awaited);
        self.pools[index].lists.iter().find_map(|list| list.start_first(NEAR, is_its))
    }

    /// Returns the oldest items that wait in a pool, as far as that is known: at most `most` of
    /// them.
    pub(crate) fn waiting_items(&self, index: usize, most: usize) -> Vec<Label> {
        let mut items = Vec::new();
        for list in self.pools[index].lists.iter() {
            list.see(|item| {
                if items.len() < most {
                    // SAFETY: as in `take_for`.
                    items.push(unsafe { item.job() }.label(item.table));
                }
                items.len() < most
            });
        }
        items
    }

    /// Returns the numbers of the queues whose items wait in a pool.
    pub(crate) fn waiting_queues(&self, index: usize) -> BTreeSet<u64> {
        let mut queues = BTreeSet::new();
        for list in self.pools[index].lists.iter() {
            list.see(|item| {
                // SAFETY: as in `take_for`.
                queues.extend(
                    unsafe { item.job() }.ticket.as_ref().map(|ticket| ticket.home().queue),
                );
                true
            });
        }
        queues
    }

    /// Cancels what lies in a closed pool without workers. One after the other, each outside the
    /// locks: that runs the user's destructors.
    pub(super) fn refuse(&self, index: usize) {
        let pool = &self.pools[index];
        loop {
            // Both locks: a saturated pod may give the pool a worker again, and a claimant is to
            // find it out of the list.
            let inner = pool.inner.lock();
            let claim_next = || pool.lists.iter().find_map(|list| list.take_any(Queued::claim));
            let Some(refused) = (inner.counts.total == 0).then(claim_next).flatten() else {
                return;
            };
            drop(inner);
            drop(refused);
        }
    }
}
