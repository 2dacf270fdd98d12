//! Decisions of the call targets, as functions of plain values.

use crate::priority::Priority;

/// How a call reaches its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// Through the target's queue.
    Queue,
    /// At once, in the calling thread, which is the target.
    Inline,
}

/// Which delivery a call takes.
///
/// In place only where the caller *is* the target, in one of its handlers, and wants the value:
/// through the queue it would wait for itself. That the calling thread happens to be on the right
/// CPU isn't enough: it could be moved, and would run beside the target's handlers, which never
/// overlap. A call without waiting is always queued, so that a handler that calls its own CPU again
/// returns first.
pub(crate) fn delivery(caller_is_target: bool, waited_for: bool) -> Delivery {
    if caller_is_target && waited_for { Delivery::Inline } else { Delivery::Queue }
}

/// How many calls that nobody waits for are run before the queue is looked at again.
///
/// One: so a call that somebody waits for is behind one such call at most, and the look costs a
/// load.
pub(crate) const PLAIN_CALLS_PER_STEP: usize = 1;

/// The priority of the targets' threads where nobody says else. A synthetic machine's CPUs are only
/// names: its threads, of which there may be many, are no reason to hold up the real ones.
pub(crate) fn default_priority(synthetic: bool) -> Priority {
    if synthetic { Priority::Plain } else { Priority::OF_INTERRUPT_THREADS }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_the_target_itself_runs_in_place_and_only_what_it_waits_for() {
        assert_eq!(delivery(true, true), Delivery::Inline);
        assert_eq!(delivery(true, false), Delivery::Queue);
        assert_eq!(delivery(false, true), Delivery::Queue);
        assert_eq!(delivery(false, false), Delivery::Queue);
    }
}
