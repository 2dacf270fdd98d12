//! Store buffering on real threads: a frequent and a rare side, each of which publishes and then
//! checks, as fast as they can. It counts how often neither saw the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::thread;

use corewise_sync::CachePadded;

/// Words that the two sides publish: the number of their round.
#[derive(Default)]
struct Words {
    frequent: CachePadded<AtomicU32>,
    rare: CachePadded<AtomicU32>,
    ready: CachePadded<AtomicBool>,
    over: CachePadded<AtomicBool>,
}

/// Result of a run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Outcome {
    /// Rounds of the rare side while the frequent one was active.
    pub(crate) rounds: u64,
    /// Number of rounds in which it missed a frequent side that missed it, too.
    pub(crate) missed: u64,
}

/// Rounds of the frequent side. The rare side makes as many as it can meanwhile.
const FREQUENT: u32 = if cfg!(miri) { 200 } else { 1 << 17 };

/// The note of what one round of the frequent side saw, on a cache line of its own: memory that is
/// cold when the next round publishes. Stores become visible in order, so that one waits behind the
/// note in the store buffer, while the load after it doesn't.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Seen(u32);

#[inline(always)]
pub(crate) fn run(light: impl Fn() + Send + 'static, heavy: impl Fn()) -> Outcome {
    let words = Arc::new(Words::default());
    let frequent = {
        let words = Arc::clone(&words);
        thread::spawn(move || {
            let mut all = vec![Seen(0); FREQUENT as usize];
            // Touched, and then evicted from the nearest caches by its size.
            all.fill(Seen(1));
            words.ready.store(true, Relaxed);
            wait_for(|| words.rare.load(Relaxed) != 0);
            for (round, seen) in (1..).zip(&mut all) {
                words.frequent.store(round, Relaxed);
                light();
                *seen = Seen(words.rare.load(Relaxed));
            }
            words.over.store(true, Relaxed);
            all
        })
    };
    let mut looked = Vec::new();
    wait_for(|| words.ready.load(Relaxed));
    while !words.over.load(Relaxed) {
        // A pause now and then: then the frequent side has the line of `rare` in its cache, and its
        // load is done long before its store.
        (0..looked.len() % 16).for_each(|_| std::hint::spin_loop());
        words.rare.store(looked.len() as u32 + 1, Relaxed);
        heavy();
        looked.push(words.frequent.load(Relaxed));
    }
    let seen = frequent.join().expect("the frequent side does not panic");
    // In its round `r` the rare side saw the frequent one's round `looked`, so not the next. That
    // one has to have seen `r`, or a later one.
    let missed = (1..).zip(&looked).filter(|&(round, &looked)| {
        // The first of `seen` is that of round 1.
        seen.get(looked as usize).is_some_and(|seen| seen.0 < round)
    });
    let met = looked.iter().filter(|looked| (1..FREQUENT).contains(looked)).count();
    Outcome { rounds: met as u64, missed: missed.count() as u64 }
}

fn wait_for(condition: impl Fn() -> bool) {
    while !condition() {
        thread::yield_now();
    }
}

/// Runs until the rare side has made `rounds`, but at most 200 times (on one CPU the two hardly
/// ever meet). Fails at the first miss.
#[allow(dead_code, reason = "not every test needs both")]
pub(crate) fn nothing_is_missed(
    what: &str,
    rounds: u64,
    light: impl Fn() + Copy + Send + 'static,
    heavy: impl Fn(),
) {
    let mut done = 0;
    while done < rounds {
        let outcome = run(light, &heavy);
        assert_eq!(outcome.missed, 0, "{what}: {outcome:?} after {done} rounds");
        done += outcome.rounds.max(rounds / 200);
    }
}
