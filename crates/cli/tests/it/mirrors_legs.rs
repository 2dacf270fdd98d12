//! Legs of a mirror that change while a real client writes and looks at what it has written.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crate::common::client::{Client, pattern};
use crate::common::server::Server;
use crate::common::{Folder, Ran};
use serde_json::Value;

const MIB: usize = 1 << 20;
/// What a mirror of files of 8 MiB has for data.
const SIZE: usize = 8 * MIB - (64 << 10);
const BLOCK: usize = 4096;

/// Files of 8 MiB, which are made.
fn files(names: &[&str]) -> String {
    let file = |name: &&str| {
        format!(
            "[[device]]\nname = \"{name}\"\ndriver = \"file\"\npath = \"{name}.img\"\nsize = \"8M\"\n\
             create = true\n"
        )
    };
    names.iter().map(file).collect()
}

/// A mirror over these files.
fn manifest(over: &[&str], keys: &str) -> String {
    files(over)
        + &format!(
            "[[device]]\nname = \"m\"\ndriver = \"mirror\"\nover = {over:?}\n{keys}\n\
             [[export]]\ndevice = \"m\"\n[server]\nunix = \"s\"\n"
        )
}

/// A client that writes all over the mirror, and reads what it has written, until it is told to stop or the server is gone.
struct Busy {
    stop: Arc<AtomicBool>,
    /// The pattern of each block, as far as it was acknowledged.
    is: Arc<Mutex<Vec<u64>>>,
    thread: JoinHandle<()>,
}

/// A block that is being written: either may be there.
const EITHER: u64 = u64::MAX;

impl Busy {
    fn start(socket: PathBuf) -> Busy {
        let (stop, is) =
            (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(vec![0; SIZE / BLOCK])));
        let (stopped, theirs) = (Arc::clone(&stop), Arc::clone(&is));
        let run = move || {
            let mut client = Client::new(&socket, "m");
            let blocks = SIZE / BLOCK;
            let mut n = 1u64;
            while !stopped.load(Ordering::Relaxed) {
                let at = (n * 7919) as usize % blocks;
                theirs.lock().unwrap()[at] = EITHER;
                client.write((at * BLOCK) as u64, &pattern(n, BLOCK), 0).unwrap();
                theirs.lock().unwrap()[at] = n;
                let at = (n * 104_729) as usize % blocks;
                let found = client.read((at * BLOCK) as u64, BLOCK as u32).unwrap();
                let is = theirs.lock().unwrap()[at];
                if is != 0 && found != pattern(is, BLOCK) {
                    stopped.store(true, Ordering::Relaxed);
                    panic!("block {at} is not what was written");
                }
                n += 1;
            }
        };
        Busy { stop, is, thread: std::thread::spawn(run) }
    }

    /// What is in each block.
    fn stop(self) -> Vec<u64> {
        assert!(
            !self.stop.swap(true, Ordering::Relaxed),
            "it read something else than it had written"
        );
        self.thread.join().unwrap();
        std::mem::take(&mut *self.is.lock().unwrap())
    }

    /// The same, once its server is gone.
    fn cut(self) -> Vec<u64> {
        // It panicked: its connection is gone.
        let _ = self.thread.join();
        assert!(!self.stop.load(Ordering::Relaxed), "it read something else than it had written");
        std::mem::take(&mut *self.is.lock().unwrap())
    }
}

#[track_caller]
fn has_all(socket: &std::path::Path, is: &[u64]) {
    let mut client = Client::new(socket, "m");
    for (at, &n) in is.iter().enumerate().filter(|(_, n)| ![0, EITHER].contains(*n)) {
        let found = client.read((at * BLOCK) as u64, BLOCK as u32).unwrap();
        assert!(found == pattern(n, BLOCK), "block {at}");
    }
}

fn data(folder: &Folder, leg: &str) -> Vec<u8> {
    let mut bytes = std::fs::read(folder.join(&format!("{leg}.img"))).unwrap();
    bytes.truncate(SIZE);
    bytes
}

/// The legs, each with its state.
fn legs(folder: &Folder) -> Vec<(String, String)> {
    let json = folder.corewise(["mirror", "m", "--json"]).ok().stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    let legs = json["disks"][0]["mirror"]["legs"].as_array().unwrap().clone();
    let text = |value: &Value| value.as_str().unwrap().to_string();
    legs.iter().map(|leg| (text(&leg["name"]), text(&leg["state"]))).collect()
}

fn in_sync(names: &[&str]) -> Vec<(String, String)> {
    names.iter().map(|name| (name.to_string(), "in_sync".to_string())).collect()
}

fn mirror(folder: &Folder, args: &[&str]) -> Ran {
    folder.corewise([&["mirror", "m"], args].concat())
}

#[test]
fn a_leg_is_replaced_while_a_client_goes_on_and_the_manifest_has_to_follow() {
    let folder = Folder::new();
    folder.write("up.toml", manifest(&["a", "b"], ""));
    folder.write("c.toml", files(&["c"]));
    let mut server = Server::start(&folder, &["up.toml"]);
    server.wait_mirror("resynced");
    let busy = Busy::start(server.socket());
    folder.corewise(["add", "c.toml"]).ok();
    let ran = mirror(&folder, &["--replace", "b", "--with", "c", "--wait"]).ok();
    ran.says(&["m: 2 of 2 legs in sync"]).complains(&[
        "write over = [\"a\", \"c\"] for 'm', and a [[device]] 'c', into the manifest",
        "`corewise remove b` closes it",
    ]);
    assert_eq!(server.wait_mirror("replaced")["legs"], serde_json::json!(["c"]));
    assert_eq!(legs(&folder), in_sync(&["a", "c"]));
    folder.corewise(["remove", "b"]).ok().says(&["removed device 'b'"]);
    folder.corewise(["remove", "c"]).code(1).complains(&["'m' needs 'c'"]);
    // A manifest that says nothing of it doesn't undo it.
    let ran = folder.corewise(["reload", "--mode", "hard"]).code(1);
    ran.complains(&["the legs of 'm' are [\"a\", \"c\"] since", "still says [\"a\", \"b\"]"]);
    folder.write("up.toml", manifest(&["a", "c"], ""));
    folder.corewise(["reload"]).ok().says(&["nothing to change"]);
    let is = busy.stop();
    assert!(is.iter().filter(|n| **n != 0).count() > 10, "the client did nothing");
    server.stop().ok();
    assert!(data(&folder, "a") == data(&folder, "c"));

    folder.write("old.toml", manifest(&["a", "b"], ""));
    let ran = folder.corewise(["up", "old.toml"]).code(1);
    ran.complains(&["'b' is an older state of itself"]);
    let server = Server::start(&folder, &["up.toml"]);
    assert_eq!(legs(&folder), in_sync(&["a", "c"]));
    has_all(&server.socket(), &is);
    server.stop().ok();
}

#[test]
fn after_kill_9_amid_a_replacement_either_disk_is_right_or_refused() {
    let folder = Folder::new();
    let slow = "resync_least = \"1M\"\nresync_most = \"1M\"";
    folder.write("up.toml", manifest(&["a", "b"], ""));
    folder.write("c.toml", files(&["c"]));
    let mut server = Server::start(&folder, &["up.toml"]);
    server.wait_mirror("resynced");
    server.stop().ok();
    folder.write("slow.toml", manifest(&["a", "b"], slow));
    let server = Server::start(&folder, &["slow.toml"]);
    let busy = Busy::start(server.socket());
    folder.corewise(["add", "c.toml"]).ok();
    mirror(&folder, &["--replace", "b", "--with", "c"]).ok();
    assert_eq!(legs(&folder)[1], ("c".to_string(), "resyncing".to_string()));
    server.kill();
    let is = busy.cut();
    let copies = Folder::new();
    for leg in ["a", "b", "c"] {
        let image = format!("{leg}.img");
        std::fs::copy(folder.join(&image), copies.join(&image)).unwrap();
    }
    for (folder, over) in [(&folder, ["a", "c"]), (&copies, ["a", "b"])] {
        folder.write("up.toml", manifest(&over, ""));
        let mut server = Server::start(folder, &["up.toml"]);
        server.wait_mirror("resynced");
        assert_eq!(legs(folder), in_sync(&over));
        has_all(&server.socket(), &is);
        server.stop().ok();
        assert!(data(folder, over[0]) == data(folder, over[1]));
    }
}

#[test]
fn a_device_that_can_not_be_a_leg_is_refused_and_the_mirror_stays_as_it_was() {
    let folder = Folder::new();
    folder.write("up.toml", manifest(&["a", "b"], ""));
    let more = files(&["used", "small", "shown", "free"]).replace("\"8M\"", "\"4M\"");
    let more = more.replace(
        "name = \"free\"\ndriver = \"file\"\npath = \"free.img\"\nsize = \"4M\"",
        "name = \"free\"\ndriver = \"file\"\npath = \"free.img\"\nsize = \"8M\"",
    );
    let stripe = "[[device]]\nname = \"above\"\ndriver = \"stripe\"\nover = [\"used\", \"used2\"]\n\
                  [[device]]\nname = \"used2\"\ndriver = \"memory\"\nsize = \"4M\"\n[[export]]\ndevice = \"shown\"\n";
    folder.write("more.toml", more + stripe);
    let mut server = Server::start(&folder, &["up.toml"]);
    server.wait_mirror("resynced");
    folder.corewise(["add", "more.toml"]).ok();
    for (leg, with, why) in [
        ("b", "a", "'a' is a leg of 'm' already"),
        ("b", "used", "'used' is in use: 'above' is built over it"),
        ("b", "shown", "'shown' is in use: the export 'shown' shows it"),
        ("b", "small", "'small' has 4194304 bytes, but the legs of 'm' have 8388608"),
        ("b", "nothing", "there is no device 'nothing'; `corewise add` brings one up"),
        ("b", "m", "'m' is in use: the export 'm' shows it"),
        ("x", "free", "'x' is not a leg of 'm'; the legs are: a, b"),
    ] {
        mirror(&folder, &["--replace", leg, "--with", with]).code(1).complains(&[why]);
    }
    folder
        .corewise(["mirror", "a", "--replace", "b", "--with", "free"])
        .code(1)
        .complains(&["'a' is not a mirror"]);
    mirror(&folder, &["--replace", "b"]).code(2);
    assert_eq!(legs(&folder), in_sync(&["a", "b"]));
    mirror(&folder, &["--replace", "b", "--with", "free", "--wait"]).ok();
    server.stop().ok();
}
