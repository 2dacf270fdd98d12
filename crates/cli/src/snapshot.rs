//! `corewise snapshot`: takes, lists and deletes snapshots of a volume in an object store that a running `corewise up` serves.

use std::io::Write;

use corewise_server::columns::Columns;
use corewise_server::control::Question;
use corewise_server::control::stores::Snapshot;
use corewise_server::units;

use crate::args::snapshot::Args;
use crate::dump::client::{Client, printable};
use crate::dump::find;
use crate::exit::Failure;
use crate::screen;

/// Asks, waits as long as it takes, and shows what was done, or what there is.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let (path, name) = find(&args.server)?;
    let mut client = Client::connect(path, name)?;
    let (ask, snapshot) = match (&args.delete, args.list) {
        (Some(snapshot), _) => ("delete_snapshot", Some(snapshot)),
        (None, true) => ("snapshots", None),
        (None, false) => ("snapshot", args.snapshot.as_ref()),
    };
    let question = Question {
        ask: ask.to_string(),
        disk: Some(args.name.clone()),
        snapshot: snapshot.cloned(),
        ..Question::dump()
    };
    let answer = client.ask_for_long(&question)?;
    let mut out = anstream::stdout().lock();
    if args.json {
        let json = crate::json::pretty(&answer)?;
        writeln!(out, "{json}")?;
        return Ok(out.flush()?);
    }
    let all: Vec<Snapshot> = serde_json::from_value(answer["snapshots"].clone())
        .map_err(|error| Failure::new(format!("the answer has no snapshots: {error}")))?;
    let volume = &args.name;
    let did = if args.delete.is_some() { "deleted" } else { "took" };
    let one = |one: &Snapshot| {
        format!("{did} snapshot '{}' of '{volume}' ({})\n", one.name, units::size(one.size))
    };
    let text = if args.list { table(volume, &all) } else { all.iter().map(one).collect() };
    for line in text.lines() {
        writeln!(out, "{}", printable(line))?;
    }
    Ok(out.flush()?)
}

fn table(volume: &str, all: &[Snapshot]) -> String {
    if all.is_empty() {
        return format!("'{volume}' has no snapshot\n");
    }
    let row = |one: &Snapshot| {
        let clones = if one.clones.is_empty() { "-".to_string() } else { one.clones.join(", ") };
        vec![one.name.clone(), units::moment(one.taken), units::size(one.size), clones]
    };
    let head = ["snapshot", "taken", "size", "clones"];
    let rows = all.iter().map(row).collect();
    let table = Columns { head: &head, keys: &[0], words: &[0, 1, 3], rows };
    table.lines(screen::whole_width()).join("\n") + "\n"
}
