//! Legs of a mirror that change while a real client writes, and verifies its writes.
#![allow(missing_docs, clippy::unwrap_used)]

use crate::common::Folder;
use crate::common::busy::{
    Busy, data, files, has_all, in_sync, in_sync_over, legs, manifest, mirror, slow_beside_a_spare,
};
use crate::common::client::Client;
use crate::common::server::Server;

#[test]
fn a_leg_is_replaced_while_a_client_goes_on_and_the_manifest_has_to_follow() {
    let folder = Folder::new();
    folder.write("c.toml", files(&["c"]));
    let mut server = in_sync_over(&folder, &["a", "b"]);
    let busy = Busy::start(server.socket());
    folder.corewise(["add", "c.toml"]).ok();
    let ran = mirror(&folder, &["--replace", "b", "--with", "c", "--wait"]).ok();
    ran.says(&["m: 2 of 2 legs in sync"]).complains(&[
        "write over = [\"a\", \"c\"] for 'm', and a [[device]] 'c', into the manifest",
        "`corewise remove b` closes the device",
    ]);
    assert_eq!(server.wait_mirror("replaced")["legs"], serde_json::json!(["c"]));
    assert_eq!(legs(&folder), in_sync(&["a", "c"]));
    folder.corewise(["remove", "b"]).ok().says(&["removed device 'b'"]);
    folder.corewise(["remove", "c"]).code(1).complains(&["'m' needs 'c'"]);
    // A manifest without the change doesn't undo it.
    let ran = folder.corewise(["reload", "--mode", "hard"]).code(1);
    ran.complains(&["the legs of 'm' to [\"a\", \"c\"], but", "still says [\"a\", \"b\"]"]);
    folder.write("up.toml", manifest(&["a", "c"], ""));
    folder.corewise(["reload"]).ok().says(&["nothing to change"]);
    let is = busy.stop();
    assert!(is.iter().filter(|n| **n != 0).count() > 10, "the client did nothing");
    server.stop().ok();
    assert!(data(&folder, "a") == data(&folder, "c"));

    folder.write("old.toml", manifest(&["a", "b"], ""));
    let ran = folder.corewise(["up", "old.toml"]).code(1);
    ran.complains(&["'b' is an older copy of this leg"]);
    let server = Server::start(&folder, &["up.toml"]);
    assert_eq!(legs(&folder), in_sync(&["a", "c"]));
    has_all(&server.socket(), &is);
    server.stop().ok();
}

#[test]
fn after_kill_9_amid_a_replacement_either_disk_is_right_or_refused() {
    let folder = Folder::new();
    let (server, busy) = slow_beside_a_spare(&folder);
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
    let more = files(&["used", "small", "shown", "free"]).replace("\"8M\"", "\"4M\"");
    let more = more.replace(
        "name = \"free\"\ndriver = \"file\"\npath = \"free.img\"\nsize = \"4M\"",
        "name = \"free\"\ndriver = \"file\"\npath = \"free.img\"\nsize = \"8M\"",
    );
    let stripe = "[[device]]\nname = \"above\"\ndriver = \"stripe\"\nover = [\"used\", \"used2\"]\n\
                  [[device]]\nname = \"used2\"\ndriver = \"memory\"\nsize = \"4M\"\n[[export]]\ndevice = \"shown\"\n";
    folder.write("more.toml", more + stripe);
    let server = in_sync_over(&folder, &["a", "b"]);
    folder.corewise(["add", "more.toml"]).ok();
    for (leg, with, why) in [
        ("b", "a", "'a' is a leg of 'm' already"),
        ("b", "used", "'used' is in use: 'above' is built over it"),
        ("b", "shown", "'shown' is in use: the export 'shown' gives clients access to it"),
        ("b", "small", "'small' has room for 4128768 bytes, but the mirror has 8323072"),
        (
            "b",
            "nothing",
            "there is no device 'nothing': bring the device up first, with `corewise add`",
        ),
        ("b", "m", "'m' is in use: the export 'm' gives clients access to it"),
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

#[test]
fn a_larger_disk_may_take_the_place_of_a_leg_and_the_mirror_keeps_its_size() {
    let folder = Folder::new();
    let larger = files(&["c", "d"]).replace("\"8M\"", "\"16M\"");
    let server = in_sync_over(&folder, &["a", "b"]);
    let busy = Busy::start(server.socket());
    folder.write("larger.toml", &larger);
    folder.corewise(["add", "larger.toml"]).ok();
    mirror(&folder, &["--replace", "a", "--with", "c", "--wait"]).ok();
    mirror(&folder, &["--replace", "b", "--with", "d", "--wait"]).ok();
    let is = busy.stop();
    server.stop().ok();
    let stack = |over: &[&str], keys: &str| manifest(over, keys).split_off(files(over).len());
    folder.write("up.toml", larger + &stack(&["c", "d"], ""));
    let server = Server::start(&folder, &["up.toml"]);
    assert_eq!(legs(&folder), in_sync(&["c", "d"]));
    has_all(&server.socket(), &is);
    let size = Client::new(&server.socket(), "m").size;
    assert_eq!(size, (8 << 20) - (64 << 10));
    server.stop().ok();

    let mixed = files(&["e", "f"]).replacen("\"8M\"", "\"4M\"", 1);
    for keys in ["", "bitmap = false"] {
        // A new mirror has the data of its first leg.
        folder.write("new.toml", mixed.clone() + &stack(&["f", "e"], keys));
        let ran = folder.corewise(["up", "new.toml"]).code(1);
        ran.complains(&["'e' has room for ", "bytes of 'f'"]);
    }
    folder.write("new.toml", mixed.clone() + &stack(&["e", "f"], ""));
    let mut server = Server::start(&folder, &["new.toml"]);
    server.wait_mirror("resynced");
    assert_eq!(legs(&folder), in_sync(&["e", "f"]));
    server.stop().ok();
}
