//! A running `corewise up` that is changed while it serves: `add`, `remove`, `reload` and SIGHUP.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread::JoinHandle;

use crate::common::client::{Client, READ, connect};
use crate::common::lease::Lease;
use crate::common::server::Server;
use crate::common::{COREWISE, Folder, Ran, run};
use rustix::process::Signal;
use serde_json::Value;

const EPERM: u32 = 1;
const ENOSPC: u32 = 28;

const BASE: &str = "[server]\nunix = \"s\"\ncontrol = \"c\"\ndrain = \"5s\"\n\
    [[device]]\nname = \"disk\"\ndriver = \"file\"\npath = \"disk.img\"\nsize = \"1M\"\ncreate = true\n\
    [[device]]\nname = \"ram\"\ndriver = \"memory\"\nsize = \"1M\"\n\
    [[export]]\ndevice = \"disk\"\n\
    [[export]]\ndevice = \"ram\"\n";

/// Returns a manifest whose memory is exported through a device that delays reads.
fn slow(read_delay: &str) -> String {
    let device = "[[device]]\nname = \"slow\"\ndriver = \"delay\"\nover = [\"ram\"]\n";
    let slow = format!("{device}read_delay = \"{read_delay}\"\n[[export]]\ndevice = \"slow\"");
    BASE.replace("[[export]]\ndevice = \"ram\"", &slow)
}

struct Up {
    folder: Folder,
    server: Server,
}

impl Up {
    fn new(manifest: &str) -> Up {
        let folder = Folder::new();
        folder.write("up.toml", manifest);
        let server = Server::start(&folder, &["up.toml"]);
        Up { folder, server }
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("s")
    }

    fn client(&self, export: &str) -> Client {
        Client::new(&self.socket(), export)
    }

    fn corewise(&self, args: &[&str]) -> Ran {
        self.folder.corewise(args.iter().chain(&["--control", "c"]))
    }

    fn dump(&self) -> Value {
        self.corewise(&["dump", "--json"]).ok().json()
    }

    /// Waits until a request has come to that disk.
    fn wait_in_flight(&self, name: &str) {
        let busy = |disk: &Value| disk["name"] == name && disk["in_flight"] != 0;
        while !self.dump()["disks"].as_array().unwrap().iter().any(busy) {
            std::thread::yield_now();
        }
    }

    /// Begins to remove a device of which a client has a request in flight.
    fn begin_removal(&self, name: &str) -> JoinHandle<Ran> {
        let mut removal = self.folder.command(COREWISE);
        removal.args(["remove", name, "--mode", "soft", "--control", "c"]);
        let removal = std::thread::spawn(|| run(removal));
        // A new client doesn't find it: the removal has begun.
        while Client::over(connect(&self.socket()), name).is_ok() {}
        removal
    }

    /// Returns the names of everything that is up.
    fn names(&self) -> BTreeSet<String> {
        let dump = self.dump();
        let devices = dump["devices"].as_array().unwrap().iter();
        assert!(devices.clone().all(|device| device["state"] == "bound"), "{dump}");
        devices.map(|device| device["name"].as_str().unwrap().to_string()).collect()
    }
}

fn set<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_string).into()
}

#[test]
fn what_is_added_comes_up_in_its_order_beside_clients_that_go_on() {
    let up = Up::new(BASE);
    let mut old = up.client("disk");
    up.folder.write(
        "more.toml",
        "[[device]]\nname = \"part\"\ndriver = \"memory\"\nsize = \"1M\"\n\
         [[device]]\nname = \"wide\"\ndriver = \"stripe\"\nover = [\"part\", \"more\"]\n\
         [[device]]\nname = \"more\"\ndriver = \"memory\"\nsize = \"1M\"\nsuppliers = [\"ram\"]\n\
         [[export]]\ndevice = \"wide\"\n",
    );
    let would = up.corewise(&["add", "more.toml", "--dry-run"]).ok();
    would.says(&["would add device 'wide'", "would add export 'wide'"]);
    assert_eq!(up.names(), set(["disk", "ram", "export:disk", "export:ram"]));
    let ran = up.corewise(&["add", "more.toml"]).ok();
    ran.says(&["added device 'wide'", "bring-up: 4 devices, all ok"]);
    let mut new = up.client("wide");
    new.write(4096, &[7; 4096], 0).unwrap();
    assert_eq!(new.read(4096, 4096).unwrap(), [7; 4096]);
    old.write(0, &[1; 512], 0).unwrap();
    let again = up.corewise(&["add", "more.toml"]).code(1);
    again
        .complains(&["more.toml:2:8: device 'part': the server has a device of this name already"]);
    let needed = up.corewise(&["remove", "ram"]).code(1);
    needed.complains(&["'more' needs 'ram': remove it first"]);
    drop(new);
    let ran = up.corewise(&["remove", "wide", "--mode", "soft"]).ok();
    ran.says(&["removed export 'wide'", "removed device 'wide'", "removal: 2 devices, all ok"]);
    assert!(Client::over(connect(&up.socket()), "wide").is_err());
    old.flush().unwrap();
    up.server.stop().ok();
}

#[test]
fn of_an_addition_that_fails_nothing_stays() {
    let up = Up::new(BASE);
    up.folder.write(
        "more.toml",
        "[[device]]\nname = \"good\"\ndriver = \"file\"\npath = \"new.img\"\nsize = \"1M\"\ncreate = true\n\
         [[device]]\nname = \"bad\"\ndriver = \"file\"\npath = \"none.img\"\nsuppliers = [\"good\"]\n\
         [[export]]\ndevice = \"good\"\n",
    );
    let ran = up.corewise(&["add", "more.toml"]).code(1);
    ran.complains(&["the server added nothing: bad: ", "the file does not exist"]);
    assert_eq!(up.names(), set(["disk", "ram", "export:disk", "export:ram"]));
    let problem = |text: &str| {
        up.folder.write("wrong.toml", text);
        up.corewise(&["add", "wrong.toml"]).code(1)
    };
    problem("[server]\ndrain = \"1s\"\n")
        .complains(&["wrong.toml:1:1: [server]: a running server keeps"]);
    problem(
        "[[device]]\nname = \"x\"\ndriver = \"delay\"\nover = [\"ram\"]\nread_delay = \"1s\"\n",
    )
    .complains(&["clients may write to 'ram' by the export 'ram'", "make it read-only"]);
    problem("[[export]]\nname = \"ram\"\ndevice = \"disk\"\n")
        .complains(&["the server has an export of this name already"]);
    problem("[[device]]\nname = \"x\"\ndriver = \"file\"\npath = \"disk.img\"\n")
        .complains(&["the server's device 'disk' has the same file"]);
    assert!(!up.folder.join("new.img").exists(), "it was made, and is removed");
    for no_file in ["/dev/zero", "tmp", "none.toml"] {
        let ran = up.corewise(&["add", no_file]).code(1);
        ran.complains(&["cannot read the manifest '"]);
    }
    up.corewise(&["add", "-"]).code(1).complains(&["write it to a file"]);
    up.server.stop().ok();
}

#[test]
fn a_file_that_an_addition_makes_is_announced_once_it_stays() {
    let mut up = Up::new(BASE);
    let good = "[[device]]\nname = \"good\"\ndriver = \"file\"\npath = \"new.img\"\nsize = \"1M\"\ncreate = true\n";
    let bad = "[[device]]\nname = \"bad\"\ndriver = \"file\"\npath = \"none.img\"\nsuppliers = [\"good\"]\n";
    up.folder.write("bad.toml", good.to_owned() + bad);
    up.folder.write("good.toml", good);
    up.corewise(&["add", "bad.toml"]).code(1);
    up.corewise(&["add", "good.toml"]).ok();
    let event = up.server.wait_event("file");
    assert_eq!((&event["device"], &event["what"]), (&"good".into(), &"made".into()), "{event}");
    let ran = up.server.stop().ok();
    assert_eq!(ran.stderr.matches("new.img, and made a new volume").count(), 1, "{ran}");
}

#[test]
fn clients_of_what_goes_keep_it_or_finish_or_are_cut_as_the_mode_says() {
    let up = Up::new(&slow("300ms"));
    let mut client = up.client("slow");
    let refused = up.corewise(&["remove", "slow"]).code(1);
    refused.complains(&["export 'slow' has 1 client; --mode soft answers"]);
    client.flush().unwrap();
    drop(up.client("slow"));
    // The request is a read.
    let cookie = client.send(0, 0, 0, 512, &[]).unwrap();
    up.wait_in_flight("slow");
    let ran = up.corewise(&["remove", "export:slow", "--mode", "soft"]).ok();
    ran.says(&["removed export 'slow' (1 client)"]);
    assert_eq!(client.receive(512).unwrap(), (cookie, Ok(vec![0; 512])), "it was answered");
    assert!(client.is_closed());
    assert!(up.names().contains("slow"), "only its export went");
    up.folder.write("more.toml", "[[export]]\ndevice = \"slow\"\n");
    up.corewise(&["add", "more.toml"]).ok();
    let mut client = up.client("slow");
    client.send(0, 0, 0, 512, &[]).unwrap();
    up.wait_in_flight("slow");
    up.corewise(&["remove", "export:slow", "--mode", "hard"]).ok();
    // On a slow machine the read was answered before.
    while client.receive(512).is_ok() {}
    up.server.stop().ok();
}

#[test]
fn a_server_that_is_stopped_in_the_midst_of_a_change_ends_in_order() {
    let up = Up::new(&slow("500ms"));
    let mut client = up.client("slow");
    let cookie = client.send(0, 0, 0, 512, &[]).unwrap();
    up.wait_in_flight("slow");
    let removal = up.begin_removal("slow");
    up.server.signal(Signal::TERM);
    removal.join().unwrap();
    assert_eq!(client.receive(512).unwrap(), (cookie, Ok(vec![0; 512])));
    up.server.wait().ok();
}

#[test]
fn a_sighup_during_a_change_follows_the_manifest_after_it() {
    let mut up = Up::new(&slow("300ms"));
    let mut client = up.client("slow");
    client.send(0, 0, 0, 512, &[]).unwrap();
    up.wait_in_flight("slow");
    up.folder.write(
        "up.toml",
        BASE.replace("name = \"ram\"", "name = \"new\"")
            .replace("device = \"ram\"", "device = \"new\""),
    );
    let removal = up.begin_removal("slow");
    for _ in 0..3 {
        up.server.signal(Signal::HUP);
    }
    removal.join().unwrap().ok();
    up.server.wait_line("the new device", |line| {
        line.starts_with("{\"event\":\"changed\"") && line.contains("\"new\"")
    });
    assert_eq!(up.names(), set(["disk", "new", "export:disk", "export:new"]));
    up.server.stop().ok();
}

#[test]
fn a_hidden_export_goes_with_its_last_client() {
    let mut up = Up::new(BASE);
    let mut client = up.client("ram");
    up.corewise(&["remove", "ram", "--mode", "hide"])
        .ok()
        .says(&["hidden export 'ram' (1 client)"]);
    client.write(0, &[1; 512], 0).unwrap();
    assert!(Client::over(connect(&up.socket()), "ram").is_err());
    let again = up.corewise(&["remove", "ram", "--mode", "hide"]).code(1);
    again.complains(&["hidden already"]);
    assert_eq!(up.server.wait_event("changed")["steps"][0]["what"], "hide");
    drop(client);
    assert_eq!(up.server.wait_event("changed")["steps"][1]["name"], "ram");
    assert_eq!(up.names(), set(["disk", "export:disk"]));
    up.server.stop().ok();
}

#[test]
fn a_change_waits_for_the_removal_of_a_hidden_export_whose_last_client_left() {
    let up = Up::new(BASE);
    let client = up.client("ram");
    up.corewise(&["remove", "ram", "--mode", "hide"]).ok();
    drop(client);
    // The export is being removed, is gone, or isn't yet: the reload brings it back in any case.
    up.corewise(&["reload"]).ok();
    assert_eq!(up.names(), set(["disk", "ram", "export:disk", "export:ram"]));
    up.server.stop().ok();
}

#[test]
fn a_reload_shows_a_hidden_export_again_that_the_manifest_has() {
    let up = Up::new(BASE);
    let old = up.client("ram");
    up.corewise(&["remove", "ram", "--mode", "hide"]).ok();
    let disk = up.client("disk");
    up.folder.write("up.toml", BASE.replace("[[export]]\ndevice = \"disk\"\n", ""));
    up.corewise(&["reload"]).code(1).complains(&["export 'disk' has 1 client"]);
    let late = Client::over(connect(&up.socket()), "ram");
    assert!(late.is_err(), "what was refused has shown nothing");
    drop(disk);
    up.folder.write("up.toml", BASE);
    up.corewise(&["reload", "--dry-run"]).ok().says(&["would show export 'ram' again"]);
    up.corewise(&["reload"]).ok().says(&["showed export 'ram' again"]);
    drop(old);
    up.client("ram").flush().unwrap();
    up.corewise(&["reload"]).ok().says(&["nothing to change"]);
    assert_eq!(up.names(), set(["disk", "ram", "export:disk", "export:ram"]));
    up.server.stop().ok();
}

#[test]
fn a_device_that_fails_in_a_reload_is_not_told_as_added_nor_what_needs_it() {
    let up = Up::new(BASE);
    up.folder.write(
        "up.toml",
        BASE.replace("create = true", "direct = false").replace("disk.img", "none.img"),
    );
    let ran = up.corewise(&["reload"]).code(1);
    let ran = ran.says(&["removed device 'disk'"]);
    assert!(!ran.stdout.contains("restarted"), "{ran}");
    ran.complains(&[
        "disk: ",
        "the file does not exist",
        "export:disk: it depends on 'disk', which did not come up",
    ]);
    assert_eq!(up.names(), set(["ram", "export:ram"]));
    up.folder.write("up.toml", BASE);
    up.corewise(&["reload"]).ok().says(&["added device 'disk'", "added export 'disk'"]);
    up.server.stop().ok();
}

#[test]
fn a_reload_does_what_changed_and_leaves_the_rest_alone() {
    let up = Up::new(BASE);
    let (mut disk, mut ram) = (up.client("disk"), up.client("ram"));
    disk.write(0, &[5; 512], 0).unwrap();
    let after = BASE
        .replace("drain = \"5s\"", "drain = \"4s\"")
        .replace("\"memory\"\nsize = \"1M\"", "\"memory\"\nsize = \"2M\"")
        .replace("device = \"disk\"\n", "device = \"disk\"\nread_only = true\n");
    up.folder.write("up.toml", after);
    let loss = "device 'ram' is in memory, so a restart loses its data";
    let would = up
        .corewise(&["reload", "--dry-run"])
        .ok()
        .complains(&[loss, "mode 'safe' refuses such a restart"]);
    let would =
        would.says(&["would restart export 'ram' (1 client)", "would change export 'disk'"]);
    would.says(&["would set [server] 'drain'"]);
    up.corewise(&["reload"]).code(1).complains(&[loss, "use --mode soft"]);
    disk.write(0, &[6; 512], 0).unwrap();
    let ran = up.corewise(&["reload", "--mode", "soft"]).ok();
    ran.says(&["restarted device 'ram'", "changed export 'disk'"]);
    assert!(ram.is_closed());
    assert_eq!(disk.read(0, 512).unwrap(), [6; 512], "it was not disconnected");
    assert_eq!(disk.write(0, &[7; 512], 0), Err(EPERM));
    up.client("ram").write((2 << 20) - 512, &[1; 512], 0).unwrap();
    up.corewise(&["reload"]).ok().says(&["nothing to change"]);
    up.server.stop().ok();
}

#[test]
fn a_file_grows_under_its_clients_and_nothing_becomes_shorter() {
    let up = Up::new(BASE);
    let mut old = up.client("disk");
    up.corewise(&["grow", "disk", "2M"]).ok().says(&["grew device 'disk' to 2 MiB"]);
    assert_eq!(old.write((2 << 20) - 512, &[1; 512], 0), Err(ENOSPC), "it was told another size");
    let mut new = up.client("disk");
    assert_eq!(new.size, 2 << 20);
    new.write((2 << 20) - 512, &[2; 512], 0).unwrap();
    new.flush().unwrap();
    assert_eq!(new.read(1 << 20, 512).unwrap(), [0; 512]);
    for (args, why) in [
        (["disk", "1M"], "can't shrink to"),
        (["disk", "2000001"], "can't shrink to"),
        (["disk", "3000001"], "is not a multiple of the block size 512"),
        (["ram", "2M"], "a 'memory' device cannot grow"),
    ] {
        up.corewise(&[&["grow"][..], &args[..]].concat()).code(1).complains(&[why]);
        up.corewise(&[&["grow", "--dry-run"][..], &args[..]].concat()).code(1).complains(&[why]);
    }
    let stale = up.corewise(&["reload"]).code(1);
    stale.complains(&["device 'disk' has grown to 2 MiB, but the manifest says 1 MiB"]);
    let of = |size: &str| BASE.replacen("size = \"1M\"", &format!("size = \"{size}\""), 1);
    up.folder.write("up.toml", of("2M"));
    up.corewise(&["reload"]).ok().says(&["nothing to change"]);
    up.folder.write("up.toml", of("3M"));
    up.corewise(&["reload", "--dry-run"]).ok().says(&["would grow device 'disk' to 3 MiB"]);
    up.corewise(&["reload"]).ok().says(&["grew device 'disk' to 3 MiB"]);
    old.flush().unwrap();
    assert_eq!(up.client("disk").size, 3 << 20);
    let file = std::fs::File::options().write(true).open(up.folder.join("disk.img")).unwrap();
    file.set_len(4 << 20).unwrap();
    up.corewise(&["grow", "disk"]).ok().says(&["grew device 'disk' to 4 MiB"]);
    up.server.stop().ok();
    assert_eq!(up.folder.join("disk.img").metadata().unwrap().len(), 4 << 20);
}

#[test]
fn sighup_follows_the_manifest_and_one_with_an_error_changes_nothing() {
    let mut up = Up::new(BASE);
    up.folder.write("up.toml", BASE.replace("ram", "other"));
    up.server.signal(Signal::HUP);
    let changed = up.server.wait_event("changed");
    assert_eq!(changed["failed"].as_array().unwrap().len(), 0, "{changed}");
    assert_eq!(up.names(), set(["disk", "other", "export:disk", "export:other"]));
    up.folder.write("up.toml", "[[device]]\nname = 7\n");
    let ran = up.corewise(&["reload"]).code(1);
    ran.complains(&["up.toml:2:8: device 1 (it has no name): 'name' must be a string"]);
    up.server.signal(Signal::HUP);
    let refused = up.server.wait_event("refused");
    assert!(refused["why"].as_str().unwrap().contains("'name' must be a string"), "{refused}");
    assert_eq!(up.names(), set(["disk", "other", "export:disk", "export:other"]));
    up.server.stop().ok();
}

#[test]
fn a_manifest_that_came_through_a_pipe_cannot_be_read_again() {
    let folder = Folder::new();
    let server = Server::start(&folder, &["--control", "c"]);
    let ran = folder.corewise(["reload", "--control", "c"]).code(1);
    ran.complains(&["the server can't read its manifest again"]);
    server.stop().ok();
}

#[test]
fn after_any_reload_there_is_what_the_manifest_says_and_files_keep_what_they_hold() {
    let up = Up::new(BASE);
    up.client("disk").write(512, &[9; 512], 0).unwrap();
    let mut rng = fastrand::Rng::with_seed(1);
    let mut chance = |of: u64| rng.u64(..of);
    for _ in 0..25 {
        let mut text = BASE.split("[[device]]\nname = \"ram\"").next().unwrap().to_string();
        let mut names = set(["disk"]);
        let mut free = Vec::new();
        for name in ["a", "b", "c", "d"] {
            if chance(3) > 0 {
                let size = 1 + chance(2);
                text += &format!(
                    "[[device]]\nname = \"{name}\"\ndriver = \"memory\"\nsize = \"{size}M\"\n"
                );
                names.insert(name.to_string());
                free.push(name);
            }
        }
        if free.len() > 2 && chance(2) == 0 {
            let (one, other) = (free.remove(0), free.remove(0));
            text += &format!(
                "[[device]]\nname = \"s\"\ndriver = \"stripe\"\nover = [\"{one}\", \"{other}\"]\n"
            );
            names.insert("s".to_string());
            free.push("s");
        }
        for name in free.into_iter().chain(["disk"]) {
            if chance(3) > 0 {
                let read_only = chance(2) == 0;
                text += &format!("[[export]]\ndevice = \"{name}\"\nread_only = {read_only}\n");
                names.insert(format!("export:{name}"));
            }
        }
        up.folder.write("up.toml", &text);
        up.corewise(&["reload", "--mode", "hard"]).ok();
        assert_eq!(up.names(), names, "{text}");
        if names.contains("export:disk") {
            assert_eq!(up.client("disk").read(512, 512).unwrap(), [9; 512]);
        }
    }
    up.server.stop().ok();
}

#[test]
fn a_reload_follows_what_it_can_of_server_and_names_what_needs_a_restart() {
    let up = Up::new(BASE);
    let first =
        BASE.replace("drain = \"5s\"", "drain = \"1s\"\nmetrics = \"./m\"\nclients_per_peer = 1");
    let manifest = first.replace("unix = \"s\"", "unix = \"s\"\nmemory = \"1G\"");
    up.folder.write("up.toml", manifest);
    let needs = "[server] 'memory' needs a restart";
    let would = up.corewise(&["reload", "--dry-run"]).ok().complains(&[needs]);
    would.says(&[
        "would set [server] 'drain'",
        "'metrics'",
        "would set [server] 'clients_per_peer'",
    ]);
    assert!(!up.folder.join("m").exists());
    let mut before = Client::new(&up.server.socket(), "disk");
    up.corewise(&["reload"]).ok().complains(&[needs]).says(&["set [server] 'clients_per_peer'"]);
    let ask = || {
        let mut stream = UnixStream::connect(up.folder.join("m")).ok()?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    };
    assert!(ask().unwrap().contains("corewise_clients 1"), "{:?}", ask());
    before.flush().unwrap();
    // The client that is there counts.
    let stream = connect(&up.server.socket());
    assert!(Client::over(stream, "disk").is_err());
    drop(before);
    // A key that was followed isn't reported again, and the others are until then.
    up.corewise(&["reload"]).ok().complains(&[needs]).says(&["nothing to change"]);
    up.folder.write("up.toml", first.replace("metrics = \"./m\"", "metrics = \"/nowhere/m\""));
    up.corewise(&["reload"]).code(1).complains(&["metrics: cannot listen on /nowhere/m"]);
    assert!(ask().is_some(), "nothing was changed");
    up.folder.write("up.toml", first.replace("metrics = \"./m\"\n", ""));
    up.corewise(&["reload"]).ok().says(&["set [server] 'metrics'"]);
    assert!(ask().is_none() && !up.folder.join("m").exists());
    up.server.stop().ok();
}

#[test]
fn a_device_that_hangs_holds_a_change_up_only_as_on_hang_says_and_is_named() {
    let text = "[server]\nunix = \"s\"\ncontrol = \"c\"\non_hang = \"give-up\"\n\
                [[device]]\nname = \"disk\"\ndriver = \"file\"\npath = \"disk.img\"\nsize = \"1M\"\ncreate = true\n\
                [[device]]\nname = \"slow\"\ndriver = \"delay\"\nover = [\"disk\"]\nread_delay = \"1h\"\n\
                shutdown_timeout = \"100ms\"\n[[export]]\ndevice = \"slow\"\n";
    let mut up = Up::new(text);
    let mut client = Client::new(&up.server.socket(), "slow");
    client.send(READ, 0, 0, 512, &[]).unwrap();
    up.wait_in_flight("slow");
    let ran = up.corewise(&["remove", "slow", "--mode", "hard"]).code(1);
    ran.complains(&["slow: the device isn't down after 100 ms, and the server waits no longer"]);
    let overdue = up.server.wait_event("overdue");
    assert_eq!((&overdue["device"], &overdue["phase"]), (&"slow".into(), &"removal".into()));
    // Other devices are changed all the same, and one whose file hangs is given up likewise.
    let lease = Lease::on(&up.folder, "held.img", 1 << 20);
    let held = "[[device]]\nname = \"held\"\ndriver = \"file\"\npath = \"held.img\"\nprobe_timeout = \"100ms\"\n";
    up.folder.write("held.toml", held);
    up.corewise(&["add", "held.toml"]).code(1);
    let overdue = up.server.wait_event("overdue");
    assert_eq!((&overdue["device"], &overdue["phase"]), (&"held".into(), &"bring-up".into()));
    lease.give_back();
    loop {
        // The first bring-up of the device ends some time.
        if up.corewise(&["add", "held.toml"]).code == Some(0) {
            break;
        }
    }
    // The removal that goes on doesn't hold up the end either.
    let ran = up.server.stop().code(1);
    ran.complains(&[
        "shutdown of slow isn't done after",
        "shutdown given up after",
        "slow has been running for",
        "disk waits for slow",
    ]);
}

#[test]
fn an_export_for_users_alone_is_refused_where_no_unix_socket_says_who_they_are() {
    let users = "[[device]]\nname = \"m\"\ndriver = \"memory\"\nsize = \"1M\"\n[[export]]\ndevice = \"m\"\nallow_uids = [0]\n";
    let folder = Folder::new();
    let tcp = format!("[server]\ntcp = \"127.0.0.1:0\"\ncontrol = \"c\"\n{users}");
    folder.write("tcp.toml", &tcp);
    for args in [&["up", "tcp.toml"][..], &["up", "--check", "tcp.toml"]] {
        let ran = folder.corewise(args).code(1);
        ran.complains(&["export 'm': 'allow_uids'", "TCP only", "help: add 'unix' to [server]"]);
    }
    folder.corewise(["up", "--check", "--socket", "s", "tcp.toml"]).ok();
    folder.write("ok.toml", tcp.replace("allow_uids = [0]\n", ""));
    let server = Server::start(&folder, &["ok.toml"]);
    folder.write("more.toml", users.replace("\"m\"", "\"n\""));
    let ran = folder.corewise(["add", "more.toml"]).code(1);
    ran.complains(&["export:n: 'allow_uids'", "add 'unix'"]);
    server.stop().ok();
}
