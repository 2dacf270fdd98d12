//! What a driver does: probe a device into a bound object, which can be shut down.

use crate::probe::Registry;
use crate::{Cancel, DeviceDecl, DeviceState, Error, ProbeDone, ProbeType, ShutdownDone};
use corewise_sync::{panics, text};
use std::any::{Any, TypeId};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Knows how to bring up devices of one kind. Registered once with
/// [`DeviceManager::register`](crate::DeviceManager::register), shared by all its devices.
pub trait Driver: Send + Sync {
    /// The name that declarations use. Constant.
    fn name(&self) -> &str;

    /// The devices that it knows, for those whose declaration has no driver by name but says what
    /// they are [compatible](DeviceDecl::compatible) with: the kernel's match table. Constant.
    fn compatible(&self) -> &[&str] {
        &[]
    }

    /// Whether it may have a device. By default: the declaration names it, or is compatible with
    /// something in its table.
    ///
    /// Asked on the thread that adds devices or registers the driver, perhaps more than once; has to
    /// be quick, and to say the same each time. A panic counts as no.
    fn matches(&self, decl: &DeviceDecl) -> bool {
        if decl.driver.is_empty() {
            decl.compatible.iter().any(|c| self.compatible().contains(&c.as_str()))
        } else {
            decl.driver == self.name()
        }
    }

    /// Whether probes may run beside others: in a bring-up they do, unless this says
    /// [`ForceSynchronous`](ProbeType::ForceSynchronous). Constant.
    fn probe_type(&self) -> ProbeType {
        ProbeType::Default
    }

    /// Brings up one device.
    ///
    /// Called once per device, after all that it needs is bound: on a pool worker near the device's
    /// node, or (a synchronous probe without a usable node) on the thread that called
    /// [`bring_up`](crate::DeviceManager::bring_up). Several probes of one driver run at once,
    /// unless its [type](Driver::probe_type) forbids it.
    ///
    /// It may sleep: it runs inside a blocking region, so its worker's pool starts other work
    /// meanwhile. It must not wait for another device; whatever it needs is a declared supplier.
    ///
    /// # Errors
    ///
    /// A failure is recorded; what was created so far has to be dropped by the probe itself. A
    /// panic is caught and recorded as a failure too. Devices that need this one are skipped.
    fn probe(&self, cx: &ProbeContext<'_>) -> Result<Arc<dyn Bound>, ProbeError> {
        let _ = cx;
        Err(ProbeError::failed(
            "its driver has no probe; implement Driver::probe or Driver::start_probe",
        ))
    }

    /// Begins to bring up one device; `done` says later, from anywhere, how it ended. This is what
    /// the manager calls; by default it calls [`Driver::probe`] and is done.
    ///
    /// A driver whose probe waits for something (a connection, a task of an asynchronous runtime)
    /// implements this one instead: it takes from `cx` what it needs, hands `done` on, and returns.
    /// From then on no worker is held, and the device is still being probed. All that is said of
    /// `probe` holds here too, until it returns.
    ///
    /// # Panics
    ///
    /// A panic in here fails the device at once, whatever becomes of `done`, unless that was
    /// finished before.
    fn start_probe(&self, cx: &ProbeContext<'_>, done: ProbeDone) {
        done.finish(self.probe(cx));
    }
}

/// A device that is up: what its consumers use, and what is called at shutdown.
///
/// Consumers get at the concrete type with [`ProbeContext::supplier`]; drivers that stand for one
/// another bind the same type (a struct around `Arc<dyn BlockDevice>`, say).
///
/// The object is dropped by the thread that called
/// [`shutdown`](crate::DeviceManager::shutdown), after the last callback has ended, each device
/// before what it needs. A panic in `drop` is caught.
pub trait Bound: Any + Send + Sync {
    /// Flushes and closes, after everything that needs this device was shut down.
    ///
    /// Called at most once: on a pool worker or the caller of
    /// [`shutdown`](crate::DeviceManager::shutdown), beside those of devices that have nothing to do
    /// with this one; on that caller alone where the declaration [says so](DeviceDecl::async_shutdown).
    /// It may block.
    ///
    /// # Errors
    ///
    /// An error (or a panic) is recorded on the timeline, and never stops the sequence.
    fn shutdown(&self) -> Result<(), ShutdownError> {
        Ok(())
    }

    /// As [`Bound::shutdown`], which it calls by default; but it may return before the device is
    /// shut down, and `done` is finished later, from any thread: so an asynchronous service holds
    /// no worker. This is what is called.
    ///
    /// It counts as over when `done` is finished, or dropped (a failure): a drop by a panic of this
    /// call is recorded as that panic. It should not keep the last handle of this object beyond
    /// that, or the object is dropped later than promised. A synchronous device that is not over yet
    /// holds up the other synchronous ones, but no thread.
    fn start_shutdown(self: Arc<Self>, done: ShutdownDone) {
        done.finish(self.shutdown());
    }

    /// Begins to end the device's service because it is unbound or removed, while the program goes
    /// on: the counterpart of a kernel driver's `remove`. `done` says, perhaps later and from
    /// anywhere, how that ended. By default it is the same as [`Bound::start_shutdown`].
    ///
    /// Called at most once, on the thread that unbinds or removes, after all that need the device
    /// were unbound; not called where [`Bound::has_shutdown`] is false. The object is dropped
    /// afterwards.
    fn start_unbind(self: Arc<Self>, done: ShutdownDone) {
        self.start_shutdown(done);
    }

    /// False where [`Bound::shutdown`] has nothing to do: the device is then completed on the spot,
    /// without lock or queue. Asked at the end of a bring-up and, where devices have come or gone since,
    /// when the shutdown begins.
    fn has_shutdown(&self) -> bool {
        true
    }
}

impl fmt::Debug for dyn Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bound")
    }
}

/// What a probe gets to see: its device's declaration, and the bound objects of what it needs.
pub struct ProbeContext<'a> {
    decl: &'a DeviceDecl,
    node: Option<u32>,
    needs: &'a [(String, Arc<dyn Bound>)],
    cancel: &'a Cancel,
    hopeless: bool,
    registry: Option<&'a Arc<Registry>>,
}

impl<'a> ProbeContext<'a> {
    /// Made by the manager; public so that a driver can be tested without one. `needs` are the
    /// bound parent and suppliers, by name.
    pub fn new(
        decl: &'a DeviceDecl,
        node: Option<u32>,
        needs: &'a [(String, Arc<dyn Bound>)],
        cancel: &'a Cancel,
    ) -> ProbeContext<'a> {
        ProbeContext { decl, node, needs, cancel, hopeless: false, registry: None }
    }

    /// Says that the deferral timeout has passed: [`ProbeContext::defer`] then gives a failure.
    #[must_use]
    pub fn after_deferral_timeout(mut self, yes: bool) -> ProbeContext<'a> {
        self.hopeless = yes;
        self
    }

    /// Says in whose probe it is: [`ProbeContext::add`] then adds devices there.
    pub(crate) fn of_registry(mut self, registry: &'a Arc<Registry>) -> ProbeContext<'a> {
        self.registry = Some(registry);
        self
    }

    /// Adds a device from inside this probe, as [`DeviceManager::add`](crate::DeviceManager::add)
    /// does: a child that the driver has found, say. So the driver needs no handle of its manager.
    /// One that it keeps for later, when the probe is over, should be a [`Weak`](std::sync::Weak):
    /// an `Arc` keeps the manager until a shutdown.
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
    ///             cx.add(DeviceDecl::new(name, "port").parent(cx.name())).map_err(ProbeError::failed)?;
    ///         }
    ///         Ok(Arc::new(Port))
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`DeviceManager::add`](crate::DeviceManager::add). [`Error::NoManager`] where the
    /// context is not a manager's, but was [made](ProbeContext::new) for a test.
    pub fn add(&self, decl: DeviceDecl) -> Result<DeviceState, Error> {
        self.registry.ok_or(Error::NoManager)?.add(decl)
    }

    /// The error for a probe that lacks something which may still come: a deferral, until the
    /// deferral timeout has passed, and a failure from then on. The counterpart of the kernel's
    /// `driver_deferred_probe_check_state`.
    pub fn defer(&self, reason: impl fmt::Display) -> ProbeError {
        if self.hopeless {
            ProbeError::failed(format!("{reason} (until the deferral timeout)"))
        } else {
            ProbeError::defer(reason)
        }
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.decl.name
    }

    /// The device's declaration.
    pub fn decl(&self) -> &DeviceDecl {
        self.decl
    }

    /// The NUMA node near which the device is (its own, else its parent's).
    pub fn node(&self) -> Option<u32> {
        self.node
    }

    /// What the declaration tells the driver.
    ///
    /// # Errors
    ///
    /// Where the declaration has none, or one of another type.
    pub fn config<T: Any + Send + Sync>(&self) -> Result<&T, ProbeError> {
        let wanted = std::any::type_name::<T>();
        let Some(config) = &self.decl.config else {
            return Err(ProbeError::failed(format!("its driver wants a {wanted}, but got none")));
        };
        let config: &(dyn Any + Send + Sync) = &**config;
        config.downcast_ref().ok_or_else(|| {
            ProbeError::failed(format!("its driver wants a {wanted}, but got something else"))
        })
    }

    /// The bound object of a supplier (or of the parent) by name.
    ///
    /// # Errors
    ///
    /// Where the declaration doesn't name it as a parent or supplier, or it is no `T`.
    pub fn supplier<T: Bound>(&self, name: &str) -> Result<Arc<T>, ProbeError> {
        let Some((_, bound)) = self.needs.iter().find(|(n, _)| n == name) else {
            if self.decl.needs().any(|n| n == name) {
                return Err(ProbeError::failed(format!(
                    "its supplier \"{name}\" is not up; handle that in the driver, or return this \
                     error"
                )));
            }
            return Err(ProbeError::failed(format!(
                "it uses \"{name}\" without declaring it as parent or supplier; declare it, so \
                 that it is bound first"
            )));
        };
        downcast(bound.clone()).ok_or_else(|| {
            let wanted = std::any::type_name::<T>();
            ProbeError::failed(format!("its supplier \"{name}\" is no {wanted}"))
        })
    }

    /// The bound objects of all suppliers, in the order in which they are declared.
    ///
    /// # Errors
    ///
    /// Where one of them is no `T`.
    pub fn suppliers<T: Bound>(&self) -> Result<Vec<Arc<T>>, ProbeError> {
        self.decl.suppliers.iter().map(|name| self.supplier(name)).collect()
    }

    /// The bound object of the parent.
    ///
    /// # Errors
    ///
    /// Where the device has no parent, or it is no `T`.
    pub fn parent<T: Bound>(&self) -> Result<Arc<T>, ProbeError> {
        match &self.decl.parent {
            Some(name) => self.supplier(name),
            None => Err(ProbeError::failed("its driver wants a parent, but it has none")),
        }
    }

    /// The switch that cancels the bring-up: for a probe that goes on after its driver has returned,
    /// see [`Driver::start_probe`].
    pub fn cancel(&self) -> &Cancel {
        self.cancel
    }

    /// True once the bring-up is being cancelled: a long probe may look now and then, and give up
    /// with an error.
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

/// The concrete object behind a bound one.
pub(crate) fn downcast<T: Bound>(bound: Arc<dyn Bound>) -> Option<Arc<T>> {
    // Not `Arc::downcast`, for which the trait object would have to become another one: older compilers can't.
    if bound.as_ref().type_id() != TypeId::of::<T>() {
        return None;
    }
    // SAFETY: the object is a `T`, so an `Arc` of it has the layout of an `Arc<T>`, and the pointer came from `into_raw`.
    Some(unsafe { Arc::from_raw(Arc::into_raw(bound).cast::<T>()) })
}

/// Why a probe did not bind its device.
#[derive(Clone, PartialEq, Eq)]
pub struct ProbeError {
    kind: ProbeErrorKind,
    message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProbeErrorKind {
    Failed,
    NoDevice,
    Deferred,
    TimedOut,
    Panicked,
}

impl ProbeError {
    /// The probe failed. Say what was asked, what was found, and what to do; the device's name is
    /// added by the reporter. Fits `map_err(ProbeError::failed)`.
    pub fn failed(message: impl fmt::Display) -> ProbeError {
        ProbeError { kind: ProbeErrorKind::Failed, message: message.to_string() }
    }

    /// There is no such device: the next driver that matches is asked. A failure like any other,
    /// except that it is not logged as a warning: the caller may have been guessing.
    pub fn no_device(message: impl fmt::Display) -> ProbeError {
        ProbeError { kind: ProbeErrorKind::NoDevice, message: message.to_string() }
    }

    pub(crate) fn panicked(message: String) -> ProbeError {
        ProbeError { kind: ProbeErrorKind::Panicked, message }
    }

    /// What the device needs is not there yet, and its declaration doesn't name it: call the driver
    /// again when some other device has been bound. Say what is missing.
    ///
    /// What can be named in the declaration should be: such a device is not probed in vain. See also
    /// [`ProbeContext::defer`], which gives up some time.
    pub fn defer(reason: impl fmt::Display) -> ProbeError {
        ProbeError { kind: ProbeErrorKind::Deferred, message: reason.to_string() }
    }

    pub(crate) fn timed_out(after: std::time::Duration) -> ProbeError {
        let message = format!(
            "its probe did not end within {after:.3?}, and the bring-up went on; raise its \
             timeout, or find out what it waits for"
        );
        ProbeError { kind: ProbeErrorKind::TimedOut, message }
    }

    /// True where the probe was past its deadline and was not waited for. It may have gone on.
    pub fn is_timeout(&self) -> bool {
        self.kind == ProbeErrorKind::TimedOut
    }

    pub(crate) fn kind(&self) -> ProbeErrorKind {
        self.kind
    }

    /// True where the driver asked to be called again later.
    pub fn is_deferral(&self) -> bool {
        self.kind == ProbeErrorKind::Deferred
    }

    /// True where the probe panicked.
    pub fn is_panic(&self) -> bool {
        self.kind == ProbeErrorKind::Panicked
    }

    /// True where there is no such device.
    pub fn is_no_device(&self) -> bool {
        self.kind == ProbeErrorKind::NoDevice
    }
}

impl fmt::Display for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            ProbeErrorKind::Panicked => {
                write!(f, "the probe panicked: {}", text::message(&self.message))
            }
            _ => text::message(&self.message).fmt(f),
        }
    }
}

/// The message is bounded, and not escaped anew at each level of errors: see [`text::message`].
impl fmt::Debug for ProbeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let message = text::message(&self.message);
        f.debug_struct("ProbeError").field("kind", &self.kind).field("message", &message).finish()
    }
}

impl std::error::Error for ProbeError {}

/// Why a shutdown callback did not do all that it should. It is recorded; nothing stops for it.
#[derive(Clone, PartialEq, Eq)]
pub struct ShutdownError(String);

impl ShutdownError {
    /// What went wrong, and what may be lost. Fits `map_err(ShutdownError::new)`.
    pub fn new(message: impl fmt::Display) -> ShutdownError {
        ShutdownError(message.to_string())
    }

    pub(crate) fn dropped() -> ShutdownError {
        ShutdownError::new(
            "the completion handle of its shutdown was dropped without a result; finish it on \
             every path",
        )
    }
}

impl fmt::Display for ShutdownError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text::message(&self.0).fmt(f)
    }
}

/// As that of [`ProbeError`].
impl fmt::Debug for ShutdownError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ShutdownError").field(&text::message(&self.0)).finish()
    }
}

impl std::error::Error for ShutdownError {}

/// Calls user code: its panic is caught, and its message returned, bounded. So is a panic of the
/// payload when it is dropped, which is user code too.
pub(crate) fn caught<R>(f: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(f)).map_err(|payload| {
        let message = text::message(panics::message(&*payload)).to_string();
        panics::discard(payload);
        message
    })
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
            assert!(error.contains("\"nobody\"") && error.contains("declare it"), "{error}");
        });
    }

    #[test]
    fn an_error_that_is_unwrapped_at_each_level_of_a_recursion_grows_by_a_line_a_level() {
        let mut error = ProbeError::failed("a \"quoted\" word at the leaf");
        let mut callback = ShutdownError::new("a \"quoted\" word at the leaf");
        for _ in 0..40 {
            let said = caught(|| panic!("called `unwrap()`: {error:?}")).unwrap_err();
            error = ProbeError::panicked(said);
            let said = caught(|| panic!("called `unwrap()`: {callback:?}")).unwrap_err();
            callback = ShutdownError::new(said);
        }
        for text in [format!("{error:?}"), format!("{callback:?}")] {
            assert!(text.len() < 40 * 120, "{} bytes", text.len());
            assert!(text.contains("a \"quoted\" word at the leaf"), "{text}");
        }
        let long = caught(|| panic!("{}", "x".repeat(1 << 20))).unwrap_err();
        assert!(
            long.len() < 5000 && ProbeError::failed("x".repeat(1 << 20)).to_string().len() < 5000
        );
    }

    #[test]
    fn config_is_found_by_its_type() {
        let decl = DeviceDecl::new("x", "d").config(7u64);
        with_context(&decl, |cx| {
            assert_eq!(cx.config::<u64>().unwrap(), &7);
            assert!(cx.config::<u32>().unwrap_err().to_string().contains("something else"));
        });
        with_context(&DeviceDecl::new("y", "d"), |cx| {
            assert!(cx.config::<u32>().unwrap_err().to_string().contains("got none"));
        });
    }
}
