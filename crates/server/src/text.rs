//! Text for people: tables that fit a terminal, and the closest name to a mistyped one. A table
//! that is too wide continues below, beside the same names.

use std::fmt::Write;

/// A table: rows of cells below a head. All rows are as long as the head.
pub struct Columns<'h> {
    /// Titles of the columns.
    pub head: &'h [&'h str],
    /// Columns that identify the row. Each part of the table has them.
    pub keys: &'h [usize],
    /// Columns aligned to the left, as words are. Numbers are aligned to the right.
    pub words: &'h [usize],
    /// Cells of each row.
    pub rows: Vec<Vec<String>>,
}

impl Columns<'_> {
    /// Returns the lines, of at most `width` columns if two of the table's columns fit in that.
    /// Each part begins with its head; an empty line separates parts.
    pub fn lines(&self, width: usize) -> Vec<String> {
        let chars = |text: &str| text.chars().count();
        let widths: Vec<usize> = (0..self.head.len())
            .map(|column| {
                let cells = self.rows.iter().map(|row| chars(&row[column]));
                cells.chain([chars(self.head[column])]).max().unwrap_or_default()
            })
            .collect();
        let mut lines = Vec::new();
        for part in parts(&widths, self.keys, width) {
            if !lines.is_empty() {
                lines.push(String::new());
            }
            let line = |cell: &dyn Fn(usize) -> String| {
                let mut line = String::new();
                for &column in &part {
                    let (cell, width) = (cell(column), widths[column]);
                    // Writing to a String can't fail.
                    let _ = match self.words.contains(&column) {
                        true => write!(line, "  {cell:<width$}"),
                        false => write!(line, "  {cell:>width$}"),
                    };
                }
                line.trim_end().to_owned()
            };
            lines.push(line(&|column| self.head[column].to_owned()));
            lines.extend(self.rows.iter().map(|row| line(&|column| row[column].clone())));
        }
        lines
    }
}

/// Returns the columns of each part, in order. Two blanks are before each column.
fn parts(widths: &[usize], keys: &[usize], width: usize) -> Vec<Vec<usize>> {
    let keys_width: usize = keys.iter().map(|&key| 2 + widths[key]).sum();
    let mut parts: Vec<Vec<usize>> = Vec::new();
    let mut used = usize::MAX;
    for column in (0..widths.len()).filter(|column| !keys.contains(column)) {
        let wide = 2 + widths[column];
        match parts.last_mut().filter(|_| used.saturating_add(wide) <= width) {
            Some(part) => part.push(column),
            None => {
                parts.push(keys.iter().copied().chain([column]).collect());
                used = keys_width;
            }
        }
        used += wide;
    }
    for part in &mut parts {
        part.sort_unstable();
    }
    parts
}

/// Returns the closest word of `known` that differs from `typed` in at most a third of its letters.
pub fn closest<'k>(typed: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    known
        .into_iter()
        .map(|word| (distance(&typed.to_lowercase(), &word.to_lowercase()), word))
        .filter(|(distance, word)| *distance <= word.chars().count().max(3) / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// Returns advice for `typed`, which is none of the `known` names of `what`: the closest name, or
/// else some of them.
pub(crate) fn help<'k>(
    typed: &str,
    known: impl IntoIterator<Item = &'k str> + Clone,
    what: &str,
) -> String {
    match closest(typed, known.clone()) {
        Some(close) => format!("did you mean '{close}'?"),
        None => format!("{what}: {}", first_names(known)),
    }
}

/// Returns the first of these names, and the number of the others.
pub(crate) fn first_names<'k>(names: impl IntoIterator<Item = &'k str>) -> String {
    let mut names = names.into_iter();
    let mut first: Vec<&str> = names.by_ref().take(NAMES).collect();
    let last = names.next();
    let more = names.count();
    if more == 0 {
        // A note that there is one more would be as long.
        first.extend(last);
    }
    let text = if first.is_empty() { "none".to_string() } else { first.join(", ") };
    if more == 0 { text } else { format!("{text} and {} more", more + 1) }
}

/// The number of names that fit into a message.
const NAMES: usize = 12;

/// Returns Damerau's distance with adjacent swaps: the number of letters to add, remove, change or
/// swap with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let change = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = change.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(width: usize) -> Vec<String> {
        let row = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
        let head = ["name", "count", "op", "what"];
        let rows = vec![row(["a", "1", "read", "x y"]), row(["", "22", "write", "z"])];
        Columns { head: &head, keys: &[0, 2], words: &[0, 2, 3], rows }.lines(width)
    }

    #[test]
    fn a_table_that_fits_is_one_table() {
        assert_eq!(
            table(26),
            ["  name  count  op     what", "  a         1  read   x y", "           22  write  z"]
        );
    }

    #[test]
    fn a_wide_table_goes_on_below_with_the_names_of_its_rows() {
        let narrow = [
            "  name  count  op",
            "  a         1  read",
            "           22  write",
            "",
            "  name  op     what",
            "  a     read   x y",
            "        write  z",
        ];
        assert_eq!(table(25), narrow);
        // The table can't be narrower than that.
        assert_eq!(table(0), narrow);
    }

    const DRIVERS: [&str; 5] = ["file", "memory", "mirror", "null", "stripe"];

    #[test]
    fn a_slip_of_the_finger_is_understood() {
        for (typed, meant) in
            [("mirorr", "mirror"), ("memroy", "memory"), ("Stripe", "stripe"), ("fiel", "file")]
        {
            assert_eq!(closest(typed, DRIVERS), Some(meant));
        }
    }

    #[test]
    fn a_list_of_names_has_an_end() {
        let all: Vec<String> = (0..1000).map(|n| format!("d{n}")).collect();
        let all = || all.iter().map(String::as_str);
        assert_eq!(first_names(all().take(2)), "d0, d1");
        let help = help("other", all().collect::<Vec<_>>(), "devices");
        assert!(help.starts_with("devices: d0,") && help.ends_with("d11 and 988 more"), "{help}");
        assert_eq!(first_names([]), "none");
        assert!(
            first_names(all().take(13)).ends_with(", d12")
                && first_names(all().take(14)).ends_with("d11 and 2 more")
        );
    }

    #[test]
    fn another_word_is_not_guessed_at() {
        for typed in ["raid5", "nvme", "", "partition"] {
            assert_eq!(closest(typed, DRIVERS), None, "{typed}");
        }
    }
}
