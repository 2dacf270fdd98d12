//! Model-checks the dependency counters: steps and races are named in `src/counters/README.md`.

use corewise_device::model::{Counters, Release, Settled};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

/// Two suppliers (0, 1), one consumer (2).
const FEEDS: [&[u32]; 3] = [&[2], &[2], &[]];

fn model() -> Arc<Counters> {
    Arc::new(Counters::new([0, 0, 2]))
}

fn finish(c: &Counters, device: u32, mut released: impl FnMut()) {
    c.finish(
        device,
        &mut Vec::new(),
        |d| FEEDS[d as usize],
        |d| {
            assert_eq!(d, 2);
            released();
            Settled::Queued
        },
    );
}

#[test]
fn loom_two_suppliers_finishing_at_once_release_the_consumer_exactly_once() {
    loom::model(|| {
        let c = model();
        for d in 0..3 {
            let _ = c.seed(d);
        }
        // A supplier leaves this behind; the one that releases the consumer must see both.
        let bound = [Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0))];
        let releases = Arc::new(AtomicUsize::new(0));
        let handles: Vec<_> = (0..2u32)
            .map(|d| {
                let (c, bound, releases) = (c.clone(), bound.clone(), releases.clone());
                thread::spawn(move || {
                    bound[d as usize].store(1, Ordering::Relaxed);
                    finish(&c, d, || {
                        let seen = bound.iter().map(|b| b.load(Ordering::Relaxed)).sum::<usize>();
                        assert_eq!(seen, 2, "released before both suppliers were visible");
                        releases.fetch_add(1, Ordering::Relaxed);
                    });
                })
            })
            .collect();
        for handle in handles {
            handle.join().unwrap();
        }
        assert_eq!(releases.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn loom_a_seeder_racing_with_the_suppliers_releases_the_consumer_exactly_once() {
    loom::model(|| {
        let c = model();
        let releases = Arc::new(AtomicUsize::new(0));
        let handles: Vec<_> = (0..2u32)
            .map(|d| {
                // The suppliers run as soon as they are seeded, while the seeder goes on.
                assert_eq!(c.seed(d), Release::Ready);
                let (c, releases) = (c.clone(), releases.clone());
                thread::spawn(move || {
                    finish(&c, d, || {
                        releases.fetch_add(1, Ordering::Relaxed);
                    });
                })
            })
            .collect();
        if c.seed(2) != Release::Waiting {
            releases.fetch_add(1, Ordering::Relaxed);
        }
        for handle in handles {
            handle.join().unwrap();
        }
        assert_eq!(releases.load(Ordering::Relaxed), 1);
    });
}

/// Proves the model: the scan that the seeder's count replaces does release twice.
#[test]
fn loom_scanning_for_zero_instead_of_seeding_releases_twice() {
    let failed = std::panic::catch_unwind(|| {
        loom::model(|| {
            let left = Arc::new(AtomicUsize::new(1));
            let releases = Arc::new(AtomicUsize::new(0));
            let supplier = {
                let (left, releases) = (left.clone(), releases.clone());
                thread::spawn(move || {
                    if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                        releases.fetch_add(1, Ordering::Relaxed);
                    }
                })
            };
            if left.load(Ordering::Acquire) == 0 {
                releases.fetch_add(1, Ordering::Relaxed);
            }
            supplier.join().unwrap();
            assert_eq!(releases.load(Ordering::Relaxed), 1);
        });
    });
    assert!(failed.is_err(), "the scan was expected to release a device twice");
}
