//! The life of a disk: frontends that come and go, changes of memory and size, the end.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use corewise_blockmq::Geometry;
use corewise_export::{Access, MemoryPool};
use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_vhost::{Error, FrontendEvent, Options, Server};
use vhost::vhost_user::{
    Frontend, FrontendReqHandler, HandlerResult, VhostUserFrontend, VhostUserFrontendReqHandlerMut,
};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo};

use crate::device::TestDevice;
use crate::guest::*;

const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_frontend_that_comes_second_is_turned_away_and_the_first_goes_on() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let mut guest = Guest::new(&host.path(), Setup::default());
    let second = Frontend::connect(host.path(), 1).unwrap();
    assert!(second.get_features().is_err());
    assert_eq!(guest.write(0, &[1; 512]), OK);
    drop(guest);
    // The next one may come before the server knows that the first has left.
    let mut next = Guest::new(&host.path(), Setup::default());
    assert_eq!(next.read(0, 512), Ok(vec![1; 512]));
    assert_eq!(host.disk.status().sessions, 2);
}

#[test]
fn the_next_frontend_waits_for_the_requests_of_the_last_one() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let mut guest = Guest::new(&host.path(), Setup::default());
    device.hold();
    guest.memory.put(BUFFERS, &[1; 512]);
    guest.post(1, 0, &[(BUFFERS, 512, 0)]);
    guest.rings[0].kick();
    device.wait_held(1);
    drop(guest);
    let path = host.path();
    let next = thread::spawn(move || {
        let mut next = Guest::new(&path, Setup::default());
        next.write(0, &[2; 512])
    });
    // The late write of the first guest must not come behind that of the second.
    assert_eq!((host.disk.status().sessions, device.held()), (1, 1));
    device.release();
    assert_eq!(next.join().unwrap(), OK);
    assert_eq!(device.bytes()[..512], [2; 512]);
}

#[test]
fn a_disk_that_is_stopped_answers_what_is_in_flight_and_flushes() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let mut guest = Guest::new(&host.path(), Setup::default());
    let path = host.path();
    device.hold();
    guest.memory.put(BUFFERS, &[1; 512]);
    let head = guest.post(1, 0, &[(BUFFERS, 512, 0)]);
    guest.rings[0].kick();
    device.wait_held(1);
    let Host { disk, _server, folder, .. } = host;
    let stop = thread::spawn(move || disk.stop(PATIENCE));
    wait_until("the end of the socket", || !path.exists());
    // It may be taken yet, or not: it isn't answered with an error.
    let late = guest.post(0, 0, &[(BUFFERS, 512, WRITE)]);
    guest.rings[0].kick();
    device.release();
    let report = stop.join().unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(guest.rings[0].wait_used(), (head, 1));
    assert_eq!((guest.status(head), &device.durable()[..512]), (OK, &[1; 512][..]));
    assert!([OK, 0xff].contains(&guest.status(late)));
    assert!(guest.frontend.get_features().is_err(), "the connection has ended");
    drop((_server, folder));
}

#[test]
fn a_disk_that_is_stopped_without_patience_leaves_its_requests_to_the_device() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let mut guest = Guest::new(&host.path(), Setup::default());
    device.hold();
    let head = guest.post(4, 0, &[]);
    guest.rings[0].kick();
    device.wait_held(1);
    let Host { disk, _server, folder, .. } = host;
    let report = disk.stop(Duration::ZERO);
    assert!(!report.drained && !report.is_clean());
    device.release();
    assert_eq!(guest.status(head), 0xff);
    drop((_server, folder));
}

/// Counts the messages that say that the configuration has changed.
struct ConfigChanges(Arc<Mutex<u32>>);

impl VhostUserFrontendReqHandlerMut for ConfigChanges {
    fn handle_config_change(&mut self) -> HandlerResult<u64> {
        *self.0.lock() += 1;
        Ok(0)
    }
}

#[test]
fn a_guest_learns_that_its_disk_has_grown() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let mut guest = Guest::new(&host.path(), Setup::default());
    assert!(!host.disk.resized(), "it takes no such messages yet");
    let count = Arc::new(Mutex::new(0));
    let changes = Arc::new(std::sync::Mutex::new(ConfigChanges(Arc::clone(&count))));
    let mut handler = FrontendReqHandler::new(changes).unwrap();
    guest.frontend.set_backend_request_fd(&handler.get_tx_raw_fd_owned()).unwrap();
    assert_eq!((guest.capacity(), guest.write(4096, &[1; 512])), (2048, IOERR));
    device.grow(4 << 20);
    assert!(host.disk.resized());
    handler.handle_request().unwrap();
    assert_eq!((*count.lock(), guest.capacity(), guest.write(4096, &[1; 512])), (1, 8192, OK));
}

/// A descriptor that the frontend of `vhost` can send.
struct Raw(i32);

impl AsRawFd for Raw {
    fn as_raw_fd(&self) -> i32 {
        self.0
    }
}

trait Channel {
    fn get_tx_raw_fd_owned(&self) -> Raw;
}

impl<S: vhost::vhost_user::VhostUserFrontendReqHandler> Channel for FrontendReqHandler<S> {
    fn get_tx_raw_fd_owned(&self) -> Raw {
        Raw(self.get_tx_raw_fd())
    }
}

#[test]
fn kicks_before_the_ring_is_enabled_count_once_it_is() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let mut guest = Guest::connect(&host.path(), Memory::new(), &Setup::default(), None);
    guest.rings[0].kick();
    guest.prepare(0, 0);
    let head = guest.post(4, 0, &[]);
    guest.rings[0].kick();
    // A message that is answered comes behind the kick.
    guest.frontend.get_queue_num().unwrap();
    assert_eq!((guest.rings[0].used(), device.take_ops()), (None, vec![]));
    guest.frontend.set_vring_enable(0, true).unwrap();
    assert_eq!(guest.rings[0].wait_used(), (head, 1));
    // Disabled, it takes nothing more, and loses nothing.
    guest.frontend.set_vring_enable(0, false).unwrap();
    device.take_ops();
    let head = guest.post(4, 0, &[]);
    guest.rings[0].kick();
    guest.frontend.get_queue_num().unwrap();
    assert_eq!((guest.rings[0].used(), device.take_ops()), (None, vec![]));
    guest.frontend.set_vring_enable(0, true).unwrap();
    assert_eq!(guest.rings[0].wait_used(), (head, 1));
}

#[test]
fn a_ring_that_is_stopped_has_answered_and_goes_on_from_there() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let mut guest = Guest::new(&host.path(), Setup::default());
    assert_eq!(guest.flush(), OK);
    device.hold();
    let head = guest.post(4, 0, &[]);
    guest.rings[0].kick();
    device.wait_held(1);
    let frontend = guest.frontend.clone();
    let stopped = thread::spawn(move || frontend.get_vring_base(0).unwrap());
    device.release();
    assert_eq!(stopped.join().unwrap(), 2);
    assert_eq!((guest.rings[0].used_index(), guest.status(head)), (2, OK));
    let late = guest.post(4, 0, &[]);
    guest.rings[0].kick();
    guest.frontend.get_queue_num().unwrap();
    assert_eq!(guest.rings[0].used_index(), 2, "it is stopped");
    guest.prepare(0, 2);
    guest.rings[0].seen = 2;
    assert_eq!(guest.rings[0].wait_used(), (late, 1));
}

#[test]
fn a_device_that_is_reset_begins_anew() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let mut guest = Guest::new(&host.path(), Setup { rings: 2, ..Setup::default() });
    assert_eq!(guest.flush(), OK);
    guest.frontend.reset_device().unwrap();
    guest.post(4, 0, &[]);
    guest.rings[0].kick();
    guest.frontend.get_queue_num().unwrap();
    assert_eq!(guest.rings[0].used_index(), 1, "it is stopped");
    // The driver begins anew too.
    guest.memory.put(GUEST, &[0; 64 << 10]);
    guest.frontend.set_features(Setup::default().features).unwrap();
    let memory = guest.memory.clone();
    guest.rings = vec![GuestRing::new(&memory, 0)];
    guest.start(0);
    assert_eq!(guest.flush(), OK);
}

#[test]
fn memory_comes_and_goes_while_requests_are_in_flight() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let mut guest = Guest::new(&host.path(), Setup::default());
    let more = Memory::new();
    let region = VhostUserMemoryRegionInfo {
        guest_phys_addr: 1 << 40,
        userspace_addr: 0x6000_0000_0000,
        ..more.region()
    };
    guest.frontend.add_mem_region(&region).unwrap();
    more.put(GUEST, &[3; 512]);
    assert_eq!(guest.execute(1, 0, &[(1 << 40, 512, 0)]).0, OK);
    assert_eq!(device.bytes()[..512], [3; 512]);
    device.hold();
    let write = guest.post(1, 1, &[(1 << 40, 512, 0)]);
    let read = guest.post(0, 0, &[((1 << 40) + 4096, 512, WRITE)]);
    guest.rings[0].kick();
    device.wait_held(2);
    guest.frontend.remove_mem_region(&region).unwrap();
    device.release();
    wait_until("the answers", || guest.rings[0].used_index() == 3);
    assert_eq!([write, read].map(|head| guest.status(head)), [OK, IOERR]);
    assert_eq!(more.get(GUEST + 4096, 512), [0; 512], "nothing is written to it any more");
    guest.rings[0].seen = 3;
    assert_eq!(guest.execute(1, 0, &[(1 << 40, 512, 0)]), (0xff, 0));
    // A new table takes the place of the former one while the ring runs.
    guest.frontend.set_mem_table(&[guest.memory.region(), region]).unwrap();
    assert_eq!(guest.execute(1, 0, &[(1 << 40, 512, 0)]).0, OK);
}

#[test]
fn memory_of_the_rings_that_goes_breaks_them() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    let mut guest = Guest::new(&host.path(), Setup::default());
    let region = guest.memory.region();
    assert!(guest.frontend.remove_mem_region(&region).is_err());
    guest.rings[0].wait_broken();
    guest.frontend.add_mem_region(&region).unwrap();
    guest.frontend.get_vring_base(0).unwrap();
    guest.start(0);
    assert_eq!(guest.flush(), OK);
}

#[test]
fn a_socket_is_one_server_s_until_that_has_gone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.sock");
    let device = TestDevice::of(1 << 20);
    let server = Server::new().unwrap();
    // A file that a killed server has left.
    drop(UnixListener::bind(&path).unwrap());
    let listen = || server.listen(&path, device.shared(), Options::default());
    let disk = listen().unwrap();
    assert_eq!(disk.path(), Some(&*path));
    assert!(matches!(listen(), Err(Error::SocketInUse(at)) if at == path));
    assert!(path.exists());
    let mode = path.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "nobody else may connect");
    drop(disk);
    assert!(!path.exists());
    std::fs::write(&path, "a file").unwrap();
    assert!(matches!(listen(), Err(Error::NotASocket(at)) if at == path));
    std::fs::remove_file(&path).unwrap();
    // A listener of the caller's: its file stays.
    let disk =
        server.serve(UnixListener::bind(&path).unwrap(), device.shared(), Options::default());
    let mut guest = Guest::new(&path, Setup::default());
    assert_eq!(guest.flush(), OK);
    drop(disk);
    assert!(path.exists() && UnixStream::connect(&path).is_err());
}

#[test]
fn a_user_who_may_not_is_turned_away() {
    let device = TestDevice::of(1 << 20);
    let uid = rustix::process::getuid().as_raw();
    for (uids, may) in [(vec![uid], true), (vec![uid + 1], false), (vec![], false)] {
        let access = Access { uids: Some(uids), names: None };
        let host = Host::new(&device, Options::default().access(access));
        let frontend = Frontend::connect(host.path(), 1).unwrap();
        assert_eq!(frontend.get_features().is_ok(), may);
    }
}

#[test]
fn a_device_that_can_be_no_disk_is_refused() {
    let server = Server::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.sock");
    let large = Geometry { block_size: 8192, ..Geometry::new(1 << 20) };
    for (geometry, queues) in
        [(large, 1), (Geometry::new(1 << 20), 0), (Geometry::new(1 << 20), 257)]
    {
        let device = TestDevice::new(geometry);
        let options = Options::default().queues(queues);
        assert!(matches!(server.listen(&path, device.shared(), options), Err(Error::Unfit(_))));
        assert!(!path.exists());
    }
}

#[test]
fn a_frontend_that_is_disconnected_may_come_again() {
    let device = TestDevice::of(1 << 20);
    let host = Host::new(&device, Options::default());
    assert!(!host.disk.disconnect(), "nobody is there");
    let guest = Guest::new(&host.path(), Setup::default());
    assert!(host.disk.disconnect());
    let mut again = guest.reconnect(&host.path(), &Setup::default());
    again.start(0);
    assert_eq!(again.flush(), OK);
}

#[test]
fn the_observer_hears_who_came_and_why_they_left() {
    let device = TestDevice::of(1 << 20);
    let heard = Arc::new(Mutex::new(Vec::new()));
    let theirs = Arc::clone(&heard);
    let options = Options::default().observer(move |event| {
        let (who, line) = match event {
            FrontendEvent::Attached { who } => (who, "attached".to_owned()),
            FrontendEvent::Left { who, why } => (who, format!("left: {why}")),
            other => panic!("{other:?}"),
        };
        assert_eq!(who.pid, Some(std::process::id()));
        theirs.lock().push(line);
        // A panic of an observer has no effect.
        panic!("on purpose");
    });
    let host = Host::new(&device, options);
    let wait_left = || wait_until("the end", || !host.disk.status().connected);
    drop(Guest::new(&host.path(), Setup::default()));
    wait_left();
    let _guest = Guest::new(&host.path(), Setup::default());
    host.disk.disconnect();
    wait_left();
    // Not a message.
    (&UnixStream::connect(host.path()).unwrap()).write_all(&[0xff; 12]).unwrap();
    wait_until("the third", || heard.lock().len() >= 6);
    let _guest = Guest::new(&host.path(), Setup::default());
    assert!(host.disk.stop(PATIENCE).is_clean());
    let heard = heard.lock();
    let left = |n: usize| heard[2 * n + 1].as_str();
    assert!((0..4).all(|n| heard[2 * n] == "attached"), "{heard:?}");
    assert_eq!(left(0), "left: the client closed the connection");
    assert_eq!(left(1), "left: an operator disconnected the client");
    assert!(left(2).contains("invalid"), "{heard:?}");
    assert_eq!(left(3), "left: the server was shut down");
}

/// Memory of other clients.
#[derive(Debug)]
struct OtherMemory(AtomicU64);

impl MemoryPool for OtherMemory {
    fn try_take(&self, bytes: u64) -> bool {
        let less = |free: u64| free.checked_sub(bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
    }
}

#[test]
fn requests_go_on_one_by_one_while_other_clients_have_the_memory() {
    for free in [0, 4096, 1 << 20] {
        let device = TestDevice::of(1 << 20);
        let pool = Arc::new(OtherMemory(AtomicU64::new(free)));
        let shared = Arc::clone(&pool) as Arc<dyn MemoryPool>;
        let host = Host::new(&device, Options::default().memory_pool(shared));
        let mut guest = Guest::new(&host.path(), Setup::default());
        device.hold();
        for n in 0..4 {
            guest.post(
                u32::from(n % 2 == 0),
                8 * n,
                &[(BUFFERS, 4096, if n % 2 == 0 { 0 } else { WRITE })],
            );
        }
        guest.rings[0].kick();
        let at_once = (free / 4096).clamp(1, 4);
        device.wait_held(at_once as usize);
        let taken = free - pool.0.load(Ordering::Relaxed);
        assert_eq!(taken, if free == 0 { 0 } else { 4096 * at_once });
        device.release();
        (0..4).for_each(|_| assert_eq!(guest.wait().1, OK));
        wait_until("the memory", || pool.0.load(Ordering::Relaxed) == free);
    }
}
