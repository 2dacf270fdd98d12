//! Opening files: what is refused, what is created, what is kept; and requests of threads that end.
#![cfg(not(loom))]

use std::fs;
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;

use crate::common::{Rig, STALL, submit};
use bytes::{Bytes, BytesMut};
use corewise_blockmq::{
    AlignedBuf, BlockDevice, BlockDeviceExt, Driver, IoErrorKind, Op, Queue, Request,
};
use corewise_drivers::{
    FileDriver, FileOptions, FileRings, IoPath, OnLoss, OpenError, OpenErrorKind, PathInUse, Stripe,
};

fn open(rig: &Rig, options: FileOptions) -> Result<FileDriver, OpenError> {
    FileDriver::open(options, &rig.wq)
}

/// Opens the file as soon as no other process has it.
fn once_free(rig: &Rig, path: &Path) -> FileDriver {
    loop {
        match open(rig, FileOptions::new(path)) {
            Err(error) if matches!(error.kind(), OpenErrorKind::InUse) => {}
            other => return other.unwrap(),
        }
    }
}

#[track_caller]
fn refused(rig: &Rig, options: FileOptions) -> String {
    match open(rig, options) {
        Ok(_) => panic!("it was opened"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_failed_open_names_the_path_and_leaves_no_file() {
    let rig = Rig::live();
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    let message = refused(&rig, FileOptions::new(&missing));
    assert!(message.contains("missing") && message.contains("give a size"), "{message}");
    assert!(refused(&rig, FileOptions::new(dir.path())).contains("neither a regular file"));
    assert!(refused(&rig, FileOptions::new("/dev/null").size(4096)).contains("neither"));
    let nowhere = dir.path().join("no/such/folder/disk");
    assert!(refused(&rig, FileOptions::new(nowhere).size(4096)).contains("creating it"));
    assert!(refused(&rig, FileOptions::new(&missing).size(1000)).contains("multiple"));
    assert!(refused(&rig, FileOptions::new(&missing).size(0)).contains("positive multiple"));
    assert!(
        refused(&rig, FileOptions::new(&missing).size(4096).block_size(1000)).contains("power")
    );
    assert!(
        refused(&rig, FileOptions::new(&missing).size(4096).read_only(true))
            .contains("does not exist")
    );
    // Created, and then too large for any file system: removed again.
    assert!(
        refused(&rig, FileOptions::new(&missing).size(i64::MAX as u64 & !511)).contains("size")
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_fifo_is_refused_without_waiting_for_its_other_end() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let rig = Rig::live();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fifo");
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    for read_only in [true, false] {
        let message = refused(&rig, FileOptions::new(&path).read_only(read_only));
        assert!(message.contains("neither a regular file"), "{message}");
    }
}

#[test]
fn an_existing_file_keeps_its_content_and_its_size() {
    let rig = Rig::live();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    fs::write(&path, vec![7; 4096]).unwrap();
    let driver = open(&rig, FileOptions::new(&path).size(4096)).unwrap();
    assert!(!driver.created());
    let queue = rig.queue(driver);
    assert!(queue.read_at(0, 4096).unwrap().iter().all(|&b| b == 7));
    queue.drain();
    drop(queue);
    let error = open(&rig, FileOptions::new(&path).size(8192)).err().unwrap();
    assert!(matches!(error.kind(), OpenErrorKind::SizeDiffers { found: 4096, asked: 8192 }));
    fs::write(&path, vec![7; 4097]).unwrap();
    assert!(refused(&rig, FileOptions::new(&path)).contains("4097"));
    assert_eq!(fs::read(&path).unwrap(), vec![7; 4097]);
}

#[test]
fn a_created_file_is_sparse_and_outlives_the_driver() {
    let rig = Rig::live();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    for round in 0..2 {
        let driver = open(&rig, FileOptions::new(&path).size(1 << 30)).unwrap();
        assert_eq!(driver.created(), round == 0);
        let queue = rig.queue(driver);
        if round == 0 {
            queue.execute(Request::write(1 << 29, vec![5; 512]).fua()).result.unwrap();
        } else {
            assert!(queue.read_at(1 << 29, 512).unwrap().iter().all(|&b| b == 5));
        }
        queue.drain();
    }
    assert!(fs::metadata(&path).unwrap().blocks() * 512 < 1 << 20);
}

#[test]
fn a_file_is_one_servers_at_a_time() {
    let rig = Rig::live();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let first = open(&rig, FileOptions::new(&path).size(4096)).unwrap();
    let shared = dir.path().join("shared");
    fs::write(&shared, [0; 4096]).unwrap();
    let readers: Vec<_> =
        (0..2).map(|_| open(&rig, FileOptions::new(&shared).read_only(true)).unwrap()).collect();
    // At the same time, since each waits for two seconds.
    thread::scope(|threads| {
        for path in [&path, &shared] {
            let rig = &rig;
            threads.spawn(move || {
                let error = open(rig, FileOptions::new(path)).err().unwrap();
                assert!(matches!(error.kind(), OpenErrorKind::InUse), "{error}");
            });
        }
    });
    assert!(path.exists(), "the loser must not remove the winner's file");
    drop((first, readers));
    open(&rig, FileOptions::new(&path)).unwrap();
    open(&rig, FileOptions::new(&shared)).unwrap();
}

#[test]
fn a_read_only_device_refuses_changes() {
    let rig = Rig::live();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    fs::write(&path, vec![7; 4096]).unwrap();
    let queue = rig.queue(open(&rig, FileOptions::new(&path).read_only(true)).unwrap());
    assert!(queue.geometry().read_only);
    assert_eq!(queue.write_at(0, vec![1; 512]).unwrap_err().kind(), IoErrorKind::ReadOnly);
    assert!(queue.read_at(0, 512).unwrap().iter().all(|&b| b == 7));
    queue.flush().unwrap();
}

#[test]
fn a_block_size_of_4096_is_kept_to() {
    let rig = Rig::live();
    let dir = tempfile::tempdir().unwrap();
    let options = FileOptions::new(dir.path().join("disk")).size(1 << 20).block_size(4096);
    let queue = rig.queue(open(&rig, options).unwrap());
    assert_eq!(queue.read_at(512, 4096).unwrap_err().kind(), IoErrorKind::InvalidInput);
    queue.write_at(4096, vec![1; 4096]).unwrap();
}

#[test]
fn a_discard_gives_space_back() {
    let rig = Rig::live();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    for io in [IoPath::Auto, IoPath::Threads] {
        let queue = rig.queue(open(&rig, FileOptions::new(&path).size(4 << 20).io(io)).unwrap());
        queue.write_at(0, vec![1; 4 << 20]).unwrap();
        queue.flush().unwrap();
        let full = fs::metadata(&path).unwrap().blocks();
        queue.discard(0, 4 << 20).unwrap();
        let empty = fs::metadata(&path).unwrap().blocks();
        assert!(empty < full, "{io:?}: {empty} of {full} blocks are left");
        assert_eq!(fs::metadata(&path).unwrap().len(), 4 << 20);
        // Drained, then dropped: closed and unlocked for the next round.
        queue.drain();
    }
}

#[test]
fn a_file_truncated_behind_our_back_gives_errors_not_zeroes() {
    let rig = Rig::live();
    let dir = tempfile::tempdir().unwrap();
    for (i, io) in [IoPath::Auto, IoPath::Threads].into_iter().enumerate() {
        let path = dir.path().join(format!("disk{i}"));
        let queue = rig.queue(open(&rig, FileOptions::new(&path).size(8192).io(io)).unwrap());
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
        let error = queue.read_at(2048, 4096).unwrap_err();
        assert_eq!(error.kind(), IoErrorKind::Io(5));
        assert!(error.to_string().contains("truncated"), "{error}");
        queue.read_at(0, 4096).unwrap();
    }
}

#[test]
fn a_truncated_file_never_grows_by_what_is_written_and_no_flush_succeeds_from_then_on() {
    let rig = Rig::live();
    let dir = tempfile::tempdir().unwrap();
    for (i, io) in [IoPath::Auto, IoPath::Threads].into_iter().enumerate() {
        let path = dir.path().join(format!("disk{i}"));
        let queue = rig.queue(open(&rig, FileOptions::new(&path).size(16384).io(io)).unwrap());
        queue.write_at(0, vec![7; 16384]).unwrap();
        queue.flush().unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        let length = || fs::metadata(&path).unwrap().len();
        file.set_len(4096).unwrap();
        // Behind the end, across it, and holes to be made.
        for error in [
            queue.write_at(8192, vec![8; 4096]).unwrap_err(),
            queue.write_at(0, vec![8; 8192]).unwrap_err(),
            queue.execute(Request::write(12288, vec![8; 4096]).fua()).result.unwrap_err(),
            queue.write_zeroes(4096, 4096).unwrap_err(),
            queue.discard(12288, 4096).unwrap_err(),
        ] {
            assert_eq!(error.kind(), IoErrorKind::Io(5), "{error}");
            let text = error.to_string();
            assert!(text.contains("truncated while in use, from 16384 bytes to 4096"), "{text}");
        }
        assert_eq!(length(), 4096, "it grew");
        // The rest is still there, and can be changed.
        queue.write_at(512, vec![9; 512]).unwrap();
        assert_eq!(queue.read_at(0, 512).unwrap(), vec![7; 512]);
        assert!(queue.flush().unwrap_err().to_string().contains("truncated"));
        // Its length comes back, the data doesn't.
        file.set_len(16384).unwrap();
        queue.write_at(8192, vec![8; 4096]).unwrap();
        let error = queue.flush().unwrap_err().to_string();
        assert!(error.contains("has its old size again, but not its content"), "{error}");
    }
}

#[test]
fn a_flush_finds_a_file_truncated_though_nothing_was_written_since() {
    let rig = Rig::live();
    let dir = tempfile::tempdir().unwrap();
    for (i, io) in [IoPath::Auto, IoPath::Threads].into_iter().enumerate() {
        let path = dir.path().join(format!("disk{i}"));
        let queue = rig.queue(open(&rig, FileOptions::new(&path).size(8192).io(io)).unwrap());
        queue.write_at(0, vec![7; 8192]).unwrap();
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(512).unwrap();
        assert!(queue.flush().unwrap_err().to_string().contains("truncated"));
    }
}

#[test]
fn a_file_that_is_unlinked_fails_its_flushes_and_one_that_is_lost_is_only_read_where_that_is_asked_for()
 {
    let rig = Rig::live();
    let dir = tempfile::tempdir().unwrap();
    for (i, io) in [IoPath::Auto, IoPath::Threads].into_iter().enumerate() {
        for (on_loss, unlink) in [OnLoss::Error, OnLoss::ReadOnly]
            .into_iter()
            .flat_map(|on_loss| [(on_loss, true), (on_loss, false)])
        {
            let path = dir.path().join(format!("disk{i}"));
            let (tx, told) = mpsc::channel();
            let options = FileOptions::new(&path).size(8192).io(io).on_loss(on_loss);
            let options = options.observer(move |event| tx.send(format!("{event:?}")).unwrap());
            let driver = Arc::new(open(&rig, options).unwrap());
            let queue = Queue::builder(&rig.machine, driver.clone()).build(&rig.wq);
            queue.write_at(0, vec![7; 8192]).unwrap();
            queue.flush().unwrap();
            driver.look().unwrap();
            let over: Arc<dyn BlockDevice> = queue.clone();
            let stripe = Stripe::new(vec![over], 512).unwrap();
            assert!(!stripe.info().read_only_latch.is_set());
            assert!(driver.lost().is_none() && !queue.geometry().read_only);
            if unlink {
                fs::remove_file(&path).unwrap();
            } else {
                fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
            }
            let word = if unlink { "unlinked" } else { "truncated" };
            assert!(driver.look().unwrap_err().to_string().contains(word));
            assert!(queue.flush().unwrap_err().to_string().contains(word));
            let written = queue.write_at(0, vec![8; 512]).map_err(|error| error.kind());
            let zeroed = queue.write_zeroes(512, 512).map_err(|error| error.kind());
            let expected = match on_loss {
                OnLoss::ReadOnly => Err(IoErrorKind::ReadOnly),
                _ => Ok(()),
            };
            assert_eq!((written, zeroed), (expected, expected), "{on_loss:?} {word} {io:?}");
            // A file that goes when the server ends can make nothing durable.
            for rq in [Request::write(0, vec![8; 512]), Request::write_zeroes(512, 512)] {
                submit(&*queue, rq.fua()).recv().unwrap().result.unwrap_err();
            }
            let first = if expected.is_ok() { 8 } else { 7 };
            assert_eq!(queue.read_at(0, 512).unwrap()[0], first);
            // Newcomers get the report once, as the owner did.
            assert_eq!(queue.geometry().read_only, expected.is_err());
            assert_eq!(stripe.info().read_only_latch.is_set(), expected.is_err());
            assert!(driver.lost().unwrap().to_string().contains(word));
            let condition = driver.condition().unwrap();
            assert!(condition.contains(word) && condition.starts_with("lost"), "{condition}");
            drop((queue, stripe, driver));
            let told: Vec<_> = told.iter().collect();
            assert!(told.len() == 1 && told[0].contains("Lost"), "{told:?}");
            let _ = fs::remove_file(&path);
        }
    }
}

#[test]
fn requests_of_threads_that_end_at_once_still_complete() {
    // A ring cancels what its submitting thread left to be done in its name; such requests have to
    // be carried on. The kernel doesn't do flushes and cold writes on the spot.
    let rig = Rig::live();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let mut file = fs::File::create(&path).unwrap();
    file.seek(SeekFrom::Start((16 << 20) - 1)).unwrap();
    file.write_all(&[0]).unwrap();
    drop(file);
    let queue = rig.queue(open(&rig, FileOptions::new(&path)).unwrap());
    let (tx, rx) = mpsc::channel();
    const THREADS: u64 = 200;
    for n in 0..THREADS {
        let (queue, tx) = (queue.clone(), tx.clone());
        std::thread::spawn(move || {
            for rq in [
                Request::write(n * 4096, vec![n as u8; 4096]),
                Request::flush(),
                Request::write((8 << 20) + n * 4096, vec![n as u8; 4096]).fua(),
            ] {
                let tx = tx.clone();
                queue.submit(rq.on_complete(move |done| tx.send(done.result).unwrap()));
            }
        })
        .join()
        .unwrap();
    }
    for _ in 0..3 * THREADS {
        rx.recv_timeout(STALL).unwrap().unwrap();
    }
    for n in 0..THREADS {
        for base in [0, 8 << 20] {
            let data = queue.read_at(base + n * 4096, 4096).unwrap();
            assert!(data.iter().all(|&b| b == n as u8));
        }
    }
}

#[test]
fn which_way_the_io_goes_is_told() {
    let rig = Rig::live();
    let dir = tempfile::tempdir().unwrap();
    let options = FileOptions::new(dir.path().join("disk")).size(4096);
    let threads = open(&rig, options.clone().io(IoPath::Threads)).unwrap();
    assert_eq!(threads.io_path_in_use(), PathInUse::Threads);
    assert_eq!(threads.io_path_in_use().to_string(), "pread/pwrite");
    assert_eq!(threads.direct(), None, "past the cache only where that is asked for");
    drop(threads);
    let auto = open(&rig, options.clone()).unwrap().io_path_in_use();
    let forced = open(&rig, options.io(IoPath::Uring)).is_ok();
    assert_eq!(auto == PathInUse::Uring, forced, "auto takes io_uring where it is to be had");
}

#[test]
fn devices_that_share_rings_come_and_go_while_others_are_at_work() {
    let rig = Rig::live();
    let dir = on_disk();
    let rings = FileRings::new(&rig.machine);
    let opened = |name: &str| {
        let options = FileOptions::new(dir.path().join(name)).size(1 << 20).rings(&rings);
        rig.queue(past_the_cache(&rig, options))
    };
    std::thread::scope(|scope| {
        for t in 0..4_u8 {
            let opened = &opened;
            scope.spawn(move || {
                for round in 0..40_u8 {
                    let queue = opened(&format!("{t}"));
                    let (tell, told) = mpsc::channel();
                    let byte = |n: u64| round.wrapping_mul(5) ^ t << 6 ^ n as u8;
                    for n in 0..32 {
                        let tell = tell.clone();
                        let write = Request::write(n * 4096, vec![byte(n); 4096]);
                        queue.submit(write.on_complete(move |done| tell.send(done).unwrap()));
                    }
                    for _ in 0..32 {
                        told.recv_timeout(STALL).unwrap().result.unwrap();
                    }
                    for n in 0..32 {
                        let tell = tell.clone();
                        let read = Request::read(n * 4096, 4096);
                        queue.submit(read.on_complete(move |done| tell.send(done).unwrap()));
                    }
                    // Some rounds don't wait: the last requests keep the device, and drop it where
                    // they end.
                    if round % 3 != 0 {
                        queue.drain();
                    }
                    drop(queue);
                    for _ in 0..32 {
                        let done = told.recv_timeout(STALL).unwrap();
                        let want = byte(done.offset / 4096);
                        let data = done.into_data().unwrap();
                        assert!(data.iter().all(|&b| b == want), "another request's bytes");
                    }
                }
            });
        }
    });
    // The rings outlive their handle while a device has them, and not for longer.
    let last = opened("last");
    drop(rings);
    last.write_at(0, vec![7; 4096]).unwrap();
    assert_eq!(last.read_at(0, 4096).unwrap(), vec![7; 4096]);
    last.drain();
}

#[test]
fn a_driver_dropped_by_its_last_request_on_its_own_thread_ends_in_peace() {
    let rig = Rig::live();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    for _ in 0..50 {
        let queue = rig.queue(open(&rig, FileOptions::new(&path).size(1 << 20)).unwrap());
        let (tx, rx) = mpsc::channel();
        queue.submit(Request::flush().on_complete(move |done| tx.send(done.op).unwrap()));
        drop(queue);
        assert_eq!(rx.recv_timeout(STALL).unwrap(), Op::Flush);
        // The lock goes with the driver, on any thread that drops it.
        once_free(&rig, &path);
    }
}

/// Makes a folder on a file system that goes past its cache, if there is one here. The tests' own
/// target is on disk; the folder for temporary files may be in memory.
fn on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Opens a device past the cache, if its file system does that.
fn past_the_cache(rig: &Rig, options: FileOptions) -> FileDriver {
    open(rig, options.clone().direct(true)).unwrap_or_else(|_| open(rig, options).unwrap())
}

#[test]
fn past_the_cache_every_memory_goes_in_pieces_and_sizes_of_any_kind() {
    let rig = Rig::live();
    let dir = on_disk();
    for io in [IoPath::Auto, IoPath::Threads] {
        let path = dir.path().join(format!("{io:?}"));
        let options = FileOptions::new(&path).size(4 << 20).io(io).direct(true);
        let driver = match open(&rig, options) {
            Ok(driver) => driver,
            // If nothing goes past the cache, there is nothing more to test.
            Err(error) => {
                assert!(matches!(error.kind(), OpenErrorKind::NotDirect { .. }), "{error}");
                continue;
            }
        };
        let align = driver.direct().unwrap();
        let queue = rig.queue(driver);
        // Small and large (through registered memory, and through memory of its own), aligned and
        // not.
        for (n, len) in [512, 4096, 16 << 10, 20 << 10, 1 << 20].into_iter().enumerate() {
            let bytes: Vec<u8> = (0..len).map(|i| (i / 3 + n) as u8).collect();
            let mut aligned = AlignedBuf::new(len, align.memory.max(4096) as usize);
            aligned.extend_from_slice(&bytes);
            let mut shifted = AlignedBuf::new(len + 1, 4096);
            shifted.extend_from_slice(&[0]);
            shifted.extend_from_slice(&bytes);
            let shifted = Bytes::from_owner(shifted).slice(1..);
            let (front, back) = bytes.split_at(len / 3);
            let pieces = vec![front.to_vec().into(), back.to_vec().into()];
            for rq in [
                Request::write(8192, aligned),
                Request::write(8192, shifted).fua(),
                Request::write_vectored(8192, pieces),
            ] {
                queue.write_zeroes(0, 4 << 20).unwrap();
                queue.execute(rq).result.unwrap();
                assert!(queue.read_at(8192, len).unwrap() == bytes, "{io:?} {len}");
                let into = AlignedBuf::new(len, 4096);
                let done = queue.execute(Request::read_into(8192, len, into));
                done.result.unwrap();
                assert!(done.payload.buffers()[0].as_slice() == bytes, "{io:?} {len}");
                // Head in front, so nothing of it is aligned, and in two pieces.
                let head = BytesMut::from(&b"head"[..]);
                let two = [(head.into(), len / 3), (BytesMut::new().into(), len - len / 3)];
                let done = queue.execute(Request::read_vectored(8192, two));
                done.result.unwrap();
                let [first, second] = done.payload.buffers() else { panic!("{:?}", done.payload) };
                assert_eq!(&first.as_slice()[..4], b"head");
                assert!(first.as_slice()[4..] == *front && second.as_slice() == back);
            }
        }
        // Another program reads the same by way of the cache.
        queue.write_at(0, vec![5; 512]).unwrap();
        assert_eq!(&fs::read(&path).unwrap()[..512], [5; 512]);
        queue.drain();
    }
}

/// Acts as the other half of the next test: a server that acknowledges, and then is killed.
#[test]
#[ignore = "runs in a child process of the next test"]
fn child_that_writes_flushes_and_waits_to_be_killed() {
    let path = std::env::var_os("COREWISE_TEST_DISK").unwrap();
    let rig = Rig::live();
    let queue = rig.queue(open(&rig, FileOptions::new(path).size(1 << 20)).unwrap());
    queue.write_at(0, vec![1; 64 << 10]).unwrap();
    queue.flush().unwrap();
    queue.execute(Request::write(64 << 10, vec![2; 4096]).fua()).result.unwrap();
    // More that is never acknowledged, so that the kill finds the device at work.
    for n in 0..100 {
        queue.submit(Request::write((128 << 10) + n * 4096, vec![3; 4096]));
    }
    println!("acknowledged");
    loop {
        std::thread::park();
    }
}

#[test]
fn flushed_data_and_the_right_to_open_the_file_survive_a_killed_process() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture"])
        .arg("file::child_that_writes_flushes_and_waits_to_be_killed")
        .env("COREWISE_TEST_DISK", &path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let acknowledged = lines.map_while(Result::ok).any(|line| line.contains("acknowledged"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(acknowledged, "the child died before it had acknowledged anything");
    let rig = Rig::live();
    // The child's requests in flight may hold the lock for a moment.
    let queue = rig.queue(once_free(&rig, &path));
    assert!(queue.read_at(0, 64 << 10).unwrap().iter().all(|&b| b == 1));
    assert!(queue.read_at(64 << 10, 4096).unwrap().iter().all(|&b| b == 2));
}

#[test]
fn a_truncation_that_a_read_found_is_remembered_when_the_length_is_restored() {
    let rig = Rig::live();
    let dir = tempfile::tempdir().unwrap();
    for (i, io) in [IoPath::Auto, IoPath::Threads].into_iter().enumerate() {
        let path = dir.path().join(format!("disk{i}"));
        let queue = rig.queue(open(&rig, FileOptions::new(&path).size(8192).io(io)).unwrap());
        queue.write_at(0, vec![7; 8192]).unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(512).unwrap();
        assert!(queue.read_at(4096, 512).unwrap_err().to_string().contains("truncated"));
        file.set_len(8192).unwrap();
        let error = queue.flush().unwrap_err().to_string();
        assert!(error.contains("truncated") && error.contains("has its old size again"), "{error}");
    }
}

#[test]
fn a_file_grows_while_requests_flow_and_what_is_added_reads_as_zeroes() {
    let rig = Rig::live();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    for io in [IoPath::Auto, IoPath::Threads] {
        fs::write(&path, [1; 4096]).unwrap();
        let queue = rig.queue(open(&rig, FileOptions::new(&path).io(io)).unwrap());
        let beyond = queue.read_at(4096, 512).unwrap_err();
        assert_eq!(beyond.kind(), IoErrorKind::OutOfRange);
        assert_eq!(queue.grow(Some(8192)).unwrap(), 8192);
        assert_eq!(queue.geometry().size, 8192);
        assert_eq!(queue.read_at(4096, 512).unwrap()[..], [0; 512]);
        queue.write_at(7680, Bytes::from_static(&[2; 512])).unwrap();
        queue.flush().unwrap();
        for (size, kind) in [(4096, IoErrorKind::InvalidInput), (9000, IoErrorKind::InvalidInput)] {
            assert_eq!(queue.grow(Some(size)).unwrap_err().kind(), kind);
        }
        assert_eq!((queue.geometry().size, fs::metadata(&path).unwrap().len()), (8192, 8192));
        fs::File::options().write(true).open(&path).unwrap().set_len(12_800).unwrap();
        assert_eq!(queue.grow(None).unwrap(), 12_800);
        fs::File::options().write(true).open(&path).unwrap().set_len(8192).unwrap();
        assert!(queue.flush().is_err(), "it has to stay as long as it grew");
    }
    let queue = rig.queue(open(&rig, FileOptions::new(&path).read_only(true)).unwrap());
    assert_eq!(queue.grow(Some(16_384)).unwrap_err().kind(), IoErrorKind::NoSpace);
}
