//! The programs in Go: built once per test binary, or those in `NETCLAIM_LIBCNI`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Go module of the programs, from the crates' directories.
const MODULE: &str = "../driver/tests/libcni";

/// A program of the module: `libcni`, `recorder`, `links`, and the tools of its `go.mod`.
pub fn tool(name: &str) -> PathBuf {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| std::env::var_os("NETCLAIM_LIBCNI").map_or_else(build, PathBuf::from)).join(name)
}

/// Builds the programs, if they are not. A thread calls it before it has a network namespace of its own, from
/// which no modules can be downloaded.
pub fn build_all() {
    tool("");
}

fn build() -> PathBuf {
    // Several crates' tests may build at once, and cargo gives them one directory.
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(concat!("libcni-", env!("CARGO_PKG_NAME")));
    std::fs::create_dir_all(&dir).unwrap();
    let built = Command::new("go")
        .args(["build", "-mod=readonly", "-trimpath", "-o"])
        .arg(dir.join(""))
        .args([".", "./recorder", "./links", "tool"])
        .env("CGO_ENABLED", "0")
        .env("GOWORK", "off")
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(MODULE))
        .status();
    assert!(built.expect("needs Go, or NETCLAIM_LIBCNI").success(), "go build failed");
    dir
}
