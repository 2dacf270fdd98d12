//! Errors of a file.

use std::fmt;

/// A file can't be read as costs. The text names the place, the key and the expected value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CostsError {
    /// The file is no TOML, or a key is missing, unknown or of another type. The text names the
    /// line and the key.
    Toml(String),
    /// The file has another version of the format.
    Version {
        /// The file's version.
        found: u32,
    },
    /// A value is out of its range.
    Value {
        /// The key, with those of the tables around it.
        key: String,
        /// The reason, and a value that works.
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
