//! `corewise health`: the state, the reasons, the advice for each, and the exit code; the same in
//! metrics, dumps and events.
#![allow(missing_docs, clippy::unwrap_used)]

use serde_json::Value;

use crate::common::client::{Client, FUA, WRITE, pattern};
use crate::common::server::Server;
use crate::common::{Folder, Ran, file};
use crate::watching::{metrics_of, scrape};

const FILE: &str = "[server]\nunix = \"s\"\n[[device]]\nname = \"disk\"\ndriver = \"file\"\n\
    path = \"disk.img\"\nsize = \"1M\"\ncreate = true\n[[export]]\ndevice = \"disk\"\n";

/// A mirror over `a`, and over `b`, the first write to which fails.
const MIRROR: &str = "[server]\nunix = \"s\"\nmetrics = 0\n\
    [[device]]\nname = \"a\"\ndriver = \"memory\"\nsize = \"1M\"\n\
    [[device]]\nname = \"bad\"\ndriver = \"memory\"\nsize = \"1M\"\n\
    [[device]]\nname = \"b\"\ndriver = \"error\"\nover = [\"bad\"]\nfails = [\"write\"]\n\
    from = \"64K\"\nto = \"128K\"\ntimes = 1\n\
    [[device]]\nname = \"m\"\ndriver = \"mirror\"\nover = [\"a\", \"b\"]\n\
    [[export]]\ndevice = \"m\"\n";

fn health(folder: &Folder) -> Ran {
    folder.corewise(["health"])
}

/// Repeats the command until its exit code is `code`.
fn until(folder: &Folder, code: i32) -> Ran {
    loop {
        let ran = health(folder);
        if ran.code == Some(code) {
            return ran;
        }
    }
}

fn json(folder: &Folder) -> Value {
    folder.corewise(["health", "--json"]).json()
}

/// Returns the value of a sample.
fn value(text: &str, sample: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(sample)?.trim().parse().ok())
}

#[test]
fn a_server_that_is_well_is_ok_and_none_at_all_is_a_failure() {
    let folder = Folder::new();
    let ran = health(&folder).code(1);
    ran.complains(&["found no running `corewise up`"]);
    let mut server = Server::start(&folder, &[]);
    // The mirror of the built-in manifest begins with a resync.
    server.wait_mirror("resynced");
    let ran = until(&folder, 0);
    assert_eq!(ran.stdout, "ok\n");
    assert_eq!(json(&folder)["health"], serde_json::json!({"state": "ok", "reasons": []}));
    folder.corewise(["dump"]).ok().says(&["\nHealth\n  ok\n"]);
    server.stop().ok();
    folder.corewise(["health", "now"]).code(2);
}

#[test]
fn the_command_of_a_leg_that_is_out_brings_it_back() {
    let folder = Folder::new();
    folder.write("up.toml", MIRROR);
    let mut server = Server::start(&folder, &["up.toml"]);
    server.wait_mirror("resynced");
    until(&folder, 0);
    let mut client = Client::new(&server.socket(), "m");
    client.write(64 << 10, &pattern(1, 4096), 0).unwrap();
    let dropped = server.wait_mirror("dropped");
    let ran = until(&folder, 3);
    let mut lines = ran.stdout.lines();
    assert_eq!(lines.next(), Some("degraded"), "{ran}");
    let line = lines.find(|line| line.contains("'b' is out")).unwrap_or_else(|| panic!("{ran}"));
    let (_, command) = line.split_once("Once the leg's disk works: corewise ").unwrap();
    assert_eq!(dropped["todo"], format!("corewise {command}"));
    folder.corewise(["mirror"]).ok().says(&[command]);
    folder.corewise(["dump"]).ok().says(&[command]);
    let text = scrape(&metrics_of(&server));
    let is = |state: &str| value(&text, &format!("corewise_health{{state=\"{state}\"}}"));
    assert_eq!((is("ok"), is("degraded"), is("lost")), (Some(0.0), Some(1.0), Some(0.0)), "{text}");
    let reason =
        "corewise_health_reason{reason=\"leg_out\",subject=\"m\",part=\"b\",state=\"degraded\"}";
    assert_eq!(value(&text, reason), Some(1.0), "{text}");
    folder.corewise(command.split(' ')).ok();
    // The last minute counts the write that failed.
    while json(&folder)["health"]["reasons"].as_array().unwrap().iter().any(|r| r["subject"] == "m")
    {
    }
    let ran = server.stop().ok();
    ran.complains(&[
        "the mirror dropped leg 'b': ",
        &format!("once the leg's disk works: corewise {command}"),
    ]);
}

#[test]
fn a_file_that_somebody_truncates_is_lost_until_it_is_opened_anew() {
    let folder = Folder::new();
    folder.write("up.toml", FILE);
    let server = Server::start(&folder, &["up.toml"]);
    health(&folder).ok();
    let mut client = Client::new(&server.socket(), "disk");
    client.write(0, &pattern(1, 4096), 0).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(folder.join("disk.img")).unwrap();
    file.set_len(512).unwrap();
    client.flush().unwrap_err();
    let ran = health(&folder).code(4);
    ran.says(&["lost\n", "  disk: the file has lost data: ", "restart the server"]);
    let found = json(&folder);
    assert_eq!(found["health"]["reasons"][0]["reason"], "file_lost", "{found}");
    drop(client);
    server.stop().fails();
    file.set_len(1 << 20).unwrap();
    let server = Server::start(&folder, &["up.toml"]);
    health(&folder).ok();
    server.stop().ok();
}

#[test]
fn what_is_left_out_is_lost_until_a_reload_brings_it_up() {
    let folder = Folder::new();
    let more = "[[device]]\nname = \"gone\"\ndriver = \"file\"\npath = \"gone.img\"\n\
        [[export]]\ndevice = \"gone\"\n";
    folder.write("up.toml", format!("{FILE}{more}"));
    let server = Server::start(&folder, &["up.toml", "--keep-going"]);
    let ran = health(&folder).code(4);
    ran.says(&["lost\n", "\n  gone: the device isn't up", "\n  export:gone: ", "corewise reload"]);
    folder.write("gone.img", vec![0; 1 << 20]);
    folder.corewise(["reload"]).ok();
    health(&folder).ok();
    // A device that a reload can't bring up.
    std::fs::remove_file(folder.join("gone.img")).unwrap();
    folder.write(
        "up.toml",
        format!(
            "{FILE}{}",
            more.replace("name = \"gone\"", "name = \"new\"")
                .replace("device = \"gone\"", "device = \"new\"")
        ),
    );
    folder.corewise(["reload", "--mode", "hard"]).code(1);
    let ran = health(&folder).code(4);
    ran.says(&["  new: declared in the manifest", "  export:new: "]);
    folder.write("up.toml", FILE);
    folder.corewise(["reload"]).ok();
    health(&folder).ok();
    server.stop().fails();
}

#[test]
fn a_socket_that_somebody_removes_is_told_of() {
    let folder = Folder::new();
    let metrics = FILE.replace("unix = \"s\"\n", "unix = \"s\"\nmetrics = \"./m\"\n");
    folder.write("up.toml", metrics);
    let server = Server::start(&folder, &["up.toml"]);
    health(&folder).ok();
    std::fs::remove_file(folder.join("m")).unwrap();
    let ran = health(&folder).code(3);
    ran.says(&["degraded\n  server: the socket ", "/m was removed or replaced, so scrapers"]);
    std::fs::remove_file(folder.join("s")).unwrap();
    let ran = health(&folder).code(4);
    ran.says(&["lost\n  server: the socket ", "/s was removed or replaced, so new clients"]);
    server.stop().ok();
}

#[test]
fn a_flush_that_failed_is_lost_until_the_next_one_succeeds() {
    let folder = Folder::new();
    folder.write(
        "up.toml",
        "[server]\nunix = \"s\"\n[[device]]\nname = \"a\"\ndriver = \"memory\"\nsize = \"1M\"\n\
         [[device]]\nname = \"e\"\ndriver = \"error\"\nover = [\"a\"]\nfails = [\"flush\"]\ntimes = 1\n\
         [[export]]\ndevice = \"e\"\n",
    );
    let server = Server::start(&folder, &["up.toml"]);
    let mut client = Client::new(&server.socket(), "e");
    client.write(0, &pattern(1, 4096), 0).unwrap();
    client.flush().unwrap_err();
    let ran = health(&folder).code(4);
    ran.says(&["lost\n", "  e: the last flush failed, and changes before it may be lost"]);
    client.flush().unwrap();
    // The last minute counts the failure itself.
    let ran = until(&folder, 3);
    ran.says(&["degraded\n  e: requests have failed in the last minute: flush 1"]);
    server.stop().ok();
}

#[test]
fn a_flush_that_fails_after_its_client_has_left_is_lost_until_the_next_one_is_told() {
    let folder = Folder::new();
    folder.write(
        "up.toml",
        "[server]\nunix = \"s\"\n[[device]]\nname = \"a\"\ndriver = \"memory\"\nsize = \"1M\"\n\
         [[device]]\nname = \"e\"\ndriver = \"error\"\nover = [\"a\"]\nfails = [\"write\"]\ntimes = 1\n\
         from = \"512K\"\nto = \"1M\"\n[[export]]\ndevice = \"e\"\n",
    );
    let server = Server::start(&folder, &["up.toml"]);
    let mut other = Client::new(&server.socket(), "e");
    let mut client = Client::new(&server.socket(), "e");
    client.write(0, &pattern(1, 4096), 0).unwrap();
    drop(client);
    // Once that client has left, a durable write of another one fails.
    while folder.dump()["exports"][0]["clients"] != 1 {}
    other.write(512 << 10, &pattern(1, 4096), FUA).unwrap_err();
    let ran = health(&folder).code(4);
    ran.says(&[
        "  e: a flush failed after 1 client had disconnected, so their data may be lost without notice",
    ]);
    let mut again = Client::new(&server.socket(), "e");
    again.flush().unwrap_err();
    while json(&folder)["health"]["reasons"]
        .as_array()
        .unwrap()
        .iter()
        .any(|r| r["reason"] == "loss_untold")
    {}
    server.stop().ok();
}

#[test]
fn a_request_in_flight_has_an_age_and_the_last_minute_its_latencies() {
    let folder = Folder::new();
    folder.write(
        "up.toml",
        "[server]\nunix = \"s\"\nmetrics = 0\n\
         [[device]]\nname = \"a\"\ndriver = \"memory\"\nsize = \"1M\"\n\
         [[device]]\nname = \"slow\"\ndriver = \"delay\"\nover = [\"a\"]\nwrite_delay = \"1h\"\n\
         [[export]]\ndevice = \"slow\"\n",
    );
    let server = Server::start(&folder, &["up.toml"]);
    let mut client = Client::new(&server.socket(), "slow");
    for _ in 0..3 {
        client.read(0, 4096).unwrap();
    }
    client.send(WRITE, 0, 0, 4096, &pattern(1, 4096)).unwrap();
    let slow = |dump: &Value| {
        let disks = dump["disks"].as_array().unwrap().iter();
        disks.clone().find(|disk| disk["name"] == "slow").unwrap().clone()
    };
    let dump = loop {
        let dump = folder.dump();
        // The second sample after the write knows its age; the write is the only request.
        if slow(&dump)["oldest_seconds"].as_f64().is_some_and(|age| age >= 1.0) {
            break dump;
        }
    };
    for reads in [&slow(&dump)["reads"], &dump["exports"][0]["reads"]] {
        let last = &reads["last_minute"];
        assert_eq!((&last["requests"], &last["errors"]), (&3.into(), &0.into()), "{dump}");
        assert!(last["p99_seconds"].as_f64().unwrap() > 0.0, "{dump}");
        assert!(last["p99_seconds"].as_f64() <= last["longest_seconds"].as_f64(), "{dump}");
    }
    assert!(slow(&dump)["writes"].get("last_minute").is_none(), "none has ended: {dump}");
    let text = scrape(&metrics_of(&server));
    let age = value(&text, "corewise_volume_oldest_request_seconds{volume=\"slow\"}");
    assert!(age >= Some(1.0), "{text}");
    for of in ["volume", "export"] {
        let of = format!(
            "corewise_{of}_last_minute_duration_seconds{{{of}=\"slow\",op=\"read\",quantile=\"0.5\"}}"
        );
        assert!(value(&text, &of) > Some(0.0), "{text}");
    }
    folder.corewise(["dump"]).ok().says(&["1 min p50", "oldest"]);
    server.kill();
}

/// Returns the manifest of a mirror over two files that is checked this often.
fn checked(every: &str) -> String {
    format!(
        "[server]\nunix = \"s\"\nmetrics = 0\n{}{}[[device]]\nname = \"m\"\ndriver = \"mirror\"\n\
         over = [\"a\", \"b\"]\n{every}[[export]]\ndevice = \"m\"\n",
        file("a", "2M"),
        file("b", "2M"),
    )
}

/// Returns the mirror from the server's dump.
fn mirror(folder: &Folder) -> Value {
    folder.corewise(["mirror", "--json"]).ok().json()["disks"][0]["mirror"].clone()
}

#[test]
fn a_mirror_with_a_schedule_is_checked_by_itself_and_a_restart_remembers_that() {
    let folder = Folder::new();
    folder.write("up.toml", checked("check_every = \"1h\"\n"));
    let mut server = Server::start(&folder, &["up.toml"]);
    server.wait_mirror("resynced");
    let mut client = Client::new(&server.socket(), "m");
    let of = mirror(&folder);
    assert_eq!((&of["check"], &of["checked"]), (&Value::Null, &Value::Null));
    let (since, due) = (of["schedule"]["since"].as_f64(), of["schedule"]["due"].as_f64());
    assert!(due.unwrap() - since.unwrap() > 3_000.0, "not at once: {of}");
    // The clients of the mirror stay.
    folder.write("up.toml", checked("check_every = \"1s\"\n"));
    folder.corewise(["reload"]).ok().says(&["changed device 'm'"]);
    client.write(0, &pattern(1, 4096), 0).unwrap();
    let event = server.wait_mirror("checked");
    assert_eq!((&event["differ"], &event["unreadable"]), (&0.into(), &0.into()), "{event}");
    assert_eq!(event["bytes"], event["size"], "{event}");
    assert!(event["seconds"].as_f64().unwrap() > 0.0 && event["todo"].is_null(), "{event}");
    // This write goes behind the mirror's back.
    let leg = std::fs::OpenOptions::new().write(true).open(folder.join("b.img")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&leg, &[7; 512], 1 << 20).unwrap();
    let ran = until(&folder, 4);
    ran.says(&["lost\n  m: the last check found that 512 bytes differ"]);
    folder.write("up.toml", checked("check_every = \"1h\"\n"));
    folder.corewise(["reload"]).ok();
    // A check may have begun before the reload.
    let before = loop {
        let of = mirror(&folder);
        if of["check"]["running"] == false && of["checked"]["differ"] == 512 {
            break of;
        }
    };
    server.kill();
    let server = Server::start(&folder, &["up.toml"]);
    let after = mirror(&folder);
    assert_eq!((&after["checked"], &after["check"]), (&before["checked"], &Value::Null));
    assert_eq!(after["schedule"], before["schedule"]);
    health(&folder).code(4).says(&["512 bytes differ"]);
    let text = scrape(&metrics_of(&server));
    let found = "corewise_mirror_check_found_bytes{mirror=\"m\",kind=\"differ\"}";
    assert_eq!(value(&text, found), Some(512.0), "{text}");
    let ended = value(&text, "corewise_mirror_check_ended_timestamp_seconds{mirror=\"m\"}");
    assert_eq!(ended, before["checked"]["ended"].as_f64(), "{text}");
    let due = value(&text, "corewise_mirror_check_due_timestamp_seconds{mirror=\"m\"}");
    let apart = due.unwrap() - before["schedule"]["due"].as_f64().unwrap();
    assert!(apart.abs() < 0.001, "{apart}: {text}");
    folder.corewise(["mirror", "m"]).ok().says(&["last check: ended 20", "next check: due 20"]);
    // This is the command in the reason.
    folder.corewise(["mirror", "m", "--check", "--repair", "--wait"]).ok();
    assert_eq!(health(&folder).ok().stdout, "ok\n");
    server.stop().ok();
}
