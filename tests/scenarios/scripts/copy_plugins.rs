//! `copy-plugins` of the image of CNI plugins.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

/// The program, and folders that it copies from and to.
struct Copy {
    dir: TempDir,
    program: PathBuf,
}

impl Copy {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("copy-plugins");
        let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/plugins");
        let mut build = Command::new("go");
        build.args(["build", "-mod=readonly", "-buildvcs=false", "-o"]).arg(&program).arg("./copy-plugins");
        build.current_dir(sources).env("CGO_ENABLED", "0").env("GOWORK", "off");
        assert!(build.status().unwrap().success(), "this test needs Go");
        for folder in ["from", "to"] {
            fs::create_dir(dir.path().join(folder)).unwrap();
        }
        Self { dir, program }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn write(&self, path: &str, text: &str, mode: u32) {
        fs::write(self.path(path), text).unwrap();
        fs::set_permissions(self.path(path), Permissions::from_mode(mode)).unwrap();
    }

    /// Runs it; returns what it prints on success, or its error.
    fn run(&self, command: &mut Command) -> Result<String, String> {
        let output = command.arg(self.path("from/.")).arg(self.path("to")).output().unwrap();
        let text =
            |bytes| String::from_utf8(bytes).unwrap().replace(&self.dir.path().display().to_string(), "");
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    fn copy(&self) -> Result<String, String> {
        self.run(&mut Command::new(&self.program))
    }

    /// What is in the folder that it copies to: names, contents and modes.
    fn copied(&self) -> Vec<(String, String, u32)> {
        let entries = fs::read_dir(self.path("to")).unwrap().map(|entry| entry.unwrap());
        let mut found: Vec<_> = entries
            .map(|entry| {
                let name = entry.file_name().into_string().unwrap();
                (name, fs::read_to_string(entry.path()).unwrap(), entry.metadata().unwrap().mode())
            })
            .collect();
        found.sort();
        found
    }
}

#[test]
#[ignore = "needs Go"]
fn programs_are_copied_and_nothing_else() {
    let copy = Copy::new();
    copy.write("from/macvlan", "macvlan 2", 0o4711);
    copy.write("from/README.md", "not a plugin", 0o644);
    fs::create_dir_all(copy.path("from/folder")).unwrap();
    copy.write("from/folder/inner", "not in the folder itself", 0o755);
    copy.write("elsewhere", "many plugins in one", 0o755);
    symlink("../elsewhere", copy.path("from/bridge")).unwrap();
    symlink(copy.path("elsewhere"), copy.path("from/ptp")).unwrap();
    symlink("folder", copy.path("from/link-to-a-folder")).unwrap();
    copy.write("to/.copy-plugins", "half a pl", 0o600);
    copy.write("to/macvlan", "macvlan 1", 0o700);
    copy.write("to/kept", "of another program", 0o600);
    for _ in 0..2 {
        let said = copy.copy().unwrap();
        assert_eq!(said, "copied 3 CNI plugins from /from to /to: bridge macvlan ptp\n");
        let expected = [
            ("bridge", "many plugins in one", 0o100_755),
            ("kept", "of another program", 0o100_600),
            ("macvlan", "macvlan 2", 0o100_755),
            ("ptp", "many plugins in one", 0o100_755),
        ];
        assert_eq!(copy.copied(), expected.map(|(name, text, mode)| (name.into(), text.into(), mode)));
        let inode = |name: &str| fs::metadata(copy.path("to").join(name)).unwrap().ino();
        assert_eq!(inode("bridge"), inode("ptp"), "a program with many names takes its space once");
    }
}

#[test]
#[ignore = "needs Go, and root for a file system without programs"]
fn a_copy_that_fails_says_what_is_wrong() {
    type Prepare = fn(&Copy);
    let cases: [(Prepare, &str); 6] = [
        (|copy| fs::remove_dir(copy.path("from")).unwrap(), "this image has no folder /from: name the one"),
        (
            |copy| copy.write("from/LICENSE", "", 0o644),
            "the folder /from of this image has no executable files",
        ),
        (
            |copy| symlink("/nowhere", copy.path("from/bridge")).unwrap(),
            "the symbolic link /from/bridge leads to nothing in this image",
        ),
        (
            |copy| symlink("bridge", copy.path("from/bridge")).unwrap(),
            "cannot follow the symbolic link /from/bridge: EvalSymlinks: too many links",
        ),
        (
            |copy| {
                copy.write("from/bridge", "", 0o755);
                fs::remove_dir(copy.path("to")).unwrap();
            },
            "cannot copy the plugin /from/bridge: open /to/.copy-plugins: no such file or directory",
        ),
        (
            |copy| {
                copy.write("from/bridge", "", 0o755);
                fs::create_dir(copy.path("to/bridge")).unwrap();
            },
            "cannot copy the plugin /from/bridge: rename /to/.copy-plugins /to/bridge: file exists",
        ),
    ];
    for (prepare, expected) in cases {
        let copy = Copy::new();
        prepare(&copy);
        let error = copy.copy().unwrap_err();
        assert!(error.starts_with(&format!("copy-plugins: {expected}")), "{error}");
    }

    let copy = Copy::new();
    copy.write("from/bridge", "", 0o755);
    let mut without_programs = Command::new("unshare");
    let script = "mount -t tmpfs -o noexec none \"$2\" && exec \"$0\" \"$@\"";
    without_programs.args(["--mount", "sh", "-c", script]);
    let error = copy.run(without_programs.arg(&copy.program)).unwrap_err();
    assert!(
        error.contains("/to/bridge cannot be executed, perhaps because its file system is mounted noexec"),
        "{error}"
    );
    let usage = Command::new(&copy.program).output().unwrap();
    assert_eq!(usage.status.code(), Some(2));
    assert!(usage.stderr.starts_with(b"usage: copy-plugins FROM TO"));
}
