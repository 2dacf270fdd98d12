//! `corewise timeline`: what a kernel log tells of probes and shutdowns, and what would be faster.

mod asked;
mod document;
pub(crate) mod file;
mod report;
mod source;
mod sysfs;

use std::io::Write;

use crate::args::timeline::{Args, TimelineFile};
use crate::exit::Failure;
use crate::screen;
use asked::{Asked, Predicted};

/// Reads logs, and shows what they say.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    for file in &args.output {
        file::check(file)?;
        source::spare(args, file)?;
    }
    let asked = Asked::of(args);
    let logs = source::read(args)?;
    let predicted = asked.predict(&logs)?;
    for file in &args.output {
        write(file, &logs, &predicted)?;
    }
    let mut out = anstream::stdout().lock();
    if args.json {
        document::write(&mut out, args, &logs, &predicted)?;
    } else {
        let text = report::text(args, &logs, &predicted, screen::all_columns());
        write!(out, "{text}")?;
    }
    Ok(out.flush()?)
}

/// Writes all timelines and what was predicted of them into one file.
fn write(
    file: &TimelineFile,
    logs: &[source::Log],
    predicted: &[Vec<Predicted>],
) -> Result<(), Failure> {
    let mut named = Vec::new();
    for (log, predicted) in logs.iter().zip(predicted) {
        let name = |timeline: &corewise::timeline::Timeline| match logs.len() {
            1 => timeline.name().to_owned(),
            _ => format!("{}: {}", log.name, timeline.name()),
        };
        for timeline in &log.timelines {
            named.push(timeline.clone().named(name(timeline)));
        }
        for prediction in predicted {
            let timeline = &prediction.prediction.timeline;
            named.push(timeline.clone().named(format!("{}, {}", name(timeline), prediction.asked)));
        }
    }
    let facts: Vec<(String, String)> = logs.iter().flat_map(report::facts).collect();
    let timelines: Vec<_> = named.iter().collect();
    let short = |log: &source::Log| match log.name.rsplit_once('/') {
        Some((_, name)) => name.to_owned(),
        None => log.name.clone(),
    };
    let names: Vec<String> = logs.iter().map(short).collect();
    file::write(file, file::About { title: &names.join(", "), facts: &facts }, &timelines)
}
