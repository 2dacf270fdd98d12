//! Tests of the listeners of a machine's changes: the order of calls, the calling thread, and the
//! end.

use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread;

use corewise_topology::{CpuId, CpuSet, Machine, Subscription};

fn set(list: &str) -> CpuSet {
    list.parse().unwrap()
}

fn machine() -> Machine {
    Machine::synthetic("core:4 pu:1").unwrap()
}

type Log = Arc<Mutex<Vec<String>>>;

/// Logs each change as a line.
fn note(machine: &Machine, log: &Log) -> Subscription {
    let log = Arc::clone(log);
    machine.on_change(move |change| log.lock().unwrap().push(change.to_string()))
}

#[test]
fn a_listener_is_told_what_changed_with_masks_and_epoch() {
    let (machine, log) = (machine(), Log::default());
    let _listening = note(&machine, &log);
    machine.set_online(CpuId::new(2), false).unwrap();
    machine.set_online(CpuId::new(2), false).unwrap();
    machine.set_isolated(&set("3"));
    machine.set_allowed(&set("1-3")).unwrap();
    machine.set_online(CpuId::new(2), true).unwrap();
    assert_eq!(
        *log.lock().unwrap(),
        [
            "epoch 2, CPUs 2 went; usable now 0-1,3",
            "epoch 3, isolated now '3'; usable now 0-1,3",
            "epoch 4, CPUs 0 went; usable now 1,3",
            "epoch 5, CPUs 2 came; usable now 1-3",
        ]
    );
}

#[test]
fn a_listener_finds_the_machine_changed_and_may_use_it() {
    let machine = machine();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (own, log) = (machine.clone(), Arc::clone(&seen));
    let _listening = machine.on_change(move |change| {
        let now = own.read(|masks| masks.clone());
        log.lock().unwrap().push((change.after.epoch, now == change.after));
    });
    machine.set_online(CpuId::new(1), false).unwrap();
    assert_eq!(*seen.lock().unwrap(), [(2, true)]);
}

#[test]
fn a_change_made_by_a_listener_is_told_after_the_one_that_it_was_told_of() {
    let (machine, log) = (machine(), Log::default());
    let own = machine.clone();
    let _first = machine.on_change(move |change| {
        if change.after.epoch == 2 {
            own.set_online(CpuId::new(2), false).unwrap();
        }
    });
    let _second = note(&machine, &log);
    machine.set_online(CpuId::new(1), false).unwrap();
    let log = log.lock().unwrap();
    assert_eq!(log.len(), 2, "{log:?}");
    assert!(log[0].starts_with("epoch 2, CPUs 1 went"), "{log:?}");
    assert!(log[1].starts_with("epoch 3, CPUs 2 went"), "{log:?}");
}

#[test]
fn a_dropped_subscription_is_called_no_more_and_frees_what_it_held() {
    let (machine, log) = (machine(), Log::default());
    let listening = note(&machine, &log);
    drop(listening);
    machine.set_online(CpuId::new(1), false).unwrap();
    assert!(log.lock().unwrap().is_empty());
    assert_eq!(Arc::strong_count(&log), 1);
}

#[test]
fn a_listener_may_drop_its_own_subscription() {
    let machine = machine();
    let held = Arc::new(Mutex::new(None));
    let (own, calls) = (Arc::clone(&held), Log::default());
    let log = Arc::clone(&calls);
    let listening = machine.on_change(move |change| {
        log.lock().unwrap().push(change.to_string());
        drop(own.lock().unwrap().take());
    });
    *held.lock().unwrap() = Some(listening);
    machine.set_online(CpuId::new(1), false).unwrap();
    machine.set_online(CpuId::new(2), false).unwrap();
    assert_eq!(calls.lock().unwrap().len(), 1);
    assert_eq!(Arc::strong_count(&calls), 1, "its closure is gone");
}

#[test]
fn a_later_subscriber_is_not_told_of_earlier_changes() {
    let (machine, log) = (machine(), Log::default());
    let later = Arc::new(OnceLock::new());
    let (own, slot, inner) = (machine.clone(), Arc::clone(&later), Arc::clone(&log));
    let _first = machine.on_change(move |_| {
        // Epoch 3 is made, and waits, when the second listener comes.
        if own.set_online(CpuId::new(2), false).unwrap() {
            slot.set(note(&own, &inner)).unwrap();
        }
    });
    machine.set_online(CpuId::new(1), false).unwrap();
    machine.set_online(CpuId::new(3), false).unwrap();
    assert_eq!(*log.lock().unwrap(), ["epoch 4, CPUs 3 went; usable now 0"]);
}

#[test]
fn a_panic_of_a_listener_stops_neither_the_others_nor_later_changes() {
    let (machine, log) = (machine(), Log::default());
    let kept = Arc::new(());
    let its = Arc::clone(&kept);
    let panics = machine.on_change(move |_| std::panic::panic_any(Arc::clone(&its)));
    let _listening = note(&machine, &log);
    assert!(machine.set_online(CpuId::new(1), false).unwrap());
    assert!(machine.set_online(CpuId::new(2), false).unwrap());
    assert_eq!(log.lock().unwrap().len(), 2);
    drop(panics);
    assert_eq!(Arc::strong_count(&kept), 1, "what it panicked with is dropped");
}

#[test]
fn a_listener_that_waits_for_another_changer_does_not_hang() {
    let (machine, log) = (machine(), Log::default());
    let own = machine.clone();
    let _waits = machine.on_change(move |change| {
        if change.after.epoch == 2 {
            let other = own.clone();
            assert!(
                thread::spawn(move || other.set_online(CpuId::new(2), false).unwrap())
                    .join()
                    .unwrap()
            );
        }
    });
    let _listening = note(&machine, &log);
    machine.set_online(CpuId::new(1), false).unwrap();
    assert_eq!(log.lock().unwrap().len(), 2, "the other's change is told here");
}

#[test]
fn a_subscription_keeps_no_machine_alive_and_outlives_it_harmlessly() {
    let machine = machine();
    let held = Arc::new(());
    let weak: Weak<()> = Arc::downgrade(&held);
    let listening = machine.on_change(move |_| {
        let _ = &held;
    });
    drop(machine);
    assert!(weak.upgrade().is_none(), "the listeners went with the machine");
    drop(listening);
}
