//! `cargo xtask deb`: builds the Debian package of the program, by `dpkg-deb` over a tree that is
//! laid out here.
//!
//! cargo-deb would do, but takes minutes to build, and as many lines of configuration.

use crate::programs;
use crate::run::Run;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAMS: &[programs::Program] = &[
    ("dpkg-deb", "dpkg"),
    ("dpkg-shlibdeps", "dpkg-dev"),
    ("strip", "binutils"),
    ("gzip", "gzip"),
    // docs/manifest.md is the text of corewise.toml(5).
    ("lowdown", "lowdown"),
];

/// The units of the package.
const UNITS: [&str; 3] = ["corewise@.service", "corewise@.socket", "corewise-attach@.service"];

/// Builds the package of this program in the target folder, and returns its path.
///
/// # Errors
///
/// Fails with the reason if a file is missing or a command fails.
pub(crate) fn build(run: &mut Run, program: &Path) -> Result<PathBuf, String> {
    programs::ensure(PROGRAMS, |command| run.command(command))?;
    let work = run.target().join("deb");
    let _ = fs::remove_dir_all(&work);
    let tree = Tree { root: work.join("tree"), sources: run.root().to_path_buf() };

    tree.write("usr/bin/corewise", &read(program)?, 0o755)?;
    run.command(
        Command::new("strip").arg("--strip-unneeded").arg(tree.root.join("usr/bin/corewise")),
    )?;
    let pages = tree.root.join("usr/share/man/man1");
    run.command(Command::new(program).arg("man").arg(&pages))?;
    let fifth = tree.root.join("usr/share/man/man5/corewise.toml.5");
    tree.write("usr/share/man/man5/corewise.toml.5", b"", 0o644)?;
    let manifest = tree.sources.join("docs/manifest.md");
    run.command(
        Command::new("lowdown")
            .args(["-s", "-Tman", "-Mtitle=corewise.toml", "-Msection=5", "-o"])
            .args([&fifth, &manifest]),
    )?;
    for folder in [&pages, &tree.root.join("usr/share/man/man5")] {
        for page in fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))? {
            let page = page.map_err(|e| e.to_string())?.path();
            run.command(Command::new("gzip").args(["-9n"]).arg(&page))?;
        }
    }
    for (shell, place) in [
        ("bash", "usr/share/bash-completion/completions/corewise"),
        ("zsh", "usr/share/zsh/vendor-completions/_corewise"),
        ("fish", "usr/share/fish/vendor_completions.d/corewise.fish"),
    ] {
        let script = run.output(Command::new(program).args(["completions", shell]))?;
        tree.write(place, script.as_bytes(), 0o644)?;
    }
    for unit in UNITS {
        tree.copy(&format!("packaging/systemd/{unit}"), &format!("usr/lib/systemd/system/{unit}"))?;
    }
    tree.copy("packaging/deb/sysusers.conf", "usr/lib/sysusers.d/corewise.conf")?;
    tree.copy("packaging/deb/example.toml", "etc/corewise/example")?;
    tree.write("DEBIAN/conffiles", b"/etc/corewise/example\n", 0o644)?;
    tree.copy("packaging/deb/copyright", "usr/share/doc/corewise/copyright")?;
    for script in ["postinst", "prerm", "postrm"] {
        tree.write(
            &format!("DEBIAN/{script}"),
            &read(&tree.sources.join("packaging/deb").join(script))?,
            0o755,
        )?;
    }

    let version = env!("CARGO_PKG_VERSION");
    let changes = format!(
        "corewise ({version}) unstable; urgency=medium\n\n  * See the CHANGELOG.md of the sources.\n\n \
         -- The Corewise founders <corewise@localhost>  Fri, 27 Nov 2026 00:00:00 +0000\n"
    );
    tree.write("usr/share/doc/corewise/changelog", changes.as_bytes(), 0o644)?;
    run.command(
        Command::new("gzip").arg("-9n").arg(tree.root.join("usr/share/doc/corewise/changelog")),
    )?;

    let arch = run.output(Command::new("dpkg").arg("--print-architecture"))?;
    let arch = arch.trim();
    // The command looks for the folder debian of sources.
    let sources = Tree { root: work.join("sources"), sources: PathBuf::new() };
    let stub = format!(
        "Source: corewise\nMaintainer: x <x@localhost>\n\nPackage: corewise\nArchitecture: {arch}\n"
    );
    sources.write("debian/control", stub.as_bytes(), 0o644)?;
    run.command_in(
        &sources.root,
        Command::new("dpkg-shlibdeps").arg(tree.root.join("usr/bin/corewise")),
    )?;
    let needs = read(&sources.root.join("debian/substvars"))?;
    let needs = String::from_utf8_lossy(&needs);
    let needs = needs.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
    let needs = needs.ok_or("dpkg-shlibdeps names no library that the program needs")?;
    let control = read(&tree.sources.join("packaging/deb/control"))?;
    let control = String::from_utf8_lossy(&control)
        .replace("{version}", version)
        .replace("{arch}", arch)
        .replace("{needs}", needs);
    tree.write("DEBIAN/control", control.as_bytes(), 0o644)?;
    let package = run.target().join(format!("corewise_{version}_{arch}.deb"));
    // A short run discards the package, and its program is large.
    let compression: &[&str] = if run.is_long() { &[] } else { &["-Znone"] };
    run.command(
        Command::new("dpkg-deb")
            .args(["--root-owner-group"])
            .args(compression)
            .arg("--build")
            .args([&tree.root, &package]),
    )?;
    Ok(package)
}

/// Checks the package: it can be built, has its files, and its units are right. A long run also
/// uses it in a clean root and in a virtual machine.
pub(crate) fn check(run: &mut Run) -> Result<(), String> {
    let program = crate::steps::program(run)?;
    let package = build(run, &program)?;
    let list = run.output(Command::new("dpkg-deb").arg("-c").arg(&package))?;
    for wanted in [
        "./usr/bin/corewise",
        "./usr/share/man/man1/corewise-up.1.gz",
        "./usr/share/man/man5/corewise.toml.5.gz",
        "./usr/share/bash-completion/completions/corewise",
        "./usr/lib/systemd/system/corewise@.socket",
        "./usr/lib/systemd/system/corewise-attach@.service",
    ] {
        if !list.lines().any(|line| line.ends_with(wanted)) {
            return Err(format!("the package lacks {wanted}"));
        }
    }
    run.count_passed();
    units(run)?;
    if !run.is_long() {
        return Ok(());
    }
    let needed = ["mmdebstrap", "lintian", "mke2fs", "qemu-system-x86_64"];
    let missing = needed.into_iter().find(|name| programs::find(name).is_none());
    if let Some(missing) = missing.or((!programs::is_root()).then_some("root")) {
        run.say(&format!("skipped: a clean root to install into needs {missing} (apt-get install mmdebstrap lintian e2fsprogs qemu-system-x86)"));
        run.count_skipped();
        return Ok(());
    }
    // A first package has no bug number to close, and no address.
    let left = "initial-upload-closes-no-bugs,bogus-mail-host,bogus-mail-host-in-debian-changelog";
    run.command(
        Command::new("lintian")
            .args(["--allow-root", "--fail-on", "error", "--suppress-tags", left])
            .arg(&package),
    )?;
    clean_root(run, &package)?;
    run.count_passed();
    if cfg!(target_arch = "x86_64") {
        machine(run, &package)?;
        run.count_passed();
    }
    Ok(())
}

/// Checks that systemd understands the units, and that they are exposed to little.
fn units(run: &mut Run) -> Result<(), String> {
    if programs::find("systemd-analyze").is_none() {
        run.say(
            "skipped: systemd-analyze is missing, which checks the units (apt-get install systemd)",
        );
        run.count_skipped();
        return Ok(());
    }
    let tree = run.target().join("deb/tree");
    // systemd looks for the program, which isn't installed here.
    let here = tree.join("usr/bin/corewise").display().to_string();
    let units = Tree { root: run.target().join("deb/units"), sources: run.root().to_path_buf() };
    for name in UNITS {
        let unit = read(&tree.join("usr/lib/systemd/system").join(name))?;
        let unit = String::from_utf8_lossy(&unit).replace("/usr/bin/corewise", &here);
        units.write(name, unit.as_bytes(), 0o644)?;
    }
    let unit = |name: &str| units.root.join(name);
    let verify = ["verify", "--man=no"];
    let said = run.output(Command::new("systemd-analyze").args(verify).args(UNITS.map(unit)))?;
    if said.contains("corewise") {
        return Err("systemd-analyze finds something wrong with the units".to_string());
    }
    run.command(
        Command::new("systemd-analyze")
            .args(["security", "--offline=true", "--threshold=20"])
            .arg(unit("corewise@.service")),
    )?;
    run.count_passed();
    Ok(())
}

/// Installs, runs and removes the package in a root with nothing but Debian's base and the
/// package's dependencies.
fn clean_root(run: &mut Run, package: &Path) -> Result<(), String> {
    let root = debian(run, "systemd-standalone-sysusers", package)?;
    let script = read(&run.root().join("packaging/deb/try"))?;
    let script = String::from_utf8_lossy(&script).into_owned();
    run.command(Command::new("chroot").arg(&root).args(["sh", "-euxc", &script]))?;
    fs::remove_dir_all(&root).map_err(|e| format!("cannot remove {}: {e}", root.display()))
}

/// Boots a virtual machine whose systemd runs the units. This takes some four minutes on an
/// emulated processor.
fn machine(run: &mut Run, package: &Path) -> Result<(), String> {
    let include = "systemd,systemd-sysv,dbus,udev,kmod,linux-image-cloud-amd64,initramfs-tools,dmsetup,nbd-client,e2fsprogs,fish,zsh";
    let root = debian(run, include, package)?;
    let guest = Tree { root: root.clone(), sources: run.root().to_path_buf() };
    guest.write("boot.sh", &read(&run.root().join("packaging/deb/boot"))?, 0o755)?;
    // Jobs that the unit waits for must not wait for the unit.
    let unit = "[Unit]\nDefaultDependencies=no\nAfter=basic.target dbus.service\n\
                [Service]\nType=oneshot\nExecStart=/boot.sh\nTimeoutStartSec=infinity\n";
    guest.write("etc/systemd/system/boot.service", unit.as_bytes(), 0o644)?;
    guest.write("etc/fstab", b"/dev/vda / ext4 defaults 0 1\n", 0o644)?;
    let place = root.display();
    let disk = run.target().join("deb/disk");
    let _ = fs::remove_file(&disk);
    run.command(Command::new("sh").args(["-euxc", &format!(
        "ln -s ../boot.service {place}/etc/systemd/system/multi-user.target.wants/; \
         cp {place}/boot/vmlinuz-* {place}/../vmlinuz; cp {place}/boot/initrd.img-* {place}/../initrd; \
         mke2fs -q -t ext4 -d {place} {} 2G",
        disk.display()
    )]))?;
    let console = run.target().join("deb/console");
    let said = run.target().join("deb/said");
    run.command(
        Command::new("timeout")
            .args(["900", "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max"])
            .args(["-smp", "2", "-m", "1024", "-display", "none", "-no-reboot"])
            .arg("-kernel")
            .arg(run.target().join("deb/vmlinuz"))
            .arg("-initrd")
            .arg(run.target().join("deb/initrd"))
            .args(["-append", "console=ttyS0 root=/dev/vda rw quiet panic=-1 no_timer_check"])
            .args(["-serial", &format!("file:{}", console.display())])
            .args(["-serial", &format!("file:{}", said.display())])
            .args([
                "-drive",
                &format!("file={},if=virtio,format=raw,cache=unsafe", disk.display()),
            ]),
    )?;
    let said = String::from_utf8_lossy(&read(&said)?).into_owned();
    run.say(&said);
    if !said.lines().any(|line| line.trim() == "RESULT well") {
        return Err("the units don't do what they should in a virtual machine: see above".into());
    }
    fs::remove_dir_all(&root).map_err(|e| format!("cannot remove {}: {e}", root.display()))
}

/// Makes a new root of this machine's release of Debian, with the package in it, not installed.
fn debian(run: &mut Run, include: &str, package: &Path) -> Result<PathBuf, String> {
    let root = run.target().join("deb/root");
    let _ = fs::remove_dir_all(&root);
    let release = read(Path::new("/etc/os-release"))?;
    let release = String::from_utf8_lossy(&release).into_owned();
    let codename = release.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
    let codename = codename.ok_or("/etc/os-release names no VERSION_CODENAME")?;
    let mut make = Command::new("mmdebstrap");
    make.args(["--quiet", "--variant=apt", &format!("--include={include}"), codename]);
    make.arg(&root);
    let mut sources: Vec<PathBuf> = fs::read_dir("/etc/apt/sources.list.d")
        .map(|all| all.filter_map(|one| Some(one.ok()?.path())).collect())
        .unwrap_or_default();
    sources.push("/etc/apt/sources.list".into());
    let has = |path: &PathBuf| fs::metadata(path).is_ok_and(|meta| meta.len() > 0);
    run.command(make.args(sources.into_iter().filter(has)))?;
    fs::copy(package, root.join("corewise.deb")).map_err(|e| format!("{}: {e}", root.display()))?;
    Ok(root)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}

/// A folder that is laid out from the sources.
pub(crate) struct Tree {
    pub(crate) root: PathBuf,
    pub(crate) sources: PathBuf,
}

impl Tree {
    /// Writes a file of the tree, and makes its folders.
    pub(crate) fn write(&self, place: &str, content: &[u8], mode: u32) -> Result<(), String> {
        let path = self.root.join(place);
        let folder = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&path, content))
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(mode)))
            .map_err(|e| format!("cannot write {}: {e}", path.display()))
    }

    /// Copies a file of the sources into the tree.
    pub(crate) fn copy(&self, from: &str, to: &str) -> Result<(), String> {
        self.write(to, &read(&self.sources.join(from))?, 0o644)
    }
}
