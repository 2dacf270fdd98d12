//! Drivers: the trait that probes a device into a bound object, at once or later.

use crate::bound::{Bound, downcast};
use crate::decl::{DeviceDecl, ProbeType};
use crate::error::{Error, ProbeError};
use crate::event::Cancel;
use crate::info::DeviceState;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A driver, which brings up devices of one kind. It is registered once with
/// [`DeviceManager::register`](crate::DeviceManager::register) and shared by all its devices.
pub trait Driver: Send + Sync {
    /// Returns the name that declarations use. Constant.
    fn name(&self) -> &str;

    /// Returns true if the driver can take a device. By default it can if the declaration names it.
    ///
    /// Asked on the thread that adds devices or registers the driver, perhaps more than once. An
    /// implementation has to be quick, and to answer the same each time. A panic counts as no.
    fn matches(&self, decl: &DeviceDecl) -> bool {
        decl.driver == self.name()
    }

    /// Returns whether probes may run beside others: in a bring-up they do, unless this returns
    /// [`ForceSynchronous`](ProbeType::ForceSynchronous). Constant.
    fn probe_type(&self) -> ProbeType {
        ProbeType::Default
    }

    /// Brings up one device.
    ///
    /// The manager calls it once per device, after all its needs are bound. It runs on a pool
    /// worker near the device's node, or (a synchronous probe without a usable node) on the thread
    /// that called [`bring_up`](crate::DeviceManager::bring_up). Several probes of one driver run
    /// at once, unless its [type](Driver::probe_type) forbids it.
    ///
    /// A probe may sleep: it runs inside a blocking region, so its worker's pool starts other work
    /// meanwhile. It must not wait for another device; its needs are declared suppliers.
    ///
    /// # Errors
    ///
    /// A failure is recorded; the probe itself has to drop the objects that it has created so far.
    /// A panic is caught and recorded as a failure too. Devices that need this one are skipped.
    fn probe(&self, cx: &ProbeContext<'_>) -> Result<Arc<dyn Bound>, ProbeError> {
        let _ = cx;
        Err(ProbeError::failed(
            "the driver has no probe; implement Driver::probe or Driver::start_probe",
        ))
    }

    /// Begins to bring up one device; `done` reports later, from any thread, how that ended. This
    /// is the method that the manager calls. By default it calls [`Driver::probe`] and finishes
    /// `done`.
    ///
    /// A driver whose probe waits for something (a connection, a task of an asynchronous runtime)
    /// implements this one instead. The probe takes the data that it needs from `cx`, hands `done`
    /// on, and returns. From then on no worker is held, and the device is still being probed. Until
    /// it returns, the rules of `probe` hold here too.
    ///
    /// # Panics
    ///
    /// A panic in here fails the device at once, whatever becomes of `done`, unless `done` was
    /// finished before.
    fn start_probe(&self, cx: &ProbeContext<'_>, done: ProbeDone) {
        done.finish(self.probe(cx));
    }
}

/// The registry to which a probe adds devices.
pub(crate) trait AddsDevices: Send + Sync {
    /// Adds a device; see [`ProbeContext::add`].
    fn add(&self, decl: DeviceDecl) -> Result<DeviceState, Error>;
}

/// Input of a probe: its device's declaration, and the bound objects of the device's needs.
pub struct ProbeContext<'a> {
    decl: &'a DeviceDecl,
    node: Option<u32>,
    needs: &'a [(String, Arc<dyn Bound>)],
    cancel: &'a Cancel,
    hopeless: bool,
    adds: Option<&'a dyn AddsDevices>,
}

impl<'a> ProbeContext<'a> {
    /// Creates a context. The manager does so; the function is public so that a driver can be
    /// tested without a manager. `needs` has the bound parent and suppliers, by name.
    pub fn new(
        decl: &'a DeviceDecl,
        node: Option<u32>,
        needs: &'a [(String, Arc<dyn Bound>)],
        cancel: &'a Cancel,
    ) -> ProbeContext<'a> {
        ProbeContext { decl, node, needs, cancel, hopeless: false, adds: None }
    }

    /// Marks that the deferral timeout has passed: [`ProbeContext::defer`] then returns a failure.
    #[must_use]
    pub(crate) fn after_deferral_timeout(mut self, yes: bool) -> ProbeContext<'a> {
        self.hopeless = yes;
        self
    }

    /// Sets the registry to which [`ProbeContext::add`] adds devices.
    pub(crate) fn adds_to(mut self, registry: &'a dyn AddsDevices) -> ProbeContext<'a> {
        self.adds = Some(registry);
        self
    }

    /// Adds a device from inside this probe, as [`DeviceManager::add`](crate::DeviceManager::add)
    /// does: a child that the driver has found, say. So the driver needs no handle of its manager.
    /// A handle for later, after the probe, should be a [`Weak`](std::sync::Weak): an `Arc` keeps
    /// the manager until a shutdown.
    ///
    /// ```
    /// use corewise_device::{Bound, DeviceDecl, Driver, ProbeContext, ProbeError};
    /// # use std::sync::Arc;
    /// # struct Port;
    /// # impl Bound for Port {}
    /// struct Hub;
    /// impl Driver for Hub {
    ///     fn name(&self) -> &str {
    ///         "hub"
    ///     }
    ///     fn probe(&self, cx: &ProbeContext<'_>) -> Result<Arc<dyn Bound>, ProbeError> {
    ///         for port in 0..4 {
    ///             let name = format!("{}.{port}", cx.name());
    ///             let port = DeviceDecl::new(name, "port").parent(cx.name());
    ///             cx.add(port).map_err(ProbeError::failed)?;
    ///         }
    ///         Ok(Arc::new(Port))
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`DeviceManager::add`](crate::DeviceManager::add), and [`Error::NoManager`] if
    /// the context belongs to no manager, but was [made](ProbeContext::new) for a test.
    pub fn add(&self, decl: DeviceDecl) -> Result<DeviceState, Error> {
        self.adds.ok_or(Error::NoManager)?.add(decl)
    }

    /// Returns the error for a probe whose need may still come: a deferral until the deferral
    /// timeout has passed, a failure from then on. This is the counterpart of the kernel's
    /// `driver_deferred_probe_check_state`.
    pub fn defer(&self, reason: impl fmt::Display) -> ProbeError {
        if self.hopeless {
            ProbeError::failed(format!("{reason} (until the deferral timeout)"))
        } else {
            ProbeError::defer(reason)
        }
    }

    /// Returns the device's name.
    pub fn name(&self) -> &str {
        &self.decl.name
    }

    /// Returns the device's declaration.
    pub fn decl(&self) -> &DeviceDecl {
        self.decl
    }

    /// Returns the NUMA node near which the device is (its own, else its parent's).
    pub fn node(&self) -> Option<u32> {
        self.node
    }

    /// Returns the data that the declaration has for the driver.
    ///
    /// # Errors
    ///
    /// An error if the declaration has none, or one of another type.
    pub fn config<T: Send + Sync + 'static>(&self) -> Result<&T, ProbeError> {
        let wanted = std::any::type_name::<T>();
        let Some(config) = &self.decl.config else {
            return Err(ProbeError::failed(format!(
                "the driver wants a configuration of type {wanted}, but the device's declaration \
                 has none"
            )));
        };
        let config: &(dyn Any + Send + Sync) = &**config;
        config.downcast_ref().ok_or_else(|| {
            ProbeError::failed(format!(
                "the driver wants a configuration of type {wanted}, but the device's has another \
                 type"
            ))
        })
    }

    /// Returns the bound object of a supplier (or of the parent) by name.
    ///
    /// # Errors
    ///
    /// An error if the declaration doesn't name it as a parent or supplier, or it is no `T`.
    pub fn supplier<T: Bound>(&self, name: &str) -> Result<Arc<T>, ProbeError> {
        let Some((_, bound)) = self.needs.iter().find(|(n, _)| n == name) else {
            if self.decl.needs().any(|n| n == name) {
                return Err(ProbeError::failed(format!(
                    "its supplier \"{name}\" is not up; handle that in the driver, or return this \
                     error"
                )));
            }
            return Err(ProbeError::failed(format!(
                "the driver uses \"{name}\" without declaring it as parent or supplier; declare \
                 \"{name}\", so that it is bound first"
            )));
        };
        downcast(bound.clone()).ok_or_else(|| {
            let wanted = std::any::type_name::<T>();
            ProbeError::failed(format!("its supplier \"{name}\" is no {wanted}"))
        })
    }

    /// Returns the bound objects of all suppliers, in the order in which they are declared.
    ///
    /// # Errors
    ///
    /// An error if one of them is no `T`.
    pub fn suppliers<T: Bound>(&self) -> Result<Vec<Arc<T>>, ProbeError> {
        self.decl.suppliers.iter().map(|name| self.supplier(name)).collect()
    }

    /// Returns the bound object of the parent.
    ///
    /// # Errors
    ///
    /// An error if the device has no parent, or the parent is no `T`.
    pub fn parent<T: Bound>(&self) -> Result<Arc<T>, ProbeError> {
        match &self.decl.parent {
            Some(name) => self.supplier(name),
            None => Err(ProbeError::failed("the driver wants a parent, but the device has none")),
        }
    }

    /// Returns the switch that cancels the bring-up, for a probe that continues after its driver
    /// has returned; see [`Driver::start_probe`].
    pub fn cancel(&self) -> &Cancel {
        self.cancel
    }

    /// Returns true once the bring-up is being cancelled: a long probe may check now and then, and
    /// give up with an error.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }
}

impl fmt::Debug for ProbeContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let needs: Vec<&str> = self.needs.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("ProbeContext")
            .field("decl", &self.decl)
            .field("node", &self.node)
            .field("needs", &needs)
            .finish_non_exhaustive()
    }
}

/// The duty to report how one probe ended; see [`Driver::start_probe`].
///
/// May be sent anywhere: into another thread, a task of an asynchronous runtime, the callback of a
/// request. No worker is held meanwhile. If it is dropped without [`ProbeDone::finish`] (also by a
/// panic, or by a runtime that ends), the probe has failed, so no thread waits for ever.
///
/// The idea is that of a kernel `struct completion`, with a result.
#[must_use = "dropped, it makes the probe fail"]
pub struct ProbeDone {
    tell: Option<Box<dyn FnOnce(ProbeResult) + Send>>,
}

/// Result of a probe.
pub(crate) type ProbeResult = Result<Arc<dyn Bound>, ProbeError>;

impl ProbeDone {
    /// Creates a handle that calls `tell` once with the result, on the thread that finishes or
    /// drops it. The manager creates these; the function is public so that a driver can be tested
    /// without a manager.
    pub fn new(
        tell: impl FnOnce(Result<Arc<dyn Bound>, ProbeError>) + Send + 'static,
    ) -> ProbeDone {
        ProbeDone { tell: Some(Box::new(tell)) }
    }

    /// Ends the probe: the device is bound, or not. Any thread may call it. It doesn't block; it
    /// calls the device's observers on this thread, and queues the devices that waited for this
    /// one. If the probe was given up meanwhile (its deadline has passed), its result may be
    /// dropped here.
    pub fn finish(mut self, result: Result<Arc<dyn Bound>, ProbeError>) {
        if let Some(tell) = self.tell.take() {
            tell(result);
        }
    }
}

impl Drop for ProbeDone {
    fn drop(&mut self) {
        if let Some(tell) = self.tell.take() {
            tell(Err(ProbeError::failed(
                "the driver dropped the probe's completion without a result; finish the \
                 completion on every path",
            )));
        }
    }
}

impl fmt::Debug for ProbeDone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProbeDone").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Disk(u32);
    impl Bound for Disk {}
    struct Other;
    impl Bound for Other {}

    fn with_context<R>(decl: &DeviceDecl, f: impl FnOnce(&ProbeContext<'_>) -> R) -> R {
        let needs: Vec<(String, Arc<dyn Bound>)> = vec![
            ("bus".into(), Arc::new(Other)),
            ("b".into(), Arc::new(Disk(2))),
            ("a".into(), Arc::new(Disk(1))),
        ];
        f(&ProbeContext::new(decl, None, &needs, &Cancel::new()))
    }

    #[test]
    fn suppliers_come_in_declared_order_and_by_type() {
        let decl = DeviceDecl::new("stripe", "d").parent("bus").supplier("a").supplier("b");
        with_context(&decl, |cx| {
            let disks: Vec<u32> = cx.suppliers::<Disk>().unwrap().iter().map(|d| d.0).collect();
            assert_eq!(disks, [1, 2]);
            assert!(cx.parent::<Other>().is_ok());
            let wrong = cx.parent::<Disk>().unwrap_err().to_string();
            assert!(wrong.contains("\"bus\" is no") && wrong.contains("Disk"), "{wrong}");
        });
    }

    #[test]
    fn using_an_undeclared_supplier_says_what_to_do() {
        let decl = DeviceDecl::new("x", "d");
        with_context(&decl, |cx| {
            let error = cx.supplier::<Disk>("nobody").unwrap_err().to_string();
            assert!(
                error.contains("\"nobody\"") && error.contains("declare \"nobody\""),
                "{error}"
            );
        });
    }

    #[test]
    fn config_is_found_by_its_type() {
        let decl = DeviceDecl::new("x", "d").config(7u64);
        with_context(&decl, |cx| {
            assert_eq!(cx.config::<u64>().unwrap(), &7);
            assert!(cx.config::<u32>().unwrap_err().to_string().contains("another type"));
        });
        with_context(&DeviceDecl::new("y", "d"), |cx| {
            assert!(cx.config::<u32>().unwrap_err().to_string().contains("has none"));
        });
    }
}
