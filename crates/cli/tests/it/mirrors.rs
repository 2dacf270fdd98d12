//! Mirrors with real clients: the state after a crash, and legs that fail and come back.
#![allow(missing_docs, clippy::unwrap_used)]

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::common::client::{Client, WRITE, pattern};
use crate::common::server::Server;
use crate::common::{Folder, file};

const MIB: usize = 1 << 20;
/// Bytes of data of a mirror over two files of 16 MiB.
const SIZE: usize = 16 * MIB - (64 << 10);

/// Returns the manifest of a mirror over `a` and over the device that `second` makes of `b`.
fn manifest(second: &str, keys: &str) -> String {
    let (over, second) = match second {
        "" => ("b", String::new()),
        keys => ("b2", format!("[[device]]\nname = \"b2\"\nover = [\"b\"]\n{keys}\n")),
    };
    file("a", "16M")
        + &file("b", "16M")
        + &second
        + &format!(
            "[[device]]\nname = \"m\"\ndriver = \"mirror\"\nover = [\"a\", \"{over}\"]\n{keys}\n\
             [[export]]\ndevice = \"m\"\n[server]\nunix = \"s\"\n"
        )
}

/// Returns the data of both legs.
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

    // One leg is slow, so that a kill finds the other one ahead.
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
fn a_leg_that_is_well_again_comes_back_while_clients_write() {
    let folder = Folder::new();
    let once = "driver = \"error\"\nfails = [\"write\"]\nfrom = \"4M\"\nto = \"5M\"\ntimes = 1";
    folder.write("up.toml", manifest(once, "retry = \"100ms\""));
    let mut server = Server::start(&folder, &["up.toml"]);
    server.wait_mirror("resynced");
    let mut client = Client::new(&server.socket(), "m");
    client.write(4 * MIB as u64, &pattern(1, 4096), 0).unwrap();
    server.wait_mirror("dropped");
    for n in 0..200u64 {
        client.write(n * 65536, &pattern(n, 8192), 0).unwrap();
    }
    let disks = |folder: &Folder| {
        let dump = folder.dump();
        let disks = dump["disks"].as_array().unwrap().clone();
        disks.into_iter().find(|disk| disk["name"] == "m").unwrap()["condition"].clone()
    };
    let ended = server.wait_line("the leg is back", |line| line.contains("\"resynced\""));
    assert!(ended.contains("b2"), "{ended}");
    assert_eq!(disks(&folder), "2 of 2 legs in sync");
    folder.corewise(["dump"]).ok().says(&["  m: 2 of 2 legs in sync"]);
    client.write(15 * MIB as u64, &pattern(9, 4096), 0).unwrap();
    server.stop().ok().complains(&["the mirror dropped leg 'b2': "]);
    let [a, b] = data(&folder);
    assert!(a == b && a[15 * MIB..15 * MIB + 4096] == pattern(9, 4096));
}

/// Makes two images of 16 MiB: a full one, whose end is free, and a blank one.
fn full_and_blank(folder: &Folder) -> Vec<u8> {
    let mut image = pattern(1, 16 * MIB);
    image[SIZE..].fill(0);
    folder.write("a.img", &image);
    folder.write("b.img", vec![0; 16 * MIB]);
    image
}

/// Returns a manifest in which the full image is behind an injector of errors.
fn behind_errors(fails: &str, keys: &str) -> String {
    let file = |name: &str| {
        format!("[[device]]\nname = \"{name}\"\ndriver = \"file\"\npath = \"{name}.img\"\n")
    };
    file("a")
        + &file("b")
        + &format!(
            "[[device]]\nname = \"x\"\ndriver = \"error\"\nover = [\"a\"]\n{fails}\n\
             [[device]]\nname = \"m\"\ndriver = \"mirror\"\nover = [\"x\", \"b\"]\n{keys}\n\
             [[export]]\ndevice = \"m\"\n[server]\nunix = \"s\"\n"
        )
}

const EIO: u32 = 5;

#[test]
fn a_leg_that_can_not_be_copied_from_the_only_one_in_sync_is_out_and_says_why() {
    let folder = Folder::new();
    let image = full_and_blank(&folder);
    let fails = "fails = [\"read\"]\nfrom = \"8M\"\nto = \"9M\"";
    folder.write("up.toml", behind_errors(fails, ""));
    let mut server = Server::start(&folder, &["up.toml"]);
    let dropped = server.wait_mirror("dropped");
    assert_eq!(dropped["legs"], serde_json::json!(["b"]));
    let mut client = Client::new(&server.socket(), "m");
    assert_eq!(client.read(8 * MIB as u64, 4096), Err(EIO));
    assert!(client.read(12 * MIB as u64, MIB as u32).unwrap() == image[12 * MIB..13 * MIB]);
    let ran = folder.corewise(["mirror", "m"]).ok();
    ran.says(&["m: 1 of 2 legs in sync, 1 out", "its source 'x' cannot be read (byte"]);
    drop(client);
    let ran = server.stop().ok();
    ran.complains(&["the mirror dropped leg 'b': ", "its source 'x' cannot be read"]);
    // The first leg goes: the other one was never in sync.
    let alone = behind_errors(fails, "degraded = \"always\"");
    folder.write("up.toml", alone.replace("\"a.img\"", "\"nowhere.img\""));
    let ran = folder.corewise(["up", "up.toml"]).code(1);
    ran.complains(&["no leg that is in sync is present: 'x' is missing", "A mirror never serves"]);
}

#[test]
fn a_check_tells_what_differs_repairs_it_where_asked_and_can_be_stopped() {
    let folder = Folder::new();
    folder.write("up.toml", manifest("", ""));
    let mut server = Server::start(&folder, &["up.toml"]);
    server.wait_mirror("resynced");
    let mut client = Client::new(&server.socket(), "m");
    client.write(0, &pattern(1, MIB), 0).unwrap();
    client.flush().unwrap();
    let corewise = |args: &[&str]| folder.corewise([&["mirror", "m"], args].concat());
    corewise(&["--check", "--wait"]).ok().says(&["check: done, 16711680 of", " 0 differ"]);
    // A write that bypasses the mirror.
    let second = File::options().write(true).open(folder.join("b.img")).unwrap();
    second.write_all_at(&[7; 4096], 8192).unwrap();
    let found = "b: 4096 bytes at 8192: differs from a";
    corewise(&["--check", "--wait"]).code(1).says(&[found]).complains(&["4096 bytes differ"]);
    assert!(data(&folder)[1][8192..12288] == [7; 4096], "nobody asked for a repair");
    folder.corewise(["dump"]).ok().says(&["4096 bytes that differ"]);
    corewise(&["--check", "--repair", "--wait"]).ok().says(&[found, "4096 repaired"]);
    let [a, b] = data(&folder);
    assert!(a == b && a[..MIB] == pattern(1, MIB));
    corewise(&["--check", "--rate", "1"]).ok().says(&["check: running"]);
    corewise(&["--check"]).fails().complains(&["is running already"]);
    corewise(&["--stop"]).ok().says(&["check: stopped"]);
    corewise(&["--stop"]).fails().complains(&["no check of 'm' is running"]);
    corewise(&["--repair"]).code(2);
    let ran = server.stop().ok();
    let ran =
        ran.complains(&["and repaired 0; to overwrite them from the first leg in sync: corewise"]);
    // Repaired bytes need no command.
    let repaired = ran.stderr.lines().find(|line| line.contains("and repaired 4096"));
    assert!(repaired.unwrap().ends_with("and repaired 4096"), "{ran}");
}
