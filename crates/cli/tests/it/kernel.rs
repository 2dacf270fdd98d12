//! The kernel's own client, in a virtual machine: the kernel of this machine's Debian, busybox, fio
//! and fsx.
#![allow(missing_docs, clippy::unwrap_used)]

use crate::common::machine::{Image, is_long, listen};
use crate::common::server::Server;
use crate::common::{COREWISE, Folder, file};

/// Number of kills while the machine writes.
const KILLS: usize = 3;
/// Sectors that it writes from one kill to the next.
const BETWEEN: u64 = 5000;

/// Takes two minutes, and fetches a kernel. It belongs to the long runs, whose needs `xtask`
/// installs.
#[test]
fn the_kernels_client_loses_nothing_while_the_server_is_killed_and_started_again() {
    if !is_long() {
        return;
    }
    let modules = "virtio_pci virtio_net nbd ext4 crc32c_generic";
    let programs = ["fio", "mkfs.ext4", "e2fsck", "fsx", COREWISE].map(AsRef::as_ref);
    let Some(image) = Image::new("attach", "own", "attach", modules, &programs) else {
        return;
    };
    let folder = Folder::new();
    folder.write("x.toml", file("disk", "256M") + "[[export]]\ndevice = \"disk\"\n");
    let server = Server::start(&folder, &["x.toml", "--tcp", "127.0.0.1:0"]);
    let address = server.tcp();
    let port = address.rsplit(':').next().unwrap();
    let mut machine = image.machine(400, "tcg,thread=multi", &format!("quiet port={port}"));
    // Its 10.0.2.2 is this machine's loopback.
    machine.args(["-smp", "2", "-m", "1024", "-netdev", "user,id=net"]);
    machine.args(["-device", "virtio-net-pci,netdev=net,romfile="]);
    let (mut server, mut next, mut kills, mut replaced) = (Some(server), None, 0, 0);
    let (result, said) = listen(machine, |line| {
        if let Some(written) = line.strip_prefix("WRITTEN ") {
            let written: u64 = written.parse().unwrap_or_default();
            let at = *next.get_or_insert(written + BETWEEN);
            if written >= at && kills < KILLS {
                server.take().unwrap().kill();
                server = Some(Server::start(&folder, &["x.toml", "--tcp", &address]));
                (next, kills) = (Some(written + BETWEEN), kills + 1);
            }
        } else if line.contains("a connection was replaced") {
            replaced += 1;
        }
    });
    assert_eq!(result.as_deref(), Some("well"), "{said}");
    assert_eq!(kills, KILLS, "{said}");
    assert!(replaced >= 2 * KILLS, "two connections were lost with each: {said}");
    server.unwrap().stop().ok();
}
