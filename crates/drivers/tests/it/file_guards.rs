//! Files, and write logs, that another program renames, replaces, unlinks or truncates while a
//! device uses them.
#![cfg(not(loom))]

use std::fs;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use crate::common::Rig;
use corewise_blockmq::{BlockDeviceExt, Driver, Queue};
use corewise_drivers::{FileDriver, FileEvent, FileOptions, IoPath, OpenErrorKind};
use rustix::fs::OFlags;

/// Opens a device over a file, and returns it with the receiver of its events.
fn device(rig: &Rig, options: FileOptions) -> (Arc<FileDriver>, Arc<Queue>, Receiver<String>) {
    let (tell, told) = channel();
    let options = options.observer(move |event| {
        let event = match event {
            FileEvent::Lost { why } => format!("lost: {why}"),
            FileEvent::Moved { why } => format!("moved: {why}"),
            FileEvent::Back => "back".to_owned(),
            _ => "something else".to_owned(),
        };
        tell.send(event).unwrap();
    });
    let driver = Arc::new(FileDriver::open(options, &rig.wq).unwrap());
    let queue = Queue::builder(&rig.machine, driver.clone()).build(&rig.wq);
    (driver, queue, told)
}

fn rename(from: &Path, to: &Path) {
    fs::rename(from, to).unwrap();
}

#[test]
fn a_file_that_is_not_in_its_place_is_told_once_and_keeps_its_promises_until_it_is_back() {
    let rig = Rig::live();
    let dir = tempfile::tempdir().unwrap();
    let [path, other] = ["disk", "elsewhere"].map(|name| dir.path().join(name));
    for io in [IoPath::Auto, IoPath::Threads] {
        let (driver, queue, told) = device(&rig, FileOptions::new(&path).size(8192).io(io));
        queue.write_at(0, vec![7; 8192]).unwrap();
        queue.flush().unwrap();
        driver.look().unwrap();
        assert!(driver.moved().is_none() && driver.condition().is_none());
        for replaced in [false, true] {
            rename(&path, &other);
            if replaced {
                fs::write(&path, [1; 8192]).unwrap();
            }
            for _ in 0..2 {
                let why = driver.look().unwrap_err().to_string();
                let words = if replaced { "leads to another file" } else { "leads to no file" };
                assert!(why.contains(words) && why.contains("elsewhere"), "{io:?}: {why}");
            }
            assert!(driver.condition().unwrap().starts_with("moved: the path"));
            // It has what is flushed, wherever it is.
            queue.write_at(512, vec![8; 512]).unwrap();
            queue.flush().unwrap();
            assert_eq!(fs::read(&other).unwrap()[512..1024], [8; 512]);
            rename(&other, &path);
            let displaced = driver.displaced().unwrap();
            assert!(!displaced.blocks_changes && displaced.todo.contains("the file back"));
            driver.look().unwrap();
            assert!(driver.moved().is_none() && driver.lost().is_none());
            assert!(driver.condition().is_none());
            let told: Vec<String> = told.try_iter().collect();
            assert!(told.len() == 2 && told[0].starts_with("moved: "), "{told:?}");
            assert_eq!(told[1], "back");
        }
        // The name is another file's, and none of this file.
        fs::write(&other, [1; 8192]).unwrap();
        rename(&other, &path);
        assert!(driver.look().unwrap_err().to_string().contains("unlinked"));
        assert!(queue.flush().unwrap_err().to_string().contains("unlinked"));
        assert!(told.try_iter().eq([format!("lost: {}", driver.lost().unwrap())]));
        drop((driver, queue));
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn nothing_is_changed_that_a_write_log_would_not_have_and_the_log_goes_on_when_it_is_back() {
    let rig = Rig::live();
    let dir = tempfile::tempdir().unwrap();
    let [path, log, other] = ["disk", "log", "elsewhere"].map(|name| dir.path().join(name));
    let options = || FileOptions::new(&path).size(8192).write_log(&log);
    let (driver, queue, told) = device(&rig, options());
    queue.write_at(0, vec![7; 512]).unwrap();
    queue.flush().unwrap();
    rename(&log, &other);
    fs::write(&log, "").unwrap();
    for _ in 0..2 {
        let why = queue.write_at(0, vec![8; 512]).unwrap_err().to_string();
        assert!(why.contains("the write log") && why.contains("leads to another file"), "{why}");
    }
    queue.flush().unwrap_err();
    queue.write_zeroes(0, 512).unwrap_err();
    queue.discard(0, 512).unwrap_err();
    assert_eq!(queue.read_at(0, 512).unwrap(), vec![7; 512], "nothing was changed");
    assert!(driver.condition().unwrap().starts_with("the device refuses changes: the write log"));
    let displaced = driver.displaced().unwrap();
    assert!(displaced.blocks_changes && displaced.todo.starts_with("Put the write log back"));
    rename(&other, &log);
    driver.look().unwrap();
    queue.write_at(0, vec![9; 512]).unwrap();
    let told: Vec<String> = told.try_iter().collect();
    assert!(told.len() == 2 && told[0].contains("the write log") && told[1] == "back", "{told:?}");
    queue.drain();
    drop((driver, queue));
    for unlinked in [true, false] {
        let (driver, queue, told) = device(&rig, options());
        let (cut, todo) = match unlinked {
            true => ("unlinked", "Restart the server, which begins a new write log"),
            false => ("truncated", "Move the write log away and restart the server"),
        };
        match unlinked {
            true => fs::remove_file(&log).unwrap(),
            false => fs::File::options().write(true).open(&log).unwrap().set_len(512).unwrap(),
        }
        assert!(driver.look().unwrap_err().to_string().contains(cut));
        let why = queue.write_at(0, vec![1; 512]).unwrap_err().to_string();
        assert!(why.contains(cut) && why.contains(todo), "{why}");
        assert!(driver.displaced().unwrap().todo.starts_with(todo));
        assert_eq!(queue.read_at(0, 512).unwrap(), vec![9; 512]);
        assert!(told.try_iter().count() == 1);
        queue.drain();
        drop((driver, queue));
        let _ = fs::remove_file(&log);
    }
}

/// A loop device over a file, until it is dropped.
struct LoopDevice(String);

impl LoopDevice {
    /// Makes the loop device; `None`: this machine, or its user, has none.
    fn over(path: &Path) -> Option<LoopDevice> {
        let ran = Command::new("losetup").args(["-f", "--show"]).arg(path).output().ok()?;
        let name = String::from_utf8(ran.stdout).ok()?.trim().to_owned();
        (ran.status.success() && !name.is_empty()).then_some(LoopDevice(name))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        drop(Command::new("losetup").args(["-d", &self.0]).status());
    }
}

#[test]
fn a_disk_is_one_writers_under_whatever_name_and_none_that_is_claimed() {
    let rig = Rig::live();
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    fs::write(&image, vec![0; 1 << 20]).unwrap();
    let Some(disk) = LoopDevice::over(&image) else { return println!("no loop device here") };
    let other = dir.path().join("another-name");
    let number = fs::metadata(&disk.0).unwrap().rdev();
    let number = [rustix::fs::major(number), rustix::fs::minor(number)].map(|n| n.to_string());
    let made = Command::new("mknod").arg(&other).arg("b").args(number).status().unwrap();
    assert!(made.success());
    let open = |path: &Path, read_only| {
        FileDriver::open(FileOptions::new(path).read_only(read_only), &rig.wq)
    };
    let writer = open(Path::new(&disk.0), false).unwrap();
    let refused = open(&other, false).err().unwrap();
    assert!(matches!(refused.kind(), OpenErrorKind::Claimed), "{refused}");
    // A reader claims nothing, and so isn't kept away.
    drop(open(&other, true).unwrap());
    drop(writer);
    // As a mount does.
    let mut claim = fs::File::options();
    claim.read(true).custom_flags(OFlags::EXCL.bits() as i32);
    let claimed = claim.open(&disk.0).unwrap();
    assert!(open(&other, false).is_err_and(|why| matches!(why.kind(), OpenErrorKind::Claimed)));
    drop(claimed);
    drop(open(&other, false).unwrap());
}
