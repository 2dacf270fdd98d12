//! Which runtimes take part in which cases, and the runs that follow from what was asked for.

use corewise_bench::words::Effort;
use corewise_bench::workqueue::case::{Case, Items, Placement};
use corewise_bench::workqueue::job::Job;
use corewise_topology::CpuSet;

use crate::arguments::Options;
use crate::programs::Tool;
use crate::results::OURS;
use crate::session::{Cell, Idle, chosen};
use crate::workqueue::peers::PINNED;

/// Ours with a handle for each closure, as tokio has.
pub(crate) const OURS_SPAWN: &str = "corewise-spawn";
/// Ours with workers that sleep at once, in the ping-pong.
pub(crate) const OURS_SLEEPS: &str = "corewise-sleep";
/// Ours with workers that spin for long, in the ping-pong.
pub(crate) const OURS_SPINS: &str = "corewise-spin";
/// The floor of the ping-pong.
pub(crate) const FUTEX: &str = "futex";
/// Reported apart where its collector stands in for the allocator.
pub(crate) const FORK_JOIN_POOL: &str = "java-forkjoinpool";

/// A runtime that takes part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Runtime {
    /// Its name in records.
    pub(crate) name: &'static str,
    pub(crate) tool: Tool,
    pub(crate) idle: Idle,
    /// What a look at the headlines can do without: another mode of the runtime is faster in all
    /// that the headlines are made of.
    pub(crate) second: bool,
}

const fn runtime(name: &'static str, tool: Tool, idle: Idle, second: bool) -> Runtime {
    Runtime { name, tool, idle, second }
}

/// Everybody.
pub(crate) const RUNTIMES: [Runtime; 19] = [
    runtime(OURS, Tool::Rust, Idle::Hesitates, false),
    runtime(OURS_SPAWN, Tool::Rust, Idle::Hesitates, true),
    runtime(OURS_SLEEPS, Tool::Rust, Idle::Sleeps, false),
    runtime(OURS_SPINS, Tool::Rust, Idle::Spins, true),
    runtime(FUTEX, Tool::Rust, Idle::Sleeps, false),
    runtime("tokio", Tool::Rust, Idle::Sleeps, false),
    runtime("tokio-block-in-place", Tool::Rust, Idle::Sleeps, true),
    runtime("rayon", Tool::Rust, Idle::Spins, false),
    runtime("async-executor-static", Tool::Rust, Idle::Sleeps, false),
    runtime("async-executor", Tool::Rust, Idle::Sleeps, true),
    runtime("crossbeam", Tool::Rust, Idle::Hesitates, false),
    runtime("tbb", Tool::Tbb, Idle::Spins, false),
    runtime("go-channel", Tool::Go, Idle::Sleeps, false),
    runtime("go-goroutine", Tool::Go, Idle::Sleeps, true),
    runtime(FORK_JOIN_POOL, Tool::Java, Idle::Sleeps, false),
    // Only where they are asked for by their names.
    runtime("tokio-pinned", Tool::Rust, Idle::Sleeps, true),
    runtime("rayon-pinned", Tool::Rust, Idle::Spins, true),
    runtime("async-executor-static-pinned", Tool::Rust, Idle::Sleeps, true),
    runtime("crossbeam-pinned", Tool::Rust, Idle::Hesitates, true),
];

impl Runtime {
    /// Whether it has a way of its own to run this case.
    fn takes(&self, case: Case) -> bool {
        let name = self.name.strip_suffix(PINNED).unwrap_or(self.name);
        if matches!(name, OURS_SLEEPS | OURS_SPINS) {
            return matches!(case, Case::PingPong { .. });
        }
        match case {
            Case::KernelTest { inline } => {
                !inline && !matches!(name, OURS_SPAWN | FUTEX | "tokio-block-in-place")
            }
            Case::Storm { items: Items::Reused, .. }
            | Case::Oversubscribed { items: Items::Reused } => {
                matches!(name, OURS | "crossbeam" | "go-channel")
            }
            Case::Storm { .. } | Case::Oversubscribed { .. } | Case::Inside | Case::Fan => {
                !matches!(name, FUTEX | "tokio-block-in-place")
            }
            Case::PingPong { placement, .. } => {
                !matches!(name, OURS_SPAWN | "tokio-block-in-place")
                    && (placement == Placement::Free || name != "go-goroutine")
            }
            Case::Mix { hint: true, .. } => {
                !matches!(name, OURS_SPAWN | FUTEX | "rayon" | "crossbeam" | "tbb")
            }
            Case::Mix { .. } | Case::Idle => {
                !matches!(name, OURS_SPAWN | FUTEX | "tokio-block-in-place")
            }
            _ => false,
        }
    }
}

impl Runtime {
    fn is_asked_for(&self, options: &Options) -> bool {
        let begins = |word: &String| self.name.starts_with(&**word);
        if self.name.ends_with(PINNED) {
            return options.peers.iter().any(|word| word == self.name);
        }
        if matches!(self.name, OURS | OURS_SLEEPS | FUTEX) || options.peers.iter().any(begins) {
            return true;
        }
        options.peers.is_empty() && !(options.quick && self.second)
    }
}

/// The cases of a call, in the order in which a round goes through them, each with its cells.
pub(crate) fn cells(options: &Options, cpus: &CpuSet) -> Vec<Vec<Cell<Job>>> {
    let mut groups = Vec::new();
    for case in Case::all() {
        let look = options.quick && options.workloads.is_empty();
        if !(if look { quick(case) } else { full(case) }) {
            continue;
        }
        for mimalloc in [false, true] {
            if mimalloc && !allocates(case) {
                continue;
            }
            let name = format!("{case}{}", if mimalloc { "/mimalloc" } else { "" });
            if !chosen::<Case>(&options.workloads, &name) || (mimalloc && look) {
                continue;
            }
            let native = |runtime: &Runtime| matches!(runtime.tool, Tool::Rust | Tool::Tbb);
            let group: Vec<Cell<Job>> = RUNTIMES
                .iter()
                .filter(|runtime| runtime.takes(case) && (!mimalloc || native(runtime)))
                .filter(|runtime| runtime.is_asked_for(options))
                .map(|runtime| Cell {
                    case: name.clone(),
                    job: job(case, runtime.name, cpus, options),
                    tool: runtime.tool,
                    mimalloc,
                })
                .collect();
            groups.push(group);
        }
    }
    groups
}

/// The cases of a full run: all that peers take part in, but the gap of 100 µs, which tells nothing
/// that the other two don't.
fn full(case: Case) -> bool {
    !matches!(case, Case::PingPong { gap_us: 100, .. } | Case::KernelTest { inline: true })
}

/// Those of the headlines.
fn quick(case: Case) -> bool {
    match case {
        Case::KernelTest { inline } => !inline,
        Case::Storm { striped, .. } => !striped,
        Case::Inside => true,
        Case::PingPong { placement, gap_us } => placement != Placement::Free && gap_us == 0,
        Case::Mix { load, .. } => load == 50,
        _ => false,
    }
}

/// Whether the allocator has a part in it, so that a second one is worth a look.
fn allocates(case: Case) -> bool {
    matches!(case, Case::Storm { items: Items::Boxed, striped: false } | Case::Inside)
}

/// A run that keeps a whole call with a dozen runtimes within its time: many short runs say more
/// than a few long ones.
fn job(case: Case, name: &str, cpus: &CpuSet, options: &Options) -> Job {
    let effort = if options.quick { Effort::Quick } else { Effort::Full };
    let mut job = Job::new(case, name, cpus, effort);
    job.seed = options.seed;
    let pick = |full: usize, short: usize| if options.quick { short } else { full };
    match case {
        Case::KernelTest { .. } => job.items = pick(50_000, 10_000),
        Case::Storm { .. } | Case::Inside => {
            (job.items, job.passes) = (pick(1_000_000, 300_000), pick(2, 3));
        }
        Case::Oversubscribed { .. } => job.passes = 1,
        Case::PingPong { gap_us: 0, .. } => job.items = pick(10_000, 2_000),
        Case::PingPong { .. } => job.items = 500,
        // A second of the open loop, or a third.
        Case::Mix { .. } => job.items = usize::try_from(job.rate).unwrap_or(0) / pick(1, 3),
        _ => {}
    }
    job
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells_of(options: &Options) -> Vec<Vec<Cell<Job>>> {
        cells(options, &CpuSet::full(2))
    }

    #[test]
    fn a_full_run_has_ours_in_every_case_and_mimalloc_for_the_native_where_it_matters() {
        let groups = cells_of(&Options::default());
        for group in &groups {
            assert!(group.iter().any(|cell| cell.job.runtime == OURS), "{:?}", group.first());
            assert!(group.iter().all(|cell| cell.case == group[0].case));
        }
        let with = |case: &str| groups.iter().flatten().filter(|cell| cell.case == case).count();
        assert_eq!(with("storm/boxed/mimalloc"), with("storm/boxed") - 3);
        assert_eq!(with("storm/reused"), 3);
        assert_eq!(with("storm/reused/mimalloc"), 0);
        assert!(with("pingpong/cross/500us") > 5);
    }

    #[test]
    fn a_look_has_what_the_headlines_need_and_no_second_modes() {
        let groups = cells_of(&Options { quick: true, ..Options::default() });
        let names: Vec<&str> = groups.iter().map(|group| group[0].case.as_str()).collect();
        let expected = [
            "kernel_test",
            "storm/reused",
            "storm/boxed",
            "inside",
            "pingpong/same/hot",
            "pingpong/cross/hot",
            "mix/50",
            "mix/50/hint",
        ];
        assert_eq!(names, expected);
        assert!(groups.iter().flatten().all(|cell| cell.job.runtime != "go-goroutine"));
    }

    #[test]
    fn peers_and_workloads_are_chosen_by_beginnings_and_ours_stays() {
        let options = Options {
            peers: vec!["go".to_owned()],
            workloads: vec!["storm/boxed".to_owned()],
            ..Options::default()
        };
        let groups = cells_of(&options);
        let names: Vec<&str> = groups[0].iter().map(|cell| cell.job.runtime.as_str()).collect();
        assert_eq!(names, [OURS, "go-channel", "go-goroutine"]);
        let pinned = Options { peers: vec!["crossbeam-pinned".to_owned()], ..options.clone() };
        assert_eq!(cells_of(&pinned)[0].len(), 2, "ours and that one");
        let all = cells_of(&Options::default());
        assert!(all.iter().flatten().all(|cell| !cell.job.runtime.ends_with(PINNED)));
        assert_eq!(groups.len(), 1, "a case's whole name is that case");
        let named = |word: &str| {
            let workloads = vec![word.to_owned()];
            cells_of(&Options { workloads, quick: true, ..Options::default() })
                .iter()
                .map(|group| group[0].case.clone())
                .collect::<Vec<_>>()
        };
        assert_eq!(named("storm/boxed/mimalloc"), ["storm/boxed/mimalloc"]);
        assert_eq!(named("insid"), ["inside", "inside/mimalloc"]);
    }
}
