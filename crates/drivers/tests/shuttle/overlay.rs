//! An overlay in random schedules: a durable change beside the first change of its block.

use std::sync::Arc;

use corewise_blockmq::model::ByHand;
use corewise_blockmq::{
    BlockDeviceExt, Dispatch, Driver, Geometry, Info, Op, Queue, Request, Started,
};
use corewise_drivers::{Overlay, OverlayOptions};
use corewise_sync::model::schedules::{self, Schedules};
use corewise_sync::{Countdown, Mutex, thread};
use corewise_topology::{CpuId, Machine};
use corewise_workqueue::{WorkerPools, Workqueue};

const SIZE: u64 = 4096;

/// A device in memory, whose bytes shuttle doesn't follow.
struct Ram(Mutex<Vec<u8>>, u64);

impl Driver for Ram {
    fn info(&self) -> Info {
        Info { merges: false, ..Info::new("ram", Geometry::new(self.1)) }
    }

    fn queue_request(&self, _hctx: usize, mut rq: Started) -> Dispatch {
        let (at, len) = (rq.offset() as usize, rq.len() as usize);
        let mut bytes = self.0.lock();
        match rq.op() {
            Op::Read => _ = rq.put(&bytes[at..at + len]),
            Op::Write => _ = rq.copy_to(&mut bytes[at..at + len]),
            _ => {}
        }
        drop(bytes);
        rq.complete(Ok(()));
        Dispatch::Started
    }
}

fn a_durable_change_meets_the_first_one() {
    let machine = Machine::synthetic("numa:1 l3:2 core:1 pu:1").unwrap();
    let pools = WorkerPools::builder(&machine).max_workers(2).build();
    let wq = Workqueue::builder("block").build(&pools).unwrap();
    let queue = |driver: Arc<dyn Driver>| Queue::builder(&machine, driver).build(&wq);
    let memory = |size: u64| queue(Arc::new(Ram(Mutex::new(vec![0; size as usize]), size)));
    let file = memory(Overlay::file_size(SIZE, Some(4096)).unwrap());
    let base = memory(SIZE);
    let open = || {
        let base = Some(Arc::clone(&base) as _);
        let overlay = Overlay::open(Arc::clone(&file), base, OverlayOptions::new(), &wq);
        queue(Arc::new(overlay.unwrap()))
    };
    let overlay = open();
    // From here on the map's page is in memory, and lacks nothing on disk.
    assert_eq!(overlay.read_at(0, 512).unwrap(), [0; 512][..]);
    overlay.flush().unwrap();
    let ended = Arc::new(Countdown::new(2));
    let submit = |cpu, rq: Request| {
        let (overlay, ended) = (Arc::clone(&overlay), Arc::clone(&ended));
        let rq = rq.on_complete(move |done| {
            done.result.unwrap();
            ended.done();
        });
        thread::spawn(move || overlay.submit_on(CpuId::new(cpu), rq))
    };
    let first = submit(0, Request::write(0, vec![1; 512]));
    let durable = submit(1, Request::write(512, vec![2; 512]).fua());
    [first, durable].into_iter().for_each(|thread| thread.join().unwrap());
    ended.wait();
    // An overlay after a crash: only the durable change has written the map.
    let after = open();
    assert_eq!(after.read_at(512, 512).unwrap(), [2; 512][..], "a durable change is lost");
    [after, overlay].into_iter().for_each(|queue| queue.drain());
    pools.shutdown();
}

#[test]
fn shuttle_a_durable_change_beside_the_first_one_of_its_block_is_durable() {
    let schedules = Schedules { short: 3_000, long: 100_000 };
    schedules::few_preemptions(schedules, a_durable_change_meets_the_first_one);
}
