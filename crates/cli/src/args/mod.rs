//! The command line: one definition that parses, checks and explains every flag.

mod attach;
mod backup;
mod clients;
pub(crate) mod timeline;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::styling::{AnsiColor, Styles};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, CommandFactory, Error, FromArgMatches, Parser, Subcommand, ValueEnum};
use corewise::device::HangPolicy;
use corewise::topology::{AffinityScope, DEFAULT_SHARD_SIZE};
use corewise_server::{manifest, units};
use timeline::TimelineFile;

pub(crate) use attach::{Attach, Detach, DetachedDevice, TlsArgs};
pub(crate) use backup::{Backup, Restore};
pub(crate) use clients::{
    Add, Change, Checkpoint, Clients, Disconnect, Dump, Events, Grow, Health, Mirror, Overlay,
    Reload, Remove, ServerArgs, Snapshot, Top,
};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

const HELP: &str = "\
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

const TOPO_HELP: &str = "\
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

/// Users paste this manifest first, so a test runs the checks over it.
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
docs/manifest.md describes every key. NBD's extended headers are off by default, since their
specification is experimental. extended_headers = true in [server] offers them to clients.

SIGINT, SIGTERM and --for stop the server. It accepts no more clients, answers the requests in
flight, flushes, and shuts the devices down in dependency order. A second signal, at least a second
later, ends the server at once.
The server reports a device that exceeds its probe_timeout or its shutdown_timeout (10s by default),
and the devices that wait for it. All other devices continue.

Examples:
  corewise up
  corewise up --for 5s --timeline up.svg
  corewise up disks.toml --check
  corewise up disks.toml --keep-going
  corewise up disks.toml --state /var/lib/corewise --shutdown-timeout 1m --on-hang give-up
  corewise up disks.toml --socket /run/corewise.sock --tcp 10809
  nbdinfo --size -- [ corewise up disks.toml --exit-with-parent ]

Exit codes: 0 every device came up and went down in order, 1 a device did not, 2 wrong usage.";

const COMPLETIONS_HELP: &str = "\
Examples:
  corewise completions bash > ~/.local/share/bash-completion/completions/corewise
  corewise completions zsh > ~/.zfunc/_corewise       where $fpath has ~/.zfunc
  corewise completions fish > ~/.config/fish/completions/corewise.fish";

const MAN_HELP: &str = "\
Examples:
  corewise man ~/.local/share/man/man1";

fn up_help() -> String {
    [UP_BEFORE, UP_MANIFEST, UP_AFTER].concat()
}

/// Serve block volumes on many-core machines, and inspect these machines.
#[derive(Debug, Parser)]
#[command(name = "corewise", version, styles = STYLES, after_help = HELP)]
#[command(max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) log: Log,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags for the messages on stderr.
#[derive(Debug, Args)]
pub(crate) struct Log {
    /// Log more to stderr: -v info, -vv debug, -vvv trace
    #[arg(short, long, action = clap::ArgAction::Count, global = true, conflicts_with = "log", display_order = 900)]
    verbose: u8,
    /// Log to stderr at this level or above [default: warn]
    #[arg(long, value_name = "LEVEL", global = true, display_order = 901)]
    log: Option<Level>,
    /// Form of the messages: text for people, or one JSON object per line
    #[arg(long, value_name = "FORM", global = true, default_value = "text", display_order = 902)]
    pub(crate) log_format: LogFormat,
}

/// Form of the messages.
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

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show the machine's CPUs, caches and nodes, and the pods of each affinity scope
    #[command(after_help = TOPO_HELP)]
    Topo(Topo),
    /// Bring up the devices of a manifest in parallel, and export them over NBD
    #[command(after_help = up_help())]
    Up(Up),
    /// Show the worker pools, queues, devices and disks of a running server
    #[command(after_help = clients::DUMP_HELP)]
    Dump(Dump),
    /// Say whether a running server is ok, degraded or lost, and what to do about it
    #[command(after_help = clients::HEALTH_HELP)]
    Health(Health),
    /// Show, check and change the mirrors of a running server, and resync legs that are out
    #[command(after_help = clients::MIRROR_HELP)]
    Mirror(Mirror),
    /// Reset an overlay of a running server, commit it into its base, or make it need no base
    #[command(after_help = clients::OVERLAY_HELP)]
    Overlay(Overlay),
    /// Take a snapshot of a volume in an object store, list its snapshots, or delete one
    #[command(after_help = clients::SNAPSHOT_HELP)]
    Snapshot(Snapshot),
    /// Take a checkpoint of a device, list its checkpoints, or delete one
    #[command(after_help = clients::CHECKPOINT_HELP)]
    Checkpoint(Checkpoint),
    /// Copy a device as it was at a checkpoint to a file, in full or what changed
    #[command(after_help = backup::BACKUP_HELP)]
    Backup(Backup),
    /// Put backups together, in a file or an export
    #[command(after_help = backup::RESTORE_HELP)]
    Restore(Restore),
    /// List the clients of a running server with their work
    #[command(after_help = clients::CLIENTS_HELP)]
    Clients(Clients),
    /// Disconnect a client of a running server
    #[command(after_help = clients::DISCONNECT_HELP)]
    Disconnect(Disconnect),
    /// Print the events of a running server as they happen
    #[command(after_help = clients::EVENTS_HELP)]
    Events(Events),
    /// Show the work of a running server on the terminal, refreshed every second
    #[command(after_help = clients::TOP_HELP)]
    Top(Top),
    /// Add the devices and exports of a manifest to a running server
    #[command(after_help = clients::ADD_HELP)]
    Add(Add),
    /// Remove a device with its exports, or an export, from a running server
    #[command(after_help = clients::REMOVE_HELP)]
    Remove(Remove),
    /// Make a file or a volume of a running server larger
    #[command(after_help = clients::GROW_HELP)]
    Grow(Grow),
    /// Apply the changed manifest of a running server
    #[command(after_help = clients::RELOAD_HELP)]
    Reload(Reload),
    /// Make an NBD export a disk of this machine, by Linux's own client
    #[command(after_help = attach::ATTACH)]
    Attach(Attach),
    /// Detach such a disk
    #[command(after_help = attach::DETACH)]
    Detach(Detach),
    /// Analyse a kernel log: slow probes and shutdowns, and what would be faster
    #[command(after_help = timeline::HELP)]
    Timeline(timeline::Args),
    /// Print a script that completes the flags of corewise in a shell
    #[command(after_help = COMPLETIONS_HELP)]
    Completions(Completions),
    /// Write the man pages of corewise to a folder
    #[command(after_help = MAN_HELP)]
    Man(ManPages),
}

/// `corewise completions`.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// Shell that the script is for
    pub(crate) shell: clap_complete::Shell,
}

/// `corewise man`.
#[derive(Debug, Args)]
pub(crate) struct ManPages {
    /// Folder for the pages; the command creates it
    pub(crate) folder: PathBuf,
}

/// `corewise topo`.
#[derive(Debug, Args)]
pub(crate) struct Topo {
    /// Machine to show, such as xml:other.xml
    #[arg(long, value_name = "SOURCE", default_value = "live", value_parser = source)]
    pub(crate) from: Source,
    /// Target cores per cache_shard pod; a pod has at least 2 cores if its cache has
    #[arg(long, value_name = "N", default_value_t = DEFAULT_SHARD_SIZE)]
    pub(crate) shard_size: u32,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
    /// Draw the machine and its pods to FILE as SVG, and print no text; '-' is stdout
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub(crate) svg: Option<PathBuf>,
    /// Affinity scope whose pods the picture shows [default: cache_shard]
    #[arg(long, value_name = "SCOPE", requires = "svg", value_parser = scope())]
    pub(crate) scope: Option<AffinityScope>,
}

/// The source of a topology.
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
    /// Check the manifest as far as that works without opening anything, and stop
    #[arg(long, conflicts_with_all = ["duration", "timeline", "keep_going", "json"])]
    pub(crate) check: bool,
    /// Stop after this time, such as 5s, 2m or 1h
    #[arg(long = "for", value_name = "DURATION", value_parser = units::parse_duration)]
    pub(crate) duration: Option<Duration>,
    /// Write the timelines of bring-up and shutdown to FILE (.svg, .html, .json or .trace.json)
    #[arg(long, value_name = "FILE", value_parser = TimelineFile::parse)]
    pub(crate) timeline: Option<TimelineFile>,
    /// Record in this folder how long each device takes to shut down, and shut slow ones down first
    /// next time
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    /// Deadline of the whole shutdown, such as 1m; then the server reports devices that hang, and
    /// --on-hang applies
    #[arg(long, value_name = "DURATION", value_parser = units::parse_duration)]
    pub(crate) shutdown_timeout: Option<Duration>,
    /// Action once only hanging devices are left [default: wait]. wait: go on waiting. skip: during
    /// bring-up, treat them as failed; during shutdown, shut down the devices that they use.
    /// give-up: stop. After skip and give-up the exit code is 1
    #[arg(long, value_name = "POLICY", value_parser = hang_policy())]
    pub(crate) on_hang: Option<HangPolicy>,
    /// Serve the devices that come up, even if others fail
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Listen on this Unix socket instead of the manifest's
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Listen on this TCP address instead of the manifest's; a port alone means 127.0.0.1
    #[arg(long, value_name = "ADDR", value_parser = manifest::tcp_address)]
    pub(crate) tcp: Option<String>,
    /// Print events as JSON, one object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Answer `corewise dump` on this Unix socket instead of the manifest's or the usual one
    #[arg(long, value_name = "PATH", conflicts_with = "no_control")]
    pub(crate) control: Option<PathBuf>,
    /// Run without a control socket
    #[arg(long)]
    pub(crate) no_control: bool,
    /// Stop in order when the parent process ends: for a server that a client starts by socket
    /// activation
    #[arg(long)]
    pub(crate) exit_with_parent: bool,
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

/// Parses the arguments of the process. If they are wrong, the process ends here with code 2.
pub(crate) fn parse() -> Cli {
    parsed(std::env::args_os()).unwrap_or_else(|error| error.exit())
}

fn parsed(given: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Cli, Error> {
    let mut command = command();
    let matches =
        command.try_get_matches_from_mut(given).map_err(with_the_command_that_is_meant)?;
    let cli = Cli::from_arg_matches(&matches)?;
    if let Command::Timeline(timeline) = &cli.command {
        if timeline.compare && timeline.logs.len() != 2 {
            let message = format!("--compare takes two logs, not {}", timeline.logs.len());
            let mut sub = command.find_subcommand("timeline").cloned().unwrap_or_default();
            return Err(sub.error(ErrorKind::WrongNumberOfValues, message));
        }
    }
    Ok(cli)
}

/// Names that other programs give to the work of one of our commands.
const WORDS: [(&str, &[&str]); 16] = [
    ("up", &["serve", "server", "start", "run", "daemon", "listen", "export", "share"]),
    ("dump", &["status", "state", "info", "show", "inspect", "stats"]),
    ("clients", &["who", "connections", "sessions", "ps", "ls", "list"]),
    ("disconnect", &["kick", "kill", "drop"]),
    ("events", &["log", "logs", "watch", "tail"]),
    ("remove", &["rm", "delete", "del"]),
    ("grow", &["resize", "extend", "expand", "truncate"]),
    ("reload", &["restart", "refresh", "reconfigure"]),
    ("mirror", &["raid", "resync", "scrub", "mdadm"]),
    ("overlay", &["cow", "qcow2", "rebase", "flatten", "hydrate"]),
    ("snapshot", &["snap", "clone"]),
    ("checkpoint", &["bitmap", "dirty"]),
    ("backup", &["copy", "save", "archive"]),
    ("attach", &["mount", "connect", "map", "nbd-client"]),
    ("topo", &["topology", "cpus", "lstopo", "lscpu"]),
    ("timeline", &["dmesg", "boot", "bootchart", "analyze", "analyse"]),
];

/// Replaces the command that clap suggests for an unknown word by the one that the word means. clap
/// looks for words with a similar spelling: for 'serve' it finds 'remove'.
fn with_the_command_that_is_meant(mut error: Error) -> Error {
    let typed = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(typed)) => typed.to_lowercase(),
        _ => return error,
    };
    let found = WORDS.iter().find(|(_, words)| words.contains(&typed.as_str()));
    if let Some((meant, _)) = found {
        let meant = ContextValue::Strings(vec![(*meant).to_string()]);
        error.insert(ContextKind::SuggestedSubcommand, meant);
    }
    error
}

/// Returns the definition of the command line. A flag with a number takes a negative one as its
/// value, not as another flag, so the error names the number and its range.
pub(crate) fn command() -> clap::Command {
    const NUMBERS: [&str; 5] = ["DURATION", "INTERVAL", "N", "PID", "DEVICE=FACTOR"];
    let numbers = |arg: clap::Arg| {
        let names = arg.get_value_names().unwrap_or_default();
        let number = names.iter().any(|name| NUMBERS.contains(&name.as_str()));
        arg.allow_hyphen_values(number)
    };
    let flowing = |command: clap::Command| match command.get_after_help() {
        Some(help) => {
            let help = in_whole_paragraphs(&help.to_string());
            command.after_help(help)
        }
        None => command,
    };
    flowing(Cli::command().mut_subcommands(|sub| flowing(sub.mut_args(numbers))))
}

/// Joins the lines of each paragraph, so that clap alone breaks them, at the terminal's width.
/// Lines that begin with blanks, and headings, stay lines of their own.
fn in_whole_paragraphs(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut before = "";
    for line in text.lines() {
        let stands_alone = |line: &str| line.is_empty() || line.starts_with(' ');
        let joins = !stands_alone(before) && !stands_alone(line) && !before.ends_with(':');
        if joins {
            out.push(' ');
        } else if !out.is_empty() || !before.is_empty() {
            out.push('\n');
        }
        out.push_str(line);
        before = line;
    }
    out
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
    fn a_paragraph_of_help_is_broken_at_the_width_of_the_terminal_alone() {
        let text = "\none two\nthree\n\nExamples:\n  a b\n  c\n\nExit codes: 0,\n1.";
        let whole = "\none two three\n\nExamples:\n  a b\n  c\n\nExit codes: 0, 1.";
        assert_eq!(in_whole_paragraphs(text).trim_start(), whole.trim_start());
        for sub in command().get_subcommands() {
            let help = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
            let lines: Vec<&str> = help.lines().collect();
            for pair in lines.windows(2) {
                let flow = |line: &str| !line.is_empty() && !line.starts_with(' ');
                let is_broken = flow(pair[0]) && flow(pair[1]) && !pair[0].ends_with(':');
                assert!(!is_broken, "{}: {pair:?}", sub.get_name());
            }
        }
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
    fn verbosity_and_level_say_the_same() {
        let level = |args: &[&str]| Cli::try_parse_from(args).map(|cli| cli.log.level());
        assert_eq!(level(&["corewise", "topo"]).ok(), Some(Level::Warn));
        assert_eq!(level(&["corewise", "topo", "-vv"]).ok(), Some(Level::Debug));
        assert_eq!(level(&["corewise", "--log", "off", "topo"]).ok(), Some(Level::Off));
        assert!(level(&["corewise", "topo", "-v", "--log", "info"]).is_err());
    }

    #[test]
    fn a_number_below_zero_is_a_wrong_value_of_its_flag() {
        let mut flags = 0;
        for sub in command().get_subcommands() {
            for arg in sub.get_arguments().filter(|arg| !arg.is_hide_set()) {
                let names = arg.get_value_names().unwrap_or_default();
                let number = ["DURATION", "INTERVAL", "N", "PID"];
                let Some(long) = arg
                    .get_long()
                    .filter(|_| names.iter().any(|name| number.contains(&name.as_str())))
                else {
                    continue;
                };
                let mut given = vec!["corewise".to_owned(), sub.get_name().to_owned()];
                match arg.is_require_equals_set() {
                    true => given.push(format!("--{long}=-1")),
                    false => given.extend([format!("--{long}"), "-1".to_owned()]),
                }
                if sub.get_name() == "timeline" {
                    given.push("log".to_owned());
                }
                let error = parsed(&given).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ValueValidation, "{given:?}: {error}");
                assert!(error.to_string().contains(&format!("'-1' for '--{long}")), "{error}");
                flags += 1;
            }
        }
        assert!(flags >= 12, "{flags}");
        let error = parsed(["corewise", "up", "--for", "-1s"]).unwrap_err().to_string();
        assert!(error.contains("'-1s' is not a duration: write it like 500ms"), "{error}");
    }

    #[test]
    fn a_word_of_another_program_names_the_command_that_is_meant() {
        for (command, words) in WORDS {
            assert!(super::command().find_subcommand(command).is_some(), "{command}");
            for word in words {
                let error = parsed(["corewise", word]).unwrap_err();
                assert_eq!(error.exit_code(), 2);
                let error = error.to_string();
                assert!(error.contains(&format!("exists: '{command}'")), "{word}: {error}");
            }
        }
        let error = parsed(["corewise", "Serve", "disk.toml"]).unwrap_err().to_string();
        assert!(error.contains("exists: 'up'"), "{error}");
        assert!(!parsed(["corewise", "xyzzy"]).unwrap_err().to_string().contains("exists:"));
    }

    #[test]
    fn a_comparison_of_one_log_is_wrong_usage() {
        let compared =
            |logs: &[&str]| parsed([&["corewise", "timeline", "--compare"], logs].concat());
        for logs in [&["a"][..], &["a", "b", "c"]] {
            let error = compared(logs).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(
                error.to_string().contains(&format!("two logs, not {}", logs.len())),
                "{error}"
            );
            assert!(error.to_string().contains("Usage: corewise timeline"), "{error}");
        }
        assert!(compared(&["a", "b"]).is_ok());
    }
}
