//! Serves a memory device over a Unix socket and over TCP until its standard input ends, then
//! drains.
//!
//! `cargo run --release --example serve_memory -- /tmp/demo.sock 64` (MiB), then
//! `nbdinfo 'nbd+unix:///demo?socket=/tmp/demo.sock'`.
#![allow(clippy::print_stdout, reason = "an example talks to its user")]

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use corewise_blockmq::{BlockDevice, Geometry, Op, Request};
use corewise_nbd::{Export, Options, Server};
use corewise_sync::Mutex;

/// The plainest device: bytes under one lock, completed inline.
struct Memory {
    size: u64,
    /// L: is the lock; guards the contents.
    data: Mutex<Vec<u8>>,
}

impl BlockDevice for Memory {
    fn name(&self) -> &str {
        "memory"
    }

    fn geometry(&self) -> Geometry {
        Geometry::new(self.size)
    }

    fn submit(&self, mut rq: Request) {
        let (from, to) = (rq.offset() as usize, (rq.offset() + rq.len()) as usize);
        let mut data = self.data.lock();
        match rq.op() {
            Op::Read => {
                rq.put(&data[from..to]);
            }
            Op::Write => {
                rq.copy_to(&mut data[from..to]);
            }
            Op::Discard | Op::WriteZeroes => data[from..to].fill(0),
            _ => {} // a flush, where nothing lasts; a question for extents; a hint
        }
        drop(data);
        rq.complete(Ok(()));
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().unwrap_or_else(|| "corewise-demo.sock".to_owned());
    let mib: u64 = args.next().map_or(Ok(64), |arg| arg.parse())?;
    let size = mib << 20;
    let memory = Memory { size, data: Mutex::new(vec![0; usize::try_from(size)?]) };
    let server = Server::new(Options::default());
    server.add_export(Export::new("demo", Arc::new(memory)).description("bytes in memory"))?;
    println!("{}", server.listen_unix(&path)?.uri("demo"));
    println!("{}", server.listen_tcp("127.0.0.1:0")?.uri("demo"));
    std::io::stdin().read_to_end(&mut Vec::new())?;
    println!("{}", server.drain(Duration::from_secs(5)));
    Ok(())
}
