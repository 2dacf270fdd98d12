//! Changes of a whole overlay: reset, commit into the base, flatten. A crash in the middle of one
//! is completed when the overlay is opened.

use std::ops::Range;
use std::sync::Arc;

use corewise_blockmq::{BlockDevice, BlockDeviceExt, IoError, IoErrorKind};
use corewise_sync::atomic::Ordering;

use super::fetch::{Cursor, FetchPolicy, is_zero};
use super::header::{HEADERS, WholeChange};
use super::open::{identity, interrupted_commit};
use super::{Overlay, OverlayState};
use crate::below::StackError;

/// Most bytes that are copied, and that are zeroed, at once.
const PIECE: u64 = 1 << 20;
const ZEROES: u64 = 1 << 30;

impl Overlay {
    /// Gives all own blocks up, so that the overlay has the content of its base. No request may be
    /// inside: freeze the queue first. May block.
    ///
    /// # Errors
    /// If it has no base any more, or a request fails. Then the next open completes the reset.
    pub fn reset(&self) -> Result<(), StackError> {
        let state = &self.inner;
        // The background begins anew after that.
        let mut still = state.fetch.cursor.lock();
        *still = Cursor::default();
        state.fetch.wait_for_kept();
        state.needs_base("reset")?;
        state.write_header(|header| (header.change, header.directory) = (WholeChange::Reset, 0))?;
        Ok(state.wipe()?)
    }

    /// Copies all own blocks into the base, and gives them up here. No request may be inside:
    /// freeze the queue first. Nobody else may use the base. May block.
    ///
    /// # Errors
    /// If it has no base any more, the base is read-only or smaller, or a request fails. Then the
    /// next open completes the commit.
    pub fn commit(&self) -> Result<(), StackError> {
        let state = &self.inner;
        // The background begins anew after that.
        let mut still = state.fetch.cursor.lock();
        *still = Cursor::default();
        state.fetch.wait_for_kept();
        state.needs_base("commit")?;
        state.may_commit()?;
        state.sync()?;
        state.write_header(|header| header.change = WholeChange::Commit)?;
        Ok(state.copy_to_base()?)
    }

    /// Begins to fetch all blocks of the base, as fast as the fetch rate lets it. Once that is
    /// done, the overlay needs its base no more, and the observer is notified. After a crash or an
    /// end of the process, the next open goes on with it. May block.
    ///
    /// # Errors
    /// If it has every block already, or the header can't be written.
    pub fn flatten(&self) -> Result<(), StackError> {
        let state = &self.inner;
        state.needs_base("flatten")?;
        state.write_header(|header| header.flatten = header.base.is_some())?;
        state.fetch.all.store(true, Ordering::Relaxed);
        state.fetch.kick();
        Ok(())
    }

    /// Sets which blocks are fetched from the base, and at most how many bytes a second. A
    /// [flatten](Overlay::flatten) that is under way goes on, at the new rate. Any context.
    pub fn set_fetch(&self, fetch: FetchPolicy, rate: u64) {
        let state = &self.inner;
        state.fetch.set(fetch, rate, state.header.newest().flatten);
    }

    /// Stops fetching, and waits until nothing is being fetched: before the file is closed. May
    /// block.
    pub fn settle(&self) {
        self.inner.fetch.settle();
    }
}

impl OverlayState {
    fn needs_base(&self, what: &str) -> Result<(), StackError> {
        if self.base.lock().is_some() {
            return Ok(());
        }
        let name = self.file.name();
        Err(StackError::new(format!(
            "the overlay in '{name}' has every block and no base any more: there is nothing to {what}"
        )))
    }

    /// Checks that the base takes the overlay's blocks.
    fn may_commit(&self) -> Result<(), StackError> {
        let base = self.base()?;
        if base.geometry().read_only {
            return Err(StackError::new(format!(
                "'{}' is read-only: a commit of the overlay in '{}' writes to it. Open it for \
                 writing",
                base.name(),
                self.file.name()
            )));
        }
        if self.size() > self.base_size {
            return Err(StackError::new(format!(
                "the overlay in '{}' has {} bytes, and its base '{}' only {}: grow the base first",
                self.file.name(),
                self.size(),
                base.name(),
                self.base_size
            )));
        }
        Ok(())
    }

    /// Completes the change that a header says is under way. `base_in_use` is the reason why nobody
    /// may write to the base.
    pub(super) fn complete_change(
        self: &Arc<Self>,
        base_in_use: Option<String>,
    ) -> Result<(), StackError> {
        let change = self.header.newest().change;
        match change {
            WholeChange::None => Ok(()),
            WholeChange::Reset => Ok(self.wipe()?),
            WholeChange::Commit => {
                let may = base_in_use.map_or(Ok(()), |why| Err(StackError::new(why)));
                let done = may.and_then(|()| self.may_commit()).and_then(|()| {
                    self.copy_to_base()?;
                    Ok(())
                });
                done.map_err(|error| interrupted_commit(&*self.file, &error))
            }
        }
    }

    /// Zeroes the map and the places of all blocks, and ends the change.
    fn wipe(self: &Arc<Self>) -> Result<(), IoError> {
        let end = self.file.geometry().size;
        let mut at = HEADERS;
        while at < end {
            let len = ZEROES.min(end - at);
            self.file.write_zeroes(at, len)?;
            at += len;
        }
        self.file.flush()?;
        self.map.clear();
        self.write_header(|header| header.change = WholeChange::None)
    }

    /// Copies own blocks to the base, and continues as a reset to what the base has then.
    fn copy_to_base(self: &Arc<Self>) -> Result<(), IoError> {
        let (base, size) = (self.base()?, self.size());
        let mut at = 0;
        while at < size {
            self.load_now(self.layout.group(at))?;
            let Some((own, len)) = self.map.run(at, size) else {
                return Err(IoError::new(IoErrorKind::Gone));
            };
            let bytes = at..at + if own { len.min(PIECE) } else { len };
            at = bytes.end;
            if own {
                self.copy_piece(&*base, bytes)?;
            }
        }
        base.flush()?;
        let identity = identity(&*base)?;
        self.write_header(move |header| {
            (header.base, header.change) = (Some(identity), WholeChange::Reset);
            header.directory = 0;
        })?;
        self.wipe()
    }

    fn copy_piece(&self, base: &dyn BlockDevice, bytes: Range<u64>) -> Result<(), IoError> {
        let len = bytes.end - bytes.start;
        let data = self.file.read_at(self.layout.place(bytes.start), len as usize)?;
        if base.geometry().can_write_zeroes && is_zero(&data) {
            return base.write_zeroes(bytes.start, len);
        }
        base.write_at(bytes.start, data)
    }
}
