//! The programs of runs: this one for Rust, and programs in other languages, which are built beside
//! it at first use.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use corewise_bench::process::Program;

/// A program that runs a runtime's jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tool {
    /// The program itself.
    Rust,
    /// The program for oneTBB, in C++.
    Tbb,
    Go,
    /// The program for Go's calls.
    GoCalls,
    Java,
    /// The program for Forte, in Rust, with dependencies of its own.
    Forte,
    /// The program for glommio, in Rust, with dependencies of its own.
    Glommio,
    /// The program for Seastar, in C++.
    Seastar,
    /// The program itself, which starts a server: `corewise`, or an installed one.
    Server(&'static str),
}

/// The source of a program.
struct Source {
    /// Names and contents of files. The compiler gets the first one.
    files: &'static [(&'static str, &'static str)],
    /// The name of the built file.
    made: &'static str,
    /// The shell command that builds. `$1` is the first file, `$2` the built file, `$3` the folder.
    build: &'static str,
    /// The way to get a missing tool.
    remedy: &'static str,
}

const GO: &str = "unset GOFLAGS; GOTOOLCHAIN=local exec go build -o \"$2\" \"${1%/*}\"/*.go";
const GET_GO: &str = "Go 1.22 or newer, with `go` in the PATH; on Debian: apt install golang-go";

const GET_SERVERS: &str =
    "on Debian: apt install nbdkit nbd-server qemu-utils qemu-system-common fio libnbd-bin";

/// Returns true if a program is in the PATH.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// Builds the server, if cargo started this program. Else the server beside this program is taken.
fn build_corewise() -> Result<(), String> {
    let made = beside("corewise")?;
    if let (Some(cargo), Some(target)) =
        (std::env::var_os("CARGO"), made.parent().and_then(Path::parent))
    {
        let mut build = Command::new(cargo);
        build.args(["build", "--release", "--quiet", "--package", "corewise-cli"]);
        build.args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml")]);
        compile(build.arg("--target-dir").arg(target))?;
    }
    if made.exists() { Ok(()) } else { Err(format!("there is no {}", made.display())) }
}

/// Returns the path of a program that cargo puts beside this one.
pub(crate) fn beside(name: &str) -> Result<PathBuf, String> {
    std::env::current_exe().map(|own| own.with_file_name(name)).map_err(|error| error.to_string())
}

impl Tool {
    fn source(self) -> Option<Source> {
        Some(match self {
            Tool::Rust | Tool::Server(_) => return None,
            Tool::Tbb => Source {
                files: &[
                    ("tbb/main.cpp", include_str!("../peers/tbb/main.cpp")),
                    ("tbb/fork.hpp", include_str!("../peers/tbb/fork.hpp")),
                ],
                made: "tbb/peer",
                build: "exec g++ -std=c++20 -O3 -pthread \"$1\" -o \"$2\" -ltbb",
                remedy: "on Debian: apt install g++ libtbb-dev",
            },
            Tool::Go => Source {
                files: &[
                    ("go/main.go", include_str!("../peers/go/main.go")),
                    ("go/fork.go", include_str!("../peers/go/fork.go")),
                ],
                made: "go/peer",
                build: GO,
                remedy: GET_GO,
            },
            Tool::GoCalls => Source {
                files: &[("go-calls/main.go", include_str!("../peers/go-calls/main.go"))],
                made: "go-calls/peer",
                build: GO,
                remedy: GET_GO,
            },
            Tool::Java => Source {
                files: &[
                    ("java/Peer.java", include_str!("../peers/java/Peer.java")),
                    ("java/Fork.java", include_str!("../peers/java/Fork.java")),
                ],
                made: "java/Peer.class",
                build: "exec javac -d \"$3/java\" \"$3\"/java/*.java",
                remedy: "JDK 17 or newer; on Debian: apt install openjdk-17-jdk-headless",
            },
            Tool::Forte => Source {
                files: &[
                    ("forte/Cargo.toml", include_str!("../peers/forte/manifest.toml")),
                    ("forte/Cargo.lock", include_str!("../peers/forte/Cargo.lock")),
                    ("forte/main.rs", include_str!("../peers/forte/main.rs")),
                    ("forte/work.rs", include_str!("fork/work.rs")),
                ],
                made: "forte/target/release/forte-peer",
                build: "exec cargo build --release --locked --manifest-path \"$1\" --target-dir \"$3/forte/target\"",
                remedy: "it needs cargo, and forte from the registry",
            },
            Tool::Glommio => Source {
                files: &[
                    ("glommio/Cargo.toml", include_str!("../peers/glommio/manifest.toml")),
                    ("glommio/Cargo.lock", include_str!("../peers/glommio/Cargo.lock")),
                    ("glommio/main.rs", include_str!("../peers/glommio/main.rs")),
                ],
                made: "glommio/target/release/glommio-peer",
                build: "exec cargo build --release --locked --manifest-path \"$1\" --target-dir \"$3/glommio/target\"",
                remedy: "it needs cargo, a C compiler, and glommio from the registry",
            },
            Tool::Seastar => Source {
                files: &[("seastar.cpp", include_str!("../peers/seastar/main.cpp"))],
                made: "seastar-peer",
                // The library's pkg-config file has the flags that a program needs.
                build: "flags=$(pkg-config --cflags --libs --static seastar) || exit 1; \
                        exec g++ -std=c++20 -O3 \"$1\" -o \"$2\" $flags",
                remedy: "Debian has no package; it is used where pkg-config finds `seastar`",
            },
        })
    }

    fn program(self, made: PathBuf, folder: &Path) -> Program {
        if self != Tool::Java {
            return Program::new(made);
        }
        // The collector for throughput, and a heap that needn't grow meanwhile.
        let mut java = Program::new("java");
        for argument in ["-XX:+UseParallelGC", "-Xms1g", "-Xmx1g", "-cp"] {
            java = java.argument(argument);
        }
        java.argument(folder.join("java")).argument("Peer")
    }

    /// Returns the program for a job of `bench`. It is built if there is none of this source.
    ///
    /// # Errors
    /// The error says why there is none, and how to get it.
    pub(crate) fn build(self, bench: &str, folder: &Path) -> Result<Program, String> {
        let Some(Source { files, made, build, remedy }) = self.source() else {
            match self {
                Tool::Server("corewise") => build_corewise()?,
                Tool::Server(name) if !is_installed(name) => {
                    return Err(format!("it isn't installed ({GET_SERVERS})"));
                }
                _ => {}
            }
            let own = std::env::current_exe().map_err(|error| error.to_string())?;
            return Ok(Program::new(own).argument("run").argument(bench));
        };
        let (source, made) = (folder.join(files[0].0), folder.join(made));
        if !is_current(folder, files, &made) {
            eprintln!("{self:?}: its program is built, at first use");
            let mut shell = Command::new("sh");
            shell.args(["-c", build, "sh"]).args([&source, &made]).arg(folder);
            let built = write(folder, files, &made).and_then(|()| compile(&mut shell));
            built.map_err(|why| format!("{why} ({remedy})"))?;
        }
        Ok(self.program(made, folder))
    }
}

fn is_current(folder: &Path, files: &[(&str, &str)], made: &Path) -> bool {
    let same = |(name, text): &(&str, &str)| {
        fs::read_to_string(folder.join(name)).is_ok_and(|old| old == *text)
    };
    made.exists() && files.iter().all(same)
}

/// Writes the source, and removes a file built from another source, so a failed build leaves no
/// file that could be taken for its product.
fn write(folder: &Path, files: &[(&str, &str)], made: &Path) -> Result<(), String> {
    match fs::remove_file(made) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(format!("{} can't be removed: {error}", made.display()));
        }
        _ => {}
    }
    for (name, text) in files {
        let file = folder.join(name);
        let written = fs::create_dir_all(file.parent().unwrap_or(folder))
            .and_then(|()| fs::write(&file, text));
        written.map_err(|error| format!("{} can't be written: {error}", file.display()))?;
    }
    Ok(())
}

fn compile(shell: &mut Command) -> Result<(), String> {
    match shell.stdin(Stdio::null()).output() {
        Err(error) => Err(format!("the shell can't be started: {error}")),
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let telling = said.lines().find(|line| line.contains("error")).or(said.lines().next());
            Err(format!("the compiler failed: {}", telling.unwrap_or("it said nothing")))
        }
    }
}

/// Returns the folder in which programs are built. It is beside this program, so in cargo's target
/// folder.
pub(crate) fn folder() -> io::Result<PathBuf> {
    let own = std::env::current_exe()?;
    Ok(own.parent().unwrap_or(Path::new(".")).join("bench-peers-programs"))
}

/// The name under which the loader finds mimalloc, for `LD_PRELOAD`.
pub(crate) const MIMALLOC: &str = "libmimalloc.so.2";

/// Checks that the loader finds mimalloc. The error says why not, and how to get it.
pub(crate) fn mimalloc() -> Result<(), String> {
    let tried = Command::new("true").env("LD_PRELOAD", MIMALLOC).output();
    match tried {
        // If it doesn't, the loader writes a message and goes on without.
        Ok(output) if output.stderr.is_empty() => Ok(()),
        _ => Err(format!("there is no {MIMALLOC} (on Debian: apt install libmimalloc2.0)")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_built_from_another_source_is_rebuilt() {
        let folder = std::env::temp_dir().join(format!("bench-peers-test-{}", std::process::id()));
        let made = folder.join("a");
        let (one, two) =
            ([("a.txt", "one"), ("b/c.txt", "1")], [("a.txt", "one"), ("b/c.txt", "2")]);
        assert!(!is_current(&folder, &one, &made));
        write(&folder, &one, &made).unwrap();
        assert!(!is_current(&folder, &one, &made), "nothing was made of it yet");
        fs::write(&made, "made").unwrap();
        assert!(is_current(&folder, &one, &made));
        assert!(!is_current(&folder, &two, &made));
        write(&folder, &two, &made).unwrap();
        assert!(!made.exists());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_compiler_that_is_not_there_or_fails_says_so() {
        let mut none = Command::new("sh");
        none.args(["-c", "exec no-such-compiler-here"]);
        let none = compile(&mut none).unwrap_err();
        assert!(none.contains("no-such-compiler-here: not found"), "{none}");
        let mut failing = Command::new("sh");
        failing.args(["-c", "echo warning >&2; echo 'x.h: error: none' >&2; exit 1"]);
        let failed = compile(&mut failing).unwrap_err();
        assert_eq!(failed, "the compiler failed: x.h: error: none");
    }
}
