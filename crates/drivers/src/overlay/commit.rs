//! Commits: the data of an overlay and then its map become durable, for all flushes that wait.

use std::collections::BTreeSet;
use std::sync::Arc;

use corewise_blockmq::{BlockDevice, HeldRequest, IoError, Op, Request};
use corewise_sync::SpinLock;
use corewise_sync::atomic::{AtomicUsize, Ordering};

use super::OverlayState;
use super::header::Layout;

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

/// A commit, and the step that it takes next.
type NextStep<F> = (Commit, F);

/// Pages of a commit that are being written.
struct PageWrites<F> {
    /// A: number of writes that haven't ended. AcqRel: the last one sees the others' errors.
    left: AtomicUsize,
    /// L: is the lock, taken by the ends of the writes; guards the first error, and what follows
    /// the last write.
    state: SpinLock<(Option<IoError>, Option<NextStep<F>>)>,
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
        let encode = |&group: &usize| (overlay.layout.page(group), overlay.map.encode(group));
        let pages: Vec<_> = groups.iter().map(encode).collect();
        let sync = Request::flush().on_complete(move |done| match done.result {
            Ok(()) => {
                self.overlay.commits.state.lock().synced = true;
                if groups.is_empty() {
                    return self.end(Ok(()));
                }
                let alone = self.is_alone(&pages);
                self.write(pages, alone, move |commit, result| match result {
                    Ok(()) => commit.written(groups, alone),
                    Err(error) => commit.fail_write(&groups, error),
                });
            }
            Err(error) => self.fail_sync(&groups, error),
        });
        overlay.file.submit(sync);
    }

    /// Returns true if these pages are the last ones, and one durable write: that is a write and a
    /// sync in one.
    fn is_alone(&self, pages: &[(u64, Vec<u8>)]) -> bool {
        pages.len() == 1 && self.left == 0 && self.overlay.file.geometry().can_fua
    }

    /// Writes pages to their places, of which there is one at least, and then calls `then`.
    fn write<F>(self, pages: Vec<(u64, Vec<u8>)>, fua: bool, then: F)
    where
        F: FnOnce(Commit, Result<(), IoError>) + Send + 'static,
    {
        let overlay = Arc::clone(&self.overlay);
        let state = SpinLock::new((None, Some((self, then))));
        let writes = Arc::new(PageWrites { left: AtomicUsize::new(pages.len()), state });
        for (place, bytes) in pages {
            let write = Request::write(place, bytes);
            let write = if fua { write.fua() } else { write };
            let writes = Arc::clone(&writes);
            overlay.file.submit(write.on_complete(move |done| {
                if let Err(error) = done.result {
                    writes.state.lock().0.get_or_insert(error);
                }
                if writes.left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    let (error, next) = std::mem::take(&mut *writes.state.lock());
                    if let Some((commit, then)) = next {
                        then(commit, error.map_or(Ok(()), Err));
                    }
                }
            }));
        }
    }

    /// Continues when the pages of `groups` are written.
    fn written(self, mut groups: Vec<usize>, is_durable: bool) {
        groups.retain(|&group| !self.overlay.map.is_named(group));
        match (groups.is_empty(), is_durable) {
            (true, true) => self.end(Ok(())),
            // The next round syncs these pages along with its data, or it has none.
            (true, false) => self.round(),
            (false, true) => self.name(groups),
            (false, false) => self.sync(groups, Self::name),
        }
    }

    /// Syncs the file, and calls `then`.
    fn sync(self, groups: Vec<usize>, then: impl FnOnce(Self, Vec<usize>) + Send + 'static) {
        let overlay = Arc::clone(&self.overlay);
        overlay.file.submit(Request::flush().on_complete(move |done| match done.result {
            Ok(()) => then(self, groups),
            Err(error) => self.fail_sync(&groups, error),
        }));
    }

    /// Names groups in the directory (Name). Their pages are durable.
    fn name(self, groups: Vec<usize>) {
        let overlay = Arc::clone(&self.overlay);
        let has = overlay.header.newest().directory;
        let of = |&group: &usize| Layout::directory_of(group);
        let needs = groups.iter().map(of).max().map_or(0, |last| last + 1).max(has);
        // Pages between the present end of the directory and the new one name no group.
        let pages: BTreeSet<usize> = groups.iter().map(of).chain(has..needs).collect();
        let count = overlay.layout.groups(overlay.size());
        let encode = |at: usize| {
            (overlay.layout.directory(at), overlay.map.encode_names(at, &groups, count))
        };
        let pages: Vec<_> = pages.into_iter().map(encode).collect();
        let alone = self.is_alone(&pages);
        self.write(pages, alone, move |commit, result| match result {
            Err(error) => commit.fail_write(&groups, error),
            Ok(()) if needs == has => commit.named(&groups, alone),
            Ok(()) if alone => commit.extend_directory(groups, needs),
            Ok(()) => commit.sync(groups, move |commit, groups| {
                commit.extend_directory(groups, needs);
            }),
        });
    }

    /// Makes the header say that the directory has `pages` pages, which are durable.
    fn extend_directory(self, groups: Vec<usize>, pages: usize) {
        let overlay = Arc::clone(&self.overlay);
        overlay.change_header(
            move |header| header.directory = pages,
            move |result| match result {
                Ok(()) => self.named(&groups, true),
                Err(error) => self.fail_write(&groups, error),
            },
        );
    }

    /// Continues when groups are named.
    fn named(self, groups: &[usize], is_durable: bool) {
        groups.iter().for_each(|&group| self.overlay.map.set_named(group));
        match is_durable && self.left == 0 {
            true => self.end(Ok(())),
            false => self.round(),
        }
    }

    /// Ends the commit with the error of a write. The next commit writes the pages once more.
    fn fail_write(self, groups: &[usize], error: IoError) {
        groups.iter().for_each(|&group| self.overlay.map.mark(group));
        self.end(Err(error));
    }

    /// Ends the commit with the error of a sync: data before it may be lost, and the next sync
    /// might not say so.
    fn fail_sync(self, groups: &[usize], error: IoError) {
        if error.kind().may_be_a_loss(Op::Flush) {
            self.overlay.commits.state.lock().failed.get_or_insert(error.clone());
        }
        self.fail_write(groups, error);
    }

    fn end(self, result: Result<(), IoError>) {
        for rq in self.answers {
            rq.complete(result.clone());
        }
        self.overlay.next_commit();
    }
}
