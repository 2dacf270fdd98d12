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
//!
//! The list is the process's, not that of some pools: a circle may go through several [`WorkerPools`].
//! A look takes time that grows with what is on the list, and no more. One thread looks at a time, for
//! all who have asked until then.
//!
//! Of those that wait on one stack, one inside the other, only the innermost says what runs there: the
//! others go on after it, and nothing is counted twice.
//!
//! [`WorkerPools`]: crate::WorkerPools

use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;

use corewise_sync::thread::{self, ThreadId};
use corewise_sync::{Mutex, MutexGuard, Unparker, context};

use crate::current;
use crate::item::{Header, Queued};
use crate::limiter::slot::Slot;
use crate::link::Shared;
use crate::pool::group::Group;
use crate::pool::here;
use crate::table::Lent;

/// The waits that have lasted for long.
#[derive(Default)]
pub(crate) struct LongWaits {
    /// L: is the lock; guards the list. Locks of pools and limiters are taken under it.
    list: Mutex<List>,
    /// L: is the lock; guards whose turn it is to look.
    turn: Mutex<Turn>,
}

#[derive(Default)]
struct List {
    /// By their numbers, which grow.
    waits: BTreeMap<u64, Wait>,
    last: u64,
}

#[derive(Default)]
struct Turn {
    /// Somebody looks.
    looking: bool,
    /// Somebody has asked for a look that hasn't begun.
    asked: bool,
}

/// One that waits. What it points to is there for as long as it is on the list.
struct Wait {
    item: NonNull<Header>,
    thread: ThreadId,
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
    waits: &'static LongWaits,
    id: u64,
    /// What is waited for.
    item: PhantomData<Lent<'a>>,
}

/// The list of the process.
#[cfg(not(any(loom, shuttle)))]
pub(crate) fn long_waits() -> &'static LongWaits {
    static LONG: LongWaits = LongWaits {
        list: Mutex::new(List { waits: BTreeMap::new(), last: 0 }),
        turn: Mutex::new(Turn { looking: false, asked: false }),
    };
    &LONG
}

/// A model has no time, so that no wait in it is long; and nothing in it outlives an execution.
#[cfg(any(loom, shuttle))]
pub(crate) fn long_waits() -> &'static LongWaits {
    Box::leak(Box::default())
}

impl LongWaits {
    /// The calling item has waited for `item` for long. `helps`: it would run it, if no worker can come.
    pub(crate) fn add<'a>(
        &'static self,
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
        let wait = Wait {
            item: item.pointer(),
            thread: thread::current().id(),
            inside,
            places,
            worker: here::pool(),
            helps,
            stays,
            unparker,
            ends: false,
        };
        let mut list = self.lock();
        list.last += 1;
        let id = list.last;
        list.waits.insert(id, wait);
        Listed { waits: self, id, item: PhantomData }
    }

    /// Somebody may look meanwhile: then the caller's pool is told that it sleeps.
    fn lock(&self) -> MutexGuard<'_, List> {
        let free = self.list.try_lock();
        free.unwrap_or_else(|| context::blocking("a look at long waits", || self.list.lock()))
    }

    /// A look begins after this: the caller's, or that of somebody who is at it now.
    fn ask(&self, own: u64) {
        {
            let mut turn = self.turn.lock();
            turn.asked = true;
            if turn.looking {
                return;
            }
            turn.looking = true;
        }
        while self.turn.lock().goes_on() {
            self.look(own);
        }
    }

    /// Looks once. `own`: who is given up sooner than others.
    fn look(&self, own: u64) {
        let woken = {
            // Before the lock, so that it is dropped after: with the last handles of queues and pools.
            let nexts: Vec<Next>;
            let mut list = self.list.lock();
            nexts = list.waits.values().map(Wait::next).collect();
            let given_up = Look::new(&list, &nexts).to_give_up(own);
            given_up.and_then(|id| list.waits.get_mut(&id)).map(|wait| {
                wait.ends = true;
                wait.unparker.clone()
            })
        };
        woken.into_iter().for_each(|unparker| unparker.unpark());
    }
}

impl Listed<'_> {
    /// Whether the caller was given up: its wait can't end.
    pub(crate) fn ends(&self) -> bool {
        self.waits.list.lock().waits.get(&self.id).is_some_and(|wait| wait.ends)
    }

    /// Sees to it that somebody looks who is stuck: the caller, or who is at it now. One of those who are
    /// is woken then, to be given up: the caller maybe. `helps`: as it is now.
    pub(crate) fn look(&self, helps: bool) {
        let own = self.waits.list.lock().waits.get_mut(&self.id).map(|own| own.helps = helps);
        debug_assert!(own.is_some(), "it is on the list");
        self.waits.ask(self.id);
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        let own = self.waits.lock().waits.remove(&self.id);
        if own.is_some_and(|own| own.ends) {
            // Nobody else was given up meanwhile, whoever asked.
            self.waits.ask(self.id);
        }
    }
}

impl Turn {
    /// Whether who looks has to look again.
    fn goes_on(&mut self) -> bool {
        self.looking = std::mem::take(&mut self.asked);
        self.looking
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

    /// Others who need one of these can't go on for as long as this one can't.
    fn keeps(&self) -> impl Iterator<Item = Need> {
        let items = self.inside.iter().copied().map(Need::Item);
        let places = self.places.iter().copied().map(Need::Place);
        items.chain(places).chain(self.worker.map(|(group, pool)| Need::Pool(group, pool)))
    }
}

/// What one that waits needs.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Need {
    /// The end of it.
    Item(NonNull<Header>),
    /// A worker of this pool.
    Pool(NonNull<()>, usize),
    /// A place in this slot.
    Place(NonNull<Slot<Queued>>),
}

/// Who keeps a need from being met.
struct Unmet {
    /// It isn't met while so many are stuck who keep it. `None`: it may always be.
    all: Option<usize>,
    /// So many are.
    stuck: usize,
    /// One of them.
    by: Option<usize>,
    /// Who needs it, by their places in the look.
    waits: Vec<usize>,
}

impl Unmet {
    fn lasts(&self) -> bool {
        self.all.is_some_and(|all| self.stuck >= all)
    }
}

/// Who is stuck, found by following from those who aren't to those who wait for them.
struct Look<'a> {
    waits: Vec<(u64, &'a Wait)>,
    nexts: &'a [Next],
    needs: HashMap<Need, Unmet>,
    /// By their places in the look.
    stuck: Vec<bool>,
    /// The last one of each thread: that one sleeps.
    innermost: HashMap<ThreadId, usize>,
}

impl<'a> Look<'a> {
    fn new(list: &'a List, nexts: &'a [Next]) -> Self {
        let waits: Vec<_> = list.waits.iter().map(|(id, wait)| (*id, wait)).collect();
        let innermost: HashMap<ThreadId, usize> =
            waits.iter().enumerate().map(|(at, (_, wait))| (wait.thread, at)).collect();
        let (needs, mut go_on) = needs(&waits, nexts);
        let stuck = vec![true; waits.len()];
        let mut look = Look { waits, nexts, needs, stuck, innermost };
        for at in look.innermost.values().copied() {
            for need in look.waits[at].1.keeps() {
                if let Some(unmet) = look.needs.get_mut(&need) {
                    unmet.stuck += 1;
                    unmet.by = Some(at);
                }
            }
        }
        let met = look.needs.values().filter(|unmet| !unmet.lasts());
        go_on.extend(met.flat_map(|unmet| &unmet.waits));
        while let Some(at) = go_on.pop() {
            let (_, wait) = look.waits[at];
            if !std::mem::replace(&mut look.stuck[at], false) || !look.sleeps(at) {
                continue;
            }
            for need in wait.keeps() {
                let Some(unmet) = look.needs.get_mut(&need) else { continue };
                let lasted = unmet.lasts();
                unmet.stuck -= 1;
                if lasted && !unmet.lasts() {
                    go_on.extend(&unmet.waits);
                }
            }
        }
        look
    }

    fn sleeps(&self, at: usize) -> bool {
        self.innermost[&self.waits[at].1.thread] == at
    }

    /// Which of those who are stuck runs what this one waits for.
    fn runner(&self, at: usize) -> Option<usize> {
        let unmet = self.needs.get(&Need::Item(self.waits[at].1.item))?;
        unmet.by.filter(|by| self.stuck[*by])
    }

    /// Who is stuck, and given up: one that nobody of the others could help, else one of a circle;
    /// `own` sooner than others.
    fn to_give_up(&self, own: u64) -> Option<u64> {
        let stuck = || (0..self.waits.len()).filter(|at| self.stuck[*at]);
        if stuck().any(|at| self.waits[at].1.ends) {
            // It is about to.
            return None;
        }
        let own = stuck().find(|at| self.waits[*at].0 == own);
        let first = own.or_else(|| stuck().next())?;
        let may = |at: usize| {
            let stays = self.waits[at].1.stays && matches!(self.nexts[at], Next::Runner);
            self.sleeps(at) && !stays
        };
        let found =
            own.into_iter().chain(stuck()).find(|at| may(*at) && self.runner(*at).is_none());
        if let Some(at) = found {
            return Some(self.waits[at].0);
        }
        // From one to the next, for so long that all that remains is a circle; then once around.
        let mut at = first;
        for _ in stuck() {
            at = self.runner(at)?;
        }
        for _ in stuck() {
            if may(at) {
                return Some(self.waits[at].0);
            }
            at = self.runner(at)?;
        }
        None
    }
}

/// What they need, and who of them will go on, for all that is known.
fn needs(waits: &[(u64, &Wait)], nexts: &[Next]) -> (HashMap<Need, Unmet>, Vec<usize>) {
    let mut needs = HashMap::<Need, Unmet>::new();
    let mut go_on = Vec::new();
    for (at, ((_, wait), next)) in waits.iter().zip(nexts).enumerate() {
        let mut add = |need, all: &dyn Fn() -> Option<usize>| {
            let unmet = needs.entry(need);
            let new = || Unmet { all: all(), stuck: 0, by: None, waits: Vec::new() };
            unmet.or_insert_with(new).waits.push(at);
        };
        match next {
            Next::Something => go_on.push(at),
            Next::Runner => add(Need::Item(wait.item), &|| Some(1)),
            Next::Worker(..) if wait.helps => go_on.push(at),
            Next::Worker(group, pool) => {
                let pools = if group.soft { 0..group.pools.len() } else { *pool..*pool + 1 };
                for pool in pools {
                    add(Need::Pool(here::key(group), pool), &|| group.all_it_has(pool));
                }
            }
            Next::Place { slot, .. } => add(Need::Place(*slot), &|| {
                // SAFETY: it is a part of the queue, which is kept.
                let slot = unsafe { slot.as_ref() };
                (!slot.gate().frozen()).then(|| slot.sizes().0)
            }),
        }
    }
    (needs, go_on)
}
