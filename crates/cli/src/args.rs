//! The command line: one definition that parses, checks and explains every flag.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::styling::{AnsiColor, Styles};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use corewise::device::HangPolicy;
use corewise::topology::{AffinityScope, CpuSet, DEFAULT_SHARD_SIZE, Topology, TopologyError};
use corewise_bench::{bench, names};

use crate::timeline::{self, TimelineFile};
use crate::{manifest, suggest, units};

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

const EXAMPLES: &str = "\
Examples:
  corewise up                       serve a few volumes from a temporary folder
  corewise up disks.toml            serve those of a manifest
  corewise topo                     CPUs, caches, nodes and pods of this machine
  corewise dump                     what the pools and queues of a running up do
  corewise mirror                   what the mirrors of a running up are at
  corewise timeline dmesg.txt       what a kernel log says of probes and shutdowns
  corewise bench workqueue --quick  which scope serves best on this machine

Exit codes: 0 success, 1 failure, 2 wrong usage.";

const TOPO_EXAMPLES: &str = "\
Sources:
  live               this machine, as this process may use it (the default)
  sysfs:DIR          a saved copy of /sys/devices/system
  xml:FILE           an XML export of hwloc 2, as lstopo --of xml writes it
  synthetic:'SPEC'   hwloc's description language, indexes= included

Examples:
  corewise topo
  corewise topo --json | jq '.scopes.cache_shard'
  corewise topo --from synthetic:'numa:2 l3:1 core:36 pu:2' --shard-size 12
  corewise topo --from synthetic:'numa:2 core:12 pu:2(indexes=core)'
  corewise topo --from xml:other-machine.xml
  corewise topo --svg nodes.svg --scope numa
  corewise topo --from sysfs:/tmp/other-machine";

const UP_BEFORE: &str = "\
Without a manifest a built-in one makes a memory volume, a stripe and a mirror over files in a
temporary folder, which is removed at the end. A manifest of your own, in short:
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
docs/manifest.md describes all of it.

SIGINT, SIGTERM and --for stop the server: it accepts nobody any more, answers what is in flight,
flushes, and shuts the devices down in dependency order. A second signal ends it at once. A device
whose shutdown takes longer than 10s (its shutdown_timeout), or whose bring-up takes longer than its
probe_timeout, is named, with those that wait for it; the others go on.

Examples:
  corewise up
  corewise up --for 5s --timeline up.svg
  corewise up disks.toml --keep-going
  corewise up disks.toml --state /var/lib/corewise --shutdown-timeout 1m --on-hang give-up
  corewise up disks.toml --socket /run/corewise.sock --tcp 10809

Exit codes: 0 everything came up and went down in order, 1 something did not, 2 wrong usage.";

const DUMP_EXAMPLES: &str = "\
Without --control and --pid it finds the one `corewise up` of this user that runs. The socket is in \
$XDG_RUNTIME_DIR/corewise, or in corewise-UID in the folder of temporary files; `up --control` puts \
it elsewhere. docs/control.md explains the columns, the JSON and the protocol.

Examples:
  corewise dump
  corewise dump volumes 'device*'
  corewise dump --json | jq '.queues[] | {name, in_flight}'
  corewise dump --monitor=500ms volumes
  corewise dump --monitor --rounds 10 --json

Exit codes: 0 success, 1 failure (no server, or several, or it doesn't answer), 2 wrong usage.";

const MIRROR_EXAMPLES: &str = "\
A part that failed, or that was missing when the mirror came up, is out: nothing is written there. Once \
its disk is back it is taken back, and gets what was written meanwhile, and nothing else, while \
clients go on. `retry` in the manifest has that tried by itself. The server is found as by \
`corewise dump`.

Examples:
  corewise mirror
  corewise mirror data --take-back
  corewise mirror data --take-back=disk1 --wait
  corewise mirror --json | jq '.disks[].mirror.parts'

Exit codes: 0 success, 1 failure (no server, nothing to take back, or, with --wait, a part that is
still out), 2 wrong usage.";

const BENCH_EXAMPLES: &str = "\
Benchmarks:
  workqueue   every scope and shard size that differs on this machine, and the old design of one
              locked list per cache; ends with advice on which scope to choose
  calls       how long urgent tasks wait for their cores while others wait for calls, against the
              old waiter that holds its core; round trips, against two threads that ping each other
              through an eventfd; calls to many
  probe       devices that burn and wait in their probes, from three to 10000: near their node,
              against the old ways that place each probe twice, all on the node's first CPU or not
  shutdown    how long webs of up to 50000 devices take to shut down, and a published machine, against
              the plain loop, and the old design of a worker for each device that blocks
  blockmq     sequential reads that eight threads complete, each of which runs its queue where
              nothing is pending: with a fence, against the old lock there that sleeps; random reads
              and writes on null, memory and a file in the folder for temporary files (TMPDIR), which
              takes 1 GiB, against fio; tags; how long a quiesce and a freeze take under load, of one
              queue and of many

Every run is a process of its own. The runs of a round follow each other in random order, the first
round doesn't count, and ratios are made of pairs of one round. The pages of docs/results say
what each workload does. All workloads with all rounds take an hour, half of it for shutdown. Leave the
machine alone meanwhile. As root, calls and blockmq give their threads real-time priorities; else in
calls a core is a lock that stands for it.

Examples:
  corewise bench --quick
  corewise bench workqueue --quick
  corewise bench workqueue --rounds 20 --workload storm --workload kernel_test
  corewise bench calls --quick
  corewise bench calls --workload roundtrip/hot --workload broadcast
  corewise bench probe --workload devices/3
  corewise bench shutdown --workload azure --workload flat/5000
  corewise bench blockmq --workload seqread
  corewise bench workqueue --json > bench.json
  corewise bench workqueue --report bench.html
  corewise bench machine --out costs.toml

Exit codes: 0 success, 1 failure, 2 wrong usage.";

const MACHINE_EXAMPLES: &str = "\
Every thread is pinned to one CPU, with ordinary priority. A figure is a median; a tenth of the
samples lies below p10, a tenth above p90. It takes less than a minute, and no privileges. Leave the
machine alone meanwhile: the file says what else ran. docs/machine.md explains each key, how it is
measured, and what it can't tell.

Examples:
  corewise bench machine
  corewise bench machine --out costs.toml --svg costs.svg
  corewise bench machine --quick --cpus 0-7
  corewise bench machine --json | jq '.distance.cache.list_ns.p50'

Exit codes: 0 success, 1 failure, 2 wrong usage.";

fn up_help() -> String {
    [UP_BEFORE, UP_MANIFEST, UP_AFTER].concat()
}

/// Serve volumes from machines of many cores, and see what bringing them up and down costs.
#[derive(Debug, Parser)]
#[command(name = "corewise", version, styles = STYLES, after_help = EXAMPLES)]
#[command(max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) log: Log,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What is told on stderr beyond errors.
#[derive(Debug, Args)]
pub(crate) struct Log {
    /// Tell more on stderr: -v info, -vv debug, -vvv trace
    #[arg(short, long, action = clap::ArgAction::Count, global = true, conflicts_with = "log", display_order = 900)]
    verbose: u8,
    /// Tell on stderr what is at least this grave [default: warn]
    #[arg(long, value_name = "LEVEL", global = true, display_order = 901)]
    log: Option<Level>,
}

/// How grave a message is.
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
    /// Show CPUs, caches, nodes, and the pods that each affinity scope makes of them
    #[command(after_help = TOPO_EXAMPLES)]
    Topo(Topo),
    /// Bring up the devices of a manifest in parallel and export them over NBD
    #[command(after_help = up_help())]
    Up(Up),
    /// Show the worker pools, queues and running work of a `corewise up`
    #[command(after_help = DUMP_EXAMPLES)]
    Dump(Dump),
    /// Show the mirrors of a `corewise up`, and take parts back that failed or were missing
    #[command(after_help = MIRROR_EXAMPLES)]
    Mirror(Mirror),
    /// Say what a kernel log tells of probes and shutdowns, and what would be faster
    #[command(after_help = timeline::EXAMPLES)]
    Timeline(timeline::Args),
    /// Measure this machine, and say which scope serves it best
    #[command(after_help = BENCH_EXAMPLES)]
    Bench(Bench),
}

/// `corewise topo`.
#[derive(Debug, Args)]
pub(crate) struct Topo {
    /// Which machine to show
    #[arg(long, value_name = "SOURCE", default_value = "live", value_parser = source)]
    pub(crate) from: Source,
    /// How many cores a pod of scope cache_shard is to come closest to; at least 2 if there are
    #[arg(long, value_name = "N", default_value_t = DEFAULT_SHARD_SIZE)]
    pub(crate) shard_size: u32,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
    /// Draw the machine and its pods into FILE as a picture, and print no text; '-' is stdout
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub(crate) svg: Option<PathBuf>,
    /// Whose pods the picture shows [default: cache_shard]
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
    /// TOML file that declares devices and exports; '-' reads it from stdin
    pub(crate) manifest: Option<PathBuf>,
    /// Stop after this long, such as 5s, 2m or 1h
    #[arg(long = "for", value_name = "DURATION", value_parser = units::parse_duration)]
    pub(crate) duration: Option<Duration>,
    /// Write both timelines, bring-up and shutdown, to FILE (.svg, .html, .json, .trace.json)
    #[arg(long, value_name = "FILE", value_parser = TimelineFile::parse)]
    pub(crate) timeline: Option<TimelineFile>,
    /// Keep in this folder how long devices take to come up and to go down, so that those that take
    /// long go first next time
    #[arg(long, value_name = "DIR")]
    pub(crate) state: Option<PathBuf>,
    /// How long the whole shutdown may take; what hangs then is named, and --on-hang goes for it
    #[arg(long, value_name = "DURATION", value_parser = units::parse_duration)]
    pub(crate) shutdown_timeout: Option<Duration>,
    /// What to do once only devices that hang are left: wait for them, skip them (in a bring-up: as if
    /// they had failed; in a shutdown: shut down what they use), or give up; these two end with exit
    /// code 1 [default: wait]
    #[arg(long, value_name = "POLICY", value_parser = hang_policy())]
    pub(crate) on_hang: Option<HangPolicy>,
    /// Bring up what can be brought up, and say what can't
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Listen on this Unix socket instead of the manifest's
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Listen on this TCP address instead of the manifest's; a port alone means 127.0.0.1
    #[arg(long, value_name = "ADDR", value_parser = manifest::tcp_address)]
    pub(crate) tcp: Option<String>,
    /// Print one JSON object a line, one line an event
    #[arg(long)]
    pub(crate) json: bool,
    /// Answer `corewise dump` on this Unix socket instead of the manifest's or the usual one
    #[arg(long, value_name = "PATH", conflicts_with = "no_control")]
    pub(crate) control: Option<PathBuf>,
    /// Have no control socket
    #[arg(long)]
    pub(crate) no_control: bool,
}

/// Which server is asked.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// Ask the `up` that has its control socket there
    #[arg(long, value_name = "PATH", conflicts_with = "pid")]
    pub(crate) control: Option<PathBuf>,
    /// Ask the `up` with this process id
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Option<u32>,
}

/// `corewise mirror`.
#[derive(Debug, Args)]
pub(crate) struct Mirror {
    /// The mirror's device; without it all are shown
    pub(crate) name: Option<String>,
    /// Try this part again, which failed or was missing, or all that are out
    #[arg(
        long,
        value_name = "PART",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        requires = "name"
    )]
    pub(crate) take_back: Option<String>,
    /// Wait until what was resynced is in sync, or out again
    #[arg(long, requires = "name")]
    pub(crate) wait: bool,
    #[command(flatten)]
    pub(crate) server: Which,
    /// Print one JSON document
    #[arg(long)]
    pub(crate) json: bool,
}

/// `corewise dump`.
#[derive(Debug, Args)]
pub(crate) struct Dump {
    /// Only these queues; a '*' in a name stands for any letters
    pub(crate) queues: Vec<String>,
    #[command(flatten)]
    pub(crate) server: Which,
    /// Print one JSON document; with --monitor one a round, each on its line
    #[arg(long)]
    pub(crate) json: bool,
    /// Show the queues' counters again and again, each INTERVAL [default: 1s], until Ctrl-C
    #[arg(
        long,
        value_name = "INTERVAL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "1s",
        value_parser = interval
    )]
    pub(crate) monitor: Option<Duration>,
    /// Stop after so many rounds
    #[arg(long, value_name = "N", requires = "monitor", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rounds: Option<u64>,
}

/// `corewise bench`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub(crate) struct Bench {
    #[command(subcommand)]
    pub(crate) other: Option<BenchOther>,
    /// Which benchmarks to run: workqueue, calls, probe, shutdown, blockmq [default: all there are]
    #[arg(value_parser = benchmark)]
    pub(crate) names: Vec<&'static bench::Bench>,
    /// Print the records as one JSON array
    #[arg(long)]
    pub(crate) json: bool,
    /// Be done within 50 seconds: shorter runs, and of fewer workloads
    #[arg(long)]
    pub(crate) quick: bool,
    /// Rounds that count [default: 10, of shutdown 3; with --quick 6, or what 50 seconds allow]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) rounds: Option<u16>,
    /// Only this workload, such as storm, storm/boxed or held_span; may be given again
    #[arg(long, value_name = "WORKLOAD", value_parser = workload)]
    pub(crate) workload: Vec<String>,
    /// Draw the run into FILE as one HTML page, with the advice and every figure
    #[arg(long, value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
    /// Show beside it what 'bench-peers NAME --out FILE' measured
    #[arg(long, value_name = "FILE.json", requires = "report")]
    pub(crate) peers: Option<PathBuf>,
    /// Do one run, and print its line: how this program starts itself
    #[arg(long, value_name = "WORD", num_args = 1.., hide = true, exclusive = true)]
    pub(crate) run: Vec<String>,
}

/// What `corewise bench` measures beside its benchmarks.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchOther {
    /// Measure what this machine costs: lines from CPU to CPU, wake-ups, switches, calls, the allocator
    #[command(after_help = MACHINE_EXAMPLES)]
    Machine(BenchMachine),
}

/// `corewise bench machine`.
#[derive(Debug, Args)]
pub(crate) struct BenchMachine {
    /// Write the costs into FILE, as TOML; '-' is stdout, without the tables
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) out: Option<PathBuf>,
    /// Print the costs as one JSON document, with the keys of the file
    #[arg(long)]
    pub(crate) json: bool,
    /// Draw the line transfers by pair of CPUs into FILE as a picture
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) svg: Option<PathBuf>,
    /// Be done in ten seconds: fewer samples of each
    #[arg(long)]
    pub(crate) quick: bool,
    /// Only these CPUs, as a list such as 0-3,8 [default: all that this process may use]
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    pub(crate) cpus: Option<CpuSet>,
}

fn benchmark(text: &str) -> Result<&'static bench::Bench, String> {
    if let Some(found) = bench::named(text) {
        return Ok(found);
    }
    // A command of its own, which other words may stand before.
    let names = [&bench::ALL.map(|bench| bench.name)[..], &["machine"]].concat();
    let all = names.join(", ");
    Err(match suggest::closest(text, names) {
        Some(meant) => format!("did you mean '{meant}'?"),
        None => format!("this version has no such benchmark; there are: {all}"),
    })
}

fn cpus(text: &str) -> Result<CpuSet, String> {
    let cpus: CpuSet = text.parse().map_err(|error: TopologyError| error.to_string())?;
    match cpus.is_empty() {
        true => Err("write a list such as 0-3,8".to_owned()),
        false => Ok(cpus),
    }
}

fn hang_policy() -> impl TypedValueParser<Value = HangPolicy> {
    PossibleValuesParser::new(manifest::HANG_POLICIES.map(|(name, _)| name))
        .try_map(|name| manifest::hang_policy(&name))
}

fn workload(text: &str) -> Result<String, String> {
    // Of a machine with many CPUs, whose threads may have real-time priorities or not.
    let one = Topology::synthetic("core:1 pu:1").map_err(|error| error.to_string())?;
    let on = bench::On::made_up(&one, bench::Effort::Full);
    let on = bench::On { cpus: CpuSet::full(1 << 12), ..on };
    let ons = [on.clone(), bench::On { urgent: true, counted: true, ..on }];
    let cases = |bench: &'static bench::Bench| ons.iter().flat_map(|on| bench.cases(on));
    let all: Vec<String> = bench::ALL.into_iter().flat_map(cases).collect();
    if all.iter().any(|case| names::matches(text, case)) {
        return Ok(text.to_owned());
    }
    let mut workloads: Vec<&str> = Vec::new();
    for case in &all {
        let workload = case.split('/').next().unwrap_or(case);
        if !workloads.contains(&workload) {
            workloads.push(workload);
        }
    }
    Err(match suggest::closest(text, workloads.iter().copied()) {
        Some(meant) => format!("did you mean '{meant}'?"),
        None => format!("there are: {}", workloads.join(", ")),
    })
}

/// Between two rounds: no server answers more often than that.
const SHORTEST: Duration = Duration::from_millis(10);

fn interval(text: &str) -> Result<Duration, String> {
    let interval = units::parse_duration(text)?;
    match interval < SHORTEST {
        true => Err("a server answers at most a hundred times a second: 10ms is the least".into()),
        false => Ok(interval),
    }
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
    fn benchmarks_and_workloads_are_known_or_guessed_at() {
        assert!(benchmark("workqueue").is_ok());
        assert_eq!(benchmark("workqeue"), Err("did you mean 'workqueue'?".to_string()));
        assert_eq!(benchmark("machin"), Err("did you mean 'machine'?".to_string()));
        assert!(benchmark("nbd").unwrap_err().contains("there are: workqueue, calls"));
        assert!(workload("held_span").is_ok() && workload("broadcast/4").is_ok());
        assert!(workload("storm").is_ok() && workload("storm/boxed").is_ok());
        assert_eq!(workload("strom"), Err("did you mean 'storm'?".to_string()));
        assert!(workload("tokio").unwrap_err().contains("kernel_test, storm, inside"));
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
