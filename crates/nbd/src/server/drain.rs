//! Draining: an orderly end with a deadline, for one export or for the whole server.
//!
//! 1. Accepting: the normal state.
//! 2. Quiescing: no new clients come in, and new requests get `ESHUTDOWN`.
//! 3. Draining: requests in flight finish and are answered, each client's device is flushed, then
//!    its connection is closed. An idle client is closed at once. A client that doesn't soon send
//!    the rest of a request isn't waited for.
//! 4. Gone: the device is flushed once more. After the deadline the remaining connections are cut.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use corewise_blockmq::{BlockDevice, Request};
use corewise_sync::{Completion, Mutex, time};

use super::{ClientEvent, Inner};
use crate::client_log::{ClientFacts, LineKind};
use crate::connection::Connection;
use crate::deadline::Deadline;
use crate::export::Export;
use corewise_export::Identity;

/// Time in which incomplete requests may still arrive. It is at most half of the time until the
/// deadline.
const GRACE: Duration = Duration::from_secs(1);

/// The outcome of the last flush of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FlushOutcome {
    /// All answered changes are durable.
    Done,
    /// The device refused, for this reason.
    Failed(String),
    /// The flush hadn't finished at the deadline.
    Unfinished,
}

/// The flush of an export's device at the end of a drain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportFlush {
    /// The export's name.
    pub export: String,
    /// Outcome of the flush.
    pub outcome: FlushOutcome,
}

/// The result of a drain.
#[must_use = "it says which clients were cut, and whether what they were answered is durable"]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DrainReport {
    /// Clients that were connected when the drain began, those in their handshake included.
    pub clients: usize,
    /// Clients that had nothing in flight, and were closed at once.
    pub idle: usize,
    /// Clients whose connections were cut at the deadline.
    pub cut: usize,
    /// Requests in flight at the beginning that finished. If their client was still there, they
    /// were answered.
    pub requests_completed: u64,
    /// Requests in flight at the beginning, or refused since, whose replies were lost by a cut.
    pub requests_cut: u64,
    /// Flush of each export. An export that no client has changed needs none.
    pub flushes: Vec<ExportFlush>,
    /// Duration of the drain.
    pub took: Duration,
}

impl DrainReport {
    /// Returns true if no client was cut and each device was flushed.
    pub fn is_clean(&self) -> bool {
        self.cut == 0 && self.flushes.iter().all(|flush| flush.outcome == FlushOutcome::Done)
    }
}

impl fmt::Display for DrainReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let clients = |n: usize| if n == 1 { "client" } else { "clients" };
        let requests = |n: u64| if n == 1 { "request" } else { "requests" };
        let (all, answered) = (self.clients, self.requests_completed);
        write!(f, "{all} {} ({} idle), ", clients(all), self.idle)?;
        write!(f, "{answered} {} answered", requests(answered))?;
        if self.cut > 0 {
            let (cut, lost) = (self.cut, self.requests_cut);
            write!(f, ", {cut} {} disconnected with {lost} {}", clients(cut), requests(lost))?;
        }
        for ExportFlush { export, outcome } in &self.flushes {
            match outcome {
                FlushOutcome::Done => {}
                FlushOutcome::Failed(why) => write!(f, "; flush of '{export}' failed: {why}")?,
                FlushOutcome::Unfinished => write!(f, "; flush of '{export}' didn't finish")?,
            }
        }
        Ok(())
    }
}

/// Drains these connections and flushes these exports, which are closed to new clients already.
/// `why` is the reason given for the end of each connection. Blocks until the deadline at most.
pub(super) fn drain(
    server: &Inner,
    exports: &[Export],
    connections: Vec<Arc<Connection>>,
    deadline: &mut Deadline,
    why: &str,
) -> DrainReport {
    let begin = time::now();
    let mut report = DrainReport { clients: connections.len(), ..DrainReport::default() };
    let mut in_flight = 0;
    for connection in &connections {
        let owed = connection.drain(|| why.to_owned()).requests;
        report.idle += usize::from(owed == 0);
        in_flight += u64::from(owed);
    }
    // A request that came in part wasn't answered, so it may be lost. If it isn't whole by now, it
    // may never be. The client's other requests are still answered.
    let mut grace = Deadline::after(GRACE.min(deadline.left() / 2));
    let registry = &server.registry;
    let connections = registry.wait_until_gone(connections, || grace.wait().min(deadline.wait()));
    for connection in &connections {
        connection.stop_reading();
    }
    for connection in registry.wait_until_gone(connections, || deadline.wait()) {
        let late =
            |owed| format!("{why}, and the client had {owed} unanswered requests at the deadline");
        // The report comes before the cut, which makes the client's own thread leave and report.
        let left = registry.leave_behind(&connection);
        let was = connection.cut(|| late(connection.load.snapshot().requests));
        // Otherwise it was cut for another reason, which was logged. Its requests are still in the
        // device.
        let requests = (!was.cut).then_some(was.requests);
        report.cut += usize::from(requests.is_some());
        report.requests_cut += u64::from(requests.unwrap_or(0));
        if let Some((export, who)) = left {
            tell_cut(server, &connection, &export, &who, requests);
        }
    }
    report.requests_completed = in_flight.saturating_sub(report.requests_cut);
    report.flushes = flush_all(exports, deadline);
    report.took = time::now().saturating_duration_since(begin);
    report
}

/// Reports a client that was cut, with the number of its lost requests if the deadline is the
/// reason. Its own thread may have to wait for the device longer than an observer exists.
fn tell_cut(
    server: &Inner,
    connection: &Connection,
    export: &str,
    who: &Identity,
    requests: Option<u32>,
) {
    if let Some(requests) = requests {
        connection.log.tell(LineKind::Late, |ClientFacts { client, .. }| {
            let (peer, export) = (who.clone(), export.to_owned());
            move |left_out: Option<u64>| {
                tracing::warn!(client, %peer, export, requests, left_out,
                    "disconnected at the deadline of a drain");
            }
        });
    }
    let (Identity { peer, pid, names }, why) = (who, connection.cause().unwrap_or_default());
    let (id, names) = (connection.id, &**names);
    server.tell(&ClientEvent::Left { id, peer: *peer, pid: *pid, names, export, why: &why });
}

/// Flushes every device that clients have changed, all at the same time. After the deadline a flush
/// is still submitted, but not waited for.
fn flush_all(exports: &[Export], deadline: &mut Deadline) -> Vec<ExportFlush> {
    let flushes: Vec<_> = exports
        .iter()
        .filter(|export| export.is_writable())
        .map(|export| {
            let slot = Arc::new((Completion::new(), Mutex::new(FlushOutcome::Unfinished)));
            if !export.shared.was_changed() {
                *slot.1.lock() = FlushOutcome::Done;
                slot.0.complete();
                return (export.name().to_owned(), slot);
            }
            let theirs = Arc::clone(&slot);
            // The outcome carries the error.
            export.device().submit(Request::flush().quiet().on_complete(move |done| {
                *theirs.1.lock() = match done.result {
                    Ok(()) => FlushOutcome::Done,
                    Err(error) => FlushOutcome::Failed(error.to_string()),
                };
                theirs.0.complete();
            }));
            (export.name().to_owned(), slot)
        })
        .collect();
    flushes
        .into_iter()
        .map(|(export, slot)| {
            // If the time runs out, the outcome says so: the flush didn't finish.
            loop {
                let wait = deadline.wait();
                if slot.0.wait_timeout(wait) || wait.is_zero() {
                    break;
                }
            }
            let outcome = slot.1.lock().clone();
            ExportFlush { export, outcome }
        })
        .collect()
}
