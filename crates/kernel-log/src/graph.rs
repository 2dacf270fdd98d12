//! The graph of devices that wait for each other, with the source of each edge.

use corewise_timeline::EdgeKind;
use std::collections::{BTreeMap, HashSet};
use std::fmt;

/// Dependencies between devices, by name, and the drivers of devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceGraph {
    edges: Vec<GraphEdge>,
    /// Driver of each device for which it is known.
    pub drivers: BTreeMap<String, String>,
}

/// One dependency: `supplier` probes before `consumer`, and shuts down after it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct GraphEdge {
    /// Device that is needed: a supplier, or a parent.
    pub supplier: String,
    /// Device that needs it: a consumer, or a child.
    pub consumer: String,
    /// Relation between the two.
    pub kind: EdgeKind,
    /// Source of the edge.
    pub source: EdgeSource,
}

/// The source of an edge. Earlier variants are better proof than later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum EdgeSource {
    /// A file of dependencies, written by hand or by a program.
    File,
    /// A sysfs tree.
    Sysfs,
    /// A line `Linked as a consumer to`.
    LinkLine,
    /// A probe that was deferred because a supplier was not ready.
    Deferral,
    /// A line that names the parent.
    ParentLine,
    /// A line with the buses behind a PCI bridge.
    BridgeLine,
    /// A device's name that is a path.
    Name,
}

impl EdgeSource {
    /// Returns a few words for people.
    pub fn as_str(self) -> &'static str {
        match self {
            EdgeSource::File => "dependency file",
            EdgeSource::Sysfs => "sysfs",
            EdgeSource::LinkLine => "device link lines",
            EdgeSource::Deferral => "deferral lines",
            EdgeSource::ParentLine => "parent in line",
            EdgeSource::BridgeLine => "PCI bridge lines",
            EdgeSource::Name => "device names",
        }
    }
}

impl DeviceGraph {
    /// Creates a graph without devices.
    pub fn new() -> DeviceGraph {
        DeviceGraph::default()
    }

    /// Returns all edges, in the order in which they were added.
    pub fn edges(&self) -> &[GraphEdge] {
        &self.edges
    }

    /// Adds an edge. A device does not depend on itself: such an edge is ignored. An edge that is
    /// added twice counts once.
    pub fn add(
        &mut self,
        supplier: impl Into<String>,
        consumer: impl Into<String>,
        kind: EdgeKind,
        source: EdgeSource,
    ) {
        let (supplier, consumer) = (supplier.into(), consumer.into());
        if supplier != consumer {
            self.edges.push(GraphEdge { supplier, consumer, kind, source });
        }
    }

    /// Adds the edges and drivers of another graph, and returns the new edges.
    pub fn merge(&mut self, other: &DeviceGraph) -> Vec<GraphEdge> {
        let mut known: HashSet<(String, String)> =
            self.edges.iter().map(|e| (e.supplier.clone(), e.consumer.clone())).collect();
        let mut new = Vec::new();
        for edge in &other.edges {
            if known.insert((edge.supplier.clone(), edge.consumer.clone())) {
                new.push(edge.clone());
            }
        }
        self.edges.extend(new.iter().cloned());
        for (device, driver) in &other.drivers {
            self.drivers.entry(device.clone()).or_insert_with(|| driver.clone());
        }
        new
    }

    /// Reads a file of dependencies. Each line is one of
    ///
    /// ```text
    /// # a comment
    /// CONSUMER: SUPPLIER [SUPPLIER…]     # CONSUMER needs each SUPPLIER
    /// CHILD ^ PARENT                     # PARENT is the device that CHILD is part of
    /// DEVICE = DRIVER                    # DEVICE is driven by DRIVER
    /// ```
    ///
    /// A name with blanks stands in double quotes. The colon has a blank behind it (names have
    /// colons of their own), or ends the line.
    ///
    /// # Errors
    ///
    /// Fails if a line is none of these. The error names the line and what was expected.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewise_kernel_log::DeviceGraph;
    ///
    /// let graph = DeviceGraph::from_text(
    ///     "fa00000.mmc: 601000.gpio regulator-5\n\
    ///      0000:01:00.0 ^ 0000:00:06.0\n\
    ///      0000:01:00.0 = nvme\n",
    /// )?;
    /// assert_eq!(graph.edges().len(), 3);
    /// assert_eq!(graph.drivers["0000:01:00.0"], "nvme");
    /// # Ok::<(), corewise_kernel_log::DependencyError>(())
    /// ```
    pub fn from_text(text: &str) -> Result<DeviceGraph, DependencyError> {
        let mut graph = DeviceGraph::new();
        for (i, line) in text.lines().enumerate() {
            let error = |reason| DependencyError { line: i + 1, text: line.to_owned(), reason };
            let words = words(line).map_err(error)?;
            let bare = |w: &Word| (!w.quoted).then_some(w.text.clone());
            let signs: Vec<Option<String>> = words.iter().map(bare).collect();
            match (&words[..], signs.get(1).and_then(Option::as_deref)) {
                ([], _) => {}
                ([child, _, parent], Some("^")) => {
                    graph.add(&parent.text, &child.text, EdgeKind::Parent, EdgeSource::File);
                }
                ([device, _, driver], Some("=")) => {
                    graph.drivers.insert(device.text.clone(), driver.text.clone());
                }
                (_, Some("^" | "=")) => {
                    return Err(error("expected one name on each side of the sign"));
                }
                ([consumer, suppliers @ ..], _) if consumer.colon => {
                    for supplier in suppliers {
                        graph.add(
                            &supplier.text,
                            &consumer.text,
                            EdgeKind::Supplier,
                            EdgeSource::File,
                        );
                    }
                }
                _ => {
                    return Err(error(
                        "expected \"CONSUMER: SUPPLIER…\", \"CHILD ^ PARENT\" or \"DEVICE = DRIVER\"",
                    ));
                }
            }
        }
        Ok(graph)
    }
}

struct Word {
    text: String,
    quoted: bool,
    /// True if a colon stood behind the name. The colon is not part of it.
    colon: bool,
}

fn words(line: &str) -> Result<Vec<Word>, &'static str> {
    let mut words: Vec<Word> = Vec::new();
    let mut rest = line.trim();
    while !rest.is_empty() && !rest.starts_with('#') {
        if let Some(inside) = rest.strip_prefix('"') {
            let (text, behind) = inside.split_once('"').ok_or("a quote is not closed")?;
            let colon = behind.starts_with(':');
            words.push(Word { text: text.to_owned(), quoted: true, colon });
            rest = behind.strip_prefix(':').unwrap_or(behind);
        } else {
            let (word, behind) =
                rest.split_at(rest.find(char::is_whitespace).unwrap_or(rest.len()));
            let text = word.strip_suffix(':').filter(|_| words.is_empty()).unwrap_or(word);
            let colon = text.len() < word.len();
            words.push(Word { text: text.to_owned(), quoted: false, colon });
            rest = behind;
        }
        rest = rest.trim_start();
    }
    if words.iter().any(|w| w.text.is_empty()) {
        return Err("a name is empty");
    }
    Ok(words)
}

/// An invalid line of a dependency file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DependencyError {
    /// The line's number; the first is 1.
    pub line: usize,
    /// The line.
    pub text: String,
    /// Expected syntax.
    pub reason: &'static str,
}

impl fmt::Display for DependencyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Debug: a text, quoted.
        write!(f, "line {} of the dependencies, {:?}: {}", self.line, self.text, self.reason)
    }
}

impl std::error::Error for DependencyError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(text: &str) -> Vec<(String, String, EdgeKind)> {
        let graph = DeviceGraph::from_text(text).unwrap();
        let edge = |e: &GraphEdge| (e.supplier.clone(), e.consumer.clone(), e.kind);
        graph.edges().iter().map(edge).collect()
    }

    #[test]
    fn a_dependency_file_names_suppliers_parents_and_drivers() {
        let text = "\n# all of it\nmmc: gpio clk # two\n00:06.0:pcie001 ^ 00:06.0\nlone:\n";
        assert_eq!(
            edges(text),
            [
                ("gpio".into(), "mmc".into(), EdgeKind::Supplier),
                ("clk".into(), "mmc".into(), EdgeKind::Supplier),
                ("00:06.0".into(), "00:06.0:pcie001".into(), EdgeKind::Parent),
            ]
        );
        let graph = DeviceGraph::from_text("a = nvme").unwrap();
        assert_eq!(graph.drivers["a"], "nvme");
    }

    #[test]
    fn a_name_with_blanks_stands_in_quotes() {
        assert_eq!(
            edges("\"Fixed MDIO bus.0\": \"a ^ b\" c"),
            [
                ("a ^ b".into(), "Fixed MDIO bus.0".into(), EdgeKind::Supplier),
                ("c".into(), "Fixed MDIO bus.0".into(), EdgeKind::Supplier),
            ]
        );
    }

    #[test]
    fn a_line_that_is_none_of_the_forms_is_named() {
        for (text, line) in
            [("a: b\nc d", 2), ("a ^", 1), ("a = b c", 1), ("\"a: b", 1), ("a: \"\"", 1), (":", 1)]
        {
            let error = DeviceGraph::from_text(text).unwrap_err();
            assert_eq!(error.line, line, "{text}: {error}");
        }
        let error = DeviceGraph::from_text("x y").unwrap_err().to_string();
        assert!(error.contains("CONSUMER: SUPPLIER"), "{error}");
    }

    #[test]
    fn an_edge_that_is_known_or_leads_to_itself_is_not_added_again() {
        let mut graph = DeviceGraph::from_text("a: b").unwrap();
        let other = DeviceGraph::from_text("a: b a c c").unwrap();
        assert_eq!(graph.merge(&other).len(), 1);
        assert_eq!(graph.edges().len(), 2);
    }
}
