//! A thread pinned to each target's CPU that receives from a channel of its own and answers on one
//! that the caller receives from: what programs without a runtime write.
//!
//! Their best mode: the message is the argument itself, so nothing is allocated for it and no
//! function is carried; the caller's answers have a channel for all calls. Bounded channels hold one
//! message, which is as many as there are: of crossbeam's and of kanal's kinds that was the fastest.

use corewise_bench::BenchError;
use corewise_bench::calls::roundtrip::Caller;

use crate::calls::peers::{Pinned, Targets, answer};

/// A kind of channel.
pub(crate) trait Kind: 'static {
    const NAME: &'static str;
    type Sender: Clone + Send + 'static;
    type Receiver: Send + 'static;

    /// A channel that holds so many messages.
    fn bounded(messages: usize) -> (Self::Sender, Self::Receiver);
    /// Sends; false where nobody receives any more.
    fn send(sender: &Self::Sender, value: u64) -> bool;
    /// Waits for a message; none where nobody can send any more.
    fn receive(receiver: &Self::Receiver) -> Option<u64>;
}

macro_rules! kind {
    ($(#[$doc:meta])* $kind:ident, $name:literal, $sender:ty, $receiver:ty, $bounded:path) => {
        $(#[$doc])*
        pub(crate) struct $kind;

        impl Kind for $kind {
            const NAME: &'static str = $name;
            type Sender = $sender;
            type Receiver = $receiver;

            fn bounded(messages: usize) -> (Self::Sender, Self::Receiver) {
                $bounded(messages)
            }

            #[inline]
            fn send(sender: &Self::Sender, value: u64) -> bool {
                sender.send(value).is_ok()
            }

            #[inline]
            fn receive(receiver: &Self::Receiver) -> Option<u64> {
                receiver.recv().ok()
            }
        }
    };
}
kind!(
    /// `crossbeam-channel`. Both sides spin and yield for a moment before they park.
    Crossbeam,
    "crossbeam",
    crossbeam_channel::Sender<u64>,
    crossbeam_channel::Receiver<u64>,
    crossbeam_channel::bounded
);
kind!(
    /// `kanal`. Both sides spin for a moment before they park.
    Kanal,
    "kanal",
    kanal::Sender<u64>,
    kanal::Receiver<u64>,
    kanal::bounded
);
kind!(
    /// `std::sync::mpsc`. Both sides park nearly at once.
    Std,
    "std-mpsc",
    std::sync::mpsc::SyncSender<u64>,
    std::sync::mpsc::Receiver<u64>,
    std::sync::mpsc::sync_channel
);

/// The targets, and the one channel of their answers.
pub(crate) struct Channels<K: Kind> {
    /// In the order in which the CPUs were given. They end the threads, so they go first.
    requests: Vec<K::Sender>,
    answers: K::Receiver,
    own: bool,
    _targets: Vec<Pinned>,
}

impl<K: Kind> Channels<K> {
    /// With these targets.
    ///
    /// # Errors
    /// A thread couldn't be started or pinned.
    pub(crate) fn new(to: &Targets) -> Result<Self, BenchError> {
        let (tell, answers) = K::bounded(to.cpus.len().max(1));
        let (mut requests, mut targets) = (Vec::new(), Vec::new());
        for &cpu in &to.cpus {
            let (sender, receiver) = K::bounded(1);
            let tell = tell.clone();
            let body = move || {
                while let Some(value) = K::receive(&receiver) {
                    if !K::send(&tell, answer(value)) {
                        return;
                    }
                }
            };
            targets.push(Pinned::start(to, K::NAME, cpu, body)?);
            requests.push(sender);
        }
        Ok(Channels { requests, answers, own: to.own, _targets: targets })
    }
}

impl<K: Kind> Caller for Channels<K> {
    #[inline]
    fn call(&mut self, number: u64) -> u64 {
        for request in &self.requests {
            let sent = K::send(request, number);
            assert!(sent, "the target receives for as long as there is a sender");
        }
        let answered = "a target answers each request before it ends";
        let answers = self.requests.iter().map(|_| K::receive(&self.answers).expect(answered));
        Targets::own_answer(self.own, number) + answers.sum::<u64>()
    }
}
