//! The command line as it was given: parsed, and checked where one flag alone doesn't tell.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, CommandFactory, Error, FromArgMatches};

use crate::args::{self, Cli};

/// Parses the process's own arguments. Where they are wrong, the process ends here, with 2.
pub(crate) fn parse() -> Cli {
    of(std::env::args_os()).unwrap_or_else(|error| error.exit())
}

fn of(given: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Cli, Error> {
    let mut command = command();
    let matches =
        command.try_get_matches_from_mut(given).map_err(with_the_command_that_is_meant)?;
    let cli = Cli::from_arg_matches(&matches)?;
    if let args::Command::Timeline(timeline) = &cli.command {
        if timeline.compare && timeline.logs.len() != 2 {
            let message = format!("--compare takes two logs, not {}", timeline.logs.len());
            let mut sub = command.find_subcommand("timeline").cloned().unwrap_or_default();
            return Err(sub.error(ErrorKind::WrongNumberOfValues, message));
        }
    }
    Ok(cli)
}

/// Words by which other programs call what one of our commands does.
const WORDS: [(&str, &[&str]); 12] = [
    ("up", &["serve", "server", "start", "run", "daemon", "listen", "export", "share"]),
    ("dump", &["status", "state", "info", "show", "inspect", "stats"]),
    ("clients", &["who", "connections", "sessions", "ps", "ls", "list"]),
    ("disconnect", &["kick", "kill", "drop"]),
    ("events", &["log", "logs", "watch", "tail"]),
    ("remove", &["rm", "delete", "del", "detach"]),
    ("grow", &["resize", "extend", "expand", "truncate"]),
    ("reload", &["restart", "refresh", "reconfigure"]),
    ("mirror", &["raid", "resync", "scrub", "mdadm"]),
    ("snapshot", &["snap", "clone", "backup"]),
    ("topo", &["topology", "cpus", "lstopo", "lscpu"]),
    ("timeline", &["dmesg", "boot", "bootchart", "analyze", "analyse"]),
];

/// Names the command that an unknown word stands for. clap looks for words that are spelled alike:
/// for 'serve' it finds 'remove'.
fn with_the_command_that_is_meant(mut error: Error) -> Error {
    let typed = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(typed)) => typed.to_lowercase(),
        _ => return error,
    };
    let found = WORDS.iter().find(|(_, words)| words.contains(&typed.as_str()));
    if let Some((meant, _)) = found {
        let meant = ContextValue::Strings(vec![(*meant).to_string()]);
        error.insert(ContextKind::SuggestedSubcommand, meant);
    }
    error
}

/// What there is to say, where a number below zero is the value of its flag, and not a flag of its
/// own: so it is told that this number can't be, and which can.
pub(crate) fn command() -> Command {
    const NUMBERS: [&str; 5] = ["DURATION", "INTERVAL", "N", "PID", "DEVICE=FACTOR"];
    let numbers = |arg: clap::Arg| {
        let names = arg.get_value_names().unwrap_or_default();
        let number = names.iter().any(|name| NUMBERS.contains(&name.as_str()));
        arg.allow_hyphen_values(number)
    };
    Cli::command().mut_subcommands(|sub| sub.mut_args(numbers))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_below_zero_is_a_wrong_value_of_its_flag() {
        let mut flags = 0;
        for sub in command().get_subcommands() {
            for arg in sub.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let names = arg.get_value_names().unwrap_or_default();
                let number = ["DURATION", "INTERVAL", "N", "PID"];
                let Some(long) = arg
                    .get_long()
                    .filter(|_| names.iter().any(|name| number.contains(&name.as_str())))
                else {
                    continue;
                };
                let mut given = vec!["corewise".to_owned(), sub.get_name().to_owned()];
                match arg.is_require_equals_set() {
                    true => given.push(format!("--{long}=-1")),
                    false => given.extend([format!("--{long}"), "-1".to_owned()]),
                }
                if sub.get_name() == "timeline" {
                    given.push("log".to_owned());
                }
                let error = of(&given).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ValueValidation, "{given:?}: {error}");
                assert!(error.to_string().contains(&format!("'-1' for '--{long}")), "{error}");
                flags += 1;
            }
        }
        assert!(flags >= 12, "{flags}");
        let error = of(["corewise", "up", "--for", "-1s"]).unwrap_err().to_string();
        assert!(error.contains("'-1s' is not a duration: write it like 500ms"), "{error}");
    }

    #[test]
    fn a_word_of_another_program_names_the_command_that_is_meant() {
        for (command, words) in WORDS {
            assert!(super::command().find_subcommand(command).is_some(), "{command}");
            for word in words {
                let error = of(["corewise", word]).unwrap_err();
                assert_eq!(error.exit_code(), 2);
                let error = error.to_string();
                assert!(error.contains(&format!("exists: '{command}'")), "{word}: {error}");
            }
        }
        let error = of(["corewise", "Serve", "disk.toml"]).unwrap_err().to_string();
        assert!(error.contains("exists: 'up'"), "{error}");
        assert!(!of(["corewise", "xyzzy"]).unwrap_err().to_string().contains("exists:"));
    }

    #[test]
    fn a_comparison_of_one_log_is_wrong_usage() {
        let compared = |logs: &[&str]| of([&["corewise", "timeline", "--compare"], logs].concat());
        for logs in [&["a"][..], &["a", "b", "c"]] {
            let error = compared(logs).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(
                error.to_string().contains(&format!("two logs, not {}", logs.len())),
                "{error}"
            );
            assert!(error.to_string().contains("Usage: corewise timeline"), "{error}");
        }
        assert!(compared(&["a", "b"]).is_ok());
    }
}
