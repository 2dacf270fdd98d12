//! The flags of the commands that talk to a running server.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use corewise_server::control::Mode;
use corewise_server::units;

pub(super) const DUMP_HELP: &str = "\
Without --control or --pid, the command asks the only running server of this user. A server's \
socket is in $XDG_RUNTIME_DIR/corewise, or in corewise-UID in the folder for temporary files; \
`corewise up --control` puts it elsewhere. docs/control.md explains the columns, the JSON and the \
protocol.

Examples:
  corewise dump
  corewise dump volumes 'device*'
  corewise dump --json | jq '.queues[] | {name, in_flight}'
  corewise dump --monitor=500ms volumes
  corewise dump --monitor --rounds 10 --json

Exit codes: 0 success, 1 failure (no server, several servers, or no answer), 2 wrong usage.";

pub(super) const MIRROR_HELP: &str = "\
A leg is out if it failed or was missing when the mirror came up: the mirror doesn't write to it. \
Once its disk works again, --take-back resyncs it: the server copies the blocks that were written \
meanwhile, and no others. Clients continue during a resync. With `retry` in the manifest, the \
server takes legs back by itself. The command finds the server as `corewise dump` does.

--replace puts a device of the server in the place of a leg, dead or alive. Bring the device up \
first, with `corewise add`; nothing else may use it. The resync copies everything; until it ends, \
the mirror has one leg less. The command says what to change in the manifest.

--add makes such a device another leg, which counts once it is in sync. --remove removes a leg, \
dead or alive, except the last one that is in sync; the next start refuses the removed device as \
a leg. The device stays open until `corewise remove` closes it.

Examples:
  corewise mirror
  corewise mirror data --take-back
  corewise mirror data --take-back=disk1 --wait
  corewise mirror data --check --rate 50M --wait
  corewise add new-disk.toml && corewise mirror data --replace disk1 --with disk3 --wait
  corewise add new-disk.toml && corewise mirror data --add disk3 --wait
  corewise mirror data --remove disk1 && corewise remove disk1
  corewise mirror --json | jq '.disks[].mirror.legs'

Exit codes: 0 success, 1 failure (no server, no leg to take back, a device that can't be a leg, \
or, with --wait, a leg that is still out, or legs that differ), 2 wrong usage.";

pub(super) const ADD_HELP: &str = "\
The new devices come up in parallel while the server serves all others. If one of them fails, the \
command adds nothing. docs/control.md explains changes of a running server. The command finds the \
server as `corewise dump` does.

Examples:
  corewise add more.toml --dry-run
  corewise add more.toml
  corewise add more.toml --json | jq '.changed.steps'

Exit codes: 0 success, 1 failure (no server, or a device that failed), 2 wrong usage.";

pub(super) const REMOVE_HELP: &str = "\
The exports drain, then the devices flush and close, while the server serves all others. No other \
device may need a device that is removed. docs/control.md explains changes of a running server. \
The command finds the server as `corewise dump` does.

Examples:
  corewise remove data --dry-run
  corewise remove data --mode soft
  corewise remove export:data --mode hide

Exit codes: 0 success, 1 failure (no server, or clients that are in the way), 2 wrong usage.";

pub(super) const GROW_HELP: &str = "\
Nothing may be built over the device, and no device becomes shorter. Clients that connect from \
then on see the new size; the others keep the old one until they reconnect. Write the new size \
into the manifest, too. docs/control.md explains changes of a running server. The command finds \
the server as `corewise dump` does.

Examples:
  corewise grow disk 20G --dry-run
  corewise grow disk 20G
  corewise grow disk

Exit codes: 0 success, 1 failure (no server, or a device that can't grow), 2 wrong usage.";

pub(super) const RELOAD_HELP: &str = "\
The command reads the server's manifest again, as SIGHUP does. Devices that left the manifest go, \
new ones come up, and a device that changed restarts with everything that is built over it. If \
only the keys of an export changed, its clients stay. A file that nothing is built over grows \
under its clients. docs/manifest.md lists the keys of [server] that a reload applies; \
docs/control.md explains the rest. The command finds the server as `corewise dump` does.

Examples:
  corewise reload --dry-run
  corewise reload
  corewise reload --mode soft
  corewise reload --dry-run --json | jq '.changed.steps'

Exit codes: 0 success, 1 failure (no server, clients that are in the way, or a device that \
failed), 2 wrong usage.";

pub(super) const HEALTH_HELP: &str = "\
ok: no fault is known. degraded: clients reach all data, but the data has less protection than \
configured, or a part of the server doesn't work. lost: promised data may be gone, or this server \
can't reach it now. A line for each reason follows, with its remedy. docs/monitoring.md lists the \
reasons. The command finds the server as `corewise dump` does.

Examples:
  corewise health
  corewise health --json | jq -r '.health.reasons[] | .todo'
  corewise health > /dev/null || alert \"corewise: exit code $?\"

Exit codes: 0 ok, 1 failure (no server, several servers, or no answer), 2 wrong usage, 3 \
degraded, 4 lost.";

pub(super) const SNAPSHOT_HELP: &str = "\
A snapshot holds everything that the server had acknowledged to clients before the command, \
flushed or not. It never changes, and clients continue. It keeps the space of blocks that are \
overwritten later. Of a mirror, name the leg with the driver `object`. A clone is a device with \
`clone_of` and `snapshot` in its manifest: a volume of its own that shares the blocks that don't \
change. A snapshot with clones can't be deleted. docs/object.md explains both. The command finds the server as `corewise dump` does.

Examples:
  corewise snapshot disk
  corewise snapshot disk monday
  corewise snapshot disk --list
  corewise snapshot disk --delete monday
  corewise snapshot disk --list --json | jq '.snapshots[].name'

Exit codes: 0 success, 1 failure (no server, no such volume, a name that is taken, a snapshot \
with clones, or a store that fails), 2 wrong usage.";

pub(super) const OVERLAY_HELP: &str = "\
An overlay has the blocks of its base, and those that its clients changed in a file of its own. \
--reset and --commit need an overlay that no client uses; --commit also a base that can be written \
to and that nothing else uses. --flatten goes on in the background: `corewise dump` shows how far \
it is, and `corewise events` its end. A crash in the middle of any of them loses nothing. \
docs/overlays.md explains overlays. The command finds the server as `corewise dump` does.

Examples:
  corewise overlay vm7 --reset
  corewise overlay vm7 --commit
  corewise overlay vm7 --flatten
  corewise overlay vm7 --reset --dry-run

Exit codes: 0 success, 1 failure (no server, no such overlay, clients that are in the way, or a \
file that fails), 2 wrong usage.";

pub(super) const CHECKPOINT_HELP: &str = "\
A checkpoint is a point in time of a device with the driver `checkpoint`. From then on the server \
records which blocks change, also through crashes. Requests wait while it is taken, as long as a \
flush takes. NBD clients see what changed as the metadata context qemu:dirty-bitmap:CHECKPOINT. If \
the device has `copies`, they read the newest checkpoint as the export NAME@CHECKPOINT. \
docs/backup.md explains both. The command finds the server as `corewise dump` does.

Examples:
  corewise checkpoint disk
  corewise checkpoint disk monday
  corewise checkpoint disk --list
  corewise checkpoint disk --delete monday
  corewise checkpoint disk --list --json | jq '.checkpoints[].changed'

Exit codes: 0 success, 1 failure (no server, no such device, a name that is taken, or a record that \
can't be written), 2 wrong usage.";

pub(super) const CLIENTS_HELP: &str = "\
Rates and times are those of half a second, for which the command watches the server. \
docs/monitoring.md explains the columns. The command finds the server as `corewise dump` does.

Examples:
  corewise clients
  corewise clients --json | jq '.clients[] | {client, uid, export}'

Exit codes: 0 success, 1 failure (no server, several servers, or no answer), 2 wrong usage.";

pub(super) const DISCONNECT_HELP: &str = "\
The client loses the answers that it waits for. It may connect again. The frontend of a virtual \
machine reconnects by itself, and its requests are executed then. A disk of this machine has no \
number: unmount it. The command finds the server as `corewise dump` does.

Examples:
  corewise clients
  corewise disconnect 7

Exit codes: 0 success, 1 failure (no server, or no such client), 2 wrong usage.";

pub(super) const EVENTS_HELP: &str = "\
The command prints a line for each event from then on: clients that come and go, changes of \
exports and mirrors, the end of the server. docs/monitoring.md lists the events. The command \
finds the server as `corewise dump` does.

Examples:
  corewise events
  corewise events --json | jq 'select(.event == \"mirror\")'

Exit codes: 0 success, 1 failure (no server, or the server ended), 2 wrong usage.";

pub(super) const TOP_HELP: &str = "\
The last line of the screen names the keys; q quits. If the server goes away, `top` keeps the \
last picture and waits for it to return. docs/monitoring.md explains the columns. The command \
finds the server as `corewise dump` does.

Examples:
  corewise top
  corewise top --every 200ms

Exit codes: 0 success, 1 failure (no server, or no terminal), 2 wrong usage.";

/// The server to talk to.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServerArgs {
    /// Talk to the server with this control socket
    #[arg(long, value_name = "PATH", conflicts_with = "pid")]
    pub(crate) control: Option<PathBuf>,
    /// Talk to the server with this process id
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Option<u32>,
}

/// Shortest time between two rounds: no server answers more often.
const SHORTEST: Duration = Duration::from_millis(10);

pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let interval = units::parse_duration(text)?;
    match interval < SHORTEST {
        true => {
            Err("the interval must be at least 10ms: a server answers at most 100 times per second"
                .into())
        }
        false => Ok(interval),
    }
}

/// `corewise mirror`.
#[derive(Debug, Args)]
pub(crate) struct Mirror {
    /// Name of the mirror's device [default: show all mirrors]
    pub(crate) name: Option<String>,
    /// Resync this leg, or all legs that are out if LEG is missing
    #[arg(
        long,
        value_name = "LEG",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        requires = "name"
    )]
    pub(crate) take_back: Option<String>,
    /// Read all legs and compare them; clients continue
    #[arg(long, requires = "name", conflicts_with = "take_back")]
    pub(crate) check: bool,
    /// With --check, overwrite blocks that differ or can't be read with those of the first leg in
    /// sync
    #[arg(long, requires = "check")]
    pub(crate) repair: bool,
    /// With --check, read at most this many bytes per second, such as 50M [default: the rate of a
    /// resync]
    #[arg(long, requires = "check", value_name = "BYTES", value_parser = units::parse_size)]
    pub(crate) rate: Option<u64>,
    /// Stop the check that is in progress
    #[arg(long, requires = "name", conflicts_with_all = ["check", "take_back"])]
    pub(crate) stop: bool,
    /// Put the device of --with in the place of this leg, and resync it; clients continue
    #[arg(long, value_name = "LEG", requires_all = ["name", "with"], conflicts_with_all = ["check", "take_back", "stop"])]
    pub(crate) replace: Option<String>,
    /// With --replace, the new device, such as disk3; nothing else may be built over it
    #[arg(long, value_name = "DEVICE", requires = "replace")]
    pub(crate) with: Option<String>,
    /// Make this device of the server another leg, and resync it; nothing else may be built over it
    #[arg(long, value_name = "DEVICE", requires = "name", conflicts_with_all = ["check", "take_back", "stop", "replace"])]
    pub(crate) add: Option<String>,
    /// Remove this leg for good
    #[arg(long, value_name = "LEG", requires = "name", conflicts_with_all = ["check", "take_back", "stop", "replace", "add"])]
    pub(crate) remove: Option<String>,
    /// Wait until each resync and check has ended; a leg that is out again, or that differs, is a
    /// failure
    #[arg(long, requires = "name")]
    pub(crate) wait: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// `corewise add`.
#[derive(Debug, Args)]
pub(crate) struct Add {
    /// TOML file with the new devices and exports, without [server]; they may be built over the
    /// server's devices
    pub(crate) manifest: PathBuf,
    #[command(flatten)]
    pub(crate) how: Change,
}

/// The treatment of clients that are in the way of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClientMode {
    /// Change nothing while there are clients
    #[default]
    Safe,
    /// Admit no more clients; make the change when the last one has left
    Hide,
    /// Answer the requests in flight, then disconnect the clients, at the latest after `drain` in
    /// the manifest
    Soft,
    /// Disconnect the clients at once
    Hard,
}

impl From<ClientMode> for Mode {
    fn from(mode: ClientMode) -> Mode {
        match mode {
            ClientMode::Safe => Mode::Safe,
            ClientMode::Hide => Mode::Hide,
            ClientMode::Soft => Mode::Soft,
            ClientMode::Hard => Mode::Hard,
        }
    }
}

/// `corewise remove`.
#[derive(Debug, Args)]
pub(crate) struct Remove {
    /// Name of the device, such as disk; 'export:NAME' removes that export alone
    pub(crate) name: String,
    /// Treatment of the connected clients
    #[arg(long, value_name = "MODE", default_value = "safe")]
    pub(crate) mode: ClientMode,
    #[command(flatten)]
    pub(crate) how: Change,
}

/// `corewise grow`.
#[derive(Debug, Args)]
pub(crate) struct Grow {
    /// Name of the device
    pub(crate) name: String,
    /// New size, such as 2G; never smaller than the old one [default: the size of its file or disk]
    #[arg(value_parser = units::parse_size)]
    pub(crate) size: Option<u64>,
    #[command(flatten)]
    pub(crate) how: Change,
}

/// `corewise reload`.
#[derive(Debug, Args)]
pub(crate) struct Reload {
    /// Treatment of the clients of an export that goes or gets another device: safe, soft or hard
    #[arg(long, value_name = "MODE", default_value = "safe", hide_possible_values = true)]
    pub(crate) mode: ClientMode,
    #[command(flatten)]
    pub(crate) how: Change,
}

/// Flags of all changes.
#[derive(Debug, Args)]
pub(crate) struct Change {
    /// Show the steps of the change, and don't make it
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// `corewise dump`.
#[derive(Debug, Args)]
pub(crate) struct Dump {
    /// Names of the queues to show, such as volumes; '*' matches any letters [default: all]
    pub(crate) queues: Vec<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Print one JSON document; with --monitor, one line of JSON per round
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the queues' counters and rates every INTERVAL, until Ctrl-C; at least 10ms [default:
    /// 1s]
    #[arg(
        long,
        value_name = "INTERVAL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1s",
        value_parser = interval
    )]
    pub(crate) monitor: Option<Duration>,
    /// Stop after N rounds; at least 1 [default: go on]
    #[arg(long, value_name = "N", requires = "monitor", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rounds: Option<u64>,
}

/// `corewise health`.
#[derive(Debug, Args)]
pub(crate) struct Health {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// `corewise overlay`.
#[derive(Debug, Args)]
pub(crate) struct Overlay {
    /// Name of the device, an overlay
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) what: OverlayChange,
    #[command(flatten)]
    pub(crate) how: Change,
}

/// The change of an overlay.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct OverlayChange {
    /// Give up its own blocks, so that it has the content of its base
    #[arg(long)]
    pub(crate) reset: bool,
    /// Copy its own blocks into its base, and give them up
    #[arg(long)]
    pub(crate) commit: bool,
    /// Fetch all blocks of its base, which it needs no more after that
    #[arg(long)]
    pub(crate) flatten: bool,
}

/// `corewise snapshot`.
#[derive(Debug, Args)]
pub(crate) struct Snapshot {
    /// Name of the device, a volume in an object store
    pub(crate) name: String,
    /// Name of the new snapshot, such as monday: a letter, then up to 63 letters, digits, dots,
    /// dashes and underscores [default: its number]
    #[arg(conflicts_with_all = ["list", "delete"])]
    pub(crate) snapshot: Option<String>,
    /// List the volume's snapshots, with the clones that need them
    #[arg(long, conflicts_with = "delete")]
    pub(crate) list: bool,
    /// Delete the snapshot of this name or number
    #[arg(long, value_name = "SNAPSHOT")]
    pub(crate) delete: Option<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// `corewise checkpoint`.
#[derive(Debug, Args)]
pub(crate) struct Checkpoint {
    /// Name of the device, with the driver `checkpoint`
    pub(crate) name: String,
    /// Name of the new checkpoint, such as monday: up to 64 letters, digits, dots, dashes and
    /// underscores [default: its number]
    #[arg(conflicts_with_all = ["list", "delete"])]
    pub(crate) checkpoint: Option<String>,
    /// List the device's checkpoints, with the bytes that changed since each
    #[arg(long, conflicts_with = "delete")]
    pub(crate) list: bool,
    /// Delete the checkpoint of this name
    #[arg(long, value_name = "CHECKPOINT")]
    pub(crate) delete: Option<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// `corewise clients`.
#[derive(Debug, Args)]
pub(crate) struct Clients {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Print one JSON document, without rates
    #[arg(long)]
    pub(crate) json: bool,
}

/// `corewise disconnect`.
#[derive(Debug, Args)]
pub(crate) struct Disconnect {
    /// Number of the client, as `corewise clients` and the log show it
    pub(crate) client: u64,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// `corewise events`.
#[derive(Debug, Args)]
pub(crate) struct Events {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Print each event as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `corewise top`.
#[derive(Debug, Args)]
pub(crate) struct Top {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Refresh the screen every INTERVAL; at least 10ms
    #[arg(long, value_name = "INTERVAL", default_value = "1s", value_parser = interval)]
    pub(crate) every: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_come_no_faster_than_answers() {
        assert_eq!(interval("10ms"), Ok(Duration::from_millis(10)));
        assert!(interval("0s").is_err() && interval("9ms").is_err() && interval("x").is_err());
    }
}
