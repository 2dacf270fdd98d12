//! Freeze and quiesce against submitters that don't stop, with `membarrier`, while that begins to
//! be refused, and without it. One process, one test: the refusal is for good.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)] // a test says what it expects by unwrapping it

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use common::{Rig, block};
use corewise_blockmq::{BlockDevice, Dispatch, Driver, Geometry, Info, Queue, Started};
use corewise_sync::fence::{self, FenceKind};

/// A driver that completes on the spot, and notes when it is called.
#[derive(Clone, Default)]
struct Noting {
    inside: Arc<AtomicU64>,
    calls: Arc<AtomicU64>,
}

impl Driver for Noting {
    fn info(&self) -> Info {
        Info::new("noting", Geometry::new(1 << 20))
    }

    fn queue_request(&self, _hctx: usize, rq: Started) -> Dispatch {
        self.inside.fetch_add(1, SeqCst);
        self.calls.fetch_add(1, SeqCst);
        self.inside.fetch_sub(1, SeqCst);
        rq.complete(Ok(()));
        Dispatch::Started
    }
}

/// Number of requests that there is room for through each CPU. Without a bound, requests would pile
/// up outside of a frozen queue while it is drained, and the next drain would take longer. If
/// pushing is quicker than dispatch, this never ends.
const ROOM: u32 = 1024;

/// A guard that ends the submitters, also if the freezer fails: they would fill the memory, and the
/// test's message would never be seen.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Submits from two threads while a third freezes and quiesces. No request is inside meanwhile, and
/// none is lost.
fn storm(queue: &Arc<Queue>, driver: &Noting, rounds: usize, midway: impl Fn()) {
    let over = AtomicBool::new(false);
    let sent_by_all = AtomicU64::new(0);
    let completed = Arc::new(AtomicU64::new(0));
    let most = AtomicU64::new(0);
    let submit = || {
        let mut sent = 0;
        while !over.load(Relaxed) {
            let before = sent_by_all.fetch_add(1, Relaxed);
            most.fetch_max(before.saturating_sub(completed.load(Relaxed)), Relaxed);
            let completed = Arc::clone(&completed);
            queue.submit(block(sent % 2048).on_complete(move |done| {
                done.result.unwrap();
                completed.fetch_add(1, Relaxed);
            }));
            sent += 1;
            if sent % 64 == 0 {
                std::thread::yield_now();
            }
        }
        sent
    };
    let sent: u64 = std::thread::scope(|scope| {
        let submitters = [scope.spawn(submit), scope.spawn(submit)];
        let ends = Over(&over);
        for round in 0..rounds {
            if round == rounds / 2 {
                midway();
            }
            let frozen = queue.freeze();
            let calls = driver.calls.load(SeqCst);
            (0..round % 64).for_each(|_| std::hint::spin_loop());
            assert_eq!(driver.calls.load(SeqCst), calls, "a request got into a frozen queue");
            drop(frozen);
            let quiesced = queue.quiesce();
            assert_eq!(driver.inside.load(SeqCst), 0, "dispatched while quiesced");
            drop(quiesced);
        }
        drop(ends);
        submitters.map(|submitter| submitter.join().unwrap()).iter().sum()
    });
    queue.drain();
    assert_eq!(completed.load(Relaxed), sent, "lost");
    // The room inside and outside, and the requests that were let in from outside.
    let room = 3 * u64::from(ROOM) * queue.hctx_cpus(0).len() as u64;
    assert!(most.load(Relaxed) <= room + 4, "{} on their way, room for {room}", most.load(Relaxed));
}

#[test]
fn freeze_and_quiesce_hold_with_membarrier_without_it_and_in_between() {
    let rig = Rig::live();
    let driver = Noting::default();
    let queue =
        Queue::builder(&rig.machine, Arc::new(driver.clone())).nr_requests(ROOM).build(&rig.wq);
    let first = fence::prepare();
    storm(&queue, &driver, 2_000, || ());
    assert_eq!(fence::kind(), Some(first));
    storm(&queue, &driver, 2_000, fence::refuse_membarrier);
    assert_eq!(fence::kind(), Some(FenceKind::FullFences));
    storm(&queue, &driver, 2_000, || ());
}
