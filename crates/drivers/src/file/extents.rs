//! Ranges in a file system: the holes of a file, and reading a range into the cache.

use std::ops::Range;
use std::os::fd::AsFd;

use corewise_blockmq::{Extent, ExtentKind, IoError, RequestMut};
use corewise_sync::Mutex;
use rustix::fs::{Advice, SeekFrom};
use rustix::io::Errno;

use super::store::Store;

/// Most bytes that one prefetch reads ahead: it waits for the reads that it starts as long as the
/// disk has no room.
const AHEAD: u64 = 16 << 20;

/// The data that was found last. `SEEK_HOLE` walks through all data up to the next hole (on tmpfs
/// page by page), and a client that copies a file asks for each piece of it.
#[derive(Default)]
pub(super) struct ExtentCache {
    /// L: itself: the place of that data, and the number of times that a part of the file has been
    /// freed since it was opened. A file that another program changes may have holes there: they
    /// are read as zeroes, as data is.
    last: Mutex<(Range<u64>, u64)>,
}

impl ExtentCache {
    /// Returns the end of the data that `at` lies in, if that is known; and the count that
    /// [`ExtentCache::keep`] needs.
    fn end(&self, at: u64) -> (Option<u64>, u64) {
        let last = self.last.lock();
        (last.0.contains(&at).then_some(last.0.end), last.1)
    }

    /// Keeps data that was found when `freed` parts had been freed. A part that was freed meanwhile
    /// may lie in it.
    fn keep(&self, data: Range<u64>, freed: u64) {
        let mut last = self.last.lock();
        if last.1 == freed {
            last.0 = data;
        }
    }

    /// Notes that a part of the file has been freed.
    pub(super) fn freed(&self) {
        let mut last = self.last.lock();
        *last = (0..0, last.1 + 1);
    }
}

impl Store {
    /// Answers a request for extents. A file system that doesn't know reports only data, and so
    /// does a block device. Allocated space that was never written counts as a hole, as it does to
    /// `SEEK_HOLE`. Blocks.
    pub(super) fn extents(&self, rq: &mut RequestMut<'_>) -> Result<(), IoError> {
        let (offset, end) = (rq.offset(), rq.offset() + rq.len());
        let mut at = offset;
        while at < end {
            let (known, freed) = self.found().end(at);
            if let Some(known) = known {
                let len = known.min(end) - at;
                if !rq.put_extent(Extent { len, kind: ExtentKind::Data }) {
                    return Ok(());
                }
                at += len;
                continue;
            }
            let data = match self.seek(SeekFrom::Data(at)) {
                Ok(data) => data.clamp(at, end),
                // There is nothing but a hole up to the file's end. That may lie before the
                // device's end: the rest isn't known then.
                Err(Errno::NXIO) => {
                    self.seek(SeekFrom::End(0)).map_or(at, |there| there.clamp(at, end))
                }
                Err(_) => at,
            };
            let hole = ExtentKind::Hole;
            if data > at && (!rq.put_extent(Extent { len: data - at, kind: hole }) || data == end) {
                return Ok(());
            }
            let next = match self.seek(SeekFrom::Hole(data)) {
                Ok(next) if next > data => {
                    self.found().keep(data..next, freed);
                    next.min(end)
                }
                _ => end,
            };
            if !rq.put_extent(Extent { len: next - data, kind: ExtentKind::Data }) {
                return Ok(());
            }
            at = next;
        }
        Ok(())
    }

    /// Seeks in the file, whose own position no other code uses.
    fn seek(&self, to: SeekFrom) -> Result<u64, Errno> {
        rustix::fs::seek(self.file().as_fd(), to)
    }

    /// Makes the system read a range ahead. May block.
    pub(super) fn prefetch(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let len = std::num::NonZeroU64::new(len.min(AHEAD));
        match rustix::fs::fadvise(self.file(), offset, len, Advice::WillNeed) {
            // A hint that can't be followed does no harm.
            Ok(()) | Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::SPIPE) => Ok(()),
            Err(error) => Err(IoError::from_errno(error.raw_os_error())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::super::fault_reporter::FaultReporter;
    use super::super::store::PUNCH;
    use super::*;
    use crate::file::loss::OnLoss;
    use corewise_blockmq::Request;

    fn found(store: &Store, offset: u64, len: u64, most: u32) -> Vec<(u64, ExtentKind)> {
        let mut rq = Request::extents_of(offset, len, most);
        store.perform(&mut RequestMut::from(&mut rq), 0).unwrap();
        rq.extents().unwrap().iter().map(|e| (e.len, e.kind)).collect()
    }

    #[test]
    fn the_holes_of_a_sparse_file_are_told_and_nothing_behind_its_end_is() {
        const MIB: u64 = 1 << 20;
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 40).unwrap();
        file.write_all_at(&[7; MIB as usize], 8 * MIB).unwrap();
        let store = Store::new(
            crate::file_guard::FileGuard::without_path(file),
            FaultReporter::of_test("a test"),
            None,
        )
        .of_length(1 << 40, OnLoss::Error);
        let (hole, data) = (ExtentKind::Hole, ExtentKind::Data);
        let all = found(&store, 0, 1 << 40, 100);
        if all == [(1 << 40, data)] {
            return println!("the file system of the temporary folder knows no holes");
        }
        assert_eq!(all, [(8 * MIB, hole), (MIB, data), ((1 << 40) - 9 * MIB, hole)]);
        assert_eq!(found(&store, 8 * MIB + 4096, MIB, 1), [(MIB - 4096, data)]);
        assert_eq!(found(&store, MIB, MIB, 100), [(MIB, hole)]);
        // Found data stays known when another program frees it, and is looked for again once this
        // store has freed a part.
        rustix::fs::fallocate(store.file(), PUNCH, 8 * MIB, 2 * 4096).unwrap();
        assert_eq!(found(&store, 8 * MIB + 4096, MIB, 1), [(MIB - 4096, data)]);
        let (_, freed) = store.found().end(0);
        store.perform(&mut RequestMut::from(&mut Request::discard(0, 4096)), 0).unwrap();
        assert_eq!(found(&store, 8 * MIB + 4096, MIB, 2)[0], (4096, hole));
        store.found().freed();
        store.found().keep(0..MIB, freed);
        assert_eq!(store.found().end(0).0, None, "it was found before a part was freed");
        store.perform(&mut RequestMut::from(&mut Request::write_zeroes(8 * MIB, MIB)), 0).unwrap();
        assert_eq!(found(&store, 0, 16 * MIB, 100), [(16 * MIB, hole)], "a zeroed range is a hole");
        store.file().set_len(16 * MIB).unwrap();
        let cut = found(&store, 0, 32 * MIB, 100);
        assert_eq!(cut, [(16 * MIB, hole), (16 * MIB, data)], "nobody knows what was cut off");
    }

    #[test]
    fn a_prefetch_is_a_hint_of_any_length() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 40).unwrap();
        let store = Store::new(
            crate::file_guard::FileGuard::without_path(file),
            FaultReporter::of_test("a test"),
            None,
        )
        .of_length(1 << 40, OnLoss::Error);
        store.perform(&mut RequestMut::from(&mut Request::prefetch(4096, 1 << 39)), 0).unwrap();
    }
}
