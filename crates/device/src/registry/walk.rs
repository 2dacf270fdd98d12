//! Drives the walks that unbind and remove devices: calls the callbacks, and waits for what runs.

use super::devices::{DeviceKey, Instance};
use super::inside::ProbesInside;
use super::leave::{LeaveStep, LeaveWalk};
use super::run::{Registry, RegistryState};
use crate::bound::{Bound, ShutdownDone};
use crate::decl::DeviceDecl;
use crate::error::{CallbackFailure, ShutdownError, caught};
use corewise_sync::{Completion, Mutex, context, text};
use std::sync::Arc;

/// A guard: while it lives, a walk unbinds devices, and a shutdown waits.
pub(crate) struct Walk<'a>(&'a Registry);

impl Walk<'_> {
    /// Begins a walk. Under the same lock the caller saw that no shutdown has begun, or that one
    /// waits for the caller anyway.
    pub(crate) fn begin<'a>(registry: &'a Registry, state: &mut RegistryState) -> Walk<'a> {
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
    /// Unbinds a device, or removes it with its children; the devices that need it are unbound
    /// before. Blocks until all is done. Returns the callbacks that failed.
    pub(crate) fn leave(self: &Arc<Self>, root: Instance, remove: bool) -> Vec<CallbackFailure> {
        let mut walk = LeaveWalk::new(root, remove);
        let mut failed = Vec::new();
        loop {
            match self.step(|state, now, fx| state.devices.leave_step(&mut walk, now, fx)) {
                LeaveStep::Unbind { key, decl, bound } => {
                    if let Err(error) = self.unbind_one(key, &decl, bound) {
                        let device = text::name(&decl.name);
                        tracing::warn!(%device, %error, "unbinding a device failed");
                        failed.push(CallbackFailure { device: decl.name.clone(), error });
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
                        // Checked again under this lock: what ran may be over since.
                        if state.devices.leave_must_wait(&walk) {
                            state.waiting += 1;
                            self.tell_closer(&state);
                            // A thread that is woken in vain wakes no other: two that wait would
                            // wake one another for ever.
                            while state.devices.leave_must_wait(&walk) {
                                state = self.sleep(state);
                            }
                            state.waiting -= 1;
                        }
                        drop(state);
                    });
                }
                LeaveStep::Done => return failed,
            }
        }
    }

    /// Wakes a shutdown that waited for this walk. It must not be woken earlier: it wakes walks
    /// too, which would wake one another for ever.
    fn tell_closer(&self, state: &RegistryState) {
        if state.devices.is_closed() && state.is_quiet() {
            self.changed.notify_all();
        }
    }

    /// Calls one device's callback, and waits for it.
    fn unbind_one(
        &self,
        key: DeviceKey,
        decl: &DeviceDecl,
        bound: Arc<dyn Bound>,
    ) -> Result<(), ShutdownError> {
        let inside = ProbesInside::enter(self);
        if !caught(|| bound.has_shutdown()).unwrap_or(true) {
            return Ok(());
        }
        let unbinding = Arc::new(Unbinding::default());
        let its = unbinding.clone();
        let done = ShutdownDone::new(move |result| its.finish(result));
        let mut state = self.state.lock();
        state.unbindings.push((key, unbinding.clone()));
        self.tell_closer(&state);
        drop(state);
        let called =
            caught(|| context::blocking("unbinding a device", || bound.start_shutdown(done)));
        drop(inside);
        let result = match called {
            Ok(()) => unbinding.wait(),
            Err(message) => {
                tracing::error!(device = %text::name(&decl.name), message, "a shutdown callback panicked");
                Err(ShutdownError::new(format!("the callback panicked: {message}")))
            }
        };
        // The entry is gone if a shutdown has taken it over.
        let mut state = self.state.lock();
        state.unbindings.retain(|(_, other)| !Arc::ptr_eq(other, &unbinding));
        drop(state);
        result
    }

    /// Returns true if a device has registered children during its probe.
    pub(super) fn has_children(&self, key: DeviceKey) -> bool {
        !self.state.lock().devices.children_by_probe(key).is_empty()
    }

    /// Removes the children that a failed probe has registered.
    pub(super) fn remove_children(self: &Arc<Self>, key: DeviceKey) {
        let (children, _walk) = self.step(|state, _, fx| {
            let children = state.devices.failing(key, fx);
            // Also if the probe was given up, and a shutdown waits for it no more.
            let walk = (!children.is_empty()).then(|| Walk::begin(self, state));
            (children, walk)
        });
        for child in children {
            self.leave(child, true);
        }
    }
}

/// A callback of a device that is unbound. A shutdown that begins meanwhile takes it over: then it
/// is that device's callback in the shutdown, too, so that it is named and given up there like any
/// other.
#[derive(Default)]
pub(crate) struct Unbinding {
    /// I: complete once the callback is over; `end` has the result.
    over: Completion,
    /// L: is the lock, held for a moment; guards the result, and the shutdown that is to get it.
    end: Mutex<End>,
}

#[derive(Default)]
struct End {
    result: Option<Result<(), ShutdownError>>,
    shutdown: Option<ShutdownDone>,
}

impl Unbinding {
    /// Ends the callback.
    fn finish(&self, result: Result<(), ShutdownError>) {
        let mut end = self.end.lock();
        end.result = Some(result.clone());
        let shutdown = end.shutdown.take();
        drop(end);
        self.over.complete();
        if let Some(done) = shutdown {
            done.finish(result);
        }
    }

    /// Blocks until it is over.
    fn wait(&self) -> Result<(), ShutdownError> {
        self.over.wait();
        self.end.lock().result.clone().unwrap_or(Ok(()))
    }
}

/// A stand-in that a shutdown finds for a device whose callback is being called.
pub(crate) struct TakenCallback {
    unbinding: Arc<Unbinding>,
    /// Dropped when the shutdown drops the objects of others: after its callback, and before what
    /// it needs.
    _object: Arc<dyn Bound>,
}

impl TakenCallback {
    pub(crate) fn new(unbinding: Arc<Unbinding>, object: Arc<dyn Bound>) -> Arc<Self> {
        Arc::new(TakenCallback { unbinding, _object: object })
    }
}

impl Bound for TakenCallback {
    fn start_shutdown(self: Arc<Self>, done: ShutdownDone) {
        let mut end = self.unbinding.end.lock();
        match end.result.clone() {
            None => end.shutdown = Some(done),
            Some(result) => {
                drop(end);
                done.finish(result);
            }
        }
    }
}
