//! The text of `corewise up` for people on stdout.

use std::fmt::Write as _;
use std::path::Path;

use corewise::nbd::Endpoint;
use corewise::timeline::markup::printable;
use corewise::timeline::{Timeline, text};
use corewise_server::manifest::LeftOut;
use corewise_server::{Notice, Ready, ShownExport, units};

use crate::screen;
use crate::screen::{COMMAND, FAINT, GOOD, TITLE, styled};

/// Returns the lines about a notice; empty if it needs none.
pub(super) fn of(notice: &Notice<'_>) -> String {
    match *notice {
        Notice::LeftOut([]) => String::new(),
        Notice::LeftOut(left_out) => left_out_text(left_out),
        Notice::BringUp(timeline) | Notice::Shutdown(timeline) => timeline_text(timeline),
        Notice::Ready(ready) => ready_text(ready),
        Notice::Stopping { why } => {
            let hint = styled(FAINT, "(another signal, a second later, ends the server at once)");
            // The terminal has just written ^C at the beginning of this line.
            format!("\n{} {hint}\n\n", styled(TITLE, format!("Stopping: {why}")))
        }
        Notice::Changed(changed) => {
            let text = changed.text();
            text.lines().map(|line| format!("{}\n", printable(line))).collect()
        }
        Notice::Mirror { device, what, legs, bytes, before } => {
            let before = before.map_or_else(String::new, |n| format!(" (and {n} times before)"));
            let legs = if legs.is_empty() { "its legs".to_string() } else { legs.join(", ") };
            let size = units::size(bytes);
            format!("Mirror {device}: {what}, {legs}, {size}{before}\n")
        }
        Notice::Made { device, size, at } => {
            format!("New: {device}, {}, at {at}\n", units::size(size))
        }
        Notice::Done { complete: true, what } => format!("{} {what}\n", styled(GOOD, "Done:")),
        Notice::Done { complete: false, what } => format!("Done in part: {what}\n"),
    }
}

fn left_out_text(left_out: &[LeftOut]) -> String {
    let mut lines = format!("{}\n", styled(TITLE, "Left out"));
    for LeftOut { subject, why } in left_out {
        // Writing to a String can't fail.
        let _ = writeln!(lines, "  {}", printable(&format!("{subject}: {why}")));
    }
    lines + "\n"
}

fn timeline_text(timeline: &Timeline) -> String {
    let rendered = text::render(timeline, screen::all_columns());
    let (head, rest) = rendered.split_once('\n').unwrap_or((&rendered, ""));
    format!("{}\n{rest}\n", styled(TITLE, head))
}

fn ready_text(ready: Ready<'_>) -> String {
    let Ready { endpoints, exports, clients, control, metrics } = ready;
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
    let _ = writeln!(out, "{} Ctrl-C stops the server in order.", styled(GOOD, "Ready."));
    out
}

fn exports_text(out: &mut String, exports: &[ShownExport]) -> std::fmt::Result {
    writeln!(out, "{}", styled(TITLE, "Exports"))?;
    if exports.is_empty() {
        return writeln!(out, "  none: the manifest declares no [[export]]\n");
    }
    let name = |export: &ShownExport| match export.name.as_str() {
        "" => "(the empty name)".to_string(),
        name => printable(name).into_owned(),
    };
    let widest = |text: &dyn Fn(&ShownExport) -> String| {
        exports.iter().map(|export| text(export).chars().count()).max().unwrap_or(0)
    };
    let (names, sizes) = (widest(&name), widest(&|export| units::size(export.size)));
    for export in exports {
        let mut about = printable(&export.description).into_owned();
        if export.read_only {
            about = format!("read-only  {about}");
        }
        for path in [&export.guests, &export.disk].into_iter().flatten() {
            about = format!("{}  {about}", path.display());
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

/// Writes commands to paste. A URI contains no quote: other characters are percent-encoded.
fn try_text(
    out: &mut String,
    uri: &dyn Fn(&str) -> String,
    exports: &[ShownExport],
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
