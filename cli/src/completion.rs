//! Completion for shells: scripts, and the answers of kubectl's plugin.
//!
//! `kubectl netclaim …` is completed by kubectl. It runs a program named `kubectl_complete-netclaim` with the
//! words after `netclaim`, the last of which is the one to complete, and reads one candidate a line. The last
//! line has a number that says what the shell does with them (Cobra's `ShellCompDirective`).

use std::env;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap_complete::{Shell, engine, generate};

use crate::command;

/// Candidates are all there is: the shell does not add names of files (`ShellCompDirectiveNoFileComp`).
const NO_FILES: u8 = 4;

/// The shell adds no space, because more of the path follows (`ShellCompDirectiveNoSpace`).
const NO_SPACE: u8 = 2;

/// `netclaimctl completion`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell
    pub shell: Shell,
}

/// Prints the script.
pub fn run(args: &Args, out: &mut (dyn Write + Send)) -> ExitCode {
    let mut script = Vec::new();
    generate(args.shell, &mut command(), "netclaimctl", &mut script);
    // A reader that has closed the pipe has what it wants.
    let _ = out.write_all(&script);
    ExitCode::SUCCESS
}

/// Whether kubectl runs the program to complete a command line.
pub fn is_asked(program: impl AsRef<Path>) -> bool {
    program.as_ref().file_name().is_some_and(|name| name == "kubectl_complete-netclaim")
}

/// Returns the candidates for the last word of a command line, as kubectl reads them.
pub fn candidates(words: impl IntoIterator<Item = OsString>) -> String {
    let mut words: Vec<OsString> = std::iter::once("netclaimctl".into()).chain(words).collect();
    if words.len() == 1 {
        words.push(OsString::new());
    }
    let last = words.len() - 1;
    let is_flag = words.last().is_some_and(|word| word.to_string_lossy().starts_with('-'));
    let folder = env::current_dir().ok();
    let found = engine::complete(&mut command(), words, last, folder.as_deref()).unwrap_or_default();
    let (mut text, mut directive) = (String::new(), NO_FILES);
    for candidate in found {
        let value = candidate.get_value().to_string_lossy();
        // As kubectl, which shows flags to those who type a dash.
        if value.starts_with('-') && !is_flag {
            continue;
        }
        if value.ends_with('/') {
            directive |= NO_SPACE;
        }
        let help = candidate.get_help().map(ToString::to_string).unwrap_or_default();
        let help = help.lines().next().unwrap_or_default();
        text += &if help.is_empty() { format!("{value}\n") } else { format!("{value}\t{help}\n") };
    }
    format!("{text}:{directive}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completed(line: &[&str]) -> Vec<String> {
        let text = candidates(line.iter().map(OsString::from));
        text.lines().map(|line| line.split('\t').next().unwrap().to_owned()).collect()
    }

    #[test]
    fn kubectl_gets_commands_flags_and_values() {
        assert_eq!(completed(&["sta"]), ["status", ":4"]);
        assert_eq!(completed(&["explain", ""])[..2], ["pod", "claim"]);
        assert_eq!(completed(&["status", "--out"]), ["--output", ":4"]);
        assert_eq!(completed(&["status", "--output", ""])[..3], ["table", "json", "svg"]);
        assert_eq!(completed(&["attachments", "--output=w"]), ["--output=wide", ":4"]);
        assert_eq!(completed(&["nothing", "at", "all", "x"]), [":4"]);
        let all = completed(&[]);
        assert!(all.contains(&"status".to_owned()) && !all.contains(&"man".to_owned()), "{all:?}");
    }

    #[test]
    fn candidates_come_with_their_help() {
        let text = candidates(["explain".into(), "cl".into()]);
        assert_eq!(text, "claim\tSays why a ResourceClaim is not allocated, or what it has\n:4\n");
    }

    #[test]
    fn the_name_of_the_program_says_that_kubectl_asks() {
        assert!(is_asked("/usr/local/bin/kubectl_complete-netclaim"));
        assert!(!is_asked("/usr/local/bin/kubectl-netclaim"));
    }

    #[test]
    fn scripts_know_every_command() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            run(&Args { shell }, &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("attachments") && script.contains("netconf-path"), "{shell}: {script}");
        }
    }
}
