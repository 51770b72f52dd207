//! The configurations of a class or claim that are for the driver.

use netclaim_api::merge::{Author, Layer};
use netclaim_api::opaque::Opaque;
use netclaim_api::{API_VERSION, AttachmentConfig, CniConfig};
use serde_json::Value;

use crate::limits::{Late, Limit};
use crate::review::Review;

/// Most configurations of a claim or class (`DeviceConfigMaxSize`).
pub(crate) const MAX_CONFIGS: usize = 32;

/// A configuration for the driver.
pub(crate) struct Config {
    /// The index in the list.
    pub(crate) index: usize,
    /// The path of its parameters.
    pub(crate) field: String,
    /// The requests that it names; none if it is for all.
    pub(crate) requests: Vec<String>,
    /// What its parameters are, if they can be read.
    pub(crate) parameters: Option<Opaque>,
}

impl Config {
    /// Returns the configurations of a list at `field` that are for the driver, and adds what is wrong with
    /// them.
    pub(crate) fn of(
        list: &Value,
        field: &str,
        driver: &str,
        review: &mut Review,
        limit: &Limit<'_>,
    ) -> Result<Vec<Self>, Late> {
        let mut found = Vec::new();
        for (index, config) in list.as_array().into_iter().flatten().enumerate() {
            limit.check()?;
            let Some(opaque) = config.get("opaque") else { continue };
            let parameters = opaque.get("parameters").unwrap_or(&Value::Null);
            let field = format!("{field}[{index}].opaque");
            let named = opaque["driver"].as_str().unwrap_or_default();
            if named != driver {
                if parameters["apiVersion"] == API_VERSION {
                    let problem = format!(
                        "is {named:?}, so that only a driver of that name reads these parameters: write {driver:?}"
                    );
                    review.warn(format!("{field}.driver"), problem);
                }
                continue;
            }
            let field = format!("{field}.parameters");
            let parameters = match Opaque::read(parameters) {
                Ok(parameters) => Some(parameters),
                Err(errors) => {
                    review.errors.extend(errors.into_iter().map(|error| error.within(&field)));
                    None
                }
            };
            let requests = config["requests"].as_array().into_iter().flatten();
            let requests = requests.filter_map(Value::as_str).map(str::to_owned).collect();
            found.push(Self { index, field, requests, parameters });
        }
        Ok(found)
    }

    /// Returns it as the agent merges it, if it can be read.
    pub(crate) fn layer(&self, author: Author) -> Option<Layer> {
        Some(Layer { author, index: self.index, config: self.parameters.clone()? })
    }

    /// The settings of an attachment, if it has any.
    pub(crate) fn attachment(&self) -> Option<&AttachmentConfig> {
        match &self.parameters {
            Some(Opaque::Attachment(config)) => Some(config),
            _ => None,
        }
    }

    /// Whether it has the setting at this path, which may lead into the setting.
    pub(crate) fn sets(&self, field: &str) -> bool {
        self.attachment().is_some_and(|settings| settings.clone().clear(field))
    }

    /// The configuration of an uplink, if it is one.
    pub(crate) fn cni(&self) -> Option<&CniConfig> {
        match &self.parameters {
            Some(Opaque::Cni(config)) => Some(config),
            _ => None,
        }
    }
}
