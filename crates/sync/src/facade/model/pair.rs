//! The asymmetric fences as full fences: a model checker knows no other.

use crate::facade::atomic::{Ordering, fence};
use crate::facade::fence::Way;

pub(crate) fn light() {
    fence(Ordering::SeqCst);
}

pub(crate) fn heavy() {
    fence(Ordering::SeqCst);
}

pub(crate) fn prepare() -> Way {
    Way::FullFences
}

pub(crate) fn prepare_soon() {}

pub(crate) fn way() -> Option<Way> {
    Some(Way::FullFences)
}

pub(crate) fn refuse() {}

pub(crate) fn hold(_held: bool) {}
