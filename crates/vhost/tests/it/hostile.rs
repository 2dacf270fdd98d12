//! Guests and frontends that lie.

use std::io::Write;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd};
use std::os::unix::net::UnixStream;

use corewise_vhost::Options;
use rustix::io::ReadWriteFlags;
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vm_memory::{Bytes, GuestAddress};
use vmm_sys_util::eventfd::EventFd;

use crate::device::TestDevice;
use crate::guest::*;

/// The fate of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It is answered with this status.
    Status(u8),
    /// It is given back, and its guest gets no status.
    Returned,
    /// The ring takes nothing more.
    Broken,
}

use Outcome::{Broken, Returned, Status};

/// The header of a chain lies here, its status behind.
const HEADER: u64 = GUEST + (512 << 10);
const STATUS: u64 = HEADER + 16;
/// Kind of a request for the serial number.
const GET_ID: u32 = 8;
/// A table of descriptors.
const TABLE: u64 = BUFFERS + (2 << 20);
const END: u64 = GUEST + MEMORY;

/// Address, length, flags, next.
type Descriptor = (u64, u32, u16, u16);
/// Name, kind, sector, head, descriptors.
type Case = (&'static str, u32, u64, u16, Vec<Descriptor>, Outcome);

/// Has one chain executed by a new guest, and returns what became of it.
fn outcome(host: &Host, kind: u32, sector: u64, head: u16, chain: &[Descriptor]) -> Outcome {
    let mut guest = Guest::new(&host.path(), Setup::default());
    guest.memory.put(HEADER, &header(kind, sector));
    guest.memory.put(STATUS, &[0xff]);
    for (n, (at, len, flags, next)) in chain.iter().enumerate() {
        for table in [guest.rings[0].table(), TABLE] {
            guest.rings[0].descriptor_in(table, n as u16, *at, *len, *flags, *next);
        }
    }
    let ring = &mut guest.rings[0];
    ring.offer(head);
    ring.kick();
    let mut found = None;
    wait_until("an outcome", || {
        found = found.or_else(|| ring.used());
        found.is_some() || ring.error.read().is_ok()
    });
    let Some((used, len)) = found else { return Broken };
    assert_eq!(used, head);
    match guest.memory.get(STATUS, 1)[0] {
        0xff => {
            assert_eq!(len, 0);
            Returned
        }
        status => Status(status),
    }
}

#[test]
fn a_chain_that_lies_is_its_guest_s_own_loss() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let other_device = TestDevice::of(1 << 20);
    let other_host = Host::new(&other_device, Options::default());
    let mut other = Guest::new(&other_host.path(), Setup::default());
    let header = (HEADER, 16, NEXT, 1);
    let status = (STATUS, 1, WRITE, 0);
    let data = |at, len, next| (at, len, NEXT, next);
    let room = |at, len, next| (at, len, NEXT | WRITE, next);
    let last = |head: &[Descriptor], n: u16, tail: Descriptor| {
        let middle = (1..n).map(|next| data(BUFFERS, 512, next + 1));
        head.iter().copied().chain(middle).chain([tail]).collect::<Vec<_>>()
    };
    let (read, write, max) = (0, 1, u16::MAX);
    let cases: Vec<Case> = vec![
        ("a head out of the table", read, 0, 128, vec![], Broken),
        ("a head far out of the table", read, 0, max, vec![], Broken),
        ("no descriptor but a header", read, 0, 0, vec![(HEADER, 16, 0, 0)], Returned),
        ("a status alone", read, 0, 0, vec![status], Status(IOERR)),
        ("an empty chain", read, 0, 0, vec![(HEADER, 0, 0, 0)], Returned),
        ("half of a header", write, 0, 0, vec![(HEADER, 8, NEXT, 1), status], Status(IOERR)),
        (
            "a header that is written",
            read,
            0,
            0,
            vec![(HEADER, 16, NEXT | WRITE, 1), status],
            Status(IOERR),
        ),
        ("a status that is read", read, 0, 0, vec![header, (STATUS, 1, 0, 0)], Returned),
        ("a loop", write, 0, 0, vec![header, data(BUFFERS, 512, 1)], Returned),
        ("a loop of the header", read, 0, 0, vec![(HEADER, 16, NEXT, 0)], Returned),
        ("a next out of the table", read, 0, 0, vec![(HEADER, 16, NEXT, 128)], Returned),
        (
            "readable behind writable",
            read,
            0,
            0,
            vec![header, room(BUFFERS, 512, 2), data(BUFFERS, 512, 3), status],
            Returned,
        ),
        (
            "data outside of memory",
            write,
            0,
            0,
            vec![header, data(0x1000, 512, 2), status],
            Returned,
        ),
        (
            "data over the end of memory",
            write,
            0,
            0,
            vec![header, data(END - 256, 512, 2), status],
            Returned,
        ),
        (
            "data at the end of addresses",
            read,
            0,
            0,
            vec![header, room(u64::MAX - 100, 512, 2), status],
            Returned,
        ),
        (
            "all of the address space",
            read,
            0,
            0,
            vec![header, room(0, u32::MAX, 2), status],
            Returned,
        ),
        (
            "a status outside of memory",
            read,
            0,
            0,
            vec![header, room(BUFFERS, 512, 2), (END, 1, WRITE, 0)],
            Returned,
        ),
        ("a read of nothing", read, 0, 0, vec![header, status], Status(IOERR)),
        ("a write of nothing", write, 0, 0, vec![header, status], Status(IOERR)),
        (
            "a read with data alone",
            read,
            0,
            0,
            vec![header, data(BUFFERS, 512, 2), status],
            Status(IOERR),
        ),
        (
            "a write with room alone",
            write,
            0,
            0,
            vec![header, room(BUFFERS, 512, 2), status],
            Status(IOERR),
        ),
        ("511 bytes", write, 0, 0, vec![header, data(BUFFERS, 511, 2), status], Status(IOERR)),
        ("513 bytes", read, 0, 0, vec![header, room(BUFFERS, 513, 2), status], Status(IOERR)),
        (
            "the sector behind the end",
            read,
            2048,
            0,
            vec![header, room(BUFFERS, 512, 2), status],
            Status(IOERR),
        ),
        (
            "over the end",
            write,
            2047,
            0,
            vec![header, data(BUFFERS, 1024, 2), status],
            Status(IOERR),
        ),
        (
            "the last of all sectors",
            read,
            u64::MAX,
            0,
            vec![header, room(BUFFERS, 512, 2), status],
            Status(IOERR),
        ),
        (
            "a sector that overflows",
            write,
            u64::MAX / 512 + 1,
            0,
            vec![header, data(BUFFERS, 512, 2), status],
            Status(IOERR),
        ),
        ("an unknown kind", 77, 0, 0, vec![header, status], Status(UNSUPP)),
        (
            "a kind of zoned disks",
            16,
            0,
            0,
            vec![header, room(BUFFERS, 512, 2), status],
            Status(UNSUPP),
        ),
        ("a discard without ranges", 11, 0, 0, vec![header, status], Status(IOERR)),
        (
            "a discard with a long list",
            11,
            0,
            0,
            vec![header, data(BUFFERS, 1 << 20, 2), status],
            Status(IOERR),
        ),
        (
            "127 segments",
            write,
            0,
            0,
            last(&[(HEADER, 16 + 512, NEXT, 1)], 127, (STATUS, 1, WRITE, 0)),
            Status(IOERR),
        ),
        (
            "a table in a table",
            read,
            0,
            1,
            vec![(TABLE, 32, INDIRECT_TABLE, 0), (TABLE, 16, INDIRECT_TABLE, 0)],
            Returned,
        ),
        ("a table of no descriptor", read, 0, 0, vec![(TABLE, 0, INDIRECT_TABLE, 0)], Returned),
        ("a table of a half", read, 0, 0, vec![(TABLE, 24, INDIRECT_TABLE, 0)], Returned),
        ("a table outside of memory", read, 0, 0, vec![(END, 32, INDIRECT_TABLE, 0)], Returned),
        ("a table too long", read, 0, 0, vec![(TABLE, !15_u32, INDIRECT_TABLE, 0)], Returned),
        (
            "a table in front of itself",
            read,
            0,
            0,
            vec![(u64::MAX - 7, 32, INDIRECT_TABLE, 0)],
            Returned,
        ),
    ];
    for (what, kind, sector, head, chain, expected) in cases {
        assert_eq!(outcome(&host, kind, sector, head, &chain), expected, "{what}");
        assert_eq!(other.write(0, &[1; 512]), OK, "{what}");
    }
    assert_eq!(device.bytes(), vec![0; 1 << 20]);
    assert_eq!(device.take_ops(), []);
    let mut honest = Guest::new(&host.path(), Setup::default());
    assert_eq!(honest.write(0, &[1; 512]), OK);
}

#[test]
fn an_available_index_that_jumps_breaks_its_ring_alone() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let mut guest = Guest::new(&host.path(), Setup { rings: 2, ..Setup::default() });
    let at = GuestAddress(guest.rings[1].available_at() + 2);
    guest.memory.map.write_obj(1000_u16, at).unwrap();
    guest.rings[1].kick();
    guest.rings[1].wait_broken();
    assert_eq!(guest.write(0, &[1; 512]), OK);
    // Stopped and started anew it works.
    assert_eq!(guest.frontend.get_vring_base(1).unwrap(), 0);
    guest.memory.map.write_obj(0_u16, at).unwrap();
    guest.start(1);
    guest.post_at(1, 0, 4, 0, &[]);
    guest.rings[1].kick();
    assert_eq!(guest.rings[1].wait_used(), (0, 1));
}

#[test]
fn a_chain_that_is_made_available_twice_breaks_its_ring() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let mut guest = Guest::new(&host.path(), Setup::default());
    device.hold();
    let head = guest.post(4, 0, &[]);
    guest.rings[0].offer(head);
    guest.rings[0].kick();
    guest.rings[0].wait_broken();
    device.release();
    assert_eq!(guest.rings[0].wait_used(), (head, 1));
    guest.rings[0].kick();
    assert_eq!(guest.rings[0].used(), None);
}

#[test]
fn a_guest_that_changes_its_request_meanwhile_changes_its_own_bytes_alone() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let mut guest = Guest::new(&host.path(), Setup::default());
    device.hold();
    guest.memory.put(BUFFERS, &[1; 512]);
    let write = guest.post(1, 0, &[(BUFFERS, 512, 0)]);
    let read = guest.post(0, 8, &[(BUFFERS + 4096, 512, WRITE)]);
    guest.rings[0].kick();
    device.wait_held(2);
    // Everything that can be reached, descriptors and rings too.
    let all = vec![0xa5; (BUFFERS + 8192 - GUEST) as usize];
    let used = guest.rings[0].used_at();
    guest.memory.put(GUEST, &all[..(used - GUEST) as usize]);
    guest.memory.put(used + 1024, &all[(used + 1024 - GUEST) as usize..]);
    device.release();
    wait_until("the answers", || guest.rings[0].used_index() == 2);
    let [status, other] = [write, read].map(|head| guest.status(head));
    assert_eq!((status, other, &device.bytes()[..512]), (OK, OK, &[1; 512][..]));
    assert_eq!(guest.memory.get(BUFFERS + 4096, 512), [0; 512]);
}

/// Expects that the server still serves a guest that behaves.
fn serves(host: &Host) {
    let mut guest = Guest::new(&host.path(), Setup::default());
    assert_eq!(guest.write(0, &[1; 512]), OK);
}

#[test]
fn messages_that_are_no_messages_end_their_connection() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let mut rng = fastrand::Rng::with_seed(3);
    for round in 0..200 {
        wait_until("the end", || !host.disk.status().connected);
        let mut socket = UnixStream::connect(host.path()).unwrap();
        let mut message: Vec<u8> = (0..rng.usize(..64)).map(|_| rng.u8(..)).collect();
        if round % 2 == 0 && message.len() >= 12 {
            // A header that may pass: any request, the version, a size.
            message[..4].copy_from_slice(&rng.u32(..46).to_le_bytes());
            message[4..8].copy_from_slice(&(1 | rng.u32(..2) << 3).to_le_bytes());
            let size = message.len() as u32 - 12;
            message[8..12].copy_from_slice(&size.to_le_bytes());
        }
        // It may have been turned away meanwhile.
        let _ = socket.write_all(&message);
    }
    wait_until("the end", || !host.disk.status().connected);
    serves(&host);
}

#[test]
fn messages_that_make_no_sense_are_refused_and_the_frontend_may_go_on() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default().queues(2));
    let mut guest = Guest::new(&host.path(), Setup::default());
    for size in [0, 3, 100, 2048, 32768] {
        assert!(guest.frontend.set_vring_num(1, size).is_err(), "{size}");
    }
    assert!(guest.frontend.set_vring_num(2, 128).is_err(), "no such ring");
    assert!(guest.frontend.set_vring_num(0, 64).is_err(), "it runs");
    assert!(guest.frontend.set_vring_kick(1, &guest.rings[0].kick).is_err(), "no addresses");
    assert!(guest.frontend.set_features(1 << 20 | Setup::default().features).is_err());
    let mut config = guest.rings[0].config();
    config.desc_table_addr += 1 << 40;
    guest.frontend.set_vring_num(1, ENTRIES).unwrap();
    guest.frontend.set_vring_addr(1, &config).unwrap();
    assert!(guest.frontend.set_vring_kick(1, &guest.rings[0].kick).is_err(), "outside of memory");
    let flags = vhost::vhost_user::message::VhostUserConfigFlags::empty();
    assert!(guest.frontend.set_config(32, flags, &[0]).is_err(), "nothing is writable");
    assert_eq!(guest.write(0, &[1; 512]), OK);
}

#[test]
fn a_message_whose_numbers_are_impossible_ends_its_connection() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let guest = Guest::new(&host.path(), Setup::default());
    let mut config = guest.rings[0].config();
    config.used_ring_addr += 1;
    assert!(guest.frontend.set_vring_addr(0, &config).is_err());
    wait_until("the end", || !host.disk.status().connected);
    serves(&host);
}

#[test]
fn memory_that_is_not_there_is_refused() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let mut guest = Guest::new(&host.path(), Setup::default());
    let good = guest.memory.region();
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    let short = Memory::new();
    for (what, region) in [
        (
            "longer than its file",
            vhost::VhostUserMemoryRegionInfo {
                memory_size: 2 * MEMORY,
                guest_phys_addr: 1 << 40,
                ..good
            },
        ),
        (
            "behind its file",
            vhost::VhostUserMemoryRegionInfo {
                mmap_offset: MEMORY,
                guest_phys_addr: 1 << 40,
                ..good
            },
        ),
        (
            "over what is there",
            vhost::VhostUserMemoryRegionInfo {
                guest_phys_addr: GUEST + 4096,
                mmap_handle: short.file.as_raw_fd(),
                ..good
            },
        ),
        (
            "no file",
            vhost::VhostUserMemoryRegionInfo {
                mmap_handle: pipe.as_raw_fd(),
                guest_phys_addr: 1 << 40,
                ..good
            },
        ),
        (
            "not a page",
            vhost::VhostUserMemoryRegionInfo {
                mmap_offset: 1,
                memory_size: 4096,
                guest_phys_addr: 1 << 40,
                ..good
            },
        ),
    ] {
        assert!(guest.frontend.add_mem_region(&region).is_err(), "{what}");
    }
    let unknown = vhost::VhostUserMemoryRegionInfo { memory_size: 4096, ..good };
    assert!(guest.frontend.remove_mem_region(&unknown).is_err());
    assert_eq!(guest.write(0, &[1; 512]), OK);
    // The server has sealed what it has mapped.
    assert!(rustix::fs::ftruncate(&*guest.memory.file, 4096).is_err());
}

#[test]
fn a_frontend_that_fills_its_event_has_no_thread_wait() {
    /// Bytes of a count that leaves room for one more.
    const ALMOST: [u8; 8] = (u64::MAX - 2).to_ne_bytes();
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    // Without event indices the guest gets an interrupt for each request.
    let features = Setup::default().features & !EVENT_IDX;
    let mut guest = Guest::new(&host.path(), Setup { features, ..Setup::default() });
    // SAFETY: the eventfd stays open for as long as the borrow.
    let call = unsafe { BorrowedFd::borrow_raw(guest.rings[0].call.as_raw_fd()) };
    let call = call.try_clone_to_owned().unwrap();
    // The server has made it nonblocking once it got it.
    rustix::io::ioctl_fionbio(&call, false).unwrap();
    let (theirs, mut chance) = (call.try_clone().unwrap(), fastrand::Rng::with_seed(7));
    let (memory, used_at) = (guest.memory.clone(), guest.rings[0].used_at() + 2);
    let used = move || memory.get(used_at, 2);
    let (begin, rounds) = std::sync::mpsc::channel::<Vec<u8>>();
    let (filled, ends) = std::sync::mpsc::channel();
    // Takes the last room at about the time at which the server finds it.
    std::thread::spawn(move || {
        for before in rounds {
            while used() == before {
                std::hint::spin_loop();
            }
            (0..chance.u32(..100)).for_each(|_| std::hint::spin_loop());
            rustix::io::write(&theirs, &1_u64.to_ne_bytes()).unwrap();
            filled.send(()).unwrap();
        }
    });
    let drain = || {
        let mut count = [0; 8];
        let mut slices = [std::io::IoSliceMut::new(&mut count)];
        rustix::io::preadv2(&call, &mut slices, u64::MAX, ReadWriteFlags::NOWAIT)
    };
    for round in 0..2000 {
        let _ = drain();
        rustix::io::write(&call, &ALMOST).unwrap();
        begin.send(guest.memory.get(used_at, 2)).unwrap();
        for _ in 0..2 {
            let before = guest.rings[0].used_index();
            let head = guest.post(GET_ID, 0, &[(BUFFERS, 20, WRITE)]);
            guest.free.push_back(head);
            guest.rings[0].kick();
            let answered = || guest.rings[0].used_index() != before;
            wait_until(&format!("an answer in round {round}"), answered);
        }
        // If the server has taken the last room, the other thread waits for this.
        drain().unwrap();
        ends.recv().unwrap();
    }
}

#[test]
fn an_event_that_is_no_eventfd_is_refused() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let mut guest = Guest::new(&host.path(), Setup::default());
    let (_reader, writer) = rustix::pipe::pipe().unwrap();
    // SAFETY: the test owns the descriptor, and gives it away.
    let pipe = unsafe { EventFd::from_raw_fd(writer.into_raw_fd()) };
    assert!(guest.frontend.set_vring_call(0, &pipe).is_err());
    assert_eq!(guest.write(0, &[1; 512]), OK);
}
