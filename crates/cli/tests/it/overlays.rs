//! Overlays over one base, with real clients: content, kills, changes while they are served, and
//! `corewise overlay`.
#![allow(missing_docs, clippy::unwrap_used)]

use serde_json::Value;

use crate::common::Folder;
use crate::common::client::{Client, FUA, TRIM, pattern};
use crate::common::server::Server;

const MIB: usize = 1 << 20;

/// Returns the manifest of a base of 4 MiB with that access.
fn base(access: &str) -> String {
    format!(
        "[server]\nunix = \"s\"\n[[device]]\nname = \"base\"\ndriver = \"file\"\n\
         path = \"base.img\"\n{access}\n"
    )
}

fn overlay(name: &str, keys: &str) -> String {
    format!(
        "[[device]]\nname = \"{name}\"\ndriver = \"overlay\"\npath = \"{name}.cow\"\n{keys}\n\
         [[export]]\ndevice = \"{name}\"\n"
    )
}

const OVER: &str = "over = [\"base\"]";
const READ_ONLY: &str = "read_only = true";

fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("base.img", pattern(1, 4 * MIB));
    folder
}

/// Returns the dump's part about an overlay.
fn dump(folder: &Folder, name: &str) -> Value {
    let dump = folder.dump();
    let disks = dump["disks"].as_array().unwrap().clone();
    disks.into_iter().find(|disk| disk["name"] == name).unwrap()["overlay"].clone()
}

#[test]
fn overlays_of_one_base_keep_their_own_changes_through_kills_and_leave_the_base_alone() {
    let folder = folder();
    let two = base(READ_ONLY) + &overlay("a", OVER) + &overlay("b", OVER);
    folder.write("up.toml", two);
    let server = Server::start(&folder, &["up.toml"]);
    let mut a = Client::new(&server.socket(), "a");
    let mut b = Client::new(&server.socket(), "b");
    assert_eq!((a.size, b.size), (4 * MIB as u64, 4 * MIB as u64));
    a.write(1536, &pattern(2, 5000 / 512 * 512), 0).unwrap();
    a.command(TRIM, MIB as u64, MIB as u32).unwrap();
    a.flush().unwrap();
    b.write(2 * MIB as u64, &pattern(3, 4096), FUA).unwrap();
    let (content_a, content_b) = (a.read(0, 4 << 20).unwrap(), b.read(0, 4 << 20).unwrap());
    assert!(content_a[1536..1536 + 4608] == pattern(2, 4608));
    assert!(content_a[MIB..2 * MIB].iter().all(|byte| *byte == 0));
    server.kill();
    let mut server = Server::start(&folder, &["up.toml"]);
    // One more comes while the others are served.
    folder.write("c.toml", overlay("c", OVER));
    folder.corewise(["add", "c.toml"]).ok();
    assert!(Client::new(&server.socket(), "a").read(0, 4 << 20).unwrap() == content_a);
    assert!(Client::new(&server.socket(), "b").read(0, 4 << 20).unwrap() == content_b);
    let mut c = Client::new(&server.socket(), "c");
    assert!(c.read(0, 4 << 20).unwrap() == pattern(1, 4 * MIB));
    c.write(0, &pattern(4, 512), 0).unwrap();
    while dump(&folder, "c")["own"] != 4096 {
        std::thread::yield_now();
    }
    drop(c);
    folder.corewise(["remove", "c", "--mode", "soft"]).ok();
    assert!(server.wait_event("changed")["steps"].is_array());
    server.stop().ok();
    assert!(std::fs::read(folder.join("base.img")).unwrap() == pattern(1, 4 * MIB));
}

#[test]
fn an_overlay_over_another_base_or_of_a_damaged_file_is_refused() {
    let folder = folder();
    folder.write("up.toml", base(READ_ONLY) + &overlay("a", OVER));
    Server::start(&folder, &["up.toml"]).stop().ok();
    folder.write("base.img", pattern(9, 4 * MIB));
    let ran = folder.corewise(["up", "up.toml"]).code(1);
    ran.complains(&["device 'a'", "'base' is not the base", "other content"]);
    folder.write("base.img", pattern(1, 4 * MIB));
    folder.write("a.cow", [vec![7; 4096], pattern(1, 5 * MIB)].concat());
    folder.corewise(["up", "up.toml"]).code(1).complains(&["holds other data"]);
    let written = base("") + &overlay("a", OVER) + "[[export]]\ndevice = \"base\"\n";
    folder.write("up.toml", written);
    folder.corewise(["up", "up.toml"]).code(1).complains(&["'base' is a part of 'a'"]);
    folder.write("up.toml", base(READ_ONLY) + &overlay("new", ""));
    folder.corewise(["up", "up.toml"]).code(1).complains(&["a new one needs a base"]);
    folder.write("new.cow", "");
    folder.corewise(["up", "up.toml"]).code(1).complains(&["new.cow is empty"]);
}

#[test]
fn an_overlay_has_the_size_of_the_manifest_at_its_start_and_never_shrinks() {
    let folder = folder();
    let start = |keys: &str| {
        folder.write("up.toml", base(READ_ONLY) + &overlay("a", keys));
        Server::start(&folder, &["up.toml"])
    };
    start(OVER).stop().ok();
    let server = start(&format!("{OVER}\nsize = \"8M\""));
    assert_eq!(Client::new(&server.socket(), "a").size, 8 << 20);
    server.stop().ok();
    folder.write("up.toml", base(READ_ONLY) + &overlay("a", &format!("{OVER}\nsize = \"6M\"")));
    folder.corewise(["up", "up.toml"]).code(1).complains(&["can't shrink"]);
}

#[test]
fn a_reset_a_commit_and_a_flatten_need_an_overlay_that_is_free_and_do_what_they_say() {
    let folder = folder();
    folder.write("up.toml", base("") + &overlay("a", OVER) + &overlay("b", OVER));
    let mut server = Server::start(&folder, &["up.toml"]);
    let mut a = Client::new(&server.socket(), "a");
    a.write(4096, &pattern(2, 8192), 0).unwrap();
    for change in ["--reset", "--commit"] {
        let dry = folder.corewise(["overlay", "a", change, "--dry-run"]);
        match change {
            "--reset" => drop(dry.ok().says(&["would reset device 'a'"])),
            _ => drop(dry.fails().complains(&["'b' stands on 'base', too"])),
        }
    }
    folder.corewise(["overlay", "a", "--reset"]).fails().complains(&["export 'a' has 1 client"]);
    folder.corewise(["overlay", "base", "--reset"]).fails().complains(&["is not an overlay"]);
    drop(a);
    let mut ran = folder.corewise(["overlay", "a", "--reset"]);
    // The server may not have seen yet that the client has left.
    while ran.code != Some(0) {
        ran = folder.corewise(["overlay", "a", "--reset"]);
    }
    ran.ok().says(&["reset device 'a'"]);
    let mut a = Client::new(&server.socket(), "a");
    assert!(a.read(0, 4 << 20).unwrap() == pattern(1, 4 * MIB));
    a.write(4096, &pattern(3, 8192), 0).unwrap();

    // The one that is flattened needs its base no more.
    Client::new(&server.socket(), "b").write(0, &pattern(5, 512), 0).unwrap();
    folder.corewise(["overlay", "b", "--flatten"]).ok().says(&["began to flatten device 'b'"]);
    assert_eq!(server.wait_event("overlay")["what"], "fetched");
    let own = dump(&folder, "b");
    assert_eq!((&own["own"], &own["has_base"]), (&(4 * MIB).into(), &false.into()));
    folder.corewise(["overlay", "b", "--reset"]).fails().complains(&["no base any more"]);
    folder.corewise(["remove", "b", "--mode", "soft"]).ok();

    drop(a);
    let mut ran = folder.corewise(["overlay", "a", "--commit"]);
    while ran.code != Some(0) {
        ran = folder.corewise(["overlay", "a", "--commit"]);
    }
    ran.ok().says(&["committed device 'a'"]);
    let mut want = pattern(1, 4 * MIB);
    want[4096..4096 + 8192].copy_from_slice(&pattern(3, 8192));
    let mut a = Client::new(&server.socket(), "a");
    assert!(a.read(0, 4 << 20).unwrap() == want);
    server.stop().ok();
    assert!(std::fs::read(folder.join("base.img")).unwrap() == want);

    // Both come up again, one of them without a base.
    let flat = overlay("b", "");
    folder.write("up.toml", base("") + &overlay("a", OVER) + &flat);
    let server = Server::start(&folder, &["up.toml"]);
    assert!(Client::new(&server.socket(), "a").read(0, 4 << 20).unwrap() == want);
    let mut old = pattern(1, 4 * MIB);
    old[..512].copy_from_slice(&pattern(5, 512));
    assert!(Client::new(&server.socket(), "b").read(0, 4 << 20).unwrap() == old);
    server.stop().ok();
}

#[test]
fn an_overlay_grows_and_fetches_its_base_in_the_background() {
    let folder = folder();
    let keys = format!("{OVER}\nfetch = \"background\"");
    folder.write("up.toml", base(READ_ONLY) + &overlay("a", &keys));
    let mut server = Server::start(&folder, &["up.toml"]);
    assert_eq!(server.wait_event("overlay")["what"], "fetched");
    folder.corewise(["grow", "a", "6M"]).ok().says(&["grew device 'a' to 6 MiB"]);
    folder.corewise(["grow", "a"]).fails().complains(&["give the new size"]);
    let mut a = Client::new(&server.socket(), "a");
    let want = [pattern(1, 4 * MIB), vec![0; 2 * MIB]].concat();
    assert!(a.size == 6 << 20 && a.read(0, 6 << 20).unwrap() == want);
    a.write(5 << 20, &pattern(2, 512), 0).unwrap();
    server.stop().ok();
    let server = Server::start(&folder, &["up.toml"]);
    let mut a = Client::new(&server.socket(), "a");
    assert!(a.read(5 << 20, 512).unwrap() == pattern(2, 512));
    server.stop().ok();
}
