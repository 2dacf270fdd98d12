//! Items that wait for each other in a way that can't end: found, and ended by a panic of one of them.
//!
//! An item that has waited for long says on a list what it waits for, which items run on its stack, and
//! whose worker it has. From these it follows who is *stuck*: everybody on the list, but for those of
//! whom it can be said that they will go on, and whoever waits for one of these, and so on. A waiter goes
//! on where what it waits for
//!
//! * is over, or has yet to come out of somebody's hands or a timer,
//! * runs, and not on the stack of somebody who is stuck,
//! * lies in a pool, and some worker of that, or of one that helps it out, isn't stuck or can still be made,
//! * is held back, and one of those that are active under the same limit isn't stuck.
//!
//! Whoever isn't on the list may go on, for all that is known: so nobody is taken for stuck who isn't. All
//! who are stuck have what keeps them so on the list, so nothing of it changes meanwhile; and the last of
//! them to come onto it sees the others.

use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use corewise_sync::{Mutex, Unparker};

use crate::current;
use crate::item::{Header, Queued};
use crate::limiter::slot::Slot;
use crate::link::Shared;
use crate::pool::group::Group;
use crate::pool::here;
use crate::table::Lent;

/// The waits that have lasted for long, of all pools that belong together.
#[derive(Default)]
pub(crate) struct LongWaits {
    /// L: is the lock; guards the list. Locks of pools and limiters are taken under it.
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    waits: Vec<Wait>,
    last: u64,
}

/// One that waits. What it points to is there for as long as it is on the list.
struct Wait {
    id: u64,
    item: NonNull<Header>,
    /// What runs on its stack.
    inside: Vec<NonNull<Header>>,
    /// The places under limits that this has.
    places: Vec<NonNull<Slot<Queued>>>,
    /// The pool of its worker, if it has one.
    worker: Option<(NonNull<()>, usize)>,
    /// It would run what it waits for, if that lay in its pool.
    helps: bool,
    /// It must not be given up while that runs.
    stays: bool,
    unparker: Unparker,
    /// It was given up.
    ends: bool,
}

// SAFETY: headers and slots are shared, and the pool is only compared.
unsafe impl Send for Wait {}

/// What may bring an item to its end.
enum Next {
    /// Nothing has to be done by those who are stuck, for all that is known.
    Something,
    /// Who runs it.
    Runner,
    /// A worker of this pool.
    Worker(Arc<Group>, usize),
    /// The end of one that has a place in this slot, which is the queue's.
    Place { slot: NonNull<Slot<Queued>>, _queue: Arc<Shared> },
}

/// A place on the list, which is given up when it is dropped.
pub(crate) struct Listed<'a> {
    waits: &'a LongWaits,
    id: u64,
    /// What is waited for.
    item: PhantomData<Lent<'a>>,
}

impl LongWaits {
    /// The calling item has waited for `item` for long. `helps`: it would run it, if no worker can come.
    pub(crate) fn add<'a>(
        &'a self,
        item: Lent<'a>,
        helps: bool,
        stays: bool,
        unparker: Unparker,
    ) -> Listed<'a> {
        let (mut inside, mut places) = (Vec::new(), Vec::new());
        current::any(|running| {
            inside.extend(running.known());
            let ticket = running.ticket().filter(|ticket| ticket.is_counted());
            places.extend(ticket.map(|ticket| NonNull::from(&*ticket.link.slot)));
            false
        });
        let mut list = self.list.lock();
        list.last += 1;
        let id = list.last;
        list.waits.push(Wait {
            id,
            item: item.pointer(),
            inside,
            places,
            worker: here::pool(),
            helps,
            stays,
            unparker,
            ends: false,
        });
        Listed { waits: self, id, item: PhantomData }
    }
}

impl Listed<'_> {
    /// Whether the caller was given up: its wait can't end.
    pub(crate) fn ends(&self) -> bool {
        let list = self.waits.list.lock();
        list.waits.iter().any(|wait| wait.id == self.id && wait.ends)
    }

    /// Looks whether the caller is stuck. If so one of those who are is woken, to be given up: the caller
    /// maybe.
    pub(crate) fn look(&self) {
        let woken = {
            // Before the lock, so that it is dropped after: with the last handles of queues and pools.
            let nexts: Vec<Next>;
            let mut list = self.waits.list.lock();
            nexts = list.waits.iter().map(Wait::next).collect();
            let stuck = list.stuck(&nexts);
            let own = stuck.iter().copied().find(|at| list.waits[*at].id == self.id);
            let given_up = own.and_then(|own| list.to_give_up(own, &stuck, &nexts));
            given_up.map(|at| {
                list.waits[at].ends = true;
                list.waits[at].unparker.clone()
            })
        };
        woken.into_iter().for_each(|unparker| unparker.unpark());
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.waits.list.lock().waits.retain(|wait| wait.id != self.id);
    }
}

impl Wait {
    fn next(&self) -> Next {
        // SAFETY: who waits has it, and is on the list.
        let item = unsafe { Lent::new(self.item) };
        let now = item.state.snapshot();
        if now.running() {
            return Next::Runner;
        }
        let next = item.look(|job| {
            let Some(ticket) = job.ticket.as_ref() else { return Next::Something };
            let link = &ticket.link;
            if item.is_held() {
                Next::Place { slot: NonNull::from(&*link.slot), _queue: Arc::clone(&link.shared) }
            } else if link.shared.rescuer.is_some() {
                Next::Something
            } else {
                Next::Worker(Arc::clone(&link.group), link.pool)
            }
        });
        next.unwrap_or(Next::Something)
    }
}

impl List {
    /// By their places on the list.
    fn stuck(&self, nexts: &[Next]) -> Vec<usize> {
        let mut stuck: Vec<usize> = (0..self.waits.len()).collect();
        loop {
            let before = stuck.len();
            let stays = |at: &usize| self.is_stuck(*at, &nexts[*at], &stuck);
            stuck = stuck.iter().copied().filter(stays).collect();
            if stuck.len() == before {
                return stuck;
            }
        }
    }

    /// Whether that follows where `others` are.
    fn is_stuck(&self, at: usize, next: &Next, others: &[usize]) -> bool {
        match next {
            Next::Something => false,
            Next::Runner => self.runner(at, others).is_some(),
            Next::Worker(group, pool) => {
                !self.waits[at].helps && self.has_no_worker(group, *pool, others)
            }
            Next::Place { slot, .. } => {
                // SAFETY: it is a part of the queue, which is kept.
                let slot = unsafe { slot.as_ref() };
                let places = others.iter().flat_map(|other| &self.waits[*other].places);
                let theirs = places.filter(|place| ptr::eq(place.as_ptr(), slot)).count();
                !slot.gate().frozen() && slot.sizes().0 == theirs
            }
        }
    }

    /// Which of them runs what this one waits for.
    fn runner(&self, at: usize, of: &[usize]) -> Option<usize> {
        let item = self.waits[at].item;
        of.iter().copied().find(|other| self.waits[*other].inside.contains(&item))
    }

    /// Whether no worker comes for what lies in a pool, where these are stuck.
    fn has_no_worker(&self, group: &Arc<Group>, pool: usize, stuck: &[usize]) -> bool {
        let key = here::key(group);
        let theirs = |pool| {
            let workers = stuck.iter().filter_map(|at| self.waits[*at].worker);
            workers.filter(|worker| *worker == (key, pool)).count()
        };
        let stuck = |pool: usize| group.has_only(pool, theirs(pool));
        if group.soft { (0..group.pools.len()).all(stuck) } else { stuck(pool) }
    }

    /// Which of those who are stuck: one that nobody of the others could help, else one of a circle.
    fn to_give_up(&self, own: usize, stuck: &[usize], nexts: &[Next]) -> Option<usize> {
        let may = |at: usize| !self.waits[at].stays || !matches!(nexts[at], Next::Runner);
        if stuck.iter().any(|at| self.waits[*at].ends) {
            // It is about to.
            return None;
        }
        let waits_in_vain = |at: &usize| self.runner(*at, stuck).is_none();
        let found = |at: &&usize| may(**at) && waits_in_vain(at);
        if waits_in_vain(&own) && may(own) {
            return Some(own);
        }
        if let Some(at) = stuck.iter().find(found) {
            return Some(*at);
        }
        // From one to the next, for so long that all that remains is a circle; then once around.
        let mut at = own;
        for _ in stuck {
            at = self.runner(at, stuck)?;
        }
        for _ in stuck {
            if may(at) {
                return Some(at);
            }
            at = self.runner(at, stuck)?;
        }
        None
    }
}
