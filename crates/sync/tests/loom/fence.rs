//! The pair of asymmetric fences under every interleaving: of the frequent and the rare side at
//! least one sees the other, and without either fence neither may. `src/facade/fence/README.md`
//! names the steps.

use std::sync::Arc;

use corewise_sync::atomic::{AtomicBool, Ordering, fence};
use corewise_sync::fence::fence_state::FenceState;
use corewise_sync::fence::{Asymmetric, AsymmetricPolicy, NoHeavy, NoLight};
use corewise_sync::model::must_fail;
use corewise_sync::thread;

fn one_sees_the_other<A: AsymmetricPolicy>() {
    loom::model(|| {
        let words = Arc::new((AtomicBool::new(false), AtomicBool::new(false)));
        let frequent = {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                words.0.store(true, Ordering::Relaxed); // Publish
                A::light();
                words.1.load(Ordering::Relaxed) // Check
            })
        };
        words.1.store(true, Ordering::Relaxed); // Announce
        A::heavy();
        let looked = words.0.load(Ordering::Relaxed); // Look
        assert!(frequent.join().unwrap() || looked, "neither saw the other");
    });
}

#[test]
fn loom_fence_one_side_sees_the_other() {
    one_sees_the_other::<Asymmetric>();
}

#[test]
fn loom_fence_without_the_light_one_neither_may_see_the_other() {
    let test = "loom_fence_without_the_light_one_neither_may_see_the_other";
    let said = must_fail(test, one_sees_the_other::<NoLight>);
    assert!(said.is_empty() || said.contains("neither saw the other"), "{said}");
}

#[test]
fn loom_fence_without_the_heavy_one_neither_may_see_the_other() {
    let test = "loom_fence_without_the_heavy_one_neither_may_see_the_other";
    let said = must_fail(test, one_sees_the_other::<NoHeavy>);
    assert!(said.is_empty() || said.contains("neither saw the other"), "{said}");
}

/// Runs a rare side that finds nothing decided, a frequent side, and a decider beside them. If the
/// rare side finds a barrier, it would call the kernel, which loom doesn't know.
fn the_first_way_is_decided(announce_first: bool) {
    loom::model(move || {
        let words = Arc::new((AtomicBool::new(false), AtomicBool::new(false), FenceState::new()));
        let frequent = {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                words.0.store(true, Ordering::Relaxed); // Publish
                // LightFence
                if !words.2.is_membarrier() {
                    fence(Ordering::SeqCst);
                }
                words.1.load(Ordering::Relaxed) // Check
            })
        };
        let registrar = {
            let words = Arc::clone(&words);
            thread::spawn(move || words.2.decide(true))
        };
        let announce = || {
            words.1.store(true, Ordering::Relaxed); // Announce
            fence(Ordering::SeqCst); // HeavyFence
        };
        let unknown = if announce_first {
            announce();
            words.2.is_still_unknown()
        } else {
            let unknown = words.2.is_still_unknown();
            announce();
            unknown
        };
        let looked = words.0.load(Ordering::Relaxed); // Look
        let checked = frequent.join().unwrap();
        registrar.join().unwrap();
        assert!(!unknown || checked || looked, "neither saw the other");
    });
}

#[test]
fn loom_fence_the_first_way_may_be_decided_beside_a_heavy_side() {
    the_first_way_is_decided(true);
}

#[test]
fn loom_fence_asking_for_the_way_before_announcing_may_be_missed() {
    let test = "loom_fence_asking_for_the_way_before_announcing_may_be_missed";
    let said = must_fail(test, || the_first_way_is_decided(false));
    assert!(said.is_empty() || said.contains("neither saw the other"), "{said}");
}
