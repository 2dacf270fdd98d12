//! Mirrors without all of their legs: the legs that may be missing, those that may come back, and
//! what is copied then.
#![cfg(not(loom))]

use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::common::mirrors::{LEG, Legs, REGION, SIZE, Up, missing};
use crate::common::{Held, STALL};
use corewise_blockmq::{BlockDevice, BlockDeviceExt, Geometry, Op};
use corewise_drivers::{
    Degraded, Fault, Faulty, LegState, Memory, MirrorEvent, MirrorLeg, MirrorOptions,
};
use corewise_sync::Mutex;

use LegState::{InSync, Out, Resyncing, Returning};

type Device = Arc<dyn BlockDevice>;

/// The place of a leg's device, or the reason why there is none.
type Slot = Arc<Mutex<Result<Device, String>>>;

fn empty(why: &str) -> Slot {
    Arc::new(Mutex::new(Err(why.to_string())))
}

/// Opens a mirror of the first two legs, of which `n` is looked for in `slot`.
fn without(legs: &Legs, n: usize, slot: &Slot, degraded: Degraded) -> Result<Up, String> {
    let mut parts: Vec<MirrorLeg> = legs.disks.iter().cloned().map(MirrorLeg::Here).collect();
    parts[n] = missing();
    let slot = Arc::clone(slot);
    legs.open_with(parts, |options: &mut MirrorOptions| {
        options.degraded = degraded;
        // No bit is taken away: what is copied is what was written.
        options.clean_after = STALL;
        options.find = Some(Arc::new(move |_| slot.lock().clone()));
    })
}

/// Waits until it is decided whether leg 1, which was asked for, comes back.
fn decided(up: &Up) -> LegState {
    loop {
        match up.states()[1] {
            Returning => std::thread::yield_now(),
            state => return state,
        }
    }
}

/// Makes legs of which leg 1 fails, and is out when the mirror ends.
fn made_and_lost() -> Legs {
    let legs = Legs::new(2).made();
    let bad =
        Faulty::new(legs.disks[1].clone(), vec![Fault::new().on(&[Op::Write]).range(0..SIZE)], 0);
    let up = legs.try_open(vec![legs.disks[0].clone(), legs.rig.queue(bad)], false).unwrap();
    up.fill(3, 3);
    assert_eq!(up.states(), [InSync, Out]);
    up.close();
    legs
}

#[test]
fn a_leg_that_was_out_may_be_missing_and_is_resynced_when_found() {
    let legs = made_and_lost();
    let slot = empty("still not plugged in");
    let up = without(&legs, 1, &slot, Degraded::Known).unwrap();
    let told = MirrorEvent::Missing { leg: 1, why: "not plugged in".to_string() };
    assert_eq!(up.event(), told);
    assert_eq!((up.states(), up.mirror.why_out(0)), (vec![InSync, Out], None));
    assert_eq!(up.mirror.why_out(1).unwrap(), "not plugged in");
    assert_eq!(up.mirror.status().to_string(), "1 of 2 legs in sync, 1 out");
    up.fill(9, 9);

    assert!(up.mirror.take_back(1));
    assert_eq!(decided(&up), Out);
    assert_eq!(up.mirror.why_out(1).unwrap(), "still not plugged in");
    up.fill(11, 11);

    *slot.lock() = Ok(legs.disks[1].clone());
    assert!(up.mirror.take_back(1));
    assert!([Resyncing, InSync].contains(&decided(&up)));
    assert_eq!(up.resynced(), (vec![1], 3 * REGION));
    assert_eq!((up.states(), up.mirror.why_out(1)), (vec![InSync, InSync], None));
    up.fill(13, 13);
    up.close();
    assert!(legs.alike());
    let up = legs.open();
    assert_eq!((up.mirror.status().to_resync, up.states()), (0, vec![InSync, InSync]));
}

#[test]
fn a_leg_that_had_everything_may_be_missing_only_where_that_is_said() {
    let legs = Legs::new(2).made();
    let refused = |policy| without(&legs, 1, &empty(""), policy).err().unwrap();
    assert!(refused(Degraded::Known).contains("'lost' is missing, but was in sync"));
    assert!(refused(Degraded::Never).contains("needs all its legs"));
    let up = without(&legs, 1, &empty(""), Degraded::Always).unwrap();
    assert_eq!(up.states(), [InSync, Out]);
    up.close();
    // From then on it is known.
    without(&legs, 1, &empty(""), Degraded::Known).unwrap().close();
    assert!(refused(Degraded::Never).contains("needs all its legs"));
    let nobody = legs.open_with(vec![missing(), missing()], |_| {}).err().unwrap();
    assert!(nobody.contains("and so are all others"), "{nobody}");
    // A leg that has everything is always needed, whatever the options say.
    let error = without(&legs, 0, &empty(""), Degraded::Always).err();
    assert_eq!(error, None, "by its own record leg 1 has everything");
}

#[test]
fn no_mirror_is_made_of_some_of_its_legs() {
    let legs = Legs::new(2);
    let error = without(&legs, 1, &empty(""), Degraded::Always).err().unwrap();
    assert!(error.contains("no readable leg has a record of this mirror"), "{error}");
    assert!(legs.disks[0].read_at(SIZE, 4096).unwrap().iter().all(|&b| b == 0), "left alone");
}

#[test]
fn legs_that_were_used_without_each_other_are_refused_until_one_gives_in() {
    let legs = Legs::new(2).made();
    for (n, region) in [(1, 2), (0, 5)] {
        let up = without(&legs, n, &empty(""), Degraded::Always).unwrap();
        up.fill(region, 7);
        up.close();
    }
    let error = legs.try_open(legs.disks.clone(), false).err().unwrap();
    assert!(error.contains("the other legs were written without each other"), "{error}");

    let slot: Slot = Arc::new(Mutex::new(Ok(legs.disks[1].clone())));
    let up = without(&legs, 1, &slot, Degraded::Known).unwrap();
    let _ = up.mirror.take_back(1);
    assert_eq!(decided(&up), Out);
    assert!(
        up.mirror.why_out(1).unwrap().contains("the other legs were written without each other")
    );
    assert!(legs.disks[1].read_at(5 * REGION, 512).unwrap().iter().all(|&b| b == 7), "left alone");

    legs.disks[1].write_at(SIZE, vec![0; REGION as usize]).unwrap();
    let _ = up.mirror.take_back(1);
    assert_eq!(up.resynced(), (vec![1], SIZE));
    up.close();
    assert!(legs.alike());
    assert!(legs.data(1)[2 * REGION as usize] == 7 && legs.data(1)[5 * REGION as usize] == 0);
}

#[test]
fn a_crash_in_the_middle_of_a_resync_leaves_no_more_to_copy_than_there_was() {
    let legs = made_and_lost();
    let slot = empty("");
    let up = without(&legs, 1, &slot, Degraded::Known).unwrap();
    [5, 7, 9, 11].into_iter().for_each(|region| up.fill(region, region as u8));
    drop(up); // a crash while one is out
    *slot.lock() = Ok(legs.disks[1].clone());
    let parts = vec![MirrorLeg::Here(legs.disks[0].clone()), missing()];
    let find = Arc::clone(&slot);
    let up = legs
        .open_with(parts, |options| {
            (options.resync_most, options.resync_least) = (1, 1);
            options.clean_after = STALL;
            options.find = Some(Arc::new(move |_| find.lock().clone()));
        })
        .unwrap();
    assert_eq!(up.mirror.status().to_resync, 0, "one leg alone differs from nobody");
    let _ = up.mirror.take_back(1);
    while up.mirror.status().resynced == 0 || decided(&up) == Out {
        std::thread::yield_now();
    }
    let status = up.mirror.status();
    assert_eq!((status.to_resync, status.resynced), (4 * REGION, REGION));
    assert_eq!(status.to_string(), "1 of 2 legs in sync, 1 MiB to resync (20 % done)");
    up.fill(14, 14);
    drop(up); // and one while it comes back
    let up = legs.open();
    let began = MirrorEvent::ResyncBegan { legs: vec![1], bytes: 6 * REGION };
    assert_eq!(up.event(), began);
    assert_eq!(up.resynced(), (vec![1], 6 * REGION));
    up.close();
    assert!(legs.alike());
    assert!(legs.data(1)[14 * REGION as usize] == 14);
}

#[test]
fn an_older_copy_of_a_leg_is_not_taken_for_the_leg_after_a_clean_stop() {
    for (n, while_used) in [(1, false), (0, true), (1, true)] {
        let legs = Legs::new(2).made();
        let mut before = legs.copy(n);
        let up = legs.open();
        if while_used {
            up.fill(3, 3);
            before = legs.copy(n);
        }
        up.fill(4, 4);
        up.close();
        legs.put_back(n, &before);
        let error = legs.try_open(legs.disks.clone(), false).err().unwrap();
        assert!(error.contains("is an older copy of this leg, but was in sync"), "{error}");
        let parts = || legs.disks.iter().cloned().map(MirrorLeg::Here).collect();
        let up = legs.open_with(parts(), |options| options.degraded = Degraded::Always).unwrap();
        assert_eq!(up.resynced(), (vec![n], SIZE));
        up.close();
        assert!(legs.alike() && legs.data(n)[4 * REGION as usize] == 4);
    }
}

#[test]
fn parts_of_two_copies_of_a_mirror_that_were_both_used_are_not_put_together() {
    let legs = Legs::new(2).made();
    let before: Vec<_> = (0..2).map(|n| legs.copy(n)).collect();
    let used = |byte| {
        (0..2).for_each(|n| legs.put_back(n, &before[n]));
        let up = legs.open();
        up.fill(4, byte);
        up.close();
        (0..2).map(|n| legs.copy(n)).collect::<Vec<_>>()
    };
    let (one, other) = (used(1), used(2));
    legs.put_back(0, &one[0]);
    let parts = || legs.disks.iter().cloned().map(MirrorLeg::Here).collect();
    for degraded in [Degraded::Known, Degraded::Always] {
        let error = legs.open_with(parts(), |options| options.degraded = degraded).err().unwrap();
        assert!(error.contains("the other legs were written without each other"), "{error}");
    }
    legs.put_back(0, &other[0]);
    legs.open().close();
}

#[test]
fn a_part_that_was_out_for_many_starts_gets_only_what_it_lacks() {
    let legs = made_and_lost();
    for _ in 0..20 {
        without(&legs, 1, &empty(""), Degraded::Known).unwrap().close();
    }
    let up = legs.open();
    assert_eq!(up.resynced(), (vec![1], REGION));
}

#[test]
fn a_mirror_without_a_record_takes_no_part_that_keeps_one() {
    let made = Legs::new(3).made();
    let blank: Device = made.rig.queue(Memory::new(LEG).unwrap());
    let disk = |n: usize| made.disks[n].clone();
    let open = |parts: Vec<MirrorLeg>| {
        made.open_with(parts, |options| options.record = false).err().unwrap_or_default()
    };
    let (before, all) = (made.copy(0), "'{}' holds the record of a mirror");
    let ways = [
        vec![disk(0), disk(1), disk(2)],
        vec![disk(1), disk(0)],
        vec![disk(0), disk(1)],
        vec![blank.clone(), disk(0)],
        vec![disk(0), blank.clone()],
    ];
    for parts in ways {
        let first = parts.iter().find(|part| !Arc::ptr_eq(part, &blank)).unwrap();
        let (name, parts) = (first.name().to_string(), parts.iter().cloned());
        let error = open(parts.map(MirrorLeg::Here).collect());
        assert!(error.contains(&all.replace("{}", &name)), "{error}");
        assert!(error.contains(&format!("seek={} count={}", SIZE / 512, REGION / 512)), "{error}");
    }
    assert_eq!(made.copy(0), before, "left alone");

    // Nor one that comes late.
    let late = disk(0);
    let parts = vec![MirrorLeg::Here(blank), missing()];
    let up = made.open_with(parts, |options| {
        options.record = false;
        options.find = Some(Arc::new(move |_| Ok(late.clone())));
    });
    let up = up.unwrap();
    assert!(up.mirror.take_back(1));
    assert_eq!(decided(&up), Out);
    let why = up.mirror.why_out(1).unwrap();
    assert!(why.contains("holds the record of a mirror"), "{why}");
    assert_eq!(made.copy(0), before, "left alone");

    // Once the record is gone it's a disk as any other.
    disk(0).write_at(SIZE, vec![0; REGION as usize]).unwrap();
    assert_eq!(open(vec![MirrorLeg::Here(disk(0))]), "");
}

#[test]
fn an_unsuitable_device_stays_out() {
    let legs = made_and_lost();
    let slot = empty("");
    let up = without(&legs, 1, &slot, Degraded::Known).unwrap();
    let coarse = Geometry { block_size: 4096, ..Geometry::new(LEG) };
    let read_only = Geometry { read_only: true, ..Geometry::new(LEG) };
    let shaped = |geometry| legs.rig.queue(Held { geometry: Some(geometry), ..Held::default() });
    let wrong: [(Device, &str); 3] = [
        (legs.rig.queue(Memory::new(SIZE).unwrap()), "has room for"),
        (shaped(coarse), "larger than the mirror's 512"),
        (shaped(read_only), "read-only"),
    ];
    for (device, why) in wrong {
        *slot.lock() = Ok(device);
        let _ = up.mirror.take_back(1);
        assert_eq!(decided(&up), Out);
        let told = up.mirror.why_out(1).unwrap();
        assert!(told.contains(why), "{told}");
    }
    // It fits, and holds something else.
    let other = Legs::new(2).made();
    *slot.lock() = Ok(other.disks[1].clone());
    let _ = up.mirror.take_back(1);
    assert_eq!(decided(&up), Out);
    assert!(up.mirror.why_out(1).unwrap().contains("has other data at its end"));
}

#[test]
fn writes_go_on_during_the_search_for_a_leg_even_if_it_panics() {
    let legs = made_and_lost();
    let (go, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let parts = vec![MirrorLeg::Here(legs.disks[0].clone()), missing()];
    let up = legs
        .open_with(parts, |options| {
            options.find = Some(Arc::new(move |_| {
                let _ = gate.lock().recv_timeout(STALL);
                panic!("a finder that a test made panic");
            }));
        })
        .unwrap();
    let _ = up.mirror.take_back(1);
    assert_eq!(up.states(), [InSync, Returning]);
    // These need the keeper for their bits.
    (4..16).for_each(|region| up.fill(region, 1));
    assert_eq!(up.states(), [InSync, Returning]);
    go.send(()).unwrap();
    assert_eq!(decided(&up), Out);
    assert_eq!(up.mirror.why_out(1).unwrap(), "the search for the leg's device panicked");
    up.close();
}

#[test]
fn a_missing_leg_is_looked_for_again_and_again_where_that_is_asked_for() {
    let legs = made_and_lost();
    let parts = vec![MirrorLeg::Here(legs.disks[0].clone()), missing()];
    let (disk, tries) = (legs.disks[1].clone(), Mutex::new(0));
    let up = legs
        .open_with(parts, |options| {
            options.retry = Some(Duration::from_millis(1));
            options.find = Some(Arc::new(move |n| {
                assert_eq!(n, 1);
                *tries.lock() += 1;
                if *tries.lock() == 4 { Ok(disk.clone()) } else { Err("not yet".to_string()) }
            }));
        })
        .unwrap();
    assert_eq!(up.resynced(), (vec![1], REGION));
    up.close();
    assert!(legs.alike());
}

#[test]
fn after_it_has_settled_a_mirror_takes_nobody_back() {
    let legs = made_and_lost();
    let slot: Slot = Arc::new(Mutex::new(Ok(legs.disks[1].clone())));
    let up = without(&legs, 1, &slot, Degraded::Known).unwrap();
    up.queue.drain();
    up.mirror.settle();
    assert!(!up.mirror.take_back(1));
    assert_eq!(up.states(), [InSync, Out]);
}

#[test]
fn an_empty_first_leg_is_never_copied_over_one_that_has_data() {
    for record in [true, false] {
        let legs = Legs::new(3);
        // Far behind what lies at the front of most disks.
        legs.disks[1].write_at(SIZE - 4096, vec![7; 4096]).unwrap();
        let before = legs.copy(1);
        let here = |n: usize| MirrorLeg::Here(legs.disks[n].clone());
        let new = |n: usize| MirrorLeg::New(legs.disks[n].clone());
        let open = |parts: Vec<MirrorLeg>| legs.open_with(parts, |options| options.record = record);
        // A device that was new when it was opened may hold data by now.
        let first = [vec![new(0), here(1)], vec![here(0), here(1)], vec![new(0), new(1)]];
        for parts in first.into_iter().chain([vec![new(0), new(2), here(1)]]) {
            let error = open(parts).err().expect("nothing would be the source");
            let (first, other) = (legs.disks[0].name(), legs.disks[1].name());
            assert!(error.contains(&format!("'{first}'")), "{error}");
            assert!(error.contains(&format!("name '{other}' first")), "{error}");
            assert!(legs.copy(1) == before && legs.copy(0) == legs.copy(2), "left alone");
        }
        // The advice works.
        let up = open(vec![here(1), new(0)]).unwrap();
        up.resynced();
        up.close();
        assert!(legs.data(0) == legs.data(1) && legs.data(0)[SIZE as usize - 4096] == 7);
    }
}

#[test]
fn legs_that_are_all_new_or_all_empty_make_a_mirror() {
    for record in [true, false] {
        let legs = Legs::new(2);
        let here = |n: usize| MirrorLeg::Here(legs.disks[n].clone());
        let new = |n: usize| MirrorLeg::New(legs.disks[n].clone());
        for parts in [vec![new(0), new(1)], vec![here(0), here(1)], vec![new(0), here(1)]] {
            let up = legs.open_with(parts, |options| options.record = record).unwrap();
            up.close();
            for disk in &legs.disks {
                disk.write_zeroes(0, LEG).unwrap();
            }
        }
    }
}
