//! The kernel's own client, in a virtual machine: Debian's kernel, busybox, fio and fsx, on QEMU's
//! emulated processor.
#![allow(missing_docs, clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::Folder;
use crate::common::server::Server;

/// Number of kills while the machine writes.
const KILLS: usize = 3;
/// Sectors that it writes from one kill to the next.
const BETWEEN: u64 = 5000;

/// Takes two minutes, and fetches a kernel. It belongs to the long runs, whose needs `xtask`
/// installs.
#[test]
fn the_kernels_client_loses_nothing_while_the_server_is_killed_and_started_again() {
    if std::env::var_os("COREWISE_LONG").is_none() || !cfg!(target_arch = "x86_64") {
        return;
    }
    let folder = Folder::new();
    // The next run fetches nothing.
    let image = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernel");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernel/image");
    let mut make = folder.command("sh");
    make.arg(script).arg(&image).arg(env!("CARGO_BIN_EXE_corewise"));
    crate::common::run(make).ok();

    folder.write(
        "x.toml",
        "[[device]]\nname = \"disk\"\ndriver = \"file\"\npath = \"disk.img\"\nsize = \"256M\"\ncreate = true\n\
         [[export]]\ndevice = \"disk\"\n",
    );
    let mut server = Server::start(&folder, &["x.toml", "--tcp", "127.0.0.1:0"]);
    let address = server.tcp();
    let port = address.rsplit(':').next().unwrap();
    // `timeout` ends a machine that hangs.
    let mut machine = Command::new("timeout");
    machine.args([
        "400",
        "qemu-system-x86_64",
        "-accel",
        "tcg,thread=multi",
        "-smp",
        "2",
        "-m",
        "1024",
    ]);
    machine.args(["-display", "none", "-monitor", "none", "-serial", "stdio", "-no-reboot"]);
    machine.arg("-kernel").arg(image.join("vmlinuz")).arg("-initrd").arg(image.join("initrd"));
    // On a busy host an emulated timer may be too late for the kernel's check of it.
    machine
        .args(["-append", &format!("console=ttyS0 quiet panic=-1 no_timer_check corewise={port}")]);
    // The virtual machine's 10.0.2.2 is this machine's loopback.
    machine.args(["-netdev", "user,id=net", "-device", "virtio-net-pci,netdev=net,romfile="]);
    machine.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let mut machine = machine.spawn().unwrap();
    let console = BufReader::new(machine.stdout.take().unwrap());
    let (mut next, mut kills, mut replaced, mut said) = (None, 0, 0, String::new());
    let mut result = None;
    for line in console.split(b'\n') {
        let line = String::from_utf8_lossy(&line.unwrap()).trim().to_string();
        said.push_str(&line);
        said.push('\n');
        if let Some(written) = line.strip_prefix("WRITTEN ") {
            let written: u64 = written.parse().unwrap_or_default();
            let at = *next.get_or_insert(written + BETWEEN);
            if written >= at && kills < KILLS {
                server.kill();
                server = Server::start(&folder, &["x.toml", "--tcp", &address]);
                (next, kills) = (Some(written + BETWEEN), kills + 1);
            }
        } else if line.contains("a connection was replaced") {
            replaced += 1;
        } else if let Some(how) = line.strip_prefix("RESULT ") {
            result = Some(how.to_string());
        }
    }
    machine.wait().unwrap();
    assert_eq!(result.as_deref(), Some("well"), "{said}");
    assert_eq!(kills, KILLS, "{said}");
    assert!(replaced >= 2 * KILLS, "two connections were lost with each: {said}");
    server.stop().ok();
}
