//! What would be wrong, and has to fail.

use corewise_sync::atomic::Ordering;

use crate::reply::right_state::{FREE, sealed::Sealed};
use crate::reply::{FlushRight, ReleasePolicy};

/// Lets go without looking.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReleaseBlindly;

impl Sealed for ReleaseBlindly {}

impl ReleasePolicy for ReleaseBlindly {
    fn release(right: &FlushRight) -> bool {
        right.word.swap(FREE, Ordering::Release);
        true
    }
}
