//! Snapshots of volumes in object stores, by `corewise snapshot`, with real servers.
#![allow(missing_docs, clippy::unwrap_used)]

use serde_json::Value;

use crate::common::client::{Client, FUA, WRITE, pattern};
use crate::common::server::Server;
use crate::common::{COREWISE, Folder};

/// A volume of 16 MiB in the folder `store`, and its export.
fn volume(folder: &Folder, name: &str, keys: &str) -> String {
    let at = folder.join("store").join(name).display().to_string();
    format!(
        "[[device]]\nname = \"{name}\"\ndriver = \"object\"\nlocation = \"file://{at}\"\nlease = \"100ms\"\n{keys}\n\
         [[export]]\ndevice = \"{name}\"\n"
    )
}

const SIZED: &str = "size = \"16M\"";

fn snapshots(folder: &Folder, volume: &str) -> Vec<Value> {
    let ran = folder.corewise(["snapshot", volume, "--list", "--json"]).ok();
    let answer: Value = serde_json::from_str(&ran.stdout).unwrap();
    answer["snapshots"].as_array().unwrap().clone()
}

#[test]
fn a_snapshot_is_taken_listed_and_deleted_while_clients_go_on() {
    let folder = Folder::new();
    folder.write("up.toml", volume(&folder, "v", SIZED));
    let mut server = Server::start(&folder, &["up.toml"]);
    let mut parent = Client::new(&server.socket(), "v");
    // Not flushed.
    parent.write(0, &pattern(1, 4096), 0).unwrap();
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
    let second = all[1]["name"].as_str().unwrap();
    folder.corewise(["snapshot", "v", "--delete", second]).ok().says(&["deleted snapshot"]);
    assert_eq!(snapshots(&folder, "v").len(), 1);
    server.stop().ok();
    folder.write("up.toml", volume(&folder, "v", ""));
    let server = Server::start(&folder, &["up.toml"]);
    assert_eq!(snapshots(&folder, "v"), all[..1], "it is there again");
    server.stop().ok();
}

#[test]
fn snapshots_are_refused_with_a_reason() {
    let folder = Folder::new();
    let memory = "[[device]]\nname = \"m\"\ndriver = \"memory\"\nsize = \"1M\"\n";
    folder.write("up.toml", volume(&folder, "v", SIZED) + memory);
    let server = Server::start(&folder, &["up.toml"]);
    for (args, says) in [
        (&["m"][..], "'m' has the driver 'memory'"),
        (&["x"], "there is no device 'x' that is up"),
        (&["v", "a/b"], "a/b"),
        (&["v", "--delete", "none"], "none"),
    ] {
        folder.corewise([&["snapshot"], args].concat()).fails().complains(&[says]);
    }
    folder.corewise(["snapshot", "v", "--list"]).ok().says(&["'v' has no snapshot"]);
    server.stop().ok();
}

/// Writes numbers into four blocks, one after the other, until the server is gone.
fn write_on(mut client: Client, from: u64) {
    for n in from.. {
        let block = n.to_le_bytes().repeat(512);
        let sent = client.send(WRITE, 0, (n % 4) * 4096, 4096, &block);
        if sent.and_then(|_| client.receive(0)).is_err() {
            return;
        }
    }
}

#[test]
fn a_server_that_is_killed_amid_a_snapshot_leaves_it_whole_or_not_at_all() {
    let folder = Folder::new();
    folder.write("up.toml", volume(&folder, "v", SIZED));
    let rounds = if std::env::var_os("COREWISE_LONG").is_some() { 50 } else { 3 };
    for round in 1..=rounds {
        let server = Server::start(&folder, &["up.toml"]);
        let had = snapshots(&folder, "v").len();
        let (client, name) = (Client::new(&server.socket(), "v"), format!("s{round}"));
        std::thread::scope(|threads| {
            threads.spawn(|| write_on(client, round << 16));
            // The last one is there for sure.
            let taken = folder.command(COREWISE).args(["snapshot", "v", &name]).spawn();
            let mut taken = taken.unwrap();
            if round == rounds {
                assert!(taken.wait().unwrap().success());
            }
            server.kill();
            let _ = taken.wait();
        });
        let server = Server::start(&folder, &["up.toml"]);
        let all = snapshots(&folder, "v");
        assert!(all.len() == had || all.len() == had + 1, "{all:?}");
        if let Some(one) = all.get(had) {
            assert_eq!(one["name"], name.as_str());
        }
        server.stop().ok();
    }
}
