//! Exports that nobody could reach: they are for users of this machine alone, and only a Unix socket says who these are.

use corewise::nbd::{Endpoint, Listener};

use super::tell;
use crate::args;
use crate::manifest::{self, Export, LeftOut, Manifest, Problem, Subject};

/// Whether clients will have a Unix socket.
pub(super) fn has_unix(server: &manifest::Server, args: &args::Up, passed: &[Listener]) -> bool {
    if !passed.is_empty() {
        return passed.iter().any(|one| matches!(one.endpoint(), Endpoint::Unix(_)));
    }
    let has_tcp = server.tcp.is_some() || args.tcp.is_some();
    // Without either there is a temporary one.
    server.unix.is_some() || args.socket.is_some() || !has_tcp
}

/// Why nobody could attach where there is no Unix socket, and what to do.
pub(super) fn why_not(export: &Export) -> Option<(&'static str, &'static str)> {
    let only_users = export.allow_uids.is_some() && export.allow_certificates.is_none();
    only_users.then_some((
        "'allow_uids' lets in users who come by a Unix socket, and this server listens on TCP only, so nobody could attach",
        "add 'unix' to [server] (or --socket), or name clients by 'allow_certificates'",
    ))
}

/// Tells of exports that nobody could reach. False: the server is not to start; else they are left out.
pub(super) fn checked(
    manifest: &mut Manifest,
    label: &str,
    keep_going: bool,
    left_out: &mut Vec<LeftOut>,
) -> bool {
    let before = left_out.len();
    manifest.exports.retain(|export| {
        let Some((why, help)) = why_not(export) else { return true };
        let subject = Subject::Export(Ok(export.name.clone()));
        tell(label, &Problem::new(export.place, subject.clone(), why).help(help));
        left_out.push(LeftOut { subject, why: why.to_string() });
        false
    });
    keep_going || left_out.len() == before
}
