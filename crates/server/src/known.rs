//! The folder of `state`: how long devices took to go down in earlier runs.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use corewise::device::History;
use corewise::timeline::Timeline;

use crate::report::Report;

/// What is known, and where it is kept.
#[derive(Debug)]
pub(crate) struct Known {
    folder: Option<PathBuf>,
    history: Arc<History>,
    report: Report,
}

impl Known {
    /// What that folder has; nothing where there is none. A damaged file is warned about, and will be
    /// replaced.
    pub(crate) fn load(folder: Option<&Path>, report: Report) -> Known {
        let (history, damage) = folder.map(History::load).unwrap_or_default();
        if let Some(damage) = damage {
            report.warning(format_args!("{damage}"));
        }
        Known { folder: folder.map(Path::to_path_buf), history: Arc::new(history), report }
    }

    /// For a shutdown.
    pub(crate) fn history(&self) -> Arc<History> {
        Arc::clone(&self.history)
    }

    /// Keeps what a run did. A run that can't keep it has done its work all the same: that is warned about.
    pub(crate) fn keep(&self, timelines: &[&Timeline]) {
        let Some(folder) = &self.folder else { return };
        let mut history = History::clone(&self.history);
        for timeline in timelines {
            history.note(timeline);
        }
        if let Err(error) = history.save(folder) {
            self.report.warning(format_args!("{error}"));
        }
    }
}
