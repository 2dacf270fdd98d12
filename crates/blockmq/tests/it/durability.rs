//! The promises of a flush and of a durable write, over a device with a volatile cache that
//! completes in any order.
#![cfg(not(loom))]

use std::collections::HashMap;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use crate::common::{Rig, Rng};
use corewise_blockmq::{BlockDeviceExt, Dispatch, Driver, Geometry, Info, Op, Request, Started};
use corewise_sync::Mutex;

const THREADS: u64 = 4;
const ROUNDS: u64 = 300;

/// A disk with a volatile cache: a completed write is lost at a power failure until a flush has
/// ended that began after it.
#[derive(Clone)]
struct Cached {
    to_disk: mpsc::Sender<Started>,
    platter: Arc<Mutex<Platter>>,
}

#[derive(Default)]
struct Platter {
    /// The last version of each block that a completed write has put into the cache.
    cache: HashMap<u64, u64>,
    /// The blocks that would be found after a power failure.
    durable: HashMap<u64, u64>,
    flushes: u64,
}

fn version(rq: &Request) -> u64 {
    let mut first = [0; 8];
    rq.copy_to(&mut first);
    u64::from_le_bytes(first)
}

impl Cached {
    fn new(seed: u64) -> (Self, JoinHandle<()>) {
        let (to_disk, arrived) = mpsc::channel::<Started>();
        let platter = Arc::new(Mutex::new(Platter::default()));
        let disk = Self { to_disk, platter: Arc::clone(&platter) };
        let thread = std::thread::spawn(move || {
            let mut rng = Rng::new(seed);
            // With a flush, the cache as it was when the flush began.
            let mut at_work: Vec<(Started, HashMap<u64, u64>)> = Vec::new();
            loop {
                // Waits only if there is nothing to do.
                let next =
                    if at_work.is_empty() { arrived.recv().ok() } else { arrived.try_recv().ok() };
                match next {
                    Some(rq) if rq.op() == Op::Flush => {
                        let found = platter.lock().cache.clone();
                        at_work.push((rq, found));
                    }
                    Some(rq) => at_work.push((rq, HashMap::new())),
                    None if at_work.is_empty() => return,
                    None => {}
                }
                if rng.below(3) != 0 {
                    continue;
                }
                let n = rng.below(at_work.len() as u64) as usize;
                let (rq, found) = at_work.swap_remove(n);
                let mut platter = platter.lock();
                match rq.op() {
                    Op::Flush => {
                        platter.durable.extend(found);
                        platter.flushes += 1;
                    }
                    _ => {
                        platter.cache.insert(rq.offset(), version(&rq));
                    }
                }
                drop(platter);
                rq.complete(Ok(()));
            }
        });
        (disk, thread)
    }
}

impl Driver for Cached {
    fn info(&self) -> Info {
        Info::new("cached", Geometry { can_fua: false, ..Geometry::new(1 << 20) })
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        assert!(!rq.flags().fua, "it can't");
        self.to_disk.send(rq).unwrap();
        Dispatch::Started
    }
}

#[test]
fn flushed_and_durable_writes_are_on_the_platter_at_completion() {
    let rig = Rig::live();
    let (disk, thread) = Cached::new(1);
    let platter = Arc::clone(&disk.platter);
    let queue = rig.queue(disk);
    std::thread::scope(|scope| {
        for t in 0..THREADS {
            let (queue, platter) = (&queue, &platter);
            scope.spawn(move || {
                let mut rng = Rng::new(100 + t);
                // Blocks apart, so that no write is merged and read as one version.
                let offset = t * 8192;
                for version in 1..=ROUNDS {
                    let mut data = vec![0; 512];
                    data[..8].copy_from_slice(&version.to_le_bytes());
                    let write = Request::write(offset, data);
                    if rng.below(2) == 0 {
                        queue.execute(write.fua()).result.unwrap();
                    } else {
                        queue.execute(write).result.unwrap();
                        queue.flush().unwrap();
                    }
                    let durable = platter.lock().durable.get(&offset).copied();
                    assert_eq!(durable, Some(version), "acknowledged, and lost at a power failure");
                }
            });
        }
    });
    queue.drain();
    let flushes = platter.lock().flushes;
    assert!(
        flushes <= THREADS * ROUNDS,
        "{flushes} flushes: one may serve many, none is superfluous"
    );
    drop(queue);
    thread.join().unwrap();
}
