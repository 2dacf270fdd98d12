//! What the timekeeper does, with workers and a clock that are driven by hand, on one thread.

use std::io;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::Mutex;
use corewise_topology::AffinityScope;

use super::cpu_time::Reading;
use super::{Settings, Timekeeper};
use crate::item::{Job, Queued};
use crate::pool::PoolSpec;
use crate::pool::group::{Group, Setup, Step};
use crate::pool::worker::Worker;
use crate::spawn::Spawner;
use crate::stall::{Doing, StallReport};
use crate::ticket::MaybeTicket;
use crate::work::Work;

const MS: Duration = Duration::from_millis(1);

/// A pool of one CPU, a timekeeper that looks after it, and what is said of the workers' threads.
#[derive(Clone)]
struct Bench {
    group: Arc<Group>,
    keeper: Arc<Timekeeper>,
    /// L: is the lock; guards the figures that the worker's thread is said to have.
    thread: Arc<Mutex<Reading>>,
}

impl Bench {
    fn new(settings: Settings) -> Bench {
        Self::with(settings, 0, Spawner::default())
    }

    fn with(settings: Settings, max: usize, spawner: Spawner) -> Bench {
        Self::on(1, settings, max, spawner)
    }

    /// As all others, but of so many CPUs.
    fn on(cpus: u32, settings: Settings, max: usize, spawner: Spawner) -> Bench {
        let thread = Arc::new(Mutex::new(Reading { ran: Duration::ZERO, asleep: false }));
        let read = Arc::clone(&thread);
        let keeper = Timekeeper::with_times(settings, Box::new(move |_| Some(*read.lock())));
        let setup = Setup::by_hand(AffinityScope::Cpu);
        let setup = Setup { keeper: Arc::clone(&keeper), spawner, ..setup };
        let mut specs = PoolSpec::by_hand(1, cpus);
        specs[0].max = max;
        let group = Arc::new(Group::new(setup, specs));
        keeper.look_after(&group);
        Bench { group, keeper, thread }
    }

    fn push(&self, function: impl Fn() + Send + Sync + 'static) {
        let work = Work::new(function);
        assert!(work.header().state.pend());
        let item = work.hold();
        // SAFETY: `pend` succeeded just now.
        let queued = unsafe {
            Queued::new(item, Job { ticket: MaybeTicket::none(), site: Location::caller() })
        };
        self.group.push(0, 0, queued);
    }

    fn park(&self, worker: &Arc<Worker>) {
        assert!(matches!(self.group.step(worker), Step::Park { .. }));
    }

    /// Time passes, in which the workers' threads run so much.
    fn pass(&self, time: Duration, ran: Duration) -> bool {
        self.thread.lock().ran += ran;
        self.keeper.advance(time)
    }

    /// Runs an item on a worker; `meanwhile` is what happens while it runs.
    fn run(&self, worker: &Arc<Worker>, meanwhile: impl FnOnce(&Bench) + Send + 'static) {
        let (bench, meanwhile) = (self.clone(), Mutex::new(Some(meanwhile)));
        self.push(move || {
            if let Some(meanwhile) = meanwhile.lock().take() {
                meanwhile(&bench);
            }
        });
        assert_eq!(self.group.step(worker), Step::Again);
    }

    fn caught(&self) -> u64 {
        crate::PoolReport::of_pool(&self.group, 0).caught
    }
}

#[test]
fn stepped_automatic_cpu_intensive_lets_the_next_worker_start() {
    let bench = Bench::new(Settings::default());
    let (first, second) = (bench.group.enlist(0), bench.group.enlist(0));
    bench.park(&second);
    let (next, ran) = (Arc::clone(&second), Arc::new(Mutex::new(false)));
    bench.run(&first, move |bench| {
        let says = Arc::clone(&ran);
        bench.push(move || *says.lock() = true);
        assert!(bench.pass(Duration::ZERO, Duration::ZERO), "it looks on");
        bench.pass(10 * MS, 5 * MS);
        assert!(!next.take_wake(), "it may have waited for a CPU");
        bench.pass(10 * MS, 5 * MS);
        assert!(next.take_wake());
        assert_eq!(bench.group.step(&next), Step::Again);
        assert!(*ran.lock(), "while the first still runs");
        assert_eq!(bench.caught(), 1);
    });
    // Its item is over: it is counted again, as one too many, and goes idle.
    bench.push(|| ());
    bench.park(&first);
    assert_eq!(bench.group.step(&second), Step::Again);
}

#[test]
fn stepped_automatic_cpu_intensive_can_be_switched_off() {
    let settings = Settings { cpu_intensive_after: Duration::ZERO, ..Settings::default() };
    let bench = Bench::new(settings);
    let (first, second) = (bench.group.enlist(0), bench.group.enlist(0));
    bench.park(&second);
    let next = Arc::clone(&second);
    bench.run(&first, move |bench| {
        bench.push(|| ());
        for _ in 0..100 {
            assert!(bench.pass(10 * MS, 10 * MS), "the watchdog still looks");
        }
        assert!(!next.take_wake());
    });
}

#[test]
fn stepped_an_item_that_blocks_without_telling_gets_a_replacement() {
    let bench = Bench::new(Settings::default());
    let (first, second) = (bench.group.enlist(0), bench.group.enlist(0));
    bench.park(&second);
    let next = Arc::clone(&second);
    bench.run(&first, move |bench| {
        bench.push(|| ());
        bench.thread.lock().asleep = true;
        bench.pass(Duration::ZERO, Duration::ZERO);
        assert!(!next.take_wake());
        bench.pass(10 * MS, Duration::ZERO);
        assert!(next.take_wake());
        let running = bench.group.running(0);
        assert_eq!(Doing::of(&running[0].0), Doing::BlockedUntold);
        // It goes on, and now says that it blocks: still only one excuse.
        bench.group.begin_blocking(&running[0].0);
        assert_eq!(Doing::of(&running[0].0), Doing::Blocked);
        bench.group.end_blocking(&running[0].0);
        assert_eq!(Doing::of(&running[0].0), Doing::BlockedUntold);
        assert_eq!(bench.group.step(&next), Step::Again);
    });
    let report = crate::PoolReport::of_pool(&bench.group, 0);
    assert_eq!((report.blocked, report.caught), (0, 1));
}

#[test]
fn stepped_all_that_sleep_are_caught_at_one_look_and_of_those_that_compute_one() {
    for (asleep, caught) in [(true, 2), (false, 1)] {
        let bench = Bench::on(2, Settings::default(), 0, Spawner::default());
        let workers = [(); 4].map(|()| bench.group.enlist(0));
        let [first, second, third, last] = workers.clone();
        bench.park(&last);
        bench.park(&third);
        bench.run(&first, move |bench| {
            bench.run(&second, move |bench| {
                bench.push(|| ());
                bench.push(|| ());
                bench.thread.lock().asleep = asleep;
                bench.pass(Duration::ZERO, Duration::ZERO);
                bench.pass(20 * MS, if asleep { Duration::ZERO } else { 20 * MS });
                assert_eq!(bench.caught(), caught);
                assert!(third.take_wake() && !last.take_wake(), "one searcher all the same");
                assert_eq!(bench.group.step(&third), Step::Again);
                assert_eq!(last.take_wake(), asleep, "it has a core for the next without a look");
            });
        });
    }
}

#[test]
fn stepped_nobody_is_caught_while_no_work_waits() {
    let bench = Bench::new(Settings::default());
    let (first, second) = (bench.group.enlist(0), bench.group.enlist(0));
    bench.park(&second);
    bench.run(&first, |bench| {
        for _ in 0..10 {
            assert!(!bench.pass(10 * MS, 10 * MS), "it isn't even looked at");
        }
        assert_eq!(bench.caught(), 0);
    });
}

#[test]
fn stepped_at_rest_there_is_nothing_to_wake_up_for() {
    let bench = Bench::new(Settings::default());
    let first = bench.group.enlist(0);
    bench.run(&first, |bench| {
        bench.push(|| ());
        assert!(bench.pass(Duration::ZERO, Duration::ZERO));
    });
    assert_eq!(bench.group.step(&first), Step::Again);
    bench.park(&first);
    bench.pass(10 * MS, Duration::ZERO);
    assert!(!bench.pass(10 * MS, Duration::ZERO), "after two looks that found nothing");
    assert!(!bench.pass(Duration::from_secs(100), Duration::ZERO));
}

#[test]
fn stepped_watchdog_names_the_stuck_items_and_where_they_were_queued() {
    let reports = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&reports);
    let on_stall = move |report: &StallReport| {
        told.lock().push(report.clone());
        panic!("on purpose: it must not end the timekeeper");
    };
    let settings = Settings {
        stall_after: 100 * MS,
        on_stall: Some(Arc::new(on_stall)),
        cpu_intensive_after: Duration::ZERO,
    };
    let bench = Bench::new(settings);
    let first = bench.group.enlist(0);
    let told = Arc::clone(&reports);
    bench.run(&first, move |bench| {
        bench.push(|| ());
        bench.pass(Duration::ZERO, Duration::ZERO);
        bench.pass(99 * MS, Duration::ZERO);
        assert_eq!(told.lock().len(), 0);
        bench.pass(10 * MS, Duration::ZERO);
        bench.pass(50 * MS, Duration::ZERO);
        assert_eq!(told.lock().len(), 1, "once for each 100 ms");
    });
    let report = &reports.lock()[0];
    assert_eq!(report.stalled_for, 109 * MS);
    assert_eq!(report.pool.waiting, 1);
    let [item] = &report.running[..] else { panic!("one item runs: {report}") };
    assert!(item.function.contains("stepped"), "{}", item.function);
    assert_eq!(item.site.file(), file!());
    assert_eq!(item.doing, Doing::Running);
    let [waits] = &report.waiting[..] else { panic!("one item waits: {report}") };
    assert_eq!((waits.doing, waits.thread, waits.site.file()), (Doing::Waiting, None, file!()));
    assert!(report.to_string().contains("1 items wait"), "{report}");
}

/// Refuses threads, and counts how often it was asked.
fn refusing() -> (Spawner, Arc<Mutex<u32>>) {
    let asked = Arc::new(Mutex::new(0));
    let counts = Arc::clone(&asked);
    let refuse = move |_| {
        *counts.lock() += 1;
        Err(io::Error::other("on purpose"))
    };
    (Spawner::by(refuse), asked)
}

#[test]
fn stepped_creation_failure_is_followed_by_a_retry_after_1_s() {
    let (spawner, asked) = refusing();
    let bench = Bench::with(Settings::default(), 8, spawner);
    let first = bench.group.enlist(0);
    let me = Arc::clone(&first);
    bench.run(&first, move |bench| {
        bench.group.begin_blocking(&me);
        assert_eq!(*asked.lock(), 1, "a spare worker is wanted");
        bench.push(|| ());
        for _ in 0..99 {
            bench.pass(10 * MS, Duration::ZERO);
        }
        assert_eq!(*asked.lock(), 1);
        bench.pass(10 * MS, Duration::ZERO);
        assert_eq!(*asked.lock(), 2, "after 1 s");
        for _ in 0..100 {
            bench.pass(10 * MS, Duration::ZERO);
        }
        assert_eq!(*asked.lock(), 3, "and after another");
        bench.group.end_blocking(&me);
    });
    assert_eq!(bench.group.step(&first), Step::Again, "the work that waited is run at last");
}
