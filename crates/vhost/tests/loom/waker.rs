//! Model of the wake-ups of a ring's thread: work that comes while the thread looks for it, or is
//! about to sleep.

use std::sync::Arc;

use corewise_sync::Parker;
use corewise_sync::atomic::{AtomicUsize, Ordering};
use corewise_vhost::model::WakeState;
use loom::thread;

struct World {
    state: WakeState,
    /// A: pieces of work. Relaxed: the state word orders it.
    work: AtomicUsize,
}

#[test]
fn loom_a_thread_never_sleeps_over_work() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let world = Arc::new(World { state: WakeState::new(), work: AtomicUsize::new(0) });
        // In the place of the eventfd.
        let parker = Parker::new();
        let (theirs, event) = (Arc::clone(&world), parker.unparker());
        let waker = thread::spawn(move || {
            for _ in 0..2 {
                theirs.work.fetch_add(1, Ordering::Relaxed);
                if theirs.state.notify() {
                    event.unpark();
                }
            }
        });
        loop {
            world.state.begin();
            if world.work.load(Ordering::Relaxed) == 2 {
                break;
            }
            if world.state.may_sleep() {
                parker.park();
            }
        }
        waker.join().unwrap();
    });
}
