//! A `tracing` subscriber is the user's code: what it does in an event must not come to a lock that is
//! held, and its panics must not do harm.

use corewise_sync::Mutex;
use corewise_topology::Machine;
use corewise_workqueue::{WorkerPools, Workqueue};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// Calls a function in the first event, and nothing in those that follow from it.
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
