//! What clients were promised: of each block the versions that were sent, acknowledged and made
//! durable.

use crate::disk::SECTOR;

pub(crate) const BLOCK: usize = 4096;
pub(crate) const BLOCKS: usize = 8;
/// Bytes of a device that clients use.
pub(crate) const SIZE: usize = BLOCK * BLOCKS;

/// What a version makes of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Content {
    Data,
    Zeroes,
    /// Zeroes, or what was there before.
    Trimmed,
}

struct Block {
    /// All begin as zeroes.
    sent: Vec<Content>,
    /// The newest version that was acknowledged, and that no crash since has been allowed to take.
    acked: usize,
    /// The newest one that no crash may take.
    durable: usize,
    /// It was acknowledged in this life.
    is_of_this_life: bool,
    /// A change is on its way.
    busy: bool,
    /// What was read, or acknowledged to have been written, and not changed since in this life.
    seen: Option<Vec<u8>>,
}

pub(crate) struct Ledger {
    blocks: Vec<Block>,
}

impl Ledger {
    pub(crate) fn new() -> Ledger {
        let block = || Block {
            sent: vec![Content::Zeroes],
            acked: 0,
            durable: 0,
            is_of_this_life: false,
            busy: false,
            seen: None,
        };
        Ledger { blocks: (0..BLOCKS).map(|_| block()).collect() }
    }

    /// A life ends. `keeps`: the disks' caches are as they were.
    pub(crate) fn end(&mut self, keeps: bool) {
        for block in &mut self.blocks {
            if !keeps {
                block.acked = block.durable;
            }
            (block.busy, block.seen, block.is_of_this_life) = (false, None, false);
        }
    }

    /// What was acknowledged in this life is said to be durable.
    pub(crate) fn all_durable(&mut self) {
        for block in self.blocks.iter_mut().filter(|block| block.is_of_this_life) {
            block.durable = block.acked;
        }
    }

    pub(crate) fn is_busy(&self, block: usize) -> bool {
        self.blocks[block].busy
    }

    /// A change is sent: its version.
    pub(crate) fn send(&mut self, block: usize, content: Content) -> usize {
        let block = &mut self.blocks[block];
        block.sent.push(content);
        (block.busy, block.seen) = (true, None);
        block.sent.len() - 1
    }

    /// A change has succeeded, or not.
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

    /// A change is in doubt for good: its client has left, and so has the change.
    pub(crate) fn given_up(&mut self, block: usize) {
        self.blocks[block].busy = false;
    }

    /// What a flush that is sent now makes durable.
    pub(crate) fn acked(&self) -> Vec<usize> {
        self.blocks.iter().map(|block| block.acked).collect()
    }

    pub(crate) fn flushed(&mut self, acked: &[usize]) {
        for (block, &acked) in self.blocks.iter_mut().zip(acked) {
            block.durable = block.durable.max(acked);
        }
    }

    /// How many changes were sent to a block: who reads it while that stays so knows what it may
    /// find.
    pub(crate) fn sent(&self, block: usize) -> usize {
        self.blocks[block].sent.len()
    }

    /// Whether a client may read this. Content that it has seen stays, until it is changed.
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

    /// Whether a block may be this: the newest version that was acknowledged, or one that was sent
    /// later.
    pub(crate) fn may_be(&self, at: usize, found: &[u8]) -> Result<(), String> {
        self.is_since(self.blocks[at].acked, at, found)
    }

    /// Whether it may be this where all was lost that may be.
    pub(crate) fn is_durable(&self, at: usize, found: &[u8]) -> Result<(), String> {
        self.is_since(self.blocks[at].durable, at, found)
    }

    /// Whether it is this version or one that was sent later. Each sector for itself: a crash
    /// tears.
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

/// What the sectors say of themselves: block, version, sector.
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
