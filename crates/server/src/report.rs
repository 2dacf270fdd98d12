//! The reports of a server to its observer, and to listeners on the control socket.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use corewise::drivers::{MirrorEvent, OverlayEvent};
use corewise::nbd::{ClientEvent, Endpoint, RemoteEvent};
use corewise::timeline::{Timeline, duration, json};
use serde_json::{Value, json};
use tracing::field::{Field, Visit};

use crate::cleanup::NewFile;
use crate::control::changes::ChangeReport;
use crate::control::mirrors::take_back_todo;
use crate::control::served::ClientOrigin;
use crate::events::Events;
use crate::manifest::{LeftOut, Problem};
use crate::observer::ShownExport;
use crate::observer::{Notice, Observer, Ready, Severity};
use crate::units;

/// A reporter to the observer, and to listeners on the control socket.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) observer: Arc<dyn Observer>,
    /// True to leave out the messages for people.
    pub(crate) quiet: bool,
    /// Listeners on the control socket.
    pub(crate) events: Arc<Events>,
}

/// The audience of an event of a mirror. Repeated events are limited for the observer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Audience {
    /// Programs that listen on the control socket.
    Listeners,
    /// Observer. `left_out` is the number of similar events left out before.
    People { left_out: Option<u64> },
}

/// An event of a disk of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskEvent {
    Made,
    /// A former server had left it.
    TakenOver,
    /// The server ends, and the disk stays for the next one.
    Left,
    Removed,
    /// The disk has the new size of its device.
    Grew,
    /// A former server left it, and this one doesn't serve its export.
    Waits,
}

impl Report {
    /// Sends a notice to people.
    fn notice(&self, notice: &Notice<'_>) {
        if !self.quiet {
            self.observer.notice(notice);
        }
    }

    pub(crate) fn error(&self, message: fmt::Arguments<'_>) {
        self.observer.message(Severity::Error, message);
    }

    pub(crate) fn warning(&self, message: fmt::Arguments<'_>) {
        self.observer.message(Severity::Warning, message);
    }

    /// Reports a problem of a manifest. `label` is its name in messages.
    pub(crate) fn problem(&self, label: &str, problem: &Problem) {
        self.error(format_args!("{}", problem.display(label)));
    }

    /// Reports an event that people get in other words.
    fn event(&self, name: &str, rest: impl FnOnce() -> Value) {
        let wanted = self.observer.wants_events();
        if wanted || self.events.are_heard() {
            let rest = rest();
            if wanted {
                self.observer.event(&line(name, &rest));
            }
            self.publish(name, rest);
        }
    }

    /// Reports an event to listeners on the control socket alone.
    pub(crate) fn publish(&self, name: &str, mut rest: Value) {
        if self.events.are_heard() {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            rest["time"] = now.as_secs_f64().into();
            self.events.tell(&line(name, &rest));
        }
    }

    /// Reports devices and exports that aren't brought up, though the rest is.
    pub(crate) fn left_out(&self, left_out: &[LeftOut]) {
        for LeftOut { subject, why } in left_out {
            self.event("left_out", || json!({"subject": subject.to_string(), "why": why}));
        }
        self.notice(&Notice::LeftOut(left_out));
    }

    /// Reports the beginning of the bring-up.
    pub(crate) fn begin(&self, label: &str, devices: usize) {
        self.event("begin", || json!({"manifest": label, "devices": devices}));
    }

    /// Reports a bring-up.
    pub(crate) fn bring_up(&self, timeline: &Timeline) {
        self.timeline("bring_up", timeline);
        self.notice(&Notice::BringUp(timeline));
    }

    /// Reports a shutdown.
    pub(crate) fn shutdown(&self, timeline: &Timeline) {
        self.timeline("shutdown", timeline);
        self.notice(&Notice::Shutdown(timeline));
    }

    fn timeline(&self, name: &str, timeline: &Timeline) {
        self.event(name, || {
            let timeline: Value = serde_json::from_str(&json::render(timeline)).unwrap_or_default();
            json!({"timeline": timeline})
        });
    }

    /// Reports that clients are accepted.
    pub(crate) fn ready(&self, ready: Ready<'_>) {
        self.event("ready", || ready_json(ready));
        self.notice(&Notice::Ready(ready));
    }

    /// Reports the beginning of the shutdown.
    pub(crate) fn stopping(&self, why: &str) {
        self.event("stopping", || json!({"why": why}));
        self.notice(&Notice::Stopping { why });
    }

    /// Reports a device whose bring-up or shutdown takes too long, and the devices that it holds
    /// up.
    pub(crate) fn overdue(&self, what: &str, device: &str, after: Duration, held_up: &[String]) {
        self.event("overdue", || {
            let seconds = after.as_secs_f64();
            json!({"device": device, "phase": what, "seconds": seconds, "held_up": held_up})
        });
        let who = match held_up {
            [] => String::new(),
            held_up => format!("; {device} holds up {}", held_up.join(", ")),
        };
        let after = duration(after);
        self.warning(format_args!("the {what} of {device} isn't done after {after}{who}"));
    }

    /// Reports that volumes and exports came, went or changed while others were served. Any thread
    /// may call it.
    pub(crate) fn changed(&self, changed: &ChangeReport) {
        for failed in &changed.failed {
            self.error(format_args!("{}: {}", failed.name, failed.why));
        }
        for note in &changed.notes {
            self.warning(format_args!("{note}"));
        }
        self.event("changed", || serde_json::to_value(changed).unwrap_or_default());
        self.notice(&Notice::Changed(changed));
    }

    /// Reports that a change without a waiting client wasn't made.
    pub(crate) fn refused(&self, what: &str, why: &str) {
        self.error(format_args!("{what}: the server changed nothing: {why}"));
        self.event("refused", || json!({"what": what, "why": why}));
    }

    /// Reports an event of the mirror `device` with these legs. Any thread may call it.
    pub(crate) fn mirror(
        &self,
        device: &str,
        over: &[String],
        happened: &MirrorEvent,
        to: Audience,
    ) {
        let names = |legs: &[usize]| -> Vec<&str> {
            legs.iter().filter_map(|leg| over.get(*leg)).map(String::as_str).collect()
        };
        let (what, legs, bytes, why) = match happened {
            MirrorEvent::Missing { leg, why } => {
                ("missing", names(&[*leg]), None, Some(why.clone()))
            }
            MirrorEvent::Dropped { leg, error } => {
                let names = names(&[*leg]);
                let below = names.first().and_then(|leg| error.device_below(leg));
                let below = below.map(|device| format!("{device}: ")).unwrap_or_default();
                ("dropped", names, None, Some(format!("{below}{error}")))
            }
            MirrorEvent::ResyncBegan { legs, bytes } => ("resync", names(legs), Some(*bytes), None),
            MirrorEvent::ResyncEnded { legs, bytes } => {
                ("resynced", names(legs), Some(*bytes), None)
            }
            MirrorEvent::CheckEnded { check } => {
                let found = check.differ + check.unreadable;
                let wrong = (found != 0).then(|| {
                    format!(
                        "a check found {} bytes that differ and {} that can't be read, and repaired {}",
                        check.differ, check.unreadable, check.repaired
                    )
                });
                ("checked", Vec::new(), Some(check.checked), wrong)
            }
            MirrorEvent::Replaced { leg } => ("replaced", names(&[*leg]), None, None),
            MirrorEvent::Added { leg } => ("added", names(&[*leg]), None, None),
            MirrorEvent::Removed { device, .. } => ("removed", vec![device.as_str()], None, None),
            // New kinds of events may be added; the log has them.
            _ => return,
        };
        let mut todo = None;
        if let MirrorEvent::CheckEnded { check } = happened {
            // Repaired bytes need no action.
            todo = (check.differ + check.unreadable > check.repaired)
                .then(|| format!("corewise mirror {device} --check --repair"));
        } else if why.is_some() {
            todo = Some(take_back_todo(device, legs.first().copied().unwrap_or_default()));
        }
        let mut event = json!({
            "device": device, "what": what, "legs": legs, "bytes": bytes, "why": why, "todo": todo,
        });
        if let MirrorEvent::CheckEnded { check } = happened {
            event["seconds"] = check.took.as_secs_f64().into();
            for (key, bytes) in [
                ("size", check.size),
                ("differ", check.differ),
                ("unreadable", check.unreadable),
                ("lost", check.lost),
                ("repaired", check.repaired),
            ] {
                event[key] = bytes.into();
            }
        }
        let Audience::People { left_out } = to else { return self.publish("mirror", event) };
        let before = left_out.map_or_else(String::new, |n| format!(" (and {n} times before)"));
        if let Some(why) = &why {
            let leg = legs.first().copied().unwrap_or_default();
            let (how, so) = match what {
                "checked" => (String::new(), "to overwrite them from the first leg in sync"),
                "missing" => {
                    (format!("leg '{leg}' is missing{before}: "), "once the leg's disk works")
                }
                _ => (
                    format!("the mirror dropped leg '{leg}'{before}: "),
                    "once the leg's disk works",
                ),
            };
            let todo = todo.as_ref().map(|todo| format!("; {so}: {todo}")).unwrap_or_default();
            self.warning(format_args!("device '{device}': {how}{why}{todo}"));
        }
        if self.observer.wants_events() {
            if let Some(left_out) = left_out {
                event["left_out"] = left_out.into();
            }
            self.observer.event(&line("mirror", &event));
        }
        if let Some(bytes) = bytes {
            let legs = &legs;
            self.notice(&Notice::Mirror { device, what, legs, bytes, before: left_out });
        }
    }

    /// Reports new and empty volumes in files that stay. Any thread may call it.
    pub(crate) fn made(&self, files: Vec<NewFile>) {
        for NewFile { device, path, size } in files {
            self.made_at(&device, "file", &path.display().to_string(), size);
        }
    }

    /// Reports that this driver created the new and empty volume `device`, since nothing was at
    /// `at`. Any thread may call it.
    pub(crate) fn made_at(&self, device: &str, driver: &str, at: &str, size: u64) {
        let bytes = units::size(size);
        self.observer.message(
            Severity::Note,
            format_args!(
                "device '{device}': the server found nothing at {at}, and made a new volume of \
                 {bytes} there"
            ),
        );
        self.event(driver, || json!({"device": device, "what": "made", "at": at, "size": size}));
        self.notice(&Notice::Made { device, size, at });
    }

    /// Reports an event of the file of `device`, with the reason if there is one. The log has it in
    /// words. Any thread may call it.
    pub(crate) fn file(&self, device: &str, what: &str, why: Option<&str>) {
        self.event("file", || json!({"device": device, "what": what, "why": why}));
    }

    /// Reports damage of the header of the encrypted device `device`. The log has it in words. Any
    /// thread may call it.
    #[cfg(feature = "crypt")]
    pub(crate) fn header_damaged(&self, device: &str, why: &str) {
        self.event("crypt", || json!({"device": device, "what": "header_damaged", "why": why}));
    }

    /// Reports an event of the connections of the device `device`. The log has it in words. Any
    /// thread may call it.
    pub(crate) fn remote(&self, device: &str, happened: &RemoteEvent) {
        let (what, rest) = match happened {
            RemoteEvent::Lost { why, requests, unflushed } => {
                ("lost", json!({"why": why, "requests": requests, "unflushed": unflushed}))
            }
            RemoteEvent::Back { after, connections } => {
                ("back", json!({"seconds": after.as_secs_f64(), "connections": connections}))
            }
            RemoteEvent::Down { why } => ("down", json!({"why": why})),
            _ => return,
        };
        self.event("remote", || {
            let mut rest = rest;
            (rest["device"], rest["what"]) = (device.into(), what.into());
            rest
        });
    }

    /// Reports an event of the overlay `device`. The log has failures in words. Any thread may call
    /// it.
    pub(crate) fn overlay(&self, device: &str, happened: &OverlayEvent) {
        let (what, why) = match happened {
            OverlayEvent::Fetched => {
                tracing::info!(device, "an overlay has every block, and needs no base any more");
                ("fetched", None)
            }
            OverlayEvent::FetchFailed { error } => ("fetch_failed", Some(error.to_string())),
            _ => return,
        };
        self.event("overlay", || json!({"device": device, "what": what, "why": why}));
    }

    /// Reports an event of the device `device` in an object store. The log has it in words. Any
    /// thread may call it.
    #[cfg(feature = "object")]
    pub(crate) fn object(&self, device: &str, happened: &corewise_object::ObjectEvent) {
        let (what, why) = match happened {
            corewise_object::ObjectEvent::Fenced { why } => ("fenced", why),
            corewise_object::ObjectEvent::Lost { why } => ("lost", why),
            corewise_object::ObjectEvent::Damaged { why } => ("damaged", why),
            corewise_object::ObjectEvent::Moved { why } => ("moved", why),
            corewise_object::ObjectEvent::FlushFileOut { why } => ("flush_file_out", why),
            corewise_object::ObjectEvent::FlushFileBack => {
                self.event("object", || json!({"device": device, "what": "flush_file_back"}));
                return;
            }
            corewise_object::ObjectEvent::Unwritable { why } => ("unwritable", why),
            corewise_object::ObjectEvent::Writable => {
                self.event("object", || json!({"device": device, "what": "writable"}));
                return;
            }
            _ => return,
        };
        self.event("object", || json!({"device": device, "what": what, "why": why}));
    }

    /// Reports that a snapshot of the device `device` was taken, or deleted. Any thread may call
    /// it.
    pub(crate) fn snapshot(&self, device: &str, what: &str, snapshot: &str) {
        tracing::info!(device, snapshot, "{}", what.replace('_', " "));
        self.event("object", || json!({"device": device, "what": what, "snapshot": snapshot}));
    }

    /// Reports that a checkpoint of the device `device` was taken or deleted, or can't be read any
    /// more. Any thread may call it.
    pub(crate) fn checkpoint(&self, device: &str, what: &str, checkpoint: &str, why: Option<&str>) {
        // The driver has logged the end of an image.
        if why.is_none() {
            tracing::info!(device, checkpoint, "checkpoint {what}");
        }
        self.event("checkpoint", || {
            let mut rest = json!({"device": device, "what": what, "checkpoint": checkpoint});
            if let Some(why) = why {
                rest["why"] = why.into();
            }
            rest
        });
    }

    /// Reports a warning or an error of the log, which limits their number. Any thread may call it,
    /// in any context.
    pub(crate) fn logged(&self, line: &tracing::Event<'_>) {
        if self.events.are_heard() {
            let mut rest = LogFields(json!({"level": line.metadata().level().as_str()}));
            line.record(&mut rest);
            self.publish("log", rest.0);
        }
    }

    /// Reports that a client came or went. Any thread may call it.
    pub(crate) fn client(&self, happened: &ClientEvent<'_>) {
        if !self.events.are_heard() {
            return;
        }
        let (what, from, mut rest) = match *happened {
            ClientEvent::Attached { id, peer, pid, names, export } => (
                "attached",
                ClientOrigin::new(peer, pid, names),
                json!({"client": id, "export": export}),
            ),
            ClientEvent::Left { id, peer, pid, names, export, why } => {
                let rest = json!({"client": id, "export": export, "why": why});
                ("left", ClientOrigin::new(peer, pid, names), rest)
            }
            _ => return,
        };
        if let (Value::Object(rest), Ok(Value::Object(from))) =
            (&mut rest, serde_json::to_value(from))
        {
            rest.extend(from);
        }
        self.publish(what, rest);
    }

    /// Reports an event of a disk of this machine, which is the export `export`. Any thread may
    /// call it.
    pub(crate) fn disk(&self, export: &str, disk: &Path, happened: DiskEvent) {
        let (event, (key, words)) = match happened {
            DiskEvent::Made => ("attached", ("what", "made")),
            DiskEvent::TakenOver => ("attached", ("what", "taken_over")),
            DiskEvent::Left => {
                ("left", ("why", "the server ends, and the disk waits for the next"))
            }
            DiskEvent::Removed => ("left", ("why", "the disk was taken away")),
            DiskEvent::Grew => ("disk", ("what", "grew")),
            DiskEvent::Waits => ("disk", ("what", "waits")),
        };
        let mut rest = json!({"export": export, "disk": disk, key: words});
        if event != "disk" {
            // A disk is a client without a number.
            rest["client"] = 0.into();
        }
        self.publish(event, rest);
    }

    /// Reports the end of the server.
    pub(crate) fn done(&self, complete: bool, what: &str) {
        self.event("done", || json!({"ok": complete}));
        self.notice(&Notice::Done { complete, what });
    }
}

/// The message of a line of the log, and its fields.
struct LogFields(Value);

impl Visit for LogFields {
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0[field.name()] = value.into();
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0[field.name()] = value.into();
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0[field.name()] = value.into();
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0[field.name()] = value.into();
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Debug: a field whose callsite formats it so.
        self.0[field.name()] = format!("{value:?}").into();
    }
}

/// Returns a line of JSON. `event` comes first, so that lines can be told apart without a parser.
fn line(name: &str, rest: &Value) -> String {
    let inside = match rest.as_object() {
        Some(map) if !map.is_empty() => {
            let text = rest.to_string();
            format!(",{}", &text[1..])
        }
        _ => "}".to_string(),
    };
    format!("{{\"event\":\"{name}\"{inside}\n")
}

fn ready_json(ready: Ready<'_>) -> Value {
    let Ready { endpoints, exports, clients, control, metrics } = ready;
    let unix = endpoints.iter().find_map(|endpoint| match endpoint {
        Endpoint::Unix(Some(path)) => Some(path.display().to_string()),
        _ => None,
    });
    let tcp = endpoints.iter().find_map(|endpoint| match endpoint {
        Endpoint::Tcp(address) => Some(address.to_string()),
        _ => None,
    });
    let export = |export: &ShownExport| {
        let uris: Vec<String> = endpoints.iter().map(|e| clients.uri(e, &export.name)).collect();
        json!({
            "name": export.name,
            "device": export.device,
            "size": export.size,
            "read_only": export.read_only,
            "uris": uris,
        })
    };
    json!({
        "unix": unix,
        "tcp": tcp,
        "control": control.map(|path| path.display().to_string()),
        "exports": exports.iter().map(export).collect::<Vec<_>>(),
        "metrics": metrics,
        "memory": clients.memory(),
        "clients": clients.options.max_connections,
        "clients_cut": clients.shortfall.map(|shortfall| shortfall.to_string()),
    })
}
