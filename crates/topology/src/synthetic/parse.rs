//! The parser of hwloc's synthetic language: text in, levels out, errors with a position.

use std::ops::Range;

use super::indexes::{IndexError, LevelPosition, numbers};
use crate::cpuset::CpuSet;
use crate::error::TopologyError;

/// The kind of the objects of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Machine,
    Package,
    Core,
    Pu,
    /// A unified or data cache.
    Cache {
        level: u32,
    },
    /// Objects that say nothing about placement: groups, dies, instruction caches, and the place
    /// that NUMA nodes of a level of their own are attached to.
    Group,
}

/// A parsed description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Description {
    /// Levels of the tree. The first is the machine itself, the last are the CPUs.
    pub(crate) levels: Vec<Level>,
    /// Numbers of the CPUs in the order of the tree; `None` stands for that order.
    pub(crate) cpus: Option<Vec<u32>>,
    /// Numbers of the NUMA nodes in the order of [`Level::numa`]; `None` stands for that order.
    pub(crate) nodes: Option<Vec<u32>>,
}

/// One level of the tree: each object of the level above has `count` of these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Level {
    pub(crate) kind: Kind,
    pub(crate) count: u32,
    /// Number of NUMA nodes attached to each object of this level.
    pub(crate) numa: u32,
}

/// The type of a level as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Numa,
    Die,
    InstructionCache { level: u32 },
    Plain(Kind),
}

/// A level as it is written in the description.
struct WrittenLevel {
    /// Type of the level; `None` for a bare number.
    kind: Option<Type>,
    /// Start of the level in bytes.
    start: usize,
    /// Number of its objects in the whole machine.
    total: u64,
    /// Range of the text after `indexes=`.
    indexes: Option<Range<usize>>,
}

impl WrittenLevel {
    fn is_group(&self) -> bool {
        self.kind == Some(Type::Plain(Kind::Group))
    }
}

/// Long forms of the names. hwloc accepts any beginning of at least two letters.
const NAMES: [(&str, Type); 9] = [
    ("numanode", Type::Numa),
    ("node", Type::Numa),
    ("package", Type::Plain(Kind::Package)),
    ("socket", Type::Plain(Kind::Package)),
    ("die", Type::Die),
    ("core", Type::Plain(Kind::Core)),
    ("pu", Type::Plain(Kind::Pu)),
    ("tile", Type::Plain(Kind::Group)),
    ("module", Type::Plain(Kind::Group)),
];

/// Largest number of levels, and of NUMA nodes attached to one object, as in hwloc: code that walks
/// the tree goes as deep as it is.
const MAX_LEVELS: usize = 128;

const KNOWN: &str = "use numanode, package, die, group, l1 to l5, core or pu";

/// Parses a description into levels, and the numbers of CPUs and nodes if it gives any.
pub(crate) fn parse(description: &str) -> Result<Description> {
    Parser { text: description, at: 0 }.description()
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

type Result<T> = std::result::Result<T, TopologyError>;

impl<'a> Parser<'a> {
    fn description(mut self) -> Result<Description> {
        let mut levels = vec![Level { kind: Kind::Machine, count: 1, numa: 0 }];
        let mut written: Vec<WrittenLevel> = Vec::new();
        let (mut attached_at, mut machine_indexes, mut node_indexes) = (None, None, None);
        // Objects of the level that was parsed last, and attached NUMA nodes so far.
        let (mut total, mut nodes) = (1u64, 0u64);
        self.skip_space();
        if self.peek() == Some('(') {
            machine_indexes = self.attributes(false)?;
        }
        loop {
            self.skip_space();
            let start = self.at;
            match self.peek() {
                None => break,
                Some('[') => {
                    // As in hwloc, the last one numbers the nodes of all.
                    node_indexes = self.attached_numa()?.or(node_indexes);
                    let level = levels.last_mut().expect("the machine's level is there");
                    level.numa += 1;
                    nodes = nodes.saturating_add(total);
                    if level.numa as usize > MAX_LEVELS || nodes > u64::from(CpuSet::MAX_CPU) + 1 {
                        let reason =
                            "the machine has too many NUMA nodes from here on; attach fewer";
                        return Err(self.wrong(start, self.at, reason));
                    }
                    attached_at.get_or_insert(start);
                }
                Some(_) => {
                    let (kind, count, indexes) = self.level()?;
                    total = total.saturating_mul(u64::from(count));
                    if total > u64::from(CpuSet::MAX_CPU) + 1 {
                        let most = CpuSet::MAX_CPU + 1;
                        return Err(self.wrong(
                            start,
                            self.at,
                            format!("the machine has more than {most} objects from here on; use smaller numbers"),
                        ));
                    }
                    if written.len() == MAX_LEVELS {
                        let reason = format!("there are more than {MAX_LEVELS} levels; use fewer");
                        return Err(self.wrong(start, self.at, reason));
                    }
                    written.push(WrittenLevel { kind, start, total, indexes });
                    levels.push(Level { kind: Kind::Group, count, numa: 0 });
                }
            }
        }
        self.name_levels(&mut written, attached_at.is_some())?;
        self.check_once(&written)?;
        for (level, WrittenLevel { kind, start, .. }) in levels[1..].iter_mut().zip(&written) {
            match kind {
                Some(Type::Numa) => {
                    if let Some(at) = attached_at {
                        let end = self.token_end(at);
                        return Err(self.wrong(
                            at,
                            end,
                            "NUMA nodes can be a level or attached, not both in one description",
                        ));
                    }
                    level.numa = 1;
                }
                Some(Type::Plain(kind)) => level.kind = *kind,
                Some(Type::Die | Type::InstructionCache { .. }) => {}
                None => {
                    return Err(self.wrong(
                        *start,
                        self.token_end(*start),
                        "a bare number beside levels with a type; give every level a type, or none",
                    ));
                }
            }
        }

        let attached = attached_at.is_some();
        self.numbers(&written, attached, machine_indexes, 1)?;
        let mut description = Description {
            levels,
            cpus: None,
            nodes: self.numbers(&written, attached, node_indexes, nodes)?,
        };
        for WrittenLevel { kind, total, indexes, .. } in &written {
            // Numbers of other objects say nothing about placement. They are only checked.
            let numbers = self.numbers(&written, attached, indexes.clone(), *total)?;
            match kind {
                Some(Type::Plain(Kind::Pu)) => description.cpus = numbers,
                Some(Type::Numa) => description.nodes = numbers,
                _ => {}
            }
        }
        Ok(description)
    }

    /// Returns the numbers that `indexes=` gives to the `total` objects of a level.
    fn numbers(
        &self,
        written: &[WrittenLevel],
        attached: bool,
        indexes: Option<Range<usize>>,
        total: u64,
    ) -> Result<Option<Vec<u32>>> {
        let Some(Range { start, end }) = indexes else { return Ok(None) };
        let place_of = |name: &str| self.place_of(name, written, attached);
        match numbers(&self.text[start..end], total, place_of) {
            Ok(numbers) => Ok(Some(numbers)),
            Err(IndexError { at, reason }) if at.is_empty() => {
                Err(self.wrong(start - "indexes=".len(), end, reason))
            }
            Err(IndexError { at, reason }) => {
                Err(self.wrong(start + at.start, start + at.end, reason))
            }
        }
    }

    /// Returns the position of the level that a name in `indexes=` means.
    fn place_of(
        &self,
        name: &str,
        written: &[WrittenLevel],
        attached: bool,
    ) -> std::result::Result<LevelPosition, String> {
        if is_machine(name) {
            return Ok(LevelPosition { depth: 0, width: 1 });
        }
        let wanted = level_type(name)?;
        let mut groups = written.iter().filter(|level| level.is_group()).count();
        let (_, inner) = written.split_last().expect("there is a level of CPUs");
        for (level, depth) in inner.iter().zip(2..) {
            if level.kind != Some(wanted) {
                continue;
            }
            if level.is_group() {
                // hwloc numbers groups from the innermost, 1, outwards, except those with a number
                // in the description.
                let own = group_number(&self.text[level.start..]);
                let number = own.unwrap_or(groups as u32);
                groups -= usize::from(own.is_none());
                if group_number(name).is_some_and(|wanted| wanted != number) {
                    continue;
                }
            }
            return Ok(LevelPosition { depth, width: level.total });
        }
        match wanted {
            // If none is described there is one, below the machine.
            Type::Numa if !attached => Ok(LevelPosition { depth: 1, width: 1 }),
            Type::Numa => Err("attached nodes are not a level; name another type".into()),
            Type::Plain(Kind::Pu) => {
                Err("leave out 'pu': as in hwloc, it always comes last".into())
            }
            _ => Err(format!("the description has no level '{name}'")),
        }
    }

    /// Makes the last level the CPUs, and gives a description of bare numbers hwloc's usual types.
    fn name_levels(&self, written: &mut [WrittenLevel], attached: bool) -> Result<()> {
        let end = self.text.trim_end().len();
        let Some((last, inner)) = written.split_last_mut() else {
            return Err(self.wrong(
                end,
                end,
                "it has no levels; write, for example, 'numa:2 l3:1 core:8 pu:2'",
            ));
        };
        match last.kind {
            None => last.kind = Some(Type::Plain(Kind::Pu)),
            Some(Type::Plain(Kind::Pu)) => {}
            Some(_) => {
                return Err(self.wrong(
                    end,
                    end,
                    "the last level must be the hardware threads; add 'pu:1' for one per core",
                ));
            }
        }
        if !inner.is_empty() && inner.iter().all(|level| level.kind.is_none()) {
            let usual = usual_types(inner.len(), attached);
            for (level, kind) in inner.iter_mut().zip(usual) {
                level.kind = Some(kind);
            }
        }
        Ok(())
    }

    fn check_once(&self, written: &[WrittenLevel]) -> Result<()> {
        for (index, WrittenLevel { kind, start, .. }) in written.iter().enumerate() {
            let repeats = written[..index].iter().any(|before| before.kind == *kind);
            let may_repeat = matches!(kind, None | Some(Type::Plain(Kind::Group)));
            if repeats && !may_repeat {
                return Err(self.wrong(
                    *start,
                    self.token_end(*start),
                    "a level of this type exists already; only 'group' may be repeated",
                ));
            }
        }
        Ok(())
    }

    /// Parses `type:count(attributes)` or `count(attributes)`.
    fn level(&mut self) -> Result<(Option<Type>, u32, Option<Range<usize>>)> {
        let start = self.at;
        let mut kind = None;
        if !self.peek().is_some_and(|c| c.is_ascii_digit()) {
            let name = self.take_while(|c| !c.is_whitespace() && !":([])".contains(c));
            let end = if name.is_empty() { self.token_end(start) } else { self.at };
            kind = Some(level_type(name).map_err(|reason| self.wrong(start, end, reason))?);
            if self.peek() != Some(':') {
                let reason = format!("a ':' and a number must follow the type, as in '{name}:2'");
                return Err(self.wrong(start, self.token_end(start), reason));
            }
            self.at += 1;
        }
        let digits = self.take_while(|c| c.is_ascii_digit());
        let token_ends = self.peek().is_none_or(|c| c.is_whitespace() || c == '(' || c == '[');
        if digits.is_empty() || !token_ends {
            let end = self.token_end(start);
            return Err(self.wrong(start, end, "expected a number of objects after the type"));
        }
        let count = match digits.parse() {
            Ok(0) => Err("a level needs at least one object; leave out the level".to_owned()),
            Ok(count) if count <= CpuSet::MAX_CPU + 1 => Ok(count),
            _ => Err(format!("the number is too large; {} is the most", CpuSet::MAX_CPU + 1)),
        };
        let count = count.map_err(|reason| self.wrong(start, self.at, reason))?;
        let mut indexes = None;
        if self.peek() == Some('(') {
            let cache = matches!(
                kind,
                Some(Type::Plain(Kind::Cache { .. }) | Type::InstructionCache { .. })
            );
            indexes = self.attributes(cache)?;
        }
        Ok((kind, count, indexes))
    }

    /// Parses `[numa]` or `[numa(memory=1GB)]`. Returns the range of the text after `indexes=`.
    fn attached_numa(&mut self) -> Result<Option<Range<usize>>> {
        let start = self.at;
        self.at += 1;
        let name = self.take_while(|c| !c.is_whitespace() && !":([])".contains(c));
        if level_type(name) != Ok(Type::Numa) {
            let end = self.token_end(start);
            return Err(self.wrong(start, end, "only NUMA nodes can be attached: write '[numa]'"));
        }
        let mut indexes = None;
        if self.peek() == Some('(') {
            indexes = self.attributes(false)?;
        }
        if self.peek() != Some(']') {
            let end = self.token_end(start);
            return Err(self.wrong(start, end, "the closing ']' is missing"));
        }
        self.at += 1;
        Ok(indexes)
    }

    /// Parses `(name=value name=value)`: sizes of caches and memory, which are checked and dropped,
    /// and `indexes=`. Returns the range of the text after the last `indexes=`, which counts, as in
    /// hwloc.
    fn attributes(&mut self, cache: bool) -> Result<Option<Range<usize>>> {
        let start = self.at;
        let mut indexes = None;
        self.at += 1;
        loop {
            self.take_while(|c| c == ' ');
            let from = self.at;
            if self.peek() == Some(')') {
                self.at += 1;
                return Ok(indexes);
            }
            let attribute = self.take_while(|c| !c.is_whitespace() && c != ')');
            if attribute.is_empty() {
                return Err(self.wrong(start, self.at, "the closing ')' is missing"));
            }
            let fits = match attribute.split_once('=') {
                Some(("size", value)) if cache => memory_size(value),
                Some(("memory", value)) if !cache => memory_size(value),
                Some(("memorysidecachesize", value)) => memory_size(value),
                Some(("indexes", value)) => {
                    indexes = Some(self.at - value.len()..self.at);
                    Ok(())
                }
                _ if cache => Err("not an attribute of a cache; 'size=32MB' is one"),
                _ => Err("not an attribute of this level; 'memory=16GB' is one"),
            };
            fits.map_err(|reason| self.wrong(from, self.at, reason))?;
        }
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn skip_space(&mut self) {
        self.take_while(char::is_whitespace);
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        let rest = &self.text[self.at..];
        let end = rest.find(|c| !wanted(c)).unwrap_or(rest.len());
        self.at += end;
        &rest[..end]
    }

    /// Returns the end of the token that starts at `start`: the next white space.
    fn token_end(&self, start: usize) -> usize {
        let rest = &self.text[start..];
        start + rest.find(char::is_whitespace).unwrap_or(rest.len())
    }

    fn wrong(&self, start: usize, end: usize, reason: impl Into<String>) -> TopologyError {
        TopologyError::Synthetic {
            description: self.text.trim().to_owned(),
            token: self.text[start..end].to_owned(),
            position: self.text[..start].chars().count() + 1,
            reason: reason.into(),
        }
    }
}

/// Returns the types that hwloc gives to `count` levels above the CPUs that are written as bare
/// numbers. It wants nodes, packages, cores, caches and groups, in this order, and places them as
/// in a machine.
fn usual_types(count: usize, attached_numa: bool) -> Vec<Type> {
    let numa = usize::from(!attached_numa).min(count);
    let package = (count - numa).min(1);
    let core = (count - numa - package).min(1);
    let caches = (count - numa - package - core).min(4);
    let groups = count - numa - package - core - caches;

    let cache = |level| Type::Plain(Kind::Cache { level });
    let all = [cache(3), cache(2), cache(1), Type::InstructionCache { level: 1 }];
    // An L3 comes third, and there is no instruction cache without it.
    let caches = if caches >= 3 { &all[..caches] } else { &all[1..=caches] };

    let mut types = vec![Type::Plain(Kind::Group); groups];
    types.extend(vec![Type::Plain(Kind::Package); package]);
    types.extend(vec![Type::Numa; numa]);
    types.extend(caches);
    types.extend(vec![Type::Plain(Kind::Core); core]);
    types
}

/// Returns the type of a name. Like hwloc, accepts any case and any beginning of a name.
fn level_type(name: &str) -> std::result::Result<Type, String> {
    let lower = name.to_ascii_lowercase();
    if let Some(cache) =
        lower.strip_prefix('l').filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    {
        return cache_type(cache)
            .ok_or_else(|| "not a cache; caches are l1 to l5, also l1d, l1i, l2u".to_owned());
    }
    let word = lower.trim_end_matches(|c: char| c.is_ascii_digit());
    if word.len() >= 2 && "group".starts_with(word) {
        return Ok(Type::Plain(Kind::Group));
    }
    if is_machine(name) {
        return Err(format!("the machine is implied, so leave it out; {KNOWN}"));
    }
    NAMES
        .into_iter()
        .find(|(long, _)| lower.len() >= 2 && long.starts_with(&lower))
        .map(|(_, kind)| kind)
        .ok_or_else(|| format!("unknown type of level; {KNOWN}"))
}

fn is_machine(name: &str) -> bool {
    name.len() >= 2 && "machine".starts_with(&name.to_ascii_lowercase())
}

/// Returns the number in `group2`, if there is one.
fn group_number(name: &str) -> Option<u32> {
    let number = name.trim_start_matches(|c: char| c.is_ascii_alphabetic());
    let digits = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
    number[..digits].parse().ok()
}

/// Returns the cache of `3`, `2u`, `1d`, `1icache` (after the letter `l`).
fn cache_type(rest: &str) -> Option<Type> {
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let level = rest[..digits].parse().ok().filter(|level| (1..=5).contains(level))?;
    let rest = &rest[digits..];
    let (instruction, suffix) = match rest.chars().next() {
        Some('i') => (true, &rest[1..]),
        Some('d' | 'u') => (false, &rest[1..]),
        _ => (false, rest),
    };
    if !"cache".starts_with(suffix) || (instruction && level > 3) {
        return None;
    }
    Some(if instruction {
        Type::InstructionCache { level }
    } else {
        Type::Plain(Kind::Cache { level })
    })
}

fn memory_size(value: &str) -> std::result::Result<(), &'static str> {
    const REASON: &str = "expected a size such as 32MB, 32MiB or 33554432";
    let unit = value.trim_start_matches(|c: char| c.is_ascii_digit());
    let units = ["", "kb", "kib", "mb", "mib", "gb", "gib", "tb", "tib"];
    if unit.len() == value.len() || !units.contains(&unit.to_ascii_lowercase().as_str()) {
        return Err(REASON);
    }
    Ok(())
}
