//! Changes of the machine that the tests run on, if they are permitted, and their reversal: a CPU
//! goes offline for a moment, or a cpuset is made. Also used by the tests of the workqueue.
//!
//! Tests that use it have a binary of their own, and hold [`alone`] meanwhile: they take CPUs from
//! whatever runs beside them.
#![allow(dead_code, reason = "each test binary uses a part of it")]
#![allow(clippy::unwrap_used, reason = "helpers of tests say what they expect by unwrapping")]

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use corewise_topology::{CpuId, CpuSet, Machine};

/// The reason why a test can't be run here.
pub(crate) type Skip = String;

/// Locks the machine: one test at a time, in this process and in others, changes it.
#[allow(clippy::incompatible_msrv, reason = "the tests are run with a newer compiler")]
pub(crate) fn alone() -> File {
    let path = std::env::temp_dir().join("corewise-tests-change-this-machine.lock");
    let file = File::options().create(true).append(true).open(path).unwrap();
    file.lock().unwrap();
    file
}

/// Says why a test was not run.
#[allow(clippy::print_stderr, reason = "that is how a test says it")]
pub(crate) fn skipped(test: &str, why: &str) {
    eprintln!("skipped: {test}: {why}");
}

/// A process that puts a CPU back online when this one ends in any way: otherwise a killed test
/// would leave a machine without all its CPUs.
pub(crate) struct Keeper(Child);

impl Keeper {
    /// Starts a keeper for the CPU that this file of `/sys` switches.
    pub(crate) fn of(file: &Path) -> io::Result<Keeper> {
        let mut keeper = Command::new("sh");
        keeper.args(["-c", "cat; until echo 1 > \"$0\"; do sleep 0.1; done"]).arg(file);
        // A group of its own: a signal to the tests' group doesn't reach it.
        keeper.stdin(Stdio::piped()).stderr(Stdio::null()).process_group(0).spawn().map(Keeper)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let ended = self.0.wait();
        assert!(ended.is_ok_and(|status| status.success()), "the CPU was not put back");
    }
}

/// A CPU that is offline while this value lives.
pub(crate) struct Offline {
    _keeper: Keeper,
}

/// Returns the CPU to take offline in this test: the highest one, if there is another.
pub(crate) fn spare_cpu() -> Result<CpuId, Skip> {
    let online = Machine::live().unwrap().online();
    match online.last() {
        Some(last) if online.len() > 1 => Ok(last),
        _ => Err(format!("it takes a second CPU, and only '{online}' may be used")),
    }
}

impl Offline {
    /// Takes a CPU offline. This needs root, a CPU that the kernel can do without, and a writable
    /// `/sys`, which most containers lack.
    pub(crate) fn take(cpu: CpuId) -> Result<Offline, Skip> {
        let file = PathBuf::from(format!("/sys/devices/system/cpu/cpu{cpu}/online"));
        fs::write(&file, "1").map_err(|error| format!("CPU {cpu} can't be switched: {error}"))?;
        let keeper = Keeper::of(&file).map_err(|error| format!("no shell: {error}"))?;
        match fs::write(&file, "0") {
            Ok(()) => Ok(Offline { _keeper: keeper }),
            Err(error) => Err(format!("CPU {cpu} can't be taken offline: {error}")),
        }
    }
}

/// A cgroup, removed with this value.
pub(crate) struct Group {
    root: PathBuf,
    dir: PathBuf,
}

impl Group {
    /// Creates a group below the root of whichever version has the controller; `file` is one that
    /// version 1 has there.
    fn new(name: &str, controller: &str, file: &str) -> Result<Group, Skip> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let root = mounts.lines().find_map(|line| {
            let (mount, kind) = line.split_once(" - ")?;
            let at = Path::new(mount.split(' ').nth(4)?);
            let version_1 = kind.starts_with("cgroup ") && at.join(file).exists();
            let enabled = || fs::read_to_string(at.join("cgroup.subtree_control")).ok();
            let version_2 = kind.starts_with("cgroup2 ")
                && enabled().is_some_and(|on| on.split_whitespace().any(|c| c == controller));
            (version_1 || version_2).then(|| at.to_owned())
        });
        let Some(root) = root else {
            return Err(format!(
                "the {controller} controller isn't enabled in any cgroup that is seen"
            ));
        };
        let dir = root.join(format!("corewise-{name}-{}", std::process::id()));
        fs::create_dir(&dir).map_err(|e| format!("{} can't be made: {e}", dir.display()))?;
        Ok(Group { root, dir })
    }

    /// Creates a group whose processes have no CPU quota yet.
    pub(crate) fn for_quota(name: &str) -> Result<Group, Skip> {
        let group = Group::new(name, "cpu", "cpu.cfs_quota_us")?;
        set_quota(&group.dir, None).map_err(|e| format!("no CPU quota can be set: {e}"))?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Each process in it has ended, and been waited for.
        fs::remove_dir(&self.dir).unwrap();
    }
}

/// Gives the processes of a group `millis` milliseconds of CPU time in each 100.
fn set_quota(dir: &Path, millis: Option<u64>) -> io::Result<()> {
    let micros = millis.map(|millis| (millis * 1000).to_string());
    if dir.join("cpu.max").exists() {
        let max = micros.as_deref().unwrap_or("max");
        return fs::write(dir.join("cpu.max"), format!("{max} 100000"));
    }
    fs::write(dir.join("cpu.cfs_quota_us"), micros.as_deref().unwrap_or("-1"))
}

/// A cgroup with a cpuset, removed with this value.
pub(crate) struct Cpuset {
    group: Group,
}

impl Cpuset {
    /// Creates a cgroup with these CPUs.
    pub(crate) fn new(name: &str, cpus: &CpuSet) -> Result<Cpuset, Skip> {
        let group = Cpuset { group: Group::new(name, "cpuset", "cpuset.mems")? };
        let nodes = ["cpuset.effective_mems", "cpuset.mems.effective"]
            .iter()
            .find_map(|name| fs::read_to_string(group.group.root.join(name)).ok())
            .unwrap_or_default();
        group.set(cpus)?;
        group.write("cpuset.mems", nodes.trim())?;
        Ok(group)
    }

    fn set(&self, cpus: &CpuSet) -> Result<(), Skip> {
        self.write("cpuset.cpus", &cpus.to_string())
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Skip> {
        let path = self.group.dir.join(name);
        fs::write(&path, text).map_err(|e| format!("{} can't be written: {e}", path.display()))
    }
}

impl AsRef<Group> for Cpuset {
    fn as_ref(&self) -> &Group {
        &self.group
    }
}

impl AsRef<Group> for Group {
    fn as_ref(&self) -> &Group {
        self
    }
}

const GROUP: &str = "COREWISE_TEST_CGROUP";

/// Runs one ignored test of this binary in a process of its own, which finds the group by
/// [`enter_group`].
pub(crate) fn run_child(test: &str, group: impl AsRef<Group>) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(GROUP, &group.as_ref().dir)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("1 passed"), "{said}");
}

/// Enters the group, in the child. Returns `None` if the test wasn't started by [`run_child`].
pub(crate) fn enter_group() -> Option<GroupOfChild> {
    let dir = PathBuf::from(std::env::var_os(GROUP)?);
    fs::write(dir.join("cgroup.procs"), std::process::id().to_string()).unwrap();
    Some(GroupOfChild { dir })
}

/// The group that a child is in.
pub(crate) struct GroupOfChild {
    dir: PathBuf,
}

impl GroupOfChild {
    pub(crate) fn set(&self, cpus: &str) {
        fs::write(self.dir.join("cpuset.cpus"), cpus).unwrap();
    }

    /// Sets the quota in milliseconds of CPU time in each 100.
    pub(crate) fn set_quota(&self, millis: Option<u64>) {
        set_quota(&self.dir, millis).unwrap();
    }
}
