//! An order in which everything comes after what it waits for, whatever circles there are.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Nodes in an order.
pub(super) struct Order {
    /// The nodes, first to last.
    pub(super) nodes: Vec<usize>,
    /// By node, where it is among them.
    places: Vec<usize>,
}

impl Order {
    /// An order in which each node comes before those that are `after` it; of the nodes that can come
    /// next the first by `key`. Where all that are left wait, the first by `key` comes next.
    pub(super) fn of<K: Ord>(after: &[Vec<usize>], key: impl Fn(usize) -> K) -> Order {
        let n = after.len();
        let mut waits_for = vec![0_usize; n];
        after.iter().flatten().for_each(|&to| waits_for[to] += 1);
        let mut places = vec![usize::MAX; n];
        let mut nodes = Vec::with_capacity(n);
        let ranked = |i: usize| Reverse((key(i), i));
        let mut ready: BinaryHeap<_> = (0..n).filter(|&i| waits_for[i] == 0).map(ranked).collect();
        let mut stuck: Vec<usize> = (0..n).collect();
        stuck.sort_by_key(|&i| key(i));
        let mut stuck = stuck.into_iter();
        loop {
            let next = ready.pop().map(|Reverse((_, i))| i);
            let next = next.or_else(|| stuck.find(|&i| places[i] == usize::MAX));
            let Some(i) = next else { break };
            if places[i] != usize::MAX {
                continue;
            }
            places[i] = nodes.len();
            nodes.push(i);
            for &to in &after[i] {
                waits_for[to] -= 1;
                if waits_for[to] == 0 && places[to] == usize::MAX {
                    ready.push(ranked(to));
                }
            }
        }
        Order { nodes, places }
    }

    /// Whether the one comes before the other. An order that was stated, and doesn't hold, would close a circle.
    pub(super) fn keeps(&self, before: usize, after: usize) -> bool {
        self.places[before] < self.places[after]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_comes_after_what_it_waits_for_and_else_by_key() {
        // 3 waits for 0 and 2; the key is the number backwards.
        let order = Order::of(&[vec![3], vec![], vec![3], vec![]], Reverse);
        assert_eq!(order.nodes, [2, 1, 0, 3]);
        assert!(order.keeps(0, 3) && order.keeps(2, 3) && !order.keeps(3, 0));
    }

    #[test]
    fn a_circle_is_opened_at_its_first_by_key_and_all_nodes_are_in_the_order() {
        let order = Order::of(&[vec![1], vec![2], vec![0, 3], vec![]], |i| [5, 4, 6, 9][i]);
        assert_eq!(order.nodes, [1, 2, 0, 3]);
        assert!(!order.keeps(0, 1), "this one closes the circle");
    }
}
