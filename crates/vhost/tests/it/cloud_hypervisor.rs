//! The messages of Cloud Hypervisor's frontend in their order, which differs from QEMU's: memory
//! that can't be sealed, features of the protocol that aren't asked for again, a record of requests
//! that is given back at once, rings without an event for errors, the available index as their
//! base.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use corewise_blockmq::Op;
use corewise_vhost::Options;
use vhost::VhostBackend;
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};

use crate::device::TestDevice;
use crate::guest::*;

const FEATURES: u64 = VERSION_1 | PROTOCOL | FLUSH | EVENT_IDX | INDIRECT;

fn protocol_features() -> VhostUserProtocolFeatures {
    VhostUserProtocolFeatures::CONFIG
        | VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::INFLIGHT_SHMFD
}

fn connect(host: &Host) -> Frontend {
    let frontend = Frontend::connect(host.path(), 1).unwrap();
    frontend.set_owner().unwrap();
    assert_eq!(frontend.get_features().unwrap() & FEATURES, FEATURES);
    frontend
}

/// Accepts features of the protocol that are known from the first connection.
fn accept(frontend: &mut Frontend) {
    frontend.set_protocol_features(protocol_features()).unwrap();
    frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
}

/// Starts the rings of a guest whose driver is ready.
fn activate(guest: &mut Guest) {
    let Guest { frontend, memory, rings, inflight, .. } = guest;
    frontend.set_features(FEATURES).unwrap();
    frontend.set_mem_table(&[memory.region()]).unwrap();
    for ring in rings.iter() {
        frontend.set_vring_num(ring.index, ENTRIES).unwrap();
    }
    let record = inflight.get_or_insert_with(|| {
        let wanted = VhostUserInflight::new(0, 0, rings.len() as u16, ENTRIES);
        let (record, file) = frontend.get_inflight_fd(&wanted).unwrap();
        (record, Arc::new(file))
    });
    frontend.set_inflight_fd(&record.0, record.1.as_raw_fd()).unwrap();
    for ring in rings.iter() {
        frontend.set_vring_addr(ring.index, &ring.config()).unwrap();
        frontend.set_vring_base(ring.index, ring.available).unwrap();
        frontend.set_vring_call(ring.index, &ring.call).unwrap();
        frontend.set_vring_kick(ring.index, &ring.kick).unwrap();
    }
    for ring in rings.iter() {
        frontend.set_vring_enable(ring.index, true).unwrap();
    }
}

fn start(host: &Host) -> Guest {
    let mut frontend = connect(host);
    let offered = frontend.get_protocol_features().unwrap();
    assert!(offered.contains(protocol_features()), "{offered:?}");
    accept(&mut frontend);
    assert!(frontend.get_queue_num().unwrap() >= 1);
    let space = frontend.get_config(0, 60, VhostUserConfigFlags::WRITABLE, &[0; 60]).unwrap().1;
    assert_eq!(space.len(), 60);
    let memory = Memory::unsealable();
    let rings = vec![GuestRing::new(&memory, 0)];
    let free: VecDeque<u16> = (0..ENTRIES / 3).map(|n| n * 3).collect();
    let mut guest = Guest { frontend, memory, rings, inflight: None, free };
    activate(&mut guest);
    guest
}

#[test]
fn a_virtual_machine_finds_its_requests_executed_by_the_next_server() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let mut guest = start(&host);
    assert_eq!(guest.write(7, &[9; 512]), OK);
    device.hold();
    let heads: Vec<u16> = (0..3_u64)
        .map(|n| {
            let at = BUFFERS + 4096 * n;
            guest.memory.put(at, &[n as u8 + 1; 512]);
            guest.post(1, n, &[(at, 512, 0)])
        })
        .collect();
    guest.rings[0].kick();
    device.wait_held(3);
    device.release_one(1);
    assert_eq!(guest.rings[0].wait_used(), (heads[1], 1));
    let content = device.bytes();
    drop(host);
    let device = TestDevice::of(content.len() as u64);
    device.fill(0, &content);
    let host = Host::new(&device, Options::default());
    // Made while no server was there: the base that the frontend sends is behind it.
    let late = guest.post(4, 0, &[]);
    guest.frontend = connect(&host);
    accept(&mut guest.frontend);
    activate(&mut guest);
    let mut ended: Vec<u16> = (0..3).map(|_| guest.rings[0].wait_used().0).collect();
    ended.sort_unstable();
    assert_eq!(ended, [heads[0], heads[2], late]);
    let ops = device.take_ops();
    assert_eq!(ops[..2], [(Op::Write, 0, 512), (Op::Write, 1024, 512)]);
    assert_eq!(device.bytes()[..1536].chunks(512).map(|b| b[0]).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(guest.read(7, 512), Ok(vec![9; 512]));
}

#[test]
fn a_virtual_machine_that_boots_again_begins_anew_on_the_same_connection() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let mut guest = start(&host);
    assert_eq!((guest.write(0, &[5; 512]), guest.flush()), (OK, OK));
    guest.frontend.set_vring_enable(0, false).unwrap();
    assert_eq!(guest.frontend.get_vring_base(0).unwrap(), 2);
    guest.memory.put(GUEST, &[0; 64 << 10]);
    guest.rings = vec![GuestRing::new(&guest.memory, 0)];
    guest.inflight = None;
    activate(&mut guest);
    assert_eq!((guest.read(0, 512), guest.flush()), (Ok(vec![5; 512]), OK));
}

#[test]
fn a_virtual_machine_that_is_paused_goes_on_from_there() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let mut guest = start(&host);
    guest.frontend.set_vring_enable(0, false).unwrap();
    let late = guest.post(4, 0, &[]);
    guest.rings[0].kick();
    guest.frontend.get_queue_num().unwrap();
    assert_eq!(guest.rings[0].used(), None, "it is paused");
    guest.frontend.set_vring_enable(0, true).unwrap();
    assert_eq!(guest.rings[0].wait_used(), (late, 1));
}
