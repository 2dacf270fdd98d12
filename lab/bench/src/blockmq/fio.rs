//! fio, the usual program for measuring disks, with the same loads.

use std::io;
use std::process::Command;

use serde_json::Value;

use crate::blockmq::disk::Disk;
use crate::blockmq::io::{Load, SIZE, WARM};
use crate::{BenchError, Job, Line};

/// Runs a job with fio. Its engine is `null`, `mmap` on a file in memory, or `io_uring`. The last
/// one takes the same file as ours, past the page cache, with the file and the buffers registered.
///
/// # Errors
/// fio couldn't be run, or its output isn't understood.
pub(super) fn run(job: &Job, load: Load) -> Result<Line, BenchError> {
    let (disk, engine) = match load.device {
        "null" => (None, &["--ioengine=null"][..]),
        // The job has a file of its own, which is full before it begins.
        "memory" => (Some(Disk::make("/dev/shm".as_ref(), SIZE)?), &["--ioengine=mmap"][..]),
        _ => (Some(Disk::find()?), DIRECT),
    };
    let mix = if load.writes { "randwrite" } else { "randread" };
    let mut fio = command(mix, job.bytes, load.depth, load.jobs, job.length_ms);
    fio.args(engine)
        .arg("--invalidate=0")
        .arg(format!("--ramp_time={}ms", job.length_ms / u64::from(WARM)));
    match &disk {
        Some(disk) => fio.arg(format!("--filename={}", disk.path().display())),
        None => fio.arg(format!("--size={SIZE}")),
    };
    measure(fio, job)
}

/// Returns fio's command for `jobs` jobs with `depth` requests of `bytes` bytes in flight each, for
/// `length_ms` milliseconds.
pub fn command(mix: &str, bytes: u32, depth: u16, jobs: u16, length_ms: u64) -> Command {
    let mut fio = Command::new("fio");
    fio.args(["--name=job", "--output-format=json", "--thread", "--group_reporting"])
        .args(["--time_based", "--norandommap"])
        .args(["--lat_percentiles=1", "--clat_percentiles=0", "--percentile_list=50:99:99.9"])
        .args([format!("--rw={mix}"), format!("--bs={bytes}")])
        .args([format!("--iodepth={depth}"), format!("--numjobs={jobs}")])
        .arg(format!("--runtime={length_ms}ms"));
    fio
}

/// Runs fio, and reads its output. This blocks. If fio isn't installed or failed, the line says so.
///
/// # Errors
/// fio couldn't be run, or its output isn't understood.
pub fn measure(mut fio: Command, job: &Job) -> Result<Line, BenchError> {
    let output = match fio.output() {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(job.cannot("fio isn't installed"));
        }
        Err(source) => return Err(BenchError::Unusable { what: "fio", source }),
    };
    if !output.status.success() {
        return Ok(job.cannot(String::from_utf8_lossy(&output.stderr).trim()));
    }
    parse(&String::from_utf8_lossy(&output.stdout), job.line()).ok_or(BenchError::WrongAnswer)
}

/// The engine for a file past the page cache, as fio's documentation recommends.
pub const DIRECT: &[&str] =
    &["--ioengine=io_uring", "--direct=1", "--registerfiles=1", "--fixedbufs=1"];

/// Reads fio's output, or returns `None` if the values aren't there. With reads and writes, it
/// takes the sum of their rates, and the worse of their latencies.
fn parse(text: &str, mut line: Line) -> Option<Line> {
    // Messages may come before the JSON.
    let json: Value = serde_json::from_str(text.get(text.find('{')?..)?).ok()?;
    let job = json.get("jobs")?.get(0)?;
    let sides = [job.get("read")?, job.get("write")?];
    let sum = |what: &str| sides.iter().filter_map(|side| side.get(what)?.as_f64()).sum::<f64>();
    line.set("items_per_second", sum("iops"));
    for (metric, percent) in
        [("latency_p50", "50.000000"), ("latency_p99", "99.000000"), ("latency_p999", "99.900000")]
    {
        let of = |side: &&Value| side.get("lat_ns")?.get("percentile")?.get(percent)?.as_f64();
        line.set(metric, sides.iter().filter_map(of).reduce(f64::max)?);
    }
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fio_output_is_parsed() {
        let text = r#"note: something
{ "fio version": "fio-3.33", "jobs": [ { "jobname": "job", "read": { "iops": 12345.5, "lat_ns": {
"min": 1, "percentile": { "50.000000": 100, "99.000000": 200, "99.900000": 300 } } }, "write": { "iops": 0.5 } } ] }"#;
        let line = parse(text, Line::new("file/randread/1/1", "fio")).unwrap();
        assert_eq!(line.metrics["items_per_second"], 12346.0);
        assert_eq!(line.metrics["latency_p99"], 200.0);
        let none = text.replace("percentile", "nothing");
        assert_eq!(parse(&none, Line::new("x", "fio")), None);
        assert_eq!(parse("no", Line::new("x", "fio")), None);
    }
}
