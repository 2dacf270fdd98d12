//! `corewise-bench machine`: the costs of this machine, as a file.

use std::time::SystemTime;

use corewise_bench::machine::{Plan, measure};

use crate::args::MachineArgs;
use crate::{Outcome, effort, print, this_machine};

/// Measures, and prints the file.
pub(crate) fn run(args: &MachineArgs) -> Outcome {
    let plan = Plan {
        effort: effort(args.quick),
        date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        commit: commit(env!("COREWISE_COMMIT")),
    };
    print(&measure(&this_machine()?, &plan)?.write())
}

/// Returns the commit that this program was built from, as git describes it.
fn commit(described: &str) -> String {
    match described.strip_suffix("-dirty") {
        _ if described.is_empty() => "unknown (built outside of a repository)".to_owned(),
        Some(commit) => format!("{commit}, with uncommitted changes"),
        None => described.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_with_changes_says_so() {
        assert_eq!(commit("3b8f966"), "3b8f966");
        assert_eq!(commit("3b8f966-dirty"), "3b8f966, with uncommitted changes");
        assert!(commit("").starts_with("unknown"));
    }
}
