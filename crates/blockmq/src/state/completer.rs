//! The completion lists of the CPUs: requests that end on another CPU than the one that completed
//! them.

use std::fmt;
use std::sync::Arc;

use corewise_smp::Smp;
use corewise_sync::CachePadded;
use corewise_sync::atomic::{AtomicU64, Ordering};
use corewise_sync::inbox::Inbox;
use corewise_topology::{CpuId, current_cpu};

use crate::state::pending::Pending;

/// Completion lists that make requests end on the CPU that submitted them, or near it. Each CPU has
/// a list, and one call to the CPU ends all requests in it. A program has one `Completer` for all
/// its queues, so that completions of many disks travel together.
///
/// Without a completer, requests end where their driver completes them. A call costs a wake-up of
/// the other CPU's call target if that sleeps. So a completer pays on machines of several caches
/// (and NUMA nodes) if completion functions touch much of their submitter's data.
///
/// (Linux: the per-CPU list `blk_cpu_done` and the softirq behind it.)
///
/// ```
/// use std::sync::Arc;
/// use corewise_blockmq::{Completer, Driver, Queue, RqAffinity};
/// use corewise_smp::{Smp, StartError};
/// use corewise_topology::Machine;
/// use corewise_workqueue::Workqueue;
///
/// fn disk(
///     machine: &Machine,
///     driver: Arc<dyn Driver>,
///     wq: &Workqueue,
/// ) -> Result<Arc<Queue>, StartError> {
///     let completer = Completer::new(&Smp::new(machine)?);
///     Ok(Queue::builder(machine, driver).complete_with(&completer, RqAffinity::Cache).build(wq))
/// }
/// ```
#[derive(Clone)]
pub struct Completer {
    inner: Arc<Inner>,
}

struct Inner {
    /// The lists by CPU number; `None` for numbers that the machine doesn't know.
    lists: Box<[Option<Arc<CompletionList>>]>,
}

/// The list of one CPU.
pub(crate) struct CompletionList {
    cpu: CpuId,
    /// The CPU's last-level cache, if known.
    llc: Option<u32>,
    smp: Smp,
    list: CachePadded<Inbox<Box<Pending>>>,
    /// A: Relaxed counter, as both below. It lies on the CPU's own line, which a thread that counts
    /// here writes anyway.
    sent: AtomicU64,
    /// A: as `sent`.
    calls: AtomicU64,
    /// A: as `sent`.
    refused: AtomicU64,
}

/// Counters of a [`Completer`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CompleterStats {
    /// Requests that were sent to the CPU of their submitter.
    pub sent: u64,
    /// Calls that this took. One call serves all requests that gathered meanwhile.
    pub calls: u64,
    /// Calls that were refused because the CPU had left. The requests in its list ended where they
    /// were completed.
    pub refused: u64,
}

impl Completer {
    /// Creates lists for the CPUs of the machine that `smp` calls.
    pub fn new(smp: &Smp) -> Self {
        let topology = smp.machine().topology();
        let known = topology.cpus();
        let n = known.iter().map(|cpu| cpu.cpu.index() + 1).max().unwrap_or(0);
        let mut lists: Vec<Option<Arc<CompletionList>>> = (0..n).map(|_| None).collect();
        for cpu in known {
            lists[cpu.cpu.index()] = Some(Arc::new(CompletionList {
                cpu: cpu.cpu,
                llc: cpu.llc,
                smp: smp.clone(),
                list: CachePadded::new(Inbox::new()),
                sent: AtomicU64::new(0),
                calls: AtomicU64::new(0),
                refused: AtomicU64::new(0),
            }));
        }
        Self { inner: Arc::new(Inner { lists: lists.into() }) }
    }

    /// Returns the counters over all queues.
    pub fn stats(&self) -> CompleterStats {
        let mut stats = CompleterStats::default();
        for list in self.inner.lists.iter().flatten() {
            stats.sent += list.sent.load(Ordering::Relaxed);
            stats.calls += list.calls.load(Ordering::Relaxed);
            stats.refused += list.refused.load(Ordering::Relaxed);
        }
        stats
    }

    fn list(&self, cpu: CpuId) -> Option<&Arc<CompletionList>> {
        self.inner.lists.get(cpu.index())?.as_ref()
    }

    /// Returns the list on which a request of `submitter` ends that is completed on `here`; `None`
    /// if it ends here.
    fn list_for(
        &self,
        affinity: RqAffinity,
        submitter: CpuId,
        here: Option<CpuId>,
    ) -> Option<&Arc<CompletionList>> {
        let list = self.list(submitter)?;
        let same_cpu = here == Some(submitter);
        let near = here.and_then(|cpu| self.list(cpu)).and_then(|list| list.llc);
        let same_cache = near.is_some() && near == list.llc;
        let case = CompletionCase { affinity, same_cpu, same_cache };
        (end_of(case) == CompleteOn::Submitter).then_some(list)
    }
}

impl fmt::Debug for Completer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completer").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl CompletionList {
    /// Pushes the request, and calls the CPU if the list was empty.
    pub(crate) fn send(self: Arc<Self>, pending: Box<Pending>) {
        self.sent.fetch_add(1, Ordering::Relaxed);
        if !self.list.push(pending) {
            // The thread that made the list non-empty has called, or is about to.
            return;
        }
        self.calls.fetch_add(1, Ordering::Relaxed);
        let drain = Drain(Arc::clone(&self));
        if let Err(refused) = self.smp.detached().call(self.cpu, move || drop(drain)) {
            // The CPU has left: end all requests of its list here.
            self.refused.fetch_add(1, Ordering::Relaxed);
            drop(refused);
        }
    }
}

/// A guard whose drop ends all requests in a CPU's list. The drop happens in the call, or at a
/// refused call, or when the CPU dies before the call has run. So a lost call loses no request.
struct Drain(Arc<CompletionList>);

impl Drop for Drain {
    fn drop(&mut self) {
        for pending in self.0.list.take() {
            pending.complete();
        }
    }
}

/// The rule by which a queue chooses the CPU on which a request ends.
pub(crate) struct Placement {
    pub(crate) completer: Completer,
    pub(crate) affinity: RqAffinity,
}

impl Placement {
    /// Returns the list on which a request of `submitter` ends that is completed here; `None` if it
    /// ends here.
    pub(crate) fn list_for(&self, submitter: CpuId) -> Option<&Arc<CompletionList>> {
        self.completer.list_for(self.affinity, submitter, current_cpu())
    }
}

// Policy: the CPU on which a request ends. Pure functions over plain values.

/// The CPU on which requests end. (Linux: `rq_affinity` 0, 1 and 2.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RqAffinity {
    /// The CPU on which the driver completes the request.
    Anywhere,
    /// A CPU that shares its last-level cache with the submitter's.
    #[default]
    Cache,
    /// The very CPU that submitted the request.
    Cpu,
}

/// The facts that are known when a driver completes a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompletionCase {
    pub(crate) affinity: RqAffinity,
    /// True on the CPU that submitted the request.
    pub(crate) same_cpu: bool,
    /// True on a CPU that shares its last-level cache with that one.
    pub(crate) same_cache: bool,
}

/// The place where a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CompleteOn {
    /// The completing thread, at once.
    ThisCpu,
    /// The submitter's CPU, by a call.
    Submitter,
}

/// Returns where a request ends, as the kernel's `blk_mq_complete_need_ipi` and the checks before
/// it in `blk_mq_complete_request_remote`. Whether the other CPU is online isn't asked here: a CPU
/// that has left refuses the call.
pub(crate) fn end_of(case: CompletionCase) -> CompleteOn {
    let CompletionCase { affinity, same_cpu, same_cache } = case;
    if same_cpu {
        return CompleteOn::ThisCpu;
    }
    match affinity {
        RqAffinity::Anywhere => CompleteOn::ThisCpu,
        RqAffinity::Cache if same_cache => CompleteOn::ThisCpu,
        RqAffinity::Cache | RqAffinity::Cpu => CompleteOn::Submitter,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAR: CompletionCase =
        CompletionCase { affinity: RqAffinity::Cache, same_cpu: false, same_cache: false };

    #[test]
    fn rule_17_a_request_ends_at_its_submitter_where_caches_are_not_shared() {
        assert_eq!(end_of(FAR), CompleteOn::Submitter);
        assert_eq!(end_of(CompletionCase { same_cache: true, ..FAR }), CompleteOn::ThisCpu);
        assert_eq!(
            end_of(CompletionCase { same_cpu: true, same_cache: true, ..FAR }),
            CompleteOn::ThisCpu
        );
    }

    #[test]
    fn rule_17_forced_it_ends_at_its_submitter_also_within_a_cache_and_off_it_ends_where_it_is() {
        let near = CompletionCase { same_cache: true, ..FAR };
        assert_eq!(
            end_of(CompletionCase { affinity: RqAffinity::Cpu, ..near }),
            CompleteOn::Submitter
        );
        assert_eq!(
            end_of(CompletionCase { affinity: RqAffinity::Cpu, same_cpu: true, ..near }),
            CompleteOn::ThisCpu
        );
        assert_eq!(
            end_of(CompletionCase { affinity: RqAffinity::Anywhere, ..FAR }),
            CompleteOn::ThisCpu
        );
    }
}
