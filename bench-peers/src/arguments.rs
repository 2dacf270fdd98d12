//! The command line, parsed: no I/O here.

/// How large a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    /// Items per thread.
    pub(crate) items: usize,
    /// Rounds that count.
    pub(crate) rounds: usize,
    /// Seed of the orders and of the intervals.
    pub(crate) seed: u64,
}

pub(crate) const USAGE: &str = "\
Usage: bench-peers workqueue [--items N] [--rounds N] [--seed N]

  workqueue    the kernel's workqueue test: Corewise and its peers, interleaved
  --items N    items per thread in each run (50000)
  --rounds N   rounds that count; one more is run and dropped (7)
  --seed N     seed of the order within rounds and of the intervals (1)
";

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Workqueue(Size),
    Help,
}

/// Reads the arguments behind the program's name.
pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Command, String> {
    let mut arguments = arguments.peekable();
    let mut size = Size { items: 50_000, rounds: 7, seed: 1 };
    match arguments.next().as_deref() {
        Some("workqueue") => {}
        Some("--help" | "-h" | "help") => return Ok(Command::Help),
        Some(other) => return Err(format!("there is no benchmark {other:?}")),
        None => return Err("which benchmark?".to_owned()),
    }
    while let Some(flag) = arguments.next() {
        if matches!(flag.as_str(), "--help" | "-h") {
            return Ok(Command::Help);
        }
        if !matches!(flag.as_str(), "--items" | "--rounds" | "--seed") {
            return Err(format!("there is no option {flag:?}"));
        }
        let text = arguments.next().ok_or_else(|| format!("{flag} needs a number"))?;
        let number: u64 =
            text.parse().map_err(|_| format!("{flag} needs a number, and got {text:?}"))?;
        let count = || match usize::try_from(number) {
            Ok(0) | Err(_) => Err(format!("{flag} needs a number from 1 up, and got {text}")),
            Ok(count) => Ok(count),
        };
        match flag.as_str() {
            "--items" => size.items = count()?,
            "--rounds" => size.rounds = count()?,
            _ => size.seed = number,
        }
    }
    Ok(Command::Workqueue(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_replace_the_defaults() {
        let defaults = Size { items: 50_000, rounds: 7, seed: 1 };
        assert_eq!(of("workqueue"), Ok(Command::Workqueue(defaults)));
        let given = Size { items: 5, rounds: 2, seed: 0 };
        let line = "workqueue --rounds 2 --seed 0 --items 5";
        assert_eq!(of(line), Ok(Command::Workqueue(given)));
        assert_eq!(of("workqueue --help"), Ok(Command::Help));
        assert_eq!(of("--help"), Ok(Command::Help));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, named) in [
            ("", "which"),
            ("storm", "storm"),
            ("workqueue --fast", "--fast"),
            ("workqueue --items", "--items needs"),
            ("workqueue --items many", "many"),
            ("workqueue --rounds 0", "from 1 up"),
        ] {
            let problem = of(line).unwrap_err();
            assert!(problem.contains(named), "{line}: {problem}");
        }
    }
}
