//! Kinds of objects that are read as they are, whatever fields they have.

use kube::api::ApiResource;
use kube::core::{DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt as _};
use serde_json::Value;

/// A kind: its API version, its name, and its name in URLs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) api_version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) plural: &'static str,
}

impl Kind {
    pub(crate) const fn new(api_version: &'static str, kind: &'static str, plural: &'static str) -> Self {
        Self { api_version, kind, plural }
    }

    /// Reads the objects of a namespace, or of the whole cluster.
    pub(crate) fn api(&self, client: Client, namespace: Option<&str>) -> Api<DynamicObject> {
        let resource = self.resource();
        match namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &resource),
            None => Api::all_with(client, &resource),
        }
    }

    /// Returns how the API server names it.
    pub(crate) fn resource(&self) -> ApiResource {
        let (group, version) = self.api_version.split_once('/').unwrap_or(("", self.api_version));
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, self.kind), self.plural)
    }

    /// Returns an object of a list as a file would have it; `None` if it has no name.
    pub(crate) fn object(&self, object: DynamicObject) -> Option<Value> {
        let name = object.name_any();
        let mut value = serde_json::to_value(object).ok()?;
        let fields = value.as_object_mut()?;
        fields.insert("apiVersion".to_owned(), Value::String(self.api_version.to_owned()));
        fields.insert("kind".to_owned(), Value::String(self.kind.to_owned()));
        (!name.is_empty()).then_some(value)
    }
}

/// Writes objects as documents of YAML, which kubectl reads.
///
/// # Errors
/// Fails if YAML cannot have a value.
pub(crate) fn yaml<'a>(objects: impl IntoIterator<Item = &'a Value>) -> Result<String, String> {
    let mut text = String::new();
    for object in objects {
        let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
        let document =
            serde_saphyr::to_string_with_options(object, options).map_err(|error| error.to_string())?;
        text.push_str("---\n");
        text.push_str(&document);
    }
    Ok(text)
}
