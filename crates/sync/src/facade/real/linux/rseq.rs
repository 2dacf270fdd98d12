//! The CPU of the calling thread, as the kernel keeps it up to date in the thread's own memory: one
//! load, no call.
//!
//! Since 2.35, glibc registers such an area ("restartable sequences") for each thread, at
//! `__rseq_offset` from the thread pointer, if `__rseq_size` isn't 0. Older versions and other
//! libraries don't, so the symbols are looked up at run time, once a thread.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::{arch, mem, ptr};

unsafe extern "C" {
    /// Looks up a symbol. The standard library links it on each target that this file is compiled
    /// for.
    fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void;
}

/// Value of a thread whose area hasn't been looked up yet.
static UNKNOWN: u32 = u32::MAX;
/// Value of a thread without an area.
static NONE: u32 = u32::MAX - 1;
/// `struct rseq` begins with two numbers of 32 bits; the second one is the CPU. It is part of the
/// kernel's interface.
const CPU_ID: usize = 4;

thread_local! {
    /// Address of the thread's CPU. A number that is negative as an `i32` is none.
    static CPU: Cell<*const u32> = const { Cell::new(&raw const UNKNOWN) };
}

/// Returns the CPU that the calling thread is on; `None` if only the system knows.
#[inline]
pub(crate) fn current_cpu() -> Option<u32> {
    // SAFETY: it points to one of the two statics, or into the calling thread's control block,
    // which is there for as long as the thread. The kernel writes it only when this thread
    // doesn't run: volatile, so that it is read each time.
    let cpu = CPU.with(|cpu| unsafe { cpu.get().read_volatile() });
    if cpu as i32 >= 0 { Some(cpu) } else { look_up() }
}

#[cold]
fn look_up() -> Option<u32> {
    CPU.with(|place| {
        if place.get() != &raw const UNKNOWN {
            return None;
        }
        let found = area().map(|area| area.wrapping_add(CPU_ID).cast::<u32>());
        place.set(found.unwrap_or(&raw const NONE));
        // SAFETY: as in `current_cpu`.
        let cpu = unsafe { place.get().read_volatile() };
        // -1 or -2: not registered, whatever the library says.
        (cpu as i32 >= 0).then_some(cpu)
    })
}

/// Returns the calling thread's area, if one is registered.
fn area() -> Option<*const u8> {
    let (size, offset) = (symbol::<u32>(c"__rseq_size")?, symbol::<isize>(c"__rseq_offset")?);
    // SAFETY: both are constants of the library, of these types (`sys/rseq.h`), set before any of
    // our code runs.
    let (size, offset) = unsafe { (size.read(), offset.read()) };
    // The size has no more than the kernel's features: up to `cpu_id` there always were 8 bytes.
    if (size as usize) < CPU_ID + mem::size_of::<u32>() {
        return None;
    }
    Some(thread_pointer().wrapping_offset(offset))
}

fn symbol<T>(name: &CStr) -> Option<*const T> {
    // SAFETY: the name ends with a NUL. A null handle is `RTLD_DEFAULT`: whatever is loaded.
    let found = unsafe { dlsym(ptr::null_mut(), name.as_ptr()) };
    (!found.is_null()).then_some(found.cast_const().cast())
}

/// Returns the thread pointer, by which the thread's variables are found.
fn thread_pointer() -> *const u8 {
    let pointer: *const u8;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the ABI has the thread pointer itself at its address.
    unsafe {
        arch::asm!("mov {}, qword ptr fs:[0]", out(reg) pointer,
            options(pure, readonly, nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a register that user space may read.
    unsafe {
        arch::asm!("mrs {}, tpidr_el0", out(reg) pointer,
            options(pure, nomem, nostack, preserves_flags));
    }
    pointer
}

#[cfg(test)]
mod tests {
    use super::super as system;
    use super::*;
    use crate::facade::sys::{Mask, set_affinity};

    #[test]
    fn the_area_says_what_the_system_says() {
        for cpu in system::affinity(None).expect("Linux says it").iter() {
            let mut alone = Mask::none();
            alone.add(cpu);
            let seen = std::thread::spawn(move || {
                // A CPU that went offline meanwhile can't be had.
                let pinned = set_affinity(None, &alone).ok();
                pinned.map(|()| (current_cpu(), system::current_cpu_by_call()))
            });
            if let Some((area, system)) = seen.join().unwrap() {
                assert_eq!(system, Some(cpu));
                // None: this library has no such area.
                assert!(area.is_none() || area == Some(cpu), "{area:?} on {cpu}");
            }
        }
    }

    #[test]
    fn a_symbol_that_is_not_there_is_none() {
        assert!(symbol::<u32>(c"__corewise_has_no_such_symbol").is_none());
    }

    #[test]
    fn where_there_is_no_area_the_system_is_asked() {
        std::thread::spawn(|| {
            CPU.with(|place| place.set(&raw const NONE));
            assert_eq!(current_cpu(), None);
            assert!(system::current_cpu().is_some());
        })
        .join()
        .unwrap();
    }
}
