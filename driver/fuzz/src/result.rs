//! Results of ADD: what is accepted reads back the same, and converts to every version without losing what
//! that version can say.

use netclaim_cni::{Attachment, CniResult, Interface, ResultError, SpecVersion};

pub fn result(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for config in SpecVersion::ALL {
        if let Ok(result) = CniResult::parse(text, config) {
            stable(&result);
            converted(&result);
            shown(&result);
        }
    }
}

/// What is kept is a result of that version by itself.
fn stable(result: &CniResult) {
    for config in [SpecVersion::V0_1_0, SpecVersion::V1_1_0] {
        same(&CniResult::parse(result.raw(), config).expect("its own text"), result);
    }
    let stored = serde_json::to_vec(result).expect("can be stored");
    same(&serde_json::from_slice(&stored).expect("can be read back"), result);
}

fn same(one: &CniResult, other: &CniResult) {
    assert_eq!(one.raw(), other.raw());
    assert_eq!(one.version(), other.version());
    assert_eq!(one.interfaces(), other.interfaces());
    assert_eq!(one.ips(), other.ips());
    assert_eq!(one.routes(), other.routes());
    assert_eq!(one.dns(), other.dns());
}

fn converted(result: &CniResult) {
    let has_lists = |version| version >= SpecVersion::V0_3_0;
    let has_all_fields = |version| version >= SpecVersion::V1_0_0;
    for version in SpecVersion::ALL {
        let other = match result.to_version(version) {
            Ok(other) => other,
            Err(ResultError::NoAddress(_)) => {
                assert!(!has_lists(version) && result.ips().is_empty());
                continue;
            }
            Err(error) => panic!("{} to {version}: {error:?}", result.version()),
        };
        assert_eq!(other.version(), version);
        stable(&other);
        assert_eq!(other.dns(), result.dns());
        if has_lists(version) {
            assert_eq!(other.ips(), result.ips());
            assert_eq!(other.routes(), result.routes());
            let bare = |interface: &Interface| Interface {
                mtu: None,
                socket_path: None,
                pci_id: None,
                ..interface.clone()
            };
            if has_all_fields(version) == has_all_fields(result.version()) {
                assert_eq!(other.interfaces(), result.interfaces());
            } else {
                let bare = |result: &CniResult| result.interfaces().iter().map(bare).collect::<Vec<_>>();
                assert_eq!(bare(&other), bare(result));
            }
        } else {
            assert!(other.ips().len() <= 2 && other.interfaces().is_empty());
            let families: Vec<bool> =
                other.ips().iter().map(|ip| ip.address.addr().to_canonical().is_ipv4()).collect();
            if has_lists(result.version()) {
                assert!(matches!(families.as_slice(), [_] | [true, false]), "one of each family");
            }
        }
        same(&other.to_version(version).expect("is there already"), &other);
    }
}

fn shown(result: &CniResult) {
    let names = result.interfaces().iter().map(|interface| interface.name.as_str()).chain(["net1"]);
    for name in names {
        let Ok(if_name) = name.parse() else { continue };
        let attachment = Attachment::new("c1".parse().expect("an id"), None, if_name);
        let own = result.interface_of(&attachment);
        if let Some(own) = own {
            assert!(own.name == name && own.sandbox.is_some());
        }
        for ip in result.ips_of(&attachment) {
            let of = ip.interface.and_then(|index| result.interfaces().get(index as usize));
            assert!(ip.interface.is_none() || of.is_some_and(|of| of.name == name));
        }
    }
}
