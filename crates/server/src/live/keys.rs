//! Keys of encrypted devices across changes.

use crate::control::Mode;
use crate::drivers::crypt::find_key;
use crate::error::Error;
use crate::manifest::{Changes, Driver, Manifest};

use super::{Change, ChangeRequest, Live};

impl Live {
    /// Refuses to restart an encrypted device whose key can't be read, before anything goes down.
    pub(super) fn refuse_without_keys(&self, changes: &Changes) -> Result<(), Error> {
        for device in changes.add_devices.iter().filter(|d| changes.restarted.contains(&d.name)) {
            let Driver::Crypt(asked) = &device.driver else { continue };
            let name = &device.name;
            find_key(&self.secrets, name, asked).map_err(|why| {
                let why = format!("the change restarts '{name}', which would not come up: {why}");
                Error::refused(why)
            })?;
        }
        Ok(())
    }

    /// Wipes the keys of devices that the change removes. The manifest of a reload names failed
    /// devices too, `old` doesn't. A device that goes with its last client is removed then.
    pub(super) fn wipe_keys(&self, change: &Change, old: &Manifest, new: &Manifest) {
        let reloads = matches!(change.request, ChangeRequest::Reload);
        if change.mode == Mode::Hide {
            return;
        }
        self.secrets.retain(|device| {
            let is_unknown = !reloads && old.device(device).is_none();
            is_unknown || new.secrets().any(|(name, _)| name == device)
        });
    }
}
