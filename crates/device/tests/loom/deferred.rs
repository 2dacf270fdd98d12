//! Model-checks deferred probing: steps and race are named in `src/deferred/README.md`.

use corewise_device::model::{Deferred, NoRecheck, Recheck, RecheckPolicy};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

/// Lets probers look for a supplier, which is bound at the same time. Afterwards each has seen the
/// supplier or was triggered.
fn a_bind_races_with_probes<R: RecheckPolicy + 'static>(probers: u32) {
    let list: Arc<Deferred<u32, R>> = Arc::new(Deferred::new());
    let _ = list.enable();
    let there = Arc::new(AtomicBool::new(false));
    let binder = thread::spawn({
        let (list, there) = (list.clone(), there.clone());
        move || {
            there.store(true, Ordering::Relaxed);
            let _ = list.trigger();
        }
    });
    let probe = |device: u32, list: &Deferred<u32, R>, there: &AtomicBool| {
        let attempt = list.attempt();
        let found = there.load(Ordering::Relaxed);
        found || {
            let _ = list.park(device, attempt);
            false
        }
    };
    let other = (probers > 1).then(|| {
        let (list, there) = (list.clone(), there.clone());
        thread::spawn(move || probe(1, &list, &there))
    });
    let mut found = vec![probe(0, &list, &there)];
    found.extend(other.map(|other| other.join().unwrap()));
    binder.join().unwrap();
    let active: Vec<u32> = std::iter::from_fn(|| list.next()).collect();
    for (device, found) in (0u32..).zip(found) {
        assert!(found || active.contains(&device), "the wake-up of {device} is lost");
    }
}

#[test]
fn loom_a_bind_during_an_attempt_is_never_lost() {
    loom::model(|| a_bind_races_with_probes::<Recheck>(1));
}

#[test]
fn loom_a_bind_during_two_attempts_is_lost_by_neither() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| a_bind_races_with_probes::<Recheck>(2));
}

#[test]
#[should_panic(expected = "is lost")]
fn loom_without_the_recheck_the_wake_up_is_lost() {
    loom::model(|| a_bind_races_with_probes::<NoRecheck>(1));
}
