//! Tests of waits that are given up while what they wait for comes about after all: stepped by
//! hand.

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use corewise_sync::{Completion, Parker};
use corewise_topology::{CpuId, Machine};

use super::{Dependency, Fact, ListedWait, LongWaits, Need, Wait, long_waits};
use crate::attributes::{At, QueueKind};
use crate::error::Queued;
use crate::handle::work::Work;
use crate::pools::WorkerPools;
use crate::pwq::Pwq;
use crate::queue::Workqueue;
use crate::task::header::Header;
use crate::wait::Target;
use crate::wait::{Role, home, lend};

/// Pools whose items' waits are long soon, and a queue that lets one through at a time, on the one
/// CPU.
fn limited() -> (WorkerPools, Workqueue) {
    let machine = Machine::synthetic("numa:1 l3:1 core:2 pu:1").expect("a valid description");
    let pools = WorkerPools::builder(&machine).stall_after(Duration::from_millis(20)).build();
    let builder = Workqueue::builder("limited").kind(QueueKind::Bound);
    let limited = builder.max_active(1).build(&pools).expect("a queue");
    (pools, limited)
}

/// Creates an item that is over when the event is complete, and does nothing else.
fn until(gate: &Arc<Completion>) -> Work {
    let gate = Arc::clone(gate);
    Work::new(move || gate.wait())
}

/// Creates a wait for this item, by hand on no thread: it would run nothing, and keeps this.
fn wait<'a>(
    waits: &'static LongWaits,
    work: &'a Work,
    over: &'a Completion,
    keeps: Vec<Fact>,
) -> ListedWait<'a> {
    let target = Target::Item(work.lent(), Role::Waits);
    let listed = waits.add(target, over, Parker::new().unparker());
    listed.helps(Some(&[]), home(work.lent()), true);
    let mut list = waits.list.lock();
    let own = list.waits.get_mut(&listed.id).expect("just listed");
    own.keeps = keeps;
    own.thread = corewise_sync::thread::spawn(|| corewise_sync::thread::current().id())
        .join()
        .expect("it ends");
    drop(list);
    listed
}

/// Returns the place that a held item needs.
fn place_for(work: &Work) -> Fact {
    let place = |pwq: &Pwq| Fact::Place(NonNull::from(&*pwq.slot));
    let held = work.lent().look(|job| job.ticket.as_ref().map(Pwq::of).map(place));
    held.flatten().expect("it is held")
}

/// Queues it there.
fn queue(limited: &Workqueue, work: &Work) {
    assert_eq!(limited.at(At::Cpu(CpuId::new(1))).queue(work), Ok(Queued::Now));
}

/// Changes the wait for the item on the process's list, once it is there.
fn with_wait(work: &Work, change: impl Fn(&mut Wait)) {
    let header: &Header = &work.lent();
    loop {
        let mut list = long_waits().list.lock();
        let its = list.waits.values_mut().find(|wait| match wait.waits_for {
            Dependency::Item { item, .. } => ptr::eq(item.as_ptr(), header),
            Dependency::Queue { .. } | Dependency::Fork(_) => false,
        });
        if let Some(own) = its {
            return change(own);
        }
        drop(list);
        thread::yield_now();
    }
}

/// Checks that an item goes on when `free` lets the held one through that it waits for. It is given
/// up when that runs.
fn goes_on_where_it_was_let_through_by(free: impl FnOnce(&Workqueue, &Completion)) {
    let (pools, limited) = limited();
    let [first, second] = [(); 2].map(|()| Arc::<Completion>::default());
    let (before, held) = (until(&first), Arc::new(until(&second)));
    queue(&limited, &before);
    queue(&limited, &held);
    let elsewhere = Workqueue::builder("elsewhere").kind(QueueKind::Bound).build(&pools);
    let awaited = Arc::clone(&held);
    let waiter =
        elsewhere.expect("a queue").at(At::Cpu(CpuId::new(0))).spawn(move || awaited.flush());
    with_wait(&held, |_| ());
    free(&limited, &first);
    while !held.lent().state.snapshot().running() {
        thread::yield_now();
    }
    // As if a look had found, before that, that it can't end.
    with_wait(&held, |own| {
        own.ends = true;
        own.unparker.unpark();
    });
    // It sees that this isn't so, and waits on.
    let is_given_up = || long_waits().list.lock().waits.values().any(|wait| wait.ends);
    while is_given_up() && !waiter.is_finished() {
        thread::yield_now();
    }
    [first, second].iter().for_each(|gate| gate.complete());
    assert!(waiter.join().expect("its wait could end"));
    pools.shutdown();
}

#[test]
fn stepped_a_wait_is_not_given_up_whose_item_has_got_the_place_of_one_that_ended_meanwhile() {
    goes_on_where_it_was_let_through_by(|_, first| first.complete());
}

#[test]
fn stepped_a_wait_is_not_given_up_whose_item_a_higher_limit_has_let_through_meanwhile() {
    goes_on_where_it_was_let_through_by(|limited, _| {
        limited.set_max_active(2).expect("it is no ordered queue");
    });
}

#[test]
fn stepped_one_of_the_circle_is_given_up_and_the_waiter_for_its_place_goes_on() {
    let waits: &'static LongWaits = Box::leak(Box::default());
    let (pools, limited) = limited();
    let gate = Arc::<Completion>::default();
    let before = until(&gate);
    let [item, behind] = [(); 2].map(|()| Work::new(|| ()));
    [&before, &item, &behind].iter().for_each(|work| queue(&limited, work));
    let over = [Completion::new(), Completion::new()];
    // The later one has the place that both need, as if `before` waited for it.
    let outside = wait(waits, &behind, &over[0], Vec::new());
    let inside = wait(waits, &item, &over[1], vec![place_for(&item)]);
    waits.look(outside.id);
    assert!(inside.ends() && !outside.ends(), "the other one could still go on");
    assert_eq!(inside.needs(), Some(Need::Place));
    assert!(lend(item.lent()));
    item.flush();
    gate.complete();
    behind.flush();
    drop(inside);
    // As if it had been given up before.
    waits.list.lock().waits.get_mut(&outside.id).expect("it is listed").ends = true;
    assert_eq!(outside.needs(), None, "its item was let through");
    assert!(!outside.ends(), "so it waits on");
    drop(outside);
    pools.shutdown();
}

#[test]
fn stepped_a_place_that_somebody_is_about_to_get_is_waited_for() {
    let waits: &'static LongWaits = Box::leak(Box::default());
    let (pools, limited) = limited();
    let gate = Arc::<Completion>::default();
    let (before, item) = (until(&gate), Work::new(|| ()));
    [&before, &item].iter().for_each(|work| queue(&limited, work));
    let over = Completion::new();
    let own = wait(waits, &item, &over, vec![place_for(&item)]);
    waits.look(own.id);
    assert_eq!(own.needs(), Some(Need::Place));
    // The limit is raised: its item is held back until somebody settles that.
    item.lent().look(|job| Pwq::of(job.ticket.as_ref().expect("it is held")).slot.set_limit(2));
    assert_eq!(own.needs(), None);
    // And lowered again: it is in need as before, and isn't given up for what was seen before.
    item.lent().look(|job| Pwq::of(job.ticket.as_ref().expect("it is held")).slot.set_limit(1));
    assert_eq!(own.needs(), Some(Need::Place));
    drop(own);
    gate.complete();
    item.flush();
    pools.shutdown();
}
