//! The way back: a full backup, and those of changes behind it, become a file or fill an export.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use corewise::blockmq::{BlockDevice, BlockDeviceExt, Queue};
use corewise_server::control::{Question, served};
use corewise_server::units;

use super::format::{BadBackup, HEAD, Header, Record};
use super::{Clients, Pace, at, with_suffix};
use crate::args;
use crate::client::{self, Client};
use crate::exit::Failure;

/// The place that gets the content.
enum Target {
    /// A new sparse file.
    File(File, PathBuf),
    /// An export of a server.
    Export(Arc<Queue>),
    /// Nothing: the backups are only verified.
    None,
}

impl Target {
    fn write(&self, offset: u64, data: Vec<u8>) -> Result<(), Failure> {
        match self {
            Target::File(file, path) => {
                file.write_all_at(&data, offset).map_err(|error| at(path, error))
            }
            Target::Export(device) => {
                device.write_at(offset, data).map_err(|error| Failure::new(error.to_string()))
            }
            Target::None => Ok(()),
        }
    }

    /// Writes zeroes. `is_fresh` says that the target has nothing else yet.
    fn zero(&self, offset: u64, len: u64, is_fresh: bool) -> Result<(), Failure> {
        match self {
            Target::File(..) if is_fresh => Ok(()),
            Target::File(file, path) => punch(file, offset, len).map_err(|error| at(path, error)),
            Target::Export(device) => {
                device.write_zeroes(offset, len).map_err(|error| Failure::new(error.to_string()))
            }
            Target::None => Ok(()),
        }
    }

    /// Returns advice about what a failed restore leaves.
    fn left(&self) -> Option<String> {
        match self {
            Target::File(_, partial) => Some(format!(
                "'{}' has what was restored. Remove it before the next try: a restore can't be \
                 continued",
                partial.display()
            )),
            Target::Export(_) => Some(
                "the export has a mixture of old and restored content. Restore again".to_string(),
            ),
            Target::None => None,
        }
    }

    fn finish(self, to: &Path) -> Result<(), Failure> {
        match self {
            Target::File(file, partial) => {
                let done = file.sync_all().and_then(|()| std::fs::rename(&partial, to));
                done.map_err(|error| at(&partial, error))
            }
            Target::Export(device) => {
                device.flush().map_err(|error| Failure::new(error.to_string()))
            }
            Target::None => Ok(()),
        }
    }
}

/// Returns the other clients of the device of which this process is a client. A server on another
/// machine, or of another user, shows none.
fn other_clients() -> Vec<String> {
    Client::all()
        .into_iter()
        .flat_map(|mut server| others_at(&mut server).unwrap_or_default())
        .collect()
}

fn others_at(server: &mut Client) -> Result<Vec<String>, Failure> {
    let answer = server.ask(&Question::new("dump"))?;
    let clients: Vec<served::Client> = client::part(&answer, "clients")?;
    let exports: Vec<served::Export> = client::part(&answer, "exports")?;
    let device = |client: &served::Client| {
        let export = exports.iter().find(|export| Some(&export.name) == client.export.as_ref())?;
        export.device.clone()
    };
    let (ours, others): (Vec<_>, Vec<_>) =
        clients.iter().partition(|client| client.from.pid == Some(std::process::id()));
    let Some(restored) = ours.into_iter().find_map(device) else { return Ok(Vec::new()) };
    let others = others.into_iter().filter(|client| device(client).as_ref() == Some(&restored));
    let words = |other: &served::Client| {
        let process = other.from.pid.map(|pid| format!(", process {pid}")).unwrap_or_default();
        let (number, from, export) = (other.client, other.from.words(), other.export_words());
        format!("client {number} of '{export}' ({from}{process})")
    };
    Ok(others.map(words).collect())
}

fn punch(file: &File, offset: u64, len: u64) -> std::io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match fallocate(file, flags, offset, len) {
        Ok(()) => Ok(()),
        // The file system has no holes.
        Err(_) => {
            let zeroes = vec![0; 1 << 20];
            let mut at = offset;
            while at < offset + len {
                let some = (offset + len - at).min(zeroes.len() as u64);
                file.write_all_at(&zeroes[..some as usize], at)?;
                at += some;
            }
            Ok(())
        }
    }
}

/// Puts backups together: a full one, and then changes in their order.
pub(crate) fn restore(args: &args::Restore) -> Result<(), Failure> {
    let headers = args.backups.iter().map(|path| header(path)).collect::<Result<Vec<_>, _>>()?;
    verify_chain(&args.backups, &headers)?;
    // The device may have grown between two backups.
    let size = headers.iter().map(|header| header.size).max().unwrap_or(0);
    let begun = Instant::now();
    let clients;
    let target = match &args.to {
        None => Target::None,
        Some(to) if to.to_string_lossy().contains("://") => {
            clients = Clients::new()?;
            let device = clients.connect(&to.to_string_lossy(), None, &args.tls)?;
            let has = device.geometry().size;
            if has < size {
                let why = format!("the export has {has} bytes, and the backup needs {size}");
                return Err(at(to, why));
            }
            let others = if args.force { Vec::new() } else { other_clients() };
            if !others.is_empty() {
                let why = format!("the export is in use by {}", others.join(", "));
                let help = "disconnect them first, or overwrite the export under them by --force";
                return Err(at(to, why).help(help));
            }
            Target::Export(device)
        }
        Some(to) => {
            if to.exists() {
                return Err(at(to, "the file exists. Name a new one"));
            }
            let partial = with_suffix(to, ".partial");
            let file = File::create_new(&partial).map_err(|error| match error.kind() {
                ErrorKind::AlreadyExists => {
                    let why = "the file exists: a restore or a backup was interrupted";
                    at(&partial, why).help("remove it, and restore again")
                }
                _ => at(&partial, error),
            })?;
            Target::File(file, partial)
        }
    };
    let to = args.to.as_deref().unwrap_or(Path::new(""));
    let left = target.left();
    let filled = fill(args, target, to, size);
    let bytes = filled.map_err(|failure| match left {
        Some(left) => failure.help(left),
        None => failure,
    })?;
    let did = if args.to.is_some() { "restored" } else { "verified" };
    let last = headers.last().map_or("", |header| header.checkpoint.name.as_str());
    println!(
        "{did} {} at checkpoint '{last}' from {}: {} of data in {}",
        units::size(size),
        units::count(headers.len() as u64, "backup"),
        units::about(bytes),
        corewise::timeline::duration(begun.elapsed()),
    );
    Ok(())
}

/// Writes all backups to the target. Returns the bytes of data.
fn fill(args: &args::Restore, target: Target, to: &Path, size: u64) -> Result<u64, Failure> {
    if let Target::File(file, partial) = &target {
        file.set_len(size).map_err(|error| at(partial, error))?;
    }
    let (mut pace, mut bytes) = (Pace::new(args.rate), 0);
    for (n, path) in args.backups.iter().enumerate() {
        bytes += apply(path, &target, n == 0, &mut pace)?;
    }
    target.finish(to)?;
    Ok(bytes)
}

fn bad(path: &Path, why: BadBackup) -> Failure {
    match why {
        BadBackup::Truncated => {
            at(path, "the backup is incomplete: the end is missing. Use another one")
        }
        why => at(path, why),
    }
}

/// Reads the header of a backup, and verifies that it has an end.
fn header(path: &Path) -> Result<Header, Failure> {
    let io = |error| at(path, error);
    let mut file = File::open(path).map_err(io)?;
    let header = Header::read(&mut file).map_err(|why| bad(path, why))?;
    let cut = |_| bad(path, BadBackup::Truncated);
    file.seek(SeekFrom::End(-(HEAD as i64))).map_err(cut)?;
    match Record::read(&mut file, header.size, 0) {
        Ok(Record::End(..)) => Ok(header),
        _ => Err(bad(path, BadBackup::Truncated)),
    }
}

/// Verifies that the first backup is a full one, and that each other one continues the one before.
fn verify_chain(paths: &[PathBuf], headers: &[Header]) -> Result<(), Failure> {
    for (n, (path, header)) in paths.iter().zip(headers).enumerate() {
        let why = match (n.checked_sub(1).map(|n| &headers[n]), &header.since) {
            (None, None) => continue,
            (None, Some(since)) => format!(
                "it has only the changes since checkpoint '{}'. Name the full backup and those up \
                 to that checkpoint first",
                since.name
            ),
            (Some(_), None) => "it is a full backup: it needs no other one before it".to_string(),
            (Some(former), Some(since)) if *since != former.checkpoint => format!(
                "it has the changes since checkpoint '{}', but the backup before it is that of \
                 '{}'",
                since.name, former.checkpoint.name
            ),
            (Some(former), Some(_)) if former.device != header.device => {
                format!(
                    "it is of '{}', and the one before is of '{}'",
                    header.device, former.device
                )
            }
            _ => continue,
        };
        return Err(at(path, why));
    }
    Ok(())
}

/// Writes the content of a backup to the target. Returns the bytes of data.
fn apply(path: &Path, target: &Target, is_first: bool, pace: &mut Pace) -> Result<u64, Failure> {
    let file = File::open(path).map_err(|error| at(path, error))?;
    let mut input = BufReader::with_capacity(1 << 20, file);
    let header = Header::read(&mut input).map_err(|why| bad(path, why))?;
    let (mut from, mut records, mut bytes) = (0, 0, 0);
    loop {
        let record = Record::read(&mut input, header.size, from).map_err(|why| bad(path, why))?;
        match record {
            Record::Data(offset, data) => {
                let len = data.len() as u64;
                pace.spend(len);
                (from, bytes) = (offset + len, bytes + len);
                target.write(offset, data)?;
            }
            Record::Zeroes(offset, len) => {
                from = offset + len;
                target.zero(offset, len, is_first)?;
            }
            Record::End(all, of_data) if (all, of_data) == (records, bytes) => return Ok(bytes),
            Record::End(all, _) => {
                let why = format!("it has {records} records, and its end counts {all}");
                return Err(bad(path, BadBackup::Damaged(why)));
            }
        }
        records += 1;
    }
}
