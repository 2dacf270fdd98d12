//! A `tracing` subscriber is the user's code: its panics end no target, and nothing of a call is
//! lost by them.
#![cfg(not(loom))]

use std::sync::Arc;

use corewise_smp::Smp;
use corewise_smp::model::{self, Step};
use corewise_topology::{CpuId, CpuSet, Machine};
use tracing::{Event, Metadata, Subscriber, span};

/// A subscriber that panics in each event.
struct PanickingSubscriber;

impl Subscriber for PanickingSubscriber {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, _: &Event<'_>) {
        panic!("on purpose, in a subscriber");
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

#[test]
fn a_subscriber_that_panics_does_not_kill_the_target_whose_function_panicked() {
    let machine = Machine::synthetic("core:2 pu:1").expect("a valid description");
    let (smp, mut cpus) = model::stepped(Smp::builder(&machine));
    tracing::subscriber::with_default(PanickingSubscriber, || {
        smp.detached().call(CpuId::new(0), || panic!("on purpose, in a function")).expect("online");
        assert_eq!(cpus[0].step(), Step::Ran(1));
        let kept = Arc::new(());
        let its = Arc::clone(&kept);
        let reach =
            smp.detached().call_each(&CpuSet::full(2), move |_| panic!("on purpose, with {its:?}"));
        assert_eq!(reach.reached.len(), 2);
        cpus.iter_mut().for_each(|cpu| assert_eq!(cpu.step(), Step::Ran(1)));
        assert_eq!(Arc::strong_count(&kept), 1, "the function was dropped after the last run");
    });
    assert_eq!(smp.cpu_stats(CpuId::new(0)).expect("a CPU").panics, 2);
}

#[test]
fn a_subscriber_that_panics_keeps_no_call_of_an_abandoned_target_from_being_dropped() {
    let machine = Machine::synthetic("core:2 pu:1").expect("a valid description");
    let (smp, cpus) = model::stepped(Smp::builder(&machine));
    let kept = Arc::new(());
    let (its, another) = (Arc::clone(&kept), Arc::clone(&kept));
    let _ = smp.detached().call_each(&CpuSet::full(2), move |_| assert_eq!(*its, ()));
    smp.detached().call(CpuId::new(1), move || assert_eq!(*another, ())).expect("online");
    let call = smp.call(CpuId::new(1), || ()).expect("online");
    tracing::subscriber::with_default(PanickingSubscriber, || drop(cpus));
    assert!(call.wait().is_err());
    assert_eq!(Arc::strong_count(&kept), 1);
}
