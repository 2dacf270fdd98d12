//! One item that forks: a recursion by a join for each call.

use corewise_sync::{Parker, time};
use corewise_workqueue::Workqueue;

use crate::bench::{Cases, Workload};
use crate::meter::Meter;
use crate::workqueue::{base, own, with_scopes};
use crate::{BenchError, Job, Line};

pub(super) const WORKLOAD: Workload = Workload {
    cases: Cases::These("fork"),
    quick: |_, _| true,
    numbers: |job, _, on| {
        base(job, on);
        (job.producers, job.items) = (1, on.pick(joins(32), joins(24)));
    },
    variants: |_, on| with_scopes(on, false, false),
    run: own,
};

fn fib(queue: &Workqueue, n: usize) -> u64 {
    if n < 2 {
        return n as u64;
    }
    let (one, other) = queue.join(|| fib(queue, n - 1), || fib(queue, n - 2));
    one + other
}

/// How many joins that takes: one less than the next number of the row.
fn joins(n: usize) -> usize {
    (0..n).fold((0, 1), |(one, next), _| (next, one + next)).1 - 1
}

/// # Errors
/// A thread of the workload has panicked.
pub(super) fn run(job: &Job, queue: &Workqueue, meter: &mut Meter) -> Result<Line, BenchError> {
    let pass = |n: usize| {
        let began = time::now();
        let parker = Parker::new();
        let (own, done) = (queue.clone(), parker.unparker());
        let queued = queue.execute(move || {
            std::hint::black_box(fib(&own, n));
            done.unpark();
        });
        assert!(queued.is_ok(), "the pools are open");
        parker.park();
        Ok(time::now() - began)
    };
    let n = (2..64).take_while(|n| joins(*n) <= job.items).last().unwrap_or(2);
    pass(n.saturating_sub(4))?;
    for _ in 0..job.passes {
        meter.pass(joins(n), || pass(n))?;
    }
    Ok(meter.finish(job.line()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recursion_has_as_many_joins_as_calls_that_go_on() {
        fn count(n: usize) -> usize {
            if n < 2 { 0 } else { 1 + count(n - 1) + count(n - 2) }
        }
        assert!((0..15).all(|n| joins(n) == count(n)));
    }
}
