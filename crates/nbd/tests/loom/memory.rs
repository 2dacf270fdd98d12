//! Model of the server's memory: requests that wait for it, against those that return it, and a
//! client that is cut.

use std::sync::Arc;

use corewise_nbd::model::Pool;
use corewise_sync::Parker;
use corewise_sync::atomic::{AtomicBool, Ordering};
use loom::thread;

/// Takes memory as a connection's reader does. Returns false if it was cut.
fn take(pool: &Pool, bytes: u64, id: u64, parker: &Parker, cut: &AtomicBool) -> bool {
    if pool.try_take(bytes) {
        return true;
    }
    pool.queue(bytes, id, &parker.unparker());
    while !pool.has(id) {
        parker.park();
        if cut.load(Ordering::Acquire) {
            pool.give_up(bytes, id);
            return false;
        }
    }
    true
}

#[test]
fn loom_each_request_that_waits_for_memory_is_woken_once_it_has_it() {
    loom::model(|| {
        let pool = Arc::new(Pool::new(2));
        assert!(pool.try_take(2));
        let others: Vec<_> = (1..=2)
            .map(|id| {
                let pool = Arc::clone(&pool);
                thread::spawn(move || {
                    let (parker, cut) = (Parker::new(), AtomicBool::new(false));
                    assert!(take(&pool, id, id, &parker, &cut));
                    pool.give_back(id);
                })
            })
            .collect();
        pool.give_back(2);
        for other in others {
            other.join().unwrap();
        }
        assert_eq!((pool.usage().taken, pool.usage().waiting), (0, 0));
    });
}

#[test]
fn loom_a_client_that_is_cut_while_it_waits_keeps_nothing_whoever_is_first() {
    loom::model(|| {
        let pool = Arc::new(Pool::new(2));
        assert!(pool.try_take(2));
        let (parker, cut) = (Parker::new(), Arc::new(AtomicBool::new(false)));
        let (unparker, theirs) = (parker.unparker(), Arc::clone(&cut));
        let cutter = thread::spawn(move || {
            theirs.store(true, Ordering::Release);
            unparker.unpark();
        });
        let giving = Arc::clone(&pool);
        let giver = thread::spawn(move || giving.give_back(2));
        if take(&pool, 1, 1, &parker, &cut) {
            pool.give_back(1);
        }
        cutter.join().unwrap();
        giver.join().unwrap();
        assert_eq!((pool.usage().taken, pool.usage().waiting), (0, 0));
    });
}
