//! Fuzz targets, and the replay of their corpora.
//!
//! Each target is a function over bytes that checks invariants, not only the absence of panics.
//! Three programs drive the same function: libFuzzer (`cargo fuzz run handshake`, in this folder),
//! the binaries of `fuzz_targets` (files as arguments), and `tests/replay.rs` (every file of
//! `corpus/`, and seeded mutations of them).
//!
//! * [`handshake()`]: a client's bytes in its handshake. The answers are well-formed and bounded,
//!   and the same in any pieces.
//! * [`transmission()`]: requests behind a good handshake. Each gets one answer, as a model
//!   predicts, and the device ends with the model's contents.
//! * [`connection()`]: a whole connection from its first byte. The connection ends, a device that
//!   wasn't chosen stays untouched, and the server serves other clients.
//! * [`topology()`]: an XML export or a synthetic description of a machine. Facts agree with each
//!   other, and errors point into the input.
//! * [`partition_table()`]: a disk with a GUID partition table. Partitions lie in the disk and
//!   don't overlap, and only valid ranges are read.
//! * [`luks()`]: a disk with a LUKS2 header. The data lies in the disk, only valid ranges are read,
//!   and a damaged copy is reported.
//! * [`overlay()`]: the headers and the map of an overlay. A read has the base's bytes or those of
//!   the file at that place, and flushed data stays.
//! * [`checkpoint_record()`]: the record of a volume's checkpoints. Checkpoints don't contradict
//!   each other, and a record that was opened says the same the second time.
//! * [`remote()`]: a server's bytes in its handshake, to a volume that is its export. An agreement
//!   follows from these bytes alone.
//! * [`answers()`]: a server's answers to the requests of a volume that is its export. Each request
//!   ends once, a read has all its bytes, and the result is the same in any pieces.
//! * [`guest()`]: a guest's memory as the ring of its virtio disk, or a frontend's messages. Each
//!   request is answered once at most, nothing is written that no descriptor offers, and the server
//!   serves the next guest.
//! * [`kernel_log()`]: a kernel log, a listing of sysfs, a dependency file. The result is the same
//!   in any pieces, and timelines do not contradict themselves.

mod answers;
mod checkpoint_record;
mod connection;
mod device;
mod guest;
mod handshake;
mod kernel_log;
mod luks;
mod mutate;
mod overlay;
mod partition_table;
mod remote;
pub mod seeds;
mod topology;
mod transmission;

pub use answers::answers;
pub use checkpoint_record::checkpoint_record;
pub use connection::connection;
pub use guest::guest;
pub use handshake::handshake;
pub use kernel_log::kernel_log;
pub use luks::luks;
pub use mutate::Mutator;
pub use overlay::overlay;
pub use partition_table::partition_table;
pub use remote::remote;
pub use topology::topology;
pub use transmission::transmission;

/// A fuzz target.
pub type Target = fn(&[u8]);

/// All targets, by the names of their corpora.
pub const TARGETS: [(&str, Target); 12] = [
    ("handshake", handshake),
    ("transmission", transmission),
    ("connection", connection),
    ("topology", topology),
    ("partition_table", partition_table),
    ("luks", luks),
    ("overlay", overlay),
    ("checkpoint_record", checkpoint_record),
    ("kernel_log", kernel_log),
    ("remote", remote),
    ("answers", answers),
    ("guest", guest),
];

/// Replays the files named on the command line.
///
/// # Errors
/// If a file can't be read.
///
/// # Panics
/// If an invariant is broken: that is its purpose.
pub fn replay_arguments(target: Target) -> std::io::Result<()> {
    for path in std::env::args_os().skip(1) {
        target(&std::fs::read(path)?);
    }
    Ok(())
}
