//! Model-checks the taking over of a walk: steps and race are named in `src/takeover/README.md`.

use corewise_device::model::{Walk, WalkNote};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

const LEN: usize = 3;

#[test]
fn loom_each_element_is_the_walkers_or_the_takers_and_never_both() {
    loom::model(|| {
        let walk = Arc::new(Walk::new(LEN));
        let left: Arc<[AtomicUsize; LEN]> = Arc::new(Default::default());
        let (its, marks) = (walk.clone(), left.clone());
        let walker = thread::spawn(move || {
            for place in 0..LEN {
                marks[place].store(1, Ordering::Relaxed); // An element leaves this behind.
                if !its.step(place, WalkNote { at: 10 + place as u64, mark: 0 }) {
                    return place; // Ended after the takeover.
                }
            }
            LEN
        });
        let over = walk.take();
        for place in 0..over {
            assert_eq!(walk.note(place).at, 10 + place as u64);
            assert_eq!(left[place].load(Ordering::Relaxed), 1);
        }
        assert_eq!(walker.join().unwrap(), over, "the walker ends where it was taken over");
        assert_eq!(walk.over(), over);
    });
}

/// Proves the model: a walker that stores its place instead of exchanging it goes on.
#[test]
fn loom_a_walker_that_stores_is_not_stopped() {
    let failed = std::panic::catch_unwind(|| {
        loom::model(|| {
            let word = Arc::new(AtomicUsize::new(0));
            let its = word.clone();
            let walker = thread::spawn(move || {
                for place in 0..LEN {
                    if its.load(Ordering::Acquire) & 1 == 1 {
                        return place;
                    }
                    its.store((place + 1) << 1, Ordering::Release);
                }
                LEN
            });
            let over = word.fetch_add(1, Ordering::AcqRel) >> 1;
            assert_eq!(walker.join().unwrap(), over);
        });
    });
    assert!(failed.is_err(), "a store was expected to lose the takeover");
}
