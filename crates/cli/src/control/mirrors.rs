//! Mirrors as JSON and as text, and what may be asked of one. The names of the JSON are the promise: `docs/control.md`
//! explains each.

use std::fmt::Write as _;

use corewise::blockmq::drivers::{LegState, Mirror};
use serde::{Deserialize, Serialize};

/// What a mirror is made of, and what it is at.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct MirrorOf {
    /// Whether it keeps a record of which legs are in sync, and what the others lack.
    pub(crate) bitmap: bool,
    pub(crate) legs: Vec<Leg>,
    /// In bytes.
    pub(crate) to_resync: u64,
    pub(crate) resynced: u64,
    pub(crate) dirty: u64,
}

/// A leg of a mirror.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Leg {
    pub(crate) name: String,
    pub(crate) state: State,
    /// Why it is out.
    pub(crate) why: Option<String>,
}

/// What a leg is good for.
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
    /// `over`: the names of its legs.
    pub(super) fn new(mirror: &Mirror, over: &[String]) -> MirrorOf {
        let status = mirror.status();
        let leg = |(n, name): (usize, &String)| Leg {
            name: name.clone(),
            state: status.legs.get(n).copied().unwrap_or(LegState::Out).into(),
            why: mirror.why_out(n),
        };
        MirrorOf {
            bitmap: mirror.has_record(),
            legs: over.iter().enumerate().map(leg).collect(),
            to_resync: status.to_resync,
            resynced: status.resynced,
            dirty: status.dirty,
        }
    }

    /// Whether a leg is on its way back.
    pub(crate) fn is_busy(&self) -> bool {
        let busy = |leg: &Leg| matches!(leg.state, State::Resyncing | State::Returning);
        self.to_resync != 0 || self.legs.iter().any(busy)
    }

    /// A line a leg.
    pub(crate) fn text(&self) -> String {
        let widest = self.legs.iter().map(|leg| leg.name.chars().count()).max().unwrap_or(0);
        let mut out = String::new();
        for leg in &self.legs {
            // The driver's own words.
            let (name, state) = (&leg.name, LegState::from(leg.state));
            let why = leg.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            let _ = writeln!(out, "  {name:<widest$}  {state}{why}");
        }
        out
    }
}

/// Has legs of the mirror tried again that are out: all, or this one. Their names, or why there is none.
pub(super) fn take_back(
    disk: &str,
    mirror: &Mirror,
    over: &[String],
    leg: Option<&str>,
) -> Result<Vec<String>, String> {
    if let Some(leg) = leg.filter(|leg| !over.iter().any(|name| name == leg)) {
        let legs = over.join(", ");
        return Err(format!("'{leg}' is not a leg of '{disk}'; the legs are: {legs}"));
    }
    let wanted = over.iter().enumerate().filter(|(_, name)| leg.is_none_or(|leg| leg == *name));
    let back: Vec<String> =
        wanted.filter(|(n, _)| mirror.take_back(*n)).map(|(_, name)| name.clone()).collect();
    match (back.is_empty(), leg) {
        (false, _) => Ok(back),
        (true, Some(leg)) => Err(format!("'{leg}' is not out of '{disk}'")),
        (true, None) => Err(format!("all legs of '{disk}' are in")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leg_is_told_with_its_state_and_why_it_is_out() {
        let leg = |name: &str, state, why: Option<&str>| Leg {
            name: name.to_string(),
            state,
            why: why.map(str::to_string),
        };
        let legs =
            vec![leg("a", State::InSync, None), leg("long", State::Out, Some("no such file"))];
        let mirror = MirrorOf { legs, ..MirrorOf::default() };
        assert_eq!(mirror.text(), "  a     in sync\n  long  out: no such file\n");
        assert!(!mirror.is_busy());
        assert!(MirrorOf { to_resync: 1, ..mirror }.is_busy());
        let json = serde_json::to_string(&State::InSync).unwrap();
        assert_eq!(json, "\"in_sync\"");
        assert_eq!(serde_json::from_str::<State>("\"burning\"").unwrap(), State::Out);
    }
}
