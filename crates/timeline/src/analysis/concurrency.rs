//! Number of spans that ran at once, and for how long.

use crate::span::{Span, Timeline};
use std::collections::HashMap;
use std::time::Duration;

/// Number of spans of a timeline that ran at once, from its [origin](Timeline::origin) to its end.
///
/// Spans that one worker ran inside one another count once, and so do those that are
/// [nested](crate::span::Span::nested_in). A span of no length counts for nothing. A span that ends
/// as another starts does not overlap it. Spans of an unknown worker are taken to have had a worker
/// each.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub(crate) struct Concurrency {
    /// Moments from which the given number ran, in the order of time. The last entry is the end,
    /// with 0. Neighbours differ. Empty for an empty timeline.
    pub(crate) steps: Vec<(Duration, usize)>,
    /// Largest number that ran at one moment.
    pub(crate) most: usize,
    /// The first moment at which that many ran.
    pub(crate) most_at: Duration,
    /// Time for which each number of spans ran: entry 0 is the idle time. The sum is the makespan.
    pub(crate) time_at: Vec<Duration>,
    /// The mean over the makespan; 0 where that is zero.
    pub(crate) mean: f64,
}

impl Timeline {
    /// Computes the number of spans that ran at once.
    pub(crate) fn concurrency(&self) -> Concurrency {
        let mut moments: Vec<(Duration, bool, usize)> = Vec::new();
        let mut workers: HashMap<&str, usize> = HashMap::new();
        let mut lanes = 0;
        let stands = |s: &&Span| s.nested_in.is_none_or(|id| id.index() >= self.spans().len());
        for span in self.spans().iter().filter(|s| s.start < s.end).filter(stands) {
            let lane = if span.worker.is_empty() {
                lanes += 1;
                lanes - 1
            } else {
                *workers.entry(&span.worker).or_insert_with(|| {
                    lanes += 1;
                    lanes - 1
                })
            };
            moments.push((span.start, true, lane));
            moments.push((span.end, false, lane));
        }
        // At one moment ends (false) come before starts (true).
        moments.sort_unstable();

        let mut found = Concurrency::default();
        if self.spans().is_empty() {
            return found;
        }
        let mut depth = vec![0usize; lanes];
        let mut now = 0usize;
        found.steps.push((self.origin(), 0));
        for (moment, starts, lane) in moments {
            if starts {
                depth[lane] += 1;
                now += usize::from(depth[lane] == 1);
            } else {
                depth[lane] -= 1;
                now -= usize::from(depth[lane] == 0);
            }
            found.step(moment, now);
        }
        found.step(self.finish(), 0);
        found.sum_up();
        found
    }
}

impl Concurrency {
    /// Records that from `moment` on, which is no earlier than any before, `running` run.
    fn step(&mut self, moment: Duration, running: usize) {
        if self.steps.last().is_some_and(|&(at, _)| at == moment) {
            self.steps.pop();
        }
        if self.steps.last().is_none_or(|&(_, before)| before != running) {
            self.steps.push((moment, running));
        }
    }

    fn sum_up(&mut self) {
        let mut busy = 0.0;
        let mut all = Duration::ZERO;
        for pair in self.steps.windows(2) {
            let [(from, running), (to, _)] = [pair[0], pair[1]];
            let long = to.saturating_sub(from);
            if self.time_at.len() <= running {
                self.time_at.resize(running + 1, Duration::ZERO);
            }
            self.time_at[running] += long;
            if running > self.most {
                (self.most, self.most_at) = (running, from);
            }
            busy += long.as_nanos() as f64 * running as f64;
            all += long;
        }
        if !all.is_zero() {
            self.mean = busy / all.as_nanos() as f64;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::fixtures::{ms, timeline};
    use crate::span::{Span, SpanKind, Timeline};

    #[test]
    fn each_moment_is_counted_and_idle_time_is_time_too() {
        let spans = [("a", 0, 4), ("b", 2, 6), ("a", 8, 10)];
        let c = timeline(SpanKind::Probe, &spans, &[]).concurrency();
        assert_eq!((c.most, c.most_at), (2, ms(2)));
        assert_eq!(c.time_at, [ms(2), ms(6), ms(2)]);
        assert!((c.mean - 1.0).abs() < 1e-9);
        assert_eq!(Timeline::new("t").concurrency(), super::Concurrency::default());
    }

    #[test]
    fn spans_that_do_not_overlap_and_nested_ones_of_one_worker_count_once() {
        type Spans<'a> = &'a [(&'a str, u64, u64)];
        let cases: [(Spans<'_>, &[(u64, usize)]); 5] = [
            (
                &[("a", 0, 4), ("b", 2, 6), ("a", 8, 10)],
                &[(0, 1), (2, 2), (4, 1), (6, 0), (8, 1), (10, 0)],
            ),
            (&[("", 0, 5), ("", 5, 9)], &[(0, 1), (9, 0)]),
            (&[("", 0, 5), ("", 5, 9), ("", 2, 6), ("", 3, 3)], &[(0, 1), (2, 2), (6, 1), (9, 0)]),
            (&[("w0", 0, 9), ("w0", 2, 5), ("w1", 4, 6)], &[(0, 1), (4, 2), (6, 1), (9, 0)]),
            (&[("", 3, 3)], &[(3, 0)]),
        ];
        for (spans, steps) in cases {
            let c = timeline(SpanKind::Probe, spans, &[]).concurrency();
            let steps: Vec<_> = steps.iter().map(|&(at, n)| (ms(at), n)).collect();
            assert_eq!(c.steps, steps, "{spans:?}");
        }
    }

    #[test]
    fn a_declared_nested_span_counts_with_its_outer_span() {
        let mut t = timeline(SpanKind::Probe, &[("", 0, 9)], &[]);
        let mut inner = Span::new("inner", SpanKind::Probe, ms(1), ms(3));
        inner.nested_in = t.find("s0");
        t.push(inner);
        assert_eq!(t.concurrency().most, 1);
    }

    #[test]
    fn waiting_before_the_first_start_is_idle_time() {
        let mut t = Timeline::new("t");
        let mut span = Span::new("a", SpanKind::Probe, ms(5), ms(8));
        span.queued = ms(1);
        t.push(span);
        assert_eq!(t.concurrency().time_at, [ms(4), ms(3)]);
    }
}
