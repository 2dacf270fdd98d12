//! Snapshots of volumes in object stores, and clones: by `corewise snapshot` and a manifest, with
//! real servers.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::BTreeSet;

use serde_json::Value;

use crate::common::client::{Client, FUA, WRITE, pattern};
use crate::common::server::Server;
use crate::common::{COREWISE, Folder};

/// Returns a volume of 16 MiB in the folder `store`, and its export.
fn volume(folder: &Folder, name: &str, keys: &str) -> String {
    let at = folder.join("store").join(name).display().to_string();
    format!(
        "[[device]]\nname = \"{name}\"\ndriver = \"object\"\nlocation = \"file://{at}\"\nlease = \"100ms\"\n{keys}\n\
         [[export]]\ndevice = \"{name}\"\n"
    )
}

fn clone(folder: &Folder, name: &str, parent: &str, snapshot: &str) -> String {
    let at = folder.join("store").join(parent).display().to_string();
    volume(folder, name, &format!("clone_of = \"file://{at}\"\nsnapshot = \"{snapshot}\""))
}

const SIZED: &str = "size = \"16M\"";

fn snapshots(folder: &Folder, volume: &str) -> Vec<Value> {
    let ran = folder.corewise(["snapshot", volume, "--list", "--json"]).ok();
    ran.json()["snapshots"].as_array().unwrap().clone()
}

fn block(client: &mut Client) -> Vec<u8> {
    client.read(0, 4096).unwrap()
}

#[test]
fn a_snapshot_has_what_was_answered_and_a_clone_of_it_is_served_beside_its_parent() {
    let folder = Folder::new();
    folder.write("up.toml", volume(&folder, "v", SIZED));
    let mut server = Server::start(&folder, &["up.toml"]);
    let mut parent = Client::new(&server.socket(), "v");
    // No flush follows. The clone keeps the second one.
    parent.write(0, &pattern(1, 4096), 0).unwrap();
    parent.write(8192, &pattern(4, 4096), 0).unwrap();
    folder
        .corewise(["snapshot", "v", "monday"])
        .ok()
        .says(&["took snapshot 'monday' of 'v' (16 MiB)"]);
    let event = server.wait_event("object");
    assert_eq!((&event["what"], &event["snapshot"]), (&"snapshot".into(), &"monday".into()));
    parent.write(0, &pattern(2, 4096), FUA).unwrap();
    folder.corewise(["snapshot", "v", "monday"]).fails().complains(&["monday"]);
    folder.corewise(["snapshot", "v"]).ok();
    let all = snapshots(&folder, "v");
    assert_eq!(all.len(), 2, "{all:?}");
    assert_eq!((&all[0]["name"], &all[0]["size"]), (&"monday".into(), &(16 << 20).into()));
    folder.write("clone.toml", clone(&folder, "c", "v", "monday"));
    folder.corewise(["add", "clone.toml"]).ok();
    let mut child = Client::new(&server.socket(), "c");
    assert_eq!(child.size, 16 << 20);
    assert!(block(&mut child) == pattern(1, 4096) && block(&mut parent) == pattern(2, 4096));
    child.write(0, &pattern(3, 4096), FUA).unwrap();
    assert!(block(&mut parent) == pattern(2, 4096), "a clone changes its parent");
    folder.corewise(["snapshot", "v", "--list"]).ok().says(&["monday", "c\n"]);
    folder.corewise(["snapshot", "v", "--delete", "monday"]).fails().complains(&["clone"]);
    assert_eq!(snapshots(&folder, "v").len(), 2);
    let second = all[1]["name"].as_str().unwrap();
    folder.corewise(["snapshot", "v", "--delete", second]).ok().says(&["deleted snapshot"]);
    assert_eq!(snapshots(&folder, "v").len(), 1);
    folder.corewise(["snapshot", "v", "mondy"]).ok();
    let number = snapshots(&folder, "v")[1]["number"].to_string();
    let ran = folder.corewise(["snapshot", "v", "--delete", &number]).ok();
    ran.says(&["deleted snapshot 'mondy'"]);
    folder.corewise(["snapshot", "v", "--delete", "mondy"]).fails().complains(&["monday"]);
    server.stop().ok();
    // The server starts with both volumes, and with a manifest that no longer names the clone's
    // origin.
    for keys in [clone(&folder, "c", "v", "monday"), volume(&folder, "c", "")] {
        folder.write("up.toml", volume(&folder, "v", "") + &keys);
        let server = Server::start(&folder, &["up.toml"]);
        let (mut parent, mut child) =
            (Client::new(&server.socket(), "v"), Client::new(&server.socket(), "c"));
        assert!(block(&mut child) == pattern(3, 4096) && block(&mut parent) == pattern(2, 4096));
        server.stop().ok();
    }
}

#[test]
fn a_clone_that_needs_nothing_of_its_parent_is_served_when_that_is_gone() {
    let folder = Folder::new();
    let v = volume(&folder, "v", SIZED);
    folder.write("up.toml", &v);
    let server = Server::start(&folder, &["up.toml"]);
    Client::new(&server.socket(), "v").write(0, &pattern(1, 4096), 0).unwrap();
    folder.corewise(["snapshot", "v", "monday"]).ok();
    let c = clone(&folder, "c", "v", "monday");
    folder.write("up.toml", v + &c);
    folder.corewise(["reload"]).ok();
    Client::new(&server.socket(), "c").write(0, &pattern(2, 4096), FUA).unwrap();
    while snapshots(&folder, "v")[0]["clones"] != serde_json::json!([]) {}
    folder.corewise(["snapshot", "v", "--delete", "monday"]).ok();
    server.stop().ok();
    std::fs::remove_dir_all(folder.join("store/v")).unwrap();
    folder.write("up.toml", &c);
    folder.corewise(["up", "--check", "up.toml"]).ok();
    let server = Server::start(&folder, &["up.toml"]);
    assert!(block(&mut Client::new(&server.socket(), "c")) == pattern(2, 4096));
    server.stop().ok();
}

#[test]
fn a_reload_leaves_a_volume_as_it_is_whatever_it_was_made_of_and_refuses_what_it_was_not() {
    let folder = Folder::new();
    let v = volume(&folder, "v", SIZED);
    folder.write("up.toml", &v);
    let server = Server::start(&folder, &["up.toml"]);
    folder.corewise(["snapshot", "v", "monday"]).ok();
    let is = v.clone() + &clone(&folder, "c", "v", "monday");
    folder.write("up.toml", &is);
    folder.corewise(["reload"]).ok();
    let mut client = Client::new(&server.socket(), "c");
    for keys in [volume(&folder, "c", ""), clone(&folder, "c", "v", "monday")] {
        folder.write("up.toml", v.clone() + &keys);
        folder.corewise(["reload"]).ok().says(&["nothing to change"]);
        block(&mut client);
    }
    for (parent, snapshot) in [("v", "tuesday"), ("w", "monday")] {
        folder.write("up.toml", v.clone() + &clone(&folder, "c", parent, snapshot));
        folder.corewise(["reload"]).fails().complains(&["'c' would not come up again"]);
        block(&mut client);
    }
    server.stop().ok();
}

#[test]
fn snapshots_are_refused_with_a_reason() {
    let folder = Folder::new();
    let memory = "[[device]]\nname = \"m\"\ndriver = \"memory\"\nsize = \"1M\"\n";
    let leg = volume(&folder, "leg", SIZED).replace("[[export]]\ndevice = \"leg\"\n", "");
    let beside = memory.replace("\"m\"", "\"beside\"").replace("1M", "16M");
    let mirror = "[[device]]\nname = \"r\"\ndriver = \"mirror\"\nover = [\"beside\", \"leg\"]\n";
    folder.write("up.toml", volume(&folder, "v", SIZED) + memory + &leg + &beside + mirror);
    let server = Server::start(&folder, &["up.toml"]);
    for (args, says) in [
        (&["m"][..], "'m' has the driver 'memory'"),
        (&["r"], "Name a part of it: leg"),
        (&["x"], "there is no device 'x' that is up"),
        (&["v", "a/b"], "a/b"),
        (&["v", "--delete", "none"], "none"),
    ] {
        folder.corewise([&["snapshot"], args].concat()).fails().complains(&[says]);
    }
    folder.corewise(["snapshot", "v", "--list"]).ok().says(&["'v' has no snapshots"]);
    server.stop().ok();
    for (clone, says) in
        [(clone(&folder, "c", "v", "none"), "none"), (clone(&folder, "c", "w", "monday"), "w")]
    {
        folder.write("up.toml", clone);
        folder.corewise(["up", "up.toml"]).fails().complains(&["device 'c': ", says]);
    }
    folder.corewise(["up", "--check", "up.toml"]).code(1).complains(&["no volume to clone"]);
}

/// Writes numbers into four blocks, one after another, until the server is gone.
fn write_on(mut client: Client, from: u64) {
    for n in from.. {
        let block = n.to_le_bytes().repeat(512);
        let sent = client.send(WRITE, 0, (n % 4) * 4096, 4096, &block);
        if sent.and_then(|_| client.receive(0)).is_err() {
            return;
        }
    }
}

/// Returns the numbers in those blocks.
fn numbers(client: &mut Client) -> Vec<u64> {
    let data = client.read(0, 4 * 4096).unwrap();
    data.chunks(4096).map(|block| u64::from_le_bytes(block[..8].try_into().unwrap())).collect()
}

/// Returns the complete maps of snapshots in the store.
fn maps(folder: &Folder) -> BTreeSet<String> {
    let Ok(all) = std::fs::read_dir(folder.join("store/v/snap")) else { return BTreeSet::new() };
    let names = all.map(|one| one.unwrap().file_name().into_string().unwrap());
    names.filter(|name| !name.contains('#')).collect()
}

#[test]
fn a_server_that_is_killed_amid_a_snapshot_leaves_it_whole_or_not_at_all() {
    let folder = Folder::new();
    folder.write("up.toml", volume(&folder, "v", SIZED));
    let rounds = if std::env::var_os("COREWISE_LONG").is_some() { 50 } else { 3 };
    for round in 1..=rounds {
        let server = Server::start(&folder, &["up.toml"]);
        let (had, before) = (snapshots(&folder, "v").len(), maps(&folder));
        let (client, name) = (Client::new(&server.socket(), "v"), format!("s{round}"));
        std::thread::scope(|threads| {
            threads.spawn(|| write_on(client, round << 16));
            // The last snapshot is certainly there.
            let taken = folder.command(COREWISE).args(["snapshot", "v", &name]).spawn();
            let mut taken = taken.unwrap();
            if round == rounds {
                assert!(taken.wait().unwrap().success());
            }
            // The record of the snapshot is created now.
            while maps(&folder).is_subset(&before) {
                assert!(taken.try_wait().unwrap().is_none_or(|ended| ended.success()));
                std::thread::yield_now();
            }
            server.kill();
            let _ = taken.wait();
        });
        let server = Server::start(&folder, &["up.toml"]);
        let all = snapshots(&folder, "v");
        assert!(all.len() == had || all.len() == had + 1, "{all:?}");
        if let Some(one) = all.get(had) {
            assert_eq!(one["name"], name.as_str());
            let clone = clone(&folder, &format!("c{round}"), "v", &name);
            folder.write("clone.toml", clone);
            folder.corewise(["add", "clone.toml"]).ok();
            // The snapshot is of one moment: the numbers of this round are consecutive.
            let mut found = numbers(&mut Client::new(&server.socket(), &format!("c{round}")));
            found.retain(|n| n >> 16 == round);
            found.sort_unstable();
            assert!(found.windows(2).all(|two| two[0] + 1 == two[1]), "{found:?}");
        }
        server.stop().ok();
    }
}
