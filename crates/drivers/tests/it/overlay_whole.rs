//! Changes of whole overlays: fetching all of the base, reset, commit and flatten, also when the
//! process is killed in the middle and the power fails.
#![cfg(not(loom))]

use std::sync::{Arc, mpsc};

use crate::common::platters::{Life, Platter, SECTOR, one_in, plug};
use crate::common::{Held, Rig, Rng, STALL};
use corewise_blockmq::{
    BlockDevice, BlockDeviceExt, Dispatch, Driver, ExtentKind, Geometry, Info, Op, Queue, Started,
};
use corewise_drivers::{FetchPolicy, Memory, Overlay, OverlayEvent, OverlayOptions};
use corewise_sync::Mutex;

const SIZE: u64 = 32 << 10;

/// A record of requests: the operation, the offset, and whether it has `fua`.
type Log = Arc<Mutex<Vec<(Op, u64, bool)>>>;

/// A device in memory that records its requests.
struct Recorder {
    memory: Memory,
    log: Log,
}

impl Driver for Recorder {
    fn info(&self) -> Info {
        let inner = self.memory.info();
        Info { geometry: Geometry { can_flush: true, ..inner.geometry }, ..inner }
    }

    fn queue_request(&self, hctx: usize, rq: Started) -> Dispatch {
        self.log.lock().push((rq.op(), rq.offset(), rq.flags().fua));
        self.memory.queue_request(hctx, rq)
    }
}

fn recorder(rig: &Rig, size: u64) -> (Arc<Queue>, Log) {
    let log = Log::default();
    let memory = Memory::new(size).unwrap();
    (rig.queue(Recorder { memory, log: Arc::clone(&log) }), log)
}

fn ops(log: &Log, op: Op) -> usize {
    std::mem::take(&mut *log.lock()).iter().filter(|(one, ..)| *one == op).count()
}

/// Returns the queue of an overlay, the overlay itself, and its events.
fn open(
    rig: &Rig,
    file: &Arc<Queue>,
    base: Option<Arc<dyn BlockDevice>>,
    options: OverlayOptions,
) -> (Arc<Queue>, Arc<Overlay>, mpsc::Receiver<OverlayEvent>) {
    let (tx, events) = mpsc::channel();
    let tx = Mutex::new(tx);
    let options = options.observer(move |event| drop(tx.lock().send(event.clone())));
    let overlay = Arc::new(Overlay::open(Arc::clone(file), base, options, &rig.wq).unwrap());
    let queue = Queue::builder(&rig.machine, Arc::clone(&overlay) as _).build(&rig.wq);
    (queue, overlay, events)
}

fn content(size: u64) -> Vec<u8> {
    (0..size).map(|at| (at / 512 % 251 + 1) as u8).collect()
}

#[test]
fn a_commit_of_several_pages_syncs_data_then_writes_the_pages_then_syncs_them() {
    let rig = Rig::live();
    let size = 200 << 20;
    let base = rig.queue(Memory::new(size).unwrap());
    let (file, log) = recorder(&rig, Overlay::file_size(size, None).unwrap());
    let (queue, _, _) = open(&rig, &file, Some(base.clone()), OverlayOptions::new());
    queue.write_at(0, vec![1; 4096]).unwrap();
    queue.write_at(150 << 20, vec![2; 4096]).unwrap();
    log.lock().clear();
    let flush = || {
        queue.flush().unwrap();
        let done = std::mem::take(&mut *log.lock());
        done.iter().map(|(op, ..)| *op).collect::<Vec<Op>>()
    };
    use Op::{Flush, Write};
    // The first one also writes the directory, and then both copies of the header.
    let first = [Flush, Write, Write, Flush, Write, Write, Flush, Write, Flush];
    assert_eq!(flush(), first);
    queue.write_at(8192, vec![1; 4096]).unwrap();
    queue.write_at(160 << 20, vec![2; 4096]).unwrap();
    log.lock().clear();
    assert_eq!(flush(), [Flush, Write, Write, Flush]);
    queue.flush().unwrap();
    assert_eq!(std::mem::take(&mut *log.lock()).len(), 1, "nothing but a sync");
    // A killed process may have left a page in the host's cache: the first change with fua syncs.
    drop(queue);
    let (queue, _, _) = open(&rig, &file, Some(base), OverlayOptions::new());
    let fua = || {
        let rq = corewise_blockmq::Request::write(0, vec![3; 4096]).fua();
        queue.execute(rq).result.unwrap();
        std::mem::take(&mut *log.lock())
    };
    assert!(fua().iter().any(|(op, ..)| *op == Op::Flush));
    assert_eq!(
        fua().iter().map(|(op, _, fua)| (*op, *fua)).collect::<Vec<_>>(),
        [(Op::Write, true)]
    );
}

#[test]
fn what_was_read_is_kept_and_not_read_from_the_base_again() {
    let rig = Rig::live();
    let (base, log) = recorder(&rig, 1 << 20);
    base.write_at(0, content(1 << 20)).unwrap();
    let file = rig.queue(Memory::new(Overlay::file_size(1 << 20, None).unwrap()).unwrap());
    let options = || OverlayOptions::new().fetch(FetchPolicy::OnRead, u64::MAX);
    let (queue, overlay, _) = open(&rig, &file, Some(base.clone()), options());
    log.lock().clear();
    let want = content(1 << 20);
    queue.write_at(12 << 10, vec![9; 4096]).unwrap();
    assert_eq!(
        queue.read_at(512, 9000).unwrap_err().kind(),
        corewise_blockmq::IoErrorKind::InvalidInput
    );
    assert_eq!(queue.read_at(512, 16 << 10).unwrap()[..8192], want[512..8704]);
    assert_eq!(ops(&log, Op::Read), 2, "in front of the own block, and behind it");
    overlay.settle();
    assert_eq!(queue.read_at(4096, 12 << 10).unwrap()[..8192], want[4096..12 << 10]);
    assert_eq!(ops(&log, Op::Read), 0);
    assert_eq!(queue.read_at(0, 4096).unwrap(), want[..4096]);
    assert_eq!(ops(&log, Op::Read), 1, "only a part of that block was read before");
    overlay.settle();
    queue.flush().unwrap();
    queue.drain();
    drop((queue, overlay));
    let (queue, _, _) = open(&rig, &file, Some(base), options());
    log.lock().clear();
    assert_eq!(queue.read_at(12 << 10, 4096).unwrap(), vec![9; 4096]);
    assert_eq!(queue.read_at(0, 12 << 10).unwrap(), want[..12 << 10]);
    assert_eq!(ops(&log, Op::Read), 0, "a flush keeps what was read, too");
    queue.drain();
}

#[test]
fn the_background_fetches_all_blocks_and_lets_the_base_go_and_loses_no_change() {
    let rig = Rig::live();
    let size = 4 << 20;
    let base = rig.queue(Memory::new(size).unwrap());
    base.write_at(1 << 20, content(1 << 20)).unwrap();
    let file = rig.queue(Memory::new(Overlay::file_size(size, None).unwrap()).unwrap());
    let options = OverlayOptions::new().fetch(FetchPolicy::Background, u64::MAX);
    let (queue, overlay, events) = open(&rig, &file, Some(base.clone()), options);
    let mut want = vec![0; size as usize];
    want[1 << 20..2 << 20].copy_from_slice(&content(1 << 20));
    let mut rng = Rng::new(5);
    for _ in 0..300 {
        let at = rng.below(size / 512) as usize * 512;
        let len = 512 * (1 + rng.below(20) as usize).min((size as usize - at) / 512);
        let byte = rng.next() as u8;
        queue.write_at(at as u64, vec![byte; len]).unwrap();
        want[at..at + len].fill(byte);
    }
    assert_eq!(events.recv_timeout(STALL).unwrap(), OverlayEvent::Fetched);
    let status = overlay.status();
    assert!(!status.has_base && !status.fetching);
    assert_eq!(Arc::strong_count(&base), 1, "the base is free");
    assert_eq!(queue.read_at(0, size as usize).unwrap(), &want[..]);
    let holes = queue.extents_of(0, size, 10_000).unwrap();
    assert!(holes.iter().any(|extent| extent.kind == ExtentKind::Hole), "holes stay holes");
    overlay.settle();
    queue.drain();
    drop((queue, overlay));
    let (queue, overlay, _) = open(&rig, &file, None, OverlayOptions::new());
    assert_eq!(queue.read_at(0, size as usize).unwrap(), &want[..]);
    let error = overlay.reset().unwrap_err().to_string();
    assert!(error.contains("no base any more"), "{error}");
    queue.drain();
}

#[test]
fn a_reset_while_the_background_fetches_begins_that_anew() {
    let rig = Rig::live();
    let size = 8 << 20;
    let base = rig.queue(Memory::new(size).unwrap());
    base.write_at(0, content(size)).unwrap();
    for _ in 0..10 {
        let file = rig.queue(Memory::new(Overlay::file_size(size, None).unwrap()).unwrap());
        let options = OverlayOptions::new().fetch(FetchPolicy::Background, 200 << 20);
        let (queue, overlay, events) = open(&rig, &file, Some(base.clone()), options);
        while overlay.status().own.is_none_or(|own| own == 0) {
            std::thread::yield_now();
        }
        let frozen = queue.freeze();
        // It may have been faster than this thread.
        let was_reset = overlay.reset().is_ok();
        drop(frozen);
        assert_eq!(events.recv_timeout(STALL).unwrap(), OverlayEvent::Fetched);
        assert_eq!(queue.read_at(0, size as usize).unwrap(), &content(size)[..], "{was_reset}");
        overlay.settle();
        queue.drain();
    }
}

/// Disks of an overlay and its base that outlive a process.
struct Disks {
    file: Arc<Mutex<Platter>>,
    base: Arc<Mutex<Platter>>,
}

impl Disks {
    fn open(&self, rig: &Rig, life: &Life) -> Result<(Arc<Queue>, Arc<Overlay>), String> {
        let (file, base) = (plug(rig, &self.file, life), plug(rig, &self.base, life));
        let options = OverlayOptions::new();
        let overlay = Overlay::open(file, Some(base), options, &rig.wq);
        let overlay = Arc::new(overlay.map_err(|error| error.to_string())?);
        Ok((Queue::builder(&rig.machine, Arc::clone(&overlay) as _).build(&rig.wq), overlay))
    }
}

/// Makes an overlay with own blocks: holes, data, and one that was flushed late.
fn used(rig: &Rig) -> (Disks, Vec<u8>) {
    let mut base = Platter::new(SIZE, true);
    base.fill(0, &content(SIZE));
    let file = Platter::new(Overlay::file_size(SIZE, None).unwrap(), true);
    let disks = Disks { file: Arc::new(Mutex::new(file)), base: Arc::new(Mutex::new(base)) };
    let (queue, _) = disks.open(rig, &Life::new(u64::MAX)).unwrap();
    queue.write_at(512, vec![200; 9000 / 512 * 512]).unwrap();
    queue.discard(16 << 10, 8192).unwrap();
    queue.flush().unwrap();
    let now = queue.read_at(0, SIZE as usize).unwrap().to_vec();
    queue.drain();
    (disks, now)
}

/// Makes a change of a whole overlay that is killed at each request, once without and twice with
/// a power failure after that. Then lets `check` look at what it is after the next open.
fn killed_anywhere(
    change: impl Fn(&Overlay) -> bool,
    mut check: impl FnMut(&Disks, &Queue, &[u8], &str),
) {
    let rig = Rig::live();
    let (mut requests, mut done) = (0, false);
    while !done {
        done = true;
        for power in 0..3 {
            let (disks, was) = used(&rig);
            let life = Life::new(u64::MAX);
            let (queue, overlay) = disks.open(&rig, &life).unwrap();
            life.limit(requests);
            done &= change(&overlay);
            overlay.settle();
            drop((queue, overlay));
            life.kill();
            let mut rng = Rng::new(requests);
            let mut loses = || power == 1 || power == 2 && one_in(&mut rng, 2);
            if power != 0 {
                disks.file.lock().power_failure(&mut loses);
                disks.base.lock().power_failure(&mut loses);
            }
            // The next start may be killed, too.
            let life = Life::new(requests % 7);
            drop(disks.open(&rig, &life));
            life.kill();
            disks.file.lock().power_failure(&mut loses);
            disks.base.lock().power_failure(&mut loses);
            let (queue, overlay) = disks.open(&rig, &Life::new(u64::MAX)).unwrap();
            check(&disks, &queue, &was, &format!("{requests} requests, power {power}"));
            queue.drain();
            overlay.settle();
        }
        requests += 1;
        assert!(requests < 1000);
    }
    assert!(requests > 5, "{requests}");
}

#[test]
fn a_reset_is_all_or_nothing_wherever_it_is_killed() {
    let mut seen = [false; 2];
    killed_anywhere(
        |overlay| overlay.reset().is_ok(),
        |_, queue, was, what| {
            let now = queue.read_at(0, SIZE as usize).unwrap().to_vec();
            assert!(now == was || now == content(SIZE), "{what}");
            seen[usize::from(now == was)] = true;
            // It is an overlay like any other.
            queue.write_at(0, vec![1; SECTOR]).unwrap();
            assert_eq!(queue.read_at(0, 1024).unwrap()[512..], now[512..1024]);
        },
    );
    assert_eq!(seen, [true; 2]);
}

#[test]
fn a_commit_into_the_base_changes_nothing_for_clients_wherever_it_is_killed() {
    let mut seen = [false; 2];
    killed_anywhere(
        |overlay| overlay.commit().is_ok(),
        |disks, queue, was, what| {
            assert_eq!(queue.read_at(0, SIZE as usize).unwrap(), was, "{what}");
            let base = disks.base.lock().now.clone();
            let is_done = base == was;
            assert!(is_done || base == content(SIZE), "{what}: a half-copied base is completed");
            seen[usize::from(is_done)] = true;
        },
    );
    assert_eq!(seen, [true; 2]);
}

#[test]
fn a_commit_needs_a_base_that_takes_it() {
    let rig = Rig::live();
    let base = rig.queue(Memory::new(SIZE).unwrap());
    let size = SIZE + 4096;
    let file = rig.queue(Memory::new(Overlay::file_size(size, None).unwrap()).unwrap());
    let options = OverlayOptions::new().size(Some(size));
    let (_, overlay, _) = open(&rig, &file, Some(base), options);
    let error = overlay.commit().unwrap_err().to_string();
    assert!(error.contains("grow the base"), "{error}");
}

#[test]
fn an_interrupted_commit_that_cant_be_completed_is_named_with_what_to_do() {
    let rig = Rig::live();
    let (disks, was) = used(&rig);
    let life = Life::new(u64::MAX);
    let (queue, overlay) = disks.open(&rig, &life).unwrap();
    // The header is written by then, and no block is copied.
    life.limit(7);
    overlay.commit().unwrap_err();
    drop((queue, overlay));
    life.kill();
    let life = Life::new(u64::MAX);
    let refused = |base: Option<Arc<dyn BlockDevice>>, in_use: Option<&str>| {
        let options = OverlayOptions::new().base_in_use(in_use.map(str::to_owned));
        let file = plug(&rig, &disks.file, &life);
        let error = Overlay::open(file, base, options, &rig.wq).err().unwrap().to_string();
        assert!(error.contains("a commit of the overlay in"), "{error}");
        assert!(error.contains("was interrupted"), "{error}");
        error
    };
    let base = || -> Option<Arc<dyn BlockDevice>> { Some(plug(&rig, &disks.base, &life)) };
    let error = refused(None, None);
    assert!(error.contains("has none. Name the base"), "{error}");
    let error = refused(base(), Some("an export shows it: remove that"));
    assert!(error.ends_with("an export shows it: remove that"), "{error}");
    let memory = Memory::new(SIZE).unwrap();
    let geometry = Geometry { read_only: true, ..memory.info().geometry };
    let read_only = rig.queue(Held { geometry: Some(geometry), ..Held::default() });
    let error = refused(Some(read_only), None);
    assert!(error.contains("read-only") && error.contains("Open it for writing"), "{error}");
    let error = refused(Some(rig.queue(Memory::new(SIZE * 2).unwrap())), None);
    assert!(error.contains("65536 bytes, not 32768"), "{error}");
    let (queue, _) = disks.open(&rig, &life).unwrap();
    assert_eq!(queue.read_at(0, SIZE as usize).unwrap(), was);
    assert_eq!(disks.base.lock().now, was);
    queue.drain();
}

#[test]
fn a_flatten_goes_on_after_the_next_open() {
    let rig = Rig::live();
    let size = 4 << 20;
    let base = rig.queue(Memory::new(size).unwrap());
    base.write_at(0, content(size)).unwrap();
    let file = rig.queue(Memory::new(Overlay::file_size(size, None).unwrap()).unwrap());
    // After the first piece, such a background waits for days.
    let slow = OverlayOptions::new().fetch(FetchPolicy::Never, 1);
    let (queue, overlay, _) = open(&rig, &file, Some(base.clone()), slow);
    assert!(!overlay.status().fetching);
    overlay.flatten().unwrap();
    overlay.settle();
    queue.drain();
    drop((queue, overlay));
    let options = OverlayOptions::new().fetch(FetchPolicy::Never, u64::MAX);
    let (queue, overlay, events) = open(&rig, &file, Some(base), options);
    assert_eq!(events.recv_timeout(STALL).unwrap(), OverlayEvent::Fetched);
    assert!(!overlay.status().has_base);
    assert_eq!(queue.read_at(0, size as usize).unwrap(), &content(size)[..]);
    overlay.settle();
    queue.drain();
    drop((queue, overlay));
    let (_, overlay, _) = open(&rig, &file, None, OverlayOptions::new());
    assert!(!overlay.status().fetching);
}

#[test]
fn what_a_flatten_has_fetched_is_right_wherever_it_is_killed() {
    let rig = Rig::live();
    let mut requests = 0;
    loop {
        let (disks, was) = used(&rig);
        let life = Life::new(u64::MAX);
        let (file, base) = (plug(&rig, &disks.file, &life), plug(&rig, &disks.base, &life));
        let options = OverlayOptions::new();
        let (queue, overlay, events) = open(&rig, &file, Some(base), options);
        life.limit(requests);
        let ended = overlay.flatten().map(|()| events.recv_timeout(STALL).unwrap());
        life.kill();
        overlay.settle();
        drop((queue, overlay));
        let mut rng = Rng::new(requests);
        disks.file.lock().power_failure(|| one_in(&mut rng, 2));
        let is_done = ended.is_ok_and(|event| event == OverlayEvent::Fetched);
        // A base that is gone can't be asked.
        let life = Life::new(u64::MAX);
        let base = (!is_done).then(|| plug(&rig, &disks.base, &life) as Arc<dyn BlockDevice>);
        let (queue, _, _) =
            open(&rig, &plug(&rig, &disks.file, &life), base, OverlayOptions::new());
        assert_eq!(queue.read_at(0, SIZE as usize).unwrap(), was, "{requests} requests");
        queue.drain();
        if is_done {
            break;
        }
        requests += 1;
    }
    assert!(requests > 5, "{requests}");
}
