//! Tests of the registry by itself: exports that share a device, and newcomers in a flood.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use corewise_blockmq::{BlockDevice, Geometry, Request};
use corewise_sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::memory::Pool;

struct Disk;

impl BlockDevice for Disk {
    fn name(&self) -> &str {
        "disk"
    }
    fn geometry(&self) -> Geometry {
        Geometry::new(1 << 20)
    }
    fn submit(&self, _: Request) {}
}

#[test]
fn exports_of_one_device_share_it_and_nothing_is_kept_of_those_that_are_gone() {
    let registry = Registry::new();
    let (one, other): (Arc<dyn BlockDevice>, Arc<dyn BlockDevice>) =
        (Arc::new(Disk), Arc::new(Disk));
    let add = |name: &str, device: &Arc<dyn BlockDevice>| {
        registry.add_export(Export::new(name, Arc::clone(device))).unwrap();
        Arc::as_ptr(&registry.books.lock().exports[name].export.shared)
    };
    let first = add("a", &one);
    assert_ne!(add("b", &other), first);
    assert_eq!(add("c", &one), first);
    registry.forget_export("a");
    assert_eq!(add("d", &one), first, "'c' is still there");
    for name in ["b", "c", "d"] {
        registry.forget_export(name);
    }
    assert!(registry.books.lock().shared.is_empty());
}

fn connection(id: u64, socket: UnixStream, idle: Option<Duration>) -> (Arc<Connection>, ()) {
    let (budget, pool) = (Options::default().budget, Arc::new(Pool::new(1 << 20)));
    let connection =
        Connection::new(ClientLog::of_test(id), socket.into(), budget, 0, pool, idle).0;
    (Arc::new(connection), ())
}

fn admit_to(registry: &Registry, limit: usize) -> Result<(Arc<Connection>, ()), Error> {
    let make = |id| connection(id, UnixStream::pair().unwrap().0, None);
    let who = ClientLog::of_test(0).who;
    let options = Options::new().max_half_open(limit).max_connections(0);
    registry.admit(who, &options, &|| false, make, |oldest| oldest.close())
}

#[test]
fn a_client_whose_request_lies_in_the_socket_is_not_idle() {
    let registry = Registry::new();
    registry.add_export(Export::new("disk", Arc::new(Disk))).unwrap();
    let admit = || {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let make = |id| connection(id, ours, Some(Duration::ZERO));
        let who = ClientLog::of_test(0).who;
        (registry.admit(who, &Options::new(), &|| false, make, |_| ()).unwrap().0, theirs)
    };
    let options = Options::new().max_connections(1).evict_idle(Some(Duration::ZERO));
    let attach = |connection: &Connection| {
        let who = ClientLog::of_test(0).who;
        registry.attach(connection.id, "disk", &who, &options).map(drop)
    };
    let ((first, mut client), (second, _theirs)) = (admit(), admit());
    attach(&first).unwrap();
    // The state of a process that was stopped while it was sent.
    std::io::Write::write_all(&mut client, b"request").unwrap();
    assert!(attach(&second).unwrap_err().to_string().contains("all 1 places"));
    let mut bytes = bytes::BytesMut::with_capacity(64);
    assert_eq!(first.receive(&mut bytes).unwrap(), 7);
    attach(&second).unwrap();
    assert!(first.cause().is_some_and(|why| why.contains("evict_idle")));
}

#[test]
fn a_client_whose_thread_has_not_got_to_it_keeps_its_place_and_the_newcomer_waits() {
    const LIMIT: usize = 2;
    let registry = Registry::new();
    let first: Vec<_> = (0..LIMIT).map(|_| admit_to(&registry, LIMIT).unwrap().0).collect();
    let admitted = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let newcomer = scope.spawn(|| {
            let id = admit_to(&registry, LIMIT).unwrap().0.id;
            admitted.store(true, Ordering::Release);
            id
        });
        for _ in 0..1000 {
            std::thread::yield_now();
            assert!(!admitted.load(Ordering::Acquire));
        }
        // The second one's client turns out to send nothing.
        first[1].note_wait();
        let newcomer = newcomer.join().unwrap();
        let here: Vec<u64> = registry.books.lock().half_open.iter().copied().collect();
        assert_eq!(here, [first[0].id, newcomer]);
    });
}

#[test]
fn a_client_that_was_told_that_there_is_no_place_makes_room_before_one_that_was_not() {
    let registry = Registry::new();
    registry.add_export(Export::new("disk", Arc::new(Disk))).unwrap();
    let admit = || {
        let connection = admit_to(&registry, 3).unwrap().0;
        connection.note_wait();
        connection.id
    };
    let attach = |id| {
        let options = Options::new().max_connections(0);
        registry
            .attach(id, "disk", &ClientLog::of_test(0).who, &options)
            .map(drop)
            .unwrap_err()
            .to_string()
    };
    let ids = [admit(), admit(), admit()];
    // The first one is about to get the refusal; the second one has got it.
    let (about_to, told) = (ids[0], ids[1]);
    for id in [about_to, told] {
        assert!(attach(id).contains("all 0 places"));
    }
    registry.books.lock().connections[&told].connection.note_wait();
    let newcomer = admit();
    let here: Vec<u64> = registry.books.lock().half_open.iter().copied().collect();
    assert_eq!(here, [about_to, ids[2], newcomer]);
    assert_eq!(registry.books.lock().cut, 0, "nobody was cut who hadn't been told");
}

#[test]
fn a_newcomer_that_waits_for_a_place_gives_up_with_its_listener() {
    let registry = Registry::new();
    let _first = admit_to(&registry, 1).unwrap();
    let asked = AtomicBool::new(false);
    let stop = || asked.swap(true, Ordering::Relaxed);
    let options = Options::new().max_half_open(1).max_connections(0);
    let make = |_| -> (Arc<Connection>, ()) { unreachable!("there is no place") };
    let who = ClientLog::of_test(0).who;
    let stopped = registry.admit(who, &options, &stop, make, |_| ()).map(|_| ());
    assert!(matches!(stopped, Err(Error::ShuttingDown)), "{stopped:?}");
}

#[test]
fn as_many_threads_may_be_ending_as_may_shake_hands_and_newcomers_wait_until_one_has_ended() {
    const LIMIT: usize = 2;
    let registry = Registry::new();
    let admit = || admit_to(&registry, LIMIT);
    let admitted = || {
        let (connection, ()) = admit().unwrap();
        connection.note_wait();
        connection
    };
    let first = admitted();
    (1..2 * LIMIT).for_each(|_| drop(admitted()));
    assert_eq!(registry.connections(), LIMIT, "the others are being let go");
    let admitted = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let newcomer = scope.spawn(|| {
            admit().unwrap();
            admitted.store(true, Ordering::Release);
        });
        // The thread may not have begun to wait, which makes the check easier to pass, never
        // harder.
        for _ in 0..1000 {
            std::thread::yield_now();
            assert!(!admitted.load(Ordering::Acquire));
        }
        registry.leave(&first, None);
        newcomer.join().unwrap();
        let closed_to = scope.spawn(|| admit().err());
        registry.close();
        assert!(matches!(closed_to.join().unwrap(), Some(Error::ShuttingDown)));
    });
}
