//! The spin lock under every interleaving: one at a time has the value, and sees what was done before.
#![cfg(loom)]

use std::sync::Arc;

use corewise_sync::spin::Spin;
use corewise_sync::thread;

#[test]
fn loom_spin_one_at_a_time_has_the_value() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let lock = Arc::new(Spin::new(0));
        let threads = [(); 2].map(|()| {
            let lock = Arc::clone(&lock);
            thread::spawn(move || *lock.lock() += 1)
        });
        // Who doesn't wait has it, or not.
        let mine = lock.try_lock().map_or(0, |mut value| {
            *value += 1;
            1
        });
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(*lock.lock(), 2 + mine);
    });
}
