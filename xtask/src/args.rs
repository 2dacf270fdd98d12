//! The command line. Its few flags need no library, and without one `cargo xtask` starts at once.

use crate::steps;

pub(crate) const HELP: &str = "\
Runs every test of the project, and says at the end how many passed; or a workload on a simulated
machine.

Usage: cargo xtask test [OPTIONS]
       cargo xtask sim [--machine MACHINE] [--costs FILE] --workload NAME
       cargo xtask sim counts
       cargo xtask deb             (the Debian package, into the target folder)
       cargo xtask book            (the documents as pages for a browser, by mdBook)

`cargo xtask sim --help` and lab/sim.md say more of the latter.

Options of test:
      --only STEP  run this step alone; may be given several times
      --long       let torture, shuttle and fuzz tests run long (sets COREWISE_LONG=1)
      --list       name the steps and what they check
  -h, --help       print this

The last line is `N passed, N failed, N skipped`: tests, of which the ignored ones count as
skipped. A step that fails without a failed test (formatting, a lint, a build) counts as one
failure. The exit code is 0 when nothing failed, 1 when something did, 2 for wrong usage.

Two steps run beside each other. The output of a step is shown when the step ends (at once, with one
step alone), and is kept in target/steps/STEP.log.

Everything that is built goes below the target folder.

Examples:
  cargo xtask test                           # what CI runs; under 20 minutes on two cores
  cargo xtask test --only fmt --only clippy  # before a commit
  cargo xtask test --only loom               # the model checker alone
  cargo xtask test --long                    # before a release
  cargo xtask sim --machine 'l3:1 core:72' --workload storm
";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    Test,
    /// Runs the simulator, which takes the words that follow.
    Sim,
    /// Builds the Debian package.
    Deb,
    /// Builds the documents as pages for a browser.
    Book,
    List,
    Help,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Args {
    pub(crate) task: Task,
    /// Names of steps; empty means all.
    pub(crate) only: Vec<String>,
    pub(crate) long: bool,
    /// Arguments of the simulator.
    pub(crate) words: Vec<String>,
}

impl Args {
    pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Args, String> {
        let mut parsed =
            Args { task: Task::Help, only: Vec::new(), long: false, words: Vec::new() };
        match args.next().as_deref() {
            Some("test") => parsed.task = Task::Test,
            Some("sim") => {
                return Ok(Args { task: Task::Sim, words: args.collect(), ..parsed });
            }
            Some(name @ ("deb" | "book")) => {
                let task = if name == "deb" { Task::Deb } else { Task::Book };
                return match args.next() {
                    None => Ok(Args { task, ..parsed }),
                    Some(more) => Err(format!("`{name}` takes no `{more}`")),
                };
            }
            Some("-h" | "--help" | "help") => return Ok(parsed),
            Some(other) => {
                return Err(format!(
                    "there is no task `{other}`; the tasks are `test`, `sim`, `deb` and `book`"
                ));
            }
            None => return Err("which task? There are `test`, `sim`, `deb` and `book`".into()),
        }
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "-h" | "--help" => parsed.task = Task::Help,
                "--list" => parsed.task = Task::List,
                "--long" => parsed.long = true,
                "--only" => {
                    let name = args.next().ok_or("--only needs the name of a step")?;
                    parsed.only.push(step_name(&name)?);
                }
                _ => match arg.strip_prefix("--only=") {
                    Some(name) => parsed.only.push(step_name(name)?),
                    None => return Err(format!("`{arg}` is not an option of `test`")),
                },
            }
        }
        Ok(parsed)
    }

    /// Returns true if the step of that name is to be run.
    pub(crate) fn wants(&self, step: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == step)
    }
}

fn step_name(name: &str) -> Result<String, String> {
    if steps::ALL.iter().any(|step| step.name == name) {
        return Ok(name.to_owned());
    }
    let known: Vec<&str> = steps::ALL.iter().map(|step| step.name).collect();
    Err(format!("there is no step `{name}`; the steps are {}", known.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Args, String> {
        Args::parse(args.iter().map(|a| (*a).to_owned()))
    }

    #[test]
    fn a_bare_test_runs_every_step() {
        let args = parse(&["test"]).unwrap();
        assert_eq!(args, Args { task: Task::Test, only: vec![], long: false, words: vec![] });
        assert!(steps::ALL.iter().all(|step| args.wants(step.name)));
    }

    #[test]
    fn only_keeps_the_named_steps() {
        let args = parse(&["test", "--only", "fmt", "--only=loom", "--long"]).unwrap();
        assert!(args.wants("fmt") && args.wants("loom") && !args.wants("clippy"));
        assert!(args.long);
    }

    #[test]
    fn a_wrong_word_is_answered_with_the_right_ones() {
        assert!(parse(&["test", "--only", "lint"]).unwrap_err().contains("clippy"));
        assert!(parse(&["test", "--only"]).unwrap_err().contains("needs"));
        assert!(parse(&["test", "--fast"]).unwrap_err().contains("--fast"));
        assert!(parse(&["tests"]).unwrap_err().contains("`test`"));
        assert!(parse(&[]).unwrap_err().contains("`test`"));
    }

    #[test]
    fn all_that_follows_sim_is_the_simulators() {
        let args = parse(&["sim", "--help", "case=storm"]).unwrap();
        assert_eq!((args.task, args.words.len()), (Task::Sim, 2));
    }

    #[test]
    fn help_and_list_are_understood_anywhere() {
        assert_eq!(parse(&["--help"]).unwrap().task, Task::Help);
        assert_eq!(parse(&["test", "-h"]).unwrap().task, Task::Help);
        assert_eq!(parse(&["test", "--list"]).unwrap().task, Task::List);
    }
}
