//! CPUs that leave and join while calls go on: for calls alone, by the machine's mask, and, where
//! the process may, by the system itself.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use corewise_sync::Parker;
use corewise_sync::atomic::Ordering;
use corewise_topology::{CpuId, Machine};
use fastrand::Rng;

use super::check::Check;
use super::live::Keeper;
use super::mistake::Mistake;
use super::world::{World, add};

/// Greatest time for which a CPU stays out, and then in.
const OUT: usize = 2_000;
/// Number of turns of which the system takes the CPU in one. That takes far longer than the others.
const SYSTEM: usize = 64;

/// The switch of a CPU of the live machine.
pub(super) struct Switch {
    cpu: CpuId,
    file: PathBuf,
}

impl Switch {
    /// Returns the switch of this CPU, or why there is none.
    pub(super) fn of(cpu: CpuId) -> Result<Switch, String> {
        let file = PathBuf::from(format!("/sys/devices/system/cpu/cpu{cpu}/online"));
        // It is online: this write changes nothing, and shows whether writes are allowed.
        match fs::write(&file, "1") {
            Ok(()) => Ok(Switch { cpu, file }),
            Err(error) => Err(format!("CPU {cpu} can't be taken offline: {error}")),
        }
    }

    /// Takes the CPU offline until the returned keeper is dropped.
    fn take(&self) -> io::Result<Keeper> {
        // The keeper exists before the write: the CPU is put back, whatever the write's result.
        let keeper = Keeper::of(&self.file)?;
        fs::write(&self.file, "0")?;
        Ok(keeper)
    }
}

/// Takes CPUs out and in until the torture stops; leaves all of them in.
pub(super) fn plug(world: &World, mut rng: Rng, switch: Option<&Switch>) {
    let pause = Parker::new();
    let leaves: Vec<CpuId> = world.leaves.iter().collect();
    for turn in 0usize.. {
        if world.stops() || leaves.is_empty() {
            return;
        }
        let cpu = leaves[rng.usize(..leaves.len())];
        let synthetic = world.smp.machine().is_synthetic();
        let by_system = switch.filter(|_| turn % SYSTEM == 1);
        match (by_system, rng.usize(..2)) {
            (Some(switch), gently) => by_the_system(world, switch, gently == 0, &pause, &mut rng),
            (None, 0) if synthetic => by_the_mask(world, cpu, &pause, &mut rng),
            (None, _) => for_calls(world, cpu, &pause, &mut rng),
        }
        rest(&pause, &mut rng);
    }
}

fn rest(pause: &Parker, rng: &mut Rng) {
    pause.park_timeout(Duration::from_micros(rng.usize(..OUT) as u64));
}

fn failed(world: &World, what: &dyn std::fmt::Display) {
    world.findings.fail(Check::Plug, || what.to_string());
}

/// Checks the conditions between the end of a leave and the beginning of a join.
fn dead(world: &World, cpu: CpuId, pause: &Parker, rng: &mut Rng) {
    let side = world.side(cpu);
    side.dead.store(true, Ordering::Release);
    side.left.fetch_add(1, Ordering::Release);
    let refused = world.smp.call(cpu, || ()).is_err();
    world.findings.expect(Check::Dead, refused, || format!("CPU {cpu} left, and took a call"));
    rest(pause, rng);
    side.dead.store(false, Ordering::Release);
}

/// Takes a CPU out for calls alone; now and then a handler of that CPU does it.
fn for_calls(world: &World, cpu: CpuId, pause: &Parker, rng: &mut Rng) {
    add(&world.counts.leaves, 1);
    let smp = world.smp.clone();
    let leaving = match rng.usize(..4) {
        0 => match world.smp.call(cpu, move || smp.cpu_offline(cpu)) {
            Ok(call) => {
                // This is one more handler, which the targets count.
                add(&world.counts.ran, 1);
                call.wait().map_err(|failed| failed.to_string())
            }
            Err(refusal) => Err(refusal.to_string()),
        },
        _ => Ok(smp.cpu_offline(cpu)),
    };
    match leaving {
        Ok(leaving) => {
            if world.makes(Mistake::DiesEarly) {
                world.side(cpu).dead.store(true, Ordering::Release);
            }
            leaving.wait();
        }
        Err(error) => return failed(world, &error),
    }
    dead(world, cpu, pause, rng);
    if world.makes(Mistake::StaysOut) {
        return;
    }
    if let Err(error) = world.smp.cpu_online(cpu) {
        failed(world, &error);
    }
}

/// Takes a CPU out by the machine's mask, which the targets follow.
fn by_the_mask(world: &World, cpu: CpuId, pause: &Parker, rng: &mut Rng) {
    add(&world.counts.follows, 1);
    let machine = world.smp.machine();
    if let Err(error) = machine.set_online(cpu, false) {
        return failed(world, &error);
    }
    follow(world);
    dead(world, cpu, pause, rng);
    if let Err(error) = machine.set_online(cpu, true) {
        failed(world, &error);
    }
    follow(world);
}

fn follow(world: &World) {
    let followed = world.smp.follow_machine();
    followed.leaving.wait();
    for error in &followed.failed {
        failed(world, error);
    }
}

/// Takes a CPU out by the system: gently, after it has left for calls, or under its target.
fn by_the_system(world: &World, switch: &Switch, gently: bool, pause: &Parker, rng: &mut Rng) {
    let (cpu, side) = (switch.cpu, world.side(switch.cpu));
    add(&world.counts.plugs, 1);
    if gently {
        world.smp.cpu_offline(cpu).wait();
    }
    // From here its target and its handlers may be anywhere: full order, both sides read twice.
    side.away.fetch_add(1, Ordering::SeqCst);
    match switch.take() {
        Ok(out) => {
            refresh(world, world.smp.machine());
            follow(world);
            dead(world, cpu, pause, rng);
            drop(out);
        }
        Err(error) => failed(world, &error),
    }
    refresh(world, world.smp.machine());
    follow(world);
    if gently {
        if let Err(error) = world.smp.cpu_online(cpu) {
            failed(world, &error);
        }
    }
    side.away.fetch_add(1, Ordering::SeqCst);
}

fn refresh(world: &World, machine: &Machine) {
    if let Err(error) = machine.refresh() {
        failed(world, &error);
    }
}
