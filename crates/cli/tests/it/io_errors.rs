//! Each error that a client gets is in the log, and no number of them floods the log. A file that
//! another program truncates is reported.
#![allow(missing_docs, clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::Value;

use crate::common::client::Client;
use crate::common::server::Server;
use crate::common::{Folder, file};

/// Returns the lines of a log with this message, and the number of errors that they stand for.
fn told<'a>(log: &'a str, message: &str, last: &str) -> (Vec<&'a str>, u64) {
    let left_out = |line: &str| -> u64 {
        let value = line.split_once("left_out=").map_or("0", |(_, rest)| rest);
        value.split_whitespace().next().unwrap().parse().unwrap()
    };
    let lines: Vec<_> = log.lines().filter(|line| line.contains(message)).collect();
    let before: u64 = lines.iter().map(|line| left_out(line)).sum();
    let after: u64 = log.lines().filter(|line| line.contains(last)).map(left_out).sum();
    let all = lines.len() as u64 + before + after;
    (lines, all)
}

#[test]
fn errors_of_a_disk_are_told_with_what_was_asked_and_a_flood_of_them_in_a_few_lines() {
    const FAILED: u64 = 2_000;
    let folder = Folder::new();
    let manifest = "[[device]]\nname = \"good\"\ndriver = \"memory\"\nsize = \"1M\"\n\
                    [[device]]\nname = \"bad\"\ndriver = \"error\"\nover = [\"good\"]\nfails = [\"read\"]\n\
                    [[device]]\nname = \"top\"\ndriver = \"delay\"\nover = [\"bad\"]\nflush_delay = \"1ms\"\n\
                    [[export]]\ndevice = \"top\"\n[server]\nunix = \"s\"\n";
    folder.write("up.toml", manifest);
    let server = Server::start(&folder, &["up.toml"]);
    // There are two clients, so reconnecting is no way to fill the log.
    for _ in 0..2 {
        let mut client = Client::new(&server.socket(), "top");
        for n in 0..FAILED / 2 {
            assert_eq!(client.read(n % 100 * 512, 1024), Err(5));
        }
        // The log reports the client's own mistake, too.
        assert!(client.read(1 << 40, 512).is_err());
    }
    let ran = server.stop().ok();
    assert!(!ran.stderr.contains("a request failed"), "an error is one line, the client's: {ran}");
    let (client, all) =
        told(&ran.stderr, "a client's request failed", "further lines about a client");
    assert_eq!(all, FAILED, "{ran}");
    assert!((1..100).contains(&client.len()), "{} lines: {ran}", client.len());
    let (user, process) = (rustix::process::getuid().as_raw(), std::process::id());
    let peer = format!("peer=\"user {user}, process {process}\"");
    for part in [
        "WARN",
        "export=top",
        "device=top",
        "below=bad",
        &peer,
        "request=read",
        "offset=",
        "len=1024",
        "errno=5",
        "client=",
        "error=\"I/O error",
    ] {
        assert!(client.iter().all(|line| line.contains(part)), "{part}: {ran}");
    }
    let (refused, _) = told(&ran.stderr, "request was refused", "none");
    assert_eq!(refused.len(), 2, "{ran}");
    for part in [&*peer, "export=top", "errno=22", "request=READ"] {
        assert!(refused.iter().all(|line| line.contains(part)), "{part}: {ran}");
    }
}

#[test]
fn a_flush_that_fails_is_told_of_in_one_line() {
    let folder = Folder::new();
    let manifest = "[[device]]\nname = \"good\"\ndriver = \"memory\"\nsize = \"1M\"\n\
                    [[device]]\nname = \"bad\"\ndriver = \"error\"\nover = [\"good\"]\nfails = [\"flush\"]\ntimes = 1\n\
                    [[device]]\nname = \"top\"\ndriver = \"delay\"\nover = [\"bad\"]\nflush_delay = \"1ms\"\n\
                    [[export]]\ndevice = \"top\"\n[server]\nunix = \"s\"\n";
    folder.write("up.toml", manifest);
    let server = Server::start(&folder, &["up.toml"]);
    let mut client = Client::new(&server.socket(), "top");
    client.write(0, &[7; 4096], 0).unwrap();
    assert_eq!(client.flush(), Err(5));
    drop(client);
    let ran = server.stop().ok();
    let told: Vec<_> = ran.stderr.lines().filter(|line| line.contains("injected")).collect();
    assert_eq!(told.len(), 1, "{ran}");
    for part in ["a client's request failed", "device=top", "below=bad", "request=flush"] {
        assert!(told[0].contains(part), "{part}: {ran}");
    }
}

#[test]
fn a_leg_that_a_mirror_drops_is_told_of_in_one_line_that_has_the_error_and_names_the_disk_below() {
    let folder = Folder::new();
    let manifest = "[[device]]\nname = \"a\"\ndriver = \"memory\"\nsize = \"1M\"\n\
                    [[device]]\nname = \"good\"\ndriver = \"memory\"\nsize = \"1M\"\n\
                    [[device]]\nname = \"bad\"\ndriver = \"error\"\nover = [\"good\"]\nfails = [\"write\"]\nafter = 1\n\
                    [[device]]\nname = \"leg\"\ndriver = \"delay\"\nover = [\"bad\"]\nflush_delay = \"1ms\"\n\
                    [[device]]\nname = \"m\"\ndriver = \"mirror\"\nover = [\"a\", \"leg\"]\nbitmap = false\nretry = \"1h\"\n\
                    [[export]]\ndevice = \"m\"\n[server]\nunix = \"s\"\n";
    folder.write("up.toml", manifest);
    let server = Server::start(&folder, &["up.toml"]);
    let mut client = Client::new(&server.socket(), "m");
    for n in 0..4 {
        client.write(n * 4096, &[7; 4096], 0).unwrap();
    }
    drop(client);
    let ran = server.stop().ok();
    let told: Vec<_> = ran.stderr.lines().filter(|line| line.contains("injected")).collect();
    assert_eq!(told.len(), 1, "{ran}");
    assert!(told[0].contains("device 'm': the mirror dropped leg 'leg': bad: I/O error"), "{ran}");
    assert!(told[0].ends_with("corewise mirror m --take-back=leg"), "{ran}");
}

#[test]
fn a_client_that_does_all_it_can_to_fill_the_log_gets_a_few_lines_and_all_of_it_is_counted() {
    let folder = Folder::new();
    let manifest = "[[device]]\nname = \"m\"\ndriver = \"memory\"\nsize = \"1M\"\n\
                    [[export]]\ndevice = \"m\"\n[[export]]\nname = \"ro\"\ndevice = \"m\"\n\
                    read_only = true\n[server]\nunix = \"s\"\n";
    folder.write("up.toml", manifest);
    let server = Server::start(&folder, &["up.toml", "--log-format", "json"]);
    let mut caused = 0;
    for n in 0..100 {
        let mut client = Client::new(&server.socket(), if n % 2 == 0 { "m" } else { "ro" });
        for _ in 0..10 {
            assert!(client.read(1 << 40, 512).is_err());
            assert!(client.write(1 << 40, &[0; 512], 0).is_err());
            caused += 2;
        }
        client.send_raw(&[1; 28]).unwrap();
        assert!(client.is_closed());
        caused += 1;
    }
    let ran = server.stop().ok();
    let lines: Vec<serde_json::Value> = ran
        .stderr
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    // The log has a burst, one line per second, and one line per export at the end.
    assert!((3..80).contains(&lines.len()), "{} lines: {ran}", lines.len());
    let left_out = |line: &serde_json::Value| line["left_out"].as_u64().unwrap_or_default();
    let is_sum = |line: &&serde_json::Value| {
        line["message"]
            .as_str()
            .unwrap()
            .starts_with("further lines about a client were suppressed: ")
    };
    let sums = lines.iter().filter(is_sum).count();
    let told = (lines.len() - sums) as u64 + lines.iter().map(left_out).sum::<u64>();
    assert_eq!(told, caused, "{ran}");
    for line in &lines {
        assert!(line["peer"].as_str().unwrap().starts_with("user "), "{line}");
        assert!(line["timestamp"].as_str().unwrap().ends_with('Z'), "{line}");
        assert!(line["level"] == "WARN" && line["export"].is_string(), "{line}");
    }
}

#[test]
fn a_file_that_somebody_truncates_does_not_grow_again_and_the_log_says_so() {
    for io in ["auto", "threads"] {
        let folder = Folder::new();
        let manifest = format!(
            "[[device]]\nname = \"disk\"\ndriver = \"file\"\npath = \"disk.img\"\nsize = \"16M\"\n\
             create = true\nio = \"{io}\"\n[[export]]\ndevice = \"disk\"\n[server]\nunix = \"s\"\n"
        );
        folder.write("up.toml", manifest);
        let mut server = Server::start(&folder, &["up.toml"]);
        let uri = server.uri("disk");
        let qemu_io = |command: &str| folder.client("qemu-io", ["-f", "raw", "-c", command, &uri]);
        qemu_io("write -P 0x5a 0 16M").ok();
        let path = folder.join("disk.img");
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4 << 20).unwrap();
        let ran = qemu_io("write -P 0x11 8M 64k");
        assert!(format!("{ran}").contains("Input/output error"), "{io}: {ran}");
        assert_eq!(fs::metadata(&path).unwrap().len(), 4 << 20, "{io}: it grew");
        let ran = qemu_io("read -P 0x5a 0 4M").ok();
        assert!(!format!("{ran}").contains("failed"), "{io}: what is left is there: {ran}");
        assert_eq!(server.wait_event("file")["what"], "lost");
        let dump = folder.dump();
        assert_eq!(dump["disks"][0]["lost"], true, "{io}");
        assert!(dump["disks"][0]["condition"].as_str().unwrap().contains("was truncated"));
        folder.corewise(["dump"]).ok().says(&["disk: lost: the file was truncated"]);
        let ran = server.stop().fails();
        let line =
            ran.stderr.lines().find(|line| line.contains("a client's request failed")).unwrap();
        for part in [
            "export=disk",
            "device=disk",
            "request=write",
            "offset=8388608",
            "len=65536",
            "errno=5",
            "the file was truncated while in use, from 16777216 bytes to 4194304",
            "truncate -s 16777216",
        ] {
            assert!(line.contains(part), "{io}: {part}: {line}");
        }
        let lost: Vec<_> = ran.stderr.lines().filter(|l| l.contains("data is lost")).collect();
        assert!(lost.len() == 1 && lost[0].contains("device=disk"), "{io}: {ran}");
    }
}

#[test]
fn a_file_that_is_only_read_since_it_lost_data_says_so_to_newcomers_until_it_is_opened_again() {
    let folder = Folder::new();
    let manifest = "[[device]]\nname = \"disk\"\ndriver = \"file\"\npath = \"disk.img\"\nsize = \"1M\"\n\
                    create = true\non_lost = \"read-only\"\n[[export]]\ndevice = \"disk\"\n\
                    [server]\nunix = \"s\"\n";
    folder.write("up.toml", manifest);
    let mut server = Server::start(&folder, &["up.toml"]);
    let exports = || {
        let dump = folder.dump();
        let newcomer = folder.client("nbdinfo", ["--is", "read-only", &server.uri("disk")]);
        (dump["exports"][0]["read_only"] == true, newcomer.code == Some(0))
    };
    assert_eq!(exports(), (false, false));
    let mut client = Client::new(&server.socket(), "disk");
    fs::remove_file(folder.join("disk.img")).unwrap();
    assert_eq!(client.write(0, &[1; 512], 0), Err(1));
    assert_eq!(exports(), (true, true));
    drop(client);
    folder.write("up.toml", manifest.replace("read-only", "error"));
    // Writes that were acknowledged and not flushed can't be made durable.
    folder.corewise(["reload", "--mode", "hard"]).code(1);
    assert_eq!(exports(), (false, false));
    assert_eq!(server.wait_event("file")["what"], "lost");
    assert_eq!(server.wait_event("file")["what"], "closed");
    server.stop().ok();
}

#[test]
fn a_file_that_is_renamed_or_replaced_is_told_until_it_is_back_and_no_flush_fails() {
    let folder = Folder::new();
    let manifest = format!(
        "{}{}[[device]]\nname = \"pair\"\ndriver = \"mirror\"\nover = [\"a\", \"b\"]\n\
         [[export]]\ndevice = \"pair\"\n[server]\nunix = \"s\"\n",
        file("a", "1M"),
        file("b", "1M")
    );
    folder.write("up.toml", manifest);
    let mut server = Server::start(&folder, &["up.toml"]);
    let mut client = Client::new(&server.socket(), "pair");
    let [path, away] = ["b.img", "b.old"].map(|name| folder.join(name));
    for replaced in [false, true] {
        fs::rename(&path, &away).unwrap();
        if replaced {
            fs::write(&path, vec![0; 1 << 20]).unwrap();
        }
        let event = server.wait_event("file");
        assert_eq!((&event["device"], &event["what"]), (&"b".into(), &"moved".into()));
        client.write(0, &[7; 512], 0).unwrap();
        client.flush().unwrap();
        let dump = folder.dump();
        let disk =
            dump["disks"].as_array().unwrap().iter().find(|disk| disk["name"] == "b").unwrap();
        assert!(disk["displaced"] == true && disk["lost"] == false, "{disk}");
        assert!(disk["condition"].as_str().unwrap().contains("b.old"), "{disk}");
        fs::rename(&away, &path).unwrap();
        assert_eq!(server.wait_event("file")["what"], "back");
    }
    // The next server would find no file and make a new one.
    fs::rename(&path, &away).unwrap();
    let ran = server.stop().code(1);
    let says = [
        "shutdown of b: all data is written, but the next start won't find it: the path leads to no file",
    ];
    let ran = ran
        .complains(&says)
        .complains(&["b.old. Put the file back in its place, or change the path"]);
    let told = |says: &str| ran.stderr.lines().filter(|line| line.contains(says)).count();
    assert!(told("doesn't lead to its file") >= 2, "{ran}");
    assert_eq!(told("a file is back in its place"), 2, "{ran}");
    assert!(!path.exists());
}

#[test]
fn a_device_whose_file_was_renamed_is_removed_or_goes_on_under_the_new_path() {
    let folder = Folder::new();
    let manifest = "[[device]]\nname = \"a\"\ndriver = \"file\"\npath = \"a.img\"\n[[export]]\ndevice = \"a\"\n";
    folder.write("a.img", vec![0; 1 << 20]);
    folder.write("up.toml", manifest);
    let server = Server::start(&folder, &["up.toml"]);
    fs::rename(folder.join("a.img"), folder.join("b.img")).unwrap();
    folder.write("up.toml", manifest.replace("a.img", "b.img"));
    folder.corewise(["reload", "--mode", "hard"]).ok();
    let mut client = Client::new(&server.socket(), "a");
    client.write(0, &[7; 512], 0).unwrap();
    client.flush().unwrap();
    server.stop().ok();
    assert_eq!(fs::read(folder.join("b.img")).unwrap()[..512], [7; 512]);
}

#[test]
fn a_device_whose_write_log_is_cut_off_is_lost_and_says_what_to_do_about_the_log() {
    let folder = Folder::new();
    folder.write("a.img", vec![0; 1 << 20]);
    folder.write(
        "up.toml",
        "[[device]]\nname = \"a\"\ndriver = \"file\"\npath = \"a.img\"\nwrite_log = \"log\"\n[[export]]\ndevice = \"a\"\n",
    );
    let mut server = Server::start(&folder, &["up.toml"]);
    let mut client = Client::new(&server.socket(), "a");
    client.write(0, &[7; 512], 0).unwrap();
    fs::File::options().write(true).open(folder.join("log")).unwrap().set_len(512).unwrap();
    assert_eq!(client.write(0, &[8; 512], 0), Err(5));
    assert_eq!(server.wait_event("file")["what"], "moved");
    let says = [
        "lost\n  a: the device refuses changes: the write log ",
        "was truncated",
        "Move the write log away",
    ];
    folder.corewise(["health"]).code(4).says(&says);
    let ran = server.stop().code(1);
    let ran = ran.complains(&["a file device refuses changes, since its write log was moved"]);
    assert!(!ran.stderr.contains("doesn't lead to its file"), "{ran}");
    // The file is no log any more, and the error says what to do.
    folder.corewise(["up", "up.toml", "--for", "1ms"]).code(1).complains(&["move it away"]);
    fs::remove_file(folder.join("log")).unwrap();
    Server::start(&folder, &["up.toml"]).stop().ok();
}

#[test]
fn those_that_listen_hear_of_the_first_errors_that_a_client_got_and_that_a_disk_gave() {
    let folder = Folder::new();
    let manifest = "[[device]]\nname = \"good\"\ndriver = \"memory\"\nsize = \"1M\"\n\
                    [[device]]\nname = \"bad\"\ndriver = \"error\"\nover = [\"good\"]\nfails = [\"read\"]\n\
                    [[export]]\ndevice = \"bad\"\n[server]\nunix = \"s\"\n";
    folder.write("up.toml", manifest);
    // An empty log gives the same.
    let server = Server::start(&folder, &["up.toml", "--log", "off"]);
    let mut stream = UnixStream::connect(server.control()).unwrap();
    stream.write_all(b"{\"corewise\":1,\"ask\":\"events\"}\n").unwrap();
    let mut lines = BufReader::new(stream).lines();
    lines.next().unwrap().unwrap();
    let mut client = Client::new(&server.socket(), "bad");
    for _ in 0..1_000 {
        assert_eq!(client.read(4096, 512), Err(5));
    }
    drop(client);
    let mut told = Vec::new();
    loop {
        let event: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        match event["event"].as_str().unwrap() {
            "log" => told.push(event),
            "left" => break,
            _ => {}
        }
    }
    let of = |message: &str| {
        told.iter().filter(|event| event["message"] == message).cloned().collect::<Vec<_>>()
    };
    let client = of("a client's request failed");
    assert!((1..30).contains(&client.len()), "{client:?}");
    let first = &client[0];
    assert_eq!((&first["export"], &first["device"]), (&"bad".into(), &"bad".into()), "{first}");
    assert_eq!(first["level"], "WARN", "{first}");
    assert_eq!((&first["offset"], &first["errno"]), (&4096.into(), &5.into()), "{first}");
    assert!(first["time"].is_f64() && first["error"].is_string(), "{first}");
    assert_eq!(of("a request failed"), Vec::<Value>::new(), "it is one line");
    assert!(client[0]["peer"].as_str().unwrap().starts_with("user "), "{}", client[0]);
    server.stop().ok();
}

/// Limits the size of files, as `ulimit -f` does. The system then sends a signal, which ends a
/// program that doesn't expect it.
#[test]
fn a_write_beyond_the_size_that_the_system_lets_files_have_fails_and_others_are_served_on() {
    let folder = Folder::new();
    let file = |name: &str, io: &str| {
        format!(
            "[[device]]\nname = \"{name}\"\ndriver = \"file\"\npath = \"{name}.img\"\nsize = \"2M\"\ncreate = true\n\
             io = \"{io}\"\n[[export]]\ndevice = \"{name}\"\n"
        )
    };
    folder.write("up.toml", file("a", "auto") + &file("b", "threads"));
    let server = Server::start(&folder, &["up.toml"]);
    let pid = Pid::from_raw(server.pid().try_into().unwrap());
    let limit = Some(1 << 20);
    prlimit(pid, Resource::Fsize, Rlimit { current: limit, maximum: limit }).unwrap();
    for name in ["a", "b"] {
        let mut client = Client::new(&server.socket(), name);
        assert_eq!(client.write(1 << 20, &[7; 4096], 0), Err(28));
        client.write(0, &[7; 4096], 0).unwrap();
        client.flush().unwrap();
    }
    server.stop().ok();
}
