//! Fences that aren't there: for models that have to fail without them.

use crate::facade::fence::{AsymmetricPolicy, FencePolicy, heavy, light};

/// No fence at all: only for models that have to fail.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoFence;

impl FencePolicy for NoFence {
    fn full() {}
    fn implied() {}
}

/// Without the frequent side's fence: only for models that have to fail.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoLight;

impl AsymmetricPolicy for NoLight {
    fn light() {}

    fn heavy() {
        heavy();
    }
}

/// Without the rare side's fence: only for models that have to fail.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHeavy;

impl AsymmetricPolicy for NoHeavy {
    fn light() {
        light();
    }

    fn heavy() {}
}
