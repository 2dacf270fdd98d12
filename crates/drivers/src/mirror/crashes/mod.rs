//! The whole mirror on one thread, with all possible incidents at each request to its record. These
//! are a failed write that left nothing, everything, or half of it; a change that fails on a leg in
//! the middle of it; a kill, and then a power failure. Each combination of a few of those is tried,
//! without random choices. Acknowledged data is on each leg that is called in sync, and in the end
//! on all.

mod members;
mod replaced;
mod world;

use std::sync::Arc;

use corewise_blockmq::model::BuildByHand;
use corewise_blockmq::{BlockDevice, Queue};
use corewise_sync::Mutex;
use corewise_topology::Machine;
use corewise_workqueue::{WorkerPools, Workqueue};

use super::keeper::wish;
use super::legs::{Legs, each};
use super::{Mirror, MirrorLeg, MirrorOptions, MirrorState};
use world::Kind::{Failed, Killed};
use world::{Choices, Kind, Platter, Port, REGION_SHIFT, Shared, USED, World, WriteRemains, write};

/// A running mirror.
struct Up {
    inner: Arc<MirrorState>,
    world: Shared,
}

fn port(world: &Shared, n: usize) -> Arc<dyn BlockDevice> {
    Arc::new(Port { n, world: Arc::clone(world) })
}

/// The parts that all runs share.
struct Rig {
    machine: Machine,
    /// A workqueue without workers: the test does their work.
    idle: Workqueue,
}

impl Rig {
    fn new() -> Self {
        let machine = Machine::synthetic("l3:1 core:1 pu:1").unwrap();
        let pools = WorkerPools::new(&machine);
        let idle = Workqueue::builder("idle").build(&pools).unwrap().below();
        pools.shutdown();
        Self { machine, idle }
    }

    fn open(&self, world: &Shared) -> Result<Up, String> {
        let (legs, away) = {
            let world = world.lock();
            (world.legs.clone(), world.away)
        };
        let leg = |n: usize| match away == Some(n) {
            true => MirrorLeg::Missing { name: format!("leg{n}"), why: "away".into() },
            false => MirrorLeg::Here(port(world, legs[n])),
        };
        let found: Vec<_> = legs.iter().map(|&n| port(world, n)).collect();
        let options = MirrorOptions::new()
            .region_shift(Some(REGION_SHIFT))
            .find(move |n| Ok(found[n].clone()));
        let legs = Legs::new((0..legs.len()).map(leg).collect()).unwrap();
        let inner =
            MirrorState::open(legs, options, &self.idle).map_err(|error| error.to_string())?;
        let notice = self.idle.on_end(|| {});
        let mirror = Arc::new(Mirror { inner: Arc::clone(&inner), _notice: notice });
        world.lock().front = Some(Queue::builder(&self.machine, mirror).build_by_hand());
        Ok(Up { inner, world: Arc::clone(world) })
    }
}

impl Up {
    fn is_dead(&self) -> bool {
        self.world.lock().dead
    }

    /// Does the workers' work after an event.
    fn turn(&self) {
        let (inner, keeper) = (&self.inner, &self.inner.keeper);
        inner.keep(keeper);
        let mut steps = 0;
        while (keeper.regions.stale() != 0 || inner.legs.states.rebuilding() != 0) && steps < 100 {
            inner.resync_step(keeper);
            steps += 1;
            if keeper.regions.stale() == 0 {
                inner.resync_step(keeper);
                inner.keep(keeper);
            }
        }
        inner.keep(keeper);
    }

    fn write(&self, region: u64) {
        write(&self.world, region);
        self.turn();
    }

    fn take_back(&self) {
        let (inner, keeper) = (&self.inner, &self.inner.keeper);
        let out = inner.legs.out();
        if out != 0 {
            self.world.lock().ways.log.push(format!("{out:#b} are taken back"));
            let _ = inner.take_back(keeper, out);
            inner.search(keeper);
        }
        self.turn();
    }

    fn clean(&self) {
        self.inner.keeper.wish(wish::SETTLE);
        self.turn();
    }

    /// Checks that each leg that is called in sync has what was acknowledged.
    fn check_claims(&self) {
        let in_sync = self.inner.legs.states.in_sync();
        let world = self.world.lock();
        if world.dead {
            return;
        }
        assert!(in_sync != 0);
        for n in each(in_sync) {
            for (&sector, &(version, acknowledged)) in &world.promises {
                let found = world.platters[disk(&self.inner.legs, n)].version(sector);
                let good = found == version || (!acknowledged && found == 0);
                let log = world.ways.log.join(", ");
                assert!(good, "leg {n}, in sync, has {found} instead of {version}: {log}");
            }
        }
    }

    /// Ends a run: all legs come back, and are alike.
    fn end(&self) {
        for _ in 0..4 {
            self.take_back();
        }
        self.check_claims();
        let legs = &self.inner.legs;
        let world = self.world.lock();
        if world.dead {
            return;
        }
        let log = world.ways.log.join(", ");
        let why = each(legs.out()).map(|n| legs.why(n)).collect::<Vec<_>>().join(", ");
        assert_eq!(legs.out() | legs.states.rebuilding(), 0, "{why}: {log}");
        assert_eq!(self.inner.keeper.regions.stale(), 0, "{log}");
        let data = |n: usize| &world.platters[world.legs[n]].now[..USED];
        assert!((1..world.legs.len()).all(|n| data(n) == data(0)), "legs in sync differ: {log}");
    }

    /// Kills the process; a power failure may then take all that was not flushed.
    fn kill(self) {
        let mut world = self.world.lock();
        world.dead = true;
        let front = world.front.take();
        drop(world);
        drop(front);
        power(&self.world);
    }
}

/// Returns the disk of leg `n`.
fn disk(legs: &Legs, n: usize) -> usize {
    legs.name(n).trim_start_matches("leg").parse().unwrap()
}

fn power(world: &Shared) {
    let mut guard = world.lock();
    let World { platters, ways, .. } = &mut *guard;
    for (n, platter) in platters.iter_mut().enumerate() {
        if platter.unflushed.is_empty() {
            continue;
        }
        // All: the power stays.
        let left = [WriteRemains::All, WriteRemains::Nothing, WriteRemains::Torn][ways.pick(3)];
        if left != WriteRemains::All {
            ways.log.push(format!("power failure leaves {left:?} on leg {n}"));
            platter.power_failure(left);
        }
    }
}

/// Makes one run: a life in which a leg fails, and comes back; one that begins after that; one that
/// ends well.
fn run(rig: &Rig, made: &[Platter], ways: Choices) -> Choices {
    let world = Arc::new(Mutex::new(World::new(made.to_vec(), ways)));
    lives(rig, &world);
    let mut world = world.lock();
    std::mem::take(&mut world.ways)
}

fn lives(rig: &Rig, world: &Shared) {
    let legs = world.lock().platters.len();
    if let Ok(up) = rig.open(world) {
        // The leg that fails; the last way: none does, and all is well.
        let failing = world.lock().ways.pick(1 + legs);
        up.write(0);
        if failing < legs {
            world.lock().failing = Some(failing);
            up.write(0);
            up.take_back();
            up.write(0);
        } else {
            up.clean();
            up.write(1);
        }
        up.check_claims();
        up.kill();
    } else {
        power(world);
    }
    for life in 1.. {
        let (all_are_there, left) = {
            let mut world = world.lock();
            let away = if life == 1 { world.ways.pick(1 + legs) } else { 0 };
            world.away = away.checked_sub(1);
            world.dead = false;
            world.ways.log.push(format!("start without {:?}", away.checked_sub(1)));
            (away == 0, world.ways.plan.len())
        };
        match rig.open(world) {
            Ok(up) => {
                up.check_claims();
                up.write(2);
                up.check_claims();
                up.end();
                let was_killed = up.is_dead();
                up.kill();
                if !was_killed {
                    return;
                }
            }
            // A leg can't be written, or the process was killed: the mirror is started once more.
            Err(_) if world.lock().ways.plan.len() != left => power(world),
            Err(error) => {
                let log = world.lock().ways.log.join(", ");
                assert!(!all_are_there, "{error}: {log}");
                return;
            }
        }
    }
}

/// Starts the mirror over these disks, with all well at the end; else returns why it may not start.
fn next_life(rig: &Rig, world: &Shared, disks: Vec<usize>) -> Result<(), String> {
    loop {
        let left = {
            let mut guard = world.lock();
            guard.dead = false;
            guard.ways.log.push(format!("start with disks {disks:?}"));
            guard.legs.clone_from(&disks);
            guard.ways.plan.len()
        };
        match rig.open(world) {
            Ok(up) => {
                up.check_claims();
                up.write(2);
                up.end();
                let was_killed = up.is_dead();
                up.kill();
                if !was_killed {
                    return Ok(());
                }
            }
            Err(_) if world.lock().ways.plan.len() != left => power(world),
            Err(error) => return Err(error),
        }
    }
}

fn blank(can_fua: &[bool]) -> Vec<Platter> {
    can_fua.iter().map(|&can_fua| Platter::new(can_fua)).collect()
}

/// Makes a mirror of blank legs that was closed.
fn made(rig: &Rig, can_fua: &[bool]) -> Vec<Platter> {
    let world = Arc::new(Mutex::new(World::new(blank(can_fua), Choices::default())));
    let up = rig.open(&world).unwrap();
    up.turn();
    up.clean();
    up.end();
    up.kill();
    let world = world.lock();
    world.platters.clone()
}

/// Makes every run in which the planned incidents happen anywhere, or don't; all but the first
/// happen at one of the next `soon` requests.
fn all_runs(made: impl Fn(&Rig) -> Vec<Platter>, plan: &'static [Kind], soon: usize) {
    all_ways(made, plan, soon, run);
}

fn all_ways(
    made: impl Fn(&Rig) -> Vec<Platter>,
    plan: &'static [Kind],
    soon: usize,
    run: impl Fn(&Rig, &[Platter], Choices) -> Choices,
) {
    let rig = Rig::new();
    let made = made(&rig);
    let (mut taken, mut runs) = (Vec::new(), 0u64);
    loop {
        let mut ways = run(&rig, &made, Choices { taken, plan, soon, ..Choices::default() });
        runs += 1;
        if !ways.next() {
            break;
        }
        taken = ways.taken;
    }
    assert!(runs > 30, "{runs} runs");
}

fn long() -> bool {
    std::env::var_os("COREWISE_LONG").is_some()
}

#[test]
fn after_any_failure_and_a_kill_a_leg_in_sync_has_every_acknowledged_write() {
    all_runs(|rig| made(rig, &[true; 2]), &[Failed, Killed], 4);
    if long() {
        for can_fua in [true, false] {
            all_runs(|rig| made(rig, &[can_fua; 2]), &[Failed, Killed], usize::MAX);
            all_runs(|rig| made(rig, &[can_fua; 2]), &[Killed, Failed], usize::MAX);
            all_runs(|rig| made(rig, &[can_fua; 2]), &[Failed, Failed, Killed], 12);
            all_runs(|rig| made(rig, &[can_fua; 3]), &[Failed, Killed], 12);
        }
    }
}

#[test]
fn after_a_power_failure_a_leg_in_sync_has_every_flushed_write() {
    let soon = if long() { 2 } else { 0 };
    all_runs(|rig| made(rig, &[false; 2]), &[Failed, Killed], soon);
}

#[test]
fn with_two_of_three_legs_left_a_leg_in_sync_has_every_acknowledged_write() {
    all_runs(|rig| made(rig, &[true; 3]), &[Failed], 0);
}

#[test]
fn a_mirror_that_is_killed_as_it_is_made_and_loses_half_of_that_is_made_once_more() {
    all_runs(|_| blank(&[false; 2]), &[Killed], 0);
    all_runs(|_| blank(&[true; 2]), &[Failed], 0);
}

#[test]
fn data_read_from_a_cache_survives_a_second_kill_and_a_power_failure() {
    let soon = if long() { 8 } else { 3 };
    all_runs(|rig| made(rig, &[false; 2]), &[Killed, Killed], soon);
}
