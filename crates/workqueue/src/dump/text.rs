//! A dump as tables for people.
//!
//! Sections begin with a line that isn't indented. Tables that are too wide go on below, beside the
//! same names; long lists are wrapped, and cut where they would fill the screen.

use std::fmt;
use std::time::Duration;

use corewise_topology::CpuSet;

use super::{Dump, LinkDump, QueueDump, ScopeDump, SlotPlace};
use crate::attributes::QueueKind;

/// The width where the formatter says none.
const DEFAULT_WIDTH: usize = 100;
/// So many lines of a list are written: a machine of 512 CPUs has as many pods of scope `cpu`.
const LIST_LINES: usize = 4;
/// So many rows of a list that may be as long as there are queues times pools.
const ROWS: usize = 64;

/// The room that words in a last column have at least.
const LAST_WORDS: usize = 12;

/// A longer name is cut in its middle.
fn names(width: usize) -> usize {
    (width / 5).clamp(13, 33) - 1
}

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = f.width().unwrap_or(DEFAULT_WIDTH).max(60);
        self.scopes(f, width)?;
        self.pools(f, width)?;
        self.queues(f, width)?;
        self.links(f, width)?;
        self.running(f, width)
    }
}

impl Dump {
    fn scopes(&self, f: &mut fmt::Formatter<'_>, width: usize) -> fmt::Result {
        writeln!(f, "Affinity scopes")?;
        let (cpus, general) = (&self.cpus, &self.housekeeping);
        write!(f, "  usable CPUs {cpus}, for general work {general}")?;
        self.cpu_quota.map_or(Ok(()), |quota| write!(f, ", CPU quota {quota}"))?;
        writeln!(f, ", epoch {}", self.epoch)?;
        for scope in &self.scopes {
            let default = if scope.default { " (default)" } else { "" };
            let plural = if scope.pods.len() == 1 { "pod" } else { "pods" };
            writeln!(f, "  {}{default}: {} {plural}", scope.scope, scope.pods.len())?;
            let (cpus, nodes, pods) = lists(scope);
            list(f, "pod_cpus", &cpus, width)?;
            list(f, "pod_node", &nodes, width)?;
            list(f, "cpu_pod", &pods, width)?;
        }
        Ok(())
    }

    fn pools(&self, f: &mut fmt::Formatter<'_>, width: usize) -> fmt::Result {
        writeln!(f, "\nWorker pools")?;
        let mut state = Table::new(["pool", "pod", "node", "nice", "ref", "idle/workers", "CPUs"]);
        let mut done = Table::new([
            "pool",
            "blocked",
            "waiting",
            "ran",
            "taken over",
            "wakeups",
            "threads",
            "caught",
            "CPU time",
        ]);
        for pool in &self.pools {
            let s = &pool.state;
            let kind = match pool.kind {
                QueueKind::Unbound => String::new(),
                kind => format!(" {kind}"),
            };
            // A bound pool is strict by its nature.
            let strict = if s.strict && kind.is_empty() { " strict" } else { "" };
            let away = if s.away { " away" } else { "" };
            state.row([
                pool.id.to_string(),
                format!("{}/{}", s.scope, s.pod),
                s.node.map_or("-".to_string(), |node| node.to_string()),
                pool.nice.to_string(),
                pool.links.to_string(),
                format!("{}/{}", s.idle, s.workers),
                format!("{}{strict}{kind}{away}", s.cpus),
            ]);
            done.row([
                pool.id.to_string(),
                s.blocked.to_string(),
                s.waiting.to_string(),
                s.ran.to_string(),
                s.taken_over.to_string(),
                s.wakeups.to_string(),
                s.threads_made.to_string(),
                s.caught.to_string(),
                seconds(pool.cpu_time),
            ]);
        }
        state.write(f, width, "none yet: the first queue makes them")?;
        if self.pools.is_empty() {
            return Ok(());
        }
        writeln!(f)?;
        done.write(f, width, "")
    }

    fn queues(&self, f: &mut fmt::Formatter<'_>, width: usize) -> fmt::Result {
        writeln!(f, "\nQueues")?;
        let mut what = Table::new(["queue", "id", "kind", "scope", "nice", "max", "CPUs"]);
        for queue in &self.queues {
            let cpus = queue.cpus.as_ref().map_or("general".to_string(), ToString::to_string);
            let marks = [
                (queue.strict && queue.kind == QueueKind::Unbound, " strict"),
                (queue.rescuer, " rescuer"),
                (queue.freezable && !queue.frozen, " freezable"),
                (queue.frozen, " frozen"),
            ];
            let marks = marks.into_iter().filter(|(is, _)| *is).map(|(_, mark)| mark);
            what.row([
                fit(&queue.name, names(width)),
                queue.id.to_string(),
                queue.kind.to_string(),
                queue.scope.to_string(),
                queue.nice.to_string(),
                queue.max_active.map_or("any".to_string(), |max| max.to_string()),
                std::iter::once(cpus.as_str()).chain(marks).collect(),
            ]);
        }
        what.write(f, width, "none")?;
        if self.queues.is_empty() {
            return Ok(());
        }
        writeln!(f)?;
        let mut done = Table::new([
            "queue",
            "queued",
            "started",
            "completed",
            "cancelled",
            "in flight",
            "overflowed",
        ]);
        let mut time = Table::new([
            "queue",
            "run time",
            "delayed",
            "taken back",
            "hogs",
            "blocked",
            "mayday",
            "rescued",
        ]);
        for queue in &self.queues {
            let stats = &queue.stats;
            let name = fit(&queue.name, names(width));
            done.row([
                name.clone(),
                stats.queued.to_string(),
                queue.started().to_string(),
                stats.completed.to_string(),
                stats.cancelled.to_string(),
                queue.in_flight.to_string(),
                stats.overflowed.to_string(),
            ]);
            time.row([
                name,
                if queue.timed { seconds(stats.run_time) } else { "-".to_string() },
                queue.delayed.to_string(),
                stats.taken_back.to_string(),
                stats.cpu_intensive.to_string(),
                stats.blocked_untold.to_string(),
                stats.maydays.to_string(),
                stats.rescued.to_string(),
            ]);
        }
        done.write(f, width, "")?;
        writeln!(f)?;
        time.write(f, width, "")?;
        self.slots(f, width)
    }

    /// Only where there are limits, or something is held back.
    fn slots(&self, f: &mut fmt::Formatter<'_>, width: usize) -> fmt::Result {
        let mut table = Table::new(["queue", "counted for", "active/max", "held"]).keys(2);
        for queue in &self.queues {
            for slot in &queue.slots {
                let place = match slot.place {
                    SlotPlace::Queue => "the queue".to_string(),
                    SlotPlace::Node(node) => format!("node {node}"),
                    SlotPlace::NoNode => "no node".to_string(),
                    SlotPlace::Pod(pod) => format!("pod {pod}"),
                };
                let max = slot.max.map_or("any".to_string(), |max| max.to_string());
                table.row([
                    fit(&queue.name, names(width)),
                    place,
                    format!("{}/{max}", slot.active),
                    slot.held.to_string(),
                ]);
            }
        }
        if table.is_empty() {
            return Ok(());
        }
        writeln!(f, "\nActive instances")?;
        table.write(f, width, "")
    }

    /// Only those that were ever used: most queues have one a pod.
    fn links(&self, f: &mut fmt::Formatter<'_>, width: usize) -> fmt::Result {
        writeln!(f, "\nQueues by pool")?;
        // Used or not: the pods of these pools, above, say where the work of each CPU goes.
        let mut pools = Table::new(["queue", "pools"]);
        for queue in &self.queues {
            let its = queue.links.iter().filter_map(|link| u32::try_from(link.pool).ok());
            let its: CpuSet = its.collect();
            pools.row([fit(&queue.name, names(width)), its.to_string()]);
        }
        if !pools.is_empty() {
            pools.write(f, width, "")?;
            writeln!(f)?;
        }
        let mut table =
            Table::new(["queue", "pool", "queued", "completed", "in flight", "overflowed"]).keys(2);
        let mut links: Vec<(&QueueDump, &LinkDump)> = Vec::new();
        for queue in &self.queues {
            let used = queue.links.iter().filter(|link| link.stats.queued > 0);
            links.extend(used.map(|link| (queue, link)));
        }
        for (queue, link) in links.iter().take(ROWS) {
            table.row([
                fit(&queue.name, names(width)),
                link.pool.to_string(),
                link.stats.queued.to_string(),
                link.stats.completed.to_string(),
                link.in_flight.to_string(),
                link.stats.overflowed.to_string(),
            ]);
        }
        table.write(f, width, "nothing was queued yet")?;
        and_more(f, links.len())
    }

    /// What runs, three lines each: names of functions are long.
    fn running(&self, f: &mut fmt::Formatter<'_>, width: usize) -> fmt::Result {
        writeln!(f, "\nRunning")?;
        if self.running.is_empty() {
            return writeln!(f, "  nothing");
        }
        for running in self.running.iter().take(ROWS) {
            let queue = self.queues.iter().find(|queue| queue.id == running.queue);
            let queue = queue.map_or("-", |queue| queue.name.as_str());
            let thread = running.thread.map_or(String::new(), |tid| format!(" (thread {tid})"));
            let (queue, pool) = (printable(&fit(queue, names(width))), running.pool);
            writeln!(f, "  {queue}: pool {pool}, worker {}{thread}", running.worker)?;
            writeln!(f, "    {}", fit(running.function, width - 4))?;
            writeln!(f, "    queued at {}", fit(&running.site, width - 14))?;
        }
        and_more(f, self.running.len())
    }
}

/// What of a long list was left out.
fn and_more(f: &mut fmt::Formatter<'_>, all: usize) -> fmt::Result {
    match all.saturating_sub(ROWS) {
        0 => Ok(()),
        more => writeln!(f, "  and {more} more"),
    }
}

/// In seconds, to the millisecond.
fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}

/// `pod_cpus`, `pod_node` and `cpu_pod`, with neighbours that have the same in one.
fn lists(scope: &ScopeDump) -> (Vec<String>, Vec<String>, Vec<String>) {
    let pods = &scope.pods;
    let cpus = pods.iter().map(|pod| format!("[{}]={}", pod.pod, pod.cpus));
    let nodes: Vec<(u32, String)> = pods
        .iter()
        .map(|pod| (pod.pod, pod.node.map_or("-".to_string(), |node| node.to_string())))
        .collect();
    let mut of_cpu: Vec<(u32, String)> =
        pods.iter().flat_map(|pod| pod.cpus.iter().map(|cpu| (cpu, pod.pod.to_string()))).collect();
    of_cpu.sort_by_key(|(cpu, _)| *cpu);
    (cpus.collect(), runs(&nodes), runs(&of_cpu))
}

fn runs(of: &[(u32, String)]) -> Vec<String> {
    let same = of.chunk_by(|(a, x), (b, y)| a + 1 == *b && x == y);
    let runs = same.map(|run| {
        let numbers: CpuSet = run.iter().map(|(number, _)| *number).collect();
        format!("[{numbers}]={}", run[0].1)
    });
    runs.collect()
}

fn list(f: &mut fmt::Formatter<'_>, name: &str, words: &[String], width: usize) -> fmt::Result {
    let head = format!("    {name:<8}");
    let mut line = head.clone();
    let mut lines = 1;
    for (index, word) in words.iter().enumerate() {
        let more = format!("  and {} more", words.len() - index);
        let last = lines == LIST_LINES && index + 1 < words.len();
        let need = line.len() + 1 + word.len() + if last { more.len() } else { 0 };
        if need > width && line.len() > head.len() {
            if lines == LIST_LINES {
                line.push_str(&more);
                break;
            }
            writeln!(f, "{}", line.trim_end())?;
            line = " ".repeat(head.len());
            lines += 1;
        }
        line.push(' ');
        line.push_str(word);
    }
    writeln!(f, "{}", line.trim_end())
}

/// Names come from whoever named a queue: nothing in them moves a cursor or breaks a line.
fn printable(text: &str) -> String {
    text.replace(|c: char| c.is_control() || matches!(c, '\u{2028}'..='\u{202e}'), "\u{fffd}")
}

/// `text` in at most `width` characters, its middle cut out where it is longer.
fn fit(text: &str, width: usize) -> String {
    let chars = text.chars().count();
    if chars <= width {
        return text.to_string();
    }
    let keep = width.saturating_sub(1);
    let (head, tail) = (keep.div_ceil(2), keep / 2);
    text.chars().take(head).chain(['…']).chain(text.chars().skip(chars - tail)).collect()
}

/// Rows below a head. Numbers stand to the right, words to the left; the last column takes what is
/// left of the width. Where there is too little, the others go on below.
struct Table<const N: usize> {
    rows: Vec<[String; N]>,
    /// So many columns, the first ones, say which row it is: each part has them.
    keys: usize,
}

impl<const N: usize> Table<N> {
    fn new(head: [&str; N]) -> Table<N> {
        Table { rows: vec![head.map(str::to_string)], keys: 1 }
    }

    fn keys(self, keys: usize) -> Table<N> {
        Table { keys, ..self }
    }

    fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|cell| printable(&cell)));
    }

    /// `empty` stands for the table where it has no row.
    fn write(&self, f: &mut fmt::Formatter<'_>, width: usize, empty: &str) -> fmt::Result {
        if self.is_empty() {
            return writeln!(f, "  {empty}");
        }
        let chars = |text: &str| text.chars().count();
        let widest = |column: usize| self.rows.iter().map(|row| chars(&row[column])).max();
        let widths: [usize; N] = std::array::from_fn(|column| widest(column).unwrap_or(0));
        let numbers: [bool; N] = std::array::from_fn(|column| {
            self.rows[1..].iter().all(|row| is_number(&row[column], column + 1 == N))
        });
        // Of a list of CPUs the beginning will do.
        let mut least = widths;
        least[N - 1] = match numbers[N - 1] {
            true => widths[N - 1],
            false => widths[N - 1].min(LAST_WORDS.max(chars(&self.rows[0][N - 1]))),
        };
        let keys: usize = least[..self.keys].iter().map(|width| 2 + width).sum();
        let mut next = self.keys;
        while next < N {
            let (from, mut used) = (next, keys);
            while next < N && (next == from || used + 2 + least[next] <= width) {
                used += 2 + least[next];
                next += 1;
            }
            if from > self.keys {
                writeln!(f)?;
            }
            for row in &self.rows {
                let mut line = String::new();
                for column in (0..self.keys).chain(from..next) {
                    let cell = &row[column];
                    let room = widths[column] - chars(cell);
                    let (before, after) = if numbers[column] { (room, 0) } else { (0, room) };
                    line.push_str("  ");
                    if column + 1 == N && !numbers[column] {
                        line.push_str(&fit(cell, width.saturating_sub(chars(&line))));
                    } else {
                        line.extend(std::iter::repeat_n(' ', before));
                        line.push_str(cell);
                        line.extend(std::iter::repeat_n(' ', after));
                    }
                }
                writeln!(f, "{}", line.trim_end())?;
            }
        }
        Ok(())
    }
}

/// Digits, or a ratio, or a time in seconds. In a last column all else is a list of CPUs.
fn is_number(cell: &str, last: bool) -> bool {
    let number = cell.strip_suffix(" s").unwrap_or(cell);
    let plain = |c: char| c.is_ascii_digit() || c == '.' || !last && matches!(c, '/' | '-');
    number.chars().all(plain)
}
