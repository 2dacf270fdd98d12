//! `corewise add`, `remove`, `grow` and `reload`: what a running `corewise up` has is changed while it serves.

use std::io::Write;
use std::path::Path;

use corewise::timeline::{json, text};
use corewise_server::control::Question;
use corewise_server::control::changes::Changed;
use serde_json::Value;

use crate::args;
use crate::dump::client::{Client, printable};
use crate::dump::find;
use crate::exit::Failure;
use crate::screen;

pub(crate) fn add(args: &args::Add) -> Result<(), Failure> {
    if args.manifest == Path::new("-") {
        return Err(Failure::new("the server reads the manifest by its name: write it to a file"));
    }
    let file = std::path::absolute(&args.manifest).map_err(|error| {
        Failure::new(format!("cannot read '{}': {error}", args.manifest.display()))
    })?;
    ask(&args.how, Question { ask: "add".to_string(), file: Some(file), ..Question::dump() })
}

pub(crate) fn remove(args: &args::Remove) -> Result<(), Failure> {
    let name = Some(args.name.clone());
    let question = Question { name, mode: Some(args.mode.into()), ..Question::dump() };
    ask(&args.how, Question { ask: "remove".to_string(), ..question })
}

pub(crate) fn grow(args: &args::Grow) -> Result<(), Failure> {
    let (name, size) = (Some(args.name.clone()), args.size);
    ask(&args.how, Question { ask: "grow".to_string(), name, size, ..Question::dump() })
}

pub(crate) fn reload(args: &args::Reload) -> Result<(), Failure> {
    let question = Question { mode: Some(args.mode.into()), ..Question::dump() };
    ask(&args.how, Question { ask: "reload".to_string(), ..question })
}

/// Asks, waits as long as it takes, and shows what was done.
fn ask(how: &args::Change, question: Question) -> Result<(), Failure> {
    let (path, name) = find(&how.server)?;
    let mut client = Client::connect(path, name)?;
    let answer = client.ask_for_long(&Question { dry_run: how.dry_run, ..question })?;
    let changed = of(&answer)?;
    show(&answer, &changed, how.json)?;
    told_apart(&changed)
}

fn of(answer: &Value) -> Result<Changed, Failure> {
    serde_json::from_value(answer["changed"].clone())
        .map_err(|error| Failure::new(format!("the answer doesn't say what changed: {error}")))
}

/// What is worth a word in the answer to a change, and what failed.
pub(crate) fn told(answer: &Value) -> Result<(), Failure> {
    told_apart(&of(answer)?)
}

fn told_apart(changed: &Changed) -> Result<(), Failure> {
    for note in &changed.notes {
        screen::warning(format_args!("{}", printable(note)));
    }
    for failed in &changed.failed {
        let why = format!("{}: {}", failed.name, failed.why);
        screen::error(format_args!("{}", printable(&why)));
    }
    if changed.failed.is_empty() { Ok(()) } else { Err(Failure::Said) }
}

fn show(answer: &Value, changed: &Changed, as_json: bool) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    if as_json {
        let json = crate::json::pretty(answer)?;
        writeln!(out, "{json}")?;
        return Ok(out.flush()?);
    }
    for line in changed.text().lines() {
        writeln!(out, "{}", printable(line))?;
    }
    let timelines = changed.timelines.iter().filter_map(|one| json::read(&one.to_string()).ok());
    // Of one that stands alone the line above says all.
    for timeline in timelines.flatten().filter(|timeline| timeline.spans().len() > 1) {
        write!(out, "\n{}", text::render(&timeline, screen::all_columns()))?;
    }
    Ok(out.flush()?)
}
