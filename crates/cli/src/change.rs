//! `corewise add`, `remove`, `grow`, `reload`, `overlay`, `mirror`, `snapshot` and `checkpoint`:
//! changes of a running `corewise up`.

use std::io::Write;
use std::path::Path;

use corewise::timeline::{json, text};
use corewise_server::control::Question;
use corewise_server::control::changes::ChangeReport;
use corewise_server::control::checkpoints::CheckpointReport;
use corewise_server::control::disks::Disk;
use corewise_server::control::mirrors::{Check, CheckOptions, Leg, LegStatus};
use corewise_server::control::stores::Snapshot;
use corewise_server::text::Columns;
use corewise_server::units;
use serde_json::Value;

use crate::args;
use crate::client::{self, Client, printable};
use crate::exit::Failure;
use crate::screen::{self, TITLE, styled};

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

pub(crate) fn overlay(args: &args::Overlay) -> Result<(), Failure> {
    let change = match (args.what.reset, args.what.commit) {
        (true, _) => "reset_overlay",
        (_, true) => "commit_overlay",
        _ => "flatten_overlay",
    };
    ask(&args.how, Question { name: Some(args.name.clone()), ..Question::new(change) })
}

/// Sends a change, waits for its end however long that takes, and shows the changes.
fn ask(how: &args::Change, question: Question) -> Result<(), Failure> {
    let mut client = Client::find(&how.server)?;
    let answer = client.ask_for_long(&Question { dry_run: how.dry_run, ..question })?;
    let changed: ChangeReport = client::part(&answer, "changed")?;
    client::print(&answer, how.json, |out| {
        client::write_lines(out, &changed.text())?;
        let read = |timeline: &Value| json::read(&timeline.to_string()).ok();
        let timelines = changed.timelines.iter().filter_map(read).flatten();
        // The line above says everything about a device without dependencies.
        for timeline in timelines.filter(|timeline| timeline.spans().len() > 1) {
            write!(out, "\n{}", text::render(&timeline, screen::all_columns()))?;
        }
        Ok(())
    })?;
    report(&changed)
}

/// Writes the warnings and failures in the answer to a change on stderr.
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

/// Sends a change of a mirror, waits for it if the user wants that, and shows the mirrors.
pub(crate) fn mirror(args: &args::Mirror) -> Result<(), Failure> {
    let mut client = Client::find(&args.server)?;
    // Subscribed before the change begins, so that no event of it is missed.
    let mut events = args.wait.then(|| client.another()).transpose()?;
    events.as_mut().map(Client::listen).transpose()?;
    let mut asked = Vec::new();
    if let Some(leg) = &args.take_back {
        let question = Question {
            disk: args.name.clone(),
            leg: Some(leg.clone()).filter(|leg| !leg.is_empty()),
            ..Question::new("take_back")
        };
        let answer = client.ask(&question)?;
        asked = serde_json::from_value(answer["taken_back"].clone()).unwrap_or_default();
    }
    let change = match (&args.replace, &args.add, &args.remove) {
        (Some(leg), ..) => Some(("replace", Some(leg), args.with.as_ref())),
        (_, Some(device), _) => Some(("add_leg", None, Some(device))),
        (.., Some(leg)) => Some(("remove_leg", Some(leg), None)),
        _ => None,
    };
    if let Some((ask, leg, with)) = change {
        let question = Question {
            disk: args.name.clone(),
            leg: leg.cloned(),
            with: with.cloned(),
            ..Question::new(ask)
        };
        // The answer to a change ends its connection.
        let mut changer = client.another()?;
        report_of(&changer.ask_for_long(&question)?)?;
        asked = with.cloned().into_iter().collect();
    }
    if args.check || args.stop {
        let how = CheckOptions { rate: args.rate, repair: args.repair, stop: args.stop };
        let question =
            Question { disk: args.name.clone(), check: Some(how), ..Question::new("check") };
        client.ask(&question)?;
    }
    let (answer, disks) = loop {
        let (answer, disks) = mirrors(&mut client, args.name.as_deref())?;
        let busy = disks.iter().filter_map(|disk| disk.mirror.as_ref()).any(|m| m.is_busy());
        match &mut events {
            Some(events) if busy => wait_for_mirrors(events)?,
            _ => break (answer, disks),
        }
    };
    client::print(&answer, args.json, |out| show(out, &disks))?;
    let checks = disks.iter().filter_map(|disk| disk.mirror.as_ref()?.check.as_ref());
    let wrong: u64 = checks.map(Check::wrong).sum();
    if args.check && args.wait && wrong != 0 {
        return Err(Failure::new(format!(
            "{wrong} bytes differ or can't be read; --check --repair rewrites them"
        )));
    }
    match still_out(&disks, &asked).filter(|_| args.wait) {
        Some(Leg { name, why, .. }) => {
            let why = why.as_deref().unwrap_or("the leg failed");
            Err(Failure::new(format!(
                "the leg '{}' is still out: {}",
                printable(name),
                printable(why)
            )))
        }
        None => Ok(()),
    }
}

/// Waits until something has happened to a mirror.
fn wait_for_mirrors(events: &mut Client) -> Result<(), Failure> {
    loop {
        let event: Value = serde_json::from_str(&events.next_event()?).unwrap_or_default();
        if matches!(event["event"].as_str(), Some("mirror" | "mirror_state" | "lost")) {
            return Ok(());
        }
    }
}

/// Returns the mirrors, or the one of this name.
fn mirrors(client: &mut Client, name: Option<&str>) -> Result<(Value, Vec<Disk>), Failure> {
    let mut answer = client.ask(&Question::new("mirrors"))?;
    if let (Some(name), Some(disks)) = (name, answer["disks"].as_array_mut()) {
        let names: Vec<String> = disks.iter().map(|disk| disk["name"].to_string()).collect();
        disks.retain(|disk| disk["name"] == name);
        if disks.is_empty() {
            let why = match names.is_empty() {
                true => format!("there is no mirror '{name}': the server has no mirrors"),
                false => {
                    let names = printable(&names.join(", "));
                    format!("there is no mirror '{name}'; the mirrors are: {names}")
                }
            };
            return Err(Failure::new(why));
        }
    }
    let disks = client::part(&answer, "disks")?;
    Ok((answer, disks))
}

/// Returns a leg that is out: one of `asked`, or any leg if `asked` is empty.
fn still_out<'a>(disks: &'a [Disk], asked: &[String]) -> Option<&'a Leg> {
    let legs = disks.iter().filter_map(|disk| disk.mirror.as_ref()).flat_map(|m| &m.legs);
    let mut legs = legs.filter(|leg| asked.is_empty() || asked.contains(&leg.name));
    legs.find(|leg| leg.state == LegStatus::Out)
}

fn show(out: &mut dyn Write, disks: &[Disk]) -> Result<(), Failure> {
    for disk in disks {
        let condition = disk.condition.as_deref().unwrap_or_default();
        let title = printable(&format!("{}: {condition}", disk.name));
        writeln!(out, "{}", styled(TITLE, title))?;
        let text = disk.mirror.as_ref().map(|mirror| mirror.text(&disk.name)).unwrap_or_default();
        client::write_lines(out, &text)?;
    }
    if disks.is_empty() {
        writeln!(out, "the server has no mirrors")?;
    }
    Ok(())
}

/// Takes, lists or deletes snapshots of a volume in an object store. Waits as long as that takes.
pub(crate) fn snapshot(args: &args::Snapshot) -> Result<(), Failure> {
    let (ask, snapshot) = match (&args.delete, args.list) {
        (Some(snapshot), _) => ("delete_snapshot", Some(snapshot)),
        (None, true) => ("snapshots", None),
        (None, false) => ("snapshot", args.snapshot.as_ref()),
    };
    let volume = &args.name;
    let (disk, snapshot) = (Some(volume.clone()), snapshot.cloned());
    let question = Question { disk, snapshot, ..Question::new(ask) };
    let answer = Client::find(&args.server)?.ask_for_long(&question)?;
    let all: Vec<Snapshot> = client::part(&answer, "snapshots")?;
    client::print(&answer, args.json, |out| {
        let did = if args.delete.is_some() { "deleted" } else { "took" };
        let one = |one: &Snapshot| {
            format!("{did} snapshot '{}' of '{volume}' ({})\n", one.name, units::size(one.size))
        };
        let text = match args.list {
            true => snapshots_table(volume, &all),
            false => all.iter().map(one).collect(),
        };
        client::write_lines(out, &text)
    })
}

/// Takes, lists or deletes checkpoints of a device. Waits as long as that takes.
pub(crate) fn checkpoint(args: &args::Checkpoint) -> Result<(), Failure> {
    let (ask, checkpoint) = match (&args.delete, args.list) {
        (Some(checkpoint), _) => ("delete_checkpoint", Some(checkpoint)),
        (None, true) => ("checkpoints", None),
        (None, false) => ("checkpoint", args.checkpoint.as_ref()),
    };
    let device = &args.name;
    let (disk, checkpoint) = (Some(device.clone()), checkpoint.cloned());
    let question = Question { disk, checkpoint, ..Question::new(ask) };
    let answer = Client::find(&args.server)?.ask_for_long(&question)?;
    let all: Vec<CheckpointReport> = client::part(&answer, "checkpoints")?;
    client::print(&answer, args.json, |out| {
        let did = if args.delete.is_some() { "deleted" } else { "took" };
        let one =
            |one: &CheckpointReport| format!("{did} checkpoint '{}' of '{device}'\n", one.name);
        let text = match args.list {
            true => checkpoints_table(device, &all),
            false => all.iter().map(one).collect(),
        };
        client::write_lines(out, &text)
    })
}

fn checkpoints_table(device: &str, all: &[CheckpointReport]) -> String {
    if all.is_empty() {
        return format!("'{device}' has no checkpoints\n");
    }
    let row = |one: &CheckpointReport| {
        let changed = one.changed.map_or("-".to_string(), units::size);
        let readable = if one.readable { "yes" } else { "no" };
        vec![one.name.clone(), units::moment(one.taken), changed, readable.to_string()]
    };
    let head = ["checkpoint", "taken", "changed", "readable"];
    let rows = all.iter().map(row).collect();
    let table = Columns { head: &head, keys: &[0], words: &[0, 1, 3], rows };
    table.lines(screen::whole_width()).join("\n") + "\n"
}

fn snapshots_table(volume: &str, all: &[Snapshot]) -> String {
    if all.is_empty() {
        return format!("'{volume}' has no snapshots\n");
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
