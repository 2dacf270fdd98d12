//! The simulator's costs from a file that `corewise-bench machine` wrote.

use corewise_costs::{Costs as Measured, Distance, Figure, Target};
use corewise_sim::{AfterIdle, ByDistance, Costs};

/// Fitted, not measured: the instructions around an access, and an access to a line that is here.
/// Most such accesses depend on nothing, and overlap with what is around them.
const AROUND: f64 = 0.4;
/// See above.
const HIT: f64 = 0.3;
/// Fitted: how much longer a thread runs on a CPU that was idle for long.
const COLD: f64 = 6_000.0;
/// Fitted: how far ahead a core looks.
const WINDOW: f64 = 40.0;
/// Fitted where a file doesn't have it: the first touch of a page.
const FAULT: f64 = 700.0;
/// Fitted: what each other busy CPU adds to the system's part of a switch.
const CROWD: f64 = 0.05;

/// The costs of a file.
pub(crate) fn read(file: &str) -> Result<Costs, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let measured = Measured::read(&text).map_err(|error| format!("{file}: {error}"))?;
    if measured.scheduler.slice_ns.p50 < 1000.0 {
        return Err(format!("{file}: scheduler.slice_ns: a slice lasts a microsecond at least"));
    }
    Ok(of(&measured))
}

fn of(measured: &Measured) -> Costs {
    let transfer = |distance, figure: fn(&corewise_costs::Transfer) -> &Figure| {
        measured.transfer(distance).map_or(90.0, |transfer| figure(transfer).p50)
    };
    let by = |figure: fn(&corewise_costs::Transfer) -> &Figure| ByDistance {
        core: transfer(Distance::Smt, figure),
        cache: transfer(Distance::Cache, figure),
        node: transfer(Distance::Numa, figure),
        far: transfer(Distance::System, figure),
    };
    let line = &measured.line;
    // Locked operations on lines of which none waits for another one: where they overlap, they cost
    // a fraction of a miss.
    let overlaps = measured.transfer(Distance::Cache).is_some_and(|transfer| {
        let together = transfer.array_locked_ns;
        together.is_some_and(|together| together.p50 < transfer.list_ns.p50 / 2.0)
    });
    let idle = |slept: f64| {
        let wake = measured.wake(Distance::Cache, Target::Idle, slept)?;
        let p99 = wake.latency_ns.p99.unwrap_or(wake.latency_ns.p90);
        Some(AfterIdle {
            idle: wake.slept_us * 1000.0,
            p50: wake.latency_ns.p50,
            p99,
            call: wake.call_ns.p50,
        })
    };
    let mut wake: Vec<AfterIdle> =
        [1.0, 5.0, 20.0, 50.0, 200.0, 1000.0, 5000.0].into_iter().filter_map(idle).collect();
    wake.dedup_by(|later, earlier| later.idle <= earlier.idle);
    let call = |distance| measured.wake(distance, Target::Idle, 20.0).map(|wake| wake.call_ns.p50);
    let small = measured.allocator(64);
    let malloc = small.map_or(20.0, |small| small.malloc_ns.p50);
    let alone = measured.call.membarrier_alone_ns.map_or(200.0, |figure| figure.p50);
    let one = measured.call.membarrier_one_ns.map_or(2000.0, |figure| figure.p50);
    let all = measured.call.membarrier_all_ns.map_or(one, |figure| figure.p50);
    let most = measured.contended.iter().max_by_key(|contended| contended.cpus);
    let cpus = measured.machine.as_ref().map_or(2, |machine| machine.cpu_count).max(2);
    Costs {
        around: AROUND,
        hit: HIT,
        window: WINDOW,
        beyond_locked: overlaps,
        crowd: CROWD,
        locked: line.locked_ns.p50,
        fence: line.fence_ns.p50,
        modified: by(|transfer| &transfer.list_ns),
        shared: by(|transfer| transfer.list_read_ns.as_ref().unwrap_or(&transfer.list_ns)),
        prefetched: transfer(Distance::Cache, |transfer| &transfer.array_ns),
        prefetched_locked: transfer(Distance::Cache, |transfer| {
            transfer.array_locked_ns.as_ref().unwrap_or(&transfer.list_ns)
        }),
        service: most.map_or(25.0, |most| most.each_ns.p50 / f64::from(most.cpus)),
        spin_hint: measured.thread.spin_hint_ns.p50,
        clock: measured.call.clock_ns.p50,
        syscall: measured.call.bare_ns.p50,
        yields: measured.call.yield_ns.p50,
        switch: measured.switch.yield_ns.p50,
        cold: COLD,
        wake_call_here: call(Distance::Same).unwrap_or(700.0),
        wake,
        interrupt: measured
            .wake(Distance::Cache, Target::Busy, 20.0)
            .map_or(2000.0, |wake| wake.latency_ns.p50),
        slice: measured.scheduler.slice_ns.p50,
        wake_preemption: 0.0,
        migration: 500_000.0,
        balance: 4_000_000.0,
        timer_slack: 50_000.0,
        spawn: measured.thread.spawn_join_ns.p50 / 2.0,
        fault: measured.call.fault_ns.map_or(FAULT, |figure| figure.p50),
        malloc,
        free: small.map_or(malloc, |small| small.free_ns.p50),
        free_elsewhere: small
            .and_then(|small| Some(small.free_elsewhere_ns.as_ref()?.p50))
            .unwrap_or(malloc),
        membarrier: alone,
        membarrier_one: one,
        // The file's `all` is beside all CPUs but the caller's.
        membarrier_each: (all - one).max(0.0) / f64::from(cpus.max(3) - 2),
    }
}

/// The largest cost: a second.
const MOST: f64 = 1e9;

/// Changes costs, each change `NAME=NANOSECONDS`.
pub(crate) fn change(costs: &mut Costs, changes: &[String]) -> Result<(), String> {
    for change in changes {
        let wrong = || format!("'{change}' is no cost: say NAME=NANOSECONDS");
        let (name, value) = change.split_once('=').ok_or_else(wrong)?;
        let value: f64 = value.parse().map_err(|_| wrong())?;
        let least = if name == "slice" { 1000.0 } else { 0.0 };
        if !(least..=MOST).contains(&value) {
            return Err(format!("'{change}': say a number from {least} to {MOST}"));
        }
        if name == "beyond_locked" {
            costs.beyond_locked = value != 0.0;
            continue;
        }
        let place = PLACES.iter().find(|(known, _)| *known == name).ok_or_else(|| {
            let known: Vec<&str> = PLACES.iter().map(|(known, _)| *known).collect();
            format!("there is no cost '{name}': those are beyond_locked {}", known.join(" "))
        })?;
        *place.1(costs) = value;
    }
    Ok(())
}

/// Where a cost stands.
type Place = fn(&mut Costs) -> &mut f64;

/// The costs that can be changed, by name.
const PLACES: &[(&str, Place)] = &[
    ("around", |costs| &mut costs.around),
    ("hit", |costs| &mut costs.hit),
    ("window", |costs| &mut costs.window),
    ("fault", |costs| &mut costs.fault),
    ("crowd", |costs| &mut costs.crowd),
    ("locked", |costs| &mut costs.locked),
    ("modified", |costs| &mut costs.modified.cache),
    ("shared", |costs| &mut costs.shared.cache),
    ("prefetched", |costs| &mut costs.prefetched),
    ("prefetched_locked", |costs| &mut costs.prefetched_locked),
    ("service", |costs| &mut costs.service),
    ("spin_hint", |costs| &mut costs.spin_hint),
    ("clock", |costs| &mut costs.clock),
    ("syscall", |costs| &mut costs.syscall),
    ("switch", |costs| &mut costs.switch),
    ("interrupt", |costs| &mut costs.interrupt),
    ("cold", |costs| &mut costs.cold),
    ("wake_preemption", |costs| &mut costs.wake_preemption),
    ("slice", |costs| &mut costs.slice),
    ("migration", |costs| &mut costs.migration),
    ("malloc", |costs| &mut costs.malloc),
    ("free", |costs| &mut costs.free),
    ("free_elsewhere", |costs| &mut costs.free_elsewhere),
];
