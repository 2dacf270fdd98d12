//! The work that waits in a pool: one *stripe* a CPU, each an inbox for pushes and a list under a lock
//! of its own.
//!
//! `README.md` has the steps (Push, Drain, Take) and why nobody overlooks what waits.

use std::marker::PhantomData;
use std::ptr::NonNull;

use corewise_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use corewise_sync::fence::FencePolicy;
use corewise_sync::inbox::Inbox;
use corewise_sync::list::List;
use corewise_sync::{CachePadded, SpinLock, SpinLockGuard, hint};
use corewise_topology::CpuSet;

use crate::task::claim::Place;
use crate::task::header::{Header, Queued};
use crate::task::running::Running;

/// The most stripes of a pool. Whoever is about to park looks at each.
const MOST: usize = 16;

/// The stripes of one pool.
pub(crate) struct Stripes<F: FencePolicy> {
    /// I: at least one.
    stripes: Box<[Stripe<F>]>,
    /// I: by CPU, the stripe of what is queued there. CPUs beyond it: their number, wrapped.
    by_cpu: Box<[u8]>,
}

/// A part of what waits in a pool: what was queued from one of its CPUs.
pub(crate) struct Stripe<F: FencePolicy> {
    /// A: what was pushed and isn't in the list yet. On a line that pushes write and workers seldom.
    inbox: CachePadded<Inbox<Queued>>,
    /// On a line that pushes don't touch.
    lane: CachePadded<Lane>,
    fence: PhantomData<F>,
}

struct Lane {
    /// L: is the lock; guards the list, oldest first. The pool's lock may be held when it is taken. Who
    /// holds it calls no code of the user's.
    list: SpinLock<List<Queued>>,
    /// A: whether the list has something; written under its lock, and set before the inbox is emptied
    /// into it.
    listed: AtomicBool,
    /// A: items taken from the list; written under its lock.
    taken: AtomicU64,
}

/// A stripe whose lock is held.
pub(crate) struct Held<'a, F: FencePolicy> {
    stripe: &'a Stripe<F>,
    list: SpinLockGuard<'a, List<Queued>>,
}

impl<F: FencePolicy> Stripes<F> {
    /// For a pool of these CPUs.
    pub(super) fn new(cpus: &CpuSet) -> Stripes<F> {
        let many = cpus.len().clamp(1, MOST);
        let mut by_cpu = vec![0; cpus.last().map_or(0, |last| last as usize + 1)];
        for (cpu, stripe) in by_cpu.iter_mut().enumerate() {
            *stripe = (cpu % many) as u8;
        }
        for (position, cpu) in cpus.iter().enumerate() {
            by_cpu[cpu as usize] = (position % many) as u8;
        }
        let stripe = |_| Stripe {
            inbox: CachePadded::new(Inbox::new()),
            lane: CachePadded::new(Lane {
                list: SpinLock::new(List::new()),
                listed: AtomicBool::new(false),
                taken: AtomicU64::new(0),
            }),
            fence: PhantomData,
        };
        Stripes { stripes: (0..many).map(stripe).collect(), by_cpu: by_cpu.into() }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.stripes.len()
    }

    /// The stripe of what is queued from this CPU, which needn't be one of the pool's.
    #[inline]
    pub(super) fn of(&self, cpu: u32) -> u32 {
        match self.by_cpu.get(cpu as usize) {
            Some(&stripe) => u32::from(stripe),
            None => cpu % self.stripes.len() as u32,
        }
    }

    /// The stripe with this number, of what a push said.
    #[inline]
    pub(crate) fn at(&self, stripe: u32) -> &Stripe<F> {
        let stripe = stripe as usize;
        // What `of` gave is in range.
        let stripe = if stripe < self.stripes.len() { stripe } else { stripe % self.stripes.len() };
        &self.stripes[stripe]
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Stripe<F>> {
        self.stripes.iter()
    }

    /// Whether anything waits in any of them (a moment ago).
    #[inline]
    pub(super) fn any_waits(&self) -> bool {
        self.stripes.iter().any(Stripe::waits)
    }

    /// As `any_waits`, as a hint.
    pub(super) fn any_may_wait(&self) -> bool {
        self.stripes.iter().any(Stripe::may_wait)
    }

    /// The stripe in which something waits, as a hint: the one of this CPU, if something does there.
    pub(super) fn waiting_near(&self, cpu: u32) -> Option<u32> {
        let own = self.of(cpu);
        let waits = |at: &u32| self.stripes[*at as usize].may_wait();
        Some(own).filter(waits).or_else(|| (0..self.stripes.len() as u32).find(waits))
    }

    /// As `any_may_wait`, in this stripe.
    pub(super) fn may_wait_at(&self, at: usize) -> bool {
        self.stripes[at].may_wait()
    }

    /// Takes and starts an item of this stripe.
    #[inline(always)]
    pub(super) fn start_at(&self, at: usize) -> Option<Running> {
        let stripe = &self.stripes[at];
        if stripe.may_wait() { stripe.lock().start_next() } else { None }
    }

    /// Takes and starts an item: of stripe `first`, or of the next in the ring that has one, of so many.
    /// `drains` is called before one is emptied of what was pushed.
    pub(super) fn start_next(
        &self,
        first: usize,
        many: usize,
        mut drains: impl FnMut(usize),
    ) -> Option<Running> {
        (first..first + many).find_map(|at| {
            let at = if at < self.stripes.len() { at } else { at - self.stripes.len() };
            let stripe = &self.stripes[at];
            if !stripe.may_wait() {
                return None;
            }
            if !stripe.lane.listed.load(Ordering::Relaxed) {
                drains(at);
            }
            stripe.lock().start_next()
        })
    }

    /// Items taken from the lists so far, by anybody.
    pub(super) fn taken(&self) -> u64 {
        self.stripes.iter().map(Stripe::taken).sum()
    }
}

impl<F: FencePolicy> Stripe<F> {
    /// Push: true where nothing that was pushed lay here. The fence that follows it belongs to it, see `README.md`.
    #[inline]
    pub(super) fn push(&self, queued: Queued) -> bool {
        queued.set_place(Place::Pushed);
        self.inbox.push(queued)
    }

    /// Whether anything waits in it (a moment ago). The inbox first: what leaves it is in the list
    /// before.
    #[inline]
    pub(super) fn waits(&self) -> bool {
        // SeqCst: see `settle`.
        !self.inbox.is_empty() || self.lane.listed.load(Ordering::SeqCst)
    }

    /// As `waits`, as a hint: whoever finds nothing looks again before it parks. The list first, for the
    /// sake of the inbox' line.
    #[inline]
    fn may_wait(&self) -> bool {
        self.lane.listed.load(Ordering::Relaxed) || !self.inbox.is_empty()
    }

    /// Items taken from its list so far, by anybody.
    pub(super) fn taken(&self) -> u64 {
        self.lane.taken.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn lock(&self) -> Held<'_, F> {
        Held { stripe: self, list: self.lane.list.lock() }
    }
}

impl<F: FencePolicy> Held<'_, F> {
    /// Drain: moves what was pushed to the end of the list.
    #[inline]
    pub(super) fn drain(&mut self) {
        if self.has_pushed() {
            // Before the inbox is emptied: whoever finds it empty then reads this. Nobody else empties it
            // meanwhile, so it becomes true.
            self.says_listed();
            self.empties_inbox();
        }
    }

    /// Whether the inbox has something.
    #[inline]
    pub(crate) fn has_pushed(&self) -> bool {
        !self.stripe.inbox.is_empty()
    }

    /// Says that the list has something.
    #[inline]
    pub(crate) fn says_listed(&self) {
        self.stripe.lane.listed.store(true, Ordering::Relaxed);
    }

    /// Moves what the inbox has to the end of the list.
    #[inline]
    pub(crate) fn empties_inbox(&mut self) {
        self.list.append(&self.stripe.inbox, |item| item.set_place(Place::Listed));
    }

    /// Takes the oldest item out.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Queued> {
        if self.list.is_empty() {
            // The list alone is older than all of the inbox.
            self.drain();
        }
        let queued = self.list.pop_front()?;
        self.one_less();
        Some(queued)
    }

    /// Take: takes the oldest item and starts it. Under the lock, as in the kernel: until it has
    /// started an item lies in the list, and afterwards it is neither there nor pending. An item that
    /// runs elsewhere is left to the worker that runs it, a claimed one to its claimant, and the next
    /// one is tried.
    #[inline(always)]
    pub(super) fn start_next(&mut self) -> Option<Running> {
        while let Some(queued) = self.pop() {
            let taken = &self.stripe.lane.taken;
            taken.store(taken.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
            if let Some(running) = queued.start() {
                return Some(running);
            }
        }
        None
    }

    /// Takes an item out of the list.
    ///
    /// # Safety
    /// It is in the list.
    pub(super) unsafe fn remove(&mut self, item: NonNull<Header>) -> Queued {
        // In a model that has to fail it may have left: that is found without undefined behaviour.
        if hint::EVERY_SCHEDULE {
            let listed = self.list.iter().any(|listed| NonNull::from(listed) == item);
            assert!(listed, "run or cancelled, once: it isn't in the list any more");
        }
        // SAFETY: as the caller says.
        let queued = unsafe { self.list.remove(item) };
        self.one_less();
        queued
    }

    /// Takes the oldest item out that `wanted` says yes to.
    pub(super) fn take_first(&mut self, wanted: impl FnMut(&Header) -> bool) -> Option<Queued> {
        let queued = self.list.take_first(wanted)?;
        self.one_less();
        Some(queued)
    }

    /// The items, oldest first.
    pub(super) fn items(&mut self) -> impl Iterator<Item = &Header> {
        self.drain();
        self.list.iter()
    }

    /// How many items there are.
    pub(super) fn len(&mut self) -> usize {
        self.drain();
        self.list.len()
    }

    /// An item has left the list.
    #[inline]
    fn one_less(&self) {
        if self.list.is_empty() {
            self.stripe.lane.listed.store(false, Ordering::Relaxed);
        }
    }
}
