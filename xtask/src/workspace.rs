//! The places of the workspace: the root, the target folder, the libraries.

use std::path::{Path, PathBuf};

/// Returns the root of the workspace that this program was built from.
pub(crate) fn root() -> Result<PathBuf, String> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.parent().ok_or_else(|| format!("{} has no parent", here.display()))?;
    // The clone may have moved after the build: cargo tells its present place.
    let root = match std::env::var_os("CARGO_MANIFEST_DIR") {
        Some(dir) => Path::new(&dir).parent().unwrap_or(root).to_path_buf(),
        None => root.to_path_buf(),
    };
    let manifest = root.join("Cargo.toml");
    if !manifest.is_file() {
        return Err(format!(
            "there is no {}; run this in a clone of the project",
            manifest.display()
        ));
    }
    Ok(root)
}

/// Returns the folder that holds everything that is built.
pub(crate) fn target(root: &Path) -> PathBuf {
    // A relative path counts from the folder in which cargo was started, as in cargo.
    std::env::var_os("CARGO_TARGET_DIR")
        .map(PathBuf::from)
        .and_then(|dir| std::path::absolute(dir).ok())
        .unwrap_or_else(|| root.join("target"))
}

/// Returns the packages below `crates` and `lab` that can be published, with their folders, sorted:
/// those that don't inherit the workspace's `publish`.
pub(crate) fn libraries(root: &Path) -> Result<Vec<(String, PathBuf)>, String> {
    let mut libraries = Vec::new();
    let folders = [entries(&root.join("crates"))?, entries(&root.join("lab"))?].concat();
    // Pages stand beside the packages.
    for folder in folders.into_iter().filter(|folder| folder.is_dir()) {
        let manifest = folder.join("Cargo.toml");
        if !read(&manifest)?.lines().any(|line| line == "publish.workspace = true") {
            libraries.push((package_name(&manifest)?, folder));
        }
    }
    libraries.sort();
    Ok(libraries)
}

/// Returns the features that a manifest declares.
pub(crate) fn features(manifest: &Path) -> Result<Vec<String>, String> {
    let text = read(manifest)?;
    let table = text.lines().skip_while(|line| *line != "[features]").skip(1);
    let features = table.take_while(|line| !line.starts_with('['));
    Ok(features.filter_map(|line| Some(line.split_once(" = [")?.0.to_owned())).collect())
}

fn read(file: &Path) -> Result<String, String> {
    std::fs::read_to_string(file).map_err(|e| format!("cannot read {}: {e}", file.display()))
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |e: std::io::Error| format!("cannot list {}: {e}", folder.display());
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        paths.push(entry.map_err(failed)?.path());
    }
    Ok(paths)
}

/// Returns the first `name = "…"` of a manifest, which in ours is the package's.
fn package_name(manifest: &Path) -> Result<String, String> {
    let text = read(manifest)?;
    text.lines()
        .find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'))
        .map(str::to_owned)
        .ok_or_else(|| format!("{} has no `name = \"…\"` line", manifest.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_the_folder_with_the_workspace_manifest() {
        let text = std::fs::read_to_string(root().unwrap().join("Cargo.toml")).unwrap();
        assert!(text.starts_with("[workspace]"));
    }

    #[test]
    fn the_libraries_are_told_from_programs_and_benchmarks() {
        let libraries = libraries(&root().unwrap()).unwrap();
        let names: Vec<_> = libraries.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names.len(), 17, "{names:?}");
        assert!(names.contains(&"corewise-workqueue") && !names.contains(&"corewise-bench"));
    }

    #[test]
    fn features_of_the_facade_are_found() {
        let features = features(&root().unwrap().join("crates/corewise/Cargo.toml")).unwrap();
        assert!(features.contains(&"workqueue".to_owned()), "{features:?}");
        assert!(!features.contains(&"tokio.workspace".to_owned()), "{features:?}");
    }
}
