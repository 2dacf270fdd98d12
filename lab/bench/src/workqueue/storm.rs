//! Tiny items from outside, which producers queue as fast as they can.

use corewise_sync::{thread, time};

use corewise_sync::Mutex;

use crate::bench::{Cases, Workload};
use crate::meter::Meter;
use crate::start::together;
use crate::workqueue::runtime::{Reuse, Spawn};
use crate::workqueue::tiny::{Countdown, Tiny};
use crate::workqueue::{base, own, with_before};
use crate::{BenchError, Job, Line};

/// Storm of two producers. With `striped`, each one's items count on a line of their own.
pub(super) const WORKLOAD: Workload = Workload {
    cases: Cases::These("storm/reused storm/boxed storm/reused/striped storm/boxed/striped"),
    quick: |parts, _| parts.len() == 2,
    numbers: |job, _, on| base(job, on),
    variants: |parts, on| with_before(on, parts.len() == 2, parts.len() == 2),
    run: own,
};

/// Storm of four producers a CPU.
pub(super) const OVERSUBSCRIBED: Workload = Workload {
    cases: Cases::These("oversubscribed/reused oversubscribed/boxed"),
    quick: |_, _| false,
    numbers: |job, _, on| {
        base(job, on);
        job.producers = 4 * job.workers;
    },
    variants: |_, on| with_before(on, false, false),
    run: own,
};

/// Runs the storm with a closure per item.
///
/// # Errors
/// A producer couldn't be started, or panicked.
pub(super) fn boxed<R: Spawn>(
    job: &Job,
    runtime: &R,
    meter: &mut Meter,
) -> Result<Line, BenchError> {
    let no_ring = |_| ();
    storm(job, runtime, meter, no_ring, |share, countdown, ()| {
        for payload in 0..share as u64 {
            let tiny = Tiny { countdown, payload };
            runtime.spawn(move || tiny.run());
        }
    })
}

/// Runs the storm with items that were made before, a ring for each producer.
///
/// # Errors
/// A producer couldn't be started, or panicked.
pub(super) fn reused<R: Reuse>(
    job: &Job,
    runtime: &R,
    meter: &mut Meter,
) -> Result<Line, BenchError> {
    let ring = |countdown| -> Vec<R::Item> {
        (0..job.ring as u64).map(|payload| runtime.reusable(Tiny { countdown, payload })).collect()
    };
    storm(job, runtime, meter, ring, |share, _, ring| {
        for item in ring.iter().cycle().take(share) {
            while !runtime.requeue(item) {
                // The workers haven't run the item yet, so they need the CPU more.
                thread::yield_now();
            }
        }
    })
}

/// Runs one storm. `make` makes the items of each producer, which isn't measured; they live until
/// all have run. `produce` queues a share of the items.
fn storm<R: Spawn, M: Send>(
    job: &Job,
    runtime: &R,
    meter: &mut Meter,
    make: impl Fn(&'static Countdown) -> M,
    produce: impl Fn(usize, &'static Countdown, &M) + Sync,
) -> Result<Line, BenchError> {
    let striped = job.case.ends_with("/striped");
    let names: Vec<String> = (0..job.producers).map(|n| format!("producer/{n}")).collect();
    let pass = |items: usize, meter: Option<&mut Meter>| {
        let shares = shares(items, job.producers);
        let (all, counts) = if striped {
            Countdown::striped(&shares)
        } else {
            let all = Countdown::new(items);
            (all, vec![all; job.producers])
        };
        let made: Vec<Mutex<M>> = counts.iter().map(|count| Mutex::new(make(count))).collect();
        let run = || {
            // The lock is the producer's own, and held throughout.
            let ran = together(
                &names,
                |number| Ok(made[number].lock()),
                |number, made| {
                    produce(shares[number], counts[number], &made);
                    Ok(())
                },
            )?;
            all.wait();
            let end = time::now();
            runtime.flush();
            Ok(end - ran.began)
        };
        match meter {
            Some(meter) => meter.pass(items, run),
            None => run().map(drop),
        }
    };
    pass(job.items.div_ceil(10), None)?;
    for _ in 0..job.passes {
        pass(job.items, Some(meter))?;
    }
    Ok(meter.finish(job.line()))
}

/// Divides `items` among the producers. The first ones take the rest.
fn shares(items: usize, producers: usize) -> Vec<usize> {
    let (each, rest) = (items / producers, items % producers);
    (0..producers).map(|n| each + usize::from(n < rest)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remainder_of_a_division_goes_to_the_first() {
        assert_eq!(shares(10, 3), [4, 3, 3]);
        assert_eq!(shares(1, 2), [1, 0]);
    }
}
