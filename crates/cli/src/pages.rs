//! Man pages and completions of shells, from the one definition of the flags.

use std::io::Write as _;

use crate::args;
use crate::exit::Failure;
use crate::usage;

/// Prints the completions of a shell.
pub(crate) fn completions(args: &args::Completions) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut usage::command(), "corewise", &mut script);
    std::io::stdout()
        .write_all(&script)
        .map_err(|error| Failure::new(format!("cannot write to stdout: {error}")))
}

/// Writes a page of section 1 for the program and for each of its commands.
pub(crate) fn man(args: &args::Man) -> Result<(), Failure> {
    let folder = args.folder.display();
    std::fs::create_dir_all(&args.folder)
        .and_then(|()| clap_mangen::generate_to(usage::command(), &args.folder))
        .map_err(|error| Failure::new(format!("cannot write the pages to '{folder}': {error}")))
}
