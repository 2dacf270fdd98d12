//! Arguments for cargo to build for a backend of the facade that isn't the real one.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Arguments behind the package that a step builds. With them, third-party crates have the same
/// features as in all tests, and are built once for both. Nothing of this second package is built.
pub(crate) const AS_IN_TESTS: &[&str] =
    &["-p", "bench-peers", "--features", "bench-peers/as-in-tests"];

/// Makes `cargo` leave programs in a folder of that name, as those of all tests have the same
/// names. Crates lie where those of all tests do. (A Cargo before 1.91 rebuilds them.)
pub(crate) fn apart(cargo: &mut Command, folder: &str, target: &Path) {
    cargo.env("CARGO_TARGET_DIR", target.join(folder)).env("CARGO_BUILD_BUILD_DIR", target);
}

/// Returns a program for cargo's `RUSTC_WORKSPACE_WRAPPER`, which builds the workspace's crates for
/// this backend, in the folder of all tests. Third-party crates are the same there, and built once
/// if their features are the same.
///
/// # Errors
///
/// Fails if the program can't be written below the target folder.
pub(crate) fn compiler(backend: &str, target: &Path) -> Result<PathBuf, String> {
    // Cargo separates the output of such programs by the program's name. Cargo also asks it for the
    // configuration, so dependencies may depend on that.
    let folder = target.join("backends");
    let program = folder.join(backend);
    let text = format!("#!/bin/sh\nexec \"$@\" --cfg {backend}\n");
    // An unchanged file stays untouched, or cargo would rebuild everything.
    if std::fs::read_to_string(&program).ok().as_ref() != Some(&text) {
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::create_dir_all(&folder)
            .and_then(|()| std::fs::write(&program, &text))
            .and_then(|()| std::fs::set_permissions(&program, mode))
            .map_err(|e| format!("cannot write {}: {e}", program.display()))?;
    }
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace;

    #[test]
    fn the_compiler_of_a_backend_adds_it_to_what_it_is_told() {
        let target = workspace::target(&workspace::root().unwrap()).join("tmp");
        for backend in ["loom", "shuttle"] {
            let compiler = compiler(backend, &target).unwrap();
            let said = Command::new(compiler).args(["echo", "a b"]).output().unwrap();
            assert_eq!(String::from_utf8(said.stdout).unwrap(), format!("a b --cfg {backend}\n"));
        }
    }
}
