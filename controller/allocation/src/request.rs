//! What claims ask for.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use k8s_openapi::api::resource::v1::{
    CapacityRequirements, DeviceClaimConfiguration, DeviceClass, DeviceRequest, DeviceSelector, DeviceTaint,
    DeviceToleration, ResourceClaim,
};
use netclaim_api::DRIVER_NAME;
use netclaim_kubernetes::quantity::billionths;
use serde::Serialize;

use crate::cause::{Cause, Origin};
use crate::limits;
use crate::node_selector::{NO_EXECUTE, NO_SCHEDULE};
use crate::selector::Selector;

/// The name of a request, of one of its alternatives, or of a whole claim.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RequestName {
    /// The claim.
    pub claim: String,
    /// The request; `None` is the whole claim.
    pub request: Option<String>,
    /// The alternative, where the request has a list of them (`firstAvailable`).
    pub alternative: Option<String>,
}

impl fmt::Display for RequestName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { claim, request, alternative } = self;
        match (request, alternative) {
            (Some(request), Some(alternative)) => {
                write!(f, "request {request}/{alternative} of claim {claim}")
            }
            (Some(request), None) if claim == limits::CLAIM => write!(f, "limit {request}"),
            (Some(request), None) => write!(f, "request {request} of claim {claim}"),
            (None, _) if claim == limits::CLAIM => f.write_str("the claim of its limits"),
            (None, _) => write!(f, "claim {claim}"),
        }
    }
}

/// How many devices a request wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DeviceCount {
    Exactly(usize),
    All,
}

/// The most devices of a claim (`AllocationResultsMaxSize`).
pub(crate) const MOST_DEVICES: usize = 32;

/// One request, or one alternative of a request.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) name: RequestName,
    pub(crate) class: String,
    /// Those of the class, then its own.
    pub(crate) selectors: Vec<(Origin, Arc<Selector>)>,
    pub(crate) wanted: DeviceCount,
    pub(crate) tolerations: Vec<DeviceToleration>,
    /// In billionths, by the name that the claim spells.
    pub(crate) capacity: BTreeMap<String, i128>,
    /// Whether a configuration of the claim asks for addresses.
    pub(crate) asks_for_ips: bool,
    pub(crate) admin_access: bool,
    /// The resource of a limit.
    pub(crate) resource: Option<String>,
    /// Why it cannot be served on any node.
    pub(crate) hopeless: Option<Cause>,
}

impl Request {
    /// How many devices it wants at least, where a node has `all` that it could ever have.
    pub(crate) fn fewest(&self, all: usize) -> usize {
        match self.wanted {
            _ if self.hopeless.as_ref().is_some_and(Cause::is_unknown) => 0,
            DeviceCount::Exactly(count) => count,
            DeviceCount::All => all,
        }
    }

    /// Whether the taint keeps the request off its device.
    pub(crate) fn is_kept_off_by(&self, taint: &DeviceTaint) -> bool {
        [NO_SCHEDULE, NO_EXECUTE].contains(&taint.effect.as_str())
            && !self.tolerations.iter().any(|toleration| tolerates(toleration, taint))
    }

    /// The ClaimNetwork that its devices must have.
    pub(crate) fn network(&self, driver: &str) -> Option<&str> {
        self.selectors.iter().find_map(|(_, selector)| selector.network(driver))
    }
}

/// Whether a toleration of a request is for this taint of a device.
pub fn tolerates(toleration: &DeviceToleration, taint: &DeviceTaint) -> bool {
    let DeviceToleration { effect, key, operator, value, .. } = toleration;
    let is_or_any = |text: &Option<String>, wanted: &str| {
        text.as_deref().is_none_or(|text| text.is_empty() || text == wanted)
    };
    is_or_any(effect, &taint.effect)
        && is_or_any(key, &taint.key)
        && match operator.as_deref().unwrap_or_default() {
            "Exists" => true,
            "" | "Equal" => {
                value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
            }
            _ => false,
        }
}

/// Compiles selectors; the same expression only once.
#[derive(Debug, Default)]
pub(crate) struct Compiler {
    known: BTreeMap<String, Arc<Selector>>,
    /// After this time nothing more is compiled.
    deadline: Option<Instant>,
}

/// Why a selector says nothing after a deadline.
pub(crate) const TOO_LATE: &str = "its selectors take too long";

/// Whether a deadline has passed.
pub(crate) fn is_over(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| Instant::now() >= deadline)
}

impl Compiler {
    pub(crate) fn until(deadline: Instant) -> Self {
        Self { deadline: Some(deadline), ..Self::default() }
    }

    fn selector(&mut self, expression: &str) -> Arc<Selector> {
        let known = self.known.entry(expression.to_owned());
        let new = || match is_over(self.deadline) {
            true => Selector::unread(expression, TOO_LATE),
            false => Selector::new(expression),
        };
        Arc::clone(known.or_insert_with(|| Arc::new(new())))
    }
}

/// One entry of a claim's requests: the alternatives that it names; one of them is enough.
pub(crate) type Alternatives = Vec<Request>;

/// Reads the requests of a claim.
pub(crate) fn of_claim(
    name: &str,
    claim: &ResourceClaim,
    classes: &[DeviceClass],
    compiler: &mut Compiler,
) -> Vec<Alternatives> {
    let devices = claim.spec.as_ref().and_then(|spec| spec.devices.as_ref());
    let requests = devices.and_then(|devices| devices.requests.as_ref()).into_iter().flatten();
    let configs = devices.and_then(|devices| devices.config.as_deref()).unwrap_or_default();
    requests.map(|request| alternatives(name, request, configs, classes, compiler)).collect()
}

/// Whether a configuration of the driver asks for addresses for a request, or one of its alternatives.
fn asks_for_ips(configs: &[DeviceClaimConfiguration], request: &str, alternative: Option<&str>) -> bool {
    let names = |name: &String| match name.split_once('/') {
        Some((main, of_main)) => main == request && Some(of_main) == alternative,
        None => name == request,
    };
    let applies = |config: &&DeviceClaimConfiguration| {
        config.requests.as_ref().is_none_or(|requests| requests.is_empty() || requests.iter().any(names))
    };
    let opaque = configs.iter().filter(applies).filter_map(|config| config.opaque.as_ref());
    let mut parameters =
        opaque.filter(|opaque| opaque.driver == DRIVER_NAME).map(|opaque| &opaque.parameters.0);
    parameters.any(|parameters| {
        let has = |field: &str| parameters[field].as_array().is_some_and(|ips| !ips.is_empty());
        has("ips") || has("replicaIPs")
    })
}

fn alternatives(
    claim: &str,
    request: &DeviceRequest,
    configs: &[DeviceClaimConfiguration],
    classes: &[DeviceClass],
    compiler: &mut Compiler,
) -> Alternatives {
    let name = |alternative: Option<&str>| RequestName {
        claim: claim.to_owned(),
        request: Some(request.name.clone()),
        alternative: alternative.map(str::to_owned),
    };
    let exactly = request.exactly.iter().map(|exactly| RequestParts {
        name: name(None),
        class: &exactly.device_class_name,
        selectors: exactly.selectors.as_deref(),
        mode: exactly.allocation_mode.as_deref(),
        count: exactly.count,
        tolerations: exactly.tolerations.as_deref(),
        capacity: exactly.capacity.as_ref(),
        asks_for_ips: asks_for_ips(configs, &request.name, None),
        admin_access: exactly.admin_access == Some(true),
        is_derived: exactly.derived_attributes.as_ref().is_some_and(|derived| !derived.is_empty()),
    });
    let alternatives = request.first_available.iter().flatten().map(|alternative| RequestParts {
        name: name(Some(&alternative.name)),
        class: &alternative.device_class_name,
        selectors: alternative.selectors.as_deref(),
        mode: alternative.allocation_mode.as_deref(),
        count: alternative.count,
        tolerations: alternative.tolerations.as_deref(),
        capacity: alternative.capacity.as_ref(),
        asks_for_ips: asks_for_ips(configs, &request.name, Some(&alternative.name)),
        admin_access: false,
        is_derived: alternative.derived_attributes.as_ref().is_some_and(|derived| !derived.is_empty()),
    });
    exactly.chain(alternatives).map(|asked| asked.request(classes, compiler)).collect()
}

/// The fields that a request and an alternative have in common.
struct RequestParts<'a> {
    name: RequestName,
    class: &'a str,
    selectors: Option<&'a [DeviceSelector]>,
    mode: Option<&'a str>,
    count: Option<i64>,
    tolerations: Option<&'a [DeviceToleration]>,
    capacity: Option<&'a CapacityRequirements>,
    asks_for_ips: bool,
    admin_access: bool,
    is_derived: bool,
}

impl RequestParts<'_> {
    fn request(self, classes: &[DeviceClass], compiler: &mut Compiler) -> Request {
        let class = classes.iter().find(|class| class.metadata.name.as_deref() == Some(self.class));
        let mut unknown = self.is_derived.then_some("derived attributes");
        let of_class = class.and_then(|class| class.spec.as_ref()?.selectors.as_deref()).unwrap_or_default();
        let of_request = self.selectors.unwrap_or_default();
        let origins = of_class.iter().map(|selector| (Origin::Class(self.class.to_owned()), selector));
        let origins = origins.chain(of_request.iter().map(|selector| (Origin::Request, selector)));
        let mut selectors = Vec::new();
        for (origin, selector) in origins {
            match &selector.cel {
                Some(cel) => selectors.push((origin, compiler.selector(&cel.expression))),
                None => unknown = Some("a selector that is not CEL"),
            }
        }
        let wanted = match self.mode {
            None | Some("" | "ExactCount") => {
                DeviceCount::Exactly(usize::try_from(self.count.unwrap_or(1)).unwrap_or(usize::MAX))
            }
            Some("All") => DeviceCount::All,
            Some(_) => {
                unknown = Some("another allocation mode");
                DeviceCount::Exactly(1)
            }
        };
        let requests = self.capacity.iter().flat_map(|capacity| capacity.requests.iter().flatten());
        let mut capacity = BTreeMap::new();
        for (name, amount) in requests {
            match billionths(&amount.0) {
                Ok(amount) => drop(capacity.insert(name.clone(), amount)),
                Err(_) => unknown = Some("an amount of a capacity that cannot be read here"),
            }
        }
        let hopeless = match class {
            None => Some(Cause::NoClass { class: self.class.to_owned() }),
            Some(_) => unknown.map(|what| Cause::UnknownKind { what: what.to_owned() }),
        };
        Request {
            name: self.name,
            class: self.class.to_owned(),
            selectors,
            wanted,
            tolerations: self.tolerations.unwrap_or_default().to_vec(),
            capacity,
            asks_for_ips: self.asks_for_ips,
            admin_access: self.admin_access,
            resource: None,
            hopeless,
        }
    }
}
