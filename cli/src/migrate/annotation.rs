//! The annotation `k8s.v1.cni.cncf.io/networks`, as Multus reads it.

use std::net::IpAddr;

use netclaim_api::Invalid;
use serde_json::{Map, Value, json};

/// Keys that cannot be translated, each with what to do.
const REFUSED: [(&str, &str); 4] = [
    ("infiniband-guid", "netclaim has no InfiniBand GUIDs: the workload stays on Multus"),
    (
        "deviceID",
        "the scheduler chooses the device of a claim: remove the key, and select devices in a DeviceClass",
    ),
    (
        "cni-args",
        "netclaim gives plugins no args.cni: write the values into the plugin's configuration, or declare them as parameters of \
         the ClaimNetwork",
    ),
    (
        "ipam-claim-reference",
        "a pod keeps an address by a ResourceClaim of its own with ips: write that claim, and remove the key",
    ),
];

/// Keys that are translated.
const TAKEN: [&str; 9] = [
    "name",
    "namespace",
    "interface",
    "interfaceRequest",
    "ips",
    "mac",
    "bandwidth",
    "portMappings",
    "default-route",
];

/// How a default route differs from Multus'.
const OTHER_GATEWAY: &str = "becomes defaultRoute, by the gateway that the network's IPAM gives with the address, of each family that has one: \
                             compare it. The agents need agent.clusterCIDRs. Since Multus 4.2.2 the key may have had no effect";

/// One network of a pod.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Element {
    /// Its place in the annotation; empty in the short form.
    pub(super) at: String,
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    pub(super) interface: Option<String>,
    /// Fields of an AttachmentConfig: `ips`, `mac`, `bandwidth`, `portMappings`, `defaultRoute`.
    pub(super) config: Map<String, Value>,
    /// What is dropped without a change for the pod.
    pub(super) notes: Vec<Invalid>,
}

/// Reads the annotation.
///
/// # Errors
/// Everything that Multus or netclaim cannot do.
pub(super) fn parse(text: &str) -> Result<Vec<Element>, Vec<Invalid>> {
    let parsed: Vec<Result<Element, Vec<Invalid>>> = if text.contains(['[', '{', '"']) {
        match serde_json::from_str::<Value>(text) {
            Ok(Value::Array(items)) => items.iter().enumerate().map(|(i, item)| from_json(i, item)).collect(),
            Ok(_) => return Err(vec![Invalid::new("", "Multus refuses it, too: write a list, [{…}]")]),
            Err(error) => {
                return Err(vec![Invalid::new(
                    "",
                    format!("is not valid JSON, and Multus refuses it, too: {error}"),
                )]);
            }
        }
    } else {
        text.split(',').map(|item| short(item.trim()).map_err(|error| vec![error])).collect()
    };
    let (mut elements, mut errors) = (Vec::new(), Vec::new());
    for item in parsed {
        match item {
            Ok(element) => elements.push(element),
            Err(problems) => errors.extend(problems),
        }
    }
    if errors.is_empty() { Ok(elements) } else { Err(errors) }
}

/// Reads `[NAMESPACE/]NAME[@INTERFACE]`.
fn short(item: &str) -> Result<Element, Invalid> {
    let (of, interface) = item.split_once('@').map_or((item, None), |(of, interface)| (of, Some(interface)));
    let (namespace, name) =
        of.split_once('/').map_or((None, of), |(namespace, name)| (Some(namespace), name));
    let is_wrong = |text: &str| text.is_empty() || text.contains(['/', '@']);
    if [namespace, Some(name), interface].into_iter().flatten().any(is_wrong) {
        let problem = format!("{item:?} is not [NAMESPACE/]NAME[@INTERFACE], and Multus refuses it, too");
        return Err(Invalid::new("", problem));
    }
    Ok(Element {
        namespace: namespace.map(str::to_owned),
        name: name.to_owned(),
        interface: interface.map(str::to_owned),
        ..Element::default()
    })
}

fn from_json(index: usize, item: &Value) -> Result<Element, Vec<Invalid>> {
    let at = format!("[{index}]");
    let Value::Object(object) = item else {
        return Err(vec![Invalid::new(at, "Multus refuses it, too: write an object, {\"name\": …}")]);
    };
    let mut errors = Vec::new();
    let mut element = Element { at: at.clone(), ..Element::default() };
    for key in object.iter().filter(|(_, value)| !value.is_null()).map(|(key, _)| key) {
        if let Some((_, problem)) = REFUSED.iter().find(|(refused, _)| refused == key) {
            errors.push(Invalid::new(key, *problem));
        } else if !TAKEN.contains(&key.as_str()) {
            let known = TAKEN.iter().chain(REFUSED.iter().map(|(key, _)| key));
            match known.into_iter().find(|known| known.eq_ignore_ascii_case(key)) {
                Some(known) => {
                    errors.push(Invalid::new(key, format!("Multus may read it as {known}: write that")))
                }
                None => element
                    .notes
                    .push(Invalid::new(key, "Multus does not read it: it is dropped").within(&at)),
            }
        }
    }
    let mut text = |key: &str| match object.get(key) {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) if text.is_empty() => None,
        Some(Value::String(text)) => Some(text.clone()),
        Some(other) => {
            errors.push(Invalid::new(key, format!("{other} is not a string, and Multus refuses it, too")));
            None
        }
    };
    element.namespace = text("namespace");
    element.interface = text("interface").or_else(|| text("interfaceRequest"));
    if let Some(mac) = text("mac") {
        element.config.insert("mac".to_owned(), Value::String(mac));
    }
    match text("name") {
        Some(name) => element.name = name,
        None => errors.push(Invalid::new("name", "is missing, and Multus refuses it, too")),
    }
    match object.get("ips") {
        None | Some(Value::Null) => {}
        Some(Value::Array(ips)) if ips.is_empty() => {}
        Some(Value::Array(ips)) => {
            element.config.insert("ips".to_owned(), Value::Array(ips.clone()));
        }
        Some(_) => errors.push(Invalid::new("ips", "Multus refuses it, too: write a list")),
    }
    if let Some(rates) = object.get("bandwidth").filter(|value| !value.is_null()) {
        match bandwidth(rates) {
            Ok((limits, notes)) => {
                element.config.extend(limits.map(|limits| ("bandwidth".to_owned(), limits)));
                element.notes.extend(notes.into_iter().map(|note| note.within("bandwidth").within(&at)));
            }
            Err(error) => errors.push(error.within("bandwidth")),
        }
    }
    if let Some(ports) = object.get("portMappings").filter(|value| !value.is_null()) {
        match port_mappings(ports) {
            Ok(ports) if ports.is_empty() => {}
            Ok(ports) => {
                element.config.insert("portMappings".to_owned(), Value::Array(ports));
            }
            Err(error) => errors.push(error),
        }
    }
    match object.get("default-route") {
        None | Some(Value::Null) => {}
        Some(Value::Array(gateways)) if gateways.is_empty() => {}
        Some(Value::Array(gateways)) if gateways.iter().all(is_ip) => {
            element.config.insert("defaultRoute".to_owned(), Value::Bool(true));
            element.notes.push(Invalid::new("default-route", OTHER_GATEWAY).within(&at));
        }
        Some(_) => {
            errors
                .push(Invalid::new("default-route", "Multus refuses it, too: write a list of IP addresses"));
        }
    }
    if errors.is_empty() {
        Ok(element)
    } else {
        Err(errors.into_iter().map(|error| error.within(&at)).collect())
    }
}

fn is_ip(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.parse::<IpAddr>().is_ok())
}

/// Returns the limits as an AttachmentConfig has them, and notes.
fn bandwidth(rates: &Value) -> Result<(Option<Value>, Vec<Invalid>), Invalid> {
    let object =
        rates.as_object().ok_or_else(|| Invalid::new("", "Multus refuses it, too: write an object"))?;
    let (mut limits, mut notes) = (Map::new(), Vec::new());
    for (key, value) in object {
        let number =
            value.as_u64().ok_or_else(|| Invalid::new(key, format!("{value} is not a whole number")))?;
        match key.as_str() {
            "ingressRate" | "egressRate" if number > 0 => {
                let direction = key.trim_end_matches("Rate").to_owned();
                limits.insert(direction, json!(number));
            }
            "ingressRate" | "egressRate" => {}
            "ingressBurst" | "egressBurst" => {
                if number > 0 {
                    notes
                        .push(Invalid::new(key, "is dropped: netclaim allows bursts of a tenth of a second"));
                }
            }
            _ => notes.push(Invalid::new(key, "Multus does not read it: it is dropped")),
        }
    }
    Ok(((!limits.is_empty()).then_some(Value::Object(limits)), notes))
}

fn port_mappings(ports: &Value) -> Result<Vec<Value>, Invalid> {
    let wrong = || Invalid::new("portMappings", "Multus refuses it, too: write a list of objects");
    let mapping = |port: &Value| {
        let mut port = port.as_object().cloned().ok_or_else(wrong)?;
        port.retain(|_, value| !value.is_null() && value.as_str() != Some(""));
        if let Some(protocol) = port.get_mut("protocol") {
            *protocol = Value::String(protocol.as_str().unwrap_or_default().to_uppercase());
        }
        Ok(Value::Object(port))
    };
    ports.as_array().ok_or_else(wrong)?.iter().map(mapping).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_form_is_read_as_multus_reads_it() {
        let elements = parse(" lan, ns1/ctl@ctl0 ,data@data0").expect("reads");
        let read: Vec<_> = elements
            .iter()
            .map(|element| {
                (element.namespace.as_deref(), element.name.as_str(), element.interface.as_deref())
            })
            .collect();
        let expected =
            [(None, "lan", None), (Some("ns1"), "ctl", Some("ctl0")), (None, "data", Some("data0"))];
        assert_eq!(read, expected);
        for wrong in ["lan,", "a/b/c", "lan@", "/lan"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn limits_become_those_of_an_attachment() {
        let text =
            r#"[{"name": "lan", "bandwidth": {"ingressRate": 1000000, "ingressBurst": 5, "egressRate": 0}}]"#;
        let elements = parse(text).expect("reads");
        assert_eq!(elements[0].config["bandwidth"], json!({"ingress": 1_000_000}));
        assert_eq!(elements[0].notes[0].field, "[0].bandwidth.ingressBurst");
    }

    #[test]
    fn a_default_route_becomes_the_setting_and_its_gateways_do_not() {
        let of = |gateways: &str| parse(&format!(r#"[{{"name": "lan", "default-route": {gateways}}}]"#));
        let element = of(r#"["10.66.0.1", "fd00::1"]"#).expect("reads").remove(0);
        assert_eq!(Value::Object(element.config), json!({"defaultRoute": true}));
        assert_eq!(element.notes[0].field, "[0].default-route");
        for none in ["null", "[]"] {
            assert_eq!(of(none).expect("reads")[0].config, Map::new(), "{none}");
        }
        for wrong in [r#""10.66.0.1""#, r#"["gateway"]"#] {
            assert_eq!(of(wrong).expect_err("refused")[0].field, "[0].default-route", "{wrong}");
        }
    }

    #[test]
    fn every_error_is_reported_with_its_place() {
        let text =
            r#"[{"name": "a", "cni-args": {}, "ips": "10.0.0.1"}, {"Interface": "x", "name": "b"}, 7, {}]"#;
        let fields: Vec<String> = parse(text).expect_err("refused").into_iter().map(|e| e.field).collect();
        assert_eq!(fields, ["[0].cni-args", "[0].ips", "[1].Interface", "[2]", "[3].name"]);
    }
}
