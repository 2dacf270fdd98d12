//! Which idle worker is woken, as a pure function of what is known of them.

use corewise_topology::CpuId;

/// What a worker is woken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Errand {
    /// An item that was queued on the caller's CPU.
    Here,
    /// An item in this list, that of other CPUs, and nothing on the caller's. It is for the owner
    /// of one of these. (Without that, on 16 simulated CPUs: a storm of two producers makes 0.89
    /// [0.77..1.01], one of four 0.88 [0.84..0.92]; ab2d844.)
    There(u32),
    /// Nothing is queued: a fork of the caller, which goes on.
    Steals,
}

/// An idle worker, as its waker sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Candidate {
    /// It spins, and takes quickly what comes.
    pub(crate) awake: bool,
    /// It has the CPU alone that the work is for: that of the caller, unless what waits was queued for
    /// another.
    pub(crate) at_home: bool,
    /// It has no CPU alone.
    pub(crate) roams: bool,
    /// It has the caller's CPU alone, which goes on there: the work is for another one.
    pub(crate) in_the_way: bool,
}

impl Candidate {
    /// A worker that has this CPU alone, as a caller on CPU `here` sees it.
    pub(crate) fn new(
        awake: bool,
        own: Option<CpuId>,
        here: Option<CpuId>,
        errand: Errand,
        list_of: impl Fn(CpuId) -> u32,
    ) -> Candidate {
        let is_here = own.is_some() && own == here;
        let (at_home, in_the_way) = match errand {
            Errand::Here => (is_here, false),
            Errand::There(list) => (own.is_some_and(|own| list_of(own) == list), is_here),
            Errand::Steals => (false, is_here),
        };
        Candidate { awake, at_home, roams: own.is_none(), in_the_way }
    }
}

/// Which idle worker is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Where it is among the idle ones.
    pub(crate) position: usize,
    /// It gets this CPU alone first.
    pub(crate) moves_to: Option<CpuId>,
}

/// Which of so many idle workers, in the order in which they went idle, is woken from this CPU: one
/// that spins, and so is awake; the one that has the CPU alone that the work is for; or else the one
/// that parked last.
///
/// What was queued for another CPU goes there, although the caller's may be free: who queues for a CPU
/// has a reason, and what is spread over CPUs would pile up on the one from which each wakes the next.
///
/// Where the caller waits for the item, its CPU goes to that worker: to wake another CPU would take
/// longer than most items, and the waiter's again after. Where the caller goes on, they share it for a
/// while, as the scheduler wants. For the same reason the woken worker moves in here where the owner is
/// `away`: it sleeps in an item, and what is queued meanwhile would wait for other CPUs to wake up. One
/// that has another CPU moves only if there is no other.
///
/// One that has the CPU of a caller that goes on is woken for other CPUs only where there is no
/// other, and moves to one of these where that is nobody's: else the caller waits for it, and the
/// other CPU for nothing. So it is for a thief. (On two CPUs, a guest sums a tree of a million
/// nodes in 6.5 ms. With its own CPU's worker as the thief, beside an idle CPU, it took 12.1 ms.)
///
/// On 16 simulated CPUs (ab2d844), four of them burnt: without preference for a worker that spins, the p99 of mix/50 is 0.9 to 7.0
/// times as long. None burnt: without one for the owner of the CPU, that of mix/50/hint is 6 to 14 times as long, for 4.3 of the CPU
/// time; without the move 1.0 to 6.7 times, for 4.3 of that.
pub(crate) fn choose(
    idle: usize,
    candidate: impl Fn(usize) -> Candidate,
    here: Option<CpuId>,
    away: impl FnOnce(CpuId) -> bool,
    free: impl FnOnce() -> Option<CpuId>,
) -> Option<Choice> {
    let latest = idle.checked_sub(1)?;
    let find = |is: &dyn Fn(Candidate) -> bool| (0..idle).rev().find(|&at| is(candidate(at)));
    let stays = |position| Choice { position, moves_to: None };
    if let Some(awake) = find(&|it| it.awake) {
        return Some(stays(awake));
    }
    let Some(cpu) = here else { return Some(stays(latest)) };
    if let Some(at_home) = find(&|it| it.at_home) {
        return Some(stays(at_home));
    }
    if !away(cpu) {
        let out_of_the_way = find(&|it| !it.in_the_way).map(stays);
        return out_of_the_way.or_else(|| Some(Choice { position: latest, moves_to: free() }));
    }
    let position = find(&|it| it.roams).unwrap_or(latest);
    Some(Choice { position, moves_to: Some(cpu) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROAMS: Candidate =
        Candidate { awake: false, at_home: false, roams: true, in_the_way: false };
    const AT_HOME: Candidate = Candidate { at_home: true, roams: false, ..ROAMS };
    const ELSEWHERE: Candidate = Candidate { roams: false, ..ROAMS };

    const IN_THE_WAY: Candidate = Candidate { in_the_way: true, ..ELSEWHERE };

    fn chosen(idle: &[Candidate], here: Option<u32>, away: bool) -> Option<(usize, Option<u32>)> {
        let here = here.map(CpuId::new);
        let choice = choose(idle.len(), |at| idle[at], here, |_| away, || Some(CpuId::new(7)))?;
        Some((choice.position, choice.moves_to.map(CpuId::number)))
    }

    #[test]
    fn an_awake_worker_is_chosen_before_the_owner_of_this_cpu_and_that_before_the_latest() {
        let awake = Candidate { awake: true, ..ELSEWHERE };
        for away in [false, true] {
            assert_eq!(chosen(&[], Some(0), away), None);
            assert_eq!(chosen(&[awake, AT_HOME, ROAMS], Some(0), away), Some((0, None)));
            assert_eq!(chosen(&[AT_HOME, ELSEWHERE, ROAMS], Some(0), away), Some((0, None)));
            assert_eq!(chosen(&[ELSEWHERE, ROAMS], None, away), Some((1, None)));
        }
        assert_eq!(chosen(&[ROAMS, ELSEWHERE], Some(0), false), Some((1, None)));
    }

    #[test]
    fn a_woken_worker_moves_in_where_the_owner_of_this_cpu_sleeps_in_an_item() {
        assert_eq!(chosen(&[ROAMS, ROAMS, ELSEWHERE], Some(0), true), Some((1, Some(0))));
        assert_eq!(chosen(&[ELSEWHERE], Some(0), true), Some((0, Some(0))), "there is no other");
    }

    #[test]
    fn the_owner_of_the_callers_cpu_gets_what_is_queued_there_and_steals_last() {
        let seen = |own: Option<u32>, errand| {
            let (own, here) = (own.map(CpuId::new), Some(CpuId::new(0)));
            let of = Candidate::new(false, own, here, errand, CpuId::number);
            (of.at_home, of.in_the_way)
        };
        let (home, way, neither) = ((true, false), (false, true), (false, false));
        for (errand, own_here, own_there) in [
            (Errand::Here, home, neither),
            (Errand::There(1), way, home),
            (Errand::There(2), way, neither),
            (Errand::Steals, way, neither),
        ] {
            let all = [Some(0), Some(1), None].map(|own| seen(own, errand));
            assert_eq!(all, [own_here, own_there, neither], "{errand:?}");
        }
    }

    #[test]
    fn the_owner_of_a_running_callers_cpu_is_woken_last_for_another_cpu_and_moves_there() {
        let chosen = |idle: &[Candidate]| chosen(idle, Some(0), false);
        assert_eq!(chosen(&[AT_HOME, IN_THE_WAY]), Some((0, None)));
        assert_eq!(chosen(&[ELSEWHERE, IN_THE_WAY]), Some((0, None)));
        assert_eq!(chosen(&[IN_THE_WAY]), Some((0, Some(7))));
    }
}
