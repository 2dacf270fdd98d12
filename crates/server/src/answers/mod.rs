//! The server's end of the control socket: one thread, for as long as the server runs.
//!
//! The thread is no part of the server's work and can't hold it up. It sleeps in `poll` until a
//! client asks, answers at most a hundred times a second, and waits for nothing that the server
//! does. Clients can't hurt it: there are at most [`serving::CLIENTS`], and a new one replaces the
//! one that has been quiet for longest. A question has a maximum length, and the thread reads
//! nothing from a client that doesn't take its answer. Only this user and root are let in.

mod bound;
mod serving;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corewise::device::DeviceManager;
use corewise::workqueue::WorkerPools;

use crate::control::calls::{self, CallTargetsReport};
use crate::control::devices::{self, Device};
use crate::control::disks::{self, Disks};
use crate::control::document::Document;
use crate::control::health::{Facts, Health, ServerFacts};
use crate::control::queues;
use crate::control::served::{self, Export};
use crate::control::{Answer, LONGEST_QUESTION, Question, ServerInfo, VERSION, matches};
use crate::live::{Change, ChangeRequest, Live, checkpoints, snapshots};
use crate::threads::{SpareThread, no_thread};

pub(crate) use bound::{bind, bind_at};
pub(crate) use serving::Control;

/// Timeout for a client to take the answer about a change.
const PATIENCE: Duration = Duration::from_secs(10);

/// The parts of a server that answers describe.
pub(crate) struct ServerView {
    pub(crate) pools: WorkerPools,
    pub(crate) manager: Arc<DeviceManager>,
    pub(crate) disks: Arc<Disks>,
    pub(crate) manifest: String,
    pub(crate) live: Arc<Live>,
    pub(crate) since: Instant,
}

/// Returns the question if it asks for a change, or for a request to a store.
fn wants_change(question: &[u8]) -> Option<Question> {
    let question: Question = serde_json::from_slice(question).ok()?;
    let wants = ChangeRequest::of(&question).is_some()
        || snapshots::request(&question).is_some()
        || checkpoints::request(&question).is_some();
    (wants && question.corewise == VERSION).then_some(question)
}

/// Returns the word that a valid question asks for.
fn asked_word(question: &[u8]) -> Option<String> {
    let question: Question = serde_json::from_slice(question).ok()?;
    (question.corewise == VERSION).then_some(question.ask)
}

/// Makes a change on a thread, which then answers. A second change at the same time fails at once.
fn answer_change(
    view: &Arc<ServerView>,
    spare: &SpareThread,
    stream: UnixStream,
    question: Question,
) {
    // A client whose thread can't be started gets an answer, too.
    let stream = Arc::new(stream);
    let (view, theirs) = (Arc::clone(view), (Arc::clone(view), Arc::clone(&stream)));
    let run = move || {
        let (view, stream) = theirs;
        let answer = answered(&view, || {
            if let Some(request) = snapshots::request(&question) {
                let (volume, request) = request?;
                let snapshots = view.live.snapshots(&volume, &request);
                let snapshots = Some(snapshots.map_err(|error| error.to_string())?);
                return Ok(Answer { snapshots, ..Answer::default() });
            }
            if let Some(request) = checkpoints::request(&question) {
                let (device, request) = request?;
                let checkpoints = view.live.checkpoints(&device, &request);
                let checkpoints = Some(checkpoints.map_err(|error| error.to_string())?);
                return Ok(Answer { checkpoints, ..Answer::default() });
            }
            let request =
                ChangeRequest::of(&question).ok_or("the question asks for no change")??;
            let mode = question.mode.unwrap_or_default();
            let change = Change { request, mode, dry_run: question.dry_run };
            let changed = view.live.change(&change).map_err(|error| error.to_string())?;
            Ok(Answer { changed: Some(changed), ..Answer::default() })
        });
        // The change is made even if the client doesn't wait for its answer.
        let _ = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
            .and_then(|()| (&*stream).write_all(&answer));
    };
    if let Err(error) = spare.run("change", run) {
        let why = format!("the server changed nothing: {}", no_thread(&error));
        tracing::warn!("a client asked for a change: {why}");
        // The socket has room for that, as nothing else was sent.
        let _ = (&*stream).write_all(&answered(&view, || Err(why)));
    }
}

/// Returns the answer to a question, as a line.
fn line(view: &ServerView, question: &[u8]) -> Vec<u8> {
    answered(view, || answer(view, question))
}

fn server_info(view: &ServerView) -> ServerInfo {
    ServerInfo {
        corewise: VERSION,
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_string(),
        manifest: view.manifest.clone(),
        up_seconds: view.since.elapsed().as_secs_f64(),
    }
}

fn answered(view: &ServerView, answer: impl FnOnce() -> Result<Answer, String>) -> Vec<u8> {
    // A panic here must not end the server.
    let answered = catch_unwind(AssertUnwindSafe(answer));
    let answered = answered.unwrap_or_else(|_| Err("this is a bug in corewise".to_string()));
    let answer = match answered {
        Ok(answer) => Answer { who: server_info(view), ..answer },
        Err(error) => Answer { who: server_info(view), error: Some(error), ..Answer::default() },
    };
    let mut line = serde_json::to_vec(&answer).unwrap_or_else(|_| b"{}".to_vec());
    line.push(b'\n');
    line
}

fn answer(view: &ServerView, question: &[u8]) -> Result<Answer, String> {
    if question.len() >= LONGEST_QUESTION && question.last() != Some(&b'\n') {
        return Err(format!("a question must be one line of at most {LONGEST_QUESTION} bytes"));
    }
    let question: Question = serde_json::from_slice(question).map_err(|error| {
        format!(
            "not a question: {error}; write {{\"corewise\":{VERSION},\"ask\":\"dump\"}}, for \
                 example"
        )
    })?;
    if question.corewise != VERSION {
        let theirs = question.corewise;
        return Err(format!("this server speaks version {VERSION}, not version {theirs}"));
    }
    match question.ask.as_str() {
        "hello" => Ok(Answer::default()),
        "dump" => dump(view, &question),
        "health" => {
            let health = Some(health(view));
            Ok(Answer { health, ..Answer::default() })
        }
        "take_back" => take_back(view, &question),
        "check" => check(view, &question),
        "clients" => {
            let clients = Some(served::clients(&view.live.server, &view.live.front_ends.shown()));
            Ok(Answer { clients, ..Answer::default() })
        }
        "disconnect" => disconnect(view, &question),
        other => Err(format!(
            "there is no question '{other}'; ask hello, dump, health, clients, disconnect, events, mirrors, take_back, check, replace, add_leg, remove_leg, snapshot, snapshots, delete_snapshot, checkpoint, checkpoints, delete_checkpoint, reset_overlay, commit_overlay, flatten_overlay, add, remove, grow or reload"
        )),
    }
}

/// Asks the mirror to try its legs again, which a worker of the volumes does.
fn take_back(view: &ServerView, question: &Question) -> Result<Answer, String> {
    let disk = question.disk.as_deref().ok_or("'take_back' needs a 'disk'")?;
    let taken_back = view.disks.take_back(disk, question.leg.as_deref())?;
    Ok(Answer { taken_back: Some(taken_back), ..Answer::default() })
}

/// Asks the mirror for a check, which a worker of the volumes does.
fn check(view: &ServerView, question: &Question) -> Result<Answer, String> {
    let disk = question.disk.as_deref().ok_or("'check' needs a 'disk'")?;
    view.disks.check(disk, &question.check.clone().unwrap_or_default())?;
    Ok(Answer::default())
}

fn disconnect(view: &ServerView, question: &Question) -> Result<Answer, String> {
    let id = question.client.ok_or("'disconnect' needs a 'client', its number")?;
    if id == 0 {
        return Err("a client with the number 0 is a disk of this machine: its users let it go \
                    (umount), or `corewise remove` ends its export"
            .to_string());
    }
    let server = &view.live.server;
    let client = server.clients().into_iter().find(|client| client.id == id);
    // The client may leave by itself meanwhile.
    let client =
        client.filter(|_| server.disconnect(id)).map(|client| served::Client::new(&client));
    let guest = || view.live.front_ends.disconnect(id).map(|disk| served::Client::of_disk(&disk));
    match client.or_else(guest) {
        None => Err(format!("there is no client {id}; `corewise clients` lists them")),
        disconnected => Ok(Answer { disconnected, ..Answer::default() }),
    }
}

fn exports(view: &ServerView) -> Vec<Export> {
    let shown = view.live.shown.lock().clone();
    let of = |name: &str| Some(shown.iter().find(|shown| shown.name == name)?.device.clone());
    let exports = view.live.exports();
    let mut exports: Vec<Export> =
        exports.iter().map(|export| Export::new(export, of(&export.name))).collect();
    view.live.status.recent_exports.lock().fill(&mut exports);
    exports
}

/// Returns all metrics.
pub(crate) fn metrics(view: &ServerView) -> String {
    crate::control::metrics::text(&Answer { who: server_info(view), ..whole(view) })
}

/// Returns the server's health.
pub(crate) fn health(view: &ServerView) -> Health {
    all_but_pools(view).health.unwrap_or_default()
}

/// Returns the whole answer, without the text.
fn whole(view: &ServerView) -> Answer {
    Answer { dump: Some(Document::from(&view.pools.dump())), ..all_but_pools(view) }
}

/// Returns the facts about the server itself.
fn facts(live: &Live, devices: &[Device]) -> ServerFacts {
    let stuck = live.stuck.lock().clone();
    let metrics = live.metrics.lock().as_ref().and_then(|one| one.path().map(Path::to_path_buf));
    let (ended, unread) = (live.has_ended(), live.report.observer.unread());
    let facts =
        live.status.facts(ended, &stuck, devices, &live.cleanup, metrics.as_deref(), unread);
    ServerFacts { waiting: live.front_ends.waiting(), ..facts }
}

fn all_but_pools(view: &ServerView) -> Answer {
    let server = &view.live.server;
    let (devices, disks, exports) = (devices::all(&view.manager), view.disks.all(), exports(view));
    let facts = facts(&view.live, &devices);
    let health =
        Health::of(&Facts { devices: &devices, disks: &disks, exports: &exports, server: &facts });
    Answer {
        health: Some(health),
        devices: Some(devices),
        disks: Some(disks),
        exports: Some(exports),
        clients: Some(served::clients(server, &view.live.front_ends.shown())),
        handshakes: Some(server.handshakes().into()),
        memory: Some(server.memory().into()),
        ..Answer::default()
    }
}

fn dump(view: &ServerView, question: &Question) -> Result<Answer, String> {
    let mut dump = view.pools.dump();
    for pattern in &question.queues {
        if !dump.queues.iter().any(|queue| matches(pattern, &queue.name)) {
            let mut names: Vec<&str> = dump.queues.iter().map(|q| q.name.as_str()).collect();
            names.dedup();
            return Err(match names.is_empty() {
                true => format!("there is no queue '{pattern}': the server has no queues"),
                false => {
                    let names = names.join(", ");
                    format!("there is no queue '{pattern}'; the queues are: {names}")
                }
            });
        }
    }
    if !question.queues.is_empty() {
        dump.retain_queues(|name| question.queues.iter().any(|pattern| matches(pattern, name)));
    }
    // A client that names queues gets only those.
    let rest = match question.queues.is_empty() {
        true => {
            let call_targets = view.live.calls.dump().as_ref().map(CallTargetsReport::from);
            Answer { call_targets, ..all_but_pools(view) }
        }
        false => Answer::default(),
    };
    let text = question.text.map(|width| {
        let devices =
            rest.devices.as_deref().map(|all| devices::text(all, width)).unwrap_or_default();
        let disks = rest.disks.as_deref().map(|all| disks::text(all, width)).unwrap_or_default();
        let served = match (&rest.exports, &rest.clients) {
            (Some(exports), Some(clients)) => served::text(exports, clients, width),
            _ => String::new(),
        };
        let calls = rest.call_targets.as_ref();
        let calls = calls.map(|targets| calls::text(targets, width)).unwrap_or_default();
        // Health comes first, since most readers look for it.
        let health = rest.health.as_ref().map(Health::section).unwrap_or_default();
        format!("{health}{}{calls}{devices}{disks}{served}", queues::text(&dump, width))
    });
    Ok(Answer { dump: Some(Document::from(&dump)), text, ..rest })
}
