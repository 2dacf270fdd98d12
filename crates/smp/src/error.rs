//! Errors of calls: refused before they were accepted, or failed after.

use corewise_topology::CpuId;
use std::fmt;

use corewise_sync::panics::PanicPayload;
use corewise_sync::text;

/// The reason why a CPU gets no call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SkipReason {
    /// The CPU isn't online for calls: it never was, it left, or the machine has no such CPU.
    NotOnline,
    /// The handle is shutting down.
    ShuttingDown,
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SkipReason::NotOnline => "not online",
            SkipReason::ShuttingDown => "shutting down",
        })
    }
}

/// The call wasn't accepted: the function never ran, and is given back.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallError<F> {
    /// The CPU isn't online for calls. It may come back: see
    /// [`Smp::follow_machine`](crate::Smp::follow_machine).
    NotOnline {
        /// The CPU that was asked for.
        cpu: CpuId,
        /// The function.
        f: F,
    },
    /// All CPUs of the set that was asked for ([`AnyOf`](crate::AnyOf)) are offline for calls.
    NoneOnline {
        /// The function.
        f: F,
    },
    /// [`Smp::shutdown`](crate::Smp::shutdown) was called: no call is accepted any more.
    ShuttingDown {
        /// The function.
        f: F,
    },
}

impl<F> CallError<F> {
    pub(crate) fn new(cpu: CpuId, reason: SkipReason, f: F) -> Self {
        match reason {
            SkipReason::NotOnline => CallError::NotOnline { cpu, f },
            SkipReason::ShuttingDown => CallError::ShuttingDown { f },
        }
    }

    /// Returns the function that didn't run.
    pub fn into_inner(self) -> F {
        match self {
            CallError::NotOnline { f, .. }
            | CallError::NoneOnline { f }
            | CallError::ShuttingDown { f } => f,
        }
    }

    /// Returns the same refusal with another function: the one that the caller knows.
    pub(crate) fn with<G>(self, g: G) -> CallError<G> {
        match self {
            CallError::NotOnline { cpu, .. } => CallError::NotOnline { cpu, f: g },
            CallError::NoneOnline { .. } => CallError::NoneOnline { f: g },
            CallError::ShuttingDown { .. } => CallError::ShuttingDown { f: g },
        }
    }
}

impl<F> fmt::Debug for CallError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::NotOnline { cpu, .. } => {
                f.debug_struct("NotOnline").field("cpu", cpu).finish_non_exhaustive()
            }
            CallError::NoneOnline { .. } => f.debug_struct("NoneOnline").finish_non_exhaustive(),
            CallError::ShuttingDown { .. } => {
                f.debug_struct("ShuttingDown").finish_non_exhaustive()
            }
        }
    }
}

impl<F> fmt::Display for CallError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallError::NotOnline { cpu, .. } => {
                write!(f, "CPU {cpu} is not online for calls: call another CPU")
            }
            CallError::NoneOnline { .. } => {
                f.write_str("no CPU of the set is online for calls: call another set")
            }
            CallError::ShuttingDown { .. } => f.write_str(
                "the call targets are shut down, or are shutting down: make a new Smp to call",
            ),
        }
    }
}

impl<F> std::error::Error for CallError<F> {}

/// The call was accepted and has no value.
#[derive(Debug)]
#[non_exhaustive]
pub enum CallFailed {
    /// The function panicked. Its CPU continues to take calls.
    Panicked {
        /// The CPU on which it ran.
        cpu: CpuId,
        /// The payload of the panic.
        panic: PanicPayload,
    },
    /// The stepper of this CPU's target is gone, and the function never ran. This can't happen if
    /// Corewise runs the target's thread.
    NotOnline {
        /// The CPU that was asked for.
        cpu: CpuId,
    },
}

impl CallFailed {
    /// Returns the CPU that was asked for.
    pub fn cpu(&self) -> CpuId {
        match self {
            CallFailed::Panicked { cpu, .. } | CallFailed::NotOnline { cpu } => *cpu,
        }
    }
}

impl fmt::Display for CallFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallFailed::Panicked { cpu, panic } => {
                let message = text::message(panic.message());
                write!(f, "the function called on CPU {cpu} panicked: {message}")
            }
            CallFailed::NotOnline { cpu } => {
                write!(
                    f,
                    "CPU {cpu} left before the function ran: its call target is no longer stepped"
                )
            }
        }
    }
}

impl std::error::Error for CallFailed {}

/// [`Smp::run`](crate::Smp::run) has no value.
pub enum RunError<F> {
    /// The function never ran, and is given back.
    Refused(CallError<F>),
    /// The function was run and panicked.
    Failed(CallFailed),
}

impl<F> fmt::Debug for RunError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Refused(refused) => f.debug_tuple("Refused").field(refused).finish(),
            RunError::Failed(failed) => f.debug_tuple("Failed").field(failed).finish(),
        }
    }
}

impl<F> fmt::Display for RunError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunError::Refused(refused) => refused.fmt(f),
            RunError::Failed(failed) => failed.fmt(f),
        }
    }
}

impl<F> std::error::Error for RunError<F> {}

/// A CPU's call target couldn't be started.
#[derive(Debug)]
pub struct StartError {
    cpu: CpuId,
    kind: StartErrorKind,
}

#[derive(Debug)]
pub(crate) enum StartErrorKind {
    UnknownCpu,
    ShuttingDown,
    Abandoned,
    Spawn(std::io::Error),
    Pin(String),
}

impl StartError {
    pub(crate) fn new(cpu: CpuId, kind: StartErrorKind) -> Self {
        StartError { cpu, kind }
    }

    /// Returns the CPU whose target couldn't be started.
    pub fn cpu(&self) -> CpuId {
        self.cpu
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpu = self.cpu;
        match &self.kind {
            StartErrorKind::UnknownCpu => {
                write!(f, "CPU {cpu} cannot take calls: the machine's topology has no such CPU")
            }
            StartErrorKind::ShuttingDown => {
                write!(f, "CPU {cpu} cannot take calls: the call targets are shut down")
            }
            StartErrorKind::Abandoned => {
                write!(f, "CPU {cpu} cannot take calls: its CallTarget was dropped")
            }
            StartErrorKind::Spawn(error) => {
                write!(f, "cannot start the thread for the call target of CPU {cpu}: {error}")
            }
            StartErrorKind::Pin(error) => {
                write!(f, "cannot pin the call target of CPU {cpu} to its CPU: {error}")
            }
        }
    }
}

/// The text includes the cause's, so there is no source: a report of both would print it twice.
impl std::error::Error for StartError {}
