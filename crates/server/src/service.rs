//! The messages to the service manager, in systemd's protocol. Without a service manager nothing
//! happens here.
//!
//! A thread, `service`, sends them. It wakes as often as the watchdog requires, and otherwise every
//! few seconds to see whether the status changed. Each watchdog beat proves that a work item ran on
//! the volumes' queue. It also proves that the locks of the server and of the mirrors could be
//! taken. A volume whose disk hangs doesn't stop the beats, since others are served.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use corewise::nbd::ExportStatus;
use corewise::timeline::duration;
use corewise::workqueue::Workqueue;
use sd_notify::NotifyState;

use crate::control::health::Health;
use crate::settings::Settings;
use crate::units::count;

/// Time between two checks of the status without a watchdog.
const LOOK: Duration = Duration::from_secs(5);
/// Time that a message may wait for the manager to read earlier ones, the same as in systemd's own
/// library.
const UNREAD: Duration = Duration::from_secs(5);
/// Time that a shutdown which makes progress asks for, beyond the time of its clients.
const MARGIN: Duration = Duration::from_secs(30);

/// Returns the status in a line.
pub(crate) fn status(exports: &[ExportStatus], health: &Health) -> String {
    let clients: usize = exports.iter().map(|export| export.clients).sum();
    let (exports, clients) =
        (count(exports.len() as u64, "export"), count(clients as u64, "client"));
    match health.summary() {
        None => format!("{exports}, {clients}"),
        Some(summary) => format!("{exports}, {clients}, {summary}"),
    }
}

/// Sends messages to the manager. A failure is only logged.
fn tell(what: &[NotifyState<'_>]) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let text: String = what.iter().map(|news| format!("{news}\n")).collect();
    if let Err(error) = send(&socket, &text) {
        tracing::warn!(%error, "cannot tell the service manager");
    }
}

/// Sends like `sd_notify::notify`, but doesn't wait for ever if no process reads.
fn send(socket: &OsStr, text: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        path => SocketAddr::from_pathname(OsStr::from_bytes(path)),
    }?;
    let ours = UnixDatagram::unbound()?;
    ours.set_write_timeout(Some(UNREAD))?;
    ours.send_to_addr(text.as_bytes(), &address).map(drop)
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

/// A guard during which the manager knows that the manifest is being read again.
#[derive(Debug)]
pub(crate) struct ReloadGuard(bool);

impl ReloadGuard {
    pub(crate) fn told(really: bool) -> ReloadGuard {
        if really {
            // The time tells this message from one of an earlier reload.
            match NotifyState::monotonic_usec_now() {
                Ok(now) => tell(&[NotifyState::Reloading, now]),
                Err(error) => tracing::warn!(%error, "no clock for the service manager"),
            }
        }
        ReloadGuard(really)
    }
}

impl Drop for ReloadGuard {
    fn drop(&mut self) {
        if self.0 {
            tell(&[NotifyState::Ready]);
        }
    }
}

/// The thread that sends messages. It runs to the end of the process, or until this is dropped.
#[derive(Debug)]
pub(crate) struct Service {
    /// Channel for the shutdown's status; `None` if there is no manager.
    stopping: Option<Sender<String>>,
    settings: Arc<Settings>,
}

impl Service {
    /// Reports that the server is up, and starts the thread. It calls `status` and `remaining`, the
    /// number of devices that aren't shut down.
    pub(crate) fn start(
        workqueue: &Workqueue,
        settings: Arc<Settings>,
        status: impl Fn() -> String + Send + 'static,
        remaining: impl Fn() -> usize + Send + 'static,
    ) -> Service {
        if !settings.tells_service_manager() || std::env::var_os("NOTIFY_SOCKET").is_none() {
            return Service { stopping: None, settings };
        }
        let first = status();
        tell(&[NotifyState::Ready, NotifyState::Status(&first)]);
        // Zero means that there is no watchdog.
        let watchdog = sd_notify::watchdog_enabled().filter(|most| !most.is_zero());
        let (stopping, told) = channel();
        let telling = StatusSender {
            workqueue: workqueue.clone(),
            every: watchdog.map_or(LOOK, |most| (most / 2).min(LOOK)),
            watchdog: watchdog.is_some(),
            settings: Arc::clone(&settings),
            told: first,
        };
        let run = move || telling.run(&told, status, remaining, tell);
        let started = std::thread::Builder::new().name("service".to_string()).spawn(run);
        if let Err(error) = started {
            tracing::warn!(%error, "no thread that tells the service manager: a watchdog will end the server");
        }
        Service { stopping: Some(stopping), settings }
    }

    /// Reports that the shutdown begins.
    pub(crate) fn stopping(&self, why: &str) {
        if let Some(stopping) = &self.stopping {
            let status = format!("stopping: {why}");
            let more = NotifyState::ExtendTimeoutUsec(micros(self.settings.now().drain + MARGIN));
            tell(&[NotifyState::Stopping, NotifyState::Status(&status), more]);
            // The thread may be missing.
            let _ = stopping.send(status);
        }
    }
}

/// The state of that thread.
struct StatusSender {
    workqueue: Workqueue,
    every: Duration,
    watchdog: bool,
    settings: Arc<Settings>,
    /// Last status that was sent.
    told: String,
}

impl StatusSender {
    fn run(
        mut self,
        stopping: &Receiver<String>,
        status: impl Fn() -> String,
        remaining: impl Fn() -> usize,
        tell: impl Fn(&[NotifyState<'_>]),
    ) {
        // Devices that were left at the last message.
        let mut left = None;
        let mut asked = None;
        loop {
            match stopping.recv_timeout(self.every) {
                Ok(status) => (self.told, left) = (status, Some(usize::MAX)),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            // One item at a time: a queue on which none runs doesn't fill.
            let item = asked.take().unwrap_or_else(|| {
                let (ran, item) = channel();
                drop(self.workqueue.spawn(move || ran.send(())));
                item
            });
            match item.recv_timeout(self.every) {
                Ok(()) => self.tell(&mut left, &status, &remaining, &tell),
                Err(RecvTimeoutError::Timeout) => {
                    tracing::warn!(
                        "no work item of the volumes ran for {}: the service manager's watchdog gets no answer",
                        duration(self.every)
                    );
                    asked = Some(item);
                }
                // The pools have ended.
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Sends a beat and news of the status, since the server makes progress.
    fn tell(
        &mut self,
        left: &mut Option<usize>,
        status: impl Fn() -> String,
        remaining: impl Fn() -> usize,
        tell: impl Fn(&[NotifyState<'_>]),
    ) {
        let status = status();
        let mut news = Vec::new();
        if self.watchdog {
            news.push(NotifyState::Watchdog);
        }
        match left {
            // A shutdown in which devices go down may take longer; one that hangs may not.
            Some(before) => {
                let now = remaining();
                if now < *before {
                    news.push(NotifyState::ExtendTimeoutUsec(micros(
                        self.settings.now().drain + MARGIN,
                    )));
                }
                *before = now;
            }
            None if status != self.told => {
                self.told = status;
                news.push(NotifyState::Status(&self.told));
            }
            None => {}
        }
        if !news.is_empty() {
            tell(&news);
        }
    }
}

#[cfg(test)]
mod tests {
    use corewise::topology::{Machine, Topology};
    use corewise::workqueue::WorkerPools;

    use super::*;

    /// A long timeout for messages that come at once.
    const PATIENCE: Duration = Duration::from_secs(300);

    #[test]
    fn a_manager_that_does_not_read_holds_nobody_up_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let manager = UnixDatagram::bind(&path).unwrap();
        let mut text = [0; 100];
        send(path.as_os_str(), "READY=1\n").unwrap();
        let length = manager.recv(&mut text).unwrap();
        assert_eq!(&text[..length], b"READY=1\n");
        // The system keeps a few messages for it.
        let error = (0..10_000).find_map(|_| send(path.as_os_str(), "WATCHDOG=1\n").err());
        assert_eq!(error.expect("there is room without an end").kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn the_watchdog_hears_nothing_while_no_item_of_the_volumes_runs() {
        let machine = Machine::new(Topology::live().unwrap());
        let pools = WorkerPools::new(&machine);
        let workqueue = Workqueue::builder("volumes").max_active(1).build(&pools).unwrap();
        let (go_on, stuck) = channel::<()>();
        let item = workqueue.spawn(move || stuck.recv());
        let (stopping, told) = channel();
        let (beat, beats) = channel();
        let telling = StatusSender {
            workqueue,
            every: Duration::from_millis(1),
            watchdog: true,
            settings: Arc::default(),
            told: String::new(),
        };
        let tell = move |news: &[NotifyState<'_>]| {
            let _ = beat.send(news.iter().map(ToString::to_string).collect::<Vec<_>>());
        };
        let thread = std::thread::spawn(move || {
            telling.run(&told, || "well".to_string(), || 0, tell);
        });
        // Fifty beats are due.
        assert!(beats.recv_timeout(Duration::from_millis(50)).is_err());
        drop(go_on);
        assert!(item.join().unwrap().is_err());
        assert_eq!(beats.recv_timeout(PATIENCE).unwrap(), ["WATCHDOG=1", "STATUS=well"]);
        assert_eq!(beats.recv_timeout(PATIENCE).unwrap(), ["WATCHDOG=1"]);
        stopping.send("stopping".to_string()).unwrap();
        loop {
            let news = beats.recv_timeout(PATIENCE).unwrap();
            if news.len() == 2 {
                break assert_eq!(news, ["WATCHDOG=1", "EXTEND_TIMEOUT_USEC=30000000"]);
            }
        }
        drop(stopping);
        thread.join().unwrap();
    }
}
