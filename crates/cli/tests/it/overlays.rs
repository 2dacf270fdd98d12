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
fn clients_see_which_blocks_are_own_and_which_are_the_bases() {
    let folder = folder();
    let keys = format!("{OVER}\nsize = \"6M\"");
    folder.write("up.toml", base(READ_ONLY) + &overlay("a", &keys));
    let server = Server::start(&folder, &["up.toml"]);
    let mut a = Client::new(&server.socket(), "a");
    a.write(MIB as u64, &pattern(2, 8192), 0).unwrap();
    a.command(TRIM, 5 << 20, 4096).unwrap();
    let map = "--map=qemu:allocation-depth";
    let ran = folder.client("nbdinfo", ["--json", map, &server.uri("a")]).ok();
    let found = ran.json();
    let number = |one: &Value, key: &str| one[key].as_u64().unwrap();
    let found = found.as_array().unwrap().iter();
    let found = found.map(|one| (number(one, "offset"), number(one, "type")));
    let want = [(0, 2), (1 << 20, 1), ((1 << 20) + 8192, 2), (4 << 20, 0), (5 << 20, 1)];
    let want = want.into_iter().chain([((5 << 20) + 4096, 0)]);
    assert_eq!(found.collect::<Vec<_>>(), want.collect::<Vec<_>>(), "{ran}");
    // qemu-img takes the depth for a bitmap: own blocks are data to it.
    let options = format!(
        "driver=nbd,server.type=unix,server.path={},export=a,x-dirty-bitmap=qemu:allocation-depth",
        server.socket().display()
    );
    folder.client("qemu-img", ["map", "--output=json", "--image-opts", &options]).ok();
    server.stop().ok();
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
fn an_overlay_keeps_its_block_size_and_another_one_is_refused() {
    let folder = folder();
    let write = |keys: &str| {
        folder.write("up.toml", base(READ_ONLY) + &overlay("a", &format!("{OVER}\n{keys}")));
    };
    write("block_size = \"8K\"");
    let mut server = Server::start(&folder, &["up.toml"]);
    // The size that it has anyway changes nothing, and another one takes nothing down.
    for same in ["", "block_size = \"8K\""] {
        write(same);
        folder.corewise(["reload"]).ok();
        assert_eq!(server.wait_event("changed")["steps"].as_array().unwrap().len(), 0);
    }
    write("block_size = \"4K\"");
    let says = ["would not come up again", "block_size = 4096", "made with 8192", "leave it out"];
    folder.corewise(["reload"]).fails().complains(&says);
    assert_eq!(Client::new(&server.socket(), "a").size, 4 << 20);
    server.stop().ok();
    let says = ["device 'a'", "a block size of 4096 is asked for", "with 8192", "Ask for 8192"];
    folder.corewise(["up", "up.toml"]).code(1).complains(&says);
    write("");
    Server::start(&folder, &["up.toml"]).stop().ok();
}

/// Makes the header of an overlay say that its commit is under way.
fn interrupt_a_commit(folder: &Folder, name: &str) {
    let mut file = std::fs::read(folder.join(name)).unwrap();
    for copy in [0, 4096] {
        let sector = &mut file[copy..copy + 512];
        sector[48..52].copy_from_slice(&2_u32.to_le_bytes());
        sector[8..12].fill(0);
        let sum = crc32(sector);
        sector[8..12].copy_from_slice(&sum.to_le_bytes());
    }
    folder.write(name, file);
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        let step = |crc: u32, _| (crc >> 1) ^ (0xedb8_8320 * (crc & 1));
        (0..8).fold(crc ^ u32::from(*byte), step)
    })
}

#[test]
fn an_interrupted_commit_waits_for_a_base_that_nobody_else_uses() {
    let folder = folder();
    folder.write("up.toml", base("") + &overlay("a", OVER));
    let server = Server::start(&folder, &["up.toml"]);
    Client::new(&server.socket(), "a").write(0, &pattern(2, 4096), FUA).unwrap();
    server.stop().ok();
    interrupt_a_commit(&folder, "a.cow");
    let refused = |manifest: String, says: &str| {
        folder.write("up.toml", manifest);
        let ran = folder.corewise(["up", "up.toml"]).code(1);
        ran.complains(&["a commit of the overlay in", "was interrupted", says]);
    };
    let export = "[[export]]\ndevice = \"base\"\nread_only = true\n";
    refused(base("") + &overlay("a", OVER) + export, "the export 'base' shows 'base'");
    refused(base("") + &overlay("a", OVER) + &overlay("b", OVER), "'b' stands on 'base', too");
    refused(base(READ_ONLY) + &overlay("a", OVER), "Open it for writing");
    refused(base("") + &overlay("a", ""), "Name the base");
    assert!(std::fs::read(folder.join("base.img")).unwrap() == pattern(1, 4 * MIB));
    folder.write("up.toml", base("") + &overlay("a", OVER));
    Server::start(&folder, &["up.toml"]).stop().ok();
    let want = [pattern(2, 4096), pattern(1, 4 * MIB)[4096..].to_vec()].concat();
    assert!(std::fs::read(folder.join("base.img")).unwrap() == want);
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
fn a_flatten_goes_on_after_a_restart() {
    let folder = folder();
    let write = |rate: &str| {
        let keys = format!("{OVER}\nfetch_rate = \"{rate}\"");
        folder.write("up.toml", base(READ_ONLY) + &overlay("a", &keys));
    };
    // After the first piece it waits for longer than this test.
    write("1K");
    let server = Server::start(&folder, &["up.toml"]);
    folder.corewise(["overlay", "a", "--flatten"]).ok().says(&["began to flatten device 'a'"]);
    assert_eq!(dump(&folder, "a")["fetching"], true);
    server.stop().ok();
    write("1G");
    let mut server = Server::start(&folder, &["up.toml"]);
    assert_eq!(server.wait_event("overlay")["what"], "fetched");
    assert!(Client::new(&server.socket(), "a").read(0, 4 << 20).unwrap() == pattern(1, 4 * MIB));
    server.stop().ok();
}

#[test]
fn a_reload_follows_how_an_overlay_fetches_and_drops_a_base_that_it_needs_no_more() {
    let folder = folder();
    let write =
        |base: &str, keys: &str| folder.write("up.toml", base.to_owned() + &overlay("a", keys));
    let with_base = base(READ_ONLY);
    write(&with_base, OVER);
    let mut server = Server::start(&folder, &["up.toml"]);
    let mut a = Client::new(&server.socket(), "a");
    a.write(0, &pattern(2, 512), 0).unwrap();
    // After the first piece it waits for longer than this test.
    write(&with_base, &format!("{OVER}\nfetch = \"background\"\nfetch_rate = \"1K\""));
    folder.corewise(["reload"]).ok().says(&["changed device 'a'"]);
    assert_eq!(dump(&folder, "a")["fetching"], true);
    write(&with_base, OVER);
    folder.corewise(["reload"]).ok();
    assert_eq!(dump(&folder, "a")["fetching"], false);
    write(&with_base, &format!("{OVER}\nfetch = \"background\"\nfetch_rate = \"1G\""));
    folder.corewise(["reload"]).ok();
    assert_eq!(server.wait_event("overlay")["what"], "fetched");
    // The base goes, and the client stays.
    let (server_table, _) = with_base.split_once("[[device]]").unwrap();
    write(server_table, "");
    let says = ["would change device 'a'", "would remove device 'base'"];
    folder.corewise(["reload", "--dry-run"]).ok().says(&says);
    folder.corewise(["reload"]).ok().says(&["changed device 'a'", "removed device 'base'"]);
    let want = [pattern(2, 512), pattern(1, 4 * MIB)[512..].to_vec()].concat();
    assert!(a.read(0, 4 << 20).unwrap() == want);
    folder.corewise(["reload"]).ok();
    server.stop().ok();
    Server::start(&folder, &["up.toml"]).stop().ok();
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
