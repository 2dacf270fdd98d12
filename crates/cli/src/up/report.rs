//! What `up` says on stdout: text for people, or one JSON object a line for programs.
//!
//! A server doesn't stop since nobody listens: lines that can't be written are dropped.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use corewise::drivers::MirrorEvent;
use corewise::nbd::{ClientEvent, Endpoint, Options, RemoteEvent};
use corewise::timeline::markup::printable;
use corewise::timeline::{Timeline, duration, json, text};
use serde_json::{Value, json};
use tracing::field::{Field, Visit};

use super::cleanup::NewFile;
use super::drivers::Shown;
use super::events::Events;
use super::room::Cut;
use crate::control::changes::Changed;
use crate::control::health::take_back;
use crate::control::served::Origin;
use crate::manifest::{LeftOut, Tls};
use crate::screen::{COMMAND, FAINT, GOOD, TITLE, styled};
use crate::{screen, streams, units};

/// Says things in one of the two ways.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    pub(crate) json: bool,
    /// What is for people has no reader: stdout is that of a client that started the server.
    pub(crate) quiet: bool,
    /// Those that hear of events on the control socket, whichever way it is.
    pub(crate) events: Arc<Events>,
}

/// Where something about a mirror is told: what comes again and again is limited for people and for
/// stdout.
#[derive(Clone, Copy, Debug)]
pub(crate) enum To {
    /// The programs that listen on the control socket.
    Listeners,
    /// stderr and stdout, as text or JSON. `left_out`: so many like it were left out before.
    People { left_out: Option<u64> },
}

impl Report {
    fn print(&self, text: &str) {
        if !self.quiet {
            streams::to_stdout(text, |lines| {
                format!("({} left out)\n", units::count(lines, "line"))
            });
        }
    }

    /// Something happened that people are told in other words.
    fn event(&self, name: &str, rest: impl FnOnce() -> Value) {
        if self.json || self.events.are_heard() {
            let rest = rest();
            if self.json {
                self.stdout(name, &rest);
            }
            self.publish(name, rest);
        }
    }

    /// An event in JSON on stdout.
    fn stdout(&self, name: &str, rest: &Value) {
        let lost = |events| line("lost", &json!({"events": events}));
        streams::to_stdout(&crate::json::escaped(&line(name, rest)), lost);
    }

    /// Something happened that only those hear who listen on the control socket.
    pub(crate) fn publish(&self, name: &str, mut rest: Value) {
        if self.events.are_heard() {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            rest["time"] = now.as_secs_f64().into();
            self.events.tell(&line(name, &rest));
        }
    }

    /// These are not brought up, though the rest is.
    pub(crate) fn left_out(&self, left_out: &[LeftOut]) {
        for LeftOut { subject, why } in left_out {
            self.event("left_out", || json!({"subject": subject.to_string(), "why": why}));
        }
        if !self.json && !left_out.is_empty() {
            let mut lines = format!("{}\n", styled(TITLE, "Left out"));
            for LeftOut { subject, why } in left_out {
                let _ = writeln!(lines, "  {}", printable(&format!("{subject}: {why}")));
            }
            self.print(&format!("{lines}\n"));
        }
    }

    /// Bring-up begins.
    pub(crate) fn begin(&self, label: &str, devices: usize) {
        self.event("begin", || json!({"manifest": label, "devices": devices}));
    }

    /// Devices came up, or didn't.
    pub(crate) fn bring_up(&self, timeline: &Timeline) {
        self.timeline("bring_up", timeline);
    }

    /// Devices went down.
    pub(crate) fn shutdown(&self, timeline: &Timeline) {
        self.timeline("shutdown", timeline);
    }

    fn timeline(&self, name: &str, timeline: &Timeline) {
        self.event(name, || {
            let timeline: Value = serde_json::from_str(&json::render(timeline)).unwrap_or_default();
            json!({"timeline": timeline})
        });
        if self.json {
            return;
        }
        let rendered = text::render(timeline, screen::all_columns());
        let (head, rest) = rendered.split_once('\n').unwrap_or((&rendered, ""));
        self.print(&format!("{}\n{rest}\n", styled(TITLE, head)));
    }

    /// Clients are let in.
    pub(crate) fn ready(
        &self,
        endpoints: &[Endpoint],
        exports: &[Shown],
        clients: ClientLimits<'_>,
        control: Option<&Path>,
        metrics: Option<&str>,
    ) {
        self.event("ready", || {
            let mut ready = ready_json(endpoints, exports, clients, control);
            ready["metrics"] = metrics.into();
            ready["memory"] = clients.memory().into();
            ready["clients"] = clients.options.max_connections.into();
            ready["clients_cut"] = clients.cut.map(|cut| cut.to_string()).into();
            ready
        });
        if !self.json {
            self.print(&ready_text(endpoints, exports, clients, control, metrics));
        }
    }

    /// The end begins.
    pub(crate) fn stopping(&self, why: &str) {
        self.event("stopping", || json!({"why": why}));
        if !self.json {
            let hint = styled(FAINT, "(another signal, a second later, ends it at once)");
            // The terminal has just written ^C at the beginning of this line.
            self.print(&format!("\n{} {hint}\n\n", styled(TITLE, format!("Stopping: {why}"))));
        }
    }

    /// A device's bring-up or shutdown takes too long, and holds these up.
    pub(crate) fn overdue(
        &self,
        what: &str,
        device: &str,
        after: Duration,
        held_up: &[String],
        warn: &dyn Fn(std::fmt::Arguments<'_>),
    ) {
        self.event("overdue", || {
            let seconds = after.as_secs_f64();
            json!({"device": device, "phase": what, "seconds": seconds, "held_up": held_up})
        });
        let who = match held_up {
            [] => String::new(),
            held_up => format!("; it holds up {}", held_up.join(", ")),
        };
        let after = duration(after);
        warn(format_args!("{what} of {device}: still at it after {after}{who}"));
    }

    /// Volumes and exports came, went or changed while others were served. From any thread.
    pub(crate) fn changed(&self, changed: &Changed) {
        for failed in &changed.failed {
            screen::error(format_args!("{}: {}", failed.name, failed.why));
        }
        for note in &changed.notes {
            screen::warning(format_args!("{note}"));
        }
        self.event("changed", || serde_json::to_value(changed).unwrap_or_default());
        if !self.json {
            let text = changed.text();
            self.print(
                &text.lines().map(|line| format!("{}\n", printable(line))).collect::<String>(),
            );
        }
    }

    /// A change that nobody waits for wasn't made.
    pub(crate) fn refused(&self, what: &str, why: &str) {
        screen::error(format_args!("{what}: nothing was changed: {why}"));
        self.event("refused", || json!({"what": what, "why": why}));
    }

    /// Something happened to the mirror `device` with these legs. From any thread.
    pub(crate) fn mirror(&self, device: &str, over: &[String], happened: &MirrorEvent, to: To) {
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
            // Other events may come; they are in the log.
            _ => return,
        };
        let mut todo = None;
        if let MirrorEvent::CheckEnded { check } = happened {
            // Repaired bytes need nothing any more.
            todo = (check.differ + check.unreadable > check.repaired)
                .then(|| format!("corewise mirror {device} --check --repair"));
        } else if why.is_some() {
            todo = Some(take_back(device, legs.first().copied().unwrap_or_default()));
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
        let To::People { left_out } = to else { return self.publish("mirror", event) };
        let before = left_out.map_or_else(String::new, |n| format!(" (and {n} times before)"));
        if let Some(why) = &why {
            let leg = legs.first().copied().unwrap_or_default();
            let (how, so) = match what {
                "checked" => (String::new(), "to write there what the first leg in sync has"),
                "missing" => {
                    (format!("its leg '{leg}' is missing{before}: "), "once its disk works")
                }
                _ => (format!("its leg '{leg}' is left out{before}: "), "once its disk works"),
            };
            let todo = todo.as_ref().map(|todo| format!("; {so}: {todo}")).unwrap_or_default();
            screen::warning(format_args!("device '{device}': {how}{why}{todo}"));
        }
        if self.json {
            if let Some(left_out) = left_out {
                event["left_out"] = left_out.into();
            }
            self.stdout("mirror", &event);
        } else if let Some(bytes) = bytes {
            let legs = if legs.is_empty() { "its legs".to_string() } else { legs.join(", ") };
            let size = units::size(bytes);
            self.print(&format!("Mirror {device}: {what}, {legs}, {size}{before}\n"));
        }
    }

    /// These files are new and empty volumes, for good. From any thread.
    pub(crate) fn made(&self, files: Vec<NewFile>) {
        for NewFile { device, path, size } in files {
            self.made_at(&device, "file", &path.display().to_string(), size);
        }
    }

    /// Nothing was at `at`, so the new and empty volume `device` was made there, by this driver.
    /// From any thread.
    pub(crate) fn made_at(&self, device: &str, driver: &str, at: &str, size: u64) {
        let bytes = units::size(size);
        screen::note(format_args!(
            "device '{device}': nothing was at {at}, so a new volume of {bytes} was made there"
        ));
        self.event(driver, || json!({"device": device, "what": "made", "at": at, "size": size}));
        if !self.json {
            self.print(&format!("New: {device}, {bytes}, at {at}, where nothing was\n"));
        }
    }

    /// What happened to the file of `device`, and why, where there is a reason, which the log has
    /// in words. From any thread.
    pub(crate) fn file(&self, device: &str, what: &str, why: Option<&str>) {
        self.event("file", || json!({"device": device, "what": what, "why": why}));
    }

    /// Something happened to the connections of the device `device`, which the log has in words. From any thread.
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

    /// Something happened to the device `device` in an object store, which the log has in words. From any thread.
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

    /// A snapshot of the device `device` was taken, or deleted. From any thread.
    pub(crate) fn snapshot(&self, device: &str, what: &str, snapshot: &str) {
        tracing::info!(device, snapshot, "{}", what.replace('_', " "));
        self.event("object", || json!({"device": device, "what": what, "snapshot": snapshot}));
    }

    /// A warning or an error of the log, which limits how many there are. From any thread, in any context.
    pub(crate) fn logged(&self, line: &tracing::Event<'_>) {
        if self.events.are_heard() {
            let mut rest = Logged(json!({"level": line.metadata().level().as_str()}));
            line.record(&mut rest);
            self.publish("log", rest.0);
        }
    }

    /// A client came or went. From any thread.
    pub(crate) fn client(&self, happened: &ClientEvent<'_>) {
        if !self.events.are_heard() {
            return;
        }
        let (what, from, mut rest) = match *happened {
            ClientEvent::Attached { id, peer, pid, names, export } => {
                ("attached", Origin::new(peer, pid, names), json!({"client": id, "export": export}))
            }
            ClientEvent::Left { id, peer, pid, names, export, why } => {
                let rest = json!({"client": id, "export": export, "why": why});
                ("left", Origin::new(peer, pid, names), rest)
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

    /// All is over.
    pub(crate) fn done(&self, ok: bool, what: &str) {
        self.event("done", || json!({"ok": ok}));
        match (self.json, ok) {
            (true, _) => {}
            (false, true) => self.print(&format!("{} {what}\n", styled(GOOD, "Done:"))),
            (false, false) => self.print(&format!("Done, but not completely: {what}\n")),
        }
    }
}

/// The message of a line of the log, and what belongs to it.
struct Logged(Value);

impl Visit for Logged {
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
        // Debug: a field that its callsite shows so.
        self.0[field.name()] = format!("{value:?}").into();
    }
}

/// A line of JSON. `event` comes first, so that lines can be told apart without a parser.
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

/// What clients may have, and how they come in.
#[derive(Clone, Copy)]
pub(crate) struct ClientLimits<'a> {
    pub(crate) options: &'a Options,
    pub(crate) tls: Option<&'a Tls>,
    /// The reason for which there are fewer than were asked for.
    pub(crate) cut: Option<Cut>,
}

impl ClientLimits<'_> {
    /// The most memory that they can take, in bytes.
    fn memory(self) -> u64 {
        self.options.worst_case(self.tls.is_some())
    }

    /// A URI that works.
    fn uri(self, endpoint: &Endpoint, export: &str) -> String {
        match self.tls {
            Some(tls) if tls.required => endpoint.tls_uri(export),
            _ => endpoint.uri(export),
        }
    }
}

fn ready_json(
    endpoints: &[Endpoint],
    exports: &[Shown],
    clients: ClientLimits<'_>,
    control: Option<&Path>,
) -> Value {
    let unix = endpoints.iter().find_map(|endpoint| match endpoint {
        Endpoint::Unix(Some(path)) => Some(path.display().to_string()),
        _ => None,
    });
    let tcp = endpoints.iter().find_map(|endpoint| match endpoint {
        Endpoint::Tcp(address) => Some(address.to_string()),
        _ => None,
    });
    let export = |export: &Shown| {
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
    })
}

fn ready_text(
    endpoints: &[Endpoint],
    exports: &[Shown],
    clients: ClientLimits<'_>,
    control: Option<&Path>,
    metrics: Option<&str>,
) -> String {
    let mut out = String::new();
    // Writing to a String can't fail.
    let _ =
        exports_text(&mut out, exports).and_then(|()| listening_text(&mut out, endpoints, metrics));
    let count = units::count(clients.options.max_connections as u64, "client");
    let _ = writeln!(out, "{}", styled(TITLE, "Clients"));
    let memory = units::about(clients.memory());
    let _ = writeln!(out, "  {count} at most, and {memory} of memory for all of them");
    if let Some(tls) = clients.tls {
        let how = if tls.required { "TLS only" } else { "with or without TLS" };
        let who = if tls.client_ca.is_some() { ", by certificate" } else { "" };
        let _ = writeln!(out, "  {how}{who}");
    }
    let _ = writeln!(out);
    if let Some(endpoint) = endpoints.first() {
        let _ = try_text(&mut out, &|export| clients.uri(endpoint, export), exports, control);
    }
    let _ = writeln!(out, "{} Ctrl-C stops it in order.", styled(GOOD, "Ready."));
    out
}

fn exports_text(out: &mut String, exports: &[Shown]) -> std::fmt::Result {
    writeln!(out, "{}", styled(TITLE, "Exports"))?;
    if exports.is_empty() {
        return writeln!(out, "  none: the manifest declares no [[export]]\n");
    }
    let name = |export: &Shown| match export.name.as_str() {
        "" => "(the empty name)".to_string(),
        name => printable(name).into_owned(),
    };
    let widest = |text: &dyn Fn(&Shown) -> String| {
        exports.iter().map(|export| text(export).chars().count()).max().unwrap_or(0)
    };
    let (names, sizes) = (widest(&name), widest(&|export| units::size(export.size)));
    for export in exports {
        let mut about = printable(&export.description).into_owned();
        if export.read_only {
            about = format!("read-only  {about}");
        }
        let (name, size) = (name(export), units::size(export.size));
        let line = format!("  {name:<names$}  {size:>sizes$}  {}", about.trim_end());
        writeln!(out, "{}", line.trim_end())?;
    }
    writeln!(out)
}

fn listening_text(
    out: &mut String,
    endpoints: &[Endpoint],
    metrics: Option<&str>,
) -> std::fmt::Result {
    writeln!(out, "{}", styled(TITLE, "Listening"))?;
    for endpoint in endpoints {
        let kind = match endpoint {
            Endpoint::Tcp(_) => "TCP",
            _ => "Unix",
        };
        writeln!(out, "  {kind:<4}  {}", printable(&endpoint.to_string()))?;
    }
    if let Some(metrics) = metrics {
        writeln!(out, "  Metrics  {metrics}")?;
    }
    writeln!(out)
}

/// Commands to paste. A URI has no quote in it: what isn't plain is percent-encoded.
fn try_text(
    out: &mut String,
    uri: &dyn Fn(&str) -> String,
    exports: &[Shown],
    control: Option<&Path>,
) -> std::fmt::Result {
    writeln!(out, "{}", styled(TITLE, "Try"))?;
    let command =
        |out: &mut String, command: String| writeln!(out, "  {}", styled(COMMAND, command));
    command(out, format!("nbdinfo --list '{}'", uri("")))?;
    if let Some(export) = exports.first() {
        command(out, format!("nbdcopy '{}' copy.img", uri(&export.name)))?;
        if let Some(export) = exports.iter().find(|export| !export.read_only) {
            let uri = uri(&export.name);
            command(out, format!("qemu-io -f raw -c 'write -P 7 0 1M' '{uri}'"))?;
        }
    }
    if control.is_some() {
        command(out, format!("corewise dump --pid {}", std::process::id()))?;
    }
    writeln!(out)
}
