//! Makes the tables of results in Markdown files anew, from the records that they name:
//! `cargo run -p corewise-bench --example fill_tables -- docs/benchmarks.md README.md`.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::path::Path;
use std::process::ExitCode;

use corewise_bench::report::markdown;

fn main() -> ExitCode {
    let files: Vec<String> = std::env::args().skip(1).collect();
    if files.is_empty() {
        eprintln!("Usage: fill_tables FILE.md...");
        return ExitCode::from(2);
    }
    for file in files {
        if let Err(problem) = fill(Path::new(&file)) {
            eprintln!("{file}: {problem}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn fill(file: &Path) -> Result<(), String> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string())?;
    let filled = markdown::fill(&text, |name| markdown::read_beside(file, name))?;
    if filled == text {
        println!("{}: nothing to do", file.display());
        return Ok(());
    }
    std::fs::write(file, filled).map_err(|error| error.to_string())?;
    println!("{}: filled", file.display());
    Ok(())
}
