//! Commits: the data of an overlay and then its map become durable, for all flushes that wait.

use std::sync::Arc;

use corewise_blockmq::{BlockDevice, HeldRequest, IoError, Op, Request};
use corewise_sync::SpinLock;
use corewise_sync::atomic::{AtomicUsize, Ordering};

use super::OverlayState;

/// Most pages that are written between two flushes of the file: 1 MiB of memory.
const PAGES_AT_ONCE: usize = 256;

/// The commits of an overlay.
pub(super) struct Commits {
    /// L: is the lock, held for a moment; guards what waits for the next commit.
    state: SpinLock<CommitState>,
}

#[derive(Default)]
struct CommitState {
    running: bool,
    /// True once the file was synced since the overlay was opened: a killed process may have left
    /// pages of the map in the host's cache alone.
    synced: bool,
    waiting: Vec<HeldRequest>,
    /// The first failure after which it isn't known which data is durable.
    failed: Option<IoError>,
}

/// A commit under way.
struct Commit {
    overlay: Arc<OverlayState>,
    /// Requests that it answers.
    answers: Vec<HeldRequest>,
    /// Number of marked pages that it has yet to take.
    left: usize,
}

/// The pages of a commit that are being written.
struct PageWrites {
    /// A: number of writes that haven't ended. AcqRel: the last one sees the others' errors.
    left: AtomicUsize,
    /// L: is the lock, taken by the ends of the writes; guards the commit and the first error.
    state: SpinLock<(Option<Commit>, Option<IoError>)>,
}

impl Commits {
    pub(super) fn new() -> Self {
        Self { state: SpinLock::new(CommitState::default()) }
    }

    /// Returns true if pages that aren't marked may still not be durable.
    pub(super) fn may_lack_bits(&self) -> bool {
        let state = self.state.lock();
        state.running || !state.synced
    }
}

impl OverlayState {
    /// Answers a flush, or a change with `fua` that is done, once it is durable. Any context.
    pub(super) fn commit(self: &Arc<Self>, rq: HeldRequest) {
        {
            let mut state = self.commits.state.lock();
            state.waiting.push(rq);
            if std::mem::replace(&mut state.running, true) {
                return;
            }
        }
        self.next_commit();
    }

    /// Begins the commit of what waits, if something does.
    fn next_commit(self: &Arc<Self>) {
        let (answers, failed) = {
            let mut state = self.commits.state.lock();
            let answers = std::mem::take(&mut state.waiting);
            state.running = !answers.is_empty();
            (answers, state.failed.clone())
        };
        if answers.is_empty() {
            return;
        }
        let left = self.map.marked();
        let commit = Commit { overlay: Arc::clone(self), answers, left };
        match failed {
            Some(error) => commit.end(Err(error)),
            None => commit.round(),
        }
    }
}

impl Commit {
    /// Takes marked pages, syncs the data that their bits are about, and writes them.
    fn round(mut self) {
        let overlay = Arc::clone(&self.overlay);
        let groups = overlay.map.take_marked(self.left.min(PAGES_AT_ONCE));
        self.left -= groups.len();
        let encode = |&group: &usize| (group, overlay.map.encode(group));
        let pages: Vec<_> = groups.iter().map(encode).collect();
        let sync = Request::flush().on_complete(move |done| match done.result {
            Ok(()) => {
                self.overlay.commits.state.lock().synced = true;
                self.write(pages);
            }
            Err(error) => {
                groups.iter().for_each(|&group| self.overlay.map.mark(group));
                self.fail_sync(error);
            }
        });
        overlay.file.submit(sync);
    }

    /// Writes pages, whose data is durable.
    fn write(self, pages: Vec<(usize, Vec<u8>)>) {
        if pages.is_empty() {
            return self.end(Ok(()));
        }
        let overlay = Arc::clone(&self.overlay);
        // One durable write is a write and a sync in one.
        let alone = pages.len() == 1 && self.left == 0 && overlay.file.geometry().can_fua;
        let state = SpinLock::new((Some(self), None));
        let writes = Arc::new(PageWrites { left: AtomicUsize::new(pages.len()), state });
        for (group, bytes) in pages {
            let write = Request::write(overlay.layout.page(group), bytes);
            let write = if alone { write.fua() } else { write };
            let (writes, theirs) = (Arc::clone(&writes), Arc::clone(&overlay));
            overlay.file.submit(write.on_complete(move |done| {
                if let Err(error) = done.result {
                    theirs.map.mark(group);
                    writes.state.lock().1.get_or_insert(error);
                }
                if writes.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    let (commit, error) = std::mem::take(&mut *writes.state.lock());
                    if let Some(commit) = commit {
                        commit.written(error, alone);
                    }
                }
            }));
        }
    }

    fn written(self, error: Option<IoError>, is_durable: bool) {
        match error {
            Some(error) => self.end(Err(error)),
            None if is_durable => self.end(Ok(())),
            // The next round syncs these pages along with its data, or it has none.
            None => self.round(),
        }
    }

    /// Ends the commit with the error of a sync: data before it may be lost, and the next sync
    /// might not say so.
    fn fail_sync(self, error: IoError) {
        if error.kind().may_be_a_loss(Op::Flush) {
            self.overlay.commits.state.lock().failed.get_or_insert(error.clone());
        }
        self.end(Err(error));
    }

    fn end(self, result: Result<(), IoError>) {
        for rq in self.answers {
            rq.complete(result.clone());
        }
        self.overlay.next_commit();
    }
}
