//! Virtual machines that run one of Debian's kernels and a script of `tests/kernel`, by KVM where
//! the processor has it, else on QEMU's emulated processor.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Folder, run};

/// Exit code of `tests/kernel/image` on a machine that lacks something.
const MISSING: i32 = 77;

/// A kernel and what it boots.
pub struct Image {
    /// The files' path without their extensions.
    path: PathBuf,
}

impl Image {
    /// Makes an image by `tests/kernel/image`, which explains the arguments. The next call fetches
    /// only newer packages. `None` if this machine lacks something, except in a long run, for which
    /// `xtask` has installed everything.
    #[allow(clippy::print_stderr, reason = "that is how a test says it")]
    pub fn new(
        name: &str,
        kernel: &str,
        script: &str,
        modules: &str,
        programs: &[&OsStr],
    ) -> Option<Image> {
        if !cfg!(target_arch = "x86_64") {
            return None;
        }
        let (images, folder) =
            (Path::new(env!("CARGO_TARGET_TMPDIR")).join("machines"), Folder::new());
        let mut make = folder.command("sh");
        make.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernel/image"));
        make.arg(&images).args([name, kernel, script, modules]).args(programs);
        let ran = run(make);
        if ran.code == Some(MISSING) && !is_long() {
            eprintln!("skipped: no virtual machine: {}", ran.stdout);
            return None;
        }
        ran.ok();
        Some(Image { path: images.join(name) })
    }

    pub fn file(&self, extension: &str) -> PathBuf {
        self.path.with_extension(extension)
    }

    /// Returns a command that runs the machine until it ends, or hangs for this many seconds.
    /// `variables` are the script's.
    pub fn machine(&self, seconds: u32, emulation: &str, variables: &str) -> Command {
        let mut machine = Command::new("timeout");
        machine.args([&seconds.to_string(), "qemu-system-x86_64"]);
        match has_kvm() {
            true => machine.args(["-accel", "kvm", "-cpu", "host"]),
            // An emulated cmpxchg16b sometimes leaves garbage in the flags, and Linux 6.12 panics.
            false => machine.args(["-accel", emulation, "-cpu", "max,-cx16"]),
        };
        machine.args(["-display", "none", "-monitor", "none", "-no-reboot"]);
        machine.arg("-kernel").arg(self.file("vmlinuz"));
        machine.arg("-initrd").arg(self.file("initrd"));
        // On a busy host an emulated timer may be too late for the kernel's check of it.
        let always = "console=ttyS0 panic=-1 no_timer_check";
        machine.args(["-append", &format!("{always} {variables}")]);
        machine.stdin(Stdio::null());
        machine
    }
}

/// Returns true in runs that may take long.
pub fn is_long() -> bool {
    std::env::var_os("COREWISE_LONG").is_some()
}

/// Returns true if KVM runs every kernel. A KVM that needs no support by the processor runs only
/// kernels that are built for it.
fn has_kvm() -> bool {
    let cpus = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let supported = cpus.split_whitespace().any(|word| word == "vmx" || word == "svm");
    supported && OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok()
}

/// Runs a machine whose console is stdout to its end, and gives each line to `hear`. Returns the
/// `RESULT` of the script, if it has one, and all lines.
pub fn listen(mut machine: Command, mut hear: impl FnMut(&str)) -> (Option<String>, String) {
    machine.args(["-serial", "stdio"]).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut child = machine.spawn().unwrap_or_else(|error| panic!("{machine:?}: {error}"));
    let console = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
    let (mut result, mut said) = (None, String::new());
    for line in console.split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line).trim().to_string();
        said.push_str(&line);
        said.push('\n');
        match line.strip_prefix("RESULT ") {
            Some(how) => result = Some(how.to_string()),
            None => hear(&line),
        }
    }
    child.wait().expect("a child can be waited for");
    (result, said)
}
