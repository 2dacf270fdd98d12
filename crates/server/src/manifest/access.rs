//! The owner, group and mode of a node: a socket or a device file that the server makes.

use nix::unistd::{Group, User};

use super::keys::{CheckKeys, ValueKind, keys, text, text_or_number};
use super::reader::Fields;

keys! {
    /// The owner, group and mode of a node.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct NodeAccess {
        /// User that owns the node, by name or number.
        owner: Option<String> = account("a user"), Unset("the server's user");
        /// Group of the node, by name or number.
        group: Option<String> = account("a group"), Unset("the server's group");
        /// Permissions of the owner and the group, as octal digits: `"0660"`.
        mode: Option<u32> = mode(), Unset("`\"0660\"` with `group`, else `\"0600\"`");
    }
}

/// The access to a node, with the numbers that this machine has for its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResolvedAccess {
    /// Number of the owner. `None` leaves the owner as it is.
    pub(crate) uid: Option<u32>,
    /// Number of the group. `None` leaves the group as it is.
    pub(crate) gid: Option<u32>,
    /// Permissions.
    pub(crate) mode: u32,
}

/// Most permissions of a node: nobody executes one, and other users have none.
const MOST: u32 = 0o660;

/// Reads a user or a group.
fn account(what: &'static str) -> ValueKind<String> {
    text_or_number().seen(what).within("a name or a number", "", |name| !name.is_empty())
}

/// Reads permissions.
fn mode() -> ValueKind<u32> {
    text().parse(|text, _| {
        let is_octal = (3..=4).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        let mode = u32::from_str_radix(text, 8).ok().filter(|_| is_octal);
        let mode =
            mode.ok_or_else(|| format!("'{text}' is no mode: write \"0600\" or \"0660\""))?;
        match mode & !MOST {
            0 => Ok(mode),
            beyond => Err(format!(
                "{mode:04o} has {beyond:04o} too much: the owner and the group may read and write \
                 ({MOST:04o}), and all other users nothing. Name a 'group' instead"
            )),
        }
    })
}

impl CheckKeys for NodeAccess {
    fn check(&self, _: &mut Fields<'_, '_>) {}
}

impl NodeAccess {
    /// Looks the names up on this machine. May block: names can lie in another machine's directory.
    ///
    /// # Errors
    /// The machine has no such user or group, in words.
    pub(crate) fn resolve(&self) -> Result<ResolvedAccess, String> {
        let user = |name: &str| Ok(User::from_name(name)?.map(|user| user.uid.as_raw()));
        let group = |name: &str| Ok(Group::from_name(name)?.map(|group| group.gid.as_raw()));
        let uid = self.owner.as_deref().map(|name| number("owner", "user", name, user));
        let gid = self.group.as_deref().map(|name| number("group", "group", name, group));
        let usual = if self.group.is_some() { MOST } else { 0o600 };
        let mode = self.mode.unwrap_or(usual);
        Ok(ResolvedAccess { uid: uid.transpose()?, gid: gid.transpose()?, mode })
    }
}

/// Returns the number of a user or a group, which may be written as a number.
fn number(
    key: &str,
    what: &str,
    name: &str,
    look_up: impl FnOnce(&str) -> nix::Result<Option<u32>>,
) -> Result<u32, String> {
    // The largest number means "none" to the kernel.
    if let Some(number) = name.parse().ok().filter(|number| *number != u32::MAX) {
        return Ok(number);
    }
    match look_up(name) {
        Ok(Some(number)) => Ok(number),
        Ok(None) => Err(format!(
            "{key}: this machine has no {what} '{name}'. Create it, or name another one"
        )),
        Err(error) => Err(format!("{key}: cannot look up the {what} '{name}': {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use toml::de::DeTable;

    use super::*;
    use crate::manifest::keys::Keys;
    use crate::manifest::problem::Subject;
    use crate::manifest::reader::LineIndex;

    fn read(text: &str) -> Result<NodeAccess, String> {
        let (table, lines) = (DeTable::parse(text).unwrap(), LineIndex::new(text));
        let mut fields = Fields::new(table.get_ref(), &lines, Path::new("/"), Subject::Manifest);
        let access = NodeAccess::read(&mut fields);
        match fields.finish(|_| None).first() {
            Some(problem) => Err(problem.display("m").to_string()),
            None => Ok(access.unwrap()),
        }
    }

    #[test]
    fn a_node_is_for_its_owner_unless_the_manifest_names_others() {
        let access = |text| read(text).unwrap().resolve().unwrap();
        let of = |uid, gid, mode| ResolvedAccess { uid, gid, mode };
        assert_eq!(access(""), of(None, None, 0o600));
        assert_eq!(access("group = 7"), of(None, Some(7), 0o660));
        assert_eq!(access("mode = \"660\""), of(None, None, 0o660));
        let all = "owner = \"root\"\ngroup = \"7\"\nmode = \"0640\"";
        assert_eq!(access(all), of(Some(0), Some(7), 0o640));
    }

    #[test]
    fn no_mode_is_for_all_users() {
        for (mode, says) in [
            ("0666", "0666 has 0006 too much"),
            ("0661", "0661 has 0001 too much"),
            ("4660", "4660 has 4000 too much"),
            ("0770", "0770 has 0110 too much"),
            ("u=rw", "'u=rw' is no mode: write \"0600\""),
            ("+660", "'+660' is no mode"),
            ("0689", "'0689' is no mode"),
            ("", "'' is no mode"),
        ] {
            let why = read(&format!("mode = \"{mode}\"")).unwrap_err();
            assert!(why.contains(says), "{why}");
        }
    }

    #[test]
    fn a_name_that_the_machine_lacks_is_reported() {
        let why = |text| read(text).unwrap().resolve().unwrap_err();
        let owner = why("owner = \"no such account\"");
        assert!(owner.starts_with("owner: this machine has no user 'no such account'"), "{owner}");
        let group = why("group = \"no such account\"");
        assert!(group.starts_with("group: this machine has no group"), "{group}");
        let empty = read("owner = \"\"").unwrap_err();
        assert!(empty.contains("'owner' must be a name or a number"), "{empty}");
    }
}
