//! A server that is stopped for a while, as by `SIGSTOP`, the freezer of cgroups, or a paused
//! container. Bytes that lay in a socket meanwhile make no client late, and no other server.
#![allow(missing_docs, clippy::unwrap_used)]

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use corewise::blockmq::{BlockDevice, Geometry, IoError, Op, Request};
use corewise::nbd::{self, Export, Options};
use rustix::process::{Pid, Signal, WaitOptions, waitpid};
use serde_json::Value;

use crate::common::Folder;
use crate::common::client::{Client, READ, WRITE, connect, pattern};
use crate::common::server::Server;

/// The server's timeouts, in seconds; a reply of 1 MiB has one more.
const TIMEOUT: u32 = 4;

fn start(folder: &Folder, file: &str, timeout: u32, devices: &str) -> Server {
    folder.write(
        file,
        format!(
            "[server]\nunix = \"{file}.sock\"\nreply_timeout = \"{timeout}s\"\n\
             request_timeout = \"{timeout}s\"\n{devices}"
        ),
    );
    Server::start(folder, &[file])
}

/// Runs `meanwhile` while the server is stopped, for longer than each of its timeouts. The stop
/// lasts until another server cuts a client for half a request.
fn stopped(server: &Server, meanwhile: impl FnOnce()) {
    server.signal(Signal::STOP);
    let pid = Pid::from_raw(server.pid() as i32);
    let (_, status) = waitpid(pid, WaitOptions::UNTRACED).unwrap().unwrap();
    assert!(status.stopped());
    meanwhile();
    let folder = Folder::new();
    let device = "[[device]]\nname = \"m\"\ndriver = \"memory\"\nsize = \"1M\"\n[[export]]\ndevice = \"m\"\n";
    let other = start(&folder, "other.toml", TIMEOUT + 2, device);
    let mut late = Client::new(&other.socket(), "m");
    late.send_raw(&[0x25, 0x60, 0x95]).unwrap();
    assert!(late.is_closed());
    server.signal(Signal::CONT);
}

/// Reads the clients until `wanted` accepts them.
fn until(folder: &Folder, server: &Server, wanted: impl Fn(&[Value]) -> bool) {
    let control = server.control();
    let control = control.to_str().unwrap();
    loop {
        let answer = folder.corewise(["clients", "--json", "--control", control]).ok().json();
        if wanted(answer["clients"].as_array().unwrap()) {
            return;
        }
    }
}

/// A scraper that gets the metrics, though half of its question comes after the pause.
struct Scraper(UnixStream);

impl Scraper {
    fn begin(socket: &Path) -> Scraper {
        let mut stream = connect(socket);
        std::io::Write::write_all(&mut stream, b"GET /metrics HTTP/1.1\r\n").unwrap();
        Scraper(stream)
    }

    fn end(mut self) -> String {
        std::io::Write::write_all(&mut self.0, b"\r\n").unwrap();
        let mut answer = String::new();
        self.0.read_to_string(&mut answer).unwrap();
        answer
    }
}

#[test]
fn a_server_that_was_stopped_for_longer_than_its_timeouts_cuts_nobody_who_was_in_time() {
    let folder = Folder::new();
    let devices = "metrics = \"./metrics.sock\"\n[[device]]\nname = \"m\"\ndriver = \"memory\"\nsize = \"16M\"\n\
                   [[export]]\ndevice = \"m\"\n";
    let server = start(&folder, "up.toml", TIMEOUT, devices);
    let mut taker = Client::new(&server.socket(), "m");
    let mut giver = Client::new(&server.socket(), "m");
    let data = pattern(7, 64 << 10);
    giver.send(WRITE, 0, 0, data.len() as u32, &data[..100]).unwrap();
    for n in 0..8 {
        taker.send(READ, 0, n << 20, 1 << 20, &[]).unwrap();
    }
    let scraper = Scraper::begin(&folder.join("metrics.sock"));
    until(&folder, &server, |clients| {
        clients[0]["untaken_seconds"].is_number() && clients[1]["in_flight"] == 1
    });
    stopped(&server, || giver.send_raw(&data[100..]).unwrap());
    for _ in 0..8 {
        taker.receive(1 << 20).unwrap().1.unwrap();
    }
    giver.receive(0).unwrap().1.unwrap();
    assert!(giver.read(0, data.len() as u32).unwrap() == data);
    assert!(scraper.end().contains("corewise_clients"));
    drop((taker, giver));
    server.stop().ok();
}

/// Ends a server, whose client reads, while it is stopped for longer than its `limits` allow. The
/// client then waits until the second in which a request may still come is over, and reads on.
fn ends_after_a_stop(limits: &str) {
    let folder = Folder::new();
    let devices = format!(
        "{limits}[[device]]\nname = \"m\"\ndriver = \"memory\"\nsize = \"16M\"\n\
         [[export]]\ndevice = \"m\"\n"
    );
    let server = start(&folder, "up.toml", 60, &devices);
    let mut taker = Client::new(&server.socket(), "m");
    let mut giver = Client::new(&server.socket(), "m");
    giver.send_raw(&[0x25, 0x60, 0x95]).unwrap();
    for n in 0..8 {
        taker.send(READ, 0, n << 20, 1 << 20, &[]).unwrap();
    }
    until(&folder, &server, |clients| {
        // Each request that comes later is refused.
        clients[0]["in_flight"] == 8 && clients[1]["partial_seconds"].is_number()
    });
    server.signal(Signal::TERM);
    until(&folder, &server, |clients| clients.iter().all(|client| client["leaving"] == true));
    stopped(&server, || ());
    assert!(giver.is_closed());
    for _ in 0..8 {
        taker.receive(1 << 20).unwrap().1.unwrap();
    }
    drop(taker);
    let ran = server.wait().ok();
    assert!(!ran.stderr.contains("disconnected"), "{ran}");
}

#[test]
fn a_drain_does_not_count_the_time_for_which_its_server_was_stopped() {
    ends_after_a_stop(&format!("drain = \"{TIMEOUT}s\"\n"));
}

#[test]
fn a_shutdown_does_not_count_the_time_for_which_its_server_was_stopped() {
    ends_after_a_stop(&format!(
        "drain = \"1h\"\nshutdown_timeout = \"{TIMEOUT}s\"\non_hang = \"give-up\"\n"
    ));
}

#[test]
fn nobody_is_idle_while_the_server_is_stopped() {
    let folder = Folder::new();
    let devices = format!(
        "clients = 1\nevict_idle = \"{TIMEOUT}s\"\nidle_timeout = \"{}s\"\n[[device]]\n\
         name = \"m\"\ndriver = \"memory\"\nsize = \"16M\"\n[[export]]\ndevice = \"m\"\n",
        TIMEOUT + 1
    );
    let server = start(&folder, "up.toml", TIMEOUT, &devices);
    let mut client = Client::new(&server.socket(), "m");
    assert!(client.read(0, 512).is_ok());
    stopped(&server, || ());
    assert!(Client::over(connect(&server.socket()), "m").is_err(), "its place is taken");
    assert!(client.read(0, 512).is_ok());
    drop(client);
    server.stop().ok();
}

/// A disk that leaves its requests to the test.
struct Held(Sender<Request>);

impl BlockDevice for Held {
    fn name(&self) -> &str {
        "held"
    }

    fn geometry(&self) -> Geometry {
        Geometry::new(1 << 20)
    }

    fn submit(&self, rq: Request) {
        self.0.send(rq).unwrap();
    }
}

fn answer(mut rq: Request) {
    // The disk knows of no holes.
    if rq.op() == Op::Read {
        let bytes = vec![7; rq.len() as usize];
        rq.put(&bytes);
    }
    rq.complete(Ok::<(), IoError>(()));
}

#[test]
fn a_server_that_was_stopped_takes_the_answers_that_came_to_it_meanwhile() {
    let folder = Folder::new();
    let (seen, arrives) = channel();
    let far = nbd::Server::new(Options::default());
    far.add_export(Export::new("disk", Arc::new(Held(seen)))).unwrap();
    let socket = folder.join("far.sock");
    far.listen_unix(&socket).unwrap();
    let device = format!(
        "[[device]]\nname = \"m\"\ndriver = \"nbd\"\nuri = \"nbd+unix:///disk?socket={}\"\n\
         request_timeout = \"{TIMEOUT}s\"\n[[export]]\ndevice = \"m\"\n",
        socket.display()
    );
    let server = start(&folder, "up.toml", TIMEOUT, &device);
    let mut client = Client::new(&server.socket(), "m");
    // The reply is more than a socket holds, and the request no more than goes to the device as
    // one. The rest comes when the first part was taken.
    const LENGTH: u32 = 512 << 10;
    client.send(READ, 0, 0, LENGTH, &[]).unwrap();
    let first = arrives.recv().unwrap();
    stopped(&server, || {
        answer(first);
        while far.clients().iter().all(|client| client.untaken.is_none()) {
            arrives.try_iter().for_each(answer);
            std::thread::yield_now();
        }
    });
    let got = client.receive(LENGTH).unwrap().1;
    drop(client);
    // The end has flushes.
    let serve = std::thread::spawn(move || arrives.into_iter().for_each(answer));
    let ran = server.stop().ok();
    assert!(got == Ok(vec![7; LENGTH as usize]) && !ran.stderr.contains("are lost"), "{ran}");
    drop(far);
    serve.join().unwrap();
}
