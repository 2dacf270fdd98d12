//! What cargo is told to build for a backend of the facade that isn't the real one.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;

/// Has `cargo` build for this backend, below the target folder that is given.
pub(crate) fn build_for(cargo: &mut Command, backend: &str, target: &Path) {
    // Other flags mean other builds of everything: they have a folder of their own, or each run
    // would throw the other's away.
    cargo.env("CARGO_TARGET_DIR", target.join(backend));
    cargo.env("RUSTFLAGS", flags(std::env::var_os("RUSTFLAGS").as_deref(), backend));
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

    #[test]
    fn flags_of_the_caller_are_kept() {
        assert_eq!(flags(None, "sim"), "--cfg sim");
        assert_eq!(flags(Some(OsStr::new("")), "sim"), "--cfg sim");
        assert_eq!(flags(Some(OsStr::new("-C debuginfo=0")), "loom"), "-C debuginfo=0 --cfg loom");
    }

    #[test]
    fn each_backend_has_a_folder_of_its_own() {
        let mut cargo = Command::new("cargo");
        build_for(&mut cargo, "sim", Path::new("/builds"));
        let (_, target) =
            cargo.get_envs().find(|(name, _)| *name == "CARGO_TARGET_DIR").expect("it is set");
        assert_eq!(target, Some(OsStr::new("/builds/sim")));
    }
}
