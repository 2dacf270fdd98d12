//! A thread for a client, which is there before the client is: a client that no thread could serve
//! isn't accepted.

use std::fmt;
use std::io;
use std::sync::Arc;

use corewise_sync::{Completion, Mutex, Parker, sys, thread};

use super::Inner;
use crate::connection::Connection;
use crate::session::STACK;

/// A thread that waits for its client. Dropping this ends it.
pub(super) struct ClientThread {
    handover: Arc<Handover>,
}

/// Where the client is handed over.
struct Handover {
    /// Completes once the client is there, or none comes any more.
    done: Completion,
    /// L: is the lock, held for a moment; guards the client until its thread takes it.
    client: Mutex<Option<(Arc<Connection>, Parker)>>,
}

impl fmt::Debug for ClientThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientThread").finish_non_exhaustive()
    }
}

impl ClientThread {
    /// Starts a thread that waits for its client.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn start(server: &Arc<Inner>) -> io::Result<ClientThread> {
        let handover = Arc::new(Handover { done: Completion::new(), client: Mutex::new(None) });
        let (theirs, server) = (Arc::clone(&handover), Arc::clone(server));
        let run = move || {
            theirs.done.wait();
            let client = theirs.client.lock().take();
            if let Some((connection, parker)) = client {
                drop(theirs);
                server.run(connection, &parker);
            }
        };
        sys::room_for_stack(STACK)?;
        thread::Builder::new().name("nbd-client".to_owned()).stack_size(STACK).spawn(run)?;
        Ok(ClientThread { handover })
    }

    /// Serves this client.
    pub(super) fn serve(self, connection: Arc<Connection>, parker: Parker) {
        *self.handover.client.lock() = Some((connection, parker));
    }
}

impl Drop for ClientThread {
    fn drop(&mut self) {
        self.handover.done.complete();
    }
}
