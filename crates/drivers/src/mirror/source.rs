//! Checks that a mirror doesn't begin with a first leg that is empty or outdated, which would be
//! copied over data.

use super::legs::Legs;
use crate::below::StackError;
use crate::content::holds_data_before;

/// Checks a mirror without a record, which will copy `size` bytes of its first leg to the others.
pub(super) fn may_be_first(legs: &Legs, size: u64) -> Result<(), StackError> {
    if legs.len() == 1 {
        // Nothing is copied, and a look would go through all mirrors below.
        return Ok(());
    }
    let Some(first) = legs.there(0).map(|there| there.device.clone()) else { return Ok(()) };
    if legs.devices().any(|device| device.geometry().read_only) {
        // Nothing is copied.
        return Ok(());
    }
    let (is_new, is_outdated) = (legs.is_new(0), first.is_outdated());
    if !is_outdated && holds_data_before(&*first, size).unwrap_or(!is_new) {
        return Ok(());
    }
    let at_risk = (1..legs.len()).find_map(|n| {
        let device = legs.there(n)?.device.clone();
        if is_outdated && device.is_outdated() {
            return None;
        }
        match holds_data_before(&*device, size) {
            Some(true) => Some((legs.name(n), "holds")),
            None if !legs.is_new(n) => Some((legs.name(n), "may hold")),
            _ => None,
        }
    });
    let Some((other, holds)) = at_risk else { return Ok(()) };
    if is_outdated {
        let first = legs.name(0);
        return Err(StackError::new(format!(
            "the first leg '{first}' was opened without changes that were flushed to it, and would \
             be copied over '{other}', which {holds} data, perhaps with these changes. Name \
             '{other}' first: the mirror then begins with what '{other}' has; to discard that, zero \
             '{other}' before"
        )));
    }
    let (first, state) = (legs.name(0), if is_new { "new" } else { "empty" });
    Err(StackError::new(format!(
        "the first leg '{first}' is {state}, and would be copied over '{other}', which {holds} \
         data. If '{first}' had data, bring it back (is its disk mounted?). If that is lost, name \
         '{other}' first: the mirror then begins with what '{other}' has; to discard that, zero \
         '{other}' before"
    )))
}
