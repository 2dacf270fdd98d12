//! Detection of items that wait for each other in a way that can't end: a panic of one of them ends
//! such waits.
//!
//! Read `README.md` first: it defines a stuck wait, and argues why no other wait is taken for one.
//!
//! The list is the process's, not that of some pools: a circle may go through several
//! [`WorkerPools`](crate::WorkerPools), and nothing else belongs to all of them.

mod graph;
pub(crate) mod scan;
#[cfg(all(test, not(miri)))]
mod stepped;

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::{Arc, LazyLock};

use corewise_sync::thread::{self, ThreadId};
use corewise_sync::{Completion, Mutex, MutexGuard, Parker, Unparker, context, hint};

use crate::fork::record::{self, Fork};
use crate::pool::current_worker;
use crate::pool::group::Group;
use crate::pwq::Pwq;
use crate::pwq::queue_core::QueueCore;
use crate::task::header::Header;
use crate::task::header::LentItem;
use crate::task::running;
use crate::wait::Role;
use crate::wait::Target;
pub(crate) use graph::PoolKey;

use crate::wait::stuck::scan::{KeptObjects, Scan};
use graph::Fact;

/// The waits that have lasted for long.
#[derive(Default)]
pub(crate) struct LongWaits {
    /// L: is the lock; guards the list. Locks of pools and limiters are taken under it.
    list: Mutex<List>,
    /// L: is the lock; guards the turn to look.
    turn: Mutex<Turn>,
}

#[derive(Default)]
struct List {
    /// The waits, by their numbers, which grow.
    waits: BTreeMap<u64, Wait>,
    last: u64,
}

#[derive(Default)]
struct Turn {
    /// True while a thread looks.
    looking: bool,
    /// True if a thread has asked for a look that hasn't begun.
    asked: bool,
}

/// A waiting item or thread. Its pointers are valid for as long as it is on the list.
struct Wait {
    waits_for: Dependency,
    /// The pools in which the waiter would run the awaited item, if no worker can come for it;
    /// `None`: not known yet, so the wait isn't stuck.
    helps: Option<Vec<PoolKey>>,
    /// The place of the item when the waiter said so.
    home: Option<PoolKey>,
    /// True if the awaited item was held back then.
    held: bool,
    thread: ThreadId,
    /// Facts that the last wait on its stack keeps: the ends of the items there, their places under
    /// limits, and the worker.
    keeps: Vec<Fact>,
    unparker: Unparker,
    /// True if the wait was given up, and is about to check whether that
    /// [holds](ListedWait::needs).
    ends: bool,
}

/// The need of a wait that can't come about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// A place for its item, which is the next one to be let through.
    Place,
    /// Places for the items before its item, on an ordered queue.
    Turn,
    /// A worker for its item.
    Worker,
    /// The end of its item, which runs.
    End,
    /// The colours that a flush waits for.
    Colours,
}

enum Dependency {
    /// An awaited item. `over` is its event. If `stays`, the wait must not be given up while the
    /// item runs.
    Item { item: NonNull<Header>, over: NonNull<Completion>, stays: bool },
    /// The instances that were queued there. `over` is the event of the flush.
    Queue { queue: Arc<QueueCore>, over: NonNull<Completion> },
    /// A fork of its own that a thief has. It is never given up.
    Fork(NonNull<Fork>),
}

impl Dependency {
    /// Returns true if the event has come, of a wait that is on the list.
    fn is_over(&self) -> bool {
        match self {
            Dependency::Item { over, .. } | Dependency::Queue { over, .. } => {
                // SAFETY: the waiter has it.
                unsafe { over.as_ref() }.is_complete()
            }
            // SAFETY: as above.
            Dependency::Fork(fork) => unsafe { fork.as_ref() }.is_settled(),
        }
    }
}

// SAFETY: headers, events and forks are shared, and the kept facts are only compared.
unsafe impl Send for Wait {}

/// A place on the list, which is given up when it is dropped.
pub(crate) struct ListedWait<'a> {
    waits: &'static LongWaits,
    id: u64,
    /// The awaited item.
    item: PhantomData<LentItem<'a>>,
}

/// Returns the list of the process.
pub(crate) fn long_waits() -> &'static LongWaits {
    static LONG: LazyLock<LongWaits> = LazyLock::new(LongWaits::default);
    // A model has no time, so that no wait in it is long; and nothing in it outlives an execution.
    if hint::IN_MODEL { Box::leak(Box::default()) } else { &LONG }
}

impl LongWaits {
    /// Adds a wait of the calling item that has lasted for long. The waiter
    /// [says](ListedWait::helps) later which items it would run itself.
    pub(crate) fn add<'a>(
        &'static self,
        target: Target<'a>,
        over: &'a Completion,
        unparker: Unparker,
    ) -> ListedWait<'a> {
        let over = NonNull::from(over);
        let waits_for = match target {
            Target::Item(item, role) => {
                Dependency::Item { item: item.pointer(), over, stays: role == Role::Part }
            }
            Target::Queue(queue, _) => Dependency::Queue { queue: Arc::clone(queue), over },
        };
        self.put(waits_for, None, unparker)
    }

    /// Adds a wait for a thief, which the calling item has waited for for long.
    pub(crate) fn add_fork<'a>(&'static self, fork: &'a Fork) -> ListedWait<'a> {
        // Nobody calls it.
        let unparker = Parker::new().unparker();
        self.put(Dependency::Fork(NonNull::from(fork)), Some(Vec::new()), unparker)
    }

    fn put<'a>(
        &'static self,
        waits_for: Dependency,
        helps: Option<Vec<PoolKey>>,
        unparker: Unparker,
    ) -> ListedWait<'a> {
        let mut keeps = Vec::from_iter(current_worker::pool().map(Fact::Worker));
        running::any_here(|running| {
            keeps.extend(running.known().map(Fact::Item));
            keeps.extend(record::of(running).map(Fact::Fork));
            if let Some(ticket) = running.ticket() {
                let pwq = Pwq::of(ticket);
                keeps.push(Fact::Colour((NonNull::from(&*pwq.shared), ticket.colour())));
                if ticket.is_counted() {
                    keeps.push(Fact::Place(NonNull::from(&*pwq.slot)));
                }
            }
            false
        });
        let wait = Wait {
            waits_for,
            helps,
            home: None,
            held: false,
            thread: thread::current().id(),
            keeps,
            unparker,
            ends: false,
        };
        let mut list = self.lock();
        list.last += 1;
        let id = list.last;
        list.waits.insert(id, wait);
        ListedWait { waits: self, id, item: PhantomData }
    }

    /// Locks the list. If another thread looks meanwhile, the caller declares to its pool that it
    /// sleeps.
    fn lock(&self) -> MutexGuard<'_, List> {
        let free = self.list.try_lock();
        free.unwrap_or_else(|| context::blocking("a look at long waits", || self.list.lock()))
    }

    /// Asks for a look that begins after this: by the caller, or by the thread that looks now.
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

    /// Looks for stuck waits, and wakes one of them to be given up: `own` sooner than others, which
    /// learns its need so. It also wakes waiters that can run an item.
    ///
    /// It looks twice: a change between two readings may show a circle that never was one.
    fn look(&self, own: u64) -> Option<Need> {
        // Declared before the lock, so that they are dropped after it, perhaps with the last
        // handles of queues and pools.
        let mut kept = [KeptObjects::default(), KeptObjects::default()];
        let (found, woken) = {
            let mut list = self.lock();
            if let Some(wait) = list.waits.get_mut(&own) {
                wait.ends = false;
            }
            let [before, after] = &mut kept;
            let circle = Scan::new(&list.waits, before).circle(own);
            let look = Scan::new(&list.waits, after);
            let found = look.to_give_up(&circle, own).filter(|_| circle == look.circle(own));
            let helpers = look.helpers.iter().filter_map(|id| list.waits.get(id));
            let mut woken: Vec<_> = helpers.map(|wait| wait.unparker.clone()).collect();
            if let Some(wait) = found.and_then(|(id, _)| list.waits.get_mut(&id)) {
                wait.ends = true;
                woken.push(wait.unparker.clone());
            }
            (found, woken)
        };
        woken.into_iter().for_each(|unparker| unparker.unpark());
        found.filter(|(id, _)| *id == own).map(|(_, needs)| needs)
    }
}

impl ListedWait<'_> {
    /// Returns true if the caller was given up.
    pub(crate) fn ends(&self) -> bool {
        self.waits.list.lock().waits.get(&self.id).is_some_and(|wait| wait.ends)
    }

    /// Returns the need of the caller, whose wait was given up, if its wait is still the one to
    /// give up: a moment ago that need couldn't come about. No other wait of its circle is given up
    /// before this one is off the list. Returns `None` if the caller is to wait on.
    pub(crate) fn needs(&self) -> Option<Need> {
        self.waits.look(self.id)
    }

    /// Has the caller, or the thread that looks already, look for stuck waits. That look wakes one
    /// of the stuck waiters to be given up, perhaps the caller.
    pub(crate) fn look(&self) {
        self.waits.ask(self.id);
    }

    /// Sets the pools in which the waiter would run the awaited item, if no worker can come for it;
    /// `None`: not known. `home` is the place of the awaited item before that, and `held` says
    /// whether it was held back.
    pub(crate) fn helps(
        &self,
        pools: Option<&[(Arc<Group>, usize)]>,
        home: Option<PoolKey>,
        held: bool,
    ) {
        let key = |(group, pool): &(Arc<Group>, usize)| (current_worker::key(group), *pool);
        let helps = pools.map(|pools| pools.iter().map(key).collect());
        let mut list = self.waits.list.lock();
        let Some(own) = list.waits.get_mut(&self.id) else { return };
        (own.helps, own.home, own.held) = (helps, home, held);
    }

    /// Returns true if a thread may wait for a place that the caller has, or for one of a thread
    /// that waits for the caller.
    pub(crate) fn may_keep_a_place(&self) -> bool {
        self.waits.list.lock().waits.values().any(|wait| wait.held)
    }
}

impl Drop for ListedWait<'_> {
    fn drop(&mut self) {
        let own = self.waits.lock().waits.remove(&self.id);
        if own.is_some_and(|own| own.ends) {
            // No other wait was given up meanwhile, for any asker.
            self.waits.ask(self.id);
        }
    }
}

impl Turn {
    /// Returns true if the looking thread has to look again.
    fn goes_on(&mut self) -> bool {
        self.looking = std::mem::take(&mut self.asked);
        self.looking
    }
}
