//! The spin lock under every interleaving: one thread at a time has the value, and sees earlier
//! writes.

use std::sync::Arc;

use corewise_sync::spin::Spin;
use corewise_sync::thread;

#[test]
fn loom_spin_one_at_a_time_has_the_value() {
    loom::model(|| {
        let lock = Arc::new(Spin::new(0));
        let other = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || *lock.lock() += 1)
        };
        *lock.lock() += 1;
        other.join().unwrap();
        assert_eq!(*lock.lock(), 2);
    });
}

#[test]
fn loom_spin_a_try_lock_succeeds_or_fails_at_once() {
    loom::model(|| {
        let lock = Arc::new(Spin::new(0));
        let other = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || lock.try_lock().map(|mut value| *value += 1).is_some())
        };
        let mine = lock.try_lock().map(|mut value| *value += 1).is_some();
        let other = other.join().unwrap();
        assert!(mine || other);
        assert_eq!(*lock.lock(), usize::from(mine) + usize::from(other));
    });
}
