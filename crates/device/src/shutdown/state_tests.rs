//! Steps shutdowns by hand: no threads, no clock, every interleaving chosen here.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use super::*;
use crate::decl::DeviceDecl;
use crate::record::Record;
use crate::shutdown::RemainingState;
use crate::shutdown::report::records;

#[path = "batch_tests.rs"]
mod batch_tests;
#[path = "hang_tests.rs"]
mod hang_tests;
#[path = "looped_tests.rs"]
mod looped_tests;

struct PlainDevice;
impl Bound for PlainDevice {}

/// A shutdown on two CPUs, with up to eight helpers.
struct Stepped {
    state: ShutdownState,
    now: Duration,
    site: Site,
    scratch: Scratch,
    /// Helpers that were asked for and that the test has not let come.
    asked: usize,
    woken: bool,
    /// Number of the caller's part, and the deputies that were asked to take it.
    lead: u64,
    deputies: Vec<u64>,
    news: Vec<String>,
    /// Batches that were begun.
    batches: Vec<Arc<CallbackBatch>>,
}

/// Creates a shutdown of devices, each with its kind and what it needs.
fn stepped(devices: &[(&str, Kind, &[&str])]) -> Stepped {
    let s = uncounted(devices);
    s.state.count(&mut Scratch::default());
    s
}

/// Creates a shutdown like [`stepped`], but the loop goes first.
fn uncounted(devices: &[(&str, Kind, &[&str])]) -> Stepped {
    timed(devices, Timeouts::default())
}

/// Creates a shutdown like [`uncounted`], with deadlines.
fn timed(devices: &[(&str, Kind, &[&str])], timeouts: Timeouts) -> Stepped {
    let decl = |(name, _, needs): &(&str, Kind, &[&str])| {
        needs.iter().fold(DeviceDecl::new(*name, "d"), |d, n| d.supplier(*n))
    };
    let graph = Arc::new(Graph::build(devices.iter().map(decl).collect()).unwrap());
    let thing =
        |kind: Kind| (kind != Kind::Absent).then(|| Arc::new(PlainDevice) as Arc<dyn Bound>);
    let bound: Vec<_> = devices.iter().map(|d| thing(d.1)).collect();
    let state = ShutdownState::new(ShutdownPlan {
        outline: Arc::new(Outline::of(graph, devices.iter().map(|d| d.1).collect())),
        bound,
        cpus: 2,
        max_helpers: 8,
        timeouts,
        paths: None,
        abort: Cancel::new(),
        observed: false,
    });
    let site = Site { worker: "w".into(), cpu: None };
    Stepped {
        state,
        now: Duration::ZERO,
        site,
        scratch: Scratch::default(),
        asked: 0,
        woken: false,
        lead: 0,
        deputies: Vec::new(),
        news: Vec::new(),
        batches: Vec::new(),
    }
}

impl Stepped {
    fn ended(&self, name: &str) -> Option<EndedCallback> {
        let device = self.state.graph().find(name)?;
        Some(EndedCallback { device, outcome: Outcome::Ok, at: self.now, cpu: None })
    }

    fn owe(&mut self, owed: HelpersWanted) {
        self.asked += owed.helpers;
        self.woken |= owed.wake;
        self.deputies.extend(owed.deputy);
        self.state.state.lock().telling = false;
        for news in owed.news {
            let name = |device| self.state.graph().name(device).to_string();
            self.news.push(match news {
                HangReport::Overdue { device, .. } => format!("{} is late", name(device)),
                HangReport::Skipped { device, done, .. } => {
                    format!("{} is skipped: {done}", name(device))
                }
                HangReport::GaveUp { left } => format!("gave up {left}"),
            });
        }
    }

    /// Checks the deadlines, as the watch does.
    fn look_at_deadlines(&mut self) -> Option<Duration> {
        let (mut next, counts) = self.state.look_at_deadlines(self.now);
        if counts {
            self.state.count(&mut self.scratch);
            next = self.state.look_at_deadlines(self.now).0;
        }
        let owed = self.state.owes(self.now, &mut Scratch::default());
        self.owe(owed);
        next
    }

    fn name(&self, device: DeviceId) -> String {
        self.state.graph().name(device).to_string()
    }

    /// Ends the callback of that place of the loop's walk.
    fn step(&self, place: usize, ended: EndedCallback) -> Result<(), EndedCallback> {
        self.state.step(&self.state.walk, place, ended)
    }

    /// Records a batch that a thread begins, and returns its devices: "a+b+c".
    fn begun(&mut self, batch: Arc<CallbackBatch>) -> String {
        let name = self.name_of(&batch);
        self.batches.push(batch);
        name
    }

    fn name_of(&self, batch: &CallbackBatch) -> String {
        let names: Vec<String> = batch.devices.iter().map(|&device| self.name(device)).collect();
        names.join("+")
    }

    fn batch(&self, name: &str) -> Option<Arc<CallbackBatch>> {
        self.batches.iter().find(|batch| self.name_of(batch) == name).cloned()
    }

    /// Ends callbacks of a batch, for its thread, until that many are over. Returns what it ended
    /// last, if the rest was taken over.
    fn walk_on(&self, batch: &CallbackBatch, until: usize) -> Option<EndedCallback> {
        let mut places = batch.walk.over()..until;
        places.find_map(|place| {
            let ended = self.ended(&self.name(batch.devices[place])).unwrap();
            self.state.step(&batch.walk, place, ended).err()
        })
    }

    /// Returns what a thread did: nothing, a callback, or all that is left of a batch.
    fn ran(&self, name: &str) -> StepResult {
        let Some(batch) = self.batch(name) else { return self.ended(name).into() };
        let taken = self.walk_on(&batch, batch.devices.len());
        taken.map_or(StepResult::Batch(batch), StepResult::One)
    }

    /// Makes a step of the caller, which has run `ended` ("" for nothing) and asks for more.
    fn caller(&mut self, ended: &str) -> String {
        self.caller_after(ended, false)
    }

    fn caller_after(&mut self, ended: &str, waited: bool) -> String {
        let ran = self.ran(ended);
        let (step, owed) = self.state.caller_step(
            self.now,
            ran,
            (&self.site, self.lead),
            waited,
            &mut self.scratch,
        );
        self.owe(owed);
        match step {
            CallerStep::Run(task) => self.name(task.device),
            CallerStep::Walk(batch) => self.begun(batch),
            CallerStep::Wait(None) => "sleep".into(),
            CallerStep::Wait(Some(_)) => "watch".into(),
            CallerStep::Done => "done".into(),
            CallerStep::Aborted => "aborted".into(),
            CallerStep::Replaced => "replaced".into(),
        }
    }

    /// Lets a helper come that was asked for.
    fn comes(&mut self) -> String {
        self.asked = self.asked.checked_sub(1).expect("no helper was asked for");
        self.state.helper_comes();
        self.helper("")
    }

    fn helper(&mut self, ended: &str) -> String {
        self.helper_after(ended, false)
    }

    fn helper_after(&mut self, ended: &str, watched: bool) -> String {
        let ran = self.ran(ended);
        let (step, owed) =
            self.state.helper_step(self.now, ran, &self.site, watched, &mut self.scratch);
        self.owe(owed);
        match step {
            HelperStep::Run(task) => self.name(task.device),
            HelperStep::Walk(batch) => self.begun(batch),
            HelperStep::Watch(_) => "watch".into(),
            HelperStep::Leave => "leave".into(),
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    fn records(&self) -> Vec<Record> {
        let mut records = records(self.state.outline(), &self.state.finish(self.now).notes);
        let graph = self.state.graph();
        records.sort_by_key(|r| (r.end, std::cmp::Reverse(graph.rank(r.device))));
        records
    }

    fn finished(&self) -> Vec<String> {
        let records = self.records();
        records.iter().map(|r| self.state.graph().name(r.device).to_string()).collect()
    }
}

use Kind::{Async, NoCallback, Sync};

#[test]
fn stepped_children_and_consumers_end_before_what_they_need() {
    let mut s = stepped(&[
        ("bus", Sync, &[]),
        ("disk", Async, &["bus"]),
        ("log", Async, &["bus"]),
        ("volume", Async, &["disk", "log"]),
    ]);
    assert_eq!(s.caller(""), "volume");
    assert_eq!(s.asked, 0, "nothing is ready beside it");
    s.pass(SLOW);
    assert_eq!(s.caller("volume"), "log");
    assert_eq!(s.asked, 1, "two were ready: one helper");
    assert_eq!(s.comes(), "disk");
    assert_eq!(s.helper("disk"), "leave");
    s.pass(SLOW);
    assert_eq!(s.caller("log"), "bus");
    s.pass(SLOW);
    assert_eq!(s.caller("bus"), "done");
    assert_eq!(s.finished(), ["volume", "disk", "log", "bus"]);
}

#[test]
fn stepped_synchronous_devices_go_in_reverse_registration_order_among_the_ready_ones() {
    let mut s = stepped(&[
        ("s1", Sync, &[]),
        ("s2", Sync, &[]),
        ("s3", Sync, &[]),
        ("a", Async, &["s3"]),
        ("b", Async, &["s3"]),
    ]);
    assert_eq!(s.caller(""), "s2", "s3 waits for a and b, and nobody waits for s3");
    assert_eq!(s.asked, 1);
    assert_eq!(s.comes(), "b");
    assert_eq!(s.helper("b"), "a");
    assert_eq!(s.helper("a"), "leave");
    assert_eq!(s.caller("s2"), "s3");
    assert_eq!(s.caller("s3"), "s1");
}

#[test]
fn stepped_inverted_registration_deadlocks_nobody() {
    // The sync child is registered before its async parent and long before the rest (3.3).
    let mut s = stepped(&[
        ("child", Sync, &["parent"]),
        ("other", Async, &[]),
        ("parent", Async, &[]),
        ("late", Sync, &[]),
    ]);
    assert_eq!(s.caller(""), "late");
    assert_eq!(s.comes(), "other");
    assert_eq!(s.caller("late"), "child");
    assert_eq!(s.helper("other"), "leave");
    assert_eq!(s.caller("child"), "parent");
    assert_eq!(s.caller("parent"), "done");
}

#[test]
fn stepped_devices_without_a_callback_complete_on_the_spot_in_long_chains() {
    let mut s = stepped(&[
        ("root", Async, &[]),
        ("n1", NoCallback, &["root"]),
        ("n2", NoCallback, &["n1"]),
        ("leaf", Async, &["n2"]),
        ("n3", NoCallback, &["leaf"]),
    ]);
    assert_eq!(s.caller(""), "leaf");
    assert_eq!(s.caller("leaf"), "root");
    assert_eq!(s.caller("root"), "done");
    let records = s.records();
    let names: Vec<&str> = records.iter().map(|r| s.state.graph().name(r.device)).collect();
    assert_eq!(names, ["n3", "leaf", "n2", "n1", "root"]);
    let root = &records[4];
    assert_eq!(root.released_by, s.state.graph().find("n1"));
}

#[test]
fn stepped_the_caller_keeps_clear_of_async_work_that_could_hold_up_a_sync_device() {
    let mut s = stepped(&[
        ("slow", Async, &[]),
        ("bus", Sync, &[]),
        ("quick", Async, &["bus"]),
        ("slow2", Async, &[]),
    ]);
    // "bus" needs only "quick" to end: that one the caller may take, the slow ones it may not.
    assert_eq!(s.caller(""), "quick");
    assert_eq!(s.comes(), "slow2");
    assert_eq!(s.caller("quick"), "bus");
    assert_eq!(s.caller("bus"), "slow", "nothing synchronous is to come: the caller helps");
}

#[test]
fn stepped_a_caller_that_rests_is_woken_for_its_synchronous_device() {
    let mut s = stepped(&[
        ("x", Async, &[]),
        ("bus", Sync, &[]),
        ("bus2", Sync, &[]),
        ("a", Async, &["bus"]),
        ("b", Async, &["bus2"]),
    ]);
    assert_eq!(s.caller(""), "watch");
    assert_eq!(s.asked, 1);
    assert_eq!(s.comes(), "b");
    s.woken = false;
    assert_eq!(s.helper("b"), "a");
    assert!(s.woken);
    assert_eq!(s.caller(""), "bus2");
}

#[test]
fn stepped_a_caller_whose_helper_does_not_come_does_the_work_itself() {
    let devices: [(&str, Kind, &[&str]); 4] =
        [("bus", Sync, &[]), ("bus2", Sync, &[]), ("a", Async, &["bus"]), ("b", Async, &["bus2"])];
    let mut s = stepped(&devices);
    assert_eq!(s.caller(""), "watch");
    s.pass(SLOW);
    assert_eq!(s.caller_after("", true), "b");
    assert_eq!(s.caller("b"), "bus2");

    let mut s = stepped(&devices);
    assert_eq!(s.caller(""), "watch");
    s.state.helper_lost();
    assert!(!s.state.caller_wait(None), "it does not sleep");
    assert_eq!(s.caller(""), "b");
    assert_eq!(s.caller("b"), "bus2");
    assert_eq!(s.caller("bus2"), "a");
    assert_eq!(s.caller("a"), "bus");
    assert_eq!(s.caller("bus"), "done");
}

fn many(n: usize) -> Vec<(String, Kind)> {
    (0..n).map(|i| (format!("d{i}"), Async)).collect()
}

fn stepped_many(n: usize) -> Stepped {
    let devices = many(n);
    let devices: Vec<(&str, Kind, &[&str])> =
        devices.iter().map(|(name, kind)| (name.as_str(), *kind, &[][..])).collect();
    stepped(&devices)
}

#[test]
fn stepped_quick_callbacks_start_one_helper_and_no_herd() {
    let mut s = stepped_many(40);
    let mut last = s.caller("");
    for _ in 1..40 {
        s.pass(Duration::from_micros(1));
        last = s.caller(&last);
    }
    assert_eq!(s.caller(&last), "done");
    assert_eq!(s.asked, 1, "it has not come before all was done");
    assert_eq!(s.comes(), "leave");
}

#[test]
fn stepped_blocking_callbacks_make_the_watcher_ask_for_more_until_all_run() {
    let mut s = stepped_many(24);
    assert_eq!(s.caller(""), "d23");
    assert_eq!(s.comes(), "d22");
    assert_eq!(s.comes(), "watch", "as many as CPUs are running");
    assert_eq!(s.asked, 0);
    s.pass(SLOW);
    assert_eq!(s.helper_after("", true), "d21");
    assert_eq!(s.asked, 5, "two were blocking: six more may run");
    for device in ["d20", "d19", "d18", "d17", "d16"] {
        assert_eq!(s.comes(), device);
    }
    assert_eq!(s.asked, 1, "the last of eight helpers is to watch");
    assert_eq!(s.comes(), "watch");
    s.pass(SLOW);
    assert_eq!(s.helper_after("", true), "d15", "eight helpers and the caller: the cap");
    assert_eq!(s.asked, 0);
    // From here on each thread takes the next one when it is through.
    assert_eq!(s.helper("d20"), "d14");
}

#[test]
fn stepped_an_abort_starts_nothing_more_and_says_what_remains() {
    let mut s = stepped(&[
        ("bus", Sync, &[]),
        ("a", Async, &["bus"]),
        ("b", Async, &["bus"]),
        ("c", Async, &["bus"]),
    ]);
    assert_eq!(s.caller(""), "c");
    assert_eq!(s.comes(), "b");
    s.pass(Duration::from_secs(3));
    s.state.abort.cancel();
    assert_eq!(s.caller("c"), "aborted");
    let remaining = s.state.remaining(s.now);
    let state =
        |name: &str| remaining.iter().find(|r| r.device == name).map(|r| r.state.clone()).unwrap();
    assert_eq!(remaining.len(), 3);
    assert_eq!(state("b"), RemainingState::Running { elapsed: Duration::from_secs(3) });
    assert_eq!(state("a"), RemainingState::Ready);
    assert_eq!(state("bus"), RemainingState::Waiting { on: vec!["a".into(), "b".into()] });
    assert_eq!(s.helper("b"), "leave");
}

#[test]
fn stepped_an_abort_wakes_a_caller_that_rests() {
    let mut s = stepped(&[("bus", Sync, &[]), ("a", Async, &["bus"]), ("b", Async, &["bus"])]);
    assert_eq!(s.caller(""), "b");
    assert_eq!(s.comes(), "a");
    assert_eq!(s.caller("b"), "sleep");
    s.state.abort.cancel();
    assert!(!s.state.caller_wait(None));
    assert_eq!(s.caller(""), "aborted");
}
