//! Predictions of random timelines keep to their bounds, with nested spans, init functions and
//! dependencies.

use corewise_timeline::analysis::WhatIf;
use corewise_timeline::{EdgeKind, Length, Span, SpanId, SpanKind, Timeline};
use fastrand::Rng;
use std::time::Duration;

fn known(length: Length) -> Duration {
    length.known().expect("all that was recorded is exact")
}

/// Creates spans of some workers, some of them nested, and edges between those that follow.
fn timeline(random: &mut Rng, boot: bool) -> Timeline {
    let mut t = Timeline::new("t");
    let ns = Duration::from_nanos;
    let mut ids: Vec<SpanId> = Vec::new();
    for i in 0..2 + random.u64(..30) {
        let worker = ["a", "b", "c", ""][random.u64(..4) as usize];
        let start = 5 + random.u64(..200);
        let kind = match boot && random.u64(..3) == 0 {
            true => SpanKind::Initcall,
            // A loop calls what is shut down: only the graph says when it can start.
            false if boot => SpanKind::Probe,
            false => SpanKind::Shutdown,
        };
        let span = Span::new(format!("s{i}"), kind, ns(start), ns(start + random.u64(..60)));
        ids.push(t.push(span.on(worker, None)));
    }
    for _ in 0..random.u64(..40) {
        let [a, b] = [0; 2].map(|_| ids[random.u64(..ids.len() as u64) as usize]);
        t.push_edge(a, b, EdgeKind::Supplier);
    }
    t
}

#[test]
fn predictions_keep_every_dependency_and_lie_between_their_bounds() {
    let mut random = Rng::with_seed(0x1234_5678_9ABC_DEF1);
    for round in 0..400 {
        let boot = round % 2 == 0;
        let t = timeline(&mut random, boot);
        let any = WhatIf::new().all_async().predict(&t);
        assert_eq!(any.makespan, any.bound, "with a worker for everything the longest chain holds");
        assert_eq!(any.work, t.serial_sum());
        for workers in 1..6 {
            let p = WhatIf::new().workers(workers).predict(&t);
            let makespan = known(p.makespan);
            assert!(makespan >= known(p.bound) && makespan >= known(any.makespan));
            let most = known(any.makespan) + known(p.work) / workers as u32;
            assert!(makespan <= most, "Graham's bound");
            assert!(p.timeline.summary().max_parallelism <= workers);
            for edge in t.edges().iter().filter(|e| t.is_kept(e) && e.before != e.after) {
                // One edge of a cycle of spans without length is broken.
                let instant = t.span(edge.before).end == t.span(edge.after).start;
                assert!(p.timeline.is_kept(edge) || instant, "{edge:?}");
            }
            if workers == 1 && !boot && t.edges().is_empty() {
                assert_eq!(p.makespan, p.work);
            }
        }
    }
}

#[test]
fn with_nothing_different_a_prediction_is_the_run() {
    let mut random = Rng::with_seed(0xC0FF_EE00_1234_5677);
    for round in 0..400 {
        let t = timeline(&mut random, round % 2 == 0);
        let p = WhatIf::new().predict(&t);
        assert_eq!(p.makespan, t.makespan());
        for (span, was) in p.timeline.spans().iter().zip(t.spans()) {
            assert_eq!(span.start, was.start - t.origin());
            assert_eq!(span.end, was.end - t.origin());
        }
    }
}

#[test]
fn a_faster_span_never_makes_the_run_longer_and_saves_no_more_than_its_time() {
    let mut random = Rng::with_seed(0xBADC_0DE5_0000_0001);
    for round in 0..400 {
        let t = timeline(&mut random, round % 2 == 0);
        let which = t.iter().map(|(id, _)| id).nth(random.u64(..t.spans().len() as u64) as usize);
        let faster = |what_if: WhatIf| known(what_if.scaled(which, 0.25).predict(&t).makespan);
        let (before, now) = (known(t.makespan()), faster(WhatIf::new()));
        let took = which.map(|id| t.span(id).drawn()).unwrap_or_default();
        assert!(now <= before && before - now <= took);
        let all = WhatIf::new().all_async();
        assert!(faster(all.clone()) <= known(all.predict(&t).makespan));
    }
}

#[test]
fn spans_on_the_critical_path_have_no_slack_and_no_span_ends_after_it() {
    let mut random = Rng::with_seed(0x5EED_0000_0000_0007);
    for round in 0..400 {
        let t = timeline(&mut random, round % 2 == 0);
        let (path, slack) = (t.critical_path(), t.slack());
        assert!(!path.spans.is_empty());
        for id in &path.spans {
            assert_eq!(slack[id.index()], Length::ZERO, "{round}: {}", t.span(*id).name);
        }
        let all = WhatIf::new().all_async().predict(&t);
        assert_eq!((path.length, all.bound), (all.makespan, all.makespan));
        assert!(known(path.length) <= known(t.makespan()));
        let last = path.spans.last().map(|id| all.timeline.span(*id).end);
        assert_eq!(last, all.makespan.known());
    }
}
