//! Which idle worker is woken, as a pure function of what is known of them.

/// An idle worker, as who wakes one sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Candidate {
    /// It spins, and takes quickly what comes.
    pub(crate) awake: bool,
    /// The CPU that it has alone.
    pub(crate) own: Option<u32>,
}

/// Which idle worker is woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Where it is among the idle ones.
    pub(crate) position: usize,
    /// It gets this CPU alone first.
    pub(crate) moves_to: Option<u32>,
}

/// Which of so many idle workers, in the order in which they went idle, is woken from this CPU: one
/// that spins, and so is awake; the one that has this CPU alone; or else the one that parked last.
///
/// Where the caller waits for the item, its CPU goes to that worker: to wake another CPU would take
/// longer than most items, and the waiter's again after. Where the caller goes on, they share it for a
/// while, as the scheduler wants. For the same reason whoever is woken moves in here where the owner is
/// `away`: it sleeps in an item, and what is queued meanwhile would wait for other CPUs to wake up. One
/// that has another CPU moves only if there is no other.
pub(crate) fn choose(
    idle: usize,
    candidate: impl Fn(usize) -> Candidate,
    here: Option<u32>,
    away: impl FnOnce(u32) -> bool,
) -> Option<Choice> {
    let latest = idle.checked_sub(1)?;
    let find = |is: &dyn Fn(Candidate) -> bool| (0..idle).rev().find(|&at| is(candidate(at)));
    let stays = |position| Choice { position, moves_to: None };
    if let Some(awake) = find(&|it| it.awake) {
        return Some(stays(awake));
    }
    let Some(cpu) = here else { return Some(stays(latest)) };
    if let Some(at_home) = find(&|it| it.own == Some(cpu)) {
        return Some(stays(at_home));
    }
    if !away(cpu) {
        return Some(stays(latest));
    }
    let position = find(&|it| it.own.is_none()).unwrap_or(latest);
    Some(Choice { position, moves_to: Some(cpu) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROAMS: Candidate = Candidate { awake: false, own: None };

    fn owns(cpu: u32) -> Candidate {
        Candidate { own: Some(cpu), ..ROAMS }
    }

    fn chosen(idle: &[Candidate], here: Option<u32>, away: bool) -> Option<(usize, Option<u32>)> {
        let choice = choose(idle.len(), |at| idle[at], here, |_| away)?;
        Some((choice.position, choice.moves_to))
    }

    #[test]
    fn who_is_awake_is_woken_before_who_has_this_cpu_and_that_one_before_the_latest() {
        let awake = Candidate { awake: true, ..owns(1) };
        for away in [false, true] {
            assert_eq!(chosen(&[], Some(0), away), None);
            assert_eq!(chosen(&[awake, owns(0), ROAMS], Some(0), away), Some((0, None)));
            assert_eq!(chosen(&[owns(0), owns(1), ROAMS], Some(0), away), Some((0, None)));
            assert_eq!(chosen(&[owns(0), ROAMS], None, away), Some((1, None)));
        }
        assert_eq!(chosen(&[ROAMS, owns(1)], Some(0), false), Some((1, None)));
    }

    #[test]
    fn who_is_woken_moves_in_where_the_owner_of_this_cpu_sleeps_in_an_item() {
        assert_eq!(chosen(&[ROAMS, ROAMS, owns(1)], Some(0), true), Some((1, Some(0))));
        assert_eq!(chosen(&[owns(1)], Some(0), true), Some((0, Some(0))), "there is no other");
    }
}
