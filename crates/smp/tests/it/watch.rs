//! The watchdog: a waiter that waits for long learns where its call is, a thread and a future
//! alike.
//!
//! The limit is a millisecond here, and each test relies on the reports, not on time.
#![cfg(not(loom))]

use std::future::Future;
use std::pin::pin;
use std::sync::mpsc::{self, Receiver};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use crate::support::machine;
use corewise_smp::model::{self, CallTarget, Step};
use corewise_smp::{AllCpus, CallStall, CpuState, Progress, Smp, ThreadState, Waiter};
use corewise_topology::CpuId;

const LIMIT: Duration = Duration::from_millis(1);

fn stepped(cores: u32) -> (Smp, Vec<CallTarget>, Receiver<CallStall>) {
    let (told, reports) = mpsc::channel();
    let builder = Smp::builder(&machine(cores)).watchdog(Some(LIMIT));
    // The receiver may be gone by the last report.
    let (smp, owners) =
        model::stepped(builder.on_stall(move |report| _ = told.send(report.clone())));
    (smp, owners, reports)
}

/// Returns the next report of which `what` is true.
fn next(reports: &Receiver<CallStall>, what: impl Fn(&CallStall) -> bool) -> CallStall {
    loop {
        let report = reports.recv().expect("the handle is still there");
        if what(&report) {
            return report;
        }
    }
}

fn all(report: &CallStall, progress: Progress) -> bool {
    !report.missing.is_empty() && report.missing.iter().all(|missing| missing.progress == progress)
}

#[test]
fn rule_14_a_late_wait_is_told_that_the_target_never_saw_it_then_that_it_is_on_it() {
    let (smp, mut owners, reports) = stepped(2);
    let (go, wait) = mpsc::channel::<()>();
    let line = line!() + 1;
    let call = smp.call(CpuId::new(1), move || wait.recv().is_ok()).expect("online");
    let waiter = thread::spawn(move || call.wait());

    let report = next(&reports, |_| true);
    assert_eq!((report.site.file(), report.site.line()), (file!(), line));
    assert!(report.function.contains("rule_14_a_late_wait"), "{report}");
    assert_eq!(report.waiter, Waiter::Thread);
    let [missing] = &report.missing[..] else { panic!("one CPU: {report}") };
    assert_eq!((missing.cpu, missing.progress), (CpuId::new(1), Progress::Unseen));
    assert_eq!((missing.state, missing.running, missing.thread), (CpuState::Online, None, None));

    let stepper = thread::spawn(move || owners[1].step());
    let report = next(&reports, |report| all(report, Progress::Running));
    let running = report.missing[0].running.expect("that is what it is on");
    assert_eq!((running.site.line(), running.function), (line, report.function));
    assert_eq!(smp.dump().stalls.last().map(|kept| kept.site), Some(report.site));

    go.send(()).expect("the handler waits for it");
    assert_eq!(stepper.join().expect("no panic"), Step::Ran(1));
    assert!(waiter.join().expect("no panic").expect("no panic"));
}

#[test]
fn rule_14_a_late_wait_is_told_that_the_target_is_before_it_and_on_what() {
    let (smp, mut owners, reports) = stepped(1);
    let (go, wait) = mpsc::channel::<()>();
    let line = line!() + 1;
    let first = smp.call(CpuId::new(0), move || wait.recv().is_ok()).expect("online");
    let second = smp.call(CpuId::new(0), || ()).expect("online");
    let waiter = thread::spawn(move || second.wait());
    let stepper = thread::spawn(move || owners[0].step());
    let report = next(&reports, |report| all(report, Progress::Before));
    assert_eq!(report.missing[0].running.map(|other| other.site.line()), Some(line));
    go.send(()).expect("the handler waits for it");
    assert_eq!(stepper.join().expect("no panic"), Step::Ran(2));
    waiter.join().expect("no panic").expect("no panic");
    assert!(first.wait().expect("no panic"));
}

#[test]
fn rule_14_of_a_call_to_many_those_that_have_answered_are_not_named() {
    let (smp, mut owners, reports) = stepped(4);
    let call = smp.call_each(AllCpus, |cpu| cpu);
    assert_eq!(owners[0].step(), Step::Ran(1));
    assert_eq!(owners[2].step(), Step::Ran(1));
    let waiter = thread::spawn(move || call.wait());
    let report = next(&reports, |_| true);
    assert!(all(&report, Progress::Unseen), "{report}");
    assert_eq!(
        report.missing.iter().map(|missing| missing.cpu.number()).collect::<Vec<_>>(),
        [1, 3]
    );
    for owner in &mut owners {
        let _ = owner.step();
    }
    let answers = waiter.join().expect("no panic").into_values().expect("no panic");
    assert_eq!(answers.len(), 4);
}

#[test]
fn rule_14_a_late_call_is_reported_again_at_doubling_intervals() {
    let (smp, mut owners, reports) = stepped(1);
    let call = smp.call(CpuId::new(0), || ()).expect("online");
    let waiter = thread::spawn(move || call.wait());
    let times: Vec<Duration> = (0..5).map(|_| next(&reports, |_| true).waited).collect();
    for (told, waited) in (0..).zip(&times) {
        assert!(*waited >= LIMIT * (1 << told), "{times:?}");
    }
    let _ = owners[0].step();
    waiter.join().expect("no panic").expect("no panic");
    // The report is made by the waiter's own thread, which has ended: no more come.
    while reports.try_recv().is_ok() {}
    assert!(reports.try_recv().is_err());
}

#[test]
fn rule_14_a_future_that_waits_is_watched_too_and_no_longer_when_it_is_over() {
    let (smp, mut owners, reports) = stepped(2);
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..3 {
        let mut call = pin!(smp.call(CpuId::new(1), || 7).expect("online"));
        assert!(call.as_mut().poll(&mut cx).is_pending());
        let report = next(&reports, |_| true);
        assert_eq!(report.waiter, Waiter::Future);
        assert!(all(&report, Progress::Unseen), "{report}");
        // Further reports come at intervals that double.
        assert!(next(&reports, |_| true).waited >= 2 * LIMIT);
        let _ = owners[1].step();
        let Poll::Ready(answer) = call.as_mut().poll(&mut cx) else { panic!("it ran") };
        assert_eq!(answer.expect("no panic"), 7);
        assert!(smp.dump().outstanding.is_empty());
        while reports.try_recv().is_ok() {}
    }
}

#[test]
fn rule_14_a_call_to_many_that_a_future_waits_for_is_watched_too() {
    let (smp, mut owners, reports) = stepped(3);
    let mut cx = Context::from_waker(Waker::noop());
    let mut call = pin!(smp.call_each(AllCpus, |cpu| cpu));
    let _ = owners[1].step();
    assert!(call.as_mut().poll(&mut cx).is_pending());
    let report = next(&reports, |_| true);
    assert_eq!(
        report.missing.iter().map(|missing| missing.cpu.number()).collect::<Vec<_>>(),
        [0, 2]
    );
    for owner in &mut owners {
        let _ = owner.step();
    }
    assert!(call.as_mut().poll(&mut cx).is_ready());
}

#[test]
fn a_future_that_is_dropped_while_it_waits_is_watched_no_longer() {
    let (smp, mut owners, reports) = stepped(1);
    let mut cx = Context::from_waker(Waker::noop());
    let mut call = Box::pin(smp.call(CpuId::new(0), || ()).expect("online"));
    assert!(call.as_mut().poll(&mut cx).is_pending());
    let _ = next(&reports, |_| true);
    drop(call);
    let _ = owners[0].step();
    while reports.try_recv().is_ok() {}
    // Another one is watched; the dropped one isn't reported beside it.
    let line = line!() + 1;
    let mut call = pin!(smp.call(CpuId::new(0), || ()).expect("online"));
    assert!(call.as_mut().poll(&mut cx).is_pending());
    assert_eq!(next(&reports, |_| true).site.line(), line);
    let _ = owners[0].step();
}

#[test]
fn without_a_watchdog_nothing_is_reported() {
    let (told, reports) = mpsc::channel();
    let builder = Smp::builder(&machine(1)).watchdog(None);
    let (smp, mut owners) = model::stepped(builder.on_stall(move |_| _ = told.send(())));
    let mut cx = Context::from_waker(Waker::noop());
    let mut call = Box::pin(smp.call(CpuId::new(0), || 1).expect("online"));
    assert!(call.as_mut().poll(&mut cx).is_pending());
    let _ = owners[0].step();
    assert_eq!(call.wait_by_polling(), 1);
    let call = smp.call(CpuId::new(0), || 2).expect("online");
    let _ = owners[0].step();
    assert_eq!(call.wait().expect("no panic"), 2);
    drop((smp, owners));
    assert!(reports.recv().is_err(), "nothing was told, and nobody is left to");
}

/// A future that is ready by now.
trait WaitByPolling {
    type Value;
    fn wait_by_polling(&mut self) -> Self::Value;
}

impl<T> WaitByPolling for std::pin::Pin<Box<corewise_smp::Call<T>>> {
    type Value = T;
    fn wait_by_polling(&mut self) -> T {
        match self.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => answer.expect("no panic"),
            Poll::Pending => panic!("it ran"),
        }
    }
}

#[test]
fn of_a_target_with_a_thread_the_kernel_s_word_is_given() {
    let (told, reports) = mpsc::channel();
    let builder = Smp::builder(&machine(2)).watchdog(Some(LIMIT));
    let smp = builder.on_stall(move |report| _ = told.send(report.clone())).build();
    let smp = smp.expect("threads");
    let (go, wait) = mpsc::channel::<()>();
    let call = smp.call(CpuId::new(1), move || wait.recv().is_ok()).expect("online");
    let waiter = thread::spawn(move || call.wait());
    // It sleeps in the handler, which a handler shouldn't do.
    let asleep = |report: &CallStall| report.missing[0].thread == Some(ThreadState::Asleep);
    let report = next(&reports, |report| all(report, Progress::Running) && asleep(report));
    assert!(report.to_string().contains("its thread sleeps"), "{report}");
    go.send(()).expect("the handler waits for it");
    assert!(waiter.join().expect("no panic").expect("no panic"));
}

#[test]
fn a_callback_that_panics_hurts_nobody() {
    let (told, reports) = mpsc::channel();
    let builder = Smp::builder(&machine(1)).watchdog(Some(LIMIT));
    let on_stall = move |_: &CallStall| {
        let _ = told.send(());
        panic!("on purpose, in the callback");
    };
    let (smp, mut owners) = model::stepped(builder.on_stall(on_stall));
    let call = smp.call(CpuId::new(0), || 3).expect("online");
    let waiter = thread::spawn(move || call.wait());
    reports.recv().expect("a report");
    reports.recv().expect("and another");
    let _ = owners[0].step();
    assert_eq!(waiter.join().expect("no panic").expect("no panic"), 3);
}

#[test]
fn a_callback_may_have_the_last_handle() {
    let (told, reports) = mpsc::channel();
    let last = std::sync::Arc::new(std::sync::Mutex::new(None::<Smp>));
    let its = std::sync::Arc::clone(&last);
    let builder = Smp::builder(&machine(1)).watchdog(Some(LIMIT));
    let on_stall = move |report: &CallStall| {
        let smp = its.lock().expect("nobody panics with it").take();
        let _ = told.send((report.waiter, smp.is_some()));
        drop(smp);
    };
    let (smp, mut owners) = model::stepped(builder.on_stall(on_stall));
    let mut call = Box::pin(smp.call(CpuId::new(0), || 4).expect("online"));
    *last.lock().expect("nobody panics with it") = Some(smp);
    assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    // The watching thread drops the handle, and so ends itself.
    assert_eq!(reports.recv(), Ok((Waiter::Future, true)));
    while owners[0].step() != Step::Left {}
    assert_eq!(call.wait_by_polling(), 4);
}
