//! Steps the loop, and the transition from it to the counters.

use fastrand::Rng;

use super::*;
use crate::shutdown::policy::{Pace, WatchStep};

/// Compares random runs with a reference: any order of steps must respect the edges, and end.
#[test]
fn stepped_random_graphs_and_random_interleavings_end_in_dependency_order() {
    let mut batches = 0;
    for seed in 1..=200u64 {
        let mut rng = Rng::with_seed(seed);
        let most = [30, 200][rng.usize(..2)];
        let n = 2 + rng.usize(..most);
        let names: Vec<String> = (0..n).map(|i| format!("d{i}")).collect();
        let mut kinds: Vec<Kind> =
            (0..n).map(|_| [Sync, Async, Async, NoCallback][rng.usize(..4)]).collect();
        kinds[0] = Async; // Where there is no callback at all nothing is counted.
        // Needs point to earlier devices of a shuffled order, so registration is often inverted.
        let mut shuffled: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            shuffled.swap(i, rng.usize(..i + 1));
        }
        let mut needs: Vec<Vec<&str>> = vec![Vec::new(); n];
        for i in 1..n {
            for _ in 0..rng.usize(..4) {
                needs[shuffled[i]].push(&names[shuffled[rng.usize(..i)]]);
            }
        }
        let devices: Vec<(&str, Kind, &[&str])> =
            (0..n).map(|i| (names[i].as_str(), kinds[i], needs[i].as_slice())).collect();
        let mut s = uncounted(&devices);
        s.state.is_looked_at(rng.usize(..2) == 0);
        let ran = loop_randomly(&mut s, &mut rng);
        let caller = s.caller(&ran);
        run_randomly(&mut s, &mut rng, caller);
        let done = s.finished();
        assert_eq!(done.len(), n, "seed {seed}");
        let place = |name: &str| done.iter().position(|d| d == name).unwrap();
        for (name, _, needs) in &devices {
            for need in *needs {
                assert!(place(name) < place(need), "seed {seed}: {need} before {name}");
            }
        }
        batches += s.batches.len();
    }
    assert!(batches > 100, "{batches}");
}

/// Makes some steps of the loop; then somebody begins to count, during the callback that is
/// returned. Now and then the counting begins before it all.
fn loop_randomly(s: &mut Stepped, rng: &mut Rng) -> String {
    let calls = s.state.outline().calls.clone();
    let before = rng.usize(..calls.len() + 1);
    if before == calls.len() {
        s.state.count(&mut Scratch::default());
        assert!(!s.state.loop_begins(&s.site, None));
        return String::new();
    }
    assert!(s.state.loop_begins(&s.site, None));
    let by_itself = rng.usize(..3) == 0;
    for (place, id) in calls.into_iter().enumerate() {
        let name = s.state.graph().name(id).to_string();
        if place == before && by_itself {
            assert!(s.state.count_between(&mut Scratch::default()));
            return String::new();
        }
        s.pass(Duration::from_micros(5));
        if place == before {
            s.state.count(&mut Scratch::default());
        }
        match s.step(place, s.ended(&name).unwrap()) {
            Ok(()) => assert!(place < before),
            Err(ended) => return s.state.graph().name(ended.device).to_string(),
        }
    }
    unreachable!("the counting begins before the last callback ends");
}

/// Checks the loop, whose thread sleeps.
fn look(s: &Stepped, pace: &mut Pace) -> WatchStep {
    s.state.look(s.now, pace, |_| true)
}

#[test]
fn stepped_a_loop_of_quick_callbacks_is_left_alone_until_one_is_slow_and_others_could_help() {
    let mut s = uncounted(&[
        ("bus", Sync, &[]),
        ("a", Async, &["bus"]),
        ("b", Async, &["bus"]),
        ("c", Async, &["bus"]),
    ]);
    let id = |s: &Stepped, name: &str| s.state.graph().find(name).unwrap();
    let mut pace = Pace::default();
    assert!(s.state.loop_begins(&s.site, None));
    assert_eq!(look(&s, &mut pace), WatchStep::Again(SLOW), "it has just begun");
    s.pass(Duration::from_micros(300));
    assert_eq!(look(&s, &mut pace), WatchStep::Again(Duration::from_micros(700)));
    assert!(s.step(0, s.ended("c").unwrap()).is_ok());
    s.pass(SLOW);
    let computes = s.state.look(s.now, &mut pace, |_| false);
    assert_eq!(computes, WatchStep::Again(SLOW), "it may be waiting for its CPU");
    s.pass(SLOW);
    assert_eq!(look(&s, &mut pace), WatchStep::Count);
    s.state.count(&mut Scratch::default());
    let owed = s.state.owes(s.now, &mut Scratch::default());
    s.owe(owed);
    assert_eq!(s.asked, 1);
    assert_eq!(s.comes(), "a");
    assert_eq!(look(&s, &mut pace), WatchStep::Over);
    s.pass(SLOW);
    assert!(s.step(1, s.ended("b").unwrap()).is_err(), "the counters have to know");
    assert_eq!(s.caller("b"), "sleep");
    s.pass(SLOW);
    assert_eq!(s.helper("a"), "leave");
    assert!(s.woken);
    assert_eq!(s.caller(""), "bus");
    assert_eq!(s.caller("bus"), "done");
    assert_eq!(s.state.walk.over(), 1, "only 'c' ended before the counting");
    let records = s.records();
    let released: Vec<_> = records.iter().map(|r| r.released_by).collect();
    assert_eq!(released, [None, None, None, Some(id(&s, "a"))]);
    assert!(records[0].end <= records[1].start, "'b' began when 'c' had ended");
}

#[test]
fn stepped_a_slow_loop_that_nobody_could_help_stays_a_loop() {
    let s = &mut uncounted(&[
        ("bus", Sync, &[]),
        ("a", Async, &["bus"]),
        ("b", Async, &["bus"]),
        ("s", Sync, &[]),
    ]);
    let mut pace = Pace::default();
    assert!(s.state.loop_begins(&s.site, None));
    for (place, name) in ["s", "b"].into_iter().enumerate() {
        assert!(matches!(look(s, &mut pace), WatchStep::Again(_)));
        assert!(s.step(place, s.ended(name).unwrap()).is_ok());
    }
    s.pass(SLOW * 5);
    assert_eq!(look(s, &mut pace), WatchStep::Over, "no asynchronous device is left to begin");
    assert!(s.step(2, s.ended("a").unwrap()).is_ok());
    assert_eq!(look(s, &mut pace), WatchStep::Over);
}

/// Creates a loop on that many CPUs over as many devices that need the bus, in chains of `long`. It
/// takes `each` for a callback and has ended four of them.
fn looping(cpus: usize, devices: usize, long: usize, each: Duration) -> Stepped {
    let names: Vec<String> = (0..devices).map(|n| format!("d{n}")).collect();
    let needs: Vec<[&str; 1]> = (0..devices)
        .map(|n| if n % long == 0 { ["bus"] } else { [names[n - 1].as_str()] })
        .collect();
    let mut all: Vec<(&str, Kind, &[&str])> = vec![("bus", Sync, &[])];
    all.extend(names.iter().zip(&needs).map(|(name, needs)| (name.as_str(), Async, &needs[..])));
    let mut s = uncounted(&all);
    s.state.cpus = cpus;
    s.state.state.lock().target = cpus;
    assert!(s.state.loop_begins(&s.site, None));
    for place in 0..4 {
        assert!(!s.state.helpers_pay(0) && !s.state.helpers_pay(1), "nothing is known");
        s.pass(each);
        let name = s.state.graph().name(s.state.outline.calls[place]).to_string();
        assert!(s.step(place, s.ended(&name).unwrap()).is_ok());
    }
    s
}

#[test]
fn stepped_a_loop_of_quick_callbacks_counts_and_asks_for_helpers_where_what_is_left_pays() {
    let each = Duration::from_micros(10);
    let mut s = looping(8, 600, 1, each);
    assert!(s.state.helpers_pay(4));
    assert!(s.state.count_between(&mut s.scratch));
    assert!(!s.state.count_between(&mut s.scratch), "once");
    let first = s.caller("");
    assert!(first.starts_with('d'), "{first}");
    assert_eq!(s.asked, 7, "as many as there are CPUs, the caller's left out");
    for _ in 0..7 {
        assert_ne!(s.comes(), "leave");
    }
    assert_eq!(s.state.state.lock().running.len(), 8);
}

#[test]
fn stepped_a_loop_goes_on_alone_where_little_is_left_or_nobody_could_run_it_meanwhile() {
    let each = Duration::from_micros(10);
    assert!(!looping(1, 600, 1, each).state.helpers_pay(4), "there is one CPU");
    assert!(!looping(8, 600, 600, each).state.helpers_pay(4), "each needs the one before");
    assert!(looping(8, 600, 300, each).state.helpers_pay(4), "two at once");
    let s = looping(8, 600, 1, each);
    assert!(!s.state.helpers_pay(590), "ten are left");
    assert!(!looping(8, 600, 1, each / 50).state.helpers_pay(4), "they are over before one comes");
}

#[test]
fn stepped_fewer_helpers_are_asked_for_than_there_are_cpus_where_less_is_left() {
    let mut s = looping(64, 60, 1, Duration::from_micros(10));
    assert!(s.state.helpers_pay(4) && s.state.count_between(&mut s.scratch));
    let _ = s.caller("");
    assert_eq!(s.asked, 5, "a tenth of a millisecond for each");
}

#[test]
fn stepped_counting_that_begins_after_the_end_or_an_abort_begins_nothing() {
    let s = &mut uncounted(&[("a", Async, &[])]);
    assert!(s.state.loop_begins(&s.site, None));
    assert!(s.step(0, s.ended("a").unwrap()).is_ok());
    s.state.count(&mut Scratch::default());
    assert!(!s.state.is_counted());

    let s = &mut uncounted(&[("a", Async, &[]), ("b", Async, &[])]);
    s.state.abort.cancel();
    s.state.count(&mut Scratch::default());
    assert!(!s.state.is_counted());
}

#[test]
fn stepped_a_device_that_the_counting_finds_free_knows_its_last_blocker() {
    let mut s = stepped(&[
        ("root", Async, &[]),
        ("mid", NoCallback, &["root"]),
        ("leaf", NoCallback, &["mid"]),
        ("other", Async, &[]),
    ]);
    assert_eq!(s.caller(""), "other");
    assert_eq!(s.caller("other"), "root");
    assert_eq!(s.caller("root"), "done");
    let id = |name: &str| s.state.graph().find(name);
    let records = s.records();
    let by = |name: &str| records.iter().find(|r| Some(r.device) == id(name)).unwrap().released_by;
    assert_eq!((by("leaf"), by("mid"), by("root")), (None, id("leaf"), id("mid")));
}

/// Lets the caller, the helpers and the watch step in random order until the caller is done.
fn run_randomly(s: &mut Stepped, rng: &mut Rng, mut caller: String) {
    let mut helpers: Vec<String> = Vec::new();
    let mut later: Vec<String> = Vec::new();
    let slow = [0, 0, 1, 15][rng.usize(..4)];
    for _ in 0..20_000 {
        if caller == "done" {
            assert!(later.is_empty() && s.state.state.lock().walks.is_empty());
            return;
        }
        let most = if rng.usize(..30) < slow { 700 } else { 3 };
        s.pass(Duration::from_micros(rng.usize(..most) as u64));
        match rng.usize(..6) {
            0 if caller == "sleep" && !s.woken => {}
            0 => {
                let waited = caller == "watch" && !std::mem::take(&mut s.woken);
                s.woken = false;
                caller = walk_randomly(s, rng, caller, &mut later);
                let ran = if caller == "watch" || caller == "sleep" { "" } else { &caller };
                if !is_in_batch(s, ran) {
                    caller = s.caller_after(ran, waited);
                }
            }
            1 if s.asked > 0 => {
                let step = s.comes();
                if step != "leave" {
                    helpers.push(step);
                }
            }
            2 => {
                let _ = look(s, &mut Pace::default());
                let owed = s.state.owes(s.now, &mut Scratch::default());
                s.owe(owed);
            }
            3 if !later.is_empty() => {
                let device = later.swap_remove(rng.usize(..later.len()));
                let ended = s.ended(&device).unwrap();
                let owed = s.state.ended_later(ended, &mut Scratch::default()).unwrap();
                s.owe(owed);
            }
            _ if !helpers.is_empty() => {
                let i = rng.usize(..helpers.len());
                let before = helpers.swap_remove(i);
                let before = walk_randomly(s, rng, before, &mut later);
                let watched = before == "watch";
                let after = match is_in_batch(s, &before) {
                    true => before,
                    false => s.helper_after(if watched { "" } else { &before }, watched),
                };
                if after != "leave" {
                    helpers.push(after);
                }
            }
            _ => {}
        }
    }
    panic!("no end in sight: caller {caller}, helpers {helpers:?}, later {later:?}");
}

/// Returns true if some callback of the batch has not ended.
fn is_in_batch(s: &Stepped, name: &str) -> bool {
    s.batch(name).is_some_and(|batch| batch.is_at().is_some())
}

/// Ends one callback of a batch for the thread that is in it; or the callback returns, and ends
/// `later`. Returns the callback or batch that the thread is in then.
fn walk_randomly(s: &mut Stepped, rng: &mut Rng, name: String, later: &mut Vec<String>) -> String {
    let Some(batch) = s.batch(&name) else { return name };
    let over = batch.walk.over();
    if rng.usize(..60) > 0 {
        let taken = s.walk_on(&batch, over + 1);
        return taken.map_or(name, |ended| s.name(ended.device));
    }
    let device = batch.devices[over];
    let early = rng.usize(..2) == 0;
    if early {
        // Its end comes before its thread records that it has returned.
        let ended = s.ended(&s.name(device)).unwrap();
        assert!(s.state.ended_later(ended, &mut Scratch::default()).is_none());
    } else {
        later.push(s.name(device));
    }
    let ended = s.state.batch_detaches(device, &mut Scratch::default());
    assert_eq!(ended.is_some(), early);
    ended.map_or_else(String::new, |ended| s.name(ended.device))
}

#[test]
fn stepped_the_longest_way_to_go_is_taken_first() {
    let devices: [(&str, Kind, &[&str]); 5] = [
        ("end", Async, &[]),
        ("short", Async, &[]),
        ("long chain", Async, &["end"]),
        ("long", Async, &[]),
        ("unknown", Async, &[]),
    ];
    let mut s = uncounted(&devices);
    let expected = [5, 1, 1, 4, 0];
    let graph = s.state.graph().clone();
    s.state.paths = Some(policy::paths(graph.order(), |id| graph.needs(id), &expected));
    s.state.count(&mut Scratch::default());
    let mut order = vec![s.caller("")];
    while order.last().is_some_and(|last| last != "done") {
        let last = order.last().cloned().unwrap();
        order.push(s.caller(&last));
    }
    assert_eq!(order, ["long chain", "end", "long", "short", "unknown", "done"]);
}
