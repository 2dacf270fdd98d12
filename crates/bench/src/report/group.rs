//! Which records stand together: in a section, in a block, in a figure, in a row.

use corewise_timeline::markup::printable;

use super::about;
use crate::names::{BESIDE, Better, CaseName, HEADLINE, INTERVAL, MetricName, Place, sums_up};
use crate::record::Record;

/// Which program wrote a record. Figures of two programs never share an axis: they were measured at
/// different moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// `corewise bench`: the scopes, and the old design.
    Own,
    /// `bench-peers`: Corewise and other runtimes.
    Peers,
}

/// What a row is, so that it is drawn in a manner of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Corewise,
    /// The old design, or a bare floor such as the futex hand-over: what others are held against.
    Yardstick,
    Peer,
}

/// Everything of one workload.
#[derive(Debug)]
pub(super) struct Section<'r> {
    pub(super) workload: String,
    pub(super) blocks: Vec<Block<'r>>,
}

/// One case of a workload, for all scopes and variants.
#[derive(Debug)]
pub(super) struct Block<'r> {
    /// The workload with its parameters.
    pub(super) case: String,
    pub(super) figures: Vec<Figure<'r>>,
}

/// What one chart shows: a metric, or all percentiles of one, for each variant.
#[derive(Debug)]
pub(super) struct Figure<'r> {
    pub(super) source: Source,
    pub(super) stem: String,
    pub(super) unit: &'r str,
    pub(super) rows: Vec<Row<'r>>,
}

/// One variant.
#[derive(Debug)]
pub(super) struct Row<'r> {
    pub(super) label: String,
    pub(super) kind: Kind,
    pub(super) marks: Vec<Mark<'r>>,
    variant: &'r str,
    place: Option<Place>,
}

/// One record.
#[derive(Debug)]
pub(super) struct Mark<'r> {
    pub(super) percentile: Option<f64>,
    pub(super) record: &'r Record,
}

impl Mark<'_> {
    /// `p50`, `max`, or nothing.
    pub(super) fn label(&self) -> String {
        match self.percentile {
            Some(100.0) => "max".to_owned(),
            Some(percentile) => format!("p{percentile}"),
            None => String::new(),
        }
    }
}

impl Block<'_> {
    /// Whether a picture of it says more than a number: what hardly differs, or what another figure
    /// of the block says too, stands in a table only.
    pub(super) fn draws(&self, figure: &Figure<'_>) -> bool {
        let has = |stem| self.figures.iter().any(|figure| figure.stem == stem);
        let told = match figure.stem.as_str() {
            "threads" | "peak_rss" | "voluntary_switches" | "allocations_per_item" => true,
            "cpu_seconds" => has("cpu_per_item"),
            // The rate is fixed, or follows from the latency.
            "items_per_second" => {
                has("bytes_per_second") || has("short") || (has("latency") && !has("call"))
            }
            _ => false,
        };
        !told && figure.records().count() > 1
    }

    /// Whether both programs measured it.
    pub(super) fn has_both(&self) -> bool {
        let has = |source| self.figures.iter().any(|figure| figure.source == source);
        has(Source::Own) && has(Source::Peers)
    }
}

impl Figure<'_> {
    pub(super) fn better(&self) -> Better {
        Better::of_unit(self.unit)
    }

    /// Whether its rows are told apart by their scopes.
    pub(super) fn has_scopes(&self) -> bool {
        self.rows.iter().any(|row| row.place.is_some())
    }

    /// Peers stand with the best first; scopes keep their order, from the finest to the coarsest.
    fn sort(&mut self) {
        if self.source == Source::Peers {
            let first = |row: &Row<'_>| row.marks.first().map_or(0.0, |mark| mark.record.median);
            self.rows.sort_by(|a, b| first(a).total_cmp(&first(b)));
            if self.better() == Better::Higher {
                self.rows.reverse();
            }
        }
    }

    pub(super) fn records(&self) -> impl Iterator<Item = &Record> + Clone {
        self.rows.iter().flat_map(|row| row.marks.iter().map(|mark| mark.record))
    }
}

/// A ratio that sums a call up, with its interval where there is one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Headline<'r> {
    pub(super) record: &'r Record,
    pub(super) interval: Option<&'r Record>,
}

/// The headlines of both programs in their order, and behind them what stands beside.
pub(super) fn headlines<'r>(own: &'r [Record], peers: &'r [Record]) -> Vec<Headline<'r>> {
    let mut found = Vec::new();
    for case in [HEADLINE, BESIDE] {
        for records in [own, peers] {
            found.extend(records.iter().filter(|record| record.case == case).map(|record| {
                let of = |other: &&Record| other.case == INTERVAL && other.metric == record.metric;
                Headline { record, interval: records.iter().find(of) }
            }));
        }
    }
    found
}

/// All other records, in the order in which their cases and metrics came first. Figures of the same
/// metric by the two programs follow each other.
pub(super) fn sections<'r>(own: &'r [Record], peers: &'r [Record]) -> Vec<Section<'r>> {
    let mut sections: Vec<Section<'_>> = Vec::new();
    let own = own.iter().map(|record| (Source::Own, record));
    let peers = peers.iter().map(|record| (Source::Peers, record));
    for (source, record) in own.chain(peers).filter(|(_, record)| !sums_up(&record.case)) {
        let case = CaseName::of(&record.case);
        let workload = case.workload.split('/').next().unwrap_or_default();
        let section = find_or_push(
            &mut sections,
            |section| section.workload == workload,
            || Section { workload: workload.to_owned(), blocks: Vec::new() },
        );
        let block = find_or_push(
            &mut section.blocks,
            |block| block.case == printable(&case.workload),
            || Block { case: printable(&case.workload).into_owned(), figures: Vec::new() },
        );
        block.add(source, record, case.place);
    }
    for figure in sections.iter_mut().flat_map(|s| &mut s.blocks).flat_map(|b| &mut b.figures) {
        for row in &mut figure.rows {
            let key = |mark: &Mark<'_>| mark.percentile.unwrap_or(0.0);
            row.marks.sort_by(|a, b| key(a).total_cmp(&key(b)));
        }
        figure.sort();
    }
    sections
}

impl<'r> Block<'r> {
    fn add(&mut self, source: Source, record: &'r Record, place: Option<Place>) {
        let metric = MetricName::of(&record.metric);
        let alike = |figure: &Figure<'_>| figure.stem == metric.stem && figure.unit == record.unit;
        let position = self.figures.iter().position(|f| alike(f) && f.source == source);
        let position = position.unwrap_or_else(|| {
            let beside = self.figures.iter().rposition(alike).map(|position| position + 1);
            let position = beside.unwrap_or(self.figures.len());
            let figure = Figure {
                source,
                stem: metric.stem.to_owned(),
                unit: &record.unit,
                rows: Vec::new(),
            };
            self.figures.insert(position, figure);
            position
        });
        let row = find_or_push(
            &mut self.figures[position].rows,
            |row| row.variant == record.variant && row.place == place,
            || Row {
                label: label(source, record, place),
                kind: kind(record),
                marks: Vec::new(),
                variant: &record.variant,
                place,
            },
        );
        row.marks.push(Mark { percentile: metric.percentile, record });
    }
}

pub(super) fn label(source: Source, record: &Record, place: Option<Place>) -> String {
    let variant = printable(&record.variant);
    match (source, &*variant, place) {
        (Source::Own, "corewise", Some(place)) if place.is_default() => {
            format!("{place} (default)")
        }
        (Source::Own, "corewise", Some(place)) => place.to_string(),
        // Among its peers it is the default that counts.
        (_, "corewise", Some(place)) if !place.is_default() => format!("Corewise ({place})"),
        (_, "corewise", _) => "Corewise".to_owned(),
        (_, variant, Some(place)) => format!("{variant} ({place})"),
        (_, variant, None) if about::spins(variant) => format!("{variant} (spins)"),
        (_, variant, None) => variant.to_owned(),
    }
}

fn kind(record: &Record) -> Kind {
    match record.variant.as_str() {
        "before" | "futex" | "eventfd" | "idle" | "mutex" | "mutex_list" | "one_by_one"
        | "spin" | "unchecked" => Kind::Yardstick,
        variant if variant.starts_with("corewise") => Kind::Corewise,
        _ => Kind::Peer,
    }
}

fn find_or_push<T>(
    list: &mut Vec<T>,
    is_it: impl Fn(&T) -> bool,
    make: impl FnOnce() -> T,
) -> &mut T {
    let position = list.iter().position(is_it).unwrap_or_else(|| {
        list.push(make());
        list.len() - 1
    });
    &mut list[position]
}
