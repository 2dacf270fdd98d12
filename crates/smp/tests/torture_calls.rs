//! Every kind of cross-CPU call at once, while CPUs leave and join: for five seconds, or a minute
//! with `COREWISE_LONG`. Half of the time is spent on the live machine. The system takes that
//! machine's last CPU offline repeatedly, if the process may do that. The test has a binary of its
//! own, for it takes a CPU away from everything that runs beside it. A seed decides the acts of
//! each thread, though not their times. The test prints a seed that failed, and
//! `COREWISE_TORTURE_SEED` sets it.
#![cfg(not(loom))]

mod torture;

use std::collections::BTreeMap;
use std::time::Duration;

use torture::Plan;

#[test]
fn torture_every_rule_of_calls_holds_while_cpus_leave_and_join() {
    let long = std::env::var_os("COREWISE_LONG").is_some();
    let mut plan = Plan::new(Duration::from_secs(if long { 60 } else { 5 }));
    plan.plug = true;
    plan.seed = match std::env::var("COREWISE_TORTURE_SEED") {
        Ok(seed) => seed.parse().expect("COREWISE_TORTURE_SEED is a number"),
        Err(_) => {
            let since = std::time::SystemTime::UNIX_EPOCH.elapsed();
            since.expect("after 1970").as_nanos() as u64 & 0xffff_ffff
        }
    };
    let report = torture::run(&plan).expect("machines and threads can be had");
    assert!(!report.failed(), "{report}");
    // On a machine with other load, a phase may lack some kinds.
    let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
    for (kind, times) in report.phases.iter().flat_map(|phase| &phase.kinds) {
        *kinds.entry(kind).or_insert(0) += *times;
    }
    assert!(kinds.values().all(|times| *times > 0), "nothing of some kind: {report}");
    for phase in &report.phases {
        // With one CPU only there is none that could leave.
        assert!(phase.callers == 1 || phase.leaves > 0, "no CPU left: {report}");
    }
    // As another user, or in a container, the system takes none: the report says so.
    if let Some(live) = report.phases.last() {
        if live.not_plugged.is_none() {
            assert!(live.plugs > 0, "the system took no CPU: {report}");
        }
    }
}
