//! The keys of `[[export]]`.

use std::time::Duration;

use super::keys::{Check, Keys, ValueKind, duration, flag, keys, number, size, text};
use super::problem::{At, Position, unseen};
use super::reader::Fields;
use super::server::clients;

keys! {
    /// A device that clients can see.
    #[derive(Clone, Debug, PartialEq)]
    pub struct Export {
        /// The device to export; several exports may show the same one.
        device: String = text(), Required("device = \"disk0\"");
        /// What clients ask for. It may be empty.
        name: String = shown("an export's name"), Filled("\"\"", "the device's name");
        /// Whether all changes are refused.
        read_only: bool = flag(), Usual("false");
        /// A text that clients can list.
        description: Option<String> = shown("a description"), Unset("none");
        /// How many clients it lets in at the same time.
        clients: Option<usize> = clients(), Unset("as many as the server");
        /// How much all its clients together may do in a second: `{ iops = 1000, bytes = "100M" }`,
        /// or one of both; see [below](#greedy-clients).
        limit: Option<Limit> = limit(), Unset("as much as they can");
        /// How much each of them may do, likewise.
        client_limit: Option<Limit> = limit(), Unset("as much as it can");
        /// The users of this machine that may attach, by their numbers: `[0, 1000]`. They come by
        /// the Unix socket, where the kernel says who they are; see [below](#who-may-attach).
        allow_uids: Option<Vec<u32>> = users(), Unset("everybody");
        /// The clients that may attach, by a name in their certificate: a DNS name, a URI, or the
        /// common name, letter by letter. Needs `tls_client_ca`; with `allow_uids`, one of the two
        /// is enough.
        allow_certificates: Option<Vec<String>> = certificates(), Unset("everybody");
        /// Whether clients that ask for the empty name get this one; one export at most.
        default: bool = flag(), Filled("false", "they get the only one that is for them");
        /// How long its drain and flush may take before it is named.
        shutdown_timeout: Duration = duration(), Usual("\"10s\"");
    } and {
        /// Where its table begins.
        place: Position
    }
}

/// A text that the protocol carries.
fn shown(what: &'static str) -> ValueKind<String> {
    let short = |text: &String| text.len() <= 4096;
    text().seen(what).within("at most 4096 bytes long", "", short)
}

keys! {
    /// How much may go through in a second.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Limit {
        /// Requests.
        iops: Option<u64> = number().within("at least 1", "", |n| *n > 0).map(|n, _| u64::from(n)),
            Unset("any number");
        /// Bytes of reads and writes.
        bytes: Option<u64> = size().within("at least 1", "", |bytes| *bytes > 0),
            Unset("any number");
    }
}

fn limit() -> ValueKind<Limit> {
    let wanted = "a limit such as { iops = 1000, bytes = \"100M\" }, or one of the two";
    ValueKind::new(move |fields, key| {
        let limit = fields.inline(key, wanted, Limit::read)?;
        if limit == Limit::default() {
            fields.refuse(key, format!("'{key}' must be {wanted}"), "");
        }
        Some(At::new(limit, fields.place(key)))
    })
}

/// One that was empty would let nobody in.
fn listed<T: 'static>(list: ValueKind<Vec<T>>) -> ValueKind<Vec<T>> {
    let why = "an empty one lets nobody in: leave the key out for everybody";
    list.within("a list that isn't empty", why, |list| !list.is_empty())
}

fn users() -> ValueKind<Vec<u32>> {
    listed(ValueKind::new(|fields, key| {
        let users = fields.numbers(key, "a list of numbers of users, such as [0, 1000]")?;
        Some(At::new(users, fields.place(key)))
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
        Some(At::new(names, fields.place(key)))
    }))
}

impl Check for Export {
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
