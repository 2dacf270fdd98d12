//! The declaration of the manifest's keys. The tables of keys are structs that [`keys!`] declares.
//! Each field is a key. Its entry has the form of the value, its range, its default, and the effect
//! of a change in a reload. The field's documentation is the key's line in `docs/manifest.md`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::problem::{self, Located, unseen};
use super::reader::Fields;

/// The default of a key that is left out.
#[cfg_attr(not(test), expect(dead_code, reason = "a part is for the manual alone"))]
#[derive(Clone, Copy, Debug)]
pub(crate) enum KeyDefault {
    /// Error for a missing key, whose help shows this example.
    Required(&'static str),
    /// Default value, as a manifest writes it.
    Usual(&'static str),
    /// Meaning of the field's `None`.
    Unset(&'static str),
    /// Default value, and its meaning in the manual.
    Filled(&'static str, &'static str),
}

/// The effect of a changed key in a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reload {
    /// The device is taken down and brought up again, with all its consumers. An export is replaced
    /// while clients go on. A change of the server's own keys needs a restart by hand.
    Restarts,
    /// The device grows while clients go on.
    Grows,
    /// Legs are replaced, added and removed while clients go on.
    Legs,
    /// The new value takes effect at once.
    Follows,
    /// The new value takes effect at once, unless it is above the limit that the server's memory
    /// was divided for.
    FollowsWithinMemory,
    /// New connections get the new content of the files. Setting the first file, or none, needs a
    /// restart.
    Renews,
    /// The change is ignored: the key matters only when the device is created or opened.
    Ignores,
}

/// A key whose values differ.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyChange {
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
    pub(crate) left_out: KeyDefault,
    pub(crate) reload: Reload,
}

/// A struct whose fields are keys.
pub(crate) trait Keys: Sized {
    /// Names of the keys, in order.
    const NAMES: &[&str];

    /// Returns the keys, in order.
    #[cfg(test)]
    fn keys() -> Vec<Key>;

    /// Reads the keys and reports each value that is refused. Returns `None` if a required key is
    /// missing.
    fn read(fields: &mut Fields<'_, '_>) -> Option<Self>;

    /// Returns the keys that differ.
    fn changes(&self, other: &Self) -> Vec<KeyChange>;

    /// Copies the values of `other` for each key whose [`Reload`] `takes` accepts.
    fn take(&mut self, other: &Self, takes: impl Fn(Reload) -> bool);
}

/// The combinations of keys that a table refuses.
pub(super) trait CheckKeys {
    /// Reports each such combination.
    fn check(&self, fields: &mut Fields<'_, '_>);
}

/// Declares a struct and its keys: `key: TYPE = KIND, LEFT_OUT;`, with a [`Reload`] at the end if a
/// change doesn't restart the device. TYPE is the type that KIND gives: in a [`Located`] if the
/// value's place is needed, in an `Option` if the key has no default. A field behind `and` is no
/// key; the reader leaves it at its default.
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
                use $crate::manifest::keys::{Key, KeyDefault::*, Reload};
                vec![$(Key {
                    name: stringify!($key),
                    meaning: concat!($($doc),+).trim_ascii(),
                    range: $kind.range(),
                    left_out: $left_out,
                    reload: [$(Reload::$reload,)? Reload::Restarts][0],
                }),+]
            }

            fn read(fields: &mut $crate::manifest::reader::Fields<'_, '_>) -> Option<Self> {
                use $crate::manifest::keys::KeyDefault::*;
                // All keys are read before a missing one counts, so that each wrong one is
                // reported.
                let ($($key,)+) = ($($kind.get(fields, stringify!($key), $left_out),)+);
                Some($name { $($key: $key?,)+ $($more: Default::default())? })
            }

            fn changes(&self, other: &Self) -> Vec<$crate::manifest::keys::KeyChange> {
                use $crate::manifest::keys::{KeyChange, Reload};
                let mut changes = Vec::new();
                $(if self.$key != other.$key {
                    let reload = [$(Reload::$reload,)? Reload::Restarts][0];
                    changes.push(KeyChange { key: stringify!($key), reload });
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

/// The form in which a field keeps a value: alone or with its place. The value is `None` if the
/// field is an `Option` and the key is missing.
pub(crate) trait Field<T>: Sized {
    fn keep(found: Option<Located<T>>) -> Option<Self>;
}

impl<T> Field<T> for T {
    fn keep(found: Option<Located<T>>) -> Option<T> {
        found.map(|at| at.value)
    }
}

impl<T> Field<T> for Located<T> {
    fn keep(found: Option<Located<T>>) -> Option<Located<T>> {
        found
    }
}

impl<T> Field<T> for Option<T> {
    fn keep(found: Option<Located<T>>) -> Option<Option<T>> {
        Some(found.map(|at| at.value))
    }
}

impl<T> Field<T> for Option<Located<T>> {
    fn keep(found: Option<Located<T>>) -> Option<Option<Located<T>>> {
        Some(found)
    }
}

/// A function that reads one key and reports its problems.
type Read<T> = Box<dyn Fn(&mut Fields<'_, '_>, &'static str) -> Option<Located<T>>>;

/// A kind of value: how it is written, and its range.
pub(crate) struct ValueKind<T> {
    read: Read<T>,
    range: Option<String>,
}

impl<T: 'static> ValueKind<T> {
    /// Creates a kind from a reader, without a range.
    pub(super) fn new(
        read: impl Fn(&mut Fields<'_, '_>, &'static str) -> Option<Located<T>> + 'static,
    ) -> ValueKind<T> {
        ValueKind { read: Box::new(read), range: None }
    }

    /// Accepts only values for which `holds` returns true. Messages and the manual say
    /// `must be RANGE`. Messages add `why`, if it isn't empty.
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

    /// Converts the value.
    pub(super) fn map<U: 'static>(self, map: impl Fn(T, &Path) -> U + 'static) -> ValueKind<U> {
        let ValueKind { read, range } = self;
        let read = move |fields: &mut Fields<'_, '_>, key| {
            let at = read(fields, key)?;
            Some(Located::new(map(at.value, fields.base), at.place))
        };
        ValueKind { read: Box::new(read), range }
    }

    /// Returns the range, as the manual says it.
    #[cfg(test)]
    pub(super) fn range(&self) -> Option<String> {
        self.range.clone()
    }

    /// Reads a key.
    pub(super) fn get<F: Field<T>>(
        &self,
        fields: &mut Fields<'_, '_>,
        key: &'static str,
        left_out: KeyDefault,
    ) -> Option<F> {
        let mut found = (self.read)(fields, key);
        match left_out {
            KeyDefault::Required(example) if !fields.has(key) => fields.needs(key, example),
            KeyDefault::Usual(value) | KeyDefault::Filled(value, _) if found.is_none() => {
                found = fields.usual(key, value, |fields| (self.read)(fields, key));
                debug_assert!(found.is_some(), "the usual value of '{key}' is none");
            }
            _ => {}
        }
        F::keep(found)
    }
}

impl ValueKind<String> {
    /// Converts the text, or reports why it can't.
    pub(super) fn parse<U: 'static>(
        self,
        parse: impl Fn(&str, &Path) -> Result<U, String> + 'static,
    ) -> ValueKind<U> {
        ValueKind::new(move |fields, key| {
            let at = (self.read)(fields, key)?;
            match parse(&at.value, fields.base) {
                Ok(value) => Some(Located::new(value, at.place)),
                Err(why) => {
                    fields.refuse(key, format!("'{key}': {why}"), "");
                    None
                }
            }
        })
    }

    /// Refuses invisible characters.
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
    /// Refuses 0.
    pub(super) fn positive(self, why: &'static str) -> ValueKind<Duration> {
        self.within("greater than 0", why, |time| !time.is_zero())
    }
}

pub(super) fn text() -> ValueKind<String> {
    ValueKind::new(|fields, key| fields.string(key))
}

/// Reads a text; a number stands for its digits.
pub(super) fn text_or_number() -> ValueKind<String> {
    ValueKind::new(|fields, key| fields.string_or_number(key))
}

/// Reads a path; a relative one begins in the manifest's folder.
pub(super) fn path() -> ValueKind<PathBuf> {
    text().map(|path, base| base.join(path))
}

/// Reads the path of a file or folder that may be created.
pub(super) fn new_path() -> ValueKind<PathBuf> {
    text().seen("a path").map(|path, base| base.join(path))
}

pub(super) fn flag() -> ValueKind<bool> {
    ValueKind::new(|fields, key| fields.boolean(key))
}

pub(super) fn number() -> ValueKind<u32> {
    ValueKind::new(|fields, key| fields.number(key))
}

/// Reads a number from 0 to 1.
pub(super) fn share() -> ValueKind<f64> {
    ValueKind::new(|fields, key| fields.share(key))
}

pub(super) fn size() -> ValueKind<u64> {
    ValueKind::new(|fields, key| fields.size(key))
}

pub(super) fn duration() -> ValueKind<Duration> {
    ValueKind::new(|fields, key| fields.duration(key))
}

/// Reads one of these words.
pub(super) fn word<T: Copy + 'static>(words: &'static [(&'static str, T)]) -> ValueKind<T> {
    word_or(text(), "one of", words, |_| None)
}

/// Reads one of these words, or converts another text with `other`. Messages put `wanted` in front
/// of the words.
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
            Ok(value) => Some(Located::new(value, at.place)),
            Err(problem) => {
                fields.push(problem);
                None
            }
        }
    })
}

/// Reads names of devices.
pub(super) fn devices() -> ValueKind<Vec<Located<String>>> {
    ValueKind::new(|fields, key| {
        let names = fields.names(key, "a list of device names, such as [\"a\", \"b\"]")?;
        Some(Located::new(names, fields.place(key)))
    })
}
