//! A mirror without workers: its keeper's item never runs again, so what waits for it ends here. Recording takes a
//! thread that may block, and nobody who comes here is known to be one. `README.md` beside this file argues that
//! nobody is overlooked.

use super::Inner;
use super::keeper::Keeper;
use super::legs::all;
use corewise_blockmq::IoError;

impl Inner {
    /// The workers are gone for good. Never blocks: a round of the keeper may be waiting for a leg that is told of it
    /// after this mirror, by this thread.
    pub(super) fn workers_are_gone(&self) {
        self.keeper.end.come();
        self.keeper.refuse_all();
        self.legs.answered(all(self.legs.len()));
    }
}

impl Keeper {
    /// Ask, behind whatever was left for the keeper. With no lock held; any context.
    pub(super) fn unless_alone(&self) {
        if self.end.has_come() {
            self.refuse_all();
        }
    }

    /// Look: what waits for the record can't be recorded any more, and fails. Never blocks.
    #[cold]
    fn refuse_all(&self) {
        // Taken: its owner asks when it has left it.
        let line = self.state.try_lock().map(|mut state| std::mem::take(&mut state.line));
        let parked = line.into_iter().flatten().chain(self.waiting.take());
        parked.for_each(|parked| parked.rq.complete(Err(IoError::workers_gone())));
        // These have succeeded on the legs: nobody could say later which ones.
        let unrecorded = self.unrecorded.take();
        unrecorded.for_each(|parked| parked.rq.complete(Err(IoError::workers_gone())));
    }
}
