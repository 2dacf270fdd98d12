//! Model of the request cache: a box that comes back while the cache is closed.
//! `src/percpu/cache.rs` has the protocol.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use corewise_blockmq::model::{BoxSource, Cache};
use corewise_sync::inbox::{HasLink, Link};

/// A box that reports its drop. (The count is a standard one: no step of the model.)
struct Item(Link, Arc<AtomicUsize>);

// SAFETY: always the one field of `self`.
unsafe impl HasLink for Item {
    fn link(&self) -> &Link {
        &self.0
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn loom_a_box_that_comes_back_while_the_cache_is_closed_is_not_left_there() {
    loom::model(|| {
        let cache = Arc::new(Cache::<Box<Item>>::new(1));
        let dropped = Arc::new(AtomicUsize::new(0));
        assert!(matches!(cache.take(0), BoxSource::Make));
        let completion = {
            let (cache, dropped) = (Arc::clone(&cache), Arc::clone(&dropped));
            loom::thread::spawn(move || {
                let item = Box::new(Item(Link::new(), dropped));
                // SAFETY: this thread holds the cache.
                drop(unsafe { cache.home(0).as_ref() }.push(item));
            })
        };
        cache.close();
        completion.join().unwrap();
        assert_eq!(dropped.load(Ordering::SeqCst), 1, "a box lies in a cache that nobody empties");
    });
}

#[test]
fn loom_a_box_that_comes_back_is_had_by_one() {
    loom::model(|| {
        let cache = Arc::new(Cache::<Box<Item>>::new(1));
        let dropped = Arc::new(AtomicUsize::new(0));
        let completion = {
            let (cache, dropped) = (Arc::clone(&cache), Arc::clone(&dropped));
            loom::thread::spawn(move || {
                let item = Box::new(Item(Link::new(), dropped));
                // SAFETY: this thread holds the cache.
                assert!(unsafe { cache.home(0).as_ref() }.push(item).is_ok());
            })
        };
        let kept = |taken| usize::from(matches!(taken, BoxSource::Kept(_)));
        let other = {
            let cache = Arc::clone(&cache);
            loom::thread::spawn(move || kept(cache.take(0)))
        };
        let mut had = kept(cache.take(0));
        completion.join().unwrap();
        had += other.join().unwrap();
        had += kept(cache.take(0));
        assert_eq!(had, 1);
    });
}
