//! Deliberate mistakes, which show that a check can fail.

/// A deliberate mistake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mistake {
    /// The caller writes its word after the call.
    WritesLate,
    /// The caller goes on before the answer is there.
    GoesOnEarly,
    /// A function runs twice on a CPU.
    RunsTwice,
    /// A call goes to another CPU than was asked for.
    SendsElsewhere,
    /// The caller runs the function itself.
    RunsHere,
    /// The later one of two calls is sent first.
    Overtakes,
    /// A handler gives another answer.
    AnswersWrongly,
    /// A call to many leaves a CPU out.
    LeavesOneOut,
    /// A CPU that never leaves counts as having refused a call.
    RefusesWithoutCause,
    /// A CPU counts as gone before its last calls have run.
    DiesEarly,
    /// A CPU isn't brought in again.
    StaysOut,
    /// A call that was accepted is dropped.
    DropsACall,
    /// A handler doesn't end before all give up.
    HangsInAHandler,
    /// An answer is never dropped.
    Leaks,
    /// A call isn't counted.
    Uncounted,
}
