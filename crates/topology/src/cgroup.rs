//! The process's cgroups, of versions 1 and 2, and the CPUs that they leave to it.
//!
//! The kernel applies a cpuset to each thread's affinity mask, so this seldom adds anything. It
//! does if the source of the mask doesn't know the cpuset (some sandboxes). A file that is missing,
//! or looks unusual, counts as no limit, and never as an empty set.
//!
//! Formats: `proc(5)`, `cgroups(7)`, `cpuset(7)`, the kernel's `admin-guide/cgroup-v2.rst`.

use std::path::{Path, PathBuf};

use corewise_sync::sys;

use crate::cpuset::CpuSet;
use crate::files;

/// The controller that a hierarchy of groups is searched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Controller {
    Cpu,
    Cpuset,
    Memory,
}

impl Controller {
    const fn name(self) -> &'static str {
        match self {
            Controller::Cpu => "cpu",
            Controller::Cpuset => "cpuset",
            Controller::Memory => "memory",
        }
    }
}

/// Returns the effective cpuset of this process, if it can be found.
pub(crate) fn cpuset() -> Option<CpuSet> {
    let (memberships, mounts) = tables()?;
    find(&memberships, &mounts)
}

/// Returns the CPUs of isolated partitions (`cpuset.cpus.isolated`, which only the root of version
/// 2 has), if they can be seen. Kernels from 6.7 on have the file. In kernels whose sysfs knows
/// partitions, both agree.
pub(crate) fn isolated() -> Option<CpuSet> {
    let (_, mounts) = tables()?;
    let mut mounts = mounts.lines().filter_map(|line| Mount::parse(line, Controller::Cpuset));
    let root = mounts.find(|mount| mount.version == 2 && mount.root == Path::new("/"))?;
    files::text(&root.at.join("cpuset.cpus.isolated")).ok().flatten()?.parse().ok()
}

/// Returns the groups of this process, and the mounted hierarchies, as text.
pub(crate) fn tables() -> Option<(String, String)> {
    if !sys::KERNEL_THREADS {
        return None;
    }
    let read = |path: &str| files::text(Path::new(path)).ok().flatten();
    Some((read("/proc/self/cgroup")?, read("/proc/self/mountinfo")?))
}

fn find(memberships: &str, mounts: &str) -> Option<CpuSet> {
    chains(memberships, mounts, Controller::Cpuset).iter().find_map(|chain| {
        // The cpuset is that of the group. If the controller isn't enabled for the group, it is
        // that of the nearest group above for which it is: all below share those CPUs.
        chain.iter().find_map(|group| read_group(group))
    })
}

/// Returns, for each version of cgroups, the process's group, then those above it.
pub(crate) fn chains(memberships: &str, mounts: &str, of: Controller) -> Vec<Vec<PathBuf>> {
    let mounts: Vec<Mount> = mounts.lines().filter_map(|line| Mount::parse(line, of)).collect();
    // Version 1 goes first: where the controller is mounted as version 1, version 2 lacks it.
    let versions = [1, 2].into_iter().filter_map(|version| {
        let group = memberships.lines().find_map(|line| membership(line, version, of))?;
        // If several are mounted, take one that contains the group: a container may see its host's
        // too.
        let mut mounts = mounts.iter().filter(|mount| mount.version == version);
        let first = mounts.clone().next()?;
        let mount = mounts.find(|mount| Path::new(group).starts_with(&mount.root)).unwrap_or(first);
        Some(mount.upwards(group))
    });
    versions.collect()
}

/// Returns the group's path in one line of `/proc/PID/cgroup`: `HIERARCHY:CONTROLLERS:PATH`.
fn membership(line: &str, version: u32, of: Controller) -> Option<&str> {
    let mut parts = line.splitn(3, ':');
    let (hierarchy, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    let wanted = match version {
        1 => controllers.split(',').any(|controller| controller == of.name()),
        _ => hierarchy == "0" && controllers.is_empty(),
    };
    wanted.then_some(path)
}

/// A mounted hierarchy that has, or may have, a controller.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    version: u32,
    /// Group of the hierarchy that is seen at `at`.
    root: PathBuf,
    at: PathBuf,
}

impl Mount {
    /// Parses one line of `/proc/PID/mountinfo`.
    fn parse(line: &str, of: Controller) -> Option<Mount> {
        let (mount, filesystem) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, at) = (fields.next()?, fields.next()?);
        let mut fields = filesystem.split(' ');
        let (kind, _, options) = (fields.next()?, fields.next()?, fields.next()?);
        let version = match kind {
            "cgroup2" => 2,
            "cgroup" if options.split(',').any(|option| option == of.name()) => 1,
            _ => return None,
        };
        Some(Mount { version, root: unescape(root), at: unescape(at) })
    }

    /// Returns the folders of a group and of those above it.
    fn upwards(&self, group: &str) -> Vec<PathBuf> {
        // In a cgroup namespace the group may be outside of the mount: then only its top is
        // visible.
        let inner = Path::new(group).strip_prefix(&self.root).unwrap_or(Path::new(""));
        if inner.components().any(|part| part == std::path::Component::ParentDir) {
            return vec![self.at.clone()];
        }
        inner.ancestors().map(|inner| self.at.join(inner)).collect()
    }
}

/// Decodes a path: `mountinfo` writes space, tab, newline and backslash as three octal digits.
fn unescape(path: &str) -> PathBuf {
    let path = path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n");
    PathBuf::from(path.replace("\\134", "\\"))
}

fn read_group(dir: &Path) -> Option<CpuSet> {
    // Version 2, version 1, version 1 of old kernels.
    ["cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"]
        .iter()
        .find_map(|name| files::text(&dir.join(name)).ok().flatten())
        .and_then(|list| list.parse().ok())
        .filter(|set: &CpuSet| !set.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn write(dir: &Path, name: &str, text: &str) {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join(name), text).unwrap();
    }

    fn mount_line(kind: &str, root: &str, at: &Path, options: &str) -> String {
        format!("31 23 0:28 {root} {} rw,relatime shared:9 - {kind} none {options}\n", at.display())
    }

    fn check(memberships: &str, mounts: &str, wanted: Option<&str>) {
        let found = find(memberships, mounts).map(|set| set.to_string());
        assert_eq!(found.as_deref(), wanted, "{memberships}{mounts}");
    }

    #[test]
    fn version_2_takes_the_group_or_the_nearest_above_that_has_the_controller() {
        let dir = tempfile::tempdir().unwrap();
        let mounts = mount_line("cgroup2", "/", dir.path(), "rw");
        write(&dir.path().join("a"), "cpuset.cpus.effective", "2-3\n");
        write(&dir.path().join("a/b"), "cpu.max", "max\n");
        check("0::/a/b\n", &mounts, Some("2-3"));
        check("0::/a\n", &mounts, Some("2-3"));
        check("0::/other\n", &mounts, None);
        check("0::/a\n", "", None);
        check("", &mounts, None);
    }

    #[test]
    fn version_1_needs_the_cpuset_hierarchy_and_reads_its_own_file_names() {
        let dir = tempfile::tempdir().unwrap();
        let mounts = mount_line("cgroup", "/", dir.path(), "rw,cpuset")
            + &mount_line("cgroup", "/", Path::new("/nowhere"), "rw,memory");
        write(&dir.path().join("c"), "cpuset.effective_cpus", "1\n");
        write(&dir.path().join("old"), "cpuset.cpus", "0-1\n");
        check("4:memory:/x\n3:cpuset:/c\n0::/\n", &mounts, Some("1"));
        check("3:cpu,cpuset:/old\n", &mounts, Some("0-1"));
        check("4:memory:/c\n", &mounts, None);
    }

    #[test]
    fn a_container_sees_its_own_group_at_the_top_of_the_mount() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "cpuset.cpus.effective", "5\n");
        let mounts = mount_line("cgroup2", "/docker/1", dir.path(), "rw");
        check("0::/docker/1\n", &mounts, Some("5"));
        let mounts = mount_line("cgroup2", "/", dir.path(), "rw");
        check("0::/../outside\n", &mounts, Some("5"));
    }

    #[test]
    fn of_several_mounts_the_one_in_which_the_group_lies_counts() {
        let (host, own) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(host.path(), "cpuset.cpus.effective", "0-7\n");
        write(own.path(), "cpuset.cpus.effective", "5\n");
        let mounts = mount_line("cgroup2", "/..", host.path(), "rw")
            + &mount_line("cgroup2", "/", own.path(), "rw");
        check("0::/\n", &mounts, Some("5"));
    }

    #[test]
    fn an_empty_or_strange_file_says_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mounts = mount_line("cgroup2", "/", dir.path(), "rw");
        write(&dir.path().join("empty"), "cpuset.cpus.effective", "\n");
        write(&dir.path().join("odd"), "cpuset.cpus.effective", "all\n");
        check("0::/empty\n", &mounts, None);
        check("0::/odd\n", &mounts, None);
    }

    #[test]
    fn mount_points_with_spaces_are_unescaped() {
        let line = r"31 23 0:28 / /sys/my\040group rw - cgroup2 none rw";
        assert_eq!(Mount::parse(line, Controller::Cpuset).unwrap().at, Path::new("/sys/my group"));
    }
}
