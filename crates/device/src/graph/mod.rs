//! The device graph: immutable, validated, with edges both ways and one base order. Pure.

mod build;
mod error;

pub use error::GraphError;

use crate::decl::DeviceDecl;
use corewise_timeline::EdgeKind;
use std::borrow::Borrow;
use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, OnceLock};

/// A device of a [`Graph`]: its place in registration order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub(crate) u32);

impl DeviceId {
    /// The index in registration order.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    pub(crate) fn new(index: usize) -> DeviceId {
        DeviceId(u32::try_from(index).expect("the graph's builder bounds the number of devices"))
    }
}

impl From<DeviceId> for u32 {
    fn from(id: DeviceId) -> u32 {
        id.0
    }
}

/// The needs of devices, built once from declarations and never changed.
///
/// A device *needs* its parent and its suppliers: they are bound before it, and shut down after it.
/// The edges form no cycle. Where devices that are up were linked into one later, it is
/// [broken](Graph::cycles).
///
/// All methods are pure and may be called from any context.
pub struct Graph {
    decls: Vec<Arc<DeviceDecl>>,
    nodes: Vec<Option<u32>>,
    rejected: Vec<bool>,
    needs: EdgeTable,
    feeds: EdgeTable,
    order: Vec<DeviceId>,
    rank: Vec<u32>,
    cycles: Vec<Vec<DeviceId>>,
    /// Made when it is first asked for: a shutdown needs no names.
    by_name: OnceLock<HashMap<NamedDecl, DeviceId>>,
}

/// What is known of a device that is not part of the graph, but that the graph's devices may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutsideNeeds {
    pub node: Option<u32>,
}

/// What is needed for a graph besides declarations.
pub(crate) struct GraphContext<'a> {
    /// The devices that exist already, by name.
    pub outside: &'a dyn Fn(&str) -> Option<OutsideNeeds>,
    /// What is wrong with the drivers of a device, by its index.
    pub driver_fault: &'a dyn Fn(usize, &DeviceDecl) -> Option<GraphError>,
}

impl Graph {
    /// Builds a graph from declarations, in registration order. Linear in devices and edges, except
    /// for a heap.
    ///
    /// # Errors
    ///
    /// All faults, by index; see [`GraphError`]. There is at least one.
    pub fn build(decls: Vec<DeviceDecl>) -> Result<Graph, Vec<GraphError>> {
        let (graph, faults) = Graph::build_tolerant(decls);
        if faults.is_empty() { Ok(graph) } else { Err(faults) }
    }

    /// As [`Graph::build`], but devices at fault become [rejected](Graph::is_rejected) ones, and
    /// the rest is as usable as it can be: for bringing up what can be brought up.
    pub(crate) fn build_tolerant(decls: Vec<DeviceDecl>) -> (Graph, Vec<GraphError>) {
        let alone = GraphContext { outside: &|_| None, driver_fault: &|_, _| None };
        build::build(decls.into_iter().map(Arc::new).collect(), &alone)
    }

    /// As [`Graph::build_tolerant`], among devices that exist already and are no part of it.
    pub(crate) fn build_among(
        decls: Vec<Arc<DeviceDecl>>,
        surroundings: &GraphContext<'_>,
    ) -> (Graph, Vec<GraphError>) {
        build::build(decls, surroundings)
    }

    /// The graph of devices that exist, in registration order; cycles are broken. Each link that
    /// `needs` says is taken as it is.
    pub(crate) fn of_existing(
        decls: Vec<Arc<DeviceDecl>>,
        nodes: Vec<Option<u32>>,
        needs: Vec<Vec<(DeviceId, EdgeKind)>>,
    ) -> Graph {
        build::of_existing(decls, nodes, needs)
    }

    /// A graph without devices.
    pub fn empty() -> Graph {
        Graph::build_tolerant(Vec::new()).0
    }

    /// Number of devices, rejected ones included.
    pub fn len(&self) -> usize {
        self.decls.len()
    }

    /// True without any device.
    pub fn is_empty(&self) -> bool {
        self.decls.is_empty()
    }

    /// All devices in registration order.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = DeviceId> + ExactSizeIterator + use<> {
        (0..self.decls.len()).map(DeviceId::new)
    }

    /// The device of that name.
    pub fn find(&self, name: &str) -> Option<DeviceId> {
        self.by_name.get_or_init(|| build::by_name(&self.decls)).get(name).copied()
    }

    /// The declaration of a device.
    ///
    /// # Panics
    ///
    /// Here and in the other lookups: when `id` came from a larger graph.
    pub fn decl(&self, id: DeviceId) -> &Arc<DeviceDecl> {
        &self.decls[id.index()]
    }

    /// The name of a device.
    pub fn name(&self, id: DeviceId) -> &str {
        &self.decls[id.index()].name
    }

    /// The NUMA node near which the device is: its own, else that of the closest ancestor that has
    /// one.
    pub fn node(&self, id: DeviceId) -> Option<u32> {
        self.nodes[id.index()]
    }

    /// True for a device at fault: it is never probed, and those that need it are skipped.
    pub(crate) fn is_rejected(&self, id: DeviceId) -> bool {
        self.rejected[id.index()]
    }

    /// What the device needs: its parent and suppliers, each once.
    pub fn needs(&self, id: DeviceId) -> &[DeviceId] {
        self.needs.of(id)
    }

    /// Those that need the device: its children and consumers, each once.
    pub fn feeds(&self, id: DeviceId) -> &[DeviceId] {
        self.feeds.of(id)
    }

    /// The base order: registration order, in which only devices registered before something that
    /// they need are moved behind it. Among devices that may come next the one registered first
    /// does, so an order that needs no change has none.
    ///
    /// The reverse is the order of a serial shutdown; every device comes after all that it needs.
    pub fn order(&self) -> &[DeviceId] {
        &self.order
    }

    /// The place of a device in [`Graph::order`].
    pub fn rank(&self, id: DeviceId) -> u32 {
        self.rank[id.index()]
    }

    /// The groups of devices that needed one another in a circle, each in registration order. In
    /// each the links of a device to others that were registered after it are left out, here and
    /// everywhere in the graph, so that the rest can be ordered.
    ///
    /// Only devices that are up can be linked into a circle, later; see
    /// [`DeviceManager::link`](crate::DeviceManager::link).
    pub fn cycles(&self) -> &[Vec<DeviceId>] {
        &self.cycles
    }

    /// Every edge: a device, one that it needs, and why.
    pub fn edges(&self) -> impl Iterator<Item = (DeviceId, DeviceId, EdgeKind)> + '_ {
        self.ids().flat_map(|id| {
            let range = self.needs.range(id);
            let kinds = &self.needs.kinds[range.clone()];
            self.needs.to[range].iter().zip(kinds).map(move |(&need, &kind)| (id, need, kind))
        })
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for id in self.ids() {
            let needs: Vec<&str> = self.needs(id).iter().map(|&n| self.name(n)).collect();
            map.entry(&self.name(id), &needs);
        }
        map.finish()
    }
}

/// A declaration as a key: found by its name.
#[derive(Clone, Debug)]
pub(crate) struct NamedDecl(pub Arc<DeviceDecl>);

impl Borrow<str> for NamedDecl {
    fn borrow(&self) -> &str {
        &self.0.name
    }
}

impl Hash for NamedDecl {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.name.hash(state);
    }
}

impl PartialEq for NamedDecl {
    fn eq(&self, other: &NamedDecl) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for NamedDecl {}

/// Adjacency in two flat arrays (compressed sparse rows): 100 000 devices cost no 100 000 vectors.
#[derive(Clone, Default)]
struct EdgeTable {
    /// Row i is `to[start[i]..start[i + 1]]`.
    start: Vec<u32>,
    to: Vec<DeviceId>,
    kinds: Vec<EdgeKind>,
}

impl EdgeTable {
    fn range(&self, id: DeviceId) -> std::ops::Range<usize> {
        self.start[id.index()] as usize..self.start[id.index() + 1] as usize
    }

    fn of(&self, id: DeviceId) -> &[DeviceId] {
        &self.to[self.range(id)]
    }
}
