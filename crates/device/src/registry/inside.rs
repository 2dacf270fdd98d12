//! Threads inside user code, and the managers that called it: a call that would wait for itself
//! there is refused.
//!
//! Guards: `O:` the owner thread only.

use super::run::Registry;
use crate::event::{Event, Observer};
use std::cell::RefCell;
use std::sync::Arc;

corewise_sync::per_thread! {
    /// O: the registries whose drivers, callbacks or observers this thread is in, by their
    /// addresses, the outermost first; and those inside which another thread waits for this one.
    static INSIDE: RefCell<Vec<usize>> = RefCell::new(Vec::new());
}

/// A guard: while it lives, the thread is inside user code that a registry called. Drop guards in
/// the opposite order, on the same thread.
pub(crate) struct ProbesInside {
    /// Length of the list before.
    before: usize,
}

/// The registries that a thread is inside, for another thread that works for it while it waits.
#[derive(Clone, Default)]
pub(crate) struct ProbesAround(Option<Arc<[usize]>>);

impl ProbesInside {
    pub(crate) fn enter(registry: &Registry) -> ProbesInside {
        ProbesInside::enter_all(&[address(registry)])
    }

    // A thread that is about to end may have no such list any more: it is inside nothing then.
    fn enter_all(registries: &[usize]) -> ProbesInside {
        let before = INSIDE.try_with(|inside| {
            let inside = &mut *inside.borrow_mut();
            let before = inside.len();
            // Each once: the list is handed on through nested probes.
            registries.iter().for_each(|of| {
                if !inside.contains(of) {
                    inside.push(*of);
                }
            });
            before
        });
        ProbesInside { before: before.unwrap_or(0) }
    }

    /// Returns true if this thread is inside user code that `registry` called, however far out. A
    /// call that would wait for other devices there might wait for itself.
    pub(crate) fn is_in(registry: &Registry) -> bool {
        INSIDE.try_with(|inside| inside.borrow().contains(&address(registry))).unwrap_or(false)
    }
}

impl Drop for ProbesInside {
    fn drop(&mut self) {
        let _ = INSIDE.try_with(|inside| inside.borrow_mut().truncate(self.before));
    }
}

impl ProbesAround {
    /// Returns the registries that this thread is inside.
    pub(crate) fn here() -> ProbesAround {
        let here = |inside: &RefCell<Vec<usize>>| {
            let inside = inside.borrow();
            (!inside.is_empty()).then(|| Arc::from(&inside[..]))
        };
        ProbesAround(INSIDE.try_with(here).unwrap_or(None))
    }

    /// Puts the thread inside all of them until the guard is dropped.
    pub(crate) fn enter(&self) -> ProbesInside {
        ProbesInside::enter_all(self.0.as_deref().unwrap_or_default())
    }

    /// Returns an observer that is inside all of them, and inside the registry, whenever it is
    /// called.
    pub(crate) fn observer(&self, registry: &Registry, observer: Observer) -> Observer {
        let (around, registry) = (self.clone(), address(registry));
        Arc::new(move |event: &Event<'_>| {
            let _around = around.enter();
            let _inside = ProbesInside::enter_all(&[registry]);
            observer(event);
        })
    }
}

fn address(registry: &Registry) -> usize {
    std::ptr::from_ref(registry).addr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_inside_of_a_probe_and_so_on_is_inside_of_each_registry_once() {
        let known = || INSIDE.with(|inside| inside.borrow().clone());
        let mut guards = Vec::new();
        for _ in 0..10 {
            guards.push(ProbesAround::here().enter());
            guards.push(ProbesInside::enter_all(&[1, 2]));
        }
        assert_eq!(known(), [1, 2]);
        while guards.len() > 2 {
            guards.pop();
        }
        assert_eq!(known(), [1, 2], "the outermost one is still in there");
        guards.pop();
        assert_eq!(known(), [0; 0]);
    }
}
