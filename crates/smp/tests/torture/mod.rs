//! The torture of cross-CPU calls: every kind of call at once, in a random mix, from every CPU,
//! while CPUs leave and join. [`Check`] has the conditions that have to hold all the time.
//!
//! It first runs on a synthetic machine of two nodes, whose CPUs leave and join for calls alone or
//! by the machine's mask. Then it runs on the live machine, pinned, where the system also takes a
//! CPU offline if the process may. The model is Linux's `scftorture`, which checks the order of
//! entry and exit and the CPU of single calls.
//!
//! How the order is checked: each call has a record of plain words (`plain.rs`), used again and
//! again. The caller writes the call's number there before it calls. Each handler compares it,
//! works for a random time, and writes the number into its CPU's word. The caller compares that
//! after the wait. An old number shows an order that is missing.
//!
//! A watcher finds a wait that doesn't end: each caller records since when it waits. Threads that
//! are stuck are left behind.
//!
//! Each check has a deliberate mistake (`mistake.rs`), which `tests.rs` makes, to see it fail.

mod acts;
mod caller;
mod check;
mod job;
mod kind;
#[path = "../../../topology/tests/support/live.rs"]
mod live;
mod mistake;
mod phase;
mod plain;
mod plug;
mod report;
mod world;

use std::time::Duration;

use corewise_topology::Machine;

use mistake::Mistake;
use phase::Setting;

use check::Check;
pub(crate) use report::{Phase, Report};

/// An error that stops a torture. It is no finding.
pub(crate) type Failed = Box<dyn std::error::Error>;

/// The synthetic machine: few enough CPUs that two real ones keep them busy.
const SYNTHETIC: &str = "numa:2 l3:1 core:2 pu:1";

/// The plan of a torture.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Duration in all.
    pub(crate) duration: Duration,
    /// Seed of each thread's choices. The times at which threads make them aren't repeated.
    pub(crate) seed: u64,
    /// Length of a wait that counts as lost. It is far above the waits of a busy machine.
    pub(crate) waiter_habit: Duration,
    /// True if the system may be asked to take the live machine's last CPU offline and online,
    /// again and again. That disturbs all programs on the machine.
    pub(crate) plug: bool,
    mistake: Option<Mistake>,
}

impl Plan {
    /// Creates a plan for that long; the system isn't asked.
    pub(crate) fn new(duration: Duration) -> Plan {
        let waiter_habit = Duration::from_secs(120);
        Plan { duration, seed: 1, waiter_habit, plug: false, mistake: None }
    }
}

/// Runs the torture, and returns the findings. Takes the duration of the plan, and longer only if a
/// wait doesn't end. Blocks.
///
/// # Errors
/// An error if the machine couldn't be read, or threads couldn't be made: that is no finding.
pub(crate) fn run(plan: &Plan) -> Result<Report, Failed> {
    let half = plan.duration / 2;
    let mut phases = vec![synthetic(plan, half)?];
    // A thread that changes the live machine does it alone.
    let _alone = live::alone();
    let live = Machine::live()?;
    let last = live.online().last().filter(|_| live.online().len() > 1);
    let (switch, not_plugged) = match last {
        _ if !plan.plug => (None, None),
        None => (None, Some("it has no second CPU".to_owned())),
        Some(last) => match plug::Switch::of(last) {
            Ok(switch) => (Some(switch), None),
            Err(why) => (None, Some(why)),
        },
    };
    let leaves = last.into_iter().collect();
    let setting = Setting { machine: &live, leaves, switch: switch.map(std::sync::Arc::new) };
    let mut phase = phase::run(plan, half, setting)?;
    phase.not_plugged = not_plugged;
    phases.push(phase);
    Ok(Report { seed: plan.seed, phases })
}

fn synthetic(plan: &Plan, duration: Duration) -> Result<Phase, Failed> {
    let machine = Machine::synthetic(SYNTHETIC)?;
    let leaves = machine.online().iter().skip(1).collect();
    phase::run(plan, duration, Setting { machine: &machine, leaves, switch: None })
}

mod tests;
