//! `corewise-bench machine`: what this machine costs, as a file.

use std::io::Write;
use std::time::SystemTime;

use corewise_bench::machine::{self, Plan, Step};
use corewise_costs::Costs;
use corewise_topology::Machine;

use crate::args::MachineArgs;
use crate::{Outcome, bar, create, effort, print, this_machine};

/// Measures, and writes the file.
pub(crate) fn run(args: &MachineArgs) -> Outcome {
    let machine = this_machine()?;
    check_cpus(args, &machine)?;
    // A wrong name is reported before anything is measured.
    let out = args.out.as_deref().map(create).transpose()?;
    let text = measure(&machine, args)?.write();
    match out {
        Some(mut file) => file
            .write_all(text.as_bytes())
            .map_err(|error| format!("cannot write the costs: {error}").into()),
        None => print(&text),
    }
}

fn check_cpus(args: &MachineArgs, machine: &Machine) -> Outcome {
    let online = machine.online();
    match &args.cpus {
        Some(wanted) if !wanted.is_subset(&online) => {
            let missing = wanted.difference(&online);
            Err(format!(
                "--cpus {wanted}: this process can't use CPUs {missing}; this process may use CPUs {online}"
            )
            .into())
        }
        _ => Ok(()),
    }
}

fn measure(machine: &Machine, args: &MachineArgs) -> Outcome<Costs> {
    let plan = Plan {
        cpus: args.cpus.clone(),
        effort: effort(args.quick),
        date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        commit: commit(env!("COREWISE_COMMIT")),
    };
    let bar = bar("  [{bar:24}] {elapsed}  {wide_msg}");
    bar.set_length(Step::ALL.into());
    let costs = machine::measure(machine, &plan, |step| {
        bar.set_position(step.done.into());
        bar.set_message(step.what);
    });
    bar.finish_and_clear();
    Ok(costs?)
}

/// The commit that this program was built from, as git describes it.
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
