//! The timekeeper's alarm, the very code that runs: work left in a saturated pool is examined.
//!
//! A missed alarm shows as a deadlock, which loom reports. Without the full fences it must.

use std::sync::Arc;

use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::fence::{FencePolicy, FullFence, NoFence};
use corewise_sync::model::must_fail;
use corewise_sync::thread;
use corewise_workqueue::model::AlarmModel;

/// Checks one keeper and two pieces of work. Each may meet the keeper while it looks, lowers the
/// alarm, or sleeps.
fn ask_against_lower<F: FencePolicy>() {
    loom::model(|| {
        let alarm = Arc::new(AlarmModel::<F>::new());
        let left = Arc::new(AtomicUsize::new(0));
        let keeper = {
            let (alarm, left) = (Arc::clone(&alarm), Arc::clone(&left));
            thread::spawn(move || {
                let mut seen = 0;
                while seen < 2 {
                    seen += left.swap(0, Ordering::Relaxed);
                    // If work was left since, the alarm stays raised, and the keeper looks again.
                    if seen < 2 && alarm.lower(|| left.load(Ordering::Relaxed) != 0) {
                        alarm.rest();
                    }
                }
            })
        };
        for _ in 0..2 {
            left.fetch_add(1, Ordering::Relaxed);
            F::full();
            alarm.ask();
        }
        keeper.join().unwrap();
    });
}

#[test]
fn loom_alarm_no_work_is_left_to_a_sleeping_timekeeper() {
    ask_against_lower::<FullFence>();
}

#[test]
fn loom_alarm_without_the_fences_work_is_left_behind() {
    let said = must_fail(
        "loom_alarm_without_the_fences_work_is_left_behind",
        ask_against_lower::<NoFence>,
    );
    assert!(said.is_empty() || said.contains("deadlock"), "{said}");
}
