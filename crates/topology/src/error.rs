//! The one error type of the crate: what was asked, what was found, what to do.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::cpuset::{CpuId, CpuSet};

/// Everything that can go wrong while topology facts are parsed, read or applied.
#[derive(Debug)]
#[non_exhaustive]
pub enum TopologyError {
    /// A CPU list such as `0-3,8` could not be parsed.
    CpuList {
        /// The whole list as it was given.
        list: String,
        /// The item in it that is wrong.
        item: String,
        /// Where that item starts: characters from the beginning of the list, the first is 1.
        position: usize,
        /// What is wrong with it and what would be right.
        reason: String,
    },
    /// A synthetic description such as `numa:2 l3:1 core:36 pu:2` could not be parsed.
    Synthetic {
        /// The whole description as it was given.
        description: String,
        /// The token in it that is wrong; empty when something is missing at the end.
        token: String,
        /// Where that token starts: characters from the beginning, the first is 1.
        position: usize,
        /// What is wrong with it and what would be right.
        reason: String,
    },
    /// The name of an affinity scope is not known.
    Scope {
        /// What was given.
        found: String,
    },
    /// A file or folder of a sysfs tree could not be read.
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A file of a sysfs tree was read, but does not say what such a file says.
    Content {
        /// The file.
        path: PathBuf,
        /// What it says, trimmed.
        found: String,
        /// What was expected there.
        reason: String,
    },
    /// An XML export of hwloc is malformed, or does not say what such an export does.
    Xml {
        /// The file, or the name that was given for the text.
        path: PathBuf,
        /// The line of what is wrong, the first is 1.
        line: usize,
        /// Where it starts in that line, in characters; the first is 1.
        column: usize,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// A folder that was given as a saved sysfs tree is none.
    NotSysfs {
        /// The folder that was given.
        path: PathBuf,
    },
    /// The result would have no CPU that may be used.
    NoCpu {
        /// Which step left nothing, and of what.
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
        /// Where it was to run.
        cpus: CpuSet,
        /// The system's error, or what is wrong with the set.
        error: io::Error,
    },
    /// A [`Watch`](crate::Watch) could not be made, or failed.
    Watch {
        /// What it was doing.
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

/// The text has the cause's, so there is no source: a report of both would have it twice.
impl std::error::Error for TopologyError {}
