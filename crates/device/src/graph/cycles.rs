//! Orders devices that exist, and breaks the cycles that links between them have closed.

use super::DeviceId;
use super::build::{Needs, reversed};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Orders the devices so that each comes after all that it needs; among those that may come next
/// the one registered first. An error where they need one another in a circle.
pub(super) fn kahn(needs: &Needs) -> Result<Vec<DeviceId>, ()> {
    let feeds = reversed(needs);
    let mut left: Vec<usize> = needs.iter().map(Vec::len).collect();
    let mut ready: BinaryHeap<Reverse<usize>> =
        (0..needs.len()).filter(|&i| left[i] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(needs.len());
    while let Some(Reverse(i)) = ready.pop() {
        order.push(DeviceId::new(i));
        for (consumer, _) in &feeds[i] {
            let left = &mut left[consumer.index()];
            *left -= 1;
            if *left == 0 {
                ready.push(Reverse(consumer.index()));
            }
        }
    }
    if order.len() == needs.len() { Ok(order) } else { Err(()) }
}

/// Breaks all cycles by registration order: among devices that need one another in a circle, those
/// registered earlier don't need those registered later. Returns these groups, each in registration
/// order. The rest is acyclic: within a group all goes one way, and groups form no cycle.
pub(super) fn broken(needs: &mut Needs) -> Vec<Vec<DeviceId>> {
    let group = groups(needs);
    let mut members: Vec<Vec<DeviceId>> = vec![Vec::new(); needs.len()];
    for (i, &group) in group.iter().enumerate() {
        members[group].push(DeviceId::new(i));
    }
    for (i, mine) in needs.iter_mut().enumerate() {
        mine.retain(|(need, _)| group[need.index()] != group[i] || need.index() < i);
    }
    let mut cycles: Vec<_> = members.into_iter().filter(|m| m.len() > 1).collect();
    cycles.sort();
    cycles
}

/// Numbers the strongly connected components (Tarjan's algorithm, with its own stack).
fn groups(needs: &Needs) -> Vec<usize> {
    const NEW: usize = usize::MAX;
    let n = needs.len();
    let (mut index, mut low, mut group) = (vec![NEW; n], vec![0; n], vec![NEW; n]);
    let (mut count, mut groups) = (0, 0);
    let (mut open, mut walk): (Vec<usize>, Vec<(usize, usize)>) = (Vec::new(), Vec::new());
    for root in 0..n {
        if index[root] == NEW {
            walk.push((root, 0));
        }
        while let Some((at, edge)) = walk.pop() {
            if edge == 0 {
                index[at] = count;
                low[at] = count;
                count += 1;
                open.push(at);
            } else {
                let below = needs[at][edge - 1].0.index();
                low[at] = low[at].min(low[below]);
            }
            let mut next = None;
            for (i, (need, _)) in needs[at].iter().enumerate().skip(edge) {
                let need = need.index();
                if index[need] == NEW {
                    next = Some((i, need));
                    break;
                }
                if group[need] == NEW {
                    low[at] = low[at].min(index[need]);
                }
            }
            if let Some((i, need)) = next {
                walk.push((at, i + 1));
                walk.push((need, 0));
            } else if low[at] == index[at] {
                while let Some(member) = open.pop() {
                    group[member] = groups;
                    if member == at {
                        break;
                    }
                }
                groups += 1;
            }
        }
    }
    group
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewise_timeline::EdgeKind;

    fn needs(lists: &[&[usize]]) -> Needs {
        let need = |&i: &usize| (DeviceId::new(i), EdgeKind::Supplier);
        lists.iter().map(|list| list.iter().map(need).collect()).collect()
    }

    fn indices(ids: &[DeviceId]) -> Vec<usize> {
        ids.iter().map(|id| id.index()).collect()
    }

    #[test]
    fn a_cycle_is_broken_by_registration_order_and_what_is_beside_it_is_kept() {
        // 0 -> 2 -> 1 -> 0 in a circle; 3 needs 1, 4 needs itself nowhere, 0 needs 4.
        let mut graph = needs(&[&[2, 4], &[0], &[1], &[1], &[]]);
        assert!(kahn(&graph).is_err());
        let cycles = broken(&mut graph);
        assert_eq!(cycles.iter().map(|c| indices(c)).collect::<Vec<_>>(), [[0, 1, 2]]);
        assert_eq!(indices(&kahn(&graph).expect("no cycle is left")), [4, 0, 1, 2, 3]);
    }

    #[test]
    fn two_cycles_that_touch_are_one_group_and_two_apart_are_two() {
        let mut touching = needs(&[&[1], &[0, 2], &[1]]);
        assert_eq!(broken(&mut touching).len(), 1);
        let mut apart = needs(&[&[1], &[0], &[3], &[2, 0]]);
        let cycles = broken(&mut apart);
        assert_eq!(cycles.iter().map(|c| indices(c)).collect::<Vec<_>>(), [[0, 1], [2, 3]]);
        assert_eq!(indices(&kahn(&apart).expect("no cycle is left")), [0, 1, 2, 3]);
    }

    #[test]
    fn a_ring_of_a_hundred_thousand_needs_no_stack() {
        let n = 100_000;
        let ring: Vec<Vec<usize>> = (0..n).map(|i| vec![(i + 1) % n]).collect();
        let mut ring = needs(&ring.iter().map(Vec::as_slice).collect::<Vec<_>>());
        assert_eq!(broken(&mut ring)[0].len(), n);
        assert!(kahn(&ring).is_ok());
    }
}
