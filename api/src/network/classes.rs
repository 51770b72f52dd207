//! `spec.deviceClass` and `spec.deviceClasses`: the DeviceClasses that the controller makes for a
//! ClaimNetwork.

use std::collections::BTreeSet;

use netclaim_kubernetes::labels::is_label_key;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::ClaimNetworkSpec;
use crate::{API_VERSION, AttachmentConfig, Invalid, NetworkName, ObjectName};

/// Whether a ClaimNetwork has a DeviceClass of its own name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs, reason = "described at the field")]
pub enum OwnClass {
    Own,
    None,
}

/// A DeviceClass that the controller makes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkClass {
    /// Name of the DeviceClass. That of the ClaimNetwork stands for the class that it has anyway.
    #[schemars(length(max = MAX_NAME))]
    pub name: ObjectName,
    /// Another name by which pods ask for the class in their `limits`, such as `example.com/storage`. They
    /// can always ask by `deviceclass.resource.kubernetes.io/NAME`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_RESOURCE), regex(pattern = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"))]
    pub extended_resource_name: Option<String>,
    /// Settings of each attachment by the class: the fields of an AttachmentConfig. `allow` does not apply to
    /// them. A claim can set others, as far as `allow` lets it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "defaults_schema")]
    pub defaults: Option<AttachmentConfig>,
}

/// The longest name of a class: the resource by which pods ask for it has no more bytes behind the slash.
const MAX_NAME: usize = 63;

/// The longest `extendedResourceName`: with `requests.` before it, it names a quota.
const MAX_RESOURCE: usize = 307;

fn defaults_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

impl NetworkClass {
    /// Whether it makes the network the primary one of its pods.
    pub(super) fn is_primary(&self) -> bool {
        self.defaults.as_ref().is_some_and(|config| config.primary)
    }

    /// Returns a class without settings.
    fn plain(name: &NetworkName) -> Self {
        Self { name: name.clone().into(), extended_resource_name: None, defaults: None }
    }

    /// Returns the spec of the DeviceClass, which selects the devices that `driver` has of the ClaimNetwork.
    pub fn device_class_spec(&self, network: &NetworkName, driver: &str) -> Map<String, Value> {
        let expression = class_expression(driver, network);
        let mut spec =
            Map::from_iter([("selectors".to_owned(), json!([{"cel": {"expression": expression}}]))]);
        if let Some(defaults) = &self.defaults {
            let mut parameters = json!(defaults);
            (parameters["apiVersion"], parameters["kind"]) = (API_VERSION.into(), "AttachmentConfig".into());
            let config = json!([{"opaque": {"driver": driver, "parameters": parameters}}]);
            spec.insert("config".to_owned(), config);
        }
        let resource = self.extended_resource_name.clone();
        spec.extend(resource.map(|resource| ("extendedResourceName".to_owned(), resource.into())));
        spec
    }

    /// Returns every problem; paths are relative to the class.
    fn problems(&self) -> Vec<Invalid> {
        let of_defaults = self.defaults.iter().flat_map(AttachmentConfig::problems);
        let of_defaults = of_defaults.map(|problem| problem.within("defaults"));
        let resource = self.extended_resource_name.iter().filter(|resource| !is_extended_resource(resource));
        let of_resource = resource.map(|resource| {
            let problem = format!(
                "{resource:?} cannot be an extended resource: write a domain, a slash and a name, such as example.com/storage; \
                 the domain must not end with kubernetes.io"
            );
            Invalid::new("extendedResourceName", problem)
        });
        of_resource.chain(of_defaults).collect()
    }
}

/// Returns the CEL expression that selects the devices that `driver` has of a ClaimNetwork.
pub fn class_expression(driver: &str, network: &NetworkName) -> String {
    let network = network.as_str();
    format!("device.driver == {driver:?} && device.attributes[{driver:?}].network == {network:?}")
}

/// Whether a DeviceClass can have the `extendedResourceName` (`IsExtendedResourceName` of Kubernetes).
fn is_extended_resource(name: &str) -> bool {
    let is_foreign = name.contains('/') && !name.contains("kubernetes.io/");
    is_foreign && is_label_key(name) && !name.starts_with("requests.") && name.len() <= MAX_RESOURCE
}

impl ClaimNetworkSpec {
    /// Returns the DeviceClasses that the controller makes for the ClaimNetwork of this name.
    pub fn classes(&self, name: &NetworkName) -> Vec<NetworkClass> {
        let is_listed = self.device_classes.iter().any(|class| class.name.as_str() == name.as_str());
        let own = (self.has_own_class() && !is_listed).then(|| NetworkClass::plain(name));
        own.into_iter().chain(self.device_classes.iter().cloned()).collect()
    }

    /// Whether there is a DeviceClass of the ClaimNetwork's name without being listed. Who lists classes that
    /// he has written may have them for what they limit.
    pub(super) fn has_own_class(&self) -> bool {
        match self.device_class {
            Some(class) => class == OwnClass::Own,
            None => self.device_class_names.is_empty(),
        }
    }

    /// Returns every problem of the DeviceClasses; paths are relative to the spec.
    pub(super) fn class_problems(&self, name: &str) -> Vec<Invalid> {
        let classes = &self.device_classes;
        let many = Invalid::too_many("deviceClasses", classes.len(), super::MAX_CLASSES);
        let mut names = BTreeSet::new();
        let of_classes = classes.iter().enumerate().flat_map(|(i, class)| {
            let class_name = class.name.as_str();
            let repeated = (!names.insert(class_name)).then(|| {
                Invalid::new(
                    "name",
                    format!("{class_name:?} is there before: each class needs a name of its own"),
                )
            });
            let long = (class_name.len() > MAX_NAME).then(|| {
                let problem =
                    format!("is longer than {MAX_NAME} bytes: pods could not ask for the class by limits");
                Invalid::new("name", problem)
            });
            let is_none = class_name == name && self.device_class == Some(OwnClass::None);
            let none = is_none.then(|| {
                Invalid::new(
                    "name",
                    "spec.deviceClass is None, so that there is no class of this name: remove one of them",
                )
            });
            let problems = repeated.into_iter().chain(long).chain(none).chain(class.problems());
            problems.map(|problem| problem.within(&format!("deviceClasses[{i}]"))).collect::<Vec<_>>()
        });
        many.into_iter().chain(of_classes).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(change: Value) -> ClaimNetworkSpec {
        let mut spec = json!({"cni": {"cniVersion": "1.1.0", "plugins": [{"type": "bridge"}]}});
        spec.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        serde_json::from_value(spec).unwrap()
    }

    fn names(change: Value) -> Vec<String> {
        let classes = spec(change).classes(&"storage".parse().unwrap());
        classes.iter().map(|class| class.name.as_str().to_owned()).collect()
    }

    fn problems(change: Value) -> Vec<String> {
        spec(change).class_problems("storage").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_network_has_one_class_of_its_name_by_default() {
        assert_eq!(names(json!({})), ["storage"]);
        assert_eq!(names(json!({"deviceClass": "None"})), [""; 0]);
        assert_eq!(names(json!({"deviceClasses": [{"name": "fast"}]})), ["storage", "fast"]);
        assert_eq!(
            names(json!({"deviceClasses": [{"name": "storage"}, {"name": "fast"}]})),
            ["storage", "fast"]
        );
        assert_eq!(names(json!({"deviceClass": "None", "deviceClasses": [{"name": "fast"}]})), ["fast"]);
    }

    #[test]
    fn who_lists_classes_that_he_has_written_gets_none_of_the_networks_name_without_asking() {
        assert_eq!(names(json!({"deviceClassNames": ["lan-private"]})), [""; 0]);
        assert_eq!(names(json!({"deviceClassNames": ["lan-private"], "deviceClass": "Own"})), ["storage"]);
        let listed = json!({"deviceClassNames": ["lan-private"], "deviceClasses": [{"name": "storage"}]});
        assert_eq!(names(listed.clone()), ["storage"]);
        assert_eq!(problems(listed), [""; 0]);
        let written = serde_json::to_value(spec(json!({}))).unwrap();
        assert!(written.get("deviceClass").is_none(), "{written}");
    }

    #[test]
    fn the_name_of_a_class_fits_into_a_resource() {
        let of = |length: usize| problems(json!({"deviceClasses": [{"name": "a".repeat(length)}]}));
        assert_eq!(of(63), [""; 0]);
        assert_eq!(
            of(64),
            ["deviceClasses[0].name: is longer than 63 bytes: pods could not ask for the class by limits"]
        );
    }

    #[test]
    fn a_class_selects_the_network_and_has_its_defaults() {
        let network: NetworkName = "storage".parse().unwrap();
        let plain = NetworkClass::plain(&network).device_class_spec(&network, "netclaim.dev");
        let expression =
            r#"device.driver == "netclaim.dev" && device.attributes["netclaim.dev"].network == "storage""#;
        assert_eq!(Value::Object(plain), json!({"selectors": [{"cel": {"expression": expression}}]}));
        let class = json!({"name": "fast", "extendedResourceName": "example.com/fast", "defaults": {"interfaceName": "data0"}});
        let class: NetworkClass = serde_json::from_value(class).unwrap();
        let spec = class.device_class_spec(&network, "cni.example.com");
        assert_eq!(spec["extendedResourceName"], "example.com/fast");
        let parameters = json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AttachmentConfig", "interfaceName": "data0"});
        assert_eq!(
            spec["config"],
            json!([{"opaque": {"driver": "cni.example.com", "parameters": parameters}}])
        );
    }

    #[test]
    fn classes_have_names_of_their_own_and_no_class_is_both_there_and_not() {
        let twice = problems(json!({"deviceClasses": [{"name": "fast"}, {"name": "fast"}]}));
        assert_eq!(
            twice,
            ["deviceClasses[1].name: \"fast\" is there before: each class needs a name of its own"]
        );
        let none = problems(json!({"deviceClass": "None", "deviceClasses": [{"name": "storage"}]}));
        assert!(none[0].starts_with("deviceClasses[0].name: spec.deviceClass is None"), "{none:?}");
    }

    #[test]
    fn an_extended_resource_is_of_a_domain_that_is_not_of_kubernetes() {
        for good in ["example.com/storage", "netclaim.dev/Lab_1", "kubernetes.io.example.com/a"] {
            assert!(is_extended_resource(good), "{good}");
        }
        let bad = [
            "storage",
            "kubernetes.io/a",
            "notkubernetes.io/a",
            "deviceclass.resource.kubernetes.io/a",
            "requests.example.com/a",
            "example.com/",
            "Example.com/a",
            "example.com/a/b",
        ];
        for bad in bad {
            assert!(!is_extended_resource(bad), "{bad}");
        }
    }
}
