//! Writer of small sysfs trees in a temporary folder, as a kernel would report them.
#![allow(clippy::unwrap_used, reason = "helpers of tests say what they expect by unwrapping")]

use std::fs;
use std::path::{Path, PathBuf};

use corewise_topology::{CpuId, CpuSet, Topology};

/// The numbering of a core's hardware threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Siblings {
    /// CPUs 0 and 1 are one core.
    Adjacent,
    /// CPU 0 and the CPU at half the count are one core.
    Far,
}

/// A regular machine: each core has an L2, each package has one L3 and is one NUMA node. Core ids
/// repeat per package, and have a gap, as real ones do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Regular {
    pub(crate) packages: u32,
    pub(crate) cores: u32,
    pub(crate) threads: u32,
    pub(crate) siblings: Siblings,
}

/// A saved `devices/system` that lives as long as this value. Tests change the part that they are
/// about.
pub(crate) struct Tree {
    dir: tempfile::TempDir,
}

impl Tree {
    pub(crate) fn empty() -> Tree {
        Tree { dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn regular(machine: Regular) -> Tree {
        let Regular { packages, cores, threads, .. } = machine;
        let all = packages * cores * threads;
        let tree = Tree::empty();
        tree.write("cpu/possible", format!("0-{}", all - 1));
        tree.write("cpu/present", format!("0-{}", all - 1));
        tree.write("cpu/online", format!("0-{}", all - 1));
        tree.write("cpu/isolated", "");
        for package in 0..packages {
            let in_package = machine.set(|at| at.0 == package);
            tree.write(&format!("node/node{package}/cpulist"), &in_package);
            for core in 0..cores {
                let in_core = machine.set(|at| (at.0, at.1) == (package, core));
                for cpu in in_core.parse::<CpuSet>().unwrap().iter() {
                    let topology = format!("cpu/cpu{cpu}/topology");
                    let core_id = if core > 0 { core + 1 } else { 0 };
                    tree.write(&format!("{topology}/core_id"), core_id);
                    tree.write(&format!("{topology}/physical_package_id"), package);
                    tree.write(&format!("{topology}/thread_siblings_list"), &in_core);
                    tree.cache(cpu.number(), 2, 2, "Unified", &in_core);
                    tree.cache(cpu.number(), 3, 3, "Unified", &in_package);
                }
            }
        }
        tree
    }

    /// Writes one cache of one CPU.
    pub(crate) fn cache(&self, cpu: u32, index: u32, level: u32, kind: &str, shared: &str) {
        let dir = format!("cpu/cpu{cpu}/cache/index{index}");
        self.write(&format!("{dir}/level"), level);
        self.write(&format!("{dir}/type"), kind);
        self.write(&format!("{dir}/shared_cpu_list"), shared);
    }

    /// Writes a file, as the kernel does: with a newline at its end.
    pub(crate) fn write(&self, path: &str, text: impl ToString) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{}\n", text.to_string())).unwrap();
    }

    /// Removes a file or folder.
    pub(crate) fn remove(&self, path: &str) {
        let path = self.dir.path().join(path);
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap()
        } else {
            fs::remove_file(path).unwrap()
        }
    }

    /// Takes CPUs offline as the kernel does: without topology and cache folders of their own, and
    /// missing from the lists of others.
    pub(crate) fn offline(&self, cpus: &str) {
        let gone: CpuSet = cpus.parse().unwrap();
        for cpu in &gone {
            self.remove(&format!("cpu/cpu{cpu}/topology"));
            self.remove(&format!("cpu/cpu{cpu}/cache"));
            self.write(&format!("cpu/cpu{cpu}/online"), 0);
        }
        let mut lists = vec![self.dir.path().join("cpu/online")];
        find(self.dir.path(), "_list", &mut lists);
        find(self.dir.path(), "cpulist", &mut lists);
        for list in lists {
            let set: CpuSet = fs::read_to_string(&list).unwrap().parse().unwrap();
            fs::write(&list, format!("{}\n", set.difference(&gone))).unwrap();
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn read(&self) -> Topology {
        Topology::from_sysfs(self.path()).unwrap()
    }
}

impl Regular {
    /// Returns package, core and thread of a CPU.
    fn place(self, cpu: u32) -> (u32, u32, u32) {
        let all_cores = self.packages * self.cores;
        let (core, thread) = match self.siblings {
            Siblings::Adjacent => (cpu / self.threads, cpu % self.threads),
            Siblings::Far => (cpu % all_cores, cpu / all_cores),
        };
        (core / self.cores, core % self.cores, thread)
    }

    fn set(self, wanted: impl Fn((u32, u32, u32)) -> bool) -> String {
        let all = self.packages * self.cores * self.threads;
        (0..all)
            .filter(|&cpu| wanted(self.place(cpu)))
            .map(CpuId::new)
            .collect::<CpuSet>()
            .to_string()
    }
}

fn find(dir: &Path, suffix: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            find(&path, suffix, found);
        } else if path.to_str().unwrap().ends_with(suffix) {
            found.push(path);
        }
    }
}
