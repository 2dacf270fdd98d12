//! Sockets that a service manager, or a client, passes to the server: systemd's protocol.

use std::os::fd::{FromRawFd, OwnedFd};

use corewise::nbd::Listener;

use crate::args;
use crate::exit::Failure;

/// The sockets that were passed (LISTEN_FDS), in their order. For the beginning of the program.
pub(crate) fn passed(args: &args::Up) -> Result<Vec<Listener>, Failure> {
    let wrong =
        |why: String| Failure::new(format!("cannot use the sockets that were passed: {why}"));
    let passed = sd_notify::listen_fds().map_err(|error| {
        let found = |name| std::env::var_os(name).unwrap_or_default().to_string_lossy().escape_debug().to_string();
        let (fds, pid) = (found("LISTEN_FDS"), found("LISTEN_PID"));
        wrong(format!("{error}: LISTEN_FDS is '{fds}', and LISTEN_PID '{pid}'")).help(
            "LISTEN_FDS has to be how many sockets are passed, from file descriptor 3 on, and LISTEN_PID the id of this process",
        )
    })?;
    if args.check {
        return Ok(Vec::new());
    }
    if passed.len() > 0 && (args.socket.is_some() || args.tcp.is_some()) {
        return Err(Failure::new(
            "--socket and --tcp say where to listen, and so do the sockets that were passed",
        )
        .help("leave these flags out, or start the server without LISTEN_FDS"));
    }
    let listeners = passed.map(|fd| {
        // SAFETY: it is open, since `listen_fds` has set its flags just now. It is nobody else's: LISTEN_PID names this process,
        // by which its starter says that it left these to us, and nothing of ours was opened before: this is called once, first.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        Listener::try_from(socket).map_err(|error| {
            wrong(format!("file descriptor {fd}: {error}"))
                .help("each has to be a stream socket that listens, Unix or TCP; in a .socket unit, ListenStream= and Accept=no")
        })
    });
    listeners.collect()
}

/// Whether a client started the server, as libnbd's do, and not a service manager with a journal: then stdout is the client's.
pub(crate) fn is_client(passed: &[Listener]) -> bool {
    !passed.is_empty() && std::env::var_os("JOURNAL_STREAM").is_none()
}
