//! Tests of what is said about queues that are used in a way that isn't meant. Its own program,
//! since the subscriber is for all threads.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use corewise_sync::Mutex;
use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_topology::Machine;
use corewise_workqueue::{QueueError, Work, WorkerPools, Workqueue};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

#[path = "support/spin.rs"]
mod spin;
use spin::spin_until;

/// Each event as the text of its fields.
#[derive(Clone, Default)]
struct Capture(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0 += &format!("{}={value:?};", field.name());
    }
}

impl<S: Subscriber> Layer<S> for Capture {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text(format!("{} ", event.metadata().level()));
        event.record(&mut text);
        self.0.lock().push(text.0);
    }
}

/// Returns what was said about the queue, or the function, of this name.
fn said(queue: &str) -> Vec<String> {
    all().into_iter().filter(|event| event.contains(&format!("=\"{queue}\""))).collect()
}

/// Returns what was said.
fn all() -> Vec<String> {
    static CAPTURE: OnceLock<Capture> = OnceLock::new();
    let capture = CAPTURE.get_or_init(|| {
        let capture = Capture::default();
        let subscriber = tracing_subscriber::registry().with(capture.clone());
        tracing::subscriber::set_global_default(subscriber).expect("the only one");
        capture
    });
    capture.0.lock().clone()
}

fn queue(name: &str) -> Workqueue {
    // Before anything is said.
    said(name);
    let pools = WorkerPools::new(&Machine::synthetic("numa:1 l3:1 core:2 pu:1").expect("valid"));
    Workqueue::builder(name).build(&pools).expect("a queue")
}

#[test]
fn a_drain_warns_after_10_rounds_and_after_each_100() {
    let queue = queue("endless");
    let (stop, again) = (Arc::new(AtomicBool::new(false)), queue.clone());
    let slot: Arc<Mutex<Option<Work>>> = Arc::default();
    let (stopped, own) = (Arc::clone(&stop), Arc::clone(&slot));
    let work = Work::new(move || {
        if !stopped.load(Ordering::SeqCst) {
            if let Some(work) = &*own.lock() {
                again.queue(work).unwrap();
            }
        }
    });
    *slot.lock() = Some(work.clone());
    queue.queue(&work).unwrap();
    std::thread::scope(|scope| {
        let drain = scope.spawn(|| queue.drain());
        spin_until(|| said("endless").len() >= 3);
        stop.store(true, Ordering::SeqCst);
        drain.join().unwrap();
    });
    slot.lock().take();
    let said = said("endless");
    for (event, rounds) in said.iter().zip(["rounds=10;", "rounds=100;", "rounds=200;"]) {
        assert!(event.contains("WARN") && event.contains(rounds), "{event}");
    }
}

#[test]
fn queueing_from_outside_during_a_drain_is_warned_about() {
    let queue = queue("drained");
    let go_on = Arc::new(AtomicBool::new(false));
    let waits = Arc::clone(&go_on);
    let busy = queue.spawn(move || {
        spin_until(|| waits.load(Ordering::SeqCst));
    });
    std::thread::scope(|scope| {
        let drain = scope.spawn(|| queue.drain());
        // Each is a new one, so that it can't be refused for being pending.
        spin_until(|| queue.queue(&Work::new(|| ())) == Err(QueueError::Draining));
        go_on.store(true, Ordering::SeqCst);
        drain.join().unwrap();
    });
    busy.join().unwrap();
    let said = said("drained");
    assert!(said.iter().any(|event| event.contains("WARN") && event.contains("dropped")));
}

#[test]
fn a_maximum_beyond_the_limit_is_cut_with_a_warning() {
    let queue = queue("much");
    queue.set_max_active(2048).unwrap();
    assert!(said("much").is_empty());
    queue.set_max_active(2049).unwrap();
    assert!(said("much")[0].contains("2048"));
}

#[test]
fn the_depth_of_disable_ends_at_65535_and_that_is_warned_about() {
    fn name_of<T>(_: &T) -> &'static str {
        std::any::type_name::<T>()
    }
    let function = || ();
    let item = name_of(&function);
    assert!(said(item).is_empty());
    let work = Work::new(function);
    for _ in 0..65_535 {
        work.disable();
    }
    assert!(said(item).is_empty());
    work.disable();
    assert_eq!(said(item).len(), 1);
    assert!(said(item)[0].contains("65535"), "{:?}", said(item));
    // The one that wasn't counted isn't to be taken back either.
    for _ in 0..65_534 {
        assert!(!work.enable());
    }
    assert!(work.enable() && !work.is_disabled());
    work.enable();
    assert!(said(item)[1].contains("more often"), "{:?}", said(item));
}

#[test]
fn a_shutdown_says_again_and_again_what_it_waits_for() {
    all();
    let machine = Machine::synthetic("numa:1 l3:1 core:2 pu:1").expect("valid");
    let pools = WorkerPools::builder(&machine).stall_after(Duration::from_millis(1)).build();
    let queue = Workqueue::builder("for ever").build(&pools).expect("a queue");
    let open = Arc::new(AtomicBool::new(false));
    let opens = Arc::clone(&open);
    let hangs = queue.spawn(move || {
        spin_until(|| opens.load(Ordering::SeqCst));
    });
    let down = std::thread::spawn(move || pools.shutdown());
    let told = || all().iter().filter(|event| event.contains("queued on 'for ever'")).count();
    spin_until(|| told() >= 2);
    assert!(all().iter().any(|event| event.starts_with("WARN") && event.contains("not shut down")));
    open.store(true, Ordering::SeqCst);
    hangs.join().unwrap();
    down.join().unwrap();
}

#[test]
fn a_name_of_a_megabyte_and_a_message_of_one_are_cut_in_the_log() {
    all();
    let long = format!("long-{}-tail", "\u{20ac}".repeat(350_000));
    let queue = queue(&long);
    queue.set_max_active(4096).expect("it is cut");
    let item = Work::new(|| panic!("oversized: {}", "x".repeat(1 << 20)));
    queue.queue(&item).expect("taken");
    item.flush();
    let of_queue: Vec<_> = all()
        .into_iter()
        .filter(|event| event.contains("max_active exceeds") && event.contains("long-"))
        .collect();
    let [warning] = &*of_queue else { panic!("{} warnings", of_queue.len()) };
    assert!(
        warning.len() < 1000 && warning.contains("bytes ...]") && warning.contains("-tail"),
        "{warning}"
    );
    let of_item: Vec<_> = all().into_iter().filter(|event| event.contains("oversized: ")).collect();
    let [panic] = &*of_item else { panic!("{} panics", of_item.len()) };
    assert!(panic.len() < 6000 && panic.contains("bytes ...]"), "{} bytes", panic.len());
}
