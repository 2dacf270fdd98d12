//! The number of a CPU, as a type of its own.

use std::fmt;

/// A CPU, by the kernel's number of it.
///
/// A type of its own, so that the compiler tells a CPU from a pod, a node, a cache or a hardware queue, all of
/// which have numbers too. [`Display`](fmt::Display) writes the plain number. There are no conversions from and to
/// numbers but these, and it is as small and as fast as a `u32`.
///
/// It may be a CPU that a machine doesn't have: [`Topology::cpu`](crate::Topology::cpu) tells.
///
/// ```
/// use corewise_topology::{CpuId, CpuSet};
///
/// let cpus = CpuSet::full(4);
/// assert!(cpus.contains(CpuId::new(3)));
/// assert_eq!(cpus.last(), Some(CpuId::new(3)));
/// assert_eq!(format!("cpu{}", CpuId::new(3)), "cpu3");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuId(u32);

impl CpuId {
    /// The CPU of this number.
    #[inline]
    #[must_use]
    pub const fn new(number: u32) -> CpuId {
        CpuId(number)
    }

    /// The kernel's number of this CPU.
    #[inline]
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The same number, as an index into a table by CPU.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The plain number, with the width and the fill that the format asks for.
impl fmt::Display for CpuId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
