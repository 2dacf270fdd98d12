//! tokio: a current-thread runtime on a thread pinned to each target's CPU.
//!
//! Its best mode from outside of a runtime, as documented: an unbounded `mpsc`, whose `send` never
//! waits, and a `oneshot` with each message, whose `blocking_recv` the caller waits in. The runtime
//! has no drivers, so it parks in a plain condition variable. Both sides park at once.

use corewise_bench::BenchError;
use corewise_bench::calls::roundtrip::Caller;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};

use crate::calls::peers::{Pinned, Targets, answer};

type Request = (u64, oneshot::Sender<u64>);

/// The targets.
pub(crate) struct Tokio {
    /// They end the threads, so they go first.
    requests: Vec<mpsc::UnboundedSender<Request>>,
    /// During a call. Kept, so that it is allocated once.
    waiting: Vec<oneshot::Receiver<u64>>,
    own: bool,
    _targets: Vec<Pinned>,
}

impl Tokio {
    /// With these targets.
    ///
    /// # Errors
    /// A thread couldn't be started or pinned, or a runtime not be made.
    pub(crate) fn new(to: &Targets) -> Result<Tokio, BenchError> {
        let (mut requests, mut targets) = (Vec::new(), Vec::new());
        for &cpu in &to.cpus {
            let (sender, mut receiver) = mpsc::unbounded_channel::<Request>();
            let runtime = Builder::new_current_thread().build().map_err(BenchError::Thread)?;
            let serve = async move {
                while let Some((value, tell)) = receiver.recv().await {
                    // Nobody hears it only where the caller has panicked.
                    let _ = tell.send(answer(value));
                }
            };
            let body = move || runtime.block_on(serve);
            targets.push(Pinned::start(to, "tokio", cpu, body)?);
            requests.push(sender);
        }
        let waiting = Vec::with_capacity(to.cpus.len());
        Ok(Tokio { requests, waiting, own: to.own, _targets: targets })
    }
}

impl Caller for Tokio {
    #[inline]
    fn call(&mut self, number: u64) -> u64 {
        for requests in &self.requests {
            let (tell, answer) = oneshot::channel();
            let sent = requests.send((number, tell));
            assert!(sent.is_ok(), "the target receives for as long as there is a sender");
            self.waiting.push(answer);
        }
        let answered = "a target answers each request before it ends";
        let answers = self.waiting.drain(..).map(|one| one.blocking_recv().expect(answered));
        Targets::own_answer(self.own, number) + answers.sum::<u64>()
    }
}
