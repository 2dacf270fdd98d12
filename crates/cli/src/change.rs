//! `corewise add`, `remove`, `grow` and `reload`: what a running `corewise up` has is changed while it serves.

use std::path::Path;

use corewise::timeline::{json, text};
use corewise_server::control::Question;
use corewise_server::control::changes::ChangeReport;
use serde_json::Value;

use crate::args;
use crate::client::{self, Client, printable};
use crate::exit::Failure;
use crate::screen;

pub(crate) fn add(args: &args::Add) -> Result<(), Failure> {
    if args.manifest == Path::new("-") {
        return Err(Failure::new("the server reads the manifest by its name: write it to a file"));
    }
    let file = std::path::absolute(&args.manifest).map_err(|error| {
        Failure::new(format!("cannot read '{}': {error}", args.manifest.display()))
    })?;
    ask(&args.how, Question { file: Some(file), ..Question::new("add") })
}

pub(crate) fn remove(args: &args::Remove) -> Result<(), Failure> {
    let name = Some(args.name.clone());
    let mode = Some(args.mode.into());
    ask(&args.how, Question { name, mode, ..Question::new("remove") })
}

pub(crate) fn grow(args: &args::Grow) -> Result<(), Failure> {
    let (name, size) = (Some(args.name.clone()), args.size);
    ask(&args.how, Question { name, size, ..Question::new("grow") })
}

pub(crate) fn reload(args: &args::Reload) -> Result<(), Failure> {
    ask(&args.how, Question { mode: Some(args.mode.into()), ..Question::new("reload") })
}

/// Asks, waits as long as it takes, and shows what was done.
fn ask(how: &args::Change, question: Question) -> Result<(), Failure> {
    let mut client = Client::find(&how.server)?;
    let answer = client.ask_for_long(&Question { dry_run: how.dry_run, ..question })?;
    let changed: ChangeReport = client::part(&answer, "changed")?;
    client::print(&answer, how.json, |out| {
        client::write_lines(out, &changed.text())?;
        let read = |timeline: &Value| json::read(&timeline.to_string()).ok();
        let timelines = changed.timelines.iter().filter_map(read).flatten();
        // Of one that stands alone the line above says all.
        for timeline in timelines.filter(|timeline| timeline.spans().len() > 1) {
            write!(out, "\n{}", text::render(&timeline, screen::all_columns()))?;
        }
        Ok(())
    })?;
    report(&changed)
}

/// Says on stderr what the answer to a change warns of, and what failed.
pub(crate) fn report_of(answer: &Value) -> Result<(), Failure> {
    report(&client::part(answer, "changed")?)
}

fn report(changed: &ChangeReport) -> Result<(), Failure> {
    for note in &changed.notes {
        screen::warning(format_args!("{}", printable(note)));
    }
    for failed in &changed.failed {
        let why = format!("{}: {}", failed.name, failed.why);
        screen::error(format_args!("{}", printable(&why)));
    }
    if changed.failed.is_empty() { Ok(()) } else { Err(Failure::Reported) }
}
