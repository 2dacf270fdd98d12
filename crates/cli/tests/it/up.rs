//! `corewise up` from start to end: the built-in manifest, every way to stop, both timelines,
//! several servers at once.
#![allow(missing_docs, clippy::unwrap_used)]

use std::io::Write;
use std::process::Stdio;

use crate::common::client::Client;
use crate::common::server::Server;
use crate::common::{COREWISE, Folder};
use rustix::process::Signal;
use serde_json::Value;

const STUCK: &str = "[[device]]\nname = \"m\"\ndriver = \"memory\"\nsize = \"64M\"\n\
                     [[export]]\ndevice = \"m\"\n[server]\nunix = \"s\"\n";

#[test]
fn the_built_in_manifest_comes_up_in_an_empty_folder_and_leaves_nothing_behind() {
    let folder = Folder::new();
    let ran = folder.corewise(["up", "--for", "50ms"]).ok();
    let ran = ran.says(&[
        "bring-up: 10 devices, all ok",
        "export:fast",
        "nbdinfo --list 'nbd+unix:///?socket=",
        "Ready.",
        "Stopping: the 50.0 ms of --for have passed",
        "shutdown: 10 devices, all ok",
        "Done:",
    ]);
    assert_eq!(ran.stderr, "", "{ran}");
    assert!(!ran.stdout.contains('\x1b'), "colours that nobody can see\n{ran}");
    assert_eq!(folder.list(), [""; 0], "{ran}");
}

#[test]
fn the_commands_that_it_prints_can_be_pasted() {
    let folder = Folder::new();
    let mut command = folder.command(COREWISE);
    command.arg("up");
    let mut server = Server::spawn(command);
    let mut pasted = Vec::new();
    server.wait_line("Ready.", |line| {
        if ["nbdinfo ", "nbdcopy ", "qemu-io "].iter().any(|c| line.trim().starts_with(c)) {
            pasted.push(line.trim().to_string());
        }
        line.starts_with("Ready.")
    });
    assert_eq!(pasted.len(), 3, "{pasted:?}");
    for line in pasted {
        let mut shell = folder.command("sh");
        shell.args(["-c", &line]);
        crate::common::run(shell).ok();
    }
    server.stop().ok();
    assert_eq!(folder.list(), ["copy.img"]);
}

#[test]
fn each_signal_stops_it_in_order() {
    for (signal, name) in
        [(Signal::INT, "SIGINT"), (Signal::TERM, "SIGTERM"), (Signal::HUP, "SIGHUP")]
    {
        let folder = Folder::new();
        let server = Server::start(&folder, &[]);
        server.signal(signal);
        let ran = server.wait().ok();
        ran.says(&[&format!("\"why\":\"{name}\""), "{\"event\":\"shutdown\"", "\"ok\":true"]);
        assert_eq!(folder.list(), [""; 0]);
    }
}

#[test]
fn a_hangup_that_is_ignored_as_under_nohup_stops_nothing() {
    let folder = Folder::new();
    let server = Server::start_with_hangup(&folder, "--ignore-signal=HUP", &[]);
    server.signal(Signal::HUP);
    server.signal(Signal::TERM);
    server.wait().ok().says(&["\"why\":\"SIGTERM\""]);
}

#[test]
fn a_second_signal_ends_it_at_once_and_says_what_is_left_undone() {
    let folder = Folder::new();
    // The socket is in a temporary folder, which must be removed even so.
    let text = STUCK.replace("unix = \"s\"", "drain = \"1h\"");
    folder.write("up.toml", text);
    let mut server = Server::start(&folder, &["up.toml"]);
    let client = Client::stuck(&server.socket(), "m");
    server.signal(Signal::TERM);
    server.wait_event("stopping");
    server.insist(Signal::INT);
    let ran = server.wait().code(1);
    ran.complains(&["error: SIGINT while stopping: ended at once, not shut down: ", "export:m"]);
    assert_eq!(folder.list(), ["up.toml"], "the temporary folder was left behind");
    drop(client);
}

#[test]
fn a_long_path_of_the_folder_for_temporary_files_is_no_hindrance() {
    let folder = Folder::new();
    let long = folder.join(&"a".repeat(100));
    std::fs::create_dir(&long).unwrap();
    folder.write("up.toml", "[[device]]\nname = \"d\"\ndriver = \"memory\"\nsize = \"1M\"\n[[export]]\ndevice = \"d\"\n");
    for manifest in [&["up.toml"][..], &[]] {
        let mut command = folder.command(COREWISE);
        command.args([&["up", "--json"], manifest].concat()).env("TMPDIR", &long);
        let mut server = Server::spawn(command);
        server.ready = server.wait_event("ready");
        let (socket, control) = (server.socket(), server.control());
        let export = if manifest.is_empty() { "scratch" } else { "d" };
        Client::new(&socket, export).write(0, &[1; 512], 0).unwrap();
        let mut dump = folder.command(COREWISE);
        let pid = server.pid().to_string();
        dump.args(["dump", "--pid", &pid]).env("TMPDIR", &long);
        crate::common::run(dump).ok();
        let ran = server.stop().ok();
        assert_eq!(ran.stderr, "", "{ran}");
        assert!(!socket.exists() && !socket.parent().unwrap().exists() && !control.exists());
        assert_eq!(std::fs::read_dir(&long).unwrap().count(), 0);
    }
    let path = format!("{}/s", long.display());
    for flag in ["--socket", "--control"] {
        let ran = folder.corewise(["up", "up.toml", flag, &path]).code(1);
        ran.complains(&[flag, "at most 107 bytes", "help: choose a folder with a shorter path"]);
    }
}

#[test]
fn a_client_that_takes_no_replies_is_cut_at_the_deadline() {
    let folder = Folder::new();
    folder.write("up.toml", format!("{STUCK}drain = \"200ms\"\n"));
    let server = Server::start(&folder, &["up.toml"]);
    let client = Client::stuck(&server.socket(), "m");
    // A warning, but no failure: nothing acknowledged is lost.
    let ran = server.stop().ok();
    let ran = ran.complains(&["warning: export 'm': disconnected 1 client after", "unanswered"]);
    let ran = ran.complains(&["disconnected at the deadline of a drain client=1 ", " export=m "]);
    assert_eq!(ran.stderr.matches("WARN").count(), 1, "each client is named once\n{ran}");
    assert_eq!(folder.list(), ["up.toml"]);
    drop(client);
}

#[test]
fn a_signal_during_bring_up_cancels_the_rest_and_leaves_nothing_behind() {
    let folder = Folder::new();
    // A chain: its files are made one after another, so the signal finds most of them to come.
    let file = |n: u32| {
        let before = n.checked_sub(1).map(|b| format!("suppliers = [\"d{b}\"]\n"));
        format!(
            "[[device]]\nname = \"d{n}\"\ndriver = \"file\"\npath = \"d{n}.img\"\nsize = \"1M\"\n\
             create = true\n{}",
            before.unwrap_or_default()
        )
    };
    folder.write("up.toml", (0..2000).map(file).collect::<String>() + "[server]\nunix = \"s\"\n");
    let mut command = folder.command(COREWISE);
    command.args(["up", "--json", "up.toml"]);
    let mut server = Server::spawn(command);
    assert_eq!(server.wait_event("begin")["devices"], 2000);
    while !folder.join("d3.img").exists() {
        std::thread::yield_now();
    }
    server.signal(Signal::INT);
    let up = server.wait_event("bring_up");
    let summary = &up["timeline"]["summary"];
    assert!(summary["ok"].as_u64().unwrap() >= 3, "{summary}");
    assert!(summary["cancelled"].as_u64().unwrap() > 0, "{summary}");
    let ran = server.wait().code(1);
    let ran = ran.complains(&["error: SIGINT during bring-up: no volume was served"]);
    assert!(!ran.stdout.contains("\"ready\""), "{}", ran.stderr);
    assert_eq!(folder.list(), ["up.toml"], "{}", ran.stderr);
}

#[test]
fn an_order_of_devices_is_an_order_of_their_shutdown() {
    let folder = Folder::new();
    folder.corewise(["up", "--for", "1ms", "--timeline", "t.json"]).ok();
    let json: Value =
        serde_json::from_slice(&std::fs::read(folder.join("t.json")).unwrap()).unwrap();
    let [up, down] = [&json[0], &json[1]];
    assert_eq!((up["name"].as_str(), down["name"].as_str()), (Some("bring-up"), Some("shutdown")));
    let span = |timeline: &Value, name: &str| {
        let spans = timeline["spans"].as_array().unwrap();
        let span = spans.iter().find(|span| span["name"] == name);
        let span = span.unwrap_or_else(|| panic!("no span {name}"));
        assert_eq!(span["outcome"], "ok", "{span}");
        (span["start_ns"].as_u64().unwrap(), span["end_ns"].as_u64().unwrap())
    };
    // Up: files, then devices over them, then exports. Down: in reverse.
    for (below, above) in
        [("disk0", "fast"), ("disk1", "fast"), ("fast", "export:fast"), ("disk3", "safe")]
    {
        assert!(span(up, below).1 <= span(up, above).0, "{above} came up before {below} was up");
        assert!(span(down, above).1 <= span(down, below).0, "{below} went before {above} was down");
    }
    for timeline in [up, down] {
        assert!(timeline["edges"].as_array().unwrap().iter().all(|edge| edge["kept"] == true));
    }
}

#[test]
fn the_command_line_says_where_to_listen() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--socket", "my.sock", "--tcp", "127.0.0.1:0"]);
    assert_eq!(server.socket(), folder.join("my.sock"));
    folder.client("nbdinfo", ["--size", &server.uri("fast")]).ok();
    folder.client("nbdinfo", ["--size", &server.tcp_uri("fast")]).ok();
    server.stop().ok();
    assert_eq!(folder.list(), [""; 0]);
}

#[test]
fn an_address_beyond_the_loopback_is_allowed_and_warned_about() {
    let folder = Folder::new();
    folder
        .corewise(["up", "--for", "1ms", "--tcp", "0.0.0.0:0"])
        .ok()
        .complains(&["warning: 0.0.0.0:", "other machines"]);
}

#[test]
fn a_manifest_comes_from_stdin_and_needs_no_server_table() {
    let folder = Folder::new();
    let mut command = folder.command(COREWISE);
    command.args(["up", "-", "--json", "--for", "1ms"]).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let text =
        "[[device]]\nname = \"n\"\ndriver = \"null\"\nsize = \"1T\"\n[[export]]\ndevice=\"n\"\n";
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let ready = stdout.lines().find(|line| line.starts_with("{\"event\":\"ready\"")).unwrap();
    let ready: Value = serde_json::from_str(ready).unwrap();
    assert!(ready["unix"].is_string() && ready["tcp"].is_null(), "{ready}");
    assert_eq!(ready["exports"][0]["size"], 1u64 << 40);
    assert_eq!(folder.list(), [""; 0]);
}

#[test]
fn a_reader_that_leaves_does_not_stop_the_server() {
    let folder = Folder::new();
    let mut command = folder.command(COREWISE);
    command.args(["up", "--json", "--socket", "s"]);
    let mut server = Server::spawn(command);
    server.wait_event("begin");
    server.close_stdout();
    // The server works: a client gets its answer, however long it takes until the socket is there.
    while !folder.join("s").exists() {
        std::thread::yield_now();
    }
    let mut client = Client::new(&folder.join("s"), "fast");
    assert!(client.read(0, 512).is_ok());
    drop(client);
    server.stop().ok();
    assert_eq!(folder.list(), [""; 0]);
}

#[test]
fn a_timeline_that_cannot_be_written_is_told_before_anything_begins() {
    let folder = Folder::new();
    let ran = folder.corewise(["up", "--for", "1ms", "--timeline", "missing/t.svg"]).code(1);
    let ran = ran.complains(&["error: cannot write the timeline 'missing/t.svg'"]);
    assert_eq!(ran.stdout, "", "{ran}");
    assert_eq!(folder.list(), [""; 0], "{ran}");
}

#[test]
fn a_failed_bring_up_has_a_timeline_too() {
    let folder = Folder::new();
    folder.write("up.toml", "[[device]]\nname = \"a\"\ndriver = \"file\"\npath = \"none\"\n");
    folder.corewise(["up", "up.toml", "--timeline", "t.json"]).code(1);
    let json: Value =
        serde_json::from_slice(&std::fs::read(folder.join("t.json")).unwrap()).unwrap();
    assert_eq!(json[0]["spans"][0]["outcome"], "failed");
}
