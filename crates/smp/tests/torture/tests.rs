//! Tests of the torture: it finds nothing without a mistake, and finds each planted mistake.

use std::time::Duration;

use super::*;

/// Runs one short torture on the synthetic machine. A busy machine may not reach the mistake in
/// that time: `enough` checks this, and the torture runs again if need be.
fn tortured(mistake: Option<Mistake>, enough: impl Fn(&Phase) -> bool) -> Phase {
    let waiter_habit = Duration::from_secs(if mistake.is_some() { 1 } else { 60 });
    let plan = Plan { waiter_habit, mistake, ..Plan::new(Duration::from_millis(100)) };
    for seed in 1..50_u32 {
        // It runs longer each time: the machine may be as busy as before.
        let duration = plan.duration * seed;
        let plan = Plan { seed: seed.into(), ..plan.clone() };
        let phase = synthetic(&plan, duration).expect("a synthetic machine and some threads");
        assert!(mistake.is_some() || phase.failures.is_empty(), "{phase}");
        if enough(&phase) {
            return phase;
        }
    }
    panic!("{mistake:?}: not enough in one of fifty")
}

#[test]
fn without_a_mistake_all_checks_hold_for_every_kind() {
    let phase = tortured(None, |phase| {
        let plugged = phase.leaves > 0 && phase.follows > 0;
        plugged && phase.accepted > 0 && phase.kinds.iter().all(|(_, times)| *times > 0)
    });
    let all = format!("all {} checks held", Check::ALL.len());
    assert!(phase.to_string().contains(&all), "{phase}");
}

#[test]
fn each_mistake_is_found_by_its_check() {
    let mistakes = [
        (Mistake::WritesLate, Check::Entry),
        (Mistake::GoesOnEarly, Check::Exit),
        (Mistake::RunsTwice, Check::Once),
        (Mistake::SendsElsewhere, Check::Cpu),
        (Mistake::RunsHere, Check::Overlap),
        (Mistake::RunsHere, Check::Section),
        (Mistake::Overtakes, Check::Order),
        (Mistake::AnswersWrongly, Check::Value),
        (Mistake::LeavesOneOut, Check::Reach),
        (Mistake::RefusesWithoutCause, Check::Reach),
        (Mistake::DiesEarly, Check::Dead),
        (Mistake::DropsACall, Check::Lost),
        (Mistake::HangsInAHandler, Check::Lost),
        (Mistake::Leaks, Check::Leak),
        (Mistake::Uncounted, Check::Counts),
        (Mistake::StaysOut, Check::Plug),
    ];
    for (mistake, check) in mistakes {
        let found = |phase: &Phase| phase.failures.iter().any(|failure| failure.check == check);
        let phase = tortured(Some(mistake), found);
        let described = phase.failures.iter().all(|failure| !failure.first.is_empty());
        assert!(described && phase.to_string().contains("FAILED"), "{mistake:?}: {phase}");
    }
}
