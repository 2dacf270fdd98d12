//! Each kind of request.

use corewise_blockmq::{Geometry, IoErrorKind, Op};
use corewise_vhost::Options;

use crate::device::TestDevice;
use crate::guest::*;

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|n| (n as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

#[test]
fn a_guest_reads_what_it_wrote_and_a_flush_makes_it_durable() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let mut guest = Guest::new(&host.path(), Setup::default());
    let bytes = pattern(8192, 1);
    assert_eq!(guest.write(8, &bytes), OK);
    assert_eq!(guest.read(8, 8192), Ok(bytes.clone()));
    assert_eq!(device.durable()[4096..4096 + 8192], vec![0; 8192], "it isn't durable yet");
    assert_eq!(guest.flush(), OK);
    assert_eq!(device.durable()[4096..4096 + 8192], bytes);
    let status = host.disk.status();
    let of = |op| (status.traffic.of(op).requests, status.traffic.of(op).bytes);
    assert_eq!([Op::Read, Op::Write, Op::Flush].map(of), [(1, 8192), (1, 8192), (1, 0)]);
    assert_eq!(status.errors, 0);
    assert!(status.connected && status.in_flight == 0 && status.memory == 0);
    assert_eq!(status.who.unwrap().pid, Some(std::process::id()));
}

#[test]
fn without_flushes_each_change_is_durable_once_it_is_answered() {
    for can_fua in [true, false] {
        let device = TestDevice::new(Geometry { can_fua, ..Geometry::new(1 << 20) });
        let host = Host::new(&device, Options::default());
        let features = VERSION_1 | PROTOCOL;
        let mut guest = Guest::new(&host.path(), Setup { features, ..Setup::default() });
        let bytes = pattern(4096, 2);
        assert_eq!(guest.write(0, &bytes), OK);
        assert_eq!(device.durable()[..4096], bytes);
        let flushes = device.take_ops().iter().filter(|(op, ..)| *op == Op::Flush).count();
        assert_eq!(flushes, usize::from(!can_fua));
    }
}

#[test]
fn a_long_request_is_executed_in_pieces_within_the_memory() {
    let device = TestDevice::of(8 << 20);
    let host = Host::new(&device, Options::default().memory(1 << 20));
    let mut guest = Guest::new(&host.path(), Setup::default());
    let bytes = pattern(4 << 20, 3);
    guest.memory.put(BUFFERS, &bytes);
    device.hold();
    // Segments that no piece ends with.
    let parts = [(BUFFERS, 1_000_000), (BUFFERS + 1_000_000, (4 << 20) - 1_000_000)];
    let head = guest.free.pop_back().unwrap();
    let parts: Vec<_> = parts.iter().map(|(at, len)| (*at, *len, 0)).collect();
    guest.post_at(0, head - 1, 1, 0, &parts);
    guest.rings[0].kick();
    device.wait_held(2);
    assert_eq!(host.disk.status().memory, 1 << 20);
    assert_eq!((host.disk.status().in_flight, device.held()), (1, 2));
    device.release();
    assert_eq!(guest.rings[0].wait_used(), (head - 1, 1));
    assert!(device.bytes()[..4 << 20] == bytes);
    assert!(guest.read(0, 4 << 20) == Ok(bytes));
    assert_eq!(host.disk.status().memory, 0);
}

/// Returns the bytes of a range of a discard or write-zeroes.
fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
}

#[test]
fn ranges_are_discarded_and_zeroed() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let mut guest = Guest::new(&host.path(), Setup::default());
    device.fill(0, &[7; 1 << 16]);
    for (kind, op) in [(11, Op::Discard), (13, Op::WriteZeroes)] {
        let ranges = [range(8, 8, 0), range(32, 16, u32::from(kind == 13))].concat();
        guest.memory.put(BUFFERS, &ranges);
        device.take_ops();
        assert_eq!(guest.execute(kind, 0, &[(BUFFERS, 32, 0)]), (OK, 1));
        assert_eq!(device.take_ops(), [(op, 4096, 4096), (op, 16384, 8192)]);
        guest.memory.put(BUFFERS, &range(0, 8, 4));
        assert_eq!(guest.execute(kind, 0, &[(BUFFERS, 16, 0)]).0, UNSUPP);
        guest.memory.put(BUFFERS, &range(1 << 11, 8, 0));
        assert_eq!(guest.execute(kind, 0, &[(BUFFERS, 16, 0)]).0, IOERR);
        assert_eq!(guest.execute(kind, 0, &[(BUFFERS, 15, 0)]).0, IOERR);
    }
    assert_eq!(device.bytes()[4096..8192], [0; 4096]);
    assert_eq!(device.bytes()[..4096], [7; 4096]);
    let status = host.disk.status();
    let answered = |op| status.traffic.of(op).requests;
    assert_eq!((answered(Op::Discard), answered(Op::WriteZeroes), status.errors), (1, 1, 6));
}

#[test]
fn a_guest_learns_the_serial_number() {
    let device = TestDevice::of(1 << 20);
    for (serial, shown) in
        [(Some("a serial number of 30 bytes...."), "a serial number of 3"), (None, "test")]
    {
        let mut options = Options::default();
        if let Some(serial) = serial {
            options = options.serial(serial);
        }
        let host = Host::new(&device, options);
        let mut guest = Guest::new(&host.path(), Setup::default());
        assert_eq!(guest.execute(8, 0, &[(BUFFERS, 20, WRITE)]), (OK, 21));
        let bytes = guest.memory.get(BUFFERS, 20);
        assert_eq!(String::from_utf8_lossy(&bytes).trim_end_matches('\0'), shown);
        guest.memory.put(BUFFERS, &[9; 20]);
        assert_eq!(guest.execute(8, 0, &[(BUFFERS, 2, WRITE)]).0, OK);
        assert_eq!(guest.memory.get(BUFFERS, 4)[2..], [9, 9]);
    }
}

#[test]
fn a_read_only_disk_says_so_and_takes_no_change() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default().read_only(true));
    let setup = Setup { features: Setup::default().features | RO, ..Setup::default() };
    let mut guest = Guest::new(&host.path(), setup);
    assert_eq!(guest.write(0, &[1; 512]), IOERR);
    guest.memory.put(BUFFERS, &range(0, 8, 0));
    assert_eq!(guest.execute(11, 0, &[(BUFFERS, 16, 0)]).0, IOERR);
    assert_eq!((guest.flush(), guest.read(0, 512)), (OK, Ok(vec![0; 512])));
    assert_eq!(device.bytes(), vec![0; 1 << 20]);
}

#[test]
fn a_failure_of_the_device_is_the_request_s_alone() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let mut guest = Guest::new(&host.path(), Setup::default());
    device.fail(Some(IoErrorKind::Io(5)));
    assert_eq!(
        (guest.write(0, &[1; 512]), guest.read(0, 512), guest.flush()),
        (IOERR, Err(IOERR), IOERR)
    );
    device.fail(Some(IoErrorKind::NotSupported));
    assert_eq!(guest.read(0, 512), Err(UNSUPP));
    device.fail(None);
    assert_eq!((guest.write(0, &[1; 512]), guest.flush()), (OK, OK));
    assert_eq!(host.disk.status().errors, 4);
}

#[test]
fn the_configuration_space_has_the_size_and_the_abilities() {
    let device = TestDevice::new(Geometry { block_size: 4096, ..Geometry::new(1 << 20) });
    let host = Host::new(&device, Options::default().queues(3));
    let mut guest = Guest::new(&host.path(), Setup::default());
    let space = guest.config_space();
    let word = |at: usize| u32::from_le_bytes(space[at..at + 4].try_into().unwrap());
    assert_eq!((word(0), word(12), word(20), space[34]), (2048, 126, 4096, 3));
    assert_eq!(guest.read(1, 4096), Err(IOERR), "half of a block");
    assert_eq!(guest.read(8, 4096), Ok(vec![0; 4096]));
}

#[test]
fn requests_on_several_rings_go_on_beside_each_other() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let mut guest = Guest::new(&host.path(), Setup { rings: 4, ..Setup::default() });
    device.hold();
    for ring in 0..4 {
        let at = BUFFERS + 4096 * ring as u64;
        guest.memory.put(at, &[ring as u8 + 1; 512]);
        guest.post_at(ring, 0, 1, ring as u64, &[(at, 512, 0)]);
        guest.rings[ring].kick();
    }
    device.wait_held(4);
    // The last one to come ends first.
    (0..4).rev().for_each(|place| device.release_one(place));
    for ring in 0..4 {
        assert_eq!(guest.rings[ring].wait_used(), (0, 1));
    }
    assert_eq!(device.bytes()[..2048].chunks(512).map(|b| b[0]).collect::<Vec<_>>(), [1, 2, 3, 4]);
}

#[test]
fn a_chain_in_a_table_of_its_own_and_cut_anywhere_is_a_request() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let mut guest = Guest::new(&host.path(), Setup::default());
    let (table, slot) = (BUFFERS + (1 << 20), slot(0, 0));
    guest.memory.put(slot, &header(1, 2));
    guest.memory.put(BUFFERS, &[5; 1024]);
    let ring = &mut guest.rings[0];
    // Five bytes of the header, the rest with the first byte of the data, and so on.
    let parts = [(slot, 5, NEXT), (slot + 5, 11, NEXT), (BUFFERS, 1, NEXT), (BUFFERS + 1, 0, NEXT)];
    for (n, (at, len, flags)) in parts.into_iter().enumerate() {
        ring.descriptor_in(table, n as u16, at, len, flags, n as u16 + 1);
    }
    ring.descriptor_in(table, 4, BUFFERS + 1, 1023, NEXT, 9);
    ring.descriptor_in(table, 9, slot + 16, 1, WRITE, 0);
    ring.descriptor(0, table, 160, INDIRECT_TABLE, 0);
    ring.offer(0);
    ring.kick();
    assert_eq!(ring.wait_used(), (0, 1));
    assert_eq!((guest.status(0), &device.bytes()[1024..2048]), (OK, &[5; 1024][..]));
}

#[test]
fn a_guest_that_wants_no_interrupts_gets_none() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let features = VERSION_1 | PROTOCOL | FLUSH;
    let mut guest = Guest::new(&host.path(), Setup { features, ..Setup::default() });
    guest.memory.put(guest.rings[0].available_at(), &[1, 0]);
    let before = host.disk.status().interrupts;
    guest.post(4, 0, &[]);
    guest.rings[0].kick();
    wait_until("the answer", || guest.rings[0].used().is_some());
    wait_until("the count", || host.disk.status().traffic.of(Op::Flush).requests == 1);
    assert_eq!(guest.flush_polled(), OK);
    assert_eq!(host.disk.status().interrupts, before);
}

impl Guest {
    /// Flushes without an interrupt.
    fn flush_polled(&mut self) -> u8 {
        let head = self.post(4, 0, &[]);
        self.rings[0].kick();
        wait_until("the answer", || self.rings[0].used().is_some());
        self.status(head)
    }
}
