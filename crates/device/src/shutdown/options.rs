//! How a shutdown is asked for.

use crate::cancel::Cancel;
use crate::event::Observer;
use crate::history::History;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The most helpers at once, unless the options say otherwise: with the caller and the workers that the
/// pools hold ready, a shutdown keeps to 32 threads.
const MAX_HELPERS: usize = 28;

/// How long a callback may take before it is named, unless the options say otherwise.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(10);

/// What is done about a callback whose deadline has passed, once everything that doesn't depend on
/// it is shut down. Until then it is only named, whatever the policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HangPolicy {
    /// It is waited for, as a kernel does.
    #[default]
    WaitOn,
    /// It counts as done, as a failure: what it needs is shut down under it, and the report says
    /// what that was ([`ShutdownReport::past`](crate::ShutdownReport::past)). Its callback goes on, if it does. Once the whole
    /// shutdown is late there is nothing to go on for: then it is as `GiveUp`.
    ///
    /// An asynchronous callback that hangs holds a worker of the pools, after this or `GiveUp`, and
    /// [`WorkerPools::shutdown`](corewise_workqueue::WorkerPools::shutdown) would wait for it:
    /// [`shutdown_timeout`](corewise_workqueue::WorkerPools::shutdown_timeout) doesn't, and names it.
    Skip,
    /// The rest is left undone, as by an [abort](ShutdownOptions::abort).
    GiveUp,
}

/// How to shut devices down. The default: side by side, as far as they don't need each other and their
/// declarations allow it; callbacks that take longer than ten seconds are named, and waited for.
#[derive(Clone)]
#[non_exhaustive]
pub struct ShutdownOptions {
    /// The global switch: false runs every callback in the caller's thread, one by one.
    pub asynchronous: bool,
    /// The most helpers that may work beside the caller at once; 0 is as good as `asynchronous`
    /// being false. 28 by default: a helper is only held by a callback that blocks, so that is how
    /// many may block at once, of however many devices.
    pub max_helpers: usize,
    /// How long a callback may take before it is named, for devices that don't say so themselves.
    /// `None`: as long as it likes.
    pub device_timeout: Option<Duration>,
    /// How long all may take, from when no probe is in progress any more. After that whatever runs is
    /// named, and unless the policy is to wait, the rest is left undone.
    pub timeout: Option<Duration>,
    /// What is done about callbacks that are late.
    ///
    /// No thread can be taken out of a callback. So with another policy than
    /// [`HangPolicy::WaitOn`] synchronous callbacks run in a thread of their own (`cw-shutdown`),
    /// one after another as ever, and the caller only waits: then
    /// [`shutdown`](crate::DeviceManager::shutdown) returns whatever callbacks do, also those of devices that were being unbound
    /// when it began. It waits for probes in progress first, which have deadlines of their own: only an [abort](ShutdownOptions::abort)
    /// ends that, with [`Error::Busy`](crate::Error::Busy).
    pub on_hang: HangPolicy,
    /// How long callbacks took before: those with the longest way to go start first.
    pub history: Option<Arc<History>>,
    /// Throwing it leaves the rest undone: no further callback is started, and the shutdown
    /// returns as soon as its caller is in no callback itself.
    pub abort: Cancel,
    /// Told about each device that has a callback, for progress bars.
    pub observer: Option<Observer>,
}

impl Default for ShutdownOptions {
    fn default() -> ShutdownOptions {
        ShutdownOptions {
            asynchronous: true,
            max_helpers: MAX_HELPERS,
            device_timeout: Some(DEVICE_TIMEOUT),
            timeout: None,
            on_hang: HangPolicy::default(),
            history: None,
            abort: Cancel::new(),
            observer: None,
        }
    }
}

impl ShutdownOptions {
    /// The defaults.
    pub fn new() -> ShutdownOptions {
        ShutdownOptions::default()
    }

    /// Sets the global switch.
    #[must_use]
    pub fn asynchronous(mut self, yes: bool) -> ShutdownOptions {
        self.asynchronous = yes;
        self
    }

    /// Sets the most helpers at once.
    #[must_use]
    pub fn max_helpers(mut self, most: usize) -> ShutdownOptions {
        self.max_helpers = most;
        self
    }

    /// Sets how long a callback may take before it is named.
    #[must_use]
    pub fn device_timeout(mut self, timeout: Option<Duration>) -> ShutdownOptions {
        self.device_timeout = timeout;
        self
    }

    /// Sets how long all may take.
    #[must_use]
    pub fn timeout(mut self, timeout: Option<Duration>) -> ShutdownOptions {
        self.timeout = timeout;
        self
    }

    /// Sets what is done about callbacks that are late.
    #[must_use]
    pub fn on_hang(mut self, policy: HangPolicy) -> ShutdownOptions {
        self.on_hang = policy;
        self
    }

    /// Sets what is known of earlier runs.
    #[must_use]
    pub fn history(mut self, history: Arc<History>) -> ShutdownOptions {
        self.history = Some(history);
        self
    }

    /// Sets the switch that aborts.
    #[must_use]
    pub fn abort(mut self, abort: Cancel) -> ShutdownOptions {
        self.abort = abort;
        self
    }

    /// Sets who is told.
    #[must_use]
    pub fn observer(mut self, observer: Observer) -> ShutdownOptions {
        self.observer = Some(observer);
        self
    }
}

impl fmt::Debug for ShutdownOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ShutdownOptions")
            .field("asynchronous", &self.asynchronous)
            .field("max_helpers", &self.max_helpers)
            .field("device_timeout", &self.device_timeout)
            .field("timeout", &self.timeout)
            .field("on_hang", &self.on_hang)
            .field("abort", &self.abort)
            .finish_non_exhaustive()
    }
}
