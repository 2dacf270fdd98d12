//! `corewise mirror`: what the mirrors of a running `corewise up` are at, and a leg that is to come back.

use std::io::Write;

use corewise_server::control::Question;
use corewise_server::control::disks::Disk;
use corewise_server::control::mirrors::{Check, How, Leg, State};
use serde_json::Value;

use crate::args;
use crate::change;
use crate::dump::client::{Client, printable};
use crate::dump::find;
use crate::exit::Failure;
use crate::screen::{TITLE, styled};

/// Asks, waits if that is wanted, and shows what is so then.
pub(crate) fn run(args: &args::Mirror) -> Result<(), Failure> {
    let (path, name) = find(&args.server)?;
    let mut client = Client::connect(path.clone(), name.clone())?;
    // Before anything is begun: what happens from here on is told.
    let mut events = match args.wait {
        true => Some(Client::connect(path.clone(), name.clone())?),
        false => None,
    };
    events.as_mut().map(Client::listen).transpose()?;
    let mut asked = Vec::new();
    if let Some(leg) = &args.take_back {
        let question = Question {
            ask: "take_back".to_string(),
            disk: args.name.clone(),
            leg: Some(leg.clone()).filter(|leg| !leg.is_empty()),
            ..Question::dump()
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
            ask: ask.to_string(),
            disk: args.name.clone(),
            leg: leg.cloned(),
            with: with.cloned(),
            ..Question::dump()
        };
        // The answer to a change ends its connection.
        let mut changer = Client::connect(path.clone(), name.clone())?;
        change::told(&changer.ask_for_long(&question)?)?;
        asked = with.cloned().into_iter().collect();
    }
    if args.check || args.stop {
        let how = How { rate: args.rate, repair: args.repair, stop: args.stop };
        let question = Question {
            ask: "check".to_string(),
            disk: args.name.clone(),
            check: Some(how),
            ..Question::dump()
        };
        client.ask(&question)?;
    }
    let (answer, disks) = loop {
        let (answer, disks) = look(&mut client, args.name.as_deref())?;
        let busy = disks.iter().filter_map(|disk| disk.mirror.as_ref()).any(|m| m.is_busy());
        match &mut events {
            Some(events) if busy => wait_for_mirrors(events)?,
            _ => break (answer, disks),
        }
    };
    show(&answer, &disks, args.json)?;
    let checks = disks.iter().filter_map(|disk| disk.mirror.as_ref()?.check.as_ref());
    let wrong: u64 = checks.map(Check::wrong).sum();
    if args.check && args.wait && wrong != 0 {
        return Err(Failure::new(format!(
            "{wrong} bytes differ or can't be read; --check --repair writes them anew"
        )));
    }
    match still_out(&disks, &asked).filter(|_| args.wait) {
        Some(Leg { name, why, .. }) => {
            let why = why.as_deref().unwrap_or("it failed");
            Err(Failure::new(format!("'{}' is still out: {}", printable(name), printable(why))))
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

/// The mirrors now, or the one that is wanted.
fn look(client: &mut Client, name: Option<&str>) -> Result<(Value, Vec<Disk>), Failure> {
    let mut answer = client.ask(&Question { ask: "mirrors".to_string(), ..Question::dump() })?;
    if let (Some(name), Some(disks)) = (name, answer["disks"].as_array_mut()) {
        let names: Vec<String> = disks.iter().map(|disk| disk["name"].to_string()).collect();
        disks.retain(|disk| disk["name"] == name);
        if disks.is_empty() {
            let names = printable(&names.join(", "));
            return Err(Failure::new(format!(
                "there is no mirror '{name}'; the mirrors are: {names}"
            )));
        }
    }
    let disks = serde_json::from_value(answer["disks"].clone())
        .map_err(|error| Failure::new(format!("the answer has no disks: {error}")))?;
    Ok((answer, disks))
}

/// A leg that was waited for, and is out: of those that were asked for, or, where none was, of all.
fn still_out<'a>(disks: &'a [Disk], asked: &[String]) -> Option<&'a Leg> {
    let legs = disks.iter().filter_map(|disk| disk.mirror.as_ref()).flat_map(|m| &m.legs);
    let mut legs = legs.filter(|leg| asked.is_empty() || asked.contains(&leg.name));
    legs.find(|leg| leg.state == State::Out)
}

fn show(answer: &Value, disks: &[Disk], json: bool) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    if json {
        let json = crate::json::pretty(answer)?;
        writeln!(out, "{json}")?;
        return Ok(out.flush()?);
    }
    for disk in disks {
        let condition = disk.condition.as_deref().unwrap_or_default();
        let title = printable(&format!("{}: {condition}", disk.name));
        writeln!(out, "{}", styled(TITLE, title))?;
        let text = disk.mirror.as_ref().map(|mirror| mirror.text(&disk.name)).unwrap_or_default();
        for line in text.lines() {
            writeln!(out, "{}", printable(line))?;
        }
    }
    if disks.is_empty() {
        writeln!(out, "there is no mirror")?;
    }
    Ok(out.flush()?)
}
