//! A device as a value of CEL: `device.driver`, `device.attributes["DOMAIN"].NAME`,
//! `device.capacity["DOMAIN"].NAME` and `device.allowMultipleAllocations`.

use std::collections::HashMap;

use cel::ExecutionError;
use cel::common::traits::{Container, Indexer, Iterable, Sizer};
use cel::common::types::{CelBool, CelInt, CelList, CelMap, CelMapKey, CelString, MAP_TYPE, Type};
use cel::common::value::{CowVal, Val};
use k8s_openapi::api::resource::v1::{Device, DeviceAttribute};
use netclaim_kubernetes::quantity::billionths;

use super::Evaluation;
use super::amount::Amount;
use super::version::Version;

type Values = HashMap<CelMapKey<'static>, Box<dyn Val>>;

/// Returns the variable `device`.
///
/// # Errors
/// Says which attribute has no value that the scheduler can read, where it stops, or which capacity cannot be
/// read here.
pub(super) fn value(driver: &str, device: &Device) -> Result<Box<dyn Val>, Evaluation> {
    let mut attributes = HashMap::new();
    for (name, attribute) in device.attributes.iter().flatten() {
        let value = attribute_value(attribute)
            .map_err(|error| Evaluation::Fails(format!("attribute {name}: {error}")))?;
        insert(&mut attributes, driver, name, value);
    }
    let mut capacities = HashMap::new();
    for (name, capacity) in device.capacity.iter().flatten() {
        let amount = billionths(&capacity.value.0)
            .map_err(|error| Evaluation::Unknown(format!("capacity {name}: {error}")))?;
        insert(&mut capacities, driver, name, Box::new(Amount(amount)));
    }
    let shared = device.allow_multiple_allocations == Some(true);
    let fields: [(&'static str, Box<dyn Val>); 4] = [
        ("driver", Box::new(CelString::from(driver.to_owned()))),
        ("allowMultipleAllocations", Box::new(CelBool::from(shared))),
        ("attributes", Box::new(Domains::from(attributes))),
        ("capacity", Box::new(Domains::from(capacities))),
    ];
    let fields: Values = fields.into_iter().map(|(name, value)| (CelMapKey::from(name), value)).collect();
    Ok(Box::new(CelMap::from(fields)))
}

fn insert(domains: &mut HashMap<String, Values>, driver: &str, name: &str, value: Box<dyn Val>) {
    let (domain, name) = name.split_once('/').unwrap_or((driver, name));
    let name = CelMapKey::String(CelString::from(name.to_owned()));
    domains.entry(domain.to_owned()).or_default().insert(name, value);
}

fn attribute_value(attribute: &DeviceAttribute) -> Result<Box<dyn Val>, String> {
    fn list<T: Val + 'static>(values: impl Iterator<Item = T>) -> Box<dyn Val> {
        let values: Vec<Box<dyn Val>> = values.map(|value| Box::new(value) as Box<dyn Val>).collect();
        Box::new(CelList::from(values))
    }
    let DeviceAttribute { bool, bools, int, ints, string, strings, version, versions } = attribute;
    if let Some(values) = ints {
        Ok(list(values.iter().copied().map(CelInt::from)))
    } else if let Some(values) = bools {
        Ok(list(values.iter().copied().map(CelBool::from)))
    } else if let Some(values) = strings {
        Ok(list(values.iter().cloned().map(CelString::from)))
    } else if let Some(values) = versions {
        let versions = values.iter().map(|text| Version::parse(text)).collect::<Result<Vec<_>, _>>()?;
        Ok(list(versions.into_iter()))
    } else if let Some(value) = int {
        Ok(Box::new(CelInt::from(*value)))
    } else if let Some(value) = bool {
        Ok(Box::new(CelBool::from(*value)))
    } else if let Some(value) = string {
        Ok(Box::new(CelString::from(value.clone())))
    } else if let Some(value) = version {
        Ok(Box::new(Version::parse(value)?))
    } else {
        Err("unsupported attribute value".to_owned())
    }
}

/// Maps of names by domain. An unknown domain has an empty map, so that `device.attributes["a.example"].?b`
/// works.
#[derive(Debug, Clone)]
struct Domains {
    known: CelMap<'static>,
    unknown: CelMap<'static>,
}

impl From<HashMap<String, Values>> for Domains {
    fn from(domains: HashMap<String, Values>) -> Self {
        let known: Values = domains
            .into_iter()
            .map(|(domain, values)| {
                let value: Box<dyn Val> = Box::new(CelMap::from(values));
                (CelMapKey::String(CelString::from(domain)), value)
            })
            .collect();
        Self { known: CelMap::from(known), unknown: CelMap::default() }
    }
}

impl Val for Domains {
    fn get_type(&self) -> &Type {
        &MAP_TYPE
    }

    fn cel_type() -> &'static Type {
        &MAP_TYPE
    }

    fn as_container(&self) -> Option<&dyn Container> {
        self.known.as_container()
    }

    fn as_indexer<'b, 'v>(&'b self) -> Option<&'b (dyn Indexer + 'v)>
    where
        Self: 'v,
    {
        Some(self)
    }

    fn as_iterable<'b, 'v>(&'b self) -> Option<&'b (dyn Iterable + 'v)>
    where
        Self: 'v,
    {
        self.known.as_iterable()
    }

    fn as_sizer(&self) -> Option<&dyn Sizer> {
        self.known.as_sizer()
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v>
    where
        Self: 'v,
    {
        Box::new(self.clone())
    }
}

impl Indexer for Domains {
    fn get<'b, 'v>(&'b self, domain: &dyn Val) -> Result<CowVal<'b, 'v>, ExecutionError>
    where
        Self: 'v,
    {
        match self.known.get(domain) {
            Err(ExecutionError::NoSuchKey(_)) => Ok(CowVal::Borrowed(&self.unknown)),
            found => found,
        }
    }

    fn steal<'v>(self: Box<Self>, domain: &dyn Val) -> Result<Box<dyn Val + 'v>, ExecutionError>
    where
        Self: 'v,
    {
        self.get(domain).map(CowVal::into_owned)
    }
}
