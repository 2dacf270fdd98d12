//! Requests to a file that are cancelled in flight.
#![cfg(not(loom))]

use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::common::{Rig, STALL};
use corewise_blockmq::model::ByHand;
use corewise_blockmq::{BlockDevice, IoErrorKind, Queue, Request};
use corewise_drivers::{FileDriver, FileOptions, IoPath};
use corewise_sync::atomic::{AtomicBool, Ordering};
use corewise_sync::time::Stamp;

const HOUR: Duration = Duration::from_secs(3600);
const BLOCKS: u64 = 512;

/// Returns the content of a block once it is written.
fn byte(n: u64) -> u8 {
    (n % 251) as u8 + 1
}

#[test]
fn requests_that_are_called_off_while_they_complete_end_once_and_no_other_does() {
    let rig = Rig::live();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for io in [IoPath::Auto, IoPath::Threads] {
        let options = FileOptions::new(dir.path().join(format!("{io:?}"))).io(io).depth(16);
        let options = options.size(BLOCKS * 4096);
        // Past the cache, if that is done here: what goes through it is over at once.
        let direct = FileDriver::open(options.clone().direct(true), &rig.wq);
        let driver = direct.unwrap_or_else(|_| FileDriver::open(options, &rig.wq).unwrap());
        let queue =
            Queue::builder(&rig.machine, Arc::new(driver)).timeout(Some(HOUR)).build(&rig.wq);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                // Each request in the driver is two hours late.
                while !over.load(Ordering::Relaxed) {
                    queue.step_timeouts(Stamp::coarse().plus(2 * HOUR));
                }
            });
            let (tell, told) = mpsc::channel();
            let all = |make: &dyn Fn(u64) -> Request| {
                for n in 0..BLOCKS {
                    let tell = tell.clone();
                    queue.submit(make(n).on_complete(move |done| tell.send(done).unwrap()));
                }
                let ended = (0..BLOCKS).map(|_| told.recv_timeout(STALL).unwrap());
                let (ended, late): (Vec<_>, Vec<_>) = ended.partition(|done| done.result.is_ok());
                for done in &late {
                    let kind = done.result.as_ref().unwrap_err().kind();
                    assert_eq!(kind, IoErrorKind::TimedOut, "{:?}", done.result);
                }
                ended
            };
            let mut written = vec![false; BLOCKS as usize];
            let told_of = || queue.stats().iter().map(|stats| stats.timeouts).sum::<u64>();
            while told_of() == 0 || !written.iter().all(|&done| done) {
                let write = |n: u64| Request::write(n * 4096, vec![byte(n); 4096]);
                for done in all(&write) {
                    written[(done.offset / 4096) as usize] = true;
                }
            }
            for done in all(&|n| Request::read(n * 4096, 4096)) {
                let n = done.offset / 4096;
                let data = done.into_data().unwrap();
                assert!(data.len() == 4096 && data.iter().all(|&b| b == byte(n)), "block {n}");
            }
            over.store(true, Ordering::Relaxed);
        });
        queue.drain();
        assert_eq!(queue.inside(), 0);
    }
}
