//! Models of the locks of an overlay's blocks: two first changes of one block, and a fetch beside a
//! change. `src/overlay/README.md` names the steps.

use std::sync::Arc;

use corewise_drivers::model::BlockLocks;
use corewise_sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use corewise_sync::model;

/// The content that a half of the block has in the base.
const BASE: usize = 7;

/// An overlay of one block.
#[derive(Default)]
struct Overlay {
    /// Waiting changes are the halves that they write.
    locks: BlockLocks<usize>,
    /// A: the block's bit. Release after the block was written, Acquire.
    own: AtomicBool,
    /// A: the two halves of the block's place in the file. Relaxed: the disk orders nothing.
    halves: [AtomicUsize; 2],
}

impl Overlay {
    fn is_own(&self) -> bool {
        self.own.load(Ordering::Acquire)
    }

    fn write(&self, half: usize, content: usize) {
        self.halves[half].store(content, Ordering::Relaxed);
    }

    /// Changes one half of the block; it becomes the number of the half.
    fn change(&self, half: usize, locks: bool) {
        if self.is_own() {
            return self.write(half, half);
        }
        if locks && self.locks.lock_or_wait(&(0..2), half).is_none() {
            return;
        }
        // Look again, Copy, Send, Set.
        if !self.is_own() {
            self.write(1 - half, BASE);
        }
        self.write(half, half);
        self.own.store(true, Ordering::Release);
        self.unlock(locks);
    }

    /// Fetches the block, unless a change has it.
    fn fetch(&self, looks: bool) {
        if self.is_own() || !self.locks.try_lock(&(0..2)) {
            return;
        }
        if !looks || !self.is_own() {
            self.write(0, BASE);
            self.write(1, BASE);
            self.own.store(true, Ordering::Release);
        }
        self.unlock(true);
    }

    fn unlock(&self, locks: bool) {
        if locks {
            self.locks.unlock(&(0..2)).into_iter().for_each(|half| self.change(half, true));
        }
    }

    fn content(&self) -> [usize; 2] {
        [0, 1].map(|half| self.halves[half].load(Ordering::Relaxed))
    }
}

/// Models two first changes, each of another half of the block.
fn two_first_changes(locks: bool) {
    let overlay = Arc::new(Overlay::default());
    let theirs = Arc::clone(&overlay);
    let other = loom::thread::spawn(move || theirs.change(1, locks));
    overlay.change(0, locks);
    other.join().unwrap();
    assert_eq!(overlay.content(), [0, 1], "a change is lost");
}

#[test]
fn loom_two_first_changes_of_a_block_keep_both() {
    loom::model(|| two_first_changes(true));
}

#[test]
fn loom_without_the_lock_the_copy_of_one_first_change_may_undo_the_other() {
    let name = "loom_without_the_lock_the_copy_of_one_first_change_may_undo_the_other";
    model::must_fail(name, || loom::model(|| two_first_changes(false)));
}

/// Models a fetch of the block while a half of it is changed.
fn a_fetch_meets_a_change(looks: bool) {
    let overlay = Arc::new(Overlay::default());
    let theirs = Arc::clone(&overlay);
    let fetch = loom::thread::spawn(move || theirs.fetch(looks));
    overlay.change(1, true);
    fetch.join().unwrap();
    assert_eq!(overlay.content(), [BASE, 1], "the change or the base is lost");
}

#[test]
fn loom_a_fetch_keeps_what_a_change_wrote() {
    loom::model(|| a_fetch_meets_a_change(true));
}

#[test]
fn loom_without_a_second_look_a_fetch_may_undo_a_change() {
    let name = "loom_without_a_second_look_a_fetch_may_undo_a_change";
    model::must_fail(name, || loom::model(|| a_fetch_meets_a_change(false)));
}
