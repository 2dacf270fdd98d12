//! Servers in this process. They can be used, inspected, changed and taken down, and leave nothing
//! behind.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corewise::blockmq::{BlockDeviceExt, Queue};
use corewise::nbd::{Remote, RemoteOptions};
use corewise::sync::Mutex;
use corewise::topology::Machine;
use corewise::workqueue::{WorkerPools, Workqueue};
use corewise_server::control::Mode;
use corewise_server::control::health::HealthState;
use corewise_server::manifest::{self, Manifest};
use corewise_server::{ErrorKind, Notice, Observer, Options, Server, Severity};

const DISK: &str = "[server]\nunix = \"s\"\n[[device]]\nname = \"disk\"\ndriver = \"memory\"\n\
                    size = \"1M\"\n[[export]]\ndevice = \"disk\"\n";
const MORE: &str = "[[device]]\nname = \"more\"\ndriver = \"memory\"\nsize = \"1M\"\n[[export]]\n\
                    device = \"more\"\n";

/// An observer that keeps all reports.
#[derive(Debug, Default)]
struct KeepingObserver {
    /// L: is the lock; guards the messages, and the names of notices.
    lines: Mutex<Vec<String>>,
}

impl Observer for KeepingObserver {
    fn message(&self, severity: Severity, message: fmt::Arguments<'_>) {
        self.lines.lock().push(format!("{severity:?}: {message}"));
    }

    fn notice(&self, notice: &Notice<'_>) {
        let line = match notice {
            Notice::BringUp(_) => "up".to_string(),
            Notice::Ready(ready) => format!("ready: {}", ready.exports.len()),
            Notice::Changed(changed) => changed.text(),
            Notice::Stopping { why } => format!("stopping: {why}"),
            Notice::Shutdown(_) => "down".to_string(),
            Notice::Done { complete, .. } => format!("done: {complete}"),
            other => format!("{other:?}"),
        };
        self.lines.lock().push(line);
    }
}

fn manifest(text: &str, base: &Path) -> Manifest {
    manifest::read(text, base).into_manifest("m.toml").unwrap()
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// Waits until the process has `wanted` threads: one that was joined may be in the list for a
/// moment more.
fn threads_become(wanted: usize) {
    let begun = Instant::now();
    while threads() != wanted {
        // Only a remaining thread makes it wait for this time.
        assert!(begun.elapsed() < Duration::from_secs(300), "{} threads, not {wanted}", threads());
        std::thread::yield_now();
    }
}

/// Writes a block of an export and reads it.
fn use_export(server: &Server, export: &str) {
    let machine = Machine::live().unwrap();
    let pools = WorkerPools::new(&machine);
    let workqueue = Workqueue::builder("client").build(&pools).unwrap();
    let uri = server.endpoints()[0].uri(export).parse().unwrap();
    let remote = Arc::new(Remote::connect(RemoteOptions::new(uri)).unwrap());
    let disk = Queue::builder(&machine, remote).name(export).build(&workqueue);
    disk.write_at(4096, vec![7; 512]).unwrap();
    assert_eq!(disk.read_at(4096, 512).unwrap(), [7; 512][..]);
    drop((disk, workqueue));
    pools.shutdown();
}

/// Runs as one test, since it counts the threads of the process.
#[test]
fn a_server_is_used_and_changed_and_leaves_neither_threads_nor_files() {
    let folder = tempfile::tempdir().unwrap();
    let files = || std::fs::read_dir(folder.path()).unwrap().count();
    let socket = folder.path().join("s");
    let observer = Arc::new(KeepingObserver::default());
    let options = || Options { observer: observer.clone(), ..Options::default() };
    let told = || std::mem::take(&mut *observer.lines.lock());
    let (threads_before, files_before) = (threads(), files());

    let server = Server::up(manifest(DISK, folder.path()), options()).unwrap();
    assert!(socket.exists());
    assert_eq!(server.health().state, HealthState::Ok);
    use_export(&server, "disk");
    let file = folder.path().join("more.toml");
    std::fs::write(&file, MORE).unwrap();
    assert!(server.add(&file).unwrap().failed.is_empty());
    use_export(&server, "more");
    assert!(server.remove("more", Mode::Hard).unwrap().failed.is_empty());
    let gone = server.remove("more", Mode::Hard).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::Refused);
    assert!(gone.message().contains("there is no device"), "{gone}");
    assert!(server.reload(Mode::Safe).is_err(), "it has no file to read");
    assert!(server.down("enough"));
    let lines = told();
    assert_eq!(lines[..2], ["up", "ready: 1"]);
    assert_eq!(lines[lines.len() - 3..], ["stopping: enough", "down", "done: true"]);
    std::fs::remove_file(file).unwrap();
    threads_become(threads_before);
    assert_eq!(files(), files_before);

    // A server that is dropped goes down, too.
    drop(Server::up(manifest(DISK, folder.path()), options()).unwrap());
    assert_eq!(told().last().unwrap(), "done: true");
    threads_become(threads_before);
    assert_eq!(files(), files_before);

    // If a device fails, those that are up go down.
    let missing = "[[device]]\nname = \"file\"\ndriver = \"file\"\npath = \"none\"\n";
    let refused = Server::up(manifest(&[DISK, missing].concat(), folder.path()), options());
    assert!(refused.is_err());
    let lines = told();
    assert!(lines[0].starts_with("Error: the manifest:12:"), "{lines:?}");
    assert!(lines[0].contains("device 'file'") && lines.len() == 1, "{lines:?}");
    threads_become(threads_before);
    assert_eq!(files(), files_before);
}
