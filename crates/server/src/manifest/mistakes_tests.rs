//! Common mistakes in a manifest, and the advice that each gets.

use super::tests::{memory, problem, problems, resolve};
use super::*;

#[test]
fn a_key_in_another_table_than_its_own_is_sent_there() {
    let device = "{ name = \"a\", driver = \"memory\", size = \"1M\" }";
    for (text, says) in [
        (
            format!("[server]\ndrain = \"1s\"\ndevice = [{device}]\n"),
            "up.toml:3:1: [server]: unknown key 'device'\n  help: this key belongs to the manifest itself, not to \
             [server]: move it above [server], or write [[device]]",
        ),
        (
            memory("a") + "export = [{ device = \"a\" }]\n",
            "move it above [[device]], or write [[export]]",
        ),
        (memory("a") + "server = { tcp = 1 }\n", "move it above [[device]], or write [server]"),
        (format!("tcp = 1\n{}", memory("a")), "this is a key of [server]: move it below [server]"),
        (
            memory("a") + "[[export]]\ndevice = \"a\"\nblock_size = 512\n",
            "this is a key of [[device]]",
        ),
        (memory("a") + "description = \"x\"\n", "this is a key of [[export]]"),
        (memory("a") + "sise = 1\n", "did you mean 'size'?"),
    ] {
        let told = problems(&text);
        assert!(told.iter().any(|told| told.contains(says)), "{says}: {told:#?}");
    }
}

#[test]
fn a_socket_for_guests_that_another_part_of_the_server_has_is_refused() {
    let server = "[server]\nunix = \"s\"\ncontrol = \"c\"\nmetrics = \"./m\"\n";
    let export = |name: &str, socket: &str| {
        let text = format!("name = \"{name}\"\nvhost_user = \"{socket}\"\n");
        format!("[[export]]\ndevice = \"a\"\n{text}")
    };
    for (socket, other) in
        [("s", "'unix' of [server]"), ("c", "'control' of"), ("m", "'metrics' of")]
    {
        let told = problem(&(server.to_string() + &memory("a") + &export("x", socket)));
        assert!(told.contains(other) && told.contains("has the same socket"), "{told}");
    }
    let told = problem(&(memory("a") + &export("x", "g") + &export("y", "g")));
    assert!(told.contains("the export on line 5 has the same socket"), "{told}");
    let apart = memory("a") + &export("x", "g") + &export("y", "h");
    assert_eq!(problems(&(server.to_string() + &apart)), [""; 0]);
}

#[test]
fn numbers_that_fit_nowhere_are_told_as_too_large_and_not_as_something_else() {
    let long = "12345678901234567890123";
    let size = |value: &str| problem(&memory("a").replace("\"1M\"", value));
    for value in [long, &format!("\"{long}\""), "\"9999999T\""] {
        assert!(size(value).contains("exceeds the largest volume, 8 EiB"), "{}", size(value));
    }
    assert!(
        size(&format!("-{long}")).contains("'size' must be a size from 0 on, not -1"),
        "{}",
        size("-1")
    );
    assert!(size("-1").contains("must be a size from 0 on, not -1"));
    let tcp = problem(&(memory("a") + &format!("[server]\ntcp = {long}\n")));
    assert!(tcp.contains(&format!("'{long}' is not an address")), "{tcp}");
}

#[test]
fn names_that_cannot_be_seen_are_refused() {
    for hidden in ["\\u202e", "\\u200b", "\\u2066", "\\ufeff", "\\u0085", "\\u001b", "\\U000E0041"]
    {
        for key in ["name", "description"] {
            let found = problem(
                &(memory("a") + &format!("[[export]]\ndevice = \"a\"\n{key} = \"x{hidden}\"\n")),
            );
            assert!(found.contains("the invisible character"), "{hidden}: {found}");
        }
        let found = problem(&memory("a").replace("\"a\"", &format!("\"a{hidden}\"")));
        assert!(found.contains("may contain letters"), "{found}");
    }
    for (keys, says) in [
        ("[server]\nunix = \"s\\u200b\"\n", "a path has the invisible character U+200B"),
        ("[server]\nmetrics = \"/m\\u202e\"\n", "a path has the invisible character U+202E"),
        (
            "[[device]]\nname = \"f\"\ndriver = \"file\"\npath = \"f\\u00ad\"\nsize = \"1M\"\ncreate = true\n",
            "a path has the invisible character U+00AD",
        ),
    ] {
        let found = problem(&(memory("a") + keys));
        assert!(found.contains(says), "{found}");
    }
    let there = "[[device]]\nname = \"f\"\ndriver = \"file\"\npath = \"f\\u00ad\"\n";
    assert_eq!(problems(&(memory("a") + there)), [""; 0]);
    assert_eq!(
        problems(&(memory("a") + "[[export]]\ndevice = \"a\"\nname = \"é 漢字 😀\"\n")),
        [""; 0]
    );
}

#[test]
fn a_bad_address_is_refused_and_a_bare_port_means_loopback() {
    for (text, address) in [
        ("10809", "127.0.0.1:10809"),
        (":7000", "127.0.0.1:7000"),
        ("0.0.0.0:7000", "0.0.0.0:7000"),
        ("storage.example", "storage.example:10809"),
        ("[::1]", "[::1]:10809"),
        ("[::1]:0", "[::1]:0"),
    ] {
        assert_eq!(tcp_address(text).as_deref(), Ok(address));
    }
    assert_eq!(tcp_address("[fe80::1%eth0]:0").as_deref(), Ok("[fe80::1%eth0]:0"));
    for text in ["", "::1", "1.2.3.4:99999", "1.2.3.4:x", "70000", "-1", "a b:1", "1.*:7", "a@b:1"]
    {
        assert!(tcp_address(text).is_err(), "{text}");
    }
    for (text, says) in [
        ("*:10809", "write 0.0.0.0:10809 for all IPv4 addresses of this machine, or [::]:10809"),
        ("*", "write 0.0.0.0 for all"),
        ("tcp://0.0.0.0:10809", "leave 'tcp://' out: write '0.0.0.0:10809'"),
        ("nbd://host:1/disk", "write 'host:1'"),
        ("/run/nbd.sock", "write unix = \"/run/nbd.sock\""),
    ] {
        let told = tcp_address(text).unwrap_err();
        assert!(told.contains(says), "{text}: {told}");
    }
    for (metrics, says) in [
        ("*:9100", "write 0.0.0.0:9100"),
        ("http://1.2.3.4:9100/metrics", "write '1.2.3.4:9100'"),
        ("::1", "write the address as [::1]"),
        ("host", "no place for them"),
        (":9100", "no place for them"),
    ] {
        let found = problem(&(memory("a") + &format!("[server]\nmetrics = \"{metrics}\"\n")));
        assert!(found.contains("'metrics': ") && found.contains(says), "{found}");
    }
    let found = problem(&(memory("a") + "[server]\ntcp = 70000\n"));
    assert!(found.starts_with("up.toml:6:7: [server]: 'tcp':"), "{found}");
    let long = "x".repeat(120);
    let found = problem(&(memory("a") + &format!("[server]\nunix = \"{long}\"\n")));
    assert!(found.contains("at most 107 bytes, but this one has 126"), "{found}");
    let found = problem(&(memory("a") + "[server]\nunix = \"\"\n"));
    assert!(found.contains("path is empty"), "{found}");
}

#[test]
fn what_may_be_missing_is_found_by_one_look_at_each_device() {
    // Each level doubles the ways to the bottom.
    let mut text = memory("s0");
    for n in 1..=60 {
        let below = n - 1;
        for part in [1, 2] {
            text += &format!(
                "[[device]]\nname = \"p{n}{part}\"\ndriver = \"partition\"\nover = [\"s{below}\"]\npartition = {part}\n"
            );
        }
        text += &format!(
            "[[device]]\nname = \"s{n}\"\ndriver = \"stripe\"\nover = [\"p{n}1\", \"p{n}2\"]\n"
        );
    }
    text += &memory("other");
    let mirror = "[[device]]\nname = \"m\"\ndriver = \"mirror\"\nover = [\"s60\", \"other\"]\n";
    assert!(resolve(&text).manifest.may_be_missing().is_empty());
    let resolved = resolve(&(text + mirror));
    assert_eq!(resolved.problems, []);
    assert_eq!(resolved.manifest.may_be_missing().len(), resolved.manifest.devices.len() - 1);
}
