//! Brings a volume in memory up in this process, and uses it as a client does. Adds another one
//! while it serves, and takes all of it down.
//!
//! `cargo run -p corewise-server --example in_process`
#![allow(clippy::print_stdout, reason = "an example talks to its user")]

use std::error::Error;
use std::sync::Arc;

use corewise::blockmq::{BlockDeviceExt, Queue};
use corewise::nbd::{Remote, RemoteOptions};
use corewise::topology::Machine;
use corewise::workqueue::{WorkerPools, Workqueue};
use corewise_server::{Options, Server, manifest};

const DISK: &str = r#"
[server]
unix = "nbd.sock"

[[device]]
name = "disk"
driver = "memory"
size = "1M"

[[export]]
device = "disk"
"#;

const MORE: &str = r#"
[[device]]
name = "more"
driver = "memory"
size = "2M"

[[export]]
device = "more"
"#;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let manifest = manifest::read(DISK, folder.path()).into_manifest("the example")?;
    let server = Server::up(manifest, Options::default())?;
    println!("up at {}: {}", server.endpoints()[0], server.health().text().trim_end());

    let file = folder.path().join("more.toml");
    std::fs::write(&file, MORE)?;
    print!("{}", server.add(&file)?.text());

    // A client, which could be another program.
    let machine = Machine::live()?;
    let pools = WorkerPools::new(&machine);
    let workqueue = Workqueue::builder("client").build(&pools)?;
    for export in ["disk", "more"] {
        let uri = server.endpoints()[0].uri(export);
        let remote = Remote::connect(RemoteOptions::new(uri.parse()?))?;
        let client = Queue::builder(&machine, Arc::new(remote)).name(export).build(&workqueue);
        client.write_at(4096, vec![7; 512])?;
        assert_eq!(client.read_at(4096, 512)?, [7; 512][..]);
        println!("{export}: a block was written and read");
    }
    drop(workqueue);
    pools.shutdown();

    assert!(server.down("the example ends"), "all of it went down in order");
    Ok(())
}
