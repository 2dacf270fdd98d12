//! Fuzz targets, and the replay of their corpora.
//!
//! Each target is a function over bytes that checks invariants, not only the absence of panics. The
//! same function is driven by libFuzzer (`cargo fuzz run handshake`, in this folder), by the
//! binaries of `fuzz_targets` (files as arguments), and by `tests/replay.rs` (every file of
//! `corpus/`, and seeded mutations of them).
//!
//! | target | input | what has to hold |
//! |---|---|---|
//! | [`handshake()`] | what a client sends in its handshake | the same answers however the bytes are cut; well-formed, bounded |
//! | [`transmission()`] | requests behind a good handshake | each answered once, with what a model says; the same contents |
//! | [`connection()`] | a whole connection from its first byte | it ends; a device that wasn't chosen isn't touched; others are served |
//! | [`topology()`] | an XML export or a synthetic description of a machine | facts agree with each other, errors point into the input |
//! | [`partition_table()`] | a disk with a GUID partition table | partitions lie in it and don't overlap; only good ranges are read |
//! | [`remote()`] | what a server says in its handshake, to a volume that is its export | an agreement follows from its bytes and no others |
//! | [`answers()`] | what a server says to the requests of a volume that is its export | the same however the bytes are cut; each request ends once, reads whole |
//! | [`kernel_log()`] | a kernel log, a listing of sysfs, a dependency file | the same in any pieces; timelines do not contradict themselves |

mod answers;
mod connection;
mod device;
mod handshake;
mod kernel_log;
mod mutate;
mod partition_table;
mod remote;
pub mod seeds;
mod topology;
mod transmission;

pub use answers::answers;
pub use connection::connection;
pub use handshake::handshake;
pub use kernel_log::kernel_log;
pub use mutate::Mutator;
pub use partition_table::partition_table;
pub use remote::remote;
pub use topology::topology;
pub use transmission::transmission;

/// A fuzz target.
pub type Target = fn(&[u8]);

/// All targets, by the names of their corpora.
pub const TARGETS: [(&str, Target); 8] = [
    ("handshake", handshake),
    ("transmission", transmission),
    ("connection", connection),
    ("topology", topology),
    ("partition_table", partition_table),
    ("kernel_log", kernel_log),
    ("remote", remote),
    ("answers", answers),
];

/// Replays the files named on the command line.
///
/// # Errors
/// Where a file can't be read.
///
/// # Panics
/// Where an invariant is broken: that is its purpose.
pub fn replay_arguments(target: Target) -> std::io::Result<()> {
    for path in std::env::args_os().skip(1) {
        target(&std::fs::read(path)?);
    }
    Ok(())
}
