//! Opaque parameters of claims and classes: what tenants write, and what becomes of it next to the admin's
//! word.

use netclaim_api::LinkUse;
use netclaim_api::merge::{Author, Base, Layer, merge};
use netclaim_api::opaque::Opaque;
use netclaim_api::template;
use netclaim_cni::validate::{Severity, validate};
use serde_json::json;

pub fn opaque(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(config) = Opaque::decode(text) else { return };
    let findings = validate(data);
    assert!(
        !findings
            .iter()
            .any(|f| f.severity == Severity::Error && f.problem.contains("stands more than once")),
        "a key stands twice"
    );
    if let Opaque::Attachment(attachment) = &config {
        let mut written = serde_json::to_value(attachment).expect("what was read can be written");
        written["apiVersion"] = json!(netclaim_api::API_VERSION);
        written["kind"] = json!("AttachmentConfig");
        assert_eq!(Opaque::decode(&written.to_string()).expect("can be read again"), config);
    }

    let layer = |author| Layer { author, index: 0, config: config.clone() };
    for plain in LinkUse::ALL {
        // An uplink without a Network allows tenants nothing.
        if let Ok(merged) =
            merge(Base::Uplink(plain), &[layer(Author::Claim)], Some("1G".parse().expect("a rate")))
        {
            assert!(matches!(config, Opaque::Attachment(_)), "a tenant brought a CNI configuration");
            assert!(merged.args.is_empty() && merged.parameters.is_empty());
            // What was granted.
            let granted = merged.capability_args.into_iter();
            assert!(granted.map(|(name, _)| name).eq(["bandwidth"]));
        }
        if let Ok(merged) = merge(Base::Uplink(plain), &[layer(Author::Class)], None) {
            let mut scope = template::Scope::new();
            for place in template::PLACES {
                scope.insert(place.to_owned(), json!("v"));
            }
            if let Err(refused) = merged.resolve("net", scope) {
                assert!(
                    !refused.problem.contains("CNI configuration is invalid"),
                    "validation missed {refused}"
                );
            }
        }
    }
}
