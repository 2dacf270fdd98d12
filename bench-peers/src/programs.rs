//! The programs that runs are made with: this one for Rust, and those in other languages, which are
//! built at first use beside it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use corewise_bench::process::Program;

/// The program that runs a runtime's jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tool {
    /// This very program.
    Rust,
    /// oneTBB's, in C++.
    Tbb,
    Go,
    /// Go's, of the workloads for calls.
    GoCalls,
    Java,
    /// glommio's, in Rust, with dependencies of its own.
    Glommio,
    /// Seastar's, in C++.
    Seastar,
}

/// What a program is made of.
struct Source {
    /// Names of files, the one that the compiler is given first, and what is in them.
    files: &'static [(&'static str, &'static str)],
    /// The name of what is made of them.
    made: &'static str,
}

impl Tool {
    /// All of them.
    pub(crate) const ALL: [Tool; 7] =
        [Tool::Rust, Tool::Tbb, Tool::Go, Tool::GoCalls, Tool::Java, Tool::Glommio, Tool::Seastar];

    fn source(self) -> Option<Source> {
        let (files, made): (&[_], _) = match self {
            Tool::Rust => return None,
            Tool::Tbb => (&[("tbb.cpp", include_str!("../peers/tbb/main.cpp"))], "tbb"),
            Tool::Go => (&[("main.go", include_str!("../peers/go/main.go"))], "go-peer"),
            Tool::GoCalls => {
                (&[("calls.go", include_str!("../peers/go-calls/main.go"))], "go-calls-peer")
            }
            Tool::Java => (&[("Peer.java", include_str!("../peers/java/Peer.java"))], "Peer.class"),
            Tool::Glommio => (
                &[
                    ("glommio/Cargo.toml", include_str!("../peers/glommio/manifest.toml")),
                    ("glommio/Cargo.lock", include_str!("../peers/glommio/Cargo.lock")),
                    ("glommio/main.rs", include_str!("../peers/glommio/main.rs")),
                ],
                "glommio/target/release/glommio-peer",
            ),
            Tool::Seastar => {
                (&[("seastar.cpp", include_str!("../peers/seastar/main.cpp"))], "seastar-peer")
            }
        };
        Some(Source { files, made })
    }

    fn compiler(self, source: &Path, made: &Path, folder: &Path) -> Command {
        let mut command;
        match self {
            Tool::Tbb | Tool::Rust => {
                command = Command::new("g++");
                command.args(["-std=c++20", "-O3", "-pthread"]).arg(source);
                command.arg("-o").arg(made).arg("-ltbb");
            }
            Tool::Go | Tool::GoCalls => {
                command = Command::new("go");
                command.args(["build", "-o"]).arg(made).arg(source).env("GOTOOLCHAIN", "local");
                command.env_remove("GOFLAGS");
            }
            Tool::Java => {
                command = Command::new("javac");
                command.arg("-d").arg(folder).arg(source);
            }
            Tool::Glommio => {
                command = Command::new("cargo");
                command.args(["build", "--release", "--locked", "--manifest-path"]).arg(source);
                command.arg("--target-dir").arg(folder.join("glommio/target"));
            }
            Tool::Seastar => {
                // The library says by itself what a program needs.
                let build = "flags=$(pkg-config --cflags --libs --static seastar) || exit 1; \
                             exec g++ -std=c++20 -O3 \"$1\" -o \"$2\" $flags";
                command = Command::new("sh");
                command.args(["-c", build, "g++"]).arg(source).arg(made);
            }
        }
        command
    }

    fn program(self, made: PathBuf, folder: &Path) -> Program {
        if self != Tool::Java {
            return Program::new(made);
        }
        // The collector that is meant for throughput, and a heap that needn't grow meanwhile.
        let mut java = Program::new("java");
        for argument in ["-XX:+UseParallelGC", "-Xms1g", "-Xmx1g", "-cp"] {
            java = java.argument(argument);
        }
        java.argument(folder).argument("Peer")
    }

    /// How to get what is missing.
    fn remedy(self) -> &'static str {
        match self {
            Tool::Rust => "",
            Tool::Tbb => "on Debian: apt install g++ libtbb-dev",
            Tool::Go | Tool::GoCalls => {
                "Go 1.22 or newer, with `go` in the PATH; on Debian: apt install golang-go"
            }
            Tool::Java => "JDK 17 or newer; on Debian: apt install openjdk-17-jdk-headless",
            Tool::Glommio => "it needs cargo, a C compiler, and glommio from the registry",
            Tool::Seastar => "Debian has no package; it is used where pkg-config finds `seastar`",
        }
    }

    /// The program, built if it isn't yet or was built from other source; or why it can't be had,
    /// and how to get it. This one runs a job of `bench`.
    pub(crate) fn build(self, bench: &str, folder: &Path) -> Result<Program, String> {
        let Some(Source { files, made }) = self.source() else {
            let own = std::env::current_exe().map_err(|error| error.to_string())?;
            return Ok(Program::new(own).argument("run").argument(bench));
        };
        let (source, made) = (folder.join(files[0].0), folder.join(made));
        if !is_current(folder, files, &made) {
            eprintln!("{self:?}: its program is built, at first use");
            let built = write(folder, files, &made)
                .and_then(|()| compile(self.compiler(&source, &made, folder)));
            built.map_err(|why| format!("{why} ({})", self.remedy()))?;
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

/// Puts the source there, and takes away what was made of another one: a failure leaves nothing
/// that could be taken for its product.
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

fn compile(mut compiler: Command) -> Result<(), String> {
    let name = compiler.get_program().to_string_lossy().into_owned();
    match compiler.stdin(Stdio::null()).output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(format!("there is no {name}")),
        Err(error) => Err(format!("{name} can't be started: {error}")),
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let telling = said.lines().find(|line| line.contains("error")).or(said.lines().next());
            Err(format!("{name} failed: {}", telling.unwrap_or("it said nothing")))
        }
    }
}

/// Where the programs are built: beside this one, so in cargo's target folder.
pub(crate) fn folder() -> io::Result<PathBuf> {
    let own = std::env::current_exe()?;
    Ok(own.parent().unwrap_or(Path::new(".")).join("bench-peers-programs"))
}

/// The name under which the loader finds mimalloc: what `LD_PRELOAD` is set to.
pub(crate) const MIMALLOC: &str = "libmimalloc.so.2";

/// Whether it does find it; else why not, and how to get it.
pub(crate) fn mimalloc() -> Result<(), String> {
    let tried = Command::new("true").env("LD_PRELOAD", MIMALLOC).output();
    match tried {
        // The loader says so where it doesn't, and goes on without.
        Ok(output) if output.stderr.is_empty() => Ok(()),
        _ => Err(format!("there is no {MIMALLOC} (on Debian: apt install libmimalloc2.0)")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_of_other_source_is_made_anew() {
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
        let none = compile(Command::new("no-such-compiler-here")).unwrap_err();
        assert!(none.contains("there is no no-such-compiler-here"), "{none}");
        let mut failing = Command::new("sh");
        failing.args(["-c", "echo warning >&2; echo 'x.h: error: none' >&2; exit 1"]);
        let failed = compile(failing).unwrap_err();
        assert_eq!(failed, "sh failed: x.h: error: none");
        for tool in Tool::ALL.into_iter().filter(|&tool| tool != Tool::Rust) {
            let remedy = tool.remedy();
            assert!(
                remedy.contains("apt install")
                    || remedy.contains("needs")
                    || remedy.contains("no package")
            );
        }
    }
}
