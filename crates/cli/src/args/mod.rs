//! The command line: one definition that parses, checks and explains every flag.

pub(crate) mod health;
mod server;
pub(crate) mod snapshot;
pub(crate) mod timeline;
pub(crate) mod watch;

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::styling::{AnsiColor, Styles};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use corewise::device::HangPolicy;
use corewise::topology::{AffinityScope, DEFAULT_SHARD_SIZE};
use corewise_server::control::Mode;
use corewise_server::{manifest, units};

pub(crate) use server::{Which, interval};
use timeline::TimelineFile;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

const EXAMPLES: &str = "\
Examples:
  corewise up                       serve a few volumes from a temporary folder
  corewise up disks.toml            serve the volumes that a manifest declares
  corewise topo                     show the CPUs, caches, nodes and pods of this machine
  corewise dump                     show the pools, queues and disks of a running server
  corewise health                   say whether a running server is ok, and what to do
  corewise mirror                   show the mirrors of a running server
  corewise reload --dry-run         show what changed in the manifest of a running server
  corewise timeline dmesg.txt       find the slow probes and shutdowns in a kernel log

Exit codes: 0 success, 1 failure, 2 wrong usage.";

const TOPO_EXAMPLES: &str = "\
Sources:
  live               this machine, with the CPUs that this process may use (the default)
  sysfs:DIR          a saved copy of /sys/devices/system
  xml:FILE           an XML export of hwloc 2, written by 'lstopo --of xml'
  synthetic:'SPEC'   a description in hwloc's synthetic format, including indexes=

Examples:
  corewise topo
  corewise topo --json | jq '.scopes.cache_shard'
  corewise topo --from synthetic:'numa:2 l3:1 core:36 pu:2' --shard-size 12
  corewise topo --from synthetic:'numa:2 core:12 pu:2(indexes=core)'
  corewise topo --from xml:other-machine.xml
  corewise topo --svg nodes.svg --scope numa
  corewise topo --from sysfs:/tmp/other-machine";

const UP_BEFORE: &str = "\
Without a manifest, the server uses a built-in one: a memory volume, and a stripe and a mirror over
files in a temporary folder, which it removes at the end. A short manifest of your own:
";

/// Also the first thing that somebody will paste, so a test brings it past the checks.
const UP_MANIFEST: &str = r#"
  [[device]]
  name = "disk"
  driver = "file"            # or memory, null, stripe, mirror
  path = "disk.img"
  size = "1G"
  create = true

  [[export]]
  device = "disk"
"#;

const UP_AFTER: &str = "
docs/manifest.md describes every key. NBD's extended headers are off, since their specification is
experimental; extended_headers = true in [server] lets clients have them.

SIGINT, SIGTERM and --for stop the server. It accepts no more clients, answers the requests in
flight, flushes, and shuts the devices down in dependency order. A second signal, a second later,
ends it at once.
The server reports a device that exceeds its probe_timeout or its shutdown_timeout (10s by default),
and the devices that wait for it. All other devices go on.

Examples:
  corewise up
  corewise up --for 5s --timeline up.svg
  corewise up disks.toml --check
  corewise up disks.toml --keep-going
  corewise up disks.toml --state /var/lib/corewise --shutdown-timeout 1m --on-hang give-up
  corewise up disks.toml --socket /run/corewise.sock --tcp 10809
  nbdinfo --size -- [ corewise up disks.toml --exit-with-parent ]

Exit codes: 0 every device came up and went down in order, 1 a device did not, 2 wrong usage.";

const DUMP_EXAMPLES: &str = "\
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

const MIRROR_EXAMPLES: &str = "\
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

const CHANGE_EXAMPLES: &str = "\
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

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  corewise completions bash > ~/.local/share/bash-completion/completions/corewise
  corewise completions zsh > ~/.zfunc/_corewise       where $fpath has ~/.zfunc
  corewise completions fish > ~/.config/fish/completions/corewise.fish";

const MAN_EXAMPLES: &str = "\
Examples:
  corewise man ~/.local/share/man/man1";

fn up_help() -> String {
    [UP_BEFORE, UP_MANIFEST, UP_AFTER].concat()
}

/// Serve block volumes on many-core machines, and inspect these machines.
#[derive(Debug, Parser)]
#[command(name = "corewise", version, styles = STYLES, after_help = EXAMPLES)]
#[command(max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) log: Log,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The messages on stderr, beside errors.
#[derive(Debug, Args)]
pub(crate) struct Log {
    /// Log more to stderr: -v info, -vv debug, -vvv trace
    #[arg(short, long, action = clap::ArgAction::Count, global = true, conflicts_with = "log", display_order = 900)]
    verbose: u8,
    /// Log to stderr at this level or above [default: warn]
    #[arg(long, value_name = "LEVEL", global = true, display_order = 901)]
    log: Option<Level>,
    /// The form of the messages: text for people, or a JSON object a line
    #[arg(long, value_name = "FORM", global = true, default_value = "text", display_order = 902)]
    pub(crate) log_format: LogFormat,
}

/// The form of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// The severity of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Level {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl Log {
    pub(crate) fn level(&self) -> Level {
        match (self.log, self.verbose) {
            (Some(level), _) => level,
            (None, 0) => Level::Warn,
            (None, 1) => Level::Info,
            (None, 2) => Level::Debug,
            (None, _) => Level::Trace,
        }
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the machine's CPUs, caches and nodes, and the pods of each affinity scope
    #[command(after_help = TOPO_EXAMPLES)]
    Topo(Topo),
    /// Bring up the devices of a manifest in parallel, and export them over NBD
    #[command(after_help = up_help())]
    Up(Up),
    /// Show the worker pools, queues, devices and disks of a running server
    #[command(after_help = DUMP_EXAMPLES)]
    Dump(Dump),
    /// Say in one word how a running server is: ok, degraded or lost, and what to do about it
    #[command(after_help = health::EXAMPLES)]
    Health(health::Args),
    /// Show the mirrors of a running server, check them, and take back legs that failed or were missing
    #[command(after_help = MIRROR_EXAMPLES)]
    Mirror(Mirror),
    /// Take a snapshot of a volume in an object store, list its snapshots, or delete one
    #[command(after_help = snapshot::EXAMPLES)]
    Snapshot(snapshot::Args),
    /// List the clients of a running server, and what they do
    #[command(after_help = watch::EXAMPLES)]
    Clients(watch::Clients),
    /// End the connection of a client of a running server
    #[command(after_help = watch::EXAMPLES)]
    Disconnect(watch::Disconnect),
    /// Print what happens on a running server, as it happens
    #[command(after_help = watch::EXAMPLES)]
    Events(watch::Events),
    /// Show what a running server does, again and again, on the terminal
    #[command(after_help = watch::EXAMPLES)]
    Top(watch::Top),
    /// Add the devices and exports of a manifest to a running server
    #[command(after_help = CHANGE_EXAMPLES)]
    Add(Add),
    /// Remove a device with its exports, or an export, from a running server
    #[command(after_help = CHANGE_EXAMPLES)]
    Remove(Remove),
    /// Make a file of a running server longer
    #[command(after_help = CHANGE_EXAMPLES)]
    Grow(Grow),
    /// Have a running server follow its manifest, which changed
    #[command(after_help = CHANGE_EXAMPLES)]
    Reload(Reload),
    /// Analyse a kernel log: slow probes and shutdowns, and what would be faster
    #[command(after_help = timeline::EXAMPLES)]
    Timeline(timeline::Args),
    /// Print a script that completes the flags of corewise in a shell
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions(Completions),
    /// Write the man pages of corewise to a folder
    #[command(hide = true, after_help = MAN_EXAMPLES)]
    Man(Man),
}

/// `corewise completions`.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

/// `corewise man`.
#[derive(Debug, Args)]
pub(crate) struct Man {
    /// The folder, which is made
    pub(crate) folder: PathBuf,
}

/// `corewise topo`.
#[derive(Debug, Args)]
pub(crate) struct Topo {
    /// The machine to show
    #[arg(long, value_name = "SOURCE", default_value = "live", value_parser = source)]
    pub(crate) from: Source,
    /// Target cores per cache_shard pod; a pod has at least 2 where its cache does
    #[arg(long, value_name = "N", default_value_t = DEFAULT_SHARD_SIZE)]
    pub(crate) shard_size: u32,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
    /// Draw the machine and its pods to FILE as SVG, and print no text; '-' is stdout
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub(crate) svg: Option<PathBuf>,
    /// The affinity scope whose pods the picture shows [default: cache_shard]
    #[arg(long, value_name = "SCOPE", requires = "svg", value_parser = scope())]
    pub(crate) scope: Option<AffinityScope>,
}

/// Where a topology comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Live,
    Sysfs(PathBuf),
    Xml(PathBuf),
    Synthetic(String),
}

/// `corewise up`.
#[derive(Debug, Args)]
pub(crate) struct Up {
    /// TOML file that declares devices and exports; '-' is stdin
    pub(crate) manifest: Option<PathBuf>,
    /// Say whether the manifest would come up, as far as that can be known without opening anything, and stop
    #[arg(long, conflicts_with_all = ["duration", "timeline", "keep_going", "json"])]
    pub(crate) check: bool,
    /// Stop after this time, such as 5s, 2m or 1h
    #[arg(long = "for", value_name = "DURATION", value_parser = units::parse_duration)]
    pub(crate) duration: Option<Duration>,
    /// Write the timelines of bring-up and shutdown to FILE (.svg, .html, .json or .trace.json)
    #[arg(long, value_name = "FILE", value_parser = TimelineFile::parse)]
    pub(crate) timeline: Option<TimelineFile>,
    /// Record in this folder how long devices take to go down, and shut the slow ones down first
    /// next time
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    /// Deadline of the whole shutdown; devices that hang then are reported, and --on-hang applies
    #[arg(long, value_name = "DURATION", value_parser = units::parse_duration)]
    pub(crate) shutdown_timeout: Option<Duration>,
    /// What to do once only hanging devices are left [default: wait]. wait: go on waiting. skip: in a
    /// bring-up, treat them as failed; in a shutdown, shut down the devices that they use. give-up:
    /// stop. skip and give-up end with exit code 1
    #[arg(long, value_name = "POLICY", value_parser = hang_policy())]
    pub(crate) on_hang: Option<HangPolicy>,
    /// Serve the devices that come up, even if others fail
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Listen on this Unix socket, not on the manifest's
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Listen on this TCP address, not on the manifest's; a port alone means 127.0.0.1
    #[arg(long, value_name = "ADDR", value_parser = manifest::tcp_address)]
    pub(crate) tcp: Option<String>,
    /// Print events as JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Answer `corewise dump` on this Unix socket, not on the manifest's or the usual one
    #[arg(long, value_name = "PATH", conflicts_with = "no_control")]
    pub(crate) control: Option<PathBuf>,
    /// Run without a control socket
    #[arg(long)]
    pub(crate) no_control: bool,
    /// Stop in order when the process that started this one ends: for a server that a client starts
    /// by socket activation
    #[arg(long)]
    pub(crate) exit_with_parent: bool,
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
    /// Make this device of the server another leg, on which nothing else stands; it is resynced while clients go on
    #[arg(long, value_name = "DEVICE", requires = "name", conflicts_with_all = ["check", "take_back", "stop", "replace"])]
    pub(crate) add: Option<String>,
    /// Have one leg less, for good: this one
    #[arg(long, value_name = "LEG", requires = "name", conflicts_with_all = ["check", "take_back", "stop", "replace", "add"])]
    pub(crate) remove: Option<String>,
    /// Wait until each leg that is resynced is in sync, or out again, and a check is over
    #[arg(long, requires = "name")]
    pub(crate) wait: bool,
    #[command(flatten)]
    pub(crate) server: Which,
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
    /// What becomes of the clients of an export that goes, or whose device is another one: safe, soft or hard
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
    pub(crate) server: Which,
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
    pub(crate) server: Which,
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

fn hang_policy() -> impl TypedValueParser<Value = HangPolicy> {
    PossibleValuesParser::new(manifest::HANG_POLICIES.iter().map(|(name, _)| *name))
        .try_map(|name| manifest::hang_policy(&name))
}

fn scope() -> impl TypedValueParser<Value = AffinityScope> {
    PossibleValuesParser::new(AffinityScope::ALL.map(AffinityScope::name))
        .try_map(|name| name.parse::<AffinityScope>())
}

fn source(text: &str) -> Result<Source, String> {
    match text.split_once(':') {
        _ if text == "live" => Ok(Source::Live),
        Some(("sysfs", dir)) if !dir.is_empty() => Ok(Source::Sysfs(dir.into())),
        Some(("xml", file)) if !file.is_empty() => Ok(Source::Xml(file.into())),
        Some(("synthetic", spec)) if !spec.trim().is_empty() => {
            Ok(Source::Synthetic(spec.to_string()))
        }
        _ => Err("write live, sysfs:DIR, xml:FILE or synthetic:'SPEC'".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_explains_itself_with_examples() {
        let command = Cli::command();
        for sub in command.get_subcommands() {
            let help = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:"), "{}", sub.get_name());
            assert!(help.contains(&format!("corewise {}", sub.get_name())), "{}", sub.get_name());
        }
    }

    #[test]
    fn the_manifest_in_the_help_is_one() {
        let resolved = manifest::read(UP_MANIFEST, std::path::Path::new("/"));
        assert_eq!(resolved.problems, []);
        assert_eq!(resolved.manifest.exports.len(), 1);
    }

    #[test]
    fn sources_are_told_by_their_beginnings() {
        assert_eq!(source("live"), Ok(Source::Live));
        assert_eq!(source("sysfs:/x"), Ok(Source::Sysfs("/x".into())));
        assert_eq!(source("synthetic:pu:4"), Ok(Source::Synthetic("pu:4".into())));
        assert_eq!(source("xml:a:b.xml"), Ok(Source::Xml("a:b.xml".into())));
        for bad in ["", "xml:", "json:x", "sysfs:", "synthetic: ", "pu:4"] {
            assert!(source(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rounds_come_no_faster_than_answers() {
        assert_eq!(interval("10ms"), Ok(Duration::from_millis(10)));
        assert!(interval("0s").is_err() && interval("9ms").is_err() && interval("x").is_err());
    }

    #[test]
    fn verbosity_and_level_say_the_same() {
        let level = |args: &[&str]| Cli::try_parse_from(args).map(|cli| cli.log.level());
        assert_eq!(level(&["corewise", "topo"]).ok(), Some(Level::Warn));
        assert_eq!(level(&["corewise", "topo", "-vv"]).ok(), Some(Level::Debug));
        assert_eq!(level(&["corewise", "--log", "off", "topo"]).ok(), Some(Level::Off));
        assert!(level(&["corewise", "topo", "-v", "--log", "info"]).is_err());
    }
}
