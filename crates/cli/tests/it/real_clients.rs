//! The programs that people use: nbdinfo, nbdcopy, qemu-io, qemu-img and fio.
#![allow(missing_docs, clippy::unwrap_used)]

use crate::common::client::pattern;
use crate::common::server::Server;
use crate::common::{Folder, Ran};
use serde_json::Value;

const MIB: usize = 1 << 20;

/// Every kind of volume, and exports of all sorts.
const MANIFEST: &str = r#"
[server]
unix = "s"
tcp = 0

[[device]]
name = "memory"
driver = "memory"
size = "32M"

[[device]]
name = "plain"
driver = "file"
path = "plain.img"
size = "32M"
create = true

[[device]]
name = "threads"
driver = "file"
path = "threads.img"
size = "32M"
create = true
io = "threads"

[[device]]
name = "a"
driver = "file"
path = "a.img"
size = "16M"
create = true

[[device]]
name = "b"
driver = "file"
path = "b.img"
size = "16M"
create = true

[[device]]
name = "c"
driver = "file"
path = "c.img"
size = "32832K" # 64 KiB are for the record of the mirror
create = true

[[device]]
name = "d"
driver = "memory"
size = "32832K" # 64 KiB are for the record of the mirror

[[device]]
name = "stripe"
driver = "stripe"
over = ["a", "b"]
chunk = "64K"

[[device]]
name = "mirror"
driver = "mirror"
over = ["c", "d"]

[[export]]
device = "memory"
description = "all in memory"

[[export]]
device = "plain"

[[export]]
device = "threads"

[[export]]
device = "stripe"

[[export]]
device = "mirror"

[[export]]
name = "locked"
device = "plain"
read_only = true
"#;

/// The volumes that can be written, each of 32 MiB.
const VOLUMES: [&str; 5] = ["memory", "plain", "threads", "stripe", "mirror"];

struct Fixture {
    server: Server,
    folder: Folder,
}

impl Fixture {
    fn new() -> Fixture {
        let folder = Folder::new();
        folder.write("up.toml", MANIFEST);
        Fixture { server: Server::start(&folder, &["up.toml"]), folder }
    }

    /// The same volume over both sockets.
    fn uris(&self, export: &str) -> [String; 2] {
        [self.server.uri(export), self.server.tcp_uri(export)]
    }

    /// Runs qemu-io with these commands; each must do what it says.
    #[track_caller]
    fn qemu_io(&self, uri: &str, commands: &[&str]) -> Ran {
        let ran = self.qemu_io_unchecked(uri, commands).ok();
        assert!(!ran.stdout.contains("failed"), "{ran}");
        ran
    }

    fn qemu_io_unchecked(&self, uri: &str, commands: &[&str]) -> Ran {
        let mut args = vec!["-f", "raw"];
        for command in commands {
            args.extend(["-c", command]);
        }
        args.push(uri);
        self.folder.client("qemu-io", args)
    }

    fn checksum(&self, file: &str) -> String {
        let ran = self.folder.client("sha256sum", [file]).ok();
        ran.stdout.split_whitespace().next().expect("a sum, then the name").to_string()
    }

    /// Stops it, which must go well.
    #[track_caller]
    fn end(self) {
        self.server.stop().ok();
    }
}

#[test]
fn nbdinfo_lists_all_exports_with_sizes_and_flags_over_both_sockets() {
    let fixture = Fixture::new();
    for uri in fixture.uris("") {
        let ran = fixture.folder.client("nbdinfo", ["--list", "--json", &uri]).ok();
        let list: Value = serde_json::from_str(&ran.stdout).unwrap();
        let exports = list["exports"].as_array().unwrap();
        let names: Vec<&str> = exports.iter().map(|e| e["export-name"].as_str().unwrap()).collect();
        assert_eq!(names, ["locked", "memory", "mirror", "plain", "stripe", "threads"], "{ran}");
        for export in exports {
            assert_eq!(export["export-size"], 32 * MIB, "{ran}");
            assert_eq!(export["can_flush"], true, "{ran}");
            assert_eq!(export["can_multi_conn"], true, "{ran}");
            assert_eq!(export["is_read_only"], export["export-name"] == "locked", "{ran}");
        }
        assert_eq!(exports[1]["description"], "all in memory");
    }
    fixture.end();
}

#[test]
fn nbdcopy_in_and_out_keeps_every_byte() {
    let fixture = Fixture::new();
    fixture.folder.write("in.img", pattern(42, 32 * MIB));
    let sum = fixture.checksum("in.img");
    for volume in VOLUMES {
        for uri in fixture.uris(volume) {
            fixture.qemu_io(&uri, &["write -z 0 32M"]);
            fixture.folder.client("nbdcopy", ["--flush", "in.img", &uri]).ok();
            fixture.folder.client("nbdcopy", [&uri, "out.img"]).ok();
            assert_eq!(fixture.checksum("out.img"), sum, "{uri}");
        }
    }
    // From volume to volume, neither of them a file of ours.
    let (from, to) = (fixture.server.uri("stripe"), fixture.server.uri("memory"));
    fixture.qemu_io(&to, &["write -P 0xff 0 32M"]);
    fixture.folder.client("nbdcopy", [&from, &to]).ok();
    fixture.folder.client("nbdcopy", [&to, "out.img"]).ok();
    assert_eq!(fixture.checksum("out.img"), sum);
    fixture.end();
}

#[test]
fn both_parts_of_a_mirror_and_the_chunks_of_a_stripe_hold_what_was_written() {
    let fixture = Fixture::new();
    let data = pattern(5, 32 * MIB);
    fixture.folder.write("in.img", &data);
    for volume in ["stripe", "mirror"] {
        let uri = fixture.server.uri(volume);
        fixture.folder.client("nbdcopy", ["--flush", "in.img", &uri]).ok();
    }
    let folder = fixture.folder;
    fixture.server.stop().ok();
    let file = std::fs::read(folder.join("c.img")).unwrap();
    assert!(file[..data.len()] == data, "the mirror's file differs");
    let parts = ["a.img", "b.img"].map(|name| std::fs::read(folder.join(name)).unwrap());
    for (index, chunk) in data.chunks(64 << 10).enumerate() {
        let at = index / 2 * (64 << 10);
        let part = &parts[index % 2][at..at + chunk.len()];
        assert!(part == chunk, "chunk {index} of the stripe differs");
    }
}

#[test]
fn qemu_io_patterns_across_block_chunk_and_volume_ends() {
    let fixture = Fixture::new();
    for volume in VOLUMES {
        for uri in fixture.uris(volume) {
            fixture.qemu_io(
                &uri,
                &[
                    "write -P 0x11 0 32M",
                    // Across a block's end, and across a chunk's.
                    "write -P 0x22 3584 1024",
                    "write -P 0x33 65024 1024",
                    "write -P 0x44 130560 131584",
                    // The last block, and the last chunk.
                    "write -P 0x55 33553920 512",
                    "write -P 0x66 33488896 1024",
                    "flush",
                    "read -P 0x11 0 3584",
                    "read -P 0x22 3584 1024",
                    "read -P 0x11 4608 60416",
                    "read -P 0x33 65024 1024",
                    "read -P 0x11 66048 64512",
                    "read -P 0x44 130560 131584",
                    "read -P 0x11 262144 33226752",
                    "read -P 0x66 33488896 1024",
                    "read -P 0x11 33489920 64000",
                    "read -P 0x55 33553920 512",
                    // FUA, zeroes, discards.
                    "write -f -P 0x77 1M 64k",
                    "read -P 0x77 1M 64k",
                    "write -z 1M 32k",
                    "read -P 0 1M 32k",
                    "read -P 0x77 1081344 32k",
                    "write -z -u 2M 1M",
                    "read -P 0 2M 1M",
                    "discard 4M 1M",
                    "flush",
                    "read -P 0x11 5M 512",
                ],
            );
        }
    }
    fixture.end();
}

#[test]
fn qemu_io_is_refused_beyond_the_end_and_goes_on() {
    let fixture = Fixture::new();
    for uri in fixture.uris("stripe") {
        let ran = fixture.qemu_io_unchecked(&uri, &["read 32M 512", "write 32M 512"]);
        assert!(ran.stdout.contains("failed") || ran.code != Some(0), "{ran}");
        fixture.qemu_io(&uri, &["write -P 0x12 0 64k", "read -P 0x12 0 64k"]);
    }
    fixture.end();
}

#[test]
fn qemu_img_compares_and_measures_a_volume() {
    let fixture = Fixture::new();
    fixture.folder.write("in.img", pattern(8, 32 * MIB));
    let uri = fixture.server.uri("mirror");
    let convert = ["convert", "-n", "-f", "raw", "-O", "raw", "in.img", uri.as_str()];
    fixture.folder.client("qemu-img", convert).ok();
    let compare = ["compare", "-f", "raw", "-F", "raw", "in.img", uri.as_str()];
    fixture.folder.client("qemu-img", compare).ok().says(&["Images are identical"]);
    fixture.end();
}

/// fio writes a volume with checksums in every block, and reads each of them back.
#[track_caller]
fn fio(fixture: &Fixture, uri: &str, jobs: &str) {
    let ran = fixture.folder.client(
        "fio",
        [
            "--name=verify",
            "--ioengine=nbd",
            &format!("--uri={uri}"),
            "--rw=randrw",
            "--bsrange=512-64k",
            "--iodepth=16",
            "--size=8M",
            "--offset_increment=8M",
            &format!("--numjobs={jobs}"),
            "--verify=crc32c",
            "--verify_fatal=1",
            "--fsync=32",
            "--output-format=json",
        ],
    );
    let ran = ran.ok();
    let start = ran.stdout.find('{').unwrap_or_else(|| panic!("no JSON\n{ran}"));
    let report: Value =
        serde_json::from_str(&ran.stdout[start..]).unwrap_or_else(|e| panic!("{e}\n{ran}"));
    for job in report["jobs"].as_array().expect("a list of jobs") {
        assert_eq!(job["error"], 0, "{ran}");
        let read = job["read"]["total_ios"].as_u64();
        assert!(read.is_some_and(|ios| ios > 0), "nothing was verified\n{ran}");
    }
}

#[test]
fn fio_verifies_every_volume_over_a_unix_socket() {
    let fixture = Fixture::new();
    for volume in VOLUMES {
        fio(&fixture, &fixture.server.uri(volume), "1");
    }
    fixture.end();
}

#[test]
fn fio_verifies_over_tcp() {
    let fixture = Fixture::new();
    for volume in ["memory", "stripe"] {
        fio(&fixture, &fixture.server.tcp_uri(volume), "1");
    }
    fixture.end();
}

#[test]
fn fio_verifies_over_four_connections_at_once() {
    let fixture = Fixture::new();
    for volume in ["memory", "stripe", "mirror"] {
        fio(&fixture, &fixture.server.uri(volume), "4");
    }
    fixture.end();
}

#[test]
fn a_write_flushed_on_one_connection_is_read_on_another() {
    use crate::common::client::{Client, FUA};
    // Multi-conn promises: a flush or FUA on one connection counts for all.
    let fixture = Fixture::new();
    for volume in VOLUMES {
        let socket = fixture.server.socket();
        let mut connections: Vec<Client> = (0..4).map(|_| Client::new(&socket, volume)).collect();
        for round in 0..8u64 {
            for writer in 0..4 {
                let data = pattern(round * 4 + writer, 8192);
                let flags = if writer % 2 == 0 { FUA } else { 0 };
                let offset = writer * 65536 + round * 512;
                connections[writer as usize].write(offset, &data, flags).unwrap();
                connections[(writer as usize + 1) % 4].flush().unwrap();
                for reader in &mut connections {
                    assert!(reader.read(offset, 8192).unwrap() == data, "{volume}, round {round}");
                }
            }
        }
    }
    fixture.end();
}

#[test]
fn a_read_only_export_refuses_writes_and_is_read_by_everyone() {
    let fixture = Fixture::new();
    let (writable, locked) = (fixture.server.uri("plain"), fixture.server.uri("locked"));
    fixture.qemu_io(&writable, &["write -P 0x3c 0 1M", "flush"]);
    let ran = fixture.qemu_io_unchecked(&locked, &["write -P 0 0 512"]);
    assert!(ran.code != Some(0) || ran.stdout.contains("failed"), "{ran}");
    fixture.folder.write("zeroes.img", vec![0; 32 * MIB]);
    fixture.folder.client("nbdcopy", ["zeroes.img", &locked]).fails();
    let mut args = vec!["-r", "-f", "raw", "-c", "read -P 0x3c 0 1M"];
    args.push(&locked);
    let ran = fixture.folder.client("qemu-io", args).ok();
    assert!(!ran.stdout.contains("failed"), "{ran}");
    fixture.end();
}
