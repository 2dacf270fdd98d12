//! The references between devices: duplicates, missing suppliers, parts claimed twice, cycles, and
//! the devices that a broken one takes along.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::drivers::may_share_a_part;
use super::export::Export;
use super::model::{Device, LeftOut, Manifest};
use super::problem::{Position, Problem, Subject};
use super::raw::{RawDevice, RawManifest};
use crate::text;

/// The devices of a manifest by index, and the known problem of each.
pub(super) struct Links<'m> {
    devices: &'m [RawDevice],
    /// Manifest of the running server to which these devices are added.
    server: Option<&'m Manifest>,
    /// Reason why a device can't be brought up; `None` while it can.
    bad: Vec<Option<String>>,
    /// Suppliers by index, each once, parts first.
    suppliers: Vec<Vec<usize>>,
    /// Names of the suppliers that the server already has, each once.
    suppliers_up: Vec<Vec<String>>,
    by_name: BTreeMap<&'m str, usize>,
    /// Name of the first device above each device that is below another one of this manifest.
    above: HashMap<&'m str, &'m str>,
    /// Device above each device that is below another one of the server.
    above_there: HashMap<&'m str, &'m Device>,
    /// Devices of the server by name.
    there: HashMap<&'m str, &'m Device>,
}

/// Limit of problems with unknown names that get advice: each compares the name with all others.
pub(super) const ADVISED: usize = 20;

/// Returns the subject of a device's problems.
pub(super) fn subject(device: &RawDevice) -> Subject {
    Subject::Device(match &device.name {
        Some(name) => Ok(name.value.clone()),
        None => Err(device.number),
    })
}

impl<'m> Links<'m> {
    /// Follows all names. Adds its findings to `problems`.
    pub(super) fn follow(
        raw: &'m RawManifest,
        server: Option<&'m Manifest>,
        problems: &mut Vec<Problem>,
    ) -> Links<'m> {
        let devices = raw.devices.as_slice();
        let why = "the device has an error of its own";
        let bad = devices.iter().map(|device| device.broken.then(|| why.to_string())).collect();
        let mut above = HashMap::new();
        for device in devices {
            let Some(name) = &device.name else { continue };
            for part in device.over.iter() {
                above.entry(part.value.as_str()).or_insert(name.value.as_str());
            }
        }
        let (mut there, mut above_there) = (HashMap::new(), HashMap::new());
        for device in server.into_iter().flat_map(|server| &server.devices) {
            there.entry(device.name.as_str()).or_insert(device);
            for part in device.driver.over() {
                above_there.entry(part.as_str()).or_insert(device);
            }
        }
        let mut links = Links {
            devices,
            server,
            above,
            above_there,
            there,
            bad,
            suppliers: vec![Vec::new(); devices.len()],
            suppliers_up: vec![Vec::new(); devices.len()],
            by_name: BTreeMap::new(),
        };
        links.names(problems);
        links.link(problems);
        links.claims(problems);
        links.cycles(problems);
        links
    }

    /// Marks device `index` as one that can't be brought up.
    pub(super) fn mark(&mut self, index: usize) {
        self.bad[index].get_or_insert_with(|| "the device has an error of its own".to_string());
    }

    pub(super) fn is_bad(&self, index: usize) -> bool {
        self.bad[index].is_some()
    }

    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// Returns true if the server already has a device of that name.
    pub(super) fn is_up(&self, name: &str) -> bool {
        self.there.contains_key(name)
    }

    /// Returns advice for a name that no device has.
    pub(super) fn meant(&self, name: &str) -> String {
        let up = self.server.into_iter().flat_map(|server| &server.devices);
        let here = self.by_name.keys().copied();
        let known: Vec<&str> = here.chain(up.map(|device| device.name.as_str())).collect();
        text::help(name, known, "declared devices")
    }

    /// Returns the names of the devices that must be up before `index`.
    pub(super) fn suppliers(&self, index: usize) -> Vec<String> {
        let these = self.suppliers[index].iter().map(|s| self.name(*s).to_string());
        these.chain(self.suppliers_up[index].iter().cloned()).collect()
    }

    /// Returns the device above that one, if there is one.
    pub(super) fn built_over(&self, name: &str) -> Option<&'m str> {
        let there = || self.above_there.get(name).map(|device| device.name.as_str());
        self.above.get(name).copied().or_else(there)
    }

    /// Removes all devices that depend on a bad one, directly or not. Returns each with the reason.
    pub(super) fn left_out(&mut self) -> Vec<LeftOut> {
        let mut consumers = vec![Vec::new(); self.devices.len()];
        for (index, suppliers) in self.suppliers.iter().enumerate() {
            suppliers.iter().for_each(|supplier| consumers[*supplier].push(index));
        }
        let bad = |index: &usize| self.is_bad(*index);
        let mut todo: VecDeque<usize> = (0..self.devices.len()).filter(bad).collect();
        while let Some(broken) = todo.pop_front() {
            for &index in &consumers[broken] {
                if !self.is_bad(index) {
                    let why = format!("it depends on '{}', which was left out", self.name(broken));
                    self.bad[index] = Some(why);
                    todo.push_back(index);
                }
            }
        }
        let why = self.bad.iter().enumerate();
        why.filter_map(|(index, why)| {
            why.clone().map(|why| LeftOut { subject: subject(&self.devices[index]), why })
        })
        .collect()
    }

    fn name(&self, index: usize) -> &'m str {
        self.devices[index].name.as_ref().map_or("", |name| name.value.as_str())
    }

    /// Checks names: each device needs one of its own that can be written in a URI and in a table.
    fn names(&mut self, problems: &mut Vec<Problem>) {
        for (index, device) in self.devices.iter().enumerate() {
            let Some(name) = &device.name else {
                // The missing name has been reported.
                self.mark(index);
                continue;
            };
            if let Err(message) = check_name(&name.value) {
                problems.push(Problem::new(name.place, subject(device), message));
                self.mark(index);
                continue;
            }
            if self.is_up(&name.value) {
                let message = "the server has a device of this name already";
                problems.push(Problem::new(name.place, subject(device), message));
                self.mark(index);
                continue;
            }
            if let Some(&first) = self.by_name.get(name.value.as_str()) {
                let line = self.devices[first].name.as_ref().map_or(0, |name| name.place.line);
                problems.push(
                    Problem::new(
                        name.place,
                        subject(device),
                        format!("the device on line {line} has the same name"),
                    )
                    .help("give each device a different name"),
                );
                // A reference to the name could mean either device, so neither comes up.
                self.mark(index);
                self.mark(first);
                continue;
            }
            self.by_name.insert(&name.value, index);
        }
    }

    /// Turns the names in `over` and `suppliers` into indices.
    fn link(&mut self, problems: &mut Vec<Problem>) {
        for (index, device) in self.devices.iter().enumerate() {
            let over = device.over.iter().map(|name| (name, "part"));
            let others = device.suppliers.iter().map(|name| (name, "supplier"));
            for (name, role) in over.chain(others) {
                let found = self.find(&name.value);
                let up = self.suppliers_up[index].contains(&name.value);
                let twice = up || found.is_some_and(|f| self.suppliers[index].contains(&f));
                match found {
                    _ if role == "part" && twice => {
                        problems.push(Problem::new(
                            name.place,
                            subject(device),
                            format!("names '{}' twice in 'over'", name.value),
                        ));
                        self.mark(index);
                    }
                    _ if twice => {}
                    Some(found) => self.suppliers[index].push(found),
                    None if self.is_up(&name.value) => {
                        self.suppliers_up[index].push(name.value.clone());
                    }
                    None => {
                        let message =
                            format!("the {role} '{}' is not a declared device", name.value);
                        let problem = Problem::new(name.place, subject(device), message);
                        let problem = match problems.len() < ADVISED {
                            true => problem.help(self.meant(&name.value)),
                            false => problem,
                        };
                        problems.push(problem);
                        self.mark(index);
                    }
                }
            }
        }
    }

    /// Checks that a device is a part of one other device only, since two of them would overwrite
    /// each other. Partitions may share a part.
    fn claims(&mut self, problems: &mut Vec<Problem>) {
        let mut claimed: BTreeMap<&str, usize> = BTreeMap::new();
        for (index, device) in self.devices.iter().enumerate() {
            for part in device.over.iter() {
                let first = *claimed.entry(&part.value).or_insert(index);
                let driver =
                    |index: usize| self.devices[index].driver.as_ref().map(|at| at.value.as_str());
                let shares = |one: usize, other: usize| {
                    driver(one).zip(driver(other)).is_some_and(|(a, b)| may_share_a_part(a, b))
                };
                let its_name = device.name.as_ref().map(|name| name.value.as_str());
                if its_name.is_some_and(|name| self.is_up(name)) {
                    // A name that the server already has was reported.
                    continue;
                }
                if let Err(problem) = self.claim_there(&part.value, driver(index)) {
                    let problem = Problem { place: Some(part.place), ..problem };
                    problems.push(Problem { subject: subject(device), ..problem });
                    self.mark(index);
                    continue;
                }
                if first == index || shares(first, index) {
                    continue;
                }
                if self.find(&part.value).is_some() {
                    problems.push(Problem::new(
                        part.place,
                        subject(device),
                        format!("'{}' is already a part of '{}'", part.value, self.name(first)),
                    ));
                    self.mark(index);
                    self.mark(first);
                }
            }
        }
    }

    /// Checks that a part which the server already has is free for a device of that driver.
    fn claim_there(&self, part: &str, driver: Option<&str>) -> Result<(), Problem> {
        let Some(server) = self.server else { return Ok(()) };
        let told = |message| Problem::new(Position::default(), Subject::Manifest, message);
        let above = self.above_there.get(part);
        let shares = |above: &Device| {
            driver.is_some_and(|driver| may_share_a_part(driver, above.driver.name()))
        };
        if let Some(above) = above.filter(|above| !shares(above)) {
            return Err(told(format!("'{part}' is already a part of '{}'", above.name)));
        }
        let writes = |export: &&Export| export.device == part && !export.read_only;
        match server.exports.iter().find(writes) {
            Some(export) => {
                Err(told(format!("clients may write to '{part}' by the export '{}'", export.name))
                    .help("remove that export, or make it read-only, first"))
            }
            None => Ok(()),
        }
    }

    /// Finds each cycle once and shows its path.
    fn cycles(&mut self, problems: &mut Vec<Problem>) {
        for cycle in find_cycles(&self.suppliers) {
            let path: Vec<&str> =
                cycle.iter().chain(cycle.first()).map(|index| self.name(*index)).collect();
            let device = &self.devices[cycle[0]];
            let message = format!("needs itself: {}", path.join(" -> "));
            problems.push(
                Problem::new(device.place, subject(device), message)
                    .help("each arrow means 'needs'; remove one of these links"),
            );
            for index in cycle {
                self.mark(index);
            }
        }
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    match name {
        "" => Err("a device's name must not be empty".to_string()),
        name if name.len() > 64 => Err("a device's name has at most 64 characters".to_string()),
        name if !name.chars().all(allowed) => {
            Err("a device's name may contain letters, digits, '-', '_' and '.'".to_string())
        }
        _ => Ok(()),
    }
}

/// Returns the cycles met by walking from each node in order. They are disjoint, smallest index
/// first.
///
/// Every node on a cycle that shares no node with an earlier one is in exactly one of them. That is
/// enough to reject the manifest and to show a way out of each knot.
fn find_cycles(suppliers: &[Vec<usize>]) -> Vec<Vec<usize>> {
    #[derive(Clone, Copy, PartialEq)]
    enum Colour {
        New,
        OnPath,
        Done,
    }
    let mut colour = vec![Colour::New; suppliers.len()];
    let mut cycles = Vec::new();
    for start in 0..suppliers.len() {
        // A walk without recursion: manifests with long chains must not need a deep stack. Each
        // entry is a node and the number of its suppliers already visited.
        let mut path: Vec<(usize, usize)> = Vec::new();
        if colour[start] == Colour::New {
            colour[start] = Colour::OnPath;
            path.push((start, 0));
        }
        while let Some((node, next)) = path.last_mut() {
            let Some(&supplier) = suppliers[*node].get(*next) else {
                colour[*node] = Colour::Done;
                path.pop();
                continue;
            };
            *next += 1;
            match colour[supplier] {
                Colour::Done => {}
                Colour::New => {
                    colour[supplier] = Colour::OnPath;
                    path.push((supplier, 0));
                }
                Colour::OnPath => {
                    let from = path.iter().position(|(n, _)| *n == supplier).unwrap_or(0);
                    let mut cycle: Vec<usize> = path[from..].iter().map(|(n, _)| *n).collect();
                    let smallest = cycle.iter().enumerate().min_by_key(|(_, n)| **n);
                    let turn = smallest.map_or(0, |(at, _)| at);
                    cycle.rotate_left(turn);
                    cycles.push(cycle);
                }
            }
        }
    }
    cycles
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_graph_without_cycles_has_none() {
        assert!(find_cycles(&[]).is_empty());
        // A diamond: two ways from 0 to 3.
        assert!(find_cycles(&[vec![1, 2], vec![3], vec![3], vec![]]).is_empty());
    }

    #[test]
    fn each_cycle_is_found_once_beginning_at_its_first_device() {
        assert_eq!(find_cycles(&[vec![0]]), [vec![0]]);
        assert_eq!(find_cycles(&[vec![1], vec![2], vec![0]]), [vec![0, 1, 2]]);
        // 3 leads into the cycle of 1 and 2, without being on it.
        assert_eq!(find_cycles(&[vec![], vec![2], vec![1], vec![1]]), [vec![1, 2]]);
        assert_eq!(find_cycles(&[vec![1], vec![0], vec![3], vec![2]]), [vec![0, 1], vec![2, 3]]);
    }

    #[test]
    fn a_chain_of_100_000_devices_needs_no_deep_stack() {
        let last = 99_999;
        let chain: Vec<Vec<usize>> =
            (0..=last).map(|i| if i == last { vec![] } else { vec![i + 1] }).collect();
        assert!(find_cycles(&chain).is_empty());
    }
}
