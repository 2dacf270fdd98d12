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
        .complains(&["--since"]);
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
    folder.corewise(["restore", "bad", "--to", "i"]).fails().complains(&["checksum"]);
    assert!(!path("i").exists());
    folder.corewise(["restore", "a", "c", "f", "--to", "j"]).ok();
    let found = std::fs::read(path("j")).unwrap();
    assert!(found[..1 << 20] == pattern(9, 1 << 20) && found[1 << 20..] == data[1 << 20..]);
    drop(client);
    server.stop().ok();
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
