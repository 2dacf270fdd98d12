//! Acknowledged and flushed writes survive a crash at any moment. The volumes log their writes, and
//! the tests build and verify images that a crash could have left.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use fastrand::Rng;
use rustix::process::Signal;

use crate::common::client::{Client, WRITE};
use crate::common::replay::{Log, count};
use crate::common::server::Server;
use crate::common::writer::{BLOCK, BLOCKS, Writer, content, seed};
use crate::common::{Folder, file};

/// Returns the number of rounds, larger for `cargo xtask test --long`.
fn rounds(few: usize) -> usize {
    if std::env::var_os("COREWISE_LONG").is_some() { few * 20 } else { few }
}

fn logged(name: &str, size: &str, keys: &str) -> String {
    format!("{}write_log = \"{name}.log\"\n{keys}", file(name, size))
}

#[test]
fn a_file_has_what_was_flushed_after_a_crash_at_each_flush_and_between_them() {
    for io in ["auto", "threads"] {
        let folder = Folder::new();
        let keys = format!("io = \"{io}\"\n");
        let manifest =
            logged("a", "1M", &keys) + "[[export]]\ndevice = \"a\"\n[server]\nunix = \"s\"\n";
        folder.write("up.toml", manifest);
        let log = folder.join("a.log");
        let mut writer = Writer::new(vec![log.clone()], seed());
        // The second life goes on where the first one was killed.
        for _ in 0..2 {
            let server = Server::start(&folder, &["up.toml"]);
            let mut client = Client::new(&server.socket(), "a");
            writer.work(&mut client, rounds(250), true);
            server.kill();
        }
        let log = Log::read(&log);
        let mut chance = Rng::with_seed(seed() + 1);
        let some = (0..40).map(|_| 1 + chance.u64(..log.len() as u64) as usize);
        let moments: Vec<usize> = log.flushes().into_iter().chain(some).collect();
        assert!(moments.len() > 60, "{}", moments.len());
        for upto in moments {
            let mut image = vec![0; 1 << 20];
            log.replay(&mut image, upto, &mut chance);
            writer.check(&image, &[upto], &format!("{io}, seed {}, entry {upto}", seed()));
        }
        // The log has all that the file has.
        let mut image = vec![0; 1 << 20];
        log.replay(&mut image, *log.flushes().last().unwrap(), &mut chance);
        let there = std::fs::read(folder.join("a.img")).unwrap();
        writer.check(&there, &[log.len()], "the file itself");
    }
}

/// Waits until each thread of the server is stopped.
fn stop_still(server: &Server) {
    server.signal(Signal::STOP);
    let stopped = |task: PathBuf| {
        let stat = std::fs::read_to_string(task.join("stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
    };
    let tasks = || std::fs::read_dir(format!("/proc/{}/task", server.pid())).unwrap();
    while !tasks().all(|task| stopped(task.unwrap().path())) {
        std::thread::yield_now();
    }
}

fn mirror(a: &str, b: &str) -> String {
    format!(
        "{a}{b}[[device]]\nname = \"m\"\ndriver = \"mirror\"\nover = [\"a\", \"b\"]\n\
         [[export]]\ndevice = \"m\"\n[server]\nunix = \"s\"\n"
    )
}

/// Returns the entries of both logs at one moment.
fn moment(server: &Server, logs: &[PathBuf]) -> Vec<usize> {
    stop_still(server);
    let counts = logs.iter().map(|log| count(log)).collect();
    server.signal(Signal::CONT);
    counts
}

#[test]
fn a_mirror_has_what_was_flushed_after_a_crash_of_both_legs_and_they_become_alike() {
    let folder = Folder::new();
    folder.write("up.toml", mirror(&logged("a", "2M", ""), &logged("b", "2M", "")));
    folder.write("again.toml", mirror(&file("a", "2M"), &file("b", "2M")));
    let logs = ["a.log", "b.log"].map(|name| folder.join(name)).to_vec();
    let mut writer = Writer::new(logs.clone(), seed());
    let server = Server::start(&folder, &["up.toml"]);
    let mut client = Client::new(&server.socket(), "m");
    let mut moments = Vec::new();
    for _ in 0..rounds(6) {
        // The next batch reads the replies of the last requests: they are in flight at that moment.
        writer.work(&mut client, 40, false);
        let ahead = writer.chance.u64(..BLOCKS as u64) as usize;
        let version = writer.sent[ahead].len();
        writer.sent[ahead].push(false);
        let data = content(ahead, version);
        client.send(WRITE, 0, (ahead * BLOCK) as u64, BLOCK as u32, &data).unwrap();
        moments.push(moment(&server, &logs));
        client.receive(0).unwrap().1.unwrap();
        writer.acked[ahead] = version;
    }
    server.kill();
    let read = logs.iter().map(|log| Log::read(log)).collect::<Vec<_>>();
    let mut chance = Rng::with_seed(seed() + 1);
    for counts in moments {
        let after = Folder::new();
        for ((log, name), &upto) in read.iter().zip(["a.img", "b.img"]).zip(&counts) {
            let mut image = vec![0; 2 << 20];
            log.replay(&mut image, upto, &mut chance);
            after.write(name, image);
        }
        std::fs::copy(folder.join("again.toml"), after.join("again.toml")).unwrap();
        let when = format!("seed {}, entries {counts:?}", seed());
        let server = Server::start(&after, &["again.toml"]);
        let mut client = Client::new(&server.socket(), "m");
        let found = client.read(0, (BLOCKS * BLOCK) as u32).unwrap();
        writer.check(&found, &counts, &when);
        let control = server.control().display().to_string();
        after.corewise(["mirror", "m", "--wait", "--control", &control]).ok();
        // Content that was read once never changes, whichever leg answers.
        assert!(client.read(0, (BLOCKS * BLOCK) as u32).unwrap() == found, "{when}");
        server.stop().ok();
        let data = ["a.img", "b.img"].map(|name| std::fs::read(after.join(name)).unwrap());
        let size = client.size as usize;
        assert!(data[0][..size] == data[1][..size], "{when}: the legs differ");
    }
}

/// Checks the file system in these bytes.
#[track_caller]
fn fsck(folder: &Folder, image: &[u8], when: &str) {
    folder.write("fs.img", image);
    let ran = folder.client("e2fsck", ["-f", "-n", "fs.img"]);
    assert!(ran.code == Some(0), "{when}\n{ran}");
}

#[test]
fn a_file_system_in_a_partition_is_whole_at_each_flush_and_the_table_always() {
    let folder = Folder::new();
    let (start, len) = (1 << 20, 6 << 20);
    folder.partitioned(8 << 20, "size=6MiB, name=p\n");
    let base = std::fs::read(folder.join("disk.img")).unwrap();
    folder.write(
        "up.toml",
        "[[device]]\nname = \"disk\"\ndriver = \"file\"\npath = \"disk.img\"\n\
         write_log = \"disk.log\"\n[[device]]\nname = \"p\"\ndriver = \"partition\"\n\
         over = [\"disk\"]\npartition = 1\n[[export]]\ndevice = \"p\"\n[server]\nunix = \"s\"\n",
    );
    folder.write("new.img", vec![0; len]);
    folder.client("mkfs.ext4", ["-q", "-F", "new.img"]).ok();
    let server = Server::start(&folder, &["up.toml"]);
    let uri = server.uri("p");
    let mut states = Vec::new();
    for n in 0..3 {
        folder.write(&format!("file{n}"), vec![n as u8 + 1; 100_000 * (n + 1)]);
        let write = format!("write file{n} file{n}");
        folder.client("debugfs", ["-w", "-R", &write, "new.img"]).ok();
        folder.client("nbdcopy", ["--flush", "new.img", &uri]).ok();
        states.push((
            count(&folder.join("disk.log")),
            std::fs::read(folder.join("new.img")).unwrap(),
        ));
    }
    server.stop().ok();
    let log = Log::read(&folder.join("disk.log"));
    let mut chance = Rng::with_seed(seed());
    for (upto, state) in &states {
        let when = format!("seed {}, entry {upto}", seed());
        let mut image = base.clone();
        log.replay(&mut image, *upto, &mut chance);
        let found = &image[start..start + len];
        fsck(&folder, found, &when);
        assert!(found == &state[..], "{when}: it isn't what was copied");
    }
    for _ in 0..rounds(20) {
        let upto = 1 + chance.u64(..log.len() as u64) as usize;
        let mut image = base.clone();
        log.replay(&mut image, upto, &mut chance);
        let same = |range: std::ops::Range<usize>| image[range.clone()] == base[range];
        assert!(same(0..start) && same(start + len..base.len()), "entry {upto}: the table changed");
    }
}

#[test]
fn a_log_that_cannot_be_had_is_refused_and_says_why() {
    let folder = Folder::new();
    let manifest = |log: &str| {
        format!("{}write_log = \"{log}\"\n", file("a", "1M"))
            + "[[export]]\ndevice = \"a\"\n[server]\nunix = \"s\"\n"
    };
    folder.write("other", vec![b'x'; 4096]);
    folder.write("up.toml", manifest("other"));
    folder.corewise(["up", "up.toml"]).fails().complains(&["write log", "other", "move it away"]);
    assert!(std::fs::read(folder.join("other")).unwrap() == [b'x'; 4096]);
    folder.write("up.toml", manifest("a.img"));
    folder
        .corewise(["up", "up.toml"])
        .fails()
        .complains(&["its data and the files beside that share"]);
    assert!(!Path::new(&folder.join("a.img")).exists(), "it was made for nothing");
}
