//! Polls of devices that stand on others.
#![cfg(not(loom))]

use std::sync::Arc;

use corewise_blockmq::{BlockDevice, BlockDeviceExt, Request};
use corewise_drivers::Stripe;

use crate::common::{Held, OnlyPolled, Rig};

#[test]
fn a_poll_of_a_stacked_device_polls_its_parts() {
    let rig = Rig::live();
    let (a, b) = (Held::default(), Held::default());
    let below: Vec<Arc<dyn BlockDevice>> = vec![rig.queue(OnlyPolled(a)), rig.queue(OnlyPolled(b))];
    let stripe = rig.queue(Stripe::new(below, 4096).unwrap());
    // One request on both children.
    for n in 0..20 {
        stripe.execute_polled(Request::discard(n * 8192, 8192)).result.unwrap();
    }
    assert_eq!(stripe.poll(), Some(0));
    assert_eq!(
        rig.queue(Stripe::new(vec![rig.queue(Held::default())], 4096).unwrap()).poll(),
        None
    );
}
