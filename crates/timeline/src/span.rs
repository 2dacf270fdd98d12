//! The data model: a timeline of spans, the edges between them, and the drivers of devices.

use std::fmt;
use std::time::Duration;

use crate::length::Length;

/// What happened while a set of things with dependencies ran. Times count from the timeline's
/// zero, which is whatever moment the recorder chose (usually: when it was asked to begin).
///
/// Spans keep the order in which they were pushed. It has no meaning, except that it breaks ties,
/// so that equal timelines render equally.
///
/// A span has a place in time. A run at a moment that nobody knows is [`Unplaced`]: it has a
/// length and no start, so nothing that needs a start can be worked out of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    name: String,
    spans: Vec<Span>,
    edges: Vec<Edge>,
    unplaced: Vec<Unplaced>,
    notes: Vec<String>,
    /// What a log's stamps are cut off to, where that shows.
    resolution: Duration,
    /// See [`Timeline::clock_went_back`].
    clock_went_back: bool,
}

impl Timeline {
    /// An empty timeline. `name` is the heading of what is rendered, such as `bring-up`.
    pub fn new(name: impl Into<String>) -> Timeline {
        Timeline { name: name.into(), ..Timeline::default() }
    }

    /// The same under another heading.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Timeline {
        self.name = name.into();
        self
    }

    /// The heading.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds a span and says under which id edges may name it.
    ///
    /// A span whose times run backwards is put right (`queued <= start <= end`): a log may round
    /// its stamps, and no renderer should have to care.
    pub fn push(&mut self, mut span: Span) -> SpanId {
        span.queued = span.queued.min(span.start);
        span.end = span.end.max(span.start);
        self.spans.push(span);
        SpanId(self.spans.len() - 1)
    }

    /// Adds what ran at a moment that nobody knows.
    pub fn push_unplaced(&mut self, unplaced: Unplaced) {
        self.unplaced.push(unplaced);
    }

    /// Adds a sentence that a reader of the numbers has to know. Every renderer shows it.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Says that `before` had to end before `after` could start. In a bring-up `before` is the
    /// parent or the supplier; in a shutdown it is the child or the consumer.
    ///
    /// # Panics
    ///
    /// When an id is not one that this timeline's [`push`](Timeline::push) gave out.
    pub fn push_edge(&mut self, before: SpanId, after: SpanId, kind: EdgeKind) {
        let known = self.spans.len();
        assert!(
            before.0 < known && after.0 < known,
            "an edge names span {} and span {}, but the timeline has {known} spans; \
             push the spans first, then their edges",
            before.0,
            after.0,
        );
        self.edges.push(Edge { before, after, kind });
    }

    /// Every span, in the order in which they were pushed; a [`SpanId`] is an index into it.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// What ran at moments that nobody knows, in the order in which it was pushed.
    pub fn unplaced(&self) -> &[Unplaced] {
        &self.unplaced
    }

    /// What a reader of the numbers has to know, a sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Every edge, in the order in which they were pushed.
    pub fn edges(&self) -> &[Edge] {
        &self.edges
    }

    /// Every span, to add what is learned of it after it was pushed: its driver, say.
    pub fn spans_mut(&mut self) -> &mut [Span] {
        &mut self.spans
    }

    /// By how much two moments may be further apart than they seem, or nearer: what a log's stamps
    /// are cut off to, where that is more than the kernel's microsecond. Else zero.
    pub fn resolution(&self) -> Duration {
        self.resolution
    }

    /// Sets the [resolution](Timeline::resolution).
    pub fn set_resolution(&mut self, resolution: Duration) {
        self.resolution = resolution;
    }

    /// Whether the clock of a log was set back between spans: those before and those after have no
    /// known order, although their moments show one.
    pub fn clock_went_back(&self) -> bool {
        self.clock_went_back
    }

    /// Sets whether the [clock went back](Timeline::clock_went_back).
    pub fn set_clock_went_back(&mut self, went_back: bool) {
        self.clock_went_back = went_back;
    }

    /// Whether moments tell which span came before which.
    pub fn has_order(&self) -> bool {
        self.resolution.is_zero() && !self.clock_went_back
    }

    /// Everything [unplaced](Timeline::unplaced), to add what is learned of it after it was pushed.
    pub fn unplaced_mut(&mut self) -> &mut [Unplaced] {
        &mut self.unplaced
    }

    /// Whether the length of each span is known exactly and what ran inside what too, stamps tell
    /// any two moments apart, and there is nothing but spans: only then are sums and chains exact.
    pub fn is_exact(&self) -> bool {
        let known = |span: &Span| span.took().is_exact() && !span.may_be_nested;
        self.unplaced.is_empty() && self.has_order() && self.spans.iter().all(known)
    }

    /// One span.
    ///
    /// # Panics
    ///
    /// When `id` came from a larger timeline.
    pub fn span(&self, id: SpanId) -> &Span {
        &self.spans[id.0]
    }

    /// Each span with its id.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (SpanId, &Span)> + ExactSizeIterator {
        self.spans.iter().enumerate().map(|(i, span)| (SpanId(i), span))
    }

    /// The first span of that name, if there is one.
    pub fn find(&self, name: &str) -> Option<SpanId> {
        self.spans.iter().position(|s| s.name == name).map(SpanId)
    }

    /// True when nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty() && self.unplaced.is_empty()
    }

    /// Only what `keep` keeps, by its name and its driver, and the edges between those: as if
    /// nothing else had been there. A span inside one that is left out is then inside the one
    /// around that.
    #[must_use]
    pub fn filtered(&self, keep: impl Fn(&str, Option<&str>) -> bool) -> Timeline {
        let mut t = Timeline { notes: self.notes.clone(), ..Timeline::new(self.name.clone()) };
        t.resolution = self.resolution;
        t.clock_went_back = self.clock_went_back;
        let mut ids = vec![None; self.spans.len()];
        for (id, span) in
            self.iter().filter(|(_, s)| keep(&s.name, s.driver.as_ref().map(Driver::name)))
        {
            ids[id.0] = Some(t.push(span.clone()));
        }
        let unplaced =
            self.unplaced.iter().filter(|u| keep(&u.name, u.driver.as_ref().map(Driver::name)));
        t.unplaced.extend(unplaced.cloned());
        for id in ids.iter().flatten() {
            let mut outer = t.spans[id.0].nested_in;
            // No chain of spans inside each other is longer than there are spans.
            for _ in 0..self.spans.len() {
                match outer.and_then(|outer| Some((self.spans.get(outer.0)?, ids[outer.0]))) {
                    Some((left_out, None)) => outer = left_out.nested_in,
                    Some((_, kept)) => {
                        outer = kept;
                        break;
                    }
                    None => {
                        outer = None;
                        break;
                    }
                }
            }
            t.spans[id.0].nested_in = outer;
        }
        for edge in &self.edges {
            if let (Some(before), Some(after)) = (ids[edge.before.0], ids[edge.after.0]) {
                t.push_edge(before, after, edge.kind);
            }
        }
        t
    }

    /// True when `edge` was kept in this run: its first span had ended when its second one
    /// started. Edges that were not kept (a cycle that was broken, a probe nested in its parent's)
    /// take no part in the critical path.
    pub fn is_kept(&self, edge: &Edge) -> bool {
        self.span(edge.before).end <= self.span(edge.after).start
    }

    /// The edges that were not kept. A recorder's test wants this empty.
    pub fn edges_not_kept(&self) -> impl Iterator<Item = &Edge> {
        self.edges.iter().filter(|edge| !self.is_kept(edge))
    }
}

/// Names one span of one timeline. Ids are given out in order, beginning with 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanId(pub(crate) usize);

impl SpanId {
    /// The index into [`Timeline::spans`].
    pub fn index(self) -> usize {
        self.0
    }
}

/// One thing that was run: the probe or the shutdown of a device, say.
///
/// Three moments divide its life: until `queued` it waited for its dependencies, from `queued` to
/// `start` it waited for a worker, from `start` to `end` it ran.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Span {
    /// What was run: a device's name. Unique names read best, but nothing depends on that.
    pub name: String,
    /// What was done to it.
    pub kind: SpanKind,
    /// The worker (thread) that ran it, and so the lane that it is drawn on. Empty: not known.
    pub worker: String,
    /// The CPU on which it ran, as seen when it started. None: not known.
    pub cpu: Option<u32>,
    /// The NUMA node near which it was asked to run. None: no preference, or not known.
    pub node: Option<u32>,
    /// When nothing that it depends on was left, so that any free worker could have run it.
    pub queued: Duration,
    /// When it started to run.
    pub start: Duration,
    /// When it was over, whatever the outcome.
    pub end: Duration,
    /// How it ended.
    pub outcome: Outcome,
    /// The dependency that ended last and so released it. None: it depended on nothing.
    pub released_by: Option<String>,
    /// True when there was nothing to call: it was completed on the spot, so that those who depend
    /// on it could go on. Renderers fold these.
    pub no_callback: bool,
    /// The driver (or the kind of subsystem) that was run for it. None: not known.
    pub driver: Option<Driver>,
    /// How well `start` is known. Never [`Certainty::Assumed`]: that is for [`Unplaced`].
    pub start_certainty: Certainty,
    /// How well `end` is known.
    pub end_certainty: Certainty,
    /// The least and the most that it can have taken, where start and end don't tell it better: a
    /// kernel may print durations in whole ticks of its clock.
    pub took_between: Option<(Duration, Duration)>,
    /// True when it ran beside its starter: an asynchronous probe or shutdown. False: it ran
    /// in its turn, or nobody knows.
    pub asynchronous: bool,
    /// The span that ran this one inside itself, on its own thread: the probe that registered the
    /// device, the init function that registered the driver. Its time holds this one's. None: it
    /// stood by itself, or nobody knows. An id that the timeline does not have counts as none.
    pub nested_in: Option<SpanId>,
    /// True when it stands within the time of other spans, and nothing proves which of them ran it,
    /// or whether any did: `nested_in` and `worker` are then the likeliest, if they say anything.
    /// Own times, and all sums, are bounds then.
    pub may_be_nested: bool,
}

impl Span {
    /// A span that ended well, was ready at the moment it started, and ran on no known worker.
    /// Set the other fields afterwards.
    pub fn new(name: impl Into<String>, kind: SpanKind, start: Duration, end: Duration) -> Span {
        Span {
            name: name.into(),
            kind,
            worker: String::new(),
            cpu: None,
            node: None,
            queued: start,
            start,
            end,
            outcome: Outcome::Ok,
            released_by: None,
            no_callback: false,
            driver: None,
            start_certainty: Certainty::Measured,
            end_certainty: Certainty::Measured,
            took_between: None,
            asynchronous: false,
            nested_in: None,
            may_be_nested: false,
        }
    }

    /// Says where it ran.
    #[must_use]
    pub fn on(mut self, worker: impl Into<String>, cpu: Option<u32>) -> Span {
        self.worker = worker.into();
        self.cpu = cpu;
        self
    }

    /// How long it waited for a worker after its dependencies were done.
    pub fn waited(&self) -> Duration {
        self.start.saturating_sub(self.queued)
    }

    /// How long it ran, as well as that is known.
    pub fn took(&self) -> Length {
        match (self.end_certainty, self.took_between) {
            (Certainty::Assumed, _) => Length::UNKNOWN,
            (_, Some((least, most))) => Length::between(least, most).telling(self.drawn()),
            (Certainty::UpperBound, None) => Length::at_most(self.drawn()),
            (_, None) => Length::exact(self.drawn()),
        }
    }

    /// Whether another span seems to have run it, and nothing proves that.
    pub fn seems_nested(&self) -> bool {
        self.may_be_nested && self.nested_in.is_some()
    }

    /// Its worker for people, with a mark where that is only the likeliest. Empty: not known.
    pub(crate) fn worker_told(&self) -> String {
        let mark = if self.seems_nested() && !self.worker.is_empty() { "?" } else { "" };
        format!("{}{mark}", self.worker)
    }

    /// How long its bar is. It may have taken less, or nobody knows: [`Span::took`] says so.
    pub fn drawn(&self) -> Duration {
        self.end.saturating_sub(self.start)
    }
}

/// Something that ran nobody knows when: of a log whose stamps are missing, or too coarse to tell
/// an order in time. All that is known of it is what the log itself says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unplaced {
    /// What was run, as in [`Span::name`].
    pub name: String,
    /// What was done to it.
    pub kind: SpanKind,
    /// How long it ran.
    pub took: Length,
    /// The worker (thread) that ran it. Empty: not known.
    pub worker: String,
    /// The CPU on which it ran. None: not known.
    pub cpu: Option<u32>,
    /// How it ended.
    pub outcome: Outcome,
    /// The driver that was run for it. None: not known.
    pub driver: Option<Driver>,
    /// True when it is known to have run beside its starter.
    pub asynchronous: bool,
}

impl Unplaced {
    /// Something that ended well, and ran on no known worker. Set the other fields afterwards.
    pub fn new(name: impl Into<String>, kind: SpanKind, took: Length) -> Unplaced {
        Unplaced {
            name: name.into(),
            kind,
            took,
            worker: String::new(),
            cpu: None,
            outcome: Outcome::Ok,
            driver: None,
            asynchronous: false,
        }
    }
}

/// How well a moment of a span is known. A moment that Corewise recorded is measured; a log says
/// less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Certainty {
    /// Somebody read a clock at that moment.
    #[default]
    Measured,
    /// Computed from other moments: a start, say, as the end less a duration that was printed.
    Inferred,
    /// It was over by then at the latest, but may have been over earlier: the end of a shutdown, of
    /// which only the next line tells.
    UpperBound,
    /// Nobody knows when that was: the end of a span that nothing follows. It is drawn where the
    /// span starts.
    Assumed,
}

impl Certainty {
    /// One lower-case word, as it stands in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Certainty::Measured => "measured",
            Certainty::Inferred => "inferred",
            Certainty::UpperBound => "upper_bound",
            Certainty::Assumed => "assumed",
        }
    }

    /// A few words, for people.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Certainty::Measured => "measured",
            Certainty::Inferred => "computed",
            Certainty::UpperBound => "at the latest",
            Certainty::Assumed => "not known",
        }
    }
}

/// What was done to the thing that a span names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SpanKind {
    /// A driver was bound to a device.
    Probe,
    /// A device was shut down.
    Shutdown,
    /// An init function of a kernel ran.
    Initcall,
    /// Any other piece of work.
    Task,
}

impl SpanKind {
    /// One lower-case word, as it stands in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            SpanKind::Probe => "probe",
            SpanKind::Shutdown => "shutdown",
            SpanKind::Initcall => "initcall",
            SpanKind::Task => "task",
        }
    }
}

/// How a span ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// As it should.
    Ok,
    /// It ran and failed; the message says how.
    Failed(String),
    /// It was not run, and the message says why (a supplier failed, say).
    Skipped(String),
    /// It was not run, or was left, because everything was being stopped.
    Cancelled,
    /// It ran, or was about to, and is to be tried again later (a deferred probe); the message says
    /// what it waits for.
    Deferred(String),
}

impl Outcome {
    /// One lower-case word, as it stands in tables and in JSON.
    pub fn as_str(&self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Failed(_) => "failed",
            Outcome::Skipped(_) => "skipped",
            Outcome::Cancelled => "cancelled",
            Outcome::Deferred(_) => "deferred",
        }
    }

    /// What there is to say beside the word.
    pub fn message(&self) -> Option<&str> {
        match self {
            Outcome::Failed(m) | Outcome::Skipped(m) | Outcome::Deferred(m) if !m.is_empty() => {
                Some(m)
            }
            _ => None,
        }
    }

    /// True for [`Outcome::Ok`].
    pub fn is_ok(&self) -> bool {
        matches!(self, Outcome::Ok)
    }
}

/// A dependency: `before` had to end before `after` could start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Edge {
    /// The span that had to end first.
    pub before: SpanId,
    /// The span that had to wait for it.
    pub after: SpanId,
    /// Which relation of the device graph asked for it.
    pub kind: EdgeKind,
}

/// The relation that an edge stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EdgeKind {
    /// Parent and child (the parent probes first, the child shuts down first).
    Parent,
    /// Supplier and consumer (the supplier probes first, the consumer shuts down first).
    Supplier,
}

impl EdgeKind {
    /// One lower-case word, as it stands in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            EdgeKind::Parent => "parent",
            EdgeKind::Supplier => "supplier",
        }
    }
}

/// A driver's name, and whether anything proves that this driver is the one. Its text has a `?`
/// behind a name that is only the likeliest.
///
/// ```
/// use corewise_timeline::Driver;
///
/// assert_eq!(Driver::from("nvme").to_string(), "nvme");
/// assert_eq!(Driver::inferred("nvme").to_string(), "nvme?");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Driver {
    name: String,
    inferred: bool,
}

impl Driver {
    /// A driver that no line names: the likeliest one.
    pub fn inferred(name: impl Into<String>) -> Driver {
        Driver { name: name.into(), inferred: true }
    }

    /// Its name without the mark: to search and to group by. People read the
    /// [text](ToString::to_string).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True when no line names it: it is the likeliest one by what a probe seems to have run
    /// inside of.
    pub fn is_inferred(&self) -> bool {
        self.inferred
    }
}

/// A driver that a line of a log names, or the recorder of the span.
impl<T: Into<String>> From<T> for Driver {
    fn from(name: T) -> Driver {
        Driver { name: name.into(), inferred: false }
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        f.write_str(if self.inferred { "?" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::ms;

    #[test]
    fn times_that_run_backwards_are_put_right() {
        let mut t = Timeline::new("x");
        let mut span = Span::new("a", SpanKind::Probe, ms(5), ms(3));
        span.queued = ms(9);
        let id = t.push(span);
        let span = t.span(id);
        assert_eq!((span.queued, span.start, span.end), (ms(5), ms(5), ms(5)));
    }

    #[test]
    fn an_edge_to_a_span_that_is_not_there_is_refused() {
        let mut t = Timeline::new("x");
        let a = t.push(Span::new("a", SpanKind::Probe, ms(0), ms(1)));
        let beyond = SpanId(7);
        let refused = std::panic::catch_unwind(move || t.push_edge(a, beyond, EdgeKind::Parent));
        assert!(refused.is_err());
    }

    #[test]
    fn an_edge_is_kept_when_its_first_span_ended_in_time() {
        let mut t = Timeline::new("x");
        let a = t.push(Span::new("a", SpanKind::Probe, ms(0), ms(4)));
        let b = t.push(Span::new("b", SpanKind::Probe, ms(4), ms(5)));
        let nested = t.push(Span::new("nested", SpanKind::Probe, ms(1), ms(2)));
        t.push_edge(a, b, EdgeKind::Parent);
        t.push_edge(a, nested, EdgeKind::Parent);
        let not_kept: Vec<_> = t.edges_not_kept().map(|e| e.after).collect();
        assert_eq!(not_kept, [nested]);
    }

    #[test]
    fn without_further_facts_a_span_is_measured_and_independent() {
        let span = Span::new("a", SpanKind::Probe, ms(0), ms(1));
        assert_eq!(span.start_certainty, Certainty::Measured);
        assert_eq!(span.end_certainty, Certainty::Measured);
        assert_eq!((span.driver, span.nested_in), (None, None));
    }

    #[test]
    fn filtered_spans_leave_the_edges_and_nesting_of_the_others() {
        let mut t = Timeline::new("x");
        let push = |t: &mut Timeline, name: &str, outer: Option<SpanId>| {
            let mut span = Span::new(name, SpanKind::Probe, ms(1), ms(4));
            span.nested_in = outer;
            t.push(span)
        };
        let a = push(&mut t, "a", None);
        let gone = push(&mut t, "gone", Some(a));
        let b = push(&mut t, "b", Some(gone));
        push(&mut t, "c", Some(SpanId(77)));
        t.push_edge(a, gone, EdgeKind::Parent);
        t.push_edge(a, b, EdgeKind::Supplier);
        let kept = t.filtered(|name, _| name != "gone").named("y");
        assert_eq!((kept.name(), kept.spans().len(), kept.edges().len()), ("y", 3, 1));
        assert_eq!(kept.edges()[0].after, SpanId(1));
        let outer: Vec<_> = kept.spans().iter().map(|s| s.nested_in).collect();
        assert_eq!(outer, [None, Some(SpanId(0)), None]);
        assert!(t.filtered(|_, _| false).is_empty());
    }

    #[test]
    fn a_name_finds_its_first_span() {
        let mut t = Timeline::new("x");
        t.push(Span::new("a", SpanKind::Probe, ms(0), ms(4)));
        let b = t.push(Span::new("b", SpanKind::Probe, ms(4), ms(5)));
        t.push(Span::new("b", SpanKind::Probe, ms(5), ms(6)));
        assert_eq!(t.find("b"), Some(b));
        assert_eq!(t.find("c"), None);
    }
}
