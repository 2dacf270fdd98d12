//! Models of the map of checkpoints: changes that mark their blocks, and the keeper that closes
//! groups. `src/checkpoint/README.md` names the steps.

use std::sync::Arc;

use corewise_drivers::model::ChangeMap;
use corewise_sync::atomic::{AtomicBool, Ordering};

/// A map of one group, which is open, and the bit of it on disk.
struct Shared {
    map: ChangeMap,
    /// A: true while the group is open on disk.
    open: AtomicBool,
}

/// Models a change, the keeper that closes the group, and a second change of the same block. Each
/// change that goes below is on disk: by the open group, or by the number in the page.
fn a_change_meets_the_keeper() {
    let map = ChangeMap::new(2 * 4096, 12);
    map.open(0);
    assert!(!map.close(0), "it was opened just now");
    let shared = Arc::new(Shared { map, open: AtomicBool::new(true) });
    let theirs = Arc::clone(&shared);
    let change = loom::thread::spawn(move || theirs.map.enter(0..1, 3, false));
    let mut page = Vec::new();
    if shared.map.close(0) {
        page = shared.map.page(0);
        shared.open.store(false, Ordering::Relaxed);
    }
    // A change that relies on the number of an earlier one.
    let again = !page.is_empty() && shared.map.enter(0..1, 3, false);
    let first = change.join().unwrap();
    let is_recorded = shared.open.load(Ordering::Relaxed) || page.first() == Some(&3);
    assert!(is_recorded || !(first || again), "a change that a crash would forget");
}

#[test]
fn loom_a_closed_group_has_the_numbers_of_all_changes() {
    loom::model(a_change_meets_the_keeper);
}
