//! Volumes of several parts, one of which is missing at a start that would create it.
#![allow(missing_docs, clippy::unwrap_used)]

use std::fs;

use crate::common::Folder;
use crate::common::client::{Client, TRIM, pattern};
use crate::common::server::Server;

const MIB: usize = 1 << 20;

/// Returns the manifest of `m`, with this driver, over three files that are created if they are
/// missing. `c` is below a delay of 0.
fn manifest(driver: &str) -> String {
    let file = |name: &str| {
        format!(
            "[[device]]\nname = \"{name}\"\ndriver = \"file\"\npath = \"{name}/{name}.img\"\n\
             size = \"8M\"\ncreate = true\n"
        )
    };
    ["a", "b", "c"].map(file).concat()
        + &format!(
            "[[device]]\nname = \"slow\"\ndriver = \"delay\"\nover = [\"c\"]\n\
             read_delay = \"0ms\"\n[[device]]\nname = \"m\"\n{driver}\n\
             [[export]]\ndevice = \"m\"\n[server]\nunix = \"s\"\n"
        )
}

/// Makes a folder with that volume, which begins with these bytes.
fn made(manifest: &str, bytes: &[u8]) -> Folder {
    let folder = Folder::new();
    ["a", "b", "c"].iter().for_each(|name| fs::create_dir(folder.join(name)).unwrap());
    folder.write("up.toml", manifest);
    let mut server = Server::start(&folder, &["up.toml"]);
    if manifest.contains("mirror") {
        server.wait_mirror("resynced");
    }
    Client::new(&server.socket(), "m").write(0, bytes, 0).unwrap();
    server.stop().ok();
    folder
}

/// Empties a folder, as a disk that is mounted late does.
fn unmount(folder: &Folder, name: &str) {
    fs::rename(folder.join(name), folder.join("away")).unwrap();
    fs::create_dir(folder.join(name)).unwrap();
}

fn mount(folder: &Folder, name: &str) {
    fs::remove_dir(folder.join(name)).unwrap();
    fs::rename(folder.join("away"), folder.join(name)).unwrap();
}

#[test]
fn a_new_first_leg_is_never_copied_over_a_leg_that_was_there() {
    for (first, over) in [("a", "\"a\", \"b\", \"slow\""), ("c", "\"slow\", \"b\", \"a\"")] {
        let text = manifest(&format!("driver = \"mirror\"\nbitmap = false\nover = [{over}]"));
        let folder = made(&text, &pattern(1, MIB));
        let before = fs::read(folder.join("b/b.img")).unwrap();
        unmount(&folder, first);
        // The files that a refused start or `--keep-going` leaves don't let the next start succeed.
        for args in [&["up.toml"][..], &["up.toml"], &["up.toml", "--keep-going"], &["up.toml"]] {
            let ran = folder.corewise(["up", "--for", "1ms"].iter().chain(args));
            ran.fails().complains(&["the first leg", "'b', which holds data", "name 'b' first"]);
            assert!(fs::read(folder.join("b/b.img")).unwrap() == before, "{args:?}");
        }
        let _ = fs::remove_file(folder.join(first).join(format!("{first}.img")));
        mount(&folder, first);
        let server = Server::start(&folder, &["up.toml"]);
        let found = Client::new(&server.socket(), "m").read(0, MIB as u32).unwrap();
        assert!(found == pattern(1, MIB));
        server.stop().ok();
    }
}

#[test]
fn another_leg_of_a_mirror_is_made_anew_and_gets_what_the_first_one_has() {
    let text = manifest("driver = \"mirror\"\nbitmap = false\nover = [\"a\", \"b\", \"slow\"]");
    let folder = made(&text, &pattern(2, MIB));
    fs::remove_file(folder.join("c/c.img")).unwrap();
    let mut server = Server::start(&folder, &["up.toml"]);
    server.wait_mirror("resynced");
    server.stop().ok();
    assert!(fs::read(folder.join("c/c.img")).unwrap()[..MIB] == pattern(2, MIB));
}

#[test]
fn a_stripe_is_not_served_with_a_part_that_is_new_beside_one_that_was_there() {
    for part in ["a", "c"] {
        let text = manifest("driver = \"stripe\"\nover = [\"a\", \"b\", \"slow\"]");
        let folder = made(&text, &pattern(3, MIB));
        unmount(&folder, part);
        for args in [&["up.toml"][..], &["up.toml", "--keep-going"]] {
            let ran = folder.corewise(["up", "--for", "1ms"].iter().chain(args));
            let name = if part == "c" { "slow" } else { "a" };
            ran.fails().complains(&[
                &format!("'{name}' would be new"),
                "is not: 'm' would lack",
                "is its disk mounted?",
            ]);
            let left = fs::read_dir(folder.join(part)).unwrap().count();
            assert_eq!(left, 0, "nothing was made");
        }
        mount(&folder, part);
        let server = Server::start(&folder, &["up.toml"]);
        let found = Client::new(&server.socket(), "m").read(0, MIB as u32).unwrap();
        assert!(found == pattern(3, MIB));
        server.stop().ok();
    }
}

#[test]
fn parts_that_are_served_already_are_not_new() {
    let all = manifest("driver = \"stripe\"\nover = [\"a\", \"b\", \"slow\"]");
    let (parts, volume) = all.split_at(all.find("[[device]]\nname = \"m\"").unwrap());
    // A reload adds the stripe, beside two parts that the running server has created.
    let (ab, _) = parts.split_at(parts.find("[[device]]\nname = \"c\"").unwrap());
    let export = "[[export]]\ndevice = \"a\"\n[server]\nunix = \"s\"\ncontrol = \"ctl\"\n";
    let folder = Folder::new();
    ["a", "b", "c"].iter().for_each(|name| fs::create_dir(folder.join(name)).unwrap());
    folder.write("up.toml", format!("{ab}{export}"));
    let server = Server::start(&folder, &["up.toml"]);
    let reload = |text: String| {
        folder.write("up.toml", &text);
        folder.corewise(["reload", "--control", &server.control().to_string_lossy()])
    };
    Client::new(&server.socket(), "a").write(0, &pattern(4, MIB), 0).unwrap();
    let volume = volume.replace("unix = \"s\"\n", "unix = \"s\"\ncontrol = \"ctl\"\n");
    reload(format!("{parts}{volume}")).fails().complains(&["'slow' would be new", "'a'"]);
    assert_eq!(fs::read_dir(folder.join("c")).unwrap().count(), 0, "nothing was made");
    // If no part has data, nothing is missing.
    reload(format!("{ab}{export}")).ok();
    Client::new(&server.socket(), "a").command(TRIM, 0, 8 << 20).unwrap();
    reload(format!("{parts}{volume}")).ok();
    server.stop().ok();
}
