//! Mirrors that begin without a leg, and legs that come back while real clients write.
#![allow(missing_docs, clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use crate::common::client::{Client, pattern};
use crate::common::server::Server;
use crate::common::{Folder, Ran};
use crate::watching::Listener;
use serde_json::Value;

const MIB: usize = 1 << 20;
/// Bytes of data of a mirror over two files of 16 MiB.
const SIZE: usize = 16 * MIB - (64 << 10);

/// Returns the manifest of a mirror over two files, which it creates if `made` is true.
fn manifest(made: bool, keys: &str) -> String {
    let made = if made { "size = \"16M\"\ncreate = true\n" } else { "" };
    let file = |name: &str| {
        format!("[[device]]\nname = \"{name}\"\ndriver = \"file\"\npath = \"{name}.img\"\n{made}")
    };
    file("a")
        + &file("b")
        + &format!(
            "[[device]]\nname = \"m\"\ndriver = \"mirror\"\nover = [\"a\", \"b\"]\n{keys}\n\
             [[export]]\ndevice = \"m\"\n[server]\nunix = \"s\"\n"
        )
}

/// Makes a folder with a mirror in sync, whose legs hold the same megabytes, and takes `b` away.
fn without_b() -> Folder {
    let folder = Folder::new();
    folder.write("new.toml", manifest(true, ""));
    folder.write("known.toml", manifest(false, ""));
    folder.write("always.toml", manifest(false, "degraded = \"always\""));
    let mut server = Server::start(&folder, &["new.toml"]);
    server.wait_mirror("resynced");
    let mut client = Client::new(&server.socket(), "m");
    for n in 0..8 {
        client.write(n * MIB as u64, &pattern(n, MIB), 0).unwrap();
    }
    server.stop().ok();
    alike(&folder);
    std::fs::rename(folder.join("b.img"), folder.join("b.away")).unwrap();
    folder
}

fn back(folder: &Folder) {
    std::fs::rename(folder.join("b.away"), folder.join("b.img")).unwrap();
}

#[track_caller]
fn alike(folder: &Folder) {
    let data = |name: &str| std::fs::read(folder.join(name)).unwrap();
    assert!(data("a.img")[..SIZE] == data("b.img")[..SIZE]);
}

fn mirror(folder: &Folder, args: &[&str]) -> Ran {
    folder.corewise(["mirror"].iter().chain(args))
}

#[test]
fn a_leg_that_had_everything_may_be_missing_only_where_the_manifest_says_so() {
    let folder = without_b();
    let ran = folder.corewise(["up", "known.toml"]).code(1);
    ran.complains(&[
        "known.toml:8:8: device 'b': cannot open",
        "device 'm': 'b' is missing, but was in sync",
        "degraded = \"always\"",
    ]);
    let mut server = Server::start(&folder, &["always.toml"]);
    let missing = server.wait_mirror("missing");
    assert_eq!(missing["legs"], serde_json::json!(["b"]));
    assert!(missing["why"].as_str().unwrap().contains("the file does not exist"), "{missing}");
    let ran = server.stop().ok();
    ran.complains(&["warning: device 'm': leg 'b' is missing: cannot open"]);
    // Now the missing leg is known. A user who requires all legs gets no other behaviour.
    Server::start(&folder, &["known.toml"]).stop().ok();
    folder.write("never.toml", manifest(false, "degraded = \"never\""));
    let ran = folder.corewise(["up", "never.toml"]).code(1);
    let ran = ran.complains(&["never.toml:8:8: device 'b': cannot open"]);
    assert!(!ran.stderr.contains("device 'm':"), "it was not even tried\n{ran}");
}

#[test]
fn a_leg_that_is_back_gets_what_was_written_meanwhile_and_nothing_else() {
    let folder = without_b();
    let mut server = Server::start(&folder, &["always.toml"]);
    let mut client = Client::new(&server.socket(), "m");
    for n in [2, 5, 11] {
        client.write(n * MIB as u64 + 8192, &pattern(100 + n, 65536), 0).unwrap();
    }
    mirror(&folder, &[]).ok().says(&["m: 1 of 2 legs in sync, 1 out", "b  out: cannot open"]);
    let ran = mirror(&folder, &["m", "--take-back", "--wait"]).code(1);
    ran.says(&["b  out: cannot open"]).complains(&["'b' is still out: cannot open"]);
    let ran = mirror(&folder, &["m", "--wait"]).code(1);
    ran.says(&["b  out: cannot open"]).complains(&["'b' is still out: cannot open"]);
    mirror(&folder, &["m", "--take-back=a"]).code(1).complains(&["the leg 'a' of 'm' is not out"]);
    mirror(&folder, &["m", "--take-back=x"]).code(1).complains(&["'x' is not a leg of 'm'; the \
                                                                  legs are: a, b"]);
    mirror(&folder, &["a", "--take-back"]).code(1).complains(&["'a' is not a mirror"]);
    mirror(&folder, &["n"]).code(1).complains(&["there is no mirror 'n'; the mirrors are: \"m\""]);

    back(&folder);
    let ran = mirror(&folder, &["m", "--take-back=b", "--wait"]).ok();
    ran.says(&["m: 2 of 2 legs in sync", "b  in sync"]);
    let ended = server.wait_mirror("resynced");
    assert_eq!((&ended["legs"], &ended["bytes"]), (&serde_json::json!(["b"]), &(3 * MIB).into()));
    mirror(&folder, &["m", "--take-back"]).code(1).complains(&["no leg of 'm' is out"]);
    let disks = folder.dump();
    let disk = |name: &str| {
        disks["disks"].as_array().unwrap().iter().find(|disk| disk["name"] == name).cloned()
    };
    assert_eq!(disk("m").unwrap()["mirror"]["legs"][1]["state"], "in_sync");
    assert!(disk("b").is_some() && disk("a").unwrap().get("mirror").is_none());
    for n in [2, 5, 11] {
        let found = client.read(n * MIB as u64 + 8192, 65536).unwrap();
        assert!(found == pattern(100 + n, 65536));
    }
    server.stop().ok();
    alike(&folder);
    Server::start(&folder, &["known.toml"]).stop().ok();
}

#[test]
fn a_leg_comes_back_while_fio_writes_and_verifies() {
    let folder = without_b();
    let keys =
        "degraded = \"always\"\nretry = \"300ms\"\nresync_most = \"8M\"\nresync_least = \"8M\"";
    folder.write("up.toml", manifest(false, keys));
    let mut server = Server::start(&folder, &["up.toml"]);
    let uri = server.uri("m");
    std::thread::scope(|scope| {
        let fio = scope.spawn(|| {
            let uri = format!("--uri={uri}");
            folder.client(
                "fio",
                [
                    "--name=verify",
                    "--ioengine=nbd",
                    &uri,
                    "--rw=randwrite",
                    "--bs=4k-64k",
                    "--size=12M",
                    "--offset=1M",
                    "--io_size=64M",
                    "--iodepth=8",
                    "--verify=crc32c",
                    "--verify_fatal=1",
                    "--do_verify=1",
                    "--randrepeat=0",
                ],
            )
        });
        back(&folder);
        server.wait_mirror("resynced");
        fio.join().unwrap().ok();
    });
    mirror(&folder, &["m"]).ok().says(&["m: 2 of 2 legs in sync"]);
    let ran = folder.client("nbdcopy", [uri.as_str(), "copy.img"]);
    ran.ok();
    server.stop().ok();
    alike(&folder);
    let copy = std::fs::read(folder.join("copy.img")).unwrap();
    assert!(copy == std::fs::read(folder.join("b.img")).unwrap()[..SIZE]);
}

/// Checks both promises that `corewise mirror --wait` relies on.
#[test]
fn a_state_of_a_mirror_that_was_answered_is_told_to_those_that_listen_however_short_it_was() {
    let folder = Folder::new();
    // The listener takes connections and says nothing, so each attempt to take the leg back lasts
    // for a moment.
    let silent = std::os::unix::net::UnixListener::bind(folder.join("silent")).unwrap();
    let file = "[[device]]\nname = \"a\"\ndriver = \"file\"\npath = \"a.img\"\nsize = \"1M\"\ncreate = true\n";
    let mirror = "[[device]]\nname = \"m\"\ndriver = \"mirror\"\nover = [\"a\", \"b\"]\n\
        degraded = \"always\"\n[[export]]\ndevice = \"m\"\n[server]\nunix = \"s\"\n";
    let with = |second: &str| format!("{file}[[device]]\nname = \"b\"\n{second}{mirror}");
    let good = "driver = \"file\"\npath = \"b.img\"\nsize = \"1M\"\ncreate = true\n";
    folder.write("good.toml", with(good));
    let mut server = Server::start(&folder, &["good.toml"]);
    server.wait_mirror("resynced");
    server.stop().ok();
    let uri = format!("nbd+unix:///x?socket={}", folder.join("silent").display());
    let gone = format!("driver = \"nbd\"\nuri = \"{uri}\"\nconnect_timeout = \"200ms\"\n");
    folder.write("gone.toml", with(&gone));
    let server = Server::start(&folder, &["gone.toml"]);
    let mut listener = Listener::new(&server);
    let mut asks = BufReader::new(UnixStream::connect(server.control()).unwrap());
    let mut ask = |question: &str| -> Value {
        asks.get_mut().write_all(format!("{{\"corewise\":1,{question}}}\n").as_bytes()).unwrap();
        let mut line = String::new();
        asks.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    };
    let state = |of: &Value| of["legs"][1]["state"].as_str().unwrap().to_string();
    let mut seen = 0;
    while seen < 3 {
        ask("\"ask\":\"take_back\",\"disk\":\"m\"");
        let answered = state(&ask("\"ask\":\"mirrors\"")["disks"][0]["mirror"]);
        if answered == "out" {
            continue;
        }
        seen += 1;
        assert_eq!(state(&listener.until("mirror_state")["mirror"]), answered);
        while state(&ask("\"ask\":\"mirrors\"")["disks"][0]["mirror"]) != "out" {}
        assert_eq!(state(&listener.until("mirror_state")["mirror"]), "out");
    }
    drop(silent);
    server.stop().ok();
}
