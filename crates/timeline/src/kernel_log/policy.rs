//! What a whole log says about how its kernel prints results and durations.

use super::facts::{Facts, Initcall};
use super::prefix::Stamp;
use std::time::Duration;

/// What has to be known of the whole log before one line of it can be judged.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rules {
    /// A probe that returned 1 bound its device, and one that returned 0 did not.
    pub one_is_bound: bool,
    /// The first init calls, up to this one, have durations in whole ticks, of this length.
    pub ticks: Option<(usize, Duration)>,
    /// The durations of init calls are nanoseconds shifted by ten, not microseconds.
    pub shifted: bool,
}

impl Rules {
    /// Looks at all of it.
    pub(crate) fn of(facts: &Facts) -> Rules {
        let with = |f: &dyn Fn(i64) -> bool| facts.probes.iter().filter(|p| f(p.result)).count();
        // Since 2021 a driver's own errors are printed as positive numbers, so EPERM is a 1 too.
        let (ones, others) = (with(&|r| r == 1), with(&|r| r > 1));
        let one_is_bound = ones > others && ones >= with(&|r| r == 0).div_ceil(4).max(1);
        let ticks = ticks(&facts.initcalls);
        let fine = &facts.initcalls[ticks.map_or(0, |(until, _)| until)..];
        Rules { one_is_bound, ticks, shifted: shifted(fine) }
    }
}

/// How many init calls come before the first one whose duration is not in whole ticks, and the
/// tick. A tick has 1, 3.33 (which is printed as 3333 or 6666), 4 or 10 ms.
fn ticks(initcalls: &[Initcall]) -> Option<(usize, Duration)> {
    const TICKS: [u128; 3] = [10_000, 4_000, 1_000];
    let micros = |c: &Initcall| c.took.time.as_micros();
    let fine = |c: &Initcall| {
        c.took.unit > Duration::from_micros(1) || micros(c) > 0 && !micros(c).is_multiple_of(1000)
    };
    let until = initcalls.iter().position(fine).unwrap_or(initcalls.len());
    let coarse: Vec<u128> = initcalls[..until].iter().map(micros).filter(|&us| us > 0).collect();
    let tick = TICKS.into_iter().find(|t| coarse.iter().all(|us| us.is_multiple_of(*t)))?;
    // One round number proves nothing.
    let last = initcalls[..until].iter().rposition(|c| micros(c) > 0)?;
    (until >= 3).then(|| (last + 1, Duration::from_micros(tick as u64)))
}

/// Whether a kernel prints `ns >> 10` and calls it microseconds, as older ones do: by the stamps,
/// its long init calls take 2.4 % longer than it says.
fn shifted(initcalls: &[Initcall]) -> bool {
    let exact = |s: Option<Stamp>| s.filter(|s| !s.coarse && !s.wall).map(|s| s.ns);
    let ratios = initcalls.iter().filter_map(|call| {
        let (begun, ended) = (exact(call.begun)?, exact(call.ended)?);
        let printed = call.took.time.as_secs_f64();
        let fits = call.took.unit == Duration::from_micros(1) && printed >= 0.01 && begun < ended;
        fits.then(|| (ended - begun) as f64 / 1e9 / printed)
    });
    // What printing took is in the stamps as well, so a few of them may lie above.
    let (mut long, mut by) = (0, 0);
    for ratio in ratios {
        long += 1;
        by += usize::from((1.0236..1.0250).contains(&ratio));
    }
    by >= 3 && by * 2 > long
}
