//! Shutdown on real worker pools.
#![cfg(not(loom))]

use crate::support::{Rig, TestDriver, Unit, decl};
use corewise_device::{
    Bound, BringUpOptions, Cancel, DeviceDecl, Driver, Error, Event, History, ProbeContext,
    ProbeError, RemainingState, ShutdownError, ShutdownMode, ShutdownOptions,
};
use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_timeline::{Span, SpanKind, Timeline};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

const MACHINE: &str = "core:2 pu:1";

fn bring_up(rig: &Rig, decls: &[DeviceDecl]) {
    let up = rig.manager.bring_up(decls.to_vec(), &BringUpOptions::new()).unwrap();
    assert!(up.is_complete(), "{up:?}");
}

fn options() -> ShutdownOptions {
    ShutdownOptions::new()
}

fn is_async(decl: DeviceDecl) -> DeviceDecl {
    decl.async_shutdown(true)
}

#[test]
fn without_slow_devices_to_opt_in_it_is_the_serial_loop_in_reverse_order_without_a_helper() {
    let rig = Rig::new(MACHINE).with(|d| d.none_for("d3"));
    let mut decls: Vec<DeviceDecl> = (0..6).map(|i| decl(&format!("d{i}"), &[])).collect();
    decls[2].async_shutdown = true;
    decls[3].async_shutdown = true; // It has no callback: still fewer than two.
    bring_up(&rig, &decls);
    let down = rig.manager.shutdown(&options()).unwrap();
    assert_eq!((down.mode, down.helpers), (ShutdownMode::Serial, 0));
    assert_eq!(rig.log.of("shutdown begins"), ["d5", "d4", "d2", "d1", "d0"]);
    assert_eq!(down.order().collect::<Vec<_>>(), ["d5", "d4", "d3", "d2", "d1", "d0"]);
    let me = std::thread::current().id();
    assert!(
        rig.log.entries().iter().filter(|e| e.what == "shutdown begins").all(|e| e.thread == me)
    );
}

#[test]
fn the_serial_loop_moves_only_what_was_registered_before_what_it_needs() {
    let rig = Rig::new(MACHINE).with(|d| d);
    let decls = [decl("volume", &["disk"]), decl("x", &[]), decl("disk", &[]), decl("y", &[])];
    bring_up(&rig, &decls);
    let down = rig.manager.shutdown(&options()).unwrap();
    assert_eq!(down.order().collect::<Vec<_>>(), ["y", "volume", "disk", "x"]);
    let timeline = down.timeline();
    let disk = timeline.span(timeline.find("disk").unwrap());
    assert_eq!(disk.released_by.as_deref(), Some("volume"));
    assert_eq!(timeline.edges_not_kept().count(), 0);
}

#[test]
fn the_switch_and_a_limit_of_no_helpers_make_it_serial() {
    for options in [options().asynchronous(false), options().max_helpers(0)] {
        let rig = Rig::new(MACHINE).with(|d| d);
        let decls = ["a", "b", "c"].map(|n| is_async(decl(n, &[])));
        bring_up(&rig, &decls);
        let down = rig.manager.shutdown(&options).unwrap();
        assert_eq!((down.mode, down.helpers), (ShutdownMode::Serial, 0));
        assert_eq!(down.order().collect::<Vec<_>>(), ["c", "b", "a"]);
    }
}

#[test]
fn many_quick_callbacks_are_shared_with_a_helper_and_fail_there_as_in_the_caller() {
    let me = std::thread::current().id();
    let (helped, calls) = (Arc::new((Mutex::new(false), Condvar::new())), AtomicUsize::new(0));
    let rig = Rig::new(MACHINE).with(|d| {
        d.shutdown(move |_| {
            let since = Instant::now();
            while since.elapsed() < Duration::from_micros(20) {
                std::hint::spin_loop();
            }
            let (helped, told) = &*helped;
            if std::thread::current().id() != me {
                let is_first = !std::mem::replace(&mut *helped.lock().unwrap(), true);
                told.notify_all();
                assert!(!is_first, "on a helper");
            } else if calls.fetch_add(1, Ordering::Relaxed) == 200 {
                // It was asked for long ago.
                drop(told.wait_while(helped.lock().unwrap(), |helped| !*helped).unwrap());
            }
            Ok(())
        })
    });
    let mut decls = vec![decl("bus", &[])];
    decls.extend((0..600).map(|i| is_async(decl(&format!("nvme{i}"), &["bus"]))));
    bring_up(&rig, &decls);
    let down = rig.manager.shutdown(&options()).unwrap();
    assert!(down.helpers > 0 && down.remaining.is_empty());
    let said: Vec<_> = down.failed.iter().map(|failed| failed.error.to_string()).collect();
    assert_eq!(said, ["the callback panicked: on a helper"]);
    assert_eq!(down.order().count(), 601);
    assert_eq!(down.order().last(), Some("bus"));
    assert_eq!(down.timeline().edges_not_kept().count(), 0);
}

#[test]
fn devices_that_never_came_up_count_as_done() {
    let rig = Rig::new(MACHINE).with(|d| {
        d.probe(|cx| match cx.name() {
            "dead" => Err(ProbeError::failed("on purpose")),
            _ => Ok(()),
        })
    });
    let decls = vec![
        is_async(decl("bus", &[])),
        is_async(decl("dead", &["bus"])),
        is_async(decl("behind", &["dead", "bus"])),
        is_async(decl("of nobody", &["bus", "never registered"])),
        is_async(decl("disk", &["bus"])),
    ];
    let keep = BringUpOptions::new().keep_going(true);
    let up = rig.manager.bring_up(decls, &keep).unwrap();
    assert_eq!(up.bound().count(), 2);
    let down = rig.manager.shutdown(&options()).unwrap();
    assert_eq!(down.mode, ShutdownMode::Parallel);
    assert_eq!(down.order().collect::<Vec<_>>(), ["disk", "bus"]);
    assert_eq!(down.timeline().spans().len(), 2);
}

#[test]
fn errors_and_panics_are_recorded_and_stop_nothing() {
    for asynchronous in [true, false] {
        let rig = Rig::new(MACHINE).with(|d| {
            d.shutdown(|name| match name {
                "fails" => Err(ShutdownError::new("flush failed, 3 blocks are lost")),
                "panics" => panic!("on purpose"),
                _ => Ok(()),
            })
        });
        let decls = ["disk", "fails", "panics"]
            .map(|n| is_async(decl(n, if n == "disk" { &[] } else { &["disk"] })));
        bring_up(&rig, &decls);
        let down = rig.manager.shutdown(&options().asynchronous(asynchronous)).unwrap();
        assert_eq!(down.order().last(), Some("disk"));
        let mut failed: Vec<_> = down.failed.iter().map(ToString::to_string).collect();
        failed.sort();
        let said =
            ["fails: flush failed, 3 blocks are lost", "panics: the callback panicked: on purpose"];
        assert_eq!(failed, said);
        assert!(!down.is_clean() && down.remaining.is_empty());
        let timeline = down.timeline();
        let span = timeline.span(timeline.find("panics").unwrap());
        assert_eq!(span.outcome.as_str(), "failed");
    }
}

#[test]
fn the_registry_is_closed_by_the_first_shutdown() {
    let rig = Rig::new(MACHINE).with(|d| d);
    bring_up(&rig, &[decl("a", &[])]);
    let _ = rig.manager.shutdown(&options()).unwrap();
    let late = rig.manager.bring_up(vec![decl("late", &[])], &BringUpOptions::new());
    assert!(matches!(late, Err(Error::ShuttingDown)));
    assert!(matches!(rig.manager.shutdown(&options()), Err(Error::ShuttingDown)));
    assert!(rig.manager.bound::<Unit>("a").is_none());
    assert!(rig.manager.remaining().is_empty());
}

#[test]
fn bound_objects_are_dropped_after_the_last_callback_each_before_what_it_needs() {
    let rig = Rig::new(MACHINE).with(|d| d);
    let decls = [decl("volume", &["disk"]), decl("disk", &["bus"]), decl("bus", &[])];
    bring_up(&rig, &decls);
    let _ = rig.manager.shutdown(&options()).unwrap();
    assert_eq!(rig.log.of("drop"), ["volume", "disk", "bus"]);
    assert!(rig.log.place("shutdown ends", "bus") < rig.log.place("drop", "volume"));
}

/// An object that reports its drop, and panics then.
struct Nasty(String, Arc<Mutex<Vec<String>>>);

impl Bound for Nasty {}

impl Drop for Nasty {
    fn drop(&mut self) {
        self.1.lock().unwrap().push(self.0.clone());
        panic!("on purpose");
    }
}

/// A driver of such objects.
struct Nasties(Arc<Mutex<Vec<String>>>);

impl Driver for Nasties {
    fn name(&self) -> &str {
        "nasty"
    }

    fn probe(&self, cx: &ProbeContext<'_>) -> Result<Arc<dyn Bound>, ProbeError> {
        Ok(Arc::new(Nasty(cx.name().to_string(), self.0.clone())))
    }
}

#[test]
fn bound_objects_that_panic_when_they_are_dropped_keep_no_other_one() {
    let rig = Rig::new(MACHINE);
    let dropped = Arc::new(Mutex::new(Vec::new()));
    rig.manager.register(Arc::new(Nasties(dropped.clone()))).unwrap();
    let nasty = |name| DeviceDecl::new(name, "nasty").async_shutdown(false);
    bring_up(
        &rig,
        &[nasty("volume").supplier("disk"), nasty("disk").supplier("bus"), nasty("bus")],
    );
    let report = rig.manager.shutdown(&options()).unwrap();
    assert!(report.is_clean());
    assert_eq!(*dropped.lock().unwrap(), ["volume", "disk", "bus"]);
}

#[test]
fn a_manager_dropped_without_a_shutdown_drops_in_order_and_calls_nothing_back() {
    let mut rig = Rig::new(MACHINE).with(|d| d);
    bring_up(&rig, &[decl("volume", &["disk"]), decl("disk", &[])]);
    rig.manager = Rig::new(MACHINE).manager.clone();
    assert_eq!(rig.log.of("drop"), ["volume", "disk"]);
    assert!(rig.log.of("shutdown begins").is_empty());
}

/// Leaves the callback of "held" running until the test lets it end. That of "s", if there is one,
/// ends when "held" has begun, so that another thread than that of "s" runs "held".
fn held(rig: &Rig) -> (Sender<()>, Receiver<String>) {
    let (release, released) = channel::<()>();
    let (tell, told) = channel();
    let (released, tell) = (Mutex::new(released), Mutex::new(tell));
    let (begin, begun) = channel::<()>();
    let (begin, begun) = (Mutex::new(begin), Mutex::new(begun));
    let driver = TestDriver::new("test", &rig.log).shutdown(move |name| {
        tell.lock().unwrap().send(name.to_string()).unwrap();
        if name == "s" {
            begun.lock().unwrap().recv().unwrap();
        }
        if name == "held" {
            begin.lock().unwrap().send(()).unwrap();
            released.lock().unwrap().recv().unwrap();
        }
        Ok(())
    });
    rig.register(driver).unwrap();
    (release, told)
}

#[test]
fn an_abort_returns_at_once_and_says_what_is_left_undone() {
    let rig = Rig::new(MACHINE);
    let (release, told) = held(&rig);
    // "s" is taken by the caller, so it is a helper that is held.
    let decls = [
        decl("bus", &[]),
        is_async(decl("held", &["bus"])),
        is_async(decl("free", &[])),
        decl("s", &[]),
    ];
    bring_up(&rig, &decls);
    let abort = Cancel::new();
    let manager = rig.manager.clone();
    let options = options().abort(abort.clone());
    let caller = std::thread::spawn(move || manager.shutdown(&options).unwrap());
    let begun: Vec<String> = told.iter().take(3).collect();
    assert!(begun.contains(&"held".to_string()), "{begun:?}");
    while rig.manager.remaining().len() > 2 {
        std::thread::yield_now();
    }
    abort.cancel();
    let down = caller.join().unwrap();
    let left: Vec<&str> = down.remaining.iter().map(|r| r.device.as_str()).collect();
    assert_eq!(left, ["held", "bus"]);
    assert!(matches!(down.remaining[0].state, RemainingState::Running { .. }));
    assert_eq!(down.remaining[1].state, RemainingState::Waiting { on: vec!["held".into()] });
    let timeline = down.timeline();
    let span = timeline.span(timeline.find("held").unwrap());
    assert_eq!(span.outcome.as_str(), "cancelled");
    // A remaining object is not dropped under its callback, and can still be asked for.
    assert_eq!(rig.log.of("drop"), ["s", "free"]);
    assert_eq!(rig.manager.remaining().len(), 2);
    release.send(()).unwrap();
}

#[test]
fn an_abort_between_serial_callbacks_leaves_the_rest() {
    let rig = Rig::new(MACHINE);
    let abort = Cancel::new();
    let switch = abort.clone();
    let driver = TestDriver::new("test", &rig.log).shutdown(move |name| {
        if name == "b" {
            switch.cancel();
        }
        Ok(())
    });
    rig.register(driver).unwrap();
    bring_up(&rig, &[decl("a", &[]), decl("b", &[]), decl("c", &[])]);
    let down = rig.manager.shutdown(&options().abort(abort)).unwrap();
    assert_eq!(down.order().collect::<Vec<_>>(), ["c", "b"]);
    assert_eq!(down.remaining[0].device, "a");
    assert_eq!(down.remaining[0].state, RemainingState::Ready);
}

#[test]
fn pools_that_are_gone_leave_everything_to_the_caller() {
    let rig = Rig::new(MACHINE).with(|d| d);
    let decls = [
        decl("bus", &[]),
        decl("bus2", &[]),
        is_async(decl("a", &["bus"])),
        is_async(decl("b", &["bus2"])),
        is_async(decl("c", &["bus"])),
    ];
    bring_up(&rig, &decls);
    rig.pools.shutdown();
    let down = rig.manager.shutdown(&options()).unwrap();
    assert_eq!(down.mode, ShutdownMode::Parallel);
    assert!(down.is_clean() && down.order().count() == 5, "{down:?}");
    let me = std::thread::current().id();
    assert!(
        rig.log.entries().iter().filter(|e| e.what == "shutdown begins").all(|e| e.thread == me)
    );
}

#[test]
fn a_shutdown_during_a_bring_up_cancels_it_and_waits_for_the_running_probe_also_where_it_fails() {
    for (fails, shut_down) in [(false, &["first", "before"][..]), (true, &["before"])] {
        let (tell, told) = channel();
        let (release, released) = channel::<()>();
        let (tell, released) = (Mutex::new(tell), Mutex::new(released));
        let rig = Rig::new(MACHINE).with(|d| {
            d.probe(move |cx| {
                if cx.name() == "first" {
                    tell.lock().unwrap().send(()).unwrap();
                    released.lock().unwrap().recv().unwrap();
                    assert!(cx.is_cancelled());
                    return if fails { Err(ProbeError::failed("on purpose")) } else { Ok(()) };
                }
                Ok(())
            })
        });
        bring_up(&rig, &[decl("before", &[])]);
        let manager = rig.manager.clone();
        let cancel = Cancel::new();
        let up_options = BringUpOptions::new().cancel(cancel.clone());
        let decls = vec![decl("first", &["before"]), decl("second", &["first"])];
        let up = std::thread::spawn(move || manager.bring_up(decls, &up_options).unwrap());
        told.recv().unwrap();
        let manager = rig.manager.clone();
        let down = std::thread::spawn(move || manager.shutdown(&options()).unwrap());
        while !cancel.is_cancelled() {
            std::thread::yield_now();
        }
        release.send(()).unwrap();
        let up = up.join().unwrap();
        assert!(up.cancelled && up.bound().count() == usize::from(!fails), "{up:?}");
        let down = down.join().unwrap();
        assert!(down.is_clean());
        assert_eq!(down.order().collect::<Vec<_>>(), shut_down);
    }
}

#[test]
fn events_count_the_callbacks_and_all_were_told_when_it_returns() {
    let rig = Rig::new(MACHINE).with(|d| d.none_for("quiet"));
    let decls =
        [is_async(decl("a", &[])), is_async(decl("b", &[])), decl("quiet", &[]), decl("s", &[])];
    bring_up(&rig, &decls);
    let counts = Arc::new(Mutex::new(Vec::new()));
    let seen = counts.clone();
    let observer = Arc::new(move |event: &Event<'_>| {
        if let Event::Finished { done, total, .. } = event {
            seen.lock().unwrap().push((*done, *total));
        }
    });
    let _ = rig.manager.shutdown(&options().observer(observer)).unwrap();
    let mut counts = counts.lock().unwrap().clone();
    counts.sort_unstable();
    assert_eq!(counts, [(1, 3), (2, 3), (3, 3)]);
}

#[test]
fn devices_in_a_circle_are_reported_and_shut_down_one_by_one() {
    let rig = Rig::new(MACHINE).with(|d| d);
    let decls = [
        is_async(decl("bus", &[])),
        is_async(decl("a", &["bus"])),
        is_async(decl("b", &["a"])),
        is_async(decl("c", &["b"])),
        is_async(decl("x", &["c"])),
        is_async(decl("y", &[])),
    ];
    bring_up(&rig, &decls);
    rig.manager.link("a", "c").unwrap(); // a -> c -> b -> a
    let down = rig.manager.shutdown(&options()).unwrap();
    assert_eq!(down.cycles, [["a", "b", "c"]]);
    assert!(down.is_clean());
    let order: Vec<&str> = down.order().filter(|d| *d != "y").collect();
    assert_eq!(order, ["x", "c", "b", "a", "bus"], "the link against the order is left out");
    let me = std::thread::current().id();
    let in_circle = |device: &str| ["a", "b", "c"].contains(&device);
    let entries = rig.log.entries();
    let mut begun = entries.iter().filter(|e| e.what == "shutdown begins");
    assert!(begun.all(|e| !in_circle(&e.device) || e.thread == me), "as synchronous ones");
}

#[test]
fn parents_that_wait_hold_no_worker_however_many_there_are() {
    // 300 asynchronous parents wait for one child that waits for them all to be waiting; upstream
    // the workers of 256 of them are all there are.
    let (tell, told) = channel::<()>();
    let told = Mutex::new(told);
    let rig = Rig::new(MACHINE).with(|d| {
        d.shutdown(move |name| {
            if name == "child" {
                told.lock().unwrap().recv().unwrap();
            }
            Ok(())
        })
    });
    let parents: Vec<String> = (0..300).map(|i| format!("p{i}")).collect();
    let mut decls: Vec<DeviceDecl> = parents.iter().map(|p| is_async(decl(p, &[]))).collect();
    decls.push(parents.iter().fold(is_async(decl("child", &[])), |d, p| d.supplier(p)));
    decls.push(is_async(decl("child2", &["p7"])));
    bring_up(&rig, &decls);
    let manager = rig.manager.clone();
    let down = std::thread::spawn(move || manager.shutdown(&options()).unwrap());
    while rig.manager.remaining().iter().filter(|r| r.behind.is_some()).count() < 300 {
        std::thread::yield_now();
    }
    tell.send(()).unwrap();
    let down = down.join().unwrap();
    assert!(down.is_clean());
    assert!(down.order().take(2).all(|d| d.starts_with("child")));
}

#[test]
fn devices_that_took_long_before_start_first() {
    let rig = Rig::new(MACHINE).with(|d| d);
    let mut decls = vec![decl("bus", &[])];
    decls.extend(["a", "b", "c", "d"].map(|name| is_async(decl(name, &["bus"]))));
    bring_up(&rig, &decls);
    let mut before = Timeline::new("before");
    for (name, seconds) in [("b", 4), ("a", 3), ("d", 1)] {
        let took = Duration::from_secs(seconds);
        before.push(Span::new(name, SpanKind::Shutdown, Duration::ZERO, took));
    }
    let mut history = History::new();
    history.note(&before);
    // No helper comes: the pools are gone. The order is the caller's alone.
    rig.pools.shutdown();
    let down = rig.manager.shutdown(&options().history(Arc::new(history))).unwrap();
    assert_eq!(down.order().collect::<Vec<_>>(), ["b", "a", "d", "c", "bus"]);
}
