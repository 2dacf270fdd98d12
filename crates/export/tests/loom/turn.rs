//! Model of the turns at a device: waiters against completions, and places that change owners.

use std::sync::Arc;

use corewise_export::turn::{Demand, Flow, TurnEntry, Turns};
use corewise_sync::Parker;
use loom::model::Builder;
use loom::thread;

const ONE: Demand = Demand { first: 1, turn: 1, all: 1, pass: 0 };
const TWO: Demand = Demand { first: 2, turn: 2, all: 2, pass: 0 };

/// Enters as a connection's reader does.
fn enter(turns: &Turns, flow: &Arc<Flow>, parker: &Parker) {
    let mut entry = turns.enter(flow, ONE);
    while entry == TurnEntry::Queued {
        parker.park();
        entry = flow.granted();
    }
}

fn model(f: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

#[test]
fn loom_one_that_stands_in_line_is_woken_by_its_own_completion_or_another_s() {
    model(|| {
        let turns = Arc::new(Turns::new(2));
        let (one_parker, two_parker) = (Parker::new(), Parker::new());
        let one_seat = Flow::new(one_parker.waker());
        let two_seat = Flow::new(two_parker.waker());
        assert_eq!(turns.enter(&one_seat, TWO), TurnEntry::All);
        // Its first request is in past the queue; the second has to wait.
        assert_eq!(turns.enter(&two_seat, ONE), TurnEntry::First);
        let (theirs, flow) = (Arc::clone(&turns), Arc::clone(&one_seat));
        let completions = thread::spawn(move || {
            theirs.leave(&flow, 1);
            theirs.leave(&flow, 1);
        });
        enter(&turns, &two_seat, &two_parker);
        completions.join().unwrap();
        turns.leave(&two_seat, 1);
        turns.leave(&two_seat, 1);
        turns.remove(&one_seat);
        turns.remove(&two_seat);
        assert_eq!(turns.free(), 2, "no place is lost, and none is made");
    });
}

#[test]
fn loom_places_that_are_kept_are_taken_or_used_and_never_both() {
    model(|| {
        let turns = Arc::new(Turns::new(2));
        let (one_parker, two_parker) = (Parker::new(), Parker::new());
        let one_seat = Flow::new(one_parker.waker());
        let two_seat = Flow::new(two_parker.waker());
        // It keeps both places, and doesn't use them. The other has a request in the device, and
        // wants a second one.
        assert_eq!(turns.enter(&one_seat, TWO), TurnEntry::All);
        turns.leave(&one_seat, 2);
        two_seat.force(1);
        let (theirs, flow) = (Arc::clone(&turns), Arc::clone(&one_seat));
        let user = thread::spawn(move || {
            enter(&theirs, &flow, &one_parker);
            theirs.leave(&flow, 1);
        });
        enter(&turns, &two_seat, &two_parker);
        turns.leave(&two_seat, 1);
        turns.leave(&two_seat, 1);
        user.join().unwrap();
        turns.remove(&one_seat);
        turns.remove(&two_seat);
        assert_eq!(turns.free(), 2);
    });
}
