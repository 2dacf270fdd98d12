//! The right to attach to an export. Pure: what a client is was found out before.

use std::fmt;
use std::net::IpAddr;

/// Where a client comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Peer {
    /// A user of this machine, by its number.
    User(u32),
    /// An address.
    Address(IpAddr),
    /// The system doesn't say.
    Unknown,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::User(uid) => write!(f, "user {uid}"),
            Peer::Address(address) => address.fmt(f),
            Peer::Unknown => f.write_str("a client of unknown origin"),
        }
    }
}

/// What is known of a client.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) peer: Peer,
    /// The process that connected, of a client of this machine. It may have passed the socket on
    /// since.
    pub(crate) pid: Option<u32>,
    /// The names in its certificate, where it has shown one that was vouched for.
    pub(crate) names: Vec<String>,
}

impl Identity {
    /// Whether these may be two connections of one client: its certificate says that, or, without one, where it comes from.
    pub(crate) fn may_be(&self, other: &Identity) -> bool {
        match self.names.is_empty() && other.names.is_empty() {
            true => self.peer == other.peer,
            false => self.names == other.names,
        }
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.peer.fmt(f)?;
        if let Some(pid) = self.pid {
            write!(f, ", process {pid}")?;
        }
        for (n, name) in self.names.iter().enumerate() {
            let before = if n == 0 { " with the certificate of " } else { ", " };
            write!(f, "{before}'{}'", name.escape_debug())?;
        }
        Ok(())
    }
}

/// The clients that an export is for; everybody where neither is said.
#[derive(Clone, Debug, Default)]
pub(crate) struct Access {
    pub(crate) uids: Option<Vec<u32>>,
    pub(crate) names: Option<Vec<String>>,
}

impl Access {
    /// Whether one of the rules lets this client in.
    pub(crate) fn admits(&self, who: &Identity) -> bool {
        let Access { uids, names } = self;
        if uids.is_none() && names.is_none() {
            return true;
        }
        let has_uid = |uid: &u32| who.peer == Peer::User(*uid);
        let has_name = |name: &String| who.names.contains(name);
        uids.iter().flatten().any(has_uid) || names.iter().flatten().any(has_name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(peer: Peer, names: &[&str]) -> Identity {
        let names = names.iter().map(ToString::to_string).collect();
        Identity { peer, pid: None, names }
    }

    #[test]
    fn a_client_comes_in_by_one_of_the_rules_and_anybody_where_there_is_none() {
        let local = Peer::Address([127, 0, 0, 1].into());
        let everybody = Access::default();
        assert!(everybody.admits(&who(Peer::Unknown, &[])));
        let rules =
            Access { uids: Some(vec![7, 8]), names: Some(vec!["a".to_string(), "b".to_string()]) };
        assert!(rules.admits(&who(Peer::User(8), &[])));
        assert!(rules.admits(&who(local, &["x", "b"])));
        assert!(!rules.admits(&who(local, &["ab", "A"])));
        assert!(!rules.admits(&who(Peer::User(0), &[])), "root is a user like others");
        let nobody = Access { uids: Some(Vec::new()), names: None };
        assert!(!nobody.admits(&who(Peer::User(8), &["a"])), "an empty list is for nobody");
    }

    #[test]
    fn a_client_is_named_by_what_is_known_of_it() {
        assert_eq!(who(Peer::User(8), &[]).to_string(), "user 8");
        let known = Identity { pid: Some(77), ..who(Peer::User(8), &["a"]) };
        assert_eq!(known.to_string(), "user 8, process 77 with the certificate of 'a'");
        let peer = Peer::Address([10, 0, 0, 1].into());
        assert_eq!(
            who(peer, &["a", "b\n"]).to_string(),
            "10.0.0.1 with the certificate of 'a', 'b\\n'"
        );
    }
}
