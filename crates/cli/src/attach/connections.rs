//! The connections of an attached device, for `attach --list`. The kernel reports each one that
//! dies and shows none of them, so the process that replaces them keeps a record.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use corewise_server::units;
use serde::{Deserialize, Serialize};

use super::devices::FOLDER;
use crate::whole_file;

/// The state of a device's connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ConnectionState {
    /// Process that replaces them.
    process: u32,
    /// Number of connections.
    count: u16,
    /// Number of connections that count as lost.
    lost: u16,
    /// Time of the first loss, in seconds since 1970.
    since: Option<u64>,
    /// The reason why the last attempt to replace one failed.
    error: Option<String>,
}

impl ConnectionState {
    /// Returns the state after this one, kept by this process.
    pub(super) fn next(
        &self,
        count: u16,
        lost: u16,
        error: Option<&str>,
        now: SystemTime,
    ) -> ConnectionState {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let since = (lost > 0).then(|| self.since.unwrap_or(now));
        let error = error.filter(|_| lost > 0).map(str::to_string);
        ConnectionState { process: std::process::id(), count, lost, since, error }
    }

    /// Writes the record for the device of this number.
    pub(super) fn write(&self, index: u32) -> Result<(), String> {
        let text = serde_json::to_string(self).map_err(|error| error.to_string())?;
        whole_file::write(&place(Path::new(FOLDER), index), &text)
    }

    /// Returns the record for the device of this number, unless a former process left it. `owner`
    /// is the process that replaces the device's connections.
    pub(super) fn of(index: u32, owner: u32) -> Option<ConnectionState> {
        ConnectionState::read(Path::new(FOLDER), index, owner)
    }

    fn read(folder: &Path, index: u32, owner: u32) -> Option<ConnectionState> {
        let text = std::fs::read(place(folder, index)).ok()?;
        let state: ConnectionState = serde_json::from_slice(&text).ok()?;
        (state.process == owner).then_some(state)
    }

    /// Returns the losses in words, if there are any.
    pub(super) fn losses(&self) -> Option<String> {
        let ConnectionState { process, count, lost, since, error } = self;
        let since = units::moment(since.as_ref().copied()? as f64);
        let connections = units::count((*count).into(), "connection");
        let error = error.as_ref().map_or_else(String::new, |error| format!(": {error}"));
        Some(format!(
            "{lost} of {connections} lost at {since}, process {process} reconnects{error}"
        ))
    }
}

fn place(folder: &Path, index: u32) -> PathBuf {
    folder.join(format!("nbd{index}.connections"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn losses_have_the_time_of_the_first_one_and_the_last_error_until_all_are_replaced() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let begin = ConnectionState::default().next(4, 0, None, at(5));
        assert_eq!(begin.losses(), None);
        let lost = begin.next(4, 1, None, at(60)).next(4, 2, Some("refused"), at(70));
        let process = std::process::id();
        let words = format!(
            "2 of 4 connections lost at 1970-01-01T00:01:00Z, process {process} reconnects: refused"
        );
        assert_eq!(lost.losses(), Some(words));
        assert_eq!(lost.next(4, 0, None, at(80)), begin);
    }

    #[test]
    fn a_record_that_another_process_left_says_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let state = ConnectionState::default().next(2, 1, Some("refused"), now);
        let text = serde_json::to_string(&state).unwrap();
        whole_file::write(&place(folder.path(), 7), &text).unwrap();
        let read = |owner| ConnectionState::read(folder.path(), 7, owner);
        assert_eq!(read(state.process + 1), None);
        assert_eq!(read(state.process), Some(state));
    }
}
