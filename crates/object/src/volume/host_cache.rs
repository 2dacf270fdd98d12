//! Reads of a folder's objects by the thread that submits them, if the host's cache has them.
//!
//! This is the Fetch of a read (../README.md) without a wait. Anything unexpected (a missing or
//! short object, a wrong checksum, a frame that another reader fetches) is left to the volume's
//! thread, which retries and reports it.

use bytes::Bytes;

use super::cache::CacheLookup;
use super::read::StoredRange;
use super::{Part, Volume};
use crate::format::{BLOCK, BlockSums};
use crate::store::{OpenFile, Store};

impl Volume {
    /// Returns verified blocks of a folder's object that the host's cache has. `None`: the volume's
    /// thread has to fetch them. Never blocks.
    pub(super) fn cached_by_host(&self, lies: &StoredRange) -> Option<Part> {
        let segment = lies.segment?;
        let store = self.home(segment.home)?;
        let file = store.open_file(segment.id, || segment.name())?;
        self.blocks(lies, store, &file).or_else(|| self.whole_frame(lies, store, &file))
    }

    /// Reads only these blocks of a frame that has a checksum of each. `None`: it hasn't, or they
    /// aren't there.
    fn blocks(&self, lies: &StoredRange, store: &Store, file: &OpenFile) -> Option<Part> {
        if self.codec.seal.is_some() {
            return None;
        }
        let blocks = BlockSums::blocks_by_length(lies.place.stored)?;
        let (front, at) = (BlockSums::front_of(blocks), u64::from(lies.place.at));
        let (skip, len) = (u64::from(lies.place.skip), (lies.len * BLOCK) as usize);
        let (sums, data) = if skip == 0 {
            let mut bytes = vec![0; front + len];
            file.read(&mut bytes, at).then_some(())?;
            let mut sums = Bytes::from(bytes);
            let data = sums.split_off(front);
            (sums, data)
        } else {
            let (mut sums, mut data) = (vec![0; front], vec![0; len]);
            let from = at + front as u64 + skip * BLOCK;
            (file.read(&mut sums, at) && file.read(&mut data, from)).then_some(())?;
            (sums.into(), data.into())
        };
        let is_right = BlockSums::decode(&lies.spot(), &sums)
            .is_ok_and(|sums| sums.blocks() == blocks && sums.fit(skip, &data));
        store.count_read((front + len) as u64);
        is_right.then_some(Part::Data(data))
    }

    /// Reads and decodes a whole frame, which later readers find in the read cache.
    fn whole_frame(&self, lies: &StoredRange, store: &Store, file: &OpenFile) -> Option<Part> {
        let fetch = match self.cache.look(lies.key(), true) {
            CacheLookup::Hit(frame) => return lies.part(&frame).ok(),
            CacheLookup::InFlight(_) => return None,
            CacheLookup::Miss(fetch) => fetch,
        };
        let mut frame = vec![0; lies.place.stored as usize];
        file.read(&mut frame, u64::from(lies.place.at)).then_some(())?;
        store.count_read(frame.len() as u64);
        let data = self.codec.data(&lies.spot(), &frame.into()).ok()?;
        fetch.done(&data);
        lies.part(&data).ok()
    }
}
