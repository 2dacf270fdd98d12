//! Models of the counter: no addition is lost, and a count goes from thread to thread.

use std::sync::Arc;

use corewise_sync::{Counter, thread};

#[test]
fn loom_counter_two_threads_add_and_nothing_is_lost() {
    loom::model(|| {
        let counter = Arc::new(Counter::new());
        let other = {
            let counter = Arc::clone(&counter);
            thread::spawn(move || {
                counter.add(1);
                counter.add(2);
            })
        };
        counter.add(10);
        let meanwhile = counter.total();
        assert!([10, 11, 13].contains(&meanwhile), "{meanwhile}");
        other.join().unwrap();
        assert_eq!(counter.total(), 13);
    });
}

#[test]
fn loom_counter_a_thread_goes_on_from_what_another_one_has_left() {
    loom::model(|| {
        let counter = Arc::new(Counter::new());
        let begun = [1, 2].map(|n| {
            let counter = Arc::clone(&counter);
            thread::spawn(move || counter.add(n))
        });
        begun.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(counter.total(), 3);
        let third = {
            let counter = Arc::clone(&counter);
            thread::spawn(move || counter.add(4))
        };
        third.join().unwrap();
        assert_eq!(counter.total(), 7);
    });
}
