//! Kubernetes objects as most scenarios use them. A scenario changes a field by indexing the value.

use serde_json::{Value, json};

/// A ClaimNetwork of one plugin on `uplink`, with addresses of `subnet`. It makes no DeviceClass: most
/// scenarios write one.
pub fn network(name: &str, plugin: &str, uplink: &str, subnet: &str) -> Value {
    json!({
        "apiVersion": "netclaim.dev/v1alpha1", "kind": "ClaimNetwork", "metadata": {"name": name},
        "spec": {
            "deviceClass": "None",
            "uplink": {"links": [uplink]},
            "cni": {"cniVersion": "1.0.0", "plugins": [{
                "type": plugin, "master": "${uplink.name}", "mode": "bridge",
                "ipam": {"type": "host-local", "ranges": [[{"subnet": subnet}]]},
            }]},
        },
    })
}

/// A CustomResourceDefinition of another project's kind, which takes any object.
pub fn foreign_definition(group: &str, version: &str, kind: &str, plural: &str) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": format!("{plural}.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
            "versions": [{"name": version, "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]},
    })
}

/// A Deployment of one pod that asks Multus for `networks`.
pub fn deployment_of_multus(name: &str, networks: &str) -> Value {
    let labels = json!({"app": name});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {
        "strategy": {"type": "Recreate"}, "selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels, "annotations": {"k8s.v1.cni.cncf.io/networks": networks}},
            "spec": {"terminationGracePeriodSeconds": 2, "containers": [container("shell")]}}}})
}

/// An UplinkPolicy.
pub fn policy(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "UplinkPolicy", "metadata": {"name": name}, "spec": spec})
}

/// A DeviceClass of one ClaimNetwork.
pub fn class_of_network(name: &str, network: &str) -> Value {
    class(name, &format!("device.attributes[\"netclaim.dev\"].network == {network:?}"))
}

/// A DeviceClass of the netclaim devices that a CEL expression selects.
pub fn class(name: &str, expression: &str) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": format!("device.driver == \"netclaim.dev\" && {expression}")}}]},
    })
}

/// A ResourceClaim with one request, named `net`, for one device of `class`.
pub fn claim(name: &str, class: &str) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name},
        "spec": {"devices": {"requests": [request("net", class)]}},
    })
}

/// A ResourceClaimTemplate of such claims.
pub fn claim_template(name: &str, class: &str) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name},
        "spec": {"spec": claim("", class)["spec"]},
    })
}

/// A request for one device of `class`.
pub fn request(name: &str, class: &str) -> Value {
    json!({"name": name, "exactly": {"deviceClassName": class}})
}

/// An entry of `config` in a claim or a class: an `AttachmentConfig` with these fields, for all requests.
pub fn attachment(mut fields: Value) -> Value {
    fields["apiVersion"] = json!("netclaim.dev/v1alpha1");
    fields["kind"] = json!("AttachmentConfig");
    json!({"opaque": {"driver": "netclaim.dev", "parameters": fields}})
}

/// A pod whose one container uses `claims`, and logs its interfaces and their addresses when it starts.
pub fn pod(name: &str, claims: &[&str]) -> Value {
    let references: Vec<Value> =
        claims.iter().map(|claim| json!({"name": claim, "resourceClaimName": claim})).collect();
    let names: Vec<Value> = claims.iter().map(|claim| json!({"name": claim})).collect();
    let mut shell = container("shell");
    shell["resources"] = json!({"claims": names});
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 2, "automountServiceAccountToken": false,
            "resourceClaims": references, "containers": [shell],
        },
    })
}

/// As [`pod`], with a claim of its own, made from a template.
pub fn pod_of_template(name: &str, template: &str) -> Value {
    pod_of_templates(name, &[template])
}

/// As [`pod_of_template`], with a claim from each template.
pub fn pod_of_templates(name: &str, templates: &[&str]) -> Value {
    let mut pod = pod(name, templates);
    let claims = templates.iter().map(|name| json!({"name": name, "resourceClaimTemplateName": name}));
    pod["spec"]["resourceClaims"] = claims.collect();
    pod
}

/// A container that logs its interfaces and their addresses, and runs until it is stopped.
pub fn container(name: &str) -> Value {
    json!({
        "name": name, "image": "localhost/busybox:1", "imagePullPolicy": "Never",
        "command": ["sh", "-c", "trap 'exit 0' TERM; ls /sys/class/net; ip -o addr; sleep 1000000 & wait"],
        // For ping: not every runtime grants it by default.
        "securityContext": {"capabilities": {"add": ["NET_RAW"]}},
    })
}

/// The items of a JSON array; none for any other value.
pub fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// A JSON string; empty for any other value.
pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
