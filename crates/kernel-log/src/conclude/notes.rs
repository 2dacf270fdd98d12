//! The notes beside the numbers: gaps of a log, and the conclusions that fill them.

use super::policy::{Rules, Unit};
use super::spans::Boot;
use super::spans::{NOT_BOUND, error};
use crate::facts::Facts;
use crate::facts::records::ReportedEnd;
use crate::form::{Form, Prefix};
use corewise_timeline::{Certainty, Outcome, SpanKind, Timeline, count, duration, verb};

/// Adds to both timelines the notes on their numbers, and returns the notes on the whole log.
pub(crate) fn notes(
    facts: &Facts,
    rules: &Rules,
    boot: &mut Boot,
    shutdown: &mut Timeline,
) -> Vec<String> {
    of_both(facts, rules, [&mut boot.timeline, shutdown]);
    of_boot(facts, rules, boot);
    of_shutdown(facts, shutdown);
    let mut notes = Vec::new();
    let mut note = |text: String| notes.push(text);
    if facts.lines == 0 {
        note("the log is empty".into());
    } else if !facts.any() {
        note(
            "no line has a known form; boot with `initcall_debug` (and `ignore_loglevel`, if the \
             log comes from a console)"
                .into(),
        );
    } else if boot.timeline.is_empty() && shutdown.is_empty() {
        note("the known lines name no device with a start or an end".into());
    }
    // The lines that were dropped include ends.
    match facts.unfinished() {
        _ if facts.left_out > 0 => {}
        (0, _) => {}
        (1, name) => note(format!(
            "1 init call began and did not end within the log: {}",
            name.unwrap_or("unknown")
        )),
        (n, first) => note(format!(
            "{n} init calls began and did not end within the log, the first of them {}",
            first.unwrap_or("unknown")
        )),
    }
    let resumed = facts.forms.get(&Form::PmStart).copied().unwrap_or_default();
    if resumed > 0 {
        note(format!(
            "{} of suspend and resume {} shown in no timeline; only parents are taken from there",
            count(many(resumed), "callback"),
            verb(many(resumed), "is", "are")
        ));
    }
    if facts.wrapped > 0 {
        let n = many(facts.wrapped);
        let were = verb(n, "was", "were");
        note(format!("{} {were} put together from several lines", count(n, "message")));
    }
    if facts.doubled > 0 {
        let n = many(facts.doubled);
        note(format!(
            "{} {} there already, with the same stamp and the same text: {} once",
            count(n, "line"),
            verb(n, "was", "were"),
            verb(n, "it counts", "each counts")
        ));
    }
    if facts.blobs > 0 {
        let n = many(facts.blobs);
        note(format!(
            "{} {} shown by the journal as bytes only (`journalctl -a` shows the text)",
            count(n, "message"),
            verb(n, "is", "are")
        ));
    }
    if facts.foreign > 0 {
        let n = many(facts.foreign);
        let were = verb(n, "was", "were");
        note(format!("{} of other programs {were} skipped", count(n, "line")));
    }
    if facts.left_out > 0 {
        note(format!(
            "{} understood but not kept, because there are more than any machine prints; all \
             numbers are those of the lines before",
            were(facts.left_out)
        ));
    }
    if facts.cut > 0 {
        note(format!("{} too long and read in part", were(facts.cut)));
    }
    notes
}

fn many(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// Returns `1 line was` or `n lines were`, the beginning of a sentence.
fn were(n: u64) -> String {
    format!("{} {}", count(many(n), "line"), verb(many(n), "was", "were"))
}

/// Returns a list such as `3 init calls and 1 probe`; `None` if all counts are 0.
fn listed(kinds: [(usize, &str); 2]) -> Option<String> {
    let kinds = kinds.iter().filter(|(n, _)| *n > 0).map(|&(n, what)| count(n, what));
    Some(kinds.collect::<Vec<_>>().join(" and ")).filter(|kinds| !kinds.is_empty())
}

/// Adds the reasons why there is no order in time.
fn of_both(facts: &Facts, rules: &Rules, mut timelines: [&mut Timeline; 2]) {
    let mut notes = Vec::new();
    // `dmesg -H`, at the first line of a minute.
    let minutes = facts.prefixes.get(&Prefix::DmesgMinute).copied().unwrap_or_default();
    if minutes > 0 {
        notes.push(
            "`dmesg -H` prints only the minute where a minute begins: from there on, only the \
             order is known (`dmesg` without `-H` has all times)"
                .to_owned(),
        );
    }
    if facts.coarse > 0 && minutes == 0 {
        let has = |prefix| facts.prefixes.contains_key(&prefix);
        let who = match () {
            () if has(Prefix::Journal) => "the journal (`-o short-monotonic` has them)",
            () if has(Prefix::DmesgCtime) => "the log (`dmesg` without `-T` has them)",
            () => "the log",
        };
        notes.push(format!("{who} has no times finer than a second: only the order is known"));
    }
    let cut = timelines.iter().map(|t| t.resolution()).max().filter(|cut| !cut.is_zero());
    if let Some(cut) = cut {
        let text = format!(
            "the stamps are cut off to {}: closer moments have no known order, so own times, sums \
             and chains have bounds",
            duration(cut)
        );
        timelines.iter_mut().for_each(|t| t.note(text.clone()));
    }
    if rules.late {
        notes.push(
            "these times come from the receiver of the lines, such as a journal, and may be much \
             later than the kernel's (`-o short-monotonic` has the kernel's): only the order is \
             known"
                .to_owned(),
        );
    }
    if facts.unstamped > 0 {
        let n = many(facts.unstamped);
        let have = verb(n, "has", "have");
        let lines = count(n, "line");
        notes.push(format!("{lines} {have} no stamp (`printk.time=1` gives them)"));
    }
    for t in timelines {
        let shutdown = t.unplaced().iter().any(|u| u.kind == SpanKind::Shutdown);
        let n = t.unplaced().len();
        if n == 0 {
            continue;
        }
        for note in &notes {
            t.note(note.clone());
        }
        t.note(match shutdown {
            true => format!(
                "{} {} no known time: {} that {} began, and no more",
                count(n, "shutdown"),
                verb(n, "has", "have"),
                verb(n, "its line says", "their lines say"),
                verb(n, "it", "they")
            ),
            false => {
                let calls = t.unplaced().iter().filter(|u| u.kind == SpanKind::Initcall).count();
                let kinds = listed([(calls, "init call"), (n - calls, "probe")]);
                format!("for {}, only the printed durations are known", kinds.unwrap_or_default())
            }
        });
    }
}

fn of_boot(facts: &Facts, rules: &Rules, boot: &mut Boot) {
    let placed = boot.timeline.spans().iter().map(|s| (s.kind, &s.outcome));
    let others = boot.timeline.unplaced().iter().map(|u| (u.kind, &u.outcome));
    let all: Vec<(SpanKind, &Outcome)> = placed.chain(others).collect();
    let all_of = |kind: SpanKind, f: fn(&Outcome) -> bool| {
        all.iter().filter(|(k, outcome)| *k == kind && f(outcome)).count()
    };
    let unbound = all_of(SpanKind::Probe, |o| o.message() == Some(NOT_BOUND));
    // Errors that were printed: ENODEV, ENXIO.
    let skipped =
        |kind| all_of(kind, |o| matches!(o, Outcome::Skipped(_)) && o.message() != Some(NOT_BOUND));
    let (calls, probes) = (skipped(SpanKind::Initcall), skipped(SpanKind::Probe));
    let deferred = all_of(SpanKind::Probe, |o| matches!(o, Outcome::Deferred(_)));
    let of_probes = all_of(SpanKind::Probe, |_| true);
    let initcalls = all_of(SpanKind::Initcall, |_| true);
    let mut note = |text: String| boot.timeline.note(text);
    if facts.back > 0 {
        let so = match facts.went_back_between() {
            true => ", so makespan and chains are estimates (`~`), and sums have bounds",
            false => "",
        };
        note(format!(
            "stamps go back {}: moments on different sides of such a point have no known order, \
             although the bars show one{so}",
            count(facts.back, "time")
        ));
    }
    if let Some(ticks) = rules.ticks {
        let of = match ticks.shown {
            true => format!("whole ticks of {}", duration(ticks.tick)),
            false => "whole ticks, of unknown length and all of them zero".to_owned(),
        };
        let calls = facts.initcalls.iter().enumerate();
        let calls = calls.filter(|(i, call)| rules.ticks_call(*i, call)).count();
        let probes = facts.probes.iter().filter(|p| rules.ticks_probe(p)).count();
        if calls > 0 {
            let which = if calls == ticks.calls { "the first " } else { "" };
            note(format!(
                "the durations of {which}{} are in {of}, and so only as exact; a duration is at most \
                 the time between the stamps of its two lines",
                count(calls, "init call"),
            ));
        }
        match (probes, calls) {
            (0, _) => {}
            (n, 0) => note(format!(
                "the durations of {} are in {of}: a probe took up to a tick more or less",
                count(n, "probe")
            )),
            (1, _) => note("that of 1 probe that ended in that time is in whole ticks too".into()),
            (n, _) => {
                note(format!("those of {n} probes that ended in that time are in whole ticks too"))
            }
        }
        let calls = facts.initcalls.iter().enumerate();
        let calls = calls.filter(|(i, c)| rules.call_spans_clocks(c) && !rules.ticks_call(*i, c));
        let probes = facts.probes.iter();
        let probes = probes.filter(|p| rules.probe_spans_clocks(p) && !rules.ticks_probe(p));
        let kinds = [(calls.count(), "init call"), (probes.count(), "probe")];
        if let Some(kinds) = listed(kinds) {
            note(format!(
                "{kinds} may have begun before the kernel took a clock that doesn't tick, and ended \
                 after that: printed durations across that change are up to a tick ({}) off",
                duration(ticks.tick)
            ));
        }
        if ticks.again() {
            note(
                "the kernel took a clock that ticks (`Switched to clocksource jiffies`): from there on \
                 durations are in whole ticks, until it takes a better one"
                    .into(),
            );
        }
    }
    match rules.unit {
        Unit::Micros => {}
        Unit::Shifted => note(
            "this kernel prints the durations of init calls in units of 1.024 µs: they were \
             corrected"
                .into(),
        ),
        Unit::Either if initcalls > 0 => note(
            "the log doesn't show whether this kernel prints the durations of init calls in µs or \
             in units of 1.024 µs: they may be 2.4 % longer"
                .into(),
        ),
        Unit::Either => {}
    }
    let overtaken = facts.initcalls.iter().filter(|call| rules.overtaken(call)).count();
    if overtaken > 0 {
        note(format!(
            "{} took longer than {}: another one began meanwhile, and kernels since 4.17 count \
             from there. The printed duration is the lower bound, and the time between the two \
             lines the upper bound",
            count(overtaken, "init call"),
            verb(overtaken, "it says", "they say")
        ));
    }
    let cut = facts.initcalls.iter().enumerate();
    let cut = cut.filter(|(i, call)| rules.may_have_begun_before(*i, call)).count();
    if cut > 0 {
        note(format!(
            "{} no first line: kernels since 4.17 print the time since any init call began, so {} \
             took at least as long as {}",
            if cut == 1 { "1 init call has".into() } else { format!("{cut} init calls have") },
            verb(cut, "it", "they"),
            verb(cut, "it says", "they say")
        ));
    }
    let beyond = Rules::longer_than_clock(facts);
    if beyond > 0 {
        note(format!(
            "{} longer than the kernel had run by the {} of {}: one of the two clocks is wrong",
            if beyond == 1 { "1 duration is".into() } else { format!("{beyond} durations are") },
            verb(beyond, "stamp", "stamps"),
            verb(beyond, "its line", "their lines")
        ));
    }
    if boot.too_short > 0 {
        note(format!(
            "{} printed less than the probes that seem to have run inside: {} drawn from the first \
             line on, and took at most that time",
            count(boot.too_short, "init call"),
            verb(boot.too_short, "it is", "they are")
        ));
    }
    if rules.one_is_bound {
        let why = match unbound {
            0 => String::new(),
            n => format!(
                "; of {} with 0 no line says why it didn't bind (ENODEV, ENXIO, a deferral, or an \
                 error whose line is missing), so it is shown as skipped",
                count(n, "probe")
            ),
        };
        note(format!(
            "this kernel prints 1 for a probe that bound its device and 0 for one that did not{why}"
        ));
    }
    if let Some(text) = without_end(facts) {
        note(text);
    }
    if boot.ambiguous > 0 {
        note(format!(
            "{} {} within the time of several init calls, and the log doesn't show which one ran \
             {}",
            count(boot.ambiguous, "probe"),
            verb(boot.ambiguous, "stands", "stand"),
            verb(boot.ambiguous, "it", "them")
        ));
    }
    let nested = boot.timeline.spans().iter().filter(|span| span.seems_nested()).count();
    let mut note = |text: String| boot.timeline.note(text);
    if nested > 0 {
        note(format!(
            "no line names the thread of {}: by {} alone {} inside others (`CONFIG_PRINTK_CALLER` \
             names it). So `?` marks workers and drivers, and own times, sums, chains and how many \
             ran at once are bounds",
            count(nested, "probe"),
            verb(nested, "its time", "their times"),
            verb(nested, "it seems to have run", "they seem to have run")
        ));
    }
    if let Some(kinds) = listed([(calls, "init call"), (probes, "probe")]) {
        note(format!(
            "{kinds} found no device that is {} (ENODEV, ENXIO); that is not a failure, and shown as \
             skipped",
            verb(calls + probes, "its own", "theirs")
        ));
    }
    if deferred > 0 {
        let (probes, were) = (count(of_probes, "probe"), verb(deferred, "was", "were"));
        note(format!("{deferred} of {probes} {were} deferred, to be tried again"));
    }
}

/// Largest number of probes without their last line that a note names.
const NAMED: usize = 16;

/// Returns a note on the probes whose outcome a line tells, but whose last line isn't in the log.
fn without_end(facts: &Facts) -> Option<String> {
    let told = |(device, said): (&str, &ReportedEnd)| {
        let driver = said.driver.as_ref().map(|driver| format!(" ({driver})")).unwrap_or_default();
        match said.error {
            -517 => format!("{device}{driver} was put off"),
            failed => format!("{device}{driver} failed: {}", error(failed)),
        }
    };
    let mut all: Vec<String> = facts.said.without_end().map(told).collect();
    all.sort_unstable();
    let n = all.len();
    let rest = match n.saturating_sub(NAMED) {
        0 => String::new(),
        rest => format!(", and {rest} more"),
    };
    all.truncate(NAMED);
    (n > 0).then(|| {
        format!(
            "{} {} a line of how {} ended and none of when (`returned`), so no bar, number or \
             table has {}: {}{rest}",
            count(n, "probe"),
            verb(n, "has", "have"),
            verb(n, "it", "they"),
            verb(n, "it", "them"),
            all.join(", ")
        )
    })
}

fn of_shutdown(facts: &Facts, shutdown: &mut Timeline) {
    if shutdown.spans().iter().any(|s| s.end_certainty == Certainty::UpperBound) {
        shutdown.note(match facts.several_shut_down {
            true => {
                "a shutdown prints one line, without an end. Several threads shut devices down: each \
                 device took at most the time to the next line of its thread"
            }
            false => {
                "a shutdown prints one line, without an end: each device took at most the time to \
                 the next line. If this kernel shuts devices down asynchronously, only the total \
                 time is right"
            }
        });
    }
    match facts.shutdowns.iter().filter(|s| s.goes_back()).count() {
        0 => {}
        n => shutdown.note(format!(
            "stamps go back {}: the durations of these shutdowns are not known",
            count(n, "time")
        )),
    }
    let last = facts.shutdowns.last().filter(|s| s.ended.is_none());
    if last.is_some()
        && shutdown.spans().last().is_some_and(|s| s.end_certainty == Certainty::Assumed)
    {
        shutdown.note("no line follows the last shutdown, so its duration is not known");
    }
}
