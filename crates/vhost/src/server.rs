//! The server: the sockets of all disks, and the one thread that accepts their frontends.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use corewise_export::{SharedDevice, SocketAccess, SocketFile, listen_unix};
use corewise_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use corewise_sync::{Mutex, thread};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

use crate::disk::{Disk, DiskInner, DiskState};
use crate::error::Error;
use crate::options::{FrontendEvent, Options};
use crate::session::{Session, SessionEnd};
use crate::shared::DiskShared;

/// Bytes of a session thread's stack.
const STACK: usize = 256 << 10;
/// Time after which a frontend is accepted that the system lacked a resource for.
const RETRY: Duration = Duration::from_secs(1);
/// The number of the event that wakes the accepting thread; those of disks are above.
const WAKE: u64 = 0;

/// Serves block devices as disks of virtual machines, each on a Unix socket of its own.
///
/// Dropping it ends the thread that accepts frontends. Disks go on with the frontends that they
/// have.
pub struct Server {
    shared: Arc<ServerShared>,
    /// L: is the lock; guards the thread until it is joined.
    thread: Mutex<Option<thread::JoinHandle<()>>>,
}

/// The state that the accepting thread and the disks share.
pub(crate) struct ServerShared {
    epoll: OwnedFd,
    wake: OwnedFd,
    /// L: is the lock, held while a socket is bound: two that replace leftovers in one folder would
    /// refuse each other.
    binding: Mutex<()>,
    /// L: is the lock, held for a moment; guards the disks that take frontends.
    disks: Mutex<Vec<Arc<DiskInner>>>,
    /// A: number of the next disk. Relaxed: a number.
    next: AtomicU64,
    /// A: the thread has to end. Relaxed: the write to the eventfd follows it.
    ends: AtomicBool,
}

impl Server {
    /// Creates a server without disks, and its thread.
    ///
    /// # Errors
    /// `Resource` if the system lacks a thread or a descriptor.
    pub fn new() -> Result<Server, Error> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(Error::resource("an epoll descriptor for listeners"))?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(Error::resource("an eventfd for listeners"))?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)
            .map_err(Error::resource("an epoll entry for listeners"))?;
        let shared = Arc::new(ServerShared {
            epoll,
            wake,
            binding: Mutex::new(()),
            disks: Mutex::new(Vec::new()),
            next: AtomicU64::new(WAKE + 1),
            ends: AtomicBool::new(false),
        });
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("vhost-accept".to_owned())
            .stack_size(STACK)
            .spawn(move || theirs.run())
            .map_err(Error::resource("a thread for listeners"))?;
        Ok(Server { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Serves a device on the Unix socket `path`, whose access [`Options::socket`] sets. A socket
    /// file that no process serves any more is replaced.
    ///
    /// # Errors
    /// `Unfit` if the device or an option is out of its range; `SocketInUse`, `NotASocket`,
    /// `Listen`; `Resource`; `ShuttingDown`.
    pub fn listen(
        &self,
        path: impl AsRef<Path>,
        device: Arc<SharedDevice>,
        options: Options,
    ) -> Result<Disk, Error> {
        options.check(&device)?;
        let path = path.as_ref();
        let socket = {
            let _binding = self.shared.binding.lock();
            ListenSocket::bind(path, &options.socket)?
        };
        self.serve_on(socket, device, options)
    }

    /// Serves a device on a socket that the caller bound, and whose file stays the caller's.
    ///
    /// # Errors
    /// The errors are those of [`Server::listen`].
    pub fn serve(
        &self,
        listener: UnixListener,
        device: Arc<SharedDevice>,
        options: Options,
    ) -> Result<Disk, Error> {
        options.check(&device)?;
        self.serve_on(ListenSocket::of(listener), device, options)
    }

    fn serve_on(
        &self,
        socket: ListenSocket,
        device: Arc<SharedDevice>,
        options: Options,
    ) -> Result<Disk, Error> {
        if self.shared.ends.load(Ordering::Relaxed) {
            return Err(Error::ShuttingDown);
        }
        let id = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let inner = Arc::new(DiskInner {
            shared: Arc::new(DiskShared::new(device, options)),
            socket,
            server: Arc::clone(&self.shared),
            id,
            state: Mutex::new(DiskState::default()),
            sessions: AtomicU64::new(0),
        });
        self.shared.disks.lock().push(Arc::clone(&inner));
        let disk = Disk { inner };
        let data = epoll::EventData::new_u64(id);
        let added = disk.inner.socket.with(|listener| {
            rustix::io::ioctl_fionbio(listener, true)?;
            epoll::add(&self.shared.epoll, listener, data, epoll::EventFlags::IN)
        });
        added.unwrap_or(Ok(())).map_err(Error::resource("an epoll entry for a listener"))?;
        Ok(disk)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        let _ = rustix::io::write(&self.shared.wake, &1_u64.to_ne_bytes());
        let thread = self.thread.lock().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that accepts vhost-user frontends panicked");
        }
        self.shared.disks.lock().clear();
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

impl ServerShared {
    /// Stops accepting for a disk, and removes its socket file.
    pub(crate) fn forget(&self, disk: &DiskInner) {
        self.disks.lock().retain(|other| other.id != disk.id);
        disk.socket.close(|listener| {
            let _ = epoll::delete(&self.epoll, listener);
        });
    }

    /// Waits for frontends of this disk, or doesn't.
    fn arm(&self, disk: &DiskInner, armed: bool) {
        let flags = if armed { epoll::EventFlags::IN } else { epoll::EventFlags::empty() };
        let data = epoll::EventData::new_u64(disk.id);
        // Fails once the disk is forgotten.
        let _ = disk.socket.with(|listener| epoll::modify(&self.epoll, listener, data, flags));
    }

    fn run(self: &Arc<Self>) {
        let mut events = Vec::with_capacity(16);
        let mut short: Vec<Arc<DiskInner>> = Vec::new();
        while !self.ends.load(Ordering::Relaxed) {
            events.clear();
            let timeout = (!short.is_empty())
                .then_some(Timespec { tv_sec: RETRY.as_secs() as i64, tv_nsec: 0 });
            let into = rustix::buffer::spare_capacity(&mut events);
            match epoll::wait(&self.epoll, into, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "cannot wait for vhost-user frontends");
                    break;
                }
            }
            if events.is_empty() {
                short.drain(..).for_each(|disk| self.arm(&disk, true));
            }
            for event in &events {
                let id = event.data.u64();
                let disk = self.disks.lock().iter().find(|disk| disk.id == id).cloned();
                let Some(disk) = disk else { continue };
                if let Err(error) = self.accept(&disk) {
                    self.arm(&disk, false);
                    let what = "a frontend waits, since the server lacks resources for it";
                    disk.shared.fault(what, None, &error.to_string());
                    short.push(disk);
                }
            }
        }
    }

    /// Accepts a frontend of this disk.
    fn accept(self: &Arc<Self>, disk: &Arc<DiskInner>) -> io::Result<()> {
        let mut state = disk.state.lock();
        if state.stopped {
            return Ok(());
        }
        if state.session.as_ref().is_some_and(|session| session.has_left()) {
            // It waits until the device has ended the requests of the former one.
            self.arm(disk, false);
            return Ok(());
        }
        let Some(accepted) = disk.socket.with(UnixListener::accept) else { return Ok(()) };
        let socket = match accepted {
            Ok((socket, _)) => socket,
            Err(error) => {
                return match error.kind() {
                    io::ErrorKind::WouldBlock
                    | io::ErrorKind::Interrupted
                    | io::ErrorKind::ConnectionAborted => Ok(()),
                    _ => Err(error),
                };
            }
        };
        if let Some(session) = &state.session {
            let why = format!("{} has the disk. Stop that frontend first", session.who);
            disk.shared.fault("a frontend is turned away", None, &why);
            return Ok(());
        }
        // A listener's flag may be inherited.
        socket.set_nonblocking(false)?;
        let session = Session::new(&disk.shared, &socket)?;
        if !disk.shared.options.access.admits(&session.who) {
            let why = format!("{} isn't among the users of this disk", session.who);
            disk.shared.fault("a frontend is turned away", None, &why);
            return Ok(());
        }
        let (theirs, owner) = (Arc::clone(&session), Arc::clone(disk));
        thread::Builder::new()
            .name("vhost-session".to_owned())
            .stack_size(STACK)
            .spawn(move || owner.run_session(&theirs, socket))?;
        disk.sessions.fetch_add(1, Ordering::Relaxed);
        state.session = Some(session);
        Ok(())
    }
}

impl DiskInner {
    /// Serves a frontend, on its thread.
    fn run_session(self: &Arc<Self>, session: &Arc<Session>, socket: UnixStream) {
        let (name, who) = (self.shared.name(), &session.who);
        tracing::debug!(disk = name, "{who} has connected to the virtio disk");
        self.tell(&FrontendEvent::Attached { who });
        let end = session.run(socket);
        match &end {
            SessionEnd::Fault(why) => {
                self.shared.fault("the connection to a frontend ended", None, why);
            }
            _ => tracing::debug!(disk = name, "{who} has left the virtio disk: {}", end.words()),
        }
        self.tell(&FrontendEvent::Left { who, why: end.words() });
        let mut state = self.state.lock();
        state.session = None;
        if !state.stopped {
            self.server.arm(self, true);
        }
        drop(state);
        session.ended.complete();
    }

    fn tell(&self, event: &FrontendEvent<'_>) {
        self.shared.options.observer.iter().for_each(|observer| observer.tell(event));
    }
}

/// A listening socket, and the file that was made for it.
pub(crate) struct ListenSocket {
    /// L: is the lock, held for a call that doesn't block; guards the socket until it is closed.
    listener: Mutex<Option<(UnixListener, Option<SocketFile>)>>,
    path: Option<PathBuf>,
}

impl ListenSocket {
    fn of(listener: UnixListener) -> Self {
        let address = listener.local_addr().ok();
        let path = address.and_then(|address| address.as_pathname().map(Path::to_owned));
        Self { listener: Mutex::new(Some((listener, None))), path }
    }

    fn bind(path: &Path, access: &SocketAccess) -> Result<Self, Error> {
        let (listener, file) =
            listen_unix(path, Some(access)).map_err(|error| Error::bind(path, error))?;
        let listener = Mutex::new(Some((listener, Some(file))));
        Ok(Self { listener, path: Some(path.to_owned()) })
    }

    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    pub(crate) fn set_access(&self, access: &SocketAccess) -> io::Result<()> {
        match self.listener.lock().as_ref() {
            Some((_, Some(file))) => file.set_access(access),
            _ => Ok(()),
        }
    }

    /// Calls `f` with the socket, if it isn't closed.
    fn with<T>(&self, f: impl FnOnce(&UnixListener) -> T) -> Option<T> {
        self.listener.lock().as_ref().map(|(listener, _)| f(listener))
    }

    /// Closes the socket, after `f`, and removes its file.
    fn close(&self, f: impl FnOnce(&UnixListener)) {
        let Some((listener, file)) = self.listener.lock().take() else { return };
        f(&listener);
        drop((listener, file));
    }
}
