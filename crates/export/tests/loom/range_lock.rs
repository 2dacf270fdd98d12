//! Model of the changes that cover a block in part: the first one against counted ones, and two of
//! one block.

use std::sync::Arc;

use corewise_export::range_lock::{Blocks, Changes, RangeLocks};
use corewise_sync::{Mutex, Parker};
use loom::model::Builder;
use loom::thread;

fn model(f: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

/// A block of two bytes. A change of one byte reads the block, and then writes it; loom runs others
/// in between.
struct Disk {
    /// L: is the lock; guards the bytes.
    block: Mutex<[u8; 2]>,
    locks: Arc<RangeLocks<usize>>,
}

impl Disk {
    fn begin(&self, id: u64, byte: usize) {
        let mut block = *self.block.lock();
        thread::yield_now();
        block[byte] = 1;
        *self.block.lock() = block;
        for (id, byte) in self.locks.leave(id) {
            self.begin(id, byte);
        }
    }

    fn change_a_part(&self, changes: &Changes<usize>, parker: &Parker, byte: usize) {
        changes.list();
        while !changes.are_listed() {
            parker.park();
        }
        if let (id, Some(byte)) = self.locks.enter(Blocks { range: 0..=0, exclusive: true }, byte) {
            self.begin(id, byte);
        }
    }
}

fn disk() -> Arc<Disk> {
    Arc::new(Disk { block: Mutex::new([0; 2]), locks: Arc::default() })
}

#[test]
fn loom_two_that_change_the_halves_of_a_block_both_survive() {
    model(|| {
        let disk = disk();
        let (parker, other_parker) = (Parker::new(), Parker::new());
        let one = Changes::new(&disk.locks, parker.waker());
        let two = Changes::new(&disk.locks, other_parker.waker());
        let theirs = Arc::clone(&disk);
        let other = thread::spawn(move || theirs.change_a_part(&two, &other_parker, 1));
        disk.change_a_part(&one, &parker, 0);
        other.join().unwrap();
        assert_eq!(*disk.block.lock(), [1, 1]);
        assert_eq!(disk.locks.listed(), 0);
    });
}

#[test]
fn loom_the_first_change_of_a_part_comes_after_what_was_counted() {
    model(|| {
        let disk = disk();
        let parker = Parker::new();
        let unaligned = Changes::new(&disk.locks, parker.waker());
        let plain = Changes::new(&disk.locks, Parker::new().waker());
        let theirs = Arc::clone(&disk);
        let other = thread::spawn(move || {
            if plain.begin() {
                *theirs.block.lock() = [7, 7];
                plain.end();
                true
            } else {
                false
            }
        });
        disk.change_a_part(&unaligned, &parker, 0);
        let counted = other.join().unwrap();
        let expected = if counted { [1, 7] } else { [1, 0] };
        assert_eq!(*disk.block.lock(), expected, "nothing of the counted one is lost");
    });
}
