//! Where and how a run was made: machine, kernel, commit, date, command.

use std::time::SystemTime;

use corewise_topology::Topology;

/// Name and value of each, for the head of a report.
pub(crate) fn gather(topology: &Topology) -> Vec<(String, String)> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let arguments: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let facts = [
        ("Machine", machine(&read("/proc/cpuinfo"), &read("/proc/meminfo"), topology)),
        ("Kernel", format!("Linux {}", read("/proc/sys/kernel/osrelease").trim())),
        ("Governor", governor(&read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"))),
        ("Commit", this_commit()),
        ("Date", now()),
        ("Command", command(&arguments)),
    ];
    facts.map(|(name, value)| (name.to_owned(), value)).into()
}

/// The commit that this program was built from.
pub(crate) fn this_commit() -> String {
    commit(env!("COREWISE_COMMIT"))
}

/// The moment, in UTC.
pub(crate) fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}

fn machine(cpuinfo: &str, meminfo: &str, topology: &Topology) -> String {
    let field = |text: &str, name: &str| {
        let line = text
            .lines()
            .find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let count =
        |n: usize, noun: &str| if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") };
    let mut words = vec![field(cpuinfo, "model name").unwrap_or_else(|| "unnamed CPU".to_owned())];
    words.push(count(topology.allowed().len(), "CPU"));
    words.push(count(topology.core_count(), "core"));
    words.push(count(topology.llcs().len(), "last-level cache"));
    words.push(count(topology.nodes().len(), "NUMA node"));
    let memory = field(meminfo, "MemTotal")
        .and_then(|text| text.strip_suffix(" kB").and_then(|text| text.trim().parse::<u64>().ok()));
    words.extend(memory.map(|kib| format!("{:.1} GiB of memory", kib as f64 / (1 << 20) as f64)));
    let flags = field(cpuinfo, "flags").unwrap_or_default();
    if flags.split(' ').any(|flag| flag == "hypervisor") {
        words.push("a virtual machine".to_owned());
    }
    words.join(", ")
}

fn governor(text: &str) -> String {
    match text.trim() {
        "" => "unknown (the system or its host decides)".to_owned(),
        name => name.to_owned(),
    }
}

/// As git describes it.
fn commit(described: &str) -> String {
    match described.strip_suffix("-dirty") {
        _ if described.is_empty() => "unknown (built outside of a repository)".to_owned(),
        Some(commit) => format!("{commit}, with uncommitted changes"),
        None => described.to_owned(),
    }
}

/// `corewise-bench` and its words, as a shell takes them.
fn command(arguments: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    let words = arguments.iter().map(|word| match word.chars().all(plain) && !word.is_empty() {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    });
    std::iter::once("corewise-bench".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_told_from_what_the_kernel_says() {
        let topology = Topology::synthetic("l3:1 core:2 pu:1").unwrap();
        let cpuinfo = "processor\t: 0\nmodel name\t: Fast: One\nflags\t\t: fpu hypervisor sse\n";
        assert_eq!(
            machine(cpuinfo, "MemTotal:       25165824 kB\n", &topology),
            "Fast: One, 2 CPUs, 2 cores, 1 last-level cache, 1 NUMA node, 24.0 GiB of memory, a \
             virtual machine"
        );
        assert!(machine("", "", &topology).starts_with("unnamed CPU, 2 CPUs, "));
    }

    #[test]
    fn a_commit_with_changes_says_so() {
        assert_eq!(commit("3b8f966"), "3b8f966");
        assert_eq!(commit("3b8f966-dirty"), "3b8f966, with uncommitted changes");
        assert!(commit("").starts_with("unknown"));
    }

    #[test]
    fn a_command_can_be_pasted() {
        let words = ["--report", "a b.html", "it's", ""].map(str::to_owned);
        assert_eq!(command(&words), r"corewise-bench --report 'a b.html' 'it'\''s' ''");
    }
}
