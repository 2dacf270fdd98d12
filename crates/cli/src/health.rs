//! `corewise health`: how a running `corewise up` is, in one word, and what to do where it isn't
//! ok.

use std::io::Write;

use corewise_server::control::Question;
use corewise_server::control::health::{Health, HealthState};
use serde_json::Value;

use crate::args::health::Args;
use crate::dump::client::{Client, printable};
use crate::dump::find;
use crate::exit::Failure;
use crate::screen::{BAD, GOOD, styled};

/// Asks, shows the answer, and ends by it.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let (path, name) = find(&args.server)?;
    let mut client = Client::connect(path, name)?;
    let answer = client.ask(&Question { ask: "health".to_string(), ..Question::dump() })?;
    let health = of(&answer)?;
    show(&answer, &health, args.json)?;
    match health.state {
        HealthState::Ok => Ok(()),
        state => Err(Failure::Unhealthy(state)),
    }
}

fn of(answer: &Value) -> Result<Health, Failure> {
    serde_json::from_value(answer["health"].clone())
        .map_err(|error| Failure::new(format!("the answer doesn't say how the server is: {error}")))
}

fn show(answer: &Value, health: &Health, json: bool) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    if json {
        let json = serde_json::to_string_pretty(answer)
            .map_err(|error| Failure::new(format!("cannot write JSON: {error}")))?;
        writeln!(out, "{json}")?;
        return Ok(out.flush()?);
    }
    let style = if health.state == HealthState::Ok { GOOD } else { BAD };
    for (n, line) in health.text().lines().enumerate() {
        match n {
            0 => writeln!(out, "{}", styled(style, line))?,
            _ => writeln!(out, "{}", printable(line))?,
        }
    }
    Ok(out.flush()?)
}
