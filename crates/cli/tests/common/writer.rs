//! A client that knows what it wrote: which versions of each block it sent, which were
//! acknowledged, and which were flushed when.

use std::collections::HashMap;
use std::path::PathBuf;

use fastrand::Rng;

use super::client::{Client, FLUSH, FUA, WRITE, WRITE_ZEROES};
use super::replay::count;

pub const BLOCK: usize = 4096;
pub const SECTOR: usize = 512;
pub const BLOCKS: usize = 96;
/// Requests in flight at once.
pub const DEPTH: usize = 8;

/// The disk that a [`Writer`] writes to. Commands and flags are those of NBD.
pub trait Disk {
    /// Sends a request without waiting for its reply.
    fn send(&mut self, command: u16, flags: u16, offset: u64, length: u32, data: &[u8]) -> u64;

    /// Waits until a request has succeeded, and returns its cookie.
    fn receive(&mut self) -> u64;
}

impl Disk for Client {
    fn send(&mut self, command: u16, flags: u16, offset: u64, length: u32, data: &[u8]) -> u64 {
        Client::send(self, command, flags, offset, length, data).expect("a server that listens")
    }

    fn receive(&mut self) -> u64 {
        let (cookie, result) = Client::receive(self, 0).expect("a server that answers");
        result.expect("a request that succeeds");
        cookie
    }
}

/// Returns a seed, the same in each run unless the environment has another.
pub fn seed() -> u64 {
    let given = std::env::var("COREWISE_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or(1)
}

/// Versions that were durable for sure when the logs had that many entries.
struct Durable {
    counts: Vec<usize>,
    block: usize,
    version: usize,
}

/// A client that knows what it wrote: each sector holds its block and version.
pub struct Writer {
    logs: Vec<PathBuf>,
    pub chance: Rng,
    /// Versions of each block that were sent; true for one that zeroes. All blocks begin as zeroes.
    pub sent: Vec<Vec<bool>>,
    /// Newest acknowledged version of each block.
    pub acked: Vec<usize>,
    durable: Vec<Durable>,
}

enum InFlight {
    Write {
        block: usize,
        version: usize,
        fua: bool,
    },
    /// Versions that were acknowledged when the flush was sent.
    Flush(Vec<usize>),
}

impl Writer {
    pub fn new(logs: Vec<PathBuf>, seed: u64) -> Writer {
        let (sent, acked) = (vec![vec![true]; BLOCKS], vec![0; BLOCKS]);
        Writer { logs, chance: Rng::with_seed(seed), sent, acked, durable: Vec::new() }
    }

    /// Sends requests, several at once, and waits for their replies; with `leaves`, not for the
    /// last ones.
    pub fn work(&mut self, client: &mut impl Disk, requests: usize, leaves: bool) {
        let mut flying: HashMap<u64, InFlight> = HashMap::new();
        for _ in 0..requests {
            let busy = |block: &usize| {
                let on_it =
                    |f: &InFlight| matches!(f, InFlight::Write { block: b, .. } if b == block);
                flying.values().any(on_it)
            };
            if self.chance.u64(..8) == 0 {
                let cookie = client.send(FLUSH, 0, 0, 0, &[]);
                flying.insert(cookie, InFlight::Flush(self.acked.clone()));
            } else {
                let mut block = self.chance.u64(..BLOCKS as u64) as usize;
                while busy(&block) {
                    block = (block + 1) % BLOCKS;
                }
                let fua = self.chance.u64(..6) == 0;
                let zeroes = self.chance.u64(..6) == 0;
                let version = self.sent[block].len();
                self.sent[block].push(zeroes);
                let flags = if fua { FUA } else { 0 };
                let at = (block * BLOCK) as u64;
                let cookie = match zeroes {
                    true => client.send(WRITE_ZEROES, flags, at, BLOCK as u32, &[]),
                    false => client.send(WRITE, flags, at, BLOCK as u32, &content(block, version)),
                };
                flying.insert(cookie, InFlight::Write { block, version, fua });
            }
            while flying.len() >= DEPTH {
                self.receive(client, &mut flying);
            }
        }
        while !leaves && !flying.is_empty() {
            self.receive(client, &mut flying);
        }
    }

    fn receive(&mut self, client: &mut impl Disk, flying: &mut HashMap<u64, InFlight>) {
        let cookie = client.receive();
        let counts: Vec<usize> = self.logs.iter().map(|log| count(log)).collect();
        let mut durable = |block, version| {
            self.durable.push(Durable { counts: counts.clone(), block, version });
        };
        match flying.remove(&cookie).expect("a request in flight") {
            InFlight::Write { block, version, fua } => {
                self.acked[block] = version;
                if fua {
                    durable(block, version);
                }
            }
            InFlight::Flush(acked) => {
                acked.into_iter().enumerate().for_each(|(block, version)| durable(block, version));
            }
        }
    }

    /// Checks an image of a crash in which the logs had these entries: each block has its newest
    /// durable version, or one that was sent later.
    #[track_caller]
    pub fn check(&self, image: &[u8], counts: &[usize], when: &str) {
        let mut least = vec![0; BLOCKS];
        let is_so = |d: &&Durable| d.counts.iter().zip(counts).all(|(then, now)| then <= now);
        for d in self.durable.iter().filter(is_so) {
            least[d.block] = least[d.block].max(d.version);
        }
        for (block, &least) in least.iter().enumerate() {
            for n in 0..BLOCK / SECTOR {
                let at = block * BLOCK + n * SECTOR;
                let found = &image[at..at + SECTOR];
                let sent = &self.sent[block];
                // A sector holds its version. A sector of zeroes has the newest version that
                // zeroes.
                let says = u64::from_le_bytes(found[8..16].try_into().expect("8 bytes"));
                let version = match says.checked_sub(1) {
                    Some(version) => version as usize,
                    None => sent.iter().rposition(|zeroes| *zeroes).expect("all begin as zeroes"),
                };
                let whole = match says {
                    0 => found.iter().all(|byte| *byte == 0),
                    _ => *found == sector(block, version, n),
                };
                assert!(
                    whole && (least..sent.len()).contains(&version),
                    "{when}: sector {n} of block {block} is older than version {least}, or torn: \
                     {:?}",
                    &found[..24]
                );
            }
        }
    }
}

/// Returns a version of a block.
pub fn content(block: usize, version: usize) -> Vec<u8> {
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
