//! Runs variants against each other: round by round, in random order within a round.
//!
//! A machine gets warm, a neighbour wakes up, a file is cached: whatever drifts hits each variant
//! of a round about equally, so the ratios within rounds stay true where the numbers don't. The
//! first round pays for cold caches and first allocations, and is dropped.
//!
//! Variants come in groups, those of one case, which run close to each other.

use crate::rng::Rng;

/// How often, and in which order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Rounds that count; one more is run before them.
    pub rounds: usize,
    /// Seed of the orders, so that a run can be repeated.
    pub seed: u64,
}

/// Runs each variant of each group once in each round, and returns for each group for each of its
/// variants the results, in the order of the rounds: the `i`th results of two variants are a pair.
///
/// `another` is asked before each round but the first two, so that one that counts is always run;
/// it is given the number of rounds so far, and may say that it is enough.
///
/// # Errors
/// The first error of a run ends everything.
pub fn run<V, T, E>(
    plan: Plan,
    groups: &mut [Vec<V>],
    mut another: impl FnMut(usize) -> bool,
    mut run_one: impl FnMut(&mut V) -> Result<T, E>,
) -> Result<Vec<Vec<Vec<T>>>, E> {
    let mut rng = Rng::new(plan.seed);
    let empty = |group: &Vec<V>| group.iter().map(|_| Vec::new()).collect();
    let mut results: Vec<Vec<Vec<T>>> = groups.iter().map(empty).collect();
    let mut orders: Vec<Vec<usize>> = groups.iter().map(|g| (0..g.len()).collect()).collect();
    for round in 0..=plan.rounds {
        if round > 1 && !another(round) {
            break;
        }
        for (number, group) in groups.iter_mut().enumerate() {
            let order = &mut orders[number];
            rng.shuffle(order);
            for &variant in &*order {
                let result = run_one(&mut group[variant])?;
                if round > 0 {
                    results[number][variant].push(result);
                }
            }
        }
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traced(plan: Plan) -> (Vec<usize>, Vec<Vec<Vec<usize>>>) {
        let mut order = Vec::new();
        let mut groups = [vec![0, 1, 2], vec![3]];
        let results = run(
            plan,
            &mut groups,
            |_| true,
            |&mut variant| {
                order.push(variant);
                Ok::<usize, ()>(order.len())
            },
        );
        (order, results.unwrap())
    }

    #[test]
    fn each_round_runs_each_variant_once_group_by_group_and_the_first_round_is_dropped() {
        let (order, results) = traced(Plan { rounds: 4, seed: 1 });
        assert_eq!(order.len(), 20);
        for round in order.chunks(4) {
            assert_eq!(round[3], 3, "the other group comes behind");
            let mut variants = round[..3].to_vec();
            variants.sort_unstable();
            assert_eq!(variants, [0, 1, 2]);
        }
        for (variant, results) in results.iter().flatten().enumerate() {
            assert_eq!(results.len(), 4);
            for (i, &when) in results.iter().enumerate() {
                // Result i is of round i + 1, and of this variant.
                assert_eq!((when - 1) / 4, i + 1);
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
        let first = &order[..4];
        assert!(order.chunks(4).any(|round| round != first), "one order for all rounds");
    }

    #[test]
    fn an_error_ends_the_run() {
        let mut runs = 0;
        let plan = Plan { rounds: 3, seed: 1 };
        let result = run(
            plan,
            &mut [vec![(), ()]],
            |_| true,
            |()| {
                runs += 1;
                if runs == 3 { Err("broken") } else { Ok(()) }
            },
        );
        assert_eq!(result, Err("broken"));
        assert_eq!(runs, 3);
    }

    #[test]
    fn enough_ends_it_after_a_round_that_counts() {
        let plan = Plan { rounds: 9, seed: 1 };
        let run = |enough| {
            run(plan, &mut [vec![()]], |rounds| rounds < enough, |()| Ok::<_, ()>(())).unwrap()
        };
        assert_eq!(run(0)[0][0].len(), 1);
        assert_eq!(run(4)[0][0].len(), 3);
        assert_eq!(run(99)[0][0].len(), 9);
    }
}
