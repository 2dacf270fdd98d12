//! `corewise timeline` on real logs: the numbers, the predictions, every kind of file, and the
//! errors for unusable logs.
#![allow(missing_docs, clippy::unwrap_used)]

use crate::common::Folder;
use serde_json::{Value, json};
use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;

/// Returns the path of a log in the repository.
fn sample(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.join("../kernel-log/tests/data").join(name)
}

const SERIAL: &str = "qemu-6.12-16nvme-serial-probe-and-reboot.log";
const ASYNC: &str = "qemu-6.12-16nvme-async-probe-and-reboot.log";

#[track_caller]
fn run(folder: &Folder, args: &[&str]) -> String {
    folder.corewise([&["timeline"], args].concat()).ok().stdout
}

#[track_caller]
fn document(folder: &Folder, args: &[&str]) -> Value {
    serde_json::from_str(&run(folder, &[args, &["--json"]].concat())).unwrap()
}

/// Returns the shutdowns of the NVMe devices in microseconds, by the log's own stamps: each lasts
/// until the next line.
fn nvme_gaps(log: &str) -> Vec<u64> {
    let stamp = |line: &str| -> Option<u64> {
        let (seconds, rest) = line.trim_start_matches(['[', ' ']).split_once('.')?;
        let (micros, _) = rest.split_once(']')?;
        Some(seconds.parse::<u64>().ok()? * 1_000_000 + micros.parse::<u64>().ok()?)
    };
    let lines: Vec<&str> = log.lines().collect();
    let pairs = lines.windows(2);
    let shut =
        pairs.filter(|p| p[0].contains("] nvme ") && p[0].trim_end().ends_with(": shutdown"));
    shut.map(|p| stamp(p[1]).unwrap() - stamp(p[0]).unwrap()).collect()
}

#[test]
fn nvme_devices_shut_down_in_parallel_would_take_as_long_as_the_longest_and_serially_as_logged() {
    let folder = Folder::new();
    for name in [SERIAL, ASYNC] {
        let path = sample(name);
        let gaps = nvme_gaps(&std::fs::read_to_string(&path).unwrap());
        assert_eq!(gaps.len(), 16);
        let (sum, longest) = (gaps.iter().sum::<u64>(), *gaps.iter().max().unwrap());
        assert!((80_000..95_000).contains(&longest), "{longest}");

        let path = path.to_str().unwrap();
        let args = [path, "--phase", "shutdown", "--only", "nvme", "--all-async"];
        let log = &document(&folder, &args)["logs"][0]["timelines"];
        assert_eq!(log.as_array().unwrap().len(), 1);
        let nvme = &log[0];
        assert_eq!(nvme["timeline"]["summary"]["spans"], 16);
        assert_eq!(nvme["timeline"]["summary"]["serial_sum_ns"], sum * 1000);
        assert_eq!(nvme["predicted"][0]["makespan_ns"], longest * 1000);
        assert_eq!(nvme["predicted"][0]["timeline"]["summary"]["makespan_ns"], longest * 1000);

        // Without a filter the drivers of the whole log show it.
        let whole = document(&folder, &[path, "--phase", "shutdown"]);
        let drivers = whole["logs"][0]["timelines"][0]["analysis"]["drivers"].clone();
        let nvme = drivers.as_array().unwrap().iter().find(|d| d["driver"] == "nvme").unwrap();
        assert_eq!(
            (&nvme["own_ns"], &nvme["parallel_ns"]),
            (&json!(sum * 1000), &json!(longest * 1000))
        );
    }
}

#[test]
fn the_text_has_both_phases_the_worst_and_the_predictions() {
    let folder = Folder::new();
    let text = run(&folder, &[sample(SERIAL).to_str().unwrap(), "--top", "3", "--rows", "12"]);
    for part in [
        "kernel: 6.12",
        "\nboot: ",
        "\nshutdown: 103 devices, all ok\n",
        "103 DRIVER DEVICE: shutdown",
        "the worst of 103 devices",
        "0000:0f:00.0  nvme    shutdown",
        "drivers, all their devices one by one and side by side",
        "what if everything were asynchronous",
        "makespan 1.27 s, serial sum ≤1.27 s, critical path ≤101 ms",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    let boot = run(&folder, &[sample(SERIAL).to_str().unwrap(), "--phase", "boot"]);
    assert!(boot.contains("\nboot: ") && !boot.contains("\nshutdown: "));
}

#[test]
fn a_log_may_come_on_stdin() {
    let folder = Folder::new();
    let mut command = folder.command(crate::common::COREWISE);
    command.args(["timeline", "-", "--json"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let log = std::fs::read(sample("probe-epyc-before.txt")).unwrap();
    child.stdin.take().unwrap().write_all(&log).unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success());
    let json: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(json["logs"][0]["log"], "stdin");
    assert_eq!(json["logs"][0]["timelines"][0]["timeline"]["summary"]["spans"], 3);
}

#[test]
fn every_kind_of_file_is_written_and_the_json_is_read_again() {
    let folder = Folder::new();
    let log = sample(SERIAL);
    let log = log.to_str().unwrap();
    let files = ["t.svg", "t.html", "t.json", "t.trace.json"];
    let outputs: Vec<&str> = files.iter().flat_map(|file| ["--output", file]).collect();
    let mut args = vec![log, "--workers", "4", "--phase", "shutdown"];
    args.extend(outputs);
    run(&folder, &args);
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();

    let svg = read("t.svg");
    assert_eq!(svg.matches("<svg ").count(), 3, "the run and its prediction in one");
    let html = read("t.html");
    assert!(
        html.contains(">shutdown, 4 workers</button>") && html.contains("6.12"),
        "tabs and facts"
    );
    let trace: Value = serde_json::from_str(&read("t.trace.json")).unwrap();
    let slices = trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "X");
    assert_eq!(slices.count(), 2 * 103);

    // The text written is the text read.
    let again = document(&folder, &["t.json"]);
    let first = document(&folder, &[log, "--phase", "shutdown"]);
    let timelines = |json: &Value| json["logs"][0]["timelines"].clone();
    assert_eq!(timelines(&again)[0], timelines(&first)[0]);
    assert_eq!(timelines(&again)[1]["timeline"]["name"], "shutdown, 4 workers");
}

#[test]
fn timelines_of_up_are_read_like_a_log() {
    let folder = Folder::new();
    folder.corewise(["up", "--for", "10ms", "--no-control", "--timeline", "up.json"]).ok();
    let json = document(&folder, &["up.json", "--workers", "1"]);
    let timelines = json["logs"][0]["timelines"].as_array().unwrap();
    let names: Vec<_> = timelines.iter().map(|t| t["timeline"]["name"].clone()).collect();
    assert_eq!(names, ["bring-up", "shutdown"]);
    assert_eq!(json["logs"][0]["kernel_log"], Value::Null);
    for t in timelines {
        let summary = &t["timeline"]["summary"];
        assert_eq!(t["predicted"][0]["makespan_ns"], summary["serial_sum_ns"], "one by one");
    }
    let down = document(&folder, &["up.json", "--phase", "shutdown"]);
    assert_eq!(down["logs"][0]["timelines"].as_array().unwrap().len(), 1);
}

#[test]
fn two_logs_are_laid_side_by_side_device_by_device() {
    let folder = Folder::new();
    let (a, b) = (sample("probe-epyc-before.txt"), sample("probe-epyc-after.txt"));
    let (a, b) = (a.to_str().unwrap(), b.to_str().unwrap());
    let json = document(&folder, &["--compare", a, b]);
    let pairs = json["comparison"][0]["pairs"].as_array().unwrap();
    let first = pairs.iter().find(|pair| pair["name"] == "0000:01:00.0").unwrap();
    assert_eq!(first["a"]["own_ns"], 53_372_612);
    let change = first["b"]["own_ns"].as_i64().unwrap() - 53_372_612;
    assert_eq!(first["change_ns"], change);
    let text = run(&folder, &["--compare", a, b]);
    assert!(text.contains("3 devices in both, 0 in A only, 0 in B only"), "{text}");

    folder
        .corewise(["timeline", "--compare", a])
        .fails()
        .complains(&["--compare takes two logs, not 1"]);
}

#[test]
fn a_device_that_takes_half_its_time_saves_the_other_half() {
    let folder = Folder::new();
    let log = folder.write(
        "t.json",
        r#"[{"name": "shutdown", "edges": [], "spans": [
            {"name": "a", "kind": "shutdown", "worker": "main", "queued_ns": 0, "start_ns": 0,
             "end_ns": 60, "outcome": "ok"},
            {"name": "b", "kind": "shutdown", "worker": "main", "driver": "nvme", "queued_ns": 60,
             "start_ns": 60, "end_ns": 100, "outcome": "ok"}]}]"#,
    );
    let log = log.to_str().unwrap();
    for (asked, takes) in [("a=0.5", 70), ("nvme=0.5", 80), ("*=0.5", 50), ("b=2", 140)] {
        let json = document(&folder, &[log, "--faster", asked]);
        let predicted = &json["logs"][0]["timelines"][0]["predicted"][0];
        assert_eq!(predicted["makespan_ns"], takes, "{asked}");
    }
    folder
        .corewise(["timeline", log, "--faster", "nvem=0.5"])
        .fails()
        .complains(&["there is no device, init function or driver 'nvem'", "did you mean 'nvme'?"]);
}

#[test]
fn dependencies_from_a_file_hold_in_predictions() {
    let folder = Folder::new();
    let log = folder.write(
        "dmesg.txt",
        "[    1.000500] probe of clk returned 0 after 500 usecs\n\
         [    1.001500] probe of net returned 0 after 700 usecs\n",
    );
    let log = log.to_str().unwrap();
    let predicted = |args: &[&str]| {
        let json = document(&folder, &[&[log, "--all-async"], args].concat());
        let timeline = &json["logs"][0]["timelines"][0];
        let edges = timeline["analysis"]["edges"].clone();
        (edges, timeline["predicted"][0]["makespan_ns"].clone())
    };
    // A thread that the log doesn't show started the second one.
    assert_eq!(predicted(&[]), (json!(0), json!(1_500_000)));
    let text = run(&folder, &[log]);
    assert!(text.contains("no dependency is known"), "{text}");
    let deps = folder.write("extra.deps", "net: clk   # the clock comes first\n");
    let deps = deps.to_str().unwrap();
    assert_eq!(predicted(&["--deps", deps]), (json!(1), json!(1_200_000)));
    let links = folder.write(
        "links.txt",
        "/sys/devices/platform/clk/subsystem -> ../../../bus/platform\n\
         /sys/devices/platform/clk/net/subsystem -> ../../../../bus/platform\n",
    );
    let links = links.to_str().unwrap();
    assert_eq!(predicted(&["--sysfs", links]), (json!(1), json!(1_200_000)));
    let bad = folder.write("bad.deps", "one two three four five\n");
    folder
        .corewise(["timeline", log, "--deps", bad.to_str().unwrap()])
        .fails()
        .complains(&["line 1"]);
}

#[test]
fn lines_that_are_almost_understood_are_told_with_their_numbers() {
    let folder = Folder::new();
    let log = folder.write(
        "cut.txt",
        "[    1.000000] probe of disk returned 0 after 500 usecs\n\
         [    1.100000] probe of net returned 0 aft\n\
         [    1.200000] probe of clk returned 0 after 100 usecs\n",
    );
    let text = run(&folder, &[log.to_str().unwrap()]);
    assert!(text.contains("Not understood: 1 line"), "{text}");
    assert!(text.contains("line 2: "), "{text}");
    let json = document(&folder, &[log.to_str().unwrap()]);
    assert_eq!(json["logs"][0]["kernel_log"]["suspicious"][0]["line"], 2);
}

#[test]
fn what_a_deferred_probe_waits_for_is_shown_whole_beside_its_numbers_or_below_them() {
    let folder = Folder::new();
    let device = "32a00000.bridge-with-a-name";
    let log = |reason: &str| {
        format!(
            "[    1.100000] probe of {device} returned -517 after 24 usecs\n\
             [    1.200000] platform {device}: deferred probe pending: {reason}\n"
        )
    };
    folder.write("short", log("beta: clk"));
    let text = run(&folder, &["short"]);
    assert!(
        text.contains("bound at  waits for\n") && text.contains("never  beta: clk\n"),
        "{text}"
    );
    let supplier =
        "platform: wait for supplier /soc@0/rsc@17a00000/regulators-0/ldo1-of-some-length";
    folder.write("long", log(supplier));
    let text = run(&folder, &["long"]);
    let below = format!("never\n      {supplier}\n");
    assert!(
        text.contains(&below) && text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
}

#[test]
fn a_likely_driver_has_its_mark_among_the_drivers_and_the_deferred_probes() {
    let folder = Folder::new();
    folder.write(
        "log",
        "[    1.000000] calling  foo_init+0x0/0x10 [foo] @ 100\n\
         [    1.002000] probe of a returned -517 after 5 usecs\n\
         [    1.020000] probe of b returned 0 after 15001 usecs\n\
         [    1.030000] initcall foo_init+0x0/0x10 [foo] returned 0 after 29991 usecs\n",
    );
    let text = run(&folder, &["log"]);
    let deferred = text.split("Deferred probes").nth(1).unwrap();
    assert!(deferred.lines().any(|line| line.starts_with("  a       foo?")), "{deferred}");
    let kernel = &document(&folder, &["log"])["logs"][0]["kernel_log"];
    let foo = json!({ "driver": "foo", "driver_inferred": true });
    assert_eq!(kernel["drivers"], json!({ "b": foo }));
    let deferral = &kernel["deferrals"][0];
    assert_eq!((&deferral["driver"], &deferral["driver_inferred"]), (&json!("foo"), &json!(true)));
}

#[test]
fn a_log_that_cannot_be_used_fails_and_says_how_to_get_one() {
    let folder = Folder::new();
    folder.write("empty", "[    0.000000] Linux version 6.12\nhello\n");
    folder.write("system.journal", "LPKSHHRH\0\0\0\0");
    folder.write("mail", "Content-Transfer-Encoding: base64\n\nWyAgICAx\n");
    folder.write("passwd", "root:x:0:0:root:/root:/bin/bash\n");
    let log = sample("probe-epyc-after.txt");
    let log = log.to_str().unwrap();
    for (args, problem) in [
        (&["empty"][..], &["none of its 2 lines reports a probe", "initcall_debug"][..]),
        (&["missing"], &["cannot read 'missing'"]),
        (&[log, "--phase", "shutdown"], &["the log holds no shutdown"]),
        (&[log, "--only", "sd*"], &["the log holds no device, init function or driver sd*"]),
        (&[log, "--boot", "7"], &["has no boot 7"]),
        (
            &["system.journal"],
            &[
                "this is a file of the journal itself, which this program does not read",
                "journalctl --file",
            ],
        ),
        (&["mail"], &["the source of a mail", "save the mail"]),
    ] {
        folder.corewise([&["timeline"], args].concat()).fails().complains(problem);
    }
    // A text that is no log is not sent to another boot.
    let other = folder.corewise(["timeline", "passwd"]).fails();
    let other = other.complains(&["no line begins like a kernel's"]);
    assert!(!other.stderr.contains("initcall_debug"), "{other}");
    folder.corewise(["timeline", log, "-o", "x.png"]).code(2);
}

#[test]
fn several_boots_are_listed_and_each_can_be_shown() {
    let folder = Folder::new();
    let log = folder.write(
        "two.txt",
        "[  172.000000] nvme a: shutdown\n[  172.250000] reboot: Restarting system\n\
         [  745.000000] nvme b: shutdown\n[  745.500000] reboot: Restarting system\n",
    );
    let log = log.to_str().unwrap();
    let text = run(&folder, &[log]);
    assert!(text.contains("makespan ≤500 ms"), "{text}");
    assert!(text.contains("--boot 1: 2 lines from 1, 172.000 to 172.250 s, 1 shutdown"), "{text}");
    assert!(text.contains("--boot 2: 2 lines from 3, 745.000 to 745.500 s"), "{text}");
    assert!(run(&folder, &[log, "--boot", "1"]).contains("makespan ≤250 ms"));
    let boots = &document(&folder, &[log])["logs"][0]["kernel_log"]["boots"];
    assert_eq!(boots[1]["first_line"], 3);
    assert_eq!(boots[1]["to_ns"], 745_500_000_000_u64);
}

#[test]
fn a_file_that_is_read_is_never_written_over() {
    let folder = Folder::new();
    let text = std::fs::read_to_string(sample("probe-epyc-after.txt")).unwrap();
    let log = folder.write("log.json", &text);
    let other = folder.join("hard.json");
    std::fs::hard_link(&log, &other).unwrap();
    let soft = folder.join("soft.json");
    std::os::unix::fs::symlink(&log, &soft).unwrap();
    let deps = folder.write("deps.svg", "");
    let names = [&log, &other, &soft, &deps].map(|path| path.to_str().unwrap());
    let [log_name, hard, soft, deps_name] = names;
    for (args, output) in [
        (vec![log_name], log_name),
        (vec![log_name], hard),
        (vec![soft], log_name),
        (vec![log_name], soft),
        (vec![log_name, "--deps", deps_name], deps_name),
    ] {
        folder
            .corewise([&["timeline"], &args[..], &["-o", output]].concat())
            .fails()
            .complains(&["it is the input file"]);
    }
    let ran = std::process::Command::new(env!("CARGO_BIN_EXE_corewise"))
        .args(["timeline", "-", "-o", log_name])
        .stdin(std::fs::File::open(&log).unwrap())
        .output()
        .unwrap();
    assert!(!ran.status.success());
    assert_eq!(std::fs::read_to_string(&log).unwrap(), text);
    assert_eq!(std::fs::read_to_string(&deps).unwrap(), "");
    let ran = folder.corewise(["timeline", log_name, "-o", ".svg"]);
    assert_eq!(ran.code, Some(2), "{ran}");
}

#[test]
fn a_process_that_is_killed_while_it_writes_leaves_no_file_behind() {
    let folder = Folder::new();
    let log = sample(SERIAL);
    let old = folder.write("out/old.html", "old");
    for name in ["new.html", "old.html"] {
        // The signal comes with the write that makes the file larger than this.
        let command = "ulimit -f 8; exec \"$0\" timeline \"$1\" -o \"$2\"";
        let ran = std::process::Command::new("sh")
            .args(["-c", command, env!("CARGO_BIN_EXE_corewise")])
            .arg(&log)
            .arg(folder.join("out").join(name))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ran), Some(libc::SIGXFSZ));
        let left: Vec<_> =
            folder.join("out").read_dir().unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["old.html"]);
    }
    assert_eq!(std::fs::read_to_string(old).unwrap(), "old");
}

/// Returns the blocks of a language in docs/timeline-tutorial.md.
fn tutorial(language: &str) -> Vec<String> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/timeline-tutorial.md");
    let text = std::fs::read_to_string(path).unwrap();
    let begin = format!("```{language}\n");
    let blocks = text.split(begin.as_str()).skip(1);
    blocks.map(|block| block.split("```").next().unwrap().to_owned()).collect()
}

#[test]
fn the_tutorial_shows_the_true_output() {
    let folder = Folder::new();
    folder.write("console.log", tutorial("log").concat());
    folder.write("needs.txt", tutorial("deps").concat());
    let commands = tutorial("console");
    assert!(commands.len() >= 5, "{}", commands.len());
    for block in commands {
        let (command, shown) = block.split_once('\n').unwrap();
        let words = command.strip_prefix("$ corewise ").unwrap().split(' ');
        let printed = folder.corewise(words).ok().stdout;
        // Three dots stand for lines that are left out.
        let mut rest = printed.as_str();
        for (n, part) in shown.split("...\n").enumerate() {
            let at = rest.find(part).filter(|at| n > 0 || *at == 0);
            let at = at.unwrap_or_else(|| panic!("{command}\n{printed}\nhas no\n{part}"));
            rest = &rest[at + part.len()..];
        }
        assert_eq!(rest, "", "{command}");
    }
}
