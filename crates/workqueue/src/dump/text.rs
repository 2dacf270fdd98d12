//! A dump as tables for people.
//!
//! Sections begin with a line that isn't indented. The tables fit 80 columns as long as names are
//! short; long lists are wrapped, and cut where they would fill the screen.

use std::fmt;

use corewise_topology::CpuSet;

use super::{Dump, LinkDump, QueueDump, ScopeDump};

/// The width where the formatter says none.
const DEFAULT_WIDTH: usize = 100;
/// So many lines of a list are written: a machine of 512 CPUs has as many pods of scope `cpu`.
const LIST_LINES: usize = 4;
/// So many rows of a table of links: each queue may have one a pool.
const LINK_ROWS: usize = 64;
/// A longer name is cut in its middle.
const NAME: usize = 24;

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = f.width().unwrap_or(DEFAULT_WIDTH).max(60);
        self.scopes(f, width)?;
        self.pools(f, width)?;
        self.queues(f, width)?;
        self.links(f, width)
    }
}

impl Dump {
    fn scopes(&self, f: &mut fmt::Formatter<'_>, width: usize) -> fmt::Result {
        writeln!(f, "Affinity scopes")?;
        let (cpus, general) = (&self.cpus, &self.housekeeping);
        writeln!(f, "  usable CPUs {cpus}, for general work {general}, epoch {}", self.epoch)?;
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
        let mut state = Table::new([
            "pool",
            "pod",
            "node",
            "ref",
            "idle/workers",
            "blocked",
            "waiting",
            "CPUs",
        ]);
        let mut done = Table::new(["pool", "ran", "taken over", "wakeups", "threads made"]);
        for pool in &self.pools {
            let s = &pool.state;
            let strict = if s.strict { " strict" } else { "" };
            state.row([
                pool.id.to_string(),
                format!("{}/{}", s.scope, s.pod),
                s.node.map_or("-".to_string(), |node| node.to_string()),
                pool.links.to_string(),
                format!("{}/{}", s.idle, s.workers),
                s.blocked.to_string(),
                s.waiting.to_string(),
                format!("{}{strict}", s.cpus),
            ]);
            done.row([
                pool.id.to_string(),
                s.ran.to_string(),
                s.taken_over.to_string(),
                s.wakeups.to_string(),
                s.threads_made.to_string(),
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
        let mut table =
            Table::new(["queue", "id", "queued", "completed", "in flight", "overflowed", "scope"]);
        for queue in &self.queues {
            let strict = if queue.strict { " strict" } else { "" };
            table.row([
                fit(&queue.name, NAME),
                queue.id.to_string(),
                queue.stats.queued.to_string(),
                queue.stats.completed.to_string(),
                queue.in_flight.to_string(),
                queue.stats.overflowed.to_string(),
                format!("{}{strict}", queue.scope),
            ]);
        }
        table.write(f, width, "none")
    }

    /// Only those that were ever used: most queues have one a pod.
    fn links(&self, f: &mut fmt::Formatter<'_>, width: usize) -> fmt::Result {
        writeln!(f, "\nQueues by pool")?;
        let mut table =
            Table::new(["queue", "pool", "queued", "completed", "in flight", "overflowed"]);
        let used = |link: &&LinkDump| link.stats.queued > 0;
        let of = |queue: &'_ QueueDump| -> Vec<LinkDump> {
            queue.links.iter().filter(used).cloned().collect()
        };
        let links: Vec<(&QueueDump, LinkDump)> = self
            .queues
            .iter()
            .flat_map(|queue| of(queue).into_iter().map(move |link| (queue, link)))
            .collect();
        for (queue, link) in links.iter().take(LINK_ROWS) {
            table.row([
                fit(&queue.name, NAME),
                link.pool.to_string(),
                link.stats.queued.to_string(),
                link.stats.completed.to_string(),
                link.in_flight.to_string(),
                link.stats.overflowed.to_string(),
            ]);
        }
        table.write(f, width, "nothing was queued yet")?;
        match links.len().saturating_sub(LINK_ROWS) {
            0 => Ok(()),
            more => writeln!(f, "  and {more} more"),
        }
    }
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
/// left of the width.
struct Table<const N: usize> {
    rows: Vec<[String; N]>,
}

impl<const N: usize> Table<N> {
    fn new(head: [&str; N]) -> Table<N> {
        Table { rows: vec![head.map(str::to_string)] }
    }

    fn row(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|cell| printable(&cell)));
    }

    /// `empty` stands for the table where it has no row.
    fn write(&self, f: &mut fmt::Formatter<'_>, width: usize, empty: &str) -> fmt::Result {
        if self.rows.len() == 1 {
            return writeln!(f, "  {empty}");
        }
        let chars = |text: &str| text.chars().count();
        let widest = |column: usize| self.rows.iter().map(|row| chars(&row[column])).max();
        let widths: [usize; N] = std::array::from_fn(|column| widest(column).unwrap_or(0));
        let numbers: [bool; N] = std::array::from_fn(|column| {
            let number = |c: char| c.is_ascii_digit() || "./-".contains(c) && column + 1 < N;
            self.rows[1..].iter().all(|row| row[column].chars().all(number))
        });
        for row in &self.rows {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let room = widths[column] - chars(cell);
                let (before, after) = if numbers[column] { (room, 0) } else { (0, room) };
                line.push_str("  ");
                line.extend(std::iter::repeat_n(' ', before));
                if column + 1 == N {
                    line.push_str(&fit(cell, width.saturating_sub(chars(&line)).max(8)));
                } else {
                    line.push_str(cell);
                    line.extend(std::iter::repeat_n(' ', after));
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}
