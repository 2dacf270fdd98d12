//! Panics of user code, where they are caught.
//!
//! Corewise calls functions that aren't its own in many places, and a panic in there ends where it is
//! called. Its payload is the user's value too: it may panic once more when it is dropped,
//! and that must not get out either.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What user code panicked with. Its owner may have the payload; others only see the message.
pub struct PanicPayload(
    /// Boxed once more, so that a result is hardly larger than its value.
    Box<Box<dyn Any + Send>>,
);

// SAFETY: through a shared reference only the message is reached, and only where the payload is a
// `&'static str` or a `String`, which are both `Sync`.
unsafe impl Sync for PanicPayload {}

impl PanicPayload {
    /// Of what `std::panic::catch_unwind` gives.
    pub fn new(payload: Box<dyn Any + Send>) -> PanicPayload {
        PanicPayload(Box::new(payload))
    }

    /// The panic's message; where the payload is no text, a sentence that says so.
    pub fn message(&self) -> &str {
        message(&**self.0)
    }

    /// The payload, as `std::panic::catch_unwind` gives it. Dropping it runs the destructor of what
    /// it panicked with, on the thread that does.
    pub fn into_inner(self) -> Box<dyn Any + Send> {
        *self.0
    }
}

impl fmt::Debug for PanicPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.message().fmt(f)
    }
}

/// What a panic said: what `panic!` was given, or that it wasn't text. Any context.
pub fn message(payload: &(dyn Any + Send)) -> &str {
    match payload.downcast_ref::<&'static str>() {
        Some(text) => text,
        None => payload.downcast_ref::<String>().map_or("a payload that is not text", |text| text),
    }
}

/// Drops what a panic left. A panic of that drop ends here, and what *it* left is leaked: it might go
/// on like that for ever. Runs the user's destructor, on this thread.
pub fn discard(payload: Box<dyn Any + Send>) {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(another);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_payload_that_panics_when_it_is_dropped_is_discarded_quietly() {
        struct Bomb(u32);
        impl Drop for Bomb {
            fn drop(&mut self) {
                if self.0 > 0 {
                    std::panic::panic_any(Bomb(self.0 - 1));
                }
            }
        }
        discard(Box::new(Bomb(3)));
    }
}
