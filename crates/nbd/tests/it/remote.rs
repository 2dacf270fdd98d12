//! Tests of volumes that are another server's exports, against our own server, with connections
//! that are cut at each kind of request.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::common::*;
use corewise_blockmq::{
    BlockDevice, BlockDeviceExt, Completed, ExtentKind, Geometry, IoErrorKind, Op, Queue, Request,
};
use corewise_nbd::{Export, Options, Remote, RemoteEvent, RemoteOptions, RemoteState, Server};
use corewise_sync::Mutex;
use corewise_topology::Machine;
use corewise_workqueue::{WorkerPools, Workqueue};

const MIB: u64 = 1 << 20;

/// A machine, and folders for sockets.
pub(crate) struct Rig {
    machine: Machine,
    pools: WorkerPools,
    wq: Option<Workqueue>,
    folder: tempfile::TempDir,
}

impl Rig {
    pub(crate) fn new() -> Rig {
        let machine = Machine::live().unwrap();
        let pools = WorkerPools::new(&machine);
        let wq = Some(Workqueue::builder("remote").build(&pools).unwrap());
        Rig { machine, pools, wq, folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn disk(&self, remote: Arc<Remote>) -> Arc<Queue> {
        Queue::builder(&self.machine, remote).name("disk").build(self.wq.as_ref().unwrap())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        drop(self.wq.take());
        self.pools.shutdown();
    }
}

/// Returns the options for an export behind a socket.
pub(crate) fn options(path: &Path) -> RemoteOptions {
    let uri = format!("nbd+unix:///disk?socket={}", path.display());
    RemoteOptions::new(uri.parse().unwrap())
}

fn listening(device: Arc<TestDevice>, path: &Path) -> Server {
    let server = server(device);
    server.listen_unix(path).unwrap();
    server
}

/// Submits a request, and returns the channel that gets its completion.
pub(crate) fn submit(disk: &Queue, rq: Request) -> Receiver<Completed> {
    let (tell, told) = channel();
    disk.submit(rq.on_complete(move |done| _ = tell.send(done)));
    told
}

pub(crate) fn ended(told: &Receiver<Completed>) -> Completed {
    told.recv_timeout(PATIENCE).expect("each request ends")
}

/// A proxy between the two sides, which closes the connections on demand.
struct Proxy {
    /// L: is the lock; guards the streams of live connections.
    streams: Arc<Mutex<Vec<UnixStream>>>,
}

impl Proxy {
    fn new(at: &Path, target: &Path) -> Proxy {
        let listener = UnixListener::bind(at).unwrap();
        let (streams, target) = (Arc::<Mutex<Vec<UnixStream>>>::default(), target.to_owned());
        let theirs = Arc::clone(&streams);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let (Ok(client), Ok(server)) = (client, UnixStream::connect(&target)) else {
                    continue;
                };
                let pairs = [(&client, &server), (&server, &client)];
                for (from, to) in
                    pairs.map(|(a, b)| (a.try_clone().unwrap(), b.try_clone().unwrap()))
                {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut &from, &mut &to);
                        let _ = to.shutdown(std::net::Shutdown::Both);
                        let _ = from.shutdown(std::net::Shutdown::Both);
                    });
                }
                theirs.lock().extend([client, server]);
            }
        });
        Proxy { streams }
    }

    fn cut(&self) {
        for stream in self.streams.lock().drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

#[test]
fn each_operation_reaches_the_other_side_with_its_flags() {
    let rig = Rig::new();
    let device = TestDevice::new(4 * MIB);
    device.hole(MIB..2 * MIB);
    let server = listening(device.clone(), &rig.path("s"));
    let tcp = server.listen_tcp("127.0.0.1:0").unwrap().uri("disk").parse().unwrap();
    for options in [options(&rig.path("s")), RemoteOptions::new(tcp).connections(1)] {
        let disk = rig.disk(Arc::new(Remote::connect(options).unwrap()));
        let bytes: Vec<u8> = (0..300_000u32).map(|n| (n / 7) as u8).collect::<Vec<_>>();
        let bytes = &bytes[..299_520];
        disk.write_at(512, bytes.to_vec()).unwrap();
        assert_eq!(disk.read_at(512, bytes.len()).unwrap(), bytes);
        assert_eq!(device.bytes(512, bytes.len()), bytes);
        // The write comes in pieces that are not all whole blocks.
        let parts = [(vec![1; 100].into(), 0), (vec![2; 924].into(), 0)].map(|(b, _): (_, u8)| b);
        let write = Request::write_vectored(4096, parts.into());
        ended(&submit(&disk, write.fua())).result.unwrap();
        assert_eq!(device.bytes(4096, 1024), [vec![1; 100], vec![2; 924]].concat());
        disk.flush().unwrap();
        ended(&submit(&disk, Request::write_zeroes(8192, 4096).no_unmap())).result.unwrap();
        disk.discard(16384, 4096).unwrap();
        let seen = device.seen();
        assert!(seen.iter().any(|s| s.op == Op::Write && s.fua && s.offset == 4096));
        assert!(seen.iter().any(|s| s.op == Op::WriteZeroes && s.no_unmap && s.len == 4096));
        assert!(seen.iter().any(|s| s.op == Op::Discard && s.offset == 16384));
        assert!(seen.iter().any(|s| s.op == Op::Flush));
        let found = disk.extents_of(MIB - 4096, 8192, 9).unwrap();
        let kinds: Vec<_> = found.iter().map(|e| (e.len, e.kind)).collect();
        assert_eq!(kinds, [(4096, ExtentKind::Data), (4096, ExtentKind::Hole)]);
        assert!(
            disk.read_at(MIB, 65536 * 4).unwrap().iter().all(|b| *b == 0),
            "left out as a hole"
        );
    }
}

#[test]
fn the_errors_of_the_other_side_are_told_as_what_they_are() {
    let rig = Rig::new();
    let device = TestDevice::new(MIB);
    let _server = listening(device.clone(), &rig.path("s"));
    let disk = rig.disk(Arc::new(Remote::connect(options(&rig.path("s"))).unwrap()));
    for kind in [IoErrorKind::Io(5), IoErrorKind::NoSpace, IoErrorKind::Io(12)] {
        device.fail(kind);
        assert_eq!(disk.read_at(0, 512).unwrap_err().kind(), kind);
        assert_eq!(disk.write_at(0, vec![1; 512]).unwrap_err().kind(), kind);
        let extents = disk.extents_of(0, 512, 1).unwrap_err();
        assert!(
            extents.kind() == kind && extents.to_string().contains("the remote server reports")
        );
    }
}

#[test]
fn several_connections_are_made_where_a_flush_on_one_covers_all() {
    let rig = Rig::new();
    let server = listening(TestDevice::new(MIB), &rig.path("s"));
    let remote = Arc::new(Remote::connect(options(&rig.path("s")).connections(3)).unwrap());
    assert_eq!(remote.status().state, RemoteState::Connected(3));
    assert_eq!(server.connections(), 3);
    let disk = rig.disk(remote);
    let all: Vec<_> =
        (0..64).map(|n| submit(&disk, Request::write(n * 4096, vec![n as u8; 4096]))).collect();
    all.iter().for_each(|told| ended(told).result.unwrap());
    let busy =
        server.clients().iter().filter(|client| client.traffic.of(Op::Write).requests > 0).count();
    assert!(busy > 1, "{busy} connections had requests");
}

#[test]
fn a_request_whose_connection_is_cut_is_sent_again() {
    let rig = Rig::new();
    type Make = fn() -> Request;
    let requests: [(&str, Make); 7] = [
        ("read", || Request::read(4096, 8192)),
        ("write", || Request::write(4096, vec![9; 8192])),
        ("flush", Request::flush),
        ("discard", || Request::discard(4096, 8192)),
        ("zeroes", || Request::write_zeroes(4096, 8192)),
        ("extents", || Request::extents_of(4096, 8192, 4)),
        ("prefetch", || Request::prefetch(4096, 8192)),
    ];
    for (name, request) in requests {
        let device = TestDevice::with(Geometry { can_prefetch: true, ..Geometry::new(MIB) });
        let before = device.bytes(4096, 8192);
        let _server = listening(device.clone(), &rig.path(name));
        let between = rig.path(&format!("{name}-proxy"));
        let proxy = Proxy::new(&between, &rig.path(name));
        let remote = Arc::new(Remote::connect(options(&between).connections(2)).unwrap());
        let disk = rig.disk(remote.clone());
        device.hold();
        let told = submit(&disk, request());
        device.wait_for_seen(1);
        proxy.cut();
        device.wait_for_seen(2);
        device.release();
        let done = ended(&told);
        done.result.as_ref().unwrap_or_else(|why| panic!("{name}: {why}"));
        match name {
            "read" => assert_eq!(done.into_data().unwrap(), before),
            "write" => assert_eq!(device.bytes(4096, 8192), [9; 8192]),
            "zeroes" | "discard" => assert_eq!(device.bytes(4096, 8192), [0; 8192]),
            _ => {}
        }
        let status = remote.status();
        assert_eq!((status.losses, status.repeated, status.unflushed), (1, 1, 0), "{name}");
    }
}

#[test]
fn one_flush_fails_where_changes_were_acknowledged_on_a_connection_that_is_gone() {
    let rig = Rig::new();
    let device = TestDevice::new(MIB);
    let _server = listening(device.clone(), &rig.path("s"));
    let proxy = Proxy::new(&rig.path("p"), &rig.path("s"));
    let remote = Arc::new(Remote::connect(options(&rig.path("p"))).unwrap());
    let disk = rig.disk(remote.clone());
    // Changes that are flushed, or durable by themselves, aren't lost.
    disk.write_at(0, vec![1; 512]).unwrap();
    disk.flush().unwrap();
    ended(&submit(&disk, Request::write(512, vec![1; 512]).fua())).result.unwrap();
    proxy.cut();
    assert_eq!(disk.read_at(0, 512).unwrap(), [1; 512][..]);
    disk.flush().unwrap();
    disk.write_at(0, vec![2; 512]).unwrap();
    proxy.cut();
    // Another server might have lost it.
    let why = disk.read_at(0, 512).unwrap_err();
    assert!(why.to_string().contains("may be lost"), "{why}");
    let why = disk.flush().unwrap_err();
    assert!(why.kind() == IoErrorKind::Io(5) && why.to_string().contains("may be lost"), "{why}");
    disk.flush().unwrap();
    assert_eq!(disk.read_at(0, 512).unwrap(), [2; 512][..]);
    assert_eq!(remote.status().unflushed, 1);
    // A flush that was on its way when the connection broke counts as the same one.
    disk.write_at(0, vec![3; 512]).unwrap();
    device.hold();
    let flush = submit(&disk, Request::flush());
    device.wait_for_seen(device.seen().len().max(1));
    while device.held() == 0 {
        std::thread::yield_now();
    }
    proxy.cut();
    assert_eq!(ended(&flush).result.unwrap_err().kind(), IoErrorKind::Io(5));
    device.release();
    disk.flush().unwrap();
}

#[test]
fn changes_of_one_block_are_never_on_their_way_together() {
    let rig = Rig::new();
    let device = TestDevice::new(MIB);
    let _server = listening(device.clone(), &rig.path("s"));
    let disk = rig.disk(Arc::new(Remote::connect(options(&rig.path("s"))).unwrap()));
    device.hold();
    let first = submit(&disk, Request::write(4096, vec![1; 4096]));
    device.wait_for_seen(1);
    let second = submit(&disk, Request::write_zeroes(7680, 512));
    let other = submit(&disk, Request::write(8192, vec![3; 512]));
    // The later one has passed it, and it isn't there.
    device.wait_for_seen(2);
    assert!(device.seen().iter().all(|seen| seen.op == Op::Write));
    device.release();
    for told in [first, second, other] {
        ended(&told).result.unwrap();
    }
    assert_eq!(device.bytes(7680, 512), [0; 512]);
    assert_eq!(device.bytes(7168, 512), [1; 512]);
}

#[test]
fn a_server_that_ends_and_comes_again_is_waited_for() {
    let rig = Rig::new();
    let device = TestDevice::new(MIB);
    let first = listening(device.clone(), &rig.path("s"));
    let (tell, told) = channel();
    let options = options(&rig.path("s")).observer(move |event| _ = tell.send(event.clone()));
    let remote = Arc::new(Remote::connect(options).unwrap());
    let disk = rig.disk(remote.clone());
    disk.write_at(0, vec![1; 512]).unwrap();
    disk.flush().unwrap();
    let _ = first.drain(Duration::ZERO);
    drop(first);
    assert!(matches!(told.recv_timeout(PATIENCE).unwrap(), RemoteEvent::Lost { .. }));
    let read = submit(&disk, Request::read(0, 512));
    let _second = listening(device, &rig.path("s"));
    assert_eq!(ended(&read).into_data().unwrap(), [1; 512][..]);
    assert!(matches!(told.recv_timeout(PATIENCE).unwrap(), RemoteEvent::Back { .. }));
    assert!(remote.status().to_string().contains("lost 1 times"), "{}", remote.status());
}

#[test]
fn a_volume_grows_to_the_size_with_which_its_export_came_back_when_that_is_asked_for() {
    let rig = Rig::new();
    let first = listening(TestDevice::new(MIB), &rig.path("s"));
    let disk = rig.disk(Arc::new(Remote::connect(options(&rig.path("s"))).unwrap()));
    assert_eq!(disk.grow(None).unwrap(), MIB);
    assert_eq!(disk.grow(Some(2 * MIB)).unwrap_err().kind(), IoErrorKind::NoSpace);
    let _ = first.drain(Duration::ZERO);
    drop(first);
    let device = TestDevice::new(2 * MIB);
    let _second = listening(device.clone(), &rig.path("s"));
    disk.read_at(0, 512).unwrap();
    assert!(disk.geometry().size == MIB && disk.write_at(MIB, vec![4; 512]).is_err());
    assert_eq!(disk.grow(Some(MIB + 512)).unwrap(), MIB + 512);
    for size in [MIB, 2 * MIB - 1] {
        assert_eq!(disk.grow(Some(size)).unwrap_err().kind(), IoErrorKind::InvalidInput);
    }
    assert_eq!(disk.grow(None).unwrap(), 2 * MIB);
    disk.write_at(2 * MIB - 512, vec![4; 512]).unwrap();
    assert_eq!(device.bytes(2 * MIB as usize - 512, 512), [4; 512]);
}

#[test]
fn a_request_that_nobody_answers_times_out_and_later_ones_fail_at_once_until_the_server_is_back() {
    with_time(Duration::from_millis(200), |soon| {
        let rig = Rig::new();
        let device = TestDevice::new(MIB);
        let server = listening(device.clone(), &rig.path("s"));
        let (tell, told) = channel();
        let options = options(&rig.path("s"))
            .timeout(soon)
            .observer(move |event| _ = tell.send(event.clone()));
        let disk = rig.disk(Arc::new(Remote::connect(options).unwrap()));
        device.hold();
        let why = disk.read_at(0, 512).unwrap_err();
        assert!(
            why.kind() == IoErrorKind::TimedOut && why.to_string().contains("no answer"),
            "{why}"
        );
        device.release();
        assert!(disk.read_at(0, 512).is_ok(), "on the next connection");
        let _ = server.drain(Duration::ZERO);
        drop(server);
        while !matches!(told.recv_timeout(PATIENCE).unwrap(), RemoteEvent::Down { .. }) {}
        let why = disk.read_at(0, 512).unwrap_err();
        assert!(why.to_string().contains("no connection to nbd+unix"), "{why}");
        let _server = listening(device, &rig.path("s"));
        while !matches!(told.recv_timeout(PATIENCE).unwrap(), RemoteEvent::Back { .. }) {}
        assert!(disk.read_at(0, 512).is_ok());
    });
}

#[test]
fn a_volume_that_ends_soon_waits_for_one_request_that_nobody_answers_and_for_no_other() {
    with_time(Duration::from_millis(200), |soon| {
        let rig = Rig::new();
        let device = TestDevice::new(MIB);
        let _server = listening(device.clone(), &rig.path("s"));
        let proxy = Proxy::new(&rig.path("p"), &rig.path("s"));
        let options = options(&rig.path("p")).timeout(soon);
        let remote = Arc::new(Remote::connect(options).unwrap());
        let disk = rig.disk(remote.clone());
        remote.ends_soon();
        // While the server answers, the volume continues, and reconnects.
        disk.read_at(0, 512).unwrap();
        proxy.cut();
        disk.read_at(0, 512).unwrap();
        device.hold();
        let seen = device.seen().len();
        let why = disk.flush().unwrap_err();
        assert!(why.to_string().contains("no answer"), "{why}");
        for _ in 0..2 {
            let why = disk.flush().unwrap_err();
            assert!(why.to_string().contains("no connection"), "{why}");
        }
        assert_eq!(device.seen().len(), seen + 1);
        let status = remote.status();
        assert_eq!((status.state, status.losses), (RemoteState::Down, 2));
        device.release();
    });
}

#[test]
fn what_cannot_be_connected_to_is_told_in_words() {
    let rig = Rig::new();
    let _server = listening(TestDevice::new(MIB), &rig.path("s"));
    let silent = UnixListener::bind(rig.path("silent")).unwrap();
    let other = format!("nbd+unix:///other?socket={}", rig.path("s").display());
    let other = RemoteOptions::new(other.parse().unwrap());
    let tls = format!("nbds+unix:///disk?socket={}", rig.path("s").display());
    let tls = RemoteOptions::new(tls.parse().unwrap());
    let impatient = options(&rig.path("silent")).connect_timeout(Duration::from_millis(50));
    for (options, says) in [
        (options(&rig.path("nothing")), "cannot connect: No such file"),
        (other, "no such export"),
        (tls, "TLS needs"),
        (impatient, "did not answer in time"),
    ] {
        let why = Remote::connect(options).unwrap_err().to_string();
        assert!(why.contains(says), "{why}");
    }
    drop(silent);
}

#[test]
fn an_export_that_comes_back_smaller_is_not_taken_for_the_same() {
    with_time(Duration::from_millis(300), |soon| {
        let rig = Rig::new();
        let first = listening(TestDevice::new(MIB), &rig.path("s"));
        let options = options(&rig.path("s")).timeout(soon);
        let remote = Arc::new(Remote::connect(options).unwrap());
        let disk = rig.disk(remote.clone());
        let _ = first.drain(Duration::ZERO);
        drop(first);
        let second = Server::new(Options::default());
        second.add_export(Export::new("disk", TestDevice::new(MIB / 2))).unwrap();
        second.listen_unix(rig.path("s")).unwrap();
        let why = disk.read_at(0, 512).unwrap_err().to_string();
        assert!(why.contains("the export shrank from 1048576 bytes to 524288"), "{why}");
    });
}
