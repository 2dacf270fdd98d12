//! `corewise up` with a device whose shutdown hangs: the device that is named, the effect of each
//! policy, and the state that is kept between runs.
#![allow(missing_docs, clippy::unwrap_used)]

use std::time::{Duration, Instant};

use crate::common::Folder;
use crate::common::client::{Client, READ};
use crate::common::server::Server;
use rustix::process::Signal;
use serde_json::Value;

/// An export that drains for up to an hour, over a device that can't be shut down before.
const STUCK: &str = "[server]\nunix = \"s\"\ndrain = \"1h\"\n\
                     [[device]]\nname = \"m\"\ndriver = \"file\"\npath = \"m.img\"\n\
                     create = true\nsize = \"64M\"\n\
                     [[device]]\nname = \"free\"\ndriver = \"memory\"\nsize = \"1M\"\n\
                     [[export]]\ndevice = \"m\"\n";

/// Starts a server whose client takes no replies, so its export can't drain. Stops the server and
/// waits until it has named the export.
fn stuck(folder: &Folder, manifest: &str, args: &[&str]) -> (Server, Client, Value) {
    folder.write("up.toml", manifest);
    let mut server = Server::start(folder, &[&["up.toml"], args].concat());
    let client = Client::stuck(&server.socket(), "m");
    server.signal(Signal::TERM);
    let overdue = server.wait_event("overdue");
    (server, client, overdue)
}

#[test]
fn a_device_that_hangs_is_named_with_whom_it_holds_up_and_waited_for() {
    let folder = Folder::new();
    let text = format!("{STUCK}shutdown_timeout = \"100ms\"\n");
    let (server, client, overdue) = stuck(&folder, &text, &[]);
    assert_eq!((&overdue["device"], &overdue["held_up"]), (&"export:m".into(), &vec!["m"].into()));
    assert!(overdue["seconds"].as_f64().unwrap() >= 0.1, "{overdue}");
    let dump = folder.dump();
    let device = |name: &str| {
        let devices = dump["devices"].as_array().unwrap();
        devices.iter().find(|device| device["name"] == name).unwrap().clone()
    };
    assert_eq!(device("export:m")["state"], "stopping");
    let waits = device("m")["waits"].to_string();
    assert!(waits.contains("waits for export:m"), "{waits}");
    drop(client);
    let ran = server.wait().ok();
    ran.complains(&["shutdown of export:m isn't done after", "export:m holds up m"]);
}

#[test]
fn all_exports_drain_at_the_same_time_however_many_have_a_client_that_takes_no_replies() {
    const EXPORTS: usize = 40;
    let folder = Folder::new();
    let export = |n| format!("[[export]]\nname = \"e{n}\"\ndevice = \"m\"\n");
    let exports: String = (0..EXPORTS).map(export).collect();
    folder.write("up.toml", STUCK.replace("[[export]]\ndevice = \"m\"\n", &exports));
    let server = Server::start(&folder, &["up.toml"]);
    let clients: Vec<Client> = (0..EXPORTS)
        .map(|n| {
            let mut client = Client::new(&server.socket(), &format!("e{n}"));
            client.send(READ, 0, 0, 4 << 20, &[]).unwrap();
            client.read_some();
            client
        })
        .collect();
    server.signal(Signal::TERM);
    let given_up = Instant::now() + Duration::from_secs(300);
    loop {
        let dump = folder.dump();
        let devices = dump["devices"].as_array().unwrap();
        let stopping = devices.iter().filter(|device| device["state"] == "stopping").count();
        if stopping == EXPORTS {
            break;
        }
        assert!(Instant::now() < given_up, "{stopping} of {EXPORTS} exports drain");
    }
    drop(clients);
    server.wait().ok();
}

#[test]
fn a_shutdown_that_is_given_up_ends_with_1_and_says_what_is_left() {
    let folder = Folder::new();
    let args = ["--shutdown-timeout", "200ms", "--on-hang", "give-up"];
    let (server, client, _) = stuck(&folder, STUCK, &args);
    let ran = server.wait().code(1);
    let ran =
        ran.complains(&["shutdown given up after", "export:m has been running for", "m waits for"]);
    assert!(!ran.stderr.contains("ERROR"), "the log tells it a second time\n{ran}");
    ran.says(&["{\"event\":\"done\",\"ok\":false}"]);
    assert_eq!(folder.list(), ["m.img", "up.toml"], "something was left behind");
    drop(client);
}

#[test]
fn a_device_that_is_skipped_keeps_nobody_from_being_shut_down() {
    let folder = Folder::new();
    let text = STUCK.replace("drain", "on_hang = \"skip\"\ndrain");
    let text = format!("{text}shutdown_timeout = \"100ms\"\n");
    let (mut server, client, _) = stuck(&folder, &text, &[]);
    let down = server.wait_event("shutdown");
    let spans = down["timeline"]["spans"].as_array().unwrap();
    let outcome = |name: &str| {
        let span = spans.iter().find(|span| span["name"] == name);
        span.map(|span| format!("{} {}", span["outcome"], span["message"])).unwrap_or_default()
    };
    assert!(outcome("m").contains("ok"), "{down}");
    assert!(outcome("export:m").contains("skipped"), "{down}");
    let ran = server.wait().code(1);
    ran.complains(&["shutdown of export:m: ", "skipped"]);
    assert_eq!(folder.list(), ["m.img", "up.toml"]);
    drop(client);
}

#[test]
fn the_history_of_devices_is_kept_between_runs_and_a_damaged_file_is_replaced() {
    let folder = Folder::new();
    let run = || folder.corewise(["up", "--for", "1ms", "--state", "known"]).ok();
    assert_eq!(run().stderr, "");
    let file = folder.path().join("known/device-history.json");
    let known = std::fs::read_to_string(&file).unwrap();
    for name in ["export:fast", "shutdown"] {
        assert!(known.contains(name), "{name} in {known}");
    }
    assert_eq!(run().stderr, "");
    std::fs::write(&file, "{").unwrap();
    run().complains(&["warning: ", "device-history.json is damaged"]);
    assert_eq!(run().stderr, "", "it was replaced");
}

#[test]
fn a_policy_that_there_is_not_is_said_with_those_that_there_are() {
    let folder = Folder::new();
    folder.corewise(["up", "--on-hang", "pray"]).code(2).complains(&["wait, skip, give-up"]);
    folder.write("up.toml", STUCK.replace("drain = \"1h\"", "on_hang = \"pray\""));
    let ran = folder.corewise(["up", "up.toml"]).code(1);
    ran.complains(&["up.toml:3:", "unknown on_hang 'pray'", "one of: wait, skip, give-up"]);
}
