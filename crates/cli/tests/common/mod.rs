//! Helpers of the program's tests: folders, runs of the real binary, servers that are killed when a
//! test ends, and the client programs.
#![allow(dead_code, unreachable_pub, missing_docs)]

pub mod busy;
pub mod client;
pub mod every;
pub mod lease;
pub mod machine;
pub mod pki;
pub mod replay;
pub mod server;
pub mod writer;

use std::ffi::OsStr;
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// Returns a device over `NAME.img`, a file of this size that is created if it is missing.
pub fn file(name: &str, size: &str) -> String {
    format!(
        "[[device]]\nname = \"{name}\"\ndriver = \"file\"\npath = \"{name}.img\"\n\
         size = \"{size}\"\ncreate = true\n"
    )
}

/// The binary under test.
pub const COREWISE: &str = env!("CARGO_BIN_EXE_corewise");

/// A folder for one test. `tmp` in it is the TMPDIR of programs that run there, so a test sees the
/// files that they leave.
pub struct Folder {
    dir: TempDir,
}

impl Folder {
    pub fn new() -> Folder {
        // The name is short: a socket's path has room for 107 bytes.
        let dir = tempfile::Builder::new().prefix("cw-").tempdir().expect("a temporary folder");
        std::fs::create_dir(dir.path().join("tmp")).expect("a folder for TMPDIR");
        Folder { dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file and returns its path.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.join(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).expect("a parent folder");
        }
        std::fs::write(&path, content).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        path
    }

    /// Returns everything in the folder except `tmp`, as sorted relative paths.
    pub fn list(&self) -> Vec<String> {
        let mut found = Vec::new();
        let mut folders = vec![self.path().to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).expect("a readable folder") {
                let path = entry.expect("a readable entry").path();
                let name = path.strip_prefix(self.path()).expect("inside").display().to_string();
                if path.is_dir() {
                    folders.push(path);
                }
                if name != "tmp" {
                    found.push(name);
                }
            }
        }
        found.sort();
        found
    }

    /// Returns a command that runs in this folder.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.path()).env("TMPDIR", self.join("tmp")).stdin(Stdio::null());
        // Without a runtime folder, control sockets are in TMPDIR, so no test finds the server of
        // another.
        for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "RUST_LOG", "XDG_RUNTIME_DIR"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs `corewise` to its end.
    pub fn corewise<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ran {
        let mut command = self.command(COREWISE);
        command.args(args);
        run(command)
    }

    /// Returns the dump of the only server that runs in this folder.
    #[track_caller]
    pub fn dump(&self) -> Value {
        self.corewise(["dump", "--json"]).ok().json()
    }

    /// Makes `disk.img` of `size` bytes, with a table of these partitions by `sfdisk`.
    pub fn partitioned(&self, size: usize, partitions: &str) {
        self.write("disk.img", "");
        let image = std::fs::OpenOptions::new().write(true).open(self.join("disk.img"));
        image.and_then(|image| image.set_len(size as u64)).expect("a file that was just made");
        let mut sfdisk = self.command("sfdisk");
        sfdisk.args(["--quiet", "--no-reread", "disk.img"]).stdin(Stdio::piped());
        let child = sfdisk.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child =
            child.unwrap_or_else(|error| panic!("sfdisk: {error}; apt-get install fdisk"));
        let table = format!("label: gpt\n{partitions}");
        child.stdin.take().expect("piped").write_all(table.as_bytes()).expect("it reads all");
        let output = child.wait_with_output().expect("a child can be waited for");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Runs a client program to its end.
    pub fn client<S: AsRef<OsStr>>(&self, name: &str, args: impl IntoIterator<Item = S>) -> Ran {
        let mut command = self.command(name);
        command.args(args);
        run_client(name, command)
    }
}

/// The Debian package of each client program.
const PACKAGES: [(&str, &str); 13] = [
    ("nbdinfo", "libnbd-bin"),
    ("nbdcopy", "libnbd-bin"),
    ("groff", "groff-base"),
    ("bash", "bash"),
    ("/usr/bin/python3", "python3-libnbd"),
    ("qemu-io", "qemu-utils"),
    ("qemu-img", "qemu-utils"),
    ("fio", "fio"),
    ("sfdisk", "fdisk"),
    ("mkfs.ext4", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("debugfs", "e2fsprogs"),
    ("cryptsetup", "cryptsetup-bin"),
];

/// Runs a client program. If the program isn't installed, the test fails and names its package.
pub fn run_client(name: &str, mut command: Command) -> Ran {
    let package = PACKAGES.iter().find(|(program, _)| *program == name);
    let package = package.map_or("?", |(_, package)| package);
    match command.output() {
        Ok(output) => Ran::new(&command, output),
        Err(error) => panic!(
            "{name} could not be run ({error}). It is in the Debian package {package}: \
             `apt-get install {package}`, or `cargo xtask test`, which installs what is missing"
        ),
    }
}

/// Runs a command to its end.
pub fn run(mut command: Command) -> Ran {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    Ran::new(&command, output)
}

/// A finished run: its exit code and both outputs. A failed test shows its `Display`.
pub struct Ran {
    pub command: String,
    pub cwd: PathBuf,
    /// Exit code; `None` if a signal ended the run.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    fn new(command: &Command, output: std::process::Output) -> Ran {
        Ran {
            command: format!("{command:?}"),
            cwd: command.get_current_dir().map(Path::to_path_buf).unwrap_or_default(),
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Returns stdout as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}\n{self}"))
    }

    /// Checks the exit code.
    #[track_caller]
    pub fn code(self, code: i32) -> Ran {
        assert!(self.code == Some(code), "expected exit code {code}\n{self}");
        self
    }

    #[track_caller]
    pub fn ok(self) -> Ran {
        self.code(0)
    }

    #[track_caller]
    pub fn fails(self) -> Ran {
        assert!(self.code.is_some_and(|code| code != 0), "expected it to fail\n{self}");
        self
    }

    /// Checks that stdout contains each of these texts.
    #[track_caller]
    pub fn says(self, texts: &[&str]) -> Ran {
        for text in texts {
            assert!(self.stdout.contains(text), "no {text:?} on stdout\n{self}");
        }
        self
    }

    /// Checks that stderr contains each of these texts.
    #[track_caller]
    pub fn complains(self, texts: &[&str]) -> Ran {
        for text in texts {
            assert!(self.stderr.contains(text), "no {text:?} on stderr\n{self}");
        }
        self
    }
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = self.code.map_or("none (a signal)".to_string(), |code| code.to_string());
        writeln!(f, "command: {}\nin: {}\ncode: {code}", self.command, self.cwd.display())?;
        writeln!(f, "--- stdout\n{}--- stderr\n{}---", self.stdout, self.stderr)
    }
}

/// Checks that a text is XML: it has one root, no attribute occurs twice in an element, and all
/// references are those of XML itself.
#[track_caller]
pub fn well_formed(xml: &str) {
    use quick_xml::events::Event;
    let mut reader = quick_xml::Reader::from_str(xml);
    reader.config_mut().check_comments = true;
    let (mut depth, mut roots) = (0, 0);
    loop {
        let event = reader.read_event().unwrap_or_else(|error| panic!("{error}\n{xml}"));
        match &event {
            Event::Start(tag) | Event::Empty(tag) => {
                roots += usize::from(depth == 0);
                for attribute in tag.attributes() {
                    let attribute = attribute.unwrap_or_else(|error| panic!("{error}: {tag:?}"));
                    assert!(!attribute.value.contains(&b'<'), "{tag:?}");
                }
                depth += usize::from(matches!(event, Event::Start(_)));
            }
            Event::End(_) => depth -= 1,
            Event::GeneralRef(name) => {
                let known: [&[u8]; 5] = [b"amp", b"lt", b"gt", b"quot", b"apos"];
                assert!(name.is_char_ref() || known.contains(&&**name), "{name:?}");
            }
            Event::Text(text) => {
                let blank = text.trim_ascii().is_empty();
                assert!(depth > 0 || blank, "text outside of the root: {text:?}");
            }
            Event::Eof => break,
            _ => {}
        }
    }
    assert_eq!((depth, roots), (0, 1), "left open, or not one root\n{xml}");
}
