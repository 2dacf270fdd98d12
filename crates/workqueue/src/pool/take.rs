//! How a worker comes by its next item.
//!
//! `README.md` has the steps (Reserve, Take, Sweep, Refill) and the rules (order, turns).

use corewise_sync::fence::FencePolicy;
use corewise_sync::ring::Lost;
use corewise_sync::thread;
use corewise_topology::current_cpu;

use super::Pool;
use super::batch::{self, Batch, share};
use super::worker::Worker;
use crate::task::header::Queued;
use crate::task::running::Running;

impl<F: FencePolicy> Pool<F> {
    /// The list of the CPU that `me` is on.
    #[inline]
    fn home_of(&self, me: &Worker) -> usize {
        let lists = self.lists.len();
        if lists == 1 {
            return 0;
        }
        current_cpu().map_or(me.id as usize % lists, |cpu| self.lists.of(cpu) as usize)
    }

    /// Takes and starts the next item of the batch of `me`, or else one of the list of the CPU that it is on, whose lines
    /// are here; in turn with those of lists that were left alone, so that none starves.
    pub(super) fn start_at_home(&self, me: &Worker) -> Option<Running> {
        let running = self.start_of_batch(me);
        if running.is_some() { running } else { self.start_batch(me) }
    }

    /// As [`start_at_home`](Pool::start_at_home), where the batch of `me` is used up.
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

    /// Take: the next item of what `me` has reserved.
    #[inline(always)]
    pub(super) fn start_of_batch(&self, me: &Worker) -> Option<Running> {
        me.batch.with(|batch| {
            while let Some(at) = batch.of.next() {
                let list = self.lists.at(batch.list as u32);
                let queued = list.take(at);
                if batch.of.len() == 0 {
                    list.ring.over(&batch.of);
                }
                // One that runs elsewhere is left to the worker that runs it, a claimed one to its claimant.
                if let Some(running) = queued.and_then(Queued::start) {
                    return Some(running);
                }
            }
            None
        })
    }

    /// Reserves something of this list, and takes and starts the first of it.
    #[inline(always)]
    fn start_at(&self, me: &Worker, at: usize) -> Option<Running> {
        let list = self.lists.at(at as u32);
        loop {
            let reserved = me.batch.with(|batch| {
                batch.learns();
                // Of a pool of one CPU one at a time, so that they start in order.
                let most = if self.lists.len() == 1 { 1 } else { batch.most };
                let mut waits = 0;
                let reserved = list.ring.reserve(|waiting| {
                    waits = waiting;
                    share(waiting, self.reading().workers(), most)
                });
                let reserved = reserved.inspect_err(|Lost| batch.loses())?;
                let some = waits > 0;
                if some {
                    batch.begins(at, reserved, waits);
                }
                Ok::<bool, Lost>(some)
            });
            match reserved {
                Ok(false) => break,
                // It has a taker.
                Err(Lost) if at != self.home_of(me) => return None,
                Ok(true) | Err(Lost) => {}
            }
            if let Some(running) = self.start_of_batch(me) {
                return Some(running);
            }
        }
        if list.overflows() { list.refill() } else { None }
    }

    /// Takes and starts an item of another list, if it is the turn of that: nobody had taken anything from
    /// it since the last look at it. And of what another worker has reserved and not come to since then.
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
        // Each one twice in a row, its own as well: to remember, and to compare.
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

    /// Adopt: takes over what is left of a batch whose worker may have lost its CPU.
    #[cold]
    fn start_adopted(&self, me: &Worker, at: usize) -> Option<Running> {
        let of = self.lists.at(at as u32).ring.adopt()?;
        me.batch.with(|batch| batch.adopts(at, of));
        self.start_of_batch(me)
    }

    /// Takes and starts an item of any list; of any other, where there was none at home.
    #[cold]
    pub(super) fn start_anywhere(&self, me: &Worker, home_too: bool) -> Option<Running> {
        let running = if home_too { self.start_at_home(me) } else { None };
        if running.is_some() {
            return running;
        }
        let lists = self.lists.len();
        if lists > 1 && self.lists.any_may_wait() && me.makes_way() {
            // The queuer here may wait for this CPU, and items that are queued elsewhere are for the workers there:
            // each CPU for itself nobody waits for another one's lines.
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
        // Round the others: on with the last one where there is a batch for it, whose lines are here; else from the next one on, so
        // that all that have something are served.
        let last = me.batch.with(|batch| batch.list);
        let first = last + usize::from(self.lists.at(last as u32).ring.len() < batch::MOST);
        let mut others = (first..first + lists).map(|at| at % lists).filter(|at| *at != home);
        others.find_map(|at| self.start_at(me, at)).or_else(|| {
            let waits = me.batch.with(Batch::waits_for_others);
            if waits { None } else { self.start_left() }
        })
    }

    /// Sweep: takes and starts an item that another worker has reserved, and hasn't taken yet.
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

    /// Takes and starts an item for a worker of another pod, which sees to no more than that.
    pub(super) fn start_for(&self, me: &Worker) -> Option<Running> {
        let lists = self.lists.len();
        let first = me.id as usize % lists;
        let one =
            (first..first + lists).find_map(|at| self.lists.at((at % lists) as u32).start_one());
        // An item that is reserved and not taken waits as well: a helper that left it would be called again and again.
        one.or_else(|| self.start_left())
    }
}
