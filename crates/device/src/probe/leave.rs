//! Drives the walks that unbind and remove devices: calls the callbacks, and waits for what runs.

use super::inside::Inside;
use super::run::{Registry, State};
use crate::driver::{Bound, ShutdownError, caught};
use crate::registry::{Instance, Key, Leave, LeaveStep};
use crate::{DeviceDecl, ShutdownDone};
use corewise_sync::{Completion, Mutex, context};
use std::sync::Arc;

/// While it lives, somebody unbinds devices, and a shutdown waits.
pub(crate) struct Walk<'a>(&'a Registry);

impl Walk<'_> {
    /// Under the same lock it was seen that no shutdown has begun, or that one waits for the caller anyway.
    pub(crate) fn begin<'a>(registry: &'a Registry, state: &mut State) -> Walk<'a> {
        state.walks += 1;
        Walk(registry)
    }
}

impl Drop for Walk<'_> {
    fn drop(&mut self) {
        self.0.state.lock().walks -= 1;
        self.0.changed.notify_all();
    }
}

impl Registry {
    /// Unbinds a device, or removes it with its children; those who need it are unbound before.
    /// Blocks until all is done. Returns the errors of callbacks, by device.
    pub(crate) fn leave(
        self: &Arc<Self>,
        root: Instance,
        remove: bool,
    ) -> Vec<(String, ShutdownError)> {
        let mut walk = Leave::new(root, remove);
        let mut failed = Vec::new();
        loop {
            match self.step(|state, now, fx| state.devices.leave_step(&mut walk, now, fx)) {
                LeaveStep::Unbind { key, decl, bound } => {
                    if let Err(error) = self.unbind_one(&decl, bound) {
                        tracing::warn!(device = decl.name, %error, "unbinding a device failed");
                        failed.push((decl.name.clone(), error));
                    }
                    self.step(|state, now, fx| {
                        state.devices.unbound(key, now, fx);
                        state.devices.drops(key);
                    });
                    self.step(|state, _, fx| state.devices.dropped(key, fx));
                }
                LeaveStep::Wait => {
                    context::blocking("unbinding a device", || {
                        let mut state = self.state.lock();
                        // Looked at again under this lock: what ran may be over since.
                        if state.devices.leave_must_wait(&walk) {
                            state = self.sleep(state);
                        }
                        drop(state);
                    });
                }
                LeaveStep::Done => return failed,
            }
        }
    }

    /// Calls one device's callback, and waits for it.
    fn unbind_one(&self, decl: &DeviceDecl, bound: Arc<dyn Bound>) -> Result<(), ShutdownError> {
        let inside = Inside::enter(self);
        if !caught(|| bound.has_shutdown()).unwrap_or(true) {
            return Ok(());
        }
        let end = Arc::new((Completion::new(), Mutex::new(None)));
        let its = end.clone();
        let done = ShutdownDone::new(move |result| {
            *its.1.lock() = Some(result);
            its.0.complete();
        });
        let called =
            caught(|| context::blocking("unbinding a device", || bound.start_unbind(done)));
        drop(inside);
        if let Err(message) = called {
            tracing::error!(device = decl.name, message, "a shutdown callback panicked");
            return Err(ShutdownError::new(format!("the callback panicked: {message}")));
        }
        end.0.wait();
        let result = end.1.lock().take();
        result.unwrap_or(Ok(()))
    }

    /// Whether a device has registered children during its probe.
    pub(super) fn has_children(&self, key: Key) -> bool {
        !self.state.lock().devices.children_by_probe(key).is_empty()
    }

    /// A probe has failed: the children that it has registered go.
    pub(super) fn remove_children(self: &Arc<Self>, key: Key) {
        let (children, _walk) = self.step(|state, _, fx| {
            let children = state.devices.failing(key, fx);
            // Also where the probe was given up, and a shutdown waits for it no more.
            let walk = (!children.is_empty()).then(|| Walk::begin(self, state));
            (children, walk)
        });
        for child in children {
            self.leave(child, true);
        }
    }
}
