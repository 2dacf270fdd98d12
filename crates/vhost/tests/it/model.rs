//! Random requests against a model: a plain vector, and what the last acknowledged flush covers.

use std::collections::HashMap;

use corewise_vhost::Options;

use crate::device::TestDevice;
use crate::guest::*;

const BLOCK: usize = 512;
const BLOCKS: usize = 256;
/// Most requests in flight at a time.
const DEPTH: usize = 24;

/// A request in flight.
#[derive(Clone, Debug)]
struct Posted {
    kind: u32,
    first: usize,
    blocks: usize,
    at: u64,
    /// The number of a change, and the value that it gives its blocks.
    change: (u64, u8),
    /// For each block, the last change that had ended when a flush was posted.
    covers: Option<Vec<u64>>,
}

struct Model {
    rng: fastrand::Rng,
    /// For each block, the last change that has ended.
    blocks: Vec<(u64, u8)>,
    /// For each block, the changes of which a crash may leave any.
    durable: Vec<Vec<(u64, u8)>>,
    changes: u64,
    busy: Vec<bool>,
    posted: HashMap<u16, Posted>,
}

impl Model {
    fn new(seed: u64) -> Model {
        Model {
            rng: fastrand::Rng::with_seed(seed),
            blocks: vec![(0, 0); BLOCKS],
            durable: vec![vec![(0, 0)]; BLOCKS],
            changes: 0,
            busy: vec![false; BLOCKS],
            posted: HashMap::new(),
        }
    }

    /// Posts a random request that touches no block in flight.
    fn post(&mut self, guest: &mut Guest) {
        let rng = &mut self.rng;
        let kind = [0, 0, 1, 1, 1, 4, 11, 13][rng.usize(..8)];
        let blocks = rng.usize(1..=16);
        let first = rng.usize(..BLOCKS - blocks);
        let range = first..first + blocks;
        if kind != 4 && self.busy[range.clone()].iter().any(|busy| *busy) {
            return;
        }
        let Some(head) = guest.free.pop_front() else { return };
        let at = BUFFERS + 8192 * u64::from(head);
        let (len, value) = ((blocks * BLOCK) as u32, rng.u8(1..));
        let mut covers = None;
        match kind {
            0 => guest.post_at(0, head, 0, first as u64, &[(at, len, WRITE)]),
            1 => {
                guest.memory.put(at, &vec![value; len as usize]);
                guest.post_at(0, head, 1, first as u64, &[(at, len, 0)]);
            }
            4 => {
                covers = Some(self.numbers());
                guest.post_at(0, head, 4, 0, &[]);
            }
            _ => {
                let mut bytes = (first as u64).to_le_bytes().to_vec();
                bytes.extend((blocks as u32).to_le_bytes());
                bytes.extend([0; 4]);
                guest.memory.put(at, &bytes);
                guest.post_at(0, head, kind, 0, &[(at, 16, 0)]);
            }
        }
        if kind != 4 {
            self.busy[range].fill(true);
        }
        self.changes += 1;
        let change = (self.changes, if kind == 1 { value } else { 0 });
        let posted = Posted { kind, first, blocks, at, change, covers };
        self.may_be_durable(&posted);
        self.posted.insert(head, posted);
    }

    /// Returns the number of each block's last change.
    fn numbers(&self) -> Vec<u64> {
        self.blocks.iter().map(|(number, _)| *number).collect()
    }

    /// Records that a crash may leave this change.
    fn may_be_durable(&mut self, posted: &Posted) {
        if matches!(posted.kind, 1 | 11 | 13) {
            let range = posted.first..posted.first + posted.blocks;
            self.durable[range].iter_mut().for_each(|changes| changes.push(posted.change));
        }
    }

    /// Judges a request that has ended.
    fn ended(&mut self, guest: &mut Guest, head: u16) {
        let posted = self.posted.remove(&head).expect("each request ends once");
        assert_eq!(guest.status(head), OK, "{posted:?}");
        guest.free.push_back(head);
        let range = posted.first..posted.first + posted.blocks;
        match posted.kind {
            0 => {
                let bytes = guest.memory.get(posted.at, posted.blocks * BLOCK);
                let wanted = &self.blocks[range.clone()];
                for (found, (_, wanted)) in bytes.chunks(BLOCK).zip(wanted) {
                    assert!(found.iter().all(|byte| byte == wanted), "{posted:?}");
                }
            }
            4 => {
                // Each change that had ended when it was posted is durable, or a later one is.
                let covers = posted.covers.expect("a flush covers something");
                for (changes, covered) in self.durable.iter_mut().zip(covers) {
                    changes.retain(|(number, _)| *number >= covered);
                }
            }
            _ => self.blocks[range.clone()].fill(posted.change),
        }
        if posted.kind != 4 {
            self.busy[range].fill(false);
        }
    }

    fn take_ended(&mut self, guest: &mut Guest) {
        while let Some((head, _)) = guest.rings[0].used() {
            self.ended(guest, head);
        }
    }
}

/// Runs random requests, over servers that die. Each death is a crash: what wasn't flushed may be
/// lost.
fn run(seed: u64) {
    let setup = Setup { inflight: true, ..Setup::default() };
    let mut model = Model::new(seed);
    let bytes = (BLOCKS * BLOCK) as u64;
    let mut device = TestDevice::of(bytes);
    let mut host = Host::new(&device, Options::default().memory(32 << 10));
    let mut guest = Guest::new(&host.path(), setup.clone());
    for _ in 0..3 {
        device.hold();
        for _ in 0..60 {
            for _ in 0..model.rng.usize(..8) {
                if model.posted.len() < DEPTH {
                    model.post(&mut guest);
                }
            }
            guest.rings[0].kick();
            if model.posted.is_empty() {
                continue;
            }
            let ring = &guest.rings[0];
            wait_until("an event", || device.held() > 0 || ring.used_index() != ring.seen);
            let held = device.held();
            for left in (1..=held).rev().take(model.rng.usize(..=held)) {
                device.release_one(model.rng.usize(..left));
            }
            model.take_ended(&mut guest);
        }
        // A crash: nothing that is in the device is done, and nothing volatile is left.
        drop(host);
        model.take_ended(&mut guest);
        let survived = device.durable();
        for (block, changes) in survived.chunks(BLOCK).zip(&model.durable) {
            let is_one = changes.iter().any(|(_, value)| *value == block[0]);
            assert!(is_one, "seed {seed}: {} of {changes:?}", block[0]);
            assert!(block.iter().all(|byte| *byte == block[0]));
        }
        let next = TestDevice::of(bytes);
        next.fill(0, &survived);
        next.flush_all();
        device = next;
        host = Host::new(&device, Options::default());
        for (block, place) in model.blocks.iter_mut().enumerate() {
            *place = (0, survived[block * BLOCK]);
            model.durable[block] = vec![*place];
        }
        for posted in model.posted.clone().values() {
            model.may_be_durable(posted);
        }
        let numbers = model.numbers();
        for posted in model.posted.values_mut() {
            posted.covers = posted.covers.as_ref().map(|_| numbers.clone());
        }
        guest = guest.reconnect(&host.path(), &setup);
        guest.start(0);
    }
    while !model.posted.is_empty() {
        let (head, _) = guest.rings[0].wait_used();
        model.ended(&mut guest, head);
    }
    assert_eq!(guest.rings[0].used(), None);
    for (block, (_, value)) in device.bytes().chunks(BLOCK).zip(&model.blocks) {
        assert!(block.iter().all(|byte| byte == value), "seed {seed}");
    }
    assert_eq!(host.disk.status().memory, 0);
}

#[test]
fn every_request_ends_once_and_what_was_flushed_survives_each_crash() {
    (0..20).for_each(run);
}
