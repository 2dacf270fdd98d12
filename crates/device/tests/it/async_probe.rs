//! Probes that end later, from anywhere.

use crate::support::{Connection, Rig, decl, later};
use corewise_device::{
    BringUpOptions, Driver, Event, HangPolicy, ProbeContext, ProbeDone, ProbeOutcome, ProbeType,
    ShutdownOptions,
};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[test]
fn probes_that_end_elsewhere_hold_no_worker_and_release_their_consumers() {
    for probe_type in [ProbeType::PreferAsynchronous, ProbeType::ForceSynchronous] {
        let rig = Rig::new("core:1 pu:1");
        let begins = later(&rig, "test", probe_type);
        let manager = rig.manager.clone();
        let bring_up = std::thread::spawn(move || {
            let decls = vec![decl("a", &[]), decl("b", &[]), decl("both", &["a", "b"])];
            manager.bring_up(decls, &BringUpOptions::new()).unwrap()
        });
        let mut begun = Vec::new();
        let mut held = Vec::new();
        while begun.len() < 3 {
            let (name, done) = begins.recv().unwrap();
            begun.push(name);
            held.push(done);
            // Asynchronous ones are begun together, before any has ended.
            if probe_type == ProbeType::ForceSynchronous || held.len() == 2 || begun.len() == 3 {
                held.drain(..).for_each(|done| done.finish(Ok(Arc::new(Connection))));
            }
        }
        assert_eq!(begun[2], "both");
        let up = bring_up.join().unwrap();
        assert!(up.is_complete(), "{up:?}");
        let _ = rig.manager.shutdown(&ShutdownOptions::new()).unwrap();
    }
}

#[test]
fn a_completion_that_is_dropped_fails_the_probe_and_nobody_waits() {
    let rig = Rig::new("core:2 pu:1");
    let begins = later(&rig, "test", ProbeType::PreferAsynchronous);
    let dropper = std::thread::spawn(move || drop(begins.recv().unwrap()));
    let decls = vec![decl("a", &[]), decl("b", &["a"])];
    let up = rig.manager.bring_up(decls, &BringUpOptions::new().keep_going(true)).unwrap();
    dropper.join().unwrap();
    let ProbeOutcome::Failed(error) = &up.devices()[0].outcome else { panic!("{up:?}") };
    assert!(error.to_string().contains("dropped"), "{error}");
    assert_eq!(up.devices()[1].outcome, ProbeOutcome::Skipped { culprit: "a".into() });
}

/// A driver that panics, after it has given its completion away.
struct Panics(Mutex<Option<Sender<ProbeDone>>>);

impl Driver for Panics {
    fn name(&self) -> &str {
        "test"
    }

    fn start_probe(&self, _: &ProbeContext<'_>, done: ProbeDone) {
        self.0.lock().unwrap().take().unwrap().send(done).unwrap();
        panic!("on purpose");
    }
}

#[test]
fn a_panic_fails_the_probe_at_once_and_what_its_completion_says_later_changes_nothing() {
    let rig = Rig::new("core:2 pu:1");
    let (give, given) = channel();
    rig.manager.register(Arc::new(Panics(Mutex::new(Some(give))))).unwrap();
    let up = rig.manager.bring_up(vec![decl("a", &[])], &BringUpOptions::new()).unwrap();
    let ProbeOutcome::Failed(error) = &up.devices()[0].outcome else { panic!("{up:?}") };
    assert!(error.to_string().starts_with("the probe panicked"), "{error}");
    given.recv().unwrap().finish(Ok(Arc::new(Connection)));
    assert!(rig.manager.bound::<Connection>("a").is_none());
}

#[test]
fn a_driver_without_any_probe_fails_its_devices_and_says_what_to_implement() {
    struct Empty;
    impl Driver for Empty {
        fn name(&self) -> &str {
            "test"
        }
    }
    let rig = Rig::new("core:1 pu:1");
    rig.manager.register(Arc::new(Empty)).unwrap();
    let up = rig.manager.bring_up(vec![decl("a", &[])], &BringUpOptions::new()).unwrap();
    let ProbeOutcome::Failed(error) = &up.devices()[0].outcome else { panic!("{up:?}") };
    assert!(error.to_string().contains("Driver::start_probe"), "{error}");
}

#[test]
fn a_probe_that_hangs_is_named_and_waited_for_by_default() {
    let rig = Rig::new("core:2 pu:1");
    let begins = later(&rig, "test", ProbeType::PreferAsynchronous);
    let manager = rig.manager.clone();
    // The observer ends the probe when it hears that it is overdue.
    let held = Mutex::new(Some(begins));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let its = seen.clone();
    let observer = Arc::new(move |event: &Event<'_>| {
        if let Event::Overdue { device, after } = event {
            let pending: Vec<String> = manager.pending().iter().map(|p| p.to_string()).collect();
            its.lock().unwrap().push((device.to_string(), *after, pending));
            let (_, done) = held.lock().unwrap().take().unwrap().recv().unwrap();
            done.finish(Ok(Arc::new(Connection)));
        }
    });
    let options = BringUpOptions::new().device_timeout(Some(Duration::from_millis(2)));
    let up = rig.manager.bring_up(vec![decl("a", &[])], &options.observer(observer)).unwrap();
    assert!(up.is_complete() && !up.gave_up, "{up:?}");
    assert_eq!(up.overdue, ["a"]);
    let seen = seen.lock().unwrap();
    assert_eq!((seen.len(), seen[0].0.as_str()), (1, "a"));
    assert!(seen[0].1 >= Duration::from_millis(2));
    assert!(seen[0].2[0].ends_with("past its deadline"), "{:?}", seen[0].2);
}

#[test]
fn a_probe_that_hangs_is_given_up_when_the_policy_says_so_and_nothing_else_suffers() {
    for policy in [HangPolicy::Skip, HangPolicy::GiveUp] {
        let rig = Rig::new("core:2 pu:1");
        let begins = later(&rig, "test", ProbeType::PreferAsynchronous);
        // The deadline is that of the one device: the other may begin at any time.
        let hung = decl("hung", &[]).probe_timeout(Duration::from_millis(2));
        let decls = vec![hung, decl("behind", &["hung"]), decl("fine", &[])];
        let manager = rig.manager.clone();
        let bring_up = std::thread::spawn(move || {
            let options = BringUpOptions::new().keep_going(true).on_hang(policy);
            manager.bring_up(decls, &options).unwrap()
        });
        let mut kept = None;
        for _ in 0..2 {
            match begins.recv().unwrap() {
                (name, done) if name == "fine" => done.finish(Ok(Arc::new(Connection))),
                (_, done) => kept = Some(done),
            }
        }
        let up = bring_up.join().unwrap();
        let outcome = |name| &up.device(name).unwrap().outcome;
        assert!(matches!(outcome("hung"), ProbeOutcome::Failed(e) if e.is_timeout()), "{up:?}");
        let behind = match policy {
            HangPolicy::Skip => ProbeOutcome::Skipped { culprit: "hung".into() },
            _ => ProbeOutcome::Cancelled,
        };
        assert_eq!((outcome("behind"), outcome("fine")), (&behind, &ProbeOutcome::Bound));
        assert_eq!(
            (up.overdue.as_slice(), up.gave_up),
            (&["hung".into()][..], policy == HangPolicy::GiveUp)
        );
        kept.unwrap().finish(Ok(Arc::new(Connection)));
        assert!(rig.manager.bound::<Connection>("hung").is_some(), "late, but up");
        if policy == HangPolicy::Skip {
            let (name, done) = begins.recv().unwrap();
            assert_eq!(name, "behind", "it is probed after all");
            done.finish(Ok(Arc::new(Connection)));
            rig.manager.wait_for_probes().unwrap();
            assert!(rig.manager.bound::<Connection>("behind").is_some());
        }
        let _ = rig.manager.shutdown(&ShutdownOptions::new()).unwrap();
    }
}

#[test]
fn a_bring_up_that_takes_too_long_as_a_whole_names_what_runs_and_leaves_the_rest() {
    let rig = Rig::new("core:2 pu:1");
    let begins = later(&rig, "test", ProbeType::PreferAsynchronous);
    let decls = vec![decl("a", &[]), decl("b", &["a"])];
    let options =
        BringUpOptions::new().timeout(Some(Duration::from_millis(5))).on_hang(HangPolicy::Skip);
    let up = rig.manager.bring_up(decls, &options.keep_going(true)).unwrap();
    assert!(up.gave_up && up.overdue == ["a"], "{up:?}");
    assert_eq!(up.devices()[1].outcome, ProbeOutcome::Cancelled);
    // The shutdown doesn't wait for probes that were given up, and what comes after it is dropped.
    let _ = rig.manager.shutdown(&ShutdownOptions::new()).unwrap();
    let late = Arc::new(Connection);
    begins.recv().unwrap().1.finish(Ok(late.clone()));
    assert_eq!(Arc::strong_count(&late), 1);
}

#[test]
fn deadlines_of_probes_beyond_all_time_are_as_good_as_none_and_others_hold() {
    let rig = Rig::new("core:2 pu:1");
    rig.manager.set_deferral_timeout(Duration::MAX);
    let begins = later(&rig, "test", ProbeType::PreferAsynchronous);
    let patient = decl("patient", &[]).probe_timeout(Duration::MAX);
    let hung = decl("hung", &[]).probe_timeout(Duration::from_millis(2));
    let manager = rig.manager.clone();
    let bring_up = std::thread::spawn(move || {
        let options = BringUpOptions::new().keep_going(true).on_hang(HangPolicy::Skip);
        let options = options.timeout(Some(Duration::MAX)).device_timeout(Some(Duration::MAX));
        manager.bring_up(vec![patient, hung, decl("other", &[])], &options).unwrap()
    });
    let mut kept = None;
    for _ in 0..3 {
        match begins.recv().unwrap() {
            (name, done) if name == "hung" => kept = Some(done),
            (_, done) => done.finish(Ok(Arc::new(Connection))),
        }
    }
    let up = bring_up.join().unwrap();
    assert_eq!(up.overdue, ["hung"]);
    assert_eq!(up.bound().count(), 2);
    drop(kept);
}
