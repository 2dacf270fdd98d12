//! Man pages and completions: of the real program, by the programs that read them.
#![allow(missing_docs, clippy::unwrap_used)]

use crate::common::Folder;

#[test]
fn each_command_has_a_man_page_that_groff_takes_without_a_warning() {
    let folder = Folder::new();
    folder.corewise(["man", "pages"]).ok();
    let pages: Vec<_> = folder.list().into_iter().filter(|name| name.ends_with(".1")).collect();
    for wanted in ["corewise", "corewise-up", "corewise-reload", "corewise-attach", "corewise-man"]
    {
        assert!(pages.contains(&format!("pages/{wanted}.1")), "{wanted}: {pages:?}");
    }
    let ran = folder.client("groff", [&["-man", "-Tutf8", "-ww"], &strs(&pages)[..]].concat()).ok();
    assert_eq!(ran.stderr, "", "{ran}");
    ran.says(&["SIGTERM", "Exit", "export"]);
}

fn strs(all: &[String]) -> Vec<&str> {
    all.iter().map(String::as_str).collect()
}

#[test]
fn bash_completes_commands_flags_and_values() {
    let folder = Folder::new();
    for shell in ["zsh", "fish"] {
        folder.corewise(["completions", shell]).ok().says(&["corewise", "shutdown-timeout"]);
    }
    folder.write("c", folder.corewise(["completions", "bash"]).ok().stdout);
    let ask = |words: &str, word: &str, before: &str| {
        let script = format!(
            "source ./c; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); \
             _corewise corewise '{word}' '{before}'; echo \"${{COMPREPLY[@]}}\""
        );
        folder.client("bash", ["-c", &script]).ok().stdout.trim().to_string()
    };
    assert_eq!(ask("corewise rel", "rel", "corewise"), "reload");
    assert_eq!(ask("corewise up --shut", "--shut", "up"), "--shutdown-timeout");
    assert_eq!(ask("corewise up --on-hang ''", "", "--on-hang"), "wait skip give-up");
}
