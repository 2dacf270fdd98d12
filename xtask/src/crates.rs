//! The library crates as their users take them: packed for a registry, with few features, and with
//! a separate lock file.

use std::path::Path;

use crate::run::Run;
use crate::{oldest, workspace};

/// Packages of Corewise's tests, which the lock file of a library's user must not contain.
const OF_TESTS: [&str; 3] = ["corewise-sim", "loom", "shuttle"];

/// Packages that the lock file of a user of the workqueue alone must not contain either.
const OF_OTHERS: [&str; 6] =
    ["corewise-kernel-log", "corewise-timeline", "flate2", "quick-xml", "serde", "toml"];

/// Packs each library crate, compiles the facade with each feature alone by the oldest supported
/// compiler, and checks users' lock files. A long run also builds each crate from its package, and
/// compiles the program with that compiler.
///
/// # Errors
///
/// Fails if one of these fails, or if a user's lock file has a package that it shouldn't.
pub(crate) fn check(run: &mut Run) -> Result<(), String> {
    // The packing runs offline.
    run.cargo(&["fetch", "--locked"], |_| {})?;
    let libraries = workspace::libraries(run.root())?;
    let mut args = vec!["package", "--quiet", "--locked", "--offline", "--allow-dirty"];
    for (library, _) in &libraries {
        args.extend(["-p", library]);
    }
    if !run.is_long() {
        args.push("--no-verify");
    }
    run.cargo(&args, |_| {})?;
    run.count_passed();

    let (compiler, release) = oldest::compiler(run)?;
    if compiler.is_none() {
        run.say(&format!(
            "Rust {release} isn't here: `rustup toolchain install {release}`. Taking the current one instead"
        ));
        run.count_skipped();
    }
    let target = run.target().join("oldest");
    let compile = |run: &mut Run, what: &[&str]| {
        run.cargo(&[&["check", "--locked"][..], what].concat(), |command| {
            // None of these builds is ever run.
            command.env("CARGO_PROFILE_DEV_DEBUG", "0").env("CARGO_TARGET_DIR", &target);
            if let Some(rustc) = &compiler {
                command.env("RUSTC", rustc);
            }
        })?;
        run.count_passed();
        Ok::<_, String>(())
    };
    let facade = run.root().join("crates/corewise/Cargo.toml");
    for feature in workspace::features(&facade)?.iter().filter(|feature| *feature != "default") {
        compile(run, &["-p", "corewise", "--no-default-features", "--features", feature])?;
    }
    compile(run, &["-p", "corewise-costs", "-p", "corewise-sim"])?;
    if run.is_long() {
        compile(run, &["-p", "corewise-cli"])?;
    }

    for (library, folder) in &libraries {
        let unwanted = match library.as_str() {
            "corewise-sim" => continue,
            "corewise-workqueue" => [&OF_TESTS[..], &OF_OTHERS].concat(),
            _ => OF_TESTS.to_vec(),
        };
        let locked = lock_file_of_user(run, library, folder)?;
        let found: Vec<_> = unwanted.iter().filter(|name| has(&locked, name)).collect();
        if !found.is_empty() {
            return Err(format!(
                "a program that takes {library} gets {found:?} into its lock file: make the dependency optional"
            ));
        }
        run.say(&format!("{library} adds {} entries to a lock file", entries(&locked) - 1));
        run.count_passed();
    }
    Ok(())
}

/// Returns the lock file of a program that takes one library, by its path. Versions are those of
/// the workspace.
fn lock_file_of_user(run: &mut Run, library: &str, folder: &Path) -> Result<String, String> {
    let user = run.target().join("user").join(library);
    let failed = |e: std::io::Error| format!("cannot make a program at {}: {e}", user.display());
    std::fs::create_dir_all(user.join("src")).map_err(failed)?;
    std::fs::write(user.join("src/main.rs"), "fn main() {}\n").map_err(failed)?;
    let manifest = format!(
        "[package]\nname = \"user\"\nedition = \"2024\"\n\n[dependencies]\n{library} = {{ path = {folder:?} }}\n\n[workspace]\n"
    );
    std::fs::write(user.join("Cargo.toml"), manifest).map_err(failed)?;
    std::fs::copy(run.root().join("Cargo.lock"), user.join("Cargo.lock")).map_err(failed)?;
    // Removes the packages that this program doesn't need from the lock file.
    let manifest = user.join("Cargo.toml").display().to_string();
    run.cargo(
        &["update", "--quiet", "--offline", "--workspace", "--manifest-path", &manifest],
        |_| {},
    )?;
    std::fs::read_to_string(user.join("Cargo.lock")).map_err(failed)
}

fn has(lock_file: &str, name: &str) -> bool {
    lock_file.lines().any(|line| line == format!("name = \"{name}\""))
}

fn entries(lock_file: &str) -> usize {
    lock_file.lines().filter(|line| *line == "[[package]]").count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_file_has_what_it_names_and_no_more() {
        let lock = "[[package]]\nname = \"loom\"\n\n[[package]]\nname = \"serde_json\"\ndependencies = [\n \"serde\",\n]\n";
        assert!(has(lock, "loom") && !has(lock, "serde") && !has(lock, "json"));
        assert_eq!(entries(lock), 2);
    }

    #[test]
    fn the_lists_name_crates_that_the_project_has() {
        let root = workspace::root().unwrap();
        let lock = std::fs::read_to_string(root.join("Cargo.lock")).unwrap();
        for name in OF_TESTS.iter().chain(&OF_OTHERS) {
            assert!(has(&lock, name), "{name} isn't in Cargo.lock: look for something else");
        }
    }
}
