//! The committed keys of the reference plugins are those of the release that the tests run. `make generate`
//! writes them again; what they are compared with is in `src/validate/plugins.rs`.
#![allow(missing_docs, clippy::expect_used, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

fn go(directory: &Path, args: &[&str]) -> String {
    let output = Command::new("go")
        .args(args)
        .current_dir(directory)
        .stderr(Stdio::inherit())
        .output()
        .expect("needs Go in the PATH");
    assert!(output.status.success(), "go {args:?} failed");
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
#[ignore = "needs Go and the plugins' source, which it downloads"]
fn the_keys_of_the_reference_plugins_are_fresh() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let runtime = tests.join("../../tests/node/runtime");
    let source = |module: &str| {
        let found =
            go(&runtime, &["mod", "download", "-json", &format!("github.com/containernetworking/{module}")]);
        let found: Value = serde_json::from_str(&found).expect("JSON");
        PathBuf::from(found["Dir"].as_str().expect("a directory"))
    };
    let [plugins, cni] = ["plugins", "cni"].map(|module| source(module).to_string_lossy().into_owned());
    let keys = go(&tests.join("plugin-keys"), &["run", "main.go", &plugins, &cni]);

    let file = tests.join("plugin-keys.json");
    if std::env::var_os("NETCLAIM_GENERATE").is_some() {
        std::fs::write(&file, &keys).expect("writable");
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        committed == keys,
        "cni/tests/plugin-keys.json is stale: run `make generate` and commit the result"
    );
}
