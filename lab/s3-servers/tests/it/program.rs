//! The program: `corewise up` with one volume.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};

use tempfile::TempDir;

use crate::disk::{BLOCK, BUCKET, KEY, Place, SECRET};

/// A server of a volume. It is killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Program {
    folder: TempDir,
    child: Child,
    errors: Option<ChildStderr>,
}

impl Program {
    /// Starts it, and waits until it serves.
    ///
    /// # Panics
    /// If it doesn't.
    pub(crate) fn new(place: &Place, blocks: usize) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let manifest = format!(
            r#"
            [server]
            unix = "socket"
            control = "control"
            [[device]]
            name = "volume"
            driver = "object"
            location = "s3://{BUCKET}/{}"
            endpoint = "http://{}"
            region = "us-east-1"
            lease = "{}ms"
            request_timeout = "20s"
            size = {}
            [[export]]
            device = "volume"
            "#,
            place.prefix(),
            place.address(),
            place.lease.as_millis(),
            blocks * BLOCK
        );
        std::fs::write(folder.path().join("disks.toml"), manifest).expect("a manifest");
        let program = std::env::var_os("COREWISE_PROGRAM").expect(
            "COREWISE_PROGRAM says where the program is: cargo build -p corewise-cli --features cloud",
        );
        let mut command = Command::new(PathBuf::from(program));
        command.current_dir(folder.path()).args(["up", "--json", "disks.toml"]);
        command.env("AWS_ACCESS_KEY_ID", KEY).env("AWS_SECRET_ACCESS_KEY", SECRET);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program runs");
        let errors = child.stderr.take();
        let mut lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let ready = lines.by_ref().map_while(Result::ok).any(|line| line.contains("\"ready\""));
        let mut program = Self { folder, child, errors };
        if !ready {
            panic!("it doesn't serve: {}", program.said());
        }
        // The program prints more, which is discarded.
        corewise_sync::thread::spawn(move || lines.for_each(drop));
        program
    }

    /// Returns the URI of its export.
    pub(crate) fn uri(&self) -> String {
        format!("nbd+unix:///volume?socket={}", self.socket().display())
    }

    /// Returns the path of its socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// Kills it with no warning.
    ///
    /// # Panics
    /// If it can't be waited for.
    pub(crate) fn kill(&mut self) {
        // An error: it has ended.
        let _ = self.child.kill();
        self.child.wait().expect("it can be waited for");
    }

    fn said(&mut self) -> String {
        self.kill();
        let errors = self.errors.take().map(std::io::read_to_string);
        errors.and_then(Result::ok).unwrap_or_default()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}
