//! The progress bar: on a terminal, while devices come up or go down.

use std::io::IsTerminal;
use std::time::Duration;

use corewise::device::Event;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar of devices.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A bar that is seen only where stderr is a terminal and `wanted` says so.
    pub(crate) fn new(what: &'static str, devices: usize, wanted: bool) -> Progress {
        let seen = wanted && std::io::stderr().is_terminal();
        let target = if seen { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(devices as u64), target);
        let style = ProgressStyle::with_template("{prefix:>10} [{bar:32}] {pos}/{len}  {wide_msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("=> "));
        bar.set_prefix(what);
        if seen {
            // A device that takes long shows that the program is alive.
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        Progress(bar)
    }

    /// What the device manager tells. From any thread.
    pub(crate) fn tell(&self, event: &Event<'_>) {
        match event {
            Event::Started { device } => self.0.set_message(device.to_string()),
            Event::Finished { done, .. } => self.0.set_position(*done as u64),
            _ => {}
        }
    }

    /// Takes it off the screen, before something is printed.
    pub(crate) fn end(&self) {
        self.0.finish_and_clear();
    }
}
