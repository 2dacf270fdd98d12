//! Thread-locals of simulated threads.

use std::any::Any;
use std::cell::RefCell;

use crate::calls::{engine, in_engine};
use crate::task::Locals;

std::thread_local! {
    /// Values of code outside of a simulation.
    static OUTSIDE: RefCell<Locals> = RefCell::default();
}

/// A thread-local with the interface of `std::thread::LocalKey`. Each simulated thread has a value.
pub struct LocalKey<T: 'static> {
    init: fn() -> T,
}

/// An access while the thread is ending, and the value is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessError;

impl<T: 'static> LocalKey<T> {
    /// Creates a key. Only [`sim_thread_local!`](crate::sim_thread_local) calls this.
    #[doc(hidden)]
    pub const fn new(init: fn() -> T) -> Self {
        LocalKey { init }
    }

    /// Calls `f` with this thread's value, which is made at the first call.
    ///
    /// # Panics
    /// The thread is ending, and the value is gone.
    pub fn with<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        self.try_with(f).unwrap_or_else(|_| panic!("a thread-local was used after it was dropped"))
    }

    /// Calls `f` with this thread's value, as [`LocalKey::with`] does, if it isn't gone.
    ///
    /// # Errors
    /// The thread is ending, and the value is gone.
    pub fn try_with<R>(&'static self, f: impl FnOnce(&T) -> R) -> Result<R, AccessError> {
        let key = std::ptr::from_ref(self) as usize;
        let found = with_locals(|locals| {
            locals.by_key.get(&key).map(|value| std::ptr::from_ref::<dyn Any>(&**value))
        });
        let value = match found {
            Some(value) => value,
            None => {
                if with_locals(|locals| locals.order.contains(&key)) {
                    return Err(AccessError);
                }
                let value: Box<dyn Any> = Box::new((self.init)());
                let value_at = std::ptr::from_ref::<dyn Any>(&*value);
                with_locals(|locals| {
                    locals.by_key.insert(key, value);
                    locals.order.push_back(key);
                });
                value_at
            }
        };
        // SAFETY: the value's box lives until its thread ends, and this is that thread.
        let value = unsafe { &*value };
        match value.downcast_ref::<T>() {
            Some(value) => Ok(f(value)),
            None => unreachable!("a static has one type"),
        }
    }
}

impl<T: Copy> LocalKey<std::cell::Cell<T>> {
    /// Returns the cell's value.
    pub fn get(&'static self) -> T {
        self.with(std::cell::Cell::get)
    }

    /// Sets the cell.
    pub fn set(&'static self, value: T) {
        self.with(|cell| cell.set(value));
    }
}

impl<T> std::fmt::Debug for LocalKey<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalKey").finish_non_exhaustive()
    }
}

fn with_locals<R>(f: impl FnOnce(&mut Locals) -> R) -> R {
    let mut f = Some(f);
    let inside = engine(|sim| {
        let tid = sim.current()?;
        let f = f.take()?;
        Some(f(&mut sim.threads[tid.index()].locals))
    });
    match (inside.flatten(), f) {
        (Some(result), _) => result,
        (None, Some(f)) => in_engine(|| OUTSIDE.with_borrow_mut(f)),
        (None, None) => unreachable!("it was called or it is here"),
    }
}

/// Drops the running thread's values, in the order of their creation.
pub(crate) fn drop_all() {
    let mut next = 0;
    loop {
        // A destructor may make another value.
        let value = with_locals(|locals| {
            let key = *locals.order.get(next)?;
            next += 1;
            Some(locals.by_key.remove(&key))
        });
        match value {
            Some(value) => drop(value),
            None => return,
        }
    }
}

/// Declares any number of thread-locals: `static NAME: Type = value;`.
#[macro_export]
macro_rules! sim_thread_local {
    ($($(#[$attribute:meta])* $visible:vis static $name:ident: $type:ty = $init:expr;)*) => {
        $(
            $(#[$attribute])*
            $visible static $name: $crate::LocalKey<$type> = {
                fn init() -> $type { $init }
                $crate::LocalKey::new(init)
            };
        )*
    };
}
