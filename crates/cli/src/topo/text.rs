//! The text of `corewise topo`: a summary, groups of equal CPUs, pods, shards.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use corewise::timeline::markup;
use corewise::topology::{AffinityScope, CpuId, CpuSet};
use corewise_server::units;

use super::report::{Cpu, Report};
use super::{alike, count};
use crate::screen::{FAINT, TITLE, styled};

/// Returns the text, in lines of at most `width` columns as far as words allow.
pub(super) fn render(report: &Report, remarks: &[String], width: usize) -> String {
    let mut out = String::new();
    // Writing to a String can't fail.
    let _ = summary(&mut out, report, remarks, width)
        .and_then(|()| groups(&mut out, report))
        .and_then(|()| pods(&mut out, report, width))
        .and_then(|()| shards(&mut out, report, width));
    out
}

fn summary(
    out: &mut String,
    report: &Report,
    remarks: &[String],
    width: usize,
) -> std::fmt::Result {
    let online = || report.cpus.iter().filter(|cpu| cpu.online);
    let distinct = |key: fn(&Cpu) -> Option<u32>| {
        let mut seen: Vec<u32> = online().filter_map(key).collect();
        seen.sort_unstable();
        seen.dedup();
        seen.len()
    };
    writeln!(out, "{}", styled(TITLE, &report.source))?;
    let counts = [
        count(online().count(), "CPU"),
        count(distinct(|cpu| cpu.core), "core"),
        count(distinct(|cpu| cpu.llc), "last-level cache"),
        count(distinct(|cpu| cpu.package), "package"),
        count(report.nodes.len(), "NUMA node"),
    ];
    for line in markup::wrap(&counts.join(", "), width.saturating_sub(2), 0) {
        writeln!(out, "  {line}")?;
    }
    let offline = report.cpus.iter().filter(|c| !c.online);
    let offline: CpuSet = offline.map(|c| CpuId::new(c.cpu)).collect();
    if !offline.is_empty() {
        writeln!(out, "  offline: CPUs {offline}")?;
    }
    let all: CpuSet = online().map(|cpu| CpuId::new(cpu.cpu)).collect();
    let allowed = report.allowed.parse::<CpuSet>().is_ok_and(|allowed| all.is_subset(&allowed));
    if !allowed {
        writeln!(out, "  this process may use CPUs {}", report.allowed)?;
    }
    if !report.isolated.is_empty() {
        writeln!(out, "  isolated from general work: CPUs {}", report.isolated)?;
    }
    for remark in remarks {
        for line in markup::wrap(remark, width.saturating_sub(2), 2) {
            writeln!(out, "  {line}")?;
        }
    }
    Ok(())
}

/// State of a CPU, in the order of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum CpuState {
    Online,
    /// Forbidden for this process.
    NotAllowed,
    Offline,
}

/// Writes one row for the CPUs that share node, package, cache, kind and state.
fn groups(out: &mut String, report: &Report) -> std::fmt::Result {
    let mut rows: BTreeMap<_, (BTreeSet<u32>, BTreeSet<u32>)> = BTreeMap::new();
    let allowed: CpuSet = report.allowed.parse().unwrap_or_default();
    for cpu in &report.cpus {
        let state = match cpu.online {
            true if allowed.contains(CpuId::new(cpu.cpu)) => CpuState::Online,
            true => CpuState::NotAllowed,
            false => CpuState::Offline,
        };
        let key = (state, cpu.node, cpu.package, cpu.llc, cpu.kind);
        let (cpus, cores) = rows.entry(key).or_default();
        cpus.insert(cpu.cpu);
        if let Some(core) = cpu.core {
            cores.insert(core);
        }
    }
    let number = |n: Option<u32>| n.map_or("-".to_string(), |n| n.to_string());
    let rows = rows.into_iter().map(|((state, node, package, llc, _), (cpus, cores))| {
        let cache = llc.and_then(|llc| report.caches.iter().find(|cache| cache.llc == llc));
        let cache = match cache.and_then(|cache| cache.level) {
            Some(level) => format!("L{level} {}", number(llc)),
            None => number(llc),
        };
        let set = |set: &BTreeSet<u32>| match (set.len(), units::list(set.iter().copied())) {
            (0, _) => "-".to_string(),
            (1, one) => one,
            (n, all) => format!("{all} ({n})"),
        };
        let state = match state {
            CpuState::Online => "online",
            CpuState::NotAllowed => "online, not allowed",
            CpuState::Offline => "offline",
        };
        [number(node), number(package), cache, set(&cores), set(&cpus), state.to_string()]
    });
    let head = ["node", "package", "cache", "cores", "CPUs", "state"].map(str::to_string);
    let rows: Vec<[String; 6]> = std::iter::once(head).chain(rows).collect();
    let widths: Vec<usize> =
        (0..6).map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0)).collect();
    writeln!(out)?;
    for (index, row) in rows.iter().enumerate() {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            write!(line, "  {cell:<width$}")?;
        }
        let line = line.trim_end();
        match index {
            0 => writeln!(out, "{}", styled(FAINT, line))?,
            _ => writeln!(out, "{line}")?,
        }
    }
    Ok(())
}

fn pods(out: &mut String, report: &Report, width: usize) -> std::fmt::Result {
    writeln!(out, "\n{}", styled(TITLE, "Pods"))?;
    writeln!(out, "{}", styled(FAINT, "  scope        pods  CPUs of each"))?;
    for (scope, pods) in &report.scopes {
        let words: Vec<&str> = pods.iter().map(|pod| pod.cpus.as_str()).collect();
        let head = format!("  {:<11} {:>5}  ", scope.name(), pods.len());
        // Pods of one CPU each need no list.
        let fine = matches!(scope, AffinityScope::Cpu | AffinityScope::Smt);
        wrap(out, &head, &words, width, if fine { 1 } else { 6 })?;
    }
    Ok(())
}

fn shards(out: &mut String, report: &Report, width: usize) -> std::fmt::Result {
    let shards = styled(TITLE, "Shards");
    let size = count(report.cache_shard_size as usize, "core");
    writeln!(out, "\n{shards} of about {size}, at least 2 if the cache has them")?;
    let caches = report.caches.iter().map(|cache| (cache.llc, cache.cores, &cache.shards[..]));
    for (caches, cores, shards) in alike(caches) {
        let plural = if caches.len() == 1 { "cache" } else { "caches" };
        let head = format!(
            "  {plural} {}: {} in {}: ",
            units::list(caches),
            count(cores as usize, "core"),
            count(shards.len(), "shard")
        );
        let words: Vec<String> = shards.iter().map(u32::to_string).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        wrap(out, &head, &words, width, 4)?;
    }
    Ok(())
}

/// Writes `words` after `head`, with further lines below the first word, in at most `most_lines`.
/// The last line says how many words are left out.
fn wrap(
    out: &mut String,
    head: &str,
    words: &[&str],
    width: usize,
    most_lines: usize,
) -> std::fmt::Result {
    let mut line = head.to_string();
    let mut lines = 1;
    for (index, word) in words.iter().enumerate() {
        let empty = line.len() == head.len();
        let gap = if empty { 0 } else { 2 };
        // The last line needs room for the number of words that are left out.
        let more = format!("  and {} more", words.len() - index);
        let last = lines == most_lines && index + 1 < words.len();
        let need = line.len() + gap + word.len() + if last { more.len() } else { 0 };
        if need > width && !empty {
            if lines == most_lines {
                line.push_str(&more);
                break;
            }
            writeln!(out, "{}", line.trim_end())?;
            line = " ".repeat(head.len());
            lines += 1;
        } else {
            line.push_str(&" ".repeat(gap));
        }
        line.push_str(word);
    }
    writeln!(out, "{}", line.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapped(words: &[&str], width: usize) -> String {
        let mut out = String::new();
        wrap(&mut out, "head: ", words, width, 4).unwrap();
        out
    }

    #[test]
    fn words_go_below_the_first_one() {
        assert_eq!(wrapped(&["a", "b"], 20), "head: a  b\n");
        assert_eq!(wrapped(&["0-15", "16-31", "32"], 17), "head: 0-15  16-31\n      32\n");
        assert_eq!(wrapped(&[], 20), "head:\n");
    }

    #[test]
    fn pods_that_do_not_fit_are_counted() {
        let words: Vec<String> = (0..400).map(|n| n.to_string()).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let text = wrapped(&words, 40);
        assert_eq!(text.lines().count(), 4);
        assert!(text.lines().all(|line| line.len() <= 40), "{text}");
        let last = text.lines().last().unwrap();
        let shown = text.replace("head:", "").split_whitespace().count() - 3;
        assert!(last.ends_with(&format!("and {} more", 400 - shown)), "{text}");
    }
}
