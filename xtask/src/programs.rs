//! The client programs that tests drive: finds them, and installs them if that is allowed.

use std::path::PathBuf;
use std::process::Command;

/// Programs, each with the Debian package that has it.
const PROGRAMS: &[Program] = &[
    ("nbdinfo", "libnbd-bin"),
    ("nbdcopy", "libnbd-bin"),
    ("nbdsh", "python3-libnbd"),
    ("qemu-img", "qemu-utils"),
    ("qemu-io", "qemu-utils"),
    ("fio", "fio"),
    ("sfdisk", "fdisk"),
    // groff-base has no fonts, but is enough for pages of text.
    ("groff", "groff-base"),
    ("mkfs.ext4", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("debugfs", "e2fsprogs"),
    ("cryptsetup", "cryptsetup-bin"),
    ("cc", "gcc"),
    // Its library reads what changed since a checkpoint.
    ("virtnbdbackup", "virtnbdbackup"),
    // Servers for volumes that are their exports.
    ("nbdkit", "nbdkit"),
    ("nbd-server", "nbd-server"),
    ("qemu-nbd", "qemu-utils"),
];

/// Programs for long runs alone: virtual machines whose kernel is a client, or the newest one. The
/// machines are x86-64.
const LONG: &[Program] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("depmod", "kmod"),
    ("xz", "xz-utils"),
];

/// Makes sure that every program of the tests is there.
///
/// # Errors
///
/// Fails as [`ensure`] does.
pub(crate) fn of_tests(
    long: bool,
    run: impl FnMut(&mut Command) -> Result<(), String>,
) -> Result<(), String> {
    let more = if long && cfg!(target_arch = "x86_64") { LONG } else { &[] };
    ensure(&[PROGRAMS, more].concat(), run)
}

/// Makes sure that every program is there. If some are missing and this user may install packages,
/// installs theirs with `run`, which runs a command and returns the reason if it fails.
///
/// # Errors
///
/// Fails with the missing programs, and with the command that installs them.
pub(crate) fn ensure(
    programs: &[Program],
    mut run: impl FnMut(&mut Command) -> Result<(), String>,
) -> Result<(), String> {
    let missing = missing(programs);
    if missing.is_empty() {
        return Ok(());
    }
    let packages = packages(&missing);
    if find("apt-get").is_none() {
        return Err(explain(&missing, &packages, "there is no apt-get here to install them with"));
    }
    if !is_root() {
        return Err(explain(&missing, &packages, "only root may install them"));
    }
    run(apt().arg("update"))
        .and_then(|()| {
            run(apt().args(["install", "-y", "--no-install-recommends"]).args(&packages))
        })
        .map_err(|failed| {
            explain(&missing, &packages, &format!("installing them failed: {failed}"))
        })?;
    let still = self::missing(programs);
    if still.is_empty() {
        return Ok(());
    }
    Err(explain(&still, &packages, "the packages were installed but do not have them"))
}

fn apt() -> Command {
    let mut apt = Command::new("apt-get");
    // No user is there to answer questions.
    apt.env("DEBIAN_FRONTEND", "noninteractive");
    apt
}

pub(crate) type Program = (&'static str, &'static str);

fn missing(programs: &[Program]) -> Vec<Program> {
    programs.iter().copied().filter(|(program, _)| find(program).is_none()).collect()
}

/// Returns each package once, in the order of the table.
fn packages(missing: &[Program]) -> Vec<&'static str> {
    let mut packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    packages.dedup();
    packages
}

fn explain(missing: &[Program], packages: &[&str], why: &str) -> String {
    let names: Vec<String> =
        missing.iter().map(|(program, package)| format!("{program} (package {package})")).collect();
    format!(
        "programs that the tests drive are missing: {}; {why}.\n\
         On Debian this installs them:\n    \
         apt-get update && apt-get install -y --no-install-recommends {}",
        names.join(", "),
        packages.join(" "),
    )
}

/// Returns the file that a shell would run under that name.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| {
        file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    })
}

pub(crate) fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    // The folder of a process belongs to the user that it runs as.
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_on_the_path_and_an_invented_one_is_not() {
        assert!(find("cargo").is_some());
        assert!(find("corewise-no-such-program").is_none());
    }

    #[test]
    fn missing_programs_are_named_with_package_and_command() {
        let missing = [PROGRAMS[0], PROGRAMS[1], PROGRAMS[5]];
        let packages = packages(&missing);
        assert_eq!(packages, ["libnbd-bin", "fio"]);
        let message = explain(&missing, &packages, "only root may install them");
        assert!(message.contains("nbdinfo (package libnbd-bin)"), "{message}");
        assert!(message.ends_with("--no-install-recommends libnbd-bin fio"), "{message}");
    }
}
