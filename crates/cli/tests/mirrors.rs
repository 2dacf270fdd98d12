//! Mirrors with real clients: what a crash leaves behind, and parts that fail and come back.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;

use common::Folder;
use common::client::{Client, WRITE, pattern};
use common::server::Server;

const MIB: usize = 1 << 20;
/// What a mirror of two files of 16 MiB has for data.
const SIZE: usize = 16 * MIB - (64 << 10);

/// A mirror over `a`, and over what `second` makes of `b`.
fn manifest(second: &str, keys: &str) -> String {
    let file = |name: &str| {
        format!(
            "[[device]]\nname = \"{name}\"\ndriver = \"file\"\npath = \"{name}.img\"\n\
             size = \"16M\"\ncreate = true\n"
        )
    };
    let (over, second) = match second {
        "" => ("b", String::new()),
        keys => ("b2", format!("[[device]]\nname = \"b2\"\nover = [\"b\"]\n{keys}\n")),
    };
    file("a")
        + &file("b")
        + &second
        + &format!(
            "[[device]]\nname = \"m\"\ndriver = \"mirror\"\nover = [\"a\", \"{over}\"]\n{keys}\n\
             [[export]]\ndevice = \"m\"\n[server]\nunix = \"s\"\n"
        )
}

/// The data of both parts.
fn data(folder: &Folder) -> [Vec<u8>; 2] {
    ["a.img", "b.img"].map(|name| {
        let mut bytes = std::fs::read(folder.join(name)).unwrap();
        bytes.truncate(SIZE);
        bytes
    })
}

#[test]
fn after_kill_9_only_what_was_being_written_is_resynced_and_the_parts_are_alike() {
    let folder = Folder::new();
    let slow = "driver = \"delay\"\nwrite_delay = \"1500ms\"";
    folder.write("fast.toml", manifest("", ""));
    folder.write("slow.toml", manifest(slow, ""));
    let mut server = Server::start(&folder, &["fast.toml"]);
    server.wait_mirror("resynced");
    let mut client = Client::new(&server.socket(), "m");
    assert_eq!(client.size as usize, SIZE);
    for n in 0..8 {
        client.write(n * MIB as u64, &pattern(n, MIB), 0).unwrap();
    }
    server.stop().ok();
    let [a, b] = data(&folder);
    assert!(a == b && a[..MIB] == pattern(0, MIB));

    // One part is slow, so that a kill finds the other one ahead.
    let server = Server::start(&folder, &["slow.toml"]);
    let mut client = Client::new(&server.socket(), "m");
    for n in [3, 5] {
        client.send(WRITE, 0, n * MIB as u64 + 4096, 65536, &pattern(100 + n, 65536)).unwrap();
    }
    let image = File::open(folder.join("a.img")).unwrap();
    for n in [3, 5] {
        let mut found = vec![0; 65536];
        while found != pattern(100 + n, 65536) {
            std::thread::yield_now();
            image.read_exact_at(&mut found, n * MIB as u64 + 4096).unwrap();
        }
    }
    server.kill();
    let [a, b] = data(&folder);
    assert!(a != b, "the kill came too late to see anything");

    let mut server = Server::start(&folder, &["fast.toml"]);
    let began = server.wait_mirror("resync");
    assert_eq!(began["bytes"], 2 * MIB, "two regions of 1 MiB: {began}");
    server.wait_mirror("resynced");
    let mut client = Client::new(&server.socket(), "m");
    for n in 0..8u64 {
        let found = client.read(n * MIB as u64, MIB as u32).unwrap();
        let mut want = pattern(n, MIB);
        if [3, 5].contains(&n) {
            want[4096..4096 + 65536].copy_from_slice(&pattern(100 + n, 65536));
        }
        assert!(found == want, "MiB {n}");
    }
    server.stop().ok();
    let [a, b] = data(&folder);
    assert!(a == b);
}

#[test]
fn a_part_that_fails_is_told_and_resynced_at_the_next_start() {
    let folder = Folder::new();
    folder.write("good.toml", manifest("", ""));
    let mut server = Server::start(&folder, &["good.toml"]);
    server.wait_mirror("resynced");
    server.stop().ok();

    let bad = "driver = \"error\"\nfails = [\"write\"]\nfrom = \"4M\"\nto = \"5M\"";
    folder.write("bad.toml", manifest(bad, ""));
    let mut server = Server::start(&folder, &["bad.toml"]);
    let mut client = Client::new(&server.socket(), "m");
    for n in 0..8 {
        client.write(n * MIB as u64, &pattern(n, 4096), 0).unwrap();
    }
    let dropped = server.wait_mirror("dropped");
    assert_eq!(dropped["parts"], serde_json::json!(["b2"]));
    server.kill();

    let mut server = Server::start(&folder, &["good.toml"]);
    let ended = server.wait_mirror("resynced");
    assert_eq!(ended["parts"], serde_json::json!(["b"]));
    // Those that were written to, and what lay ahead of them.
    assert!(ended["bytes"].as_u64().unwrap() <= 10 * MIB as u64, "{ended}");
    let mut client = Client::new(&server.socket(), "m");
    for n in 0..8 {
        assert!(client.read(n * MIB as u64, 4096).unwrap() == pattern(n, 4096));
    }
    server.stop().ok();
    let [a, b] = data(&folder);
    assert!(a == b && a[7 * MIB..7 * MIB + 4096] == pattern(7, 4096));
}

#[test]
fn a_part_that_is_well_again_comes_back_while_clients_write() {
    let folder = Folder::new();
    let once = "driver = \"error\"\nfails = [\"write\"]\nfrom = \"4M\"\nto = \"5M\"\ntimes = 1";
    folder.write("up.toml", manifest(once, "retry = \"10ms\""));
    let mut server = Server::start(&folder, &["up.toml"]);
    server.wait_mirror("resynced");
    let mut client = Client::new(&server.socket(), "m");
    client.write(4 * MIB as u64, &pattern(1, 4096), 0).unwrap();
    server.wait_mirror("dropped");
    for n in 0..200u64 {
        client.write(n * 65536, &pattern(n, 8192), 0).unwrap();
    }
    let disks = |folder: &Folder| {
        let dump = folder.corewise(["dump", "--json"]).ok().stdout;
        let dump: serde_json::Value = serde_json::from_str(&dump).unwrap();
        let disks = dump["disks"].as_array().unwrap().clone();
        disks.into_iter().find(|disk| disk["name"] == "m").unwrap()["condition"].clone()
    };
    let ended = server.wait_line("the part is back", |line| line.contains("\"resynced\""));
    assert!(ended.contains("b2"), "{ended}");
    assert_eq!(disks(&folder), "2 of 2 legs in sync");
    folder.corewise(["dump"]).ok().says(&["  m: 2 of 2 legs in sync"]);
    client.write(15 * MIB as u64, &pattern(9, 4096), 0).unwrap();
    server.stop().ok().complains(&["its part 'b2' failed and is left out"]);
    let [a, b] = data(&folder);
    assert!(a == b && a[15 * MIB..15 * MIB + 4096] == pattern(9, 4096));
}

#[test]
fn images_whose_end_is_in_use_are_left_alone() {
    let folder = Folder::new();
    let image = pattern(1, 16 * MIB);
    folder.write("a.img", &image);
    folder.write("b.img", &image);
    folder.write("up.toml", manifest("", ""));
    let ran = folder.corewise(["up", "up.toml"]).code(1);
    ran.complains(&["'a' has something else at its end"]);
    assert!(std::fs::read(folder.join("a.img")).unwrap() == image);
    folder.write("up.toml", manifest("", "bitmap = false"));
    let server = Server::start(&folder, &["up.toml"]);
    let mut client = Client::new(&server.socket(), "m");
    assert_eq!(client.size as usize, 16 * MIB);
    assert!(client.read(15 * MIB as u64, MIB as u32).unwrap() == image[15 * MIB..]);
    server.stop().ok();
}
