//! `corewise dump` and `corewise health`: what a running `corewise up` does, and how it is.

mod monitor;

use corewise::timeline::markup;
use corewise_server::control::Question;
use corewise_server::control::health::{Health, HealthState};

use crate::args;
use crate::client::{self, Client};
use crate::exit::Failure;
use crate::screen::{self, BAD, GOOD, TITLE, styled};

/// Asks, and shows the answer.
pub(crate) fn run(args: &args::Dump) -> Result<(), Failure> {
    let mut client = Client::find(&args.server)?;
    if let Some(interval) = args.monitor {
        return monitor::run(&mut client, args, interval);
    }
    let mut question = Question { queues: args.queues.clone(), ..Question::new("dump") };
    if !args.json {
        question.text = Some(screen::whole_width());
    }
    let answer = client.ask(&question)?;
    client::print(&answer, args.json, |out| {
        let who = client::who(&answer);
        for line in markup::wrap(&client::introduction(&who), screen::whole_width(), 2) {
            writeln!(out, "{}", styled(TITLE, line))?;
        }
        for line in answer["text"].as_str().unwrap_or_default().lines() {
            let line = client::printable(line);
            match line.chars().next() {
                // A line that isn't indented is a title.
                Some(first) if first != ' ' => writeln!(out, "{}", styled(TITLE, line))?,
                _ => writeln!(out, "{line}")?,
            }
        }
        Ok(())
    })
}

/// Says how the server is, and ends by it.
pub(crate) fn health(args: &args::Health) -> Result<(), Failure> {
    let answer = Client::find(&args.server)?.ask(&Question::new("health"))?;
    let health: Health = client::part(&answer, "health")?;
    client::print(&answer, args.json, |out| {
        let style = if health.state == HealthState::Ok { GOOD } else { BAD };
        let text = health.text();
        let (first, rest) = text.split_once('\n').unwrap_or((&text, ""));
        writeln!(out, "{}", styled(style, first))?;
        client::write_lines(out, rest)
    })?;
    match health.state {
        HealthState::Ok => Ok(()),
        state => Err(Failure::Unhealthy(state)),
    }
}
