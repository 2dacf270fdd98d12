//! Placement of probes: the one helper that both the synchronous and the asynchronous path use. See
//! `README.md` beside this file.
//!
//! A probe is placed once, here, near its device's node. The worker that runs it carries a
//! placement token, so that no code places it again. CPUs of the node are given out in rotation,
//! and isolated CPUs never. The CPU only chooses the pod whose pool runs the probe. Affinity is
//! soft: a CPU that goes between the choice and the queueing costs locality and nothing else.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use corewise_sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use corewise_sync::context::Placement;
use corewise_sync::{Mutex, context, hint, time};
use corewise_topology::{AffinityScope, CpuId, Machine, Masks, current_cpu};
use corewise_workqueue::{At, BuildError, WorkerPools, Workqueue};

/// The placer of probes on the worker pools of one machine.
pub(crate) struct Placer {
    /// I: a handle.
    pools: WorkerPools,
    /// I: a handle; unbound, and never on an isolated CPU.
    queue: Workqueue,
    /// L: is the lock; guards the rotations.
    rotations: Mutex<Rotations>,
    /// A: tasks on workers that wait for a probe on another node. Relaxed: only the number counts,
    /// and a thread that adds one sees a value that has it.
    nested: AtomicUsize,
    /// I: the recent duration of probes; atomic itself.
    pace: Pace,
}

/// Rotations of CPUs, one for each node and one for all nodes together, as of one epoch of the
/// machine's masks.
#[derive(Default)]
struct Rotations {
    epoch: Option<u64>,
    nodes: HashMap<Option<u32>, Rotation>,
}

struct Rotation {
    cpus: Vec<CpuId>,
    next: usize,
}

/// The place, and the CPU whose turn it is.
type Choice = (Place, Option<CpuId>);

impl Placer {
    pub(crate) fn new(pools: &WorkerPools) -> Result<Placer, BuildError> {
        // Its CPUs are by default the housekeeping ones, so that it shares its pools with others.
        let queue = Workqueue::builder("device").build(pools)?;
        let rotations = Mutex::new(Rotations::default());
        let (nested, pace) = (AtomicUsize::new(0), Pace::new(pools.machine().parallelism()));
        Ok(Placer { pools: pools.clone(), queue, rotations, nested, pace })
    }

    pub(crate) fn machine(&self) -> &Machine {
        self.pools.machine()
    }

    /// Returns the queue itself, for work that belongs near no device.
    pub(crate) fn queue(&self) -> &Workqueue {
        &self.queue
    }

    /// Queues `f` for another CPU than the caller's, each time for the next one: the caller
    /// continues, and work for the worker of its own CPU would wait for it. Does not block. If the
    /// pools are shut down, `f` is dropped.
    pub(crate) fn spawn_elsewhere(&self, f: impl FnOnce() + Send + 'static) {
        self.queue_at(self.choose_elsewhere(), move |_| f());
    }

    /// Chooses the next CPU other than the caller's (step Choose).
    fn choose_elsewhere(&self) -> Choice {
        let here = self.here();
        let mut rotations = self.rotations.lock();
        let rotation = rotations.on(None, &self.pools);
        let cpu = rotation.turn().filter(|cpu| Some(*cpu) != here).or_else(|| rotation.turn());
        (cpu.map_or(Place::Anywhere, |_| Place::Near), cpu)
    }

    /// Queues `f` near the node, or anywhere if the node is unknown or has no usable CPU. `f` gets
    /// the CPU that was chosen. Does not block. If the pools are shut down, `f` is dropped.
    pub(crate) fn spawn(&self, node: Option<u32>, f: impl FnOnce(Option<CpuId>) + Send + 'static) {
        let choice = self.choose(Path::Async, node, false);
        self.queue_at(choice, f);
    }

    /// Queues `f` at the chosen CPU (step QueueAt). The masks may have changed since the choice;
    /// the pod's workers have followed that.
    fn queue_at(&self, (place, cpu): Choice, f: impl FnOnce(Option<CpuId>) + Send + 'static) {
        match (place, cpu) {
            (Place::Near, Some(cpu)) => {
                drop(self.queue.at(At::Cpu(cpu)).execute(move || f(Some(cpu))))
            }
            _ => drop(self.queue.execute(move || f(None))),
        }
    }

    /// Runs `f` near the node and waits for it. It runs in the calling thread in three cases. The
    /// node is unknown or has no usable CPU. The caller is on that node already, by its placement
    /// token or by its CPU. Too many workers wait for each other's nodes. If the pools are shut
    /// down, `f` is dropped.
    pub(crate) fn call(&self, node: Option<u32>, f: impl FnOnce(Option<CpuId>) + Send + 'static) {
        let waits = Placement::current().map(|_| NestedWait::enter(&self.nested));
        let waiting = waits.as_ref().map_or(0, |nested| nested.waiting);
        let must_not_wait = too_many_wait(waiting, self.pools.max_workers());
        match self.choose(Path::Sync, node, must_not_wait) {
            (Place::Near, Some(cpu)) => {
                // `f` catches the panics of what it calls, and reports when it is dropped unused,
                // so no result can be lost here (rule 9).
                let _ = self.queue.at(At::Cpu(cpu)).spawn(move || f(Some(cpu))).join();
            }
            _ => {
                drop(waits);
                f(None);
            }
        }
    }

    /// Returns how many probes of a node can run at once at most, which is the number of its
    /// threads.
    pub(crate) fn most_at_once(&self) -> usize {
        if hint::IN_MODEL {
            // With more no device would stand in line there.
            return 2;
        }
        let pods = self.pools.pods().scope(AffinityScope::CacheShard).len();
        self.pools.max_workers().saturating_mul(pods)
    }

    /// Calls a driver's probe, on this thread. If that is a worker, its pool learns that the probe
    /// may take long, so that other work starts meanwhile. It doesn't if probes are so quick that
    /// this wouldn't pay, or if so many run at once that they would only wait for each other.
    /// Returns also whether the worker may continue with another probe: in the last case it may
    /// not, as there its pool decides how many run.
    pub(crate) fn probing<R>(&self, probe: impl FnOnce() -> R) -> (R, bool) {
        context::might_block("device probe");
        let (pacing, began) = (self.pace.begin(), time::now());
        let declares = pacing.declares();
        let result = if declares { context::long_running("device probe", probe) } else { probe() };
        let goes_on = pacing.goes_on();
        drop(pacing);
        self.pace.note(time::now() - began, declares);
        (result, goes_on)
    }

    /// Chooses the place, and the CPU whose turn it is (step Choose).
    fn choose(&self, path: Path, node: Option<u32>, must_not_wait: bool) -> Choice {
        let mut rotations = self.rotations.lock();
        let rotation = node.map(|node| rotations.on(Some(node), &self.pools));
        let usable = rotation.as_ref().map_or(&[][..], |r| &r.cpus);
        let asker = ProbeOrigin {
            token: Placement::current(),
            on_node: path == Path::Sync && self.here().is_some_and(|cpu| usable.contains(&cpu)),
            must_not_wait,
        };
        let place = place(path, node, !usable.is_empty(), asker);
        let cpu = match rotation {
            Some(rotation) if place == Place::Near => rotation.turn(),
            _ => None,
        };
        (place, cpu)
    }

    /// Returns the CPU of the calling thread, if the machine is the one that it runs on.
    fn here(&self) -> Option<CpuId> {
        if self.machine().is_synthetic() { None } else { current_cpu() }
    }
}

impl Rotations {
    fn on(&mut self, node: Option<u32>, pools: &WorkerPools) -> &mut Rotation {
        if self.epoch != Some(pools.machine().epoch()) || !self.nodes.contains_key(&node) {
            let masks = pools.machine().masks();
            if self.epoch != Some(masks.epoch) {
                // The other nodes' rotations belong to the old masks.
                *self = Rotations { epoch: Some(masks.epoch), nodes: HashMap::new() };
            }
            let cpus = rotation(&candidates(pools, &masks, node));
            self.nodes.insert(node, Rotation { cpus, next: 0 });
        }
        self.nodes.get_mut(&node).expect("it was inserted above where it was not there")
    }
}

impl Rotation {
    fn turn(&mut self) -> Option<CpuId> {
        let cpu = *self.cpus.get(self.next % self.cpus.len().max(1))?;
        self.next += 1;
        Some(cpu)
    }
}

/// Returns the online CPUs of the node, or of all, that are not isolated. If every online CPU is
/// isolated there is no housekeeping CPU, and none is a candidate.
fn candidates(pools: &WorkerPools, masks: &Masks, node: Option<u32>) -> Vec<Candidate> {
    let topology = pools.machine().topology();
    let usable = masks.online.difference(&masks.isolated);
    let near = topology
        .cpus()
        .iter()
        .filter(|c| (node.is_none() || c.node == node) && usable.contains(c.cpu));
    let candidate = |cpu: CpuId, core| Candidate {
        cpu,
        core,
        pod: pools.pods().pod_of(AffinityScope::CacheShard, cpu),
    };
    near.map(|c| candidate(c.cpu, c.core)).collect()
}

/// A task on a worker that waits, or is about to, until this is dropped.
struct NestedWait<'p> {
    /// A: the counter of the placer.
    count: &'p AtomicUsize,
    /// Number of such tasks, this one included.
    waiting: usize,
}

impl NestedWait<'_> {
    fn enter(count: &AtomicUsize) -> NestedWait<'_> {
        NestedWait { count, waiting: count.fetch_add(1, Ordering::Relaxed) + 1 }
    }
}

impl Drop for NestedWait<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

// The decision where a probe runs: pure functions over plain values, tested without threads. Rule
// numbers are those of `RULES.md`.

/// The path that asks for a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// The caller waits for the probe.
    Sync,
    /// The caller continues.
    Async,
}

/// The place of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The calling thread: nothing is queued.
    Inline,
    /// The queue, at a CPU near the node.
    Near,
    /// The queue, at any CPU.
    Anywhere,
}

/// The task that asks for a place.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProbeOrigin {
    /// The placement token of the task that asks.
    pub token: Option<Placement>,
    /// True if its thread is on a usable CPU of the wanted node. It may move a moment later: that
    /// costs locality, once, and is cheaper than to hold it there.
    pub on_node: bool,
    /// True if it may not wait for another worker: see [`too_many_wait`].
    pub must_not_wait: bool,
}

/// Returns where to run a probe for `node` (rules 1.2.6 to 1.2.13). `usable` says that the node is
/// known and has a CPU that is online and not isolated.
///
/// The two paths differ in their fallback (rule 8): a synchronous probe runs in the caller, an
/// asynchronous one is still queued. The caller's position counts for the synchronous path only:
/// there it *is* the place where the probe would run. On the asynchronous path the caller is
/// whatever task released the device, and running inline would put one device's probe after
/// another's for no reason.
pub(crate) fn place(path: Path, node: Option<u32>, usable: bool, asker: ProbeOrigin) -> Place {
    let placed = node.is_some() && asker.token.and_then(|token| token.node) == node;
    match path {
        Path::Async if usable => Place::Near,
        Path::Async => Place::Anywhere,
        Path::Sync if !usable || placed || asker.on_node || asker.must_not_wait => Place::Inline,
        Path::Sync => Place::Near,
    }
}

/// Returns true if one more task on a worker must not wait for a probe on another node. `waiting`
/// tasks do so, itself included, and a pool has at most `threads` threads.
///
/// Tasks of node 0 that wait for node 1, and the other way round, hold a thread each. If all
/// threads of both pools did, no thread would run the probes that they wait for (rule 1.3). As long
/// as fewer wait than a pool has threads, each pool has one that does not, and that one ends.
pub(crate) fn too_many_wait(waiting: usize, threads: usize) -> bool {
    waiting >= threads
}

/// Number of declared probes a CPU that run at once: enough that one computes while the others
/// sleep.
const AT_ONCE: usize = 8;

/// Returns true if one more probe must not be declared as blocking, beside `others` that run.
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

/// Returns the order in which the CPUs of a node are given out, round and round. Pods take turns,
/// so that no shard gets two probes before each has one. Within a pod each core comes once before
/// any SMT sibling (rule 1.5: the first CPU would always mean the first shard).
pub(crate) fn rotation(candidates: &[Candidate]) -> Vec<CpuId> {
    // Numbers of earlier CPUs of the same core, and of the same pod and sibling rank.
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
mod tests;

// The policy by which a probe's worker tells its pool that it blocks. The nature of a probe is
// unknown, so by default the worker does: other work then starts beside it at once. But that costs
// two switches between threads (some µs), and shorter probes are faster one after the other.
//
// So after some quick ones in a row the next isn't declared. If that one blocks all the same, the
// pool detects it within a fraction of a millisecond. The more often that happens, the more quick
// ones in a row are required.
//
// A probe isn't declared either if many declared ones run already. A declared probe holds no core
// for its pool, even while it computes. With a hundred devices at once, each would wait for the
// others, and have a thread of its own. Beyond that number the pool starts the next one when one
// sleeps or ends.

/// Duration below which a probe is quick: about the cost of letting another worker take over.
const QUICK: Duration = Duration::from_micros(20);
/// Number of quick probes in a row that is required at first, and at most.
const PROOF: u32 = 4;
const MOST_PROOF: u32 = 1 << 14;

/// The recent duration of probes.
#[derive(Debug)]
pub(super) struct Pace {
    /// A: quick probes in a row. Relaxed, as is the next one: both are hints, and a lost update
    /// costs a switch.
    quick: AtomicU32,
    /// A: number of quick probes in a row that is required.
    wanted: AtomicU32,
    /// A: declared probes that run. Relaxed: only the number counts.
    declared: AtomicUsize,
    /// I: the CPUs for probes.
    cpus: usize,
}

/// One probe, until it is over.
#[derive(Debug)]
pub(super) struct Pacing<'p> {
    /// A: the counter of the pace.
    declared: Option<&'p AtomicUsize>,
    /// True if it isn't declared because too many others are.
    crowded: bool,
}

impl Pace {
    pub(super) fn new(cpus: usize) -> Pace {
        Pace {
            quick: AtomicU32::new(0),
            wanted: AtomicU32::new(PROOF),
            declared: AtomicUsize::new(0),
            cpus,
        }
    }

    /// Begins a probe, and decides whether it tells its pool that it blocks.
    pub(super) fn begin(&self) -> Pacing<'_> {
        if self.are_quick() {
            return Pacing { declared: None, crowded: false };
        }
        let others = self.declared.fetch_add(1, Ordering::Relaxed);
        let declared = Some(&self.declared);
        let pacing = Pacing { declared, crowded: false };
        if too_many_at_once(others, self.cpus) {
            // Its count ends here.
            drop(pacing);
            return Pacing { declared: None, crowded: true };
        }
        pacing
    }

    fn are_quick(&self) -> bool {
        self.quick.load(Ordering::Relaxed) >= self.wanted.load(Ordering::Relaxed)
    }

    /// Records the duration of a probe.
    pub(super) fn note(&self, took: Duration, declared: bool) {
        if took <= QUICK {
            if declared {
                self.quick.fetch_add(1, Ordering::Relaxed);
            }
            return;
        }
        self.quick.store(0, Ordering::Relaxed);
        if !declared {
            let wanted = self.wanted.load(Ordering::Relaxed);
            self.wanted.store((wanted * 2).min(MOST_PROOF), Ordering::Relaxed);
        }
    }
}

impl Pacing<'_> {
    /// Returns true if its worker may continue with another probe without asking its pool.
    pub(super) fn goes_on(&self) -> bool {
        !self.crowded
    }

    pub(super) fn declares(&self) -> bool {
        self.declared.is_some()
    }
}

impl Drop for Pacing<'_> {
    fn drop(&mut self) {
        if let Some(declared) = self.declared {
            declared.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod policy_tests {
    use super::*;

    const OUTSIDE: ProbeOrigin = ProbeOrigin { token: None, on_node: false, must_not_wait: false };

    fn with_token(node: Option<u32>, pod: Option<u32>) -> ProbeOrigin {
        ProbeOrigin { token: Some(Placement { node, pod }), ..OUTSIDE }
    }

    #[test]
    fn rules_6_to_12_the_path_the_node_and_the_asker_say_where_a_probe_goes() {
        use Place::{Anywhere, Inline, Near};
        let here = ProbeOrigin { on_node: true, ..OUTSIDE };
        let on_1 = with_token(Some(1), None);
        let full = ProbeOrigin { must_not_wait: true, ..with_token(Some(0), None) };
        for (rule, asker, node, usable, sync, asynchronous) in [
            ("6", OUTSIDE, Some(1), true, Near, Near),
            ("8", OUTSIDE, None, false, Inline, Anywhere),
            ("8", OUTSIDE, Some(1), false, Inline, Anywhere),
            ("11", here, Some(1), true, Inline, Near),
            (
                "12: the task that releases a device swallows no probe",
                on_1,
                Some(1),
                true,
                Inline,
                Near,
            ),
            ("12: on another node", on_1, Some(0), true, Near, Near),
            (
                "1.3: a worker as such proves nothing",
                with_token(None, Some(3)),
                Some(1),
                true,
                Near,
                Near,
            ),
            ("1.3", with_token(None, None), None, false, Inline, Anywhere),
            (
                "1.3: each pool keeps a thread that waits for nobody",
                full,
                Some(1),
                true,
                Inline,
                Near,
            ),
        ] {
            assert_eq!(place(Path::Sync, node, usable, asker), sync, "rule {rule}");
            assert_eq!(place(Path::Async, node, usable, asker), asynchronous, "rule {rule}");
        }
        assert!(too_many_wait(1, 1) && too_many_wait(4, 4) && !too_many_wait(3, 4));
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
        // Adjacent siblings give the same.
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

#[cfg(test)]
mod pace_tests {
    use super::*;

    const SLOW: Duration = Duration::from_millis(1);

    fn declares(pace: &Pace) -> bool {
        pace.begin().declares()
    }

    fn quick_ones(pace: &Pace, n: u32) {
        (0..n).for_each(|_| pace.note(QUICK, declares(pace)));
    }

    #[test]
    fn a_probe_is_declared_until_some_in_a_row_were_quick() {
        let pace = Pace::new(2);
        assert!(declares(&pace), "nobody knows what it does");
        quick_ones(&pace, PROOF - 1);
        pace.note(SLOW, true);
        quick_ones(&pace, PROOF - 1);
        assert!(declares(&pace), "in a row");
        quick_ones(&pace, 1);
        assert!(!declares(&pace));
        quick_ones(&pace, 10_000);
        assert!(!declares(&pace));
    }

    #[test]
    fn a_slow_one_that_was_not_declared_makes_the_proof_longer_up_to_a_limit() {
        let pace = Pace::new(2);
        quick_ones(&pace, PROOF);
        pace.note(SLOW, false);
        quick_ones(&pace, 2 * PROOF - 1);
        assert!(declares(&pace));
        quick_ones(&pace, 1);
        assert!(!declares(&pace));
        (0..40).for_each(|_| pace.note(SLOW, false));
        quick_ones(&pace, MOST_PROOF);
        assert!(!declares(&pace));
    }

    #[test]
    fn beyond_some_at_once_a_probe_is_not_declared_until_one_that_is_has_ended() {
        let pace = Pace::new(2);
        let mut running: Vec<Pacing<'_>> = (0..100).map(|_| pace.begin()).collect();
        let declared = running.iter().filter(|pacing| pacing.declares()).count();
        assert!((2..100).contains(&declared), "{declared}");
        assert!(!declares(&pace));
        running.remove(0);
        assert!(declares(&pace));
    }
}
