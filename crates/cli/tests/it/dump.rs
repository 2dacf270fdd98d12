//! `corewise dump` against a real `corewise up`: text, JSON, monitor, several servers, leftovers of
//! killed ones, and hostile clients of the control socket.
#![allow(missing_docs, clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use crate::common::client::{Client, pattern};
use crate::common::server::Server;
use crate::common::{COREWISE, Folder};
use serde_json::{Value, json};

const ASK: &[u8] = b"{\"corewise\":1,\"ask\":\"dump\"}\n";
const HELLO: &[u8] = b"{\"corewise\":1,\"ask\":\"hello\"}\n";

fn connect(server: &Server) -> UnixStream {
    let stream = UnixStream::connect(server.control()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
    stream
}

/// Sends these bytes and nothing more, and returns the answers.
fn answers(server: &Server, bytes: &[u8]) -> Vec<Value> {
    let mut stream = connect(server);
    // The server may hang up before it has all of it.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    lines.map(|line| serde_json::from_str(&line).unwrap()).collect()
}

/// Starts a server that has served requests.
fn busy_server(folder: &Folder) -> Server {
    let server = Server::start(folder, &[]);
    let mut client = Client::new(&server.socket(), "fast");
    for at in 0..8 {
        client.write(at << 20, &pattern(at, 1 << 20), 0).unwrap();
    }
    client.flush().unwrap();
    server
}

#[test]
fn the_text_has_scopes_pools_and_queues_of_the_one_server_that_runs() {
    let folder = Folder::new();
    let server = busy_server(&folder);
    let ran = folder.corewise(["dump"]).ok().says(&[
        &format!("process {}, the built-in manifest, up for ", server.pid()),
        "Affinity scopes",
        "  cache_shard (default): ",
        "    pod_cpus [0]=",
        "    cpu_pod  [",
        "Worker pools",
        "idle/workers",
        "cache_shard/0",
        "Queues",
        "volumes",
        "device",
        "Devices",
        "export:fast",
        "bound",
        "Disks",
        "write",
        "8.0",
    ]);
    assert_eq!(ran.stderr, "");
    assert!(!ran.stdout.contains('\x1b'), "colours that nobody can see\n{ran}");
    for args in [
        vec!["--pid".to_string(), server.pid().to_string()],
        vec!["--control".to_string(), server.control().display().to_string()],
    ] {
        let ran = folder.corewise(["dump".to_string()].into_iter().chain(args)).ok();
        ran.says(&["Worker pools", "volumes"]);
    }
    server.stop().ok();
    assert_eq!(folder.list(), [""; 0]);
}

#[test]
fn the_devices_tell_their_state_what_they_need_and_what_their_probe_cost() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let dump = folder.dump();
    let devices = dump["devices"].as_array().unwrap();
    for device in devices {
        assert_eq!((&device["state"], &device["waits"]), (&"bound".into(), &Value::Null));
        assert_eq!((&device["attempts"], &device["deferrals"]), (&1.into(), &0.into()));
        assert!(device["probe_seconds"].as_f64().unwrap() > 0.0, "{device}");
        assert!(device["worker"].as_str().is_some_and(|worker| !worker.is_empty()), "{device}");
    }
    let export = devices.iter().find(|device| device["name"] == "export:fast").unwrap();
    let need = json!({"device": "fast", "edge": "supplier", "optional": false, "state": "bound"});
    assert_eq!((&export["needs"], &export["released_by"]), (&json!([need]), &"fast".into()));
    let some = folder.corewise(["dump", "--json", "volumes"]).ok().json();
    assert!(some.get("devices").is_none(), "only queues were asked for");
    server.stop().ok();
}

#[test]
fn a_disk_tells_what_it_has_done_and_how_long_that_took() {
    let folder = Folder::new();
    let server = busy_server(&folder);
    let dump = folder.dump();
    let disks = dump["disks"].as_array().unwrap();
    let fast = disks.iter().find(|disk| disk["name"] == "fast").unwrap();
    assert_eq!(fast["scheduler"], "none");
    // A megabyte goes to the disk in two pieces, so that others have their turn between them.
    assert_eq!((&fast["writes"]["requests"], &fast["writes"]["errors"]), (&16.into(), &0.into()));
    assert_eq!(fast["writes"]["bytes"], 8 << 20);
    let latency = &fast["writes"]["latency"];
    let [p50, longest] = ["p50_seconds", "longest_seconds"].map(|name| latency[name].as_f64());
    assert!(p50.unwrap() > 0.0 && p50 <= longest, "{latency}");
    let timed = latency["histogram"].as_array().unwrap().iter();
    let timed: u64 = timed.map(|bucket| bucket[1].as_u64().unwrap()).sum();
    // The first eight of a box are timed, and then one that stands for eight.
    assert!((8..=32).contains(&timed), "{timed}");
    assert_eq!(fast["reads"]["latency"]["p50_seconds"], Value::Null, "nothing was read");
    let queues = fast["hw_queues"].as_array().unwrap();
    let sum = |name| queues.iter().map(|queue| queue[name].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("dispatched"), sum("in_flight")), (17, 0), "and a flush");
    server.stop().ok();
}

/// Returns a dump of a server at rest: a client has its answer a moment before its item has ended.
fn at_rest(folder: &Folder) -> Value {
    loop {
        let dump = folder.dump();
        let rests = |queue: &Value| queue["in_flight"] == 0 && queue["running"] == 0;
        if dump["queues"].as_array().unwrap().iter().all(rests) {
            return dump;
        }
    }
}

#[test]
fn the_json_has_the_promised_shape_and_its_numbers_add_up() {
    let folder = Folder::new();
    let server = busy_server(&folder);
    let dump = at_rest(&folder);
    assert_eq!(dump["corewise"], 1);
    assert_eq!(dump["pid"], server.pid());
    assert_eq!(dump["manifest"], "the built-in manifest");
    assert!(dump["up_seconds"].as_f64().unwrap() > 0.0);
    assert!(dump.get("text").is_none(), "nobody asked for text");
    let topo = folder.corewise(["topo", "--json"]).ok().json();
    for scope in dump["scopes"].as_array().unwrap() {
        let name = scope["scope"].as_str().unwrap();
        assert_eq!(scope["pods"], topo["scopes"][name], "{name}");
        assert_eq!(scope["default"], name == "cache_shard");
    }
    let pools = dump["pools"].as_array().unwrap();
    assert!(!pools.is_empty());
    for (index, pool) in pools.iter().enumerate() {
        assert_eq!(pool["pool"], index);
        let number = |key: &str| pool[key].as_u64().unwrap_or_else(|| panic!("{key}: {pool}"));
        assert!(number("workers") >= number("idle") + number("blocked"), "{pool}");
        assert!(number("threads_made") >= number("workers"), "{pool}");
        assert!(pool["cpu_seconds"].as_f64().is_some() && pool["kind"] == "unbound", "{pool}");
        assert!(pool["cpus"].is_string() && pool["strict"].is_boolean() && number("queues") > 0);
    }
    let queues = dump["queues"].as_array().unwrap();
    let names: Vec<&str> = queues.iter().map(|queue| queue["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"volumes") && names.contains(&"device"), "{names:?}");
    for queue in queues {
        let sum = |key: &str| -> u64 {
            let links = queue["pools"].as_array().unwrap();
            links.iter().map(|link| link[key].as_u64().unwrap()).sum()
        };
        // Nothing is in flight.
        assert_eq!(queue["started"], queue["completed"], "{queue}");
        assert_eq!(queue["timed"], queue["name"] == "volumes", "{queue}");
        for key in ["queued", "completed", "cancelled"] {
            assert_eq!(queue[key], sum(key), "{key}: {queue}");
        }
        assert_eq!(queue["in_flight"], 0, "{queue}");
        assert!(queue["max_active"].is_null() && queue["kind"] == "unbound", "{queue}");
    }
    assert!(dump["running"].is_array());
    let device = queues.iter().find(|queue| queue["name"] == "device").unwrap();
    assert_eq!(device["queued"], 10, "seven volumes and three exports came up");
    server.stop().ok();
}

#[test]
fn queues_are_chosen_by_name() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let names = |args: &[&str]| {
        let dump = folder.corewise([&["dump", "--json"], args].concat()).ok().json();
        let queues = dump["queues"].as_array().unwrap();
        queues.iter().map(|queue| queue["name"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(names(&["volumes"]), ["volumes"]);
    assert_eq!(names(&["vol*", "*vice"]), ["volumes", "device"]);
    let ran = folder.corewise(["dump", "volume"]).code(1);
    ran.complains(&["error: process ", "there is no queue 'volume'", "volumes, device"]);
    server.stop().ok();
}

#[test]
fn the_monitor_shows_rounds_and_ends_with_its_server() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let ran = folder.corewise(["dump", "--monitor=10ms", "--rounds", "2"]).ok();
    assert_eq!(ran.stdout.matches(" infl ").count(), 2, "{ran}");
    assert_eq!(ran.stdout.matches("\nvolumes ").count(), 2, "{ran}");
    let args = ["dump", "--monitor=10ms", "--rounds", "2", "--json", "volumes"];
    let ran = folder.corewise(args).ok();
    let rounds: Vec<Value> =
        ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rounds.len(), 2, "{ran}");
    assert_eq!(rounds[1]["round"], 2);
    assert_eq!(rounds[1]["queues"].as_array().unwrap().len(), 1);
    assert!(rounds[1]["up_seconds"].as_f64() > rounds[0]["up_seconds"].as_f64());
    // The next monitor runs until its server ends.
    let mut command = folder.command(COREWISE);
    command.args(["dump", "--monitor=10ms", "--json"]);
    let mut monitor = Server::spawn(command);
    monitor.wait_line("a third round", |line| line.contains("\"round\":3"));
    server.stop().ok();
    monitor.wait().code(1).complains(&["error: process ", "has ended"]);
}

#[test]
fn with_no_server_or_several_it_says_so() {
    let folder = Folder::new();
    let ran = folder.corewise(["dump"]).code(1);
    ran.complains(&["error: found no running `corewise up` in ", "help: ", "--control"]);
    let (first, second) = (Server::start(&folder, &[]), Server::start(&folder, &[]));
    let ran = folder.corewise(["dump"]).code(1).complains(&[
        "2 servers run; choose one with --pid",
        &format!("--pid {}", first.pid()),
        &format!("--pid {}", second.pid()),
        "the built-in manifest, up for ",
    ]);
    assert_eq!(ran.stdout, "");
    for server in [&first, &second] {
        let ran = folder.corewise(["dump", "--json", "--pid", &server.pid().to_string()]).ok();
        assert_eq!(ran.json()["pid"], server.pid());
    }
    first.stop().ok();
    let ran = folder.corewise(["dump", "--json"]).ok();
    assert_eq!(ran.json()["pid"], second.pid(), "the other one is alone now");
    second.stop().ok();
    folder.corewise(["dump", "--pid", "1"]).code(1).complains(&["process 1 has no control socket"]);
    folder.corewise(["dump", "--control", "x"]).code(1).complains(&["the socket x does not exist"]);
    folder.corewise(["dump", "--control", "x", "--pid", "1"]).code(2);
    folder.corewise(["dump", "--rounds", "1"]).code(2);
    folder.corewise(["dump", "--monitor=0s"]).code(2).complains(&["must be at least 10ms"]);
    assert_eq!(folder.list(), [""; 0]);
}

#[test]
fn the_socket_is_for_its_owner_and_goes_with_the_server() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let meta = server.control().metadata().unwrap();
    assert!(meta.file_type().is_socket());
    assert_eq!(meta.mode() & 0o777, 0o600);
    let parent = server.control().parent().unwrap().metadata().unwrap();
    assert_eq!(parent.mode() & 0o777, 0o700);
    server.stop().ok();
    assert_eq!(folder.list(), [""; 0]);
}

#[test]
fn the_next_user_removes_the_socket_of_a_killed_server() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--socket", "s"]);
    let control = server.control();
    server.kill();
    assert!(control.exists());
    folder
        .corewise(["dump", "--control", control.to_str().unwrap()])
        .code(1)
        .complains(&["killed"]);
    folder.corewise(["dump"]).code(1).complains(&["no running `corewise up`"]);
    assert!(!control.exists() && !control.parent().unwrap().exists());
    // The next server removes it, too.
    let server = Server::start(&folder, &["--socket", "s"]);
    let control = server.control();
    server.kill();
    folder.corewise(["up", "--for", "1ms", "--no-control"]).ok();
    assert!(control.exists(), "one without a control socket has no business there");
    folder.corewise(["up", "--for", "1ms"]).ok();
    assert!(!control.exists());
}

#[test]
fn the_socket_goes_where_the_user_wants_it_and_is_found_all_the_same() {
    let folder = Folder::new();
    folder.write(
        "up.toml",
        "[[device]]\nname = \"m\"\ndriver = \"memory\"\nsize = \"1M\"\n[server]\nunix = \"s\"\n\
         control = \"from-manifest\"\n",
    );
    let server = Server::start(&folder, &["up.toml"]);
    assert_eq!(server.control(), folder.join("from-manifest"));
    assert_eq!(folder.dump()["manifest"], "up.toml");
    let ran = folder.corewise(["up", "up.toml", "--socket", "t"]).code(1);
    ran.complains(&["up.toml:7:", "from-manifest: another server listens on this socket"]);
    server.stop().ok();
    let server = Server::start(&folder, &["up.toml", "--control", "mine"]);
    assert_eq!(server.control(), folder.join("mine"));
    folder.corewise(["dump", "--control", "mine"]).ok();
    let pid = server.pid().to_string();
    folder.corewise(["dump", "--pid", &pid]).ok();
    server.kill();
    // The server takes a leftover socket over.
    let server = Server::start(&folder, &["up.toml", "--control", "mine"]);
    folder.corewise(["dump", "--control", "mine"]).ok();
    server.stop().ok();
    assert_eq!(folder.list(), ["up.toml"]);
    let ran = folder.corewise(["up", "--for", "1ms", "--control", "missing/c"]).code(1);
    ran.complains(&["missing/c: its folder does not exist"]);
    folder.write("file", "letters");
    let ran = folder.corewise(["up", "--for", "1ms", "--control", "file"]).code(1);
    ran.complains(&["file: this file exists and is not a socket"]);
    assert_eq!(std::fs::read_to_string(folder.join("file")).unwrap(), "letters");
}

#[test]
fn without_a_control_socket_nothing_answers_and_nothing_is_missing() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--no-control"]);
    assert!(server.ready["control"].is_null());
    folder.corewise(["dump"]).code(1).complains(&["no running `corewise up`"]);
    server.stop().ok();
    // A server starts even if it can't make its control socket.
    let mut command = folder.command(COREWISE);
    command.args(["up", "--for", "1ms", "--socket", "s"]);
    std::fs::write(folder.join(&format!("tmp/corewise-{}", uid())), "in the way").unwrap();
    crate::common::run(command).ok().complains(&["warning: no control socket for `corewise dump`"]);
}

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[test]
fn a_runtime_folder_comes_before_that_of_temporary_files() {
    let folder = Folder::new();
    std::fs::create_dir(folder.join("run")).unwrap();
    let mut command = folder.command(COREWISE);
    command.args(["up", "--json"]).env("XDG_RUNTIME_DIR", folder.join("run"));
    let mut server = Server::spawn(command);
    let ready = server.wait_event("ready");
    let socket = folder.join(&format!("run/corewise/{}.sock", server.pid()));
    assert_eq!(ready["control"], socket.display().to_string());
    folder.corewise(["dump"]).code(1);
    let mut command = folder.command(COREWISE);
    command.arg("dump").env("XDG_RUNTIME_DIR", folder.join("run"));
    crate::common::run(command).ok().says(&["volumes"]);
    server.stop().ok();
    assert_eq!(folder.list(), ["run"]);
}

#[test]
fn bad_questions_are_answered_with_the_valid_ones() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let long = [&[b'x'; 5000][..], b"\n", ASK].concat();
    let deep = "[".repeat(4000) + "\n";
    for (question, answer) in [
        (&b"\n"[..], "not a question"),
        (b"GET / HTTP/1.1\r\n", "not a question"),
        (b"{\"ask\":\"dump\"}\n", "missing field `corewise`"),
        (b"{\"corewise\":2,\"ask\":\"dump\"}\n", "speaks version 1, not version 2"),
        (b"{\"corewise\":1,\"ask\":\"reboot\"}\n", "there is no question 'reboot'"),
        (b"{\"corewise\":1,\"ask\":\"dump\",\"queues\":[\"x\"]}\n", "there is no queue 'x'"),
        (b"\xff\xfe\x00\n", "not a question"),
        (deep.as_bytes(), "not a question"),
        (&long, "at most 4096 bytes"),
    ] {
        let answers = answers(&server, question);
        assert_eq!(answers.len(), 1, "{answers:?}");
        let error = answers[0]["error"].as_str().unwrap();
        assert!(error.contains(answer), "{error}");
        assert_eq!(answers[0]["corewise"], 1);
    }
    let two = answers(&server, &[HELLO, ASK].concat());
    assert_eq!(two.len(), 2);
    assert!(two[0].get("queues").is_none() && two[1]["queues"].is_array());
    let end = answers(&server, HELLO.trim_ascii_end());
    assert_eq!(end[0]["pid"], server.pid(), "the last line needs no end");
    let text = answers(&server, b"{\"corewise\":1,\"ask\":\"dump\",\"text\":99999999}\n");
    assert!(text[0]["text"].as_str().unwrap().contains("Worker pools"));
    let ran = server.stop().ok();
    assert!(!ran.stderr.contains("panicked"), "{ran}");
}

#[test]
fn clients_that_mean_no_good_hold_up_neither_the_server_nor_others() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    // There are more connections than places. They say nothing or half a question, or take no
    // answers.
    let mut held: Vec<UnixStream> = Vec::new();
    for index in 0..60 {
        let mut stream = connect(&server);
        let said: &[u8] = match index % 3 {
            0 => b"",
            1 => &ASK[..10],
            _ => &ASK.repeat(100),
        };
        let _ = stream.write_all(said);
        held.push(stream);
    }
    assert_eq!(answers(&server, HELLO)[0]["pid"], server.pid());
    folder.corewise(["dump"]).ok();
    // A client that floods and reads nothing doesn't starve the next one.
    let mut flood = connect(&server);
    flood.set_nonblocking(true).unwrap();
    while flood.write(ASK).is_ok() {}
    assert_eq!(answers(&server, HELLO)[0]["pid"], server.pid());
    // The clients leave during that.
    for mut stream in held.drain(..) {
        let _ = stream.write_all(ASK);
    }
    drop(flood);
    let mut client = Client::new(&server.socket(), "fast");
    assert!(client.read(0, 4096).is_ok(), "the server serves");
    drop(client);
    // The server doesn't wait for clients that are still there at its end.
    let mut last = connect(&server);
    last.write_all(&ASK[..5]).unwrap();
    let ran = server.stop().ok();
    assert_eq!(last.read(&mut [0]).unwrap_or(0), 0);
    assert!(!ran.stderr.contains("panicked"), "{ran}");
    assert_eq!(folder.list(), [""; 0]);
}

#[test]
fn answers_of_a_strange_server_are_not_trusted() {
    let folder = Folder::new();
    let listener = UnixListener::bind(folder.join("strange")).unwrap();
    let answers: [(&[u8], &str); 5] = [
        (b"", "the server has ended"),
        (b"{\"corewise\":1", "the server sent only a part of its answer"),
        (b"hello\n", "the server's answer is not JSON"),
        (b"{\"corewise\":7}\n", "the server speaks protocol version 7, and this program version 1"),
        (b"{\"corewise\":1,\"error\":\"\\u001b[2Jno\"}\n", "\u{fffd}[2Jno"),
    ];
    for (answer, says) in answers {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (stream, _) = listener.accept().unwrap();
                let mut question = String::new();
                BufReader::new(&stream).read_line(&mut question).unwrap();
                let question: Value = serde_json::from_str(&question).unwrap();
                assert_eq!(question["corewise"], json!(1));
                (&stream).write_all(answer).unwrap();
            });
            let ran = folder.corewise(["dump", "--control", "strange"]).code(1);
            ran.complains(&["error: the server at strange: ", says]);
        });
    }
}
