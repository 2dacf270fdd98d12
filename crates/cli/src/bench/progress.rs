//! The progress bar: on a terminal, while runs go on.

use std::time::Duration;

use corewise_bench::rounds::Step;
use indicatif::{ProgressBar, ProgressStyle};

use crate::screen::Bars;

/// A bar of runs.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    bars: Bars,
    rounds: usize,
}

impl Progress {
    /// A bar that is seen only where stderr is a terminal.
    pub(crate) fn new(bars: &Bars, rounds: usize) -> Progress {
        let bar = ProgressBar::hidden();
        bar.set_length(0);
        let template = "{prefix:>12} [{bar:24}] {elapsed}, about {eta} to go  {wide_msg}";
        let style =
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("=> "));
        let bar = bars.show(bar);
        if bars.can_be_seen() {
            // Drawn twice a second: drawing costs the runs CPU time.
            bar.enable_steady_tick(Duration::from_millis(500));
        }
        Progress { bar, bars: bars.clone(), rounds }
    }

    /// A run begins.
    pub(crate) fn tell(&self, step: Step<'_>) {
        self.bar.set_length(step.all as u64);
        self.bar.set_position(step.done as u64);
        self.bar.set_prefix(match step.round {
            0 => "warm-up".to_string(),
            round if round > self.rounds => "allocations".to_string(),
            round => format!("round {round}/{}", self.rounds),
        });
        self.bar.set_message(format!("{} {}", step.case, step.variant));
    }

    /// Takes it off the screen, before something is printed.
    pub(crate) fn end(&self) {
        self.bars.end(&self.bar);
    }
}
