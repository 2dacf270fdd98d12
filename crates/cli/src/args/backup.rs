//! The flags of `corewise backup` and `corewise restore`.

use std::path::PathBuf;

use clap::Args;
use corewise_server::units;

use super::attach::TlsArgs;
use super::clients::ServerArgs;

pub(super) const BACKUP_HELP: &str = "\
The command takes a checkpoint of the device, and copies the device as it was then. With --since it \
copies what changed since an earlier checkpoint. Clients continue meanwhile. The device has the \
driver `checkpoint`, with `copies`, and an export. A backup that is interrupted stays as \
FILE.partial, and the same command continues it. Each piece has a checksum. docs/backup.md explains \
all of it. The command finds the server as `corewise dump` does.

Examples:
  corewise backup disk --to disk-1.backup --checkpoint monday
  corewise backup disk --to disk-2.backup --checkpoint tuesday --since monday
  corewise restore disk-1.backup disk-2.backup --to disk.img

Exit codes: 0 success, 1 failure (no server, no such checkpoint, or a copy that was interrupted), 2 \
wrong usage.";

pub(super) const RESTORE_HELP: &str = "\
The first backup is a full one; each other one has the changes since the checkpoint of the one \
before it. The command verifies all checksums. Without --to it does only that. docs/backup.md \
explains all of it.

Examples:
  corewise restore disk-1.backup disk-2.backup
  corewise restore disk-1.backup disk-2.backup --to disk.img
  corewise restore disk-1.backup --to 'nbd+unix:///new?socket=/run/corewise.sock'

Exit codes: 0 success, 1 failure (a backup that is damaged, incomplete, or doesn't follow the one \
before it, or a target that can't be written), 2 wrong usage.";

/// `corewise backup`.
#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// Name of the device, with the driver `checkpoint`
    pub(crate) name: String,
    /// New file for the backup
    #[arg(long, value_name = "FILE")]
    pub(crate) to: PathBuf,
    /// Copy only what changed since this checkpoint, whose backup is the one before
    #[arg(long, value_name = "CHECKPOINT")]
    pub(crate) since: Option<String>,
    /// Name of the checkpoint that is taken [default: its number]
    #[arg(long, value_name = "CHECKPOINT")]
    pub(crate) checkpoint: Option<String>,
    /// Read at most so many bytes a second, such as 100M
    #[arg(long, value_name = "BYTES", value_parser = rate)]
    pub(crate) rate: Option<u64>,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
    /// Name that the server's certificate has, if it isn't the host of its address
    #[arg(long, value_name = "NAME", requires = "ca")]
    pub(crate) tls_hostname: Option<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

/// `corewise restore`.
#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// Backups, in their order
    #[arg(required = true, value_name = "BACKUP")]
    pub(crate) backups: Vec<PathBuf>,
    /// New file for the content, or the URI of an export, which is overwritten
    #[arg(long, value_name = "FILE_OR_URI")]
    pub(crate) to: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) tls: TlsArgs,
    /// Overwrite the export though it has other clients
    #[arg(long, requires = "to")]
    pub(crate) force: bool,
    /// Write at most so many bytes a second, such as 100M
    #[arg(long, value_name = "BYTES", value_parser = rate)]
    pub(crate) rate: Option<u64>,
}

fn rate(text: &str) -> Result<u64, String> {
    match units::parse_size(text)? {
        0 => Err("a rate of 0 never ends".to_string()),
        rate => Ok(rate),
    }
}
