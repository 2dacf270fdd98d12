//! The target for descriptions of machines: hwloc's XML exports and its synthetic language.

use corewise_topology::{AffinityScope, CpuSet, Pods, Topology, TopologyError};

use crate::seeds::Seed;

/// Reads these bytes as an XML export, if they begin like one, otherwise as a synthetic
/// description.
///
/// # Panics
/// If a machine contradicts itself, the same bytes give another one, or an error doesn't point into
/// the input.
pub fn topology(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let read = || match text.trim_start().starts_with('<') {
        true => Topology::from_xml_str(text, "input"),
        false => Topology::synthetic(text),
    };
    match read() {
        Ok(topology) => {
            agrees(&topology);
            assert_eq!(read().ok().as_ref(), Some(&topology), "another machine the second time");
        }
        Err(TopologyError::Xml { line, column, reason, .. }) => {
            let lines = text.split('\n').count();
            assert!((1..=lines).contains(&line), "line {line} of {lines}: {reason}");
            let length = text.split('\n').nth(line - 1).map_or(0, |line| line.chars().count());
            assert!((1..=length + 1).contains(&column), "column {column} of {length}: {reason}");
        }
        Err(TopologyError::Synthetic { token, position, reason, .. }) => {
            let rest: String = text.chars().skip(position - 1).collect();
            assert!(rest.starts_with(&token), "'{token}' is not at {position}: {reason}");
        }
        Err(TopologyError::NoCpu { .. }) => {}
        Err(other) => panic!("an error of another kind: {other}"),
    }
}

/// Checks that the facts about a machine agree with each other, and that its pods divide its CPUs.
fn agrees(topology: &Topology) {
    let cpus = topology.cpus();
    assert!(!cpus.is_empty() && cpus.is_sorted_by(|a, b| a.cpu < b.cpu));
    assert!(topology.allowed().is_subset(&topology.cpu_set()) && !topology.allowed().is_empty());
    for cpu in cpus {
        if let Some(llc) = cpu.llc {
            assert!(topology.llcs()[llc as usize].cpus.contains(cpu.cpu));
        }
        if let Some(node) = cpu.node {
            assert!(topology.node(node).is_some_and(|node| node.cpus.contains(cpu.cpu)));
        }
        assert!(!cpu.online || (cpu.core.is_some() && cpu.package.is_some() && cpu.llc.is_some()));
    }
    let pods = Pods::new(topology, 8);
    for scope in AffinityScope::ALL {
        let mut seen = CpuSet::new();
        for pod in pods.scope(scope) {
            assert!(!pod.cpus.is_empty() && !pod.cpus.intersects(&seen), "{scope}");
            seen = seen.union(&pod.cpus);
        }
        assert_eq!(&seen, topology.allowed(), "{scope}");
    }
}

const EXPORT: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x00000003" complete_cpuset="0x1,,0x0000000b" allowed_cpuset="0x00000003">
    <info name="Backend" value="a &lt;b&gt;"/>
    <object type="Package" os_index="0" cpuset="0x00000003">
      <object type="NUMANode" os_index="0" cpuset="0x00000003" complete_cpuset="0x0000000b">
        <page_type size="4096" count="262144"/>
      </object>
      <object type="L3Cache" depth="3" cache_type="0">
        <object type="L1iCache" depth="1" cache_type="2">
          <object type="Core" os_index="0">
            <object type="PU" os_index="0" cpuset="0x00000001"/>
            <object type="PU" os_index="1" cpuset="0x00000002"/>
          </object>
        </object>
      </object>
    </object>
  </object>
</topology>
"#;

/// Returns the seeds of this target.
pub(crate) fn seeds() -> Vec<Seed> {
    let laughs = "<!DOCTYPE topology [<!ENTITY a \"ha\"><!ENTITY b \"&a;&a;&a;\">]>\n<topology version=\"&b;\"/>";
    let object = "<object type=\"Group\">";
    vec![
        ("export", EXPORT.into()),
        ("export-of-version-1", EXPORT.replace(" version=\"2.0\"", "").into()),
        ("export-cut-off", EXPORT[..700].into()),
        ("entities", laughs.into()),
        ("deep", ["<topology version=\"2.0\">", &object.repeat(200)].concat().into()),
        ("levels", "package:2 numa:2 l3:2(size=1MB) l2:2 core:1 pu:2".into()),
        ("numbers", "2 2 2 2 2".into()),
        ("attached", "package:2 [numa(memory=1GB indexes=5,2)] core:2 pu:2".into()),
        ("list", "core:4 pu:2(indexes=0,2,4,6,1,3,5,100)".into()),
        ("interleaved-by-type", "group:2 numa:2 core:3 pu:2(indexes=numa:group2:core)".into()),
        ("interleaved-by-number", "numa:2 core:3 pu:2(indexes=2*6:1*2)".into()),
    ]
}
