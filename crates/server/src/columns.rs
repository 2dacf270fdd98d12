//! Tables of text that fit a terminal: what is too wide goes on below, beside the same names.

use std::fmt::Write;

/// Rows of cells below a head. All rows are as long as the head.
pub struct Columns<'h> {
    /// The titles of the columns.
    pub head: &'h [&'h str],
    /// The columns that say which row it is: each part of the table has them.
    pub keys: &'h [usize],
    /// The columns that stand to the left, as words do; numbers stand to the right.
    pub words: &'h [usize],
    /// The cells of each row.
    pub rows: Vec<Vec<String>>,
}

impl Columns<'_> {
    /// The lines, of at most `width` columns where two of the table's have room in that. The first
    /// line of each part is its head; an empty line parts them.
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

/// Which columns stand beside each other, in their order. Two blanks are before each.
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
        // Narrower than that it can't be.
        assert_eq!(table(0), narrow);
    }
}
