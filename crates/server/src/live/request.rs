//! The way from a question on the control socket to the manifest that the server is to have.

use std::fmt;
use std::path::{Path, PathBuf};

use super::legs;
use crate::control::stores::OverlayChange;
use crate::control::{Mode, Question};
use crate::error::Error;
use crate::manifest::{self, Driver, LegChange, Manifest, ResolvedManifest, export_name};
use crate::source::Source;
use crate::{text, units};

/// A change and its options.
pub(crate) struct Change {
    pub(crate) request: ChangeRequest,
    /// Treatment of clients in the way.
    pub(crate) mode: Mode,
    /// True to change nothing and report the steps of the change.
    pub(crate) dry_run: bool,
}

/// The change that a client asks for.
pub(crate) enum ChangeRequest {
    Add(PathBuf),
    Remove(String),
    Grow(String, Option<u64>),
    /// Change of the legs of a mirror.
    Legs(String, LegChange),
    /// Change of a whole overlay.
    Overlay(String, OverlayChange),
    Reload,
}

impl ChangeRequest {
    /// Returns the change that a question asks for, or `None` if it isn't about a change.
    pub(crate) fn of(question: &Question) -> Option<Result<ChangeRequest, String>> {
        Some(match question.ask.as_str() {
            "add" => match &question.file {
                Some(file) if file.is_absolute() => Ok(ChangeRequest::Add(file.clone())),
                _ => Err("'add' needs a 'file', an absolute path".to_string()),
            },
            "remove" => match &question.name {
                Some(name) => Ok(ChangeRequest::Remove(name.clone())),
                None => Err("'remove' needs a 'name'".to_string()),
            },
            "grow" => match (&question.name, question.size) {
                // The largest offset that a file has is 2^63 - 1.
                (_, Some(size)) if size > i64::MAX as u64 => {
                    Err(units::too_large(&size.to_string()))
                }
                (Some(name), size) => Ok(ChangeRequest::Grow(name.clone(), size)),
                (None, _) => Err("'grow' needs a 'name'".to_string()),
            },
            "replace" | "add_leg" | "remove_leg" => legs::request(question),
            "reload" => Ok(ChangeRequest::Reload),
            ask => {
                let change = OverlayChange::of(ask)?;
                match &question.name {
                    Some(name) => Ok(ChangeRequest::Overlay(name.clone(), change)),
                    None => Err(format!("'{ask}' needs a 'name'")),
                }
            }
        })
    }
}

/// The change in progress.
#[derive(Clone, Debug, Default)]
pub(crate) struct InProgress {
    /// The change, as a participle.
    pub(super) words: Option<String>,
    /// Removals of hidden exports after their last clients that are made, or wait for their turn.
    pub(super) unused_removals: usize,
}

/// Writes the change as a participle, for "the server is still …".
impl fmt::Display for ChangeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ChangeRequest::Add(file) => write!(f, "adding {}", file.display()),
            ChangeRequest::Remove(name) => write!(f, "removing '{name}'"),
            ChangeRequest::Grow(name, _) => write!(f, "growing '{name}'"),
            ChangeRequest::Legs(mirror, _) => write!(f, "changing the legs of '{mirror}'"),
            ChangeRequest::Overlay(name, change) => write!(f, "{} '{name}'", change.words()),
            ChangeRequest::Reload => f.write_str("following the manifest"),
        }
    }
}

/// Reads a manifest and refuses one with problems.
pub(super) fn checked(
    file: &Path,
    read: impl FnOnce(&str, &Path) -> ResolvedManifest,
) -> Result<Manifest, Error> {
    let source = Source::read_plain(file)?;
    let base = source.base.unwrap_or_default();
    let manifest = read(&source.text, &base).into_manifest(&source.label);
    manifest.map_err(|error| Error::refused(error.to_string()))
}

/// Returns the manifest of a server's devices and exports, with the content of the file added.
pub(super) fn added(file: &Path, old: &Manifest) -> Result<Manifest, Error> {
    let more = checked(file, |text, base| manifest::read_beside(text, base, old))?;
    let mut new = old.clone();
    new.devices.extend(more.devices);
    new.exports.extend(more.exports);
    Ok(new)
}

/// Returns the manifest of a server's devices and exports, without a device and its exports, or
/// without an export.
pub(super) fn without(name: &str, old: &Manifest) -> Result<Manifest, Error> {
    let mut new = old.clone();
    if let Some(export) = name.strip_prefix("export:") {
        new.exports.retain(|one| one.name != export);
        return match new.exports.len() < old.exports.len() {
            true => Ok(new),
            false => Err(format!("there is no export '{export}'{}", known(old)).into()),
        };
    }
    if old.device(name).is_none() {
        // No device has the name, so it means the export.
        return match old.export(name) {
            Some(_) => without(&export_name(name), old),
            None => Err(format!("there is no device and no export '{name}'{}", known(old)).into()),
        };
    }
    let needs = |device: &&manifest::Device| device.suppliers.iter().any(|one| one == name);
    if let Some(above) = old.devices.iter().find(needs) {
        return Err(format!("'{}' needs '{name}': remove it first", above.name).into());
    }
    new.exports.retain(|export| export.device != name);
    new.devices.retain(|device| device.name != name);
    Ok(new)
}

/// Returns a message with the first of the devices and exports.
pub(super) fn known(manifest: &Manifest) -> String {
    let devices = manifest.devices.iter().map(|device| device.name.clone());
    let exports = manifest.exports.iter().map(|export| export_name(&export.name));
    let all: Vec<String> = devices.chain(exports).collect();
    match all.is_empty() {
        true => "; the server has none".to_string(),
        false => format!("; there are {}", text::first_names(all.iter().map(String::as_str))),
    }
}

/// Returns the files that would have to shrink: their devices, with the old and the new size.
pub(super) fn shrunk<'a>(
    old: &'a Manifest,
    new: &'a Manifest,
) -> impl Iterator<Item = (&'a str, u64, u64)> + 'a {
    let size = |device: &manifest::Device| match &device.driver {
        Driver::File(file) => Some((file.path.value.clone(), file.size.as_ref()?.value)),
        Driver::Overlay(overlay) => {
            Some((overlay.path.value.clone(), overlay.size.as_ref()?.value))
        }
        _ => None,
    };
    let devices = new.by_name();
    old.devices.iter().filter_map(move |device| {
        let now = devices.get(device.name.as_str())?;
        let ((path, had), (same, asked)) = (size(device)?, size(now)?);
        (path == same && asked < had).then_some((&*device.name, had, asked))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_grows_to_no_size_that_no_volume_has() {
        let grow = |size| {
            let name = Some("disk".to_string());
            let question = Question { name, size, ..Question::new("grow") };
            ChangeRequest::of(&question).unwrap().map(drop)
        };
        assert_eq!(grow(Some(i64::MAX as u64)), Ok(()));
        assert_eq!(grow(None), Ok(()));
        for size in [1 << 63, u64::MAX] {
            let why = format!("'{size}' exceeds the largest volume, 8 EiB");
            assert_eq!(grow(Some(size)), Err(why));
        }
    }
}
