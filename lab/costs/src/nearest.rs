//! Answers from the nearest figure that a file has.

use crate::{Allocator, Contended, Costs, Distance, Target, Transfer, Wake};

impl Costs {
    /// Transfers over `distance`: of the file's farthest distance that isn't farther, else of its
    /// nearest one. `None` where it has none, as on a machine with one CPU.
    pub fn transfer(&self, distance: Distance) -> Option<&Transfer> {
        let nearer = self.distance.range(..=distance).next_back();
        nearer.or_else(|| self.distance.first_key_value()).map(|(_, transfer)| transfer)
    }

    /// Atomic additions by so many CPUs to one line: the file's nearest number of CPUs, the larger
    /// of two. `None` where it has none.
    pub fn contended(&self, cpus: u32) -> Option<&Contended> {
        self.contended.iter().min_by_key(|one| (one.cpus.abs_diff(cpus), u32::MAX - one.cpus))
    }

    /// The wake-up that comes nearest: of this target, of the nearest distance (as
    /// [`Costs::transfer`], and never between [`Distance::Same`] and another one), and of the
    /// nearest sleep by its ratio. `None` where there is none.
    pub fn wake(&self, distance: Distance, target: Target, slept_us: f64) -> Option<&Wake> {
        let fits = |one: &&Wake| {
            one.target == target && (one.distance == Distance::Same) == (distance == Distance::Same)
        };
        let there: Vec<&Wake> = self.wake.iter().filter(fits).collect();
        let nearer = there.iter().map(|one| one.distance).filter(|one| *one <= distance).max();
        let chosen = nearer.or_else(|| there.iter().map(|one| one.distance).min())?;
        let off = |one: &Wake| (one.slept_us.max(0.1) / slept_us.max(0.1)).ln().abs();
        there
            .into_iter()
            .filter(|one| one.distance == chosen)
            .min_by(|a, b| off(a).total_cmp(&off(b)))
    }

    /// The allocator for the smallest of the file's sizes that isn't smaller than `bytes`, else for
    /// its largest one. `None` where it has none.
    pub fn allocator(&self, bytes: u64) -> Option<&Allocator> {
        let fitting = self.allocator.iter().filter(|one| one.bytes >= bytes);
        fitting
            .min_by_key(|one| one.bytes)
            .or_else(|| self.allocator.iter().max_by_key(|one| one.bytes))
    }
}
