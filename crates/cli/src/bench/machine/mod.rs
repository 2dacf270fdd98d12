//! `corewise bench machine`: what this machine costs, as a file, as tables, as a picture.

mod picture;
mod text;

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use corewise::topology::Machine;
use corewise_bench::bench::Effort;
use corewise_bench::machine::{self, Plan, Step};
use corewise_costs::Costs;
use indicatif::{ProgressBar, ProgressStyle};

use super::{facts, failure};
use crate::args::BenchMachine;
use crate::exit::Failure;
use crate::screen::{self, Bars};
use crate::whole_file;

/// Measures, writes the files, and prints.
pub(super) fn run(args: &BenchMachine, bars: &Bars) -> Result<(), Failure> {
    let to_stdout = args.out.as_deref() == Some(Path::new("-"));
    if to_stdout && args.json {
        return Err(Failure::new("--out - and --json both print to stdout: use one of them"));
    }
    // A wrong name is told before anything is measured.
    let out = args.out.as_deref().filter(|_| !to_stdout);
    for path in out.into_iter().chain(args.svg.as_deref()) {
        whole_file::check(path).map_err(|why| cannot_write(path, &why))?;
    }
    let machine = Machine::live()
        .map_err(|error| Failure::new(format!("cannot read this machine: {error}")))?;
    let costs = measure(&machine, args, bars)?;
    if let Some(path) = out {
        write(path, &costs.write())?;
    }
    if let Some(path) = &args.svg {
        write(path, &picture::render(&costs))?;
    }
    let mut stdout = anstream::stdout().lock();
    if args.json {
        let json = serde_json::to_string_pretty(&costs)
            .map_err(|error| Failure::new(format!("cannot write the costs: {error}")))?;
        writeln!(stdout, "{json}")?;
    } else if to_stdout {
        stdout.write_all(costs.write().as_bytes())?;
    } else {
        stdout.write_all(text::render(&costs, screen::width()).as_bytes())?;
    }
    Ok(stdout.flush()?)
}

fn measure(machine: &Machine, args: &BenchMachine, bars: &Bars) -> Result<Costs, Failure> {
    if let Some(wanted) = &args.cpus {
        let online = machine.online();
        let missing = wanted.difference(&online);
        if !missing.is_empty() {
            return Err(Failure::new(format!(
                "--cpus {wanted}: this process can't use CPUs {missing}"
            ))
            .help(format!("this process may use CPUs {online}")));
        }
    }
    let plan = Plan {
        cpus: args.cpus.clone(),
        effort: if args.quick { Effort::Quick } else { Effort::Full },
        date: facts::now(),
        commit: facts::this_commit(),
    };
    let bar = progress(bars);
    let costs = machine::measure(machine, &plan, |step| {
        bar.set_position(step.done.into());
        bar.set_message(step.what);
    });
    bars.end(&bar);
    costs.map_err(failure)
}

/// A bar that is seen only where stderr is a terminal.
fn progress(bars: &Bars) -> ProgressBar {
    let bar = ProgressBar::hidden();
    bar.set_length(Step::ALL.into());
    let style = ProgressStyle::with_template("  [{bar:24}] {elapsed}  {wide_msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style.progress_chars("=> "));
    let bar = bars.show(bar);
    if bars.can_be_seen() {
        // Drawn twice a second: drawing costs CPU time that is measured.
        bar.enable_steady_tick(Duration::from_millis(500));
    }
    bar
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    whole_file::write(path, text).map_err(|why| cannot_write(path, &why))
}

fn cannot_write(path: &Path, why: &str) -> Failure {
    Failure::new(format!("cannot write '{}': {why}", path.display()))
}
