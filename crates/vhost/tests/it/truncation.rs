//! Frontends that truncate memory that they share.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;

use corewise_vhost::{Disk, Options};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vhost::vhost_user::VhostUserFrontend;
use vhost::vhost_user::message::VhostUserInflight;
use vhost::{VhostBackend, VhostUserMemoryRegionInfo};
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

use crate::device::TestDevice;
use crate::guest::*;

/// The bytes that a truncation leaves: the rings and the headers of requests lie in front.
const LEFT: u64 = MEMORY / 2;
/// An address behind them.
const GONE: u64 = GUEST + MEMORY - (1 << 20);

fn connect(host: &Host) -> Guest {
    let mut guest = Guest::connect(&host.path(), Memory::unsealable(), &Setup::default(), None);
    guest.start(0);
    guest
}

/// Waits until the server has ended the connection. Requests may still be in the device.
fn wait_ended(guest: &Guest) {
    wait_until("the end of the connection", || guest.frontend.get_features().is_err());
}

fn wait_left(disk: &Disk) {
    wait_until("the end of the session", || !disk.status().connected);
}

/// Verifies that the disk serves the next guest.
fn serves(host: &Host) {
    wait_left(&host.disk);
    let mut next = Guest::new(&host.path(), Setup::default());
    assert_eq!(next.write(8, &[7; 512]), OK);
}

#[test]
fn a_write_from_memory_that_is_gone_ends_its_frontend_s_connection_and_nothing_else() {
    let (device, other_device) = (TestDevice::of(1 << 20), TestDevice::of(1 << 20));
    let host = Host::new(&device, Options::default());
    let other_path = host.folder.path().join("other.sock");
    let _other =
        host._server.listen(&other_path, other_device.shared(), Options::default()).unwrap();
    let mut other = Guest::connect(&other_path, Memory::unsealable(), &Setup::default(), None);
    other.start(0);
    let mut guest = connect(&host);
    assert_eq!(guest.write(4, &[4; 512]), OK);
    let before = guest.rings[0].used_index();
    device.hold();
    // One write is in the device, and isn't answered any more.
    guest.post(1, 0, &[(BUFFERS, 512, 0)]);
    guest.rings[0].kick();
    device.wait_held(1);
    ftruncate(&guest.memory.file, LEFT).unwrap();
    guest.post(1, 1, &[(GONE, 512, 0)]);
    guest.post(4, 0, &[]);
    guest.rings[0].kick();
    wait_ended(&guest);
    assert_eq!(device.held(), 1, "zeroes in the place of the memory are no write");
    assert_eq!(other.write(0, &[1; 512]), OK);
    device.release();
    wait_left(&host.disk);
    assert_eq!(guest.rings[0].used_index(), before);
    serves(&host);
    assert_eq!(other.read(0, 512).unwrap(), [1; 512]);
}

#[test]
fn a_read_into_memory_that_is_gone_is_not_acknowledged() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let mut guest = connect(&host);
    // The rings lie in another file, which stays.
    let more = Memory::unsealable();
    let (guest_phys_addr, userspace_addr) = (1 << 40, 0x6000_0000_0000);
    let region = VhostUserMemoryRegionInfo { guest_phys_addr, userspace_addr, ..more.region() };
    guest.frontend.add_mem_region(&region).unwrap();
    device.hold();
    let head = guest.post(0, 0, &[(guest_phys_addr, 512, WRITE)]);
    guest.rings[0].kick();
    device.wait_held(1);
    ftruncate(&more.file, 0).unwrap();
    device.release();
    wait_left(&host.disk);
    assert_eq!((guest.rings[0].used_index(), guest.status(head)), (0, 0xff));
    serves(&host);
}

#[test]
fn a_ring_that_is_gone_ends_the_connection() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let guest = connect(&host);
    ftruncate(&guest.memory.file, 0).unwrap();
    guest.rings[0].kick();
    wait_ended(&guest);
    serves(&host);
}

#[test]
fn two_rings_that_find_their_memory_gone_at_once_end_one_connection() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let setup = Setup { rings: 4, ..Setup::default() };
    let mut guest = Guest::connect(&host.path(), Memory::unsealable(), &setup, None);
    (0..4).for_each(|ring| guest.start(ring));
    (0..4).for_each(|ring| guest.post_at(ring, 0, 1, 0, &[(GONE, 512, 0)]));
    ftruncate(&guest.memory.file, LEFT).unwrap();
    guest.rings.iter().for_each(GuestRing::kick);
    wait_left(&host.disk);
    assert!(guest.rings.iter().all(|ring| ring.used_index() == 0));
    assert!(device.take_ops().is_empty());
    serves(&host);
}

#[test]
fn a_record_of_requests_in_flight_that_is_gone_ends_the_connection() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let setup = Setup { inflight: true, ..Setup::default() };
    let size = 1 << 20;
    let file = File::from(memfd_create("record", MemfdFlags::CLOEXEC).unwrap());
    ftruncate(&file, size).unwrap();
    let record = (VhostUserInflight::new(size, 0, 1, ENTRIES), Arc::new(file));
    let mut guest = Guest::connect(&host.path(), Memory::new(), &setup, Some(record));
    guest.start(0);
    assert_eq!(guest.flush(), OK);
    ftruncate(&guest.inflight.as_ref().unwrap().1, 0).unwrap();
    guest.post(4, 0, &[]);
    guest.rings[0].kick();
    wait_left(&host.disk);
    assert_eq!(guest.rings[0].used_index(), 1);
    serves(&host);
}

/// Names the part of a test that a process of its own plays.
const CHILD: &str = "COREWISE_VHOST_FAULT";

/// Accesses a page that is gone, which no session has.
fn fault() -> ! {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    // From now on the handler is installed.
    assert_eq!(connect(&host).write(0, &[1; 512]), OK);
    let file = File::from(memfd_create("other", MemfdFlags::CLOEXEC).unwrap());
    ftruncate(&file, 4096).unwrap();
    let mapping = MmapRegion::<()>::from_file(FileOffset::new(file.try_clone().unwrap(), 0), 4096);
    let mapping = mapping.unwrap();
    ftruncate(&file, 0).unwrap();
    let byte = mapping.as_volatile_slice().get_ref::<u8>(0).unwrap().load();
    panic!("read {byte} from a page that is gone");
}

extern "C" fn leave(_: libc::c_int) {
    // SAFETY: it ends the process, and is async-signal-safe.
    unsafe { libc::_exit(77) }
}

fn child(part: &str) -> std::process::ExitStatus {
    let test = "truncation::a_fault_elsewhere_has_the_effect_that_it_had_before";
    let mut command = Command::new(std::env::current_exe().unwrap());
    let command = command.args([test, "--exact"]).env(CHILD, part);
    command.output().unwrap().status
}

#[test]
fn a_fault_elsewhere_has_the_effect_that_it_had_before() {
    match std::env::var(CHILD).as_deref() {
        Ok("default") => fault(),
        Ok("handler") => {
            let handler = leave as extern "C" fn(libc::c_int) as libc::sighandler_t;
            // SAFETY: the handler calls an async-signal-safe function alone.
            unsafe { libc::signal(libc::SIGBUS, handler) };
            fault();
        }
        Ok(_) => {
            // Rust has its own handler, so the default action has to be asked for.
            // SAFETY: the action is the default one.
            unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
            let device = TestDevice::of(1 << 20);
            let host = Host::new(&device, Options::default());
            assert_eq!(connect(&host).write(0, &[1; 512]), OK);
            // SAFETY: it sends a signal to this thread.
            unsafe { libc::raise(libc::SIGBUS) };
            panic!("the signal has no effect");
        }
        Err(_) => {
            assert_eq!(child("default").signal(), Some(libc::SIGBUS));
            assert_eq!(child("handler").code(), Some(77));
            assert_eq!(child("sent").signal(), Some(libc::SIGBUS));
        }
    }
}
