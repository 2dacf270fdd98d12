//! Policy: how tags are spread over words, and how many of a shared set one user may have. Pure.

use std::time::Duration;

/// Log2 of the most tags of one word; the bits above are marks.
pub(super) const MOST_SHIFT: u32 = 5;
/// Log2 of the tags that a word has at least, where there are as many: a word costs a cache line.
const LEAST_SHIFT: u32 = 2;
/// Most words that are made for the sake of the CPUs: who finds no tag has looked at all of them.
const MOST_WORDS: u32 = 64;
/// Waiters who are served before any of them is woken: the kernel's `SBQ_WAKE_BATCH`.
pub(super) const WAKE_BATCH: usize = 8;
/// What each user of a shared set may have at least, however many users there are: the kernel's number.
const LEAST_SHARE: u32 = 4;
/// How often, at most, it is looked for users that have become idle.
pub(super) const SWEEP_PAUSE: Duration = Duration::from_millis(20);

/// Log2 of the tags of each word: as large as it may be for each CPU to have a word of its own.
pub(super) fn shift(depth: u32, cpus: usize) -> u32 {
    let wanted = u32::try_from(cpus).unwrap_or(MOST_WORDS).clamp(1, MOST_WORDS);
    (LEAST_SHIFT..MOST_SHIFT).rev().fold(MOST_SHIFT, |shift, less| {
        if depth.div_ceil(1 << shift) < wanted { less } else { shift }
    })
}

/// The word in which CPU `cpu` of `cpus` looks first.
pub(super) fn home(cpu: usize, cpus: usize, words: usize) -> usize {
    cpu % cpus.max(1) * words / cpus.max(1)
}

/// How many tags of a set of `depth` one of `users` active users may have (`hctx_may_queue`). At least four, so
/// that with very many users the shares are more than there is, and a user that finds nothing waits in line.
pub(super) fn share(depth: u32, users: u32) -> u32 {
    match users {
        0 | 1 => depth,
        _ => depth.div_ceil(users).max(LEAST_SHARE).min(depth),
    }
}

/// Whether a user has been idle from one sweep to the next: it has no tag, waits for none, and took
/// none meanwhile.
pub(super) fn is_idle(in_use: u32, waits: bool, taken_then: u64, taken_now: u64) -> bool {
    in_use == 0 && !waits && taken_then == taken_now
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cpu_has_a_word_of_its_own_where_there_are_tags_enough() {
        let words = |depth: u32, cpus| depth.div_ceil(1 << shift(depth, cpus));
        assert_eq!(words(128, 1), 4, "no more words than needed for one CPU");
        assert_eq!(words(1, 64), 1);
        assert_eq!(words(128, 16), 16);
        assert_eq!(words(128, 64), 32, "four tags to a word at least");
        assert_eq!(words(1024, 4), 32);
        assert_eq!(words(1024, 512), 64, "more CPUs share words");
        for cpus in [1, 2, 3, 64, 500] {
            for words in [1, 2, 7, 64] {
                let homes: Vec<_> = (0..cpus).map(|cpu| home(cpu, cpus, words)).collect();
                assert!(homes.is_sorted() && homes.iter().all(|&home| home < words));
                let most = |w| homes.iter().filter(|&&home| home == w).count();
                assert!((0..words).map(most).max() <= Some(cpus.div_ceil(words)));
            }
        }
        assert_eq!(home(7, 4, 4), 3, "a CPU that isn't known borrows a home");
    }

    #[test]
    fn shares_are_equal_and_never_less_than_four_nor_more_than_there_are() {
        assert_eq!([0, 1, 2, 3, 4].map(|users| share(64, users)), [64, 64, 32, 22, 16]);
        assert_eq!(share(64, 1000), 4);
        assert_eq!(share(3, 2), 3);
        assert_eq!(share(1, 1000), 1);
    }

    #[test]
    fn a_user_is_idle_only_if_it_took_nothing_between_two_looks() {
        assert!(is_idle(0, false, 7, 7));
        assert!(!is_idle(1, false, 7, 7), "something is in flight for very long");
        assert!(!is_idle(0, false, 7, 8), "one at a time, always done when somebody looks");
        assert!(!is_idle(0, true, 7, 7), "others have all tags");
    }
}
