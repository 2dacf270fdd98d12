//! Calls, with the targets stepped by hand on one thread in a chosen order. Tests that prove a
//! rule of `RULES.md` bear its number; `src/README.md` lists them.
#![cfg(not(loom))]

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use crate::support::{four_cpus, machine, set};
use corewise_smp::model::{self, CallTarget, Step};
use corewise_smp::{AllCpus, CallError, CallFailed, SkipReason, Skipped, Smp};
use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::{context, panics};
use corewise_topology::{CpuId, CpuSet};

/// A log that handlers write to.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn add(&self, line: impl Into<String>) {
        self.0.lock().expect("no handler panics with it").push(line.into());
    }
    fn lines(&self) -> Vec<String> {
        self.0.lock().expect("no handler panics with it").clone()
    }
}

#[test]
fn a_call_runs_on_the_cpu_that_was_asked_for_when_that_cpu_steps() {
    let (smp, mut cpus) = four_cpus();
    let call = smp.call(CpuId::new(2), || 42).unwrap();
    assert_eq!(call.cpu(), CpuId::new(2));
    for other in [0, 1, 3] {
        assert_eq!(cpus[other].step(), Step::Idle);
    }
    assert!(!call.is_complete());
    assert_eq!(cpus[2].step(), Step::Ran(1));
    assert_eq!(call.wait().unwrap(), 42);
}

#[test]
fn rule_4_a_cpu_that_is_unknown_or_not_online_refuses_at_once_and_gives_the_function_back() {
    let machine = machine(4);
    machine.set_online(CpuId::new(3), false).unwrap();
    let (smp, mut cpus) = model::stepped(Smp::builder(&machine));
    for cpu in [3, 4, u32::MAX] {
        let error = smp.call(CpuId::new(cpu), || "still mine").unwrap_err();
        assert!(
            matches!(error, CallError::NotOnline { cpu: found, .. } if found == CpuId::new(cpu))
        );
        assert!(error.to_string().contains(&format!("CPU {cpu} ")));
        assert_eq!(error.into_inner()(), "still mine");
        assert!(matches!(
            smp.detached().call(CpuId::new(cpu), || ()),
            Err(CallError::NotOnline { .. })
        ));
    }
    assert_eq!(cpus[3].step(), Step::Offline);
    assert_eq!(smp.online(), set("0-2"));
}

#[test]
fn rule_3_calls_that_somebody_waits_for_run_before_those_that_nobody_does() {
    let (smp, mut cpus) = four_cpus();
    let log = Log::default();
    for name in ["plain 1", "plain 2"] {
        let log = log.clone();
        smp.detached().call(CpuId::new(0), move || log.add(name)).unwrap();
    }
    let waited = ["urgent 1", "urgent 2"].map(|name| {
        let log = log.clone();
        smp.call(CpuId::new(0), move || log.add(name)).unwrap()
    });
    while cpus[0].step() != Step::Idle {}
    assert_eq!(log.lines(), ["urgent 1", "urgent 2", "plain 1", "plain 2"]);
    assert!(waited.iter().all(|call| call.is_complete()));
}

#[test]
fn an_urgent_call_is_behind_one_plain_call_at_most_and_plain_ones_still_progress() {
    let (smp, mut cpus) = four_cpus();
    let log = Log::default();
    for n in 0..3 {
        let log = log.clone();
        smp.detached().call(CpuId::new(0), move || log.add(format!("plain {n}"))).unwrap();
    }
    for n in 0..3 {
        let line = log.clone();
        let call = smp.call(CpuId::new(0), move || line.add(format!("urgent {n}"))).unwrap();
        // Each step serves the urgent call, and moves one plain call along.
        assert_eq!(cpus[0].step(), Step::Ran(2));
        assert!(call.is_complete());
    }
    let expected = ["urgent 0", "plain 0", "urgent 1", "plain 1", "urgent 2", "plain 2"];
    assert_eq!(log.lines(), expected);
    assert_eq!(cpus[0].step(), Step::Idle);
}

#[test]
fn rule_3_a_burst_on_a_target_that_does_not_sleep_is_one_batch_and_wakes_nobody() {
    let (smp, mut cpus) = four_cpus();
    for _ in 0..1000 {
        smp.detached().call(CpuId::new(1), || ()).unwrap();
    }
    while cpus[1].step() != Step::Idle {}
    let stats = smp.cpu_stats(CpuId::new(1)).unwrap();
    assert_eq!((stats.calls, stats.batches, stats.wakeups, stats.panics), (1000, 1, 0, 0));
    assert!(smp.cpu_stats(CpuId::new(9)).is_none());
}

#[test]
fn rule_12_a_handler_runs_in_an_atomic_section_and_one_that_waits_is_reported_with_both_sites() {
    let (smp, mut cpus) = four_cpus();
    let inner = smp.clone();
    let call = smp.call(CpuId::new(0), move || {
        assert!(context::in_atomic_section());
        // CPU 1 has run this call by the time it is waited for, so the test itself can't hang.
        let other = inner.call(CpuId::new(1), || 7).unwrap();
        (other, context::violations())
    });
    assert_eq!(cpus[0].step(), Step::Ran(1));
    let (other, before) = call.unwrap().wait().unwrap();
    assert_eq!(cpus[1].step(), Step::Ran(1));
    assert!(!context::in_atomic_section());

    let call = smp.call(CpuId::new(0), move || other.wait().unwrap()).unwrap();
    assert_eq!(cpus[0].step(), Step::Ran(1));
    assert_eq!(call.wait().unwrap(), 7);
    assert_eq!(context::violations(), before + 1);
    if cfg!(debug_assertions) {
        let violation = context::take_violation().unwrap();
        assert!(violation.blocked.what.contains("wait"), "{violation}");
        assert!(violation.blocked.location.file().contains("stepped_calls"), "{violation}");
        let function = "rule_12_a_handler_runs_in_an_atomic_section";
        assert!(violation.section.what.contains(function), "the section names it: {violation}");
    }
}

#[test]
fn a_panic_in_a_handler_is_told_to_the_waiter_and_the_target_goes_on() {
    let (smp, mut cpus) = four_cpus();
    let bad = smp
        .call(CpuId::new(0), || -> u32 { std::panic::panic_any(String::from("on purpose 7")) })
        .unwrap();
    let good = smp.call(CpuId::new(0), || 1).unwrap();
    smp.detached().call(CpuId::new(0), || panic!("nobody waits")).unwrap();
    assert_eq!(cpus[0].step(), Step::Ran(3));
    let failed = bad.wait().unwrap_err();
    assert_eq!(failed.cpu(), CpuId::new(0));
    assert!(failed.to_string().contains("on purpose 7"), "{failed}");
    let CallFailed::Panicked { panic, .. } = failed else { panic!("it did panic") };
    assert_eq!(panic.message(), "on purpose 7");
    assert_eq!(*panic.into_inner().downcast::<String>().unwrap(), "on purpose 7");
    assert_eq!(good.wait().unwrap(), 1);
    let cpu = smp.dump().cpus.swap_remove(0);
    assert_eq!((cpu.stats.panics, cpu.running), (2, None), "neither runs any more");
    assert!(!context::in_atomic_section(), "the panic didn't leave the section open");
}

#[test]
fn what_the_destructor_of_an_untaken_answer_panics_with_is_dropped() {
    /// A value that panics with `payload`, whose own destructor may panic as well.
    struct Bomb(Option<Payload>);
    struct Payload {
        _kept: Arc<()>,
        next: Option<Arc<()>>,
    }
    impl Drop for Bomb {
        fn drop(&mut self) {
            if let Some(payload) = self.0.take() {
                std::panic::panic_any(payload);
            }
        }
    }
    impl Drop for Payload {
        fn drop(&mut self) {
            if let Some(next) = self.next.take() {
                std::panic::panic_any(Payload { _kept: next, next: None });
            }
        }
    }
    let kept = Arc::new(());
    let bomb = |twice: bool| {
        let next = twice.then(|| Arc::clone(&kept));
        Bomb(Some(Payload { _kept: Arc::clone(&kept), next }))
    };
    let (smp, mut cpus) = four_cpus();
    for twice in [false, true] {
        let (answer, capture, cast) = (bomb(twice), bomb(twice), bomb(twice));
        drop(smp.call(CpuId::new(0), move || answer).unwrap());
        smp.detached().call(CpuId::new(0), move || drop(capture)).unwrap();
        let _ = smp.detached().call_each(&set("0-3"), move |_| assert!(cast.0.is_some()));
        let all =
            [bomb(twice), bomb(twice), bomb(twice), bomb(twice)].map(|bomb| Mutex::new(Some(bomb)));
        let many =
            smp.call_each(AllCpus, move |cpu| all[cpu.number() as usize].lock().unwrap().take());
        while cpus.iter_mut().any(|cpu| matches!(cpu.step(), Step::Ran(_))) {}
        let first = catch_unwind(AssertUnwindSafe(|| drop(many)));
        panics::discard(first.expect_err("the first of them goes on"));
        assert_eq!(Arc::strong_count(&kept), 1, "twice: {twice}");
    }
    // The caller drops each function that a target abandons.
    let (answer, capture) = (bomb(true), bomb(true));
    let call = smp.call(CpuId::new(0), move || assert!(answer.0.is_some())).unwrap();
    smp.detached().call(CpuId::new(0), move || assert!(capture.0.is_some())).unwrap();
    drop(cpus);
    assert!(call.wait().is_err());
    assert_eq!(Arc::strong_count(&kept), 1);
}

#[test]
fn rule_4_a_handler_that_calls_its_own_cpu_and_waits_runs_it_in_place() {
    let (smp, mut cpus) = four_cpus();
    let inner = smp.clone();
    let call = smp
        .call(CpuId::new(0), move || {
            let own = inner.call(CpuId::new(0), || 5).unwrap();
            assert!(own.is_complete(), "through the queue it would wait for itself");
            own.wait().unwrap()
        })
        .unwrap();
    assert_eq!(cpus[0].step(), Step::Ran(1));
    assert_eq!(call.wait().unwrap(), 5);
    let stats = smp.cpu_stats(CpuId::new(0)).unwrap();
    assert_eq!((stats.calls, stats.inline), (2, 1));
    assert_eq!(context::violations(), 0, "that wait can't block, so it isn't reported");
}

#[test]
fn rule_2_a_handler_that_calls_its_own_cpu_without_waiting_returns_first() {
    let (smp, mut cpus) = four_cpus();
    let log = Log::default();
    let (inner, outer_log) = (smp.clone(), log.clone());
    smp.detached()
        .call(CpuId::new(0), move || {
            let inner_log = outer_log.clone();
            inner.detached().call(CpuId::new(0), move || inner_log.add("second")).unwrap();
            outer_log.add("first returns");
        })
        .unwrap();
    while cpus[0].step() != Step::Idle {}
    assert_eq!(log.lines(), ["first returns", "second"]);
}

#[test]
fn a_thread_that_only_stepped_a_target_before_is_not_that_target() {
    let (smp, mut cpus) = four_cpus();
    cpus[0].step();
    let call = smp.call(CpuId::new(0), || ()).unwrap();
    assert!(!call.is_complete(), "not in a handler of CPU 0: through the queue");
    // A handler of another CPU that the same thread steps isn't one either.
    let inner = smp.clone();
    let nested =
        smp.call(CpuId::new(1), move || inner.call(CpuId::new(0), || ()).unwrap()).unwrap();
    cpus[1].step();
    let nested = nested.wait().unwrap();
    assert!(!nested.is_complete());
    assert_eq!(cpus[0].step(), Step::Ran(2));
    assert!(call.is_complete() && nested.is_complete());
}

#[test]
fn rule_7_many_runs_on_each_online_cpu_of_the_set_and_says_which_it_skipped() {
    let machine = machine(4);
    machine.set_online(CpuId::new(2), false).unwrap();
    let (smp, mut cpus) = model::stepped(Smp::builder(&machine));
    let call = smp.call_each(&set("1-2,3,9"), |cpu| cpu.number() * 10);
    assert_eq!(call.reach().reached, set("1,3"));
    let skipped = [2, 9].map(|cpu| Skipped { cpu: CpuId::new(cpu), reason: SkipReason::NotOnline });
    assert_eq!(call.reach().skipped, skipped);
    assert_eq!(cpus[0].step(), Step::Idle);
    assert_eq!(cpus[1].step(), Step::Ran(1));
    assert!(!call.is_complete(), "CPU 3 is still to come");
    assert_eq!(cpus[3].step(), Step::Ran(1));
    let answers = call.wait();
    assert_eq!(answers.skipped, skipped);
    assert_eq!(answers.into_values().unwrap(), [1, 3].map(|cpu| (CpuId::new(cpu), cpu * 10)));
}

#[test]
fn many_on_no_cpu_is_complete_at_once() {
    let (smp, _cpus) = four_cpus();
    assert!(smp.call_each(&CpuSet::new(), |cpu| cpu).wait().values.is_empty());
    let none = smp.call_each(&set("7"), |cpu| cpu);
    assert!(none.is_complete());
    assert_eq!(none.wait().skipped.len(), 1);
}

#[test]
fn rule_7_all_called_by_a_handler_runs_in_place_there_and_tells_the_others_first() {
    let (smp, mut cpus) = four_cpus();
    let log = Log::default();
    let (inner, lines) = (smp.clone(), log.clone());
    let call = smp
        .call(CpuId::new(1), move || {
            let all = inner.call_each(AllCpus, move |cpu| lines.add(format!("on {cpu}")));
            let told = format!("{inner:?}").matches("online calls").count();
            (all, told)
        })
        .unwrap();
    assert_eq!(cpus[1].step(), Step::Ran(1));
    assert_eq!(log.lines(), ["on 1"], "in place");
    let (all, told) = call.wait().unwrap();
    assert_eq!(told, 3, "the others have it in their queues");
    assert!(!all.is_complete());
    for cpu in [0, 2, 3] {
        assert_eq!(cpus[cpu].step(), Step::Ran(1));
    }
    assert_eq!(all.wait().values.len(), 4);
}

#[test]
fn one_panic_among_many_is_that_cpus_answer_alone() {
    let (smp, mut cpus) = four_cpus();
    let call = smp.call_each(AllCpus, |cpu| assert!(cpu != CpuId::new(2), "not on 2"));
    for cpu in &mut cpus {
        cpu.step();
    }
    let answers = call.wait();
    let failed: Vec<CpuId> =
        answers.values.iter().filter(|(_, answer)| answer.is_err()).map(|(cpu, _)| *cpu).collect();
    assert_eq!(failed, [CpuId::new(2)]);
    assert_eq!(answers.into_values().unwrap_err().cpu(), CpuId::new(2));
}

#[test]
fn a_call_to_many_that_nobody_waits_for_runs_everywhere_it_reached() {
    let machine = machine(4);
    machine.set_online(CpuId::new(0), false).unwrap();
    let (smp, mut cpus) = model::stepped(Smp::builder(&machine));
    let ran = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ran);
    let reach = smp.detached().call_each(&set("0-3"), move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(reach.reached, set("1-3"));
    assert_eq!(reach.skipped, [Skipped { cpu: CpuId::new(0), reason: SkipReason::NotOnline }]);
    assert_eq!(smp.detached().call_each(&set("0"), |_| ()).reached, CpuSet::new());
    for cpu in &mut cpus {
        cpu.step();
    }
    assert_eq!(ran.load(Ordering::Relaxed), 3);
    assert_eq!(Arc::strong_count(&ran), 1, "the function is dropped with its last share");
}

#[test]
fn rule_9_a_waiter_never_waits_for_somebody_elses_call() {
    let (smp, mut cpus) = four_cpus();
    let first = smp.call_each(&set("0-1"), |cpu| cpu);
    let second = smp.call_each(&set("1-2"), |cpu| cpu);
    cpus[0].step();
    // CPU 1 runs both. The first call is complete although the second, made later by the same
    // caller, still misses CPU 2.
    cpus[1].step();
    assert!(first.is_complete());
    assert!(!second.is_complete());
    assert_eq!(first.wait().values.len(), 2);
    cpus[2].step();
    assert_eq!(second.wait().values.len(), 2);
}

#[test]
fn calls_can_be_awaited() {
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let (smp, mut cpus) = four_cpus();
    let woken = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&woken));
    let mut cx = Context::from_waker(&waker);
    let handle = smp.clone();
    let mut task = pin!(async move {
        let one = handle.call(CpuId::new(0), || 1).unwrap().await.unwrap();
        let all = handle.call_each(AllCpus, |cpu| cpu).await.into_values().unwrap();
        one + all.iter().map(|(_, cpu)| cpu.number()).sum::<u32>()
    });
    assert!(task.as_mut().poll(&mut cx).is_pending());
    cpus[0].step();
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert!(task.as_mut().poll(&mut cx).is_pending());
    for cpu in &mut cpus {
        cpu.step();
    }
    assert_eq!(woken.0.load(Ordering::Relaxed), 2);
    assert_eq!(task.as_mut().poll(&mut cx), Poll::Ready(7));
}

#[test]
fn a_call_is_send_where_its_value_is_and_so_is_the_owner_of_a_target() {
    fn send<T: Send>() {}
    send::<CallTarget>();
    send::<corewise_smp::Call<std::cell::Cell<u8>>>();
}
