//! Which clock the kernel chose for the durations that it prints, and at which lines.

use super::prefix::Stamp;

/// Lines that name the clock, each as a number among those that were understood.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClockSource {
    /// The first line from which on the clock ticks no more.
    pub switched: Option<u64>,
    /// The lines between which it ticked, as the kernel said. None: up to the last one. A kernel
    /// goes back to such a clock where the better one is wrong.
    pub ticks_again: Option<(u64, Option<u64>)>,
    /// The lines at which it ceased to tick, the first time and the last, with their stamps.
    pub ceased: [Option<(u64, Option<Stamp>)>; 2],
}

impl ClockSource {
    /// The kernel chooses a clock at this line, which ticks or doesn't.
    pub(crate) fn choose(&mut self, ticks: bool, line: u64, stamp: Option<Stamp>) {
        match (&mut self.ticks_again, ticks) {
            (None, true) => self.ticks_again = Some((line, None)),
            (Some((_, end)), true) => *end = None,
            (Some((_, end)), false) if end.is_none() => {
                *end = Some(line);
                self.ceased[1] = Some((line, stamp));
            }
            (Some(_), false) => {}
            (None, false) => {}
        }
        if !ticks && self.switched.is_none() {
            self.switched = Some(line);
            self.ceased[0] = Some((line, stamp));
        }
    }
}
