//! Builds and validates a graph: names, links, cycles, base order, inherited nodes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::{Arc, OnceLock};

use corewise_timeline::EdgeKind;

use crate::decl::DeviceDecl;
use crate::graph::{DeviceId, EdgeTable, Graph, GraphContext, GraphError, NamedDecl};

/// The needs of each device, before they are packed: short lists, each entry once.
pub(super) type Needs = Vec<Vec<(DeviceId, EdgeKind)>>;

pub(super) fn build(
    all: Vec<Arc<DeviceDecl>>,
    surroundings: &GraphContext<'_>,
) -> (Graph, Vec<GraphError>) {
    let mut faults = Vec::new();
    let mut rejected = vec![false; all.len()];
    assert!(u32::try_from(all.len()).is_ok(), "more than 4294967295 devices");

    let by_name = check_names(&all, surroundings, &mut rejected, &mut faults);
    for (device, decl) in all.iter().enumerate() {
        if let Some(fault) = (surroundings.driver_fault)(device, decl) {
            faults.push(fault);
            rejected[device] = true;
        }
    }
    let mut needs = link(&all, &by_name, surroundings, &mut rejected, &mut faults);
    let order = sort(&all, &mut needs, &mut rejected, &mut faults);
    faults.sort_by_key(GraphError::device);

    let node = |decl: &Arc<DeviceDecl>| {
        let outside = || (surroundings.outside)(decl.parent.as_deref()?)?.node;
        decl.node.or_else(outside)
    };
    let mut nodes: Vec<Option<u32>> = all.iter().map(node).collect();
    for id in &order {
        // A parent comes before its children in this order, so a chain needs one pass.
        let parent = needs[id.index()].iter().find(|(_, kind)| *kind == EdgeKind::Parent);
        if let (None, Some((parent, _))) = (nodes[id.index()], parent) {
            nodes[id.index()] = nodes[parent.index()];
        }
    }
    let graph = packed(all, nodes, rejected, &needs, order, Vec::new());
    graph.by_name.get_or_init(|| by_name);
    (graph, faults)
}

pub(super) fn of_existing(
    decls: Vec<Arc<DeviceDecl>>,
    nodes: Vec<Option<u32>>,
    mut needs: Needs,
) -> Graph {
    let mut cycles = Vec::new();
    let order = kahn(&needs).unwrap_or_else(|()| {
        cycles = broken(&mut needs);
        kahn(&needs).expect("the rest of a cycle goes one way along the registration order")
    });
    let rejected = vec![false; decls.len()];
    packed(decls, nodes, rejected, &needs, order, cycles)
}

fn packed(
    decls: Vec<Arc<DeviceDecl>>,
    nodes: Vec<Option<u32>>,
    rejected: Vec<bool>,
    needs: &Needs,
    order: Vec<DeviceId>,
    cycles: Vec<Vec<DeviceId>>,
) -> Graph {
    let mut rank = vec![0; decls.len()];
    for (place, id) in (0u32..).zip(&order) {
        rank[id.index()] = place;
    }
    let (feeds, needs, by_name) = (pack(&reversed(needs)), pack(needs), OnceLock::new());
    Graph { decls, nodes, rejected, needs, feeds, order, rank, cycles, by_name }
}

pub(super) fn by_name(decls: &[Arc<DeviceDecl>]) -> HashMap<NamedDecl, DeviceId> {
    let mut by_name = HashMap::with_capacity(decls.len());
    for (i, decl) in decls.iter().enumerate() {
        by_name.entry(NamedDecl(decl.clone())).or_insert(DeviceId::new(i));
    }
    by_name
}

fn check_names(
    all: &[Arc<DeviceDecl>],
    surroundings: &GraphContext<'_>,
    rejected: &mut [bool],
    faults: &mut Vec<GraphError>,
) -> HashMap<NamedDecl, DeviceId> {
    let mut by_name: HashMap<NamedDecl, DeviceId> = HashMap::with_capacity(all.len());
    for (device, decl) in all.iter().enumerate() {
        let first = by_name.get(decl.name.as_str()).map(|id| id.index());
        let fault = if decl.name.is_empty() {
            GraphError::EmptyName { device }
        } else if first.is_some() || (surroundings.outside)(&decl.name).is_some() {
            GraphError::DuplicateName { device, name: decl.name.clone(), first }
        } else {
            by_name.insert(NamedDecl(decl.clone()), DeviceId::new(device));
            continue;
        };
        faults.push(fault);
        rejected[device] = true;
    }
    by_name
}

/// Resolves names. A device at fault keeps no needs, but its consumers keep their needs of it.
/// Devices outside are no edges of this graph.
fn link(
    all: &[Arc<DeviceDecl>],
    by_name: &HashMap<NamedDecl, DeviceId>,
    surroundings: &GraphContext<'_>,
    rejected: &mut [bool],
    faults: &mut Vec<GraphError>,
) -> Needs {
    let mut needs: Needs = Vec::with_capacity(all.len());
    // Per supplier: the last device that was seen to need it. One look shows whether a supplier was
    // named before, for any number of suppliers.
    let mut needed_by = vec![usize::MAX; all.len()];
    for (device, decl) in all.iter().enumerate() {
        let name = || decl.name.clone();
        let outside = |name: &String| (surroundings.outside)(name).is_some();
        let mut mine: Vec<(DeviceId, EdgeKind)> = Vec::new();
        let mut bad = rejected[device];
        let mut fault = |error| {
            faults.push(error);
            bad = true;
        };
        if let Some(parent) = &decl.parent {
            if let Some(&id) = by_name.get(parent.as_str()) {
                needed_by[id.index()] = device;
                mine.push((id, EdgeKind::Parent));
            } else if !outside(parent) {
                let parent = parent.clone();
                fault(GraphError::MissingParent { device, name: name(), parent });
            }
        }
        for (supplier, optional) in decl.all_suppliers() {
            match by_name.get(supplier.as_str()) {
                Some(&id) if needed_by[id.index()] == device => {}
                Some(&id) => {
                    needed_by[id.index()] = device;
                    mine.push((id, EdgeKind::Supplier));
                }
                None if optional || outside(supplier) => {}
                None => {
                    let supplier = supplier.clone();
                    fault(GraphError::MissingSupplier { device, name: name(), supplier });
                }
            }
        }
        if bad {
            rejected[device] = true;
            mine.clear();
        }
        needs.push(mine);
    }
    needs
}

/// Orders the devices so that each comes after its needs. Among those that may come next it chooses
/// the one registered first (Kahn's algorithm with a heap). A device left over is on a cycle or
/// behind one: the cycles are found, reported and rejected one by one, until none is left.
fn sort(
    all: &[Arc<DeviceDecl>],
    needs: &mut Needs,
    rejected: &mut [bool],
    faults: &mut Vec<GraphError>,
) -> Vec<DeviceId> {
    let feeds = reversed(needs);
    let mut left: Vec<usize> = needs.iter().map(Vec::len).collect();
    let mut ready: BinaryHeap<Reverse<usize>> =
        (0..all.len()).filter(|&i| left[i] == 0).map(Reverse).collect();
    let mut placed = vec![false; all.len()];
    let mut order = Vec::with_capacity(all.len());
    let mut cursor = 0;
    loop {
        while let Some(Reverse(i)) = ready.pop() {
            placed[i] = true;
            order.push(DeviceId::new(i));
            for (consumer, _) in &feeds[i] {
                let c = consumer.index();
                // A device rejected for its cycle no longer waits for anything.
                if left[c] > 0 {
                    left[c] -= 1;
                    if left[c] == 0 {
                        ready.push(Reverse(c));
                    }
                }
            }
        }
        while cursor < all.len() && placed[cursor] {
            cursor += 1;
        }
        if cursor == all.len() {
            return order;
        }
        let path = find_cycle(cursor, needs, &placed);
        for &i in &path {
            rejected[i] = true;
            needs[i].clear();
            left[i] = 0;
            ready.push(Reverse(i));
        }
        let path = path.into_iter().map(|i| (i, all[i].name.clone())).collect();
        faults.push(GraphError::Cycle { path });
    }
}

/// Walks from a device that was not placed to one that it needs and that was not placed either.
/// Each such device has one, so the walk comes back to itself. The cycle is turned so that it
/// begins with the device registered first.
fn find_cycle(from: usize, needs: &Needs, placed: &[bool]) -> Vec<usize> {
    let mut seen_at: HashMap<usize, usize> = HashMap::new();
    let mut walk = Vec::new();
    let mut at = from;
    while let std::collections::hash_map::Entry::Vacant(new) = seen_at.entry(at) {
        new.insert(walk.len());
        walk.push(at);
        let next = needs[at].iter().map(|(id, _)| id.index()).find(|&i| !placed[i]);
        at = next.expect("a device that was not placed needs one that was not placed");
    }
    let mut cycle = walk.split_off(seen_at[&at]);
    let first = (0..cycle.len()).min_by_key(|&k| cycle[k]).unwrap_or(0);
    cycle.rotate_left(first);
    cycle
}

pub(super) fn reversed(needs: &Needs) -> Needs {
    let mut feeds: Needs = vec![Vec::new(); needs.len()];
    for (i, mine) in needs.iter().enumerate() {
        for &(need, kind) in mine {
            feeds[need.index()].push((DeviceId::new(i), kind));
        }
    }
    feeds
}

fn pack(lists: &Needs) -> EdgeTable {
    let mut edges = EdgeTable::default();
    edges.start.push(0);
    for list in lists {
        edges.to.extend(list.iter().map(|(id, _)| *id));
        edges.kinds.extend(list.iter().map(|(_, kind)| *kind));
        edges.start.push(u32::try_from(edges.to.len()).expect("fewer than 4294967296 edges"));
    }
    edges
}

// The order of devices that exist, with the cycles broken that links between them have closed.

/// Orders the devices so that each comes after its needs; among those that may come next it chooses
/// the one registered first. Returns an error if they need one another in a circle.
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
/// order. The rest is acyclic: within a group all edges go one way, and groups form no cycle.
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

/// Assigns numbers to the strongly connected components (Tarjan's algorithm, with its own stack).
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
    use crate::graph::OutsideNeeds;

    fn decl(name: &str, suppliers: &[&str]) -> DeviceDecl {
        suppliers.iter().fold(DeviceDecl::new(name, "d"), |d, s| d.supplier(*s))
    }

    fn names(graph: &Graph, ids: &[DeviceId]) -> Vec<String> {
        ids.iter().map(|&id| graph.name(id).to_string()).collect()
    }

    #[test]
    fn parents_and_suppliers_are_needed_once() {
        let graph = Graph::build(vec![
            DeviceDecl::new("bus", "d"),
            DeviceDecl::new("clock", "d"),
            DeviceDecl::new("disk", "d")
                .parent("bus")
                .supplier("bus")
                .supplier("clock")
                .supplier("clock"),
        ])
        .unwrap();
        let disk = graph.find("disk").unwrap();
        assert_eq!(names(&graph, graph.needs(disk)), ["bus", "clock"]);
        assert_eq!(names(&graph, graph.feeds(graph.find("bus").unwrap())), ["disk"]);
        let kinds: Vec<EdgeKind> = graph.edges().map(|(_, _, kind)| kind).collect();
        assert_eq!(kinds, [EdgeKind::Parent, EdgeKind::Supplier]);
    }

    #[test]
    fn a_consumer_registered_before_its_supplier_is_moved_behind_it_and_nothing_else_is() {
        let graph = Graph::build(vec![
            decl("consumer", &["supplier"]),
            decl("x", &[]),
            decl("supplier", &[]),
            decl("y", &[]),
        ])
        .unwrap();
        assert_eq!(names(&graph, graph.order()), ["x", "supplier", "consumer", "y"]);
        assert_eq!(graph.rank(graph.find("y").unwrap()), 3);
    }

    #[test]
    fn a_child_without_a_node_takes_over_that_of_its_parent() {
        let graph = Graph::build(vec![
            DeviceDecl::new("leaf", "d").parent("mid"),
            DeviceDecl::new("mid", "d").parent("root"),
            DeviceDecl::new("root", "d").node(Some(1)),
            DeviceDecl::new("own", "d").parent("root").node(Some(0)),
            DeviceDecl::new("none", "d").supplier("root"),
        ])
        .unwrap();
        let node = |name| graph.node(graph.find(name).unwrap());
        assert_eq!((node("leaf"), node("own"), node("none")), (Some(1), Some(0), None));
    }

    #[test]
    fn each_fault_names_its_device_and_all_are_reported() {
        let faults = Graph::build(vec![
            decl("a", &[]),
            decl("a", &[]),
            decl("b", &["nothing"]),
            DeviceDecl::new("c", "d").parent("nobody"),
            DeviceDecl::new("", "d"),
        ])
        .unwrap_err();
        let devices: Vec<usize> = faults.iter().map(GraphError::device).collect();
        assert_eq!(devices, [1, 2, 3, 4]);
        let text: Vec<String> = faults.iter().map(ToString::to_string).collect();
        assert!(text[0].contains("\"a\" is declared twice"), "{text:?}");
        assert!(text[1].contains("\"b\"") && text[1].contains("\"nothing\""), "{text:?}");
        assert!(text[2].contains("parent \"nobody\""), "{text:?}");
    }

    #[test]
    fn a_cycle_is_reported_with_its_path_and_nothing_beside_it() {
        let faults = Graph::build(vec![
            decl("behind", &["a"]),
            decl("a", &["b", "fine"]),
            decl("b", &["c"]),
            decl("fine", &[]),
            decl("c", &["a"]),
        ])
        .unwrap_err();
        let [GraphError::Cycle { path }] = faults.as_slice() else { panic!("{faults:?}") };
        let path: Vec<(usize, &str)> = path.iter().map(|(i, n)| (*i, n.as_str())).collect();
        assert_eq!(path, [(1, "a"), (2, "b"), (4, "c")]);
        assert!(faults[0].to_string().contains("\"a\" -> \"b\" -> \"c\" -> \"a\""));
    }

    #[test]
    fn a_device_that_needs_itself_is_a_cycle_of_one() {
        let faults = Graph::build(vec![decl("a", &["a"])]).unwrap_err();
        assert!(faults[0].to_string().contains("\"a\" needs itself"), "{faults:?}");
    }

    #[test]
    fn a_tolerant_graph_rejects_each_cycle_and_orders_all_the_rest() {
        let (graph, faults) = Graph::build_tolerant(vec![
            decl("a", &["b"]),
            decl("b", &["a"]),
            decl("behind", &["a"]),
            decl("x", &["y", "a"]),
            decl("y", &["x"]),
            decl("fine", &[]),
        ]);
        assert_eq!(faults.len(), 2, "{faults:?}");
        let rejected: Vec<&str> =
            graph.ids().filter(|&id| graph.is_rejected(id)).map(|id| graph.name(id)).collect();
        assert_eq!(rejected, ["a", "b", "x", "y"]);
        assert_eq!(graph.order().len(), 6);
        let behind = graph.find("behind").unwrap();
        assert!(graph.rank(behind) > graph.rank(graph.find("a").unwrap()));
    }

    #[test]
    fn devices_outside_are_no_edges_but_give_their_node_and_keep_their_name() {
        let outside = |name: &str| match name {
            "a" => Some(OutsideNeeds { node: Some(1) }),
            _ => None,
        };
        let driver_fault = |device, decl: &DeviceDecl| {
            let (name, driver, known) = (decl.name.clone(), decl.driver.clone(), Vec::new());
            let fault = GraphError::UnknownDriver { device, name, driver, known };
            (decl.driver == "odd").then_some(fault)
        };
        let decls = vec![
            decl("b", &["a"]).parent("a"),
            decl("a", &[]),
            DeviceDecl::new("c", "odd"),
            decl("d", &["b", "nobody"]),
        ];
        let decls = decls.into_iter().map(Arc::new).collect();
        let surroundings = GraphContext { outside: &outside, driver_fault: &driver_fault };
        let (graph, faults) = Graph::build_among(decls, &surroundings);
        let b = graph.find("b").unwrap();
        assert!(graph.needs(b).is_empty());
        assert_eq!(graph.node(b), Some(1));
        let taken = GraphError::DuplicateName { device: 1, name: "a".into(), first: None };
        assert_eq!(faults[0], taken);
        let odd = GraphError::UnknownDriver {
            device: 2,
            name: "c".into(),
            driver: "odd".into(),
            known: Vec::new(),
        };
        assert_eq!(faults[1], odd);
        assert!(faults[2].to_string().contains("\"nobody\""));
    }
}

#[cfg(test)]
mod cycles_tests {
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
