//! Steps bring-ups by hand: no threads, no clock, every interleaving chosen here.
#![allow(clippy::unwrap_used, reason = "a test says what it expects by unwrapping it")]

use super::*;
use crate::DeviceDecl;

struct Thing;
impl Bound for Thing {}

struct Stepped {
    state: ProbeState,
    now: Duration,
    /// What was to be queued so far and was not taken by the test.
    queue: Vec<String>,
    finished: Vec<(String, &'static str)>,
}

impl Stepped {
    fn new(decls: Vec<DeviceDecl>, sync: &[&str], keep_going: bool) -> Stepped {
        let (graph, faults) = Graph::build_tolerant(decls);
        let is_async = graph.ids().map(|id| !sync.contains(&graph.name(id))).collect();
        let plan = Plan {
            graph: Arc::new(graph),
            prior: Vec::new(),
            is_async,
            faults,
            keep_going,
            cancel: Cancel::new(),
            observed: false,
        };
        let state = ProbeState::new(plan);
        let mut stepped =
            Stepped { state, now: Duration::ZERO, queue: Vec::new(), finished: Vec::new() };
        stepped.step(|state, now, fx| state.seed(now, fx));
        stepped
    }

    fn step<R>(&mut self, f: impl FnOnce(&ProbeState, Duration, &mut Effects) -> R) -> R {
        let mut fx = Effects::default();
        let result = f(&self.state, self.now, &mut fx);
        self.now += Duration::from_millis(1);
        let name = |id| self.state.graph().name(id).to_string();
        self.queue.extend(fx.queue.into_iter().map(name));
        self.finished.extend(fx.finished.iter().map(|(id, o, _)| (name(*id), o.as_str())));
        result
    }

    fn id(&self, name: &str) -> DeviceId {
        self.state.graph().find(name).unwrap()
    }

    /// Starts a device; the names of what it needs, if it is to be probed.
    fn begin(&mut self, name: &str) -> Option<Vec<String>> {
        let id = self.id(name);
        self.queue.retain(|n| n != name);
        let site = Site { worker: "w".into(), cpu: None };
        let needs = self.step(|state, now, fx| state.begin(id, site, now, fx))?;
        Some(needs.into_iter().map(|(name, _)| name).collect())
    }

    fn end(&mut self, name: &str, ok: bool) {
        let id = self.id(name);
        let result: Result<Arc<dyn Bound>, _> =
            if ok { Ok(Arc::new(Thing)) } else { Err(ProbeError::failed("on purpose")) };
        self.step(|state, now, fx| state.end(id, result, now, || now, fx));
    }

    fn probe(&mut self, name: &str) {
        assert!(self.begin(name).is_some(), "{name} is not to be probed");
        self.end(name, true);
    }

    fn caller(&mut self) -> String {
        match self.step(|state, now, fx| state.caller_step(now, fx)) {
            CallerStep::Run(id) => self.state.graph().name(id).to_string(),
            step => format!("{step:?}"),
        }
    }

    fn outcome(&mut self, name: &str) -> &'static str {
        let of = |(n, _): &&(String, _)| n == name;
        self.finished.iter().find(of).map_or("open", |(_, outcome)| outcome)
    }
}

fn decl(name: &str, needs: &[&str]) -> DeviceDecl {
    needs.iter().fold(DeviceDecl::new(name, "d"), |d, n| d.supplier(*n))
}

fn diamond() -> Vec<DeviceDecl> {
    vec![decl("top", &[]), decl("a", &["top"]), decl("b", &["top"]), decl("end", &["a", "b"])]
}

#[test]
fn stepped_a_device_is_queued_the_moment_all_it_needs_is_bound() {
    let mut s = Stepped::new(diamond(), &[], false);
    assert_eq!(s.queue, ["top"]);
    s.probe("top");
    assert_eq!(s.queue, ["a", "b"]);
    assert_eq!(s.begin("b"), Some(vec!["top".to_string()]));
    s.probe("a");
    assert!(s.queue.is_empty(), "b still runs");
    s.end("b", true);
    assert_eq!(s.queue, ["end"]);
    assert_eq!(s.begin("end"), Some(vec!["a".to_string(), "b".to_string()]));
    assert_eq!(s.caller(), "Wait");
    s.end("end", true);
    assert_eq!(s.caller(), "Done");
    let records = s.state.finish().records;
    let end = records.iter().find(|r| r.device == s.id("end")).unwrap();
    assert_eq!(end.released_by, Some(s.id("b")));
}

#[test]
fn stepped_a_failure_with_keep_going_skips_exactly_its_dependents() {
    let mut decls = diamond();
    decls.push(decl("behind", &["end"]));
    decls.push(decl("beside", &["b"]));
    let mut s = Stepped::new(decls, &[], true);
    s.probe("top");
    s.begin("a");
    s.end("a", false);
    assert_eq!(s.outcome("end"), "open", "it still waits for b, which is to be told first");
    s.probe("b");
    assert_eq!((s.outcome("end"), s.outcome("behind")), ("skipped", "skipped"));
    assert_eq!(s.queue, ["beside"]);
    s.probe("beside");
    assert_eq!(s.caller(), "Done");
    let finished = s.state.finish();
    let skipped = ProbeOutcome::Skipped { culprit: "a".into() };
    assert_eq!(finished.devices[3].0, skipped);
    assert_eq!(finished.devices[4].0, skipped);
    assert_eq!(finished.stopped_by, None);
}

#[test]
fn stepped_a_failure_stops_new_probes_and_those_running_finish() {
    let decls =
        vec![decl("bad", &[]), decl("runs", &[]), decl("queued", &[]), decl("c", &["runs"])];
    let mut s = Stepped::new(decls, &[], false);
    s.begin("bad");
    s.begin("runs");
    s.end("bad", false);
    assert_eq!(s.caller(), "Wait", "one still runs");
    assert_eq!(s.outcome("queued"), "cancelled", "the caller does not wait for its worker");
    s.end("runs", true);
    assert_eq!((s.outcome("runs"), s.outcome("c")), ("ok", "cancelled"));
    assert_eq!(s.caller(), "Done");
    assert_eq!(s.begin("queued"), None, "its worker comes late and has nothing to do");
    assert_eq!(s.state.finish().stopped_by, Some(s.id("bad")));
}

#[test]
fn stepped_cancelling_starts_nothing_more() {
    let mut s = Stepped::new(diamond(), &["b"], false);
    s.begin("top");
    s.state.cancel().cancel();
    s.end("top", true);
    assert_eq!(s.caller(), "Done");
    let names: Vec<_> = s.finished.clone();
    assert_eq!(names.iter().filter(|(_, o)| *o == "cancelled").count(), 3, "{names:?}");
    assert!(s.queue.is_empty());
}

#[test]
fn stepped_synchronous_probes_keep_their_order_whichever_is_ready_first() {
    let decls = vec![decl("slow", &[]), decl("s1", &["slow"]), decl("s2", &[]), decl("s3", &[])];
    let mut s = Stepped::new(decls, &["s1", "s2", "s3"], false);
    assert_eq!(s.caller(), "Wait", "s2 is ready, but s1 is before it");
    s.probe("slow");
    for name in ["s1", "s2", "s3"] {
        assert_eq!(s.caller(), name);
        s.probe(name);
    }
    assert_eq!(s.caller(), "Done");
}

#[test]
fn stepped_synchronous_probes_registered_before_their_supplier_do_not_block_themselves() {
    let decls = vec![decl("s1", &["s2"]), decl("s2", &["a"]), decl("a", &[])];
    let mut s = Stepped::new(decls, &["s1", "s2"], false);
    assert_eq!(s.caller(), "Wait");
    s.probe("a");
    assert_eq!(s.caller(), "s2");
    s.probe("s2");
    assert_eq!(s.caller(), "s1");
    s.probe("s1");
    assert_eq!(s.caller(), "Done");
}

#[test]
fn stepped_rejected_devices_are_settled_at_once_and_their_dependents_skipped() {
    let decls = vec![decl("x", &["y"]), decl("y", &["x"]), decl("z", &["y"]), decl("fine", &[])];
    let mut s = Stepped::new(decls, &[], true);
    assert_eq!(s.queue, ["fine"]);
    assert_eq!(s.outcome("z"), "skipped");
    s.probe("fine");
    assert_eq!(s.caller(), "Done");
    let devices = s.state.finish().devices;
    assert!(matches!(devices[0].0, ProbeOutcome::Rejected(GraphError::Cycle { .. })));
    assert!(matches!(devices[1].0, ProbeOutcome::Rejected(GraphError::Cycle { .. })));
}

#[test]
fn stepped_devices_of_an_earlier_bring_up_count_as_bound_or_as_culprits() {
    let decls = vec![decl("up", &[]), decl("dead", &[]), decl("a", &["up"]), decl("b", &["dead"])];
    let earlier: Arc<dyn Bound> = Arc::new(Thing);
    let plan = Plan {
        graph: Arc::new(Graph::build(decls).unwrap()),
        prior: vec![Some(earlier.clone()), None],
        is_async: vec![true; 4],
        faults: Vec::new(),
        keep_going: true,
        cancel: Cancel::new(),
        observed: false,
    };
    let state = ProbeState::new(plan);
    let mut fx = Effects::default();
    state.seed(Duration::ZERO, &mut fx);
    assert_eq!(fx.queue, [DeviceId(2)]);
    let site = Site { worker: "w".into(), cpu: None };
    let needs = state.begin(DeviceId(2), site, Duration::ZERO, &mut fx).unwrap();
    assert_eq!(needs[0].0, "up");
    let now = || Duration::ZERO;
    state.end(DeviceId(2), Ok(Arc::new(Thing)), now(), now, &mut fx);
    assert_eq!(state.caller_step(Duration::ZERO, &mut fx), CallerStep::Done);
    let devices = state.finish().devices;
    assert_eq!(devices[0].0, ProbeOutcome::Bound);
    assert_eq!(devices[1].0, ProbeOutcome::Skipped { culprit: "dead".into() });
    // A worker may let go of the state much later: after the shutdown, say.
    drop(needs);
    assert_eq!(Arc::strong_count(&earlier), 1, "who is over holds no device");
}
