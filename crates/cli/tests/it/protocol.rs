//! Every command of the protocol and each of its errors, by libnbd, against a volume of every driver in one server.
//! `protocol.py` beside this file has the rules.
#![allow(missing_docs)]

use crate::common::every::Every;

#[test]
fn every_command_and_every_error_is_as_the_protocol_says_over_every_driver() {
    let every = Every::start();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/protocol.py");
    let socket = every.server.socket().display().to_string();
    let mut args = vec![script, &socket, "null,null", "error,error", "locked,locked"];
    args.extend(every.volumes.iter().map(|&volume| match volume {
        "memory" => "memory,holes",
        "delay" => "delay,holes",
        other => other,
    }));
    // Debian's own, whatever other one comes first: that has libnbd's module.
    let ran = every.folder.client("/usr/bin/python3", args).ok();
    let kept = ran.stdout.split_whitespace().next().and_then(|count| count.parse().ok());
    // Twenty or more of each volume, by each form of replies.
    assert!(kept.is_some_and(|kept: usize| kept >= 10 * 2 * 20), "{ran}");
    every.end();
}
