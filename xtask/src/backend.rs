//! What cargo is told to build for a backend of the facade that isn't the real one.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Has `cargo` build for this backend, below the target folder that is given.
pub(crate) fn build_for(cargo: &mut Command, backend: &str, target: &Path) {
    // Other flags mean other builds of everything: they have a folder of their own, or each run
    // would throw the other's away.
    cargo.env("CARGO_TARGET_DIR", target.join(backend));
    cargo.env("RUSTFLAGS", flags(std::env::var_os("RUSTFLAGS").as_deref(), backend));
}

/// A program to give to cargo as `RUSTC_WORKSPACE_WRAPPER`: the workspace's crates are then built for this backend, where they
/// are built for all tests. The crates of others are the same there, and built once, if their features are the same.
///
/// # Errors
///
/// It can't be written below the target folder.
pub(crate) fn compiler(backend: &str, target: &Path) -> Result<PathBuf, String> {
    // Cargo keeps apart what such a program compiles, by its name. It also asks it for what is configured, so that
    // dependencies may depend on that.
    let folder = target.join("backends");
    let program = folder.join(backend);
    let text = format!("#!/bin/sh\nexec \"$@\" --cfg {backend}\n");
    // It stays untouched if it can, or cargo would take all for outdated.
    if std::fs::read_to_string(&program).ok().as_ref() != Some(&text) {
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::create_dir_all(&folder)
            .and_then(|()| std::fs::write(&program, &text))
            .and_then(|()| std::fs::set_permissions(&program, mode))
            .map_err(|e| format!("cannot write {}: {e}", program.display()))?;
    }
    Ok(program)
}

/// Behind those of the caller.
fn flags(of_caller: Option<&OsStr>, backend: &str) -> OsString {
    let mut flags = of_caller.unwrap_or_default().to_owned();
    if !flags.is_empty() {
        flags.push(" ");
    }
    flags.push("--cfg ");
    flags.push(backend);
    flags
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace;

    #[test]
    fn flags_of_the_caller_are_kept() {
        assert_eq!(flags(None, "sim"), "--cfg sim");
        assert_eq!(flags(Some(OsStr::new("")), "sim"), "--cfg sim");
        assert_eq!(flags(Some(OsStr::new("-C debuginfo=0")), "loom"), "-C debuginfo=0 --cfg loom");
    }

    #[test]
    fn a_build_of_everything_for_a_backend_has_a_folder_of_its_own() {
        let mut cargo = Command::new("cargo");
        build_for(&mut cargo, "sim", Path::new("/builds"));
        let (_, target) =
            cargo.get_envs().find(|(name, _)| *name == "CARGO_TARGET_DIR").expect("it is set");
        assert_eq!(target, Some(OsStr::new("/builds/sim")));
    }

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
