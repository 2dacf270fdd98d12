//! Shutdown callbacks that return before their device is shut down.
#![cfg(not(loom))]

use crate::support::{Rig, decl};
use corewise_device::{
    Bound, BringUpOptions, Cancel, DeviceDecl, Driver, ProbeContext, ProbeError, RemainingState,
    ShutdownDone, ShutdownError, ShutdownMode, ShutdownOptions, ShutdownReport,
};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

const MACHINE: &str = "core:2 pu:1";

/// A callback that has begun, and the duty to finish it.
struct Begun {
    name: String,
    done: ShutdownDone,
}

/// A service that hands each completion to the test, unless its name says otherwise.
struct Service {
    name: String,
    begun: Mutex<Sender<Begun>>,
}

impl Bound for Service {
    fn start_shutdown(self: Arc<Self>, done: ShutdownDone) {
        let name = self.name.clone();
        match name.as_str() {
            "at once" => done.finish(Ok(())),
            "panics" => panic!("on purpose"),
            "leaks and panics" => {
                self.begun.lock().unwrap().send(Begun { name, done }).unwrap();
                panic!("on purpose");
            }
            "drops" => drop(done),
            _ => self.begun.lock().unwrap().send(Begun { name, done }).unwrap(),
        }
    }
}

struct Services(Mutex<Sender<Begun>>);

impl Driver for Services {
    fn name(&self) -> &str {
        "service"
    }

    fn probe(&self, cx: &ProbeContext<'_>) -> Result<Arc<dyn Bound>, ProbeError> {
        let begun = Mutex::new(self.0.lock().unwrap().clone());
        Ok(Arc::new(Service { name: cx.name().to_string(), begun }))
    }
}

/// Devices that are up, and the callbacks that begin when they go down.
struct Up {
    rig: Rig,
    begun: Receiver<Begun>,
}

impl Up {
    fn new(decls: Vec<DeviceDecl>) -> Up {
        let rig = Rig::new(MACHINE).with(|d| d);
        let (tell, begun) = channel();
        rig.manager.register(Arc::new(Services(Mutex::new(tell)))).unwrap();
        let up = rig.manager.bring_up(decls, &BringUpOptions::new()).unwrap();
        assert!(up.is_complete(), "{up:?}");
        Up { rig, begun }
    }

    fn shut_down(&self, options: ShutdownOptions) -> JoinHandle<ShutdownReport> {
        let manager = self.rig.manager.clone();
        std::thread::spawn(move || manager.shutdown(&options).unwrap())
    }
}

fn service(name: &str, suppliers: &[&str]) -> DeviceDecl {
    let plain = suppliers.iter().fold(DeviceDecl::new(name, "service"), |d, s| d.supplier(*s));
    plain.async_shutdown(true)
}

fn options() -> ShutdownOptions {
    ShutdownOptions::new()
}

#[test]
fn callbacks_that_end_later_hold_no_worker_however_many_there_are() {
    let mut decls = vec![service("hub", &[])];
    decls.extend((0..500).map(|i| service(&format!("s{i}"), &["hub"])));
    let up = Up::new(decls);
    let down = up.shut_down(options().max_helpers(1));
    let all: Vec<Begun> = up.begun.iter().take(500).collect();
    assert!(all.iter().all(|b| b.name != "hub"), "it waits for all of them");
    all.into_iter().for_each(|b| b.done.finish(Ok(())));
    let hub = up.begun.recv().unwrap();
    assert_eq!(hub.name, "hub");
    hub.done.finish(Ok(()));
    let down = down.join().unwrap();
    assert!(down.is_clean() && down.helpers <= 2, "{down:?}");
    assert_eq!(down.timeline().edges_not_kept().count(), 0);
}

#[test]
fn a_callback_may_finish_within_itself() {
    let up = Up::new(vec![service("at once", &[]), service("other", &["at once"])]);
    let down = up.shut_down(options());
    up.begun.recv().unwrap().done.finish(Ok(()));
    assert_eq!(down.join().unwrap().order().collect::<Vec<_>>(), ["other", "at once"]);
}

#[test]
fn a_completion_that_is_dropped_is_a_failure_and_a_panic_is_that_panic() {
    let decls = ["drops", "later", "panics"].map(|n| service(n, &["bus"]));
    let up = Up::new([vec![service("bus", &[])], decls.to_vec()].concat());
    let down = up.shut_down(options());
    for begun in up.begun.iter().take(2) {
        match begun.name.as_str() {
            "later" => drop(begun.done),
            _ => begun.done.finish(Err(ShutdownError::new("3 blocks are lost"))),
        }
    }
    let down = down.join().unwrap();
    assert_eq!(down.order().last(), Some("bus"), "failures stop nothing");
    let said = |name: &str| {
        let failed = down.failed.iter().find(|failed| failed.device == name);
        failed.unwrap().error.to_string()
    };
    assert!(said("drops").contains("dropped") && said("later").contains("dropped"));
    assert_eq!(said("panics"), "the callback panicked: on purpose");
    assert_eq!(said("bus"), "3 blocks are lost");
}

#[test]
fn a_panic_counts_at_once_and_a_later_end_of_it_is_not_wanted_any_more() {
    let up = Up::new(vec![service("at once", &[]), service("leaks and panics", &["at once"])]);
    let down = up.shut_down(options()).join().unwrap();
    assert_eq!(down.failed.len(), 1);
    assert_eq!(down.order().collect::<Vec<_>>(), ["leaks and panics", "at once"]);
    up.begun.recv().unwrap().done.finish(Ok(()));
    assert!(up.rig.manager.remaining().is_empty());
}

#[test]
fn a_synchronous_device_that_ends_later_holds_up_the_synchronous_ones_after_it_only() {
    let decls = vec![
        decl("first", &[]),
        service("second", &[]).async_shutdown(false),
        service("free", &[]),
        service("free2", &[]),
    ];
    let up = Up::new(decls);
    let down = up.shut_down(options());
    let mut begun: Vec<Begun> = up.begun.iter().take(3).collect();
    assert!(up.rig.log.of("shutdown begins").is_empty(), "\"first\" comes after \"second\"");
    begun.sort_by(|a, b| a.name.cmp(&b.name));
    for begun in begun {
        begun.done.finish(Ok(()));
    }
    assert!(down.join().unwrap().is_clean());
    assert_eq!(up.rig.log.of("shutdown begins"), ["first"]);
}

#[test]
fn a_serial_shutdown_waits_for_each_end_before_it_goes_on() {
    let up = Up::new(vec![decl("bus", &[]), service("a", &[]), service("b", &[])]);
    let down = up.shut_down(options().asynchronous(false));
    for name in ["b", "a"] {
        let begun = up.begun.recv().unwrap();
        assert_eq!(begun.name, name);
        assert!(up.begun.try_recv().is_err() && up.rig.log.of("shutdown begins").is_empty());
        let left = up.rig.manager.remaining();
        assert!(matches!(left[0].state, RemainingState::Running { .. }), "{left:?}");
        begun.done.finish(Ok(()));
    }
    let down = down.join().unwrap();
    assert_eq!(down.mode, ShutdownMode::Serial);
    assert_eq!(down.order().collect::<Vec<_>>(), ["b", "a", "bus"]);
}

#[test]
fn an_abort_leaves_what_ends_later_and_its_end_harms_nobody() {
    for asynchronous in [true, false] {
        let up = Up::new(vec![service("bus", &[]), service("held", &["bus"])]);
        let abort = Cancel::new();
        let down = up.shut_down(options().abort(abort.clone()).asynchronous(asynchronous));
        let held = up.begun.recv().unwrap();
        abort.cancel();
        let down = down.join().unwrap();
        let left: Vec<&str> = down.remaining.iter().map(|r| r.device.as_str()).collect();
        assert_eq!(left, ["held", "bus"]);
        held.done.finish(Ok(()));
        assert!(up.begun.try_recv().is_err(), "nothing more is begun");
    }
}
