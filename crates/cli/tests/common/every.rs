//! A server with a volume of every driver, each of 32 MiB.

use std::os::unix::fs::OpenOptionsExt;

use tempfile::TempDir;

use super::Folder;
use super::server::Server;

pub const SIZE: usize = 32 << 20;

/// Volumes that store data, except `direct`.
const KEEPING: [&str; 7] =
    ["memory", "cached", "threads", "stripe", "mirror", "partition", "delay"];

const MANIFEST: &str = r#"
[[device]]
name = "memory"
driver = "memory"
size = "32M"

[[device]]
name = "null"
driver = "null"
size = "32M"

[[device]]
name = "cached"
driver = "file"
path = "cached.img"
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
name = "stripe"
driver = "stripe"
over = ["a", "b"]
chunk = "64K"

[[device]]
name = "c"
driver = "file"
path = "c.img"
size = "32832K" # 64 KiB are for the record of the mirror
create = true

[[device]]
name = "d"
driver = "memory"
size = "32832K"

[[device]]
name = "mirror"
driver = "mirror"
over = ["c", "d"]

[[device]]
name = "disk"
driver = "file"
path = "disk.img"

[[device]]
name = "partition"
driver = "partition"
over = ["disk"]
partition = 1

[[device]]
name = "e"
driver = "memory"
size = "32M"

[[device]]
name = "delay"
driver = "delay"
over = ["e"]
read_delay = "1ms"
write_delay = "1ms"

[[device]]
name = "f"
driver = "memory"
size = "32M"

[[device]]
name = "error"
driver = "error"
over = ["f"]
fails = ["read"]
from = "20M"
to = "21M"

[[export]]
device = "memory"
description = "all in memory"

[[export]]
name = "locked"
device = "cached"
read_only = true
"#;

pub struct Every {
    pub server: Server,
    pub folder: Folder,
    /// Volumes that store data.
    pub volumes: Vec<&'static str>,
    /// Folder of the file that isn't cached.
    _on_disk: TempDir,
}

impl Every {
    pub fn start() -> Every {
        Every::with(Folder::new(), "")
    }

    /// Starts the server in this folder, with more keys of `[server]`.
    pub fn with(folder: Folder, server: &str) -> Every {
        folder.partitioned(34 << 20, "start=1MiB, size=32MiB, name=root\n");
        // The target folder is on disk; TMPDIR may be in memory.
        let on_disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let direct = on_disk.path().canonicalize().expect("it was just made").join("direct.img");
        let mut manifest = format!("[server]\nunix = \"s\"\ntcp = 0\n{server}{MANIFEST}");
        let mut volumes = KEEPING.to_vec();
        if can_be_direct(&direct) {
            volumes.push("direct");
            manifest += &format!(
                "[[device]]\nname = \"direct\"\ndriver = \"file\"\nsize = \"32M\"\ncreate = true\n\
                 direct = true\npath = \"{}\"\n",
                direct.display()
            );
        }
        for volume in volumes[1..].iter().chain(&["null", "error"]) {
            manifest += &format!("[[export]]\ndevice = \"{volume}\"\n");
        }
        folder.write("up.toml", manifest);
        let server = Server::start(&folder, &["up.toml"]);
        Every { server, folder, volumes, _on_disk: on_disk }
    }

    /// Returns the URIs of a volume: over the Unix socket and, for two drivers, over TCP.
    pub fn uris(&self, export: &str) -> Vec<String> {
        let mut uris = vec![self.server.uri(export)];
        if ["memory", "stripe"].contains(&export) {
            uris.push(self.server.tcp_uri(export));
        }
        uris
    }

    /// Stops the server and checks that it ends well.
    #[track_caller]
    pub fn end(self) {
        self.server.stop().ok();
    }
}

/// Returns true if the file system reads and writes past the page cache.
fn can_be_direct(path: &std::path::Path) -> bool {
    let mut options = std::fs::OpenOptions::new();
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let tried = options.write(true).create(true).truncate(true).custom_flags(direct).open(path);
    let _ = std::fs::remove_file(path);
    tried.is_ok()
}
