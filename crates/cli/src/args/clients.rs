//! The flags of the commands that ask a running server.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use corewise_server::control::Mode;
use corewise_server::units;

pub(super) const DUMP_EXAMPLES: &str = "\
Without --control or --pid, the command asks the only running server of this user. A server's socket \
is in $XDG_RUNTIME_DIR/corewise, or in corewise-UID in the folder for temporary files; `up --control` \
moves it. docs/control.md explains the columns, the JSON and the protocol.

Examples:
  corewise dump
  corewise dump volumes 'device*'
  corewise dump --json | jq '.queues[] | {name, in_flight}'
  corewise dump --monitor=500ms volumes
  corewise dump --monitor --rounds 10 --json

Exit codes: 0 success, 1 failure (no server, several servers, or no answer), 2 wrong usage.";

pub(super) const MIRROR_EXAMPLES: &str = "\
A leg that failed, or that was missing when the mirror came up, is out: the mirror doesn't write to \
it. Once its disk works again, --take-back resyncs it: the leg gets the blocks that were written \
meanwhile, and no others. Clients go on during a resync. With `retry` in the manifest the server \
tries this by itself. The command finds the server as `corewise dump` does.

--replace puts a device of the server in the place of a leg, dead or alive. `corewise add` brings the device up first; \
nothing may stand on it. It gets everything, while clients go on; until then the mirror has one leg less. The manifest \
is yours to change: the command says what to write.

--add makes such a device another leg, which gets everything and counts only then. --remove has one leg less, dead or alive, but \
never the only one that has everything; the next start refuses it as a leg. The leg's device stays: `corewise remove` closes it.

Examples:
  corewise mirror
  corewise mirror data --take-back
  corewise mirror data --take-back=disk1 --wait
  corewise mirror data --check --rate 50M --wait
  corewise add new-disk.toml && corewise mirror data --replace disk1 --with disk3 --wait
  corewise add new-disk.toml && corewise mirror data --add disk3 --wait
  corewise mirror data --remove disk1 && corewise remove disk1
  corewise mirror --json | jq '.disks[].mirror.legs'

Exit codes: 0 success, 1 failure (no server, no leg to take back, a device that can't be a leg, or, with --wait, a leg that is
still out, or legs that differ), 2 wrong usage.";

pub(super) const CHANGE_EXAMPLES: &str = "\
Everything else is served meanwhile. Exports that go drain, then their devices flush and close; new devices come up \
side by side. `add` adds all or nothing. `reload` reads the server's manifest again, as SIGHUP does: devices that aren't in it \
go, and a device that changed is restarted with all that stands on it. Where only the keys of an export changed its \
clients stay, and a file on which nothing stands grows under them. of [server] `reload` follows what docs/manifest.md says. docs/control.md \
explains the rest. The commands find the server as `corewise dump` does.

Examples:
  corewise add more.toml
  corewise remove data --mode soft
  corewise remove export:data --mode hide
  corewise grow disk 20G
  corewise reload --dry-run
  corewise reload --mode soft

Exit codes: 0 success, 1 failure (no server, clients that are in the way, a device that failed), 2 wrong
usage.";

pub(super) const HEALTH_EXAMPLES: &str = "\
ok: no fault is known. degraded: all data is there and can be reached, but less protects it than was asked for, or a \
part of the server doesn't work. lost: data that clients were promised may be gone, or can't be reached through this \
server now. Below the word is a line for each reason, with the command that mends it, where there is one. \
docs/monitoring.md lists the reasons. The command finds the server as `corewise dump` does.

Examples:
  corewise health
  corewise health --json | jq -r '.health.reasons[] | .todo'
  corewise health > /dev/null || alert \"corewise: exit code $?\"

Exit codes: 0 ok, 1 failure (no server, several servers, or no answer), 2 wrong usage, 3 degraded, 4 lost.";

pub(super) const SNAPSHOT_EXAMPLES: &str = "\
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

pub(super) const WATCH_EXAMPLES: &str = "\
`clients` lists the clients of a running server with their work: rates and times are those of the last half \
second. `disconnect` ends the connection of one of them; the answers that it waits for are lost, and nothing keeps it from \
connecting again. `events` prints a line for each event from then on: clients that come and go, changes of exports and \
mirrors, the end of the server. `top` shows it all on the terminal, until q. docs/monitoring.md explains the columns. The \
commands find the server as `corewise dump` does.

Examples:
  corewise clients
  corewise clients --json | jq '.clients[] | {client, uid, export}'
  corewise disconnect 7
  corewise events
  corewise events --json | jq 'select(.event == \"mirror\")'
  corewise top

Exit codes: 0 success, 1 failure (no server, no such client, or the server ended), 2 wrong usage.";

/// The server to ask.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServerArgs {
    /// Ask the server with this control socket
    #[arg(long, value_name = "PATH", conflicts_with = "pid")]
    pub(crate) control: Option<PathBuf>,
    /// Ask the server with this process id
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Option<u32>,
}

/// Between two rounds: no server answers more often than that.
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
    /// Take back this leg, or, without LEG, all legs that are out
    #[arg(
        long,
        value_name = "LEG",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        requires = "name"
    )]
    pub(crate) take_back: Option<String>,
    /// Read all legs and compare them, while clients go on
    #[arg(long, requires = "name", conflicts_with = "take_back")]
    pub(crate) check: bool,
    /// With --check: write anew what differs or can't be read, with what the first leg in sync has
    #[arg(long, requires = "check")]
    pub(crate) repair: bool,
    /// With --check: at most so many bytes a second, such as 50M [default: as a resync]
    #[arg(long, requires = "check", value_name = "BYTES", value_parser = units::parse_size)]
    pub(crate) rate: Option<u64>,
    /// End the check that goes on
    #[arg(long, requires = "name", conflicts_with_all = ["check", "take_back"])]
    pub(crate) stop: bool,
    /// Put another device, --with, in the place of this leg; it is resynced while clients go on
    #[arg(long, value_name = "LEG", requires_all = ["name", "with"], conflicts_with_all = ["check", "take_back", "stop"])]
    pub(crate) replace: Option<String>,
    /// With --replace: a device of the server on which nothing else stands
    #[arg(long, value_name = "DEVICE", requires = "replace")]
    pub(crate) with: Option<String>,
    /// Make this device of the server another leg, on which nothing else stands; it is resynced
    /// while clients go on
    #[arg(long, value_name = "DEVICE", requires = "name", conflicts_with_all = ["check", "take_back", "stop", "replace"])]
    pub(crate) add: Option<String>,
    /// Have one leg less, for good: this one
    #[arg(long, value_name = "LEG", requires = "name", conflicts_with_all = ["check", "take_back", "stop", "replace", "add"])]
    pub(crate) remove: Option<String>,
    /// Wait until each leg that is resynced is in sync, or out again, and a check is over
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
    /// TOML file that declares them; they may be built over the server's devices
    pub(crate) manifest: PathBuf,
    #[command(flatten)]
    pub(crate) how: Change,
}

/// The fate of clients that are in the way of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClientMode {
    /// Refuse, and change nothing, where there are any
    #[default]
    Safe,
    /// Let them go on, and no others in; the rest is done when the last one has left
    Hide,
    /// Answer what they have asked for, then disconnect them; at most as long as `drain` in the
    /// manifest
    Soft,
    /// Disconnect them at once
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
    /// Name of the device; 'export:NAME' removes that export alone
    pub(crate) name: String,
    /// What becomes of the clients that are there
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
    /// Its new size, such as 2G [default: as much as its file or disk has by now]
    #[arg(value_parser = units::parse_size)]
    pub(crate) size: Option<u64>,
    #[command(flatten)]
    pub(crate) how: Change,
}

/// `corewise reload`.
#[derive(Debug, Args)]
pub(crate) struct Reload {
    /// What becomes of the clients of an export that goes, or whose device is another one: safe,
    /// soft or hard
    #[arg(long, value_name = "MODE", default_value = "safe", hide_possible_values = true)]
    pub(crate) mode: ClientMode,
    #[command(flatten)]
    pub(crate) how: Change,
}

/// What all changes have in common.
#[derive(Debug, Args)]
pub(crate) struct Change {
    /// Only say what would be done
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
    /// Names of the queues to show; '*' matches any letters [default: all]
    pub(crate) queues: Vec<String>,
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Print one JSON document; with --monitor, one line of JSON per round
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the queues' counters and rates every INTERVAL [default: 1s], until Ctrl-C
    #[arg(
        long,
        value_name = "INTERVAL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1s",
        value_parser = interval
    )]
    pub(crate) monitor: Option<Duration>,
    /// Stop after N rounds
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

/// `corewise snapshot`.
#[derive(Debug, Args)]
pub(crate) struct Snapshot {
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
    /// The client's number, as `corewise clients` and the log have it
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
    /// Look anew every INTERVAL
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
