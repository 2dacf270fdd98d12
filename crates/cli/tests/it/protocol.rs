//! Every command of the protocol and each of its errors, by libnbd. One server has a volume of
//! every driver, without TLS and with it. `protocol.py` beside this file has the rules.
#![allow(missing_docs)]

use crate::common::Folder;
use crate::common::every::Every;
use crate::common::pki::Pki;

/// Least number of rules that the script has for a writable volume, with both forms of replies.
const RULES: usize = 40;

fn keeps(every: &Every, certificates: &str, volumes: &[&str]) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/protocol.py");
    let socket = every.server.socket().display().to_string();
    let mut args = vec![script, &socket, certificates, "locked,locked"];
    args.extend(volumes.iter().map(|&volume| match volume {
        "memory" => "memory,holes",
        "delay" => "delay,holes",
        "null" => "null,null",
        "error" => "error,error",
        other => other,
    }));
    // Debian's own Python, which has libnbd's module, even if another one comes first.
    let ran = every.folder.client("/usr/bin/python3", args).ok();
    let kept = ran.stdout.split_whitespace().next().and_then(|count| count.parse().ok());
    assert!(kept.is_some_and(|kept: usize| kept >= volumes.len() * RULES), "{ran}");
}

#[test]
fn every_command_and_every_error_is_as_the_protocol_says_over_every_driver_and_in_tls() {
    let (folder, pki) = (Folder::new(), Pki::new());
    pki.server(&folder);
    let certificates = pki.client(&folder, None);
    let tls = "tls = \"allow\"\ntls_certificate = \"server/cert.pem\"\n\
               tls_key = \"server/key.pem\"\n";
    let every = Every::with(folder, tls);
    let mut volumes = every.volumes.clone();
    volumes.extend(["null", "error"]);
    keeps(&every, "", &volumes);
    keeps(&every, &certificates, &["memory", "cached", "error"]);
    every.end();
}
