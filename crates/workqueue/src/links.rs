//! The table of a queue's links: which of its pools the work of a CPU, or of a node, goes to.
//!
//! A table never changes. When the attributes do, the queue gets another one; who reads the old one
//! at that moment may still queue by it, since a link keeps its pool open.

use std::sync::Arc;

use corewise_sync::CachePadded;
use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_topology::Topology;

use crate::cpu::current_cpu;
use crate::groups::Lease;
use crate::link::{Link, Shared};
use crate::pools::WorkerPools;

/// Where an instance is asked to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the pod of the CPU that queues it.
    Here,
    /// As `Here`, for the CPU that queued it some time ago.
    From(u32),
    /// In the pod of this CPU.
    Cpu(u32),
    /// In a pod of this node; `None`: as `Here`.
    Node(Option<u32>),
}

/// The links of a queue with one set of attributes.
pub(crate) struct Links {
    /// I: one a pool, in the order of the pods.
    links: Box<[Arc<Link>]>,
    /// I: the link of each CPU, by number, online or not; `None` where the queue has none there.
    by_cpu: Box<[Option<usize>]>,
    /// I: the links of each node, by number.
    by_node: Box<[NodeLinks]>,
    /// A: where work goes whose CPU says nothing; a hint, so Relaxed. On a line of its own: everybody
    /// who queues reads the other fields.
    rotor: CachePadded<AtomicUsize>,
    /// I: work is for the CPU that queues it, whatever that is for.
    bound: bool,
}

#[derive(Default)]
struct NodeLinks {
    links: Vec<usize>,
    /// A: rotates the start, so that remote work doesn't pile up on the node's first pod. A hint.
    next: CachePadded<AtomicUsize>,
}

impl Links {
    /// Joins a queue with the pools of a lease.
    pub(crate) fn new(shared: &Arc<Shared>, pools: &WorkerPools, lease: &Arc<Lease>) -> Links {
        let topology = pools.machine().topology();
        let group = &lease.group;
        let mut by_cpu = vec![None; topology.cpu_set().last().map_or(0, |last| last as usize + 1)];
        let mut by_node: Vec<NodeLinks> = Vec::new();
        by_node.resize_with(nodes(topology), NodeLinks::default);
        for (index, pool) in group.pools.iter().enumerate() {
            let pod = &pools.pods().scope(group.scope)[pool.spec.pod as usize];
            for cpu in pod.cpus.iter() {
                by_cpu[cpu as usize] = Some(index);
            }
            for node in topology.nodes() {
                if node.cpus.intersects(&pool.spec.cpus) {
                    by_node[node.node as usize].links.push(index);
                }
            }
        }
        Links {
            links: (0..group.pools.len()).map(|pool| Link::new(shared, lease, pool)).collect(),
            by_cpu: by_cpu.into(),
            by_node: by_node.into(),
            rotor: CachePadded::new(AtomicUsize::new(0)),
            bound: shared.kind.per_cpu(),
        }
    }

    /// The link for work that is asked to run at `place`.
    #[inline]
    pub(crate) fn at(&self, place: Place) -> &Arc<Link> {
        &self.links[match place {
            Place::Here => self.here(),
            Place::From(cpu) => self.from(cpu),
            Place::Cpu(cpu) => self.of_cpu(cpu),
            Place::Node(node) => self.of_node(node),
        }]
    }

    fn here(&self) -> usize {
        current_cpu().map_or_else(|| self.any(), |cpu| self.from(cpu))
    }

    /// The link of the CPU that queues. Where none of its pod's CPUs is for this work (it queues from
    /// isolated ones), each that has some in turn: the kernel's `wq_select_unbound_cpu`.
    fn from(&self, cpu: u32) -> usize {
        let own = self.by_cpu.get(cpu as usize).copied().flatten();
        let own = own.filter(|&link| self.bound || !self.away(link));
        own.unwrap_or_else(|| self.any())
    }

    fn of_cpu(&self, cpu: u32) -> usize {
        self.by_cpu.get(cpu as usize).copied().flatten().unwrap_or_else(|| self.any())
    }

    fn of_node(&self, node: Option<u32>) -> usize {
        let Some(on_node) = node.and_then(|n| self.by_node.get(n as usize)) else {
            return self.here();
        };
        match &on_node.links[..] {
            [] => self.here(),
            [only] if !self.away(*only) => *only,
            several => {
                let here = self.here();
                if several.contains(&here) {
                    return here;
                }
                self.in_turn(&on_node.next, several.len(), |n| several[n]).unwrap_or(here)
            }
        }
    }

    /// Each link in turn whose pod has a CPU that can be used; each, where none has.
    fn any(&self) -> usize {
        let (rotor, links) = (&self.rotor, self.links.len());
        let found = self.in_turn(rotor, links, |n| n);
        found.unwrap_or_else(|| rotor.load(Ordering::Relaxed) % links)
    }

    /// The next of so many links whose pod has a CPU that can be used.
    fn in_turn(
        &self,
        rotor: &AtomicUsize,
        n: usize,
        link: impl Fn(usize) -> usize,
    ) -> Option<usize> {
        (0..n)
            .map(|_| link(rotor.fetch_add(1, Ordering::Relaxed) % n))
            .find(|&link| !self.away(link))
    }

    /// Whether no CPU of a link's pod can be used (a moment ago).
    fn away(&self, link: usize) -> bool {
        let link = &self.links[link];
        link.group.pools[link.pool].reading().away()
    }
}

/// One more than the highest number of a node.
pub(crate) fn nodes(topology: &Topology) -> usize {
    topology.nodes().iter().map(|node| node.node as usize + 1).max().unwrap_or(0)
}
