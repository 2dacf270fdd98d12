//! A server in a process.

mod life;
mod options;
mod prepared;

use std::fmt;
use std::path::Path;

use corewise::nbd::Endpoint;

use crate::answers;
use crate::control::Mode;
use crate::control::changes::Changed;
use crate::control::health::Health;
use crate::error::Error;
use crate::live::Wish;
use crate::manifest::Manifest;
use life::Up;
pub use options::Options;
use prepared::Prepared;

/// A server that serves. Dropping it takes it down, as [`down`](Server::down) does.
pub struct Server {
    prepared: Prepared,
    /// `None`: it is down.
    up: Option<Up>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("manifest", &self.prepared.label).finish_non_exhaustive()
    }
}

impl Server {
    /// Brings a manifest up: from the first socket to the first client.
    ///
    /// Nothing is left of a server that doesn't come up.
    ///
    /// # Errors
    /// A device, a socket or something else that the manifest asks for can't be had, and
    /// `keep_going` isn't set; or nothing of it came up.
    pub fn up(manifest: Manifest, options: Options) -> Result<Server, Error> {
        let (prepared, up) = Prepared::new(manifest, options)?.up()?;
        Ok(Server { prepared, up: Some(up) })
    }

    /// Takes it down: exports drain, volumes flush, each after those that need it. `why` is the
    /// reason, which is told. Returns whether all of the manifest came up and went down in order.
    pub fn down(mut self, why: &str) -> bool {
        self.up.take().is_some_and(|up| self.prepared.down(up, why))
    }

    /// Returns where clients are let in.
    pub fn endpoints(&self) -> &[Endpoint] {
        self.up.as_ref().map_or(&[], |up| &up.endpoints)
    }

    /// Returns how the server is.
    pub fn health(&self) -> Health {
        self.up.as_ref().map(|up| answers::health(&up.monitoring.about)).unwrap_or_default()
    }

    /// Adds the devices and exports of the manifest in a file, all or nothing.
    ///
    /// # Errors
    /// The reason for which nothing was added.
    pub fn add(&self, file: &Path) -> Result<Changed, String> {
        self.change(Wish::Add(file.to_path_buf()), Mode::default())
    }

    /// Removes a device with its exports, or, as `export:` and its name, an export.
    ///
    /// # Errors
    /// The reason for which nothing was removed.
    pub fn remove(&self, name: &str, mode: Mode) -> Result<Changed, String> {
        self.change(Wish::Remove(name.to_string()), mode)
    }

    /// Reads the manifest's file again, and follows what has changed.
    ///
    /// # Errors
    /// The reason for which nothing was changed.
    pub fn reload(&self, mode: Mode) -> Result<Changed, String> {
        self.change(Wish::Reload, mode)
    }

    fn change(&self, wish: Wish, mode: Mode) -> Result<Changed, String> {
        let up = self.up.as_ref().ok_or("the server is down")?;
        up.running.live.change(wish, mode, false)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(up) = self.up.take() {
            self.prepared.down(up, "nobody needs it any more");
        }
    }
}
