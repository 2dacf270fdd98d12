//! The data model: a timeline of spans, the edges between them, and the drivers of devices.

use std::fmt;
use std::time::Duration;

use crate::length::Length;

/// A run of a set of things with dependencies. Times count from the timeline's zero, a moment that
/// the recorder chose (usually the one at which it was asked to begin).
///
/// Spans keep the order in which they were pushed. The order only breaks ties, so that equal
/// timelines render equally.
///
/// A span has a place in time. A run at an unknown moment is [`Unplaced`]: it has a length but no
/// start, so nothing that needs a start can be computed from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    name: String,
    spans: Vec<Span>,
    edges: Vec<Edge>,
    unplaced: Vec<Unplaced>,
    notes: Vec<String>,
    /// Resolution to which a log's stamps are cut off, where that shows.
    resolution: Duration,
    /// See [`Timeline::clock_went_back`].
    clock_went_back: bool,
}

impl Timeline {
    /// Creates an empty timeline. `name` is the heading of its renderings, such as `bring-up`.
    pub fn new(name: impl Into<String>) -> Timeline {
        Timeline { name: name.into(), ..Timeline::default() }
    }

    /// Replaces the heading.
    #[must_use]
    pub fn named(mut self, name: impl Into<String>) -> Timeline {
        self.name = name.into();
        self
    }

    /// Returns the heading.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Adds a span and returns the id by which edges name it.
    ///
    /// If a span's times run backwards, they are corrected (`queued <= start <= end`): a log may
    /// round its stamps, and no renderer should have to care.
    pub fn push(&mut self, mut span: Span) -> SpanId {
        span.queued = span.queued.min(span.start);
        span.end = span.end.max(span.start);
        self.spans.push(span);
        SpanId(self.spans.len() - 1)
    }

    /// Adds a run at an unknown moment.
    pub fn push_unplaced(&mut self, unplaced: Unplaced) {
        self.unplaced.push(unplaced);
    }

    /// Adds a sentence that readers of the numbers need. Every renderer shows it.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Adds an edge: `before` had to end before `after` could start. In a bring-up `before` is the
    /// parent or the supplier; in a shutdown it is the child or the consumer.
    ///
    /// # Panics
    ///
    /// If an id did not come from this timeline's [`push`](Timeline::push).
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

    /// Returns every span, in the order in which they were pushed. A [`SpanId`] is an index into
    /// it.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Returns the runs at unknown moments, in the order in which they were pushed.
    pub fn unplaced(&self) -> &[Unplaced] {
        &self.unplaced
    }

    /// Returns the sentences that readers of the numbers need.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns every edge, in the order in which they were pushed.
    pub fn edges(&self) -> &[Edge] {
        &self.edges
    }

    /// Returns every span, to add facts that were learned after it was pushed, such as its driver.
    pub fn spans_mut(&mut self) -> &mut [Span] {
        &mut self.spans
    }

    /// Returns the error of the distance between two moments: the resolution to which a log's
    /// stamps are cut off. Zero, if the log has the kernel's microseconds.
    pub fn resolution(&self) -> Duration {
        self.resolution
    }

    /// Sets the [resolution](Timeline::resolution).
    pub fn set_resolution(&mut self, resolution: Duration) {
        self.resolution = resolution;
    }

    /// Returns true if the clock of a log was set back between spans. The spans before and those
    /// after have no known order then, although their moments show one.
    pub fn clock_went_back(&self) -> bool {
        self.clock_went_back
    }

    /// Sets whether the [clock went back](Timeline::clock_went_back).
    pub fn set_clock_went_back(&mut self, went_back: bool) {
        self.clock_went_back = went_back;
    }

    /// Returns true if the moments tell which span came before which.
    pub fn has_order(&self) -> bool {
        self.resolution.is_zero() && !self.clock_went_back
    }

    /// Returns every [unplaced](Timeline::unplaced) run, to add facts that were learned after it
    /// was pushed.
    pub fn unplaced_mut(&mut self) -> &mut [Unplaced] {
        &mut self.unplaced
    }

    /// Returns true if sums and chains are exact. For that, each span's length and nesting must be
    /// known, stamps must tell any two moments apart, and nothing may be unplaced.
    pub fn is_exact(&self) -> bool {
        let known = |span: &Span| span.took().is_exact() && !span.may_be_nested;
        self.unplaced.is_empty() && self.has_order() && self.spans.iter().all(known)
    }

    /// Returns one span.
    ///
    /// # Panics
    ///
    /// If `id` came from a larger timeline.
    pub fn span(&self, id: SpanId) -> &Span {
        &self.spans[id.0]
    }

    /// Returns each span with its id.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (SpanId, &Span)> + ExactSizeIterator {
        self.spans.iter().enumerate().map(|(i, span)| (SpanId(i), span))
    }

    /// Returns the first span of that name, if there is one.
    pub fn find(&self, name: &str) -> Option<SpanId> {
        self.spans.iter().position(|s| s.name == name).map(SpanId)
    }

    /// Returns true if nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty() && self.unplaced.is_empty()
    }

    /// Returns the spans that `keep` accepts by name and driver, and the edges between them, as if
    /// nothing else had run. A span inside one that is left out moves into the one around that.
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
            // No chain of nested spans is longer than the number of spans.
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

    /// Returns true if `edge` was kept in this run: its first span had ended when its second one
    /// started. Edges that were not kept (a cycle that was broken, a probe nested in its parent's)
    /// take no part in the critical path.
    pub fn is_kept(&self, edge: &Edge) -> bool {
        self.span(edge.before).end <= self.span(edge.after).start
    }

    /// Returns the edges that were not kept. A recorder's tests expect none.
    pub fn edges_not_kept(&self) -> impl Iterator<Item = &Edge> {
        self.edges.iter().filter(|edge| !self.is_kept(edge))
    }
}

/// Id of a span within one timeline. Ids are given out in order, beginning with 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanId(pub(crate) usize);

impl SpanId {
    /// Returns the index into [`Timeline::spans`].
    pub fn index(self) -> usize {
        self.0
    }
}

/// One run of something: the probe or the shutdown of a device, say.
///
/// Three moments divide it. Until `queued` it waited for its dependencies, until `start` for a
/// worker, and until `end` it ran.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Span {
    /// Name of what ran: a device's name. Unique names read best, but nothing depends on that.
    pub name: String,
    /// Operation that ran.
    pub kind: SpanKind,
    /// The worker (thread) that ran it, and so the lane that it is drawn on. Empty: not known.
    pub worker: String,
    /// The CPU on which it ran, as seen when it started. None: not known.
    pub cpu: Option<u32>,
    /// The NUMA node near which it was asked to run. None: no preference, or not known.
    pub node: Option<u32>,
    /// Moment at which its last dependency was done, so that any free worker could have run it.
    pub queued: Duration,
    /// Moment at which it started to run.
    pub start: Duration,
    /// Moment at which it was over, whatever the outcome.
    pub end: Duration,
    /// Result of the run.
    pub outcome: Outcome,
    /// The dependency that ended last and so released it. None: it depended on nothing.
    pub released_by: Option<String>,
    /// True if there was nothing to call: it was completed on the spot, so that its dependents
    /// could continue. Renderers fold these.
    pub no_callback: bool,
    /// The driver (or the kind of subsystem) that was run for it. None: not known.
    pub driver: Option<Driver>,
    /// Certainty of `start`. Never [`Certainty::Assumed`]: such a run is [`Unplaced`].
    pub start_certainty: Certainty,
    /// Certainty of `end`.
    pub end_certainty: Certainty,
    /// The shortest and the longest possible duration, where these are closer than start and end
    /// tell: a kernel may print durations in whole ticks of its clock.
    pub took_between: Option<(Duration, Duration)>,
    /// True if it ran beside its starter: an asynchronous probe or shutdown. False: it ran in its
    /// turn, or that isn't known.
    pub asynchronous: bool,
    /// The span that ran this one inside itself, on its own thread: the probe that registered the
    /// device, the init function that registered the driver. That span's time includes this one's.
    /// None: it ran by itself, or that isn't known. An id that the timeline does not have counts as
    /// none.
    pub nested_in: Option<SpanId>,
    /// True if it lies within the time of other spans, and nothing proves which of them ran it, or
    /// whether any did. `nested_in` and `worker` are then the likeliest, if they are set. Own times
    /// and all sums are bounds then.
    pub may_be_nested: bool,
}

impl Span {
    /// Creates a span that ended well, was ready at the moment it started, and ran on no known
    /// worker. Set the other fields afterwards.
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

    /// Sets the worker and the CPU.
    #[must_use]
    pub fn on(mut self, worker: impl Into<String>, cpu: Option<u32>) -> Span {
        self.worker = worker.into();
        self.cpu = cpu;
        self
    }

    /// Returns the time that it waited for a worker after its dependencies were done.
    pub fn waited(&self) -> Duration {
        self.start.saturating_sub(self.queued)
    }

    /// Returns the time that it ran, as exactly as that is known.
    pub fn took(&self) -> Length {
        match (self.end_certainty, self.took_between) {
            (Certainty::Assumed, _) => Length::UNKNOWN,
            (_, Some((least, most))) => Length::between(least, most).telling(self.drawn()),
            (Certainty::UpperBound, None) => Length::at_most(self.drawn()),
            (_, None) => Length::exact(self.drawn()),
        }
    }

    /// Returns true if another span seems to have run it, and nothing proves that.
    pub fn seems_nested(&self) -> bool {
        self.may_be_nested && self.nested_in.is_some()
    }

    /// Returns its worker for people, with a mark if that is only the likeliest one. Empty: not
    /// known.
    pub(crate) fn worker_told(&self) -> String {
        let mark = if self.seems_nested() && !self.worker.is_empty() { "?" } else { "" };
        format!("{}{mark}", self.worker)
    }

    /// Returns the length of its bar. It may have taken less, or that isn't known: [`Span::took`]
    /// says so.
    pub fn drawn(&self) -> Duration {
        self.end.saturating_sub(self.start)
    }
}

/// A run at an unknown moment, from a log whose stamps are missing, or too coarse to show an order.
/// Only the log's own words about it are known.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unplaced {
    /// Name of what ran, as in [`Span::name`].
    pub name: String,
    /// Operation that ran.
    pub kind: SpanKind,
    /// Duration of the run.
    pub took: Length,
    /// The worker (thread) that ran it. Empty: not known.
    pub worker: String,
    /// The CPU on which it ran. None: not known.
    pub cpu: Option<u32>,
    /// Result of the run.
    pub outcome: Outcome,
    /// The driver that was run for it. None: not known.
    pub driver: Option<Driver>,
    /// True if it is known to have run beside its starter.
    pub asynchronous: bool,
}

impl Unplaced {
    /// Creates a run that ended well, on no known worker. Set the other fields afterwards.
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

/// Certainty of a moment of a span. A moment that Corewise recorded is measured; a log says less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Certainty {
    /// The recorder read a clock at that moment.
    #[default]
    Measured,
    /// The moment was computed from others: a start, say, as the end minus a printed duration.
    Inferred,
    /// The span was over by then, and may have been over earlier: the end of a shutdown, say, that
    /// only the next line shows.
    UpperBound,
    /// The moment isn't known: the end of a span that nothing follows. It is drawn where the span
    /// starts.
    Assumed,
}

impl Certainty {
    /// Returns one lower-case word, as it stands in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Certainty::Measured => "measured",
            Certainty::Inferred => "inferred",
            Certainty::UpperBound => "upper_bound",
            Certainty::Assumed => "assumed",
        }
    }

    /// Returns a few words for people.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Certainty::Measured => "measured",
            Certainty::Inferred => "computed",
            Certainty::UpperBound => "at the latest",
            Certainty::Assumed => "not known",
        }
    }
}

/// Operation of a span.
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
    /// Returns one lower-case word, as it stands in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            SpanKind::Probe => "probe",
            SpanKind::Shutdown => "shutdown",
            SpanKind::Initcall => "initcall",
            SpanKind::Task => "task",
        }
    }
}

/// Result of a span.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// Success.
    Ok,
    /// Failure. The message says what failed.
    Failed(String),
    /// Skipped run. The message gives the reason (a supplier failed, say).
    Skipped(String),
    /// Cancelled run: it was not run, or was abandoned, because everything was being stopped.
    Cancelled,
    /// Deferred probe: it ran, or was about to, and is to be tried again later. The message says
    /// what it waits for.
    Deferred(String),
}

impl Outcome {
    /// Returns one lower-case word, as it stands in tables and in JSON.
    pub fn as_str(&self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Failed(_) => "failed",
            Outcome::Skipped(_) => "skipped",
            Outcome::Cancelled => "cancelled",
            Outcome::Deferred(_) => "deferred",
        }
    }

    /// Returns the message beside the word, if there is one.
    pub fn message(&self) -> Option<&str> {
        match self {
            Outcome::Failed(m) | Outcome::Skipped(m) | Outcome::Deferred(m) if !m.is_empty() => {
                Some(m)
            }
            _ => None,
        }
    }

    /// Returns true for [`Outcome::Ok`].
    pub fn is_ok(&self) -> bool {
        matches!(self, Outcome::Ok)
    }
}

/// A dependency: `before` had to end before `after` could start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Edge {
    /// The span that had to end first.
    pub before: SpanId,
    /// The span that had to wait for `before`.
    pub after: SpanId,
    /// Relation of the device graph that the edge stands for.
    pub kind: EdgeKind,
}

/// The relation that an edge stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EdgeKind {
    /// Relation of parent and child (the parent probes first, the child shuts down first).
    Parent,
    /// Relation of supplier and consumer (the supplier probes first, the consumer shuts down
    /// first).
    Supplier,
}

impl EdgeKind {
    /// Returns one lower-case word, as it stands in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            EdgeKind::Parent => "parent",
            EdgeKind::Supplier => "supplier",
        }
    }
}

/// A driver's name, and whether anything proves it. Its text has a `?` behind a name that is only
/// the likeliest.
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
    /// Creates a driver that no line names: the likeliest one.
    pub fn inferred(name: impl Into<String>) -> Driver {
        Driver { name: name.into(), inferred: true }
    }

    /// Returns its name without the mark, to search and to group by. People read the
    /// [text](ToString::to_string).
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns true if no line names it: it is the likeliest driver by the span that the probe
    /// seems to have run in.
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
    use crate::fixtures::ms;

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
