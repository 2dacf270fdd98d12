//! The programs that runs are made with: this one for Rust, and those in other languages, which are
//! built at first use beside it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use corewise_bench::process::Program;

/// Who runs a runtime's jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tool {
    /// This very program.
    Rust,
    /// oneTBB's, in C++.
    Tbb,
    Go,
    Java,
}

impl Tool {
    /// The source, the name of its file, and the name of what is made of it.
    fn source(self) -> Option<(&'static str, &'static str, &'static str)> {
        match self {
            Tool::Rust => None,
            Tool::Tbb => Some((include_str!("../../peers/tbb/main.cpp"), "tbb.cpp", "tbb")),
            Tool::Go => Some((include_str!("../../peers/go/main.go"), "main.go", "go-peer")),
            Tool::Java => {
                Some((include_str!("../../peers/java/Peer.java"), "Peer.java", "Peer.class"))
            }
        }
    }

    fn compiler(self, source: &Path, made: &Path, folder: &Path) -> Command {
        let mut command;
        match self {
            Tool::Tbb | Tool::Rust => {
                command = Command::new("g++");
                command.args(["-std=c++20", "-O3", "-pthread"]).arg(source);
                command.arg("-o").arg(made).arg("-ltbb");
            }
            Tool::Go => {
                command = Command::new("go");
                command.args(["build", "-o"]).arg(made).arg(source).env("GOTOOLCHAIN", "local");
                command.env_remove("GOFLAGS");
            }
            Tool::Java => {
                command = Command::new("javac");
                command.arg("-d").arg(folder).arg(source);
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
            Tool::Go => "Go 1.22 or newer, with `go` in the PATH; on Debian: apt install golang-go",
            Tool::Java => "JDK 17 or newer; on Debian: apt install openjdk-17-jdk-headless",
        }
    }

    /// The program, built if it isn't yet or was built from other source; or why it can't be had,
    /// and how to get it.
    pub(crate) fn build(self, folder: &Path) -> Result<Program, String> {
        let Some((text, file, made)) = self.source() else {
            let command = std::env::current_exe().map_err(|error| error.to_string())?;
            return Ok(Program::new(command).argument("run"));
        };
        let (source, made) = (folder.join(file), folder.join(made));
        if !is_current(&source, text, &made) {
            let built = write(folder, &source, &made, text)
                .and_then(|()| compile(self.compiler(&source, &made, folder)));
            built.map_err(|why| format!("{why} ({})", self.remedy()))?;
        }
        Ok(self.program(made, folder))
    }
}

fn is_current(source: &Path, text: &str, made: &Path) -> bool {
    made.exists() && fs::read_to_string(source).is_ok_and(|old| old == text)
}

/// Puts the source there, and takes away what was made of another one: a failure leaves nothing
/// that could be taken for its product.
fn write(folder: &Path, source: &Path, made: &Path, text: &str) -> Result<(), String> {
    let written = fs::create_dir_all(folder).and_then(|()| match fs::remove_file(made) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::write(source, text),
    });
    written.map_err(|error| format!("{} can't be written: {error}", source.display()))
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
        let (source, made) = (folder.join("a.txt"), folder.join("a"));
        assert!(!is_current(&source, "one", &made));
        write(&folder, &source, &made, "one").unwrap();
        assert!(!is_current(&source, "one", &made), "nothing was made of it yet");
        fs::write(&made, "made").unwrap();
        assert!(is_current(&source, "one", &made));
        assert!(!is_current(&source, "two", &made));
        write(&folder, &source, &made, "two").unwrap();
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
        for tool in [Tool::Tbb, Tool::Go, Tool::Java] {
            assert!(tool.remedy().contains("apt install"));
        }
    }
}
