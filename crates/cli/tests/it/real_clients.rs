//! The programs that people use: nbdinfo, nbdcopy, qemu-io, qemu-img and fio.
#![allow(missing_docs, clippy::unwrap_used)]

use crate::common::Ran;
use crate::common::client::pattern;
use crate::common::every::{Every, SIZE};
use serde_json::Value;

impl Every {
    /// Runs qemu-io with these commands, and checks that each succeeds.
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

    #[track_caller]
    fn holds(&self, file: &str, data: &[u8], of: &str) {
        let found = std::fs::read(self.folder.join(file)).unwrap();
        assert!(found == data, "{of}: another content");
    }
}

#[test]
fn nbdinfo_lists_all_exports_with_sizes_and_flags_over_both_sockets() {
    let fixture = Every::start();
    for uri in [fixture.server.uri(""), fixture.server.tcp_uri("")] {
        let ran = fixture.folder.client("nbdinfo", ["--list", "--json", &uri]).ok();
        let list = ran.json();
        let exports = list["exports"].as_array().unwrap();
        let names: Vec<&str> = exports.iter().map(|e| e["export-name"].as_str().unwrap()).collect();
        let mut wanted = fixture.volumes.clone();
        wanted.extend(["error", "locked", "null"]);
        wanted.sort_unstable();
        assert_eq!(names, wanted, "{ran}");
        for export in exports {
            assert_eq!(export["export-size"], SIZE, "{ran}");
            assert_eq!(export["can_flush"], true, "{ran}");
            assert_eq!(export["can_multi_conn"], true, "{ran}");
            assert_eq!(export["is_read_only"], export["export-name"] == "locked", "{ran}");
        }
        let memory = exports.iter().find(|export| export["export-name"] == "memory").unwrap();
        assert_eq!(memory["description"], "all in memory");
    }
    fixture.end();
}

#[test]
fn nbdcopy_in_and_out_keeps_every_byte() {
    let fixture = Every::start();
    let data = pattern(42, SIZE);
    fixture.folder.write("in.img", &data);
    for &volume in &fixture.volumes {
        for uri in fixture.uris(volume) {
            fixture.qemu_io(&uri, &["write -z 0 32M"]);
            fixture.folder.client("nbdcopy", ["--flush", "in.img", &uri]).ok();
            fixture.folder.client("nbdcopy", [&uri, "out.img"]).ok();
            fixture.holds("out.img", &data, &uri);
        }
    }
    // This copies between two volumes, neither of them a file of ours.
    let (from, to) = (fixture.server.uri("stripe"), fixture.server.uri("memory"));
    fixture.qemu_io(&to, &["write -P 0xff 0 32M"]);
    fixture.folder.client("nbdcopy", [&from, &to]).ok();
    fixture.folder.client("nbdcopy", [&to, "out.img"]).ok();
    fixture.holds("out.img", &data, &to);
    fixture.end();
}

#[test]
fn both_parts_of_a_mirror_and_the_chunks_of_a_stripe_hold_what_was_written() {
    let fixture = Every::start();
    let data = pattern(5, SIZE);
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
    let fixture = Every::start();
    for &volume in &fixture.volumes {
        for uri in fixture.uris(volume) {
            fixture.qemu_io(
                &uri,
                &[
                    "write -P 0x11 0 32M",
                    // These writes cross a block's end, and a chunk's.
                    "write -P 0x22 3584 1024",
                    "write -P 0x33 65024 1024",
                    "write -P 0x44 130560 131584",
                    // These writes are in the last block, and in the last chunk.
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
                    // These writes cover parts of blocks, each beside bytes that have to stay.
                    "write -P 0x88 2097151 2",
                    "write -P 0x99 2098000 130001",
                    "write -z 2098100 3001",
                    "read -P 0x11 2097000 151",
                    "read -P 0x88 2097151 2",
                    "read -P 0x11 2097153 847",
                    "read -P 0x99 2098000 100",
                    "read -P 0 2098100 3001",
                    "read -P 0x99 2101101 126900",
                    "read -P 0x11 2228001 1000",
                    // FUA, zeroes and discards follow.
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
    let fixture = Every::start();
    for uri in fixture.uris("stripe") {
        let ran = fixture.qemu_io_unchecked(&uri, &["read 32M 512", "write 32M 512"]);
        assert!(ran.stdout.contains("failed") || ran.code != Some(0), "{ran}");
        fixture.qemu_io(&uri, &["write -P 0x12 0 64k", "read -P 0x12 0 64k"]);
    }
    fixture.end();
}

#[test]
fn qemu_img_converts_compares_and_maps_every_volume() {
    let fixture = Every::start();
    // The image has data, a hole, and data again.
    let mut image = pattern(8, SIZE);
    image[8 << 20..24 << 20].fill(0);
    fixture.folder.write("in.img", &image);
    for &volume in &fixture.volumes {
        let uri = fixture.server.uri(volume);
        let convert = ["convert", "-n", "-f", "raw", "-O", "raw", "in.img", &uri];
        fixture.folder.client("qemu-img", convert).ok();
        let compare = ["compare", "-f", "raw", "-F", "raw", "in.img", &uri];
        fixture.folder.client("qemu-img", compare).ok().says(&["Images are identical"]);
        let ran = fixture.folder.client("qemu-img", ["map", "-f", "raw", "--output=json", &uri]);
        let map = ran.ok().json();
        let mut end = 0;
        for extent in map.as_array().unwrap() {
            let number = |key: &str| extent[key].as_u64().unwrap() as usize;
            assert_eq!(number("start"), end, "{volume}: {map}");
            end += number("length");
            let zero = image[number("start")..end].iter().all(|byte| *byte == 0);
            assert!(zero || extent["zero"] == false, "{volume}: {map}");
        }
        assert_eq!(end, SIZE, "{volume}: {map}");
    }
    fixture.end();
}

/// Runs a single fio, so all volumes are busy at once.
#[test]
fn fio_verifies_every_volume_by_two_jobs_at_depth_and_two_of_them_over_tcp() {
    let fixture = Every::start();
    let mut args: Vec<String> = [
        "--ioengine=nbd",
        "--rw=randrw",
        "--bsrange=512-64k",
        "--iodepth=16",
        "--numjobs=2",
        "--size=4M",
        "--offset_increment=8M",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--fsync=32",
        "--output-format=json",
    ]
    .map(str::to_owned)
    .to_vec();
    if std::env::var_os("COREWISE_LONG").is_some_and(|value| value == "1") {
        args.push("--loops=50".to_owned());
    }
    let mut jobs = 0;
    for volume in &fixture.volumes {
        // Jobs over TCP have another part of the same volume.
        for (n, uri) in fixture.uris(volume).into_iter().enumerate() {
            let offset = format!("--offset={}M", n * 4);
            args.extend([format!("--name={uri}"), format!("--uri={uri}"), offset]);
            jobs += 2;
        }
    }
    let ran = fixture.folder.client("fio", &args).ok();
    let start = ran.stdout.find('{').unwrap_or_else(|| panic!("no JSON\n{ran}"));
    let report: Value =
        serde_json::from_str(&ran.stdout[start..]).unwrap_or_else(|e| panic!("{e}\n{ran}"));
    let reports = report["jobs"].as_array().expect("a list of jobs");
    assert_eq!(reports.len(), jobs);
    for job in reports {
        assert_eq!(job["error"], 0, "{ran}");
        let read = job["read"]["total_ios"].as_u64();
        assert!(read.is_some_and(|ios| ios > 0), "nothing was verified\n{ran}");
    }
    fixture.end();
}

#[test]
fn a_write_flushed_on_one_connection_is_read_on_another() {
    use crate::common::client::{Client, FUA};
    // Multi-conn promises: a flush or FUA on one connection counts for all.
    let fixture = Every::start();
    for &volume in &fixture.volumes {
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
    let fixture = Every::start();
    let (writable, locked) = (fixture.server.uri("cached"), fixture.server.uri("locked"));
    fixture.qemu_io(&writable, &["write -P 0x3c 0 1M", "flush"]);
    let ran = fixture.qemu_io_unchecked(&locked, &["write -P 0 0 512"]);
    assert!(ran.code != Some(0) || ran.stdout.contains("failed"), "{ran}");
    fixture.folder.write("zeroes.img", vec![0; SIZE]);
    fixture.folder.client("nbdcopy", ["zeroes.img", &locked]).fails();
    let mut args = vec!["-r", "-f", "raw", "-c", "read -P 0x3c 0 1M"];
    args.push(&locked);
    let ran = fixture.folder.client("qemu-io", args).ok();
    assert!(!ran.stdout.contains("failed"), "{ran}");
    fixture.end();
}
