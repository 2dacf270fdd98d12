//! A thread that answers on a socket until its owner drops it.

use std::io;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

/// The thread. Dropping this ends it and waits for that, a moment.
#[derive(Debug)]
pub(crate) struct ListenerThread {
    thread: Option<JoinHandle<()>>,
    /// Its end tells the thread to end.
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
