//! Writes that were acknowledged as durable survive `kill -9` of the server.
#![allow(missing_docs, clippy::unwrap_used)]

use std::process::Stdio;

use crate::common::Folder;
use crate::common::client::{Client, FUA, pattern};
use crate::common::server::Server;

const MIB: usize = 1 << 20;

/// Returns a manifest of a stripe over two files, and of a third file alone, with this `io` method.
fn manifest(io: &str) -> String {
    let file = |name: &str| {
        format!(
            "[[device]]\nname = \"{name}\"\ndriver = \"file\"\npath = \"{name}.img\"\n\
             size = \"16M\"\ncreate = true\nio = \"{io}\"\n"
        )
    };
    file("a")
        + &file("b")
        + &file("alone")
        + "[[device]]\nname = \"striped\"\ndriver = \"stripe\"\nover = [\"a\", \"b\"]\n\
           [[export]]\ndevice = \"striped\"\n[[export]]\ndevice = \"alone\"\n\
           [server]\nunix = \"s\"\n"
}

#[test]
fn flushed_data_survives_kill_9() {
    for io in ["auto", "threads"] {
        let folder = Folder::new();
        folder.write("up.toml", manifest(io));
        for export in ["alone", "striped"] {
            let server = Server::start(&folder, &["up.toml"]);
            let mut client = Client::new(&server.socket(), export);
            for block in 0..8 {
                let data = pattern(block, MIB);
                client.write(block * MIB as u64 + 512, &data, 0).unwrap();
            }
            client.flush().unwrap();
            server.kill();

            let server = Server::start(&folder, &["up.toml"]);
            let mut client = Client::new(&server.socket(), export);
            for block in 0..8 {
                let found = client.read(block * MIB as u64 + 512, MIB as u32).unwrap();
                assert!(found == pattern(block, MIB), "{io}, {export}: block {block} is lost");
            }
            server.stop().ok();
        }
    }
}

#[test]
fn a_write_with_fua_survives_kill_9_without_a_flush() {
    for io in ["auto", "threads"] {
        let folder = Folder::new();
        folder.write("up.toml", manifest(io));
        for export in ["alone", "striped"] {
            let server = Server::start(&folder, &["up.toml"]);
            let mut client = Client::new(&server.socket(), export);
            assert!(client.flags & 1 << 3 != 0, "{export} does not offer FUA");
            let data = pattern(9, 3 * 65536);
            client.write(65536 - 512, &data, FUA).unwrap();
            server.kill();

            let server = Server::start(&folder, &["up.toml"]);
            let mut client = Client::new(&server.socket(), export);
            let found = client.read(65536 - 512, data.len() as u32).unwrap();
            assert!(found == data, "{io}, {export}: the write is lost");
            server.stop().ok();
        }
    }
}

#[test]
fn writes_that_qemu_io_flushed_survive_kill_9_during_the_next_writes() {
    let folder = Folder::new();
    folder.write("up.toml", manifest("auto"));
    let server = Server::start(&folder, &["up.toml"]);
    let uri = server.uri("striped");
    let write = ["-f", "raw", "-c", "write -P 0x5a 0 4M", "-c", "flush", &uri];
    folder.client("qemu-io", write).ok();

    // Another client keeps the server busy while it is killed.
    let mut busy = folder.command("qemu-io");
    busy.args(["-f", "raw", "-c", "write -P 0xa5 8M 8M", "-c", "write -P 0xa6 8M 8M", &uri]);
    let mut busy = busy.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    server.kill();
    busy.wait().unwrap();

    let server = Server::start(&folder, &["up.toml"]);
    let read = ["-f", "raw", "-c", "read -P 0x5a 0 4M", &server.uri("striped")];
    let ran = folder.client("qemu-io", read).ok();
    assert!(!ran.stdout.contains("verification failed"), "{ran}");
    server.stop().ok();
}

#[test]
fn a_server_that_was_killed_leaves_nothing_that_keeps_the_next_one_from_starting() {
    let folder = Folder::new();
    folder.write("up.toml", manifest("auto"));
    let server = Server::start(&folder, &["up.toml"]);
    let socket = server.socket();
    server.kill();
    assert!(socket.exists(), "a killed server can't remove its socket");
    let server = Server::start(&folder, &["up.toml"]);
    assert_eq!(server.socket(), socket);
    server.stop().ok();
    assert!(!socket.exists());
}
