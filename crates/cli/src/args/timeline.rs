//! The flags of `corewise timeline`.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};

pub(crate) const HELP: &str = "\
LOG is the output of dmesg, journalctl -k (best with -o short-monotonic or -o json) or a serial \
console, from a kernel that was booted with initcall_debug. For a shutdown, take a log that \
outlives it: from a serial console, netconsole or pstore. LOG may also be a file that `corewise \
up --timeline FILE.json` wrote. docs/timeline.md describes the forms of logs, the predictions, \
the files and the JSON.

Examples:
  corewise timeline dmesg.txt
  dmesg | corewise timeline -
  corewise timeline console.log --phase shutdown --output shutdown.html
  corewise timeline console.log -o boot.svg -o boot.trace.json
  corewise timeline console.log --only 'nvme*' --workers 8
  corewise timeline console.log --faster 0000:01:00.0=0.5 --all-async
  corewise timeline dmesg.txt --sysfs /sys/devices --deps needs.txt
  corewise timeline before.log after.log --compare
  corewise timeline dmesg.txt --json | jq '.logs[].timelines[].analysis.costs'

Exit codes: 0 success, 1 failure (a log can't be read, or has neither a probe nor a shutdown), 2 \
wrong usage.";

/// `corewise timeline`.
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// Kernel logs, or timelines in JSON; '-' is stdin
    #[arg(required = true, value_name = "LOG")]
    pub(crate) logs: Vec<PathBuf>,
    /// Phase to show
    #[arg(long, value_name = "PHASE", default_value = "both")]
    pub(crate) phase: Phase,
    /// Show only this device, init function or driver, such as 'nvme*'; '*' matches any letters;
    /// may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Vec<String>,
    /// Show the Nth boot of a log that holds several; at least 1 [default: the last]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) boot: Option<u32>,
    /// Compare two logs, such as before.log and after.log
    #[arg(long)]
    pub(crate) compare: bool,
    /// Predict a run in which everything except init functions is asynchronous
    #[arg(long)]
    pub(crate) all_async: bool,
    /// Predict such a run with at most N workers; at least 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) workers: Option<u32>,
    /// Predict a run in which this device or driver takes FACTOR times its time, such as
    /// 'nvme*=0.5'; FACTOR is from 0 to 1000000; may be repeated
    #[arg(long, value_name = "DEVICE=FACTOR", value_parser = faster)]
    pub(crate) faster: Vec<Faster>,
    /// Read parents, suppliers and drivers from a sysfs tree, such as /sys/devices, or from a saved
    /// listing of one
    #[arg(long, value_name = "DIR")]
    pub(crate) sysfs: Option<PathBuf>,
    /// Read dependencies from FILE, which docs/timeline.md describes; may be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) deps: Vec<PathBuf>,
    /// Write the timelines and predictions to FILE (.svg, .html, .json, or .trace.json for
    /// Perfetto); may be repeated
    #[arg(short, long, value_name = "FILE", value_parser = TimelineFile::parse)]
    pub(crate) output: Vec<TimelineFile>,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
    /// List at most N devices, drivers and differences
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) top: usize,
    /// Draw at most N bars
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub(crate) rows: usize,
}

/// A file for timelines; the ending of its name is the format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TimelineFile {
    pub(crate) path: PathBuf,
    pub(crate) format: TimelineFormat,
}

/// Format of a timeline file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimelineFormat {
    Svg,
    Html,
    /// The project's own format, which `corewise timeline` reads.
    Json,
    /// Chrome's format, for Perfetto.
    Trace,
}

impl TimelineFile {
    /// Parses the flag's value.
    pub(crate) fn parse(text: &str) -> Result<TimelineFile, String> {
        let path = PathBuf::from(text);
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let endings = [
            (".trace.json", TimelineFormat::Trace),
            (".json", TimelineFormat::Json),
            (".svg", TimelineFormat::Svg),
            (".html", TimelineFormat::Html),
        ];
        let format = endings.into_iter().find(|(ending, _)| name.ends_with(ending));
        match format {
            Some((ending, _)) if name == ending => Err(format!(
                "the file name lacks the part before its ending: write, for example, boot{ending}"
            )),
            Some((_, format)) => Ok(TimelineFile { path, format }),
            None => {
                Err("the file's name must end in .svg, .html, .json or .trace.json (Perfetto)"
                    .into())
            }
        }
    }
}

/// A part of a machine's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Phase {
    /// Init functions and probes
    Boot,
    /// Shutdown of devices
    Shutdown,
    /// Both phases
    Both,
}

/// A device with another duration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Faster {
    pub(crate) name: String,
    pub(crate) factor: f64,
}

/// Largest factor: a slower device tells nothing, and its times would overflow.
const MOST_SLOWER: f64 = 1e6;

fn faster(text: &str) -> Result<Faster, String> {
    let example = "write DEVICE=FACTOR, such as 0000:01:00.0=0.5";
    // Names hold '=' less often than factors do.
    let (name, factor) = text.rsplit_once('=').ok_or(example)?;
    let factor: f64 =
        factor.parse().map_err(|_| format!("'{factor}' is not a number: {example}"))?;
    if name.is_empty() {
        return Err(example.to_owned());
    }
    if !(0.0..=MOST_SLOWER).contains(&factor) {
        return Err(format!("'{factor}' is not from 0 to {MOST_SLOWER}: {example}"));
    }
    Ok(Faster { name: name.to_owned(), factor })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_stands_behind_the_last_equals_sign() {
        let is = |name: &str, factor| Ok(Faster { name: name.into(), factor });
        assert_eq!(faster("0000:01:00.0=0.5"), is("0000:01:00.0", 0.5));
        assert_eq!(faster("a=b=2"), is("a=b", 2.0));
        for bad in ["a", "a=", "=1", "a=-1", "a=1e7", "a=x", "a=inf", "a=NaN"] {
            assert!(faster(bad).is_err(), "{bad}");
        }
    }
}
