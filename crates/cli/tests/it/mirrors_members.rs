//! Legs that are added to a mirror and removed from it while a real client writes, and verifies its
//! writes.
#![allow(missing_docs, clippy::unwrap_used)]

use crate::common::Folder;
use crate::common::busy::{
    Busy, data, files, has_all, in_sync, in_sync_over, legs, manifest, mirror, slow_beside_a_spare,
};
use crate::common::server::Server;
use rustix::process::Signal;

#[test]
fn a_leg_is_added_and_another_removed_while_a_client_goes_on_and_the_manifest_has_to_follow() {
    let folder = Folder::new();
    folder.write("c.toml", files(&["c"]));
    let mut server = in_sync_over(&folder, &["a", "b"]);
    let busy = Busy::start(server.socket());
    folder.corewise(["add", "c.toml"]).ok();
    let ran = mirror(&folder, &["--add", "c", "--wait"]).ok();
    ran.says(&["m: 3 of 3 legs in sync"]).complains(&[
        "write over = [\"a\", \"b\", \"c\"] for 'm', and a [[device]] 'c', into the manifest",
    ]);
    assert_eq!(server.wait_mirror("added")["legs"], serde_json::json!(["c"]));
    assert_eq!(legs(&folder), in_sync(&["a", "b", "c"]));
    let ran = mirror(&folder, &["--remove", "a"]).ok();
    ran.says(&["m: 2 of 2 legs in sync"]).complains(&[
        "write over = [\"b\", \"c\"] for 'm' into the manifest",
        "`corewise remove a` closes the device",
    ]);
    assert_eq!(server.wait_mirror("removed")["legs"], serde_json::json!(["a"]));
    assert_eq!(legs(&folder), in_sync(&["b", "c"]));
    folder.corewise(["remove", "a"]).ok().says(&["removed device 'a'"]);
    folder.corewise(["remove", "c"]).code(1).complains(&["'m' needs 'c'"]);
    // A manifest without the change doesn't undo it.
    let ran = folder.corewise(["reload", "--mode", "hard"]).code(1);
    ran.complains(&["the legs of 'm' to [\"b\", \"c\"], but", "still says [\"a\", \"b\"]"]);
    let is = busy.stop();
    assert!(is.iter().filter(|n| **n != 0).count() > 10, "the client did nothing");
    server.stop().ok();
    assert!(data(&folder, "b") == data(&folder, "c"));

    for over in [&["a", "b"][..], &["a", "b", "c"], &["b", "c", "a"]] {
        folder.write("old.toml", manifest(over, ""));
        let ran = folder.corewise(["up", "old.toml"]).code(1);
        ran.complains(&["'a' was removed from this mirror, which has 2 legs. Leave 'a' out"]);
    }
    folder.write("up.toml", manifest(&["b", "c"], "") + &files(&["a"]));
    let server = Server::start(&folder, &["up.toml"]);
    assert_eq!(legs(&folder), in_sync(&["b", "c"]));
    has_all(&server.socket(), &is);
    mirror(&folder, &["--add", "a", "--wait"]).ok().says(&["m: 3 of 3 legs in sync"]);
    mirror(&folder, &["--remove", "b"]).ok();
    mirror(&folder, &["--remove", "c"]).ok();
    let why = "'a' is the only leg in sync";
    mirror(&folder, &["--remove", "a"]).code(1).complains(&[why]);
    has_all(&server.socket(), &is);
    server.stop().ok();
    folder.write("up.toml", manifest(&["a"], ""));
    let server = Server::start(&folder, &["up.toml"]);
    has_all(&server.socket(), &is);
    server.stop().ok();
}

#[test]
fn after_kill_9_amid_an_addition_the_mirror_is_right_with_the_disk_or_refused_without_it() {
    let folder = Folder::new();
    let (server, busy) = slow_beside_a_spare(&folder);
    mirror(&folder, &["--add", "c"]).ok();
    assert_eq!(legs(&folder)[2], ("c".to_string(), "resyncing".to_string()));
    server.kill();
    let is = busy.cut();
    let ran = folder.corewise(["up", "up.toml"]).code(1);
    ran.complains(&["the record of this mirror has 3 legs, but only 2 of them were given"]);
    let server = in_sync_over(&folder, &["a", "b", "c"]);
    assert_eq!(legs(&folder), in_sync(&["a", "b", "c"]));
    has_all(&server.socket(), &is);
    server.stop().ok();
    assert!(data(&folder, "a") == data(&folder, "c") && data(&folder, "b") == data(&folder, "c"));
}

#[test]
fn after_kill_9_behind_a_removal_the_leg_is_refused_and_the_others_are_right() {
    let folder = Folder::new();
    let server = in_sync_over(&folder, &["a", "b", "c"]);
    let busy = Busy::start(server.socket());
    mirror(&folder, &["--remove", "b"]).ok();
    assert_eq!(legs(&folder), in_sync(&["a", "c"]));
    server.kill();
    let is = busy.cut();
    let ran = folder.corewise(["up", "up.toml"]).code(1);
    ran.complains(&["'b' was removed from this mirror, which has 2 legs"]);
    let server = in_sync_over(&folder, &["a", "c"]);
    assert_eq!(legs(&folder), in_sync(&["a", "c"]));
    has_all(&server.socket(), &is);
    server.stop().ok();
    assert!(data(&folder, "a") == data(&folder, "c"));
}

#[test]
fn a_reload_has_a_leg_replaced_added_and_removed_as_the_manifest_says_while_a_client_goes_on() {
    let folder = Folder::new();
    let server = in_sync_over(&folder, &["a", "b"]);
    let busy = Busy::start(server.socket());
    let with = |over: &[&str], devices: &[&str]| {
        let mirror = manifest(over, "").split_off(files(over).len());
        folder.write("up.toml", files(devices) + &mirror);
    };
    with(&["a", "c"], &["a", "c"]);
    let would = folder.corewise(["reload", "--dry-run"]).ok();
    would.says(&[
        "would add device 'c'\nwould replace leg 'b' of device 'm' with 'c'\nwould remove device 'b'\n",
    ]);
    assert_eq!(legs(&folder), in_sync(&["a", "b"]));
    folder.corewise(["reload"]).ok().says(&["replaced leg 'b' of device 'm' with 'c'"]);
    mirror(&folder, &["--wait"]).ok();
    assert_eq!(legs(&folder), in_sync(&["a", "c"]));
    // This leg comes by a command, and the manifest undoes that.
    folder.write("d.toml", files(&["d"]));
    folder.corewise(["add", "d.toml"]).ok();
    mirror(&folder, &["--add", "d"]).ok();
    with(&["c", "b"], &["b", "c"]);
    let ran = folder.corewise(["reload"]).ok();
    ran.says(&["added device 'b'\nadded leg 'b' to device 'm'\nremoved leg 'a' of device 'm'\n\
         removed leg 'd' of device 'm'\n"]);
    mirror(&folder, &["--wait"]).ok();
    assert_eq!(legs(&folder), in_sync(&["c", "b"]));
    folder.corewise(["reload"]).ok().says(&["nothing to change"]);
    // The server refuses to take down a mirror that couldn't come up again.
    with(&["b", "c"], &["b", "c"]);
    for dry_run in [&["--dry-run"][..], &["--mode=hard"]] {
        let ran = folder.corewise([&["reload"], dry_run].concat()).code(1);
        ran.complains(&[
            "'m' would not come up again: the record of the mirror has the legs [\"c\", \"b\"]",
        ]);
    }
    with(&["c", "b"], &["b", "c"]);
    let is = busy.stop();
    assert!(is.iter().filter(|n| **n != 0).count() > 10, "the client did nothing");
    server.stop().ok();
    assert!(data(&folder, "b") == data(&folder, "c"));
    let server = Server::start(&folder, &["up.toml"]);
    assert_eq!(legs(&folder), in_sync(&["c", "b"]));
    has_all(&server.socket(), &is);
    server.stop().ok();
}

#[test]
fn a_leg_that_a_reload_can_not_have_leaves_the_mirror_as_it_was_and_is_told() {
    let folder = Folder::new();
    let server = in_sync_over(&folder, &["a", "b"]);
    let mirror = manifest(&["a", "c"], "").split_off(files(&["a", "c"]).len());
    let small = files(&["c"]).replace("\"8M\"", "\"4M\"");
    folder.write("up.toml", files(&["a"]) + &small + &mirror);
    let ran = folder.corewise(["reload"]).code(1);
    let ran =
        ran.says(&["added device 'c'"]).complains(&["'c' has ", "b: 'm' still needs this device"]);
    assert!(!ran.stdout.contains("leg"), "{}", ran.stdout);
    assert_eq!(legs(&folder), in_sync(&["a", "b"]));
    folder.write("up.toml", manifest(&["a", "b"], ""));
    folder.corewise(["reload"]).ok().says(&["removed device 'c'"]);
    server.stop().ok();
}

#[test]
fn a_disk_that_hangs_holds_a_change_of_its_mirror_up_only_as_on_hang_says_and_joins_when_it_answers()
 {
    let far = Folder::new();
    far.write("up.toml", files(&["c"]) + "[[export]]\ndevice = \"c\"\n[server]\nunix = \"s\"\n");
    let hangs = Server::start(&far, &["up.toml"]);
    let folder = Folder::new();
    let text = manifest(&["a", "b"], "probe_timeout = \"100ms\"");
    folder.write("up.toml", &text);
    let mut server = Server::start(&folder, &["up.toml"]);
    server.wait_mirror("resynced");
    // The device has to be up first, which may take any time.
    folder.write("up.toml", text.clone() + "on_hang = \"give-up\"\n");
    folder.corewise(["reload"]).ok();
    let uri = format!("nbd+unix:///c?socket={}", hangs.socket().display());
    let device = format!("[[device]]\nname = \"c\"\ndriver = \"nbd\"\nuri = \"{uri}\"\n");
    folder.write("c.toml", &device);
    folder.corewise(["add", "c.toml"]).ok();
    hangs.signal(Signal::STOP);
    let ran = mirror(&folder, &["--add", "c"]).code(1);
    ran.complains(&[
        "the change isn't done after 100 ms, and the server waits no longer ('on_hang')",
    ]);
    loop {
        let overdue = server.wait_event("overdue");
        if overdue["phase"] == "change" {
            assert_eq!(overdue["device"], "m");
            break;
        }
    }
    let goes_on = |name: &str| format!("an earlier change of '{name}' is still running; try again");
    mirror(&folder, &["--remove", "b"]).code(1).complains(&[&goes_on("m")]);
    folder.corewise(["remove", "c"]).code(1).complains(&[&goes_on("c")]);
    hangs.signal(Signal::CONT);
    loop {
        // The server reports it, and the manifest has to follow.
        let changed = server.wait_event("changed");
        if changed["notes"].to_string().contains("write over = ") {
            break;
        }
    }
    mirror(&folder, &["--wait"]).ok();
    assert_eq!(legs(&folder), in_sync(&["a", "b", "c"]));
    folder.corewise(["reload"]).code(1).complains(&["[\"a\", \"b\", \"c\"], but"]);
    mirror(&folder, &["--remove", "b"]).ok();
    server.stop().ok();
}
