//! The committed protobuf code is what `proto/nri.proto` generates, so that builds need no compiler for it.

use std::fs;
use std::path::Path;

#[test]
fn the_generated_protobuf_code_is_fresh() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let proto_dir = crate_dir.join("proto");
    let descriptors = protox::compile([proto_dir.join("nri.proto")], [&proto_dir]).unwrap();

    let out = tempfile::tempdir().unwrap();
    prost_build::Config::new().out_dir(out.path()).compile_fds(descriptors).unwrap();
    let generated = fs::read_to_string(out.path().join("nri.pkg.api.v1alpha1.rs")).unwrap();

    let committed = crate_dir.join("src/gen/nri.pkg.api.v1alpha1.rs");
    if fs::read_to_string(&committed).ok().as_ref() != Some(&generated) {
        fs::write(&committed, generated).unwrap();
        panic!("{} was stale; it has been generated again, please commit it", committed.display());
    }
}
