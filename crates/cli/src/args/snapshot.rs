//! The flags of `corewise snapshot`.

use super::server::Which;

pub(crate) const EXAMPLES: &str = "\
A snapshot has what clients were answered before the command, flushed or not, and stays as it is. Clients go on. It keeps the \
space of what is written anew since. A clone is a device with clone_of and snapshot in its manifest: a volume of its own that \
shares what doesn't change. A snapshot with clones can't be deleted. docs/object.md explains them. The command finds the server \
as `corewise dump` does.

Examples:
  corewise snapshot disk
  corewise snapshot disk monday
  corewise snapshot disk --list
  corewise snapshot disk --delete monday
  corewise snapshot disk --list --json | jq '.snapshots[].name'

Exit codes: 0 success, 1 failure (no server, no such volume, a name that is taken, a snapshot with clones, a store that
fails), 2 wrong usage.";

/// `corewise snapshot`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the device, a volume in an object store
    pub(crate) name: String,
    /// What the new snapshot is called: up to 64 letters, digits, dots, dashes and underscores, the
    /// first a letter [default: its number]
    #[arg(conflicts_with_all = ["list", "delete"])]
    pub(crate) snapshot: Option<String>,
    /// List its snapshots, with the clones that need them
    #[arg(long, conflicts_with = "delete")]
    pub(crate) list: bool,
    /// Delete this snapshot, by its name or number
    #[arg(long, value_name = "SNAPSHOT")]
    pub(crate) delete: Option<String>,
    #[command(flatten)]
    pub(crate) server: Which,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}
