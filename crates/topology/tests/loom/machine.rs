//! Model of a choice by a machine's masks against a CPU that leaves. `src/machine/README.md` names
//! the steps.

use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::model::must_panic;
use corewise_sync::thread;
use corewise_topology::{CpuId, Machine};
use std::sync::Arc;

const LEAVES: CpuId = CpuId::new(1);

/// Runs a placer that publishes on a CPU if that is online, and a changer that takes the CPU away
/// and drains it. Nothing may be left there that no thread handles.
fn choice_against_change(in_one_section: bool) {
    loom::model(move || {
        let machine = Machine::synthetic("core:2 pu:1").expect("a valid description");
        let queue = Arc::new(AtomicBool::new(false));
        let (theirs, published) = (machine.clone(), Arc::clone(&queue));
        let placer = thread::spawn(move || {
            if in_one_section {
                theirs.read(|masks| {
                    if masks.online.contains(LEAVES) {
                        published.store(true, Ordering::Relaxed);
                    }
                });
            } else if theirs.online().contains(LEAVES) {
                published.store(true, Ordering::Relaxed);
            }
        });
        assert_eq!(machine.set_online(LEAVES, false).ok(), Some(true));
        // Drain.
        queue.swap(false, Ordering::Relaxed);
        placer.join().expect("it ends");
        assert!(!queue.load(Ordering::Relaxed), "left behind on a CPU that is gone");
    });
}

#[test]
fn loom_a_publication_in_the_choosing_section_is_drained() {
    choice_against_change(true);
}

#[test]
fn loom_a_publication_after_the_choosing_section_may_be_left_behind() {
    must_panic("left behind", || choice_against_change(false));
}

/// Checks that each change is reported once, in order, although two threads make them and either
/// may report.
#[test]
fn loom_two_changes_at_once_are_both_told_in_order() {
    corewise_sync::model::bounded(2, || {
        let machine = Machine::synthetic("core:3 pu:1").expect("a valid description");
        let told = Arc::new(corewise_sync::Mutex::new(Vec::new()));
        let list = Arc::clone(&told);
        let _subscription = machine.on_change(move |change| list.lock().push(change.after.epoch));
        let theirs = machine.clone();
        let other = thread::spawn(move || theirs.set_online(CpuId::new(1), false).is_ok());
        assert!(machine.set_online(CpuId::new(2), false).is_ok());
        assert!(other.join().expect("it ends"));
        assert_eq!(*told.lock(), [2, 3]);
    });
}
