//! Runs variants against each other: round by round, in random order within a round.
//!
//! A machine gets warm, a neighbour wakes up, a file is cached: whatever drifts hits each variant
//! of a round about equally, so the ratios within rounds stay true where the numbers don't. The
//! first round pays for cold caches and first allocations, and is dropped.

use crate::rng::Rng;

/// How often, and in which order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Rounds that count; one more is run before them.
    pub rounds: usize,
    /// Seed of the orders, so that a run can be repeated.
    pub seed: u64,
}

/// Runs each variant once in each round, and returns for each variant its results, in the order of
/// the rounds: the `i`th results of two variants are a pair.
///
/// # Errors
/// The first error of a run ends everything.
pub fn run<V, T, E>(
    plan: Plan,
    variants: &mut [V],
    mut run_one: impl FnMut(&mut V) -> Result<T, E>,
) -> Result<Vec<Vec<T>>, E> {
    let mut rng = Rng::new(plan.seed);
    let mut results: Vec<Vec<T>> = variants.iter().map(|_| Vec::new()).collect();
    let mut order: Vec<usize> = (0..variants.len()).collect();
    for round in 0..=plan.rounds {
        rng.shuffle(&mut order);
        for &variant in &order {
            let result = run_one(&mut variants[variant])?;
            if round > 0 {
                results[variant].push(result);
            }
        }
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traced(plan: Plan) -> (Vec<usize>, Vec<Vec<usize>>) {
        let mut order = Vec::new();
        let results = run(plan, &mut [0, 1, 2], |&mut variant| {
            order.push(variant);
            Ok::<usize, ()>(order.len())
        });
        (order, results.unwrap())
    }

    #[test]
    fn each_round_runs_each_variant_once_and_the_first_round_is_dropped() {
        let (order, results) = traced(Plan { rounds: 4, seed: 1 });
        assert_eq!(order.len(), 15);
        for round in order.chunks(3) {
            let mut variants = round.to_vec();
            variants.sort_unstable();
            assert_eq!(variants, [0, 1, 2]);
        }
        for (variant, results) in results.iter().enumerate() {
            assert_eq!(results.len(), 4);
            for (i, &when) in results.iter().enumerate() {
                // Result i is of round i + 1, and of this variant.
                assert_eq!((when - 1) / 3, i + 1);
                assert_eq!(order[when - 1], variant);
            }
        }
    }

    #[test]
    fn the_order_changes_between_rounds_and_is_repeatable_by_its_seed() {
        let plan = Plan { rounds: 20, seed: 5 };
        let (order, _) = traced(plan);
        assert_eq!(order, traced(plan).0);
        assert_ne!(order, traced(Plan { seed: 6, ..plan }).0);
        let first = &order[..3];
        assert!(order.chunks(3).any(|round| round != first), "one order for all rounds");
    }

    #[test]
    fn an_error_ends_the_run() {
        let mut runs = 0;
        let result = run(Plan { rounds: 3, seed: 1 }, &mut [(), ()], |()| {
            runs += 1;
            if runs == 3 { Err("broken") } else { Ok(()) }
        });
        assert_eq!(result, Err("broken"));
        assert_eq!(runs, 3);
    }
}
