//! Doors into forks: rings, records and lanes.

use std::ptr::NonNull;

use corewise_sync::fence::{Asymmetric, AsymmetricPolicy};

use crate::fork::ring::Ring;

/// The ring of a lane.
pub struct RingModel<T, P: AsymmetricPolicy = Asymmetric>(Ring<T, P>);

impl<T, P: AsymmetricPolicy> RingModel<T, P> {
    /// An empty one.
    #[expect(clippy::new_without_default, reason = "a model's door")]
    pub fn new() -> Self {
        RingModel(Ring::new())
    }

    /// Offers a fork: whether the ring was empty before. `None`: it is full.
    pub fn push(&self, fork: NonNull<T>) -> Option<bool> {
        (!self.0.is_full()).then(|| self.0.push(fork))
    }

    /// Takes the newest one back; false where a thief has it.
    pub fn pop(&self) -> bool {
        self.0.pop()
    }

    /// Steals the oldest one, if it is still there after a second look, and `takes` agrees.
    pub fn steal(&self, takes: impl FnOnce(NonNull<T>) -> bool) -> Option<NonNull<T>> {
        self.0.steal(self.0.oldest()?, takes)
    }
}
