//! The committed gRPC code is what the protocol file says. `make generate` writes it again.
#![allow(missing_docs, clippy::expect_used, reason = "tests")]

use std::fs;
use std::path::Path;

#[test]
fn the_generated_code_of_the_protocol_of_daemons_is_fresh() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let files = protox::compile(["plugin.proto"], [root.join("proto")]).expect("the protocol file compiles");
    let out = tempfile::tempdir().expect("a directory");
    tonic_prost_build::configure().out_dir(out.path()).compile_fds(files).expect("code is generated");
    let name = "netclaim.cni.v1alpha1.rs";
    let fresh = fs::read_to_string(out.path().join(name)).expect("readable");
    let committed = root.join("src/runtime/gen").join(name);
    if std::env::var_os("NETCLAIM_GENERATE").is_some() {
        fs::write(&committed, &fresh).expect("writable");
    }
    let known = fs::read_to_string(&committed).unwrap_or_default();
    assert!(known == fresh, "{} is stale: run `make generate` and commit the result", committed.display());
}
