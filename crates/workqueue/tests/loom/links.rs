//! PwqTable: queueing while other attributes take a queue's pwqs away, and the end of a queue. No
//! thread uses a pwq that is gone, each is collected once, and the queue goes with its last
//! instance.

use std::sync::Arc;

use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::model::must_fail;
use corewise_sync::thread;
use corewise_workqueue::model::{
    CountPolicy, LooksNowhere, PwqModel, ReadsAgainInNoOrder, RealCounts, TrustsTheEntry,
};

fn check(model: impl Fn(&Arc<[AtomicUsize; 2]>) -> usize + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let ended = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let pwqs = model(&ended);
        let [collected, gone] = &*ended;
        assert_eq!(collected.load(Ordering::Relaxed), pwqs, "each pwq is collected, once");
        assert_eq!(gone.load(Ordering::Relaxed), 1, "and then the queue is gone");
    });
}

/// Checks a thread that queues an instance, and ends it, while the attributes change `changes`
/// times.
fn queue_against_changes<C: CountPolicy>(changes: usize) {
    check(move |ended| {
        let queue = Arc::new(PwqModel::<C>::new(ended));
        let queuer = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.queue().end())
        };
        (0..changes).for_each(|_| queue.change());
        queuer.join().unwrap();
        1 + changes
    });
}

#[test]
fn loom_links_a_queuer_never_uses_a_link_that_is_gone() {
    queue_against_changes::<RealCounts>(1);
}

#[test]
fn loom_links_a_queuer_may_find_a_seat_that_is_used_again() {
    queue_against_changes::<RealCounts>(2);
}

#[test]
fn loom_links_trusting_the_entry_uses_a_freed_link() {
    must_fail("loom_links_trusting_the_entry_uses_a_freed_link", || {
        queue_against_changes::<TrustsTheEntry>(1);
    });
}

#[test]
fn loom_links_rereading_without_order_uses_a_freed_link() {
    must_fail("loom_links_rereading_without_order_uses_a_freed_link", || {
        queue_against_changes::<ReadsAgainInNoOrder>(1);
    });
}

/// Checks an instance that was queued here and ends on another thread, against `then`; the handle
/// goes last.
fn last_instance_against<C: CountPolicy>(then: fn(&PwqModel<C>), pwqs: usize) {
    check(move |ended| {
        let queue = PwqModel::<C>::new(ended);
        let ticket = queue.queue();
        let worker = thread::spawn(move || ticket.end());
        then(&queue);
        drop(queue);
        worker.join().unwrap();
        pwqs
    });
}

#[test]
fn loom_links_the_queue_goes_with_its_last_handle_and_its_last_instance() {
    last_instance_against::<RealCounts>(|_| (), 1);
}

#[test]
fn loom_links_a_flush_a_change_and_the_end_against_the_last_instance() {
    last_instance_against::<RealCounts>(
        |queue| {
            queue.change();
            queue.flush();
        },
        2,
    );
}

#[test]
fn loom_links_where_the_last_one_does_not_look_the_queue_stays_for_ever() {
    must_fail("loom_links_where_the_last_one_does_not_look_the_queue_stays_for_ever", || {
        last_instance_against::<LooksNowhere>(|_| (), 1);
    });
}

#[test]
fn loom_links_the_later_of_two_instances_collects() {
    check(|ended| {
        let queue = PwqModel::<RealCounts>::new(ended);
        let tickets = [queue.queue(), queue.queue()];
        let workers = tickets.map(|ticket| thread::spawn(move || ticket.end()));
        drop(queue);
        for worker in workers {
            worker.join().unwrap();
        }
        1
    });
}

/// Checks an instance that is over before its queuer is back from the push, while the attributes
/// change twice. The second change gives up the pwqs that the first left in limbo.
fn push_against_changes(protected: bool) {
    check(move |ended| {
        let queue = Arc::new(PwqModel::<RealCounts>::new(ended));
        let queuer = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.push(protected, |ticket| ticket.end()))
        };
        queue.change();
        queue.change();
        queuer.join().unwrap();
        3
    });
}

#[test]
fn loom_links_the_pools_stay_until_the_push_is_over() {
    push_against_changes(true);
}

#[test]
fn loom_links_an_unprotected_push_touches_freed_pools() {
    must_fail("loom_links_an_unprotected_push_touches_freed_pools", || {
        push_against_changes(false);
    });
}

/// Checks the same with a worker that ends the instance as soon as it is pushed.
#[test]
fn loom_links_the_pools_outlive_the_instance_on_every_path() {
    check(|ended| {
        let queue = PwqModel::<RealCounts>::new(ended);
        let changer = Arc::new(queue);
        let queue = Arc::clone(&changer);
        let other = thread::spawn(move || changer.change());
        let mut worker = None;
        queue.push(true, |ticket| worker = Some(thread::spawn(move || ticket.end())));
        other.join().unwrap();
        worker.expect("it was pushed").join().unwrap();
        2
    });
}
