//! Sets up a [`Workqueue`].

use std::sync::Arc;

use corewise_topology::{AffinityScope, CpuSet};

use crate::attributes::{Attributes, HIGH_PRIORITY, PoolKey, QueueKind};
use crate::error::BuildError;
use crate::pools::WorkerPools;
use crate::pools::nodes;
use crate::pwq::limit::CountedBy;
use crate::pwq::queue_core::{QueueCore, Traits};
use crate::pwq::table::PwqTable;
use crate::queue::Workqueue;

/// Sets up a [`Workqueue`].
///
/// | what | default |
/// |---|---|
/// | kind | unbound: work runs in the pod that it was queued on |
/// | [`scope`](Self::scope) | [`AffinityScope::CacheShard`] |
/// | [`strict`](Self::strict) | no: an idle pod takes work over from a saturated one |
/// | [`cpus`](Self::cpus) | whatever the machine has for general work, now and later |
/// | [`nice`](Self::nice) | 0 |
/// | [`max_active`](Self::max_active) | 0: no limit of the queue's own; its pools run one item a CPU at once, or what the [CPU quota](crate::PoolsBuilder::concurrency) gives |
/// | [`freezable`](Self::freezable) | no |
/// | [`power_efficient`](Self::power_efficient) | no |
/// | [`cpu_intensive`](Self::cpu_intensive) | no: items that turn out to be are found |
/// | [`rescuer`](Self::rescuer) | no |
/// | [`timed`](Self::timed) | no |
/// | [`lowest`](Self::lowest) | no |
///
/// A queue is unbound unless it is made [`ordered`](Self::ordered), [`bound`](Self::bound) or
/// [`bottom_half`](Self::bottom_half). What doesn't go together is refused by
/// [`build`](Self::build).
#[derive(Debug, Clone)]
pub struct QueueBuilder {
    name: String,
    kinds: Vec<QueueKind>,
    scope: Option<AffinityScope>,
    strict: Option<bool>,
    cpus: Option<CpuSet>,
    nice: i32,
    max_active: usize,
    freezable: bool,
    power_efficient: bool,
    cpu_intensive: bool,
    rescuer: bool,
    timed: bool,
    is_below: bool,
}

impl QueueBuilder {
    pub(crate) fn new(name: String) -> Self {
        QueueBuilder {
            name,
            kinds: Vec::new(),
            scope: None,
            strict: None,
            cpus: None,
            nice: 0,
            max_active: 0,
            freezable: false,
            power_efficient: false,
            cpu_intensive: false,
            rescuer: false,
            timed: false,
            is_below: false,
        }
    }

    /// For a queue that is made for a layer whose work others wait for, and for nothing else: it is its own queue
    /// [`below`](Workqueue::below), and takes work also while it is drained. Not for use with
    /// [`max_active`](Self::max_active), [`ordered`](Self::ordered) or [`freezable`](Self::freezable), which
    /// would hold up what is waited for. Default: no.
    pub fn lowest(mut self) -> Self {
        self.is_below = true;
        self
    }

    pub(crate) fn without_rescuer(self) -> Self {
        QueueBuilder { rescuer: false, ..self }
    }

    /// The queue below one with these attributes: see [`Workqueue::below`].
    pub(crate) fn below(above: &QueueCore, attributes: Attributes) -> Self {
        let per_cpu = above.kind.per_cpu();
        let Attributes { scope, strict, cpus, nice, .. } = attributes;
        QueueBuilder {
            kinds: if per_cpu { vec![above.kind] } else { Vec::new() },
            // A queue of its kind has these by itself, and takes no others.
            scope: (!per_cpu).then_some(scope),
            strict: (!per_cpu).then_some(strict),
            cpus,
            nice,
            cpu_intensive: above.cpu_intensive,
            rescuer: above.rescuer.is_some(),
            timed: above.timed,
            is_below: true,
            ..QueueBuilder::new(format!("{}/below", above.name))
        }
    }

    /// What a pod is for this queue. Default: [`AffinityScope::CacheShard`].
    pub fn scope(mut self, scope: AffinityScope) -> Self {
        self.scope = Some(scope);
        self
    }

    /// Strict: work never leaves the pod it was queued on. Default: soft, it may be taken over by
    /// an idle pod while its own is saturated.
    pub fn strict(mut self, strict: bool) -> Self {
        self.strict = Some(strict);
        self
    }

    /// The CPUs that its workers may use; those that are offline count once they come. Default: the
    /// machine's housekeeping CPUs (online, allowed and not isolated), also as they change.
    pub fn cpus(mut self, cpus: CpuSet) -> Self {
        self.cpus = Some(cpus);
        self
    }

    /// The niceness of its workers' threads: see [`Attributes::nice`]. Queues of another niceness
    /// have other pools. Default: 0.
    pub fn nice(mut self, nice: i32) -> Self {
        self.nice = nice;
        self
    }

    /// High priority: [`nice`](Self::nice) of -20, the kernel's `WQ_HIGHPRI`. Its pools are its
    /// own, and don't interact with those of other priorities.
    pub fn high_priority(self) -> Self {
        self.nice(HIGH_PRIORITY)
    }

    /// How many instances may be active at once: let through to a pool and not over. The others
    /// are held back, in order. At most 2048; 0 is no limit. Default: 0.
    ///
    /// For a bound queue it holds for each CPU. For an unbound one it holds for the machine, and is
    /// divided among the NUMA nodes by the CPUs that the queue may use there, rounded up, with at
    /// least 8 (or all of it) for each: however many pods a node is divided into, they share one
    /// limit. The kernel's rule (`WQ_UNBOUND` and `max_active`); but its default is 1024, since its
    /// pools have no limit of their own.
    pub fn max_active(mut self, max_active: usize) -> Self {
        self.max_active = max_active;
        self
    }

    /// Ordered: one instance at a time, in the order in which they were queued, wherever that was.
    /// Each runs in the pod that it was queued on. It isn't for use with `max_active`.
    pub fn ordered(mut self) -> Self {
        self.kinds.push(QueueKind::Ordered);
        self
    }

    /// Bound: work runs on the CPU that queues it, as the kernel's `WQ_PERCPU`. The scope is that of
    /// a CPU, strictly, and can't be changed. While its CPU is offline, work for it runs anywhere.
    pub fn bound(mut self) -> Self {
        self.kinds.push(QueueKind::Bound);
        self
    }

    /// Bottom half: as bound, with one worker a CPU that runs one item after the other, in order,
    /// each in an atomic section: items must not block, and that is reported where they do. The
    /// kernel's `WQ_BH`. Of the other options it takes [`high_priority`](Self::high_priority) only.
    pub fn bottom_half(mut self) -> Self {
        self.kinds.push(QueueKind::BottomHalf);
        self
    }

    /// Whether [`WorkerPools::freeze`] holds its work back. Default: no.
    pub fn freezable(mut self) -> Self {
        self.freezable = true;
        self
    }

    /// A bound queue becomes an unbound one where
    /// [`PoolsBuilder::power_efficient`](crate::PoolsBuilder::power_efficient) is on: idle CPUs then
    /// stay asleep. On an unbound queue it changes nothing. Default: no.
    pub fn power_efficient(mut self) -> Self {
        self.power_efficient = true;
        self
    }

    /// Says that its items compute for long: they aren't counted for the cores that they take, so
    /// that they hold back no other work of the pod; the scheduler shares the cores among them. Each
    /// needs a thread while it runs, up to
    /// [`PoolsBuilder::max_workers`](crate::PoolsBuilder::max_workers). Default: no; items that turn
    /// out to compute for long are found, see
    /// [`PoolsBuilder::cpu_intensive_after`](crate::PoolsBuilder::cpu_intensive_after).
    pub fn cpu_intensive(mut self) -> Self {
        self.cpu_intensive = true;
        self
    }

    /// Whether it is counted how long its items run ([`QueueStats::run_time`]): two readings of the
    /// clock an item. Default: no.
    ///
    /// [`QueueStats::run_time`]: crate::QueueStats::run_time
    pub fn timed(mut self, timed: bool) -> Self {
        self.timed = timed;
        self
    }

    /// Gives the queue a rescuer: a thread of its own (`cw-r-` and the queue's name), made by
    /// [`build`](Self::build), that sleeps until the queue's work finds no worker and no thread can
    /// be made for one, for 10 ms. Then it runs that work itself, on any CPU, until the pool has a
    /// worker again; so the queue always makes progress, as the kernel's `WQ_MEM_RECLAIM`. For work
    /// that other work waits for. Default: no.
    pub fn rescuer(mut self) -> Self {
        self.rescuer = true;
        self
    }

    /// Builds the queue; starts a worker for each pod where the pools for these attributes are new.
    /// May block.
    ///
    /// # Errors
    /// [`BuildError::Conflict`] where two options don't go together, [`BuildError::NoCpus`] where
    /// the machine has none of the CPUs, [`BuildError::Threads`] where the system gives no
    /// thread, [`BuildError::ShutDown`] after [`WorkerPools::shutdown`].
    pub fn build(self, pools: &WorkerPools) -> Result<Workqueue, BuildError> {
        let kind = self.kind(pools)?;
        let mut attributes = Attributes {
            scope: self.scope.unwrap_or_default(),
            strict: self.strict.unwrap_or(false),
            cpus: self.cpus,
            nice: self.nice,
            max_active: self.max_active,
        };
        if kind.per_cpu() {
            attributes.scope = AffinityScope::Cpu;
            attributes.strict = true;
        }
        let lease = pools.lease(&self.name, PoolKey::of(kind, &attributes))?;
        let counted_by = match kind {
            QueueKind::Unbound => (CountedBy::Node, nodes(pools.machine().topology())),
            QueueKind::Ordered => (CountedBy::Queue, 1),
            QueueKind::Bound | QueueKind::BottomHalf => (CountedBy::Pool, lease.group.pools.len()),
        };
        let rescuer = match self.rescuer.then(|| pools.rescuer(&self.name)).transpose() {
            Ok(rescuer) => rescuer,
            Err(error) => {
                return Err(BuildError::Threads { queue: self.name, reason: error.to_string() });
            }
        };
        let Self { freezable, cpu_intensive, timed, is_below, .. } = self;
        let traits = Traits { kind, freezable, cpu_intensive, timed, is_below, rescuer };
        let shared = QueueCore::new(self.name, pools, traits, counted_by);
        shared.set_max_active(attributes.max_active, attributes.cpus.as_ref());
        let table = PwqTable::new(&shared, pools, &lease);
        pools.register(Arc::clone(&shared) as _);
        shared.warn_of_cut(attributes.max_active);
        Ok(Workqueue::new(shared, attributes, table))
    }

    /// What it is to be, where that is possible.
    fn kind(&self, pools: &WorkerPools) -> Result<QueueKind, BuildError> {
        let conflict = |asked: &'static str, with: &'static str| {
            Err(BuildError::Conflict { queue: self.name.clone(), asked, with })
        };
        let mut kind = QueueKind::Unbound;
        for &asked in &self.kinds {
            if kind != QueueKind::Unbound && kind != asked {
                return conflict(asked.name(), kind.name());
            }
            kind = asked;
        }
        if self.power_efficient && kind == QueueKind::Bound && pools.is_power_efficient() {
            kind = QueueKind::Unbound;
        }
        if self.is_below {
            let others = [
                (self.max_active != 0, "max_active"),
                (kind == QueueKind::Ordered, kind.name()),
                (self.freezable, "freezable"),
            ];
            if let Some((_, with)) = others.into_iter().find(|(asked, _)| *asked) {
                return conflict("lowest", with);
            }
        }
        if self.max_active > 1 && kind == QueueKind::Ordered {
            return conflict("max_active", kind.name());
        }
        if kind.per_cpu() && !(self.power_efficient && kind == QueueKind::Bound) {
            if self.scope.is_some_and(|scope| scope != AffinityScope::Cpu) {
                return conflict("scope", kind.name());
            }
            if self.strict == Some(false) {
                return conflict("strict(false)", kind.name());
            }
        }
        if kind == QueueKind::BottomHalf {
            let nice = self.nice != 0 && self.nice != HIGH_PRIORITY;
            let others = [
                (self.max_active != 0, "max_active"),
                (nice, "nice"),
                (self.freezable, "freezable"),
                (self.power_efficient, "power_efficient"),
                (self.cpus.is_some(), "cpus"),
                (self.cpu_intensive, "cpu_intensive"),
                (self.rescuer, "rescuer"),
            ];
            if let Some((_, asked)) = others.into_iter().find(|(asked, _)| *asked) {
                return conflict(asked, kind.name());
            }
        }
        Ok(kind)
    }
}
