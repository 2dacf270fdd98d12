//! Doors into the protocols for the models in `tests/loom/`: thin, and only there for them and for
//! unit tests.

mod broken;
mod by_hand;
mod forks;
mod futures;
mod limiter;

use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::panic::Location;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use corewise_sync::Parker;
use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::fence::{FencePolicy, FullFence};
use corewise_sync::hazard::Hazards;
use corewise_topology::{AffinityScope, CpuId, CpuSet, Machine};

use crate::attributes::{At, Attributes};
use crate::error;
use crate::handle::work::Work;
use crate::pool::PoolSpec;
use crate::pool::alarm::Alarm;
use crate::pool::group::{Group, Setup, Step};
use crate::pool::policy::PoolHome;
use crate::pool::worker::Worker;
use crate::pool::worker_thread;
use crate::pools::Lease;
use crate::pools::WorkerPools;
use crate::pwq::flush::Colours;
use crate::pwq::flush::leave;
use crate::pwq::limit::CountedBy;
use crate::pwq::queue_core::{QueueCore, Traits};
use crate::pwq::slot::Tally;
pub use crate::pwq::slot::{CountPolicy, RealCounts};
use crate::pwq::slot::{CpuEntry, PwqSlot, SlotContent};
use crate::pwq::table::{Plan, PwqTable};
use crate::pwq::{self, push};
use crate::task::claim::Container;
use crate::task::header::LentItem;
use crate::task::header::{Job, Queued};
use crate::task::running::Publication;
use crate::task::ticket::DeferredEnds;
use crate::task::ticket::{Event, MaybeTicket, QueueHome, Schedule, Spot, Ticket};
use crate::wait::{Role, take_back_if};

pub use forks::{LanesModel, RingModel, SpawnModel, Waits};
pub use futures::{FutureModel, WaitingModel};
pub use limiter::{SlotModel, Token};

/// Pools whose workers are driven by the model's threads.
pub struct PoolModel<F: FencePolicy> {
    group: Arc<Group<F>>,
    /// Pushes go to the overflow.
    spills: bool,
}

impl<F: FencePolicy> Clone for PoolModel<F> {
    fn clone(&self) -> Self {
        PoolModel { group: Arc::clone(&self.group), ..*self }
    }
}

/// A worker that the model drives.
pub struct ModelWorker<F: FencePolicy> {
    group: Arc<Group<F>>,
    worker: Arc<Worker>,
}

impl<F: FencePolicy> PoolModel<F> {
    /// Creates soft pools of `cpus` CPUs each, which may have as many workers as `enlist` is called
    /// for.
    pub fn new(pools: usize, cpus: u32) -> Self {
        let specs = PoolSpec::by_hand(pools, cpus);
        let group = Group::new(Setup::by_hand(AffinityScope::System), specs);
        PoolModel { group: Arc::new(group), spills: false }
    }

    /// Adds one more worker of a pool. Enlist as many as the pool has CPUs, or it would make
    /// threads.
    pub fn enlist(&self, pool: usize) -> ModelWorker<F> {
        let worker = self.group.enlist(pool);
        ModelWorker { group: Arc::clone(&self.group), worker }
    }

    /// Creates pools as [`PoolModel::new`] does, but a pusher finds the rings full.
    pub fn spilling(pools: usize, cpus: u32) -> Self {
        PoolModel { spills: true, ..PoolModel::new(pools, cpus) }
    }

    /// Queues an item on a pool; returns false if it was pending.
    pub fn push(&self, pool: usize, work: &Work) -> bool {
        self.push_from(0, pool, work)
    }

    /// Pushes as [`PoolModel::push`] does, from this CPU of the pod.
    pub fn push_from(&self, cpu: u32, pool: usize, work: &Work) -> bool {
        match pend(work) {
            Some(queued) => {
                let list = self.group.pools[pool].list_of(CpuId::new(cpu));
                if self.spills {
                    self.group.push_spilled(pool, list, queued);
                } else {
                    self.group.push(pool, list, queued);
                }
                true
            }
            None => false,
        }
    }

    /// Brings the machine to this epoch: `cpus` says how many CPUs of each pod can be used.
    pub fn follow(&self, epoch: u64, cpus: &[u32]) {
        self.group.follow_to(epoch, None, |spec| PoolHome {
            cpus: CpuSet::full(cpus[spec.pod as usize]),
            away: false,
        });
    }

    /// Takes no more work.
    pub fn close(&self) {
        self.group.close();
    }

    /// Returns true if no worker is left, searches, idles or blocks, and nothing waits for one.
    pub fn is_deserted(&self, pool: usize) -> bool {
        let (total, idle, blocked, waiting) = self.group.pools[pool].sizes();
        (total, idle, blocked, waiting) == (0, 0, 0, 0)
    }
}

impl<F: FencePolicy> ModelWorker<F> {
    /// Works as `work_until` does until the pool is closed, with the pool told of waits inside
    /// items.
    pub fn work_and_tell(&self) {
        let _observed = worker_thread::observe(&self.worker, &self.group);
        self.work_until(|| false);
    }

    fn one_step(&self) -> Step {
        self.group.step(&self.worker)
    }

    /// Begins to block in its item.
    pub fn blocks(&self) {
        self.group.begin_blocking(&self.worker);
    }

    /// Waits in its item, which blocks, for `work`, and runs that when no other worker can come for
    /// it. `hastily`: it only waits to be called, for models that have to fail.
    pub fn wants(&self, pool: usize, work: &Work, hastily: bool) {
        let parker = Parker::new();
        if hastily {
            self.group.want_hastily(pool, work.lent(), parker.unparker());
            parker.park();
        } else {
            let wanted = self.group.want(pool, work.lent(), parker.unparker());
            while !wanted.is_called_for() {
                parker.park();
                if !wanted.is_called_for() {
                    wanted.declines();
                }
            }
        }
        take_back_if(work.lent(), |_| true);
    }

    /// Takes one step; doesn't park.
    pub fn step(&self) {
        self.one_step();
        self.worker.carry.stops();
    }

    /// Takes one step; returns whether it ran something.
    pub fn takes(&self) -> bool {
        let before = self.worker.ran.read();
        self.step();
        self.worker.ran.read() > before
    }

    /// Makes it known, from here on, to run one tiny item after the other, alone, and to keep up.
    pub fn takes_a_stream(&self) {
        self.group.takes_a_stream(&self.worker);
    }

    /// Makes it reserve, from here on, this many items at once, if there are as many.
    pub fn takes_at_once(&self, many: u64) {
        self.worker.takes_at_once(many);
    }

    /// Steps, and parks where the pool says so, until `done`.
    pub fn work_until(&self, done: impl Fn() -> bool) {
        self.work(done, || self.one_step(), || self.parks());
    }

    /// Works likewise, but looks for the token once before it parks, as one does that spins.
    pub fn spin_until(&self, done: impl Fn() -> bool) {
        let parks = || if self.worker.try_park() { Step::Again } else { self.parks() };
        self.work(done, || self.one_step(), parks);
    }

    /// Works likewise, but searches before it goes idle: it looks whether there is work once.
    pub fn search_until(&self, done: impl Fn() -> bool) {
        let step = || {
            if self.group.works(&self.worker) {
                return Step::Again;
            }
            let searches = self.group.begin_search(&self.worker);
            let pool = &self.group.pools[self.worker.pool];
            if searches && pool.has_waiting() {
                pool.outwait();
                return Step::Again;
            }
            self.group.go_idle(&self.worker)
        };
        self.work(done, step, || self.parks());
    }

    /// Works in a broken way: it sleeps as the searcher.
    pub fn search_asleep(&self, done: impl Fn() -> bool) {
        let step = || {
            let sleeps = !self.group.works(&self.worker) && self.group.begin_search(&self.worker);
            if sleeps { self.parks() } else { Step::Again }
        };
        self.work(done, step, || self.parks());
    }

    /// Works until `done`, or until it has to leave. `parks` is what it does instead of a step if
    /// it is to park.
    fn work(&self, done: impl Fn() -> bool, step: impl Fn() -> Step, parks: impl Fn() -> Step) {
        while !done() {
            let took = match step() {
                Step::Park { .. } => parks(),
                took => took,
            };
            if matches!(took, Step::Exit) {
                return;
            }
        }
    }

    fn parks(&self) -> Step {
        self.worker.park(None);
        Step::Again
    }
}

/// A queue on pools that the model drives.
#[derive(Clone)]
pub struct QueueModel {
    pools: PoolModel<FullFence>,
    table: Arc<PwqTable>,
}

impl QueueModel {
    /// Creates pools as [`PoolModel::new`] does.
    pub fn new(pools: usize, cpus: u32) -> Self {
        let model = PoolModel::new(pools, cpus);
        let machine = Machine::synthetic("numa:1 l3:1 core:1 pu:1").expect("a valid description");
        let places = (CountedBy::Node, 1);
        let shared = QueueCore::new(
            "model".into(),
            &WorkerPools::new(&machine),
            Traits::default(),
            Attributes::default(),
            None,
            places,
        );
        let lease = Arc::new(Lease { group: Arc::clone(&model.group) });
        // Pool n is that of CPU n.
        let cpus = 0..lease.group.pools.len();
        let by_cpu = cpus.clone().map(Some).collect();
        let cpus = cpus.map(|pool| CpuId::new(pool as u32)).collect();
        let plan = Plan::of(&lease, cpus, by_cpu, Box::default());
        let table = Arc::new(PwqTable::new(&shared, plan));
        QueueModel { pools: model, table }
    }

    /// Adds a worker as [`PoolModel::enlist`] does.
    pub fn enlist(&self, pool: usize) -> ModelWorker<FullFence> {
        self.pools.enlist(pool)
    }

    /// Queues an item on a pool; returns false if it was pending.
    pub fn queue(&self, pool: usize, work: &Work) -> bool {
        let item = || work.hold();
        let header = work.header();
        let (place, site) = (At::Cpu(CpuId::new(pool as u32)), Location::caller());
        self.table.queue(place, header, item, site, false) == Ok(error::Queued::Now)
    }

    /// Queues in a broken way: the slot is filled also while somebody looks at the instance before.
    pub fn queue_hastily(&self, pool: usize, work: &Work) -> bool {
        work.header().fill_hastily();
        self.queue(pool, work)
    }

    /// Sets how many instances may be active at once.
    pub fn set_max_active(&self, limit: usize) {
        let slot = self.table.shared().limiter.slot(0);
        slot.set_limit(limit);
        slot.settle(&mut push);
    }

    /// Waits for what was queued before.
    pub fn flush(&self) {
        self.table.shared().colours.flush();
    }

    /// Returns true if nothing is queued.
    pub fn is_empty(&self, pool: usize) -> bool {
        self.pools.group.pools[pool].sizes().3 == 0
    }
}

/// Cancels in a broken way: it doesn't wait for a taker that has the item in hand.
pub fn cancel_hastily(work: &Work) -> bool {
    work.lent().cancel_hastily()
}

/// Claims in a broken way: it doesn't look whether the queuer has got so far.
pub fn claim_hastily(work: &Work) {
    work.lent().claim_hastily();
}

/// Takes the pending instance and puts it back into its list: what `mod_delayed` does.
pub fn take_and_put_back(work: &Work) -> bool {
    work.lent().claim().map(pwq::requeue).is_some()
}

/// Looks, as a waiter, at an item in its pool, reads what it carries along, and leaves it.
pub fn look_and_leave(work: &Work) {
    take_back_if(work.lent(), |_| {
        work.header().touch_job();
        false
    });
}

/// Waits for an item, and runs it itself where it is still in its pool and `wanted`:
/// [`Work::flush`].
pub fn flush_or_run(work: &Work, wanted: bool) -> bool {
    take_back_if(work.lent(), |_| wanted) || work.flush_only(Role::Waits)
}

fn pend(work: &Work) -> Option<Queued> {
    if work.header().state.pend() != Ok(error::Queued::Now) {
        return None;
    }
    let item = work.hold();
    // SAFETY: `pend` succeeded just now.
    Some(unsafe {
        Queued::new(item, Job { ticket: MaybeTicket::none(), site: Location::caller() })
    })
}

/// An item in a list, without a pool around it.
pub struct Pending(Queued);

impl Pending {
    /// Makes it pending; `None` if it was.
    pub fn new(work: &Work) -> Option<Pending> {
        let pending = pend(work).map(Pending);
        pending.inspect(|_| work.header().set_place(Container::Listed))
    }

    /// Runs it, as a worker does.
    pub fn run(self) {
        if let Some(mut running) = self.0.start() {
            running.run(&Publication::new(), None);
        }
    }
}

/// Does one thing wrong.
pub struct Careless<const WRONG: u8>;

/// Doesn't look who watches.
pub type LooksNowhere = Careless<0>;
/// Reads the counts in the wrong order.
pub type CameFirst = Careless<1>;
/// Doesn't read the entry again.
pub type TrustsTheEntry = Careless<2>;
/// Reads the entry again in no order with the count before.
pub type ReadsAgainInNoOrder = Careless<3>;

impl<const WRONG: u8> CountPolicy for Careless<WRONG> {
    const LOOKS: bool = WRONG != 0;
    const OVER_FIRST: bool = WRONG != 1;
    const VALIDATES: bool = WRONG != 2;
    const ORDERED: bool = WRONG != 3;
}

/// The colours of a queue.
pub struct FlushModel<C: CountPolicy> {
    colours: Colours<C, ()>,
    /// I: a slot per pod, of these colours.
    pods: Vec<NonNull<PwqSlot<()>>>,
}

// SAFETY: slots are shared.
unsafe impl<C: CountPolicy> Send for FlushModel<C> {}
// SAFETY: as above.
unsafe impl<C: CountPolicy> Sync for FlushModel<C> {}

impl<C: CountPolicy> FlushModel<C> {
    /// Creates counts with nothing in flight, on pods of `stripes` stripes.
    pub fn new(pods: usize, stripes: usize) -> Self {
        let colours = Colours::new();
        let pods = (0..pods).map(|_| colours.fill(stripes, ())).collect();
        FlushModel { colours, pods }
    }

    fn tally(&self, pod: usize) -> &Tally {
        // SAFETY: the colours keep it.
        &unsafe { self.pods[pod].as_ref() }.tally
    }

    /// Counts an instance in.
    pub fn enter(&self, pod: usize, stripe: u32) -> u8 {
        self.colours.count(self.tally(pod), stripe)
    }

    /// Enters as a queuer does that read the colour long ago.
    pub fn enter_late(&self, pod: usize, stripe: u32, colour: u8) {
        self.tally(pod).pair(stripe, colour).enter();
    }

    /// Counts it out.
    pub fn leave(&self, pod: usize, stripe: u32, colour: u8) {
        self.colours.leave(self.pods[pod], stripe, colour);
    }

    /// Waits for what was counted in before.
    pub fn flush(&self) {
        self.colours.flush();
    }
}

/// A queue's handle, with an entry for one CPU, and no pools.
pub struct PwqModel<C: CountPolicy> {
    queue: Arc<ModelQueue<C>>,
    entry: CpuEntry<ModelPwq<C>>,
}

/// The state that its pwqs have in common.
struct ModelQueue<C: CountPolicy> {
    colours: Colours<C, ModelPwq<C>>,
    hazards: Arc<Hazards>,
    /// A: how many pwqs were collected, and how many queues are gone.
    ended: Arc<[AtomicUsize; 2]>,
}

struct ModelPwq<C: CountPolicy> {
    queue: Arc<ModelQueue<C>>,
    pools: Arc<ModelPools>,
}

/// Written when they are dropped, so that loom sees who touches them at that time or after.
struct ModelPools(
    /// P: written by the thread that drops them.
    Arc<UnsafeCell<bool>>,
);

// SAFETY: loom looks after the cell.
unsafe impl Send for ModelPools {}
// SAFETY: as above.
unsafe impl Sync for ModelPools {}

impl ModelPools {
    #[allow(clippy::arc_with_non_send_sync, reason = "it is what the model shares")]
    fn new() -> Arc<ModelPools> {
        Arc::new(ModelPools(Arc::new(UnsafeCell::new(false))))
    }
}

impl Drop for ModelPools {
    fn drop(&mut self) {
        // SAFETY: this is what the model is to show.
        self.0.with_mut(|gone| unsafe { *gone = true });
    }
}

impl<C: CountPolicy> Drop for ModelPwq<C> {
    fn drop(&mut self) {
        self.queue.hazards.retire(Arc::clone(&self.pools) as _);
    }
}

impl<C: CountPolicy> SlotContent for ModelPwq<C> {
    fn home(&self) -> QueueHome {
        QueueHome { queue: 1, timed: false, schedule: OfModel::<C>::NEW }
    }

    fn collected(&self) {
        self.queue.ended[0].fetch_add(1, Ordering::Relaxed);
    }
}

/// The schedule of a model's homes: it counts instances, and has no lists.
struct OfModel<C: CountPolicy>(PhantomData<fn() -> C>);

impl<C: CountPolicy> OfModel<C> {
    const NEW: &'static dyn Schedule = &OfModel::<C>(PhantomData);
}

impl<C: CountPolicy> Schedule for OfModel<C> {
    fn queue_name<'a>(&self, _: &'a Ticket) -> &'a str {
        ""
    }

    fn take_out(&self, _: &Ticket, _: LentItem<'_>, _: Container) -> Option<Queued> {
        None
    }

    unsafe fn share(&self, _: Spot) -> Option<Ticket> {
        // Nothing forks here.
        None
    }

    unsafe fn note(&self, at: Spot, what: Event) {
        let Event::Again(many) = what else { return };
        // SAFETY: as the caller says.
        unsafe { at.home.cast::<PwqSlot<ModelPwq<C>>>().as_ref() }
            .tally
            .queued_again(at.stripe, many);
    }

    unsafe fn leave(&self, at: Spot, many: u64, _: bool) {
        // SAFETY: as the caller says.
        unsafe {
            leave::<C, ModelPwq<C>, ModelQueue<C>>(at, many, |pwq| Arc::clone(&pwq.queue));
        }
    }
}

impl<C: CountPolicy> AsRef<Colours<C, ModelPwq<C>>> for ModelQueue<C> {
    fn as_ref(&self) -> &Colours<C, ModelPwq<C>> {
        &self.colours
    }
}

impl<C: CountPolicy> Drop for ModelQueue<C> {
    fn drop(&mut self) {
        self.ended[1].fetch_add(1, Ordering::Relaxed);
    }
}

impl<C: CountPolicy> PwqModel<C> {
    /// Creates a queue with a pwq. `ended`: how many pwqs were collected, and how many queues are
    /// gone.
    pub fn new(ended: &Arc<[AtomicUsize; 2]>) -> Self {
        let (colours, hazards, ended) = (Colours::new(), Arc::default(), Arc::clone(ended));
        let queue = ModelQueue { colours, hazards, ended };
        let model = PwqModel { queue: Arc::new(queue), entry: CpuEntry::new() };
        model.change();
        model
    }

    /// Does what a change of attributes does.
    pub fn change(&self) {
        let pools = ModelPools::new();
        let pwq = ModelPwq { queue: Arc::clone(&self.queue), pools };
        let slot = self.queue.colours.fill(1, pwq);
        self.entry.publish(Some((slot, 0)));
        self.queue.colours.retire_all_but(&[slot]);
    }

    /// Carries out Pick, Enter and Validate.
    fn enters(&self) -> ModelTicket<C> {
        let colours = &self.queue.colours;
        loop {
            let picked = colours.pick(&self.entry).expect("there is a pwq");
            if let Some(spot) = colours.enter(picked) {
                return ModelTicket(spot, PhantomData);
            }
        }
    }

    /// Queues an instance.
    pub fn queue(&self) -> ModelTicket<C> {
        let ticket = self.enters();
        assert!(ptr::eq(&*ticket.pwq().queue, &*self.queue));
        ticket
    }

    /// Queues an instance from inside one that this worker runs, by Reuse if that can be. Returns
    /// true if it was.
    pub fn queue_inside(&self, carrier: &ModelCarrier<C>) -> (ModelTicket<C>, bool) {
        let colours = &self.queue.colours;
        let picked = colours.pick(&self.entry).expect("there is a pwq");
        if !carrier.0.reuse(picked.spot()) {
            return (self.queue(), false);
        }
        let ticket = ModelTicket(picked.spot(), PhantomData);
        assert!(ptr::eq(&*ticket.pwq().queue, &*self.queue));
        (ticket, true)
    }

    /// Returns true if nothing is in flight: the thread that closes the limiter's gate looks at
    /// this after.
    pub fn is_empty(&self) -> bool {
        FullFence::full();
        self.queue.colours.members.lock().all().all(|(slot, _)| slot.tally.in_flight() == 0)
    }

    /// Creates a worker of its own, which has nothing to do.
    pub fn carrier(&self) -> ModelCarrier<C> {
        ModelCarrier(DeferredEnds::new(), PhantomData)
    }

    /// Queues an instance by `push`, after which the pools are examined. `protected`: as they
    /// have to be.
    pub fn push(&self, protected: bool, push: impl FnOnce(ModelTicket<C>)) {
        let ticket = self.enters();
        // SAFETY: as in product code: the copy isn't dropped, and protected during the push.
        let pools = ManuallyDrop::new(unsafe { ptr::read(&raw const ticket.pwq().pools) });
        let cell = Arc::clone(&pools.0);
        let push = |_: &Arc<ModelPools>| {
            push(ticket);
            // SAFETY: this is what the model is to show.
            assert!(!cell.with(|gone| unsafe { *gone }), "the pools are there");
        };
        if !protected {
            return push(&pools);
        }
        // SAFETY: it isn't kept.
        unsafe { self.queue.hazards.own() }.protect(&pools, push);
    }

    /// Waits for what was queued before.
    pub fn flush(&self) {
        self.queue.colours.flush();
    }
}

impl<C: CountPolicy> Drop for PwqModel<C> {
    fn drop(&mut self) {
        self.queue.colours.retire_all_but(&[]);
    }
}

/// An instance.
pub struct ModelTicket<C: CountPolicy>(Spot, PhantomData<C>);

// SAFETY: pwqs are shared.
unsafe impl<C: CountPolicy> Send for ModelTicket<C> {}

impl<C: CountPolicy> ModelTicket<C> {
    fn pwq(&self) -> &ModelPwq<C> {
        // SAFETY: it is in flight.
        unsafe { self.0.home.cast::<PwqSlot<ModelPwq<C>>>().as_ref().pwq() }
    }

    /// Returns the colour that it is counted as.
    pub fn colour(&self) -> u8 {
        self.0.colour
    }

    /// Ends the instance.
    pub fn end(self) {
        assert_eq!(self.pwq().queue.ended[1].load(Ordering::Relaxed), 0, "the queue is there");
        // SAFETY: the place is this ticket's, which ends.
        unsafe { leave::<C, ModelPwq<C>, ModelQueue<C>>(self.0, 1, |pwq| Arc::clone(&pwq.queue)) };
    }
}

/// The ends that a worker carries.
pub struct ModelCarrier<C: CountPolicy>(DeferredEnds, PhantomData<C>);

impl<C: CountPolicy> ModelCarrier<C> {
    /// Pretends to carry so many more than it does: for models that have to fail.
    pub fn pretends(&self, ticket: &ModelTicket<C>, many: usize) {
        let adds = || {
            // SAFETY: it isn't there, which is what the model is to show.
            unsafe { self.0.add(ticket.0) }
        };
        (0..many).for_each(|_| assert!(!adds(), "there aren't so many"));
    }

    /// Carries the instance that the worker runs, which is over.
    pub fn ends(&self, ticket: ModelTicket<C>) {
        // SAFETY: the place is the ticket's, which ends.
        assert!(!unsafe { self.0.add(ticket.0) }, "there aren't so many");
    }

    /// Starts this instance.
    pub fn starts(&self, ticket: &ModelTicket<C>) {
        self.0.before(Some(ticket.0));
    }

    /// Starts none.
    pub fn stops(&self) {
        self.0.stops();
    }
}

/// The timekeeper's alarm.
pub struct AlarmModel<F: FencePolicy>(Alarm<F>);

impl<F: FencePolicy> AlarmModel<F> {
    /// Creates an alarm that is lowered, with nobody asleep.
    #[expect(clippy::new_without_default, reason = "a model's door")]
    pub fn new() -> Self {
        AlarmModel(Alarm::new())
    }

    /// Does what a push on a saturated pool does after its fence.
    pub fn ask(&self) {
        if self.0.raise() {
            self.0.ring();
        }
    }

    /// Lowers the alarm of a keeper that found nothing; `anything` looks again.
    pub fn lower(&self, anything: impl FnOnce() -> bool) -> bool {
        self.0.lower(anything)
    }

    /// Rests until the keeper is rung.
    pub fn rest(&self) {
        self.0.rest(None);
    }
}
