//! The ways to fork that are Rust, one file each.

pub(crate) mod chili;
pub(crate) mod ours;
pub(crate) mod rayon;

use crate::fork::work::{Forks, Output, Serial};

/// A library under test, with its threads.
pub(crate) trait Library {
    /// The way in which its parts fork.
    type Forks: Forks;

    /// Calls a part where forks are cheapest, and waits for it.
    fn run(
        &self,
        part: impl FnOnce(&mut <Self::Forks as Forks>::Handle<'_>) -> Output + Send + 'static,
    ) -> Output;
}

impl Library for Serial {
    type Forks = Serial;

    fn run(&self, part: impl FnOnce(&mut ()) -> Output + Send + 'static) -> Output {
        part(&mut ())
    }
}
