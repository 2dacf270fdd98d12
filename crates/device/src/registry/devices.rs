//! The live registry: every device that exists, its needs, and its state. It has neither threads
//! nor clock: tests step it by hand, [`super::run`] and `crate::manager` drive it.
//!
//! `README.md` beside this file has the states, the steps by name, and the argument why no thread
//! waits for an event that can't come. All of this lies under one lock, the manager's. No user code
//! runs in here: objects to drop are handed out with the [`Effects`].

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::thread::ThreadId;
use corewise_timeline::{EdgeKind, Outcome};

use super::bring_up::BringUpInProgress;
use super::matching::{Candidate, RegisteredDriver};
use crate::bound::Bound;
use crate::decl::DeviceDecl;
use crate::deferred::{Attempt, Deferred};
use crate::error::ProbeError;
use crate::graph::{DeviceId, Graph, NamedDecl as ByName};
use crate::record::Site;

/// The key of one device as long as it exists; afterwards it finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DeviceKey {
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// A device from one unbinding to the next. A walk takes down that instance, and no later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instance {
    pub key: DeviceKey,
    pub(super) unbinds: u64,
}

/// A device that was made ready, with the number of that round. A prober that never comes must not
/// end the probe of a later round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DueProbe {
    pub key: DeviceKey,
    pub(super) time: u64,
}

/// All devices.
pub(crate) struct Devices {
    pub(super) slots: Vec<DeviceSlot>,
    /// Bound objects by slot. They are apart from the slots, so that a shutdown can take them all
    /// at once.
    pub(super) bound: Vec<Option<Arc<dyn Bound>>>,
    pub(super) free: Vec<u32>,
    pub(super) by_name: HashMap<ByName, u32>,
    /// Devices that need one that doesn't exist (any more, or yet), by that one's name.
    pub(super) dangling: HashMap<String, Vec<u32>>,
    /// True while slots are in registration order: none was used twice.
    pub(super) in_order: bool,
    pub(super) registrations: u64,
    /// Number of devices that are ready or being probed.
    pub(super) active: usize,
    /// The bring-up in progress.
    pub(super) bring_up: Option<BringUpInProgress>,
    /// Ready asynchronous devices that no item was queued for.
    pub(super) lines: Lines,
    /// Ready synchronous devices without a waiting caller: the one late worker probes them in turn.
    pub(super) late: VecDeque<DueProbe>,
    /// True while the late worker was asked for and has not left.
    pub(super) late_worker: bool,
    /// Number of the current late worker: one that hangs in a probe is replaced, and learns that
    /// when it is back.
    pub(super) late_number: u64,
    /// The device that the late worker probes, or probed last.
    pub(super) late_probing: Option<DueProbe>,
    /// Devices whose drivers asked to be called later.
    pub(super) deferred: Deferred<DeviceKey>,
    /// True once deferral has begun. Before that `deferred` gets no bind: deferral begins with one
    /// Bump of its own.
    pub(super) deferring: bool,
    /// True once the deferral timeout has passed: no device waits for optional suppliers any more.
    pub(super) hopeless: bool,
    /// True once nothing is probed any more.
    pub(super) closed: bool,
    /// The graph of all devices, until something changes.
    pub(super) graph: Option<OrderedGraph>,
    /// Number of changes of the graph or of what is bound.
    pub(super) changes: u64,
    /// True once the bound objects were handed to a shutdown: nothing is up any more.
    pub(super) taken: bool,
}

/// The graph of all devices, and the slot of each of its devices.
pub(super) struct OrderedGraph {
    pub(super) graph: Arc<Graph>,
    /// Slots by device; `None` if slots are in registration order, and none is free.
    pub(super) slots: Option<Vec<u32>>,
}

/// One device.
pub(super) struct DeviceSlot {
    pub(super) generation: u32,
    /// The declaration; `None` if the slot is free.
    pub(super) decl: Option<Arc<DeviceDecl>>,
    pub(super) registration: u64,
    /// The device's own node, else its parent's, as far as that is known.
    pub(super) node: Option<u32>,
    pub(super) phase: Phase,
    pub(super) needs: Vec<Link>,
    /// Devices that need this one, each once.
    pub(super) feeds: Vec<u32>,
    /// Number of needs that are not bound and hold it up.
    pub(super) unmet: u32,
    /// True if some of its needs don't hold it up: its links have to be checked one by one.
    pub(super) lenient: bool,
    /// Drivers that may have it: synchronous ones first (rule 1.2.4), each kind in registration
    /// order of the drivers.
    pub(super) candidates: Vec<Candidate>,
    /// The candidate whose turn it is, while ready or probing.
    pub(super) turn: usize,
    /// Number of times it was made ready.
    pub(super) times: u64,
    /// The first real failure of this round.
    pub(super) failure: Option<ProbeError>,
    /// The driver that it is bound to, or that probes it.
    pub(super) driver: Option<Arc<RegisteredDriver>>,
    /// True while a thread waits to unbind it: it doesn't begin, and isn't used when its probe is
    /// over.
    pub(super) leaving: bool,
    /// True while a thread removes it: it doesn't begin any more.
    pub(super) going: bool,
    /// True if it was unbound on purpose: it is not probed again by itself.
    pub(super) stays_down: bool,
    /// Number of times it was unbound.
    pub(super) unbinds: u64,
    /// Number of threads that drop an object that it had.
    pub(super) dropping: u32,
    /// True if its parent has registered it during its own probe, and takes it along when it goes.
    pub(super) by_probe: bool,
    /// Its place in the bring-up in progress.
    pub(super) in_bring_up: Option<u32>,
    /// True if it is synchronous there, and its turn has not come.
    pub(super) in_turn: bool,
    /// Number of its needs in the same bring-up that are not settled.
    pub(super) open: u32,
    /// The first device in the bring-up that makes this one impossible.
    pub(super) culprit: Option<u32>,
    pub(super) queued: Duration,
    pub(super) released_by: Option<DeviceKey>,
    pub(super) cost: Cost,
}

/// The state of a device. README.md names the steps that make each transition.
pub(super) enum Phase {
    /// A device that it needs is not bound.
    Waiting,
    /// The device may be probed: it is queued, or waits for its turn.
    Ready,
    /// Its driver was called and has not reported how the probe ended.
    Probing(ProbeInProgress),
    /// Its driver asked to be called later.
    Deferred(String),
    /// The device is up.
    Bound,
    /// The device is up, but no new one may use it: it is unbound as soon as none does.
    Leaving,
    /// Its callback is being called.
    Unbinding,
    /// The device is not up, and stays so until a caller asks.
    Idle(LeaveReason),
}

pub(super) struct ProbeInProgress {
    pub(super) since: Duration,
    pub(super) site: Site,
    /// The thread that called the driver, until that returns.
    pub(super) caller: Option<ThreadId>,
    pub(super) attempt: Attempt,
    /// True once it was named as overdue.
    pub(super) overdue: bool,
    /// True once its bring-up counts it as failed; the probe goes on.
    pub(super) given_up: bool,
    /// True if its driver has failed, and the children that it has registered go first.
    pub(super) failing: bool,
}

/// The reason why a device is idle.
#[derive(Clone, Debug)]
pub(super) enum LeaveReason {
    /// The registered drivers don't match.
    NoDriver,
    /// The device was unbound on purpose.
    Unbound,
    /// Its bring-up was cancelled.
    Cancelled,
    /// The probe failed, or every driver refused the device.
    Failed(ProbeError),
}

/// A need, and its state.
pub(super) struct Link {
    pub(super) to: Target,
    pub(super) kind: EdgeKind,
    pub(super) optional: bool,
    /// True if it doesn't hold the device up: the wait for this optional supplier is over, or this
    /// parent is being probed and has registered the device itself.
    pub(super) waived: bool,
}

pub(super) enum Target {
    Device(u32),
    Missing(String),
}

/// The cost of probing a device.
#[derive(Clone, Default)]
pub(super) struct Cost {
    pub(super) attempts: u32,
    pub(super) deferrals: u32,
    pub(super) total: Duration,
    pub(super) deferring: Duration,
    /// The last attempt.
    pub(super) last: Option<LastProbe>,
}

#[derive(Clone)]
pub(super) struct LastProbe {
    pub(super) site: Site,
    pub(super) queued: Duration,
    pub(super) started: Duration,
    pub(super) finished: Option<Duration>,
    pub(super) released_by: Option<Arc<DeviceDecl>>,
}

/// Duties of the caller of a step, all to be done without the lock.
#[derive(Default)]
pub(crate) struct Effects {
    /// Probers to queue near their nodes, with the device that each probes first.
    pub queue: Vec<(DueProbe, Option<u32>)>,
    /// Synchronous probes that the caller of the step has to make itself.
    pub mine: Vec<DueProbe>,
    /// Number of the late worker to start.
    pub late_worker: Option<u64>,
    /// True if threads that wait for some device have to be woken.
    pub wake: bool,
    /// Time after which the deadlines have to be checked: a probe with a deadline has begun.
    pub look_after: Option<Duration>,
    /// True if a device waits for an event that the deferral timeout replaces.
    pub hopes: bool,
    /// Number of devices of the bring-up that overdue probes leave as they are.
    pub gave_up: Option<usize>,
    /// Devices of the bring-up that are settled, each with its ordinal number.
    pub finished: Vec<(Arc<DeviceDecl>, Outcome, usize)>,
    /// Objects to drop.
    pub trash: Vec<DeferredDrops>,
}

/// An object that may run user code when it is dropped.
pub(crate) enum DeferredDrops {
    Object(#[expect(dead_code, reason = "only dropped")] Arc<dyn Bound>),
    Decl(#[expect(dead_code, reason = "only dropped")] Arc<DeviceDecl>),
    Drivers(#[expect(dead_code, reason = "only dropped")] Vec<Candidate>),
    Driver(#[expect(dead_code, reason = "only dropped")] Arc<RegisteredDriver>),
}

impl Effects {
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
            && self.mine.is_empty()
            && self.late_worker.is_none()
            && self.finished.is_empty()
            && self.gave_up.is_none()
            && self.trash.is_empty()
    }
}

impl Devices {
    pub(crate) fn new() -> Devices {
        Devices {
            slots: Vec::new(),
            bound: Vec::new(),
            free: Vec::new(),
            by_name: HashMap::new(),
            dangling: HashMap::new(),
            in_order: true,
            registrations: 0,
            active: 0,
            bring_up: None,
            lines: Lines::new(),
            late: VecDeque::new(),
            late_worker: false,
            late_number: 0,
            late_probing: None,
            deferred: Deferred::new(),
            deferring: false,
            hopeless: false,
            closed: false,
            graph: None,
            changes: 0,
            taken: false,
        }
    }

    /// Returns the number of devices.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn find(&self, name: &str) -> Option<DeviceKey> {
        self.by_name.get(name).map(|&index| self.key(index))
    }

    pub(crate) fn bound_object(&self, name: &str) -> Option<Arc<dyn Bound>> {
        let index = *self.by_name.get(name)?;
        let up = matches!(self.slot(index).phase, Phase::Bound | Phase::Leaving);
        self.bound.get(index as usize).cloned().flatten().filter(|_| up)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Stops all adding and probing. A ready device is cancelled when its turn comes.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    pub(super) fn key(&self, index: u32) -> DeviceKey {
        DeviceKey { index, generation: self.slots[index as usize].generation }
    }

    /// Returns the device as it was made ready last.
    pub(super) fn due(&self, index: u32) -> DueProbe {
        DueProbe { key: self.key(index), time: self.slot(index).times }
    }

    pub(super) fn slot(&self, index: u32) -> &DeviceSlot {
        &self.slots[index as usize]
    }

    pub(super) fn slot_mut(&mut self, index: u32) -> &mut DeviceSlot {
        &mut self.slots[index as usize]
    }

    /// Returns the slot, if the device still exists.
    pub(super) fn live(&self, key: DeviceKey) -> Option<&DeviceSlot> {
        self.slots.get(key.index as usize).filter(|s| s.generation == key.generation)
    }

    pub(crate) fn decl(&self, key: DeviceKey) -> Option<Arc<DeviceDecl>> {
        self.live(key)?.decl.clone()
    }

    pub(crate) fn node(&self, key: DeviceKey) -> Option<u32> {
        self.live(key)?.node
    }

    /// Returns all devices in registration order.
    pub(super) fn in_registration_order(&self) -> Vec<u32> {
        let used = |&i: &u32| self.slot(i).decl.is_some();
        let mut all: Vec<u32> = (0u32..).take(self.slots.len()).filter(used).collect();
        if !self.in_order {
            all.sort_by_key(|&i| self.slot(i).registration);
        }
        all
    }

    /// Returns the graph of all devices as they are now. It is kept until something changes.
    pub(crate) fn graph(&mut self) -> Arc<Graph> {
        self.ordered().graph.clone()
    }

    pub(super) fn ordered(&mut self) -> &OrderedGraph {
        let kept = self.graph.take();
        let ordered = kept.unwrap_or_else(|| self.in_order_of_a_graph());
        self.graph.insert(ordered)
    }

    pub(super) fn in_order_of_a_graph(&self) -> OrderedGraph {
        let all = self.in_registration_order();
        let mut ids = vec![DeviceId::new(0); self.slots.len()];
        for (place, &index) in all.iter().enumerate() {
            ids[index as usize] = DeviceId::new(place);
        }
        let needs = |&i: &u32| {
            let there = |link: &Link| match link.to {
                Target::Device(to) => Some((ids[to as usize], link.kind)),
                Target::Missing(_) => None,
            };
            self.slot(i).needs.iter().filter_map(there).collect()
        };
        let decls = all.iter().filter_map(|&i| self.slot(i).decl.clone()).collect();
        let nodes = all.iter().map(|&i| self.slot(i).node).collect();
        let graph = Arc::new(Graph::of_existing(decls, nodes, all.iter().map(needs).collect()));
        let as_slots = self.in_order && self.free.is_empty();
        OrderedGraph { graph, slots: (!as_slots).then_some(all) }
    }

    /// Takes everything that is up, by device of [`Devices::graph`]. From then on nothing is up.
    pub(crate) fn take_bound(&mut self) -> Vec<Option<Arc<dyn Bound>>> {
        (self.taken, self.changes) = (true, self.changes + 1);
        let bound = std::mem::take(&mut self.bound);
        self.by_device(bound)
    }

    /// Replaces the object of a device whose callback is being called, so that a shutdown finds the
    /// replacement.
    pub(crate) fn hand_over(
        &mut self,
        key: DeviceKey,
        instead: impl FnOnce(Arc<dyn Bound>) -> Arc<dyn Bound>,
    ) {
        if self.live(key).is_some() {
            let object = self.bound[key.index as usize].take();
            self.bound[key.index as usize] = object.map(instead);
        }
    }

    /// Returns true if a shutdown has taken everything.
    pub(crate) fn is_taken(&self) -> bool {
        self.taken
    }

    /// Returns a number that grows with each change of [`Devices::graph`] or of what is bound.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns the bound objects as they are, by device of [`Devices::graph`].
    pub(crate) fn bound_objects(&mut self) -> Vec<Option<Arc<dyn Bound>>> {
        let bound = self.bound.clone();
        self.by_device(bound)
    }

    /// Turns a list by slot into one by device. Reads no slot: there are many, and a shutdown
    /// waits.
    pub(super) fn by_device(
        &mut self,
        mut bound: Vec<Option<Arc<dyn Bound>>>,
    ) -> Vec<Option<Arc<dyn Bound>>> {
        match &self.ordered().slots {
            None => bound,
            Some(slots) => slots.iter().map(|&i| bound[i as usize].take()).collect(),
        }
    }
}

/// The lines of all nodes. A line has asynchronous devices that are ready, beyond those that a work
/// item was queued for. There are as many items as could ever run at once. The worker that runs
/// such an item, a *prober*, probes the device that it was queued for, and then takes one after the
/// other from the line. So ten thousand devices cost no more items than threads, and take no more
/// turns at the queue. The first prober queues the others, so the thread that made the devices
/// ready may lose its CPU to it meanwhile.
pub(super) struct Lines {
    /// Greatest number of probers of a node.
    most: usize,
    /// One line for each node for which something was queued; there are few.
    lines: Vec<Line>,
}

struct Line {
    /// The node of its devices.
    node: Option<u32>,
    /// Devices that stand in line. If there is no prober, there are none: the last one that leaves
    /// finds none.
    dues: VecDeque<DueProbe>,
    /// Number of items that are queued for it, or run.
    probers: usize,
}

impl Lines {
    pub(super) fn new() -> Lines {
        Lines { most: usize::MAX, lines: Vec::new() }
    }

    fn of(&mut self, node: Option<u32>) -> &mut Line {
        let place = self.lines.iter().position(|line| line.node == node).unwrap_or_else(|| {
            self.lines.push(Line { node, dues: VecDeque::new(), probers: 0 });
            self.lines.len() - 1
        });
        &mut self.lines[place]
    }
}

impl Devices {
    /// Sets the greatest number of probers of a node; at least one.
    pub(crate) fn limit_probers(&mut self, most: usize) {
        self.lines.most = most.max(1);
    }

    /// Gives a ready device a prober of its own, or puts it in line (step Stand).
    pub(super) fn stand(&mut self, node: Option<u32>, due: DueProbe, fx: &mut Effects) {
        let most = self.lines.most;
        let line = self.lines.of(node);
        if line.probers < most {
            line.probers += 1;
            fx.queue.push((due, node));
        } else {
            line.dues.push_back(due);
        }
    }

    /// Returns the next device for a prober that has finished its device (step Next). If it returns
    /// `None`, there is none, and the prober leaves.
    pub(crate) fn next_in_line(&mut self, node: Option<u32>) -> Option<DueProbe> {
        let line = self.lines.of(node);
        let next = line.dues.pop_front();
        line.probers -= usize::from(next.is_none());
        next
    }

    /// Hands the line to another worker, which continues when its pool sees fit (step Hand over).
    pub(crate) fn hand_line_over(&mut self, node: Option<u32>, fx: &mut Effects) {
        let next = self.next_in_line(node);
        fx.queue.extend(next.map(|due| (due, node)));
    }

    /// Records that a prober will never come, as its pools are shut down. Returns the devices
    /// without a prober, which no thread probes.
    pub(crate) fn prober_is_lost(&mut self, node: Option<u32>) -> VecDeque<DueProbe> {
        let line = self.lines.of(node);
        line.probers -= 1;
        if line.probers == 0 { std::mem::take(&mut line.dues) } else { VecDeque::new() }
    }
}

#[cfg(test)]
mod tests {
    use crate::error::ProbeError;
    use crate::registry::stepped::{Stepped, decl};

    /// Creates devices of one node, which has two probers at most.
    fn with_two_probers(names: &[&str]) -> Stepped {
        let mut s = Stepped::new();
        s.devices.limit_probers(2);
        s.again(names.iter().map(|name| decl(name, &[])).collect(), &[], true);
        s
    }

    fn next(s: &mut Stepped) -> Option<String> {
        let due = s.devices.next_in_line(None)?;
        s.devices.decl(due.key).map(|decl| decl.name.clone())
    }

    #[test]
    fn stepped_devices_beyond_a_node_s_probers_stand_in_line_and_are_taken_in_order() {
        let mut s = with_two_probers(&["a", "b", "c", "d", "e"]);
        assert_eq!(s.queue, ["a", "b"]);
        s.probe("a");
        assert_eq!(next(&mut s).as_deref(), Some("c"));
        s.probe("c");
        assert_eq!(next(&mut s).as_deref(), Some("d"));
        s.probe("b");
        s.step(|devices, _, fx| devices.hand_line_over(None, fx));
        assert_eq!(s.queue, ["e"], "another worker goes on");
        s.probe("d");
        assert_eq!((next(&mut s), s.queue.len()), (None, 1), "this prober leaves");
        s.probe("e");
        assert_eq!(next(&mut s), None);
        assert_eq!(s.caller(), "Done");
        s.again(vec![decl("f", &[]), decl("g", &[]), decl("h", &[])], &[], true);
        assert_eq!(s.queue, ["f", "g"], "those who have left are replaced");
    }

    #[test]
    fn stepped_devices_in_line_are_lost_only_with_the_last_prober() {
        let mut s = with_two_probers(&["a", "b", "c", "d"]);
        assert!(s.devices.prober_is_lost(None).is_empty(), "the other one takes them");
        let lost = s.devices.prober_is_lost(None);
        assert_eq!(lost.len(), 2);
        for due in lost {
            s.step(|devices, now, fx| devices.lost(due, ProbeError::failed("gone"), now, fx));
        }
        for name in ["c", "d"] {
            assert!(s.begin(name).is_none(), "{name} has failed");
        }
        s.again(vec![decl("e", &[])], &[], true);
    }
}
