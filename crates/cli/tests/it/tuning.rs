//! The keys of a volume's queue, on a real server with real clients.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::Path;

use crate::common::Folder;
use crate::common::client::{Client, pattern};
use crate::common::server::Server;
use serde_json::Value;

const MIB: usize = 1 << 20;
/// `O_DIRECT`, as `/proc` shows it.
const DIRECT: u32 = if cfg!(target_arch = "aarch64") { 0o200000 } else { 0o40000 };

fn disks(folder: &Folder) -> Value {
    folder.dump()["disks"].take()
}

fn disk<'a>(disks: &'a Value, name: &str) -> &'a Value {
    disks.as_array().unwrap().iter().find(|disk| disk["name"] == name).unwrap()
}

/// Returns the flags of the server's descriptor for a file.
fn flags(server: &Server, file: &Path) -> u32 {
    let proc = format!("/proc/{}", server.pid());
    let found = std::fs::read_dir(format!("{proc}/fd")).unwrap().find_map(|entry| {
        let entry = entry.unwrap();
        (std::fs::read_link(entry.path()).ok()? == file).then(|| entry.file_name())
    });
    let fd = found.expect("the server has the file open").into_string().unwrap();
    let info = std::fs::read_to_string(format!("{proc}/fdinfo/{fd}")).unwrap();
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
    u32::from_str_radix(flags.trim(), 8).unwrap()
}

#[test]
fn clients_lose_nothing_whatever_the_queues_are_like() {
    let folder = Folder::new();
    let queues = [
        "hw_queues = \"cpu\"\nscheduler = \"deadline\"\nrq_affinity = \"cpu\"\ntimeout = \"30s\"\n\
         iostats = \"timed\"\n",
        "hw_queues = 1\nscheduler = \"deadline\"\nrq_affinity = \"cache\"\niostats = \"counted\"\n",
        "hw_queues = 1000\nrq_affinity = \"cpu\"\nio = \"threads\"\ndirect = false\n",
    ];
    let mut text = "[server]\nunix = \"s\"\n".to_string();
    for (n, queue) in queues.iter().enumerate() {
        text += &format!(
            "[[device]]\nname = \"part{n}\"\ndriver = \"file\"\npath = \"{n}.img\"\nsize = \"8M\"\n\
             create = true\n{queue}"
        );
    }
    text += "[[device]]\nname = \"all\"\ndriver = \"stripe\"\nover = [\"part0\", \"part1\", \"part2\"]\n\
             rq_affinity = \"cpu\"\n[[export]]\ndevice = \"all\"\n";
    folder.write("up.toml", text);
    let server = Server::start(&folder, &["up.toml"]);
    folder.write("in.img", pattern(7, 24 * MIB));
    let uri = server.uri("all");
    folder.client("nbdcopy", ["--flush", "in.img", &uri]).ok();
    folder.client("nbdcopy", [&uri, "out.img"]).ok();
    assert!(std::fs::read(folder.join("out.img")).unwrap() == pattern(7, 24 * MIB));
    let fio = [
        "--name=check",
        "--ioengine=nbd",
        &format!("--uri={uri}"),
        "--rw=randwrite",
        "--bsrange=512-128k",
        "--blockalign=512",
        "--iodepth=32",
        "--size=24M",
        "--verify=crc32c",
        "--verify_fatal=1",
    ];
    folder.client("fio", fio).ok();

    let disks = disks(&folder);
    let queues = |name| disk(&disks, name)["hw_queues"].as_array().unwrap().len();
    let topo = folder.corewise(["topo", "--json"]).ok();
    let topo: Value = serde_json::from_str(&topo.stdout).unwrap();
    let cpus = topo["scopes"]["cpu"].as_array().unwrap().len();
    assert_eq!([queues("part0"), queues("part1"), queues("part2")], [cpus, 1, cpus]);
    let writes = |name| {
        let writes = &disk(&disks, name)["writes"];
        let timed = writes["latency"]["histogram"].as_array().unwrap().iter();
        let timed: u64 = timed.map(|bucket| bucket[1].as_u64().unwrap()).sum();
        (writes["requests"].as_u64().unwrap(), timed)
    };
    let (requests, timed) = writes("part0");
    assert_eq!(timed, requests, "each is timed");
    let (requests, timed) = writes("part1");
    assert!(requests > 0 && timed == 0, "none is timed: {timed} of {requests}");
    server.stop().ok();
}

#[test]
fn a_late_request_is_counted_and_goes_on_where_it_cannot_be_stopped() {
    let folder = Folder::new();
    folder.write(
        "up.toml",
        "[server]\nunix = \"s\"\n\
         [[device]]\nname = \"m\"\ndriver = \"memory\"\nsize = \"1M\"\n\
         [[device]]\nname = \"slow\"\ndriver = \"delay\"\nover = [\"m\"]\nread_delay = \"1s\"\n\
         timeout = \"100ms\"\n\
         [[export]]\ndevice = \"slow\"\n",
    );
    let server = Server::start(&folder, &["up.toml"]);
    let mut client = Client::new(&server.socket(), "slow");
    client.write(4096, &pattern(1, 4096), 0).unwrap();
    assert!(client.read(4096, 4096) == Ok(pattern(1, 4096)));
    let disks = disks(&folder);
    let late = |name| {
        let queues = disk(&disks, name)["hw_queues"].as_array().unwrap().iter();
        queues.map(|queue| queue["timeouts"].as_u64().unwrap()).sum::<u64>()
    };
    assert!(late("slow") >= 1, "{disks}");
    assert_eq!(late("m"), 0, "{disks}");
    server.stop().ok().complains(&["slow: read of 4096 bytes at 4096", "in the driver for"]);
}

#[test]
fn a_file_goes_past_the_page_cache_where_that_is_asked_for() {
    let folder = Folder::new();
    // The target folder is on disk; TMPDIR may be in memory.
    let on_disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let image = on_disk.path().canonicalize().unwrap().join("disk.img");
    let manifest = |more: &str| {
        format!(
            "[server]\nunix = \"s\"\n[[device]]\nname = \"f\"\ndriver = \"file\"\nsize = \"1M\"\n\
             create = true\npath = \"{}\"\n{more}[[export]]\ndevice = \"f\"\n",
            image.display()
        )
    };
    for io in ["auto", "threads"] {
        for direct in [true, false] {
            folder.write("up.toml", manifest(&format!("io = \"{io}\"\ndirect = {direct}\n")));
            let mut server = folder.command(crate::common::COREWISE);
            server.args(["up", "up.toml", "--for", "1ms"]);
            let tried = crate::common::run(server);
            if direct && tried.code == Some(1) {
                tried.complains(&["direct = true", "page cache"]);
                continue;
            }
            let server = Server::start(&folder, &["up.toml"]);
            assert_eq!(flags(&server, &image) & DIRECT != 0, direct, "{io}");
            let mut client = Client::new(&server.socket(), "f");
            client.write(512, &pattern(2, 1024), 0).unwrap();
            assert!(client.read(0, 4096).unwrap()[512..1536] == pattern(2, 1024));
            server.stop().ok();
        }
    }
}
