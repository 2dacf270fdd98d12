//! The one error type of the crate: what was asked, what was found, what to do.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::cpuset::{CpuId, CpuSet};

/// An error while topology facts are parsed, read or applied.
#[derive(Debug)]
#[non_exhaustive]
pub enum TopologyError {
    /// A CPU list such as `0-3,8` could not be parsed.
    CpuList {
        /// List as it was given.
        list: String,
        /// Item that is wrong.
        item: String,
        /// Position of that item: characters from the beginning of the list, the first is 1.
        position: usize,
        /// Fault of the item, and what would be right.
        reason: String,
    },
    /// A synthetic description such as `numa:2 l3:1 core:36 pu:2` could not be parsed.
    Synthetic {
        /// Description as it was given.
        description: String,
        /// Token that is wrong; empty if something is missing at the end.
        token: String,
        /// Position of that token: characters from the beginning, the first is 1.
        position: usize,
        /// Fault of the token, and what would be right.
        reason: String,
    },
    /// The name of an affinity scope is not known.
    Scope {
        /// Name that was given.
        found: String,
    },
    /// A file or folder of a sysfs tree could not be read.
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A file of a sysfs tree was read, but has unexpected content.
    Content {
        /// The file.
        path: PathBuf,
        /// Content of the file, trimmed.
        found: String,
        /// Content that was expected.
        reason: String,
    },
    /// An XML export of hwloc is malformed, or has unexpected content.
    Xml {
        /// The file, or the name that was given for the text.
        path: PathBuf,
        /// Line of the fault, the first is 1.
        line: usize,
        /// Column of the fault in characters, the first is 1.
        column: usize,
        /// Fault, and what would be right.
        reason: String,
    },
    /// A folder that was given as a saved sysfs tree is none.
    NotSysfs {
        /// The folder that was given.
        path: PathBuf,
    },
    /// The result would have no CPU that may be used.
    NoCpu {
        /// Step that left nothing, and of what.
        reason: String,
    },
    /// A CPU was named that the topology does not have.
    NoSuchCpu {
        /// The CPU that was named.
        cpu: CpuId,
        /// The CPUs that there are.
        known: CpuSet,
    },
    /// The last usable CPU was about to be taken away. As in the kernel, one always remains.
    LastCpu {
        /// The CPU (or the set) that would have left nothing, as a list.
        cpus: CpuSet,
    },
    /// A thread could not be pinned.
    Pin {
        /// CPUs on which the thread was to run.
        cpus: CpuSet,
        /// The system's error, or what is wrong with the set.
        error: io::Error,
    },
    /// A [`Watch`](crate::Watch) could not be made, or failed.
    Watch {
        /// Operation that failed.
        doing: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CpuList { list, item, position, reason } => {
                write!(f, "CPU list '{list}': '{item}' at character {position}: {reason}")
            }
            Self::Synthetic { description, token, position, reason } if token.is_empty() => write!(
                f,
                "synthetic topology '{description}': at its end (character {position}): {reason}"
            ),
            Self::Synthetic { description, token, position, reason } => write!(
                f,
                "synthetic topology '{description}': '{token}' at character {position}: {reason}"
            ),
            Self::Scope { found } => write!(
                f,
                "unknown affinity scope '{found}': use cpu, smt, cache, cache_shard, numa or system"
            ),
            Self::Read { path, error } => write!(f, "cannot read {}: {error}", path.display()),
            Self::Content { path, found, reason } => {
                write!(f, "{} says '{found}': {reason}", path.display())
            }
            Self::Xml { path, line, column, reason } => {
                write!(f, "{}, line {line}, column {column}: {reason}", path.display())
            }
            Self::NotSysfs { path } => write!(
                f,
                "{} is not a sysfs tree: expected a folder with sys/devices/system/cpu, \
                 devices/system/cpu or cpu",
                path.display()
            ),
            Self::NoCpu { reason } => write!(f, "no CPU is left to use: {reason}"),
            Self::NoSuchCpu { cpu, known } => {
                write!(f, "CPU {cpu} does not exist in this topology; it has CPUs {known}")
            }
            Self::LastCpu { cpus } => {
                write!(
                    f,
                    "without CPUs {cpus} no usable CPU would remain; bring another CPU online \
                     first"
                )
            }
            Self::Pin { cpus, error } => {
                write!(f, "cannot pin the thread to CPUs '{cpus}': {error}")
            }
            Self::Watch { doing, error } => write!(
                f,
                "cannot watch the machine for changes: {doing} failed: {error}; call \
                 Machine::refresh after a change"
            ),
        }
    }
}

/// The text contains the cause, so no source is given: a report of both would have it twice.
impl std::error::Error for TopologyError {}
