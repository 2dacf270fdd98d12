//! A thread pinned to each target's CPU, which receives from a channel of its own. It answers on a
//! channel that the caller receives from. Programs without a runtime are written like that.
//!
//! In their best mode the message is the argument itself, so it needs no allocation and carries no
//! function. The caller's answers have a channel for all calls. Bounded channels hold one message,
//! and there is never more than one. Of crossbeam's and of kanal's channels these are the fastest.
//! Both sides spin shortly before they park. The sides of crossbeam's yield, too, and those of
//! `std::sync::mpsc` park nearly at once.

use corewise_bench::BenchError;

use crate::calls::peers::{Called, Targets, answer};

/// Makes a function that calls these targets. `bounded` makes a channel for a number of messages.
/// `send` returns false if the receiver is gone, and `receive` returns `None` if all senders are.
///
/// # Errors
/// A thread couldn't be started or pinned.
pub(crate) fn channels<S: Clone + Send + 'static, R: Send + 'static>(
    to: &Targets,
    name: &str,
    bounded: fn(usize) -> (S, R),
    send: impl Fn(&S, u64) -> bool + Copy + Send + 'static,
    receive: impl Fn(&R) -> Option<u64> + Copy + Send + 'static,
) -> Result<impl FnMut(u64) -> u64, BenchError> {
    let (tell, answers) = bounded(to.cpus.len().max(1));
    let called = Called::start(to, name, || {
        let ((sender, receiver), tell) = (bounded(1), tell.clone());
        let body = move || {
            while let Some(value) = receive(&receiver) {
                if !send(&tell, answer(value)) {
                    return;
                }
            }
        };
        Ok((sender, body))
    })?;
    let own = to.own;
    Ok(move |number| {
        for request in called.senders() {
            let sent = send(request, number);
            assert!(sent, "the target receives for as long as there is a sender");
        }
        let answered = "a target answers each request before it ends";
        let answers = called.senders().iter().map(|_| receive(&answers).expect(answered));
        own * answer(number) + answers.sum::<u64>()
    })
}
