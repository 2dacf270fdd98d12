//! The folder of `state`: the shutdown times of devices in earlier runs.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use corewise::device::History;
use corewise::timeline::Timeline;

use crate::report::Report;

/// The file's name in its folder.
const FILE: &str = "device-history.json";

/// The longest history that is read, in bytes. A history of a hundred thousand devices has 8 MiB.
const LONGEST: u64 = 64 << 20;

/// The history and its folder.
#[derive(Debug)]
pub(crate) struct ShutdownHistory {
    folder: Option<PathBuf>,
    history: Arc<History>,
    report: Report,
}

impl ShutdownHistory {
    /// Reads the history of that folder, empty without one. A damaged file causes a warning, and
    /// will be replaced.
    pub(crate) fn load(folder: Option<&Path>, report: Report) -> ShutdownHistory {
        let (history, damage) = folder.map(load).unwrap_or_default();
        if let Some(damage) = damage {
            report.warning(format_args!("{damage}"));
        }
        ShutdownHistory {
            folder: folder.map(Path::to_path_buf),
            history: Arc::new(history),
            report,
        }
    }

    /// Returns the history for a shutdown.
    pub(crate) fn history(&self) -> Arc<History> {
        Arc::clone(&self.history)
    }

    /// Saves the times of a run. A failure is only a warning, since the run has done its work.
    pub(crate) fn keep(&self, timelines: &[&Timeline]) {
        let Some(folder) = &self.folder else { return };
        let mut history = History::clone(&self.history);
        for timeline in timelines {
            history.note(timeline);
        }
        if let Err(error) = save(&history, folder) {
            self.report.warning(format_args!("{error}"));
        }
    }
}

/// Reads the history of a folder, empty if there is none. Blocks on the file.
///
/// A file that can't be read or understood doesn't keep the server from starting. The history is
/// then empty, and the text names the problem. The next [`save`] replaces the file.
fn load(folder: &Path) -> (History, Option<String>) {
    let file = folder.join(FILE);
    let text = match read(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Default::default(),
        Err(error) => {
            let damage = format!(
                "cannot read {} ({error}); the run starts without a history",
                file.display()
            );
            return (History::new(), Some(damage));
        }
    };
    match serde_json::from_str(&text) {
        Ok(history) => (history, None),
        Err(error) => {
            let damage = format!(
                "{} is damaged ({error}); the run starts without a history, and replaces it",
                file.display()
            );
            (History::new(), Some(damage))
        }
    }
}

fn read(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(file)?.take(LONGEST + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LONGEST {
        return Err(io::Error::other("it has more than 64 MiB"));
    }
    Ok(text)
}

/// Writes a history into a folder, which is created if missing. The file is replaced as a whole: a
/// process that reads it sees the old one or the new one. After an error the old file is as it was.
/// Blocks on the disk.
fn save(history: &History, folder: &Path) -> io::Result<()> {
    write(history, folder).map_err(|error| {
        let said = format!("cannot save the device history in {}: {error}", folder.display());
        io::Error::new(error.kind(), said)
    })
}

fn write(history: &History, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let new = folder.join(format!("{FILE}.{}.new", std::process::id()));
    let text = serde_json::to_string(history).map_err(io::Error::other)?;
    let written = File::create(&new).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        file.sync_all()
    });
    let done = written.and_then(|()| fs::rename(&new, folder.join(FILE)));
    if done.is_err() {
        // The file may be missing.
        let _ = fs::remove_file(&new);
    }
    done
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]
mod tests {
    use super::*;
    use corewise::timeline::{Span, SpanKind};
    use std::time::Duration;

    fn run(kind: SpanKind, devices: &[(&str, u64)]) -> Timeline {
        let mut timeline = Timeline::new("test");
        for (name, ms) in devices {
            let end = Duration::from_millis(1 + ms);
            timeline.push(Span::new(*name, kind, Duration::from_millis(1), end));
        }
        timeline
    }

    #[test]
    fn a_saved_history_is_loaded_and_no_other_file_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("made/if/need be");
        let mut history = History::new();
        history.note(&run(SpanKind::Shutdown, &[("disk", 7), ("odd \"name\"\n", 8)]));
        save(&history, &state).unwrap();
        history.note(&run(SpanKind::Probe, &[("disk", 9)]));
        save(&history, &state).unwrap();
        assert_eq!(load(&state), (history, None));
        assert_eq!(fs::read_dir(&state).unwrap().count(), 1);
    }

    #[test]
    fn no_file_is_an_empty_history_and_a_damaged_one_says_so() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(load(folder.path()), (History::new(), None));
        for damaged in
            ["", "{\"devices\":{\"disk\":", "[]", "{\"devices\":{\"disk\":{\"shutdown_ns\":-1}}}"]
        {
            fs::write(folder.path().join(FILE), damaged).unwrap();
            let (history, damage) = load(folder.path());
            assert!(history.is_empty() && damage.unwrap().contains("damaged"), "{damaged}");
        }
        save(&History::new(), folder.path()).unwrap();
        assert_eq!(load(folder.path()).1, None, "it was replaced");
    }

    #[test]
    fn a_folder_that_can_t_be_made_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a file");
        fs::write(&file, "").unwrap();
        let error = save(&History::new(), &file).unwrap_err().to_string();
        assert!(error.contains("a file") && error.contains("cannot save"), "{error}");
    }
}
