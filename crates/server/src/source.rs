//! The sources of a manifest: a file, stdin, or the program itself. Each kind of file has a maximum
//! size, so the server refuses a disk named by mistake instead of reading it into memory.

use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::error::Error;
use crate::units;

/// The longest manifest, in bytes. A manifest of a hundred thousand devices is shorter.
const LONGEST: u64 = 64 << 20;

/// The built-in manifest.
const BUILT_IN: &str = include_str!("default.toml");

/// The text of a manifest, its name in messages, and the folder of its relative paths.
#[derive(Debug)]
pub struct Source {
    /// Text, in TOML.
    pub text: String,
    /// Name in messages.
    pub label: String,
    /// Folder in which relative paths begin. `None` stands for a temporary folder.
    pub base: Option<PathBuf>,
    /// File, which can be read again.
    pub file: Option<PathBuf>,
}

impl Source {
    /// Returns the built-in manifest: a few volumes in memory and in files of a temporary folder.
    pub fn built_in() -> Source {
        let label = "the built-in manifest".to_string();
        Source { text: BUILT_IN.to_string(), label, base: None, file: None }
    }

    /// Reads a plain file, for a running server. Refuses files that may block, or never end.
    pub(crate) fn read_plain(path: &Path) -> Result<Source, String> {
        let read = read_plain(path, LONGEST).map_err(SourceRefusal::Read);
        read.and_then(|bytes| Source::of_file(path, bytes)).map_err(|refusal| {
            let message = format!("cannot read the manifest '{}': {refusal}", path.display());
            match refusal.help() {
                Some(help) => format!("{message}\n  help: {help}"),
                None => message,
            }
        })
    }

    /// Reads a file, or stdin if the path is `-`.
    ///
    /// # Errors
    /// The file can't be read, or holds something other than text in UTF-8.
    pub fn read(path: &Path) -> Result<Source, Error> {
        let read = match path == Path::new("-") {
            true => Source::of_stdin(),
            false => open(path)
                .and_then(|file| read(file, LONGEST))
                .map_err(SourceRefusal::Read)
                .and_then(|bytes| Source::of_file(path, bytes)),
        };
        read.map_err(|refusal| {
            let what = format!("cannot read the manifest '{}': {refusal}", path.display());
            let failure = Error::new(what);
            match (&refusal, refusal.help()) {
                (SourceRefusal::Read(ReadError::Io(error)), _)
                    if error.kind() == ErrorKind::NotFound =>
                {
                    failure.with_help("`corewise up` without a manifest uses a built-in one")
                }
                (_, Some(help)) => failure.with_help(help),
                (_, None) => failure,
            }
        })
    }

    fn of_stdin() -> Result<Source, SourceRefusal> {
        let bytes = read(std::io::stdin(), LONGEST).map_err(SourceRefusal::Read)?;
        let base =
            std::env::current_dir().map_err(|error| SourceRefusal::Read(ReadError::Io(error)))?;
        Ok(Source { text: text(bytes)?, label: "stdin".to_string(), base: Some(base), file: None })
    }

    fn of_file(path: &Path, bytes: Vec<u8>) -> Result<Source, SourceRefusal> {
        let (text, label) = (text(bytes)?, path.display().to_string());
        // Absolute, since messages show the path of a socket to people in other folders.
        let path =
            std::path::absolute(path).map_err(|error| SourceRefusal::Read(ReadError::Io(error)))?;
        let base = path.parent().unwrap_or(Path::new("/")).to_path_buf();
        // A pipe gives its text once.
        let file = path.is_file().then_some(path);
        Ok(Source { text, label, base: Some(base), file })
    }
}

/// The reason why there is no manifest.
#[derive(Debug)]
enum SourceRefusal {
    Read(ReadError),
    /// Bytes of another kind of file.
    NoText,
    /// Text in UTF-16.
    Utf16,
}

impl SourceRefusal {
    /// Returns advice, if a disk, its image, a folder, or a text in another encoding was named in
    /// place of a manifest.
    fn help(&self) -> Option<&'static str> {
        let image = "to serve a disk or its image, name it in a manifest: driver = \"file\", \
                     path = \"disk.img\"; `corewise up --help` shows one";
        match self {
            SourceRefusal::Read(ReadError::Io(error)) => (error.kind() == ErrorKind::IsADirectory)
                .then_some("name the manifest in that folder, such as FOLDER/up.toml"),
            SourceRefusal::Utf16 => Some("save it as UTF-8"),
            SourceRefusal::Read(_) | SourceRefusal::NoText => Some(image),
        }
    }
}

impl fmt::Display for SourceRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SourceRefusal::Read(ReadError::TooLong(most)) => {
                write!(f, "the file is too long: a manifest has at most {}", units::size(*most))
            }
            SourceRefusal::Read(why) => why.fmt(f),
            SourceRefusal::NoText => f.write_str("a manifest is text in UTF-8, and this is not"),
            SourceRefusal::Utf16 => f.write_str("a manifest is text in UTF-8, and this is UTF-16"),
        }
    }
}

/// Opens a manifest, which may come through a pipe. A disk, and a file that is too long, are
/// refused before their bytes are read.
fn open(path: &Path) -> Result<File, ReadError> {
    let meta = path.metadata().map_err(ReadError::Io)?;
    if meta.file_type().is_block_device() {
        return Err(ReadError::NotPlain);
    }
    if meta.is_file() && meta.len() > LONGEST {
        return Err(ReadError::TooLong(LONGEST));
    }
    File::open(path).map_err(ReadError::Io)
}

/// Returns the text that these bytes encode. TOML has no NUL, and most images begin with some.
fn text(bytes: Vec<u8>) -> Result<String, SourceRefusal> {
    // The byte order mark, which isn't UTF-8.
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err(SourceRefusal::Utf16);
    }
    let text = String::from_utf8(bytes).map_err(|_| SourceRefusal::NoText)?;
    if text.contains('\0') { Err(SourceRefusal::NoText) } else { Ok(text) }
}

/// The longest certificate or key, in bytes. Bundles of all public authorities have a quarter of
/// it.
pub const LONGEST_PEM: u64 = 1 << 20;

/// The reason why a file wasn't read.
#[derive(Debug)]
pub enum ReadError {
    /// Error of the system.
    Io(io::Error),
    /// A pipe, a socket or a device, where a plain file is wanted.
    NotPlain,
    /// Longer than this many bytes.
    TooLong(u64),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Io(error) => error.fmt(f),
            ReadError::NotPlain => f.write_str("this is not a plain file"),
            ReadError::TooLong(most) => write!(f, "the file has more than {}", units::size(*most)),
        }
    }
}

/// Reads a plain file of at most `most` bytes. Blocks on the disk, but never on a pipe without a
/// writer.
pub(crate) fn read_plain(path: &Path, most: u64) -> Result<Vec<u8>, ReadError> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    let file = File::from(opened.map_err(|error| ReadError::Io(error.into()))?);
    let meta = file.metadata().map_err(ReadError::Io)?;
    match meta.is_file() {
        false => Err(ReadError::NotPlain),
        true if meta.len() > most => Err(ReadError::TooLong(most)),
        true => read(file, most),
    }
}

/// Reads a file of any kind, such as a pipe, of at most `most` bytes.
pub fn read_any(path: &Path, most: u64) -> Result<Vec<u8>, ReadError> {
    read(File::open(path).map_err(ReadError::Io)?, most)
}

/// Reads a source to its end, which must come within `most` bytes.
pub fn read(source: impl Read, most: u64) -> Result<Vec<u8>, ReadError> {
    let mut bytes = Vec::new();
    source.take(most + 1).read_to_end(&mut bytes).map_err(ReadError::Io)?;
    if bytes.len() as u64 > most { Err(ReadError::TooLong(most)) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest;

    #[test]
    fn the_built_in_manifest_has_no_problem_and_a_real_dependency_graph() {
        let resolved = manifest::read(&Source::built_in().text, Path::new("/tmp/x"));
        assert_eq!(resolved.problems, []);
        assert!(resolved.manifest.devices.iter().any(|d| d.suppliers.len() > 1));
        assert!(!resolved.manifest.exports.is_empty());
    }

    #[test]
    fn relative_paths_begin_in_the_manifests_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.toml");
        std::fs::write(&path, "text").unwrap();
        let source = Source::read(&path).unwrap();
        assert_eq!(source.base.as_deref(), Some(folder.path()));
        assert_eq!(source.text, "text");
    }

    #[test]
    fn a_text_in_utf_16_and_a_folder_are_answered_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.toml");
        let refusal = |path: &Path| {
            let error = Source::read(path).unwrap_err();
            (error.message().to_string(), error.help().unwrap().to_string())
        };
        for order in [u16::to_le_bytes, u16::to_be_bytes] {
            let text: Vec<u8> = "\u{feff}[server]".encode_utf16().flat_map(order).collect();
            std::fs::write(&path, text).unwrap();
            let (message, help) = refusal(&path);
            assert!(message.ends_with("this is UTF-16") && help == "save it as UTF-8", "{message}");
        }
        let (message, help) = refusal(folder.path());
        assert!(message.contains("Is a directory") && help.contains("FOLDER/up.toml"), "{message}");
    }

    #[test]
    fn an_image_in_place_of_a_manifest_is_answered_with_what_serves_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        let file = File::create(&path).unwrap();
        for (len, says) in [
            (8 << 30, "cannot read the manifest"),
            (8 << 30, "at most 64 MiB"),
            (1 << 20, "a manifest is text in UTF-8"),
        ] {
            file.set_len(len).unwrap();
            let told = Source::read_plain(&path).unwrap_err();
            assert!(told.contains(says) && told.contains("driver = \"file\""), "{told}");
            let error = Source::read(&path).unwrap_err();
            assert!(error.message().contains(says), "{error}");
            assert!(error.help().unwrap().contains("driver = \"file\""), "{error}");
        }
        std::fs::write(&path, [0xff; 10]).unwrap();
        assert!(Source::read_plain(&path).unwrap_err().contains("a manifest is text in UTF-8"));
        let told = Source::read_plain(Path::new("/dev/zero")).unwrap_err();
        assert!(told.contains("not a plain file"), "{told}");
    }

    #[test]
    fn a_file_is_read_up_to_its_limit_and_what_is_no_file_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, [7; 100]).unwrap();
        assert_eq!(read_plain(&path, 100).unwrap(), [7; 100]);
        assert!(matches!(read_plain(&path, 99), Err(ReadError::TooLong(99))));
        let fifo = folder.path().join("fifo");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).unwrap();
        for other in [&fifo, folder.path(), Path::new("/dev/zero")] {
            assert!(matches!(read_plain(other, 100), Err(ReadError::NotPlain)), "{other:?}");
        }
        assert!(matches!(read_any(Path::new("/dev/zero"), 100), Err(ReadError::TooLong(100))));
        assert!(matches!(read_plain(&folder.path().join("y"), 1), Err(ReadError::Io(_))));
        assert!(matches!(read(io::repeat(0), 100), Err(ReadError::TooLong(100))));
    }
}
