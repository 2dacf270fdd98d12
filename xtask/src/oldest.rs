//! The compiler of the oldest supported release: rustup's, or else one from Debian's packages,
//! which is unpacked below the target folder and not installed.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::run::Run;

/// Debian's names of compilers, with those of the packages of their libraries. Debian has the
/// second one for its browsers.
const PACKAGES: [(&str, &str); 2] = [("rustc", "libstd-rust"), ("rustc-web", "libstd-rust-web")];

/// Returns a program for Cargo's `RUSTC`, and its release (two numbers and a point between them);
/// no program if that compiler isn't available here.
///
/// # Errors
///
/// Fails if the workspace's manifest doesn't name the release, or if a package can't be unpacked.
pub(crate) fn compiler(run: &mut Run) -> Result<(Option<PathBuf>, String), String> {
    let manifest = run.root().join("Cargo.toml");
    let text = std::fs::read_to_string(&manifest)
        .map_err(|e| format!("cannot read {}: {e}", manifest.display()))?;
    let release = release(&text)
        .ok_or_else(|| format!("{} has no `rust-version = \"…\"` line", manifest.display()))?;
    let folder = run.target().join("tools").join(format!("rust-{release}"));
    let program = folder.join("rustc");
    if !is(&program, release) {
        let made = match of_rustup(release) {
            Some(rustc) => std::fs::create_dir_all(&folder)
                .and_then(|()| script(&program, &format!("exec {rustc:?} \"$@\"")))
                .map_err(|e| format!("cannot write {}: {e}", program.display())),
            None => of_debian(run, release, &folder, &program),
        };
        made?;
    }
    Ok((is(&program, release).then_some(program), release.to_owned()))
}

fn release(manifest: &str) -> Option<&str> {
    manifest.lines().find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'))
}

/// Returns true if a compiler is of that release.
fn is(rustc: &Path, release: &str) -> bool {
    said(Command::new(rustc).arg("--version"))
        .is_some_and(|version| version.starts_with(&format!("rustc {release}.")))
}

/// Returns the output of a command, if it succeeds.
fn said(command: &mut Command) -> Option<String> {
    let out = command.output().ok().filter(|out| out.status.success())?;
    Some(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

fn of_rustup(release: &str) -> Option<PathBuf> {
    let installed = said(Command::new("rustup").args(["toolchain", "list"]))?;
    let toolchain = installed.lines().find_map(|line| {
        let name = line.split(' ').next()?;
        name.strip_prefix(release)?.starts_with(['.', '-']).then_some(name)
    })?;
    said(Command::new("rustup").args(["which", "rustc", "--toolchain", toolchain]))
        .map(PathBuf::from)
}

/// Unpacks Debian's compiler into the folder, if a known release of Debian has it.
fn of_debian(run: &mut Run, release: &str, folder: &Path, program: &Path) -> Result<(), String> {
    let Some(packages) = packages(release) else { return Ok(()) };
    let failed =
        |e: std::io::Error| format!("cannot unpack a compiler to {}: {e}", folder.display());
    std::fs::create_dir_all(folder).map_err(failed)?;
    run.command_in(folder, Command::new("apt-get").args(["-q", "download"]).args(packages))?;
    for file in std::fs::read_dir(folder).map_err(failed)? {
        let file = file.map_err(failed)?.path();
        if file.extension().is_some_and(|ending| ending == "deb") {
            run.command_in(folder, Command::new("dpkg").arg("-x").arg(&file).arg("."))?;
            std::fs::remove_file(&file).map_err(failed)?;
        }
    }
    let libraries = format!("{}/usr/lib/{}-linux-gnu", folder.display(), std::env::consts::ARCH);
    let rustc = folder.join("usr/bin/rustc");
    script(program, &format!("LD_LIBRARY_PATH={libraries:?} exec {rustc:?} \"$@\"")).map_err(failed)
}

/// Returns the packages of a compiler of that release, each with its version.
fn packages(release: &str) -> Option<Vec<String>> {
    let (of_release, patch) = (format!("-{release}"), format!("{release}."));
    PACKAGES.into_iter().find_map(|(compiler, library)| {
        let versions = said(Command::new("apt-cache").args(["madison", compiler]))?;
        let version = versions
            .lines()
            .filter_map(|line| line.split('|').nth(1).map(str::trim))
            .find(|version| version.starts_with(&patch))?;
        let library_of_release = format!("{library}{of_release}={version}");
        let about = said(Command::new("apt-cache").args(["show", &library_of_release]))?;
        let llvm = about.split([' ', ',']).find(|word| word.starts_with("libllvm"))?;
        let compiler = format!("{compiler}={version}");
        Some(vec![
            compiler,
            library_of_release,
            format!("{library}-dev={version}"),
            llvm.to_owned(),
        ])
    })
}

fn script(path: &Path, line: &str) -> std::io::Result<()> {
    std::fs::write(path, format!("#!/bin/sh\n{line}\n"))?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_read_from_the_manifest() {
        assert_eq!(release("[workspace.package]\nrust-version = \"1.2\"\n"), Some("1.2"));
        assert_eq!(release("rust-version.workspace = true\n"), None);
    }

    #[test]
    fn a_compiler_of_another_release_is_not_taken_for_it() {
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let version = said(Command::new(&rustc).arg("--version")).unwrap();
        let own = version.split([' ', '-']).nth(1).and_then(|v| v.rsplit_once('.')).unwrap().0;
        assert!(is(Path::new(&rustc), own), "{own} of {version}");
        assert!(!is(Path::new(&rustc), "0.1") && !is(Path::new("corewise-no-rustc"), own));
    }
}
