//! The committed gRPC code is what the protocol files say. `make generate` writes it again.
#![allow(missing_docs, clippy::expect_used, reason = "tests")]

use std::fs;
use std::path::Path;

#[test]
fn the_generated_grpc_code_is_fresh() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let protos = ["registration.proto", "dra_v1.proto", "dra_health_v1.proto", "dra_health_v1alpha1.proto"];
    let files = protox::compile(protos, [root.join("proto")]).expect("the protocol files compile");
    let out = tempfile::tempdir().expect("a directory");
    tonic_prost_build::configure()
        .build_client(false)
        .out_dir(out.path())
        .compile_fds(files)
        .expect("code is generated");
    for entry in fs::read_dir(out.path()).expect("readable") {
        let generated = entry.expect("an entry");
        let committed = root.join("src/dra/gen").join(generated.file_name());
        let fresh = fs::read_to_string(generated.path()).expect("readable");
        if std::env::var_os("NETCLAIM_GENERATE").is_some() {
            fs::write(&committed, &fresh).expect("writable");
        }
        let known = fs::read_to_string(&committed).unwrap_or_default();
        assert!(
            known == fresh,
            "{} is stale: run `make generate` and commit the result",
            committed.display()
        );
    }
}
