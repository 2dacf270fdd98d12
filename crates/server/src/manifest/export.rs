//! The keys of `[[export]]`.

use std::path::PathBuf;
use std::time::Duration;

use corewise::export::Rate;

use super::access::{NodeAccess, ResolvedAccess};
use super::keys::KeyDefault::Required;
use super::keys::{CheckKeys, Keys, ValueKind, duration, flag, keys, number, size, text};
use super::problem::{Located, Position, unseen};
use super::reader::Fields;
use super::server::{clients, socket};

keys! {
    /// A device that clients can see.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Export {
        /// Device to export. Several exports may show the same device.
        device: String = text(), Required("device = \"disk0\"");
        /// Name that clients ask for. It may be empty. It can't be `EXPORT@TEXT` with the name of
        /// another export: that names [a checkpoint](backup.md#reading-a-checkpoint).
        name: String = shown("an export's name"), Filled("\"\"", "the device's name");
        /// `true` refuses all changes.
        read_only: bool = flag(), Usual("false");
        /// Text that clients can list.
        description: Option<String> = shown("a description"), Unset("none");
        /// Largest number of clients at a time.
        clients: Option<usize> = clients(), Unset("the server's limit");
        /// Limit of all its clients together, per second: `{ iops = 1000, bytes = "100M" }`, or one
        /// of both; see [below](#greedy-clients).
        limit: Option<Limit> = limit(), Unset("no limit");
        /// Limit of each client, in the same form.
        client_limit: Option<Limit> = limit(), Unset("no limit");
        /// Users of this machine that may attach, by number: `[0, 1000]`. They use the Unix socket,
        /// where the kernel tells the server the user; see [below](#who-may-attach).
        allow_uids: Option<Vec<u32>> = users(), Unset("all users");
        /// Clients that may attach, by a name in their certificate: a DNS name, a URI, or the
        /// common name, letter by letter. Needs `tls_client_ca`. With `allow_uids`, one of the two
        /// is enough.
        allow_certificates: Option<Vec<String>> = certificates(), Unset("all clients");
        /// `true` gives this export to clients that ask for the empty name. At most one export may
        /// have it.
        default: bool = flag(), Filled("false", "clients get the only export that is open to them");
        /// `true` makes the export a disk of this machine, too: `/dev/ublkbN`, with the link
        /// `/dev/corewise/NAME`. A table names its owner, group and mode; see
        /// [front-ends.md](front-ends.md#ublk).
        ublk: Option<UblkDisk> = ublk_disk(), Unset("`false`");
        /// Unix socket on which a virtual machine gets the export as a virtio disk
        /// (vhost-user-blk): a path, or a table with its owner, group and mode; see
        /// [front-ends.md](front-ends.md#vhost-user).
        vhost_user: Option<Located<GuestSocket>> = guest_socket(), Unset("none");
        /// Time after which the server reports a drain and flush that isn't done.
        shutdown_timeout: Duration = duration(), Usual("\"10s\"");
    } and {
        /// Begin of the export's table.
        place: Position
    }
}

/// Reads a text that the protocol carries.
fn shown(what: &'static str) -> ValueKind<String> {
    let short = |text: &String| text.len() <= 4096;
    text().seen(what).within("at most 4096 bytes long", "", short)
}

keys! {
    /// The limits of a second.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Limit {
        /// Number of requests.
        iops: Option<u64> = number().within("at least 1", "", |n| *n > 0).map(|n, _| u64::from(n)),
            Unset("no limit");
        /// Bytes of reads and writes.
        bytes: Option<u64> = size().within("at least 1", "", |bytes| *bytes > 0),
            Unset("no limit");
    }
}

/// The socket of a virtual machine's disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestSocket {
    /// Path of the socket.
    pub path: PathBuf,
    /// Owner, group and mode of the socket.
    pub access: NodeAccess,
}

/// Reads a socket: its path, or a table with its path and access.
fn guest_socket() -> ValueKind<GuestSocket> {
    let wanted = "a path, or { path = \"guest.sock\", group = \"kvm\" }";
    ValueKind::new(move |fields, key| {
        if fields.written(key).is_some() {
            let at: Located<PathBuf> = socket().get(fields, key, Required("a path"))?;
            let access = NodeAccess::default();
            return Some(Located::new(GuestSocket { path: at.value, access }, at.place));
        }
        let place = fields.place(key);
        let socket = fields.inline(key, wanted, |fields| {
            fields.declares(format!("'{key}'"), place);
            let path = socket().get(fields, "path", Required("path = \"guest.sock\""));
            let access = NodeAccess::read(fields);
            Some(GuestSocket { path: path?, access: access? })
        })?;
        Some(Located::new(socket, place))
    })
}

impl From<Limit> for Rate {
    fn from(limit: Limit) -> Rate {
        Rate { requests: limit.iops, bytes: limit.bytes }
    }
}

/// The disk of this machine that an export is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UblkDisk {
    /// Owner, group and mode of its nodes. `None` leaves them to the machine's rules.
    pub access: Option<NodeAccess>,
}

impl UblkDisk {
    /// Looks the names of its access up on this machine. May block.
    ///
    /// # Errors
    /// The machine has no such user or group, in words.
    pub(crate) fn resolve(&self) -> Result<Option<ResolvedAccess>, String> {
        self.access.as_ref().map(NodeAccess::resolve).transpose()
    }
}

/// Reads a disk: a flag, or a table with its access.
fn ublk_disk() -> ValueKind<UblkDisk> {
    let wanted = "true, false, or { group = \"postgres\" }";
    ValueKind::new(move |fields, key| {
        let place = fields.place(key);
        let disk = match fields.is_flag(key) {
            true => fields.boolean(key)?.value.then(UblkDisk::default),
            false => {
                let access = fields.inline(key, wanted, NodeAccess::read)?;
                Some(UblkDisk { access: Some(access) })
            }
        };
        disk.map(|disk| Located::new(disk, place))
    })
}

fn limit() -> ValueKind<Limit> {
    let wanted = "a limit such as { iops = 1000, bytes = \"100M\" }, or one of the two";
    ValueKind::new(move |fields, key| {
        let limit = fields.inline(key, wanted, Limit::read)?;
        if limit == Limit::default() {
            fields.refuse(key, format!("'{key}' must be {wanted}"), "");
        }
        Some(Located::new(limit, fields.place(key)))
    })
}

/// Refuses an empty list, which would let no user in.
fn listed<T: 'static>(list: ValueKind<Vec<T>>) -> ValueKind<Vec<T>> {
    let why = "an empty list admits no client: leave the key out to admit all";
    list.within("a list that isn't empty", why, |list| !list.is_empty())
}

fn users() -> ValueKind<Vec<u32>> {
    listed(ValueKind::new(|fields, key| {
        let users = fields.numbers(key, "a list of numbers of users, such as [0, 1000]")?;
        Some(Located::new(users, fields.place(key)))
    }))
}

fn certificates() -> ValueKind<Vec<String>> {
    listed(ValueKind::new(|fields, key| {
        let wanted = "a list of names in certificates, such as [\"vm1\", \"vm2.example\"]";
        let names = fields.names(key, wanted)?;
        for name in &names {
            if let Some(problem) = unseen("a name in a certificate", name, fields.subject()) {
                fields.push(problem);
            }
        }
        let names = names.into_iter().map(|name| name.value).collect();
        Some(Located::new(names, fields.place(key)))
    }))
}

impl CheckKeys for Export {
    fn check(&self, fields: &mut Fields<'_, '_>) {
        let Some((each, all)) = self.client_limit.zip(self.limit) else { return };
        let above = |each: Option<u64>, all: Option<u64>| {
            each.zip(all).is_some_and(|(each, all)| each > all)
        };
        if above(each.iops, all.iops) || above(each.bytes, all.bytes) {
            let message = "'client_limit', of each client, is more than 'limit', of all of them";
            let help = "lower it, or leave it out: a client alone may have all of 'limit'";
            fields.refuse("client_limit", message, help);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn ublk(value: &str) -> Result<Option<UblkDisk>, String> {
        let ram = "[[device]]\nname = \"a\"\ndriver = \"memory\"\nsize = \"1M\"\n";
        let text = format!("{ram}[[export]]\ndevice = \"a\"\nublk = {value}\n");
        let read = super::super::read(&text, Path::new("/"));
        match read.problems.first() {
            Some(problem) => Err(problem.display("m").to_string()),
            None => Ok(read.manifest.exports[0].ublk.clone()),
        }
    }

    #[test]
    fn a_disk_of_this_machine_is_a_flag_or_the_access_to_its_nodes() {
        assert_eq!(ublk("false"), Ok(None));
        assert_eq!(ublk("true"), Ok(Some(UblkDisk { access: None })));
        let disk = ublk("{ group = 7 }").unwrap().unwrap().resolve().unwrap();
        assert_eq!(disk, Some(ResolvedAccess { uid: None, gid: Some(7), mode: 0o660 }));
        for (value, says) in [
            ("\"yes\"", "'ublk' must be true, false, or { group"),
            ("{ mode = \"0666\" }", "0666 has 0006 too much"),
            ("{ user = \"me\" }", "unknown key 'user'"),
        ] {
            let why = ublk(value).unwrap_err();
            assert!(why.contains(says), "{why}");
        }
    }
}
