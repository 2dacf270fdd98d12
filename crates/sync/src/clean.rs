//! Schedule for removing dead entries from a list.

/// The schedule by which a growing list is cleaned of dead entries: whenever it is twice as long as
/// it was after the last cleaning. So an insertion walks the list only occasionally, and the list
/// is never much longer than twice its live entries.
///
/// ```
/// use std::sync::{Arc, Weak};
/// use corewise_sync::CleanAt;
///
/// let (mut known, mut clean_at) = (Vec::<Weak<u32>>::new(), CleanAt::new());
/// for n in 0..1000 {
///     let gone = Arc::new(n);
///     clean_at.before_one_more(&mut known, Vec::len, |known| {
///         known.retain(|n| n.strong_count() > 0)
///     });
///     known.push(Arc::downgrade(&gone));
/// }
/// assert!(known.len() <= 16);
/// ```
#[derive(Debug)]
pub struct CleanAt {
    len: usize,
}

/// Length below which cleaning isn't worth it.
const FEW: usize = 16;

impl CleanAt {
    /// Creates the schedule of an empty list.
    pub const fn new() -> Self {
        Self { len: FEW }
    }

    /// Prepares an insertion: calls `clean` to remove dead entries, if that is due.
    pub fn before_one_more<L>(
        &mut self,
        list: &mut L,
        len: impl Fn(&L) -> usize,
        clean: impl FnOnce(&mut L),
    ) {
        if len(list) >= self.len {
            clean(list);
            self.len = len(list).saturating_mul(2).max(FEW);
        }
    }
}

impl Default for CleanAt {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_only_grows_is_walked_a_constant_number_of_times_an_entry() {
        let (mut list, mut clean_at, mut walked) = (Vec::new(), CleanAt::new(), 0);
        for n in 0..100_000 {
            clean_at.before_one_more(&mut list, Vec::len, |list| walked += list.len());
            list.push(n);
        }
        assert!(walked <= 2 * list.len(), "{walked} looks");
    }

    #[test]
    fn dead_entries_are_removed_before_they_outnumber_the_living() {
        let (mut list, mut clean_at) = (Vec::new(), CleanAt::new());
        for n in 0..10_000u32 {
            // The last hundred are alive.
            clean_at.before_one_more(&mut list, Vec::len, |list| list.retain(|&m| m + 100 > n));
            list.push(n);
            assert!(list.len() <= 201);
        }
    }
}
