//! `corewise backup` and `corewise restore`: copies of a device as it was at a checkpoint, in full
//! or of what changed since another one.
//!
//! The server takes the checkpoint; the data comes over NBD, from the export of the checkpoint.
//! The metadata context of the other checkpoint tells the changes. `format` has the bytes of a
//! backup, `copy` makes one, and `restore` puts several together.

mod copy;
mod format;
mod restore;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use corewise::blockmq::Queue;
use corewise::nbd::{Remote, RemoteOptions, Uri, UriError};
use corewise::topology::Machine;
use corewise::workqueue::{WorkerPools, Workqueue};
use corewise_server::control::Question;
use corewise_server::control::checkpoints::CheckpointReport;
use corewise_server::units;

use crate::args;
use crate::client::{self, Client};
use crate::exit::Failure;
use format::{Header, Point};
pub(crate) use restore::restore;

/// Longest wait for a reply of the server.
const PATIENCE: Duration = Duration::from_secs(60);

/// The workers of NBD clients in this process.
struct Clients {
    machine: Machine,
    pools: WorkerPools,
    workqueue: Workqueue,
}

impl Clients {
    fn new() -> Result<Clients, Failure> {
        let failed = |why: &dyn std::fmt::Display| Failure::new(format!("cannot start: {why}"));
        let machine = Machine::live().map_err(|error| failed(&error))?;
        let pools = WorkerPools::new(&machine);
        let workqueue =
            Workqueue::builder("backup").build(&pools).map_err(|error| failed(&error))?;
        Ok(Clients { machine, pools, workqueue })
    }

    /// Connects to an export. With a checkpoint, its extents tell what changed since.
    fn connect(&self, uri: &str, since: Option<&str>) -> Result<Arc<Queue>, Failure> {
        let failed = |why: String| Failure::new(format!("{uri}: {why}"));
        let parsed: Uri = uri.parse().map_err(|error: UriError| failed(error.to_string()))?;
        let mut options = RemoteOptions::new(parsed).timeout(PATIENCE);
        if let Some(checkpoint) = since {
            options = options.changed_since(checkpoint);
        }
        let remote = Remote::connect(options).map_err(|error| Failure::new(error.to_string()))?;
        Ok(Queue::builder(&self.machine, Arc::new(remote)).build(&self.workqueue))
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.pools.shutdown();
    }
}

/// A limit of bytes a second.
struct Pace {
    rate: Option<u64>,
    begun: Instant,
    bytes: u64,
}

impl Pace {
    fn new(rate: Option<u64>) -> Pace {
        Pace { rate, begun: Instant::now(), bytes: 0 }
    }

    /// Counts `bytes`, and sleeps until the rate allows them.
    fn spend(&mut self, bytes: u64) {
        self.bytes += bytes;
        let Some(rate) = self.rate else { return };
        let due = Duration::from_secs_f64(self.bytes as f64 / rate as f64);
        std::thread::sleep(due.saturating_sub(self.begun.elapsed()));
    }
}

/// Returns the path with this suffix.
fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn at(path: &Path, why: impl std::fmt::Display) -> Failure {
    Failure::new(format!("'{}': {why}", path.display()))
}

/// Asks the server about the checkpoints of a device.
fn ask(
    args: &args::Backup,
    ask: &str,
    checkpoint: Option<String>,
) -> Result<Vec<CheckpointReport>, Failure> {
    let question = Question { disk: Some(args.name.clone()), checkpoint, ..Question::new(ask) };
    let answer = Client::find(&args.server)?.ask_for_long(&question)?;
    client::part(&answer, "checkpoints")
}

fn point(report: &CheckpointReport) -> Point {
    Point { name: report.name.clone(), taken: report.taken as u64 }
}

/// Makes a backup, or continues one that was interrupted.
pub(crate) fn backup(args: &args::Backup) -> Result<(), Failure> {
    if args.to.exists() {
        return Err(at(&args.to, "the file exists. Name a new one"));
    }
    let partial = with_suffix(&args.to, ".partial");
    let found = partial.exists().then(|| copy::Unfinished::open(&partial)).transpose()?;
    let (report, header, found) = match found {
        Some(found) => {
            let report = checkpoint_of(args, &partial, &found.header)?;
            (report, found.header.clone(), Some(found))
        }
        None => {
            let since = args.since.as_ref().map(|name| since(args, name)).transpose()?;
            let mut taken = ask(args, "checkpoint", args.checkpoint.clone())?;
            let report =
                taken.pop().ok_or_else(|| Failure::new("the server took no checkpoint"))?;
            let checkpoint = point(&report);
            let header = Header { size: 0, device: args.name.clone(), checkpoint, since };
            (report, header, None)
        }
    };
    let Some(uri) = report.uris.first() else {
        let why = format!(
            "checkpoint '{}' of '{}' can't be read: give the device 'copies' and an [[export]]",
            report.name, args.name
        );
        return Err(Failure::new(why));
    };
    let clients = Clients::new()?;
    let image = clients.connect(uri, None)?;
    let changes = match &header.since {
        Some(since) => Some(clients.connect(uri, Some(&since.name))?),
        None => None,
    };
    let begun = Instant::now();
    let copied = copy::copy(&partial, header, found, &image, changes.as_deref(), args.rate)?;
    std::fs::rename(&partial, &args.to).map_err(|error| at(&args.to, error))?;
    let kind = if changes.is_some() { "changes" } else { "all" };
    drop((image, changes));
    println!(
        "backed up {kind} of '{}' at checkpoint '{}': {} in {}",
        args.name,
        report.name,
        units::about(copied),
        corewise::timeline::duration(begun.elapsed()),
    );
    Ok(())
}

/// Returns the checkpoint of a backup that was begun before.
fn checkpoint_of(
    args: &args::Backup,
    partial: &Path,
    header: &Header,
) -> Result<CheckpointReport, Failure> {
    let other = |what: &str| {
        let why = format!("it was begun {what}. Remove it to begin anew");
        at(partial, why)
    };
    let since = header.since.as_ref().map(|point| &point.name);
    if header.device != args.name {
        return Err(other(&format!("for '{}'", header.device)));
    }
    if since != args.since.as_ref() {
        return Err(other("with another --since"));
    }
    let all = ask(args, "checkpoints", None)?;
    let found = all.into_iter().find(|one| point(one) == header.checkpoint && one.readable);
    found.ok_or_else(|| {
        other(&format!("at checkpoint '{}', which can't be read any more", header.checkpoint.name))
    })
}

/// Returns the checkpoint of that name.
fn since(args: &args::Backup, name: &str) -> Result<Point, Failure> {
    let all = ask(args, "checkpoints", None)?;
    if let Some(found) = all.iter().find(|one| one.name == name) {
        return Ok(point(found));
    }
    let names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
    let known = match names.is_empty() {
        true => "it has none. Make a full backup first, without --since".to_string(),
        false => format!("it has {}", names.join(", ")),
    };
    Err(Failure::new(format!("'{}' has no checkpoint '{name}': {known}", args.name)))
}
