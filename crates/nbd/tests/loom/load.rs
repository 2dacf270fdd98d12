//! Model of the load word: the reader's waits against threads that settle, drain and cut.

use std::sync::Arc;

use corewise_nbd::model::{Budget, Charge, Load};
use corewise_sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

fn admit(load: &Load, bytes: u64) -> Option<Charge> {
    let charge = load.charge(bytes)?;
    load.admit(charge);
    Some(charge)
}

#[test]
fn loom_a_reader_that_waits_for_room_is_always_woken() {
    loom::model(|| {
        let (load, parker) = Load::new(Budget { requests: 2, bytes: 100 }, 100);
        let load = Arc::new(load);
        let charges = [(); 2].map(|()| admit(&load, 50).unwrap());
        let settlers: Vec<_> = charges
            .into_iter()
            .map(|charge| {
                let load = Arc::clone(&load);
                thread::spawn(move || {
                    let _ = load.settle(1, charge);
                })
            })
            .collect();
        while admit(&load, 50).is_none() {
            load.wait_for_room(&parker, 50);
        }
        for settler in settlers {
            settler.join().unwrap();
        }
        assert_eq!(load.snapshot().requests, 1);
    });
}

#[test]
fn loom_the_end_of_the_last_reply_wakes_the_reader_that_waits_for_zero() {
    loom::model(|| {
        let (load, parker) = Load::new(Budget::default(), 100);
        let load = Arc::new(load);
        let charges = [(); 2].map(|()| admit(&load, 1).unwrap());
        let settlers: Vec<_> = charges
            .into_iter()
            .map(|charge| {
                let load = Arc::clone(&load);
                thread::spawn(move || {
                    let _ = load.settle(1, charge);
                })
            })
            .collect();
        load.wait_for_zero(&parker);
        assert_eq!(load.snapshot().requests, 0);
        for settler in settlers {
            settler.join().unwrap();
        }
    });
}

#[test]
fn loom_a_drain_and_the_last_reply_never_both_leave_the_reader_reading() {
    loom::model(|| {
        let (load, _parker) = Load::new(Budget::default(), 100);
        let load = Arc::new(load);
        let stops = Arc::new(AtomicUsize::new(0));
        let charge = admit(&load, 1).unwrap();
        let (theirs, their_stops) = (Arc::clone(&load), Arc::clone(&stops));
        let settler = thread::spawn(move || {
            if theirs.settle(1, charge) {
                their_stops.fetch_add(1, Ordering::Relaxed);
            }
        });
        // This is the rule of `Connection::drain`: it stops the reading side at once if nothing is
        // owed, and otherwise leaves that to the last reply.
        if load.drain().requests == 0 {
            stops.fetch_add(1, Ordering::Relaxed);
        }
        settler.join().unwrap();
        assert_eq!(stops.load(Ordering::Relaxed), 1, "exactly one of the two stops the reader");
    });
}

#[test]
fn loom_a_cut_wakes_a_reader_that_waits_for_room() {
    loom::model(|| {
        let (load, parker) = Load::new(Budget { requests: 1, bytes: 1 }, 1);
        let load = Arc::new(load);
        assert!(admit(&load, 1).is_some());
        let theirs = Arc::clone(&load);
        let cutter = thread::spawn(move || theirs.cut());
        load.wait_for_room(&parker, 1);
        assert!(load.snapshot().cut);
        cutter.join().unwrap();
    });
}
