//! Rings full of random bytes, and many rings at once over a real queue.

use std::sync::Arc;
use std::thread;

use corewise_blockmq::Queue;
use corewise_drivers::Memory as MemoryDriver;
use corewise_export::SharedDevice;
use corewise_topology::Machine;
use corewise_vhost::{Options, Server};
use corewise_workqueue::{WorkerPools, Workqueue};
use vhost::VhostBackend;

use crate::device::TestDevice;
use crate::guest::*;

/// Fills the descriptor table, the available ring, and the headers with numbers of which many are
/// nearly right.
fn fill(guest: &mut Guest, rng: &mut fastrand::Rng) {
    for table in [guest.rings[0].table(), BUFFERS + (4 << 20)] {
        for place in 0..ENTRIES {
            let at = match rng.u32(..8) {
                0 => rng.u64(..),
                1 => GUEST + MEMORY - rng.u64(..1024),
                2 => BUFFERS + (4 << 20) + 16 * rng.u64(..64),
                3 | 4 => BUFFERS + 512 * rng.u64(..64),
                _ => slot(0, rng.u16(..ENTRIES)),
            };
            let len = match rng.u32(..8) {
                0 => rng.u32(..),
                1 => 16 * rng.u32(..64),
                2 => 1,
                3 => 512 * rng.u32(..32),
                _ => 16,
            };
            let flags = if rng.u8(..8) == 0 { rng.u16(..) } else { rng.u16(..8) & !rng.u16(..8) };
            let next = if rng.u8(..16) == 0 { rng.u16(..) } else { (place + 1) % ENTRIES };
            guest.rings[0].descriptor_in(table, place, at, len, flags, next);
        }
    }
    for head in 0..ENTRIES {
        let kind = [0, 1, 4, 8, 11, 13, rng.u32(..)][rng.usize(..7)];
        let sector = if rng.bool() { rng.u64(..2048) } else { rng.u64(..) };
        guest.memory.put(slot(0, head), &header(kind, sector));
    }
}

#[test]
fn random_rings_harm_nobody_else() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default().memory(64 << 10));
    let other_device = TestDevice::of(1 << 20);
    let other_host = Host::new(&other_device, Options::default());
    let mut other = Guest::new(&other_host.path(), Setup::default());
    let mut guest = Guest::new(&host.path(), Setup { inflight: true, ..Setup::default() });
    let mut rng = fastrand::Rng::with_seed(11);
    let mut answered = 0;
    for round in 0..300 {
        fill(&mut guest, &mut rng);
        let before = guest.rings[0].used_index();
        for _ in 0..rng.u16(1..ENTRIES) {
            let head = if rng.u8(..32) == 0 { rng.u16(..) } else { rng.u16(..ENTRIES) };
            guest.rings[0].offer(head);
        }
        guest.rings[0].kick();
        assert_eq!(other.write(0, &[round as u8; 512]), OK);
        // The answer comes once nothing is in flight. The next round begins with clean rings.
        guest.frontend.get_vring_base(0).unwrap();
        answered += u32::from(guest.rings[0].used_index().wrapping_sub(before));
        guest.memory.put(GUEST, &[0; 16 << 10]);
        guest.rings[0].available = 0;
        guest.prepare(0, 0);
    }
    assert!(answered > 300, "{answered}");
    let status = host.disk.status();
    assert_eq!((status.in_flight, status.memory), (0, 0));
    // A driver that begins anew is served.
    drop(guest);
    let mut honest = Guest::new(&host.path(), Setup::default());
    assert_eq!(honest.write(0, &[1; 512]), OK);
}

const RINGS: usize = 4;
const ROUNDS: u64 = 400;
/// Sectors that each ring has for itself.
const SHARE: u64 = 1024;

/// Writes and reads the share of one ring, several requests at a time.
fn drive(ring: &mut GuestRing, memory: &Memory, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let first = SHARE * ring.index as u64;
    let mut model = vec![0_u8; SHARE as usize];
    for round in 0..ROUNDS {
        let depth = rng.u16(1..16);
        let mut wanted = Vec::new();
        for n in 0..depth {
            let (head, sector) = (3 * n, u64::from(n) * 64 + rng.u64(..64));
            let at = BUFFERS + (ring.index as u64 * 16 + u64::from(n)) * 4096;
            let (slot, is_write) = (slot(ring.index, head), rng.bool());
            let value = (round as u8).wrapping_add(n as u8);
            memory.put(slot, &header(u32::from(is_write), first + sector));
            memory.put(slot + 16, &[0xff]);
            memory.put(at, &[if is_write { value } else { !model[sector as usize] }; 512]);
            if is_write {
                model[sector as usize] = value;
            }
            wanted.push((at, model[sector as usize], slot));
            let flags = if is_write { 0 } else { WRITE };
            ring.chain(head, &[(slot, 16, 0), (at, 512, flags), (slot + 16, 1, WRITE)]);
            ring.offer(head);
        }
        ring.kick();
        (0..depth).for_each(|_| _ = ring.wait_used());
        for (at, value, slot) in wanted {
            assert_eq!(memory.get(slot + 16, 1), [OK]);
            assert_eq!(memory.get(at, 512), vec![value; 512]);
        }
    }
}

#[test]
fn rings_of_one_guest_are_served_at_once_over_a_queue() {
    let machine = Machine::live().unwrap();
    let pools = WorkerPools::new(&machine);
    let wq = Workqueue::builder("block").build(&pools).unwrap();
    let driver = Arc::new(MemoryDriver::new(4 << 20).unwrap());
    let volume = Queue::builder(&machine, driver).name("ram").build(&wq);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.sock");
    let server = Server::new().unwrap();
    let shared = SharedDevice::new(volume.clone());
    let disk = server.listen(&path, shared, Options::default()).unwrap();
    let features = VERSION_1 | PROTOCOL | EVENT_IDX | INDIRECT;
    let mut guest = Guest::new(&path, Setup { features, rings: RINGS, inflight: true });
    let memory = guest.memory.clone();
    thread::scope(|scope| {
        for (seed, ring) in guest.rings.iter_mut().enumerate() {
            let memory = &memory;
            scope.spawn(move || drive(ring, memory, seed as u64));
        }
    });
    assert_eq!(disk.status().errors, 0);
    assert!(disk.stop(std::time::Duration::from_secs(60)).is_clean());
    volume.drain();
    drop((server, guest, volume));
    pools.shutdown();
}
