//! A mutex that inherits priorities: what a spinlock of the kernel is on PREEMPT_RT.

#[cfg_attr(sim, path = "simulated.rs")]
#[cfg_attr(not(sim), path = "system.rs")]
mod imp;

pub(super) use imp::PiMutex;

impl Default for PiMutex {
    fn default() -> PiMutex {
        PiMutex::new().expect("Linux has mutexes that inherit priorities")
    }
}
