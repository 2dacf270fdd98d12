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

/// A device of a [`Graph`], by its position in registration order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub(crate) u32);

impl DeviceId {
    /// Returns the index in registration order.
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
/// The edges form no cycle. If devices that are up were linked into one later, it is
/// broken by the order of registration.
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
    /// Created when it is first asked for: a shutdown needs no names.
    by_name: OnceLock<HashMap<NamedDecl, DeviceId>>,
}

/// A device that is not part of the graph, but that the graph's devices may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutsideNeeds {
    pub node: Option<u32>,
}

/// Input of a graph besides declarations.
pub(crate) struct GraphContext<'a> {
    /// The devices that exist already, by name.
    pub outside: &'a dyn Fn(&str) -> Option<OutsideNeeds>,
    /// Returns the fault of a device's drivers, by the device's index.
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

    /// Builds a graph as [`Graph::build`] does, but devices at fault become
    /// [rejected](Graph::is_rejected) ones, and the rest stays as usable as it can be.
    pub(crate) fn build_tolerant(decls: Vec<DeviceDecl>) -> (Graph, Vec<GraphError>) {
        let alone = GraphContext { outside: &|_| None, driver_fault: &|_, _| None };
        build::build(decls.into_iter().map(Arc::new).collect(), &alone)
    }

    /// Builds a graph as [`Graph::build_tolerant`] does, among devices that exist already and are
    /// no part of it.
    pub(crate) fn build_among(
        decls: Vec<Arc<DeviceDecl>>,
        surroundings: &GraphContext<'_>,
    ) -> (Graph, Vec<GraphError>) {
        build::build(decls, surroundings)
    }

    /// Builds the graph of devices that exist, in registration order; cycles are broken. Each link
    /// in `needs` is taken as it is.
    pub(crate) fn of_existing(
        decls: Vec<Arc<DeviceDecl>>,
        nodes: Vec<Option<u32>>,
        needs: Vec<Vec<(DeviceId, EdgeKind)>>,
    ) -> Graph {
        build::of_existing(decls, nodes, needs)
    }

    /// Returns the number of devices, rejected ones included.
    pub fn len(&self) -> usize {
        self.decls.len()
    }

    /// Returns true if there is no device.
    pub fn is_empty(&self) -> bool {
        self.decls.is_empty()
    }

    /// Returns all devices in registration order.
    pub(crate) fn ids(
        &self,
    ) -> impl DoubleEndedIterator<Item = DeviceId> + ExactSizeIterator + use<> {
        (0..self.decls.len()).map(DeviceId::new)
    }

    /// Returns the device of that name.
    pub fn find(&self, name: &str) -> Option<DeviceId> {
        self.by_name.get_or_init(|| build::by_name(&self.decls)).get(name).copied()
    }

    /// Returns the declaration of a device.
    ///
    /// # Panics
    ///
    /// This and the other lookups panic if `id` came from a larger graph.
    pub fn decl(&self, id: DeviceId) -> &Arc<DeviceDecl> {
        &self.decls[id.index()]
    }

    /// Returns the name of a device.
    pub fn name(&self, id: DeviceId) -> &str {
        &self.decls[id.index()].name
    }

    /// Returns the NUMA node near which the device is: its own, else that of the closest ancestor
    /// that has one.
    pub fn node(&self, id: DeviceId) -> Option<u32> {
        self.nodes[id.index()]
    }

    /// Returns true for a device at fault: it is never probed, and those that need it are skipped.
    pub(crate) fn is_rejected(&self, id: DeviceId) -> bool {
        self.rejected[id.index()]
    }

    /// Returns what the device needs: its parent and suppliers, each once.
    pub fn needs(&self, id: DeviceId) -> &[DeviceId] {
        self.needs.of(id)
    }

    /// Returns the devices that need this one: its children and consumers, each once.
    pub(crate) fn feeds(&self, id: DeviceId) -> &[DeviceId] {
        self.feeds.of(id)
    }

    /// Returns the base order: registration order, except that a device registered before something
    /// that it needs is moved behind it. Among devices that may come next the one registered first
    /// does, so an order that needs no change has none.
    ///
    /// The reverse is the order of a serial shutdown.
    pub fn order(&self) -> &[DeviceId] {
        &self.order
    }

    /// Returns the position of a device in [`Graph::order`].
    pub(crate) fn rank(&self, id: DeviceId) -> u32 {
        self.rank[id.index()]
    }

    /// Returns the groups of devices that needed one another in a circle, each in registration
    /// order. In each group, the links of a device to later registered ones are left out, here and
    /// everywhere in the graph. The rest can then be ordered.
    ///
    /// Only devices that are up can be linked into a circle; see
    /// [`DeviceManager::link`](crate::DeviceManager::link).
    pub(crate) fn cycles(&self) -> &[Vec<DeviceId>] {
        &self.cycles
    }

    /// Returns every edge: a device, one that it needs, and the edge's kind.
    pub(crate) fn edges(&self) -> impl Iterator<Item = (DeviceId, DeviceId, EdgeKind)> + '_ {
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

/// A declaration as a key, which its name finds.
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
