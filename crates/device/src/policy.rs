//! The decisions, apart from the mechanism: pure functions over plain values, tested without
//! threads. Rule numbers are those of `spec/mechanisms.md`.

use crate::{AsyncProbe, ProbeType};
use corewise_sync::context::Placement;
use std::collections::BTreeMap;

/// Whether a device probes asynchronously (rule 1.2.1): the driver's type, the declaration's, and
/// what the command line asked for. Asked by the manager once per device and bring-up.
pub(crate) fn probes_async(
    driver: ProbeType,
    decl: Option<ProbeType>,
    name: &str,
    asked: &AsyncProbe,
) -> bool {
    match (driver, decl) {
        (ProbeType::ForceSynchronous, _) | (_, Some(ProbeType::ForceSynchronous)) => false,
        (_, Some(ProbeType::PreferAsynchronous)) => true,
        (_, Some(ProbeType::Default)) | (ProbeType::Default, None) => asked.asks_for(name),
        (ProbeType::PreferAsynchronous, None) => true,
    }
}

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

/// Where to run a probe (rules 1.2.6 to 1.2.13). `usable` says that the node is known and has a CPU
/// that is online and not isolated; `token` is the caller's own placement.
///
/// The two paths differ in their fallback: a synchronous probe runs in the caller, an asynchronous
/// one is still queued. A token counts for the synchronous path only: there the caller *is* the
/// place where it would run. On the asynchronous path it is the token of whatever task released the
/// device, and running inline would put one device's probe after another's for no reason.
pub(crate) fn place(
    path: Path,
    node: Option<u32>,
    usable: bool,
    token: Option<Placement>,
) -> Place {
    match path {
        Path::Async if usable => Place::Near,
        Path::Async => Place::Anywhere,
        Path::Sync if !usable => Place::Inline,
        Path::Sync if node.is_some() && token.and_then(|t| t.node) == node => Place::Inline,
        Path::Sync => Place::Near,
    }
}

/// A CPU that a probe may be given.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub cpu: u32,
    /// The core: SMT siblings share it. `None`: not known, taken as a core of its own.
    pub core: Option<u32>,
    /// The pod (shard of a last-level cache) whose pool would run it.
    pub pod: Option<u32>,
}

/// The order in which the CPUs of a node are given out, round and round: pods in turn, so that no
/// shard gets two probes before each has one; within a pod each core once before any SMT sibling
/// (spec 1.5: the first CPU would always mean the first shard).
pub(crate) fn rotation(candidates: &[Candidate]) -> Vec<u32> {
    // How many CPUs of the same core, and of the same pod and sibling rank, came before.
    let mut siblings: BTreeMap<u32, usize> = BTreeMap::new();
    let mut pods: BTreeMap<Option<u32>, Vec<(usize, u32)>> = BTreeMap::new();
    for c in candidates {
        let sibling = c.core.map_or(0, |core| {
            let seen = siblings.entry(core).or_insert(0);
            *seen += 1;
            *seen - 1
        });
        pods.entry(c.pod).or_default().push((sibling, c.cpu));
    }
    let mut lists: Vec<Vec<(usize, u32)>> = pods.into_values().collect();
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

    const ON_1: Option<Placement> = Some(Placement { node: Some(1), pod: None });

    #[test]
    fn force_synchronous_is_never_overridden() {
        use ProbeType::{Default, ForceSynchronous, PreferAsynchronous};
        let all = AsyncProbe::all();
        assert!(!probes_async(ForceSynchronous, Some(PreferAsynchronous), "d", &all));
        assert!(!probes_async(PreferAsynchronous, Some(ForceSynchronous), "d", &all));
        assert!(probes_async(Default, Some(PreferAsynchronous), "d", &AsyncProbe::default()));
        assert!(probes_async(PreferAsynchronous, None, "d", &AsyncProbe::default()));
    }

    #[test]
    fn the_default_type_is_asynchronous_only_where_asked() {
        let asked = AsyncProbe::parse("nvme");
        assert!(probes_async(ProbeType::Default, None, "nvme", &asked));
        assert!(!probes_async(ProbeType::Default, None, "ahci", &asked));
        assert!(!probes_async(
            ProbeType::PreferAsynchronous,
            Some(ProbeType::Default),
            "x",
            &asked
        ));
    }

    #[test]
    fn the_paths_share_the_place_and_differ_in_the_fallback() {
        assert_eq!(place(Path::Sync, Some(1), true, None), Place::Near);
        assert_eq!(place(Path::Async, Some(1), true, None), Place::Near);
        assert_eq!(place(Path::Sync, Some(1), false, None), Place::Inline);
        assert_eq!(place(Path::Async, Some(1), false, None), Place::Anywhere);
        assert_eq!(place(Path::Sync, None, false, None), Place::Inline);
    }

    #[test]
    fn a_task_placed_on_the_node_runs_a_synchronous_probe_inline_and_on_another_it_does_not() {
        assert_eq!(place(Path::Sync, Some(1), true, ON_1), Place::Inline);
        assert_eq!(place(Path::Sync, Some(0), true, ON_1), Place::Near);
        let somewhere = Some(Placement { node: None, pod: Some(3) });
        assert_eq!(place(Path::Sync, Some(1), true, somewhere), Place::Near);
    }

    #[test]
    fn the_releasing_task_does_not_swallow_asynchronous_probes() {
        assert_eq!(place(Path::Async, Some(1), true, ON_1), Place::Near);
    }

    #[test]
    fn the_rotation_takes_pods_in_turn_and_cores_before_siblings() {
        let c = |cpu, core, pod| Candidate { cpu, core: Some(core), pod: Some(pod) };
        // Two shards of two cores; siblings are numbered far apart.
        let far: Vec<Candidate> = (0..8).map(|cpu| c(cpu, cpu % 4, cpu % 4 / 2)).collect();
        assert_eq!(rotation(&far), [0, 2, 1, 3, 4, 6, 5, 7]);
        // The same with adjacent siblings.
        let near: Vec<Candidate> = (0..8).map(|cpu| c(cpu, cpu / 2, cpu / 4)).collect();
        assert_eq!(rotation(&near), [0, 4, 2, 6, 1, 5, 3, 7]);
    }

    #[test]
    fn the_rotation_gives_every_candidate_once_also_where_little_is_known() {
        let c = |cpu| Candidate { cpu, core: None, pod: None };
        assert_eq!(rotation(&[c(3), c(1), c(2)]), [1, 2, 3]);
        assert!(rotation(&[]).is_empty());
    }
}
