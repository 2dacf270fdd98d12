//! Timelines as a trace in the JSON format of Chrome, which Perfetto, Speedscope and others read.
//!
//! Open the file at `ui.perfetto.dev` or `chrome://tracing`. Each timeline is a process, each lane
//! a thread (and a further one where spans overlap that no thread can have run). Each span is a
//! slice, each dependency that was kept an arrow, and the number that ran at once a counter. A
//! slice's arguments hold the facts beyond its times. Those on the critical path have the category
//! `critical`. A slice that may have been over sooner has the sign of its time in its name, the
//! category `not_exact`, and that time as `took`. A run without a place in time can't be a slice:
//! it stands in `otherData`, with the notes, and the label of the process says so.
//!
//! The format: "Trace Event Format", by the Chromium authors. Times are in microseconds since the
//! timeline's zero, with three decimals.

use crate::analysis::Nesting;
use crate::lanes::{Lane, LaneRow, RowPacking, time};
use crate::span::{Span, SpanId, Timeline};
use crate::units::printable;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::cmp::Reverse;
use std::time::Duration;

/// Renders `timelines` as one JSON object, on one line for each event, with a newline at its end.
/// It takes about 500 bytes a span and 200 an edge.
pub fn render(timelines: &[&Timeline]) -> String {
    let mut out = Events { text: String::new() };
    let mut flows = 0;
    for (i, t) in timelines.iter().enumerate() {
        process(&mut out, t, i + 1, &mut flows);
    }
    let events = out.text.trim_end_matches(",\n");
    let others: Vec<Value> = timelines.iter().map(|t| other(t)).collect();
    let others = json!({ "timelines": others });
    format!(
        "{{\"displayTimeUnit\": \"ms\", \"otherData\": {others}, \"traceEvents\": [\n{events}\n]}}\n"
    )
}

/// Returns the runs that can't be slices, and the notes.
fn other(t: &Timeline) -> Value {
    let unplaced: Vec<Value> = t
        .unplaced()
        .iter()
        .map(|u| {
            let driver = u.driver.as_ref().map(|d| printable(&d.to_string()).into_owned());
            json!({
                "name": printable(&u.name), "kind": u.kind.as_str(), "took": u.took.to_string(),
                "outcome": u.outcome.as_str(), "driver": driver,
            })
        })
        .collect();
    let notes: Vec<_> = t.notes().iter().map(|note| printable(note)).collect();
    json!({ "name": printable(t.name()), "notes": notes, "without_a_place_in_time": unplaced })
}

struct Events {
    text: String,
}

impl Events {
    fn push(&mut self, event: &impl Serialize) {
        let line = serde_json::to_string(event)
            .expect("an event has string keys and no number that JSON could refuse");
        self.text.push_str(&line);
        self.text.push_str(",\n");
    }

    /// Writes a name or an index in the order.
    fn metadata(&mut self, pid: usize, tid: usize, name: &str, key: &str, value: Value) {
        let args = Map::from_iter([(key.to_owned(), value)]);
        self.push(&json!({ "ph": "M", "pid": pid, "tid": tid, "name": name, "args": args }));
    }
}

#[derive(Serialize)]
struct Slice<'a> {
    ph: &'static str,
    pid: usize,
    tid: usize,
    name: &'a str,
    cat: &'a str,
    ts: f64,
    dur: f64,
    args: Map<String, Value>,
}

/// Writes one timeline.
fn process(out: &mut Events, t: &Timeline, pid: usize, flows: &mut u64) {
    let path = t.critical_path();
    let critical = path.marks(t);
    out.metadata(pid, 0, "process_name", "name", printable(t.name()).into());
    out.metadata(pid, 0, "process_sort_index", "sort_index", pid.into());
    let mut labels: Vec<String> = t.notes().to_vec();
    match t.unplaced().len() {
        0 => {}
        n => labels.push(format!("{n} have no place in time and are not drawn: see otherData")),
    }
    if !labels.is_empty() {
        let labels = printable(&labels.join("; ")).into_owned();
        out.metadata(pid, 0, "process_labels", "labels", labels.into());
    }
    let mut tids = vec![0; t.spans().len()];
    let mut tid = 0;
    for lane in threads(t) {
        for (r, row) in lane.rows.iter().enumerate() {
            tid += 1;
            let name = match r {
                0 => lane.name.clone(),
                _ => format!("{} ({})", lane.name, r + 1),
            };
            out.metadata(pid, tid, "thread_name", "name", printable(&name).into());
            out.metadata(pid, tid, "thread_sort_index", "sort_index", tid.into());
            for &id in &row.spans {
                tids[id.index()] = tid;
                let span = t.span(id);
                let on_path = critical[id.index()];
                let mut cat = span.kind.as_str().to_owned();
                let mut name = printable(&span.name);
                if on_path {
                    cat += ",critical";
                }
                if !span.took().is_exact() {
                    cat += ",not_exact";
                    name = format!("{name} ({})", span.took()).into();
                }
                out.push(&Slice {
                    ph: "X",
                    pid,
                    tid,
                    name: &name,
                    cat: &cat,
                    ts: us(span.start),
                    dur: us(span.drawn()),
                    args: arguments(t, span, on_path),
                });
            }
        }
    }
    for edge in t.edges().iter().filter(|edge| t.is_kept(edge)) {
        *flows += 1;
        let (before, after) = (t.span(edge.before), t.span(edge.after));
        // An arrow starts at the slice that exists at its moment: just before the end.
        let from = before.end.saturating_sub(Duration::from_nanos(1)).max(before.start);
        let mut end = |ph: &str, id: SpanId, at: Duration| {
            let mut event = json!({
                "ph": ph, "pid": pid, "tid": tids[id.index()], "name": edge.kind.as_str(),
                "cat": "dependency", "id": *flows, "ts": us(at),
            });
            if ph == "f" {
                event["bp"] = "e".into();
            }
            out.push(&event);
        };
        end("s", edge.before, from);
        end("f", edge.after, after.start);
    }
    for (at, running) in t.concurrency().steps {
        out.push(&json!({
            "ph": "C", "pid": pid, "tid": 0, "name": "running at once", "ts": us(at),
            "args": { "running": running },
        }));
    }
}

fn arguments(t: &Timeline, span: &Span, critical: bool) -> Map<String, Value> {
    let mut args = Map::new();
    let mut say = |key: &str, value: Value| {
        args.insert(key.to_owned(), value);
    };
    let text = |text: &str| Value::from(printable(text));
    say("outcome", span.outcome.as_str().into());
    if let Some(message) = span.outcome.message() {
        say("message", text(message));
    }
    if let Some(driver) = &span.driver {
        say("driver", text(&driver.to_string()));
    }
    if let Some(cpu) = span.cpu {
        say("cpu", cpu.into());
    }
    if let Some(node) = span.node {
        say("node", node.into());
    }
    if !span.waited().is_zero() {
        say("waited_for_worker_us", us(span.waited()).into());
    }
    if let Some(by) = &span.released_by {
        say("released_by", text(by));
    }
    if let Some(outer) = span.nested_in.and_then(|id| t.spans().get(id.index())) {
        let key = if span.may_be_nested { "seems_to_have_run_inside" } else { "ran_inside" };
        say(key, text(&outer.name));
    }
    if span.asynchronous {
        say("asynchronous", true.into());
    }
    if span.no_callback {
        say("no_callback", true.into());
    }
    if critical {
        say("on_critical_path", true.into());
    }
    if !span.took().is_exact() {
        say("took", span.took().to_string().into());
    }
    let measured = crate::span::Certainty::Measured;
    for (key, how) in [("start", span.start_certainty), ("end", span.end_certainty)] {
        if how != measured {
            say(&format!("{key}_is"), how.as_str().into());
        }
    }
    args
}

fn us(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

/// Returns the lanes with rows that a thread could have run: nested spans stand in the row of the
/// outer one, nothing else overlaps. An outer span comes before those inside it.
fn threads(t: &Timeline) -> Vec<Lane> {
    let nesting = Nesting::of(t);
    let mut order: Vec<SpanId> = t.iter().map(|(id, _)| id).collect();
    order.sort_by_key(|&id| (t.span(id).start, Reverse(t.span(id).end), id));
    // The row owner of each span, and the moment until which nested spans occupy its row.
    let mut hosts: Vec<Option<SpanId>> = vec![None; t.spans().len()];
    let mut taken: Vec<Duration> = t.spans().iter().map(|s| s.start).collect();
    for &id in &order {
        let span = t.span(id);
        let Some(outer) = nesting.parent(id) else { continue };
        let around = t.span(outer);
        let one_lane = (&span.worker, span.cpu) == (&around.worker, around.cpu)
            || (!span.worker.is_empty() && span.worker == around.worker);
        if one_lane && taken[outer.index()] <= span.start && span.end <= around.end {
            hosts[id.index()] = Some(outer);
            taken[outer.index()] = span.end;
        }
    }
    let stands = |id: SpanId| hosts[id.index()].is_none();
    let mut lanes = t.lanes_with(RowPacking::Tight, time, stands);
    let mut inside: Vec<Vec<SpanId>> = vec![Vec::new(); t.spans().len()];
    for &id in &order {
        if let Some(host) = hosts[id.index()] {
            inside[host.index()].push(id);
        }
    }
    for row in lanes.iter_mut().flat_map(|lane| &mut lane.rows) {
        let mut spans = Vec::new();
        let mut rest: Vec<SpanId> = row.spans.iter().rev().copied().collect();
        while let Some(id) = rest.pop() {
            spans.push(id);
            rest.extend(inside[id.index()].iter().rev());
        }
        *row = LaneRow { spans };
    }
    lanes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::ms;
    use crate::span::{EdgeKind, Outcome, SpanKind};

    fn trace(timelines: &[&Timeline]) -> Vec<Value> {
        let trace: Value = serde_json::from_str(&render(timelines)).expect("it is JSON");
        trace["traceEvents"].as_array().expect("a list of events").clone()
    }

    fn of<'a>(events: &'a [Value], ph: &str) -> Vec<&'a Value> {
        events.iter().filter(|event| event["ph"] == ph).collect()
    }

    #[test]
    fn a_span_is_a_slice_on_the_thread_of_its_lane_and_an_edge_an_arrow() {
        let mut t = Timeline::new("bring-up");
        let mut disk = Span::new("disk", SpanKind::Probe, ms(1), ms(3)).on("worker 0", Some(2));
        disk.driver = Some("nvme".into());
        let disk = t.push(disk);
        let mut volume = Span::new("volume", SpanKind::Probe, ms(3), ms(4)).on("worker 1", None);
        volume.outcome = Outcome::Failed("no".into());
        let volume = t.push(volume);
        t.push_edge(disk, volume, EdgeKind::Supplier);
        let events = trace(&[&t]);

        let slices = of(&events, "X");
        assert_eq!(
            *slices[0],
            json!({
                "ph": "X", "pid": 1, "tid": 1, "name": "disk", "cat": "probe,critical",
                "ts": 1000.0, "dur": 2000.0,
                "args": { "outcome": "ok", "driver": "nvme", "cpu": 2, "on_critical_path": true },
            })
        );
        assert_eq!(slices[1]["args"]["message"], "no");
        let (from, to) = (of(&events, "s")[0], of(&events, "f")[0]);
        assert_eq!(
            (&from["id"], &from["tid"], &from["ts"]),
            (&to["id"], &json!(1), &json!(2999.999))
        );
        assert_eq!((&to["tid"], &to["ts"], &to["bp"]), (&json!(2), &json!(3000.0), &json!("e")));
        let names: Vec<_> = of(&events, "M").iter().map(|m| m["args"]["name"].clone()).collect();
        assert!(names.contains(&"bring-up".into()) && names.contains(&"worker 1".into()));
        assert_eq!(of(&events, "C").len(), 2);
    }

    #[test]
    fn slices_of_a_thread_nest_and_never_overlap_in_part() {
        let mut t = Timeline::new("t");
        let mut generator = fastrand::Rng::with_seed(1);
        let mut random = |below: u64| generator.u64(..below);
        for i in 0..500 {
            let start = random(400);
            let worker = ["", "a", "b"][random(3) as usize];
            let span = Span::new("x", SpanKind::Probe, ms(start), ms(start + random(30)));
            let mut span = span.on(worker, None);
            if random(3) == 0 && i > 0 {
                span.nested_in = Some(SpanId(random(i) as usize));
            }
            t.push(span);
        }
        let events = trace(&[&t]);
        let slices = of(&events, "X");
        assert_eq!(slices.len(), 500);
        let mut open: Vec<(u64, f64)> = Vec::new();
        for slice in slices {
            let tid = slice["tid"].as_u64().expect("a thread");
            let (ts, dur) = (slice["ts"].as_f64().expect("µs"), slice["dur"].as_f64().expect("µs"));
            while open.last().is_some_and(|&(of, end)| of != tid || end <= ts) {
                open.pop();
            }
            if let Some(&(_, end)) = open.last() {
                assert!(ts + dur <= end, "{slice} overlaps what ends at {end}");
            }
            open.push((tid, ts + dur));
        }
    }

    #[test]
    fn each_timeline_is_a_process_and_hostile_names_stay_text() {
        let mut t = Timeline::new("a\u{1b}[2J\"</script>");
        t.push(Span::new("x\n\u{202e}", SpanKind::Probe, ms(0), ms(1)).on("w\r", None));
        let events = trace(&[&t, &Timeline::new("empty"), &t]);
        let pids: Vec<_> = of(&events, "X").iter().map(|x| x["pid"].clone()).collect();
        assert_eq!(pids, [1, 3]);
        assert_eq!(of(&events, "X")[0]["name"], "x\u{fffd}\u{fffd}");
        assert!(trace(&[]).is_empty());
    }
}
