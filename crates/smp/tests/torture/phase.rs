//! The torture of one machine: starts the threads, watches them, and sums up.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use corewise_smp::{CallError, Priority, Smp};
use corewise_sync::atomic::Ordering;
use corewise_sync::thread::{Builder, JoinHandle};
use corewise_sync::time;
use corewise_topology::{CpuId, CpuSet, Machine};
use fastrand::Rng;

use super::caller::Caller;
use super::check::Check;
use super::kind::KINDS;
use super::plug::{self, Switch};
use super::report::Phase;
use super::world::{World, read};
use super::{Failed, Plan};

/// The machine and CPUs of a phase.
pub(super) struct Setting<'a> {
    pub(super) machine: &'a Machine,
    /// CPUs that leave and join.
    pub(super) leaves: CpuSet,
    /// Switch by which the system takes one of them.
    pub(super) switch: Option<Arc<Switch>>,
}

/// Time between two checks of the callers.
const LOOK: Duration = Duration::from_millis(20);

/// Runs the torture of one machine.
pub(super) fn run(plan: &Plan, duration: Duration, setting: Setting<'_>) -> Result<Phase, Failed> {
    let Setting { machine, leaves, switch } = setting;
    let homes: Vec<CpuId> = machine.online().iter().collect();
    // The threads of a synthetic machine share the real CPUs.
    let priority =
        if machine.is_synthetic() { Priority::Plain } else { Priority::OF_INTERRUPT_THREADS };
    let smp = Smp::builder(machine).priority(priority).build()?;
    let world = Arc::new(World::new(smp, machine, leaves, homes.len(), plan.mistake));

    // Each thread sends as it ends, also if it panics: it drops its sender then.
    let (ended, ends) = mpsc::channel::<()>();
    let mut callers = Vec::new();
    for (me, home) in homes.iter().enumerate() {
        let caller = Caller::new(&world, me, plan.seed.wrapping_add(me as u64));
        let (home, ended) = (CpuSet::from_iter([*home]), ended.clone());
        let builder = Builder::new().name(format!("torture/{me}"));
        let thread = builder.spawn(move || {
            let _ended = ended;
            caller.run(&home)
        });
        callers.push(thread.map_err(|error| no_thread(&world, error))?);
    }
    let plugger = {
        let (world, rng) = (Arc::clone(&world), Rng::with_seed(!plan.seed));
        Builder::new().name("torture/plug".into()).spawn(move || {
            let _ended = ended;
            plug::plug(&world, rng, switch.as_deref());
        })
    };
    let plugger = plugger.map_err(|error| no_thread(&world, error))?;

    let over = watch(&world, duration, plan.waiter_habit, &ends);
    let kinds = if over { join(&world, callers, plugger) } else { [0; KINDS.len()] };
    if over {
        sum_up(&world);
    }
    Ok(phase(&world, homes.len(), kinds))
}

fn no_thread(world: &World, error: std::io::Error) -> Failed {
    world.stop.store(true, Ordering::Relaxed);
    error.into()
}

/// Watches until all threads have ended. Returns false if they never will.
fn watch(world: &World, duration: Duration, waiter_habit: Duration, ends: &Receiver<()>) -> bool {
    let end = world.began + duration;
    let mut given_up = None;
    loop {
        match ends.recv_timeout(LOOK) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return true,
        }
        let now = time::now();
        if now >= end {
            world.stop.store(true, Ordering::Relaxed);
        }
        let late = world.longest_wait().filter(|(for_how_long, ..)| *for_how_long > waiter_habit);
        // The plugger has no entry: it waits for leaves, and the leaves wait for calls.
        let stuck = given_up.is_none() && (late.is_some() || now >= end + waiter_habit);
        if stuck {
            world.findings.fail(Check::Lost, || match late {
                Some((wait, caller, what)) => {
                    format!("caller {caller} has waited for {} ms: {what}", wait.as_millis())
                }
                None => "threads didn't end".to_owned(),
            });
            world.stop.store(true, Ordering::Relaxed);
            world.give_up.store(true, Ordering::Relaxed);
            given_up = Some(now);
        }
        if given_up.is_some_and(|since| now >= since + waiter_habit) {
            return false;
        }
    }
}

fn join(
    world: &World,
    callers: Vec<JoinHandle<[u64; KINDS.len()]>>,
    plugger: JoinHandle<()>,
) -> [u64; KINDS.len()] {
    let mut kinds = [0; KINDS.len()];
    for caller in callers {
        match caller.join() {
            Ok(of_one) => kinds.iter_mut().zip(of_one).for_each(|(all, one)| *all += one),
            Err(_) => world.findings.fail(Check::Lost, || "a caller panicked".to_owned()),
        }
    }
    if plugger.join().is_err() {
        world.findings.fail(Check::Plug, || "the thread that plugs CPUs panicked".to_owned());
    }
    kinds
}

/// Checks the conditions at the end, when all threads have ended.
fn sum_up(world: &World) {
    let (smp, counts, findings) = (&world.smp, &world.counts, &world.findings);
    let online = smp.online();
    findings.expect(Check::Plug, online == world.all, || format!("{online} are online at the end"));
    smp.shutdown().wait();
    let refused = smp.call(world.all.first().unwrap_or(CpuId::new(0)), || ());
    let shut = matches!(refused, Err(CallError::ShuttingDown { .. }));
    findings.expect(Check::Reach, shut, || "a call after the shutdown was accepted".to_owned());
    let (sent, ran) = (read(&counts.nested), read(&counts.nested_ran));
    findings.expect(Check::Once, sent == ran, || format!("{sent} nested calls, {ran} ran"));
    let stats = smp.stats();
    let (calls, ran) = (stats.iter().map(|of| of.calls).sum::<u64>(), read(&counts.ran));
    findings.expect(Check::Counts, calls == ran, || format!("{calls} counted, {ran} ran"));
    let (told, made) = (stats.iter().map(|of| of.panics).sum::<u64>(), read(&counts.panics));
    findings.expect(Check::Counts, told == made, || format!("{told} panics counted, {made} made"));
    let tokens = world.tokens();
    findings.expect(Check::Leak, tokens == 0, || format!("{tokens} too few were dropped"));
}

fn phase(world: &World, callers: usize, kinds: [u64; KINDS.len()]) -> Phase {
    let counts = &world.counts;
    Phase {
        machine: world.smp.machine().topology().source().to_string(),
        seconds: time::now().saturating_duration_since(world.began).as_secs_f64(),
        callers,
        kinds: KINDS.iter().zip(kinds).map(|((_, name, _), times)| (*name, times)).collect(),
        accepted: read(&counts.accepted),
        ran: read(&counts.ran),
        refused: read(&counts.refused),
        panics: read(&counts.panics),
        leaves: read(&counts.leaves),
        follows: read(&counts.follows),
        plugs: read(&counts.plugs),
        not_plugged: None,
        failures: world.findings.failures(),
    }
}
