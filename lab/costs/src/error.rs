//! What is wrong with a file.

use std::fmt;

/// A file can't be read as costs. It says where, which key, and what was expected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CostsError {
    /// It is no TOML, a key is missing, unknown, or has no such value. The text names the line and
    /// the key.
    Toml(String),
    /// It is of another version of the form.
    Version {
        /// What it says.
        found: u32,
    },
    /// A key's value doesn't fit another's.
    Value {
        /// The key, with those of the tables around it.
        key: String,
        /// What is wrong, and what to write.
        why: String,
    },
}

impl fmt::Display for CostsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CostsError::Toml(text) => f.write_str(text.trim_end()),
            CostsError::Version { found } => write!(
                f,
                "version = {found}, but this program reads version {}; measure the machine again \
                 with 'corewise-bench machine'",
                crate::VERSION
            ),
            CostsError::Value { key, why } => write!(f, "{key}: {why}"),
        }
    }
}

impl std::error::Error for CostsError {}
