//! `corewise up` under a service manager: sockets that are passed, and notifications to the
//! manager.
#![allow(missing_docs, clippy::unwrap_used)]

use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use crate::common::server::Server;
use crate::common::{COREWISE, Folder};
use rustix::process::Signal;

const MANIFEST: &str = "[server]\nunix = \"own\"\n\
    [[device]]\nname = \"disk\"\ndriver = \"file\"\npath = \"disk.img\"\nsize = \"1M\"\ncreate = true\n\
    [[export]]\ndevice = \"disk\"\nname = \"\"\n";

/// Starts a program as a service manager does: with sockets of these kinds from file descriptor 3
/// on.
const MANAGER: &str = r#"
import os, socket, sys
kinds, command = sys.argv[1].split(','), sys.argv[2:]
made = []
for kind in kinds:
    if kind == 'unix':
        s = socket.socket(socket.AF_UNIX); s.bind('passed'); s.listen()
    elif kind == 'tcp':
        s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()
    else:
        s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); s.bind('datagrams')
    made.append(s)
# Out of the way first: one may have the number of another.
made = [os.dup(os.dup2(s.fileno(), 100 + n)) and 100 + n for n, s in enumerate(made)]
for n, fd in enumerate(made):
    os.dup2(fd, 3 + n, inheritable=True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(made)))
os.execv(command[0], command)
"#;

fn folder() -> Folder {
    let folder = Folder::new();
    folder.write("x.toml", MANIFEST);
    folder
}

fn managed(folder: &Folder, kinds: &str, args: &[&str]) -> std::process::Command {
    let mut command = folder.command("/usr/bin/python3");
    command.args(["-c", MANAGER, kinds, COREWISE, "up", "x.toml"]).args(args);
    command.env_remove("JOURNAL_STREAM");
    command
}

#[test]
fn a_client_of_libnbd_starts_the_server_and_ends_it() {
    let folder = folder();
    let up = ["[", COREWISE, "up", "x.toml", "]"];
    let ran = folder.client("nbdinfo", [&["--size", "--"], &up[..]].concat()).ok();
    assert_eq!(ran.stdout, "1048576\n", "{ran}");
    let script = format!(
        "import nbd\nh = nbd.NBD()\nh.connect_systemd_socket_activation([{COREWISE:?}, 'up', 'x.toml'])\n\
         h.pwrite(b'activated', 4096)\nh.flush()\nprint(h.pread(9, 4096))\nh.shutdown()"
    );
    let ran = folder.client("/usr/bin/python3", ["-c", &script]).ok();
    assert_eq!(ran.stdout, "bytearray(b'activated')\n", "{ran}");
    assert_eq!(&std::fs::read(folder.join("disk.img")).unwrap()[4096..4105], b"activated");
    assert_eq!(folder.list(), ["disk.img", "x.toml"], "neither has left a socket");
}

#[test]
fn a_server_ends_in_order_with_the_client_that_started_it_whatever_ends_that() {
    let folder = folder();
    // Neither end lets libnbd end the server.
    for end in ["os.kill(os.getpid(), 9)", "os._exit(1)"] {
        let script = format!(
            "import nbd, os\nh = nbd.NBD()\nh.connect_systemd_socket_activation([{COREWISE:?}, 'up', 'x.toml', \
             '--exit-with-parent', '--timeline', 't.json'])\nh.pwrite(b'by the client', 0)\n{end}"
        );
        let _ = folder.client("/usr/bin/python3", ["-c", &script]);
        // The server writes the file at its end. The lock of the volume is free then, or about to
        // be.
        while !std::fs::read_to_string(folder.join("t.json"))
            .is_ok_and(|text| text.contains("shutdown"))
        {
            std::thread::yield_now();
        }
        assert_eq!(&std::fs::read(folder.join("disk.img")).unwrap()[..13], b"by the client");
        std::fs::remove_file(folder.join("t.json")).unwrap();
        let up = ["up", "x.toml", "--socket", "s", "--for", "1ms"];
        while folder.corewise(up).code != Some(0) {
            std::thread::yield_now();
        }
    }
}

#[test]
fn sockets_that_are_passed_stand_in_for_those_of_the_manifest() {
    let folder = folder();
    let mut server = Server::spawn(managed(&folder, "unix,tcp", &["--json"]));
    server.ready = server.wait_event("ready");
    assert!(server.ready["unix"].as_str().unwrap().ends_with("passed"), "{}", server.ready);
    assert!(!folder.join("own").exists());
    for uri in [server.uri(""), server.tcp_uri("")] {
        assert_eq!(folder.client("nbdinfo", ["--size", &uri]).ok().stdout, "1048576\n");
    }
    server.stop().ok();
    assert!(folder.join("passed").exists(), "the manager's own file stays");
}

#[test]
fn what_is_passed_and_no_stream_socket_is_refused_as_are_flags_beside_it() {
    let folder = folder();
    let ran = crate::common::run(managed(&folder, "unix,datagrams", &[]));
    ran.code(1).complains(&["file descriptor 4", "not a stream socket", "ListenStream="]);
    std::fs::remove_file(folder.join("passed")).unwrap();
    let ran = crate::common::run(managed(&folder, "unix", &["--tcp", "127.0.0.1:0"]));
    ran.code(1).complains(&["--socket and --tcp", "LISTEN_FDS"]);
    assert!(!folder.join("disk.img").exists(), "nothing was begun");
}

#[test]
fn a_number_of_sockets_that_is_none_is_shown() {
    let folder = folder();
    for wrong in ["x", "-1", "99999999999", "60000"] {
        let mut command = folder.command("sh");
        let script = r#"LISTEN_PID=$$ LISTEN_FDS=$1 exec "$0" up x.toml"#;
        command.args(["-c", script, COREWISE, wrong]);
        let found = format!("LISTEN_FDS is '{wrong}', and LISTEN_PID '");
        let ran = crate::common::run(command).code(1);
        ran.complains(&[&found, "help: LISTEN_FDS must be the number of passed sockets"]);
    }
}

/// The socket on which a manager gets its notifications.
struct Manager(UnixDatagram);

impl Manager {
    /// Waits for a message with this line.
    #[track_caller]
    fn hears(&self, wanted: &str) -> String {
        let mut room = [0; 4096];
        loop {
            let length = self.0.recv(&mut room);
            let length = length.unwrap_or_else(|error| panic!("{wanted} did not come: {error}"));
            let message = String::from_utf8_lossy(&room[..length]);
            if message.lines().any(|line| line.starts_with(wanted)) {
                return message.into_owned();
            }
        }
    }
}

#[test]
fn a_service_manager_is_told_of_the_start_a_reload_the_end_and_that_the_server_gets_on() {
    let folder = folder();
    let manager = Manager(UnixDatagram::bind(folder.join("notify")).unwrap());
    manager.0.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
    let mut command = folder.command("env");
    command.args(["--default-signal=HUP", COREWISE, "up", "--json", "x.toml"]);
    command.env("NOTIFY_SOCKET", folder.join("notify")).env("WATCHDOG_USEC", "100000");
    let mut server = Server::spawn(command);
    assert_eq!(manager.hears("READY=1"), "READY=1\nSTATUS=1 export, 0 clients\n");
    server.ready = server.wait_event("ready");
    manager.hears("WATCHDOG=1");
    manager.hears("WATCHDOG=1");
    let more = "[[device]]\nname = \"m\"\ndriver = \"memory\"\nsize = \"1M\"\n[[export]]\ndevice = \"m\"\n";
    folder.write("x.toml", format!("{MANIFEST}{more}"));
    server.signal(Signal::HUP);
    assert!(manager.hears("RELOADING=1").contains("\nMONOTONIC_USEC="));
    manager.hears("READY=1");
    manager.hears("STATUS=2 exports");
    server.signal(Signal::TERM);
    let end = manager.hears("STOPPING=1");
    assert!(end.contains("STATUS=stopping: SIGTERM\nEXTEND_TIMEOUT_USEC="), "{end}");
    server.wait().ok();
}
