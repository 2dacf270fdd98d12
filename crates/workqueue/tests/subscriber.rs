//! A `tracing` subscriber is the user's code: it must not run while a lock is held, and its panics
//! must do no harm.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use corewise_sync::context::AtomicSection;
use corewise_sync::{Completion, Mutex};
use corewise_topology::Machine;
use corewise_workqueue::{Queued, Work, WorkerPools, Workqueue};
use tracing::span::Id;
use tracing::subscriber::Interest;
use tracing::{Dispatch, Event, Metadata, Subscriber, dispatcher};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// Calls a function in the first event, and does nothing in events that follow from it.
struct Once<F>(Mutex<Option<F>>);

impl<F: FnOnce() + Send + 'static, S: Subscriber> Layer<S> for Once<F> {
    fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
        let function = self.0.lock().take();
        if let Some(function) = function {
            function();
        }
    }
}

/// Runs `body` under a subscriber that calls `function` in its first event on this thread.
fn with_event(function: impl FnOnce() + Send + 'static, body: impl FnOnce()) {
    let subscriber = tracing_subscriber::registry().with(Once(Mutex::new(Some(function))));
    tracing::subscriber::with_default(subscriber, body);
}

fn pools() -> WorkerPools {
    WorkerPools::new(&Machine::synthetic("numa:1 l3:1 core:2 pu:1").expect("valid"))
}

#[test]
fn a_subscriber_may_use_the_queue_that_a_warning_is_about() {
    let pools = pools();
    let queue = Workqueue::builder("much").build(&pools).expect("a queue");
    let (ran, told) = std::sync::mpsc::channel();
    let uses = |queue: Workqueue| {
        let (pools, ran) = (pools.clone(), ran.clone());
        move || {
            queue.set_max_active(queue.attributes().max_active.min(3)).expect("it may change");
            let other = Workqueue::builder("another").max_active(4000).build(&pools);
            other.expect("a queue").spawn(|| 1).join().expect("it ran");
            ran.send(queue.spawn(|| 2).join().expect("it ran")).expect("the test listens");
        }
    };
    with_event(uses(queue.clone()), || queue.set_max_active(3000).expect("it may change"));
    let mut attributes = queue.attributes();
    assert_eq!(attributes.max_active, 3, "the subscriber's came last");
    attributes.max_active = 3000;
    with_event(uses(queue.clone()), || queue.set_attributes(&attributes).expect("valid"));
    drop(ran);
    assert_eq!(told.iter().collect::<Vec<_>>(), [2, 2]);
    pools.shutdown();
}

/// Counts the events, and panics in each.
struct Panics(Arc<AtomicUsize>);

impl<S: Subscriber> Layer<S> for Panics {
    fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("on purpose");
    }
}

#[test]
fn a_subscriber_that_panics_on_a_worker_takes_no_item_and_no_worker_with_it() {
    let (events, made) = (Arc::new(AtomicUsize::new(0)), AtomicBool::new(false));
    let counts = Arc::clone(&events);
    let machine = Machine::synthetic("numa:1 l3:1 core:2 pu:1").expect("valid");
    let pools = WorkerPools::builder(&machine)
        .spawn_handler(move |worker| {
            if made.swap(true, Ordering::SeqCst) {
                return Err(io::Error::other("one is enough"));
            }
            let subscriber = tracing_subscriber::registry().with(Panics(Arc::clone(&counts)));
            let run = || tracing::subscriber::with_default(subscriber, || worker.run());
            std::thread::Builder::new().spawn(run).map(drop)
        })
        .build();
    let queue = Workqueue::builder("panics").max_active(1).build(&pools).expect("a first worker");
    // The worker that takes it asks for another one, and logs that there is none.
    assert_eq!(queue.spawn(|| 1).join().expect("it ran"), 1);
    assert!(events.load(Ordering::SeqCst) >= 1, "cannot start a worker thread");
    let (panics, leaves) = (
        Work::new(|| panic!("also on purpose")),
        Work::new(|| std::mem::forget(AtomicSection::enter("left behind"))),
    );
    assert_eq!(queue.queue(&panics), Ok(Queued::Now));
    assert_eq!(queue.queue(&leaves), Ok(Queued::Now));
    queue.flush();
    assert!(events.load(Ordering::SeqCst) >= 3, "both are reported");
    assert_eq!(queue.spawn(|| 2).join().expect("it ran"), 2);
    assert_eq!(pools.report().iter().map(|pool| pool.workers).sum::<usize>(), 1);
    pools.shutdown();
}

/// Panics when a run begins, or when it is over.
#[derive(Clone, Copy, PartialEq)]
enum PanicsAt {
    Enabled,
    Enter,
    Exit,
}

impl<S: Subscriber> Layer<S> for PanicsAt {
    fn on_enter(&self, _: &Id, _: Context<'_, S>) {
        assert!(*self != PanicsAt::Enter, "on purpose, before the run");
    }

    fn on_exit(&self, _: &Id, _: Context<'_, S>) {
        assert!(*self != PanicsAt::Exit, "on purpose, after the run");
    }
}

/// Returns a queue whose workers have that subscriber.
fn queue_with(panics: PanicsAt) -> Workqueue {
    let machine = Machine::synthetic("numa:1 l3:1 core:1 pu:1").expect("valid");
    let pools = WorkerPools::builder(&machine)
        .spawn_handler(move |worker| {
            let subscriber = tracing_subscriber::registry().with(panics);
            let run = || tracing::subscriber::with_default(subscriber, || worker.run());
            std::thread::Builder::new().spawn(run).map(drop)
        })
        .build();
    Workqueue::builder("panics").build(&pools).expect("a first worker")
}

#[test]
fn a_subscriber_that_panics_after_a_run_doesn_t_touch_the_value_that_is_there() {
    let queue = queue_with(PanicsAt::Exit);
    let spawned = queue.spawn(|| Box::new(7));
    queue.flush();
    assert!(spawned.is_finished());
    assert_eq!(*spawned.join().expect("it had its value before the panic"), 7);
}

#[test]
fn a_subscriber_that_panics_before_a_run_leaves_no_handle_waiting() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("also on purpose, in the closure's destructor");
        }
    }
    let queue = queue_with(PanicsAt::Enter);
    let bomb = Bomb;
    let spawned = queue.spawn(move || drop(bomb));
    queue.flush();
    assert!(spawned.is_finished(), "neither its value nor its panic will come");
    assert!(spawned.join().is_err());
}

/// Panics once, when it is armed, and records that.
#[derive(Clone)]
struct PanicsOnce(PanicsAt, Arc<AtomicBool>, Arc<Completion>);

thread_local! {
    /// The thread wants spans that it makes itself, for runs that aren't its own.
    static OWNER: Cell<bool> = const { Cell::new(false) };
}

impl PanicsOnce {
    fn is_at(&self, at: PanicsAt) {
        if self.0 == at && self.1.swap(false, Ordering::SeqCst) {
            self.2.complete();
            panic!("on purpose");
        }
    }
}

impl<S: Subscriber> Layer<S> for PanicsOnce {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, _: &Metadata<'_>, _: Context<'_, S>) -> bool {
        if !OWNER.get() {
            self.is_at(PanicsAt::Enabled);
        }
        true
    }

    fn on_enter(&self, _: &Id, _: Context<'_, S>) {
        self.is_at(PanicsAt::Enter);
    }

    fn on_exit(&self, _: &Id, _: Context<'_, S>) {
        self.is_at(PanicsAt::Exit);
    }
}

#[test]
fn a_fork_whose_thief_panics_before_the_call_is_called_by_its_owner_and_one_after_it_once() {
    for at in [PanicsAt::Enabled, PanicsAt::Enter, PanicsAt::Exit] {
        let panics = PanicsOnce(at, Arc::default(), Arc::new(Completion::new()));
        // There is one for all workers, so that a thief's span lies in its owner's.
        let subscriber = Dispatch::new(tracing_subscriber::registry().with(panics.clone()));
        let machine = Machine::synthetic("numa:1 l3:1 core:2 pu:1").expect("valid");
        let pools = WorkerPools::builder(&machine)
            .spawn_handler(move |worker| {
                let subscriber = subscriber.clone();
                let run = move || dispatcher::with_default(&subscriber, || worker.run());
                std::thread::Builder::new().spawn(run).map(drop)
            })
            .build();
        let queue = Workqueue::builder("forks").build(&pools).expect("a queue");
        let (own, calls) = (queue.clone(), AtomicUsize::new(0));
        let called = queue.spawn(move || {
            let PanicsOnce(_, armed, panicked) = panics;
            OWNER.set(true);
            armed.store(true, Ordering::SeqCst);
            let fork = || {
                calls.fetch_add(1, Ordering::SeqCst);
                std::thread::current().id()
            };
            let ((), there) = own.join(|| panicked.wait(), fork);
            (calls.load(Ordering::SeqCst), there == std::thread::current().id())
        });
        assert_eq!(called.join().expect("no panic"), (1, at != PanicsAt::Exit));
        pools.shutdown();
    }
}

#[test]
fn a_subscriber_that_panics_at_a_refused_timer_item_does_not_harm_the_timer_thread() {
    let drained = Workqueue::builder("drained").build(&pools()).expect("a queue");
    let gate = Arc::new(Completion::new());
    let waits = Arc::clone(&gate);
    drop(drained.spawn(move || waits.wait()));
    let (events, refused) = (Arc::new(AtomicUsize::new(0)), Work::new(|| ()));
    assert_eq!(drained.queue_delayed(&refused, Duration::from_secs(3600)), Ok(Queued::Now));
    std::thread::scope(|scope| {
        scope.spawn(|| drained.drain());
        while drained.execute(|| ()).is_ok() {
            std::thread::yield_now();
        }
        let subscriber = tracing_subscriber::registry().with(Panics(Arc::clone(&events)));
        let fire = || tracing::subscriber::with_default(subscriber, || refused.flush_delayed());
        let fired = std::panic::catch_unwind(std::panic::AssertUnwindSafe(fire));
        gate.complete();
        assert!(fired.expect("no panic"), "it was there, and is over");
    });
    assert!(events.load(Ordering::SeqCst) > 0, "the refusal is reported");
}

#[test]
fn a_closure_without_a_handle_is_dropped_once_whenever_a_subscriber_panics() {
    struct Counted(Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
            assert!(
                !std::thread::panicking(),
                "on purpose, in the middle of the subscriber's panic"
            );
        }
    }
    for (panics, runs) in [(PanicsAt::Enter, 0), (PanicsAt::Exit, 1)] {
        let (ran, drops) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let queue = queue_with(panics);
        let (its, counted) = (Arc::clone(&ran), Counted(Arc::clone(&drops)));
        let taken = queue.execute(move || {
            its.fetch_add(1, Ordering::SeqCst);
            drop(counted);
        });
        assert!(taken.is_ok());
        queue.flush();
        assert_eq!((ran.load(Ordering::SeqCst), drops.load(Ordering::SeqCst)), (runs, 1));
        assert_eq!(Arc::strong_count(&drops), 1);
    }
}

#[test]
fn a_subscriber_that_panics_before_a_scoped_closure_s_run_takes_no_closure_with_it() {
    let queue = Workqueue::builder("scoped").build(&pools()).expect("a queue");
    let own = queue.clone();
    let ran = queue.spawn(move || {
        let ran = AtomicUsize::new(0);
        let subscriber = tracing_subscriber::registry().with(PanicsAt::Enter);
        tracing::subscriber::with_default(subscriber, || {
            own.scope(|s| {
                for _ in 0..10 {
                    s.spawn(|| ran.fetch_add(1, Ordering::SeqCst));
                }
            });
        });
        ran.into_inner()
    });
    assert_eq!(ran.join().expect("no panic"), 10);
}
