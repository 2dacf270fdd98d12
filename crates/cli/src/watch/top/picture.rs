//! The picture of `corewise top`: a head, the parts, a table of one of them, the keys. The picture
//! draws samples and sends no question.

use corewise::timeline::markup::{printable, wrap};
use corewise_server::control::health::Health;
use corewise_server::units;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::sheet::{self, Cell, Key, Part, Sample};

const KEYS: &str = "q quit  tab, 1-7 part  ←→ sort by  r reverse  ↑↓ scroll  space hold";

/// Least width of a column with words beside the others.
const LEAST_WORDS: usize = 24;

/// Contents of the screen.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) before: Option<Sample>,
    pub(crate) now: Option<Sample>,
    pub(crate) part: Part,
    /// The column that sorts the rows of each part, and true if the largest comes first.
    pub(crate) sort: [(usize, bool); Part::ALL.len()],
    /// Rows above the visible ones.
    pub(crate) above: usize,
    /// True while the screen keeps its sample.
    pub(crate) held: bool,
    /// Reason why the server doesn't answer; `None` while it does.
    pub(crate) gone: Option<String>,
}

impl View {
    pub(crate) fn new() -> View {
        View {
            before: None,
            now: None,
            part: Part::Exports,
            sort: Part::ALL.map(Part::usual_order),
            above: 0,
            held: false,
            gone: None,
        }
    }

    /// Takes a sample that the server sent.
    pub(crate) fn look(&mut self, look: Sample) {
        self.gone = None;
        if !self.held {
            self.before = self.now.replace(look);
        }
    }

    pub(crate) fn show(&mut self, part: Part) {
        (self.part, self.above) = (part, 0);
    }

    /// Moves on by that many parts.
    pub(crate) fn turn(&mut self, by: usize) {
        self.show(Part::ALL[(self.part as usize + by) % Part::ALL.len()]);
    }

    /// Sorts by the column that is `by` places on; numbers from the largest down.
    pub(crate) fn sort_by(&mut self, by: usize) {
        let columns = self.part.head().len();
        let column = (self.sort[self.part as usize].0 + by) % columns;
        let rows = self.rows();
        let is_number = rows.first().is_some_and(|row| matches!(row[column].key, Key::Number(_)));
        self.sort[self.part as usize] = (column, is_number);
    }

    pub(crate) fn reverse(&mut self) {
        let (_, down) = &mut self.sort[self.part as usize];
        *down = !*down;
    }

    pub(crate) fn scroll(&mut self, by: isize) {
        let most = self.rows().len().saturating_sub(1);
        self.above = self.above.saturating_add_signed(by).min(most);
    }

    fn rows(&self) -> Vec<Vec<Cell>> {
        let Some(now) = &self.now else { return Vec::new() };
        let mut rows = sheet::rows(self.part, self.before.as_ref(), now);
        let (column, down) = self.sort[self.part as usize];
        // Equal rows keep the server's order.
        rows.sort_by(|one, other| {
            let order = one[column].compare(&other[column]);
            if down { order.reverse() } else { order }
        });
        rows
    }

    pub(crate) fn draw(&self, frame: &mut Frame<'_>) {
        let above = self.head(usize::from(frame.area().width));
        let height = u16::try_from(above.len()).unwrap_or(u16::MAX);
        let [head, parts, table, foot] = Layout::vertical([
            Constraint::Length(height.max(2)),
            Constraint::Length(1),
            Constraint::Min(0),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(Paragraph::new(above), head);
        frame.render_widget(Paragraph::new(self.parts()), parts);
        self.table(frame, table);
        let faint = Style::new().add_modifier(Modifier::DIM);
        frame.render_widget(Paragraph::new(Span::styled(KEYS, faint)), foot);
    }

    /// Returns the head, in lines of at most `width` columns.
    fn head(&self, width: usize) -> Vec<Line<'_>> {
        let wrapped = |text: &str, style: Style| {
            let lines = wrap(&printable(text), width, 2).into_iter();
            lines.map(move |line| Line::styled(line, style))
        };
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let Some(now) = &self.now else {
            let why = self.gone.as_deref().unwrap_or("asking the server");
            return wrapped(why, bold).collect();
        };
        let who = &now.who;
        let up = corewise_server::control::served::seconds(who.up_seconds);
        let first =
            format!("corewise {}, process {}, {}, up for {up}", who.version, who.pid, who.manifest);
        let second = match (&self.gone, self.held) {
            (Some(why), _) => {
                wrapped(&format!("{why} (waiting for the server; q quits)"), bold.fg(Color::Red))
            }
            (None, held) => {
                let (requests, bytes) = sheet::total(self.before.as_ref(), now);
                let (clients, memory) = (now.clients.len() as u64, &now.memory);
                let held = if held { "  HELD" } else { "" };
                let text = format!(
                    "{}, {requests:.0} req/s, {:.1} MiB/s, memory {} of {}{held}",
                    units::count(clients, "client"),
                    bytes / f64::from(1 << 20),
                    units::about(memory.taken),
                    units::about(memory.of),
                );
                wrapped(&text, Style::new())
            }
        };
        let mut head: Vec<_> = wrapped(&first, bold).chain(second).collect();
        if let Some(summary) = now.health.as_ref().and_then(Health::summary) {
            head.extend(wrapped(&format!("{summary} (press 7)"), bold.fg(Color::Red)));
        }
        head
    }

    fn parts(&self) -> Line<'_> {
        let names = Part::ALL.iter().enumerate().flat_map(|(n, part)| {
            let style = match *part == self.part {
                true => Style::new().add_modifier(Modifier::REVERSED),
                false => Style::new(),
            };
            [Span::styled(format!(" {} {} ", n + 1, part.name()), style), Span::raw(" ")]
        });
        Line::from_iter(names)
    }

    fn table(&self, frame: &mut Frame<'_>, area: Rect) {
        let (head, rows) = (self.part.head(), self.rows());
        let (sorted, down) = self.sort[self.part as usize];
        let titles: Vec<String> = head
            .iter()
            .enumerate()
            .map(|(column, title)| match (column == sorted, down) {
                (true, true) => format!("{title}▼"),
                (true, false) => format!("{title}▲"),
                _ => (*title).to_string(),
            })
            .collect();
        let chars = |text: &str| text.chars().count();
        let widths: Vec<usize> = titles
            .iter()
            .enumerate()
            .map(|(column, title)| {
                let cells = rows.iter().map(|row| chars(&row[column].text));
                cells.chain([chars(title)]).max().unwrap_or_default()
            })
            .collect();
        let is_number = |column: usize| {
            rows.first().is_some_and(|row| matches!(row[column].key, Key::Number(_)))
        };
        let across = usize::from(area.width);
        let line = |cell: &dyn Fn(usize) -> String| {
            let mut line = String::new();
            for (column, &width) in widths.iter().enumerate() {
                let cell = cell(column);
                match is_number(column) {
                    true => line.push_str(&format!("{cell:>width$}  ")),
                    false => line.push_str(&format!("{cell:<width$}  ")),
                }
            }
            line.trim_end().to_string()
        };
        // Words in the last column say what is wrong: without room beside the other columns, they
        // continue below.
        let last = widths.len().saturating_sub(1);
        let left: usize = widths[..last].iter().map(|width| width + 2).sum();
        let lines_of = |row: &Vec<Cell>| {
            let whole = line(&|column| row[column].text.clone());
            if is_number(last) || chars(&whole) <= across {
                return vec![whole];
            }
            let words = &row[last].text;
            if across >= left + LEAST_WORDS {
                let rest = wrap(words, across - left, 0).into_iter().enumerate();
                return rest
                    .map(|(n, words)| match n {
                        0 => line(&|column| match column == last {
                            true => words.clone(),
                            false => row[column].text.clone(),
                        }),
                        _ => format!("{}{words}", " ".repeat(left)),
                    })
                    .collect();
            }
            let empty = line(&|column| match column == last {
                true => String::new(),
                false => row[column].text.clone(),
            });
            let rest = wrap(words, across.saturating_sub(4), 0).into_iter();
            [empty].into_iter().chain(rest.map(|words| format!("    {words}"))).collect()
        };
        let faint = Style::new().add_modifier(Modifier::DIM);
        let mut lines = vec![Line::styled(line(&|column| titles[column].clone()), faint)];
        let room = usize::from(area.height).saturating_sub(1);
        let rows: Vec<Vec<String>> = rows.iter().map(lines_of).collect();
        // The last rows fill the screen.
        let mut most = rows.len();
        let mut filled = 0;
        while let Some(row) = most.checked_sub(1).map(|row| &rows[row]) {
            filled += row.len();
            if filled > room {
                break;
            }
            most -= 1;
        }
        let above = self.above.min(most).min(rows.len().saturating_sub(1));
        let style = if self.gone.is_some() { faint } else { Style::new() };
        for line in rows.iter().skip(above).flatten().take(room) {
            lines.push(Line::styled(line.clone(), style));
        }
        if rows.is_empty() && self.now.is_some() {
            lines.push(Line::raw("none"));
        }
        frame.render_widget(Paragraph::new(lines), area);
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::{Value, json};

    use super::*;

    /// Returns a document as a server writes it.
    fn document(up: f64, reads: u64) -> Value {
        let op = |requests: u64| {
            json!({
                "requests": requests, "errors": 0, "bytes": requests * 4096,
                "latency": {"histogram": [[0.000_12, requests]]},
            })
        };
        let client = |id: u64, export: Option<&str>, reads: u64| {
            json!({
                "client": id, "uid": 1000, "pid": 42, "export": export, "connected_seconds": 61.0 * id as f64,
                "in_flight": 3, "in_flight_bytes": 12_288, "oldest_seconds": 2.5,
                "untaken_seconds": (id == 7).then_some(2.0), "untaken_bytes": 4096,
                "partial_seconds": 0.5, "reads": op(reads),
            })
        };
        json!({
            "corewise": 1, "pid": 4711, "version": "0.1.0", "manifest": "disks.toml",
            "up_seconds": up, "cpus": "0-1",
            "pools": [{"pool": 0, "scope": "cache_shard", "pod": 0, "cpus": "0-1", "workers": 4,
                "idle": 3, "ran": reads, "cpu_seconds": up / 2.0}],
            "queues": [{"id": 1, "name": "volumes", "in_flight": 2, "completed": reads, "timed": true,
                "run_seconds": up / 4.0}],
            "disks": [
                {"name": "data", "driver": "mirror", "size": 1_u64 << 30, "condition": "1 of 2 legs in sync",
                 "in_flight": 3, "oldest_seconds": 41.5,
                 "mirror": {"bitmap": true, "to_resync": 3 << 20, "legs": [
                    {"name": "a", "state": "in_sync"},
                    {"name": "b", "state": "out", "why": "I/O error\u{1b}[2J"}]}, "reads": op(reads)},
                {"name": "a", "driver": "file", "size": 1_u64 << 30},
            ],
            "exports": [
                {"name": "data", "device": "data", "state": "open", "clients": 2, "in_flight": 6,
                 "reads": op(2 * reads)},
                {"name": "old", "device": "a", "state": "hidden", "read_only": true, "clients": 0},
            ],
            "clients": [client(7, Some("data"), reads), client(12, Some("data"), 3 * reads), client(13, None, 0)],
            "memory": {"taken": 1 << 20, "of": 1_u64 << 30, "waiting": 0},
        })
    }

    fn view() -> View {
        let mut view = View::new();
        for (up, reads) in [(100.0, 1_000), (102.0, 3_000)] {
            view.look(serde_json::from_value(document(up, reads)).unwrap());
        }
        view
    }

    fn picture(view: &View, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let lines = (0..height).map(|y| {
            let line: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
            line.trim_end().to_string() + "\n"
        });
        let picture: String = lines.collect();
        // The picture can be seen by `cargo test -p corewise-cli --bin corewise top --
        // --nocapture`.
        println!("{picture}");
        picture
    }

    #[test]
    fn what_is_wrong_is_shown_whole_on_a_narrow_screen() {
        let mut look = document(102.0, 3_000);
        let why = "I/O error: the disk does not answer any more; corewise mirror data --take-back=b resyncs it";
        look["disks"][0]["mirror"]["legs"][1]["why"] = why.into();
        look["disks"][1]["condition"] = why.into();
        look["health"] = json!({"state": "lost", "reasons": [{
            "reason": "file_lost", "state": "lost", "subject": "data", "what": why, "todo": "Mend it",
        }]});
        let mut view = View::new();
        view.look(serde_json::from_value(look).unwrap());
        view.gone = Some(why.to_string());
        for width in [40, 60, 100] {
            for part in [Part::Volumes, Part::Mirrors, Part::Health] {
                view.show(part);
                let picture = picture(&view, width, 30);
                let words: Vec<&str> = picture.split_whitespace().collect();
                let shown = |text: &str| {
                    let wanted: Vec<&str> = text.split(' ').collect();
                    words.windows(wanted.len()).filter(|found| *found == wanted).count()
                };
                // The reason stands in the head and in the table.
                match part {
                    Part::Health => {
                        let found = shown(why) + shown(&format!("{why}. Mend it"));
                        assert_eq!(found, 2, "{width} {part:?}\n{picture}");
                    }
                    _ => assert_eq!(shown(why), 2, "{width} {part:?}"),
                }
            }
        }
    }

    #[test]
    fn the_head_has_the_server_and_each_part_its_table_with_rates() {
        let mut view = view();
        let exports = picture(&view, 100, 12);
        let lines: Vec<&str> = exports.lines().collect();
        assert_eq!(lines[0], "corewise 0.1.0, process 4711, disks.toml, up for 1m42s");
        assert_eq!(lines[1], "3 clients, 2000 req/s, 7.8 MiB/s, memory 1.0 MiB of 1.0 GiB");
        assert!(lines[2].starts_with(" 1 exports   2 clients "), "{exports}");
        assert!(
            lines[3].starts_with("export▲  device  state              clients  infl"),
            "{exports}"
        );
        assert!(lines[4].contains("data     data    open") && lines[4].contains("2000    7.8"));
        assert!(lines[5].contains("hidden, read-only"), "{exports}");
        assert_eq!(lines[11], KEYS);
        for (part, says) in [
            (Part::Clients, ["user 1000 42 data 7m07s 3 2.50 s 2.00 s", "500 ms 4.0 KiB 1000 3.9"]),
            (Part::Volumes, ["1.0 GiB 3 41s 1000 3.9", "1 of 2 legs in sync"]),
            (Part::Mirrors, ["data b out 3.0 MiB", "I/O error"]),
            (Part::Queues, ["volumes 2 1000 0.25", "refused"]),
            (Part::Pools, ["cache_shard/0 0-1 4 3 0 1000 0.50", "idle"]),
        ] {
            view.show(part);
            let picture = picture(&view, 120, 12);
            let words = picture.split_whitespace().collect::<Vec<_>>().join(" ");
            for part in says {
                assert!(words.contains(part), "no {part:?} in\n{picture}");
            }
            assert!(!picture.contains('\x1b'), "{picture}");
        }
    }

    #[test]
    fn a_server_that_is_not_ok_says_so_in_the_head_and_why_in_a_part_of_its_own() {
        let mut view = view();
        assert!(!picture(&view, 100, 12).contains("degraded"));
        let mut document = document(104.0, 9_000);
        document["health"] = json!({"state": "degraded", "reasons": [{
            "reason": "leg_out", "state": "degraded", "subject": "data", "part": "b",
            "what": "leg 'b' is out: I/O error", "todo": "Run: corewise mirror data --take-back=b",
        }]});
        view.look(serde_json::from_value(document).unwrap());
        let head = picture(&view, 100, 12);
        assert_eq!(head.lines().nth(2), Some("degraded: data (press 7)"), "{head}");
        view.show(Part::Health);
        let part = picture(&view, 140, 12);
        assert!(
            part.contains("data     leg 'b' is out: I/O error. Run: corewise mirror"),
            "{part}"
        );
    }

    #[test]
    fn rows_are_sorted_by_the_column_that_one_chooses_either_way() {
        let mut view = view();
        view.show(Part::Clients);
        let first = |view: &View| picture(view, 100, 12).lines().nth(4).unwrap().trim().to_string();
        assert!(first(&view).starts_with("7 "));
        view.sort_by(3);
        assert!(first(&view).starts_with("12 "), "the most requests a second");
        view.reverse();
        assert!(first(&view).starts_with("13 "));
        // Each part keeps its own order; the first column follows the last one.
        view.turn(1);
        view.turn(Part::ALL.len() - 1);
        assert!(first(&view).starts_with("13 "));
        view.sort_by(5);
        view.reverse();
        assert!(first(&view).starts_with("7 "));
    }

    #[test]
    fn any_size_can_be_drawn_and_rows_are_scrolled_to() {
        let mut view = view();
        view.show(Part::Clients);
        for (width, height) in [(1, 1), (10, 3), (40, 5), (80, 24), (300, 100)] {
            picture(&view, width, height);
            picture(&View::new(), width, height);
        }
        let shown = |view: &View| picture(view, 80, 6).lines().nth(4).unwrap().trim().to_string();
        assert!(shown(&view).starts_with("7 "));
        view.scroll(2);
        assert!(shown(&view).starts_with("13 "));
        view.scroll(100);
        assert!(shown(&view).starts_with("13 "), "the last one stays");
        view.scroll(-100);
        assert!(shown(&view).starts_with("7 "));
    }

    #[test]
    fn a_server_that_has_gone_is_told_and_what_was_known_stays_until_it_is_back() {
        let mut view = view();
        view.gone = Some("process 4711: the server has ended".to_string());
        let gone = picture(&view, 100, 12);
        assert!(gone.contains("the server has ended (waiting for the server; q quits)"), "{gone}");
        assert!(gone.contains("hidden, read-only"), "{gone}");
        // Another process counts from zero, so no rate is computed from the two.
        let mut other = document(1.0, 5_000);
        other["pid"] = 4712.into();
        view.look(serde_json::from_value(other).unwrap());
        let back = picture(&view, 100, 12);
        assert!(back.contains("process 4712") && back.contains("3 clients, 0 req/s"), "{back}");
    }

    #[test]
    fn what_is_held_stays_as_it_is() {
        let mut view = view();
        view.held = true;
        view.look(serde_json::from_value(document(104.0, 9_000)).unwrap());
        let held = picture(&view, 100, 12);
        assert!(held.contains("up for 1m42s") && held.contains("HELD"), "{held}");
    }
}
