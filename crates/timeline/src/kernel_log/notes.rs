//! The sentences beside the numbers: what a log does not say, and what was concluded instead.

use super::assemble::Boot;
use super::facts::Facts;
use super::policy::Rules;
use super::{Form, Prefix};
use crate::model::{Certainty, Outcome, Span, SpanKind, Timeline};
use crate::units::duration;

pub(crate) fn notes(facts: &Facts, rules: &Rules, boot: &Boot, shutdown: &Timeline) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |text: String| notes.push(text);
    let spans = boot.timeline.spans();
    let events = spans.len() + shutdown.spans().len();
    if facts.lines == 0 {
        note("the log is empty".into());
    } else if !facts.any() {
        note(
            "none of the lines is one that is known; boot with `initcall_debug` (and \
             `ignore_loglevel`, where the log is read from a console)"
                .into(),
        );
    } else if events == 0 {
        note("the lines that are known name no device that began or ended anything".into());
    }
    let minutes = facts.prefixes.get(&Prefix::DmesgMinute).copied().unwrap_or_default();
    if minutes > 0 {
        note(
            "where a minute begins, only the minute is known, as `dmesg -H` prints it: how long it is \
             from the line before that is not (`dmesg` without `-H` has all times)"
                .into(),
        );
    }
    if facts.coarse > minutes {
        let who = if facts.prefixes.contains_key(&Prefix::Journal) {
            "the journal (`-o short-monotonic` has them)"
        } else {
            "the log"
        };
        note(format!(
            "{who} has no times below a second: order only; durations are the ones that were \
             printed, shutdowns have none, and what ran beside what is not known"
        ));
    }
    if events > 0 && facts.unstamped > 0 {
        note(format!(
            "{} lines without a stamp: their spans are drawn from zero, and only their durations \
             mean something",
            facts.unstamped
        ));
    }
    if let Some((until, tick)) = rules.ticks {
        let instead = match facts.coarse + facts.unstamped {
            0 => "their times are taken from the stamps of their two lines",
            _ => "what they took is not known better",
        };
        note(format!(
            "the durations of the first init calls, {until} of them, are in whole ticks of {}: \
             {instead}",
            duration(tick)
        ));
        let during = until.checked_sub(1).and_then(|last| facts.initcalls[last].ended);
        let probes = facts.probes.iter().filter(|p| match (p.ended, during) {
            (Some(p), Some(d)) => p.ns <= d.ns,
            _ => false,
        });
        match probes.count() {
            0 => {}
            n => {
                note(format!("those of {n} probes that ended in that time are in whole ticks too"))
            }
        }
    }
    if rules.shifted {
        note(
            "this kernel prints the durations of init calls in units of 1.024 µs: they were \
             corrected"
                .into(),
        );
    }
    if rules.one_is_bound {
        note(
            "this kernel prints 1 for a probe that bound its device and 0 for one that did not"
                .into(),
        );
    }
    match facts.unfinished() {
        (0, _) => {}
        (n, first) => note(format!(
            "{n} init calls began and did not end within the log, the first of them {}",
            first.unwrap_or("unknown")
        )),
    }
    if boot.ambiguous > 0 {
        note(format!(
            "{} probes stand within the time of several init calls, and nothing tells which one \
             ran them",
            boot.ambiguous
        ));
    }
    let skipped = |kind| {
        let of = |s: &&Span| s.kind == kind && matches!(s.outcome, Outcome::Skipped(_));
        spans.iter().filter(of).count()
    };
    match (skipped(SpanKind::Initcall), skipped(SpanKind::Probe)) {
        (0, 0) => {}
        (calls, probes) => note(format!(
            "{calls} init calls and {probes} probes found no device that is theirs (ENODEV, \
             ENXIO), which is no failure: they are called skipped"
        )),
    }
    let probes = || spans.iter().filter(|s| s.kind == SpanKind::Probe);
    let deferred = probes().filter(|s| matches!(s.outcome, Outcome::Deferred(_))).count();
    if deferred > 0 {
        note(format!("{deferred} of {} probes were put off and tried again", probes().count()));
    }
    if shutdown.spans().iter().any(|s| s.end_certainty == Certainty::UpperBound) {
        note(
            "a shutdown's line has no end: each device's time is the gap to the next line. If this \
             kernel shuts devices down asynchronously, only the time in all is right"
                .into(),
        );
    }
    if shutdown.spans().last().is_some_and(|s| s.end_certainty == Certainty::Assumed)
        && facts.coarse == 0
        && facts.unstamped == 0
    {
        note("nothing follows the last shutdown, so how long it took is not known".into());
    }
    let resumed = facts.forms.get(&Form::PmStart).copied().unwrap_or_default();
    if resumed > 0 {
        note(format!(
            "{resumed} callbacks of suspend and resume gave their parents; they have no timeline"
        ));
    }
    if facts.wrapped > 0 {
        note(format!("{} messages were put together from two lines", facts.wrapped));
    }
    if facts.foreign > 0 {
        note(format!("{} lines of other programs were passed over", facts.foreign));
    }
    if facts.left_out > 0 {
        note(format!(
            "{} lines were understood and not kept: there are more than any machine prints, and \
             what is said here is of those before them",
            facts.left_out
        ));
    }
    if facts.cut > 0 {
        note(format!("{} lines were too long and were read in part", facts.cut));
    }
    notes
}
