//! Carrying: a worker that runs instances of one pair in a row counts them out together. Flushes
//! wait for as long as one of them runs, and no longer, and the queue goes with the last.

use std::sync::Arc;

use corewise_sync::Completion;
use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::fence::{FencePolicy, FullFence};
use corewise_sync::model::must_fail;
use corewise_sync::thread;
use corewise_workqueue::model::{ModelCarrier, ModelTicket, PwqModel, RealCounts};

type Queue = PwqModel<RealCounts>;

fn check(pwqs: usize, model: impl Fn(Queue) + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let ended = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        model(Queue::new(&ended));
        let [collected, gone] = &*ended;
        assert_eq!(collected.load(Ordering::Relaxed), pwqs, "each pwq is collected, once");
        assert_eq!(gone.load(Ordering::Relaxed), 1, "and then the queue is gone");
    });
}

/// Runs a worker that runs these in a row.
fn work(
    queue: &Queue,
    tickets: [ModelTicket<RealCounts>; 2],
    ran: &Arc<AtomicUsize>,
) -> thread::JoinHandle<()> {
    let (carrier, ran) = (queue.carrier(), Arc::clone(ran));
    thread::spawn(move || {
        for ticket in tickets {
            carrier.starts(&ticket);
            ran.fetch_add(1, Ordering::Relaxed);
            carrier.ends(ticket);
        }
        carrier.stops();
    })
}

#[test]
fn loom_carry_a_flush_waits_for_all_that_a_worker_carries() {
    check(1, |queue| {
        let ran = Arc::new(AtomicUsize::new(0));
        let worker = work(&queue, [queue.queue(), queue.queue()], &ran);
        queue.flush();
        assert_eq!(ran.load(Ordering::Relaxed), 2);
        worker.join().unwrap();
        drop(queue);
    });
}

#[test]
fn loom_carry_a_carried_count_keeps_a_retired_link() {
    check(2, |queue| {
        let ran = Arc::new(AtomicUsize::new(0));
        let worker = work(&queue, [queue.queue(), queue.queue()], &ran);
        queue.change();
        queue.flush();
        assert_eq!(ran.load(Ordering::Relaxed), 2);
        drop(queue);
        worker.join().unwrap();
    });
}

#[test]
fn loom_carry_the_later_of_two_workers_collects() {
    check(1, |queue| {
        let ran = Arc::new(AtomicUsize::new(0));
        let workers = [(); 2].map(|()| work(&queue, [queue.queue(), queue.queue()], &ran));
        drop(queue);
        for worker in workers {
            worker.join().unwrap();
        }
    });
}

/// Checks a worker that has run one instance and waits, inside the next one, until a flush of the
/// former is over. The next one may be of the same colour: then it doesn't wait, but the flush
/// does.
fn wait_in_the_next(puts_down: bool) {
    check(1, move |queue| {
        let queue = Arc::new(queue);
        let flushed = Arc::<Completion>::default();
        let first = queue.queue();
        let worker = {
            let (queue, flushed) = (Arc::clone(&queue), Arc::clone(&flushed));
            let carrier = queue.carrier();
            thread::spawn(move || {
                let colour = first.colour();
                carrier.ends(first);
                let next = queue.queue();
                if puts_down {
                    carrier.starts(&next);
                }
                if next.colour() != colour {
                    flushed.wait();
                }
                carrier.ends(next);
                carrier.stops();
            })
        };
        queue.flush();
        flushed.complete();
        worker.join().unwrap();
    });
}

#[test]
fn loom_carry_is_put_down_before_an_instance_of_another_colour() {
    wait_in_the_next(true);
}

#[test]
fn loom_carry_into_an_instance_of_another_colour_and_flushes_wait_for_that() {
    must_fail("loom_carry_into_an_instance_of_another_colour_and_flushes_wait_for_that", || {
        wait_in_the_next(false);
    });
}

/// Checks a worker that has run one and goes idle until a flush is over.
fn go_idle(puts_down: bool) {
    check(1, move |queue| {
        let (carrier, flushed) = (queue.carrier(), Arc::<Completion>::default());
        let ticket = queue.queue();
        let worker = {
            let flushed = Arc::clone(&flushed);
            thread::spawn(move || {
                carrier.ends(ticket);
                if puts_down {
                    carrier.stops();
                }
                flushed.wait();
                carrier.stops();
            })
        };
        queue.flush();
        flushed.complete();
        worker.join().unwrap();
        drop(queue);
    });
}

#[test]
fn loom_carry_is_put_down_before_the_worker_goes_idle() {
    go_idle(true);
}

#[test]
fn loom_carry_into_sleep_and_flushes_wait_for_ever() {
    must_fail("loom_carry_into_sleep_and_flushes_wait_for_ever", || go_idle(false));
}

/// Returns the state after the end of the first two of three instances, when the third is about to
/// run.
fn two_over(queue: &Queue, pretends: bool) -> (ModelCarrier<RealCounts>, ModelTicket<RealCounts>) {
    let carrier = queue.carrier();
    let tickets = [(); 3].map(|()| queue.queue());
    let [first, second, third] = tickets;
    if pretends {
        carrier.pretends(&first, 2);
        first.end();
        second.end();
    } else {
        carrier.ends(first);
        carrier.ends(second);
    }
    (carrier, third)
}

/// Checks an item that queues another from inside. Both are over while the attributes change: the
/// pwq that is retired is the other one's too.
fn queue_inside_against_a_change(pretends: bool) {
    check(2, move |queue| {
        let queue = Arc::new(queue);
        let (carrier, runs) = two_over(&queue, pretends);
        let other = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.change())
        };
        if pretends {
            // This is as if it carried its own instance: for the queue, it is over.
            runs.end();
            let (inside, _) = queue.queue_inside(&carrier);
            inside.end();
        } else {
            let (inside, _) = queue.queue_inside(&carrier);
            carrier.ends(runs);
            carrier.starts(&inside);
            carrier.ends(inside);
            carrier.stops();
        }
        other.join().unwrap();
    });
}

#[test]
fn loom_carry_a_place_that_is_taken_over_keeps_the_link() {
    queue_inside_against_a_change(false);
}

#[test]
fn loom_carry_taking_over_an_uncarried_count_uses_a_freed_link() {
    must_fail("loom_carry_taking_over_an_uncarried_count_uses_a_freed_link", || {
        queue_inside_against_a_change(true);
    });
}

/// Checks an item that queues another from inside. Another worker runs that one and reports it;
/// then a flush waits for it.
#[test]
fn loom_carry_a_flush_waits_for_items_queued_by_taking_over() {
    check(1, |queue| {
        let (carrier, runs) = two_over(&queue, false);
        let ran = Arc::new(AtomicUsize::new(0));
        let (inside, taken_over) = queue.queue_inside(&carrier);
        assert!(taken_over);
        let worker = {
            let ran = Arc::clone(&ran);
            thread::spawn(move || {
                ran.store(1, Ordering::Relaxed);
                inside.end();
            })
        };
        carrier.ends(runs);
        carrier.stops();
        queue.flush();
        assert_eq!(ran.load(Ordering::Relaxed), 1);
        worker.join().unwrap();
        drop(queue);
    });
}

/// Checks an item that queues another from inside and reads the limiter's gate, while another
/// thread closes that and checks whether the queue is empty. After that nothing is accepted any
/// more.
fn queue_inside_against_a_drain(pretends: bool) {
    check(1, move |queue| {
        let queue = Arc::new(queue);
        let (carrier, runs) = two_over(&queue, pretends);
        let (gate, empty) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let worker = {
            let (queue, gate, empty) = (Arc::clone(&queue), Arc::clone(&gate), Arc::clone(&empty));
            thread::spawn(move || {
                let runs = if pretends {
                    runs.end();
                    None
                } else {
                    Some(runs)
                };
                let (inside, _) = queue.queue_inside(&carrier);
                FullFence::implied();
                if gate.load(Ordering::SeqCst) == 0 {
                    // It is accepted, and over.
                    assert_eq!(empty.load(Ordering::Relaxed), 0, "it was looked for");
                }
                if let Some(runs) = runs {
                    carrier.ends(runs);
                    carrier.starts(&inside);
                    carrier.ends(inside);
                    carrier.stops();
                }
            })
        };
        gate.store(1, Ordering::SeqCst);
        if queue.is_empty() {
            empty.store(1, Ordering::Relaxed);
        }
        worker.join().unwrap();
    });
}

#[test]
fn loom_carry_a_drain_sees_items_queued_by_taking_over() {
    queue_inside_against_a_drain(false);
}

#[test]
fn loom_carry_a_drain_misses_items_that_take_over_an_uncarried_count() {
    must_fail("loom_carry_a_drain_misses_items_that_take_over_an_uncarried_count", || {
        queue_inside_against_a_drain(true);
    });
}
