//! Queries that answer from the nearest figure of the file.

use crate::{Costs, Distance, Target, Transfer, Wake};

impl Costs {
    /// Returns the transfers over `distance`: those of the file's farthest distance that isn't
    /// farther, else those of its nearest one. `None` if the file has no distance, as on a machine
    /// with one CPU.
    pub fn transfer(&self, distance: Distance) -> Option<&Transfer> {
        let nearer = self.distance.range(..=distance).next_back();
        nearer.or_else(|| self.distance.first_key_value()).map(|(_, transfer)| transfer)
    }

    /// Returns the nearest wake-up: of this target, of the nearest distance (as
    /// [`Costs::transfer`]), and of the nearest sleep by its ratio. [`Distance::Same`] never stands
    /// for another distance, nor another one for it. `None` if there is none.
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
}
