//! Where the manifest comes from: a file, stdin, or the program itself.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::exit::Failure;

/// The longest manifest that a running server reads, in bytes: one of a hundred thousand devices has less.
const LONGEST: u64 = 64 << 20;

/// What is brought up when nobody says what.
const BUILT_IN: &str = include_str!("default.toml");

/// A manifest's text, and what its relative paths and its messages begin with.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) text: String,
    /// How messages call it.
    pub(crate) label: String,
    /// Where relative paths begin; `None`: in a temporary folder.
    pub(crate) base: Option<PathBuf>,
    /// The file, which can be read again.
    pub(crate) file: Option<PathBuf>,
}

impl Source {
    /// The built-in manifest.
    pub(crate) fn built_in() -> Source {
        let label = "the built-in manifest".to_string();
        Source { text: BUILT_IN.to_string(), label, base: None, file: None }
    }

    /// Reads a plain file, for a server that runs: nothing that blocks, or never ends.
    pub(crate) fn read_plain(path: &Path) -> Result<Source, String> {
        let cannot =
            |why: &dyn std::fmt::Display| format!("cannot read '{}': {why}", path.display());
        let meta = path.metadata().map_err(|error| cannot(&error))?;
        match meta.is_file() {
            false => Err(cannot(&"it is not a plain file")),
            true if meta.len() > LONGEST => Err(cannot(&"it has more than 64 MiB")),
            true => Source::read(path).map_err(|failure| match failure {
                Failure::Message { message, .. } => message,
                _ => cannot(&"it failed"),
            }),
        }
    }

    /// Reads a file, or stdin where the path is `-`.
    pub(crate) fn read(path: &Path) -> Result<Source, Failure> {
        let label = path.display().to_string();
        let cannot = |error: std::io::Error| {
            let failure = Failure::new(format!("cannot read the manifest '{label}': {error}"));
            match error.kind() {
                std::io::ErrorKind::NotFound => {
                    failure.help("`corewise up` without a manifest uses a built-in one")
                }
                _ => failure,
            }
        };
        if path == Path::new("-") {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).map_err(cannot)?;
            let base = std::env::current_dir().map_err(cannot)?;
            return Ok(Source { text, label: "stdin".to_string(), base: Some(base), file: None });
        }
        let text = std::fs::read_to_string(path).map_err(cannot)?;
        // Absolute, since the text of a socket's path is shown to people who are elsewhere.
        let path = std::path::absolute(path).map_err(cannot)?;
        let base = path.parent().unwrap_or(Path::new("/")).to_path_buf();
        // A pipe gives its text once.
        let file = path.is_file().then_some(path);
        Ok(Source { text, label, base: Some(base), file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest;

    #[test]
    fn the_built_in_manifest_has_no_problem_and_a_real_dependency_graph() {
        let resolved = manifest::read(&Source::built_in().text, Path::new("/tmp/x"));
        assert_eq!(resolved.problems, []);
        assert!(resolved.manifest.devices.iter().any(|d| d.suppliers.len() > 1));
        assert!(!resolved.manifest.exports.is_empty());
    }

    #[test]
    fn relative_paths_begin_in_the_manifests_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.toml");
        std::fs::write(&path, "text").unwrap();
        let source = Source::read(&path).unwrap();
        assert_eq!(source.base.as_deref(), Some(folder.path()));
        assert_eq!(source.text, "text");
    }
}
