//! A volume in a folder of a small file system, which fills up, or is unmounted. The test has a
//! mount namespace of its own, if it may.

use std::fs;
use std::io::Write;
use std::path::{Path as FilePath, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use super::{passes, read, request, tuning, write};
use crate::Compression;
use crate::format::Chunk;
use crate::log::OpenRequest;
use crate::options::ObjectOptions;
use crate::volume::{Fault, Tuning, Volume};

/// Variable that marks a process with a mount namespace of its own.
const INSIDE: &str = "COREWISE_OBJECT_MOUNTS";

/// Runs a test in a process with a mount namespace of its own. In that process, it returns a folder
/// with a new file system of `megabytes`. `None`: it was done there, or this user can't do it.
fn mounted(test: &str, megabytes: u64) -> Option<(tempfile::TempDir, PathBuf)> {
    if std::env::var_os(INSIDE).is_none() {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private"]);
        command.arg(std::env::current_exe().unwrap()).env(INSIDE, "1");
        let ran = command.args(["--exact", &format!("tests::mounts::{test}")]).output().unwrap();
        let [out, error] = [ran.stdout, ran.stderr].map(|text| String::from_utf8(text).unwrap());
        if error.starts_with("unshare: ") {
            println!("not run: {error}");
            return None;
        }
        assert!(ran.status.success() && out.contains("1 passed"), "{out}{error}");
        return None;
    }
    let root = tempfile::tempdir().unwrap();
    let at = root.path().join("share");
    fs::create_dir(&at).unwrap();
    let size = format!("size={megabytes}m");
    run("mount", &["-t", "tmpfs", "-o", &size, "none"], &at).unwrap();
    Some((root, at))
}

fn run(what: &str, arguments: &[&str], at: &FilePath) -> Result<(), String> {
    let ran = Command::new(what).args(arguments).arg(at).output().unwrap();
    match ran.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8(ran.stderr).unwrap()),
    }
}

/// Blocks of a write.
const WRITE: u64 = 256;

async fn open(folder: &FilePath, nonce: u128) -> Arc<Volume> {
    let location = format!("file://{}", folder.display());
    let (store, _) = ObjectOptions::new(&location).size(1 << 20).there().unwrap();
    let compression = Compression::None;
    let request = OpenRequest { size: Some(1 << 30), compression, ..request(nonce) };
    let tuning = Tuning { batch: 1024, inline: 0, dirty: 4096, ..tuning() };
    Volume::open(Arc::new(store), request, tuning).await.unwrap()
}

#[tokio::test]
async fn a_file_system_that_is_full_refuses_writes_and_takes_trims() {
    let test = "a_file_system_that_is_full_refuses_writes_and_takes_trims";
    let Some((_root, at)) = mounted(test, 64) else { return };
    let volume = open(&at.join("v"), 1).await;
    let mut took = 0;
    while write(&volume, took * WRITE, WRITE, took as u32 + 1).await.is_ok() {
        took += 1;
    }
    assert!((40..=56).contains(&took), "{took}");
    volume.flush().await.unwrap();
    // Another program takes the rest, and the space that is freed meanwhile.
    let mut other = fs::File::create(at.join("other")).unwrap();
    while volume.store.room().await.unwrap().free != 0 {
        let _ = other.write(&[1; 4096]);
    }
    volume.change(0, took / 2 * WRITE, Chunk::Zero).await.unwrap();
    volume.flush().await.unwrap();
    // Trimmed data is deleted meanwhile.
    while let Err(fault) = write(&volume, 0, WRITE, 99).await {
        assert!(matches!(&fault, Fault::Full(why) if why.contains("bytes are free")), "{fault}");
        passes(Duration::from_millis(10)).await;
    }
    volume.close().await.unwrap();
    let volume = open(&at.join("v"), 3).await;
    assert_eq!(read(&volume, 0, 1).await.unwrap(), [99]);
    assert_eq!(read(&volume, WRITE, 1).await.unwrap(), [0]);
    assert_eq!(read(&volume, (took - 1) * WRITE, 1).await.unwrap(), [took as u32]);
}

#[tokio::test]
async fn a_file_system_that_is_unmounted_under_a_volume_gets_what_is_written() {
    let test = "a_file_system_that_is_unmounted_under_a_volume_gets_what_is_written";
    let Some((root, at)) = mounted(test, 64) else { return };
    let other = root.path().join("other");
    fs::create_dir(&other).unwrap();
    run("mount", &["--bind", at.to_str().unwrap()], &other).unwrap();
    let volume = open(&at.join("v"), 1).await;
    write(&volume, 0, 4, 7).await.unwrap();
    volume.flush().await.unwrap();
    let busy = run("umount", &[], &at).unwrap_err();
    assert!(busy.contains("busy"), "{busy}");
    run("umount", &["--lazy"], &at).unwrap();
    write(&volume, 4, 4, 8).await.unwrap();
    volume.flush().await.unwrap();
    let closed = volume.close().await;
    assert!(matches!(&closed, Err(Fault::Moved(why)) if why.contains("share/v")), "{closed:?}");
    assert_eq!(fs::read_dir(&at).unwrap().count(), 0, "the bare mount point");
    let volume = open(&other.join("v"), 3).await;
    assert_eq!(read(&volume, 0, 8).await.unwrap(), [7, 7, 7, 7, 8, 8, 8, 8]);
    assert_eq!(volume.store.room().await.unwrap().total, 64 << 20);
}
