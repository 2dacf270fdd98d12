//! Volumes that are another server's exports: our own server's, killed and restarted, and those of
//! nbdkit, QEMU and nbd-server.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::common::client::{Client, FLUSH, FUA, pattern};
use crate::common::server::Server;
use crate::common::{Folder, Ran};

const MIB: u64 = 1 << 20;

/// A server of one file of 16 MiB, at the socket `s` of its folder.
struct Far {
    folder: Folder,
}

impl Far {
    fn new() -> Far {
        let folder = Folder::new();
        folder.write(
            "far.toml",
            "[[device]]\nname = \"disk\"\ndriver = \"file\"\npath = \"far.img\"\nsize = \"16M\"\ncreate = true\n\
             [[export]]\ndevice = \"disk\"\n[server]\nunix = \"s\"\n",
        );
        Far { folder }
    }

    fn start(&self) -> Server {
        Server::start(&self.folder, &["far.toml"])
    }

    /// Returns the keys of a device that is its export.
    fn device(&self, name: &str, more: &str) -> String {
        let socket = self.folder.join("s");
        device(name, &format!("nbd+unix:///disk?socket={}", socket.display()), more)
    }

    fn bytes(&self) -> Vec<u8> {
        std::fs::read(self.folder.join("far.img")).unwrap()
    }
}

fn device(name: &str, uri: &str, more: &str) -> String {
    format!("[[device]]\nname = \"{name}\"\ndriver = \"nbd\"\nuri = \"{uri}\"\n{more}\n")
}

fn export(device: &str) -> String {
    format!("[[export]]\ndevice = \"{device}\"\n[server]\nunix = \"s\"\n")
}

fn near(manifest: &str) -> (Folder, Server) {
    let folder = Folder::new();
    folder.write("near.toml", manifest);
    let server = Server::start(&folder, &["near.toml"]);
    (folder, server)
}

/// Waits for an event of a remote volume.
fn wait(server: &mut Server, what: &str) -> Value {
    let wanted = |line: &str| {
        line.starts_with("{\"event\":\"remote\"")
            && serde_json::from_str(line).is_ok_and(|event: Value| event["what"] == what)
    };
    serde_json::from_str(&server.wait_line(what, wanted)).unwrap()
}

#[test]
fn an_export_of_another_server_is_served_on_and_its_state_is_told() {
    let far = Far::new();
    let other = far.start();
    let (folder, mut server) = near(&(far.device("r", "connections = 2") + &export("r")));
    let mut client = Client::new(&server.socket(), "r");
    assert_eq!(client.size, 16 * MIB);
    client.write(4096, &pattern(1, 100_000), 0).unwrap();
    client.write(MIB + 3, &pattern(2, 5), FUA).unwrap();
    client.flush().unwrap();
    assert!(far.bytes()[4096..104_096] == pattern(1, 100_000));
    assert!(far.bytes()[MIB as usize + 3..][..5] == pattern(2, 5));
    folder.corewise(["dump"]).ok().says(&["r: 2 connections"]);
    // The server is stopped in order, with nothing in flight, and restarted.
    other.stop().ok();
    let lost = wait(&mut server, "lost");
    assert_eq!((&lost["device"], &lost["unflushed"]), (&"r".into(), &false.into()), "{lost}");
    let _other = far.start();
    wait(&mut server, "back");
    assert!(client.read(4096, 100_000).unwrap() == pattern(1, 100_000));
    client.flush().unwrap();
    folder.corewise(["dump"]).ok().says(&["r: 2 connections, lost 1 times"]);
    server.stop().ok();
}

/// Checks that flushed data is there, that each read returns written data, and that a flush that
/// may have lost something fails.
#[test]
fn a_client_finds_what_it_flushed_though_the_other_server_is_killed_again_and_again() {
    let far = Far::new();
    let mut other = Some(far.start());
    let (_folder, mut server) = near(&(far.device("r", "") + &export("r")));
    let mut client = Client::new(&server.socket(), "r");
    let mut version = [0u64; 16];
    let mut failed = 0;
    for round in 1..=6u64 {
        for n in (0..16).filter(|n| (n + round) % 3 != 0) {
            client.write(n * MIB, &pattern(round * 100 + n, 65536), 0).unwrap();
            version[n as usize] = round;
        }
        if round % 2 == 0 {
            client.flush().unwrap();
        }
        other.take().unwrap().kill();
        wait(&mut server, "lost");
        other = Some(far.start());
        // A killed process leaves its writes to the system, which no server here can know.
        failed += u64::from(client.flush().is_err());
        client.flush().unwrap();
        for (n, version) in version.iter().enumerate().filter(|(_, version)| **version > 0) {
            let expected = pattern(version * 100 + n as u64, 65536);
            assert!(client.read(n as u64 * MIB, 65536).unwrap() == expected, "{round} {n}");
        }
    }
    assert_eq!(failed, 3, "of the rounds without a flush");
    server.stop().ok().complains(&["lost; requests wait for new ones device=r uri="]);
}

#[test]
fn a_shutdown_waits_for_one_answer_of_another_server_that_is_silent() {
    let far = Folder::new();
    far.write(
        "far.toml",
        "[server]\nunix = \"s\"\n[[device]]\nname = \"fast\"\ndriver = \"memory\"\nsize = \"8M\"\n\
         [[device]]\nname = \"disk\"\ndriver = \"delay\"\nover = [\"fast\"]\nflush_delay = \"1h\"\n\
         [[export]]\ndevice = \"disk\"\n",
    );
    let _other = Server::start(&far, &["far.toml"]);
    let uri = format!("nbd+unix:///disk?socket={}", far.join("s").display());
    let (_folder, server) =
        near(&(device("r", &uri, "request_timeout = \"300ms\"") + &export("r")));
    let mut client = Client::new(&server.socket(), "r");
    client.write(0, &pattern(1, 4096), 0).unwrap();
    // The client flushes, then its export, then the volume: one flush each.
    client.send(FLUSH, 0, 0, 0, &[]).unwrap();
    let ran = server.stop().code(1).complains(&["the flush failed"]);
    let lost = ran.stdout.matches("\"what\":\"lost\"").count();
    assert_eq!(lost, 1, "{}", ran.stdout);
}

fn mirror(far: &Far, local: &str, keys: &str) -> String {
    format!(
        "[[device]]\nname = \"file\"\ndriver = \"file\"\npath = \"near.img\"\nsize = \"16M\"\ncreate = true\n{}{local}\
         [[device]]\nname = \"m\"\ndriver = \"mirror\"\nretry = \"200ms\"\n{keys}\n{}",
        far.device("r", "request_timeout = \"300ms\""),
        export("m"),
    )
}

fn status(folder: &Folder) -> Ran {
    folder.corewise(["mirror", "m"])
}

#[test]
fn a_mirror_of_a_file_and_another_machine_outlives_the_other_machine_and_copies_what_it_lacks() {
    let far = Far::new();
    let other = far.start();
    let (folder, mut server) = near(&mirror(&far, "", "over = [\"file\", \"r\"]"));
    server.wait_mirror("resynced");
    // Its record is clean then.
    server.stop().ok();
    let mut server = Server::start(&folder, &["near.toml"]);
    let mut client = Client::new(&server.socket(), "m");
    client.write(MIB, &pattern(1, MIB as usize), 0).unwrap();
    client.flush().unwrap();
    other.kill();
    // Only the operator learns of it.
    client.write(2 * MIB, &pattern(2, MIB as usize), 0).unwrap();
    client.write(5 * MIB, &pattern(5, 4096), 0).unwrap();
    client.flush().unwrap();
    server.wait_mirror("dropped");
    let _other = far.start();
    let ended = server.wait_mirror("resynced");
    let bytes = ended["bytes"].as_u64().unwrap();
    assert!(bytes < 16 * MIB - 65536, "it copies what was written since: {ended}");
    status(&folder).ok().says(&["m: 2 of 2 legs in sync"]);
    client.flush().unwrap();
    for (n, length) in [(1, MIB as usize), (2, MIB as usize), (5, 4096)] {
        assert!(far.bytes()[n * MIB as usize..][..length] == pattern(n as u64, length), "{n}");
    }
    server.stop().ok();
}

#[test]
fn a_mirror_of_a_file_and_another_machine_outlives_the_file() {
    let far = Far::new();
    let _other = far.start();
    let bad = "[[device]]\nname = \"bad\"\ndriver = \"error\"\nover = [\"file\"]\nfails = [\"write\"]\n\
               from = \"9M\"\nto = \"10M\"\ntimes = 1\n";
    let (folder, mut server) = near(&mirror(&far, bad, "over = [\"r\", \"bad\"]"));
    server.wait_mirror("resynced");
    let mut client = Client::new(&server.socket(), "m");
    client.write(9 * MIB, &pattern(9, 65536), 0).unwrap();
    server.wait_mirror("dropped");
    let line = server
        .wait_line("a resync", |line| line.contains("\"resynced\"") && line.contains("[\"bad\"]"));
    assert!(line.contains("bad"), "{line}");
    status(&folder).ok().says(&["m: 2 of 2 legs in sync"]);
    client.flush().unwrap();
    let local = std::fs::read(folder.join("near.img")).unwrap();
    assert!(local[9 * MIB as usize..][..65536] == pattern(9, 65536));
    assert!(far.bytes()[9 * MIB as usize..][..65536] == pattern(9, 65536));
    server.stop().ok();
}

#[test]
fn a_mirror_comes_up_without_the_other_machine_which_returns_by_itself() {
    let far = Far::new();
    let other = far.start();
    let both = "over = [\"file\", \"r\"]\ndegraded = \"always\"";
    let (folder, mut server) = near(&mirror(&far, "", both));
    server.wait_mirror("resynced");
    server.stop().ok();
    other.stop().ok();
    let mut server = Server::start(&folder, &["near.toml"]);
    let missing = server.wait_mirror("missing");
    assert!(missing["why"].as_str().unwrap().contains("cannot connect"), "{missing}");
    let mut client = Client::new(&server.socket(), "m");
    client.write(3 * MIB, &pattern(3, 65536), 0).unwrap();
    let _other = far.start();
    server.wait_mirror("resynced");
    client.flush().unwrap();
    assert!(far.bytes()[3 * MIB as usize..][..65536] == pattern(3, 65536));
    server.stop().ok();
    // Without a mirror, the volume can't do without it.
    let folder = Folder::new();
    folder.write("near.toml", device("r", "nbd+unix:///x?socket=nothing", "") + &export("r"));
    folder.corewise(["up", "near.toml"]).code(1).complains(&["device 'r': ", "cannot connect"]);
}

/// Another program's server, which ends with the test.
struct Foreign(Child);

impl Drop for Foreign {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Foreign {
    fn start(folder: &Folder, program: &str, args: &[&str], socket: &Path) -> Foreign {
        let mut command: Command = folder.command(program);
        command.args(args).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap_or_else(|error| {
            panic!("{program}: {error}; apt-get install nbdkit qemu-utils")
        });
        let mut foreign = Foreign(child);
        while std::os::unix::net::UnixStream::connect(socket).is_err() {
            assert!(foreign.0.try_wait().unwrap().is_none(), "{program} has ended");
            std::thread::yield_now();
        }
        foreign
    }
}

#[test]
fn other_servers_exports_are_volumes_too() {
    let folder = Folder::new();
    folder.write("in.img", pattern(7, 3 << 20));
    let raw: &[&str] =
        &["-k", "qemu-nbd", "-x", "disk", "-f", "raw", "-t", "-e", "8", "qemu-nbd.img"];
    for (program, args) in
        [("nbdkit", &["-f", "-U", "nbdkit", "file", "nbdkit.img"][..]), ("qemu-nbd", raw)]
    {
        let image = format!("{program}.img");
        folder.write(&image, vec![0; 4 << 20]);
        let socket = folder.join(program);
        // QEMU checks whether the name is a path.
        let own: Vec<String> = args
            .iter()
            .map(|arg| if *arg == program { socket.display().to_string() } else { (*arg).into() })
            .collect();
        let own: Vec<&str> = own.iter().map(String::as_str).collect();
        let _foreign = Foreign::start(&folder, program, &own, &socket);
        let uri = format!("nbd+unix:///disk?socket={}", socket.display());
        let (near, server) = near(&(device("r", &uri, "") + &export("r")));
        let mut client = Client::new(&server.socket(), "r");
        client.write(0, &pattern(7, 3 << 20), 0).unwrap();
        client.flush().unwrap();
        client
            .command(6, MIB, 65536)
            .or_else(|error| if error == 22 { Ok(()) } else { Err(error) })
            .unwrap();
        let image = std::fs::read(folder.join(&image)).unwrap();
        let mut expected = pattern(7, 3 << 20);
        if image[MIB as usize] == 0 {
            expected[MIB as usize..][..65536].fill(0);
        }
        assert!(image[..3 << 20] == expected, "{program}");
        assert!(client.read(0, 3 << 20).unwrap() == expected, "{program}");
        near.client("nbdinfo", ["--map", "--totals", &server.uri("r")]).ok().says(&["data"]);
        near.corewise(["dump"]).ok().says(&["r: "]);
        server.stop().ok();
    }
}

/// A server that leaves its terminal, and is known by its process id from then on.
struct Daemon(String);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.trim()).status();
    }
}

/// Uses a server with a process for each connection, without chunks and block sizes; its processes
/// outlive it.
#[test]
fn an_export_of_nbd_server_is_a_volume_through_all_its_processes() {
    let folder = Folder::new();
    let mut expected = pattern(3, 4 << 20);
    folder.write("disk.img", &expected);
    let (image, socket) = (folder.join("disk.img"), folder.join("far"));
    let config = format!(
        "[generic]\nunixsock = {}\n[disk]\nexportname = {}\nflush = true\nfua = true\ntrim = true\n",
        socket.display(),
        image.display()
    );
    folder.write("config", config);
    let mut command: Command = folder.command("nbd-server");
    let (config, id) = (folder.join("config"), folder.join("id"));
    command.arg("-C").arg(config).arg("-p").arg(&id).stderr(Stdio::null());
    assert!(command.status().expect("apt-get install nbd-server").success());
    let id = loop {
        match std::fs::read_to_string(&id) {
            Ok(id) if id.ends_with('\n') => break id,
            _ => std::thread::yield_now(),
        }
    };
    let _daemon = Daemon(id);
    while std::os::unix::net::UnixStream::connect(&socket).is_err() {
        std::thread::yield_now();
    }
    let uri = format!("nbd+unix:///disk?socket={}", socket.display());
    let (near, server) = near(&(device("r", &uri, "") + &export("r")));
    near.corewise(["dump"]).ok().says(&["r: 4 connections"]);
    let mut client = Client::new(&server.socket(), "r");
    assert_eq!(client.size, 4 * MIB);
    for (n, (at, length, flags)) in
        [(0, 65536, 0), (MIB, 512, FUA), (MIB + 700, 1000, 0), (2 * MIB, MIB as usize, 0)]
            .into_iter()
            .enumerate()
    {
        let bytes = pattern(10 + n as u64, length);
        client.write(at, &bytes, flags).unwrap();
        expected[at as usize..][..length].copy_from_slice(&bytes);
    }
    client.command(6, 3 * MIB, 65536).unwrap();
    expected[3 * MIB as usize..][..65536].fill(0);
    client.flush().unwrap();
    assert!(client.read(0, 4 << 20).unwrap() == expected);
    assert!(std::fs::read(image).unwrap() == expected);
    server.stop().ok();
}

#[cfg(feature = "tls")]
#[test]
fn a_volume_by_tls_knows_its_other_side_by_its_certificate() {
    let far = Folder::new();
    let pki = crate::common::pki::Pki::new();
    pki.server(&far);
    far.write(
        "far.toml",
        "[server]\ntcp = \"127.0.0.1:0\"\ntls_certificate = \"server/cert.pem\"\ntls_key = \"server/key.pem\"\n\
         [[device]]\nname = \"disk\"\ndriver = \"memory\"\nsize = \"8M\"\n[[export]]\ndevice = \"disk\"\n",
    );
    let other = Server::start(&far, &["far.toml"]);
    let uri = |scheme: &str, more: &str| format!("{scheme}://{}/disk{more}", other.tcp());
    let ca = format!("tls_ca = \"{}\"", far.join("server/ca.pem").display());
    let (_folder, server) = near(&(device("r", &uri("nbds", ""), &ca) + &export("r")));
    let mut client = Client::new(&server.socket(), "r");
    client.write(0, &pattern(1, 3 << 20), 0).unwrap();
    client.flush().unwrap();
    assert!(client.read(0, 3 << 20).unwrap() == pattern(1, 3 << 20));
    server.stop().ok();
    let stranger = crate::common::pki::Pki::new();
    let (plain, named) = (uri("nbd", ""), uri("nbds", "?tls-hostname=other.example"));
    let folder = Folder::new();
    stranger.server(&folder);
    for (uri, keys, says) in [
        (&plain, String::new(), "the remote server requires TLS (write nbds in the URI)"),
        (&named, ca, "no TLS: "),
        (&uri("nbds", ""), "tls_ca = \"server/ca.pem\"".to_owned(), "no TLS: "),
    ] {
        folder.write("near.toml", device("r", uri, &keys) + &export("r"));
        folder.corewise(["up", "near.toml"]).code(1).complains(&[says]);
    }
}
