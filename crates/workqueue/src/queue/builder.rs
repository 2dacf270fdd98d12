//! Sets up a [`Workqueue`].

use std::sync::Arc;

use corewise_sync::text;
use corewise_topology::{AffinityScope, CpuSet};

use crate::attributes::{Attributes, PoolKey, QueueKind};
use crate::error::BuildError;
use crate::pools::{WorkerPools, nodes};
use crate::pwq::limit::CountedBy;
use crate::pwq::queue_core::{QueueCore, Traits};
use crate::pwq::table::{Plan, PwqTable};
use crate::queue::Workqueue;

/// Sets up a [`Workqueue`].
///
/// | what | default |
/// |---|---|
/// | [`kind`](Self::kind) | [`QueueKind::Unbound`]: work runs in the pod that it was queued on |
/// | [`scope`](Self::scope) | [`AffinityScope::CacheShard`] |
/// | [`strict`](Self::strict) | no: an idle pod takes work over from a saturated one |
/// | [`cpus`](Self::cpus) | whatever the machine has for general work, now and later |
/// | [`nice`](Self::nice) | 0 |
/// | [`max_active`](Self::max_active) | 0: no limit of the queue's own |
/// | [`capacity`](Self::capacity) | no bound for [`try_spawn`](Workqueue::try_spawn) |
/// | [`rescuer`](Self::rescuer) | no |
/// | [`timed`](Self::timed) | no |
/// | [`lowest`](Self::lowest) | no |
///
/// Without a limit of its own, a queue's pools run one item a CPU at once, or as many as the [CPU
/// quota](crate::PoolsBuilder::concurrency) allows. A kind doesn't take every option:
/// [`build`](Self::build) refuses the others, see [`QueueKind`].
#[derive(Debug, Clone)]
#[must_use = "`build` makes the queue"]
pub struct QueueBuilder {
    name: String,
    traits: Traits,
    attributes: Attributes,
    /// True if the caller set the scope.
    scoped: bool,
    pub(super) rescuer: bool,
}

impl QueueBuilder {
    pub(crate) fn new(name: String) -> Self {
        QueueBuilder {
            name: text::bounded_name(name),
            traits: Traits::default(),
            attributes: Attributes::default(),
            scoped: false,
            rescuer: false,
        }
    }

    /// Marks a queue that is only for a layer that others wait for. Such a queue is its own queue
    /// [`below`](Workqueue::below), and takes work even while it is drained. Don't combine it with
    /// [`max_active`](Self::max_active) or [`QueueKind::Ordered`]: either would hold up awaited
    /// work. Default: no.
    pub fn lowest(mut self, lowest: bool) -> Self {
        self.traits.is_below = lowest;
        self
    }

    /// Creates the builder of the queue below one with these attributes: see [`Workqueue::below`].
    pub(crate) fn below(above: &QueueCore, attributes: Attributes) -> Self {
        let per_cpu = above.traits.kind.per_cpu();
        let kind = if per_cpu { above.traits.kind } else { QueueKind::Unbound };
        QueueBuilder {
            traits: Traits { kind, capacity: None, is_below: true, ..above.traits },
            attributes: Attributes { max_active: 0, ..attributes },
            rescuer: above.rescuer.is_some(),
            ..QueueBuilder::new(format!("{}/below", above.name))
        }
    }

    /// Sets the scope of the queue's pods. Default: [`AffinityScope::CacheShard`].
    pub fn scope(mut self, scope: AffinityScope) -> Self {
        (self.attributes.scope, self.scoped) = (scope, true);
        self
    }

    /// Sets whether work never leaves the pod it was queued on. Default: no. An idle pod may then
    /// take over the work of a saturated one.
    pub fn strict(mut self, strict: bool) -> Self {
        self.attributes.strict = strict;
        self
    }

    /// Sets the CPUs that the workers may use. Offline CPUs of the set count once they come online.
    /// Default: the machine's housekeeping CPUs (online, allowed and not isolated), also as they
    /// change.
    pub fn cpus(mut self, cpus: CpuSet) -> Self {
        self.attributes.cpus = Some(cpus);
        self
    }

    /// Sets the niceness of the workers' threads: see [`Attributes::nice`]. Queues of another
    /// niceness have other pools. Default: 0.
    pub fn nice(mut self, nice: i32) -> Self {
        self.attributes.nice = nice;
        self
    }

    /// Sets the maximum of active instances: those that were let through to a pool and are not
    /// over. Further instances are held back, in order. A value above 2048 is cut to 2048, with a
    /// warning; 0 is no limit. Default: 0.
    ///
    /// For a bound queue the maximum holds for each CPU. For an unbound queue it holds for the
    /// machine, and is divided among the NUMA nodes by the CPUs that the queue may use there. Each
    /// share is rounded up, and is at least 8 (or the whole maximum). The pods of a node share one
    /// limit. This is the kernel's rule (`WQ_UNBOUND` and `max_active`), but the kernel's default
    /// is 1024, since its pools have no limit of their own.
    pub fn max_active(mut self, max_active: usize) -> Self {
        self.attributes.max_active = max_active;
        self
    }

    /// Sets how many closures [`Workqueue::try_spawn`] lets in; the capacity binds that function
    /// alone. `spawn`, `execute`, `queue` and the others put any number on the queue, and their
    /// items aren't counted.
    ///
    /// The closures of `try_spawn` count while they wait, for a worker or behind
    /// [`max_active`](Self::max_active), and while they run. `try_spawn` gives further closures
    /// back. Default: no bound.
    pub fn capacity(mut self, capacity: usize) -> Self {
        self.traits.capacity = Some(capacity);
        self
    }

    /// Sets the queue's kind. Default: [`QueueKind::Unbound`].
    pub fn kind(mut self, kind: QueueKind) -> Self {
        self.traits.kind = kind;
        self
    }

    /// Sets whether the queue measures how long its items run ([`QueueStats::run_time`]), which
    /// takes two readings of the clock an item. Default: no.
    ///
    /// [`QueueStats::run_time`]: crate::QueueStats::run_time
    pub fn timed(mut self, timed: bool) -> Self {
        self.traits.timed = timed;
        self
    }

    /// Gives the queue a rescuer: a thread of its own (`cw-r-` and the queue's name), which
    /// [`build`](Self::build) makes. It sleeps until the queue's work has found no worker for 10
    /// ms, and no thread can be made for one. Then it runs that work itself, on any CPU, until the
    /// pool has a worker again. So the queue always makes progress, as with the kernel's
    /// `WQ_MEM_RECLAIM`. Use it for work that other work waits for. Default: no.
    pub fn rescuer(mut self, rescuer: bool) -> Self {
        self.rescuer = rescuer;
        self
    }

    /// Builds the queue; starts a worker for each pod if the pools for these attributes are new.
    /// May block.
    ///
    /// # Errors
    /// [`BuildError::Conflict`] if two options don't go together, [`BuildError::NoCpus`] if
    /// the machine has none of the CPUs, [`BuildError::Threads`] if the system gives no
    /// thread, [`BuildError::ShutDown`] after [`WorkerPools::shutdown`].
    pub fn build(self, pools: &WorkerPools) -> Result<Workqueue, BuildError> {
        let kind = self.checked_kind()?;
        let Self { name, traits, attributes, .. } = self;
        let asked = attributes.max_active;
        let mut attributes = attributes.in_range();
        if kind.per_cpu() {
            (attributes.scope, attributes.strict) = (AffinityScope::Cpu, true);
        }
        let lease = pools.lease(&name, PoolKey::of(kind, &attributes))?;
        let counted_by = match kind {
            QueueKind::Unbound => (CountedBy::Node, nodes(pools.machine().topology())),
            QueueKind::Ordered => (CountedBy::Queue, 1),
            QueueKind::Bound => (CountedBy::Pool, lease.group.pools.len()),
        };
        let rescuer = self.rescuer.then(|| pools.rescuer(&name)).transpose();
        let rescuer = rescuer.map_err(|error| BuildError::threads(&name, &error))?;
        let traits = Traits { kind, ..traits };
        let shared = QueueCore::new(name, pools, traits, attributes.clone(), rescuer, counted_by);
        shared.divide(&attributes);
        let table = PwqTable::new(&shared, Plan::new(pools, &lease));
        pools.register(Arc::clone(&shared) as _);
        shared.warn_of_cut(asked);
        Ok(Workqueue::new(table))
    }

    /// Returns the queue's kind if that allows the other options.
    fn checked_kind(&self) -> Result<QueueKind, BuildError> {
        let Traits { kind, is_below: lowest, .. } = self.traits;
        let Attributes { scope, max_active, .. } = self.attributes;
        let pods = self.scoped && scope != AffinityScope::Cpu;
        let conflicts = [
            (kind.per_cpu() && pods, "scope", kind.name()),
            (max_active > kind.most_active(), "max_active", kind.name()),
            (lowest && kind == QueueKind::Ordered, "lowest", kind.name()),
            (lowest && max_active != 0, "lowest", "max_active"),
        ];
        if let Some((_, asked, with)) = conflicts.into_iter().find(|(conflict, ..)| *conflict) {
            return Err(BuildError::Conflict { queue: self.name.clone(), asked, with });
        }
        Ok(kind)
    }
}
