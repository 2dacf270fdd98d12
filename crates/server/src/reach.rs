//! Exports that nobody could reach: they are for users of this machine alone, and only a Unix
//! socket says who these are.

use crate::manifest::{Export, LeftOut, Manifest, Problem, Subject};

/// Why nobody could attach where there is no Unix socket, and what to do.
pub(crate) fn why_not(export: &Export) -> Option<(&'static str, &'static str)> {
    let only_users = export.allow_uids.is_some() && export.allow_certificates.is_none();
    only_users.then_some((
        "'allow_uids' lets in users who come by a Unix socket, and this server listens on TCP only, so nobody could attach",
        "add 'unix' to [server] (or --socket), or name clients by 'allow_certificates'",
    ))
}

/// Takes the exports away that nobody could reach on a server without a Unix socket. Returns what
/// is wrong with each of them, and how it is told as left out.
pub fn unreachable(manifest: &mut Manifest) -> Vec<(Problem, LeftOut)> {
    let mut found = Vec::new();
    manifest.exports.retain(|export| {
        let Some((why, help)) = why_not(export) else { return true };
        let subject = Subject::Export(Ok(export.name.clone()));
        let problem = Problem::new(export.place, subject.clone(), why).help(help);
        found.push((problem, LeftOut { subject, why: why.to_string() }));
        false
    });
    found
}
