//! A server in a process.

mod life;
mod prepared;

#[cfg(feature = "crypt")]
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use corewise::device::{Cancel, HangPolicy};
#[cfg(feature = "crypt")]
use corewise::drivers::Secret;
use corewise::nbd::{Endpoint, Listener};
use life::RunningServer;
use prepared::PreparedServer;

use crate::answers;
use crate::cleanup::Cleanup;
use crate::control::Mode;
use crate::control::changes::ChangeReport;
use crate::control::health::Health;
use crate::error::{Error, ErrorKind};
use crate::live::{Change, ChangeRequest};
use crate::manifest::{self, LeftOut, Manifest};
use crate::observer::Observer;
use crate::process_limits::ProcessLimits;

/// A server that serves. Dropping it takes it down, as [`down`](Server::down) does.
pub struct Server {
    prepared: PreparedServer,
    /// Running parts; `None` once it is down.
    up: Option<RunningServer>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("manifest", &self.prepared.label).finish_non_exhaustive()
    }
}

impl Server {
    /// Brings a manifest up, from the first socket to the first client.
    ///
    /// A server that doesn't come up leaves nothing behind.
    ///
    /// # Errors
    /// A device, a socket or another thing in the manifest isn't available, and `keep_going` isn't
    /// set; or nothing of the manifest came up.
    pub fn up(manifest: Manifest, options: Options) -> Result<Server, Error> {
        let (prepared, up) = PreparedServer::new(manifest, options)?.up()?;
        Ok(Server { prepared, up: Some(up) })
    }

    /// Takes the server down: exports drain, volumes flush, each after its consumers. `why` is the
    /// reason, which is reported. Returns true if all of the manifest came up and went down in
    /// order.
    pub fn down(mut self, why: &str) -> bool {
        self.up.take().is_some_and(|up| self.prepared.down(up, why))
    }

    /// Returns the sockets on which clients are accepted.
    pub fn endpoints(&self) -> &[Endpoint] {
        self.up.as_ref().map_or(&[], |up| &up.endpoints)
    }

    /// Returns the server's health.
    pub fn health(&self) -> Health {
        self.up.as_ref().map(|up| answers::health(&up.monitoring.about)).unwrap_or_default()
    }

    /// Adds the devices and exports of the manifest in a file, all or nothing.
    ///
    /// # Errors
    /// The reason for which nothing was added; `Busy` while another change is being made.
    pub fn add(&self, file: &Path) -> Result<ChangeReport, Error> {
        self.change(ChangeRequest::Add(file.to_path_buf()), Mode::default())
    }

    /// Removes a device with its exports, or, as `export:` and its name, an export.
    ///
    /// # Errors
    /// The reason for which nothing was removed; `Busy` while another change is being made.
    pub fn remove(&self, name: &str, mode: Mode) -> Result<ChangeReport, Error> {
        self.change(ChangeRequest::Remove(name.to_string()), mode)
    }

    /// Reads the manifest's file again, and follows its changes.
    ///
    /// # Errors
    /// The reason for which nothing was changed; `Busy` while another change is being made.
    pub fn reload(&self, mode: Mode) -> Result<ChangeReport, Error> {
        self.change(ChangeRequest::Reload, mode)
    }

    fn change(&self, request: ChangeRequest, mode: Mode) -> Result<ChangeReport, Error> {
        let down = || Error::of(ErrorKind::NotUp, "the server is down");
        let up = self.up.as_ref().ok_or_else(down)?;
        up.running.live.change(&Change { request, mode, dry_run: false })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(up) = self.up.take() {
            self.prepared.down(up, "the server is no longer needed");
        }
    }
}

/// The options of a server beside its manifest.
#[derive(Debug)]
pub struct Options {
    /// Replacement for the manifest's `[server]`.
    pub server: Option<manifest::Server>,
    /// Name of the manifest in messages.
    pub label: String,
    /// File of the manifest, if it can be read again.
    pub source: Option<PathBuf>,
    /// Devices and exports of the manifest that can't come up, and were reported. With any of them,
    /// the server is incomplete.
    pub left_out: Vec<LeftOut>,
    /// Sockets that listen already. With any, no other is bound.
    pub passed: Vec<Listener>,
    /// True to serve the devices that come up, even if others fail.
    pub keep_going: bool,
    /// True to answer on a control socket: that of the manifest, or else one in the default folder.
    pub control: bool,
    /// True to report the status to the service manager named by NOTIFY_SOCKET.
    pub service_manager: bool,
    /// True if the process ends with the server, and its threads with the process. Joining them one
    /// after the other would take as many turns of the scheduler.
    pub ends_process: bool,
    /// Deadline of the whole shutdown. It overrides that of the manifest, also after a reload.
    pub shutdown_timeout: Option<Duration>,
    /// Policy for devices that hang. It overrides that of the manifest, also after a reload.
    pub on_hang: Option<HangPolicy>,
    /// Keys of encrypted devices, by device: those from the user or a file descriptor. See
    /// [`Manifest::secrets`](crate::manifest::Manifest::secrets).
    #[cfg(feature = "crypt")]
    pub secrets: BTreeMap<String, Secret>,
    /// Limits of the process.
    pub limits: ProcessLimits,
    /// Files and sockets to remove at the end. Several servers may share it: each removes its own
    /// things.
    pub cleanup: Arc<Cleanup>,
    /// Cancels the bring-up, and the bring-ups of changes.
    pub cancel: Cancel,
    /// Observer: the program's side, which gets reports of all events.
    pub observer: Arc<dyn Observer>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            server: None,
            label: "the manifest".to_string(),
            source: None,
            left_out: Vec::new(),
            passed: Vec::new(),
            keep_going: false,
            control: false,
            service_manager: false,
            ends_process: false,
            shutdown_timeout: None,
            on_hang: None,
            #[cfg(feature = "crypt")]
            secrets: BTreeMap::new(),
            limits: ProcessLimits::now(),
            cleanup: Arc::default(),
            cancel: Cancel::new(),
            observer: Arc::new(()),
        }
    }
}
