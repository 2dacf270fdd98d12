//! Requests that a driver remaps: they go to the device below without a tag, and the books of their
//! own queue are as for any other request.
#![cfg(not(loom))]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use bytes::BytesMut;

use crate::common::{Held, Ram, Rig, Rng, STALL, block, by_hand, pass_on, settle, submit, watched};
use corewise_blockmq::model::{BuildByHand, ByHand};
use corewise_blockmq::{
    BlockDevice, BlockDeviceExt, Completed, Deadline, Dispatch, Driver, Geometry, HctxStats, Info,
    IoError, IoErrorKind, IoScheduler, IoStats, NowaitError, Op, Plug, Queue, QueueBuilder, Remap,
    Request, Started, TagSet,
};
use corewise_sync::Mutex;
use corewise_topology::Machine;

/// The first byte of a [`Window`] on the device below.
const START: u64 = 64 * 512;

type Hook = Box<dyn Fn(&Request) + Send + Sync>;

/// The bytes of another device from [`START`] on.
pub(crate) struct Window {
    below: Vec<Arc<dyn BlockDevice>>,
    geometry: Geometry,
    merges: bool,
    /// Called by each `remap`.
    hook: Arc<Mutex<Option<Hook>>>,
}

impl Window {
    pub(crate) fn over(below: Arc<dyn BlockDevice>) -> Self {
        let whole = below.geometry();
        let geometry = Geometry { size: whole.size - START, ..whole };
        Self { below: vec![below], geometry, merges: false, hook: Arc::default() }
    }

    /// Returns the device of a block: the devices take turns.
    fn device(&self, rq: &Request) -> &Arc<dyn BlockDevice> {
        &self.below[(rq.offset() / 512) as usize % self.below.len()]
    }
}

impl Driver for Window {
    fn info(&self) -> Info {
        let over = Info::over("window", &*self.below[0]);
        Info { geometry: self.geometry, hw_queues: 1, merges: self.merges, remaps: true, ..over }
    }

    fn remap(&self, rq: &Request) -> Option<Remap<'_>> {
        if let Some(hook) = &*self.hook.lock() {
            hook(rq);
        }
        Some(Remap { device: &**self.device(rq), offset: START + rq.offset() })
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        let below = Arc::clone(self.device(&rq));
        pass_on(rq, &below);
        Dispatch::Started
    }
}

fn builder(driver: Window) -> QueueBuilder {
    let machine = Machine::synthetic("l3:1 core:4 pu:1").unwrap();
    Queue::builder(&machine, Arc::new(driver)).iostats(IoStats::Timed)
}

/// A window over a queue of a driver that keeps its requests; only steps run both.
fn stack() -> (Held, Arc<Queue>, Arc<Queue>) {
    let driver = Held::default();
    let below = by_hand(&driver, 32);
    let queue = builder(Window::over(Arc::clone(&below) as _)).build_by_hand();
    (driver, below, queue)
}

/// Checks that the requests have ended well.
fn all_ok<const N: usize>(done: [mpsc::Receiver<Completed>; N]) {
    done.iter().for_each(|done| done.try_recv().unwrap().result.unwrap());
}

fn stats(queue: &Queue) -> HctxStats {
    queue.stats()[0]
}

#[test]
fn stepped_a_remapped_request_takes_no_tag_and_is_inside_until_it_ends() {
    let (driver, below, queue) = stack();
    let done = submit(&*queue, block(3));
    settle(&[&queue, &below]);
    assert_eq!(driver.order(), [67]);
    let HctxStats { remapped, dispatched, in_flight, .. } = stats(&queue);
    assert_eq!((remapped, dispatched, in_flight), (1, 0, 0));
    assert_eq!((queue.inside(), below.inside()), (1, 1));
    assert!(queue.oldest().is_some());
    assert_eq!(queue.disk_stats().discards.requests, 0);
    driver.finish_all();
    let done = done.try_recv().unwrap();
    done.result.unwrap();
    assert_eq!((done.op, done.offset, done.len), (Op::Discard, 3 * 512, 512));
    assert_eq!((queue.inside(), below.inside(), queue.oldest()), (0, 0, None));
    let stats = queue.disk_stats();
    assert_eq!((stats.discards.requests, stats.discards.bytes, stats.discards.errors), (1, 512, 0));
    assert_eq!((stats.discards.latency.count(), stats.in_driver.count()), (1, 1));
}

#[test]
fn stepped_an_error_below_is_counted_and_has_the_range_of_the_request_itself() {
    let (driver, below, queue) = stack();
    let [some, all] = [2, 9].map(|n| submit(&*queue, Request::discard(n * 512, 1024)));
    settle(&[&queue, &below]);
    let eio = || IoError::new(IoErrorKind::Io(5));
    driver.finish_one(Err(eio().at(START + 3 * 512..START + 4 * 512)));
    driver.finish_one(Err(eio()));
    let error = |done: mpsc::Receiver<Completed>| done.try_recv().unwrap().result.unwrap_err();
    assert_eq!(error(some).range(), Some(3 * 512..4 * 512));
    assert_eq!(error(all).range(), Some(9 * 512..11 * 512));
    assert_eq!(queue.disk_stats().discards.errors, 2);
}

#[test]
fn stepped_a_read_that_is_short_below_fails() {
    let (driver, below, queue) = stack();
    driver.instead(|mut rq| {
        rq.put_zeroes(512);
        rq.complete(Ok(()));
        Dispatch::Started
    });
    let done = submit(&*queue, Request::read(0, 1024));
    settle(&[&queue, &below]);
    assert_eq!(done.try_recv().unwrap().result.unwrap_err().kind(), IoErrorKind::Io(5));
}

#[test]
fn any_bytes_go_to_their_place_and_come_back() {
    let rig = Rig::live();
    let ram = rig.queue(Ram::new(1 << 20));
    let mut window = Window::over(Arc::clone(&ram) as _);
    // Longer requests go in parts.
    window.geometry.max_transfer = 8 * 512;
    let queue = rig.queue(window);
    let size = queue.geometry().size;
    let (mut model, mut rng) = (vec![0; size as usize], Rng::new(7));
    let rounds = if cfg!(miri) { 40 } else { 4_000 };
    for round in 0..rounds {
        let sector = rng.below(size / 512);
        let len = (1 + rng.below(16)).min(size / 512 - sector) * 512;
        let range = (sector * 512) as usize..(sector * 512 + len) as usize;
        match rng.below(4) {
            0 => {
                queue.write_zeroes(sector * 512, len).unwrap();
                model[range].fill(0);
            }
            1 => {
                queue.write_at(sector * 512, vec![round as u8; len as usize]).unwrap();
                model[range].fill(round as u8);
            }
            2 => {
                let halves = [len / 2, len - len / 2].map(|n| n as usize);
                let buffers = halves.map(|n| (BytesMut::with_capacity(n).into(), n));
                let data = queue.execute(Request::read_vectored(sector * 512, buffers));
                assert_eq!(data.into_data().unwrap(), &model[range]);
            }
            _ => assert_eq!(queue.read_at(sector * 512, len as usize).unwrap(), &model[range]),
        }
    }
    assert_eq!(ram.read_at(START, size as usize).unwrap(), &model[..]);
    assert!(stats(&queue).remapped >= rounds && stats(&queue).dispatched == 0);
}

#[test]
fn stepped_a_quiesced_queue_remaps_nothing_and_looks_between_two_requests() {
    let (driver, below, _) = stack();
    let window = Window::over(Arc::clone(&below) as _);
    let hook = Arc::clone(&window.hook);
    let queue = builder(window).build_by_hand();
    let quiesced = Arc::new(Mutex::new(vec![queue.quiesce_nowait()]));
    let done = [1, 2].map(|n| submit(&*queue, block(n)));
    settle(&[&queue, &below]);
    assert_eq!(driver.held(), 0, "the queue is quiesced");
    let (inner, theirs) = (Arc::downgrade(&queue), Arc::clone(&quiesced));
    *hook.lock() = Some(Box::new(move |_| {
        theirs.lock().extend(inner.upgrade().map(|queue| queue.quiesce_nowait()));
    }));
    quiesced.lock().clear();
    settle(&[&queue, &below]);
    assert_eq!(driver.order(), [65], "the second was sent behind the quiesce");
    *hook.lock() = None;
    quiesced.lock().clear();
    settle(&[&queue, &below]);
    driver.finish_all();
    all_ok(done);
}

#[test]
fn stepped_a_drain_waits_for_a_request_below() {
    let (driver, below, queue) = stack();
    let first = submit(&*queue, block(1));
    settle(&[&queue, &below]);
    let frozen = queue.start_freeze();
    let outside = submit(&*queue, block(2));
    settle(&[&queue, &below]);
    assert_eq!((queue.inside(), driver.held()), (1, 1));
    driver.finish_all();
    first.try_recv().unwrap().result.unwrap();
    assert_eq!(queue.inside(), 0);
    drop(queue.freeze());
    drop(frozen);
    settle(&[&queue, &below]);
    driver.finish_all();
    outside.try_recv().unwrap().result.unwrap();
}

#[test]
fn stepped_a_dropped_queue_lets_requests_below_finish() {
    let (driver, below, queue) = stack();
    let sent = submit(&*queue, block(1));
    settle(&[&queue, &below]);
    let waits = submit(&*queue, block(2));
    let window = Arc::downgrade(queue.driver());
    drop(queue);
    assert_eq!(waits.try_recv().unwrap().result.unwrap_err().kind(), IoErrorKind::Gone);
    assert!(sent.try_recv().is_err() && window.upgrade().is_some());
    driver.finish_all();
    sent.try_recv().unwrap().result.unwrap();
    assert!(window.upgrade().is_none(), "the driver goes with the last request");
}

#[test]
fn stepped_a_request_below_ends_where_the_device_below_goes() {
    struct Weakly(std::sync::Weak<Queue>, Geometry);
    impl BlockDevice for Weakly {
        fn name(&self) -> &str {
            "weakly"
        }
        fn geometry(&self) -> Geometry {
            self.1
        }
        fn submit(&self, rq: Request) {
            self.0.upgrade().unwrap().submit(rq);
        }
    }
    let below = by_hand(&Held::default(), 32);
    let device = Weakly(Arc::downgrade(&below), below.geometry());
    let queue = builder(Window::over(Arc::new(device))).build_by_hand();
    let done = submit(&*queue, block(1));
    settle(&[&queue]);
    drop(below);
    assert_eq!(done.try_recv().unwrap().result.unwrap_err().kind(), IoErrorKind::Gone);
    assert_eq!(queue.inside(), 0);
}

/// A device that ends requests at once, and records how many came together.
#[derive(Default)]
struct Batches {
    sizes: Mutex<Vec<usize>>,
    panics: bool,
}

impl BlockDevice for Batches {
    fn name(&self) -> &str {
        "batches"
    }
    fn geometry(&self) -> Geometry {
        Geometry::new(1 << 30)
    }
    fn submit(&self, rq: Request) {
        assert!(!self.panics, "on purpose");
        self.sizes.lock().push(1);
        rq.complete(Ok(()));
    }
    fn submit_batch(&self, batch: &mut dyn Iterator<Item = Request>) {
        assert!(!self.panics, "on purpose");
        let all: Vec<_> = batch.collect();
        self.sizes.lock().push(all.len());
        all.into_iter().for_each(|rq| rq.complete(Ok(())));
    }
}

/// Submits a request whose end, an error, submits the next one, until none is left.
fn next(queue: &Arc<Queue>, left: Arc<AtomicU32>) {
    let weak = Arc::downgrade(queue);
    queue.submit(block(1).on_complete(move |done| {
        assert_eq!(done.result.unwrap_err().kind(), IoErrorKind::Gone);
        if left.fetch_sub(1, Ordering::SeqCst) > 1 {
            next(&weak.upgrade().unwrap(), left);
        }
    }));
}

#[test]
fn stepped_a_panic_of_the_driver_or_below_fails_requests_and_loses_none() {
    let window = Window::over(Arc::new(Batches::default()));
    *window.hook.lock() = Some(Box::new(|rq| assert_ne!(rq.offset(), 512, "on purpose")));
    let queue = builder(window).build_by_hand();
    let done = [0, 1, 2, 1].map(|n| submit(&*queue, block(n)));
    settle(&[&queue]);
    let kinds = done.map(|done| done.try_recv().unwrap().result.map_err(|error| error.kind()));
    assert_eq!(kinds, [Ok(()), Err(IoErrorKind::Gone), Ok(()), Err(IoErrorKind::Gone)]);
    assert_eq!(stats(&queue).remapped, 2);

    // Each is submitted by the end of the one before.
    let window = Window::over(Arc::new(Batches::default()));
    *window.hook.lock() = Some(Box::new(|_| panic!("on purpose")));
    let queue = builder(window).build_by_hand();
    let left = Arc::new(AtomicU32::new(100));
    next(&queue, Arc::clone(&left));
    let step = queue.step(0);
    assert!(step.is_some() && left.load(Ordering::SeqCst) > 0, "a pass has a bound");
    settle(&[&queue]);
    assert_eq!((left.load(Ordering::SeqCst), queue.inside()), (0, 0));

    let panics = Batches { panics: true, ..Batches::default() };
    let queue = builder(Window::over(Arc::new(panics))).build_by_hand();
    for _ in 0..2 {
        let done = [0, 1, 2].map(|n| submit(&*queue, block(n)));
        settle(&[&queue]);
        for done in done {
            assert_eq!(done.try_recv().unwrap().result.unwrap_err().kind(), IoErrorKind::Gone);
        }
        assert_eq!(queue.inside(), 0);
    }
}

#[test]
fn stepped_waiting_requests_go_below_as_one_batch_for_each_device() {
    let devices = [Arc::new(Batches::default()), Arc::new(Batches::default())];
    let queue = builder(Window::over(Arc::clone(&devices[0]) as _)).build_by_hand();
    let done = [0, 1, 2, 3].map(|n| submit(&*queue, block(n)));
    settle(&[&queue]);
    all_ok(done);
    let sizes = || devices[0].sizes.lock().drain(..).collect::<Vec<_>>();
    assert_eq!(sizes(), [4]);
    // A pass starts 32.
    let done = [0; 40].map(|n| submit(&*queue, block(n)));
    settle(&[&queue]);
    all_ok(done);
    assert_eq!(sizes(), [32, 8]);

    let mut window = Window::over(Arc::clone(&devices[0]) as _);
    window.below.push(Arc::clone(&devices[1]) as _);
    let queue = builder(window).build_by_hand();
    let done = [0, 2, 1, 3, 4].map(|n| submit(&*queue, block(n)));
    settle(&[&queue]);
    all_ok(done);
    let sizes = devices.map(|device| device.sizes.lock().clone());
    assert_eq!(sizes, [vec![2, 1], vec![2]]);
}

#[test]
fn stepped_two_devices_at_one_address_get_batches_of_their_own() {
    /// A device at the address of its first field, which is another one.
    #[repr(transparent)]
    struct Outer(Batches);
    impl BlockDevice for Outer {
        fn name(&self) -> &str {
            "outer"
        }
        fn geometry(&self) -> Geometry {
            self.0.geometry()
        }
        fn submit(&self, rq: Request) {
            rq.complete(Err(IoError::new(IoErrorKind::NotSupported)));
        }
    }
    struct Both(Outer);
    impl Driver for Both {
        fn info(&self) -> Info {
            Info { hw_queues: 1, remaps: true, ..Info::over("both", &self.0) }
        }
        fn remap(&self, rq: &Request) -> Option<Remap<'_>> {
            let device: &dyn BlockDevice = if rq.offset() == 512 { &self.0 } else { &self.0.0 };
            Some(Remap { device, offset: rq.offset() })
        }
        fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
            rq.complete(Ok(()));
            Dispatch::Started
        }
    }
    let machine = Machine::synthetic("l3:1 core:4 pu:1").unwrap();
    let both = Both(Outer(Batches::default()));
    let queue = Queue::builder(&machine, Arc::new(both)).build_by_hand();
    let done = [0, 1, 2].map(|n| submit(&*queue, block(n)));
    settle(&[&queue]);
    let is_ok = done.map(|done| done.try_recv().unwrap().result.is_ok());
    assert_eq!(is_ok, [true, false, true]);
}

#[test]
fn requests_under_a_plug_go_below_as_one_batch_at_its_end() {
    let rig = Rig::live();
    let batches = Arc::new(Batches::default());
    let queue = rig.queue(Window::over(Arc::clone(&batches) as _));
    let plug = Plug::start();
    let done = [0, 1, 2, 3, 4].map(|n| submit(&*queue, block(n)));
    assert_eq!((queue.inside(), batches.sizes.lock().len()), (0, 0));
    drop(plug);
    all_ok(done);
    assert_eq!(*batches.sizes.lock(), [5]);

    // The device below is a queue, and the thread is about to block.
    let held = Held::default();
    let queue = rig.queue(Window::over(rig.queue(held.clone())));
    let plug = Plug::start();
    let done = submit(&*queue, block(0));
    plug.flush();
    assert_eq!(held.order(), [64], "it isn't held back once more");
    held.finish_all();
    all_ok([done]);
}

#[test]
fn stepped_a_request_below_takes_up_room_in_its_own_queue_until_it_ends() {
    let driver = Held::default();
    let below = by_hand(&driver, 32);
    let window = Window::over(Arc::clone(&below) as _);
    let queue = builder(window).nr_requests(2).build_by_hand();
    let nowait = |n| {
        let (rq, done) = watched(block(n));
        let refused = queue.submit_nowait(rq).map_err(|refused| refused.error);
        settle(&[&queue, &below]);
        refused.map(|()| done)
    };
    let done = [0, 1].map(|n| nowait(n).unwrap());
    assert_eq!((driver.held(), stats(&queue).remapped), (2, 2));
    assert_eq!(nowait(2).unwrap_err(), NowaitError::Full);
    driver.finish_all();
    all_ok(done);
    let done = nowait(3).unwrap();
    driver.finish_all();
    all_ok([done]);
}

#[test]
fn stepped_a_request_that_is_about_its_tag_goes_to_the_driver() {
    let machine = Machine::synthetic("l3:1 core:4 pu:1").unwrap();
    let tags = TagSet::new(4, machine.topology().cpus().len());
    let bounds: [&dyn Fn(QueueBuilder) -> QueueBuilder; 4] = [
        &|builder| builder.timeout(Some(Duration::from_secs(60))),
        &|builder| builder.scheduler(IoScheduler::Deadline(Deadline::default())),
        &|builder| builder.depth(4),
        &|builder| builder.tags(&tags),
    ];
    for bound in bounds {
        let window = Window::over(Arc::new(Batches::default()));
        let queue = bound(builder(window)).build_by_hand();
        let done = submit(&*queue, block(1));
        settle(&[&queue]);
        done.try_recv().unwrap().result.unwrap();
        assert_eq!((stats(&queue).remapped, stats(&queue).dispatched), (0, 1));
    }
    let (driver, below, queue) = stack();
    driver.at_once();
    let flush = submit(&*queue, Request::flush());
    settle(&[&queue, &below]);
    all_ok([flush]);
    assert_eq!((stats(&queue).remapped, stats(&queue).dispatched), (0, 1));
}

#[test]
fn stepped_merged_requests_go_to_the_driver_as_one() {
    let window = Window { merges: true, ..Window::over(Arc::new(Batches::default())) };
    let queue = builder(window).build_by_hand();
    let alone = submit(&*queue, block(1));
    settle(&[&queue]);
    all_ok([alone]);
    // The box of that one carries one of these.
    let done = [1, 2].map(|n| submit(&*queue, block(n)));
    settle(&[&queue]);
    all_ok(done);
    let HctxStats { remapped, dispatched, in_flight, .. } = stats(&queue);
    assert_eq!((remapped, dispatched, in_flight), (1, 1, 0));
}

#[test]
fn stepped_a_durable_change_is_remapped_without_fua_and_flushed_behind() {
    let (driver, below, _) = stack();
    let mut window = Window::over(Arc::clone(&below) as _);
    window.geometry.can_fua = false;
    let queue = builder(window).build_by_hand();
    let done = submit(&*queue, Request::write(0, vec![1; 512]).fua());
    settle(&[&queue, &below]);
    assert!(!driver.requests.lock()[0].flags().fua);
    driver.finish_one(Ok(()));
    settle(&[&queue, &below]);
    assert!(done.try_recv().is_err(), "it isn't durable yet");
    assert_eq!(driver.requests.lock()[0].op(), Op::Flush);
    driver.finish_one(Ok(()));
    settle(&[&queue, &below]);
    done.try_recv().unwrap().result.unwrap();
    assert_eq!((queue.inside(), queue.losses()), (0, 0));
}

#[test]
fn stepped_a_durable_change_that_fails_below_counts_as_a_loss_here() {
    let (driver, below, queue) = stack();
    let done = submit(&*queue, Request::write(0, vec![1; 512]).fua());
    settle(&[&queue, &below]);
    assert!(driver.requests.lock()[0].flags().fua);
    driver.finish_one(Err(IoError::new(IoErrorKind::Io(5))));
    assert!(done.try_recv().unwrap().result.is_err());
    assert_eq!(queue.losses(), 1);
    assert!(queue.is_in_doubt());
}

#[test]
fn stepped_the_parts_of_a_request_are_remapped_and_it_counts_once() {
    let (driver, below, _) = stack();
    driver.at_once();
    let mut window = Window::over(Arc::clone(&below) as _);
    window.geometry.max_discard = 1024;
    let queue = builder(window).build_by_hand();
    let done = submit(&*queue, Request::discard(0, 5 * 512));
    settle(&[&queue, &below]);
    done.try_recv().unwrap().result.unwrap();
    assert_eq!((stats(&queue).remapped, queue.disk_stats().discards.requests), (3, 1));
    assert_eq!(queue.inside(), 0);
}

#[test]
fn a_chain_of_remapped_requests_and_a_tower_of_devices_need_no_deep_stack() {
    fn next(queue: Arc<Queue>, left: Arc<AtomicU32>, over: mpsc::Sender<()>) {
        let theirs = Arc::clone(&queue);
        queue.submit(block(1).on_complete(move |done| {
            done.result.unwrap();
            match left.fetch_sub(1, Ordering::SeqCst) {
                1 => over.send(()).unwrap(),
                _ => next(theirs, left, over),
            }
        }));
    }
    let rig = Rig::live();
    let mut top: Arc<dyn BlockDevice> = rig.queue(Ram::new(1 << 24));
    for _ in 0..100 {
        top = rig.queue(Window::over(top));
    }
    top.write_at(0, vec![5; 512]).unwrap();
    assert_eq!(top.read_at(0, 512).unwrap(), [5; 512][..]);
    let queue = rig.queue(Window::over(rig.queue(Ram::new(1 << 20))));
    let (over, is_over) = mpsc::channel();
    let links = if cfg!(miri) { 50 } else { 20_000 };
    next(Arc::clone(&queue), Arc::new(AtomicU32::new(links)), over);
    is_over.recv_timeout(STALL).unwrap();
    queue.drain();
    assert_eq!(stats(&queue).remapped, u64::from(links));
}
