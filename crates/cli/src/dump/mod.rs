//! `corewise dump`: asks a running `corewise up` over its control socket what its worker pools do.

pub(crate) mod client;
mod monitor;

use std::io::Write;
use std::path::PathBuf;

use corewise::timeline::markup;
use corewise_server::control::Question;
use corewise_server::control::place;
use serde_json::Value;

use crate::args;
use crate::exit::Failure;
use crate::screen::{self, TITLE, styled};
use client::Client;

/// Asks, and shows the answer.
pub(crate) fn run(args: &args::Dump) -> Result<(), Failure> {
    let (path, name) = find(&args.server)?;
    let mut client = Client::connect(path, name)?;
    if let Some(interval) = args.monitor {
        return monitor::run(&mut client, args, interval);
    }
    let mut question = Question { queues: args.queues.clone(), ..Question::dump() };
    if !args.json {
        question.text = Some(screen::whole_width());
    }
    let mut answer = client.ask(&question)?;
    let mut out = anstream::stdout().lock();
    if args.json {
        let json = crate::json::pretty(&answer)?;
        writeln!(out, "{json}")?;
    } else {
        let text = answer.get_mut("text").map(Value::take);
        let text = text.as_ref().and_then(Value::as_str).unwrap_or_default();
        let who = client::who(&answer);
        for line in markup::wrap(&client::introduction(&who), screen::whole_width(), 2) {
            writeln!(out, "{}", styled(TITLE, line))?;
        }
        for line in text.lines() {
            let line = client::printable(line);
            match line.chars().next() {
                // A line that isn't indented is a title.
                Some(first) if first != ' ' => writeln!(out, "{}", styled(TITLE, line))?,
                _ => writeln!(out, "{line}")?,
            }
        }
    }
    Ok(out.flush()?)
}

/// The socket of the server that is meant, and how messages call the server.
pub(crate) fn find(args: &args::Which) -> Result<(PathBuf, String), Failure> {
    if let Some(path) = &args.control {
        return Ok((path.clone(), format!("the server at {}", path.display())));
    }
    let folders = place::folders();
    let servers = place::servers(&folders);
    let looked: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    let looked = looked.join(" and ");
    if let Some(pid) = args.pid {
        let found = servers.into_iter().find(|(known, _)| *known == pid);
        let Some((_, path)) = found else {
            return Err(Failure::new(format!("process {pid} has no control socket in {looked}"))
                .help("use --control PATH for a server of another user or in another place"));
        };
        return Ok((path, format!("process {pid}")));
    }
    match &servers[..] {
        [] => Err(Failure::new(format!("found no running `corewise up` in {looked}"))
            .help("use --control PATH for a server of another user or in another place")),
        [(pid, path)] => Ok((path.clone(), format!("process {pid}"))),
        several => {
            let mut lines = format!("{} servers run; choose one with --pid", several.len());
            for (pid, path) in several {
                lines.push_str(&format!("\n  --pid {pid:<8} {}", client::introduce(*pid, path)));
            }
            Err(Failure::new(lines))
        }
    }
}
