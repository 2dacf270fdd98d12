//! The flush file of a volume in a store: damaged, emptied or deleted when its server starts again,
//! and while it is in use.
#![allow(missing_docs, clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::Folder;
use crate::common::client::{Client, pattern};
use crate::common::server::Server;
use crate::watching::{metrics_of, scrape};

const BLOCK: usize = 4096;
const FLUSHED: u64 = 10;

/// Returns the manifest of a volume in the folder `store` with the flush file `flushes`. `keys` are
/// more keys of the device.
fn manifest(folder: &Folder, keys: &str) -> String {
    format!(
        "[[device]]\nname = \"v\"\ndriver = \"object\"\nlocation = \"file://{}\"\nsize = \"16M\"\nlease = \"100ms\"\n\
         flush = \"local\"\nflush_file = \"flushes\"\n{keys}\n[[export]]\ndevice = \"v\"\n",
        folder.join("store").display()
    )
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (from, to) = {
            let entry = entry.unwrap();
            (entry.path(), to.join(entry.file_name()))
        };
        match from.is_dir() {
            true => copy(&from, &to),
            false => assert!(fs::copy(&from, &to).is_ok()),
        }
    }
}

/// Flushes writes one by one, and kills the server before the store has them.
fn flush_and_kill(server: Server) {
    let mut client = Client::new(&server.socket(), "v");
    for n in 1..=FLUSHED {
        client.write(n * BLOCK as u64, &pattern(n, BLOCK), 0).unwrap();
        client.flush().unwrap();
    }
    server.kill();
}

/// Returns the number of flushed writes that are there.
fn kept(server: &Server) -> usize {
    let mut client = Client::new(&server.socket(), "v");
    let is_there =
        |n: &u64| client.read(n * BLOCK as u64, BLOCK as u32).unwrap() == pattern(*n, BLOCK);
    (1..=FLUSHED).filter(is_there).count()
}

fn flip(path: &Path, at: u64) {
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

#[test]
fn a_flush_file_that_lost_what_was_flushed_is_refused_and_one_damaged_head_loses_nothing() {
    let folder = Folder::new();
    folder.write("up.toml", manifest(&folder, ""));
    // An orderly session first, so both heads have had another content.
    Server::start(&folder, &["up.toml"]).stop().ok();
    flush_and_kill(Server::start(&folder, &["up.toml"]));
    let file = folder.join("flushes");
    copy(&folder.join("store"), &folder.join("store.killed"));
    fs::copy(&file, folder.join("flushes.killed")).unwrap();
    let again = |damage: &dyn Fn(&Path)| {
        fs::remove_dir_all(folder.join("store")).unwrap();
        copy(&folder.join("store.killed"), &folder.join("store"));
        fs::copy(folder.join("flushes.killed"), &file).unwrap();
        damage(&file);
    };
    for head in [0, 4096] {
        again(&|file| flip(file, head + 20));
        let server = Server::start(&folder, &["up.toml"]);
        assert_eq!(kept(&server), FLUSHED as usize, "head at {head}");
        server.stop().ok();
    }
    let zero = |file: &Path| {
        let len = fs::metadata(file).unwrap().len();
        let file = fs::File::options().write(true).open(file).unwrap();
        file.set_len(0).unwrap();
        file.set_len(len).unwrap();
    };
    let cut = |file: &Path| {
        fs::File::options().write(true).open(file).unwrap().set_len(0).unwrap();
    };
    let both = |file: &Path| [20, 4096 + 20].iter().for_each(|at| flip(file, *at));
    let last = |file: &Path| flip(file, 8192 + (FLUSHED - 1) * (BLOCK as u64 + 80) + 99);
    let remove = |file: &Path| fs::remove_file(file).unwrap();
    let damages: [&dyn Fn(&Path); 5] = [&zero, &cut, &remove, &both, &last];
    let words = ["is new or empty"; 3].into_iter();
    let words = words.chain(["has two damaged heads", "the changes from 10 to 10 are missing"]);
    for (damage, words) in damages.into_iter().zip(words) {
        again(damage);
        let was = fs::metadata(&file).map(|meta| meta.len()).ok();
        folder.write("up.toml", manifest(&folder, ""));
        let ran = folder.corewise(["up", "up.toml", "--for", "1ms"]);
        ran.code(1).complains(&["flushes", words, "accept_lost_flushes = "]);
        assert_eq!(fs::metadata(&file).map(|meta| meta.len()).ok(), was, "it is left alone");
    }
    // The error names the key that gives up the lost flushes.
    let ran = folder.corewise(["up", "up.toml", "--for", "1ms"]);
    let accepted = accept_lost_flushes(&ran.stderr);
    folder.write("up.toml", manifest(&folder, &accepted));
    let ran = folder.corewise(["up", "up.toml", "--for", "1ms"]).ok();
    ran.complains(&["given up from this number on", "from=10"]);
    let server = Server::start(&folder, &["up.toml"]);
    assert_eq!(kept(&server), FLUSHED as usize - 1);
    // Only the past was given up.
    flush_and_kill(server);
    remove(&file);
    folder.corewise(["up", "up.toml", "--for", "1ms"]).code(1).complains(&["is new or empty"]);
    let without = manifest(&folder, "").replace("flush = \"local\"\nflush_file = \"flushes\"", "");
    folder.write("up.toml", without);
    folder
        .corewise(["up", "up.toml", "--for", "1ms"])
        .code(1)
        .complains(&["no flush file was given"]);
}

/// Returns the key with its value that the error of a refused start names.
fn accept_lost_flushes(error: &str) -> String {
    let (_, value) = error.split_once("accept_lost_flushes = \"").unwrap();
    format!("accept_lost_flushes = \"{}\"", value.split_once('"').unwrap().0)
}

#[test]
fn what_was_accepted_of_one_volume_gives_up_nothing_of_another_one_that_is_made_in_its_place() {
    let folder = Folder::new();
    folder.write("up.toml", manifest(&folder, ""));
    flush_and_kill(Server::start(&folder, &["up.toml"]));
    fs::remove_file(folder.join("flushes")).unwrap();
    let ran = folder.corewise(["up", "up.toml", "--for", "1ms"]);
    let accepted = accept_lost_flushes(&ran.stderr);
    folder.write("up.toml", manifest(&folder, &accepted));
    Server::start(&folder, &["up.toml"]).stop().ok();
    // The first record of the new volume has the same number.
    fs::remove_dir_all(folder.join("store")).unwrap();
    fs::remove_file(folder.join("flushes")).unwrap();
    flush_and_kill(Server::start(&folder, &["up.toml"]));
    fs::remove_file(folder.join("flushes")).unwrap();
    let ran = folder.corewise(["up", "up.toml", "--for", "1ms"]).code(1);
    let asked = accept_lost_flushes(&ran.stderr);
    let record = |accepted: &str| accepted.split_once('-').unwrap().0.to_owned();
    assert_eq!(record(&asked), record(&accepted));
    assert_ne!(asked, accepted);
}

/// Name of a kind of damage in messages, and a function that damages the file.
struct Harm<'a>(&'static str, &'a dyn Fn(&Path));

#[test]
fn a_flush_that_was_answered_is_there_whatever_became_of_the_flush_file_while_it_was_in_use() {
    let resized = |file: &Path, len| {
        fs::File::options().write(true).open(file).unwrap().set_len(len).unwrap();
    };
    let harms: [Harm; 7] = [
        Harm("unlinked", &|file| fs::remove_file(file).unwrap()),
        Harm("leads to no file", &|file| fs::rename(file, file.with_extension("old")).unwrap()),
        Harm("unlinked", &|file| {
            let new = file.with_extension("new");
            fs::write(&new, "").unwrap();
            fs::rename(&new, file).unwrap();
        }),
        Harm("leads to another file", &|file| {
            fs::rename(file, file.with_extension("old")).unwrap();
            fs::write(file, "").unwrap();
        }),
        Harm("truncated", &|file| resized(file, 0)),
        Harm("truncated", &|file| resized(file, 1 << 20)),
        Harm("overwritten", &|file| {
            let file = fs::File::options().write(true).open(file).unwrap();
            file.write_all_at(&[0; 65536], 0).unwrap();
        }),
    ];
    for Harm(words, harm) in harms {
        let folder = Folder::new();
        folder.write("up.toml", manifest(&folder, ""));
        let mut server = Server::start(&folder, &["up.toml"]);
        let mut client = Client::new(&server.socket(), "v");
        client.write(0, &pattern(99, BLOCK), 0).unwrap();
        client.flush().unwrap();
        harm(&folder.join("flushes"));
        client.write(BLOCK as u64, &pattern(1, BLOCK), 0).unwrap();
        client.flush().unwrap();
        let event = server.wait_event("object");
        assert_eq!((&event["what"], &event["device"]), (&"flush_file_out".into(), &"v".into()));
        assert!(event["why"].as_str().unwrap().contains(words), "{event}");
        flush_and_kill(server);
        let server = Server::start(&folder, &["up.toml"]);
        assert_eq!(kept(&server), FLUSHED as usize, "{words}");
        let mut client = Client::new(&server.socket(), "v");
        assert!(client.read(0, BLOCK as u32).unwrap() == pattern(99, BLOCK), "{words}");
        server.stop().ok();
    }
}

#[test]
fn a_flush_file_that_is_out_is_told_everywhere_and_used_again_once_it_is_back() {
    let folder = Folder::new();
    folder.write(
        "up.toml",
        manifest(&folder, "").replace("[[export]]", "[server]\nmetrics = \"m/s\"\n[[export]]"),
    );
    fs::create_dir(folder.join("m")).unwrap();
    let mut server = Server::start(&folder, &["up.toml"]);
    let mut client = Client::new(&server.socket(), "v");
    let displaced = || {
        let dump = folder.dump();
        let curl = ["--unix-socket", "m/s", "http://localhost/metrics"];
        let expected = u8::from(dump["disks"][0]["displaced"] == true);
        let expected = format!("corewise_volume_displaced{{volume=\"v\"}} {expected}\n");
        // The metrics may be a tenth of a second old.
        while !folder.client("curl", curl).ok().stdout.contains(&expected) {}
        (dump["disks"][0]["displaced"] == true, dump["disks"][0]["condition"].clone())
    };
    assert!(!displaced().0);
    fs::rename(folder.join("flushes"), folder.join("away")).unwrap();
    client.write(0, &pattern(1, BLOCK), 0).unwrap();
    client.flush().unwrap();
    assert_eq!(server.wait_event("object")["what"], "flush_file_out");
    let (is, condition) = displaced();
    let condition = condition.as_str().unwrap().to_owned();
    assert!(is && condition.contains("flushes wait for the store") && condition.contains("away"));
    folder.corewise(["dump"]).ok().says(&["flushes wait for the store: the flush file "]);
    folder.corewise(["health"]).code(3).says(&["degraded", "away. Put the file back in its place"]);
    fs::rename(folder.join("away"), folder.join("flushes")).unwrap();
    assert_eq!(server.wait_event("object")["what"], "flush_file_back");
    assert!(!displaced().0);
    let ran = server.stop().ok();
    let told: Vec<_> =
        ran.stderr.lines().filter(|l| l.contains("no longer uses the flush file")).collect();
    assert!(told.len() == 1 && told[0].contains("leads to no file"), "{ran}");
}

#[test]
fn a_store_that_takes_no_writes_is_told_of_within_seconds_and_gets_what_waited() {
    for local in [true, false] {
        let folder = Folder::new();
        let mut device = manifest(&folder, "request_timeout = \"2s\"");
        if !local {
            device = device.replace("flush = \"local\"\nflush_file = \"flushes\"", "");
        }
        folder.write("up.toml", format!("[server]\nmetrics = 0\n{device}"));
        let mut server = Server::start(&folder, &["up.toml"]);
        let control = server.control().display().to_string();
        let health = || folder.corewise(["health", "--control", &control]);
        // A file in the place of the segments' folder: each write of a segment fails, whatever the
        // user may do.
        let segments = folder.join("store/seg");
        fs::write(&segments, "").unwrap();
        let mut client = Client::new(&server.socket(), "v");
        client.write(0, &pattern(1, 1 << 20), 0).unwrap();
        assert_eq!(client.flush().is_ok(), local);
        let event = server.wait_event("object");
        assert_eq!((&event["device"], &event["what"]), (&"v".into(), &"unwritable".into()));
        let alone = ["flushes fail until they are", "are only in the flush file"];
        health().code(if local { 3 } else { 4 }).says(&[
            "v: the store has taken no writes since 20",
            "1048576 bytes wait to be sent",
            alone[usize::from(local)],
            "Repair the store",
        ]);
        let metrics = scrape(&metrics_of(&server));
        assert!(metrics.contains("corewise_store_writable{volume=\"v\"} 0"), "{metrics}");
        assert!(
            metrics.contains("corewise_store_waiting_bytes{volume=\"v\"} 1048576"),
            "{metrics}"
        );
        fs::remove_file(&segments).unwrap();
        let event = server.wait_event("object");
        assert_eq!(event["what"], "writable", "{event}");
        client.flush().unwrap();
        let metrics = scrape(&metrics_of(&server));
        assert!(metrics.contains("corewise_store_writable{volume=\"v\"} 1"), "{metrics}");
        let ran = server.stop().ok();
        for told in ["the object store takes no writes: ", "the object store takes writes again"] {
            assert_eq!(ran.stderr.matches(told).count(), 1, "{told}: {ran}");
        }
    }
}

#[test]
fn a_leg_whose_flushes_were_given_up_is_restored_from_the_other_leg() {
    for bitmap in [true, false] {
        let folder = Folder::new();
        let stack = |keys: &str, over: &str| {
            let object = manifest(&folder, keys).replace("[[export]]\ndevice = \"v\"\n", "");
            format!(
                "{object}[[device]]\nname = \"b\"\ndriver = \"file\"\npath = \"b.img\"\nsize = \"16M\"\n\
                 create = true\n[[device]]\nname = \"m\"\ndriver = \"mirror\"\nover = {over}\n\
                 bitmap = {bitmap}\n[[export]]\ndevice = \"m\"\nname = \"v\"\n"
            )
        };
        folder.write("up.toml", stack("", "[\"v\", \"b\"]"));
        let mut server = Server::start(&folder, &["up.toml"]);
        server.wait_mirror("resynced");
        server.stop().ok();
        flush_and_kill(Server::start(&folder, &["up.toml"]));
        fs::remove_file(folder.join("flushes")).unwrap();
        let ran = folder.corewise(["up", "up.toml", "--for", "1ms"]).code(1);
        assert!(ran.stderr.contains("its mirror copies it in full"), "{ran}");
        let accepted = accept_lost_flushes(&ran.stderr);
        folder.write("up.toml", stack(&accepted, "[\"v\", \"b\"]"));
        if !bitmap {
            // The second start fails too, when the flushes are already given up.
            for _ in 0..2 {
                let ran = folder.corewise(["up", "up.toml", "--for", "1ms"]);
                ran.code(1).complains(&["'v' lacks changes", "name 'b' first"]);
            }
            folder.write("up.toml", stack(&accepted, "[\"b\", \"v\"]"));
        }
        let server = Server::start(&folder, &["up.toml"]);
        assert_eq!(kept(&server), FLUSHED as usize, "bitmap {bitmap}");
        server.stop().ok();
        let server = Server::start(&folder, &["up.toml"]);
        assert_eq!(kept(&server), FLUSHED as usize, "bitmap {bitmap}");
        server.stop().ok();
    }
}

#[test]
fn a_store_that_is_not_mounted_keeps_the_flush_file_and_leaves_no_folder() {
    let folder = Folder::new();
    folder.write("up.toml", manifest(&folder, ""));
    flush_and_kill(Server::start(&folder, &["up.toml"]));
    fs::rename(folder.join("store"), folder.join("away")).unwrap();
    let ran = folder.corewise(["up", "up.toml", "--for", "1ms"]).code(1);
    ran.complains(&["is its store mounted?", "has 10 changes", "Keep the file"]);
    assert!(!folder.join("store").exists());
    fs::rename(folder.join("away"), folder.join("store")).unwrap();
    let server = Server::start(&folder, &["up.toml"]);
    assert_eq!(kept(&server), FLUSHED as usize);
    server.stop().ok();
}
