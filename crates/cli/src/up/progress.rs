//! The progress bar: on a terminal, while devices come up or go down; and on whom that waits.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use corewise::device::Event;
use corewise::sync::atomic::{AtomicU64, Ordering};
use indicatif::{ProgressBar, ProgressStyle};
use std::sync::Arc;

use crate::streams::Bars;

/// A user that looks at a bar that doesn't move wants to know why after that.
const PATIENCE: Duration = Duration::from_millis(700);

/// A bar of devices.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    bars: Bars,
    seen: bool,
    /// Counts what was told.
    told: Arc<EventCount>,
}

#[derive(Debug, Default)]
struct EventCount {
    /// A: Relaxed; only that it changes matters.
    events: AtomicU64,
}

/// Says on the bar who is waited for, while it lives.
#[derive(Debug)]
pub(crate) struct Waiting {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// A bar that is seen only where stderr is a terminal and `wanted` says so.
    pub(crate) fn new(bars: &Bars, what: &'static str, devices: usize, wanted: bool) -> Progress {
        let seen = wanted && bars.can_be_seen();
        let bar = ProgressBar::hidden();
        bar.set_length(devices as u64);
        let style = ProgressStyle::with_template("{prefix:>10} [{bar:32}] {pos}/{len}  {wide_msg}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("=> "));
        bar.set_prefix(what);
        let bar = if seen { bars.show(bar) } else { bar };
        if seen {
            // A device that takes long shows that the program is alive.
            bar.enable_steady_tick(Duration::from_millis(100));
        }
        Progress { bar, bars: bars.clone(), seen, told: Arc::default() }
    }

    /// What the device manager tells. From any thread.
    pub(crate) fn tell(&self, event: &Event<'_>) {
        self.told.events.fetch_add(1, Ordering::Relaxed);
        match event {
            Event::Started { device } => self.bar.set_message(device.to_string()),
            Event::Finished { done, .. } => self.bar.set_position(*done as u64),
            _ => {}
        }
    }

    /// Where the bar is seen and doesn't move, it says who is waited for: what `who` returns. That
    /// is asked from a thread of its own, now and then.
    pub(crate) fn waiting(&self, who: impl Fn() -> Option<String> + Send + 'static) -> Waiting {
        if !self.seen {
            return Waiting { stop: None, thread: None };
        }
        let (stop, stopped) = channel::<()>();
        let progress = self.clone();
        let look = move || {
            let mut before = 0;
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(PATIENCE) {
                let now = progress.told.events.load(Ordering::Relaxed);
                if now == before {
                    if let Some(who) = who() {
                        progress.bar.set_message(who);
                    }
                }
                before = now;
            }
        };
        // A bar that says less is no reason not to go on.
        let thread = thread::Builder::new().name("progress".to_string()).spawn(look).ok();
        Waiting { stop: Some(stop), thread }
    }

    /// Takes it off the screen, before something is printed.
    pub(crate) fn end(&self) {
        self.bars.end(&self.bar);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
