//! Tests of what a `tracing` subscriber gets to see: a span a run, and what an item left behind.
//! Its own program, since the subscriber is for all threads.

use std::fmt;
use std::sync::{Arc, OnceLock};

use corewise_sync::context::{AtomicSection, in_atomic_section};
use corewise_sync::{Completion, Mutex};
use corewise_topology::{AffinityScope, Machine};
use corewise_workqueue::{Work, WorkerPools, Workqueue};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

#[path = "support/spin.rs"]
mod spin;
use spin::spin_until;

/// Name, then the fields, and the span around it.
#[derive(Debug, Clone, Default)]
struct Seen {
    name: String,
    fields: String,
    inside: Option<String>,
}

impl Visit for Seen {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.fields += &format!("{}={value:?};", field.name());
    }
}

impl Seen {
    fn field(&self, name: &str) -> &str {
        let fields = self.fields.split(';').filter_map(|field| field.split_once('='));
        fields.filter(|(key, _)| *key == name).map(|(_, value)| value).next().unwrap_or("")
    }
}

#[derive(Debug, Clone, Default)]
struct Capture(Arc<Mutex<Vec<Seen>>>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Capture {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let parent = context.span(id).and_then(|span| span.parent());
        let mut seen = Seen {
            name: attributes.metadata().name().into(),
            inside: parent.map(|parent| parent.name().into()),
            ..Seen::default()
        };
        attributes.record(&mut seen);
        self.0.lock().push(seen);
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let around = context.event_span(event);
        let mut seen = Seen { inside: around.map(|span| span.name().into()), ..Seen::default() };
        event.record(&mut seen);
        self.0.lock().push(seen);
    }
}

/// Returns what was seen of a queue with this name.
fn seen(of: &Workqueue) -> Vec<Seen> {
    let all = capture().0.lock().clone();
    all.into_iter().filter(|seen| seen.field("queue") == format!("{:?}", of.name())).collect()
}

fn capture() -> &'static Capture {
    static CAPTURE: OnceLock<Capture> = OnceLock::new();
    CAPTURE.get_or_init(|| {
        let capture = Capture::default();
        let all = tracing_subscriber::registry().with(capture.clone());
        tracing::subscriber::set_global_default(all).expect("nobody else sets one");
        capture
    })
}

fn queue(name: &str) -> (WorkerPools, Workqueue) {
    queue_of(name, 1)
}

fn queue_of(name: &str, cpus: u32) -> (WorkerPools, Workqueue) {
    capture();
    let machine = Machine::synthetic(&format!("numa:1 l3:1 core:{cpus} pu:1"));
    let machine = machine.expect("a valid description");
    let pools = WorkerPools::new(&machine);
    let queue = Workqueue::builder(name).scope(AffinityScope::System).build(&pools);
    (pools, queue.expect("a queue"))
}

#[test]
fn a_run_has_a_span_with_queue_function_and_site() {
    let (_pools, queue) = queue("spans");
    let line = line!() + 1;
    queue.queue(&Work::new(|| tracing::info!(queue = "spans", "inside"))).unwrap();
    queue.flush();
    let seen = seen(&queue);
    let (run, event) = (&seen[0], &seen[1]);
    assert_eq!((run.name.as_str(), run.inside.as_deref()), ("run", None));
    assert!(run.field("function").contains("a_run_has_a_span"), "{run:?}");
    assert!(run.field("site").contains(&format!("tests/traces.rs:{line}:")), "{run:?}");
    assert_eq!(event.inside.as_deref(), Some("run"));
}

#[test]
fn the_span_of_a_spawn_lies_in_its_spawner_s() {
    let (_pools, queue) = queue("parents");
    let outer = tracing::info_span!("outer").entered();
    queue.spawn(|| ()).join().unwrap();
    queue.scope(|s| drop(s.spawn(|| ())));
    let mut polls = 0;
    let future = queue.spawn_future(std::future::poll_fn(move |cx| {
        polls += 1;
        cx.waker().wake_by_ref();
        if polls == 2 { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    }));
    drop(outer);
    future.join().unwrap();
    queue.spawn(|| ()).join().unwrap();
    queue.flush();
    let parents: Vec<_> = seen(&queue).into_iter().map(|run| run.inside).collect();
    let outer = Some(String::from("outer"));
    assert_eq!(parents[..4], [(); 4].map(|()| outer.clone()), "closure, scoped, two polls");
    assert_eq!(parents.last(), Some(&None));
}

#[test]
fn a_stolen_fork_has_a_span_inside_that_of_its_owner_and_another_none_of_its_own() {
    let (_pools, queue) = queue_of("forks", 2);
    let owns = queue.clone();
    let item = queue.spawn(move || {
        let called = Completion::new();
        let stolen = || {
            tracing::info!(queue = "forks", "stolen");
            called.complete();
        };
        owns.join(|| called.wait(), stolen);
    });
    let line = line!() - 2;
    item.join().unwrap();
    queue.flush();
    let [item, fork, event] = &seen(&queue)[..] else { panic!("{:?}", seen(&queue)) };
    assert_eq!((item.name.as_str(), item.inside.as_deref()), ("run", None));
    assert_eq!((fork.name.as_str(), fork.inside.as_deref()), ("run", Some("run")));
    assert!(fork.field("site").contains(&format!("tests/traces.rs:{line}:")), "{fork:?}");
    assert!(fork.field("function").contains("a_stolen_fork_has"), "{fork:?}");
    assert_eq!(event.inside.as_deref(), Some("run"));

    let (_pools, queue) = queue_of("kept", 1);
    let owns = queue.clone();
    let kept = || tracing::info!(queue = "kept", "kept");
    queue.spawn(move || _ = owns.join(|| (), kept)).join().unwrap();
    queue.flush();
    let [item, event] = &seen(&queue)[..] else { panic!("{:?}", seen(&queue)) };
    assert_eq!((item.name.as_str(), event.inside.as_deref()), ("run", Some("run")));
}

#[test]
fn an_item_that_leaves_an_atomic_section_behind_is_named_and_the_worker_goes_on() {
    let (pools, queue) = queue("leaks");
    let line = line!() + 1;
    let left = queue.spawn(|| std::mem::forget(AtomicSection::enter("never left")));
    left.join().unwrap();
    assert!(!queue.spawn(in_atomic_section).join().unwrap(), "the one worker is put right");
    let reports: Vec<_> = seen(&queue).into_iter().filter(|seen| seen.name.is_empty()).collect();
    let [report] = &reports[..] else { panic!("one report, not {reports:?}") };
    assert!(report.field("function").contains("an_item_that_leaves"), "{report:?}");
    assert!(report.field("site").contains(&format!("tests/traces.rs:{line}:")), "{report:?}");
    assert!(report.field("message").contains("never left"), "{report:?}");
    assert_eq!(pools.report()[0].threads_made, 1);
}

#[test]
fn a_wait_of_an_item_for_itself_is_reported_with_both_places() {
    let (_pools, queue) = queue("selfish");
    let reported = |text: &str| {
        spin_until(|| seen(&queue).iter().any(|seen| seen.field("message").contains(text)));
        let all = seen(&queue);
        let report = all.into_iter().find(|seen| seen.field("message").contains(text));
        report.expect("it was there just now")
    };
    // Both end with a panic.
    let work = Work::new(|| {
        Work::current().expect("there is a handle").flush();
    });
    queue.queue(&work).unwrap();
    let report = reported("waits for itself: Work::flush at ");
    assert!(report.field("message").contains("tests/traces.rs"), "{report:?}");
    let same = queue.clone();
    drop(queue.spawn(move || same.flush()));
    let report = reported("waits for its own queue, and with it for itself: Workqueue::flush at");
    assert!(report.field("function").contains("a_wait_of_an_item"), "{report:?}");
}

#[test]
fn an_item_of_a_queue_with_a_rescuer_is_warned_when_it_flushes_one_without() {
    let (pools, plain) = queue("no rescuer");
    let build = |name| Workqueue::builder(name).scope(AffinityScope::System).rescuer(true);
    let rescued = build("rescued").build(&pools).unwrap();
    let other = build("rescued too").build(&pools).unwrap();
    let line = line!() + 2;
    let (flushed, same) = (plain.clone(), other.clone());
    rescued.spawn(move || [flushed.flush(), same.flush()]).join().unwrap();
    // The other way round nothing is wrong, nor is it off a worker.
    let flushed = rescued.clone();
    plain.spawn(move || flushed.flush()).join().unwrap();
    plain.flush();
    let of = |queue| seen(queue).into_iter().filter(|seen| seen.name.is_empty()).collect();
    let (warnings, silence): (Vec<_>, Vec<_>) = (of(&rescued), of(&plain));
    let [warning] = &warnings[..] else { panic!("one warning, not {warnings:?}") };
    let message = warning.field("message");
    assert!(message.contains("waits for queue 'no rescuer', which has none"), "{message}");
    assert!(message.contains(&format!("tests/traces.rs:{line}:")), "{message}");
    assert!(silence.is_empty(), "{silence:?}");
}

#[test]
fn an_item_of_a_queue_with_a_rescuer_is_warned_when_it_waits_for_an_item_of_one_without() {
    capture();
    let pools = WorkerPools::new(&Machine::synthetic("core:1 pu:1").expect("valid"));
    let plain = Workqueue::builder("helpless").strict(true).build(&pools).unwrap();
    let rescued = Workqueue::builder("saved").rescuer(true).build(&pools).unwrap();
    // The only worker of the plain queue's pool is busy, and says nothing.
    let (stop, inside) = (Arc::new(Completion::new()), Arc::new(Completion::new()));
    let (stopped, says) = (Arc::clone(&stop), Arc::clone(&inside));
    let busy = plain.spawn(move || {
        says.complete();
        spin_until(|| stopped.is_complete());
    });
    inside.wait();
    let (item, line) = (plain.spawn(|| ()), line!());
    let waits = rescued.spawn(move || item.join());
    spin_until(|| seen(&rescued).iter().any(|seen| !seen.field("message").is_empty()));
    stop.complete();
    busy.join().unwrap();
    waits.join().unwrap().unwrap();
    let all = seen(&rescued);
    let warning = all.iter().find(|seen| !seen.field("message").is_empty()).unwrap();
    let message = warning.field("message");
    assert!(message.contains("waits for an item of queue 'helpless'"), "{message}");
    assert!(message.contains(&format!("tests/traces.rs:{line}:")), "{message}");
}

#[test]
fn a_panic_is_no_reason_to_keep_what_the_item_held() {
    let (_pools, queue) = queue("panics");
    let panicked = Arc::new(Completion::new());
    let says = Arc::clone(&panicked);
    queue
        .queue(&Work::new(move || {
            std::mem::forget(AtomicSection::enter("never left"));
            says.complete();
            panic!("on purpose");
        }))
        .unwrap();
    panicked.wait();
    assert!(!queue.spawn(in_atomic_section).join().unwrap());
}
