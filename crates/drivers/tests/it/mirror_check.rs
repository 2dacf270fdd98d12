//! The check of a mirror: its findings, its repairs, and that it blocks no request.
#![cfg(not(loom))]

use std::sync::Arc;
use std::time::Duration;

use crate::common::Rng;
use crate::common::mirrors::{Legs, REGION, SIZE, Up};
use corewise_blockmq::{BlockDevice, BlockDeviceExt, Op};
use corewise_drivers::{Fault, Faulty, LegState, MirrorCheck, MirrorEvent};

/// Waits for the end of a check, and returns what it has found.
fn checked(up: &Up) -> MirrorCheck {
    loop {
        if let MirrorEvent::CheckEnded { check } = up.event() {
            return check;
        }
    }
}

#[test]
fn a_check_tells_what_differs_and_repairs_it_only_where_that_is_asked_for() {
    let legs = Legs::new(3).made();
    let up = legs.open();
    assert_eq!(up.mirror.status().check, None);
    assert!(up.mirror.check(None, false));
    let check = checked(&up);
    assert_eq!((check.checked, check.differ, check.unreadable), (SIZE, 0, 0));
    assert!(!check.running && check.places.is_empty());
    // Behind the mirror's back.
    legs.disks[1].write_at(5 * REGION + 512, vec![9; 1024]).unwrap();
    legs.disks[2].write_at(9 * REGION, vec![9; 512]).unwrap();
    assert!(up.mirror.check(None, false));
    let check = checked(&up);
    assert_eq!((check.differ, check.repaired, check.unreadable), (1536, 0, 0));
    let places: Vec<_> =
        check.places.iter().map(|place| (place.leg, place.range.clone(), place.from)).collect();
    let at = |at: u64, len| at..at + len;
    let expected = [(1, at(5 * REGION + 512, 1024), Some(0)), (2, at(9 * REGION, 512), Some(0))];
    assert_eq!(places, expected);
    assert!(!legs.alike(), "nobody asked for a repair");
    assert!(up.mirror.status().to_string().contains("1536 bytes that differ"));
    assert!(up.mirror.check(None, true));
    let check = checked(&up);
    assert_eq!((check.differ, check.repaired), (1536, 1536));
    assert!(legs.alike());
    assert_eq!(up.mirror.status().to_resync, 0);
    assert_eq!(legs.data(1)[5 * REGION as usize + 512], 0, "the first leg is what is so");
}

#[test]
fn the_last_check_survives_a_restart_and_one_that_was_stopped_is_none() {
    let legs = Legs::new(2).made();
    let up = legs.open();
    let began = up.mirror.status();
    assert_eq!(began.checked, None);
    assert!(began.unchecked_since > Duration::ZERO, "the record began then");
    up.close();
    let up = legs.open();
    assert_eq!(up.mirror.status().unchecked_since, began.unchecked_since);
    legs.disks[1].write_at(5 * REGION + 512, vec![9; 1024]).unwrap();
    assert!(up.mirror.check(None, false));
    checked(&up);
    let last = up.mirror.status().checked.unwrap();
    assert_eq!((last.differ, last.unreadable, last.lost, last.repaired), (1024, 0, 0, 0));
    assert!(last.ended >= began.unchecked_since && last.took > Duration::ZERO);
    assert_eq!(up.mirror.status().unchecked_since, last.ended);
    // As a server that is killed leaves it.
    drop(up);
    let up = legs.open();
    let status = up.mirror.status();
    assert_eq!((status.check, status.checked), (None, Some(last)));
    assert_eq!(status.unchecked_since, last.ended);
    // A byte a second: it lasts.
    assert!(up.mirror.check(Some(1), false) && up.mirror.stop_check());
    checked(&up);
    assert_eq!(up.mirror.status().checked, Some(last));
    assert!(up.mirror.check(None, true));
    checked(&up);
    assert_eq!(up.mirror.status().checked.unwrap().repaired, 1024);
}

#[test]
fn what_one_leg_cannot_read_is_written_anew_from_another() {
    let legs = Legs::new(2).made();
    legs.disks.iter().for_each(|disk| disk.write_at(3 * REGION, vec![3; 512]).unwrap());
    // The check's own read, and that of the repair.
    let bad = Fault::new().on(&[Op::Read]).range(3 * REGION..3 * REGION + 512).times(2);
    let bad: Arc<dyn BlockDevice> =
        legs.rig.queue(Faulty::new(legs.disks[0].clone(), vec![bad], 0));
    let up = legs.try_open(vec![bad, legs.disks[1].clone()], false).unwrap();
    assert!(up.mirror.check(None, true));
    let check = checked(&up);
    assert_eq!((check.differ, check.unreadable, check.repaired), (0, REGION, REGION));
    assert_eq!((check.places[0].leg, check.places[0].from), (0, Some(1)));
    assert!(check.places[0].error.is_some());
    assert_eq!(up.states(), [LegState::InSync; 2]);
}

#[test]
fn a_check_finds_nothing_where_clients_write_meanwhile() {
    let legs = Legs::new(2).made();
    let up = legs.open();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|seed| {
                let queue = up.queue.clone();
                scope.spawn(move || {
                    let mut rng = Rng::new(seed + 1);
                    for n in 0..3000u32 {
                        let at = rng.below(SIZE / 4096) * 4096;
                        queue.write_at(at, n.to_le_bytes().repeat(1024)).unwrap();
                    }
                })
            })
            .collect();
        while writers.iter().any(|writer| !writer.is_finished()) {
            assert!(up.mirror.check(None, false));
            let check = checked(&up);
            assert_eq!((check.checked, check.differ), (SIZE, 0), "{:?}", check.places);
        }
    });
}

#[test]
fn a_check_keeps_to_its_rate_can_be_stopped_and_keeps_nobody_waiting() {
    let legs = Legs::new(2).made();
    let up = legs.open();
    assert!(!up.mirror.stop_check(), "there is none");
    // A region takes most of a day.
    assert!(up.mirror.check(Some(1), false) && !up.mirror.check(None, false));
    while up.mirror.status().check.is_none_or(|check| check.checked == 0) {
        std::thread::yield_now();
    }
    up.fill(0, 7);
    assert!(up.mirror.stop_check() && !up.mirror.stop_check());
    let check = checked(&up);
    assert_eq!((check.running, check.checked, check.size), (false, REGION, SIZE));
    assert!(up.mirror.check(None, false));
    assert_eq!(checked(&up).checked, SIZE);
    assert!(up.mirror.check(Some(1), false));
    up.close();
    assert!(legs.alike());
    assert_eq!(legs.open().mirror.status().to_resync, 0);
}
