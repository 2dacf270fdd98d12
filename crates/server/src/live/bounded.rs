//! Changes that wait for a disk. A change that takes too long is reported, and `on_hang` decides
//! whether the server waits on.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};

use corewise::device::HangPolicy;
use corewise::sync::Mutex;
use corewise::sync::atomic::Ordering;
use corewise::timeline::duration;

use super::Live;
use super::removal::USUAL;
use crate::error::{Error, ErrorKind};
use crate::manifest::Manifest;
use crate::threads::no_thread;

impl Live {
    /// Runs `work` on a thread of its own. It works on the first of the devices `of`, and may take
    /// as long as a disk does. If `on_hang` ends the wait, `late` finishes the change when `work`
    /// is done. Until then, none of these devices changes.
    pub(super) fn bounded<T: Send + 'static>(
        self: &Arc<Self>,
        of: Vec<String>,
        has: &Manifest,
        work: impl FnOnce() -> T + Send + 'static,
        late: impl FnOnce(&Live, &mut Manifest, T) + Send + 'static,
    ) -> Result<T, Error> {
        let name = of.first().map_or("", String::as_str);
        let limit =
            has.device(name).and_then(|device| device.tuning.probe_timeout).unwrap_or(USUAL);
        let (tell, told) = channel();
        // L: is the lock, held for a moment; guards whether the wait has ended.
        let given_up = Arc::new(Mutex::new(false));
        let (live, theirs, all) = (Arc::clone(self), Arc::clone(&given_up), of.clone());
        let run = move || {
            let done = work();
            let given_up = theirs.lock();
            if !*given_up {
                // The caller still waits.
                let _ = tell.send(done);
                return;
            }
            drop(given_up);
            let mut has = live.has.lock();
            live.stuck.lock().retain(|name| !all.contains(name));
            if let Some(has) = has.as_mut().filter(|_| !live.ended.load(Ordering::Relaxed)) {
                late(&live, has, done);
            }
        };
        let started = std::thread::Builder::new().name("change".to_string()).spawn(run);
        started.map_err(|error| Error::refused(no_thread(&error)))?;
        let bug = "this is a bug in corewise";
        match told.recv_timeout(limit) {
            Ok(done) => return Ok(done),
            Err(RecvTimeoutError::Disconnected) => return Err(Error::new(bug)),
            Err(RecvTimeoutError::Timeout) => {}
        }
        self.overdue("change", name, limit, &[]);
        if self.settings.now().on_hang == HangPolicy::WaitOn {
            return told.recv().map_err(|_| Error::new(bug));
        }
        let mut given_up = given_up.lock();
        if let Ok(done) = told.try_recv() {
            return Ok(done);
        }
        *given_up = true;
        let why = format!(
            "the change isn't done after {}, and the server waits no longer ('on_hang'); the \
             change continues",
            duration(limit)
        );
        self.stuck.lock().extend(of);
        Err(Error::new(why))
    }

    /// Refuses a change of a device of which an abandoned change still runs.
    pub(super) fn refuse_stuck<'a>(
        &self,
        mut names: impl Iterator<Item = &'a str>,
    ) -> Result<(), Error> {
        let stuck = self.stuck.lock();
        match names.find(|name| stuck.iter().any(|one| one == name)) {
            Some(name) => {
                let why = format!(
                    "an earlier change of '{name}' is still running; try again when it ends"
                );
                Err(Error::of(ErrorKind::Busy, why))
            }
            None => Ok(()),
        }
    }
}
