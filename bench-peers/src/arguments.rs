//! The command line, parsed: no I/O here.

use std::path::PathBuf;

pub(crate) const USAGE: &str = "\
Usage: bench-peers workqueue|calls|shutdown [OPTIONS]

Runs the workloads of the workqueue, of cross-CPU calls, or of device shutdown, on Corewise and on
every peer that can be had here: one process a run, in random order within rounds. Ends with the
headlines: ratios of pairs of runs.

  --quick            a look: what the headlines need, small runs, at most 50 seconds
  --rounds N         rounds that count; a small one is run before them and dropped (5)
  --peers A,B        these peers only; a name's beginning will do (tokio, go, async-executor, ...)
  --workload A,B     these cases only: a whole name (storm/boxed, mix/50/hint, inside/mimalloc), or
                     the beginning of several (storm, pingpong/cross, roundtrip)
  --json             print the records as JSON, and no tables
  --out FILE         write the records as JSON into that file
  --seed N           seed of the orders, the intervals and the mix's arrivals (1)
";

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Workqueue(Options),
    Calls(Options),
    Shutdown(Options),
    /// One run of the workqueue's workloads, in a process of its own: the words of a job.
    Run(Vec<String>),
    /// As `Run`, of the workloads for calls.
    Call(Vec<String>),
    /// As `Run`, of the shutdown of devices.
    Down(Vec<String>),
    Help,
}

/// How to run the workloads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Options {
    pub(crate) quick: bool,
    pub(crate) rounds: usize,
    /// Beginnings of names; none: all.
    pub(crate) peers: Vec<String>,
    /// Beginnings of cases; none: all.
    pub(crate) workloads: Vec<String>,
    pub(crate) json: bool,
    pub(crate) out: Option<PathBuf>,
    pub(crate) seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            quick: false,
            rounds: 5,
            peers: Vec::new(),
            workloads: Vec::new(),
            json: false,
            out: None,
            seed: 1,
        }
    }
}

/// Reads the arguments behind the program's name.
pub(crate) fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let command = match arguments.next().as_deref() {
        Some("workqueue") => Command::Workqueue,
        Some("calls") => Command::Calls,
        Some("shutdown") => Command::Shutdown,
        Some("run") => return Ok(Command::Run(arguments.collect())),
        Some("down") => return Ok(Command::Down(arguments.collect())),
        Some("call") => return Ok(Command::Call(arguments.collect())),
        Some("--help" | "-h" | "help") => return Ok(Command::Help),
        Some(other) => return Err(format!("there is no benchmark {other:?}")),
        None => return Err("which benchmark?".to_owned()),
    };
    let mut options = Options::default();
    while let Some(flag) = arguments.next() {
        let mut value = |what: &str| arguments.next().ok_or_else(|| format!("{flag} needs {what}"));
        match flag.as_str() {
            "--help" | "-h" => return Ok(Command::Help),
            "--quick" => options.quick = true,
            "--json" => options.json = true,
            "--rounds" => {
                let rounds = number(&flag, &value("a number")?)?;
                options.rounds = usize::try_from(rounds).unwrap_or(usize::MAX);
                if rounds == 0 {
                    return Err(format!("{flag} needs a number from 1 up, and got 0"));
                }
            }
            "--seed" => options.seed = number(&flag, &value("a number")?)?,
            "--peers" => options.peers.extend(names(&value("names")?)),
            "--workload" | "--workloads" => options.workloads.extend(names(&value("names")?)),
            "--out" => options.out = Some(PathBuf::from(value("a file")?)),
            _ => return Err(format!("there is no option {flag:?}")),
        }
    }
    Ok(command(options))
}

fn number(flag: &str, text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{flag} needs a number, and got {text:?}"))
}

fn names(text: &str) -> Vec<String> {
    text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_replace_the_defaults() {
        assert_eq!(of("workqueue"), Ok(Command::Workqueue(Options::default())));
        let given = Options {
            quick: true,
            rounds: 2,
            peers: vec!["tokio".to_owned(), "go".to_owned()],
            workloads: vec!["storm".to_owned(), "fan".to_owned()],
            json: true,
            out: Some(PathBuf::from("x.json")),
            seed: 0,
        };
        let line = "workqueue --rounds 2 --seed 0 --quick --peers tokio,go --workload storm \
                    --workload fan --json --out x.json";
        assert_eq!(of(line), Ok(Command::Workqueue(given)));
        assert_eq!(of("calls"), Ok(Command::Calls(Options::default())));
        assert_eq!(of("shutdown"), Ok(Command::Shutdown(Options::default())));
        assert_eq!(of("workqueue --help"), Ok(Command::Help));
        assert_eq!(of("--help"), Ok(Command::Help));
        let run = Command::Run(vec!["case=idle".to_owned(), "items=1".to_owned()]);
        assert_eq!(of("run case=idle items=1"), Ok(run));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, named) in [
            ("", "which"),
            ("storm", "storm"),
            ("workqueue --fast", "--fast"),
            ("workqueue --rounds", "--rounds needs"),
            ("workqueue --rounds many", "many"),
            ("workqueue --rounds 0", "from 1 up"),
            ("workqueue --out", "a file"),
        ] {
            let problem = of(line).unwrap_err();
            assert!(problem.contains(named), "{line}: {problem}");
        }
    }
}
