//! The kernel's messages about CPUs that come or go, and about writes to cpusets or CPU quotas:
//! netlink and inotify.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::event::epoll;
use rustix::fs::inotify;
use rustix::io::Errno;
use rustix::net::{self, netlink};

use crate::cgroup::{self, Controller};
use crate::error::TopologyError;
use crate::watch::Unwatched;

/// The Linux implementation of [`crate::Watch`].
#[derive(Debug)]
pub(super) struct Watch {
    /// I: the descriptor to wait on; becomes readable with either of the two below.
    epoll: OwnedFd,
    /// I: hotplug messages.
    uevents: Option<OwnedFd>,
    /// I: writes to cpusets and CPU quotas.
    groups: Option<OwnedFd>,
    unwatched: Vec<Unwatched>,
}

/// Netlink group of the kernel's own messages; those that udev passes on are another group.
const KERNEL_GROUP: u32 = 1;

impl Watch {
    pub(super) fn new() -> Result<Watch, TopologyError> {
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("making an epoll set"))?;
        let mut watch = Watch { epoll, uevents: None, groups: None, unwatched: Vec::new() };
        match uevents() {
            Ok(fd) => watch.uevents = Some(watch.add(fd)?),
            Err(errno) => watch.miss("hotplug", errno.to_string()),
        }
        if let Some(why) = in_user_namespace() {
            watch.miss("hotplug", why);
        }
        match inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK) {
            Ok(fd) => watch.groups = Some(watch.add(fd)?),
            Err(errno) => watch.miss("cpuset", errno.to_string()),
        }
        if let Err(why) = watch.watch_groups() {
            watch.miss("cpuset", why);
        }
        if let Some(why) = in_cgroup_namespace() {
            watch.miss("cpuset", why);
        }
        Ok(watch)
    }

    pub(super) fn unwatched(&self) -> &[Unwatched] {
        &self.unwatched
    }

    pub(super) fn wait(&mut self) -> Result<(), TopologyError> {
        loop {
            let mut ready = [MaybeUninit::uninit(); 2];
            match epoll::wait(&self.epoll, &mut ready, None) {
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(failed("waiting")(errno)),
            }
            if self.take()? {
                return Ok(());
            }
        }
    }

    pub(super) fn take(&mut self) -> Result<bool, TopologyError> {
        let hotplug = match &self.uevents {
            Some(fd) => take_uevents(fd).map_err(failed("reading hotplug messages"))?,
            None => false,
        };
        let written = match &self.groups {
            Some(fd) => take_writes(fd).map_err(failed("reading an event of the cpuset"))?,
            None => false,
        };
        if hotplug || written {
            // The process may have moved to another group. The files already watched stay so.
            let _ = self.watch_groups();
        }
        Ok(hotplug || written)
    }

    fn add(&self, fd: OwnedFd) -> Result<OwnedFd, TopologyError> {
        let data = epoll::EventData::new_u64(0);
        epoll::add(&self.epoll, &fd, data, epoll::EventFlags::IN)
            .map_err(failed("adding to an epoll set"))?;
        Ok(fd)
    }

    fn miss(&mut self, what: &'static str, why: String) {
        self.unwatched.push(Unwatched { what, why });
    }

    /// Watches the files that decide about the cpuset, of the process's group and those above.
    fn watch_groups(&self) -> Result<(), String> {
        // The effective set is the one that is read, but the kernel announces only writes, and
        // those go to the other files. `cgroup.events` tells when the last process has left the
        // group.
        const CPUSET: &[&str] = &[
            "cpuset.cpus",
            "cpuset.cpus.effective",
            "cpuset.effective_cpus",
            "cpuset.cpus.partition",
            "cgroup.events",
        ];
        const QUOTA: &[&str] = &["cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us"];
        let Some(inotify) = &self.groups else { return Ok(()) };
        let (mut watched, mut refused) = (false, None);
        let groups = |of, files| groups_of(of).into_iter().map(move |group| (group, files));
        let cpusets = groups(Controller::Cpuset, CPUSET);
        for (group, files) in cpusets.chain(groups(Controller::Cpu, QUOTA)) {
            for file in files {
                match inotify::add_watch(inotify, group.join(file), inotify::WatchFlags::MODIFY) {
                    Ok(_) => watched = true,
                    Err(Errno::NOENT) => {}
                    Err(errno) => refused = Some(errno),
                }
            }
        }
        match refused {
            Some(errno) if !watched => Err(errno.to_string()),
            None if !watched => Err("this process sees no cpuset files".into()),
            _ => Ok(()),
        }
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Returns the groups of a controller for this process: its own first, then those above it, as far
/// as they can be seen.
fn groups_of(of: Controller) -> Vec<PathBuf> {
    cgroup::tables().map_or_else(Vec::new, |(memberships, mounts)| {
        cgroup::chains(&memberships, &mounts, of).into_iter().flatten().collect()
    })
}

fn failed(doing: &'static str) -> impl Fn(Errno) -> TopologyError {
    move |errno| TopologyError::Watch { doing, error: io::Error::from(errno) }
}

fn uevents() -> Result<OwnedFd, Errno> {
    let flags = net::SocketFlags::CLOEXEC | net::SocketFlags::NONBLOCK;
    let fd = net::socket_with(
        net::AddressFamily::NETLINK,
        net::SocketType::DGRAM,
        flags,
        Some(netlink::KOBJECT_UEVENT),
    )?;
    net::bind(&fd, &netlink::SocketAddrNetlink::new(0, KERNEL_GROUP))?;
    Ok(fd)
}

fn take_uevents(fd: &OwnedFd) -> Result<bool, Errno> {
    let mut found = false;
    // The kernel's messages have at most 2 KiB of variables after a path.
    let mut buffer = [0; 8192];
    loop {
        match net::recv(fd, &mut buffer, net::RecvFlags::empty()) {
            Ok((_, length)) => found |= concerns_cpus(&buffer[..length.min(buffer.len())]),
            // Messages were lost: anything may have happened.
            Err(Errno::NOBUFS) => found = true,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(found),
            Err(errno) => return Err(errno),
        }
    }
}

/// Returns true if a message of the kernel (`ACTION@DEVPATH`, and variables, each ended by a zero
/// byte) is about a CPU.
fn concerns_cpus(message: &[u8]) -> bool {
    message.split(|&byte| byte == 0).any(|part| part == b"SUBSYSTEM=cpu")
}

fn take_writes(fd: &OwnedFd) -> Result<bool, Errno> {
    let mut found = false;
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(fd, &mut buffer);
    loop {
        match events.next() {
            // This includes reports that events were lost, or that a watched group is gone.
            Ok(_) => found = true,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(found),
            Err(errno) => return Err(errno),
        }
    }
}

/// Returns why writes to the cpuset may come from outside this process's view.
fn in_cgroup_namespace() -> Option<String> {
    // The kernel's fixed number of the first one (`PROC_CGROUP_INIT_INO`).
    const FIRST: &str = "cgroup:[4026531835]";
    let own = std::fs::read_link(Path::new("/proc/self/ns/cgroup")).ok()?;
    let elsewhere = own != Path::new(FIRST);
    elsewhere.then(|| "writes from outside of the process's cgroup namespace".to_owned())
}

/// Returns why the kernel may send no hotplug messages. It sends them to the network namespaces of
/// the first user namespace; a network namespace made inside of another user namespace belongs to
/// that.
fn in_user_namespace() -> Option<String> {
    let map = std::fs::read_to_string("/proc/self/uid_map").ok()?;
    let whole = map.split_whitespace().eq(["0", "0", "4294967295"]);
    (!whole).then(|| "the kernel may send its messages to other user namespaces only".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_about_cpus_are_told_from_others() {
        let offline = b"offline@/devices/system/cpu/cpu1\0ACTION=offline\0\
            DEVPATH=/devices/system/cpu/cpu1\0SUBSYSTEM=cpu\0SEQNUM=1203\0";
        assert!(concerns_cpus(offline));
        let disk = b"change@/devices/virtual/block/loop0\0ACTION=change\0SUBSYSTEM=block\0";
        assert!(!concerns_cpus(disk));
        assert!(!concerns_cpus(b"libudev\0\xfe\xed\xca\xfe"));
        assert!(!concerns_cpus(b""));
    }

    #[test]
    fn a_write_to_a_watched_file_wakes_and_is_taken_once() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut watch = Watch::new().unwrap();
        let Some(inotify) = &watch.groups else { return };
        inotify::add_watch(inotify, file.path(), inotify::WatchFlags::MODIFY).unwrap();
        std::fs::write(file.path(), "0-1\n").unwrap();
        watch.wait().unwrap();
        assert!(!watch.take().unwrap());
    }
}
