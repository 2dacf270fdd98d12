//! `corewise snapshot`: takes, lists and deletes snapshots of a volume in an object store that a running `corewise up` serves.

use std::io::Write;

use crate::args;
use crate::dump::client::{Client, printable};
use crate::dump::find;
use crate::exit::Failure;
use crate::screen;
use corewise_server::columns::Columns;
use corewise_server::control::Question;
use corewise_server::control::stores::Snapshot;
use corewise_server::units;

pub(crate) const EXAMPLES: &str = "\
A snapshot has what clients were answered before the command, flushed or not, and stays as it is. Clients go on. It keeps the \
space of what is written anew since. A clone is a device with clone_of and snapshot in its manifest: a volume of its own that \
shares what doesn't change. A snapshot with clones can't be deleted. docs/object.md explains them. The command finds the server \
as `corewise dump` does.

Examples:
  corewise snapshot disk
  corewise snapshot disk monday
  corewise snapshot disk --list
  corewise snapshot disk --delete monday
  corewise snapshot disk --list --json | jq '.snapshots[].name'

Exit codes: 0 success, 1 failure (no server, no such volume, a name that is taken, a snapshot with clones, a store that
fails), 2 wrong usage.";

/// `corewise snapshot`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the device, a volume in an object store
    name: String,
    /// What the new snapshot is called: up to 64 letters, digits, dots, dashes and underscores, the first a letter [default: its number]
    #[arg(conflicts_with_all = ["list", "delete"])]
    snapshot: Option<String>,
    /// List its snapshots, with the clones that need them
    #[arg(long, conflicts_with = "delete")]
    list: bool,
    /// Delete this snapshot, by its name or number
    #[arg(long, value_name = "SNAPSHOT")]
    delete: Option<String>,
    #[command(flatten)]
    server: args::Which,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

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
