//! Faults of memory that a frontend shares: an access to a page that its file doesn't have.
//!
//! A frontend can truncate a file that the server has mapped, unless the file is sealed.
//! `hugetlbfs` may have no page left for an access. The kernel then sends the thread a `SIGBUS`,
//! which would end the process. Here a handler of that signal replaces the mapping by zeroes, and
//! marks the memory of the frontend as lost. `faults.md` beside this file has the steps and the
//! reasons.
//!
//! Only a thread that calls [`watch`] accesses such memory. The list of its mappings is its own, so
//! the handler shares nothing with other threads but that mark.

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::{Arc, OnceLock};

use corewise_sync::atomic::{AtomicBool, Ordering, compiler_fence};
use rustix::fs::{FileType, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, fstatfs};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use vm_memory::{
    FileOffset, GuestAddress, GuestRegionMmap, MmapRegion, VolatileMemory, VolatileSlice,
};

/// The number by which `statfs` names `hugetlbfs`.
const HUGETLBFS: u64 = 0x9584_58f6;

/// The record of whether a frontend's memory is lost: an access found no page, and everything that
/// was read since may be zeroes.
#[derive(Debug, Default)]
pub(crate) struct MemoryLoss {
    /// A: set by the handler before it maps zeroes (`Mark`: Release). Its partner is `Check`
    /// (Acquire) of a thread that may have read them. The kernel's lock orders the two.
    lost: AtomicBool,
}

impl MemoryLoss {
    pub(crate) fn has_happened(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }
}

/// A part of a file of the frontend, mapped.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) region: Arc<GuestRegionMmap>,
    loss: Arc<MemoryLoss>,
}

impl Mapping {
    /// Maps `len` bytes of `file`, after checks that they can be accessed. `what` names the file's
    /// content for errors. The guest has it at `guest`.
    ///
    /// # Errors
    /// In words.
    pub(crate) fn new(
        what: &str,
        file: File,
        offset: u64,
        len: u64,
        guest: u64,
        loss: &Arc<MemoryLoss>,
    ) -> Result<Arc<Mapping>, String> {
        let end = offset.checked_add(len).ok_or_else(|| format!("{what} is too long"))?;
        let size = usize::try_from(len).map_err(|_| format!("{what} is too long"))?;
        let stat = fstat(&file).map_err(|error| format!("the file of {what}: {error}"))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(format!("{what} has to be a file or a memfd"));
        }
        let sealed = fcntl_add_seals(&file, SealFlags::SHRINK).is_ok()
            || fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
        // The size is read after the seal.
        let found = fstat(&file).map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0));
        if found < end {
            return Err(format!("{what} ends at byte {end} of its file, which has {found} bytes"));
        }
        // The kernel unmaps and replaces whole pages alone, and those of this file system are huge.
        let page = fstatfs(&file).ok().filter(|fs| fs.f_type as u64 == HUGETLBFS);
        let page = page.map_or(1, |fs| u64::try_from(fs.f_bsize).unwrap_or(1).max(1));
        if len % page != 0 {
            return Err(format!(
                "{what} has {len} bytes, which aren't whole pages of its file, of {page} bytes"
            ));
        }
        tracing::debug!(what, guest, len, sealed, "memory of a frontend is mapped");
        survive_faults();
        let region = MmapRegion::from_file(FileOffset::new(file, offset), size)
            .map_err(|error| format!("cannot map {len} bytes of {what}: {error}"))?;
        let region = GuestRegionMmap::new(region, GuestAddress(guest))
            .ok_or_else(|| format!("{what} at {guest:#x} is beyond the address space"))?;
        Ok(Arc::new(Mapping { region: Arc::new(region), loss: Arc::clone(loss) }))
    }

    /// Returns the bytes.
    pub(crate) fn bytes(&self) -> VolatileSlice<'_> {
        (**self.region).as_volatile_slice()
    }

    fn has(&self, at: usize) -> bool {
        let first = self.region.as_ptr().addr();
        at >= first && at - first < self.region.size()
    }
}

/// The mappings of a thread, for the handler. Nothing here is dropped, so the handler can read it
/// at any time.
struct Watched {
    first: Cell<*const Arc<Mapping>>,
    count: Cell<usize>,
}

/// The mappings of a thread, which keep what [`Watched`] leads to.
struct MappingOwners(RefCell<Vec<Arc<Mapping>>>);

impl Drop for MappingOwners {
    fn drop(&mut self) {
        show(&[]);
    }
}

std::thread_local! {
    static WATCHED: Watched = const { Watched { first: Cell::new(ptr::null()), count: Cell::new(0) } };
    static KEPT: MappingOwners = const { MappingOwners(RefCell::new(Vec::new())) };
}

/// Shows the handler of this thread another list.
fn show(mappings: &[Arc<Mapping>]) {
    WATCHED.with(|watched| {
        // The handler runs on this thread, between two accesses of memory that can fault. None of
        // these is here, so the list is never seen in part. The fences are for the compiler.
        compiler_fence(Ordering::SeqCst);
        watched.first.set(mappings.as_ptr());
        watched.count.set(mappings.len());
        compiler_fence(Ordering::SeqCst);
    });
}

/// Replaces the mappings that this thread may access. They stay mapped until the next call, or the
/// thread's end.
pub(crate) fn watch(mappings: Vec<Arc<Mapping>>) {
    let former = KEPT.with(|kept| {
        show(&mappings);
        kept.0.replace(mappings)
    });
    drop(former);
}

/// The disposition of the signal before this crate's.
static FORMER: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler, once in a process.
fn survive_faults() {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let mut former = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: no new action is given, and there is room for the former one.
        unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), former.as_mut_ptr()) };
        // SAFETY: the call has filled it, and any bytes are a `sigaction`.
        let former = unsafe { former.assume_init() };
        // The handler finds it from its first moment on.
        let _ = FORMER.set(former);
        let mut action = former;
        action.sa_sigaction = on_fault as *const () as usize;
        // Threads of Rust have a stack for signals.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the action is whole, and `on_fault` calls nothing but async-signal-safe
        // functions.
        unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) };
    });
}

/// Handles a `SIGBUS`: of an access to watched memory, or of something else.
extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a whole record of the signal, which has an address if its code says
    // that an access caused it.
    let (code, at) = unsafe { ((*info).si_code, (*info).si_addr()) };
    if code <= 0 || !replace(at.addr()) {
        pass_on(signal, info, context, code <= 0);
    }
}

/// Replaces the watched mapping that has this address by zeroes, and marks its memory as lost.
/// Returns false if this thread watches none, or no memory is left.
fn replace(at: usize) -> bool {
    WATCHED.with(|watched| {
        let (mut next, count) = (watched.first.get(), watched.count.get());
        for _ in 0..count {
            // SAFETY: `show` was given `count` mappings from `first` on. They are kept until the
            // next call, which runs on this thread, as the handler does.
            let mapping = unsafe { &*next };
            if mapping.has(at) {
                mapping.loss.lost.store(true, Ordering::Release);
                let (first, len) = (mapping.region.as_ptr(), mapping.region.size());
                return map_zeroes(first.cast(), len) || map_zeroes(page_of(first, at), 1);
            }
            // SAFETY: it is one of `count`, so the next address is in the list or at its end.
            next = unsafe { next.add(1) };
        }
        false
    })
}

/// Returns the begin of the page with this address, in a mapping that begins at `first`.
fn page_of(first: *mut u8, at: usize) -> *mut c_void {
    let page = rustix::param::page_size();
    first.with_addr(at & !(page - 1)).cast()
}

/// Maps zeroes over a part of a mapping that this thread keeps. Returns false if the system
/// refuses.
fn map_zeroes(at: *mut c_void, len: usize) -> bool {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // Shared memory doesn't count for `RLIMIT_DATA`.
    let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: the range is of a mapping that this thread keeps, so nobody else has mapped anything
    // there. Its content is reached by volatile accesses alone, and by no reference. The system
    // call is made without libc, so it is async-signal-safe and leaves `errno` alone.
    unsafe { mmap_anonymous(at, len, protection, flags) }.is_ok()
}

/// Handles a signal as if this crate weren't there. `sent` is true if a process sent it.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void, sent: bool) {
    let action = FORMER.get().filter(|action| {
        action.sa_sigaction != libc::SIG_DFL && action.sa_sigaction != libc::SIG_IGN
    });
    let Some(action) = action else {
        // SAFETY: any bytes are a `sigaction`; these say the default action.
        let default: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        // SAFETY: the action is whole. Both calls are async-signal-safe.
        unsafe {
            libc::sigaction(signal, &raw const default, ptr::null_mut());
            // An access is repeated when the handler returns, and ends the process.
            if sent {
                libc::raise(signal);
            }
        }
        return;
    };
    if action.sa_flags & libc::SA_SIGINFO != 0 {
        type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
        // SAFETY: it was installed as a handler of this type.
        let handler: Handler = unsafe { std::mem::transmute(action.sa_sigaction) };
        handler(signal, info, context);
    } else {
        // SAFETY: it was installed as a handler of this type.
        let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(action.sa_sigaction) };
        handler(signal);
    }
}
