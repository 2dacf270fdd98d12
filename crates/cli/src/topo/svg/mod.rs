//! `corewise topo --svg`: the machine as a picture. Boxes are packages, nodes, caches and shards;
//! each CPU is a cell with its number, coloured by its pod of the chosen scope.
//!
//! The picture is a card with a light ground of its own, so it reads the same on a dark page. It
//! fetches nothing and runs no script, and the same machine always gives the same bytes. Colour is
//! never the only sign: pods carry names, and states have shapes.

mod draw;
mod layout;
mod tree;

use std::collections::BTreeSet;

use corewise::timeline::markup;
use corewise::topology::{AffinityScope, CpuSet, Pods, Topology};
use corewise_server::units;

use draw::Canvas;
use layout::Notes;
use tree::Tree;

const MARGIN: u32 = 16;
/// Width of the picture: enough for 64 shards in rows of eight.
const WIDTH: u32 = 1200;
/// Least width: the title and the lines below it need this room.
const LEAST_WIDTH: u32 = 720;
const LINE: u32 = 18;
/// Largest number of pods in the description for people who can't see the picture.
const DESCRIBED: usize = 64;
/// Largest number of lines about shards below the machine: large machines have many caches of few
/// sizes.
const SHARD_LINES: usize = 12;

/// Returns the picture as one SVG document.
pub(super) fn render(topology: &Topology, pods: &Pods, scope: AffinityScope) -> String {
    let tree = Tree::new(topology, pods, scope);
    let notes = Notes { cores: scope == AffinityScope::Smt, cpus: scope == AffinityScope::Cpu };
    let mut machine = layout::place(&tree.root, WIDTH - 2 * MARGIN, notes);
    let width = (machine.size.width + 2 * MARGIN).max(LEAST_WIDTH);
    let columns = layout::chars(width - 2 * MARGIN);

    let (title, said) = heading(topology, pods, scope);
    let mut canvas = Canvas::new(width, topology, pods, scope, notes);
    // Letters of the title are half as large again.
    canvas.title(&markup::fit(&title, columns * 2 / 3));
    for line in markup::wrap(&said, columns, 0) {
        canvas.text("quiet", &line);
    }
    canvas.legend();
    machine.shift(MARGIN, canvas.bottom());
    canvas.machine(&machine);
    for line in below(topology, pods, &tree, scope) {
        for line in markup::wrap(&line, columns, 4) {
            canvas.text("", &line);
        }
    }
    canvas.finish(&title, &description(&said, pods, scope))
}

fn heading(topology: &Topology, pods: &Pods, scope: AffinityScope) -> (String, String) {
    let source = topology.source().to_string();
    let title = markup::printable(&source).into_owned();
    let count = super::count;
    let (online, offline): (Vec<_>, Vec<_>) = topology.cpus().iter().partition(|cpu| cpu.online);
    let cores: BTreeSet<u32> = online.iter().filter_map(|cpu| cpu.core).collect();
    let mut said = vec![
        count(online.len(), "CPU"),
        count(cores.len(), "core"),
        count(topology.llcs().len(), "last-level cache"),
        count(topology.package_count(), "package"),
        count(topology.nodes().len(), "NUMA node"),
    ];
    if !offline.is_empty() {
        said.push(count(offline.len(), "offline CPU"));
    }
    said.push(format!("{} of scope {scope}", count(pods.scope(scope).len(), "pod")));
    (title, said.join(", "))
}

/// Returns the lines below the machine: how caches are divided, and which pods have no box.
fn below(topology: &Topology, pods: &Pods, tree: &Tree, scope: AffinityScope) -> Vec<String> {
    let mut lines = vec![format!(
        "Shards of about {}, at least 2 if the cache has them (scope cache_shard):",
        super::count(pods.shard_size() as usize, "core")
    )];
    let alike = super::alike(pods.shard_layouts().map(|(llc, l)| (llc, l.cores(), l.shards())));
    let more = alike.len().saturating_sub(SHARD_LINES);
    for (caches, cores, shards) in alike.into_iter().take(SHARD_LINES) {
        let plural = if caches.len() == 1 { "cache" } else { "caches" };
        lines.push(format!(
            "{plural} {}: {} in {}: {}",
            units::list(caches),
            super::count(cores as usize, "core"),
            super::count(shards.len(), "shard"),
            runs(shards)
        ));
    }
    if more > 0 {
        lines.push(format!("and {more} other kinds of caches"));
    }
    lines.extend(super::remarks(topology));
    if !tree.scattered.is_empty() {
        let scattered = tree.scattered.iter().filter_map(|pod| {
            pods.scope(scope).get(*pod as usize).map(|p| format!("pod {pod}: CPUs {}", p.cpus))
        });
        lines.push(format!(
            "Pods whose CPUs lie in several boxes: {}",
            scattered.collect::<Vec<_>>().join("; ")
        ));
    }
    lines
}

/// Returns equal neighbours counted: `8 8 8 7` as `3 × 8, 7`.
fn runs(shards: &[u32]) -> String {
    let chunks = shards.chunk_by(|a, b| a == b);
    let words = chunks.map(|run| match run.len() {
        1 => run[0].to_string(),
        n => format!("{n} × {}", run[0]),
    });
    words.collect::<Vec<_>>().join(", ")
}

/// Returns the picture in words.
fn description(said: &str, pods: &Pods, scope: AffinityScope) -> String {
    let pods = pods.scope(scope);
    let mut words = format!("{said}. ");
    for pod in pods.iter().take(DESCRIBED) {
        words.push_str(&format!("Pod {}: {}. ", pod.pod, cpus(&pod.cpus)));
    }
    if pods.len() > DESCRIBED {
        words.push_str(&format!("And {} more.", pods.len() - DESCRIBED));
    }
    words.trim_end().to_string()
}

fn cpus(set: &CpuSet) -> String {
    format!("{} {set}", if set.len() == 1 { "CPU" } else { "CPUs" })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(spec: &str, scope: AffinityScope) -> String {
        let topology = Topology::synthetic(spec).unwrap();
        render(&topology, &Pods::new(&topology, 8), scope)
    }

    /// Returns the number of times that `what` occurs.
    fn occurs(picture: &str, what: &str) -> usize {
        picture.matches(what).count()
    }

    #[test]
    fn each_cpu_and_each_pod_is_drawn_once_at_every_scope() {
        for spec in [
            "core:1 pu:1",
            "l3:1 core:72 pu:1",
            "l3:1 core:512 pu:1",
            "package:11 l3:1 core:8 pu:1",
            "numa:2 l3:1 core:36 pu:2",
            "package:2 numa:2 l3:2 core:3 pu:2",
        ] {
            let topology = Topology::synthetic(spec).unwrap();
            let pods = Pods::new(&topology, 8);
            for scope in AffinityScope::ALL {
                let picture = render(&topology, &pods, scope);
                for cpu in topology.cpus() {
                    let cell = format!(">{}</text>", cpu.cpu);
                    assert_eq!(occurs(&picture, &cell), 1, "{spec}, {scope}: CPU {}", cpu.cpu);
                }
                assert_eq!(occurs(&picture, " id=\"pod-"), pods.scope(scope).len());
                for pod in pods.scope(scope) {
                    let id = format!(" id=\"pod-{}\"", pod.pod);
                    assert_eq!(occurs(&picture, &id), 1, "{spec}, {scope}: pod {}", pod.pod);
                    let named = occurs(&picture, &format!(">pod {}<", pod.pod))
                        + occurs(&picture, &format!(">p{}<", pod.pod));
                    assert_eq!(named, 1, "{spec}, {scope}: pod {}", pod.pod);
                }
                assert!(!picture.contains("several boxes"), "{spec}, {scope}");
                assert_eq!(picture, render(&topology, &pods, scope), "it is not deterministic");
            }
        }
    }

    #[test]
    fn the_machines_of_the_test_data_are_drawn_whole() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../topology/tests/data/xml");
        let mut drawn = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let topology = Topology::from_xml(&path).unwrap();
            for scope in AffinityScope::ALL {
                let pods = Pods::new(&topology, 8);
                let picture = render(&topology, &pods, scope);
                for cpu in topology.cpus() {
                    let cell = format!(">{}</text>", cpu.cpu);
                    assert_eq!(occurs(&picture, &cell), 1, "{}, {scope}", path.display());
                }
                assert_eq!(occurs(&picture, " id=\"pod-"), pods.scope(scope).len());
                assert!(!picture.contains("several boxes"), "{}, {scope}", path.display());
            }
            drawn += 1;
        }
        assert!(drawn >= 8, "only {drawn} machines in {folder}");
    }

    #[test]
    fn a_cpus_colour_is_that_of_its_pod() {
        let picture = picture("l3:1 core:16 pu:1", AffinityScope::CacheShard);
        let class_of = |cpu: u32| {
            let cell = picture.split(&format!("<title>CPU {cpu}, ")).nth(1).unwrap();
            cell.split("<rect class=\"").nth(1).unwrap().split('"').next().unwrap().to_string()
        };
        assert_eq!([class_of(0), class_of(7), class_of(8)], ["c0", "c0", "c1"]);
    }

    #[test]
    fn states_have_a_mark_and_a_word_and_only_those_that_occur() {
        let topology = Topology::synthetic("l3:1 core:16 pu:1").unwrap();
        let topology = topology.with_isolated(&"3".parse().unwrap());
        let topology = topology.with_allowed(&"0-7".parse().unwrap()).unwrap();
        let picture = render(&topology, &Pods::new(&topology, 8), AffinityScope::CacheShard);
        assert!(picture.contains("isolated from general work</text>"));
        assert!(picture.contains("not usable by this process</text>"));
        assert!(!picture.contains("offline"));
        // Each state stands once in the legend.
        assert_eq!(occurs(&picture, "class=\"apart\""), 2);
        assert_eq!(occurs(&picture, "class=\"out\""), 1 + 8);
        assert!(picture.contains(">CPU 3, core 3, package 0, cache 0, node 0, pod 0, isolated<"));
        assert!(picture.contains(">CPU 8, core 8, package 0, cache 0, node 0, not allowed<"));
    }

    #[test]
    fn names_are_escaped_and_the_picture_is_told_in_words() {
        // A folder's name may contain markup. A quote ends no attribute.
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("<script>&\"x\"\u{7}");
        for (file, text) in [("possible", "0"), ("present", "0"), ("online", "0"), ("isolated", "")]
        {
            let cpu = root.join("cpu");
            std::fs::create_dir_all(cpu.join("cpu0/topology")).unwrap();
            std::fs::write(cpu.join(file), format!("{text}\n")).unwrap();
        }
        let topology = Topology::from_sysfs(&root).unwrap();
        let picture = render(&topology, &Pods::new(&topology, 8), AffinityScope::System);
        assert!(picture.contains("&lt;script&gt;&amp;&quot;x&quot;"), "{picture}");
        assert!(!picture.contains("<script") && !picture.contains('\u{7}'));
        assert!(picture.contains("aria-labelledby=\"title desc\""));
        assert!(picture.contains("1 pod of scope system. Pod 0: CPU 0.</desc>"), "{picture}");
    }

    #[test]
    fn runs_of_equal_shards_are_counted() {
        assert_eq!(runs(&[8, 7, 7, 7, 7]), "8, 4 × 7");
        assert_eq!(runs(&[2]), "2");
    }
}
