//! Carrying: a worker that runs instances of one pair in a row counts them out together. Flushes wait
//! for as long as one of them runs, and no longer, and the queue goes with the last.
#![cfg(loom)]

use std::sync::Arc;

use corewise_sync::Completion;
use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::model::must_fail;
use corewise_sync::thread;
use corewise_workqueue::model::{Careful, LinksModel, ModelTicket};

type Queue = LinksModel<Careful>;

fn check(links: usize, model: impl Fn(Queue) + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let ended = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        model(Queue::new(&ended));
        let [collected, gone] = &*ended;
        assert_eq!(collected.load(Ordering::Relaxed), links, "each link is collected, once");
        assert_eq!(gone.load(Ordering::Relaxed), 1, "and then the queue is gone");
    });
}

/// A worker that runs these in a row.
fn work(
    queue: &Queue,
    tickets: [ModelTicket<Careful>; 2],
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
fn loom_carry_what_is_carried_keeps_a_link_that_is_retired() {
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

/// A worker that has run one waits, inside the next one, until a flush of the former is over. The
/// next one may be of the same colour: then it doesn't wait, the flush does.
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

/// A worker that has run one goes idle until a flush is over.
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
