//! The decisions of a pool, as pure functions of plain numbers: who is woken, when a thread is
//! made, when work may leave its pod. The mechanism (`pool/`) asks; nothing here touches a thread.

/// What a pool's decisions depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    /// Worker threads, of any state, including one that is being made.
    pub(crate) total: usize,
    /// Parked, waiting for work.
    pub(crate) idle: usize,
    /// Inside a blocking region: they hold no core.
    pub(crate) blocked: usize,
    /// A worker was woken (or made) for work and hasn't taken any yet. At most one at a time: it
    /// wakes the next one itself if there is more.
    pub(crate) searching: bool,
    /// How many workers may hold a core at once: the CPUs of the pod.
    pub(crate) base: usize,
    /// How many threads there may be.
    pub(crate) max: usize,
}

impl Counts {
    /// Workers that hold a core, or are about to.
    pub(crate) fn active(&self) -> usize {
        self.total - self.idle - self.blocked
    }

    /// Whether a push should wake (or make) a worker of this pool. Asked by every push, through the
    /// published word.
    pub(crate) fn wake_on_push(&self) -> bool {
        !self.searching && self.has_core() && (self.idle > 0 || self.total < self.max)
    }

    /// Whether the pod can't take more work now, so that it may overflow to another. A searching
    /// worker is an answer that is on its way: not saturated.
    pub(crate) fn saturated(&self) -> bool {
        !self.searching && !self.wake_on_push()
    }

    /// Whether an active worker may take an item: not where the pod's cores are all taken by
    /// others. That happens after a blocking region ended while its replacement runs: one of
    /// them goes idle.
    pub(crate) fn may_take(&self) -> bool {
        self.active() <= self.base
    }

    /// Whether one more worker would have a core.
    pub(crate) fn has_core(&self) -> bool {
        self.active() < self.base
    }

    /// Whether a worker that starts an item, or is about to block, should make a spare one first:
    /// the kernel's manager rule, so that no push ever has to (but the very first).
    pub(crate) fn wants_spare(&self) -> bool {
        self.idle == 0 && !self.searching && self.has_core() && self.total < self.max
    }

    /// Whether an idle worker is more than the pod's cores need, so that it may leave after a
    /// while.
    pub(crate) fn surplus(&self) -> bool {
        self.total - self.blocked > self.base && self.idle > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(total: usize, idle: usize, blocked: usize) -> Counts {
        Counts { total, idle, blocked, searching: false, base: 2, max: 4 }
    }

    #[test]
    fn a_cold_pool_makes_its_first_worker_on_the_first_push() {
        assert!(counts(0, 0, 0).wake_on_push());
    }

    #[test]
    fn one_searcher_at_a_time() {
        let searching = Counts { searching: true, ..counts(1, 0, 0) };
        assert!(!searching.wake_on_push());
        assert!(!searching.saturated(), "its searcher will see to it");
        assert!(!searching.wants_spare());
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
}
