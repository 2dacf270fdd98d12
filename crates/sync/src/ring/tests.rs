//! The ring on one thread, alone and against a plain model.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::*;
use crate::facade::fence::FullFence;

type Plain = Ring<u64, FullFence>;

/// Items that are identified by their addresses.
struct Items(Vec<u64>);

impl Items {
    fn new(many: usize) -> Items {
        Items((0..many as u64).collect())
    }
    fn at(&self, number: usize) -> NonNull<u64> {
        NonNull::from(&self.0[number])
    }
    fn number(&self, item: NonNull<u64>) -> usize {
        (0..self.0.len()).find(|&number| self.at(number) == item).expect("one of the items")
    }
}

fn append(ring: &Plain, item: NonNull<u64>) -> bool {
    ring.begin().map(|begun| begun.fill(item)).is_some()
}

fn looks(ring: &Plain, items: &Items) -> Vec<usize> {
    let mut seen = Vec::new();
    let none = ring.look(|item| {
        seen.push(items.number(item));
        Scan::Next
    });
    assert!(none.is_none());
    seen
}

#[test]
fn while_an_append_is_under_way_others_are_turned_away_and_a_worker_is_told_to_stay_awake() {
    let (ring, items) = (Plain::new(4), Items::new(1));
    let begun = ring.begin().expect("nobody else is here");
    assert!(ring.begin().is_none());
    assert!(ring.waits() && ring.is_empty(), "there is nothing yet, but don't park");
    drop(begun);
    assert!(!ring.waits(), "given back without an item");
    assert!(append(&ring, items.at(0)) && ring.waits());
}

#[test]
fn many_are_appended_in_one_go_until_a_cell_is_not_empty() {
    let (ring, items) = (Plain::new(4), Items::new(4));
    assert!(append(&ring, items.at(0)));
    let (mut begun, mut cells) = (ring.begin(), Vec::new());
    let mut numbers = 1..;
    while let Some(room) = begun {
        cells.push(room.cell());
        begun = room.put(items.at(numbers.next().unwrap()));
        assert_eq!(ring.len(), if begun.is_some() { 1 } else { 4 }, "one Publish");
    }
    assert_eq!(cells, [1, 2, 3]);
    assert_eq!(looks(&ring, &items), [0, 1, 2, 3]);
    let ring = Plain::new(4);
    let begun = ring.begin().and_then(|begun| begun.put(items.at(0)));
    drop(begun.and_then(|begun| begun.put(items.at(1))));
    assert_eq!(looks(&ring, &items), [0, 1], "the drop publishes what was filled");
}

#[test]
fn a_batch_that_is_over_leaves_nothing_to_look_for() {
    let (ring, items) = (Plain::new(4), Items::new(4));
    (0..4).for_each(|number| assert!(append(&ring, items.at(number))));
    let mut first = ring.reserve(|_| 2).expect("nobody else is here");
    let mut second = ring.reserve(|_| 2).expect("nobody else is here");
    assert!(second.by_ref().all(|at| ring.take(at).is_some()));
    ring.over(&second);
    assert_eq!(ring.takers.low.load(Relaxed), 0, "the first one's are still in their cells");
    assert!(first.by_ref().all(|at| ring.take(at).is_some()));
    ring.over(&first);
    assert_eq!(ring.takers.low.load(Relaxed), 2);
    assert_eq!((ring.left(), ring.takers.low.load(Relaxed)), (None, 4), "each cell once");
    ring.over(&Reserved::default());
    ring.over(&first);
    assert_eq!(ring.takers.low.load(Relaxed), 4);
}

#[test]
fn a_long_batch_ends_at_the_end_of_a_line_of_cells() {
    let (ring, items) = (Plain::new(64), Items::new(1));
    let address = ring.cell(0) as *const _ as usize;
    assert!(address % LINE == 0);
    (0..64).for_each(|_| assert!(append(&ring, items.at(0))));
    let sizes = [7, 32, 9, 8, 12].map(|most| ring.reserve(|_| most).expect("alone").len());
    assert_eq!(sizes, [7, 25, 8, 8, 8]);
}

#[test]
fn one_that_is_looked_at_is_not_taken_until_it_is_let_be() {
    let (ring, items) = (Plain::new(4), Items::new(2));
    (0..2).for_each(|number| assert!(append(&ring, items.at(number))));
    let taken = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        ring.look(|item| {
            scope.spawn(|| {
                let took = ring.take_this(0, items.at(0)) || ring.take_this(1, items.at(1));
                taken.fetch_add(usize::from(took), Relaxed);
            });
            scope.spawn(|| {
                let mut batch = ring.reserve(|_| 1).expect("the only one that reserves");
                let took = batch.next().and_then(|at| ring.take(at));
                taken.fetch_add(usize::from(took.is_some()), Relaxed);
            });
            (0..64).for_each(|_| std::thread::yield_now());
            assert!(ring.cell(0).load(Relaxed) != item.as_ptr(), "it is held");
            assert!(!ring.cell(0).load(Relaxed).is_null(), "and there");
            Scan::Stop
        });
    });
    assert_eq!(taken.load(Relaxed) + looks(&ring, &items).len(), 2, "each is taken once, or there");
    assert_eq!(ring.look(|_| Scan::Take).is_some(), taken.load(Relaxed) < 2);
}

#[test]
fn a_look_that_panics_lets_the_item_be() {
    let (ring, items) = (Plain::new(4), Items::new(1));
    assert!(append(&ring, items.at(0)));
    let look = || ring.look(|_| panic!("as it may"));
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(look)).expect_err("it has panicked");
    assert!(ring.take_this(0, items.at(0)));
}

#[test]
#[should_panic(expected = "a power of two of cells, not 6")]
fn a_ring_has_a_power_of_two_of_cells() {
    let _ = Plain::new(6);
}

/// Model of the ring: its positions, one after the other.
struct Model {
    capacity: usize,
    cells: Vec<Option<usize>>,
    head: usize,
}

impl Model {
    fn append(&mut self, item: usize) -> bool {
        let round = self.cells.len().checked_sub(self.capacity);
        // The position was reserved, and is empty.
        let full = round.is_some_and(|before| before >= self.head || self.cells[before].is_some());
        if !full {
            self.cells.push(Some(item));
        }
        !full
    }
    fn items(&self) -> Vec<usize> {
        self.cells.iter().copied().flatten().collect()
    }
    /// Takes the item in this position's cell: its own, or that of the same cell some rounds later.
    fn take(&mut self, at: usize) -> Option<usize> {
        self.cells[at..].iter_mut().step_by(self.capacity).find_map(Option::take)
    }
    fn left(&self) -> Option<usize> {
        self.cells[..self.head].iter().position(Option::is_some)
    }
}

#[test]
fn any_sequence_of_operations_does_what_a_plain_queue_would() {
    for seed in 1..=if cfg!(miri) { 1 } else { 200 } {
        let mut chance = fastrand::Rng::with_seed(seed);
        let capacity = 1 << chance.usize(..5);
        let (ring, items) = (Plain::new(capacity), Items::new(2 * capacity));
        let mut model = Model { capacity, cells: Vec::new(), head: 0 };
        let mut free: VecDeque<_> = (0..2 * capacity).collect();
        let mut batches: Vec<Reserved> = Vec::new();
        for _ in 0..400 {
            let took = match chance.usize(..10) {
                0..3 => {
                    let item = free[0];
                    let appended = append(&ring, items.at(item));
                    assert_eq!(appended, model.append(item));
                    if appended {
                        free.pop_front();
                    }
                    None
                }
                3 => {
                    let (mut begun, mut many) = (ring.begin(), chance.usize(..capacity + 1));
                    while let Some(room) = begun.take().filter(|_| many > 0) {
                        let item = free.pop_front().expect("more items than cells");
                        assert_eq!(room.cell() as usize, model.cells.len() % capacity);
                        assert!(model.append(item));
                        begun = room.put(items.at(item));
                        many -= 1;
                    }
                    None
                }
                4 => {
                    let most = 1 + chance.usize(..12);
                    let batch = ring.reserve(|_| most as u64).expect("alone");
                    let there = model.cells.len() - model.head;
                    assert!(batch.len() <= most.min(there) && (batch.len() > 0 || there == 0));
                    model.head += batch.len();
                    batches.push(batch);
                    None
                }
                5 if !batches.is_empty() => {
                    let which = chance.usize(..batches.len());
                    match batches[which].next() {
                        Some(at) => Some((ring.take(at), model.take(at as usize))),
                        None => {
                            ring.over(&batches.swap_remove(which));
                            None
                        }
                    }
                }
                6 if !batches.is_empty() => {
                    // This batch is left to the sweeper.
                    batches.swap_remove(chance.usize(..batches.len()));
                    None
                }
                7 => Some((ring.sweep(), model.left().and_then(|at| model.cells[at].take()))),
                8 => {
                    let item = chance.usize(..items.0.len());
                    let at = model.cells.iter().position(|there| *there == Some(item));
                    let cell = at.unwrap_or_else(|| chance.usize(..capacity)) % capacity;
                    let took = ring.take_this(cell as u32, items.at(item));
                    let there = at.and_then(|at| model.cells[at].take());
                    // The oldest position is skipped.
                    model.head += usize::from(at == Some(model.head));
                    Some((took.then_some(items.at(item)), there))
                }
                _ => {
                    let wanted = chance.usize(..items.0.len());
                    let is_wanted = |item| items.number(item) == wanted;
                    let took =
                        ring.look(|item| if is_wanted(item) { Scan::Take } else { Scan::Next });
                    let at = model.cells.iter().position(|there| *there == Some(wanted));
                    Some((took, at.and_then(|at| model.cells[at].take())))
                }
            };
            if let Some((took, expected)) = took {
                assert_eq!(took.map(|item| items.number(item)), expected);
                free.extend(expected);
            }
            let waiting = model.cells.len() - model.head;
            assert_eq!((ring.len(), ring.waits()), (waiting as u64, waiting > 0));
            assert_eq!(ring.left(), model.left().map(|at| at as u64));
            assert_eq!(looks(&ring, &items), model.items());
            let low = ring.takers.low.load(Relaxed) as usize;
            assert!(low <= model.head && model.cells[..low].iter().all(Option::is_none));
        }
    }
}

#[test]
fn a_hole_at_the_head_hides_nothing_from_a_searcher() {
    let (ring, items) = (Plain::new(4), Items::new(3));
    for _ in 0..3 {
        (0..3).for_each(|number| assert!(append(&ring, items.at(number))));
        let first = (ring.reserved() & 3) as u32;
        assert!(ring.take_this((first + 1) & 3, items.at(1)), "one in the middle");
        assert!(ring.has_next());
        assert!(ring.take_this(first, items.at(0)), "the oldest one");
        assert_eq!(ring.reserved() & 3, u64::from((first + 1) & 3));
        assert!(ring.take_this((first + 2) & 3, items.at(2)), "behind a hole");
        assert!(!ring.has_next());
        // These leave a hole, which a taker finds.
        while ring.waits() {
            let reserved = ring.reserve(|_| 1).expect("nobody else is here");
            assert!(reserved.map(|at| ring.take(at)).all(|item| item.is_none()));
        }
        assert!(
            append(&ring, items.at(0)) && ring.take_this((ring.reserved() & 3) as u32, items.at(0))
        );
        assert!(!ring.waits(), "nobody has to skip it");
        assert!(append(&ring, items.at(0)) && ring.has_next());
        assert!(
            ring.reserve(|_| 1).expect("nobody else is here").all(|at| ring.take(at).is_some())
        );
    }
}
