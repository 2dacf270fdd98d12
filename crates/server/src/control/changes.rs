//! Changes of a running server as JSON and as text. The names of the JSON are the promise:
//! `docs/control.md` explains each.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::units::{self, count};

/// What becomes of the clients of an export that is removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The change is refused where there are any.
    #[default]
    Safe,
    /// They go on, and no others come in; the rest is done when the last one has left.
    Hide,
    /// They are answered what they have asked for, at most as long as `drain` in the manifest, and
    /// then disconnected.
    Soft,
    /// They are disconnected at once.
    Hard,
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChangeReport {
    /// Nothing was done: it is what would be.
    pub(crate) dry_run: bool,
    /// In their order.
    pub(crate) steps: Vec<Step>,
    /// What went wrong.
    pub failed: Vec<StepFailure>,
    /// What is worth a word, and no failure.
    pub notes: Vec<String>,
    /// Of what went down, and of what came up, as `--timeline FILE.json` has them.
    pub timelines: Vec<Value>,
}

/// One thing that was done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Step {
    pub(crate) what: StepKind,
    /// A device, or `export:` and an export.
    pub(crate) name: String,
    /// How many it had, of an export that goes.
    pub(crate) clients: usize,
    /// In bytes, of a device that grows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) size: Option<u64>,
    /// Of a mirror: the leg that is replaced, added or removed, and the device that takes its
    /// place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) leg: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) with: Option<String>,
}

/// What is done to a device or an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StepKind {
    /// It goes when its last client leaves; until then no other finds it.
    Hide,
    Remove,
    Add,
    /// It goes and comes again, since it, or what it stands on, is another one.
    Restart,
    /// It is hidden no longer, and doesn't go.
    Show,
    /// It is longer. Clients that come from now on see that.
    Grow,
    /// Clients that come from now on are shown what the files of `[server]` for TLS hold by now. It
    /// has no name.
    Renew,
    /// A leg of a mirror is another device.
    Replace,
    /// The server goes by a key of `[server]`, whose name it has.
    Set,
    /// Clients that come from now on see it otherwise.
    #[default]
    #[serde(other)]
    Change,
}

/// One thing that went wrong.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepFailure {
    /// A device, or `export:` and an export.
    pub name: String,
    /// The reason in words.
    pub why: String,
}

impl Step {
    fn words(&self, dry_run: bool) -> String {
        let (did, would) = match self.what {
            StepKind::Hide => ("hidden", "hide"),
            StepKind::Remove => ("removed", "remove"),
            StepKind::Add => ("added", "add"),
            StepKind::Restart => ("restarted", "restart"),
            StepKind::Show => ("showed", "show"),
            StepKind::Grow => ("grew", "grow"),
            StepKind::Renew => ("renewed", "renew"),
            StepKind::Replace => ("replaced", "replace"),
            StepKind::Set => ("set", "set"),
            StepKind::Change => ("changed", "change"),
        };
        let subject = match self.name.split_once(':') {
            _ if self.what == StepKind::Renew => "the certificates of TLS".to_string(),
            _ if self.what == StepKind::Set => format!("[server] '{}'", self.name),
            Some((_, export)) if self.what == StepKind::Show => format!("export '{export}' again"),
            Some((_, export)) => format!("export '{export}'"),
            None => format!("device '{}'", self.name),
        };
        let subject = match &self.leg {
            Some(leg) if self.what == StepKind::Add => format!("leg '{leg}' to {subject}"),
            Some(leg) => format!("leg '{leg}' of {subject}"),
            None => subject,
        };
        let with = self.with.as_ref().map(|with| format!(" with '{with}'")).unwrap_or_default();
        let clients = match self.clients {
            0 => String::new(),
            clients => format!(" ({})", count(clients as u64, "client")),
        };
        let to = self.size.map(|size| format!(" to {}", units::size(size))).unwrap_or_default();
        match dry_run {
            true => format!("would {would} {subject}{to}{with}{clients}"),
            false => format!("{did} {subject}{to}{with}{clients}"),
        }
    }
}

impl ChangeReport {
    /// A line for each step, and for what is worth a word.
    pub fn text(&self) -> String {
        let mut out = String::new();
        for step in &self.steps {
            let _ = writeln!(out, "{}", step.words(self.dry_run));
        }
        if self.steps.is_empty() && self.failed.is_empty() {
            let _ = writeln!(out, "nothing to change");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_is_a_line_which_says_whether_it_was_done() {
        let step = |what, name: &str, clients| Step {
            what,
            name: name.to_string(),
            clients,
            ..Step::default()
        };
        let steps = vec![step(StepKind::Remove, "export:a b", 2), step(StepKind::Add, "disk", 0)];
        let mut changed = ChangeReport { steps, ..ChangeReport::default() };
        assert_eq!(changed.text(), "removed export 'a b' (2 clients)\nadded device 'disk'\n");
        changed.dry_run = true;
        assert!(changed.text().starts_with("would remove export"), "{}", changed.text());
        assert_eq!(ChangeReport::default().text(), "nothing to change\n");
        assert_eq!(serde_json::to_string(&Mode::Safe).unwrap(), "\"safe\"");
    }
}
