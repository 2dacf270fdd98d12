//! Scoped spawns: closures that borrow from the stack of the thread that waits for them.
//!
//! One count makes that sound, [`Shared::left`]. Each [`ScopeMember`] of the scope stands for one:
//! the body, and each closure from its spawn until it is over. [`Workqueue::scope`] doesn't return
//! or unwind before the count is 0. So the borrows of a closure, all of which outlive `'scope`, are
//! valid while the closure exists.
//!
//! *Parts and items.* If an item opens a scope of its own queue, the closures aren't queued. They
//! are parts of that item, in a list of the scope. The end of the scope takes the newest parts. A
//! *helper*, an item of the queue, takes the oldest. While the list isn't empty, a helper is queued
//! or about to be. A push to an empty list queues one, and a helper that starts queues the next one
//! if it leaves parts. So a part costs a push and a pop, and only a helper costs a wake-up. A
//! closure with a place of its own is an item, and so is each closure of another scope.
//!
//! A worker may hold the *task* for a moment longer, an `Arc` whose type names borrows that are
//! over. It must then hold nothing of `'scope`: neither the closure (its run consumes it, before
//! the member is dropped) nor the value. The handle takes the value, or the later one of worker and
//! handle drops it. A handle that is forgotten keeps the task for ever, and the value is never
//! dropped.
//!
//! `tests/it/scoped.rs` runs under Miri too, as far as that is quick enough:
//!
//! ```text
//! MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance -Zmiri-ignore-leaks" \
//!     cargo +nightly miri test -p corewise-workqueue --test it -- scoped:: --skip many \
//!     --skip deeper
//! ```

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::panic::{self, AssertUnwindSafe, Location};
use std::ptr::NonNull;
use std::sync::Arc;

use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::{CleanAt, Completion, Mutex, context, panics, thread, time};
use tracing::Span;

use crate::attributes::At;
use crate::error::{JoinError, shielded};
use crate::pool::current_worker;
use crate::pool::policy::turn_is_over;
use crate::queue::Workqueue;
use crate::task::header::Header;
use crate::task::header::{Item, ItemRef, LentItem, Runs, TableOf};
use crate::task::running::{ScopePart, Spawner};
use crate::wait::{self, messages};
use crate::wait::{Role, may_run_part, may_run_parts, run_part, take_back};

/// A scope for closures that may borrow; see [`Workqueue::scope`].
pub struct Scope<'scope, 'env: 'scope> {
    shared: Arc<Shared>,
    /// Invariant, so that a scope can't be taken for one that lives shorter or longer.
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// Waits for the value of a closure that was spawned in a scope. Dropping it lets the closure run
/// on; the scope waits for it in any case.
pub struct ScopedJoinHandle<'scope, T> {
    task: Arc<dyn Outcome<T> + 'scope>,
    shared: &'scope Shared,
}

impl Workqueue {
    /// Runs `body`, which may spawn closures on this queue that borrow data that outlives the call,
    /// and waits for all of them. This is `std::thread::scope` on workers.
    ///
    /// * The body runs on the calling thread; the closures run on workers of the queue, as those of
    ///   [`Workqueue::spawn`] do, or on the calling thread. They may spawn more in the same scope,
    ///   and open scopes of their own, on this queue or another.
    /// * In an item of this queue the closures are parts of that item. They aren't queued, so one
    ///   costs a fraction of an item. Workers that help run items of the queue. Each of these takes
    ///   the oldest closures, for a turn of up to 64 or about a millisecond. The statistics and
    ///   `max_active` count these helpers, not the closures. Dumps, stall reports and spans name
    ///   each closure.
    /// * It returns when every closure has run, even if the body or a closure panics. A scoped
    ///   closure is never cancelled: if the queue doesn't take it, because the pools are shut down,
    ///   it runs on the calling thread at the end.
    /// * At its end the calling thread takes closures back that no worker has started, and runs
    ///   them itself, the newest first, under the rules of
    ///   [`JoinHandle::join`](crate::JoinHandle::join). Then it waits. It may block; on a worker
    ///   the pool starts other work meanwhile. So a scope inside an item of the same queue ends
    ///   even on its only worker. It ends even if the queue is ordered or its `max_active` is
    ///   reached: closures that are held back run in the place of the item that waits for them.
    /// * In an atomic section the call is reported as a wait
    ///   ([`might_block`](corewise_sync::context::might_block)), before the body runs.
    ///
    /// # Panics
    /// With the first panic that no join has returned: the body's, or that of a closure whose
    /// handle wasn't [joined](ScopedJoinHandle::join). The others are dropped.
    ///
    /// ```
    /// # use corewise_topology::Machine;
    /// # use corewise_workqueue::{WorkerPools, Workqueue};
    /// # let pools = WorkerPools::new(&Machine::live()?);
    /// let queue = Workqueue::builder("halves").build(&pools)?;
    /// let numbers: Vec<u64> = (1..=1000).collect();
    /// let (left, right) = numbers.split_at(500);
    /// let sum = queue.scope(|s| {
    ///     let left = s.spawn(|| left.iter().sum::<u64>());
    ///     right.iter().sum::<u64>() + left.join().expect("no panic")
    /// });
    /// assert_eq!(sum, 500_500);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[track_caller]
    pub fn scope<'env, R>(
        &self,
        body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
    ) -> R {
        context::might_block("Workqueue::scope");
        let shared = Arc::new(Shared {
            queue: self.clone(),
            left: AtomicUsize::new(1),
            none_left: Completion::new(),
            panic: Mutex::new(None),
            spawned: Mutex::default(),
            by_parts: self.shared().runs_here(),
            parts: Mutex::default(),
        });
        let member = ScopeMember(Arc::clone(&shared));
        let scope = Scope { shared, scope: PhantomData, env: PhantomData };
        let result = panic::catch_unwind(AssertUnwindSafe(|| body(&scope)));
        drop(member);
        // Nothing in these unwinds.
        scope.shared.run_parts();
        scope.shared.take_back();
        scope.shared.wait();
        let value = result.map_err(|payload| scope.shared.panicked(payload));
        let first = scope.shared.panic.lock().take();
        match (value, first) {
            (Ok(value), None) => value,
            (_, first) => panic::resume_unwind(first.expect("the body's, if no other")),
        }
    }
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Runs a closure on the scope's queue; see [`Workqueue::spawn`]. It may borrow data that
    /// outlives the scope. If it panics, the handle returns the panic, or the scope if the handle
    /// isn't joined.
    #[track_caller]
    pub fn spawn<T, C>(&'scope self, closure: C) -> ScopedJoinHandle<'scope, T>
    where
        C: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        self.spawn_from(Location::caller(), At::Here, closure)
    }

    /// Returns the scope at a place of the caller's choice: `s.at(At::Node(1)).spawn(f)`.
    pub fn at(&'scope self, place: At) -> PlacedScope<'scope, 'env> {
        PlacedScope { scope: self, place }
    }

    pub(super) fn spawn_from<T, C>(
        &'scope self,
        site: &'static Location<'static>,
        at: At,
        closure: C,
    ) -> ScopedJoinHandle<'scope, T>
    where
        C: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        let task = Arc::new(ScopedTask {
            header: Header::new(&TableOf::<ScopedTask<C, T>, C>::COUNTED),
            slot: Mutex::new(TaskSlot {
                stage: Stage::Waiting(closure, self.shared.member()),
                detached: false,
            }),
            done: Completion::new(),
            spawner: Spawner::current(),
            part_at: (self.shared.by_parts && at == At::Here).then_some(site),
        });
        let item = Arc::clone(&task) as Arc<dyn ScopedItem + 'scope>;
        // SAFETY: only the lifetime changes. `task` holds a member of the scope until its closure
        // is over, and the scope waits for its members: until then all of `'scope` is alive. After
        // that an owner of the item finds nothing of `'scope` in it: see the module's text.
        let item: Arc<dyn ScopedItem> = unsafe { mem::transmute(item) };
        if task.part_at.is_some() {
            self.shared.push_part(item, site);
            return ScopedJoinHandle { task, shared: &self.shared };
        }
        let open = self.shared.remember(item);
        // SAFETY: as above.
        let hold = || unsafe { ItemRef::counted_for_a_while(Arc::clone(&task)) };
        let queue = &self.shared.queue;
        if !open || queue.submit_with(at, task.header(), &hold, site, false).is_err() {
            // Fresh, so it wasn't pending: the queue is closed.
            task.cancelled();
        }
        ScopedJoinHandle { task, shared: &self.shared }
    }
}

/// A [`Scope`] at a place: what it spawns runs there. [`Scope::at`] makes one.
#[derive(Debug, Clone, Copy)]
#[must_use = "it spawns nothing by itself"]
pub struct PlacedScope<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    place: At,
}

impl<'scope> PlacedScope<'scope, '_> {
    /// Spawns a closure as [`Scope::spawn`] does, at this place.
    #[track_caller]
    pub fn spawn<T, C>(&self, closure: C) -> ScopedJoinHandle<'scope, T>
    where
        C: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        self.scope.spawn_from(Location::caller(), self.place, closure)
    }
}

impl<T> ScopedJoinHandle<'_, T> {
    /// Waits for the value. May block; on a worker the pool starts other work meanwhile. A closure
    /// that still waits for a worker may be run by this call, as with
    /// [`JoinHandle::join`](crate::JoinHandle::join). One that the queue didn't take, because the
    /// pools are shut down, runs in here.
    ///
    /// # Errors
    /// [`JoinError::Panicked`] with the closure's panic. The scope doesn't panic with it then.
    #[track_caller]
    pub fn join(self) -> Result<T, JoinError> {
        if !self.is_finished() {
            messages::for_item(self.task.header(), "ScopedJoinHandle::join");
            if self.task.part_at().is_none() {
                take_back(lent(&self.task), Role::Part);
            } else if may_run_part() && self.shared.queue.shared().runs_here() {
                run_part(into_part(Arc::clone(&self.task)), false);
            } else if wait::is_here() {
                self.shared.wait_for_helper(|| self.task.has_begun());
            }
            wait::wait(lent(&self.task), self.task.done(), Role::Part);
        }
        self.task.run_returned(self.shared);
        self.task.take().expect("a handle is joined once")
    }

    /// Returns true if the closure is over, so that [`ScopedJoinHandle::join`] won't block.
    pub fn is_finished(&self) -> bool {
        self.task.is_over()
    }
}

impl<T> Drop for ScopedJoinHandle<'_, T> {
    fn drop(&mut self) {
        self.task.detach(self.shared);
    }
}

/// The state that the members of a scope share.
struct Shared {
    queue: Workqueue,
    /// A: members that are left; 0 only once the body is over.
    left: AtomicUsize,
    /// `left` is 0.
    none_left: Completion,
    /// L: is the lock; guards the first panic that no join has returned.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// L: is the lock; guards the items that may not be over.
    spawned: Mutex<Spawned>,
    /// I: the closures are parts of the item that opened the scope.
    by_parts: bool,
    /// L: is the lock; guards the parts that may not have begun.
    parts: Mutex<Parts>,
}

#[derive(Default)]
struct Parts {
    /// The oldest first.
    waiting: VecDeque<Arc<dyn ScopedItem>>,
    /// The time to remove parts that were joined before they began.
    clean_at: CleanAt,
    /// The helper that is queued, or about to be.
    called: Option<Arc<Helper>>,
}

#[derive(Default)]
struct Spawned {
    tasks: Vec<Arc<dyn ScopedItem>>,
    /// The time to remove tasks that are over.
    clean_at: CleanAt,
    /// The scope has waited, and runs what the queue has returned. Nothing is queued any more.
    closed: bool,
}

/// A body or closure that the scope waits for.
struct ScopeMember(Arc<Shared>);

impl Drop for ScopeMember {
    fn drop(&mut self) {
        // AcqRel: the scope sees this member's writes, through the last member.
        if self.0.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.none_left.complete();
        }
    }
}

impl Shared {
    /// Counts one more in. The caller is, or runs inside, a member itself.
    fn member(self: &Arc<Self>) -> ScopeMember {
        // Relaxed: the count can't be 0 here, and the member's drop releases what follows.
        self.left.fetch_add(1, Ordering::Relaxed);
        ScopeMember(Arc::clone(self))
    }

    /// Notes a task down before it is queued; returns false if nothing may be queued any more.
    fn remember(&self, task: Arc<dyn ScopedItem>) -> bool {
        // Dropped after the lock.
        let mut over = Vec::new();
        let mut spawned = self.spawned.lock();
        let Spawned { tasks, clean_at, closed } = &mut *spawned;
        clean_at.before_one_more(tasks, Vec::len, |tasks| {
            tasks.retain(|task| {
                let is_over = task.is_over();
                if is_over {
                    over.push(Arc::clone(task));
                }
                !is_over
            });
        });
        tasks.push(task);
        !*closed
    }

    /// Returns the newest of the known items. Nothing is locked while the caller deals with it.
    fn newest(&self) -> Option<Arc<dyn ScopedItem>> {
        self.spawned.lock().tasks.pop()
    }

    /// Runs `body`, and returns true if it returned. A panic of it becomes the scope's.
    fn catches(&self, body: impl FnOnce()) -> bool {
        let caught = panic::catch_unwind(AssertUnwindSafe(body));
        caught.map_err(|payload| self.panicked(payload)).is_ok()
    }

    /// Adds a part to the list, and queues a helper if none is queued.
    fn push_part(self: &Arc<Self>, part: Arc<dyn ScopedItem>, site: &'static Location<'static>) {
        let calls = {
            let mut parts = self.parts.lock();
            let Parts { waiting, clean_at, .. } = &mut *parts;
            let waits = |part: &Arc<dyn ScopedItem>| !part.has_begun();
            clean_at.before_one_more(waiting, VecDeque::len, |parts| parts.retain(waits));
            waiting.push_back(part);
            self.calls(&mut parts, site)
        };
        self.queue_helper(calls);
    }

    /// Makes a helper for the caller to queue, if parts wait and no helper is queued.
    #[inline]
    fn calls(
        self: &Arc<Self>,
        parts: &mut Parts,
        site: &'static Location<'static>,
    ) -> Option<Arc<Helper>> {
        if parts.waiting.is_empty() || parts.called.is_some() {
            return None;
        }
        parts.called = Some(Arc::new(Helper {
            header: Header::new(&TableOf::<Helper, Helper>::COUNTED),
            shared: Arc::clone(self),
            site,
            begun: Completion::new(),
            done: Completion::new(),
        }));
        parts.called.clone()
    }

    /// Queues a helper. If the queue refuses it, the scope runs the parts.
    fn queue_helper(&self, helper: Option<Arc<Helper>>) {
        let Some(helper) = helper else { return };
        let hold = || ItemRef::counted(Arc::clone(&helper));
        let open = self.remember(Arc::clone(&helper) as Arc<dyn ScopedItem>);
        let (header, site) = (helper.header(), helper.site);
        if !open || self.queue.submit_with(At::Here, header, &hold, site, false).is_err() {
            helper.cancelled();
        }
    }

    /// Waits until another thread has begun a part. The caller is an item that can't run the part
    /// itself. A helper that a limit holds back gets a place.
    fn wait_for_helper(&self, part_has_begun: impl Fn() -> bool) {
        while !part_has_begun() {
            let helper = self.parts.lock().called.clone();
            match helper {
                Some(helper) => {
                    // It can't run here, and gets a place where it is held back.
                    take_back(lent(&helper), Role::Part);
                    wait::wait(lent(&helper), &helper.begun, Role::Part);
                }
                // A thread has it in its hand.
                None => thread::yield_now(),
            }
        }
    }

    /// Runs the oldest parts, on the thread of a helper, for one turn.
    fn help(self: &Arc<Self>, helper: &Helper) {
        let (began, mut ran) = (time::now(), 0);
        // Parts fork in the helper's lane.
        self.queue.forks_here();
        current_worker::with_shown(|shown| {
            loop {
                // The clock costs as much as a small part.
                let goes_on = ran % 8 != 0 || !turn_is_over(ran, time::now() - began);
                let (part, calls) = {
                    let mut parts = self.parts.lock();
                    if ran == 0 {
                        // It is this one, which has begun.
                        parts.called = None;
                    }
                    let part = if goes_on { parts.waiting.pop_front() } else { None };
                    (part, self.calls(&mut parts, helper.site))
                };
                if ran == 0 {
                    helper.begun.complete();
                }
                self.queue_helper(calls);
                let Some(part) = part else { return };
                if !part.has_begun() {
                    into_part(part).run(shown, true);
                }
                ran += 1;
            }
        });
    }

    /// Runs the parts that haven't begun, at the end of the scope, the newest first. Never unwinds.
    fn run_parts(&self) {
        while self.by_parts && may_run_parts() {
            let Some(part) = self.parts.lock().waiting.pop_back() else { return };
            if !part.has_begun() {
                self.catches(|| run_part(into_part(part), true));
            }
        }
    }

    /// Leaves the parts that wait to the scope, since no helper will run them.
    fn return_parts(&self) {
        let parts = {
            let mut parts = self.parts.lock();
            parts.called = None;
            mem::take(&mut parts.waiting)
        };
        for part in parts {
            self.remember(Arc::clone(&part));
            part.cancelled();
        }
    }

    /// Runs the items that haven't started yet, if they may run here, the newest first: workers
    /// take the oldest. Never unwinds.
    fn take_back(&self) {
        let mut others = Vec::new();
        while let Some(task) = self.newest() {
            if !task.is_over() {
                self.catches(|| {
                    take_back(lent(&task), Role::Part);
                });
            }
            if !task.is_over() {
                others.push(task);
            }
        }
        self.spawned.lock().tasks.append(&mut others);
    }

    /// Waits for each of the known items, in an item. If no worker can run one, it runs that
    /// itself. Never unwinds.
    fn wait_inside(&self) {
        let mut over = Vec::new();
        while let Some(task) = self.newest() {
            if !self.catches(|| wait::wait(lent(&task), task.done(), Role::Part)) {
                match lent(&task).claim() {
                    Some(claimed) => claimed.cancel(),
                    // It has begun meanwhile, and borrows from here: the scope waits for it again,
                    // as a listed wait.
                    None if !task.done().is_complete() => {
                        self.spawned.lock().tasks.push(task);
                        thread::yield_now();
                        continue;
                    }
                    None => {}
                }
                task.give_up();
            }
            over.push(task);
        }
        self.spawned.lock().tasks.append(&mut over);
    }

    /// Waits until no member is left, then runs what the queue returned. Never unwinds.
    fn wait(&self) {
        if wait::is_here() {
            self.wait_inside();
        }
        while !self.none_left.is_complete() {
            // The wait reports to a `tracing` subscriber if it is made in an atomic section, and
            // that may panic.
            if !self.catches(|| self.none_left.wait()) {
                thread::yield_now();
            }
        }
        self.spawned.lock().closed = true;
        // Only parts that were joined before they began are left.
        let joined = mem::take(&mut self.parts.lock().waiting);
        drop(joined);
        while let Some(task) = self.newest() {
            // A subscriber may panic here too, and the other tasks must not be left behind.
            self.catches(|| task.run_returned(self));
        }
    }

    /// Keeps a panic that no join has returned, if it is the first.
    fn panicked(&self, payload: Box<dyn Any + Send>) {
        let another = {
            let mut first = self.panic.lock();
            if first.is_some() { Some(payload) } else { first.replace(payload) }
        };
        another.into_iter().for_each(panics::discard);
    }
}

/// Lends the item, for the holder of a count of it.
fn lent<I: Item + ?Sized>(task: &Arc<I>) -> LentItem<'_> {
    // SAFETY: a count is a hold, and holds are made of the pointer that `Arc::as_ptr` returns.
    unsafe { LentItem::new(NonNull::new_unchecked(Arc::as_ptr(task).cast_mut()).cast()) }
}

/// Makes a part of the running item of a task that is one.
fn into_part<I: ScopedItem + ?Sized>(task: Arc<I>) -> ScopePart {
    let site = task.part_at().expect("it is a part");
    // SAFETY: as in `spawn_from`.
    ScopePart::new(unsafe { ItemRef::counted_for_a_while(task) }, site)
}

/// The scope's view of a task.
trait ScopedItem: Item {
    /// Returns true if it has run to its end, or never will.
    fn is_over(&self) -> bool;
    /// Runs it on the calling thread if the queue has returned it.
    fn run_returned(&self, shared: &Shared);
    /// Returns the completion for its end, or for its return by the queue.
    fn done(&self) -> &Completion;
    /// Drops the item, which can't be run, if the queue has returned it.
    fn give_up(&self);
    /// Returns true once a thread has begun to run it, or the queue has returned it.
    fn has_begun(&self) -> bool;
    /// Returns where a part was spawned; `None` for an item.
    fn part_at(&self) -> Option<&'static Location<'static>>;
}

/// An item that runs parts of a scope.
#[repr(C)]
struct Helper {
    header: Header,
    shared: Arc<Shared>,
    /// The place where the scope's first part was spawned.
    site: &'static Location<'static>,
    /// Completes when the helper has taken a part, or never will.
    begun: Completion,
    done: Completion,
}

impl Runs for Helper {
    fn run(&self) {
        self.shared.help(self);
        self.done.complete();
    }
}

// SAFETY: `repr(C)`; the header comes first, and is made in `calls` only.
unsafe impl Item for Helper {
    fn cancelled(&self) {
        self.shared.return_parts();
        self.begun.complete();
        self.done.complete();
    }

    fn panicked(&self, payload: Box<dyn Any + Send>) {
        // A subscriber has panicked before the run.
        self.cancelled();
        panics::discard(payload);
    }
}

impl ScopedItem for Helper {
    fn is_over(&self) -> bool {
        self.done.is_complete()
    }

    fn run_returned(&self, _shared: &Shared) {}

    fn done(&self) -> &Completion {
        &self.done
    }

    fn give_up(&self) {
        // Its cancellation has returned the parts.
        let tasks = mem::take(&mut self.shared.spawned.lock().tasks);
        let (parts, items): (Vec<_>, Vec<_>) =
            tasks.into_iter().partition(|one| one.part_at().is_some());
        self.shared.spawned.lock().tasks.extend(items);
        parts.iter().for_each(|part| part.give_up());
    }

    fn has_begun(&self) -> bool {
        true
    }

    fn part_at(&self) -> Option<&'static Location<'static>> {
        None
    }
}

/// The handle's view of a task.
trait Outcome<T>: ScopedItem {
    /// Returns the value, once.
    fn take(&self) -> Option<Result<T, JoinError>>;
    /// Notes that the handle is gone: no thread takes the value.
    fn detach(&self, shared: &Shared);
}

enum Stage<C, T> {
    /// The closure is in the queue, or about to be.
    Waiting(C, ScopeMember),
    /// The queue doesn't run it: the scope will, or its joiner.
    Returned(C),
    Running,
    Value(Result<T, JoinError>),
    Gone,
}

impl<C, T> Stage<C, T> {
    fn is_returned(&self) -> bool {
        matches!(self, Stage::Returned(_))
    }
}

struct TaskSlot<C, T> {
    stage: Stage<C, T>,
    /// The handle was dropped.
    detached: bool,
}

#[repr(C)]
struct ScopedTask<C, T> {
    header: Header,
    /// L: is the lock; guards the closure, then the value.
    slot: Mutex<TaskSlot<C, T>>,
    done: Completion,
    spawner: Spawner,
    /// Place where it was spawned, if it is a part.
    part_at: Option<&'static Location<'static>>,
}

impl<C: FnOnce() -> T + Send, T: Send> ScopedTask<C, T> {
    /// Replaces the stage by `next` if the stage is `wanted`, and returns the previous one.
    fn take_stage(
        &self,
        wanted: fn(&Stage<C, T>) -> bool,
        next: Stage<C, T>,
    ) -> Option<Stage<C, T>> {
        let stage = &mut self.slot.lock().stage;
        wanted(stage).then(|| mem::replace(stage, next))
    }

    /// Calls the closure, and leaves its value to the handle.
    fn call(&self, closure: C, shared: &Shared) {
        let value = panic::catch_unwind(AssertUnwindSafe(closure)).map_err(JoinError::panicked);
        let detached = {
            let mut slot = self.slot.lock();
            slot.stage = Stage::Value(value);
            slot.detached
        };
        self.done.complete();
        if detached {
            self.drop_value(shared);
        }
    }

    /// Drops the value, if it is there: no thread takes it. If the closure panicked, the panic
    /// becomes the scope's. A panic of the value's destructor goes no further.
    fn drop_value(&self, shared: &Shared) {
        match self.take() {
            Some(Err(JoinError::Panicked(payload))) => shared.panicked(payload.into_inner()),
            value => shielded("dropping a scoped closure's value", || drop(value)),
        }
    }

    /// Returns the closure, if no thread has started it, for a thread that runs it or returns it.
    fn take_waiting(&self) -> Option<(C, ScopeMember)> {
        match self.take_stage(|stage| matches!(stage, Stage::Waiting(..)), Stage::Running)? {
            Stage::Waiting(closure, member) => Some((closure, member)),
            _ => None,
        }
    }
}

impl<C: FnOnce() -> T + Send, T: Send> Runs for ScopedTask<C, T> {
    fn run(&self) {
        if let Some((closure, member)) = self.take_waiting() {
            self.call(closure, &member.0);
            // This comes last, and in a frame that was given nothing of `'scope`: from here on the
            // scope may be over.
            drop(member);
        }
    }
}

// SAFETY: `repr(C)`; the header comes first, and is made in `spawn_from` only.
unsafe impl<C: FnOnce() -> T + Send, T: Send> Item for ScopedTask<C, T> {
    fn cancelled(&self) {
        let Some((closure, member)) = self.take_waiting() else { return };
        self.slot.lock().stage = Stage::Returned(closure);
        // Its joiner runs it.
        self.done.complete();
        drop(member);
    }

    fn panicked(&self, payload: Box<dyn Any + Send>) {
        // The panic is a subscriber's before the closure ran; `run` catches the closure's own.
        match self.part_at {
            Some(_) => self.run(),
            None => self.cancelled(),
        }
        panics::discard(payload);
    }

    fn spawner(&self) -> Option<&Span> {
        self.spawner.span()
    }
}

impl<C: FnOnce() -> T + Send, T: Send> ScopedItem for ScopedTask<C, T> {
    fn is_over(&self) -> bool {
        // This isn't done while it runs: the scope waits for it, as a listed wait.
        self.done.is_complete() && !self.slot.lock().stage.is_returned()
    }

    fn run_returned(&self, shared: &Shared) {
        if let Some(Stage::Returned(closure)) = self.take_stage(Stage::is_returned, Stage::Running)
        {
            self.call(closure, shared);
        }
    }

    fn done(&self) -> &Completion {
        &self.done
    }

    fn has_begun(&self) -> bool {
        !matches!(self.slot.lock().stage, Stage::Waiting(..))
    }

    fn part_at(&self) -> Option<&'static Location<'static>> {
        self.part_at
    }

    fn give_up(&self) {
        let closure = self.take_stage(Stage::is_returned, Stage::Gone);
        shielded("dropping a scoped closure that can't run", || drop(closure));
    }
}

impl<C: FnOnce() -> T + Send, T: Send> Outcome<T> for ScopedTask<C, T> {
    fn take(&self) -> Option<Result<T, JoinError>> {
        match self.take_stage(|stage| matches!(stage, Stage::Value(_)), Stage::Gone) {
            Some(Stage::Value(value)) => Some(value),
            _ => None,
        }
    }

    fn detach(&self, shared: &Shared) {
        self.slot.lock().detached = true;
        self.drop_value(shared);
    }
}

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left = self.shared.left.load(Ordering::Relaxed);
        f.debug_struct("Scope")
            .field("queue", &self.shared.queue.name())
            .field("left", &left)
            .finish()
    }
}

impl<T> fmt::Debug for ScopedJoinHandle<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScopedJoinHandle").field("finished", &self.is_finished()).finish()
    }
}
