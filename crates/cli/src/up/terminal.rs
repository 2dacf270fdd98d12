//! The terminal of `corewise up`: text for people or one JSON object per line for programs, and the
//! progress bar.
//!
//! A server doesn't stop if it has no reader: lines that can't be written are dropped.

use std::fmt;
use std::sync::Arc;

use corewise::device::Event;
use corewise::sync::Mutex;
use corewise::timeline::Timeline;
use corewise_server::{Blocker, Handle, Notice, Observer, Phase, Severity, units};

use super::progress::{Progress, Waiting};
use super::stop::Stop;
use super::text;
use crate::args::timeline::TimelineFile;
use crate::screen;
use crate::streams::Bars;
use crate::timeline;
use crate::{escape, log, streams};

/// Prints the notices of a server.
#[derive(Debug)]
pub(super) struct Terminal {
    pub(super) json: bool,
    /// True if text for people has no reader: stdout is that of a client that started the server.
    pub(super) quiet: bool,
    /// Name of the manifest in messages.
    pub(super) label: String,
    pub(super) timeline: Option<TimelineFile>,
    pub(super) stop: Arc<Stop>,
    pub(super) bars: Bars,
    /// L: is the lock, held for a moment; guards the bar of the phase that is in progress.
    pub(super) progress: Mutex<Option<(Progress, Waiting)>>,
}

impl Observer for Terminal {
    fn message(&self, severity: Severity, message: fmt::Arguments<'_>) {
        self.bars.above(|| match severity {
            Severity::Error => screen::error(message),
            Severity::Warning => screen::warning(message),
            Severity::Note => screen::note(message),
        });
    }

    fn notice(&self, notice: &Notice<'_>) {
        if self.json || self.quiet {
            return;
        }
        let text = text::of(notice);
        if !text.is_empty() {
            let lost = |lines| format!("({} left out)\n", units::count(lines, "line"));
            streams::to_stdout(&text, lost);
        }
    }

    fn wants_events(&self) -> bool {
        self.json
    }

    fn event(&self, line: &str) {
        let lost = |events| format!("{{\"event\":\"lost\",\"events\":{events}}}\n");
        streams::to_stdout(&escape::json(line), lost);
    }

    fn phase_begins(&self, phase: Phase, devices: usize, blocker: Blocker) {
        let what = match phase {
            Phase::BringUp => "Bring-up",
            Phase::Shutdown => "Shutdown",
        };
        let progress = Progress::new(&self.bars, what, devices, !self.json);
        let waiting = progress.waiting(blocker);
        *self.progress.lock() = Some((progress, waiting));
    }

    fn device(&self, event: &Event<'_>) {
        if let Some((progress, _)) = &*self.progress.lock() {
            progress.tell(event);
        }
    }

    fn phase_ends(&self) {
        let phase = self.progress.lock().take();
        if let Some((progress, waiting)) = phase {
            drop(waiting);
            progress.end();
        }
    }

    fn begins(&self, server: &Handle) {
        self.stop.manages(server);
        let server = server.clone();
        log::also(move |line| server.logged(line));
    }

    fn interruption(&self) -> Option<&'static str> {
        self.stop.came()
    }

    fn keep_timelines(&self, timelines: &[&Timeline]) -> bool {
        let Some(file) = &self.timeline else { return true };
        let title = format!("corewise up {}", self.label);
        let about = timeline::PageInfo { title: &title, facts: &[] };
        let kept = timeline::write(file, about, timelines);
        kept.inspect_err(|failure| failure.say()).is_ok()
    }

    fn unread(&self) -> Vec<(&'static str, u64)> {
        streams::unread()
    }
}
