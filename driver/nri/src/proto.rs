//! NRI's messages, generated from `proto/nri.proto`; the test `nri_proto` keeps them fresh.
#![allow(dead_code, missing_docs, unreachable_pub, clippy::all)]

include!("gen/nri.pkg.api.v1alpha1.rs");
