//! That the torture finds nothing where there is nothing, and each mistake where it is made.

use std::time::Duration;

use super::*;

fn tortured(mistake: Option<Mistake>) -> Phase {
    let patience = Duration::from_secs(if mistake.is_some() { 1 } else { 60 });
    let plan = Plan { patience, mistake, ..Plan::new(Duration::from_millis(300)) };
    synthetic(&plan, plan.duration).expect("a synthetic machine and some threads")
}

fn failed(phase: &Phase) -> Vec<Check> {
    phase.failures.iter().map(|failure| failure.check).collect()
}

#[test]
fn without_a_mistake_all_checks_hold_and_every_kind_was_tried() {
    let phase = tortured(None);
    assert_eq!(failed(&phase), [], "{phase}");
    assert!(phase.kinds.iter().all(|(_, times)| *times > 0), "{phase}");
    assert!(phase.leaves > 0 && phase.follows > 0 && phase.accepted > 0, "{phase}");
    assert!(phase.to_string().contains("all 14 checks held"), "{phase}");
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
    ];
    for (mistake, check) in mistakes {
        let phase = tortured(Some(mistake));
        assert!(failed(&phase).contains(&check), "{mistake:?} is found by {check:?}: {phase}");
    }
}
