//! Storms: all operations on a queue, at random and at once, against requests whose data is
//! checked. The stall detector finds a lost request by its stalled lane; a request that is done
//! twice is found by its number. Some 400 000 requests, or thirteen million with `COREWISE_LONG`.
//! `README.md` lists its parts.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)] // a test says what it expects by unwrapping it
#![allow(unreachable_pub)] // its modules are its own

#[path = "../common/mod.rs"]
mod common;
mod disk;
mod lane;
mod tally;
mod weather;

use corewise_topology::CpuId;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use common::{Rig, Rng, STALL};
use corewise_blockmq::{Completer, Deadline, HctxStats, IoScheduler, Queue, RqAffinity, TagSet};
use corewise_smp::Smp;
use corewise_sync::Countdown;
use corewise_sync::atomic::{AtomicBool, Ordering};
use disk::{Build, CPUS, DEPTH, Disk, Fault, LANES};
use lane::Lane;
use tally::Tally;

/// The parameters of a storm.
#[derive(Clone, Copy)]
struct Storm {
    /// Number of requests, and that of a long run.
    requests: [u64; 2],
    /// Number of clients. With one or two, no other thread comes by and runs a forgotten request.
    lanes: u64,
    /// Number of queues, each with a disk.
    queues: usize,
    /// True if they, and others, share one set of tags.
    share_tags: bool,
    /// True if the queues have the `deadline` scheduler.
    deadline: bool,
    /// True if requests end on their submitters' CPUs.
    end_there: bool,
    /// True if a timeout finds the requests that the disk forgets.
    time_out: bool,
    may_block: bool,
    fault: Fault,
    /// Time without the end of a request after which a storm counts as stalled.
    patience: Duration,
}

/// The end of a storm.
#[derive(Debug)]
enum Outcome {
    /// All requests have ended; the list has the errors found.
    Over(Vec<String>),
    /// The state of each hardware queue after a stall: no request has ended for long enough that
    /// one must be lost.
    Stalled(String),
}

const FAIR: Storm = Storm {
    requests: [50_000, 2_000_000],
    lanes: LANES,
    queues: 1,
    share_tags: false,
    deadline: false,
    end_there: false,
    time_out: false,
    may_block: false,
    fault: Fault::None,
    patience: STALL,
};

#[test]
fn no_request_is_lost_doubled_or_stalled_in_any_storm() {
    let with_timeouts = Storm { time_out: true, ..FAIR };
    for (what, storm) in [
        ("changes", Storm { requests: [150_000, 6_000_000], deadline: true, ..with_timeouts }),
        ("requests that end on their submitters' CPUs", Storm { end_there: true, ..with_timeouts }),
        (
            "two disks share tags with others",
            Storm { queues: 2, share_tags: true, ..with_timeouts },
        ),
        ("the driver may block", Storm { may_block: true, ..FAIR }),
        ("no later submitter", Storm { requests: [30_000, 1_000_000], lanes: 1, ..FAIR }),
    ] {
        match storm.rage() {
            Outcome::Over(wrong) => assert!(wrong.is_empty(), "{what}: {wrong:#?}"),
            Outcome::Stalled(how) => panic!("{what}: stalled {how}"),
        }
    }
}

#[test]
fn a_storm_in_which_one_request_is_lost_is_found_to_stall() {
    let patience = Duration::from_secs(2);
    let storm = Storm { requests: [20_000; 2], fault: Fault::Lose, patience, ..FAIR };
    assert!(matches!(storm.rage(), Outcome::Stalled(_)));
}

#[test]
fn a_storm_in_which_one_write_is_done_twice_finds_it() {
    let storm = Storm { requests: [20_000; 2], fault: Fault::Double, ..FAIR };
    let outcome = storm.rage();
    assert!(
        matches!(&outcome, Outcome::Over(wrong) if wrong.iter().any(|what| what.contains("twice"))),
        "{outcome:?}"
    );
}

impl Storm {
    fn rage(self) -> Outcome {
        let total = self.requests[usize::from(std::env::var_os("COREWISE_LONG").is_some())];
        let rig = Rig::synthetic("l3:2 core:4 pu:1");
        let smp = Smp::new(&rig.machine).unwrap();
        let followed = smp.clone();
        let _follows = rig.machine.on_change(move |_| drop(followed.follow_machine()));
        let completer = Completer::new(&smp);
        let tags = self.share_tags.then(|| TagSet::new(DEPTH, CPUS as usize));
        let tally = Arc::new(Tally::default());
        let build = Build { forgets: self.time_out, may_block: self.may_block, fault: self.fault };
        let mut threads = Vec::new();
        let disks: Vec<_> = (0..self.queues)
            .map(|_| {
                let (disk, platter, its) = Disk::new(build, &tally);
                threads.extend(its);
                let mut builder = Queue::builder(&rig.machine, Arc::new(disk));
                if let Some(tags) = &tags {
                    builder = builder.tags(tags);
                }
                if self.deadline {
                    builder = builder.scheduler(IoScheduler::Deadline(Deadline::default()));
                }
                if self.end_there {
                    builder = builder.complete_with(&completer, RqAffinity::Cpu);
                }
                if self.time_out {
                    builder = builder.timeout(Some(Duration::from_millis(5)));
                }
                (builder.build(&rig.wq), Arc::new(platter))
            })
            .collect();
        let left = Arc::new(Countdown::new(self.lanes as usize));
        let over = Arc::new(AtomicBool::new(false));
        for seed in 1..3 {
            let (disks, machine) = (disks.clone(), rig.machine.clone());
            let (over, tally) = (Arc::clone(&over), Arc::clone(&tally));
            let calm = self.lanes < LANES;
            threads.push(thread::spawn(move || {
                let mut rng = Rng::new(seed);
                while !over.load(Ordering::Relaxed) {
                    weather::disturb(&disks, &machine, &mut rng);
                    // A run that is forgotten would be made up for by the next disturbance.
                    let before = tally.completed();
                    while calm && tally.completed() == before && !over.load(Ordering::Relaxed) {
                        thread::yield_now();
                    }
                    thread::yield_now();
                }
            }));
        }
        for (cpu, tags) in tags.iter().flat_map(|tags| [(0, tags), (1, tags)]) {
            let (tags, over) = (tags.clone(), Arc::clone(&over));
            threads.push(thread::spawn(move || weather::want_tags(cpu, &tags, &over)));
        }
        for number in 0..self.lanes {
            let (queue, platter) = &disks[number as usize % disks.len()];
            let lane = Lane {
                number,
                queue: Arc::clone(queue),
                platter: Arc::clone(platter),
                tally: Arc::clone(&tally),
                requests: total / self.lanes,
                left: Arc::clone(&left),
                state: lane::State::default(),
            };
            Arc::new(lane).go_on();
        }
        let ended = self.ends(&left, &tally);
        over.store(true, Ordering::Relaxed);
        if !ended {
            let stats: Vec<_> = disks.iter().map(|(queue, _)| (queue, queue.stats())).collect();
            let found = format!("after {}: {stats:#?}", tally.completed());
            // A thread may wait for the lost request for ever: none of them is joined.
            std::mem::forget((rig, smp, disks, threads));
            return Outcome::Stalled(found);
        }
        // The disks' threads end with their disks.
        let others = threads.split_off(2 * self.queues);
        others.into_iter().for_each(|other| other.join().unwrap());
        for cpu in 0..CPUS as u32 {
            rig.machine.set_online(CpuId::new(cpu), true).unwrap();
        }
        let mut wrong = tally.wrong();
        for (queue, _) in &disks {
            queue.drain();
            self.add_up(queue, &mut wrong);
        }
        let sent = tally.submitted.load(Ordering::Relaxed);
        assert!(sent >= total / self.lanes * self.lanes);
        assert_eq!(tally.completed(), sent);
        let stats = completer.stats();
        assert!(!self.end_there || (stats.sent > 0 && stats.calls <= stats.sent), "{stats:?}");
        drop(disks);
        assert!(tags.is_none_or(|tags| tags.in_use() == 0), "a tag was lost");
        for thread in threads {
            thread.join().unwrap();
        }
        Outcome::Over(wrong)
    }

    /// Returns true if all requests end: the stall detector, to which some request must end in each
    /// stretch of time.
    fn ends(&self, left: &Countdown, tally: &Tally) -> bool {
        let mut before = u64::MAX;
        loop {
            if left.wait_timeout(self.patience) {
                return true;
            }
            let now = tally.completed();
            if now == std::mem::replace(&mut before, now) {
                return false;
            }
        }
    }

    /// Checks the queue's counters at the end.
    fn add_up(&self, queue: &Arc<Queue>, wrong: &mut Vec<String>) {
        // No runner has a tag in hand.
        let quiesced = queue.quiesce();
        let stats = queue.stats();
        drop(quiesced);
        let sum = |f: fn(&HctxStats) -> u64| stats.iter().map(f).sum::<u64>();
        if (sum(|s| s.in_flight), queue.inside()) != (0, 0)
            || sum(|s| s.dispatched) != sum(|s| s.completed) + sum(|s| s.requeues)
        {
            wrong.push(format!("the counters of {queue:?} don't add up: {stats:#?}"));
        }
        if self.lanes < LANES {
            return;
        }
        // These did happen.
        assert!(sum(|s| s.refused) > 0 && sum(|s| s.after_unquiesce) > 0, "{stats:#?}");
        assert!(sum(|s| s.busy) > 0 && sum(|s| s.tag_waits) > 0, "{stats:#?}");
        assert!(sum(|s| s.merged) > 0 && sum(|s| s.requeues) > 0, "{stats:#?}");
        assert!(!self.time_out || sum(|s| s.timeouts) > 0, "{stats:#?}");
        let disk = queue.disk_stats();
        // A storm asks for no extents, and reads nothing ahead.
        let asked = [&disk.reads, &disk.writes, &disk.flushes, &disk.discards, &disk.write_zeroes];
        assert!(asked.iter().all(|of_op| of_op.requests > 0), "{disk:?}");
    }
}
