//! Names of places in the code: crate, file, and the field that an access touches.
//!
//! The simulator knows a place as file, line and column: the name of the method or function that
//! was called. The source has the field before it: `self.lane.listed.load(..)` touches `listed`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use corewise_sim::from_root;

/// The sources that were read so far.
#[derive(Debug, Default)]
pub(crate) struct Names {
    files: HashMap<PathBuf, Option<String>>,
}

impl Names {
    /// Returns the name of a place, such as `workqueue::pool/cpu_list.listed`. `None` if the source
    /// can't be read or has no field there. Lines and columns begin with 1.
    pub(crate) fn of(&mut self, root: &Path, file: &str, line: u32, column: u32) -> Option<String> {
        let short = from_root(file)?;
        let [_, name, _, path] = short.splitn(4, '/').collect::<Vec<_>>()[..] else { return None };
        // A module with a path of its own may go up a folder.
        let module = path.rsplit("../").next().unwrap_or(path);
        let read = |path: &PathBuf| std::fs::read_to_string(path).ok();
        let source = self.files.entry(root.join(short)).or_insert_with_key(read).as_ref()?;
        let lines_before = source.split_inclusive('\n').take(line as usize - 1);
        let start: usize = lines_before.map(str::len).sum();
        let (within, _) = source[start..].char_indices().nth(column as usize - 1)?;
        let field = field_at(source, start + within)?;
        let module = module.trim_end_matches(".rs").trim_end_matches("/mod");
        Some(format!("{name}::{module}.{field}"))
    }
}

/// Returns the field that the call at `at` touches: the last name before the dot of a method, or
/// the last name of a function's first argument.
fn field_at(source: &str, at: usize) -> Option<&str> {
    if let Some(receiver) = source[..at].trim_end().strip_suffix('.') {
        return last_name(receiver);
    }
    let arguments = &source[at + source[at..].find('(')? + 1..];
    last_name(&arguments[..arguments.find([',', ')'])?])
}

/// Returns the last name of an expression, without the calls and indices behind it.
fn last_name(expression: &str) -> Option<&str> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let expression = expression.trim_end().trim_end_matches('?');
    if let Some(inner) = expression.strip_suffix([')', ']']) {
        let mut depth = 1;
        let open = inner.rfind(|c: char| {
            match c {
                ')' | ']' => depth += 1,
                '(' | '[' => depth -= 1,
                _ => {}
            }
            depth == 0
        })?;
        // Brackets without a name before them are those of the expression itself.
        return last_name(&inner[..open]).or_else(|| last_name(&inner[open + 1..]));
    }
    let begin = expression.char_indices().rev().take_while(|(_, c)| is_name(*c)).last()?.0;
    Some(&expression[begin..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_named_by_the_field_before_the_call() {
        for (source, call, expected) in [
            ("self.lane.listed.load(Relaxed)", "load", Some("listed")),
            ("self.lanes[at(1)].listed\n    .store(true, Relaxed)", "store", Some("listed")),
            ("self.lane(cpu)?.lock()", "lock", Some("lane")),
            ("(*wrapped).0.swap(1)", "swap", Some("0")),
            ("(self.inbox).take()", "take", Some("inbox")),
            ("hint::reads(&self.function, 1)", "reads", Some("function")),
            ("1 + \"text\".len()", "len", None),
        ] {
            let at = source.find(call).expect("the call");
            assert_eq!(field_at(source, at), expected, "{source}");
        }
    }
}
