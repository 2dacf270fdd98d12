//! Doors into forks: rings, records and lanes.

use std::panic::Location;
use std::ptr::{self, NonNull};

use corewise_sync::fence::{Asymmetric, AsymmetricPolicy, FencePolicy};
use corewise_sync::thread;

use crate::fork::lane::{Lane, Lanes, StealTarget};
use crate::fork::record::{Fork, ForkHolder, Forked, Stolen};
use crate::fork::ring::{OldestFork, Ring};
use crate::fork::spawn_ring::{Block, SpawnRing};
use crate::task::header::Job;
use crate::task::running::Publication;
use crate::task::running::Running;
use crate::task::ticket::MaybeTicket;

/// The ring of a lane.
pub struct RingModel<T, P: AsymmetricPolicy = Asymmetric>(Ring<T, P>);

impl<T, P: AsymmetricPolicy> RingModel<T, P> {
    /// Creates an empty one.
    #[expect(clippy::new_without_default, reason = "a model's door")]
    pub fn new() -> Self {
        RingModel(Ring::new())
    }

    /// Offers a fork: whether the ring was empty before. `None`: it is full.
    pub fn push(&self, fork: NonNull<T>) -> Option<bool> {
        self.0.has_room().then(|| self.0.push(fork))
    }

    /// Takes the newest one back; returns false if a thief has it.
    pub fn pop(&self) -> bool {
        self.0.pop()
    }

    /// Steals the oldest one, if it is still there after a second look, and `takes` agrees.
    pub fn steal(&self, takes: impl FnOnce(NonNull<T>) -> bool) -> Option<NonNull<T>> {
        self.0.steal(self.0.oldest()?, takes)
    }
}

/// The closures that the items of a worker have spawned.
pub struct SpawnModel<T, P: AsymmetricPolicy = Asymmetric>(SpawnRing<T, P>);

impl<T, P: AsymmetricPolicy> SpawnModel<T, P> {
    /// Creates an empty one.
    #[expect(clippy::new_without_default, reason = "a model's door")]
    pub fn new() -> Self {
        SpawnModel(SpawnRing::new())
    }

    /// Appends, as the owner; returns false if the ring is full.
    pub fn append(&self, closure: T) -> bool {
        self.0.append(closure).is_ok()
    }

    /// Takes the oldest, as the owner.
    pub fn take(&self) -> Option<T> {
        self.0.take()
    }

    /// Takes all, as the owner.
    pub fn take_all(&self, each: impl FnMut(T)) {
        self.0.take_all(Block::new()).for_each(each);
    }

    /// Steals the older half, if the oldest is still there after a second look.
    pub fn steal(&self, each: impl FnMut(T)) {
        self.0.oldest().map(|seen| self.0.steal(seen, each));
    }
}

/// The lanes of the model's threads.
pub struct LanesModel<P: AsymmetricPolicy = Asymmetric>(Lanes<P>);

/// The way in which an owner waits for its thief.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// The owner sleeps.
    Asleep,
    /// The owner leapfrogs once before it sleeps.
    Leaping,
    /// The owner leapfrogs, but steals whatever the thief offers: for models that have to fail.
    LeapingAnywhere,
}

impl LanesModel {
    /// Calls `a` while `b` is offered, and then `b`, unless a thief does: what that returned. `Err`
    /// where it panicked.
    pub fn join<B: Send>(
        &self,
        waits: Waits,
        a: impl FnOnce(),
        b: impl FnOnce() -> B + Send,
    ) -> thread::Result<B> {
        let lane = self.0.own(|| 0).expect("a place is left");
        // Nobody asks for the ticket here.
        let forked = Forked::new(b, NonNull::dangling(), ptr::null(), Location::caller());
        lane.ring.push(forked.pointer());
        a();
        let popped = lane.ring.pop();
        let fork = forked.fork();
        if !popped {
            self.leap(fork, waits);
            lane.wait_for(fork, None);
        }
        match fork.state() {
            // SAFETY: it is over.
            ForkHolder::Over => unsafe { forked.result() },
            ForkHolder::Stolen(_) => panic!("the thief isn't done with it"),
            // SAFETY: it is popped, or was returned.
            ForkHolder::Offered | ForkHolder::Returned => Ok(unsafe { forked.take() }()),
        }
    }

    fn leap(&self, awaited: &Fork, waits: Waits) {
        let ForkHolder::Stolen(thief) = awaited.state() else { return };
        // SAFETY: lanes live as long as this.
        let thief = unsafe { &*thief };
        let Some(seen) = thief.ring.oldest() else { return };
        if waits != Waits::Asleep && !awaited.is_settled() {
            let agrees = || waits == Waits::LeapingAnywhere || !awaited.is_settled();
            self.steal_from(thief, seen, false, agrees);
        }
    }

    /// Steals a fork and calls it, if there is one. `returns`: it gives it back, as where a
    /// subscriber panics before the call.
    pub fn steal(&self, returns: bool) -> bool {
        self.0.seen(Lane::steal_target).any(|(victim, target)| match target {
            StealTarget::Fork(seen) => self.steal_from(victim, seen, returns, || true),
            StealTarget::Spawned(_) => false,
        })
    }

    fn steal_from(
        &self,
        victim: &Lane,
        seen: OldestFork,
        returns: bool,
        agrees: impl FnOnce() -> bool,
    ) -> bool {
        let own = self.0.own(|| 0).expect("a place is left");
        let fork = victim.ring.steal(seen, |fork| {
            let agrees = agrees();
            if agrees {
                // SAFETY: the ring is locked.
                unsafe { fork.as_ref() }.is_stolen_by(own);
            }
            agrees
        });
        let Some(fork) = fork else { return false };
        // SAFETY: it is stolen.
        let (stolen, site) = unsafe { (Stolen::new(fork, victim), fork.as_ref().site) };
        let item = stolen.item();
        if returns {
            item.header().table.give_up(item, true);
        } else {
            let job = Job { ticket: MaybeTicket::none(), site };
            Running::new(item, job).run(&Publication::new(), None);
        }
        true
    }
}

impl<P: AsymmetricPolicy> LanesModel<P> {
    /// Creates lanes that nobody owns yet.
    #[expect(clippy::new_without_default, reason = "a model's door")]
    pub fn new() -> Self {
        LanesModel(Lanes::new())
    }

    /// Offers a fork of the calling thread that nobody steals. Returns whether it has to wake a
    /// thief.
    pub fn push<F: FencePolicy>(&self) -> bool {
        let own = self.0.own(|| 0).expect("a place is left");
        own.ring.push(NonNull::dangling()) && self.0.calls::<F>()
    }

    /// Takes the fork back.
    pub fn pop(&self) {
        assert!(self.0.own(|| 0).is_some_and(|own| own.ring.pop()), "nobody steals it");
    }

    /// Begins the watch of an idle worker, if there are forks and nobody watches.
    pub fn begin_watch(&self) -> bool {
        self.0.begin_watch()
    }

    /// Ends its watch; returns whether it has to go on.
    pub fn end_watch(&self) -> bool {
        self.0.end_watch()
    }

    /// Returns true if short closures, which were put into a list just now, are left to the
    /// watcher.
    pub fn leaves_to_watcher(&self) -> bool {
        self.0.set_coarse(false);
        self.0.leaves_to_watcher()
    }

    /// Leaves the watch; the watcher looks at the lists next.
    pub fn leave_watch(&self) {
        self.0.leave_watch();
    }

    /// Returns true if a worker that goes idle has to look after the forks.
    pub fn need_thief(&self) -> bool {
        self.0.need_thief()
    }
}
