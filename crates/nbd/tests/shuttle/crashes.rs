//! Tests that acknowledged and flushed changes survive any crash, or are reported as lost.

use std::sync::Arc;

use corewise_sync::model::choose;
use corewise_sync::model::schedules::{self, Schedules};
use corewise_sync::{Mutex, thread};

use crate::disk::{DATA, Errors, Machine, World};
use crate::event_counts::{EventCounts, Shown, count, say};
use crate::ledger::{BLOCK, BLOCKS, Ledger};
use crate::stack::{Shape, Up};

/// Chooses the errors of the disks in a life.
fn weather(disks: usize) -> Vec<Errors> {
    let bad = choose(disks as u64) as usize;
    let kind = choose(4);
    let of = |n: usize| match kind {
        0 if n == bad => Errors::Some(6),
        1 if n == bad => Errors::After(choose(40)),
        2 => Errors::Some(25),
        _ => Errors::None,
    };
    (0..disks).map(of).collect()
}

struct Run {
    shape: Shape,
    machine: Arc<Machine>,
    ledger: Mutex<Ledger>,
    counts: &'static EventCounts,
}

impl Run {
    fn new(shape: Shape, change: impl FnOnce(&mut World), counts: &'static EventCounts) -> Run {
        count(&counts.seeds);
        say(|| format!("{shape:?}"));
        let mut world = World::new(shape.disks());
        change(&mut world);
        let run = Run {
            shape,
            machine: Machine::new(world, counts),
            ledger: Mutex::new(Ledger::new(shape.first())),
            counts,
        };
        if shape == Shape::Crypt {
            // Bytes that were never written read as noise.
            run.life(&run.calm(), None, Up::zero);
        }
        run
    }

    /// Runs a life of the server with `live`. Returns `None` if its start was refused.
    fn life<T>(
        &self,
        errors: &[Errors],
        crash_in: Option<u64>,
        live: impl FnOnce(&Up) -> T,
    ) -> Option<T> {
        let Run { shape, machine, ledger, counts } = self;
        count(&counts.lives);
        say(|| format!("a life: {errors:?}, crash in {crash_in:?}"));
        machine.begin(|n| errors[n], crash_in);
        let interrupts = thread::spawn({
            let machine = Arc::clone(machine);
            move || machine.interrupts()
        });
        let lived = match Up::start(*shape, machine) {
            Ok(up) => {
                let lived = live(&up);
                if choose(3) == 0 {
                    machine.world.lock().kill();
                }
                let is_durable = up.stop();
                if is_durable && !machine.is_dead() {
                    say(|| "all is durable".into());
                    ledger.lock().all_durable();
                }
                Some(lived)
            }
            Err(why) => {
                say(|| format!("refused: {why}"));
                count(&counts.refused);
                None
            }
        };
        machine.close();
        interrupts.join().unwrap();
        if machine.is_dead() {
            count(&counts.crashes);
        }
        let power_fails = choose(3) != 0;
        if power_fails {
            count(&counts.power_failures);
        }
        machine.end(power_fails);
        let keeps = !power_fails && shape.survives_kill();
        ledger.lock().end(keeps);
        lived
    }

    fn lives(&self, has_errors: bool, is_unsure: bool) {
        let disks = self.machine.world.lock().disks.len();
        for _ in 0..1 + choose(3) {
            let errors = if has_errors { weather(disks) } else { vec![Errors::None; disks] };
            let crash_in = (choose(4) != 0).then(|| 1 + choose(150));
            self.life(&errors, crash_in, |up| {
                up.serve(&self.machine, &self.ledger, self.counts, is_unsure);
            });
        }
    }

    fn calm(&self) -> Vec<Errors> {
        vec![Errors::None; self.machine.world.lock().disks.len()]
    }
}

static HONEST: EventCounts = EventCounts::new();

/// Runs disks that fail, and lose unflushed changes in a power failure, but never lie: no promised
/// change is lost.
fn honest(counts: &'static EventCounts) {
    let run = Run::new(Shape::any(), |_| (), counts);
    run.lives(true, false);
    let is_up = run.life(&run.calm(), None, |up| {
        up.serve(&run.machine, &run.ledger, counts, false);
        up.wait_until_alike();
        let world = run.machine.world.lock();
        for disks in run.shape.alike() {
            let data = |n: usize| &world.disks[n].now[..DATA];
            assert!(disks.iter().all(|&n| data(n) == data(disks[0])), "legs in sync differ");
        }
    });
    assert!(is_up.is_some(), "it doesn't come up, though no disk fails");
}

static DECEIVED: EventCounts = EventCounts::new();
static ALONE: EventCounts = EventCounts::new();
static TWICE: EventCounts = EventCounts::new();

/// Makes a disk lie about flushes, or put writes elsewhere.
fn deceive(world: &mut World, bad: usize) {
    let disk = &mut world.disks[bad];
    *(if choose(2) == 0 { &mut disk.lies } else { &mut disk.misdirects }) = true;
}

/// Returns the wrong blocks at the end, when no disk lies any more, each with whether a check has
/// reported its place. Blocks are compared as a client reads them, and on each leg in sync, from
/// any of which it may read. Returns `None` if the start is refused with a reason.
fn wrong_blocks(run: &Run) -> Option<Vec<(String, bool)>> {
    for disk in &mut run.machine.world.lock().disks {
        (disk.lies, disk.misdirects) = (false, false);
    }
    run.life(&run.calm(), None, |up| {
        up.wait_until_settled();
        let is_mirror = !up.mirrors.is_empty();
        let places = if is_mirror { up.check(false).places } else { Vec::new() };
        let judge = || {
            let mut wrong: Vec<(usize, String)> = Vec::new();
            let read = up.read(&run.machine, &run.ledger, run.counts);
            let (mut ledger, world) = (run.ledger.lock(), run.machine.world.lock());
            for disk in up.complete() {
                let blocks = world.disks[disk].now.chunks(BLOCK).take(BLOCKS).enumerate();
                let why = |(n, block)| Some((n, ledger.may_be(n, block).err()?));
                wrong.extend(
                    blocks.filter_map(why).map(|(n, why)| (n, format!("disk {disk}: {why}"))),
                );
            }
            for (n, block) in read.iter().enumerate() {
                wrong.extend(ledger.judge(n, block).err().map(|why| (n, why)));
            }
            wrong
        };
        let wrong = judge().into_iter().map(|(n, why)| {
            let (start, end) = ((n * BLOCK) as u64, ((n + 1) * BLOCK) as u64);
            let is_told = places.iter().any(|p| p.range.start < end && start < p.range.end);
            count(if is_told { &run.counts.found } else { &run.counts.silent });
            (why, is_told)
        });
        let mut wrong: Vec<_> = wrong.collect();
        if is_mirror {
            up.check(true);
            assert!(up.check(false).places.is_empty(), "a check finds what one has repaired");
            wrong.extend(judge().into_iter().map(|(_, why)| (format!("repaired: {why}"), false)));
        }
        wrong
    })
}

/// Runs a mirror with one leg that can't be trusted, and not the first. A check finds all that was
/// lost, and a repair mends it.
fn deceived() {
    let run = Run::new(
        Shape::Mirror(2 + choose(2) as usize),
        |world| {
            let legs = world.disks.len() as u64;
            deceive(world, 1 + choose(legs - 1) as usize);
        },
        &DECEIVED,
    );
    run.lives(false, true);
    for (why, is_told) in wrong_blocks(&run).unwrap_or_default() {
        assert!(is_told, "no check has counts: {why}");
    }
}

/// Runs an untrusted disk alone, or as the leg that a mirror copies from. No check can detect its
/// faults, which are only counted.
fn alone() {
    let shape = [Shape::Disk, Shape::Mirror(2)][choose(2) as usize];
    let run = Run::new(shape, |world| deceive(world, 0), &ALONE);
    run.lives(false, true);
    wrong_blocks(&run);
}

#[test]
fn shuttle_no_crash_loses_what_was_flushed() {
    let _shown = Shown("disks that don't lie", &HONEST);
    schedules::random(Schedules { short: 40, long: 10_000 }, || honest(&HONEST));
}

#[test]
fn shuttle_a_check_finds_what_a_leg_lost_that_lies_and_a_repair_mends_it() {
    let _shown = Shown("a leg that lies, but the first", &DECEIVED);
    schedules::random(Schedules { short: 15, long: 3_000 }, deceived);
}

#[test]
fn shuttle_what_a_disk_alone_loses_that_lies_is_counted() {
    let _shown = Shown("a disk that lies, and is believed", &ALONE);
    schedules::random(Schedules { short: 5, long: 1_000 }, alone);
}

#[test]
fn shuttle_a_seed_replays_its_crashes() {
    schedules::replayed(Schedules { short: 3, long: 200 }, || honest(&TWICE));
}
