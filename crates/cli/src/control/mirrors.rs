//! Mirrors as JSON and as text, and what may be asked of one. The names of the JSON are the promise: `docs/control.md`
//! explains each.

use std::fmt::Write as _;

use corewise::blockmq::drivers::{LegState, Mirror};
use serde::{Deserialize, Serialize};

/// What a mirror is made of, and what it is at.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MirrorOf {
    /// Whether it keeps a record of which parts are in sync, and what the others lack.
    pub(crate) bitmap: bool,
    pub(crate) parts: Vec<Part>,
    /// In bytes.
    pub(crate) to_resync: u64,
    pub(crate) resynced: u64,
    pub(crate) dirty: u64,
}

/// A part of a mirror.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) state: State,
    /// Why it is out.
    pub(crate) why: Option<String>,
}

/// What a part is good for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    InSync,
    Resyncing,
    /// It is out, and being tried again.
    Returning,
    #[default]
    #[serde(other)]
    Out,
}

impl From<LegState> for State {
    fn from(leg: LegState) -> State {
        match leg {
            LegState::InSync => State::InSync,
            LegState::Resyncing => State::Resyncing,
            LegState::Returning => State::Returning,
            _ => State::Out,
        }
    }
}

impl From<State> for LegState {
    fn from(state: State) -> LegState {
        match state {
            State::InSync => LegState::InSync,
            State::Resyncing => LegState::Resyncing,
            State::Returning => LegState::Returning,
            State::Out => LegState::Out,
        }
    }
}

impl MirrorOf {
    /// `over`: the names of its parts.
    pub(super) fn new(mirror: &Mirror, over: &[String]) -> MirrorOf {
        let status = mirror.status();
        let part = |(n, name): (usize, &String)| Part {
            name: name.clone(),
            state: status.legs.get(n).copied().unwrap_or(LegState::Out).into(),
            why: mirror.why_out(n),
        };
        MirrorOf {
            bitmap: mirror.has_record(),
            parts: over.iter().enumerate().map(part).collect(),
            to_resync: status.to_resync,
            resynced: status.resynced,
            dirty: status.dirty,
        }
    }

    /// Whether a part is on its way back.
    pub(crate) fn is_busy(&self) -> bool {
        let busy = |part: &Part| matches!(part.state, State::Resyncing | State::Returning);
        self.to_resync != 0 || self.parts.iter().any(busy)
    }

    /// A line a part.
    pub(crate) fn text(&self) -> String {
        let widest = self.parts.iter().map(|part| part.name.chars().count()).max().unwrap_or(0);
        let mut out = String::new();
        for part in &self.parts {
            // The driver's own words.
            let (name, state) = (&part.name, LegState::from(part.state));
            let why = part.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            let _ = writeln!(out, "  {name:<widest$}  {state}{why}");
        }
        out
    }
}

/// Has parts of the mirror tried again that are out: all, or this one. Their names, or why there is none.
pub(super) fn take_back(
    disk: &str,
    mirror: &Mirror,
    over: &[String],
    part: Option<&str>,
) -> Result<Vec<String>, String> {
    if let Some(part) = part.filter(|part| !over.iter().any(|name| name == part)) {
        let parts = over.join(", ");
        return Err(format!("'{part}' is not a part of '{disk}'; the parts are: {parts}"));
    }
    let wanted = over.iter().enumerate().filter(|(_, name)| part.is_none_or(|part| part == *name));
    let back: Vec<String> =
        wanted.filter(|(n, _)| mirror.take_back(*n)).map(|(_, name)| name.clone()).collect();
    match (back.is_empty(), part) {
        (false, _) => Ok(back),
        (true, Some(part)) => Err(format!("'{part}' is not out of '{disk}'")),
        (true, None) => Err(format!("all parts of '{disk}' are in")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_told_with_its_state_and_why_it_is_out() {
        let part = |name: &str, state, why: Option<&str>| Part {
            name: name.to_string(),
            state,
            why: why.map(str::to_string),
        };
        let parts =
            vec![part("a", State::InSync, None), part("long", State::Out, Some("no such file"))];
        let mirror = MirrorOf { parts, ..MirrorOf::default() };
        assert_eq!(mirror.text(), "  a     in sync\n  long  out: no such file\n");
        assert!(!mirror.is_busy());
        assert!(MirrorOf { to_resync: 1, ..mirror }.is_busy());
        let json = serde_json::to_string(&State::InSync).unwrap();
        assert_eq!(json, "\"in_sync\"");
        assert_eq!(serde_json::from_str::<State>("\"burning\"").unwrap(), State::Out);
    }
}
