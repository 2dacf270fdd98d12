//! Panics of user code, where they are caught.
//!
//! Corewise calls user functions in many places, and a panic in one ends where it is called. Its
//! payload is the user's value, too: it may panic again when it is dropped, and that must not
//! escape, either.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::text;

/// The payload of a panic of user code. Its owner may have the payload; others only see the
/// message.
pub struct PanicPayload(
    /// Boxed twice, so that a result is hardly larger than its value.
    Box<Box<dyn Any + Send>>,
);

// SAFETY: through a shared reference only the message is reached, and only where the payload is a
// `&'static str` or a `String`, which are both `Sync`.
unsafe impl Sync for PanicPayload {}

impl PanicPayload {
    /// Wraps the result of `std::panic::catch_unwind`.
    pub fn new(payload: Box<dyn Any + Send>) -> PanicPayload {
        PanicPayload(Box::new(payload))
    }

    /// Returns the panic's message; if the payload is no text, a sentence that says so.
    pub fn message(&self) -> &str {
        message(&**self.0)
    }

    /// Returns the payload, as `std::panic::catch_unwind` returns it. Dropping it runs the
    /// payload's destructor, on the thread that drops it.
    pub fn into_inner(self) -> Box<dyn Any + Send> {
        *self.0
    }
}

/// The message, bounded, and not escaped anew at each level of errors: see [`text::message`].
impl fmt::Debug for PanicPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        text::message(self.message()).fmt(f)
    }
}

/// Returns the message of a panic: the argument of `panic!`, or a sentence that it was no text. Any
/// context.
pub fn message(payload: &(dyn Any + Send)) -> &str {
    match payload.downcast_ref::<&'static str>() {
        Some(text) => text,
        None => payload.downcast_ref::<String>().map_or("a payload that is not text", |text| text),
    }
}

/// Calls user code, and returns `None` if that panics. The payload is the user's too, so it is
/// [discarded](discard).
#[inline]
pub fn caught<R>(f: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(f)).map_err(discard).ok()
}

/// Number of successive panics of destructors that [`discard`] catches.
const DROPS: u32 = 8;

/// Drops a payload. If that panics, drops the payload of that panic, and so on, at most eight
/// times: a payload whose destructor always creates another one is leaked then. Runs user
/// destructors, on this thread.
pub fn discard(payload: Box<dyn Any + Send>) {
    let mut payload = payload;
    for _ in 0..DROPS {
        match catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            Ok(()) => return,
            Err(another) => payload = another,
        }
    }
    std::mem::forget(payload);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn text_is_told_and_other_payloads_are_not() {
        let said = |panics: fn()| {
            let payload = catch_unwind(panics).expect_err("it panics");
            PanicPayload::new(payload).message().to_owned()
        };
        assert_eq!(said(|| panic!("as it stands")), "as it stands");
        assert_eq!(said(|| panic!("put {}", "together")), "put together");
        assert_eq!(said(|| std::panic::panic_any(7)), "a payload that is not text");
    }

    /// A payload whose destructor panics with another one, this many times.
    struct Bomb(u32, Arc<()>);
    impl Drop for Bomb {
        fn drop(&mut self) {
            if self.0 > 0 {
                std::panic::panic_any(Bomb(self.0 - 1, Arc::clone(&self.1)));
            }
        }
    }

    #[test]
    fn a_payload_that_panics_when_it_is_dropped_is_discarded_without_a_leak() {
        let alive = Arc::new(());
        discard(Box::new(Bomb(3, Arc::clone(&alive))));
        assert_eq!(Arc::strong_count(&alive), 1, "each of the four is gone");
    }

    #[test]
    fn a_payload_that_panics_for_ever_is_given_up() {
        let alive = Arc::new(());
        discard(Box::new(Bomb(u32::MAX, Arc::clone(&alive))));
        assert_eq!(Arc::strong_count(&alive), 2, "the last one is leaked");
    }

    #[test]
    fn the_debug_text_of_a_payload_is_bounded_and_quotes_are_not_escaped() {
        let payload = PanicPayload::new(Box::new(r#"a "quoted" word"#));
        assert_eq!(format!("{payload:?}"), r#""a "quoted" word""#);
        let payload = PanicPayload::new(Box::new("x".repeat(1 << 20)));
        assert!(format!("{payload:?}").len() < 5000);
        assert_eq!(payload.message().len(), 1 << 20, "it is there as a whole");
    }
}
