//! Runs the steps, two at a time, and adds up the results.

use crate::args::Args;
use crate::run::Run;
use crate::steps::{self, Step};
use crate::tally::Tally;
use std::io::Write as _;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Number of steps that run at the same time. Each may use all CPUs; a second one uses those that
/// the first leaves idle while it links, waits or fetches. Cargo makes one of two builds in the
/// same folder wait, but no test that runs.
const AT_ONCE: usize = 2;

/// Largest number of lines of a failed step's log that are repeated at the end.
const REASONS: usize = 40;

/// Result of a step.
struct Done {
    name: &'static str,
    took: Duration,
    tally: Tally,
    failed: Option<String>,
    /// Output that wasn't shown yet.
    said: String,
}

/// Runs the steps that `args` asks for. Returns true if none failed.
pub(crate) fn all(args: &Args) -> bool {
    let begun = Instant::now();
    let mut todo: Vec<&Step> = steps::ALL.iter().filter(|step| args.wants(step.name)).collect();
    let live = todo.len() == 1;
    let mut done: Vec<Done> = Vec::new();
    let (tell, told) = mpsc::channel();
    std::thread::scope(|threads| {
        let mut running: Vec<&Step> = Vec::new();
        loop {
            while todo.first().is_some_and(|next| may_run(next, &running)) {
                let step = todo.remove(0);
                running.push(step);
                println!("=== {}: {} ===", step.name, step.what);
                let tell = tell.clone();
                threads.spawn(move || tell.send((step, one(step, args.long, live))));
            }
            if running.is_empty() {
                break;
            }
            let (step, how) = told.recv().expect("this thread has a sender itself");
            running.retain(|other| other.name != step.name);
            show(&how);
            if step.needed_by_all && how.failed.is_some() {
                println!("\nThe steps after `{}` were not run.", step.name);
                todo.clear();
            }
            done.push(how);
        }
    });
    // The results come in the order of the list, whichever step ended first.
    done.sort_by_key(|done| steps::ALL.iter().position(|step| step.name == done.name));
    sum_up(&done, begun.elapsed())
}

/// Returns true if the next step may run beside those that are running.
fn may_run(next: &Step, running: &[&Step]) -> bool {
    let full = running.len() == AT_ONCE || running.iter().any(|step| step.needed_by_all);
    // Later steps need it, and no earlier one may still run then.
    !full && (!next.needed_by_all || running.is_empty())
}

fn one(step: &Step, long: bool, live: bool) -> Done {
    let begun = Instant::now();
    let mut done = Done {
        name: step.name,
        took: Duration::ZERO,
        tally: Tally::default(),
        failed: None,
        said: String::new(),
    };
    match Run::new(step.name, long, live) {
        Ok(mut run) => {
            done.failed = (step.check)(&mut run).err();
            done.tally = run.tally;
            if !live {
                done.said = run.since(0).unwrap_or_else(|e| format!("cannot read the log: {e}\n"));
            }
        }
        Err(why) => done.failed = Some(why),
    }
    if done.failed.is_some() {
        // No test counts a lint, a failed build or a crash.
        done.tally.failed = done.tally.failed.max(1);
    }
    done.took = begun.elapsed();
    done
}

fn show(done: &Done) {
    println!("\n=== {} ===\n{}", done.name, done.said);
    if let Some(why) = &done.failed {
        println!("{why}");
    }
    let word = if done.failed.is_some() { "FAILED" } else { "ok" };
    println!("=== {}: {word} in {} ===\n", done.name, seconds(done.took));
    let _ = std::io::stdout().flush();
}

/// Prints a line for each step, then the failures, then the counts alone on the last line.
fn sum_up(done: &[Done], took: Duration) -> bool {
    let mut sum = Tally::default();
    println!();
    for d in done {
        sum += d.tally;
        let word = if d.failed.is_some() { "FAILED" } else { "ok" };
        println!("{:<9} {word:<6} {:>8}  {}", d.name, seconds(d.took), d.tally);
    }
    println!("{:<9} {:<6} {:>8}", "all", "", seconds(took));
    for d in done {
        if let Some(why) = &d.failed {
            println!("failed: {}: {why}", d.name);
            for line in reasons(&d.said) {
                println!("    {line}");
            }
        }
    }
    println!("{sum}");
    sum.failed == 0
}

/// Returns the lines of a log with the reasons, at most [`REASONS`]. They are repeated at the end,
/// which may be all that a reader has.
fn reasons(log: &str) -> Vec<&str> {
    let says = |line: &str| {
        let line = line.trim_start();
        let starts = ["error", "Caused by", "failures:", "---- ", "signal:", "fatal"];
        starts.iter().any(|start| line.starts_with(start))
            || line.ends_with("FAILED")
            || line.contains("panicked at")
    };
    let lines: Vec<&str> = log.lines().collect();
    // The next line tells more: a place, or a value.
    let told = |at: &usize| says(lines[*at]) || (*at > 0 && says(lines[*at - 1]));
    let all = (0..lines.len()).filter(told).map(|at| lines[at]);
    all.filter(|line| !line.trim().is_empty()).take(REASONS).collect()
}

fn seconds(d: Duration) -> String {
    match d.as_secs() {
        s if s < 60 => format!("{:.1} s", d.as_secs_f64()),
        s => format!("{} m {:02} s", s / 60, s % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(name: &'static str, check: fn(&mut Run) -> Result<(), String>) -> Step {
        Step { name, what: "a made-up step", check, needed_by_all: false }
    }

    #[test]
    fn a_step_that_fails_without_a_failed_test_counts_as_one_failure() {
        let done = one(&step("fails", |_| Err("no".into())), false, false);
        assert_eq!(done.tally, Tally { failed: 1, ..Tally::default() });
        assert!(!sum_up(&[done], Duration::ZERO));
        let done = one(&step("passes", |_| Ok(())), false, false);
        assert!(sum_up(&[done], Duration::ZERO));
    }

    #[test]
    fn what_a_failed_step_said_of_the_reason_is_told_again_at_the_end() {
        let log = "   Compiling a v1.0\nerror: could not compile `a`\n\nCaused by:\n  it was killed\n\
                   test b ... ok\ntest c ... FAILED\n\nthread 'c' panicked at c.rs:1:2:\nleft is right\n";
        let told = [
            "error: could not compile `a`",
            "Caused by:",
            "  it was killed",
            "test c ... FAILED",
            "thread 'c' panicked at c.rs:1:2:",
            "left is right",
        ];
        assert_eq!(reasons(log), told);
        assert_eq!(reasons(&"error: no\n".repeat(100)).len(), REASONS);
    }

    #[test]
    fn two_steps_run_beside_each_other_and_no_third() {
        let [a, b, c] = ["a", "b", "c"].map(|name| step(name, |_| Ok(())));
        assert!(may_run(&a, &[]) && may_run(&b, &[&a]));
        assert!(!may_run(&c, &[&a, &b]));
    }

    #[test]
    fn no_step_runs_beside_the_one_that_all_need() {
        let [before, after] = ["a", "b"].map(|name| step(name, |_| Ok(())));
        let needed = Step { needed_by_all: true, ..step("needed", |_| Ok(())) };
        assert!(!may_run(&needed, &[&before]) && may_run(&needed, &[]));
        assert!(!may_run(&after, &[&needed]));
    }
}
