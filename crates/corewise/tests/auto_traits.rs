//! The automatic traits of each public type. None of them stands in a type's source: a changed
//! private field can take them away from users unnoticed. `docs/api/auto-traits.txt` has them, a
//! line a type.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::marker::PhantomData;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::path::{Path, PathBuf};

/// The variable that makes this test write the file.
const RENEW: &str = "COREWISE_RENEW";

struct Is<T: ?Sized>(PhantomData<T>);

/// The defaults for a type that lacks the trait: a constant of the type itself goes before that of
/// a trait.
#[allow(dead_code, reason = "each of them has a type that lacks it, or will have")]
trait Not {
    const SEND: bool = false;
    const SYNC: bool = false;
    const UNPIN: bool = false;
    const UNWIND_SAFE: bool = false;
    const REF_UNWIND_SAFE: bool = false;
}
impl<T: ?Sized> Not for Is<T> {}
impl<T: ?Sized + Send> Is<T> {
    const SEND: bool = true;
}
impl<T: ?Sized + Sync> Is<T> {
    const SYNC: bool = true;
}
impl<T: ?Sized + Unpin> Is<T> {
    const UNPIN: bool = true;
}
impl<T: ?Sized + UnwindSafe> Is<T> {
    const UNWIND_SAFE: bool = true;
}
impl<T: ?Sized + RefUnwindSafe> Is<T> {
    const REF_UNWIND_SAFE: bool = true;
}

/// Makes a line for each type of a module.
macro_rules! lines {
    ($($module:ident: $($type:ident$(<$($parameter:tt),*>)?),* $(,)?;)*) => {
        [$($({
            type This = Is<at::$module::$type$(<$($parameter),*>)?>;
            let has = [
                (This::SEND, "Send"),
                (This::SYNC, "Sync"),
                (This::UNPIN, "Unpin"),
                (This::UNWIND_SAFE, "UnwindSafe"),
                (This::REF_UNWIND_SAFE, "RefUnwindSafe"),
            ];
            let has: Vec<&str> = has.iter().filter(|(has, _)| *has).map(|(_, name)| *name).collect();
            (stringify!($module), stringify!($type), has.join(" "))
        }),*),*]
    };
}

/// The modules of the list.
mod at {
    pub(crate) use corewise::{
        blockmq, device, drivers, export, kernel_log, nbd, ring, smp, sync, timeline, topology,
        ublk, vhost, workqueue,
    };
}

#[rustfmt::skip]
fn lines() -> Vec<(&'static str, &'static str, String)> {
    let of_crates = lines! {
        topology: AffinityScope, Change, CoreKind, Cpu, CpuId, CpuQuota, CpuSet, Iter<'static>, Llc, Machine, Masks, Node, Pod, Pods,
            ShardLayout, Source, Subscription, Tid, Topology, TopologyError, Unwatched, Watch;
        workqueue: AbortOnDrop<u8>, Activity, At, Attributes, BuildError, Dump, EndNotice, Idle, ItemReport, JoinError,
            JoinHandle<u8>, LinkDump, PanicPayload, PlacedQueue<'static>, PlacedScope<'static, 'static>, PoolDump, PoolReport,
            PoolsBuilder, QueueBuilder, QueueDump, QueueError,
            QueueKind, QueueStats, Queued, Refused<u8>, RunningDump, Scope<'static, 'static>, ScopeDump,
            ScopedJoinHandle<'static, u8>, SlotDump, SlotPlace, StallReport, StillRunning, Ticker, Unfinished, Work, WorkerPools,
            WorkerThread, Workqueue;
        smp: AllCpus, AnyOf<'static>, Call<u8>, CallError<u8>, CallFailed, CallStall, CallStats, CpuDump, CpuState,
            Detached<'static>, Dump, Filter<u8, u8>, Followed, Latencies, Leaving, ManyAnswers<u8>, ManyCall<u8>, MissingAnswer,
            OutstandingCall, PanicPayload, PerCpu<u8>, Priority, Progress, Reach, RunError<u8>, RunningCall, SkipReason, Skipped,
            Smp, SmpBuilder, StartError, ThreadState, Values<u8>, ValuesIter<'static, u8>, Waiter;
        device: AwaitedDevice, Blocker, BringUp, BringUpOptions, CallbackFailure, Cancel, DeviceDecl, DeviceId, DeviceInfo, DeviceManager, DeviceReport,
            DeviceState, Error, Event<'static>, Graph, GraphError, HangPolicy, History, Need, OverdueCallback, Pending,
            PendingState, ProbeContext<'static>, ProbeCost, ProbeDone, ProbeError, ProbeOutcome, ProbeType, Remaining,
            RemainingState, ShutdownDone, ShutdownError, ShutdownMode, ShutdownOptions, ShutdownReport;
        blockmq: AlignedBuf, Buffer, BufferMemory, BufferPool, Completed, Completer, CompleterStats, Deadline, DiskStats,
            Displaced, Dispatch, Extent,
            ExtentKind, Extents, Flags, FreezeGuard, Geometry, HctxStats, HeldRequest, HwQueues, Info, IoError, IoErrorKind, IoScheduler, IoStats,
            NowaitError, Op, OpStats, PartDone, Payload, Plug, Queue, QueueBuilder, QuiesceGuard, ReadOnlyLatch, RefusedRequest, Remap<'static>, Request, RequestMut<'static>,
            RqAffinity,
            Segment<'static>, Segments<'static>, Started, TagSet, TimedOut<'static>, TimerReturn, Whole;
        drivers: Alignment, Checkpoint, CheckpointDriver, CheckpointEvent, CheckpointImage, CheckpointOptions, CheckpointStatus, Crypt, CryptHeader, CryptOptions, Degraded, Delay, Delays, Fault, Faulty, FetchPolicy, FileDriver, FileEvent, FileFault, FileGuard, FileOptions, FileRings, IoPath, LegState, Memory,
            Mirror, MirrorCheck, MirrorChecked, MirrorEvent, MirrorLeg, MirrorOptions, MirrorPlace, MirrorStatus, Null, NullOptions, OnLoss, OpenError, OpenErrorKind, Overlay, OverlayEvent, OverlayOptions, OverlayStatus, Partition,
            PartitionEntry, PartitionTable, PathInUse, Secret, StackError, Stripe;
        nbd: Budget, ClientEvent<'static>, ClientStatus, DrainReport, Endpoint, Error, Export, ExportFlush, ExportStatus, FlushOutcome, HandshakeCounts,
            Listener, MemoryUse, Options, Peer, Rate, Remote, RemoteError, RemoteEvent, RemoteOptions, RemoteProxy, RemoteSession, RemoteState, RemoteStatus, Server, TlsPart,
            Traffic, Uri, UriError;
        timeline: Certainty, CriticalPath, Driver, Edge, EdgeKind, Lane, LaneRow, Length, Outcome,
            Span, SpanId, SpanKind, Summary, Timeline, Unplaced;
        kernel_log: Bound, BootSummary, Deferral, DependencyError, DeviceGraph, EdgeSource, Form, GraphEdge, KernelLog, Prefix, Reader,
            Split, SuspiciousLine, Unread;
        export: Access, BindError, Client, Counts, Feed, Identity, InDevice, Limiter, Next, Peer, Rate, SharedDevice, SocketAccess, SocketFile,
            Traffic;
        ublk: Abilities, Disk, DiskOptions, DiskStatus, Disks, Error, FoundDisk, Mark, Removal;
        vhost: Disk, DiskStatus, Error, FrontendEvent<'static>, Options, Server, StopReport;
        ring: Entries<'static, 'static>, RingPort, RingSet, Rings;
        sync: Bell, Burst, CleanAt, Completion, Condvar, Countdown, Counter, LeftOut, Mutex<u8>, MutexGuard<'static, u8>, Parker, Proof, RwLock<u8>,
            RwLockReadGuard<'static, u8>, RwLockWriteGuard<'static, u8>, Signal, SpinLock<u8>, SpinLockGuard<'static, u8>, Swap<u8>, Throttle, Unparker;
    };
    let mut all = of_crates.to_vec();
    all.sort();
    all
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_automatic_traits_of_each_public_type_are_as_they_were_written_down() {
    let file = root().join("docs/api/auto-traits.txt");
    let now: String = lines().iter().fold(String::new(), |mut text, (module, name, has)| {
        let _ = writeln!(text, "{module}::{name}: {has}");
        text
    });
    if std::env::var_os(RENEW).is_some() {
        return fs::write(&file, now).expect("the file can be written");
    }
    let stored = fs::read_to_string(&file).unwrap_or_default();
    let (stored, now): (BTreeSet<&str>, BTreeSet<&str>) =
        (stored.lines().collect(), now.lines().collect());
    let lost: Vec<_> = stored.difference(&now).map(|line| format!("- {line}")).collect();
    let new: Vec<_> = now.difference(&stored).map(|line| format!("+ {line}")).collect();
    assert!(
        lost.is_empty() && new.is_empty(),
        "the automatic traits changed:\n{}\nIs it meant? Say so in CHANGELOG.md, and write it down: {RENEW}=1 cargo test -p \
         corewise --test auto_traits",
        [lost, new].concat().join("\n")
    );
}

/// Returns the names of types that a module has: words of its `pub use`, if a line of the crate's
/// API declares them.
fn types(library: &str, module: &str) -> BTreeSet<String> {
    let read = |path: String| fs::read_to_string(root().join(path)).expect("it is there");
    let api = read(format!("docs/api/{library}.txt"));
    let words = |text: &str| -> Vec<String> {
        text.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned).collect()
    };
    let declared: BTreeSet<String> = api
        .lines()
        .filter_map(|line| {
            let words = words(line);
            let at = words.iter().position(|word| word == "struct" || word == "enum")?;
            words.get(at + 1).filter(|name| !name.is_empty()).cloned()
        })
        .collect();
    let source = read(format!("crates/{library}/src/{module}"));
    let code: String = source.lines().filter(|line| !line.trim().starts_with("//")).collect();
    let uses = code.split("pub use ").skip(1).filter_map(|rest| rest.split_once(';'));
    // The last two need a feature that this test is compiled without.
    let listed = |word: &String| declared.contains(word) && word != "Tls" && word != "RemoteTls";
    uses.flat_map(|(names, _)| words(names)).filter(listed).collect()
}

#[test]
fn no_public_type_of_a_module_is_forgotten() {
    let lines = lines();
    let crates = [
        "topology",
        "workqueue",
        "smp",
        "device",
        "blockmq",
        "drivers",
        "export",
        "nbd",
        "timeline",
        "sync",
        "ublk",
        "vhost",
    ];
    for library in crates {
        let types = types(library, "lib.rs");
        assert!(types.len() > 5, "{library}: {types:?}");
        let listed =
            |name: &String| lines.iter().any(|(of, this, _)| *of == library && this == name);
        let forgotten: Vec<_> = types.iter().filter(|name| !listed(name)).collect();
        assert!(forgotten.is_empty(), "{library}: add {forgotten:?} to the list of this file");
    }
}
