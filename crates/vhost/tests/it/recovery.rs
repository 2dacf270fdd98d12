//! Servers that die with requests in flight.

use corewise_blockmq::Op;
use corewise_vhost::Options;

use crate::device::TestDevice;
use crate::guest::*;

/// Ends a server as a kill does: what is in its device is never done, nothing is answered.
fn kill(host: Host) -> TestDeviceContent {
    let content = host.device.bytes();
    drop(host);
    content
}

type TestDeviceContent = Vec<u8>;

fn successor(content: &[u8]) -> (std::sync::Arc<TestDevice>, Host) {
    let device = TestDevice::of(content.len() as u64);
    device.fill(0, content);
    let host = Host::new(&device, Options::default());
    (device, host)
}

#[test]
fn requests_that_a_server_left_are_executed_again_in_their_order() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let setup = Setup { inflight: true, ..Setup::default() };
    let mut guest = Guest::new(&host.path(), setup.clone());
    device.hold();
    let heads: Vec<u16> = (0..5_u64)
        .map(|n| {
            let at = BUFFERS + 4096 * n;
            guest.memory.put(at, &[n as u8 + 1; 512]);
            guest.post(1, 4 - n, &[(at, 512, 0)])
        })
        .collect();
    guest.rings[0].kick();
    device.wait_held(5);
    // Two are answered out of order: the fourth, and the second.
    device.release_one(3);
    assert_eq!(guest.rings[0].wait_used(), (heads[3], 1));
    device.release_one(1);
    assert_eq!(guest.rings[0].wait_used(), (heads[1], 1));
    let content = kill(host);
    let (device, host) = successor(&content);
    let mut guest = guest.reconnect(&host.path(), &setup);
    // Made while no server was there.
    let late = guest.post(4, 0, &[]);
    device.hold();
    guest.start(0);
    device.wait_held(4);
    let ops = device.take_ops();
    let wanted = [(Op::Write, 4 * 512, 512), (Op::Write, 2 * 512, 512), (Op::Write, 0, 512)];
    assert_eq!(ops[..3], wanted);
    assert_eq!(ops[3].0, Op::Flush);
    device.release();
    let mut ended: Vec<u16> = (0..4).map(|_| guest.rings[0].wait_used().0).collect();
    ended.sort_unstable();
    assert_eq!(ended, [heads[0], heads[2], heads[4], late]);
    assert_eq!(guest.rings[0].used(), None);
    assert_eq!(
        device.bytes()[..2560].chunks(512).map(|b| b[0]).collect::<Vec<_>>(),
        [5, 4, 3, 2, 1]
    );
    assert_eq!(guest.rings[0].used_index(), 6);
}

#[test]
fn a_server_that_is_stopped_leaves_nothing_to_do_again() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let setup = Setup { inflight: true, rings: 2, ..Setup::default() };
    let mut guest = Guest::new(&host.path(), setup.clone());
    assert_eq!((guest.write(0, &[1; 512]), guest.flush()), (OK, OK));
    let Host { disk, .. } = host;
    assert!(disk.stop(std::time::Duration::from_secs(60)).is_clean());
    let (device, host) = successor(&device.bytes());
    let mut guest = guest.reconnect(&host.path(), &setup);
    (0..2).for_each(|ring| guest.start(ring));
    assert_eq!(device.take_ops(), []);
    assert_eq!((guest.read(0, 512), guest.flush()), (Ok(vec![1; 512]), OK));
}

#[test]
fn a_guest_of_a_server_that_may_have_lost_changes_learns_of_it_by_one_flush() {
    let setup = Setup { inflight: true, ..Setup::default() };
    let options = || Options::default().may_lose(true);
    let next = |content: &[u8]| {
        let device = TestDevice::of(content.len() as u64);
        device.fill(0, content);
        let host = Host::new(&device, options());
        (device, host)
    };
    // A guest without a former server has lost nothing.
    let (_, host) = next(&[0; 1 << 20]);
    let mut guest = Guest::new(&host.path(), setup.clone());
    assert_eq!((guest.write(0, &[1; 512]), guest.flush()), (OK, OK));
    let content = kill(host);
    let (_, host) = next(&content);
    let mut guest = guest.reconnect(&host.path(), &setup);
    guest.start(0);
    assert_eq!((guest.flush(), guest.flush()), (IOERR, OK));
    // A connection that is made anew to the same server has lost nothing.
    let mut guest = guest.reconnect(&host.path(), &setup);
    guest.start(0);
    assert_eq!(guest.flush(), OK);
    // Nor has one to the successor of a server that was stopped.
    let Host { disk, device, .. } = host;
    assert!(disk.stop(std::time::Duration::from_secs(60)).is_clean());
    let (_, host) = next(&device.bytes());
    let mut guest = guest.reconnect(&host.path(), &setup);
    guest.start(0);
    assert_eq!(guest.flush(), OK);
    // The mark of that stop holds once.
    let content = kill(host);
    let (_, host) = next(&content);
    let mut guest = guest.reconnect(&host.path(), &setup);
    guest.start(0);
    assert_eq!((guest.flush(), guest.flush()), (IOERR, OK));
    drop(host);
}

#[test]
fn a_record_of_another_shape_is_refused() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let setup = Setup { inflight: true, ..Setup::default() };
    let mut guest = Guest::new(&host.path(), setup.clone());
    assert_eq!(guest.flush(), OK);
    let (inflight, file) = guest.inflight.clone().unwrap();
    drop(guest);
    let mut frontend = negotiate(&host.path(), &setup);
    use std::os::fd::AsRawFd;
    use vhost::vhost_user::VhostUserFrontend;
    for (rings, entries, size) in [
        (2, ENTRIES, inflight.mmap_size),
        (1, ENTRIES, inflight.mmap_size - 64),
        (1, ENTRIES, 1 << 30),
        (1, 2048, 1 << 30),
        (999, ENTRIES, 1 << 30),
    ] {
        let mut wrong = inflight;
        (wrong.num_queues, wrong.queue_size, wrong.mmap_size) = (rings, entries, size);
        assert!(frontend.set_inflight_fd(&wrong, file.as_raw_fd()).is_err(), "{rings} {entries}");
    }
    frontend.set_inflight_fd(&inflight, file.as_raw_fd()).unwrap();
}
