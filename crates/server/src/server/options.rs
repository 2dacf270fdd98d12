//! What a program says of a server.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use corewise::device::{Cancel, HangPolicy};
use corewise::nbd::Listener;

use crate::cleanup::Cleanup;
use crate::manifest::{self, LeftOut};
use crate::observer::Observer;
use crate::room::Room;

/// What a program says of a server beside its manifest.
#[derive(Debug)]
pub struct Options {
    /// What counts in place of the manifest's `[server]`.
    pub server: Option<manifest::Server>,
    /// How messages call the manifest.
    pub label: String,
    /// The manifest's file, where it can be read again.
    pub source: Option<PathBuf>,
    /// What the manifest asks for and can't have, as was told. With any of it the server is
    /// incomplete.
    pub left_out: Vec<LeftOut>,
    /// Sockets that listen already; with any, no other is bound.
    pub passed: Vec<Listener>,
    /// Serve the devices that come up, even if others fail.
    pub keep_going: bool,
    /// Answer on a control socket: that of the manifest, or else one in the usual place.
    pub control: bool,
    /// Tell the service manager that NOTIFY_SOCKET names how the server is.
    pub service_manager: bool,
    /// The process ends with the server, and its threads with that: joined one after the other,
    /// they would take as many turns of the scheduler.
    pub ends_process: bool,
    /// The deadline of the whole shutdown, in place of the manifest's, also of one that is read
    /// again.
    pub shutdown_timeout: Option<Duration>,
    /// What is done about devices that hang, in place of what the manifest says, also one that is
    /// read again.
    pub on_hang: Option<HangPolicy>,
    /// What the process may have.
    pub room: Room,
    /// What is removed at the end.
    pub cleanup: Arc<Cleanup>,
    /// Cancels the bring-up, and the bring-ups of changes.
    pub cancel: Cancel,
    /// The program's end: it is told what happens.
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
            room: Room::now(),
            cleanup: Arc::default(),
            cancel: Cancel::new(),
            observer: Arc::new(()),
        }
    }
}
