//! Holes, as nbdinfo, qemu-img and nbdcopy see them: a terabyte with little data costs only its
//! data.
//!
//! Devices over others have 64 GiB, which need a sixteenth of the requests.
#![allow(missing_docs, clippy::unwrap_used)]

use std::os::unix::fs::MetadataExt;

use crate::common::Folder;
use crate::common::client::pattern;
use crate::common::server::Server;
use serde_json::Value;

const MIB: usize = 1 << 20;
const TIB: u64 = 1 << 40;
const GIB: u64 = 1 << 30;

/// Volumes that know their holes, and devices over such volumes.
const MANIFEST: &str = r#"
[server]
unix = "s"

[[device]]
name = "memory"
driver = "memory"
size = "1T"

[[device]]
name = "file"
driver = "file"
path = "file.img"
size = "1T"
create = true

[[device]]
name = "a"
driver = "memory"
size = "32G"

[[device]]
name = "b"
driver = "memory"
size = "32G"

[[device]]
name = "stripe"
driver = "stripe"
over = ["a", "b"]
chunk = "1M"

[[device]]
name = "below"
driver = "memory"
size = "64G"

[[device]]
name = "delay"
driver = "delay"
over = ["below"]
flush_delay = "1ms"

[[export]]
device = "memory"

[[export]]
device = "file"

[[export]]
device = "stripe"

[[export]]
device = "delay"
"#;

const VOLUMES: [(&str, u64); 4] =
    [("memory", TIB), ("file", TIB), ("stripe", 64 * GIB), ("delay", 64 * GIB)];

/// Returns the offsets of the written megabytes in a volume of `size` bytes.
fn written(size: u64) -> [u64; 3] {
    [0, 700 << 20, size - MIB as u64]
}

fn start(folder: &Folder) -> Server {
    folder.write("up.toml", MANIFEST);
    let server = Server::start(folder, &["up.toml"]);
    folder.write("one.img", pattern(3, MIB));
    for (volume, size) in VOLUMES {
        for at in written(size) {
            let write = format!("write -s one.img {at} 1M");
            folder.client("qemu-io", ["-f", "raw", "-c", &write, &server.uri(volume)]).ok();
        }
    }
    server
}

/// Returns offset and length of the data in a list of the extents of `size` bytes.
fn data(list: &str, size: u64, is_hole: impl Fn(&Value) -> bool, offset: &str) -> Vec<(u64, u64)> {
    let list: Value = serde_json::from_str(list).unwrap();
    let mut end = 0;
    let mut found: Vec<(u64, u64)> = Vec::new();
    for extent in list.as_array().unwrap() {
        let (at, len) = (extent[offset].as_u64().unwrap(), extent["length"].as_u64().unwrap());
        assert_eq!(at, end, "no gap: {list}");
        end = at + len;
        match found.last_mut() {
            _ if is_hole(extent) => {}
            Some((from, length)) if *from + *length == at => *length += len,
            _ => found.push((at, len)),
        }
    }
    assert_eq!(end, size);
    found
}

#[test]
fn nbdinfo_and_qemu_img_map_a_terabyte_and_find_what_was_written() {
    let folder = Folder::new();
    let server = start(&folder);
    for (volume, size) in VOLUMES {
        let want = written(size).map(|at| (at, MIB as u64));
        let uri = server.uri(volume);
        let ran = folder.client("nbdinfo", ["--map", "--json", &uri]).ok();
        let found = data(&ran.stdout, size, |extent| extent["type"] == 3, "offset");
        if volume == "file" && found == [(0, size)] {
            continue; // the file system knows no holes
        }
        assert_eq!(found, want, "{volume}");
        let ran = folder.client("qemu-img", ["map", "-f", "raw", "--output=json", &uri]).ok();
        let found = data(&ran.stdout, size, |extent| extent["zero"] == true, "start");
        assert_eq!(found, want, "{volume}");
    }
    server.stop().ok();
}

#[test]
fn nbdcopy_of_a_terabyte_copies_what_is_in_it_and_leaves_the_holes() {
    let folder = Folder::new();
    let server = start(&folder);
    for (volume, size) in [VOLUMES[0], VOLUMES[2]] {
        // The volume is copied into a file, and from there into another volume. Neither holds more
        // than the data.
        folder.client("nbdcopy", [&server.uri(volume), "copy.img"]).ok();
        let copied = std::fs::metadata(folder.join("copy.img")).unwrap();
        assert_eq!(copied.len(), size);
        assert!(copied.blocks() * 512 <= 16 * MIB as u64, "{} blocks", copied.blocks());
        let compare = ["compare", "-f", "raw", "-F", "raw", "copy.img", &server.uri(volume)];
        folder.client("qemu-img", compare).ok().says(&["Images are identical"]);
    }
    folder.client("nbdcopy", [&server.uri("stripe"), &server.uri("delay")]).ok();
    let ran = folder.client("nbdinfo", ["--map", "--json", &server.uri("delay")]).ok();
    let found = data(&ran.stdout, 64 * GIB, |extent| extent["type"] == 3, "offset");
    assert_eq!(found, written(64 * GIB).map(|at| (at, MIB as u64)));
    server.stop().ok();
}
