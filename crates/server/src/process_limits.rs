//! The descriptors and the address space that the limits of the process leave to clients.

use std::fmt;

use corewise::nbd::Options;
use corewise::topology;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::manifest::{Device, Export, Server};
use crate::{address_space, descriptors, units};

/// The limits of the process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessLimits {
    files: descriptors::Descriptors,
    space: address_space::AddressSpace,
    /// True if the server has TLS.
    tls: bool,
    /// Bytes that are reserved for clients.
    reserved: Option<u64>,
}

/// A shortfall: fewer clients than the manifest sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientShortfall {
    Files(descriptors::DescriptorShortfall),
    Space(address_space::AddressSpaceShortfall),
}

impl ClientShortfall {
    /// Returns the resource that new volumes take from clients, and the limit to raise.
    pub(crate) fn taken(&self) -> (&'static str, &'static str) {
        match self {
            ClientShortfall::Files(_) => ("descriptors", "LimitNOFILE (systemd) or `ulimit -Hn`"),
            ClientShortfall::Space(_) => ("address space", "LimitAS (systemd) or `ulimit -v`"),
        }
    }
}

impl fmt::Display for ClientShortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ClientShortfall::Files(shortfall) => shortfall.fmt(f),
            ClientShortfall::Space(shortfall) => shortfall.fmt(f),
        }
    }
}

impl ProcessLimits {
    /// Returns the limits of this process. Resources in use now count as taken.
    pub fn now() -> ProcessLimits {
        let (files, space) = (descriptors::Descriptors::now(), address_space::AddressSpace::now());
        ProcessLimits { files, space, tls: false, reserved: None }
    }

    /// Sets whether the server has TLS.
    pub(crate) fn with_tls(self, tls: bool) -> ProcessLimits {
        ProcessLimits { tls, ..self }
    }

    /// Returns the part of `options` that fits beside these devices and so many disks of virtual
    /// machines, or the reason why these don't fit.
    pub(crate) fn share<'d>(
        &self,
        options: Options,
        devices: impl Iterator<Item = &'d Device> + Clone,
        guests: u64,
    ) -> Result<(Options, Option<ClientShortfall>), String> {
        let ProcessLimits { files, space, tls, reserved } = self;
        let (options, shortfall) =
            files.share(options, devices.clone(), guests).map_err(|why| why.to_string())?;
        let (options, less) = space
            .share(options, *tls, *reserved, devices, guests)
            .map_err(|why| why.to_string())?;
        Ok((options, less.map(ClientShortfall::Space).or(shortfall.map(ClientShortfall::Files))))
    }

    /// Reserves the memory that clients may take, if the address space is limited. The main thread
    /// must call it.
    ///
    /// # Errors
    /// The limit doesn't leave that much.
    pub(crate) fn reserve<'d>(
        &mut self,
        options: &Options,
        devices: impl Iterator<Item = &'d Device>,
    ) -> Result<(), String> {
        self.reserved = self.space.reserve(options, self.tls, devices)?;
        Ok(())
    }

    /// Returns the reason why these devices, and so many disks of virtual machines, don't fit
    /// beside so many clients.
    pub(crate) fn refusal<'d>(
        &self,
        options: Options,
        devices: impl Iterator<Item = &'d Device> + Clone,
        guests: u64,
        clients: u64,
    ) -> String {
        match self.space.share(options, self.tls, self.reserved, devices.clone(), guests) {
            Err(why) => format!("{why} and start again"),
            Ok((_, Some(shortfall))) => format!("{shortfall}; {clients} clients are connected"),
            Ok((_, None)) => self.files.refusal(devices, guests, clients),
        }
    }
}

/// Returns the number of exports that virtual machines may have as disks.
pub(crate) fn guests<'e>(exports: impl IntoIterator<Item = &'e Export>) -> u64 {
    exports.into_iter().filter(|export| export.vhost_user.is_some()).count() as u64
}

/// Raises the soft limit of open files as far as the hard one allows. It is low by default for
/// programs that call `select`, which nothing here does.
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    // If this is refused, the limit stays, and code that can't open a file reports it.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Marks this thread, and those that it starts from now on, as ones that serve disks of their own
/// machine: memory for them is never freed by writes to a disk, which could wait for them. Needs
/// `CAP_SYS_RESOURCE`.
pub fn become_io_flusher() {
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::debug!(%error, "memory for this process may wait for writes to its own disks");
    }
}

/// The least memory of clients, in the manifest and by default, in bytes.
const LEAST: u64 = 64 << 20;

/// Returns the default memory of clients in bytes: a quarter of the memory that this process may
/// use. Call it at the start: limits of the process leave less of it later.
pub(crate) fn usual_memory() -> u64 {
    let quarter = topology::memory().map(|bytes| (bytes / 4).max(LEAST));
    quarter.unwrap_or(Options::default().memory)
}

/// Returns a warning if clients may take more memory than this process may use, so that they could
/// end it. Call it at the start.
pub(crate) fn too_much(options: &Options, tls: bool) -> Option<String> {
    too_much_of(options.worst_case(tls), topology::memory()?)
}

fn too_much_of(worst: u64, most: u64) -> Option<String> {
    let (worst_case, most_of_all) = (units::about(worst), units::about(most));
    (worst > most).then(|| {
        format!(
            "clients may take up to {worst_case} of memory, but this process may use only \
             {most_of_all}, so they can end it. Raise the limit of the cgroup, or RLIMIT_AS and \
             RLIMIT_DATA (`ulimit -v`, `-d`), or lower 'memory' (64M at least) or 'clients'"
        )
    })
}

/// Returns the limits of clients in the manifest. By default they have the usual memory, and 1,024
/// clients or as many as that has room for.
pub(crate) fn client_options(server: &Server, usual_memory: u64) -> Options {
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
        .request_timeout(server.request_timeout)
        .reply_timeout(server.reply_timeout)
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
            why.contains("up to 66.0 MiB of memory, but this process may use only 40.0 MiB"),
            "{why}"
        );
        assert!(why.contains("`ulimit -v`"), "{why}");
    }

    #[test]
    fn a_small_machine_has_room_for_fewer_clients_and_the_manifest_goes_first() {
        let plenty = client_options(&Server::default(), 8 << 30);
        assert_eq!((plenty.max_connections, plenty.worst_case(false)), (1024, 8 << 30));
        let little = client_options(&Server::default(), 128 << 20);
        assert!(little.max_connections < 200, "{}", little.max_connections);
        assert!(little.worst_case(false) < 140 << 20, "{}", little.worst_case(false));
        let asked = Server { memory: Some(1 << 30), clients: Some(7), ..Server::default() };
        let asked = client_options(&asked, 128 << 20);
        assert_eq!((asked.max_connections, asked.worst_case(false)), (7, 1 << 30));
    }
}
