//! NBD servers on the same volumes, with the same clients: fio, and a client of many exports.
//!
//! * `random/PLACE/TRANSPORT/MIX/DEPTH/JOBS`: requests of 4 KiB by fio, each job with a connection
//!   of its own. PLACE is `memory`, `tmpfs`, `disk` (a file through the page cache, which has the
//!   file) or `direct` (the same file past the cache). MIX is `read`, `write` or `mixed`.
//! * `paced/PLACE/unix/RATE`: RATE reads of 4 KiB a second, by four clients that wait for no
//!   answer. Percentiles compare only at equal load. Each latency begins when its request was due.
//! * `sequential/PLACE/TRANSPORT/MIX`: requests of 128 KiB, eight in flight on one connection.
//! * `exports/COUNT/instant`, `/slow`: the time until one client has read the first block of each
//!   export, and the time from SIGTERM to the end. With `slow`, each request takes 50 ms, and each
//!   export has a block that was written and not flushed.

mod client;
pub(crate) mod files;
mod server;

use std::fmt::Display;
use std::fs::File;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use corewise_bench::bench::{Bench, Cases, Workload};
use corewise_bench::blockmq::fio;
use corewise_bench::meter::percentiles;
use corewise_bench::{Job, Line};

use crate::programs::Tool;
use crate::results::{Ask, OURS, is_floor};
use crate::session::{Idle, Peers, Runtime, When};
use client::{BLOCK, READ, WRITE, ask, leave, paced};
use files::Files;
use server::{Server, Volume, name};

static BENCH: Bench = Bench {
    name: "nbd",
    words: "length_ms",
    workloads: &[Workload {
        cases: Cases::Fit(
            |parts| cases(true).contains(&parts.join("/")),
            |on| cases(on.cpus.len() >= 8),
        ),
        quick: |parts, _| quick(parts),
        numbers: |job, _, on| job.length_ms = on.pick(1_000, 400),
        variants: |_, _| vec![],
        run: |job, _| match PEERS.runtimes.iter().any(|runtime| runtime.name == job.runtime) {
            true => Ok(Files::find()
                .and_then(|files| measure(job, &files))
                .unwrap_or_else(|why| job.cannot(&why))),
            false => job.unknown(),
        },
    }],
    counting: |_| (),
    headlines: |_| vec![],
};

const FIO: &str = "fio";
const QSD: Tool = Tool::Server("qemu-storage-daemon");
const QEMU_NBD: Tool = Tool::Server("qemu-nbd");

pub(crate) static PEERS: Peers = Peers {
    bench: &BENCH,
    runtimes: &[
        Runtime::of(OURS, Tool::Server(OURS), Idle::Sleeps, When::Always),
        Runtime::of("corewise-threads", Tool::Server(OURS), Idle::Sleeps, When::Thorough),
        Runtime::of(FIO, Tool::Server(FIO), Idle::Sleeps, When::Always),
        Runtime::of("nbdkit", Tool::Server("nbdkit"), Idle::Sleeps, When::Usually),
        Runtime::of("nbdkit-t4", Tool::Server("nbdkit"), Idle::Sleeps, When::Thorough),
        Runtime::of("qemu-nbd", QEMU_NBD, Idle::Sleeps, When::Thorough),
        Runtime::of("qemu-nbd-threads", QEMU_NBD, Idle::Sleeps, When::Thorough),
        Runtime::of("qemu-nbd-native", QEMU_NBD, Idle::Sleeps, When::Thorough),
        Runtime::of("qemu-storage-daemon", QSD, Idle::Sleeps, When::Usually),
        Runtime::of("qemu-storage-daemon-threads", QSD, Idle::Sleeps, When::Thorough),
        Runtime::of("qemu-storage-daemon-native", QSD, Idle::Sleeps, When::Thorough),
        Runtime::of("nbd-server", Tool::Server("nbd-server"), Idle::Sleeps, When::Usually),
        Runtime::of("nbd-server-splice", Tool::Server("nbd-server"), Idle::Sleeps, When::Thorough),
    ],
    takes,
    // Over TCP only one kind of volume is run, since only the transport differs.
    full: |parts, named, _| {
        let way = &parts[parts.len().min(2)..];
        named
            || parts.get(2) != Some(&"tcp")
            || matches!(way, ["tcp", "read"] | ["tcp", "read", "32", "4"])
            || matches!(way, ["tcp", "read", "1", "1"])
    },
    quick,
    allocates: |_| false,
    adapt: |_, _, _| (),
    small: |job| job.length_ms = 100,
    counts: |_, _| false,
    headlines: &[
        Ask::lower("cpu_per_request_vs_best_peer", "cpu_per_item", |case, peer| {
            case.starts_with("random/") && !is_floor(peer)
        }),
        Ask::rate("iops_qd32_vs_best_peer", |case, peer| case.contains("/32/") && !is_floor(peer)),
        Ask::rate("iops_qd1_vs_best_peer", |case, peer| case.contains("/1/") && !is_floor(peer)),
        Ask::lower("p999_at_equal_load_vs_best_peer", "latency_p999", |case, _| {
            case.starts_with("paced/")
        }),
        Ask::rate("odirect_vs_fio", |case, peer| {
            case.starts_with("random/direct/") && case.contains("/32/") && peer == FIO
        }),
        Ask::lower("exports_1000_up_vs_best_peer", "up_time", |case, _| {
            case == "exports/1000/instant"
        }),
    ],
    files: Some(Files::make),
    run: |job, _| job.unknown(),
};

/// Reads a second of paced clients, a rate that each server can serve on two CPUs.
const PACE: u32 = 40_000;

const PLACES: [&str; 4] = ["memory", "tmpfs", "disk", "direct"];

/// Returns all cases, the most important first. With `many`, for a machine with enough CPUs, there
/// are cases of sixteen jobs too.
fn cases(many: bool) -> Vec<String> {
    let jobs: &[u32] = if many { &[1, 4, 16] } else { &[1, 4] };
    let mut all = Vec::new();
    for count in [1_000, 100, 1] {
        all.extend(["instant", "slow"].map(|how| format!("exports/{count}/{how}")));
    }
    all.extend(["memory", "tmpfs"].map(|place| format!("paced/{place}/unix/{PACE}")));
    let ways = PLACES.map(|place| ["unix", "tcp"].map(|by| format!("{place}/{by}")));
    for way in ways.as_flattened() {
        for load in ["read/32", "read/1", "write/32", "write/1", "mixed/32", "mixed/1"] {
            all.extend(jobs.iter().map(|jobs| format!("random/{way}/{load}/{jobs}")));
        }
        all.extend(["read", "write"].map(|mix| format!("sequential/{way}/{mix}")));
    }
    all
}

/// Returns true for the cases in which the headlines have been worst.
fn quick(parts: &[&str]) -> bool {
    matches!(
        parts,
        ["random", "memory" | "tmpfs", "unix", "read", "32", "4"]
            | ["random", "memory" | "tmpfs", "unix", "read", "1", "1"]
            | ["random", "direct", "unix", "read", "32", "4"]
            | ["paced", ..]
            | ["exports", "1000", "instant"]
    )
}

/// Returns true if a server has such a volume. Only two have volumes in memory, nbdkit and
/// nbd-server don't support O_DIRECT, and qemu-nbd serves one volume.
fn takes(name: &str, parts: &[&str]) -> bool {
    let place = if PLACES.contains(&parts[1]) { parts[1] } else { "" };
    let is_file = ["tmpfs", "disk"].contains(&place);
    let of_file = |variant: bool| if variant { is_file } else { place != "memory" };
    match name {
        OURS => true,
        "corewise-threads" => is_file || place == "direct",
        FIO => parts[0] == "random" && parts[1..3] == ["direct", "unix"],
        "nbdkit" => place != "direct",
        "nbdkit-t4" => ["random", "paced"].contains(&parts[0]) && place != "direct",
        "nbd-server" => place.is_empty() && parts[parts.len() - 1] != "slow" || is_file,
        "nbd-server-splice" => is_file,
        _ if name.ends_with("-native") => place == "direct",
        "qemu-nbd" if parts[0] == "exports" => parts[1..] == ["1", "instant"],
        _ => of_file(name.ends_with("-threads")),
    }
}

/// Does one run. It blocks for a little longer than the run.
fn measure(job: &Job, files: &Files) -> Result<Line, String> {
    match *job.parts() {
        ["exports", count, how] => exports(job, files, number(count).into(), how == "slow"),
        _ => load(job, files),
    }
}

fn number(text: &str) -> u16 {
    text.parse().unwrap_or(1)
}

fn text(error: impl Display) -> String {
    error.to_string()
}

fn load(job: &Job, files: &Files) -> Result<Line, String> {
    let parts = job.parts();
    let (kind, place, transport, way) = (parts[0], parts[1], parts[2], &parts[3..]);
    let path = files.volume(["disk", "direct"].contains(&place));
    let file = File::open(&path).map_err(text)?;
    let size = file.metadata().map_err(text)?.len();
    // This run needn't wait for the writes of the run before.
    file.sync_all().map_err(text)?;
    let (mix, bytes, depth, jobs) = match way {
        ["mixed", depth, jobs] => ("randrw".to_owned(), 4 << 10, number(depth), number(jobs)),
        [mix, depth, jobs] => (format!("rand{mix}"), 4 << 10, number(depth), number(jobs)),
        _ if kind == "paced" => ("randread".to_owned(), 4 << 10, 1, 1),
        _ => (way[0].to_owned(), 128 << 10, 8, 1),
    };
    let mut fio = fio::command(&mix, bytes, depth, jobs, job.length_ms);
    fio.arg(format!("--size={size}"));
    if job.runtime == FIO {
        fio.args(fio::DIRECT).arg(format!("--filename={}", path.display()));
        return fio::measure(fio, job).map_err(text);
    }
    let volume = match place {
        "memory" => Volume::Memory(size),
        _ => Volume::File(&path, place == "direct"),
    };
    let mut server = Server::start(&job.runtime, volume, transport == "tcp", files)?;
    server.wait()?;
    let uri = server.uri();
    if place == "memory" {
        copy(&files.volume(false).display().to_string(), &uri)?;
    }
    fio.args(["--ioengine=nbd".to_owned(), format!("--uri={uri}")]);
    let (before, _) = server.usage();
    let (mut line, moved) = match kind {
        "paced" => at_pace(job, &server, size, way[0])?,
        _ => {
            let mut line = fio::measure(fio, job).map_err(text)?;
            let items = line.metrics.get("items_per_second").copied().unwrap_or(0.0);
            line.set("bytes_per_second", items * f64::from(bytes));
            (line, items * f64::from(bytes) * job.length_ms as f64 / 1e3)
        }
    };
    if line.unsupported.is_some() {
        return Ok(line);
    }
    let cpu = server.cpu_since(before);
    match kind {
        "random" | "paced" => line.set("cpu_per_item", cpu / moved * f64::from(bytes)),
        _ => line.set("cpu_per_gib", cpu / moved * f64::from(1 << 30)),
    }
    Ok(line)
}

/// Makes four clients read at a rate. Returns the line, and the number of bytes that they read.
fn at_pace(job: &Job, server: &Server, size: u64, rate: &str) -> Result<(Line, f64), String> {
    let rate: u32 = rate.parse().map_err(text)?;
    let length = Duration::from_millis(job.length_ms);
    let mut clients = server.clients(&vec![name(0); 4])?;
    let mut took = paced(&mut clients, size, rate, length).map_err(text)?;
    leave(clients).map_err(text)?;
    let mut line = job.line();
    percentiles(&mut line, "latency", &mut took, &[50.0, 99.0, 99.9]);
    Ok((line, f64::from(rate) * length.as_secs_f64() * f64::from(BLOCK)))
}

/// Copies a volume by nbdcopy.
fn copy(from: &str, to: &str) -> Result<(), String> {
    let output = Command::new("nbdcopy").args([from, to]).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("nbdcopy can't be started: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("nbdcopy failed: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

fn exports(job: &Job, files: &Files, count: u32, slow: bool) -> Result<Line, String> {
    let small = files.small();
    let volume = if slow { Volume::Slow(count) } else { Volume::Files(&small, count) };
    let names: Vec<String> = (0..count).map(name).collect();
    let began = Instant::now();
    let mut server = Server::start(&job.runtime, volume, false, files)?;
    server.wait()?;
    let mut clients = server.clients(&names)?;
    ask(&mut clients, READ).map_err(text)?;
    let (up, threads, memory) = (began.elapsed(), server.usage().1, server.memory());
    if slow {
        ask(&mut clients, WRITE).map_err(text)?;
    }
    leave(clients).map_err(text)?;
    let mut line = job.line();
    line.set("up_time", up.as_nanos() as f64);
    line.set("down_time", server.stop()?.as_nanos() as f64);
    line.set("threads", threads as f64);
    line.set("memory", memory as f64);
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::is_installed;
    use crate::results::tests::{find, of as headlines_of};
    use crate::session::tests::{cells, names};
    use corewise_bench::bench::{Effort, On};
    use corewise_topology::Machine;

    #[test]
    fn each_server_serves_what_it_has_in_cases_that_are_read_back() {
        for case in cases(true) {
            let words =
                [format!("case={case}"), format!("runtime={OURS}"), "length_ms=7".to_owned()];
            assert_eq!(Job::from_words(&BENCH, &words).unwrap().to_words(), words);
        }
        let direct = names("nbd", "random/direct/unix/read/32/4");
        let qemu =
            ["qemu-nbd", "qemu-nbd-native", "qemu-storage-daemon", "qemu-storage-daemon-native"];
        assert_eq!(direct, [&[OURS, "corewise-threads", FIO], &qemu[..]].concat());
        assert_eq!(names("nbd", "random/memory/tcp/read/32/4"), [OURS, "nbdkit", "nbdkit-t4"]);
        assert!(names("nbd", "random/memory/tcp/write/32/4").is_empty());
        let all = [OURS, "nbdkit", "qemu-storage-daemon", "nbd-server"];
        assert_eq!(names("nbd --quick", "exports/1000/instant"), all);
        assert_eq!(names("nbd", "exports/100/slow"), all[..3]);
        assert_eq!(cells("nbd --quick").len(), 8);
    }

    #[test]
    fn the_best_peer_of_each_cell_counts_and_fio_is_none() {
        let (rate, cell) = ("items_per_second", "random/direct/unix/read/32/4");
        let found = headlines_of(
            &[
                (cell, OURS, rate, &[90.0]),
                (cell, FIO, rate, &[100.0]),
                (cell, "qemu-nbd", rate, &[60.0]),
                (cell, "nbdkit", rate, &[45.0]),
                ("exports/1000/instant", OURS, "up_time", &[3.0]),
                ("exports/1000/instant", "nbd-server", "up_time", &[4.0]),
            ],
            PEERS.headlines,
        );
        let of = |name| find(&found, name).unwrap();
        assert_eq!(of("iops_qd32_vs_best_peer").1, 1.5);
        assert_eq!(of("odirect_vs_fio").1, 0.9);
        assert_eq!(of("exports_1000_up_vs_best_peer").1, 0.75);
        assert_eq!(found.len(), 3);
    }

    /// Servers that aren't installed take no part; the tests of `xtask` have qemu-nbd.
    #[test]
    fn every_installed_peer_serves_a_small_case_of_each_kind_and_stops() {
        let on = On::here(&Machine::live().unwrap(), Effort::Quick);
        let files = Files::of(8 << 20).unwrap();
        for runtime in PEERS.runtimes.iter().filter(|runtime| runtime.name != OURS) {
            let Tool::Server(program) = runtime.tool else { panic!("{runtime:?} is a server") };
            let cases = [
                "random/tmpfs/unix/mixed/32/4",
                "paced/tmpfs/unix/40000",
                "sequential/tmpfs/tcp/read",
                "exports/1/instant",
            ];
            let clients = is_installed("fio") && is_installed("nbdcopy");
            for case in cases.into_iter().filter(|_| clients && is_installed(program)) {
                if takes(runtime.name, &case.split('/').collect::<Vec<_>>()) {
                    let mut job = BENCH.job(case, runtime.name, &on);
                    (PEERS.small)(&mut job);
                    let line =
                        measure(&job, &files).unwrap_or_else(|why| panic!("{}: {why}", job.name()));
                    assert!(line.unsupported.is_none() && line.metrics.len() >= 3, "{line:?}");
                    assert!(line.metrics.values().all(|value| *value >= 0.0), "{line:?}");
                }
            }
        }
    }
}
