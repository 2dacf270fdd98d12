//! Limits: open files of the process, of which hundreds of volumes need more than the usual 1,024, and what clients may have.

use corewise::nbd::Options;
use corewise::topology;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::manifest::Server;
use crate::units;

/// Raises the soft limit of open files as far as the hard one allows. It stays low by default for
/// programs that call `select`, which nothing here does.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    // Refused: then the limit stays as it is, and code that can't open a file will say so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// The least memory of clients that the manifest may say, and that a server has for them, in bytes.
const LEAST: u64 = 64 << 20;

/// The memory of clients where the manifest says nothing, in bytes: a quarter of what this process
/// may use. To be asked at the start: limits of the process leave less of it later.
pub(crate) fn usual_memory() -> u64 {
    let quarter = topology::memory().map(|bytes| (bytes / 4).max(LEAST));
    quarter.unwrap_or(Options::default().memory)
}

/// A warning where clients may take more memory than this process may use: then those that do their
/// worst end it. To be asked at the start.
pub(crate) fn too_much(options: &Options, tls: bool) -> Option<String> {
    too_much_of(options.worst_case(tls), topology::memory()?)
}

fn too_much_of(worst: u64, most: u64) -> Option<String> {
    let (worst_case, most_of_all) = (units::about(worst), units::about(most));
    (worst > most).then(|| {
        format!(
            "clients that do their worst take {worst_case} of memory, and this process may use {most_of_all} at most, so they \
             can end it: raise the limit of the cgroup or of RLIMIT_AS and RLIMIT_DATA (`ulimit -v`, `-d`), or ask for less \
             by 'memory' (64M at least) or 'clients'"
        )
    })
}

/// What clients may have: what the manifest says, and else the usual memory, for 1,024 clients or
/// as many as that has room for.
pub(crate) fn of_clients(server: &Server, usual_memory: u64) -> Options {
    let tls = server.tls().is_some();
    let usual = Options::default();
    let memory = server.memory.unwrap_or(usual_memory);
    let room = Options::connections_for(memory, tls).min(usual.max_connections);
    let max_connections = server.clients.unwrap_or(room);
    usual
        .memory(memory)
        .max_connections(max_connections)
        .max_per_peer(server.clients_per_peer)
        .evict_idle(server.evict_idle)
        .max_half_open(usual.max_half_open.min(max_connections))
        .request_timeout(server.request_timeout.unwrap_or(usual.request_timeout))
        .reply_timeout(server.reply_timeout.unwrap_or(usual.reply_timeout))
        .idle_timeout(server.idle_timeout)
        .extended_headers(server.extended_headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_may_take_more_than_the_process_may_use_are_warned_of() {
        assert_eq!(too_much_of(66 << 20, 66 << 20), None);
        let why = too_much_of(66 << 20, 40 << 20).unwrap();
        assert!(
            why.contains("take 66.0 MiB of memory, and this process may use 40.0 MiB"),
            "{why}"
        );
        assert!(why.contains("`ulimit -v`"), "{why}");
    }

    #[test]
    fn a_small_machine_has_room_for_fewer_clients_and_the_manifest_goes_first() {
        let plenty = of_clients(&Server::default(), 8 << 30);
        assert_eq!((plenty.max_connections, plenty.worst_case(false)), (1024, 8 << 30));
        let little = of_clients(&Server::default(), 128 << 20);
        assert!(little.max_connections < 200, "{}", little.max_connections);
        assert!(little.worst_case(false) < 140 << 20, "{}", little.worst_case(false));
        let asked = Server { memory: Some(1 << 30), clients: Some(7), ..Server::default() };
        let asked = of_clients(&asked, 128 << 20);
        assert_eq!((asked.max_connections, asked.worst_case(false)), (7, 1 << 30));
    }
}
