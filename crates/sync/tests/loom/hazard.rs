//! Hazard pointers under every interleaving: an object that a thread uses while its keeper ends
//! isn't dropped before the thread has finished.

use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;

use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_sync::cell::UnsafeCell;
use corewise_sync::hazard::Hazards;
use corewise_sync::{model::must_fail, thread};

/// An object that is written when it is dropped, so that loom sees which thread accesses it at that
/// time or after.
struct Object(Arc<UnsafeCell<bool>>);

// SAFETY: loom looks after the cell.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

impl Object {
    #[allow(clippy::arc_with_non_send_sync, reason = "it is what the model shares")]
    fn new() -> Arc<Object> {
        Arc::new(Object(Arc::new(UnsafeCell::new(false))))
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: this is what the model is to show.
        self.0.with_mut(|gone| unsafe { *gone = true });
    }
}

/// Runs a thread that uses two objects in turn, against one that retires the first once its keeper
/// is over. No other ordering helps it.
fn used_in_turn(protected: bool) {
    let hazards = Arc::<Hazards>::default();
    let [first, second] = [(); 2].map(|()| Object::new());
    let over = Arc::new(AtomicUsize::new(0));
    // SAFETY: the copies aren't dropped, and protected where they are used.
    let copies = [&first, &second].map(|object| ManuallyDrop::new(unsafe { ptr::read(object) }));
    let user = {
        let (hazards, over) = (Arc::clone(&hazards), Arc::clone(&over));
        thread::spawn(move || {
            for object in copies {
                let cell = Arc::clone(&object.0);
                let uses = |_: &Arc<Object>| {
                    over.fetch_add(1, Ordering::Release);
                    // SAFETY: this is what the model is to show.
                    assert!(!cell.with(|gone| unsafe { *gone }), "the object is there");
                };
                if protected {
                    // SAFETY: it isn't kept.
                    unsafe { hazards.own() }.protect(&object, uses);
                } else {
                    uses(&object);
                }
            }
        })
    };
    if over.load(Ordering::Acquire) > 0 {
        hazards.retire(first);
    }
    user.join().expect("it ends");
    drop(second);
}

/// Models a thread that retires an object and may find the next protected object in the other's
/// slot: this has to show it that the first use is over.
#[test]
fn loom_hazard_the_next_protection_ends_the_use_before() {
    loom::model(|| used_in_turn(true));
}

#[test]
fn loom_hazard_an_unprotected_object_is_freed_under_its_user() {
    must_fail("loom_hazard_an_unprotected_object_is_freed_under_its_user", || used_in_turn(false));
}
