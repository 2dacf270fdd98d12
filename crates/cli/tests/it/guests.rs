//! Exports as disks of virtual machines.
#![allow(missing_docs, clippy::unwrap_used)]

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use crate::common::Folder;
use crate::common::server::Server;

/// Takes the disk of a vhost-user server, and asks for its features.
fn features(stream: &mut UnixStream) -> u64 {
    // VHOST_USER_SET_OWNER and VHOST_USER_GET_FEATURES, version 1, and nothing behind the heads.
    stream.write_all(&[3u32, 1, 0].map(u32::to_ne_bytes).concat()).unwrap();
    let words = [1u32, 1, 0];
    stream.write_all(&words.map(u32::to_ne_bytes).concat()).unwrap();
    let mut reply = [0; 20];
    stream.read_exact(&mut reply).unwrap();
    u64::from_ne_bytes(reply[12..].try_into().unwrap())
}

#[test]
fn an_export_with_a_socket_for_guests_is_a_virtio_disk_and_its_guest_a_client() {
    let folder = Folder::new();
    folder.write(
        "a.toml",
        "[server]\nunix = \"s\"\ncontrol = \"c\"\n[[device]]\nname = \"ram\"\ndriver = \"memory\"\nsize = \"1M\"\n\
         [[export]]\ndevice = \"ram\"\nvhost_user = \"guest\"\n",
    );
    let server = Server::start(&folder, &["a.toml"]);
    let mut guest = UnixStream::connect(folder.join("guest")).unwrap();
    let features = features(&mut guest);
    let (version_1, flush) = (1 << 32, 1 << 9);
    assert!(features & version_1 != 0, "{features:x}");
    assert!(features & flush == 0, "memory has nothing to flush: {features:x}");
    let mode = folder.join("guest").metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "nobody else may connect");
    let clients = folder.corewise(["clients", "--control", "c", "--json"]).ok();
    clients.says(&["/guest\"", "\"client\": 1,"]);
    let refused = folder.corewise(["remove", "--control", "c", "ram"]).code(1);
    refused.complains(&["export 'ram' has 1 client"]);
    let gone = folder.corewise(["disconnect", "--control", "c", "1"]).ok();
    gone.says(&["disconnected client 1 (", "/guest, ram), 0 requests unanswered"]);
    assert_eq!(guest.read(&mut [0]).unwrap(), 0, "the connection has ended");
    let mut guest = UnixStream::connect(folder.join("guest")).unwrap();
    self::features(&mut guest);
    folder.corewise(["clients", "--control", "c", "--json"]).ok().says(&["\"client\": 2,"]);
    server.stop().ok();
    assert!(!folder.join("guest").exists());
    assert_eq!(guest.read(&mut [0]).unwrap(), 0, "the connection has ended");
}

#[test]
fn a_reload_changes_the_access_to_a_socket_at_once_and_says_what_it_could_not_change() {
    let folder = Folder::new();
    let manifest = |server: &str, export: &str| {
        let device = "[[device]]\nname = \"ram\"\ndriver = \"memory\"\nsize = \"1M\"\n";
        let export = format!("[[export]]\ndevice = \"ram\"\n{export}\n");
        folder.write("a.toml", format!("[server]\nunix = \"s\"\n{server}\n{device}{export}"));
    };
    let socket = |access: &str| {
        let export = format!("vhost_user = {{ path = \"guest\", {access} }}");
        manifest("control = \"c\"", &export);
    };
    let mode = || folder.join("guest").metadata().unwrap().permissions().mode() & 0o777;
    let reload = |more: &[&str]| folder.corewise([&["reload", "--control", "c"], more].concat());
    let health = || folder.corewise(["health", "--control", "c"]);
    socket("mode = \"0600\"");
    let server = Server::start(&folder, &["a.toml"]);
    let mut guest = UnixStream::connect(folder.join("guest")).unwrap();
    features(&mut guest);
    socket("mode = \"0640\"");
    reload(&[]).ok().says(&["changed export 'ram'"]);
    assert_eq!(mode(), 0o640);

    socket("owner = \"no such user\"");
    let failed = reload(&[])
        .code(1)
        .complains(&["export:ram: vhost_user: owner: this machine has no user 'no such user'"]);
    assert!(!failed.stdout.contains("changed"), "{}", failed.stdout);
    health().fails().says(&["export:ram: not as the manifest says", "no user 'no such user'"]);
    socket("mode = \"0600\"");
    reload(&[]).ok();
    assert_eq!(mode(), 0o600);
    health().ok();

    // A guest has the disk, so the change is refused, and not promised before.
    manifest("control = \"c\"", "");
    for more in [&["--dry-run"][..], &[]] {
        reload(more).code(1).complains(&["guest is in use, and the change would end it"]);
    }
    features(&mut guest);
    server.stop().ok();

    manifest("", "vhost_user = \"c\"");
    let up = folder.corewise(["up", "a.toml", "--control", "c"]).code(1);
    up.complains(&["/c: this server itself listens on this socket"]);
}
