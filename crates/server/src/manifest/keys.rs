//! What a key of the manifest is. The tables of keys are structs that [`keys!`] declares: each
//! field is a key, and its entry says all that there is to say: how the value is written, what it
//! may be, what goes without it, what a reload does with a change. The field's documentation is the
//! key's line in `docs/manifest.md`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::problem::{self, At, unseen};
use super::reader::Fields;

/// What goes where a key is left out.
#[cfg_attr(not(test), expect(dead_code, reason = "a part is for the manual alone"))]
#[derive(Clone, Copy, Debug)]
pub(crate) enum LeftOut {
    /// Nothing: it is an error, and its help shows this example.
    Required(&'static str),
    /// This value, as a manifest writes it.
    Usual(&'static str),
    /// The field is `None`, which means this.
    Unset(&'static str),
    /// This value, which means what stands behind it.
    Filled(&'static str, &'static str),
}

/// What a reload does with a changed key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reload {
    /// The device is taken down and brought up again, with all that needs it. An export is replaced
    /// while clients go on. A server has to be restarted by hand.
    Restarts,
    /// A larger size is given to the device while clients go on.
    Grows,
    /// Legs are replaced, added and removed while clients go on.
    Legs,
    /// The new value counts from then on.
    Follows,
    /// The new value counts from then on, if it isn't more than the server has shared memory out
    /// for.
    Room,
    /// Newcomers are shown what the files hold by then; to have none, or the first, needs a
    /// restart.
    Renews,
    /// Nothing: the key says how a device begins.
    Ignores,
}

/// A key that differs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) key: &'static str,
    pub(crate) reload: Reload,
}

/// A key, for the manual.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) meaning: &'static str,
    pub(crate) range: Option<String>,
    pub(crate) left_out: LeftOut,
    pub(crate) reload: Reload,
}

/// A struct whose fields are keys.
pub(crate) trait Keys: Sized {
    /// The names of its keys, in order.
    const NAMES: &[&str];

    /// Its keys, in order.
    #[cfg(test)]
    fn keys() -> Vec<Key>;

    /// Reads them, and complains about each that can't be what it says. `None`: one that is
    /// required isn't there.
    fn read(fields: &mut Fields<'_, '_>) -> Option<Self>;

    /// The keys that differ.
    fn changes(&self, other: &Self) -> Vec<Change>;

    /// Takes the values of another one, for keys with which a reload does that.
    fn take(&mut self, other: &Self, takes: impl Fn(Reload) -> bool);
}

/// What the keys of a table may not say together.
pub(super) trait Check {
    /// Complains about it.
    fn check(&self, fields: &mut Fields<'_, '_>);
}

/// Declares a struct and its keys: `key: TYPE = KIND, LEFT_OUT;`, with a [`Reload`] behind it where
/// a change doesn't restart the device. TYPE is what KIND gives, in an [`At`] where its place is
/// wanted, in an `Option` where nothing goes without it. A field behind `and` is no key; the reader
/// leaves it at its default.
macro_rules! keys {
    ($(#[$meta:meta])* $vis:vis struct $name:ident {
        $(
            $(#[doc = $doc:literal])+
            $key:ident: $type:ty = $kind:expr, $left_out:expr $(, $reload:ident)?;
        )+
    } $(and { $(#[$more_meta:meta])+ $more:ident: $more_type:ty })?) => {
        $(#[$meta])*
        $vis struct $name {
            $($(#[doc = $doc])+ $vis $key: $type,)+
            $($(#[$more_meta])+ pub(crate) $more: $more_type,)?
        }

        impl $crate::manifest::keys::Keys for $name {
            const NAMES: &[&str] = &[$(stringify!($key)),+];

            #[cfg(test)]
            fn keys() -> Vec<$crate::manifest::keys::Key> {
                use $crate::manifest::keys::{Key, LeftOut::*, Reload};
                vec![$(Key {
                    name: stringify!($key),
                    meaning: concat!($($doc),+).trim_ascii(),
                    range: $kind.range(),
                    left_out: $left_out,
                    reload: [$(Reload::$reload,)? Reload::Restarts][0],
                }),+]
            }

            fn read(fields: &mut $crate::manifest::reader::Fields<'_, '_>) -> Option<Self> {
                use $crate::manifest::keys::LeftOut::*;
                // All of them, so that each wrong one is complained about.
                let ($($key,)+) = ($($kind.get(fields, stringify!($key), $left_out),)+);
                Some($name { $($key: $key?,)+ $($more: Default::default())? })
            }

            fn changes(&self, other: &Self) -> Vec<$crate::manifest::keys::Change> {
                use $crate::manifest::keys::{Change, Reload};
                let mut changes = Vec::new();
                $(if self.$key != other.$key {
                    let reload = [$(Reload::$reload,)? Reload::Restarts][0];
                    changes.push(Change { key: stringify!($key), reload });
                })+
                changes
            }

            fn take(
                &mut self,
                other: &Self,
                takes: impl Fn($crate::manifest::keys::Reload) -> bool,
            ) {
                use $crate::manifest::keys::Reload;
                $(if takes([$(Reload::$reload,)? Reload::Restarts][0]) {
                    self.$key.clone_from(&other.$key);
                })+
            }
        }
    };
}
pub(super) use keys;

/// What a field keeps of a value: it alone or with its place, and `None` where there is none, if
/// the field can say so.
pub(crate) trait Field<T>: Sized {
    fn keep(found: Option<At<T>>) -> Option<Self>;
}

impl<T> Field<T> for T {
    fn keep(found: Option<At<T>>) -> Option<T> {
        found.map(|at| at.value)
    }
}

impl<T> Field<T> for At<T> {
    fn keep(found: Option<At<T>>) -> Option<At<T>> {
        found
    }
}

impl<T> Field<T> for Option<T> {
    fn keep(found: Option<At<T>>) -> Option<Option<T>> {
        Some(found.map(|at| at.value))
    }
}

impl<T> Field<T> for Option<At<T>> {
    fn keep(found: Option<At<T>>) -> Option<Option<At<T>>> {
        Some(found)
    }
}

/// Reads one key; what is wrong is complained about.
type Read<T> = Box<dyn Fn(&mut Fields<'_, '_>, &'static str) -> Option<At<T>>>;

/// How a value is written, and what it may be.
pub(crate) struct ValueKind<T> {
    read: Read<T>,
    range: Option<String>,
}

impl<T: 'static> ValueKind<T> {
    /// Joins a reader and nothing else.
    pub(super) fn new(
        read: impl Fn(&mut Fields<'_, '_>, &'static str) -> Option<At<T>> + 'static,
    ) -> ValueKind<T> {
        ValueKind { read: Box::new(read), range: None }
    }

    /// Only values that hold are taken. Messages and the manual say `must be RANGE`, and messages
    /// why, if that isn't empty.
    pub(super) fn within(
        self,
        range: &'static str,
        why: &'static str,
        holds: impl Fn(&T) -> bool + 'static,
    ) -> ValueKind<T> {
        let ValueKind { read, .. } = self;
        let read = move |fields: &mut Fields<'_, '_>, key| {
            let at = read(fields, key)?;
            if holds(&at.value) {
                return Some(at);
            }
            let found =
                fields.found(key).map_or_else(String::new, |found| format!(", not {found}"));
            fields.refuse(key, format!("'{key}' must be {range}{found}"), why);
            None
        };
        ValueKind { read: Box::new(read), range: Some(range.to_string()) }
    }

    /// Makes something else of the value.
    pub(super) fn map<U: 'static>(self, map: impl Fn(T, &Path) -> U + 'static) -> ValueKind<U> {
        let ValueKind { read, range } = self;
        let read = move |fields: &mut Fields<'_, '_>, key| {
            let at = read(fields, key)?;
            Some(At::new(map(at.value, fields.base), at.place))
        };
        ValueKind { read: Box::new(read), range }
    }

    /// What the manual says that it must be.
    #[cfg(test)]
    pub(super) fn range(&self) -> Option<String> {
        self.range.clone()
    }

    /// Reads a key.
    pub(super) fn get<F: Field<T>>(
        &self,
        fields: &mut Fields<'_, '_>,
        key: &'static str,
        left_out: LeftOut,
    ) -> Option<F> {
        let mut found = (self.read)(fields, key);
        match left_out {
            LeftOut::Required(example) if !fields.has(key) => fields.needs(key, example),
            LeftOut::Usual(value) | LeftOut::Filled(value, _) if found.is_none() => {
                found = fields.usual(key, value, |fields| (self.read)(fields, key));
                debug_assert!(found.is_some(), "the usual value of '{key}' is none");
            }
            _ => {}
        }
        F::keep(found)
    }
}

impl ValueKind<String> {
    /// Makes something else of the text, or says why it can't be.
    pub(super) fn parse<U: 'static>(
        self,
        parse: impl Fn(&str, &Path) -> Result<U, String> + 'static,
    ) -> ValueKind<U> {
        ValueKind::new(move |fields, key| {
            let at = (self.read)(fields, key)?;
            match parse(&at.value, fields.base) {
                Ok(value) => Some(At::new(value, at.place)),
                Err(why) => {
                    fields.refuse(key, format!("'{key}': {why}"), "");
                    None
                }
            }
        })
    }

    /// Characters that nobody sees are refused.
    pub(super) fn seen(self, what: &'static str) -> ValueKind<String> {
        let ValueKind { read, range } = self;
        let read = move |fields: &mut Fields<'_, '_>, key| {
            let at = read(fields, key)?;
            if let Some(problem) = unseen(what, &at, fields.subject()) {
                fields.push(problem);
            }
            Some(at)
        };
        ValueKind { read: Box::new(read), range }
    }
}

impl ValueKind<Duration> {
    /// Not 0.
    pub(super) fn positive(self, why: &'static str) -> ValueKind<Duration> {
        self.within("greater than 0", why, |time| !time.is_zero())
    }
}

pub(super) fn text() -> ValueKind<String> {
    ValueKind::new(|fields, key| fields.string(key))
}

/// A number may stand for its digits.
pub(super) fn text_or_number() -> ValueKind<String> {
    ValueKind::new(|fields, key| fields.string_or_number(key))
}

/// A path; a relative one begins in the manifest's folder.
pub(super) fn path() -> ValueKind<PathBuf> {
    text().map(|path, base| base.join(path))
}

/// The path of what is made there.
pub(super) fn new_path() -> ValueKind<PathBuf> {
    text().seen("a path").map(|path, base| base.join(path))
}

pub(super) fn flag() -> ValueKind<bool> {
    ValueKind::new(|fields, key| fields.boolean(key))
}

pub(super) fn number() -> ValueKind<u32> {
    ValueKind::new(|fields, key| fields.number(key))
}

/// A number from 0 to 1.
pub(super) fn share() -> ValueKind<f64> {
    ValueKind::new(|fields, key| fields.share(key))
}

pub(super) fn size() -> ValueKind<u64> {
    ValueKind::new(|fields, key| fields.size(key))
}

pub(super) fn duration() -> ValueKind<Duration> {
    ValueKind::new(|fields, key| fields.duration(key))
}

/// One of these words.
pub(super) fn word<T: Copy + 'static>(words: &'static [(&'static str, T)]) -> ValueKind<T> {
    word_or(text(), "one of", words, |_| None)
}

/// One of these words, or what `other` makes of it; `wanted` stands in front of the words.
pub(super) fn word_or<T: Copy + 'static>(
    text: ValueKind<String>,
    wanted: &'static str,
    words: &'static [(&'static str, T)],
    other: impl Fn(&str) -> Option<T> + 'static,
) -> ValueKind<T> {
    ValueKind::new(move |fields, key| {
        let at = (text.read)(fields, key)?;
        let found = other(&at.value)
            .map_or_else(|| problem::word(&at, key, wanted, words, fields.subject()), Ok);
        match found {
            Ok(value) => Some(At::new(value, at.place)),
            Err(problem) => {
                fields.push(problem);
                None
            }
        }
    })
}

/// Names of devices.
pub(super) fn devices() -> ValueKind<Vec<At<String>>> {
    ValueKind::new(|fields, key| {
        let names = fields.names(key, "a list of device names, such as [\"a\", \"b\"]")?;
        Some(At::new(names, fields.place(key)))
    })
}
