//! The promises made to clients: the versions of each block that were sent, acknowledged and made
//! durable.

use crate::disk::SECTOR;

pub(crate) const BLOCK: usize = 4096;
pub(crate) const BLOCKS: usize = 8;
/// Bytes of a device that clients use.
pub(crate) const SIZE: usize = BLOCK * BLOCKS;

/// The contents that a version gives a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Content {
    Data,
    Zeroes,
    /// Zeroes, or the contents before.
    Trimmed,
}

struct Block {
    /// Contents of the sent versions. The first one is that of the beginning.
    sent: Vec<Content>,
    /// Newest version that was acknowledged, and that no crash since has been allowed to take.
    acked: usize,
    /// Newest version that no crash may take.
    durable: usize,
    /// True if it was acknowledged in this life.
    is_of_this_life: bool,
    /// True while a change is on its way.
    busy: bool,
    /// Contents that were read, or acknowledged as written, and not changed since in this life.
    seen: Option<Vec<u8>>,
}

pub(crate) struct Ledger {
    blocks: Vec<Block>,
    /// Checkpoints that were acknowledged, each with the bytes of the device then.
    pub(crate) checkpoints: Vec<(String, Vec<u8>)>,
    /// Number of names of checkpoints.
    named: usize,
}

impl Ledger {
    /// Creates the ledger of a device whose blocks have these contents at the beginning.
    pub(crate) fn new(first: Content) -> Ledger {
        let block = || Block {
            sent: vec![first],
            acked: 0,
            durable: 0,
            is_of_this_life: false,
            busy: false,
            seen: None,
        };
        Ledger { blocks: (0..BLOCKS).map(|_| block()).collect(), checkpoints: Vec::new(), named: 0 }
    }

    /// Ends a life. `keeps` says whether the disks' caches stay as they are.
    pub(crate) fn end(&mut self, keeps: bool) {
        for block in &mut self.blocks {
            if !keeps {
                block.acked = block.durable;
            }
            (block.busy, block.seen, block.is_of_this_life) = (false, None, false);
        }
    }

    /// Records that the changes acknowledged in this life are durable.
    pub(crate) fn all_durable(&mut self) {
        for block in self.blocks.iter_mut().filter(|block| block.is_of_this_life) {
            block.durable = block.acked;
        }
    }

    /// Returns a name that no checkpoint has had.
    pub(crate) fn checkpoint_name(&mut self) -> String {
        self.named += 1;
        format!("c{}", self.named)
    }

    pub(crate) fn is_busy(&self, block: usize) -> bool {
        self.blocks[block].busy
    }

    /// Records a sent change, and returns its version.
    pub(crate) fn send(&mut self, block: usize, content: Content) -> usize {
        let block = &mut self.blocks[block];
        block.sent.push(content);
        (block.busy, block.seen) = (true, None);
        block.sent.len() - 1
    }

    /// Records the result of a change.
    pub(crate) fn answered(&mut self, at: usize, version: usize, fua: bool, good: bool) {
        let block = &mut self.blocks[at];
        block.busy = false;
        if !good {
            return;
        }
        (block.acked, block.is_of_this_life) = (version, true);
        if fua {
            block.durable = version;
        }
        block.seen = match block.sent[version] {
            Content::Data => Some(content(at, version)),
            Content::Zeroes => Some(vec![0; BLOCK]),
            Content::Trimmed => None,
        };
    }

    /// Records that the result of a change stays unknown: its client has left, and the change has
    /// ended.
    pub(crate) fn given_up(&mut self, block: usize) {
        self.blocks[block].busy = false;
    }

    /// Returns the versions that a flush sent now makes durable.
    pub(crate) fn acked(&self) -> Vec<usize> {
        self.blocks.iter().map(|block| block.acked).collect()
    }

    pub(crate) fn flushed(&mut self, acked: &[usize]) {
        for (block, &acked) in self.blocks.iter_mut().zip(acked) {
            block.durable = block.durable.max(acked);
        }
    }

    /// Returns the number of changes sent to a block. A reader whose number stays the same knows
    /// the allowed contents.
    pub(crate) fn sent(&self, block: usize) -> usize {
        self.blocks[block].sent.len()
    }

    /// Checks contents that a client has read. Contents that a client has seen stay until they are
    /// changed.
    pub(crate) fn judge(&mut self, at: usize, found: &[u8]) -> Result<(), String> {
        if self.blocks[at].seen.as_ref().is_some_and(|seen| seen != found) {
            return Err(format!("block {at} changed by itself: {}", versions(found)));
        }
        self.may_be(at, found)?;
        let block = &mut self.blocks[at];
        if !block.busy {
            block.seen = Some(found.to_vec());
        }
        Ok(())
    }

    /// Checks that a block is the newest acknowledged version, or one that was sent later.
    pub(crate) fn may_be(&self, at: usize, found: &[u8]) -> Result<(), String> {
        self.is_since(self.blocks[at].acked, at, found)
    }

    /// Checks that a block is allowed if all was lost that may be.
    pub(crate) fn is_durable(&self, at: usize, found: &[u8]) -> Result<(), String> {
        self.is_since(self.blocks[at].durable, at, found)
    }

    /// Checks that a block is this version or one that was sent later. Each sector counts by
    /// itself, since a crash tears.
    fn is_since(&self, least: usize, at: usize, found: &[u8]) -> Result<(), String> {
        let block = &self.blocks[at];
        let data = |n: usize, found: &[u8], version: usize| {
            block.sent[version] == Content::Data && found == sector(at, version, n)
        };
        for (n, found) in found.chunks(SECTOR).enumerate() {
            let is_zero = found.iter().all(|byte| *byte == 0);
            let may_be = |version: usize| match block.sent[version] {
                Content::Data => data(n, found, version),
                Content::Zeroes => is_zero,
                Content::Trimmed => is_zero || (0..version).any(|old| data(n, found, old)),
            };
            if !(least..block.sent.len()).any(may_be) {
                return Err(format!(
                    "sector {n} of block {at} is {}, and not version {least} or a later one of {}",
                    versions(found),
                    block.sent.len()
                ));
            }
        }
        Ok(())
    }
}

/// Returns the versions written in the sectors: block, version, sector.
fn versions(found: &[u8]) -> String {
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let each = found.chunks(SECTOR).map(|sector| match word(&sector[8..16]) {
        0 => "zeroes".to_owned(),
        version => format!("{}v{}", word(&sector[..8]).wrapping_sub(1), version - 1),
    });
    each.collect::<Vec<_>>().join(" ")
}

pub(crate) fn content(block: usize, version: usize) -> Vec<u8> {
    (0..BLOCK / SECTOR).flat_map(|n| sector(block, version, n)).collect()
}

fn sector(block: usize, version: usize, n: usize) -> [u8; SECTOR] {
    let words = [block, version, n].map(|word| (word as u64 + 1).to_le_bytes());
    let mut sector = [0; SECTOR];
    for (at, word) in sector.chunks_exact_mut(8).zip(words.iter().cycle()) {
        at.copy_from_slice(word);
    }
    sector
}
