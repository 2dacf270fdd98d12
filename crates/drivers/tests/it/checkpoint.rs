//! Checkpoints: what changed since, and the device as it was, on disks in memory.
#![cfg(not(loom))]

use std::sync::{Arc, mpsc};

use crate::common::{Held, Rig, Rng, STALL, submit};
use corewise_blockmq::{
    BlockDevice, BlockDeviceExt, Dispatch, IoError, IoErrorKind, Op, Queue, Request,
};
use corewise_drivers::{
    Checkpoint, CheckpointDriver, CheckpointEvent, CheckpointOptions, Fault, Faulty, Memory,
};
use corewise_sync::Mutex;

const BLOCK: u64 = 64 << 10;
const SIZE: u64 = 100 * BLOCK;

fn disk(rig: &Rig, size: u64) -> Arc<dyn BlockDevice> {
    rig.queue(Memory::new(size).unwrap())
}

fn record_of(rig: &Rig, size: u64) -> Arc<dyn BlockDevice> {
    disk(rig, CheckpointDriver::record_size(size, BLOCK as u32))
}

struct Up {
    driver: Arc<CheckpointDriver>,
    queue: Arc<Queue>,
    faults: Vec<String>,
}

fn open_with(
    rig: &Rig,
    data: &Arc<dyn BlockDevice>,
    record: &Arc<dyn BlockDevice>,
    options: CheckpointOptions,
) -> Result<Up, String> {
    let opened = CheckpointDriver::open(data.clone(), record.clone(), options, &rig.wq);
    let (driver, faults) = opened.map_err(|error| error.to_string())?;
    let driver = Arc::new(driver);
    let queue = Queue::builder(&rig.machine, driver.clone()).build(&rig.wq);
    Ok(Up { driver, queue, faults })
}

fn open(rig: &Rig, data: &Arc<dyn BlockDevice>, record: &Arc<dyn BlockDevice>) -> Up {
    open_with(rig, data, record, CheckpointOptions::new()).unwrap()
}

impl Up {
    fn try_take(&self, name: &str) -> Result<Checkpoint, IoError> {
        let frozen = self.queue.freeze();
        self.driver.take(Some(name), &frozen)
    }

    fn take(&self, name: &str) -> Checkpoint {
        self.try_take(name).unwrap()
    }

    /// Returns the numbers of the blocks that changed since a checkpoint.
    fn changed(&self, name: &str) -> Vec<u64> {
        let size = self.queue.geometry().size;
        let stretches = self.driver.changed(name, 0, size, usize::MAX).unwrap();
        assert_eq!(stretches.iter().map(|(len, _)| len).sum::<u64>(), size);
        let mut at = 0;
        let mut blocks = Vec::new();
        for (len, changed) in stretches {
            blocks.extend((at / BLOCK..(at + len).div_ceil(BLOCK)).filter(|_| changed));
            at += len;
        }
        blocks
    }

    fn write(&self, block: u64, byte: u8) {
        self.queue.write_at(block * BLOCK, vec![byte; 4096]).unwrap();
    }

    /// Ends in order.
    fn close(self) {
        self.queue.drain();
        self.driver.settle();
    }

    /// Ends as a kill does.
    fn kill(self) {
        self.queue.drain();
    }

    fn image(&self, rig: &Rig, name: &str) -> Result<Arc<Queue>, IoError> {
        Ok(rig.queue(self.driver.image(name)?))
    }
}

fn names(up: &Up) -> Vec<String> {
    up.driver.names()
}

#[test]
fn a_checkpoint_knows_which_blocks_changed_since_in_any_way() {
    let rig = Rig::live();
    let (data, record) = (disk(&rig, SIZE), record_of(&rig, SIZE));
    let up = open(&rig, &data, &record);
    up.write(1, 1);
    up.take("monday");
    assert_eq!(up.changed("monday"), Vec::<u64>::new());
    up.write(3, 1);
    up.queue.write_at(6 * BLOCK - 512, vec![7; 1024]).unwrap();
    up.queue.discard(10 * BLOCK, 2 * BLOCK).unwrap();
    up.queue.write_zeroes(20 * BLOCK + 512, 512).unwrap();
    up.queue.flush().unwrap();
    assert_eq!(up.changed("monday"), [3, 5, 6, 10, 11, 20]);
    up.take("tuesday");
    up.write(99, 1);
    assert_eq!(up.changed("tuesday"), [99]);
    assert_eq!(up.changed("monday"), [3, 5, 6, 10, 11, 20, 99]);
    assert!(up.driver.changed("sunday", 0, SIZE, 9).is_none());
    let list = up.driver.list();
    let shown: Vec<_> = list.iter().map(|one| (&*one.name, one.changed / BLOCK)).collect();
    assert_eq!(shown, [("monday", 7), ("tuesday", 1)]);
    assert_eq!(
        up.driver.changed("monday", 3 * BLOCK + 512, BLOCK, 1).unwrap(),
        [(BLOCK - 512, true)],
        "as many stretches as asked for"
    );
}

#[test]
fn what_changed_is_exact_after_a_clean_stop_and_not_too_little_after_a_kill() {
    let rig = Rig::live();
    let (data, record) = (disk(&rig, SIZE), record_of(&rig, SIZE));
    let up = open(&rig, &data, &record);
    up.take("a");
    up.write(40, 1);
    up.close();
    let up = open(&rig, &data, &record);
    assert_eq!(up.changed("a"), [40]);
    up.write(41, 1);
    up.take("b");
    up.write(80, 1);
    up.kill();
    let up = open(&rig, &data, &record);
    assert_eq!((names(&up), up.faults.len()), (vec!["a".to_string(), "b".to_string()], 0));
    // The groups of both writes were open.
    let expected: Vec<u64> = (32..48).chain(80..96).collect();
    assert_eq!(up.changed("b"), expected);
    assert_eq!(up.changed("a"), expected);
    up.kill();
    let up = open(&rig, &data, &record);
    assert_eq!(up.changed("b"), expected, "a second kill adds nothing");
}

#[test]
fn a_device_without_a_checkpoint_writes_nothing_to_its_record() {
    let rig = Rig::live();
    let (data, record) = (disk(&rig, SIZE), record_of(&rig, SIZE));
    let up = open(&rig, &data, &record);
    let page = || record.read_at(8192, 4096).unwrap();
    up.write(3, 1);
    assert!(page().iter().all(|byte| *byte == 0));
    up.take("a");
    up.write(3, 1);
    assert!(page().iter().any(|byte| *byte != 0));
    up.driver.delete("a").unwrap();
    let before = page();
    up.write(90, 1);
    assert_eq!(page(), before);
    assert_eq!(up.driver.delete("a").unwrap_err().kind(), IoErrorKind::InvalidInput);
}

#[test]
fn a_deleted_checkpoint_leaves_the_others_as_they_were() {
    let rig = Rig::live();
    let (data, record) = (disk(&rig, SIZE), record_of(&rig, SIZE));
    let up = open(&rig, &data, &record);
    for (n, name) in ["a", "b", "c"].into_iter().enumerate() {
        up.take(name);
        up.write(n as u64, 1);
    }
    up.driver.delete("b").unwrap();
    assert_eq!((up.changed("a"), up.changed("c")), (vec![0, 1, 2], vec![2]));
    up.close();
    let up = open(&rig, &data, &record);
    assert_eq!(names(&up), ["a", "c"]);
    assert_eq!((up.changed("a"), up.changed("c")), (vec![0, 1, 2], vec![2]));
}

#[test]
fn names_are_refused_that_are_none_or_taken_or_too_many() {
    let rig = Rig::live();
    let (data, record) = (disk(&rig, SIZE), record_of(&rig, SIZE));
    let up = open(&rig, &data, &record);
    let kind = |name: &str| up.try_take(name).map(drop).map_err(|error| error.kind());
    for bad in ["", "a b", "a@b", "ä", &"x".repeat(65)] {
        assert_eq!(kind(bad), Err(IoErrorKind::InvalidInput), "{bad:?}");
    }
    assert_eq!((kind("a"), kind("a")), (Ok(()), Err(IoErrorKind::InvalidInput)));
    for n in 1..48 {
        assert_eq!(kind(&format!("n{n}")), Ok(()));
    }
    assert_eq!(kind("b"), Err(IoErrorKind::NoSpace));
    up.driver.delete("n7").unwrap();
    assert_eq!(kind("b"), Ok(()));
    drop(up);
    assert_eq!(names(&open(&rig, &data, &record)).len(), 48);
}

#[test]
fn a_damaged_page_counts_as_changed_and_a_damaged_head_has_a_twin() {
    let rig = Rig::live();
    let size = 5000 * BLOCK;
    // Nothing is written to the data: it may be anything.
    let data: Arc<dyn BlockDevice> = rig.queue(corewise_drivers::Null::new(size));
    let record = record_of(&rig, size);
    let up = open(&rig, &data, &record);
    up.take("a");
    up.write(0, 1);
    up.write(2032, 1);
    up.close();
    let flip = |at: u64| {
        let mut bytes = record.read_at(at / 512 * 512, 512).unwrap();
        bytes[(at % 512) as usize] ^= 1;
        record.write_at(at / 512 * 512, bytes).unwrap();
    };
    flip(8192 + 3000);
    flip(100);
    let up = open(&rig, &data, &record);
    assert_eq!(up.faults.len(), 2, "{:?}", up.faults);
    assert_eq!(up.changed("a"), (0..=2032).collect::<Vec<_>>());
    up.close();
    let up = open(&rig, &data, &record);
    assert_eq!((up.faults.len(), up.changed("a").len()), (0, 2033), "it was repaired");
    up.close();
    [100, 4096 + 100].into_iter().for_each(flip);
    let error = open_with(&rig, &data, &record, CheckpointOptions::new()).err().unwrap();
    assert!(error.contains("or a damaged one"), "{error}");
}

#[test]
fn a_record_whose_heads_are_zeroes_is_new_only_if_all_of_it_is() {
    let rig = Rig::live();
    let (data, record) = (disk(&rig, SIZE), record_of(&rig, SIZE));
    let zero = |from: u64, len: usize| record.write_at(from, vec![0; len]).unwrap();
    let refused = || open_with(&rig, &data, &record, CheckpointOptions::new()).err();
    let up = open(&rig, &data, &record);
    up.take("a");
    up.close();
    zero(0, 8192);
    let error = refused().expect("the end of a record is there");
    assert!(error.contains("or a damaged one"), "{error}");
    let size = record.geometry().size;
    zero(8192, size as usize - 8192);
    // A kill in the first start leaves one head, or both without the end.
    open(&rig, &data, &record).kill();
    zero(4096, size as usize - 4096);
    let up = open(&rig, &data, &record);
    assert_eq!(up.faults, [""; 0]);
    up.take("b");
    up.write(3, 1);
    up.close();
    assert_eq!(open(&rig, &data, &record).changed("b"), [3]);
}

#[test]
fn a_record_that_was_cut_off_and_filled_with_zeroes_is_told_and_not_believed() {
    let rig = Rig::live();
    let (data, record) = (disk(&rig, SIZE), record_of(&rig, SIZE));
    let up = open(&rig, &data, &record);
    up.take("a");
    up.write(3, 1);
    up.close();
    let size = record.geometry().size;
    record.write_at(8192, vec![0; size as usize - 8192]).unwrap();
    let up = open(&rig, &data, &record);
    assert!(up.faults[0].contains("the end of the record is missing"), "{:?}", up.faults);
    assert_eq!(up.changed("a"), (0..100).collect::<Vec<_>>());
    up.close();
    let up = open(&rig, &data, &record);
    assert_eq!((up.faults.len(), up.changed("a").len()), (0, 100));
}

#[test]
fn a_record_of_something_else_is_refused() {
    let rig = Rig::live();
    let (data, record) = (disk(&rig, SIZE), record_of(&rig, SIZE));
    drop(open(&rig, &data, &record));
    let options = CheckpointOptions::new;
    let refused = |data: &_, record: &_, options| open_with(&rig, data, record, options).err();
    let small = disk(&rig, 50 * BLOCK);
    assert!(refused(&small, &record, options()).unwrap().contains("Use the record"));
    let error = refused(&data, &record, options().block(128 << 10)).unwrap();
    assert!(error.contains("has blocks of 65536 bytes, not 131072"), "{error}");
    let error = refused(&data, &record, options().block(1000)).unwrap();
    assert!(error.contains("power of two"), "{error}");
    let error = refused(&data, &disk(&rig, 8192), options()).unwrap();
    assert!(error.contains("are needed"), "{error}");
    let foreign = record_of(&rig, SIZE);
    foreign.write_at(0, vec![1; 512]).unwrap();
    let error = refused(&data, &foreign, options()).unwrap();
    assert!(error.contains("holds no record of checkpoints"), "{error}");
    assert_eq!(foreign.read_at(0, 512).unwrap(), [1; 512][..], "and stays as it was");
}

#[test]
fn the_blocks_that_a_device_has_grown_by_count_as_changed() {
    let rig = Rig::live();
    let record = record_of(&rig, 2 * SIZE);
    let small = disk(&rig, SIZE - 512);
    let up = open(&rig, &small, &record);
    up.take("a");
    up.write(2, 1);
    up.close();
    let up = open(&rig, &disk(&rig, 2 * SIZE), &record);
    let expected: Vec<u64> = std::iter::once(2).chain(99..200).collect();
    assert_eq!(up.changed("a"), expected);
    up.close();
    assert!(open_with(&rig, &small, &record, CheckpointOptions::new()).is_err());
}

#[test]
fn a_change_whose_block_cannot_be_recorded_fails_and_leaves_the_device_alone() {
    let rig = Rig::live();
    let (data, memory) = (disk(&rig, SIZE), record_of(&rig, SIZE));
    let failing =
        Faulty::new(memory.clone(), vec![Fault::new().on(&[Op::Write]).range(8192..12288)], 1);
    let record: Arc<dyn BlockDevice> = rig.queue(failing);
    let up = open(&rig, &data, &record);
    up.take("a");
    let error = up.queue.write_at(0, vec![1; 512]).unwrap_err();
    assert!(error.to_string().contains("the record of checkpoints can't be written"), "{error}");
    assert!(up.queue.write_at(0, vec![1; 512]).is_err(), "and the next one, too");
    assert_eq!(data.read_at(0, 512).unwrap(), [0; 512][..]);
    up.kill();
    let up = open(&rig, &data, &memory);
    up.write(0, 1);
    assert_eq!(up.changed("a"), [0]);
}

#[test]
fn a_checkpoint_that_cannot_be_written_is_none_and_nothing_is_lost_by_it() {
    let rig = Rig::live();
    let (data, memory) = (disk(&rig, SIZE), record_of(&rig, SIZE));
    let up = open(&rig, &data, &memory);
    up.take("a");
    up.close();
    // The opener writes both copies of its head, and the next head's second copy fails.
    let held = Held { geometry: Some(memory.geometry()), ..Held::default() };
    let theirs = memory.clone();
    let writes = Mutex::new(0);
    held.instead(move |rq| {
        let bad = rq.op() == Op::Write && rq.offset() == 0 && {
            *writes.lock() += 1;
            *writes.lock() == 2
        };
        match bad {
            true => rq.complete(Err(IoError::new(IoErrorKind::Io(5)))),
            false => crate::common::pass_on(rq, &theirs),
        }
        Dispatch::Started
    });
    let record: Arc<dyn BlockDevice> = rig.queue(held);
    let up = open(&rig, &data, &record);
    let error = up.try_take("b").unwrap_err();
    assert_eq!(error.kind(), IoErrorKind::Io(5));
    assert_eq!(names(&up), ["a"]);
    up.write(7, 1);
    assert_eq!(up.changed("a"), [7]);
    up.close();
    // The head that failed is there all the same: its checkpoint is true.
    let up = open(&rig, &data, &memory);
    assert_eq!(names(&up), ["a", "b"]);
    assert_eq!(up.changed("b"), [7]);
}

#[test]
fn changes_wait_for_the_record_and_go_on_once_it_is_written() {
    let rig = Rig::live();
    let (data, memory) = (disk(&rig, SIZE), record_of(&rig, SIZE));
    let held = Held { geometry: Some(memory.geometry()), ..Held::default() };
    let theirs = memory.clone();
    let pass = move |rq| {
        crate::common::pass_on(rq, &theirs);
        Dispatch::Started
    };
    held.instead(pass.clone());
    let record: Arc<dyn BlockDevice> = rig.queue(held.clone());
    let up = open(&rig, &data, &record);
    up.take("a");
    held.keep();
    let first = submit(&*up.queue, Request::write(0, vec![1; 512]));
    let second = submit(&*up.queue, Request::write(BLOCK, vec![1; 512]));
    while held.held() == 0 {
        std::thread::yield_now();
    }
    assert!(first.try_recv().is_err() && second.try_recv().is_err());
    assert_eq!(data.read_at(0, 512).unwrap(), [0; 512][..], "the record comes first");
    held.instead(pass);
    while let Some(rq) = held.requests.lock().pop_front() {
        crate::common::pass_on(rq, &memory);
    }
    assert!(first.recv_timeout(STALL).unwrap().result.is_ok());
    assert!(second.recv_timeout(STALL).unwrap().result.is_ok());
    assert_eq!(up.changed("a"), [0, 1]);
}

fn with_copies(rig: &Rig, blocks: u64) -> (CheckpointOptions, mpsc::Receiver<CheckpointEvent>) {
    let (tx, rx) = mpsc::channel();
    let tx = Mutex::new(tx);
    let options = CheckpointOptions::new().copies(disk(rig, blocks * BLOCK)).observer(
        move |event: &CheckpointEvent| {
            let _ = tx.lock().send(event.clone());
        },
    );
    (options, rx)
}

#[test]
fn an_image_shows_the_device_as_it_was() {
    let rig = Rig::live();
    let (data, record) = (disk(&rig, SIZE), record_of(&rig, SIZE));
    let (options, events) = with_copies(&rig, 20);
    let up = open_with(&rig, &data, &record, options).unwrap();
    (0..10).for_each(|n| up.write(n, n as u8 + 1));
    assert!(up.take("a").has_image);
    let image = up.image(&rig, "a").unwrap();
    let was = data.read_at(0, SIZE as usize / 2).unwrap();
    (0..10).for_each(|n| up.write(n, 99));
    up.queue.discard(3 * BLOCK, BLOCK).unwrap();
    up.write(20, 5);
    up.write(20, 6);
    assert_eq!(image.read_at(0, SIZE as usize / 2).unwrap(), was);
    assert_eq!(
        image.read_at(7 * BLOCK + 512, 4096).unwrap(),
        was[7 * BLOCK as usize + 512..][..4096]
    );
    assert!(image.write_at(0, vec![1; 512]).is_err());
    assert_eq!(up.driver.status().copied, 11 * BLOCK);
    up.take("b");
    let error = image.read_at(0, 4096).unwrap_err();
    assert!(error.to_string().contains("'b' is newer"), "{error}");
    assert!(up.image(&rig, "a").is_err());
    let list = up.driver.list();
    assert_eq!(list.iter().map(|one| one.has_image).collect::<Vec<_>>(), [false, true]);
    up.driver.delete("b").unwrap();
    assert!(up.image(&rig, "b").is_err());
    up.close();
    assert!(events.try_recv().is_err(), "no image ended early");
    let (options, _) = with_copies(&rig, 20);
    let up = open_with(&rig, &data, &record, options).unwrap();
    let error = up.image(&rig, "a").map(drop).unwrap_err();
    assert!(error.to_string().contains("Take another checkpoint"), "{error}");
}

#[test]
fn an_image_ends_with_a_reason_when_its_copies_are_used_up_and_writes_go_on() {
    let rig = Rig::live();
    let (data, record) = (disk(&rig, SIZE), record_of(&rig, SIZE));
    let (options, events) = with_copies(&rig, 4);
    let up = open_with(&rig, &data, &record, options).unwrap();
    up.take("a");
    let image = up.image(&rig, "a").unwrap();
    (0..4).for_each(|n| up.write(n, 9));
    assert_eq!(image.read_at(0, 4096).unwrap(), [0; 4096][..]);
    up.write(4, 9);
    let error = image.read_at(0, 4096).unwrap_err();
    assert!(error.to_string().contains("262144 bytes of copies were used up"), "{error}");
    assert!(image.extents_of(0, SIZE, 4).is_err());
    let CheckpointEvent::ImageEnded { checkpoint, why } = events.recv_timeout(STALL).unwrap()
    else {
        panic!()
    };
    assert_eq!(checkpoint, "a");
    assert!(why.contains("more room"), "{why}");
    assert_eq!(up.driver.status().lost, Some((checkpoint, why)));
    assert_eq!(up.changed("a"), [0, 1, 2, 3, 4], "what changed is known all the same");
    up.take("b");
    assert!(up.image(&rig, "b").is_ok());
    assert_eq!(up.driver.status().lost, None, "a newer one can be read");
    (0..5).for_each(|n| up.write(n, 9));
    let error = up.image(&rig, "a").map(drop).unwrap_err();
    assert!(error.to_string().contains("'b' is newer"), "{error}");
    assert_eq!(up.driver.status().lost.unwrap().0, "b");
    up.driver.delete("b").unwrap();
    assert_eq!(up.driver.status().lost, None);
}

#[test]
fn an_image_knows_holes_where_nothing_has_changed() {
    let rig = Rig::live();
    let (data, record) = (disk(&rig, SIZE), record_of(&rig, SIZE));
    let (options, _events) = with_copies(&rig, 20);
    let up = open_with(&rig, &data, &record, options).unwrap();
    up.take("a");
    let image = up.image(&rig, "a").unwrap();
    let kinds = || -> Vec<_> {
        let extents = image.extents_of(0, SIZE, 100).unwrap();
        extents.iter().map(|extent| (extent.len / BLOCK, extent.kind.is_zero())).collect()
    };
    assert_eq!(kinds(), [(100, true)]);
    up.write(30, 1);
    assert_eq!(kinds(), [(30, true), (1, false), (69, true)]);
}

#[test]
fn an_image_read_that_meets_a_change_of_its_block_returns_the_old_content() {
    let rig = Rig::live();
    let memory = disk(&rig, SIZE);
    let held = Held { geometry: Some(memory.geometry()), ..Held::default() };
    let (theirs, kept) = (memory.clone(), held.requests.clone());
    // Small reads, which only the image makes, wait.
    held.instead(move |rq| {
        match rq.op() == Op::Read && rq.len() == 512 {
            true => kept.lock().push_back(rq),
            false => crate::common::pass_on(rq, &theirs),
        }
        Dispatch::Started
    });
    let data: Arc<dyn BlockDevice> = rig.queue(held.clone());
    let (options, _events) = with_copies(&rig, 20);
    let up = open_with(&rig, &data, &record_of(&rig, SIZE), options).unwrap();
    up.write(3, 1);
    up.take("a");
    let image = up.image(&rig, "a").unwrap();
    let read = submit(&*image, Request::read(3 * BLOCK, 512));
    while held.held() == 0 {
        std::thread::yield_now();
    }
    up.write(3, 2);
    let late = held.requests.lock().pop_front().unwrap();
    crate::common::pass_on(late, &memory);
    let found = read.recv_timeout(STALL).unwrap().into_data().unwrap();
    assert_eq!(found, [1; 512][..]);
}

#[test]
fn an_image_read_while_all_of_the_device_is_written_is_exact() {
    let rig = Rig::live();
    let (data, record) = (disk(&rig, SIZE), record_of(&rig, SIZE));
    let (options, _events) = with_copies(&rig, SIZE / BLOCK);
    let up = open_with(&rig, &data, &record, options).unwrap();
    let mut rng = Rng::new(5);
    for round in 0..8 {
        up.take(&format!("c{round}"));
        let image = up.image(&rig, &format!("c{round}")).unwrap();
        let then = data.read_at(0, SIZE as usize).unwrap();
        let seed = rng.next();
        std::thread::scope(|scope| {
            for writer in 0..2 {
                let queue = &up.queue;
                scope.spawn(move || {
                    let mut rng = Rng::new(seed ^ writer);
                    for _ in 0..150 {
                        let at = rng.below(SIZE / 4096 - 4) * 4096;
                        queue.write_at(at, vec![rng.next() as u8; 16384]).unwrap();
                    }
                });
            }
            for _ in 0..150 {
                let at = (rng.below(SIZE / 4096 - 32) * 4096) as usize;
                let found = image.read_at(at as u64, 32 * 4096).unwrap();
                assert_eq!(found[..], then[at..at + 32 * 4096]);
            }
        });
        assert_eq!(image.read_at(0, SIZE as usize).unwrap()[..], then[..]);
    }
}
