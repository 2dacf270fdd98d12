//! The state of worker pools and their queues, as tables for people.
//!
//! Sections begin with a line that isn't indented. Tables that are too wide go on below, beside the
//! same names. Long lists are wrapped, and cut if they would fill the screen.

use std::fmt;
use std::time::Duration;

use corewise::timeline::markup::{self, printable};
use corewise::workqueue::{Dump, LinkDump, QueueDump, QueueKind, ScopeDump, SlotPlace};

use crate::units;

/// Lines that a list takes at most: a machine of 512 CPUs has as many pods of scope `cpu`.
const LIST_LINES: usize = 4;
/// Rows of a list that could be as long as there are queues times pools.
const ROWS: usize = 64;

/// Least width of words in a last column.
const LAST_WORDS: usize = 12;

/// Returns the width of names. A longer name is cut in its middle.
fn names(width: usize) -> usize {
    if width == usize::MAX { width } else { (width / 5).clamp(13, 33) - 1 }
}

/// Returns the number of rows written of a list of `len`. A single row is never left out.
fn rows(width: usize, len: usize) -> usize {
    if width == usize::MAX || len <= ROWS + 1 { len } else { ROWS }
}

/// Displays a dump in lines of at most `width` characters, 60 at the least. `usize::MAX` cuts
/// nothing.
pub(crate) fn text(dump: &Dump, width: usize) -> impl fmt::Display {
    DumpText { tables: DumpTables(dump), width: width.max(60) }
}

struct DumpText<'a> {
    tables: DumpTables<'a>,
    width: usize,
}

impl fmt::Display for DumpText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DumpText { tables, width } = self;
        tables.scopes(f, *width)?;
        tables.pools(f, *width)?;
        tables.queues(f, *width)?;
        tables.links(f, *width)?;
        tables.running(f, *width)
    }
}

struct DumpTables<'a>(&'a Dump);

impl DumpTables<'_> {
    fn scopes(&self, f: &mut fmt::Formatter<'_>, width: usize) -> fmt::Result {
        writeln!(f, "Affinity scopes")?;
        let (cpus, general) = (&self.0.cpus, &self.0.housekeeping);
        write!(f, "  usable CPUs {cpus}, for general work {general}")?;
        self.0.cpu_quota.map_or(Ok(()), |quota| write!(f, ", CPU quota {quota}"))?;
        writeln!(f, ", epoch {}", self.0.epoch)?;
        for scope in &self.0.scopes {
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
        for pool in &self.0.pools {
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
        state.write(f, width, "none yet: the first queue creates them")?;
        if self.0.pools.is_empty() {
            return Ok(());
        }
        writeln!(f)?;
        done.write(f, width, "")
    }

    fn queues(&self, f: &mut fmt::Formatter<'_>, width: usize) -> fmt::Result {
        writeln!(f, "\nQueues")?;
        let mut what = Table::new(["queue", "id", "kind", "scope", "nice", "max", "CPUs"]);
        for queue in &self.0.queues {
            let cpus = queue.cpus.as_ref().map_or("general".to_string(), ToString::to_string);
            let marks = [
                (queue.strict && queue.kind == QueueKind::Unbound, " strict"),
                (queue.rescuer, " rescuer"),
            ];
            let marks = marks.into_iter().filter(|(is, _)| *is).map(|(_, mark)| mark);
            let room =
                queue.capacity.map(|most| format!(" capacity {most}, refused {}", queue.refused));
            what.row([
                fit(&queue.name, names(width)),
                queue.id.to_string(),
                queue.kind.to_string(),
                queue.scope.to_string(),
                queue.nice.to_string(),
                queue.max_active.map_or("any".to_string(), |max| max.to_string()),
                std::iter::once(cpus.as_str()).chain(marks).chain(room.as_deref()).collect(),
            ]);
        }
        what.write(f, width, "none")?;
        if self.0.queues.is_empty() {
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
        for queue in &self.0.queues {
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

    /// Writes the limits of queues, if there are any or something is held back.
    fn slots(&self, f: &mut fmt::Formatter<'_>, width: usize) -> fmt::Result {
        let mut table = Table::new(["queue", "counted for", "active/max", "held"]).keys(2);
        for queue in &self.0.queues {
            for slot in &queue.slots {
                let place = match slot.place {
                    SlotPlace::Queue => "the queue".to_string(),
                    SlotPlace::Node(node) => format!("node {node}"),
                    SlotPlace::NoNode => "no node".to_string(),
                    SlotPlace::Pod(pod) => format!("pod {pod}"),
                    _ => "another place".to_string(),
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

    /// Writes the links that were ever used: most queues have one a pod.
    fn links(&self, f: &mut fmt::Formatter<'_>, width: usize) -> fmt::Result {
        writeln!(f, "\nQueues by pool")?;
        // Unused links count here: the pods of these pools, above, say where the work of each CPU
        // goes.
        let mut pools = Table::new(["queue", "pools"]);
        for queue in &self.0.queues {
            let its = queue.links.iter().filter_map(|link| u32::try_from(link.pool).ok());
            pools.row([fit(&queue.name, names(width)), units::list(its)]);
        }
        if !pools.is_empty() {
            pools.write(f, width, "")?;
            writeln!(f)?;
        }
        let mut table =
            Table::new(["queue", "pool", "queued", "completed", "in flight", "overflowed"]).keys(2);
        let mut links: Vec<(&QueueDump, &LinkDump)> = Vec::new();
        for queue in &self.0.queues {
            let used = queue.links.iter().filter(|link| link.stats.queued > 0);
            links.extend(used.map(|link| (queue, link)));
        }
        for (queue, link) in links.iter().take(rows(width, links.len())) {
            table.row([
                fit(&queue.name, names(width)),
                link.pool.to_string(),
                link.stats.queued.to_string(),
                link.stats.completed.to_string(),
                link.in_flight.to_string(),
                link.stats.overflowed.to_string(),
            ]);
        }
        table.write(f, width, "nothing has been queued yet")?;
        and_more(f, links.len(), width)
    }

    /// Writes the running items, three lines each: names of functions are long.
    fn running(&self, f: &mut fmt::Formatter<'_>, width: usize) -> fmt::Result {
        writeln!(f, "\nRunning")?;
        if self.0.running.is_empty() {
            return writeln!(f, "  nothing");
        }
        for running in self.0.running.iter().take(rows(width, self.0.running.len())) {
            let queue = self.0.queues.iter().find(|queue| queue.id == running.queue);
            let queue = queue.map_or("-", |queue| queue.name.as_str());
            let thread = running.thread.map_or(String::new(), |tid| format!(" (thread {tid})"));
            let (queue, pool) = (fit(&printable(queue), names(width)), running.pool);
            writeln!(f, "  {queue}: pool {pool}, worker {}{thread}", running.worker)?;
            for text in [running.function, &format!("queued at {}", running.site)] {
                for line in markup::wrap(text, width - 4, 2) {
                    writeln!(f, "    {}", line.trim_end())?;
                }
            }
        }
        and_more(f, self.0.running.len(), width)
    }
}

/// Writes the number of rows that were left out.
fn and_more(f: &mut fmt::Formatter<'_>, all: usize, width: usize) -> fmt::Result {
    match all.saturating_sub(rows(width, all)) {
        0 => Ok(()),
        more => writeln!(f, "  and {more} more"),
    }
}

/// Formats a time in seconds, to the millisecond.
fn seconds(time: Duration) -> String {
    format!("{:.3} s", time.as_secs_f64())
}

/// Returns `pod_cpus`, `pod_node` and `cpu_pod`, with equal neighbours merged.
fn lists(scope: &ScopeDump) -> (Vec<String>, Vec<String>, Vec<String>) {
    let pods = &scope.pods;
    let cpus = pods.iter().map(|pod| format!("[{}]={}", pod.pod, pod.cpus));
    let nodes: Vec<(u32, String)> = pods
        .iter()
        .map(|pod| (pod.pod, pod.node.map_or("-".to_string(), |node| node.to_string())))
        .collect();
    let mut of_cpu: Vec<(u32, String)> = pods
        .iter()
        .flat_map(|pod| pod.cpus.iter().map(|cpu| (cpu.number(), pod.pod.to_string())))
        .collect();
    of_cpu.sort_by_key(|(cpu, _)| *cpu);
    (cpus.collect(), runs(&nodes), runs(&of_cpu))
}

fn runs(of: &[(u32, String)]) -> Vec<String> {
    let same = of.chunk_by(|(a, x), (b, y)| a + 1 == *b && x == y);
    let runs = same.map(|run| {
        format!("[{}]={}", units::list(run.iter().map(|(number, _)| *number)), run[0].1)
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

/// Returns `text` in at most `width` characters. The middle of a longer one is cut out.
fn fit(text: &str, width: usize) -> String {
    let chars = text.chars().count();
    if chars <= width {
        return text.to_string();
    }
    let keep = width.saturating_sub(1);
    let (head, tail) = (keep.div_ceil(2), keep / 2);
    text.chars().take(head).chain(['…']).chain(text.chars().skip(chars - tail)).collect()
}

/// A table with a head. Numbers are aligned to the right, words to the left. The last column takes
/// the rest of the width. If there is too little, the other columns go on below.
struct Table<const N: usize> {
    rows: Vec<[String; N]>,
    /// Number of first columns that identify the row. Each part of a wide table repeats them.
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
        self.rows.push(cells.map(|cell| printable(&cell).into_owned()));
    }

    /// Writes the table, or `empty` if it has no row.
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
        // The beginning of a list of CPUs is enough.
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

/// Returns true for digits, a ratio, or a time in seconds. In a last column all else is a list of
/// CPUs.
fn is_number(cell: &str, last: bool) -> bool {
    let number = cell.strip_suffix(" s").unwrap_or(cell);
    let plain = |c: char| c.is_ascii_digit() || c == '.' || !last && matches!(c, '/' | '-');
    number.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use corewise::topology::CpuId;
    use corewise::topology::{CpuQuota, Machine};
    use corewise::workqueue::{At, WorkerPools, Workqueue};

    use super::*;

    fn two_nodes() -> WorkerPools {
        WorkerPools::new(&Machine::synthetic("numa:2 l3:1 core:12 pu:1").unwrap())
    }

    #[track_caller]
    fn has(text: &str, parts: &[&str]) {
        for part in parts {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
    }

    #[test]
    fn pools_without_a_queue_show_their_scopes_and_say_that_nothing_is_there() {
        has(
            &text(&two_nodes().dump(), 100).to_string(),
            &[
                "  cache_shard (default): 4 pods\n    pod_cpus [0]=0-5 [1]=6-11 [2]=12-17 [3]=18-23\n",
                "    pod_node [0-1]=0 [2-3]=1\n    cpu_pod  [0-5]=0 [6-11]=1 [12-17]=2 [18-23]=3\n",
                "none yet: the first queue creates them",
                "nothing has been queued yet",
            ],
        );
    }

    #[test]
    fn marks_limits_and_what_is_held_back_are_shown() {
        let pools = two_nodes();
        let ordered = Workqueue::builder("ordered").kind(QueueKind::Ordered).build(&pools).unwrap();
        let _careful = Workqueue::builder("careful").rescuer(true).build(&pools).unwrap();
        let (release, released) = channel::<()>();
        let full = Workqueue::builder("full").capacity(0).build(&pools).unwrap();
        assert!(full.try_spawn(|| ()).is_err());
        has(&text(&pools.dump(), 100).to_string(), &["general capacity 0, refused 1"]);
        let first = ordered.at(At::Cpu(CpuId::new(0))).spawn(move || released.recv().is_ok());
        let second = ordered.at(At::Cpu(CpuId::new(23))).spawn(|| ());
        let parts = ["Active instances", "  ordered  the queue           1/1     1\n"];
        has(&text(&pools.dump(), 100).to_string(), &parts);
        has(&text(&pools.dump(), 100).to_string(), &["general rescuer"]);
        drop(release);
        first.join().unwrap();
        second.join().unwrap();
    }

    #[test]
    fn the_quota_is_shown_where_there_is_one() {
        let machine = Machine::synthetic("core:4 pu:1").unwrap();
        let pools = WorkerPools::new(&machine);
        assert!(!text(&pools.dump(), 100).to_string().contains("quota"));
        machine
            .set_cpu_quota(CpuQuota::new(Duration::from_millis(150), Duration::from_millis(100)));
        has(&text(&pools.dump(), 100).to_string(), &["CPU quota 1.5 CPUs (150ms in each 100ms)"]);
    }

    #[test]
    fn the_text_keeps_its_width_on_a_large_machine_and_shows_no_control_characters() {
        let pools = WorkerPools::new(&Machine::synthetic("numa:8 l3:8 core:8 pu:1").unwrap());
        let queue = Workqueue::builder("nasty\x1b[2J\nname").build(&pools).unwrap();
        let long = Workqueue::builder("a name that is longer than any table has room for")
            .kind(QueueKind::Ordered);
        let long = long.nice(-20).strict(true).timed(true).build(&pools).unwrap();
        let (release, released) = channel::<()>();
        let running = long.spawn(move || released.recv().is_ok());
        queue.spawn(|| ()).join().unwrap();
        queue.flush();
        let dump = loop {
            let dump = pools.dump();
            if dump.running.iter().any(|running| running.queue == 2) {
                break dump;
            }
            std::thread::yield_now();
        };
        for width in [60, 80, 100, 120] {
            let text = text(&dump, width).to_string();
            for line in text.lines() {
                assert!(line.chars().count() <= width, "{width}: {line:?}");
                assert_eq!(line, line.trim_end());
            }
            has(&text, &[": pool ", ", worker ", "    queued at crates/server/"]);
            assert!(
                text.lines().any(|line| line.ends_with(" 0-63")),
                "all pools of a queue: {text}"
            );
            let is_whole =
                |text: &str| text.contains("a name that is longer than any table has room for");
            assert!(!is_whole(&text) && is_whole(&super::text(&dump, usize::MAX).to_string()));
            let whole = width == 60 || text.contains("nasty\u{fffd}[2J\u{fffd}name");
            assert!(!text.contains('\x1b') && whole, "{text}");
            // A narrow table loses no column.
            for column in ["CPU time", "overflowed", "rescued", "idle/workers"] {
                assert!(text.contains(column), "{width}: {text}");
            }
        }
        drop(release);
        running.join().unwrap();
        pools.shutdown();
    }
}
