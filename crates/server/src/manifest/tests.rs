//! Tests of the content that a manifest accepts, and of the message for each refusal.

use std::path::Path;

use corewise::blockmq::{Deadline, HwQueues, IoScheduler, IoStats, RqAffinity};

use std::time::Duration;

use corewise::drivers::Fault;

use super::drivers::Tuning;
use super::drivers::*;
use super::export::Limit;
use super::*;

pub(super) fn resolve(text: &str) -> ResolvedManifest {
    read(text, Path::new("/base"))
}

/// Returns all problems as a user sees them.
pub(super) fn problems(text: &str) -> Vec<String> {
    resolve(text).problems.iter().map(|p| p.display("up.toml").to_string()).collect()
}

/// Returns the only problem.
pub(super) fn problem(text: &str) -> String {
    let mut found = problems(text);
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0)
}

/// Returns the parts that can't run, as `subject: why`.
fn left_out(text: &str) -> Vec<String> {
    resolve(text).left_out.iter().map(|l| format!("{}: {}", l.subject, l.why)).collect()
}

pub(super) fn memory(name: &str) -> String {
    format!("[[device]]\nname = \"{name}\"\ndriver = \"memory\"\nsize = \"1M\"\n")
}

#[test]
fn a_manifest_that_uses_every_key_is_understood() {
    let resolved = resolve(
        r#"
[server]
unix = "run/nbd.sock"
tcp = 0
drain = "2s"

[[device]]
name = "a"
driver = "file"
path = "a.img"
create = true
size = "8M"
block_size = "4K"
io = "threads"
direct = true
node = 1
hw_queues = "cache_shard"
scheduler = "deadline"
timeout = "30s"
rq_affinity = "cpu"
iostats = "timed"
[[device]]
name = "b"
driver = "file"
path = "/elsewhere/b.img"
read_only = true
[[device]]
name = "log"
driver = "null"
size = "1M"
[[device]]
name = "s"
driver = "stripe"
over = ["a", "b"]
chunk = "128K"
suppliers = ["log", "a"]

[[export]]
device = "s"
description = "the striped one"
[[export]]
name = "raw a"
device = "a"
read_only = true
"#,
    );
    assert_eq!(resolved.problems, []);
    assert_eq!(resolved.left_out, []);
    let Manifest { server, devices, exports } = resolved.manifest;
    assert_eq!(server.unix.unwrap().value, Path::new("/base/run/nbd.sock"));
    assert_eq!(server.tcp.unwrap().value, "127.0.0.1:0");
    assert_eq!(server.drain, Duration::from_secs(2));
    let Driver::File(file) = &devices[0].driver else { panic!("{:?}", devices[0]) };
    assert_eq!(file.path.value, Path::new("/base/a.img"));
    assert_eq!((file.create, file.block_size, file.io), (true, 4096, Io::Threads));
    assert_eq!((file.direct, devices[0].tuning.node.as_ref().map(|at| at.value)), (true, Some(1)));
    let tuned = Tuning {
        node: Some(Located::new(1, Position::default())),
        probe_timeout: None,
        shutdown_timeout: Duration::from_secs(10),
        hw_queues: HwQueues::PerShard,
        scheduler: IoScheduler::Deadline(Deadline::default()),
        timeout: Some(Duration::from_secs(30)),
        rq_affinity: RqAffinity::Cpu,
        iostats: IoStats::Timed,
    };
    assert_eq!(devices[0].tuning, tuned);
    let Driver::File(file) = &devices[1].driver else { panic!("{:?}", devices[1]) };
    assert_eq!(file.path.value, Path::new("/elsewhere/b.img"));
    assert!(file.read_only && !file.create && file.size.is_none() && !file.direct);
    let plain = Tuning {
        node: None,
        probe_timeout: None,
        shutdown_timeout: Duration::from_secs(10),
        hw_queues: HwQueues::PerCpu,
        scheduler: IoScheduler::None,
        timeout: None,
        rq_affinity: RqAffinity::Cache,
        iostats: IoStats::Sampled,
    };
    assert_eq!(devices[1].tuning, plain);
    // The parts come first, then the others, each once.
    assert_eq!(devices[3].suppliers, ["a", "b", "log"]);
    assert_eq!(exports[0].name, "s");
    assert_eq!((exports[1].name.as_str(), exports[1].read_only), ("raw a", true));
}

#[test]
fn a_bad_value_of_a_queue_key_is_answered_with_the_valid_ones() {
    for (line, says) in [
        (
            "scheduler = \"bfq\"",
            "up.toml:5:13: device 'a': unknown scheduler 'bfq'\n  help: one of: none, deadline",
        ),
        (
            "hw_queues = 0",
            "up.toml:5:13: device 'a': unknown hw_queues '0'\n  help: a number from 1, or one of: cpu, \
             cache_shard, cache, numa",
        ),
        ("hw_queues = -1", "unknown hw_queues '-1'"),
        (
            "rq_affinity = \"2\"",
            "up.toml:5:15: device 'a': unknown rq_affinity '2'\n  help: one of: none, cache, cpu",
        ),
        (
            "iostats = \"all\"",
            "up.toml:5:11: device 'a': unknown iostats 'all'\n  help: one of: counted, sampled, timed",
        ),
        (
            "timeout = \"0s\"",
            "up.toml:5:11: device 'a': 'timeout' must be greater than 0, not \"0s\"\n  help: leave it \
             out for no timeout",
        ),
        ("timeout = 30", "'timeout' must be a duration such as \"5s\""),
        ("direct = true", "driver 'memory' takes no 'direct'"),
    ] {
        let found = problem(&(memory("a") + line + "\n"));
        assert!(found.contains(says), "{line}: {found}");
    }
    let text = memory("a") + "hw_queues = 3\n";
    let resolved = resolve(&text);
    assert_eq!(resolved.manifest.devices[0].tuning.hw_queues, HwQueues::Count(3));
}

#[test]
fn an_unknown_driver_is_answered_with_the_known_ones() {
    assert_eq!(
        problem("[[device]]\nname = \"a\"\ndriver = \"mirorr\"\n"),
        "up.toml:3:10: device 'a': unknown driver 'mirorr'\n  help: did you mean 'mirror'? \
         known drivers: checkpoint, crypt, delay, error, file, memory, mirror, nbd, null, object, overlay, partition, stripe"
    );
    assert_eq!(
        problem("[[device]]\nname = \"a\"\ndriver = \"floppy\"\n"),
        "up.toml:3:10: device 'a': unknown driver 'floppy'\n  help: known drivers: checkpoint, crypt, delay, error, file, \
         memory, mirror, nbd, null, object, overlay, partition, stripe"
    );
    assert!(problem("[[device]]\nname = \"a\"\n").contains("the device has no 'driver'"));
}

#[test]
fn a_missing_supplier_is_named_where_it_is_asked_for() {
    let text = memory("disk0")
        + "[[device]]\nname = \"s\"\ndriver = \"stripe\"\nover = [\"disk0\", \"disk1\"]\n";
    assert_eq!(
        problem(&text),
        "up.toml:8:18: device 's': the part 'disk1' is not a declared device\n  help: did you mean 'disk0'?"
    );
    let text = memory("a") + "suppliers = [\"journal\"]\n";
    assert_eq!(
        problem(&text),
        "up.toml:5:14: device 'a': the supplier 'journal' is not a declared device\n  help: declared devices: a"
    );
}

#[test]
fn a_cycle_is_shown_as_a_path() {
    let text = memory("a") + "suppliers = [\"b\"]\n" + &memory("b") + "suppliers = [\"c\"]\n";
    let text = text + &memory("c") + "suppliers = [\"a\"]\n";
    assert_eq!(
        problem(&text),
        "up.toml:1:1: device 'a': needs itself: a -> b -> c -> a\n  help: each arrow means 'needs'; remove one of these links"
    );
    let itself = problem(&(memory("a") + "suppliers = [\"a\"]\n"));
    assert!(itself.contains("a -> a"), "{itself}");
}

#[test]
fn a_duplicate_name_points_at_the_first_use_and_neither_comes_up() {
    let text = memory("a") + &memory("a") + &memory("b");
    assert_eq!(
        problem(&text),
        "up.toml:6:8: device 'a': the device on line 2 has the same name\n  help: give each device a different name"
    );
    let resolved = resolve(&text);
    let up: Vec<&str> = resolved.manifest.devices.iter().map(|d| d.name.as_str()).collect();
    assert_eq!(up, ["b"]);
}

#[test]
fn a_size_must_be_whole_blocks() {
    assert_eq!(
        problem("[[device]]\nname = \"a\"\ndriver = \"memory\"\nsize = 1000\n"),
        "up.toml:4:8: device 'a': size 1000 is not a multiple of its block size 512\n  help: the nearest valid size: 512 or 1024"
    );
    let text = "[[device]]\nname = \"a\"\ndriver = \"null\"\nsize = \"2K\"\nblock_size = 4096\n";
    assert!(problem(text).contains("nearest valid size: 4096"));
    assert!(problem(&memory("a").replace("1M", "0")).contains("'size' must be greater than 0"));
    for bad in ["0", "3000", "256", "\"128K\""] {
        let text = memory("a") + &format!("block_size = {bad}\n");
        assert!(problem(&text).contains("a power of two from 512 to 64K"), "{bad}");
    }
}

#[test]
fn a_chunk_is_a_power_of_two_that_a_device_can_take_at_once() {
    let stripe = "[[device]]\nname = \"s\"\ndriver = \"stripe\"\nover = [\"a\", \"b\"]\n";
    for bad in ["5000", "512", "\"64M\"", "0"] {
        let text = memory("a") + &memory("b") + stripe + &format!("chunk = {bad}\n");
        let found = problem(&text);
        assert!(found.starts_with("up.toml:13:9: device 's': 'chunk' must be"), "{found}");
        assert!(found.contains("from 4K to 32M"), "{found}");
    }
}

#[test]
fn a_key_of_another_driver_is_refused_with_the_own_ones() {
    assert_eq!(
        problem(&(memory("a") + "path = \"x\"\n")),
        "up.toml:5:1: device 'a': driver 'memory' takes no 'path'\n  help: keys of this driver: size, \
         block_size"
    );
}

#[test]
fn a_missing_key_of_a_driver_is_asked_for() {
    let device = |rest: &str| format!("[[device]]\nname = \"a\"\n{rest}");
    for (text, says) in [
        ("driver = \"memory\"\n", "driver 'memory' needs 'size'"),
        ("driver = \"file\"\n", "driver 'file' needs 'path'"),
        ("driver = \"file\"\npath = \"x\"\ncreate = true\n", "driver 'file' needs 'size'"),
        ("driver = \"mirror\"\n", "driver 'mirror' needs 'over'"),
        ("driver = \"mirror\"\nover = []\n", "'over' must be a list of at least one device"),
        ("driver = \"file\"\npath = \"x\"\nio = \"aio\"\n", "unknown io 'aio'"),
    ] {
        let found = problem(&device(text));
        assert!(found.contains(says), "{found}");
        assert!(found.starts_with("up.toml:"), "{found}");
    }
}

#[test]
fn parts_belong_to_one_device_only() {
    let parts = memory("a") + &memory("b") + &memory("c");
    let mirror = |name: &str, over: &str| {
        format!("[[device]]\nname = \"{name}\"\ndriver = \"mirror\"\nover = [{over}]\n")
    };
    let twice = problem(&(parts.clone() + &mirror("m", "\"a\", \"a\"")));
    assert!(twice.contains("names 'a' twice"), "{twice}");
    let text = parts + &mirror("m", "\"a\", \"b\"") + &mirror("n", "\"b\", \"c\"");
    assert_eq!(problem(&text), "up.toml:20:9: device 'n': 'b' is already a part of 'm'");
}

#[test]
fn two_devices_cannot_share_a_file() {
    let file = |name: &str, path: &str| {
        format!("[[device]]\nname = \"{name}\"\ndriver = \"file\"\npath = \"{path}\"\n")
    };
    let found = problem(&(file("a", "x.img") + &file("b", "./x.img")));
    assert_eq!(found, "up.toml:8:8: device 'b': device 'a' has the same file");
}

#[test]
fn devices_share_a_file_that_all_of_them_only_read() {
    let file = |name: &str, read_only: bool| {
        format!(
            "[[device]]\nname = \"{name}\"\ndriver = \"file\"\npath = \"x.img\"\n\
             read_only = {read_only}\n"
        )
    };
    assert_eq!(problems(&(file("a", true) + &file("b", true))), [""; 0]);
    for (first, second) in [(true, false), (false, true)] {
        let found = problem(&(file("a", first) + &file("b", second)));
        assert_eq!(found, "up.toml:9:8: device 'b': device 'a' has the same file");
    }
}

#[test]
fn no_file_beside_the_data_of_a_device_is_that_of_another_one() {
    let device = |name: &str, keys: &str| format!("[[device]]\nname = \"{name}\"\n{keys}");
    let file = |path: &str| format!("driver = \"file\"\npath = \"{path}\"\n");
    let record = |over: &str, path: &str| {
        format!(
            "driver = \"checkpoint\"\nover = [\"{over}\"]\npath = \"{path}\"\ncopies = \"1M\"\n"
        )
    };
    let two = device("a", &file("a.img")) + &device("b", &file("b.img"));
    let one = two.clone() + &device("c", &record("a", "r"));
    assert_eq!(problems(&(one.clone() + &device("d", &record("b", "s")))), [""; 0]);
    let logged = file("x.img") + "write_log = \"r\"\n";
    let stored = "driver = \"object\"\nlocation = \"memory:\"\nsize = \"1M\"\nflush = \"local\"\n\
                  flush_file = \"r.copies\"\n";
    for (keys, says) in [
        (record("b", "r"), "device 'd': device 'c' has the same file"),
        (record("b", "./a.img"), "device 'd': device 'a' has the same file"),
        (record("b", "b.img"), "device 'd': device 'b' has the same file"),
        (file("r"), "device 'd': device 'c' has the same file"),
        (file("r.copies"), "device 'd': device 'c' uses /base/r.copies, too"),
        (logged, "device 'd': device 'c' uses /base/r, too"),
        (stored.to_string(), "device 'd': device 'c' uses /base/r.copies, too"),
    ] {
        let found = problems(&(one.clone() + &device("d", &keys)));
        assert!(found[0].contains(says), "{says}: {found:?}");
    }
}

#[test]
fn an_export_has_no_name_that_a_checkpoint_of_another_one_would_have() {
    let export = |name: &str| format!("[[export]]\ndevice = \"a\"\nname = \"{name}\"\n");
    for names in [["v", "w@x"], ["v@x", "v@y"]] {
        let text = memory("a") + &export(names[0]) + &export(names[1]);
        assert_eq!(problems(&text), [""; 0], "{names:?}");
    }
    for names in [["v", "v@x"], ["v@x", "v"], ["v@x", "v@x@y"], ["", "@x"]] {
        let found = problem(&(memory("a") + &export(names[0]) + &export(names[1])));
        assert!(found.contains("is the name of checkpoint"), "{names:?}: {found}");
    }
}

#[test]
fn exports_are_checked_like_devices() {
    let export = |text: &str| memory("a") + "[[export]]\n" + text;
    for (text, says) in [
        ("name = \"x\"\n", "export 'x': an export needs 'device'"),
        ("device = \"b\"\n", "export 'b': there is no device 'b'"),
        ("device = \"a\"\n[[export]]\ndevice = \"a\"\n", "the export on line 5 has the same name"),
        ("device = \"a\"\nreadonly = true\n", "did you mean 'read_only'?"),
        ("device = 3\n", "'device' must be a string"),
        ("device = \"a\"\nname = \"\\u0007\"\n", "invisible character U+0007"),
    ] {
        let found = problem(&export(text));
        assert!(found.contains(says), "{found}");
    }
}

#[test]
fn a_part_is_exported_read_only_or_not_at_all() {
    let text = memory("a") + &memory("b");
    let text = text + "[[device]]\nname = \"m\"\ndriver = \"mirror\"\nover = [\"a\", \"b\"]\n";
    let found = problem(&(text.clone() + "[[export]]\ndevice = \"a\"\n"));
    assert!(found.contains("device 'a' is a part of 'm'"), "{found}");
    assert_eq!(problems(&(text + "[[export]]\ndevice = \"a\"\nread_only = true\n")), [""; 0]);
}

#[test]
fn devices_over_a_bad_device_are_left_out_with_the_reason() {
    let text = memory("good")
        + &memory("bad").replace("1M", "1000")
        + "[[device]]\nname = \"m\"\ndriver = \"mirror\"\nover = [\"good\", \"bad\"]\n"
        + "[[export]]\ndevice = \"m\"\n[[export]]\ndevice = \"good\"\nread_only = true\n";
    assert_eq!(problems(&text).len(), 1);
    assert_eq!(
        left_out(&text),
        [
            "device 'bad': the device has an error of its own",
            "device 'm': it depends on 'bad', which was left out",
            "export 'm': its device 'm' was left out"
        ]
    );
    let resolved = resolve(&text);
    assert!(!resolved.fatal);
    assert_eq!(resolved.manifest.devices.len(), 1);
    assert_eq!(resolved.manifest.exports[0].name, "good");
}

#[test]
fn several_problems_are_all_told_in_the_order_of_the_file() {
    let text = memory("a").replace("1M", "1000")
        + &memory("b").replace("memory", "memroy")
        + "[server]\nport = 7\n";
    let found = problems(&text);
    assert_eq!(found.len(), 3, "{found:#?}");
    let lines: Vec<&str> = found.iter().map(|p| p.split(':').nth(1).unwrap()).collect();
    assert_eq!(lines, ["4", "7", "10"]);
    assert!(resolve(&text).fatal, "a bad [server] stops everything");
}

#[test]
fn a_manifest_without_devices_is_no_manifest() {
    assert!(problem("").contains("declares no device"));
    assert!(problem("[server]\n").contains("declares no device"));
}

/// Returns a memory device `a` and a device with `driver` over it.
fn over_a(driver: &str, keys: &str) -> String {
    memory("a")
        + &format!("[[device]]\nname = \"b\"\ndriver = \"{driver}\"\nover = [\"a\"]\n{keys}")
}

#[test]
fn devices_over_one_other_say_which_and_how() {
    let driver = |text: &str| {
        let resolved = resolve(text);
        assert_eq!(resolved.problems, []);
        assert_eq!(resolved.manifest.devices[1].suppliers, ["a"]);
        resolved.manifest.devices[1].driver.clone()
    };
    let Driver::Partition(found) = driver(&over_a("partition", "partition = 2\n")) else {
        panic!("no partition");
    };
    assert_eq!((found.over.as_str(), found.partition.value.as_str()), ("a", "2"));
    let keys = "read_delay = \"5ms\"\nflush_delay = \"1s\"\njitter = \"1ms\"\nseed = 7\n";
    let Driver::Delay(found) = driver(&over_a("delay", keys)) else { panic!("no delay") };
    let delays = found.delays();
    let ms = Duration::from_millis;
    assert_eq!((delays.read, delays.write, delays.flush), (ms(5), ms(0), ms(1000)));
    assert_eq!((delays.jitter, delays.seed), (ms(1), 7));
    let keys = "fails = [\"read\", \"write-zeroes\"]\nfrom = \"4K\"\nafter = 3\nevery = 2\n\
                times = 9\nrate = 0.5\nerrno = \"enospc\"\nseed = 3\n";
    let Driver::Error(found) = driver(&over_a("error", keys)) else {
        panic!("no error");
    };
    let ops = [corewise::blockmq::Op::Read, corewise::blockmq::Op::WriteZeroes];
    let range = 4096..u64::MAX;
    let want = Fault::new().on(&ops).range(range).after(3).every(2).times(9).rate(0.5).errno(28);
    assert_eq!((found.fault(), found.seed), (want, 3));
    let Driver::Error(found) = driver(&over_a("error", "errno = 121\n")) else {
        panic!("no error");
    };
    assert_eq!(found.fault(), Fault::new().errno(121));
}

#[test]
fn errors_of_a_device_over_one_part_are_reported() {
    let no_partition = "must be a number from 1, a name or a GUID, not ";
    for (driver, keys, says) in [
        ("partition", "", "driver 'partition' needs 'partition'"),
        ("partition", "partition = 0\n", no_partition),
        ("partition", "partition = \"0\"\n", no_partition),
        ("partition", "partition = \"\"\n", no_partition),
        ("delay", "", "driver 'delay' needs 'read_delay'"),
        ("error", "fails = []\n", "help: leave it out for all operations"),
        ("error", "fails = [\"sync\"]\n", "unknown operation 'sync'"),
        ("error", "errno = \"EBAD\"\n", "unknown errno 'EBAD'"),
        ("error", "errno = 0\n", "unknown errno '0'"),
        ("error", "rate = 1.5\n", "'rate' must be a number from 0 to 1, not 1.5"),
        ("error", "every = 0\n", "help: 1 means every request"),
        ("error", "from = 8192\nto = 4096\n", "greater than 'from'"),
        ("error", "chunk = \"64K\"\n", "driver 'error' takes no 'chunk'"),
    ] {
        let found = problem(&over_a(driver, keys));
        assert!(found.contains(says), "{driver}, {keys}: {found}");
    }
    let two = memory("c") + &over_a("error", "").replace("[\"a\"]", "[\"a\", \"c\"]");
    assert!(problem(&two).contains("'over' must be a list of exactly one device"));
}

#[test]
fn partitions_share_their_part_and_nothing_else_does() {
    let partition = |name: &str, number: u32| {
        format!(
            "[[device]]\nname = \"{name}\"\ndriver = \"partition\"\nover = [\"a\"]\n\
             partition = {number}\n"
        )
    };
    let shared = memory("a") + &partition("p1", 1) + &partition("p2", 2);
    assert_eq!(problems(&shared), [""; 0]);
    let text = shared + "[[device]]\nname = \"e\"\ndriver = \"error\"\nover = [\"a\"]\n";
    assert!(problem(&text).contains("'a' is already a part of 'p1'"));
}

#[test]
fn a_mirror_says_how_it_resyncs() {
    let mirror = |keys: &str| {
        memory("a")
            + &memory("c")
            + "[[device]]\nname = \"m\"\ndriver = \"mirror\"\nover = [\"a\", \"c\"]\n"
            + keys
    };
    let text = mirror(
        "bitmap = true\nretry = \"9s\"\nresync_least = \"1M\"\nresync_most = \"8M\"\ncheck_every = \"7d\"\n",
    );
    let resolved = resolve(&text);
    assert_eq!(resolved.problems, []);
    let Driver::Mirror(found) = &resolved.manifest.devices[2].driver else { panic!("no mirror") };
    assert_eq!((found.bitmap, found.retry), (Some(true), Some(Duration::from_secs(9))));
    assert_eq!((found.resync_least, found.resync_most), (1 << 20, 8 << 20));
    assert_eq!(found.check_every, Some(Duration::from_secs(7 * 86_400)));
    let off = "bitmap = false\nretry = \"1s\"\nresync_most = \"8M\"\n";
    assert_eq!(resolve(&mirror(off)).problems, [], "its parts are copied each time");
    let off = problem(&mirror("bitmap = false\ndegraded = \"known\"\n"));
    assert!(off.contains("'degraded' needs a bitmap"), "{off}");
    let wrong = problem(&mirror("degraded = \"maybe\"\n"));
    assert!(
        wrong.contains("unknown degraded 'maybe'") && wrong.contains("never, known, always"),
        "{wrong}"
    );
    let wrong = problem(&mirror("resync_least = \"2M\"\nresync_most = \"1M\"\n"));
    assert!(wrong.contains("'resync_least' must not exceed"), "{wrong}");
}

#[test]
fn a_mirror_that_would_only_retry_or_never_resync_is_refused() {
    let mirror = |keys: &str| {
        memory("a")
            + &memory("c")
            + "[[device]]\nname = \"m\"\ndriver = \"mirror\"\nover = [\"a\", \"c\"]\n"
            + keys
    };
    let ways = [
        ("retry = \"0s\"\n", "'retry' must be at least \"100ms\""),
        ("retry = \"99ms\"\n", "'retry' must be at least \"100ms\""),
        ("check_every = \"999ms\"\n", "'check_every' must be at least \"1s\""),
        ("resync_least = \"0\"\n", "'resync_least' must be at least 1 byte"),
        ("resync_most = \"0\"\n", "'resync_most' must be at least 1 byte"),
    ];
    for (keys, want) in ways {
        let found = problem(&mirror(keys));
        assert!(found.contains(want), "{keys}: {found}");
    }
    let least = "retry = \"100ms\"\nresync_least = 1\nresync_most = 1\n";
    assert_eq!(resolve(&mirror(least)).problems, []);
}

#[test]
fn the_parts_of_a_mirror_with_a_record_may_be_missing() {
    let text = |keys: &str| {
        let over = |name: &str, driver: &str, over: &str, keys: &str| {
            format!(
                "[[device]]\nname = \"{name}\"\ndriver = \"{driver}\"\nover = [{over}]\n{keys}\n"
            )
        };
        ["a", "b", "c", "d"].map(memory).concat()
            + &over("slow", "delay", "\"b\"", "read_delay = \"1ms\"")
            + &over("m", "mirror", "\"a\", \"slow\"", keys)
            + &over("s", "stripe", "\"c\", \"d\"", "")
    };
    let missing = |keys: &str| -> Vec<String> {
        let resolved = resolve(&text(keys));
        assert_eq!(resolved.problems, []);
        resolved.manifest.may_be_missing().into_iter().collect()
    };
    assert_eq!(missing(""), ["a", "b", "slow"]);
    assert_eq!(missing("degraded = \"always\""), ["a", "b", "slow"]);
    assert!(missing("degraded = \"never\"").is_empty() && missing("bitmap = false").is_empty());
}

#[test]
fn an_export_says_how_much_may_go_through_in_a_second() {
    let export = |keys: &str| memory("a") + &format!("[[export]]\ndevice = \"a\"\n{keys}\n");
    let text = export("limit = { iops = 1000, bytes = \"10M\" }\nclient_limit = { bytes = 4096 }");
    let resolved = resolve(&text);
    assert_eq!(resolved.problems, []);
    let found = &resolved.manifest.exports[0];
    assert_eq!(found.limit, Some(Limit { iops: Some(1000), bytes: Some(10 << 20) }));
    assert_eq!(found.client_limit, Some(Limit { iops: None, bytes: Some(4096) }));
    for (limit, says) in [
        ("7", "'limit' must be a limit such as { iops = 1000,"),
        ("{}", "'limit' must be a limit such as { iops = 1000,"),
        ("{ iops = 0 }", "'iops' must be at least 1, not 0"),
        ("{ bytes = 0, iops = 1 }", "'bytes' must be at least 1, not 0"),
    ] {
        let found = problem(&export(&format!("limit = {limit}")));
        assert!(found.contains(says), "{found}");
    }
    let found = problem(&export("client_limit = { iop = 1 }"));
    assert!(found.contains("unknown key 'iop'") && found.contains("'iops'"), "{found}");
}

#[test]
fn settings_that_contradict_each_other_or_let_nobody_in_are_refused_with_a_way_out() {
    let server = |keys: &str| format!("[server]\n{keys}\n{}", memory("a"));
    let export =
        |keys: &str| format!("{}[[export]]\ndevice = \"a\"\n{keys}\n", server("clients = 5"));
    for (text, says) in [
        (
            server("clients = 5\nclients_per_peer = 6"),
            "up.toml:3:20: [server]: 'clients_per_peer' is more than",
        ),
        (
            server("evict_idle = \"9s\"\nidle_timeout = \"9s\""),
            "'evict_idle' must be less than 'idle_timeout'",
        ),
        (server("unix = \"s\"\ncontrol = \"s\""), "'control' and 'unix' are one path"),
        (server("state = \"\""), "'state': the path is empty: leave the key out"),
        (
            export("allow_uids = []"),
            "'allow_uids' must be a list that isn't empty\n  help: an empty list admits no client",
        ),
        (export("allow_certificates = []"), "'allow_certificates' must be a list that isn't empty"),
        (
            export("clients = 6"),
            "'clients' is 6, more than the server lets in\n  help: lower it, or raise 'clients' of [server] from 5",
        ),
        (
            export("limit = { iops = 5 }\nclient_limit = { iops = 6 }"),
            "'client_limit', of each client, is more than 'limit'",
        ),
    ] {
        let found = problem(&text);
        assert!(found.contains(says), "{says}: {found}");
    }
    for text in [
        server("clients = 5\nclients_per_peer = 5\nevict_idle = \"8s\"\nidle_timeout = \"9s\""),
        export("clients = 5\nlimit = { iops = 5 }\nclient_limit = { iops = 5, bytes = 7 }"),
    ] {
        assert_eq!(resolve(&text).problems, [], "{text}");
    }
}

#[test]
fn an_export_says_who_may_attach_and_one_may_be_the_default() {
    let export = |keys: &str| format!("[[export]]\ndevice = \"a\"\n{keys}\n");
    let named = |name: &str, keys: &str| export(&format!("name = \"{name}\"\n{keys}"));
    let text = memory("a")
        + &named("x", "allow_uids = [0, 1000]\ndefault = true")
        + &named("z", "default = false");
    let resolved = resolve(&text);
    assert_eq!(resolved.problems, []);
    let found: Vec<_> =
        resolved.manifest.exports.iter().map(|e| (e.allow_uids.clone(), e.default)).collect();
    assert_eq!(found, [(Some(vec![0, 1000]), true), (None, false)]);
    for keys in ["allow_uids = 7", "allow_uids = [\"root\"]", "allow_uids = [-1]"] {
        let found = problem(&(memory("a") + &export(keys)));
        assert!(found.contains("'allow_uids' must be a list of numbers of users"), "{found}");
    }
    let text = memory("a") + &named("x", "default = true") + &named("y", "default = true");
    let found = problem(&text);
    assert_eq!(found, "up.toml:12:11: export 'y': the one on line 8 is the default export already");
    assert_eq!(left_out(&text), ["export 'y': the export has an error of its own"]);
}

#[test]
fn the_socket_of_a_guest_is_a_path_or_a_table() {
    let export = |socket: &str| {
        format!(
            "[[device]]\nname = \"a\"\ndriver = \"memory\"\nsize = \"1M\"\n\
             [[export]]\ndevice = \"a\"\nvhost_user = {socket}\n"
        )
    };
    let socket = |text| {
        let read = read(&export(text), Path::new("/run"));
        assert_eq!(read.problems, [], "{text}");
        read.manifest.exports[0].vhost_user.clone().unwrap().value
    };
    let plain = socket("\"g\"");
    assert_eq!(plain.path, Path::new("/run/g"));
    assert_eq!(socket("{ path = \"g\" }"), plain);
    let access = NodeAccess { group: Some("kvm".to_string()), ..NodeAccess::default() };
    assert_eq!(socket("{ path = \"g\", group = \"kvm\" }"), GuestSocket { access, ..plain });
    for (text, says) in [
        ("{ group = \"kvm\" }", "'vhost_user' needs 'path'"),
        ("{ path = \"g\", groups = \"kvm\" }", "unknown key 'groups'"),
        ("{ path = \"\" }", "a socket's path is empty"),
        ("\"\"", "a socket's path is empty"),
        ("5", "'vhost_user' must be a path, or { path"),
    ] {
        let found = problem(&export(text));
        assert!(found.contains(says), "{found}");
    }
}
