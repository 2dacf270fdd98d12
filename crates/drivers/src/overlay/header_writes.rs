//! The header of an open overlay, and its writes: one at a time, each of both copies.

use std::collections::VecDeque;
use std::sync::Arc;

use corewise_blockmq::{BlockDevice, IoError, Request};
use corewise_sync::{Completion, SpinLock};

use super::OverlayState;
use super::header::Header;

/// The header of an open overlay.
pub(super) struct HeaderWrites {
    /// L: is the lock, held for a moment; guards the newest header and the changes that wait.
    state: SpinLock<HeaderState>,
}

struct HeaderState {
    newest: Header,
    writing: bool,
    waiting: VecDeque<(HeaderChange, Callback)>,
}

type HeaderChange = Box<dyn FnOnce(&mut Header) + Send>;
type Callback = Box<dyn FnOnce(Result<(), IoError>) + Send>;

impl HeaderWrites {
    pub(super) fn new(newest: Header) -> Self {
        let waiting = VecDeque::new();
        Self { state: SpinLock::new(HeaderState { newest, writing: false, waiting }) }
    }

    /// Returns the newest header that is durable.
    pub(super) fn newest(&self) -> Header {
        self.state.lock().newest.clone()
    }
}

impl OverlayState {
    /// Writes a header that differs from the present one as `change` says, both copies durably, and
    /// then calls `done`. Any context.
    pub(super) fn change_header(
        self: &Arc<Self>,
        change: impl FnOnce(&mut Header) + Send + 'static,
        done: impl FnOnce(Result<(), IoError>) + Send + 'static,
    ) {
        {
            let mut state = self.header.state.lock();
            state.waiting.push_back((Box::new(change), Box::new(done)));
            if std::mem::replace(&mut state.writing, true) {
                return;
            }
        }
        self.next_header();
    }

    /// Does as [`OverlayState::change_header`], and waits for the end. Blocks.
    pub(super) fn write_header(
        self: &Arc<Self>,
        change: impl FnOnce(&mut Header) + Send + 'static,
    ) -> Result<(), IoError> {
        let ended = Arc::new((Completion::new(), SpinLock::new(Ok(()))));
        let theirs = Arc::clone(&ended);
        self.change_header(change, move |result| {
            *theirs.1.lock() = result;
            theirs.0.complete();
        });
        ended.0.wait();
        ended.1.lock().clone()
    }

    /// Begins the change that has waited longest, if one waits.
    fn next_header(self: &Arc<Self>) {
        let (new, done) = {
            let mut state = self.header.state.lock();
            let Some((change, done)) = state.waiting.pop_front() else {
                state.writing = false;
                return;
            };
            let mut new = state.newest.clone();
            change(&mut new);
            new.events += 1;
            (new, done)
        };
        self.write_copy(0, new, done);
    }

    /// Writes a copy of a header, durably, and then the other one: that one is good as long as this
    /// one isn't known to be.
    fn write_copy(self: &Arc<Self>, copy: u64, new: Header, done: Callback) {
        let piece = self.file.geometry().block_size as usize;
        let write = Request::write(Header::copy_at(copy), new.encode(piece));
        let state = Arc::clone(self);
        self.file.submit(write.on_complete(move |ended| {
            if let Err(error) = ended.result {
                return state.end_header(Err(error), done);
            }
            let theirs = Arc::clone(&state);
            let flush = Request::flush().on_complete(move |ended| match ended.result {
                Ok(()) if copy == 0 => theirs.write_copy(1, new, done),
                result => theirs.end_header(result.map(|()| new), done),
            });
            state.file.submit(flush);
        }));
    }

    fn end_header(self: &Arc<Self>, result: Result<Header, IoError>, done: Callback) {
        done(result.map(|new| self.header.state.lock().newest = new));
        self.next_header();
    }
}
