//! A thread for a client, which is there before the client is: a client that no thread could serve isn't accepted.

use std::fmt;
use std::io;
use std::sync::Arc;

use corewise_sync::{Completion, Mutex, Parker, thread};

use super::Inner;
use crate::connection::Connection;
use crate::session::STACK;

/// A thread that waits for its client. Dropping this ends it.
pub(super) struct ClientThread {
    place: Arc<Place>,
}

/// Where the client is handed over.
struct Place {
    /// Whether there is anything to wait for: the client is there, or none comes.
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
    /// Starts one.
    ///
    /// # Errors
    /// The system has none to give.
    pub(super) fn start(server: &Arc<Inner>) -> io::Result<ClientThread> {
        let place = Arc::new(Place { done: Completion::new(), client: Mutex::new(None) });
        let (theirs, server) = (Arc::clone(&place), Arc::clone(server));
        let run = move || {
            theirs.done.wait();
            let client = theirs.client.lock().take();
            if let Some((connection, parker)) = client {
                drop(theirs);
                server.run(connection, &parker);
            }
        };
        thread::Builder::new().name("nbd-client".to_owned()).stack_size(STACK).spawn(run)?;
        Ok(ClientThread { place })
    }

    /// Serves this client.
    pub(super) fn serve(self, connection: Arc<Connection>, parker: Parker) {
        *self.place.client.lock() = Some((connection, parker));
    }
}

impl Drop for ClientThread {
    fn drop(&mut self) {
        self.place.done.complete();
    }
}
