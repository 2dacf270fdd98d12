//! Tests of the timekeeper, with workers and a clock that are driven by hand, on one thread.

use std::io;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use corewise_sync::Mutex;
use corewise_sync::sys::Reading;
use corewise_topology::AffinityScope;

use super::{Settings, Timekeeper};
use crate::handle::work::Work;
use crate::pool::PoolSpec;
use crate::pool::group::{Group, Setup, Step};
use crate::pool::spawn::Spawner;
use crate::pool::worker::Worker;
use crate::task::header::{Job, Queued};
use crate::task::ticket::MaybeTicket;
#[cfg(target_os = "linux")]
use crate::timekeeper::follow::Reminder;
use crate::timekeeper::stall::{Activity, StallReport};

const MS: Duration = Duration::from_millis(1);

/// A pool of one CPU, a timekeeper that looks after it, and what is said of the workers' threads.
#[derive(Clone)]
struct TestPool {
    group: Arc<Group>,
    keeper: Arc<Timekeeper>,
    /// L: is the lock; guards the figures that the worker's thread is said to have.
    thread: Arc<Mutex<Reading>>,
    /// L: is the lock; guards which workers are awake, whatever that says.
    awake: Arc<Mutex<Vec<u32>>>,
}

impl TestPool {
    fn new(settings: Settings) -> TestPool {
        Self::with(settings, 0, Spawner::default())
    }

    fn with(settings: Settings, max: usize, spawner: Spawner) -> TestPool {
        Self::on(1, settings, max, spawner)
    }

    /// Creates a pool as all others, but of `cpus` CPUs.
    fn on(cpus: u32, settings: Settings, max: usize, spawner: Spawner) -> TestPool {
        let thread = Arc::new(Mutex::new(Reading { ran: Duration::ZERO, asleep: false }));
        let (read, awake) = (Arc::clone(&thread), Arc::<Mutex<Vec<u32>>>::default());
        let wakes = Arc::clone(&awake);
        let times = move |worker: &Worker| {
            let Reading { ran, asleep } = *read.lock();
            Some(Reading { ran, asleep: asleep && !wakes.lock().contains(&worker.id) })
        };
        let keeper = Timekeeper::with_times(settings, Box::new(times));
        let setup = Setup::by_hand(AffinityScope::Cpu);
        let setup = Setup { keeper: keeper.of_pools(), spawner, ..setup };
        let mut specs = PoolSpec::by_hand(1, cpus);
        specs[0].max = max;
        let group = Arc::new(Group::new(setup, specs));
        keeper.look_after(&group);
        TestPool { group, keeper, thread, awake }
    }

    fn push(&self, function: impl Fn() + Send + Sync + 'static) {
        let work = Work::new(function);
        assert!(work.header().state.pend().is_ok());
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

    /// Lets time pass, in which the workers' threads run this much.
    fn pass(&self, time: Duration, ran: Duration) -> bool {
        self.thread.lock().ran += ran;
        self.keeper.advance(time)
    }

    /// Runs an item on a worker; `meanwhile` is what happens while it runs.
    fn run(&self, worker: &Arc<Worker>, meanwhile: impl FnOnce(&TestPool) + Send + 'static) {
        let (bench, meanwhile) = (self.clone(), Mutex::new(Some(meanwhile)));
        self.push(move || {
            if let Some(meanwhile) = meanwhile.lock().take() {
                meanwhile(&bench);
            }
        });
        assert_eq!(self.group.step(worker), Step::Again);
    }

    fn caught(&self) -> u64 {
        self.group.report(0).caught
    }
}

#[test]
fn stepped_automatic_cpu_intensive_lets_the_next_worker_start() {
    let bench = TestPool::new(Settings::default());
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
fn stepped_an_item_that_blocks_without_telling_gets_a_replacement() {
    let bench = TestPool::new(Settings::default());
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
        assert_eq!(Activity::of(&running[0].0), Activity::BlockedUntold);
        // It goes on, and now says that it blocks: still only one exemption.
        bench.group.begin_blocking(&running[0].0);
        assert_eq!(Activity::of(&running[0].0), Activity::Blocked);
        bench.group.end_blocking(&running[0].0);
        assert_eq!(Activity::of(&running[0].0), Activity::BlockedUntold);
        assert_eq!(bench.group.step(&next), Step::Again);
    });
    let report = bench.group.report(0);
    assert_eq!((report.blocked, report.caught), (0, 1));
}

#[test]
fn stepped_all_that_sleep_are_caught_at_one_look_and_of_those_that_compute_one() {
    for (asleep, caught) in [(true, 2), (false, 1)] {
        let bench = TestPool::on(2, Settings::default(), 0, Spawner::default());
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

/// Returns how many of many workers on two CPUs were caught. Their items sleep until the given time
/// has passed. Item 3 lets the first `wake_up` ones wake up.
fn sleepers(time: Duration, wake_up: u32) -> u64 {
    let bench = TestPool::on(2, Settings::default(), 0, Spawner::default());
    let workers: Arc<[_]> = (0..64).map(|_| bench.group.enlist(0)).collect();
    workers[2..].iter().rev().for_each(|worker| bench.park(worker));
    bench.thread.lock().asleep = true;
    let left = Arc::new(Mutex::new(time));
    for n in 0..64 {
        let (its, workers, left) = (bench.clone(), Arc::clone(&workers), Arc::clone(&left));
        bench.push(move || {
            match n {
                0 => assert_eq!(its.group.step(&workers[1]), Step::Again),
                3 => its.awake.lock().extend(0..wake_up),
                _ => {}
            }
            loop {
                let rest = left.lock().checked_sub(MS / 10);
                let Some(rest) = rest else { return };
                *left.lock() = rest;
                its.pass(MS / 10, Duration::ZERO);
                // A worker that comes in place of one that sleeps sleeps as well.
                if let Some(next) = workers.iter().find(|worker| worker.take_wake()) {
                    assert_eq!(its.group.step(next), Step::Again);
                }
            }
        });
    }
    assert_eq!(bench.group.step(&workers[0]), Step::Again);
    bench.caught()
}

#[test]
fn stepped_no_more_are_replaced_than_sleep_for_long_enough_to_be_worth_a_thread() {
    let caught = [1, 10, 30].map(|ms| sleepers(ms * MS, 0));
    assert!(caught.is_sorted() && caught[0] >= 4 && caught[2] <= 32, "{caught:?}");
}

#[test]
fn stepped_while_former_sleepers_compute_only_a_sleeper_of_a_second_is_replaced() {
    assert_eq!(sleepers(30 * MS, 2), 2);
    assert_eq!(sleepers(1_200 * MS, 2), 4);
    assert!(sleepers(30 * MS, 1) > 4, "a core is idle");
}

#[test]
fn stepped_nobody_is_caught_while_no_work_waits() {
    let bench = TestPool::new(Settings::default());
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
    let bench = TestPool::new(Settings::default());
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
        ..Settings::default()
    };
    let bench = TestPool::new(settings);
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
    assert_eq!(item.doing, Activity::Running);
    let [waits] = &report.waiting[..] else { panic!("one item waits: {report}") };
    assert_eq!((waits.doing, waits.thread, waits.site.file()), (Activity::Waiting, None, file!()));
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
    let bench = TestPool::with(Settings::default(), 8, spawner);
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

#[cfg(target_os = "linux")] // nobody is reminded elsewhere
#[test]
fn stepped_while_work_waits_somebody_is_reminded_to_look_at_the_machine_each_second() {
    let reminder = Reminder::new().expect("a descriptor");
    let settings = Settings { reminder: Some(reminder.clone()), ..Settings::default() };
    let bench = TestPool::new(settings);
    let first = bench.group.enlist(0);
    bench.run(&first, move |bench| {
        bench.pass(10 * MS, 10 * MS);
        assert!(reminder.answer().is_none(), "nothing waits");
        bench.push(|| ());
        let mut times = 0;
        for _ in 0..250 {
            bench.pass(10 * MS, 10 * MS);
            times += u32::from(reminder.answer().is_some());
        }
        assert_eq!(times, 3);
    });
}
