//! The mixed scenario: threads act on two queues and their items in every possible way, in a random
//! order, and the rules hold all the same. `tests/shuttle/random.rs` runs it in random schedules,
//! `torture.rs` on the real machine.

mod control;
mod ledger;
mod tasks;

use std::sync::atomic::AtomicI64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::chance::Chance;
use corewise_sync::thread;
use corewise_topology::{CpuId, Machine};
use corewise_workqueue::{At, QueueKind, Queued, Work, WorkerPools, Workqueue};
use ledger::{Entry, Gauge, Ledger, Order, Span};
use tasks::Tasks;

/// The size of a run.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) actors: u64,
    /// Number of acts of each actor.
    pub(crate) acts: u64,
}

/// One queue, and the items that belong on it.
struct Line {
    queue: Workqueue,
    items: Vec<Item>,
    gauge: Arc<Gauge>,
    /// The order, if it runs its tasks in order.
    order: Option<Arc<Order>>,
    /// The span in which it is drained.
    refusing: Arc<Span>,
    /// Number of refusable closures that it has let in.
    let_in: Arc<AtomicI64>,
}

#[derive(Clone)]
struct Item {
    work: Work,
    entry: Arc<Entry>,
}

struct World {
    ledger: Arc<Ledger>,
    pools: WorkerPools,
    /// Numbers of CPUs, and of nodes.
    size: (u64, u64),
    /// A queue that takes all items, and one that holds some back.
    lines: [Line; 2],
    /// An item that is queued on either queue.
    nomad: Item,
    /// A second item, with delays.
    late: Item,
    /// True if there are drains: they refuse a delayed item when its time comes.
    drains: bool,
    tasks: Tasks,
}

/// The handle by which a work item acts on itself; filled after it was made, emptied at the end.
type OwnHandle = Arc<Mutex<Option<(Workqueue, Item)>>>;

/// Runs the scenario once.
///
/// # Panics
/// If a rule doesn't hold.
pub(crate) fn scenario<C: Chance>(mut chance: C, size: Size) {
    let mut selves = Vec::new();
    let world = Arc::new(World::new(&mut chance, &mut selves));
    let actors: Vec<_> = (0..size.actors)
        .map(|_| {
            let (world, mut chance) = (Arc::clone(&world), chance.another());
            thread::spawn(move || (0..size.acts).for_each(|_| world.act(&mut chance)))
        })
        .collect();
    let early = chance.one_in(4);
    if early {
        world.ledger.close();
        world.pools.shutdown();
    }
    for actor in actors {
        actor.join().expect("actors don't panic");
    }
    world.end(&mut chance);
    for own in selves {
        let item = own.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(item);
    }
    world.ledger.settle();
}

impl World {
    fn new<C: Chance>(chance: &mut C, selves: &mut Vec<OwnHandle>) -> World {
        let ledger = Arc::new(Ledger::default());
        let (machine, size) = [
            ("numa:1 l3:1 core:1 pu:1", (1, 1)),
            ("numa:1 l3:1 core:2 pu:1", (2, 1)),
            ("numa:2 l3:1 core:1 pu:1", (2, 2)),
        ][chance.below(3) as usize];
        let machine = Machine::synthetic(machine).expect("a valid description");
        let pools = WorkerPools::builder(&machine).max_workers(8).build();
        let mut line = |held: bool| {
            let name = if held { "held" } else { "free" };
            let gauge = Arc::new(Gauge::default());
            let refusing = Arc::new(Span::default());
            let mut builder = Workqueue::builder(name).capacity(tasks::CAPACITY);
            if held {
                builder = control::held(builder, size, &gauge, chance);
            } else {
                builder = builder.scope(control::scope(chance)).strict(chance.one_in(3));
            }
            let queue = builder.build(&pools).expect("a queue");
            let item = |n| {
                let spans = vec![Arc::clone(&refusing)];
                let entry = Entry::new(format!("{name}{n}"), &ledger, &gauge, spans);
                item(entry, &queue, selves)
            };
            let items = (0..2).map(item).collect();
            let order = (queue.kind() == QueueKind::Ordered).then(Arc::default);
            Line { queue, items, gauge, order, refusing, let_in: Arc::default() }
        };
        let lines = [line(false), line(true)];
        let mut wanderer = |name: &str| {
            let spans = lines.iter().map(|line| Arc::clone(&line.refusing)).collect();
            let entry = Entry::new(name.into(), &ledger, &Arc::default(), spans);
            item(entry, &lines[0].queue, selves)
        };
        World {
            nomad: wanderer("nomad"),
            late: wanderer("late"),
            drains: chance.one_in(2),
            tasks: Tasks::new(&ledger),
            ledger,
            pools,
            size,
            lines,
        }
    }

    /// Makes one act of an actor.
    fn act<C: Chance>(&self, chance: &mut C) {
        let held = chance.one_in(2);
        let line = &self.lines[usize::from(held)];
        let item = &line.items[chance.below(line.items.len() as u64) as usize];
        match chance.below(25) {
            0..3 => {
                item.entry.queue(|| line.queue.queue(&item.work) == Ok(Queued::Now));
            }
            3 => {
                let cpu = chance.below(self.size.0 + 1) as u32;
                item.entry.queue(|| {
                    line.queue.at(At::Cpu(CpuId::new(cpu))).queue(&item.work) == Ok(Queued::Now)
                });
            }
            4 => {
                self.nomad.entry.queue(|| line.queue.queue(&self.nomad.work) == Ok(Queued::Now));
            }
            5 | 6 => {
                let queue = || line.queue.queue(&item.work) == Ok(Queued::Now);
                item.entry.queue_and_flush(queue, || item.work.flush(), "Work::flush");
            }
            7 => self.flush(line),
            8..11 => {
                // Waits go only from the queue that holds back to the one that doesn't, so there is
                // no circle.
                self.tasks.act(line, held.then_some(&self.lines[0].queue), chance);
            }
            11 => line.set_attributes(&self.ledger, chance),
            12 if held => line.set_max_active(self.size, &self.ledger, chance),
            13 if self.drains => line.drain(),
            13 => self.flush(line),
            14..17 => self.cancel(chance),
            17 => {
                let Item { work, entry } = item;
                let at_rest = || !work.is_pending() && !work.is_running();
                entry.withdraw_and_wait(|| work.cancel_sync(), at_rest, "Work::cancel_sync");
            }
            18 => {
                let (Item { work, entry }, waits) = (item, chance.one_in(2));
                let disable = || if waits { work.disable_sync() } else { work.disable() };
                let queue = || line.queue.queue(work) == Ok(Queued::Now);
                entry.while_disabled(waits, disable, queue, || {
                    work.enable();
                });
            }
            19 => control::change(self.pools.machine(), self.size.0, chance),
            20 => self.tasks.burst(&self.lines[1]),
            21..24 => self.delay(line, chance),
            _ => drop(self.pools.dump()),
        }
    }

    fn cancel<C: Chance>(&self, chance: &mut C) {
        let items = self.lines.iter().flat_map(|line| &line.items).chain([&self.nomad, &self.late]);
        if let Some(Item { work, entry }) = { items }.nth(chance.below(6) as usize) {
            entry.withdraw(|| work.cancel());
        }
    }

    fn delay<C: Chance>(&self, line: &Line, chance: &mut C) {
        let Item { work, entry } = &self.late;
        let delay = Duration::from_millis(chance.below(3));
        // Without a timer the item isn't refused later.
        let may = self.drains && !delay.is_zero();
        match chance.below(5) {
            0 => {
                entry.delay(may, || line.queue.queue_delayed(work, delay) == Ok(Queued::Now));
            }
            1 => {
                entry.delay(may, || line.queue.queue_delayed(work, delay) == Ok(Queued::Now));
                entry.flush(|| work.flush_delayed(), "Work::flush_delayed");
            }
            2 | 3 => entry.modify(self.drains, || line.queue.mod_delayed(work, delay)),
            _ => {
                entry.queue(|| line.queue.queue(work) == Ok(Queued::Now));
            }
        }
    }

    fn flush(&self, line: &Line) {
        let before: Vec<_> = line.items.iter().map(|item| item.entry.accepted()).collect();
        line.queue.flush();
        for (item, before) in line.items.iter().zip(before) {
            item.entry.flushed(before, "Workqueue::flush");
        }
    }

    /// Ends the run: no actor queues any more.
    fn end<C: Chance>(&self, chance: &mut C) {
        // A flush of a queue doesn't wait for timers.
        self.late.work.flush_delayed();
        // A running instance may queue once more: an item itself, a future its next poll, or a task
        // that it waits for and that wakes it. There are six in a row at most.
        for _ in 0..6 {
            self.lines.iter().for_each(|line| line.queue.flush());
        }
        let others = [&self.nomad, &self.late];
        let items = self.lines.iter().flat_map(|line| &line.items).chain(others);
        for Item { work, entry } in items {
            work.flush();
            self.ledger.check(!work.is_pending() && !work.is_running(), || {
                format!("{} is not over: {work:?}", entry.name)
            });
            entry.at_rest();
        }
        self.tasks.at_rest();
        for line in &self.lines {
            if let Some(order) = &line.order {
                order.check(&self.ledger, line.queue.name());
            }
            let stats = line.queue.stats();
            self.ledger
                .check(stats.queued == stats.completed, || format!("at rest with {stats:?}"));
            if chance.one_in(4) {
                line.destroy(&self.ledger);
            }
        }
        // Else the last handle, and with it the workers, go with the world.
        if chance.one_in(2) {
            self.pools.shutdown();
        }
    }
}

/// Creates an item of a queue. Half of the items queue themselves again now and then, and may
/// cancel that.
fn item(entry: Arc<Entry>, queue: &Workqueue, selves: &mut Vec<OwnHandle>) -> Item {
    let again = entry.name.ends_with('1');
    let own_handle: OwnHandle = Arc::default();
    // Its runs never overlap, so no lock is needed.
    let (own, inside, mut runs) = (Arc::clone(&entry), Arc::clone(&own_handle), 0_u64);
    let work = Work::new(move || {
        own.run(|| {
            let run = runs;
            runs += 1;
            if !again || run % 3 != 0 {
                return;
            }
            let me = inside.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if let Some((queue, me)) = me {
                me.entry.queue_self(|| queue.queue(&me.work) == Ok(Queued::Now));
                if run % 2 == 1 {
                    me.entry.withdraw(|| me.work.cancel());
                }
            }
        });
    });
    let item = Item { work, entry };
    *own_handle.lock().unwrap_or_else(PoisonError::into_inner) =
        Some((queue.clone(), item.clone()));
    selves.push(own_handle);
    item
}
