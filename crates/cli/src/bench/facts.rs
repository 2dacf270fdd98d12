//! Where and how a run was made: machine, kernel, commit, date, command.

use std::time::{SystemTime, UNIX_EPOCH};

use corewise::topology::Topology;

use crate::units;

/// Name and value of each, for the head of a report.
pub(super) fn gather(topology: &Topology) -> Vec<(String, String)> {
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
pub(super) fn this_commit() -> String {
    commit(env!("COREWISE_COMMIT"))
}

/// The moment, in UTC.
pub(super) fn now() -> String {
    date(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
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

/// `corewise` and its words, as a shell takes them.
fn command(arguments: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    let words = arguments.iter().map(|word| match word.chars().all(plain) && !word.is_empty() {
        true => word.clone(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    });
    std::iter::once("corewise".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

/// The moment so many seconds after 1970 began, in UTC.
fn date(seconds: u64) -> String {
    let (day, [hour, minute, _]) = units::utc(seconds);
    format!("{day} {hour:02}:{minute:02} UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, shown) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_400, "2000-02-29 00:00 UTC"),
            (951_868_799, "2000-02-29 23:59 UTC"),
            (951_868_800, "2000-03-01 00:00 UTC"),
            (1_735_689_599, "2024-12-31 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(date(seconds), shown);
        }
    }

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
        let words = ["bench", "--report", "a b.html", "it's", ""].map(str::to_owned);
        assert_eq!(command(&words), r"corewise bench --report 'a b.html' 'it'\''s' ''");
    }
}
