//! Progress bars on stderr.

use indicatif::{MultiProgress, ProgressBar};

/// The progress bars on stderr, if any is there: code that writes lines meanwhile writes them
/// above.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bars(MultiProgress);

impl Bars {
    /// Shows a bar where stderr is a terminal; elsewhere it is never seen.
    pub(crate) fn show(&self, bar: ProgressBar) -> ProgressBar {
        self.0.add(bar)
    }

    /// Whether a bar can be seen.
    pub(crate) fn can_be_seen(&self) -> bool {
        !self.0.is_hidden()
    }

    /// Takes a bar off the screen, before something is printed.
    pub(crate) fn end(&self, bar: &ProgressBar) {
        bar.finish_and_clear();
        self.0.remove(bar);
    }

    /// Takes all of them off the screen while `write` writes to it.
    pub(crate) fn above<T>(&self, write: impl FnOnce() -> T) -> T {
        self.0.suspend(write)
    }
}
