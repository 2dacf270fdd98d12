//! The table of a queue's pwqs: which of its pools the work of a CPU, or of a node, goes to.
//!
//! Read `README.md` and `limit.md` beside this file first: the comments here use their names for
//! the steps. A queuer that names a CPU, or no place at all, reads the CPU's entry. One that names
//! a node, or is on a CPU that has no pwq, finds by the plan a CPU that has one.

use corewise_topology::{CpuId, current_cpu};
use std::mem;
use std::panic::Location;
use std::sync::Arc;

use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::fence::FullFence;
use corewise_sync::{CachePadded, Swap};

use crate::attributes::{At, QueueKind};
use crate::error::{self, QueueError};
use crate::fork::lane::Lane;
use crate::pool::{Pool, current_worker};
use crate::pools::Lease;
use crate::pools::{WorkerPools, nodes};
use crate::pwq::ArcField;
use crate::pwq::Pwq;
use crate::pwq::flush;
use crate::pwq::limit::{Admission, LimitSlot};
use crate::pwq::push_new;
use crate::pwq::queue_core::QueueCore;
use crate::pwq::slot::CpuEntry;
use crate::task::claim::Claimed;
use crate::task::header::ItemRef;
use crate::task::header::{Header, Job, Queued};
use crate::task::ticket::Ticket;

/// The entry that a queuer has Picked.
pub(crate) type PickedEntry<'a> = flush::PickedEntry<'a, Pwq>;

/// The pwqs of a queue. Its end is that of the queue's last handle.
pub(crate) struct PwqTable {
    /// I: the queue.
    shared: Arc<QueueCore>,
    /// I: a slot of the queue's limiter. A close or a drain holds for all slots.
    slot: ArcField<QueueCore, LimitSlot<Queued>>,
    /// I: by the number of the CPU, online or not.
    entries: Box<[CpuEntry<Pwq>]>,
    plan: Swap<Plan>,
    /// I: true if work is for the CPU that queues it.
    bound: bool,
}

/// The assignment of the CPUs' entries to pwqs. It never changes: other attributes have another
/// plan. A thread that follows an old one comes to an entry all the same.
pub(crate) struct Plan {
    /// I: the pools.
    lease: Arc<Lease>,
    /// I: a CPU of each pool.
    cpus: Box<[CpuId]>,
    /// I: the pool of each CPU, by number; `None` if the queue has none there.
    by_cpu: Box<[Option<usize>]>,
    /// I: the pools of each node, by number.
    by_node: Box<[NodePools]>,
    /// A: the default place for work of a CPU without an entry; a hint, so Relaxed.
    rotor: CachePadded<AtomicUsize>,
}

#[derive(Default)]
pub(crate) struct NodePools {
    pools: Vec<usize>,
    /// A: rotates the start, so that remote work doesn't pile up on the node's first pod. A hint.
    next: CachePadded<AtomicUsize>,
}

impl PwqTable {
    /// Joins a queue with the pools of a plan.
    pub(crate) fn new(shared: &Arc<QueueCore>, plan: Plan) -> PwqTable {
        let plan = Arc::new(plan);
        let pwqs = PwqTable {
            shared: Arc::clone(shared),
            slot: ArcField::of(shared, |shared| shared.limiter.slot(0)),
            entries: plan.by_cpu.iter().map(|_| CpuEntry::new()).collect(),
            plan: Swap::new(Arc::clone(&plan)),
            bound: shared.traits.kind.per_cpu(),
        };
        pwqs.follow(&plan);
        pwqs
    }

    /// Joins the queue with the pools of another plan, in place of its former ones. Only one thread
    /// does so at a time.
    pub(crate) fn replace(&self, plan: Plan) {
        let plan = Arc::new(plan);
        self.follow(&plan);
        self.plan.store(plan);
    }

    fn follow(&self, plan: &Plan) {
        // Fill.
        let slots = 0..plan.lease.group.pools.len();
        let slots = slots.map(|pool| Pwq::join(&self.shared, &plan.lease, pool));
        let slots: Vec<_> = slots.collect();
        // Publish.
        for ((cpu, entry), pool) in self.entries.iter().enumerate().zip(&plan.by_cpu) {
            entry.publish(pool.map(|pool| {
                (slots[pool], plan.lease.group.pools[pool].list_of(CpuId::new(cpu as u32)))
            }));
        }
        // Retire.
        self.shared.colours.retire_all_but(&slots);
    }

    pub(crate) fn shared(&self) -> &Arc<QueueCore> {
        &self.shared
    }

    /// Picks for work that is to run at `place`: the part that needs no writes.
    #[inline(always)]
    pub(crate) fn pick(&self, place: At) -> Option<PickedEntry<'_>> {
        let cpu = match place {
            At::Here => current_cpu()?,
            At::Near(cpu) | At::Cpu(cpu) => cpu,
            At::Node(_) => return None,
        };
        self.shared.colours.pick(self.entries.get(cpu.index())?)
    }

    /// Enters a pwq for work that is to run at `place`, with the pick for it.
    #[inline(always)]
    pub(crate) fn enter(&self, place: At, picked: Option<PickedEntry<'_>>) -> Ticket {
        match picked.and_then(|picked| self.enter_picked(picked)) {
            Some(ticket) if self.is_for(place, &ticket) => ticket,
            near => self.enter_slowly(place, near),
        }
    }

    #[inline(always)]
    fn enter_picked(&self, picked: PickedEntry<'_>) -> Option<Ticket> {
        let spot = match current_worker::with_carry(|carry| carry.reuse(picked.spot())) {
            Some(true) => picked.spot(),
            _ => self.shared.colours.enter(picked)?,
        };
        // SAFETY: the place is the instance's. The home is that of a slot of pwqs, which exists for
        // as long as the instance isn't over.
        Some(unsafe { Ticket::new(spot) })
    }

    /// Returns true if the pod's CPUs may run this work. They may not if the work is queued from
    /// isolated ones, or if the pod has no share of a CPU quota.
    #[inline]
    fn is_for(&self, place: At, ticket: &Ticket) -> bool {
        let pwq = Pwq::of(ticket);
        self.bound
            || match place {
                At::Cpu(_) => true,
                At::Node(_) => !pwq.at.reading().away(),
                At::Here | At::Near(_) => takes_any_work(&pwq.at),
            }
    }

    /// Carries out Enter in the rare cases. `near`: the entered pwq isn't for this work.
    #[cold]
    #[inline(never)]
    fn enter_slowly(&self, place: At, near: Option<Ticket>) -> Ticket {
        match near.or_else(|| self.enter_near(place)) {
            Some(ticket) if self.is_for(place, &ticket) => ticket,
            near => {
                near.into_iter().for_each(Ticket::withdraw);
                self.enter_by_plan(place)
            }
        }
    }

    fn enter_near(&self, place: At) -> Option<Ticket> {
        loop {
            // Retry if the entry changed meanwhile.
            if let Some(ticket) = self.enter_picked(self.pick(place)?) {
                return Some(ticket);
            }
        }
    }

    fn enter_by_plan(&self, place: At) -> Ticket {
        loop {
            let plan = self.plan.load();
            let pool = match place {
                At::Node(node) => plan.of_node(node, self.bound),
                _ => plan.any(),
            };
            if let Some(ticket) = self.enter_near(At::Cpu(plan.cpus[pool])) {
                return ticket;
            }
            // The plan is old, and the entry belongs to another pwq meanwhile.
            corewise_sync::thread::yield_now();
        }
    }
}

impl PwqTable {
    /// Queues the item that `item` returns, whose header is `header`. If it isn't queued, nothing
    /// has changed. `accepted`: it is part of work that the queue has accepted before.
    ///
    /// Each read-modify-write in there stalls the processor until it completes. So all possible
    /// reads come before it.
    #[inline(always)]
    pub(crate) fn queue(
        &self,
        place: At,
        header: &Header,
        item: impl FnOnce() -> ItemRef,
        site: &'static Location<'static>,
        accepted: bool,
    ) -> Result<error::Queued, QueueError> {
        self.check_at_once(accepted)?;
        // Pick.
        let (picked, hazard) = (self.pick(place), self.shared().hazard());
        let pended = header.state.pend()?;
        if pended == error::Queued::AlreadyPending {
            return Ok(pended);
        }
        // Enter.
        let ticket = self.enter(place, picked);
        // ReadGate.
        let gate = Pwq::of(&ticket).slot.gate();
        // SAFETY: `pend` succeeded: the bit is ours, and `Queued` takes it over.
        let queued = unsafe { Queued::new(item(), Job { ticket: ticket.into(), site }) };
        if gate.open() {
            push_new(hazard, queued);
        } else {
            self.shared().pass(gate, queued, accepted)?;
        }
        Ok(pended)
    }

    /// Queues an item that was made pending just now, and that no other thread knows. Gives it back
    /// if the queue doesn't take it.
    #[inline(always)]
    pub(crate) fn queue_new(
        &self,
        place: At,
        item: ItemRef,
        site: &'static Location<'static>,
    ) -> Result<(), (ItemRef, QueueError)> {
        if let Err(error) = self.check_at_once(false) {
            return Err((item, error));
        }
        // Enter and ReadGate, as in `queue`.
        let (picked, hazard) = (self.pick(place), self.shared().hazard());
        let ticket = self.enter(place, picked);
        let gate = Pwq::of(&ticket).slot.gate();
        // SAFETY: the item is pending, and new.
        let queued = unsafe { Queued::new(item, Job { ticket: ticket.into(), site }) };
        if gate.open() {
            push_new(hazard, queued);
        } else if let Err(error) = self.shared().check(gate, false) {
            return Err((queued.take_new(), error));
        } else {
            self.shared().admit(gate, queued);
        }
        Ok(())
    }

    /// Enters, for a closure that stays with the calling worker, whose item of this queue has
    /// `own`. Returns `None` if it is to be queued like any other.
    #[inline]
    pub(crate) fn enter_inside(&self, own: &Ticket, pool: usize, lane: &Lane) -> Option<Ticket> {
        let group = &Pwq::of(own).group;
        let plain = self.slot.glance().open() && group.kind == QueueKind::Unbound;
        if !plain || !group.may_keep(pool, lane) {
            return None;
        }
        let picked = self.pick(At::Here)?;
        if picked.spot().home != own.spot().home {
            return None;
        }
        let ticket = self.enter_picked(picked)?;
        // ReadGate.
        if Pwq::of(&ticket).slot.gate().open() && self.is_for(At::Here, &ticket) {
            return Some(ticket);
        }
        ticket.withdraw();
        None
    }

    /// Enters, for an item that the calling thread runs at once. Returns `None` if the queue
    /// doesn't take it, or its limit has no place.
    pub(crate) fn enter_here(&self) -> Option<Ticket> {
        let gate = self.slot.glance();
        if gate.closed() || gate.draining() {
            return None;
        }
        let ticket = self.enter(At::Here, self.pick(At::Here));
        let slot = &Pwq::of(&ticket).slot;
        // ReadGate.
        let gate = slot.gate();
        let admission =
            if gate.closed() || gate.draining() { Admission::Wait } else { slot.admit(gate) };
        match admission {
            Admission::Free => Some(ticket),
            Admission::Counted => {
                ticket.count();
                Some(ticket)
            }
            Admission::Wait => {
                ticket.withdraw();
                None
            }
        }
    }

    /// Puts a claimed instance of any place here: the same instance, counted here from now on. If
    /// the queue doesn't take it, it is cancelled. `accepted`: as for `queue`.
    pub(crate) fn place(
        &self,
        place: At,
        mut claimed: Claimed,
        accepted: bool,
    ) -> Result<(), QueueError> {
        if let Err(error) = self.check_at_once(accepted) {
            claimed.cancel();
            return Err(error);
        }
        // Enter and ReadGate, as for a new one.
        let ticket = self.enter(place, self.pick(place));
        let gate = Pwq::of(&ticket).slot.gate();
        let old = claimed.with_job(|job| mem::replace(&mut job.ticket, ticket.into()));
        let queued = claimed.release();
        let placed = if gate.open() {
            push_new(self.shared().hazard(), queued);
            Ok(())
        } else {
            self.shared().pass(gate, queued, accepted)
        };
        // After it lies somewhere: this may let others through, and a claimant would wait. Also
        // itself, where it waits for its own old place.
        drop(old);
        placed
    }

    /// Returns true if the queue takes nothing any more. All slots of the limiter are closed at
    /// once, and when the pools are, before them.
    pub(crate) fn is_closed(&self) -> bool {
        self.slot.glance().closed()
    }

    /// Checks that the queue takes it, before anything is changed. All slots are closed, or
    /// drained, at once.
    #[inline]
    pub(crate) fn check_at_once(&self, accepted: bool) -> Result<(), QueueError> {
        self.shared().check(self.slot.glance(), accepted)
    }
}

impl Drop for PwqTable {
    fn drop(&mut self) {
        // The last handle is gone: no thread queues any more.
        self.shared.colours.retire_all_but(&[]);
    }
}

impl Plan {
    /// Creates the plan for the pools of a lease.
    pub(crate) fn new(pools: &WorkerPools, lease: &Arc<Lease>) -> Plan {
        let topology = pools.machine().topology();
        let group = &lease.group;
        let mut by_cpu = vec![None; topology.cpu_set().last().map_or(0, |last| last.index() + 1)];
        let mut by_node: Vec<NodePools> = Vec::new();
        by_node.resize_with(nodes(topology), NodePools::default);
        let mut cpus = Vec::new();
        for (index, pool) in group.pools.iter().enumerate() {
            let pod = &pools.pods().scope(group.scope)[pool.spec.pod as usize];
            cpus.push(pod.cpus.first().unwrap_or(CpuId::new(0)));
            for cpu in pod.cpus.iter() {
                by_cpu[cpu.index()] = Some(index);
            }
            for node in topology.nodes() {
                if node.cpus.intersects(&pool.spec.cpus) {
                    by_node[node.node as usize].pools.push(index);
                }
            }
        }
        Self::of(lease, cpus.into(), by_cpu.into(), by_node.into())
    }

    pub(crate) fn of(
        lease: &Arc<Lease>,
        cpus: Box<[CpuId]>,
        by_cpu: Box<[Option<usize>]>,
        by_node: Box<[NodePools]>,
    ) -> Plan {
        let rotor = CachePadded::new(AtomicUsize::new(0));
        Plan { lease: Arc::clone(lease), cpus, by_cpu, by_node, rotor }
    }

    fn of_node(&self, node: u32, bound: bool) -> usize {
        let here = self.here(bound);
        let Some(NodePools { pools, next }) = self.by_node.get(node as usize) else { return here };
        if pools.contains(&here) {
            return here;
        }
        let has_cpus = |pool| !self.pool(pool).reading().away();
        self.in_turn(next, pools.len(), |n| pools[n], has_cpus).unwrap_or(here)
    }

    fn here(&self, bound: bool) -> usize {
        let own = current_cpu().and_then(|cpu| self.by_cpu.get(cpu.index()).copied().flatten());
        let own = own.filter(|&pool| bound || takes_any_work(self.pool(pool)));
        own.unwrap_or_else(|| self.any())
    }

    /// Returns each pool in turn whose pod has a CPU that can be used, and a share; each, if none
    /// has. The kernel's `wq_select_unbound_cpu`.
    fn any(&self) -> usize {
        let (rotor, pools) = (&self.rotor, self.cpus.len());
        let found = self.in_turn(rotor, pools, |n| n, |pool| takes_any_work(self.pool(pool)));
        found.unwrap_or_else(|| rotor.load(Ordering::Relaxed) % pools)
    }

    /// Returns the next of `n` pools that will do.
    fn in_turn(
        &self,
        rotor: &AtomicUsize,
        n: usize,
        pool: impl Fn(usize) -> usize,
        will_do: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        (0..n).map(|_| pool(rotor.fetch_add(1, Ordering::Relaxed) % n)).find(|&pool| will_do(pool))
    }

    fn pool(&self, pool: usize) -> &Pool<FullFence> {
        &self.lease.group.pools[pool]
    }
}

/// Returns true if a CPU of the pool's pod can be used, and it has a share of what may run (a
/// moment ago).
#[inline]
fn takes_any_work(pool: &Pool<FullFence>) -> bool {
    let reading = pool.reading();
    !reading.away() && !reading.aside()
}
