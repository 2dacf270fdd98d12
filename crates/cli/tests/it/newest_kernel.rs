//! The newest kernel that Debian has, booted: `corewise timeline` against a parser of our own, so
//! that a message that changes its form is found here.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::Folder;
use crate::common::machine::{Image, is_long};

/// A line of a log with a duration or a shutdown.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Said {
    /// A function or probe that returned this code after this many microseconds. A probe has its
    /// driver if the line names it.
    Returned { kind: Kind, name: String, driver: Option<String>, code: i32, micros: u64 },
    /// A quirk of a PCI device: no span.
    Quirk,
    /// The driver or bus, with the device behind it.
    Shutdown(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Probe,
    Initcall,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Kind::Probe => "probe",
            Kind::Initcall => "initcall",
        }
    }
}

/// A line with its stamp in microseconds.
struct Line {
    at: u64,
    said: Said,
    /// Microseconds since the line that announced the call, if there is one.
    gap: Option<u64>,
}

/// A log as this test understands it, and the lines with a duration that it doesn't understand.
#[derive(Default)]
struct Log {
    lines: Vec<Line>,
    unknown: Vec<String>,
    /// The moment of the first line behind the last device.
    end: u64,
}

fn split_stamp(line: &str) -> Option<(u64, &str)> {
    let (stamp, text) = line.trim().strip_prefix('[')?.split_once(']')?;
    let (seconds, micros) = stamp.trim().split_once('.')?;
    let at = seconds.parse::<u64>().ok()? * 1_000_000 + micros.parse::<u64>().ok()?;
    // The caller's id may follow the stamp.
    let text = text.trim_start();
    let text = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((caller, rest)) if caller.trim_start().starts_with(['T', 'C']) => rest.trim_start(),
        _ => text,
    };
    Some((at, text))
}

/// Splits `… returned CODE after MICROS usecs` into the text in front and both numbers.
fn returned(text: &str) -> Option<(&str, i32, u64)> {
    let (what, rest) = text.rsplit_once(" returned ")?;
    let (code, rest) = rest.split_once(" after ")?;
    let micros = rest.strip_suffix(" usecs")?;
    Some((what, code.parse().ok()?, micros.parse().ok()?))
}

/// Returns the name of a function as the kernel prints it: `name+0x0/0x10`, perhaps with its module
/// behind it.
fn function(text: &str) -> Option<String> {
    let (name, rest) = text.split_once("+0x")?;
    let module = rest.split_once(' ').map(|(_, module)| format!(" {module}")).unwrap_or_default();
    Some(format!("{name}{module}"))
}

fn said(text: &str) -> Option<Said> {
    if let Some(rest) = text.strip_prefix("probe of ") {
        let (what, code, micros) = returned(rest)?;
        let (name, driver) = match what.split_once(" with driver ") {
            Some((name, driver)) => (name, Some(driver.to_owned())),
            None => (what, None),
        };
        let name = name.to_owned();
        return Some(Said::Returned { kind: Kind::Probe, name, driver, code, micros });
    }
    if let Some(rest) = text.strip_prefix("initcall ") {
        let (what, code, micros) = returned(rest)?;
        let name = function(what)?;
        return Some(Said::Returned { kind: Kind::Initcall, name, driver: None, code, micros });
    }
    if let Some((what, rest)) = text.rsplit_once(" took ") {
        rest.strip_suffix(" usecs")?.parse::<u64>().ok()?;
        return what.contains("+0x").then_some(Said::Quirk);
    }
    let device = text.strip_suffix(": shutdown")?;
    // A name of two words at least: a driver or a bus, and the device.
    device.contains(' ').then(|| Said::Shutdown(device.to_owned()))
}

impl Log {
    fn read(text: &str) -> Log {
        let mut log = Log::default();
        let mut called: BTreeMap<String, u64> = BTreeMap::new();
        let mut open = false;
        for line in text.lines() {
            let Some((at, text)) = split_stamp(line) else {
                if line.contains("usecs") {
                    log.unknown.push(line.to_owned());
                }
                continue;
            };
            let called_now = text.strip_prefix("calling ").and_then(|rest| {
                let (what, pid) = rest.trim_start().split_once(" @ ")?;
                pid.parse::<u64>().ok().and(function(what))
            });
            if let Some(name) = called_now {
                called.insert(name, at);
                continue;
            }
            if std::mem::take(&mut open) {
                log.end = at;
            }
            match said(text) {
                Some(said) => {
                    open = matches!(said, Said::Shutdown(_));
                    let gap = match &said {
                        Said::Returned { kind: Kind::Initcall, name, .. } => called.remove(name),
                        _ => None,
                    };
                    let gap = gap.map(|from| at.saturating_sub(from));
                    log.lines.push(Line { at, said, gap });
                }
                None if text.contains("usecs") => log.unknown.push(line.to_owned()),
                None => {}
            }
        }
        log
    }
}

/// Returns the outcome of a return code and the beginning of its message. The kernel prints a
/// probe's error as a positive number. An init function that returns a positive number has
/// succeeded.
fn outcome(kind: Kind, code: i32) -> (&'static str, &'static str) {
    let number = if kind == Kind::Probe { code.abs() } else { -code };
    match number {
        ..=0 => ("ok", ""),
        6 => ("skipped", "ENXIO"),
        19 => ("skipped", "ENODEV"),
        517 => ("deferred", ""),
        2 => ("failed", "ENOENT"),
        12 => ("failed", "ENOMEM"),
        16 => ("failed", "EBUSY"),
        22 => ("failed", "EINVAL"),
        38 => ("failed", "ENOSYS"),
        95 => ("failed", "EOPNOTSUPP"),
        _ => ("failed", ""),
    }
}

/// Longest tick of the kernel's clock, in microseconds. Early durations are in ticks.
const TICK: u64 = 10_000;

/// Returns the differences between the program and this parser, and the number of spans.
fn differences(log: &Log, document: &Value) -> (Vec<String>, usize) {
    let read = &document["logs"][0];
    let timelines = read["timelines"].as_array().unwrap();
    let spans: Vec<&Value> = timelines
        .iter()
        .flat_map(|t| t["timeline"]["spans"].as_array().unwrap())
        .filter(|span| span["kind"] != "task")
        .collect();
    let text = |span: &Value, key: &str| span[key].as_str().unwrap_or_default().to_owned();
    let mut wrong = Vec::new();
    wrong.extend(log.unknown.iter().map(|line| format!("this test can't read: {line}")));

    // The spans that begin or end with each line.
    let mut left: Vec<&Value> = spans.clone();
    // Durations that aren't whole ticks, and the number of them that are shown unchanged.
    let (mut measured, mut exact) = (0, 0);
    for line in &log.lines {
        match &line.said {
            Said::Quirk => {}
            Said::Returned { kind, name, driver, code, micros } => {
                let at = left.iter().position(|span| {
                    span["kind"] == kind.as_str()
                        && span["name"] == name.as_str()
                        && span["end_ns"] == line.at * 1000
                });
                let Some(at) = at else {
                    wrong.push(format!("no {} of {name} at {} µs", kind.as_str(), line.at));
                    continue;
                };
                let span = left.remove(at);
                if driver.is_some() && span["driver"].as_str() != driver.as_deref() {
                    wrong.push(format!("{name} is by {driver:?}, not {}", span["driver"]));
                }
                let (word, message) = outcome(*kind, *code);
                if text(span, "outcome") != word || !text(span, "message").starts_with(message) {
                    let shown = (&span["outcome"], &span["message"]);
                    wrong.push(format!("{name} returned {code}, shown as {shown:?}"));
                }
                let least = span["took"]["least_ns"].as_u64().unwrap() / 1000;
                let most = span["took"]["most_ns"].as_u64().map_or(u64::MAX, |ns| ns / 1000);
                let bounds = least..=most;
                measured += usize::from(micros % 1000 != 0);
                exact += usize::from(micros % 1000 != 0 && least == most);
                // Whole ticks may be more than the stamps allow, and the clock of the stamps may
                // stand.
                let by_stamps = line.gap.map_or(*micros, |gap| gap.min(*micros));
                let right = bounds.contains(micros) || bounds.contains(&by_stamps);
                // A call during which another one began took what was printed or more.
                let near = *micros < least + TICK && most < micros + TICK;
                if !right || !near && *kind == Kind::Probe {
                    wrong.push(format!("{name} took {micros} µs, shown as {least} to {most}"));
                }
            }
            Said::Shutdown(device) => {
                let at = left.iter().position(|span| {
                    let (name, driver) = (text(span, "name"), text(span, "driver"));
                    span["kind"] == "shutdown"
                        && span["start_ns"] == line.at * 1000
                        && (*device == format!("{driver} {name}")
                            || driver.is_empty() && device.ends_with(&format!(" {name}")))
                });
                match at {
                    Some(at) => drop(left.remove(at)),
                    None => wrong.push(format!("no shutdown of {device} at {} µs", line.at)),
                }
            }
        }
    }
    wrong.extend(left.iter().map(|span| format!("in no line of the log: {span}")));
    if exact * 2 < measured {
        wrong.push(format!("{measured} durations were measured, {exact} are shown so"));
    }

    // No shutdown goes on behind the next line that isn't a device's.
    let shutdowns = spans.iter().filter(|span| span["kind"] == "shutdown");
    let last = shutdowns.filter_map(|span| span["end_ns"].as_u64()).max().unwrap_or_default();
    if last / 1000 > log.end {
        wrong.push(format!("the shutdown ends at {} µs, not {last} ns", log.end));
    }

    // The program has counted the same lines.
    let forms = read["kernel_log"]["forms"].as_object().unwrap();
    let counted: u64 = forms
        .iter()
        .filter(|(form, _)| form.contains("usecs"))
        .filter_map(|(_, lines)| lines.as_u64())
        .sum();
    let with = |line: &&Line| !matches!(line.said, Said::Shutdown(_));
    let known = log.lines.iter().filter(with).count();
    if counted != known as u64 {
        wrong.push(format!(
            "{known} lines have a duration, the program counts {counted}: {forms:?}"
        ));
    }
    (wrong, spans.len())
}

fn document(log: &Path) -> Value {
    let folder = Folder::new();
    let ran = folder.corewise(["timeline", log.to_str().unwrap(), "--json"]).ok();
    ran.json()
}

/// Checks that both understand the log alike, and returns the program's document.
#[track_caller]
fn check(log: &Path, at_least: usize) -> Value {
    let text = String::from_utf8_lossy(&std::fs::read(log).unwrap()).into_owned();
    let document = document(log);
    let (wrong, spans) = differences(&Log::read(&text), &document);
    assert!(wrong.is_empty(), "{}:\n{}", log.display(), wrong.join("\n"));
    assert!(spans >= at_least, "{}: {spans} spans", log.display());
    document
}

fn stored() -> Vec<PathBuf> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kernel-log/tests/data");
    let logs = std::fs::read_dir(data).unwrap().map(|entry| entry.unwrap().path());
    logs.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("qemu-")).collect()
}

#[test]
fn stored_boots_are_understood_alike_by_a_second_parser() {
    let logs = stored();
    assert!(logs.len() >= 2);
    for log in logs {
        check(&log, 100);
    }
}

#[test]
fn a_message_that_changes_is_found() {
    let folder = Folder::new();
    let log = std::fs::read_to_string(&stored()[0]).unwrap();
    for (was, is) in [
        ("probe of ", "probing "),
        (" returned 0 after ", " gave 0 after "),
        ("initcall ", "init function "),
        (": shutdown", ": shutting down"),
        ("probe of ", "probe of bus/"),
    ] {
        let changed = log.replace(was, is);
        assert_ne!(changed, log, "{was}");
        let path = folder.write("changed.log", &changed);
        // Understood as before, against what the program now makes of it.
        let (wrong, _) = differences(&Log::read(&log), &document(&path));
        assert!(!wrong.is_empty(), "{was} became {is}");
    }
    // And what neither of them reads.
    let before = log.find("calling ").and_then(|at| log[..at].rfind('[')).unwrap();
    let (head, tail) = log.split_at(before);
    let more = format!("{head}[    0.000000] x y: resumed within 12 usecs\r\n{tail}");
    let path = folder.write("more.log", &more);
    let (wrong, _) = differences(&Log::read(&more), &document(&path));
    assert_eq!(wrong.len(), 1, "{wrong:?}");
}

const DISKS: usize = 5;

/// Boots what `image` has in it, with four CPUs, three NVMe disks and a handful of virtio devices,
/// and returns the log.
fn boot(image: &Image, folder: &Folder, options: &str) -> PathBuf {
    let log = folder.join("console");
    // One thread runs all emulated CPUs: with several, a CPU may run into the breakpoint of an
    // instruction that another one has just finished patching, and the kernel oopses.
    let variables = format!("initcall_debug ignore_loglevel log_buf_len=4M {options}");
    let mut machine = image.machine(400, "tcg,thread=single", &variables);
    machine.args(["-smp", "4", "-m", "512"]);
    machine.arg("-serial").arg(format!("file:{}", log.display()));
    for disk in 0..DISKS {
        let file = folder.write(&format!("disk{disk}"), "");
        std::fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(16 << 20).unwrap();
        machine.arg("-drive").arg(format!("file={},format=raw,if=none,id=d{disk}", file.display()));
    }
    for device in [
        "nvme,serial=0,drive=d0",
        "nvme,serial=1,drive=d1",
        "nvme,serial=2,drive=d2",
        "virtio-blk-pci,drive=d3",
        "virtio-scsi-pci",
        "scsi-hd,drive=d4",
        "virtio-rng-pci",
        "virtio-balloon-pci",
    ] {
        machine.args(["-device", device]);
    }
    machine.args(["-nic", "user,model=virtio-net-pci,restrict=on"]);
    let ran = machine.output().unwrap_or_else(|e| panic!("{machine:?}: {e}"));
    let said = String::from_utf8_lossy(&std::fs::read(&log).unwrap_or_default()).into_owned();
    let stderr = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success() && said.contains("RESULT disks"), "{stderr}\n{said}");
    log
}

/// Takes a minute, and fetches a kernel: for long runs, of which `xtask` installs what it needs.
#[test]
fn the_newest_kernels_boots_are_understood_alike_by_a_second_parser() {
    if !is_long() {
        return;
    }
    let modules =
        "nvme virtio_pci virtio_blk virtio_net virtio_scsi sd_mod virtio_rng virtio_balloon";
    let Some(image) = Image::new("boot", "newest", "boot", modules, &[]) else {
        return;
    };
    let folder = Folder::new();
    let version = std::fs::read_to_string(image.file("version")).unwrap();

    for (options, end) in [
        ("how=poweroff", "reboot: Power down"),
        ("driver_async_probe=* how=reboot", "reboot: machine restart"),
    ] {
        let log = boot(&image, &folder, options);
        let document = check(&log, 500);
        let kernel_log = &document["logs"][0]["kernel_log"];
        assert_eq!(kernel_log["kernel"], version.trim());
        let text = String::from_utf8_lossy(&std::fs::read(&log).unwrap()).into_owned();
        assert!(text.contains(end), "{options}: {text}");

        let boot = document["logs"][0]["timelines"][0]["timeline"]["spans"].as_array().unwrap();
        let probed = |driver: &str| {
            boot.iter()
                .filter(|s| s["kind"] == "probe" && s["driver"] == driver)
                .collect::<Vec<_>>()
        };
        // Spans that every kernel has, so that no empty list passes.
        let nvme = probed("nvme");
        assert_eq!(nvme.len(), 3, "{options}: {nvme:?}");
        assert!(nvme.iter().all(|span| span["asynchronous"] == true), "{options}: {nvme:?}");
        assert_eq!(probed("virtio_blk").len(), 1, "{options}");
        let down = document["logs"][0]["timelines"][1]["timeline"]["spans"].as_array().unwrap();
        let nvme = down.iter().filter(|s| s["kind"] == "shutdown" && s["driver"] == "nvme");
        assert_eq!(nvme.count(), 3, "{options}");
    }
}
