//! What the file system knows of a range: where a file has holes, and how to get a range into the cache.

use std::os::fd::AsFd;

use rustix::fs::{Advice, SeekFrom};
use rustix::io::Errno;

use super::store::Store;
use crate::error::IoError;
use crate::request::{Extent, ExtentKind, Request};

/// Bytes that one prefetch reads ahead, at most: what it starts it also waits for, as long as the disk has no room.
const AHEAD: u64 = 16 << 20;

impl Store {
    /// Answers a request for extents. A file system that doesn't know has none but data, and so has a block device. It may
    /// have allocated space that was never written: that counts as a hole, as it does to `SEEK_HOLE`. Blocks.
    pub(super) fn extents(&self, rq: &mut Request) -> Result<(), IoError> {
        let (offset, end) = (rq.offset(), rq.offset() + rq.len());
        let mut at = offset;
        while at < end {
            let data = match self.seek(SeekFrom::Data(at)) {
                Ok(data) => data.clamp(at, end),
                // Nothing but a hole up to the file's end, which may lie before the device's: that isn't known then.
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
                Ok(next) if next > data => next.min(end),
                _ => end,
            };
            if !rq.put_extent(Extent { len: next - data, kind: ExtentKind::Data }) {
                return Ok(());
            }
            at = next;
        }
        Ok(())
    }

    /// The file's own position is nobody's: all else says where.
    fn seek(&self, to: SeekFrom) -> Result<u64, Errno> {
        rustix::fs::seek(self.file().as_fd(), to)
    }

    /// Has the system read a range ahead. May block.
    pub(super) fn prefetch(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let len = std::num::NonZeroU64::new(len.min(AHEAD));
        match rustix::fs::fadvise(self.file(), offset, len, Advice::WillNeed) {
            // A hint that can't be followed has harmed nobody.
            Ok(()) | Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::SPIPE) => Ok(()),
            Err(error) => Err(IoError::from_errno(error.raw_os_error())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    fn found(store: &Store, offset: u64, len: u64, most: u32) -> Vec<(u64, ExtentKind)> {
        let mut rq = Request::extents_of(offset, len, most);
        store.perform(&mut rq, 0).unwrap();
        rq.extents().unwrap().iter().map(|e| (e.len, e.kind)).collect()
    }

    #[test]
    fn the_holes_of_a_sparse_file_are_told_and_nothing_behind_its_end_is() {
        const MIB: u64 = 1 << 20;
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 40).unwrap();
        file.write_all_at(&[7; MIB as usize], 8 * MIB).unwrap();
        let store = Store::new(file, "a test", None).of_length(1 << 40);
        let (hole, data) = (ExtentKind::Hole, ExtentKind::Data);
        let all = found(&store, 0, 1 << 40, 100);
        if all == [(1 << 40, data)] {
            return println!("the file system of the temporary folder knows no holes");
        }
        assert_eq!(all, [(8 * MIB, hole), (MIB, data), ((1 << 40) - 9 * MIB, hole)]);
        assert_eq!(found(&store, 8 * MIB + 4096, MIB, 1), [(MIB - 4096, data)]);
        assert_eq!(found(&store, MIB, MIB, 100), [(MIB, hole)]);
        store.perform(&mut Request::write_zeroes(8 * MIB, MIB), 0).unwrap();
        assert_eq!(found(&store, 0, 16 * MIB, 100), [(16 * MIB, hole)], "a zeroed range is a hole");
        store.file().set_len(16 * MIB).unwrap();
        let cut = found(&store, 0, 32 * MIB, 100);
        assert_eq!(cut, [(16 * MIB, hole), (16 * MIB, data)], "nobody knows what was cut off");
    }

    #[test]
    fn a_prefetch_is_a_hint_of_any_length() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 40).unwrap();
        let store = Store::new(file, "a test", None).of_length(1 << 40);
        store.perform(&mut Request::prefetch(4096, 1 << 39), 0).unwrap();
    }
}
