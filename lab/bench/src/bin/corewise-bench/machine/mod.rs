//! `corewise-bench machine`: what this machine costs, as a file, as tables, as a picture.

mod picture;
mod text;

use std::io::Write;
use std::path::Path;

use corewise_bench::machine::{self, Plan, Step};
use corewise_costs::Costs;
use corewise_topology::Machine;

use crate::args::MachineArgs;
use crate::{Outcome, bar, create, effort, facts, print, table, this_machine};

/// Measures, writes the files, and prints.
pub(crate) fn run(args: &MachineArgs) -> Outcome {
    let to_stdout = args.out.as_deref() == Some(Path::new("-"));
    if to_stdout && args.json {
        return Err("--out - and --json both print to stdout: use one of them".into());
    }
    let machine = this_machine()?;
    check_cpus(args, &machine)?;
    // A wrong name is reported before anything is measured.
    let out = args.out.as_deref().filter(|_| !to_stdout).map(create).transpose()?;
    let svg = args.svg.as_deref().map(create).transpose()?;
    let costs = measure(&machine, args)?;
    for (file, text) in [(out, Costs::write as fn(&Costs) -> String), (svg, picture::render)] {
        if let Some(mut file) = file {
            let written = file.write_all(text(&costs).as_bytes());
            written.map_err(|error| format!("cannot write the costs: {error}"))?;
        }
    }
    if args.json {
        print(&format!("{}\n", serde_json::to_string_pretty(&costs)?))
    } else if to_stdout {
        print(&costs.write())
    } else {
        print(&text::render(&costs, table::width()))
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
        date: facts::now(),
        commit: facts::this_commit(),
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
