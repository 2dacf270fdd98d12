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

use crate::client::{self, Client};
use crate::exit::Failure;
use crate::{args, tls_files};
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
    fn connect(
        &self,
        uri: &str,
        since: Option<&str>,
        tls: &args::TlsArgs,
    ) -> Result<Arc<Queue>, Failure> {
        let failed = |why: String| Failure::new(format!("{uri}: {why}"));
        let parsed: Uri = uri.parse().map_err(|error: UriError| failed(error.to_string()))?;
        let mut options = RemoteOptions::new(parsed).timeout(PATIENCE);
        if let Some(checkpoint) = since {
            options = options.changed_since(checkpoint);
        }
        let options = tls_files::read(tls, options)?;
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
    let begun = Instant::now();
    let copied = copy_from(uri, args, &partial, &header, found);
    let copied = copied.map_err(|error| interrupted(args, &partial, &header, error))?;
    std::fs::rename(&partial, &args.to).map_err(|error| at(&args.to, error))?;
    let kind = if header.since.is_some() { "changes" } else { "all" };
    println!(
        "backed up {kind} of '{}' at checkpoint '{}': {} in {}",
        args.name,
        report.name,
        units::about(copied),
        corewise::timeline::duration(begun.elapsed()),
    );
    Ok(())
}

/// Copies a checkpoint from the server at `uri`. Returns the bytes of data in the backup.
fn copy_from(
    uri: &str,
    args: &args::Backup,
    partial: &Path,
    header: &Header,
    found: Option<copy::Unfinished>,
) -> Result<u64, Failure> {
    let clients = Clients::new()?;
    let tls = &args.tls;
    // The server names its address without TLS.
    let mut uri = match (uri.strip_prefix("nbd"), &tls.ca) {
        (Some(rest), Some(_)) => format!("nbds{rest}"),
        _ => uri.to_string(),
    };
    if let Some(name) = &args.tls_hostname {
        let before = if uri.contains('?') { '&' } else { '?' };
        uri += &format!("{before}tls-hostname={name}");
    }
    let image = clients.connect(&uri, None, tls)?;
    let since = header.since.as_ref();
    let changes = since.map(|since| clients.connect(&uri, Some(&since.name), tls)).transpose()?;
    copy::copy(partial, header.clone(), found, &image, changes.as_deref(), args.rate)
}

/// Returns the failure of a backup with its reason, and what becomes of its file.
fn interrupted(args: &args::Backup, partial: &Path, header: &Header, error: Failure) -> Failure {
    let (name, checkpoint, file) = (&args.name, &header.checkpoint.name, partial.display());
    let (why, help) = match readable(args, header) {
        Ok(Err(why)) => {
            let delete = match why.ends_with(DELETED) {
                true => String::new(),
                false => format!(
                    ", delete the checkpoint (corewise checkpoint {name} --delete {checkpoint}),"
                ),
            };
            (why, format!("remove '{file}'{delete} and begin a new backup"))
        }
        // The server's state doesn't explain it.
        _ => (
            error.words(),
            format!(
                "'{file}' has what was copied: the same command continues it while checkpoint \
                 '{checkpoint}' can be read. Else remove that file"
            ),
        ),
    };
    let failure = Failure::new(format!("the backup was interrupted: {why}"));
    if partial.exists() { failure.help(help) } else { failure }
}

/// The end of the reason why a checkpoint that isn't there can't be read.
const DELETED: &str = "was deleted";

/// Returns the checkpoint of a backup, or the reason why it can't be read any more.
fn readable(
    args: &args::Backup,
    header: &Header,
) -> Result<Result<CheckpointReport, String>, Failure> {
    let all = ask(args, "checkpoints", None)?;
    let name = &header.checkpoint.name;
    Ok(match all.into_iter().find(|one| point(one) == header.checkpoint) {
        None => Err(format!("checkpoint '{name}' {DELETED}")),
        Some(found) if found.readable => Ok(found),
        Some(found) => {
            let why = found.unreadable.unwrap_or_else(|| "it can't be read".to_string());
            Err(format!("checkpoint '{name}': {why}"))
        }
    })
}

/// Returns the checkpoint of a backup that was begun before.
fn checkpoint_of(
    args: &args::Backup,
    partial: &Path,
    header: &Header,
) -> Result<CheckpointReport, Failure> {
    let refused = |what: String| {
        let help = "continue it by the command that began it, or remove that file to begin anew";
        Err(at(partial, what).help(help))
    };
    let other = |flag: &str, begun: Option<&str>, asked: Option<&str>| {
        let words =
            |name: Option<&str>| name.map_or(format!("no {flag}"), |name| format!("{flag} {name}"));
        let (begun, asked) = (words(begun), words(asked));
        refused(format!("this backup was begun with {begun}, and this command has {asked}"))
    };
    if header.device != args.name {
        return refused(format!(
            "this backup is one of '{}', not of '{}'",
            header.device, args.name
        ));
    }
    let (begun, asked) = (header.since.as_ref().map(|one| &*one.name), args.since.as_deref());
    if begun != asked {
        return other("--since", begun, asked);
    }
    let taken = &*header.checkpoint.name;
    if args.checkpoint.as_ref().is_some_and(|asked| asked != taken) {
        return other("--checkpoint", Some(taken), args.checkpoint.as_deref());
    }
    if let Some(point) = &header.since {
        if since(args, &point.name)? != *point {
            return refused(format!(
                "this backup was begun with --since {0}, and '{0}' is another checkpoint by now",
                point.name
            ));
        }
    }
    let found = readable(args, header)?;
    found.map_err(|why| at(partial, why).help("remove that file to begin anew"))
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
