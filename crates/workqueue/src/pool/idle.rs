//! What workers without work do until they sleep, as users say it.

use std::time::Duration;

/// What a worker that finds no work does before it sleeps: see
/// [`PoolsBuilder::idle`](crate::PoolsBuilder::idle).
///
/// To wake a thread that sleeps costs a system call and some 4 us on the same CPU; on another one,
/// in a virtual machine whose CPU was halted meanwhile, 25 to 50 us. One that looks out for work
/// itself (it spins) takes it in less than a microsecond, and keeps a CPU busy while it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Idle {
    /// It sleeps at once. It burns nothing, and each hand-over costs a wake-up.
    Sleep,
    /// It spins for 100 us at most, about what it costs two threads to wake each other, and only
    /// while that pays: after work has come to it twice within 100 us, each time from another CPU.
    /// Once it has spun in vain it wants more such proof, twice as much each time. It stops at once
    /// where other threads want its CPU. The cost: 100 us of CPU each time that a row of such
    /// hand-overs ends. At rest it costs nothing.
    ///
    /// Where work comes to it from its own CPU, within 100 us and again and again, it yields once
    /// before it sleeps: then what is queued while the other threads of that CPU run needs no system
    /// call to wake it, and is run in one go when they wait. Where they don't, such work may wait for
    /// the CPU for some ms; each time that this happens it wants twice as much proof as before.
    #[default]
    Hybrid,
    /// It spins for so long each time that it runs out of work. For machines, or sets of CPUs, that
    /// have nothing else to do: each worker burns a CPU for that time. It too gives way to other
    /// threads.
    Busy(Duration),
}
