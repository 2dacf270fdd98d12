//! Shutdown callbacks that hang, on real worker pools.
#![cfg(not(loom))]

use crate::support::{Rig, TestDriver, decl};
use corewise_device::{
    BringUpOptions, DeviceDecl, Error, Event, HangPolicy, RemainingState, ShutdownOptions,
    ShutdownReport,
};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const MACHINE: &str = "core:2 pu:1";
const SOON: Duration = Duration::from_millis(5);

fn is_async(decl: DeviceDecl) -> DeviceDecl {
    decl.async_shutdown(true)
}

/// Devices that are up, of which "hangs" hangs until it is let go.
struct Up {
    rig: Rig,
    let_go: Sender<()>,
}

impl Up {
    fn new(decls: Vec<DeviceDecl>) -> Up {
        let (let_go, held) = channel::<()>();
        let held = Mutex::new(held);
        let rig = Rig::new(MACHINE);
        let driver = TestDriver::new("test", &rig.log).shutdown(move |name| {
            if name == "hangs" {
                let _ = held.lock().unwrap().recv(); // Also where the test is over.
            }
            Ok(())
        });
        rig.register(driver).unwrap();
        let up = rig.manager.bring_up(decls, &BringUpOptions::new()).unwrap();
        assert!(up.is_complete(), "{up:?}");
        Up { rig, let_go }
    }

    fn shut_down(&self, options: ShutdownOptions) -> std::thread::JoinHandle<ShutdownReport> {
        let manager = self.rig.manager.clone();
        std::thread::spawn(move || manager.shutdown(&options).unwrap())
    }
}

/// Returns the options with an observer, and the devices that it hears to be late.
fn late(options: ShutdownOptions) -> (ShutdownOptions, Receiver<String>) {
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    let observer = Arc::new(move |event: &Event<'_>| {
        let told = match event {
            Event::Overdue { device, .. } => (*device).to_string(),
            Event::GaveUp { left } => format!("gave up {left}"),
            _ => return,
        };
        // The test may have heard enough.
        let _ = tell.lock().unwrap().send(told);
    });
    (options.observer(observer), told)
}

/// Returns options with a short deadline for the one that hangs; the others have all the time that
/// they could need on a busy machine.
fn soon(policy: HangPolicy) -> ShutdownOptions {
    ShutdownOptions::new().device_timeout(Some(Duration::from_secs(3600))).on_hang(policy)
}

/// Returns three devices: one hangs, one waits for it, and one does not; all asynchronous, or all
/// synchronous.
fn devices(asynchronous: bool) -> Vec<DeviceDecl> {
    let hangs = decl("hangs", &["bus"]).shutdown_timeout(SOON);
    let mut devices = vec![decl("bus", &[]), decl("free", &[]), hangs];
    devices.push(decl("also free", &["free"]));
    devices.into_iter().map(|d| d.async_shutdown(asynchronous)).collect()
}

#[test]
fn a_callback_that_hangs_is_named_and_everything_that_does_not_depend_on_it_finishes() {
    for asynchronous in [true, false] {
        let up = Up::new(devices(asynchronous));
        let (options, named) = late(soon(HangPolicy::WaitOn));
        let down = up.shut_down(options);
        assert_eq!(named.recv().unwrap(), "hangs");
        // The other one ends by itself, while the callback hangs.
        while up.rig.manager.remaining().len() > 2 {
            std::thread::yield_now();
        }
        let left: Vec<String> =
            up.rig.manager.remaining().iter().map(|r| r.device.clone()).collect();
        assert_eq!(left, ["hangs", "bus"], "asynchronous: {asynchronous}");
        let remaining = up.rig.manager.remaining();
        assert!(remaining[0].overdue);
        assert!(matches!(remaining[0].state, RemainingState::Running { .. }));
        assert_eq!(remaining[1].state, RemainingState::Waiting { on: vec!["hangs".into()] });
        let behind = remaining[1].behind.clone().unwrap();
        assert_eq!((behind.device.as_str(), behind.through.as_str()), ("hangs", "hangs"));
        up.let_go.send(()).unwrap();
        let down = down.join().unwrap();
        assert!(down.is_clean(), "{down:?}");
        assert!(up.rig.manager.remaining().is_empty());
        assert_eq!(down.overdue.len(), 1);
        assert!(down.overdue[0].took >= Some(SOON) && !down.overdue[0].skipped);
        assert!(
            up.rig.log.place("shutdown ends", "hangs") < up.rig.log.place("shutdown begins", "bus")
        );
    }
}

#[test]
fn a_callback_that_hangs_is_skipped_and_the_shutdown_returns_while_it_hangs() {
    for asynchronous in [true, false] {
        let up = Up::new(devices(asynchronous));
        let (options, named) = late(soon(HangPolicy::Skip));
        let down = up.shut_down(options).join().unwrap();
        assert_eq!(named.recv().unwrap(), "hangs");
        assert!(down.overdue[0].skipped && up.rig.log.place("shutdown ends", "bus").is_some());
        assert!(down.failed[0].error.to_string().contains("skipped") && !down.is_clean());
        assert_eq!(down.remaining.len(), 1);
        assert!(down.remaining[0].skipped && !down.gave_up);
        assert_eq!(down.order().count(), 4);
        // Its object, and what it needs, are still there.
        let dropped = up.rig.log.of("drop");
        assert!(!dropped.contains(&"hangs".into()) && !dropped.contains(&"bus".into()));
        up.let_go.send(()).unwrap();
    }
}

#[test]
fn a_callback_of_a_removal_that_hangs_is_the_shutdown_s_too() {
    for policy in [HangPolicy::WaitOn, HangPolicy::Skip, HangPolicy::GiveUp] {
        for asynchronous in [true, false] {
            let up = Up::new(devices(asynchronous));
            let manager = up.rig.manager.clone();
            // Another one waits for its callback.
            let names = ["hangs", "bus"].into_iter();
            let removals: Vec<_> = names
                .map(|name| {
                    let manager = manager.clone();
                    let removal = std::thread::spawn(move || manager.remove(name));
                    while up.rig.log.place("shutdown begins", "hangs").is_none() {
                        std::thread::yield_now();
                    }
                    removal
                })
                .collect();
            let (options, named) = late(soon(policy));
            let down = up.shut_down(options);
            assert_eq!(named.recv().unwrap(), "hangs", "{policy:?}");
            let down = match policy {
                HangPolicy::WaitOn => {
                    up.let_go.send(()).unwrap();
                    down.join().unwrap()
                }
                _ => {
                    let down = down.join().unwrap();
                    up.let_go.send(()).unwrap();
                    down
                }
            };
            let left: Vec<&str> = down.remaining.iter().map(|r| r.device.as_str()).collect();
            match policy {
                HangPolicy::WaitOn => assert!(down.is_clean(), "{down:?}"),
                HangPolicy::Skip => assert_eq!(left, ["hangs"]),
                _ => assert_eq!(left, ["hangs", "bus"]),
            }
            for removal in removals {
                let removed = removal.join().unwrap();
                assert!(matches!(removed, Err(Error::ShuttingDown)), "{removed:?}");
            }
            let begun = up.rig.log.of("shutdown begins");
            assert_eq!(begun.iter().filter(|name| *name == "hangs").count(), 1, "{begun:?}");
        }
    }
}

#[test]
fn after_a_skip_the_pools_say_which_callback_holds_their_worker_and_end_without_it() {
    let rig = Rig::new(MACHINE);
    let (hangs, hung) = channel();
    let (let_go, held) = channel::<()>();
    let (hangs, hung, held) = (Mutex::new(hangs), Mutex::new(hung), Arc::new(Mutex::new(held)));
    let waits = Arc::clone(&held);
    let driver = TestDriver::new("test", &rig.log).shutdown(move |name| {
        if name == "caller's" {
            // So the caller is busy until a helper has come.
            hung.lock().unwrap().recv().unwrap();
        } else {
            hangs.lock().unwrap().send(()).unwrap();
            let _ = waits.lock().unwrap().recv(); // Also where the test is over.
        }
        Ok(())
    });
    rig.register(driver).unwrap();
    let asynchronous = |name| is_async(decl(name, &[])).shutdown_timeout(SOON);
    let decls = vec![asynchronous("one"), asynchronous("other"), decl("caller's", &[])];
    let _ = rig.manager.bring_up(decls, &BringUpOptions::new()).unwrap();
    let down = rig.manager.shutdown(&soon(HangPolicy::Skip)).unwrap();
    assert!(down.remaining.iter().any(|left| left.skipped), "{down:?}");

    let left = rig.pools.shutdown_timeout(SOON).expect_err("a skipped callback holds a worker");
    let one = &left.running[0];
    assert!(one.item.thread.is_some() && one.for_at_least >= SOON, "{left}");
    assert!(one.item.function.starts_with("corewise_device::"), "{left}");
    drop(let_go);
    rig.pools.shutdown_timeout(Duration::from_secs(3600)).expect("it has returned");
}

#[test]
fn giving_up_returns_with_all_else_shut_down_and_says_what_is_left() {
    for (asynchronous, one_by_one) in [(true, false), (false, false), (true, true)] {
        let (together, alone) = match one_by_one {
            true => (Vec::new(), devices(asynchronous)),
            false => (devices(asynchronous), Vec::new()),
        };
        let up = Up::new(together);
        alone.into_iter().for_each(|decl| drop(up.rig.manager.add(decl).unwrap()));
        up.rig.manager.wait_for_probes().unwrap();
        let (options, named) = late(soon(HangPolicy::GiveUp));
        let down = up.shut_down(options).join().unwrap();
        assert_eq!(named.iter().take(2).collect::<Vec<_>>(), ["hangs", "gave up 2"]);
        assert!(down.gave_up);
        let left: Vec<&str> = down.remaining.iter().map(|r| r.device.as_str()).collect();
        assert_eq!(left, ["hangs", "bus"], "asynchronous: {asynchronous}");
        assert_eq!(up.rig.log.of("shutdown ends").len(), 2);
        up.let_go.send(()).unwrap();
    }
}

#[test]
fn a_device_may_take_longer_than_others_if_it_says_so() {
    let mut decls = devices(true);
    decls[2].shutdown_timeout = Some(Duration::from_secs(3600));
    decls.push(is_async(decl("short", &[])).shutdown_timeout(SOON));
    let up = Up::new(decls);
    let options = ShutdownOptions::new().device_timeout(Some(SOON)).timeout(None);
    let down = up.shut_down(options);
    while up.rig.log.of("shutdown ends").len() < 3 || up.rig.manager.remaining().len() > 2 {
        std::thread::yield_now();
    }
    up.let_go.send(()).unwrap();
    assert!(down.join().unwrap().overdue.iter().all(|late| late.device != "hangs"));
}

#[test]
fn with_a_policy_synchronous_callbacks_run_one_by_one_in_a_thread_of_their_own() {
    let up = Up::new(vec![decl("a", &[]), decl("b", &[]), decl("c", &["b"])]);
    let down = up.rig.manager.shutdown(&soon(HangPolicy::Skip)).unwrap();
    assert_eq!(down.order().collect::<Vec<_>>(), ["c", "b", "a"]);
    let entries = up.rig.log.entries();
    let mut threads: Vec<_> =
        entries.iter().filter(|e| e.what == "shutdown begins").map(|e| e.thread).collect();
    threads.dedup();
    assert_eq!(threads.len(), 1);
    assert_ne!(threads[0], std::thread::current().id());
    assert_eq!(down.timeline().spans()[0].worker, "cw-shutdown");
}

#[test]
fn a_deadline_of_zero_is_over_at_once() {
    for asynchronous in [true, false] {
        let hangs = || decl("hangs", &[]).async_shutdown(asynchronous);
        let one = hangs().shutdown_timeout(Duration::ZERO);
        let up = Up::new(vec![one]);
        let options = ShutdownOptions::new().device_timeout(None).on_hang(HangPolicy::Skip);
        let down = up.shut_down(options).join().unwrap();
        assert!(down.overdue.len() == 1 && down.overdue[0].skipped, "{down:?}");

        let up = Up::new(vec![hangs()]);
        let options = ShutdownOptions::new().device_timeout(None).timeout(Some(Duration::ZERO));
        let down = up.shut_down(options.on_hang(HangPolicy::GiveUp)).join().unwrap();
        assert!(down.gave_up, "{down:?}");
    }
}

#[test]
fn a_deadline_beyond_all_time_is_as_good_as_none_and_others_hold() {
    let quick = decl("quick", &["hangs"]);
    let up = Up::new(vec![decl("hangs", &[]).shutdown_timeout(Duration::MAX), quick]);
    let options = ShutdownOptions::new().device_timeout(Some(Duration::MAX));
    let options = options.timeout(Some(SOON)).on_hang(HangPolicy::GiveUp);
    let down = up.shut_down(options).join().unwrap();
    assert!(down.gave_up && down.overdue.len() == 1, "{down:?}");
}
