//! The server's own threads. One is kept for changes. So an operator can change the server even if
//! clients have taken the last thread that the process may have. The others answer on a socket.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

use corewise::sync::{Mutex, text};

type Job = Box<dyn FnOnce() + Send>;

/// The thread kept for changes. When this is dropped, the thread ends after its last job.
#[derive(Debug)]
pub(crate) struct SpareThread(SyncSender<Job>);

/// Returns the message for a thread that could not be started.
pub(crate) fn no_thread(error: &io::Error) -> String {
    format!("no thread for it: {error}{}", text::thread_remedy(error))
}

impl SpareThread {
    /// Starts the thread.
    pub(crate) fn start(name: &str) -> io::Result<SpareThread> {
        let (give, jobs) = sync_channel::<Job>(0);
        std::thread::Builder::new()
            .name(name.to_string())
            .spawn(move || jobs.into_iter().for_each(|job| job()))?;
        Ok(SpareThread(give))
    }

    /// Runs a job on a new thread, or, if none can be started, on the kept one. Fails if that one
    /// is busy, too.
    pub(crate) fn run(&self, name: &str, job: impl FnOnce() + Send + 'static) -> io::Result<()> {
        // A thread that isn't started leaves the job here.
        // L: is the lock, held for a moment; guards the job until a thread takes it.
        let job = Arc::new(Mutex::new(Some(Box::new(job) as Job)));
        let theirs = Arc::clone(&job);
        let take = move || theirs.lock().take().into_iter().for_each(|job| job());
        match std::thread::Builder::new().name(name.to_string()).spawn(take) {
            Ok(_) => Ok(()),
            Err(error) => {
                let job = job.lock().take();
                job.map_or(Ok(()), |job| self.take(job)).map_err(|_| error)
            }
        }
    }

    /// Gives the job to the kept thread. Returns the job if that thread is busy.
    fn take(&self, job: Job) -> Result<(), Job> {
        self.0.try_send(job).map_err(|busy| match busy {
            TrySendError::Full(job) | TrySendError::Disconnected(job) => job,
        })
    }
}

/// A thread that answers on a socket. Dropping this ends it, and waits a moment for that.
#[derive(Debug)]
pub(crate) struct ListenerThread {
    thread: Option<JoinHandle<()>>,
    /// Socket whose closing ends the thread.
    stop: Option<UnixStream>,
}

impl ListenerThread {
    /// Runs `serve`, which returns when the other end of its socket is closed.
    pub(crate) fn start(
        name: &str,
        serve: impl FnOnce(UnixStream) + Send + 'static,
    ) -> io::Result<ListenerThread> {
        let (stop, stopped) = UnixStream::pair()?;
        let thread = std::thread::Builder::new().name(name.to_string());
        let thread = thread.spawn(move || serve(stopped))?;
        Ok(ListenerThread { thread: Some(thread), stop: Some(stop) })
    }
}

impl Drop for ListenerThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn the_thread_that_is_kept_does_one_job_at_a_time() {
        let spare = SpareThread::start("spare").unwrap();
        let (tell, told) = channel();
        let (go, wait) = channel::<()>();
        // A thread that waits for a job takes it.
        let give = |mut job: Job| {
            while let Err(back) = spare.take(job) {
                job = back;
                std::thread::yield_now();
            }
        };
        let ours = tell.clone();
        give(Box::new(move || {
            ours.send(1).unwrap();
            let _ = wait.recv();
        }));
        assert_eq!(told.recv(), Ok(1));
        assert!(spare.take(Box::new(|| ())).is_err(), "it is busy");
        let ours = tell.clone();
        spare.run("other", move || ours.send(2).unwrap()).unwrap();
        assert_eq!(told.recv(), Ok(2), "on a thread of its own");
        drop(go);
        give(Box::new(move || tell.send(3).unwrap()));
        assert_eq!(told.recv(), Ok(3));
    }
}
