//! Attributes of queues, and the key that says which queues share their pools.

use std::fmt;

use corewise_topology::{AffinityScope, CpuId, CpuSet, current_cpu};

/// The lowest niceness, which goes first: the kernel's `HIGHPRI_NICE_LEVEL`.
const MIN_NICE: i32 = -20;
/// The most that `max_active` may be: the kernel's `WQ_MAX_ACTIVE`. More is cut to it, with a
/// warning.
pub(crate) const MAX_ACTIVE_LIMIT: usize = 2048;

/// The attributes of an unbound queue that can change while work flows; see
/// [`Workqueue::set_attributes`](crate::Workqueue::set_attributes). The defaults are those of
/// [`QueueBuilder`](crate::QueueBuilder).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Attributes {
    /// The scope of a pod. Default: [`AffinityScope::CacheShard`].
    pub scope: AffinityScope,
    /// True if work never leaves the pod that it was queued on. Default: false. If the pod is
    /// saturated then, an idle pod may take its work over.
    pub strict: bool,
    /// The CPUs that its workers may use; those of them that are offline or isolated count once
    /// they can be used. Default: `None`, whatever the machine has for general work
    /// ([`Machine::housekeeping`](corewise_topology::Machine::housekeeping)).
    pub cpus: Option<CpuSet>,
    /// The niceness of its workers' threads, from -20 (goes first) to 19; what lies outside is cut
    /// to that. Less than 0 needs a privilege (`CAP_SYS_NICE`, or `RLIMIT_NICE`); without it the
    /// workers keep that of the thread that made them, and that is logged once. Default: 0, which
    /// stands for the niceness of the thread that made the [`WorkerPools`](crate::WorkerPools).
    pub nice: i32,
    /// Maximum of active instances of the queue. A value above 2048 is cut to 2048, and 0 is no
    /// limit. See [`QueueBuilder::max_active`](crate::QueueBuilder::max_active). Default: 0.
    pub max_active: usize,
}

impl Attributes {
    /// Returns the attributes with each value cut to its range.
    pub(crate) fn in_range(self) -> Attributes {
        Attributes {
            nice: self.nice.clamp(MIN_NICE, 19),
            max_active: self.max_active.min(MAX_ACTIVE_LIMIT),
            ..self
        }
    }
}

/// The kind of a queue, fixed for its whole life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum QueueKind {
    /// Its work runs in the pod that it was queued on, as soon as a worker there is free.
    #[default]
    Unbound,
    /// Unbound, and one instance at a time, in the order in which they were queued, wherever that
    /// was. Each runs in the pod that it was queued on. It takes no
    /// [`max_active`](crate::QueueBuilder::max_active) above 1.
    Ordered,
    /// Its work runs on the CPU that queued it, as the kernel's `WQ_PERCPU`. Its scope is that of a
    /// CPU, strictly, and can't be changed. While its CPU is offline, work for it runs anywhere.
    Bound,
}

impl QueueKind {
    /// Returns the kind's name in reports and messages.
    pub const fn name(self) -> &'static str {
        match self {
            QueueKind::Unbound => "unbound",
            QueueKind::Ordered => "ordered",
            QueueKind::Bound => "bound",
        }
    }

    /// Returns true if the scope of such queues is always the CPU.
    pub(crate) fn per_cpu(self) -> bool {
        matches!(self, QueueKind::Bound)
    }

    /// Returns the highest `max_active` that such a queue may have.
    pub(crate) fn most_active(self) -> usize {
        match self {
            QueueKind::Ordered => 1,
            QueueKind::Unbound | QueueKind::Bound => usize::MAX,
        }
    }
}

impl fmt::Display for QueueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The attributes by which queues share pools. The others don't interact.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PoolKey {
    /// The kind that the pools serve. Ordered queues use the pools of unbound ones.
    pub(crate) kind: QueueKind,
    pub(crate) scope: AffinityScope,
    pub(crate) strict: bool,
    pub(crate) cpus: Option<CpuSet>,
    pub(crate) nice: i32,
}

impl PoolKey {
    /// Returns the key of the pools that a queue of this kind with these attributes uses.
    pub(crate) fn of(kind: QueueKind, attributes: &Attributes) -> PoolKey {
        PoolKey {
            kind: if kind.per_cpu() { kind } else { QueueKind::Unbound },
            scope: attributes.scope,
            strict: attributes.strict,
            cpus: attributes.cpus.clone(),
            nice: attributes.nice,
        }
    }
}

/// The place where work is asked to run: the argument of [`Workqueue::at`](crate::Workqueue::at).
/// If the queue has no pod there, work goes to any pod that it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum At {
    /// The pod of the CPU that queues the work.
    Here,
    /// The pod of this CPU, even if the pod has no share of a CPU quota.
    Cpu(CpuId),
    /// The pod of this CPU, for a thread that is on it. If the pod has no share of a CPU quota, the
    /// work goes elsewhere.
    Near(CpuId),
    /// A pod of this node: the caller's own if that lies there, else each in turn. (The kernel's
    /// `queue_work_node` takes the node's first CPU, and with it always the same shard.) A node
    /// without usable CPUs counts as `Here`.
    Node(u32),
}

impl At {
    /// Replaces `Here` by the CPU that the caller is on now, for work that comes later.
    pub(crate) fn settled(self) -> At {
        match self {
            At::Here => current_cpu().map_or(At::Here, At::Near),
            at => at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_priorities_and_cpus_have_pools_of_their_own_and_max_active_does_not() {
        let plain = Attributes::default();
        let key = |attributes: &Attributes| PoolKey::of(QueueKind::Unbound, attributes);
        let other = |edit: fn(&mut Attributes)| {
            let mut attributes = Attributes::default();
            edit(&mut attributes);
            key(&attributes)
        };
        assert_eq!(key(&plain), other(|a| a.max_active = 7));
        assert_eq!(key(&plain), PoolKey::of(QueueKind::Ordered, &plain));
        assert_ne!(key(&plain), PoolKey::of(QueueKind::Bound, &plain));
        assert_ne!(key(&plain), other(|a| a.nice = MIN_NICE));
        assert_ne!(key(&plain), other(|a| a.cpus = Some(CpuSet::full(1))));
    }
}
