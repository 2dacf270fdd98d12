//! Checkpoints and backups: by the program, and by clients that know QEMU's dirty bitmaps.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::PathBuf;

use serde_json::Value;

use crate::common::client::{Client, FUA, pattern};
use crate::common::server::Server;
use crate::common::{Folder, file};

const SIZE: usize = 8 << 20;
const BLOCK: usize = 64 << 10;
const VIRTNBDBACKUP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/virtnbdbackup.py");

fn manifest(keys: &str) -> String {
    file("data", "8M")
        + "[[device]]\nname = \"disk\"\ndriver = \"checkpoint\"\nover = [\"data\"]\n"
        + "path = \"disk.checkpoints\"\n"
        + keys
        + "\n[[export]]\ndevice = \"disk\"\n"
}

fn start(folder: &Folder, keys: &str) -> Server {
    folder.write("up.toml", manifest(keys));
    Server::start(folder, &["up.toml"])
}

fn write(client: &mut Client, block: usize, seed: u64) {
    client.write((block * BLOCK) as u64, &pattern(seed, 4096), FUA).unwrap();
}

fn list(folder: &Folder) -> Vec<Value> {
    let ran = folder.corewise(["checkpoint", "disk", "--list", "--json"]).ok();
    ran.json()["checkpoints"].as_array().unwrap().clone()
}

/// Returns the blocks that changed since a checkpoint, as `nbdinfo` sees them.
fn changed(folder: &Folder, server: &Server, checkpoint: &str) -> Vec<usize> {
    let map = format!("--map=qemu:dirty-bitmap:{checkpoint}");
    let ran = folder.client("nbdinfo", ["--json", &map, &server.uri("disk")]).ok();
    let extents = ran.json();
    let mut blocks = Vec::new();
    for extent in extents.as_array().unwrap() {
        let number = |key: &str| extent[key].as_u64().unwrap() as usize;
        let (from, len) = (number("offset") / BLOCK, number("length") / BLOCK);
        if number("type") == 1 {
            blocks.extend(from..from + len);
        }
    }
    blocks
}

#[test]
fn clients_see_what_changed_since_each_checkpoint_and_it_outlives_the_server() {
    let folder = Folder::new();
    let mut server = start(&folder, "");
    let mut client = Client::new(&server.socket(), "disk");
    write(&mut client, 0, 1);
    folder.corewise(["checkpoint", "disk", "mon"]).ok().says(&["took checkpoint 'mon' of 'disk'"]);
    let event = server.wait_event("checkpoint");
    assert_eq!((&event["what"], &event["checkpoint"]), (&"taken".into(), &"mon".into()));
    write(&mut client, 3, 2);
    folder.corewise(["checkpoint", "disk", "mon"]).fails().complains(&["'mon' already"]);
    folder.corewise(["checkpoint", "disk", "tue"]).ok();
    write(&mut client, 100, 3);
    assert_eq!(changed(&folder, &server, "mon"), [3, 100]);
    assert_eq!(changed(&folder, &server, "tue"), [100]);
    let ran = folder.client("nbdinfo", ["--list", "--json", &server.uri("")]).ok();
    let contexts = ran.json()["exports"][0]["contexts"].to_string();
    assert!(contexts.contains("qemu:dirty-bitmap:mon"), "{contexts}");
    assert!(contexts.contains("base:allocation"), "{contexts}");
    // qemu-img calls unchanged blocks data.
    let options = format!(
        "driver=nbd,server.type=unix,server.path={},export=disk,x-dirty-bitmap=qemu:dirty-bitmap:tue",
        server.socket().display()
    );
    let ran = folder.client("qemu-img", ["map", "--output=json", "--image-opts", &options]).ok();
    let map = ran.json();
    let dirty: Vec<_> = map.as_array().unwrap().iter().filter(|one| one["data"] == false).collect();
    assert_eq!(dirty.len(), 1, "{ran}");
    assert_eq!(dirty[0]["start"], 100 * BLOCK);
    let all = list(&folder);
    assert_eq!((&all[0]["name"], &all[0]["changed"]), (&"mon".into(), &(2 * BLOCK).into()));
    assert_eq!(all[1]["readable"], false);
    drop(client);
    server.stop().ok();
    let server = Server::start(&folder, &["up.toml"]);
    assert_eq!(changed(&folder, &server, "mon"), [3, 100], "exact after a clean stop");
    let mut client = Client::new(&server.socket(), "disk");
    write(&mut client, 20, 4);
    server.kill();
    let server = Server::start(&folder, &["up.toml"]);
    let found = changed(&folder, &server, "tue");
    assert!(found.contains(&20) && found.contains(&100), "{found:?}");
    assert!(found.len() <= 17, "after a kill, the group of the change counts: {found:?}");
    folder.corewise(["checkpoint", "disk", "--delete", "mon"]).ok().says(&["deleted"]);
    folder.corewise(["checkpoint", "disk", "--delete", "mon"]).fails().complains(&["'mon'"]);
    folder
        .corewise(["checkpoint", "data"])
        .fails()
        .complains(&["the driver 'file'", "over 'data'"]);
    folder.corewise(["checkpoint", "disk"]).ok().says(&["took checkpoint '3'"]);
    folder.corewise(["checkpoint", "disk", "--list"]).ok().says(&["tue", "0 B"]);
    server.stop().ok();
}

#[test]
fn the_newest_checkpoint_is_an_export_until_the_next_one_or_until_its_room_is_used_up() {
    let folder = Folder::new();
    let mut server = start(&folder, "copies = \"1M\"");
    let mut client = Client::new(&server.socket(), "disk");
    (0..20).for_each(|block| write(&mut client, block, 1));
    folder.corewise(["checkpoint", "disk", "a"]).ok();
    (0..10).for_each(|block| write(&mut client, block, 2));
    let mut image = Client::new(&server.socket(), "disk@a");
    for block in 0..20 {
        let found = image.read((block * BLOCK) as u64, 4096).unwrap();
        assert!(found == pattern(1, 4096), "block {block}");
    }
    assert!(image.write(0, &[1; 512], 0).is_err(), "it is read-only");
    folder.corewise(["checkpoint", "disk", "b"]).ok();
    assert!(image.is_closed(), "'a' can't be read any more");
    let mut image = Client::new(&server.socket(), "disk@b");
    assert!(image.read(0, 4096).unwrap() == pattern(2, 4096));
    assert!(folder.join("disk.checkpoints.copies").exists());
    (0..17).for_each(|block| write(&mut client, 40 + block, 3));
    let event = server.wait_event("checkpoint");
    let event = if event["what"] == "taken" { server.wait_event("checkpoint") } else { event };
    let event = if event["what"] == "taken" { server.wait_event("checkpoint") } else { event };
    assert_eq!((&event["what"], &event["checkpoint"]), (&"image_ended".into(), &"b".into()));
    assert!(event["why"].as_str().unwrap().contains("were used up"), "{event}");
    assert!(image.read(0, 4096).is_err());
    assert!(client.read(0, 4096).unwrap() == pattern(2, 4096), "the device goes on");
    assert_eq!(changed(&folder, &server, "b").len(), 17);
    assert!(list(&folder).iter().all(|one| one["readable"] == false));
    drop((client, image));
    server.stop().ok();
    assert!(!folder.join("disk.checkpoints.copies").exists());
}

#[test]
fn the_library_of_virtnbdbackup_reads_what_changed_at_a_checkpoint() {
    let folder = Folder::new();
    let server = start(&folder, "copies = \"1M\"");
    let mut client = Client::new(&server.socket(), "disk");
    folder.corewise(["checkpoint", "disk", "a"]).ok();
    write(&mut client, 5, 1);
    write(&mut client, 6, 2);
    write(&mut client, 90, 3);
    folder.corewise(["checkpoint", "disk", "b"]).ok();
    let then = client.read(0, SIZE as u32).unwrap();
    write(&mut client, 5, 4);
    let socket = server.socket().display().to_string();
    let ran = folder.client("/usr/bin/python3", [VIRTNBDBACKUP, &socket, "disk@b", "a"]).ok();
    let mut found = Vec::new();
    for line in ran.stdout.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let (offset, len): (usize, usize) = (words[0].parse().unwrap(), words[1].parse().unwrap());
        found.push((offset / BLOCK, len / BLOCK));
        folder.write("extent", &then[offset..offset + len]);
        let sum = folder.client("sha256sum", ["extent"]).ok();
        assert!(sum.stdout.starts_with(words[2]), "the content is that of the checkpoint: {ran}");
    }
    assert_eq!(found, [(5, 2), (90, 1)]);
    drop(client);
    server.stop().ok();
}

#[test]
fn a_random_chain_of_backups_restores_what_was_there_at_each() {
    let folder = Folder::new();
    let server = start(&folder, "copies = \"8M\"");
    let mut client = Client::new(&server.socket(), "disk");
    let mut rng = fastrand::Rng::with_seed(7);
    let mut content = vec![0; SIZE];
    let mut chain: Vec<String> = Vec::new();
    for round in 0..8 {
        for _ in 0..rng.usize(1..12) {
            let len = rng.usize(1..40) * 4096;
            let at = rng.usize(0..(SIZE - len) / 512) * 512;
            let data = if rng.u8(0..4) == 0 { vec![0; len] } else { pattern(rng.u64(..), len) };
            client.write(at as u64, &data, 0).unwrap();
            content[at..at + len].copy_from_slice(&data);
        }
        let (to, name) = (format!("{round}.backup"), format!("c{round}"));
        let mut args = vec!["backup", "disk", "--to", &to, "--checkpoint", &name];
        let former = format!("c{}", round.max(1) - 1);
        if round == 0 || rng.u8(0..4) == 0 {
            chain.clear();
        } else {
            args.extend(["--since", &former]);
        }
        folder.corewise(args).ok().says(&["backed up", &name]);
        chain.push(to);
        // The present content is another one already.
        client.write(0, &pattern(round as u64, 4096), 0).unwrap();
        let restored = format!("{round}.img");
        let mut args = vec!["restore"];
        args.extend(chain.iter().map(String::as_str));
        folder.corewise(args.clone()).ok().says(&["verified 8 MiB"]);
        args.extend(["--to", &restored]);
        folder.corewise(args).ok().says(&["restored 8 MiB at checkpoint", &name]);
        assert!(std::fs::read(folder.join(&restored)).unwrap() == content, "round {round}");
        content[..4096].copy_from_slice(&pattern(round as u64, 4096));
    }
    // An export is filled as well.
    folder.write("more.toml", file("other", "8M") + "[[export]]\ndevice = \"other\"\n");
    folder.corewise(["add", "more.toml"]).ok();
    let uri = server.uri("other");
    let mut args = vec!["restore"];
    args.extend(chain.iter().map(String::as_str));
    args.extend(["--to", &uri]);
    folder.corewise(args).ok();
    let mut other = Client::new(&server.socket(), "other");
    let last = std::fs::read(folder.join("7.img")).unwrap();
    assert!(other.read(0, SIZE as u32).unwrap() == last);
    drop((client, other));
    server.stop().ok();
}

#[test]
fn a_backup_that_is_interrupted_continues_and_one_that_is_damaged_or_out_of_order_is_refused() {
    let folder = Folder::new();
    let server = start(&folder, "copies = \"8M\"");
    let mut client = Client::new(&server.socket(), "disk");
    let data = pattern(1, SIZE);
    for (n, piece) in data.chunks(1 << 20).enumerate() {
        client.write((n << 20) as u64, piece, 0).unwrap();
    }
    let path = |name: &str| -> PathBuf { folder.join(name) };
    folder.corewise(["backup", "disk", "--to", "a", "--checkpoint", "a"]).ok();
    folder.corewise(["backup", "disk", "--to", "a"]).fails().complains(&["exists"]);
    // The end and a part of the data are missing, as a kill leaves it.
    let whole = std::fs::read(path("a")).unwrap();
    std::fs::write(path("b.partial"), &whole[..whole.len() / 2]).unwrap();
    client.write(0, &pattern(9, 1 << 20), 0).unwrap();
    folder
        .corewise(["backup", "disk", "--to", "b", "--since", "a"])
        .fails()
        .complains(&["begun with no --since, and this command has --since a", "b.partial"]);
    folder
        .corewise(["backup", "disk", "--to", "b", "--checkpoint", "z"])
        .fails()
        .complains(&["begun with --checkpoint a, and this command has --checkpoint z"]);
    folder.corewise(["backup", "disk", "--to", "b"]).ok().says(&["checkpoint 'a'"]);
    assert!(std::fs::read(path("b")).unwrap() == whole, "the same backup");
    assert!(!path("b.partial").exists());
    folder.corewise(["backup", "disk", "--to", "c", "--checkpoint", "c", "--since", "a"]).ok();
    std::fs::write(path("d.partial"), &whole[..4096]).unwrap();
    folder.corewise(["backup", "disk", "--to", "d"]).fails().complains(&["can't be read any more"]);
    folder
        .corewise(["backup", "disk", "--to", "e", "--since", "x"])
        .fails()
        .complains(&["no checkpoint 'x'", "it has a, c"]);
    // Restores that can't be right.
    folder.corewise(["restore", "c", "--to", "i"]).fails().complains(&["only the changes since"]);
    folder.corewise(["restore", "a", "b", "--to", "i"]).fails().complains(&["a full backup"]);
    folder.corewise(["backup", "disk", "--to", "f", "--checkpoint", "f", "--since", "c"]).ok();
    folder.corewise(["restore", "a", "f", "--to", "i"]).fails().complains(&["of 'a'"]);
    folder.corewise(["restore", "a", "d.partial"]).fails().complains(&["incomplete"]);
    let mut bad = whole.clone();
    bad[whole.len() / 2] ^= 1;
    std::fs::write(path("bad"), &bad).unwrap();
    let restore_bad = || folder.corewise(["restore", "bad", "--to", "i"]).fails();
    restore_bad().complains(&["checksum", "i.partial' has what was restored", "Remove it"]);
    assert!(!path("i").exists());
    restore_bad().complains(&["i.partial': the file exists", "remove it"]);
    std::fs::remove_file(path("i.partial")).unwrap();
    folder.corewise(["restore", "a", "c", "f", "--to", "j"]).ok();
    assert!(!path("j.partial").exists());
    let found = std::fs::read(path("j")).unwrap();
    assert!(found[..1 << 20] == pattern(9, 1 << 20) && found[1 << 20..] == data[1 << 20..]);
    drop(client);
    server.stop().ok();
}

#[test]
fn a_backup_whose_checkpoint_was_taken_anew_under_the_same_name_is_not_continued() {
    let folder = Folder::new();
    let server = start(&folder, "copies = \"8M\"");
    folder.corewise(["checkpoint", "disk", "a"]).ok();
    folder.corewise(["backup", "disk", "--to", "b", "--checkpoint", "b", "--since", "a"]).ok();
    let whole = std::fs::read(folder.join("b")).unwrap();
    // The time of 'a' is another one: the backup is as one of last year.
    let mut begun = whole.clone();
    begun[32] ^= 1;
    begun[8..12].fill(0);
    let checksum = crc32fast::hash(&begun[..512]);
    begun[8..12].copy_from_slice(&checksum.to_le_bytes());
    std::fs::write(folder.join("c.partial"), &begun[..512]).unwrap();
    folder
        .corewise(["backup", "disk", "--to", "c", "--since", "a"])
        .fails()
        .complains(&["'a' is another checkpoint by now", "c.partial"]);
    server.stop().ok();
}

#[test]
fn a_backup_says_why_its_checkpoint_ended_and_health_says_so_until_it_is_deleted() {
    let folder = Folder::new();
    let server = start(&folder, "copies = \"1M\"");
    let mut client = Client::new(&server.socket(), "disk");
    for n in 0..8 {
        client.write(n << 20, &pattern(n, 1 << 20), 0).unwrap();
    }
    std::thread::scope(|scope| {
        // A piece of 1 MiB each 4 seconds.
        let args = ["backup", "disk", "--to", "b", "--checkpoint", "c", "--rate", "256K"];
        let folder = &folder;
        let backup = scope.spawn(move || folder.corewise(args));
        while !folder.join("b.partial").exists() {
            std::thread::yield_now();
        }
        (0..17).for_each(|block| write(&mut client, block, 9));
        backup.join().unwrap().fails().complains(&[
            "'c': the checkpoint can't be read any more: 1048576 bytes of copies were used up",
            "b.partial'",
            "corewise checkpoint disk --delete c",
        ]);
    });
    folder
        .corewise(["backup", "disk", "--to", "b"])
        .fails()
        .complains(&["were used up", "remove that file"]);
    let ran = folder.corewise(["health"]).code(3);
    ran.says(&["checkpoint 'c' can't be read any more: 1048576 bytes", "--delete c"]);
    folder.corewise(["checkpoint", "disk", "--delete", "c"]).ok();
    folder.corewise(["health"]).code(0);
    folder.corewise(["backup", "disk", "--to", "b"]).fails().complains(&["'c' was deleted"]);
    drop(client);
    server.stop().ok();
}

#[test]
fn an_export_with_other_clients_is_overwritten_only_by_force() {
    let folder = Folder::new();
    folder.write("more.toml", file("other", "8M") + "[[export]]\ndevice = \"other\"\n");
    let server = start(&folder, "copies = \"8M\"");
    folder.corewise(["add", "more.toml"]).ok();
    folder.corewise(["backup", "disk", "--to", "b"]).ok();
    let uri = server.uri("other");
    let mut client = Client::new(&server.socket(), "other");
    client.write(0, &pattern(1, 4096), 0).unwrap();
    let process = format!("process {})", std::process::id());
    folder.corewise(["restore", "b", "--to", &uri]).fails().complains(&[
        "in use by client",
        &process,
        "--force",
    ]);
    assert!(client.read(0, 4096).unwrap() == pattern(1, 4096));
    folder.corewise(["restore", "b", "--to", &uri, "--force"]).ok();
    assert!(client.read(0, 4096).unwrap() == [0; 4096]);
    drop(client);
    server.stop().ok();
}

#[cfg(feature = "tls")]
#[test]
fn a_server_that_requires_tls_is_backed_up_and_filled_over_tls() {
    let folder = Folder::new();
    crate::common::pki::Pki::new().server(&folder);
    let keys = "[server]\nunix = \"s\"\ntcp = 0\ntls = \"require\"\n\
                tls_certificate = \"server/cert.pem\"\ntls_key = \"server/key.pem\"\n";
    let other = file("other", "8M") + "[[export]]\ndevice = \"other\"\n";
    folder.write("up.toml", keys.to_string() + &manifest("copies = \"8M\"") + &other);
    let server = Server::start(&folder, &["up.toml"]);
    folder.corewise(["backup", "disk", "--to", "a"]).fails();
    folder.corewise(["checkpoint", "disk", "b"]).ok();
    let ca = ["--ca", "server/ca.pem"];
    let since = ["backup", "disk", "--to", "b", "--since", "b", "--tls-hostname", "localhost"];
    let full = ["backup", "disk", "--to", "a", "--tls-hostname", "localhost"];
    for args in [&full[..], &since] {
        folder.corewise(args.iter().chain(&ca)).ok();
    }
    let uri = format!("nbds://{}/other", server.tcp());
    folder
        .corewise(["restore", "a", "--to", &uri].iter().chain(&ca))
        .ok()
        .says(&["restored 8 MiB"]);
    server.stop().ok();
}

#[test]
fn checkpoints_of_data_in_memory_end_with_their_server() {
    let folder = Folder::new();
    let memory = "[[device]]\nname = \"data\"\ndriver = \"memory\"\nsize = \"8M\"\n";
    folder.write("up.toml", manifest("").replace(&file("data", "8M"), memory));
    let server = Server::start(&folder, &["up.toml"]);
    folder.corewise(["checkpoint", "disk", "a"]).ok();
    server.stop().ok();
    let server = Server::start(&folder, &["up.toml"]);
    assert_eq!(list(&folder).len(), 0);
    server
        .stop()
        .ok()
        .complains(&["the data of 'data' is in memory", "checkpoints were deleted: a"]);
}

#[test]
fn a_file_in_the_place_of_the_copies_stays_as_it_is_and_those_of_a_killed_server_are_removed() {
    let folder = Folder::new();
    let copies = folder.path().join("disk.checkpoints.copies");
    std::fs::write(&copies, "somebody's").unwrap();
    folder.write("up.toml", manifest("copies = \"1M\""));
    let up = ["up", "up.toml"];
    folder.corewise(up).fails().complains(&["disk.checkpoints.copies has other data"]);
    assert_eq!(std::fs::read(&copies).unwrap(), b"somebody's");
    std::fs::remove_file(&copies).unwrap();
    start(&folder, "copies = \"1M\"").kill();
    assert!(copies.exists());
    let server = start(&folder, "copies = \"1M\"");
    server.stop().ok();
    assert!(!copies.exists());
}

#[test]
fn a_record_of_data_that_is_gone_and_one_that_was_emptied_are_refused() {
    let folder = Folder::new();
    let server = start(&folder, "");
    folder.corewise(["checkpoint", "disk", "mon"]).ok();
    server.stop().ok();
    let up = ["up", "up.toml"];
    std::fs::remove_file(folder.path().join("data.img")).unwrap();
    folder.corewise(up).fails().complains(&["'data' is new and empty", "full backup"]);
    std::fs::write(folder.path().join("disk.checkpoints"), "").unwrap();
    folder.corewise(up).fails().complains(&["disk.checkpoints is empty"]);
}
