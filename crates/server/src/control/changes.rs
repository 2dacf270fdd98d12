//! Changes of a running server as JSON and as text. The names in the JSON are a promise;
//! `docs/control.md` explains each.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::units::{self, count};

/// The treatment of the clients of a removed export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The change is refused if there are any.
    #[default]
    Safe,
    /// The clients go on, and no others come in. The export is removed when the last one has left.
    Hide,
    /// Requests in flight are answered, for at most the manifest's `drain`. Then the clients are
    /// disconnected.
    Soft,
    /// The clients are disconnected at once.
    Hard,
}

/// The report of a change.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChangeReport {
    /// True for a dry run: the report has the steps that would be made.
    pub(crate) dry_run: bool,
    /// Steps, in order.
    pub(crate) steps: Vec<Step>,
    /// Failures.
    pub failed: Vec<StepFailure>,
    /// Notes that are no failures.
    pub notes: Vec<String>,
    /// Timelines of the devices that went down, and of those that came up, in the form of
    /// `--timeline FILE.json`.
    pub timelines: Vec<Value>,
}

/// A step of a change.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Step {
    pub(crate) what: StepKind,
    /// Name of a device, or `export:` and the name of an export.
    pub(crate) name: String,
    /// Number of clients of an export that goes.
    pub(crate) clients: usize,
    /// Size in bytes of a device that grows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) size: Option<u64>,
    /// Leg of a mirror that is replaced, added or removed; `with` is the device that replaces it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) leg: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) with: Option<String>,
}

/// A kind of step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StepKind {
    /// The export goes when its last client leaves. Until then no other client finds it.
    Hide,
    Remove,
    Add,
    /// The device or export goes and comes again, since it, or a device below, differs.
    Restart,
    /// The export is hidden no longer, and stays.
    Show,
    /// The device is larger. Clients that attach from now on see that.
    Grow,
    /// New clients get the new content of the files of `[server]` for TLS. The step has no name.
    Renew,
    /// A leg of a mirror is another device.
    Replace,
    /// An overlay has given up its own blocks.
    Reset,
    /// An overlay's own blocks went into its base.
    Commit,
    /// An overlay begins to fetch all blocks of its base.
    Flatten,
    /// The server follows a changed key of `[server]`; the step's name is the key.
    Set,
    /// Clients that attach from now on see the export's changed properties.
    #[default]
    #[serde(other)]
    Change,
}

/// A failure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepFailure {
    /// Name of a device, or `export:` and the name of an export.
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
            StepKind::Reset => ("reset", "reset"),
            StepKind::Commit => ("committed", "commit"),
            StepKind::Flatten => ("began to flatten", "begin to flatten"),
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
    /// Records that a step failed, instead of the step.
    pub(crate) fn fail(&mut self, what: StepKind, name: String, why: String) {
        self.steps.retain(|step| step.what != what || step.name != name);
        self.failed.push(StepFailure { name, why });
    }

    /// Returns a line for each step and each note.
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
        changed.dry_run = false;
        changed.fail(StepKind::Add, "disk".to_string(), "it is full".to_string());
        assert_eq!(changed.text(), "removed export 'a b' (2 clients)\n");
        assert_eq!(changed.failed[0].why, "it is full");
        assert_eq!(ChangeReport::default().text(), "nothing to change\n");
        assert_eq!(serde_json::to_string(&Mode::Safe).unwrap(), "\"safe\"");
    }
}
