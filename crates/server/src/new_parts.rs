//! Parts that must not be created: if the other parts of a stripe hold data, this one held data,
//! too.
//!
//! Mirrors aren't examined here: `Mirror::open` compares the content of its legs.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::manifest::{Device, Driver, Manifest};
use crate::store_check;

/// Returns the missing devices of this manifest that must not be created, each with the reason.
///
/// Volumes in stores on the network aren't looked up.
pub(crate) fn refused(manifest: &Manifest) -> BTreeMap<String, String> {
    let devices = manifest.by_name();
    let presence = presence(manifest, &devices);
    let is = |part: &str, there: bool| presence.get(part) == Some(&Some(there));
    let mut refused = BTreeMap::new();
    for (stripe, parts) in stripes(manifest) {
        let Some(there) = parts.iter().find(|part| is(part, true)) else { continue };
        let mut seen = HashSet::new();
        for part in parts.iter().filter(|part| is(part, false)) {
            // The lowest devices of that part which don't exist.
            let mut todo = vec![part.as_str()];
            while let Some(name) = todo.pop() {
                if !seen.insert(name) {
                    continue;
                }
                match devices.get(name).map_or(&[][..], |device| device.driver.over()) {
                    [] if is(name, false) => {
                        refused.insert(name.to_owned(), new_part_refusal(stripe, part, there));
                    }
                    below => todo.extend(below.iter().map(String::as_str)),
                }
            }
        }
    }
    refused
}

/// Returns the reason why a volume doesn't come up with a part that is new.
pub(crate) fn new_part_refusal(volume: &str, new: &str, old: &str) -> String {
    format!(
        "'{new}' would be new, but '{old}', another part of '{volume}', is not: '{volume}' would \
         lack the data of the former '{new}'. Bring that back (is its disk mounted?). To start \
         '{volume}' anew, remove the content of '{old}'"
    )
}

fn stripes(manifest: &Manifest) -> impl Iterator<Item = (&str, &[String])> {
    manifest.devices.iter().filter_map(|device| match &device.driver {
        Driver::Stripe(asked) => Some((device.name.as_str(), asked.over.as_slice())),
        _ => None,
    })
}

/// Returns for each part of a stripe, and each device below it, whether it existed before, or
/// `None` if that is unknown. Each device is examined once, in however many ways it is reached.
fn presence<'m>(
    manifest: &'m Manifest,
    devices: &HashMap<&str, &'m Device>,
) -> HashMap<&'m str, Option<bool>> {
    let mut presence = HashMap::new();
    let mut todo: Vec<&str> =
        stripes(manifest).flat_map(|(_, parts)| parts).map(String::as_str).collect();
    while let Some(&name) = todo.last() {
        let Some(device) = devices.get(name).filter(|_| !presence.contains_key(name)) else {
            todo.pop();
            continue;
        };
        let over = device.driver.over().iter().map(String::as_str);
        let before = todo.len();
        let unknown = |part: &&str| devices.contains_key(part) && !presence.contains_key(part);
        todo.extend(over.clone().filter(unknown));
        if todo.len() == before {
            let parts: Vec<_> = over.map(|part| presence.get(part).copied().flatten()).collect();
            presence.insert(name, existed(&device.driver, &parts));
            todo.pop();
        }
    }
    presence
}

/// Returns whether a device existed before, given the same of its parts.
fn existed(driver: &Driver, parts: &[Option<bool>]) -> Option<bool> {
    match driver {
        Driver::File(file) if file.create => holds_file(&file.path.value),
        Driver::File(file) => file.path.value.exists().then_some(true),
        Driver::Object(asked) => store_check::is_there(asked),
        Driver::Memory(_) | Driver::Null(_) | Driver::Remote(_) => None,
        _ => match (parts.contains(&Some(true)), parts.contains(&Some(false))) {
            (true, false) => Some(true),
            (false, true) => Some(false),
            // One leg of a mirror has all its data; a stripe needs all its parts.
            (true, true) => Some(matches!(driver, Driver::Mirror(_))),
            (false, false) => None,
        },
    }
}

/// Returns true if data was at that path, or `None` if nothing would be lost without it.
fn holds_file(path: &Path) -> Option<bool> {
    match path.metadata() {
        Ok(meta) if meta.is_file() && meta.len() == 0 => Some(false),
        Ok(meta) if meta.is_file() && meta.blocks() == 0 => None,
        Err(error) if error.kind() == ErrorKind::NotFound => Some(false),
        // Something is there, even if this process may not read it.
        _ => Some(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest;

    #[test]
    fn each_device_is_examined_once_in_however_many_ways_it_is_reached() {
        let part = |name: &str, rest: &str| format!("[[device]]\nname = \"{name}\"\n{rest}\n");
        let new = "driver = \"file\"\npath = \"none.img\"\nsize = \"1M\"\ncreate = true";
        let mut text = part("s0", new) + &part("old", "driver = \"file\"\npath = \"/dev/null\"");
        // Each level doubles the ways to the bottom.
        for n in 1..=60 {
            let below = n - 1;
            for k in [1, 2] {
                let over = format!("over = [\"s{below}\"]\npartition = {k}");
                text += &part(&format!("p{n}{k}"), &format!("driver = \"partition\"\n{over}"));
            }
            let over = format!("over = [\"p{n}1\", \"p{n}2\"]");
            text += &part(&format!("s{n}"), &format!("driver = \"stripe\"\n{over}"));
        }
        text += &part("all", "driver = \"stripe\"\nover = [\"s60\", \"old\"]");
        let refused = refused(&manifest::read(&text, Path::new("/")).manifest);
        assert_eq!(refused.keys().collect::<Vec<_>>(), ["s0"]);
        assert_eq!(refused["s0"], new_part_refusal("all", "s60", "old"));
    }
}
