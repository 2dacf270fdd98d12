//! Steps deadlines: the names, the takeover, and what each policy does.

use super::*;
use crate::shutdown::HangPolicy;

const SECOND: Duration = Duration::from_secs(1);

/// Creates a shutdown with three seconds for each device, and `policy` after that.
fn with_deadlines(policy: HangPolicy, devices: &[(&str, Kind, &[&str])]) -> Stepped {
    let mut s = timed(devices, Timeouts { device: Some(3 * SECOND), run: None, policy });
    s.state.count(&mut s.scratch);
    s
}

/// Devices of which "disk" hangs; "bus" and "root" wait for it, and nothing else does.
const DEVICES: [(&str, Kind, &[&str]); 6] = [
    ("root", Sync, &[]),
    ("bus", Async, &["root"]),
    ("disk", Async, &["bus"]),
    ("side", Sync, &[]),
    ("other", Async, &["side"]),
    ("late", Async, &["other"]),
];

/// Steps until "disk" hangs in a helper and everything that doesn't depend on it is shut down.
fn disk_hangs(policy: HangPolicy) -> Stepped {
    let mut s = with_deadlines(policy, &DEVICES);
    assert_eq!(s.caller(""), "watch");
    assert_eq!(s.comes(), "late");
    assert_eq!(s.helper("late"), "other");
    assert_eq!(s.helper("other"), "disk");
    assert_eq!(s.caller(""), "side");
    assert_eq!(s.caller("side"), "sleep");
    assert_eq!(s.look_at_deadlines(), Some(3 * SECOND));
    s.pass(2 * SECOND);
    assert_eq!(s.look_at_deadlines(), Some(SECOND));
    assert!(s.news.is_empty());
    s.woken = false;
    s.pass(SECOND);
    s
}

#[test]
fn stepped_a_callback_that_is_late_is_named_once_and_waited_for() {
    let mut s = disk_hangs(HangPolicy::WaitOn);
    assert_eq!(s.look_at_deadlines(), Some(3 * SECOND));
    assert_eq!(s.news, ["disk is late"]);
    s.pass(3 * SECOND);
    assert_eq!(s.look_at_deadlines(), Some(3 * SECOND));
    assert_eq!(s.news.len(), 1);
    let remaining = s.state.remaining(s.now);
    let words: Vec<String> = remaining.iter().map(ToString::to_string).collect();
    assert_eq!(
        words,
        [
            "disk has been running for 6.0s (late)",
            "bus waits for disk (disk has been running for 6.0s)",
            "root waits for bus (through bus for disk, which has been running for 6.0s)",
        ]
    );
    assert_eq!(s.helper("disk"), "bus");
    assert_eq!(s.helper("bus"), "leave");
    assert_eq!(s.caller(""), "root");
    assert_eq!(s.caller("root"), "done");
    let late = s.state.finish(s.now).notes.late;
    assert_eq!((late[0].after, late[0].took), (3 * SECOND, Some(6 * SECOND)));
}

#[test]
fn stepped_a_skipped_device_releases_those_behind_it_and_its_end_counts_for_nothing() {
    let mut s = disk_hangs(HangPolicy::Skip);
    s.look_at_deadlines();
    assert_eq!(s.news, ["disk is late"], "nobody listens for ends, so nobody is told of this one");
    assert!(s.woken, "the caller may take \"bus\"");
    assert_eq!(s.caller(""), "bus");
    let left = s.state.remaining(s.now);
    assert!(left[0].skipped && left[0].device == "disk" && left[0].behind.is_none());
    assert_eq!(left[2].state, RemainingState::Waiting { on: vec!["bus".into()] });
    s.pass(SECOND);
    assert_eq!(s.helper("disk"), "leave");
    assert_eq!(s.caller("bus"), "root");
    assert_eq!(s.caller("root"), "done");
    assert!(s.state.remaining(s.now).is_empty(), "it has ended after all");
    let notes = s.state.finish(s.now).notes;
    assert!(notes.late[0].skipped);
    assert_eq!(notes.late[0].took, Some(4 * SECOND));
    let failed: Vec<_> = notes.notes.iter().filter(|n| n.outcome != Outcome::Ok).collect();
    assert_eq!(failed.len(), 1);
}

#[test]
fn stepped_a_callback_that_ends_while_it_is_to_be_skipped_is_concluded_once() {
    let mut s = disk_hangs(HangPolicy::Skip);
    // The helper is between its callback and its step.
    s.state.state.lock().running[0].concluding = true;
    s.look_at_deadlines();
    assert!(s.state.state.lock().skipped.is_empty());
    assert_eq!(s.helper("disk"), "bus");
    assert_eq!(s.helper("bus"), "leave");
    assert_eq!(s.caller(""), "root");
}

#[test]
fn stepped_giving_up_leaves_the_rest_once_everything_else_is_shut_down() {
    let mut s = disk_hangs(HangPolicy::GiveUp);
    s.look_at_deadlines();
    assert_eq!(s.news, ["disk is late", "gave up 3"]);
    assert!(s.woken);
    assert!(!s.state.caller_wait(None), "it does not sleep");
    assert_eq!(s.caller(""), "aborted");
    let left: Vec<String> = s.state.remaining(s.now).into_iter().map(|r| r.device).collect();
    assert_eq!(left, ["disk", "bus", "root"]);
    assert_eq!(s.helper("disk"), "leave");
}

#[test]
fn stepped_nothing_is_skipped_while_others_go_on() {
    for policy in [HangPolicy::Skip, HangPolicy::GiveUp] {
        let mut s = with_deadlines(policy, &DEVICES);
        assert_eq!(s.caller(""), "watch");
        assert_eq!(s.comes(), "late");
        s.pass(3 * SECOND);
        s.look_at_deadlines();
        assert_eq!(s.news, ["late is late"]);
        assert_eq!(s.caller_after("", true), "disk");
        assert_eq!(s.caller("disk"), "watch");
        assert_eq!(s.caller_after("", true), "bus");
        assert_eq!(s.caller("bus"), "root");
        assert_eq!(s.news.len(), 1);
        assert_eq!(s.caller("root"), "sleep");
        let skips = policy == HangPolicy::Skip;
        assert_eq!(s.caller(""), if skips { "other" } else { "aborted" });
    }
}

#[test]
fn stepped_a_caller_that_hangs_gets_a_deputy_for_the_synchronous_devices() {
    let devices: [(&str, Kind, &[&str]); 3] =
        [("s1", Sync, &[]), ("s2", Sync, &["s1"]), ("s3", Sync, &[])];
    let mut s = timed(&devices, Timeouts { device: Some(3 * SECOND), ..Timeouts::default() });
    assert!(s.state.loop_begins(&s.site, None), "it is the plain loop until something hangs");
    assert!(s.step(0, s.ended("s3").unwrap()).is_ok());
    s.pass(SECOND);
    assert_eq!(s.look_at_deadlines(), Some(2 * SECOND), "s2 began when s3 ended");
    s.pass(2 * SECOND);
    s.look_at_deadlines();
    assert_eq!(s.news, ["s2 is late"]);
    assert_eq!(s.deputies, [0; 0], "s1 waits for s2: there is nothing for a deputy to do");

    let devices: [(&str, Kind, &[&str]); 3] =
        [("s1", Sync, &[]), ("s2", Sync, &[]), ("s3", Sync, &[])];
    let mut s = timed(&devices, Timeouts { device: Some(SECOND), ..Timeouts::default() });
    assert!(s.state.loop_begins(&s.site, None));
    s.pass(SECOND);
    s.look_at_deadlines();
    assert_eq!((s.news.len(), s.deputies.clone()), (1, vec![1]));
    s.lead = 1;
    assert_eq!(s.caller(""), "s2");
    assert_eq!(s.caller("s2"), "s1");
    assert!(s.step(0, s.ended("s3").unwrap()).is_err());
    s.lead = 0;
    assert_eq!(s.caller("s3"), "replaced");
    s.lead = 1;
    assert_eq!(s.caller("s1"), "done");
}

#[test]
fn stepped_a_shutdown_that_is_late_as_a_whole_names_all_that_runs() {
    for policy in [HangPolicy::WaitOn, HangPolicy::Skip] {
        let timeouts = Timeouts { device: None, run: Some(2 * SECOND), policy };
        let mut s = timed(&DEVICES, timeouts);
        s.state.count(&mut Scratch::default());
        assert_eq!(s.caller(""), "watch");
        assert_eq!(s.comes(), "late");
        assert_eq!(s.look_at_deadlines(), Some(2 * SECOND));
        s.pass(2 * SECOND);
        s.look_at_deadlines();
        let gave_up = policy == HangPolicy::Skip;
        assert_eq!(s.news.len(), 1 + usize::from(gave_up), "{:?}", s.news);
        assert_eq!(s.caller(""), if gave_up { "aborted" } else { "watch" });
    }
}

#[test]
fn stepped_callbacks_that_run_at_the_whole_deadline_are_named_and_keep_their_place() {
    let devices: [(&str, Kind, &[&str]); 3] =
        [("s1", Sync, &[]), ("s2", Sync, &[]), ("s3", Sync, &[])];
    let policy = HangPolicy::WaitOn;
    let mut s = timed(&devices, Timeouts { device: None, run: Some(2 * SECOND), policy });
    let next = s.look_at_deadlines();
    assert_eq!(next, Some(2 * SECOND), "nobody has begun, and somebody looks again");
    assert!(s.state.loop_begins(&s.site, None));
    s.pass(SECOND);
    assert!(s.step(0, s.ended("s3").unwrap()).is_ok());
    s.pass(SECOND);
    s.look_at_deadlines();
    assert_eq!(s.news, ["s2 is late"]);
    assert!(s.deputies.is_empty(), "it has had one second of two");
    assert!(s.step(1, s.ended("s2").unwrap()).is_err());
    assert_eq!(s.caller("s2"), "s1");
    s.pass(SECOND);
    s.look_at_deadlines();
    assert_eq!(s.news.len(), 1, "s1 has a time of its own");
    assert_eq!(s.caller("s1"), "done");
}

#[test]
fn stepped_a_device_may_have_a_deadline_of_its_own() {
    let s = uncounted(&[("a", Async, &[]), ("b", Async, &[])]);
    assert_eq!(s.state.first_deadline(), None);
    assert_eq!(s.state.look_at_deadlines(SECOND), (None, false));
}

#[test]
fn stepped_a_stop_of_the_process_makes_no_callback_late_and_not_the_shutdown() {
    let timeouts = Timeouts { device: None, run: Some(5 * SECOND), policy: HangPolicy::GiveUp };
    let mut s = timed(&DEVICES, timeouts);
    s.state.count(&mut s.scratch);
    s.pass(SECOND);
    s.pass(1000 * SECOND);
    s.state.was_paused(s.now, 1000 * SECOND);
    assert_eq!(s.look_at_deadlines(), Some(4 * SECOND));
    let mut s = disk_hangs(HangPolicy::GiveUp);
    s.pass(1000 * SECOND);
    s.state.was_paused(s.now, 1001 * SECOND);
    assert_eq!(s.look_at_deadlines(), Some(SECOND));
    assert!(s.news.is_empty());
    s.pass(SECOND);
    s.look_at_deadlines();
    assert_eq!(s.news[0], "disk is late");
}
