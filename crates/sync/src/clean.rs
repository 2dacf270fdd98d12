//! When a list of what others keep is cleaned.

/// Says when a list that only grows is cleaned of what is gone: whenever it is twice as long as it
/// was behind the last time. So an entry that comes walks the list once in a while and not each
/// time, and the list is never longer than twice what there was, and some.
///
/// ```
/// use std::sync::{Arc, Weak};
/// use corewise_sync::CleanAt;
///
/// let (mut known, mut clean_at) = (Vec::<Weak<u32>>::new(), CleanAt::new());
/// for n in 0..1000 {
///     let gone = Arc::new(n);
///     clean_at.before_one_more(&mut known, Vec::len, |known| known.retain(|n| n.strong_count() > 0));
///     known.push(Arc::downgrade(&gone));
/// }
/// assert!(known.len() <= 16);
/// ```
#[derive(Debug)]
pub struct CleanAt {
    len: usize,
}

/// Shorter lists aren't worth it.
const FEW: usize = 16;

impl CleanAt {
    /// For an empty list.
    pub const fn new() -> Self {
        Self { len: FEW }
    }

    /// Before one more entry comes: has `clean` take out what is gone, where that is due.
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
            // The last hundred are there.
            clean_at.before_one_more(&mut list, Vec::len, |list| list.retain(|&m| m + 100 > n));
            list.push(n);
            assert!(list.len() <= 201);
        }
    }
}
