//! A run as text: words `key=value`, which a program in any language reads without a table of its own.

use std::fmt;
use std::str::FromStr;

/// How thorough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    /// Runs long enough for figures to be published.
    Full,
    /// A look: shorter runs.
    Quick,
}

/// There is no such case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoSuchCase(pub String);

impl fmt::Display for NoSuchCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no case '{}'", self.0)
    }
}

impl std::error::Error for NoSuchCase {}

/// A run isn't understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadJob(String);

impl BadJob {
    /// A run that says too little, or too little of something.
    pub(crate) fn needs(what: &str) -> BadJob {
        BadJob(format!("a run needs {what}"))
    }
}

impl fmt::Display for BadJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadJob {}

/// The words of a run.
pub(crate) fn write<'n>(
    case: &dyn fmt::Display,
    runtime: &str,
    numbers: impl IntoIterator<Item = (&'n str, u64)>,
) -> Vec<String> {
    let mut words = vec![format!("case={case}"), format!("runtime={runtime}")];
    words.extend(numbers.into_iter().map(|(key, value)| format!("{key}={value}")));
    words
}

/// Reads what [`write`] writes: the case and the runtime, which must be there. `number` keeps each of the
/// numbers; `None` where it doesn't know the key, or the number is too large for it.
///
/// # Errors
/// Says which word isn't understood, or what is missing.
pub(crate) fn read<C: FromStr<Err = NoSuchCase>>(
    words: impl IntoIterator<Item: AsRef<str>>,
    mut number: impl FnMut(&str, u64) -> Option<()>,
) -> Result<(C, String), BadJob> {
    let (mut case, mut runtime) = (None, None);
    for word in words {
        let word = word.as_ref();
        let bad = || BadJob(format!("'{word}' is no word of a run: key=value is"));
        let (key, value) = word.split_once('=').ok_or_else(bad)?;
        match key {
            "case" => case = Some(value.parse::<C>().map_err(|no| BadJob(no.to_string()))?),
            "runtime" => runtime = Some(value.to_owned()),
            _ => value.parse().ok().and_then(|value| number(key, value)).ok_or_else(bad)?,
        }
    }
    let case = case.ok_or_else(|| BadJob::needs("a case"))?;
    Ok((case, runtime.ok_or_else(|| BadJob::needs("a runtime"))?))
}
