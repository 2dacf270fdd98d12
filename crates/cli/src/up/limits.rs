//! The process's limits: hundreds of volumes need more open files than the usual 1,024.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of open files as far as the hard one allows. It stays low by default for
/// programs that call `select`, which nothing here does.
pub(crate) fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    // Refused: then the limit stays as it is, and code that can't open a file will say so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}
