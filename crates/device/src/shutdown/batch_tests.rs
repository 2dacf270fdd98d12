//! Steps batches by hand, and what takes them over.

use super::*;
use crate::shutdown::policy::{Pace, WatchStep};
use crate::shutdown::{HangPolicy, Remaining};

const US: Duration = Duration::from_micros(1);

/// Creates a shutdown by counters on two CPUs, watched, of quick callbacks "d0" to "d39"; the
/// device in `needs` needs them all. A mean is known.
fn quick(timeouts: Timeouts) -> Stepped {
    let names: Vec<String> = (0..40).map(|n| format!("d{n}")).collect();
    let mut devices: Vec<(&str, Kind, &[&str])> = vec![("under d39", Async, &[])];
    devices.extend(names.iter().map(|name| match name.as_str() {
        "d39" => (name.as_str(), Async, &["under d39"][..]),
        _ => (name.as_str(), Async, &[][..]),
    }));
    let s = timed(&devices, timeouts);
    s.state.is_looked_at(true);
    s.state.count(&mut Scratch::default());
    s.state.state.lock().took = LoopTimes { callbacks: 100, in_all: 100 * US };
    s
}

fn look(s: &Stepped) -> WatchStep {
    s.state.look(s.now, &mut Pace::default(), |_| true)
}

fn remaining(s: &Stepped, name: &str) -> Option<Remaining> {
    s.state.remaining(s.now).into_iter().find(|r| r.device == name)
}

fn state(s: &Stepped, name: &str) -> Option<RemainingState> {
    remaining(s, name).map(|r| r.state)
}

const FIRST: &str = "d39+d38+d37+d36+d35+d34+d33+d32+d31+d30";

#[test]
fn stepped_quick_callbacks_are_taken_several_at_once_and_fewer_as_fewer_are_left() {
    let mut s = quick(Timeouts::default());
    assert_eq!(s.caller(""), FIRST);
    assert_eq!(s.comes(), "d29+d28+d27+d26+d25+d24+d23");
    assert_eq!(s.asked, 0, "there are two CPUs, and the watch looks");
    s.pass(US);
    let mut caller = s.caller(FIRST);
    assert_eq!(caller, "d22+d21+d20+d19+d18+d17");
    assert_eq!(state(&s, "under d39"), Some(RemainingState::Ready), "one has released it");
    let mut sizes = Vec::new();
    while caller != "done" && caller != "sleep" {
        s.pass(US);
        sizes.push(caller.split('+').count());
        caller = s.caller(&caller);
    }
    assert_eq!((caller.as_str(), sizes), ("sleep", vec![6, 4, 3, 2, 2, 1, 1, 1, 1, 1, 1, 1]));
    assert_eq!(s.helper("d29+d28+d27+d26+d25+d24+d23"), "leave");
    assert!(s.woken);
    assert_eq!(s.caller(""), "done");
    assert_eq!(s.finished().len(), 41);
    assert_eq!(look(&s), WatchStep::Over);
}

#[test]
fn stepped_a_slow_callback_in_a_batch_holds_up_nothing_but_what_needs_it() {
    let mut s = quick(Timeouts::default());
    assert_eq!(s.caller(""), FIRST);
    let first = s.batch(FIRST).unwrap();
    s.pass(US);
    assert!(s.walk_on(&first, 3).is_none());
    s.pass(SLOW / 2);
    assert_eq!(look(&s), WatchStep::Again(SLOW / 2));
    assert_eq!(state(&s, "d36"), Some(RemainingState::Running { elapsed: SLOW / 2 }));
    assert_eq!((state(&s, "d37"), state(&s, "d35")), (None, Some(RemainingState::Ready)));
    s.pass(SLOW / 2);
    assert_eq!(
        look(&s),
        WatchStep::Over,
        "now one is known to be slow, and there are no more batches"
    );
    assert_eq!(state(&s, "d36"), Some(RemainingState::Running { elapsed: SLOW }));
    assert_eq!((state(&s, "d37"), state(&s, "d35")), (None, Some(RemainingState::Ready)));
    assert_eq!(state(&s, "under d39"), Some(RemainingState::Ready), "d39 is over");
    assert_eq!(s.comes(), "d35");
    assert_eq!(s.caller(FIRST), "d34", "its thread goes on with what is ready");
    let ended = s.records().into_iter().filter(|r| r.outcome == Outcome::Ok);
    let ended: Vec<String> = ended.map(|r| s.name(r.device)).collect();
    assert_eq!(ended, ["d39", "d38", "d37", "d36"]);
}

#[test]
fn stepped_an_abort_in_a_batch_leaves_the_rest_undone() {
    for taken in [false, true] {
        let mut s = quick(Timeouts::default());
        assert_eq!(s.caller(""), FIRST);
        let first = s.batch(FIRST).unwrap();
        assert!(s.walk_on(&first, 3).is_none());
        if taken {
            s.pass(SLOW);
            let _ = look(&s);
        }
        s.state.abort.cancel();
        s.state.batch_leaves(first.devices[3], &mut s.scratch);
        assert_eq!(s.caller(""), "aborted");
        assert_eq!(s.state.remaining(s.now).len(), 38);
        assert_eq!((state(&s, "d37"), state(&s, "d36")), (None, Some(RemainingState::Ready)));
        assert_eq!(s.finished(), ["d39", "d38", "d37"]);
        assert_eq!(s.state.remaining(s.now).len(), 38, "after the end, too");
    }
}

#[test]
fn stepped_an_abort_that_does_not_wait_for_a_batch_tells_what_it_is_in() {
    let mut s = quick(Timeouts::default());
    assert_eq!(s.caller(""), FIRST);
    assert!(s.walk_on(&s.batch(FIRST).unwrap(), 3).is_none());
    s.state.abort.cancel();
    let records = s.records();
    let cancelled: Vec<_> = records.iter().filter(|r| r.outcome == Outcome::Cancelled).collect();
    assert_eq!((records.len(), cancelled.len()), (4, 1));
    assert_eq!(s.name(cancelled[0].device), "d36");
    assert_eq!(s.caller(FIRST), "aborted", "what it had begun is over");
    assert_eq!(s.state.remaining(s.now).len(), 37);
}

#[test]
fn stepped_a_callback_of_a_batch_that_ends_later_gives_the_rest_back_whichever_comes_first() {
    for (end_first, taken) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut s = quick(Timeouts::default());
        assert_eq!(s.caller(""), FIRST);
        let first = s.batch(FIRST).unwrap();
        assert!(s.walk_on(&first, 3).is_none());
        if taken {
            s.pass(SLOW);
            let _ = look(&s);
        }
        let end = |s: &Stepped| {
            s.state.ended_later(s.ended("d36").unwrap(), &mut Scratch::default()).is_some()
        };
        // Its thread still has objects of other devices, so it takes in the end itself.
        assert!(!end_first || !end(&s) && state(&s, "d36").is_some());
        let ended = s.state.batch_detaches(first.devices[3], &mut Scratch::default());
        assert!(ended.is_some() == end_first && state(&s, "d37").is_none());
        assert!(state(&s, "d36").is_some());
        if !end_first {
            assert!(end(&s));
        }
        let ended = ended.map_or_else(String::new, |ended| s.name(ended.device));
        assert_eq!(s.caller(&ended), "d35", "and there are no more batches");
        assert!(state(&s, "d36").is_none());
        assert_eq!(s.state.state.lock().left, 37);
    }
}

#[test]
fn stepped_a_callback_of_a_batch_that_is_late_is_named_and_what_fails_in_one_is_told() {
    let device = Some(300 * US);
    let mut s = quick(Timeouts { device, run: None, policy: HangPolicy::GiveUp });
    assert_eq!(s.caller(""), FIRST);
    let first = s.batch(FIRST).unwrap();
    let mut ended = s.ended("d39").unwrap();
    ended.outcome = Outcome::Failed("no".into());
    assert!(s.state.step(&first.walk, 0, ended).is_ok());
    s.pass(200 * US);
    assert_eq!((look(&s), s.news.len()), (WatchStep::Again(250 * US), 0));
    s.pass(100 * US);
    let mut ended = s.ended("d38").unwrap();
    ended.outcome = Outcome::Failed("late".into());
    let _ = look(&s);
    s.look_at_deadlines();
    assert_eq!(s.news, ["d38 is late"]);
    assert!(remaining(&s, "d38").is_some_and(|r| r.overdue));
    assert!(s.state.step(&first.walk, 1, ended).is_err());
    let notes = s.state.finish(s.now).notes;
    let no = first.devices[0];
    assert_eq!(notes.failed, [(no, "no".to_string())], "the other one counts as any other one");
}

#[test]
fn stepped_there_are_no_batches_where_somebody_has_to_see_each_callback() {
    let alone = |change: fn(&mut ShutdownState)| {
        let mut s = quick(Timeouts::default());
        change(&mut s.state);
        s.caller("")
    };
    assert_eq!(alone(|_| {}), FIRST);
    assert_eq!(alone(|s| s.observed = true), "d39");
    assert_eq!(alone(|s| s.paths = Some(vec![0; 41])), "d39");
    assert_eq!(alone(|s| s.timeouts.policy = HangPolicy::Skip), "d39");
    assert_eq!(alone(|s| s.is_looked_at(false)), "d39");
    assert_eq!(alone(|s| s.state.get_mut().slow_seen = true), "d39");
    assert_eq!(alone(|s| s.state.get_mut().sync_left = 1), "watch", "a helper is to come for them");
}
