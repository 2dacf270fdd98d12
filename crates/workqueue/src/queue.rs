//! The workqueue: where work is handed in.

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_topology::{AffinityScope, CpuSet};

use crate::cpu::current_cpu;
use crate::error::BuildError;
use crate::item::{Header, Item, Job, Queued};
use crate::link::{Link, Shared, Ticket};
use crate::pool::group::Group;
use crate::pools::{Attributes, WorkerPools};
use crate::stats::QueueStats;
use crate::task::{JoinHandle, Task};
use crate::work::Work;

/// An unbound workqueue: work runs on the pool of the pod it was queued from, as soon as a worker
/// there is free, and, unless the queue is strict, on another pod's where its own is saturated.
///
/// A cheap handle: clones are the same queue. Dropping it leaves queued work to run.
#[derive(Clone)]
pub struct Workqueue {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    group: Arc<Group>,
    /// I: one a pool.
    links: Box<[Arc<Link>]>,
    /// I: the pool of each CPU, by number; `None` where the queue has none there.
    by_cpu: Box<[Option<usize>]>,
    /// I: the pools of each node, by number.
    by_node: Box<[NodePools]>,
    /// A: where work goes whose CPU says nothing; a hint, so Relaxed.
    rotor: AtomicUsize,
    /// Keeps the pools open for as long as the queue can be queued on.
    _pools: WorkerPools,
}

#[derive(Default)]
struct NodePools {
    pools: Vec<usize>,
    /// A: rotates the start, so that remote work doesn't pile up on the node's first pod. A hint.
    next: AtomicUsize,
}

/// Sets up a [`Workqueue`].
#[derive(Debug, Clone)]
pub struct QueueBuilder {
    name: String,
    scope: AffinityScope,
    strict: bool,
    cpus: Option<CpuSet>,
}

impl QueueBuilder {
    /// What a pod is for this queue. Default: [`AffinityScope::CacheShard`].
    pub fn scope(mut self, scope: AffinityScope) -> Self {
        self.scope = scope;
        self
    }

    /// Strict: work never leaves the pod it was queued on. Default: soft, it may be taken over by
    /// an idle pod while its own is saturated.
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = strict;
        self
    }

    /// The CPUs that its workers may use. Default: the machine's housekeeping CPUs (online, allowed
    /// and not isolated).
    pub fn cpus(mut self, cpus: CpuSet) -> Self {
        self.cpus = Some(cpus);
        self
    }

    /// Builds the queue; starts a worker for each pod where the pools for these attributes are new.
    /// May block.
    ///
    /// # Errors
    /// [`BuildError::NoCpus`] where none of the CPUs is online, [`BuildError::Threads`] where the
    /// system gives no thread, [`BuildError::ShutDown`] after [`WorkerPools::shutdown`].
    pub fn build(self, pools: &WorkerPools) -> Result<Workqueue, BuildError> {
        let machine = pools.machine();
        let cpus = self.cpus.unwrap_or_else(|| machine.housekeeping());
        let attributes = Attributes { scope: self.scope, strict: self.strict, cpus };
        let group = pools.group(&self.name, attributes)?;
        let topology = machine.topology();

        let mut by_cpu = vec![None; topology.cpu_set().last().map_or(0, |last| last as usize + 1)];
        let mut by_node: Vec<NodePools> = Vec::new();
        by_node.resize_with(
            topology.nodes().iter().map(|n| n.node as usize + 1).max().unwrap_or(0),
            NodePools::default,
        );
        for (index, pool) in group.pools.iter().enumerate() {
            let pod = &pools.pods().scope(self.scope)[pool.spec.pod as usize];
            for cpu in pod.cpus.iter() {
                by_cpu[cpu as usize] = Some(index);
            }
            for (node, on_node) in by_node.iter_mut().enumerate() {
                let near = topology
                    .node(u32::try_from(node).unwrap_or(u32::MAX))
                    .is_some_and(|n| n.cpus.intersects(&pool.spec.cpus));
                if near {
                    on_node.pools.push(index);
                }
            }
        }
        let shared = pools.new_queue(self.name);
        let links = (0..group.pools.len()).map(|pool| Link::new(&shared, &group, pool)).collect();
        Ok(Workqueue {
            inner: Arc::new(Inner {
                shared,
                group,
                links,
                by_cpu: by_cpu.into(),
                by_node: by_node.into(),
                rotor: AtomicUsize::new(0),
                _pools: pools.clone(),
            }),
        })
    }
}

impl Workqueue {
    /// A queue to be set up; the name stands in reports.
    pub fn builder(name: impl Into<String>) -> QueueBuilder {
        QueueBuilder {
            name: name.into(),
            scope: AffinityScope::default(),
            strict: false,
            cpus: None,
        }
    }

    /// The queue's name.
    pub fn name(&self) -> &str {
        &self.inner.shared.name
    }

    /// Queues an item on the pod of the CPU that this is called on. False where it was pending
    /// already, or the pools were shut down. What was written before the call, also before one that
    /// returned false because the item was pending, is seen by the run that follows.
    ///
    /// Any context. It waits for no work. It is lock-free where the pod's workers are busy, or one
    /// of them looks for work already; where one has to be woken it holds the pool's lock for some
    /// dozen instructions, a lock that sleeps where two meet. Where the pod has room and no
    /// worker left to wake, as after the system refused a thread, it makes one.
    ///
    /// A call at the same time as a shutdown may return true and have the item cancelled: those who
    /// flush it are told, and it can be queued elsewhere.
    #[track_caller]
    pub fn queue(&self, work: &Work) -> bool {
        self.submit(self.here(), &work.inner, Location::caller())
    }

    /// As [`Workqueue::queue`], on the pod of `cpu`. A CPU that the queue doesn't have: on any pod.
    #[track_caller]
    pub fn queue_on(&self, cpu: u32, work: &Work) -> bool {
        self.submit(self.pool_of_cpu(cpu), &work.inner, Location::caller())
    }

    /// As [`Workqueue::queue`], on a pod of `node`: on the caller's own if that lies there, else on
    /// each in turn. An unknown node, or one without usable CPUs: as `queue`. The kernel's
    /// `queue_work_node`, but for the turn: that one takes the node's first CPU, and with it
    /// always the same shard.
    #[track_caller]
    pub fn queue_node(&self, node: Option<u32>, work: &Work) -> bool {
        self.submit(self.pool_of_node(node), &work.inner, Location::caller())
    }

    /// Runs a closure on the queue: as [`Workqueue::queue`], with one allocation. After
    /// [`WorkerPools::shutdown`] the closure is dropped, and the handle says that it was cancelled.
    #[track_caller]
    pub fn spawn<T, C>(&self, closure: C) -> JoinHandle<T>
    where
        C: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.spawn_at(self.here(), closure, Location::caller())
    }

    /// As [`Workqueue::spawn`], on the pod of `cpu`; see [`Workqueue::queue_on`].
    #[track_caller]
    pub fn spawn_on<T, C>(&self, cpu: u32, closure: C) -> JoinHandle<T>
    where
        C: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.spawn_at(self.pool_of_cpu(cpu), closure, Location::caller())
    }

    /// As [`Workqueue::spawn`], on a pod of `node`; see [`Workqueue::queue_node`].
    #[track_caller]
    pub fn spawn_node<T, C>(&self, node: Option<u32>, closure: C) -> JoinHandle<T>
    where
        C: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.spawn_at(self.pool_of_node(node), closure, Location::caller())
    }

    /// Waits for everything that was queued before the call, and not for what is queued later. May
    /// block; on a worker the pool starts other work meanwhile. Called from an item of the same
    /// queue it never returns: it waits for its own item.
    ///
    /// An item that another thread is about to queue (its call hasn't returned, although the item
    /// is pending) may count as queued later; [`Work::flush`] waits for that one too.
    #[track_caller]
    pub fn flush(&self) {
        self.inner.shared.colours.flush();
    }

    /// What the queue has done so far.
    pub fn stats(&self) -> QueueStats {
        QueueStats::of(&self.inner.shared)
    }

    fn spawn_at<T, C>(
        &self,
        pool: usize,
        closure: C,
        site: &'static Location<'static>,
    ) -> JoinHandle<T>
    where
        C: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let (task, handle) = Task::new(closure);
        if !self.submit(pool, &task, site) {
            // Fresh, so it wasn't pending: the pools are closed.
            task.cancelled();
        }
        handle
    }

    pub(crate) fn submit<I: Item + 'static>(
        &self,
        pool: usize,
        item: &Arc<I>,
        site: &'static Location<'static>,
    ) -> bool {
        self.submit_with(pool, item.header(), || Arc::clone(item) as Arc<dyn Item>, site)
    }

    /// Queues the item that `item` gives, whose header is `header`.
    pub(crate) fn submit_with(
        &self,
        pool: usize,
        header: &Header,
        item: impl FnOnce() -> Arc<dyn Item>,
        site: &'static Location<'static>,
    ) -> bool {
        let link = &self.inner.links[pool];
        if link.group.pools[link.pool].reading().closed() || !header.state.pend() {
            return false;
        }
        let job = Job { item: item(), ticket: Some(Ticket::new(link)), site };
        // SAFETY: `pend` succeeded: the bit is ours, and `Queued` takes it over.
        let queued = unsafe { Queued::new(job) };
        link.group.push(link.pool, queued);
        true
    }

    /// Whether it takes no more work (a moment ago).
    pub(crate) fn is_closed(&self, pool: usize) -> bool {
        {
            let link = &self.inner.links[pool];
            link.group.pools[link.pool].reading().closed()
        }
    }

    /// The pool of the CPU that this runs on.
    pub(crate) fn here(&self) -> usize {
        current_cpu().map_or_else(|| self.any(), |cpu| self.pool_of_cpu(cpu))
    }

    pub(crate) fn pool_of_cpu(&self, cpu: u32) -> usize {
        self.inner.by_cpu.get(cpu as usize).copied().flatten().unwrap_or_else(|| self.any())
    }

    pub(crate) fn pool_of_node(&self, node: Option<u32>) -> usize {
        let Some(on_node) = node.and_then(|n| self.inner.by_node.get(n as usize)) else {
            return self.here();
        };
        match &on_node.pools[..] {
            [] => self.here(),
            [only] => *only,
            several => {
                let here = self.here();
                if several.contains(&here) {
                    return here;
                }
                several[on_node.next.fetch_add(1, Ordering::Relaxed) % several.len()]
            }
        }
    }

    /// Each pool in turn.
    fn any(&self) -> usize {
        self.inner.rotor.fetch_add(1, Ordering::Relaxed) % self.inner.group.pools.len()
    }
}

impl fmt::Debug for Workqueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workqueue")
            .field("name", &self.inner.shared.name)
            .field("scope", &self.inner.group.scope)
            .field("soft", &self.inner.group.soft)
            .field("stats", &self.stats())
            .finish()
    }
}
