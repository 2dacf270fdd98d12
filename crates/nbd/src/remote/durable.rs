//! Which of the changes that were acknowledged are durable, as far as the other side's word goes. Pure.

/// Changes are counted as they are acknowledged; a flush that succeeds covers those that were counted before it was sent.
#[derive(Debug, Default)]
pub(super) struct Durable {
    /// Changes that were acknowledged, and that don't stand for themselves as those with FUA do.
    acknowledged: u64,
    /// So many of them are durable, or were lost with a connection.
    settled: u64,
    /// Some were lost with a connection, and nobody has been told yet.
    lost: bool,
}

impl Durable {
    /// A change was acknowledged.
    pub(super) fn change(&mut self) {
        self.acknowledged += 1;
    }

    /// What a flush that is sent now will cover.
    pub(super) fn covered(&self) -> u64 {
        self.acknowledged
    }

    /// A flush has succeeded that covers so many, on the connections on which they were acknowledged.
    pub(super) fn flushed(&mut self, covered: u64) {
        self.settled = self.settled.max(covered);
    }

    /// The connections are gone: whether changes may have gone with them.
    pub(super) fn broke(&mut self) -> bool {
        let lost = self.acknowledged > self.settled;
        self.settled = self.acknowledged;
        self.lost |= lost;
        lost
    }

    /// Whether a flush has to fail, since changes before it may be lost. The next one needn't.
    pub(super) fn tell(&mut self) -> bool {
        std::mem::take(&mut self.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_flush_fails_where_acknowledged_changes_went_with_a_connection() {
        let mut durable = Durable::default();
        durable.change();
        assert!(durable.broke() && durable.tell());
        assert!(!durable.tell() && !durable.broke(), "once");
    }

    #[test]
    fn nothing_is_lost_behind_a_flush_and_what_came_after_it_was_sent_is() {
        let mut durable = Durable::default();
        durable.change();
        let covered = durable.covered();
        durable.flushed(covered);
        assert!(!durable.broke() && !durable.tell());
        durable.change();
        let covered = durable.covered();
        durable.change();
        durable.flushed(covered);
        assert!(durable.broke() && durable.tell());
    }

    #[test]
    fn a_second_loss_before_anybody_was_told_is_told_with_the_first() {
        let mut durable = Durable::default();
        durable.change();
        assert!(durable.broke());
        assert!(!durable.broke());
        assert!(durable.tell());
        durable.change();
        assert!(durable.broke() && durable.tell());
    }
}
