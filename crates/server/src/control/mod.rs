//! The control socket of a running `corewise up`: its path and its protocol. `docs/control.md`
//! describes both for other programs.
//!
//! A line of JSON asks, a line of JSON answers, as often as the client likes. `answers` has the
//! server's end, `dump` and `mirror` those of clients.

pub(crate) mod calls;
pub mod changes;
pub mod checkpoints;
pub mod devices;
pub mod disks;
pub mod document;
mod exposition;
pub mod health;
pub(crate) mod metrics;
pub mod mirrors;
pub mod place;
pub(crate) mod queues;
pub(crate) mod recent;
pub mod served;
pub mod stores;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use changes::Mode;

/// The version of the protocol and of its documents. It goes up when something that a client may
/// rely on is changed or removed, and not when something is added.
pub const VERSION: u32 = 1;
/// The longest question, its newline included, in bytes.
pub(crate) const LONGEST_QUESTION: usize = 4096;

/// A question of a client. A server ignores a field that it doesn't know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// Version: [`VERSION`].
    pub corewise: u32,
    /// Question: `hello`, `dump`, `health`, `clients`, `disconnect`, `events`, `mirrors`,
    /// `take_back`, `check`, `replace`, `add_leg`, `remove_leg`, `snapshot`, `snapshots`,
    /// `delete_snapshot`, `checkpoint`, `checkpoints`, `delete_checkpoint`, `reset_overlay`,
    /// `commit_overlay`, `flatten_overlay`, `add`, `remove`, `grow` or `reload`.
    pub ask: String,
    /// Queues for `dump`; a `*` stands for any letters. Empty for all queues.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub queues: Vec<String>,
    /// Width in columns for `dump` to add text. `usize::MAX` cuts nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<usize>,
    /// Client for `disconnect`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<u64>,
    /// Mirror for `take_back`, `check`, `replace`, `add_leg` and `remove_leg`, or volume for the
    /// questions about snapshots and checkpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
    /// Leg that is to come back, for `take_back` (`None`: all that are out), or leg that goes, for
    /// `replace` and `remove_leg`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leg: Option<String>,
    /// Device that becomes a leg, for `replace` and `add_leg`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with: Option<String>,
    /// Options for `check`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub check: Option<mirrors::CheckOptions>,
    /// Name of the new snapshot for `snapshot` (`None`: its number), or name or number for
    /// `delete_snapshot`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Name of the checkpoint for `checkpoint` (`None`: its number) and `delete_checkpoint`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<String>,
    /// Absolute path of the manifest for `add`. The server reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Device, or `export:` and an export, for `remove`; device for `grow`; overlay for the
    /// questions about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// New size in bytes for `grow`. `None` takes the size that its file or disk has by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Treatment of clients for `remove` and `reload`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// True to report the effect of a change, and change nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
}

impl Question {
    /// Returns a question with nothing but its `ask`.
    pub fn new(ask: &str) -> Question {
        Question { corewise: VERSION, ask: ask.to_string(), ..Question::default() }
    }
}

/// The answering server. It stands at the beginning of each answer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerInfo {
    /// Version: [`VERSION`].
    pub corewise: u32,
    /// Process id of the server.
    pub pid: u32,
    /// Version of the program.
    pub version: String,
    /// File of the manifest, or a description of its source.
    pub manifest: String,
    /// Time since the start.
    pub up_seconds: f64,
}

/// An answer. A question that can't be answered has an `error` instead of the rest.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Answer {
    #[serde(flatten)]
    pub(crate) who: ServerInfo,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub(crate) dump: Option<document::Document>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) call_targets: Option<calls::CallTargetsReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) devices: Option<Vec<devices::Device>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) disks: Option<Vec<disks::Disk>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) exports: Option<Vec<served::Export>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) clients: Option<Vec<served::Client>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) handshakes: Option<served::Handshakes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<served::Memory>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) health: Option<health::Health>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) disconnected: Option<served::Client>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) taken_back: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) changed: Option<changes::ChangeReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) snapshots: Option<Vec<stores::Snapshot>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) checkpoints: Option<Vec<checkpoints::CheckpointReport>>,
}

/// Returns true if `name` matches `pattern`, in which a `*` stands for any letters.
pub fn matches(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(start) else { return false };
    let mut name = name;
    let mut parts: Vec<&str> = rest.split('*').collect();
    let end = parts.pop().unwrap_or_default();
    for part in parts {
        match name.find(part) {
            Some(at) => name = &name[at + part.len()..],
            None => return false,
        }
    }
    name.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_letters() {
        for (pattern, name) in
            [("a", "a"), ("*", ""), ("*", "x"), ("a*", "ab"), ("*b", "ab"), ("a*c*e", "abcde")]
        {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("a", "ab"), ("", "a"), ("a*", "ba"), ("ab*ba", "aba"), ("a*c*e", "abde")]
        {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn a_question_of_a_later_client_is_understood_as_far_as_it_goes() {
        let question: Question =
            serde_json::from_str(r#"{"corewise":1,"ask":"dump","colour":"red"}"#).unwrap();
        assert_eq!(question.ask, "dump");
        assert!(question.queues.is_empty() && question.text.is_none());
        assert!(serde_json::from_str::<Question>(r#"{"ask":"dump"}"#).is_err());
    }
}
