//! The simulator's costs from a file that `corewise-bench machine` wrote.

use corewise_costs::{Costs as Measured, Distance, Figure, Target};
use corewise_sim::{AfterIdle, ByDistance, Costs};

/// Time of the instructions around an access. Fitted, not measured.
const AROUND: f64 = 0.4;
/// Time of an access to a line that is here. Fitted: most such accesses depend on nothing and
/// overlap with their neighbours.
const HIT: f64 = 0.3;
/// Extra time of a thread that wakes on a CPU which was idle for long. Fitted.
const COLD: f64 = 6_000.0;
/// Time of instructions that a core looks ahead. Fitted.
const WINDOW: f64 = 40.0;
/// Time of the first touch of a page, for a file without one. Fitted.
const FAULT: f64 = 700.0;
/// Share that each other busy CPU adds to the system's part of a switch. Fitted.
const CROWD: f64 = 0.05;

/// Reads the costs of a file.
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
    // Locked operations on independent lines: if a core overlaps them, each costs a fraction of a
    // miss.
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
    let small = measured.allocator.as_ref();
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
