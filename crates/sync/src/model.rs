//! For models: the proof that one can see what it is there to see, and choices left to chance.

#[cfg(loom)]
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

/// A number below `below`, which must not be 0: part of the schedule, so that the same seed chooses
/// the same again. Only inside a shuttle execution.
#[cfg(shuttle)]
pub fn choose(below: u64) -> u64 {
    use shuttle::rand::RngCore as _;
    shuttle::rand::thread_rng().next_u64() % below
}

/// Random schedules of a scenario, in shuttle. Those that fail print what replays them: CONTRIBUTING.md says how.
#[cfg(shuttle)]
pub mod schedules {
    use std::env::{var, var_os};

    use shuttle::scheduler::{
        PctScheduler, RandomScheduler, ReplayScheduler, Scheduler,
        UncontrolledNondeterminismCheckScheduler,
    };
    use shuttle::{Config, FailurePersistence, Runner};

    /// How many schedules a test runs.
    #[derive(Clone, Copy, Debug)]
    pub struct Schedules {
        /// Each time.
        pub short: usize,
        /// With `COREWISE_LONG`.
        pub long: usize,
    }

    impl Schedules {
        fn now(self) -> usize {
            if var_os("SHUTTLE_RANDOM_SEED").is_some() {
                1
            } else if var_os("COREWISE_LONG").is_some() {
                self.long
            } else {
                self.short
            }
        }
    }

    fn run(
        scheduler: impl Scheduler + 'static,
        persist: FailurePersistence,
        scenario: impl Fn() + Send + Sync + 'static,
    ) {
        let mut config = Config::new();
        config.stack_size = 0x4_0000;
        config.failure_persistence = persist;
        config.silence_warnings = true;
        Runner::new(scheduler, config).run(move || {
            crate::facade::backend::clock::begin();
            scenario();
        });
    }

    /// Any thread may go on at each step. A schedule that fails prints its seed.
    pub fn random(schedules: Schedules, scenario: impl Fn() + Send + Sync + 'static) {
        run(RandomScheduler::new(schedules.now()), FailurePersistence::None, scenario);
    }

    /// Three preemptions, at random places. What fails prints the schedule itself, and `COREWISE_SHUTTLE_SCHEDULE`
    /// replays it.
    pub fn few_preemptions(schedules: Schedules, scenario: impl Fn() + Send + Sync + 'static) {
        match var("COREWISE_SHUTTLE_SCHEDULE") {
            Ok(schedule) => {
                let replay = ReplayScheduler::new_from_encoded(&schedule);
                run(replay, FailurePersistence::None, scenario);
            }
            Err(_) => {
                run(PctScheduler::new(3, schedules.now()), FailurePersistence::Print, scenario);
            }
        }
    }

    /// Runs each schedule twice: the second time it has to be the same.
    pub fn replayed(schedules: Schedules, scenario: impl Fn() + Send + Sync + 'static) {
        let random = RandomScheduler::new(schedules.now());
        let twice = UncontrolledNondeterminismCheckScheduler::new(random);
        run(twice, FailurePersistence::Print, scenario);
    }
}

/// Runs `model` in every interleaving with at most so many preemptions. A store and a load that pass each other need
/// one on each side; the full space of three threads is mostly too large.
#[cfg(loom)]
pub fn bounded(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// Runs `model`, which has to fail with a message that contains `what`: its own assertion's, or that of a cell that
/// is touched by two. For what ends in a deadlock there is [`must_fail`].
///
/// # Panics
/// Where the model passes, or fails for another reason.
#[cfg(loom)]
pub fn must_panic(what: &str, model: impl FnOnce()) {
    let failed = catch_unwind(AssertUnwindSafe(model));
    let payload = failed.expect_err("the model had to fail, and passed");
    let message = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or_default();
    assert!(message.contains(what), "failed for another reason: {message}");
}

const CHILD: &str = "COREWISE_MODEL_THAT_FAILS";

/// Runs `model`, which has to fail, in a process of its own (a deadlock that is found can end in
/// an abort, since the model's objects are dropped outside of it), and returns what that process
/// printed.
///
/// Call it as the whole body of a test; `test` is that test's full name, as the test runner prints
/// it.
///
/// # Panics
/// Where the model passes: then the fence, or whatever was taken out, isn't needed, or the model
/// doesn't look where it would be.
pub fn must_fail(test: &str, model: impl FnOnce()) -> String {
    if std::env::var_os(CHILD).is_some() {
        model();
        return String::new();
    }
    let own = std::env::current_exe().expect("a test knows its own binary");
    let output = Command::new(own)
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .env("RUST_BACKTRACE", "0")
        .output()
        .expect("a test can run its own binary");
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(said.contains("running 1 test"), "no test is called {test}:\n{said}");
    assert!(!output.status.success(), "the model {test} had to fail, and passed:\n{said}");
    said
}
