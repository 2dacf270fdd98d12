//! `error`: passes requests on to the device below and lets some fail, by rule. The kernel's are
//! `dm-flakey`, `dm-dust` and `fail_make_request`.

use std::ops::Range;
use std::sync::Arc;

use corewise_blockmq::{
    BlockDevice, Dispatch, Driver, Geometry, Info, IoError, Op, Request, Started,
};
use corewise_sync::CachePadded;
use corewise_sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::below::pass_on;

/// A rule that says which requests fail, and with what error. A new rule makes each one fail with
/// `EIO`; every setting leaves fewer.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    ops: Vec<Op>,
    range: Option<Range<u64>>,
    after: u64,
    every: u64,
    times: u64,
    rate: f64,
    errno: i32,
}

impl Default for Fault {
    fn default() -> Self {
        Self::new()
    }
}

impl Fault {
    /// Makes each request fail, with `EIO`.
    pub const fn new() -> Self {
        Self {
            ops: Vec::new(),
            range: None,
            after: 0,
            every: 1,
            times: u64::MAX,
            rate: 1.0,
            errno: libc::EIO,
        }
    }

    /// Limits the rule to these operations; none stands for all.
    #[must_use]
    pub fn on(mut self, ops: &[Op]) -> Self {
        self.ops = ops.to_vec();
        self
    }

    /// Limits the rule to requests that touch a byte of this range of the device. A flush touches
    /// none.
    #[must_use]
    pub fn range(mut self, range: Range<u64>) -> Self {
        self.range = Some(range);
        self
    }

    /// Lets the first `n` requests pass that would fail.
    #[must_use]
    pub const fn after(mut self, n: u64) -> Self {
        self.after = n;
        self
    }

    /// Limits the rule to each `n`th of those that would fail then; 0 is taken for 1.
    #[must_use]
    pub const fn every(mut self, n: u64) -> Self {
        self.every = if n == 0 { 1 } else { n };
        self
    }

    /// Limits the rule to this share of those, from 0 to 1, by the injector's seed.
    #[must_use]
    pub const fn rate(mut self, rate: f64) -> Self {
        self.rate = rate;
        self
    }

    /// Lets at most `n` requests fail; the device is well again then.
    #[must_use]
    pub const fn times(mut self, n: u64) -> Self {
        self.times = n;
        self
    }

    /// Sets the error: positive, as in `<errno.h>`.
    #[must_use]
    pub const fn errno(mut self, errno: i32) -> Self {
        self.errno = errno;
        self
    }

    /// Returns true if the rule applies to such a request.
    fn is_about(&self, op: Op, offset: u64, len: u64) -> bool {
        let hit =
            |r: &Range<u64>| len != 0 && offset < r.end && offset.saturating_add(len) > r.start;
        (self.ops.is_empty() || self.ops.contains(&op)) && self.range.as_ref().is_none_or(hit)
    }

    /// Returns true if request number `n`, from 0, of those that the rule applies to fails, `times`
    /// apart.
    fn takes(&self, n: u64, seed: u64) -> bool {
        n >= self.after
            && (n - self.after + 1).checked_rem(self.every) == Some(0)
            && happens(self.rate, seed, n)
    }
}

/// A device that fails on demand, over a good one. Requests that don't fail are passed on.
///
/// The same requests in the same order fail in each run with the same seed.
pub struct Faulty {
    below: Arc<dyn BlockDevice>,
    rules: Box<[Rule]>,
    seed: u64,
    /// A: true if the rules are in force; Relaxed, it orders nothing.
    armed: AtomicBool,
}

struct Rule {
    fault: Fault,
    /// A: requests that the rule was about; Relaxed, each of them needs its own number and no more.
    seen: CachePadded<AtomicU64>,
    /// A: requests that failed by it; Relaxed, as `seen`.
    failed: AtomicU64,
}

impl Rule {
    /// Counts the request; returns true if it is to fail.
    fn strikes(&self, rq: &Request, seed: u64) -> bool {
        if !self.fault.is_about(rq.op(), rq.offset(), rq.len()) {
            return false;
        }
        let n = self.seen.fetch_add(1, Ordering::Relaxed);
        // One step, so that no two requests both take the last of `times`.
        self.fault.takes(n, seed)
            && self
                .failed
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |failed| {
                    (failed < self.fault.times).then_some(failed + 1)
                })
                .is_ok()
    }
}

impl Faulty {
    /// Fails requests by `faults`. If several rules apply to a request, the first that fails it
    /// gives the error.
    pub fn new(below: Arc<dyn BlockDevice>, faults: Vec<Fault>, seed: u64) -> Self {
        let rule = |fault| Rule {
            fault,
            seen: CachePadded::new(AtomicU64::new(0)),
            failed: AtomicU64::new(0),
        };
        let rules = faults.into_iter().map(rule).collect();
        Self { below, rules, seed, armed: AtomicBool::new(true) }
    }

    /// Sets whether requests fail from now on; those that pass meanwhile aren't counted. At first
    /// they fail. Any thread.
    pub fn arm(&self, armed: bool) {
        self.armed.store(armed, Ordering::Relaxed);
    }

    /// Returns how many requests have failed by the rules.
    pub fn failed(&self) -> u64 {
        self.rules.iter().map(|rule| rule.failed.load(Ordering::Relaxed)).sum()
    }

    fn verdict(&self, rq: &Request) -> Option<IoError> {
        if !self.armed.load(Ordering::Relaxed) {
            return None;
        }
        let rule = self.rules.iter().find(|rule| rule.strikes(rq, self.seed))?;
        let kind = IoError::from_errno(rule.fault.errno).kind();
        let what = format!("injected into a {} of {} bytes at {}", rq.op(), rq.len(), rq.offset());
        Some(IoError::with(kind, what))
    }
}

impl Driver for Faulty {
    fn info(&self) -> Info {
        let over = Info::over("error", &*self.below);
        // A flush that has nothing to do below may yet have to fail here.
        let geometry = Geometry { can_flush: true, ..over.geometry };
        Info { geometry, knows_extents: true, ..over }
    }

    fn is_outdated(&self) -> bool {
        self.below.is_outdated()
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        match self.verdict(&rq) {
            Some(error) => rq.complete(Err(error)),
            None => {
                let offset = rq.offset();
                pass_on(&*self.below, rq, offset);
            }
        }
        Dispatch::Started
    }
}

// Pseudorandom numbers that are the same in each run with the same seed, in each order of calls.
// Pure.

/// Returns a pseudorandom number that depends on `seed` and `n` only: splitmix64, by Sebastiano
/// Vigna.
pub(super) fn number(seed: u64, n: u64) -> u64 {
    let mut x = seed.wrapping_add(n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Returns true for a share of `rate` of all `n`: never for 0 (or less, or NaN), always from 1 on.
pub(super) fn happens(rate: f64, seed: u64, n: u64) -> bool {
    // An f64 holds 53 bits exactly: a number in [0, 1).
    (number(seed, n) >> 11) as f64 / (1u64 << 53) as f64 <= rate && rate > 0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn struck(fault: &Fault, n: u64) -> Vec<u64> {
        (0..n).filter(|&n| fault.takes(n, 3)).collect()
    }

    #[test]
    fn after_every_and_rate_choose_among_those_that_a_rule_is_about() {
        assert_eq!(struck(&Fault::new(), 3), [0, 1, 2]);
        assert_eq!(struck(&Fault::new().after(2), 5), [2, 3, 4]);
        assert_eq!(struck(&Fault::new().every(3), 9), [2, 5, 8]);
        assert_eq!(struck(&Fault::new().after(1).every(2), 7), [2, 4, 6]);
        assert_eq!(struck(&Fault::new().every(0), 2), [0, 1]);
        let some = struck(&Fault::new().rate(0.5), 1000).len();
        assert!((400..600).contains(&some), "{some}");
    }

    #[test]
    fn a_rule_is_about_its_operations_and_about_requests_that_touch_its_range() {
        let fault = Fault::new().on(&[Op::Read]).range(1000..2000);
        let about = |op, offset, len| fault.is_about(op, offset, len);
        assert!(about(Op::Read, 512, 512) && about(Op::Read, 1536, 4096));
        assert!(!about(Op::Read, 0, 1000) && !about(Op::Read, 2000, 512));
        assert!(!about(Op::Write, 1024, 512));
        assert!(!Fault::new().range(0..u64::MAX).is_about(Op::Flush, 0, 0));
        assert!(Fault::new().is_about(Op::Flush, 0, 0));
        assert!(Fault::new().range(0..u64::MAX).is_about(Op::Read, u64::MAX - 511, 512));
    }
}

#[cfg(test)]
mod chance_tests {
    use super::*;

    #[test]
    fn the_share_is_the_rate_and_the_seed_decides_which() {
        let hits = |rate, seed| (0..10_000).filter(|&n| happens(rate, seed, n)).count();
        assert_eq!((hits(0.0, 1), hits(1.0, 1), hits(f64::NAN, 1)), (0, 10_000, 0));
        assert!((900..1100).contains(&hits(0.1, 1)), "{}", hits(0.1, 1));
        let which = |seed| (0..100).filter(|&n| happens(0.5, seed, n)).collect::<Vec<_>>();
        assert_eq!(which(7), which(7));
        assert_ne!(which(7), which(8));
    }
}
