//! The progress bar on a terminal while devices come up or go down, and the devices that it waits
//! for.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use corewise::device::Event;
use corewise::sync::atomic::{AtomicU64, Ordering};
use indicatif::{ProgressBar, ProgressStyle};
use std::sync::Arc;

use crate::streams::Bars;

/// Time without progress after which the bar says which device it waits for.
const PATIENCE: Duration = Duration::from_millis(700);

/// A bar of devices.
#[derive(Clone, Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    bars: Bars,
    seen: bool,
    /// Counter of events.
    told: Arc<EventCount>,
}

#[derive(Debug, Default)]
struct EventCount {
    /// A: Relaxed; only its changes matter.
    events: AtomicU64,
}

/// A thread that shows the device that the bar waits for, as long as this value lives.
#[derive(Debug)]
pub(crate) struct Waiting {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Creates a bar. It is visible only if stderr is a terminal and `wanted` is true.
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

    /// Counts an event of the device manager. May be called on any thread.
    pub(crate) fn tell(&self, event: &Event<'_>) {
        self.told.events.fetch_add(1, Ordering::Relaxed);
        match event {
            Event::Started { device } => self.bar.set_message(device.to_string()),
            Event::Finished { done, .. } => self.bar.set_position(*done as u64),
            _ => {}
        }
    }

    /// Shows the name of the awaited device on a visible bar that doesn't move. A thread of its own
    /// calls the function now and then.
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
        // A bar that says less is no reason to fail.
        let thread = thread::Builder::new().name("progress".to_string()).spawn(look).ok();
        Waiting { stop: Some(stop), thread }
    }

    /// Removes the bar from the screen, before something is printed.
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
