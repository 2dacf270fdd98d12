//! Devices and drivers that come and go, on real threads: for two seconds, or a minute with `COREWISE_LONG`. A
//! seed (`COREWISE_TORTURE_SEED`) repeats the choices, not the schedule.
#![cfg(not(any(loom, shuttle)))]

mod comings;

use comings::{Chance, Size, scenario};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// splitmix64.
struct Seeded(u64);

impl Chance for Seeded {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    fn another(&mut self) -> Self {
        Seeded(self.below(u64::MAX))
    }
}

/// When one run of the scenario, which takes milliseconds, counts as stuck.
const STUCK: Duration = Duration::from_secs(120);

#[test]
fn torture_no_supplier_goes_before_its_consumer_whoever_binds_unbinds_adds_and_removes() {
    let long = std::env::var_os("COREWISE_LONG").is_some();
    let end = Instant::now() + Duration::from_secs(if long { 60 } else { 2 });
    let asked = std::env::var("COREWISE_TORTURE_SEED").ok();
    let mut seed = match asked {
        Some(seed) => seed.parse().expect("COREWISE_TORTURE_SEED is a number"),
        None => {
            let since = std::time::SystemTime::UNIX_EPOCH.elapsed();
            since.expect("after 1970").as_nanos() as u64 & 0xffff_ffff
        }
    };
    while Instant::now() < end {
        let (done, over) = mpsc::channel();
        let runner = std::thread::spawn(move || {
            let size = Size { devices: 7, actors: 3, acts: 200 };
            let run = || scenario(Seeded(seed), size);
            let _ = done.send(catch_unwind(AssertUnwindSafe(run)).is_ok());
        });
        match over.recv_timeout(STUCK) {
            Ok(true) => runner.join().expect("it ended"),
            Ok(false) => panic!("it failed with COREWISE_TORTURE_SEED={seed}; see above"),
            Err(RecvTimeoutError::Timeout) => {
                panic!("it is stuck with COREWISE_TORTURE_SEED={seed}: some waiter never ended")
            }
            Err(RecvTimeoutError::Disconnected) => panic!("the runner died with seed {seed}"),
        }
        seed += 1;
    }
}
