//! Tests of turns, stepped by hand: no threads, each step in a known order.

use std::collections::VecDeque;

use corewise_sync::Parker;

use super::*;

struct Client {
    flow: Arc<Flow>,
    parker: Parker,
}

fn client() -> Client {
    let parker = Parker::new();
    Client { flow: Flow::new(parker.waker()), parker }
}

fn demand(first: u32, turn: u32, all: u32) -> Demand {
    Demand { first, turn, all, pass: 0 }
}

#[test]
fn one_client_alone_has_all_places_and_keeps_them() {
    let (turns, one) = (Turns::new(8), client());
    assert_eq!(
        turns.enter(&one.flow, demand(1, 4, 8)),
        TurnEntry::All,
        "no turn where nobody waits"
    );
    turns.leave(&one.flow, 8);
    assert_eq!(turns.free(), 0, "it keeps them");
    assert_eq!(turns.enter(&one.flow, demand(1, 4, 8)), TurnEntry::All);
    assert_eq!(turns.enter(&one.flow, demand(1, 1, 1)), TurnEntry::Queued, "there are no more");
    turns.leave(&one.flow, 1);
    assert!(one.parker.try_park());
    assert_eq!(one.flow.granted(), TurnEntry::Turn);
    turns.leave(&one.flow, 8);
    turns.remove(&one.flow);
    assert_eq!(turns.free(), 8);
}

#[test]
fn a_client_with_nothing_in_the_device_goes_past_all_that_wait() {
    let (turns, deep, other, sparse) = (Turns::new(8), client(), client(), client());
    assert_eq!(turns.enter(&deep.flow, demand(1, 4, 8)), TurnEntry::All);
    assert_eq!(turns.enter(&deep.flow, demand(1, 4, 100)), TurnEntry::Queued);
    assert_eq!(turns.enter(&other.flow, demand(2, 4, 50)), TurnEntry::First, "its first request");
    assert_eq!(turns.enter(&other.flow, demand(2, 4, 48)), TurnEntry::Queued);
    assert_eq!(turns.enter(&sparse.flow, demand(1, 1, 1)), TurnEntry::First);
    assert_eq!(
        turns.enter(&sparse.flow, demand(1, 1, 1)),
        TurnEntry::Queued,
        "the second waits for its turn"
    );
    turns.leave(&sparse.flow, 1);
    assert_eq!(sparse.flow.granted(), TurnEntry::Queued);
    turns.leave(&deep.flow, 4);
    assert_eq!(deep.flow.granted(), TurnEntry::Turn);
}

#[test]
fn places_that_another_does_not_use_are_taken_from_it() {
    let (turns, one, two) = (Turns::new(8), client(), client());
    assert_eq!(turns.enter(&one.flow, demand(1, 4, 8)), TurnEntry::All);
    turns.leave(&one.flow, 5);
    assert_eq!(turns.enter(&two.flow, demand(1, 4, 5)), TurnEntry::All);
    assert_eq!(turns.enter(&one.flow, demand(1, 1, 1)), TurnEntry::Queued);
    turns.leave(&two.flow, 1);
    assert_eq!(one.flow.granted(), TurnEntry::Turn);
}

#[test]
fn those_that_wait_go_in_by_turns_whatever_they_have_waiting() {
    let (turns, one, two) = (Turns::new(8), client(), client());
    assert_eq!(turns.enter(&one.flow, demand(1, 4, 8)), TurnEntry::All);
    assert_eq!(turns.enter(&two.flow, demand(1, 1, 2)), TurnEntry::First);
    assert_eq!(turns.enter(&one.flow, demand(1, 4, 250)), TurnEntry::Queued);
    assert_eq!(turns.enter(&two.flow, demand(1, 2, 2)), TurnEntry::Queued);
    let mut order = Vec::new();
    while order.len() < 4 {
        // Here the first client always has something in the device, and the second always its first
        // request.
        turns.leave(&one.flow, 1);
        for (name, client, again) in [(1, &one, demand(1, 4, 250)), (2, &two, demand(1, 2, 2))] {
            if client.flow.granted() == TurnEntry::Turn {
                order.push(name);
                if name == 2 {
                    turns.leave(&two.flow, 2);
                }
                assert_eq!(turns.enter(&client.flow, again), TurnEntry::Queued);
            }
        }
    }
    assert_eq!(order, [1, 2, 1, 2]);
}

#[test]
fn a_first_request_that_goes_past_the_line_is_taken_off_the_next_turn() {
    let mut deficit = Deficit::default();
    let demand = deficit.demand([8; 20]);
    assert_eq!((demand.first, demand.turn, demand.all), (8, QUANTUM, 160));
    assert_eq!(deficit.entered(demand, TurnEntry::First), 8);
    assert_eq!(deficit.demand([8; 19]).turn, QUANTUM - 8);
    assert_eq!(deficit.entered(deficit.demand([8; 19]), TurnEntry::Turn), QUANTUM - 8);
    assert_eq!(deficit.demand([20; 9]).turn, 20, "12 are left over");
    assert_eq!(deficit.entered(deficit.demand([20; 9]), TurnEntry::Turn), 20);
    assert_eq!(deficit.demand([20; 9]).turn, 40);
    assert_eq!(deficit.entered(deficit.demand([20; 2]), TurnEntry::Turn), 40);
    assert_eq!(deficit.demand([20; 9]).turn, 20, "one that had nothing more begins anew");
}

#[test]
fn one_that_gives_up_leaves_the_line_or_keeps_what_it_was_given() {
    let (turns, one, two, three) = (Turns::new(2), client(), client(), client());
    assert_eq!(turns.enter(&one.flow, demand(1, 2, 2)), TurnEntry::All);
    for waiting in [&two, &three] {
        assert_eq!(turns.enter(&waiting.flow, demand(1, 2, 2)), TurnEntry::First);
        assert_eq!(turns.enter(&waiting.flow, demand(1, 1, 1)), TurnEntry::Queued);
    }
    assert_eq!(turns.give_up(&two.flow), TurnEntry::Queued);
    turns.leave(&one.flow, 2);
    assert_eq!(turns.give_up(&three.flow), TurnEntry::Turn, "it was its turn");
    for (flow, used) in [(&two.flow, 1), (&three.flow, 2)] {
        turns.leave(flow, used);
    }
    for flow in [&one.flow, &two.flow, &three.flow] {
        turns.remove(flow);
    }
    assert_eq!(turns.free(), 2);
}

/// Computes textbook deficit round robin: each client in turn sends the requests that its deficit
/// covers.
fn plain(sizes: &[Vec<u32>], total: u64) -> Vec<u64> {
    let mut served = vec![0; sizes.len()];
    let (mut next, mut deficit) = (vec![0; sizes.len()], vec![0; sizes.len()]);
    for client in (0..sizes.len()).cycle() {
        deficit[client] += QUANTUM;
        loop {
            let size = sizes[client][next[client] % sizes[client].len()];
            if size > deficit[client] {
                break;
            }
            deficit[client] -= size;
            next[client] += 1;
            served[client] += u64::from(size);
            if served.iter().sum::<u64>() >= total {
                return served;
            }
        }
    }
    served
}

#[test]
fn clients_that_always_have_more_get_what_plain_deficit_round_robin_gives_them() {
    for seed in 0..12 {
        let mut chance = fastrand::Rng::with_seed(seed);
        let clients: Vec<_> = (0..2 + chance.u64(..8)).map(|_| client()).collect();
        // Each client has its own kind: small requests, large ones, or all sizes.
        let sizes: Vec<Vec<u32>> = clients
            .iter()
            .map(|_| {
                let most = 1 + chance.u64(..u64::from(QUANTUM));
                (0..64).map(|_| 1 + chance.u64(..most) as u32).collect()
            })
            .collect();
        // Number of requests that each client has waiting: few, or many.
        let depths: Vec<usize> = clients.iter().map(|_| 32 << chance.u64(..3)).collect();
        let turns = Turns::new(PLACES);
        let mut device = VecDeque::new();
        let mut next = vec![0_usize; clients.len()];
        let mut deficits = vec![Deficit::default(); clients.len()];
        let mut waits = vec![None; clients.len()];
        let mut served = vec![0_u64; clients.len()];
        for _ in 0..4_000 {
            for (n, client) in clients.iter().enumerate() {
                let size = |at: usize| sizes[n][at % sizes[n].len()];
                let (demand, entry) = match waits[n] {
                    Some(demand) => (demand, client.flow.granted()),
                    None => {
                        let demand = deficits[n].demand((next[n]..next[n] + depths[n]).map(size));
                        (demand, turns.enter(&client.flow, demand))
                    }
                };
                waits[n] = (entry == TurnEntry::Queued).then_some(demand);
                let mut left = deficits[n].entered(demand, entry);
                while left > 0 {
                    left -= size(next[n]);
                    device.push_back((n, size(next[n])));
                    served[n] += u64::from(size(next[n]));
                    next[n] += 1;
                }
            }
            let inside: u32 = device.iter().map(|(_, size)| size).sum();
            assert!(inside <= PLACES + clients.len() as u32 * QUANTUM, "{inside} in the device");
            // Devices don't quite keep the order.
            let at = chance.u64(..4.min(device.len() as u64)) as usize;
            let (n, size) = device.remove(at).expect("somebody always has something in the device");
            turns.leave(&clients[n].flow, size);
        }
        let should = plain(&sizes, served.iter().sum());
        for (n, (is, should)) in served.iter().zip(&should).enumerate() {
            let off = is.abs_diff(*should);
            // A client whose whole demand happens to fit carries nothing into its next turn.
            assert!(
                off <= 8 * u64::from(QUANTUM) + should / 50,
                "client {n} of seed {seed}: {served:?} {should}"
            );
        }
    }
}

#[test]
fn a_reader_beside_two_that_write_zeroes_has_a_turn_after_each_of_theirs() {
    let zeroes = Work::of(Op::WriteZeroes, Flags { no_unmap: true, ..Flags::default() }, true);
    let piece = zeroes.places(zeroes.piece());
    assert_eq!((zeroes.piece(), piece), (PIECE, QUANTUM), "as a write");
    let noted = Work::of(Op::WriteZeroes, Flags::default(), true);
    assert_eq!(noted.piece(), Work::of(Op::Discard, Flags::default(), false).piece());
    assert_eq!(Work::of(Op::WriteZeroes, Flags::default(), false), zeroes, "they may be written");
    // A device with room for two pieces, which ends its oldest ones in turn.
    let (turns, wipers, reader) = (Turns::new(2 * QUANTUM), [client(), client()], client());
    let mut device: VecDeque<(usize, u32)> = VecDeque::new();
    let one =
        |client: &Client, places| match turns.enter(&client.flow, demand(places, places, places)) {
            TurnEntry::Queued => false,
            TurnEntry::All | TurnEntry::First | TurnEntry::Turn => true,
        };
    let mut waits = [false; 3];
    let (mut ahead_most, mut reads) = (0, 0);
    for _ in 0..300 {
        for n in 0..3 {
            let (client, places) = if n < 2 { (&wipers[n], piece) } else { (&reader, 1) };
            // The reader has one read at a time; the others have as many pieces as fit.
            if n == 2 && device.iter().any(|of| of.0 == 2) {
                continue;
            }
            let inside = match waits[n] {
                true => client.flow.granted() == TurnEntry::Turn,
                false => one(client, places),
            };
            waits[n] = !inside;
            if inside {
                if n == 2 {
                    ahead_most = ahead_most.max(device.iter().map(|of| of.1).sum());
                    reads += 1;
                }
                device.push_back((n, places));
            }
        }
        let (n, places) = device.pop_front().expect("the wipers always have something in it");
        turns.leave(if n < 2 { &wipers[n].flow } else { &reader.flow }, places);
    }
    assert!(ahead_most <= 3 * QUANTUM, "{ahead_most} places of zeroes are in front of a read");
    assert!(reads >= 300 / 4, "{reads} reads beside {} pieces", 300 - reads);
}
