//! tokio: a current-thread runtime on a thread pinned to each target's CPU.
//!
//! Its documented best mode from outside of a runtime is an unbounded `mpsc`, whose `send` never
//! waits, with a `oneshot` in each message. The caller waits in the `blocking_recv` of that. The
//! runtime has no drivers, so it parks in a plain condition variable. Both sides park at once.

use corewise_bench::BenchError;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};

use crate::calls::peers::{Called, Targets, answer};

/// Makes a function that calls these targets.
///
/// # Errors
/// A thread couldn't be started or pinned, or a runtime couldn't be made.
pub(crate) fn tokio(to: &Targets) -> Result<impl FnMut(u64) -> u64 + use<>, BenchError> {
    let called = Called::start(to, "tokio", || {
        let (sender, mut receiver) = mpsc::unbounded_channel::<(u64, oneshot::Sender<u64>)>();
        let runtime = Builder::new_current_thread().build().map_err(BenchError::Thread)?;
        let serve = async move {
            while let Some((value, tell)) = receiver.recv().await {
                // The receiver is gone only if the caller has panicked.
                let _ = tell.send(answer(value));
            }
        };
        Ok((sender, move || runtime.block_on(serve)))
    })?;
    // This is used during a call, and kept so that it is allocated once.
    let mut waiting = Vec::with_capacity(to.cpus.len());
    let own = to.own;
    Ok(move |number| {
        for requests in called.senders() {
            let (tell, answer) = oneshot::channel();
            let sent = requests.send((number, tell));
            assert!(sent.is_ok(), "the target receives for as long as there is a sender");
            waiting.push(answer);
        }
        let answered = "a target answers each request before it ends";
        let answers = waiting.drain(..).map(|one| one.blocking_recv().expect(answered));
        own * answer(number) + answers.sum::<u64>()
    })
}
