//! The ring under every interleaving: nothing lost, nothing doubled, contents seen, no thread
//! asleep beside an item. Only the sleepers need the fence: all else has to hold without it, and is
//! checked so.

use std::ptr::NonNull;
use std::sync::Arc;

use corewise_sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::fence::{FencePolicy, FullFence, NoFence};
use corewise_sync::model::{every_order, must_fail, must_panic, publish_before_fill};
use corewise_sync::ring::{Ring, Scan};
use corewise_sync::{Completion, thread};

/// Preemptions of a schedule. The full space of three threads is too large.
const BOUND: usize = 3;

struct Item {
    /// Value that is written before the append, and read after the take, without any ordering of
    /// its own: the ring has to transfer it.
    value: UnsafeCell<usize>,
    /// Number of times that it was taken.
    taken: AtomicUsize,
}

/// A ring, and the items that go through it.
struct Model<F: FencePolicy> {
    ring: Ring<Item, F>,
    items: Vec<Item>,
}

// SAFETY: an item's cell is accessed by the owner of the item: its appender, then its taker. Loom
// checks just that.
unsafe impl<F: FencePolicy> Sync for Model<F> {}
// SAFETY: as above.
unsafe impl<F: FencePolicy> Send for Model<F> {}

impl<F: FencePolicy> Model<F> {
    fn new(capacity: usize, items: usize) -> Arc<Self> {
        let item = |_| Item { value: UnsafeCell::new(0), taken: AtomicUsize::new(0) };
        Arc::new(Model { ring: Ring::new(capacity), items: (0..items).map(item).collect() })
    }

    /// Returns the item, with its value.
    fn made(&self, number: usize) -> NonNull<Item> {
        let item = &self.items[number];
        // SAFETY: it is in no ring, and its appender's.
        item.value.with_mut(|value| unsafe { *value += number + 1 });
        NonNull::from(item)
    }

    /// Appends an item. Returns true if the ring took it. Otherwise it is kept elsewhere, and
    /// counts as taken.
    fn append(&self, number: usize) -> bool {
        let item = self.made(number);
        match self.ring.begin() {
            Some(begun) => begun.fill(item),
            None => {
                self.took(item);
                return false;
            }
        }
        true
    }

    /// Checks an item that the caller took, and returns its number.
    fn took(&self, item: NonNull<Item>) -> usize {
        let number = self.items.iter().position(|there| NonNull::from(there) == item);
        let number = number.expect("one of the items");
        let item = &self.items[number];
        // SAFETY: the caller took it: it is the caller's.
        let value = item.value.with_mut(|value| unsafe { std::mem::take(&mut *value) });
        assert_eq!(value, number + 1, "what was written before the append is seen");
        item.taken.fetch_add(1, Ordering::Relaxed);
        number
    }

    /// Takes a batch of at most `most` items.
    fn take_batch(&self, most: u64) -> usize {
        let Ok(mut batch) = self.ring.reserve(|_| most) else { return 0 };
        let taken = batch.by_ref().filter_map(|at| self.ring.take(at)).map(|item| self.took(item));
        let taken = taken.count();
        self.ring.over(&batch);
        taken
    }

    /// Ends a model: the remaining items can be found in the way in which workers search, and each
    /// item was taken once.
    fn ends(&self) {
        assert!(!self.ring.waits() || !self.ring.is_empty(), "nobody has the tail");
        while self.take_batch(1) > 0 || !self.ring.is_empty() {}
        while self.ring.left().is_some() {
            let item = self.ring.sweep().expect("what is left can be swept");
            self.took(item);
        }
        for (number, item) in self.items.iter().enumerate() {
            assert_eq!(item.taken.load(Ordering::Relaxed), 1, "item {number} is lost or doubled");
        }
    }
}

/// Runs these at the same time as the last one, and then checks what is left.
fn at_once<F: FencePolicy>(
    model: &Arc<Model<F>>,
    others: &[fn(&Model<F>)],
    last: impl FnOnce(&Model<F>),
) {
    let start = |&run: &fn(&Model<F>)| {
        let model = Arc::clone(model);
        thread::spawn(move || run(&model))
    };
    let threads: Vec<_> = others.iter().map(start).collect();
    last(model);
    for thread in threads {
        thread.join().unwrap();
    }
    model.ends();
}

#[test]
fn loom_ring_appenders_do_not_get_into_each_others_cells() {
    every_order(BOUND, || {
        let model = Model::<NoFence>::new(2, 4);
        let two: fn(&Model<NoFence>) = |model| {
            model.append(0);
            model.append(1);
        };
        at_once(&model, &[two], |model| {
            // Two at once, if there is room for two.
            let first = model.made(2);
            match model.ring.begin() {
                None => {
                    model.took(first);
                    model.append(3);
                }
                Some(begun) => match begun.put(first) {
                    Some(begun) => begun.fill(model.made(3)),
                    None => _ = model.append(3),
                },
            }
        });
    });
}

#[test]
fn loom_ring_a_cell_is_filled_again_only_after_its_item_was_taken() {
    every_order(BOUND, || {
        let model = Model::<NoFence>::new(1, 3);
        let appender: fn(&Model<NoFence>) = |model| {
            model.append(0);
            model.append(1);
        };
        at_once(&model, &[appender, |model| _ = model.take_batch(1)], |model| {
            model.append(2);
        });
    });
}

#[test]
fn loom_ring_a_batch_is_taken_while_it_goes_on() {
    every_order(BOUND, || {
        let model = Model::<NoFence>::new(2, 4);
        let appender: fn(&Model<NoFence>) =
            |model| (0..4).for_each(|number| _ = model.append(number));
        at_once(&model, &[appender], |model| {
            model.take_batch(2);
            model.take_batch(2);
        });
    });
}

#[test]
fn loom_ring_two_takers_and_an_item_that_comes_again() {
    every_order(BOUND, || {
        let model = Model::<NoFence>::new(1, 1);
        assert!(model.append(0));
        // Both take from cell 0; one of them appends what it took once more, to the same cell.
        let late: fn(&Model<NoFence>) = |model| {
            if let Some(item) = model.ring.take(0) {
                model.took(item);
            }
        };
        at_once(&model, &[late], |model| {
            if model.take_batch(1) == 1 {
                model.items[0].taken.fetch_sub(1, Ordering::Relaxed);
                assert!(model.append(0), "the cell is empty again");
            }
        });
    });
}

#[test]
fn loom_ring_an_item_is_taken_by_name_or_by_a_taker() {
    every_order(BOUND, || {
        let model = Model::<NoFence>::new(2, 2);
        assert!(model.append(0));
        let taker: fn(&Model<NoFence>) = |model| _ = model.take_batch(2);
        let appender: fn(&Model<NoFence>) = |model| _ = model.append(1);
        at_once(&model, &[taker, appender], |model| {
            let named = NonNull::from(&model.items[0]);
            if model.ring.take_this(0, named) {
                model.took(named);
            }
        });
    });
}

/// Scans all items, reads them, and takes item 1.
fn looks(model: &Model<NoFence>) {
    let taken = model.ring.look(|item| {
        // SAFETY: items live as long as the model.
        let item = unsafe { item.as_ref() };
        // SAFETY: nobody takes it meanwhile, as loom checks.
        let value = item.value.with(|value| unsafe { *value });
        assert!(value > 0, "it is here, so it isn't taken");
        if value == 2 { Scan::Take } else { Scan::Next }
    });
    taken.into_iter().for_each(|item| _ = model.took(item));
}

#[test]
fn loom_ring_an_item_that_is_looked_at_stays() {
    every_order(BOUND, || {
        let model = Model::<NoFence>::new(2, 2);
        assert!(model.append(0));
        let appender: fn(&Model<NoFence>) = |model| _ = model.append(1);
        at_once(&model, &[appender, looks], |model| _ = model.take_batch(2));
    });
}

#[test]
fn loom_ring_a_look_shows_an_item_that_comes_into_a_cell_which_it_has_yet_to_see() {
    every_order(BOUND, || {
        let model = Model::<NoFence>::new(1, 2);
        assert!(model.append(0));
        let next: fn(&Model<NoFence>) = |model| {
            model.take_batch(1);
            model.append(1);
        };
        at_once(&model, &[next], looks);
    });
}

#[test]
fn loom_ring_a_look_shows_what_was_told_to_be_there() {
    every_order(BOUND, || {
        let model = Model::<NoFence>::new(2, 2);
        let appender: fn(&Model<NoFence>) = |model| {
            model.append(0);
            model.append(1);
        };
        at_once(&model, &[appender], |model| {
            let (there, mut seen) = (model.ring.len(), 0);
            model.ring.look(|_| {
                seen += 1;
                Scan::Next
            });
            assert!(there <= seen, "an item was overlooked");
        });
    });
}

#[test]
fn loom_ring_an_item_that_is_looked_at_is_not_taken_by_name() {
    every_order(BOUND, || {
        let model = Model::<NoFence>::new(2, 1);
        assert!(model.append(0));
        at_once(&model, &[looks], |model| {
            let named = NonNull::from(&model.items[0]);
            assert!(model.ring.take_this(0, named), "a look only delays it");
            model.took(named);
        });
    });
}

#[test]
fn loom_ring_items_left_behind_are_found() {
    every_order(BOUND, || {
        let model = Model::<NoFence>::new(2, 3);
        assert!(model.append(0) && model.append(1));
        // Leaves its second one, if it gets two.
        let leaves: fn(&Model<NoFence>) = |model| {
            let mut batch = model.ring.reserve(|_| 2).expect("the only one that reserves");
            let first = batch.next().and_then(|at| model.ring.take(at));
            first.into_iter().for_each(|item| _ = model.took(item));
            model.ring.over(&batch);
        };
        at_once(&model, &[leaves], |model| {
            model.append(2);
            model.ring.sweep().into_iter().for_each(|item| _ = model.took(item));
            model.ring.sweep().into_iter().for_each(|item| _ = model.took(item));
        });
    });
}

#[test]
fn loom_ring_an_adopted_batch_is_taken_by_its_taker_or_by_the_one_who_adopts_it() {
    every_order(BOUND, || {
        let model = Model::<NoFence>::new(2, 3);
        assert!(model.append(0) && model.append(1));
        let takes: fn(&Model<NoFence>) = |model| _ = model.take_batch(2);
        at_once(&model, &[takes], |model| {
            if let Some(mut batch) = model.ring.adopt() {
                batch
                    .by_ref()
                    .filter_map(|at| model.ring.take(at))
                    .for_each(|item| _ = model.took(item));
                model.ring.over(&batch);
            }
            // Into a cell of that batch.
            model.append(2);
        });
    });
}

#[test]
fn loom_ring_batches_that_are_over_hide_no_other_batch() {
    every_order(BOUND - 1, || {
        let model = Model::<NoFence>::new(2, 2);
        assert!(model.append(0) && model.append(1));
        let one: fn(&Model<NoFence>) = |model| _ = model.take_batch(1);
        at_once(&model, &[one, one], |model| {
            model.ring.sweep().into_iter().for_each(|item| _ = model.took(item));
        });
    });
}

#[test]
fn loom_ring_a_sweep_sees_what_lies_below_the_head() {
    every_order(BOUND, || {
        let model = Model::<NoFence>::new(2, 2);
        let leaves: fn(&Model<NoFence>) = |model| {
            model.append(0);
            model.append(1);
            let batch = model.ring.reserve(|_| 2).expect("the only one that reserves");
            assert_eq!(batch.len(), 2);
        };
        at_once(&model, &[leaves], |model| {
            model.ring.sweep().into_iter().for_each(|item| _ = model.took(item));
        });
    });
}

#[test]
fn loom_ring_nothing_waits_and_nothing_is_left_where_all_was_taken_only() {
    every_order(BOUND, || {
        let model = Model::<NoFence>::new(2, 1);
        let appender: fn(&Model<NoFence>) = |model| _ = model.append(0);
        let taker: fn(&Model<NoFence>) = |model| _ = model.take_batch(1);
        at_once(&model, &[appender, taker], |model| {
            let reserved = model.ring.reserved() > 0;
            if !model.ring.waits() && model.ring.left().is_none() && reserved {
                let still_there = model.ring.take_this(0, NonNull::from(&model.items[0]));
                assert!(!still_there, "it was overlooked");
            }
        });
    });
}

/// Appends and checks after Begin, as an appender has to.
fn checks_in_between<F: FencePolicy>(model: &Model<F>, sleeps: &AtomicU32) -> bool {
    let item = model.made(0);
    let begun = model.ring.begin().expect("the only appender");
    let somebody = sleeps.load(Ordering::SeqCst) > 0;
    begun.fill(item);
    somebody
}

/// Appends one item while the one worker goes to sleep. The protocol is how the appender learns
/// whether to wake it, and whether the worker may park.
fn append_against_sleep<F: FencePolicy>(
    append: fn(&Model<F>, &AtomicU32) -> bool,
    may_park: fn(&Model<F>) -> bool,
) {
    every_order(BOUND, move || {
        let model = Model::<F>::new(2, 1);
        let word = Arc::new((AtomicU32::new(0), Completion::new()));
        let appender = {
            let (model, word) = (Arc::clone(&model), Arc::clone(&word));
            thread::spawn(move || {
                if append(&model, &word.0) {
                    word.1.complete();
                }
            })
        };
        while model.take_batch(1) == 0 {
            word.0.swap(1, Ordering::SeqCst); // Publish'
            F::implied();
            // Recheck.
            if may_park(&model) {
                word.1.wait();
                assert!(model.ring.waits(), "it was woken for an item");
            } else {
                model.ring.outwait();
            }
        }
        appender.join().unwrap();
        model.ends();
    });
}

#[test]
fn loom_ring_a_worker_does_not_sleep_beside_an_item() {
    append_against_sleep::<FullFence>(checks_in_between, |model| !model.ring.waits());
}

/// Asserts that the model leaves a worker asleep.
fn sleeps_for_ever(test: &str, model: impl FnOnce()) {
    let said = must_fail(test, model);
    assert!(said.is_empty() || said.contains("deadlock"), "failed for another reason:\n{said}");
}

#[test]
fn loom_ring_without_the_fence_a_worker_sleeps_beside_an_item() {
    sleeps_for_ever("loom_ring_without_the_fence_a_worker_sleeps_beside_an_item", || {
        append_against_sleep::<NoFence>(checks_in_between, |model| !model.ring.waits());
    });
}

#[test]
fn loom_ring_a_worker_that_parks_beside_busy_sleeps_beside_an_item() {
    sleeps_for_ever("loom_ring_a_worker_that_parks_beside_busy_sleeps_beside_an_item", || {
        append_against_sleep::<FullFence>(checks_in_between, |model| model.ring.is_empty());
    });
}

#[test]
fn loom_ring_an_appender_that_checks_before_it_begins_leaves_a_worker_asleep() {
    sleeps_for_ever(
        "loom_ring_an_appender_that_checks_before_it_begins_leaves_a_worker_asleep",
        || {
            let checks_before = |model: &Model<FullFence>, sleeps: &AtomicU32| {
                let somebody = sleeps.load(Ordering::SeqCst) > 0;
                model.append(0);
                somebody
            };
            append_against_sleep::<FullFence>(checks_before, |model| !model.ring.waits());
        },
    );
}

#[test]
fn loom_ring_a_position_published_before_it_is_filled_is_lost() {
    must_panic("is lost or doubled", || {
        every_order(BOUND, || {
            let model = Model::<NoFence>::new(2, 1);
            let appender: fn(&Model<NoFence>) =
                |model| assert!(publish_before_fill(&model.ring, model.made(0)));
            at_once(&model, &[appender], |model| _ = model.take_batch(1));
        });
    });
}
