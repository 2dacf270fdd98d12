//! Builds and validates a graph: names, links, cycles, base order, inherited nodes.

use super::{DeviceId, Edges, Graph, GraphError};
use crate::DeviceDecl;
use corewise_timeline::EdgeKind;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

/// What each device needs, before it is packed: short lists, each entry once.
type Needs = Vec<Vec<(DeviceId, EdgeKind)>>;

pub(super) fn build(
    prior: Option<&Graph>,
    decls: Vec<DeviceDecl>,
    drivers: Option<&[String]>,
) -> (Graph, Vec<GraphError>) {
    let base = prior.map_or(0, Graph::len);
    let mut faults = Vec::new();
    let (mut all, mut rejected, mut by_name) = match prior {
        Some(g) => (g.decls.clone(), g.rejected.clone(), g.by_name.clone()),
        None => (Vec::new(), Vec::new(), HashMap::new()),
    };
    all.extend(decls.into_iter().map(Arc::new));
    rejected.resize(all.len(), false);
    assert!(u32::try_from(all.len()).is_ok(), "more than 4294967295 devices");

    check_names(&all, base, &mut by_name, &mut rejected, &mut faults);
    if let Some(known) = drivers {
        check_drivers(&all, base, known, &mut rejected, &mut faults);
    }
    let mut needs = link(&all, base, &by_name, &mut rejected, &mut faults);
    let order = sort(&all, base, &mut needs, &mut rejected, &mut faults);
    faults.sort_by_key(GraphError::device);

    let mut rank = vec![0; all.len()];
    for (place, id) in (0u32..).zip(&order) {
        rank[id.index()] = place;
    }
    let mut nodes: Vec<Option<u32>> = all.iter().map(|d| d.node).collect();
    for id in &order {
        // A parent comes before its children in this order, so a chain needs one pass.
        let parent = needs[id.index()].iter().find(|(_, kind)| *kind == EdgeKind::Parent);
        if let (None, Some((parent, _))) = (nodes[id.index()], parent) {
            nodes[id.index()] = nodes[parent.index()];
        }
    }
    let feeds = pack(&reversed(&needs));
    let needs = pack(&needs);
    (Graph { decls: all, nodes, rejected, needs, feeds, order, rank, by_name }, faults)
}

fn check_names(
    all: &[Arc<DeviceDecl>],
    base: usize,
    by_name: &mut HashMap<String, DeviceId>,
    rejected: &mut [bool],
    faults: &mut Vec<GraphError>,
) {
    for (i, decl) in all.iter().enumerate().skip(base) {
        let device = i - base;
        if decl.name.is_empty() {
            faults.push(GraphError::EmptyName { device });
            rejected[i] = true;
        } else if let Some(first) = by_name.get(&decl.name) {
            let first = first.index().checked_sub(base);
            faults.push(GraphError::DuplicateName { device, name: decl.name.clone(), first });
            rejected[i] = true;
        } else {
            by_name.insert(decl.name.clone(), DeviceId::new(i));
        }
    }
}

fn check_drivers(
    all: &[Arc<DeviceDecl>],
    base: usize,
    known: &[String],
    rejected: &mut [bool],
    faults: &mut Vec<GraphError>,
) {
    for (i, decl) in all.iter().enumerate().skip(base) {
        if !known.contains(&decl.driver) {
            let (name, driver) = (decl.name.clone(), decl.driver.clone());
            let known = known.to_vec();
            faults.push(GraphError::UnknownDriver { device: i - base, name, driver, known });
            rejected[i] = true;
        }
    }
}

/// Resolves names. A device at fault keeps no needs, but keeps those who need it.
fn link(
    all: &[Arc<DeviceDecl>],
    base: usize,
    by_name: &HashMap<String, DeviceId>,
    rejected: &mut [bool],
    faults: &mut Vec<GraphError>,
) -> Needs {
    let mut needs: Needs = Vec::with_capacity(all.len());
    // Per device: the last one that was seen to need it. Tells in one look whether a supplier was
    // named before, however many there are.
    let mut needed_by = vec![usize::MAX; all.len()];
    for (i, decl) in all.iter().enumerate() {
        let (device, name) = (i.wrapping_sub(base), || decl.name.clone());
        let mut mine: Vec<(DeviceId, EdgeKind)> = Vec::new();
        let mut bad = rejected[i];
        // Prior devices were checked when they were new; what they found then still stands.
        let mut fault = |error| {
            if i >= base {
                faults.push(error);
            }
            bad = true;
        };
        match decl.parent.as_deref().map(|p| (p, by_name.get(p))) {
            None => {}
            Some((_, Some(&id))) => {
                needed_by[id.index()] = i;
                mine.push((id, EdgeKind::Parent));
            }
            Some((parent, None)) => {
                let parent = parent.to_string();
                fault(GraphError::MissingParent { device, name: name(), parent });
            }
        }
        for supplier in &decl.suppliers {
            match by_name.get(supplier) {
                Some(&id) if needed_by[id.index()] == i => {}
                Some(&id) => {
                    needed_by[id.index()] = i;
                    mine.push((id, EdgeKind::Supplier));
                }
                None => {
                    let supplier = supplier.clone();
                    fault(GraphError::MissingSupplier { device, name: name(), supplier });
                }
            }
        }
        for supplier in decl.sync_state_only.iter().filter(|s| !by_name.contains_key(*s)) {
            let supplier = supplier.clone();
            fault(GraphError::MissingSupplier { device, name: name(), supplier });
        }
        if bad {
            rejected[i] = true;
            mine.clear();
        }
        needs.push(mine);
    }
    needs
}

/// Orders the devices so that each comes after all that it needs; among those that may come next
/// the one registered first (Kahn's algorithm with a heap). What is left is on a cycle or behind
/// one: the cycles are found, reported and rejected one by one, until nothing is left.
fn sort(
    all: &[Arc<DeviceDecl>],
    base: usize,
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
        let path = path.into_iter().map(|i| (i.wrapping_sub(base), all[i].name.clone())).collect();
        faults.push(GraphError::Cycle { path });
    }
}

/// Walks from a device that was not placed to one that it needs and that was not placed either;
/// each such device has one, so the walk comes back to itself. The cycle is turned so that it
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

fn reversed(needs: &Needs) -> Needs {
    let mut feeds: Needs = vec![Vec::new(); needs.len()];
    for (i, mine) in needs.iter().enumerate() {
        for &(need, kind) in mine {
            feeds[need.index()].push((DeviceId::new(i), kind));
        }
    }
    feeds
}

fn pack(lists: &Needs) -> Edges {
    let mut edges = Edges::default();
    edges.start.push(0);
    for list in lists {
        edges.to.extend(list.iter().map(|(id, _)| *id));
        edges.kinds.extend(list.iter().map(|(_, kind)| *kind));
        edges.start.push(u32::try_from(edges.to.len()).expect("fewer than 4294967296 edges"));
    }
    edges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decl(name: &str, suppliers: &[&str]) -> DeviceDecl {
        suppliers.iter().fold(DeviceDecl::new(name, "d"), |d, s| d.supplier(*s))
    }

    fn names(graph: &Graph, ids: &[DeviceId]) -> Vec<String> {
        ids.iter().map(|&id| graph.name(id).to_string()).collect()
    }

    #[test]
    fn parents_and_suppliers_are_needed_once_and_sync_state_links_are_no_edges() {
        let graph = Graph::build(vec![
            DeviceDecl::new("bus", "d"),
            DeviceDecl::new("clock", "d").sync_state_only("disk"),
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
    fn registration_order_is_kept_where_it_is_consistent() {
        let graph = Graph::build(vec![
            decl("a", &[]),
            decl("b", &[]),
            decl("c", &["a"]),
            decl("d", &["b"]),
        ])
        .unwrap();
        assert_eq!(names(&graph, graph.order()), ["a", "b", "c", "d"]);
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
            DeviceDecl::new("e", "d").sync_state_only("nowhere"),
        ])
        .unwrap_err();
        let devices: Vec<usize> = faults.iter().map(GraphError::device).collect();
        assert_eq!(devices, [1, 2, 3, 4, 5]);
        let text: Vec<String> = faults.iter().map(ToString::to_string).collect();
        assert!(text[0].contains("\"a\" is declared twice"), "{text:?}");
        assert!(text[1].contains("\"b\"") && text[1].contains("\"nothing\""), "{text:?}");
        assert!(text[2].contains("parent \"nobody\""), "{text:?}");
        assert!(text[4].contains("\"nowhere\""), "{text:?}");
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
    fn sync_state_links_may_form_a_circle() {
        let circle = vec![
            DeviceDecl::new("a", "d").sync_state_only("b"),
            DeviceDecl::new("b", "d").sync_state_only("a"),
        ];
        assert!(Graph::build(circle).is_ok());
    }

    #[test]
    fn an_extended_graph_keeps_ids_and_counts_faults_from_the_new_ones() {
        let prior = Graph::build(vec![decl("a", &[]), decl("b", &["a"])]).unwrap();
        let drivers = ["d".to_string()];
        let (graph, faults) = Graph::extended(
            &prior,
            vec![decl("c", &["b"]), decl("a", &[]), DeviceDecl::new("e", "odd")],
            &drivers,
        );
        assert_eq!(graph.find("b"), prior.find("b"));
        assert_eq!(names(&graph, graph.needs(graph.find("c").unwrap())), ["b"]);
        assert_eq!(
            faults[0],
            GraphError::DuplicateName { device: 1, name: "a".into(), first: None }
        );
        assert!(faults[1].to_string().contains("known drivers: d"), "{faults:?}");
    }
}
