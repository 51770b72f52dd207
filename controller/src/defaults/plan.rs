//! Which templates there must be, which can go, and what the ClaimNetworks' conditions say of it. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use netclaim_api::NetworkName;
use netclaim_api::network::{DefaultClaim, DefaultNetwork};

use super::pods::NamespacePods;

/// The ClaimNetworks with a default; `None` if one is not accepted now: what it had stays as it is.
pub(crate) type Wanted = BTreeMap<String, Option<Arc<Kept>>>;

/// An accepted default, with the claim that its pods get.
#[derive(Debug, PartialEq)]
pub(crate) struct Kept {
    default: DefaultNetwork,
    pub(super) claim: DefaultClaim,
}

impl Kept {
    pub(crate) fn of(network: &NetworkName, default: &DefaultNetwork) -> Self {
        Self { claim: DefaultClaim::of(network, default), default: default.clone() }
    }
}

/// What is known of all defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reports {
    /// The controller keeps no templates, and the chart has no policy that adds claims.
    Off,
    /// By ClaimNetwork.
    On(BTreeMap<String, Defaulted>),
}

impl Reports {
    /// Returns what is known of one ClaimNetwork's default, or that there are none; `None` if nothing is
    /// known yet.
    pub(crate) fn of(&self, network: &NetworkName) -> Option<Result<&Defaulted, DefaultsAreOff>> {
        match self {
            Self::Off => Some(Err(DefaultsAreOff)),
            Self::On(reports) => reports.get(network.as_str()).map(Ok),
        }
    }
}

/// No pod gets a network without asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DefaultsAreOff;

/// What is known of one default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Defaulted {
    /// How many namespaces it selects.
    pub(crate) namespaces: usize,
    /// How many pods lack it.
    pub(crate) lacking: usize,
    /// In how many namespaces these are.
    pub(crate) lacking_in: usize,
    /// Why there is no template, by namespace.
    pub(crate) refused: BTreeMap<String, String>,
}

/// The template of one ClaimNetwork in one namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) namespace: String,
    pub(super) network: String,
}

/// A template that the controller has made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Made {
    pub(super) uid: String,
    /// That of the claim; `None` if somebody has removed it.
    pub(super) fingerprint: Option<String>,
}

/// A request to be sent.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Write {
    Create(Place, Arc<Kept>),
    Delete(Place, Made),
}

/// Everything that decides about templates.
#[derive(Debug, Default)]
pub(super) struct Plan {
    wanted: Wanted,
    /// Labels of the namespaces that are not about to end.
    namespaces: BTreeMap<String, BTreeMap<String, String>>,
    /// Namespaces whose pods get no defaults.
    except: BTreeSet<String>,
    templates: BTreeMap<Place, Made>,
    /// Why the API server has refused a template. Nothing is tried again before [`Self::forget_refusals`].
    refused: BTreeMap<Place, String>,
    /// As they were listed, since the defaults of the namespace are the same.
    pods: BTreeMap<String, NamespacePods>,
}

impl Plan {
    pub(super) fn new(except: BTreeSet<String>) -> Self {
        Self { except, ..Self::default() }
    }

    /// Takes in the defaults. Returns whether that changes anything.
    pub(super) fn want(&mut self, wanted: Wanted) -> bool {
        let before = std::mem::replace(&mut self.wanted, wanted);
        let is_new = before != self.wanted;
        if is_new {
            self.pods.clear();
        }
        is_new
    }

    /// Takes in a namespace; without labels, one that is gone or about to end. Returns whether it has other
    /// defaults now.
    pub(super) fn namespace(&mut self, name: &str, labels: Option<BTreeMap<String, String>>) -> bool {
        let before = self.defaults_of(name);
        match labels {
            Some(labels) => self.namespaces.insert(name.to_owned(), labels),
            None => self.namespaces.remove(name),
        };
        let is_new = before != self.defaults_of(name);
        if is_new {
            self.pods.remove(name);
        }
        is_new
    }

    /// Replaces the namespaces after a new list.
    pub(super) fn namespaces(&mut self, listed: BTreeMap<String, BTreeMap<String, String>>) {
        self.namespaces = listed;
        self.pods.clear();
    }

    /// Takes in a template.
    pub(super) fn made(&mut self, place: Place, made: Made) {
        self.refused.remove(&place);
        self.templates.insert(place, made);
    }

    /// Takes in that a template is gone. One that was made in its place stays.
    pub(super) fn gone(&mut self, place: &Place, uid: &str) {
        if self.templates.get(place).is_some_and(|made| made.uid == uid) {
            self.templates.remove(place);
        }
    }

    /// Replaces the templates after a new list.
    pub(super) fn templates(&mut self, listed: BTreeMap<Place, Made>) {
        self.refused.retain(|place, _| !listed.contains_key(place));
        self.templates = listed;
    }

    /// Takes in why the API server refuses a template.
    pub(super) fn refused(&mut self, place: Place, why: String) {
        self.refused.insert(place, why);
    }

    /// Has refused templates be tried again.
    pub(super) fn forget_refusals(&mut self) {
        self.refused.clear();
    }

    /// Takes in the pods of a namespace.
    pub(super) fn counted(&mut self, namespace: String, pods: NamespacePods) {
        self.pods.insert(namespace, pods);
    }

    /// Returns the accepted defaults of a namespace.
    fn defaults_of(&self, namespace: &str) -> Vec<String> {
        let Some(labels) = self.namespaces.get(namespace).filter(|_| !self.except.contains(namespace)) else {
            return Vec::new();
        };
        let selects =
            |kept: &Option<Arc<Kept>>| kept.as_ref().is_some_and(|kept| kept.default.selects(labels));
        self.wanted.iter().filter(|(_, kept)| selects(kept)).map(|(network, _)| network.clone()).collect()
    }

    /// Whether a template is not needed for new pods.
    fn is_left(&self, place: &Place, defaults: &[String]) -> bool {
        let is_unknown = matches!(self.wanted.get(&place.network), Some(None));
        !is_unknown && !defaults.contains(&place.network)
    }

    /// Returns what to write now. A template that is replaced is deleted first.
    pub(super) fn writes(&self) -> Vec<Write> {
        let mut writes = Vec::new();
        for namespace in self.namespaces.keys() {
            let defaults = self.defaults_of(namespace);
            for network in &defaults {
                let place = Place { namespace: namespace.clone(), network: network.clone() };
                let Some(Some(kept)) = self.wanted.get(network) else { continue };
                match self.templates.get(&place) {
                    None if self.refused.contains_key(&place) => {}
                    None => writes.push(Write::Create(place, Arc::clone(kept))),
                    Some(made) if made.fingerprint.as_ref() == Some(&kept.claim.fingerprint) => {}
                    Some(made) => writes.push(Write::Delete(place, made.clone())),
                }
            }
            let Some(pods) = self.pods.get(namespace) else { continue };
            let left = self.templates_of(namespace).filter(|(place, _)| self.is_left(place, &defaults));
            let unused = left.filter(|(place, _)| !pods.named.contains(&place.network));
            writes.extend(unused.map(|(place, made)| Write::Delete(place.clone(), made.clone())));
        }
        writes
    }

    fn templates_of(&self, namespace: &str) -> impl Iterator<Item = (&Place, &Made)> {
        let first = Place { namespace: namespace.to_owned(), network: String::new() };
        self.templates.range(first..).take_while(move |(place, _)| place.namespace == namespace)
    }

    /// Returns the namespaces whose pods matter, each with its defaults.
    pub(super) fn to_count(&self) -> Vec<(String, Vec<String>)> {
        let with_defaults =
            self.namespaces.keys().map(|namespace| (namespace.clone(), self.defaults_of(namespace)));
        let matters = |(namespace, defaults): &(String, Vec<String>)| {
            !defaults.is_empty() || self.templates_of(namespace).next().is_some()
        };
        with_defaults.filter(matters).collect()
    }

    /// Returns what is known of each accepted default.
    pub(super) fn report(&self) -> BTreeMap<String, Defaulted> {
        let accepted = self.wanted.iter().filter(|(_, kept)| kept.is_some());
        let mut report: BTreeMap<String, Defaulted> =
            accepted.map(|(network, _)| (network.clone(), Defaulted::default())).collect();
        for namespace in self.namespaces.keys() {
            for network in self.defaults_of(namespace) {
                let lacking = self.pods.get(namespace).and_then(|pods| pods.lacking.get(&network)).copied();
                let Some(of_network) = report.get_mut(&network) else { continue };
                of_network.namespaces += 1;
                of_network.lacking += lacking.unwrap_or_default();
                of_network.lacking_in += usize::from(lacking.is_some());
                let place = Place { namespace: namespace.clone(), network };
                if let Some(why) = self.refused.get(&place) {
                    of_network.refused.insert(place.namespace, why.clone());
                }
            }
        }
        report
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kept(bandwidth: &str) -> Option<Arc<Kept>> {
        let default = json!({"namespaceSelector": {"matchLabels": {"storage": "yes"}}, "capacity": {"bandwidth": bandwidth}});
        let default = serde_json::from_value(default).unwrap();
        Some(Arc::new(Kept::of(&"storage".parse().unwrap(), &default)))
    }

    fn labels(storage: &str) -> Option<BTreeMap<String, String>> {
        Some([("storage".to_owned(), storage.to_owned())].into())
    }

    fn place(namespace: &str) -> Place {
        Place { namespace: namespace.to_owned(), network: "storage".to_owned() }
    }

    /// A cluster of `shop`, which the default of `storage` selects, `kube-system` and `other`.
    fn plan() -> Plan {
        let mut plan = Plan::new(["kube-system".to_owned()].into());
        plan.want([("storage".to_owned(), kept("1G"))].into());
        assert!(plan.namespace("shop", labels("yes")));
        assert!(!plan.namespace("kube-system", labels("yes")), "it gets no defaults");
        assert!(!plan.namespace("other", labels("no")));
        plan
    }

    /// Does what the plan wants, and returns it in words.
    fn done(plan: &mut Plan) -> Vec<String> {
        let mut done = Vec::new();
        while let [write, ..] = plan.writes().as_slice() {
            match write.clone() {
                Write::Create(place, kept) => {
                    done.push(format!("create {}/{}", place.namespace, place.network));
                    let made = Made {
                        uid: format!("u{}", done.len()),
                        fingerprint: Some(kept.claim.fingerprint.clone()),
                    };
                    plan.made(place, made);
                }
                Write::Delete(place, made) => {
                    done.push(format!("delete {}/{}", place.namespace, place.network));
                    plan.gone(&place, &made.uid);
                }
            }
        }
        done
    }

    fn count(plan: &mut Plan, named: bool, lacking: usize) {
        for (namespace, defaults) in plan.to_count() {
            let lacking =
                defaults.iter().filter(|_| lacking > 0).map(|network| (network.clone(), lacking)).collect();
            let named = named.then(|| "storage".to_owned()).into_iter().collect();
            plan.counted(namespace, NamespacePods { named, lacking });
        }
    }

    #[test]
    fn a_selected_namespace_gets_a_template_once() {
        let mut plan = plan();
        assert_eq!(done(&mut plan), ["create shop/storage"]);
        assert_eq!(done(&mut plan), [""; 0]);
        plan.namespace("other", labels("yes"));
        assert_eq!(done(&mut plan), ["create other/storage"]);
    }

    #[test]
    fn another_default_is_another_template() {
        let mut plan = plan();
        done(&mut plan);
        assert!(plan.want([("storage".to_owned(), kept("2G"))].into()));
        assert_eq!(done(&mut plan), ["delete shop/storage", "create shop/storage"]);
        let of_a_tenant = Made { uid: "u9".to_owned(), fingerprint: None };
        plan.made(place("shop"), of_a_tenant);
        assert_eq!(done(&mut plan), ["delete shop/storage", "create shop/storage"]);
    }

    #[test]
    fn a_template_that_was_deleted_is_made_again() {
        let mut plan = plan();
        done(&mut plan);
        plan.gone(&place("shop"), "another");
        assert_eq!(done(&mut plan), [""; 0], "that was an older one");
        plan.gone(&place("shop"), "u1");
        assert_eq!(done(&mut plan), ["create shop/storage"]);
    }

    #[test]
    fn a_template_goes_when_no_pod_names_it_any_more() {
        type Change = fn(&mut Plan);
        let changes: [Change; 3] = [
            |plan| assert!(plan.want(Wanted::new())),
            |plan| assert!(plan.namespace("shop", labels("no"))),
            |plan| plan.except.extend(["shop".to_owned()]),
        ];
        for change in changes {
            let mut plan = plan();
            done(&mut plan);
            count(&mut plan, false, 0);
            change(&mut plan);
            count(&mut plan, true, 0);
            assert_eq!(done(&mut plan), [""; 0], "a pod names it");
            count(&mut plan, false, 0);
            assert_eq!(done(&mut plan), ["delete shop/storage"]);
        }
    }

    #[test]
    fn pods_are_counted_again_before_a_template_goes() {
        let mut plan = plan();
        done(&mut plan);
        count(&mut plan, false, 0);
        plan.namespace("shop", labels("no"));
        assert_eq!(done(&mut plan), [""; 0], "what was counted is of before");
    }

    #[test]
    fn a_network_that_is_not_accepted_keeps_its_templates_and_gets_no_new_ones() {
        let mut plan = plan();
        done(&mut plan);
        plan.want([("storage".to_owned(), None)].into());
        plan.namespace("other", labels("yes"));
        count(&mut plan, false, 0);
        assert_eq!(done(&mut plan), [""; 0]);
        assert_eq!(plan.report(), BTreeMap::new());
    }

    #[test]
    fn a_namespace_that_ends_is_left_alone() {
        let mut plan = plan();
        done(&mut plan);
        plan.namespace("shop", None);
        assert_eq!((done(&mut plan), plan.to_count()), (vec![], vec![]));
    }

    #[test]
    fn a_refused_template_is_reported_and_tried_again_later() {
        let mut plan = plan();
        plan.refused(place("shop"), "quota".to_owned());
        assert_eq!(done(&mut plan), [""; 0]);
        assert_eq!(plan.report()["storage"].refused, [("shop".to_owned(), "quota".to_owned())].into());
        plan.forget_refusals();
        assert_eq!(done(&mut plan), ["create shop/storage"]);
    }

    #[test]
    fn the_report_has_namespaces_and_pods_that_lack_the_default() {
        let mut plan = plan();
        plan.namespace("other", labels("yes"));
        done(&mut plan);
        count(&mut plan, true, 3);
        plan.counted("other".to_owned(), NamespacePods::default());
        let expected = Defaulted { namespaces: 2, lacking: 3, lacking_in: 1, refused: BTreeMap::new() };
        assert_eq!(plan.report(), [("storage".to_owned(), expected)].into());
    }
}
