//! How long shutdowns took in earlier runs, kept in a small file.

use corewise_timeline::{Outcome, SpanKind, Timeline};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

/// The file's name in its folder.
const FILE: &str = "device-history.json";

/// The longest history that is read, in bytes. One of a hundred thousand devices has 8 MiB.
const LONGEST: u64 = 64 << 20;

/// A device that was not seen in so many runs is forgotten.
const FORGET_AFTER: u32 = 20;

/// How long the shutdown of each device took in earlier runs: so that those which take long start
/// first.
///
/// For each it keeps a *decaying maximum*: a longer time counts at once, a shorter one takes a
/// quarter of the difference away. A device that is started too early costs nothing, one that is started
/// too late costs the whole of its length; so a device that was slow now and then is taken as slow,
/// and one that has become quick is after some runs. A median would put those last that are slow
/// every third time.
///
/// Plain data: nothing here blocks, but [`load`](History::load) and [`save`](History::save).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    devices: HashMap<String, Known>,
}

/// What is known of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shutdown_ns: Option<u64>,
    /// Runs since it was last seen.
    #[serde(default)]
    unseen: u32,
}

impl History {
    /// Knows nothing.
    pub fn new() -> History {
        History::default()
    }

    /// Reads the history of a folder; an empty one where there is none. Blocks on the file.
    ///
    /// A file that can't be read or understood is no reason not to start: the history is empty then,
    /// and the text says what is wrong. The next [`save`](History::save) replaces the file.
    pub fn load(folder: &Path) -> (History, Option<String>) {
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

    /// Writes it into the folder, which is made if there is none. The file is replaced at once: a process that
    /// reads it sees the old one or the new one. Blocks on the disk.
    ///
    /// # Errors
    ///
    /// What the system says; the old file is as it was.
    pub fn save(&self, folder: &Path) -> io::Result<()> {
        let said = |error: io::Error| {
            let said = format!("cannot save the device history in {}: {error}", folder.display());
            io::Error::new(error.kind(), said)
        };
        self.write(folder).map_err(said)
    }

    fn write(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        let new = folder.join(format!("{FILE}.{}.new", std::process::id()));
        let text = serde_json::to_string(self).map_err(io::Error::other)?;
        let written = File::create(&new).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        });
        let done = written.and_then(|()| fs::rename(&new, folder.join(FILE)));
        if done.is_err() {
            // It may not be there.
            let _ = fs::remove_file(&new);
        }
        done
    }

    /// Takes in what a bring-up or a shutdown did: the spans that ended well. Devices that were not
    /// seen in twenty of either are forgotten.
    pub fn note(&mut self, timeline: &Timeline) {
        for known in self.devices.values_mut() {
            known.unseen = known.unseen.saturating_add(1);
        }
        for span in timeline.spans() {
            if span.no_callback || span.outcome != Outcome::Ok {
                continue;
            }
            let known = match self.devices.get_mut(&span.name) {
                Some(known) => known,
                None => self.devices.entry(span.name.clone()).or_default(),
            };
            known.unseen = 0;
            let took = span.took().known().filter(|_| span.kind == SpanKind::Shutdown);
            let Some(took) = took else { continue };
            let kept = &mut known.shutdown_ns;
            let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
            *kept = Some(kept.map_or(took, |before| decayed_maximum(before, took)));
        }
        self.devices.retain(|_, known| known.unseen <= FORGET_AFTER);
    }

    /// How long the shutdown of that device is expected to take.
    pub(crate) fn expected_shutdown(&self, device: &str) -> Option<Duration> {
        self.devices.get(device)?.shutdown_ns.map(Duration::from_nanos)
    }

    /// Number of devices of which something is known.
    pub fn len(&self) -> usize {
        self.devices.len()
    }

    /// True where nothing is known.
    pub fn is_empty(&self) -> bool {
        self.devices.is_empty()
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

/// See [`History`].
fn decayed_maximum(before: u64, took: u64) -> u64 {
    took.max(before - before.saturating_sub(took) / 4)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]
mod tests {
    use super::*;
    use corewise_timeline::Span;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn run(kind: SpanKind, devices: &[(&str, u64)]) -> Timeline {
        let mut timeline = Timeline::new("test");
        for (name, ms) in devices {
            timeline.push(Span::new(*name, kind, MS(1), MS(1 + ms)));
        }
        timeline
    }

    #[test]
    fn a_longer_time_counts_at_once_and_a_shorter_one_a_quarter() {
        let mut history = History::new();
        for (took, expected) in [(100, 100), (400, 400), (0, 300), (0, 225), (230, 230)] {
            history.note(&run(SpanKind::Shutdown, &[("disk", took)]));
            assert_eq!(history.expected_shutdown("disk"), Some(MS(expected)));
        }
    }

    #[test]
    fn failed_and_empty_shutdowns_are_not_recorded() {
        let mut timeline = run(SpanKind::Shutdown, &[]);
        let mut failed = Span::new("failed", SpanKind::Shutdown, MS(0), MS(9));
        failed.outcome = Outcome::Failed("on purpose".into());
        let mut quiet = Span::new("quiet", SpanKind::Shutdown, MS(0), MS(0));
        quiet.no_callback = true;
        timeline.push(failed);
        timeline.push(quiet);
        let mut history = History::new();
        history.note(&timeline);
        assert!(history.is_empty());
    }

    #[test]
    fn a_device_that_is_not_seen_for_long_is_forgotten() {
        let mut history = History::new();
        history.note(&run(SpanKind::Probe, &[("gone", 3), ("there", 3)]));
        for _ in 0..FORGET_AFTER {
            history.note(&run(SpanKind::Probe, &[("there", 3)]));
        }
        assert_eq!(history.len(), 2);
        history.note(&run(SpanKind::Probe, &[("there", 3)]));
        assert_eq!(history.len(), 1);
    }

    #[test]
    fn a_saved_history_is_loaded_and_no_other_file_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("made/if/need be");
        let mut history = History::new();
        history.note(&run(SpanKind::Shutdown, &[("disk", 7), ("odd \"name\"\n", 8)]));
        history.save(&state).unwrap();
        history.note(&run(SpanKind::Probe, &[("disk", 9)]));
        history.save(&state).unwrap();
        assert_eq!(History::load(&state), (history, None));
        assert_eq!(fs::read_dir(&state).unwrap().count(), 1);
    }

    #[test]
    fn no_file_is_an_empty_history_and_a_damaged_one_says_so() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(History::load(folder.path()), (History::new(), None));
        for damaged in
            ["", "{\"devices\":{\"disk\":", "[]", "{\"devices\":{\"disk\":{\"shutdown_ns\":-1}}}"]
        {
            fs::write(folder.path().join(FILE), damaged).unwrap();
            let (history, damage) = History::load(folder.path());
            assert!(history.is_empty() && damage.unwrap().contains("damaged"), "{damaged}");
        }
        History::new().save(folder.path()).unwrap();
        assert_eq!(History::load(folder.path()).1, None, "it was replaced");
    }

    #[test]
    fn a_folder_that_can_t_be_made_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a file");
        fs::write(&file, "").unwrap();
        let error = History::new().save(&file).unwrap_err().to_string();
        assert!(error.contains("a file") && error.contains("cannot save"), "{error}");
    }
}
