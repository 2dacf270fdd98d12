//! Where a probe runs, decided: pure functions over plain values, tested without threads. Rule
//! numbers are those of `docs/rules.md`.

use corewise_sync::context::Placement;
use corewise_topology::CpuId;
use std::collections::BTreeMap;

/// Which path asks for a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// The caller waits for the probe.
    Sync,
    /// Nobody waits.
    Async,
}

/// Where a probe goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Into the calling thread: queue nothing.
    Inline,
    /// Onto the queue, at a CPU near the node.
    Near,
    /// Onto the queue, anywhere.
    Anywhere,
}

/// What is known of the asker.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Asker {
    /// The placement token of the task that asks.
    pub token: Option<Placement>,
    /// Its thread is on a CPU of the wanted node that may be used. It may have moved a moment later:
    /// that costs locality, once, and is cheaper than to hold it there.
    pub on_node: bool,
    /// It may not wait for another worker: see [`too_many_wait`].
    pub must_not_wait: bool,
}

/// Where to run a probe for `node` (rules 1.2.6 to 1.2.13). `usable` says that the node is known and
/// has a CPU that is online and not isolated.
///
/// The two paths differ in their fallback (rule 8): a synchronous probe runs in the caller, an
/// asynchronous one is still queued. Where the caller is counts for the synchronous path only: there
/// it *is* the place where the probe would run. On the asynchronous path it is whatever task
/// released the device, and running inline would put one device's probe after another's for no
/// reason.
pub(crate) fn place(path: Path, node: Option<u32>, usable: bool, asker: Asker) -> Place {
    let placed = node.is_some() && asker.token.and_then(|token| token.node) == node;
    match path {
        Path::Async if usable => Place::Near,
        Path::Async => Place::Anywhere,
        Path::Sync if !usable || placed || asker.on_node || asker.must_not_wait => Place::Inline,
        Path::Sync => Place::Near,
    }
}

/// Whether one more task on a worker must not wait for a probe on another node, where so many do
/// (`waiting`, itself included) and a pool has at most so many threads.
///
/// Tasks of node 0 that wait for node 1, and the other way round, hold a thread each: were all
/// threads of both pools such, nobody would run what they wait for (rule 1.3). As long as fewer wait
/// than a pool has threads, each pool has one that does not, and that one ends.
pub(crate) fn too_many_wait(waiting: usize, threads: usize) -> bool {
    waiting >= threads
}

/// So many declared probes a CPU run at once: enough that one computes while the others sleep.
const AT_ONCE: usize = 8;

/// Whether one more probe must not be declared as blocking, where so many others are that run.
pub(crate) fn too_many_at_once(others: usize, cpus: usize) -> bool {
    others >= cpus.max(1) * AT_ONCE
}

/// A CPU that a probe may be given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub cpu: CpuId,
    /// The core: SMT siblings share it. `None`: not known, taken as a core of its own.
    pub core: Option<u32>,
    /// The pod (shard of a last-level cache) whose pool would run it.
    pub pod: Option<u32>,
}

/// The order in which the CPUs of a node are given out, round and round: pods in turn, so that no
/// shard gets two probes before each has one; within a pod each core once before any SMT sibling
/// (rule 1.5: the first CPU would always mean the first shard).
pub(crate) fn rotation(candidates: &[Candidate]) -> Vec<CpuId> {
    // How many CPUs of the same core, and of the same pod and sibling rank, came before.
    let mut siblings: BTreeMap<u32, usize> = BTreeMap::new();
    let mut pods: BTreeMap<Option<u32>, Vec<(usize, CpuId)>> = BTreeMap::new();
    for c in candidates {
        let sibling = c.core.map_or(0, |core| {
            let seen = siblings.entry(core).or_insert(0);
            *seen += 1;
            *seen - 1
        });
        pods.entry(c.pod).or_default().push((sibling, c.cpu));
    }
    let mut lists: Vec<Vec<(usize, CpuId)>> = pods.into_values().collect();
    for list in &mut lists {
        list.sort_unstable();
    }
    let longest = lists.iter().map(Vec::len).max().unwrap_or(0);
    let turn = |i: usize| lists.iter().filter_map(move |list| list.get(i)).map(|&(_, cpu)| cpu);
    (0..longest).flat_map(turn).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTSIDE: Asker = Asker { token: None, on_node: false, must_not_wait: false };

    fn with_token(node: Option<u32>, pod: Option<u32>) -> Asker {
        Asker { token: Some(Placement { node, pod }), ..OUTSIDE }
    }

    #[test]
    fn rule_6_both_paths_are_placed_near_the_node_by_one_decision() {
        assert_eq!(place(Path::Sync, Some(1), true, OUTSIDE), Place::Near);
        assert_eq!(place(Path::Async, Some(1), true, OUTSIDE), Place::Near);
    }

    #[test]
    fn rule_8_without_a_usable_node_async_is_still_queued_and_sync_runs_in_the_caller() {
        for node in [None, Some(1)] {
            assert_eq!(place(Path::Async, node, false, OUTSIDE), Place::Anywhere);
            assert_eq!(place(Path::Sync, node, false, OUTSIDE), Place::Inline);
        }
    }

    #[test]
    fn rule_11_a_probe_on_its_node_runs_in_place_and_elsewhere_it_is_queued() {
        let here = Asker { on_node: true, ..OUTSIDE };
        assert_eq!(place(Path::Sync, Some(1), true, here), Place::Inline);
        assert_eq!(place(Path::Async, Some(1), true, here), Place::Near);
    }

    #[test]
    fn rule_12_a_task_placed_on_the_node_runs_a_nested_probe_inline_and_on_another_it_does_not() {
        let on_1 = with_token(Some(1), None);
        assert_eq!(place(Path::Sync, Some(1), true, on_1), Place::Inline);
        assert_eq!(place(Path::Sync, Some(0), true, on_1), Place::Near);
    }

    #[test]
    fn a_worker_whose_token_names_no_node_is_not_taken_for_placed() {
        // A deferred-probe worker, say: that it is a worker proves nothing (rule 1.3).
        assert_eq!(place(Path::Sync, Some(1), true, with_token(None, Some(3))), Place::Near);
        assert_eq!(place(Path::Sync, None, false, with_token(None, None)), Place::Inline);
    }

    #[test]
    fn the_releasing_task_does_not_swallow_asynchronous_probes() {
        assert_eq!(place(Path::Async, Some(1), true, with_token(Some(1), None)), Place::Near);
    }

    #[test]
    fn nested_waits_for_other_nodes_leave_each_pool_a_thread_that_waits_for_nobody() {
        assert!(too_many_wait(1, 1) && too_many_wait(4, 4) && !too_many_wait(3, 4));
        let full = Asker { must_not_wait: true, ..with_token(Some(0), None) };
        assert_eq!(place(Path::Sync, Some(1), true, full), Place::Inline);
    }

    #[test]
    fn as_many_probes_are_declared_at_once_as_keep_each_cpu_busy_and_no_more() {
        assert!(!too_many_at_once(15, 2) && too_many_at_once(16, 2) && !too_many_at_once(0, 0));
    }

    fn numbers(candidates: &[Candidate]) -> Vec<u32> {
        rotation(candidates).into_iter().map(CpuId::number).collect()
    }

    #[test]
    fn the_rotation_takes_pods_in_turn_and_cores_before_siblings() {
        let c =
            |cpu, core, pod| Candidate { cpu: CpuId::new(cpu), core: Some(core), pod: Some(pod) };
        // Two shards of two cores; siblings are numbered far apart.
        let far: Vec<Candidate> = (0..8).map(|cpu| c(cpu, cpu % 4, cpu % 4 / 2)).collect();
        assert_eq!(numbers(&far), [0, 2, 1, 3, 4, 6, 5, 7]);
        // The same with adjacent siblings.
        let near: Vec<Candidate> = (0..8).map(|cpu| c(cpu, cpu / 2, cpu / 4)).collect();
        assert_eq!(numbers(&near), [0, 4, 2, 6, 1, 5, 3, 7]);
    }

    #[test]
    fn the_rotation_gives_every_candidate_once_also_where_little_is_known() {
        let c = |cpu| Candidate { cpu: CpuId::new(cpu), core: None, pod: None };
        assert_eq!(numbers(&[3, 1, 2].map(c)), [1, 2, 3]);
        assert!(rotation(&[]).is_empty());
    }
}
