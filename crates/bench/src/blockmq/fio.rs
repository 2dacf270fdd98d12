//! The same by fio, the program with which disks are measured.

use std::io;
use std::process::Command;

use serde_json::Value;

use crate::blockmq::disk::Disk;
use crate::blockmq::io::{Device, Load, SIZE, WARM};
use crate::{BenchError, Job, Line};

/// Runs a job with fio: its engine `null`, `mmap` on a file in memory, or `io_uring` on the same file as ours, past the
/// page cache, with the file and the buffers registered.
///
/// # Errors
/// It couldn't be run, or printed what isn't understood.
pub(super) fn run(job: &Job, load: Load) -> Result<Line, BenchError> {
    let disk = match load.device {
        Device::Null => None,
        Device::Memory => {
            // Its own; as its job writes it the first time it is filled.
            let folder = "/dev/shm".as_ref();
            Some(
                Disk::make(folder, SIZE)
                    .map_err(|error| BenchError::system("filling memory", error))?,
            )
        }
        Device::File => Some(Disk::find()?),
    };
    let mut fio = Command::new("fio");
    fio.args(["--name=job", "--output-format=json", "--thread", "--group_reporting"])
        .args(["--time_based", "--norandommap", "--invalidate=0"])
        .args(["--lat_percentiles=1", "--clat_percentiles=0", "--percentile_list=50:99:99.9"])
        .args(engine(load.device))
        .arg(format!("--rw={}", if load.writes { "randwrite" } else { "randread" }))
        .arg(format!("--bs={}", job.bytes))
        .arg(format!("--iodepth={}", load.depth))
        .arg(format!("--numjobs={}", load.jobs))
        .arg(format!("--runtime={}ms", job.length_ms))
        .arg(format!("--ramp_time={}ms", job.length_ms / u64::from(WARM)));
    match &disk {
        Some(disk) => fio.arg(format!("--filename={}", disk.path().display())),
        None => fio.arg(format!("--size={SIZE}")),
    };
    let output = match fio.output() {
        Ok(output) => output,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(job.cannot("fio isn't installed"));
        }
        Err(error) => return Err(BenchError::system("starting fio", error)),
    };
    if !output.status.success() {
        return Ok(job.cannot(String::from_utf8_lossy(&output.stderr).trim()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let line = job.line();
    parse(&text, load.writes, line).ok_or(BenchError::WrongAnswer)
}

/// What its documentation recommends.
fn engine(device: Device) -> &'static [&'static str] {
    match device {
        Device::Null => &["--ioengine=null"],
        Device::Memory => &["--ioengine=mmap"],
        Device::File => {
            &["--ioengine=io_uring", "--direct=1", "--registerfiles=1", "--fixedbufs=1"]
        }
    }
}

/// What fio printed; `None` where there is no such thing in it.
fn parse(text: &str, writes: bool, mut line: Line) -> Option<Line> {
    // It may say something before.
    let json: Value = serde_json::from_str(text.get(text.find('{')?..)?).ok()?;
    let side = json.get("jobs")?.get(0)?.get(if writes { "write" } else { "read" })?;
    line.set("items_per_second", side.get("iops")?.as_f64()?);
    let latency = side.get("lat_ns")?.get("percentile")?;
    for (metric, percent) in
        [("latency_p50", "50.000000"), ("latency_p99", "99.000000"), ("latency_p999", "99.900000")]
    {
        line.set(metric, latency.get(percent)?.as_f64()?);
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
"min": 1, "percentile": { "50.000000": 100, "99.000000": 200, "99.900000": 300 } } } } ] }"#;
        let line = parse(text, false, Line::new("file/randread/1/1", "fio")).unwrap();
        assert_eq!(line.metrics["items_per_second"], 12345.5);
        assert_eq!(line.metrics["latency_p99"], 200.0);
        assert_eq!(parse(text, true, Line::new("x", "fio")), None);
        assert_eq!(parse("no", false, Line::new("x", "fio")), None);
    }
}
