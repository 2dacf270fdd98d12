//! Asymmetric fences are decided once in a process, in the background when a type that uses them is
//! created. One process, one test.
#![cfg(not(any(loom, shuttle)))]

use std::thread;

use corewise_sync::epoch::Epochs;
use corewise_sync::fence::{kind, light, prepare};

#[test]
fn the_first_epochs_have_the_process_registered_and_nobody_waits_for_it() {
    light();
    assert_eq!(kind(), None, "the light side asks nobody");
    let epochs = Epochs::new();
    drop(epochs.enter());
    while kind().is_none() {
        thread::yield_now();
    }
    assert_eq!(kind(), Some(prepare()));
}
