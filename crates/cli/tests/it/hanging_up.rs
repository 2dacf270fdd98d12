//! `corewise up` with a volume whose bring-up hangs in the kernel, as on a dead disk. The tests
//! check its message, the devices that come up all the same, and the effect of each policy.
#![allow(missing_docs, clippy::unwrap_used)]

use crate::common::lease::Lease;
use crate::common::server::Server;
use crate::common::{COREWISE, Folder};
use rustix::process::Signal;
use serde_json::Value;

/// A file that can't be opened, a mirror over it, and devices that don't need it.
const MANIFEST: &str = "[server]\nunix = \"s\"\n\
    [[device]]\nname = \"dead\"\ndriver = \"file\"\npath = \"dead.img\"\nprobe_timeout = \"100ms\"\n\
    [[device]]\nname = \"half\"\ndriver = \"memory\"\nsize = \"1M\"\n\
    [[device]]\nname = \"both\"\ndriver = \"mirror\"\nover = [\"half\", \"dead\"]\nbitmap = false\n\
    [[device]]\nname = \"new\"\ndriver = \"file\"\npath = \"new.img\"\nsize = \"1M\"\ncreate = true\n\
    [[export]]\ndevice = \"both\"\n\
    [[export]]\ndevice = \"new\"\n";

/// A server with a device that hangs in bring-up and has been named.
struct Hanging {
    folder: Folder,
    lease: Lease,
    server: Server,
    overdue: Value,
}

fn hanging(args: &[&str]) -> Hanging {
    let folder = Folder::new();
    folder.write("up.toml", MANIFEST);
    let lease = Lease::on(&folder, "dead.img", 1 << 20);
    let mut command = folder.command(COREWISE);
    command.args(["up", "--json", "up.toml"]).args(args);
    let mut server = Server::spawn(command);
    let overdue = server.wait_event("overdue");
    Hanging { folder, lease, server, overdue }
}

/// Returns the names of the devices in that state, by `corewise dump`.
fn in_state(folder: &Folder, state: &str) -> Vec<String> {
    let dump = folder.dump();
    let devices = dump["devices"].as_array().unwrap().iter();
    let devices = devices.filter(|device| device["state"] == state);
    devices.map(|device| device["name"].as_str().unwrap().to_string()).collect()
}

#[test]
fn a_volume_whose_bring_up_hangs_is_named_with_whom_it_holds_up_and_waited_for() {
    let Hanging { folder, lease, mut server, overdue } = hanging(&[]);
    assert_eq!((&overdue["device"], &overdue["phase"]), (&"dead".into(), &"bring-up".into()));
    assert_eq!(overdue["held_up"], serde_json::json!(["both", "export:both"]));
    assert!(overdue["seconds"].as_f64().unwrap() >= 0.1, "{overdue}");
    // Everything else comes up meanwhile.
    while in_state(&folder, "bound") != ["half", "new", "export:new"] {
        std::thread::yield_now();
    }
    assert_eq!(in_state(&folder, "probing"), ["dead"]);
    let text = folder.corewise(["dump"]).ok();
    text.says(&["dead: being probed by file for", "past its deadline", "both: waits for its"]);
    lease.give_back();
    let ready = server.wait_event("ready");
    assert_eq!(ready["exports"].as_array().unwrap().len(), 2, "{ready}");
    let ran = server.stop().ok();
    ran.complains(&["bring-up of dead isn't done after", "dead holds up both, export:both"]);
}

#[test]
fn with_a_policy_nothing_is_served_where_one_hangs_and_the_server_ends_with_1() {
    for policy in ["skip", "give-up"] {
        let hanging = hanging(&["--on-hang", policy]);
        // The server ends although the file stays leased.
        let ran = hanging.server.wait().code(1);
        let ran = ran.complains(&[
            "bring-up of dead isn't done after",
            "up.toml:6:8: device 'dead': the probe did not end within",
        ]);
        assert!(!ran.stdout.contains("\"ready\""), "{ran}");
        assert_eq!(hanging.folder.list(), ["dead.img", "up.toml"], "what was made is removed");
    }
}

#[test]
fn with_a_policy_and_keep_going_the_rest_is_served_and_shut_down_in_order() {
    for (policy, why) in [
        ("skip", "it depends on 'dead', which did not come up"),
        ("give-up", "the bring-up was cancelled"),
    ] {
        let Hanging { folder, lease, mut server, overdue } =
            hanging(&["--keep-going", "--on-hang", policy]);
        assert_eq!(overdue["held_up"], serde_json::json!(["both", "export:both"]));
        let left_out: Vec<Value> = (0..3).map(|_| server.wait_event("left_out")).collect();
        let subjects: Vec<&str> =
            left_out.iter().map(|event| event["subject"].as_str().unwrap()).collect();
        assert_eq!(subjects, ["device 'dead'", "device 'both'", "export 'both'"]);
        assert_eq!(left_out[1]["why"], why);
        let ready = server.wait_event("ready");
        assert_eq!(ready["exports"].as_array().unwrap().len(), 1, "{ready}");
        assert_eq!(ready["exports"][0]["name"], "new");
        // The dead device still hangs when all others are shut down, and delays none of them.
        server.signal(Signal::TERM);
        let down = server.wait_event("shutdown");
        assert_eq!(down["timeline"]["summary"]["ok"], 3, "{down}");
        server.wait().code(1).says(&["{\"event\":\"done\",\"ok\":false}"]);
        assert_eq!(folder.list(), ["dead.img", "new.img", "up.toml"]);
        drop(lease);
    }
}

#[test]
fn a_volume_that_comes_up_after_all_is_served_late_and_keeps_its_new_file() {
    let folder = Folder::new();
    // The file of 'late' is made after 'dead' is there: until then its bring-up hasn't begun.
    let late = "[[device]]\nname = \"late\"\ndriver = \"file\"\npath = \"late.img\"\n\
                size = \"1M\"\ncreate = true\nsuppliers = [\"dead\"]\n[[export]]\ndevice = \"late\"\n";
    folder.write("up.toml", format!("{MANIFEST}{late}"));
    let lease = Lease::on(&folder, "dead.img", 1 << 20);
    let mut server = Server::start(&folder, &["up.toml", "--keep-going", "--on-hang", "skip"]);
    lease.give_back();
    let all = ["dead", "half", "both", "new", "export:both", "export:new", "late", "export:late"];
    while in_state(&folder, "bound").len() < all.len() {
        std::thread::yield_now();
    }
    for export in ["both", "late"] {
        folder.client("nbdinfo", ["--size", &server.uri(export)]).ok().says(&["1048576"]);
    }
    server.signal(Signal::TERM);
    let down = server.wait_event("shutdown");
    assert_eq!(down["timeline"]["summary"]["ok"], 8, "{down}");
    server.wait().code(1);
    assert_eq!(folder.list(), ["dead.img", "late.img", "new.img", "up.toml"]);
}

#[test]
fn a_second_signal_while_one_hangs_says_what_is_up_and_leaves_nothing_behind() {
    let Hanging { folder, lease, mut server, .. } = hanging(&[]);
    while in_state(&folder, "bound").len() < 3 {
        std::thread::yield_now();
    }
    server.signal(Signal::TERM);
    server.insist(Signal::INT);
    // The server may admit either of the two first.
    let ran = server.wait().code(1);
    ran.complains(&[" while stopping: ended at once, not shut down: half, new, export:new"]);
    assert_eq!(folder.list(), ["dead.img", "up.toml"]);
    drop(lease);
}

#[test]
fn log_lines_of_the_libraries_stand_above_the_progress_bar() {
    let folder = Folder::new();
    folder.write("up.toml", MANIFEST);
    let lease = Lease::on(&folder, "dead.img", 1 << 20);
    let line = format!("'{COREWISE}' up up.toml --on-hang give-up --log info");
    // `script` runs its command on a terminal of its own. On a terminal that can't move its cursor,
    // no bar is drawn.
    let mut script = folder.command("script");
    script.env("TERM", "xterm").args(["-q", "-e", "-c", &line, "/dev/null"]);
    let ran = crate::common::run(script).code(1);
    let shown = ran.stdout.contains("Bring-up [");
    assert!(shown, "no bar, so nothing is tested\n{ran}");
    // Rest of a line after something in it was erased.
    let lines = ran.stdout.lines().map(|line| line.rsplit("\x1b[2K").next().unwrap_or(line));
    let told: Vec<&str> = lines.filter(|line| line.contains("is past its deadline")).collect();
    assert_eq!(told.len(), 1, "{ran}");
    assert!(!told[0].contains("Bring-up"), "in the midst of the bar: {:?}\n{ran}", told[0]);
    drop(lease);
}
