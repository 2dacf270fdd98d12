//! The decisions of a waiter, as pure functions of plain numbers: whether it runs an item that it
//! waits for itself, and whether a join offers a closure to workers.

use crate::fork::StackLeft;

/// Maximum of items that were taken back and are nested on a stack of unknown size.
const TAKE_BACK_DEPTH: u32 = 32;

/// The facts by which a waiter decides whether to run the queued item that it waits for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TakeBackCase {
    /// True if the waiter must not block now, and the item may block.
    pub(crate) atomic: bool,
    /// True if the waiter has declared to its pool that it blocks: another worker has its core.
    pub(crate) blocking: bool,
    /// Number of items that were taken back and are on the waiter's stack already.
    pub(crate) depth: u32,
    /// The rest of that stack, if it matters and is known.
    pub(crate) stack: Option<StackLeft>,
    /// True if the waiter would wait for a worker that can't come: see `Counts::is_short` in the
    /// pool's policy.
    pub(crate) need: bool,
    /// True if the waiter is a worker of the pool that the item lies in.
    pub(crate) own_pool: bool,
    /// True if the waiter is on a CPU of that pool.
    pub(crate) near: bool,
    /// The item is for the pool's own threads alone: because it must not leave its pod (other
    /// threads may be moved at any time), or for their niceness.
    pub(crate) only_own: bool,
}

impl TakeBackCase {
    /// Returns the decision as far as it doesn't depend on the item.
    pub(crate) fn waiter_may(&self) -> bool {
        let shallow = self.depth < TAKE_BACK_DEPTH;
        if self.need {
            return !self.atomic && self.stack.map_or(shallow, StackLeft::is_enough);
        }
        // If half of the stack is used the wait blocks, and another worker starts with an empty
        // one.
        !self.atomic && !self.blocking && self.stack.map_or(shallow, StackLeft::is_half)
    }

    pub(crate) fn allowed(&self) -> bool {
        self.waiter_may() && self.placed()
    }

    /// Returns true if the item may run where the waiter is.
    pub(crate) fn placed(&self) -> bool {
        let near = self.near || self.need;
        self.own_pool || near && !self.only_own
    }

    /// Returns true if the waiter runs an item that is held back in its own place. No other thread
    /// is to be woken for that, so the waiter needn't be near.
    pub(crate) fn allowed_in_place(&self) -> bool {
        let placed = self.own_pool || !self.only_own;
        self.waiter_may() && placed
    }
}

/// The facts by which a join inside an item of its queue decides whether to offer its second
/// closure to workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ForkPoint {
    /// True if the thread must not block now.
    pub(crate) atomic: bool,
    /// The rest of its stack, if that is known.
    pub(crate) stack: Option<StackLeft>,
    /// Number of other threads that wait for the items on this stack, each for the next.
    pub(crate) stacks: usize,
    /// Number of CPUs of the pod.
    pub(crate) cpus: usize,
    /// Maximum of workers of its pool; at least one a CPU.
    pub(crate) workers: usize,
}

/// The way in which a join runs its second closure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fork {
    /// A worker or the caller runs it, the one that comes first.
    Offer,
    /// The caller runs it.
    Keep,
    /// The join panics: no stack has room for the closure.
    Refuse,
}

impl ForkPoint {
    pub(crate) fn decide(&self) -> Fork {
        if self.atomic {
            return Fork::Keep;
        }
        let Some(stack) = self.stack else { return Fork::Offer };
        let below = |most: usize| self.stacks < most.max(self.cpus);
        match stack {
            _ if stack.is_half() && below(self.workers / 16) => Fork::Offer,
            _ if stack.is_enough() => Fork::Keep,
            // A worker has an empty stack.
            _ if below(self.workers / 2) => Fork::Offer,
            _ => Fork::Refuse,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fork::STACK_RESERVE;

    #[test]
    fn a_waiter_runs_an_item_itself_only_where_its_placement_allows_that() {
        let near = TakeBackCase { near: true, ..TakeBackCase::default() };
        let own = TakeBackCase { own_pool: true, ..TakeBackCase::default() };
        assert!(near.allowed() && own.allowed());
        assert!(!TakeBackCase::default().allowed(), "the waiter is elsewhere");
        assert!(
            !TakeBackCase { only_own: true, ..near }.allowed(),
            "it may be moved away, and has another niceness"
        );
        assert!(TakeBackCase { only_own: true, ..own }.allowed());
        for may in [near, own] {
            assert!(!TakeBackCase { atomic: true, ..may }.allowed());
            assert!(!TakeBackCase { blocking: true, ..may }.allowed());
            assert!(TakeBackCase { depth: TAKE_BACK_DEPTH - 1, ..may }.allowed());
            assert!(
                !TakeBackCase { depth: TAKE_BACK_DEPTH, ..may }.allowed(),
                "the stack has an end"
            );
            let stack = |left| Some(StackLeft { left, size: 2 << 20 });
            let deep = TakeBackCase { depth: 1000, ..may };
            assert!(TakeBackCase { stack: stack(1 << 20), ..deep }.allowed(), "there is room");
            assert!(!TakeBackCase { stack: stack((1 << 20) - 1), ..may }.allowed(), "half is used");
        }
    }

    #[test]
    fn a_join_offers_its_second_closure_while_half_a_stack_is_left_and_then_when_it_is_full() {
        let stack = |left| Some(StackLeft { left, size: 2 << 20 });
        let fork = |left, stacks| {
            ForkPoint { stack: stack(left), stacks, cpus: 4, workers: 256, atomic: false }.decide()
        };
        assert_eq!([fork(2 << 20, 0), fork(1 << 20, 15)], [Fork::Offer; 2]);
        assert_eq!([fork((1 << 20) - 1, 0), fork(STACK_RESERVE, 127)], [Fork::Keep; 2]);
        assert_eq!(fork(2 << 20, 16), Fork::Keep, "its chain has many workers");
        assert_eq!([fork(STACK_RESERVE - 1, 0), fork(0, 127)], [Fork::Offer; 2], "it is full");
        assert_eq!(fork(0, 128), Fork::Refuse, "its chain has half of the workers");
        let few =
            ForkPoint { stack: stack(2 << 20), stacks: 3, cpus: 4, workers: 4, atomic: false };
        assert_eq!(few.decide(), Fork::Offer, "all CPUs may work");
        let unknown = ForkPoint { stacks: 1000, workers: 1, ..ForkPoint::default() };
        assert_eq!(unknown.decide(), Fork::Offer);
        for stack in [None, stack(2 << 20), stack(0)] {
            let atomic = ForkPoint { atomic: true, stack, ..unknown };
            assert_eq!(atomic.decide(), Fork::Keep, "it must not wait");
        }
    }

    #[test]
    fn a_waiter_for_whom_no_worker_can_come_runs_an_item_wherever_it_is_as_long_as_its_stack_lasts()
    {
        let need = TakeBackCase { need: true, depth: 1000, ..TakeBackCase::default() };
        let stack = |left, size| TakeBackCase { stack: Some(StackLeft { left, size }), ..need };
        let enough = stack(STACK_RESERVE, 2 << 20);
        assert!(enough.allowed(), "it needn't be near");
        assert!(TakeBackCase { blocking: true, ..enough }.allowed());
        assert!(!stack(STACK_RESERVE - 1, 2 << 20).allowed());
        assert!(stack(16 << 10, 64 << 10).allowed() && !stack((16 << 10) - 1, 64 << 10).allowed());
        assert!(!need.allowed(), "a stack that isn't known has an end too");
        assert!(TakeBackCase { depth: TAKE_BACK_DEPTH - 1, ..need }.allowed());
        assert!(!TakeBackCase { only_own: true, ..enough }.allowed());
        assert!(TakeBackCase { only_own: true, own_pool: true, ..enough }.allowed());
        assert!(!TakeBackCase { atomic: true, ..enough }.allowed());
    }
}
