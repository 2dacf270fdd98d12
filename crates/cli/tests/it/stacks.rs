//! Stacks of devices with real clients: partitions, delays, errors.
#![allow(missing_docs, clippy::unwrap_used)]

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use crate::common::Folder;
use crate::common::client::{Client, EINVAL, ENOSPC, READ, WRITE, pattern};
use crate::common::server::Server;
use serde_json::Value;

const MIB: usize = 1 << 20;
const EIO: u32 = 5;

/// Makes an image of 16 MiB with a table: `root` and `data`, 4 MiB each.
fn partitioned(folder: &Folder) {
    folder.partitioned(16 * MIB, "start=1MiB, size=4MiB, name=root\nsize=4MiB, name=data\n");
}

fn partition(name: &str, which: &str) -> String {
    format!(
        "[[device]]\nname = \"{name}\"\ndriver = \"partition\"\nover = [\"disk\"]\n\
         partition = {which}\n[[export]]\ndevice = \"{name}\"\n"
    )
}

const DISK: &str = "[server]\nunix = \"s\"\n[[device]]\nname = \"disk\"\ndriver = \"file\"\n\
                    path = \"disk.img\"\n";

#[test]
fn partitions_that_sfdisk_made_are_served_and_go_down_before_their_disk() {
    let folder = Folder::new();
    partitioned(&folder);
    let text = DISK.to_string() + &partition("p1", "1") + &partition("p2", "\"data\"");
    folder.write("up.toml", text);
    let server = Server::start(&folder, &["up.toml", "--timeline", "t.json"]);
    let sizes: Vec<_> = server.ready["exports"].as_array().unwrap().iter().collect();
    assert!(sizes.iter().all(|export| export["size"] == 4 * MIB), "{sizes:?}");
    for (export, seed) in [("p1", 1), ("p2", 2)] {
        let mut client = Client::new(&server.socket(), export);
        client.write(0, &pattern(seed, 4 * MIB), 0).unwrap();
        assert_eq!(client.write(4 * MIB as u64, &[0; 512], 0), Err(ENOSPC));
        assert_eq!(client.read(4 * MIB as u64 - 512, 1024), Err(EINVAL));
    }
    let dump = folder.dump();
    let part = dump["disks"].as_array().unwrap().iter().find(|disk| disk["name"] == "p1").unwrap();
    let queues = part["hw_queues"].as_array().unwrap();
    let sum = |name| queues.iter().map(|queue| queue[name].as_u64().unwrap()).sum::<u64>();
    let writes = part["writes"]["requests"].as_u64().unwrap();
    assert_eq!((sum("remapped"), sum("dispatched")), (writes, 0), "{part}");
    server.stop().ok();
    let image = std::fs::read(folder.join("disk.img")).unwrap();
    assert!(image[MIB..5 * MIB] == pattern(1, 4 * MIB));
    assert!(image[5 * MIB..9 * MIB] == pattern(2, 4 * MIB));
    let ran = folder.client("sfdisk", ["--verify", "disk.img"]).ok();
    ran.says(&["No errors detected"]);

    let json: Value =
        serde_json::from_slice(&std::fs::read(folder.join("t.json")).unwrap()).unwrap();
    let span = |timeline: &Value, name: &str| {
        let spans = timeline["spans"].as_array().unwrap();
        let span = spans.iter().find(|span| span["name"] == name).unwrap();
        (span["start_ns"].as_u64().unwrap(), span["end_ns"].as_u64().unwrap())
    };
    for p in ["p1", "p2"] {
        assert!(span(&json[0], "disk").1 <= span(&json[0], p).0, "{p} before its disk");
        let export = format!("export:{p}");
        assert!(span(&json[1], &export).1 <= span(&json[1], "disk").0, "the disk before {export}");
    }
}

#[test]
fn a_damaged_table_is_warned_about_and_its_backup_used() {
    let folder = Folder::new();
    partitioned(&folder);
    let image = OpenOptions::new().write(true).open(folder.join("disk.img")).unwrap();
    image.write_all_at(&[0xFF; 8], 512 + 40).unwrap();
    folder.write("up.toml", DISK.to_string() + &partition("p1", "\"root\""));
    let server = Server::start(&folder, &["up.toml"]);
    Client::new(&server.socket(), "p1").write(0, &pattern(3, 512), 0).unwrap();
    server.stop().ok().complains(&["the first copy is bad", "CRC-32", "the backup is used"]);
    let image = std::fs::read(folder.join("disk.img")).unwrap();
    assert!(image[MIB..MIB + 512] == pattern(3, 512));
}

#[test]
fn partitions_that_are_not_there_or_are_another_s_are_refused() {
    let folder = Folder::new();
    partitioned(&folder);
    folder.write("up.toml", DISK.to_string() + &partition("p", "\"boot\""));
    let ran = folder.corewise(["up", "up.toml"]).code(1);
    ran.complains(&["up.toml:11:13", "'boot'", "1 ('root'), 2 ('data')"]);
    let text = DISK.to_string() + &partition("p", "1") + &partition("q", "\"root\"");
    folder.write("up.toml", text);
    folder.corewise(["up", "up.toml"]).code(1).complains(&["already has partition 1"]);
    folder.write("disk.img", vec![0; MIB]);
    folder.write("up.toml", DISK.to_string() + &partition("p", "1"));
    folder.corewise(["up", "up.toml"]).code(1).complains(&["found no GUID partition table"]);
}

#[test]
fn a_client_is_told_the_errors_that_were_asked_for_and_no_others() {
    let folder = Folder::new();
    folder.write(
        "up.toml",
        "[server]\nunix = \"s\"\n\
         [[device]]\nname = \"m\"\ndriver = \"memory\"\nsize = \"1M\"\n\
         [[device]]\nname = \"bad\"\ndriver = \"error\"\nover = [\"m\"]\nfails = [\"read\"]\n\
         from = \"8K\"\nto = \"12K\"\ntimes = 2\n\
         [[device]]\nname = \"full\"\ndriver = \"error\"\nover = [\"bad\"]\nfails = [\"write\"]\n\
         every = 3\nerrno = \"ENOSPC\"\n\
         [[export]]\ndevice = \"full\"\n",
    );
    let server = Server::start(&folder, &["up.toml"]);
    let mut client = Client::new(&server.socket(), "full");
    let writes: Vec<_> = (0..6).map(|n| client.write(n * 4096, &pattern(n, 4096), 0)).collect();
    assert_eq!(writes, [Ok(()), Ok(()), Err(ENOSPC), Ok(()), Ok(()), Err(ENOSPC)]);
    assert!(client.read(4096, 4096) == Ok(pattern(1, 4096)));
    assert_eq!(client.read(4096, 8192).err(), Some(EIO), "it touches the range");
    assert_eq!(client.read(8192 + 512, 512).err(), Some(EIO));
    assert!(client.read(8192, 4096) == Ok(vec![0; 4096]), "well again, and the third write failed");
    server.stop().ok();
}

#[test]
fn a_delayed_write_is_overtaken_by_a_read_and_is_not_lost_at_shutdown() {
    let folder = Folder::new();
    folder.write(
        "up.toml",
        "[server]\nunix = \"s\"\n\
         [[device]]\nname = \"f\"\ndriver = \"file\"\npath = \"f.img\"\nsize = \"1M\"\ncreate = true\n\
         [[device]]\nname = \"slow\"\ndriver = \"delay\"\nover = [\"f\"]\nwrite_delay = \"1s\"\n\
         [[export]]\ndevice = \"slow\"\n",
    );
    let server = Server::start(&folder, &["up.toml"]);
    let mut client = Client::new(&server.socket(), "slow");
    let write = client.send(WRITE, 0, 0, 4096, &pattern(1, 4096)).unwrap();
    let read = client.send(READ, 0, 8192, 4096, &[]).unwrap();
    assert_eq!(client.receive(4096).unwrap(), (read, Ok(vec![0; 4096])));
    // The reply is still to come while the server drains.
    server.stop().ok();
    assert_eq!(client.receive(0).unwrap(), (write, Ok(vec![])));
    assert!(std::fs::read(folder.join("f.img")).unwrap()[..4096] == pattern(1, 4096));
}

/// Returns `n` devices, each over the one before, and an export of the last one.
fn tower(n: usize) -> String {
    let mut text = "[[device]]\nname = \"d0\"\ndriver = \"memory\"\nsize = \"1M\"\n".to_string();
    for n in 1..n {
        let below = n - 1;
        text += &format!(
            "[[device]]\nname = \"d{n}\"\ndriver = \"error\"\nover = [\"d{below}\"]\nafter = 1000000\n"
        );
    }
    text + &format!("[[export]]\nname = \"top\"\ndevice = \"d{}\"\n", n - 1)
}

#[test]
fn two_thousand_devices_on_one_another_are_served_and_go_down_in_order() {
    let folder = Folder::new();
    folder.write("up.toml", tower(2000));
    folder.corewise(["up", "up.toml", "--check"]).ok().says(&["2000 devices"]);
    let server = Server::start(&folder, &["up.toml"]);
    let mut client = Client::new(&server.socket(), "top");
    client.write(4096, &pattern(5, 8192), 0).unwrap();
    client.flush().unwrap();
    assert_eq!(client.read(4096, 8192).unwrap(), pattern(5, 8192));
    drop(client);
    server.stop().ok();
}
