//! The changes that turn a running server into the one another manifest describes.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::drivers::Driver;
use super::export::Export;
use super::keys::{Keys, Reload};
use super::model::{Device, Manifest, export_name};

/// The difference of two manifests, in the order in which it is applied.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    /// Names of the exports to remove.
    pub(crate) remove_exports: Vec<String>,
    /// Names of the devices to remove, each after its consumers.
    pub(crate) remove_devices: Vec<String>,
    /// Names of the devices to remove once legs of mirrors have changed, in the same order. Until
    /// then they are such legs, or below one.
    pub(crate) remove_legs: Vec<String>,
    pub(crate) add_devices: Vec<Device>,
    pub(crate) add_exports: Vec<Export>,
    /// Names of devices, and the sizes to which they grow while clients go on.
    pub(crate) grow: Vec<(String, u64)>,
    /// Names of mirrors whose clients go on, and the leg changes of each, in order.
    pub(crate) legs: Vec<(String, Vec<LegChange>)>,
    /// Names of devices with keys that change while clients go on, and the new values.
    pub(crate) follows: Vec<(String, Driver)>,
    /// Overlays that have every block and whose manifest drops their base, and that base.
    pub(crate) drop_bases: Vec<(String, String)>,
    /// Exports to replace. Their devices stay, and so do their clients.
    pub(crate) replace_exports: Vec<Export>,
    /// Names of the devices that are removed and added again: they change, or a device below does.
    pub(crate) restarted: BTreeSet<String>,
}

/// A change of one leg of a mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LegChange {
    Replace { leg: String, with: String },
    Add { with: String },
    Remove { leg: String },
}

impl LegChange {
    /// Returns the leg that is removed.
    pub(crate) fn leaves(&self) -> Option<&str> {
        match self {
            LegChange::Replace { leg, .. } | LegChange::Remove { leg } => Some(leg),
            LegChange::Add { .. } => None,
        }
    }

    /// Returns the device that becomes a leg.
    pub(crate) fn comes(&self) -> Option<&str> {
        match self {
            LegChange::Replace { with, .. } | LegChange::Add { with } => Some(with),
            LegChange::Remove { .. } => None,
        }
    }

    /// Returns the mirror, the new leg and the removed leg.
    pub(crate) fn touches<'a>(&'a self, mirror: &'a str) -> impl Iterator<Item = &'a str> {
        std::iter::once(mirror).chain(self.comes()).chain(self.leaves())
    }
}

impl Changes {
    /// Compares a server's manifest with the one that it is to have.
    pub(crate) fn between(old: &Manifest, new: &Manifest) -> Changes {
        let (devices, exports) = (new.by_name(), new.exports.iter());
        let exports: HashMap<&str, &Export> =
            exports.map(|export| (export.name.as_str(), export)).collect();
        let other = |device: &Device| devices.get(device.name.as_str()).copied();
        let grow: Vec<(String, u64)> = old
            .devices
            .iter()
            .filter_map(|device| grows(device, other(device)?, old, new))
            .collect();
        let grown: HashSet<&str> = grow.iter().map(|(name, _)| name.as_str()).collect();
        let mut legs: Vec<(String, Vec<LegChange>)> =
            old.devices.iter().filter_map(|device| legs(device, other(device)?)).collect();
        let (gone, with_legs) = loop {
            let mirrors: HashSet<&str> = legs.iter().map(|(mirror, _)| mirror.as_str()).collect();
            let stays = |name: &str| grown.contains(name) || mirrors.contains(name);
            let same = |device: &Device| {
                other(device).is_some_and(|other| stays(&device.name) || is_alike(device, other))
            };
            let changed = old.devices.iter().filter(|device| !same(device));
            let changed = changed.map(|device| device.name.clone()).collect();
            let gone = with_consumers(old, &legs, changed);
            // A device that comes back under its own name can't be removed as late as after the leg
            // changes.
            let left: BTreeSet<String> = leaving(&legs).map(str::to_string).collect();
            let with_legs = with_suppliers(old, left);
            let again = |name: &String| gone.contains(name) && devices.contains_key(name.as_str());
            let clash = with_legs.iter().any(again);
            let before = legs.len();
            legs.retain(|(mirror, _)| !gone.contains(mirror) && !clash);
            if legs.len() == before {
                break (gone, with_legs);
            }
        };
        let had = old.by_name();
        let stays = |name: &str| had.contains_key(name) && !gone.contains(name);
        let (mut remove_exports, mut replace_exports) = (Vec::new(), Vec::new());
        let mut restarted: BTreeSet<String> =
            gone.iter().filter(|name| devices.contains_key(name.as_str())).cloned().collect();
        let mut kept = BTreeSet::new();
        for export in &old.exports {
            match exports.get(export.name.as_str()).copied() {
                Some(other) if other.device == export.device && stays(&export.device) => {
                    kept.insert(export.name.as_str());
                    if !export.changes(other).is_empty() {
                        replace_exports.push(other.clone());
                    }
                }
                other => {
                    if other.is_some() {
                        restarted.insert(export_name(&export.name));
                    }
                    remove_exports.push(export.name.clone());
                }
            }
        }
        // The export that gives up the default goes before the one that gets it.
        replace_exports.sort_by_key(|export| export.default);
        let follows = old.devices.iter().filter(|device| stays(&device.name));
        let follows = follows.filter_map(|device| followed(device, new)).collect();
        let new_ones = new.devices.iter().filter(|device| !stays(&device.name));
        let new_exports = new.exports.iter().filter(|export| !kept.contains(export.name.as_str()));
        let (remove_legs, remove_devices) =
            in_order(old, &gone).into_iter().partition(|name| with_legs.contains(name));
        Changes {
            remove_exports,
            remove_devices,
            remove_legs,
            legs,
            add_devices: new_ones.cloned().collect(),
            add_exports: new_exports.cloned().collect(),
            grow,
            follows,
            drop_bases: Vec::new(),
            replace_exports,
            restarted,
        }
    }

    /// Returns the devices that change in place or go.
    pub(crate) fn touched(&self) -> impl Iterator<Item = &str> {
        let legs = self
            .legs
            .iter()
            .flat_map(|(mirror, all)| all.iter().flat_map(|change| change.touches(mirror)));
        let gone = self.remove_devices.iter().chain(&self.remove_legs).map(String::as_str);
        gone.chain(self.grow.iter().map(|(name, _)| name.as_str())).chain(legs)
    }

    /// Returns true if a device, or an export (`export:NAME`), of this name comes up.
    pub(crate) fn adds(&self, name: &str) -> bool {
        self.add_devices.iter().any(|device| device.name == name)
            || self.add_exports.iter().any(|export| export_name(&export.name) == name)
    }

    /// Returns true if there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        let Changes { remove_exports, remove_devices, add_devices, .. } = self;
        remove_exports.is_empty()
            && remove_devices.is_empty()
            && add_devices.is_empty()
            && self.add_exports.is_empty()
            && self.grow.is_empty()
            && self.legs.is_empty()
            && self.follows.is_empty()
            && self.drop_bases.is_empty()
            && self.remove_legs.is_empty()
            && self.replace_exports.is_empty()
    }
}

/// Returns true if no key in which the two devices differ has one of these `reloads`. Suppliers
/// aren't compared.
fn without(reloads: &[Reload], device: &Device, other: &Device) -> bool {
    let driver = device.driver.changes(&other.driver);
    let all = driver.into_iter().chain(device.tuning.changes(&other.tuning));
    all.into_iter().all(|change| !reloads.contains(&change.reload))
}

/// Returns true if a device stays as it is.
fn is_alike(device: &Device, other: &Device) -> bool {
    let others = [Reload::Restarts, Reload::Grows, Reload::Legs];
    device.suppliers == other.suppliers && without(&others, device, other)
}

/// Returns the name of a device and its new keys, if one of those changes that a reload follows at
/// once.
fn followed(device: &Device, new: &Manifest) -> Option<(String, Driver)> {
    let wanted = &new.device(&device.name)?.driver;
    let mut changes = device.driver.changes(wanted).into_iter();
    let follows = changes.any(|change| change.reload == Reload::Follows);
    follows.then(|| (device.name.clone(), wanted.clone()))
}

/// Returns the new size of a file or a volume in a store that grows and stays the same otherwise. A
/// device with others above it can't grow: those know its old size.
fn grows(device: &Device, other: &Device, old: &Manifest, new: &Manifest) -> Option<(String, u64)> {
    let (had, wanted) = (device.driver.size_that_grows()?, other.driver.size_that_grows()?);
    let others = [Reload::Restarts, Reload::Legs];
    let same = device.suppliers == other.suppliers && without(&others, device, other);
    let alone =
        || old.built_over(&device.name).chain(new.built_over(&device.name)).next().is_none();
    (wanted > had && same && alone()).then(|| (device.name.clone(), wanted))
}

/// Returns the leg changes of a mirror that stays the same otherwise.
fn legs(device: &Device, other: &Device) -> Option<(String, Vec<LegChange>)> {
    let (Driver::Mirror(from), Driver::Mirror(to)) = (&device.driver, &other.driver) else {
        return None;
    };
    let others = |suppliers: &[String], over: &[String]| -> Vec<String> {
        suppliers.iter().filter(|name| !over.contains(name)).cloned().collect()
    };
    let same = others(&device.suppliers, &from.over) == others(&other.suppliers, &to.over);
    let changes = leg_changes(&from.over, &to.over)?;
    (without(&[Reload::Restarts], device, other) && same && !changes.is_empty())
        .then(|| (device.name.clone(), changes))
}

/// Returns the steps from one list of legs to the other. Returns `None` if there are no such steps:
/// legs keep their order, and a new one comes last.
fn leg_changes(had: &[String], wanted: &[String]) -> Option<Vec<LegChange>> {
    let is_new = |name: &String| !had.contains(name);
    let stays = |name: &String| wanted.contains(name);
    let pairs = || had.iter().zip(wanted).filter(|(from, to)| from != to);
    if had.len() == wanted.len() && pairs().all(|(from, to)| !stays(from) && is_new(to)) {
        let replace = |(from, to): (&String, &String)| LegChange::Replace {
            leg: from.clone(),
            with: to.clone(),
        };
        return Some(pairs().map(replace).collect());
    }
    let kept: Vec<&String> = had.iter().filter(|name| stays(name)).collect();
    let (first, last) = wanted.split_at_checked(kept.len())?;
    if kept.is_empty() || !first.iter().eq(kept) || !last.iter().all(is_new) {
        return None;
    }
    let adds = last.iter().map(|with| LegChange::Add { with: with.clone() });
    let gone = had.iter().filter(|name| !stays(name));
    let removes = gone.map(|leg| LegChange::Remove { leg: leg.clone() });
    Some(adds.chain(removes).collect())
}

/// Returns the reason why a mirror with a record on its legs wouldn't come up as another manifest
/// has it. Either a leg that stays changes its place, or legs are missing, or the record is
/// switched off. If no leg stays, it is another mirror, and any list is accepted.
pub(crate) fn against_record(mirror: &str, old: &Manifest, new: &Manifest) -> Option<String> {
    let of = |manifest: &Manifest| match &manifest.device(mirror)?.driver {
        Driver::Mirror(mirror) => Some(mirror.clone()),
        _ => None,
    };
    let (had, wanted) = (of(old)?, of(new)?);
    let is_same = |name: &String| match (old.device(name), new.device(name)) {
        (Some(from), Some(to)) => Device { place: to.place, ..from.clone() } == *to,
        _ => false,
    };
    let stay = had.over.iter().filter(|name| is_same(name) && wanted.over.contains(name));
    let moved = |name: &&String| {
        let place = |over: &[String]| over.iter().position(|one| one == *name);
        place(&had.over) != place(&wanted.over)
    };
    let stay: Vec<&String> = stay.collect();
    let (had, fewer) = (&had.over, wanted.over.len() < had.over.len());
    if stay.is_empty() {
        None
    } else if fewer || stay.iter().any(moved) {
        Some(format!(
            // Debug: lists of names, as a manifest has them.
            "the record of the mirror has the legs {had:?}, but the manifest says over = {:?}. \
             Keep the legs in the order of the record, and add new ones at the end; `corewise \
             mirror {mirror} --remove LEG` removes one",
            wanted.over
        ))
    } else {
        (wanted.bitmap == Some(false)).then(|| {
            "the legs have a record, with which 'bitmap = false' is refused. Leave 'bitmap' as it \
             was"
            .to_string()
        })
    }
}

/// Returns the legs that go.
fn leaving(legs: &[(String, Vec<LegChange>)]) -> impl Iterator<Item = &str> {
    legs.iter().flat_map(|(_, changes)| changes).filter_map(LegChange::leaves)
}

/// Returns these devices and all their suppliers.
fn with_suppliers(manifest: &Manifest, mut all: BTreeSet<String>) -> BTreeSet<String> {
    let devices = manifest.by_name();
    let mut todo: Vec<String> = all.iter().cloned().collect();
    while let Some(name) = todo.pop() {
        for supplier in devices.get(name.as_str()).iter().flat_map(|device| &device.suppliers) {
            if all.insert(supplier.clone()) {
                todo.push(supplier.clone());
            }
        }
    }
    all
}

/// Returns these devices and all their consumers, except mirrors that get other legs instead.
fn with_consumers(
    manifest: &Manifest,
    legs: &[(String, Vec<LegChange>)],
    mut gone: BTreeSet<String>,
) -> BTreeSet<String> {
    let leaves = |mirror: &str, leg: &str| {
        let mut changes = legs.iter().filter(|(name, _)| name == mirror).flat_map(|(_, all)| all);
        changes.any(|change| change.leaves() == Some(leg))
    };
    let consumers = manifest.consumers();
    let mut todo: Vec<String> = gone.iter().cloned().collect();
    while let Some(name) = todo.pop() {
        for device in consumers.get(name.as_str()).into_iter().flatten() {
            if !leaves(&device.name, &name) && gone.insert(device.name.clone()) {
                todo.push(device.name.clone());
            }
        }
    }
    gone
}

/// Returns these devices, each after its consumers.
fn in_order(manifest: &Manifest, gone: &BTreeSet<String>) -> Vec<String> {
    let going = || manifest.devices.iter().filter(|device| gone.contains(&device.name));
    let devices: HashMap<&str, &Device> =
        going().map(|device| (device.name.as_str(), device)).collect();
    // Number of consumers left of each device.
    let mut needed: HashMap<&str, usize> = HashMap::new();
    for supplier in going().flat_map(|device| &device.suppliers) {
        *needed.entry(supplier).or_default() += 1;
    }
    // A manifest has no cycles, so each device becomes free.
    let free = |device: &&Device| !needed.contains_key(device.name.as_str());
    let mut order: Vec<&Device> = going().filter(free).collect();
    let mut next = 0;
    while let Some(device) = order.get(next) {
        next += 1;
        for supplier in &device.suppliers {
            let Some(left) = needed.get_mut(supplier.as_str()) else { continue };
            *left -= 1;
            if *left == 0 {
                order.extend(devices.get(supplier.as_str()));
            }
        }
    }
    order.into_iter().map(|device| device.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::manifest::read;

    const BEFORE: &str = "[[device]]\nname = \"a\"\ndriver = \"null\"\nsize = \"1M\"\n\
        [[device]]\nname = \"b\"\ndriver = \"null\"\nsize = \"1M\"\n\
        [[device]]\nname = \"s\"\ndriver = \"stripe\"\nover = [\"a\", \"b\"]\n\
        [[device]]\nname = \"z\"\ndriver = \"null\"\nsize = \"1M\"\n\
        [[export]]\ndevice = \"s\"\n[[export]]\ndevice = \"z\"\n";

    fn changes(after: &str) -> Changes {
        let manifest = |text: &str| {
            let read = read(text, Path::new("/"));
            assert_eq!(read.problems, []);
            read.manifest
        };
        Changes::between(&manifest(BEFORE), &manifest(after))
    }

    #[test]
    fn a_manifest_that_was_only_rearranged_changes_nothing() {
        let changes = changes(&format!("# a comment\n\n{BEFORE}"));
        assert!(changes.is_empty(), "{changes:?}");
    }

    #[test]
    fn a_default_that_is_written_out_changes_nothing() {
        let written = BEFORE
            .replacen(
                "size = \"1M\"\n",
                "size = \"1M\"\nblock_size = 512\nshutdown_timeout = \"10s\"\nhw_queues = \"cpu\"\n",
                1,
            )
            .replace("device = \"z\"\n", "device = \"z\"\nshutdown_timeout = \"10s\"\n");
        let server = "[server]\nrequest_timeout = \"30s\"\nreply_timeout = \"60s\"\n";
        let changes = changes(&format!("{server}{written}"));
        assert!(changes.is_empty(), "{changes:?}");
        let keys = "resync_least = \"10M\"\nresync_most = \"400M\"\ndegraded = \"known\"\n";
        let changes = of_mirror(&["a", "b", "c"], "abcd", keys);
        assert!(changes.is_empty(), "{changes:?}");
    }

    #[test]
    fn a_changed_part_takes_all_that_stand_on_it_down_and_up_again() {
        let changes = changes(&BEFORE.replacen("1M", "2M", 1));
        assert_eq!(changes.remove_exports, ["s"]);
        assert_eq!(changes.remove_devices, ["s", "a"]);
        let added: Vec<&str> = changes.add_devices.iter().map(|d| d.name.as_str()).collect();
        assert_eq!(added, ["a", "s"]);
        assert_eq!(changes.add_exports.len(), 1);
        let restarted: Vec<&str> = changes.restarted.iter().map(String::as_str).collect();
        assert_eq!(restarted, ["a", "export:s", "s"]);
    }

    #[test]
    fn an_export_whose_device_stays_is_replaced_and_the_new_default_comes_last() {
        let after = BEFORE.replace("device = \"s\"\n", "device = \"s\"\ndefault = true\n");
        let after = after.replace("device = \"z\"\n", "device = \"z\"\nread_only = true\n");
        let changes = changes(&after);
        let replaced: Vec<&str> = changes.replace_exports.iter().map(|e| e.name.as_str()).collect();
        assert_eq!(replaced, ["z", "s"]);
        assert!(changes.remove_exports.is_empty() && changes.add_devices.is_empty());
    }

    #[test]
    fn what_is_gone_is_removed_and_a_changed_server_table_is_noticed() {
        let (rest, _) = BEFORE.split_once("[[device]]\nname = \"z\"").unwrap();
        let changes =
            changes(&format!("[server]\ndrain = \"1s\"\n{rest}[[export]]\ndevice = \"s\"\n"));
        assert_eq!(changes.remove_exports, ["z"]);
        assert_eq!(changes.remove_devices, ["z"]);
        assert!(changes.restarted.is_empty());
    }

    /// Returns a manifest with a mirror of these legs, and null devices named by the letters.
    fn mirror(over: &[&str], devices: &str, keys: &str) -> String {
        let volume = |name: char| {
            format!("[[device]]\nname = \"{name}\"\ndriver = \"null\"\nsize = \"1M\"\n")
        };
        let volumes: String = devices.chars().map(volume).collect();
        volumes
            + &format!(
                "[[device]]\nname = \"m\"\ndriver = \"mirror\"\nover = {over:?}\n{keys}[[export]]\ndevice = \"m\"\n"
            )
    }

    fn of_mirror(over: &[&str], devices: &str, keys: &str) -> Changes {
        let manifest = |text: &str| {
            let read = read(text, Path::new("/"));
            assert_eq!(read.problems, []);
            read.manifest
        };
        let old = manifest(&mirror(&["a", "b", "c"], "abcd", ""));
        Changes::between(&old, &manifest(&mirror(over, devices, keys)))
    }

    #[test]
    fn a_mirror_of_which_only_the_legs_changed_stays_and_they_change() {
        let replace = |leg: &str, with: &str| LegChange::Replace {
            leg: leg.to_string(),
            with: with.to_string(),
        };
        let add = |with: &str| LegChange::Add { with: with.to_string() };
        let remove = |leg: &str| LegChange::Remove { leg: leg.to_string() };
        for (over, devices, legs, gone) in [
            (&["a", "d", "c"][..], "acd", vec![replace("b", "d")], &["b"][..]),
            (&["a", "e", "f"], "abcdef", vec![replace("b", "e"), replace("c", "f")], &[]),
            (&["a", "b", "c", "d", "e"], "abcde", vec![add("d"), add("e")], &[]),
            (&["c"], "cd", vec![remove("a"), remove("b")], &["a", "b"]),
            (&["b", "d"], "abcd", vec![add("d"), remove("a"), remove("c")], &[]),
        ] {
            let changes = of_mirror(over, devices, "");
            assert_eq!(changes.legs, [("m".to_string(), legs)]);
            assert_eq!(changes.remove_legs, gone);
            assert!(changes.remove_devices.is_empty() && changes.remove_exports.is_empty());
            assert!(!changes.is_empty() && changes.restarted.is_empty());
        }
    }

    #[test]
    fn a_mirror_that_is_only_checked_at_other_times_stays_as_it_is() {
        let changes = of_mirror(&["a", "b", "c"], "abcd", "check_every = \"7d\"\n");
        let week = Some(Duration::from_secs(7 * 86_400));
        let [(name, Driver::Mirror(mirror))] = &changes.follows[..] else { panic!("{changes:?}") };
        assert_eq!((name.as_str(), mirror.check_every), ("m", week));
        assert!(changes.remove_devices.is_empty() && changes.restarted.is_empty());
        assert!(!changes.is_empty());
        let both = of_mirror(&["a", "b", "c", "d"], "abcd", "check_every = \"7d\"\n");
        assert_eq!((both.follows.len(), both.legs.len(), both.remove_devices.len()), (1, 1, 0));
        assert!(of_mirror(&["a", "b", "c"], "abcd", "").follows.is_empty());
    }

    #[test]
    fn a_record_lets_no_mirror_come_up_whose_legs_are_in_other_places_or_fewer_or_without_it() {
        let read = |over: &[&str], devices: &str, more: &str| {
            read(&(mirror(over, devices, "degraded = \"never\"\n") + more), Path::new("/")).manifest
        };
        let wrong = |old: &Manifest, new: &Manifest| against_record("m", old, new).is_some();
        let old = read(&["a", "b", "c"], "abcd", "");
        for (over, is_wrong) in [
            (&["a", "b", "c"][..], false),
            (&["a", "b", "c", "d"], false),
            (&["a", "d", "c"], false),
            (&["d"], false),
            (&["b", "a", "c"], true),
            (&["a", "d", "b", "c"], true),
            (&["a", "b"], true),
        ] {
            assert_eq!(wrong(&old, &read(over, "abcd", "")), is_wrong, "{over:?}");
        }
        // A name that now belongs to another device is no leg that stays.
        let other = "[[device]]\nname = \"a\"\ndriver = \"null\"\nsize = \"2M\"\n";
        assert!(!wrong(&old, &read(&["d", "a"], "d", other)));
        let mut without = old.clone();
        for device in &mut without.devices {
            if let Driver::Mirror(mirror) = &mut device.driver {
                mirror.bitmap = Some(false);
            }
        }
        assert!(wrong(&old, &without));
    }

    #[test]
    fn a_mirror_of_which_more_changed_or_whose_legs_are_in_another_order_is_restarted() {
        let again = mirror(&["a", "d", "c"], "acd", "") + &mirror(&[], "b", "").replace("1M", "2M");
        let (again, _) = again.rsplit_once("[[device]]\nname = \"m\"").unwrap();
        let read = |text: &str| read(text, Path::new("/")).manifest;
        let old = read(&mirror(&["a", "b", "c"], "abcd", ""));
        for changes in [
            of_mirror(&["a", "d", "c"], "abcd", "retry = \"1s\"\n"),
            of_mirror(&["b", "a", "c"], "abcd", ""),
            of_mirror(&["a", "d", "b", "c"], "abcd", ""),
            of_mirror(&["e", "f"], "abcdef", ""),
            // A leg that stays is another device.
            Changes::between(
                &old,
                &read(&mirror(&["a", "d", "c"], "acd", "").replacen("1M", "2M", 1)),
            ),
            // The leg that goes is another device from then on.
            Changes::between(&old, &read(again)),
        ] {
            assert!(changes.legs.is_empty() && changes.remove_legs.is_empty());
            assert!(changes.remove_devices.contains(&"m".to_string()), "{changes:?}");
            assert_eq!(changes.remove_exports, ["m"]);
        }
    }

    #[cfg(feature = "object")]
    #[test]
    fn a_volume_in_a_store_stays_and_grows_whatever_the_manifest_says_that_it_was_made_of() {
        let volume = |keys: &str| {
            let text = format!(
                "[[device]]\nname = \"v\"\ndriver = \"object\"\nlocation = \"file:///a/v\"\n{keys}"
            );
            read(&text, Path::new("/")).manifest
        };
        let of = |snapshot| {
            volume(&format!(
                "size = \"1M\"\nclone_of = \"file:///a/p\"\nsnapshot = \"{snapshot}\"\n"
            ))
        };
        for (old, new) in [(volume("size = \"1M\"\n"), of("s")), (of("s"), of("t"))] {
            assert!(Changes::between(&old, &new).is_empty());
            assert!(Changes::between(&new, &old).is_empty());
        }
        let gives_up = volume("size = \"1M\"\naccept_lost_flushes = \"17-3fa29c41\"\n");
        assert!(Changes::between(&volume("size = \"1M\"\n"), &gives_up).is_empty());
        let changes = Changes::between(&of("s"), &volume("size = \"2M\"\n"));
        assert_eq!(changes.grow, [("v".to_string(), 2 << 20)]);
        assert!(changes.remove_devices.is_empty());
    }

    #[test]
    fn a_file_that_is_to_be_longer_grows_unless_something_is_built_over_it_or_more_has_changed() {
        let file = |size: &str, rest: &str| {
            let text = format!(
                "[[device]]\nname = \"f\"\ndriver = \"file\"\npath = \"f\"\nsize = \"{size}\"\n\
                 create = true\n{rest}"
            );
            read(&text, Path::new("/")).manifest
        };
        let (old, above) = (
            file("1M", ""),
            "[[device]]\nname = \"p\"\ndriver = \"partition\"\nover = [\"f\"]\npartition = 1\n",
        );
        let changes = Changes::between(&old, &file("2M", ""));
        assert_eq!(changes.grow, [("f".to_string(), 2 << 20)]);
        assert!(changes.remove_devices.is_empty() && !changes.is_empty());
        for new in [file("512K", ""), file("2M", "direct = true\n"), file("2M", above)] {
            let changes = Changes::between(&old, &new);
            assert!(changes.grow.is_empty());
            assert_eq!(changes.remove_devices, ["f"]);
        }
    }
}
