//! The pair of asymmetric fences under every interleaving: of the frequent and the rare side at least one
//! sees the other, and without either fence neither may. `src/fence/README.md` names the steps.
#![cfg(loom)]

use std::sync::Arc;

use corewise_sync::atomic::{AtomicBool, Ordering};
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
